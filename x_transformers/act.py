"""Adaptive computation time around a recurrent cell, or around any other step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.jit._trace import is_tracing

from x_transformers.core.modes import is_transformed
from x_transformers.features.halting import Halting
from x_transformers.flags import ConfigError, format_value, is_number, not_negative, size

State = Tensor | tuple[Tensor, ...]


class Pondered(NamedTuple):
    """Outputs of `ACT`.

    state     as it was given, the weighted sum of the states after each step
    ponder    ...    N + R of each element: steps, and what is left; 0 of those that are masked
    steps     ...    N, whole numbers
    loss      the mean of `ponder` over real elements, times `ponder_weight`; to be added to the loss
    """

    state: State
    ponder: Tensor
    steps: Tensor
    loss: Tensor


class ACT(nn.Module):
    """One step runs again and again, and each element says after each run how much it counts, and if it halts.

        s_n = transition([x; 1 if n = 1 else 0], s_(n-1))        p_n = sigmoid(W s_n + b)
        N = min {n: p_1 + ... + p_n >= 1 - eps}, or max_steps    R = 1 - (p_1 + ... + p_(N-1))
        state = p_1 s_1 + ... + p_(N-1) s_(N-1) + R s_N          ponder = N + R

        transition      (x, state) -> state, as `nn.GRUCell(dim_in + 1, dim)`; or state -> state, where no x is given
        dim             features of the state; of the first tensor, where the state has several
        halt_bias_init  b at the start; at 1 most elements halt after two steps

    A readout that is linear may read `state`, which gives the weighted sum of readouts, since the weights sum up to 1.
    Elements are the rows of a state of shape (... dim). The transition is given those that go on only, as (rows dim),
    so it must treat each by itself; with `dense=True`, in a compiled graph and in transforms of `torch.func` it is
    given all, in their shape, at each step up to the last. An element that has halted keeps its state.

        state     ... dim, or a tuple of such tensors, as of a `nn.LSTMCell`
        x         ... dim_in
        mask      ...          False: halts before the first step, keeps its state and ponders nothing
        returns   Pondered(state, ponder, steps, loss)
        raises    ConfigError (a ValueError) for options, ValueError for shapes that do not fit

    >>> act = ACT(nn.GRUCell(3 + 1, 8), dim=8)
    >>> act(torch.zeros(2, 8), torch.randn(2, 3)).state.shape
    torch.Size([2, 8])

    Graves 2016, arXiv:1603.08983
    """

    def __init__(
        self,
        transition: Callable[..., Any],
        dim: int,
        eps: float = 0.01,
        max_steps: int = 10,
        ponder_weight: float = 0.01,
        halt_bias_init: float = 1.0,
        dense: bool = False,
    ) -> None:
        super().__init__()
        if not callable(transition):
            raise ConfigError(f'`transition` must be callable as (state) or (x, state), got {format_value(transition)}')
        size.require('dim', dim, ConfigError)
        size.require('max_steps', max_steps, ConfigError)
        if not (is_number(eps) and 0 < eps < 0.5):
            raise ConfigError(f'`eps` must be a number between 0 and 0.5, got {format_value(eps)}')
        not_negative.require('ponder_weight', ponder_weight, ConfigError)
        self.transition, self.dim, self.eps, self.max_steps = transition, dim, eps, max_steps
        self.ponder_weight, self.dense = ponder_weight, dense
        self.halt = nn.Linear(dim, 1)
        nn.init.zeros_(self.halt.weight)
        nn.init.constant_(self.halt.bias, halt_bias_init)

    def forward(self, state: State, x: Tensor | None = None, mask: Tensor | None = None) -> Pondered:
        parts = state if isinstance(state, tuple) else (state,)
        self.check(parts, x, mask)
        widths = [part.shape[-1] for part in parts]
        whole = self.dense or torch.compiler.is_compiling() or is_tracing() or is_transformed()

        def step(s: Tensor, given: Tensor | None, number: int) -> Tensor:
            own = s.split(widths, dim=-1) if isinstance(state, tuple) else s
            if given is None:
                out = self.transition(own)
            else:
                first = given.new_full((*given.shape[:-1], 1), float(number == 1))
                out = self.transition(torch.cat((given, first), dim=-1), own)
            return torch.cat(out, dim=-1) if isinstance(out, tuple) else out

        s = torch.cat(parts, dim=-1)
        halting = Halting(s, mask, self.eps)
        steps = torch.zeros_like(halting.going, dtype=torch.long)
        for number in range(1, self.max_steps + 1):
            going = halting.going
            if whole:
                s = torch.where(going.unsqueeze(-1), step(s, x, number), s)
            elif not bool(going.any()):
                break
            else:
                some = step(s[going], None if x is None else x[going], number)
                s = s.masked_scatter(going.unsqueeze(-1), some.to(s.dtype))
            steps = steps + going
            p = self.halt(s[..., : self.dim]).squeeze(-1).to(halting.spent.dtype).sigmoid()
            halting.step(s, p, number, number == self.max_steps)
        out = halting.result(s)
        out = tuple(out.split(widths, dim=-1)) if isinstance(state, tuple) else out
        return Pondered(out, halting.ponder, steps, self.ponder_weight * halting.mean_ponder())

    def check(self, parts: tuple[Tensor, ...], x: Tensor | None, mask: Tensor | None) -> None:
        shape = parts[0].shape
        if parts[0].ndim < 2 or shape[-1] != self.dim:
            raise ValueError(f'`state` must have shape (..., {self.dim}), got {tuple(shape)}')
        others = [('state', part.shape[:-1]) for part in parts[1:]]
        others += [] if x is None else [('x', x.shape[:-1])]
        others += [] if mask is None else [('mask', mask.shape)]
        for name, other in others:
            if other != shape[:-1]:
                raise ValueError(
                    f'`{name}` has elements of shape {tuple(other)}, those of the state are {tuple(shape[:-1])}'
                )
        if mask is not None and mask.dtype != torch.bool:
            raise ValueError(f'`mask` must be bool, got {mask.dtype}')
