"""The kinds of state that a feature may remember of the past, declared in its `remembers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from x_transformers.flags.checks import ConfigError, is_int, shown


class Remembered:
    """A declaration of what the past leaves under a name."""


@dataclass(frozen=True)
class PerToken(Remembered):
    """A row for each token, (b ... n d):  `call.state(name).append(rows)` gives those of all tokens so far.

    derived   it follows from what else is held: left out of files, and where positions are counted anew
    """

    derived: bool = False


@dataclass(frozen=True)
class Running(Remembered):
    """A tree of tensors, batch first, that sums up the past:  `.value`, None at the beginning, and `.keep(tree)`.

    batch_first   False for what a module of the user's gives: such a state is handed on, but has no rows to choose from
    """

    batch_first: bool = True


@dataclass(frozen=True)
class Ring(Remembered):
    """The rows (b ... n d) of the last `width` tokens:  `.rows`, and `.append(rows)`, those before the new ones too."""

    width: int

    def __post_init__(self) -> None:
        if not is_int(self.width) or self.width < 1:
            raise ConfigError(f'`width` of a Ring got {shown(self.width)}, it must be an integer of at least 1')


@dataclass(frozen=True)
class Noted(Remembered):
    """A tree of tensors of no row and no token, such as a count of calls: nothing cuts it.  `.value`, `.keep(tree)`"""


@dataclass(frozen=True)
class OfContext(Remembered):
    """A tree of tensors, batch first, that is made of a context: no number of tokens changes it.  `.value`, None at the
    beginning, and `.keep(tree)`"""


def kept_of_earlier(remembers: Mapping[str, Remembered]) -> str:
    """Which state joins the tokens of a row, in words: a sum, or the last rows. '' if none does."""
    name = next((name for name, kind in remembers.items() if isinstance(kind, (Running, Ring))), None)
    return f'it keeps `{name}` of the tokens before' if name else ''
