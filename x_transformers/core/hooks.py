"""Hooks of torch on modules: who is looking."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as of_all

OF_ALL = (
    of_all._global_forward_hooks,
    of_all._global_backward_hooks,
    of_all._global_backward_pre_hooks,
)


# hooks of which gather and free parameters, and read nothing of what a module gives
GATHERS = 'torch.distributed.'


def is_hooked(module: nn.Module) -> bool:
    """Return True if a hook sees what a module gives."""
    held = module._forward_hooks
    if held and not all(str(getattr(hook, '__module__', '')).startswith(GATHERS) for hook in held.values()):
        return True
    return bool(module._backward_hooks or module._backward_pre_hooks or any(OF_ALL))


def is_watched(branch: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a hook sees what a branch gives, or what the module of this kind inside it does."""
    if type(branch) is kind:
        return is_hooked(branch)
    for module in branch.modules():
        if is_hooked(module) or isinstance(module, kind):
            return is_hooked(module)
    return False


def may_get_others(module: nn.Module) -> bool:
    """Whether a hook may give a module other parameters while it runs, as FSDP does with those that it has gathered.
    The hooks of `torch.nn.utils` make a tensor of its own ones."""
    return any(not type(hook).__module__.startswith('torch.nn.utils') for hook in module._forward_pre_hooks.values())


def is_plainly(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of exactly this class, runs its `forward` and nothing else."""
    return (
        type(module) is kind
        and 'forward' not in module.__dict__
        and not module._forward_pre_hooks
        and not is_hooked(module)
    )
