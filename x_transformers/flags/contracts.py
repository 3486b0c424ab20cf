"""Checks of the arguments and results of stage methods: types, and the axes that later stages rely on.

Features of the library are tested for it. Those of users are checked in each call, so that the error names the feature
and the stage, instead of a later error or a wrong broadcast.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# Axes of named lengths that a stage must not change.
KEPT_AXES = frozenset('bni')
# Names of tensors in signatures.
TENSORS = frozenset(('x', 'out', 'weights', 'b h i j', 'b n e', 'bool, to b h i j', 'float, to b h i j'))


class BareKeys(NamedTuple):
    """Keys and values from `prepend_kv` that `pre_attention` must not change; a number is one key or value of it."""

    k: Tensor | float
    v: Tensor | float

    def like(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return both as tensors, numbers as one key or value with the sizes of `k` and `v`."""
        bare_k, bare_v = (
            t if isinstance(t, Tensor) else like.new_full((*like.shape[:2], 1, like.shape[-1]), t)
            for t, like in ((self.k, k), (self.v, v))
        )
        return bare_k, bare_v


@functools.cache
def number_of_arguments(signature: str) -> int | None:
    """Return the number of arguments in a signature, 2 in `((q, k), call) -> (q, k)`; None if it varies."""
    handed = re.sub(r'\(.*?\)', 'a tuple', signature.partition(' -> ')[0][1:-1])
    return None if '...' in handed else handed.count(',') + bool(handed)


def takes_arguments(method: Any, count: int | None) -> bool:
    """Return True if a method of a class can be called with `count` arguments, besides `self` or the class."""
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


def run_transform(feature: Any, stage: str, before: Any, *call: Any) -> Any:
    """Return a value transformed by a user's feature at a ring.

    Raises:
        TypeError: The result is None, or not the tensor or tuple that the stage declares.
        ValueError: A tensor has another number of axes, or other lengths of b, n or i.
    """
    after = getattr(feature, stage)(before, *call)
    where, axes = f'`{stage}` of {type(feature).__name__}', feature.axes.get(stage)
    if after is None and before is not None:
        raise TypeError(f'{where} must return its input, changed or not, got None: is there a `return`?')
    if axes is None:
        return after
    several = isinstance(before, tuple)
    if several and not (isinstance(after, tuple | list) and len(after) == len(before)):
        raise TypeError(f'{where} must return a tuple of {len(before)}, got {_describe_value(after)}')
    given: Any = after
    pairs: Any = zip(before, given, strict=True) if several else [(before, given)]
    for at, (was, now) in enumerate(pairs):
        if not torch.is_tensor(now):
            raise TypeError(f'{where} must return a tensor, got {_describe_value(now)}')
        kept = [n for n, axis in enumerate(axes) if axis == 'b' or (axis in KEPT_AXES and at == 0)]
        if was.ndim == len(axes) and (now.ndim != was.ndim or any(now.shape[n] != was.shape[n] for n in kept)):
            raise ValueError(
                f'{where} must keep the length of {" and ".join(axes[n] for n in kept)} of its axes {" ".join(axes)}, '
                f'{tuple(was.shape)}, got {tuple(now.shape)}'
            )

    return after


def run_override(feature: Any, stage: str, *given: Any, **options: Any) -> Any:
    """Return the result of a user's feature at a term or a choice. Raises TypeError if it is not of its signature."""
    value = getattr(feature, stage)(*given, **options)
    where, wanted = f'`{stage}` of {type(feature).__name__}', feature.gives.get(stage, '')
    wanted, optional = wanted.removesuffix(' | None'), wanted.endswith(' | None')
    count = wanted.partition('[')[0].count(',') + 1 if wanted.startswith('(') else 0
    if value is None and (optional or feature.stages[stage] == 'term'):
        return None
    if count and not (isinstance(value, tuple | list) and len(value) >= count):
        raise TypeError(f'{where} must return {wanted}, got {_describe_value(value)}')
    if wanted == 'Module' and not isinstance(value, nn.Module):
        raise TypeError(f'{where} must return a module, got {_describe_value(value)}')
    if wanted in TENSORS and not torch.is_tensor(value) and not (' to ' in wanted and hasattr(value, 'of')):
        raise TypeError(f'{where} must return a tensor, {wanted}, got {_describe_value(value)}')
    if torch.is_tensor(value) and 'to b h i j' in wanted and (value.dtype == torch.bool) != wanted.startswith('bool'):
        raise TypeError(f'{where} must return {wanted}, got {value.dtype}')
    return value
