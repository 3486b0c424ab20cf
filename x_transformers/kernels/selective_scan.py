"""The scan of Mamba: a linear recurrence whose decay belongs to a channel and an entry of its state, in chunks.

    Z_t = e^(dt_t a) Z_{t-1} + dt_t u_t b_t,   y_t = c_t Z_t          Z (b s d)

Only the chunk that is computed has its states of all tokens in memory. The backward pass computes them again, from the
states at the starts of chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.core.modes import disable_autocast, is_transformed
from x_transformers.core.recompute import differentiate_formula, is_batched_grad
from x_transformers.kernels.recurrences import scan

CHUNK = 32
# Where starting a kernel takes longer than the work of a step, scans inside of chunks take fewer, larger steps.
CHUNK_OF_DEVICES = 256


def selective_scan(
    u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, start: Tensor, begins: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run the scan.

    Args:
        u: Inputs (b n d), `dt`: their steps (b n d), at least 0. With dt = 0 a token changes nothing.
        a: Rates (s d), below 0.
        b: How an input enters the state, and `c` how the output reads it, (b n s).
        start: State before the first token, (b s d).
        begins: Where a state begins at zero (b n).

    Returns:
        The outputs (b n d), and the last state.
    """
    if u.shape[1] == 1 or torch.compiler.is_compiling() or is_transformed():
        return run_formula(u, dt, a, b, c, start, begins)
    return SelectiveScan.apply(u, dt, a, b, c, start, begins)


def run_formula(
    u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, start: Tensor, begins: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute `selective_scan` with the states of all tokens in memory; with all derivatives, in all transforms."""
    u, dt, b, c = (t.transpose(0, 1) for t in (u, dt, b, c))
    decay, x = expand(u, dt, a, b, None if begins is None else begins.t())
    states = scan(decay, x, start)
    return (c.unsqueeze(-1) * states).sum(dim=-2).transpose(0, 1), states[-1].clone()


def expand(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return decays and inputs of the states, (n b s d), of tokens (n b ...)."""
    decay = (dt.unsqueeze(-2) * a).exp()
    decay = decay if begins is None else decay.masked_fill(begins[..., None, None], 0.0)
    return decay, (dt * u).unsqueeze(-2) * b.unsqueeze(-1)


def run_(decay: Tensor, x: Tensor, start: Tensor) -> Tensor:
    """Write the states over their inputs x (n b s d), and return them."""
    if not x.is_cpu:
        return x.copy_(scan(decay, x, start))
    last = start
    for by, own in zip(decay.unbind(0), x.unbind(0), strict=True):
        last = own.addcmul_(by, last)
    return x


def run_back_(decay: Tensor, grads: Tensor) -> Tensor:
    """Write the gradients of the states over those that outputs give, (n b s d), and return them."""
    if not grads.is_cpu:
        later = torch.cat((decay[1:], decay[:1])).flip(0)
        return grads.copy_(scan(later, grads.flip(0)).flip(0))
    last = grads[-1]
    for by, own in zip(reversed(decay.unbind(0)[1:]), reversed(grads.unbind(0)[:-1]), strict=True):
        last = own.addcmul_(by, last)
    return grads


class SelectiveScan(torch.autograd.Function):
    """`selective_scan` in chunks, with states that the backward pass computes again."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, start: Tensor, begins: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        y, starts = u.new_empty(u.shape[1], u.shape[0], u.shape[2]), [start]
        size = CHUNK if u.is_cpu else CHUNK_OF_DEVICES
        for at, (u_, dt_, b_, c_), first in split_tokens(size, (u, dt, b, c), begins):
            states = run_(*expand(u_, dt_, a, b_, first), starts[-1])
            torch.matmul(c_.unsqueeze(-2), states, out=y[at].unsqueeze(-2))
            starts.append(states[-1].clone())
        ctx.size, ctx.begins = size, begins
        ctx.save_for_backward(u, dt, a, b, c, start, torch.stack(starts[:-1]))
        return y.transpose(0, 1), starts[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, starts = ctx.saved_tensors  # once: a checkpoint gives them a single time
        with disable_autocast(grad):
            if torch.is_grad_enabled() or is_batched_grad(grad) or is_batched_grad(grad_last):

                def formula(*inputs: Any) -> Tensor:
                    return torch.cat(run_formula(*inputs, begins=ctx.begins), dim=1)

                both = torch.cat((grad, grad_last), dim=1)
                return *differentiate_formula(formula, inputs, ctx.needs_input_grad[:6], both), None
            return *find_gradients(inputs, starts, ctx.begins, ctx.size, grad, grad_last), None


def split_tokens(
    size: int, inputs: tuple[Tensor, ...], begins: Tensor | None
) -> list[tuple[slice, Any, Tensor | None]]:
    """Return the chunks of inputs (b n ...): where they are, the inputs (t b ...) and where states begin (t b)."""
    chunks = [slice(at, at + size) for at in range(0, inputs[0].shape[1], size)]
    inputs, begins = tuple(t.transpose(0, 1) for t in inputs), None if begins is None else begins.t()
    return [(at, tuple(t[at] for t in inputs), None if begins is None else begins[at]) for at in chunks]


def find_gradients(
    inputs: Any, starts: Tensor, begins: Tensor | None, size: int, grad: Tensor, grad_last: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, a, b, c and the state before the first token."""
    u, dt, a, b, c, _ = inputs
    found = [torch.empty_like(t) for t in (u, dt, b, c)]
    to_u, to_dt, to_b, to_c = (t.transpose(0, 1) for t in found)
    to_a, later = torch.zeros_like(a), grad_last
    chunks = split_tokens(size, (u, dt, b, c, grad), begins)
    for (at, (u, dt, b, c, grad), first), start in zip(chunks[::-1], starts.flip(0), strict=True):
        decay, x = expand(u, dt, a, b, first)
        states = run_(decay, x, start)
        to_c[at] = (states @ grad.unsqueeze(-1)).squeeze(-1)
        grads = c.unsqueeze(-1) * grad.unsqueeze(-2)
        grads[-1] += later
        run_back_(decay, grads)
        later = decay[0] * grads[0]
        entered = (b.unsqueeze(-2) @ grads).squeeze(-2)
        to_u[at], to_b[at] = entered * dt, (grads @ (dt * u).unsqueeze(-1)).squeeze(-1)
        logs = decay.mul_(grads)  # of the logarithms of the decays
        logs[0] *= start
        logs[1:] *= states[:-1]
        to_a += (logs * dt.unsqueeze(-2)).sum(dim=(0, 1))
        to_dt[at] = torch.addcmul((logs.mul_(a)).sum(dim=-2), entered, u)
    return found[0], found[1], to_a, found[2], found[3], later
