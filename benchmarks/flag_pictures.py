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
    figure = plt.figure(figsize=(20, 0.19 * rows_of + 1), layout='constrained')
    for column, own in zip(heights, figure.subfigures(1, columns, wspace=0.02), strict=True):
        labels: list[tuple[str, bool]] = []
        for part in column:
            labels += [(FAMILY[part[0]], True), *((name, False) for name in part)]
        for side, (ax, (baseline, found)) in enumerate(zip(own.subplots(1, 2), both.items(), strict=True)):
            ax.axvline(0, color='black', linewidth=0.6)
            for y, (name, is_family) in enumerate(labels):
                if name in found and not is_family:
                    one = found[name]
                    half = one.half if math.isfinite(one.half) else 0
                    ax.errorbar(one.mean, y, xerr=half, fmt='o', markersize=3.5, color=colour(one), elinewidth=1.2)
            ax.set(ylim=(rows_of - 0.5, -0.5), yticks=range(len(labels)))
            ax.set_xscale('symlog', linthresh=0.05, linscale=1.0)
            ax.set_xlim(-3, 3)
            ax.set_xticks([-2, -0.5, -0.1, 0, 0.1, 0.5, 2], ['-2', '-.5', '-.1', '0', '.1', '.5', '2'], fontsize=8)
            ax.set_title(f'{baseline} baseline', fontsize=9)
            ax.grid(axis='x', alpha=0.3)
            ax.tick_params(axis='y', length=0)
            ax.set_yticklabels([name for name, _ in labels] if side == 0 else [], fontsize=8)
            if side == 0:
                for label, (_, is_family) in zip(ax.get_yticklabels(), labels, strict=True):
                    label.set_fontweight('bold' if is_family else 'normal')
    figure.suptitle('Change of bits per held-out byte in equal steps, 95 % intervals; left of zero is better')
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

    known = (one for one in alone(effects(rows, 'modern')).values() if not math.isnan(one.step))
    found = [one for one in known if one.mean < 0.35]
    if not found:
        return None
    figure, ax = plt.subplots(figsize=(12, 7))
    for one in found:
        ax.scatter(one.step, one.mean, s=16, color=colour(one))
    ax.axhline(0, color='black', linewidth=0.6)
    ax.axvline(1, color='black', linewidth=0.6)
    ax.set_xscale('log')
    ax.set_xticks([0.7, 1, 1.5, 2, 3, 5, 8], ['0.7', '1', '1.5', '2', '3', '5', '8'])
    ax.minorticks_off()
    ax.set(xlabel='time of a training step over the baseline', ylabel='change of bits per byte, equal steps')
    ax.set_title('What flags cost and what they gain: modern baseline; colour where it holds', fontsize=11)
    ax.grid(alpha=0.3)
    ordered = sorted(found, key=lambda one: one.mean)
    chosen = {*ordered[:20], *ordered[-8:], *sorted(found, key=lambda one: -one.step)[:8]}
    labelled(ax, [(one.variant, one.step, one.mean) for one in ordered if one in chosen])
    return figure


def labelled(ax: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Write names beside points, each at the nearest height at which it covers no other."""
    ax.figure.canvas.draw()
    taken: list[tuple[float, float, float]] = []  # left, right and middle of names, in points of the screen
    for text, x, y in points:
        left, height = ax.transData.transform((x, y))
        right = left + 6 * len(text) + 8
        away = next(
            step
            for step in sorted(range(-300, 301, 3), key=abs)
            if all(right < own[0] or own[1] < left or abs(height + step - own[2]) >= 12 for own in taken)
        )
        taken.append((left, right, height + away))
        line = dict(arrowstyle='-', color='#bbbbbb', linewidth=0.6) if abs(away) > 8 else None
        where = dict(xytext=(6, away * 72 / ax.figure.dpi), textcoords='offset points', va='center')
        ax.annotate(text, (x, y), fontsize=8, arrowprops=line, **where)


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
            dark = abs(value) > 0.6 * most
            ax.text(x, y, f'{value:+.2f}', ha='center', va='center', fontsize=6, color='white' if dark else 'black')
    ax.set_title(
        'What two flags change beyond the sum of both alone, in bits per byte: above zero they gain less', fontsize=11
    )
    figure.colorbar(image, shrink=0.7)
    return figure


def curves(rows: Sequence[Row]) -> Any:
    """Positions: bits per byte at lengths beyond those of training."""
    import matplotlib.pyplot as plt

    found = {baseline: by_length(rows, baseline) for baseline in BASELINES}
    if not any(found.values()):
        return None
    figure, axes = plt.subplots(1, 2, figsize=(16, 6.5), sharey=True, layout='constrained')
    for ax, (baseline, own) in zip(axes, found.items(), strict=True):
        ordered = sorted(own.items(), key=lambda item: -list(item[1].values())[-1][0])
        for at, (name, by) in enumerate(ordered):
            lengths, means = [*by], [mean for mean, _ in by.values()]
            halves = [half if math.isfinite(half) else 0 for _, half in by.values()]
            look = dict(linestyle=('-', '--', ':')[at % 3], color=plt.get_cmap('turbo')(at / max(1, len(ordered) - 1)))
            ax.errorbar(lengths, means, yerr=halves, label=name or 'baseline', capsize=2, elinewidth=0.7, **look)
        ax.set_xscale('log', base=2)
        ax.set_xticks([*lengths], [str(length) for length in lengths])
        ax.set(title=f'{baseline} baseline', xlabel='bytes that are read; 256 in training')
        ax.grid(alpha=0.3)
        ax.legend(fontsize=8, loc='center left', bbox_to_anchor=(1, 0.5), title='from above at the right end')
    axes[0].set_ylabel('bits per held-out byte')
    return figure
