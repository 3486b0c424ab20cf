"""Mixers whose state is a matrix of each head, which fades: the gated delta rule, gated linear attention, lightning."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.flags import Check, ConfigError, is_number, none, one_of, positive, size
from x_transformers.kernels.chunks import run_chunks
from x_transformers.recurrent.base import Recurrent, State, softplus
from x_transformers.recurrent.convolution import CausalConvolution

GATES: dict[str, Callable[[Tensor], Tensor]] = {'silu': F.silu, 'sigmoid': torch.sigmoid}
rank = size | one_of('dim_head', None)
below_zero = Check('a number below 0', lambda value: is_number(value) and value < 0, 'float') | none


def split_heads(t: Tensor, heads: int) -> Tensor:
    """b n (h d) -> b h n d"""
    return t.unflatten(-1, (heads, -1)).transpose(1, 2)


def normalize(t: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return  t / sqrt(mean(t^2) + eps) * weight  over the last axis, in the dtype of t."""
    return F.rms_norm(t, t.shape[-1:], weight.to(t.dtype), eps)


def draw_steps(*shape: int) -> Tensor:
    """Draw step sizes, log-uniform in 0.001 .. 0.1: as what softplus maps to them."""
    dt = torch.empty(shape).uniform_(-6.907755, -2.302585).exp().clamp(min=1e-4)
    return dt + torch.log(-torch.expm1(-dt))


def draw_rates(low: float, *shape: int) -> Tensor:
    """Draw logarithms of rates that are uniform in `low` .. 16."""
    return torch.empty(shape).uniform_(low, 16.0).clamp(min=1e-4).log()


def project(dim: int, dim_out: int, rank: int | str | None, dim_head: int, bias: bool = False) -> nn.Module:
    """Build a linear map, through a few channels if `rank` is given: their number, or 'dim_head'."""
    if rank is None:
        return nn.Linear(dim, dim_out, bias=bias)
    rank = int(dim_head if rank == 'dim_head' else rank)
    return nn.Sequential(nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim_out, bias=bias))


class MatrixMixer(Recurrent):
    """A recurrent module with a state of (d, e) of each head, in float32 at least."""

    span = 2048
    heads: int
    dim_head: int
    dim_value_head: int

    def set_heads(self, heads: int, dim_head: int, dim_value_head: int) -> None:
        for name, value in (('heads', heads), ('dim_head', dim_head), ('dim_value_head', dim_value_head)):
            size.require(name, value, ConfigError)
            setattr(self, name, value)

    def state_of(self, x: Tensor) -> State:
        return [to_float(x[:, :0]).new_zeros(x.shape[0], self.heads, self.dim_head, self.dim_value_head)]


class GatedDelta(MatrixMixer):
    """The gated delta rule: the state fades, then takes a part of its error for the newest key back:

        S <- exp(g) S;   S <- S + beta k (v - S^T k)^T;   o = S^T q;   out = (rms(o) * gate(x W_z)) W_o
        [q k v] = silu(conv([x W_q, x W_k, x W_v])),  q and k of length one, q d^-1/2,  beta = sigmoid(x W_b)
        g = -exp(A_log) softplus(x W_a + dt_bias)   or with `decay_low`   g = low sigmoid(exp(A_log) (x W_a + dt_bias))

    Gated DeltaNet, arXiv:2412.06464. With a decay of each channel, a gate by sigmoid and maps of low rank this is
    Kimi delta attention ('kda'), arXiv:2510.26692; without a decay, the delta rule, arXiv:2406.06484.

    Args:
        heads: heads of values
        key_heads: heads of queries and keys, of which neighbors among `heads` share one; `heads` if None
        dim_value_head: channels of a value, `dim_head` if None
        conv: tokens that the convolution of queries, keys and values spans
        decay: 'head' for one decay per head, 'channel' for one per channel of keys, None for none
        decay_rank: channels between the two maps that make decays; 'dim_head' for as many as a head has; None for one
            map
        decay_low: lower bound of the logarithm of decays, below 0; None for unbounded ones
        gate: function of the output gate, 'silu' or 'sigmoid'; None for no gate
        gate_rank: channels between the two maps of the output gate, as `decay_rank`
        allow_negative: beta is up to 2, so that the state may change its sign along a key
        qk_l2norm: scale queries and keys to length one
        eps: added to the mean square in the norm of the output
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        heads: int = 4,
        key_heads: int | None = None,
        dim_head: int = 64,
        dim_value_head: int | None = None,
        conv: int = 4,
        decay: str | None = 'head',
        decay_rank: int | str | None = None,
        decay_low: float | None = None,
        gate: str | None = 'silu',
        gate_rank: int | str | None = None,
        allow_negative: bool = False,
        qk_l2norm: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, dim_out)
        self.set_heads(heads, dim_head, dim_head if dim_value_head is None else dim_value_head)
        self.key_heads = heads if key_heads is None else key_heads
        size.require('key_heads', self.key_heads, ConfigError)
        if heads % self.key_heads:
            raise ConfigError(f'`key_heads` must divide `heads`, got key_heads={key_heads} and heads={heads}')
        one_of('head', 'channel', None).require('decay', decay, ConfigError)
        if decay is None and (decay_rank is not None or decay_low is not None):
            raise ConfigError('`decay_rank` and `decay_low` cannot be combined with `decay=None`: nothing fades')
        size.require('conv', conv, ConfigError)
        below_zero.require('decay_low', decay_low, ConfigError)
        one_of(*GATES, None).require('gate', gate, ConfigError)
        if gate is None and gate_rank is not None:
            raise ConfigError('`gate_rank` cannot be combined with `gate=None`: there is no gate')
        positive.require('eps', eps, ConfigError)
        for name, value in (('decay_rank', decay_rank), ('gate_rank', gate_rank)):
            rank.require(name, value, ConfigError)
        self.decay, self.low, self.gate, self.eps = decay, decay_low, gate, eps
        self.most, self.unit = 2.0 if allow_negative else 1.0, qk_l2norm
        inner = heads * self.dim_value_head
        self.widths = (self.key_heads * dim_head, self.key_heads * dim_head, inner)
        self.to_qkv = nn.Linear(dim, sum(self.widths), bias=False)
        self.conv = CausalConvolution(sum(self.widths), conv)
        self.to_beta = nn.Linear(dim, heads, bias=False)
        if decay is not None:
            channels = heads * (1 if decay == 'head' else dim_head)
            self.to_decay = project(dim, channels, decay_rank, dim_head)
            self.A_log = nn.Parameter(draw_rates(0.0 if decay == 'head' else 1.0, heads))
            self.dt_bias = nn.Parameter(draw_steps(channels))
        if gate is not None:
            self.to_gate = project(dim, inner, gate_rank, dim_head)
        self.norm_weight = nn.Parameter(torch.ones(self.dim_value_head))
        self.to_out = nn.Linear(inner, self.dim_out, bias=False)

    def state_of(self, x: Tensor) -> State:
        return [self.conv.before(x), *super().state_of(x)]

    def log_decay(self, x: Tensor) -> Tensor | None:
        """Return logarithms of decays (b h n 1) or (b h n d)."""
        if self.decay is None:
            return None
        rate, a = to_float(self.A_log).exp()[:, None, None], to_float(self.to_decay(x)) + to_float(self.dt_bias)
        a = split_heads(a, self.heads)
        return -rate * softplus(a) if self.low is None else self.low * (rate * a).sigmoid()

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        window, held = self.state_of(x) if state is None else state
        mixed, window = self.conv(self.to_qkv(x), window, begins, count)
        q, k, v = F.silu(mixed).split(self.widths, dim=-1)
        beta, decay = split_heads(self.to_beta(x), self.heads), self.log_decay(x)
        with disable_autocast(x):
            q, k = (to_float(split_heads(t, self.key_heads)) for t in (q, k))
            if self.unit:
                q, k = (t * (t.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt() for t in (q, k))
            q = q * self.dim_head**-0.5
            if self.key_heads != self.heads:
                q, k = (t.repeat_interleave(self.heads // self.key_heads, dim=1) for t in (q, k))
            rate = self.most * to_float(beta).sigmoid()
            o, held = run_chunks(
                q, rate * k, split_heads(v, self.heads), decay, k, state=held, begins=begins, count=count
            )
            o = normalize(o.transpose(1, 2), to_float(self.norm_weight), self.eps).flatten(2)  # b n (h e)
        if self.gate is not None:
            o = o * GATES[self.gate](to_float(self.to_gate(x)))
        return self.to_out(o.to(x.dtype)), [window, held]


class GatedLinearAttention(MatrixMixer):
    """Sums of values by their keys, where each channel of keys fades at a rate of each token:

        S <- diag(exp(g)) S + k v^T;   o = S^T q d^-1/2;   out = (rms(o) * silu(x W_r)) W_o
        g = logsigmoid((x W_1) W_2 + b) / tau

    Gated linear attention, arXiv:2312.06635

    Args:
        dim_head: channels of a key, `dim / (2 heads)` if None
        dim_value_head: channels of a value, `dim / heads` if None
        tau: divisor of the logarithms of decays: larger ones let states fade more slowly
        decay_rank: channels between the two maps W_1 and W_2
        eps: added to the mean square in the norm of the output
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        heads: int = 4,
        dim_head: int | None = None,
        dim_value_head: int | None = None,
        tau: float = 16.0,
        decay_rank: int = 16,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(dim, dim_out)
        size.require('heads', heads, ConfigError)
        dim_head = max(dim // (2 * heads), 1) if dim_head is None else dim_head
        self.set_heads(heads, dim_head, max(dim // heads, 1) if dim_value_head is None else dim_value_head)
        positive.require('tau', tau, ConfigError)
        size.require('decay_rank', decay_rank, ConfigError)
        positive.require('eps', eps, ConfigError)
        self.tau, self.eps, inner = tau, eps, heads * self.dim_value_head
        self.widths = (heads * dim_head, heads * dim_head, inner, inner)
        self.to_qkvr = nn.Linear(dim, sum(self.widths), bias=False)
        self.to_decay = project(dim, heads * dim_head, decay_rank, dim_head, bias=True)
        self.norm_weight = nn.Parameter(torch.ones(self.dim_value_head))
        self.to_out = nn.Linear(inner, self.dim_out, bias=False)

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        (held,) = self.state_of(x) if state is None else state
        *qkv, r = self.to_qkvr(x).split(self.widths, dim=-1)
        q, k, v = (split_heads(t, self.heads) for t in qkv)
        a = self.to_decay(x)
        with disable_autocast(x):
            decay = F.logsigmoid(split_heads(to_float(a), self.heads)) / self.tau
            o, held = run_chunks(q, to_float(k) * self.dim_head**-0.5, v, decay, state=held, begins=begins, count=count)
            o = normalize(o.transpose(1, 2), to_float(self.norm_weight), self.eps).flatten(2) * F.silu(to_float(r))
        return self.to_out(o.to(x.dtype)), [held]


class LightningAttention(MatrixMixer):
    """Sums of values by their keys, where each head fades at a fixed rate s, more slowly in later layers:

        S <- exp(-s_i) S + k v^T;   o = S^T q;   out = (sigmoid(x W_g) * rms(o)) W_o,   [q k v] = silu(x W)
        s_i = 2^(-8 (i + 1) / h) (1 - l / (L - 1 + 1e-5) + 1e-5)

    of head i in layer l of L layers that mix tokens. The norm is over all heads together.
    Lightning attention, arXiv:2401.04658; MiniMax-01, arXiv:2501.08313

    Args:
        place: index of the layer, and number of layers: l and L
        eps: added to the mean square in the norm of the output
    """

    def __init__(
        self,
        dim: int,
        dim_out: int | None = None,
        heads: int = 4,
        dim_head: int = 64,
        eps: float = 1e-6,
        place: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(dim, dim_out)
        self.set_heads(heads, dim_head, dim_head)
        positive.require('eps', eps, ConfigError)
        self.place, self.eps, inner = place, eps, heads * dim_head
        self.to_qkv, self.to_gate = nn.Linear(dim, 3 * inner, bias=False), nn.Linear(dim, inner, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(inner))
        self.to_out = nn.Linear(inner, self.dim_out, bias=False)

    def slopes(self, like: Tensor) -> Tensor:
        """Return how much the logarithm of what is left falls at each token, (h)."""
        layer, layers = self.place
        at = torch.arange(1, self.heads + 1, device=like.device).to(like.dtype)
        return torch.exp2(-8 / self.heads * at) * (1 - layer / (layers - 1 + 1e-5) + 1e-5)

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        (held,) = self.state_of(x) if state is None else state
        q, k, v = (split_heads(t, self.heads) for t in F.silu(self.to_qkv(x)).chunk(3, dim=-1))
        gate = self.to_gate(x)
        with disable_autocast(x):
            decay = -self.slopes(to_float(x))[:, None, None].expand(1, -1, x.shape[1], 1)
            o, held = run_chunks(q, k, v, decay, state=held, begins=begins, count=count)
            o = normalize(o.transpose(1, 2).flatten(2), to_float(self.norm_weight), self.eps)
            o = o * to_float(gate).sigmoid()
        return self.to_out(o.to(x.dtype)), [held]
