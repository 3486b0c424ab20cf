"""Flags that change attention scores: time and peak memory of forward and backward, at growing lengths.

    pip install --target ORIGINAL x-transformers==2.31.10
    python benchmarks/score_flags.py --original ORIGINAL [--flags top-k,CoPE] [--lengths 1024,2048]

One Decoder(dim 256, depth 1, 8 heads), batch 1. In brackets stands by which factor a number grew since the length
before. What would pass `--limit-gib` or `--limit-seconds`, judged by the two lengths before, is left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, chosen, columns_of, markdown, parser_of, run

NAMES = ('original', 'ours')
FLAGS: dict[str, dict[str, Any]] = {
    'no flag': {},
    'no flag (formula)': {'attn_flash': False},
    'pre talking heads': {'attn_pre_talking_heads': True},
    'post talking heads': {'attn_post_talking_heads': True},
    'top-k': {'attn_sparse_topk': 32},
    'sigmoid': {'attn_sigmoid': True},
    'soft clamp': {'attn_softclamp_logits': True},
    'selective': {'attn_selective': True},
    'CoPE': {'attn_use_cope': True},
    'hard': {'attn_hard': True},
    'cog signed': {'attn_cog_signed': True},
    'learned sink': {'attn_head_learned_sink': True},
    'entmax': {'attn_use_entmax15': True},
    'l2 distance': {'attn_l2_distance': True},
    'laser': {'attn_laser': True},
    'ALiBi': {'alibi_pos_bias': True},
    'T5 bias': {'rel_pos_bias': True},
    'dynamic bias': {'dynamic_pos_bias': True},
    'forget gates': {'attn_data_dependent_alibi': True},
    'window': {'attn_max_attend_past': 256},
    'memory keys': {'attn_num_mem_kv': 4},
    'dropout': {'attn_dropout': 0.1},
    'padding mask': {},
    'residual attention': {'residual_attn': True},
}


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward and backward of one stack."""
    from x_transformers import Decoder

    given = {'device': settings.device, 'dtype': getattr(torch, settings.dtype)}
    net = Decoder(dim=case['dim'], depth=1, heads=8, **FLAGS[case['flag']]).to(**given)
    n, inputs = case['length'], {}
    x = torch.randn(1, n, case['dim'], **given, requires_grad=True)
    if case['flag'] == 'padding mask':
        inputs['mask'] = torch.arange(n, device=settings.device)[None] < n * 7 // 8

    def step() -> None:
        net(x, **inputs).sum().backward()
        net.zero_grad()
        x.grad = None

    return step


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=3, seconds=0.0)
    parser.add_argument('--flags', help=f'only these, with commas: {", ".join(FLAGS)}')
    parser.add_argument('--lengths', default='1024,2048,4096,8192', help='with commas')
    parser.add_argument('--limit-gib', type=float, default=8, help='what a step may take')
    parser.add_argument('--limit-seconds', type=float, default=60, help='what a step may take')
    return parser


def too_much(name: str, done: Sequence[Row], limit: float, first: float = 4) -> str | None:
    """Why a column is left out, judged by how the rows of shorter lengths grew, by `first` where there is but one."""
    if not done or name in done[-1].refused:
        return done[-1].refused[name] if done else None
    last = median(done[-1].values[name])
    growth = last / median(done[-2].values[name]) if len(done) > 1 else first
    return f'left out, it would take about {last * growth:.3g} {done[-1].unit}' if last * growth > limit else None


def rows(options: argparse.Namespace) -> list[Row]:
    lengths = [32, 64] if options.tiny else [int(length) for length in options.lengths.split(',')]
    filled = []
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        for flag in chosen('--flags', options.flags, FLAGS):
            times: list[Row] = []
            peaks: list[Row] = []
            for n in lengths:
                out = {}
                for done, limit in ((times, 1e3 * options.limit_seconds), (peaks, 1024 * options.limit_gib)):
                    out |= {name: why for name in sides.sides if (why := too_much(name, done, limit))}
                case = {'flag': flag, 'length': n, 'dim': 16 if options.tiny else 256}
                times.append(sides.seconds(f'{flag}, {n}', case, among=sides.sides.keys() - out, refused=out))
                peaks.append(sides.memory(f'{flag}, {n}', case, among=times[-1].values, refused=times[-1].refused))
                filled += [times[-1], peaks[-1]]
    return filled


def cell(row: Row, before: Row | None, column: str) -> str:
    """The median, and by which factor it grew."""
    if row.refused.get(column, '').startswith('left out'):
        return 'left out'
    if before is None or not (row.values.get(column) and before.values.get(column)):
        return row.cell(column)
    return f'{row.cell(column)} ({median(row.values[column]) / median(before.values[column]):.1f})'


def show(rows: Sequence[Row]) -> str:
    """Rows come in pairs, time and memory; those of a flag follow one another."""
    lines, last, before = [], '', (None, None)
    for pair in zip(rows[::2], rows[1::2], strict=True):
        flag, _, n = pair[0].work.rpartition(', ')
        if flag != last:
            last, before = flag, (None, None)
        cells = [cell(row, old, name) for name in NAMES for row, old in zip(pair, before, strict=True)]
        for row in pair:
            factor = replace(row, base='ours')
            cells.append(factor.cell('original') if factor.ratios('original') else '-')
        lines.append([flag, n, *cells])
        before = pair
    heads = [f'{name}: {unit}' for name in (*NAMES, 'original over ours') for unit in ('ms', 'MiB')]
    return markdown(['forward and backward', 'tokens', *heads], lines)


if __name__ == '__main__':
    run(parser(), work, rows, show)
