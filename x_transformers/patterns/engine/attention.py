"""Attention of one call with patterns: its heads, positions and branches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.rows import BlockwiseTerm, Pointwise, and_entries, gather_along
from x_transformers.flags.checks import Maybe
from x_transformers.patterns import Branch, Global, Pattern
from x_transformers.patterns.engine.flash import get_numbers, run_flash_pattern, takes
from x_transformers.patterns.engine.formula import Scores, concat_groups, index_scores, prefix_scores, run_by_formula
from x_transformers.patterns.engine.layouts import Grid
from x_transformers.patterns.engine.placement import Placement

# Up to this many queries each gathers its own keys: more share those of a chunk.
FEW_QUERIES = 4


def attend_patterns(
    q: Tensor, k: Tensor, v: Tensor, call: Call, patterns: Sequence[Pattern], marks: Maybe[Tensor] = None
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute attention of queries (b h i e) to the visible keys (b h j e) of their head's pattern, and to added keys.

    `marks` (b j) are True for marked keys, without added ones. Return the output, b h i d, and the log-sum-exp of
    scores, b h i, or None if it is not known.
    """
    heads: dict[Pattern, list[int]] = {}
    for head, one in enumerate(patterns):
        heads.setdefault(one.any_head(), []).append(head)
    if len(heads) == 1:
        return _attend_heads(q, k, v, call, patterns[0].joined(patterns), marks, None)
    outs, order = [], [head for own in heads.values() for head in own]
    for own in heads.values():
        index: Any = torch.tensor(own, device=q.device)
        parts = (t[:, own[0] : own[-1] + 1] if own[-1] - own[0] < len(own) else t[:, index] for t in (q, k, v))
        whole: Any = patterns[own[0]].joined([patterns[head] for head in own])
        outs.append(_attend_heads(*parts, call=call, pattern=whole, marks=marks, heads=index)[0])
    out = torch.cat(outs, dim=1)
    if order == sorted(order):
        return out, None
    return out[:, torch.tensor(order, device=q.device).argsort()], None


def _attend_heads(
    q: Tensor, k: Tensor, v: Tensor, call: Call, pattern: Pattern, marks: Tensor | None, heads: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Compute `attend_patterns` for heads of one pattern."""
    place = Placement.of(call, pattern)
    if call.token_idx is not None or place.by_row:
        return _attend_queries(q, k, v, call, pattern, marks, heads, place)
    # Tokens outside of the pattern are added keys, and their queries are computed separately.
    count, own = place.count, get_scores(call, call.masks, heads)
    first = max(count - (call.keys - call.q_len), 0)
    text, n = own if count == 0 else skip_queries(own, first, count), call.keys - count
    rows = call.q_len - first
    if first and rows == 0:
        return _attend_outside(q, k, v, own)
    at = torch.arange(n - rows, n, device=q.device) if _is_few(call) and not takes(q, k, v, call) else None
    grid = Grid(n, n - rows if at is None else 0, q.device, at, None if marks is None else marks[:, count:])
    rest = q if first == 0 else q[:, :, first:]
    out, lse = attend_branches(rest, k, v, call, _get_branches(pattern, n, call, marks), grid, text)
    if first == 0:
        return out, lse
    outside, sums = _attend_outside(q[:, :, :first], k, v, own)
    return torch.cat((outside, out), dim=2), None if lse is None else torch.cat((sums, lse), dim=2)


def _attend_queries(
    q: Tensor, k: Tensor, v: Tensor, call: Call, pattern: Pattern, marks: Tensor | None, heads: Tensor | None,
    place: Placement,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute `attend_patterns` where positions differ between sequences, or queries are not the last tokens."""
    at, n = None, call.keys - place.count
    if call.token_idx is not None or _is_few(call) or call.q_len < call.keys:
        at = call.of_queries(place.positions(call.keys, q.device))
    own = dataclasses.replace(get_scores(call, call.masks, heads), place=place)
    if marks is not None:
        index, _ = place.indices(torch.arange(n, device=q.device).expand(len(marks), -1), call.keys)
        marks = marks.gather(-1, index)
    grid = Grid(n, 0, q.device, at, marks, call.keys)
    others = outside_parts(q, k, v, call, own) if place.count else []
    return run_by_formula(q, k, v, _get_branches(pattern, n, call, marks), grid, own, others)


def _get_branches(pattern: Pattern, n: int, call: Call, marks: Tensor | None) -> tuple[Branch, ...]:
    branches = pattern.branches(n, call.causal)
    return branches if marks is not None else tuple([one for one in branches if not one.of_marks])


def attend_branches(
    q: Tensor, k: Tensor, v: Tensor, call: Call, branches: tuple[Branch, ...], grid: Grid, own: Scores
) -> tuple[Tensor, Tensor | None]:
    """Compute attention by branches, with positions that count keys after the added ones."""
    if grid.at is not None or not takes(q, k, v, call):
        return run_by_formula(q, k, v, branches, grid, own)
    entry = get_numbers(own.mask, own.bias, q.dtype)
    if entry is not None and own.heads is not None:
        entry = _select_heads(entry, own.heads)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run_by_formula(q, k, v, branches, grid, own)[0]

    return run_flash_pattern(q, k, v, call, branches, grid, own.added, own.mask is not None, entry, formula), None


def get_scores(call: Call, masks: Sequence[BlockwiseTerm], heads: Tensor | None = None) -> Scores:
    added = call.total_keys - call.keys
    each = tuple([one.pointwise(added, True) for one in masks])
    mask, bias = and_entries(each) if each else None, call.bias_entry()
    return Scores(call.scale, call.causal, mask, bias, added, call.dropout, heads)


# Tokens outside of the pattern.


def skip_queries(own: Scores, rows: int, keys: int) -> Scores:
    """Return the scores of the queries after the first `rows`, for which the first `keys` are added keys, too."""

    def skip(entry: Pointwise | None) -> Pointwise | None:
        return entry if entry is None or rows == 0 else lambda b, h, i, j: entry(b, h, i + rows, j)

    return dataclasses.replace(own, mask=skip(own.mask), bias=skip(own.bias), added=own.added + keys)


def _attend_outside(q: Tensor, k: Tensor, v: Tensor, own: Scores) -> tuple[Tensor, Tensor]:
    """Compute attention of the first queries, which are outside of the pattern, to all keys."""
    row, key = torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=q.device)
    seen = torch.ones(len(row), len(key), dtype=torch.bool, device=q.device)
    seen = key <= row.unsqueeze(-1) + own.added if own.causal else seen
    return index_scores(q, k, v, row[None, None, None], key[None, None, None], seen[None, None, None], own)


def outside_parts(q: Tensor, k: Tensor, v: Tensor, call: Call, own: Scores) -> list[tuple[Tensor, Tensor]]:
    """Compute attention of all queries to keys outside of the pattern, and of queries outside to the other keys, where
    sequences differ."""
    key, row = torch.arange(call.keys, device=q.device), torch.arange(call.q_len, device=q.device)
    own_keys, is_outside = own.place.outside_keys(q.device), own.place.is_outside(call.keys, q.device)
    at = call.of_queries(key)
    at = (at if at.ndim == 2 else at[None])[:, None, None, :, None]  # Index of the key at each query.
    there = own_keys[:, None, None]
    seen = there.unsqueeze(-2) <= at if own.causal else torch.ones_like(there.unsqueeze(-2) <= at)
    parts = [index_scores(q, k, v, row[None, None, None], there + own.added, seen, own)]
    if call.token_idx is None:  # Only the queries outside.
        which = there - (call.keys - call.q_len)
        which = torch.where((which >= 0) & (which < call.q_len), which, call.q_len)
        at, is_row = there.unsqueeze(-1), (which < call.q_len).unsqueeze(-1)
    else:
        which = row[None, None, None]
        is_row = gather_along(is_outside.expand(call.batch, -1), at.flatten(1).expand(call.batch, -1), -1)
        is_row = is_row[:, None, None, :, None]
    seen = is_row & ~is_outside[:, None, None, None]
    seen = seen & (key <= at) if own.causal else seen
    return [*parts, index_scores(q, k, v, which, (key + own.added)[None, None, None], seen, own)]


def attend_context(q: Tensor, k: Tensor, v: Tensor, call: Call, pattern: Global, at: Tensor) -> tuple[Tensor, Tensor]:
    """Compute cross-attention to global keys, and of global queries to all keys of the context, and to added keys.

    Queries (b h i e) are at indices `at`, i or b i. Keys (b h j e) are counted from the first real one of each
    sequence. Return the output, b h i d, and log-sum-exps, b h i.
    """
    own, rows = get_scores(call, call.masks), q.shape[2]
    parts = [prefix_scores(q, k, v, own)] if own.added else []
    if rows and call.keys:
        places, keys = pattern.places().to(q.device), torch.arange(call.keys, device=q.device)
        # Indices have axes of batch, heads and groups in front.
        place, each = Placement.among(call.keys, None, None, call.key_mask), torch.arange(rows, device=q.device)
        count = 1 if place.offset is None else len(place.offset)
        j, seen = (t[:, None, None] for t in place.indices(places.expand(count, -1), call.keys))
        seen = seen.unsqueeze(-2).expand(-1, -1, -1, rows, -1)
        parts.append(index_scores(q, k, v, each[None, None, None], j + own.added, seen, own))
        is_at = (at if at.ndim == 2 else at[None]).unsqueeze(-1) == places  # b|1 i g
        row = torch.where(is_at.any(dim=-2), is_at.to(torch.uint8).argmax(dim=-2), rows)[:, None, None]
        others = ~pattern.is_global(place.positions(call.keys, q.device))
        seen = (row < rows).unsqueeze(-1) & (others if others.ndim == 1 else others[:, None, None, None])
        parts.append(index_scores(q, k, v, row, (keys + own.added)[None, None, None], seen, own))
    return concat_groups(parts, q, v)


def _select_heads(entry: Pointwise, heads: Tensor) -> Pointwise:
    return lambda b, h, i, j: entry(b, heads[h], i, j)


def _is_few(call: Call) -> bool:
    """Return True for few queries and more keys."""
    return call.q_len == 1 or (
        not torch.compiler.is_compiling() and call.q_len <= FEW_QUERIES and call.q_len < call.keys
    )
