"""RWKV: sums of values by their keys, that fade at a rate of each channel, and its feedforward."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from x_transformers.core.modes import to_float
from x_transformers.flags import ConfigError, positive
from x_transformers.kernels.recurrences import peaks, scan_from
from x_transformers.recurrent.base import Recurrent, State, is_padding, last_real, shift_tokens


def mix_shifted(before: Tensor, new: Tensor, share: Tensor) -> Tensor:
    """Return the previous token plus a share of the difference."""
    return torch.addcmul(before, share.to(new.dtype), new)


class RWKVTimeMix(Recurrent):
    """Means of the values so far by their keys, which fade with distance:

        out = W_o (sigmoid(r) wkv)
        wkv_t = (sum_{i<t} e^(k_i - (t-1-i) w) v_i + e^(u + k_t) v_t) / (the same with v = 1)

    w = exp(time_decay) > 0 and u = time_first of each channel; r, k and v are made from the token and the one before,
    in shares of each channel. Levels run along, so that keys of any size stay finite.  RWKV, arXiv:2305.13048
    """

    def __init__(self, dim: int, dim_out: int | None = None) -> None:
        super().__init__(dim, dim_out)
        self.time_decay = nn.Parameter(torch.linspace(-6.0, -1.0, dim))
        self.time_first = nn.Parameter(torch.full((dim,), math.log(0.3)))
        for letter in 'rkv':
            setattr(self, f'mix_{letter}', nn.Parameter(torch.arange(dim) / dim))
            setattr(self, f'to_{letter}', nn.Linear(dim, dim, bias=False))
        self.to_out = nn.Linear(dim, self.dim_out, bias=False)

    def state_of(self, x: Tensor) -> State:
        """Return sums (b, 2, d) of values and weights, their level (b d), and the last token (b d)."""
        b, like = x.shape[0], to_float(x[:, :0])
        level = like.new_full((b, self.dim), torch.finfo(like.dtype).min / 8)
        return [like.new_zeros(b, 2, self.dim), level, x.new_zeros(b, self.dim)]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        sums, level, last = self.state_of(x) if state is None else state
        before = shift_tokens(x, last, begins)
        new = x - before
        r, k, v = (getattr(self, f'to_{n}')(mix_shifted(before, new, getattr(self, f'mix_{n}'))) for n in 'rkv')
        k, v = to_float(k), to_float(v)
        w = to_float(self.time_decay).exp().expand_as(k)
        if count is not None:
            padding = is_padding(count, x)
            k, w = k.masked_fill(padding, torch.finfo(k.dtype).min / 8), w.masked_fill(padding, 0.0)
        begins = None if begins is None else begins.t().unsqueeze(-1)
        k, v, w = (t.transpose(0, 1) for t in (k, v, w))  # n b d
        tops = peaks(w.detach(), k.detach(), level, begins)
        found, left = self.wkv(k, v, w, tops, (sums, level), begins)
        out = self.to_out(r.sigmoid() * found.transpose(0, 1).to(r.dtype))
        return out, [left, tops[-1].clone(), last_real(x, last, count)]

    def wkv(
        self, k: Tensor, v: Tensor, w: Tensor, tops: Tensor, past: tuple[Tensor, Tensor], begins: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the means (n b d), and the sums of all tokens (b 2 d), at the levels `tops` (n b d)."""
        n, (sums, level) = k.shape[0], past
        earlier = torch.cat((level.unsqueeze(0), tops)).narrow(0, 0, n)
        decay = (earlier - w - tops).exp()
        decay = decay if begins is None else decay.masked_fill(begins, 0.0)
        e = (k - tops).exp()
        every = scan_from(sums, decay.unsqueeze(-2), torch.stack((e * v, e), dim=-2))
        own = k + to_float(self.time_first)
        top = torch.maximum(earlier, own.detach())
        kept = (earlier - top).exp()
        kept = kept if begins is None else kept.masked_fill(begins, 0.0)
        e = (own - top).exp()
        num, den = every[:-1].unbind(-2)
        return (num * kept + e * v) / (den * kept + e), every[-1].clone()


class RWKVChannelMix(Recurrent):
    """A feedforward of a token and the one before:  sigmoid(r) W_v relu(k)^2.  RWKV, arXiv:2305.13048"""

    def __init__(self, dim: int, mult: float = 4) -> None:
        super().__init__(dim)
        positive.require('mult', mult, ConfigError)
        inner = max(int(dim * mult), 1)
        self.mix_r, self.mix_k = (nn.Parameter(torch.arange(dim) / dim) for _ in 'rk')
        self.to_r, self.to_k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(inner, dim, bias=False)

    def state_of(self, x: Tensor) -> State:
        return [x.new_zeros(x.shape[0], self.dim)]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        (last,) = self.state_of(x) if state is None else state
        before = shift_tokens(x, last, begins)
        new = x - before
        k = self.to_k(mix_shifted(before, new, self.mix_k)).relu().square()
        out = self.to_r(mix_shifted(before, new, self.mix_r)).sigmoid() * self.to_v(k)
        return out, [last_real(x, last, count)]
