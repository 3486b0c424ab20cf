"""Positions of tokens in a pattern: those of each sequence without padding.

Positions count the tokens of a sequence from its first real one. Memory tokens, prefixes, class tokens and registers
are outside of the pattern (`outside_pattern`): all tokens attend to them, and they attend to all. A pattern of
differences (`Sliding`) needs neither: padding and a prefix do not change distances.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from x_transformers.core.checks import can_read_values
from x_transformers.flags.checks import Maybe
from x_transformers.patterns import Pattern


class Placement(NamedTuple):
    """Indices of the keys of a call that have positions in a pattern.

    count     number of tokens outside of the pattern
    offset    b     index of the first token with a position, if sequences differ; None: `count` in all
    outside   b p   or 1 p, indices of the tokens outside; None for the first ones
    table     t     indices of the other tokens, if they are not adjacent; an `offset` counts its entries
    lengths   b     number of tokens of each sequence, from its first real one to its last; None: up to the end
    """

    count: int = 0
    offset: Maybe[Tensor] = None
    outside: Maybe[Tensor] = None
    table: Maybe[Tensor] = None
    lengths: Maybe[Tensor] = None

    @property
    def by_row(self) -> bool:
        """Return True if indices of keys are not positions plus one number for all sequences."""
        return self.offset is not None or self.table is not None or self.lengths is not None

    @classmethod
    def of(cls, call: Any, pattern: Pattern) -> Placement:
        """Return the placement of the tokens of a call of self-attention for a pattern."""
        outside, index = call.inputs.get('outside_pattern'), call.inputs.get('index')
        if pattern.of_differences and not pattern.depends_on_length and not isinstance(outside, Tensor):
            return cls()
        pads = None if index is None else -index[:, 0]
        # The size of an image is fixed: what a mask hides at its beginning are pixels, not padding.
        mask = call.token_mask if call.causal or pattern.size is None else None
        found = cls.among(call.keys, outside, pads, mask, call.summed, pattern.depends_on_length)
        if call.summed and found.offset is not None:
            # Sequences may begin before the first cached key: then only the boundaries of blocks matter.
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
        """Return the placement of tokens among `keys` keys.

        Args:
            keys: Number of keys.
            outside: Number of first tokens outside of the pattern, or indices (p,) of the tokens outside.
            pads: Padding on the left of each sequence (b,), if known.
            mask: True for real tokens, (b, gone + keys). Without `pads`, a sequence begins with the first real one.
            gone: Number of earlier keys that the cache has dropped.
            with_lengths: Also compute the lengths of sequences.
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

    # Indices of keys, and positions in the pattern.

    def positions(self, keys: int, device: torch.device) -> Tensor:
        """Return the position of each key, j or b j; negative for keys without one."""
        place = torch.arange(keys, device=device)
        if self.table is not None:
            place = torch.full_like(place, -keys).scatter(0, self.table, torch.arange(len(self.table), device=device))
            return place if self.offset is None else place - self.offset.unsqueeze(-1)
        return place - (self.count if self.offset is None else self.offset.unsqueeze(-1))

    def indices(self, positions: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """Return the indices of the keys at positions (b ...), and True where there is one."""
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
        """Return the indices of the tokens outside, b|1 p."""
        return torch.arange(self.count, device=device)[None] if self.outside is None else self.outside

    def is_outside(self, keys: int, device: torch.device) -> Tensor:
        """Return True for the keys outside, b|1 j."""
        at = self.outside_keys(device)
        # Those that the cache has dropped have no key.
        return torch.zeros(len(at), keys, dtype=torch.bool, device=device).scatter(1, at, True)
