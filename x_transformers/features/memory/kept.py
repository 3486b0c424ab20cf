"""Memories of one layer and of one segment: rows, which of them are real, and what is pushed out by new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from x_transformers.core.checks import as_mask
from x_transformers.flags import format_value
from x_transformers.flags.checks import Maybe

Pair = tuple[Tensor | None, Tensor | None]


@dataclass
class Memories:
    """Memories (b n d), and which of them are real (b n), None for all."""

    rows: Tensor
    real: Maybe[Tensor] = None

    @property
    def count(self) -> int:
        return self.rows.shape[1]


@dataclass
class Stored:
    """Memories of one layer, the last ones and compressed ones, with masks of both. None for none, or for all real."""

    mem: Maybe[Tensor]
    cmem: Maybe[Tensor]
    mem_real: Maybe[Tensor] = None
    cmem_real: Maybe[Tensor] = None

    @property
    def cmem_count(self) -> int:
        return 0 if self.cmem is None else self.cmem.shape[1]

    @property
    def whole(self) -> Tensor | None:
        """As rows in front of a segment, oldest first."""
        return concat_memories(self.cmem, self.mem)

    @property
    def whole_real(self) -> Tensor | None:
        return concat_masks(self.cmem, self.cmem_real, self.mem, self.mem_real)

    def hide(self, mask: Any, name: str) -> None:
        """Take masks of both, (mask of mem, mask of cmem), or one of both in the order of `whole`."""
        if mask is None or self.whole is None:
            return
        batch, at = self.whole.shape[0], self.cmem_count
        if torch.is_tensor(mask):
            both = as_mask(mask, name, batch, self.whole.shape[1], like=self.whole)
            self.cmem_real, self.mem_real = both[:, :at], both[:, at:]
            return
        if not isinstance(mask, (list, tuple)) or len(mask) != 2:
            raise ValueError(f'`{name}` must be a mask, or a pair of masks as memories are, got {format_value(mask)}')
        for part, own in (('mem', mask[0]), ('cmem', mask[1])):
            rows = getattr(self, part)
            if own is not None:
                count = 0 if rows is None else rows.shape[1]
                setattr(self, f'{part}_real', as_mask(own, name, batch, count, like=self.whole))

    def followed_by(self, h: Tensor, token_mask: Tensor | None, most: int) -> tuple[Stored, Memories]:
        """With the hidden states of a segment behind, at most so many; and what leaves, oldest first."""
        mem, mem_real = concat_memories(self.mem, h), concat_masks(self.mem, self.mem_real, h, token_mask)
        left = max(mem.shape[1] - most, 0)
        gone, stays = (None, None) if mem_real is None else (mem_real[:, :left], mem_real[:, left:])
        old = Memories(mem[:, :left], gone)
        return Stored(mem[:, left:], self.cmem, stays, self.cmem_real), old

    def take(self, new: Memories, most: int) -> None:
        """Add compressed memories, of which the last ones stay."""
        token_mask = concat_masks(self.cmem, self.cmem_real, new.rows, new.real)
        cmem = concat_memories(self.cmem, new.rows)
        left = max(cmem.shape[1] - most, 0)
        self.cmem, self.cmem_real = cmem[:, left:], None if token_mask is None else token_mask[:, left:]

    def pair(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mem, cmem = (like[:, :0] if t is None else t for t in (self.mem, self.cmem))
        return mem, cmem


def concat_memories(first: Tensor | None, second: Tensor | None) -> Maybe[Tensor]:
    if first is None or second is None:
        return second if first is None else first
    return torch.cat((first, second), dim=1)


def concat_masks(
    first: Tensor | None, first_real: Tensor | None, second: Tensor | None, second_real: Tensor | None
) -> Tensor | None:
    """Masks of two parts as one, None for all real."""
    if first_real is None and second_real is None:
        return None
    parts = [(t, token_mask) for t, token_mask in ((first, first_real), (second, second_real)) if t is not None]
    whole = [t.new_ones(t.shape[:2], dtype=torch.bool) if token_mask is None else token_mask for t, token_mask in parts]
    return torch.cat(whole, dim=1)


def real_rows(states: Mapping[str, Any], start: Tensor | None, tokens: int) -> Tensor | None:
    """Return which of the last tokens of a call, as the stack sees them, are real (b n); None for all.

    states   what the model remembers of the call
    start    padding on the left of each row (b)
    """
    state = states.get('real')
    token_mask = None if state is None else state.tensor.squeeze(-1)[:, -tokens:]
    if start is None:
        return token_mask
    begun = torch.arange(tokens, device=start.device) >= start.unsqueeze(-1)
    return begun if token_mask is None else begun & token_mask


class Fixed:
    """A module whose parameters, and those of its parts, are constants: gradients go through it to its input alone."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        if isinstance(found, Tensor):
            return found.detach()
        return Fixed(found) if isinstance(found, nn.Module) else found

    def __call__(self, *args: Any) -> Any:
        own = {name: parameter.detach() for name, parameter in self.module.named_parameters()}
        return functional_call(self.module, own, args)
