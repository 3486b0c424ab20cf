"""Attention windows: how many keys before and after itself a query attends to, also across segments with memories."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup
from x_transformers.features.biases import distances
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.flags import Check, ConfigError, Input, count, flag, format_value, is_int, is_number, none
from x_transformers.flags.checks import Maybe

at_least_one = Check('a number from 1 to 100', lambda value: is_number(value) and 1 <= value <= 100, 'float')


class Window(AttentionFeature):
    """Sliding window: attend only to keys within a distance, backwards and (if not causal) forwards."""

    paper = 'Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663'
    max_attend_past = flag(
        None, 'number of earlier tokens that a query attends to, besides itself; all if None', count | none, example=3
    )
    max_attend_future = flag(
        None, 'number of later tokens that a query attends to in non-causal attention; all if None', count | none,
        example=1,
    )  # fmt: skip

    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}
    switches = ('max_attend_past', 'max_attend_future')
    sets_on_module = ('max_attend_past',)
    is_window = True
    allows_eviction = limits_window = True
    tp_shards = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return any(values[name] is not None for name in cls.switches)

    def setup(self, owner: Any) -> None:
        if owner.causal and self.max_attend_future is not None:
            raise ConfigError('`max_attend_future` cannot be combined with `causal`: no query attends to later tokens')
        owner.max_attend_past = self.max_attend_past

    def reach_and_step(self, call: Any) -> tuple[int, int] | None:
        return None if self.max_attend_past is None else (self.max_attend_past, 1)

    def mask(self, call: Any) -> BlockwiseTerm:
        if call.context is not None:
            name = next(name for name in self.switches if getattr(self, name) is not None)
            raise ValueError(f'`{name}` cannot be combined with a context: {self.reason("cross-attention")}')
        return window(call, self.max_attend_past, self.max_attend_future)


def window(call: Any, past: int | None, ahead: Maybe[int]) -> BlockwiseTerm:
    """Queries see no keys further back than `past`, and none further ahead than `ahead`; None is no bound."""
    index, own = call.k_at, call.q_at
    # with positions of its own per row, memories are nearer than they stand
    in_order = call.in_order('index')
    reach, reach_ahead = (past, ahead) if in_order else (None, None)

    def near(rows: slice, keys: slice) -> Tensor:
        behind = distances(own[..., rows], index[..., keys])
        mask = behind <= past if past is not None else behind >= -ahead
        mask = mask if past is None or ahead is None else mask & (behind >= -ahead)
        return mask if mask.ndim == 2 else mask.unsqueeze(1)

    def entry() -> Pointwise:
        first, last = (None if past is None else own - past), (None if ahead is None else own + ahead)
        return between(make_axis_lookup(index), first, last)

    made_of = (past, ahead) if in_order else (past, ahead, index, own)
    return BlockwiseTerm(near, reach=reach, reach_ahead=reach_ahead, band=in_order, entry=entry, made_of=made_of)


def between(of_key: Callable[[Tensor, Tensor], Tensor], first: Maybe[Tensor], last: Tensor | None) -> Pointwise:
    """Return True if the place of a key is none before the first and none behind the last one that a query sees."""
    if last is None:
        farthest = make_axis_lookup(first)
        return lambda b, h, i, j: of_key(b, j) >= farthest(b, i)
    if first is None:
        latest = make_axis_lookup(last)
        return lambda b, h, i, j: of_key(b, j) <= latest(b, i)
    farthest, latest = make_axis_lookup(first), make_axis_lookup(last)
    return lambda b, h, i, j: (of_key(b, j) >= farthest(b, i)) & (of_key(b, j) <= latest(b, i))


class WindowGrowth(StackFeature):
    """Sliding windows that grow with depth, by a factor from one self-attention layer to the next.

        w_n = floor(w g^n),      w = attn_max_attend_past

    n counts self-attention layers from 0.
    """

    paper = 'MSWA: Refining Local Attention with Multi-Scale Window Attention, arXiv:2501.01039'
    window_growth = flag(
        None, 'factor by which `attn_max_attend_past` grows from one self-attention layer to the next',
        at_least_one | none, example=2,
    )  # fmt: skip
    clashes = {'weight_tie_layers': 'layers that share their weights have one window'}
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        first = owner.branch_flags['a'].get('max_attend_past')
        if 'a' not in owner.layer_types:
            raise ConfigError('`window_growth` needs layers of self-attention, whose windows grow')
        if not is_int(first):
            raise ConfigError(
                f'`window_growth` needs `attn_max_attend_past`, the window of the first layer, as one number, '
                f'got {format_value(first)}'
            )

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        if kind != 'a':
            return flags
        return {**flags, 'max_attend_past': math.floor(flags['max_attend_past'] * self.window_growth**number)}


class SameLength(AttentionFeature):
    """Limit each query to a number of keys before itself, memories included."""

    paper = 'Transformer-XL, arXiv:1901.02860'
    call_inputs = {'mem_same_length': Input('number of keys before itself that a query attends to', count)}
    is_window = allows_eviction = True
    tp_shards = {}

    def mask(self, call: Any) -> BlockwiseTerm | None:
        past = call.inputs.get('mem_same_length')
        if past is None:
            return None
        if call.context is not None:
            raise ValueError(
                '`mem_same_length` cannot be combined with a context: its distances are between tokens of one sequence'
            )
        return window(call, past, None)


class SameLengthInStack(StackFeature):
    """Pass the window of the queries to self-attention."""

    paper = SameLength.paper
    call_inputs = SameLength.call_inputs

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
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

    def setup(self, owner: Any) -> None:
        if not owner.max_mem_len:
            raise ConfigError(
                '`mem_same_length` needs `max_mem_len`, which says how many keys before itself a query sees'
            )

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        return {'mem_same_length': self.owner.max_mem_len, **inputs}
