"""Relative positions of Shaw et al.: a learned vector per distance, added to keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import accurate, product
from x_transformers.core.rows import Pointwise, Rows, of_each, summable
from x_transformers.features.biases import distances
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import count, flag

Heads = tuple[Tensor, Tensor, Tensor]


class ShawKeys(AttentionFeature):
    """Add to every key a learned vector for its distance from the query, shared by all heads.

    sim_ij = scale q_i (k_j + a_r(i, j)),   r = clip(p_j - p_i, -m, m)         a_r: 2m + 1 vectors
    """

    paper = 'Self-Attention with Relative Position Representations, arXiv:1803.02155'
    shaw_rel_pos = flag(False, 'add learned vectors per distance to keys and values')
    shaw_max_distance = flag(16, 'maximum distance m: larger distances use its vector', count, example=3)
    stored_as = {'table': 'shaw_k'}
    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}
    cuts = {}

    def setup(self, host: Any) -> None:
        self.table = nn.Parameter(torch.randn(2 * self.shaw_max_distance + 1, host.dim_key) * 0.02)

    def bias(self, call: Any) -> Rows:
        if call.context is not None:
            raise ValueError(f'`shaw_rel_pos` does not go with a context: {self.reason("cross-attention")}')
        own = call.own(self)
        q_pos, k_pos, most = call.q_pos, call.k_pos, self.shaw_max_distance

        def of(rows: slice, keys: slice) -> Tensor:
            index = clipped(q_pos[..., rows], k_pos[..., keys], most)
            known = own.products[..., rows, :]
            return known.gather(-1, index.expand(*known.shape[:-1], -1))

        def entry() -> Pointwise:
            known, of_query, of_key = summable(own.products), of_each(q_pos), of_each(k_pos)
            return lambda b, h, i, j: known[b, h, i, (of_key(b, j) - of_query(b, i)).clamp(-most, most) + most]

        learns = self.table.requires_grad or call.x.requires_grad
        return Rows(of, learns=learns, entry=entry if k_pos.ndim < 3 else None)

    def enter(self, qkv: Heads, call: Any) -> Heads:
        q = qkv[0]
        if q.shape[-1] != self.table.shape[-1]:
            raise ValueError(
                f'`shaw_rel_pos` got queries of width {q.shape[-1]}, its vectors have {self.table.shape[-1]}: '
                f'it does not go with `polar_pos_emb`, which doubles them'
            )
        call.own(self).products = product(q * call.scale, self.table.to(q.dtype).mT)
        return qkv


class ShawValues(AttentionFeature):
    """Add to every value a learned vector for its distance:  out_i = sum_j A_ij (v_j + c_r(i, j)).

    Computed from the summed attention weights per distance. Prepended keys have no distance, and no vector.
    """

    paper = ShawKeys.paper
    shaw_rel_values = flag(True, 'also add vectors to the values; if False, the fused kernel can be used')
    stored_as = {'table': 'shaw_v'}
    options = {'shaw_rel_values': 'shaw_rel_pos'}
    clashes = {'laser': 'it attends to exponentials of the values, to which no vectors can be added'}
    row_wise = True
    cuts = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return bool(values.get('shaw_rel_pos') and values.get('shaw_rel_values'))

    def setup(self, host: Any) -> None:
        self.table = nn.Parameter(torch.randn(len(host.shaw_k), host.shape.dim_value) * 0.02)

    def gathered(self, out: Tensor, attn: Tensor, call: Any) -> Tensor:
        index = clipped(call.q_pos, call.k_pos, len(self.table) // 2)
        attn = accurate(attn[..., attn.shape[-1] - call.keys :])
        sums = attn.new_zeros(*attn.shape[:-1], len(self.table)).scatter_add(-1, index.expand_as(attn), attn)
        return out + sums.to(out.dtype) @ self.table.to(out.dtype)


def clipped(q_pos: Tensor, k_pos: Tensor, most: int) -> Tensor:
    """Which vector belongs to each pair:  broadcasts to b h i j."""
    if k_pos.is_floating_point():
        raise ValueError(f'`pos` got {k_pos.dtype}, it must be whole numbers: each distance has a separate vector')
    index = (-distances(q_pos, k_pos)).clamp(-most, most) + most
    return index.unsqueeze(1) if index.ndim == 3 else index[(None,) * (4 - index.ndim)]


class ShawPositions(StackFeature):
    """Learned vectors per relative distance, with a separate table in each self-attention layer of a stack.

    sim_ij = scale q_i (k_j + a_r),   out_i = sum_j A_ij (v_j + c_r),   r = clip(p_j - p_i, -m, m)
    """

    paper = ShawKeys.paper
    shaw_rel_pos = flag(False, 'add learned vectors per distance to keys and values')
    shaw_max_distance = flag(16, 'maximum distance m: larger distances use its vector', count, example=3)
    shaw_rel_values = flag(True, 'also add vectors to the values; if False, the fused kernel can be used')
    gives_positions = True

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.flags}
        return {**own, **flags} if kind == 'a' else flags
