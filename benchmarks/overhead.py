"""What is paid beside the matrix products: microseconds per layer of a tiny model, import, construction.

    pip install --target ORIGINAL x-transformers==2.31.10
    python benchmarks/overhead.py --original ORIGINAL [--huggingface FOLDER]

A layer is an attention and a feedforward. Its overhead is the slope of the time of a forward over the depth, of a model
so small (dim 32, 8 tokens) that the products take no time. Import is what comes on top of torch, in fresh processes.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Sequence
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, parser_of, run, table
from peers import Sizes, build

NAMES = ('original', 'original flash', 'minimal', 'huggingface', 'ours')
HEADS = {'R default': 'original', 'R flash': 'original flash', 'M': 'minimal', 'H': 'huggingface', 'ours': 'ours'}
# what, sizes, goal as a share of the original's
KINDS: list[tuple[str, dict[str, Any], str]] = [
    ('like Llama: rotary, RMS norm, gated, grouped heads', {'like': 'Llama'}, '<= 0.40, 0.7 H'),
    ('like Qwen3: queries and keys normed too', {'like': 'Qwen3'}, '<= 0.40, 0.7 H'),
    ('ALiBi', {'bias': 'ALiBi'}, '<= 0.40'),
    ('T5 bias', {'bias': 'T5'}, '<= 0.40'),
    ('value residuals', {'like': 'value residuals'}, '<= 0.40'),
    ('a padding mask', {'masked': True}, '<= 1.1 of plain'),
]
IMPORT = """
import time
import torch
start = time.perf_counter()
{}
print(time.perf_counter() - start)
"""


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """A function that returns microseconds, or seconds, or builds a model."""
    if case['what'] == 'import':
        package = 'from transformers import GPT2LMHeadModel' if column == 'huggingface' else 'import x_transformers'
        __import__(package.split()[1])  # says so where it is not installed
        command = [sys.executable, '-c', IMPORT.format(package)]
        # with bytecode, as it is installed
        own = {name: value for name, value in os.environ.items() if name != 'PYTHONDONTWRITEBYTECODE'}
        imported = functools.partial(subprocess.run, command, check=True, capture_output=True, text=True, env=own)
        return lambda: float(imported().stdout)
    sizes = Sizes(**case['sizes'])
    if case['what'] == 'construction':
        return lambda: build(column, sizes, settings.device, settings.dtype)
    return slope(column, case, settings)


def slope(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Microseconds per layer: the least times of a deep and a shallow model, measured in turns."""
    ids = torch.zeros(1, 8, dtype=torch.long, device=settings.device)
    peers = {depth: build(column, Sizes(depth=depth, **case['sizes']), settings.device) for depth in case['depths']}

    def clock() -> float:
        if settings.device != 'cpu':
            torch.cuda.synchronize()
        return time.process_time() if settings.clock == 'cpu' else time.perf_counter()

    @torch.no_grad()
    def measure() -> float:
        least = dict.fromkeys(peers, float('inf'))
        for _ in range(case['repeats']):
            for depth, peer in peers.items():
                least[depth] = min(least[depth], timeit.timeit(lambda: peer.logits(ids), timer=clock, number=1))  # noqa: B023
        shallow, deep = case['depths']
        return (least[deep] - least[shallow]) / (deep - shallow) * 1e6

    for peer in peers.values():
        peer.module.eval()
    return measure


def parser() -> argparse.ArgumentParser:
    return parser_of(__doc__, rounds=5)


def rows(options: argparse.Namespace) -> list[Row]:
    tiny = {'tokens': 32, 'length': 8, 'dim': 32, 'heads': 2}
    layers = {'what': 'layers', 'sizes': tiny, 'depths': (1, 9), 'repeats': 10 if options.tiny else 200}
    large = {'dim': 32, 'depth': 1} if options.tiny else {'dim': 512, 'depth': 6, 'heads': 8}
    packages = [name for name in NAMES if name not in ('minimal', 'original flash')]
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        per_layer = sides.numbers(
            'overhead per layer, tiny model, forward, microseconds', layers, unit='us', goal='<= 100'
        )
        kinds = [
            sides.numbers(f'the same, {what}', {**layers, 'sizes': {**tiny, **more}}, unit='us', goal=goal)
            for what, more, goal in KINDS
        ]
        imports = sides.numbers(
            'import, milliseconds over torch', {'what': 'import'}, unit='s', among=packages, goal='<= 200'
        )
        imports.unit = 'ms'
        imports.values = {name: [1e3 * value for value in values] for name, values in imports.values.items()}
        construction = sides.seconds(
            'construction, dim 512, depth 6, milliseconds',
            {'what': 'construction', 'sizes': large},
            goal='<= R default',
        )
    return [per_layer, *kinds, imports, construction]


def show(rows: Sequence[Row]) -> str:
    return table(rows, HEADS, 'overhead')


if __name__ == '__main__':
    os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
    run(parser(), work, rows, show)
