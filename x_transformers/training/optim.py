"""What optimisers ask of a model: which weights are matrices for Muon, and clipping the logits of attention.

The method `qk_clip_` of the modules stands here as a function, and what `muon_parameters` of a stack gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.hosts import Attention, Stack
from x_transformers.core.own_stacks import known_stack
from x_transformers.core.traces import Intermediates
from x_transformers.flags import shown
from x_transformers.flags.configurable import muon_parameters_inside


def weights_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The weights of all linear layers inside, each once; stacks of matrices, (x o i), among them."""
    inside = (m for module in modules for m in module.modules())
    found: Any = (m.weight for m in inside if isinstance(m, nn.Linear) or getattr(m, 'matrices', False))
    return [weight for weight in dict.fromkeys(found) if weight.numel()]


class UpdatesStack:
    """What an optimiser wants of a model with a stack, `attn_layers`."""

    attn_layers: Stack

    def attn_qk_clip_(self, intermediates: LayerIntermediates, tau: float = 100.0) -> None:
        """Shrink queries and keys of the heads whose logits exceeded `tau` in a pass."""
        known_stack(self.attn_layers).attn_qk_clip_(intermediates, tau)


def muon_parameters(stack: Stack, queries_and_keys: bool = False) -> list[nn.Parameter]:
    """The matrices of all branches of a stack, wrapped or not."""
    return muon_parameters_inside(*(layer[1] for layer in stack.layers), queries_and_keys=queries_and_keys)


def largest_logits(source: Tensor | Intermediates) -> Tensor:
    """The largest logit of each head, (h,), hidden keys left out."""
    logits = source.pre_softmax_attn if isinstance(source, Intermediates) else source
    if not torch.is_tensor(logits) or logits.ndim != 4:
        raise TypeError(f'`qk_clip_` got {shown(logits)}, it must be logits (b, h, i, j), or Intermediates with them')
    return logits.detach().amax(dim=(0, 2, 3))


@torch.no_grad()
def qk_clip_(attention: Attention, largest: Tensor, tau: float) -> None:
    """Shrink the queries and keys of the heads whose largest logit is above `tau`, by sqrt(tau / largest) each.

    A key, or a part of it, that several query heads share is left alone, and the query takes the whole factor. In
    place, biases too.  MuonClip: Kimi K2, arXiv:2507.20534
    """
    shape = attention.shape
    largest = largest.to(attention.to_q.weight)
    if largest.shape != (shape.heads,):
        raise ValueError(f'`qk_clip_` got the logits of {len(largest)} heads, the layer has {shape.heads}')
    factor = torch.where(largest > tau, tau / largest, 1.0)
    shared = shape.kv_heads < shape.heads or getattr(attention, 'to_rotated_k', None) is not None
    factor = factor if shared else factor.sqrt()
    widths = getattr(attention, 'head_widths', None) or (shape.dim_head,) * shape.heads
    rows = torch.cat([one.expand(width) for one, width in zip(factor, widths, strict=True)])
    shrink(attention.to_q, rows)
    if not shared:
        own = attention.to_k.weight.shape[0]
        shrink(attention.to_k, rows[:own])
        if own < len(rows):  # key heads that bypass a latent
            shrink(attention.to_rotateable_k, rows[own:])


def shrink(projection: Any, rows: Tensor) -> None:
    """Multiply what a projection gives by a factor for each of its features."""
    projection.weight *= rows.unsqueeze(-1)
    if projection.bias is not None:
        projection.bias *= rows


def stack_qk_clip_(stack: Stack, intermediates: LayerIntermediates, tau: float) -> None:
    """The same for every attention layer of a stack; one that ran several times counts with its largest logits."""
    if not isinstance(intermediates, LayerIntermediates):
        raise TypeError(f'`attn_qk_clip_` got {shown(intermediates)}, it must be the intermediates of a pass')
    known: dict[Any, list[Tensor]] = defaultdict(list)
    for inter in intermediates.attn_intermediates or ():
        if inter.layer_index is None or inter.layer_index >= len(stack.layers):
            raise ValueError('`attn_qk_clip_` got intermediates that are not of this stack')
        branch = stack.layers[inter.layer_index][1]
        attention = next((m for m in branch.modules() if hasattr(m, 'qk_clip_')), None)
        if attention is None:
            raise ValueError('`attn_qk_clip_` got intermediates that are not of this stack')
        known[attention].append(largest_logits(inter))
    for attention, largest in known.items():
        qk_clip_(attention, torch.stack(largest).amax(dim=0), tau)
