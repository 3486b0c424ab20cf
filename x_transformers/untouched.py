"""Whether modules, features and the code that runs them are as they were: what a short cut knows before it is taken.

A short cut does in a few lines what the stages of a pass do (`plain.py`, `plain_step.py`). It is opted into: a class
says `plain = True`, which holds for exactly that class. Users may still do anything to a model, at any time: hooks,
replaced modules, parameters, attributes and methods, of one instance or of a class. All of it counts, since all of it
is looked at before each pass, and whatever is not as it was takes the ordinary way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from operator import itemgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules import module as hooks

if TYPE_CHECKING:
    from x_transformers.flags import Feature

# hooks of all modules
EVERYWHERE = (
    hooks._global_forward_hooks,
    hooks._global_forward_pre_hooks,
    hooks._global_backward_hooks,
    hooks._global_backward_pre_hooks,
)

# what a call of any module goes through
called = itemgetter('__call__', '_call_impl', '_wrapped_call_impl', '__getattr__')
CALLED = called(vars(nn.Module))

# names that Python adds to classes and modules by itself
LAZY = frozenset({'__annotations__', '__annotations_cache__', '__doc__', '__slotnames__', '__warningregistry__'})

# code that short cuts stand for, as it was before anybody could replace it
WRITTEN: dict[type | ModuleType, dict[str, Any]] = {}


def remember(package: str) -> None:
    """Keep the code of a package as it is now: of its modules, and the classes in them."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f'{package}.'):
            own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == name]
            WRITTEN.update((thing, dict(vars(thing))) for thing in (*own, module))


def remember_torchs(*kinds: type) -> None:
    """The same for classes of torch, which others may have changed before; then no short cut stands for them."""
    for kind in kinds:
        code = getattr(kind.forward, '__code__', None)
        original = code is not None and code.co_filename == sys.modules[kind.__module__].__file__
        WRITTEN[kind] = dict(vars(kind)) if original else {}


remember_torchs(nn.Linear, nn.Embedding, nn.GELU, nn.Dropout, nn.Sequential)
WRITTEN[nn.ModuleList] = dict(vars(nn.ModuleList))


def is_same(now: Any, then: dict[str, Any]) -> bool:
    names = () if now == then else (now.keys() | then.keys()) - LAZY
    return all(name in now and name in then and now[name] is then[name] for name in names)


class Code:
    """The code of classes, their bases and modules: whether it is what was written."""

    def __init__(self, things: Iterable[type | ModuleType]) -> None:
        bases = dict.fromkeys(base for thing in things for base in getattr(thing, '__mro__', (thing,)))
        watched = [base for base in bases if base in WRITTEN]
        self.now, self.then = list(map(vars, watched)), [WRITTEN[thing] for thing in watched]

    def holds(self) -> bool:
        if called(vars(nn.Module)) != CALLED:
            return False
        if self.now == self.then:
            return True
        if same := all(map(is_same, self.now, self.then)):
            self.then = list(map(dict, self.now))
        return same


def says_plain(thing: Any) -> bool:
    """Whether exactly the class of a feature or module opts in, with this instance as it is."""
    return 'plain' in vars(type(thing)) and thing.plain is True and runs_its_class(thing)


def runs_its_class(thing: Any) -> bool:
    """Whether an instance has no methods of its own, such as a `forward` put in front of that of its class."""
    kind = type(thing)
    return not any(callable(getattr(kind, name, None)) or name == '_compiled_call_impl' for name in vars(thing))


def is_known(module: nn.Module) -> bool:
    """Whether a module runs no code but its class's: of torch, or of one of ours that opts in."""
    of_torch = type(module).__module__.startswith('torch.nn.modules.')
    return runs_its_class(module) if of_torch else says_plain(module)


class Snapshot:
    """A module with all that is below it, and features, as they are now: to see later whether anybody has changed them.

    `unseen` are the modules that a short cut does not call, so that hooks would not run.
    """

    def __init__(self, root: nn.Module, features: Sequence[Feature], unseen: Iterable[nn.Module]) -> None:
        modules = list(root.modules())
        holders = [m.features for m in modules if 'features' in vars(m)]
        self.objects: list[Any] = [*modules, *holders, *features]
        self.types = list(map(type, self.objects))
        self.now = [*map(vars, self.objects), *(m._modules for m in modules if m._modules), *(h.at for h in holders)]
        self.then = list(map(dict, self.now))
        self.parameters = [m._parameters for m in modules if m._parameters]
        self.counts = list(map(len, self.parameters))
        self.hooks = [
            held
            for m in unseen
            for held in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
        ]

    def holds(self) -> bool:
        """Whether every attribute is what it was. What parameters hold may change."""
        try:
            same = self.now == self.then
        except RuntimeError:  # of two tensors that differ
            return False
        return same and list(map(type, self.objects)) == self.types and list(map(len, self.parameters)) == self.counts

    def is_hooked(self) -> bool:
        """Whether a hook wants to see a module called."""
        return any(self.hooks) or any(EVERYWHERE)
