"""Visibility: the masks and biases of the queries of a call, resolved per layer or once for all layers of a pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call, is_large
from x_transformers.core.modes import HALF, is_transformed
from x_transformers.core.rows import BlockwiseTerm
from x_transformers.core.stack_calls import StackCall
from x_transformers.flags import Features
from x_transformers.flags.contracts import BareKeys
from x_transformers.kernels.dense import SdpaMask, make_sdpa_mask, tile_heads

# Masks of tokens, of a context, and of scores.
Masks = tuple[Tensor | None, Tensor | None, Tensor | None]


def settle_given(
    features: Features, call: Call, qkv: tuple[Tensor, Tensor, Tensor], given: Masks
) -> tuple[Tensor, Tensor, Tensor]:
    """Resolve the masks and biases of a call from the masks that it was given."""
    masks: list[Any] = []
    if not call.unmasked or 'mem_mask' in call.inputs:
        call.key_mask = call.make_key_mask(*given[:2])
        masks = [] if call.key_mask is None else [call.key_mask[:, None, None]]
        masks += [] if given[2] is None else [given[2]]
    if masks or features.settles or call.token_idx is not None:
        return combine_terms(features, call, qkv, masks)
    call.may_have_fully_masked = call.keys < call.q_len and call.needs_causal_mask
    return qkv


def combine_terms(
    features: Features, call: Call, qkv: tuple[Tensor, ...], masks: list[Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Resolve the masks and biases of a call from known masks, and from the terms and prepended keys of features."""
    q, k, v = qkv
    found = features.collect('prepend_kv', call)
    keys = [pair for pair in found if not isinstance(pair, BareKeys)]
    call.bare_keys = [pair.like(k, v) for pair in found if isinstance(pair, BareKeys)]
    added = sum(k.shape[-2] for k, _ in (*keys, *call.bare_keys))
    call.total_keys = call.keys + added
    masks = [*_collect_terms(features, 'mask', call), *call.make_order_mask(), *masks]
    call.masks = [call.term(mask, 'attn_mask') for mask in masks]
    call.biases = _collect_terms(features, 'bias', call)
    hides = len(masks) > 0 or (call.needs_causal_mask and call.keys < call.q_len)
    call.may_have_fully_masked = hides and (not added or call.hides_added)
    q, (k, v) = q, prepend_kv(keys, k, v)
    for transform in features.pre_attention:
        q, k, v = transform((q, k, v), call)
    return q, k, v


@dataclass
class Visibility:
    """Masks and biases of all self-attention layers of a pass, combined once.

    A layer may use it if it gets the same masks and inputs, by identity, and its features have the same masks and
    biases in all layers, as they declare by `same_in_layers`.
    """

    call: Call
    given: tuple[Any, ...]
    inputs: dict[str, Any]
    sdpa_mask: SdpaMask
    dtype: torch.dtype

    def fits(self, call: Call, features: Features, q: Tensor, masks: Masks) -> bool:
        own = self.call
        for one, other in zip(masks, self.given, strict=True):
            if one is not other:
                return False
        for name, value in self.inputs.items():
            if call.inputs.get(name) is not value:
                return False
        return (
            features.settles_alike
            and call.past is call.context is call.token_idx is call.window is None
            and call.causal == own.causal
            and call.heads == own.heads
            and call.maps == own.maps
            and q.dtype is self.dtype
            and q.shape[-2] == own.q_len
            and call.keys == own.keys
            and 'mem_mask' not in call.inputs
        )

    def apply_to(self, call: Call) -> None:
        own = self.call
        call.visibility = self
        call.key_mask, call.all_key_mask, call.may_have_fully_masked = (
            own.key_mask,
            own.all_key_mask,
            own.may_have_fully_masked,
        )
        call.masks, call.biases, call.mask, call.bias = own.masks, own.biases, own.mask, own.bias
        call.combined, call.positions = True, own.positions


# Masks that a stack passes to all layers of self-attention.
MASKS = ('mask', 'context_mask', 'attn_mask')
DECIDES = frozenset((*MASKS, 'rel_pos', 'attn_bias'))


def shared_visibility(x: Tensor, stack_call: StackCall, layers: Iterable[Any]) -> Visibility | None:
    """Return the masks and biases shared by all layers of a pass; None if each layer has to combine its own."""
    given = stack_call.shared['a']
    if torch.compiler.is_compiling() or is_transformed() or stack_call.cache is not None or stack_call.mems:
        return None
    if given.keys().isdisjoint(DECIDES) or stack_call.subset_idx is not None:
        return None
    if x.ndim != 3 or x.shape[:2] != (
        stack_call.batch,
        stack_call.new_len,
    ):  # streams, or tokens of one of several devices
        return None
    layer: Any = next((one[1] for one in layers if one.kind == 'a'), None)
    if not hasattr(layer, 'open_call') or layer.limits is not None or layer.features.select_inputs is not None:
        return None
    masks = given.get('mask'), given.get('context_mask'), given.get('attn_mask')
    inputs = {name: value for name, value in given.items() if name not in (*MASKS, 'causal')}
    features = layer.features.active_for(inputs)
    masks = (*masks[:2], None if masks[2] is None else layer.own_mask(masks[2]))
    if not features.settles_alike or is_large(x, x.shape[0], layer.query_heads, x.shape[1], x.shape[1]):
        return None
    call = layer.open_call((x, x, x), None, None, masks[0], given.get('causal'), None, inputs, stack_call)
    call.unmasked = masks[0] is masks[1] is masks[2] is None
    call.keys = call.total_keys = x.shape[-2]
    settle_given(features, call, (x, x, x), masks)
    dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
    sdpa_mask = make_sdpa_mask(call.combine(), x.new_empty(0, dtype=dtype)).as_bias(dtype)
    if sdpa_mask.mask is not None and sdpa_mask.mask.requires_grad and dtype in HALF:
        return None  # layers would add up the gradient of one bias in half precision
    # also inputs that this layer lacks: one that is given them does not see the same
    names = {
        'index',
        *(name for feature in layer.features.active if feature.same_in_layers for name in feature.call_inputs),
    }
    return Visibility(call, masks, {name: inputs.get(name) for name in names}, sdpa_mask, dtype)


def _collect_terms(features: Features, stage: str, call: Call) -> list[BlockwiseTerm]:
    """Return the masks or biases of features, with the names of the features for errors of operators."""
    found = []
    for feature, term in features.terms(stage, call):
        name = f'{stage}` of `{type(feature).__name__}' if feature.is_user_defined else f'attn_{stage}'
        found.append(call.term(term, name))
        found[-1].name = feature.display_name
    return found


def prepend_kv(terms: Sequence[tuple[Tensor, Tensor]], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Prepend keys and values; heads are repeated if there are fewer."""
    for extra_k, extra_v in terms:
        k, v = _concat_keys(extra_k.to(k.dtype), k), _concat_keys(extra_v.to(v.dtype), v)
    return k, v


def _concat_keys(front: Tensor, rest: Tensor) -> Tensor:
    heads = max(front.shape[1], rest.shape[1])
    return torch.cat((tile_heads(front, heads), tile_heads(rest, heads)), dim=-2)
