"""Attention of queries to gathered keys by its formula, with all derivatives, in all transforms.

Axes: b batch, h heads, G groups, c queries of a group, s its keys, e features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.merging import merge_outputs
from x_transformers.core.modes import at_least_float, disable_autocast, to_float
from x_transformers.core.rows import Pointwise
from x_transformers.flags.checks import Maybe
from x_transformers.patterns.branches import Branch
from x_transformers.patterns.engine.layouts import Grid, Group, get_group
from x_transformers.patterns.engine.placement import Placement

ALL_COUNT = Placement()  # Positions are indices of keys.


@dataclass
class Scores:
    """Scale, masks, biases and dropout of scores.

    mask, bias   functions of one query and one key, where j counts the `added` keys, too
    heads        indices of the heads, None for all
    place        placement of positions among the keys
    """

    scale: Any
    causal: bool
    mask: Maybe[Pointwise]
    bias: Maybe[Pointwise]
    added: int
    dropout: float = 0.0
    heads: Maybe[Tensor] = None
    place: Placement = ALL_COUNT

    def head_index(self, count: int, device: torch.device) -> Tensor:
        heads = torch.arange(count, device=device) if self.heads is None else self.heads
        return heads[:, None, None, None]


def gather_rows(t: Tensor, index: Tensor) -> Tensor:
    """Gather rows of t (b h j e) at an index (b|1 h|1 G s):  b h G s e."""
    flat = index.flatten(2)
    if index.shape[:2] == (1, 1):
        found = t.index_select(2, flat[0, 0])
    else:
        found = t.gather(2, flat.unsqueeze(-1).expand(t.shape[0], t.shape[1], -1, t.shape[3]))
    return found.unflatten(2, index.shape[2:])


def _group_scores(
    q: Tensor, k: Tensor, v: Tensor, group: Group, sees: Callable[[Tensor, Tensor], Tensor] | None, grid: Grid,
    own: Scores,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute attention of queries to the keys of their group:  b h i d, and log-sum-exps b h i, -inf for no group."""
    at, is_query = own.place.indices(group.queries, grid.all_keys)
    row = query_rows(at, is_query, group, grid, own)
    j, is_key = own.place.indices(group.keys, grid.all_keys)
    j = j + own.added
    seen = is_query.unsqueeze(-1) & is_key.unsqueeze(-2)
    i_pos, j_pos = group.queries.unsqueeze(-1), group.keys.unsqueeze(-2)
    if sees is not None:
        seen = seen & sees(i_pos, j_pos)
    if own.causal:
        seen = seen & (j_pos <= i_pos)
    return index_scores(q, k, v, row, j, seen, own)


def query_rows(at: Tensor, is_query: Tensor, group: Group, grid: Grid, own: Scores) -> Tensor:
    """Return the indices of a group's queries among those of the call; for none, the number of queries."""
    if grid.at is None:
        rows = grid.all_keys - grid.first
        return torch.where(is_query & (at >= grid.first), at - grid.first, rows)
    rows = grid.at.shape[-1]
    row = torch.arange(rows, device=at.device)
    own_rows = row[:, None] if group.queries.shape[-2] == rows and group.queries.shape[-1] == 1 else row[None]
    return torch.where(is_query, own_rows, rows)


def index_scores(
    q: Tensor, k: Tensor, v: Tensor, row: Tensor, j: Tensor, seen: Tensor, own: Scores
) -> tuple[Tensor, Tensor]:
    """Compute attention of queries at indices (b|1 1 G c) to keys at (b|1 h|1 G s), by a mask (b|1 h|1 G c s)."""
    out, lse = group_outputs(q, k, v, row, j, seen, own)
    lse = _shift_back(lse, row, q.shape[2], -torch.inf)
    return _shift_back(out, row, q.shape[2]), lse.squeeze(-1)


def group_outputs(
    q: Tensor, k: Tensor, v: Tensor, row: Tensor, j: Tensor, seen: Tensor, own: Scores
) -> tuple[Tensor, Tensor]:
    """Compute `index_scores` by group, (b h G c d), with log-sum-exps (b h G c 1); `row` may differ between heads."""
    scores, seen = group_scores(q, k, row, j, seen, own)
    fully_masked = ~seen.any(dim=-1, keepdim=True)
    lse = scores.masked_fill(~(seen | fully_masked), -torch.inf).logsumexp(dim=-1, keepdim=True)
    weights = (scores - lse).masked_fill(~seen, -torch.inf).exp()
    out = F.dropout(weights, own.dropout).to(v.dtype) @ gather_rows(v, j)
    return out, lse.masked_fill(fully_masked, -torch.inf)


def group_scores(q: Tensor, k: Tensor, row: Tensor, j: Tensor, seen: Tensor, own: Scores) -> tuple[Tensor, Tensor]:
    """Return the scores (b h G c s) of queries at indices (b|1 h|1 G c) and keys at (b|1 h|1 G s), and their mask."""
    i = row.clamp(max=max(q.shape[2] - 1, 0))
    with disable_autocast(q):
        scores = (to_float(gather_rows(q, i)) * own.scale) @ to_float(gather_rows(k, j)).mT
    b = torch.arange(q.shape[0], device=q.device)[:, None, None, None, None]
    where = b, own.head_index(q.shape[1], q.device), i.unsqueeze(-1), j.unsqueeze(-2)
    if own.bias is not None:
        scores = scores + own.bias(*where)
    return scores, seen if own.mask is None else seen & own.mask(*where)


def _shift_back(t: Tensor, row: Tensor, rows: int, filler: float = 0.0) -> Tensor:
    """Scatter groups (b h G c d) to queries (b h i d); those in no group get the filler."""
    flat, count = t.flatten(2, 3), row.shape[2] * row.shape[3]
    place = torch.arange(count, device=t.device).expand(row.shape[0], -1)
    found = torch.full((row.shape[0], rows + 1), count, device=t.device)
    found = found.scatter(1, row.flatten(1), place)[:, :rows]
    flat = F.pad(flat, (0, 0, 0, 1), value=filler)
    return gather_rows(flat, found[:, None, None]).squeeze(2)


def run_by_formula(
    q: Tensor, k: Tensor, v: Tensor, branches: tuple[Branch, ...], grid: Grid, own: Scores,
    others: Sequence[tuple[Tensor, Tensor]] = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Merge attention to the keys of branches, to added keys, and `others`:  b h i d, log-sum-exps b h i."""
    parts = [*others]
    marks = mark_none if grid.marks is None else _lookup_marks(grid.marks)
    for branch in branches:
        group = get_group(branch.layout, grid)
        if 0 in group.queries.shape or 0 in group.keys.shape:
            continue
        parts.append(_group_scores(q, k, v, group, lambda i, j, b=branch: b.sees(i, j, marks), grid, own))
    if own.added:
        parts.append(prefix_scores(q, k, v, own))
    return concat_groups(parts, q, v)


def prefix_scores(q: Tensor, k: Tensor, v: Tensor, own: Scores) -> tuple[Tensor, Tensor]:
    """Compute attention of all queries to the added keys."""
    row = torch.arange(q.shape[2], device=q.device)[None, None, None]
    front = torch.arange(own.added, device=q.device)[None, None, None]
    seen = torch.ones((), dtype=torch.bool, device=q.device).expand(1, 1, 1, q.shape[2], own.added)
    return index_scores(q, k, v, row, front, seen, own)


def concat_groups(parts: list[tuple[Tensor, Tensor]], q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Merge all parts; zeros and -inf if there are none."""
    if not parts:
        nothing = v.new_zeros(*q.shape[:-1], v.shape[-1])
        return nothing, torch.full(q.shape[:-1], -torch.inf, dtype=at_least_float(q.dtype), device=q.device)
    return parts[0] if len(parts) == 1 else merge_outputs(parts)


def mark_none(positions: Tensor) -> Tensor:
    return torch.zeros_like(positions, dtype=torch.bool)


def _lookup_marks(marks: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function of positions (b|1 h|1 ...), True where they are marked; -1 is not."""

    def of(positions: Tensor) -> Tensor:
        row = torch.arange(marks.shape[0], device=marks.device).reshape(-1, *[1] * (positions.ndim - 1))
        return marks[row, positions.clamp(min=0)] & (positions >= 0)

    return of
