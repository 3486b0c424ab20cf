"""Attention in blocks of queries, with memory that grows linearly with the length, not quadratically.

`run_in_blocks` runs a kernel on each block; `Additive` is additive attention in blocks with its own backward pass.
`core/rows.py` splits a call. Blocks are computed again in the backward pass.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.calls import Call
from x_transformers.core.checks import first_tensor
from x_transformers.core.modes import disable_autocast
from x_transformers.core.recompute import (
    ModuleSnapshot,
    differentiate_formula,
    identity,
    is_batched_grad,
    leave_vmap,
    modules_of_features,
    recompute,
)
from x_transformers.core.rows import (
    BlockwiseTerm,
    DistanceTable,
    QueryBlock,
    block_size,
    key_slices,
    noise_state,
    replay_noise,
    scores_of_block,
    slice_keys,
    split_queries,
)
from x_transformers.flags.checks import Maybe

# Queries per call of torch's kernel with a bias, which then computes masked keys, too.
FLASH_ROWS = 256


# Any kernel in blocks.


def run_in_blocks(
    kernel: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, call: Call, features: Any,
    whole_rows: bool = False, carries: Sequence[str] = (),
) -> Tensor:  # fmt: skip
    """Run a kernel in blocks, which are computed again in the backward pass, with the same noise.

    `whole_rows` keeps masked keys. `carries` are names of tensors in `call.carried` that blocks pass to the next one.
    """
    height = block_size(q, q.shape[0] * call.heads * k.shape[-2])
    call.split_inputs(height)
    outs, carried = [], ()

    def run(
        now: Callable[[Any], Any], span: QueryBlock, q: Tensor, k: Tensor, v: Tensor, *carried: Tensor
    ) -> tuple[Tensor, ...]:
        block = call.block(span)
        block.carried = dict(zip(carries, carried, strict=False))  # Empty in the first block.
        out = kernel(q, *(slice_keys(t, span.keys, call.keys, -2) for t in (k, v)), block, now(features))
        return out, *[block.carried[name] for name in carries]

    step: Callable[..., Any] = functools.partial(run, identity)
    if torch.is_grad_enabled():
        kept = None if torch.compiler.is_compiling() else ModuleSnapshot(*modules_of_features(features))
        step = functools.partial(recompute, run, kept=kept, reads=call.reads())
    spans = split_queries(call, height, whole_rows, len(carries) > 0)
    heights = [span.queries.stop - span.queries.start for span in spans]
    for span, rows in zip(spans, q.split(heights, dim=-2), strict=True):
        out, *carried = step(span, rows, k, v, *carried)
        outs.append(out)
    return torch.cat(outs, dim=-2)


# Additive attention in blocks.


def _split_distance_table(call: Call) -> tuple[DistanceTable | None, list[BlockwiseTerm]]:
    """Return the bias that is a table of distances, and the others."""
    table = first_tensor(bias for bias in call.biases if isinstance(bias, DistanceTable))
    return table, [bias for bias in call.biases if bias is not table]


def can_add(q: Tensor, k: Tensor, v: Tensor, call: Call) -> bool:
    """Return True if `run_additive` supports a call: on a CPU, in float32 or float64, without learned biases except
    a table of distances."""
    if (
        torch.compiler.is_compiling()
        or q.device.type != 'cpu'
        or (torch.is_autocast_enabled('cpu') and not call.full_precision)
    ):
        return False
    learns = torch.is_grad_enabled() and any(bias.learns for bias in _split_distance_table(call)[1])
    return q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64) and not learns


def run_additive(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """Compute softmax(q k^T + bias) v, for q (b h i d), k (b h j d), v (b h j e), with zero weights of masked keys."""
    bias, rest = _split_distance_table(call)
    table: Any = None if bias is None else bias.table.to(q.dtype)
    bias = None if bias is None else DistanceTable(table, bias.q_len)
    # With the last query first, a bias of distances is a view of its table.
    q = (q * call.scale).flip(-2)
    return Additive.apply(call.with_biases(rest), bias, q, k.contiguous(), v.contiguous(), table).flip(-2)


class Additive(torch.autograd.Function):
    """Additive attention that saves its inputs, its output and l = logsumexp(s). The backward pass computes each block:

    P = exp(s - l),  dP = dO V^T,  ds = P (dP - sum(dO O)),  dq = ds k,  dk = ds^T q,  dv = P^T dO

    and sums ds along diagonals for the table. Both subtractions are part of the matrix products, as one extra channel.
    Derivatives of derivatives, and of several losses at once, are computed by the formula.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, bias: Maybe[DistanceTable], q: Tensor, k: Tensor, v: Tensor, table: Tensor | None
    ) -> Tensor:
        ctx.call, ctx.bias = call, bias
        ctx.noise = noise_state(q.device) if call.dropout else None
        if _has_only_distances(call, bias, q, v):
            out, lse = _run_flash(call, bias, q, k, v)
            ctx.save_for_backward(q, k, v, table, out, lse, *call.reads())
            return out
        out, lse = q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
        for part in _split_head_blocks(call, bias, q, k):
            scores = part.scores(q, k)
            p = scores.softmax(dim=-1)
            if any(ctx.needs_input_grad):  # The largest weight is exp(its score - l).
                part.queries(lse).copy_(scores.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log())
            p = part.clear_weights(p)
            kept = part.draw_dropout(p)
            torch.bmm(p if kept is None else p.mul_(kept), part.keys(v), out=part.queries(out))
        ctx.save_for_backward(q, k, v, table, out, lse, *call.reads())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with disable_autocast(grad):
            with nullcontext() if ctx.noise is None else replay_noise(ctx.noise, grad.device):
                if not (torch.is_grad_enabled() or is_batched_grad(grad)):
                    return Additive.gradients(ctx, grad)
                formula = functools.partial(_additive_formula, ctx.call, ctx.bias)
                grads = differentiate_formula(formula, ctx.saved_tensors[:4], ctx.needs_input_grad[2:], grad)
                return None, None, *grads

    @staticmethod
    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, table, out, lse = ctx.saved_tensors[:6]
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        diagonals = DiagonalSums(table) if ctx.needs_input_grad[5] else None
        shifted_q, ones_k = torch.cat((q, -lse), dim=-1), torch.cat((k, torch.ones_like(k[..., :1])), dim=-1)
        inner = (grad * out).sum(dim=-1, keepdim=True)
        shifted_grad, ones_v = torch.cat((grad, -inner), dim=-1), torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
        for part in _split_head_blocks(ctx.call, ctx.bias, q, k):
            p = part.exponentials(part.scores(shifted_q, ones_k))
            kept, dout = part.draw_dropout(p), part.queries(grad)
            if kept is None:
                part.add_to(dv, p, dout)
                dp = torch.bmm(part.queries(shifted_grad), part.keys(ones_v).mT)
            else:
                part.add_to(dv, p * kept, dout)
                dp = torch.bmm(dout, part.keys(v).mT).mul_(kept).sub_(part.queries(inner))
            ds = p.mul_(dp) if diagonals is None else diagonals.add(part, p, dp)
            torch.bmm(ds, part.keys(k), out=part.queries(dq))
            part.add_to(dk, ds, part.queries(q))
        return None, None, dq, dk, dv, None if diagonals is None else diagonals.sums


def _additive_formula(
    call: Call, bias: Maybe[DistanceTable], q: Tensor, k: Tensor, v: Tensor, table: Tensor | None
) -> Tensor:
    """Compute the output of `Additive` by differentiable steps, which save the scores of all queries."""
    bias = None if table is None else DistanceTable(table, bias.q_len)
    rows: dict[int, dict[int, list[Tensor]]] = {}
    for part in _split_head_blocks(call, bias, q, k):
        p = part.scores(q, k).softmax(dim=-1)
        if part.block.may_have_fully_masked:
            p = p.masked_fill(part.of_heads(part.block.fully_masked()), 0.0)
        with torch.no_grad(), leave_vmap():
            kept = part.draw_dropout(p)
        out = (p if kept is None else p * kept) @ part.keys(v)
        rows.setdefault(part.back.start, {}).setdefault(part.at[0], []).append(out)
    blocks = [torch.stack([torch.cat(heads) for heads in batch.values()]) for _, batch in sorted(rows.items())]
    return torch.cat(blocks, dim=-2)


def _has_only_distances(call: Call, bias: DistanceTable | None, q: Tensor, v: Tensor) -> bool:
    """Return True if the only bias is a table of distances, and the only mask the causal one."""
    known = hasattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu')
    alone = bias is not None and not call.biases and not call.masks and call.total_keys == call.keys >= call.q_len
    return known and alone and call.dropout == 0 and call.later_keys == 0 and q.shape[-1] == v.shape[-1]


def _run_flash(call: Call, bias: DistanceTable, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Compute output and log-sum-exps by torch's kernel, with a view of the table as its bias."""
    table, total = bias.table.detach(), q.shape[-2]
    if call.needs_causal_mask:  # Later keys have other distances.
        table = table.clone()
        table[:, call.keys :] = torch.finfo(q.dtype).min / 2
    bias = DistanceTable(table, bias.q_len)
    out, lse = torch.empty_like(q), q.new_empty(*q.shape[:-1], 1)
    for span in split_queries(call, FLASH_ROWS):
        back = slice(total - span.queries.stop, total - span.queries.start)
        mask = bias.reversed_block(span.queries, span.keys).expand(q.shape[0], -1, -1, -1)
        qkv = q[:, :, back], k[:, :, span.keys], v[:, :, span.keys]
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, False, attn_mask=mask, scale=1.0)
        out[:, :, back], lse[:, :, back, 0] = found
    return out, lse


class DiagonalSums:
    """Sums of the gradient of scores along diagonals: shifting row i by i turns diagonals into columns."""

    def __init__(self, table: Tensor) -> None:
        self.sums = torch.zeros_like(table)
        self.skewed, self.size = table.new_zeros(0), (0, 0)

    def add(self, part: HeadBlock, p: Tensor, dp: Tensor) -> Tensor:
        """Add and return the gradient p dp of the scores, last query first."""
        heads, height, width = p.shape
        width -= part.added
        length = self.sums.shape[-1]
        # Entries that are not written below must be zero.
        fits = self.size[0] == height and self.size[1] <= width
        if self.skewed.numel() < heads * height * length or not fits:
            self.skewed = p.new_zeros(heads * height * length)
        self.size = height, width
        view = self.skewed.as_strided((heads, height, width), (height * length, length + 1, 1))
        if part.added:
            ds = p.mul_(dp)
            view.copy_(ds[..., part.added :])
        else:
            ds = torch.mul(p, dp, out=view)
        columns = self.skewed.as_strided((heads, height, width + height - 1), (height * length, length, 1))
        self.sums[part.at[1], part.window].add_(columns.sum(dim=1))
        return ds


def _negligible_weight(dtype: torch.dtype) -> float:
    """Return the weight below which weights are set to 0."""
    return torch.finfo(dtype).tiny ** 0.66


class HeadBlock:
    """Some heads of one sequence in one block, with queries in reverse order."""

    bias: Any

    def __init__(
        self, block: Call, span: QueryBlock, total: int, at: tuple[int, slice], bias: DistanceTable | None
    ) -> None:
        self.block, self.span, self.bias, self.at = block, span, bias, at
        self.back = slice(total - span.queries.stop, total - span.queries.start)
        self.added = block.total_keys - block.keys

    def queries(self, t: Tensor) -> Tensor:
        """Return the queries of the block, (h i d), as a view of b h i d."""
        batch, heads = self.at
        return t[batch, heads, self.back]

    def keys(self, t: Tensor) -> Tensor:
        batch, heads = self.at
        return slice_keys(t[batch, heads], self.span.keys, self.block.whole.keys, -2)

    def of_heads(self, t: Tensor) -> Tensor:
        """Return the part of a mask or bias that broadcasts to b h i j."""
        batch, heads = self.at
        t = t[batch if t.shape[0] > 1 else 0]
        t = t[heads] if t.shape[0] > 1 else t
        return t.flip(-2) if t.shape[-2] > 1 else t

    @property
    def window(self) -> slice:
        return self.bias.window(self.span.queries, self.span.keys)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return the logits (h i j), with the lowest finite number where masked."""
        block, span = self.block, self.span
        known = None if self.bias is None else self.bias.reversed_block(span.queries, span.keys)[self.at[1]]
        if known is not None and self.added == 0:
            scores = torch.baddbmm(known, self.queries(q), self.keys(k).mT)
        else:
            scores = torch.bmm(self.queries(q), self.keys(k).mT)
            if known is not None:
                scores[..., self.added :].add_(known)
        if block.bias is not None:
            scores.add_(self.of_heads(block.bias.to(scores.dtype)))
        hidden = torch.finfo(scores.dtype).min
        if block.is_lower_triangular:  # Only the last keys, as many as queries, are partly masked.
            scores[..., -block.q_len :].masked_fill_(_make_upper_triangle(block.q_len, scores.device), hidden)
            seen = block.mask
        else:
            seen = block.visible()
        return scores if seen is None else scores.masked_fill_(~self.of_heads(seen), hidden)

    def clear_weights(self, p: Tensor) -> Tensor:
        """Clear the weights of fully masked queries, and negligible ones: multiplying denormal numbers is ten times
        slower."""
        if self.bias is not None or self.block.bias is not None:
            torch.threshold_(p, _negligible_weight(p.dtype), 0.0)
        return self.clear_fully_masked(p)

    def exponentials(self, logits: Tensor) -> Tensor:
        """Return the weights from logits minus log-sum-exps. The clamp avoids underflow, a hundred times slower."""
        least = _negligible_weight(logits.dtype)
        return self.clear_fully_masked(torch.threshold_(logits.clamp_(min=math.log(least) - 1).exp_(), least, 0.0))

    def clear_fully_masked(self, p: Tensor) -> Tensor:
        return p.masked_fill_(self.of_heads(self.block.fully_masked()), 0.0) if self.block.may_have_fully_masked else p

    def draw_dropout(self, p: Tensor) -> Tensor | None:
        """Return a dropout mask of the weights, scaled, or None."""
        share = 1 - self.block.dropout
        return None if share == 1 else torch.empty_like(p).bernoulli_(share).div_(share)

    def add_to(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left^T right to the rows of `total` of the keys of the block."""
        batch, heads = self.at
        done = 0
        for piece in key_slices(self.span.keys, self.added):
            columns = slice(done, done + piece.stop - piece.start)
            total[batch, heads, piece].baddbmm_(left[..., columns].mT, right)
            done = columns.stop


def _split_head_blocks(call: Call, bias: DistanceTable | None, q: Tensor, k: Tensor) -> Iterator[HeadBlock]:
    """Yield parts of a call, each of about the size of a block."""
    batch, heads, total, keys = *q.shape[:3], k.shape[-2]
    height = block_size(q, heads * keys)
    for span in split_queries(call, height):
        block = call.block(span)
        some = max(scores_of_block(q) // (height * block.total_keys), 1)
        for row in range(batch):
            for first in range(0, heads, some):
                yield HeadBlock(block, span, total, (row, slice(first, min(first + some, heads))), bias)


@functools.cache
def _make_upper_triangle(rows: int, device: torch.device) -> Tensor:
    """Return the part masked by causality of a square whose last query is first."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1).flip(0)
