"""Scratch values that a feature passes from one stage to a later one of the same call: `call.ctx(self).queries = q`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves, tree_map

from x_transformers.flags.renamed import HasOldNames


def copy_container(value: Any) -> Any:
    """A list or table that may grow by itself; anything else as it is."""
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value


class FeatureContext:
    """Scratch values of one feature in one call, as attributes."""

    if TYPE_CHECKING:
        # each feature chooses its own names
        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def map_values(self, function: Callable[[Any], Any]) -> FeatureContext:
        """Notes of the same names, each changed by a function."""
        new = FeatureContext()
        for name, value in vars(self).items():
            setattr(new, name, function(value))
        return new

    def copy(self) -> FeatureContext:
        return self.map_values(lambda value: value)

    def fork(self) -> FeatureContext:
        """The same, with lists and tables that may grow apart."""
        return self.map_values(copy_container)

    def side_inputs(self) -> list[Any]:
        """The tensors noted, for `StackCall.side_inputs`."""
        return tree_leaves(vars(self))

    def replace_side_inputs(self, swapped: Mapping[int, Any]) -> FeatureContext:
        """The same notes with other tensors, by the id of those noted."""
        return self.map_leaves(lambda leaf: swapped.get(id(leaf), leaf))

    def map_leaves(self, function: Callable[[Any], Any]) -> FeatureContext:
        """The same notes, each tensor and whatever else they hold changed by a function."""
        return self.map_values(lambda value: tree_map(function, value))

    def is_unchanged(self, before: FeatureContext) -> bool:
        """Return True if nothing was noted since a copy was made."""
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
        """The notes of one feature in this pass: nobody else writes there. A feature gives itself.

        To read what another one has left, give its class; of one that is off, or has noted nothing, they are empty.
        """
        if isinstance(feature, type):
            return next((own for kind, own in self.contexts.items() if issubclass(kind, feature)), FeatureContext())
        kind = type(feature)
        if kind not in self.contexts:
            self.contexts[kind] = FeatureContext()
        return self.contexts[kind]


class HiddenFields:
    """Stands where a dataclass names its fields, and has none.

    What gathers parameters around a module, as FSDP, puts a copy in place of each dataclass that the module is called
    with: what layers leave for the next ones would be left in the copy.
    """

    def __get__(self, *_: Any) -> Any:
        raise AttributeError
