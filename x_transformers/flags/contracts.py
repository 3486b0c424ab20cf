"""Checks of the arguments and results of stage methods: types, and the axes that later stages rely on.

The library's own features are tested for it. Those of users are looked at each time, so that a mistake is refused by
the name of the feature and the stage, and not by an error, or a broadcast, far behind it.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# axes that stay as long as they are, of values whose axes a level names
KEPT = frozenset('bni')
# what signatures call a tensor
TENSORS = frozenset(('x', 'out', 'weights', 'b h i j', 'b n e', 'bool, to b h i j', 'float, to b h i j'))


class BareKeys(NamedTuple):
    """Keys and values of the stage `keys` that `enter` must not change. A number stands for one filled key or value."""

    k: Tensor | float
    v: Tensor | float

    def like(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return both as tensors, numbers with the heads and channels of the keys and values of tokens."""
        pairs = ((self.k, k), (self.v, v))
        own, of = (
            t if isinstance(t, Tensor) else token.new_full((*token.shape[:2], 1, token.shape[-1]), t)
            for t, token in pairs
        )
        return own, of


@functools.cache
def number_of_arguments(signature: str) -> int | None:
    """Return how many arguments a stage hands to its method, `((q, k), call) -> (q, k)` two; None if that varies."""
    handed = re.sub(r'\(.*?\)', 'a tuple', signature.partition(' -> ')[0][1:-1])
    return None if '...' in handed else handed.count(',') + bool(handed)


def takes_arguments(method: Any, count: int | None) -> bool:
    """Return True if a method of a class can be called with so many arguments, beside `self` or the class."""
    bound = isinstance(method, (types.FunctionType, classmethod))
    function = method.__func__ if isinstance(method, (classmethod, staticmethod)) else method
    if count is None or not inspect.isfunction(function):
        return True
    try:
        inspect.signature(function).bind(*[None] * (count + bound))
    except TypeError:
        return False
    return True


def _describe_value(value: Any) -> str:
    if torch.is_tensor(value):
        return f'a tensor of shape {tuple(value.shape)}'
    return f'a tuple of {len(value)}' if isinstance(value, tuple) else 'None' if value is None else type(value).__name__


def check_transform(feature: Any, stage: str, before: Any, after: Any) -> None:
    """Refuse what a ring gave, if it cannot stand for the value that came in.

    raises     TypeError for None, and where axes are named for no tensor, or no tuple of so many; ValueError for a
               tensor with another number of axes, or other rows
    """
    where, axes = f'`{stage}` of {type(feature).__name__}', feature.axes.get(stage)
    if after is None and before is not None:
        raise TypeError(f'{where} gave None, it must give what came in, or another: is there a `return`?')
    if axes is None:
        return
    several = isinstance(before, tuple)
    if several and not (isinstance(after, tuple | list) and len(after) == len(before)):
        raise TypeError(f'{where} gave {_describe_value(after)}, it must give a tuple of {len(before)}')
    given: Any = after
    pairs: Any = zip(before, given, strict=True) if several else [(before, given)]
    for at, (was, now) in enumerate(pairs):
        if not torch.is_tensor(now):
            raise TypeError(f'{where} gave {_describe_value(now)}, it must give a tensor')
        kept = [n for n, axis in enumerate(axes) if axis == 'b' or (axis in KEPT and at == 0)]
        if was.ndim == len(axes) and (now.ndim != was.ndim or any(now.shape[n] != was.shape[n] for n in kept)):
            raise ValueError(
                f'{where} gave shape {tuple(now.shape)} for {tuple(was.shape)}: '
                f'of its axes, {" ".join(axes)}, {" and ".join(axes[n] for n in kept)} must stay as long'
            )


def run_transform(feature: Any, stage: str, value: Any, *call: Any) -> Any:
    """What the ring of a user's feature makes of a value."""
    after = getattr(feature, stage)(value, *call)
    check_transform(feature, stage, value, after)
    return after


def _check_term(feature: Any, stage: str, value: Any) -> Any:
    """What a term or a choice gave, or a refusal, if it is nothing of what the arrow of its signature points to."""
    where, wanted = f'`{stage}` of {type(feature).__name__}', feature.gives.get(stage, '')
    wanted, optional = wanted.removesuffix(' | None'), wanted.endswith(' | None')
    count = wanted.partition('[')[0].count(',') + 1 if wanted.startswith('(') else 0
    if value is None and (optional or feature.stages[stage] == 'term'):
        return None
    if count and not (isinstance(value, tuple | list) and len(value) >= count):
        raise TypeError(f'{where} gave {_describe_value(value)}, it must give {wanted}')
    if wanted == 'Module' and not isinstance(value, nn.Module):
        raise TypeError(f'{where} gave {_describe_value(value)}, it must give a module')
    if wanted in TENSORS and not torch.is_tensor(value) and not (' to ' in wanted and hasattr(value, 'of')):
        raise TypeError(f'{where} gave {_describe_value(value)}, it must give a tensor: {wanted}')
    if torch.is_tensor(value) and 'to b h i j' in wanted and (value.dtype == torch.bool) != wanted.startswith('bool'):
        raise TypeError(f'{where} gave {value.dtype}, it must give {wanted}')
    return value


def run_override(feature: Any, stage: str, *given: Any, **options: Any) -> Any:
    """What the choice of a user's feature gives."""
    return _check_term(feature, stage, getattr(feature, stage)(*given, **options))
