"""Small functions that other people's code imports from this package. Ours does without most of them."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator
from functools import partial, reduce, wraps
from inspect import signature
from itertools import chain, pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from einops import pack, rearrange, repeat, unpack
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from x_transformers.core.draws import draw_number
from x_transformers.core.precision import accurate
from x_transformers.features.norms import Identity, l2norm  # noqa: F401

T = TypeVar('T')

# values and types of the original
DEFAULT_DIM_HEAD = DEFAULT_ATTN_RESIDUAL_LORA_RANK = 64
NAT = math.log(2)
LayerRange = int | tuple[int, int]
RepeatBlockSpec = tuple[LayerRange, int]
RepeatBlocks = tuple[RepeatBlockSpec, ...] | RepeatBlockSpec


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


class always:
    """A function that gives `val`, whatever it is called with. Like the two below it can be pickled."""

    def __init__(self, val: Any) -> None:
        self.val = val

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.val


class equals:
    def __init__(self, val: Any) -> None:
        self.val = val

    def __call__(self, x: Any) -> bool:
        return x == self.val


class not_equals(equals):
    def __call__(self, x: Any) -> bool:
        return x != self.val


def pad_at_dim(t: Tensor, pad: tuple[int, int], dim: int = -1, value: float = 0.0) -> Tensor:
    """Pad one axis by (before, after); negative numbers cut."""
    axes_behind = t.ndim - 1 - (dim % t.ndim)
    return F.pad(t, (0, 0) * axes_behind + tuple(pad), value=value)


def pack_one(t: Tensor, pattern: str) -> tuple[Tensor, list]:
    """einops.pack of a single tensor."""
    return pack([t], pattern)


def unpack_one(t: Tensor, ps: list, pattern: str) -> Tensor:
    """The way back from `pack_one`."""
    return unpack(t, ps, pattern)[0]


def default_device(device: torch.device | str | None = None) -> torch.device:
    """The device given, or the fastest one that there is: xpu, cuda, mps, cpu."""
    if device is not None:
        return torch.device(device)
    for name in ('xpu', 'cuda', 'mps'):
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available():
            return torch.device(name)
    return torch.device('cpu')


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


def string_begins_with(prefix: str, str: str) -> bool:
    return str.startswith(prefix)


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


def init_zero_(layer: Any) -> None:
    """Zeros for the weight, and for the bias if there is one, in place."""
    nn.init.zeros_(layer.weight)
    if getattr(layer, 'bias', None) is not None:
        nn.init.zeros_(layer.bias)


def in_dtype_of(t: Tensor, result: Tensor) -> Tensor:
    """Return a result in the dtype of what it was computed from; of whole numbers as it is."""
    return result.to(t.dtype) if t.is_floating_point() else result


def log(t: Tensor, eps: float = 1e-20) -> Tensor:
    """The logarithm, of `eps` at least."""
    return in_dtype_of(t, accurate(t).clamp(min=eps).log())


def rotate_half(x: Tensor) -> Tensor:
    """Neighbouring features (a, b) as (-b, a)."""
    a, b = rearrange(x, '... (d two) -> two ... d', two=2).unbind()
    return rearrange([-b, a], 'two ... d -> ... (d two)')


def calc_entropy(t: Tensor, is_prob: bool = False) -> Tensor:
    """Entropy of the distributions over the last axis, from logits or probabilities, in nats."""
    prob = accurate(t) if is_prob else accurate(t).softmax(dim=-1)
    return in_dtype_of(t, -(prob * log(prob)).sum(dim=-1))


def masked_mean(
    t: Tensor, mask: Tensor | None = None, dim: int | tuple[int, ...] | None = None, eps: float = 1e-5,
    keepdim: bool = False,
) -> Tensor:  # fmt: skip
    """The mean of what a mask leaves; its axes are the first ones of `t`. Of nothing, 0."""
    axes = tuple(range(t.ndim)) if dim is None else dim
    if mask is None:
        return t.mean(dim=axes, keepdim=keepdim)
    mask = mask[(...,) + (None,) * (t.ndim - mask.ndim)].expand_as(t)
    exact = accurate(t)
    total = exact.masked_fill(~mask, 0.0).sum(dim=axes, keepdim=keepdim)
    return in_dtype_of(t, total / mask.to(exact.dtype).sum(dim=axes, keepdim=keepdim).clamp(min=eps))


def lens_to_mask(lens: Tensor, max_len: int | None = None) -> Tensor:
    """Lengths (...) as a mask (... n)."""
    length = int(lens.amax()) if max_len is None else max_len
    return torch.arange(length, device=lens.device) < rearrange(lens, '... -> ... 1')


def cross_entropy(
    logits: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = 'mean', class_dim: int = 1
) -> Tensor:
    """Cross entropy with the classes at any axis, in float32 at least."""
    logits = accurate(logits).movedim(class_dim, 1)
    return F.cross_entropy(logits, target, ignore_index=ignore_index, reduction=reduction)


def modify_cached_kv(cache: Any, fn: Callable[[Tensor], Tensor]) -> None:
    """Change the keys and values that a pass has left behind in self-attention, in place."""
    for intermediates in cache.attn_intermediates:
        if intermediates.layer_type == 'a' and intermediates.cached_kv is not None:
            intermediates.cached_kv = tuple(map(fn, intermediates.cached_kv))


# names of `attend`


def at_most_one_of(*bools: bool) -> bool:
    return sum(map(int, bools)) <= 1


def compact(arr: Iterable[T | None]) -> list[T]:
    """What is not None."""
    return [val for val in arr if val is not None]


def once(fn: Callable[..., T]) -> Callable[[Any], T | None]:
    """A function of one argument that runs the first time only."""
    called = False

    @wraps(fn)
    def inner(x: Any) -> T | None:
        nonlocal called
        if called:
            return None
        called = True
        return fn(x)

    return inner


print_once = once(print)


def l1norm(t: Tensor, dim: int = -1, eps: float = 1e-8) -> Tensor:
    return F.normalize(accurate(t), p=1, dim=dim, eps=eps).to(t.dtype)


def create_causal_mask(i: int, j: int, device: torch.device | str | None = None) -> Tensor:
    """True where a key (of the last axis) comes after the query, (i j); the last query sees all."""
    return torch.ones((i, j), device=device, dtype=torch.bool).triu(j - i + 1)


def one_hot_straight_through(logits: Tensor, temperature: float = 1.0, dim: int = -1) -> Tensor:
    """One at the largest entry of an axis, with the gradient of the softmax.  arXiv:1308.3432"""
    hard = torch.zeros_like(logits).scatter(dim, logits.argmax(dim=dim, keepdim=True), 1.0)
    soft = (logits / temperature).softmax(dim=dim)
    return hard + soft - soft.detach()


def sparse_topk_attn(
    logits: Tensor, sparse_topk: int, temperature: float = 1.0, straight_through: bool = False, dim: int = -1
) -> Tensor:
    """The softmax of the largest `sparse_topk` logits; with `straight_through`, the gradient of the softmax of all.

    arXiv:1912.11637, arXiv:2505.22074
    """
    least = logits.topk(sparse_topk, dim=dim).values.amin(dim=dim, keepdim=True)
    hard = logits.masked_fill(logits < least, max_neg_value(logits)).softmax(dim=dim)
    if not straight_through:
        return hard
    soft = (logits / temperature).softmax(dim=dim)
    return hard.detach() + soft - soft.detach()


def qk_l2_dist_squared(q: Tensor, k: Tensor) -> Tensor:
    """Squared distances of queries (b h i d) to keys (b h j d), or (b j d) for all heads:  b h i j"""
    k = rearrange(k, 'b j d -> b 1 j d') if k.ndim == 3 else k
    return torch.cdist(accurate(q), accurate(k)).square().to(q.dtype)


def selective_attn(sim: Tensor, sim_head_gate: Tensor | None = None, no_mask_sos: bool = True) -> Tensor:
    """Logits (b h i j), less what earlier queries have voted down.

        sim_ij - sum over i' < i of relu(gate_i'j)       gate: the first head's logits, or `sim_head_gate` (b i j)

    No query votes on itself or, with `no_mask_sos`, on the first of the last i keys, nor on keys before these.

    Leviathan et al. 2024, arXiv:2410.02703
    """
    i, j = sim.shape[-2:]
    gate = sim[:, 0] if sim_head_gate is None else sim_head_gate
    votes = gate[..., -i:].relu()
    own = torch.eye(i, dtype=torch.bool, device=sim.device)
    own[:, 0] |= no_mask_sos
    votes = accurate(votes).masked_fill(own, 0.0).cumsum(dim=-2)
    return (sim - rearrange(F.pad(votes, (j - i, 0, 1, -1)), 'b i j -> b 1 i j')).to(sim.dtype)


# names of `x_transformers`: defaults there are called, unless they are modules


def default_called(val: T | None, d: Any) -> T:
    """`val`, or `d` in place of None, called if it can be and is no module."""
    if val is not None:
        return val
    made: Any = d() if callable(d) and not isinstance(d, nn.Module) else d
    return made


def first_existing(*vals: Any) -> Any:
    """The first that is not None, or None."""
    return next((val for val in vals if val is not None), None)


def first_existing_called(*vals: Any) -> Any:
    """The first that is not None, or None; called if it can be."""
    val = first_existing(*vals)
    return val() if callable(val) else val


def cast_to_depth(val: Any, depth: int = 1) -> tuple:
    return cast_tuple(val, depth)


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, t: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn(t, *args, **kwargs)


def Sequential(*modules: nn.Module | None) -> nn.Sequential:
    """nn.Sequential of what is not None."""
    return nn.Sequential(*compact(modules))


def detach_all(obj: Any) -> Any:
    """A tree of anything with its tensors detached."""
    return tree_map_tensor(Tensor.detach, obj)


def tree_map_tensor(fn: Callable[[Tensor], Any], tree: Any) -> Any:
    """A tree of anything with a function of its tensors in their places."""
    return tree_map(lambda t: fn(t) if torch.is_tensor(t) else t, tree)


def tree_flatten_with_inverse(tree: Any) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves of a tree, and the way back from leaves."""
    leaves, spec = tree_flatten(tree)
    return leaves, lambda leaves: tree_unflatten(leaves, spec)


def disable_autocast(fn: Callable[..., T]) -> Callable[..., T]:
    """A function that runs without autocast on the device of its first tensor."""

    @wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> T:
        tensors = (t for t in (*args, *kwargs.values()) if torch.is_tensor(t))
        device = next((t.device.type for t in tensors), 'cpu')
        with torch.autocast(device, enabled=False):
            return fn(*args, **kwargs)

    return inner


def get_cached_kvs(cache: Any) -> list[tuple[Tensor, Tensor] | None]:
    """The keys and values that a pass has left behind, a pair for each attention."""
    return [intermediates.cached_kv for intermediates in cache.attn_intermediates]


def safe_cat(tensors: Iterable[Tensor | None], dim: int = 0) -> Tensor | None:
    """torch.cat of what is not None; None of nothing."""
    found: list[Tensor] = compact(tensors)
    return torch.cat(found, dim=dim) if found else None


def softclamp_gelu(t: Tensor, value: float) -> Tensor:
    """value tanh(t / value) Phi(t), with the normal distribution function Phi."""
    return value * (t / value).tanh() * torch.special.ndtr(t)


def softclamp_silu(t: Tensor, value: float) -> Tensor:
    """value tanh(t / value) sigmoid(t)"""
    return value * (t / value).tanh() * t.sigmoid()


def slice_right_at_dim(t: Tensor, length: int, dim: int = -1) -> Tensor:
    """The last `length` entries of an axis, all of them if there are fewer."""
    start, end = slice(-length, None).indices(t.shape[dim])[:2] if length != 0 else (0, 0)
    return t.narrow(dim, start, end - start)


def pad_right_at_dim(t: Tensor, pad: int, *, dim: int = -1, value: float = 0.0) -> Tensor:
    """Pad the end of one axis."""
    return pad_at_dim(t, (0, pad), dim=dim, value=value)


# names of wrappers


class DetachMultiple(Function):
    """Tensors as they are, as the outputs of one node of the graph."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.detach() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads


detach_multiple = DetachMultiple.apply


def batch_masked_mean(t: Tensor, mask: Tensor) -> Tensor:
    """The sums over d of (b n d), and their mean over what a mask (b n) leaves:  b. Of nothing, 0."""
    return in_dtype_of(t, masked_mean(accurate(t), mask, dim=1).sum(dim=-1))


def sample_from_mean_variance(
    mean: Tensor, variance: Tensor, eps: float = 1e-5, temperature: float = 1.0
) -> Tensor:  # fmt: skip
    """A draw from normal distributions, whose deviations are multiplied by the temperature."""
    return torch.normal(mean, variance.clamp(min=eps).sqrt() * temperature)


def batched_index_select(values: Tensor, indices: Tensor, dim: int = 1) -> Tensor:
    """Entries (b m ...) of values (b n ...) at indices (b m): those of each row, along axis 1."""
    if dim != 1:
        raise ValueError(f'`dim` got {dim}, it must be 1: the axis behind the batch')
    rows = torch.arange(values.shape[0], device=values.device)
    return values[rows.view(-1, *(1,) * (indices.ndim - 1)), indices]


def freeze_all_layers_(module: nn.Module) -> None:
    """No parameter of a module needs gradients, in place."""
    module.requires_grad_(False)


def log_prob_from_model_and_seq(model: Callable[[Tensor], Tensor], seq: Tensor) -> Tensor:
    """Log probabilities (b n-1) that a model of next tokens gives to ids (b n) behind the first."""
    log_probs = accurate(model(seq[:, :-1])).log_softmax(dim=-1)
    return log_probs.gather(-1, seq[:, 1:].unsqueeze(-1)).squeeze(-1)


def mean_of_rows(log_probs: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of each row (b n) over what a mask (b n) leaves. Of nothing, 0."""
    return masked_mean(log_probs, mask, dim=-1)


def and_masks(masks: Iterable[Tensor | None]) -> Tensor | None:
    """All of the masks that are not None; None if there is none."""
    found: list[Tensor] = compact(masks)
    return reduce(torch.logical_and, found) if found else None


def maybe_and_mask(*masks: Tensor | None) -> Tensor | None:
    return and_masks(masks)


def binary_entropy(logits: Tensor) -> Tensor:
    """Entropy of independent bits (... d), of which these are the logits, in nats:  ..."""
    bits = torch.distributions.Bernoulli(logits=accurate(logits), validate_args=False)
    return bits.entropy().sum(dim=-1).to(logits.dtype)


def pack_with_inverse(t: Tensor | Sequence[Tensor], pattern: str) -> tuple[Tensor, Callable[..., Any]]:
    """einops.pack of a tensor or of several, and the way back, for another pattern too."""
    alone = torch.is_tensor(t)
    packed, shapes = pack([t] if alone else t, pattern)

    def inverse(out: Tensor, other: str | None = None) -> Any:
        parts = unpack(out, shapes, pattern if other is None else other)
        return parts[0] if alone else parts

    return packed, inverse


def cast_tensor(
    t: Any, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None, error: bool = False
) -> Any:
    """Numbers, lists, tuples, arrays and tensors as a tensor; anything else as it is, or a TypeError."""
    if torch.is_tensor(t):
        return t.to(device=device, dtype=dtype)
    if isinstance(t, (bool, int, float, list, tuple)) or hasattr(t, '__array__'):
        return torch.as_tensor(t, dtype=dtype, device=device)
    if error:
        raise TypeError(f'`t` got {type(t).__name__}, it must be a number, a list, a tuple, an array or a tensor')
    return t


def exclusive_cumsum(t: Tensor, dim: int = -1) -> Tensor:
    """Sums of what stands before each entry."""
    return in_dtype_of(t, accurate(t).cumsum(dim=dim) - t)


def maybe_return(
    *field_names: str, primary: str = 'tokens', flag: str = 'return_all'
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function whose further outputs, by these names, come as a named tuple where the keyword `flag` asks for them.

    It takes the keyword if `fn` does not; without it only the first output, `primary`, is given.
    """
    Output = namedtuple('Output', (primary, *field_names), defaults=(None,) * len(field_names))

    def decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
        declared = signature(fn)

        @wraps(fn)
        def inner(*args: Any, **kwargs: Any) -> Any:
            if flag in declared.parameters:
                wanted = declared.bind(*args, **kwargs).arguments.get(flag, False)
            else:
                wanted = kwargs.pop(flag, False)
            out = fn(*args, **kwargs)
            out = out if isinstance(out, tuple) else (out,)
            return Output(*out[: len(Output._fields)]) if wanted else out[0]

        return inner

    return decorator


class temp_eval(ContextDecorator):
    """A module in eval mode inside a `with` block, or a method in eval mode of its module; modes are given back."""

    def __new__(cls, fn_or_module: Any) -> Any:
        if isinstance(fn_or_module, nn.Module):
            return super().__new__(cls)

        @wraps(fn_or_module)
        def inner(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with cls(module):
                return fn_or_module(module, *args, **kwargs)

        return inner

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> nn.Module:
        self.training = [module for module in self.module.modules() if module.training]
        return self.module.eval()

    def __exit__(self, *error: Any) -> None:
        for module in self.training:
            module.training = True


def uniform_like(t: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    return torch.empty_like(t).uniform_(low, high)


def MLP(dim_in: int, dim_out: int, dim_hidden: int, depth: int = 3) -> nn.Sequential:
    """`depth` linear layers with GELU between them."""
    dims = (dim_in, *(dim_hidden,) * (depth - 1), dim_out)
    layers = [layer for pair in pairwise(dims) for layer in (nn.Linear(*pair), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def dynamic_rollout_loss_weights(step_losses: Tensor, decay: float = 1.0) -> Tensor:
    """Weights of the steps (s ...) of a roll-out:  exp(-decay (the losses of the steps before))"""
    return (-decay * exclusive_cumsum(accurate(step_losses), dim=0)).exp().to(step_losses.dtype)


def unit_norm(t: Tensor, dim: int = -1) -> Tensor:
    return l2norm(t.movedim(dim, -1)).movedim(-1, dim)


def unit_norm_above(t: Tensor, eps: float = 1e-6) -> Tensor:
    """Vectors of norm 1; shorter ones than `eps` are divided by that."""
    return F.normalize(accurate(t), dim=-1, eps=eps).to(t.dtype)


def log_of_gumbel(t: Tensor, eps: float = 1e-10) -> Tensor:
    return log(t, eps)


def sample_prob(prob: float) -> bool:
    """True with this probability."""
    return draw_number() < prob


def coin_flip() -> bool:
    return sample_prob(0.5)


def cast_sequence(t: Any, length: int = 1) -> Sequence[Any]:
    """A tuple or list as it is, anything else `length` times."""
    return t if isinstance(t, (tuple, list)) else (t,) * length


def get_module_by_path(model: nn.Module, path: str) -> nn.Module:
    """The module at 'a.b.0'."""
    return reduce(getattr, path.split('.'), model)


def set_module_by_path(model: nn.Module, path: str, new_mod: nn.Module) -> None:
    """Put a module in the place of the one at 'a.b.0'."""
    *parents, name = path.split('.')
    setattr(reduce(getattr, parents, model), name, new_mod)


def mask_after(t: Tensor, value: Any, dim: int = -1, inclusive: bool = True) -> Tensor:
    """True up to the first `value` along an axis, with it if `inclusive`; everywhere if there is none."""
    found = (t == value).int()
    return (exclusive_cumsum(found, dim) if inclusive else found.cumsum(dim=dim)) == 0


def module_device(m: nn.Module) -> torch.device | None:
    """Where the first parameter or buffer of a module is; None if it has none."""
    return next((t.device for t in chain(m.parameters(), m.buffers())), None)


def pack_one_with_inverse(t: Tensor, pattern: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """einops.pack of a single tensor, and the way back."""
    packed, inverse = pack_with_inverse(t, pattern)
    return packed, lambda out: inverse(out)


def repeat_batch(t: Tensor, batch_size: int) -> Tensor:
    """A tensor (...) for each row of a batch:  b ..."""
    return repeat(t, '... -> b ...', b=batch_size)


def transpose(t: Tensor) -> Tensor:
    return t.mT
