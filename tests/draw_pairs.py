"""What combines with what: build and run every pair of flags, and draw the table.

    python tests/draw_pairs.py images/what_combines.png

One row and column per feature of attention, and per feature of the stack, by the flag that switches it on. A pair
runs, forward and backward, or is refused by name. `test_laws.py` runs all pairs, options included, and fails on
anything else.
"""

import sys
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from law_cases import BY_NAME, Case, build, gradients, inputs_for
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, STACK

RUNS, REFUSED, FAILS = 'runs', 'refused by name', 'fails'
COLOURS = {RUNS: '#cfe6cf', REFUSED: '#e8c07a', FAILS: '#c0392b'}


def switches(level: tuple, prefix: str) -> list[Case]:
    names = (prefix + next(iter(cls.flags)) for cls in level if cls.flags)
    return [BY_NAME[name] for name in dict.fromkeys(names) if name in BY_NAME]


def outcome(first: Case, second: Case) -> str:
    try:
        net = build(first.together(second))
        inputs = inputs_for(net, first.together(second))
        grads = gradients(net.double(), inputs)
    except (ValueError, TypeError) as error:
        return REFUSED if '`' in str(error) else FAILS
    except Exception:
        return FAILS
    return RUNS if all(g.isfinite().all() for g in grads.values() if g is not None) else FAILS


def table(cases: list[Case]) -> np.ndarray:
    """Outcomes as indices of COLOURS; the lower triangle, and the diagonal of a flag alone."""
    found = np.full((len(cases), len(cases)), np.nan)
    for i, first in enumerate(cases):
        for j, second in enumerate(cases[: i + 1]):
            found[i, j] = list(COLOURS).index(outcome(first, second))
    return found


def draw(axes: plt.Axes, title: str, cases: list[Case], found: np.ndarray) -> None:
    axes.imshow(found, cmap=ListedColormap(list(COLOURS.values())), vmin=-0.5, vmax=len(COLOURS) - 0.5)
    names = [case.flag or case.name for case in cases]
    axes.set_xticks(range(len(cases)), names, rotation=90, fontsize=5)
    axes.set_yticks(range(len(cases)), names, fontsize=5)
    axes.set_xticks(np.arange(-0.5, len(cases)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(cases)), minor=True)
    axes.grid(which='minor', color='white', linewidth=0.4)
    axes.tick_params(which='both', length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    counts = Counter(list(COLOURS)[int(v)] for v in found[~np.isnan(found) & ~np.eye(len(cases), dtype=bool)])
    axes.set_title(f'{title}: {", ".join(f"{n} {what}" for what, n in counts.items())}', fontsize=9)


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else 'images/what_combines.png')
    torch.manual_seed(0)
    levels = {
        'attention and feedforward': switches(ATTENTION, 'attn_') + switches(FEEDFORWARD, 'ff_'),
        'stack': switches(STACK, ''),
    }
    figure, both = plt.subplots(1, 2, figsize=(17, 9), layout='constrained')
    for axes, (title, cases) in zip(both, levels.items(), strict=True):
        draw(axes, title, cases, table(cases))
    figure.legend(handles=[Patch(color=c, label=what) for what, c in COLOURS.items()][:2], loc='upper right')
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=130)


if __name__ == '__main__':
    main()
