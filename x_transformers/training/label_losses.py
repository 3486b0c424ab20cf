"""Losses of labels of sequences or tokens: classes, multiple labels, or numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.checks import can_read_values, check_range, check_tensor
from x_transformers.core.modes import to_float
from x_transformers.flags import Check, ConfigError, is_number
from x_transformers.training.items import count_items, mean_of_items, share_of_items
from x_transformers.training.masking import IGNORED
from x_transformers.training.token_loss import next_token_loss

REGRESSION, SINGLE, MULTI = 'regression', 'single_label_classification', 'multi_label_classification'
PROBLEMS = (REGRESSION, SINGLE, MULTI)
a_weight_each = Check(
    'a list or tuple of finite numbers of at least 0, one for each class',
    lambda value: isinstance(value, (tuple, list)) and all(is_number(one) and 0 <= one < math.inf for one in value),
    'Sequence[float]',
)


class OfClasses(NamedTuple):
    """Options of the loss of classes: `label_smoothing`, and a weight for each class."""

    label_smoothing: float = 0.0
    class_weights: Sequence[float] | None = None


def check_one_class(problem: str | None, num_labels: int, name: str) -> None:
    """Refuse a loss of one class, of which there is nothing to choose."""
    if problem == SINGLE and num_labels == 1:
        raise ConfigError(f'`problem_type` got {SINGLE!r}, it needs `{name}` of at least 2, got 1')


def check_terms(problem: str | None, num_labels: int, terms: OfClasses, kind: str | None = None) -> None:
    """Refuse options of classes where there are none."""
    weights = terms.class_weights
    if weights is not None and len(weights) != num_labels:
        raise ConfigError(f'`class_weights` must be {num_labels}, one for each class, got {len(weights)} numbers')
    for option, value in terms._asdict().items():
        if value and (num_labels == 1 or problem in (REGRESSION, MULTI) or kind == 'span'):
            raise ConfigError(f'`{option}` got {value!r}, it is for classes, of which a row or a token has one')


def check_items_of_labels(labels: Any, num_items: Any) -> None:
    """Refuse a number of items without labels: there is no loss."""
    if labels is None and num_items is not None:
        raise ValueError('`num_items_in_batch` needs `labels`: without them there is no loss')


def get_problem(labels: Tensor, logits: Tensor, problem: str | None) -> str:
    """Return the kind of the problem: as it is set, or numbers for one output; else labels that are whole numbers are
    classes, and others, or one for each output, say how far it holds."""
    if problem is not None or logits.shape[-1] == 1:
        return problem or REGRESSION
    return MULTI if labels.is_floating_point() or labels.shape == logits.shape else SINGLE


def label_loss(
    logits: Tensor,
    labels: Tensor,
    real: Tensor | None = None,
    problem: str | None = None,
    num_items: Any = None,
    what: str = 'labels',
    terms: OfClasses | None = None,
) -> Tensor:
    """Return the mean loss of labels, 0 if none counts:

        regression     (z - y)^2                            y numbers
        single label   cross entropy, as that of PyTorch    y from 0 to l - 1, -100 for none
        multi-label    binary cross entropy of each logit   y from 0 to 1, -100 for none

    Logits (... l) are of rows (b l) or tokens (b n l), of which those in `real` (...) count; labels (...) of classes,
    (... l) of the other two, or (...) where l is 1. Without a `problem`, one of `PROBLEMS`, `get_problem` tells by the
    labels. `num_items` divides the sum of the losses in place of the number of labels, `what` is the word for labels in
    messages about their range, and `terms` are options of the cross entropy.

    Raises:
        TypeError: Labels of classes are no whole numbers.
        ValueError: Labels have another shape, or are out of range.
    """
    count, shape = logits.shape[-1], tuple(logits.shape[:-1])
    kind = get_problem(check_tensor(labels, 'labels'), logits, problem)
    got = f'`labels` got {labels.dtype} of shape {tuple(labels.shape)}'
    if kind == SINGLE:
        if labels.shape != shape:
            raise ValueError(f'{got}, they must be whole numbers {shape}, or numbers {(*shape, count)} for each label')
        if labels.is_floating_point() or labels.is_complex():
            raise TypeError(f'{got}, they must be whole numbers, as there are several classes')
        labels = labels if real is None else labels.masked_fill(~real, IGNORED)
        known = labels[labels != IGNORED] if can_read_values(labels) else labels
        check_range(known, 'labels', 0, count - 1, what)
        if terms is not None and any(terms):
            return class_loss(logits, labels.long(), num_items, *terms)
        return next_token_loss(logits, labels.long(), ignore_index=IGNORED, num_items=num_items)
    if terms is not None and any(terms) and kind == MULTI:
        name = next(name for name, value in terms._asdict().items() if value)
        raise ValueError(f'{got}, several for each row or token, and `{name}` is for classes, of which there is one')
    if count == 1 and labels.shape == shape:
        labels = labels.unsqueeze(-1)
    if labels.shape != logits.shape:
        also = f' or {shape}' if count == 1 else ''
        if problem is None and labels.shape == shape and count > 1:
            raise TypeError(f'{got}, they must be whole numbers, as there are several classes, or {(*shape, count)}')
        raise ValueError(f'{got}, they must be {tuple(logits.shape)}{also}')
    logits = to_float(logits)
    valid = torch.ones_like(labels, dtype=torch.bool) if real is None else real.unsqueeze(-1).expand(labels.shape)
    if kind == MULTI:
        valid = valid & (labels != IGNORED)
    # What does not count may be NaN: it is left out before and after the loss.
    found, wanted = logits.masked_fill(~valid, 0.0), labels.to(logits.dtype).masked_fill(~valid, 0.0)
    if kind == REGRESSION:
        return mean_of_items((found - wanted).square(), valid, num_items)
    if can_read_values(wanted) and bool(((wanted < 0) | (wanted > 1)).any()):
        raise ValueError(f'`labels` must be from 0 to 1 or {IGNORED}, got {wanted.min():g} to {wanted.max():g}')
    return mean_of_items(F.binary_cross_entropy_with_logits(found, wanted, reduction='none'), valid, num_items)


def class_loss(
    logits: Tensor, labels: Tensor, num_items: Any, label_smoothing: float, class_weights: Sequence[float] | None
) -> Tensor:
    """Return what `torch.nn.functional.cross_entropy` does of logits (... l), 0 if no label counts. With `num_items`,
    the weighted sum divided by that."""
    logits, labels = to_float(logits).flatten(0, -2), labels.flatten()
    weights = None if class_weights is None else logits.new_tensor(class_weights)
    total = F.cross_entropy(logits, labels, weights, None, IGNORED, None, 'sum', label_smoothing)
    valid = labels != IGNORED
    if num_items is None and weights is not None:
        whole = weights[labels.clamp(min=0)].masked_fill(~valid, 0.0).sum()
        return total / whole.masked_fill(whole == 0, 1.0)
    return total / count_items(valid, num_items)


def span_loss(logits: Tensor, labels: Tensor, real: Tensor | None = None, num_items: Any = None) -> Tensor:
    """Return the mean of the losses of starts and of ends, each a mean of cross entropies over all real places.

    As in `transformers`, a place outside of the row is one to ignore: the answer was cut off.

    `labels` are places in logits (b, n, 2) of starts and ends, (b, 2); -100, `n` and more, or padding, for none.
    With `num_items`, the sum of the losses is divided by that, in place of their mean.

    Raises:
        ValueError: Labels have another shape or dtype, or are below zero.
    """
    wanted = (len(logits), 2)
    if check_tensor(labels, 'labels').shape != wanted or labels.is_floating_point():
        got = f'{labels.dtype} of shape {tuple(labels.shape)}'
        raise ValueError(f'`labels` must be whole numbers {wanted}, got {got}: where spans start and end')
    labels = labels.long()
    ignored = labels >= logits.shape[1]
    if real is not None:
        ignored = ignored | ~real.gather(1, labels.clamp(0, logits.shape[1] - 1))
        logits = logits.masked_fill(~real.unsqueeze(-1), torch.finfo(logits.dtype).min)
    labels = labels.masked_fill(ignored & (labels >= 0), IGNORED)
    known = labels[labels != IGNORED] if can_read_values(labels) else labels
    check_range(known, 'labels', 0, logits.shape[1] - 1, 'places')
    starts, ends = (
        next_token_loss(logits[..., i], labels[:, i], ignore_index=IGNORED, num_items=num_items) for i in (0, 1)
    )
    return (starts + ends) / (2 if num_items is None else 1)


def loss_with_share(
    loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, mask: Tensor | None, num_items: Any
) -> tuple[Tensor, Any]:
    """Return the loss of a wrapper, and the share of its labels in `num_items`, 1 without."""
    if num_items is None:
        return loss(logits, labels, mask), 1
    counted = labels != IGNORED
    if mask is not None:
        token_mask = mask if mask.shape == labels.shape[:2] else mask.any(dim=-1)
        counted = counted & token_mask.view(*token_mask.shape, *[1] * (labels.ndim - token_mask.ndim))
    return loss(logits, labels, mask, num_items), share_of_items(counted, num_items)
