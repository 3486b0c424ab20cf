"""What a feature keeps from one of its stages for a later one, in one pass: `call.own(self).queries = q`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_leaves, tree_map


def own_copy(value: Any) -> Any:
    """A list or table that may grow by itself; anything else as it is."""
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value


class Notes:
    """What one feature has noted in one pass, as attributes."""

    if TYPE_CHECKING:
        # each feature chooses its own names
        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def mapped(self, function: Callable[[Any], Any]) -> Notes:
        """Notes of the same names, each changed by a function."""
        new = Notes()
        for name, value in vars(self).items():
            setattr(new, name, function(value))
        return new

    def copy(self) -> Notes:
        return self.mapped(lambda value: value)

    def fork(self) -> Notes:
        """The same, with lists and tables that may grow apart."""
        return self.mapped(own_copy)

    def beside(self) -> list[Any]:
        """The tensors noted, for `StackCall.beside`."""
        return tree_leaves(vars(self))

    def with_beside(self, swapped: Mapping[int, Any]) -> Notes:
        """The same notes with other tensors, by the id of those noted."""
        return self.each(lambda leaf: swapped.get(id(leaf), leaf))

    def each(self, function: Callable[[Any], Any]) -> Notes:
        """The same notes, each tensor and whatever else they hold changed by a function."""
        return self.mapped(lambda value: tree_map(function, value))

    def is_still(self, before: Notes) -> bool:
        """Whether nothing was noted since a copy was made."""
        then, now = vars(before), vars(self)
        return then.keys() == now.keys() and all(
            len(note) == len(then[name]) if isinstance(note, (list, dict)) else note is then[name]
            for name, note in now.items()
        )


@dataclass(kw_only=True)
class TakesNotes:
    """What the call of every level offers to features for their notes, by the class of the feature."""

    notes: dict[type, Notes] = field(default_factory=dict)

    def own(self, feature: Any) -> Notes:
        """The notes of one feature in this pass: nobody else writes there. A feature gives itself.

        To read what another one has left, give its class; of one that is off, or has noted nothing, they are empty.
        """
        if isinstance(feature, type):
            return next((own for kind, own in self.notes.items() if issubclass(kind, feature)), Notes())
        kind = type(feature)
        if kind not in self.notes:
            self.notes[kind] = Notes()
        return self.notes[kind]


class Opaque:
    """Stands where a dataclass names its fields, and has none.

    What gathers parameters around a module, as FSDP, puts a copy in place of each dataclass that the module is called
    with: what layers leave for the next ones would be left in the copy.
    """

    def __get__(self, *_: Any) -> Any:
        raise AttributeError
