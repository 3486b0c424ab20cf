"""Pattern that begins after the first tokens, such as that of an image after its text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.flags.checks import format_value
from x_transformers.patterns.base import Mix, Pattern, as_pattern, ceil_div, is_pattern, pattern
from x_transformers.patterns.blocks import AtRandom
from x_transformers.patterns.branches import Branch, Columns, GatherRows, Listed, Reach


@pattern('behind')
class Behind(Pattern):
    """Pattern `of` for the tokens from `first` on, as if the sequence began there; earlier queries attend to nothing.

    `Global(first) | Behind(Row(32), first)` is an image after a text that all pixels attend to.  Ramesh et al. 2021,
    arXiv:2102.12092
    """

    of: Pattern
    first: int

    def check(self) -> None:
        self.size_of('first')
        if not is_pattern(self.of):
            self.refuse('of', 'a pattern, its dict, or a name')
        object.__setattr__(self, 'of', as_pattern(self.of, 'of'))
        for one in get_parts(self.of):
            if isinstance(one, (Mix, AtRandom)) or one.marked:
                self.refuse('of', f'without Mix, marks and random blocks, but it has {format_value(one)}')

    def shift_positions(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return positions counted from `first`, and where both are at least 0."""
        own, key = i - self.first, j - self.first
        return own.clamp(min=0), key.clamp(min=0), (own >= 0) & (key >= 0)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        own, key, both = self.shift_positions(i, j)
        return self.of.visible(own, key, marks) & both

    def parts(self) -> tuple[Pattern, ...]:
        return (self.of,)

    def map_parts(self, function: Callable[[Any], Pattern]) -> Pattern:
        return replace(self, of=function(self.of))

    def length(self, n: int) -> int:
        return max(n - self.first, 0)

    def keys_bound(self, n: int, causal: bool) -> int:
        return self.of.keys_bound(self.length(n), causal)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return tuple([self.shift_branch(branch, n) for branch in self.of.branches(self.length(n), causal)])

    def shift_branch(self, branch: Branch, n: int) -> Branch:
        def sees(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
            own, key, both = self.shift_positions(i, j)
            return branch.sees(own, key, marks) & both

        layout, first = branch.layout, self.first
        if isinstance(layout, Reach):
            # Chunks still begin at 0: the tokens of a shifted chunk are in one of them and the two next to it.
            more = 0 if first % (layout.size * layout.stride) == 0 else layout.size - 1
            return Branch(layout._replace(before=layout.before + more, after=layout.after + more), sees)
        if isinstance(layout, Listed):
            keys = shift_lists(layout.keys, layout.size, first, ceil_div(n, layout.size))
            return Branch(Listed(layout.size, keys), sees)
        if isinstance(layout, Columns):
            return Branch(Columns(layout.keys + first), sees)
        return Branch(GatherRows(layout.queries + first), sees)

    def of_length(self, n: int) -> Pattern:
        return replace(self, of=self.of.of_length(self.length(n)))

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        return replace(self, of=self.of.of_lengths((lengths - self.first).clamp(min=0), self.length(n)))

    @property
    def reach(self) -> int | None:
        return self.of.reach

    @property
    def size(self) -> int | None:
        return None if self.of.size is None else self.first + self.of.size


def get_parts(one: Pattern) -> list[Pattern]:
    return [one, *(inner for part in one.parts() for inner in get_parts(part))]


def shift_lists(keys: Tensor, size: int, first: int, chunks: int) -> Tensor:
    """Shift lists of keys (.. N k) from chunks that begin at `first` to `chunks` chunks that begin at 0."""
    whole, part = divmod(first, size)
    moved = torch.where(keys >= 0, keys + first, -1)
    behind = max(chunks - whole - keys.shape[-2], part > 0)
    moved = F.pad(moved, (0, 0, whole, behind), value=-1)
    if part == 0:
        return moved
    # A chunk has the end of one shifted chunk and the beginning of the next.
    before = F.pad(moved, (0, 0, 1, 0), value=-1)[..., :-1, :]
    twice = (moved.unsqueeze(-1) == before.unsqueeze(-2)).any(dim=-1)
    joined = torch.cat((before, moved.masked_fill(twice, -1)), dim=-1)
    joined = joined.sort(dim=-1, descending=True).values
    if keys.ndim == 4:  # Lists per sequence keep their width: reading it would need the values of the lengths.
        return joined
    return joined[..., : max(int((joined >= 0).sum(dim=-1).amax()), 1)]
