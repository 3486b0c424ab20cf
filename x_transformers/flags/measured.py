"""What flags were measured to change in language models of two sizes: results of `benchmarks/which_flag_helps.py`.

`measured.json` beside this file is written by `benchmarks/flag_effects.py`, from rows that the repository holds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Measured:
    """One variant of one baseline: differences in bits per held-out byte, less than zero is better; costs as ratios."""

    variant: str
    models: str  # of which size
    baseline: str
    flag: str | None  # the keyword that it is about, as its class declares it; None where one was taken away
    host: str | None  # that class
    value: Any
    others: dict[str, Any] | None  # what else the class is given; None if another class is given something, too
    bits: float  # in equal steps
    half: float  # half of the 95 % interval
    timed: float  # in equal time
    half_timed: float
    step: float  # time of a training step
    memory: float
    token: float  # time of a generated token
    seeds: int
    holds: bool  # at a false discovery rate of 5 % among all variants of its baseline and size

    def __str__(self) -> str:
        equal = f'{self.bits:+.3f} ± {self.half:.3f} bits per byte in equal steps'
        timed = f'{self.timed:+.3f} ± {self.half_timed:.3f} in equal time'
        costs = f'{self.step:.2f} x step time, {self.memory:.2f} x memory'
        return f'{equal}, {timed}; {costs} ({self.baseline} baseline, {self.models}, {self.seeds} seeds)'

    def as_given(self) -> str:
        """The variant and the value of its flag."""
        return self.variant if self.value is True else f'{self.variant} ({self.flag}={self.value!r})'


@cache
def table() -> tuple[Measured, ...]:
    """All that was measured."""
    found = contents()
    rows = (dict(zip(found['columns'], row, strict=True)) for row in found['rows'])
    return tuple(Measured(**{name: as_tuple(value) for name, value in row.items()}) for row in rows)


def about() -> dict[str, str]:
    """How it was measured, in a sentence for models of each size."""
    return contents()['about']


def contents() -> dict[str, Any]:
    """The file as it is."""
    return json.loads(files('x_transformers.flags').joinpath('measured.json').read_text(encoding='utf-8'))


def as_tuple(value: Any) -> Any:
    """JSON has no tuples."""
    if isinstance(value, dict):
        return {name: as_tuple(inner) for name, inner in value.items()}
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def measured(hosts: Collection[str], flag: str) -> Iterator[Measured]:
    """What is known of a flag of one of these classes."""
    return (one for one in table() if one.flag == flag and one.host in hosts)


def rankings() -> dict[tuple[str, str], list[Measured]]:
    """All variants by the size of models and their baseline, the best in equal steps first."""
    found: dict[tuple[str, str], list[Measured]] = {(one.models, one.baseline): [] for one in table()}
    for one in sorted(table(), key=lambda one: one.bits):
        found[one.models, one.baseline].append(one)
    return found
