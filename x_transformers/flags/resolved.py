"""Resolution of given keywords to the values of all flags: defaults, checks, errors, suggestions."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from x_transformers.flags.checks import (
    ConfigError,
    boolean,
    format_value,
    warn_once,
)
from x_transformers.flags.declared import Feature, Flag


def get_flags(catalogue: Iterable[type[Feature]]) -> dict[str, Flag]:
    """Return the flags of a catalogue, by name."""
    return dict(known_flags(tuple(catalogue)))


@functools.lru_cache(maxsize=256)
def known_flags(catalogue: tuple[type[Feature], ...]) -> dict[str, Flag]:
    return {name: flag for cls in catalogue for name, flag in cls.flags.items()}


def known_features(features: Any) -> tuple[type[Feature], ...]:
    """Return the `features` of a user after a check; () for None."""
    known = isinstance(features, Sequence) and all(isinstance(f, type) and issubclass(f, Feature) for f in features)
    if features is not None and not known:
        raise ConfigError(f'`features` must be a tuple of Feature classes, got {format_value(features)}')
    return tuple(features or ())


def extend(
    level: Sequence[type[Feature]],
    *mine: type[Feature],
    before: type[Feature] | None = None,
    after: type[Feature] | None = None,
) -> tuple[type[Feature], ...]:
    """Add features to those of a level, such as ATTENTION, for `features=extend(ATTENTION, Mine)`.

    They run after the others, or `before` or `after` one of them. A feature derived from one of the level, without
    flags of its own, replaces it.

    Raises:
        ConfigError: A feature is of another level.
    """
    level = known_features(level)
    place = next((at for at, cls in enumerate(level) if cls in (before, after)), None)
    if before is not None and after is not None:
        raise ConfigError('`before` cannot be combined with `after`')
    if place is None and (before or after) is not None:
        name = 'before' if before is not None else 'after'
        raise ConfigError(f'`{name}` must be a feature of this level, got {format_value(before or after)}')
    for cls in known_features(mine):
        if level and cls.stages is not level[0].stages:
            raise ConfigError(f'{cls.__name__} must be a feature of the level of {level[0].__name__}')
    heirs = {base: cls for cls in mine for base in level if issubclass(cls, base) and cls.flags == base.flags}
    added = tuple(cls for cls in mine if cls not in (*heirs.values(), *level))
    start = len(level) if place is None else place + (after is not None)
    replaced = [heirs.get(cls, cls) for cls in level]
    return (*replaced[:start], *added, *replaced[start:])


def catalogue_for(
    level: tuple[type[Feature], ...], features: Sequence[type[Feature]] | None
) -> tuple[type[Feature], ...]:
    """Return the features of a level: the user's list, or the library's with those of the user added."""
    own = tuple(feature for feature in known_features(features) if feature.stages is level[0].stages)
    if own and not set(own) & set(level):
        own = extend(level, *own)
    declared: dict[str, str] = {}
    for feature in own:
        for name in feature.flags:
            if declared.setdefault(name, feature.__name__) != feature.__name__:
                raise ConfigError(f'`features` must declare `{name}` once, got {declared[name]} and {feature.__name__}')
    return own or level


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ', did you mean `...`?' with the names closest to a misspelt one, or ''."""
    known = list(names)
    joined = {known_name.replace('_', ''): known_name for known_name in known}
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    likeness = [difflib.SequenceMatcher(None, c, name).ratio() for c in close]
    close = [c for c, ratio in zip(close, likeness, strict=True) if ratio > max(likeness) - 0.08]
    close += [joined[c] for c in difflib.get_close_matches(name.replace('_', ''), joined, n=1, cutoff=0.75)]
    ending = [k for k in known if k.endswith(f'_{name}') or k.startswith(f'{name}_')]
    found = list(dict.fromkeys(ending[:3] if ending and not close else close))
    found = [known_name for known_name in found if known_name.split('_')[0] == name.split('_')[0]] or found
    return f', did you mean {" or ".join(f"`{c}`" for c in found)}?' if found else ''


def advice(
    name: str,
    names: Iterable[str],
    value: Any = None,
    owner: type | None = None,
    method: str = '',
    module: Any = None,
    kinds: Mapping[str, Any] | None = None,
) -> str:
    """Return what to write instead of an unknown keyword, as the end of an error message, or ''.

    A word of another library is translated, a keyword of another function is sent there, a misspelt one is corrected.

    Args:
        name: The keyword.
        names: All keywords that the called function takes.
        value: The value that was given.
        owner: The class that is built, or whose method is called.
        method: The method or function; '' if a class is built.
        module: The module whose method is called.
        kinds: The classes of the library by name; those of `owner` if None.
    """
    from x_transformers.flags.foreign import Callee, answer  # not needed unless there is an error

    names = dict.fromkeys(names)
    known: Mapping[str, Any] = getattr(owner, 'kinds', {}) if kinds is None else kinds
    return answer(name, value, Callee(owner, method, names, module, known)) or did_you_mean(name, names)


def left_out_or_meant(
    name: str, names: Mapping[str, Any], known: Mapping[str, Flag], value: Any = None, owner: type | None = None
) -> str:
    """Return why a keyword is unknown: `features` leaves out the one that declares it, or it is misspelt."""
    left_out = getattr(names[name], 'feature', None) if name in names else None
    if left_out is None:
        return advice(name, (*names, *known), value, owner)
    return f': `features` leaves out {left_out.__name__}, write `features=extend(...)` to add to the features there are'


def resolve(
    catalogue: Iterable[type[Feature]],
    given: Mapping[str, Any],
    where: str,
    names: Callable[[], Mapping[str, Any]] = dict,
    owner: type | None = None,
) -> tuple[dict[str, Any], list[type[Feature]]]:
    """Return the value of every flag of `catalogue`, and the features that are switched on.

    `where` is the name of the module being built, of the class `owner`; `names` returns further keywords of it, for
    suggestions. Raises ConfigError for an unknown flag, a value out of range, flags that clash, or a missing need.
    """
    catalogue = tuple(catalogue)
    known = get_flags(catalogue)
    for name, value in given.items():
        if name not in known:
            hint = left_out_or_meant(name, names(), known, value, owner)
            raise ConfigError(f'unknown keyword `{name}` of {where}{hint}')
        if reason := known[name].refusal(value):
            raise ConfigError(reason)
    values = {name: given.get(name, flag.default) for name, flag in known.items()}
    # 1.0 equals True, but flags must not compute with it.
    values |= {n: bool(v) for n, v in given.items() if known[n].check is boolean and v is not None}
    features = [cls for cls in catalogue if cls.runs(values)]
    _refuse_unknown_others(features, known, where, names)
    built = [cls.variant(values) for cls in features]
    refuse_clashes([cls for cls in built if cls.flags], known, values)
    wished = {known[name].feature for name, value in given.items() if value != known[name].default}
    for cls in catalogue if wished else ():
        if cls in wished:
            warn_of_idle(cls, cls in features, values, given)
    return values, built


def get_switch(cls: type[Feature], values: Mapping[str, Any]) -> str:
    """Return the flag that switched the feature on."""
    return next(
        (name for name in cls.flags if values[name] and values[name] != cls.flags[name].default),
        next(iter(cls.flags), ''),
    )


def _refuse_unknown_others(
    features: Iterable[type[Feature]], known: Mapping[str, Flag], where: str, names: Callable[[], Mapping[str, Any]]
) -> None:
    """Raise ConfigError if a user's feature names an unknown flag in `needs`, `clashes` or `overridden_by`."""
    for cls in features:
        for table in ('needs', 'clashes', 'overridden_by') if cls.is_user_defined else ():
            for name in getattr(cls, table):
                if name not in known and getattr(names().get(name), 'feature', None) is None:
                    raise ConfigError(
                        f'`{table}` of {cls.__name__} names `{name}`, which no feature of {where} declares'
                        f'{did_you_mean(name, known) or ": `setup` can check arguments of the owner"}'
                    )


def refuse_clashes(features: Iterable[type[Feature]], known: Mapping[str, Flag], values: Mapping[str, Any]) -> None:
    """Raise ConfigError for features whose needs are off, whose clashes are on, or two with one choice or attribute."""
    chosen: dict[str, str] = {}
    features = tuple(features)
    _refuse_replaced(features, values)
    settled: dict[str, str] = {}
    for cls in features:
        name = get_switch(cls, values)
        for need, reason in cls.needs.items():
            if need in known and not is_set(known, values, need):
                raise ConfigError(f'`{name}` needs `{need}`: {reason}')
        for other, reason in cls.clashes.items():
            if other in known and is_set(known, values, other):
                raise ConfigError(f'`{name}` cannot be combined with `{other}`: {reason}')
        for stage in cls.runs_at():
            if cls.stages[stage] != 'choice':
                continue
            if stage in chosen:
                raise ConfigError(f'`{chosen[stage]}` and `{name}` both choose the {stage}, set only one')
            chosen[stage] = name
        for attribute in cls.sets_on_module:
            if settled.setdefault(attribute, name) != name:
                raise ConfigError(f'`{settled[attribute]}` and `{name}` both settle `{attribute}`, set only one')


def _refuse_replaced(features: Iterable[type[Feature]], values: Mapping[str, Any]) -> None:
    """Raise ConfigError for features at stages that another feature replaces."""
    for cls in features:
        gone = {other: stage for stage in cls.runs_at() for other in cls.replaces.get(stage, ())}
        for other in features if gone else ():
            stages = [] if other.runs_fused else [stage for stage in other.runs_at() if stage in gone]
            if stages:
                raise ConfigError(
                    f'`{get_switch(cls, values)}` cannot be combined with `{get_switch(other, values)}`: '
                    f'it takes the place of {stages[0]}, at `{gone[stages[0]]}`'
                )


def warn_of_idle(cls: type[Feature], runs: bool, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Warn of given flags that have no effect because of others."""
    switches = cls.switches or tuple(cls.flags)[:1]
    wished = [name for name in cls.flags if name in given and given[name] != cls.flags[name].default]
    if not runs and wished and (overruling := cls.overruled_by(values)) is not None:
        return warn_once(f'`{wished[0]}` has no effect beside `{overruling}`, which takes over')
    for name in wished:
        if not runs and name not in switches:
            warn_once(f'`{name}` has no effect unless {" or ".join(f"`{s}`" for s in switches)} is set')
        elif cls.requires_flag.get(name, '').startswith('not '):
            other = cls.requires_flag[name].removeprefix('not ')
            if values[other]:
                warn_once(f'`{name}` has no effect beside `{other}`')
        elif name in cls.requires_flag and not values[cls.requires_flag[name]]:
            warn_once(f'`{name}` has no effect unless `{cls.requires_flag[name]}` is set')
    return None


def is_set(known: Mapping[str, Flag], values: Mapping[str, Any], name: str) -> bool:
    """Return True if a flag is on: its feature is, if the flag is the switch, else it differs from its default."""
    owner = known[name].feature
    if owner is not None and name == next(iter(owner.flags)):
        always = owner.is_on({**values, **{n: flag.default for n, flag in owner.flags.items()}})
        if not always:
            return owner.is_on(values)
    return values[name] != known[name].default
