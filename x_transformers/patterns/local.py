"""Patterns of neighboring tokens and blocks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from x_transformers.flags.checks import is_int
from x_transformers.patterns.base import Pattern, pattern
from x_transformers.patterns.branches import Branch, Reach

# Queries that read their neighbors at once: with fewer, matrix products are small; with more, many keys are hidden.
CHUNK = 64


@pattern('sliding')
class Sliding(Pattern):
    """Tokens at most `window` away; with a dilation d every d-th token, d times as far. The dilation is one number, or
    one for each head.  Beltagy et al. 2020, arXiv:2004.05150

        |i - j| <= window d  and  (i - j) mod d = 0
    """

    window: int
    dilation: int | tuple[int, ...] = 1

    period = 1

    def check(self) -> None:
        self.size_of('window', least=0)
        each = self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)
        if not each or not all(is_int(one) and one >= 1 for one in each):
            self.refuse('dilation', 'an integer of at least 1, or one for each head')

    def of_head(self, head: int, heads: int) -> Pattern:
        if not isinstance(self.dilation, tuple):
            return self
        if len(self.dilation) != heads:
            self.refuse('dilation', f'one for each of the {heads} heads')
        return Sliding(self.window, self.dilation[head])

    @property
    def step(self) -> int:
        if isinstance(self.dilation, tuple):
            self.refuse('dilation', 'that of one head: use `for_heads(heads)`')
        return self.dilation

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        reach = self.window * self.step
        near = (j >= i - reach) & (j <= i + reach)  # A table of distances would take ten times as long.
        return near if self.step == 1 else near & ((i - j) % self.step == 0)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, self.window * (1 if causal else 2) + 1)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(CHUNK, self.window, 0 if causal else self.window, self.step), self.visible, 1),)

    @property
    def reach(self) -> int:
        each = self.dilation if isinstance(self.dilation, tuple) else (self.dilation,)
        return self.window * max(each)


@pattern('block_local')
class BlockLocal(Pattern):
    """Tokens of the query's block:  floor(i / block) = floor(j / block)"""

    block: int

    def check(self) -> None:
        self.size_of('block')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return i // self.block == j // self.block

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, self.block)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(self.block, 0, 0), self.visible, self.block),)

    @property
    def period(self) -> int:
        return self.block

    @property
    def reach(self) -> int:
        return self.block - 1


@pattern('local1d')
class Local1D(Pattern):
    """Tokens of the query's block, and `memory` tokens before it, and after it if not causal.  Parmar et al. 2018,
    arXiv:1802.05751

        B q - memory <= j < (B + 1) q + memory,   B = floor(i / q)
    """

    query_block: int = 256
    memory: int = 256

    def check(self) -> None:
        self.size_of('query_block', 'memory')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        first = i // self.query_block * self.query_block
        return (j >= first - self.memory) & (j < first + self.query_block + self.memory)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, self.query_block + self.memory * (1 if causal else 2))

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        own = Reach(self.query_block, self.memory, 0 if causal else self.memory)
        return (Branch(own, self.visible, self.query_block),)

    @property
    def period(self) -> int:
        return self.query_block

    @property
    def reach(self) -> int:
        return self.query_block - 1 + self.memory


@pattern('row')
class Row(Pattern):
    """Earlier pixels in the query's row, and itself, of an image in raster order."""

    width: int

    def check(self) -> None:
        self.size_of('width')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return (i // self.width == j // self.width) & (j <= i)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, self.width)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        return (Branch(Reach(self.width, 0, 0), self.visible, self.width),)

    @property
    def period(self) -> int:
        return self.width

    @property
    def reach(self) -> int:
        return self.width - 1
