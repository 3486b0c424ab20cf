"""Norms of the query, key and value heads, applied before keys and values are cached; biases, clipping, norms and the
softmax scale of the projections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.modes import to_float
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.norms import MultiheadRMSNorm, l2norm, rms_normed
from x_transformers.flags import Check, ConfigError, Features, boolean, flag, none, one_of, positive, size

Heads = tuple[Tensor, Tensor, Tensor]  # q, k and v, before they are split into heads or after


class QKNorm(AttentionFeature):
    """Cosine similarity attention: L2-normalize queries and keys, so that scores are cosines times a scale.

    The scale 'learned' is one per head,  exp(min(l, log 100)),  10 at first.
    """

    paper = (
        'Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; '
        'per head: Swin Transformer V2, arXiv:2111.09883'
    )
    qk_norm = flag(False, 'L2-normalize queries and keys (cosine similarity attention)')
    qk_norm_groups = flag(1, 'number of groups of channels per head that are normalized separately', size, example=2)
    qk_norm_scale = flag(
        10, "fixed factor of the cosines, or 'learned', one per head", positive | one_of('learned'), example=4
    )
    qk_norm_dim_scale = flag(False, 'learn a scale per head and channel instead of the fixed factor')
    stored_as = {'q_scale': 'qk_norm_q_scale', 'k_scale': 'qk_norm_k_scale', 'log_scale': 'qk_norm_log_scale'}
    requires_flag = {'qk_norm_scale': 'not qk_norm_dim_scale'}
    allows_eviction = True
    sets_on_module = ('logit_scale',)
    tp_shards = {'q_scale': (0, 'heads'), 'k_scale': (0, 'kv_heads'), 'log_scale': (0, 'heads')}

    def setup(self, owner: Any) -> None:
        shape, groups = owner.shape, self.qk_norm_groups
        if shape.dim_head % groups or shape.dim_head // groups <= 2:
            raise ConfigError(
                f'`qk_norm_groups` got {groups}, '
                f'it must divide the head width {shape.dim_head} into parts of more than 2 channels'
            )
        if self.qk_norm_dim_scale and self.qk_norm_scale == 'learned':
            raise ConfigError("`qk_norm_scale='learned'` cannot be combined with `qk_norm_dim_scale`: set one scale")
        if self.qk_norm_dim_scale:
            start = shape.dim_head**0.25
            self.q_scale = nn.Parameter(torch.full((owner.query_heads, 1, shape.dim_head), start))
            self.k_scale = nn.Parameter(torch.full((owner.key_heads, 1, shape.dim_head), start))
        elif self.qk_norm_scale == 'learned':
            self.log_scale = nn.Parameter(torch.full((owner.query_heads,), math.log(10.0)))
            owner.logit_scale = 1.0
        else:
            owner.logit_scale = self.qk_norm_scale

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        q = l2norm(q, self.qk_norm_groups)
        if self.qk_norm_scale == 'learned':
            scale = self.log_scale.clamp(max=math.log(100.0)).exp().to(q.dtype)
            return q * rearrange(scale, 'h -> h 1 1'), self.extra_keys(k, call), v
        return q * self.q_scale if self.qk_norm_dim_scale else q, self.extra_keys(k, call), v

    def extra_keys(self, k: Tensor, call: Any) -> Tensor:
        k = l2norm(k, self.qk_norm_groups)
        return k * self.k_scale if self.qk_norm_dim_scale else k


class QKRMSNorm(AttentionFeature):
    """RMS norm of each query and key head, with learned weights."""

    paper = 'ViT-22B, arXiv:2302.05442'
    qk_rmsnorm = flag(False, 'RMS norm of queries and keys, per head')
    stored_as = {'q_norm': 'q_rmsnorm', 'k_norm': 'k_rmsnorm'}
    tp_shards = {'q_norm.gamma': (0, 'heads'), 'k_norm.gamma': (0, 'kv_heads')}

    def setup(self, owner: Any) -> None:
        self.q_norm = MultiheadRMSNorm(owner.shape.dim_head, owner.query_heads)
        self.k_norm = MultiheadRMSNorm(owner.shape.dim_head, owner.key_heads)

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return self.q_norm(q), self.k_norm(k), v


class KeyRMSNorm(AttentionFeature):
    """RMS norm of each key head, with learned weights."""

    k_rmsnorm = flag(False, 'RMS norm of keys, per head')
    clashes = {'qk_rmsnorm': 'it already normalizes the keys'}
    stored_as = {'norm': 'k_rmsnorm'}
    tp_shards = {'norm.gamma': (0, 'kv_heads')}

    def setup(self, owner: Any) -> None:
        self.norm = MultiheadRMSNorm(owner.shape.dim_head, owner.key_heads)

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, self.norm(k), v


class ValueRMSNorm(AttentionFeature):
    """RMS norm of each value head, with learned weights."""

    value_rmsnorm = flag(False, 'RMS norm of values, per head')
    stored_as = {'norm': 'value_rmsnorm'}
    tp_shards = {'norm.gamma': (0, 'kv_heads')}

    def setup(self, owner: Any) -> None:
        self.norm = MultiheadRMSNorm(owner.shape.dim_value, owner.shape.kv_heads)

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, k, self.norm(v)


class HeadNorm(nn.Module):
    """RMS norm or layer norm over the last axis, of each head:  b h n d -> b h n d.  In float32 for half precision.

        rms      x / sqrt(mean(x^2) + eps) gain                     arXiv:1910.07467
        layer    (x - mean(x)) / sqrt(var(x) + eps) gain + bias     arXiv:1607.06450

    shape          that of the gain: (d) for all heads, (h, 1, d) for each its own; None: no gain
    unit_offset    the gain is stored as its difference from one
    """

    gamma: nn.Parameter | None

    def __init__(
        self,
        kind: str,
        shape: tuple[int, ...] | None,
        eps: float | None = None,
        unit_offset: bool | None = None,
        bias: bool | None = False,
    ) -> None:
        super().__init__()
        self.kind, self.unit_offset = kind, float(bool(unit_offset))
        self.eps = (1e-6 if kind == 'rms' else 1e-5) if eps is None else eps
        self.gamma = None if shape is None else nn.Parameter(torch.full(shape, 1.0 - self.unit_offset))
        self.beta = nn.Parameter(torch.zeros(shape)) if bias and shape is not None else None

    @property
    def gain(self) -> Tensor | float:
        if self.gamma is None:
            return 1.0
        return self.gamma + self.unit_offset if self.unit_offset else self.gamma

    def normalize(self, x: Tensor) -> Tensor:
        """Normalize without weight and bias, in float32 at least."""
        x = to_float(x)
        if self.kind == 'rms':
            return rms_normed(x, self.eps)
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)

    def forward(self, x: Tensor) -> Tensor:
        out = self.normalize(x) * self.gain
        return (out if self.beta is None else out + self.beta).to(x.dtype)


class QKHeadNorm(AttentionFeature):
    """RMS norm or layer norm of each query and key head over its channels, before or after their rotation.

        before    q_p = R_p norm(x_p W_q),    k_p = R_p norm(x_p W_k)          R_p the rotation at position p
        after     q_p = norm(R_p x_p W_q),    k_p = norm(R_p x_p W_k)          Llama 4, Hunyuan, nanochat

    The order matters for norms with weights, which differ between the channels of a pair, and for layer norms.
    """

    paper = 'Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442'
    qk_head_norm = flag(
        None, "norm of each query and key head: 'rms' or 'layer'", one_of('rms', 'layer') | none, example='rms'
    )
    qk_head_norm_shared = flag(True, 'share the norm weights between all heads instead of learning them per head')
    qk_head_norm_bias = flag(False, 'learn a bias in this norm')
    qk_head_norm_eps = flag(
        None, "eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer')", positive | none, example=0.5
    )
    qk_head_norm_unit_offset = flag(
        None, 'store the norm weights as weight - 1; None: same as the stack', boolean | none, example=False
    )
    qk_head_norm_affine = flag(True, 'learn weights in this norm')
    qk_head_norm_at = flag(
        'before', "norm 'before' or 'after' the rotation of positions", one_of('before', 'after'), example='after'
    )
    clashes = dict.fromkeys(('qk_norm', 'qk_rmsnorm', 'k_rmsnorm'), 'both normalize query or key heads')
    stored_as = {'q_norm': 'q_norm', 'k_norm': 'k_norm'}

    def setup(self, owner: Any) -> None:
        if self.qk_head_norm_bias and not self.qk_head_norm_affine:
            raise ConfigError(
                '`qk_head_norm_bias` cannot be combined with `qk_head_norm_affine=False`: the norm has no weights'
            )
        options = self.qk_head_norm_eps, self.qk_head_norm_unit_offset, self.qk_head_norm_bias
        width, shared = owner.dim_key, self.qk_head_norm_shared
        shapes = ((width,) if shared else (heads, 1, width) for heads in (owner.query_heads, owner.key_heads))
        shapes = shapes if self.qk_head_norm_affine else (None, None)
        self.q_norm, self.k_norm = (HeadNorm(self.qk_head_norm, shape, *options) for shape in shapes)

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[QKHeadNorm]:
        return NormAfterRotation if values['qk_head_norm_at'] == 'after' else cls

    @property
    def tp_shards(self) -> dict[str, tuple[int, str]]:
        per_head = self.qk_head_norm_affine and not self.qk_head_norm_shared
        each = (('q_norm', 'heads'), ('k_norm', 'kv_heads')) if per_head else ()
        return {f'{norm}.{name}': (0, of) for norm, of in each for name in ('gamma', 'beta')}

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return self.q_norm(q), self.k_norm(k), v


class NormAfterRotation(QKHeadNorm):
    """The norm of query and key heads after their rotation. The cache holds keys that have not been normalized."""

    allows_eviction = True

    def active_stages(self) -> tuple[str, ...]:
        return ('rotate',)

    def rotate(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        return self.q_norm(qk[0]), self.k_norm(qk[1])


class ValueHeadNorm(AttentionFeature):
    """RMS norm or layer norm of each value head over its channels, before caching."""

    paper = 'Gemma 3n, ai.google.dev/gemma/docs/gemma-3n'
    value_head_norm = flag(
        None, "norm of each value head: 'rms' or 'layer'", one_of('rms', 'layer') | none, example='rms'
    )
    value_head_norm_affine = flag(True, 'learn weights in this norm, shared between all heads')
    value_head_norm_eps = flag(
        None, "eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer')", positive | none, example=0.5
    )
    value_head_norm_unit_offset = flag(
        None, 'store the norm weights as weight - 1; None: same as the stack', boolean | none, example=False
    )
    clashes = {'value_rmsnorm': 'both normalize value heads'}
    stored_as = {'norm': 'value_norm'}
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        shape = (owner.shape.dim_value,) if self.value_head_norm_affine else None
        self.norm = HeadNorm(self.value_head_norm, shape, self.value_head_norm_eps, self.value_head_norm_unit_offset)

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, k, self.norm(v)


class HeadNormsInStack(StackFeature):
    """Give norms of queries, keys and values the eps and the storage of weights of the stack's norms."""

    enabled_by = ('qk_head_norm', 'qk_proj_norm', 'value_head_norm')
    tp_shards = {}

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        for name in self.enabled_by if kind in 'ac' else ():
            if flags.get(name):
                own = {'eps': getattr(self.owner, 'norm_eps', None), 'unit_offset': self.owner.norm_add_unit_offset}
                own = {f'{name}_{option}': value for option, value in own.items()}
                flags = {**flags, **{n: v for n, v in own.items() if flags.get(n) is None}}
        return flags


def refuse_other_heads(features: Features, query_heads: int, heads: int) -> None:
    """Refuse features with numbers for each of the layer's heads, where another one makes more query heads of them."""
    if query_heads <= heads:
        return
    widening, order = features.by_stage.get('resolve_sizes', ()), features.active.index
    back = [f for f in widening if set(f.runs_at()) & {'weights', 'mixed_weights', 'post_attention'}]
    mixing = max((order(f) for f in back if 'mixed_weights' in f.runs_at()), default=len(features.active))
    for feature in features.active:
        # what mixes weights on the way out mixes those of query heads, if it runs before they become heads again
        fits = back and set(feature.runs_at()) <= {'head_outputs', 'merged_heads'}
        fits = fits or ('mixed_weights' in feature.runs_at() and order(feature) > mixing)
        if getattr(feature, 'per_head', False) and not fits:
            name = next(iter(feature.flags), type(feature).__name__)
            made = f'{query_heads} query heads of {heads} heads, as {type(widening[0]).__name__} makes them'
            raise ConfigError(f'`{name}` cannot be combined with {made}: it has numbers for each head')


def names_projections(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) == len(set(value)) and set(value) <= set('qkv')


class ProjectionBias(AttentionFeature):
    """Biases of all or some of the query, key and value projections. Initialized with zeros."""

    paper = 'BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356'
    qkv_bias = flag(
        False,
        "biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'",
        boolean | Check("some of the letters 'qkv'", names_projections, 'str'),
        example=True,
    )
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        for letter in self.qkv_bias if isinstance(self.qkv_bias, str) else 'qkv':
            projection = getattr(owner, f'to_{letter}')
            projection.bias = nn.Parameter(torch.zeros(projection.out_features))


class ProjectionClip(AttentionFeature):
    """Clip the projected queries, keys and values:  min(max(x, -c), c)."""

    paper = 'MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838'
    qkv_clip = flag(None, 'bound c of the projected queries, keys and values', positive | none, example=0.5)
    tp_shards = {}

    def projected(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = (t.clamp(-self.qkv_clip, self.qkv_clip) for t in qkv)
        return q, k, v


class ProjectionNorm(AttentionFeature):
    """RMS norm of queries and of keys over the channels of all heads together, before they are split into heads."""

    paper = '2 OLMo 2 Furious, arXiv:2501.00656'
    qk_proj_norm = flag(False, 'RMS norm of queries and keys, over all heads together')
    qk_proj_norm_eps = flag(None, 'eps; None: `norm_eps` of the stack, otherwise 1e-6', positive | none, example=0.5)
    qk_proj_norm_unit_offset = flag(
        None, 'store the norm weights as weight - 1; None: same as the stack', boolean | none, example=False
    )
    clashes = {'latent_rope_subheads': 'some of its key heads come from another projection'}
    stored_as = {'q_norm': 'q_proj_norm', 'k_norm': 'k_proj_norm'}
    refuses = {'several devices': 'it normalizes all heads together'}

    def setup(self, owner: Any) -> None:
        options = dict(eps=self.qk_proj_norm_eps, unit_offset=self.qk_proj_norm_unit_offset)
        self.q_norm = HeadNorm('rms', (owner.to_q.out_features,), **options)
        self.k_norm = HeadNorm('rms', (owner.to_k.out_features,), **options)

    def projected(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return self.q_norm(q), self.k_norm(k), v


class SoftmaxScale(AttentionFeature):
    """Scale of the scores, instead of  dim_head ** -0.5."""

    paper = 'Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762'
    softmax_scale = flag(
        None, 'factor of the dot products of queries and keys; dim_head ** -0.5 if None', positive | none, example=0.5
    )
    sets_on_module = ('logit_scale',)
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        owner.logit_scale = self.softmax_scale
