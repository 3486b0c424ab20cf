"""The number that the losses of a batch are divided by: that of its targets, or the one of several batches together.

With `num_items_in_batch` a wrapper returns the sum of the losses of its targets, divided by that number:

    loss(batch, N) = (sum of the losses of the targets) / N + (losses that are no mean over targets) * (targets / N)

So the losses of the parts of a batch, each divided by the number of targets of the whole, add up to that of the whole.
Losses of features, and others that are no mean over targets, are the mean of those of the parts, by their targets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.core.checks import NAMED, is_item_count
from x_transformers.flags import format_value

__all__ = ['count_items', 'mean_of_items', 'scale_of_fewer', 'share_of_items']


def count_items(valid: Tensor, num_items: Any = None) -> Any:
    """Return what the sum of the losses of the `valid` targets is divided by: their number, or `num_items`."""
    if num_items is None:
        return valid.sum().clamp(min=1)
    if not is_item_count(num_items):
        raise TypeError(
            f'`num_items_in_batch` must be {NAMED["num_items_in_batch"].allowed.words}, got {format_value(num_items)}'
        )
    # A tensor may say that no batch has a target: then no loss does.
    return num_items.to(valid.device).reshape(()).clamp(min=1) if torch.is_tensor(num_items) else num_items


def share_of_items(valid: Tensor, num_items: Any = None) -> Any:
    """Return which part of all targets the `valid` ones are: 1 without `num_items`."""
    return 1 if num_items is None else valid.sum() / count_items(valid, num_items)


def mean_of_items(losses: Tensor, valid: Tensor, num_items: Any = None) -> Tensor:
    """Return the mean of the losses of the `valid` targets, 0 if there are none, or their sum over `num_items`."""
    return losses.masked_fill(~valid, 0.0).sum() / count_items(valid, num_items)


def scale_of_fewer(places: int, fewer: int) -> float:
    """Return the factor for losses with fewer targets than a row has places, as those of tokens further ahead: with it,
    a sum over `num_items` is their mean where rows are full."""
    return places / max(places - fewer, 1)
