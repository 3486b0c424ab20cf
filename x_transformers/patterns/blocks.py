"""Patterns of blocks that depend on the length of the call: permutations of blocks, and random blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.flags.checks import ConfigError, Maybe, is_int
from x_transformers.patterns.base import Pattern, ceil_div, pattern
from x_transformers.patterns.branches import Branch, Columns, GatherRows, Listed, Reach


def expand_size(size: Any, like: Tensor) -> Any:
    """Return a number, or one per sequence (b,) in a shape that broadcasts with positions (b, ...)."""
    return size.view(-1, *[1] * (like.ndim - 1)) if isinstance(size, Tensor) else size


def at_least(size: Any, least: int) -> Any:
    return size.clamp(min=least) if isinstance(size, Tensor) else max(size, least)


@pattern('block_permutation')
class BlockPermutation(Pattern):
    """Attention to the block that is `shift` blocks later, cyclically, in a sequence cut into `blocks` blocks.

        block(j) = (block(i) + shift) mod blocks

    The last block may be shorter, and blocks without tokens do not count. Fewer tokens than blocks attend to all. In a
    Mix without `heads`, every shift gets a sixth of the heads, at least one, and the identity gets the rest.

    Qiu et al. 2019, arXiv:1911.02972
    """

    blocks: int
    shift: int = 0
    length: Maybe[int | Tensor] = None  # of the call, or of each sequence (b,)

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
        """Return the tokens of a block, of all sequences or of each (b,)."""
        if self.length is None:
            raise ConfigError('`length` of BlockPermutation must be set, got None: use `of_length(n)`')
        return at_least(-(-self.length // self.blocks), 1)

    @property
    def filled(self) -> Any:
        """Return the number of blocks with any token."""
        return at_least(-(-self.length // self.block), 1)

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        block, filled, length = (expand_size(size, i) for size in (self.block, self.filled, self.length))
        seen = j // block == (i // block + self.shift) % filled
        return seen | (length < self.blocks)

    def keys_bound(self, n: int, causal: bool) -> int:
        return max(ceil_div(n, self.blocks), min(n, self.blocks - 1))

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        block, filled = self.block, self.filled
        if isinstance(block, Tensor):
            return self.branches_per_sequence(n)
        if n < self.blocks:
            return (Branch(Reach(max(n, 1), 0, 0), self.visible),)
        if self.shift % filled == 0:
            return (Branch(Reach(block, 0, 0), self.visible, block),)
        first = (torch.arange(filled) + self.shift) % filled * block
        return (Branch(Listed(block, first.unsqueeze(-1) + torch.arange(block)), self.visible),)

    def branches_per_sequence(self, n: int) -> tuple[Branch, ...]:
        """Return the branches for sequences of several lengths, at most n.

        Queries are cut as in the longest sequence. Those of a chunk may be of several blocks of their own sequence, and
        attend to as many.
        """
        size = max(ceil_div(n, self.blocks), 1)
        of_rows: tuple[Any, ...] = (self.block, self.filled, self.length)
        block, filled, length = (t.view(-1, 1, 1) for t in of_rows)
        start = torch.arange(ceil_div(n, size), device=block.device).unsqueeze(-1) * size  # N 1
        first, last = start // block, torch.minimum((start + size - 1) // block, filled - 1)  # b N 1
        slot = torch.arange(max(3 * size, self.blocks - 1), device=block.device)
        keys = (first + slot // block + self.shift) % filled * block + slot % block  # b N k
        keys = torch.where(first + slot // block <= last, keys, -1)
        keys = torch.where(length < self.blocks, torch.where(slot < length, slot, -1), keys)
        return (Branch(Listed(size, keys.unsqueeze(1)), self.visible),)


# Random blocks.

WORD = 0xFFFFFFFF


def mix_bits(state: Tensor, more: Tensor | int) -> Tensor:
    """Hash two 32-bit words into one, in which each bit depends on all: the same on every device, without state."""
    state = (state ^ (more + 0x9E3779B9 + (state << 6) + (state >> 2))) & WORD
    for _ in range(2):
        state = ((state >> 16) ^ state) * 0x45D9F3B & WORD
    return (state >> 16) ^ state


if TYPE_CHECKING:

    class OfBlocks(Pattern):
        """Fields that `AtRandom` reads from its subclasses. (In that class they would become dataclass fields.)"""

        block: int
        max_len: int
else:
    OfBlocks = Pattern


@dataclass(frozen=True, eq=False)
class AtRandom(OfBlocks):
    """Base of patterns whose blocks are drawn at random.

    The fields `length`, `layer` and `head` are of the call, the layer and the heads, and `table` holds the blocks that
    are stored with the weights. A sequence with fewer blocks than a query may attend to attends to all of itself.
    """

    length: int | Tensor | None = field(default=None, repr=False, kw_only=True)
    longest: int = field(default=0, compare=False, repr=False, kw_only=True)  # of sequences of several lengths
    layer: int = field(default=0, repr=False, kw_only=True)
    head: int | tuple[int, ...] | None = field(default=None, repr=False, kw_only=True)
    table: Any = field(default=None, compare=False, repr=False, kw_only=True)

    looks_ahead = 'its blocks are on both sides; there is Sliding(...) | Global(...)'
    cannot_cache = 'its blocks are those of the length of a call'

    @property
    def most(self) -> int:
        """Return the largest number of blocks that a query attends to."""
        raise NotImplementedError

    def check_max_len(self) -> None:
        """Raise ConfigError for a length in which all blocks are visible, so that none are drawn and stored."""
        blocks, kind = ceil_div(self.max_len, self.block), type(self).__name__
        if blocks < self.most:
            raise ConfigError(
                f'`max_len` of {kind} must have at least {self.most} blocks of {self.block} tokens, '
                f'got {self.max_len}, {blocks} blocks'
            )

    @property
    def count(self) -> Any:
        """Return the number of blocks, of all sequences or of each (b,)."""
        if self.length is None:
            raise ConfigError(f'`length` of {type(self).__name__} must be set, got None: use `of_length(n)`')
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


@pattern('random_blocks')
class RandomBlocks(AtRandom):
    """Attention to random blocks, drawn for each block of queries, head and layer.  Zaheer et al. 2020,
    arXiv:2007.14062

    block     tokens of a block
    k         number of blocks
    seed      of the draw, which also depends on layer, head and number of blocks
    exclude   numbers of blocks that are not drawn: around the query's own, the first ones, the last ones; queries in
              these first and last blocks attend to no random blocks
    max_len   length whose blocks are stored with the weights, as `random_blocks`; others are drawn when needed
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
            self.refuse('exclude', 'an odd number of blocks around that of the query, or 0')
        self.check_max_len()

    @property
    def most(self) -> int:
        return sum(self.exclude) + self.k

    def drawn(self, heads: int, layer: int) -> Tensor:
        blocks = ceil_div(self.max_len, self.block)
        return replace(self, layer=layer).draws(tuple(range(heads)), blocks, torch.full((), blocks))

    def draws(self, heads: tuple[int, ...], size: int, blocks: Tensor) -> Tensor:
        """Draw distinct blocks for each block of queries, (h, N, k) or (b, h, N, k); -1 for none.

        Args:
            heads: Indices of the heads.
            size: N, the number of blocks of the longest sequence.
            blocks: Numbers of blocks, () or (b, 1, 1).
        """
        window, first, last = self.exclude
        own, end = torch.arange(size, device=blocks.device), blocks - last
        # Candidates are before and after the window.
        start = torch.minimum(own - window // 2, end) if window else end.expand_as(own + end)
        behind = (own + window // 2 + 1).clamp(min=first) if window else start
        before = (start - first).clamp(min=0)
        count = before + (end - behind).clamp(min=0)
        head = torch.tensor(heads, device=blocks.device).unsqueeze(-1)
        state = mix_bits(mix_bits(torch.full_like(head, self.seed), self.layer), head)
        state = mix_bits(mix_bits(state, blocks), own)  # (b) h N
        found = state.new_zeros(*state.shape, 0)
        for at in range(self.k):  # Bentley and Floyd 1987: one of t + 1, or the last of them if that was drawn before
            most = count - self.k + at
            state = mix_bits(state, at)
            one = state % (most + 1).clamp(min=1)
            one = torch.where((found == one.unsqueeze(-1)).any(dim=-1), most, one)
            found = torch.cat((found, one.unsqueeze(-1)), dim=-1)
        before, behind = before.unsqueeze(-1), behind.unsqueeze(-1)
        found = torch.where(found < before, first + found, behind + found - before)
        return found.masked_fill(((own < first) | (own >= end)).unsqueeze(-1), -1)

    def list_blocks(self) -> Tensor:
        """Return the blocks of its heads, (h, N, k), or (b, h, N, k) for sequences of several lengths."""
        heads, blocks, table = self.head if isinstance(self.head, tuple) else (self.head or 0,), self.count, self.table
        if not isinstance(blocks, Tensor):
            if blocks < self.most:
                return torch.arange(blocks).expand(len(heads), blocks, blocks)
            if table is not None and table.shape[1] == blocks:
                return table[list(heads)]
            return self.draws(heads, blocks, torch.full((), blocks))
        blocks, size = blocks.view(-1, 1, 1), max(ceil_div(self.longest, self.block), 1)
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
        listed = self.list_blocks().to(i.device)
        own = (i // self.block).clamp(0, listed.shape[-2] - 1)
        head: Any = 0
        if isinstance(self.head, tuple):  # Heads are the second axis of the positions.
            head = torch.arange(len(self.head), device=i.device).view(-1, *[1] * (i.ndim - 2))
        row = (expand_size(torch.arange(len(listed), device=i.device), i),) if listed.ndim == 4 else ()
        return (listed[(*row, head, own)] == (j // self.block).unsqueeze(-1)).any(dim=-1)

    def keys_bound(self, n: int, causal: bool) -> int:
        return min(n, max(self.k, self.most - 1) * self.block)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        listed = self.list_blocks().unsqueeze(-1)
        keys = listed * self.block + torch.arange(self.block, device=listed.device)
        keys = keys.masked_fill(listed < 0, -1).flatten(-2)
        return (Branch(Listed(self.block, keys), lambda i, j, marks=None: (i >= 0) & (j >= 0)),)


@pattern('bigbird')
class BigBird(AtRandom):
    """BigBird: blocks around the query's own, global blocks, and random blocks.  Zaheer et al. 2020, arXiv:2007.14062

    window_blocks   number of blocks around the query's own, itself included, odd
    global_blocks   number of blocks that attend to all and that all attend to. `variant='itc'`: half of them first and
                    half last, the first one more; 'etc': the first ones, of tokens added for this
    random_blocks   number of blocks that `RandomBlocks` draws
    seed, max_len   as for `RandomBlocks`
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
        """Return the numbers of global blocks, first and last."""
        last = self.global_blocks // 2 if self.variant == 'itc' else 0
        return self.global_blocks - last, last

    @property
    def others(self) -> RandomBlocks | None:
        """Return the pattern of the random blocks."""
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
        (first, last), own, count = self.ends, at // self.block, expand_size(self.count, at)
        return (own < first) | (own >= count - last) | (count < self.most)

    def near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i // self.block - j // self.block).abs() <= self.window_blocks // 2

    def visible(self, i: Tensor, j: Tensor, marks: Any = None) -> Tensor:
        seen = self.is_global(i) | self.is_global(j) | self.near(i, j)
        return seen if self.others is None else seen | self.others.visible(i, j)

    def keys_bound(self, n: int, causal: bool) -> int:
        return n if self.global_blocks else min(n, self.most * self.block)

    def branches(self, n: int, causal: bool) -> tuple[Branch, ...]:
        several, count = isinstance(self.length, Tensor), ceil_div(n, self.block)
        if count < self.most:  # Shorter sequences of the batch have fewer blocks, too.
            return (Branch(Reach(max(n, 1), 0, 0), lambda i, j, marks=None: (i >= 0) & (j >= 0)),)
        side = self.window_blocks // 2 * self.block
        found = [Branch(Reach(self.block, side, side), self.sees_near)]
        if self.global_blocks or several:
            own = self.global_positions(n)
            found.append(Branch(Columns(own), lambda i, j, marks=None: ~self.is_global(i) & self.is_global(j)))
            found.append(Branch(GatherRows(own), lambda i, j, marks=None: (i >= 0) & (j >= 0)))
        if self.others is not None:
            (drawn,) = self.others.branches(n, causal)
            found.append(Branch(drawn.layout, lambda i, j, marks=None: ~self.is_global(i) & (j >= 0)))
        return tuple(found)

    def global_positions(self, n: int) -> Tensor:
        """Return the positions of global blocks, (k,), or (b, k) with -1 for none. In a short sequence all are."""
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
