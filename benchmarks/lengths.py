"""Reading and training at growing lengths, with heads of two widths: time over the original's with `attn_flash=True`.

    pip install --target ORIGINAL x-transformers==2.31.10
    python benchmarks/lengths.py --original ORIGINAL [--huggingface FOLDER] [--lengths 512,2048]

Batch 1, without flags. At 512 tokens products of matrices take most of the time, at 16,384 the kernel of attention.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from measure import Row, Sides, columns_of, parser_of, run, table
from training import work

NAMES = ('original flash', 'minimal', 'huggingface', 'ours')
HEADS = {'R flash': 'original flash', 'M': 'minimal', 'H': 'huggingface', 'ours': 'ours'}
SIZES: dict[str, Any] = {'tokens': 1024, 'dim': 256, 'depth': 2}
TINY: dict[str, Any] = {'tokens': 32, 'dim': 32, 'depth': 1}
WIDTHS = (32, 64)  # of heads


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument('--lengths', default='512,2048,8192,16384', help='with commas')
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    sizes = TINY if options.tiny else SIZES
    lengths = [8, 16] if options.tiny else [int(length) for length in options.lengths.split(',')]
    widths = [width // 4 if options.tiny else width for width in WIDTHS]
    filled = []
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        base = 'original flash' if 'original flash' in sides.sides else 'minimal'
        for train, what in ((False, 'forward'), (True, 'train step')):
            for width in widths:
                for n in lengths:
                    own = {**sizes, 'length': n, 'heads': sizes['dim'] // width, 'head': width}
                    case = {'sizes': own, 'batch': 1, 'seq': n, 'train': train}
                    name = f'{what}, {own["heads"]} heads of {width}, {n} tokens'
                    filled.append(sides.seconds(name, case, base=base, faster=True, goal='> all'))
    return filled


def show(rows: Sequence[Row]) -> str:
    base = next(iter(row.base for row in rows), 'original flash')
    return table(rows, HEADS, f'speed over {"R flash" if base == "original flash" else base}')


if __name__ == '__main__':
    run(parser(), work, rows, show)
