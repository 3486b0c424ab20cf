"""Patterns by torch's fused kernel on a CPU, piece by piece, merged by log-sums: exact, forwards and backwards.

    o = sum_r exp(z_r - z) o_r,   z = logsumexp_r(z_r)

Given the output and log-sums of all pieces together, the kernel's own backward pass gives each piece its part of the
gradient:  P = exp(s - z),  ds = P (dP - sum(dO o)). For derivatives of derivatives autograd goes through the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.modes import disable_autocast, is_transformed
from x_transformers.core.recompute import differentiate_formula, is_batched_grad
from x_transformers.core.rows import DistanceTable, Pointwise
from x_transformers.patterns.branches import Branch
from x_transformers.patterns.engine.layouts import Grid
from x_transformers.patterns.engine.pieces import Cut, Piece, get_pieces, prefix_pieces

FORWARD: Any = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu', None)
BACKWARD: Any = getattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu_backward', None)
DTYPES = (torch.float32, torch.float64)


def takes(q: Tensor, k: Tensor, v: Tensor, call: Call) -> bool:
    """Return True if this kernel does a call: on a CPU, in one dtype of many digits, if no bias learns."""
    if torch.compiler.is_compiling() or q.device.type != 'cpu' or call.dropout or is_transformed() or FORWARD is None:
        return False
    if torch.is_autocast_enabled('cpu') and not call.full_precision:
        return False
    if not type(q) is type(k) is type(v) is Tensor:  # others may have no values to look at
        return False
    learns = torch.is_grad_enabled() and any(bias.learns for bias in call.biases)
    number = isinstance(call.scale, (int, float))
    return q.dtype == k.dtype == v.dtype and q.dtype in DTYPES and not learns and number and 0 not in q.shape


def get_numbers(mask: Pointwise | None, bias: Pointwise | None, dtype: torch.dtype) -> Pointwise | None:
    """Masks and biases as one number to add."""
    if mask is None and bias is None:
        return None
    low = torch.finfo(dtype).min / 4

    def entry(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        numbers = torch.zeros((), dtype=dtype) if bias is None else bias(b, h, i, j).to(dtype)
        return numbers if mask is None else numbers.masked_fill(~mask(b, h, i, j), low)

    return entry


def run_flash_pattern(
    q: Tensor, k: Tensor, v: Tensor, call: Call, branches: Sequence[Branch], grid: Grid, added: int, masks: bool,
    entry: Pointwise | None, formula: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """Attention to what branches see, and to the `added` keys in front:  b h i d.

    masks      whether there are any beside the triangle
    formula    the same of (q, k, v), with all derivatives
    """
    width, value = q.shape[-1], v.shape[-1]
    if width != value:  # the kernel wants one width
        most = max(width, value)
        q, k, v = (F.pad(t, (0, most - t.shape[-1])) for t in (q, k, v))

        def narrow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = formula(q[..., :width], k[..., :width], v[..., :value])
            return F.pad(out, (0, most - value))

        return run_flash_pattern(q, k, v, call, branches, grid, added, masks, entry, narrow)[..., :value]
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    distances = all(isinstance(bias, DistanceTable) for bias in call.biases) and not masks
    cut = Cut(grid, q.shape[0], q.shape[1], q.shape[-1], added, call.causal, entry, distances, q.dtype)
    plan = Plan(tuple(branches), cut, float(call.scale), formula)
    return Merged.apply(plan, call.reads(), q, k, v)


class Plan:
    """What pieces there are. They are made when they are needed, so that no masks are kept."""

    def __init__(self, branches: tuple[Branch, ...], cut: Cut, scale: float, formula: Callable[..., Tensor]) -> None:
        self.branches, self.cut, self.scale, self.formula = branches, cut, scale, formula

    def __iter__(self) -> Iterator[tuple[Piece, bool]]:
        """The pieces, and whether their queries were in none before."""
        parts = [prefix_pieces(self.cut)] if self.cut.added else []
        parts += [get_pieces(branch, self.cut) for branch in self.branches]
        for at, pieces in enumerate(parts):
            for piece in pieces:
                yield piece, at == 0


class Merged(torch.autograd.Function):
    """See the docstring of the file."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, reads: list[Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # rows of a token side by side, as the projection wants them
        out = q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
        low = torch.finfo(q.dtype).min
        lse = q.new_full(q.shape[:-1], low / 2)
        for (queries, keys, mask), is_first in plan:
            parts = queries.read(q), keys.read(k), keys.read(v)
            found, sums = FORWARD(*parts, 0.0, False, attn_mask=wide(mask, *parts[:2]), scale=plan.scale)
            if not is_first:
                old, known = queries.read(out), queries.read(lse)
                total = torch.logaddexp(known, sums)
                found = old * (known - total).exp().unsqueeze(-1) + found * (sums - total).exp().unsqueeze(-1)
                sums = total
            queries.write(out, found)
            queries.write(lse, sums)
        blind = lse < low / 16
        if blind.any():
            out.masked_fill_(blind.unsqueeze(-1), 0.0)
            lse.masked_fill_(blind, -low / 16)  # weights of the backward pass are 0
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse, *reads)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, (q, k, v, out, lse) = ctx.plan, ctx.saved_tensors[:5]
        with disable_autocast(grad):
            if torch.is_grad_enabled() or is_batched_grad(grad):
                return None, None, *differentiate_formula(plan.formula, (q, k, v), ctx.needs_input_grad[2:], grad)
            return None, None, *gradients(plan, grad, q, k, v, out, lse)


def gradients(
    plan: Plan, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad = grad if grad.stride(-1) == 1 else grad.contiguous()
    dq, dk, dv = (torch.zeros(t.transpose(1, 2).shape, dtype=t.dtype).transpose(1, 2) for t in (q, k, v))
    for (queries, keys, mask), is_first in plan:
        parts = queries.read(q), keys.read(k), keys.read(v)
        known = queries.read(grad), *parts, queries.read(out), queries.read(lse).contiguous()
        found = BACKWARD(*known, 0.0, False, attn_mask=wide(mask, *parts[:2]), scale=plan.scale)
        if is_first:
            queries.write(dq, found[0])
        else:
            queries.add(dq, found[0])
        keys.add(dk, found[1])
        keys.add(dv, found[2])
    return dq, dk, dv


def wide(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    return None if mask is None else mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
