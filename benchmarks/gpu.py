"""Large models on one accelerator, in stages: correct, training, decoding, features, serving; each within minutes.

    python benchmarks/gpu.py training --device cuda --minutes 8 [--only 350M] [--original FOLDER]
    python benchmarks/gpu.py correct --device cuda --minutes 8 [--only generate] [--workers 8]
    python benchmarks/gpu.py all --device cpu --tiny --into /tmp/rows      # a rehearsal: does every stage run?
    python benchmarks/gpu.py profile --device cuda [--only '350M'] [--columns 'ours compiled']
    python benchmarks/gpu.py table                                         # from the rows that are there
    python benchmarks/gpu.py write                                         # into the pages

- Every measurement is a row of `results/gpu/STAGE.csv`, by (device, torch, commit, work, column). What has its row is
  not measured again, unless `--again` is given; a stage that its minutes did not suffice for goes on where it stopped.
- No measurement begins behind the last minute, and one that does not answer in time is stopped and leaves no row.
- Every column is a process of its own. As many as fit on the card together are built at the same time, and then
  measured in turns while the others wait.
- Training: tokens per second of a step by autocast to `--dtype`, with float32 weights and fused AdamW; the bound is
  the time of the step's products (`torch.utils.flop_counter` on the model by hand, attention in full) at the peak of
  the device, so that the share of the bound is the model flops utilisation (MFU).
- Decoding: tokens per second of greedy generation in `--dtype`; the bound is the time in which weights and the cache,
  at its mean length, are read once.
- Features: milliseconds of forward and backward of one layer of attention, batch 1.
- Serving: tokens per second, and the median and 99th percentile of the seconds that a request took.
- Peaks are those of the data sheet for devices that are listed here, dense; others are measured by the largest product
  and copy. Columns that end in `compiled` run under `torch.compile`; for ours, `generate(compile=True)`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gpu_report
import torch
from gpu_rows import RESULTS, STAGES, Row, append, latest, read
from gpu_work import SIZES, bytes_of_decoding, features_of, flops_of_step, work
from measure import ROOT, Settings, Side, columns_of, options_of, parser_of, quartiles, seconds_of, serve

# dense bfloat16 Tflop/s and TB/s
DEVICES = {'H100 PCIe': (756, 2.0), 'H100': (989, 3.35), 'H200': (989, 4.8), 'A100': (312, 2.0), 'L4': (121, 0.3)}
BATCHES = {'124M': 16, '350M': 8, '1.3B': 4, 'tiny': 2}  # of 2,048 tokens, which fit into 80 GB run eagerly too


@dataclass(frozen=True)
class Item:
    """What is to be measured for some columns: the `case` is for `gpu_work.work`."""

    work: str
    case: dict[str, Any]
    columns: tuple[str, ...]
    unit: str = 'tokens/s'
    tokens: int = 0  # of one run, for tokens per second
    bound: float | None = None  # in `unit`
    abreast: int | None = None  # how many columns fit on the device together; None for all


@cache
def commit() -> str:
    """The commit of the working tree, or $COMMIT where there is no repository."""
    given = os.environ.get('COMMIT')
    if given:
        return given[:7]
    done = subprocess.run(['git', 'rev-parse', '--short=7', 'HEAD'], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or 'unknown'


def device_name(options: argparse.Namespace) -> str:
    return torch.cuda.get_device_name() if options.device == 'cuda' else options.device


# ---------------------------------------------------------------------------------------------------- what to measure


@cache
def peaks(device: str, dtype: str, tiny: bool) -> tuple[float, float]:
    """Flop/s and bytes/s of the device: from its data sheet, or measured."""
    name = torch.cuda.get_device_name() if device == 'cuda' else ''
    listed = next((peak for known, peak in DEVICES.items() if all(part in name for part in known.split())), None)
    if listed and dtype == 'bfloat16':
        return listed[0] * 1e12, listed[1] * 1e12
    settings, size = Settings(device, dtype), 256 if tiny else 8192 if device == 'cuda' else 2048
    a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in 'ab')
    flops = 2 * size**3 / seconds_of(lambda: a @ b, settings, 0.1)
    a, b = (torch.zeros(size * size * 8, device=device) for _ in 'ab')
    return flops, 2 * a.nbytes / seconds_of(lambda: a.copy_(b), settings, 0.1)


def items_of(stage: str, options: argparse.Namespace) -> Iterator[Item]:
    """The measurements of a stage."""
    tiny = options.tiny
    flops, bandwidth = peaks(options.device, options.dtype, tiny)
    models = ['tiny'] if tiny else [name for name in SIZES if name != 'tiny']
    if stage == 'training':
        columns = (
            'ours compiled',
            'minimal compiled',
            'huggingface compiled',
            'original flash compiled',
            'ours',
            'minimal',
        )
        for model in models:
            batch = options.batch or BATCHES[model]
            case = {'stage': stage, 'model': model, 'batch': batch, 'seq': 16 if tiny else 2048}
            tokens = batch * case['seq']
            bound = tokens * flops / flops_of_step(case)
            abreast = 1 if model == '1.3B' else 3
            yield Item(f'{model}, batch {batch}', case, columns, tokens=tokens, bound=bound, abreast=abreast)
    elif stage == 'decoding':
        columns = ('ours', 'ours compiled', 'huggingface compiled', 'minimal compiled', 'huggingface')
        width = getattr(torch, options.dtype).itemsize
        for model in models if tiny else ('350M', '1.3B'):
            for prompt in (8,) if tiny else (64, 4096):
                for batch in (1,) if tiny else (1, 8, 64):
                    case = {'stage': stage, 'model': model, 'batch': batch, 'prompt': prompt}
                    case['generate'] = 4 if tiny else 128
                    tokens = batch * case['generate']
                    bound = tokens * bandwidth / bytes_of_decoding(case, width)
                    name, abreast = f'{model}, batch {batch}, prompt {prompt}', 1 if batch * prompt > 2**16 else None
                    yield Item(name, case, columns, tokens=tokens, bound=bound, abreast=abreast)
    elif stage == 'features':
        scale, sizes = (16, {'dim': 32, 'heads': 2}) if tiny else (1, {'dim': 1024, 'heads': 16})
        for length in (256,) if tiny else (8192, 32768):
            for flag, (_, columns, _) in features_of(scale).items():
                case = {'stage': stage, 'flag': flag, 'length': length, 'scale': scale, **sizes}
                yield Item(f'{flag}, {length}', case, columns, unit='ms')
    elif stage == 'serving':
        case = {'stage': stage, 'model': models[0] if tiny else '350M', 'requests': 6 if tiny else 256, 'block': 16}
        for rate in (100.0,) if tiny else (8.0, 32.0):  # a second
            case = {**case, 'rate': rate, 'batch': 3 if tiny else 64, 'lengths': (2, 9) if tiny else (32, 512)}
            yield Item(f'{case["model"]}, {rate:.0f} requests/s', case, ('ours', 'ours static', 'huggingface'))


class Clock:
    """The minutes of a run: what is left, and whether there is enough to begin something."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def check(self) -> None:
        if self.left < 5:
            raise TimeoutError('the minutes are over')


class Columns:
    """The processes of columns, started when they are asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.sides: dict[str, Side] = {}

    def side(self, name: str) -> Side:
        if name not in self.sides or self.sides[name].process.poll() is not None:
            self.sides[name] = Side(__file__, name, columns_of(self.options, [name])[name], self.options)
        return self.sides[name]

    def close(self) -> None:
        for side in self.sides.values():
            side.close()
        self.sides = {}


def measure(stage: str, options: argparse.Namespace, clock: Clock) -> None:
    """Measure what has no row yet, until the minutes are over."""
    known = {row.key for row in (*read(RESULTS, [stage]), *read(options.into, [stage]))}
    start, columns = (device_name(options), torch.__version__, commit()), Columns(options)
    try:
        for item in items_of(stage, options):
            if options.only and options.only not in item.work:
                continue
            wanted = columns_of(options, item.columns)
            asked = options.columns.split(',') if options.columns else wanted
            done = [name for name in wanted if (*start, item.work, name) in known and not options.again]
            wanted = [name for name in wanted if name in asked and name not in done]
            abreast = item.abreast or max(len(wanted), 1)
            for at in range(0, len(wanted), abreast):
                if at or item.abreast is not None:
                    columns.close()
                for row in together(item, wanted[at : at + abreast], columns, options, clock):
                    append(options.into, Row(stage, *start, item.work, **row))
    finally:
        columns.close()


def answer(side: Side, clock: Clock) -> Any:
    """The answer to what a column was told, or RuntimeError with its refusal."""
    clock.check()
    found = side.answer(within=clock.left)
    if 'refused' in found:
        raise RuntimeError(found['refused'])
    return found['value']


def together(
    item: Item, names: list[str], columns: Columns, options: argparse.Namespace, clock: Clock
) -> Iterator[dict[str, Any]]:
    """Rows of columns that are built at the same time, then measured in turns."""
    found: dict[str, dict[str, Any]] = {name: {'values': []} for name in names}
    serving = item.case['stage'] == 'serving'
    rounds = ['value'] if serving else ['bytes', *(['seconds'] * options.rounds), *(['profile'] * options.profile)]
    for turn, what in enumerate(['build', *rounds]):
        left = [name for name in names if 'note' not in found[name]]
        left = left[turn % max(1, len(left)) :] + left[: turn % max(1, len(left))]
        begun = time.monotonic()
        if what == 'build':
            for name in left:
                columns.side(name).tell({'what': what, 'case': item.case})
        for name in left:
            own, side = found[name], columns.side(name)
            try:
                if what != 'build':
                    side.tell({'what': what, 'case': item.case, 'least': options.seconds})
                value = answer(side, clock)
            except RuntimeError as error:
                own['note'] = str(error)
            except TimeoutError:
                yield from rows_of(item, found)
                raise
            else:
                keep(item, name, own, what, value, time.monotonic() - begun, options)
    yield from rows_of(item, found)


def keep(
    item: Item, column: str, own: dict[str, Any], what: str, value: Any, spent: float, options: argparse.Namespace
) -> None:
    """Keep an answer with what else is known of its column."""
    if what == 'build':
        own['prepared'] = spent
    elif what == 'bytes':
        own['memory'] = value / 2**20
    elif what == 'profile':
        path = options.into / f'profile {item.work} {column} {commit()}.txt'.replace(' ', '_').replace('/', '_')
        options.into.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{item.work}, {column}\n\n{value}')
    else:
        own['values'].append(value)


def rows_of(item: Item, found: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for every column that was measured or refused."""
    for name, own in found.items():
        if own['values'] or 'note' in own:
            yield row_of(item, name, own)


def row_of(item: Item, column: str, own: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row: medians and quartiles of what was measured."""
    row: dict[str, Any] = {'column': column, 'unit': item.unit, 'bound': item.bound, 'note': own.get('note', '')}
    row |= {name: own[name] for name in ('memory', 'prepared') if name in own}
    values = own['values']
    if values and isinstance(values[0], dict):
        row |= {name: statistics.median(value[name] for value in values) for name in ('value', 'p50', 'p99')}
    elif values:
        scaled = [item.tokens / v if item.tokens else 1e3 * v for v in values]
        row['low'], row['value'], row['high'] = quartiles(scaled)
    print(f'{item.work:32} {column:22} {row.get("value") or row["note"]} {item.unit}', flush=True)
    return row


# ---------------------------------------------------------------------------------------------------- correctness


def correct(options: argparse.Namespace, clock: Clock) -> None:
    """Run the tests of `tests/test_gpu.py` that have not passed at this commit; a row for each."""
    import pytest

    start = (device_name(options), torch.__version__, commit())
    rows = latest((*read(RESULTS, ['correct']), *read(options.into, ['correct']))).values()
    passed = {row.work for row in rows if row.note == 'passed' and row.key[:3] == start and not options.again}

    class Recorder:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == 'call' or report.outcome != 'passed':
                last = (str(report.longrepr or '').strip().splitlines() or [''])[-1][:160]
                note = 'passed' if report.outcome == 'passed' else f'{report.outcome}: {last}'
                row = Row('correct', *start, report.nodeid, 'ours', 's', report.duration, note=note)
                append(options.into, row)

    collected: list[str] = []

    class Collector:
        def pytest_collection_finish(self, session: Any) -> None:
            collected.extend(item.nodeid for item in session.items if item.nodeid not in passed)

    os.environ['TEST_DEVICE'] = options.device
    os.chdir(ROOT)
    quiet = ['-q', '-p', 'no:cacheprovider', '-m', '', *(['-k', options.only] if options.only else [])]
    pytest.main([*quiet, '--collect-only', '-qq', 'tests/test_gpu.py'], plugins=[Collector()])
    if not collected:  # without a name pytest would run all tests that there are
        return
    workers = ['-n', str(options.workers)] if options.workers > 1 else []
    # where there is an answer in time, its row is there: what is left at the end is for the next call
    watch = threading.Timer(clock.left, os.kill, (os.getpid(), signal.SIGINT))
    watch.start()
    try:
        pytest.main([*quiet, *workers, '--tb=short', *collected], plugins=[Recorder()])
    finally:
        watch.cancel()


# ---------------------------------------------------------------------------------------------------- profile


def profile(options: argparse.Namespace, clock: Clock) -> None:
    """Measure the row that is furthest from its bound again, and write its kernels."""
    name = device_name(options)
    rows = [row for row in latest((*read(RESULTS), *read(options.into))).values() if row.device == name and row.value]
    rows = [row for row in rows if row.stage in ('training', 'decoding', 'features') and row.column.startswith('ours')]
    rows = [row for row in rows if not options.only or options.only in row.work]
    rows = [row for row in rows if not options.columns or row.column in options.columns.split(',')]
    if not rows:
        raise SystemExit('there is no such row to profile')
    row = min(rows, key=lambda row: row.value / row.bound if row.bound else 1 / row.value)
    options.only, options.columns, options.again, options.profile = row.work, row.column, True, True
    measure(row.stage, options, clock)


# ---------------------------------------------------------------------------------------------------- command line


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=4, seconds=1.0)
    parser.set_defaults(dtype='bfloat16')
    parser.add_argument('stage', nargs='?', choices=(*STAGES, 'all', 'profile', 'table', 'write'), default='table')
    parser.add_argument('--minutes', type=float, default=8, help='nothing begins behind these, default 8')
    parser.add_argument('--only', help='work whose name has this text')
    parser.add_argument('--again', action='store_true', help='measure what has its row, too')
    parser.add_argument('--profile', action='store_true', help='write the kernels of what is measured, too')
    parser.add_argument('--workers', type=int, default=1, help='processes of the tests, default 1')
    parser.add_argument('--batch', type=int, help='of training, in place of that which fits into 80 GB')
    parser.add_argument('--into', type=Path, default=RESULTS, help='folder of the rows')
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(parser(), arguments)
    if options.serve:
        return serve(work)
    sys.path[:0] = [str(ROOT)]
    torch.set_num_threads(options.threads)
    if options.stage in ('table', 'write'):
        return gpu_report.write() if options.stage == 'write' else print(gpu_report.table(read(RESULTS)))
    clock = Clock(options.minutes)
    if options.stage == 'profile':
        return profile(options, clock)
    for stage in STAGES if options.stage == 'all' else (options.stage,):
        try:
            correct(options, clock) if stage == 'correct' else measure(stage, options, clock)
        except TimeoutError as error:
            print(f'{stage}: {error}; the next call goes on here')
            break


if __name__ == '__main__':
    main()
