"""Whether modules, features and the code that runs them are as they were: what a short cut knows before it is taken.

A short cut does in a few lines what the stages of a pass do (`plain.py`, `plain_step.py`). It is opted into: a class
says `plain = True`, which holds for exactly that class. Users may still do anything to a model, at any time: hooks,
replaced modules, parameters, attributes and methods, of one instance or of a class. All of it counts, since all of it
is looked at before each pass, and whatever is not as it was takes the ordinary way.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from operator import itemgetter
from types import ModuleType
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

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

TORCHS = 'torch.nn.modules.'
PACKAGE = __name__.partition('.')[0]
# what every pass runs through
ALL_PASSES = ('attend', 'kernels.dense', 'core.buffers', 'core.calls', 'core.model_calls', 'core.intermediates')

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


remember_torchs(nn.Linear, nn.Embedding, nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Dropout, nn.Sequential)
WRITTEN[nn.ModuleList] = dict(vars(nn.ModuleList))


def is_same(now: Any, then: dict[str, Any]) -> bool:
    names = () if now == then else (now.keys() | then.keys()) - LAZY
    return all(name in now and name in then and now[name] is then[name] for name in names)


def lists_values() -> bool:
    """Whether the garbage collector tells all that instances and their dicts hold, in order."""

    class Own:
        pass

    few, many = Own(), Own()
    for thing, count in ((few, 3), (many, 99)):
        vars(thing).update((f'name{at}', (at,)) for at in range(count))
        found = [value for value in gc.get_referents(thing, vars(thing)) if type(value) is tuple]
        if found != list(vars(thing).values()) or Own not in gc.get_referents(thing):
            return False
    return gc.get_referents(vars(Own)) == [dict(vars(Own))]


LISTS_VALUES = lists_values()


class Held:
    """What dicts hold, and instances whose dicts they are: whether it is what it was.

    The garbage collector lists values, without names, in a third of the time that it takes to compare dicts. A value
    that goes by another name then has another place, unless it was the last one: of functions that name is kept.
    """

    def __init__(self, dicts: Iterable[Any], owners: Iterable[Any] = ()) -> None:
        self.owners, self.dicts = list(owners), list(dicts)
        if LISTS_VALUES:  # which sees what stands behind the view of a class
            self.dicts = [d if type(d) is dict else gc.get_referents(d)[0] for d in self.dicts]
        self.things = (*self.owners, *self.dicts)
        self.ends = [d for d in map(vars, self.owners) if callable(d[next(reversed(d))])]
        self.note()

    def note(self) -> None:
        self.then, self.last = self.now(), list(map(next, map(reversed, self.ends)))

    def now(self) -> list[Any]:
        if LISTS_VALUES:
            return gc.get_referents(*self.things)
        return [*map(type, self.owners), *map(dict, self.dicts)]

    def same(self) -> bool:
        try:
            return self.now() == self.then and list(map(next, map(reversed, self.ends))) == self.last
        except Exception:  # of values that cannot be compared, such as tensors, or of a dict that is empty now
            return False


class Code:
    """The code of classes, their bases and modules: whether it is what was written."""

    def __init__(self, things: Iterable[type | ModuleType]) -> None:
        bases = dict.fromkeys(base for thing in things for base in getattr(thing, '__mro__', (thing,)))
        self.watched = [base for base in bases if base in WRITTEN]
        self.held, self.known = Held(map(vars, self.watched)), False

    def holds(self) -> bool:
        if called(vars(nn.Module)) != CALLED:
            return False
        if not (self.known and self.held.same()):
            self.held.note()
            self.known = all(is_same(vars(thing), WRITTEN[thing]) for thing in self.watched)
        return self.known


def runs_its_class(thing: Any) -> bool:
    """Whether an instance has no methods of its own, such as a `forward` put in front of that of its class."""
    kind, own = type(thing), vars(thing).keys()
    shadows = [name for base in kind.__mro__ for name in own & vars(base).keys()]
    return not any(name == '_compiled_call_impl' or callable(getattr(kind, name)) for name in shadows)


def is_known(thing: Any) -> bool:
    """Whether a module or feature runs no code but its class's: of torch, or of exactly a class that opts in."""
    kind = type(thing)
    known = kind.__module__.startswith(TORCHS) or ('plain' in vars(kind) and thing.plain is True)
    return known and runs_its_class(thing)


def is_ours(thing: Any) -> bool:
    """The same, of torch or any class of ours."""
    return type(thing).__module__.startswith((TORCHS, f'{PACKAGE}.')) and runs_its_class(thing)


class Snapshot:
    """A module with all that is below it, and features, as they are now: to see later whether anybody has changed them.

    `unseen` are the modules that a short cut does not call, so that hooks would not run.
    """

    def __init__(self, root: nn.Module, features: Sequence[Feature], unseen: Iterable[nn.Module]) -> None:
        modules = list(root.modules())
        holders: list[Any] = [m.features for m in modules if 'features' in vars(m)]
        objects: list[Any] = [*modules, *holders, *features]
        self.kinds = tuple(dict.fromkeys(map(type, objects)))
        children = [m._modules for m in modules if m._modules]
        self.held = Held([*map(vars, objects), *children, *(h.at for h in holders)], objects)
        self.parameters = [m._parameters for m in modules if m._parameters]
        self.counts = list(map(len, self.parameters))
        self.hooks = [
            held
            for m in unseen
            for held in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
        ]

    def holds(self) -> bool:
        """Whether every attribute is what it was. What parameters hold may change."""
        return self.held.same() and list(map(len, self.parameters)) == self.counts

    def is_hooked(self) -> bool:
        """Whether a hook wants to see a module called."""
        return any(self.hooks) or any(EVERYWHERE)


class Private:
    """A net inside of which no code of others runs: nobody sees what a pass leaves behind but who calls the net."""

    def __init__(self, net: nn.Module) -> None:
        modules = list(net.modules())
        self.ours = all(map(is_ours, modules))
        features = (
            [f for m in modules if 'features' in vars(m) for f in vars(m)['features'].active] if self.ours else []
        )
        self.ours = self.ours and all(map(is_ours, features))
        if self.ours:
            self.seen = Snapshot(net, features, modules)
            of_all = {f'{PACKAGE}.{name}' for name in ALL_PASSES}
            names = of_all | {kind.__module__ for kind in self.seen.kinds}
            of_names: Any = map(sys.modules.get, sorted(names))
            self.code = Code((*self.seen.kinds, *of_names))

    def holds(self) -> bool:
        return self.ours and self.code.holds() and self.seen.holds()

    def is_hooked(self) -> bool:
        return self.seen.is_hooked()
