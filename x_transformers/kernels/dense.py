"""Kernels of attention with one signature and equal results.

    eager     the formula, with stages for features that change scores or weights: the definition
    fused     torch's scaled_dot_product_attention, for biases and masks only

Both run on all queries at once, or in blocks if there are many scores (`blocks.py`); on a GPU torch's FlexAttention may
replace blocks (`flex.py`).

A kernel gets q (b h i d), k and v (b k j d) with k dividing h, the `Call` (bias, mask, causality, scale) and the
features of the layer. Query head h has key head h mod k. The output of a fully masked query is zero in every kernel.
Attention maps are computed here, too.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _autograd
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError

from x_transformers.core.calls import Call
from x_transformers.core.intermediates import MissingMaps
from x_transformers.core.modes import (
    HALF,
    clamp_to_dtype,
    disable_autocast,
    dtype_of_products,
    is_hooked,
    precise_matmul,
    to_float,
    transforms_active,
)
from x_transformers.core.recompute import COPIED, MAPS, GradAndCastMode, ModuleSnapshot, modules_of_features
from x_transformers.core.rows import holds_maps
from x_transformers.flags import Feature, Features
from x_transformers.flags.checks import Maybe
from x_transformers.flags.declared import EAGER_STAGES
from x_transformers.kernels.blocks import can_add, run_additive, run_in_blocks

PROJECTIONS = ('to_q', 'to_k', 'to_v', 'to_out')


def lowest_value(t: Tensor) -> float:
    """Return the lowest finite number of a tensor's dtype."""
    return torch.finfo(t.dtype).min


def _masking_bias(dtype: torch.dtype) -> float:
    """Return the bias of masked keys: half of the lowest number, but -inf in float16, whose biases may be lower."""
    return -torch.inf if dtype == torch.float16 else torch.finfo(dtype).min / 2


def softmax(sim: Tensor, call: Call | None = None) -> Tensor:
    """Compute the softmax over keys, in float32 if the logits are in half precision."""
    return sim.softmax(dim=-1, dtype=torch.float32 if sim.dtype in HALF else sim.dtype)


def _assigned_softmax(sim: Tensor, call: Call) -> Tensor:
    """Compute the weights by a function that the user has assigned."""
    return call.attn_fn(sim)


def split_heads(t: Tensor, width: int) -> Tensor:
    """Split the last axis into heads of a width:  b n (h d) -> b h n d."""
    return t.view(*t.shape[:2], t.shape[-1] // width, width).transpose(1, 2)


def tile_heads(t: Tensor, heads: int) -> Tensor:
    """Repeat key heads so that query head h has key head h mod k:  b k j d -> b h j d."""
    if t.shape[1] == heads:
        return t
    # `repeat` would take four times as long.
    return t.expand(-1, heads, -1, -1) if t.shape[1] == 1 else torch.cat((t,) * (heads // t.shape[1]), dim=1)


def dot_product(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """Compute scaled similarities:  b h i d, b k j d -> b h i j."""
    return precise_matmul(q * call.scale, tile_heads(k, q.shape[1]).transpose(-1, -2))


# Eager.


def attention_maps(q: Tensor, k: Tensor, call: Call, features: Features) -> tuple[Tensor, Tensor, Tensor]:
    """Compute similarities, logits and weights of a call, each b h i j, with columns of prepended keys."""
    call.similarities = to_float(dot_product(q, k, call))
    sim = to_float(features.apply('scores', call.similarities, call))
    similarities, call.similarities = call.similarities, None
    if call.bias is not None:
        sim = sim + call.bias.to(sim.dtype)
    sim = features.apply('logits', sim, call)
    seen = features.select('score_mask', lambda call: call.visible())(call)
    if seen is not None:
        sim = sim.masked_fill(~seen, lowest_value(sim))
    sim = features.apply('masked_scores', sim, call)
    normalise = features.apply(
        'wrap_normalizer', features.select('normalizer', softmax) if call.attn_fn is None else _assigned_softmax
    )
    attn = features.apply('weights', normalise(sim, call).to(q.dtype), call)
    if call.may_have_fully_masked:
        attn = attn.masked_fill(call.fully_masked(), 0.0)
    return similarities, sim, attn


def wants_maps(module: nn.Module, call: Call, patched: bool = False) -> bool:
    """Return True if the maps of a call may be read. `patched`: code of the user gets the result."""
    return patched or is_hooked(module) or call.keeps == 'all'


def carries_gradients(q: Tensor, k: Tensor, call: Call, features: Features) -> bool:
    """Return True if the output must be computed from the maps of a call, so that these have gradients.

    With too many scores, with a feature at `attend`, and in compiled graphs, maps are computed separately.
    """
    if call.inputs.get('keep_maps') is False or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    if not (q.requires_grad or k.requires_grad) or 'attend' in features.by_stage:
        return False
    return holds_maps(call.batch * call.heads * call.q_len * call.total_keys)


def make_lazy_maps(q: Tensor, k: Tensor, call: Call, features: Features) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """Return a function that computes the maps of a call later, with its parameters, masks, modes and gradients.

    Small parameters are copied; a change of others in place raises an error.
    """
    if 'attend' in features.by_stage:
        return _feature_maps(features.by_stage['attend'][0], q, k, call)
    if torch.compiler.is_compiling():
        return lambda: attention_maps(q, k, call.combine(), features)
    own = copy.copy(call)
    own.made_trace = own.values = None  # A reference cycle would keep queries and keys alive.
    kept = None
    if not features.by_stage.keys().isdisjoint(EAGER_STAGES):
        owners = modules_of_features(features)
        # No stage of scores reads these.
        found = (getattr(owner, name, None) for owner in owners for name in PROJECTIONS)
        projections = [module for module in found if isinstance(module, nn.Linear)]
        kept = ModuleSnapshot(*owners, without=projections, copied=COPIED, needed_by=MAPS)
    reads = [(t, t._version) for t in own.reads() if not t.is_inference()] if torch.is_grad_enabled() else []
    surroundings = GradAndCastMode(q.device.type)

    def compute() -> tuple[Tensor, Tensor, Tensor]:
        if any(t._version != version for t, version in reads):
            raise RuntimeError(f'a mask, bias or other input of the call was changed in place after it: {MAPS}')
        with surroundings.restore(), own.precision():
            return attention_maps(q, k, copy.copy(own).combine(), features if kept is None else kept.restored(features))

    return compute


def _feature_maps(feature: Any, q: Tensor, k: Tensor, call: Call) -> Callable[[], Any]:
    """Return a function that computes the maps of a feature at `attend`, or raises an error if it has none."""
    if feature.maps is not None:
        return lambda: feature.maps(q, k, call)
    return MissingMaps(f'`{feature.display_name}` keeps no maps of its scores: its `attend` forms none for all keys')


def run_eager(q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Compute attention by its formula, with all stages of the features."""
    maps = attention_maps(q, k, call, features)
    call.keep_maps(maps)
    attn = features.apply('mixed_weights', maps[-1], call)
    out = features.apply('weighted_values', attn @ tile_heads(v, attn.shape[1]), attn, call)
    # Mixed heads may give weights of another head to a fully masked query.
    if call.may_have_fully_masked and features.by_stage.get('mixed_weights'):
        fully_masked = call.fully_masked()
        if fully_masked.shape[1] > out.shape[1]:  # There are several maps per head.
            fully_masked = fully_masked.unflatten(1, (-1, out.shape[1])).all(dim=1)
        out = out.masked_fill(fully_masked, 0.0)
    return out


def select_working(call: Call, features: Features, stages: Sequence[str] = EAGER_STAGES) -> list[Feature]:
    """Return the features that act at these stages in running order, once per stage."""
    found = [f for stage in stages for f in features.by_stage.get(stage, ())]
    return [
        f
        for f in found
        if f.flags or not f.call_inputs or any(call.inputs.get(name) is not None for name in f.call_inputs)
    ]


def run_eager_in_blocks(q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Run the eager kernel in blocks. All acting features must be `row_wise`."""
    acting = select_working(call, features)
    whole_rows, carries = any(f.needs_masked_keys for f in acting), tuple([name for f in acting for name in f.carries])
    return run_in_blocks(run_eager, q, k, v, call, features, whole_rows, carries)


# Fused.


def run_fused(q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Compute attention by torch's fused kernel, without an n x n mask if only causality masks keys."""
    if call.visibility is not None:
        sdpa_mask = call.visibility.sdpa_mask
    elif call.span is None and not (call.masks or call.biases):
        call.combined = True  # There is nothing to combine.
        sdpa_mask = make_sdpa_mask(call, q)
    else:
        sdpa_mask = make_sdpa_mask(call if call.span is not None else call.combine(), q)
    out = grouped_sdpa(q, k, v, sdpa_mask.mask, call, is_causal=sdpa_mask.is_causal)
    return out if sdpa_mask.fully_masked is None else out.masked_fill(sdpa_mask.fully_masked, 0.0)


class SdpaMask(NamedTuple):
    """Mask arguments of torch's kernel: a boolean mask or a bias, or `is_causal` alone. The outputs of queries in which
    `fully_masked`, (b, h, i, 1), is True are 0."""

    mask: Maybe[Tensor]
    is_causal: bool = False
    fully_masked: Maybe[Tensor] = None

    def as_bias(self, dtype: torch.dtype) -> SdpaMask:
        """Return the arguments with an additive mask. Torch's kernel would make it of a boolean one in each layer."""
        if self.mask is None or self.mask.dtype != torch.bool:
            return self
        bias = torch.zeros_like(self.mask, dtype=dtype).masked_fill_(~self.mask, -torch.inf)
        return self._replace(mask=bias)


ALL, CAUSAL = SdpaMask(None), SdpaMask(None, True)


def make_sdpa_mask(call: Call, q: Tensor) -> SdpaMask:
    if call.bias is None and call.mask is None:
        triangle = call.needs_causal_mask
        if not triangle or call.q_len == call.keys == call.total_keys:
            return CAUSAL if triangle else ALL
    return _make_dense_sdpa_mask(call, q)


def _make_dense_sdpa_mask(call: Call, q: Tensor) -> SdpaMask:
    """Return the mask or bias of a call that torch's kernel is given."""
    seen = call.visible()
    if seen is None:
        return SdpaMask(_make_sdpa_bias(call, q))
    fully_masked = ~seen.any(dim=-1, keepdim=True) if call.may_have_fully_masked else None
    if fully_masked is not None:
        seen = seen | fully_masked  # Such a query attends to every key, for finite gradients; its output is set to 0.
    mask = (
        seen if call.bias is None else _make_sdpa_bias(call, q).masked_fill(~seen, _masking_bias(dtype_of_products(q)))
    )
    return SdpaMask(mask, fully_masked=fully_masked)


def _make_sdpa_bias(call: Call, q: Tensor) -> Tensor:
    """Return the bias of a call in the dtype of the queries, clamped to the range of autocast's dtype."""
    return clamp_to_dtype(call.bias, dtype_of_products(q)).to(q.dtype)


def run_fused_in_blocks(q: Tensor, k: Tensor, v: Tensor, call: Call, features: Features) -> Tensor:
    """Run the fused kernel without masks or biases of all queries: in one call where it can, else in blocks."""
    # The flash kernel of torch for CPUs has no dropout.
    flash = call.dropout == 0 and (call.backends is None or 'FLASH_ATTENTION' in call.backends)
    if needs_no_mask(call) and (flash or q.device.type != 'cpu'):
        return fold_heads(q, k, v, call)
    if can_add(q, k, v, call):
        return run_additive(q, tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1]), call)
    return run_in_blocks(run_fused, q, k, v, call, features)


def needs_no_mask(call: Call) -> bool:
    """Return True if there are no biases, and masks are causal or equal for all queries."""
    return not call.biases and _can_use_is_causal(call) and all(mask.of_keys for mask in call.masks)


def _can_use_is_causal(call: Call) -> bool:
    """Return True if the causal mask, if needed, is that of torch's kernels: with as many queries as keys."""
    return not call.needs_causal_mask or call.q_len == call.keys == call.total_keys


def fold_heads(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """Compute attention with masks that are causal or equal for all queries.

    An extra channel, 1 in queries, makes the logits of masked keys so low that their weights are 0. In float16 both
    factors must be large for that.
    """
    width = v.shape[-1]
    visible = call.combine().mask
    if visible is not None:
        most, one = (1e30, 1.0) if dtype_of_products(q) != torch.float16 else (torch.finfo(torch.float16).max,) * 2
        lowered = torch.zeros_like(k[:, :1, :, :1]).masked_fill(~visible.mT, -most)
        q = torch.cat((q, torch.full_like(q[..., :1], one)), dim=-1)
        k = torch.cat((k, lowered.expand(-1, k.shape[1], -1, -1)), dim=-1)
    if q.device.type == 'cpu' and q.shape[-1] != width:  # The kernel for CPUs supports one width.
        most = max(q.shape[-1], width)
        q, k, v = (F.pad(t, (0, most - t.shape[-1])) for t in (q, k, v))
    out = grouped_sdpa(q, k, v, None, call, is_causal=call.needs_causal_mask)[..., :width]
    if visible is None or not call.may_have_fully_masked:
        return out
    has_visible_key = visible.cumsum(dim=-1).mT > 0 if call.needs_causal_mask else visible.any(dim=-1, keepdim=True)
    return out.masked_fill(~has_visible_key, 0.0)


def grouped_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call, is_causal: bool = False) -> Tensor:
    """Run SDPA with grouped heads. A single query folds its group into the query axis, without copies of the keys."""
    heads, kv_heads, rows = q.shape[1], k.shape[1], q.shape[-2]
    options: dict[str, Any] = dict(dropout_p=call.dropout, scale=call.scale)
    if kv_heads == v.shape[1] < heads and rows == 1 and (mask is None or mask.shape[1] == 1):
        return _grouped_row(q, k, v, mask, call, options)
    if mask is not None:
        mask = mask.expand(-1, -1, rows, -1)
    if not kv_heads == v.shape[1] == heads:
        k, v = tile_heads(k, heads), tile_heads(v, heads)
    if call.backends is None:
        return differentiable_sdpa(q, k, v, attn_mask=mask, is_causal=is_causal, **options)
    return sdpa(call, q, k, v, attn_mask=mask, is_causal=is_causal, **options)


def _grouped_row(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call, options: dict[str, Any]) -> Tensor:
    """Run SDPA for one query per head, with the heads that share keys as queries of one head."""
    folded = q.unflatten(1, (q.shape[1] // k.shape[1], k.shape[1])).squeeze(-2).transpose(1, 2)
    out = sdpa(call, folded, k, v, attn_mask=mask, **options)
    return out.transpose(1, 2).flatten(1, 2).unsqueeze(-2)


def sdpa(call: Call, *qkv: Tensor, **options: Any) -> Tensor:
    """Run torch's kernel with the backends that the layer allows."""
    if call.backends is None:
        return differentiable_sdpa(*qkv, **options)
    with sdpa_kernel([getattr(SDPBackend, name) for name in call.backends]):
        return differentiable_sdpa(*qkv, **options)


# Derivatives that torch's fused kernels lack: second and higher ones, forward mode, and `torch.func`. The backward pass
# of a kernel has no derivative. With `create_graph`, a hook on the kernel's node computes the gradients by the formula,
# from the saved tensors. Inside transforms the whole call is the formula.

# From this many queries on, the kernel for CPUs gets contiguous heads: it reads each key so often that a copy saves 4 %
# with 2,048 queries and 13 % with 16,384, most with strides of powers of two.
SIDE_BY_SIDE = 2048

# Hooks that pack tensors saved for the backward pass, from torch 2.8 on.
packing_hooks = getattr(_autograd, '_top_saved_tensors_default_hooks', lambda ignore_is_tracing: None)


def sdpa_weights(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    """Compute the weights of attention before dropout, in float32 if the queries are in half precision:  b h i j."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    scores = scores.float() if half else scores
    seen = mask
    if mask is not None and mask.is_floating_point():
        seen = mask != -torch.inf
        scores = scores + mask.where(seen, 0.0)
    if is_causal:
        triangle = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        seen = triangle if seen is None else seen & triangle
    if seen is None:
        return scores.softmax(dim=-1)
    has_visible_key = seen.any(dim=-1, keepdim=True)  # Fully masked queries have finite gradients.
    return scores.masked_fill(~seen & has_visible_key, -torch.inf).softmax(dim=-1) * has_visible_key


def sdpa_formula(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Compute `F.scaled_dot_product_attention` by operations with all derivatives."""
    weights = F.dropout(sdpa_weights(q, k, attn_mask, is_causal, scale), dropout_p)
    return weights.to(v.dtype) @ v


def differentiable_sdpa(*qkv: Any, **options: Any) -> Tensor:
    """Run `F.scaled_dot_product_attention` with all derivatives, in all transforms."""
    compiling = torch.compiler.is_compiling()
    if not compiling and (transforms_active() or forward_ad._current_level >= 0):
        return sdpa_formula(*qkv, **options)
    if not compiling and qkv[0].shape[-2] >= SIDE_BY_SIDE and qkv[0].device.type == 'cpu':
        qkv = tuple([t.contiguous() for t in qkv])
    recorded = not compiling and torch.is_grad_enabled()
    packing = packing_hooks(False) if recorded else None
    if packing is not None:
        return _repacked(packing, *qkv, **options)
    out = F.scaled_dot_product_attention(*qkv, **options)  # On one line, since traces compare line numbers.
    if recorded and out.requires_grad:
        register(out.grad_fn, by_formula)
    return out


def register(node: Any, hook: Callable[..., Any]) -> None:
    """Register a hook on the node of a kernel, if it is one."""
    name = node.name()
    if name[:16] == 'ScaledDotProduct':
        node.register_hook(hook)
    elif name[:5] == 'Slice':  # It removes padded channels.
        register(node.next_functions[0][0], hook)


def by_formula(
    grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    """Return the gradients of a kernel with a graph, if `create_graph` is set."""
    if not torch.is_grad_enabled():
        return None
    # A hook that held its node would keep both alive.
    node: Any = torch._C._current_autograd_node()
    if node._saved_dropout_p:
        return None  # The noise is not known: torch raises an error.
    try:
        q, k, v, (grad, *_) = node._saved_query, node._saved_key, node._saved_value, grad_outputs
    except CheckpointError:
        return None  # Torch before 2.8, in a checkpoint, returns each saved tensor only once.
    mask = next((getattr(node, name) for name in ('_saved_attn_mask', '_saved_attn_bias') if hasattr(node, name)), None)
    with disable_autocast(q):
        found = sdpa_gradients(grad, q, k, v, mask, node._saved_is_causal, node._saved_scale)
    return tuple(None if old is None else new for old, new in zip(grad_inputs, found, strict=False))


def sdpa_gradients(
    grad: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: Maybe[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute  P = softmax(s),  dP = dO V^T,  ds = P (dP - sum(P dP)),  dq = ds k,  dk = ds^T q,  dv = P^T dO."""
    weights = sdpa_weights(q, k, mask, is_causal, scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dv = weights.to(grad.dtype).mT @ grad
    dp = (grad @ v.mT).to(weights.dtype)
    ds = weights * (dp - (weights * dp).sum(dim=-1, keepdim=True))
    inner = ds.to(q.dtype) * scale
    return inner @ k, inner.mT @ q, dv, None if mask is None else ds.to(mask.dtype).sum_to_size(mask.shape)


# Hooks that pack saved tensors: in checkpoints, or on another device.


class Saved:
    """Saved tensor of a kernel, unpacked once in a backward pass with a graph, since a checkpoint unpacks only once."""

    __slots__ = ('__weakref__', 'packed', 'tensor')

    def __init__(self, packed: Any) -> None:
        self.packed, self.tensor = packed, None

    def read(self, unpack: Callable[[Any], Tensor]) -> Tensor:
        if self.tensor is not None:
            return self.tensor
        tensor = unpack(self.packed)
        if torch.is_grad_enabled():  # The formula reads it again.
            self.tensor = tensor
        return tensor


def _repacked(packing: tuple[Callable[..., Any], Callable[..., Any]], *qkv: Any, **options: Any) -> Tensor:
    """Run `differentiable_sdpa` with hooks that pack saved tensors."""
    pack, unpack = packing
    kept: list[weakref.ref[Saved]] = []

    def keep(t: Tensor) -> Saved:
        saved = Saved(pack(t))
        kept.append(weakref.ref(saved))
        return saved

    with saved_tensors_hooks(keep, lambda saved: saved.read(unpack)):
        out = F.scaled_dot_product_attention(*qkv, **options)
    if out.requires_grad:
        register(out.grad_fn, partial(_by_formula_once, kept))
    return out


def _by_formula_once(
    kept: list[weakref.ref[Saved]], grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    found = by_formula(grad_inputs, grad_outputs)
    for saved in (ref() for ref in kept):
        if saved is not None:
            saved.tensor = None
    return found
