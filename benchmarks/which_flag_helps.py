"""Which flags help: every flag alone, on two baselines, on real text; then the best of them together.

    python benchmarks/which_flag_helps.py [--stages rates,single] [--hours 5] [--jobs 2]
    python benchmarks/which_flag_helps.py --left            what there is to do
    python benchmarks/which_flag_helps.py --sizes 50M --device cuda --baselines modern --stages rates,costs,single

Bytes of the source of Python's standard library are foretold by a small decoder. Within a seed all variants see the
same batches, so that differences to the baseline of that seed are what counts. A run is a row of a file in
`benchmarks/results/SIZES/`, written when it ends: what is there is not run again, so that an interruption costs one run
for each job. `flag_effects.py` reads the rows, and tells what they say.

Stages, each of which reads what those before it have found:

    rates      a grid of learning rates, for each baseline
    costs      of every variant beside its baseline, in turns: time of a step, memory, time of a generated token
    baselines  each baseline for more and fewer steps: what it reaches in the time that a variant takes
    single     every variant, alone; positions are trained at 256 bytes and read at up to 2,048
    forward    the best variants one after the other, whatever gains most in equal time; eight rounds and more
    final      the best of what `forward` came by, and its baseline, for four times as long
    pairs      the best variants of the modern baseline, two at once
    second     variants of the top and the bottom tenth, at half the learning rate
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from corpus import Corpus
from flag_rows import RESULTS, SIZES, Row, Sizes, append, keywords_of, read
from flag_variants import BASELINES, BY_NAME, SEQ_LEN, VARIANTS, Variant, go_together
from measure import ROOT, Settings, bytes_of
from torch import Tensor, nn

if TYPE_CHECKING:
    from flag_statistics import Selection

sys.path[:0] = [str(ROOT), str(ROOT / 'examples')]

MORE = (0.5, 0.7, 1.4, 2.0, 2.8, 4.0)  # times the steps of a run
LENGTHS = (256, 512, 1024, 2048)
BEST = 20  # variants that are tried together
FIRST = {'rates': 2, 'second': 3, 'forward': 3, 'pairs': 2}  # so many seeds, where not all are run


# models


def model_of(keywords: dict[str, Any], sizes: Sizes, max_seq_len: int | None = None) -> nn.Module:
    """A language model of bytes."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    parts: dict[str, dict[str, Any]] = {'': {}, 'model': {}, 'train': {}}
    for name, value in keywords.items():
        part, _, own = name.rpartition('.')
        parts[part][own] = value
    shape = dict(dim=sizes.dim, depth=sizes.depth, heads=sizes.heads, attn_dim_head=sizes.dim_head)
    stack = Decoder(**shape, verbose=False, **parts[''])
    net = TransformerWrapper(
        num_tokens=256, max_seq_len=max_seq_len or sizes.seq_len, attn_layers=stack, **parts['model']
    )
    model = AutoregressiveWrapper(net, **parts['train'])
    model.on_step_end(0.0)
    return model


# runs


def half(device: torch.device) -> torch.autocast:
    """On an accelerator, autocast to bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type != 'cpu')


def now(device: str) -> float:
    """Seconds: of the processor, or of the clock when an accelerator has done what it was told."""
    if device == 'cpu':
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def optimiser_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim < 2]
    groups = [{'params': decayed, 'weight_decay': 0.1}, {'params': others, 'weight_decay': 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=decayed[0].is_cuda)


def step_of(model: nn.Module, optimiser: torch.optim.Optimizer, batch: Tensor) -> None:
    with half(batch.device):
        loss = model(batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()


@torch.no_grad()
def bits_of(model: nn.Module, held_out: Tensor) -> float:
    """Bits per byte, of the plain loss."""
    net = model.net.eval()
    total = 0.0
    for rows in held_out.split(max(1, 16 * SEQ_LEN // held_out.shape[1])):
        with half(rows.device):
            logits = net(rows[:, :-1])
        logits = logits[0] if isinstance(logits, tuple) else logits  # of several heads the first
        total += nn.functional.cross_entropy(logits.float().mT, rows[:, 1:], reduction='sum').item()
    model.train()
    return total / held_out[:, 1:].numel() / math.log(2)


def most(sizes: Sizes, length: int) -> int:
    """How many held-out sequences are read: of longer ones fewer."""
    return max(4, sizes.held_out * SEQ_LEN // length)


def trained(row: Row, sizes: Sizes, text: Corpus) -> Iterator[Row]:
    """Fill in what a model learns; one row for each length that is read."""
    torch.manual_seed(row.seed)
    lengths = lengths_of(row, sizes)
    model = model_of(keywords_of(row.baseline, row.variant, sizes), sizes, max(lengths)).to(sizes.device)
    optimiser, generator = optimiser_of(model, row.rate), torch.Generator().manual_seed(row.seed)
    start = now(sizes.device)
    for step in range(row.steps):
        batch = text.draw(generator).to(sizes.device)
        for group in optimiser.param_groups:
            group['lr'] = row.rate * min(1.0, (step + 1) / max(1, row.steps // 20)) * (1 - step / row.steps)
        step_of(model, optimiser, batch)
        model.on_step_end((step + 1) / row.steps)
    row.seconds, row.parameters = now(sizes.device) - start, sum(weight.numel() for weight in model.parameters())
    for length in lengths:
        held_out = text.held_out(most(sizes, length), length).to(sizes.device)
        yield Row(**{**asdict(row), 'bits': bits_of(model, held_out), 'length': length})


def costs(row: Row, sizes: Sizes, text: Corpus) -> Iterator[Row]:
    """Fill in what a variant costs, as ratios: medians over rounds in which both take turns."""
    names, rounds = (row.variant, ''), range(sizes.rounds)
    models = [model_of(keywords_of(row.baseline, name, sizes), sizes).to(sizes.device) for name in names]
    optimisers = [optimiser_of(model, 1e-3) for model in models]
    batch = text.draw(torch.Generator().manual_seed(0)).to(sizes.device)
    steps: list[Callable[[], None]] = [
        lambda own=own: step_of(*own, batch) for own in zip(models, optimisers, strict=True)
    ]

    def seconds(work: Callable[[], Any]) -> float:
        start = now(sizes.device)
        work()
        return now(sizes.device) - start

    def token(model: nn.Module) -> None:
        with half(batch.device):
            model.eval().generate(batch[:1, :32], 32, temperature=0.0)
        model.train()

    for step in steps:
        step()
    taken = [[seconds(lambda step=step: (step(), step(), step())) for step in steps] for _ in rounds]
    row.step_ms = 1e3 / 3 * statistics.median(own for own, _ in taken)
    row.step = statistics.median(own / base for own, base in taken)
    row.memory = bytes_of(steps[0], Settings(sizes.device)) / bytes_of(steps[1], Settings(sizes.device))
    for model in models:
        token(model)
    said = [[seconds(lambda model=model: token(model)) for model in models] for _ in rounds]
    row.token = statistics.median(own / base for own, base in said)
    row.parameters = sum(weight.numel() for weight in models[0].parameters())
    yield row


# what there is to do


@dataclass
class Plan:
    """The rows that a stage needs, by what the stages before it have found."""

    rows: Sequence[Row]
    sizes: Sizes
    seeds: Sequence[int] = range(5)
    baselines_of: Sequence[str] = tuple(BASELINES)
    only: Sequence[str] = tuple(BY_NAME)

    def seeds_of(self, stage: str) -> list[int]:
        return [seed for seed in self.seeds if seed < FIRST.get(stage, math.inf)]

    def rows_of(self, stage: str, **values: Any) -> list[Row]:
        found = [row for row in self.rows if row.stage == stage and not row.refused]
        return [row for row in found if all(getattr(row, name) == value for name, value in values.items())]

    def rate(self, baseline: str) -> float | None:
        """The rate of the grid that is best on the mean of its seeds."""
        rates = self.sizes.rates
        by_rate = {rate: [row.bits for row in self.rows_of('rates', baseline=baseline, rate=rate)] for rate in rates}
        if not all(by_rate.values()):
            return None
        return min(rates, key=lambda rate: statistics.fmean(by_rate[rate]))

    def each(
        self, stage: str, of: Callable[[str], Sequence[str]], rate: float = 1.0, steps: float = 1.0
    ) -> Iterator[Row]:
        """A row for each baseline and seed, and the variants that `of(baseline)` names."""
        for seed in self.seeds_of(stage):
            for baseline in self.baselines_of:
                best = self.rate(baseline)
                for name in of(baseline) if best is not None else ():
                    yield Row(stage, baseline, name, seed, round(self.sizes.steps * steps), best * rate)

    def rates(self) -> Iterator[Row]:
        for seed in self.seeds_of('rates'):
            for baseline in self.baselines_of:
                for rate in self.sizes.rates:
                    yield Row('rates', baseline, '', seed, self.sizes.steps, rate)

    def costs(self) -> Iterator[Row]:
        for baseline in self.baselines_of:
            yield from (Row('costs', baseline, name) for name in self.variants(baseline))

    def variants(self, baseline: str) -> list[str]:
        """Those that change this baseline."""
        found: dict[str, dict[str, Any]] = {'': keywords_of(baseline, '', self.sizes)}
        for variant in VARIANTS:
            keywords = keywords_of(baseline, variant.name, self.sizes)
            named = variant.name in self.only and variant.only in (None, baseline)
            if named and changes(variant, found['']) and keywords not in found.values():
                found[variant.name] = keywords
        return [*found][1:]

    def baselines(self) -> Iterator[Row]:
        for times in MORE:
            yield from self.each('baselines', lambda baseline: [''], steps=times)

    def single(self) -> Iterator[Row]:
        return self.each('single', lambda baseline: ['', *self.variants(baseline)])

    def ranked(self, baseline: str) -> list[str]:
        """Variants of a baseline by what they gain in equal steps, the best first; nothing while some are missing."""
        from flag_statistics import alone, effects

        wanted = self.variants(baseline)
        found = alone(effects(self.rows, baseline))
        refused = {row.variant for row in self.rows if row.baseline == baseline and row.refused}
        if any(name not in found and name not in refused for name in wanted):
            return []
        return sorted(found, key=lambda name: found[name].equal_time)

    def path(self, baseline: str) -> Selection:
        from flag_statistics import forward

        ranked = self.ranked(baseline)
        return forward(self.rows, baseline, ranked[:BEST], len(self.seeds_of('forward')), ranked[BEST:])

    def forward(self) -> Iterator[Row]:
        """One round at a time: every variant that is left, beside those that were chosen."""
        return self.each('forward', lambda baseline: self.path(baseline).tried)

    def final(self) -> Iterator[Row]:
        """First what the sets of flags cost, then the best of them; the baseline for as long as that takes, too."""
        from flag_statistics import costs_of, recipe

        times = 4.0
        for baseline in self.baselines_of:
            path = self.path(baseline)
            yield from (Row('costs', baseline, names) for names in path.sets)
            costs = costs_of(self.rows, baseline)
            if path.ended and {*path.sets} <= {*costs}:
                best = recipe(self.rows, baseline, path, len(self.seeds_of('forward')))
                own = replace(self, baselines_of=[baseline])
                yield from own.each('final', lambda _, best=best: ['', best], steps=times)
                yield from own.each('final', lambda _: [''], steps=times * costs[best].step)

    def pairs(self) -> Iterator[Row]:
        def of(baseline: str) -> list[str]:
            best = self.ranked(baseline)[:BEST] if baseline == 'modern' else []
            pairs = [(one, other) for at, one in enumerate(best) for other in best[at + 1 :]]
            return [f'{one} + {other}' for one, other in pairs if go_together(one, other)]

        return self.each('pairs', of)

    def second(self) -> Iterator[Row]:
        def of(baseline: str) -> list[str]:
            ranked = self.ranked(baseline)
            tenth = max(1, len(ranked) // 10)
            return ['', *ranked[:tenth], *ranked[-tenth:]] if ranked else []

        return self.each('second', of, rate=0.5)


STAGES = ('rates', 'costs', 'baselines', 'single', 'forward', 'final', 'pairs', 'second')


def changes(variant: Variant, own: dict[str, Any]) -> bool:
    """Whether a variant is not what a baseline is already."""
    return any(own.get(name, False if value is False else None) != value for name, value in variant.flags.items())


def lengths_of(row: Row, sizes: Sizes) -> tuple[int, ...]:
    """What a run reads in the end: positions alone, and the baseline, also more than it was trained on."""
    of_positions = not row.variant or BY_NAME[row.variant.split(' + ')[0]].family == 'positions'
    return LENGTHS if row.stage == 'single' and of_positions else (sizes.seq_len,)


def key_of(row: Row, longest: int) -> tuple[Any, ...]:
    """By which a run is known: one that reads as much serves another stage, too."""
    return row.stage == 'costs', row.baseline, row.variant, row.seed, row.steps, f'{row.rate:.6g}', longest


def missing(plan: Plan, stage: str) -> Iterator[Row]:
    """What a stage has not run yet, without what is refused."""
    done = {key_of(row, row.length) for row in plan.rows}
    refused = {(row.baseline, row.variant) for row in plan.rows if row.refused}
    for row in getattr(plan, stage)():
        if key_of(row, max(lengths_of(row, plan.sizes))) not in done and (row.baseline, row.variant) not in refused:
            yield row


TEXTS: dict[Sizes, Corpus] = {}  # of a process that works


def work(given: tuple[Row, Sizes, float]) -> list[Row]:
    """What one process does, until it is too late; what a model refuses is a row, too."""
    import x_transformers

    row, sizes, end = given
    if time.monotonic() >= end:
        return []
    torch.set_num_threads(1)
    row.version, row.machine = x_transformers.__version__, machine(sizes.device)
    text = TEXTS.get(sizes) or TEXTS.setdefault(sizes, Corpus(sizes.seq_len, sizes.batch, sizes.bytes, sizes.data))
    row.text = text.hash
    try:
        return list((costs if row.stage == 'costs' else trained)(row, sizes, text))
    except (ValueError, TypeError, RuntimeError) as error:
        row.refused = f'{type(error).__name__}: {error}'.split('\n')[0]
        return [row]


def machine(device: str) -> str:
    """What the rows of a run were made on."""
    return (
        torch.cuda.get_device_name() if device != 'cpu' else f'{platform.machine()}, {torch.get_num_threads()} thread'
    )


@contextmanager
def several(jobs: int) -> Iterator[Callable[..., Iterator[list[Row]]]]:
    """A `map` over processes; of one job, here."""
    if jobs == 1:
        yield map
        return
    with multiprocessing.get_context('spawn').Pool(jobs) as pool:
        yield pool.imap_unordered


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--stages', default=','.join(STAGES), help='only these, with commas')
    parser.add_argument('--hours', type=float, help='begin no run after so many hours')
    parser.add_argument('--jobs', type=int, default=2, help='processes, of one thread each (2)')
    parser.add_argument('--seeds', default='0,1,2,3,4', help='only these, with commas')
    parser.add_argument('--sizes', default='small', choices=SIZES, help='of models; tiny: whether it runs')
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--data', help='a folder of text, if not the standard library')
    parser.add_argument('--baselines', default=','.join(BASELINES), help='only these, with commas')
    parser.add_argument('--variants', default=','.join(BY_NAME), help='only these, with commas')
    parser.add_argument('--results', type=Path, help='folder of the rows (benchmarks/results/SIZES)')
    parser.add_argument('--left', action='store_true', help='run nothing, say what there is to do')
    return parser


def named(option: str, given: str, known: Iterable[str]) -> list[str]:
    """The parts of an option, each of which is known."""
    names = given.split(',')
    for name in names:
        if name not in known:
            raise SystemExit(f'{option}: {name!r} is none of {", ".join(known)}')
    return names


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    stages = named('--stages', options.stages, STAGES)
    baselines, variants = (
        named('--baselines', options.baselines, BASELINES),
        named('--variants', options.variants, BY_NAME),
    )
    sizes = replace(SIZES[options.sizes], device=options.device, data=options.data)
    folder = options.results or RESULTS / options.sizes
    seeds = [int(seed) for seed in options.seeds.split(',')]
    end = math.inf if options.hours is None else time.monotonic() + 3600 * options.hours
    with several(options.jobs) as spread:
        for stage in stages:
            while time.monotonic() < end:  # a stage of rounds has more to do when one has ended
                todo = list(missing(Plan(read(folder), sizes, seeds, baselines, variants), stage))
                if options.left:
                    print(f'{stage}: {len(todo)} runs')
                if options.left or not todo:
                    break
                for found in spread(work, [(row, sizes, end) for row in todo]):
                    for row in found:
                        append(folder, row)
                        told = row.refused or (f'{row.step:.2f} x' if stage == 'costs' else f'{row.bits:.4f} bits')
                        print(f'{stage} {row.baseline} [{row.variant}] seed {row.seed}: {told}', flush=True)


if __name__ == '__main__':
    main()
