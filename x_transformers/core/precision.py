"""Digits enough to add up many numbers: float32 at least, float64 where a device has it."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


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


def without_autocast(t: Tensor) -> AbstractContextManager[None]:
    """Products of tensors like this one are of its dtype."""
    if t.device.type == 'meta':  # which knows no autocast
        return nullcontext()
    return torch.autocast(t.device.type, enabled=False)
