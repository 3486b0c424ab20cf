"""Multi-head latent attention: queries, keys and values from low-rank latents, which are cached instead of the keys."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.modes import is_hooked
from x_transformers.features.heads import HeadNorm
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, flag, none, one_of, size

Sources = tuple[Tensor, Tensor, Tensor]


class RopeSubheads(AttentionFeature):
    """Compute the last key heads directly from the input, bypassing the latents; only these heads are rotated."""

    paper = 'DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)'
    latent_rope_subheads = flag(None, 'number of rotated key heads that bypass the latents', size | none, example=2)
    needs = {'use_latent_kv': 'these key heads bypass the latents'}
    clashes = {'rotate_num_heads': 'both set the number of rotated heads'}
    stored_as = {'to_keys': 'to_rotateable_k'}
    refuses = {'several devices': 'some heads are not like the others'}

    def resolve_sizes(self, widths: Any) -> Any:
        shape, own = self.owner.shape, self.latent_rope_subheads
        if own > shape.heads:
            raise ConfigError(f'`latent_rope_subheads` must be at most `heads`, {shape.heads}, got {own}')
        if shape.kv_heads < shape.heads:
            raise ConfigError(
                '`latent_rope_subheads` cannot be combined with `kv_heads`: every query head needs its own key'
            )
        widths.key_heads = max(widths.key_heads - own, 1)
        return widths

    def setup(self, owner: Any) -> None:
        if self.latent_rope_subheads == owner.shape.heads:  # none is left, and torch warns of layers without outputs
            owner.to_k.weight, owner.to_k.out_features = nn.Parameter(owner.to_k.weight.detach()[:0]), 0
        self.to_keys = nn.Linear(owner.dim_kv_in, self.latent_rope_subheads * owner.shape.dim_head, bias=False)

    def qkv_inputs(self, qkv: Sources, call: Any) -> Sources:
        call.ctx(self).keys = rearrange(self.to_keys(qkv[1]), 'b n (h d) -> b h n d', h=self.latent_rope_subheads)
        return qkv

    def qkv_heads(self, qkv: Sources, call: Any) -> Sources:
        q, k, v = qkv
        return q, torch.cat((k, call.ctx(LatentKeysValues).further), dim=1), v


class LatentRope(AttentionFeature):
    """Decoupled rotary positions: only the first r channels of every head are rotated.

        k_h = [x W_r, c W_h]        r and dim_head - r channels of key head h, c the latent

    The rotated channels of the keys are computed directly from the input, the same for all heads, and the others from
    the latent. The cache holds dim_latent_kv + r numbers per token.
    """

    paper = 'DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437'
    dim_latent_rope = flag(None, 'number r of rotated channels per head that bypass the latent', size | none, example=4)
    needs = {'use_latent_kv': 'the other channels are computed from the latent'}
    clashes = {
        'latent_rope_subheads': 'both bypass the latent',
        'rotate_num_heads': 'all heads share its rotated key channels',
    }
    stored_as = {'to_key': 'to_rotated_k'}
    tp_shards = {}

    def resolve_sizes(self, widths: Any) -> Any:
        own, width = self.dim_latent_rope, self.owner.shape.dim_head
        if own % 2 or own >= width:
            raise ConfigError(f'`dim_latent_rope` must be even and less than the head width, {width}, got {own}')
        widths.elsewhere = own
        return widths

    def setup(self, owner: Any) -> None:
        self.to_key = nn.Linear(owner.dim_kv_in, self.dim_latent_rope, bias=False)

    def qkv_inputs(self, qkv: Sources, call: Any) -> Sources:
        call.ctx(self).keys = self.to_key(qkv[1])
        return qkv

    def projected(self, qkv: Sources, call: Any) -> Sources:
        if call.ctx(LatentKeysValues).latent is not None:
            return qkv  # these channels join the latent
        q, k, v = qkv
        k = k.unflatten(-1, (-1, self.owner.dim_key - self.dim_latent_rope))
        turning = call.ctx(LatentKeysValues).further.unsqueeze(-2).expand(*k.shape[:-1], -1)
        return q, torch.cat((turning, k), dim=-1).flatten(-2), v


def turning_features(stack: Any) -> int | None:
    """Return how many features of a head turn, if latents say it.  Raises ConfigError where layers differ."""
    layers = range(stack.layer_types.count('a'))
    widths = {stack.flags_for('a', number).get('dim_latent_rope') for number in layers} - {None}
    if len(widths) > 1:
        raise ConfigError(f'`attn_dim_latent_rope` got {sorted(widths)}, all layers share their positions')
    return next(iter(widths), None)


class LatentNorm(AttentionFeature):
    """RMS norm of the latents of queries and of keys and values, if they are used."""

    paper = 'DeepSeek-V2, arXiv:2405.04434, section 3.1.2'
    latent_norm = flag(False, 'RMS norm of the latents, with an eps of 1e-6')
    stored_as = {'of_q': 'q_latent_norm', 'of_kv': 'kv_latent_norm'}
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        refuse_without_latents(owner, 'latent_norm')
        if owner.use_latent_q:
            self.of_q = HeadNorm('rms', (owner.dim_latent_q,))
        if owner.use_latent_kv:
            self.of_kv = HeadNorm('rms', (owner.dim_latent_kv,))


class LatentBias(AttentionFeature):
    """Biases of the projections to the latents, and to the keys that bypass them. Initialized with zeros."""

    paper = 'DeepSeek-V3, arXiv:2412.19437'
    latent_bias = flag(False, 'biases of the projections to the latents')
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        refuse_without_latents(owner, 'latent_bias')

    def initialize(self) -> None:
        for name in ('to_latent_q', 'to_latent_kv', 'to_rotated_k', 'to_rotateable_k'):
            projection = getattr(self.owner, name, None)
            if projection is not None:
                projection.bias = nn.Parameter(torch.zeros(projection.out_features))


def refuse_without_latents(owner: Any, name: str) -> None:
    if not (owner.use_latent_q or owner.use_latent_kv):
        raise ConfigError(f'`{name}` needs `use_latent_q` or `use_latent_kv`: there is no latent')


def get_latent(x: Tensor, project: nn.Linear, norm: nn.Module | None) -> Tensor:
    latent = project(x)
    return latent if norm is None else norm(latent)


class LatentQueries(AttentionFeature):
    """Compute queries through a low-rank latent:  x -> latent -> q."""

    paper = 'DeepSeek-V2, arXiv:2405.04434'
    use_latent_q = flag(False, 'compute queries from a low-rank latent')
    dim_latent_q = flag(None, 'width of the latent of the queries', size | none, example=6)
    needs = {'dim_latent_q': 'it is the width of the latent'}
    stored_as = {'to_latent': 'to_latent_q'}
    tp_shards = {}

    def resolve_sizes(self, widths: Any) -> Any:
        widths.q = self.dim_latent_q
        return widths

    def setup(self, owner: Any) -> None:
        self.to_latent = nn.Linear(owner.dim, self.dim_latent_q, bias=False)

    def qkv_inputs(self, qkv: Sources, call: Any) -> Sources:
        return get_latent(qkv[0], self.to_latent, getattr(self.owner, 'q_latent_norm', None)), *qkv[1:]


class LatentKeysValues(AttentionFeature):
    """Compute keys and values from one latent per token:  x -> latent -> k, v.  Only the latent is cached.

        k_j = [r_j, W_k c_j],    v_j = W_v c_j                             c the latent, r of `dim_latent_rope`
        s_ij = [q_r, W_k^T q_c] [r_j, c_j],    o_i = W_v sum_j a_ij c_j    absorbed

    The absorbed form does not rebuild the keys and values of cached tokens: all heads attend to the latents. With
    'auto' it is used after a cache, wherever it needs fewer products.
    """

    paper = 'DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)'
    use_latent_kv = flag(False, 'compute keys and values from a shared low-rank latent, and cache only the latent')
    dim_latent_kv = flag(None, 'width of the latent of keys and values', size | none, example=6)
    latent_absorb = flag(
        'auto',
        "attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a "
        'cache, if it takes fewer products',
        one_of('auto', True, False),
        example=True,
    )
    needs = {'dim_latent_kv': 'it is the width of the latent'}
    clashes = {'qkv_receive_diff_residuals': 'keys and values share one latent, so that they cannot have two inputs'}
    keeps_unrotated_keys = True
    stored_as = {'to_latent': 'to_latent_kv'}
    tp_shards = {}

    def resolve_sizes(self, widths: Any) -> Any:
        widths.kv = self.dim_latent_kv
        return widths

    def setup(self, owner: Any) -> None:
        self.to_latent = nn.Linear(owner.dim_kv_in, self.dim_latent_kv, bias=False)

    def qkv_inputs(self, qkv: Sources, call: Any) -> Sources:
        further = next((keys for kind in BYPASSES if (keys := getattr(call.ctx(kind), 'keys', None)) is not None), None)
        latent = get_latent(qkv[1], self.to_latent, getattr(self.owner, 'kv_latent_norm', None))
        latent, call.ctx(self).further = call.append_past(latent, further)
        call.ctx(self).latent = None
        call.rebuilds_values = True
        if self.absorbs(call, qkv[0].shape[1], latent.shape[1]):
            call.ctx(self).latent = latent
            latent = latent[:, :0]  # no keys and values are built
        return qkv[0], latent, latent

    def absorbs(self, call: Any, queries: int, keys: int) -> bool:
        """Return True if a call attends to the latents."""
        if self.latent_absorb is False or (self.latent_absorb == 'auto' and call.past is None):
            return False
        if call.keeps == 'all' or not self.can_absorb(call):  # `Intermediates` have the values of each head
            return False
        return self.latent_absorb is True or self.count_products(queries, keys)

    def can_absorb(self, call: Any) -> bool:
        """Return True if keys and values are products of the latents with two plain matrices."""
        owner, angles = self.owner, call.inputs.get('rotary_pos_emb')
        for linear in (owner.to_k, owner.to_v):
            plain = type(linear) is nn.Linear and type(linear.weight) in (Tensor, nn.Parameter)
            if not plain or linear.bias is not None or is_hooked(linear) or linear._forward_pre_hooks:
                return False
        if any(name in owner._modules for name in ('split_q_heads', 'split_k_heads', 'split_v_heads')):
            return False  # somebody reads the heads
        if angles is not None and angles[0].shape[-1] > self.num_rotated:
            return False
        others = [feature for stage in OF_KEYS for feature in owner.features.by_stage.get(stage, ())]
        for feature in (*others, *[feature for feature in owner.features.active if reads_values(feature)]):
            waits = feature.waits and all(call.inputs.get(name) is None for name in feature.call_inputs)
            if not waits and type(feature).__name__ not in ABSORBABLE:
                return False
        return True

    @property
    def num_rotated(self) -> int:
        """The channels of a key that come from elsewhere, of which all may be rotated."""
        rope = self.owner.features.find(LatentRope)
        return 0 if rope is None else rope.dim_latent_rope

    def count_products(self, queries: int, keys: int) -> bool:
        """Return True if the absorbed form takes fewer products than keys and values that are built again.

        In compiled graphs the answer must not depend on the lengths: the step of one query is absorbed, if that pays
        for many keys.
        """
        shape, width, rope = self.owner.shape, self.dim_latent_kv, self.num_rotated
        sizes = self.owner.dim_key - rope + shape.dim_value
        of_key, of_pair = width * shape.kv_heads * sizes, shape.heads * (sizes + rope)
        of_query, absorbed = shape.heads * width * sizes, shape.heads * (2 * width + rope)
        if torch.compiler.is_compiling():
            return queries == 1 and absorbed < of_key + of_pair
        return queries * (of_query + keys * absorbed) < keys * (of_key + queries * of_pair)

    def qkv_heads(self, qkv: Sources, call: Any) -> Sources:
        latent, further = call.ctx(self).latent, call.ctx(self).further
        if latent is None:
            return qkv
        turning, own = qkv[0].tensor_split((self.num_rotated,), dim=-1)
        w = self.owner.to_k.weight.unflatten(0, (self.owner.shape.kv_heads, -1))
        own = own.unflatten(1, (-1, w.shape[0])) @ w  # (b, m, k, i, c), m queries of each key head
        keys = latent if further is None else torch.cat((further, latent), dim=-1)
        return torch.cat((turning, own.flatten(1, 2)), dim=-1), keys.unsqueeze(1), latent.unsqueeze(1)

    def update_cache(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        return k, v

    def post_attention(self, out: Tensor, call: Any) -> Tensor:
        if call.ctx(self).latent is None:
            return out
        w = self.owner.to_v.weight.unflatten(0, (self.owner.shape.kv_heads, -1))
        return (out.unflatten(1, (-1, w.shape[0])) @ w.mT).flatten(1, 2)


# Stages that get keys, values or the outputs of heads; those of other features there need the keys of each head.
OF_KEYS = (
    'projected', 'qkv_heads', 'rotate_new', 'update_cache', 'extra_keys', 'rotate', 'prepend_kv', 'pre_attention',
    'pre_kernel', 'attend', 'weighted_values', 'post_attention',
)  # fmt: skip
ABSORBABLE = {'LatentKeysValues', 'LatentRope', 'Rotary', 'QueryTemperature', 'SparseIndexer'}


def reads_values(feature: Any) -> bool:
    """Return True for a feature that reads the values of the call."""
    return 'orthog_projected_values' in feature.flags


# features that make keys, or features of keys, past the latents
BYPASSES = (RopeSubheads, LatentRope)
