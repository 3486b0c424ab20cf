"""The keys of a large store that fit queries best, found in parts of it, so that no score of all is ever held."""

from __future__ import annotations

import torch
from torch import Tensor

from x_transformers.core.precision import accurate

# keys of a part
PART = 1024


def nearest(q: Tensor, k: Tensor, seen: Tensor, count: int) -> Tensor:
    """Which keys have the largest products with each query, among those seen.

    q         b k m e
    k         b k j e
    seen      b j      the others come last
    count              how many
    returns   b k m min(count, j)
    """
    q, count = accurate(q), min(count, k.shape[2])
    best, at = q.new_empty(*q.shape[:3], 0), seen.new_empty(*q.shape[:3], 0, dtype=torch.long)
    for start in range(0, k.shape[2], PART):
        own = slice(start, min(start + PART, k.shape[2]))
        scores = q @ accurate(k[:, :, own]).mT
        scores = scores.masked_fill(~seen[:, None, None, own], -torch.inf)
        found = scores.topk(min(count, scores.shape[-1]), dim=-1)
        best, at = torch.cat((best, found.values), dim=-1), torch.cat((at, found.indices + start), dim=-1)
        if best.shape[-1] > count:
            best, order = best.topk(count, dim=-1)
            at = at.gather(-1, order)
    return at


def nearest_of_coarse(q: Tensor, k: Tensor, seen: Tensor, count: int, projection: Tensor, wide: int = 4) -> Tensor:
    """The same of the `wide * count` keys that fit best in the few dimensions of a `projection` (e r), by r / e of the
    work. Some of the best may be missing."""
    narrow = accurate(q) @ projection.to(accurate(q).dtype), accurate(k) @ projection.to(accurate(q).dtype)
    at = nearest(*narrow, seen, wide * count)
    scores = (accurate(taken_for_each(k, at)) @ accurate(q).unsqueeze(-1)).squeeze(-1)
    known = seen[:, None, None].expand(*at.shape[:3], -1).gather(-1, at)
    order = scores.masked_fill(~known, -torch.inf).topk(min(count, at.shape[-1]), dim=-1).indices
    return at.gather(-1, order)


def taken_for_each(t: Tensor, at: Tensor) -> Tensor:
    """Rows of a store (b k j e) for each query, by their numbers (b k m n):  b k m n e."""
    index = at.flatten(2).unsqueeze(-1).expand(-1, -1, -1, t.shape[-1])
    return t.gather(2, index).unflatten(2, at.shape[2:])
