"""Small functions that other people's code imports from this package. Ours does without most of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from einops import pack, unpack
from torch import Tensor, nn

T = TypeVar('T')


def exists(val: Any) -> bool:
    return val is not None


def default(val: T | None, d: T) -> T:
    """`val`, or `d` in place of None."""
    return d if val is None else val


def identity(t: T, *args: Any, **kwargs: Any) -> T:
    return t


def cast_tuple(t: Any, length: int = 1) -> tuple:
    """A tuple as it is, anything else `length` times."""
    return t if isinstance(t, tuple) else (t,) * length


def join(arr: Sequence[str], delimiter: str = ', ') -> str:
    return delimiter.join(arr)


def always(val: T) -> Callable[..., T]:
    """A function that gives `val`, whatever it is called with."""
    return lambda *args, **kwargs: val


def equals(val: Any) -> Callable[[Any], bool]:
    return lambda x: x == val


def not_equals(val: Any) -> Callable[[Any], bool]:
    return lambda x: x != val


def pad_at_dim(t: Tensor, pad: tuple[int, int], dim: int = -1, value: float = 0.0) -> Tensor:
    """Pad one axis by (before, after); negative numbers cut."""
    axes_behind = t.ndim - 1 - (dim % t.ndim)
    return F.pad(t, (0, 0) * axes_behind + tuple(pad), value=value)


def pack_one(t: Tensor, pattern: str) -> tuple[Tensor, list]:
    """einops.pack of a single tensor."""
    return pack([t], pattern)


def unpack_one(t: Tensor, shapes: list, pattern: str) -> Tensor:
    """The way back from `pack_one`."""
    return unpack(t, shapes, pattern)[0]


def default_device(device: torch.device | str | None = None) -> torch.device:
    """The device given, or the fastest one that there is: xpu, cuda, mps, cpu."""
    if device is not None:
        return torch.device(device)
    for name in ('xpu', 'cuda', 'mps'):
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available():
            return torch.device(name)
    return torch.device('cpu')


class Identity(nn.Module):
    """Gives its first argument back, whatever else it is called with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, t: T, *args: Any, **kwargs: Any) -> T:
        return t


LinearNoBias = partial(nn.Linear, bias=False)


def first(it: Sequence[T], default: T | None = None) -> T | None:
    """The first of a sequence, or `default` if it is empty."""
    return it[0] if len(it) > 0 else default


def is_empty(x: Sequence[Any]) -> bool:
    return len(x) == 0


def divisible_by(num: int, den: int) -> bool:
    return num % den == 0


def maybe(fn: Callable[..., T] | None = None, default: Any = None) -> Callable[..., Any]:
    """A function that leaves `default` in place of None alone, and is `fn` otherwise; without `fn`, the identity."""

    def applied(t: Any, *args: Any, **kwargs: Any) -> Any:
        if fn is None:
            return t
        return default if t is None else fn(t, *args, **kwargs)

    return applied


def max_neg_value(tensor: Tensor) -> float:
    """The lowest finite number of a tensor's dtype."""
    return -torch.finfo(tensor.dtype).max


def pick_and_pop(keys: Sequence[str], d: dict[str, Any]) -> dict[str, Any]:
    """Take entries out of a dict."""
    return {key: d.pop(key) for key in keys}


def string_begins_with(prefix: str, text: str) -> bool:
    return text.startswith(prefix)


def group_dict_by_key(cond: Callable[[str], bool], d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A dict in two parts: keys that meet a condition, and the others."""
    return {k: v for k, v in d.items() if cond(k)}, {k: v for k, v in d.items() if not cond(k)}


def group_by_key_prefix(prefix: str, d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return group_dict_by_key(lambda key: key.startswith(prefix), d)


def groupby_prefix_and_trim(prefix: str, d: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entries with a prefix, without it, and the others."""
    own, rest = group_by_key_prefix(prefix, d)
    return {key[len(prefix) :]: value for key, value in own.items()}, rest


def or_reduce(masks: Sequence[Tensor]) -> Tensor:
    return reduce(torch.logical_or, masks)


def init_zero_(layer: nn.Module) -> None:
    """Zeros for the weight, and for the bias if there is one, in place."""
    nn.init.zeros_(layer.weight)
    if getattr(layer, 'bias', None) is not None:
        nn.init.zeros_(layer.bias)


def log(t: Tensor, eps: float = 1e-20) -> Tensor:
    """The logarithm, of `eps` at least."""
    return t.clamp(min=eps).log()


def rotate_half(x: Tensor) -> Tensor:
    """Neighbouring features (a, b) as (-b, a)."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    return torch.stack((-b, a), dim=-1).flatten(-2)


def calc_entropy(t: Tensor, is_prob: bool = False) -> Tensor:
    """Entropy of the distributions over the last axis, from logits or probabilities, in nats."""
    prob = t if is_prob else t.softmax(dim=-1)
    return -(prob * log(prob)).sum(dim=-1)


def masked_mean(
    t: Tensor, mask: Tensor | None = None, dim: int | tuple[int, ...] | None = None, eps: float = 1e-5,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    """The mean of what a mask leaves; its axes are the first ones of `t`. Of nothing, 0."""
    axes = tuple(range(t.ndim)) if dim is None else dim
    if mask is None:
        return t.mean(dim=axes, keepdim=keepdim)
    mask = mask[(...,) + (None,) * (t.ndim - mask.ndim)].expand_as(t)
    total = t.masked_fill(~mask, 0.0).sum(dim=axes, keepdim=keepdim)
    return total / mask.to(t.dtype).sum(dim=axes, keepdim=keepdim).clamp(min=eps)


def lens_to_mask(lens: Tensor, max_len: int | None = None) -> Tensor:
    """Lengths (...) as a mask (... n)."""
    length = int(lens.amax()) if max_len is None else max_len
    return torch.arange(length, device=lens.device) < lens.unsqueeze(-1)


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = 'mean', class_dim: int = 1
) -> Tensor:
    """Cross entropy with the classes at any axis."""
    return F.cross_entropy(logits.movedim(class_dim, 1), target, ignore_index=ignore_index, reduction=reduction)


def modify_cached_kv(cache: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Change the keys and values that a pass has left behind, in place."""
    for intermediates in cache.attn_intermediates:
        if intermediates.cached_kv is not None:
            intermediates.cached_kv = tuple(map(fn, intermediates.cached_kv))
    return cache
