"""The recurrent block of Griffin: a gated linear recurrence of each channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import to_float
from x_transformers.flags import ConfigError, size
from x_transformers.kernels.recurrences import scan
from x_transformers.recurrent.base import Recurrent, State, is_padding
from x_transformers.recurrent.convolution import CausalConvolution

STEEPEST = 1000.0  # The largest derivative of a square root.


class GriffinBlock(Recurrent):
    """A convolution and a real-gated linear recurrent unit (RG-LRU), with a gate beside them:

        u = conv(x W_x),   r, i = sigmoid(u W + b),   log a = -8 r softplus(recurrent_param)
        H_t = a H_{t-1} + sqrt(1 - a^2) i u,   out = W_out (H gelu(x W_y))

    The matrices of r and i have `heads` blocks. The first token of a row or document enters with the factor 1 in place
    of the root, whose derivative is at most 1000. H is float32 at least. Griffin, arXiv:2402.19427

    Args:
        width: channels of the recurrence, `dim` if None
        heads: blocks of the gates; blocks of 256 channels if None and they divide the width, else one
        conv: tokens of the convolution
        bias: the projections and the convolution have biases
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, width: int | None = None, heads: int | None = None, conv: int = 4,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(dim, dim_out)
        width = dim if width is None else width
        size.require('width', width, ConfigError)
        heads = (width // 256 if width % 256 == 0 else 1) if heads is None else heads
        for name, value in (('heads', heads), ('conv', conv)):
            size.require(name, value, ConfigError)
        if width % heads:
            raise ConfigError(f'`heads` must divide the width, got heads={heads} and width={width}')
        self.linear_x, self.linear_y = (nn.Linear(dim, width, bias=bias) for _ in 'xy')
        self.conv = CausalConvolution(width, conv, bias)
        each, decay = width // heads, torch.empty(width).uniform_(0.81, 0.998)
        self.recurrent_param = nn.Parameter(torch.expm1(-decay.log() / 2).log())
        for name in ('input', 'recurrent'):
            weight = nn.Parameter(torch.randn(heads, each, each) * each**-0.5)
            setattr(self, f'{name}_gate_weight', weight)
            setattr(self, f'{name}_gate_bias', nn.Parameter(torch.zeros(heads, each)))
        self.linear_out = nn.Linear(width, self.dim_out, bias=bias)

    def state_of(self, x: Tensor) -> State:
        """Return the window of the convolution, H (b w), and whether there were tokens, 0 or 1 (b 1)."""
        zeros = to_float(x[:, :0]).new_zeros(x.shape[0], self.linear_x.out_features + 1)
        return [self.conv.before(x), zeros[:, 1:], zeros[:, :1]]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        window, held, started = self.state_of(x) if state is None else state
        u, window = self.conv(self.linear_x(x), window, begins, count)
        r, i = (self.compute_gate(name, u) for name in ('recurrent', 'input'))
        log = -8.0 * r * F.softplus(to_float(self.recurrent_param))
        first = F.pad(1 - started, (0, x.shape[1] - 1)).unsqueeze(-1)  # b n 1
        if begins is not None:
            first = torch.maximum(first, begins.unsqueeze(-1).to(first.dtype))
        factor = torch.lerp(bounded_sqrt(-torch.expm1(2 * log)), torch.ones_like(log), first)
        decay, entered = log.exp(), factor * i * to_float(u)
        if begins is not None:
            decay = decay.masked_fill(begins.unsqueeze(-1), 0.0)
        if count is not None:
            padding = is_padding(count, x)
            decay, entered = decay.masked_fill(padding, 1.0), entered.masked_fill(padding, 0.0)
        every = scan(decay.transpose(0, 1), entered.transpose(0, 1), held.to(decay.dtype))
        new = torch.ones_like(started) if count is None else (count > 0).to(started).unsqueeze(-1)
        started = torch.maximum(started, new)
        out = every.transpose(0, 1).to(x.dtype) * F.gelu(self.linear_y(x), approximate='tanh')
        return self.linear_out(out), [window, every[-1].clone(), started]

    def compute_gate(self, name: str, u: Tensor) -> Tensor:
        """Return r or i (b n w), in float32 at least."""
        weight, bias = getattr(self, f'{name}_gate_weight'), getattr(self, f'{name}_gate_bias')
        blocks = u.unflatten(-1, weight.shape[:2])
        logits = torch.einsum('bnhi,hij->bnhj', blocks, weight.to(u.dtype))
        return (to_float(logits) + to_float(bias)).sigmoid().flatten(-2)


def bounded_sqrt(t: Tensor) -> Tensor:
    """Return the square root, with a derivative of at most `STEEPEST`: near 0 a line has its values."""
    least = (0.5 / STEEPEST) ** 2
    line = STEEPEST * t
    return torch.where(t > least, t.clamp(min=least).sqrt(), line + (t.detach().sqrt() - line.detach()))
