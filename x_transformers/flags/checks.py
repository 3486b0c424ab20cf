"""Checks of flags and inputs, in words and as a test; errors and warnings that name keywords as the user wrote them."""

from __future__ import annotations

import contextlib
import functools
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, TypeVar, Union

import torch

T = TypeVar('T')
# Type of a field that is None in some calls, and read only in others: unlike `Tensor | None` it needs no test for None.
Maybe = Union[T, Any]  # noqa: UP007  an alias with a parameter

# Errors and warnings.


class ConfigError(ValueError):
    """Error of flags that are unknown, out of range, or cannot be combined. The message names them."""


@functools.cache
def log_once(message: str) -> None:
    from loguru import logger

    logger.warning(message)


def warn_once(message: str) -> None:
    """Log `message` as a warning, the first time only. Compiled graphs do not log."""
    if torch.compiler.is_compiling():
        return
    for rename in reversed(renamings):
        message = rename(message)
    log_once(message)


warn_once.cache_clear = log_once.cache_clear

renamings: list[Callable[[str], str]] = []


@contextlib.contextmanager
def naming(names: Callable[[], Iterable[tuple[str, str]]]) -> Iterator[None]:
    """Rename keywords in errors and warnings of a `with` block, where the user wrote them otherwise on an outer module.

    `names` returns pairs of a keyword and its form on the outer module. It is called only if there is a message.
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


def format_value(value: Any) -> str:
    """Format a value for a message: a tensor by its shape, a long text cut."""
    if torch.is_tensor(value):
        return f'a tensor of shape {tuple(value.shape)}'
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:77]}...'


# Checks.


@dataclass(frozen=True)
class Check:
    """Test of a flag's value, with the allowed values in words, and their type as an annotation."""

    words: str
    test: Callable[[Any], bool]
    type: str = 'Any'

    def __or__(self, other: Check) -> Check:
        kinds = dict.fromkeys(f'{self.type} | {other.type}'.split(' | '))
        kind = 'Any' if 'Any' in kinds else ' | '.join(kinds)
        return Check(f'{self.words} or {other.words}', lambda value: self.test(value) or other.test(value), kind)

    def require(self, name: str, value: Any, error: type[Exception] = ValueError) -> None:
        """Raise `error` if the value of an argument does not pass."""
        if not self.test(value):
            raise error(f'`{name}` must be {self.words}, got {format_value(value)}')


@dataclass(frozen=True)
class Input:
    """Input of the forward call that a feature takes: its axes, or a description, and a check."""

    axes: str
    check: Check | None = None


def is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def at_least(least: int) -> Check:
    return Check(f'an integer of at least {least}', lambda value: is_int(value) and value >= least, 'int')


def between(low: float, high: float) -> Check:
    return Check(f'a number from {low} to {high}', lambda value: is_number(value) and low <= value <= high, 'float')


def one_of(*allowed: Any) -> Check:
    plain = all(isinstance(one, (str, int, bool)) for one in allowed)
    return Check(
        'one of ' + ', '.join(map(repr, allowed)),
        lambda value: any(value is a or value == a for a in allowed),
        f'Literal[{", ".join(map(repr, allowed))}]' if plain else 'Any',
    )


def each(check: Check) -> Check:
    """Return a check of lists and tuples whose entries all pass `check`."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and len(value) > 0 and all(map(check.test, value))

    return Check(f'a tuple with one entry per layer, each {check.words}', test, f'Sequence[{check.type}]')


def mapping_with_keys(**checks: Check) -> Check:
    """Return a check of dicts with some of these keys, whose values pass their checks."""

    def test(value: Any) -> bool:
        known = isinstance(value, Mapping) and value.keys() <= checks.keys()
        return known and all(checks[key].test(one) for key, one in value.items())

    words = ', '.join(f'`{key}` ({check.words})' for key, check in checks.items())
    return Check(f'a dict with some of {words}', test, 'Mapping[str, Any]')


def instance_of(*kinds: type) -> Check:
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
mapping = Check('a dict', lambda value: isinstance(value, Mapping), 'Mapping[str, Any]')


# Checks of inputs of a call, for the `call_inputs` of features.


def get_tensor(shapes: str = '', floats: bool | None = None) -> Check:
    """Return a check of tensors with the axes of one of `shapes`, such as 'b d | b n d'; of any shape for ''.

    `floats` is True for floating point, False for whole numbers.
    """
    ranks = {len(shape.split()) for shape in shapes.split('|')} if shapes else set(range(5))
    kind = {True: 'a floating point tensor', False: 'a tensor of whole numbers', None: 'a tensor'}[floats]
    words = ' or '.join(f'({", ".join(shape.split())})' for shape in shapes.split('|')) if shapes else ''

    def test(value: Any) -> bool:
        if not torch.is_tensor(value) or value.ndim not in ranks or value.is_complex():
            return False
        return floats is None or (value.is_floating_point() == floats and value.dtype != torch.bool)

    return Check(f'{kind} {words}'.rstrip(), test, 'Tensor')


def get_pair(words: str, *tests: Callable[[Any], bool]) -> Check:
    """Return a check of tuples and lists of two."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and len(value) == 2 and all(t(v) for t, v in zip(tests, value))  # noqa: B905

    return Check(f'a pair {words}', test, 'Sequence[Any]')


def is_floating(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point()


floating = get_tensor(floats=True)
vectors = get_tensor('b n d', floats=True)
per_row_or_token = get_tensor('b d | b n d', floats=True)
a_switch = Check('True or False', lambda value: not torch.is_tensor(value) and boolean.test(value), 'bool')
rotary_angles = get_pair('(angles, scale), angles of (n, d) or (b, n, d)',
                 lambda t: is_floating(t) and t.ndim >= 2, lambda s: s is None or not isinstance(s, str))  # fmt: skip


def refused(check: Check, name: str, value: Any) -> str | None:
    """Return the error for an input, or None if it is right. None is no input."""
    if (none | check).test(value):
        return None
    got = f'{value.dtype} of shape {tuple(value.shape)}' if torch.is_tensor(value) else format_value(value)
    return f'`{name}` must be {check.words}, got {got}'
