"""Text of `model.explain()`: the steps of a built model, the inputs it takes, and the measured effects of its flags."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from torch import nn

from x_transformers.flags.checks import format_value
from x_transformers.flags.config import is_configured, is_same_value
from x_transformers.flags.declared import Feature, Features
from x_transformers.flags.resolved import get_flags

# Width of a line of `model.explain()`; longer ones are continued below their text.
WIDTH = 100


@dataclass(frozen=True)
class Line:
    """One line of the text, before it is wrapped: a stage with its description, or the headline of a module."""

    depth: int  # of its module in the tree of modules
    stage: str  # '' for a headline
    text: str

    def wrap(self) -> str:
        """Return the line with its indent, continued below its text where it is wider than `WIDTH`."""
        head = '  ' * self.depth + (f'{self.stage:<12} ' if self.stage else '')
        below = ' ' * (len(head) if self.stage else len(head) + 4)
        return textwrap.fill(
            self.text,
            WIDTH,
            initial_indent=head,
            subsequent_indent=below,
            break_long_words=False,
            break_on_hyphens=False,
        )


def explain_module(module: Any, inputs: bool = False, measured: bool = False) -> str:
    """Return the text of `module.explain()`: its own steps and features in running order, then the modules inside.

    Args:
        module: A module that is built from flags.
        inputs: Also list the inputs of the forward call that its features take.
        measured: Also list the effects that its flags had in benchmarks.
    """
    return '\n'.join(line.wrap() for line in _collect_lines(module, inputs, measured))


def _collect_lines(module: Any, inputs: bool, measured: bool) -> Iterator[Line]:
    """Yield the lines of a module and of those inside; equal modules are one entry."""
    yield Line(0, '', f'{type(module).__name__} {_headline(module)}'.rstrip())
    yield from (Line(1, stage, text) for stage, text in steps(module))
    if inputs and (names := ', '.join(_input_names(module))):
        yield Line(1, 'inputs', names)
    if measured:
        yield from (Line(1, 'measured', text) for text in effects(module))
    found: dict[tuple[Line, ...], list[str]] = {}
    for path, child in _inner_modules(module):
        found.setdefault(tuple(_collect_lines(child, inputs, measured)), []).append(path)
    for (headline, *rest), paths in found.items():
        yield Line(1, '', f'{_join_paths(paths)}: {headline.text}')
        yield from (Line(line.depth + 1, line.stage, line.text) for line in rest)


def _join_paths(paths: list[str]) -> str:
    """Return the paths of equal modules, only the first two and the last of many."""
    if len(paths) <= 4:
        return ', '.join(paths)
    return f'{paths[0]}, {paths[1]}, ..., {paths[-1]} ({len(paths)} equal modules)'


def _inner_modules(module: nn.Module, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yield the outermost modules with flags inside `module`, with their paths."""
    for name, child in module.named_children():
        here = f'{path}.{name}' if path else name
        if is_configured(child) and hasattr(child, '_given'):  # A part of another module may have no flags.
            yield here, child
        else:
            yield from _inner_modules(child, here)


def steps(module: Any) -> Iterator[tuple[str, str]]:
    """Yield each stage of a module with its text, in running order: its own steps, and those of its features."""
    features = getattr(module, 'features', None)
    by_stage = features.by_stage if isinstance(features, Features) else {}
    active, own = getattr(features, 'active', ()), dict(module.describe())
    for stage in dict.fromkeys((*(s for f in type(module).catalogue for s in f.stages), *own)):
        if stage in own:
            yield stage, own[stage]
        yield from ((stage, _describe_feature(feature)) for feature in by_stage.get(stage, ()) if settings(feature))
    yield from (('setup', _describe_feature(f)) for f in active if not f.runs_at() and settings(f))
    running = {name for f in active for name in f.flags}
    off = [name for name, value in module._given.items() if value is False and name not in running]
    off = [name for cls in type(module).catalogue for name, f in cls.flags.items() if name in off and f.default]
    if off:
        yield 'off', ', '.join(f'{name}=False' for name in off)


def _input_names(module: Any) -> dict[str, None]:
    """Return the inputs that the features of a module take, each once, in their order."""
    active = getattr(getattr(module, 'features', None), 'active', ())
    return dict.fromkeys(name for feature in active for name in feature.call_inputs)


def effects(module: Any) -> Iterator[str]:
    """Yield the measured effects of the flags that a module was given."""
    owners, given = {cls.__name__ for cls in type(module).__mro__}, module._given
    known = {**type(module).arguments(), **get_flags(type(module).catalogue)}
    papers = {name: cls.paper for cls in type(module).catalogue for name in cls.flags if cls.paper}
    for name, value in given.items():
        for one in measured(owners, name):
            if one.others is None or not is_same_value(value, one.value):
                continue
            now = {other: known[other].default for other in one.others} | given
            if all(is_same_value(now[n], v) for n, v in one.others.items()):
                paper = f' [{papers[name]}]' if name in papers else ''
                yield f'{one.variant}{paper}: {one}'


def settings(feature: Feature) -> list[str]:
    """Return the flags of a feature that differ from their defaults, as `name=value`."""
    own = feature.__dict__
    return [f'{n}={format_value(own[n])}' for n, f in feature.flags.items() if not is_same_value(own[n], f.default)]


def _describe_feature(feature: Feature) -> str:
    """Return the name, the settings and the first sentence of the docstring of a feature."""
    paragraph = ' '.join(inspect.cleandoc(type(feature).__doc__ or '').partition('\n\n')[0].split())
    summary = re.split(r'(?<=[.])\s', paragraph)[0]
    return f'{type(feature).__name__} ({", ".join(settings(feature))}){f": {summary}" if summary else ""}'


def _headline(module: Any) -> str:
    known = type(module).arguments()
    sizes = {k: v for k, v in module._given.items() if k in known and isinstance(v, (bool, int, float, str, tuple))}
    return ', '.join(f'{k}={v}' for k, v in sizes.items())


@dataclass(frozen=True)
class Measured:
    """Measured variant of a baseline: differences in bits per held-out byte, below 0 is better, and ratios of costs."""

    variant: str
    models: str  # Their size.
    baseline: str
    flag: str | None  # The keyword, as its class declares it; None if one was removed.
    owner: str | None  # That class.
    value: Any
    others: dict[str, Any] | None  # Other keywords of the class; None if another class has some, too.
    bits: float  # In equal steps.
    half: float  # Half of the 95 % interval.
    timed: float  # In equal time.
    half_timed: float
    step: float  # Time of a training step.
    memory: float
    token: float  # Time of a generated token.
    seeds: int
    holds: bool  # At a false discovery rate of 5 % among all variants of its baseline and size.

    def __str__(self) -> str:
        equal = f'{self.bits:+.3f} ± {self.half:.3f} bits per byte in equal steps'
        timed = f'{self.timed:+.3f} ± {self.half_timed:.3f} in equal time'
        costs = f'{self.step:.2f} x step time, {self.memory:.2f} x memory'
        return f'{equal}, {timed}; {costs} ({self.baseline} baseline, {self.models}, {self.seeds} seeds)'

    def as_given(self) -> str:
        """Return the variant and the value of its flag."""
        return self.variant if self.value is True else f'{self.variant} ({self.flag}={self.value!r})'


@cache
def table() -> tuple[Measured, ...]:
    """Return all measured effects."""
    found = read_measured()
    rows = (dict(zip(found['columns'], row, strict=True)) for row in found['rows'])
    return tuple(Measured(**{name: _as_tuple(value) for name, value in row.items()}) for row in rows)


def about() -> dict[str, str]:
    """Return how effects were measured, in a sentence for models of each size."""
    return read_measured()['about']


def read_measured() -> dict[str, Any]:
    """Return the content of the file of measured effects."""
    return json.loads(files('x_transformers.flags').joinpath('measured.json').read_text(encoding='utf-8'))


def _as_tuple(value: Any) -> Any:
    """Return a value from JSON with tuples in place of lists."""
    if isinstance(value, dict):
        return {name: _as_tuple(inner) for name, inner in value.items()}
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def measured(owners: Collection[str], flag: str) -> Iterator[Measured]:
    """Yield the measured effects of a flag of one of these classes."""
    return (one for one in table() if one.flag == flag and one.owner in owners)


def rankings() -> dict[tuple[str, str], list[Measured]]:
    """Return all variants by the size of models and their baseline, the best in equal steps first."""
    found: dict[tuple[str, str], list[Measured]] = {(one.models, one.baseline): [] for one in table()}
    for one in sorted(table(), key=lambda one: one.bits):
        found[one.models, one.baseline].append(one)
    return found
