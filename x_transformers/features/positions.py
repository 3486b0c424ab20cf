"""Absolute position embeddings, and the tables and angles that positions of any kind are made of.

Everything here is a function of the positions of queries and keys, so that caches, memories, left padding and positions
passed by the user need no special cases.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import check_offset, check_range, is_above, make_positions
from x_transformers.core.modes import at_least_float, is_transformed, promote_dtypes
from x_transformers.features.norms import l2norm
from x_transformers.flags import ConfigError


def angles_at(pos: Tensor, frequencies: Tensor, dtype: torch.dtype, divisor: float = 1.0) -> Tensor:
    """Return angles in radians, positions (...) times frequencies that broadcast; with fewer digits in 0 .. 2 pi.

    A product in float32 is wrong by 1e-2 at position 1e6, so it is formed in float64, and reduced before it is cast.
    """
    wide = promote_dtypes(pos.device)
    angles = pos.to(wide) * frequencies.to(wide) / divisor
    return angles if dtype == torch.float64 else angles.remainder(2 * math.pi).to(dtype)


# what the frequencies of sinusoids divide their number by: half of the width, or one less
DENOMINATORS = {'d': 0, 'half_minus_1': 1}


def sinusoids(pos: Tensor, dim: int, theta: float, denominator: str, dtype: torch.dtype) -> Tensor:
    """Sines, then cosines, of positions (...):  ... d.  arXiv:1706.03762, where they alternate"""
    half = dim // 2
    places = torch.arange(half, device=pos.device, dtype=promote_dtypes(pos.device))
    frequencies = theta ** -(places / (half - DENOMINATORS[denominator]))
    angles = angles_at(pos.unsqueeze(-1), frequencies, dtype)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class KeepsPrecision(nn.Module):
    """A module whose buffers stay in float32 at least, whatever the model is cast to: angles need the digits."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KeepsPrecision:
        before: dict[str, Any] = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = before[name].to(buffer.device)
        return self


class Placed(nn.Module):
    """A module that knows where it is without a buffer, `place`: device, and dtype of at least float32.

    Its tables come from its configuration and are made where they are used, so that memory allocated without content,
    or weights assigned to a module without memory, leave nothing undefined.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.empty(0).device, torch.float32

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Placed:
        super()._apply(fn, recurse)
        device, dtype = self.place
        moved = fn(torch.empty(0, device=device, dtype=dtype))
        self.place = moved.device, at_least_float(moved.dtype)
        return self

    def found_on(self, device: torch.device) -> None:
        """Settle where the module is, if its weights were assigned and it has none."""
        if self.place[0].type == 'meta':
            self.place = device, self.place[1]


def is_traced() -> bool:
    """Return True if new tensors are not ordinary ones, and must not outlive the call."""
    return bool(torch.compiler.is_compiling() or is_transformed() or torch._C._len_torch_dispatch_stack())


def constant(values: tuple[float, ...], device: Any, dtype: torch.dtype) -> Tensor:
    """Numbers of a configuration as a tensor. Kept, where it is one like any other."""
    if is_traced():
        return torch.tensor(values, device=device, dtype=torch.float32).to(dtype)
    return kept_constant(values, torch.device(device), dtype)


@functools.lru_cache(maxsize=256)
def kept_constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=torch.float32).to(dtype)


# vectors added to the input


def positions_of(
    length: int, pos: Tensor | None, seq_start_pos: Tensor | None, offset: int | Tensor, device: Any
) -> Tensor:
    """Positions (n,) or (b n), counted from the first real token of each row, never below 0."""
    if pos is None:
        pos = make_positions(offset, length, device)
    return pos if seq_start_pos is None else (pos - seq_start_pos[:, None]).clamp(min=0)


def no_positions(
    x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int | Tensor = 0
) -> int:
    """Stand in for a table, as `pos_emb` of a model that adds no positions: there is nothing to add."""
    return 0


class AbsolutePositionalEmbedding(nn.Module):
    """A learned vector per position times `scale`: by default dim ** -0.5, or 1 if `l2norm_embed` normalizes it.

    x        b n ...      only its length and device are used
    pos      n | b n      positions, 0.. if None
    offset                position of the first token, an integer or a tensor of one
    returns  n d | b n d
    """

    def __init__(self, dim: int, max_seq_len: int, l2norm_embed: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.scale = (1.0 if l2norm_embed else dim**-0.5) if scale is None else float(scale)
        self.max_seq_len, self.l2norm_embed = max_seq_len, l2norm_embed
        self.emb = nn.Embedding(max_seq_len, dim)

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int | Tensor = 0
    ) -> Tensor:
        length = x.shape[1]
        if type(offset) is not int:
            check_offset(offset, 'offset')
        if pos is None and is_above(offset + length, self.max_seq_len):
            given = int(offset + length)
            raise ValueError(f'sequences must have at most `max_seq_len={self.max_seq_len}` tokens, got {given}')
        if pos is not None and seq_start_pos is None:
            check_range(pos, 'pos', 0, self.max_seq_len - 1, 'positions')
        embedded = self.emb(positions_of(length, pos, seq_start_pos, offset, x.device))
        embedded = l2norm(embedded) if self.l2norm_embed else embedded
        return embedded if self.scale == 1 else embedded * self.scale


class ScaledSinusoidalEmbedding(nn.Module):
    """Sinusoids of the position p, first sines, then cosines, times a scale, learned if None.  arXiv:1706.03762

        sin(p w_k), cos(p w_k),   w_k = theta ** (-k / n),   k = 0 .. dim / 2 - 1

    pos           n | b n      positions, 0.. if None
    offset                     position of the first token, an integer or a tensor of one
    denominator   n is dim / 2 if 'd', as 2 k / d has it; with 'half_minus_1', as in Whisper, dim / 2 - 1
    returns       n d | b n d
    """

    kind: Any

    def __init__(self, dim: int, theta: float = 10000, scale: float | None = None, denominator: str = 'd') -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f'the width of a sinusoidal embedding must be even, got {dim}')
        if denominator not in DENOMINATORS:
            raise ConfigError(f'`denominator` must be one of {", ".join(DENOMINATORS)}, got {denominator!r}')
        if denominator == 'half_minus_1' and dim < 4:
            raise ConfigError(f"`sinu_denominator='half_minus_1'` needs a width of at least 4, got {dim}")
        self.scale: Any = nn.Parameter(torch.full((1,), dim**-0.5)) if scale is None else float(scale)
        self.dim, self.theta, self.denominator = dim, theta, denominator
        if scale is not None:  # it holds nothing but the dtype and the device of the model
            self.register_buffer('kind', torch.empty(0), persistent=False)

    @property
    def like(self) -> Tensor:
        return self.scale if isinstance(self.scale, Tensor) else self.kind

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int | Tensor = 0
    ) -> Tensor:
        check_offset(offset, 'offset')
        pos = positions_of(x.shape[1], pos, seq_start_pos, offset, x.device)
        vectors = sinusoids(pos, self.dim, self.theta, self.denominator, at_least_float(self.like.dtype))
        return vectors.to(self.like.dtype) * self.scale
