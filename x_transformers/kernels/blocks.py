"""Attention to all keys for a block of queries at a time: memory grows linearly with the length, not quadratically.

What belongs here: the loop over blocks (`run_in_blocks`), and additive attention in blocks with a gradient of its own.
How a call is cut stands in `core/rows.py`. What a block computes is forgotten, and computed again in the backward pass.
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

# Rows that torch's kernel is given at once, where it cannot know of the triangle.
FLASH_ROWS = 256


# any kernel, block after block


def run_in_blocks(
    kernel: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, call: Call, features: Any,
    whole_rows: bool = False, carries: Sequence[str] = (),
) -> Tensor:  # fmt: skip
    """A kernel, block after block. Each is computed again in the backward pass, with the same noise.

    `whole_rows`: hidden keys count, and stay. `carries`: what a block leaves in `call.carried`, there for the next.
    """
    height = block_size(q, q.shape[0] * call.heads * k.shape[-2])
    call.split_inputs(height)
    outs, carried = [], ()

    def run(
        now: Callable[[Any], Any], span: QueryBlock, q: Tensor, k: Tensor, v: Tensor, *carried: Tensor
    ) -> tuple[Tensor, ...]:
        block = call.block(span)
        block.carried = dict(zip(carries, carried, strict=False))  # the first block finds none
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


# additive attention in blocks


def _split_distance_table(call: Call) -> tuple[DistanceTable | None, list[BlockwiseTerm]]:
    """The bias that is a table of distances, and the others."""
    table = first_tensor(bias for bias in call.biases if isinstance(bias, DistanceTable))
    return table, [bias for bias in call.biases if bias is not table]


def can_add(q: Tensor, k: Tensor, v: Tensor, call: Call) -> bool:
    """Return True if `run_additive` does this call: on a CPU, in one dtype of many digits, if only a table of distances
    learns."""
    if (
        torch.compiler.is_compiling()
        or q.device.type != 'cpu'
        or (torch.is_autocast_enabled('cpu') and not call.full_precision)
    ):
        return False
    learns = torch.is_grad_enabled() and any(bias.learns for bias in _split_distance_table(call)[1])
    return q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64) and not learns


def run_additive(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """softmax(q k^T + bias) v,  where hidden keys weigh nothing.

    q, k, v     b h i d, b h j d, b h j e
    """
    bias, rest = _split_distance_table(call)
    table: Any = None if bias is None else bias.table.to(q.dtype)
    bias = None if bias is None else DistanceTable(table, bias.q_len)
    # with the last row first, a bias of distances is a view of its table
    q = (q * call.scale).flip(-2)
    return Additive.apply(call.with_biases(rest), bias, q, k.contiguous(), v.contiguous(), table).flip(-2)


class Additive(torch.autograd.Function):
    """The forward pass keeps its inputs, its output and l = logsumexp(s); the backward pass makes each block again:

    P = exp(s - l),  dP = dO V^T,  ds = P (dP - sum(dO O)),  dq = ds k,  dk = ds^T q,  dv = P^T dO

    and sums ds along diagonals for the table. The two differences are one more feature of what is multiplied. For
    derivatives of derivatives, and several losses at once, autograd goes through the formula.
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
            if any(ctx.needs_input_grad):  # the largest is exp(its score - l)
                part.queries(lse).copy_(scores.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log())
            p = part.cleared(p)
            kept = part.kept(p)
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
                return (
                    None,
                    None,
                    *differentiate_formula(formula, ctx.saved_tensors[:4], ctx.needs_input_grad[2:], grad),
                )

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
            kept, dout = part.kept(p), part.queries(grad)
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
    """The same output, of steps that have derivatives, which save the scores of all rows."""
    bias = None if table is None else DistanceTable(table, bias.q_len)
    rows: dict[int, dict[int, list[Tensor]]] = {}
    for part in _split_head_blocks(call, bias, q, k):
        p = part.scores(q, k).softmax(dim=-1)
        if part.block.may_have_fully_masked:
            p = p.masked_fill(part.of_heads(part.block.fully_masked()), 0.0)
        with torch.no_grad(), leave_vmap():
            kept = part.kept(p)
        out = (p if kept is None else p * kept) @ part.keys(v)
        rows.setdefault(part.back.start, {}).setdefault(part.at[0], []).append(out)
    blocks = [torch.stack([torch.cat(heads) for heads in batch.values()]) for _, batch in sorted(rows.items())]
    return torch.cat(blocks, dim=-2)


def _has_only_distances(call: Call, bias: DistanceTable | None, q: Tensor, v: Tensor) -> bool:
    """Return True if nothing is added but a table of distances, and nothing hidden but by the triangle."""
    known = hasattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu')
    alone = bias is not None and not call.biases and not call.masks and call.total_keys == call.keys >= call.q_len
    return known and alone and call.dropout == 0 and call.later_keys == 0 and q.shape[-1] == v.shape[-1]


def _run_flash(call: Call, bias: DistanceTable, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sums by torch's kernel, whose mask is a view of the table: it forms no scores."""
    table, total = bias.table.detach(), q.shape[-2]
    if call.needs_causal_mask:  # the future has distances of its own
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
    """Sums the gradient of scores along diagonals: with each row one step further to the right, they are columns."""

    def __init__(self, table: Tensor) -> None:
        self.sums = torch.zeros_like(table)
        self.skewed, self.size = table.new_zeros(0), (0, 0)

    def add(self, part: HeadBlock, p: Tensor, dp: Tensor) -> Tensor:
        """The gradient p dp of the scores, last row first."""
        heads, height, width = p.shape
        width -= part.added
        room = self.sums.shape[-1]
        stays = self.size[0] == height and self.size[1] <= width  # what is not written below is zero
        if self.skewed.numel() < heads * height * room or not stays:
            self.skewed = p.new_zeros(heads * height * room)
        self.size = height, width
        view = self.skewed.as_strided((heads, height, width), (height * room, room + 1, 1))
        if part.added:
            ds = p.mul_(dp)
            view.copy_(ds[..., part.added :])
        else:
            ds = torch.mul(p, dp, out=view)
        columns = self.skewed.as_strided((heads, height, width + height - 1), (height * room, room, 1))
        self.sums[part.at[1], part.window].add_(columns.sum(dim=1))
        return ds


def _negligible_weight(dtype: torch.dtype) -> float:
    """Weights below this one count for nothing."""
    return torch.finfo(dtype).tiny ** 0.66


class HeadBlock:
    """Some heads of one row of the batch, in one block; rows stand in reverse."""

    bias: Any

    def __init__(
        self, block: Call, span: QueryBlock, total: int, at: tuple[int, slice], bias: DistanceTable | None
    ) -> None:
        self.block, self.span, self.bias, self.at = block, span, bias, at
        self.back = slice(total - span.queries.stop, total - span.queries.start)
        self.added = block.total_keys - block.keys

    def queries(self, t: Tensor) -> Tensor:
        """The block's rows (h i d) of b h i d, as a view."""
        batch, heads = self.at
        return t[batch, heads, self.back]

    def keys(self, t: Tensor) -> Tensor:
        batch, heads = self.at
        return slice_keys(t[batch, heads], self.span.keys, self.block.whole.keys, -2)

    def of_heads(self, t: Tensor) -> Tensor:
        """From a mask or bias, b h i j or broadcasting to that."""
        batch, heads = self.at
        t = t[batch if t.shape[0] > 1 else 0]
        t = t[heads] if t.shape[0] > 1 else t
        return t.flip(-2) if t.shape[-2] > 1 else t

    @property
    def window(self) -> slice:
        return self.bias.window(self.span.queries, self.span.keys)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """The logits (h i j); hidden ones hold the lowest finite number."""
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
        if block.is_lower_triangular:  # it hides nothing but the last keys, as many as there are rows
            scores[..., -block.q_len :].masked_fill_(_make_upper_triangle(block.q_len, scores.device), hidden)
            seen = block.mask
        else:
            seen = block.visible()
        return scores if seen is None else scores.masked_fill_(~self.of_heads(seen), hidden)

    def cleared(self, p: Tensor) -> Tensor:
        """Weights without those of rows that see nothing, and those that a bias made far too small to count: numbers
        below the normal ones are multiplied ten times slower."""
        if self.bias is not None or self.block.bias is not None:
            torch.threshold_(p, _negligible_weight(p.dtype), 0.0)
        return self.has_visible_key(p)

    def exponentials(self, logits: Tensor) -> Tensor:
        """The weights again, from logits less their log-sums. What underflows takes a hundred times longer."""
        least = _negligible_weight(logits.dtype)
        return self.has_visible_key(torch.threshold_(logits.clamp_(min=math.log(least) - 1).exp_(), least, 0.0))

    def has_visible_key(self, p: Tensor) -> Tensor:
        return p.masked_fill_(self.of_heads(self.block.fully_masked()), 0.0) if self.block.may_have_fully_masked else p

    def kept(self, p: Tensor) -> Tensor | None:
        """What dropout leaves of each weight, scaled."""
        share = 1 - self.block.dropout
        return None if share == 1 else torch.empty_like(p).bernoulli_(share).div_(share)

    def add_to(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left^T right to the rows of `total` that belong to the block's keys."""
        batch, heads = self.at
        done = 0
        for piece in key_slices(self.span.keys, self.added):
            columns = slice(done, done + piece.stop - piece.start)
            total[batch, heads, piece].baddbmm_(left[..., columns].mT, right)
            done = columns.stop


def _split_head_blocks(call: Call, bias: DistanceTable | None, q: Tensor, k: Tensor) -> Iterator[HeadBlock]:
    """The parts of a call, each about as large as a block should be."""
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
    """What the triangle hides of a square whose last row comes first."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1).flip(0)
