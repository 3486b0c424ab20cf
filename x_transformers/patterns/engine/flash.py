"""Patterns by torch's fused kernel on a CPU, in pieces merged exactly by their log-sum-exps, with a backward pass.

    o = sum_r exp(z_r - z) o_r,   z = logsumexp_r(z_r)

With the merged output and log-sum-exps, the kernel's backward pass computes the part of each piece in the gradient:
P = exp(s - z),  ds = P (dP - sum(dO o)). Derivatives of derivatives are computed by the formula.
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
    """Return True if this kernel supports a call: on a CPU, in float32 or float64, without learned biases."""
    if torch.compiler.is_compiling() or q.device.type != 'cpu' or call.dropout or is_transformed() or FORWARD is None:
        return False
    if torch.is_autocast_enabled('cpu') and not call.full_precision:
        return False
    if not type(q) is type(k) is type(v) is Tensor:  # Subclasses may have no values.
        return False
    learns = torch.is_grad_enabled() and any(bias.learns for bias in call.biases)
    number = isinstance(call.scale, (int, float))
    return q.dtype == k.dtype == v.dtype and q.dtype in DTYPES and not learns and number and 0 not in q.shape


def get_numbers(mask: Pointwise | None, bias: Pointwise | None, dtype: torch.dtype) -> Pointwise | None:
    """Return masks and biases as one number to add."""
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
    """Compute attention to the keys of branches and to the `added` keys, b h i d.

    `masks`: True if there are masks other than the causal one. `formula` of (q, k, v) has all derivatives.
    """
    width, value = q.shape[-1], v.shape[-1]
    if width != value:  # The kernel supports one width only.
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
    """Pieces of a call, made when they are needed, so that no masks are kept."""

    def __init__(self, branches: tuple[Branch, ...], cut: Cut, scale: float, formula: Callable[..., Tensor]) -> None:
        self.branches, self.cut, self.scale, self.formula = branches, cut, scale, formula

    def __iter__(self) -> Iterator[tuple[Piece, bool]]:
        """Yield the pieces, and True for those whose queries were in no piece before."""
        parts = [prefix_pieces(self.cut)] if self.cut.added else []
        parts += [get_pieces(branch, self.cut) for branch in self.branches]
        for at, pieces in enumerate(parts):
            for piece in pieces:
                yield piece, at == 0


class Merged(torch.autograd.Function):
    """Attention merged from pieces, as the docstring of the module describes."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, reads: list[Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # The heads of a token are adjacent in memory, as the output projection reads them.
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
        fully_masked = lse < low / 16
        if fully_masked.any():
            out.masked_fill_(fully_masked.unsqueeze(-1), 0.0)
            lse.masked_fill_(fully_masked, -low / 16)  # Their weights in the backward pass are 0.
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
