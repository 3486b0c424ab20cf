"""Queries and keys of a layout as indices:  b|1 h|1 G c  and  b|1 h|1 G s,  -1 for none."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from x_transformers.core.recompute import is_batched_grad
from x_transformers.flags.checks import Maybe
from x_transformers.patterns.base import ceil_div
from x_transformers.patterns.branches import Columns, GatherRows, Listed, Reach


class Grid(NamedTuple):
    """Positions 0 to n - 1, of which the queries are at `first` and later, or at the positions `at`, i or b i.

    marks   True for marked positions, b n
    keys    number of keys, if some have no position
    """

    n: int
    first: int
    device: torch.device
    at: Maybe[Tensor] = None
    marks: Maybe[Tensor] = None
    keys: int | None = None

    @property
    def all_keys(self) -> int:
        return self.n if self.keys is None else self.keys

    def count(self, *sizes: int) -> Tensor:
        return torch.arange(*sizes, device=self.device)


class Group(NamedTuple):
    """Positions of groups of queries, and of the keys of each group; -1 for none."""

    queries: Tensor
    keys: Tensor


def _lies_within(positions: Tensor, first: int, n: int) -> Tensor:
    """Replace what is not a position from `first` to n - 1 by -1."""
    return positions.masked_fill((positions < first) | (positions >= n), -1)


def _to_4d(t: Tensor) -> Tensor:
    return t.reshape(*[1] * (4 - t.ndim), *t.shape)


def get_group(layout: Reach | Listed | Columns | GatherRows, grid: Grid) -> Group:
    if grid.at is not None:
        return _expand_each(layout, grid)
    if isinstance(layout, Reach):
        return _span_keys(layout, grid)
    if isinstance(layout, Listed):
        chunks = ceil_div(grid.n, layout.size)
        queries = grid.count(chunks * layout.size).unflatten(0, (chunks, layout.size))
        listed = layout.keys.to(grid.device)[..., :chunks, :]
        keys = listed.unsqueeze(0) if listed.ndim == 3 else _to_4d(listed)
        return Group(_to_4d(_lies_within(queries, grid.first, grid.n)), _lies_within(keys, 0, grid.n))
    everything = grid.count(grid.n)
    if isinstance(layout, Columns):
        return Group(_to_4d(everything[grid.first :]), _choose_branch(layout.keys, grid, 0))
    return Group(_choose_branch(layout.queries, grid, grid.first), _to_4d(everything))


def _choose_branch(positions: Tensor | None, grid: Grid, first: int) -> Tensor:
    """Return positions from `first` on; the marked ones for None."""
    if positions is not None:
        found = _lies_within(positions.to(grid.device), first, grid.n)  # Compiled graphs cannot filter.
        return found[:, None, None] if found.ndim == 2 else _to_4d(found)
    marks = grid.marks.clone()
    marks[:, :first] = False
    order = marks.long().argsort(dim=-1, descending=True, stable=True)[:, : _get_most(marks)]
    return order.masked_fill(~marks.gather(-1, order), -1)[:, None, None]


def _get_most(marks: Tensor) -> int:
    """Return the largest number of marked positions of a sequence, at least 1."""
    # A compiler traces no reading of values, and has the number as a symbol.
    unknown = not torch.compiler.is_compiling() and (is_batched_grad(marks) or isinstance(marks, FakeTensor))
    if unknown or marks.device.type == 'meta' or not marks.numel():
        return marks.shape[-1]
    most: Any = marks.sum(dim=-1).max().clamp(min=1).item()
    torch._check(1 <= most)
    torch._check(most <= marks.shape[-1])
    return most


def _mark_queries(grid: Grid) -> Tensor:
    """Return the marked positions without counting them, for few queries."""
    return torch.where(grid.marks, grid.count(grid.n), -1)[:, None, None]


def _span_keys(span: Reach, grid: Grid) -> Group:
    size, before, after, stride = span
    first = grid.first // stride // size
    chunks = ceil_div(ceil_div(grid.n, stride), size) - first
    start = (grid.count(chunks) + first).unsqueeze(-1) * size  # N 1
    residue = grid.count(stride)[:, None, None]
    queries = (start + grid.count(size)) * stride + residue  # s N c
    own = start + grid.count(-before, size + after)
    keys = torch.where(own >= 0, own * stride + residue, -1)
    return Group(
        _to_4d(_lies_within(queries, grid.first, grid.n).flatten(0, 1)),
        _to_4d(_lies_within(keys, 0, grid.n).flatten(0, 1)),
    )


def _expand_each(layout: Reach | Listed | Columns | GatherRows, grid: Grid) -> Group:
    """Return a group for each query."""
    at = grid.at if grid.at.ndim == 2 else grid.at[None]  # b|1 i
    queries = _lies_within(at, 0, grid.n)[:, None, :, None]
    if isinstance(layout, Reach):
        size, before, after, stride = layout
        own = at // stride // size * size
        own = own.unsqueeze(-1) + grid.count(-before, size + after)
        keys = torch.where(own >= 0, own * stride + (at % stride).unsqueeze(-1), -1).unsqueeze(1)
        return Group(queries, _lies_within(keys, 0, grid.n))
    if isinstance(layout, Listed):
        listed, chunk = layout.keys.to(grid.device), (at // layout.size).clamp(0, layout.keys.shape[-2] - 1)
        if listed.ndim == 4:  # One list per sequence.
            row = torch.arange(len(listed), device=grid.device).unsqueeze(-1)
            keys = listed.transpose(1, 2)[row, chunk].transpose(1, 2)
        else:
            keys = listed[..., chunk, :]
            keys = keys.unsqueeze(1) if keys.ndim == 3 else keys.movedim(0, 1)
        return Group(queries, _lies_within(keys, 0, grid.n))
    if isinstance(layout, Columns):
        return Group(queries.mT, _mark_queries(grid) if layout.keys is None else _choose_branch(layout.keys, grid, 0))
    wanted = _mark_queries(grid) if layout.queries is None else _choose_branch(layout.queries, grid, 0)  # b|1 1 1 r
    hit = (queries[:, 0] == wanted[:, 0]).any(dim=-1)[:, None, None] & (queries.mT >= 0)
    return Group(torch.where(hit, queries.mT, -1), _to_4d(grid.count(grid.n)))
