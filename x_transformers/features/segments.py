"""How far back queries see where a long text is read in segments, each with the memories of those before it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from x_transformers.core.rows import Rows
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.features.positions import window
from x_transformers.flags import ConfigError, count, flag


class SameLength(AttentionFeature):
    """A query sees so many keys before itself, memories among them, and no others that are further back."""

    paper = 'Transformer-XL, arXiv:1901.02860'
    takes = {'mem_same_length': 'how many keys before itself a query sees'}
    must_be = {'mem_same_length': count}
    waits = True
    is_band = keys_may_leave = True
    cuts = {}

    def mask(self, call: Any) -> Rows | None:
        past = call.inputs.get('mem_same_length')
        if past is None:
            return None
        if call.context is not None:
            raise ValueError('`mem_same_length` does not go with a context: it counts to keys of the same sequence')
        return window(call, past, None)


class SameLengthInStack(StackFeature):
    """Tells self-attention how far back queries see."""

    paper = SameLength.paper
    takes = SameLength.takes
    must_be = SameLength.must_be
    waits = True

    def open(self, x: Tensor, call: Any) -> Tensor:
        if call.inputs.get('mem_same_length') is not None:
            call.shared['a']['mem_same_length'] = call.inputs['mem_same_length']
        return x


class MemSameLength(ModelFeature):
    """Every query sees the same number of keys before itself, `max_mem_len`, once there are so many.

    Without it the last query of a segment sees all memories and the whole segment, the first one memories alone. In
    evaluation, where a segment is often a single token, all see as many as the first one.
    """

    paper = SameLength.paper
    mem_same_length = flag(False, 'each query sees `max_mem_len` keys before itself, memories or not')

    def setup(self, host: Any) -> None:
        if not host.max_mem_len:
            raise ConfigError(
                '`mem_same_length` needs `max_mem_len`, which says how many keys before itself a query sees'
            )

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        return {'mem_same_length': self.host.max_mem_len, **inputs}
