"""Branches of a pattern: layouts of queries and keys that are computed together.

A `Branch` has a `layout` of queries and keys, and a function `sees` of the pairs in it. The pairs of the branches of a
pattern are disjoint, and their results are merged exactly. Positions count from 0 to n - 1.

    Reach         chunks of neighbouring queries, and the keys around each
    Listed        chunks of queries, and for each a list of keys
    Columns       all queries, and some keys
    GatherRows    some queries, and all keys
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from x_transformers.flags.checks import Maybe

# (i, j, marks) -> True where query i attends to key j
Visible = Callable[[Tensor, Tensor, Any], Tensor]


class Reach(NamedTuple):
    """Chunks of `size` queries, from position 0 on, each with the keys at its positions, `before` and `after` more.

    With a `stride` s the positions are first split by p mod s, and chunks and neighbors are of one class.
    """

    size: int
    before: int
    after: int
    stride: int = 1


class Listed(NamedTuple):
    """Chunks of `size` queries, from position 0 on, each with a list of distinct keys, -1 for none.

    `keys` are (N, k), per head (h, N, k), or per head and sequence (b, h, N, k). There may be more lists than chunks.
    """

    size: int
    keys: Tensor


class Columns(NamedTuple):
    """All queries, with the keys at positions (k,) or (b, k), -1 for none; None for the marked ones."""

    keys: Maybe[Tensor]


class GatherRows(NamedTuple):
    """Queries at positions (k,) or (b, k), -1 for none, with all keys; None for the marked ones."""

    queries: Maybe[Tensor]


class Branch(NamedTuple):
    """Visible pairs of a layout, by the function `sees`, whose `period` is that of a pattern."""

    layout: Reach | Listed | Columns | GatherRows
    sees: Visible
    period: int | None = None

    @property
    def of_marks(self) -> bool:
        """Return True if the layout has marked queries or keys."""
        return isinstance(self.layout, (Columns, GatherRows)) and self.layout[0] is None

    def without(self, others: Sequence[Any]) -> Branch:
        """Return the branch without the pairs of other patterns."""
        return self._restrict(others, lambda seen, other: seen & ~other)

    def within(self, others: Sequence[Any]) -> Branch:
        """Return the branch with the pairs that all other patterns have, too."""
        return self._restrict(others, lambda seen, other: seen & other)

    def _restrict(self, others: Sequence[Any], combine: Callable[[Tensor, Tensor], Tensor]) -> Branch:
        def sees(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
            seen = self.sees(i, j, marks)
            for other in others:
                seen = combine(seen, other.visible(i, j, marks))
            return seen

        return Branch(self.layout, sees, common(self.period, *(other.period for other in others)))


def common(*periods: int | None) -> int | None:
    """Return a common period, or None if one has none."""
    return None if None in periods else math.lcm(*(period for period in periods if period is not None))
