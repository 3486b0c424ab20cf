"""Learning-rate schedules: functions that return a scheduler of PyTorch.

    scheduler = warmup(optimizer, total_steps=10_000)
    for batch in data:
        ...
        optimizer.step()
        scheduler.step()

All groups of an optimiser keep the ratios of their rates. Steps count from 1, so that the first one has a rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from x_transformers.flags import format_value, is_int, is_number
from x_transformers.flags.unexpected import answering

__all__ = ['DECAYS', 'noam', 'noam_factor', 'warmup', 'warmup_factor']

# what is left of the rate once a part, from 0 to 1, of the steps behind the warm-up are done
DECAYS: dict[str, Callable[[float], float]] = {
    'linear': lambda part: 1 - part,
    'cosine': lambda part: 0.5 * (1 + math.cos(math.pi * part)),
    'none': lambda part: 1.0,
}


def noam_factor(step: int, dim: int, warmup: int) -> float:
    """d^(-1/2) min(t^(-1/2), t w^(-3/2)),  t from 1; `step` counts from 0, as schedulers do."""
    t = step + 1
    return dim**-0.5 * min(t**-0.5, t * warmup**-1.5)


def warmup_factor(step: int, total: int, warmup: int, decay: str, min_ratio: float) -> float:
    """Up to 1 at step `warmup`, t / w, and down again to `min_ratio` at step `total`."""
    t = min(step + 1, total)
    if t < warmup:
        return t / warmup
    if decay == 'rsqrt':
        return max((max(warmup, 1) / t) ** 0.5, min_ratio)
    part = (t - max(warmup, 1)) / max(total - max(warmup, 1), 1)
    return min_ratio + (1 - min_ratio) * DECAYS[decay](part)


@answering
def warmup(
    optimizer: Optimizer,
    total_steps: int,
    warmup: float | int = 0.02,
    decay: str = 'linear',
    min_ratio: float = 0.0,
) -> LambdaLR:
    """A rate that rises to that of the optimiser, evenly over the first steps, and then falls.

        t / w                      up to w, t from 1
        r + (1 - r) (1 - p)        'linear', p from 0 at w to 1 at the last step
        r + (1 - r) cos^2(pi p/2)  'cosine'
        max(sqrt(w / t), r)        'rsqrt'
        1                          'none'

    total_steps   the rate stays as it is behind them
    warmup        w, a number of steps, or a share of all of them, rounded
    decay         how it falls
    min_ratio     r, the lowest part of the rate

    raises    ValueError for numbers out of range, more steps of warm-up than there are among them

    Vaswani et al. 2017, arXiv:1706.03762; cosine: Loshchilov and Hutter 2016, arXiv:1608.03983
    """
    check_optimizer(optimizer)
    check_steps('total_steps', total_steps, 1)
    if is_int(warmup):
        check_steps('warmup', warmup, 0)
        steps = int(warmup)
    elif is_number(warmup) and 0 <= warmup <= 1:
        steps = round(warmup * total_steps)
    else:
        raise ValueError(f'`warmup` must be a number of steps, or a share from 0 to 1, got {format_value(warmup)}')
    if steps > total_steps:
        raise ValueError(f'`warmup` got {steps} steps, more than the `total_steps`, {total_steps}')
    if decay not in (*DECAYS, 'rsqrt'):
        raise ValueError(f"`decay` must be 'linear', 'cosine', 'rsqrt' or 'none', got {format_value(decay)}")
    if not (is_number(min_ratio) and 0 <= min_ratio <= 1):
        raise ValueError(f'`min_ratio` must be a number from 0 to 1, got {format_value(min_ratio)}')
    given: dict[str, Any] = dict(total=total_steps, warmup=steps, decay=decay, min_ratio=min_ratio)
    return LambdaLR(optimizer, partial(warmup_factor, **given))


@answering
def noam(optimizer: Optimizer, dim: int, warmup: int = 4000) -> LambdaLR:
    """The rate of the first transformer, times that of the optimiser, which should be 1:

        d^(-1/2) min(t^(-1/2), t w^(-3/2)),    t from 1, largest at t = w: (d w)^(-1/2)

    raises    ValueError for numbers that are no whole ones of at least 1

    Vaswani et al. 2017, arXiv:1706.03762
    """
    check_optimizer(optimizer)
    check_steps('dim', dim, 1)
    check_steps('warmup', warmup, 1)
    return LambdaLR(optimizer, partial(noam_factor, dim=dim, warmup=warmup))


def check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f'`optimizer` must be an optimiser of torch, got {format_value(optimizer)}')


def check_steps(name: str, value: Any, least: int) -> None:
    if not (is_int(value) and value >= least):
        raise ValueError(f'`{name}` must be an integer of at least {least}, got {format_value(value)}')
