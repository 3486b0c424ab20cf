"""`Cache`, the state of earlier calls of a model: keys, values, and states of its features.

What belongs here: the `Cache` that holds the buffers of a whole model, and what a stack leaves behind. A cache is a
value: crop, reorder and their like return a new one, and continuing twice from the same cache gives two independent
continuations.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from x_transformers.core.buffers import Buffer, CachedState, EvictingBuffer, KeysValues, drop_derived
from x_transformers.core.checks import check_range, check_tensor
from x_transformers.core.files import all_are, check_fields, is_count, read_content, write_content
from x_transformers.core.intermediates import Intermediates
from x_transformers.core.notes import copy_container
from x_transformers.core.state import get_state, is_content, is_rows
from x_transformers.core.window import AttentionWindow
from x_transformers.flags.checks import Maybe
from x_transformers.flags.renamed import HasOldNames

FORMAT = 'x-transformers cache 4'
REMEDY = 'Run the model on the tokens again with `return_intermediates=True`, and save that cache'


@dataclass
class Cache(HasOldNames):
    """Cached keys, values and states of a model, for the tokens processed so far.

    layers              one per executed attention layer, in order, each with the states of its features
    kinds               'a' for self-attention, 'c' for cross-attention, one per layer
    states              states of features of the stack, by name
    num_seen_tokens     number of tokens processed so far; the position of the next one
    num_prefix_tokens   how many of them were prepended to the sequence: memory, class and prepended tokens
    model_states        states of features of the model
    built_with_flags    the flags of the stack that determine keys and values, if known

    An operation that some state does not support exactly raises an error that names it; `cannot` checks this before.
    """

    old_names: ClassVar[dict[str, str]] = {
        'seen': 'num_seen_tokens',
        'leading': 'num_prefix_tokens',
        'made_by': 'built_with_flags',
    }

    layers: list[KeysValues | None] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    states: dict[str, CachedState] = field(default_factory=dict)
    num_seen_tokens: int | Tensor = 0
    num_prefix_tokens: int = 0
    model_states: dict[str, CachedState] = field(default_factory=dict)
    built_with_flags: Maybe[Sequence[str]] = None

    @property
    def length(self) -> Any:
        """The number of cached tokens. Less than `num_seen_tokens` only if keys and values were sliced by the user."""
        for layer, kind in zip(self.layers, self.kinds, strict=True):
            if kind == 'a' and layer is not None:
                return layer.length
        states = (*self.states.values(), *self.model_states.values())
        lengths = [state.length for state in states]  # notes are of no token
        if torch.is_tensor(
            self.num_seen_tokens
        ):  # which is no size; intermediates that a user has built do not say of what kind
            unknown = zip(self.layers, self.kinds, strict=True)
            lengths += [layer.length for layer, kind in unknown if layer is not None and kind is None]
        return (max(lengths) if lengths else 0) or self.num_seen_tokens

    @property
    def batch(self) -> int | None:
        """Return how many rows it holds, None if nothing is held."""
        held = [layer.buffers[0].batch for layer in self.layers if layer is not None]
        held += [state.batch for _, state in self.named() if state.batch is not None]
        return held[0] if held else None

    def named(self) -> Iterator[tuple[str, CachedState]]:
        """Yield all states of features, of layers, stack and model."""
        tables = [layer.states for layer in self.layers if layer is not None]
        for table in (*tables, self.states, self.model_states):
            yield from table.items()

    def buffers(self) -> Iterator[Buffer]:
        """Yield the storage of all tensors."""
        for layer in self.layers:
            yield from () if layer is None else (buffer for buffer in layer.buffers if buffer is not None)
        for _, state in self.named():
            yield from state.buffers()

    def trimmed(self) -> Cache:
        """Return a cache without keys and values outside the windows of later tokens."""
        if not [layer for layer in self.layers if layer is not None and isinstance(layer.buffers[0], EvictingBuffer)]:
            return self
        return replace(self, layers=[None if layer is None else layer.trim() for layer in self.layers])

    def check_lengths(self) -> None:
        """Refuse layers that were cut by hand where some have let go of keys, which those that are left cannot tell."""
        own = [layer.buffers[0] for layer, kind in zip(self.layers, self.kinds, strict=True)
               if kind == 'a' and layer is not None]  # fmt: skip
        if not [keys for keys in own if keys.num_evicted]:
            return
        lengths = sorted({keys.num_evicted + keys.length for keys in own})
        if len(lengths) > 1:
            raise ValueError(
                f'`cache` has layers of {lengths} tokens: those whose reach is bounded '
                'hold the last ones alone, and cannot be cut by hand; see `Cache.crop`'
            )

    def intermediates(self, index: int) -> Intermediates:
        """Return the past of one executed attention, as its layer takes it."""
        return Intermediates(cached_kv=self.layers[index])

    @property
    def attn_intermediates(self) -> list[Intermediates]:
        """The past of each executed attention, as stacks of others read it that have a `forward` of their own."""
        return [self.intermediates(index) for index in range(len(self.layers))]

    @property
    def cache_length(self) -> int | Tensor:
        return self.num_seen_tokens

    def split(self, passes: int) -> list[Cache]:
        """Split the cache of a stack that runs several times into those of its passes."""
        per_pass = len(self.layers) // passes
        if len(self.layers) != per_pass * passes:
            raise ValueError(f'`cache` holds {len(self.layers)} attention layers, not those of {passes} passes')
        parts = []
        for number in range(passes):
            mark, own = f'pass {number}: ', slice(number * per_pass, (number + 1) * per_pass)
            states = {n.removeprefix(mark): state for n, state in self.states.items() if n.startswith(mark)}
            held = self.layers[own], self.kinds[own], states, self.num_seen_tokens, self.num_prefix_tokens
            parts.append(Cache(*held, built_with_flags=self.built_with_flags))
        return parts

    @classmethod
    def joined(cls, parts: list[Cache]) -> Cache:
        """Join the caches of passes: undo `split`."""
        states = {f'pass {i}: {name}': state for i, part in enumerate(parts) for name, state in part.states.items()}
        layers, kinds = ([one for part in parts for one in getattr(part, name)] for name in ('layers', 'kinds'))
        last = parts[-1]
        sizes = last.num_seen_tokens, last.num_prefix_tokens
        return cls(layers, kinds, states, *sizes, built_with_flags=last.built_with_flags)

    def append_from(self, other: Cache, new: int) -> Cache:
        """Append the last `new` tokens of another cache."""
        self.refuse('caught_up')

        def extended(own: dict[str, CachedState], others: dict[str, CachedState]) -> dict[str, CachedState]:
            return {name: state.append_from(others[name], new) for name, state in own.items()}

        layers = []
        every: Any = zip(self.layers, other.layers, self.kinds, strict=True)  # `refuse` has found all layers filled
        for own, others, kind in every:
            pairs = zip(own.buffers, others.buffers, strict=True)
            buffers = own.buffers if kind == 'c' else [b if b is None else b.append_from(o, new) for b, o in pairs]
            layers.append(KeysValues(tuple(buffers), extended(own.states, others.states), own.changed_by))
        states = extended(self.states, other.states)
        sizes = dict(num_seen_tokens=other.num_seen_tokens, num_prefix_tokens=other.num_prefix_tokens)
        return replace(self, layers=layers, kinds=list(self.kinds), states=states, model_states={}, **sizes)

    def crop(self, length: int) -> Cache:
        """Keep the first `length` tokens and remove the others.  Raises ValueError outside 0..length."""
        held = self.length
        self.check('length', length, held)
        self.refuse('crop', held - length)
        cropped = self.changed(lambda state: state.crop(held - length), of_context=False)
        cropped.num_seen_tokens = self.num_seen_tokens - (held - length)
        return cropped

    def keep_last(self, count: int) -> Cache:
        """Keep the last `count` tokens, as a sliding window. Positions then count from its start."""
        held = self.length
        self.check('count', count, held)
        self.refuse('keep_last', count)
        # keys changed by their old positions would be at the wrong ones
        whole = self if count == held else self.plain()
        kept = whole.changed(lambda state: state.keep_last(count), of_context=False)
        kept.num_seen_tokens, kept.num_prefix_tokens = count, max(self.num_prefix_tokens - (held - count), 0)
        return kept

    def reorder(self, rows: Tensor) -> Cache:
        """Select batch entries by their indices (k,), which may repeat, as in beam search.

        Raises TypeError or ValueError for what is no tensor of row numbers, or where there is no such row.
        """
        if check_tensor(rows, 'rows').ndim != 1 or rows.dtype not in (torch.int32, torch.int64):
            raise ValueError(f'`rows` must be batch indices (k,), got {rows.dtype} of shape {tuple(rows.shape)}')
        check_range(rows, 'rows', 0, None if self.batch is None else self.batch - 1, 'row numbers')
        self.refuse('reorder')
        return self.mapped(lambda t: t.index_select(0, rows.to(t.device)))

    def expand(self, beams: int) -> Cache:
        """Repeat each batch entry `beams` times, consecutively.  Raises ValueError if `beams` is less than 1."""
        if isinstance(beams, bool) or not isinstance(beams, int) or beams < 1:
            raise ValueError(f'`beams` must be an integer of at least 1, got {beams!r}')
        self.refuse('expand')
        return self.mapped(lambda t: t.repeat_interleave(beams, dim=0))

    def detach(self) -> Cache:
        return self.mapped(Tensor.detach)

    def to(self, device: torch.device | str) -> Cache:
        return self.plain().mapped(lambda t: t.to(device))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Cache:
        """Apply `function` to all tensors with a batch axis."""
        return self.changed(lambda state: state.map(function))

    def each_own(self, function: Callable[[Buffer], Buffer]) -> Cache:
        """Apply `function` to all tensors per token, except for the keys of a context."""
        return self.changed(lambda state: state.each(function), of_context=False)

    def changed(self, function: Callable[[Any], Any], of_context: bool = True) -> Cache:
        """Apply `function` to keys, values and states, and to keys of a context only if `of_context` is set."""
        layers = [
            None if layer is None else layer.each(function, of_context or kind != 'c')
            for layer, kind in zip(self.layers, self.kinds, strict=True)
        ]
        states, of_model = (
            {name: function(state) for name, state in table.items()} for table in (self.states, self.model_states)
        )
        return replace(self, layers=layers, kinds=list(self.kinds), states=states, model_states=of_model)

    def plain(self) -> Cache:
        """Return a cache with keys before rotation and without derived states."""
        layers = [None if layer is None else layer.plain() for layer in self.layers]
        return replace(self, layers=layers, kinds=list(self.kinds), states=drop_derived(self.states))

    def cannot(self, operation: str, count: int = 0) -> str | None:
        """Return which state cannot do an operation exactly, and why; None if all can. Of `crop` and `keep_last`,
        `count` is how many tokens are taken back, or stay; 'shift' moves rows by different places."""
        for name, state in self.named():
            if reason := state.cannot(operation, count):
                return f'the {state.kind} state `{name}`, {reason}'
        for at, layer in enumerate(self.layers):
            reason = None if layer is None else layer.buffers[0].cannot(operation, count)
            if reason:
                return f'the keys of attention {at}, {reason}'
        return None

    def refuse(self, operation: str, count: int = 0) -> None:
        if reason := self.cannot(operation, count):
            raise ValueError(f'`{operation}` got a cache with {reason}')

    def check(self, name: str, value: int, held: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= held:
            raise ValueError(f'`{name}` must be an integer from 0 to {held}, the tokens held, got {value!r}')

    def content(self) -> dict[str, Any]:
        """Return the content in plain containers, for a file."""
        whole = self.plain()

        def contents(states: dict[str, CachedState]) -> dict[str, Any]:
            return {name: state.content() for name, state in states.items()}

        return {
            'seen': int(self.num_seen_tokens),
            'leading': self.num_prefix_tokens,
            'kinds': list(self.kinds),
            'layers': [
                None if layer is None else [None if t is None else t.contiguous() for t in layer.pair]
                for layer in whole.layers
            ],
            'tails': [None if layer is None else _tail_of(layer) for layer in self.layers],
            'remembered': [{} if layer is None else contents(layer.states) for layer in whole.layers],
            'states': contents(whole.states),
            'model_states': contents(whole.model_states),
            'made_by': None if self.built_with_flags is None else list(self.built_with_flags),
        }

    @classmethod
    def of_content(cls, content: dict[str, Any]) -> Cache:
        """Make a cache of `content`.  Raises ValueError that names an invalid field."""
        check_content(content)

        def states_of(contents: dict[str, Any]) -> dict[str, CachedState]:
            return {name: get_state(one) for name, one in contents.items()}

        layers: Any = [None if pair is None else KeysValues.of(pair) for pair in content['layers']]
        for at, (tail, remembered) in enumerate(zip(content['tails'], content['remembered'], strict=True)):
            if layers[at] is not None and tail is not None:
                buffers = [
                    None if b is None else EvictingBuffer.of(b, tail[0], AttentionWindow(*tail[1:]))
                    for b in layers[at].buffers
                ]
                layers[at] = KeysValues(tuple(buffers))
            if layers[at] is not None:
                layers[at].states = states_of(remembered)
        of_model = states_of(content['model_states'])
        held = layers, content['kinds'], states_of(content['states']), content['seen'], content['leading']
        cache = cls(*held, of_model, content['made_by'])
        batches = {b.batch for layer in layers if layer is not None for b in layer.buffers if b is not None}
        batches |= {state.batch for _, state in cache.named()}
        if len(batches - {1, None}) > 1:
            raise ValueError(f'the cache holds rows of several batches: {sorted(batches - {None})}')
        return cache

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a file, atomically."""
        write_content(self.content(), path, FORMAT)

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: torch.device | str | None = None) -> Cache:
        """Read a cache from a file.  Raises ValueError if the file is not a cache, or is damaged."""
        return read_content(path, device, FORMAT, 'cache', cls.of_content, REMEDY)


def is_pair(value: Any) -> bool:
    """Return True for a pair of keys and values, where values may be None."""
    one = isinstance(value, list) and len(value) == 2 and is_rows(value[0])
    return one and (value[1] is None or (is_rows(value[1]) and value[0].shape[-2] == value[1].shape[-2]))


def _tail_of(layer: KeysValues) -> list[Any] | None:
    """Return the number of evicted tokens and the window of a layer, or None without a window."""
    keys = layer.buffers[0]
    return [keys.num_evicted, *keys.window] if isinstance(keys, EvictingBuffer) else None


def is_tail(value: Any) -> bool:
    if value is None:
        return True
    whole = isinstance(value, list) and len(value) == 4 and all(map(is_count, value[:3]))
    return whole and value[2] > 0 and isinstance(value[3], str)


CONTENT: dict[str, Callable[[Any], bool]] = {
    'seen': is_count,
    'leading': is_count,
    'kinds': all_are(lambda kind: kind in ('a', 'c')),
    'layers': all_are(lambda pair: pair is None or is_pair(pair)),
    'tails': all_are(is_tail),
    'remembered': all_are(all_are(is_content)),
    'states': all_are(is_content),
    'model_states': all_are(is_content),
    'made_by': lambda value: value is None or (isinstance(value, list) and all(isinstance(n, str) for n in value)),
}


def check_content(content: dict[str, Any]) -> None:
    """Refuse what `Cache.content` cannot have given.  Raises ValueError."""
    layers = check_fields(content, CONTENT, 'cache')['layers']
    of_layers = {name: len(content[name]) for name in ('layers', 'kinds', 'tails', 'remembered')}
    if {*of_layers.values()} - {len(layers)}:
        raise ValueError(f'the numbers of these in the cache must be equal: {of_layers}')


@dataclass
class LayerIntermediates:
    """Intermediates of a stack and its wrapper. Passed back as `cache`, they continue the sequence.

    hiddens              inputs of the self-attention layers, before their norm; the next memories
    last_hidden          the output of the stack
    attn_intermediates   one `Intermediates` per executed attention
    layer_hiddens        the input of every executed branch, then the state after the last
    cache_length         tokens processed so far, an integer or a tensor of one
    aux_losses           losses that features added in this pass, in training, by name
    passes               the caches of all passes, if the stack ran more than once
    whole                why no token can follow, if none can
    built_with_flags     the flags of the stack that decide what keys and values are
    states, model_states   what features of the stack and of the model remember
    mem_masks            which of compressed memories, `mems`, are real; None for all
    block_outputs, block_readouts   what stack and model would give after each block but the last, if asked for
    stream, mtp_hidden, mtp_readouts   the stream before the final norm; inputs and logits of modules, if asked for
    """

    hiddens: Maybe[list[Tensor]] = None
    last_hidden: Maybe[Tensor] = None
    attn_intermediates: Maybe[list[Any]] = None
    layer_hiddens: Maybe[list[Tensor]] = None
    attn_z_loss: Maybe[Tensor] = None
    mems: Maybe[list[Tensor]] = None
    last_layer_hiddens: Maybe[Tensor] = None
    initial_embeds: Maybe[Tensor] = None
    attn_pooled_tokens: Maybe[Tensor] = None
    memory_tokens: Maybe[Tensor] = None
    logit_entropies: Maybe[Tensor] = None
    logits: Maybe[Tensor] = None
    exit_logits: Maybe[list[Tensor]] = None
    all_pred_logits: Maybe[list[Tensor]] = None
    exit_indices: Maybe[Tensor] = None
    looped_prompt_kv_cache: Maybe[list[Any]] = None
    block_hiddens: Maybe[list[Tensor]] = None
    cache_length: int | Tensor = 0
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, CachedState] = field(default_factory=dict)
    num_prefix_tokens: int = 0
    passes: Maybe[list[Cache]] = None
    whole: str = ''
    built_with_flags: Maybe[Sequence[str]] = None
    model_states: dict[str, CachedState] = field(default_factory=dict)
    mem_masks: list[tuple[Tensor | None, Tensor | None]] | None = None
    block_outputs: list[Tensor] | None = None
    block_readouts: list[Any] | None = None
    stream: Maybe[Tensor] = None
    mtp_hidden: Maybe[Tensor] = None
    mtp_readouts: list[Any] | None = None

    @property
    def cache(self) -> Cache:
        """The cache that continues this sequence, including keys and values that were edited in place. Keys to which no
        later token attends are removed.

        Raises ValueError if the sequence cannot be continued.
        """
        return self.everything.trimmed()

    @property
    def everything(self) -> Cache:
        """Cache with all keys and values, windows included."""
        if self.whole:
            raise ValueError(f'`cache` cannot be continued: {self.whole}')
        if self.passes:
            joined = Cache.joined(self.passes)
            joined.num_seen_tokens, joined.num_prefix_tokens = self.cache_length, self.num_prefix_tokens
            joined.built_with_flags = self.built_with_flags
            joined.model_states = dict(self.model_states)
            return joined
        return self.of_last_pass

    @property
    def of_last_pass(self) -> Cache:
        attended = self.attn_intermediates or []
        layers = [inter.past for inter in attended]
        kinds = [inter.layer_type for inter in attended]
        states, of_model = dict(self.states), dict(self.model_states)
        return Cache(layers, kinds, states, self.cache_length, self.num_prefix_tokens, of_model, self.built_with_flags)

    def fork(self) -> LayerIntermediates:
        """Copy the lists and tables, which may then grow independently."""
        return replace(self, **{one.name: copy_container(getattr(self, one.name)) for one in fields(self)})

    def __copy__(self) -> LayerIntermediates:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        if self.attn_intermediates is not None:
            new.attn_intermediates = [copy.copy(inter) for inter in self.attn_intermediates]
        if self.block_hiddens is not None:
            new.block_hiddens = list(self.block_hiddens)
        return new


def cache_of(given: Any) -> Cache | None:
    """Return the cache that a user passed as `cache`.  Raises TypeError for anything else."""
    if given is None or isinstance(given, Cache):
        return given
    if isinstance(given, LayerIntermediates):
        if given.attn_intermediates is None:
            raise ValueError(
                '`cache` got intermediates without `attn_intermediates`: nothing was kept to continue from'
            )
        return given.cache
    raise TypeError(f'`cache` must be the intermediates of an earlier call, or a Cache, got {type(given).__name__}')


def check_maker(cache: Cache, kinds: list[str], flags: Sequence[str]) -> None:
    """Refuse the cache of a stack with other layers or flags, as far as it is known who made it."""
    if len(cache.layers) != len(kinds):
        raise ValueError(f'`cache` holds {len(cache.layers)} attention layers, the stack runs {len(kinds)}')
    if any(own is not None and own != kind for own, kind in zip(cache.kinds, kinds, strict=True)):
        raise ValueError(
            f"`cache` holds layers of the kinds {cache.kinds}, the stack runs {kinds}: 'a' for self-attention, 'c' for "
            'cross-attention'
        )
    made = cache.built_with_flags
    if made is not None and set(made) != set(flags):
        sides = [sorted(set(one) - set(other)) for one, other in ((made, flags), (flags, made))]
        ours, theirs = (', '.join(f'`{name}`' for name in side) or 'nothing' for side in sides[::-1])
        raise ValueError(f'`cache` is of another model: only there is {theirs} set, only here {ours}')
