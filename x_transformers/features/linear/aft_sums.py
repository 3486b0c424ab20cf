"""Attention without queries: each channel weighs its keys by themselves, and by the places of query and key.

    out_t = sum_s exp(k_s + w_ts) v_s / sum_s exp(k_s + w_ts)                   k, v, out: b h n d,  w: the same for d

Sums are `Scaled`, by a level for each channel that is at most that of what is seen: so numbers of any size stay finite,
also where a query sees small keys alone and large ones follow. A chunk is cut into halves, again and again: what the
second half finds in the first, all of its queries see.

What belongs here: these sums. Values are b h n 2 d, of which the second part is the denominator. A key at the level of
`HIDDEN` is none. Chunks have a length c, a power of two; N counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.modes import is_transformed
from x_transformers.core.recompute import differentiate_formula, is_batched_grad
from x_transformers.features.linear.kernel import (
    Scaled,
    first_token as up_to,
    least_value,
    split_chunks,
    sum_by_spans,
    triangle,
)
from x_transformers.kernels.recurrences import scan

# tokens of a chunk at least, and those of a graph that takes all lengths
CHUNK = 64
COMPILED_CHUNK = 64
COMPILED_ROWS = 512
# tokens whose chunks are computed at once
SPAN = 1024
# logits that are held at once: products of few rows are slow
SCORES = 2**22


def get_pairs(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys as numbers (... n 2 d), those of values and denominators, and the level (... 1 1 d) that they are of."""
    top = k.detach().amax(dim=-2, keepdim=True)
    e = (k - top).exp()
    return torch.stack((e * v, e), dim=-2), top.unsqueeze(-2)


def sum_met(k: Tensor, v: Tensor, w: Tensor | None) -> Scaled:
    """Sum keys (..., j, d) that all queries see, by logits w (..., i, j); for any queries if these are zeros."""
    pairs, top = get_pairs(k, v)
    if w is None:
        return Scaled(pairs.sum(dim=-3, keepdim=True), top)
    most = w.detach().amax(dim=-1, keepdim=True)
    value = torch.einsum('...ij,...jx->...ix', (w - most).exp(), pairs.flatten(-2))
    return Scaled(value.unflatten(-1, pairs.shape[-2:]), top + most.unsqueeze(-1))


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# inside of a chunk


def quarter(w: Tensor, size: int) -> Tensor:
    """Select, from logits (..., c, c), those of each second `size` rows with the ones before, (..., g, size, size)."""
    blocks = w.unflatten(-2, (-1, 2, size)).unflatten(-1, (-1, 2, size))
    return blocks[..., :, 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def mask_within(k: Tensor, v: Tensor, w: Tensor | None) -> Scaled:
    """Sum the keys of a chunk up to each query, by logits w (..., c, c).  k, v: (..., c, d)"""
    own = k if w is None else k + w.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
    level = own.detach()
    e = (own - level).exp()
    value, level, size = torch.stack((e * v, e), dim=-2), level.unsqueeze(-2), 1
    while size < k.shape[-2]:
        first_k, first_v = (t.unflatten(-2, (-1, 2, size))[..., 0, :, :] for t in (k, v))
        found = sum_met(first_k, first_v, None if w is None else quarter(w, size))
        value, level = (t.unflatten(-3, (-1, 2, size)) for t in (value, level))
        second = Scaled(value[..., 1, :, :, :], level[..., 1, :, :, :]).plus(found)
        halves = ((value[..., 0, :, :, :], second.value), (level[..., 0, :, :, :], second.level))
        value, level = (torch.stack(both, dim=-4).flatten(-5, -3) for both in halves)
        size *= 2
    return Scaled(value, level)


# how far logits of a chunk may lie below its largest ones, and still have digits beside them
DEPTH = 60.0


def sum_at_once(k: Tensor, v: Tensor, w: Tensor) -> Scaled:
    """Sum by one product, at one level of the chunk, if that leaves each query digits of its largest key; that
    needs a look at the numbers."""
    ordinary = type(k) is Tensor and k.device.type == 'cpu'
    if not ordinary or torch.compiler.is_compiling() or is_transformed() or not is_flat(k.detach(), w.detach()):
        return mask_within(k, v, w)
    return sum_met(k, v, w.masked_fill(~triangle(w.shape[-1], w), -torch.inf))


def is_flat(k: Tensor, w: Tensor) -> bool:
    """Return True if no query's largest key is too far below the largest one of its chunk."""
    seen = k.cummax(dim=-2).values
    below = torch.where(seen > least_value(k) / 2, k.amax(dim=-2, keepdim=True) - seen, 0.0).amax()
    visible = triangle(w.shape[-1], w)
    lowest, highest = (torch.where(visible, w, none) for none in (torch.inf, -torch.inf))
    spread = (highest.amax(dim=-1) - lowest.amin(dim=-1)).amax()
    return bool(below + spread < DEPTH)


# chunks


class AftChunks(NamedTuple):
    """Keys and values, b h N c d; `n` tokens, behind which there are hidden ones."""

    k: Tensor
    v: Tensor
    n: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor, size: int) -> AftChunks:
        return cls(split_chunks(k, size, least_value(k)), split_chunks(v, size), k.shape[-2])

    @property
    def size(self) -> int:
        return self.k.shape[-2]

    def joined(self, found: Scaled) -> Scaled:
        """Join the sums of the queries of all chunks."""
        value, level = found.value, found.level
        level = level.expand(*value.shape[:-2], 1, value.shape[-1])
        flat = (t.flatten(2, 3).flatten(-2) for t in (value, level))
        return Scaled(*(up_to(t, self.n).unflatten(-1, (-1, value.shape[-1])) for t in flat))


def move_chunks(t: Tensor, by: int, axis: int, filler: float = 0.0) -> Tensor:
    """Shift entries by a number, with fillers from beyond the ends."""
    n, pad = t.shape[axis], (0, 0) * (t.ndim - 1 - axis)
    t = F.pad(t, (*pad, -by, 0) if by < 0 else (*pad, 0, by), value=filler)
    return t.narrow(axis, 0, n) if by < 0 else t.narrow(axis, by, n)


def delay_sums(sums: Scaled, by: int, past: Scaled | None) -> Scaled:
    """Sums (b h N ...) up to so many chunks before each; what stands before the first is the past."""
    value, level = sums.value, sums.level
    front = Scaled(torch.zeros_like(value[:, :, :1]), torch.full_like(level[:, :, :1], least_value(level)))
    front = get_past(past) or front
    return Scaled(*(torch.cat((*[f] * by, t), dim=2).narrow(2, 0, t.shape[2])
                    for f, t in zip(front, sums, strict=True)))  # fmt: skip


def running(totals: Scaled, past: Scaled | None = None) -> Scaled:
    """Sums up to each chunk, from those of each (b h N ...) and of all before the first."""
    value, own = totals.value.movedim(2, 0), totals.level.movedim(2, 0)
    level = own.cummax(dim=0).values
    if past is None:
        past = Scaled(torch.zeros_like(value[0]), torch.full_like(own[0], least_value(own)))
    level = torch.maximum(level, past.level)
    if torch.compiler.is_compiling():  # all with all, since chunks are few
        at = torch.arange(level.shape[0], device=level.device)
        seen = (at.unsqueeze(-1) >= at)[(..., *[None] * past.level.ndim)]
        kept = (own - level.unsqueeze(1)).masked_fill(~seen, -torch.inf).exp()
        value = (kept * value).sum(dim=1) + (past.level - level).exp() * past.value
        return Scaled(value.movedim(0, 2), level.movedim(0, 2))
    decay = (torch.cat((past.level.unsqueeze(0), level)).narrow(0, 0, level.shape[0]) - level).exp()
    value = scan(decay, value * (own - level).exp(), past.value)
    return Scaled(value.movedim(0, 2), level.movedim(0, 2))


def flip(t: Tensor) -> Tensor:
    return t.flip(2)


# no weights of places


def sum_everything(k: Tensor, v: Tensor) -> Scaled:
    """All keys, for any query:  b h 1 2 d. There may be none."""
    if k.shape[-2] == 0:
        k, v = F.pad(k, (0, 0, 0, 1), value=least_value(k)), F.pad(v, (0, 0, 0, 1))
    return sum_met(k, v, None)


def sum_simple(k: Tensor, v: Tensor, past: Scaled | None) -> Scaled:
    """Keys up to each query, and before them the sums (b h 2 d) of the past."""
    if torch.compiler.is_compiling():
        chunks, past = AftChunks.of(k, v, COMPILED_CHUNK), get_past(past)
        far = delay_sums(running(sum_met(chunks.k, chunks.v, None), past), 1, past)
        return chunks.joined(mask_within(chunks.k, chunks.v, None).plus(far))
    level = k.detach().cummax(dim=-2).values
    start = torch.full_like(level[..., :1, :], least_value(level)) if past is None else past.level
    level = torch.maximum(level, start)
    decay = (torch.cat((start, level[..., :-1, :]), dim=-2) - level).exp()
    e = (k - level).exp()
    value = torch.stack((e * v, e), dim=-2)
    found = scan(decay.unsqueeze(-2).movedim(2, 0), value.movedim(2, 0), None if past is None else past.value)
    return Scaled(found.movedim(0, 2), level.unsqueeze(-2))


def get_past(sums: Scaled | None) -> Scaled | None:
    """Sums b h 2 d as those of one query, b h 1 2 d."""
    return None if sums is None else sums.map(lambda t: t.unsqueeze(2))


def get_size(k: Tensor, window: int) -> int:
    """The length of chunks, in the neighbours of which a window ends."""
    if torch.compiler.is_compiling():
        return max(power_of_two(window - 1), COMPILED_CHUNK)
    return min(max(power_of_two(window - 1), CHUNK), power_of_two(k.shape[-2]))


# weights of near places

# (chunks on, size) -> logits, to b h N c c, of the queries of each chunk with keys of the one so many on
Near = Callable[[int, int], Tensor]


def local(k: Tensor, v: Tensor, near: Near, window: int, causal: bool, past: Scaled | None) -> Scaled:
    """Keys up to each query, or all, with weights by place for those less than `window` away, and before them the
    `past` (b h 2 d), which is not near."""
    chunks, past = AftChunks.of(k, v, get_size(k, window)), get_past(past)
    size, totals = chunks.size, sum_met(chunks.k, chunks.v, None)
    far = delay_sums(running(totals, past), 2, past)
    if not causal:
        far = far.plus(delay_sums(running(totals.map(flip)), 2, None).map(flip))
    around = (-1, 0) if causal else (-1, 0, 1)

    def step(k: list[Tensor], v: list[Tensor], logits: list[Tensor], far: Scaled) -> Scaled:
        """Compute the sums of some chunks; keys and values are of spans, the middle one theirs."""
        k, v = (concat_beside(t, around) for t in (k, v))
        if causal:
            return sum_at_once(k[1], v[1], logits[1]).plus(sum_met(k[0], v[0], logits[0])).plus(far)
        return sum_met(torch.cat(k, dim=-2), torch.cat(v, dim=-2), torch.cat(logits, dim=-1)).plus(far)

    ks, vs = (spans_of(t, size) for t in (chunks.k, chunks.v))
    # logits may be those of any chunk
    logits = ((t,) * len(ks) if t.shape[2] == 1 else spans_of(t, size) for t in (near(by, size) for by in around))
    fars = [Scaled(*t) for t in zip(*(spans_of(t, size) for t in far), strict=True)]
    step_by_spans: Any = sum_by_spans(step, len(ks), ())
    sides = (three(ks, least_value(k)), three(vs, 0.0), zip(*logits, strict=True), fars)
    parts = [step_by_spans(*part) for part in zip(*sides, strict=True)]
    found = parts[0] if len(parts) == 1 else Scaled(*(torch.cat(t, dim=2) for t in zip(*parts, strict=True)))
    return chunks.joined(found)


def spans_of(t: Tensor, size: int) -> Sequence[Tensor]:
    """Chunks (b h N ...) that are computed at once. A compiled graph has one way for all lengths."""
    return (t,) if torch.compiler.is_compiling() else t.split(max(SPAN // size, 1), 2)


def three(spans: Sequence[Tensor], filler: float) -> list[list[Tensor]]:
    """Each span behind the one before it and before the one after it."""
    end = torch.full_like(spans[0][:, :, :1], filler)
    return [list(each) for each in zip((end, *spans), spans, (*spans[1:], end), strict=False)]


def concat_beside(spans: list[Tensor], around: Sequence[int]) -> list[Tensor]:
    """The chunks that stand so far from each of the middle span."""
    before, own, after = spans
    parts = (before[:, :, -1:], own, after[:, :, :1])
    every = torch.cat(parts if around[-1] else parts[:2], dim=2)
    return [every.narrow(2, 1 + by, own.shape[2]) for by in around]


def sum_by_distance(table: Tensor, window: int) -> Near:
    """Logits from a table (h 2s-1) of distances, from far ahead to far behind; or (h s), of keys behind."""
    behind_only = table.shape[-1] == window

    def near(by: int, size: int) -> Tensor:
        at = torch.arange(size, device=table.device)
        distance = at.unsqueeze(-1) - at - by * size
        index = (distance if behind_only else distance + window - 1).clamp(0, table.shape[-1] - 1)
        return torch.where(distance.abs() < window, table[:, index], 0.0)[None, :, None]

    return near


def sum_by_products(of_query: Tensor, of_key: Tensor, window: int) -> Near:
    """Logits from vectors of places, both (b or 1, n, r)."""

    def near(by: int, size: int) -> Tensor:
        own, others = (split_chunks(t.unsqueeze(1), size) for t in (of_query, of_key))
        at = torch.arange(size, device=of_key.device)
        logits = own @ move_chunks(others, by, 2).mT
        return torch.where((at.unsqueeze(-1) - at - by * size).abs() < window, logits, 0.0)

    return near


# weights of all places


def full(k: Tensor, v: Tensor, of_query: Tensor, of_key: Tensor, causal: bool, most: int) -> Scaled:
    """All keys, or those up to each query, which are the last ones, by products of vectors of places (b or 1, n, r), of
    which there are `most`."""
    of_query, of_key = of_query.unsqueeze(1), of_key.unsqueeze(1)
    if not causal:
        return sum_in_rows(k, v, of_query, of_key)
    n, everything = of_query.shape[-2], (k, v, of_key)
    earlier = k.shape[-2] - n
    k, v, of_key = (t[..., earlier:, :] for t in everything)
    compiled = torch.compiler.is_compiling()
    size = min(power_of_two(most), COMPILED_ROWS) if compiled else min(CHUNK, power_of_two(n))
    own = AftChunks.of(k, v, size)
    inside = own.joined(sum_at_once(own.k, own.v, split_chunks(of_query, size) @ split_chunks(of_key, size).mT))

    def between(found: Scaled, *tokens: Tensor) -> Scaled:
        """Combine the sums of chunks for some queries. In halves: the second one sees
        all of the first."""
        length = tokens[0].shape[-2]
        if length <= size:
            return found
        half = power_of_two(length) // 2
        parts = [t.split([half, length - half], dim=-2) for t in tokens]
        inside = zip(*(t.split([half, length - half], dim=2) for t in found), strict=True)
        (k, _), (v, _), (_, of_query), (of_key, _) = parts
        first, second = (
            between(Scaled(*own), *half) for own, half in zip(inside, zip(*parts, strict=True), strict=True)
        )
        both = zip(first, second.plus(sum_in_rows(k, v, of_query, of_key)), strict=True)
        return Scaled(*(torch.cat(halves, dim=2) for halves in both))

    found = between(inside, k, v, of_query, of_key)
    if earlier == 0:
        return found
    k, v, of_key = (t[..., :earlier, :] for t in everything)
    return found.plus(sum_in_rows(k, v, of_query, of_key))


def sum_in_rows(k: Tensor, v: Tensor, of_query: Tensor, of_key: Tensor) -> Scaled:
    """Sum the keys that all queries see."""
    pairs, top = get_pairs(k, v)
    flat = pairs.flatten(-2).flatten(0, 1)
    shared = of_query.shape[0] == of_key.shape[0] == 1
    flat = flat.transpose(0, 1).flatten(1).unsqueeze(0) if shared else flat  # rows beside each other
    by_formula = torch.compiler.is_compiling() or is_transformed()
    value, most = (sum_by_formula if by_formula else InRows.apply)(of_query.flatten(0, 1), of_key.flatten(0, 1), flat)
    value = value.squeeze(0).unflatten(-1, (k.shape[0], -1)).transpose(0, 1) if shared else value
    return Scaled(value.unsqueeze(1).unflatten(-1, pairs.shape[-2:]), top + most.unsqueeze(1).unsqueeze(-1))


def sum_by_formula(of_query: Tensor, of_key: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """exp(w - most) pairs,  with w = u v^T and its largest numbers in each row.  b i r, b j r, b j x -> b i x, b i 1"""
    w = of_query @ of_key.mT
    most = w.detach().amax(dim=-1, keepdim=True)
    return (w - most).exp() @ pairs, most


class InRows(torch.autograd.Function):
    """The same, some rows of queries at a time, whose weights are computed again in the backward pass if they are not
    all."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(u, v, pairs)
        value, most = u.new_empty(*u.shape[:-1], pairs.shape[-1]), u.new_empty(*u.shape[:-1], 1)
        ctx.kept = None
        for at, weights, own in get_weights(u, v, None):
            most[:, at] = own
            value[:, at] = weights @ pairs
            ctx.kept = [(at, weights, own)] if weights.shape[1] == u.shape[1] else None
        ctx.mark_non_differentiable(most)
        ctx.most = most
        return value, most

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        inputs = u, v, pairs = ctx.saved_tensors
        if torch.is_grad_enabled() or is_batched_grad(grad):
            return differentiate_formula(lambda *t: sum_by_formula(*t)[0], inputs, ctx.needs_input_grad, grad)
        grads = [torch.empty_like(u), torch.zeros_like(v), torch.zeros_like(pairs)]
        for at, weights, _ in ctx.kept or get_weights(u, v, ctx.most):
            own = grad[:, at]
            grads[2].baddbmm_(weights.mT, own)
            weights = weights * (own @ pairs.mT)
            grads[0][:, at] = weights @ v
            grads[1].baddbmm_(weights.mT, u[:, at])
        return tuple(grads)


def get_weights(u: Tensor, v: Tensor, most: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Return which rows, their weights, and the largest logits."""
    height = max(SCORES // (v.shape[0] * v.shape[1]), 64)
    for start in range(0, u.shape[1], height):
        at = slice(start, min(start + height, u.shape[1]))
        w = u[:, at] @ v.mT
        own = w.amax(dim=-1, keepdim=True) if most is None else most[:, at]
        yield at, w.sub_(own).exp_(), own


# the output


def quotient(found: Scaled) -> Tensor:
    """Sums of values by those of weights; zeros where there is no key."""
    values, weights = found.value.unbind(-2)
    none = found.level.squeeze(-2) < least_value(found.level) / 2
    return (values / weights.clamp(min=torch.finfo(weights.dtype).tiny)).masked_fill(none, 0.0)
