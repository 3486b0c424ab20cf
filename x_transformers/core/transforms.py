"""Transforms of `torch.func`, forward mode and export: whether one is at work."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import forward_ad

# which dynamo can trace, where torch has it
transforms_active = getattr(torch._C, '_are_functorch_transforms_active', torch._C._functorch.peek_interpreter_stack)

# whether a program for all sizes is made; no version before 2.7 tells
is_exporting: Callable[[], bool] = getattr(torch.compiler, 'is_exporting', lambda: False)


def transformed() -> bool:
    """Whether this runs inside a transform of `torch.func`, or in forward mode."""
    return bool(transforms_active()) or forward_ad._current_level >= 0
