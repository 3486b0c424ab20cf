"""Per-head transforms of queries, keys and values, before they meet the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature
from x_transformers.features.norms import MultiheadRMSNorm, l2norm
from x_transformers.flags import ConfigError, Features, flag, positive, size

Heads = tuple[Tensor, Tensor, Tensor]


class QKNorm(AttentionFeature):
    """Queries and keys of unit length, by groups of features; scores are cosines times a scale."""

    paper = 'Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442'
    qk_norm = flag(False, 'cosine similarity attention')
    qk_norm_groups = flag(1, 'parts of a head that are normed on their own', size, example=2)
    qk_norm_scale = flag(10, 'the fixed scale of the cosines', positive, example=4)
    qk_norm_dim_scale = flag(False, 'learned scales per feature instead')
    stored_as = {'q_scale': 'qk_norm_q_scale', 'k_scale': 'qk_norm_k_scale'}
    idle_beside = {'qk_norm_scale': 'qk_norm_dim_scale'}
    plain = True
    settles = ('logit_scale',)

    def setup(self, host: Any) -> None:
        shape, groups = host.shape, self.qk_norm_groups
        if shape.dim_head % groups or shape.dim_head // groups <= 2:
            raise ConfigError(
                f'`qk_norm_groups` got {groups}, '
                f'it must divide the head width {shape.dim_head} into parts of more than 2 features'
            )
        if self.qk_norm_dim_scale:
            start = shape.dim_head**0.25
            self.q_scale = nn.Parameter(torch.full((host.query_heads, 1, shape.dim_head), start))
            self.k_scale = nn.Parameter(torch.full((host.key_heads, 1, shape.dim_head), start))
        else:
            host.logit_scale = self.qk_norm_scale

    def heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        q = l2norm(q, self.qk_norm_groups)
        return q * self.q_scale if self.qk_norm_dim_scale else q, self.stored_keys(k, call), v

    def stored_keys(self, k: Tensor, call: Any) -> Tensor:
        k = l2norm(k, self.qk_norm_groups)
        return k * self.k_scale if self.qk_norm_dim_scale else k


class QKRMSNorm(AttentionFeature):
    """RMS norm of each query and key head, with learned gains."""

    paper = 'ViT-22B, arXiv:2302.05442'
    qk_rmsnorm = flag(False, 'RMS norm of queries and keys, per head')
    stored_as = {'q_norm': 'q_rmsnorm', 'k_norm': 'k_rmsnorm'}
    plain = True

    def setup(self, host: Any) -> None:
        self.q_norm = MultiheadRMSNorm(host.shape.dim_head, host.query_heads)
        self.k_norm = MultiheadRMSNorm(host.shape.dim_head, host.key_heads)

    def heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return self.q_norm(q), self.k_norm(k), v


class KeyRMSNorm(AttentionFeature):
    """RMS norm of each key head, with learned gains."""

    k_rmsnorm = flag(False, 'RMS norm of keys, per head')
    clashes = {'qk_rmsnorm': 'it norms the keys already'}
    stored_as = {'norm': 'k_rmsnorm'}
    plain = True

    def setup(self, host: Any) -> None:
        self.norm = MultiheadRMSNorm(host.shape.dim_head, host.key_heads)

    def heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, self.norm(k), v


class ValueRMSNorm(AttentionFeature):
    """RMS norm of each value head, with learned gains."""

    value_rmsnorm = flag(False, 'RMS norm of values, per head')
    stored_as = {'norm': 'value_rmsnorm'}
    plain = True

    def setup(self, host: Any) -> None:
        self.norm = MultiheadRMSNorm(host.shape.dim_value, host.shape.kv_heads)

    def heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, k, self.norm(v)


def refuse_other_heads(on: Features, query_heads: int, heads: int) -> None:
    """Refuse features with numbers for each of the layer's heads, where another one makes more query heads of them."""
    if query_heads <= heads:
        return
    widening, order = on.at.get('widths', ()), on.active.index
    back = [f for f in widening if set(f.runs_at()) & {'weights', 'mix', 'leave'}]
    mixing = max((order(f) for f in back if 'mix' in f.runs_at()), default=len(on.active))
    for feature in on.active:
        # what mixes weights on the way out mixes those of query heads, if it runs before they become heads again
        fits = back and set(feature.runs_at()) <= {'attended', 'output'}
        fits = fits or ('mix' in feature.runs_at() and order(feature) > mixing)
        if getattr(feature, 'per_head', False) and not fits:
            name = next(iter(feature.flags), type(feature).__name__)
            made = f'{query_heads} query heads of {heads} heads, as {type(widening[0]).__name__} makes them'
            raise ConfigError(f'`{name}` does not go with {made}: it has numbers for each head')
