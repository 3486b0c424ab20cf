"""Change a built model in place: give it a sparse pattern, or fewer heads of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from x_transformers.features.patterns import SparsePattern
from x_transformers.features.positions import AbsolutePositionalEmbedding
from x_transformers.flags import ConfigError, Configurable, format_value, is_int, size

Net = TypeVar('Net', bound=nn.Module)
Finish = Callable[[Any, dict[str, torch.Size]], None]


def sparsify_(net: Net, pattern: Any, max_seq_len: int | None = None) -> Net:
    """Give a built model, or a stack, another pattern, in place: `attn_sparse_pattern`.  Beltagy et al. 2020,
    arXiv:2004.05150

    Parameters stay what they are, the same tensors under the same names; those that the pattern brings are copies, such
    as projections of global tokens, and those that only an earlier pattern had are gone. `model.config` changes along.

    pattern       a pattern, its name or dict, one for each layer; None for none
    max_seq_len   a longer one: the table of absolute positions is repeated, P'[p] = P[p mod n]

    raises        ValueError if other flags cannot be combined with the pattern, before anything is changed
    """
    stack = get_stack(net)
    if max_seq_len is not None:
        check_length(net, max_seq_len)
    rebuild_(stack, {'attn_sparse_pattern': pattern})
    if max_seq_len is not None:
        repeat_positions(net, max_seq_len)
    return net


def get_stack(net: Any) -> Any:
    """Return the stack of a model, or the stack itself.  Raises TypeError for what is neither."""
    stack = getattr(net, 'attn_layers', net)
    if not isinstance(stack, Configurable) or not hasattr(stack, 'layers_execute_order'):
        raise TypeError(f'`net` must be a stack, or a model around one{inner_models(net)}, got {format_value(net)}')
    return stack


def rebuild_(stack: Any, flags: dict[str, Any], finish: Finish | None = None) -> None:
    """Make a stack what it would be with other flags, with the parameters that it has.

    finish   is given the new stack with them, and the shapes that it was made with, before anything is changed
    """
    with torch.random.fork_rng(devices=[]):
        new = type(stack)(**{**stack.__dict__['_given'], **flags})
    shapes = {name: tensor.shape for name, tensor in new.state_dict().items()}
    adopt(new, stack)
    if finish is not None:
        finish(new, shapes)
    stack.__dict__.update(new.__dict__)
    stack.__dict__['features'] = new.features.rebind(stack)


def inner_models(net: Any) -> str:
    """Return which parts of a model are what is asked for."""
    parts = net.named_modules() if isinstance(net, nn.Module) else ()
    around = [name for name, part in parts if isinstance(getattr(part, 'attn_layers', None), nn.Module)]
    outer = [name for name in around if not any(name.startswith(f'{other}.') for other in around)]
    return f': ask it of its {" and its ".join(f"`{name}`" for name in outer)}' if outer else ''


def adopt(new: nn.Module, old: nn.Module) -> None:
    """Copy the parameters, buffers and hooks of a module to another one that may have more."""
    theirs = dict(old.named_modules(remove_duplicate=False))
    ours = dict(new.named_modules(remove_duplicate=False))
    tensors = {**dict(old.named_parameters(remove_duplicate=False)), **dict(old.named_buffers(remove_duplicate=False))}
    like = next(old.parameters())
    for name, module in theirs.items():
        if name not in ours and name.rpartition('.')[2] in SparsePattern.brings:
            continue
        held = {*module._parameters, *(module._buffers.keys() - module._non_persistent_buffers_set)}
        held.difference_update(SparsePattern.brings)
        other = ours.get(name)
        lost = None if other is None else next((one for one in held if not hasattr(other, one)), None)
        if type(other) is not type(module) or lost is not None:
            part = '.'.join(filter(None, (name, lost)))
            raise ConfigError(
                f'`{part}` was changed after it was built: a new stack has no such {type(module).__name__}'
            )
    for name, module in ours.items():
        redrawn = get_pattern(module) != get_pattern(theirs.get(name))
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for kept in tables:
            for own, tensor in kept.items():
                full = f'{name}.{own}' if name else own
                stays = full in tensors and not (redrawn and own == 'random_blocks')
                kept[own] = tensors[full] if stays else fresh(tensor, full, tensors, like)
        if name in theirs:
            state = vars(theirs[name])
            vars(module).update({key: value for key, value in state.items() if 'hooks' in key or key == 'training'})


def get_pattern(module: nn.Module | None) -> Any:
    """Return the pattern of a layer, None for none."""
    found = getattr(module, 'features', None)
    return None if found is None else getattr(found.find(SparsePattern), 'pattern', None)


def fresh(tensor: Tensor | None, name: str, tensors: dict[str, Tensor], like: Tensor) -> Tensor | None:
    """Return a tensor that only the new module has: a copy of the one that it is for, or as it was made."""
    if tensor is None:
        return None
    beside = tensors.get(name.replace('_global.', '.')) if '_global.' in name else None
    value = tensor.detach() if beside is None else beside.detach().clone()
    value = value.to(like.device, like.dtype) if value.is_floating_point() else value.to(like.device)
    learns = (tensor if beside is None else beside).requires_grad
    return nn.Parameter(value, learns) if isinstance(tensor, nn.Parameter) else value


def check_length(net: Any, length: Any) -> None:
    if not is_int(length):
        raise TypeError(f'`max_seq_len` must be an integer, got {format_value(length)}')
    known = getattr(net, 'max_seq_len', None)
    if known is None:
        raise ValueError(f'`max_seq_len` is no argument of a {type(net).__name__}, it is one of the model around it')
    if length < known:
        raise ValueError(f'`max_seq_len` must be at least what it is, {known}, got {length}')
    if getattr(net, 'axial_abs_pos_emb', None) and length > known:
        raise ValueError('`max_seq_len` cannot be combined with `axial_abs_pos_emb`, whose axes have their lengths')


def repeat_positions(net: Any, length: int) -> None:
    """Repeat the table of absolute positions up to a length."""
    net.__dict__['_given']['max_seq_len'] = net.max_seq_len = length
    table = getattr(net, 'pos_emb', None)
    if not isinstance(table, AbsolutePositionalEmbedding) or table.max_seq_len == length:
        return
    weight = table.emb.weight
    longer = weight.detach().repeat(-(-length // len(weight)), 1)[:length].clone()
    table.emb.weight = nn.Parameter(longer, weight.requires_grad)
    table.emb.num_embeddings = table.max_seq_len = length


def mean_pool_kv_heads_(net: Net, kv_heads: int) -> Net:
    """Let query heads of a built model, or a stack, share keys and values, in place: `attn_kv_heads`. To be trained on.

    A head of keys becomes the mean of those whose queries it will serve: query head i reads key head i mod `kv_heads`.
    Where these were alike, nothing changes. Parameters of keys and values are new tensors: an optimizer comes after
    this. `model.config` changes along.  Ainslie et al. 2023, arXiv:2305.13245

    raises   TypeError if `net` has no stack; ValueError for a number that does not divide the heads that there are, or
             flags that cannot be combined with shared keys, before anything is changed
    """
    stack = get_stack(net)
    if not size.test(kv_heads):
        raise ValueError(f'`kv_heads` must be {size.words}, got {kv_heads!r}')
    for layer in stack.current_layers():
        known = getattr(layer[1], 'kv_heads', kv_heads) if layer.kind == 'a' else kv_heads
        if known % kv_heads:
            raise ValueError(f'`kv_heads` must divide the heads of keys that there are, {known}, got {kv_heads}')
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
