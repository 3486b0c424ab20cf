"""The layers of a stack as they stand when it runs, whoever has put them there.

A stack is built of `Layer`s. Code of others replaces single ones by plain lists of three parts, (norms, branch,
residual), inserts more of them, or assigns a whole new list, at any time between two calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from x_transformers.flags import ConfigError, shown


class Parts(tuple):
    """A layer that was given as three parts:  (norms, branch, residual).

    A subclass adds the methods by which a layer runs. It is no module: the parts belong to the list of the user.
    """

    kind: str
    index: int
    _forward_hooks = _forward_pre_hooks = _backward_hooks = _backward_pre_hooks = ()

    @property
    def _modules(self) -> dict[int, Any]:
        """The parts as a `ModuleList` has them."""
        return dict(enumerate(self))

    def modules(self) -> Iterator[nn.Module]:
        norms, *others = self
        for part in (*norms, *others):
            if isinstance(part, nn.Module):
                yield from part.modules()

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(dict.fromkeys(p for module in self.modules() for p in module._parameters.values() if p is not None))


def is_list(value: Any) -> bool:
    return isinstance(value, (tuple, list, nn.ModuleList))


def parts_of(value: Any, index: int) -> tuple[Any, Any, Any]:
    """The norms, the branch and the residual of what stands in the place of a layer.

    raises   ConfigError for anything but three parts, the first of them three norms, each callable or None
    """
    parts = tuple(value)
    norms = tuple(parts[0]) if len(parts) == 3 and is_list(parts[0]) else ()
    known = len(norms) == 3 and all(norm is None or callable(norm) for norm in norms)
    if not known or not all(map(callable, parts[1:])):
        raise ConfigError(
            f'`layers[{index}]` got {shown(value)}, it must be (norms, branch, residual), where the norms are three: '
            'before the branch, after it and after the residual, each a module or None'
        )
    return norms, *parts[1:]


def layers_of(given: Sequence[Any], kinds: Sequence[str], layer: type, parts: type[Parts]) -> tuple[Any, ...]:
    """What runs at each place: the `layer`s of a stack as they are, and plain lists as `parts`.

    Place and kind follow the lists that were assigned: a layer that stands elsewhere than it was built for is one of
    the same modules there. A module that wraps a whole layer stays as it is.
    """
    return tuple([
        one
        if (type(one) is layer and one.kind == kind and one.index == index)
        or not is_list(one)
        or (isinstance(one, layer) and one.kind == kind and one.index == index)
        else moved(one, kind, index, layer, parts)
        for index, (one, kind) in enumerate(zip(given, kinds, strict=False))
    ])  # fmt: skip


def moved(one: Any, kind: str, index: int, layer: type, parts: type[Parts]) -> Any:
    if isinstance(one, layer):  # with its hooks
        own: Any = type(one)
        new = own.__new__(own)
        new.__dict__.update(one.__dict__)
    else:
        norms, *others = parts_of(one, index)
        new = parts((Parts(norms), *others))
    new.__dict__.update(kind=kind, index=index)
    return new


def check_places(order: Sequence[int], layers: int, kinds: int) -> None:
    """Refuse layers of which some have been taken out or put in while their kinds or their order say otherwise.

    Raises:
        ConfigError: There are other numbers of layers and of kinds, or the order names a layer that is not there.
    """
    if layers != kinds or (order and max(order) >= layers):
        raise ConfigError(
            f'`layers_execute_order` runs layer {max(order, default=0)}, but there are {layers} `layers` and {kinds} '
            '`layer_types`: whoever assigns one of them must assign the others too'
        )
