"""The kinds of branch that a stack may have, by the letter or word that stands for one in `custom_layers`.

KINDS['conv'] = Kind(lambda stack, index: Convolution(stack.dim), inputs=lambda call: {'mask': call.real})
Decoder(dim=64, custom_layers=('a', 'conv', 'f'))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from x_transformers.flags import Check, ConfigError, did_you_mean


@dataclass(frozen=True)
class Kind:
    """A kind of branch: a module that is called with x (b n dim) and gives as much, which joins the stream.

    build       (stack, index of the layer) -> Module
    inputs      (StackCall) -> the keywords that it is called with beside x. Of tokens that `call.real` (b n) does not
                show, padding, it must tell the others nothing; None stands for all tokens
    remembers   what it keeps of earlier tokens, by name; {} if it looks at each token alone. None if it reads others
                and keeps nothing: then the stack cannot be cached
    attends     it is an attention of the library: it keeps keys and values, and is asked for `Intermediates`
    """

    build: Callable[[Any, int], Any]
    inputs: Callable[[Any], Mapping[str, Any]] | None = None
    remembers: Mapping[str, Any] | None = None
    attends: bool = False

    def __post_init__(self) -> None:
        for name, value in (('build', self.build), ('inputs', self.inputs)):
            if not callable(value) and (name == 'build' or value is not None):
                raise ConfigError(f'`{name}` of a Kind got {value!r}, it must be a function')
        if self.remembers is not None and (not isinstance(self.remembers, Mapping) or self.remembers):
            raise ConfigError(f'`remembers` of a Kind got {self.remembers!r}, it must be None or {{}}')

    @property
    def joins_tokens(self) -> str:
        """How the tokens of a row meet in it, if they do."""
        return '' if self.attends or self.remembers is not None else 'such a layer reads other tokens'


# those of the library are added where the model is defined
KINDS: dict[str, Kind] = {}

a_kind = Check('a kind of layer', lambda kind: isinstance(kind, str) and kind != '')


def attends(kind: str) -> bool:
    return KINDS[kind].attends


def check_kinds(kinds: list[str]) -> None:
    """Refuse kinds that nobody has registered."""
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"`custom_layers` has layers of kind {kind!r}, it must be of 'a', 'c', 'f', or what you add to "
                f'`KINDS`{did_you_mean(kind, KINDS)}'
            )
