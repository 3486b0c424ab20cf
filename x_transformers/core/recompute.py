"""Recomputation in a backward pass, or when attention maps are read, by the modules as they were the first time.

`ModuleSnapshot` records what modules are made of, `recompute` runs a function again with that, and
`differentiate_formula` gives a backward pass that can be differentiated.

Between the first run and the next, a module may have got other parameters (`torch.func.functional_call` puts its own
back), another mode, or other attributes. Where nothing has changed, the modules themselves run again; otherwise copies
of them that hold what they held. Nothing is put into a module, since other threads may be using it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor
from torch.utils.checkpoint import checkpoint

from x_transformers.core.modes import disable_autocast
from x_transformers.flags import Features

PLAIN = (Tensor, nn.Parameter)  # a shard or the like comes and goes by itself
COPIED = 2**14  # parameters that act on scores are copied for maps read later, if they hold no more numbers
APART = ('_parameters', '_buffers', '_modules')
MISSING = object()


def tensor_version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _unregistered_modules(value: Any) -> Iterator[nn.Module]:
    """Yield the modules in a tuple, list or dict: references that are not registered."""
    for part in value.values() if type(value) is dict else value if type(value) in (tuple, list) else ():
        if isinstance(part, nn.Module):
            yield part


def _collect_modules(module: nn.Module, name: str, without: set[nn.Module], found: dict[nn.Module, str]) -> None:
    """Add a module and all below it, with their names."""
    if module in found or module in without or isinstance(module, torch.jit.ScriptModule):
        return
    found[module] = name
    for key, child in module._modules.items():
        if child is not None:
            _collect_modules(child, f'{name}.{key}' if name else key, without, found)
    for key, value in module.__dict__.items():
        if type(value) in (tuple, list, dict) and key not in APART:
            for other in _unregistered_modules(value):
                _collect_modules(other, f'{name}.{key}' if name else key, without, found)


class ModuleState:
    """Attributes, tensors and submodules of a module. `copies` of its smallest tensors do not change with them."""

    def __init__(self, module: nn.Module, name: str, copied: int, detached: bool) -> None:
        self.name, self.kind = name, type(module)
        self.attributes = {key: value for key, value in module.__dict__.items() if key not in APART}
        self.parts = {key: dict(getattr(module, key)) for key in APART}
        self.tensors = {n: t for key in APART[:2] for n, t in self.parts[key].items() if t is not None}
        self.plain = detached or all(type(t) in PLAIN for t in self.tensors.values())
        self.copies: dict[str, Tensor] = {}
        if detached:
            self.copies = {n: t.detach() for n, t in self.tensors.items()}
        elif copied and self.plain:
            self.copies = {n: t.clone() for n, t in self.tensors.items() if t.numel() <= copied}
        self.note_versions()
        features = self.attributes.get('features')
        self.features = {f: dict(f.__dict__) for f in features.active} if isinstance(features, Features) else {}

    def note_versions(self) -> None:
        self.versions = (
            {n: (tensor_version(t), t.dtype, t.device) for n, t in self.tensors.items()} if self.plain else {}
        )

    def changed(self, name: str) -> bool:
        t = self.tensors[name]
        return (tensor_version(t), t.dtype, t.device) != self.versions[name]

    def is_unchanged(self, module: nn.Module) -> bool:
        """Return True if the module is still made of the same."""
        own = module.__dict__
        same = type(module) is self.kind and all(own.get(n, MISSING) is v for n, v in self.attributes.items())
        same = same and all(has_same_values(own[key], part) for key, part in self.parts.items())
        same = same and all(has_same_values(f.__dict__, values) for f, values in self.features.items())
        return same and not any(map(self.changed, self.versions))


def modules_of_features(features: Features) -> list[nn.Module]:
    """Return the modules whose parameters features read."""
    owner = features.active[0].owner if features.active else None
    if isinstance(owner, nn.Module) or owner is None:
        return [] if owner is None else [owner]
    return [value for value in vars(owner).values() if isinstance(value, nn.Module)]


def has_same_values(now: dict[str, Any], then: dict[str, Any]) -> bool:
    return len(now) == len(then) and all(now.get(name, MISSING) is value for name, value in then.items())


class GuardedTensors(dict):
    """Parameters or buffers of a copy of a module. Reading one that was changed in place raises RuntimeError."""

    def __init__(self, tensors: dict[str, Tensor | None], state: ModuleState, needed_by: str) -> None:
        super().__init__({name: state.copies.get(name, t) for name, t in tensors.items()})
        self.state, self.needed_by = state, needed_by

    def __getitem__(self, name: str) -> Tensor | None:
        state = self.state
        uncopied = name in state.versions and name not in state.copies
        # whole numbers count how often a module has run
        if uncopied and state.tensors[name].is_floating_point() and state.changed(name):
            path = f'{state.name}.{name}' if state.name else name
            raise RuntimeError(f'`{path}` was changed in place, or cast or moved, after the call: {self.needed_by}')
        return super().__getitem__(name)


BACKWARD = 'the backward pass, or a map of scores when it is read, computes with it again. Change it after them'
MAPS = 'the maps of that call, which are computed when they are first read, need it. Read them before'


class ModuleSnapshot:
    """Record of what some modules and all below them are made of now.

    without      modules to leave alone
    copied       tensors of up to so many numbers are copied: their later changes do not matter
    detached     what computes with the modules gives them no gradient
    needed_by    why one must not change the others in place, for the error
    """

    def __init__(
        self,
        *roots: nn.Module,
        without: Iterable[nn.Module] = (),
        copied: int = 0,
        detached: bool = False,
        needed_by: str = BACKWARD,
    ) -> None:
        found: dict[nn.Module, str] = {}
        for root in roots:
            _collect_modules(root, '', set(without), found)
        self.states = {module: ModuleState(module, name, copied, detached) for module, name in found.items()}
        self.copies = any(state.copies for state in self.states.values())
        self.needed_by, self.twins = needed_by, {}

    def note_own_changes(self) -> None:
        """Accept what the modules changed themselves, such as running means."""
        for state in self.states.values():
            state.note_versions()

    def restored(self, thing: Any) -> Any:
        """Return a module, or the features of one, as it was."""
        if not self.copies and all(not state.plain or state.is_unchanged(m) for m, state in self.states.items()):
            return thing
        if not self.twins:
            self.twins = self.copy_modules()
        if isinstance(thing, Features):
            return self.features(thing, self.twins)
        return self.twins.get(thing, thing)

    def copy_modules(self) -> dict[nn.Module, nn.Module]:
        """Return modules that hold what these held."""
        twins = {m: object.__new__(state.kind) for m, state in self.states.items() if state.plain}
        for module, twin in twins.items():
            state = self.states[module]
            parameters, buffers, modules = state.parts.values()
            twin.__dict__.update({key: self.replace_modules(value, twins) for key, value in state.attributes.items()})
            twin.__dict__.update(
                _parameters=GuardedTensors(parameters, state, self.needed_by),
                _buffers=GuardedTensors(buffers, state, self.needed_by),
                _modules={name: twins.get(child, child) for name, child in modules.items()},
            )
            if state.features:
                twin.__dict__['features'] = self.features(state.attributes['features'], twins)
        return twins

    @staticmethod
    def replace_modules(value: Any, twins: dict[nn.Module, nn.Module]) -> Any:
        """Return an attribute with the copies in place of modules that it refers to."""
        if isinstance(value, nn.Module):
            return twins.get(value, value)
        if not any(module in twins for module in _unregistered_modules(value)):
            return value
        parts = value.values() if isinstance(value, dict) else value
        found = [twins.get(part, part) if isinstance(part, nn.Module) else part for part in parts]
        return dict(zip(value, found, strict=True)) if isinstance(value, dict) else type(value)(found)

    def features(self, features: Features, twins: dict[nn.Module, nn.Module]) -> Features:
        """Return features that read what the copies hold."""
        owner = features.active[0].owner if features.active else None
        if isinstance(owner, nn.Module):
            return features.rebind(twins[owner], self.states[owner].features) if owner in twins else features
        if owner is None:
            return features
        new = copy.copy(owner)
        new.__dict__.update({name: self.replace_modules(value, twins) for name, value in vars(owner).items()})
        return features.rebind(new)


class GradAndCastMode:
    """Modes of gradients and of autocast as they are now, to compute in them later."""

    def __init__(self, device: str) -> None:
        self.inference, self.gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self.device, self.casts = device, device != 'meta' and torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device) if self.casts else None

    @contextmanager
    def restore(self) -> Iterator[None]:
        """Restore these modes in a `with` block, also in several threads at once."""
        cast = nullcontext() if self.device == 'meta' else torch.autocast(self.device, self.dtype, self.casts)
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.gradients), cast:
            yield


def recompute(
    function: Callable[..., Any], *args: Any, kept: ModuleSnapshot | None, reads: Sequence[Tensor] = ()
) -> Any:
    """Return `function(now, ...)` and save nothing of it: the backward pass runs it again.

    The function finds modules, and the features of one, by `now(module)`. Without `kept`, as a compiled graph wants it,
    that is the module. Torch refuses the second run if an argument, or a tensor of `reads`, was changed in place.
    """
    if kept is None:
        return checkpoint(function, identity, *args, use_reentrant=False)
    count = len(args)

    def run(*everything: Any) -> Any:
        with leave_vmap():
            return function(kept.restored, *everything[:count])

    out = checkpoint(run, *args, *reads, use_reentrant=False)
    kept.note_own_changes()
    return out


@contextmanager
def leave_vmap() -> Iterator[None]:
    """Leave the vmap in which gradients of several losses run the backward pass, in a `with` block: it forbids noise.

    The recomputed forward pass draws one noise for all losses.
    """
    depth = torch._C._vmapmode_increment_nesting()
    for _ in range(depth):
        torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(depth - 1):
            torch._C._vmapmode_increment_nesting()


def is_batched_grad(grad: Tensor) -> bool:
    """Return True if gradients of several losses come at once, as with `is_grads_batched`."""
    return is_batchedtensor(grad) or is_legacy_batchedtensor(grad)


def differentiate_formula(
    formula: Callable[..., Tensor], inputs: Sequence[Tensor | None], needs: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a function's inputs with a graph, by a formula for the same output."""
    with torch.enable_grad(), disable_autocast(grad):
        # views, since one input may be made from another: that path is not of this function
        own: list[Any] = [None if t is None else t.view_as(t) for t in inputs]
        wanted = [t for t, need in zip(own, needs, strict=True) if need]
        found = iter(torch.autograd.grad(formula(*own), wanted, grad, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


def identity(thing: Any) -> Any:
    return thing
