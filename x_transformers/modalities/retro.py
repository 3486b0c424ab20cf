"""Chunked cross-attention: a causal sequence reads texts that were retrieved for its earlier chunks (RETRO)."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_vectors, checked, match_precision
from x_transformers.flags import Configurable, size
from x_transformers.kernels.dense import differentiable_sdpa

__all__ = ['ChunkedCrossAttention']


class ChunkedCrossAttention(Configurable):
    """Chunked cross-attention (CCA) to the neighbors of each chunk:  (b, n, d), (b, c, k, r, d) -> (b, n, d)

        out_t = softmax(q_t K_u^T / sqrt(e)) V_u W_o,      u = floor((t + 1) / chunk) - 1

    K_u and V_u are keys and values of all k r vectors of the neighbors that were retrieved with chunk u. Its last token
    is the first one that reads them: it is causal if they are found by chunk u alone. The first chunk - 1 tokens, and
    those whose chunk has no neighbors, get zeros. The output projection starts from zeros, so that added to a trained
    model it changes nothing at first.

    Borgeaud et al. 2021, arXiv:2112.04426
    """

    def __init__(
        self,
        dim: Annotated[int, 'width of tokens and neighbors', size],
        heads: Annotated[int, 'number of attention heads', size] = 8,
        dim_head: Annotated[int, 'width of each attention head', size] = 64,
        chunk: Annotated[int, 'number of tokens of a chunk', size] = 64,
    ) -> None:
        super().__init__()
        self.dim, self.heads, self.chunk = dim, heads, chunk
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, heads * dim_head, bias=False) for _ in range(3))
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)
        nn.init.zeros_(self.to_out.weight)

    def describe(self) -> dict[str, str]:
        return {'reads': f'neighbors of the last whole chunk of {self.chunk} tokens'}

    @checked
    def forward(self, x: Tensor, neighbours: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the output for tokens.

        x            b n d
        neighbours   b c k r d    vectors of the k neighbors of each of the first c whole chunks
        mask         b c k r      True except for padding
        raises                    ValueError or TypeError for inputs of another shape or kind
        """
        check_vectors(x, 'x', 'b', 'n', self.dim)
        check_vectors(neighbours, 'neighbours', x.shape[0], 'c', 'k', 'r', self.dim, like=x)
        mask = as_mask(mask, 'mask', *neighbours.shape[:-1], like=x)
        (b, n, _), c = x.shape, neighbours.shape[1]
        if c > n // self.chunk:
            raise ValueError(f'`neighbours` must be of at most {n // self.chunk} whole chunks of {n} tokens, got {c}')
        if c == 0:
            return torch.zeros_like(x)
        x, neighbours = match_precision(x, self, 'x'), match_precision(neighbours, self, 'neighbours')
        # Moved to the left by chunk - 1, the tokens that read chunk u are chunk u.
        read = x[:, self.chunk - 1 : self.chunk - 1 + c * self.chunk]
        behind = c * self.chunk - read.shape[1]
        q, k, v = self.to_q(F.pad(read, (0, 0, 0, behind))), self.to_k(neighbours), self.to_v(neighbours)
        q = rearrange(q, 'b (c n) (h e) -> (b c) h n e', c=c, h=self.heads)
        k, v = (rearrange(t, 'b c k r (h e) -> (b c) h (k r) e', h=self.heads) for t in (k, v))
        seen: Any = None if mask is None else rearrange(mask, 'b c k r -> (b c) 1 1 (k r)')
        some: Any = None if seen is None else seen.any(dim=-1, keepdim=True)
        out = differentiable_sdpa(q, k, v, attn_mask=None if seen is None else seen | ~some)
        out = out if some is None else out.masked_fill(~some, 0.0)
        out = self.to_out(rearrange(out, '(b c) h n e -> b (c n) (h e)', b=b))[:, : read.shape[1]]
        return F.pad(out, (0, 0, self.chunk - 1, n - self.chunk + 1 - read.shape[1]))
