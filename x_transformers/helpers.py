"""Small functions that other people's code imports from this package. Ours does without most of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from einops import pack, unpack
from torch import Tensor

T = TypeVar('T')


def exists(val: Any) -> bool:
    return val is not None


def default(val: T | None, d: T) -> T:
    """`val`, or `d` in place of None."""
    return d if val is None else val


def identity(t: T, *args: Any, **kwargs: Any) -> T:
    return t


def cast_tuple(t: Any, length: int = 1) -> tuple:
    """A tuple as it is, anything else `length` times."""
    return t if isinstance(t, tuple) else (t,) * length


def join(arr: Sequence[str], delimiter: str = ', ') -> str:
    return delimiter.join(arr)


def always(val: T) -> Callable[..., T]:
    """A function that gives `val`, whatever it is called with."""
    return lambda *args, **kwargs: val


def equals(val: Any) -> Callable[[Any], bool]:
    return lambda x: x == val


def not_equals(val: Any) -> Callable[[Any], bool]:
    return lambda x: x != val


def pad_at_dim(t: Tensor, pad: tuple[int, int], dim: int = -1, value: float = 0.0) -> Tensor:
    """Pad one axis by (before, after); negative numbers cut."""
    axes_behind = t.ndim - 1 - (dim % t.ndim)
    return F.pad(t, (0, 0) * axes_behind + tuple(pad), value=value)


def pack_one(t: Tensor, pattern: str) -> tuple[Tensor, list]:
    """einops.pack of a single tensor."""
    return pack([t], pattern)


def unpack_one(t: Tensor, shapes: list, pattern: str) -> Tensor:
    """The way back from `pack_one`."""
    return unpack(t, shapes, pattern)[0]


def default_device(device: torch.device | str | None = None) -> torch.device:
    """The device given, or the fastest one that there is: xpu, cuda, mps, cpu."""
    if device is not None:
        return torch.device(device)
    for name in ('xpu', 'cuda', 'mps'):
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available():
            return torch.device(name)
    return torch.device('cpu')
