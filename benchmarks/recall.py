"""What a state of fixed size loses, and what one attention layer in four gets back.

    python benchmarks/recall.py [--layers gated_delta,mamba2] [--seeds 0,1,2] [--minutes 60]
    python benchmarks/recall.py --write             the tables of `docs/recurrent.md`

Two tasks, on models of four mixers and four feedforwards:

    pairs     keys with values, then every key once more, in another order: which value? (associative recall, as in
              arXiv:2312.04927.) Trained on 4 to 64 pairs at once; the answers that are right, for each number of pairs
    needle    one key with its value in noise, asked for at the end. Trained on 1,024 tokens, read at up to 16,384

Each kind of layer is tried alone and as three of four, with an attention layer that knows no positions behind them.
A trained model is some rows of `benchmarks/results/recall.csv`, written when it ends: what is there is not run again.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from measure import ROOT, markdown
from torch import Tensor, nn

from x_transformers import Decoder, TransformerWrapper
from x_transformers.recurrent import MODULES

FILE, PAGE = ROOT / 'benchmarks' / 'results' / 'recall.csv', ROOT / 'docs' / 'recurrent.md'
DIM, HEADS, IGNORED = 64, 4, -100
KEYS = VALUES = 64
PAIRS = (4, 8, 16, 32, 64)
LENGTHS = (1024, 2048, 4096, 8192, 16384)
# of the stack, where they are not the defaults: heads as those of attention
KEYWORDS: dict[str, dict[str, Any]] = {
    name: dict(heads=HEADS) for name in ('gated_delta', 'kda', 'gla', 'lightning', 'mlstm', 'slstm')
}
KEYWORDS['mamba2'] = dict(heads=8, dim_head=16, state=64)


@dataclass
class Row:
    """The answers of one trained model that are right, at one size of a task."""

    task: str
    layers: str  # a name of `MODULES` or 'attention', and ' + attention' behind it for a hybrid
    seed: int
    size: int  # pairs, or tokens
    right: float
    state: int  # numbers that a sequence keeps after the longest input of training
    parameters: int
    seconds: float
    day: str = field(default_factory=lambda: time.strftime('%Y-%m-%d'))


# tasks


def pairs(count: int, b: int) -> tuple[Tensor, Tensor]:
    """Tokens (b 3c), keys below KEYS and values behind them, and answers at the questions."""
    keys, values = torch.rand(b, KEYS).argsort(dim=-1)[:, :count], torch.randint(VALUES, (b, count))
    order = torch.rand(b, count).argsort(dim=-1)
    told = torch.stack((keys, KEYS + values), dim=-1).flatten(1)
    asked, answers = keys.gather(1, order), values.gather(1, order)
    return torch.cat((told, asked), dim=1), torch.cat((torch.full_like(told, IGNORED), answers), dim=1)


def needle(length: int, b: int) -> tuple[Tensor, Tensor]:
    """Noise of values, in which one key stands before its value, and at the end once more."""
    x, at = KEYS + torch.randint(VALUES, (b, length)), torch.randint(length - 3, (b, 1))
    key, y = torch.randint(KEYS, (b, 1)), torch.full((b, length), IGNORED)
    x.scatter_(1, at, key)
    x[:, -1:] = key
    y[:, -1:] = x.gather(1, at + 1) - KEYS
    return x, y


@dataclass(frozen=True)
class Task:
    draw: Callable[[int, int], tuple[Tensor, Tensor]]
    sizes: tuple[int, ...]
    trained: tuple[int, ...]
    tokens: int  # of a batch, at most
    steps: int


TASKS = {
    'pairs': Task(pairs, PAIRS, PAIRS, 4096, 1500),
    'needle': Task(needle, LENGTHS, LENGTHS[:1], 8192, 500),
}


def batch_of(task: Task, size: int) -> int:
    """Rows of a batch: fewer of long sequences."""
    return max(1, min(64, task.tokens // (size if task.draw is needle else 3 * size)))


# models


def model_of(layers: str) -> nn.Module:
    """A model of four mixers of a kind, or of three and attention."""
    name, _, attention = layers.partition(' + ')
    if name == 'attention':
        stack: dict[str, Any] = dict(depth=4, rotary_pos_emb=True)
    else:
        kinds = ('r', 'f', 'r', 'f', 'r', 'f', 'a' if attention else 'r', 'f')
        stack = dict(custom_layers=kinds, recurrent_module=name, recurrent_kwargs=KEYWORDS.get(name))
    decoder = Decoder(dim=DIM, heads=HEADS, attn_dim_head=DIM // HEADS, use_rmsnorm=True, verbose=False, **stack)
    longest = max(*LENGTHS, 3 * max(PAIRS))
    return TransformerWrapper(
        num_tokens=KEYS + VALUES, logits_dim=VALUES, max_seq_len=longest, use_abs_pos_emb=False, attn_layers=decoder
    )


def train(model: nn.Module, task: Task, rate: float = 3e-3) -> None:
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    fall = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=task.steps, pct_start=0.1)
    for step in range(task.steps):
        size = task.trained[step % len(task.trained)]
        x, y = task.draw(size, batch_of(task, size))
        asked = y != IGNORED
        loss = nn.functional.cross_entropy(model(x)[asked], y[asked])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        fall.step()


@torch.no_grad()
def right(model: nn.Module, task: Task, size: int, least: int = 256) -> float:
    """The part of at least so many answers that is right."""
    found: list[Tensor] = []
    while sum(map(len, found)) < least:
        x, y = task.draw(size, batch_of(task, size))
        asked = y != IGNORED
        found.append(model(x)[asked].argmax(dim=-1) == y[asked])
    return torch.cat(found).float().mean().item()


@torch.no_grad()
def numbers_kept(model: nn.Module, task: Task) -> int:
    """Numbers in the cache of one sequence."""
    x, _ = task.draw(max(task.trained), 1)
    _, kept = model(x, return_intermediates=True)
    return sum(t.numel() for t in kept.cache.tensors())


def run(name: str, layers: str, seed: int) -> Iterator[Row]:
    """Train a model, and ask it."""
    torch.manual_seed(seed)
    task, model, start = TASKS[name], model_of(layers), time.process_time()
    train(model, task)
    seconds, model = time.process_time() - start, model.eval()
    kept, count = numbers_kept(model, task), sum(weight.numel() for weight in model.parameters())
    for size in task.sizes:
        yield Row(name, layers, seed, size, round(right(model, task, size), 4), kept, count, round(seconds, 1))


# rows


def read() -> list[Row]:
    kinds = {'seed': int, 'size': int, 'right': float, 'state': int, 'parameters': int, 'seconds': float}
    if not FILE.exists():
        return []
    with FILE.open(newline='') as lines:
        return [Row(**{key: kinds.get(key, str)(text) for key, text in line.items()}) for line in csv.DictReader(lines)]


def append(rows: list[Row]) -> None:
    new = not FILE.exists()
    with FILE.open('a', newline='') as lines:
        writer = csv.DictWriter(lines, [one.name for one in fields(Row)], lineterminator='\n')
        if new:
            writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def table(rows: list[Row], name: str) -> str:
    """One line for each kind of layer: the mean over seeds, at each size; the best first."""
    task, lines = TASKS[name], []
    for layers in dict.fromkeys(row.layers for row in rows if row.task == name):
        own = [row for row in rows if (row.task, row.layers) == (name, layers)]
        means = [statistics.fmean(row.right for row in own if row.size == size) for size in task.sizes]
        seeds = len({row.seed for row in own})
        lines.append((means, [layers, *(f'{mean:.2f}' for mean in means), f'{own[0].state:,}', str(seeds)]))
    lines.sort(key=lambda line: -sum(line[0]))
    unit = 'pairs' if name == 'pairs' else 'tokens'
    return markdown(
        ['layers', *(f'{size:,} {unit}' for size in task.sizes), 'numbers kept', 'seeds'], [line for _, line in lines]
    )


def write(rows: list[Row]) -> None:
    """Write both tables between their marks in the documentation."""
    text = PAGE.read_text()
    for name in TASKS:
        mark = rf'(<!-- recall, {name} -->\n).*?(<!-- end of recall, {name} -->)'
        text = re.sub(mark, lambda found, name=name: f'{found[1]}{table(rows, name)}\n{found[2]}', text, flags=re.S)
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        '--layers', default='attention,' + ','.join(MODULES), help='kinds of layers, with commas between'
    )
    parser.add_argument('--tasks', default=','.join(TASKS))
    parser.add_argument('--seeds', default='0,1,2')
    parser.add_argument('--minutes', type=float, default=60.0, help='no model is begun after so many')
    parser.add_argument('--write', action='store_true', help='write the tables of the documentation')
    given = parser.parse_args()
    if given.write:
        return write(read())
    torch.set_num_threads(1)
    start = time.monotonic()
    for seed in map(int, given.seeds.split(',')):
        for task in given.tasks.split(','):
            for name in given.layers.split(','):
                for layers in [name] if name == 'attention' else [name, f'{name} + attention']:
                    done = any((row.task, row.layers, row.seed) == (task, layers, seed) for row in read())
                    if not done and time.monotonic() - start < given.minutes * 60:
                        rows = list(run(task, layers, seed))
                        append(rows)
                        print(task, layers, seed, [row.right for row in rows], f'{rows[0].seconds:.0f} s', flush=True)


if __name__ == '__main__':
    main()
