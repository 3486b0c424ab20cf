"""Text of `model.explain()`: what runs in a built model, and what its flags were measured to change."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torch import nn

from x_transformers.flags.checks import format_value
from x_transformers.flags.config import is_configured, is_same_class
from x_transformers.flags.declared import Feature, Features
from x_transformers.flags.resolved import get_flags


def explain_module(module: Any, name: str = '') -> Iterator[str]:
    """Lines that say what runs in `module`, in order: its own steps and its features, then the modules inside."""
    yield f'{name + ": " if name else ""}{type(module).__name__} {_headline(module)}'.rstrip()
    yield from (f'  {stage:<12} {text}' for stage, text in steps(module))
    found: dict[tuple[str, ...], list[str]] = {}
    for path, child in _inner_modules(module):
        found.setdefault(tuple(explain_module(child)), []).append(path)
    for (first, *rest), paths in found.items():
        yield f'  {", ".join(paths)}: {first}'
        yield from (f'  {line}' for line in rest)


def _inner_modules(module: nn.Module, path: str = '') -> Iterator[tuple[str, Any]]:
    """The modules with flags that stand in `module`, the outermost ones, by path."""
    for name, child in module.named_children():
        here = f'{path}.{name}' if path else name
        if is_configured(child) and hasattr(child, '_given'):  # a part of a module was given none
            yield here, child
        else:
            yield from _inner_modules(child, here)


def steps(module: Any) -> Iterator[tuple[str, str]]:
    """What a module does itself (its `outline`) and what its features add, by stage, in running order."""
    features = getattr(module, 'features', None)
    at = features.by_stage if isinstance(features, Features) else {}
    outline = dict(module.describe())
    for stage in dict.fromkeys((*(s for f in type(module).catalogue for s in f.stages), *outline)):
        if stage in outline:
            yield stage, outline[stage]
        yield from ((stage, _describe_stage(feature)) for feature in at.get(stage, ()) if settings(feature))
    settled = (f for f in getattr(features, 'active', ()) if not f.runs_at() and settings(f))
    yield from (('setup', _describe_stage(feature)) for feature in settled)
    running = {name for f in getattr(features, 'active', ()) for name in f.flags}
    off = [name for name, value in module._given.items() if value is False and name not in running]
    off = [name for cls in type(module).catalogue for name, f in cls.flags.items() if name in off and f.default]
    if off:
        yield 'off', ', '.join(f'{name}=False' for name in off)
    inputs = dict.fromkeys(i for f in getattr(features, 'active', ()) for i in f.call_inputs)
    if inputs:
        yield 'inputs', ', '.join(inputs)
    yield from (('measured', text) for text in effects(module))


def effects(module: Any) -> Iterator[str]:
    """What the flags of a module, as they were given, were measured to change."""
    hosts, given = {cls.__name__ for cls in type(module).__mro__}, module._given
    known = {**type(module).arguments(), **get_flags(type(module).catalogue)}
    papers = {name: cls.paper for cls in type(module).catalogue for name in cls.flags if cls.paper}
    for name, value in given.items():
        for one in measured(hosts, name):
            others: Any = None if one.others is None else {other: known[other].default for other in one.others} | given
            if (
                is_same_class(value, one.value)
                and others
                and all(is_same_class(others[n], v) for n, v in (one.others or {}).items())
            ):
                paper = f' [{papers[name]}]' if name in papers else ''
                yield f'{one.variant}{paper}: {one}'


def settings(feature: Feature) -> list[str]:
    """The flags of a feature that differ from their defaults."""
    own = feature.__dict__
    return [f'{n}={format_value(own[n])}' for n, f in feature.flags.items() if not is_same_class(own[n], f.default)]


def _describe_stage(feature: Feature) -> str:
    said = summary(feature)
    return f'{type(feature).__name__} ({", ".join(settings(feature))}){f": {said}" if said else ""}'


def summary(feature: Feature) -> str:
    return inspect.cleandoc(type(feature).__doc__ or '').split('\n')[0]


def _headline(module: Any) -> str:
    known = type(module).arguments()
    sizes = {k: v for k, v in module._given.items() if k in known and isinstance(v, (bool, int, float, str, tuple))}
    return ', '.join(f'{k}={v}' for k, v in sizes.items())


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
    return tuple(Measured(**{name: _as_tuple(value) for name, value in row.items()}) for row in rows)


def about() -> dict[str, str]:
    """How it was measured, in a sentence for models of each size."""
    return contents()['about']


def contents() -> dict[str, Any]:
    """The file as it is."""
    return json.loads(files('x_transformers.flags').joinpath('measured.json').read_text(encoding='utf-8'))


def _as_tuple(value: Any) -> Any:
    """JSON has no tuples."""
    if isinstance(value, dict):
        return {name: _as_tuple(inner) for name, inner in value.items()}
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def measured(hosts: Collection[str], flag: str) -> Iterator[Measured]:
    """What is known of a flag of one of these classes."""
    return (one for one in table() if one.flag == flag and one.host in hosts)


def rankings() -> dict[tuple[str, str], list[Measured]]:
    """All variants by the size of models and their baseline, the best in equal steps first."""
    found: dict[tuple[str, str], list[Measured]] = {(one.models, one.baseline): [] for one in table()}
    for one in sorted(table(), key=lambda one: one.bits):
        found[one.models, one.baseline].append(one)
    return found
