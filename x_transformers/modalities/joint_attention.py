"""Joint attention of two sequences with separate weights."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_vectors, checked
from x_transformers.flags import Configurable, size

__all__ = ['JointAttention']


class JointAttention(Configurable):
    """Joint attention of two sequences, such as image patches and text:  (b, n, d), (b, m, d) -> (b, n, d), (b, m, d)

        separate q, k, v and output projections for a and b;  one softmax over the keys of both

    Esser et al. 2024, arXiv:2403.03206 (Stable Diffusion 3)
    """

    def __init__(
        self,
        dim: Annotated[int, 'width of both sequences', size],
        heads: Annotated[int, 'number of heads', size] = 8,
        dim_head: Annotated[int, 'width of each attention head', size] = 64,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.dim_head = dim, heads, dim_head
        inner = heads * dim_head
        self.to_qkv_a, self.to_qkv_b = (nn.Linear(dim, 3 * inner, bias=False) for _ in 'ab')
        self.to_out_a, self.to_out_b = (nn.Linear(inner, dim, bias=False) for _ in 'ab')

    @checked
    def forward(
        self, a: Tensor, b: Tensor, mask_a: Tensor | None = None, mask_b: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """mask_a, mask_b   b n, b m   True for real tokens, which alone are seen; the outputs of others are 0"""
        check_vectors(a, 'a', 'b', 'n', self.dim)
        check_vectors(b, 'b', 'b', 'm', self.dim)
        if a.shape[0] != b.shape[0]:
            raise ValueError(f'`b` got {b.shape[0]} rows, `a` has {a.shape[0]}')
        n, m = a.shape[1], b.shape[1]
        real = [as_mask(mask, name, *t.shape[:2], like=t) for mask, name, t in (
            (mask_a, 'mask_a', a), (mask_b, 'mask_b', b))]  # fmt: skip
        seen = None
        if any(mask is not None for mask in real):
            whole = [torch.ones_like(t[..., 0], dtype=torch.bool) if mask is None else mask
                     for mask, t in zip(real, (a, b), strict=True)]  # fmt: skip
            seen = torch.cat(whole, dim=1)
            a, b = (t.masked_fill(~mask.unsqueeze(-1), 0.0) for t, mask in zip((a, b), whole, strict=True))
        qkv = torch.cat((self.to_qkv_a(a), self.to_qkv_b(b)), dim=1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if seen is None else seen[:, None, None])
        out = out.transpose(1, 2).flatten(2)
        if seen is not None:
            out = out.masked_fill(~seen.unsqueeze(-1), 0.0)
        of_a, of_b = out.split_with_sizes((n, m), dim=1)
        return self.to_out_a(of_a), self.to_out_b(of_b)
