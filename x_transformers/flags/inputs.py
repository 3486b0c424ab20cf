"""What the inputs of a call must be: checks for the `takes` of features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from x_transformers.flags import Check, boolean, none, shown

ANY_SHAPE = ''


def tensor_of(shapes: str = ANY_SHAPE, floats: bool | None = None) -> Check:
    """A tensor with the axes of one of `shapes`, such as 'b d | b n d'; of floating point numbers, or of none."""
    ranks = {len(shape.split()) for shape in shapes.split('|')} if shapes else set(range(5))
    kind = {True: 'a floating point tensor', False: 'a tensor of whole numbers', None: 'a tensor'}[floats]
    words = ' or '.join(f'({", ".join(shape.split())})' for shape in shapes.split('|')) if shapes else ''

    def test(value: Any) -> bool:
        if not torch.is_tensor(value) or value.ndim not in ranks or value.is_complex():
            return False
        return floats is None or (value.is_floating_point() == floats and value.dtype != torch.bool)

    return Check(f'{kind} {words}'.rstrip(), test, 'Tensor')


def pair_of(words: str, *tests: Callable[[Any], bool]) -> Check:
    """A tuple or list of two."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and len(value) == 2 and all(t(v) for t, v in zip(tests, value))  # noqa: B905

    return Check(f'a pair {words}', test, 'Sequence[Any]')


def is_floating(value: Any) -> bool:
    return torch.is_tensor(value) and value.is_floating_point()


floating = tensor_of(floats=True)
vectors = tensor_of('b n d', floats=True)
per_row_or_token = tensor_of('b d | b n d', floats=True)
a_switch = Check('True or False', lambda value: not torch.is_tensor(value) and boolean.test(value), 'bool')
rotary_angles = pair_of('(angles, scale), angles of (n, d) or (b, n, d)',
                 lambda t: is_floating(t) and t.ndim >= 2, lambda s: s is None or not isinstance(s, str))  # fmt: skip


def refused(check: Check, name: str, value: Any) -> str | None:
    """Why an input is refused, or None; None is no input."""
    if (none | check).test(value):
        return None
    got = f'{value.dtype} of shape {tuple(value.shape)}' if torch.is_tensor(value) else shown(value)
    return f'`{name}` got {got}, it must be {check.words}'
