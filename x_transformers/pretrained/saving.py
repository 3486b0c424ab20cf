"""Models written as folders, in the format of `transformers` or in our own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.flags import shown
from x_transformers.pretrained.described import check_keywords, described
from x_transformers.pretrained.engine import saved, steps_of
from x_transformers.pretrained.files import GENERATION, copy_tokenizer, in_bytes, write_json, write_weights
from x_transformers.pretrained.heads import row_for
from x_transformers.pretrained.loading import OWN
from x_transformers.pretrained.rows import ROWS, Fields, Row


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
    folder, most = Path(path), in_bytes(max_shard_size)
    info = getattr(model, 'pretrained', None)
    if format == 'own':
        config, get, sizes = own_files(model)
    else:
        config, get, sizes = files_of(model, info, hf_type)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(config, folder / 'config.json')
    write_weights(folder, sizes, get, most)
    generation = getattr(info, 'generation', None) if generation is None else generation
    if generation:
        write_json(generation, folder / GENERATION)
    if tokenizer_from is not None:
        copy_tokenizer(Path(tokenizer_from), folder)


def once(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with the first name of each tensor."""
    found: dict[int, str] = {}
    for name, t in state.items():
        found.setdefault(id(t), name)
    return {name: state[name] for name in found.values()}


def on_cpu(t: Tensor) -> Tensor:
    return t.detach().to('cpu').contiguous()


def own_files(model: nn.Module) -> tuple[dict[str, Any], Any, dict[str, int]]:
    from x_transformers import __version__

    state = once(model.state_dict(keep_vars=True))
    config = {'model_type': OWN, 'x_transformers_version': __version__, 'config': model.config}
    return (
        config,
        lambda names: {name: on_cpu(state[name]) for name in names},
        {name: t.nbytes for name, t in state.items()},
    )


def files_of(model: nn.Module, info: Any, hf_type: str | None) -> tuple[dict[str, Any], Any, dict[str, int]]:
    state = saved(model)
    tied = not any(name.endswith('to_logits.weight') for name in state)
    row, config = chosen(model, info, hf_type, tied)
    tied = row.tied is not None and tied
    config = {**config, **sizes_now(model, row)}
    says = config.get('tie_word_embeddings', row.defaults.get('tie_word_embeddings'))
    as_read = info is not None and info.tied == tied and says  # a head of its own counts, whatever the config says
    if row.tied is not None and says != tied and not as_read:
        config['tie_word_embeddings'] = tied
    found = {name: config.pop(name) for name in row.presence if name in config} | getattr(info, 'found', {})
    fields = Fields(row, config, tied, found)
    check_keywords(model, fields)
    steps = steps_of(row, fields, state)
    of = {name: step for step in steps for name in step.theirs}
    empty = {name: torch.empty_like(t, device='meta') for name, t in state.items()}
    nbytes = {name: t.nbytes for step in steps for name, t in step.write(empty).items()}
    dtype = next(iter(state.values())).dtype
    config['dtype'] = str(dtype).removeprefix('torch.')
    config.pop('torch_dtype', None)
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


def chosen(model: nn.Module, info: Any, hf_type: str | None, tied: bool) -> tuple[Row, dict[str, Any]]:
    """The type to write, and the config that the model was read with; else one that says the same."""
    if info is None or info.type == OWN or hf_type not in (None, info.type):
        config = described(model, tied, hf_type)
        return ROWS[config['model_type']], config
    return row_for(info.config), dict(info.config)


def sizes_now(model: nn.Module, row: Row) -> dict[str, Any]:
    """Fields that name sizes which may have changed since."""
    field = row.model.get('num_tokens')
    return {} if field is None else {field: getattr(model, 'net', model).num_tokens}
