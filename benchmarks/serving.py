"""Many requests of mixed length: an engine that lets them join and leave, against batches that wait for their longest.

    python benchmarks/serving.py [--requests 64] [--batch 16] [--block 16] [--dim 256] [--depth 4] [--rounds 3]

Prompts and answers have 8 to 256 tokens, most of them few (uniform in the logarithm). Both ways run at most `--batch`
requests at once and give the same greedy tokens, which is checked. Rows of the peer, `AutoregressiveWrapper.generate`,
are padded to the longest prompt of their batch and go on until its longest answer is there. Time is that of the wall,
in turns, the median of the rounds. Waste is the part of the blocks in use that holds no token, a mean over all steps;
that of the peer the part of its rows and columns that no request asked for.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measure import ROOT, markdown
from torch import Tensor

sys.path[:0] = [str(ROOT)]

Asked = Sequence[tuple[Tensor, int]]


def asked_of(count: int, least: int, most: int, seed: int = 0) -> Asked:
    """Prompts and how many tokens are wanted behind each."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def length() -> int:
        return round(math.exp(draw.uniform(math.log(least), math.log(most))))

    return [(torch.randint(0, 256, (length(),), generator=generator), length()) for _ in range(count)]


def in_batches(wrapper: Any, asked: Asked, batch: int) -> list[Tensor]:
    found: list[Tensor] = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        tokens = wrapper.generate([prompt for prompt, _ in part], max(n for _, n in part), temperature=0.0)
        found += [row[:n] for row, (_, n) in zip(tokens, part, strict=True)]
    return found


def waste_of_batches(asked: Asked, batch: int) -> float:
    parts = [asked[start : start + batch] for start in range(0, len(asked), batch)]
    rows = sum(len(part) * (max(len(p) for p, _ in part) + max(n for _, n in part)) for part in parts)
    return 1 - sum(len(prompt) + n for prompt, n in asked) / rows


def by_engine(wrapper: Any, asked: Asked, batch: int, block: int) -> tuple[list[Tensor], float, int]:
    """The tokens, the mean waste, and how many steps there were."""
    from x_transformers import PagedEngine

    room = sum(-(-(len(prompt) + n) // block) for prompt, n in asked)
    engine = PagedEngine(wrapper, room, block, max_batch=batch)
    numbers = [engine.add(prompt, n, temperature=0.0) for prompt, n in asked]
    wastes = []
    while engine.busy:
        engine.step()
        wastes.append(engine.waste)
    found = engine.results()
    return [found[number].tokens for number in numbers], statistics.mean(wastes), len(wastes)


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--requests', type=int, default=64)
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--block', type=int, default=16)
    parser.add_argument('--dim', type=int, default=256)
    parser.add_argument('--depth', type=int, default=4)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--tiny', action='store_true', help='a few short requests, to see that it runs')
    options = parser.parse_args(arguments)
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    if options.tiny:
        options.requests, options.batch, options.dim, options.depth, options.rounds = 6, 3, 32, 1, 1
    asked = asked_of(options.requests, *((2, 9) if options.tiny else (8, 256)), seed=options.seed)
    torch.manual_seed(options.seed)
    modern = dict(rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True)
    stack = Decoder(dim=options.dim, depth=options.depth, heads=max(options.dim // 64, 1), **modern)
    wrapper = AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=1024, attn_layers=stack)).eval()
    times: dict[str, list[float]] = {'batches': [], 'engine': []}
    for _ in range(options.rounds):
        theirs, spent = timed(lambda: in_batches(wrapper, asked, options.batch))
        times['batches'].append(spent)
        (ours, waste, steps), spent = timed(lambda: by_engine(wrapper, asked, options.batch, options.block))
        times['engine'].append(spent)
    same = sum(map(torch.equal, ours, theirs))
    total = sum(n for _, n in asked)
    medians = {name: statistics.median(spent) for name, spent in times.items()}
    parts = [asked[at : at + options.batch] for at in range(0, len(asked), options.batch)]
    of_batches = sum(max(n for _, n in part) for part in parts)
    rows = [
        ('batches', f'{total / medians["batches"]:.0f}', '1', f'{of_batches}',
         f'{100 * waste_of_batches(asked, options.batch):.1f} %', f'{len(asked)}'),
        ('engine', f'{total / medians["engine"]:.0f}', f'{medians["batches"] / medians["engine"]:.2f}', f'{steps}',
         f'{100 * waste:.1f} %', f'{same}'),
    ]  # fmt: skip
    table = markdown(['way', 'tokens a second', 'ratio', 'steps', 'waste', 'with the same tokens'], rows)
    print(table)
    return table


if __name__ == '__main__':
    main()
