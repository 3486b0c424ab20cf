"""Merge attention to disjoint sets of keys."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from einops import rearrange, reduce
from torch import Tensor


def merge_outputs(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention to all keys, from attention to disjoint sets of them; exact for every partition.

        o = sum_r softmax_r(z) o_r,   z = logsumexp_r(z)

    parts      pairs of outputs o_r (... i d) and log-sums z_r (... i): the logarithm of what the softmax divided by,
               -inf where no key is visible, and then the output does not count
    returns    such a pair; a row that sees no key at all gives zeros and -inf
    """
    outs, lse = (torch.stack(each) for each in zip(*parts, strict=True))
    total = lse.logsumexp(dim=0)
    fully_masked = lse == -torch.inf
    # -inf - -inf has no value, and no gradient
    weights = (lse - total.masked_fill(total == -torch.inf, 0.0)).exp()
    weights = rearrange(weights, 'r ... i -> r ... i 1').to(outs.dtype)
    outs = outs.masked_fill(rearrange(fully_masked, 'r ... i -> r ... i 1'), 0.0)
    return reduce(weights * outs, 'r ... -> ...', 'sum'), total
