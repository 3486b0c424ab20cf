"""The loss whose distribution is entmax in place of the softmax, and measures for distributions with zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.core.checks import check_range
from x_transformers.core.modes import at_least_float, is_transformed
from x_transformers.flags import format_value, is_number
from x_transformers.kernels.entmax import entmax_weights

__all__ = ['entmax_loss', 'entmax_measures', 'entmax_weights']


def _check_arguments(logits: Any, target: Any, alpha: Any) -> None:
    """Raise ValueError or TypeError for arguments of another kind, shape or range."""
    if not (is_number(alpha) and 1 <= alpha <= 2):
        raise ValueError(f'`alpha` must be a number from 1 to 2, got {format_value(alpha)}')
    if not torch.is_tensor(logits) or not logits.is_floating_point() or logits.ndim == 0:
        raise TypeError(f'`logits` must be a floating point tensor (..., l), got {format_value(logits)}')
    if not torch.is_tensor(target) or target.dtype != torch.int64:
        raise TypeError(f'`target` must be a tensor of int64 ids, got {format_value(target)}')
    if target.shape != logits.shape[:-1]:
        raise ValueError(f'`target` must have the shape {tuple(logits.shape[:-1])}, got {tuple(target.shape)}')
    check_range(target, 'target', 0, logits.shape[-1] - 1, 'token ids')


def _formula(logits: Tensor, targets: Tensor, alpha: float, p: Tensor) -> Tensor:
    inside = p > 0
    safe = p.where(inside, 1.0)
    # p - p^alpha, without the cancellation near alpha = 1
    entropy = -(safe * torch.expm1((alpha - 1) * safe.log())).where(inside, 0.0).sum(dim=-1) / (alpha * (alpha - 1))
    return (p * logits.where(inside, 0.0)).sum(dim=-1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + entropy


class EntmaxLossFunction(torch.autograd.Function):
    """Loss of each target (...) under logits (..., l), with the gradient  p - e_y,  not through the threshold."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, alpha: float) -> Tensor:
        p, ctx.alpha = entmax_weights(logits, alpha), alpha
        ctx.save_for_backward(logits, targets, p)
        return _formula(logits, targets, alpha, p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, p = ctx.saved_tensors
        if torch.is_grad_enabled():  # for whoever differentiates twice
            p = entmax_weights(logits, ctx.alpha)
        at = targets.unsqueeze(-1)
        return grad.unsqueeze(-1) * p.scatter_add(-1, at, -torch.ones_like(p[..., :1])), None, None


def entmax_losses(logits: Tensor, targets: Tensor, alpha: float) -> Tensor:
    """Compute `entmax_loss` without its checks."""
    logits = logits.to(at_least_float(logits.dtype))
    if alpha == 1:
        return -logits.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if torch.compiler.is_compiling() or is_transformed():
        return _formula(logits, targets, alpha, entmax_weights(logits, alpha))
    return EntmaxLossFunction.apply(logits, targets, alpha)


def entmax_loss(logits: Tensor, target: Tensor, alpha: float = 1.5) -> Tensor:
    """Return the entmax loss (...) of targets (...) under logits (..., l), in float32 at least.

        L = (p - e_y) z + sum_j (p_j - p_j^alpha) / (alpha (alpha - 1)),       p = entmax(z, alpha)

    Its gradient is p - e_y. It is 0 if the logit of the target exceeds all others by 1 / (alpha - 1), and the cross
    entropy with alpha = 1. Sample from such a model with the filter 'entmax' and the same alpha.

    Peters et al. 2019, arXiv:1905.05702
    """
    _check_arguments(logits, target, alpha)
    return entmax_losses(logits, target, alpha)


def entmax_measures(logits: Tensor, target: Tensor, alpha: float = 1.5, eps: float = 1e-6) -> dict[str, Tensor]:
    """Return means over targets (...) that are finite where a target has probability 0.

        perplexity        exp(-mean log((p_y + eps) / (1 + eps l)))
        sparsemax_score   p_y + (1 - sum p^2) / 2
        js_divergence     Jensen-Shannon divergence of p and e_y, in nats

    p = entmax(logits, alpha) with logits (..., l).  Martins et al. 2020, arXiv:2004.02644
    """
    _check_arguments(logits, target, alpha)
    p = entmax_weights(logits, alpha)
    own = p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    middle = p.scatter_add(-1, target.unsqueeze(-1), torch.ones_like(p[..., :1])) / 2
    divergence = torch.special.entr(middle).sum(dim=-1) - torch.special.entr(p).sum(dim=-1) / 2
    return {
        'perplexity': torch.exp(-((own + eps) / (1 + eps * p.shape[-1])).log().mean()),
        'sparsemax_score': (own + (1 - p.square().sum(dim=-1)) / 2).mean(),
        'js_divergence': divergence.mean(),
    }
