"""Adaptive attention span: each head learns how far back it attends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from x_transformers.core.modes import is_exporting, is_transformed, to_float
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup
from x_transformers.features.biases import distances
from x_transformers.features.contextual import check_causal
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import Check, ConfigError, flag, is_number, none, not_negative, one_of, size
from x_transformers.training.losses import mean_or_zero

STEP = 64  # a reach is a multiple of this
GREW = '`cache` holds the keys that spans reached when it was written: they have grown'


class AdaptiveSpan(AttentionFeature):
    """Adaptive attention span: each head learns how far back it attends. Weights fade out over a ramp of R tokens.

        a_ij = m(i - j) e^l_ij / sum_j m(i - j) e^l_ij       m(x) = clamp((R + z - x) / R, 0, 1)

        static     z = S clamp(span, 0, 1), one per head, whose gradient ignores the clamp
        dynamic    z = S sigmoid(v . x_i + b), one per head and query

    Keys further away than S are masked. In training, the mean span of the heads, times a weight, is added to the loss
    as `attn_span`. Keys that no head reaches are not computed: the longest span is determined in each call, except in
    compiled graphs, where it is S. Caches evict keys beyond a static span.
    """

    paper = 'Adaptive Attention Span in Transformers, arXiv:1905.07799'
    adaptive_span = flag(
        None,
        "learn the attention span of each head: 'static', or 'dynamic' per query",
        none | one_of('static', 'dynamic'),
        example='static',
    )
    max_span = flag(1024, 'maximum span S, in tokens', size, example=5)
    span_ramp = flag(32, 'length R of the ramp over which weights fade out, in tokens', size, example=3)
    span_init = flag(
        0.0, 'initial static span, as a fraction of S',
        Check('a number from 0 to 1', lambda v: is_number(v) and 0 <= v <= 1, 'float'), example=0.5,
    )  # fmt: skip
    span_loss_weight = flag(2e-6, 'weight of the loss that penalizes long spans', not_negative, example=0.1)
    requires_flag = dict.fromkeys(('max_span', 'span_ramp', 'span_init', 'span_loss_weight'), 'adaptive_span')
    stored_as = {'span': 'span', 'span_v': 'span_v', 'span_b': 'span_b'}
    clashes = {
        **dict.fromkeys(('num_mem_kv', 'add_zero_kv', 'head_learned_sink'), 'prepended keys have no distance'),
        **dict.fromkeys(('kernel', 'aft', 'linformer_k'), 'it forms no weights of single keys'),
    }
    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}
    allows_eviction = limits_window = True

    @property
    def counts_tokens(self) -> bool:
        return self.adaptive_span == 'dynamic'

    def setup(self, owner: Any) -> None:
        if not owner.causal:
            instead = 'In cross-attention leave it out: `cross_attn_adaptive_span=None`'
            raise ConfigError(f'`adaptive_span` needs `causal`: {self.reason("cross-attention")}. {instead}')
        if owner.flash:
            raise ConfigError('`flash=True` cannot be combined with `adaptive_span`: the fused kernel reads all keys')
        heads = owner.query_heads
        if self.adaptive_span == 'static':
            self.span = nn.Parameter(torch.full((heads,), float(self.span_init)))
        else:
            self.span_v = nn.Parameter(torch.zeros(heads, owner.dim))
            self.span_b = nn.Parameter(torch.full((heads,), -4.0))

    def spans(self, x: Tensor) -> Tensor:
        """z, of each head and query:  1 h 1, or b h i."""
        if self.adaptive_span == 'static':
            span = to_float(self.span)
            return self.max_span * (span + (span.clamp(0, 1) - span).detach())[None, :, None]
        logits = to_float(x) @ to_float(self.span_v).mT + to_float(self.span_b)
        return self.max_span * logits.sigmoid().transpose(1, 2)

    def reach(self, z: Tensor, call: Any) -> int:
        """Return how many tokens back some head looks, read once in a call; in a graph S, or that of the cache."""
        own = call.ctx(self)
        if 'reach' not in vars(own):
            own.reach = self.looked_up(z, call)
        return own.reach

    def looked_up(self, z: Tensor, call: Any) -> int:
        if torch.compiler.is_compiling() and not is_exporting():
            return self.of_cache(z, call)
        if is_exporting() or is_transformed() or z.is_meta or isinstance(z, FakeTensor) or not z.numel():
            return self.max_span
        longest = math.ceil(z.detach().max().item()) + self.span_ramp
        return min(self.max_span, math.ceil(longest / STEP) * STEP)

    def of_cache(self, z: Tensor, call: Any) -> int:
        past = call.past
        cut_for = past.buffers[0].window if past is not None and past.num_evicted else None
        if cut_for is None or cut_for.name != self.display_name:
            return self.max_span
        reach = cut_for.size - 2 * (cut_for.step - 1)
        if reach < self.max_span:  # no number is read here
            torch._assert_async((z.detach() + self.span_ramp <= reach).all(), GREW)  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
        return reach

    def reach_and_step(self, call: Any) -> tuple[int, int]:
        static = self.adaptive_span == 'static'
        return (self.reach(self.spans(self.span), call) if static else self.max_span), 1

    def mask(self, call: Any) -> BlockwiseTerm:
        check_causal(call, 'adaptive_span', self.reason('cross-attention'))
        own = call.ctx(self)
        own.z = self.spans(call.x)
        real = None if self.adaptive_span == 'static' else call.query_mask
        call.add_loss('attn_span', self.span_loss_weight * get_mean(own.z, real))
        return self.shares(call, own.z, sees=True)

    def bias(self, call: Any) -> BlockwiseTerm:
        return self.shares(call, call.ctx(self).z, sees=False)

    def shares(self, call: Any, z: Tensor, sees: bool) -> BlockwiseTerm:
        """Return which keys are seen, or the logarithm of how much."""
        index, own, limit, ramp = call.k_at, call.q_at, self.max_span, self.span_ramp
        reach = self.reach(z, call) if call.in_order('index') else None
        constant = self.adaptive_span == 'static'

        def shown(x: Tensor, z: Tensor) -> Tensor:
            share = (ramp + z - x) / ramp
            if sees:
                return (share > 0) & (x <= limit)
            return torch.where((share > 0) & (share < 1), share, 1.0).log()  # no gradient but from the ramp

        def of(rows: slice, keys: slice) -> Tensor:
            x = distances(own[..., rows], index[..., keys])
            x = x if x.ndim == 2 else x.unsqueeze(1)
            return shown(x, (z if constant else z[..., rows]).unsqueeze(-1))

        def entry() -> Pointwise:
            key, query = make_axis_lookup(index), make_axis_lookup(own)
            flat = z[0, :, 0] if constant else z
            span = (lambda b, h, i: flat[h]) if constant else (lambda b, h, i: flat[b, h, i])
            return lambda b, h, i, j: shown(query(b, i) - key(b, j), span(b, h, i))

        return BlockwiseTerm(of, reach=reach, learns=not sees and z.requires_grad, entry=entry)


def get_mean(z: Tensor, real: Tensor | None) -> Tensor:
    """Over heads and real tokens."""
    of_tokens = z.mean(dim=1)
    if real is None:
        return mean_or_zero(of_tokens)
    return of_tokens.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)
