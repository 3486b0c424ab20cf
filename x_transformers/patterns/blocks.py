"""Patterns of blocks that depend on the length of the call: permutations of them, and blocks at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.flags.checks import ConfigError, Maybe, is_int
from x_transformers.patterns.base import Pattern, divide_exactly, pattern
from x_transformers.patterns.branches import Branch, Columns, GatherRows, Listed, Reach


def block_of_rows(size: Any, like: Tensor) -> Any:
    """A number for all rows, or one of each (b), for positions whose first axis is that of rows."""
    return size.view(-1, *[1] * (like.ndim - 1)) if isinstance(size, Tensor) else size


def at_least(size: Any, least: int) -> Any:
    return size.clamp(min=least) if isinstance(size, Tensor) else max(size, least)


@pattern('block_permutation')
class BlockPermutation(Pattern):
    """One block of keys for each block of queries, the sequence being cut into `blocks` of them: that `shift` blocks
    further on, around.  Qiu et al. 2019, arXiv:1911.02972

        block(j) = (block(i) + shift) mod blocks

    A length that is no multiple of `blocks` is padded, so that the last block is shorter; blocks without any token do
    not count. Fewer tokens than blocks attend to all. Where a Mix does not say how many heads each has, every shift
    gets a sixth of them, at least one, and the identity the rest.
    """

    blocks: int
    shift: int = 0
    length: Maybe[int | Tensor] = None  # of the call, or of each row (b)

    looks_ahead = 'queries of its first blocks would see later ones'
    cannot_cache = 'its blocks are those of the length of a call'

    def check(self) -> None:
        self.size_of('blocks')
        self.size_of('shift', least=0)
        if self.shift >= self.blocks:
            self.refuse('shift', f'less than the number of blocks, {self.blocks}')

    def of_length(self, n: int) -> Pattern:
        return replace(self, length=n)

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        return replace(self, length=lengths)

    @staticmethod
    def share(patterns: Sequence[Any], heads: int) -> tuple[int, ...] | None:
        others = [one.shift != 0 for one in patterns]
        least = max(1, heads // 6)
        if all(others) or sum(others) < len(others) - 1 or heads <= least * sum(others):
            return None
        return tuple([least if other else heads - least * sum(others) for other in others])

    @property
    def block(self) -> Any:
        """Tokens of a block, in all rows or in each."""
        if self.length is None:
            raise ConfigError('`length` of BlockPermutation got None: ask `of_length(n)`')
        return at_least(-(-self.length // self.blocks), 1)

    @property
    def filled(self) -> Any:
        """Return how many blocks have any token."""
        return at_least(-(-self.length // self.block), 1)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        block, filled, length = (block_of_rows(size, i) for size in (self.block, self.filled, self.length))
        seen = j // block == (i // block + self.shift) % filled
        return seen | (length < self.blocks)

    def keys_bound(self, n: int, causal: bool) -> int:
        return max(divide_exactly(n, self.blocks), min(n, self.blocks - 1))

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        block, filled = self.block, self.filled
        if isinstance(block, Tensor):
            return self.of_each_row(n)
        if n < self.blocks:
            return (Branch(Reach(max(n, 1), 0, 0), self.visible),)
        if self.shift % filled == 0:
            return (Branch(Reach(block, 0, 0), self.visible, block),)
        first = (torch.arange(filled) + self.shift) % filled * block
        return (Branch(Listed(block, first.unsqueeze(-1) + torch.arange(block)), self.visible),)

    def of_each_row(self, n: int) -> tuple[Branch, ...]:
        """Branches of rows of several lengths, of at most n tokens. Queries are cut as in the longest row; those of a
        chunk are of several blocks of their row, whose keys are of as many blocks."""
        size = max(divide_exactly(n, self.blocks), 1)
        of_rows: tuple[Any, ...] = (self.block, self.filled, self.length)
        block, filled, length = (t.view(-1, 1, 1) for t in of_rows)
        start = torch.arange(divide_exactly(n, size), device=block.device).unsqueeze(-1) * size  # N 1
        first, last = start // block, torch.minimum((start + size - 1) // block, filled - 1)  # b N 1
        slot = torch.arange(max(3 * size, self.blocks - 1), device=block.device)
        keys = (first + slot // block + self.shift) % filled * block + slot % block  # b N k
        keys = torch.where(first + slot // block <= last, keys, -1)
        keys = torch.where(length < self.blocks, torch.where(slot < length, slot, -1), keys)
        return (Branch(Listed(size, keys.unsqueeze(1)), self.visible),)

    @property
    def of_differences(self) -> bool:
        return False


# blocks at random

WORD = 0xFFFFFFFF


def mix_bits(state: Tensor, more: Tensor | int) -> Tensor:
    """A word of 32 bits from two, such that all bits depend on all: the same on every device, with no state."""
    state = (state ^ (more + 0x9E3779B9 + (state << 6) + (state >> 2))) & WORD
    for _ in range(2):
        state = ((state >> 16) ^ state) * 0x45D9F3B & WORD
    return (state >> 16) ^ state


if TYPE_CHECKING:

    class OfBlocks(Pattern):
        """What `AtRandom` reads of the pattern that it is. (In that class they would be fields of its own.)"""

        block: int
        max_len: int
else:
    OfBlocks = Pattern


@dataclass(frozen=True, eq=False)
class AtRandom(OfBlocks):
    """What patterns have in common whose blocks are drawn. Their fields `length`, `layer`, `head` and `table` say for
    which call, layer and heads they are, and which blocks are stored with the weights. A row of fewer blocks than a
    query may see attends to all of itself."""

    length: int | Tensor | None = field(default=None, repr=False, kw_only=True)
    longest: int = field(default=0, compare=False, repr=False, kw_only=True)  # of rows of several lengths
    layer: int = field(default=0, repr=False, kw_only=True)
    head: int | tuple[int, ...] | None = field(default=None, repr=False, kw_only=True)
    table: Any = field(default=None, compare=False, repr=False, kw_only=True)

    looks_ahead = 'its blocks stand on both sides; there is Sliding(...) | Global(...)'
    cannot_cache = 'its blocks are those of the length of a call'

    @property
    def most(self) -> int:
        """Return how many blocks a query may see."""
        raise NotImplementedError

    def check_max_len(self) -> None:
        """Refuse a length of which no blocks could be stored, since all of them are seen."""
        blocks, kind = divide_exactly(self.max_len, self.block), type(self).__name__
        if blocks < self.most:
            raise ConfigError(
                f'`max_len` of {kind} got {self.max_len}, {blocks} blocks of {self.block}, but {kind} needs {self.most}'
            )

    @property
    def count(self) -> Any:
        """Return how many blocks there are, in all rows or in each."""
        if self.length is None:
            raise ConfigError(f'`length` of {type(self).__name__} got None: ask `of_length(n)`')
        return -(-self.length // self.block)

    def of_length(self, n: int) -> Pattern:
        return replace(self, length=n)

    def of_lengths(self, lengths: Tensor, n: int) -> Pattern:
        return replace(self, length=lengths, longest=n)

    def of_layer(self, layer: int) -> Pattern:
        return replace(self, layer=layer)

    def of_head(self, head: int, heads: int) -> Pattern:
        return replace(self, head=head)

    def any_head(self) -> Pattern:
        return replace(self, head=None)

    def joined(self, patterns: Sequence[Any]) -> Pattern:
        return replace(self, head=tuple([one.head for one in patterns]))

    def stored(self, table: Tensor) -> Pattern:
        return replace(self, table=table)

    @property
    def of_differences(self) -> bool:
        return False


@pattern('random_blocks')
class RandomBlocks(AtRandom):
    """Some blocks of keys for each block of queries, at random: others for each head and each layer.  Zaheer et al.
    2020, arXiv:2007.14062

    block     tokens of a block
    k         how many blocks
    seed      of the draw, which is a function of it, of the layer, the head, and the number of blocks
    exclude   blocks that are not drawn: so many around the own one, the first, the last; a query in one of the first
              or last ones sees none of these blocks
    max_len   the length whose blocks are stored with the weights, as `random_blocks`; others are drawn when needed
    """

    block: int
    k: int
    seed: int = 0
    exclude: tuple[int, int, int] = (0, 0, 0)
    max_len: int = 4096

    def check(self) -> None:
        self.size_of('block', 'k', 'max_len')
        self.size_of('seed', least=0)
        whole = isinstance(self.exclude, tuple) and len(self.exclude) == 3
        if not whole or not all(is_int(one) and one >= 0 for one in self.exclude):
            self.refuse('exclude', 'three integers of at least 0')
        if self.exclude[0] and self.exclude[0] % 2 == 0:
            self.refuse('exclude', 'an odd number of blocks around the own one, or none of them')
        self.check_max_len()

    @property
    def most(self) -> int:
        return sum(self.exclude) + self.k

    def drawn(self, heads: int, layer: int) -> Tensor:
        blocks = divide_exactly(self.max_len, self.block)
        return replace(self, layer=layer).draws(tuple(range(heads)), blocks, torch.full((), blocks))

    def draws(self, heads: tuple[int, ...], size: int, blocks: Tensor) -> Tensor:
        """The blocks that each block of queries sees, (b) h N k, none twice; -1 where it sees none.

        size      N, of the longest row
        blocks    how many there are, a number or b 1 1
        """
        window, first, last = self.exclude
        own, end = torch.arange(size, device=blocks.device), blocks - last
        # candidates stand before the window, and behind it
        start = torch.minimum(own - window // 2, end) if window else end.expand_as(own + end)
        behind = (own + window // 2 + 1).clamp(min=first) if window else start
        before = (start - first).clamp(min=0)
        count = before + (end - behind).clamp(min=0)
        head = torch.tensor(heads, device=blocks.device).unsqueeze(-1)
        state = mix_bits(mix_bits(torch.full_like(head, self.seed), self.layer), head)
        state = mix_bits(mix_bits(state, blocks), own)  # (b) h N
        found = state.new_zeros(*state.shape, 0)
        for at in range(self.k):  # Bentley and Floyd 1987: one of t + 1, or the last of them if it is there already
            most = count - self.k + at
            state = mix_bits(state, at)
            one = state % (most + 1).clamp(min=1)
            one = torch.where((found == one.unsqueeze(-1)).any(dim=-1), most, one)
            found = torch.cat((found, one.unsqueeze(-1)), dim=-1)
        before, behind = before.unsqueeze(-1), behind.unsqueeze(-1)
        found = torch.where(found < before, first + found, behind + found - before)
        return found.masked_fill(((own < first) | (own >= end)).unsqueeze(-1), -1)

    def listed(self) -> Tensor:
        """The blocks of its heads, h N k; of rows of several lengths b h N k."""
        heads, blocks, table = self.head if isinstance(self.head, tuple) else (self.head or 0,), self.count, self.table
        if not isinstance(blocks, Tensor):
            if blocks < self.most:
                return torch.arange(blocks).expand(len(heads), blocks, blocks)
            if table is not None and table.shape[1] == blocks:
                return table[list(heads)]
            return self.draws(heads, blocks, torch.full((), blocks))
        blocks, size = blocks.view(-1, 1, 1), max(divide_exactly(self.longest, self.block), 1)
        drawn = self.draws(heads, size, blocks)
        if table is not None:
            known = table[list(heads), :size].to(drawn.device)
            known = F.pad(known, (0, 0, 0, size - known.shape[1]), value=-1)
            drawn = torch.where(blocks.unsqueeze(-1) == table.shape[1], known, drawn)
        slot = torch.arange(max(self.k, self.most - 1), device=drawn.device)
        drawn = F.pad(drawn, (0, len(slot) - self.k), value=-1)
        every = torch.where(slot < blocks, slot, -1).unsqueeze(2)  # b 1 1 k
        return torch.where(blocks.unsqueeze(-1) < self.most, every, drawn)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        listed = self.listed().to(i.device)
        own = (i // self.block).clamp(0, listed.shape[-2] - 1)
        head: Any = 0
        if isinstance(self.head, tuple):  # heads are the second axis of what the engine asks
            head = torch.arange(len(self.head), device=i.device).view(-1, *[1] * (i.ndim - 2))
        row = (block_of_rows(torch.arange(len(listed), device=i.device), i),) if listed.ndim == 4 else ()
        return (listed[(*row, head, own)] == (j // self.block).unsqueeze(-1)).any(dim=-1)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, max(self.k, self.most - 1) * self.block)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        listed = self.listed().unsqueeze(-1)
        keys = listed * self.block + torch.arange(self.block, device=listed.device)
        keys = keys.masked_fill(listed < 0, -1).flatten(-2)
        return (Branch(Listed(self.block, keys), lambda i, j, marks=None: (i >= 0) & (j >= 0)),)


@pattern('bigbird')
class BigBird(AtRandom):
    """Blocks around the own one, blocks that see all and that all see, and blocks at random.  Zaheer et al. 2020,
    arXiv:2007.14062

    window_blocks   how many around the own one, itself included, an odd number
    global_blocks   'itc': the first and the last ones, half of them each, the first one more; 'etc': the first ones,
                    of tokens that were put there for this
    random_blocks   others for each block of queries, head and layer, as `RandomBlocks` draws them
    seed, max_len   those of `RandomBlocks`
    """

    block: int = 64
    window_blocks: int = 3
    global_blocks: int = 2
    random_blocks: int = 3
    seed: int = 0
    variant: str = 'itc'
    max_len: int = 4096

    def check(self) -> None:
        self.size_of('block', 'window_blocks', 'max_len')
        self.size_of('global_blocks', 'random_blocks', 'seed', least=0)
        if self.window_blocks % 2 == 0:
            self.refuse('window_blocks', 'an odd number')
        if self.variant not in ('itc', 'etc'):
            self.refuse('variant', "'itc' or 'etc'")
        self.check_max_len()

    @property
    def most(self) -> int:
        return self.window_blocks + self.global_blocks + self.random_blocks

    @property
    def ends(self) -> tuple[int, int]:
        """Return how many blocks are global, in front and at the end."""
        last = self.global_blocks // 2 if self.variant == 'itc' else 0
        return self.global_blocks - last, last

    @property
    def others(self) -> RandomBlocks | None:
        """The blocks at random."""
        if not self.random_blocks:
            return None
        own: dict[str, Any] = dict(
            length=self.length, longest=self.longest, layer=self.layer, head=self.head, table=self.table
        )
        exclude = (self.window_blocks, *self.ends)
        return RandomBlocks(self.block, self.random_blocks, self.seed, exclude, self.max_len, **own)

    def drawn(self, heads: int, layer: int) -> Tensor | None:
        return None if self.others is None else self.others.drawn(heads, layer)

    def is_global(self, at: Tensor) -> Tensor:
        (first, last), own, count = self.ends, at // self.block, block_of_rows(self.count, at)
        return (own < first) | (own >= count - last) | (count < self.most)

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i // self.block - j // self.block).abs() <= self.window_blocks // 2

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        seen = self.is_global(i) | self.is_global(j) | self.near(i, j)
        return seen if self.others is None else seen | self.others.visible(i, j)

    def keys_bound(self, n: int, causal: bool) -> int:
        return n if self.global_blocks else min(n, self.most * self.block)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        several, count = isinstance(self.length, Tensor), divide_exactly(n, self.block)
        if count < self.most:  # and so is each row
            return (Branch(Reach(max(n, 1), 0, 0), lambda i, j, marks=None: (i >= 0) & (j >= 0)),)
        beside = self.window_blocks // 2 * self.block
        found = [Branch(Reach(self.block, beside, beside), self.sees_near)]
        if self.global_blocks or several:
            own = self.global_places(n)
            found.append(Branch(Columns(own), lambda i, j, marks=None: ~self.is_global(i) & self.is_global(j)))
            found.append(Branch(GatherRows(own), lambda i, j, marks=None: (i >= 0) & (j >= 0)))
        if self.others is not None:
            (drawn,) = self.others.branches(n, causal)
            found.append(Branch(drawn.layout, lambda i, j, marks=None: ~self.is_global(i) & (j >= 0)))
        return tuple(found)

    def global_places(self, n: int) -> Tensor:
        """Positions of global blocks, k; of rows of several lengths b k, -1 for none. All of a short row are."""
        (first, last), count, block = self.ends, self.count, self.block
        if not isinstance(count, Tensor):
            end = (count - last) * block
            return torch.cat((torch.arange(first * block), torch.arange(end, max(n, end))))
        count = count.unsqueeze(-1)
        slot = torch.arange(max(self.global_blocks, self.most - 1) * block, device=count.device)
        ends = torch.where(slot < first * block, slot, slot + (count - last - first) * block)
        ends = torch.where(slot < self.global_blocks * block, ends, -1)
        return torch.where(count < self.most, torch.where(slot < count * block, slot, -1), ends)

    def sees_near(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        return self.near(i, j) & ~self.is_global(i) & ~self.is_global(j)
