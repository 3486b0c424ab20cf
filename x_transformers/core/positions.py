"""Positions that callers give: where rows begin, and what stands in front of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def first_positions(pos: Tensor, real: Tensor | None = None) -> Tensor:
    """The position of the first real token of each row:  ... n -> ... 1. It is 0 where there is no token.

    pos    n | b n | b h n
    real   b n, or of the last tokens alone; None: all are. Of positions that all rows share, the first one counts
    """
    if pos.shape[-1] == 0:
        return pos.new_zeros(*pos.shape[:-1], 1)
    if real is None or pos.ndim == 1:
        return pos[..., :1]
    real = F.pad(real, (pos.shape[-1] - real.shape[-1], 0), value=True)
    first = real.long().argmax(dim=-1, keepdim=True)
    pos = pos.expand(first.shape[0], *pos.shape[1:])
    return pos.gather(-1, first if pos.ndim == 2 else first.unsqueeze(1).expand(-1, pos.shape[1], -1))


def with_front(pos: Tensor, count: int, real: Tensor | None = None) -> Tensor:
    """Positions with those of `count` tokens right in front of each row, so that all of them can be shifted:
    ... n -> ... (count + n)."""
    if count == 0:
        return pos
    front = first_positions(pos, real) + torch.arange(-count, 0, device=pos.device)
    return torch.cat((front, pos.expand(*front.shape[:-1], -1)), dim=-1)
