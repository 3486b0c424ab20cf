"""Curves while they grow, for TensorBoard."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from common.options import Stop

Log = Callable[[int, Mapping[str, float]], None]


def check_tensorboard() -> None:
    if importlib.util.find_spec('tensorboard') is None:
        raise Stop('--tensorboard needs a package that is not installed: pip install tensorboard')


@contextmanager
def tensorboard(out: Path, step: int) -> Iterator[Log]:
    """Write to out/tensorboard what is logged; what was there of later steps than this one no longer counts."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(out / 'tensorboard'), purge_step=step + 1)

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    try:
        yield log
    finally:
        writer.close()
