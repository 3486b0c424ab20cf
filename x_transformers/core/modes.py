"""Modes of torch that code depends on: hooks, transforms of `torch.func`, export, autocast, and the default generator.

Sums of many numbers are formed in float32 at least, and in float64 where a device has it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.nn.modules import module as of_all

P = ParamSpec('P')
R = TypeVar('R')

# Hooks.

OF_ALL = (
    of_all._global_forward_hooks,
    of_all._global_backward_hooks,
    of_all._global_backward_pre_hooks,
)
# Hooks of this package gather and free parameters, and read no output of a module.
GATHERS = 'torch.distributed.'


def is_hooked(module: nn.Module) -> bool:
    """Return True if a hook receives the output of a module."""
    held = module._forward_hooks
    if held and not all(str(getattr(hook, '__module__', '')).startswith(GATHERS) for hook in held.values()):
        return True
    return bool(module._backward_hooks or module._backward_pre_hooks or any(OF_ALL))


def is_watched(branch: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a hook receives the output of a branch, or of the module of this kind inside it."""
    if type(branch) is kind:
        return is_hooked(branch)
    for module in branch.modules():
        if is_hooked(module) or isinstance(module, kind):
            return is_hooked(module)
    return False


def may_get_others(module: nn.Module) -> bool:
    """Return True if a hook may give a module other parameters while it runs, as FSDP does.

    The hooks of `torch.nn.utils` compute a tensor from the parameters of the module.
    """
    return any(not type(hook).__module__.startswith('torch.nn.utils') for hook in module._forward_pre_hooks.values())


def is_plainly(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a module is of exactly this class, and runs its `forward` and nothing else."""
    return (
        type(module) is kind
        and 'forward' not in module.__dict__
        and not module._forward_pre_hooks
        and not is_hooked(module)
    )


# Transforms, export and compilation.

# Dynamo can trace this function, where torch has it.
transforms_active = getattr(torch._C, '_are_functorch_transforms_active', peek_interpreter_stack)

# True while a program for all sizes is made.
is_exporting: Callable[[], bool] = torch.compiler.is_exporting


def is_transformed() -> bool:
    """Return True inside a transform of `torch.func`, or in forward mode."""
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


# Precision and autocast.

HALF = (torch.float16, torch.bfloat16)


def at_least_float(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which many numbers of this dtype are added up."""
    # Torch does not promote floating point of one byte.
    return torch.float32 if dtype.itemsize == 1 else torch.promote_types(dtype, torch.float32)


# Kinds of devices without float64.
WITHOUT_FLOAT64 = {'mps'}


def promote_dtypes(device: torch.device) -> torch.dtype:
    """Return the floating point dtype of most digits that a device has."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widen_dtype(t: Tensor) -> Tensor:
    """Return `t` in the floating point dtype of most digits that its device has."""
    return t.to(promote_dtypes(t.device))


def to_float(t: Tensor) -> Tensor:
    """Cast half precision to float32; anything wider stays as it is."""
    return t.to(at_least_float(t.dtype))


def dtype_of_products(t: Tensor) -> torch.dtype:
    """Return the dtype of a product with this tensor: that of autocast where it is on."""
    device = t.device.type
    if device == 'meta' or t.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return t.dtype
    return torch.get_autocast_dtype(device)


def precise_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Compute  a @ b  in float32 where float16 might overflow."""
    if dtype_of_products(a) != torch.float16:
        return a @ b
    with disable_autocast(a):
        return to_float(a) @ to_float(b)


def clamp_to_dtype(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to `dtype`, with finite numbers beyond its range clamped to its ends."""
    if dtype != torch.float16 or t.dtype == dtype:
        return t.to(dtype)
    most = torch.finfo(dtype).max
    return torch.where(t.isinf(), t, t.clamp(-most, most)).to(dtype)


def disable_autocast(t: Tensor) -> AbstractContextManager[Any]:
    """Turn autocast off for tensors like this one in a `with` block."""
    if t.device.type == 'meta':  # This device has no autocast.
        return nullcontext()
    return torch.autocast(t.device.type, enabled=False)


# Random numbers of Python code, drawn by torch so that `torch.manual_seed` fixes them too.


def draw_number() -> float:
    """Draw a number from 0 to below 1 by torch's default generator on the CPU, without waiting for a device."""
    return torch.rand((), dtype=torch.float32, device='cpu').item()


def draw_index(count: int, generator: Generator | None = None) -> int:
    """Draw one of the numbers from 0 to `count` - 1, by the default generator on the CPU or a given one."""
    device = 'cpu' if generator is None else generator.device
    return int(torch.randint(count, (), device=device, generator=generator).item())


# who reads what a pass leaves behind

APART: ContextVar[bool] = ContextVar('apart', default=False)


class maps_apart:
    """Stacks inside keep fused kernels although intermediates are asked for: the caller reads no attention maps."""

    def __init__(self, apart: bool = True) -> None:
        self.apart = apart

    def __enter__(self) -> None:
        self.token = APART.set(True) if self.apart and not torch.compiler.is_compiling() else None

    def __exit__(self, *error: Any) -> None:
        if self.token is not None:
            APART.reset(self.token)


def are_maps_apart() -> bool:
    """Return True if the caller of a stack reads no attention maps."""
    return not torch.compiler.is_compiling() and APART.get()
