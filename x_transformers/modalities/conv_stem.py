"""Convolutional stems: audio frames or other vectors in time, as fewer tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import check_real_first
from x_transformers.flags import Check, is_int


def is_conv(value: Any) -> bool:
    if not (isinstance(value, (tuple, list)) and len(value) == 4 and all(map(is_int, value))):
        return False
    channels, kernel, stride, padding = value
    return min(channels, kernel, stride) >= 1 and 0 <= 2 * padding < kernel


convolutions = Check(
    'a list of (channels, kernel, stride, padding), where twice the padding is less than the kernel,',
    lambda value: isinstance(value, (tuple, list)) and len(value) > 0 and all(map(is_conv, value)),
    'Sequence[Sequence[int]]',
)


class ConvStem(nn.ModuleList):
    """Convolutions along the sequence, with GELU after each:  b n dim_in -> b m channels.

    Each leaves (n + 2 padding - kernel) // stride + 1 of n tokens. A row with padding gives what it gives alone. The
    padding stands behind it: in front or in between, it would move what later tokens stand for.

    convs   (channels, kernel, stride, padding) of each

    Radford et al. 2022, arXiv:2212.04356
    """

    def __init__(self, dim_in: int, convs: Sequence[Sequence[int]]) -> None:
        widths = (dim_in, *(channels for channels, *_ in convs))
        super().__init__(
            nn.Conv1d(width, *conv[:2], stride=conv[2], padding=conv[3])
            for width, conv in zip(widths, convs, strict=False)
        )
        self.dim_in, self.dim_out = dim_in, widths[-1]
        # frames that one token stands for, without what its kernel sees beside them
        self.spans = [(kernel - 2 * padding, stride) for _, kernel, stride, padding in convs]

    @property
    def shortest(self) -> int:
        """Smallest number of vectors that give a token."""
        count = 1
        for span, stride in reversed(self.spans):
            count = (count - 1) * stride + span
        return count

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return tokens, and a mask of the real ones, which stand for real vectors only by `mask` (b, n)."""
        if mask is not None:
            check_real_first(mask, 'mask', 'convolutions count from the first one')
        if x.shape[1] < self.shortest:
            raise ValueError(f'`x` got {x.shape[1]} vectors, `conv_stem` needs at least {self.shortest}')
        for conv, (span, stride) in zip(self, self.spans, strict=True):
            x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0.0)
            x = F.gelu(conv(x.transpose(1, 2))).transpose(1, 2)
            mask = None if mask is None else spanned_lengths(mask, span, stride)
        return x, mask

    def real(self, mask: Tensor) -> Tensor:
        """Return a mask (b, m) of real tokens, for a mask (b, n) of vectors.  Raises ValueError as a call does."""
        check_real_first(mask, 'mask', 'convolutions count from the first one')
        for span, stride in self.spans:
            mask = spanned_lengths(mask, span, stride)
        return mask


def spanned_lengths(mask: Tensor, span: int, stride: int) -> Tensor:
    """Return a mask of tokens that stand for real vectors only:  (b, n) -> (b, m)."""
    return mask.unfold(1, span, stride).all(dim=-1)
