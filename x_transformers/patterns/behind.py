"""A pattern that begins further on, such as that of an image behind its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.flags.checks import ConfigError, format_value
from x_transformers.patterns.base import Mix, Pattern, as_pattern, divide_exactly, is_pattern, pattern
from x_transformers.patterns.blocks import AtRandom
from x_transformers.patterns.branches import Branch, Columns, GatherRows, Listed, Reach


@pattern('behind')
class Behind(Pattern):
    """Tokens from `first` on see what the pattern `of` shows them, as if the sequence began there; those before see
    nothing. `Global(first) | Behind(Row(32), first)` is that of an image behind a text, which all of it sees.

    Ramesh et al. 2021, arXiv:2102.12092
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
                reason = 'it is drawn' if isinstance(one, AtRandom) else 'it goes around the whole, or asks for marks'
                raise ConfigError(f'`of` of Behind got {format_value(one)}, which cannot begin further on: {reason}')

    def begun(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Positions behind the first ones, and where both are."""
        own, key = i - self.first, j - self.first
        return own.clamp(min=0), key.clamp(min=0), (own >= 0) & (key >= 0)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        own, key, both = self.begun(i, j)
        return self.of.visible(own, key, marks) & both

    def parts(self) -> tuple[Pattern, ...]:
        return (self.of,)

    def length(self, n: int) -> int:
        return max(n - self.first, 0)

    def keys_bound(self, n: int, causal: bool) -> int:
        return self.of.keys_bound(self.length(n), causal)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return tuple([self.moved(branch, n) for branch in self.of.branches(self.length(n), causal)])

    def moved(self, branch: Branch, n: int) -> Branch:
        def sees(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
            own, key, both = self.begun(i, j)
            return branch.sees(own, key, marks) & both

        layout, first = branch.layout, self.first
        if isinstance(layout, Reach):
            # chunks still begin at 0: what a moved one holds is in one of them and the two next to it
            more = 0 if first % (layout.size * layout.stride) == 0 else layout.size - 1
            return Branch(replace_span(layout, more), sees)
        if isinstance(layout, Listed):
            keys = shift_lists(layout.keys, layout.size, first, divide_exactly(n, layout.size))
            return Branch(Listed(layout.size, keys), sees)
        if isinstance(layout, Columns):
            return Branch(Columns(layout.keys + first), sees)
        return Branch(GatherRows(layout.queries + first), sees)

    # what the other says, of positions further on

    def of_head(self, head: int, heads: int) -> Pattern:
        return replace(self, of=self.of.of_head(head, heads))

    def of_layer(self, layer: int) -> Pattern:
        return replace(self, of=self.of.of_layer(layer))

    def of_length(self, n: int) -> Pattern:
        return replace(self, of=self.of.of_length(self.length(n)))

    @property
    def depends_on_length(self) -> bool:
        return self.of.depends_on_length

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        return replace(self, of=self.of.of_lengths((lengths - self.first).clamp(min=0), self.length(n)))

    def any_head(self) -> Pattern:
        return replace(self, of=self.of.any_head())

    def joined(self, patterns: Sequence[Any]) -> Pattern:
        return replace(self, of=self.of.joined([one.of for one in patterns]))

    @property
    def looks_ahead(self) -> str:
        return self.of.looks_ahead

    @property
    def cannot_cache(self) -> str:
        return self.of.cannot_cache

    @property
    def reach(self) -> int | None:
        return self.of.reach

    @property
    def size(self) -> int | None:
        return None if self.of.size is None else self.first + self.of.size

    @property
    def of_differences(self) -> bool:
        return False


def get_parts(one: Pattern) -> list[Pattern]:
    return [one, *(inner for part in one.parts() for inner in get_parts(part))]


def replace_span(span: Reach, more: int) -> Reach:
    return Reach(span.size, span.before + more, span.after + more, span.stride)


def shift_lists(keys: Tensor, size: int, first: int, chunks: int) -> Tensor:
    """Lists of keys (.. N k) of chunks that begin at `first`, as those of so many chunks that begin at 0."""
    whole, part = divmod(first, size)
    moved = torch.where(keys >= 0, keys + first, -1)
    behind = max(chunks - whole - keys.shape[-2], part > 0)
    moved = F.pad(moved, (0, 0, whole, behind), value=-1)
    if part == 0:
        return moved
    # a chunk holds the end of a moved one, and the beginning of the next
    before = F.pad(moved, (0, 0, 1, 0), value=-1)[..., :-1, :]
    twice = (moved.unsqueeze(-1) == before.unsqueeze(-2)).any(dim=-1)
    joined = torch.cat((before, moved.masked_fill(twice, -1)), dim=-1)
    joined = joined.sort(dim=-1, descending=True).values
    if keys.ndim == 4:  # of each row, by lengths at which nobody looks
        return joined
    return joined[..., : max(int((joined >= 0).sum(dim=-1).amax()), 1)]
