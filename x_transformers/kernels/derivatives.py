"""What torch's fused attention kernels lack: second and higher derivatives, forward mode, and `torch.func`.

A kernel's own backward pass has no derivative. Where a graph of it is asked for (`create_graph`), a hook on the
kernel's node gives the gradients by the formula, from what the kernel has saved; an ordinary backward pass is the
kernel's own. Inside transforms the whole call is the formula.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _autograd
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointError

from x_transformers.core.modes import transforms_active, without_autocast
from x_transformers.flags.maybe import Maybe

# Queries from which on a CPU's kernel gets heads whose rows lie side by side: it reads each row of keys so often that
# the copy pays, 4 % of 2,048 rows and 13 % of 16,384, most where rows are powers of two apart.
SIDE_BY_SIDE = 2048

# the hooks that pack what is saved for the backward pass, from torch 2.8 on
packing_hooks = getattr(_autograd, '_top_saved_tensors_default_hooks', lambda ignore_is_tracing: None)


def sdpa_weights(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None) -> Tensor:
    """The weights of attention before dropout, in float32 if the queries are in half precision:  b h i j."""
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
    sighted = seen.any(dim=-1, keepdim=True)  # a row that sees nothing weighs nothing, and has finite gradients
    return scores.masked_fill(~seen & sighted, -torch.inf).softmax(dim=-1) * sighted


def sdpa_formula(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """`F.scaled_dot_product_attention`, made of what has every derivative."""
    weights = F.dropout(sdpa_weights(q, k, attn_mask, is_causal, scale), dropout_p)
    return weights.to(v.dtype) @ v


def differentiable_sdpa(*qkv: Any, **options: Any) -> Tensor:
    """`F.scaled_dot_product_attention` with all derivatives, in every transform."""
    compiling = torch.compiler.is_compiling()
    if not compiling and (transforms_active() or forward_ad._current_level >= 0):
        return sdpa_formula(*qkv, **options)
    if not compiling and qkv[0].shape[-2] >= SIDE_BY_SIDE and qkv[0].device.type == 'cpu':
        qkv = tuple([t.contiguous() for t in qkv])
    recorded = not compiling and torch.is_grad_enabled()
    packing = packing_hooks(False) if recorded else None
    if packing is not None:
        return repacked(packing, *qkv, **options)
    out = F.scaled_dot_product_attention(*qkv, **options)  # in one line: traces compare where a call stands
    if recorded and out.requires_grad:
        register(out.grad_fn, by_formula)
    return out


def register(node: Any, hook: Callable[..., Any]) -> None:
    """Put a hook on the node of a kernel, if it is one."""
    name = node.name()
    if name[:16] == 'ScaledDotProduct':
        node.register_hook(hook)
    elif name[:5] == 'Slice':  # of features that the kernel was padded with
        register(node.next_functions[0][0], hook)


def by_formula(
    grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    """In place of a kernel's gradients: the same with a graph, where one is asked for."""
    if not torch.is_grad_enabled():
        return None
    # the node that runs: a hook that held it would keep both alive
    node: Any = torch._C._current_autograd_node()
    if node._saved_dropout_p:
        return None  # its noise is the kernel's own: torch says that there is no derivative
    try:
        q, k, v, (grad, *_) = node._saved_query, node._saved_key, node._saved_value, grad_outputs
    except CheckpointError:
        return None  # torch before 2.8, in a checkpoint: it hands out each tensor once, and the kernel had it
    mask = next((getattr(node, name) for name in ('_saved_attn_mask', '_saved_attn_bias') if hasattr(node, name)), None)
    with without_autocast(q):
        found = sdpa_gradients(grad, q, k, v, mask, node._saved_is_causal, node._saved_scale)
    return tuple(None if old is None else new for old, new in zip(grad_inputs, found, strict=False))


def sdpa_gradients(
    grad: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: Maybe[float]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """P = softmax(s),  dP = dO V^T,  ds = P (dP - sum(P dP)),  dq = ds k,  dk = ds^T q,  dv = P^T dO, for a mask ds"""
    weights = sdpa_weights(q, k, mask, is_causal, scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dv = weights.to(grad.dtype).mT @ grad
    dp = (grad @ v.mT).to(weights.dtype)
    ds = weights * (dp - (weights * dp).sum(dim=-1, keepdim=True))
    inner = ds.to(q.dtype) * scale
    return inner @ k, inner.mT @ q, dv, None if mask is None else ds.to(mask.dtype).sum_to_size(mask.shape)


# where tensors are packed as they are saved: in checkpoints, on another device


class Saved:
    """What a kernel saves, unpacked once in a backward pass with a graph: a checkpoint hands out each tensor once."""

    __slots__ = ('__weakref__', 'packed', 'tensor')

    def __init__(self, packed: Any) -> None:
        self.packed, self.tensor = packed, None

    def read(self, unpack: Callable[[Any], Tensor]) -> Tensor:
        if self.tensor is not None:
            return self.tensor
        tensor = unpack(self.packed)
        if torch.is_grad_enabled():  # the formula reads it as well
            self.tensor = tensor
        return tensor


def repacked(packing: tuple[Callable[..., Any], Callable[..., Any]], *qkv: Any, **options: Any) -> Tensor:
    """The same where hooks pack what is saved."""
    pack, unpack = packing
    kept: list[weakref.ref[Saved]] = []

    def keep(t: Tensor) -> Saved:
        saved = Saved(pack(t))
        kept.append(weakref.ref(saved))
        return saved

    with saved_tensors_hooks(keep, lambda saved: saved.read(unpack)):
        out = F.scaled_dot_product_attention(*qkv, **options)
    if out.requires_grad:
        register(out.grad_fn, partial(by_formula_once, kept))
    return out


def by_formula_once(
    kept: list[weakref.ref[Saved]], grad_inputs: Sequence[Tensor | None], grad_outputs: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...] | None:
    found = by_formula(grad_inputs, grad_outputs)
    for saved in (ref() for ref in kept):
        if saved is not None:
            saved.tensor = None
    return found
