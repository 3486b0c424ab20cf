"""Pictures of a run: curves, and tables of numbers in colour."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from common.folders import saved
from common.options import Stop

if TYPE_CHECKING:
    from common.runs import Run


def write_figure(figure: Figure, path: Path, what: str) -> None:
    """Write a picture, under another name first."""
    try:
        with warnings.catch_warnings():  # of letters that the font does not have
            warnings.filterwarnings('ignore', 'Glyph .* missing')
            figure.savefig(path.with_suffix('.tmp'), format='png', dpi=120)
        path.with_suffix('.tmp').replace(path)
    except OSError as error:
        path.with_suffix('.tmp').unlink(missing_ok=True)
        raise Stop(f'{what} cannot be written: {error}; {saved(path.parent)}', 1) from error


def curves(run: Run, path: Path, title: str, unit: str, *, scale: float = 1.0, score: str | None = None) -> None:
    """The loss of each step, times `scale`, and validation beside it; a `score` that is no loss has its own axis."""
    losses = torch.tensor(run.losses) * scale
    width = max(1, len(losses) // 25)
    axes = Figure(figsize=(8, 5), layout='constrained').add_subplot()
    axes.set(title=title, xlabel='step', ylabel=unit)
    axes.plot(range(1, len(losses) + 1), losses, color='tab:blue', alpha=0.25)
    lines = axes.plot(range(width, len(losses) + 1), losses.unfold(0, width, 1).mean(-1), label='training, smoothed')
    other = axes
    if score is not None:
        other = axes.twinx()
        other.set(ylabel=score, ylim=(0, 1.02))
    lines += other.plot(*zip(*run.validations, strict=True), 'o-', color='tab:orange', label='validation')
    axes.set_ylim(0, min(9, losses.max().item() * 1.05))
    axes.grid(alpha=0.3)
    axes.legend(handles=lines)
    write_figure(axes.figure, path, 'the loss curve')


def cells(axes: Axes, numbers: Tensor, rows: Sequence[str], columns: Sequence[str], *, written: bool = False) -> None:
    """A table of numbers as colours, with names at its sides; with `written`, those above zero as figures too."""
    axes.imshow(numbers.numpy(), cmap='Blues', aspect='auto')
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns)
    if written:
        half = numbers.max().item() / 2
        for i, j in numbers.nonzero().tolist():
            shade = 'white' if numbers[i, j] > half else 'black'
            axes.text(j, i, f'{numbers[i, j].item():g}', ha='center', va='center', color=shade, fontsize='small')


def confusion(counts: Tensor, names: Sequence[str], path: Path) -> None:
    """How often each class (rows) was taken for which (columns)."""
    side = 3 + 0.45 * len(names)
    axes = Figure(figsize=(side, side), layout='constrained').add_subplot()
    axes.set(title=f'{counts.diag().sum():,} of {counts.sum():,} right', xlabel='taken for', ylabel='is')
    cells(axes, counts, names, names, written=True)
    axes.tick_params('x', rotation=0 if max(map(len, names)) < 3 else 90)
    write_figure(axes.figure, path, 'the confusion matrix')
