"""Patterns of distant tokens, at regular steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.patterns.base import Pattern, ceil_div, pattern
from x_transformers.patterns.branches import Branch, Columns, Reach

# Queries that attend to themselves at once.
ITSELF = 16


@pattern('strided')
class Strided(Pattern):
    """Tokens a multiple of the stride away.  Child et al. 2019, arXiv:1904.10509

    (i - j) mod stride = 0
    """

    stride: int

    period = 1

    def check(self) -> None:
        self.size_of('stride')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return (i - j) % self.stride == 0

    def keys_bound(self, n: int, causal: bool) -> int:
        return ceil_div(n, self.stride)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(max(ceil_div(n, self.stride), 1), 0, 0, self.stride), self.visible, 1),)


@pattern('column')
class Column(Pattern):
    """Earlier pixels in the query's column, and itself, of an image in raster order."""

    width: int

    period = 1

    def check(self) -> None:
        self.size_of('width')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return ((i - j) % self.width == 0) & (j <= i)

    def keys_bound(self, n: int, causal: bool) -> int:
        return ceil_div(n, self.width)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(max(ceil_div(n, self.width), 1), 0, 0, self.width), self.visible, 1),)


@pattern('summary')
class Summary(Pattern):
    """The last c of every `stride` tokens, and the query itself.  Child et al. 2019, arXiv:1904.10509

        j mod stride >= stride - c,  or  i = j

    per_head   each head has other c tokens: the last ones, those before, and so on cyclically
    back       number of groups of c tokens after these: 0 for the last ones
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
            self.refuse('back', f'less than {self.stride // self.c}, the number of groups in a stride')

    def of_head(self, head: int, heads: int) -> Pattern:
        return Summary(self.stride, self.c, back=head % (self.stride // self.c)) if self.per_head else self

    def is_summary(self, j: Tensor) -> Tensor:
        stop = self.stride - self.back * self.c
        place = j % self.stride
        return (place >= stop - self.c) & (place < stop)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return self.is_summary(j) | (i == j)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, ceil_div(n, self.stride) * self.c + 1)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        first = torch.arange(0, n, self.stride) + (self.stride - (self.back + 1) * self.c)
        keys = (first.unsqueeze(-1) + torch.arange(self.c)).flatten()  # The last ones may be beyond n.
        return (
            Branch(Columns(keys), lambda i, j, marks=None: self.is_summary(j) & (i != j), self.stride),
            Branch(Reach(ITSELF, 0, 0), lambda i, j, marks=None: i == j, 1),
        )

    @property
    def period(self) -> int:
        return self.stride
