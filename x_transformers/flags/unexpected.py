"""Errors for keywords that a call does not take, with the keyword to use instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

from x_transformers.flags.config import KINDS
from x_transformers.flags.resolved import advice

Function = TypeVar('Function', bound=Callable[..., Any])
Step = TypeVar('Step')


def unexpected(module: Any, method: str, name: str, value: Any, names: Iterable[str], hint: str = '') -> TypeError:
    """Return the error for a keyword that a method or function does not take, with the one to use instead.

    Args:
        module: The module whose method is called; None for a function.
        method: The name of the method or function.
        name: The keyword.
        value: The value that was given.
        names: All keywords that it takes.
        hint: The end of the message, if it is known.
    """
    owner = None if module is None else type(module)
    hint = hint or advice(name, names, value, owner, method, module, KINDS)
    called = '' if owner is None else owner.__name__
    if method not in ('forward', ''):
        called = f'{called}.{method}'.lstrip('.')
    return naming_keyword(TypeError(f'{called} got an unexpected input `{name}`{hint}'), name)


def is_of_outer_call(
    error: TypeError, module: Any, method: Callable[..., Any], kwargs: Mapping[str, Any]
) -> TypeError | None:
    """Return the error for a keyword that a call passed on, or does not take itself; None for any other error.

    An inner model cannot know the method that the user called, and its keywords.
    """
    called = '' if method.__name__ == '__init__' else method.__name__
    name = error.__dict__.get('keyword')
    if name is not None:
        if module is None or name not in kwargs or ': `features` leaves out' in str(error):
            return None
        names = _get_names(module, method)
        hint = advice(name, names, kwargs[name], type(module), called, module, KINDS)
        return unexpected(module, called, name, kwargs[name], names, hint) if hint else None
    if not str(error).startswith(f'{inspect.unwrap(method).__qualname__}() '):
        return None
    parameters = inspect.signature(method).parameters
    passes_on = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    names = _get_names(module, method)
    for name in [name for name in kwargs if name not in names]:
        found = unexpected(module, called, name, kwargs[name], names)
        # An argument is missing. Keywords that a function passes on may be those of another one.
        if not passes_on or module is not None or ': here it is `' in str(found):
            return found
    return None


def naming_keyword(error: TypeError, name: str) -> TypeError:
    """Return an error after storing the unexpected keyword in it, for outer calls."""
    error.__dict__['keyword'] = name
    return error


def is_foreign(name: str) -> bool:
    """Return True for a keyword of another library."""
    from x_transformers.flags.foreign import rows_by_word  # not needed unless there is an error

    return name in rows_by_word()


def _get_names(module: Any, method: Callable[..., Any]) -> set[str]:
    """Return the keywords that a method or function takes."""
    from x_transformers.flags.foreign import get_keywords  # not needed unless there is an error

    named = {p.name for p in inspect.signature(method).parameters.values() if p.kind is not p.VAR_KEYWORD}
    return named if module is None else named | get_keywords(module, method.__name__)


def answering(function: Function) -> Function:
    """Decorate a function, or `__init__`, whose errors for unexpected keywords name the one to use instead."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            built = args[0] if function.__name__ == '__init__' else None
            if better := is_of_outer_call(error, built, function, kwargs):
                raise better from None
            raise

    return cast('Function', wrapper)


def answering_steps(
    steps: Iterator[Step], module: Any, method: Callable[..., Any], kwargs: Mapping[str, Any]
) -> Iterator[Step]:
    """Yield the steps that a method returned. Their errors name the method, like those of the call."""
    try:
        yield from steps
    except TypeError as error:
        if better := is_of_outer_call(error, module, method, kwargs):
            raise better from None
        raise
