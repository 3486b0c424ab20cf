"""Pictures of what `flag_effects.py` finds: effects by family, costs, pairs, lengths. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flag_effects import Effect, alone, by_length, effects, interactions
from flag_variants import BASELINES, FAMILY

if TYPE_CHECKING:
    from which_flag_helps import Row

BETTER, WORSE, NEITHER = '#1b7837', '#b2182b', '#888888'


def drawn(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw all for which there are rows."""
    import matplotlib

    matplotlib.use('Agg')
    pictures = {'effects': forest, 'costs': scatter, 'pairs': matrix, 'lengths': curves}
    return [file for name, make in pictures.items() if (file := saved(make(rows), folder / f'flag_{name}.png'))]


def saved(figure: Any, file: Path) -> Path | None:
    """Write a figure, without what differs from one run to the next."""
    import matplotlib.pyplot as plt

    if figure is None:
        return None
    figure.savefig(file, dpi=100, bbox_inches='tight', metadata={'Software': None})
    plt.close(figure)
    return file


def colour(one: Effect) -> str:
    return NEITHER if not one.shown else BETTER if one.mean < 0 else WORSE


def forest(rows: Sequence[Row]) -> Any:
    """Effects with their intervals, family by family, of both baselines side by side."""
    import matplotlib.pyplot as plt

    both = {baseline: alone(effects(rows, baseline)) for baseline in BASELINES}
    families = list(dict.fromkeys(FAMILY.values()))
    names = [name for name in FAMILY if any(name in found for found in both.values())]
    if not names:
        return None
    best = {name: min(found[name].mean for found in both.values() if name in found) for name in names}
    names.sort(key=lambda name: (families.index(FAMILY[name]), best[name]))
    columns = 3
    heights = split([[name for name in names if FAMILY[name] == family] for family in families], columns)
    rows_of = max(sum(len(part) + 1 for part in column) for column in heights)
    figure, axes = plt.subplots(1, 2 * columns, figsize=(20, 0.19 * rows_of + 1), width_ratios=[1, 1] * columns)
    for at, column in enumerate(heights):
        labels: list[tuple[str, bool]] = []
        for part in column:
            labels += [(FAMILY[part[0]], True), *((name, False) for name in part)]
        for side, (baseline, found) in enumerate(both.items()):
            ax = axes[2 * at + side]
            ax.axvline(0, color='black', linewidth=0.6)
            for y, (name, is_family) in enumerate(labels):
                if name in found and not is_family:
                    one = found[name]
                    half = one.half if math.isfinite(one.half) else 0
                    shown = max(-1.0, min(1.0, one.mean))
                    ax.errorbar(shown, y, xerr=half, fmt='o', markersize=3.5, color=colour(one), elinewidth=1.2)
            ax.set(ylim=(rows_of - 0.5, -0.5), yticks=range(len(labels)))
            ax.set_xscale('symlog', linthresh=0.05, linscale=1.0)
            ax.set_xlim(-1.2, 1.2)
            ax.set_xticks([-1, -0.1, -0.03, 0, 0.03, 0.1, 1], ['-1', '-.1', '', '0', '', '.1', '1'], fontsize=7)
            ax.set_title(f'{baseline} baseline', fontsize=9)
            ax.grid(axis='x', alpha=0.3)
            ax.tick_params(axis='y', length=0)
            ax.set_yticklabels([name for name, _ in labels] if side == 0 else [], fontsize=8)
            if side == 0:
                for label, (_, is_family) in zip(ax.get_yticklabels(), labels, strict=True):
                    label.set_fontweight('bold' if is_family else 'normal')
    figure.suptitle('Change of bits per held-out byte in equal steps, 95 % intervals; left of zero is better', y=1.0)
    figure.tight_layout()
    return figure


def split(parts: Sequence[list[str]], columns: int) -> list[list[list[str]]]:
    """Families in order, over columns of about the same height."""
    total, found, height = sum(len(part) + 1 for part in parts if part), [[] for _ in range(columns)], 0
    for part in filter(None, parts):
        middle = height + (len(part) + 1) / 2
        found[min(columns - 1, int(middle * columns / total))].append(part)
        height += len(part) + 1
    return found


def scatter(rows: Sequence[Row]) -> Any:
    """Time of a step against what is gained in equal steps, of the modern baseline."""
    import matplotlib.pyplot as plt

    found = [one for one in alone(effects(rows, 'modern')).values() if -0.6 < one.mean < 0.3]
    if not found:
        return None
    figure, ax = plt.subplots(figsize=(12, 7))
    for one in found:
        ax.scatter(one.step, one.mean, s=16, color=colour(one))
    ordered = sorted(found, key=lambda one: one.mean)
    for one in {*ordered[:18], *ordered[-8:], *sorted(found, key=lambda one: -one.step)[:8]}:
        ax.annotate(one.variant, (one.step, one.mean), xytext=(4, 3), textcoords='offset points', fontsize=8)
    ax.axhline(0, color='black', linewidth=0.6)
    ax.axvline(1, color='black', linewidth=0.6)
    ax.set_xscale('log')
    ax.set_xticks([0.7, 1, 1.5, 2, 3, 5, 8], ['0.7', '1', '1.5', '2', '3', '5', '8'])
    ax.minorticks_off()
    ax.set(xlabel='time of a training step over the baseline', ylabel='change of bits per byte, equal steps')
    ax.set_title('What flags cost and what they gain: modern baseline; colour where it holds', fontsize=11)
    ax.grid(alpha=0.3)
    return figure


def matrix(rows: Sequence[Row]) -> Any:
    """What pairs change beyond the sum of their parts."""
    import matplotlib.pyplot as plt
    import numpy as np

    found = interactions(rows, 'modern')
    names = list(dict.fromkeys(name for pair in found for name in pair))
    if not names:
        return None
    grid = np.full((len(names), len(names)), np.nan)
    for (one, other), (mean, _) in found.items():
        grid[names.index(one), names.index(other)] = grid[names.index(other), names.index(one)] = mean
    figure, ax = plt.subplots(figsize=(11, 9))
    most = float(np.nanmax(np.abs(grid)))
    image = ax.imshow(grid, cmap='PRGn_r', vmin=-most, vmax=most)
    ax.set_xticks(range(len(names)), names, rotation=60, ha='right', fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    for (y, x), value in np.ndenumerate(grid):
        if not np.isnan(value):
            ax.text(x, y, f'{value:+.2f}', ha='center', va='center', fontsize=6)
    ax.set_title('Bits per byte of two flags together, less the sum of what each changes alone', fontsize=11)
    figure.colorbar(image, shrink=0.7)
    return figure


def curves(rows: Sequence[Row]) -> Any:
    """Positions: bits per byte at lengths beyond those of training."""
    import matplotlib.pyplot as plt

    found = {baseline: by_length(rows, baseline) for baseline in BASELINES}
    if not any(found.values()):
        return None
    figure, axes = plt.subplots(1, 2, figsize=(14, 6), sharey=True)
    for ax, (baseline, own) in zip(axes, found.items(), strict=True):
        for at, (name, by) in enumerate(sorted(own.items(), key=lambda item: list(item[1].values())[-1][0])):
            lengths, means = [*by], [mean for mean, _ in by.values()]
            halves = [half if math.isfinite(half) else 0 for _, half in by.values()]
            style = ('-', '--', ':')[at // 10 % 3]
            ax.errorbar(lengths, means, yerr=halves, label=name or 'baseline', linestyle=style, capsize=2)
        ax.set_xscale('log', base=2)
        ax.set_xticks([*lengths], [str(length) for length in lengths])
        ax.set(title=f'{baseline} baseline', xlabel='bytes that are read; 256 in training')
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7, ncols=2, loc='upper left')
    axes[0].set_ylabel('bits per held-out byte')
    figure.tight_layout()
    return figure
