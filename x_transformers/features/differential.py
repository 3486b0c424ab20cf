"""Differential attention: what two maps of a head do not have in common."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import flag, none, number
from x_transformers.kernels.dense import tile_heads


class Differential(AttentionFeature):
    """Every head has two maps, whose difference cancels what both look at for no reason.

        out_h = (1 - l0) RMSNorm((softmax(q1 k1^T) - l softmax(q2 k2^T)) v)
        l = exp(a1 b1) - exp(a2 b2) + l0,   l0 = 0.8 - 0.6 exp(-0.3 n)   in the n-th layer, counted from 0

    Query head q is the first map of head q, or the second one of head q - h. What acts on scores sees both maps.
    """

    paper = 'Differential Transformer, arXiv:2410.05258'
    differential = flag(False, 'the difference of two maps per head')
    differential_init = flag(None, 'l0; None: by the number of the layer', number | none, example=0.5)
    stored_as = {'vectors': 'differential_lambda', 'gain': 'differential_norm'}
    clashes = {
        'laser': 'differences of sums of exponentials have no logarithm',
        'collab_heads': 'there is one shared key, not one per map',
        'rotate_num_heads': 'both maps of a head turn, or none',
        'latent_rope_subheads': 'its heads turn one by one',
    }
    row_wise = True
    uncut = 'it has two query heads for each head'

    def widths(self, widths: Any) -> Any:
        widths.query_heads *= 2
        widths.key_heads *= 2
        return widths

    def setup(self, host: Any) -> None:
        self.vectors = nn.Parameter(torch.randn(4, host.shape.dim_head) * 0.1)
        self.gain = nn.Parameter(torch.ones(host.shape.dim_value))

    @property
    def least(self) -> float:
        """l0"""
        by_layer = 0.8 - 0.6 * math.exp(-0.3 * self.host.layer_number)
        return by_layer if self.differential_init is None else self.differential_init

    def heads(self, qkv: tuple[Tensor, ...], call: Any) -> tuple[Tensor, ...]:
        if call.inputs.get('polar_pos_emb') is not None:
            raise ValueError('`differential` does not go with `polar_pos_emb`: its keys have a shift for each head')
        return qkv

    def place(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        """Key heads that are shared: of each map, those of all its query heads."""
        q, k = qk
        if k.shape[1] < q.shape[1]:
            k = torch.cat([tile_heads(t, q.shape[1] // 2) for t in k.chunk(2, dim=1)], dim=1)
        return q, k

    def mix(self, attn: Tensor, call: Any) -> Tensor:
        a1, b1, a2, b2 = self.vectors.to(torch.promote_types(self.vectors.dtype, torch.float32))
        factor = (a1 @ b1).exp() - (a2 @ b2).exp() + self.least
        first, second = attn.chunk(2, dim=1)
        return first - factor.to(attn.dtype) * second

    def leave(self, out: Tensor, call: Any) -> Tensor:
        return F.rms_norm(out, out.shape[-1:], self.gain.to(out.dtype), 1e-5) * (1 - self.least)
