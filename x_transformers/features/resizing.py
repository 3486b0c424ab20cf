"""Giving a model more or fewer tokens: every table and head by tokens, in place, and what the model says of them.

What belongs here: `resize`, which finds the models of tokens inside a module, and what it does with one. A class with
further parts by tokens of its own says so by a method `resize_own_tokens(old, new)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.embeddings import TokenEmbedding
from x_transformers.features.readouts import Heads, TiedReadout
from x_transformers.flags import ConfigError, format_value, is_int, warn_once
from x_transformers.training.token_loss import is_plain

__all__ = ['grow', 'resize']

SIZES = {nn.Embedding: 'num_embeddings', nn.Linear: 'out_features'}


@torch.no_grad()
def resize(root: nn.Module, num_tokens: int | Mapping[str, int]) -> None:
    """Change how many tokens the models in a module know, in place.

    Args:
        root: A model or a wrapper around one.
        num_tokens: The new number; or several by the names of models in `root`, or of streams of one.

    Raises:
        TypeError: `num_tokens` is no number, and no dict of numbers.
        ValueError: `root` has no table of tokens, or several of unequal sizes for one number; or it needs an id that is
            cut off.
        ConfigError: A table or head is not the library's, is quantized, sharded, or has an adapter.
    """
    for module in root.modules():
        if reason := getattr(module, 'keeps_tokens', ''):
            raise ConfigError(f'`resize_token_embeddings` cannot be combined with {type(module).__name__}: {reason}')
    # A model has a table of its tokens, a wrapper has none.
    found = {
        name: module
        for name, module in root.named_modules()
        if hasattr(module, 'resize_tokens') or ('token_emb' in module._modules and 'num_tokens' in vars(module))
    }
    if not found:
        raise ValueError(f'`resize_token_embeddings` needs a table of tokens, {type(root).__name__} has none')
    wanted = group_by_model(found, num_tokens)
    for name, new in wanted.items():
        check_model(found[name])
        check_ids_of(root, found[name], new)
    places = [(module, name, p) for module in root.modules() for name, p in module._parameters.items() if p is not None]
    for name, new in wanted.items():
        resize_model(root, found[name], new)
    # Parameters that several modules shared are shared again.
    renewed: dict[nn.Parameter, Any] = {}
    for module, name, before in places:
        if module._parameters[name] is not before:
            renewed.setdefault(before, module._parameters[name])
    for module, name, before in places:
        module._parameters[name] = renewed.get(before, before)


def group_by_model(found: Mapping[str, Any], num_tokens: Any) -> dict[str, Any]:
    """Return the new number of each model that changes, by name."""
    alone = next(iter(found)) if len(found) == 1 else None
    if alone is not None and isinstance(found[alone].num_tokens, Mapping):
        return {alone: streams(found[alone].num_tokens, num_tokens)}
    if isinstance(num_tokens, Mapping):
        wanted = {}
        for key, new in num_tokens.items():
            names = [name for name in found if name == key or name.startswith(f'{key}.')]
            if len(names) != 1:
                got = format_value(key)
                raise ValueError(f'`num_tokens` must name one of the models, got {got}: {name_table(found)}')
            wanted[names[0]] = checked_size(new)
        tables: dict[int, set[int]] = {}
        for name, model in found.items():
            tables.setdefault(id(get_table(model).weight), set()).add(wanted.get(name, model.num_tokens))
        if any(len(sizes) > 1 for sizes in tables.values()):
            raise ValueError(f'`num_tokens` got {dict(num_tokens)} for models with one table: give one number')
        return wanted
    sizes = {model.num_tokens for model in found.values() if not isinstance(model.num_tokens, Mapping)}
    if len(sizes) != 1:
        raise ValueError(f'`num_tokens` must say which model it is for, by name, such as {name_table(found)}')
    return dict.fromkeys(found, checked_size(num_tokens))


def name_table(found: Mapping[str, Any]) -> str:
    return str({name or 'net': model.num_tokens for name, model in found.items()})


def checked_size(num_tokens: Any) -> int:
    if not is_int(num_tokens):
        raise TypeError(f'`num_tokens` must be an integer, got {format_value(num_tokens)}')
    if num_tokens < 1:
        raise ValueError(f'`num_tokens` must be at least 1, got {num_tokens}')
    return int(num_tokens)


def streams(known: Mapping[str, int], wanted: Any) -> dict[str, int]:
    """Return the number of tokens of each stream, those that are not `wanted` as they are."""
    if not isinstance(wanted, Mapping):
        raise TypeError(f'`num_tokens` must be a dict by stream, got {format_value(wanted)}: {", ".join(known)}')
    for name in wanted:
        if name not in known:
            raise ValueError(f'`num_tokens` must name a stream, got {format_value(name)}: {", ".join(known)}')
    return {name: checked_size(wanted.get(name, size)) for name, size in known.items()}


# what is checked before anything changes


def get_table(model: Any) -> Any:
    """Return the module that holds the table of a model."""
    return getattr(model.token_emb, 'emb', model.token_emb)


def is_by_tokens(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules of a model with a row for each token, and what they are."""
    if hasattr(model, 'resize_tokens'):
        yield from model.by_tokens()
        return
    yield 'token_emb', get_table(model)
    if getattr(model, 'to_logits', None) is not None and says_tokens(model):
        yield from (('to_logits', part) for part in last_linears(model.to_logits))


def says_tokens(model: Any) -> bool:
    """Return whether the logits of a model are those of its tokens."""
    return getattr(model, 'logits_dim', None) in (None, model.num_tokens)


def last_linears(head: Any) -> list[Any]:
    """Return the modules of a head that give its logits."""
    if isinstance(head, Heads):
        return [part for one in head for part in last_linears(one)]
    return last_linears(head[-1]) if type(head) is nn.Sequential and len(head) else [head]


def check_model(model: Any) -> None:
    """Refuse parts by tokens that are not as the library made them."""
    for name, part in is_by_tokens(model):
        kind = type(part)
        if kind not in (*SIZES, TiedReadout):
            raise ConfigError(
                f'`resize_token_embeddings` got a model whose `{name}` is a {kind.__module__}.{kind.__qualname__}: it '
                'must be nn.Embedding or nn.Linear, without adapters and not quantized. Resize it before that'
            )
        if not all(is_plain(p) for p in part.parameters()):
            raise ConfigError(f'`resize_token_embeddings` got a sharded or quantized `{name}`: resize it before that')


def check_ids_of(root: nn.Module, model: Any, new: Any) -> None:
    """Refuse to cut off an id that a wrapper around the model needs."""
    if isinstance(new, Mapping) or new >= model.num_tokens:
        return
    for module in root.modules():
        if module is not root and not any(inner is model for inner in module.modules()):
            continue
        for name, value in get_ids(module):
            if new <= value < model.num_tokens:
                kind = type(module).__name__
                raise ValueError(f'`num_tokens` must be above the `{name}` of {kind}, {value}, got {new}')


def get_ids(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the ids that a wrapper was built with."""
    for holder in (vars(module), vars(module.hiding) if hasattr(module, 'hiding') else {}):
        yield from ((name, value) for name, value in holder.items() if name.endswith('_id') and is_int(value))


# what changes


def resize_model(root: nn.Module, model: Any, new: Any) -> None:
    old = model.num_tokens
    if hasattr(model, 'resize_tokens'):
        model.resize_tokens(new)
    else:
        resize_tables(model, new)
    given = vars(model).get('_given', {})
    for name in ('num_tokens', 'logits_dim'):
        if name in given:
            given[name] = getattr(model, name)
    if given and 'num_tokens' not in given:
        warn_once(f'the config of {type(model).__name__} has no `num_tokens`, so it does not know that it was resized')
    for module in root.modules():
        own = getattr(module, 'resize_own_tokens', None)
        if own is not None and module is not model and any(inner is model for inner in module.modules()):
            own(old, new)


def resize_tables(model: Any, new: int) -> None:
    """Resize the table, the head and further features of a model, new rows as the model draws them."""
    says = says_tokens(model)
    if says and getattr(model, 'logits_dim', None) is not None:
        model.logits_dim = new
    model.num_tokens = new
    table = get_table(model)
    if isinstance(model.token_emb, TokenEmbedding):
        fresh = TokenEmbedding(table.embedding_dim, new, model.token_emb.l2norm_embed)
        fresh.init_()
        grow(table, fresh.emb)
    else:
        grow(table, nn.Embedding(new, table.embedding_dim))
    head = getattr(model, 'to_logits', None)
    if head is not None and says:
        parts = last_linears(head)
        if isinstance(parts[0], TiedReadout):
            if parts[0].bias is not None:
                resize_rows(parts[0], 'bias', parts[0].bias.new_zeros(new))
        else:
            of_user = vars(model).get('_given', {}).get('to_logits') is not None
            made = None if of_user else model.features.select('readout', model._new_head)()
            fresh = [None] * len(parts) if made is None else last_linears(made)
            for part, values in zip(parts, fresh, strict=True):
                grow(part, values or nn.Linear(part.in_features, new, bias=part.bias is not None))
    deep = getattr(model, 'ff_deep_embed', None)
    if isinstance(deep, nn.Parameter):
        resize_rows(model, 'ff_deep_embed', torch.ones(new, *deep.shape[1:]))


def grow(part: nn.Module, fresh: nn.Module) -> None:
    """Give a table or a linear layer as many rows as a new one has: those that it has stay, others are the new ones."""
    for name, values in fresh.named_parameters(recurse=False):
        if part._parameters.get(name) is not None:
            resize_rows(part, name, values)
    size: Any = SIZES[type(part)]
    setattr(part, size, getattr(fresh, size))


def resize_rows(module: nn.Module, name: str, fresh: Tensor) -> None:
    """Cut the rows of a parameter, or add the last ones of `fresh`."""
    before: Any = module._parameters[name]
    kept = min(len(before), len(fresh))
    if len(before) != len(fresh):
        replace_values(module, name, torch.cat((before.data[:kept], fresh.detach().to(before.data)[kept:])))


def replace_values(module: nn.Module, name: str, values: Tensor) -> None:
    """Put a parameter with these values in the place of one. (One that is given values of another shape keeps the shape
    of its gradient as long as a graph of the last step is alive.)"""
    before: Any = module._parameters[name]
    new = nn.Parameter(values, requires_grad=before.requires_grad)
    for key, value in vars(before).items():
        setattr(new, key, value)
    module._parameters[name] = new
