"""The delta rule: a state is told what it should have given for each key, and corrects itself by a part of the error.

    W_t = W_t-1 + phi(k_t) rate_t (v_t - phi(k_t)^T W_t-1)^T,   out_t = phi(q_t)^T W_t

Inside a chunk the corrections u_t = rate_t (v_t - ...) solve a triangular system, since each error depends on those
before it:  (I + tril(diag(rate) K K^T, -1)) U = diag(rate) (V - K W).  Between chunks there is the state. It is what
goes on token by token.

What belongs here: states that what is written there depends on. Axes as in `linear.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.features.linear.kernel import (
    Carry,
    ChunkMask,
    FeatureMap,
    LinearTokens,
    Scaled,
    sum_before_all,
    sum_in_order,
)
from x_transformers.kernels.chunks import carry_state, first_token, split_chunks


def correct_values(
    q: Tensor, tokens: LinearTokens, features: FeatureMap, chunk: int, past: Scaled | None = None
) -> tuple[Scaled, Scaled]:
    """Return the output of queries (b, k, g, n, e) after their token, (b, k, g, n, d), and the last state."""

    def go_on(q: Tensor, part: LinearTokens, carry: Any, chunk: int) -> tuple[Scaled, Carry]:
        k, _, v = features.of_tokens(part)
        if carry is None:
            nothing = Scaled(k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]))
            carry = sum_before_all(None, part, past or nothing)
        return run_span(features.of_queries(q), part._replace(k=k, v=v), carry, chunk)

    found, last = sum_in_order(go_on, q, tokens, chunk, features.reads)
    return found, Scaled(last.sums)


def run_span(q: Tensor, tokens: LinearTokens, told: Carry, chunk: int) -> tuple[Scaled, Carry]:
    """Some chunks at once, of features of queries (b k g n m) and keys (b k n m); their states one after the other."""
    n = q.shape[3]
    q, k, v, rate = (split_chunks(t, chunk) for t in (q, tokens.k, tokens.v, tokens.rate))
    sight = ChunkMask.of(tokens.document, told.document, k)
    errors = rate * (k @ k.mT)  # of which the solution reads what is below the diagonal
    errors = errors if tokens.document is None else errors.masked_fill(~sight.near, 0.0)
    one = torch.eye(chunk, dtype=k.dtype, device=k.device).expand_as(errors)
    solved = torch.linalg.solve_triangular(errors, one, upper=False, unitriangular=True) * rate.mT  # b k N c c
    reading = k if sight.reads is None else k * sight.reads
    writing = (k if sight.goes_on is None else k * sight.goes_on).mT
    stays = None if tokens.document is None else sight.between.diagonal(-1, -2, -1).to(k.dtype)[..., None, None]
    states, corrections = carry_state(told.sums, stays, -(solved @ reading), writing, solved @ v)
    q = q.transpose(2, 3)  # b k N g c m
    weights = q @ k.mT.unsqueeze(3)
    weights = weights.tril_() if tokens.document is None else weights.masked_fill(~sight.near.unsqueeze(-3), 0.0)
    earlier = q @ states[:, :, :-1].unsqueeze(3)
    earlier = earlier if sight.reads is None else earlier * sight.reads.unsqueeze(3)
    found = weights @ corrections.unsqueeze(3) + earlier  # b k N g c d
    last = None if tokens.document is None else tokens.document[:, -1:]
    return Scaled(first_token(found.transpose(2, 3).flatten(3, 4), n)), Carry(states[:, :, -1], None, last)
