"""What position biases cost: a train step with one over the same without, time and peak memory.

    pip install --target ORIGINAL x-transformers==2.31.10
    python benchmarks/biases.py --original ORIGINAL

Every column holds the model without a bias and the one with it, and measures their steps in turns: each round gives one
ratio. The step is that of training.py with the plain loss, all logits at once, for every column.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, parser_of, run, seconds_of, table
from peers import BIASES, Peer, Sizes, build

NAMES = ('original', 'original flash', 'minimal', 'ours')
HEADS = {'R default': 'original', 'R flash': 'original flash', 'M': 'minimal', 'ours': 'ours'}
SIZES: dict[str, Any] = {'tokens': 8192, 'length': 1024, 'dim': 256, 'depth': 4, 'heads': 8, 'head': 64}
TINY: dict[str, Any] = {'tokens': 64, 'length': 16, 'dim': 32, 'depth': 1, 'heads': 2}
GOALS = {'T5': '<= 1.10', 'dynamic': '<= 1.12', 'ALiBi': '<= 1.15'}


def step_of(column: str, sizes: Sizes, settings: Settings) -> Work:
    """A train step of one peer."""
    peer = build(column, sizes, settings.device, settings.dtype)
    optimizer = torch.optim.AdamW(peer.module.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, sizes.tokens, (1, sizes.length), device=settings.device)
    return lambda: peer.step(ids, optimizer, lambda ids: Peer.loss(peer, ids))


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """A train step; or its time over that without a bias."""
    step = step_of(column, Sizes(**case['sizes']), settings)
    if case['what'] == 'step':
        return step
    plain = step_of(column, Sizes(**{**case['sizes'], 'bias': ''}), settings)

    def ratio() -> float:
        without = seconds_of(plain, settings, case['seconds'])
        return seconds_of(step, settings, case['seconds']) / without

    return ratio


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    parser.add_argument('--length', type=int, default=SIZES['length'], help='tokens of the sequence')
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    sizes = TINY if options.tiny else {**SIZES, 'length': options.length}
    filled = []
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        plain = sides.memory('no bias: peak memory', {'what': 'step', 'sizes': sizes})
        for bias in BIASES:
            case = {'what': 'ratio', 'sizes': {**sizes, 'bias': bias}, 'seconds': options.seconds}
            name = f'{bias}, seq {sizes["length"]}'
            filled.append(sides.numbers(f'{name}: time', case, unit='x no bias', goal=GOALS[bias]))
            peak = sides.memory(f'{name}: peak memory', {**case, 'what': 'step'})
            filled.append(peak.over(plain, unit='x no bias', goal='<= 1.2'))
    return filled


def show(rows: Sequence[Row]) -> str:
    return table(rows, HEADS, 'train step with a position bias over none')


if __name__ == '__main__':
    run(parser(), work, rows, show)
