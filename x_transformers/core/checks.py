"""Checks of arguments and tensors of a call, before anything is computed. Errors name the input, what it got, and what
is allowed. Values are looked at only where that costs no synchronization with a device.

`@checked` on a method that users call checks its arguments by their annotations. A number is left to the method, which
knows its range.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Generator, Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.jit._trace import is_tracing

from x_transformers.core.buffers import Buffer
from x_transformers.core.modes import is_exporting, is_transformed
from x_transformers.flags import Check, Features, format_value, is_int, is_number
from x_transformers.flags.checks import Maybe, refused
from x_transformers.flags.unexpected import is_of_outer_call, unexpected

T = TypeVar('T')

# inputs that every stack takes, whatever its features
STACK_INPUTS = ('pos', 'attn_bias')


def _is_switched_off(name: str, value: Any, features: Features) -> bool:
    """Return True if an input is None and only a feature that is off would read it: then it is no input."""
    return value is None and any(name in feature.call_inputs for feature in features.catalogue)


def check_given(inputs: dict[str, Any], features: Features) -> None:
    """Refuse inputs of another kind than the features that read them take."""
    if torch.compiler.is_compiling():
        return
    for name, value in inputs.items():
        judge = None if value is None else features.input_checkers.get(name)
        check = None if judge is None else judge.call_inputs[name].check
        if check is not None and (reason := refused(check, name, value)):
            raise (ValueError if torch.is_tensor(value) else TypeError)(reason)


def check_inputs(inputs: dict[str, Any], features: Features, own: tuple[str, ...], called: nn.Module) -> None:
    """Refuse keywords of a forward call that nothing reads."""
    for name, value in inputs.items():
        if name not in own and name not in features.call_inputs and not _is_switched_off(name, value, features):
            declared = (
                n for n, p in inspect.signature(called.forward).parameters.items() if p.kind is not p.VAR_KEYWORD
            )
            known = itertools.chain(declared, own, features.call_inputs)
            raise unexpected(called, 'forward', name, value, known, _find_unused_inputs(called, name))
    check_given(inputs, features)


def _find_unused_inputs(module: Any, name: str) -> str:
    """Return which feature would read an input, if the user's `features` leave it out."""
    absent = (cls for cls in type(module).catalogue if cls not in module.features.catalogue)
    reader = next((cls for cls in absent if name in cls.call_inputs), None)
    return '' if reader is None else f': `features` leaves out {reader.__name__}, which reads it, see `extend`'


def check_model_inputs(model: Any, stack: Any, inputs: dict[str, Any]) -> None:
    """Refuse keywords of a model's forward call that its stack does not know, and drop those that are off."""
    for name, value in list(inputs.items()):
        if name in stack.input_names or _is_switched_off(name, value, stack.features):
            continue
        if _is_switched_off(name, value, model.features) or (value is None and not isinstance(stack, nn.Module)):
            del inputs[name]
        else:
            known = {n for n, p in inspect.signature(model.forward).parameters.items() if p.kind is not p.VAR_KEYWORD}
            known |= model.features.call_inputs | stack.input_names
            raise unexpected(model, 'forward', name, value, known)


def input_names(stack: Any) -> frozenset[str]:
    """Return the keywords of a stack's forward call."""
    kinds = [kind for kind in type(stack).__mro__ if 'forward' in vars(kind) and kind is not nn.Module]
    declared = [p for kind in kinds for p in inspect.signature(kind.forward).parameters.values()]
    names = {p.name for p in declared if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    return frozenset({*names, *stack.features.call_inputs, *STACK_INPUTS})


def check_list(value: Any, name: str) -> Any:
    """Return `value`.  Raises TypeError unless it is a list, a tuple, or None."""
    if value is not None and not isinstance(value, (list, tuple)):
        raise TypeError(f'`{name}` must be a list with one entry per self-attention, got {format_value(value)}')
    return value


def check_tensor(value: Any, name: str) -> Tensor:
    """Return `value`.  Raises TypeError unless it is a tensor."""
    if not torch.is_tensor(value):
        raise TypeError(f'`{name}` must be a tensor, got {format_value(value)}')
    return value


def can_read_values(t: Tensor) -> bool:
    """Return True if the values of a tensor can be looked at: on the CPU, no subclass that may hold none, and neither
    traced nor one of many in a transform."""
    if torch.compiler.is_compiling() or type(t) not in (Tensor, nn.Parameter):
        return False
    if t.device.type != 'cpu' or t.numel() == 0 or is_tracing():
        return False
    return not is_functorch_wrapped_tensor(t) and torch._C._len_torch_dispatch_stack() == 0


def values_of(value: Any, name: str) -> Tensor:
    """Convert a tensor or lists of real numbers to a tensor."""
    try:
        t = torch.as_tensor(value)
        if not torch.is_tensor(value) and t.is_floating_point():  # with no fewer digits than float32
            t = torch.as_tensor(value, dtype=torch.promote_types(t.dtype, torch.float32))
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f'`{name}` must be numbers, a tensor or lists of them, got {format_value(value)}') from None
    if t.is_complex():
        raise TypeError(f'`{name}` must be real numbers, got {t.dtype}')
    return t


def as_number(value: Any) -> Any:
    """Return the number that a tensor or an array of one entry holds; anything else as it is."""
    if isinstance(value, (torch.Tensor, np.ndarray)) and math.prod(value.shape) == 1:
        return value.item()
    return value


def _format_sizes(*wanted: int | str | None) -> str:
    words = ['any' if want is None else str(want) for want in wanted]
    return f'({", ".join(words)}{"," if len(words) == 1 else ""})'


def _matches_shape(t: Tensor, wanted: Sequence[int | str | None]) -> bool:
    """Return True if a tensor has the wanted sizes; None, or a letter, is any."""
    if t.ndim != len(wanted):
        return False
    for want, got in zip(wanted, t.shape, strict=True):
        if isinstance(want, int) and got != want:
            return False
    return True


def check_vectors(x: Any, name: str, *wanted: int | str, like: Tensor | None = None) -> Tensor:
    """Return `x`.  Raises unless it is a floating point tensor of the wanted sizes, on the device of `like`."""
    if not check_tensor(x, name).is_floating_point():
        raise TypeError(f'`{name}` must be floating point, got {x.dtype}')
    if not _matches_shape(x, wanted):
        raise ValueError(f'`{name}` must have shape {_format_sizes(*wanted)}, got {tuple(x.shape)}')
    if like is not None:
        check_device(x, name, like)
    return x


def input_width(t: Tensor, built: int, *modules: Any) -> int:
    """Return the width that vectors must have: that of the layer, or of a projection that replaced its own."""
    if torch.is_tensor(t) and t.ndim > 0 and t.shape[-1] != built:
        for module in modules:
            first = (
                first_tensor(m for m in module.modules() if isinstance(m, nn.Linear)) if module is not None else None
            )
            if first is not None and first.in_features == t.shape[-1]:
                return first.in_features
    return built


def check_broadcast(t: Tensor, name: str, to: Tensor) -> None:
    """Refuse what does not broadcast to the shape of `to`."""
    shape = (1,) * (to.ndim - t.ndim) + tuple(t.shape)
    if len(shape) != to.ndim or any(a not in (1, b) for a, b in zip(shape, to.shape, strict=True)):
        raise ValueError(f'`{name}` must broadcast to {tuple(to.shape)}, got shape {tuple(t.shape)}')
    check_digits(t, name, to)


def first_tensor(found: Iterable[T]) -> Maybe[T]:
    """Return the first item or None. Not all releases of torch can compile `next` with a default."""
    for one in found:
        return one
    return None


def find_weights(module: nn.Module) -> tuple[Tensor, ...]:
    """Return the parameters of a module, or the plain tensors that a replica of `nn.DataParallel` has instead."""
    replicas = (getattr(one, '_former_parameters', {}) for one in module.modules())
    return (*module.parameters(), *(t for held in replicas for t in held.values()))


def check_weight(x: Tensor, weight: Any) -> None:
    """Refuse an input in another precision than the first weight that it meets, outside of autocast."""
    if torch.compiler.is_compiling() or not torch.is_tensor(weight) or weight.dtype == x.dtype:
        return
    if weight.is_floating_point() and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(f'`x` got {x.dtype}, the weights are {weight.dtype}: convert one of them, or use autocast')


def check_digits(t: Tensor, name: str, like: Tensor) -> None:
    """Refuse what would bring an input to another precision, outside of autocast."""
    if torch.promote_types(t.dtype, like.dtype) != like.dtype and not torch.is_autocast_enabled(t.device.type):
        raise ValueError(f'`{name}` got {t.dtype}, the input is {like.dtype}: convert one of them, or use autocast')


def match_precision(x: Tensor, module: Any, name: str = 'x') -> Tensor:
    """Convert an input to the dtype of the weights, outside of autocast.  Raises ValueError if it would lose digits."""
    if torch.compiler.is_compiling():
        return x
    first = _first_parameter(module)
    if first is None or first.dtype == x.dtype or torch.is_autocast_enabled(x.device.type):
        return x
    return _convert_to_weights(x, module, first.dtype, name)


def _convert_to_weights(x: Tensor, module: Any, dtype: torch.dtype, name: str) -> Tensor:
    """Convert an input to the dtype of the weights, if all of them have it."""
    if any(p.dtype != dtype for p in module.parameters() if p.is_floating_point()):
        return x
    if torch.promote_types(x.dtype, dtype) != dtype:
        raise ValueError(f'`{name}` must be {dtype}, as the weights are, got {x.dtype}: convert one, or use autocast')
    return x.to(dtype)


def expand_batch(t: Any, rows: int) -> Any:
    """Expand a tensor (1, ...) to the batch size `rows`; return anything else as it is."""
    return t.expand(rows, *t.shape[1:]) if torch.is_tensor(t) and t.ndim > 1 and t.shape[0] == 1 else t


def _first_parameter(module: nn.Module) -> Tensor | None:
    """Return a parameter of a module. It is searched for only once, since the search takes as long as a small layer."""
    if 'keeps_a_parameter' not in module.__dict__:
        found = ((m, name) for m in module.modules() for name, p in m._parameters.items() if p is not None)
        module.__dict__['keeps_a_parameter'] = next(found, None)
    place = module.__dict__['keeps_a_parameter']
    return None if place is None else place[0]._parameters.get(place[1])


def check_device(t: Tensor, name: str, like: Tensor) -> None:
    if t.device != like.device:
        raise ValueError(f'`{name}` is on {t.device}, it must be on {like.device}, where the input is')


def as_mask(mask: Any, name: str, *wanted: int | str | None, like: Tensor | None = None) -> Maybe[Tensor]:
    """Check the shape of a mask, and return it as booleans. None in `wanted` allows any length."""
    if mask is None:
        return None
    if not _matches_shape(check_tensor(mask, name), wanted):
        raise ValueError(
            f'`{name}` must have shape {_format_sizes(*wanted)}, got {tuple(mask.shape)}: True is a real token'
        )
    if like is not None:
        check_device(mask, name, like)
    return boolean_mask(mask, name)


def extend_mask(mask: Any, name: str, batch: int, new: int, held: int, *, may_hide: bool = False) -> Any:
    """Return a mask (b, new) of new tokens beside `held` cached ones as one of all, where the cached ones are real.

    Unless it `may_hide`, one that hides some of the new tokens is refused where it can be looked at: callers for whom
    masks broadcast may have meant cached ones. Any other mask is returned as it is.
    """
    beside = held > 0 and torch.is_tensor(mask) and mask.ndim == 2 and mask.shape[0] in (1, batch)
    if not beside or mask.shape[1] != new:
        return mask
    if not may_hide and can_read_values(mask) and not bool(mask.all()):
        raise ValueError(
            f'`{name}` must have shape {(batch, held + new)} with a cache, one entry per token, cached and new, got '
            f'{tuple(mask.shape)}, which hides some of the new tokens'
        )
    return F.pad(mask.expand(batch, -1), (held, 0), value=True)


def check_documents(ids: Any, like: Tensor) -> Tensor:
    """Return `ids`.  Raises unless they are one whole number for each token of `like`, (b, n, ...)."""
    shape = tuple(like.shape[:2])
    whole = not (check_tensor(ids, 'document_ids').is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if not whole or tuple(ids.shape) != shape:
        raise ValueError(
            f'`document_ids` must be whole numbers of shape {shape}, got {ids.dtype} of shape {tuple(ids.shape)}'
        )
    check_device(ids, 'document_ids', like)
    return ids


def boolean_mask(mask: Tensor, name: str) -> Tensor:
    """Convert a mask to booleans.  Raises TypeError for additive masks, whose 0 and -inf would mean the opposite."""
    if mask.is_floating_point() or mask.is_complex():
        raise TypeError(
            f'`{name}` must be boolean (True may be attended), got {mask.dtype}: add numbers with `attn_bias`'
        )
    return mask if mask.dtype == torch.bool else mask.bool()


def zero_masked(t: Tensor, token_mask: Tensor | None) -> Tensor:
    """Set hidden tokens of `t`, (b, ..., n, d), to 0 if they are not finite or would overflow; the others stay.

    Masks alone would not keep them from real tokens and parameters: a weight of 0 times NaN is NaN.

    real   b n or more, whose last ones are those of `t`; None for all. Boolean
    """
    n = t.shape[-2]
    if token_mask is None or not t.is_floating_point() or token_mask.shape[1] < n:
        return t
    token_mask = (
        token_mask[:, token_mask.shape[1] - n :].bool().unflatten(0, (token_mask.shape[0], *[1] * (t.ndim - 3)))
    )
    largest = torch.linalg.vector_norm(t.detach(), torch.inf, dim=-1)
    most = torch.finfo(torch.promote_types(t.dtype, torch.float32)).max ** 0.25
    return t.masked_fill(~(token_mask | (largest < most)).unsqueeze(-1), 0.0)


def check_scores(t: Tensor, name: str, batch: int, heads: int, rows: int) -> None:
    """Refuse a mask or bias of attention, (b h i j), that does not broadcast to the scores."""
    for axis, (what, wanted) in enumerate((('batch', batch), ('heads', heads), ('queries', rows))):
        if t.shape[axis] not in (1, wanted):
            raise ValueError(f'`{name}` must have {wanted} {what}, or 1 for all of them, got {t.shape[axis]}')


def _to_integers(x: Tensor) -> Tensor:
    """Convert floating point token ids that are whole numbers to integers; return anything else as it is."""
    if not x.is_floating_point():
        return x
    return x if can_read_values(x) and bool((x.frac() != 0).any()) else x.long()


def check_ids(
    x: Any, name: str = 'x', least: int = 0, num_tokens: int | None = None, besides: int | None = None
) -> Tensor:
    """Return token ids (b, n) as int64, n of at least `least`, all below `num_tokens`; `besides` is allowed too.

    raises     TypeError if it is no tensor of whole numbers, ValueError for another shape or ids out of range
    """
    x = _to_integers(check_tensor(x, name))
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f'`{name}` must hold integer token ids, got {x.dtype}')
    if x.ndim != 2 or x.shape[1] < least:
        length = f' with n of at least {least}' if least else ''
        raise ValueError(f'`{name}` must be token ids (b, n){length}, got shape {tuple(x.shape)}')
    if num_tokens is not None:
        others = x[x != besides] if besides is not None and can_read_values(x) else x
        check_range(others, name, 0, num_tokens - 1, 'token ids')
    return x.long()


def check_real_first(mask: Tensor, name: str, why: str) -> None:
    """Refuse a mask (b n) in which hidden entries stand before real ones.  On a GPU, too, since nothing else would."""
    words = f'`{name}` hides entries in front of real ones, it must be True up to the length of each row: {why}'
    if mask.shape[-1] < 2:
        return
    ordered = mask[:, :-1] | ~mask[:, 1:]
    if is_exporting():
        torch._assert_async(ordered.all(), words)  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
    on_gpu = ordered.device.type == 'cuda' and not torch.compiler.is_compiling() and not is_transformed()
    if (can_read_values(ordered) or on_gpu) and not bool(ordered.all()):
        raise ValueError(words)


def check_range(t: Tensor, name: str, low: int, high: int | None, what: str) -> None:
    """Refuse whole numbers outside of low..high."""
    if not can_read_values(t):
        return
    lowest, highest = t.aminmax()
    least, most = int(lowest), int(highest)
    if least < low or (high is not None and most > high):
        allowed = f'at least {low}' if high is None else f'from {low} to {high}'
        raise ValueError(f'`{name}` must be {allowed}, got {what} from {least} to {most}')


def check_offset(offset: Any, name: str) -> None:
    """Refuse an offset of positions that is neither an integer nor a tensor of one whole number, () or (1,).

    A program that is exported with a cache has its length as a tensor, since a number would be a constant of the graph.
    """
    of_one = torch.is_tensor(offset) and offset.numel() == 1 and offset.ndim < 2
    whole = of_one and not (offset.is_floating_point() or offset.is_complex() or offset.dtype == torch.bool)
    if not (whole or is_int(offset) or isinstance(offset, torch.SymInt)):
        got = f'{offset.dtype} of shape {tuple(offset.shape)}' if torch.is_tensor(offset) else format_value(offset)
        raise TypeError(f'`{name}` must be an integer, or a tensor of one, got {got}')


def make_positions(start: int | Tensor, count: int, device: Any, before: int = 0) -> Tensor:
    """Return the positions of `count` tokens from `start` on and of `before` earlier ones, (before + count,).

    `start` may be a tensor of one whole number, () or (1,), whose value is not looked at.
    """
    if not torch.is_tensor(start):
        return torch.arange(start - before, start + count, device=device)
    return torch.arange(-before, count, device=device) + start.to(device)


def is_above(length: int | Tensor, most: int) -> bool:
    """Return True if a length is known to be above `most`; that of a tensor is known where it can be looked at."""
    if not torch.is_tensor(length):
        return length > most
    return can_read_values(length) and bool(length > most)


def check_lengths(value: Any, name: str, batch: int, high: int | None = None) -> None:
    """Refuse what is not one whole number in 0..high for each row of the batch."""
    if check_tensor(value, name).shape != (batch,):
        raise ValueError(f'`{name}` must have shape ({batch},), got {tuple(value.shape)}')
    if value.is_floating_point() or value.dtype == torch.bool:
        raise TypeError(f'`{name}` must be whole numbers, got {value.dtype}')
    check_range(value, name, 0, high, 'numbers')


def mask_from_lengths(lens: Tensor, n: int) -> Tensor:
    """Return which of n places lie within the lengths of rows, (b):  b n"""
    return torch.arange(n, device=lens.device) < rearrange(lens, 'b -> b 1')


def check_prefix(value: Any, name: str, batch: int, length: int) -> None:
    """Check prefix lengths: one number for all sequences, or one per sequence, from 0 to `length`."""
    if torch.is_tensor(value) and value.ndim:
        return check_lengths(value, name, batch, length)
    number = value.item() if torch.is_tensor(value) and can_read_values(value) else value
    if not torch.is_tensor(number) and not (is_int(number) and 0 <= number <= length):
        raise ValueError(f'`{name}` must be an integer from 0 to {length}, or one per row, got {format_value(value)}')
    return None


def check_memories(mems: Any, masks: Any, batch: int, dim: int, layers: int) -> None:
    """Refuse memories that do not fit: one (b l d) or None for each self-attention, all of one length."""
    for name, value in (('mems', mems), ('mem_masks', masks)):
        check_list(value, name)
    if mems and len(mems) != layers:
        raise ValueError(f'`mems` must have {layers} entries, one per self-attention, got {len(mems)}')
    for at, mem in enumerate(mems):
        if mem is not None:
            check_vectors(mem, f'mems[{at}]', batch, 'l', dim)
    lengths = [mem.shape[1] for mem in mems if mem is not None]  # a symbolic one has no hash
    if any(length != lengths[0] for length in lengths):
        raise ValueError(f'`mems` got memories of {sorted({*lengths})} tokens, all layers must have equally many')
    if masks and len(masks) != len(mems):
        raise ValueError(f'`mem_masks` got {len(masks)} masks for {len(mems)} memories')
    for at, (mask, mem) in enumerate(zip(masks, mems, strict=False)):
        if mask is not None and mem is not None:
            as_mask(mask, f'mem_masks[{at}]', batch, mem.shape[1])


def check_past(new: Sequence[Tensor | None], past: Sequence[Maybe[Buffer]]) -> None:
    """Refuse the past of a layer of other sizes: rows (... n d) may differ in their number only; and outside of
    autocast, of another dtype."""
    for t, kept in zip(new, past, strict=True):
        held = None if kept is None else kept.storage.tensor
        fits = t is held is None
        if held is not None and t is not None:
            fits = held.shape[-1] == t.shape[-1] and held.shape[:-2] == t.shape[:-2]
        if not fits:
            raise ValueError(
                f'`cache` holds {None if kept is None else tuple(kept.tensor.shape)}, '
                f'the layer adds {None if t is None else tuple(t.shape)}: it is of another model, or batch'
            )
        if t is None or held is None:
            continue
        if held.device != t.device:
            raise ValueError(f'`cache` is on {held.device}, it must be on {t.device}, where the input is')
        if held.dtype != t.dtype and not torch.is_autocast_enabled(t.device.type):
            raise ValueError(f'`cache` holds {held.dtype}, the layer adds {t.dtype}: read the prompt again')


def is_overridden_together(cls: type, name: str, *others: str) -> bool:
    """Return True if `name` is defined no further up than all others, so that no subclass changed these alone."""
    at = {n: i for i, base in reversed([*enumerate(cls.__mro__)]) for n in vars(base)}
    return all(at[name] <= at.get(other, len(at)) for other in others)


def first_positions(pos: Tensor, token_mask: Tensor | None = None) -> Tensor:
    """Return the position of the first real token of each sequence, (..., n) -> (..., 1), 0 where there is none.

    pos    n | b n | b h n
    real   b n, or of the last tokens alone; None: all are. Of positions that all rows share, the first one counts
    """
    if pos.shape[-1] == 0:
        return pos.new_zeros(*pos.shape[:-1], 1)
    if token_mask is None or pos.ndim == 1:
        return pos[..., :1]
    token_mask = F.pad(token_mask, (pos.shape[-1] - token_mask.shape[-1], 0), value=True)
    first = token_mask.long().argmax(dim=-1, keepdim=True)
    pos = pos.expand(first.shape[0], *pos.shape[1:])
    return pos.gather(-1, first if pos.ndim == 2 else first.unsqueeze(1).expand(-1, pos.shape[1], -1))


def prepend_positions(pos: Tensor, count: int, token_mask: Tensor | None = None) -> Tensor:
    """Prepend the positions of `count` tokens right in front of each sequence, (..., n) -> (..., count + n)."""
    if count == 0:
        return pos
    front = first_positions(pos, token_mask) + torch.arange(-count, 0, device=pos.device)
    return torch.cat((front, pos.expand(*front.shape[:-1], -1)), dim=-1)


# Arguments by their annotations.

Method = TypeVar('Method', bound=Callable[..., Any])


class ChecksOnce:
    """Call that has checked the inputs of its layers: the base of `StackCall`."""


def _is_boolean(value: Any) -> bool:
    if torch.is_tensor(value):
        return value.ndim == 0 and value.dtype == torch.bool
    return value is None or isinstance(value, (bool, np.bool_)) or (is_int(value) and value in (0, 1))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes))


BY_ANNOTATION: dict[Any, Check] = {
    bool: Check('True or False', _is_boolean),
    Tensor: Check('a tensor', torch.is_tensor),
    dict: Check('a dict', lambda value: isinstance(value, Mapping)),
    str: Check('a text', lambda value: isinstance(value, str)),
    Generator: Check('a torch.Generator', lambda value: isinstance(value, Generator)),
    collections.abc.Callable: Check('a callable', callable),
    collections.abc.Mapping: Check('a dict', lambda value: isinstance(value, Mapping)),
    collections.abc.Sequence: Check('a list or tuple', _is_sequence),
    tuple: Check('a list or tuple', _is_sequence),
}


def is_item_count(value: Any) -> bool:
    """Return whether a value is a number of targets: at least 1, or a tensor of one number, which may be 0."""
    if not torch.is_tensor(value):
        return value is None or (is_number(value) and value >= 1)
    token_mask = value.numel() == 1 and value.dtype != torch.bool and not value.is_complex()
    return token_mask and not (can_read_values(value) and not value >= 0)


# Types of which every value is allowed. Most arguments are of one of these.
SURE: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    Tensor: (Tensor, torch.nn.Parameter),
    dict: (dict,),
    str: (str,),
    collections.abc.Mapping: (dict,),
    collections.abc.Sequence: (list, tuple),
    tuple: (list, tuple),
    types.NoneType: (types.NoneType,),
}


class Accepts(NamedTuple):
    """Values that an annotation allows: those of the types `sure`, and others that pass a test."""

    sure: frozenset[type]
    allowed: Check

    def test(self, value: Any) -> bool:
        return type(value) in self.sure or self.allowed.test(value)


# Arguments that are the same in every method, by name.
ASKED = Accepts(
    frozenset((bool, types.NoneType)),
    Check("True, False or 'past'", lambda value: _is_boolean(value) or (isinstance(value, str) and value == 'past')),
)
NAMED = {
    'num_items_in_batch': Accepts(
        frozenset((types.NoneType,)), Check('a number of targets, of at least 1', is_item_count)
    ),
    'return_intermediates': ASKED,
    'return_hiddens': ASKED,
}


def kind_of(annotation: Any) -> Accepts | None:
    """Return the values that an annotation allows, None for numbers and for other annotations."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    parts = typing.get_args(annotation) if is_union else (annotation,)
    parts = [typing.get_origin(part) or part for part in parts]
    known = [BY_ANNOTATION[part] for part in parts if part in BY_ANNOTATION]
    if not known or len(known) + (types.NoneType in parts) < len(parts):
        return None
    sure = frozenset(kind for part in parts for kind in SURE.get(part, ()))
    return Accepts(sure, functools.reduce(Check.__or__, dict.fromkeys(known)))


def _get_kinds(method: Callable[..., Any]) -> dict[str, Accepts]:
    """Return the values that the arguments of a method may have, by name."""
    room, found = {**vars(typing), **getattr(method, '__globals__', {})}, {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name in NAMED:
            found[name] = NAMED[name]
            continue
        annotation = parameter.annotation
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or annotation is parameter.empty:
            continue
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, room)
            except NameError:  # imported for type checkers only
                continue
        kind = kind_of(annotation)
        if kind is not None:
            found[name] = kind
    return found


def _check_kinds_of_arguments(kinds: dict[str, Accepts], arguments: Iterable[tuple[str, Any]]) -> bool:
    """Refuse arguments of another kind than annotated. Return True if their types alone say that they are right."""
    doubtful = [(name, value) for name, value in arguments if name in kinds and type(value) not in kinds[name].sure]
    for name, value in doubtful:
        if not kinds[name].test(value):
            raise TypeError(f'`{name}` must be {kinds[name].allowed.words}, got {format_value(value)}')
    return not doubtful


def checked(method: Method) -> Method:
    """Check the arguments of a method by their annotations, at every call that is not compiled."""
    names = list(inspect.signature(method).parameters)[1:]
    kinds = functools.cache(functools.partial(_get_kinds, method))
    settled: set[tuple[Any, ...]] = set()  # names and types that need no second look

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get('stack_call'), ChecksOnce) or torch.compiler.is_compiling():
            return method(self, *args, **kwargs)
        if kwargs.pop('stack_call', None) is not None:
            raise TypeError('`stack_call` is what a stack tells its layers, it must be left out elsewhere')
        types_given = (*map(type, args), *kwargs, *map(type, kwargs.values()))
        if types_given not in settled:
            arguments = (*zip(names, args), *kwargs.items())  # noqa: B905  too many are Python's own error
            if _check_kinds_of_arguments(kinds(), arguments):
                settled.add(types_given)
        try:
            return method(self, *args, **kwargs)
        except TypeError as error:
            if better := is_of_outer_call(error, self, method, kwargs):
                raise better from None
            raise

    return cast('Method', wrapper)


def check_mask_covers(mask: Tensor, new: int, has_past: bool) -> None:
    """Raise ValueError if a mask (b n) is not one of the new tokens, or of them and those before."""
    if mask.shape[1] < new:
        raise ValueError(f'`mask` must cover all {new} tokens, got shape {tuple(mask.shape)}')
    if mask.shape[1] != new and not has_past:
        raise ValueError(f'`mask` must have shape {(len(mask), new)}, got {tuple(mask.shape)}: True is a real token')


def parts_kept(asked: Any) -> str | None:
    """Return what a call keeps of what it leaves behind: 'past' for the cache alone, 'all' if all is asked for."""
    if isinstance(asked, str) and asked == 'past':
        return 'past'
    return 'all' if asked else None
