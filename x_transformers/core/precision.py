"""Digits enough to add up many numbers: float32 at least, float64 where a device has it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def at_least_float(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add up many numbers of this one in."""
    # torch does not promote floating point of one byte
    return torch.float32 if dtype.itemsize == 1 else torch.promote_types(dtype, torch.float32)


# kinds of devices without float64
WITHOUT_FLOAT64 = {'mps'}


def widest(device: torch.device) -> torch.dtype:
    """Return the floating point dtype of most digits that a device has."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widened(t: Tensor) -> Tensor:
    """Return `t` in the floating point dtype of most digits that its device has."""
    return t.to(widest(t.device))


def accurate(t: Tensor) -> Tensor:
    """Half precision as float32; anything wider stays as it is."""
    return t.to(at_least_float(t.dtype))


def dtype_of_products(t: Tensor) -> torch.dtype:
    """The dtype in which a product with this tensor is formed: that of autocast where it is on."""
    device = t.device.type
    if device == 'meta' or t.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return t.dtype
    return torch.get_autocast_dtype(device)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, in float32 where float16 might not hold it."""
    if dtype_of_products(a) != torch.float16:
        return a @ b
    with without_autocast(a):
        return accurate(a) @ accurate(b)


def clamped_to(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast, with finite numbers that are beyond the range of the dtype at its ends."""
    if dtype != torch.float16 or t.dtype == dtype:
        return t.to(dtype)
    most = torch.finfo(dtype).max
    return torch.where(t.isinf(), t, t.clamp(-most, most)).to(dtype)


def without_autocast(t: Tensor) -> AbstractContextManager[Any]:
    """Products of tensors like this one are of its dtype."""
    if t.device.type == 'meta':  # which knows no autocast
        return nullcontext()
    return torch.autocast(t.device.type, enabled=False)
