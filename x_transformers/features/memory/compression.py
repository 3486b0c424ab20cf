"""Ways to make one memory of several:  b n d -> b ceil(n / c) d, oldest first.

Where c does not divide n, the first memory is made of fewer: it is padded in front, with zeros for convolutions, with
its first entry for pools. What is not real, by a mask (b n), is zero, and no part of a pool; a memory made of nothing
real is not real itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import to_float
from x_transformers.core.rows import gather_along
from x_transformers.flags.checks import Maybe

Compressed = tuple[Tensor, Tensor | None]


class Compression(nn.Module):
    """What all ways share: `ratio` memories become one."""

    pads_with_edge = False
    by_use = False

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, old: Tensor, token_mask: Tensor | None = None) -> Compressed:
        """Memories (b n d), and which are real (b n), None for all, as fewer of each."""
        front = -old.shape[1] % self.ratio
        if token_mask is not None:
            old = old.masked_fill(~token_mask.unsqueeze(-1), 0.0)
            token_mask = self.padded(token_mask.unsqueeze(-1), front).squeeze(-1).unflatten(1, (-1, self.ratio))
        new = self.joined(self.padded(old, front), token_mask).to(old.dtype)
        return new, None if token_mask is None else token_mask.any(dim=-1)

    def padded(self, t: Tensor, front: int) -> Tensor:
        edge = t[:, :1].expand(-1, front, -1)
        return torch.cat((edge if self.pads_with_edge else torch.zeros_like(edge), t), dim=1)

    def joined(self, old: Tensor, token_mask: Tensor | None) -> Tensor:
        """Memories (b (n c) d), real ones (b n c), as b n d."""
        raise NotImplementedError

    def expanded(self, new: Tensor, count: int) -> Tensor:
        """The way back, to the last `count` memories:  b n d -> b count d"""
        new = new.repeat_interleave(self.ratio, dim=1)
        return new[:, new.shape[1] - count :]


class Mean(Compression):
    pads_with_edge = True

    def joined(self, old: Tensor, token_mask: Tensor | None) -> Tensor:
        parts = old.unflatten(1, (-1, self.ratio))
        if token_mask is None:
            return parts.mean(dim=2)
        return (to_float(parts).sum(dim=2) / token_mask.sum(dim=-1, keepdim=True).clamp(min=1)).to(old.dtype)


class Max(Compression):
    pads_with_edge = True

    def joined(self, old: Tensor, token_mask: Tensor | None) -> Tensor:
        parts = old.unflatten(1, (-1, self.ratio))
        if token_mask is None:
            return parts.amax(dim=2)
        hidden = ~token_mask.unsqueeze(-1)
        highest = parts.masked_fill(hidden, torch.finfo(old.dtype).min).amax(dim=2)
        return highest.masked_fill(hidden.all(dim=2), 0.0)


class Learned(Compression):
    """Convolutions; with `back`, a transposed one goes the way back."""

    def __init__(self, ratio: int, dim: int, back: bool, as_mean: bool) -> None:
        super().__init__(ratio)
        self.make(dim, as_mean)
        self.back: Maybe[nn.Module] = nn.ConvTranspose1d(dim, dim, ratio, stride=ratio) if back else None
        if self.back is not None and as_mean:
            like_pool(self.back, 1.0)  # each memory is repeated

    def make(self, dim: int, as_mean: bool) -> None:
        raise NotImplementedError

    def expanded(self, new: Tensor, count: int) -> Tensor:
        old = self.back(new.mT).mT.to(new.dtype)
        return old[:, old.shape[1] - count :]


class Conv(Learned):
    def make(self, dim: int, as_mean: bool) -> None:
        self.conv = nn.Conv1d(dim, dim, self.ratio, stride=self.ratio)
        if as_mean:
            like_pool(self.conv, 1 / self.ratio)

    def joined(self, old: Tensor, token_mask: Tensor | None) -> Tensor:
        return self.conv(old.mT).mT


class DilatedConv(Learned):
    """Convolutions of two entries that are 1, 2, 4, ... apart, GELU between them, of whose outputs each c-th is taken.

    Where c is a power of two, an output sees its c entries; else a few before them, too.
    """

    def make(self, dim: int, as_mean: bool) -> None:
        steps = [2**k for k in range(math.ceil(math.log2(self.ratio)))]
        self.convs: Any = nn.ModuleList(nn.Conv1d(dim, dim, 2, dilation=step) for step in steps)
        for conv in self.convs if as_mean else ():
            like_pool(conv, 0.5)

    def joined(self, old: Tensor, token_mask: Tensor | None) -> Tensor:
        reach = sum(conv.dilation[0] for conv in self.convs)
        x = F.pad(old.mT, (reach, 0))
        for number, conv in enumerate(self.convs):
            x = conv(F.gelu(x) if number else x)
        return x[..., self.ratio - 1 :: self.ratio].mT


class MostUsed(Compression):
    """The memories that queries have attended to most are kept as they are."""

    by_use = True

    def kept(self, old: Tensor, token_mask: Tensor | None, use: Tensor) -> Compressed:
        """`use` is how much of all attention each got (b n). Nothing learns which are kept."""
        use = use if token_mask is None else use.masked_fill(~token_mask, -1.0)
        count = -(-old.shape[1] // self.ratio)
        at = use.topk(count, dim=-1).indices.sort(dim=-1).values
        return gather_along(old, at, -2), None if token_mask is None else token_mask.gather(-1, at)


def like_pool(conv: Any, weight: float) -> None:
    """Each channel for itself, with one weight for all entries."""
    with torch.no_grad():
        conv.weight.zero_().diagonal(dim1=0, dim2=1).fill_(weight)
        conv.bias.zero_()


LEARNED = {'conv': Conv, 'dilated_conv': DilatedConv}
POOLS = {'mean': Mean, 'max': Max, 'most_used': MostUsed}
