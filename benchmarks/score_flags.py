"""Time and peak memory of forward and backward for each flag that changes attention scores, against another
installation of the same package, at growing lengths.

    pip install --target FOLDER x-transformers==2.31.10
    python benchmarks/score_flags.py FOLDER --threads 1 --lengths 1024 2048 4096 8192

One stack, Decoder(dim, depth, heads), batch 1. Each measurement runs in a process of its own, ours and theirs in turn.
Peak memory is what the step needs beyond what the process held before it: the largest sum of the profiler's allocations
on a CPU, torch's own count on a GPU. A case that would not fit into --limit GiB, judged by the two lengths before, is
left out. Printed: seconds and MiB, and in brackets by which factor each grew since the length before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FLAGS: dict[str, dict[str, Any]] = {
    'no flag': {},
    'no flag, formula': dict(attn_flash=False),
    'pre talking heads': dict(attn_pre_talking_heads=True),
    'post talking heads': dict(attn_post_talking_heads=True),
    'top-k': dict(attn_sparse_topk=32),
    'sigmoid': dict(attn_sigmoid=True),
    'soft clamp': dict(attn_softclamp_logits=True),
    'selective': dict(attn_selective=True),
    'CoPE': dict(attn_use_cope=True),
    'hard': dict(attn_hard=True),
    'cog signed': dict(attn_cog_signed=True),
    'learned sink': dict(attn_head_learned_sink=True),
    'entmax': dict(attn_use_entmax15=True),
    'l2 distance': dict(attn_l2_distance=True),
    'laser': dict(attn_laser=True),
    'ALiBi': dict(alibi_pos_bias=True),
    'T5 bias': dict(rel_pos_bias=True),
    'dynamic bias': dict(dynamic_pos_bias=True),
    'forget gates': dict(attn_data_dependent_alibi=True),
    'window': dict(attn_max_attend_past=256),
    'memory keys': dict(attn_num_mem_kv=4),
    'dropout': dict(attn_dropout=0.1),
    'padding mask': {},
    'residual attention': dict(residual_attn=True),
}


def peak_of_profile(step: Any) -> float:
    """The largest sum of allocations during `step`, in bytes."""
    import torch
    from torch.profiler import profile

    with profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    held = most = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == '[memory]']
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return float(most)


def measure(options: argparse.Namespace) -> None:
    """One flag at one length: seconds and bytes, as JSON on the last line of standard output."""
    import torch

    from x_transformers import Decoder

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device, cuda = torch.device(options.device), options.device.startswith('cuda')
    net = Decoder(dim=options.dim, depth=options.depth, heads=8, **FLAGS[options.flag]).to(device).train()
    x = torch.randn(1, options.length, options.dim, device=device, requires_grad=True)
    inputs = {}
    if options.flag == 'padding mask':
        inputs['mask'] = torch.arange(options.length, device=device)[None] < options.length * 7 // 8

    def step() -> None:
        net(x, **inputs).sum().backward()
        net.zero_grad()
        x.grad = None

    def timed() -> float:
        start = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    step()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = min(timed() for _ in range(options.rounds))
    peak = torch.cuda.max_memory_allocated() - before if cuda else peak_of_profile(step)
    print(json.dumps([seconds, peak]), flush=True)


def run(folder: Path, flag: str, length: int, options: argparse.Namespace) -> tuple[float, float] | str:
    """What `measure` prints in a process that imports the package from a folder; or why it does not."""
    command = [sys.executable, __file__, str(folder), '--flag', flag, '--length', str(length)]
    for name in ('threads', 'dim', 'depth', 'rounds', 'device'):
        command += [f'--{name}', str(getattr(options, name))]
    environment = {**os.environ, 'PYTHONPATH': str(folder), 'OMP_NUM_THREADS': str(options.threads)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        seconds, peak = json.loads(done.stdout.splitlines()[-1])
        return seconds, peak
    return 'out of memory' if done.returncode < 0 or 'memory' in done.stderr else 'refused'


def fits(known: list[Any], options: argparse.Namespace) -> bool:
    """Whether a case should fit at twice the length, judged by how it grew."""
    numbers = [entry for entry in known if isinstance(entry, tuple)]
    if known and not isinstance(known[-1], tuple):
        return False
    if not numbers:
        return True
    growth = numbers[-1][1] / numbers[-2][1] if len(numbers) > 1 else 4.0
    return numbers[-1][1] * growth < options.limit * 2**30


def cell(known: list[Any]) -> str:
    if isinstance(known[-1], str):
        return f'{known[-1]:>30}'
    seconds, peak = known[-1]
    grown = ''
    if len(known) > 1 and isinstance(known[-2], tuple):
        grown = f'({seconds / known[-2][0]:.1f}, {peak / known[-2][1]:.1f})'
    return f'{seconds:8.3f} s {peak / 2**20:7.0f} MiB {grown:>10}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='where the other package is installed')
    parser.add_argument('--lengths', type=int, nargs='+', default=[1024, 2048, 4096, 8192])
    parser.add_argument('--flags', nargs='+', default=list(FLAGS), choices=FLAGS, help='which rows')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--rounds', type=int, default=2, help='the best of so many steps counts')
    parser.add_argument('--dim', type=int, default=256)
    parser.add_argument('--depth', type=int, default=1)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--limit', type=float, default=8.0, help='GiB that a case may need')
    parser.add_argument('--flag', help=argparse.SUPPRESS)
    parser.add_argument('--length', type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flag:
        return measure(options)
    ours = Path(__file__).resolve().parent.parent
    print(f'{"":20}{"n":>6}  {"ours":>30}  {"theirs":>30}  {"theirs / ours":>16}')
    for flag in options.flags:
        known: dict[Path, list[Any]] = {ours: [], options.folder: []}
        for length in options.lengths:
            for folder, entries in known.items():
                entries.append(run(folder, flag, length, options) if fits(entries, options) else 'left out')
            mine, their = (entries[-1] for entries in known.values())
            ratios = ''
            if isinstance(mine, tuple) and isinstance(their, tuple):
                ratios = f'{their[0] / mine[0]:7.2f} {their[1] / mine[1]:8.2f}'
            print(f'{flag:20}{length:6}  {cell(known[ours])}  {cell(known[options.folder])}  {ratios}', flush=True)
    return None


if __name__ == '__main__':
    main()
