"""How a model was built, as plain data that JSON can hold, and the way back."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from x_transformers.flags.checks import ConfigError, format_value
from x_transformers.flags.declared import Feature, PerLayer
from x_transformers.flags.resolved import did_you_mean

# every class of modules built from flags, by name
KINDS: dict[str, Any] = {}


def is_configured(value: Any) -> bool:
    """Return True if something is a module that is built from flags."""
    return isinstance(value, nn.Module) and getattr(type(value), 'kinds', None) is KINDS


def _is_defined(kind: type[Feature] = Feature) -> Iterator[type[Feature]]:
    """All classes of features that there are."""
    for heir in kind.__subclasses__():
        yield heir
        yield from _is_defined(heir)


def _class_title(feature: type[Feature]) -> str:
    """Return how a config names a feature: `Rotary`, one of the library's; `my_module:MyPaper`, one of the user's."""
    ours = feature.__module__.startswith('x_transformers.')
    return feature.__qualname__ if ours else f'{feature.__module__}:{feature.__qualname__}'


def encode(value: Any, name: str) -> Any:
    if is_configured(value):
        # where parameters are sharded or shared, engines give a module another class
        kind = vars(value).get('_built_as', type(value))
        if KINDS.get(kind.__name__) is not kind:
            raise ValueError(f'`{name}` is of a class {kind.__name__} of its own, which a config cannot name')
        known, built = kind.accepted(), value.given_now()
        # what overrides something else is kept even where it is the default
        kept = (
            k for k in built if k not in known or 'cross_attn_' in k or not is_same_class(built[k], known[k].default)
        )
        given = {k: built[k] for k in kept}
        # a module that was replaced since is described as it is now
        now = {k: getattr(value, k, v) if isinstance(v, nn.Module) else v for k, v in given.items()}
        now = {k: v for k, v in now.items() if v is not None or given[k] is None}  # given, and not kept
        return {'class': kind.__name__, **{k: encode(v, k) for k, v in now.items()}}
    if hasattr(value, 'as_config'):  # values that know their own form, such as patterns
        return value.as_config()
    if isinstance(value, Mapping):
        items = {str(k): encode(v, f'{name}.{k}') for k, v in value.items()}
        return {'class': 'dict', 'items': items} if 'class' in items else items
    if isinstance(value, type) and issubclass(value, Feature):
        return {'class': 'Feature', 'name': _class_title(value)}
    if isinstance(value, PerLayer):
        return {'class': 'PerLayer', 'values': [encode(v, name) for v in value.values]}
    if isinstance(value, (tuple, list)):
        return [encode(v, name) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise ValueError(
        f'`{name}` got {format_value(value)}, which a config cannot hold: '
        f'only numbers, texts, tuples and dicts can be written as JSON'
    )


def _name_class(name: str) -> type[Feature]:
    """The feature that a config names. It has to be there: a file that others wrote imports nothing."""
    known = {_class_title(feature): feature for feature in _is_defined()}  # of two with one name the later one
    if name not in known:
        module, of_user, own = name.rpartition(':')
        advice = f', import `{module}` first' if of_user else did_you_mean(own, known)
        raise ConfigError(f'`features` names {name!r}, which is not defined{advice}')
    return known[name]


def is_same_class(value: Any, default: Any) -> bool:
    return value is default or (
        type(value) is type(default) and isinstance(value, (bool, int, float, str, tuple)) and value == default
    )


def decode(value: Any) -> Any:
    if isinstance(value, Mapping) and value.get('class') == 'dict':
        return {k: decode(v) for k, v in value['items'].items()}
    if isinstance(value, Mapping) and value.get('class') == 'PerLayer':
        return PerLayer(*map(decode, value['values']))
    if isinstance(value, Mapping) and value.get('class') == 'Feature':
        return _name_class(str(value.get('name')))
    if isinstance(value, Mapping) and 'class' in value:
        rest = {k: decode(v) for k, v in value.items() if k != 'class'}
        if value['class'] not in KINDS:
            raise ConfigError(f'`class` got {value["class"]!r}, it must be one of {", ".join(sorted(KINDS))}')
        return KINDS[value['class']](**rest)
    if isinstance(value, Mapping):
        return {k: decode(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(decode(v) for v in value)
    return value
