"""Mamba-2: sums of inputs, whose decays are step sizes of each head and token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.flags import Check, ConfigError, is_number, none, one_of, positive, size
from x_transformers.kernels.chunks import run_chunks
from x_transformers.recurrent.base import State, softplus
from x_transformers.recurrent.convolution import CausalConvolution
from x_transformers.recurrent.gated import MatrixMixer, draw_rates, draw_steps, split_heads


def _are_numbers(value: object, count: int) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == count and all(is_number(one) for one in value)


limits = Check(
    'a pair of numbers, of which the first is at least 0 and below the second',
    lambda value: _are_numbers(value, 2) and 0 <= value[0] < value[1],
    'Sequence[float]',
)
five = Check('five numbers, for z, x, B, C and dt', lambda value: _are_numbers(value, 5), 'Sequence[float]') | none


class Mamba2(MatrixMixer):
    """A state-space model with one decay for each head and token (SSD):

        [z x B C dt] = u W_in;   [x B C] = silu(conv([x B C]));   dt = softplus(dt + dt_bias)
        S <- exp(-dt exp(A_log)) S + B (dt x)^T;   y = S^T C + D x;   out = rms(y * silu(z)) W_out

    Heads of a group share B and C. The norm runs over the channels of each group.  Mamba-2, arXiv:2405.21060

    Args:
        heads: number of heads, `2 dim / dim_head` if None
        dim_head: channels of x of each head
        state: channels of B and C, of each group
        groups: number of groups, which divides `heads`
        conv: tokens that the convolution of x, B and C spans
        norm: 'gate_first' for rms(y * silu(z)), 'norm_first' for rms(y) * silu(z), None for y * silu(z)
        dt_limits: least and largest step size
        rows_scale: five factors of z, x, B, C and dt, as of Falcon-H1 (arXiv:2507.22448); None for 1
        bias: biases of the maps in and out
        conv_bias: a bias of the convolution
        eps: added to the mean square in the norm
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        heads: int | None = None,
        dim_head: int = 64,
        state: int = 128,
        groups: int = 1,
        conv: int = 4,
        norm: str | None = 'gate_first',
        dt_limits: Sequence[float] = (0.0, math.inf),
        rows_scale: Sequence[float] | None = None,
        bias: bool = False,
        conv_bias: bool = True,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(dim, dim_out)
        size.require('dim_head', dim_head, ConfigError)
        size.require('state', state, ConfigError)
        heads = max(2 * dim // dim_head, 1) if heads is None else heads
        self.set_heads(heads, state, dim_head)
        for name, value in (('groups', groups), ('conv', conv)):
            size.require(name, value, ConfigError)
        if heads % groups:
            raise ConfigError(f'`groups` must divide `heads`, got groups={groups} and heads={heads}')
        one_of('gate_first', 'norm_first', None).require('norm', norm, ConfigError)
        limits.require('dt_limits', dt_limits, ConfigError)
        five.require('rows_scale', rows_scale, ConfigError)
        positive.require('eps', eps, ConfigError)
        self.groups, self.norm, self.scale, self.eps = groups, norm, rows_scale, eps
        self.low, self.high = dt_limits
        inner, shared = heads * dim_head, groups * state
        self.widths = (inner, inner, shared, shared, heads)  # of z, x, B, C, dt
        self.in_proj = nn.Linear(dim, sum(self.widths), bias=bias)
        self.conv = CausalConvolution(inner + 2 * shared, conv, conv_bias)
        self.A_log, self.dt_bias = nn.Parameter(draw_rates(1.0, heads)), nn.Parameter(draw_steps(heads))
        self.D = nn.Parameter(torch.ones(heads))
        if norm is not None:
            self.norm_weight = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, self.dim_out, bias=bias)

    def state_of(self, x: Tensor) -> State:
        return [self.conv.before(x), *super().state_of(x)]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        window, held = self.state_of(x) if state is None else state
        inner, _, shared, _, heads = self.widths
        made = self.in_proj(x)
        if self.scale is not None:
            parts = zip(made.split(self.widths, dim=-1), self.scale, strict=True)
            made = torch.cat([part * factor for part, factor in parts], dim=-1)
        z, mixed, dt = made.split((inner, inner + 2 * shared, heads), dim=-1)
        mixed, window = self.conv(mixed, window, begins, count)
        u, b, c = F.silu(mixed).split((inner, shared, shared), dim=-1)
        with disable_autocast(x):
            u, b, c = to_float(split_heads(u, heads)), split_heads(b, self.groups), split_heads(c, self.groups)
            dt = softplus(split_heads(to_float(dt) + to_float(self.dt_bias), heads))  # b h n 1
            dt = dt if (self.low, self.high) == (0, math.inf) else dt.clamp(self.low, self.high)
            decay = -to_float(self.A_log).exp()[:, None, None] * dt
            y, held = run_chunks(c, b, dt * u, decay, state=held, begins=begins, count=count)
            y = y + to_float(self.D)[:, None, None] * u
            y = self.gate(y.transpose(1, 2).flatten(2), F.silu(to_float(z)))
        return self.out_proj(y.to(x.dtype)), [window, held]

    def gate(self, y: Tensor, gate: Tensor) -> Tensor:
        """Gate and normalize outputs, (b n (h p))."""
        if self.norm is None:
            return y * gate
        y = y * gate if self.norm == 'gate_first' else y
        weight = to_float(self.norm_weight).unflatten(0, (self.groups, -1))
        y = (F.rms_norm(y.unflatten(-1, weight.shape), weight.shape[-1:], eps=self.eps) * weight).flatten(2)
        return y * gate if self.norm == 'norm_first' else y
