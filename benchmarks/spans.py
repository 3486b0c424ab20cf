"""What adaptive spans save: a training step of one attention layer whose heads look back less and less far.

    python benchmarks/spans.py [--lengths 4096] [--shares 1,0.5,0.25,0.2,0.1] [--dim 128] [--heads 4]

The largest span is S, the length of the sequence; heads have spans of about a share of it, from a third less to a third
more, so that the largest decides how many keys are read. Forward and backward; in brackets the time over that of full
spans. Beside them plain attention, and a window of the mean span, which no head may exceed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, markdown, parser_of, run

WAYS = ('spans', 'window', 'plain')
RAMP = 32


def spans_of(share: float, heads: int) -> torch.Tensor:
    """Of each head, as parts of S: a third less than the share to a third more; all of S at most."""
    return torch.linspace(2 / 3, 4 / 3, heads).mul(share).clamp(max=1.0) if share < 1 else torch.ones(heads)


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward and backward of one layer."""
    from x_transformers import Attention

    given = {'device': settings.device, 'dtype': getattr(torch, settings.dtype)}
    n, heads = case['length'], case['heads']
    flags: dict[str, Any] = {'heads': heads, 'dim_head': case['dim'] // heads, 'causal': True}
    spans = spans_of(case['share'], heads)
    if column == 'window' and case['share'] < 1:
        flags['max_attend_past'] = round(spans.mean().item() * n)
    if column == 'spans':
        flags |= {'adaptive_span': 'static', 'max_span': n, 'span_ramp': RAMP}
    attn = Attention(case['dim'], **flags).to(**given)
    if column == 'spans':
        with torch.no_grad():
            attn.span.copy_(spans)
    x = torch.randn(case['batch'], n, case['dim'], **given, requires_grad=True)

    def step() -> None:
        attn(x).sum().backward()
        attn.zero_grad()
        x.grad = None

    return step


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument('--lengths', default='4096', help='with commas')
    parser.add_argument('--shares', default='1,0.5,0.25,0.2,0.1', help='mean spans as parts of the length, with commas')
    parser.add_argument('--dim', type=int, default=128)
    parser.add_argument('--heads', type=int, default=4)
    parser.add_argument('--batch', type=int, default=1)
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    lengths = [256] if options.tiny else [int(length) for length in options.lengths.split(',')]
    shares = [1.0, 0.25] if options.tiny else [float(share) for share in options.shares.split(',')]
    case = {'dim': 16 if options.tiny else options.dim, 'heads': options.heads, 'batch': options.batch}
    filled = []
    with Sides(__file__, columns_of(options, WAYS), options) as sides:
        for length in lengths:
            for share in shares:
                filled.append(sides.seconds(f'{length} tokens, {share:g}', {**case, 'length': length, 'share': share}))
    return filled


def show(rows: Sequence[Row]) -> str:
    names = [name for name in WAYS if name in rows[0].values]
    full: dict[str, float] = {}
    lines = []
    for row in rows:
        cells = [row.work]
        for name in names:
            spent = median(row.values[name])
            first = full.setdefault(f'{row.work.partition(",")[0]} {name}', spent)
            cells.append(f'{spent:.1f} ({spent / first:.2f})')
        lines.append(cells)
    return markdown(['mean span as part of the length', *(f'{name}: ms' for name in names)], lines)


if __name__ == '__main__':
    run(parser(), work, rows, show)
