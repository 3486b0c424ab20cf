"""Pictures of what `flag_effects.py` finds: effects by family, costs, lengths. Needs matplotlib."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flag_statistics import Effect, alone, by_length, effects
from flag_variants import BASELINES, FAMILY
from measure import ROOT

if TYPE_CHECKING:
    from flag_rows import Row

sys.path.append(str(ROOT / 'images'))

import style

Draw = Callable[[Any], Any]
BETTER, WORSE, NEITHER = style.BLUE, style.ORANGE, '#a9b4bf'
WORDS = {BETTER: 'better', WORSE: 'worse', NEITHER: 'no effect shown'}
TITLES = {
    'effects': 'Change of bits per byte by each flag alone, in equal steps; the best of each family is named',
    'costs': 'Gain over cost of each flag alone, modern baseline',
    'lengths': 'Bits per byte beyond the 256 bytes of training',
}


def drawn(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw all for which there are rows."""
    files = []
    for name, make in ALL.items():
        if draw := make(rows):
            files.append(folder / f'flag_{name}.png')
            style.write(style.figure_of(TITLES[name], draw), files[-1])
    return files


def better(one: Effect) -> bool:
    return one.shown and one.mean < 0


def color(one: Effect) -> str:
    return BETTER if better(one) else WORSE if one.shown else NEITHER


def legend(figure: Any, axes: Any) -> None:
    keys = [axes.plot([], [], 'o', color=shade, label=name)[0] for shade, name in WORDS.items()]
    figure.legend(handles=keys, loc='outside lower center', ncols=3, handletextpad=0.2)


def families(rows: Sequence[Row]) -> Draw | None:
    """Effects of all variants, a row for each family with the name of its best variant, a panel for each baseline."""
    both = {baseline: alone(effects(rows, baseline)) for baseline in BASELINES}
    if not any(both.values()):
        return None
    names = [name for name in dict.fromkeys(FAMILY.values()) if any(FAMILY[v] == name for v in [*both['modern']])]

    def draw(figure: Any) -> None:
        style.set_height(figure, 30 * len(names) + 92)
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (baseline, found) in zip(panels, both.items(), strict=True):
            axes.axvline(0, color=style.INK, linewidth=0.8)
            for y, name in enumerate(names):
                own = sorted((one for one in found.values() if FAMILY[one.variant] == name), key=lambda e: e.shown)
                for one in own:
                    axes.plot(one.mean, y, 'o', color=color(one), alpha=0.8, markeredgewidth=0)
                if any(map(better, own)):
                    best = min(filter(better, own), key=lambda each: each.mean)
                    look = dict(fontsize=style.SMALL, color=style.MUTED, ha='center', va='bottom')
                    axes.text(0.5, y + 0.47, best.variant, transform=axes.get_yaxis_transform(), **look)
            axes.set_xscale('symlog', linthresh=0.1, linscale=0.7)
            axes.set(xlim=(-1.2, 3.5), ylim=(len(names) - 0.45, -0.5), yticks=range(len(names)))
            axes.set_xticks([-1, -0.1, 0, 0.1, 1], ['-1', '-.1', '0', '.1', '1'])
            axes.set_title(f'{baseline} baseline')
            axes.tick_params(axis='y', length=0)
        panels[0].set_yticklabels([name.replace('attention below', 'attention\nbelow') for name in names])
        legend(figure, panels[0])

    return draw


def scatter(rows: Sequence[Row]) -> Draw | None:
    """Time of a step against what is gained in equal steps, of the modern baseline."""
    known = (one for one in alone(effects(rows, 'modern')).values() if not math.isnan(one.step))
    found = [one for one in known if one.mean < 0.35]
    if not found:
        return None

    def draw(figure: Any) -> Callable[[], None]:
        style.set_height(figure, 320)
        axes = figure.subplots()
        for one in sorted(found, key=lambda each: each.shown):
            axes.plot(one.step, one.mean, 'o', color=color(one), alpha=0.8, markeredgewidth=0)
        axes.axhline(0, color=style.INK, linewidth=0.8)
        axes.axvline(1, color=style.INK, linewidth=0.8)
        axes.set_xscale('log')
        axes.set_xticks([1, 1.5, 2, 3, 5], ['1', '1.5', '2', '3', '5'])
        axes.minorticks_off()
        axes.set(xlabel='time of a training step over that of the baseline', ylabel='change of bits per byte')
        legend(figure, axes)
        ordered = sorted(found, key=lambda one: one.mean)
        chosen = {*ordered[:6], *sorted(found, key=lambda one: -one.step)[:3]}
        axes.set_xlim(0.7, 6)  # room for names
        return lambda: labelled(axes, [(one.variant, one.step, one.mean) for one in ordered if one in chosen])

    return draw


def labelled(axes: Any, points: Sequence[tuple[str, float, float]]) -> None:
    """Write names beside points, each at the nearest height at which it covers no other."""
    taken: list[tuple[float, float, float]] = []  # left, right and middle of names, in points
    for text, x, y in points:
        left, height = axes.transData.transform((x, y))
        right = left + 6 * len(text) + 8
        away = next(
            step
            for step in sorted(range(-300, 301, 3), key=abs)
            if all(right < own[0] or own[1] < left or abs(height + step - own[2]) >= 14 for own in taken)
        )
        taken.append((left, right, height + away))
        line = dict(arrowstyle='-', color=style.RULE, linewidth=0.8) if abs(away) > 8 else None
        where = dict(xytext=(6, away), textcoords='offset points', va='center', fontsize=style.SMALL)
        axes.annotate(text, (x, y), arrowprops=line, in_layout=False, **where)


def lengths(rows: Sequence[Row]) -> Draw | None:
    """Bits per byte of positions by the length that is read, a panel for each baseline."""
    both = {baseline: by_length(rows, baseline) for baseline in BASELINES}
    if not any(both.values()):
        return None
    base = {'plain': 'learned', 'modern': 'rotary_pos_emb'}
    named = {
        baseline: {name or base[baseline]: {n: mean for n, (mean, _) in by.items()} for name, by in own.items()}
        for baseline, own in both.items()
    }
    last = {name: by[max(by)] for own in named.values() for name, by in own.items()}
    names = sorted(last, key=lambda name: last[name])
    read = sorted({length for own in named.values() for by in own.values() for length in by})

    def draw(figure: Any) -> None:
        style.set_height(figure, 14.5 * len(names) + 92)
        panels = figure.subplots(1, 2, sharey=True)
        shades = [style.SHADES(0.3 + 0.7 * at / max(1, len(read) - 1)) for at in range(len(read))]
        for axes, (baseline, own) in zip(panels, named.items(), strict=True):
            for y, name in enumerate(names):
                if name in own:
                    axes.plot([min(own[name].values()), max(own[name].values())], [y, y], color=style.RULE, linewidth=2)
            for at, length in enumerate(read):
                points = [(own[name][length], y) for y, name in enumerate(names) if length in own.get(name, {})]
                label = f'{length:,} bytes'
                axes.plot([x for x, _ in points], [y for _, y in points], 'o', color=shades[at], label=label, zorder=3)
            axes.set(ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)), title=f'{baseline} baseline')
            axes.tick_params(axis='y', length=0)
        panels[0].set_yticklabels(names)
        look = dict(ncols=len(read), handletextpad=0.1, columnspacing=0.8)
        figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', **look)

    return draw


ALL = {'effects': families, 'costs': scatter, 'lengths': lengths}
