"""Attention windows for long texts that are processed in segments with memories."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from x_transformers.core.rows import Rows
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.features.positions import window
from x_transformers.flags import ConfigError, Input, count, flag


class SameLength(AttentionFeature):
    """Limit each query to a number of keys before itself, memories included."""

    paper = 'Transformer-XL, arXiv:1901.02860'
    takes = {'mem_same_length': Input('number of keys before itself that a query attends to', count)}
    is_band = keys_may_leave = True
    cuts = {}

    def mask(self, call: Any) -> Rows | None:
        past = call.inputs.get('mem_same_length')
        if past is None:
            return None
        if call.context is not None:
            raise ValueError(
                '`mem_same_length` does not go with a context: its distances are between tokens of one sequence'
            )
        return window(call, past, None)


class SameLengthInStack(StackFeature):
    """Pass the window of the queries to self-attention."""

    paper = SameLength.paper
    takes = SameLength.takes

    def open(self, x: Tensor, call: Any) -> Tensor:
        if call.inputs.get('mem_same_length') is not None:
            call.shared['a']['mem_same_length'] = call.inputs['mem_same_length']
        return x


class MemSameLength(ModelFeature):
    """Let every query attend to the same number of keys before itself, `max_mem_len`, if there are as many.

    Without it, the last query of a segment attends to all memories and the whole segment, and the first one only to
    memories and itself. In evaluation, where a segment is often a single token, all have the window of the first one.
    """

    paper = SameLength.paper
    mem_same_length = flag(False, 'limit each query to `max_mem_len` keys before itself, memories included')

    def setup(self, host: Any) -> None:
        if not host.max_mem_len:
            raise ConfigError(
                '`mem_same_length` needs `max_mem_len`, which says how many keys before itself a query sees'
            )

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        return {'mem_same_length': self.host.max_mem_len, **inputs}
