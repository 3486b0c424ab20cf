"""Recurrent modules: layers whose past is a state of fixed size.

    RWKVTimeMix       sums of values by their keys, that fade at a rate of each channel
    RWKVChannelMix    a feedforward that also reads the token before
    DiagonalSSM       a linear state-space model with a diagonal matrix

Each maps x (b n dim) and a state, None at the beginning, to a pair of its output (b n dim_out) and the state that it
leaves. `mask` (b n) says which tokens are real: others are passed over. `document_ids` (b n) which tokens belong
together: others know nothing of one another. They stand beside attention as `attn_hybrid_module`, or in place of it as
layers of kind 'r':  Decoder(dim=64, custom_layers=('r', 'f') * 6, recurrent_module='rwkv').
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_documents, check_vectors, checked, match_precision, zero_masked
from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.core.rows import gather_along
from x_transformers.flags import ConfigError, format_value, positive, size
from x_transformers.kernels.recurrences import peaks, scan_from

State = list[Tensor]


class Recurrent(nn.Module):
    """A module that runs along the tokens: `run(x, state, begins, count)` sees real ones alone, in front.

    begins   b n, where a document begins; None if there is one
    count    b, how many of the tokens are real; None for all
    """

    cuts_documents = state_batch_first = True

    def __init__(self, dim: int, dim_out: int | None = None) -> None:
        super().__init__()
        self.dim, self.dim_out = dim, dim if dim_out is None else dim_out
        size.require('dim', dim, ConfigError)
        size.require('dim_out', self.dim_out, ConfigError)

    @checked
    def forward(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None, document_ids: Tensor | None = None
    ) -> tuple[Tensor, State]:
        x = match_precision(check_vectors(x, 'x', 'b', 'n', self.dim), self)
        mask = as_mask(mask, 'mask', *x.shape[:2], like=x)
        if document_ids is not None:
            check_documents(document_ids, x)
        if state is not None:
            self.check_state(state, x)
        if document_ids is not None and state is not None:
            raise ValueError('`document_ids` cannot be combined with `state`: documents are complete')
        if x.shape[1] == 0:
            return self.nothing(x), self.state_of(x) if state is None else state
        if mask is None and document_ids is None:
            return self.run(x, state, None, None)
        x = zero_masked(x, mask)
        # documents side by side, padding behind them
        token_mask: Any = mask
        order = (~token_mask).to(torch.uint8) if document_ids is None else document_ids
        order, begins = order.argsort(dim=-1, stable=True), None
        if document_ids is not None:
            if mask is not None:
                order = order.gather(-1, (~mask.gather(-1, order)).to(torch.uint8).argsort(dim=-1, stable=True))
            ids = document_ids.gather(-1, order)
            begins = F.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)
        count = None if mask is None else mask.sum(dim=-1)
        out, state = self.run(gather_along(x, order, -2), state, begins, count)
        return gather_along(out, order.argsort(dim=-1), -2), state

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        raise NotImplementedError

    def state_of(self, x: Tensor) -> State:
        """Return the state before the first token."""
        raise NotImplementedError

    def check_state(self, state: State, x: Tensor) -> None:
        wanted, given = [tuple(t.shape) for t in self.state_of(x)], state
        if isinstance(state, (list, tuple)):
            given = [tuple(t.shape) if torch.is_tensor(t) and t.is_floating_point() else t for t in state]
        if torch.is_tensor(given) or given != wanted:
            raise ValueError(f'`state` must be that of the part before, tensors of {wanted}, got {format_value(given)}')

    def nothing(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:2], self.dim_out)


def shift_tokens(x: Tensor, last: Tensor, begins: Tensor | None) -> Tensor:
    """Return the previous token of each, zeros at the start of a document."""
    before = torch.cat((last.to(x.dtype).unsqueeze(1), x[:, :-1]), dim=1)
    return before if begins is None else before.masked_fill(begins.unsqueeze(-1), 0.0)


def last_real(x: Tensor, last: Tensor, count: Tensor | None) -> Tensor:
    """Return the last of the first `count` tokens, or `last` if there are none."""
    if count is None:
        return x[:, -1].clone()
    every = torch.cat((last.to(x.dtype).unsqueeze(1), x), dim=1)
    return gather_along(every, count.unsqueeze(-1), -2).squeeze(1)


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
            padding = (torch.arange(x.shape[1], device=x.device) >= count.unsqueeze(-1)).unsqueeze(-1)
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


class DiagonalSSM(Recurrent):
    """A linear state-space model of each channel, with `state` complex numbers, held from token to token:

        x_t = A' x_{t-1} + B' u_t,   y_t = Re(C x_t) + D u_t,   A' = e^(dt A),  B' = (A' - 1) / A B

    A is diagonal, with real parts below zero. Chunks are products of matrices, and a scan runs from chunk to chunk.
    S4D, arXiv:2206.11893; diagonal state spaces, arXiv:2203.14343
    """

    chunk = 128

    def __init__(self, dim: int, state: int = 64, dim_out: int | None = None) -> None:
        super().__init__(dim, dim_out)
        size.require('state', state, ConfigError)
        self.size = state
        self.log_a_real = nn.Parameter(torch.full((dim, state), math.log(0.5)))
        self.a_imag = nn.Parameter(torch.linspace(0.0, math.pi * (state - 1), state).repeat(dim, 1))
        self.b = nn.Parameter(torch.stack((torch.ones(dim, state), torch.zeros(dim, state)), dim=-1))
        self.c = nn.Parameter(torch.randn(dim, state, 2) * 0.5**0.5)
        self.d = nn.Parameter(torch.ones(dim))
        low, high = math.log(1e-3), math.log(0.1)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(dim))
        self.to_out = nn.Identity() if self.dim_out == dim else nn.Linear(dim, self.dim_out, bias=False)

    def state_of(self, x: Tensor) -> State:
        """Return real and imaginary parts, (b, d, 2s)."""
        return [to_float(x[:, :0]).new_zeros(x.shape[0], self.dim, 2 * self.size)]

    def discrete(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log A', B' and C as complex numbers (d s)."""
        token_mask, imag, dt = (to_float(t) for t in (self.log_a_real, self.a_imag, self.log_dt))
        a = torch.complex(-token_mask.exp(), imag)
        log_a = a * dt.exp().unsqueeze(-1)
        b, c = (torch.view_as_complex(to_float(t).contiguous()) for t in (self.b, self.c))
        return log_a, expm1(log_a) / a * b, c

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        with disable_autocast(x):
            y, left = self.outputs(to_float(x), self.state_of(x) if state is None else state, begins, count)
        return self.to_out(y.to(x.dtype)), [left]

    def outputs(self, u: Tensor, state: State, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, Tensor]:
        (held,) = state
        log_a, b, c = self.discrete()
        if count is not None:
            token_mask = torch.arange(u.shape[1], device=u.device) < count.unsqueeze(-1)
            u = u.masked_fill(~token_mask.unsqueeze(-1), 0.0)
        y, left = self.in_chunks(u, held, log_a, b, c, begins)
        if count is not None:
            # tokens that are passed over let nothing fade: those that are real end the row
            order = (torch.arange(u.shape[1], device=u.device) + count.unsqueeze(-1)) % u.shape[1]
            _, left = self.in_chunks(gather_along(u, order, -2), torch.zeros_like(held), log_a, b, c, None)
            kept = exp(log_a * count.view(-1, 1, 1))
            left = left + parts(kept * concat_parts(held))
        return y + to_float(self.d) * u, left.contiguous()  # steps that are compiled find one layout

    def in_chunks(
        self, u: Tensor, held: Tensor, log_a: Tensor, b: Tensor, c: Tensor, begins: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs without D (b, n, d), and the state after the last token (b, d, 2s)."""
        n, compiled = u.shape[1], torch.compiler.is_compiling()
        if n == 1 and begins is None and not compiled:
            state = exp(log_a) * concat_parts(held) + b * u.mT
            return (c * state).real.sum(dim=-1).unsqueeze(1), parts(state)
        size = 16 if compiled or begins is not None else min(get_size(n), self.chunk, n)
        chunks = n // size + 2 if compiled else -(-n // size)  # a graph does not ask whether there are several
        rows = F.pad(u, (0, 0, 0, chunks * size - n)).unflatten(1, (chunks, size))  # b N c d
        at = torch.arange(size + 1, device=u.device)
        powers = get_powers(log_a, size)  # d s 1+c
        kernel = torch.einsum('ds,dsl->dl', b * c, powers[..., :-1]).real
        into = parts(b.unsqueeze(-1) * powers[..., :-1].flip(-1), 1)  # d 2s c
        out_of = c.unsqueeze(-1) * powers[..., 1:]
        out_of = torch.cat((out_of.real, -out_of.imag), dim=1)
        decay, own, reads = powers[..., -1].expand(chunks, 1, -1, -1), rows, None
        if begins is None:
            near = at[:-1].unsqueeze(-1) - at[:-1]
            inside = torch.einsum('bnjd,dij->bnid', rows, torch.where(near >= 0, kernel[:, near.clamp(min=0)], 0.0))
        else:
            document = F.pad(begins.cumsum(dim=-1), (0, chunks * size - n)).unflatten(1, (chunks, size))
            ends = document[..., -1:]
            earlier = torch.cat((torch.zeros_like(ends[:, :1]), ends), dim=1).narrow(1, 0, chunks)
            inside = run_in_documents(rows, kernel, document)
            own, reads = rows * (document == ends).unsqueeze(-1), (document == earlier).unsqueeze(-1)
            decay = decay * (ends == earlier).transpose(0, 1).unsqueeze(-1)
        start = concat_parts(held)
        states = scan_from(start, decay, concat_parts(torch.einsum('bnjd,dxj->nbdx', own, into)))
        known = states[:-1]
        found = torch.einsum('nbdx,dxi->bnid', parts(known), out_of)
        y = (inside + (found if reads is None else found * reads)).flatten(1, 2).narrow(1, 0, n)
        if not compiled and n == chunks * size:
            return y, parts(states[-1])
        # the last chunk ends with fillers, and may be of fillers alone in a graph
        last = -2 if compiled else -1
        count = n - (chunks + last) * size
        left = count - 1 - at[:-1]
        weights = b.unsqueeze(-1) * torch.where(left >= 0, powers[..., left.clamp(min=0)], 0.0)
        new = torch.einsum('bjd,dxj->bdx', rows[:, last], parts(weights, 1))
        return y, new + parts(known[last] * exp(log_a * count))


def get_size(n: int) -> int:
    """Return the chunk size: longer chunks need longer tables, shorter ones more steps."""
    return max(1 << (math.isqrt(n) - 1).bit_length(), 16) if n else 1


def get_powers(log: Tensor, most: int) -> Tensor:
    """Return e^(i log), i = 0 .. most:  ... -> ... 1+most, as products of a few exponentials, which are slow."""
    steps = math.isqrt(most) + 1
    at = torch.arange(steps, device=log.device)
    few, apart = exp(log.unsqueeze(-1) * at), exp(log.unsqueeze(-1) * (at * steps))
    return (apart.unsqueeze(-1) * few.unsqueeze(-2)).flatten(-2)[..., : most + 1]


def exp(t: Tensor) -> Tensor:
    """Return e^t of complex numbers, by functions of real numbers, which are faster."""
    size = t.real.exp()
    return torch.complex(size * t.imag.cos(), size * t.imag.sin())


def expm1(t: Tensor) -> Tensor:
    """Return e^t - 1 of complex numbers, also of small ones."""
    x, y = t.real, t.imag
    return torch.complex(torch.expm1(x) * y.cos() - 2 * (y / 2).sin().square(), x.exp() * y.sin())


def run_in_documents(rows: Tensor, kernel: Tensor, document: Tensor) -> Tensor:
    """Convolve in chunks (b, N, c, d), not across documents (b, N, c), one distance at a time."""
    found, size = rows * kernel[:, 0], rows.shape[2]
    for by in range(1, size):
        same = (document[..., by:] == document[..., :-by]).unsqueeze(-1)
        found = found + F.pad(rows[:, :, :-by] * same * kernel[:, by], (0, 0, by, 0))
    return found


def parts(t: Tensor, dim: int = -1) -> Tensor:
    """Concatenate the real and imaginary parts of complex numbers."""
    return torch.cat((t.real, t.imag), dim=dim)


def concat_parts(t: Tensor) -> Tensor:
    return torch.complex(*t.chunk(2, dim=-1))
