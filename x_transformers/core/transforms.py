"""Transforms of `torch.func`, forward mode, export and compilation: whether one is at work, and what it leaves out."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

P = ParamSpec('P')
R = TypeVar('R')

# which dynamo can trace, where torch has it
transforms_active = getattr(torch._C, '_are_functorch_transforms_active', peek_interpreter_stack)

# whether a program for all sizes is made
is_exporting: Callable[[], bool] = torch.compiler.is_exporting


def transformed() -> bool:
    """Whether this runs inside a transform of `torch.func`, or in forward mode."""
    return bool(transforms_active()) or forward_ad._current_level >= 0


def eager_only(function: Callable[P, R] | None = None, *, recursive: bool = True) -> Any:
    """Decorate a function so that `torch.compile` leaves it out of its graphs, like `torch.compiler.disable`.

    The compiler of torch, which takes longer to import than torch itself, is loaded when the first model is compiled,
    and not with the package.

    Args:
        function: The function to run eagerly.
        recursive: Also run eagerly what the function calls.
    """
    if function is None:
        return functools.partial(eager_only, recursive=recursive)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if 'torch._dynamo' not in sys.modules:
            return function(*args, **kwargs)
        disabled: Any = torch.compiler.disable(function, recursive=recursive)
        return disabled(*args, **kwargs)

    return run
