"""A decode step whose cache is a set of tensors, for programs that are exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.cache import Cache
from x_transformers.core.buffers import Buffer, KeysValues
from x_transformers.flags import ConfigError


class CachedStep(nn.Module):
    """New tokens behind earlier ones. What is remembered of those comes in and goes out as tensors.

        step(prompt)      -> logits, past       reads the first tokens
        step(ids, past)   -> logits, past       ids (b m) are the new ones alone, and so are the logits

    past     a list of tensors (b ... n d), n of which are of the tokens so far: what features remember of each token,
             and the keys and values of each attention; `names` tells which is which

    After a prompt was read, `torch.export.export(step, (ids, past), dynamic_shapes=step.dynamic_shapes)` is one program
    for every batch and length. Further inputs are those of the model.

    raises   TypeError for what is no model with a cache, ConfigError for one whose flags leave it without, ValueError
             for one that remembers anything but rows of tokens
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        if not hasattr(net, 'can_cache_kv'):
            raise TypeError(f'`net` must be a model with a cache, as TransformerWrapper, got a {type(net).__name__}')
        if not net.can_cache_kv:
            raise ConfigError(f'`net` is a {type(net).__name__} with flags that leave it without a cache')
        self.net = net
        self.form: Cache | None = None  # a cache of the model without its rows

    def forward(self, x: Any, past: Sequence[Tensor] | None = None, **inputs: Any) -> tuple[Any, list[Tensor]]:
        if past is not None:
            inputs |= dict(cache=self.filled(past), input_not_include_cache=True)
        logits, left = self.net(x, return_intermediates=True, **inputs)
        if past is None and not torch.compiler.is_compiling():
            self.form = get_form(left.everything)
        return logits, [rows.tensor.contiguous() for rows in named_rows(left.everything).values()]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and deepcopy, without `form`: features in it are those of the model."""
        return self.__dict__ | {'form': None}

    @property
    def known(self) -> Cache:
        if self.form is None:
            raise ValueError('what the past looks like is not known yet: read a prompt first, by `step(prompt)`')
        return self.form

    @property
    def names(self) -> list[str]:
        """Names of the tensors of the past."""
        return list(named_rows(self.known))

    @property
    def dynamic_shapes(self) -> dict[str, Any]:
        """Return which axes of `x` and `past` are free: the batch and the past, at least two in an example."""
        auto = torch.export.Dim.AUTO
        rows = named_rows(self.known).values()
        return {'x': {0: auto}, 'past': [{0: auto, one.tensor.ndim - 2: auto} for one in rows]}

    def filled(self, past: Sequence[Tensor]) -> Cache:
        """The cache that holds these tensors."""
        names = self.names
        if len(past) != len(names):
            raise ValueError(f'`past` got {len(past)} tensors, the model keeps {len(names)}: {", ".join(names)}')
        tensors = dict(zip(names, past, strict=True))
        cache = each_rows(self.known, lambda name, rows: rows.like(tensors[name]))
        return replace(cache, num_seen_tokens=cache.length)


def get_form(cache: Cache) -> Cache:
    if 'a' not in cache.kinds and not (cache.states or cache.model_states):
        raise ValueError('no tensor would tell how many tokens there were: the model attends to a context alone')
    return each_rows(cache, lambda _, rows: rows.like(rows.tensor[..., :0, :].detach().clone()))


def named_rows(cache: Cache) -> dict[str, Buffer]:
    """All rows of a cache, in the order of `each_rows`."""
    found: dict[str, Buffer] = {}
    each_rows(cache, found.setdefault)
    return found


def each_rows(cache: Cache, function: Callable[[str, Buffer], Buffer]) -> Cache:
    """A cache with other rows in place of those that have a name, in an order that does not depend on the call. Rows
    that layers share with the stack have one name."""
    known: dict[int, Buffer] = {}

    def of(table: dict[str, Any], mark: str) -> dict[str, Any]:
        for name, state in table.items():
            if not isinstance(state, Buffer):
                raise ValueError(f'the {state.kind} state `{name}` has no row for each token: only those are tensors')
        new = {name: known.get(id(table[name])) or function(mark + name, table[name]) for name in sorted(table)}
        known.update((id(table[name]), rows) for name, rows in new.items())
        return new

    def of_layer(at: int, layer: KeysValues | None) -> KeysValues | None:
        if layer is None:
            return None
        named = zip(('keys', 'values'), layer.buffers, strict=True)
        pair = tuple(None if rows is None else function(f'{at}.{name}', rows) for name, rows in named)
        return KeysValues(pair, of(layer.states, f'{at}.'), layer.changed_by)

    states, of_model = of(cache.states, ''), of(cache.model_states, 'model.')
    layers = [of_layer(at, layer) for at, layer in enumerate(cache.layers)]
    return replace(cache, layers=layers, kinds=list(cache.kinds), states=states, model_states=of_model)
