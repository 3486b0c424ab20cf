"""Greedy generation with a cache: tokens per second over the original's.

    pip install --target ORIGINAL x-transformers==2.31.10
    python benchmarks/generate.py --original ORIGINAL [--huggingface FOLDER] [--compile]

Each measurement reads a prompt and generates 256 tokens; the last row is the prompt alone, up to its first token.
`--compile` adds `generate(compile=True)`, which takes minutes to compile on some machines.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, parser_of, run, table
from peers import Sizes, build

NAMES = (
    'floor',
    'original',
    'original flash',
    'huggingface',
    'huggingface static',
    'minimal',
    'packed',
    'ours compiled',
    'ours',
)
HEADS = {
    'R flash': 'original flash',
    'H dynamic': 'huggingface',
    'H static': 'huggingface static',
    'M': 'minimal',
    'P': 'packed',
    'ours compiled': 'ours compiled',
    'ours': 'ours',
}
SMALL: dict[str, Any] = {'tokens': 8192, 'dim': 256, 'depth': 4, 'heads': 4}
LARGE: dict[str, Any] = {'tokens': 8192, 'dim': 768, 'depth': 8, 'heads': 12}
TINY: dict[str, Any] = {'tokens': 32, 'dim': 64, 'depth': 1, 'heads': 2}
# what, sizes, batch, prompt, tokens to generate, columns that are left out (slow, and their ratio is known), goal
CASES = [
    ('batch 1, prompt 64', SMALL, 1, 64, 256, (), '>= 1.8'),
    ('batch 8, prompt 64', SMALL, 8, 64, 256, (), '>= 2.1'),
    ('batch 1, prompt 1024', SMALL, 1, 1024, 256, (), '>= 2.5'),
    ('batch 8, prompt 1024', SMALL, 8, 1024, 256, (), '>= 4.0'),
    ('rotary, batch 1, prompt 1024', {**SMALL, 'rotary': True}, 1, 1024, 256, (), '>= 3.6'),
    ('rotary, batch 8, prompt 1024', {**SMALL, 'rotary': True}, 8, 1024, 256, ('original flash',), '>= 7.5'),
    ('dim 768, depth 8, batch 1, prompt 64', LARGE, 1, 64, 256, ('original flash',), '>= 1.3'),
    ('like Llama, batch 1, prompt 64', {**SMALL, 'like': 'Llama'}, 1, 64, 256, (), '>= 2, 1.4 H'),
    ('like Qwen3, batch 1, prompt 64', {**SMALL, 'like': 'Qwen3'}, 1, 64, 256, (), '>= 2, 1.4 H'),
    ('ALiBi, batch 1, prompt 64', {**SMALL, 'bias': 'ALiBi'}, 1, 64, 256, (), '>= 2'),
    ('the prompt itself, 1024 tokens', SMALL, 1, 1024, 1, (), '>= 2.7'),
]


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """One call of `generate` of one peer."""
    peer = build(column, Sizes(**case['sizes']), settings.device, settings.dtype)
    peer.module.eval()
    prompt = torch.randint(0, case['sizes']['tokens'], (case['batch'], case['prompt']), device=settings.device)
    expected = (case['batch'], case['generate'])

    def generate() -> None:
        out = peer.generate(prompt, case['generate'])
        if out.shape != expected:
            raise RuntimeError(f'generated {tuple(out.shape)}, it must be {expected}')

    generate.warm = lambda: peer.generate(prompt, min(4, case['generate']))
    return generate


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument('--compile', action='store_true', help='add `generate(compile=True)`')
    parser.add_argument('--cases', help='only those that contain one of these texts, with semicolons')
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    names = [name for name in NAMES if options.compile or name != 'ours compiled']
    filled = []
    with Sides(__file__, columns_of(options, names), options) as sides:
        base = 'original' if 'original' in sides.sides else 'minimal'
        for what, sizes, batch, prompt, tokens, without, goal in CASES:
            if options.cases and not any(part in what for part in options.cases.split(';')):
                continue
            sizes = {**sizes, 'length': 2048}
            if options.tiny:
                sizes, prompt = {**sizes, **TINY, 'length': 32}, min(prompt, 100) // 12
                tokens = min(tokens, 3)
            case = {'sizes': sizes, 'batch': batch, 'prompt': prompt, 'generate': tokens}
            among = [name for name in names if name not in without]
            goal = goal if base == 'original' else ''
            filled.append(sides.seconds(what, case, among=among, base=base, faster=True, goal=goal))
    return filled


def show(rows: Sequence[Row]) -> str:
    base = next(iter(row.base for row in rows), 'original')
    return table(rows, HEADS, f'decoding, 256 new tokens: speed over {"R default" if base == "original" else base}')


if __name__ == '__main__':
    run(parser(), work, rows, show)
