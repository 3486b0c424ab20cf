"""Grouped products: each token goes through the weights of the few experts that it was given to, and of no others.

Two ways, of one result. Where the choice can be looked at (on a CPU, outside of graphs and transforms), tokens are
sorted by expert and every expert that has any multiplies its slice: nothing is filled up, no weight is copied. The loop
is over experts, not tokens: `torch._grouped_mm` knows neither float64 nor torch before 2.8, its backward pass refuses
gradients that are expanded, and on a CPU it is no faster. Elsewhere lengths must not depend on data: the sorted tokens
lie in blocks of one expert each, of equal heights, two for each expert at most. A batched product then does up to twice
the work, and gathers up to twice the weights, whatever the choice is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.checks import can_look

Net = Callable[..., Tensor]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer, or one for each block of rows:  (... m d), (... l d), (... l) -> (... m l)."""
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    out = x @ weight.transpose(-2, -1)
    return out if bias is None else out + bias.unsqueeze(-2)


def grouped(x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None]) -> Tensor:
    """What each token's experts make of it:  n d, chosen n k -> n k l.

    `net(rows, *weights)` is an expert, or several in blocks, with its weights; those of all are stacked in `weights`.
    """
    way = in_slices if can_look(chosen) else in_blocks
    return way(x, chosen, experts, net, weights)


def sort(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The order of all choices by expert, and at which place of it each stands."""
    order = chosen.flatten().argsort(stable=True)
    return order, torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))


def in_slices(x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None]) -> Tensor:
    """One product for each expert that has any tokens."""
    order, places = sort(chosen)
    counts = torch.bincount(chosen.flatten(), minlength=experts).tolist()
    parts = x.index_select(0, order // chosen.shape[1]).split(counts)
    # of a stack taken apart the gradient is one stack, of parts picked from it one for each
    own = zip(*(itertools.repeat(None) if t is None else t.unbind() for t in weights), strict=False)
    out = torch.cat([net(part, *of_one) for part, of_one in zip(parts, own, strict=False) if part.shape[0]])
    return out.index_select(0, places).unflatten(0, chosen.shape)


def in_blocks(x: Tensor, chosen: Tensor, experts: int, net: Net, weights: Sequence[Tensor | None]) -> Tensor:
    """One batched product of blocks; what fills them up is never read."""
    (order, places), flat = sort(chosen), chosen.flatten()
    count, picks = flat.shape[0], chosen.shape[1]
    height, many = count // experts + 1, torch.sym_min(count, 2 * experts)
    sizes = torch.zeros(experts, dtype=flat.dtype, device=x.device).scatter_add(0, flat, torch.ones_like(flat))
    first, blocks = sizes.cumsum(0) - sizes, (sizes + height - 1) // height
    ends = blocks.cumsum(0)
    starts, at = ends - blocks, torch.arange(many, device=x.device)
    owner = (at.unsqueeze(-1) >= ends).sum(dim=-1).clamp(max=experts - 1)
    rows = (first[owner] + (at - starts[owner]) * height).unsqueeze(-1) + torch.arange(height, device=x.device)
    rows = order[rows.clamp(max=count - 1)] // picks
    out = net(x[rows], *(None if t is None else t[owner] for t in weights))
    return out.flatten(0, 1)[starts[flat] * height + places - first[flat]].unflatten(0, chosen.shape)
