"""The loss over a large vocabulary, forward and backward, against plain formulas and the floor.

    python benchmarks/loss.py --threads 1
    python benchmarks/loss.py --device cuda --dtype bfloat16 --batch 8

One hidden state per token, a linear head without bias, the mean cross entropy, gradients of both. The floor is the
three matrix products alone,  z = h W^T,  dh = dz W,  dW = dz^T h,  into buffers that are there already; once of all
tokens, and once of as many at a time as ours. Rounds are interleaved, so that a busy machine disturbs all alike; the
first does not count. Printed are the best time over the best of the floor, the median with the quartiles of its ratio
to the floor of the same round, and the peak of what is allocated, with gradients, in tensors of all logits (float32).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.token_loss import linear_cross_entropy, tokens_at_a_time


class Row(NamedTuple):
    """What was measured of a way: seconds of each round, peak in tensors of all logits, or None for the floor."""

    name: str
    seconds: list[float]
    peak: float | None


def products(hidden: Tensor, weight: Tensor, size: int) -> Callable[[], None]:
    """The matrix products of so many tokens at a time, into buffers that are there already."""
    h, w = hidden.detach(), weight.detach()
    buffer = h.new_empty(min(size, len(h)), len(w))
    to_h, to_w = torch.empty_like(h), torch.empty_like(w)

    def run() -> None:
        for start in range(0, len(h), size):
            x = h[start : start + size]
            z = torch.mm(x, w.t(), out=buffer[: len(x)])
            torch.mm(z, w, out=to_h[start : start + size])
            torch.mm(z.t(), x, out=to_w) if start == 0 else to_w.addmm_(z.t(), x)

    return run


def ways(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    given = dict(device=options.device, dtype=getattr(torch, options.dtype))
    tokens, dim, vocab = options.batch * options.seq, options.dim, options.vocab
    hidden = torch.randn(tokens, dim, **given).requires_grad_()
    weight = (torch.randn(vocab, dim, **given) * dim**-0.5).requires_grad_()
    targets = torch.randint(vocab, (tokens,), device=options.device)

    def trained(loss: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            loss().backward()
            hidden.grad = weight.grad = None

        return run

    @torch.no_grad()
    def evaluated() -> None:
        linear_cross_entropy(hidden, weight, targets)

    found: dict[str, Callable[[], Any]] = {'floor': products(hidden, weight, tokens)}
    found['floor, chunks'] = products(hidden, weight, tokens_at_a_time(vocab, hidden))
    found['ours'] = trained(lambda: linear_cross_entropy(hidden, weight, targets))
    found['ours, no grad'] = evaluated
    found['plain'] = trained(lambda: F.cross_entropy(F.linear(hidden, weight), targets))
    return found


def peak_bytes(run: Callable[[], Any], device: str) -> int:
    """The most that is allocated while it runs, above what is there before."""
    gc.collect()
    if device.startswith('cuda'):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == '[memory]']
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def rows(options: argparse.Namespace) -> list[Row]:
    """What was measured of every way."""
    torch.set_num_threads(options.threads)
    cuda, clock = options.device.startswith('cuda'), time.process_time if options.cpu_time else time.perf_counter
    runs = ways(options)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(options.rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if cuda:
                torch.cuda.synchronize()
            if round_:
                seconds[name].append(clock() - start)
    logits = 4 * options.batch * options.seq * options.vocab
    measured = [name for name in runs if 'floor' not in name]
    peaks = {name: peak_bytes(runs[name], options.device) / logits for name in measured}
    return [Row(name, times, peaks.get(name)) for name, times in seconds.items()]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(vocab=50257, seq=2048, dim=256, batch=1, threads=1, rounds=7).items():
        parser.add_argument(f'--{name}', type=int, default=value)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--cpu-time', action='store_true', help='time of the process, on a machine that others use')
    parser.add_argument('--dtype', default='float32', choices=['float32', 'bfloat16', 'float16', 'float64'])
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    found = rows(parsed(arguments))
    floor = found[0].seconds
    heads = ('', 'best, s', 'over floor', 'median, s', 'over floor', 'quartiles', 'peak, logits')
    print('{:16}{:>10}{:>12}{:>12}{:>12}{:>16}{:>14}'.format(*heads))
    for row in found:
        best, middle = min(row.seconds), statistics.median(row.seconds)
        ratios = [one / other for one, other in zip(row.seconds, floor, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        peak = '' if row.peak is None else f'{row.peak:.3f}'
        times = f'{best:10.4f}{best / min(floor):12.2f}{middle:12.4f}{ratio:12.2f}'
        print(f'{row.name:16}{times}{low:8.2f}{high:8.2f}{peak:>14}')


if __name__ == '__main__':
    main()
