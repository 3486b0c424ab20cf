"""Attention of queries to the keys before them and to chosen blocks of keys. No tensor has all queries and all keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from x_transformers.patterns.base import ceil_div
from x_transformers.patterns.engine.formula import Scores, gather_rows, group_outputs, index_scores

# Queries of a chunk that share the keys before them.
CHUNK = 64
# Queries of a group that share the keys of a block: each block fills up its last group.
GROUP = 64


class BlockGrid(NamedTuple):
    """Complete blocks of keys, counted from the first token of each sequence or document.

    size     number of keys of a block, a multiple of `stride`
    stride   distance between the first keys of two blocks
    number   (b|1, m), number of the block in its sequence
    last     (b|1, m), index of its last key; the number of keys if the block is not complete
    """

    size: int
    stride: int
    number: Tensor
    last: Tensor

    @classmethod
    def of(cls, begin: Tensor, keys: int, size: int, stride: int) -> BlockGrid:
        """Return the blocks of sequences that begin at (b|1, 1), or of documents, by token: (b|1, keys)."""
        place, count = torch.arange(keys, device=begin.device), keys // stride
        each = place[:count]
        if begin.shape[-1] == 1:
            number = each - (begin.clamp(max=0) // stride)  # The first keys of a sequence may be missing.
            last = begin + number * stride + size - 1
            return cls(size, stride, number, torch.where(last < keys, last, keys))
        before = place - begin + 1 - size
        complete = (before >= 0) & (before % stride == 0)  # At most one of `stride` keys.
        order = torch.where(complete, complete.cumsum(dim=-1) - 1, count)
        last = torch.full((len(begin), count + 1), keys, device=begin.device)
        last = last.scatter(-1, order, place.expand_as(order))[:, :count]
        return cls(size, stride, each.expand_as(last), last)

    @property
    def first(self) -> Tensor:
        """Return the index of the first key of each block, (b|1, m)."""
        return self.last - (self.size - 1)

    def gather(self, t: Tensor) -> Tensor:
        """Return the vectors of the keys of all blocks:  b h j d -> b h m s d."""
        index = self.first.unsqueeze(-1) + torch.arange(self.size, device=t.device)
        return gather_rows(t, index.clamp(0, max(t.shape[2] - 1, 0)).unsqueeze(1))


def attend_before(
    q: Tensor, k: Tensor, v: Tensor, at: int, first: Tensor, width: int, own: Scores
) -> tuple[Tensor, Tensor]:
    """Attend to at most `width` keys: those from `first` (b|1, i) up to the query itself, the key at `at` + i."""
    rows, keys = q.shape[2], k.shape[2] - own.added
    row = torch.arange(ceil_div(rows, CHUNK) * CHUNK, device=q.device).view(-1, CHUNK)  # (G, c)
    j = row[:, :1] + torch.arange(at + 1 - width, at + CHUNK, device=q.device)  # (G, s)
    limits = first[:, row.clamp(max=rows - 1)].unsqueeze(-1)  # (b|1, G, c, 1)
    seen = (j.unsqueeze(-2) >= limits.clamp(min=0)) & (j.unsqueeze(-2) <= at + row.clamp(max=rows - 1).unsqueeze(-1))
    j = j.clamp(0, max(keys - 1, 0)) + own.added
    return index_scores(q, k, v, row.clamp(max=rows)[None, None], j[None, None], seen.unsqueeze(1), own)


def attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, choice: Tensor, grid: BlockGrid, own: Scores
) -> list[tuple[Tensor, Tensor]]:
    """Attend to each of the chosen blocks, (b, h, i, c) with -1 for none. Return one part per choice.

    The pairs of a query and its block are sorted by block and cut into groups of `GROUP` queries, which share the keys
    of the block. The number of groups follows from the lengths alone.
    """
    (batch, heads, rows, chosen), blocks = choice.shape, grid.last.shape[-1]
    pairs, device = rows * chosen, q.device
    of = torch.where(choice < 0, blocks, choice).flatten(2)  # (b, h, p)
    order = of.argsort(dim=-1, stable=True)
    count = torch.zeros(batch, heads, blocks + 1, dtype=torch.long, device=device)
    count = count.scatter_add(-1, of, torch.ones_like(of))
    groups, total = (count[..., :blocks] + GROUP - 1) // GROUP, pairs // GROUP + blocks
    ends = groups.cumsum(dim=-1)
    # The place of each pair in the groups, and the pair at each place.
    start = (ends - groups) * GROUP - (count.cumsum(dim=-1) - count)[..., :blocks]
    each = torch.arange(pairs, device=device).expand_as(order)
    place = torch.zeros_like(order).scatter(-1, order, each) + start.gather(-1, of.clamp(max=blocks - 1))
    place = place.masked_fill(of == blocks, total * GROUP)
    pair = torch.full((batch, heads, total * GROUP + 1), pairs, device=device).scatter(-1, place, each)
    pair = pair[..., :-1].unflatten(-1, (total, GROUP))
    row = pair // chosen  # (b, h, G, c)
    at = torch.arange(total, device=device) + 0 * ends[..., :1]  # of each row under vmap too, which then copies nothing
    block = torch.searchsorted(ends, at, right=True)
    first = grid.first.unsqueeze(1).expand(batch, heads, -1).gather(-1, block.clamp(max=blocks - 1))
    j = first.unsqueeze(-1) + torch.arange(grid.size, device=device)  # (b, h, G, s)
    j = j.clamp(0, k.shape[2] - own.added - 1) + own.added
    out, lse = group_outputs(q, k, v, row, j, (row < rows).unsqueeze(-1), own)
    place = place.clamp(max=total * GROUP - 1).view(batch, heads, rows, chosen)
    out, lse = (gather_rows(t.flatten(2, 3), place) for t in (out, lse))  # (b, h, i, c, d)
    lse = lse.squeeze(-1).masked_fill(choice < 0, -torch.inf)
    return list(zip(out.unbind(3), lse.unbind(3), strict=True))


def attend_each(
    q: Tensor, k: Tensor, v: Tensor, at: Tensor, first: Tensor, width: int, choice: Tensor, grid: Any, own: Scores
) -> tuple[Tensor, Tensor]:
    """Attend to the keys of `attend_before` and `attend_blocks`, which each query gathers: queries at (b|1, i)."""
    near = at.unsqueeze(-1) - torch.arange(width - 1, -1, -1, device=q.device)  # (b|1, i, s)
    seen = near >= first.clamp(min=0).unsqueeze(-1)
    shape = torch.broadcast_shapes(choice.shape[:3], near.unsqueeze(1).shape[:3])
    starts = grid.first.unsqueeze(1).unsqueeze(1).expand(*shape[:1], shape[1], shape[2], -1)
    starts = starts.gather(-1, choice.clamp(min=0).expand(*shape, -1))  # (b, h, i, c)
    far = (starts.unsqueeze(-1) + torch.arange(grid.size, device=q.device)).flatten(-2)
    chosen = (choice >= 0).repeat_interleave(grid.size, dim=-1)
    j = torch.cat((near.unsqueeze(1).expand(*shape, -1), far), dim=-1)
    seen = torch.cat((seen.unsqueeze(1).expand(*shape, -1), chosen.expand(*shape, -1)), dim=-1)
    row = torch.arange(q.shape[2], device=q.device)[None, None, :, None]
    j = j.clamp(0, k.shape[2] - own.added - 1) + own.added
    return index_scores(q, k, v, row, j, seen.unsqueeze(-2), own)
