"""Scratch values that a feature passes from one stage to a later one of the same call: `call.ctx(self).queries = q`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves, tree_map

from x_transformers.flags.renamed import HasOldNames


def copy_container(value: Any) -> Any:
    """Return a copy of a list or dict; anything else unchanged."""
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value


class FeatureContext:
    """Scratch values of one feature in one call, as attributes."""

    if TYPE_CHECKING:
        # Features choose the names.
        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def map_values(self, function: Callable[[Any], Any]) -> FeatureContext:
        """Return the values after a function."""
        new = FeatureContext()
        vars(new).update({name: function(value) for name, value in vars(self).items()})
        return new

    def copy(self) -> FeatureContext:
        return self.map_values(lambda value: value)

    def fork(self) -> FeatureContext:
        """Return a copy with copies of lists and dicts, which may then change independently."""
        return self.map_values(copy_container)

    def side_inputs(self) -> list[Any]:
        """Return the leaves of all values, for `StackCall.side_inputs`."""
        return tree_leaves(vars(self))

    def replace_side_inputs(self, swapped: Mapping[int, Any]) -> FeatureContext:
        """Return the values with other tensors, by the id of the present ones."""
        return self.map_leaves(lambda leaf: swapped.get(id(leaf), leaf))

    def map_leaves(self, function: Callable[[Any], Any]) -> FeatureContext:
        """Return the values with a function applied to all leaves."""
        return self.map_values(lambda value: tree_map(function, value))

    def is_unchanged(self, before: FeatureContext) -> bool:
        """Return True if no value was set since a copy was made."""
        then, now = vars(before), vars(self)
        return then.keys() == now.keys() and all(
            len(note) == len(then[name]) if isinstance(note, (list, dict)) else note is then[name]
            for name, note in now.items()
        )


@dataclass(kw_only=True)
class HasContexts(HasOldNames):
    """Mixin of the calls of every level: scratch values of features, by the class of the feature."""

    contexts: dict[type, FeatureContext] = field(default_factory=dict)

    def ctx(self, feature: Any) -> FeatureContext:
        """Return the scratch values of a feature, which passes itself; only it writes there.

        Other features may read them by its class; they are empty if it is off or has set none.
        """
        if isinstance(feature, type):
            return next((own for kind, own in self.contexts.items() if issubclass(kind, feature)), FeatureContext())
        kind = type(feature)
        if kind not in self.contexts:
            self.contexts[kind] = FeatureContext()
        return self.contexts[kind]


class HiddenFields:
    """Descriptor in place of the fields of a dataclass.

    FSDP would pass a copy of each dataclass to a module: results that layers record in it would be lost.
    """

    def __get__(self, *_: Any) -> Any:
        raise AttributeError
