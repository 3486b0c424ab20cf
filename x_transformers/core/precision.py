"""Digits enough to add up many numbers: float32 at least."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def at_least_float(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add up many numbers of this one in."""
    # torch does not promote floating point of one byte
    return torch.float32 if dtype.itemsize == 1 else torch.promote_types(dtype, torch.float32)


def accurate(t: Tensor) -> Tensor:
    """Half precision as float32; anything wider stays as it is."""
    return t.to(at_least_float(t.dtype))


def without_autocast(t: Tensor) -> AbstractContextManager[None]:
    """Products of tensors like this one are of its dtype."""
    if t.device.type == 'meta':  # which knows no autocast
        return nullcontext()
    return torch.autocast(t.device.type, enabled=False)
