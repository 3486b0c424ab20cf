"""How a branch joins the stream, and what shifts or silences a branch.

A residual module has `prepare(x) -> (input of the branch, what to add to, extra keywords)` and is called with the
branch's output and the last two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import Scale
from x_transformers.flags import Check, ConfigError, boolean, count, each, flag, is_number, number, probability


class Residual(nn.Module):
    """branch + residual, the residual times an optional learned scale per feature and a constant."""

    def __init__(
        self,
        dim: int,
        layer_index: int = 0,
        scale_residual: bool | float = False,
        scale_residual_constant: float = 1.0,
    ) -> None:
        super().__init__()
        self.residual_scale = nn.Parameter(torch.ones(dim)) if scale_residual else None
        self.scale_residual_constant = scale_residual_constant

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        return x, x, {}

    def scaled(self, residual: Tensor) -> Tensor:
        return residual if self.residual_scale is None else residual * self.residual_scale

    def forward(self, out: Tensor, residual: Tensor, **_: Any) -> Tensor:
        residual = self.scaled(residual)
        return out + (residual if self.scale_residual_constant == 1 else residual * self.scale_residual_constant)


class GRUGating(Residual):
    """A GRU cell per token: the branch is its input, the stream its state.  Parisotto et al. 2019, arXiv:1910.06764"""

    def __init__(self, dim: int, layer_index: int = 0, scale_residual: bool | float = False, **options: Any) -> None:
        super().__init__(dim, layer_index, scale_residual, **options)
        self.gru = nn.GRUCell(dim, dim)

    def forward(self, out: Tensor, residual: Tensor, **_: Any) -> Tensor:
        residual = self.scaled(residual)
        return self.gru(out.flatten(0, -2), residual.flatten(0, -2)).view_as(residual)


def shift(t: Tensor, amount: int, mask: Tensor | None = None) -> Tensor:
    """Move tokens (b n d) `amount` places later (earlier if negative), zeros coming in; masked ones move as zeros."""
    if amount == 0:
        return t
    if mask is not None:
        t = t.masked_fill(~mask.unsqueeze(-1), 0.0)
    amount = max(-t.shape[-2], min(amount, t.shape[-2]))
    return F.pad(t, (0, 0, amount, -amount))


class ShiftTokens(nn.Module):
    """Shift equal parts of the features along the sequence, each part by one of `shifts`, then apply `fn`.

    `recall`, if given, takes the new tokens and returns them with all earlier ones in front.
    """

    def __init__(self, shifts: tuple[int, ...], fn: nn.Module) -> None:
        super().__init__()
        self.fn, self.shifts = fn, tuple(shifts)

    def forward(
        self,
        x: Tensor,
        *,
        shift_mask: Tensor | None = None,
        recall: Callable[[Tensor], Tensor] | None = None,
        **inputs: Any,
    ) -> Any:
        rows, width = x.shape[-2], x.shape[-1] // len(self.shifts)
        if recall is not None:  # of three views, the batch stands first in what is remembered
            known = recall(x) if x.ndim == 3 else recall(x.transpose(0, 1)).transpose(0, 1)
            x = known[..., -(rows + max(self.shifts)) :, :]
        mask = None if shift_mask is None else shift_mask[:, -x.shape[-2] :]
        parts = x.split((*[width] * len(self.shifts), x.shape[-1] - width * len(self.shifts)), dim=-1)
        moved = [shift(part, amount, mask) for part, amount in zip(parts[:-1], self.shifts, strict=True)]
        return self.fn(torch.cat((*moved, parts[-1]), dim=-1)[..., -rows:, :], **inputs)


def per_layer(value: Any, layers: int, name: str) -> tuple[Any, ...]:
    """One value per layer, from one value for all or from a sequence of that length."""
    if not isinstance(value, (tuple, list)):
        return (value,) * layers
    if len(value) != layers:
        raise ConfigError(f'`{name}` got {len(value)} values, it must have one per layer, {layers}')
    return tuple(value)


# the features


class TokenShift(StackFeature):
    """Each branch also sees features of the tokens before (and, if not causal, after) it."""

    paper = 'RWKV, github.com/BlinkDL/RWKV-LM (token shift)'
    shift_tokens = flag(
        0,
        'by how many tokens features are shifted, or a tuple with one number per layer',
        count | each(count),
        example=1,
    )
    stored_as = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        value = values['shift_tokens']
        return any(value) if isinstance(value, (tuple, list)) else value > 0

    def setup(self, host: Any) -> None:
        self.amounts = per_layer(self.shift_tokens, len(host.layer_types), 'shift_tokens')

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        amount = self.amounts[index]
        if amount == 0:
            return branch
        return ShiftTokens(tuple(range(-amount if self.host.sees_future else 0, amount + 1)), branch)

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        if self.amounts[layer.index] == 0:
            return inputs
        recall = call.recall(f'{call.step}.shift') if self.host.causal else None
        return {**inputs, 'shift_mask': call.real, 'recall': recall}


class ResidualScale(StackFeature):
    """Scales on the residual, and with a number on the branch as well."""

    paper = 'NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555'
    scale_residual = flag(
        False,
        'learned scale per feature on the residual; a number also scales every branch',
        boolean | number,
        example=True,
    )
    scale_residual_constant = flag(1.0, 'constant factor of the residual', number, example=0.5)

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return bool(values['scale_residual']) or values['scale_residual_constant'] != 1

    def residual_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            **options,
            'scale_residual': bool(self.scale_residual),
            'scale_residual_constant': self.scale_residual_constant,
        }

    def wrap(self, branch: nn.Module, kind: str, index: int) -> nn.Module:
        scales = is_number(self.scale_residual) and self.scale_residual != 1
        return Scale(self.scale_residual, branch) if scales else branch


class GateResidual(StackFeature):
    """A GRU cell decides what a branch changes."""

    paper = 'Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764'
    gate_residual = flag(False, 'GRU gating in place of the sum')

    def residual(self, *args: Any, **kwargs: Any) -> nn.Module:
        return GRUGating(*args, **kwargs)


class LayerDropout(StackFeature):
    """Leave whole layers out in training (stochastic depth)."""

    paper = 'Deep Networks with Stochastic Depth, arXiv:1603.09382'
    layer_dropout = flag(
        0.0,
        'probability of leaving a layer out in training, or a tuple with one per layer',
        probability | each(probability),
        example=0.5,
    )

    @classmethod
    def is_on(cls, values: Any) -> bool:
        value = values['layer_dropout']
        return any(value) if isinstance(value, (tuple, list)) else value > 0

    def setup(self, host: Any) -> None:
        host.layer_dropouts = per_layer(self.layer_dropout, len(host.layer_types), 'layer_dropout')

    def skips(self, layer: Any, call: Any) -> bool | None:
        rate = self.host.layer_dropouts[layer.index]
        return True if self.host.training and rate > 0 and torch.rand(()).item() < rate else None


class ZeroInitBranches(StackFeature):
    """Every branch starts at zero, so that the stack starts as the identity."""

    zero_init_branch_output = flag(False, 'zero the last projection of every branch at first')

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        return {'zero_init_output': True, **flags}


class SoftclampOutput(StackFeature):
    """Bound the stream before the final norm:  c tanh(x / c)."""

    paper = 'Gemma 2, arXiv:2408.00118'
    softclamp_output = flag(False, 'bound the output of the last layer smoothly')
    softclamp_output_value = flag(
        30.0, 'the bound c', Check('a positive number', lambda v: is_number(v) and 0 < v < math.inf), example=2.0
    )

    def close(self, x: Tensor, call: Any) -> Tensor:
        return (x / self.softclamp_output_value).tanh() * self.softclamp_output_value
