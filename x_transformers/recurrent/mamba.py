"""Mamba: a state-space model whose steps, inputs and outputs are made from each token."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.flags import ConfigError, one_of, size
from x_transformers.kernels.selective_scan import selective_scan
from x_transformers.recurrent.base import Recurrent, State, is_padding, softplus
from x_transformers.recurrent.convolution import CausalConvolution
from x_transformers.recurrent.gated import draw_steps

NORMS = one_of(False, True, 'affine')


class Mamba(Recurrent):
    """A selective state-space model, with a convolution before it and a gate behind it:

        [u z] = x W_in,   u = silu(conv(u)),   [dt' B C] = u W_x,   dt = softplus(dt' W_dt + bias)
        Z_t = e^(dt A) Z_{t-1} + dt u B,   out = W_out ((Z_t C + D u) silu(z)),   A = -exp(A_log)

    Each of the `expand` dim channels has a state of `state` numbers. They are computed in chunks, in float32 at least;
    of other chunks only the last state is kept. Jamba normalizes dt', B and C. Mamba, arXiv:2312.00752; Jamba,
    arXiv:2403.19887; Falcon Mamba, arXiv:2410.05355

    Args:
        state: numbers per channel
        dt_rank: width of dt', dim / 16, rounded up, if None
        expand: channels per channel of the input
        conv: tokens of the convolution
        norm_inputs: normalize dt', B and C by their root mean squares; 'affine' with weights
        bias: the projections of inputs and outputs have biases
        conv_bias: the convolution has one
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, state: int = 16, dt_rank: int | None = None, expand: int = 2,
        conv: int = 4, norm_inputs: bool | str = False, bias: bool = False, conv_bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(dim, dim_out)
        rank = -(-dim // 16) if dt_rank is None else dt_rank
        for name, value in (('state', state), ('dt_rank', rank), ('expand', expand), ('conv', conv)):
            size.require(name, value, ConfigError)
        NORMS.require('norm_inputs', norm_inputs, ConfigError)
        inner, self.size, self.rank = expand * dim, state, rank
        self.in_proj = nn.Linear(dim, 2 * inner, bias=bias)
        self.conv = CausalConvolution(inner, conv, conv_bias)
        self.x_proj = nn.Linear(inner, rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, self.dim_out, bias=bias)
        with torch.no_grad():
            self.dt_proj.weight.uniform_(-(rank**-0.5), rank**-0.5)
            self.dt_proj.bias.copy_(draw_steps(inner))
        self.norms = nn.ModuleList()  # of dt', B and C
        if norm_inputs:
            self.norms.extend(nn.RMSNorm(n, 1e-6, norm_inputs == 'affine') for n in (rank, state, state))

    def state_of(self, x: Tensor) -> State:
        """Return the window of the convolution, and the state of channels (b s c)."""
        held = to_float(x[:, :0]).new_zeros(x.shape[0], self.size, self.D.shape[0])
        return [self.conv.before(x), held]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        window, held = self.state_of(x) if state is None else state
        u, z = self.in_proj(x).chunk(2, dim=-1)
        u, window = self.conv(u, window, begins, count)
        u = F.silu(u)
        parts = list(self.x_proj(u).split((self.rank, self.size, self.size), dim=-1))
        for at, norm in enumerate(self.norms):
            parts[at] = normalize(parts[at], norm)
        dt = softplus(to_float(self.dt_proj(parts[0])))
        if count is not None:  # padding changes nothing
            dt = dt.masked_fill(is_padding(count, x), 0.0)
        with disable_autocast(x):
            u, b, c = map(to_float, (u, *parts[1:]))
            rates = -to_float(self.A_log).t().contiguous().exp()
            y, held = selective_scan(u, dt, rates, b, c, held.to(u.dtype), begins)
            y = torch.addcmul(y, to_float(self.D), u)
        return self.out_proj(y.to(z.dtype) * F.silu(z)), [window, held]


def normalize(t: Tensor, norm: Any) -> Tensor:
    """Normalize by an RMSNorm, in float32 at least, whatever the precision of its weight."""
    weight = norm.weight
    weight = None if weight is None else to_float(weight)
    return F.rms_norm(to_float(t), t.shape[-1:], weight, norm.eps).to(t.dtype)
