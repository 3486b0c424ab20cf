"""Kernel calls that together compute a branch, of views of queries and keys where possible, else of gathered ones.

Axes: B batch of the kernel, h heads, c queries, s keys, e features. A `Piece` has two sides, each of which reads its
part of a tensor b h j e as B h c e, and writes or adds it back; and a mask of 0 and -inf, which broadcasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from x_transformers.core.rows import Pointwise
from x_transformers.flags.checks import Maybe
from x_transformers.patterns.base import ceil_div
from x_transformers.patterns.branches import Branch, Columns, Listed, Reach
from x_transformers.patterns.engine.formula import mark_none
from x_transformers.patterns.engine.layouts import Grid

# Entries of a mask, and of windows of keys, that are made at once: they fit in the caches of a CPU.
MASK, WINDOWS = 2**21, 2**22


class Slab(NamedTuple):
    """Chunks of a range of the `batch`: `classes` adjacent residue classes, `count` chunks of each, `jump` apart, with
    `length` tokens, `stride` apart. It is a view if only one of these axes is longer than 1."""

    batch: tuple[int, int]
    start: int
    classes: int
    count: int
    jump: int
    length: int
    stride: int = 1

    def view(self, t: Tensor) -> Tensor:
        first, last = self.batch
        rows, heads, row = t.stride()[:3]
        size = (last - first, self.classes, self.count, t.shape[1], self.length, *t.shape[3:])
        stride = (rows, row, self.jump * row, heads, self.stride * row, *t.stride()[3:])
        return t.as_strided(size, stride, t.storage_offset() + first * rows + self.start * row)

    def read(self, t: Tensor) -> Tensor:
        return self.view(t).flatten(0, 2)

    def write(self, t: Tensor, part: Tensor) -> None:
        view = self.view(t)
        view.copy_(part.unflatten(0, view.shape[:3]))

    def add(self, t: Tensor, part: Tensor) -> None:
        """Add a part. Chunks may overlap: only the parts that do not are added at once."""
        apart = self.jump // self.stride if self.count > 1 else self.length
        for at in range(0, self.length, apart):
            some = min(apart, self.length - at)
            view = self._replace(start=self.start + at * self.stride, length=some).view(t)
            view.add_(part[:, :, at : at + some].unflatten(0, view.shape[:3]))


class Some(NamedTuple):
    """Rows at an index (j), or (b j) per sequence."""

    index: Tensor

    def wide(self, t: Tensor) -> Tensor:
        index = self.index[:, None, :].reshape(self.index.shape[0], 1, -1, *[1] * (t.ndim - 3))
        return index.expand(-1, t.shape[1], -1, *t.shape[3:])

    def read(self, t: Tensor) -> Tensor:
        return t.index_select(2, self.index) if self.index.ndim == 1 else t.gather(2, self.wide(t))

    def write(self, t: Tensor, part: Tensor) -> None:
        if self.index.ndim == 1:
            t.index_copy_(2, self.index, part)
        else:
            t.scatter_(2, self.wide(t), part)

    def add(self, t: Tensor, part: Tensor) -> None:
        if self.index.ndim == 1:
            t.index_add_(2, self.index, part)
        else:
            t.scatter_add_(2, self.wide(t), part)


class Lists(NamedTuple):
    """Lists of rows, h|1 N s, of a range of the batch."""

    batch: tuple[int, int]
    index: Tensor

    def flat(self, t: Tensor) -> Tensor:
        return self.index.flatten(1)[None, :, :, None].expand(t.shape[0], t.shape[1], -1, t.shape[-1])

    def read(self, t: Tensor) -> Tensor:
        own = t[slice(*self.batch)]
        shared = self.index.shape[0] == 1
        found = own.index_select(2, self.index.flatten()) if shared else own.gather(2, self.flat(own))
        return found.unflatten(2, self.index.shape[1:]).transpose(1, 2).flatten(0, 1)

    def add(self, t: Tensor, part: Tensor) -> None:
        own = t[slice(*self.batch)]
        part = part.unflatten(0, (len(own), -1)).transpose(1, 2).flatten(2, 3)
        if self.index.shape[0] == 1:
            own.index_add_(2, self.index.flatten(), part)
        else:
            own.scatter_add_(2, self.flat(own), part)


class Slice(NamedTuple):
    """Adjacent rows of the whole batch."""

    start: int
    stop: int

    def read(self, t: Tensor) -> Tensor:
        return t[:, :, self.start : self.stop]

    def write(self, t: Tensor, part: Tensor) -> None:
        self.read(t).copy_(part)

    def add(self, t: Tensor, part: Tensor) -> None:
        self.read(t).add_(part)


Side = Slab | Some | Lists | Slice


class Piece(NamedTuple):
    """Queries and keys of one kernel call, and the mask that is added to their scores, or None."""

    queries: Any  # A side that is also written to.
    keys: Side
    mask: Maybe[Tensor]


class Family(NamedTuple):
    """Chunks of one residue class: `count` chunks of `size` queries from `start` on, with `reads` keys from `first`
    on, counted in the class."""

    start: int
    count: int
    size: int
    first: int
    reads: int


def split_chunks(span: Reach, first: int, n: int) -> list[Family]:
    """Split n positions, with queries from `first` on, into chunks with all of their keys, and the rest."""
    size, before, after, _ = span
    if first >= n:
        return []
    start = max(ceil_div(first, size), ceil_div(before, size))
    stop = (n - after) // size if n > after else 0
    if stop <= start:
        begin = max(first // size * size - before, 0)
        return [Family(first, 1, n - first, begin, n - begin)]
    found = []
    if first < start * size:
        begin = max(first // size * size - before, 0)
        found.append(Family(first, 1, start * size - first, begin, min(start * size + after, n) - begin))
    found.append(Family(start * size, stop - start, size, start * size - before, before + size + after))
    if stop * size < n:
        begin = stop * size - before
        found.append(Family(stop * size, 1, n - stop * size, begin, n - begin))
    return found


class Cut(NamedTuple):
    """Sizes and masks from which pieces are made.

    entry    masks and biases of pairs, as numbers to add, or None; j counts the `added` keys, too
    alone    True if the entry depends on distances only
    """

    grid: Grid
    batch: int
    heads: int
    width: int
    added: int
    causal: bool
    entry: Maybe[Pointwise]
    alone: bool
    dtype: torch.dtype

    def mask(self, branch: Branch, i: Tensor, j: Tensor, b: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the mask of queries (B h|1 c 1) and keys (B h|1 1 s) of sequences b (B|1 1 1 1)."""
        table = self.grid.marks
        seen = branch.sees(i, j, mark_none if table is None else lambda positions: table[b, positions])
        seen = seen & (j <= i) if self.causal else seen
        seen = seen if real is None else seen & real
        numbers = _hides_all(~seen, self.dtype)
        return numbers if self.entry is None else numbers + self.of_entry(i, j + self.added, b)

    def of_entry(self, i: Tensor, j: Tensor, b: Tensor) -> Tensor:
        heads = torch.arange(self.heads, device=i.device)[:, None, None]
        return self.entry(b, heads, i - self.grid.first, j)

    def all_rows(self) -> Tensor:
        return self.grid.count(self.batch)[:, None, None, None]

    def is_periodic(self, branch: Branch, step: int) -> bool:
        """Return True if visibility is the same `step` positions later."""
        return branch.period is not None and step % branch.period == 0


def _hides_all(where: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the numbers that hide scores: half of the lowest one, so that sums are finite."""
    return torch.zeros(where.shape, dtype=dtype, device=where.device).masked_fill_(where, torch.finfo(dtype).min / 2)


def get_pieces(branch: Branch, cut: Cut) -> Iterator[Piece]:
    """Return the pieces of a branch; each query is in at most one of them."""
    layout = branch.layout
    if isinstance(layout, Reach):
        return _pieces_of_span(branch, layout, cut)
    if isinstance(layout, Listed):
        return _pieces_of_lists(branch, layout, cut)
    return (
        _pieces_of_columns(branch, layout.keys, cut)
        if isinstance(layout, Columns)
        else _pieces_of_rows(branch, layout.queries, cut)
    )


def prefix_pieces(cut: Cut) -> Iterator[Piece]:
    """Yield one piece of all queries and the added keys."""
    rows, mask = cut.grid.n - cut.grid.first, None
    if cut.entry is not None:
        i = cut.grid.count(rows)[:, None] + cut.grid.first
        mask = cut.of_entry(i, cut.grid.count(cut.added), cut.all_rows())
        mask = mask.to(cut.dtype) + torch.zeros(1, 1, rows, cut.added, dtype=cut.dtype)
    yield Piece(Slice(0, rows), Slice(0, cut.added), mask)


# Neighbors.


def residue_classes(stride: int, first: int, n: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield ranges (begin, end) of residue classes mod the stride, with their range of queries (first, last)."""
    begin, known = 0, None
    for r in range(min(stride, n) + 1):
        own = None if r == min(stride, n) else (max(ceil_div(first - r, stride), 0), ceil_div(n - r, stride))
        if own != known:
            if known is not None:
                yield begin, r, *known
            begin, known = r, own


def _pieces_of_span(branch: Branch, span: Reach, cut: Cut) -> Iterator[Piece]:
    for begin, end, first, last in residue_classes(span.stride, cut.grid.first, cut.grid.n):
        for own in split_chunks(span, first, last):
            few = max(WINDOWS // (cut.heads * own.reads * cut.width * own.count), 1)
            together = end - begin if own.count == 1 else min(end - begin, few)
            for residue in range(begin, end, together):
                yield from _pieces_of_chunks(branch, own, cut, residue, min(together, end - residue), span.stride)


def _pieces_of_chunks(
    branch: Branch, own: Family, cut: Cut, residue: int, together: int, stride: int
) -> Iterator[Piece]:
    """Yield chunks of some residue classes, as many at a time as caches hold."""
    grid, jump = cut.grid, stride * own.size
    start, first = residue + own.start * stride, residue + own.first * stride
    queries, keys = grid.count(own.size) * stride, grid.count(own.reads) * stride
    alike = (own.count == 1 or cut.is_periodic(branch, jump)) and (together == 1 or cut.is_periodic(branch, 1))
    alike = alike and cut.grid.marks is None and (cut.entry is None or cut.alone)
    one = own.reads * together
    some = max(WINDOWS // (cut.heads * cut.width * one), 1)
    if not alike:
        some = min(some, max(MASK // (own.size * one * (1 if cut.entry is None else cut.heads)), 1))
    some = min(some, own.count)
    rows = min(max(WINDOWS // (cut.heads * cut.width * one * some), 1), cut.batch)
    if not alike:
        rows = min(rows, max(MASK // (own.size * one * some * (1 if cut.entry is None else cut.heads)), 1))
    if own.count == together == 1:
        rows = cut.batch
    mask = None
    for at in range(0, own.count, some):
        chunks = min(some, own.count - at)
        places = grid.count(together)[:, None] + (grid.count(chunks) + at) * jump  # r N
        for row in range(0, cut.batch, rows):
            several = min(rows, cut.batch - row)
            if mask is None or not alike:
                further = (places[:1, :1] if alike else places.expand(several, -1, -1)).reshape(-1, 1, 1, 1)
                b = (grid.count(several) + row).repeat_interleave(together * chunks)[: len(further), None, None, None]
                mask = cut.mask(branch, queries[:, None] + (start + further), keys + (first + further), b)
            shape = (row, row + several), together, chunks, jump
            yield Piece(
                Slab(shape[0], start - grid.first + at * jump, *shape[1:], own.size, stride),
                Slab(shape[0], first + cut.added + at * jump, *shape[1:], own.reads, stride),
                mask,
            )


# Gathered rows.


def _pieces_of_lists(branch: Branch, layout: Listed, cut: Cut) -> Iterator[Piece]:
    grid, size = cut.grid, layout.size
    keys = layout.keys.to(grid.device)
    keys = (keys if keys.ndim == 3 else keys[None]).masked_fill(keys >= grid.n, -1)  # h|1 N s
    reads = keys.shape[-1]
    some = max(WINDOWS // (cut.heads * reads * cut.width), 1)
    masks = keys.shape[0] if cut.entry is None else cut.heads
    some = min(some, max(MASK // (size * reads * masks), 1))
    alike = grid.marks is None and (cut.entry is None or cut.alone)
    start = grid.first
    while start < grid.n:
        chunk = start // size
        whole = start % size == 0 and start + size <= grid.n
        chunks = min(some, grid.n // size - chunk) if whole else 1
        stop = min((chunk + chunks) * size, grid.n)
        length = size if whole else stop - start
        own = keys[:, chunk : chunk + chunks]
        i = (grid.count(chunks)[:, None] * size + grid.count(length) + start)[:, None, :, None]
        j = own.transpose(0, 1)[:, :, None]
        each = WINDOWS // (cut.heads * reads * cut.width * chunks), MASK // (length * reads * chunks * masks)
        rows, mask = min(max(min(each), 1), cut.batch), None
        for row in range(0, cut.batch, rows):
            several = min(rows, cut.batch - row)
            if mask is None or not alike or several < rows:
                b = (grid.count(1 if alike else several) + row).repeat_interleave(chunks)[:, None, None, None]
                times = 1 if alike else several, 1, 1, 1
                mask = cut.mask(branch, i.repeat(times), j.clamp(min=0).repeat(times), b, (j >= 0).repeat(times))
                mask = mask.repeat(several // times[0], 1, 1, 1)
            shape = row, row + several
            yield Piece(
                Slab(shape, start - grid.first, 1, chunks, size, length),
                Lists(shape, own.clamp(min=0) + cut.added),
                mask,
            )
        start = stop


def _choose_pieces(positions: Tensor | None, cut: Cut, first: int) -> tuple[Tensor, Tensor | None]:
    """Return positions from `first` on, k; for None the marked ones, b k, with a mask of those that exist, b 1 1 k."""
    if positions is not None:
        positions = positions.to(cut.grid.device)
        return positions[(positions >= first) & (positions < cut.grid.n)], None
    marks = cut.grid.marks[:, first:]
    counts = marks.sum(dim=-1, keepdim=True)
    most = int(counts.max()) if marks.numel() else 0
    order = marks.byte().topk(most, dim=-1).indices
    return order + first, (cut.grid.count(most) < counts)[:, None, None]


def _pieces_of_columns(branch: Branch, positions: Tensor | None, cut: Cut) -> Iterator[Piece]:
    grid = cut.grid
    keys, real = _choose_pieces(positions, cut, 0)
    if keys.shape[-1] == 0:
        return
    entries = keys.shape[-1] * (1 if real is None else cut.batch) * (1 if cut.entry is None else cut.heads)
    some = max(MASK // entries, 64)
    for start in range(grid.first, grid.n, some):
        stop, own = min(start + some, grid.n), keys
        if cut.causal and real is None:
            own = keys[keys < stop]
        if own.shape[-1] == 0:
            continue
        i, j = (grid.count(stop - start) + start)[:, None], own if real is None else own[:, None, None]
        mask = cut.mask(branch, i, j, cut.all_rows(), real)
        mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape)
        yield Piece(Slice(start - grid.first, stop - grid.first), Some(own + cut.added), mask)


def _pieces_of_rows(branch: Branch, positions: Tensor | None, cut: Cut) -> Iterator[Piece]:
    grid = cut.grid
    queries, real = _choose_pieces(positions, cut, grid.first)
    j = grid.count(grid.n)
    entries = grid.n * (1 if real is None else cut.batch) * (1 if cut.entry is None else cut.heads)
    some = max(MASK // entries, 16)
    for at in range(0, queries.shape[-1], some):
        own = queries[..., at : at + some]
        i = own[:, None] if real is None else own[:, None, :, None]
        mask = cut.mask(branch, i, j, cut.all_rows(), None if real is None else real[..., at : at + some].mT)
        mask = mask.reshape(*[1] * (4 - mask.ndim), *mask.shape)
        yield Piece(Some(own - grid.first), Slice(cut.added, cut.added + grid.n), mask)
