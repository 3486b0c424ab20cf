"""Small functions that published code imports from modules of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from einops import pack, unpack
from torch import Tensor

from x_transformers.core.modes import to_float

T = TypeVar('T')


def exists(val: Any) -> bool:
    return val is not None


def default(val: T | None, d: T) -> T:
    """Return `val`, or `d` in place of None."""
    return d if val is None else val


def default_or_call(*vals: Any) -> Any:
    """Return the first value that is not None, or None. A function is called for its value."""
    val = next((val for val in vals if val is not None), None)
    return val() if callable(val) else val


def identity(t: T, *args: Any, **kwargs: Any) -> T:
    return t


def cast_tuple(t: Any, length: int = 1) -> tuple:
    """Return a tuple unchanged, and anything else `length` times."""
    return t if isinstance(t, tuple) else (t,) * length


def join(arr: Sequence[str], delimiter: str = ', ') -> str:
    return delimiter.join(arr)


class always:
    """Constant function, which can be pickled, as `equals` and `not_equals` can."""

    def __init__(self, val: Any) -> None:
        self.val = val

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.val


class equals:
    def __init__(self, val: Any) -> None:
        self.val = val

    def __call__(self, x: Any) -> bool:
        return x == self.val


class not_equals(equals):
    def __call__(self, x: Any) -> bool:
        return x != self.val


def pad_at_dim(t: Tensor, pad: tuple[int, int], dim: int = -1, value: float = 0.0) -> Tensor:
    """Pad one axis by (before, after); negative numbers cut."""
    axes_after = t.ndim - 1 - (dim % t.ndim)
    return F.pad(t, (0, 0) * axes_after + tuple(pad), value=value)


def pack_one(t: Tensor, pattern: str) -> tuple[Tensor, list]:
    """Apply `einops.pack` to a single tensor."""
    return pack([t], pattern)


def unpack_one(t: Tensor, ps: list, pattern: str) -> Tensor:
    """Undo `pack_one`."""
    return unpack(t, ps, pattern)[0]


def default_device(device: torch.device | str | None = None) -> torch.device:
    """Return the given device, or the first available one of xpu, cuda, mps and cpu."""
    if device is not None:
        return torch.device(device)
    for name in ('xpu', 'cuda', 'mps'):
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available():
            return torch.device(name)
    return torch.device('cpu')


def in_dtype_of(t: Tensor, result: Tensor) -> Tensor:
    """Cast a result to the dtype of its input `t`, unless that is an integer."""
    return result.to(t.dtype) if t.is_floating_point() else result


def log(t: Tensor, eps: float = 1e-20) -> Tensor:
    """Compute  log(max(t, eps))  in float32 at least."""
    return in_dtype_of(t, to_float(t).clamp(min=eps).log())


def masked_mean(
    t: Tensor, mask: Tensor | None = None, dim: int | tuple[int, ...] | None = None, eps: float = 1e-5,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    """Average the entries where `mask` is True, 0 if there are none. The axes of `mask` are the first of `t`."""
    axes = tuple(range(t.ndim)) if dim is None else dim
    if mask is None:
        return t.mean(dim=axes, keepdim=keepdim)
    mask = mask[(...,) + (None,) * (t.ndim - mask.ndim)].expand_as(t)
    exact = to_float(t)
    total = exact.masked_fill(~mask, 0.0).sum(dim=axes, keepdim=keepdim)
    return in_dtype_of(t, total / mask.to(exact.dtype).sum(dim=axes, keepdim=keepdim).clamp(min=eps))


def create_causal_mask(i: int, j: int, device: torch.device | str | None = None) -> Tensor:
    """Return a mask (i, j), True where the key comes after the query. The last query attends to all keys."""
    return torch.ones((i, j), device=device, dtype=torch.bool).triu(j - i + 1)
