"""Recurrent layers with a matrix as state, beside the same layers of transformers in plain torch: time of one layer.

    python benchmarks/recurrent_layers.py [--lengths 1024,4096] [--layers gated_delta,mamba2] [--chunks 64] [--backward]

Both have the same sizes. `--chunks 32,64,128` compares chunk sizes of the engine. Without transformers there is no
column of it. Brackets have the time over that of transformers.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, columns_of, markdown, parser_of, run

WAYS = ('ours', 'transformers')
# Name of the module, prefix of the classes, the layer, and what its config calls heads and their width.
THEIRS = {
    'gated_delta': (
        'qwen3_next', 'Qwen3Next', 'GatedDeltaNet', ('linear_num_key_heads', 'linear_num_value_heads'),
        ('linear_key_head_dim', 'linear_value_head_dim'), {},
    ),
    'kda': ('kimi_linear', 'KimiLinear', 'DeltaAttention', ('linear_num_heads',), ('linear_head_dim',), {}),
    'lightning': (
        'minimax', 'MiniMax', 'LightningAttention', ('num_attention_heads',), ('head_dim',), dict(num_hidden_layers=4),
    ),
    'mamba2': ('mamba2', 'Mamba2', 'Mixer', ('num_heads',), ('head_dim',), dict(state_size=128, n_groups=1)),
}  # fmt: skip


def build_theirs(layer: str, dim: int, heads: int, width: int) -> torch.nn.Module:
    transformers = importlib.import_module('transformers')
    name, prefix, kind, of_heads, of_widths, further = THEIRS[layer]
    sizes = {**dict.fromkeys(of_heads, heads), **dict.fromkeys(of_widths, width), **further}
    if layer == 'mamba2':
        sizes['expand'] = heads * width // dim
    config = getattr(transformers, f'{prefix}Config')(hidden_size=dim, **sizes)
    family = importlib.import_module(f'transformers.models.{name}.modeling_{name}')
    return getattr(family, prefix + kind)(config, layer_idx=1)


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward, or forward and backward, of one layer."""
    given = {'device': settings.device, 'dtype': getattr(torch, settings.dtype)}
    layer, dim, heads, width = (case[name] for name in ('layer', 'dim', 'heads', 'width'))
    inputs: dict[str, Any] = {}
    if column == 'ours':
        from x_transformers.kernels import chunks
        from x_transformers.recurrent import MODULES

        chunks.CHUNK = case['chunk']
        made = MODULES[layer](dim, heads=heads, dim_head=width)
    else:
        made = build_theirs(layer, dim, heads, width)
        inputs = dict(position_embeddings=None, attention_mask=None) if layer == 'lightning' else {}
    made = made.to(**given)
    x = torch.randn(1, case['length'], dim, **given)

    def step() -> None:
        with torch.set_grad_enabled(case['backward']):
            out = made(x, **inputs)
            if case['backward']:
                (out[0] if isinstance(out, tuple) else out).sum().backward()
                made.zero_grad()

    return step


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument('--lengths', default='1024,4096', help='with commas')
    parser.add_argument('--layers', default=','.join(THEIRS), help='with commas')
    parser.add_argument('--chunks', default='64', help='tokens of a chunk, with commas')
    parser.add_argument('--backward', action='store_true')
    parser.add_argument('--dim', type=int, default=256)
    parser.add_argument('--width', type=int, default=64, help='channels of a head')
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    lengths = [64] if options.tiny else [int(length) for length in options.lengths.split(',')]
    dim, width = (16, 8) if options.tiny else (options.dim, options.width)
    filled = []
    with Sides(__file__, columns_of(options, WAYS), options) as sides:
        for layer in options.layers.split(','):
            case = {'layer': layer, 'dim': dim, 'width': width, 'backward': options.backward}
            case['heads'] = dim // width * (2 if layer == 'mamba2' else 1)
            for length in lengths:
                for chunk in map(int, options.chunks.split(',')):
                    words = f'{layer}, {length} tokens, chunks of {chunk}'
                    filled.append(sides.seconds(words, {**case, 'length': length, 'chunk': chunk}))
    return filled


def show(rows: Sequence[Row]) -> str:
    names = [name for name in WAYS if name in rows[0].values]
    lines = []
    for row in rows:
        spent = {name: median(row.values[name]) for name in names if row.values.get(name)}
        base = spent.get('transformers')
        cells = (f'{ms:.1f}' + (f' ({ms / base:.2f})' if base else '') for ms in spent.values())
        lines.append([row.work, *cells])
    return markdown(['layer', *(f'{name}: ms' for name in names)], lines)


if __name__ == '__main__':
    run(parser(), work, rows, show)
