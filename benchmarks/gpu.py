"""Large models on one accelerator: tokens per second, model flops utilisation, decoding against the bandwidth.

    python benchmarks/gpu.py --device cuda --dtype bfloat16 [--original FOLDER] [--huggingface FOLDER]
    python benchmarks/gpu.py --device cpu --tiny                          # does it run?
    python benchmarks/gpu.py --device cuda --dtype bfloat16 --scores [--flags ALiBi,window] [--lengths 8192,32768]

- Training: tokens per second of a step with autocast to `--dtype`, float32 weights and fused AdamW. MFU = flops of the
  step (counted by `torch.utils.flop_counter` on the minimal model, attention in full) / time / peak flops.
- Decoding: tokens per second of greedy generation in `--dtype`, and its part of the roofline: the time in which weights
  and the cache, at its mean length, are read once.
- Peaks are those of the data sheet for devices that are listed here, dense; give others by `--peak-tflops` and
  `--bandwidth-tbs`, or the largest product and copy that are measured here count.
- Scores: forward and backward of one layer of attention by FlexAttention, and in blocks of rows, for flags that change
  scores and have a form for both. On a CPU, where FlexAttention has no backward pass, forward alone.
- Columns that end in `compiled` run under `torch.compile`; for ours, generation is `generate(compile=True)`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from measure import Row, Settings, Sides, Work, chosen, columns_of, markdown, parser_of, quartiles, run, seconds_of
from peers import Sizes, build
from score_flags import FLAGS

NAMES = (
    'original',
    'original flash',
    'huggingface',
    'huggingface static',
    'minimal',
    'minimal compiled',
    'ours',
    'ours compiled',
)
WAYS = ('ours flex', 'ours blocks')
SCORES = ('soft clamp', 'learned sink', 'ALiBi', 'T5 bias', 'dynamic bias', 'forget gates', 'window')
SIZES: dict[str, dict[str, Any]] = {
    '350M': {'tokens': 50304, 'length': 4096, 'dim': 1024, 'depth': 24, 'heads': 16, 'rotary': True},
    '1.3B': {'tokens': 50304, 'length': 4096, 'dim': 2048, 'depth': 24, 'heads': 32, 'rotary': True},
}
TINY: dict[str, Any] = {'tokens': 64, 'length': 64, 'dim': 64, 'depth': 1, 'heads': 1, 'rotary': True}
# dense bfloat16 Tflop/s and TB/s
DEVICES = {'H100 PCIe': (756, 2.0), 'H100': (989, 3.35), 'H200': (989, 4.8), 'A100': (312, 2.0), 'L4': (121, 0.3)}


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """A train step, or a call of `generate`; or a layer by one of two kernels."""
    if 'flag' in case:
        return layer(column, case, settings)
    sizes, device, dtype = Sizes(**case['sizes']), settings.device, getattr(torch, settings.dtype)
    ids = torch.randint(0, sizes.tokens, (case['batch'], case['seq']), device=device)
    compiled = column.endswith('compiled')
    if case['generate']:
        if compiled and not column.startswith('ours'):
            raise NotImplementedError('its generation is not compiled')
        peer = build(column, sizes, device, settings.dtype)
        peer.module.eval()
        return lambda: peer.generate(ids, case['generate'])
    if 'static' in column:
        raise NotImplementedError('a static cache is for generation')
    peer = build(column.removesuffix(' compiled'), sizes, device)
    loss = torch.compile(peer.loss) if compiled else peer.loss
    optimizer = torch.optim.AdamW(peer.module.parameters(), lr=1e-4, fused=True)
    half = dtype != torch.float32

    def step() -> None:
        with torch.autocast(device, dtype=dtype) if half else nullcontext():
            value = loss(ids)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def layer(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward and backward of attention with one flag. A kernel that does not run is refused, not replaced."""
    from x_transformers import Decoder
    from x_transformers.core import rows
    from x_transformers.kernels import flex

    device, dtype = settings.device, getattr(torch, settings.dtype)
    flex.DEVICES, flex.LEARNED = (device,) if column == 'ours flex' else (), True
    rows.LARGE = dict.fromkeys(rows.LARGE, 0)
    kinds = {'custom_layers': ('a',), 'verbose': False}
    net = Decoder(dim=case['dim'], heads=case['heads'], attn_dim_head=64, **kinds, **FLAGS[case['flag']]).to(device)
    x = torch.randn(1, case['length'], case['dim'], device=device, requires_grad=device != 'cpu')
    half, backwards = dtype != torch.float32, device != 'cpu'

    def step() -> None:
        with torch.set_grad_enabled(backwards), torch.autocast(device, dtype=dtype) if half else nullcontext():
            out = net(x)
        if backwards:
            out.float().sum().backward()
            net.zero_grad()
            x.grad = None

    if column == 'ours flex':
        step()
        if not flex.works or not all(flex.works.values()):
            raise NotImplementedError('FlexAttention does not run')
    return step


def flops_of(case: dict[str, Any]) -> int:
    """The products of a train step, counted on the minimal model without memory."""
    from torch.utils.flop_counter import FlopCounterMode

    peer = build('minimal', Sizes(**{**case['sizes'], 'rotary': False}), 'meta')
    ids = torch.zeros(case['batch'], case['seq'], dtype=torch.long, device='meta')
    with FlopCounterMode(display=False) as counter:
        peer.loss(ids).backward()
    return counter.get_total_flops()


def bytes_of_token(case: dict[str, Any], width: int) -> float:
    """What one step of decoding reads: weights but for the table of tokens, keys and values at their mean length."""
    sizes = Sizes(**case['sizes'])
    module = build('minimal', sizes, 'meta').module
    weights = sum(p.numel() for p in module.parameters()) - module.token.weight.numel()
    length = case['seq'] + case['generate'] / 2
    return width * (weights + 2 * case['batch'] * length * sizes.depth * sizes.dim)


def peaks(options: argparse.Namespace) -> tuple[float, float]:
    """Flop/s and bytes/s of the device."""
    name = torch.cuda.get_device_name() if options.device != 'cpu' else ''
    listed = next((peak for device, peak in DEVICES.items() if all(part in name for part in device.split())), None)
    flops, bandwidth = options.peak_tflops, options.bandwidth_tbs
    if listed and options.dtype == 'bfloat16':
        flops, bandwidth = flops or listed[0], bandwidth or listed[1]
    torch.set_num_threads(options.threads)
    settings = Settings(options.device, options.dtype, options.threads)
    size = 256 if options.tiny else 8192 if options.device != 'cpu' else 2048
    a, b = (torch.randn(size, size, device=options.device, dtype=getattr(torch, options.dtype)) for _ in 'ab')
    if not flops:
        flops = 2 * size**3 / seconds_of(lambda: a @ b, settings, options.seconds) / 1e12
    if not bandwidth:
        a, b = (torch.zeros(size * size * 8, device=options.device) for _ in 'ab')
        bandwidth = 2 * a.nbytes / seconds_of(lambda: a.copy_(b), settings, options.seconds) / 1e12
    return flops * 1e12, bandwidth * 1e12


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=5, seconds=1.0)
    parser.add_argument('--sizes', default='350M,1.3B', help='which models')
    parser.add_argument('--batch', type=int, default=8, help='of training and of the second row of decoding')
    parser.add_argument('--seq', type=int, default=2048, help='tokens of a training sequence and of a prompt')
    parser.add_argument('--generate', type=int, default=256, help='tokens to generate')
    parser.add_argument('--scores', action='store_true', help='measure the kernels of attention in place of models')
    parser.add_argument('--flags', help=f'of --scores, with commas: {", ".join(SCORES)}')
    parser.add_argument('--lengths', default='8192,32768', help='of --scores, with commas')
    parser.add_argument('--peak-tflops', type=float, help='of the device, for MFU')
    parser.add_argument('--bandwidth-tbs', type=float, help='of the device, for the roofline')
    return parser


def score_rows(options: argparse.Namespace) -> list[Row]:
    """Time and memory, in pairs."""
    filled, sizes = [], {'dim': 128, 'heads': 2} if options.tiny else {'dim': 1024, 'heads': 16}
    lengths = [160] if options.tiny else [int(length) for length in options.lengths.split(',')]
    with Sides(__file__, columns_of(options, WAYS), options) as sides:
        for flag in chosen('--flags', options.flags, SCORES):
            for length in lengths:
                case = {'flag': flag, 'length': length, **sizes}
                filled.append(sides.seconds(f'{flag}, {length}', case))
                filled.append(sides.memory(f'{flag}, {length}', case))
    return filled


def rows(options: argparse.Namespace) -> list[Row]:
    if options.scores:
        return score_rows(options)
    if options.tiny:
        options.sizes, options.batch, options.seq, options.generate = 'tiny', 2, 16, 4
    flops, bandwidth = peaks(options)
    print(f'peak {flops / 1e12:.4g} Tflop/s, {bandwidth / 1e12:.4g} TB/s')
    width = getattr(torch, options.dtype).itemsize
    filled = []
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        for name in options.sizes.split(','):
            shared = {'sizes': TINY if name == 'tiny' else SIZES[name], 'seq': options.seq}
            case = {**shared, 'batch': options.batch, 'generate': 0}
            row = sides.seconds(f'{name}, train', case)
            filled.append(rates(row, options.batch * options.seq, flops_of(case) / flops, 'MFU'))
            for batch in (1, options.batch):
                case = {**shared, 'batch': batch, 'generate': options.generate}
                row = sides.seconds(f'{name}, decode, batch {batch}', case)
                least = options.generate * bytes_of_token(case, width) / bandwidth
                filled.append(rates(row, batch * options.generate, least, 'of the roofline'))
    return filled


def rates(row: Row, tokens: int, least: float, what: str) -> Row:
    """From milliseconds to tokens per second; `least` seconds are the device's bound."""
    row.values = {name: [1e3 * tokens / value for value in values] for name, values in row.values.items()}
    row.unit, row.work = 'tokens/s', f'{row.work}: tokens/s ({what})'
    row.bound = tokens / least
    return row


def show_scores(rows: Sequence[Row]) -> str:
    lines = []
    for time, memory in zip(rows[::2], rows[1::2], strict=True):
        cells = [row.cell(name) for row in (time, memory) for name in WAYS]
        faster = replace(time, base='ours blocks', faster=True).cell('ours flex')
        lines.append([time.work, *cells[:2], faster, *cells[2:]])
    heads = ['flex, ms', 'blocks, ms', 'times as fast', 'flex, MiB', 'blocks, MiB']
    return markdown(['attention, tokens', *heads], lines)


def show(rows: Sequence[Row]) -> str:
    if rows and rows[0].bound is None:
        return show_scores(rows)
    columns = [name for name in NAMES if any(name in row.values for row in rows)]
    lines = []
    for row in rows:
        cells = []
        for name in columns:
            median = quartiles(row.values[name])[1] if name in row.values else None
            cells.append('-' if median is None else f'{median:.0f} ({median / row.bound:.0%})')
        lines.append([row.work, *cells])
    return markdown(['work', *columns], lines)


if __name__ == '__main__':
    run(parser(), work, rows, show)
