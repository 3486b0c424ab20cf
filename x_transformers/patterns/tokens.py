"""Patterns of global tokens."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from x_transformers.flags.checks import Maybe, is_int
from x_transformers.patterns.base import Pattern, Several, pattern
from x_transformers.patterns.branches import Branch, Columns, GatherRows


@pattern('global')
class Global(Pattern):
    """Global tokens, which attend to all and all attend to: the first ones, those at some positions, or with
    Global('mask') those that the input `global_mask` (b, n) marks.  Beltagy et al. 2020, arXiv:2004.05150

    In cross-attention, positions of queries and keys count from the beginning of each: all queries attend to global
    keys, and global queries attend to the whole context.
    """

    first: Maybe[int] = 0  # or 'mask'
    positions: tuple[int, ...] = ()
    mask: bool = False

    def check(self) -> None:
        if self.first == 'mask':
            object.__setattr__(self, 'first', 0)
            object.__setattr__(self, 'mask', True)
        self.size_of('first', least=0)
        if not isinstance(self.positions, tuple) or not all(is_int(one) and one >= 0 for one in self.positions):
            self.refuse('positions', 'a tuple of integers of at least 0')
        if not isinstance(self.mask, bool):
            self.refuse('mask', 'True or False')
        if not (self.first or self.positions or self.mask):
            self.refuse('first', "at least 1, unless there are `positions`, or it is 'mask'")
        if self.mask and (self.first or self.positions):
            self.refuse('mask', 'given without `first` and `positions`: combine patterns by `|`')

    def is_global(self, at: Tensor, marks: Any = None) -> Tensor:
        """Return True where tokens at these positions are global."""
        if self.mask:
            if marks is None:
                raise ValueError("`visible` of Global('mask') needs `marks`, a function of positions")
            return marks(at)
        own = (at < self.first) & (at >= 0)
        return functools.reduce(Tensor.__or__, [at == place for place in self.positions], own)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return self.is_global(i, marks) | self.is_global(j, marks)

    def places(self) -> Tensor:
        """Return the global positions, each once."""
        return torch.tensor(sorted({*range(self.first), *self.positions}), dtype=torch.long)

    def keys_bound(self, n: int, causal: bool) -> int:
        return n

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        own = None if self.mask else self.places()
        return (
            Branch(Columns(own), lambda i, j, marks=None: self.is_global(j, marks) | (i != i)),
            Branch(GatherRows(own), lambda i, j, marks=None: self.is_global(i, marks) & ~self.is_global(j, marks)),
        )

    @property
    def marked(self) -> bool:
        return self.mask

    @property
    def of_differences(self) -> bool:
        return self.mask


# Halves of Global('mask'), for models that treat marked queries differently.


@dataclass(frozen=True, eq=False)
class MarkedKeys(Pattern):
    """Marked tokens, which all queries attend to."""

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return marks(j) | (i != i)

    def keys_bound(self, n: int, causal: bool) -> int:
        return n

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Columns(None), self.visible),)

    @property
    def marked(self) -> bool:
        return True

    @property
    def of_differences(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class MarkedQueries(MarkedKeys):
    """All tokens, for marked queries."""

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return marks(i) | (j != j)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(GatherRows(None), self.visible),)


def drop_marked_queries(pattern: Pattern) -> Pattern:
    """Return the pattern of queries that are not marked."""
    if isinstance(pattern, Several):
        return type(pattern)(tuple(map(drop_marked_queries, pattern.patterns)))
    return MarkedKeys() if isinstance(pattern, Global) and pattern.mask else pattern
