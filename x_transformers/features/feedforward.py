"""Activations and gated units of the feedforward."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.levels import FeedForwardFeature
from x_transformers.features.norms import LayerNorm
from x_transformers.flags import Check, flag, none


class ReluSquared(nn.Module):
    """max(x, 0) ** 2.  So et al. 2021, arXiv:2109.08668"""

    def forward(self, x: Tensor) -> Tensor:
        return x.relu().square()


class GLU(nn.Module):
    """Gated linear unit:  first half of the projection times the activated second half.

    Shazeer 2020, arXiv:2002.05202
    """

    def __init__(self, dim_in: int, dim_out: int, activation: nn.Module, mult_bias: bool = False) -> None:
        super().__init__()
        self.act = activation
        self.proj = nn.Linear(dim_in, 2 * dim_out)
        self.mult_bias = nn.Parameter(torch.ones(dim_out)) if mult_bias else None

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.proj(x).chunk(2, dim=-1)
        out = value * self.act(gate)
        return out if self.mult_bias is None else out * self.mult_bias


class CustomActivation(FeedForwardFeature):
    """An activation of your own; each layer gets a copy."""

    custom_activation = flag(
        None,
        'module in place of GELU',
        Check('a torch module', lambda value: isinstance(value, nn.Module)) | none,
        example=nn.Tanh(),
    )

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['custom_activation'] is not None

    def activation(self) -> nn.Module:
        return copy.deepcopy(self.custom_activation)


class UseReluSquared(FeedForwardFeature):
    """Squared ReLU."""

    paper = 'Primer, arXiv:2109.08668'
    relu_squared = flag(False, 'squared ReLU in place of GELU')
    yields_to = ('custom_activation',)

    def activation(self) -> nn.Module:
        return ReluSquared()


class Swish(FeedForwardFeature):
    """SiLU; with `glu`, SwiGLU."""

    paper = 'Searching for Activation Functions, arXiv:1710.05941'
    swish = flag(False, 'SiLU in place of GELU')
    yields_to = ('custom_activation', 'relu_squared')

    def activation(self) -> nn.Module:
        return nn.SiLU()


class GatedLinearUnit(FeedForwardFeature):
    """A gated linear unit widens the input."""

    paper = 'GLU Variants Improve Transformer, arXiv:2002.05202'
    glu = flag(False, 'gated linear unit')
    glu_mult_bias = flag(False, 'learned scale per feature after the gate')

    def widen(self, activation: nn.Module) -> nn.Module:
        return GLU(self.host.dim, self.host.dim_inner, activation, bool(self.glu_mult_bias))


class PostActivationNorm(FeedForwardFeature):
    """Layer norm after the activation."""

    paper = 'NormFormer, arXiv:2110.09456'
    post_act_ln = flag(False, 'layer norm after the activation')

    def inner(self) -> nn.Module:
        return LayerNorm(self.host.dim_inner)


class ZeroInitFeedForward(FeedForwardFeature):
    """The output projection starts at zero, so that the branch starts silent."""

    zero_init_output = flag(False, 'zero weights and bias of the output projection at first')

    def initialise(self) -> None:
        output = self.host.output
        nn.init.zeros_(output.weight)
        if output.bias is not None:
            nn.init.zeros_(output.bias)
