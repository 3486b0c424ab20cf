"""Models written as folders, in the format of `transformers` or in our own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.flags import ConfigError, shown
from x_transformers.flags.config import is_configured
from x_transformers.pretrained.described import check_keywords, described
from x_transformers.pretrained.engine import bare, made, once, saved, steps_of
from x_transformers.pretrained.files import GENERATION, copy_tokenizer, in_bytes, write_json, write_weights
from x_transformers.pretrained.heads import row_for
from x_transformers.pretrained.loading import Info
from x_transformers.pretrained.rows import OWN, Fields, Row


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    format: str = 'hf',
    hf_type: str | None = None,
    max_shard_size: int | str = '5GB',
    generation: Mapping[str, Any] | None = None,
    tokenizer_from: str | os.PathLike[str] | None = None,
) -> None:
    """Write config.json and the weights of a model to a folder.

        format            'hf', as `transformers` reads it; 'own', the config and the names of this library
        hf_type           the `model_type` to write, of a model that was not loaded from one
        max_shard_size    of one file, in bytes or as '5GB'
        generation        content of generation_config.json, that which was read if None
        tokenizer_from    a folder whose tokenizer files are copied

    Raises ConfigError, which names the keyword, for a model that the type has no fields for.
    """
    if format not in ('hf', 'own'):
        raise ValueError(f"`format` got {shown(format)}, it must be 'hf' or 'own'")
    if not is_configured(model):
        raise TypeError(f'`model` got a {type(model).__name__}, it must be a model of this library')
    apart = next((name for name, t in model.state_dict(keep_vars=True).items() if hasattr(t, 'full_tensor')), None)
    if apart is not None:
        raise ValueError(
            f'`{apart}` of the model lies on several devices: put `State(model).whole()` of x_transformers.parallel '
            f'into the `State` of a model on one device, and save that'
        )
    if not isinstance(generation, Mapping | None):
        raise TypeError(f'`generation` got {shown(generation)}, it must be a dict or None')
    folder, most = Path(path), in_bytes(max_shard_size)
    info = getattr(model, 'pretrained', None)
    if format == 'own':
        config, get, sizes = own_files(model)
    else:
        config, get, sizes = files_of(model, info, hf_type)
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer_from is not None:
        copy_tokenizer(Path(tokenizer_from), folder)
    write_json(config, folder / 'config.json')
    write_weights(folder, sizes, get, most)
    generation = getattr(info, 'generation', None) if generation is None else generation
    if generation:
        write_json(generation, folder / GENERATION)


def on_cpu(t: Tensor) -> Tensor:
    return t.detach().to('cpu').contiguous()


Get = Callable[[Iterable[str]], dict[str, Tensor]]


def own_files(model: nn.Module) -> tuple[dict[str, Any], Get, dict[str, int]]:
    """The config to write in our own format, a function from names to tensors, and their sizes in bytes."""
    from x_transformers import __version__

    state = once(model.state_dict(keep_vars=True))
    config = {'model_type': OWN, 'x_transformers_version': __version__, 'config': model.config}
    return (
        config,
        lambda names: {name: on_cpu(state[name]) for name in names},
        {name: t.nbytes for name, t in state.items()},
    )


def files_of(model: nn.Module, info: Info | None, hf_type: str | None) -> tuple[dict[str, Any], Get, dict[str, int]]:
    """The same in the format of `transformers`."""
    state = saved(model)
    config, fields = said_of(model, info, hf_type, state)
    check_keywords(model, fields)
    check_weights(state, saved(made(fields.keywords())), fields.row.type)
    steps = steps_of(fields.row, fields, state)
    of = {name: step for step in steps for name in step.theirs}
    empty = {name: torch.empty_like(t, device='meta') for name, t in state.items()}
    nbytes = {name: t.nbytes for step in steps for name, t in step.write(empty).items()}
    kept = {} if info is None else info.kept

    def get(names: Iterable[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in names:
            if name not in found:
                found.update(of[name].write({ours: on_cpu(state[ours]) for ours in of[name].ours}))
        for name in kept.keys() & found.keys():
            found[name][: len(kept[name])] = kept[name]
        return {name: found[name].contiguous().clone() for name in names}

    return config, get, nbytes


def said_of(
    model: nn.Module, info: Info | None, hf_type: str | None, state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Fields]:
    """The config to write of a model with these weights, and its fields."""
    has_head = any(name.endswith('to_logits.weight') for name in state)
    row, config = chosen(model, info, hf_type, not has_head)
    config |= sizes_now(model, row)
    found = {name: config.pop(name) for name in row.presence if name in config} | (info.found if info else {})
    tied = row.tied is not None and not has_head
    says = config.get('tie_word_embeddings', row.defaults.get('tie_word_embeddings'))
    # a file with a head of its own is read as untied whatever its config says, which is then left as it was
    untied_as_read = info is not None and not info.tied and not tied and says
    if row.tied is not None and says != tied and not untied_as_read:
        config['tie_word_embeddings'] = tied
    config.pop('torch_dtype', None)
    config['dtype'] = str(next(iter(state.values())).dtype).removeprefix('torch.')
    return config, Fields(row, config, tied, found)


def check_weights(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], kind: str) -> None:
    """Refuse weights that a model of the config does not have, or has in another shape; and a model without some."""
    has, needs = ({bare(name): t.shape for name, t in own.items()} for own in (state, wanted))
    for name in (*has, *needs):
        if has.get(name) != needs.get(name):
            here, there = (f'has shape {tuple(own[name])}' if name in own else 'is missing' for own in (has, needs))
            raise ConfigError(f'`{name}` of the model {here}, in a {kind} of its config it {there}')


def chosen(model: nn.Module, info: Info | None, hf_type: str | None, tied: bool) -> tuple[Row, dict[str, Any]]:
    """The type to write, and the config that the model was read with; else one that says the same."""
    if info is None or info.type == OWN or hf_type not in (None, info.type):
        config = described(model, tied, hf_type)
        return row_for(config), config
    return row_for(info.config), dict(info.config)


def sizes_now(model: nn.Module, row: Row) -> dict[str, Any]:
    """Fields that name sizes which may have changed since."""
    field = row.model.get('num_tokens')
    return {} if field is None else {field: getattr(model, 'net', model).num_tokens}
