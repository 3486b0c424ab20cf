"""Linear recurrences along an axis:  y_t = a_t y_{t-1} + x_t,  with elementwise decays a_t of at most 1.

They run in chunks: the steps inside of all chunks in parallel, then the steps from chunk to chunk. That takes twice the
root of the length in steps, without divisions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Steps of a chunk in a compiled graph, for all lengths.
COMPILED_STEPS = 16
# Up to this many steps run one by one.
FEW = 24


def scan(decay: Tensor, x: Tensor, start: Tensor | None = None) -> Tensor:
    """Compute  y_t = decay_t y_{t-1} + x_t  along the first axis, where the other axes of `decay` broadcast.

    `start` is y before the first token, zeros if None.
    """
    if x.shape[0] == 0:
        return x
    if start is not None:
        return scan_from(start, decay, x)[1:]
    if torch.compiler.is_compiling():
        return _scan_in_chunks(decay, x, COMPILED_STEPS, 2)
    if x.shape[0] <= FEW:
        return _one_by_one(decay, x)
    return _scan_in_chunks(decay, x, math.isqrt(x.shape[0] - 1) + 1, 1)


def scan_from(start: Tensor, decay: Tensor, x: Tensor) -> Tensor:
    """Compute `scan` from `start`, with it in front:  y_0 ... y_n."""
    return scan(torch.cat((decay[:1], decay)), torch.cat((start.unsqueeze(0), x)))


def _one_by_one(decay: Tensor, x: Tensor) -> Tensor:
    decays, xs = decay.unbind(0), x.unbind(0)
    found = [xs[0]]
    for a, own in zip(decays[1:], xs[1:], strict=True):
        found.append(torch.addcmul(own, a, found[-1]))
    return torch.stack(found)


def multiply_decays(decay: Tensor) -> Tensor:
    """Return the cumulative products of decays."""
    found = [decay[0]]
    for a in decay.unbind(0)[1:]:
        found.append(found[-1] * a)
    return torch.stack(found)


def _scan_in_chunks(decay: Tensor, x: Tensor, steps: int, levels: int) -> Tensor:
    n = x.shape[0]
    # A graph for all lengths cannot branch on the length, so it has spare chunks.
    chunks = n // steps + 2 if torch.compiler.is_compiling() else -(-n // steps)
    decay, x = (_pad_length(t, chunks * steps - n).unflatten(0, (chunks, steps)).transpose(0, 1) for t in (decay, x))
    inside, kept = _one_by_one(decay, x), multiply_decays(decay)  # (steps, chunks, ...)
    ends = (kept[-1], inside[-1])
    if levels > 1:
        before = _scan_in_chunks(*ends, steps, levels - 1)
    else:
        before = _all_at_once(*ends) if torch.compiler.is_compiling() else _one_by_one(*ends)
    before = torch.cat((torch.zeros_like(before[:1]), before)).narrow(0, 0, chunks)
    return (inside + kept * before).transpose(0, 1).flatten(0, 1).narrow(0, 0, n)


def _pad_length(t: Tensor, count: int) -> Tensor:
    return torch.cat((t, t.new_zeros(count, *t.shape[1:])))


def _all_at_once(decay: Tensor, x: Tensor) -> Tensor:
    """Compute a recurrence by the decays between all pairs, (n, n, ...), for few steps."""
    n = x.shape[0]
    at = torch.arange(n, device=x.device)
    later = (at.unsqueeze(-1) > at).reshape(n, n, *[1] * (decay.ndim - 1))
    left = torch.where(later, decay.unsqueeze(1), 1.0).cumprod(dim=0)
    seen = (at.unsqueeze(-1) >= at).reshape(n, n, *[1] * (decay.ndim - 1))
    return (torch.where(seen, left, 0.0) * x.unsqueeze(0)).sum(dim=1)


# Levels.

FAR = 1e30  # A fall to below all other levels.


def peaks(fall: Tensor, x: Tensor, start: Tensor, begins: Tensor | None = None) -> Tensor:
    """Compute  m_t = max(m_{t-1} - fall_t, x_t)  along the first axis, from `start`, and x_t where `begins` is True."""
    n = x.shape[0]
    if torch.compiler.is_compiling():  # Levels need not be exact, so rounding is allowed.
        fall = fall if begins is None else fall.masked_fill(begins, 1e5)
        total = fall.cumsum(dim=0)
        return torch.cat((start.unsqueeze(0), x + total)).cummax(dim=0).values.narrow(0, 1, n) - total
    fall = fall if begins is None else fall.masked_fill(begins, FAR)
    steps = math.isqrt(n - 1) + 1
    chunks = -(-n // steps)
    fall, x = (_pad_length(t, chunks * steps - n).unflatten(0, (chunks, steps)).transpose(0, 1) for t in (fall, x))
    inside, falls = [x[0]], [fall[0]]
    for down, own in zip(fall.unbind(0)[1:], x.unbind(0)[1:], strict=True):
        inside.append(torch.maximum(inside[-1] - down, own))
        falls.append(falls[-1] + down)
    before = [start]
    for down, own in zip(falls[-1][:-1], inside[-1][:-1], strict=True):
        before.append(torch.maximum(before[-1] - down, own))
    found = torch.maximum(torch.stack(inside), torch.stack(before) - torch.stack(falls))
    return found.transpose(0, 1).flatten(0, 1)[:n]
