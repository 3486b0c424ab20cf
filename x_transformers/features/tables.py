"""What positions are made of: tables and angles that keep their digits, and know where they are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, transformed, widest


def angles_at(pos: Tensor, frequencies: Tensor, dtype: torch.dtype, divisor: float = 1.0) -> Tensor:
    """Of positions (...) by frequencies that broadcast to them, in radians; those of less digits lie in 0 .. 2 pi.

    A product in float32 is wrong by 1e-2 at position 1e6, so it is formed in float64, and reduced before it is cast.
    """
    wide = widest(pos.device)
    angles = pos.to(wide) * frequencies.to(wide) / divisor
    return angles if dtype == torch.float64 else angles.remainder(2 * math.pi).to(dtype)


# what the frequencies of sinusoids divide their number by: half of the width, or one less
DENOMINATORS = {'d': 0, 'half_minus_1': 1}


def sinusoids(pos: Tensor, dim: int, theta: float, denominator: str, dtype: torch.dtype) -> Tensor:
    """Sines, then cosines, of positions (...):  ... d.  arXiv:1706.03762, where they alternate"""
    half = dim // 2
    places = torch.arange(half, device=pos.device, dtype=widest(pos.device))
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
    return bool(torch.compiler.is_compiling() or transformed() or torch._C._len_torch_dispatch_stack())


def constant(values: tuple[float, ...], device: Any, dtype: torch.dtype) -> Tensor:
    """Numbers of a configuration as a tensor. Kept, where it is one like any other."""
    if is_traced():
        return torch.tensor(values, device=device, dtype=torch.float32).to(dtype)
    return kept_constant(values, torch.device(device), dtype)


@functools.lru_cache(maxsize=256)
def kept_constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=torch.float32).to(dtype)
