"""The kinds of branch that a stack may have, by the letter or word that stands for one in `custom_layers`.

KINDS['conv'] = Kind(lambda stack, index: Convolution(stack.dim), inputs=lambda call: {'mask': call.real})
Decoder(dim=64, custom_layers=('a', 'conv', 'f'))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from x_transformers.flags import Check, ConfigError, Features, Remembered, did_you_mean
from x_transformers.flags.declared import check_remembered


@dataclass(frozen=True)
class Kind:
    """A kind of branch: a module that is called with x (b n dim) and gives as much, which joins the stream.

    build       (stack, index of the layer) -> Module
    inputs      (StackCall) -> the keywords that it is called with beside x. Of tokens that `call.real` (b n) does not
                show, padding, it must tell the others nothing; None stands for all tokens
    remembers   name -> PerToken(), Running(), Ring(w): what it keeps of earlier tokens, which `inputs` hands to it as
                `call.state(name, call.step)`. {} if it looks at each token alone. None if it reads others and keeps
                nothing: then the stack cannot be cached. A function of the stack, if that decides how much
    attends     it is an attention of the library: it keeps keys and values, and is asked for `Intermediates`
    cuts_documents   `inputs` hands it `document_ids`, and tokens of a document know nothing of the others
    """

    build: Callable[[Any, int], Any]
    inputs: Callable[[Any], Mapping[str, Any]] | None = None
    remembers: Mapping[str, Remembered] | Callable[[Any], Mapping[str, Remembered]] | None = None
    attends: bool = False
    cuts_documents: bool = False

    def __post_init__(self) -> None:
        for name, value in (('build', self.build), ('inputs', self.inputs)):
            if not callable(value) and (name == 'build' or value is not None):
                raise ConfigError(f'`{name}` of a Kind got {value!r}, it must be a function')
        if self.remembers is not None and not callable(self.remembers):
            check_remembered('a Kind', self.remembers)

    @property
    def joins_tokens(self) -> str:
        """How the tokens of a row meet in it, if they do."""
        return '' if self.attends or self.remembers == {} else 'such a layer reads other tokens'

    @property
    def recalls(self) -> bool:
        """Whether it gives a token the same that the whole sequence would, from what it keeps of the past."""
        return self.attends or self.remembers is not None


# those of the library are added where the model is defined
KINDS: dict[str, Kind] = {}

a_kind = Check('a kind of layer', lambda kind: isinstance(kind, str) and kind != '')


def attends(kind: str) -> bool:
    return KINDS[kind].attends


def remembered_with(features: Features, kinds: Iterable[str], stack: Any = None) -> dict[str, Remembered]:
    """What the features of a stack and the kinds of its layers remember.  Raises ConfigError for a name used twice."""
    owners = dict.fromkeys(features.remembers, 'a feature of the stack')
    declared = dict(features.remembers)
    for kind in dict.fromkeys(kinds):
        own = KINDS[kind].remembers
        for name, state in ((own(stack) if callable(own) else own) or {}).items():
            if name in owners:
                raise ConfigError(f'{owners[name]} and layers of kind {kind!r} both remember `{name}`')
            owners[name], declared[name] = f'layers of kind {kind!r}', state
    return declared


def check_kinds(kinds: list[str]) -> None:
    """Refuse kinds that nobody has registered."""
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"`custom_layers` has layers of kind {kind!r}, it must be of 'a', 'c', 'f', or what you add to "
                f'`KINDS`{did_you_mean(kind, KINDS)}'
            )


def refuse_memories(name: str, kinds: Iterable[str]) -> None:
    """Hidden states of earlier segments, of which only attention knows what to do; a cache holds all that is known."""
    for kind in kinds:
        if KINDS[kind].joins_tokens:
            raise ValueError(
                f'`{name}` does not go with layers of kind {kind!r}: they see nothing of memories. Their state is in '
                'the `cache` of the segment before: pass that on, detached'
            )
