"""Differential attention: subtract a second attention map of each head from its first."""

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
    """Each head subtracts a second attention map from its first, which cancels noise that both have in common.

        out_h = (1 - l0) RMSNorm((softmax(q1 k1^T) - l softmax(q2 k2^T)) v)
        l = exp(a1 b1) - exp(a2 b2) + l0,   l0 = 0.8 - 0.6 exp(-0.3 n)   in the n-th layer, counted from 0

    With h heads, query heads 0 to h - 1 form the first maps, and the next h form the second maps. Other features that
    change scores act on both.
    """

    paper = 'Differential Transformer, arXiv:2410.05258'
    differential = flag(False, 'use the difference of two attention maps per head')
    differential_init = flag(
        None, 'initial factor l0 of the second map; None: computed from the layer index', number | none, example=0.5
    )
    stored_as = {'vectors': 'differential_lambda', 'gain': 'differential_norm'}
    clashes = {
        'laser': 'a difference of sums of exponentials can be negative and has no logarithm',
        'collab_heads': 'all heads share one key projection',
        'rotate_num_heads': 'both maps of a head need the same rotation',
        'latent_rope_subheads': 'both maps of a head need the same rotation',
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
