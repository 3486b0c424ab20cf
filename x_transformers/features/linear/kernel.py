"""Attention without a softmax: queries and keys meet by products of their features, so that keys can be summed up.

    out_t = sum_s w_ts v_s / sum_s w_ts,   w_ts = phi(q_t) . phi(k_s) = phi(q_t)^T (sum_s phi(k_s) (v_s, 1)^T)

Time and memory grow with the length. Where a query sees no later key, the sequence is cut into chunks: inside a chunk
queries meet keys, and they read all chunks before as one sum, which is also what is left for the next token. Sums may
fade from token to token:  w_ts = phi(q_t) . phi(k_s) exp(l_s+1 + ... + l_t),  by logarithms l of what is left.

What belongs here: the sums, for any features. Axes: b batch, k key heads, g query heads of each, n tokens, m features,
c tokens of a chunk, N chunks. Values may have a last feature of 1, whose sum is the denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from x_transformers.core.modes import is_transformed
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.chunks import first_token, split_chunks

# chunks that are computed at once, outside of compiled graphs: what stays in the cache of a core
CHUNKS = 16
# of more of such spans, nothing is kept for the backward pass but where each begins
FEW_SPANS = 4


class Scaled(NamedTuple):
    """Numbers `value * exp(level)`, which as such could be too large or too small. A level of None is 0.

    Levels are constants: they have no gradient.
    """

    value: Tensor
    level: Maybe[Tensor] = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Scaled:
        return Scaled(function(self.value), None if self.level is None else function(self.level))

    def plus(self, other: Scaled | None) -> Scaled:
        if other is None:
            return self
        if self.level is None and other.level is None:
            return Scaled(self.value + other.value)
        levels = [one.value.new_zeros(()) if one.level is None else one.level for one in (self, other)]
        level = torch.maximum(*levels)
        parts = [one.value * (own - level).exp() for one, own in zip((self, other), levels, strict=True)]
        return Scaled(parts[0] + parts[1], level)


class FeatureMap(NamedTuple):
    """What makes features of queries and keys.

    of_queries   (... n e) -> (... n m)
    of_keys      (... n e) -> (... n m), and logarithms (... n 1) of what they are to be multiplied with, or None
    weighs       whether values get a last feature of 1, whose sum is that of the weights
    reads        what these functions read
    """

    of_queries: Callable[[Tensor], Tensor]
    of_keys: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    weighs: bool = True
    reads: tuple[Tensor, ...] = ()

    def of_tokens(self, tokens: LinearTokens) -> tuple[Tensor, Tensor | None, Tensor]:
        """Features of keys, nothing for hidden ones; their logarithms; and values."""
        k, up = self.of_keys(tokens.k)
        v = F.pad(tokens.v, (0, 1), value=1.0) if self.weighs else tokens.v
        if tokens.seen is None:
            return k, up, v
        up = None if up is None else up.masked_fill(~tokens.seen, least_value(up))
        return k.masked_fill(~tokens.seen, 0.0), up, v


class LinearTokens(NamedTuple):
    """Keys (b k n e) and values (b k n d), which are `seen` (b 1 n 1), of which `document` (b or 1, n).

    rate    how strongly each is written, b k n 1, None for 1
    fade    logarithms of what each leaves of what stood there before, b k n 1, None for 0
    """

    k: Tensor
    v: Tensor
    seen: Maybe[Tensor] = None
    rate: Maybe[Tensor] = None
    fade: Maybe[Tensor] = None
    document: Maybe[Tensor] = None  # those of a document stand side by side

    def each(self, function: Callable[[Tensor, int], Any]) -> list[Any]:
        """Apply a function to each field and its axis of tokens; fields that are None stay None."""
        return [None if t is None else function(t, -1 if t is self.document else -2) for t in self]

    def part(self, start: int, stop: int) -> LinearTokens:
        if (start, stop) == (0, self.k.shape[-2]):  # the gradient of a part fills up a whole
            return self
        return LinearTokens(*self.each(lambda t, axis: t.narrow(axis, start, stop - start)))

    def split(self, count: int) -> list[LinearTokens]:
        parts = self.each(lambda t, axis: t.split(count, axis))
        spans = len(parts[0])
        return [LinearTokens(*one) for one in zip(*([None] * spans if t is None else t for t in parts), strict=True)]


def least_value(t: Tensor) -> float:
    """A logarithm of nothing, of which differences are finite."""
    return torch.finfo(t.dtype).min / 8


def split_spans(t: Any, n: int, chunk: int) -> Sequence[Any]:
    """Parts of tokens that are computed at once. A compiled graph has one way for all lengths."""
    if n == 0 or torch.compiler.is_compiling():
        return (t,)
    # not a view of each: the gradients of these would be as large as all together
    return t.split(CHUNKS * chunk, -2) if isinstance(t, Tensor) else t.split(CHUNKS * chunk)


def sum_by_spans(step: Callable[..., Any], spans: int, reads: Sequence[Tensor]) -> Callable[..., Any]:
    """A step that is taken for each span. Where these are many, what it computes is forgotten, and computed again in
    the backward pass."""
    if spans <= FEW_SPANS or torch.compiler.is_compiling() or not torch.is_grad_enabled() or is_transformed():
        return step

    def forgetful(*trees: Any) -> Any:
        leaves, spec = tree_flatten(trees)

        def run(*given: Any) -> Any:  # torch looks whether one of them was changed in place
            return step(*tree_unflatten(given[: len(leaves)], spec))

        return checkpoint(run, *leaves, *reads, use_reentrant=False, preserve_rng_state=False)

    return forgetful


def sum_in_order(
    step: Callable[..., tuple[Scaled, Any]], q: Tensor, tokens: LinearTokens, chunk: int, reads: Sequence[Tensor]
) -> tuple[Scaled, Any]:
    """Take `step(queries, tokens, carry, chunk)` for each span in its order, `carry` being what the last one left, None
    at first. Return what it finds, and the last carry."""
    n = q.shape[-2]
    chunk = chunk if torch.compiler.is_compiling() else max(min(chunk, n), 1)
    spans = split_spans(tokens, n, chunk)
    step, parts, carry = sum_by_spans(step, len(spans), reads), [], None
    for own, part in zip(split_spans(q, n, chunk), spans, strict=True):
        found, carry = step(own, part, carry, chunk)
        parts.append(found)
    return concat_chunks(parts), carry


def concat_chunks(parts: Sequence[Scaled]) -> Scaled:
    """Side by side, token after token."""
    if len(parts) == 1:
        return parts[0]
    level = None if parts[0].level is None else torch.cat([part.level for part in parts], dim=-2)
    # laid out token by token, which is how heads are merged
    return Scaled(torch.cat([part.value.movedim(-2, 1) for part in parts], dim=1).movedim(1, -2), level)


# all keys at once


def products(k: Tensor, v: Tensor) -> Tensor:
    """k.mT @ v:  ... n m, ... n d -> ... m d"""
    return (v.mT @ k).mT  # so that the gradient of k is laid out as k is, which what made it reads many times as fast


def sum_chunks(tokens: LinearTokens, features: FeatureMap, chunk: int) -> Scaled:
    """Return the sums of all keys, (b, k, m, d)."""

    def leave(part: LinearTokens, total: Scaled | None) -> Scaled:
        k, up, v = features.of_tokens(part)
        if up is None:
            return Scaled(products(k, v)).plus(total)
        level = F.pad(up.detach(), (0, 0, 0, 1), value=least_value(up)).amax(dim=-2, keepdim=True)
        return Scaled(products(k, v * (up - level).exp()), level).plus(total)

    spans = split_spans(tokens, tokens.k.shape[-2], chunk)
    total: Any = None
    step = sum_by_spans(leave, len(spans), features.reads)
    for part in spans:
        total = step(part, total)
    return total


def read(q: Tensor, sums: Scaled, features: FeatureMap, chunk: int) -> Scaled:
    """Apply queries (b, k, g, n, e) to the sums:  (b, k, g, n, d)."""

    def find(q: Tensor, sums: Tensor) -> Tensor:
        own = features.of_queries(q)
        return (own.flatten(2, 3) @ sums).unflatten(2, own.shape[2:4])

    spans = split_spans(q, q.shape[-2], chunk)
    step = sum_by_spans(find, len(spans), features.reads)
    parts = [Scaled(step(part, sums.value)) for part in spans]
    return Scaled(concat_chunks(parts).value, None if sums.level is None else sums.level.unsqueeze(2))


# keys up to each query


class Transposed(torch.autograd.Function):
    """a @ b.mT, both of the same leading axes: gradients are laid out as a and b are, which what made these reads
    several times as fast. By torch's own formula that of b is laid out as b.mT."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad @ b, grad.mT @ a


def attend_met(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.mT"""
    plainly = torch.is_grad_enabled() and not torch.compiler.is_compiling() and not is_transformed()
    return Transposed.apply(a, b) if plainly else a @ b.mT


class Carry(NamedTuple):
    """The sum of the keys so far, None for nothing, its level b k 1 1, and of which document the last one is, b 1."""

    sums: Maybe[Tensor]
    level: Maybe[Tensor]
    document: Maybe[Tensor]


def causal(
    q: Tensor, tokens: LinearTokens, features: FeatureMap, chunk: int, past: Scaled | None = None, before: bool = False
) -> tuple[Scaled, Scaled]:
    """Return the output of queries (b, k, g, n, e) for the `past` and keys up to their own, or `before` it, and the
    sum of all these keys."""

    def go_on(q: Tensor, part: LinearTokens, carry: Any, chunk: int) -> tuple[Scaled, Carry]:
        k, up, v = features.of_tokens(part)
        carry = sum_before_all(up, part, past) if carry is None else carry
        v = v if part.rate is None else v * part.rate
        return sum_span(features.of_queries(q), part._replace(k=k, v=v), up, carry, chunk, before)

    found, carry = sum_in_order(go_on, q, tokens, chunk, features.reads)
    return found, Scaled(carry.sums, carry.level)


def sum_before_all(up: Tensor | None, tokens: LinearTokens, past: Scaled | None) -> Carry:
    """Return the sum before the first key."""
    document = None if tokens.document is None else tokens.document.new_full((len(tokens.document), 1), -1)
    if past is not None:
        return Carry(*past, document)
    return Carry(None, None if up is None else up.new_full((*up.shape[:2], 1, 1), least_value(up)), document)


def triangle(n: int, like: Tensor, diagonal: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=like.device).tril(diagonal)


def lower(weights: Tensor, groups: int, diagonal: int) -> Tensor:
    """Those of keys up to their query, ... (g c) c, which are changed."""
    if groups == 1:
        return weights.tril_(diagonal)
    return weights.unflatten(-2, (groups, -1)).tril(diagonal).flatten(-3, -2)  # in place its gradient copies all


def sum_span(
    q: Tensor, tokens: LinearTokens, up: Tensor | None, carry: Carry, chunk: int, before: bool
) -> tuple[Scaled, Carry]:
    """Some chunks at once, of features of queries (b k g n m) and keys (b k n m)."""
    groups, n = q.shape[2:4]
    q, k, v = (split_chunks(t, chunk) for t in (q, tokens.k, tokens.v))
    q = q.transpose(2, 3).flatten(3, 4)  # b k N (g c) m
    weights, plain = attend_met(q, k), up is None and tokens.fade is None and tokens.document is None
    if plain:
        level, weights = Levels(between=triangle(k.shape[2] + 1, k).to(k.dtype)), lower(weights, groups, -int(before))
    else:
        level = Levels.of(up, tokens, carry, k, -int(before))
        weights = (weights.unflatten(3, (groups, chunk)) * level.near.unsqueeze(3)).flatten(3, 4)
    sums, last = chunk_sums(k, v if level.goes_on is None else v * level.goes_on, level.between, carry.sums)
    earlier = attend_met(q, sums).unflatten(3, (groups, chunk))
    if level.read is not None:
        earlier = earlier * level.read.unsqueeze(3)
    found = (weights @ v).unflatten(3, (groups, chunk)) + earlier  # b k N g c d
    found = first_token(found.transpose(2, 3).flatten(3, 4), n)
    document = None if tokens.document is None else tokens.document[:, -1:]
    if level.of_queries is None:
        return Scaled(found), Carry(last, None, document)
    levels = first_token(level.of_queries.flatten(2, 3), n).unsqueeze(2)
    return Scaled(found, levels), Carry(last, level.last, document)


def chunk_sums(k: Tensor, v: Tensor, between: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums before each chunk of keys and values, (b, k, N, d, m), and that of all, (b, k, m, d)."""
    own = v.mT @ k  # d m, so that the gradient of k is laid out as k is
    shape, own = own.shape[3:], own.flatten(3)
    earlier, last = between[..., :-1, 1:] @ own, between[..., -1:, 1:] @ own
    if start is not None:
        start = start.mT.flatten(2).unsqueeze(2)
        earlier, last = earlier + between[..., :-1, :1] * start, last + between[..., -1:, :1] * start
    return earlier.unflatten(3, shape), last.squeeze(2).unflatten(2, shape).mT


class Levels(NamedTuple):
    """What numbers are multiplied with so that none is larger than it is where it is read, less of what has faded, and
    0 across documents. None is 1; of levels, 0.

    near         b k N c c         a key as a query of its chunk reads it
    goes_on      b k N c 1         a key in the sum of its chunk: of the document with which that ends
    between      b k 1+N 1+N       sums of chunks, that of all before the first one, in those up to each
    read         b k N c 1         what stood before the chunk, as a query reads it
    of_queries   b k N c 1         the levels of what queries find
    last         b k 1 1           that of all keys
    """

    near: Maybe[Tensor] = None
    goes_on: Maybe[Tensor] = None
    between: Maybe[Tensor] = None
    read: Maybe[Tensor] = None
    of_queries: Maybe[Tensor] = None
    last: Maybe[Tensor] = None

    @classmethod
    def of(cls, up: Tensor | None, tokens: LinearTokens, carry: Carry, k: Tensor, diagonal: int) -> Levels:
        """k: b k N c m"""
        chunk, sight = k.shape[3], ChunkMask.of(tokens.document, carry.document, k, diagonal)
        near = goes_on = between = reads = None  # logarithms
        if tokens.fade is not None:
            left = split_chunks(tokens.fade, chunk).cumsum(dim=3)  # b k N c 1
            near, goes_on, reads = left - left.mT, left[:, :, :, -1:] - left, left
            between = sums_between(left[:, :, :, -1])
        if up is None:
            read = None if reads is None and sight.reads is None else factors(reads, sight.reads, k)
            within = None if goes_on is None and sight.goes_on is None else factors(goes_on, sight.goes_on, k)
            return cls(factors(near, sight.near, k), within, factors(between, sight.between, k), read)
        none, up = least_value(up), split_chunks(up, chunk, least_value(up))
        near, goes_on = plus(up.mT, near), plus(up, goes_on)
        tops = highest(goes_on, sight.goes_on, none, 3).squeeze(3)
        tops = torch.cat((carry.level, tops), dim=2)  # b k 1+N 1
        between = plus(tops.mT, between)
        ends = highest(between, sight.between, none, -1)
        start = ends[:, :, :-1].unsqueeze(-1)
        reads = plus(start if sight.reads is None else torch.where(sight.reads, start, none), reads)
        level = torch.maximum(highest(near, sight.near, none, -1), reads.detach())
        return cls(
            factors(near - level, sight.near, k),
            factors(goes_on - tops[:, :, 1:].unsqueeze(-1), sight.goes_on, k),
            factors(between - ends, sight.between, k),
            factors(reads - level, sight.reads, k),
            level,
            ends[:, :, -1:],
        )


class ChunkMask(NamedTuple):
    """Of which numbers `Levels` are, by order and documents; None is all."""

    near: Tensor
    between: Tensor
    goes_on: Maybe[Tensor] = None
    reads: Maybe[Tensor] = None

    @classmethod
    def of(cls, document: Tensor | None, last: Maybe[Tensor], k: Tensor, diagonal: int = 0) -> ChunkMask:
        """`last`: of which document what stood before is, b 1.  k: b k N c m"""
        near, between = triangle(k.shape[3], k, diagonal), triangle(k.shape[2] + 1, k)
        if document is None:
            return cls(near, between)
        own = split_chunks(document.unsqueeze(-1), k.shape[3], -2).unsqueeze(1)  # b 1 N c 1
        ends = torch.cat((last[:, None, :, None], own[:, :, :, -1]), dim=2)  # b 1 1+N 1
        near, between = near & (own == own.mT), between & (ends == ends.mT)
        return cls(near, between, own == own[:, :, :, -1:], own == ends[:, :, :-1].unsqueeze(-1))


def sums_between(t: Tensor) -> Tensor:
    """Return the sums of numbers (..., N, 1) after each index up to each, the first one before all, (..., 1+N, 1+N).

    Differences of sums from the beginning would have the digits of the largest.
    """
    t = F.pad(t, (0, 0, 1, 0))
    return t.expand(*t.shape[:-1], t.shape[-2]).tril(-1).cumsum(dim=-2)


def plus(t: Tensor, other: Tensor | None) -> Tensor:
    return t if other is None else t + other


def highest(logs: Tensor, where: Tensor | None, none: float, dim: int) -> Tensor:
    """The largest along an axis, as a constant."""
    logs = logs.detach()
    return (logs if where is None else torch.where(where, logs, none)).amax(dim=dim, keepdim=True)


def factors(logs: Tensor | None, where: Maybe[Tensor], like: Tensor) -> Tensor:
    """Exponentiate logarithms, with 0 elsewhere."""
    if logs is None:
        return where.to(like.dtype)
    return (logs if where is None else logs.masked_fill(~where, -torch.inf)).exp()


# all keys of each document


def sum_in_documents(q: Tensor, tokens: LinearTokens, features: FeatureMap, chunk: int) -> Scaled:
    """Return the output of queries for all keys of their document: those up to their own, and the later ones."""
    ahead, _ = causal(q, tokens, features, chunk)
    flipped = LinearTokens(*tokens.each(lambda t, axis: t.flip(axis)))
    behind, _ = causal(q.flip(-2), flipped, features, chunk, before=True)
    return ahead.plus(behind.map(lambda t: t.flip(-2)))
