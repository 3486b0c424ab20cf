"""Training and reading whole sequences: time as multiples of the floor, and peak memory.

    pip install --target ORIGINAL x-transformers==2.31.10
    python benchmarks/training.py --original ORIGINAL [--huggingface FOLDER]

A train step is: loss of the next tokens, backward, one fused AdamW, gradients set to None. The floor is the matrix
products of the model and the same AdamW. Memory is what a step needs beside parameters and the state of the optimizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, parser_of, run, table
from peers import Sizes, build

NAMES = ('floor', 'original', 'original flash', 'minimal', 'minimal chunked', 'huggingface', 'ours')
HEADS = {
    'R default': 'original',
    'R flash': 'original flash',
    'M': 'minimal',
    'M chunked': 'minimal chunked',
    'H': 'huggingface',
    'ours': 'ours',
}
SIZES: dict[str, Any] = {'tokens': 8192, 'length': 2048, 'dim': 256, 'depth': 4, 'heads': 4}
LOSS: dict[str, Any] = {'tokens': 50257, 'length': 2048, 'dim': 256, 'depth': 1, 'heads': 4}
TINY: dict[str, Any] = {'tokens': 64, 'length': 16, 'dim': 32, 'depth': 1, 'heads': 2}


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """A train step or a forward of one peer."""
    peer = build(column, Sizes(**case['sizes']), settings.device, settings.dtype)
    ids = torch.randint(0, case['sizes']['tokens'], (case['batch'], case['seq']), device=settings.device)
    if not case['train']:
        peer.module.eval()
        return torch.no_grad()(lambda: peer.logits(ids))
    optimizer = torch.optim.AdamW(peer.module.parameters(), lr=1e-4, fused=True)
    return lambda: peer.step(ids, optimizer)


def parser() -> argparse.ArgumentParser:
    return parser_of(__doc__, rounds=5)


def rows(options: argparse.Namespace) -> list[Row]:
    sizes, large = (TINY, TINY) if options.tiny else (SIZES, LOSS)
    short, long = (8, 16) if options.tiny else (256, 2048)

    def case(batch: int, seq: int, train: bool, sizes: dict[str, Any] = sizes) -> dict[str, Any]:
        return {'sizes': sizes, 'batch': batch, 'seq': seq, 'train': train}

    what = f'dim {sizes["dim"]}, depth {sizes["depth"]}, vocab {sizes["tokens"]}'
    chunked = [name for name in NAMES if name != 'floor']
    plain = [name for name in NAMES if name != 'minimal chunked']
    memory = [name for name in plain if name != 'floor']
    timed: dict[str, Any] = {'base': 'floor', 'among': plain}
    logits = (f'times the {long} x {large["tokens"]} logits', 4 * long * large['tokens'])
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        return [
            sides.seconds(f'train step, {what}, seq {short}, batch 4', case(4, short, True), goal='<= 1.25', **timed),
            sides.seconds(f'the same, seq {long}, batch 1', case(1, long, True), goal='<= 1.25', **timed),
            sides.memory('peak memory of that step, MiB', case(1, long, True), among=memory, goal='<= 250'),
            sides.seconds(f'forward, seq {long}', case(1, long, False), goal='<= 1.20', **timed),
            sides.seconds(
                f'train step, depth 1, vocab {large["tokens"]}, seq {long}',
                case(1, long, True, large),
                base='floor',
                goal='<= 1.25',
            ),
            sides.memory(
                'the same: peak memory in logits tensors',
                case(1, long, True, large),
                among=chunked,
                unit=logits,
                goal='<= 0.30',
            ),
        ]


def show(rows: Sequence[Row]) -> str:
    return table(rows, HEADS, 'multiples of the floor')


if __name__ == '__main__':
    run(parser(), work, rows, show)
