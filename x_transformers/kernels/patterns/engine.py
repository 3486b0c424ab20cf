"""The way of a call through patterns: which heads, which positions, which branches."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.rows import Pointwise, Rows, all_of, taken
from x_transformers.flags import Features
from x_transformers.kernels.patterns.flash import by_flash, numbers_of, takes
from x_transformers.kernels.patterns.flexed import by_flex
from x_transformers.kernels.patterns.formula import Scores, by_formula, of_front, of_index, together
from x_transformers.kernels.patterns.layouts import Grid
from x_transformers.patterns import Branch, Global, Pattern

# Queries up to which each reads keys of its own: more share those of a chunk.
FEW = 4


def attended(
    q: Tensor, k: Tensor, v: Tensor, call: Call, patterns: Sequence[Pattern], marks: Tensor | None = None,
    on: Features | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention of queries (b h i e) to the keys (b h j e) that the pattern of their head sees, and to those in front.

    marks      which of the keys, without those in front, are marked, b j
    on         the features of the layer, by which FlexAttention may take large calls on a GPU
    returns    b h i d, and the logarithms of what softmaxes divided by, b h i, if they are known
    """
    found = None if on is None else by_flex(q, k, v, call, patterns, marks, on, functools.partial(start_of, call))
    if found is not None:
        return found, None
    heads: dict[Pattern, list[int]] = {}
    for head, one in enumerate(patterns):
        heads.setdefault(one.any_head(), []).append(head)
    if len(heads) == 1:
        return of_heads(q, k, v, call, patterns[0].joined(patterns), marks, None)
    outs, order = [], [head for own in heads.values() for head in own]
    for own in heads.values():
        index = torch.tensor(own, device=q.device)
        parts = (t[:, own[0] : own[-1] + 1] if own[-1] - own[0] < len(own) else t[:, index] for t in (q, k, v))
        whole = patterns[own[0]].joined([patterns[head] for head in own])
        outs.append(of_heads(*parts, call, whole, marks, index)[0])
    out = torch.cat(outs, dim=1)
    if order == sorted(order):
        return out, None
    return out[:, torch.tensor(order, device=q.device).argsort()], None


def of_heads(
    q: Tensor, k: Tensor, v: Tensor, call: Call, pattern: Pattern, marks: Tensor | None, heads: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The same for heads of one pattern."""
    start, at = start_of(call, pattern), None
    few = is_few(call) and not takes(q, k, v, call)
    if call.places is not None or few or (start is not None and call.rows < call.keys):
        at = call.of_queries(torch.arange(call.keys, device=q.device))
        at = at if start is None else at - start.unsqueeze(-1)
    if marks is not None and start is not None:
        marks = taken(marks, (torch.arange(call.keys, device=q.device) + start[:, None]).clamp(max=call.keys - 1), -1)
    grid = Grid(call.keys, call.keys - call.rows if at is None else 0, q.device, at, marks)
    branches = pattern.branches(call.keys, call.causal)
    if marks is None:
        branches = tuple([one for one in branches if not one.of_marks])
    return of_branches(q, k, v, call, branches, grid, call.masks, heads, start)


def of_branches(
    q: Tensor, k: Tensor, v: Tensor, call: Call, branches: tuple[Branch, ...], grid: Grid, masks: Sequence[Rows],
    heads: Tensor | None = None, start: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The same by branches, under some of the masks."""
    own = scores_of(call, masks, heads, start)
    if grid.at is not None or start is not None or not takes(q, k, v, call):
        return by_formula(q, k, v, branches, grid, own)
    entry = numbers_of(own.mask, own.bias, q.dtype)
    if entry is not None and heads is not None:
        entry = of_some(entry, heads)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_formula(q, k, v, branches, grid, own)[0]

    return by_flash(q, k, v, call, branches, grid, own.mask is not None, entry, formula), None


def scores_of(call: Call, masks: Sequence[Rows], heads: Tensor | None = None, start: Tensor | None = None) -> Scores:
    added = call.total_keys - call.keys
    each = tuple([one.pointwise(added, True) for one in masks])
    mask, bias = all_of(each) if each else None, call.bias_entry()
    return Scores(call.scale, call.causal, mask, bias, added, call.dropout, heads, start)


def over_context(q: Tensor, k: Tensor, v: Tensor, call: Call, pattern: Global, at: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of queries (b h i e) at their places, i or b i, to the keys of a context (b h j e) and to those in
    front: all see the keys that are global, and queries that are global see the others too. b h i d, log-sums b h i."""
    own, rows = scores_of(call, call.masks), q.shape[2]
    parts = [of_front(q, k, v, own)] if own.added else []
    if rows and call.keys:
        places, keys = pattern.places().to(q.device), torch.arange(call.keys, device=q.device)
        # of_index:  axes of the batch, of heads, and of groups come first
        seen = (places < call.keys).expand(1, 1, 1, rows, -1)
        each, j = torch.arange(rows, device=q.device), places.clamp(max=call.keys - 1) + own.added
        parts.append(of_index(q, k, v, each[None, None, None], j[None, None, None], seen, own))
        is_at = (at if at.ndim == 2 else at[None]).unsqueeze(-1) == places  # b|1 i g
        row = torch.where(is_at.any(dim=-2), is_at.to(torch.uint8).argmax(dim=-2), rows)[:, None, None]
        seen = (row < rows).unsqueeze(-1) & ~pattern.chosen(keys)
        parts.append(of_index(q, k, v, row, (keys + own.added)[None, None, None], seen, own))
    return together(parts, q, v)


def of_some(entry: Pointwise, heads: Tensor) -> Pointwise:
    return lambda b, h, i, j: entry(b, heads[h], i, j)


def is_few(call: Call) -> bool:
    """Whether there are few queries of many keys."""
    return call.rows == 1 or (not torch.compiler.is_compiling() and call.rows <= FEW and call.rows < call.keys)


def start_of(call: Call, pattern: Pattern) -> Tensor | None:
    """The padding on the left of each row (b), if the pattern is not one of differences alone."""
    index = call.inputs.get('index')
    if index is None or pattern.of_differences:
        return None
    start = -index[:, 0]
    # where first keys have left, rows may have begun before: then only blocks must stay where they are
    return torch.where(start < 0, start % pattern.period, start) if call.summed else start
