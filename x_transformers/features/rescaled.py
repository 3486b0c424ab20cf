"""Rescale attention scores by a learned function of the distance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import accurate, at_least_float
from x_transformers.core.rows import of_each, summable
from x_transformers.features.biases import distances
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import flag

Heads = tuple[Tensor, Tensor, Tensor]
WORDS = 'multiply the ReLU of the scores by a learned function of the distance, one per head'


ONE_FUNCTION = {'alibi_pos_bias': 'only one function of the distance is possible'}


class DistanceRescaling(AttentionFeature):
    """Multiply the scores by a learned function of the distance, per head, which favors near or distant keys.

        sim_ij = relu(q_i k_j / sqrt(e)) f(a_h |p_i - p_j|),   f(R) = (1 + e^b) / (1 + e^(b - R)),   b = b_h

    f(0) = 1; for large distances f tends to 0 if a < 0, and to 1 + e^b if a > 0. A score of 0 still counts in the
    softmax, a masked key does not. Prepended keys have no distance and the factor 1.
    """

    paper = 'DA-Transformer, arXiv:2010.06925'
    da_pos_rescale = flag(False, WORDS)
    stored_as = {'slopes': 'da_alpha', 'bounds': 'da_beta'}
    refuses = {
        'cross-attention': 'its distances are between tokens of one sequence',
        **ONE_FUNCTION,
    }
    clashes = {'l2_distance': 'all its scores are negative, so that ReLU would set them to zero'}
    row_wise = True
    cuts = {'slopes': (0, 'heads'), 'bounds': (0, 'heads')}

    def setup(self, host: Any) -> None:
        self.slopes = nn.Parameter(torch.linspace(-1, 1, host.shape.heads) / 8)
        self.bounds = nn.Parameter(torch.ones(host.shape.heads))

    def enter(self, qkv: Heads, call: Any) -> Heads:
        if call.context is not None:
            raise ValueError(f'`da_pos_rescale` does not go with a context: {self.reason("cross-attention")}')
        return qkv

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        distance = distances(call.q_pos, call.k_pos).abs()
        distance = distance if distance.ndim == 4 else distance[:, None] if distance.ndim == 3 else distance[None, None]
        a, b = (t.repeat(sim.shape[1] // len(t)).view(-1, 1, 1) for t in (self.slopes, self.bounds))
        factor = factor_of(accurate(a) * distance.to(at_least_float(a.dtype)), accurate(b))
        factor = F.pad(factor, (sim.shape[-1] - factor.shape[-1], 0), value=1.0)
        return sim.relu() * factor.to(sim.dtype)

    def score_mod(self, call: Any) -> Callable[..., Tensor]:
        a, b, heads, added = summable(self.slopes), summable(self.bounds), len(self.slopes), call.total_keys - call.keys
        of_query, of_key = of_each(call.q_pos), of_each(call.k_pos)

        def rescaled(score: Tensor, batch: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (of_query(batch, i) - of_key(batch, (j - added).clamp(min=0))).abs()
            factor = factor_of(a[h % heads] * distance, b[h % heads])
            return score.relu() * (factor if added == 0 else torch.where(j < added, 1.0, factor))

        return rescaled


def factor_of(r: Tensor, b: Tensor) -> Tensor:
    return (1 + b.exp()) * (r - b).sigmoid()


class DistanceRescalingInStack(StackFeature):
    """Multiply the scores by a learned function of the distance, separate in each self-attention layer of a stack.

    sim_ij = relu(q_i k_j / sqrt(e)) f(a_h |p_i - p_j|),   f(R) = (1 + e^b) / (1 + e^(b - R)),   b = b_h
    """

    paper = DistanceRescaling.paper
    da_pos_rescale = flag(False, WORDS)
    clashes = ONE_FUNCTION

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        return {'da_pos_rescale': True, **flags} if kind == 'a' else flags
