"""How a pattern is computed: which queries read which keys at once.

A `Branch` is a `layout` of queries and keys, and which of the pairs that meet there it `sees`. Of several branches each
must see other pairs; what they find is put together exactly. Positions count from 0, n of them.

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

# (i, j, marks) -> bool
Visible = Callable[[Tensor, Tensor, Any], Tensor]


class Reach(NamedTuple):
    """Chunks of `size` queries, from position 0 on. Each reads its own positions, `before` more and `after` more.

    With a `stride` s the tokens are split by p mod s first; chunks, and what is before and after, are of each class.
    """

    size: int
    before: int
    after: int
    stride: int = 1


class Listed(NamedTuple):
    """Chunks of `size` queries, from position 0 on. Each reads the positions that are listed: N k, or for each head
    h N k, or for each row too b h N k, -1 for none; none twice. The list may be made for more positions than there
    are."""

    size: int
    keys: Tensor


class Columns(NamedTuple):
    """All queries read the keys at these positions, k, or of each row b k, -1 for none; None for those that are
    marked."""

    keys: Maybe[Tensor]


class GatherRows(NamedTuple):
    """The queries at these positions, k, or of each row b k, -1 for none, read all keys; None for those that are
    marked."""

    queries: Maybe[Tensor]


class Branch(NamedTuple):
    """Which pairs of a layout are seen.  period: as that of a pattern, of `sees`."""

    layout: Reach | Listed | Columns | GatherRows
    sees: Visible
    period: int | None = None

    @property
    def of_marks(self) -> bool:
        """Return True if its layout is that of marked queries or keys."""
        return isinstance(self.layout, (Columns, GatherRows)) and self.layout[0] is None

    def without(self, others: Sequence[Any]) -> Branch:
        """What none of some patterns sees."""

        def sees(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
            seen = self.sees(i, j, marks)
            for other in others:
                seen = seen & ~other.visible(i, j, marks)
            return seen

        return Branch(self.layout, sees, common(self.period, *(other.period for other in others)))

    def within(self, others: Sequence[Any]) -> Branch:
        """What all of some patterns see too."""

        def sees(i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
            seen = self.sees(i, j, marks)
            for other in others:
                seen = seen & other.visible(i, j, marks)
            return seen

        return Branch(self.layout, sees, common(self.period, *(other.period for other in others)))


def common(*periods: int | None) -> int | None:
    """A period of all, if there is one."""
    return None if None in periods else math.lcm(*(period for period in periods if period is not None))
