"""Positions that a pattern counts: the tokens of each sequence without padding.

A pattern counts the tokens of a row from its first real one, as if the row were alone. Memory tokens, prefixes, class
tokens and registers stand outside of it (`outside_pattern`): all tokens attend to them, and they attend to all. A
pattern of differences alone (`Sliding`) needs neither: distances are the same with padding and a prefix in front.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from x_transformers.core.checks import can_read_values
from x_transformers.flags.checks import Maybe
from x_transformers.patterns import Pattern


class Placement(NamedTuple):
    """Where the tokens stand that a pattern counts, among the keys of a call.

    count     how many tokens stand outside of the pattern; by default in front of all others
    offset    b     index of the first token that is counted, where rows differ; None: `count` in all rows
    outside   b p   or 1 p, at which keys the outside tokens stand; None for the first ones
    table     t     at which keys the others stand, if not side by side; an `offset` counts its entries
    lengths   b     how many tokens each row has, from its first real one to its last; None: up to the end
    """

    count: int = 0
    offset: Maybe[Tensor] = None
    outside: Maybe[Tensor] = None
    table: Maybe[Tensor] = None
    lengths: Maybe[Tensor] = None

    @property
    def by_row(self) -> bool:
        """Return True if indices of keys do not follow from positions by one number for all rows."""
        return self.offset is not None or self.table is not None or self.lengths is not None

    @classmethod
    def of(cls, call: Any, pattern: Pattern) -> Placement:
        """Return where the tokens of a call of self-attention stand for a pattern."""
        outside, index = call.inputs.get('outside_pattern'), call.inputs.get('index')
        if pattern.of_differences and not pattern.depends_on_length and not isinstance(outside, Tensor):
            return cls()
        pads = None if index is None else -index[:, 0]
        # The size of an image is fixed: what a mask hides at its beginning are pixels, not padding.
        mask = call.token_mask if call.causal or pattern.size is None else None
        found = cls.among(call.keys, outside, pads, mask, call.summed, pattern.depends_on_length)
        if call.summed and found.offset is not None:
            # Rows may have begun before the first key that is kept: then only blocks must stay where they are.
            period: Any = pattern.period
            found = found._replace(offset=torch.where(found.offset < 0, found.offset % period, found.offset))
        return found

    @classmethod
    def among(
        cls,
        keys: int,
        outside: int | Tensor | None,
        pads: Maybe[Tensor],
        mask: Tensor | None,
        gone: int = 0,
        with_lengths: bool = False,
    ) -> Placement:
        """Return where tokens stand among `keys`.

        Args:
            keys: How many there are.
            outside: How many of the first tokens stand outside, or at which keys the outside tokens stand (p).
            pads: Padding on the left of each row (b), if it is known.
            mask: Which tokens are real, (b, gone + keys). Without `pads`, a row begins with the first real one.
            gone: How many earlier keys have left the cache.
            with_lengths: Whether lengths of rows are asked for.
        """
        table = places = None
        count = len(outside) if isinstance(outside, Tensor) else outside or 0
        if isinstance(outside, Tensor):
            others = torch.zeros(keys, dtype=torch.long, device=outside.device).index_fill(0, outside, 1)
            table, places = others.argsort(stable=True)[: keys - count], outside.unsqueeze(0)
        if keys == count or (mask is None and pads is None):
            return cls(count, None, places, table)
        real: Any = None
        if mask is not None and mask.shape[1] == gone + keys:
            real = mask[:, count:] if table is None else mask.index_select(1, table)
        first, offset = 0 if table is not None else count, None
        if pads is not None:
            offset = pads + first
            if count and table is None:
                places = pads.unsqueeze(-1) + torch.arange(count, device=pads.device)
        elif real is not None and not (can_read_values(real) and bool(real[:, :1].all())):
            offset = real.to(torch.uint8).argmax(dim=-1) + (first - gone)
        lengths = None
        padding: Any = pads
        known: Any = real
        if with_lengths and real is None:
            lengths = keys - count - padding
        elif with_lengths and not (can_read_values(known) and bool(known[:, [0, -1]].all())):
            end = known.shape[1] - known.flip(-1).to(torch.uint8).argmax(dim=-1)
            lengths = end if offset is None else end + (first - gone) - offset
        return cls(count, offset, places, table, lengths)

    # indices of keys, and positions in the pattern

    def positions(self, keys: int, device: torch.device) -> Tensor:
        """Return the position of each key, j or b j; negative for what is not counted."""
        place = torch.arange(keys, device=device)
        if self.table is not None:
            place = torch.full_like(place, -keys).scatter(0, self.table, torch.arange(len(self.table), device=device))
            return place if self.offset is None else place - self.offset.unsqueeze(-1)
        return place - (self.count if self.offset is None else self.offset.unsqueeze(-1))

    def indices(self, positions: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """Return at which of the keys positions (b ...) stand, and which of them stand at any."""
        real = positions >= 0
        if self.offset is None and self.table is None:
            index = positions + self.count if self.count else positions
        else:
            index = positions if self.offset is None else positions + self.offset.view(-1, *[1] * (positions.ndim - 1))
        if self.table is not None:
            real = real & (index < len(self.table))
            return self.table[index.clamp(0, max(len(self.table) - 1, 0))], real
        return index.clamp(0, max(keys - 1, 0)), real & (index < keys)

    def outside_keys(self, device: torch.device) -> Tensor:
        """Return at which keys the outside tokens stand:  b|1 p"""
        return torch.arange(self.count, device=device)[None] if self.outside is None else self.outside

    def is_outside(self, keys: int, device: torch.device) -> Tensor:
        """Return which of the keys stand outside:  b|1 j"""
        at = self.outside_keys(device)
        # Those that have left the cache are at none.
        return torch.zeros(len(at), keys, dtype=torch.bool, device=device).scatter(1, at, True)
