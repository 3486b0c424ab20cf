"""Patterns that reach far: a token of every so many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.patterns.base import Pattern, divide_exactly, pattern
from x_transformers.patterns.branches import Branch, Columns, Reach

# queries that see themselves, at once
ITSELF = 16


@pattern('strided')
class Strided(Pattern):
    """Tokens a multiple of the stride away.  Child et al. 2019, arXiv:1904.10509

    (i - j) mod stride = 0
    """

    stride: int

    def check(self) -> None:
        self.size_of('stride')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return (i - j) % self.stride == 0

    def keys_bound(self, n: int, causal: bool) -> int:
        return divide_exactly(n, self.stride)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(max(divide_exactly(n, self.stride), 1), 0, 0, self.stride), self.visible, 1),)

    @property
    def period(self) -> int:
        return 1


@pattern('column')
class Column(Pattern):
    """Of an image in raster order, what came before in the own column, and the query itself."""

    width: int

    def check(self) -> None:
        self.size_of('width')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return ((i - j) % self.width == 0) & (j <= i)

    def keys_bound(self, n: int, causal: bool) -> int:
        return divide_exactly(n, self.width)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(max(divide_exactly(n, self.width), 1), 0, 0, self.width), self.visible, 1),)

    @property
    def period(self) -> int:
        return 1


@pattern('summary')
class Summary(Pattern):
    """The last c of every `stride` tokens, and the query itself.  Child et al. 2019, arXiv:1904.10509

        j mod stride >= stride - c,  or  i = j

    per_head   other c tokens for each head: those before, and so on around
    back       which c tokens: the last ones 0, those before 1
    """

    stride: int
    c: int
    per_head: bool = False
    back: int = 0

    def check(self) -> None:
        self.size_of('stride', 'c')
        if self.c > self.stride:
            self.refuse('c', f'at most the stride, {self.stride}')
        if not isinstance(self.per_head, bool):
            self.refuse('per_head', 'True or False')
        self.size_of('back', least=0)
        if (self.back + 1) * self.c > self.stride:
            self.refuse('back', f'less than {self.stride // self.c}: there are no more in a stride')

    def of_head(self, head: int, heads: int) -> Pattern:
        return Summary(self.stride, self.c, back=head % (self.stride // self.c)) if self.per_head else self

    def sums_up(self, j: Tensor) -> Tensor:
        stop = self.stride - self.back * self.c
        place = j % self.stride
        return (place >= stop - self.c) & (place < stop)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return self.sums_up(j) | (i == j)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, divide_exactly(n, self.stride) * self.c + 1)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        first = torch.arange(0, n, self.stride) + (self.stride - (self.back + 1) * self.c)
        keys = (first.unsqueeze(-1) + torch.arange(self.c)).flatten()  # the last ones may be none, in graphs too
        return (
            Branch(Columns(keys), lambda i, j, marks=None: self.sums_up(j) & (i != j), self.stride),
            Branch(Reach(ITSELF, 0, 0), lambda i, j, marks=None: i == j, 1),
        )

    @property
    def period(self) -> int:
        return self.stride

    @property
    def of_differences(self) -> bool:
        return False
