"""Attention without a softmax: queries and keys meet by products of their features, so that keys can be summed up.

    out_t = sum_s w_ts v_s / sum_s w_ts,   w_ts = phi(q_t) . phi(k_s) = phi(q_t)^T (sum_s phi(k_s) (v_s, 1)^T)

Time and memory grow with the length. Where a query sees no later key, the sequence is cut into chunks: inside a chunk
queries meet keys, and they read all chunks before as one sum, which is also what is left for the next token.

What belongs here: the sums, for any features. Axes: b batch, k key heads, g query heads of each, n tokens, m features,
c tokens of a chunk, N chunks. Values have a last feature of 1, whose sum is the denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.transforms import is_exporting

# chunks that are computed at once, outside of compiled graphs: what stays in the cache of a core
CHUNKS = 16


class Scaled(NamedTuple):
    """Numbers `value * exp(level)`, which as such could be too large or too small. A level of None is 0."""

    value: Tensor
    level: Tensor | None = None

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
    """

    of_queries: Callable[[Tensor], Tensor]
    of_keys: Callable[[Tensor], tuple[Tensor, Tensor | None]]

    def of_seen(self, k: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Those of keys, nothing for hidden ones.  seen: b or 1, 1, n, 1"""
        k, up = self.of_keys(k)
        if seen is None:
            return k, up
        return k.masked_fill(~seen, 0.0), None if up is None else up.masked_fill(~seen, least(up))


class Tokens(NamedTuple):
    """Keys (b k n e), values with a last feature of 1 (b k n d), which are `seen` (b 1 n 1), of which `document`."""

    k: Tensor
    v: Tensor
    seen: Tensor | None = None
    document: Tensor | None = None  # b or 1, n; those of a document stand side by side

    def part(self, start: int, stop: int) -> Tokens:
        cut = (t if t is None else t.narrow(-2, start, stop - start) for t in self[:3])
        return Tokens(*cut, None if self.document is None else self.document[:, start:stop])

    def flip(self) -> Tokens:
        """Back to front."""
        cut = (t if t is None else t.flip(-2) for t in self[:3])
        return Tokens(*cut, None if self.document is None else self.document.flip(-1))


def least(t: Tensor) -> float:
    """A logarithm of nothing, of which differences are finite."""
    return torch.finfo(t.dtype).min / 8


def with_one(v: Tensor) -> Tensor:
    return F.pad(v, (0, 1), value=1.0)


def spans(n: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Which tokens are computed at once. A compiled graph has one way for all lengths."""
    if n == 0 or torch.compiler.is_compiling():
        return iter(((0, n),))
    step = CHUNKS * chunk
    return ((start, min(start + step, n)) for start in range(0, n, step))


# all keys at once


def summed(tokens: Tokens, features: FeatureMap, chunk: int) -> Scaled:
    """What keys leave:  b k m d."""
    total = None
    for start, stop in spans(tokens.k.shape[-2], chunk):
        part = tokens.part(start, stop)
        k, up = features.of_seen(part.k, part.seen)
        level = None if up is None else F.pad(up, (0, 0, 0, 1), value=least(up)).amax(dim=-2, keepdim=True)
        k = k if up is None else k * (up - level).exp()
        total = Scaled(k.mT @ part.v, level).plus(total)
    return total


def read(q: Tensor, sums: Scaled, features: FeatureMap, chunk: int) -> Scaled:
    """What queries (b k g n e) find there:  b k g n d."""
    parts = []
    for start, stop in spans(q.shape[-2], chunk):
        own = features.of_queries(q.narrow(-2, start, stop - start))
        parts.append((own.flatten(2, 3) @ sums.value).unflatten(2, own.shape[2:4]))
    value = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
    return Scaled(value, None if sums.level is None else sums.level.unsqueeze(2))


# keys up to each query


class Carry(NamedTuple):
    """The sum of the keys so far, level b k 1 1, and of which document the last one is, b 1."""

    sums: Scaled
    document: Tensor | None


def causal(
    q: Tensor, tokens: Tokens, features: FeatureMap, chunk: int, past: Scaled | None = None, before: bool = False
) -> tuple[Scaled, Scaled]:
    """What queries (b k g n e) find in the `past` and in the keys up to their own, or `before` it:  b k g n d, and the
    sum of all these keys."""
    chunk = chunk if torch.compiler.is_compiling() else min(chunk, q.shape[-2])
    carry, parts = None, []
    for start, stop in spans(q.shape[-2], chunk):
        own, part = features.of_queries(q.narrow(-2, start, stop - start)), tokens.part(start, stop)
        k, up = features.of_seen(part.k, part.seen)
        if part.document is not None and up is None:
            up = torch.zeros_like(k[:, :1, :, :1])  # documents are told apart by levels
        carry = before_all(k, part, up, past) if carry is None else carry
        found, carry = of_span(own, part._replace(k=k), up, carry, chunk, before)
        parts.append(found)
    if len(parts) == 1:
        return parts[0], carry.sums
    level = None if parts[0].level is None else torch.cat([part.level for part in parts], dim=-2)
    return Scaled(torch.cat([part.value for part in parts], dim=-2), level), carry.sums


def before_all(k: Tensor, tokens: Tokens, up: Tensor | None, past: Scaled | None) -> Carry:
    """What stands before the first key."""
    document = None if tokens.document is None else torch.full_like(tokens.document[:, :1], -1)
    if past is None:
        level = None if up is None else torch.full_like(up[:, :, :1], least(up))
        past = Scaled(k.new_zeros(*k.shape[:2], k.shape[-1], tokens.v.shape[-1]), level)
    return Carry(past, document)


def in_chunks(t: Tensor, chunk: int, filler: float = 0.0) -> Tensor:
    """... n d -> ... N c d"""
    n = t.shape[-2]
    if is_exporting():  # a program for all lengths cannot know that n fits, nor have one chunk for some
        return F.pad(t, (0, 0, 0, (n // chunk + 2) * chunk - n), value=filler).unfold(-2, chunk, chunk).mT
    # a graph for all lengths cannot ask whether one fits
    chunks = n // chunk + 1 if torch.compiler.is_compiling() else -(-n // chunk)
    short = chunks * chunk - n
    return (F.pad(t, (0, 0, 0, short), value=filler) if short else t).unflatten(-2, (chunks, chunk))


def first(t: Tensor, n: int) -> Tensor:
    """... m d -> ... n d. That n is at most m, a graph for all lengths cannot know."""
    return t.index_select(-2, torch.arange(n, device=t.device)) if is_exporting() else t.narrow(-2, 0, n)


def triangle(n: int, like: Tensor, diagonal: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=like.device).tril(diagonal)


def of_span(
    q: Tensor, tokens: Tokens, up: Tensor | None, carry: Carry, chunk: int, before: bool
) -> tuple[Scaled, Carry]:
    """Some chunks at once, of features of queries (b k g n m) and keys (b k n m)."""
    groups, n = q.shape[2:4]
    q, k, v = (in_chunks(t, chunk) for t in (q, tokens.k, tokens.v))
    q = q.transpose(2, 3).flatten(3, 4)  # b k N (g c) m
    weights = (q @ k.mT).unflatten(3, (groups, chunk))  # b k N g c c
    near, start = triangle(chunk, q, -int(before)), carry.sums.value.unsqueeze(2)
    if up is None:
        weights, level = weights * near, None
        sums = torch.cat((start, k.mT @ v), dim=2).cumsum(dim=2)  # b k 1+N m d
    else:
        level = Levels.of(in_chunks(up, chunk, least(up)), near, tokens.document, carry)
        weights = weights * level.near.unsqueeze(3)
        sums = torch.cat((start, k.mT @ (v * level.goes_on)), dim=2)
        sums = (level.between @ sums.flatten(3)).unflatten(3, sums.shape[3:])
    earlier = (q @ sums[:, :, :-1]).unflatten(3, (groups, chunk))
    if level is not None:
        earlier = earlier * level.read.unsqueeze(3)
    found = (weights.flatten(3, 4) @ v).unflatten(3, (groups, chunk)) + earlier  # b k N g c d
    found = first(found.transpose(2, 3).flatten(3, 4), n)
    last, document = sums[:, :, -1], None if tokens.document is None else tokens.document[:, -1:]
    if level is None:
        return Scaled(found), Carry(Scaled(last), document)
    levels = first(level.of_queries.flatten(2, 3), n).unsqueeze(2)
    return Scaled(found, levels), Carry(Scaled(last, level.last), document)


class Levels(NamedTuple):
    """What numbers are multiplied with so that none is larger than it is where it is read, and 0 across documents.

    near         b k N c c         a key as a query of its chunk reads it
    goes_on      b k N c 1         a key in the sum of its chunk: of the document with which that ends
    between      b k 1+N 1+N       sums of chunks, that of all before the first one, in those up to each
    read         b k N c 1         what stood before the chunk, as a query reads it
    of_queries   b k N c 1         the levels of what queries find
    last         b k 1 1           that of all keys
    """

    near: Tensor
    goes_on: Tensor
    between: Tensor
    read: Tensor
    of_queries: Tensor
    last: Tensor

    @classmethod
    def of(cls, up: Tensor, near: Tensor, document: Tensor | None, carry: Carry) -> Levels:
        none, chunk = least(up), up.shape[3]
        same, goes_on, reads = triangle(up.shape[2] + 1, up), torch.ones_like(up, dtype=torch.bool), None
        if document is not None:
            own = in_chunks(document.unsqueeze(-1), chunk, -2).unsqueeze(1)  # b 1 N c 1
            ends = torch.cat((carry.document[:, None, :, None], own[:, :, :, -1]), dim=2)  # b 1 1+N 1
            near, same = near & (own == own.mT), same & (ends == ends.mT)
            goes_on, reads = own == own[:, :, :, -1:], own == ends[:, :, :-1].unsqueeze(-1)
        tops = torch.where(goes_on, up, none).amax(dim=3)
        tops = torch.cat((carry.sums.level, tops), dim=2)  # b k 1+N 1
        ends = torch.where(same, tops.mT, none).amax(dim=-1, keepdim=True)
        start = ends[:, :, :-1].unsqueeze(-1)
        start = start if reads is None else torch.where(reads, start, none)
        level = torch.maximum(torch.where(near, up.mT, none).amax(dim=-1, keepdim=True), start)
        return cls(
            between_levels(up.mT, level, near),
            between_levels(up, tops[:, :, 1:].unsqueeze(-1), goes_on),
            between_levels(tops.mT, ends, same),
            between_levels(start, level, reads),
            level,
            ends[:, :, -1:],
        )


def between_levels(of: Tensor, to: Tensor, where: Tensor | None) -> Tensor:
    """What brings numbers of one level to another, none larger, and to 0 elsewhere."""
    difference = of - to
    return (difference if where is None else difference.masked_fill(~where, -torch.inf)).exp()


# all keys of each document


def in_documents(q: Tensor, tokens: Tokens, features: FeatureMap, chunk: int) -> Scaled:
    """What queries find in all keys of their document: in those up to their own, and from behind in the others."""
    ahead, _ = causal(q, tokens, features, chunk)
    behind, _ = causal(q.flip(-2), tokens.flip(), features, chunk, before=True)
    return ahead.plus(Scaled(*(t.flip(-2) for t in behind)))
