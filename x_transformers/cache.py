"""The state of a running model: keys, values, and whatever else its features remember of the past.

What belongs here: buffers that grow along the tokens, and the `Cache` that holds those of a whole model. Appending
writes into memory allocated ahead, so a token costs no copy of its past. A cache is a value: crop, reorder and their
like return a new one, and continuing twice from the same cache gives two independent continuations.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from x_transformers.checks import a_tensor, check_range
from x_transformers.files import check_fields, is_count, read_content, write_content

FORMAT = 'x-transformers cache 2'
CLAIMING = threading.Lock()


class Storage:
    """Memory shared by all buffers that continue one another; `filled` tells how far it has been written."""

    __slots__ = ('filled', 'tensor')

    def __init__(self, tensor: Tensor, filled: int) -> None:
        self.tensor, self.filled = tensor, filled

    def takes(self, start: int, count: int) -> bool:
        """Whether `count` tokens may be written from `start` on: by one caller only, whatever other threads do."""
        if torch.compiler.is_compiling():
            return self.claimed(start, start + count)
        with CLAIMING:
            return self.claimed(start, start + count)

    def claimed(self, start: int, end: int) -> bool:
        free = self.filled == start and end <= self.tensor.shape[-2] and not is_frozen(self.tensor)
        if free:
            self.filled = end
        return free


class Buffer:
    """Rows of tokens, (..., n, d), that grow at the end. The tokens start at `start` of the storage."""

    __slots__ = ('length', 'start', 'storage')

    def __init__(self, tensor: Tensor) -> None:
        self.storage, self.start, self.length = Storage(tensor, tensor.shape[-2]), 0, tensor.shape[-2]

    @property
    def tensor(self) -> Tensor:
        return self.storage.tensor.narrow(-2, self.start, self.length)

    def part(self, start: int, length: int) -> Buffer:
        """A window on the same memory."""
        new = object.__new__(Buffer)
        new.storage, new.start, new.length = self.storage, self.start + start, length
        return new

    def append(self, new: Tensor) -> Buffer:
        """This buffer followed by `new` (..., m, d), in place where nobody else has continued it."""
        old, count = self.storage.tensor, new.shape[-2]
        if count == 0:
            return self
        if torch.is_grad_enabled() and (new.requires_grad or old.requires_grad):
            return Buffer(torch.cat((self.tensor, new), dim=-2))
        fits = self.storage.takes(self.start + self.length, count)
        grown = self.part(0, self.length) if fits else self.moved(2 * (self.length + count))
        end = grown.start + grown.length
        grown.storage.tensor.narrow(-2, end, count).copy_(new)
        grown.storage.filled = end + count
        grown.length += count
        return grown

    @property
    def sizes(self) -> tuple[int, ...]:
        """Those of a row, (... d)."""
        *leading, _, width = self.storage.tensor.shape
        return (*leading, width)

    def moved(self, capacity: int) -> Buffer:
        """A copy in memory of its own, with room for `capacity` tokens."""
        *leading, _, width = self.storage.tensor.shape
        new = Buffer(self.storage.tensor.new_empty(*leading, capacity, width))
        new.tensor.narrow(-2, 0, self.length).copy_(self.tensor)
        new.storage.filled = new.length = self.length
        return new

    def map(self, function: Callable[[Tensor], Tensor]) -> Buffer:
        return Buffer(function(self.tensor))


def is_frozen(t: Tensor) -> bool:
    """Whether a tensor cannot be written to, made in inference mode and met outside of it."""
    return not torch.compiler.is_compiling() and t.is_inference() and not torch.is_inference_mode_enabled()


class KeysValues:
    """The past of one attention layer, for all tokens so far: its keys and values, of which the latter may be absent
    (None), and the rows (b ... n d) that its features remember beside them, by name.

    The keys may be kept as the kernel multiplies them, turned by their positions: then `turned_by` is the feature that
    turned them, and the state 'angles' (b n r) is how far.
    """

    __slots__ = ('buffers', 'states', 'turned_by')

    def __init__(
        self, buffers: tuple[Buffer | None, ...], states: dict[str, Buffer] | None = None, turned_by: Any = None
    ) -> None:
        self.buffers, self.states, self.turned_by = buffers, states or {}, turned_by

    def __reduce__(self) -> Any:
        own = self.plain()  # without the feature, which holds its layer
        return KeysValues, (own.buffers, own.states)

    @classmethod
    def of(cls, pair: Any) -> KeysValues | None:
        """From a pair of tensors, as users hold it."""
        if pair is None or isinstance(pair, KeysValues):
            return pair
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f'`cached_kv` got {type(pair).__name__}, it must be a pair of tensors (b k n d)')
        return cls(tuple(None if t is None else Buffer(t) for t in pair))

    @property
    def pair(self) -> tuple[Tensor, ...]:
        return tuple(None if b is None else b.tensor for b in self.buffers)

    @property
    def length(self) -> int:
        return self.buffers[0].length

    def append(self, *new: Tensor | None) -> KeysValues:
        buffers = tuple(None if b is None else b.append(t) for b, t in zip(self.buffers, new, strict=True))
        return KeysValues(buffers, turned_by=self.turned_by)

    def each(self, function: Callable[[Buffer], Buffer]) -> KeysValues:
        states = {name: function(state) for name, state in self.states.items()}
        return KeysValues(tuple(None if b is None else function(b) for b in self.buffers), states, self.turned_by)

    def plain(self) -> KeysValues:
        """With the keys as they were before they were turned by their positions."""
        if self.turned_by is None:
            return self
        states = dict(self.states)
        k = self.turned_by.turned(self.buffers[0].tensor, -states.pop('angles').tensor)
        return KeysValues((Buffer(k), *self.buffers[1:]), states)


@dataclass
class Cache:
    """What a model remembers of the tokens it has seen.

    layers    one per executed attention, in order
    kinds     'a' for self-attention, 'c' for cross-attention, one per layer
    states    what features remember, by name; rows of tokens, like keys
    seen      tokens processed so far; the position of the next one
    leading   how many of them stood in front of the sequence: memory, class and prepended tokens
    recurrent   hidden states of recurrent modules, one per layer, None where there is none; they cannot be cut
    exits     of a looped model, the last pass of each call so far, (1, calls)
    made_by   the flags of the stack that decide what keys and values are, if known
    """

    layers: list[KeysValues | None] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    states: dict[str, Buffer] = field(default_factory=dict)
    seen: int = 0
    leading: int = 0
    recurrent: list[Any] = field(default_factory=list)
    exits: Tensor | None = None
    made_by: Sequence[str] | None = None

    @property
    def length(self) -> int:
        """The tokens held. Less than `seen` only after keys and values were cut by hand."""
        own = [
            layer.length
            for layer, kind in zip(self.layers, self.kinds, strict=True)
            if kind == 'a' and layer is not None
        ]
        if own:
            return own[0]
        states = [state.length for state in self.states.values()]
        return max(states) if states else self.seen

    @property
    def batch(self) -> int | None:
        """How many rows it holds, None if nothing is held."""
        layers = [layer.buffers[0] for layer in self.layers if layer is not None]
        held = [*layers, *self.states.values()]
        return held[0].sizes[0] if held else None

    def intermediates(self, index: int) -> Any:
        """The past of one executed attention, as that layer takes it."""
        from x_transformers.attend import Intermediates

        hidden = self.recurrent[index] if self.recurrent else None
        return Intermediates(cached_kv=self.layers[index], hybrid_hidden=hidden)

    def split(self, passes: int) -> list[Cache]:
        """The caches of the passes of a stack that runs several times."""
        per_pass = len(self.layers) // passes
        if len(self.layers) != per_pass * passes:
            raise ValueError(f'`cache` holds {len(self.layers)} attention layers, not those of {passes} passes')
        parts = []
        for number in range(passes):
            mark, own = f'pass {number}: ', slice(number * per_pass, (number + 1) * per_pass)
            states = {n.removeprefix(mark): state for n, state in self.states.items() if n.startswith(mark)}
            recurrent = self.recurrent[own]
            held = self.layers[own], self.kinds[own], states, self.seen, self.leading, recurrent
            parts.append(Cache(*held, made_by=self.made_by))
        return parts

    @classmethod
    def joined(cls, parts: list[Cache]) -> Cache:
        """The way back from `split`."""
        states = {f'pass {i}: {name}': state for i, part in enumerate(parts) for name, state in part.states.items()}
        layers, kinds, recurrent = ([one for part in parts for one in getattr(part, name)] for name in
                                    ('layers', 'kinds', 'recurrent'))  # fmt: skip
        last = parts[-1]
        return cls(layers, kinds, states, last.seen, last.leading, recurrent, made_by=last.made_by)

    def caught_up(self, other: Cache, new: int) -> Cache:
        """This cache with the last `new` tokens of another."""

        def extended(own: Buffer, others: Buffer) -> Buffer:
            return own.append(others.tensor[..., others.length - new :, :])

        layers = []
        for own, others, kind in zip(self.layers, other.layers, self.kinds, strict=True):
            buffers = (b if b is None else extended(b, o) for b, o in zip(own.buffers, others.buffers, strict=True))
            states = {name: extended(state, others.states[name]) for name, state in own.states.items()}
            layers.append(own if kind == 'c' else KeysValues(tuple(buffers), states, own.turned_by))
        states = {name: extended(state, other.states[name]) for name, state in self.states.items()}
        return replace(self.with_parts(layers, states), seen=other.seen, leading=other.leading, exits=None)

    def crop(self, length: int) -> Cache:
        """Keep the first `length` tokens: take back the last ones.  Raises ValueError outside 0..length."""
        held = self.length
        self.check('length', length, held)
        if length < held:
            self.refuse_recurrent('crop')
        cropped = self.each_own(lambda buffer: buffer.part(0, max(buffer.length - (held - length), 0)))
        cropped.seen = self.seen - (held - length)
        return cropped

    def keep_last(self, count: int) -> Cache:
        """Keep the last `count` tokens: a sliding window, whose positions are counted from its start."""
        held = self.length
        self.check('count', count, held)
        if count < held:
            self.refuse_recurrent('keep_last')
        drop = held - count
        # keys turned by their old positions would be at the wrong ones
        whole = self if drop == 0 else self.plain()
        kept = whole.each_own(lambda buffer: buffer.part(min(drop, buffer.length), max(buffer.length - drop, 0)))
        kept.seen, kept.leading = count, max(self.leading - drop, 0)
        return kept

    def reorder(self, rows: Tensor) -> Cache:
        """Take the given rows of the batch (k,), which may repeat or be left out.

        Raises TypeError or ValueError for what is no tensor of row numbers, or where there is no such row.
        """
        if a_tensor(rows, 'rows').ndim != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f'`rows` got {rows.dtype} of shape {tuple(rows.shape)}, it must be a list of row numbers (k,)'
            )
        check_range(rows, 'rows', 0, None if self.batch is None else self.batch - 1, 'row numbers')
        self.refuse_recurrent('reorder')
        return self.each(lambda buffer: buffer.map(lambda t: t.index_select(0, rows.to(t.device))))

    def expand(self, beams: int) -> Cache:
        """Repeat each row of the batch `beams` times, side by side.  Raises ValueError for less than once."""
        if isinstance(beams, bool) or not isinstance(beams, int) or beams < 1:
            raise ValueError(f'`beams` got {beams!r}, it must be an integer of at least 1')
        self.refuse_recurrent('expand')
        return self.each(lambda buffer: buffer.map(lambda t: t.repeat_interleave(beams, dim=0)))

    def detach(self) -> Cache:
        detached = self.each(lambda buffer: buffer.map(Tensor.detach))
        detached.recurrent = [tree_map_only(Tensor, Tensor.detach, hidden) for hidden in self.recurrent]
        return detached

    def to(self, device: torch.device | str) -> Cache:
        moved = self.plain().each(lambda buffer: buffer.map(lambda t: t.to(device)))
        moved.recurrent = [tree_map_only(Tensor, lambda t: t.to(device), hidden) for hidden in self.recurrent]
        return moved

    def each(self, function: Callable[[Buffer], Buffer]) -> Cache:
        """A cache with `function` applied to every buffer."""
        layers = [None if layer is None else layer.each(function) for layer in self.layers]
        return self.with_parts(layers, {name: function(state) for name, state in self.states.items()})

    def each_own(self, function: Callable[[Buffer], Buffer]) -> Cache:
        """The same, leaving alone the keys of a context."""
        layers = [
            layer if layer is None or kind == 'c' else layer.each(function)
            for layer, kind in zip(self.layers, self.kinds, strict=True)
        ]
        return self.with_parts(layers, {name: function(state) for name, state in self.states.items()})

    def plain(self) -> Cache:
        """With keys as they were before they were turned by their positions."""
        states = {name: state for name, state in self.states.items() if name not in ('positions', 'angles')}
        return self.with_parts([None if layer is None else layer.plain() for layer in self.layers], states)

    def with_parts(self, layers: list[KeysValues | None], states: dict[str, Buffer]) -> Cache:
        return replace(self, layers=layers, kinds=list(self.kinds), states=states, recurrent=list(self.recurrent))

    def refuse_recurrent(self, operation: str) -> None:
        if any(hidden is not None for hidden in self.recurrent):
            raise ValueError(f'`{operation}` got a cache with the state of a recurrent module, which cannot be cut')

    def check(self, name: str, value: int, held: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= held:
            raise ValueError(f'`{name}` got {value!r}, it must be an integer from 0 to {held}, the tokens held')

    def content(self) -> dict[str, Any]:
        """All that is held, in plain containers, for a file."""
        whole = self.plain()
        return {
            'seen': self.seen,
            'leading': self.leading,
            'kinds': list(self.kinds),
            'layers': [
                None if layer is None else [None if t is None else t.contiguous() for t in layer.pair]
                for layer in whole.layers
            ],
            'remembered': [
                {} if layer is None else {name: state.tensor.contiguous() for name, state in layer.states.items()}
                for layer in whole.layers
            ],
            'states': {name: state.tensor.contiguous() for name, state in whole.states.items()},
            'recurrent': self.recurrent,
            'exits': self.exits,
            'made_by': None if self.made_by is None else list(self.made_by),
        }

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> Cache:
        """The way back from `content`.  Raises ValueError that names a field which cannot be."""
        check_content(content)
        layers = [None if pair is None else KeysValues.of(pair) for pair in content['layers']]
        for layer, remembered in zip(layers, content['remembered'], strict=True):
            if layer is not None:
                layer.states = {name: Buffer(t) for name, t in remembered.items()}
        states = {name: Buffer(t) for name, t in content['states'].items()}
        rest = (content[name] for name in ('seen', 'leading', 'recurrent', 'exits', 'made_by'))
        return cls(layers, content['kinds'], states, *rest)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a file, atomically."""
        write_content(self.content(), path, FORMAT)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str | None = None) -> Cache:
        """Read a cache from a file.  Raises ValueError if the file is not a cache, or is damaged."""
        return read_content(path, device, FORMAT, 'cache', cls.of_content)


def all_are(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test of lists, or of dicts with texts as keys, by their values."""
    return lambda value: all(map(test, value)) if isinstance(value, list) else (
        isinstance(value, dict) and all(isinstance(k, str) and test(v) for k, v in value.items())
    )  # fmt: skip


def is_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 3


def is_pair(value: Any) -> bool:
    """Keys and values, of which the latter may be absent."""
    one = isinstance(value, list) and len(value) == 2 and is_rows(value[0])
    return one and (value[1] is None or (is_rows(value[1]) and value[0].shape[-2] == value[1].shape[-2]))


CONTENT: dict[str, Callable[[Any], bool]] = {
    'seen': is_count,
    'leading': is_count,
    'kinds': all_are(lambda kind: kind in ('a', 'c')),
    'layers': all_are(lambda pair: pair is None or is_pair(pair)),
    'remembered': all_are(all_are(is_rows)),
    'states': all_are(is_rows),
    'recurrent': lambda value: isinstance(value, list),
    'exits': lambda value: value is None or isinstance(value, Tensor),
    'made_by': lambda value: value is None or (isinstance(value, list) and all(isinstance(n, str) for n in value)),
}


def check_content(content: dict[str, Any]) -> None:
    """Refuse what `Cache.content` cannot have given.  Raises ValueError."""
    layers, states = check_fields(content, CONTENT, 'cache')['layers'], content['states']
    of_layers = {name: len(content[name]) for name in ('layers', 'kinds', 'remembered', 'recurrent')}
    if {*of_layers.values()} - {0, len(layers)}:
        raise ValueError(f'the cache holds so many of each, which must be the same: {of_layers}')
    held = [t for pair in layers if pair is not None for t in pair if t is not None]
    held += [t for remembered in (*content['remembered'], states) for t in remembered.values()]
    if len({len(t) for t in held} - {1}) > 1:
        raise ValueError(f'the cache holds rows of several batches: {sorted({len(t) for t in held})}')


@dataclass
class LayerIntermediates:
    """What a stack leaves behind, and a wrapper adds to. Passed back as `cache`, it continues the sequence.

    hiddens              inputs of the self-attention layers, before their norm; the next memories
    last_hidden          the output of the stack
    attn_intermediates   one `Intermediates` per executed attention
    layer_hiddens        the input of every executed branch, then the state after the last
    cache_length         tokens processed so far
    aux_losses           losses that features added in this pass, in training, by name
    passes               the caches of all passes, if the stack ran more than once
    whole                why no token can follow, if none can
    made_by              the flags of the stack that decide what keys and values are
    """

    hiddens: list[Tensor] | None = None
    last_hidden: Tensor | None = None
    attn_intermediates: list[Any] | None = None
    layer_hiddens: list[Tensor] | None = None
    attn_z_loss: Tensor | None = None
    mems: list[Tensor] | None = None
    last_layer_hiddens: Tensor | None = None
    initial_embeds: Tensor | None = None
    attn_pooled_tokens: Tensor | None = None
    memory_tokens: Tensor | None = None
    logit_entropies: Tensor | None = None
    logits: Tensor | None = None
    exit_logits: list[Tensor] | None = None
    all_pred_logits: list[Tensor] | None = None
    exit_indices: Tensor | None = None
    looped_prompt_kv_cache: list[Any] | None = None
    block_hiddens: list[Tensor] | None = None
    cache_length: int = 0
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, Buffer] = field(default_factory=dict)
    leading: int = 0
    passes: list[Cache] | None = None
    whole: str = ''
    made_by: Sequence[str] | None = None

    @property
    def cache(self) -> Cache:
        """The state that continues this sequence, including keys and values that were edited in place.

        Raises ValueError if nothing can follow.
        """
        if self.whole:
            raise ValueError(f'`cache` cannot be continued: {self.whole}')
        if self.passes:
            joined = Cache.joined(self.passes)
            joined.exits = self.exit_indices
            joined.seen, joined.leading, joined.made_by = self.cache_length, self.leading, self.made_by
            joined.states |= self.states
            return joined
        return self.of_last_pass

    @property
    def of_last_pass(self) -> Cache:
        attended = self.attn_intermediates or []
        layers = [inter.past for inter in attended]
        kinds = [inter.layer_type for inter in attended]
        recurrent = [inter.hybrid_hidden for inter in attended]
        states, made_by = dict(self.states), self.made_by
        return Cache(layers, kinds, states, self.cache_length, self.leading, recurrent, made_by=made_by)

    def fork(self) -> LayerIntermediates:
        """The same, with lists and tables that may grow apart."""
        return replace(self, **{one.name: own_copy(getattr(self, one.name)) for one in fields(self)})

    def __copy__(self) -> LayerIntermediates:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        if self.attn_intermediates is not None:
            new.attn_intermediates = [copy.copy(inter) for inter in self.attn_intermediates]
        if self.block_hiddens is not None:
            new.block_hiddens = list(self.block_hiddens)
        return new


def own_copy(value: Any) -> Any:
    """A list or table that may grow by itself; anything else as it is."""
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value


def cache_of(given: Any) -> Cache | None:
    """The cache in what a user passes as `cache`.  Raises TypeError for anything else."""
    if given is None or isinstance(given, Cache):
        return given
    if isinstance(given, LayerIntermediates):
        if given.attn_intermediates is None:
            raise ValueError(
                '`cache` got intermediates without `attn_intermediates`: nothing was kept to continue from'
            )
        return given.cache
    raise TypeError(f'`cache` got {type(given).__name__}, it must be the intermediates of an earlier call, or a Cache')
