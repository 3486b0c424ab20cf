"""What the rows of `which_flag_helps.py` say: effects with intervals, costs, and which flags go together.

    python benchmarks/flag_effects.py [--sizes small]     the tables                  needs scipy
    python benchmarks/flag_effects.py --write             tables, pictures, and what the library says of its flags

An effect is the mean over seeds of a variant's bits per byte less those of its baseline with the same seed, so that
what is below zero helps; with it stands its 95 % interval by Student's t. In equal time a variant is compared with what
its baseline reaches in the time that the variant took, between its runs of more and fewer steps. Of the effects of one
baseline those count as shown which hold at a false discovery rate of 5 % (Benjamini and Hochberg).

`--write` fills `benchmarks/results/README.md`, `images/flag_*.png`, `x_transformers/flags/measured.json`, and the
tables of `docs/measured.md` between their marks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flag_variants import BASELINES, BY_NAME, FAMILY, SEQ_LEN, go_together
from measure import ROOT, markdown
from scipy import stats

if TYPE_CHECKING:
    from which_flag_helps import Plan, Row, Sizes

ROUNDS = 8  # of greedy selection, at the least
NEXT = 10  # of the other variants that are tried where none of the best is left
SHOWN = {'small': 'small models', '50M': '50M parameters'}  # what the documentation and the library tell, and as what


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


def between(curve: dict[float, float], steps: float) -> float:
    """Bits after so many steps, by straight lines over the logarithm of the steps; the outer ones go on.

    Unknown are those between runs of which there is only one.
    """
    points = [(math.log(at), bits) for at, bits in sorted(curve.items())]
    if math.isnan(steps) or len(points) < 2:
        return curve.get(steps, math.nan)
    x = math.log(steps)
    lines = [*itertools.pairwise(points)]
    (low, below), (high, above) = next((line for line in lines if x <= line[1][0]), lines[-1])
    return below + (above - below) * (x - low) / (high - low)


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


def curves_of(own: Sequence[Row]) -> dict[int, dict[float, float]]:
    """Bits of a baseline by steps, for each seed."""
    found: dict[int, dict[float, float]] = defaultdict(dict)
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
    return costs[names] if names in costs else product_of(costs, names)


def product_of(costs: dict[str, Cost], names: str) -> Cost:
    """What some variants cost if each multiplies the cost of the others; nothing costs what the baseline does."""
    parts = [costs.get(name, Cost()) for name in filter(None, names.split(' + '))]
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


@dataclass(frozen=True)
class Selection:
    """What greedy selection has taken, in turn; `tried` is what its next round needs, nothing when it has ended."""

    names: list[str]
    tried: list[str]

    @property
    def ended(self) -> bool:
        return bool(self.names) and not self.tried

    @property
    def sets(self) -> list[str]:
        """What is there after each round, once it has ended."""
        return [' + '.join(self.names[: at + 1]) for at in range(len(self.names))] if self.ended else []


def worth(rows: Sequence[Row], baseline: str, seeds: int, cost: Callable[..., Cost]) -> Callable[[str], float]:
    """Of some variants together: their bits, less what the baseline reaches in the same time."""
    own = trainings(rows, baseline)
    like, runs, curves, costs = usual(own), runs_of(own), curves_of(own), costs_of(rows, baseline)

    def of(names: str) -> float:
        steps = like.steps * cost(costs, names).step if like else math.nan
        return statistics.fmean(runs[names][seed] - between(curves[seed], steps) for seed in range(seeds))

    return of


def longer(names: Sequence[str], of: Sequence[str], gone: set[str]) -> dict[str, str]:
    """Some variants with one more of others that goes with them and is not refused, by the name of that one."""
    left = (name for name in of if name not in names and all(go_together(name, other) for other in names))
    sets = {name: ' + '.join((*names, name)) for name in left}
    return {name: text for name, text in sets.items() if text not in gone}


def forward(
    rows: Sequence[Row], baseline: str, best: Sequence[str], seeds: int, others: Sequence[str] = ()
) -> Selection:
    """Greedy selection as far as rows are there: in each round the variant that gains most in equal time.

    If none of the best is left that goes with what was chosen, before `ROUNDS` rounds, the first `NEXT` of the others
    that do are tried. It ends when nothing is left, or nothing helps after `ROUNDS` rounds. Time is the product of what
    each variant costs, so that what was chosen does not change when sets of them are measured.
    """
    runs = runs_of(trainings(rows, baseline))
    gone = {row.variant for row in rows if row.baseline == baseline and row.refused}
    of = worth(rows, baseline, seeds, product_of)
    names: list[str] = []
    while True:
        start, tried = ' + '.join(names), longer(names, best, gone)
        if not tried and len(names) < ROUNDS:
            tried = dict([*longer(names, others, gone).items()][:NEXT])
        if not tried:
            return Selection(names, [])
        if any(not {*range(seeds)} <= {*runs[text]} for text in (start, *tried.values())):
            return Selection(names, [start, *tried.values()])
        name = min(tried, key=lambda each: of(tried[each]))
        if len(names) >= ROUNDS and of(tried[name]) >= of(start):
            return Selection(names, [])
        names.append(name)


def recipe(rows: Sequence[Row], baseline: str, path: Selection, seeds: int) -> str:
    """The best of the sets that greedy selection has come by, by their own costs."""
    return min(path.sets, key=worth(rows, baseline, seeds, cost_of))


def interactions(rows: Sequence[Row], baseline: str) -> dict[tuple[str, str], tuple[float, float]]:
    """Of each pair that was run: what it changes beyond the sum of its parts, with half of the interval.

    There are few seeds of many pairs, so that the variance over seeds is taken from all pairs together.
    """
    runs = runs_of(trainings(rows, baseline))
    found: dict[tuple[str, str], list[float]] = {}
    for names, by_seed in runs.items():
        parts = names.split(' + ')
        if len(parts) == 2 and all(part in runs for part in parts):
            seeds = sorted({*by_seed} & {*runs['']} & {*runs[parts[0]]} & {*runs[parts[1]]})
            values = [by_seed[s] - runs[parts[0]][s] - runs[parts[1]][s] + runs[''][s] for s in seeds]
            if values:
                found[parts[0], parts[1]] = values
    free = sum(len(values) - 1 for values in found.values())
    squares = sum((value - statistics.fmean(own)) ** 2 for own in found.values() for value in own)
    deviation = math.sqrt(squares / free) * float(stats.t.ppf(0.975, free)) if free else math.inf
    return {pair: (statistics.fmean(own), deviation / math.sqrt(len(own))) for pair, own in found.items()}


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
        lines.append([FAMILY[one.variant], name, one.cell, one.cell_equal_time, *ratios(one), str(one.seeds)])
    head = ['family', f'variant of the {baseline} baseline', 'bits per byte, equal steps', 'equal time']
    return markdown([*head, 'time of a step', 'memory', 'time of a token', 'seeds'], lines)


def table_of_lengths(rows: Sequence[Row], baseline: str) -> str:
    found = by_length(rows, baseline)
    lengths = sorted({length for own in found.values() for length in own})
    ordered = sorted(found.items(), key=lambda item: item[1][lengths[-1]][0])
    lines = [[name or 'baseline', *(with_interval(*own[n]).lstrip('+') for n in lengths)] for name, own in ordered]
    return markdown([f'positions, {baseline} baseline', *(f'{length} bytes' for length in lengths)], lines)


def table_of_best(rows: Sequence[Row], baseline: str = 'modern', most: int = 12) -> str:
    """The table of the documentation: what holds and gains most, and what loses most."""
    found = sorted((one for one in alone(effects(rows, baseline)).values() if one.shown), key=lambda each: each.mean)
    some = [*found[:most], *found[-most // 2 :]] if len(found) > most * 3 // 2 else found
    lines = [[one.variant, one.cell, one.cell_equal_time, f'{one.step:.2f}', f'{one.memory:.2f}'] for one in some]
    return markdown(['variant', 'bits per byte, equal steps', 'equal time', 'time of a step', 'memory'], lines)


def table_of_sizes(small: Sequence[Row], large: Sequence[Row], baseline: str = 'modern') -> str:
    """The other table of the documentation: what small models gave, and what is left of it in larger ones."""
    before = alone(effects(small, baseline))
    found = [one for one in alone(effects(large, baseline)).values() if one.seeds > 1 and one.variant in before]
    lines = [
        [one.variant, before[one.variant].cell, one.cell, one.cell_equal_time, f'{one.step:.2f}', f'{one.memory:.2f}']
        for one in sorted(found, key=lambda each: each.mean)
    ]
    head = ['variant', 'small models, equal steps', '50M parameters, equal steps', 'equal time']
    return markdown([*head, 'time of a step', 'memory'], lines)


def ratios(one: Effect | Cost) -> list[str]:
    return ['-' if math.isnan(value) else f'{value:.2f}' for value in (one.step, one.memory, one.token)]


def table_of_rounds(plan: Plan, baseline: str) -> str:
    """What greedy selection took in each round, and what all of it together changes."""
    path, found = plan.path(baseline), effects(plan.rows, baseline)
    if not path.ended:
        return ''
    lines = [
        [str(at), name, found[names].cell, found[names].cell_equal_time, *ratios(found[names]), str(found[names].seeds)]
        for at, (name, names) in enumerate(zip(path.names, path.sets, strict=True), start=1)
    ]
    head = ['round', f'added to the {baseline} baseline', 'bits per byte, equal steps', 'equal time']
    return markdown([*head, 'time of a step', 'memory', 'time of a token', 'seeds'], lines)


def table_of_final(rows: Sequence[Row]) -> str:
    """The best sets, trained four times as long."""
    lines = [
        [baseline, names, one.cell, one.cell_equal_time, *ratios(one), str(one.seeds)]
        for baseline in BASELINES
        for names, one in effects(rows, baseline, times=4.0).items()
    ]
    head = ['baseline', 'with, for four times as many steps', 'bits per byte, equal steps', 'equal time']
    return markdown([*head, 'time of a step', 'memory', 'time of a token', 'seeds'], lines) if lines else ''


def table_of_pairs(rows: Sequence[Row], baseline: str = 'modern') -> str:
    """Pairs that change more or less than the sum of their parts, beyond the interval."""
    found = sorted(interactions(rows, baseline).items(), key=lambda item: item[1][0])
    alike = alone(effects(rows, baseline))
    lines = [
        [' + '.join(pair), f'{alike[pair[0]].mean + alike[pair[1]].mean:+.3f}', with_interval(mean, half)]
        for pair, (mean, half) in found
        if abs(mean) > half
    ]
    head = [f'pair, {baseline} baseline', 'sum of both alone', 'what the pair changes beyond it']
    return f'{count_of_pairs(rows, baseline)}\n\n{markdown(head, lines)}' if found else ''


def count_of_pairs(rows: Sequence[Row], baseline: str = 'modern') -> str:
    """How many pairs change less or more than the sum of their parts, in a sentence."""
    found = interactions(rows, baseline).values()
    less, more = (sum(sign * mean > half for mean, half in found) for sign in (1, -1))
    told = f'{less} gain less than the sum of their parts, beyond the interval, and {more} gain more.'
    return f'Of {len(found)} pairs {told}' if found else ''


def count_of_effects(rows: Sequence[Row]) -> str:
    """How many effects hold, and on how many of them the baselines agree, in a sentence."""
    helping: list[dict[str, bool]] = []
    parts = []
    for baseline in BASELINES:
        found = alone(effects(rows, baseline))
        helping.append({name: one.mean < 0 for name, one in found.items() if one.shown})
        hold = f'{len(helping[-1])} hold, of which {sum(helping[-1].values())} help'
        parts.append(f'of {len(found)} variants of the {baseline} baseline {hold}')
    both = set.intersection(*map(set, helping))
    apart = sum(len({own[name] for own in helping}) > 1 for name in both)
    told = '; '.join(parts)
    return f'{told[0].upper()}{told[1:]}. Of the {len(both)} that hold on both, {apart} help one and harm the other.'


def at_half_the_rate(rows: Sequence[Row], baseline: str) -> dict[str, tuple[float, float]]:
    """Bits of variants trained with half the rate, less those of the baseline with its own."""
    own = trainings(rows, baseline)
    like, base = usual(own), runs_of(own).get('', {})
    found: dict[str, list[float]] = defaultdict(list)
    for row in own:
        if like and row.steps == like.steps and math.isclose(row.rate, like.rate / 2, rel_tol=1e-4):
            found[row.variant] += [row.bits - base[row.seed]] if row.seed in base else []
    return {name: mean_and_half(values) for name, values in found.items() if values}


def table_of_rates(rows: Sequence[Row], baseline: str) -> str:
    found, slow = alone(effects(rows, baseline)), at_half_the_rate(rows, baseline)
    lines = [
        [name, found[name].cell, with_interval(*slow[name])]
        for name in sorted(slow, key=lambda name: slow[name][0])
        if name in found
    ]
    if lines and '' in slow:
        lines.append(['baseline', '0', with_interval(*slow[''])])
    return markdown([f'variant of the {baseline} baseline', 'its rate', 'half of it'], lines) if lines else ''


def short(rows: Sequence[Row]) -> str:
    """What the documentation shows: the best and the worst, how many hold, and the best sets of flags."""
    parts = (table_of_best(rows), count_of_effects(rows), table_of_final(rows), count_of_pairs(rows))
    return '\n\n'.join(part for part in parts if part)


def time_taken(rows: Iterable[Row]) -> str:
    """Of all trainings together; each is written in several rows if several lengths are read."""
    runs = [row for row in rows if row.length == SEQ_LEN and not math.isnan(row.seconds)]
    hours = sum(row.seconds for row in runs) / 3600
    of = 'one processor' if all('thread' in row.machine for row in runs) else 'training, many runs at once on one GPU'
    return f'{len(runs)} models were trained, in {hours:.1f} hours of {of}.'


# what is written


def about(rows: Sequence[Row], sizes: Sizes) -> str:
    """How it was measured, in a sentence."""
    trained = next(row for row in rows if row.stage == 'single')
    model = f'{sizes.depth} layers of width {sizes.dim} with {sizes.heads} heads'
    text = f'{sizes.steps} steps of {sizes.batch} x {SEQ_LEN} bytes of the source of Python'
    return f'{model}, {text}; x_transformers {trained.version}, torch {trained.torch}, {trained.machine}'


def keyword_of(variant: str, baseline: str, sizes: Sizes) -> tuple[str | None, str | None, Any, dict[str, Any] | None]:
    """The keyword that a variant is about: its name, class and value, and what else its class is given.

    It is the one that the variant is named after, or else the first one that it switches on. Where a variant switches
    on something of another class as well, None stands for what else there is.
    """
    from which_flag_helps import keywords_of

    values = keywords_of(baseline, variant, sizes)
    given = {name: values[name] for name in BY_NAME[variant].flags}
    switched = {name: owner_of(name) for name, value in given.items() if value is not False}
    if not switched:
        return None, None, None, None
    named = (name for name in switched if name.rpartition('.')[2] == variant.split()[0])
    name = next(named, next(iter(switched)))
    own, host = switched[name]
    others = {owner_of(other)[0]: value for other, value in given.items() if owner_of(other)[1] == host}
    others.pop(own)
    of_one_class = {other for _, other in switched.values()} == {host}
    return own, host, values[name], others if of_one_class else None


def owner_of(name: str) -> tuple[str, str]:
    """A keyword as its class declares it, and that class."""
    from x_transformers import Attention, AttentionLayers, AutoregressiveWrapper, FeedForward, TransformerWrapper
    from x_transformers.flags import flags_of

    part, _, own = name.rpartition('.')
    if part:
        return own, {'model': TransformerWrapper, 'train': AutoregressiveWrapper}[part].__name__
    if own in {**AttentionLayers.arguments(), **flags_of(AttentionLayers.catalogue)}:
        return own, AttentionLayers.__name__
    prefix, inner = ('attn_', Attention) if own.startswith('attn_') else ('ff_', FeedForward)
    return own.removeprefix(prefix), inner.__name__


def records(rows_of: dict[str, Sequence[Row]]) -> dict[str, Any]:
    """What the library says of its flags; numbers of three decimals, since intervals are wider."""
    from which_flag_helps import SIZES

    from x_transformers.flags.measured import Measured

    found = []
    for sizes, baseline in itertools.product(rows_of, BASELINES):
        for one in sorted(alone(effects(rows_of[sizes], baseline)).values(), key=lambda each: each.mean):
            if one.seeds > 1 and not math.isnan(one.step):
                numbers = (one.mean, one.half, one.equal_time, one.half_equal_time, one.step, one.memory, one.token)
                rounded = [round(number, 3) for number in numbers]
                keyword = keyword_of(one.variant, baseline, SIZES[sizes])
                found.append([one.variant, SHOWN[sizes], baseline, *keyword, *rounded, one.seeds, one.shown])
    told = {SHOWN[sizes]: about(rows, SIZES[sizes]) for sizes, rows in rows_of.items()}
    return {'about': told, 'columns': [one.name for one in fields(Measured)], 'rows': found}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """The pictures: effects by family, costs, pairs, lengths."""
    import flag_pictures

    folder.mkdir(parents=True, exist_ok=True)
    return flag_pictures.drawn(rows, folder)


def report(rows: Sequence[Row], sizes: Sizes) -> str:
    """All tables, as markdown."""
    from which_flag_helps import Plan

    plan = Plan(rows, sizes)
    parts = [table(rows, baseline) for baseline in BASELINES]
    parts += [table_of_lengths(rows, baseline) for baseline in BASELINES if by_length(rows, baseline)]
    parts += [table_of_rounds(plan, baseline) for baseline in BASELINES]
    parts += [table_of_final(rows), table_of_pairs(rows)]
    parts += [table_of_rates(rows, baseline) for baseline in BASELINES]
    parts.append(time_taken(rows))
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
    print(report(rows, SIZES[options.sizes]))
    if options.write:
        into = options.into
        fill(into / 'benchmarks/results/README.md', options.sizes, report(rows, SIZES[options.sizes]))
        if options.sizes in SHOWN:
            both = {sizes: rows if sizes == options.sizes else read(RESULTS / sizes) for sizes in SHOWN}
            fill(into / 'docs/measured.md', 'flags in larger models', table_of_sizes(*both.values()))
            text = json.dumps(records(both), ensure_ascii=False).replace(', [', ',\n[')
            (into / 'x_transformers/flags/measured.json').write_text(text + '\n', encoding='utf-8')
        if options.sizes == 'small':
            fill(into / 'docs/measured.md', 'flags that help', short(rows))
            for file in draw(rows, into / 'images'):
                print(f'drawn: {file}')


if __name__ == '__main__':
    main()
