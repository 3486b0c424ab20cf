"""What position biases cost: time and peak memory of a training step over one without a bias, here and in another
installation of the same package.

    pip install --target FOLDER x-transformers==2.31.10
    python benchmarks/biases.py FOLDER --threads 1

TransformerWrapper with dim 256, depth 4, 8 heads, 8192 tokens, batch 1, AdamW. Each package runs in a process of its
own that holds the model without a bias and the one with it; their steps are interleaved, each round gives one ratio.
Printed: the median of the ratios with quartiles, and the ratio of the peaks of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from score_flags import peak_of_profile

BIASES: dict[str, dict[str, Any]] = {
    'T5': dict(rel_pos_bias=True),
    'dynamic': dict(dynamic_pos_bias=True),
    'ALiBi': dict(alibi_pos_bias=True),
}


def training_step(options: argparse.Namespace, flags: dict[str, Any]) -> Callable[[], None]:
    import torch
    import torch.nn.functional as F

    from x_transformers import Decoder, TransformerWrapper

    torch.manual_seed(0)
    if options.flash:
        flags = {**flags, 'attn_flash': True}
    stack = Decoder(dim=options.dim, depth=options.depth, heads=8, **flags)
    net = TransformerWrapper(num_tokens=options.tokens, max_seq_len=options.length, attn_layers=stack)
    net.to(options.device).train()
    optimizer = torch.optim.AdamW(net.parameters())
    ids = torch.randint(0, options.tokens, (1, options.length + 1), device=options.device)

    def step() -> None:
        F.cross_entropy(net(ids[:, :-1]).transpose(1, 2), ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.device != 'cpu':
            torch.cuda.synchronize()

    return step


def peak(options: argparse.Namespace, step: Callable[[], None]) -> float:
    import torch

    if options.device == 'cpu':
        return peak_of_profile(step)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    return float(torch.cuda.max_memory_allocated() - before)


def serve(options: argparse.Namespace) -> None:
    """Measure each bias that is asked for on standard input, one per line."""
    import torch

    torch.set_num_threads(options.threads)
    for line in sys.stdin:
        plain, biased = training_step(options, {}), training_step(options, BIASES[line.strip()])
        for step in (plain, biased):
            step()
        ratios, best = [], [float('inf')] * 2
        for _ in range(options.rounds):
            seconds = []
            for step in (plain, biased):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            ratios.append(seconds[1] / seconds[0])
            best = [min(a, b) for a, b in zip(best, seconds, strict=True)]
        peaks = [peak(options, step) for step in (plain, biased)]
        print(json.dumps([ratios, best, peaks]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='where the other package is installed')
    parser.add_argument('--length', type=int, default=1024)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--dim', type=int, default=256)
    parser.add_argument('--depth', type=int, default=4)
    parser.add_argument('--tokens', type=int, default=8192)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--flash', action='store_true', help='with attn_flash=True, where a bias allows it')
    parser.add_argument('--serve', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options)
    names = ('length', 'threads', 'rounds', 'dim', 'depth', 'tokens', 'device')
    given = [text for name in names for text in (f'--{name}', str(getattr(options, name)))]
    given += ['--flash'] if options.flash else []
    ours = Path(__file__).resolve().parent.parent
    print(f'{"":8}{"":8}{"time":>6} {"quartiles":>13} {"best":>6}{"memory":>9}')
    for bias in BIASES:
        for name, folder in (('ours', ours), ('theirs', options.folder)):
            environment = {**os.environ, 'PYTHONPATH': str(folder), 'OMP_NUM_THREADS': str(options.threads)}
            command = [sys.executable, __file__, str(folder), '--serve', *given]
            done = subprocess.run(command, input=f'{bias}\n', env=environment, capture_output=True, text=True)
            if done.returncode:
                print(f'{bias:8}{name:8} refused: {done.stderr.strip().splitlines()[-1]}')
                continue
            ratios, best, peaks = json.loads(done.stdout.splitlines()[-1])
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f'{bias:8}{name:8}{middle:6.3f} {low:6.3f} {high:6.3f} {best[1] / best[0]:6.3f}'
                f'{peaks[1] / peaks[0]:9.3f}   ({peaks[1] / 2**20:.0f} MiB)',
                flush=True,
            )
    return None


if __name__ == '__main__':
    main()
