"""What runs in a built model: the text of `model.explain()`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from x_transformers.flags.checks import shown
from x_transformers.flags.config import is_configured, same
from x_transformers.flags.declared import Feature, Features
from x_transformers.flags.measured import measured
from x_transformers.flags.resolved import flags_of


def explained(module: Any, name: str = '') -> Iterator[str]:
    """Lines that say what runs in `module`, in order: its own steps and its features, then the modules inside."""
    yield f'{name + ": " if name else ""}{type(module).__name__} {headline(module)}'.rstrip()
    yield from (f'  {stage:<12} {text}' for stage, text in steps(module))
    found: dict[tuple[str, ...], list[str]] = {}
    for path, child in inside(module):
        found.setdefault(tuple(explained(child)), []).append(path)
    for (first, *rest), paths in found.items():
        yield f'  {", ".join(paths)}: {first}'
        yield from (f'  {line}' for line in rest)


def inside(module: nn.Module, path: str = '') -> Iterator[tuple[str, Any]]:
    """The modules with flags that stand in `module`, the outermost ones, by path."""
    for name, child in module.named_children():
        here = f'{path}.{name}' if path else name
        if is_configured(child) and hasattr(child, '_given'):  # a part of a module was given none
            yield here, child
        else:
            yield from inside(child, here)


def steps(module: Any) -> Iterator[tuple[str, str]]:
    """What a module does itself (its `outline`) and what its features add, by stage, in running order."""
    features = getattr(module, 'features', None)
    at = features.at if isinstance(features, Features) else {}
    outline = dict(module.outline())
    for stage in dict.fromkeys((*(s for f in type(module).catalogue for s in f.stages), *outline)):
        if stage in outline:
            yield stage, outline[stage]
        yield from ((stage, said(feature)) for feature in at.get(stage, ()) if settings(feature))
    settled = (f for f in getattr(features, 'active', ()) if not f.runs_at() and settings(f))
    yield from (('setup', said(feature)) for feature in settled)
    running = {name for f in getattr(features, 'active', ()) for name in f.flags}
    off = [name for name, value in module._given.items() if value is False and name not in running]
    off = [name for cls in type(module).catalogue for name, f in cls.flags.items() if name in off and f.default]
    if off:
        yield 'off', ', '.join(f'{name}=False' for name in off)
    inputs = dict.fromkeys(i for f in getattr(features, 'active', ()) for i in f.takes)
    if inputs:
        yield 'inputs', ', '.join(inputs)
    yield from (('measured', text) for text in effects(module))


def effects(module: Any) -> Iterator[str]:
    """What the flags of a module, as they were given, were measured to change."""
    hosts, given = {cls.__name__ for cls in type(module).__mro__}, module._given
    known = {**type(module).arguments(), **flags_of(type(module).catalogue)}
    papers = {name: cls.paper for cls in type(module).catalogue for name in cls.flags if cls.paper}
    for name, value in given.items():
        for one in measured(hosts, name):
            others: Any = None if one.others is None else {other: known[other].default for other in one.others} | given
            if same(value, one.value) and others and all(same(others[n], v) for n, v in (one.others or {}).items()):
                paper = f' [{papers[name]}]' if name in papers else ''
                yield f'{one.variant}{paper}: {one}'


def settings(feature: Feature) -> list[str]:
    """The flags of a feature that differ from their defaults."""
    own = feature.__dict__
    return [f'{n}={shown(own[n])}' for n, f in feature.flags.items() if not same(own[n], f.default)]


def said(feature: Feature) -> str:
    said = summary(feature)
    return f'{type(feature).__name__} ({", ".join(settings(feature))}){f": {said}" if said else ""}'


def summary(feature: Feature) -> str:
    return inspect.cleandoc(type(feature).__doc__ or '').split('\n')[0]


def headline(module: Any) -> str:
    known = type(module).arguments()
    sizes = {k: v for k, v in module._given.items() if k in known and isinstance(v, (bool, int, float, str, tuple))}
    return ', '.join(f'{k}={v}' for k, v in sizes.items())
