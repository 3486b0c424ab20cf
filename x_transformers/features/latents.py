"""Queries, keys and values from narrow latents; the cache holds the latents, not the keys and values."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, flag, none, size

Sources = tuple[Tensor, Tensor, Tensor]


class RopeSubheads(AttentionFeature):
    """The last key heads come from the input itself, past the latents, and they alone turn with their positions."""

    paper = 'DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)'
    latent_rope_subheads = flag(None, 'how many key heads bypass the latents, and are rotated', size | none, example=2)
    needs = {'use_latent_kv': 'these key heads bypass the latents'}
    clashes = {'rotate_num_heads': 'both say how many heads are rotated'}
    stored_as = {'to_keys': 'to_rotateable_k'}

    def widths(self, widths: Any) -> Any:
        shape, own = self.host.shape, self.latent_rope_subheads
        if own > shape.heads:
            raise ConfigError(f'`latent_rope_subheads` got {own}, it must be at most `heads`, {shape.heads}')
        if shape.kv_heads < shape.heads:
            raise ConfigError('`latent_rope_subheads` does not go with `kv_heads`: every query head needs its own key')
        widths.key_heads = max(widths.key_heads - own, 1)
        return widths

    def setup(self, host: Any) -> None:
        if self.latent_rope_subheads == host.shape.heads:  # none is left, and torch warns of layers without outputs
            host.to_k.weight, host.to_k.out_features = nn.Parameter(host.to_k.weight.detach()[:0]), 0
        self.to_keys = nn.Linear(host.dim_kv_in, self.latent_rope_subheads * host.shape.dim_head, bias=False)

    def sources(self, qkv: Sources, call: Any) -> Sources:
        call.own(self).keys = rearrange(self.to_keys(qkv[1]), 'b n (h d) -> b h n d', h=self.latent_rope_subheads)
        return qkv

    def heads(self, qkv: Sources, call: Any) -> Sources:
        q, k, v = qkv
        return q, torch.cat((k, call.own(LatentKeysValues).rope_keys), dim=1), v


class LatentQueries(AttentionFeature):
    """Queries through a bottleneck:  x -> latent -> q."""

    paper = 'DeepSeek-V2, arXiv:2405.04434'
    use_latent_q = flag(False, 'queries are made from a narrow latent')
    dim_latent_q = flag(None, 'its width', size | none, example=6)
    needs = {'dim_latent_q': 'it is the width of the latent'}
    stored_as = {'to_latent': 'to_latent_q'}

    def widths(self, widths: Any) -> Any:
        widths.q = self.dim_latent_q
        return widths

    def setup(self, host: Any) -> None:
        self.to_latent = nn.Linear(host.dim, self.dim_latent_q, bias=False)

    def sources(self, qkv: Sources, call: Any) -> Sources:
        return self.to_latent(qkv[0]), *qkv[1:]


class LatentKeysValues(AttentionFeature):
    """Keys and values from one latent per token, which is all that the cache holds:  x -> latent -> k, v."""

    paper = 'DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)'
    use_latent_kv = flag(False, 'keys and values are made from a narrow latent, which is what is cached')
    dim_latent_kv = flag(None, 'its width', size | none, example=6)
    needs = {'dim_latent_kv': 'it is the width of the latent'}
    clashes = {'qkv_receive_diff_residuals': 'keys and values share one latent, they cannot come from two inputs'}
    keeps_plain_keys = True
    stored_as = {'to_latent': 'to_latent_kv'}

    def widths(self, widths: Any) -> Any:
        widths.kv = self.dim_latent_kv
        return widths

    def setup(self, host: Any) -> None:
        self.to_latent = nn.Linear(host.dim_kv_in, self.dim_latent_kv, bias=False)

    def sources(self, qkv: Sources, call: Any) -> Sources:
        keys = getattr(call.own(RopeSubheads), 'keys', None)
        latent, call.own(self).rope_keys = call.with_past(self.to_latent(qkv[1]), keys)
        call.rebuilds_values = True
        return qkv[0], latent, latent

    def past(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        return k, v
