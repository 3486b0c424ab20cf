"""Paged caches: the states of many sequences in blocks of one pool, with shared prefixes.

place t of a sequence  ->  slot  table[t // block_size] * block_size + t % block_size
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from x_transformers.features.rotary import make_pass_cache
from x_transformers.generation.step import Step

__all__ = ['BlockPool', 'PagedStep', 'PoolIsFull', 'Table']


class PoolIsFull(RuntimeError):
    """There are not as many free blocks as were asked for."""


class BlockPool:
    """Blocks of `block_size` slots for tokens, each counted by how many tables hold it, and tensors with a row a slot.

    A block that several hold is not written to: `Table.reserve` copies it first. Full blocks are found again by what
    they hold, as long as somebody holds them.

    Kwon et al. 2023, arXiv:2309.06180
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(range(num_blocks))[::-1]
        self.holders = [0] * num_blocks
        self.stores: dict[str, Tensor] = {}
        self.known: dict[tuple[int, ...], int] = {}  # the block before it and what a block holds -> the block
        self.keys: dict[int, tuple[int, ...]] = {}

    @property
    def blank(self) -> int:
        """A slot of zeros, for places that are none."""
        return self.num_blocks * self.block_size

    @property
    def used(self) -> int:
        """Return how many blocks are held."""
        return self.num_blocks - len(self.free)

    def take(self, count: int) -> list[int]:
        """Blocks that nobody holds.  Raises PoolIsFull, and takes none, if there are fewer."""
        if count > len(self.free):
            raise PoolIsFull(f'{count} blocks were asked for, {len(self.free)} of {self.num_blocks} are free')
        blocks = [self.free.pop() for _ in range(count)]
        for block in blocks:
            self.holders[block] = 1
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                key = self.keys.pop(block, None)
                if key is not None:
                    del self.known[key]
                self.free.append(block)

    def note(self, block: int, before: int, ids: Sequence[int]) -> None:
        """Remember what a full block holds, behind which other block."""
        key = (before, *ids)
        if key not in self.known and block not in self.keys:
            self.known[key], self.keys[block] = block, key

    def found(self, ids: Sequence[int]) -> list[int]:
        """The blocks that hold the first tokens of a sequence, as many as there are."""
        blocks, before, size = [], -1, self.block_size
        for start in range(0, len(ids) - size + 1, size):
            block = self.known.get((before, *ids[start : start + size]))
            if block is None:
                break
            blocks.append(block)
            before = block
        return blocks

    def copy(self, source: int, target: int) -> None:
        size = self.block_size
        for store in self.stores.values():
            store[target * size : (target + 1) * size] = store[source * size : (source + 1) * size]

    # rows

    def write(self, name: str, slots: Tensor, rows: Tensor) -> None:
        """Put rows (s ...) into slots (s)."""
        rows = rows.reshape(len(slots), -1)
        store = self.stores.get(name)
        if store is None:
            with torch.inference_mode(False):  # a later step may run outside of it
                store = torch.zeros(self.blank + 1, rows.shape[1], dtype=rows.dtype, device=rows.device)
            self.stores[name] = store
        store.index_copy_(0, slots, rows)

    def forget(self) -> None:
        """Free the memory of the slots. No table may hold a block, since what blocks hold is lost."""
        self.stores.clear()

    def read(self, name: str, slots: Tensor) -> Tensor:
        """The rows in slots (b n):  b n r"""
        return self.stores[name].index_select(0, slots.flatten()).view(*slots.shape, -1)

    @property
    def bytes(self) -> int:
        return sum(store.nbytes for store in self.stores.values())


class Table:
    """The blocks of one sequence, which hold its first `length` tokens."""

    def __init__(self, pool: BlockPool, blocks: Sequence[int] = (), length: int = 0) -> None:
        self.pool, self.blocks, self.length = pool, list(blocks), length

    def missing(self, count: int) -> int:
        """Return how many free blocks it needs for `count` tokens more."""
        size = self.pool.block_size
        new = -(-(self.length + count) // size) - len(self.blocks)
        return max(new, 0) + (count > 0 and self.shares_last)

    @property
    def shares_last(self) -> bool:
        """Return True if its next token would stand in a block that others hold."""
        at = self.length // self.pool.block_size
        return at < len(self.blocks) and self.pool.holders[self.blocks[at]] > 1

    def reserve(self, count: int) -> list[int]:
        """Slots for `count` tokens more, which are not there before `fill`.

        raises   PoolIsFull, and changes nothing, if there are too few free blocks
        """
        size, pool, shared = self.pool.block_size, self.pool, self.shares_last
        new = pool.take(self.missing(count))
        if shared:
            at = self.length // size
            old, own = self.blocks[at], new.pop()
            pool.copy(old, own)
            self.blocks[at] = own
            pool.release([old])
        self.blocks += new
        places = range(self.length, self.length + count)
        return [self.blocks[place // size] * size + place % size for place in places]

    def fill(self, ids: Sequence[int]) -> None:
        """Its tokens are these now: what was reserved for them has been written."""
        size, first = self.pool.block_size, self.length // self.pool.block_size
        self.length = len(ids)
        for at in range(first, self.length // size):
            before = self.blocks[at - 1] if at else -1
            self.pool.note(self.blocks[at], before, ids[at * size : (at + 1) * size])

    def fork(self) -> Table:
        """Another one that holds the same blocks."""
        self.pool.hold(self.blocks)
        return Table(self.pool, self.blocks, self.length)

    def share(self, ids: Sequence[int], most: int) -> None:
        """Begin with blocks that hold the first of these tokens already, `most` of them at most. It must be empty."""
        blocks = self.pool.found(ids[:most])
        self.pool.hold(blocks)
        self.blocks, self.length = blocks, len(blocks) * self.pool.block_size

    def clear(self) -> None:
        self.pool.release(self.blocks)
        self.blocks, self.length = [], 0

    def slots(self) -> Tensor:
        """Where its tokens stand, (n)."""
        size = self.pool.block_size
        starts = torch.tensor(self.blocks, dtype=torch.long).unsqueeze(-1) * size
        return (starts + torch.arange(size)).flatten()[: self.length]


class PagedPast:
    """Keys and values of one attention layer in a pool, at the slots (b, n) of each sequence, the new one last."""

    def __init__(self, pool: BlockPool, layer: int, index: Tensor, heads: int) -> None:
        self.pool, self.names, self.index, self.heads = pool, (f'{layer}.keys', f'{layer}.values'), index, heads

    def append(self, k: Tensor, v: Tensor) -> PagedPast:
        for name, rows in zip(self.names, (k, v), strict=True):
            self.pool.write(name, self.index[:, -1], rows)
        return self

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        k, v = (self.pool.read(name, self.index).unflatten(-1, (self.heads, -1)) for name in self.names)
        return k.transpose(1, 2), v.transpose(1, 2)


class PagedStep(Step):
    """A decode step of sequences of unequal length in a pool:  ids (b), indices (b), slots (b, n) -> logits (b, l).

    Shorter sequences have blank slots in front. The slot of the new token is the last one.
    """

    def __call__(self, ids: Tensor, at: Tensor, index: Tensor, pool: BlockPool) -> Tensor:  # type: ignore[override]
        shared = []
        with torch.inference_mode():
            x = self.embed(ids.unsqueeze(-1), at)
            if self.rotary is not None:
                pool.write('positions', index[:, -1], at)
                for name, angles in zip(self.names, self.angles_of(at.unsqueeze(-1)), strict=True):
                    pool.write(name, index[:, -1], angles)
                    shared.append(make_pass_cache(angles))
            pasts = (PagedPast(pool, number, index, layer.kv_heads) for number, layer in enumerate(self.attention))
            x, _ = self.through(x, pasts, shared, self.visibility(index, pool, x))
        out = self.read_out(x)
        return (out[0] if isinstance(out, tuple) else out).squeeze(1)

    def visibility(self, index: Tensor, pool: BlockPool, x: Tensor) -> Tensor | None:
        """Return what is added to the scores, or a mask of the keys, (b, h, 1, n); None if all keys are visible."""
        is_ragged = bool((index[:, 0] == pool.blank).any())
        mask = (index != pool.blank)[:, None, None] if is_ragged else None
        if self.bias is None:
            return mask
        bias: Any = self.bias(1, index.shape[1]).unsqueeze(0).to(x.dtype)  # The last keys are the nearest.
        return bias if mask is None else torch.where(mask, bias, -torch.inf)
