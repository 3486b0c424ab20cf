"""Blocks of keys, sorted softly: each block of queries attends to its own keys and to a mix of all blocks.

    S = sinkhorn(exp(R / t)),  K'_i = sum_j S_ij K_j,  V'_i = sum_j S_ij V_j        block by block
    out_i = attention of the queries of block i to [K'_i ; K_i]

What belongs here: what is balanced, mixed and attended to, of any scores R between blocks. Axes: b batch, h heads,
r blocks of queries, N blocks of keys, c tokens of a block, e features.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.precision import widest
from x_transformers.core.transforms import is_exporting
from x_transformers.flags.maybe import Maybe
from x_transformers.kernels.derivatives import differentiable_sdpa


def least(t: Tensor) -> float:
    """A logarithm of nothing, of which sums and differences are finite."""
    return torch.finfo(t.dtype).min / 8


# a sum below this has no part
NOTHING = 1e-12


# logarithms of which sums can be formed
FURTHEST = {torch.float64: 600.0, torch.float32: 80.0}


class Sums(NamedTuple):
    """What the columns of S were divided by, up to each row:  b h r N for each round, the first one as logarithm."""

    rounds: tuple[Tensor, ...]

    def before(self, row: Any, carry: Tensor | None = None) -> Tensor:
        """Those up to the row before one, a number or one for each of the batch (b):  b h rounds N. Before the first
        stands `carry`."""
        one = self.rounds[0][:, :, :1]
        start = torch.stack(
            [torch.full_like(one[:, :, 0], 0.0 if at else least(one)) for at in range(len(self.rounds))], 2
        )
        start = start if carry is None else carry
        if isinstance(row, Tensor):
            index = (row - 1).clamp(min=0)[:, None, None, None].expand(-1, one.shape[1], 1, one.shape[3])
            found = torch.cat([t.gather(2, index) for t in self.rounds], dim=2)
            return torch.where((row > 0)[:, None, None, None], found, start)
        return torch.stack([t[:, :, row - 1] for t in self.rounds], dim=2) if row > 0 else start


def widened(carry: Tensor, blocks: Any) -> Tensor:
    """What columns were divided by, for more of them."""
    known = carry.shape[-1]
    at = torch.arange(blocks, device=carry.device)
    none = torch.zeros_like(carry[..., :1])
    none[:, :, 0] = least(carry)
    return torch.where(at < known, carry.index_select(-1, at.clamp(max=known - 1)), none)


def all_of_column(x: Tensor, pairs: Tensor | None, carry: Any) -> tuple[Tensor, Tensor]:
    """Logarithms of columns by their sum, and that sum:  b h r N, b h 1 N."""
    sums = (x if pairs is None else torch.where(pairs, x, least(x))).logsumexp(dim=-2, keepdim=True)
    return x - sums, sums


def first_of_column(x: Tensor, pairs: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same by sums up to each row:  b h r N twice. What sums are relative to is the first entry, or what stands
    before, which no later row changes; other logarithms than `FURTHEST` from that count as so far."""
    wide = widest(x.device)
    pairs, first = pairs.expand(x.shape), pairs.to(torch.uint8).argmax(dim=-2, keepdim=True)
    base = x.detach().gather(-2, first.expand_as(x[:, :, :1]))
    start = torch.zeros_like(base, dtype=wide)
    if carry is not None:
        known = carry > least(carry) / 2
        base, start = torch.where(known, carry, base), known.to(wide)
    most = FURTHEST[wide]
    relative = (x - base).to(wide).clamp(-most, most)
    sums = torch.where(pairs, relative, -torch.inf).exp().cumsum(dim=-2) + start
    empty = sums == 0
    logs = sums.masked_fill(empty, 1.0).log()
    return (relative - logs).to(x.dtype), torch.where(empty, least(x), (base + logs).to(x.dtype))


def divided(s: Tensor, sums: Tensor) -> Tensor:
    """By a sum, unless it is that of nothing."""
    return s / sums.masked_fill(sums < NOTHING, 1.0)


def balanced(
    logits: Tensor, pairs: Maybe[Tensor], rounds: int, causal: bool, carry: Maybe[Tensor] = None
) -> tuple[Tensor, Sums]:
    """S of the logits (b h r N): columns are divided by their sum, then rows, so many times.

    pairs    bool, to b h r N: which blocks a row mixes, None for all. Others get nothing
    causal   row i divides a column by its sum up to row i: what comes later changes no row that is there
    carry    `Sums.before` the first row, b h rounds N

    The first round works with logarithms. After it the first entry of a column is at least 1 / N, and so are all sums;
    the other rounds divide plain numbers.
    """
    x, sums = (first_of_column if causal else all_of_column)(logits, pairs, None if carry is None else carry[:, :, :1])
    found = [sums]
    s = (x if pairs is None else torch.where(pairs, x, least(x))).softmax(dim=-1)
    s = s if pairs is None else torch.where(pairs, s, 0.0)
    for step in range(1, rounds):
        sums = s.cumsum(dim=-2) if causal else s.sum(dim=-2, keepdim=True)
        sums = sums if carry is None else sums + carry[:, :, step : step + 1]
        found.append(sums)
        s = divided(s, sums)
        s = divided(s, s.sum(dim=-1, keepdim=True))
    return s, Sums(tuple(found))


def mixed(s: Tensor, t: Tensor) -> Tensor:
    """Blocks of tokens by the weights S:  b h r N, b h N c e -> b h r c e."""
    return (s.to(t.dtype) @ t.flatten(3)).unflatten(3, t.shape[3:])


def picked(t: Tensor, index: Tensor, dim: int) -> Tensor:
    """Entries along an axis, of each row of the batch (b i). To broadcast the index would fix a symbolic length."""
    shape, view = [*t.shape], [t.shape[0], *[1] * (t.ndim - 1)]
    shape[dim] = view[dim] = index.shape[1]
    return t.gather(dim, index.reshape(view).expand(shape))


def in_blocks(t: Tensor, width: int, blocks: int, filler: float = 0.0) -> Tensor:
    """... n e -> ... N c e, with what is missing at the end"""
    short = blocks * width - t.shape[-2]
    padded = F.pad(t, (0, 0, 0, short), value=filler) if torch.compiler.is_compiling() or short else t
    return padded.unfold(-2, width, width).mT if is_exporting() else padded.unflatten(-2, (blocks, width))


def first_of(t: Tensor, n: Any) -> Tensor:
    """... N e -> ... n e"""
    if is_exporting():  # which cannot know that n is at most N
        return t.index_select(-2, torch.arange(n, device=t.device))
    return t.narrow(-2, 0, n) if torch.compiler.is_compiling() or t.shape[-2] != n else t


def blocks_of(n: Any, width: int) -> Any:
    # a graph for all lengths cannot ask whether one fits
    return n // width + 1 if torch.compiler.is_compiling() else -(-n // width)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Maybe[Tensor], scale: Any, sighted: Tensor | None = None) -> Tensor:
    """b h i e; `mask` bool, to b h i j. Rows that are not `sighted` (b h i 1) see no key and give zeros."""
    if isinstance(scale, Tensor):
        q, scale = q * scale, 1.0
    if sighted is None:
        return differentiable_sdpa(q, k, v, attn_mask=mask, scale=scale)
    out = differentiable_sdpa(q, k, v, attn_mask=mask | ~sighted, scale=scale)
    return out.masked_fill(~sighted, 0.0)


class Blocks(NamedTuple):
    """Keys or values of each block, in its mix and in itself:  b h r c e."""

    mix: Tensor
    own: Tensor

    def side_by_side(self) -> Tensor:
        """(b r) h 2c e, of which all heads of a token lie together."""
        both = torch.cat([t.permute(0, 2, 3, 1, 4) for t in self], dim=2)
        return both.flatten(0, 1).transpose(1, 2)


def attended(q: Tensor, k: Blocks, v: Blocks, mask: Tensor | None, scale: Any, blind: bool = False) -> Tensor:
    """Blocks of queries (b h r c e) to their keys:  b h r c e.   mask: bool, to b r c 2c; `blind`: some see no key"""
    b, r, sighted = q.shape[0], q.shape[2], None
    if mask is not None:
        mask = mask.expand(b, r, -1, -1).flatten(0, 1).unsqueeze(1)
        sighted = mask.any(dim=-1, keepdim=True) if blind else None
    rows = q.permute(0, 2, 3, 1, 4).flatten(0, 1).transpose(1, 2)
    out = sdpa(rows, k.side_by_side(), v.side_by_side(), mask, scale, sighted)
    return out.transpose(1, 2).unflatten(0, (b, r)).permute(0, 3, 1, 2, 4)


def near(width: int, like: Tensor) -> Tensor:
    """Which tokens of its block a query sees, where it sees no later one."""
    return torch.ones(width, width, dtype=torch.bool, device=like.device).tril()


def no_later(rows: Tensor, width: int) -> Tensor:
    """What queries of these blocks (r) see, where they see no later key, and the first block no mix:  r c 2c."""
    own = near(width, rows)
    return torch.cat(((rows > 0)[:, None, None].expand(-1, width, width), own.expand(len(rows), -1, -1)), dim=-1)
