"""What a pass through a stack or a layer keeps track of: what is new, masks and positions.

StackCall   a stack: cached and new tokens, memories, what each layer is called with
Call        one attention layer: its keys, its mask and bias
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from x_transformers.cache import Cache, LayerIntermediates, cache_of, check_maker
from x_transformers.core.aux_losses import AddsLosses
from x_transformers.core.branches import KINDS, attends, refuse_memories
from x_transformers.core.buffers import CachedState, KeysValues
from x_transformers.core.checks import (
    STACK_INPUTS,
    HasChecked,
    a_tensor,
    as_mask,
    as_precise,
    boolean_mask,
    check_device,
    check_digits,
    check_inputs,
    check_lengths,
    check_memories,
    check_offset,
    check_past,
    check_range,
    check_vectors,
    check_weight,
    cleared,
    for_each_row,
    positions_from,
    width_read,
    with_front,
    with_past,
)
from x_transformers.core.intermediates import Intermediates, log_prob_from_hard_attend
from x_transformers.core.modes import without_autocast
from x_transformers.core.notes import Opaque
from x_transformers.core.rows import InBlocks, height_of, is_large, spans_of, taken
from x_transformers.core.state import HasStates
from x_transformers.core.token_subset import TokenSubset, refuse_some
from x_transformers.core.window import AttentionWindow, in_sight
from x_transformers.flags import Feature, Features, Remembered, is_int, shown
from x_transformers.flags.checks import Maybe

if TYPE_CHECKING:
    from x_transformers.x_transformers import AttentionLayers as Stack, Layer

Views = tuple[Tensor, Tensor, Tensor]
# where a call keeps what its layers read beside x. An object with `beside() -> tensors` and `with_beside({id: tensor})`
# may stand there too
BESIDE = ('inputs', 'shared', 'norm_inputs', 'condition', 'mems', 'mem_masks', 'start', 'real', 'notes')


@dataclass
class StackCall(AddsLosses, HasStates, TokenSubset, HasChecked):
    """One pass through a stack: the past, the masks, and what its layers are called with.

    The keys of self-attention are `memories` hidden states of an earlier segment, `held` cached tokens, and the `new`
    ones, in this order; `seen` tokens were processed before, of which the first ones may have been dropped, and `given`
    ones came with the call, cached ones among them unless the caller left them out. `documents` says which document
    each token is of, (1 or b, n), None if a row is one.

    `shared` holds what all layers of a kind are called with, `real` which tokens are real (b n), None for all, `start`
    the padding on the left of each row (b). Of the layers in `order`, of `kinds`, the one at `step` runs; `attended`
    of them were attention so far, `self_attended` self-attention, which is how each finds its own past. `maps_apart`
    says that nobody reads the attention maps. `visibility` is what the queries of all self-attention layers see, if it
    was settled once for them, and `checked` what layers were given that one of them has checked. `keeps` says what the
    trace holds: 'all' that layers leave behind, 'past' for what the cache needs, or None for nothing.
    """

    trace: LayerIntermediates
    inputs: dict[str, Any]
    cache: Maybe[Cache]
    held: int
    seen: int | Tensor
    new: int
    given: int
    mems: Sequence[Maybe[Tensor]]
    mem_masks: Sequence[Tensor | None]
    context_length: int = 0
    start: Maybe[Tensor] = None
    real: Maybe[Tensor] = None
    shared: dict[str, dict[str, Any]] = field(default_factory=dict)
    norm_inputs: dict[str, Tensor] = field(default_factory=dict)
    condition: Maybe[Tensor] = None
    keeps: str | None = None
    order: Sequence[int] = ()
    kinds: Sequence[str] = ()
    step: int = 0
    left_out: bool = False
    attended: int = 0
    self_attended: int = 0
    declared: Mapping[str, Remembered] = field(default_factory=dict)
    batch: int | None = None
    documents: Maybe[Tensor] = None
    maps_apart: bool = False
    visibility: Any = None
    checked: dict[str, Any] = field(default_factory=dict)

    @property
    def memories(self) -> int:
        known = [check_vectors(mem, 'mems', 'b', 'l', 'd').shape[1] for mem in self.mems if mem is not None]
        return known[0] if known else 0

    @property
    def tokens(self) -> int:
        """Cached and new."""
        return self.held + self.new

    def only_new(self, t: Tensor, name: str) -> Tensor:
        """The rows of `t` (b n d) that belong to new tokens, hidden ones finite."""
        length = t.shape[1]
        if length == 1 < self.new:
            return t
        if length == self.new or length == self.tokens or length == self.given:  # dynamo finds no symbol in a tuple
            return cleared(t[:, length - self.new :], self.real)
        if t.shape[1] == 1:
            return t
        raise ValueError(f'`{name}` got {t.shape[1]} tokens, it must have {self.new}, or 1 for all of them')

    def keep(self, name: str, value: Any, when: bool = True) -> None:
        """Add to a list of the trace, if the caller wants to see it."""
        if when and (self.keeps == 'all' or (self.keeps and name == 'attn_intermediates')):
            getattr(self.trace, name).append(value)

    def how_many(self, kind: str, first: int | None = None) -> int:
        """Layers of a kind that this pass runs, among its first ones or all. (Early dynamo knows no `count`.)"""
        return len([own for own in self.kinds[:first] if own == kind])

    def check_past(self, x: Tensor) -> None:
        """Refuse a cache or memories of another model or batch."""
        if self.mems != () or self.mem_masks != ():
            check_memories(self.mems, self.mem_masks, x.shape[0], x.shape[-1], self.how_many('a'))
            refuse_memories('mems', self.kinds if self.mems else ())
        for at, mem in enumerate(self.mems):
            if mem is not None:
                check_digits(mem, f'mems[{at}]', x)
        if self.cache is not None:
            check_maker(self.cache, [kind for kind in self.kinds if attends(kind)], self.trace.made_by)
        for layer in self.cache.layers if self.cache else ():
            if layer is not None and layer.buffers[0].batch != x.shape[0]:
                raise ValueError(f'`cache` holds {layer.buffers[0].batch} rows, the input has {x.shape[0]}')
        if self.cache is not None:
            self.cache.check_lengths()

    def norm(self, norm: nn.Module | None, x: Tensor) -> Tensor:
        if norm is None:
            return x
        if not self.norm_inputs or type(norm) is nn.Identity:
            return norm(x)
        rows = x.shape[-3]  # more than those of a condition, if the stream is several
        return norm(x, **{n: t if t.shape[0] in (1, rows) else t.repeat_interleave(rows // t.shape[0], 0)
                          for n, t in self.norm_inputs.items()})  # fmt: skip

    def finished(self, x: Tensor, log_probs: bool) -> LayerIntermediates:
        """What the pass leaves behind, once its output is known."""
        self.trace.last_hidden = x
        self.trace.cache_length = self.seen + self.new
        if self.trace.block_hiddens:
            self.trace.block_hiddens[-1] = x
        for intermediates in self.trace.attn_intermediates if log_probs else ():
            intermediates.log_probs = log_prob_from_hard_attend(intermediates)
        return self.trace

    def row_positions(self) -> Tensor:
        """Positions of the keys in rows with padding on the left, memories at negative ones:  b j."""
        places = torch.arange(self.tokens, device=self.start.device) - self.start.unsqueeze(-1)
        memories = torch.arange(-self.memories, 0, device=self.start.device)
        return torch.cat((memories.expand(self.start.shape[0], -1), places), dim=-1)

    def key_positions(self, x: Tensor) -> Tensor:
        """Positions of all keys of self-attention, memories at negative ones:  j, or with rows b j."""
        pos = self.shared['a'].get('pos')
        if pos is not None and pos.ndim == 3:
            raise ValueError('`pos` got positions per head, (b, h, n), which only a bias of distances can take')
        if pos is not None:
            return pos
        if self.start is not None:
            return self.row_positions()
        return positions_from(self.seen, self.new, x.device, before=self.held + self.memories)

    def user_positions(self, pos: Tensor, x: Tensor) -> Tensor:
        """Positions given by the user, for all cached and new tokens, with those of memories in front. They may be
        times, and lie between whole numbers; one head's are those of all."""
        check_device(a_tensor(pos, 'pos'), 'pos', x)
        if pos.ndim in (2, 3) and pos.shape[0] not in (1, x.shape[0]):
            raise ValueError(f'`pos` got {pos.shape[0]} rows, the input has {x.shape[0]}')
        if pos.is_complex() or pos.dtype == torch.bool or pos.ndim not in (1, 2, 3) or pos.shape[-1] != self.tokens:
            raise ValueError(
                f'`pos` got {pos.dtype} of shape {tuple(pos.shape)}, '
                f'it must be numbers, ({self.tokens},) or (b, {self.tokens})'
            )
        pos = pos.squeeze(1) if pos.ndim == 3 and pos.shape[1] == 1 else pos
        # what can hold places in half precision cannot hold distances, nor short integers angles
        pos = pos.to(torch.promote_types(pos.dtype, torch.float32)) if pos.is_floating_point() else pos.long()
        return with_front(pos, self.memories, self.real)

    def branch_inputs(self, layer: Layer, norm: nn.Module | None) -> dict[str, Any]:
        """What a branch is called with: shared masks and positions, and its own past."""
        kind = KINDS[layer.kind]
        inputs = dict(self.shared.get(layer.kind, ()))
        if kind.inputs is not None:
            inputs.update(kind.inputs(self))
        if not kind.attends:
            _, branch, _ = layer._modules.values()
            does = getattr(branch, '__dict__', {}).get('acts')
            return {**inputs, **self.place_of(layer)} if (acts(branch) if does is None else does) else inputs
        if self.only is not None:
            inputs.update(self.asked(inputs))
        if self.cache is not None and self.attended < len(self.cache.layers):
            inputs['cache'] = self.cache.intermediates(self.attended)
        self.attended += 1
        if layer.kind == 'a':
            at = self.self_attended
            self.self_attended += 1
            if at < len(self.mems) and self.mems[at] is not None:
                mask = self.mem_masks[at] if at < len(self.mem_masks) else None
                inputs['mem'] = self.norm(norm, cleared(self.mems[at], mask))
                if mask is not None:
                    inputs['mem_mask'] = mask
        return inputs

    def place_of(self, layer: Layer) -> dict[str, Any]:
        """What features of a feedforward are told: which tokens are real, and which layer it is."""
        place = {'layer': layer.index, 'kind': layer.kind, 'stack': (self, self.step)}
        return place if self.real is None else {**place, 'mask': self.real[:, self.real.shape[1] - self.new :]}

    def over_keys(self, t: Any, filler: float) -> Any:
        """A mask or bias of all tokens, (... i j): its rows for the new ones, its columns for memories in front too."""
        if not torch.is_tensor(t) or t.ndim < 2:
            return t
        if t.shape[-2] == self.tokens > self.new:
            t = t[..., self.held :, :]
        padded = self.memories and t.shape[-1] == self.tokens
        return F.pad(t, (self.memories, 0), value=filler) if padded else t

    def leave_out(self, layer: Layer, x: Tensor) -> None:
        """Count a layer that is left out, so that the next ones still find their own past."""
        self.attended += attends(layer.kind)
        if layer.kind == 'a':
            self.self_attended += 1
            read = layer[2].prepare(x)[0]
            self.keep('hiddens', read if read.ndim == 3 else read[1])

    def fork(self) -> StackCall:
        """A call that goes on from here by itself: what it leaves behind is no part of this one."""
        notes = {kind: own.fork() for kind, own in self.notes.items()}
        return self.with_values(trace=self.trace.fork(), notes=notes)

    def beside(self) -> list[Tensor]:
        """What layers read beside x: conditions, contexts, biases, masks, memories, and what features noted."""
        leaves = tree_leaves([getattr(self, name) for name in BESIDE])
        found = (leaf.beside() if hasattr(leaf, 'beside') else [leaf] for leaf in leaves)
        return list({id(t): t for several in found for t in several if torch.is_tensor(t)}.values())

    def with_beside(self, tensors: Sequence[Tensor]) -> StackCall:
        """The same call, whose layers read these in place of what `beside` gives: to compute again with."""
        known = self.beside()
        if len(tensors) != len(known):
            raise ValueError(f'`tensors` got {len(tensors)}, it must be one for each of the {len(known)} of `beside`')
        swapped = {id(old): new for old, new in zip(known, tensors, strict=True)}

        def other(leaf: Any) -> Any:
            return leaf.with_beside(swapped) if hasattr(leaf, 'with_beside') else swapped.get(id(leaf), leaf)

        return self.fork().with_values(**{name: tree_map(other, getattr(self, name)) for name in BESIDE})

    def at_step(self, step: int) -> StackCall:
        """The call as it is before a step, to run one layer by itself; what that layer keeps for the cache is lost."""
        own = self.fork()
        own.step, own.attended = step, len([kind for kind in self.kinds[:step] if attends(kind)])
        own.self_attended = self.how_many('a', step)
        return own

    def adopt(self, other: StackCall) -> None:
        """Go on from where a fork has come to."""
        self.trace, self.notes = other.trace, other.notes
        self.step, self.attended, self.self_attended = other.step, other.attended, other.self_attended

    @property
    def old_states(self) -> Mapping[str, CachedState] | None:
        return None if self.cache is None else self.cache.states

    @property
    def new_states(self) -> dict[str, CachedState]:
        return self.trace.states

    @property
    def continues(self) -> bool:
        return self.cache is not None

    @property
    def count(self) -> int:
        return self.new

    def share_masks(
        self,
        x: Tensor,
        mask: Tensor | None,
        context_mask: Tensor | None,
        attn_mask: Tensor | None,
        kv_mask: Tensor | None,
        start: Tensor | None,
        causal: bool | None,
    ) -> None:
        """Share out masks and positions between self- and cross-attention."""
        said = kv_mask is not None or start is not None  # which of the cached tokens are real
        mask = with_past(mask, 'mask', x.shape[0], self.new, self.held, may_hide=said)
        mask = self.real = as_mask(mask, 'mask', x.shape[0], 'n', like=x)
        if mask is not None:
            check_covers(mask, self.new, self.held > 0)
        self.start = start
        # what all queries and keys leave out is cleared once, where it comes in
        clean = kv_mask is None and attn_mask is None
        kv_mask = as_mask(kv_mask, 'self_attn_kv_mask', x.shape[0], 'j', like=x)
        if kv_mask is not None and kv_mask.shape[1] not in (self.tokens, self.memories + self.tokens):
            raise ValueError(f'`self_attn_kv_mask` got {kv_mask.shape[1]} keys, it must cover all {self.tokens}')
        if start is not None:
            # what is kept may go on: a first part may be padding only
            ends = self.cache is None and not self.keeps
            check_lengths(start, 'seq_start_pos', x.shape[0], self.tokens if ends else None)
            check_device(start, 'seq_start_pos', x)
            begun = torch.arange(self.tokens, device=x.device) >= start.unsqueeze(-1)
            self.real = begun if self.real is None else begun & self.real
            kv_mask = self.real if kv_mask is None else begun & kv_mask
        own: dict[str, Any] = dict(mask=mask, context_mask=kv_mask, attn_mask=self.over_keys(attn_mask, True))
        if start is not None and self.memories:
            own['index'] = self.row_positions()
        own['attn_bias'], own['causal'] = self.over_keys(self.inputs.get('attn_bias'), 0.0), causal
        own['clean'] = True if clean and self.real is not None else None
        if self.inputs.get('pos') is not None:
            own['pos'] = self.user_positions(self.inputs['pos'], x)
        self.shared['a'].update({name: value for name, value in own.items() if value is not None})
        hides = self.real is not None or context_mask is not None
        across: dict[str, Any] = dict(mask=self.real, context_mask=context_mask, clean=True if hides else None)
        self.shared['c'].update({name: value for name, value in across.items() if value is not None})


setattr(StackCall, '__dataclass_fields__', Opaque())  # noqa: B010  what a checker takes for settled


def acts(branch: Any) -> bool:
    """Whether a feedforward, inside of what is around it, has features that act at each call."""
    while isinstance(branch, nn.Module) and branch._modules.get('fn') is not None:
        branch = branch._modules['fn']
    if hasattr(branch, 'acts') or not isinstance(branch, nn.Module):
        return bool(getattr(branch, 'acts', False))
    inside = any(getattr(module, 'acts', False) for module in branch.modules())  # of a module of others
    return inside and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(branch.forward).parameters.values())


def check_stack_inputs(stack: Stack, x: Tensor, inputs: dict[str, Any]) -> Tensor:
    """Check the input of a stack, and return it in the precision of the weights."""
    if inputs:
        check_inputs(inputs, stack.features, STACK_INPUTS, stack)
    check_vectors(x, 'x', 'b', 'n', stack.dim)
    return as_precise(x, stack)


def check_context(
    stack: Stack, x: Tensor, context: Maybe[Tensor], context_mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Check a context (1 or b, j, d) and its mask (1 or b, j), and return them expanded to the batch of `x`."""
    if context is not None and stack.cross_attend:
        context, context_mask = for_each_row(context, x.shape[0]), for_each_row(context_mask, x.shape[0])
        width = stack.dim_context
        if torch.is_tensor(context) and context.shape[-1:] != (width,):
            width = width_read(context, width, *(getattr(m, 'to_k', None) for m in stack.modules()))
        check_vectors(context, 'context', x.shape[0], 'j', width, like=x)
        check_digits(context, 'context', x)
        as_mask(context_mask, 'context_mask', x.shape[0], context.shape[1], like=x)
    if stack.cross_attend and context is None:
        raise ValueError('`context` is missing: the stack has cross-attention')
    if not stack.cross_attend and context is not None:
        raise ValueError('`context` was given, but the stack has no cross-attention: build it with `cross_attend=True`')
    if not stack.cross_attend and context_mask is not None:
        raise ValueError('`context_mask` was given, but the stack has no cross-attention: keys are hidden by `mask`')
    return context, context_mask


def check_cache(stack: Stack, attn_mask: Tensor | None) -> None:
    """Raise ValueError if a stack cannot be called with a cache, or not beside `attn_mask`."""
    if not stack.causal:
        raise ValueError('`cache` needs a causal stack: later tokens would change the cached ones')
    if attn_mask is not None:
        raise ValueError('`attn_mask` does not go with `cache`: it would have to cover the cached tokens')
    if not stack.can_cache_kv:
        raise ValueError('`cache` was given, but a feature of this stack cannot be cached')
    if stack.training and not stack.can_cache_kv_in_training:
        raise ValueError('`cache` does not go with training this stack: layers that are left out keep no past')


def check_attention_inputs(
    attn: Any, views: Views, places: Tensor | None, context: Tensor | None, mask: Maybe[Tensor], cache: Any
) -> Tensor | None:
    """Which queries of an attention layer are real, of all tokens or of those at `places`; or a refusal."""
    x = views[0]
    check_vectors(x, 'x', 'b', 'n', width_read(x, attn.dim, attn.to_q))
    n = views[1].shape[1]
    check_weight(x, getattr(attn.to_q, 'weight', None))
    if context is not None:
        width = width_read(context, attn.dim_kv_in, attn.to_k)
        check_vectors(context, 'context', x.shape[0], 'j', width, like=x)
        check_digits(context, 'context', x)
    if context is None and attn.dim_kv_in != attn.dim:
        raise ValueError(f'`context` is missing: the layer reads keys from a context of width {attn.dim_kv_in}')
    if cache is not None and not attn.can_cache_kv:
        raise ValueError('`cache` was given, but a feature of this layer cannot be cached')
    if cache is not None and not isinstance(cache, Intermediates):
        raise TypeError(f'`cache` got {type(cache).__name__}, it must be the Intermediates of an earlier call')
    real = as_mask(mask, 'mask', x.shape[0], 'n', like=x)
    if real is None:
        return None
    check_covers(real, n, cache is not None and cache.past is not None)
    return queries_among(real, places, n)


def check_covers(mask: Tensor, new: int, has_past: bool) -> None:
    """Raise ValueError if a mask (b n) is not one of the new tokens, or of them and those before."""
    if mask.shape[1] < new:
        raise ValueError(f'`mask` got shape {tuple(mask.shape)}, it must cover all {new} tokens')
    if mask.shape[1] != new and not has_past:
        raise ValueError(f'`mask` got shape {tuple(mask.shape)}, it must be {(len(mask), new)}: True is a real token')


def queries_among(real: Tensor | None, places: Tensor | None, new: int) -> Tensor | None:
    """Which queries are real, of all tokens or of those at `places` of the `new` ones."""
    if real is None or places is None:
        return real
    return taken(real[:, real.shape[1] - new :], places, -1)


def open_stack(
    x: Tensor,
    given_cache: Any,
    only_new: bool,
    cache_age: int | None,
    offset: int | Tensor | None,
    mems: Sequence[Tensor | None] | None,
    mem_masks: Sequence[Tensor | None] | None,
    inputs: dict[str, Any],
) -> StackCall:
    """Make the call of a stack, with the number of new tokens.

    `x` holds the cached tokens too, unless `only_new` is set. A shorter one ends with the new ones: `cache_age` tokens,
    1 if that is None, all if it is 0.
    """
    given = new = x.shape[1]
    cache, held, seen = None, 0, 0
    if given_cache is not None or cache_age is not None:
        cache, held, seen, new = new_tokens(given_cache, only_new, cache_age, given)
    if offset is not None:
        check_offset(offset, 'seq_pos_offset')
        seen = offset
    elif torch.is_tensor(seen):
        check_offset(seen, 'cache_length')
    trace = LayerIntermediates(hiddens=[], attn_intermediates=[], layer_hiddens=[], block_hiddens=[])
    past = () if mems is None else mems, () if mem_masks is None else mem_masks
    shared: dict[str, dict[str, Any]] = {'a': {}, 'c': {}, 'f': {}}
    return StackCall(trace, inputs, cache, held, seen, new, given, *past, shared=shared, batch=x.shape[0])


def new_tokens(
    given_cache: Any, only_new: bool, cache_age: int | None, given: int
) -> tuple[Cache | None, int, int | Tensor, int]:
    """Return the cache, how many tokens it holds and has seen, and how many of the `given` ones are new."""
    if cache_age is not None and not is_int(cache_age):
        raise TypeError(f'`cache_age` got {shown(cache_age)}, it must be an integer or None')
    cache = cache_of(given_cache)
    if cache is None:
        if cache_age not in (None, 0, 1):
            raise ValueError(f'`cache_age` got {cache_age}, but there is no `cache`')
        return None, 0, 0, given
    new = given - cache.length
    if only_new or new <= 0:
        new = given if only_new or cache_age == 0 else min(1 if cache_age is None else cache_age, given)
    if cache_age not in (None, 0, new):
        raise ValueError(f'`cache_age` got {cache_age}, but {new} of {given} tokens are not in the cache')
    return cache, cache.length, cache.seen, new


def placed(views: Any, x: Tensor, on: Features, at: Tensor | None = None) -> tuple[Views, Tensor | None]:
    """Inputs of queries, keys and values, and at which tokens of `x` (... n d) the queries stand, if it is said.

    Of the queries only those `at` some tokens (b k) are wanted.
    """
    *three, places = views if len(views) == 4 else (*views, None)
    if at is not None:
        refuse_some(on)
        if places is not None:
            raise ValueError('`views` puts queries elsewhere, but only those of some tokens are wanted')
        return (taken(three[0], at, -2), *three[1:]), at
    if any(not torch.is_tensor(t) or t.ndim != 3 for t in three):
        return tuple(three), None  # refused below
    counts, n = [t.shape[1] for t in three], x.shape[-2]
    if len(three) != 3 or counts[1:] != [n, n]:
        raise ValueError(f'`views` gave inputs of {counts} tokens, those of keys and values must have the {n} of `x`')
    if places is None and counts[0] != n:
        raise ValueError(
            f'`views` gave {counts[0]} queries for {n} tokens: a fourth value must say at which tokens they stand'
        )
    if places is None:
        return tuple(three), None
    wanted = ((counts[0],), (three[0].shape[0], counts[0]))
    if a_tensor(places, 'views').shape not in wanted or places.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f'`views` gave places of {places.dtype} and shape {tuple(places.shape)}, they must be whole numbers, '
            f'{wanted[0]} or {wanted[1]}'
        )
    check_range(places, 'views', 0, n - 1, 'places')
    check_device(places, 'views', three[0])
    return tuple(three), places.long()


@dataclass
class Call(AddsLosses, HasStates, InBlocks):
    """One pass through an attention layer: what came in, and what its stages tell one another.

    There are `rows` queries, of the tokens `x` or of some of them, `keys` keys, and `total_keys` with those that
    features put in front. `real` says which of the keys are real tokens (b j), `query_mask` is the caller's mask of the
    tokens (b n), None for all. `masks` and `biases` are what features and the caller gave; `combine` makes one `mask`
    and one `bias` of them, when a kernel runs. `may_be_blind` says that some query may see no key.

    `keeps` says that the caller wants what the call leaves behind; `rebuilds_values` that the cache holds what keys and
    values are made from, so that those of all tokens are made again in every call; `unmasked` that the caller hides
    nothing; `hides_added` that keys which features put in front may be hidden; `changed_by` is the feature that changes
    keys before they are cached; `summed` how many earlier tokens are no keys any more, since a feature at `past` has
    summed them up, or they are out of `sight`, which is None where all keys are needed; `all_real` which of these and
    of the keys are real; `shown` says which of the new keys any query may see (b n); `tokens` is the input of the keys;
    `many` that the scores are too many to be held at once; `maps` how many query heads there are for each head. `drop`
    and `attn_fn` are what users have put in the place of dropout and softmax, None where they have not.

    A kernel may run the call in blocks of its queries: each is a call of its own, with fewer rows and keys.
    """

    x: Tensor
    heads: int
    context: Maybe[Tensor]
    query_mask: Maybe[Tensor]
    causal: bool
    scale: float
    inputs: dict[str, Any]
    dropout: float = 0.0
    past: Maybe[KeysValues] = None
    made_trace: Maybe[Intermediates] = None
    values: Maybe[Tensor] = None
    keeps: str | None = None
    new_states: dict[str, CachedState] = field(default_factory=dict)
    old_states: Maybe[Mapping[str, CachedState]] = None
    declared: Mapping[str, Remembered] = field(default_factory=dict)
    changed_by: Maybe[Feature] = None
    rebuilds_values: bool = False
    unmasked: bool = False
    hides_added: bool = False
    tokens: Maybe[Tensor] = None
    keys: int = 0
    total_keys: int = 0
    summed: int = 0
    sight: Maybe[AttentionWindow] = None
    shown: Maybe[Tensor] = None
    real: Maybe[Tensor] = None
    all_real: Maybe[Tensor] = None
    mask: Maybe[Tensor] = None
    bias: Maybe[Tensor] = None
    bare_keys: Sequence[tuple[Tensor, Tensor]] = ()
    similarities: Maybe[Tensor] = None
    may_be_blind: bool = False
    many: bool = False
    maps: int = 1
    full_precision: bool = False
    backends: tuple[str, ...] | None = None
    drop: Any = None
    attn_fn: Any = None
    batch: int = 0
    rows: int = 0

    @property
    def trace(self) -> Intermediates:
        """The intermediates of this call, made when somebody first asks for them."""
        if self.made_trace is None:
            self.made_trace = Intermediates(values=self.values)
            self.made_trace.loose = self.new_states
        return self.made_trace

    def finished(self) -> Intermediates:
        """Return the intermediates, complete."""
        self.trace.values = self.values
        return self.trace

    @property
    def memories(self) -> int:
        """How many keys come from the memory of an earlier segment."""
        mem = self.inputs.get('mem')
        return 0 if mem is None else mem.shape[1]

    @property
    def in_front(self) -> int:
        return self.memories

    @property
    def continues(self) -> bool:
        return self.past is not None

    @property
    def count(self) -> int:
        return self.tokens.shape[1]

    def clear(self, views: Views, key_mask: Tensor | None, attn_mask: Tensor | None) -> Views:
        """Inputs of queries, keys and values, finite where masks hide them; and the same for what features add."""
        q, k, v = views
        key_mask = as_mask(key_mask, 'context_mask', self.batch, None, like=self.x)
        self.shown = key_mask
        if attn_mask is not None and attn_mask.shape[-1] > 1:
            seen = attn_mask.any(dim=2).any(dim=1).expand(self.batch, -1)
            self.shown = seen if key_mask is None or key_mask.shape != seen.shape else seen & key_mask
        same = k is q and self.shown is self.query_mask
        self.x = cleared(q, self.query_mask)
        k = self.x if same else self.cleared(k)
        return self.x, k, k if v is views[1] else self.cleared(v)

    def cleared(self, keys: Tensor) -> Tensor:
        """Rows of keys (b ... j d), new ones last, finite where they are hidden."""
        shown = self.shown
        if shown is not None and shown.shape[1] < keys.shape[-2]:
            shown = F.pad(shown, (keys.shape[-2] - shown.shape[1], 0), value=True)
        return cleared(keys, shown)

    @property
    def triangle(self) -> bool:
        """Whether the causal triangle hides anything."""
        hides = self.causal and self.places is None and (self.rows > 1 or self.later_keys > 0)
        return True if hides else False  # a plain bool also where the length is symbolic

    @property
    def source(self) -> Tensor:
        """The new tokens: the input of queries, or of keys where queries stand elsewhere."""
        return self.x if self.places is None else self.tokens

    def with_past(self, *rows: Tensor | None) -> Any:
        """Memories, then cached, then new rows, such as keys and values; the cache keeps the last two."""
        if self.past is None and not self.keeps:
            return rows
        new = rows if self.memories == 0 else [None if t is None else t[..., self.memories :, :] for t in rows]
        if self.past is not None and self.changed_by is None:
            self.past = self.past.plain()
        if self.past is not None:
            check_past(new, self.past.buffers)
        past: Any = KeysValues.of(new) if self.past is None else self.past.append(*new)
        past = past.seen_by(self.sight)
        past.states, past.changed_by = self.new_states, self.changed_by
        self.trace.past = past
        if self.past is None:
            return rows
        if self.sight is not None or self.past.gone:
            return in_sight(self, past, self.past)
        if self.memories == 0:
            return past.pair
        return tuple(None if t is None else self.behind(t, kept) for t, kept in zip(rows, past.pair, strict=True))

    @staticmethod
    def with_past_keys(k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        return call.with_past(k, v)

    def behind(self, rows: Tensor, kept: Tensor) -> Tensor:
        """What was kept, behind the rows of memories."""
        return kept if self.memories == 0 else torch.cat((rows[..., : self.memories, :], kept), dim=-2)

    def key_mask(self, mask: Tensor | None, context_mask: Tensor | None) -> Tensor | None:
        """Which keys are real, (b j): the context's mask, else in self-attention that of the tokens."""
        own = self.context is None
        mem_mask: Any = self.inputs.get('mem_mask')
        name = 'context_mask' if context_mask is not None else 'mask'
        keep: Any = context_mask if context_mask is not None else mask if own else None
        if keep is not None:
            boolean_mask(a_tensor(keep, name), name)
        if own and self.past is not None:
            keep = with_past(keep, name, self.batch, self.count, self.keys + self.summed - self.memories - self.count)
        if keep is None and mem_mask is None:
            return None
        if keep is None:
            keep = mem_mask.new_ones(self.batch, self.keys + self.summed - self.memories, dtype=torch.bool)
        if own and self.memories and keep.ndim == 2 and keep.shape[1] != self.keys + self.summed:
            front = keep.new_ones(self.batch, self.memories) if mem_mask is None else mem_mask
            keep = torch.cat((as_mask(front, 'mem_mask', self.batch, self.memories).to(keep.dtype), keep), dim=1)
        if keep.ndim == 2 and keep.shape[1] < self.keys + self.summed and self.past is not None:
            raise ValueError(
                f'`{name}` got shape {tuple(keep.shape)}: '
                f'with a cache it must cover all {self.keys + self.summed} keys, cached and new'
            )
        self.all_real = as_mask(keep, name, self.batch, self.keys + self.summed)
        if self.summed == 0:
            return self.all_real
        return torch.cat((self.all_real[:, : self.memories], self.all_real[:, self.memories + self.summed :]), dim=1)

    @property
    def real_queries(self) -> Tensor | None:
        """Which of the queries are real tokens, (b i), from the masks of the call; None for all."""
        real = None if self.query_mask is None else self.query_mask[:, -self.rows :]
        if self.context is None and self.real is not None:
            keys = self.of_queries(self.real)
            real = keys if real is None else real & keys
        return real

    @property
    def triangle_alone(self) -> bool:
        """Whether the causal triangle hides only what is to the right of the diagonal, in the last keys."""
        return self.triangle and self.later_keys == 0 and self.keys >= self.rows

    def visible(self) -> Tensor | None:
        """Which keys each query sees, broadcasting to b h i j; None for all. Known once `combine` has run.

        raises   ValueError at earlier stages, and at `attend`, which reads `mask_entry` or `masks`
        """
        if not self.combined:
            raise ValueError('`visible` is known from `scores` to `gathered` only, where masks have been put together')
        if not self.triangle:
            return self.mask
        added, stop = self.total_keys - self.keys, self.keys - self.later_keys
        place = torch.arange(-added, self.keys, device=self.x.device)
        triangle = place <= torch.arange(stop - self.rows, stop, device=self.x.device).unsqueeze(-1)
        if added and stop < self.rows:
            triangle = triangle | (place < 0)
        return triangle[None, None] if self.mask is None else self.mask & triangle

    def sees_any(self, last: int) -> Tensor | None:
        """Which queries see any of the last keys, broadcasting to b h i 1; None for all."""
        if not self.masks and not (self.triangle and self.keys < self.rows):
            return None
        if not is_large(self.x, self.batch, 1, self.rows, self.total_keys):
            return self.combine().sighted(self.total_keys - last)
        blocks = [self.block(span) for span in spans_of(self, height_of(self.x, self.batch * self.total_keys))]
        seen = [block.sighted(self.total_keys - last).expand(self.batch, -1, block.rows, -1) for block in blocks]
        return torch.cat(seen, dim=-2)

    def sighted(self, first: int = 0) -> Tensor:
        """Which queries see any key, from the `first` on, broadcasting to b h i 1."""
        seen = self.visible()
        if seen is None:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.x.device)
        return (seen[..., first:] if seen.shape[-1] > 1 else seen).any(dim=-1, keepdim=True)

    def blind(self) -> Tensor:
        """Which queries see no key, broadcasting to b h i 1."""
        return ~self.sighted()

    def precision(self) -> AbstractContextManager:
        """Around the kernel: outside of autocast, if a feature asks for all the digits of what it hands over."""
        return without_autocast(self.x) if self.full_precision else nullcontext()

    def keep_maps(self, maps: tuple[Tensor, Tensor, Tensor]) -> None:
        if self.inputs.get('keep_maps'):
            self.trace.maps, self.trace.compute_maps = list(maps), None
