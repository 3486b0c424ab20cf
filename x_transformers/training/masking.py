"""Random choice of tokens that an objective hides: single ones, whole words or spans; and random orders.

Every draw has sizes that depend on the shape of the ids alone, so that it may be part of a graph.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Generator, Tensor

IGNORED = -100  # label of what is no target
PASSES = 3  # over the words of a row, each of which fills what the last one could not


def draw_mask(like: Tensor, generator: Generator | None = None) -> Tensor:
    """Return uniform random numbers from 0 to 1, one for each token (b, n)."""
    return torch.rand(like.shape, dtype=torch.float32, device=like.device, generator=generator)


def rank_tokens(keys: Tensor) -> Tensor:
    """Return the rank of each key in its row. Equal keys keep their order."""
    return keys.argsort(dim=-1, stable=True).argsort(dim=-1)


def random_rank(mask: Tensor, generator: Generator | None = None) -> Tensor:
    """Return the ranks of the tokens in `mask` (b, n), in random order per row. The others follow."""
    return rank_tokens(draw_mask(mask, generator).masked_fill(~mask, 2.0))


def get_share(count: int | Tensor, share: float) -> int | Tensor:
    """Return `share` of a number, rounded up, without the rounding of floats (.15 * 20 is 3)."""
    part = Fraction(share).limit_denominator(10**6)
    return (count * part.numerator + part.denominator - 1) // part.denominator


def chosen_tokens(mask: Tensor, share: float, generator: Generator | None = None) -> Tensor:
    """Return a mask (b, n) of chosen tokens: a share, rounded up, of those in `mask`."""
    return mask & (random_rank(mask, generator) < get_share(mask.sum(dim=-1, keepdim=True), share))


def get_runs(*names: Tensor) -> Tensor:
    """Return the index of the run (b, n) of each token. Neighbors with equal `names` (b, n) form a run."""
    changes = torch.stack([name[:, 1:] != name[:, :-1] for name in names]).any(dim=0)
    return torch.nn.functional.pad(changes.long().cumsum(dim=-1), (1, 0))


def chosen_words(mask: Tensor, words: Tensor, share: float, generator: Generator | None = None) -> Tensor:
    """Return a mask (b, n) of chosen tokens: whole words in random order, as long as they fit into the share.

    words   b n   neighbours with one number are a word; tokens that `mask` leaves out are no part of it
    """
    run = get_runs(words)
    sizes = torch.zeros_like(run).scatter_add(1, run, mask.long())
    keys, left = draw_mask(mask, generator), get_share(mask.sum(dim=-1, keepdim=True), share)
    keys, size, chosen = keys.gather(1, run), sizes.gather(1, run), torch.zeros_like(mask)
    for _ in range(PASSES):
        fits = mask & ~chosen & (size <= left)
        rank = rank_tokens(keys.masked_fill(~fits, 2.0))
        first = torch.full_like(run, run.shape[1]).scatter_reduce(1, run, rank.where(fits, rank.shape[1]), 'amin')
        new = fits & (first.gather(1, run) + size <= left)
        chosen, left = chosen | new, left - new.sum(dim=-1, keepdim=True)
    return chosen


def chosen_spans(
    mask: Tensor,
    share: float,
    longest: int,
    stop: float,
    runs: Tensor | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Return a mask (b, n) of chosen tokens: spans from random starts. The last one ends where the share is reached.

        P(length = l) ~ stop (1 - stop)^(l - 1)     up to the `longest`, which has the rest

    A span ends before a token that `mask` leaves out, and where `runs` (b n) change. SpanBERT: Joshi et al. 2019,
    arXiv:1907.10529, with .2 and 10
    """
    start = random_rank(mask, generator)
    left = draw_mask(mask, generator).clamp(min=1e-7).log()  # P(length > l) = (1 - stop)^l
    length = (left / (math.log1p(-stop) if stop < 1 else -math.inf)).floor().add(1).clamp(max=longest)
    whole = get_runs(mask) if runs is None else get_runs(mask, runs)
    keys = start * longest
    for offset in range(1, min(longest, mask.shape[1])):
        reaches = (length[:, :-offset] > offset) & (whole[:, :-offset] == whole[:, offset:])
        key = (start[:, :-offset] * longest + offset).where(reaches, keys[:, offset:])
        keys = torch.cat((keys[:, :offset], torch.minimum(keys[:, offset:], key)), dim=1)
    keys = keys.masked_fill(~mask, mask.shape[1] * longest)
    return mask & (rank_tokens(keys) < get_share(mask.sum(dim=-1, keepdim=True), share))
