"""Entmax: distributions with zeros, between the softmax (alpha = 1) and the sparsemax (alpha = 2).

    p_j = max((alpha - 1) z_j - t, 0)^(1 / (alpha - 1)),      t such that they sum to 1

Peters et al. 2019, arXiv:1905.05702; Correia et al. 2019, arXiv:1909.00015; sparsemax: arXiv:1602.02068
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.core.modes import at_least_float, is_transformed

# Halvings of an interval of length 1 that reach the rounding of a threshold.
ROUNDS = {torch.float32: 30, torch.float64: 60}


def sparsemax_by_sorting(sim: Tensor) -> Tensor:
    """Return the sparsemax over the last axis, exactly."""
    shifted = (sim - sim.amax(dim=-1, keepdim=True)).clamp(min=-1.0)
    ranked = shifted.sort(dim=-1, descending=True).values
    count = torch.arange(1, sim.shape[-1] + 1, device=sim.device, dtype=sim.dtype)
    inside = 1 + count * ranked > ranked.cumsum(dim=-1)
    support = inside.sum(dim=-1, keepdim=True)
    threshold = (ranked.where(inside, 0.0).sum(dim=-1, keepdim=True) - 1) / support
    return (shifted - threshold).clamp(min=0.0)


def entmax15_by_sorting(sim: Tensor) -> Tensor:
    """1.5-entmax over the last axis, exactly.  Peters et al. 2019, arXiv:1905.05702, algorithm 2"""
    if sim.shape[-1] == 0:
        return sim
    # at 2 below the largest an entry has no weight; so hidden logits cannot overflow
    half = ((sim - sim.amax(dim=-1, keepdim=True)) / 2).clamp(min=-2.0)
    ranked = half.sort(dim=-1, descending=True).values
    count = torch.arange(1, half.shape[-1] + 1, device=half.device, dtype=half.dtype)
    mean, square = ranked.cumsum(dim=-1) / count, ranked.square().cumsum(dim=-1) / count
    spread = count * (square - mean.square())
    threshold = mean - ((1 - spread) / count).clamp(min=0.0).sqrt()
    support = (threshold <= ranked).sum(dim=-1, keepdim=True)
    # once more for the support alone, without the rounding of long sums
    inside = count <= support
    centre = ranked.where(inside, 0.0).sum(dim=-1, keepdim=True) / support
    rest = 1 - (ranked - centre).where(inside, 0.0).square().sum(dim=-1, keepdim=True)
    return (half - centre + (rest / support).clamp(min=0.0).sqrt()).clamp(min=0.0).square()


def entmax_by_bisection(sim: Tensor, alpha: Tensor) -> Tensor:
    """Return the entmax over the last axis for `alpha` above 1, which broadcasts.

    The derivatives are those of two steps of Newton's method from the threshold, which agree with the exact ones up to
    the second.
    """
    power = 1 / (alpha - 1)
    scaled = ((sim - sim.amax(dim=-1, keepdim=True).detach()) * (alpha - 1)).clamp(min=-1.0)
    fixed, fixed_power = scaled.detach(), power.detach()
    low, high = -torch.ones_like(fixed[..., :1]), torch.zeros_like(fixed[..., :1])
    for _ in range(ROUNDS[sim.dtype]):
        middle = (low + high) / 2
        over = (fixed - middle).clamp(min=0.0).pow(fixed_power).sum(dim=-1, keepdim=True) >= 1
        low, high = middle.where(over, low), high.where(over, middle)
    threshold = low
    for _ in range(2):
        weights, slopes = _powers(scaled - threshold, power)
        step = (weights.sum(dim=-1, keepdim=True) - 1) / (power * slopes.sum(dim=-1, keepdim=True))
        threshold = threshold + step
    weights, _ = _powers(scaled - threshold, power)
    return weights / weights.sum(dim=-1, keepdim=True)


def _powers(rest: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Return max(rest, 0) to the power and to the power less 1, with derivatives of zero where it is not positive."""
    inside = rest > 0
    rest = rest.where(inside, 1.0)
    return rest.pow(power).where(inside, 0.0), rest.pow(power - 1).where(inside, 0.0)


def _weights(sim: Tensor, alpha: Any) -> Tensor:
    """Return the entmax by the method for this alpha."""
    if torch.is_tensor(alpha):
        return entmax_by_bisection(sim, alpha)
    if alpha in (1.5, 2):
        return entmax15_by_sorting(sim) if alpha == 1.5 else sparsemax_by_sorting(sim)
    return entmax_by_bisection(sim, sim.new_tensor(alpha))


class EntmaxFunction(torch.autograd.Function):
    """Entmax with its gradients in closed form, which need the weights p alone:

        of z:      r (g - sum(r g) / sum(r))                    r = p^(2 - alpha) where p > 0
        of alpha:  sum_j g_j ((p_j - s_j) / (alpha - 1)^2 + (H_j - s_j sum(H)) / (alpha - 1))

    with s = r / sum(r) and H = -p log p. The second one cancels near alpha = 1 and is computed in float64.
    """

    @staticmethod
    def forward(ctx: Any, sim: Tensor, alpha: Any) -> Tensor:
        weights = _weights(sim, alpha)
        ctx.alpha = None if torch.is_tensor(alpha) else alpha
        ctx.save_for_backward(weights, alpha if torch.is_tensor(alpha) else None)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        weights, given = ctx.saved_tensors
        alpha = ctx.alpha if given is None else given
        # The power of nothing has no slope, for whoever differentiates twice.
        inside = weights > 0
        safe = weights.where(inside, 1.0)
        root = (safe.sqrt() if ctx.alpha == 1.5 else safe.pow(2 - alpha)).where(inside, 0.0)
        slope = root * (grad - (root * grad).sum(dim=-1, keepdim=True) / root.sum(dim=-1, keepdim=True))
        if given is None or not ctx.needs_input_grad[1]:
            return slope, None
        alpha, p = given.double(), safe.double()
        share = p.pow(2 - alpha).where(inside, 0.0)
        share = share / share.sum(dim=-1, keepdim=True)
        entropy = (-p * p.log()).where(inside, 0.0)
        curve = (p.where(inside, 0.0) - share) / (alpha - 1).square()
        curve = curve + (entropy - share * entropy.sum(dim=-1, keepdim=True)) / (alpha - 1)
        of_alpha = (grad.double() * curve).sum_to_size(given.shape)
        return slope, of_alpha.to(given.dtype)


def entmax_weights(sim: Tensor, alpha: Any = 1.5) -> Tensor:
    """Return the entmax over the last axis, in float32 if the logits are in half precision.

    alpha    a number from 1 to 2, or a tensor of numbers above 1 that broadcasts to sim and may need a gradient
    """
    sim = sim.to(at_least_float(sim.dtype))
    if sim.shape[-1] == 0:
        return sim
    if torch.is_tensor(alpha):
        alpha = alpha.to(sim.dtype)
    elif alpha == 1:
        return sim.softmax(dim=-1)
    if torch.compiler.is_compiling() or is_transformed():  # they find the same gradients in the formulas
        return _weights(sim, alpha)
    return EntmaxFunction.apply(sim, alpha)
