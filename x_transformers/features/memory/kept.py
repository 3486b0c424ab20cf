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
    """Memories (b n d), None for none, and which of them are real (b n), None for all."""

    rows: Maybe[Tensor] = None
    real: Maybe[Tensor] = None

    @property
    def count(self) -> int:
        return 0 if self.rows is None else self.rows.shape[1]

    def concat(self, other: Memories) -> Memories:
        if self.rows is None or other.rows is None:
            return other if self.rows is None else self
        real = None
        if self.real is not None or other.real is not None:
            parts = [t.rows.new_ones(t.rows.shape[:2]).bool() if t.real is None else t.real for t in (self, other)]
            real = torch.cat(parts, dim=1)
        return Memories(torch.cat((self.rows, other.rows), dim=1), real)

    def split(self, most: int) -> tuple[Memories, Memories]:
        """Return the entries that leave, oldest first, and the last ones, at most so many."""
        left = max(self.count - most, 0)
        gone, stays = (None, None) if self.real is None else (self.real[:, :left], self.real[:, left:])
        return Memories(self.rows[:, :left], gone), Memories(self.rows[:, left:], stays)


@dataclass
class Stored:
    """Memories of one layer, the last ones and compressed ones."""

    mem: Memories
    cmem: Memories

    @property
    def whole(self) -> Memories:
        """Return both, as prepended to a segment, oldest first."""
        return self.cmem.concat(self.mem)

    def hide(self, mask: Any, name: str) -> None:
        """Take masks of both, (mask of mem, mask of cmem), or one of both in the order of `whole`."""
        whole = self.whole.rows
        if mask is None or whole is None:
            return
        batch, at = whole.shape[0], self.cmem.count
        if torch.is_tensor(mask):
            both = as_mask(mask, name, batch, whole.shape[1], like=whole)
            self.cmem.real, self.mem.real = both[:, :at], both[:, at:]
            return
        if not isinstance(mask, (list, tuple)) or len(mask) != 2:
            raise ValueError(f'`{name}` must be a mask, or a pair of masks as memories are, got {format_value(mask)}')
        for own, given in zip((self.mem, self.cmem), mask, strict=True):
            if given is not None:
                own.real = as_mask(given, name, batch, own.count, like=whole)

    def take(self, new: Memories, most: int) -> None:
        """Add compressed memories, of which the last ones stay."""
        _, self.cmem = self.cmem.concat(new).split(most)

    def pair(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mem, cmem = (like[:, :0] if t.rows is None else t.rows for t in (self.mem, self.cmem))
        return mem, cmem


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
