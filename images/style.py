"""The style of all pictures: a light card with round corners, which dark pages show too, legible at 400 pixels wide.

A picture is `WIDTH` points wide and drawn at two pixels per point. Shown 400 pixels wide, a font size is a height in
pixels. No text is smaller than `SMALL`.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image, ImageColor, ImageDraw
from PIL.PngImagePlugin import PngInfo

WIDTH, MARGIN, RADIUS, DOTS = 400, 11, 8, 2  # points, but for DOTS: pixels per point
SMALL, NORMAL, LARGE = 9, 9.5, 10.5
INK, MUTED, RULE, CARD = '#1f2328', '#59636e', '#c9d1d9', '#f6f8fa'
# told apart by people who are color-blind (Okabe and Ito)
BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW = '#0072b2', '#d55e00', '#009e73', '#aa4a85', '#56b4e9', '#e69f00'
TINTS = {'blue': '#b9d8ee', 'orange': '#f6cba4', 'green': '#b5dfd0', 'yellow': '#f6e3a8', 'grey': '#dde2e7'}
SHADES = LinearSegmentedColormap.from_list('shades', ['#ffffff', '#9ccbe8', BLUE, '#0a2f4d'])
STYLE = {
    'font.family': 'DejaVu Sans',
    'font.size': NORMAL,
    'axes.titlesize': NORMAL,
    'axes.labelsize': NORMAL,
    'xtick.labelsize': SMALL,
    'ytick.labelsize': SMALL,
    'legend.fontsize': SMALL,
    'legend.frameon': False,
    'text.color': INK,
    'axes.labelcolor': INK,
    'axes.edgecolor': MUTED,
    'xtick.color': MUTED,
    'ytick.color': MUTED,
    'xtick.labelcolor': INK,
    'ytick.labelcolor': INK,
    'axes.facecolor': '#ffffff',
    'axes.linewidth': 0.8,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.prop_cycle': matplotlib.cycler(color=[BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW]),
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.color': '#e3e7eb',
    'grid.linewidth': 0.8,
    'lines.linewidth': 1.6,
    'lines.markersize': 4.5,
    'figure.facecolor': 'none',
    'savefig.facecolor': 'none',
}


def figure_of(title: str, draw: Callable[[Figure], Any]) -> Figure:
    """Return the card with a title and what `draw` draws on it.

    `draw` sets the height by `set_height`. It may return a function that writes into the final layout.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout='constrained', dpi=72)
        set_height(figure, 240)
        finish = draw(figure)
        width, height = figure.get_size_inches() * 72
        side, above = MARGIN / width, MARGIN / height
        lines = textwrap.wrap(title, 60)
        look = dict(va='top', fontsize=LARGE, weight='bold', linespacing=1.25, in_layout=False)
        figure.text(side, 1 - above, '\n'.join(lines), **look)
        top = (MARGIN + 1.35 * LARGE * len(lines)) / height
        figure.get_layout_engine().set(rect=(side, above, 1 - 2 * side, 1 - above - top), w_pad=0.04, h_pad=0.04)
        figure.draw_without_rendering()
        if finish is not None:
            finish()
    return figure


def set_height(figure: Figure, height: float) -> None:
    """Set the height of a picture, in points."""
    figure.set_size_inches(WIDTH / 72, height / 72)


def plain(axes: Any, *, grid: str = '') -> None:
    """Remove the frame and ticks of a panel. `grid` names the axis of which the grid stays."""
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)
    axes.set_facecolor('none')
    axes.grid(False)
    if grid:
        axes.grid(True, axis=grid)


def write(figure: Figure, path: Path, comment: str = '') -> None:
    """Write a picture: the same bytes for the same figure."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer := io.BytesIO(), dpi=72 * DOTS)
    write_card(Image.open(buffer).convert('RGBA'), path, comment)


def write_card(drawn: Image.Image, path: Path, comment: str = '', dots: float = DOTS) -> None:
    """Write an image on the card, with few colors and transparent corners."""
    box, fine = (0, 0, drawn.width - 1, drawn.height - 1), 4
    card = Image.new('RGBA', [side * fine for side in drawn.size], CARD)
    edges = (0, 0, card.width - 1, card.height - 1)
    ImageDraw.Draw(card).rounded_rectangle(edges, RADIUS * dots * fine, CARD, RULE, round(dots * fine))
    card = card.resize(drawn.size, Image.Resampling.LANCZOS)
    card.alpha_composite(drawn)
    few = card.convert('RGB').quantize(95)
    colors = few.getpalette()[: 3 * 95]
    outside, clear = Image.new('L', drawn.size, 255), len(colors) // 3
    ImageDraw.Draw(outside).rounded_rectangle(box, RADIUS * dots, 0)
    few.putpalette([*colors, *ImageColor.getrgb(RULE)])
    few.paste(clear, mask=outside)
    said = PngInfo()
    if comment:
        said.add_text('Comment', comment)
    path.parent.mkdir(parents=True, exist_ok=True)
    few.save(path, pnginfo=said, optimize=True, transparency=clear)


def rounded(axes: Any, x: float, y: float, width: float, height: float, color: str) -> None:
    """Draw a box with round corners, in the units of a panel of which x and y are points."""
    style = 'round,pad=0,rounding_size=3'
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=color, edgecolor=MUTED, lw=0.7))


def write_on_card(picture: Image.Image, path: Path) -> None:
    """Write a picture, as it is, on a white page on the card."""
    dots = picture.width / (WIDTH - 2 * MARGIN)
    margin = round(MARGIN * dots)
    drawn = Image.new('RGBA', (picture.width + 2 * margin, picture.height + 2 * margin))
    drawn.paste('#ffffff', (margin, margin, margin + picture.width, margin + picture.height))
    drawn.alpha_composite(picture.convert('RGBA'), (margin, margin))
    write_card(drawn, path, dots=dots)
