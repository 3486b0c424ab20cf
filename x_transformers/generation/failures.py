"""Errors that name the sequences of a batch for which no token can be chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.checks import can_read_values

__all__ = ['FailedRows', 'no_token_error']


def no_token_error(largest: float, name: str) -> ValueError:
    """Return the error of a row (`name`, such as 'row 1') without a token to choose: its largest logit is -inf where
    nothing was left, NaN or inf where the logits are.
    """
    if largest == -math.inf:
        return ValueError(
            f'{name} has nothing left to choose from: all of its logits are -inf. The model, `logit_bias`, '
            '`banned_tokens`, `allowed_tokens`, a `logits_processor` or a filter must leave a token'
        )
    kind = 'NaN' if math.isnan(largest) else 'infinite'
    return ValueError(
        f'the logits of {name} are {kind}: those of the model, after a `logits_processor` or filter if there is one, '
        'must be finite, or -inf for tokens that are not to be chosen'
    )


class FailedRows:
    """Rows of a batch whose logits allow no choice: all of them are -inf, or some are NaN or inf.

    The largest logit of a row tells, since it is finite otherwise. On the CPU rows are checked as they are added.
    Elsewhere a check waits for the device. It is left to `read`, where callers wait anyway, and to `raise_first` at the
    end.

    Args:
        leading: Axes of the rows, by which the error names one; a single axis if None.
        name: What a row is called in the error.
    """

    def __init__(self, leading: Sequence[int] | None = None, name: str = 'row') -> None:
        self.leading, self.name = leading, name
        self._steps: list[Tensor] = []
        self._looks: bool | None = None

    def add(self, largest: Tensor, ignored: Tensor | None = None) -> None:
        """Note the largest logits (b) of a step, or (s, b) of several. Rows that are `ignored` have not failed."""
        looks = self._looks
        if looks is None or not largest.numel():
            looks = self._looks = can_read_values(largest)
        if looks and math.isfinite(largest.sum().item()):
            return
        largest = largest if ignored is None else largest.masked_fill(ignored, 0.0)
        rows = largest.shape[-1] if largest.ndim else 1
        self._steps.append(largest.reshape(largest.shape[:-1].numel(), rows))
        if looks:
            self.raise_first()

    def read(self, value: Tensor) -> Any:
        """Return a bool or an integer () of the device as such, and check the rows in the same wait for the device."""
        if not self._steps:
            return value.item()
        valid = torch.cat(self._steps).isfinite().all()
        found, valid = torch.stack((value, valid.to(value.dtype))).tolist()
        if not valid:
            self.raise_first()
        self._steps = []
        return found

    def raise_first(self) -> None:
        """Wait for the device, and raise the ValueError of the first row that has failed, if there is one."""
        if not self._steps:
            return
        largest, self._steps = torch.cat(self._steps).cpu(), []
        failed = (~largest.isfinite()).nonzero().tolist()
        if failed:
            step, row = failed[0]
            raise no_token_error(largest[step, row].item(), f'{self.name} {self._index(row)}')

    def _index(self, row: int) -> int | tuple[int, ...]:
        if self.leading is None or len(self.leading) < 2:
            return row
        return tuple(int(at) for at in torch.unravel_index(torch.tensor(row), tuple(self.leading)))
