"""Models from folders in the format of `transformers`, or in our own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.positions import ScaledSinusoidalEmbedding
from x_transformers.features.rotary import RotaryEmbedding
from x_transformers.flags import ConfigError, shown
from x_transformers.flags.config import decode
from x_transformers.pretrained.engine import (
    Step,
    check_names,
    check_shapes,
    is_ignored,
    own,
    renamed,
    saved,
    steps_of,
)
from x_transformers.pretrained.files import Weights, read_json, resolve
from x_transformers.pretrained.rows import Fields, Row, row_of

OWN = 'x_transformers'
DTYPES = {name: getattr(torch, name) for name in ('float32', 'float16', 'bfloat16', 'float64')}


@dataclass
class Info:
    """What was read: the type, its config as it was, the keywords that built the model, and what became of the rest.

    ignored       names in the file that hold nothing to keep
    new           parameters that the file does not have, with initial values
    tied          whether the head is the table of embeddings
    generation    keywords of `generate`, from generation_config.json
    kept          rows in front of tables that stand for no place, for the way back
    found         fields of the config that the tensors of the file settle
    """

    type: str
    config: dict[str, Any]
    keywords: dict[str, Any]
    source: str
    revision: str | None = None
    tied: bool = False
    ignored: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    generation: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)
    found: dict[str, bool] = field(default_factory=dict)


def chosen_dtype(dtype: Any, config: Mapping[str, Any]) -> torch.dtype | None:
    """That of the config, or a given one; None leaves the file's."""
    if dtype == 'auto':
        dtype = config.get('dtype', config.get('torch_dtype'))
    if dtype is None:
        return None
    found = DTYPES.get(dtype.removeprefix('torch.')) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"`dtype` got {shown(dtype)}, it must be 'auto' or one of {', '.join(DTYPES)}")
    return found


def placing(device_map: Any) -> Any:
    """A function from names to devices: the longest prefix of a module counts."""
    if device_map is None or isinstance(device_map, (str, int, torch.device)):
        if device_map == 'auto':
            raise ValueError("`device_map` got 'auto', it must be a device, or a dict from modules to devices")
        device = None if device_map is None else torch.device(device_map)
        return lambda name: device
    if not isinstance(device_map, Mapping):
        raise TypeError(f'`device_map` got {shown(device_map)}, it must be None, a device or a dict')

    def place(name: str) -> torch.device | None:
        fits = [p for p in device_map if p == '' or name == p or name.startswith(f'{p}.')]
        if not fits:
            raise ValueError(f"`device_map` says nothing of `{name}`: give '' as a prefix of all modules")
        return torch.device(device_map[max(fits, key=len)])

    return place


def is_tied(row: Row, config: Mapping[str, Any], weights: Weights) -> bool:
    """Whether the head is the table: it has no tensor of its own, or an equal one, whatever the config says."""
    if row.tied is None:
        return False
    head, table = row.tied
    names = renamed(row, weights.files, row.tied)
    if head not in names:
        said = config.get('tie_word_embeddings', row.defaults.get('tie_word_embeddings', True))
        if said is False and 'tie_word_embeddings' in config:
            raise ConfigError(f'the file has no `{head}`, and its config says `tie_word_embeddings: false`')
        return True
    if table not in names or weights.shape(names[head]) != weights.shape(names[table]):
        return False
    return torch.equal(weights.load(names[head]), weights.load(names[table]))


def found_in(row: Row, weights: Weights) -> dict[str, bool]:
    """What the presence of tensors settles."""
    names = renamed(row, weights.files, set(row.presence.values()))
    return {field: name in names for field, name in row.presence.items()}


def load(
    source: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: Any = 'auto',
    device_map: Any = None,
    dropout: float | None = None,
    allow_pickle: bool = False,
    local_files_only: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    return_info: bool = False,
    **keywords: Any,
) -> Any:
    """A model as it lies on disk, in eval mode: logits as `transformers` gives them, in every wrapper of ours.

        source            a folder, a file in it, or a repository id
        revision, cache_dir, token, local_files_only   as `huggingface_hub.snapshot_download` takes them
        dtype             'auto', that of the config; or a dtype
        device_map        a device, or a dict from prefixes of modules to devices
        dropout           one probability in place of all that the config says
        allow_pickle      read `.bin` files too
        return_info       a pair with an `Info`
        **keywords        further keywords of the stack, `features` among them, that add no parameters

    Raises ConfigError, which names the field or the tensor, for what the library does not compute.
    """
    hub = dict(revision=revision, cache_dir=cache_dir, token=token, local_files_only=local_files_only)
    folder = resolve(source, **hub)
    config, place = read_json(folder / 'config.json'), placing(device_map)
    generation = read_json(folder / 'generation_config.json') if (folder / 'generation_config.json').is_file() else {}
    with Weights(folder, allow_pickle) as weights:
        if config.get('model_type') == OWN:
            model, info = load_own(config, weights, keywords)
            given = chosen_dtype(None if dtype == 'auto' else dtype, {})
        else:
            model, info, steps, names = read(config, weights, keywords, dropout)
            given = chosen_dtype(dtype, config)
            fill(model, steps, names, weights, given, place, info)
    info.source, info.revision, info.generation = str(source), revision, generation
    remade(model)
    model.eval()
    model.pretrained = info
    return (model, info) if return_info else model


def read(
    config: dict[str, Any], weights: Weights, keywords: Mapping[str, Any], dropout: float | None
) -> tuple[nn.Module, Info, list[Step], dict[str, str]]:
    """The model of a config, still without weights, and where they are."""
    row = row_of(config)
    tied = is_tied(row, config, weights)
    found = found_in(row, weights)
    fields = Fields(row, config, tied, found)
    call = with_dropout(fields.keywords(), dropout)
    call = with_keywords(call, keywords)
    with torch.device('meta'):
        model = decode(call)
    ours = saved(model)
    steps = steps_of(row, fields, ours)
    needed = {name for step in steps for name in step.theirs}
    names = renamed(row, weights.files, needed)
    info = Info(row.type, config, call, '', tied=tied, found=found)
    if tied and row.tied and row.tied[0] in names:
        names.pop(row.tied[0])
    check_names(row, names, steps)
    info.ignored = [names[name] for name in names if name not in needed and is_ignored(row, name)]
    check_shapes(steps, ours, lambda name: weights.shape(names[name]))
    return model, info, steps, names


def remade(model: nn.Module) -> None:
    """Give a model the tables that its config settles: checkpoints have none of their own."""
    like = next(model.parameters())
    device = like.device
    for module in model.modules():
        if isinstance(module, ScaledSinusoidalEmbedding) and module.like.is_meta:
            module.kind = like.new_empty(0)
        if isinstance(module, RotaryEmbedding) and module.inv_freq.is_meta:
            module.inv_freq = module.frequencies.table(device)


def with_keywords(call: dict[str, Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The call with further keywords of the stack, or of a wrapper that has several."""
    if 'attn_layers' in call:
        return {**call, 'attn_layers': {**call['attn_layers'], **keywords}}
    return {**call, **keywords}


def with_dropout(call: dict[str, Any], dropout: float | None) -> dict[str, Any]:
    """Keywords with one probability for every dropout in them."""
    if dropout is None:
        return call
    return {
        name: with_dropout(value, dropout) if isinstance(value, dict) and 'class' in value
        else dropout if 'dropout' in name else value
        for name, value in call.items()
    }  # fmt: skip


def fill(
    model: nn.Module, steps: list[Step], names: Mapping[str, str], weights: Weights, dtype: Any, place: Any, info: Info
) -> None:
    """Give a model its weights, one step at a time."""
    state: dict[str, Tensor] = {}
    for step in steps:
        for name, t in step.read(lambda name: weights.load(names[name])).items():
            t = t.to(dtype=dtype if t.is_floating_point() else None, device=place(name))
            state[name] = own(t)
        if step.change.cuts:
            info.kept[step.theirs[0]] = own(weights.load(names[step.theirs[0]])[: step.sizes.cut])
        weights.release()
    model.load_state_dict(tied_too(model, state), assign=True, strict=False)


def tied_too(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with the other names of tensors that have several."""
    first: dict[int, str] = {}
    for name, t in model.state_dict(keep_vars=True).items():
        of = first.setdefault(id(t), name)
        if of in state:
            state[name] = state[of]
    return state


def load_own(config: dict[str, Any], weights: Weights, keywords: Mapping[str, Any]) -> tuple[nn.Module, Info]:
    call = dict(config['config'])
    call = with_keywords(call, keywords)
    with torch.device('meta'):
        model = decode(call)
    state = {name: own(weights.load(name)) for name in weights.files}
    model.load_state_dict(tied_too(model, state), assign=True)
    return model, Info(OWN, config, call, '')


__all__ = ['Info', 'load']
