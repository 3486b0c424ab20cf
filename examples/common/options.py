"""Options of a command line that are fields of a configuration, and how a script ends."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import field
from typing import Any


class Stop(Exception):
    """End the script with a message and an exit code, by default the one for wishes that cannot be met."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def bounded(kind: type, low: float, high: float = math.inf, above: bool = False) -> Callable[[str], Any]:
    """A parser of numbers from `low` (left out with `above`) up to, but not including, `high`."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value < high or (above and value == low):
            words = f'{"an integer" if kind is int else "a number"} {"above" if above else "of at least"} {low}'
            raise argparse.ArgumentTypeError(f'got {text!r}, it must be {words}')
        return value

    return parse


def some_text(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError('is empty')
    return text


def option(default: Any, kind: Callable[[str], Any], text: str, **more: Any) -> Any:
    """A field of Config that is an option of the command line as well."""
    return field(default=default, metadata=dict(help=f'{text} ({default})' if default else text, type=kind, **more))


size, positive, not_negative = bounded(int, 1), bounded(float, 0, above=True), bounded(float, 0)
