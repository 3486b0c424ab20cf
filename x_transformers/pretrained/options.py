"""Options of `load`: dtype, devices, trainable weights, vocabulary and further flags."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.routing import flags_of_strangers
from x_transformers.flags import ConfigError, Feature, advice, did_you_mean, format_value, probability
from x_transformers.flags.config import KINDS, decode
from x_transformers.flags.resolved import get_flags, known_features
from x_transformers.pretrained.heads import is_head_weight

DTYPES = {name: getattr(torch, name) for name in ('float32', 'float16', 'bfloat16', 'float64')}
VOCABULARIES = ('num_tokens', 'enc_num_tokens', 'dec_num_tokens')


def resolve_dtype(dtype: Any, config: Mapping[str, Any]) -> torch.dtype | None:
    """Return the given dtype, that of the config for 'auto', or None to keep the dtype of the file."""
    if dtype == 'auto':
        dtype = config.get('dtype', config.get('torch_dtype'))
    if dtype is None:
        return None
    found = DTYPES.get(dtype.removeprefix('torch.')) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"`dtype` must be 'auto' or one of {', '.join(DTYPES)}, got {format_value(dtype)}")
    return found


def make_placement(device_map: Any) -> Callable[[str], torch.device | None]:
    """Return a function from names to devices. The longest matching prefix of a module wins."""
    if device_map is None or isinstance(device_map, (str, int, torch.device)):
        if device_map == 'auto':
            raise ValueError("`device_map` must be a device, or a dict from modules to devices, got 'auto'")
        device = None if device_map is None else parse_device(device_map)
        return lambda name: device
    if not isinstance(device_map, Mapping):
        raise TypeError(f'`device_map` must be None, a device or a dict, got {format_value(device_map)}')
    devices = {prefix: parse_device(device) for prefix, device in device_map.items()}

    def place(name: str) -> torch.device | None:
        fits = [p for p in devices if p == '' or name == p or name.startswith(f'{p}.')]
        if not fits:
            raise ValueError(f"`device_map` must have a prefix of `{name}`: add '' for all other modules")
        return devices[max(fits, key=len)]

    return place


def parse_device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f'`device_map` must name devices of torch, got {format_value(device)}: {error}') from error


# The call that builds the model.


def get_inner_calls(call: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the calls within a call."""
    return {name: value for name, value in call.items() if isinstance(value, dict) and value.get('class') in KINDS}


def decode_features(call: Mapping[str, Any]) -> tuple[type[Feature], ...]:
    """Return the `features` of a call, which may come from a file."""
    return known_features(decode(call.get('features')))


def select_own_features(call: Mapping[str, Any]) -> list[type[Feature]]:
    """Return the features of a call that act in its own class, not in its stack."""
    level = KINDS[call['class']].catalogue
    return [one for one in decode_features(call) if level and one.stages is level[0].stages]


def accepts_keyword(call: Mapping[str, Any], name: str) -> bool:
    """Return True if the class of a call, or a user's feature in it, has the keyword."""
    if name in KINDS[call['class']].accepted() or name in get_flags(select_own_features(call)):
        return True
    if 'depth' in call:
        return name == 'features' or name in flags_of_strangers(decode_features(call))
    return name.startswith(('enc_', 'dec_')) and any(held.startswith('enc_') for held in call)


def add_keywords(call: dict[str, Any], keywords: Mapping[str, Any], others: Collection[str] = ()) -> dict[str, Any]:
    """Return the call with further keywords. Each goes to the wrapper if that accepts it, else to the stack, else to
    all inner calls that do. `others` are names that `load` itself takes.
    """
    features_first = sorted(keywords.items(), key=lambda item: item[0] != 'features')  # Features add keywords.
    for name, value in features_first:
        found = add_keyword(call, name, value)
        if found is None:
            known = {n for one in (call, *get_inner_calls(call).values()) for n in KINDS[one['class']].accepted()}
            hint = advice(name, (*known, *others), value, KINDS[call['class']], 'load')
            raise ConfigError(f'unknown keyword `{name}` of {call["class"]}{hint}')
        call = found
    return call


def add_keyword(call: dict[str, Any], name: str, value: Any) -> dict[str, Any] | None:
    if accepts_keyword(call, name):
        return {**call, name: value}
    tried = {part: add_keyword(within, name, value) for part, within in get_inner_calls(call).items()}
    found = {part: within for part, within in tried.items() if within is not None}
    if name == 'features' and select_own_features({**call, name: value}):
        found[name] = value
    return {**call, **found} if found else None


def set_dropout(call: dict[str, Any], dropout: float | None) -> dict[str, Any]:
    """Return a call with one probability for all its dropouts."""
    if dropout is None:
        return call
    probability.require('dropout', dropout)
    return {
        name: set_dropout(value, dropout) if isinstance(value, dict)
        else dropout if 'dropout' in name else value
        for name, value in call.items()
    }  # fmt: skip


def set_num_tokens(call: dict[str, Any], num_tokens: int | None) -> dict[str, Any]:
    """Return the call with a larger vocabulary."""
    if num_tokens is None:
        return call
    if not isinstance(num_tokens, int) or isinstance(num_tokens, bool):
        raise TypeError(f'`num_tokens` must be an integer, got {format_value(num_tokens)}')
    held = list_vocabularies(call)
    if not held:
        raise ConfigError(f'`num_tokens` must be None for a {call["class"]} without a vocabulary, got {num_tokens}')
    if num_tokens < (least := max(held)):
        raise ConfigError(f'`num_tokens` must be at least {least}, that of the config, got {num_tokens}')
    return resize(call, num_tokens)


def list_vocabularies(call: Mapping[str, Any]) -> list[int]:
    inner = [size for within in get_inner_calls(call).values() for size in list_vocabularies(within)]
    return [call[name] for name in VOCABULARIES if name in call] + inner


def resize(call: Mapping[str, Any], num_tokens: int) -> dict[str, Any]:
    within = {name: resize(value, num_tokens) for name, value in get_inner_calls(call).items()}
    return {**call, **within, **{name: num_tokens for name in VOCABULARIES if name in call}}


def grow_table(t: Tensor, like: Tensor) -> Tensor:
    """Return a table with as many rows as another. New rows are the mean of the existing ones."""
    if t.shape[:1] >= like.shape[:1]:
        return t
    mean = t.float().mean(dim=0, keepdim=True).to(t.dtype)
    return torch.cat((t, mean.expand(like.shape[0] - t.shape[0], *t.shape[1:])))


# After the model is built.


def freeze(model: nn.Module, trainable: str | Collection[str]) -> None:
    """Freeze all parameters but some:  'all', 'head', or prefixes of the names of trainable ones."""
    if trainable == 'all':
        return
    if not isinstance(trainable, Collection) or not all(isinstance(prefix, str) for prefix in trainable):
        raise TypeError(f"`trainable` must be 'all', 'head', or prefixes of parameters, got {format_value(trainable)}")
    names = [name for name, _ in model.named_parameters()]
    if trainable == 'head':
        learning = set(filter(is_head_weight, names))
    else:
        prefixes = (trainable,) if isinstance(trainable, str) else tuple(trainable)
        learning = set().union(*(match_prefix(prefix, names) for prefix in prefixes))
    if not learning:
        why = ': the model has no head with separate parameters' if trainable == 'head' else ''
        raise ValueError(f'`trainable` must select at least one parameter, got {format_value(trainable)}{why}')
    for name, p in model.named_parameters():
        p.requires_grad_(name in learning)


def match_prefix(prefix: str, names: list[str]) -> set[str]:
    """Return the parameters whose names begin with a module name; '' for all."""
    found = {name for name in names if prefix in ('', name) or name.startswith(f'{prefix}.')}
    if not found:
        raise ValueError(f'`trainable` must be prefixes of parameters, got {prefix!r}{did_you_mean(prefix, names)}')
    return found


def freeze_padding(model: nn.Module, config: Mapping[str, Any]) -> None:
    """Exclude the embedding of padding from gradients, as transformers does."""
    pad = config.get('pad_token_id')
    if pad is None:
        raise ValueError('`freeze_pad` must be False for a config without `pad_token_id`, got True')
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith('token_emb.emb'):
            module.padding_idx = pad
