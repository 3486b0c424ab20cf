"""Tokens per second of `generate`, against another installation of the same package.

    pip install --target FOLDER x-transformers==2.31.10
    python benchmarks/generate.py FOLDER --threads 1

Each side runs in a process of its own, which builds its models once and then waits. Rounds are interleaved: both sides
measure a case, one after the other, before the next round begins, so that a busy machine disturbs both alike. The best
time of a case counts. Printed are tokens per second, of all rows together, and the ratio of ours to theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

CASES = [(batch, prompt) for batch in (1, 8) for prompt in (64, 1024)]


def serve(options: argparse.Namespace) -> None:
    """Measure each case that is asked for on standard input, one per line."""
    import torch

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    flash = {'attn_flash': True} if options.flash else {}
    stack = Decoder(dim=options.dim, depth=options.depth, heads=8, rotary_pos_emb=True, **flash)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=2048, attn_layers=stack)).eval()
    for line in sys.stdin:
        batch, prompt, tokens = json.loads(line)
        prompts = torch.randint(0, 256, (batch, prompt))
        start = time.perf_counter()
        out = model.generate(prompts, tokens)
        seconds = time.perf_counter() - start
        assert out.shape == (batch, tokens)
        print(json.dumps(seconds), flush=True)


class Side:
    """A process that imports the package from a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, str(folder), '--serve']
        for name in ('threads', 'dim', 'depth'):
            command += [f'--{name}', str(getattr(options, name))]
        command += ['--flash'] if options.flash else []
        environment = {**os.environ, 'PYTHONPATH': str(folder), 'OMP_NUM_THREADS': str(options.threads)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def measure(self, *case: int) -> float:
        """The seconds that a case takes."""
        self.process.stdin.write(json.dumps(case) + '\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit('a side has stopped, its message stands above')
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('folder', type=Path, help='where the other installation is')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--tokens', type=int, default=256, help='tokens to generate')
    parser.add_argument('--dim', type=int, default=256)
    parser.add_argument('--depth', type=int, default=4)
    parser.add_argument('--flash', action='store_true', help='ask both sides for fused attention')
    parser.add_argument('--serve', action='store_true', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options)

    sides = {'ours': Side(Path(__file__).parents[1], options), 'theirs': Side(options.folder.resolve(), options)}
    best = {(name, case): float('inf') for name in sides for case in CASES}
    for case in CASES:  # the first calls allocate
        for side in sides.values():
            side.measure(*case, 4)
    for _ in range(options.rounds):
        for case in CASES:
            for name, side in sides.items():
                best[name, case] = min(best[name, case], side.measure(*case, options.tokens))
    for side in sides.values():
        side.close()
    print(f'{options.tokens} new tokens, dim {options.dim}, depth {options.depth}, {options.threads} thread(s)')
    for case in CASES:
        batch, prompt = case
        speeds = {name: batch * options.tokens / best[name, case] for name in sides}
        ratio = best['theirs', case] / best['ours', case]
        words = ', '.join(f'{name} {speed:7.0f} tokens/s' for name, speed in speeds.items())
        print(f'batch {batch}, prompt {prompt:4}: {words}, ratio {ratio:.2f}')


if __name__ == '__main__':
    main()
