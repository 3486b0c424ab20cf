"""Configs: the keywords of a model as data that JSON can hold, and models built from them."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from x_transformers.flags.checks import ConfigError, format_value
from x_transformers.flags.declared import Feature, PerLayer
from x_transformers.flags.resolved import did_you_mean

# All classes of modules built from flags, by name.
KINDS: dict[str, Any] = {}


def is_configured(value: Any) -> bool:
    """Return True for a module that is built from flags."""
    return isinstance(value, nn.Module) and getattr(type(value), 'kinds', None) is KINDS


def _list_features(kind: type[Feature] = Feature) -> Iterator[type[Feature]]:
    """Yield all classes of features that are defined."""
    for heir in kind.__subclasses__():
        yield heir
        yield from _list_features(heir)


def _class_title(feature: type[Feature]) -> str:
    """Return the name of a feature in a config: `Rotary` for the library's, `my_module:MyPaper` for the user's."""
    ours = feature.__module__.startswith('x_transformers.')
    return feature.__qualname__ if ours else f'{feature.__module__}:{feature.__qualname__}'


def encode(value: Any, name: str) -> Any:
    if is_configured(value):
        # Engines that shard or share parameters give a module another class.
        kind = vars(value).get('_built_as', type(value))
        if KINDS.get(kind.__name__) is not kind:
            raise ValueError(f'`{name}` must be of a class that a config can name, got another {kind.__name__}')
        known, built = kind.accepted(), value.given_now()
        given = {
            k: v
            for k, v in built.items()
            # `cross_attn_` overrides `attn_`, also by a default.
            if k not in known or 'cross_attn_' in k or not is_same_value(v, known[k].default)
        }
        # A module that was replaced is described as it is now.
        now = {k: getattr(value, k, v) if isinstance(v, nn.Module) else v for k, v in given.items()}
        now = {k: v for k, v in now.items() if v is not None or given[k] is None}
        return {'class': kind.__name__, **{k: encode(v, k) for k, v in now.items()}}
    if hasattr(value, 'as_config'):  # Patterns, for example.
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
        f'`{name}` must be made of numbers, texts, tuples and dicts, which a config can hold, got {format_value(value)}'
    )


def _find_feature(name: str) -> type[Feature]:
    """Return the feature with a name, of two the later one. It must be defined: a config imports no modules."""
    known = {_class_title(feature): feature for feature in _list_features()}
    if name not in known:
        module, of_user, own = name.rpartition(':')
        advice = f', import `{module}` first' if of_user else did_you_mean(own, known)
        raise ConfigError(f'`features` names {name!r}, which is not defined{advice}')
    return known[name]


def is_same_value(value: Any, default: Any) -> bool:
    return value is default or (
        type(value) is type(default) and isinstance(value, (bool, int, float, str, tuple)) and value == default
    )


def decode(value: Any) -> Any:
    """Return what a config describes, with new modules, and tuples for lists."""
    if isinstance(value, (tuple, list)):
        return tuple(map(decode, value))
    if not isinstance(value, Mapping):
        return value
    kind = value.get('class')
    if kind == 'PerLayer':
        return PerLayer(*map(decode, value['values']))
    if kind == 'Feature':
        return _find_feature(str(value.get('name')))
    content = value['items'] if kind == 'dict' else value
    decoded = {k: decode(v) for k, v in content.items() if k != 'class' or kind == 'dict'}
    if 'class' not in value or kind == 'dict':
        return decoded
    if kind not in KINDS:
        raise ConfigError(f'`class` must be one of {", ".join(sorted(KINDS))}, got {kind!r}')
    return KINDS[kind](**decoded)
