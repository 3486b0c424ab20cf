"""The harness of the benchmarks: every column of a table is a process of its own, and rounds go around all of them.

A script has a function `work(column, case, settings)`, which builds a model and returns what is to be measured, and
ends with

    run(parser_of(__doc__), work, rows, show)

where `rows(options)` measures and `show(rows)` gives a table:

    with Sides(__file__, columns_of(options, ('ours', 'original')), options) as sides:
        return [sides.seconds('forward', {'length': 2048}, base='original')]

- A column whose work comes from an installation (the original, Hugging Face) imports it from the folder that the
  command line names. What a column cannot do it says in words, and the others go on.
- Before it is measured, work runs once, or `work.warm` does where that function has one.
- Time: one round measures every column once, in turns that begin one column further each round, so that a busy
  machine disturbs all alike. A measurement repeats its work until `--seconds` have passed; `--clock cpu` counts the
  time that the process gets, which other work disturbs less. The ratio to the base is taken within each round;
  reported are its median and quartiles over the rounds.
- Memory: the highest sum of what is allocated while the work runs, above what was there before; the work has run
  before, so parameters and the state of the optimizer are there already, gradients are not. On the CPU these are the
  allocations and frees that `torch.profiler` sees, which is exact and the same in every run; on CUDA
  `torch.cuda.max_memory_allocated`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Work = Callable[[], object]


@dataclass(frozen=True)
class Settings:
    """What every column is told."""

    device: str = 'cpu'
    dtype: str = 'float32'
    threads: int = 1
    clock: str = 'wall'


@dataclass
class Row:
    """One line of a table: the values of each column, one per round."""

    work: str
    unit: str  # 'ms', 'us' or 'MiB'
    values: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    base: str | None = None  # ratios are to this column
    faster: bool = False  # ratios are speeds, base / value, else costs, value / base
    goal: str = ''
    bound: float | None = None  # what the device allows, in `unit`

    def ratios(self, column: str) -> list[float] | None:
        """The ratio to the base in each round."""
        if self.base not in self.values or column not in self.values:
            return None
        pairs = zip(self.values[column], self.values[self.base], strict=True)
        return [base / value if self.faster else value / base for value, base in pairs]

    def over(self, other: Row, unit: str = 'x', **more: Any) -> Row:
        """This row in units of another, round by round, for the columns of both."""
        shared = [name for name in self.values if name in other.values]
        values = {name: [a / b for a, b in zip(self.values[name], other.values[name], strict=True)] for name in shared}
        return Row(self.work, unit, values, refused=self.refused, **more)

    def cell(self, column: str) -> str:
        """What a table shows: the median of the ratios, or of the values where there is no base."""
        if column in self.refused:
            return 'refused' if self.refused[column] != ABSENT else '-'
        numbers = self.ratios(column) if self.base else self.values.get(column)
        if not numbers:
            return '-'
        median = statistics.median(numbers)
        return f'{median:.2f}' if self.base else f'{median:.4g}' if median < 1000 else f'{median:.0f}'

    def report(self) -> str:
        """Everything that was measured."""
        lines = [self.work]
        for column, values in self.values.items():
            low, median, high = quartiles(values)
            line = f'  {column:20} least {min(values):10.4g} {self.unit}, median {median:.4g} [{low:.4g} {high:.4g}]'
            ratios = self.ratios(column)
            if ratios:
                low, median, high = quartiles(ratios)
                line += (
                    f', {median:.2f} [{low:.2f} {high:.2f}] {"times as fast as" if self.faster else "x"} {self.base}'
                )
            lines.append(line)
        return '\n'.join(lines + [f'  {column:20} {why}' for column, why in self.refused.items()])


ABSENT = 'not installed'


def chosen(option: str, given: str | None, names: Iterable[str]) -> list[str]:
    """Those of the names that an option gives, with commas; all without it."""
    wanted = given.split(',') if given else list(names)
    for name in wanted:
        if name not in names:
            raise SystemExit(f'{option}: {name!r} is none of {", ".join(names)}')
    return wanted


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return (values[0],) * 3
    low, median, high = statistics.quantiles(values, n=4, method='inclusive')
    return low, median, high


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return '\n'.join('| ' + ' | '.join(cells) + ' |' for cells in (head, ['---'] * len(head), *lines))


def table(rows: Sequence[Row], columns: dict[str, str], first: str) -> str:
    """Rows as a table; `columns` are {heading: column}, those without any value are left out; behind the last column
    stands the goal."""
    shown = {head: column for head, column in columns.items() if any(column in row.values for row in rows)}
    lines = []
    for row in rows:
        cells = [row.cell(column) for column in shown.values()]
        if row.goal and cells:
            cells[-1] += f' ({row.goal})'
        lines.append([row.work, *cells])
    return markdown([first, *shown], lines)


# ---------------------------------------------------------------------------------------------------- one column


def seconds_of(work: Work, settings: Settings, least: float) -> float:
    """The mean time of the work over as many runs as fit into `least` seconds, and one at least."""
    import torch

    def clock() -> float:
        if settings.device != 'cpu':
            torch.cuda.synchronize()
        return time.process_time() if settings.clock == 'cpu' else time.perf_counter()

    once = timeit.timeit(work, timer=clock, number=1)
    runs = math.ceil(least / once)
    return timeit.timeit(work, timer=clock, number=runs) / runs if runs > 1 else once


def bytes_of(work: Work, settings: Settings) -> int:
    """The highest sum of allocations while the work runs, above what was there before."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    if settings.device != 'cpu':
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    with tempfile.TemporaryDirectory() as folder:
        profiled.export_chrome_trace(f'{folder}/trace.json')
        events = json.loads(Path(folder, 'trace.json').read_text())['traceEvents']
    total = peak = 0
    for event in sorted((e for e in events if e.get('name') == '[memory]'), key=lambda e: e['ts']):
        total += event['args']['Bytes']
        peak = max(peak, total)
    return peak


def kernels_of(work: Work, settings: Settings) -> str:
    """A table of where the time of one run goes, by kernels on a GPU and by operators on a CPU."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = settings.device != 'cpu'
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiled:
        work()
    by = 'self_device_time_total' if on_gpu else 'self_cpu_time_total'
    return profiled.key_averages().table(sort_by=by, row_limit=60, max_name_column_width=90)


def serve(work: Callable[[str, dict[str, Any], Settings], Work]) -> None:
    """Measure what is asked for on standard input, one request per line; the first line has the settings."""
    start = json.loads(sys.stdin.readline())
    settings, column = Settings(**start['settings']), start['column']
    answers = sys.stdout
    case = run = None
    # what libraries print goes where errors go: standard output belongs to the answers
    with redirect_stdout(sys.stderr):
        import torch

        torch.set_num_threads(settings.threads)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request['case'] != case:
                    run, case = None, request['case']
                    gc.collect()
                    if settings.device != 'cpu':
                        torch.cuda.empty_cache()  # other columns need the room
                    torch.manual_seed(0)
                    run = work(column, case, settings)
                    getattr(run, 'warm', run)()  # the first run allocates
                if run is None:
                    raise RuntimeError('refused before')
                if request['what'] == 'build':
                    answer = {'value': 0}
                elif request['what'] == 'value':
                    answer = {'value': run()}
                elif request['what'] == 'profile':
                    answer = {'value': kernels_of(run, settings)}
                elif request['what'] == 'seconds':
                    answer = {'value': seconds_of(run, settings, request['least'])}
                else:
                    answer = {'value': bytes_of(run, settings)}
            except ModuleNotFoundError as error:
                answer = {'refused': ABSENT if error.name in ('x_transformers', 'transformers') else str(error)}
            except Exception as error:  # a column that cannot do a case says why, the others go on
                answer = {'refused': f'{type(error).__name__}: {error}'.split('\n')[0][:200]}
            print(json.dumps(answer), file=answers, flush=True)


# ---------------------------------------------------------------------------------------------------- all columns


class Side:
    """A process that measures one column."""

    def __init__(self, script: str, column: str, folder: Path | None, options: argparse.Namespace) -> None:
        self.column = column
        path = [*([str(folder)] if folder else []), *filter(None, [os.environ.get('PYTHONPATH')])]
        environment = {
            **os.environ,
            'PYTHONPATH': os.pathsep.join(path),
            'OMP_NUM_THREADS': str(options.threads),
            'KINETO_LOG_LEVEL': '99',
        }
        pipe = subprocess.PIPE
        command = [sys.executable, str(script), '--serve']
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        settings = Settings(options.device, options.dtype, options.threads, options.clock)
        self.tell({'column': column, 'settings': asdict(settings)})

    def tell(self, message: dict[str, Any]) -> None:
        self.process.stdin.write(json.dumps(message) + '\n')
        self.process.stdin.flush()

    def ask(self, **request: Any) -> dict[str, Any]:
        """One measurement: {'value': number} or {'refused': words}."""
        self.tell(request)
        return self.answer()

    def answer(self, within: float | None = None) -> dict[str, Any]:
        """The answer to what was told.  Raises TimeoutError after `within` seconds."""
        if not select.select([self.process.stdout], [], [], within)[0]:
            self.process.kill()
            raise TimeoutError(f'{self.column!r} has not answered within {within:.0f} s')
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f'the process of {self.column!r} has stopped, its message stands above')
        return json.loads(answer)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Sides:
    """All columns: {name: folder to import from, or None}."""

    def __init__(self, script: str, columns: dict[str, Path | None], options: argparse.Namespace) -> None:
        wanted = chosen('--columns', options.columns, columns)
        self.options = options
        self.sides = {name: Side(script, name, columns[name], options) for name in wanted}

    def __enter__(self) -> Sides:
        return self

    def __exit__(self, *error: object) -> None:
        for side in self.sides.values():
            side.close()

    def measure(self, row: Row, what: str, case: dict[str, Any], scale: float, rounds: int, among: Any = None) -> Row:
        """Fill a row: one answer of every column per round, the first column of a round one further each time."""
        names = [name for name in self.sides if among is None or name in among]
        for name in names:
            answer = self.sides[name].ask(what='build', case=case)
            if 'refused' in answer:
                row.refused[name] = answer['refused']
            else:
                row.values[name] = []
        names, began = list(row.values), time.perf_counter()
        for turn in range(rounds):
            if turn and time.perf_counter() - began > self.options.budget:
                break
            start = turn % max(len(names), 1)
            for name in names[start:] + names[:start]:
                answer = self.sides[name].ask(what=what, case=case, least=self.options.seconds)
                if 'refused' in answer:
                    raise SystemExit(f'{row.work}: {name} stopped in round {turn + 1}: {answer["refused"]}')
                row.values[name].append(answer['value'] * scale)
        print(row.report(), flush=True)
        return row

    def seconds(self, work: str, case: dict[str, Any], unit: str = 'ms', among: Any = None, **more: Any) -> Row:
        """Time, as a row."""
        scale = {'ms': 1e3, 'us': 1e6}[unit]
        return self.measure(Row(work, unit, **more), 'seconds', case, scale, self.options.rounds, among)

    def numbers(self, work: str, case: dict[str, Any], unit: str, among: Any = None, **more: Any) -> Row:
        """What the work returns, a number, as a row."""
        return self.measure(Row(work, unit, **more), 'value', case, 1.0, self.options.rounds, among)

    def memory(
        self, work: str, case: dict[str, Any], among: Any = None, unit: tuple[str, int] = ('MiB', 2**20), **more: Any
    ) -> Row:
        """Peak memory in units of so many bytes, as a row. Measured once: it does not vary."""
        return self.measure(Row(work, unit[0], **more), 'bytes', case, 1 / unit[1], 1, among)


def parser_of(doc: str, rounds: int = 7, seconds: float = 0.3) -> argparse.ArgumentParser:
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(description=doc.split('\n')[0])
    parser.add_argument('--original', type=Path, help='folder of `pip install --target FOLDER x-transformers==2.31.10`')
    parser.add_argument('--huggingface', type=Path, help='folder of transformers; without, it comes from here')
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--device', default='cpu', help='cpu or cuda')
    parser.add_argument('--dtype', default='float32', help='of weights and computing, e.g. bfloat16')
    parser.add_argument(
        '--clock',
        choices=('wall', 'cpu'),
        default='wall',
        help='cpu is the time of the process: with one thread, on a machine that is busy with other work',
    )
    parser.add_argument('--rounds', type=int, default=rounds, help=f'default {rounds}')
    parser.add_argument('--seconds', type=float, default=seconds, help='least time of one measurement of short work')
    parser.add_argument('--budget', type=float, default=45, help='seconds after which a row begins no further round')
    parser.add_argument('--columns', help='only these, with commas')
    parser.add_argument('--tiny', action='store_true', help='tiny sizes: whether it runs, not how fast')
    parser.add_argument('--json', type=Path, help='write everything that was measured to this file')
    parser.add_argument('--serve', action='store_true', help=argparse.SUPPRESS)
    return parser


def options_of(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, known: bool = False
) -> argparse.Namespace:
    """The options, checked; `known` leaves out what the parser does not know."""
    options = parser.parse_known_args(arguments)[0] if known else parser.parse_args(arguments)
    if options.tiny:
        options.rounds, options.seconds = min(options.rounds, 2), 0.0
    for name in ('original', 'huggingface'):
        folder = getattr(options, name)
        if folder is not None and not folder.is_dir():
            parser.error(f'--{name}: {folder} is no folder')
        setattr(options, name, folder and folder.resolve())
    return options


def columns_of(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Path | None]:
    """Where each column imports from; the original only where its folder is given."""
    folders = {'original': options.original, 'huggingface': options.huggingface, 'ours': ROOT}
    chosen = {name: folders.get(name.split()[0]) for name in names}
    return {name: folder for name, folder in chosen.items() if folder or not name.startswith('original')}


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[str, dict[str, Any], Settings], Work],
    rows: Callable[[argparse.Namespace], list[Row]],
    show: Callable[[Sequence[Row]], str],
) -> None:
    """What every script does: measure one column where it is told to serve, else all, and print the table."""
    options = options_of(parser)
    if options.serve:
        return serve(work)
    filled = rows(options)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in filled], indent=1))
    print(show(filled))
