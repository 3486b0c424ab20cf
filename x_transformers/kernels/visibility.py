"""Visibility: the masks and biases of the queries of a call, resolved per layer or once for all layers of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call, is_large
from x_transformers.core.modes import HALF, transformed
from x_transformers.core.rows import Rows
from x_transformers.core.stack_calls import StackCall
from x_transformers.flags import Features
from x_transformers.flags.contracts import BareKeys
from x_transformers.kernels.dense import SdpaMask, sight_of, tile_heads

# of the tokens, of a context, and of scores
Masks = tuple[Tensor | None, Tensor | None, Tensor | None]


def settle_given(
    on: Features, call: Call, qkv: tuple[Tensor, Tensor, Tensor], given: Masks
) -> tuple[Tensor, Tensor, Tensor]:
    """Resolve the masks and biases of a call from the masks that it was given."""
    masks: list[Any] = []
    if not call.unmasked or 'mem_mask' in call.inputs:
        call.real = call.key_mask(*given[:2])
        masks = [] if call.real is None else [call.real[:, None, None]]
        masks += [] if given[2] is None else [given[2]]
    if masks or on.settles or call.places is not None:
        return settle_terms(on, call, qkv, masks)
    call.may_be_blind = call.keys < call.rows and call.triangle
    return qkv


def settle_terms(on: Features, call: Call, qkv: tuple[Tensor, ...], masks: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """The same from masks that are known, and what features hide, add and put in front."""
    q, k, v = qkv
    found = on.collect('keys', call)
    keys = [pair for pair in found if not isinstance(pair, BareKeys)]
    call.bare_keys = [pair.like(k, v) for pair in found if isinstance(pair, BareKeys)]
    added = sum(k.shape[-2] for k, _ in (*keys, *call.bare_keys))
    call.total_keys = call.keys + added
    masks = [*terms(on, 'mask', call), *call.order(), *masks]
    call.masks = [call.term(mask, 'attn_mask') for mask in masks]
    call.biases = terms(on, 'bias', call)
    hides = len(masks) > 0 or (call.triangle and call.keys < call.rows)
    call.may_be_blind = hides and (not added or call.hides_added)
    q, (k, v) = q, in_front(keys, k, v)
    for transform in on.enter:
        q, k, v = transform((q, k, v), call)
    return q, k, v


@dataclass
class Visibility:
    """What the queries of all self-attention layers of a pass see, settled once: masks and biases, each in one piece.

    It is that of a layer which is given the same masks and inputs, by identity, and whose features hide and add the
    same in all layers, as they declare with `same_in_layers`.
    """

    call: Call
    given: tuple[Any, ...]
    inputs: dict[str, Any]
    sight: SdpaMask
    dtype: torch.dtype

    def fits(self, call: Call, on: Features, q: Tensor, masks: Masks) -> bool:
        own = self.call
        for one, other in zip(masks, self.given, strict=True):
            if one is not other:
                return False
        for name, value in self.inputs.items():
            if call.inputs.get(name) is not value:
                return False
        return (
            on.settles_alike
            and call.past is call.context is call.places is call.sight is None
            and call.causal == own.causal
            and call.heads == own.heads
            and call.maps == own.maps
            and q.dtype is self.dtype
            and q.shape[-2] == own.rows
            and call.keys == own.keys
            and 'mem_mask' not in call.inputs
        )

    def apply_to(self, call: Call) -> None:
        own = self.call
        call.visibility = self
        call.real, call.all_real, call.may_be_blind = own.real, own.all_real, own.may_be_blind
        call.masks, call.biases, call.mask, call.bias = own.masks, own.biases, own.mask, own.bias
        call.combined, call.positions = True, own.positions


# what a stack hands to all layers of self-attention that says what queries see
MASKS = ('mask', 'context_mask', 'attn_mask')
DECIDES = frozenset((*MASKS, 'rel_pos', 'attn_bias'))


def shared_visibility(x: Tensor, stack_call: StackCall, layers: Iterable[Any]) -> Visibility | None:
    """What the queries of self-attention see, for all layers of a pass. None where each layer settles it itself."""
    given = stack_call.shared['a']
    if torch.compiler.is_compiling() or transformed() or stack_call.cache is not None or stack_call.mems:
        return None
    if given.keys().isdisjoint(DECIDES) or stack_call.only is not None:
        return None
    if x.ndim != 3 or x.shape[:2] != (stack_call.batch, stack_call.new):  # streams, or tokens of one of several devices
        return None
    layer: Any = next((one[1] for one in layers if one.kind == 'a'), None)
    if not hasattr(layer, 'open_call') or layer.limits is not None or layer.features.views is not None:
        return None
    masks = given.get('mask'), given.get('context_mask'), given.get('attn_mask')
    inputs = {name: value for name, value in given.items() if name not in (*MASKS, 'causal')}
    on = layer.features.acting(inputs)
    masks = (*masks[:2], None if masks[2] is None else layer.own_mask(masks[2]))
    if not on.settles_alike or is_large(x, x.shape[0], layer.query_heads, x.shape[1], x.shape[1]):
        return None
    call = layer.open_call((x, x, x), None, None, masks[0], given.get('causal'), None, inputs, stack_call)
    call.unmasked = masks[0] is masks[1] is masks[2] is None
    call.keys = call.total_keys = x.shape[-2]
    settle_given(on, call, (x, x, x), masks)
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    sight = sight_of(call.combine(), x.new_empty(0, dtype=dtype))
    if sight.mask is not None and sight.mask.requires_grad and dtype in HALF:
        return None  # layers would add up the gradient of one bias in half precision
    # also inputs that this layer lacks: one that is given them does not see the same
    names = {'index', *(name for feature in layer.features.active if feature.same_in_layers for name in feature.takes)}
    return Visibility(call, masks, {name: inputs.get(name) for name in names}, sight, dtype)


def terms(on: Features, stage: str, call: Call) -> list[Rows]:
    """The masks or biases of features, each with the name of its feature for an operator that cannot take it."""
    found = []
    for feature, term in on.terms(stage, call):
        name = f'{stage}` of `{type(feature).__name__}' if feature.is_own else f'attn_{stage}'
        found.append(call.term(term, name))
        found[-1].name = feature.title
    return found


def in_front(terms: Sequence[tuple[Tensor, Tensor]], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Put further keys and values in front; of different head counts, the fewer are repeated."""
    for extra_k, extra_v in terms:
        k, v = joined(extra_k.to(k.dtype), k), joined(extra_v.to(v.dtype), v)
    return k, v


def joined(front: Tensor, rest: Tensor) -> Tensor:
    heads = max(front.shape[1], rest.shape[1])
    return torch.cat((tile_heads(front, heads), tile_heads(rest, heads)), dim=-2)
