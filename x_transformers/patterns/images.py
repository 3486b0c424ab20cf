"""Patterns of images, whose pixels are the tokens: tiles, and squares around a pixel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from x_transformers.flags.checks import ConfigError, format_value, is_int
from x_transformers.patterns.base import Pattern, ceil_div, pattern
from x_transformers.patterns.branches import Branch, Listed

# Number of neighboring queries that read the pixels around them at once.
RUN = 32

Pair = tuple[int, int]


def is_pair(value: Any, least: int) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(is_int(one) and one >= least for one in value)


def split_image_blocks(at: Tensor, image: Pair, block: Pair) -> tuple[Tensor, Tensor]:
    """Return rows and columns of pixels from their indices in block raster order: blocks, and rows inside of each."""
    (height, width), (rows, columns) = image, block
    top = at // (rows * width) * rows
    tall = (height - top).clamp(max=rows)
    rest = at - top * width
    left = rest // (columns * tall) * columns
    wide = (width - left).clamp(max=columns)
    rest = rest - left * tall
    return top + rest // wide, left + rest % wide


def place_in_blocks(row: Tensor, column: Tensor, image: Pair, block: Pair) -> Tensor:
    """Return the indices of pixels in block raster order."""
    (height, width), (rows, columns) = image, block
    top, left = row // rows * rows, column // columns * columns
    tall, wide = (height - top).clamp(max=rows), (width - left).clamp(max=columns)
    return top * width + left * tall + (row - top) * wide + column - left


def block_raster_order(image: Pair, block: Pair) -> Tensor:
    """Return the permutation (h w,) from raster order to block raster order.

    `pixels[:, order]` are in block raster order, `blocks[:, order.argsort()]` in raster order again. Blocks at the
    right and at the bottom may be smaller.

    Raises:
        ConfigError: An argument is not a pair of sizes.
    """
    for name, value in (('image', image), ('block', block)):
        if not is_pair(value, 1):
            raise ConfigError(f'`{name}` must be a pair of integers of at least 1, got {format_value(value)}')
    row, column = split_image_blocks(torch.arange(image[0] * image[1]), (image[0], image[1]), (block[0], block[1]))
    return row * image[1] + column


def neighbors_of_blocks(first: Tensor, count: int, limit: int) -> Tensor:
    """Return `count` numbers from each of `first` (N,) on, as (N, count); -1 for those outside of 0 to `limit` - 1."""
    found = first.unsqueeze(-1) + torch.arange(count)
    return torch.where((found >= 0) & (found < limit), found, -1)


@pattern('local2d')
class Local2D(Pattern):
    """Pixels of the query's tile, and of a flange around it: rows above and columns on both sides, and rows below if it
    is not causal.  Parmar et al. 2018, arXiv:1802.05751

    image         rows and columns. The sequence has all of its pixels, in a causal stack possibly only the first ones
    query_block   rows and columns of a tile
    flange        rows above, columns on each side
    order         of the tokens: 'block', tile after tile (`block_raster_order`), or 'raster', row after row
    """

    image: Pair
    query_block: Pair = (8, 16)
    flange: Pair = (8, 16)
    order: str = 'block'

    def check(self) -> None:
        for name, least in (('image', 1), ('query_block', 1), ('flange', 0)):
            if not is_pair(getattr(self, name), least):
                self.refuse(name, f'a pair of integers of at least {least}')
        if self.order not in ('block', 'raster'):
            self.refuse('order', "'block' or 'raster'")

    def pixel(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row and column of a token."""
        if self.order == 'raster':
            return at // self.image[1], at % self.image[1]
        return split_image_blocks(at, self.image, self.query_block)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        (row, column), (key_row, key_column) = self.pixel(i), self.pixel(j)
        (rows, columns), (above, side) = self.query_block, self.flange
        top, left = row // rows * rows, column // columns * columns
        seen = (key_row >= top - above) & (key_row < top + rows + above)
        return seen & (key_column >= left - side) & (key_column < left + columns + side)

    def keys_bound(self, n: int, causal: bool) -> int:
        (rows, columns), (above, side) = self.query_block, self.flange
        return min(n, (rows + above * (1 if causal else 2)) * (columns + 2 * side))

    @property
    def run(self) -> int:
        """Return the largest number of tokens such that each such run of the sequence lies in one tile."""
        (height, width), (rows, columns) = self.image, self.query_block
        rows, columns = min(rows, height), min(columns, width)
        if self.order == 'raster':
            return math.gcd(columns, width)
        return math.gcd(
            *(tall * wide for tall in {rows, height % rows or rows} for wide in {columns, width % columns or columns})
        )

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        (height, width), (rows, columns), (above, side) = self.image, self.query_block, self.flange
        run = self.run
        row, column = self.pixel(torch.arange(ceil_div(n, run)) * run)
        top, left = row // rows * rows, column // columns * columns
        key_rows = neighbors_of_blocks(top - above, min(rows + above * (1 if causal else 2), height + above), height)
        key_columns = neighbors_of_blocks(left - side, min(columns + 2 * side, width + side), width)
        key_rows, key_columns = key_rows.unsqueeze(-1), key_columns.unsqueeze(-2)
        if self.order == 'raster':
            keys = key_rows * width + key_columns
        else:
            keys = place_in_blocks(key_rows, key_columns, self.image, self.query_block)
        keys = torch.where((key_rows >= 0) & (key_columns >= 0), keys, -1).flatten(1)
        return (Branch(Listed(run, keys), self.visible),)

    @property
    def size(self) -> int:
        return self.image[0] * self.image[1]


@pattern('conv2d')
class Conv2D(Pattern):
    """Pixels in a square around the query's, up to itself, of an image in raster order.

    |r - r'|, |c - c'| <= floor(kernel / 2)
    """

    image: Pair
    kernel: int = 11

    def check(self) -> None:
        if not is_pair(self.image, 1):
            self.refuse('image', 'a pair of integers of at least 1')
        self.size_of('kernel')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        width, half = self.image[1], self.kernel // 2
        rows, columns = i // width - j // width, i % width - j % width
        return (rows <= half) & (columns.abs() <= half) & (j <= i)

    def keys_bound(self, n: int, causal: bool) -> int:
        half = self.kernel // 2
        return min(n, half * (2 * half + 1) + half + 1)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        width, half = self.image[1], self.kernel // 2
        # The longest part of a row up to RUN that divides it, or a whole row.
        run = max([one for one in range(4, RUN + 1) if width % one == 0] or [width])
        first = torch.arange(ceil_div(n, run)) * run
        key_rows = neighbors_of_blocks(first // width - half, half + 1, self.image[0]).unsqueeze(-1)
        key_columns = neighbors_of_blocks(first % width - half, min(run + 2 * half, width + half), width).unsqueeze(-2)
        keys = torch.where((key_rows >= 0) & (key_columns >= 0), key_rows * width + key_columns, -1)
        return (Branch(Listed(run, keys.flatten(1)), self.visible),)

    @property
    def reach(self) -> int:
        half = self.kernel // 2
        return half * self.image[1] + half

    @property
    def size(self) -> int:
        return self.image[0] * self.image[1]


@pattern('windows2d')
class Windows2D(Pattern):
    """Pixels of the query's window, of square windows that tile an image in raster order, shifted or not.

        floor((i - shift mod size) / window) equal, and both before `shift` or neither,  for rows and for columns

    image     rows and columns, multiples of `window`
    window    side of a window
    shift     by which the windows are moved; those at the borders are then smaller. Alternate with
              `PerLayer(Windows2D(image, 8), Windows2D(image, 8, shift=4))`

    Liu et al. 2021, arXiv:2103.14030
    """

    image: Pair
    window: int = 8
    shift: int = 0

    looks_ahead = 'its windows hold later pixels on all sides'
    cannot_cache = 'its windows hold later pixels'

    def check(self) -> None:
        self.size_of('window')
        if not is_pair(self.image, 1) or any(side % self.window for side in self.image):
            self.refuse('image', f'a pair of multiples of the window, {self.window}')
        if not is_int(self.shift) or not 0 <= self.shift < self.window:
            self.refuse('shift', f'an integer from 0 to {self.window - 1}')

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        seen, width = None, self.image[1]
        for of_query, of_key, side in ((i // width, j // width, self.image[0]), (i % width, j % width, width)):
            (query, key), shift = (of_query, of_key), self.shift
            same = (query - shift) % side // self.window == (key - shift) % side // self.window
            same = same & ((query < shift) == (key < shift))
            seen = same if seen is None else seen & same
        return seen

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, self.window**2)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        run, width = math.gcd(self.window, self.shift), self.image[1]  # such a part of a row lies in one window
        first = torch.arange(ceil_div(n, run)) * run
        sides = []
        for place, side in ((first // width, self.image[0]), (first % width, width)):
            start = (place - self.shift) % side // self.window * self.window
            sides.append((start.unsqueeze(-1) + torch.arange(self.window) + self.shift) % side)
        keys = sides[0].unsqueeze(-1) * width + sides[1].unsqueeze(-2)
        return (Branch(Listed(run, keys.flatten(1)), self.visible),)

    @property
    def size(self) -> int:
        return self.image[0] * self.image[1]
