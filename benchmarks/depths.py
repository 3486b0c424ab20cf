"""What a training step keeps, and what it takes, over the depth: ordinary layers, checkpoints of them, reversible ones.

    python benchmarks/depths.py [--depths 6,12,24,48] [--dim 128] [--batch 2] [--length 512]

One Decoder with 8 heads, forward and backward. Memory is the peak of a step less the gradients of the parameters, which
are there at its end: what activations take. Ordinary layers have their peak before the gradients, so that theirs is
too small by as much. In brackets stands the factor over the first depth; of time, that over ordinary layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, markdown, parser_of, run

WAYS: dict[str, dict[str, Any]] = {
    'ordinary': {},
    'checkpoints': {'checkpoint_layers': True},
    'reversible': {'reversible': True},
}


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward and backward of one stack, or how many MiB its parameters take."""
    from x_transformers import Decoder

    given = {'device': settings.device, 'dtype': getattr(torch, settings.dtype)}
    net = Decoder(dim=case['dim'], depth=case['depth'], heads=case['heads'], **WAYS[column]).to(**given)
    if case.get('weigh'):
        return lambda: sum(p.numel() * p.element_size() for p in net.parameters()) / 2**20
    x = torch.randn(case['batch'], case['length'], case['dim'], **given, requires_grad=True)

    def step() -> None:
        net(x).sum().backward()
        net.zero_grad()
        x.grad = None

    return step


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument('--depths', default='6,12,24,48', help='with commas')
    parser.add_argument('--dim', type=int, default=128)
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--length', type=int, default=512)
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    """Time, peak memory and the size of the parameters, for each depth."""
    depths = [1, 3] if options.tiny else [int(depth) for depth in options.depths.split(',')]
    case = {'dim': options.dim, 'batch': options.batch, 'length': options.length, 'heads': 8}
    if options.tiny:
        case = {'dim': 16, 'batch': 1, 'length': 32, 'heads': 2}
    filled = []
    with Sides(__file__, columns_of(options, tuple(WAYS)), options) as sides:
        base = 'ordinary' if 'ordinary' in sides.sides else None
        for depth in depths:
            one = {**case, 'depth': depth}
            name = f'depth {depth}'
            filled += [sides.seconds(name, one, base=base), sides.memory(name, one)]
            filled.append(sides.numbers(name, {**one, 'weigh': True}, 'MiB'))
    return filled


def show(rows: Sequence[Row]) -> str:
    names = [name for name in WAYS if name in rows[0].values]
    lines: list[list[str]] = []
    first: dict[str, float] = {}
    for time, memory, weights in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        cells = [time.work]
        for name in names:
            ratios = time.ratios(name) if time.base and name != time.base else None
            spent = f'{median(time.values[name]):.0f}'
            kept = median(memory.values[name]) - median(weights.values[name])
            first.setdefault(name, kept)
            cells.append(spent if ratios is None else f'{spent} ({median(ratios):.2f})')
            cells.append(f'{kept:.1f} ({kept / first[name]:.2f})')
        lines.append(cells)
    return markdown(['forward and backward', *(f'{name}: {unit}' for name in names for unit in ('ms', 'MiB'))], lines)


if __name__ == '__main__':
    run(parser(), work, rows, show)
