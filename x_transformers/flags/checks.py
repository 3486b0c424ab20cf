"""What a value must be, in words and as a test; refusals and warnings that name what the user wrote."""

from __future__ import annotations

import contextlib
import functools
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch

# refusals and warnings


class ConfigError(ValueError):
    """Flags that are unknown, out of range, or do not go together. The message names them."""


@functools.cache
def log_once(message: str) -> None:
    from loguru import logger

    logger.warning(message)


def warn_once(message: str) -> None:
    """Log `message` as a warning, the first time only. A compiled graph keeps silent: a log is no part of it."""
    if torch.compiler.is_compiling():
        return
    for rename in reversed(renamings):
        message = rename(message)
    log_once(message)


warn_once.cache_clear = log_once.cache_clear

renamings: list[Callable[[str], str]] = []


@contextlib.contextmanager
def naming(names: Callable[[], Iterable[tuple[str, str]]]) -> Iterator[None]:
    """Let refusals and warnings inside name keywords as the user wrote them, who gave them to something around.

    `names` gives pairs of a keyword and how it was written. It is asked for when there is something to say.
    """

    def rename(text: str) -> str:
        written = dict(names())
        return re.sub(r'`(\w+)(?=[`=])', lambda found: f'`{written.get(found[1], found[1])}', text)

    renamings.append(rename)
    try:
        yield
    except ConfigError as error:
        raise ConfigError(rename(str(error))) from None
    finally:
        renamings.pop()


def shown(value: Any) -> str:
    """`value` for a message: a tensor by its shape, anything long cut."""
    if torch.is_tensor(value):
        return f'a tensor of shape {tuple(value.shape)}'
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'


# checks


@dataclass(frozen=True)
class Check:
    """A test of a flag's value, with the words for what is allowed, and its type as an annotation."""

    words: str
    test: Callable[[Any], bool]
    type: str = 'Any'

    def __or__(self, other: Check) -> Check:
        kinds = dict.fromkeys(f'{self.type} | {other.type}'.split(' | '))
        kind = 'Any' if 'Any' in kinds else ' | '.join(kinds)
        return Check(f'{self.words} or {other.words}', lambda value: self.test(value) or other.test(value), kind)


@dataclass(frozen=True)
class Input:
    """An input of the forward call that a feature takes: its axes, or a description, and a check."""

    axes: str
    check: Check | None = None


def is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def at_least(least: int) -> Check:
    return Check(f'an integer of at least {least}', lambda value: is_int(value) and value >= least, 'int')


def one_of(*allowed: Any) -> Check:
    plain = all(isinstance(one, (str, int, bool)) for one in allowed)
    return Check(
        'one of ' + ', '.join(map(repr, allowed)),
        lambda value: any(value is a or value == a for a in allowed),
        f'Literal[{", ".join(map(repr, allowed))}]' if plain else 'Any',
    )


def each(check: Check) -> Check:
    """A list or tuple whose entries all pass `check`."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and len(value) > 0 and all(map(check.test, value))

    return Check(f'a tuple with one entry per layer, each {check.words}', test, f'Sequence[{check.type}]')


def of_keys(**checks: Check) -> Check:
    """A dict with some of these keys, each value as its check says."""

    def test(value: Any) -> bool:
        known = isinstance(value, Mapping) and value.keys() <= checks.keys()
        return known and all(checks[key].test(one) for key, one in value.items())

    words = ', '.join(f'`{key}` ({check.words})' for key, check in checks.items())
    return Check(f'a dict with some of {words}', test, 'Mapping[str, Any]')


def an_instance(*kinds: type) -> Check:
    modules = all(issubclass(kind, torch.nn.Module) for kind in kinds)
    words = 'an instance of ' + ' or '.join(kind.__name__ for kind in kinds)
    return Check(words, lambda value: isinstance(value, kinds), 'nn.Module' if modules else 'Any')


none = Check('None', lambda value: value is None, 'None')
boolean = Check('True or False', lambda value: value is None or isinstance(value, bool) or value in (0, 1), 'bool')
integer = Check('an integer', is_int, 'int')
size = at_least(1)
count = at_least(0)
number = Check('a number', is_number, 'float')
positive = Check('a positive number', lambda value: is_number(value) and value > 0, 'float')
not_negative = Check('a number of at least 0', lambda value: is_number(value) and value >= 0, 'float')
probability = Check(
    'a probability from 0 up to, but not including, 1', lambda value: is_number(value) and 0 <= value < 1, 'float'
)
a_callable = Check('a callable', callable, 'Callable[..., Any]')
a_mapping = Check('a dict', lambda value: isinstance(value, Mapping), 'Mapping[str, Any]')
