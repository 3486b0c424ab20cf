"""`Recurrent`, the base of modules that run along the tokens with a state of fixed size, and its helpers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_documents, check_vectors, checked, match_precision, zero_masked
from x_transformers.core.rows import gather_along
from x_transformers.flags import ConfigError, format_value, size

State = list[Tensor]


class Recurrent(nn.Module):
    """A module that runs along the tokens: `run(x, state, begins, count)` sees real ones alone, in front.

    begins   b n, where a document begins; None if there is one
    count    b, how many of the tokens are real; None for all

    `span` is how many tokens run at once, outside of compiled graphs: what fits into the cache of a core. None for all.
    """

    cuts_documents = state_batch_first = True
    span: int | None = None

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
            return self.run_spans(x, state)
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

    def run_spans(self, x: Tensor, state: State | None) -> tuple[Tensor, State]:
        if self.span is None or torch.compiler.is_compiling() or x.shape[1] <= self.span:
            return self.run(x, state, None, None)
        outs = []
        for part in x.split(self.span, dim=1):
            out, state = self.run(part, state, None, None)
            outs.append(out)
        assert state is not None
        return torch.cat(outs, dim=1), state

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


def is_padding(count: Tensor, x: Tensor) -> Tensor:
    """Return which tokens of x (b n d) stand behind the first `count` ones, (b, n, 1)."""
    return (torch.arange(x.shape[1], device=x.device) >= count.unsqueeze(-1)).unsqueeze(-1)


def softplus(t: Tensor) -> Tensor:
    """Compute log(1 + e^t). The gradient of torch's own function has other strides in a graph than on a CPU."""
    return torch.logaddexp(t, t.new_zeros(()))
