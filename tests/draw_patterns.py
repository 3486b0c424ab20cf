"""Who sees whom: a picture of every pattern of `x_transformers.patterns`.

    python tests/draw_patterns.py images/patterns.png

Rows are queries, columns keys. Two heads that differ have two colours, and a third one where both look.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

from x_transformers import patterns

N = 48
# nothing, one head, the other, both; and what is ahead of a causal query
COLOURS = ('#f5f5f5', '#26468c', '#d98032', '#7d4a58', '#d5d5d5')


class Shown(NamedTuple):
    title: str
    make: Any  # of the module with all patterns
    causal: bool = False
    heads: int = 1


def marks(position: Any) -> Any:
    """What `global_mask` marks."""
    return (position == 0) | (position == 21)


GALLERY = (
    Shown('Sliding(6)', lambda p: p.Sliding(6)),
    Shown('Sliding(6), causal', lambda p: p.Sliding(6), True),
    Shown('Sliding(4, dilation=(1, 3)), causal', lambda p: p.Sliding(4, dilation=(1, 3)), True, 2),
    Shown('BlockLocal(8)', lambda p: p.BlockLocal(8)),
    Shown('Local1D(8, 8), causal', lambda p: p.Local1D(8, 8), True),
    Shown('Local2D, tiles of 2 x 4 of 6 x 8 pixels, causal', lambda p: p.Local2D((6, 8), (2, 4), (2, 2)), True),
    Shown('Row(8), Column(8)', lambda p: p.Mix((p.Row(8), p.Column(8))), True, 2),
    Shown('Conv2D((6, 8), kernel=3), causal', lambda p: p.Conv2D((6, 8), kernel=3), True),
    Shown('Sparse Transformer, strided', lambda p: p.Mix((p.Sliding(7), p.Strided(7))), True, 2),
    Shown('Sparse Transformer, fixed', lambda p: p.Mix((p.BlockLocal(8), p.Summary(8, 2))), True, 2),
    Shown('BlockLocal(8) | Strided(8), axial', lambda p: p.BlockLocal(8) | p.Strided(8)),
    Shown(
        'Blockwise: BlockPermutation(3, 0), (3, 1)',
        lambda p: p.Mix((p.BlockPermutation(3, 0), p.BlockPermutation(3, 1)), heads=(1, 1)),
        False,
        2,
    ),
    Shown("Longformer: Sliding(4) | Global('mask')", lambda p: p.Sliding(4) | p.Global('mask')),
    Shown('Sliding(4) | Global(first=3), causal', lambda p: p.Sliding(4) | p.Global(first=3), True),
    Shown('BigBird(block=3), two heads', lambda p: p.BigBird(block=3), False, 2),
    Shown('Sliding(12) & Strided(4), causal', lambda p: p.Sliding(12) & p.Strided(4), True),
)


def pixels(shown: Shown) -> np.ndarray:
    """Indices of COLOURS, n n, read off the drawing as text."""
    drawn = shown.make(patterns).draw(N, causal=shown.causal, heads=shown.heads, marks=marks)
    seen = np.array([[list(line) for line in head.splitlines()] for head in drawn.split('\n\n')]) == '#'
    found = sum(seen[head] * (head + 1) for head in range(shown.heads))
    ahead = np.triu(np.ones((N, N), dtype=bool), 1) & shown.causal
    return np.where(ahead & (found == 0), 4, found)


def gallery() -> list[tuple[str, np.ndarray]]:
    """Titles and pictures; a pattern that is not there is left out by name."""
    found = []
    for shown in GALLERY:
        try:
            found.append((shown.title, pixels(shown)))
        except AttributeError as error:
            print(f'left out: {shown.title}: {error}')
    return found


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else 'images/patterns.png')
    pictures = gallery()
    across = 4
    down = -(-len(pictures) // across)
    figure, panels = plt.subplots(down, across, figsize=(11, 2.95 * down), layout='constrained')
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, (title, picture) in zip(panels.flat, pictures, strict=False):
        axes.imshow(picture, cmap=ListedColormap(COLOURS), vmin=-0.5, vmax=len(COLOURS) - 0.5, interpolation='nearest')
        axes.set_title(title, fontsize=8)
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, dpi=100)


if __name__ == '__main__':
    main()
