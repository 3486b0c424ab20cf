"""`StackCall`, the state of one pass through a stack: lengths, masks, memories, and the inputs of each layer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from x_transformers.cache import Cache, LayerIntermediates, cache_of, check_maker
from x_transformers.core.aux_losses import AddsLosses
from x_transformers.core.branches import KINDS, check_memories_allowed, is_attention
from x_transformers.core.buffers import CachedState
from x_transformers.core.checks import (
    STACK_INPUTS,
    ChecksOnce,
    as_mask,
    check_device,
    check_digits,
    check_inputs,
    check_lengths,
    check_mask_covers,
    check_memories,
    check_offset,
    check_tensor,
    check_vectors,
    expand_batch,
    extend_mask,
    input_width,
    make_positions,
    match_precision,
    prepend_positions,
    zero_masked,
)
from x_transformers.core.intermediates import log_prob_from_hard_attend
from x_transformers.core.notes import HiddenFields
from x_transformers.core.state import HasStates
from x_transformers.core.token_subset import TokenSubset
from x_transformers.flags import Remembered, format_value, is_int
from x_transformers.flags.checks import Maybe

if TYPE_CHECKING:
    from x_transformers.x_transformers import AttentionLayers as Stack, Layer

# where a call keeps what its layers read beside x. An object with `beside() -> tensors` and `with_beside({id: tensor})`
# may stand there too
SIDE_INPUTS = (
    'inputs',
    'shared',
    'norm_inputs',
    'condition',
    'mems',
    'mem_masks',
    'left_pad',
    'token_mask',
    'contexts',
)


@dataclass
class StackCall(AddsLosses, HasStates, TokenSubset, ChecksOnce):
    """One pass through a stack: the past, the masks, and what its layers are called with.

    The keys of self-attention are `memories` hidden states of an earlier segment, `cache_len` cached tokens, and the
    `new_len` ones, in this order; `past_len` tokens were processed before, of which the first ones may have been
    dropped, and `input_len` ones came with the call, cached ones among them unless the caller left them out.
    `documents` says which document each token is of, (1 or b, n), None if a row is one.

    `shared` holds what all layers of a kind are called with, `token_mask` which tokens are real (b n), None for all,
    `left_pad` the padding on the left of each row (b). Of the layers in `order`, of `kinds`, the one at `step` runs;
    `attended` of them were attention so far, `self_attended` self-attention, which is how each finds its own past.
    `maps_apart` says that nobody reads the attention maps. `visibility` is what the queries of all self-attention
    layers see, if it was settled once for them, and `checked` what layers were given that one of them has checked.
    `keeps` says what the trace holds: 'all' that layers leave behind, 'past' for what the cache needs, or None for
    nothing.
    """

    old_names: ClassVar[dict[str, str]] = {
        'adopt': 'merge_from',
        'among': 'subset_call',
        'beside': 'side_inputs',
        'given': 'input_len',
        'held': 'cache_len',
        'new': 'new_len',
        'only': 'subset_idx',
        'only_new': 'select_new',
        'own': 'ctx',
        'put': 'scatter',
        'real': 'token_mask',
        'seen': 'past_len',
        'some': 'gather',
        'start': 'left_pad',
        'trace': 'intermediates',
        'with_beside': 'replace_side_inputs',
    }

    intermediates: LayerIntermediates
    inputs: dict[str, Any]
    cache: Maybe[Cache]
    cache_len: int
    past_len: int | Tensor
    new_len: int
    input_len: int
    mems: Sequence[Maybe[Tensor]]
    mem_masks: Sequence[Tensor | None]
    context_length: int = 0
    left_pad: Maybe[Tensor] = None
    token_mask: Maybe[Tensor] = None
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
        return self.cache_len + self.new_len

    def select_new(self, t: Tensor, name: str) -> Tensor:
        """Select the new tokens of `t`, (b, n, d), and zero hidden ones that are not finite."""
        length = t.shape[1]
        if length == 1 < self.new_len:
            return t
        if (
            length == self.new_len or length == self.tokens or length == self.input_len
        ):  # dynamo finds no symbol in a tuple
            return zero_masked(t[:, length - self.new_len :], self.token_mask)
        if t.shape[1] == 1:
            return t
        raise ValueError(f'`{name}` must have {self.new_len} tokens, or 1 for all of them, got {t.shape[1]}')

    def keep(self, name: str, value: Any, when: bool = True) -> None:
        """Add to a list of the trace, if the caller wants to see it."""
        if when and (self.keeps == 'all' or (self.keeps and name == 'attn_intermediates')):
            getattr(self.intermediates, name).append(value)

    def count_layers(self, kind: str, first: int | None = None) -> int:
        """Count the layers of a kind among the first ones of this pass, or all. (Early dynamo knows no `count`.)"""
        return len([own for own in self.kinds[:first] if own == kind])

    def check_past(self, x: Tensor) -> None:
        """Refuse a cache or memories of another model or batch."""
        if self.mems != () or self.mem_masks != ():
            check_memories(self.mems, self.mem_masks, x.shape[0], x.shape[-1], self.count_layers('a'))
            check_memories_allowed('mems', self.kinds if self.mems else ())
        for at, mem in enumerate(self.mems):
            if mem is not None:
                check_digits(mem, f'mems[{at}]', x)
        if self.cache is not None:
            kinds = [kind for kind in self.kinds if is_attention(kind)]
            check_maker(self.cache, kinds, self.intermediates.built_with_flags)
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

    def finish(self, x: Tensor, log_probs: bool) -> LayerIntermediates:
        """Return the intermediates of the pass, given its output."""
        self.intermediates.last_hidden = x
        self.intermediates.cache_length = self.past_len + self.new_len
        if self.intermediates.block_hiddens:
            self.intermediates.block_hiddens[-1] = x
        for intermediates in self.intermediates.attn_intermediates if log_probs else ():
            intermediates.log_probs = log_prob_from_hard_attend(intermediates)
        return self.intermediates

    def left_padded_positions(self) -> Tensor:
        """Return the positions of the keys in left-padded sequences, (b, j). Memories have negative ones."""
        token_idx = torch.arange(self.tokens, device=self.left_pad.device) - self.left_pad.unsqueeze(-1)
        memories = torch.arange(-self.memories, 0, device=self.left_pad.device)
        return torch.cat((memories.expand(self.left_pad.shape[0], -1), token_idx), dim=-1)

    def key_positions(self, x: Tensor) -> Tensor:
        """Return the positions of all keys of self-attention, (j,) or (b, j). Memories have negative ones."""
        pos = self.shared['a'].get('pos')
        if pos is not None and pos.ndim == 3:
            raise ValueError('`pos` got positions per head, (b, h, n), which only a bias of distances can take')
        if pos is not None:
            return pos
        if self.left_pad is not None:
            return self.left_padded_positions()
        return make_positions(self.past_len, self.new_len, x.device, before=self.cache_len + self.memories)

    def user_positions(self, pos: Tensor, x: Tensor) -> Tensor:
        """Return the positions given by the user for all cached and new tokens, after those of the memories.

        They may be fractional, such as times. The positions of one head are used for all.
        """
        check_device(check_tensor(pos, 'pos'), 'pos', x)
        if pos.ndim in (2, 3) and pos.shape[0] not in (1, x.shape[0]):
            raise ValueError(f'`pos` must have the batch size of the input, {x.shape[0]}, or 1, got {pos.shape[0]}')
        if pos.is_complex() or pos.dtype == torch.bool or pos.ndim not in (1, 2, 3) or pos.shape[-1] != self.tokens:
            raise ValueError(
                f'`pos` got {pos.dtype} of shape {tuple(pos.shape)}, '
                f'it must be numbers, ({self.tokens},) or (b, {self.tokens})'
            )
        pos = pos.squeeze(1) if pos.ndim == 3 and pos.shape[1] == 1 else pos
        # what can hold places in half precision cannot hold distances, nor short integers angles
        pos = pos.to(torch.promote_types(pos.dtype, torch.float32)) if pos.is_floating_point() else pos.long()
        return prepend_positions(pos, self.memories, self.token_mask)

    def branch_inputs(self, layer: Layer, norm: nn.Module | None) -> dict[str, Any]:
        """Return the keywords of a branch: shared masks and positions, and its own cached keys and values."""
        kind = KINDS[layer.kind]
        inputs = dict(self.shared.get(layer.kind, ()))
        if kind.inputs is not None:
            inputs.update(kind.inputs(self))
        if not kind.attends:
            _, branch, _ = layer._modules.values()
            does = getattr(branch, '__dict__', {}).get('acts')
            return {**inputs, **self.layer_inputs(layer)} if (acts(branch) if does is None else does) else inputs
        if self.subset_idx is not None:
            inputs.update(self.gather_masks(inputs))
        if self.cache is not None and self.attended < len(self.cache.layers):
            inputs['cache'] = self.cache.intermediates(self.attended)
        self.attended += 1
        if layer.kind == 'a':
            self.self_attended += 1
            if self.mems:
                inputs.update(self.memory_of(self.self_attended - 1, norm))
        return inputs

    def memory_of(self, at: int, norm: nn.Module | None) -> dict[str, Tensor]:
        """Return the memory of a layer of self-attention, normalized as its input is, and its mask, if there is one."""
        if at >= len(self.mems) or self.mems[at] is None:
            return {}
        mask = self.mem_masks[at] if at < len(self.mem_masks) else None
        mem = self.norm(norm, zero_masked(self.mems[at], mask))
        return {'mem': mem} if mask is None else {'mem': mem, 'mem_mask': mask}

    def layer_inputs(self, layer: Layer) -> dict[str, Any]:
        """Return the keywords for features of a feedforward: the token mask, and the layer index."""
        place = {'layer': layer.index, 'kind': layer.kind, 'stack': (self, self.step)}
        return (
            place
            if self.token_mask is None
            else {**place, 'mask': self.token_mask[:, self.token_mask.shape[1] - self.new_len :]}
        )

    def pad_to_keys(self, t: Any, filler: float) -> Any:
        """Select the new queries of a mask or bias of all tokens, (..., i, j), and pad its keys by the memories."""
        if not torch.is_tensor(t) or t.ndim < 2:
            return t
        if t.shape[-2] == self.tokens > self.new_len:
            t = t[..., self.cache_len :, :]
        padded = self.memories and t.shape[-1] == self.tokens
        return F.pad(t, (self.memories, 0), value=filler) if padded else t

    def skip_layer(self, layer: Layer, x: Tensor) -> None:
        """Count a layer that is left out, so that the next ones still find their own past."""
        self.attended += is_attention(layer.kind)
        if layer.kind == 'a':
            self.self_attended += 1
            read = layer[2].prepare(x)[0]
            self.keep('hiddens', read if read.ndim == 3 else read[1])

    def fork(self) -> StackCall:
        """Copy this call. Results recorded in the copy do not reach the original."""
        notes = {kind: own.fork() for kind, own in self.contexts.items()}
        return self.with_values(intermediates=self.intermediates.fork(), contexts=notes)

    def side_inputs(self) -> list[Tensor]:
        """Return all tensors that layers read besides `x`: conditions, contexts, biases, masks, memories and others."""
        leaves = tree_leaves([getattr(self, name) for name in SIDE_INPUTS])
        found = (leaf.side_inputs() if hasattr(leaf, 'side_inputs') else [leaf] for leaf in leaves)
        return list({id(t): t for several in found for t in several if torch.is_tensor(t)}.values())

    def replace_side_inputs(self, tensors: Sequence[Tensor]) -> StackCall:
        """Copy this call with other tensors in place of `side_inputs()`, for a recomputation."""
        known = self.side_inputs()
        if len(tensors) != len(known):
            raise ValueError(f'`tensors` must replace the {len(known)} of `side_inputs()`, got {len(tensors)}')
        swapped = {id(old): new for old, new in zip(known, tensors, strict=True)}

        def other(leaf: Any) -> Any:
            return (
                leaf.replace_side_inputs(swapped)
                if hasattr(leaf, 'replace_side_inputs')
                else swapped.get(id(leaf), leaf)
            )

        return self.fork().with_values(**{name: tree_map(other, getattr(self, name)) for name in SIDE_INPUTS})

    def at_step(self, step: int) -> StackCall:
        """Copy this call as it is before a step, to run one layer. What that layer caches is lost."""
        own = self.fork()
        own.step, own.attended = step, len([kind for kind in self.kinds[:step] if is_attention(kind)])
        own.self_attended = self.count_layers('a', step)
        return own

    def merge_from(self, other: StackCall) -> None:
        """Take over the results of a fork."""
        self.intermediates, self.contexts = other.intermediates, other.contexts
        self.step, self.attended, self.self_attended = other.step, other.attended, other.self_attended

    @property
    def old_states(self) -> Mapping[str, CachedState] | None:
        return None if self.cache is None else self.cache.states

    @property
    def new_states(self) -> dict[str, CachedState]:
        return self.intermediates.states

    @property
    def continues(self) -> bool:
        return self.cache is not None

    @property
    def count(self) -> int:
        return self.new_len

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
        mask = extend_mask(mask, 'mask', x.shape[0], self.new_len, self.cache_len, may_hide=said)
        mask = self.token_mask = as_mask(mask, 'mask', x.shape[0], 'n', like=x)
        if mask is not None:
            check_mask_covers(mask, self.new_len, self.cache_len > 0)
        self.left_pad = start
        # what all queries and keys leave out is cleared once, where it comes in
        clean = kv_mask is None and attn_mask is None
        kv_mask = as_mask(kv_mask, 'self_attn_kv_mask', x.shape[0], 'j', like=x)
        if kv_mask is not None and kv_mask.shape[1] not in (self.tokens, self.memories + self.tokens):
            raise ValueError(f'`self_attn_kv_mask` must cover all {self.tokens} keys, got {kv_mask.shape[1]}')
        if start is not None:
            # what is kept may go on: a first part may be padding only
            ends = self.cache is None and not self.keeps
            check_lengths(start, 'seq_start_pos', x.shape[0], self.tokens if ends else None)
            check_device(start, 'seq_start_pos', x)
            begun = torch.arange(self.tokens, device=x.device) >= start.unsqueeze(-1)
            self.token_mask = begun if self.token_mask is None else begun & self.token_mask
            kv_mask = self.token_mask if kv_mask is None else begun & kv_mask
        own: dict[str, Any] = dict(mask=mask, context_mask=kv_mask, attn_mask=self.pad_to_keys(attn_mask, True))
        if start is not None and self.memories:
            own['index'] = self.left_padded_positions()
        own['attn_bias'], own['causal'] = self.pad_to_keys(self.inputs.get('attn_bias'), 0.0), causal
        own['clean'] = True if clean and self.token_mask is not None else None
        if self.inputs.get('pos') is not None:
            own['pos'] = self.user_positions(self.inputs['pos'], x)
        self.shared['a'].update({name: value for name, value in own.items() if value is not None})
        hides = self.token_mask is not None or context_mask is not None
        across: dict[str, Any] = dict(mask=self.token_mask, context_mask=context_mask, clean=True if hides else None)
        self.shared['c'].update({name: value for name, value in across.items() if value is not None})


setattr(StackCall, '__dataclass_fields__', HiddenFields())  # noqa: B010  what a checker takes for settled


def acts(branch: Any) -> bool:
    """Return True if a feedforward, inside of what is around it, has features that act at each call."""
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
    return match_precision(x, stack)


def check_context(
    stack: Stack, x: Tensor, context: Maybe[Tensor], context_mask: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Check a context (1 or b, j, d) and its mask (1 or b, j), and return them expanded to the batch of `x`."""
    if context is not None and stack.cross_attend:
        context, context_mask = expand_batch(context, x.shape[0]), expand_batch(context_mask, x.shape[0])
        width = stack.dim_context
        if torch.is_tensor(context) and context.shape[-1:] != (width,):
            width = input_width(context, width, *(getattr(m, 'to_k', None) for m in stack.modules()))
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
        raise ValueError('`attn_mask` cannot be combined with `cache`: it would have to cover the cached tokens')
    if not stack.can_cache_kv:
        raise ValueError('`cache` was given, but a feature of this stack cannot be cached')
    if stack.training and not stack.can_cache_kv_in_training:
        raise ValueError('`cache` cannot be used in training this stack: layers that are left out cache nothing')


def open_stack(
    x: Tensor, given_cache: Any, only_new: bool, cache_age: int | None, offset: Any, past: Any, inputs: dict[str, Any]
) -> StackCall:
    """Make the call of a stack, with the number of new tokens.

    `x` holds the cached tokens too, unless `only_new` is set. A shorter one ends with the new ones: `cache_age` tokens,
    1 if that is None, all if it is 0. `past` is the memories and their masks, each a sequence or None.
    """
    given = new = x.shape[1]
    cache, cache_len, seen = None, 0, 0
    if given_cache is not None or cache_age is not None:
        cache, cache_len, seen, new = new_tokens(given_cache, only_new, cache_age, given)
    if offset is not None:
        check_offset(offset, 'seq_pos_offset')
        seen = offset
    elif torch.is_tensor(seen):
        check_offset(seen, 'cache_length')
    intermediates = LayerIntermediates(hiddens=[], attn_intermediates=[], layer_hiddens=[], block_hiddens=[])
    mems, masks = past
    past = () if mems is None else mems, () if masks is None else masks
    shared: dict[str, dict[str, Any]] = {'a': {}, 'c': {}, 'f': {}}
    return StackCall(intermediates, inputs, cache, cache_len, seen, new, given, *past, shared=shared, batch=x.shape[0])


def new_tokens(
    given_cache: Any, only_new: bool, cache_age: int | None, given: int
) -> tuple[Cache | None, int, int | Tensor, int]:
    """Return the cache, how many tokens it holds and has seen, and how many of the `given` ones are new."""
    if cache_age is not None and not is_int(cache_age):
        raise TypeError(f'`cache_age` must be an integer or None, got {format_value(cache_age)}')
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
    return cache, cache.length, cache.num_seen_tokens, new
