"""Models as they leave training, and the model of a class of `transformers` that each holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from x_transformers.finetuning import FineTuned
from x_transformers.flags import ConfigError
from x_transformers.flags.config import is_configured
from x_transformers.pretrained.described import call_of, canonical, differences
from x_transformers.pretrained.engine import is_spare, made, saved
from x_transformers.pretrained.heads import is_of_head, kinds_of, settled
from x_transformers.pretrained.loading import Info, remade
from x_transformers.pretrained.options import VOCABULARIES
from x_transformers.pretrained.rows import OWN, ROWS, Fields, Part, Row, Value, row_of

OWN_FORMAT = "`format='own'` saves it as it is"
KINDS = {'tokens': 'tokens', 'span': 'span', 'class': 'classify'}  # heads of `FineTuned`, by the names of the table


def without_torch_wrappers(model: Any) -> Any:
    """Return a model without what `torch.compile`, DDP and the like put around it."""
    while isinstance(model, nn.Module) and not is_configured(model):
        children = dict(model.named_children())
        inner = next((children[name] for name in ('module', '_orig_mod', '_forward_module') if name in children), None)
        if inner is None:
            break
        model = inner
    return model


def info_of(model: nn.Module) -> Info | None:
    """Return what is known of a model that was loaded in the format of `transformers`."""
    info = getattr(model, 'pretrained', None)
    return info if isinstance(info, Info) and info.type != OWN else None


def is_written(model: nn.Module) -> bool:
    """Return True for a class of models that types of `transformers` are read as."""
    written = {row.wrapper for row in ROWS.values()} | {'Classifier'}
    return not written.isdisjoint(kind.__name__ for kind in type(model).__mro__)


def model_to_write(model: nn.Module) -> nn.Module:
    """Return the model in a wrapper of training, which adds no weights, or with a head of `finetune`.

    Raises ConfigError, which says what to save instead, for a module that no class of `transformers` is like.
    """
    while info_of(model) is None and not is_written(model):
        if isinstance(model, FineTuned):
            return with_head_of_theirs(model)
        children = {name: child for name, child in model.named_children() if is_configured(child)}
        names = [*model.state_dict()]
        inner = next((n for n in children if all(name.startswith(f'{n}.') for name in names)), None)
        if inner is None:
            inside = [name for name, child in children.items() if is_written(child)]
            way = f'save its `{inside[0]}`, or ' if inside else ''
            raise ConfigError(f'a {type(model).__name__} is no class of `transformers`: {way}{OWN_FORMAT}')
        model = children[inner]
    return model


def with_head_of_theirs(model: FineTuned) -> nn.Module:
    """Return a `FineTuned` as the classifier of the table that computes the same, with the same tensors."""
    info, kind = info_of(model.net), KINDS[model.kind]
    start = f'a FineTuned of `head={model.kind!r}` cannot be written in the format of `transformers`'
    if info is None:
        raise ConfigError(f'{start}, since its model was not loaded in that format: {OWN_FORMAT}')
    way = f'train `pretrained.load(source, head={kind!r}, num_classes={model.num_labels})`, or {OWN_FORMAT}'
    if kind not in kinds_of(row_of(info.config)):
        raise ConfigError(f'{start}: a {info.type} has no such head there. {OWN_FORMAT}')
    row, config = settled(info.config, kind, None if kind == 'span' else model.num_labels)
    fields = Fields(row, config, info.tied, {**dict.fromkeys(row.presence, False), **info.found})
    view: Any = made(fields.keywords())
    body = {f'net.{name}': t for name, t in saved(model.net).items() if not is_of_head(name)}
    state = {**body, **{f'to_classes.{name}': t for name, t in model.head.named_parameters()}}
    wanted = saved(view)
    other = next((name for name in (*wanted, *state) if (name in wanted) != (name in state)), None)
    reads = 'span' if kind == 'span' else model.read or 'all'
    if other is not None or getattr(view, 'token', 'all') != reads:
        why = f'reads the {getattr(view, "token", "all")} token' if other is None else f'differs in `{other}`'
        raise ConfigError(f'{start}: a {row.architectures[0]} {why}. Instead, {way}')
    view.load_state_dict(state, assign=True, strict=False)
    remade(view, info)
    found = {name: fields.values[name] for name in row.presence}
    kept = {name: t for name, t in info.kept.items() if not is_spare(row, name)}
    view.pretrained = replace(info, config=config, keywords=fields.keywords(), found=found, kept=kept)
    return view.train(model.training)


def config_of_loaded(model: nn.Module, info: Info) -> tuple[Row, dict[str, Any]] | None:
    """Return the row and the config of a new head around a model that was loaded, or None if no head is like it."""
    now, classes = canonical(call_of(model)), getattr(model, 'num_classes', None)
    for kind in kinds_of(row_of(info.config)):
        try:
            row, config = settled(info.config, kind, classes if kind in ('classify', 'tokens') else None)
            said = canonical(Fields(row, config, info.tied, info.found).keywords())
        except ConfigError:
            continue
        if not differences(now, said):
            return row, config
    return None


def vocabularies_of(values: Mapping[str, Value], call: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the fields of a row that are sizes of vocabularies, each with its value in a call."""
    for name, value in values.items():
        if isinstance(value, Part) and isinstance(call.get(name), Mapping):
            yield from vocabularies_of(value.keywords, call[name])
        elif name in VOCABULARIES and isinstance(value, str) and name in call:
            yield value, call[name]


def sizes_now(call: Mapping[str, Any], row: Row, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config with the sizes of vocabularies, which may have changed since it was read."""
    call = call['net'] if call['class'] == 'Classifier' else call
    found: dict[str, Any] = dict(vocabularies_of(row.model, call))
    for part, (field, kind, _) in row.parts.items():
        held = config.get(f'{field}_dict') or config.get(field) or {}
        inner = sizes_now(call[part], ROWS[kind], held)
        if any(held.get(name, ROWS[kind].defaults.get(name)) != size for name, size in inner.items()):
            found[field] = {**held, **inner}
            found |= {f'{field}_dict': None} if f'{field}_dict' in config else {}
    return found
