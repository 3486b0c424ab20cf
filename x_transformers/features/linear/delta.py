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

from x_transformers.core.modes import is_exporting, is_transformed
from x_transformers.features.linear.kernel import (
    Carry,
    ChunkMask,
    FeatureMap,
    LinearTokens,
    Scaled,
    first_token,
    split_chunks,
    sum_before_all,
    sum_in_order,
)

# the state from chunk to chunk


@torch.library.custom_op(
    'x_transformers::carried_states',
    mutates_args=(),
    schema='(Tensor start, Tensor? stays, Tensor reading, Tensor writing, Tensor target, Tensor? adds, bool back) '
    '-> (Tensor, Tensor)',
)
def carried_states(start, stays, reading, writing, target, adds, back):
    """S_0 = start,  U_i = target_i + reading_i S_i,  S_i+1 = stays_i S_i + writing_i U_i + adds_i; or `back` from the
    last one:  S_N = start,  U_i = target_i + reading_i S_i+1,  S_i = stays_i S_i+1 + writing_i U_i + adds_i.

    start    b k m d
    stays    b or 1, 1, N       None for 1
    reading  b k N c m
    writing  b k N m c
    target   b k N c d
    adds     b k N m d          None for 0
    returns  S b k 1+N m d, U b k N c d
    """
    n = target.shape[2]
    states = target.new_empty(*start.shape[:2], n + 1, *start.shape[2:])
    found = target.new_empty(target.shape)
    state, told, rows = start.flatten(0, 1), found.flatten(0, 1), states.flatten(0, 1)
    reading, writing, target = (t.flatten(0, 1).unbind(1) for t in (reading, writing, target))
    adds = None if adds is None else adds.flatten(0, 1).unbind(1)
    stays = None if stays is None else stays.expand(*start.shape[:2], n).flatten(0, 1)[..., None, None].unbind(1)
    rows[:, n if back else 0] = state
    for at in reversed(range(n)) if back else range(n):
        u = torch.baddbmm(target[at], reading[at], state)
        state = state if stays is None else state * stays[at]
        state = torch.baddbmm(state if adds is None else state + adds[at], writing[at], u)
        told[:, at], rows[:, at if back else at + 1] = u, state
    return states, found


@carried_states.register_fake
def _(start, stays, reading, writing, target, adds, back):
    states = target.new_empty(*start.shape[:2], target.shape[2] + 1, *start.shape[2:])
    return states, target.new_empty(target.shape)


def keep_for_backward(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    _, stays, reading, writing, _, adds, ctx.back = inputs
    ctx.save_for_backward(stays, reading, writing, *output)
    ctx.added = adds is not None


def carry_gradients(ctx: Any, grad: Tensor, of_found: Tensor) -> tuple[Tensor | None, ...]:
    """Carry gradients backwards through the spans."""
    stays, reading, writing, states, found = ctx.saved_tensors
    n = found.shape[2]
    end, others, read, written = (0, 1, 1, 0) if ctx.back else (n, 0, 0, 1)  # where each of N stands among 1+N
    last, adds = grad.select(2, end), grad.narrow(2, others, n)
    grads, errors = carried_states(last, stays, writing.mT, reading.mT, of_found, adds, not ctx.back)
    after = grads.narrow(2, written, n)
    of_reading, of_writing = errors @ states.narrow(2, read, n).mT, after @ found.mT
    return grads.select(2, n - end), None, of_reading, of_writing, errors, after if ctx.added else None, None


carried_states.register_autograd(carry_gradients, setup_context=keep_for_backward)


def carry_state(start: Tensor, stays: Tensor | None, *chunks: Tensor) -> tuple[Tensor, Tensor]:
    """`carried_states` from the first to the last: in transforms of `torch.func`, which do not know the operation, and
    in programs of one length step by step."""
    reading, writing, target = chunks
    n = target.shape[2]
    if not is_transformed() and not (is_exporting() and type(n) is int):
        return carried_states(start, stays, reading, writing, target, None, False)
    states, found = [start], []
    for at in range(n):
        found.append(target[:, :, at] + reading[:, :, at] @ states[-1])
        kept = states[-1] if stays is None else states[-1] * stays[:, :, at, None, None]
        states.append(kept + writing[:, :, at] @ found[-1])
    return torch.stack(states, dim=2), torch.stack(found, dim=2)


# the tokens


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
    stays = None if tokens.document is None else sight.between.diagonal(-1, -2, -1).to(k.dtype)
    states, corrections = carry_state(told.sums, stays, -(solved @ reading), writing, solved @ v)
    q = q.transpose(2, 3)  # b k N g c m
    weights = q @ k.mT.unsqueeze(3)
    weights = weights.tril_() if tokens.document is None else weights.masked_fill(~sight.near.unsqueeze(-3), 0.0)
    earlier = q @ states[:, :, :-1].unsqueeze(3)
    earlier = earlier if sight.reads is None else earlier * sight.reads.unsqueeze(3)
    found = weights @ corrections.unsqueeze(3) + earlier  # b k N g c d
    last = None if tokens.document is None else tokens.document[:, -1:]
    return Scaled(first_token(found.transpose(2, 3).flatten(3, 4), n)), Carry(states[:, :, -1], None, last)
