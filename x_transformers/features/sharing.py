"""Fewer heads of keys and values, from a model that has learned with more."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from x_transformers.features.sparse.converting import Net, rebuild_, stack_of
from x_transformers.flags import size


def mean_pool_kv_heads_(net: Net, kv_heads: int) -> Net:
    """Let query heads of a built model, or a stack, share keys and values, in place: `attn_kv_heads`. To be trained on.

    A head of keys becomes the mean of those whose queries it will serve: query head i reads key head i mod `kv_heads`.
    Where these were alike, nothing changes. Parameters of keys and values are new tensors: an optimizer comes after
    this. `model.config` changes along.  Ainslie et al. 2023, arXiv:2305.13245

    raises   TypeError if `net` has no stack; ValueError for a number that does not divide the heads that there are, or
             flags that do not go with shared keys, before anything is changed
    """
    stack = stack_of(net)
    if not size.test(kv_heads):
        raise ValueError(f'`kv_heads` got {kv_heads!r}, it must be {size.words}')
    for layer in stack.current_layers():
        known = getattr(layer[1], 'kv_heads', kv_heads) if layer.kind == 'a' else kv_heads
        if known % kv_heads:
            raise ValueError(f'`kv_heads` got {kv_heads}, it must divide the heads of keys that there are, {known}')
    given = stack.__dict__['_given']
    rebuild_(stack, {**dict.fromkeys(('attn_one_kv_head',) if 'attn_one_kv_head' in given else (), False),
                     'attn_kv_heads': kv_heads}, pool_)  # fmt: skip
    return net


@torch.no_grad()
def pool_(stack: Any, shapes: dict[str, torch.Size]) -> None:
    """Bring parameters to the shapes that a stack was made with: means over what belongs to the same head."""
    for name, tensor in list(stack.named_parameters()):
        wanted = shapes[name]
        if tensor.shape == wanted:
            continue
        axis = next(at for at, (own, other) in enumerate(zip(tensor.shape, wanted, strict=True)) if own != other)
        pooled = tensor.unflatten(axis, (-1, wanted[axis])).mean(dim=axis)
        if pooled.shape != wanted:
            raise ValueError(f'`{name}` of shape {tuple(tensor.shape)} is no row of heads that could be shared')
        path, _, own = name.rpartition('.')
        setattr(stack.get_submodule(path), own, nn.Parameter(pooled, tensor.requires_grad))
