"""Patterns by torch's FlexAttention, for large calls on a GPU: one kernel that leaves out blocks of keys that no query
of a block sees."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.rows import Pointwise, Rows
from x_transformers.flags import Features
from x_transformers.kernels.flex import attempted, fits, in_one_dtype
from x_transformers.kernels.patterns.placement import Placement
from x_transformers.patterns import Pattern
from x_transformers.patterns.branches import Branch, Columns, Rows as AllKeys, Span

Place = Callable[[Pattern], Placement]


def by_flex(
    q: Tensor, k: Tensor, v: Tensor, call: Call, patterns: Sequence[Pattern], marks: Tensor | None, on: Features,
    place_of: Place,
) -> Tensor | None:  # fmt: skip
    """Attention of b h i e to b h j e, whose heads have these patterns; None where the gathered keys are fewer, or for
    calls that FlexAttention does not take.

    place_of    where the tokens stand that a pattern counts
    """
    if not call.many or call.places is not None or torch.compiler.is_compiling():
        return None
    kinds = tuple(dict.fromkeys(patterns))
    if not all(in_whole_blocks(one, call) for one in kinds):
        return None
    places = tuple(map(place_of, kinds))
    if any(place.table is not None or place.lengths is not None for place in places):
        return None
    own: Any = copy.copy(call)
    own.masks = [*call.masks, Shown(kinds, [kinds.index(one) for one in patterns], call, marks, places)]
    return attempted(*in_one_dtype(q, k, v), call=own, on=on) if fits(own, on) else None


def in_whole_blocks(pattern: Pattern, call: Call) -> bool:
    """Whether a kernel that computes whole blocks computes little that is hidden: for neighbours, and for keys and
    queries that all meet. A dilation or a stride spreads few keys over all blocks."""
    return not pattern.cannot_cache and all(neighbours(one) for one in pattern.branches(call.keys, call.causal))


def neighbours(branch: Branch) -> bool:
    layout = branch.layout
    return layout.stride == 1 if isinstance(layout, Span) else isinstance(layout, (Columns, AllKeys))


def bounds_of(place: Placement, batch: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """Return where the counted tokens of each row begin (b), and where the keys outside begin and end (b 2); None for
    the first key, and for none."""
    start = place.offset
    if place.count == 0:
        return start, None
    first = place.outside_keys(device)[:, :1].expand(batch, 1)
    start = torch.full((batch,), place.count, device=device) if start is None else start
    return start, torch.cat((first, first + place.count), dim=1)


class Shown(Rows):
    """What the patterns of heads show, as a mask of a call.

    kinds, of_head    the patterns, and which of them each head has
    places            where the tokens stand that each pattern counts
    """

    def __init__(
        self, kinds: tuple[Pattern, ...], of_head: list[int], call: Call, marks: Tensor | None,
        places: tuple[Placement, ...],
    ) -> None:  # fmt: skip
        device = call.x.device
        self.kinds = kinds
        self.marks: Any = marks
        self.starts, self.fronts = zip(*(bounds_of(place, call.batch, device) for place in places), strict=True)
        self.of_head = torch.tensor(of_head, device=device) if len(kinds) > 1 else None
        self.behind = torch.full((), call.keys - call.rows, device=device)
        super().__init__(None, entry=self.function, made_of=(kinds, tuple(of_head), marks, *self.starts, *self.fronts))

    def of(self, rows: slice, keys: slice) -> Tensor:
        device, batch = self.behind.device, [t for t in (self.marks, *self.starts) if t is not None]
        sizes = len(batch[0]) if batch else 1, 1 if self.of_head is None else len(self.of_head)
        b, h, i, j = (torch.arange(at.start, at.stop, device=device) for at in (*map(slice, [0, 0], sizes), rows, keys))
        return self.function()(b[:, None, None, None], h[:, None, None], i[:, None], j)

    def function(self) -> Pointwise:
        """A function that holds patterns and tensors alone, by which calls are known that are alike."""
        kinds, starts, of_head, behind, marks = self.kinds, self.starts, self.of_head, self.behind, self.marks
        fronts = self.fronts

        def one_of(at: int, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            start, front = starts[at], fronts[at]
            if start is None:
                return kinds[at].visible(i, j, None if marks is None else lambda place: marks[b, place])
            known = None if marks is None else lambda place: marks[b, place + start[b]]
            seen = kinds[at].visible(i - start[b], j - start[b], known)
            if front is None:
                return seen
            first, last = front[b, 0], front[b, 1]
            return seen | ((i >= first) & (i < last)) | ((j >= first) & (j < last))

        def entry(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            i = i + behind
            seen = one_of(0, b, i, j)
            if of_head is not None:
                for at in range(1, len(kinds)):
                    seen = torch.where(of_head[h] == at, one_of(at, b, i, j), seen)
            return seen

        return entry
