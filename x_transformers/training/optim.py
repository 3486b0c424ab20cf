"""Optimizer helpers: groups by weight decay, matrices for Muon, and clipping of attention logits.

The method `qk_clip_` of the modules stands here as a function, and what `muon_parameters` of a stack gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from x_transformers.cache import LayerIntermediates
from x_transformers.core.intermediates import Intermediates
from x_transformers.core.own_modules import known_stack
from x_transformers.flags import format_value, is_number
from x_transformers.flags.configurable import muon_parameters_inside
from x_transformers.flags.unexpected import answering

if TYPE_CHECKING:
    from x_transformers.x_transformers import Attention, AttentionLayers as Stack


def get_weights(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the weights of all linear layers inside a module, each once, including stacks of matrices (x, o, i)."""
    inside = (m for module in modules for m in module.modules())
    found: Any = (m.weight for m in inside if isinstance(m, nn.Linear) or getattr(m, 'matrices', False))
    return [weight for weight in dict.fromkeys(found) if weight.numel()]


# groups of parameters

LAYERS = (nn.Linear, nn.Bilinear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
TABLES = ('emb', 'embs', 'embed', 'embeds', 'embedding', 'embeddings')  # ends of names of modules


def is_norm(module: nn.Module) -> bool:
    return any('Norm' in kind.__name__ or 'DynamicTanh' in kind.__name__ for kind in type(module).__mro__)


def is_table(module: nn.Module, path: str) -> bool:
    """Return whether a module holds a table of embeddings, by its class, or by its name in a model."""
    if isinstance(module, LAYERS):
        return False
    named = any('Embedding' in kind.__name__ for kind in type(module).__mro__)
    return named or any(part.split('_')[-1].lower() in TABLES for part in path.split('.'))


def decays(module: nn.Module, path: str, name: str, parameter: Tensor) -> bool:
    """Return whether a parameter of a module, at a path in a model, is the weight of a layer."""
    if parameter.ndim < 2 or is_norm(module) or is_table(module, path):
        return False
    if '.parametrizations.' in f'.{path}.':  # of a weight with a norm, for one
        *_, name = path.split('.')
        return 'weight' in name and sum(size > 1 for size in parameter.shape) > 1
    return 'weight' in name.split('_')


@answering
def param_groups(model: nn.Module, weight_decay: float = 0.1) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer of PyTorch, in which the weights of layers decay, and nothing else.

    Weights of linear layers, convolutions and experts decay. Biases, norms, embeddings, positions, scales, memory
    tokens and other vectors do not. A table of embeddings that is also the output head is an embedding.

        optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.1), lr=3e-4)

    Args:
        model: Any module. Parameters that are frozen are left out, those that are shared are there once.
        weight_decay: That of the first group, at least 0.

    Returns:
        At most two groups with `params`, `weight_decay`, `name` ('decay' or 'no_decay') and `param_names`.

    Raises:
        TypeError: `model` is no module, or `weight_decay` is no number.
        ValueError: `weight_decay` is below 0, or no parameter learns.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f'`model` must be a module, got {format_value(model)}')
    if not is_number(weight_decay):
        raise TypeError(f'`weight_decay` must be a number, got {format_value(weight_decay)}')
    if not weight_decay >= 0:
        raise ValueError(f'`weight_decay` must be at least 0, got {weight_decay}')
    found: dict[nn.Parameter, tuple[str, bool]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.requires_grad:  # of several places, all must agree that it decays
                first, so_far = found.get(parameter, (f'{path}.{name}' if path else name, True))
                found[parameter] = first, so_far and decays(module, path, name, parameter)
    if not found:
        raise ValueError('`model` has no parameter that learns')
    groups = []
    for kind, share in (('decay', weight_decay), ('no_decay', 0.0)):
        chosen = {p: name for p, (name, decay) in found.items() if decay == (kind == 'decay')}
        names = dict(params=[*chosen], weight_decay=float(share), name=kind, param_names=[*chosen.values()])
        groups += [names] if chosen else []
    return groups


class UpdatesStack:
    """Mixin with the parameter groups and updates of a model with a stack, `attn_layers`."""

    attn_layers: Stack

    def attn_qk_clip_(self, intermediates: LayerIntermediates, tau: float = 100.0) -> None:
        """Shrink queries and keys of the heads whose logits exceeded `tau` in a forward pass."""
        known_stack(self.attn_layers).attn_qk_clip_(intermediates, tau)


def muon_parameters(stack: Stack, queries_and_keys: bool = False) -> list[nn.Parameter]:
    """Return the matrices of all branches of a stack, wrapped or not."""
    return muon_parameters_inside(*(layer[1] for layer in stack.layers), queries_and_keys=queries_and_keys)


def largest_logits(source: Tensor | Intermediates) -> Tensor:
    """Return the largest logit of each head, (h,), without masked keys."""
    logits = source.pre_softmax_attn if isinstance(source, Intermediates) else source
    if not torch.is_tensor(logits) or logits.ndim != 4:
        raise TypeError(
            f'`qk_clip_` must be logits (b, h, i, j), or Intermediates with them, got {format_value(logits)}'
        )
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
    """Multiply each output channel of a projection by a factor."""
    projection.weight *= rows.unsqueeze(-1)
    if projection.bias is not None:
        projection.bias *= rows


def stack_qk_clip_(stack: Stack, intermediates: LayerIntermediates, tau: float) -> None:
    """Apply QK clipping to every attention layer of a stack. A layer that ran several times uses its largest logits."""
    if not isinstance(intermediates, LayerIntermediates):
        raise TypeError(f'`attn_qk_clip_` must be the intermediates of a pass, got {format_value(intermediates)}')
    known: dict[Any, list[Tensor]] = defaultdict(list)
    for inter in intermediates.attn_intermediates or ():
        is_inside = inter.layer_index is not None and inter.layer_index < len(stack.layers)
        modules = stack.layers[inter.layer_index][1].modules() if is_inside else ()
        attention = next((m for m in modules if hasattr(m, 'qk_clip_')), None)
        if attention is None:
            raise ValueError('`attn_qk_clip_` got intermediates that are not of this stack')
        known[attention].append(largest_logits(inter))
    for attention, largest in known.items():
        qk_clip_(attention, torch.stack(largest).amax(dim=0), tau)
