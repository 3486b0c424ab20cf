"""Pictures of what was measured: a run, speed and memory, and the results of two examples.

    python images/draw_measured.py                             speed.png and efficient.png, of benchmarks/README.md
    python images/draw_measured.py --run runs/train_lm-001     train_lm.png, of a run of examples/train_lm.py
    python images/draw_measured.py --card digits.png           a picture that an example drew, on a card like the others

Exit codes: 0 done, 2 there is no such run.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent)]

import style  # noqa: E402

KEPT = dict(drop_whitespace=False, replace_whitespace=False)
# rows of the tables: what a picture calls them
SPEED = {
    'train step, dim 256, depth 4, vocab 8192, seq 256, batch 4': 'Training step, over its matrix products',
    'peak memory of that step, MiB': 'Peak memory of a step with 2,048 tokens, MiB',
    'overhead per layer, tiny model, forward, microseconds': 'Overhead of a layer, microseconds',
    'batch 1, prompt 64': 'Tokens per second over the original, batch 1 (more is better)',
    'rotary, batch 8, prompt 1024': 'The same, batch 8, after 1,024 tokens (more is better)',
}
COLUMNS = {'R default': 'original', 'R flash': 'original, flash', 'H': 'transformers', 'ours': 'this library'}
COLUMNS['H dynamic'] = COLUMNS['H']


def tables(text: str) -> list[list[list[str]]]:
    """Return the cells of the tables of a text, the titles first."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith('|'):
            found[-1].append([cell.strip() for cell in line.strip('|').split('|')])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def speeds(text: str) -> dict[str, dict[str, float]]:
    """Return what the tables of a text say of the rows of `SPEED`: {row: {column: number}}."""
    found: dict[str, dict[str, float]] = {}
    for titles, *rows in tables(text):
        for cells in rows:
            if cells[0] in SPEED:
                numbers = {title: re.match(r'[\d.]+', cell) for title, cell in zip(titles, cells, strict=True)}
                found[cells[0]] = {COLUMNS[t]: float(n[0]) for t, n in numbers.items() if n and t in COLUMNS}
                if any('over R default' in title for title in titles):
                    found[cells[0]] = {'original': 1.0, **found[cells[0]]}
    return found


def draw_speed(figure: Any, found: dict[str, dict[str, float]]) -> None:
    """Draw a panel for each row, a bar for each library."""
    order = list(dict.fromkeys(COLUMNS.values()))
    style.set_height(figure, 390)
    panels = figure.subplots(len(SPEED), 1, height_ratios=[len(found[row]) + 1 for row in SPEED])
    for axes, (row, title) in zip(panels, SPEED.items(), strict=True):
        names = [name for name in order if name in found[row]]
        colors = [style.BLUE if name == order[-1] else '#a9b4bf' for name in names]
        bars = axes.barh(names, [found[row][name] for name in names], height=0.74, color=colors)
        label = lambda value: f'{value:.0f}' if value >= 50 else f'{value:.2f}'  # noqa: E731
        axes.bar_label(bars, fmt=label, fontsize=style.SMALL, padding=3)
        axes.set_title(title, loc='left', pad=2)
        axes.margins(x=0.12)
        axes.set(xticks=[])
        axes.invert_yaxis()
        style.plain(axes)


def ways(text: str) -> dict[str, tuple[list[float], list[float]]]:
    """Return time and memory of causal attention from the tables of a text: {name: (ms by length, MiB by length)}."""
    (table,) = (table for table in tables(text) if table[0][1].startswith('ms at 1k / 4k / 16k'))
    memory = next(at for at, title in enumerate(table[0]) if title.startswith('MiB at 1k / 4k / 16k'))
    # one with wider heads is compared with dense attention of its own
    causal = [row for row in table[1:] if ', causal' in row[0] and 'heads of' not in row[0]]
    numbers = {row[0].replace(', causal', ''): (row[1].split(' / '), row[memory].split(' / ')) for row in causal}
    return {name: ([*map(float, time)][:3], [*map(float, mib)]) for name, (time, mib) in numbers.items()}


def draw_efficient(figure: Any, found: dict[str, tuple[list[float], list[float]]]) -> None:
    """Draw time and memory over those of dense attention, a row for each kind of attention."""
    dense, rows = found['dense'], sorted((name for name in found if name != 'dense'), key=lambda n: found[n][0][2])
    style.set_height(figure, 15 * len(rows) + 92)
    panels = figure.subplots(1, 2, sharey=True, width_ratios=[1.3, 1])
    words = ('time, forward and backward', 'peak memory')
    looks = (('#8fa3b5', 'o'), (style.SKY, 's'), (style.BLUE, 'D'))
    for part, (axes, title) in enumerate(zip(panels, words, strict=True)):
        for at, (length, (color, marker)) in enumerate(zip(('1k', '4k', '16k'), looks, strict=True)):
            over = [found[name][part][at] / dense[part][at] for name in rows]
            axes.plot(over, range(len(rows)), marker, color=color, label=f'{length} tokens', zorder=3)
        axes.axvline(1, color=style.INK, linewidth=1)
        axes.set(xscale='log', ylim=(len(rows) - 0.4, -0.6), yticks=range(len(rows)))
        ticks = [0.1, 0.3, 1, 3] if part == 0 else [1, 3, 10]
        axes.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
        axes.minorticks_off()
        axes.set_title(title, loc='left')
        axes.tick_params(axis='y', length=0)
    panels[0].set_yticklabels(rows)
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=3, handletextpad=0.2)


def sample(checkpoint: Path, prompt: str = 'def ', length: int = 360) -> str:
    """Return what the model of a checkpoint writes."""
    import torch

    from x_transformers import AutoregressiveWrapper, TransformerWrapper

    torch.manual_seed(0)
    model = AutoregressiveWrapper(TransformerWrapper.from_pretrained(checkpoint)).eval()
    ids = torch.tensor(list(prompt.encode()))
    written = model.generate(ids, length, temperature=0.6, restrict_to_max_seq_len=True)
    return prompt + bytes(written.tolist()).decode('utf-8', errors='replace')


def draw_run(figure: Any, state: dict[str, Any], losses: Sequence[float], text: str) -> None:
    """Draw the loss, and below it a text that the model wrote."""
    from matplotlib.transforms import blended_transform_factory

    style.set_height(figure, 400)
    above, below = figure.subplots(2, 1, height_ratios=[1, 1])
    steps, bits = zip(*state['validations'], strict=True)
    curve = [loss / math.log(2) for loss in losses]
    above.plot(range(1, len(curve) + 1), curve, color=style.SKY, linewidth=0.8, label='training')
    above.plot(steps, bits, marker='o', color=style.ORANGE, label='held-out files')
    look = dict(xytext=(0, 9), textcoords='offset points', ha='center')
    white = dict(facecolor='#ffffff', edgecolor='none', pad=1)
    above.annotate(f'{bits[-1]:.2f}', (steps[-1], bits[-1]), bbox=white, **look)
    above.set(xlabel='steps', ylabel='bits per byte', ylim=(0, 6))
    above.legend()
    style.plain(below)
    below.set(xticks=[], yticks=[])
    lines = [part for line in text.expandtabs(4).split('\n') for part in (textwrap.wrap(line, 66, **KEPT) or [''])]
    left = blended_transform_factory(figure.transFigure, below.transAxes)
    look = dict(transform=left, va='top', in_layout=False)
    title = f'Written after {steps[-1]:,} steps, from "def "'
    below.text(style.MARGIN / style.WIDTH, 1.0, title, weight='bold', **look)
    look.update(family='monospace', fontsize=style.SMALL, linespacing=1.2)
    below.text(style.MARGIN / style.WIDTH, 0.86, '\n'.join(lines[:12]), **look)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    from safetensors.torch import load_file

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--run', type=Path, help='folder of a run of examples/train_lm.py')
    parser.add_argument('--card', type=Path, help='a picture that an example drew')
    parser.add_argument('--to', type=Path, default=HERE, help='folder of the pictures')
    options = parser.parse_args(argv)
    drawn = []
    if options.card:
        from PIL import Image

        drawn.append(options.to / options.card.name)
        style.write_on_card(Image.open(options.card), drawn[0])
    elif options.run:
        checkpoints = sorted(options.run.glob('step_*/state.json'))
        if not checkpoints:
            print(f'--run {options.run}: there is no checkpoint of examples/train_lm.py', file=sys.stderr)
            return 2
        last = checkpoints[-1].parent
        losses, text = load_file(last / 'training.safetensors')['losses'].tolist(), sample(last)
        state = json.loads((last / 'state.json').read_text())
        figure = style.figure_of(
            'examples/train_lm.py on the source of Python', lambda card: draw_run(card, state, losses, text)
        )
        drawn.append(options.to / 'train_lm.png')
        style.write(figure, drawn[0])
    else:
        measured = (HERE.parent / 'benchmarks' / 'README.md').read_text(encoding='utf-8')
        for name, title, draw, numbers in (
            ('speed', 'Time and memory on one CPU thread', draw_speed, speeds(measured)),
            (
                'efficient',
                'Causal attention over full attention: time and memory',
                draw_efficient,
                ways(measured),
            ),
        ):
            drawn.append(options.to / f'{name}.png')
            style.write(style.figure_of(title, lambda card, draw=draw, numbers=numbers: draw(card, numbers)), drawn[-1])
    print('\n'.join(f'drawn: {path}' for path in drawn))
    return 0


if __name__ == '__main__':
    sys.exit(main())
