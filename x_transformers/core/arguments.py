"""Arguments of a call, checked by their annotations: `@checked` on a method that users call.

A value of another kind than annotated is refused, with the name of the argument, before anything is computed. What is
annotated as a number is left to the method, which knows its range.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Generator, Tensor

from x_transformers.core.checks import can_look
from x_transformers.flags import Check, is_int, is_number, shown
from x_transformers.flags.unexpected import of_outer_call

Method = TypeVar('Method', bound=Callable[..., Any])


class HasChecked:
    """A call that has checked the inputs of what it calls: the base of `StackCall`, which layers get."""


def is_boolean(value: Any) -> bool:
    if torch.is_tensor(value):
        return value.ndim == 0 and value.dtype == torch.bool
    return value is None or isinstance(value, (bool, np.bool_)) or (is_int(value) and value in (0, 1))


def is_sequence(value: Any) -> bool:
    return isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes))


KINDS: dict[Any, Check] = {
    bool: Check('True or False', is_boolean),
    Tensor: Check('a tensor', torch.is_tensor),
    dict: Check('a dict', lambda value: isinstance(value, Mapping)),
    str: Check('a text', lambda value: isinstance(value, str)),
    Generator: Check('a torch.Generator', lambda value: isinstance(value, Generator)),
    collections.abc.Callable: Check('a callable', callable),
    collections.abc.Mapping: Check('a dict', lambda value: isinstance(value, Mapping)),
    collections.abc.Sequence: Check('a list or tuple', is_sequence),
    tuple: Check('a list or tuple', is_sequence),
}


def is_item_count(value: Any) -> bool:
    """Return whether a value is a number of targets: at least 1, or a tensor of one number, which may be 0."""
    if not torch.is_tensor(value):
        return value is None or (is_number(value) and value >= 1)
    real = value.numel() == 1 and value.dtype != torch.bool and not value.is_complex()
    return real and not (can_look(value) and not value >= 0)


# types of which every value is allowed: most arguments are settled by theirs
SURE: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    Tensor: (Tensor, torch.nn.Parameter),
    dict: (dict,),
    str: (str,),
    collections.abc.Mapping: (dict,),
    collections.abc.Sequence: (list, tuple),
    tuple: (list, tuple),
    types.NoneType: (types.NoneType,),
}


class Accepts(NamedTuple):
    """What an annotation allows: values of the types `sure`, and others that pass a test."""

    sure: frozenset[type]
    allowed: Check

    def test(self, value: Any) -> bool:
        return type(value) in self.sure or self.allowed.test(value)


# arguments that are the same wherever they are taken, by name
ASKED = Accepts(
    frozenset((bool, types.NoneType)),
    Check("True, False or 'past'", lambda value: is_boolean(value) or (isinstance(value, str) and value == 'past')),
)
NAMED = {
    'num_items_in_batch': Accepts(
        frozenset((types.NoneType,)), Check('a number of targets, of at least 1', is_item_count)
    ),
    'return_intermediates': ASKED,
    'return_hiddens': ASKED,
}


def kind_of(annotation: Any) -> Accepts | None:
    """What an annotation allows, or None if it does not say, or says that it is a number."""
    parts = typing.get_args(annotation) if is_union(annotation) else (annotation,)
    parts = [typing.get_origin(part) or part for part in parts]
    known = [KINDS[part] for part in parts if part in KINDS]
    if not known or len(known) + (types.NoneType in parts) < len(parts):
        return None
    sure = frozenset(kind for part in parts for kind in SURE.get(part, ()))
    return Accepts(sure, functools.reduce(Check.__or__, dict.fromkeys(known)))


def is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def kinds_of(method: Callable[..., Any]) -> dict[str, Accepts]:
    """What the arguments of a method may be, by name."""
    room, found = {**vars(typing), **getattr(method, '__globals__', {})}, {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name in NAMED:
            found[name] = NAMED[name]
            continue
        annotation = parameter.annotation
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or annotation is parameter.empty:
            continue
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, room)
            except NameError:  # imported for type checkers only
                continue
        kind = kind_of(annotation)
        if kind is not None:
            found[name] = kind
    return found


def check_kinds(kinds: dict[str, Accepts], arguments: Iterable[tuple[str, Any]]) -> bool:
    """Refuse arguments of another kind than they must be. Whether their types alone say that they are right."""
    doubtful = [(name, value) for name, value in arguments if name in kinds and type(value) not in kinds[name].sure]
    for name, value in doubtful:
        if not kinds[name].test(value):
            raise TypeError(f'`{name}` got {shown(value)}, it must be {kinds[name].allowed.words}')
    return not doubtful


def checked(method: Method) -> Method:
    """Check the arguments of a method by their annotations, at every call that is not compiled."""
    names = list(inspect.signature(method).parameters)[1:]
    kinds = functools.cache(functools.partial(kinds_of, method))
    settled: set[tuple[Any, ...]] = set()  # names and types that need no second look

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get('stack_call'), HasChecked) or torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        if kwargs.pop('stack_call', None) is not None:
            raise TypeError('`stack_call` is what a stack tells its layers, it must be left out elsewhere')
        types_given = (*map(type, args), *kwargs, *map(type, kwargs.values()))
        if types_given not in settled:
            arguments = (*zip(names, args), *kwargs.items())  # noqa: B905  too many are Python's own error
            if check_kinds(kinds(), arguments):
                settled.add(types_given)
        try:
            return method(self, *args, **kwargs)
        except TypeError as error:
            if better := of_outer_call(error, self, method, kwargs):
                raise better from None
            raise

    return cast('Method', wrapped)
