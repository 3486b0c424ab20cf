"""What ways of attention learn in the same time: bits per byte of long text, read at 4,096 bytes of context.

    python benchmarks/long_text.py [--minutes 10] [--seeds 3] [--ways 'dense;LSH'] [--results FILE]
    python benchmarks/long_text.py --ways 'segments;Transformer-XL;Compressive'

The text is the source of Python's standard library, of the interpreter that runs this; every tenth file is held out.
All models are equal but for their attention, and train for the same processor time, on the same sequences, with a rate
that falls with that time; evaluation does not count. Models of segments read the same sequences an eighth at a time,
alone or with memories of those before. `--results` keeps every run that has ended, and leaves out what the file already
has; `--show` trains nothing, and shows what it holds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from corpus import Corpus
from measure import ROOT, markdown
from torch import Tensor, nn
from ways import WAYS, Sizes

sys.path[:0] = [str(ROOT), str(ROOT / 'examples')]

# by their names in `ways`
MODELS = {
    'dense': '',
    'window 256': 'window 256, causal',
    'Sparse Transformer': 'Sparse Transformer, strided',
    'LSH': 'LSH, causal',
    'routing': 'routing, causal',
    'Performer': 'Performer, causal',
    'delta rule': 'delta rule, causal',
}
# those that read segments, an eighth of the context each: flags of the model, by the length of a segment
SEGMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    'segments': lambda n: {},
    'Transformer-XL': lambda n: dict(max_mem_len=n),
    'Compressive': lambda n: dict(max_mem_len=n, cmem_len=n // 2, cmem_ratio=4),
}
PARTS = 4  # of the time, after each of which the model is evaluated


@dataclass
class Run:
    """One model, trained once."""

    model: str
    seed: int
    settings: dict[str, Any]
    steps: int = 0
    bits: list[float] = field(default_factory=list)  # per held-out byte, after each part of the time
    early: float = 0.0  # per byte of the first quarter of a sequence
    late: float = 0.0  # of the last
    refused: str = ''


class Segments(nn.Module):
    """A model that reads segments one after the other, and hands on its memories."""

    def __init__(self, net: nn.Module, length: int) -> None:
        super().__init__()
        self.net, self.length, self.aux = net, length, 0.0

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of all bytes; `aux` holds what the memories want to learn."""
        mems, found, self.aux = None, [], 0.0
        for part in ids.split(self.length, dim=1):
            logits, seen = self.net(part, mems=mems, return_mems=self.net.max_mem_len > 0, return_intermediates=True)
            mems, self.aux = seen.mems, self.aux + sum(seen.aux_losses.values())
            found.append(logits)
        return torch.cat(found, dim=1)

    def on_step_end(self, progress: float) -> None:
        self.net.on_step_end(progress)


def model_of(name: str, settings: dict[str, Any]) -> nn.Module:
    """Bytes to logits."""
    from x_transformers import Decoder, TransformerWrapper

    n, sizes = settings['context'], Sizes(settings['dim'], settings['heads'], settings['scale'])
    if name in SEGMENTS:
        options = dict(dim=sizes.dim, depth=settings['depth'], heads=sizes.heads, attn_dim_head=sizes.head)
        stack = Decoder(**options, rotary_pos_emb=True)
        flags = SEGMENTS[name](n // 8)
        net = TransformerWrapper(num_tokens=256, max_seq_len=n // 8, use_abs_pos_emb=False, attn_layers=stack, **flags)
        return Segments(net, n // 8)
    flags = WAYS[MODELS[name]].flags(n, sizes) if MODELS[name] else {}
    flags = {f'attn_{flag}': value for flag, value in flags.items()}
    stack = Decoder(dim=sizes.dim, depth=settings['depth'], heads=sizes.heads, attn_dim_head=sizes.head, **flags)
    return TransformerWrapper(num_tokens=256, max_seq_len=n, scaled_sinu_pos_emb=True, attn_layers=stack)


def loss_of(model: nn.Module, rows: Tensor, reduction: str = 'mean') -> Tensor:
    """Of each byte but the first: (b n + 1) -> (b n), or their mean."""
    return F.cross_entropy(model(rows[:, :-1]).mT, rows[:, 1:], reduction=reduction)


@torch.no_grad()
def bits_of(model: nn.Module, held_out: Tensor) -> Tensor:
    """Bits per byte at each place, (n), over held-out sequences."""
    model.eval()
    found = torch.cat([loss_of(model, row[None], 'none') for row in held_out]).mean(dim=0) / math.log(2)
    model.train()
    return found


def train(run: Run, draw: Callable[[torch.Generator], Tensor], held_out: Tensor) -> Run:
    """Fill in what a model learns."""
    settings, generator = run.settings, torch.Generator().manual_seed(run.seed)
    torch.manual_seed(run.seed)
    model = model_of(run.model, settings)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{'params': decayed, 'weight_decay': 0.1}, {'params': others, 'weight_decay': 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=settings['rate'], betas=(0.9, 0.95))
    budget, used = 60 * settings['minutes'], 0.0
    while used < budget:
        start, rows = time.process_time(), draw(generator)
        for group in optimiser.param_groups:
            group['lr'] = settings['rate'] * min(1.0, 20 * used / budget + 0.05) * (1 - used / budget)
        (loss_of(model, rows) + getattr(model, 'aux', 0.0)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        run.steps += 1
        used += time.process_time() - start
        model.on_step_end(min(1.0, used / budget))
        while len(run.bits) < PARTS and used >= budget * (len(run.bits) + 1) / PARTS:
            bits = bits_of(model, held_out)
            run.bits.append(bits.mean().item())
    quarter = len(bits) // 4
    run.early, run.late = bits[:quarter].mean().item(), bits[-quarter:].mean().item()
    return run


def texts(settings: dict[str, Any]) -> tuple[Callable[[torch.Generator], Tensor], Tensor]:
    """What draws a batch, and the sequences that are held out, each of one byte more than a model reads."""
    text = Corpus(settings['context'] + 1, settings['batch'], settings['bytes'])
    return text.draw, text.held_out(settings['held_out'])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--minutes', type=float, default=10, help='processor time of training, of each model and seed')
    parser.add_argument('--seeds', type=int, default=3, help='runs of each model')
    parser.add_argument('--ways', help=f'only these, with semicolons: {"; ".join((*MODELS, *SEGMENTS))}')
    parser.add_argument('--context', type=int, default=4096, help='bytes that a model reads at once')
    parser.add_argument('--dim', type=int, default=128)
    parser.add_argument('--depth', type=int, default=4)
    parser.add_argument('--heads', type=int, default=4)
    parser.add_argument('--batch', type=int, default=1, help='sequences of a step')
    parser.add_argument('--rate', type=float, default=2e-3, help='the highest learning rate')
    parser.add_argument('--held-out', type=int, default=16, help='sequences that are evaluated')
    parser.add_argument('--bytes', type=int, default=10**8, help='of text that is read at most')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--results', type=Path, help='keep runs in this file, beside those that it has')
    parser.add_argument('--show', action='store_true', help='train nothing, show what `--results` holds')
    parser.add_argument('--markdown', type=Path, help='write the table to this file')
    parser.add_argument('--tiny', action='store_true', help='tiny sizes: whether it runs, not what is learned')
    return parser


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    if options.tiny:
        small = {'context': 64, 'dim': 16, 'depth': 1, 'heads': 2, 'held_out': 2, 'bytes': 10**5, 'minutes': 0.001}
        vars(options).update(small, seeds=min(options.seeds, 2))
    names = ('minutes', 'context', 'dim', 'depth', 'heads', 'batch', 'rate', 'held_out', 'bytes')
    return {'scale': 16 if options.tiny else 1, **{name: getattr(options, name) for name in names}}


def runs(options: argparse.Namespace, settings: dict[str, Any], kept: Sequence[Run]) -> Iterator[Run]:
    """What is not there yet, seed by seed; a model that cannot be built says why."""
    wanted = [name.strip() for name in options.ways.split(';')] if options.ways else list(MODELS)
    for name in wanted:
        if name not in (*MODELS, *SEGMENTS):
            raise SystemExit(f'--ways: {name!r} is none of {"; ".join((*MODELS, *SEGMENTS))}')
    done = {(run.model, run.seed) for run in kept if run.settings == settings and not run.refused}
    made = None
    for seed in range(options.seeds):
        for name in wanted:
            if (name, seed) in done:
                continue
            run = Run(name, seed, settings)
            try:
                model_of(name, settings)
            except (ValueError, TypeError, ImportError, AttributeError) as error:
                run.refused = f'{type(error).__name__}: {error}'
            made = made or texts(settings)
            yield run if run.refused else train(run, *made)


def spread(values: Sequence[float]) -> str:
    """Their mean, and how far they spread."""
    middle = f'{statistics.fmean(values):.3f}'
    return f'{middle} ± {statistics.stdev(values):.3f}' if len(values) > 1 else middle


def show(kept: Sequence[Run]) -> str:
    """A table for each setting, the best first."""
    found = []
    for settings in [json.loads(text) for text in dict.fromkeys(json.dumps(run.settings) for run in kept)]:
        own: dict[str, list[Run]] = {}
        for run in kept:
            if run.settings == settings and not run.refused:
                own.setdefault(run.model, []).append(run)
        lines = []
        for name, some in sorted(own.items(), key=lambda item: statistics.fmean(run.bits[-1] for run in item[1])):
            curve = [statistics.fmean(run.bits[part] for run in some) for part in range(PARTS - 1)]
            steps = statistics.fmean(run.steps for run in some)
            read = steps * settings['batch'] * settings['context'] / 1e6
            cells = [spread([run.bits[-1] for run in some]), *(f'{value:.3f}' for value in curve)]
            parts = [spread([getattr(run, part) for run in some]) for part in ('early', 'late')]
            lines.append([name, *cells, *parts, f'{read:.3g}', f'{6e4 * settings["minutes"] / steps:.0f}'])
        heads = ['after a quarter', 'half', 'three quarters', 'at the start', 'at the end', 'MB read', 'ms a step']
        words = f'dim {settings["dim"]}, depth {settings["depth"]}, {settings["context"]} bytes of context'
        head = f'bits per byte, {settings["minutes"]:g} minutes, {words}'
        found += [markdown([head, 'held out', *heads], lines)] if lines else []
    left = {run.model: run.refused for run in kept if run.refused}
    found += ['Left out:\n' + '\n'.join(f'- {name}: {why}' for name, why in left.items())] if left else []
    return '\n\n'.join(found)


def main() -> None:
    options = parser().parse_args()
    settings = settings_of(options)
    torch.set_num_threads(options.threads)
    file = options.results
    kept = [Run(**fields) for fields in json.loads(file.read_text())] if file and file.exists() else []
    for run in [] if options.show else runs(options, settings, kept):
        old = [other for other in kept if (other.model, other.seed) == (run.model, run.seed)]
        kept = [other for other in kept if other not in old or other.settings != settings] + [run]
        what = run.refused or f'{run.bits[-1]:.3f} bits per byte after {run.steps} steps'
        print(f'{run.model}, seed {run.seed}: {what}', file=sys.stderr, flush=True)
        if file:
            file.write_text(json.dumps([asdict(one) for one in kept], indent=1))
    text = show(kept)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + '\n')


if __name__ == '__main__':
    main()
