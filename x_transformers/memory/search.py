"""Exact search for the nearest keys, over any number of blocks, without the full distance matrix.

'l2'      |q - k|^2
'ip'      -q k
'cosine'  1 - q k / (|q| |k|), 1 for a vector of zeros
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

METRICS = ('l2', 'ip', 'cosine')
QUERIES = 1024  # that are looked up at once
SCORES = 2**24  # distances in memory at once
GATHERED = 2**24  # numbers of stored keys in memory at once


class Neighbours(NamedTuple):
    """Nearest entries, the nearest first.

    distances   ... k   distances by the metric of the store, infinite where there is no entry
    values      ... k   what the entries stand for; 0 where there is none
    index       ... k   which entries of the store they are; -1 where there is none
    """

    distances: Tensor
    values: Tensor
    index: Tensor


def nearest(
    queries: Tensor, blocks: Iterable[tuple[int, Tensor]], count: int, exclude: Tensor | None, metric: str = 'l2'
) -> tuple[Tensor, Tensor]:
    """Return scores and entries (q, count) of the nearest keys in blocks `(first entry, keys n d)`, block by block."""
    queries = F.normalize(queries, dim=-1) if metric == 'cosine' else queries
    best = queries.new_full((len(queries), 0), torch.inf)
    index = torch.zeros((len(queries), 0), dtype=torch.long, device=queries.device)
    rows = max(SCORES // max(len(queries), 1), 1)
    for start, keys in blocks:
        for at in range(0, len(keys), rows):
            part = keys[at : at + rows].to(queries.device, queries.dtype)
            places = torch.arange(start + at, start + at + len(part), device=queries.device)
            if metric == 'l2':  # up to a term of the query alone: -2 q k + k^2
                found = torch.addmm(part.square().sum(dim=-1), queries, part.mT, alpha=-2.0)
            else:
                found = -(queries @ (F.normalize(part, dim=-1) if metric == 'cosine' else part).mT)
            if exclude is not None:
                found = hide(found, start + at, exclude)
            if len(part) > count:
                found, chosen = found.topk(count, dim=-1, largest=False, sorted=False)
                places = places[chosen]
            best, index = torch.cat((best, found), dim=-1), torch.cat((index, places.expand_as(found)), dim=-1)
            if best.shape[-1] > count:
                best, chosen = best.topk(count, dim=-1, largest=False, sorted=False)
                index = index.gather(-1, chosen)
    return best, index


def hide(found: Tensor, start: int, exclude: Tensor) -> Tensor:
    """Return scores (q, n) of entries from `start` on, infinite for those that are excluded (q, e)."""
    place = exclude - start
    inside = (place >= 0) & (place < found.shape[-1])
    if not inside.any():
        return found
    rows = torch.arange(len(found), device=found.device).unsqueeze(-1).expand_as(place)
    found[rows[inside], place[inside]] = torch.inf
    return found


def get_distances(queries: Tensor, keys: Tensor, metric: str) -> Tensor:
    """Return the distances of queries (q, d) from keys (q, c, d), (q, c)."""
    if metric == 'l2':
        return (queries.unsqueeze(-2) - keys).square().sum(dim=-1)
    if metric == 'cosine':
        queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    return (1 if metric == 'cosine' else 0) - (queries.unsqueeze(-2) * keys).sum(dim=-1)


def exact(
    queries: Tensor,
    index: Tensor,
    count: int,
    exclude: Tensor | None,
    read: Callable[[Tensor], tuple[Tensor, Tensor]],
    metric: str = 'l2',
) -> Neighbours:
    """Return the `count` nearest of candidates (q, c), by distances from stored keys, which `read` returns with values.

    A candidate of -1 is none.
    """
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    rows = max(GATHERED // max(index.shape[-1] * queries.shape[-1], 1), 1)
    for at in range(0, len(queries), rows):
        some, own = queries[at : at + rows], index[at : at + rows]
        keys, values = read(own.clamp(min=0))
        distances = get_distances(some, keys.to(some.device, some.dtype), metric).masked_fill(own < 0, torch.inf)
        for left_out in () if exclude is None else exclude[at : at + rows].unbind(dim=-1):
            distances = distances.masked_fill(own == left_out.unsqueeze(-1), torch.inf)
        distances, order = distances.sort(dim=-1, stable=True)
        order, distances = order[..., :count], distances[..., :count]
        gone = distances.isinf()
        values = values.to(some.device).gather(-1, order).masked_fill(gone, 0)
        parts.append((distances, values, own.gather(-1, order).masked_fill(gone, -1)))
    return Neighbours(*(torch.cat(one) for one in zip(*parts, strict=True)))


def pieces(queries: Tensor, exclude: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield parts of the queries (q, d) with their exclusions (q, e)."""
    for at in range(0, max(len(queries), 1), QUERIES):
        yield queries[at : at + QUERIES], None if exclude is None else exclude[at : at + QUERIES]
