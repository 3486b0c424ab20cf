"""Attention heads of different widths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.positions import constant
from x_transformers.flags import Check, ConfigError, PerLayer, flag, format_value, none, size

Heads = tuple[Tensor, Tensor, Tensor]

EQUAL = 'it needs heads of equal width'
MIXED = 'it mixes heads, which have different widths'
a_width_each = Check(
    'a tuple of integers of at least 1, one for each head',
    lambda value: isinstance(value, (tuple, list)) and len(value) > 0 and all(map(size.test, value)),
    'Sequence[int]',
)


class HeadDims(AttentionFeature):
    """A separate width e_i for each head i, for its queries, keys and values, and the matching scale.

        out = [softmax(q_i k_i^T / sqrt(e_i)) v_i]_i W_o,      q_i = x W_i: (b, n, e_i)

    The projections have the total width of all heads. Inside attention and in the cache, heads are padded with zeros
    to the widest one, so that time and memory are those of heads of that width.
    """

    paper = 'Attention Is All You Need, arXiv:1706.03762, section 3.2.2'
    head_dims = flag(
        None, 'widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them', a_width_each | none,
        example=(4, 2, 3, 5, 1, 2, 3, 4),
    )  # fmt: skip
    clashes = {
        **dict.fromkeys(('talking_heads', 'pre_talking_heads', 'post_talking_heads'), MIXED),
        'pre_scale_post_talking_heads': MIXED,
        **dict.fromkeys(('collab_heads', 'use_latent_q', 'use_latent_kv', 'linformer_k', 'aft', 'kernel'), EQUAL),
        **dict.fromkeys(('qk_rmsnorm', 'qk_head_norm', 'qk_proj_norm', 'k_rmsnorm', 'value_rmsnorm'), EQUAL),
        **dict.fromkeys(('differential', 'disentangled', 'use_cope', 'cluster', 'hybrid_module', 'l2_distance'), EQUAL),
        **dict.fromkeys(('gate_values', 'output_gate', 'value_head_norm'), EQUAL),
        **dict.fromkeys(('orthog_projected_values', 'orthog_projected_values_per_head'), EQUAL),
    }
    refuses = {'several devices': 'its heads differ in width', 'polar_pos_emb': EQUAL}
    sets_on_module = ('shape', 'dim_merged', 'head_widths')

    def resolve_sizes(self, widths: Any) -> Any:
        owner, dims = self.owner, tuple(self.head_dims)
        if len(dims) != owner.heads:
            raise ConfigError(f'`head_dims` must have one for each of {owner.heads} `heads`, got {len(dims)} widths')
        if owner.kv_heads != owner.heads:
            raise ConfigError(
                '`head_dims` cannot be combined with `kv_heads` or `one_kv_head`: heads have their own keys'
            )
        if owner.shape.dim_value != owner.shape.dim_head:
            raise ConfigError(
                '`head_dims` cannot be combined with `value_dim_head`: values of a head are as wide as its keys'
            )
        widest = widths.dim_key = max(dims)
        owner.shape = replace(owner.shape, dim_head=widest, dim_value=widest)
        owner.dim_merged, owner.head_widths = sum(dims), dims
        return widths

    def setup(self, owner: Any) -> None:
        if any(getattr(feature, 'apart', None) is not None for feature in owner.features.active):
            raise ConfigError("`head_dims` cannot be combined with Global('mask'), which has separate projections")
        dims, widest = owner.head_widths, owner.shape.dim_head
        for name in ('to_q', 'to_k', 'to_v'):
            old = getattr(owner, name)
            new = nn.Linear(old.in_features, sum(dims), bias=False)
            bias = None if old.bias is None else nn.Parameter(torch.zeros(sum(dims)))
            new.register_parameter('bias', bias)
            setattr(owner, name, new)
        self.places = tuple(head * widest + place for head, width in enumerate(dims) for place in range(width))
        channels = {slot: channel for channel, slot in enumerate(self.places)}
        self.slots = tuple(channels.get(slot, sum(dims)) for slot in range(len(dims) * widest))  # the last one is zero

    def projected(self, qkv: Heads, call: Any) -> Heads:
        slots = constant(self.slots, qkv[0].device, torch.long)
        q, k, v = (F.pad(t, (0, 1)).index_select(-1, slots) for t in qkv)
        return q, k, v

    def rotate_new(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        angles, (q, k) = call.inputs.get('rotary_pos_emb'), qk
        if angles is not None and angles[0].shape[-1] > min(self.owner.head_widths):
            raise ValueError(
                f'`rotary_pos_emb` turns {angles[0].shape[-1]} features, more than the narrowest of `head_dims` has, '
                f'{min(self.owner.head_widths)}: give `rotary_emb_dim`'
            )
        if self.owner.logit_scale != self.owner.scale:  # another feature says it, for all heads
            return qk
        widths = constant(self.owner.head_widths, q.device, q.dtype)
        return q / (widths.sqrt() * self.owner.scale)[:, None, None], k

    def head_outputs(self, out: Tensor, call: Any) -> Tensor:
        if call.inputs.get('o_delta') is not None:
            raise ValueError(f'`o_delta` cannot be combined with `head_dims`: {EQUAL}')
        return out

    def merged_heads(self, out: Tensor, call: Any) -> Tensor:
        return out.index_select(-1, constant(self.places, out.device, torch.long))


class HeadDimsInStack(StackFeature):
    """Require `PerLayer` for a stack, since a plain tuple could also mean one value per layer."""

    enabled_by = ('head_dims',)

    def setup(self, owner: Any) -> None:
        for kind, prefix in (('a', 'attn_'), ('c', 'cross_attn_')):
            given = owner.branch_flags[kind].get('head_dims')
            if given is not None and not isinstance(given, PerLayer):
                raise ConfigError(
                    f'`{prefix}head_dims` of a stack must be `PerLayer(...)` with the head widths of each layer, got '
                    f'{format_value(given)}'
                )
