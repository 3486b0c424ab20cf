"""Pictures of what was measured: the run of the README, and speed and memory beside other libraries.

    python images/draw_measured.py --run runs/train_lm-001     train_lm.png, of a run of examples/train_lm.py
    python images/draw_measured.py                             speed.png, of the tables in benchmarks/README.md

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
sys.path.append(str(HERE.parent))

OURS, OTHERS = '#26468c', ('#b9b9b9', '#8f8f8f', '#d98032')
KEPT = dict(drop_whitespace=False, replace_whitespace=False)
# rows of the tables: what a picture calls them, and whether more is better
SPEED = {
    'train step, dim 256, depth 4, vocab 8192, seq 256, batch 4': 'Training step\nover its matrix products',
    'peak memory of that step, MiB': 'Peak memory of a step,\n2,048 tokens, MiB',
    'overhead per layer, tiny model, forward, microseconds': 'Overhead of a layer,\nmicroseconds',
    'batch 1, prompt 64': 'Tokens a second,\none row (more is better)',
    'rotary, batch 8, prompt 1024': 'Tokens a second,\n8 rows behind 1,024\n(more is better)',
}
COLUMNS = {'R default': 'original', 'R flash': 'original,\nflash', 'H': 'trans-\nformers', 'ours': 'this\nlibrary'}
COLUMNS['H dynamic'] = COLUMNS['H']


def speeds(text: str) -> dict[str, dict[str, float]]:
    """What the tables of a text say of the rows of `SPEED`: {row: {column: number}}."""
    found: dict[str, dict[str, float]] = {}
    titles: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')] if line.startswith('|') else []
        if not cells:
            titles = []
        elif not titles:
            titles = cells
        elif cells[0] in SPEED:
            numbers = {title: re.match(r'[\d.]+', cell) for title, cell in zip(titles, cells, strict=True)}
            found[cells[0]] = {COLUMNS[t]: float(n[0]) for t, n in numbers.items() if n and t in COLUMNS}
            if any('over R default' in title for title in titles):
                found[cells[0]] = {'original': 1.0, **found[cells[0]]}
    return found


def draw_speed(figure: Any, found: dict[str, dict[str, float]]) -> None:
    """A panel for each row, a bar for each library."""
    figure.set_size_inches(15, 3.6)
    order = list(dict.fromkeys(COLUMNS.values()))
    for axes, (row, title) in zip(figure.subplots(1, len(SPEED)), SPEED.items(), strict=True):
        names = [name for name in order if name in found[row]]
        colours = [OURS if name == order[-1] else OTHERS[order.index(name)] for name in names]
        bars = axes.bar(names, [found[row][name] for name in names], color=colours)
        axes.bar_label(bars, fmt=lambda value: f'{value:.0f}' if value >= 50 else f'{value:.2f}', fontsize=9)
        axes.set_title(title, fontsize=10)
        axes.tick_params(axis='x', labelsize=9)
        axes.set_yticks([])
        for side in ('top', 'right', 'left'):
            axes.spines[side].set_visible(False)
    figure.tight_layout(w_pad=2)


def sample(checkpoint: Path, prompt: str = 'def ', length: int = 360) -> str:
    """What the model of a checkpoint writes."""
    import torch

    from x_transformers import AutoregressiveWrapper, TransformerWrapper

    torch.manual_seed(0)
    model = AutoregressiveWrapper(TransformerWrapper.from_pretrained(checkpoint)).eval()
    ids = torch.tensor(list(prompt.encode()))
    written = model.generate(ids, length, temperature=0.6, restrict_to_max_seq_len=True)
    return prompt + bytes(written.tolist()).decode('utf-8', errors='replace')


def draw_run(figure: Any, state: dict[str, Any], losses: Sequence[float], text: str) -> None:
    """The loss on files not seen, and a text beside it."""
    figure.set_size_inches(13, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    steps, bits = zip(*state['validations'], strict=True)
    left.plot([loss / math.log(2) for loss in losses], color=OURS, alpha=0.3, linewidth=0.7, label='training')
    left.plot(steps, bits, marker='o', color=OTHERS[2], label='files not seen')
    for step, value in state['validations']:
        left.annotate(f'{value:.2f}', (step, value), xytext=(0, 9), textcoords='offset points', ha='center')
    left.set(xlabel='steps', ylabel='bits per byte', ylim=(0, 6))
    left.set_title('examples/train_lm.py on the source of Python', fontsize=12)
    left.grid(alpha=0.3)
    left.legend()
    right.axis('off')
    right.set_title(f'what it writes after {steps[-1]:,} steps, from "def "', fontsize=12)
    lines = [part for line in text.expandtabs(4).split('\n') for part in (textwrap.wrap(line, 70, **KEPT) or [''])]
    right.text(0, 1, '\n'.join(lines[:20]), family='monospace', fontsize=10, va='top', transform=right.transAxes)
    figure.tight_layout()


def main(argv: list[str] | None = None) -> int:
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib.figure import Figure
    from safetensors.torch import load_file

    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--run', type=Path, help='folder of a run of examples/train_lm.py')
    parser.add_argument('--to', type=Path, default=HERE, help='folder of the pictures')
    options = parser.parse_args(argv)
    figure = Figure()
    if options.run:
        checkpoints = sorted(options.run.glob('step_*/state.json'))
        if not checkpoints:
            print(f'--run {options.run}: there is no checkpoint of examples/train_lm.py', file=sys.stderr)
            return 2
        last = checkpoints[-1].parent
        losses = load_file(last / 'training.safetensors')['losses'].tolist()
        draw_run(figure, json.loads((last / 'state.json').read_text()), losses, sample(last))
        file = options.to / 'train_lm.png'
    else:
        draw_speed(figure, speeds((HERE.parent / 'benchmarks' / 'README.md').read_text(encoding='utf-8')))
        file = options.to / 'speed.png'
    figure.savefig(file, dpi=80, bbox_inches='tight', metadata={'Software': None})
    print(f'drawn: {file}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
