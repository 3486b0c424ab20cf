"""Keys of a datastore: hidden states of a causal model, each with the token that follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_ids
from x_transformers.core.nets import check_net
from x_transformers.features.documents import begins
from x_transformers.flags import ConfigError, format_value, is_int
from x_transformers.generation.engine import eval_modules

KEYS = ('ff_input', 'output')


class KeyReader:
    """Runner of a net that returns a hidden state for each token in addition to its output.

    key_layer   which feedforward that runs, from the last one, -1, or the first one, 0
    key_at      'ff_input', what that reads after its norm; or 'output', what heads read
    """

    net: Any

    def __init__(self, net: nn.Module, key_layer: int = -1, key_at: str = 'ff_input') -> None:
        check_net(net)
        if key_at not in KEYS:
            raise ConfigError(f'`key_at` must be one of {", ".join(map(repr, KEYS))}, got {format_value(key_at)}')
        stack: Any = getattr(net, 'attn_layers', None)
        kinds = [stack.layer_types[index] for index in getattr(stack, 'layers_execute_order', ())]
        if not is_int(key_layer) or not -kinds.count('f') <= key_layer < kinds.count('f'):
            raise ConfigError(
                f'`key_layer` must be one of the {kinds.count("f")} feedforwards of `net`, from the last one, '
                f'-1, or the first one, 0, got {format_value(key_layer)}'
            )
        self.net, self.key_layer, self.key_at = net, int(key_layer), key_at

    @property
    def dim(self) -> int:
        return self.net.attn_layers.dim

    def __call__(self, x: Tensor, headless: bool = False, **kwargs: Any) -> tuple[Tensor, Any, Tensor]:
        """Return the output of the net for tokens (b, n): logits, intermediates, and a hidden state for each token
        read.

        headless   what heads would read, in place of logits

        With a cache, there are hidden states of the new tokens only.
        """
        found: list[Tensor] = []
        at_output = self.key_at == 'output'
        if headless:
            kwargs['return_embeddings_and_intermediates'] = True
        else:
            kwargs.update(return_intermediates=True, return_logits_and_embeddings=at_output)
        if not at_output:
            kwargs['ff_input_of'] = (found, self.key_layer)
        out, intermediates = self.net(x, **kwargs)
        if at_output:
            out, hidden = (out, out) if headless else out
            found = [hidden]
        if not found:
            raise ValueError('`net` gave no hidden state: the layer of `key_layer` did not run')
        new = x.shape[1]
        if kwargs.get('cache') is not None and not self.only_new(kwargs):
            new -= kwargs['cache'].cache_length
        hidden = found[-1]  # of several passes, the last one
        if hidden.ndim != 3 or hidden.shape[1] < new:
            raise ValueError(f'`net` gave hidden states of shape {tuple(hidden.shape)}, one is needed for each token')
        return out, intermediates, hidden[:, hidden.shape[1] - new :]  # memory tokens stand in front

    def only_new(self, kwargs: dict[str, Any]) -> bool:
        given = kwargs.get('input_not_include_cache')
        return bool(getattr(self.net, 'input_not_include_cache', False) if given is None else given)

    def keys(self, inputs: dict[str, Any]) -> Tensor:
        """Return hidden states (b, n, d) of a batch, in eval mode and without gradients."""
        with eval_modules(list(self.net.modules())):
            place = next(self.net.parameters()).device
            moved: dict[str, Any] = {name: t.to(place) if torch.is_tensor(t) else t for name, t in inputs.items()}
            return self(**moved)[2]


class Entries(NamedTuple):
    """What a batch adds to a store: `values` (e), the tokens after those at `rows` and `places`, read with `inputs`."""

    inputs: dict[str, Any]
    rows: Tensor
    places: Tensor
    values: Tensor


def get_entries(batch: Tensor | Mapping[str, Any], ignore_index: int) -> Entries:
    """Return the entries of a batch: every token whose next token is real, in the same document, and a target."""
    inputs: dict[str, Any] = dict(batch) if isinstance(batch, Mapping) else {'x': batch}
    if not torch.is_tensor(inputs.get('x')):
        raise ValueError('`loader` must give ids (b n), or dicts with these as `x`')
    labels = inputs.pop('labels', None)
    x = check_ids(inputs['x'], 'x', 1)
    labels = x if labels is None else check_ids(labels, 'labels', 1)
    if labels.shape != x.shape:
        raise ValueError(f'`labels` must have the shape of `x`, {tuple(x.shape)}, got {tuple(labels.shape)}')
    wanted = (labels != ignore_index) & (x != ignore_index)
    if inputs.get('mask') is not None:
        mask = as_mask(inputs['mask'], 'mask', *x.shape)
        wanted = wanted & mask & mask.roll(1, dims=1)  # the first token is no value
    if inputs.get('document_ids') is not None:
        wanted = wanted & ~begins(inputs['document_ids'])
    inputs['x'] = x.masked_fill(x == ignore_index, 0)
    rows, places = wanted[:, 1:].nonzero(as_tuple=True)
    return Entries(inputs, rows, places, labels[rows, places + 1])
