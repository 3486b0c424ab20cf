"""What the rows of `which_flag_helps.py` say: effects with intervals, costs, and which flags go together.

    python benchmarks/flag_effects.py [--sizes small]     the tables                  needs scipy
    python benchmarks/flag_effects.py --write             tables, pictures, and what the library says of its flags

An effect is the mean over seeds of a variant's bits per byte less those of its baseline with the same seed, so that
what is below zero helps; with it stands its 95 % interval by Student's t. In equal time a variant is compared with what
its baseline reaches in the time that the variant took, between its runs of more and fewer steps. Of the effects of one
baseline those count as shown which hold at a false discovery rate of 5 % (Benjamini and Hochberg).

`--write` fills `benchmarks/results/README.md`, `images/flag_*.png`, `x_transformers/flags/measured.json`, and the
table of the README between its marks.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flag_variants import BASELINES, SEQ_LEN, VARIANTS
from measure import ROOT, markdown
from scipy import stats

if TYPE_CHECKING:
    from which_flag_helps import Row, Sizes

FAMILY = {variant.name: variant.family for variant in VARIANTS}


@dataclass(frozen=True)
class Effect:
    """Of one variant, or of several together, in bits per byte; costs are ratios to the baseline."""

    variant: str
    seeds: int
    mean: float  # in equal steps
    half: float  # half of its interval
    p: float
    equal_time: float
    half_equal_time: float
    step: float
    memory: float
    token: float
    shown: bool = False

    @property
    def cell(self) -> str:
        return with_interval(self.mean, self.half)

    @property
    def cell_equal_time(self) -> str:
        return with_interval(self.equal_time, self.half_equal_time)


def with_interval(mean: float, half: float) -> str:
    return '-' if math.isnan(mean) else f'{mean:+.3f} ± {half:.3f}' if math.isfinite(half) else f'{mean:+.3f}'


# statistics


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean of some numbers and half of its 95 % interval; of one there is no interval."""
    mean = statistics.fmean(values)
    if len(values) < 2 or math.isnan(mean):
        return mean, math.inf
    return mean, float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def p_value(values: Sequence[float]) -> float:
    """Two-sided, of the mean being zero, by Student's t."""
    if len(values) < 2:
        return 1.0
    if len({*values}) == 1:
        return 0.0 if any(values) else 1.0
    return float(stats.ttest_1samp(values, 0.0).pvalue)


def discoveries(p_values: dict[str, float], rate: float = 0.05) -> set[str]:
    """Those that hold at a false discovery rate (Benjamini and Hochberg 1995)."""
    ordered = sorted(p_values, key=lambda name: p_values[name])
    last = max(
        (at for at, name in enumerate(ordered, start=1) if p_values[name] <= rate * at / len(ordered)), default=0
    )
    return set(ordered[:last])


def between(curve: dict[int, float], steps: float) -> float:
    """Bits after so many steps, by straight lines over the logarithm of the steps."""
    if math.isnan(steps):
        return math.nan
    points = [(math.log(at), bits) for at, bits in sorted(curve.items())]
    x = min(max(math.log(steps), points[0][0]), points[-1][0])
    for (low, below), (high, above) in pairwise(points):
        if x <= high:
            return below + (above - below) * (x - low) / (high - low)
    return points[-1][1]


# what rows hold


def trainings(rows: Iterable[Row], baseline: str) -> list[Row]:
    """Rows of models that were trained, read at the length of training."""
    own = (row for row in rows if row.baseline == baseline and row.stage != 'costs' and not row.refused)
    return [row for row in own if row.length == SEQ_LEN]


def usual(own: Iterable[Row]) -> Row | None:
    """A run of the baseline beside its variants: it says with how many steps and which rate these are compared."""
    return next((row for row in own if row.stage == 'single' and not row.variant), None)


def runs_of(own: Sequence[Row], times: float = 1.0) -> dict[str, dict[int, float]]:
    """Bits of each variant by seed, after the usual number of steps or a multiple; a run is the same in every stage."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    like = usual(own)
    for row in own:
        if like and (row.steps, row.rate) == (round(like.steps * times), like.rate):
            found[row.variant][row.seed] = row.bits
    return found


def curves_of(own: Sequence[Row]) -> dict[int, dict[int, float]]:
    """Bits of a baseline by steps, for each seed."""
    found: dict[int, dict[int, float]] = defaultdict(dict)
    like = usual(own)
    for row in own:
        if like and not row.variant and row.rate == like.rate:
            found[row.seed][row.steps] = row.bits
    return found


@dataclass(frozen=True)
class Cost:
    """As ratios to the baseline; unknown where it was not measured."""

    step: float = math.nan
    memory: float = math.nan
    token: float = math.nan


def costs_of(rows: Iterable[Row], baseline: str) -> dict[str, Cost]:
    own = (row for row in rows if row.baseline == baseline and row.stage == 'costs' and not row.refused)
    return {row.variant: Cost(row.step, row.memory, row.token) for row in own}


def cost_of(costs: dict[str, Cost], names: str) -> Cost:
    """That of some variants together: the product of each, where they were not measured together."""
    if names in costs:
        return costs[names]
    parts = [costs.get(name, Cost()) for name in names.split(' + ')]
    return Cost(*(math.prod(getattr(one, what) for one in parts) for what in ('step', 'memory', 'token')))


def effects(rows: Sequence[Row], baseline: str, times: float = 1.0) -> dict[str, Effect]:
    """What each variant changes, by name; by those seeds alone of which the baseline is there as well."""
    own = trainings(rows, baseline)
    like, runs, curves, costs = usual(own), runs_of(own, times), curves_of(own), costs_of(rows, baseline)
    base = runs.pop('', {})
    plain: dict[str, list[float]] = {}
    timed: dict[str, list[float]] = {}
    for name, by_seed in runs.items():
        seeds = sorted({*by_seed} & {*base})
        if like and seeds:
            steps = like.steps * times * cost_of(costs, name).step
            plain[name] = [by_seed[seed] - base[seed] for seed in seeds]
            timed[name] = [by_seed[seed] - between(curves[seed], steps) for seed in seeds]
    p_values = {name: p_value(values) for name, values in plain.items()}
    shown = discoveries({name: p for name, p in p_values.items() if ' + ' not in name and len(plain[name]) > 1})
    found = {}
    for name, values in plain.items():
        cost = cost_of(costs, name)
        both = (*mean_and_half(values), p_values[name], *mean_and_half(timed[name]))
        found[name] = Effect(name, len(values), *both, cost.step, cost.memory, cost.token, name in shown)
    return found


def alone(found: dict[str, Effect]) -> dict[str, Effect]:
    """Without those of several variants together."""
    return {name: one for name, one in found.items() if ' + ' not in name}


def chosen(rows: Sequence[Row], baseline: str, best: Sequence[str], seeds: int) -> list[str]:
    """What greedy selection has taken so far: in each round the variant that gains most in equal time, until none does.

    A round counts when all of its runs are there.
    """
    own = trainings(rows, baseline)
    like, runs, curves, costs = usual(own), runs_of(own), curves_of(own), costs_of(rows, baseline)
    gone = {row.variant for row in rows if row.baseline == baseline and row.refused}

    def worth(names: str) -> float:
        """Less what the baseline reaches in the same time."""
        step = cost_of(costs, names).step if names else 1.0
        return statistics.fmean(
            runs[names][seed] - between(curves[seed], like.steps * step) for seed in range(seeds) if like
        )

    names: list[str] = []
    while True:
        start = ' + '.join(names)
        taken = {FAMILY[name] for name in names}
        left = [name for name in best if name not in names and FAMILY[name] not in taken]
        more = {name: f'{start} + {name}' if start else name for name in left}
        tried = {name: text for name, text in more.items() if text not in gone}
        if not tried or any(not {*range(seeds)} <= {*runs[text]} for text in (start, *tried.values())):
            return names
        name = min(tried, key=lambda each: worth(tried[each]))
        if worth(tried[name]) >= worth(start):
            return names
        names.append(name)


def interactions(rows: Sequence[Row], baseline: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Of each pair that was run: what it changes beyond the sum of its parts, with half of the interval."""
    runs = runs_of(trainings(rows, baseline))
    found = {}
    for names, by_seed in runs.items():
        parts = names.split(' + ')
        if len(parts) == 2 and all(part in runs for part in parts):
            seeds = sorted({*by_seed} & {*runs['']} & {*runs[parts[0]]} & {*runs[parts[1]]})
            values = [by_seed[s] - runs[parts[0]][s] - runs[parts[1]][s] + runs[''][s] for s in seeds]
            if values:
                found[parts[0], parts[1]] = mean_and_half(values)
    return found


def by_length(rows: Sequence[Row], baseline: str) -> dict[str, dict[int, tuple[float, float]]]:
    """Bits of positions by the length that is read, with half of the interval."""
    bits: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        of_positions = not row.variant or FAMILY.get(row.variant) == 'positions'
        if row.baseline == baseline and row.stage == 'single' and of_positions and not row.refused:
            bits[row.variant][row.length].append(row.bits)
    return {
        name: {length: mean_and_half(values) for length, values in sorted(own.items())}
        for name, own in bits.items()
        if len(own) > 1
    }


# tables


def table(rows: Sequence[Row], baseline: str) -> str:
    """Every variant of a baseline, family by family, the best first."""
    found = alone(effects(rows, baseline))
    if not found:
        return ''
    families = list(dict.fromkeys(FAMILY.values()))
    lines = []
    for one in sorted(found.values(), key=lambda each: (families.index(FAMILY[each.variant]), each.mean)):
        name = f'**{one.variant}**' if one.shown else one.variant
        ratios = ['-' if math.isnan(value) else f'{value:.2f}' for value in (one.step, one.memory, one.token)]
        lines.append([FAMILY[one.variant], name, one.cell, one.cell_equal_time, *ratios, str(one.seeds)])
    head = ['family', f'variant of the {baseline} baseline', 'bits per byte, equal steps', 'equal time']
    return markdown([*head, 'time of a step', 'memory', 'time of a token', 'seeds'], lines)


def table_of_lengths(rows: Sequence[Row], baseline: str) -> str:
    found = by_length(rows, baseline)
    lengths = sorted({length for own in found.values() for length in own})
    ordered = sorted(found.items(), key=lambda item: item[1][lengths[-1]][0])
    lines = [[name or 'baseline', *(with_interval(*own[n]).lstrip('+') for n in lengths)] for name, own in ordered]
    return markdown([f'positions, {baseline} baseline', *(f'{length} bytes' for length in lengths)], lines)


def table_of_best(rows: Sequence[Row], baseline: str = 'modern', most: int = 12) -> str:
    """The table of the README: what holds and gains most, and what loses most."""
    found = sorted((one for one in alone(effects(rows, baseline)).values() if one.shown), key=lambda each: each.mean)
    some = [*found[:most], *found[-most // 2 :]] if len(found) > most * 3 // 2 else found
    lines = [[one.variant, one.cell, one.cell_equal_time, f'{one.step:.2f}', f'{one.memory:.2f}'] for one in some]
    return markdown(['variant', 'bits per byte, equal steps', 'equal time', 'time of a step', 'memory'], lines)


def hours(rows: Iterable[Row]) -> float:
    """Of one processor, all trainings together; each is written in several rows if several lengths are read."""
    return sum(row.seconds for row in rows if row.length == SEQ_LEN and not math.isnan(row.seconds)) / 3600


# what is written


def about(rows: Sequence[Row], sizes: Sizes) -> str:
    """How it was measured, in a sentence."""
    trained = next(row for row in rows if row.stage == 'single')
    model = f'{sizes.depth} layers of width {sizes.dim} with {sizes.heads} heads'
    text = f'{sizes.steps} steps of {sizes.batch} x {SEQ_LEN} bytes of the source of Python'
    kind = (
        'bits per held-out byte of a small decoder, less those of its baseline with the same seed; below zero is better'
    )
    return f'{kind} ({model}, {text}; x_transformers {trained.version}, torch {trained.torch}, {trained.machine})'


def keyword_of(variant: str, baseline: str, sizes: Sizes) -> tuple[str | None, str | None, Any]:
    """The keyword that a variant is about, the first one that it switches on: its name, class and value."""
    from which_flag_helps import BY_NAME, keywords_of

    from x_transformers import Attention, AttentionLayers, AutoregressiveWrapper, FeedForward, TransformerWrapper
    from x_transformers.flags import flags_of

    values = keywords_of(baseline, variant, sizes)
    for name in BY_NAME[variant].flags:
        if values[name] is False:
            continue
        part, _, own = name.rpartition('.')
        outer = {'model': TransformerWrapper, 'train': AutoregressiveWrapper}
        if part:
            return own, outer[part].__name__, values[name]
        if own in {**AttentionLayers.arguments(), **flags_of(AttentionLayers.catalogue)}:
            return own, AttentionLayers.__name__, values[name]
        for prefix, inner in (('attn_', Attention), ('ff_', FeedForward)):
            if own.startswith(prefix):
                return own.removeprefix(prefix), inner.__name__, values[name]
    return None, None, None


def records(rows: Sequence[Row], sizes: Sizes) -> dict[str, Any]:
    """What the library says of its flags; numbers of three decimals, since intervals are wider."""
    from x_transformers.flags.measured import Measured

    found = []
    for baseline in BASELINES:
        for one in sorted(alone(effects(rows, baseline)).values(), key=lambda each: each.mean):
            if one.seeds > 1 and not math.isnan(one.step):
                numbers = (one.mean, one.half, one.equal_time, one.half_equal_time, one.step, one.memory, one.token)
                rounded = [round(number, 3) for number in numbers]
                keyword = keyword_of(one.variant, baseline, sizes)
                found.append([one.variant, baseline, *keyword, *rounded, one.seeds, one.shown])
    return {'about': about(rows, sizes), 'columns': [one.name for one in fields(Measured)], 'rows': found}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """The pictures: effects by family, costs, pairs, lengths."""
    import flag_pictures

    folder.mkdir(parents=True, exist_ok=True)
    return flag_pictures.drawn(rows, folder)


def report(rows: Sequence[Row]) -> str:
    """All tables, as markdown."""
    parts = [table(rows, baseline) for baseline in BASELINES]
    parts += [table_of_lengths(rows, baseline) for baseline in BASELINES if by_length(rows, baseline)]
    for baseline in BASELINES:
        for names, one in effects(rows, baseline, times=4.0).items():
            parts.append(
                f'{baseline} with {names}, four times as many steps: {one.cell} bits per byte, {one.seeds} seeds'
            )
    return '\n\n'.join(part for part in parts if part)


def fill(file: Path, mark: str, text: str) -> None:
    """Replace what stands between two marks of a file."""
    whole = file.read_text(encoding='utf-8')
    between_marks = re.compile(rf'(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)', re.DOTALL)
    if not between_marks.search(whole):
        raise SystemExit(f'{file} has no <!-- {mark} -->')
    file.write_text(between_marks.sub(lambda found: f'{found[1]}{text}\n{found[2]}', whole), encoding='utf-8')


def main(arguments: Sequence[str] | None = None) -> None:
    from which_flag_helps import RESULTS, SIZES, read

    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--sizes', default='small', choices=SIZES)
    parser.add_argument('--results', type=Path, help='folder of the rows (benchmarks/results/SIZES)')
    parser.add_argument('--write', action='store_true', help='tables, pictures, and what the library says of its flags')
    parser.add_argument('--into', type=Path, default=ROOT, help='root of the files that are written')
    options = parser.parse_args(arguments)
    rows = read(options.results or RESULTS / options.sizes)
    print(f'{report(rows)}\n\n{len(rows)} rows, {hours(rows):.1f} hours of one processor')
    if options.write:
        into = options.into
        fill(into / 'benchmarks/results/README.md', options.sizes, report(rows))
        if options.sizes == 'small':
            text = json.dumps(records(rows, SIZES['small']), ensure_ascii=False).replace(', [', ',\n[')
            (into / 'x_transformers/flags/measured.json').write_text(text + '\n', encoding='utf-8')
            fill(into / 'README.md', 'flags that help', table_of_best(rows))
            for file in draw(rows, into / 'images'):
                print(f'drawn: {file}')


if __name__ == '__main__':
    main()
