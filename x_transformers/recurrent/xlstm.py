"""The mLSTM of xLSTM: a long short-term memory whose cell is a matrix of each head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.flags import ConfigError, is_number, positive, size
from x_transformers.kernels.chunks import run_chunks
from x_transformers.kernels.recurrences import peaks
from x_transformers.recurrent.base import State, is_padding
from x_transformers.recurrent.gated import MatrixMixer, split_heads

HIGHEST_CAP = 30.0  # Sums of keys times e^cap are far from overflow in float32.


class MatrixLSTM(MatrixMixer):
    """Sums of values by their keys, with exponential input gates i and forget gates f, of each head and token:

        C <- sigmoid(f) C + e^i k v^T,   N <- sigmoid(f) N + e^i k,   m <- max(log sigmoid(f) + m, i)
        o = C^T q / (max(|N q|, 1) + 1e-6 e^m),   out = W_out (layernorm(o) sigmoid(x W_o))

    with i and f = cap tanh((x W + b) / cap), and q times d^-1/2. This is the stabilized form of the paper times e^m:
    gates have a cap, so that sums need no level. The norm is of each head, without bias. mLSTM: xLSTM,
    arXiv:2405.04517; xLSTM 7B, arXiv:2503.13427

    Args:
        heads: number of heads
        dim_head: channels of a key of a head, dim / (2 heads) if None
        dim_value_head: channels of a value of a head, dim / heads if None
        gate_soft_cap: cap of i and f, at most 30
        eps: added to the variance in the norm
    """

    def __init__(
        self, dim: int, dim_out: int | None = None, heads: int = 4, dim_head: int | None = None,
        dim_value_head: int | None = None, gate_soft_cap: float = 15.0, eps: float = 1e-6,
    ) -> None:  # fmt: skip
        super().__init__(dim, dim_out)
        size.require('heads', heads, ConfigError)
        dim_head = max(dim // (2 * heads), 1) if dim_head is None else dim_head
        self.set_heads(heads, dim_head, max(dim // heads, 1) if dim_value_head is None else dim_value_head)
        if not is_number(gate_soft_cap) or not 0 < gate_soft_cap <= HIGHEST_CAP:
            raise ConfigError(f'`gate_soft_cap` must be a number in 0 .. {HIGHEST_CAP:.0f}, got {gate_soft_cap}')
        positive.require('eps', eps, ConfigError)
        self.cap, self.eps, inner = gate_soft_cap, eps, heads * self.dim_value_head
        self.to_q, self.to_k = (nn.Linear(dim, heads * dim_head, bias=False) for _ in 'qk')
        self.to_v, self.to_gate = (nn.Linear(dim, inner, bias=False) for _ in 'vo')
        self.to_input, self.to_forget = (nn.Linear(dim, heads) for _ in 'if')
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.to_out = nn.Linear(inner, self.dim_out, bias=False)
        with torch.no_grad():
            for layer in (self.to_input, self.to_forget, self.to_gate):
                layer.weight.zero_()
            self.to_input.bias.fill_(-10.0)
            self.to_forget.bias.copy_(torch.linspace(3.0, 6.0, heads))

    def state_of(self, x: Tensor) -> State:
        """Return C with N as a last column, (b h d e+1), and m, (b h)."""
        like = to_float(x[:, :0])
        sums = like.new_zeros(x.shape[0], self.heads, self.dim_head, self.dim_value_head + 1)
        return [sums, like.new_zeros(x.shape[0], self.heads)]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        sums, level = self.state_of(x) if state is None else state
        q, k, v = (to_float(split_heads(layer(x), self.heads)) for layer in (self.to_q, self.to_k, self.to_v))
        gates = (to_float(layer(x)) for layer in (self.to_input, self.to_forget))
        i, f = (self.cap * (gate / self.cap).tanh() for gate in gates)  # b n h
        with disable_autocast(x):
            log = F.logsigmoid(f)
            levels = self.run_levels(i, log, level, begins, count)
            k = k * i.exp().transpose(1, 2).unsqueeze(-1)
            v = F.pad(v, (0, 1), value=1.0)
            decay = log.transpose(1, 2).unsqueeze(-1)
            out, sums = run_chunks(q * self.dim_head**-0.5, k, v, decay, state=sums, begins=begins, count=count)
            floor = 1e-6 * levels.exp().permute(1, 2, 0).unsqueeze(-1)
            o = out[..., :-1] / (out[..., -1:].abs().clamp(min=1.0) + floor)
            o = F.layer_norm(o, o.shape[-1:], eps=self.eps).transpose(1, 2).flatten(2) * to_float(self.norm_weight)
        return self.to_out(o.to(x.dtype) * self.to_gate(x).sigmoid()), [sums, levels[-1].clone()]

    def run_levels(self, i: Tensor, log: Tensor, level: Tensor, begins: Tensor | None, count: Tensor | None) -> Tensor:
        """Return m of all tokens, (n b h)."""
        if begins is not None:  # A document begins with m = 0.
            i = torch.where(begins.unsqueeze(-1), torch.maximum(i, log), i)
            begins = begins.t().unsqueeze(-1)
        if count is not None:
            padding = is_padding(count, i)
            i, log = i.masked_fill(padding, torch.finfo(i.dtype).min / 8), log.masked_fill(padding, 0.0)
        return peaks(-log.transpose(0, 1), i.transpose(0, 1), level.to(i.dtype), begins)
