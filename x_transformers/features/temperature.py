"""Temperatures of attention that depend on the position of the query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.modes import at_least_float
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import Check, Input, flag, is_number, none
from x_transformers.flags.checks import get_tensor


def is_temperature(value: Any) -> bool:
    known = isinstance(value, Mapping) and value.keys() >= {'scale', 'floor'} and value.keys() <= {*OPTIONS}
    return known and all(is_number(number) for number in value.values()) and value['floor'] > 0


OPTIONS = ('scale', 'floor', 'offset')
a_temperature = Check(
    'a dict of `scale`, `floor`, a number greater than 0, and `offset` (1 if left out)', is_temperature,
    'Mapping[str, float]',
)  # fmt: skip


class QueryTemperature(AttentionFeature):
    """Multiply queries by a factor that grows with their position, against attention that fades with the length.

        q_p <- q_p (1 + s log(1 + floor((p + o) / f)))        s `scale`, f `floor`, o `offset`

    p counts from 0 the tokens of the row, or of the document, from the first one that is not padding, or is the `pos`
    of the caller. Keys are unchanged, so that those in the cache stay right. Llama 4 has o = 1, Ministral 3 o = 0.
    """

    paper = 'Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399'
    query_temperature = flag(
        None,
        'factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`',
        a_temperature | none,
        example=dict(scale=0.5, floor=2, offset=1),
    )
    call_inputs = {'query_pos': Input('(1 or b) n, position of each query, for a factor of it', get_tensor('b n'))}
    clashes = {'aft': 'it has no products of queries and keys'}
    always = True
    allows_eviction = True
    tp_shards = {}

    def rotate(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        (q, k), pos = qk, call.inputs.get('query_pos')
        if pos is None:
            start = 0 if call.past is None or call.context is not None else call.past.length
            pos = torch.arange(start, start + call.count, device=q.device)[None]
            pos = pos[:, -call.q_len :] if call.token_idx is None else call.of_queries(pos)
        return q * self.factor(pos, q.dtype)[:, None, :, None], k

    def factor(self, pos: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the factor of queries at positions (1 or b, n)."""
        own, pos = self.query_temperature, pos.clamp(min=0).to(at_least_float(dtype))
        steps = ((pos + own.get('offset', 1)) / own['floor']).floor()
        return (1 + own['scale'] * steps.clamp(min=0).log1p()).to(dtype)


class TemperatureInStack(StackFeature):
    """Pass the positions of queries to layers with a temperature."""

    enabled_by = ('query_temperature',)
    tp_shards = {}

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        pos = call.key_positions(x)[..., call.memories + call.cache_len :]
        pos = pos.reshape(-1, pos.shape[-1])
        if call.token_mask is not None and call.left_pad is None and call.shared['a'].get('pos') is None:
            # rows begin with their first real token
            pos = pos - call.token_mask.to(torch.uint8).argmax(dim=-1, keepdim=True)
        call.ctx(self).pos = pos.unsqueeze(-1)  # vectors of tokens, of which a pass may select some
        return x

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        features = getattr(layer[1], 'features', None)
        if layer.kind not in ('a', 'c') or features is None or features.find(QueryTemperature) is None:
            return inputs
        return {**inputs, 'query_pos': call.ctx(self).pos.squeeze(-1)}
