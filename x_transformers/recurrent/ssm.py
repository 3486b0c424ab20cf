"""A linear state-space model with a diagonal matrix."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.core.rows import gather_along
from x_transformers.flags import ConfigError, size
from x_transformers.kernels.recurrences import scan_from
from x_transformers.recurrent.base import Recurrent, State


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
