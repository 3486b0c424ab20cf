"""Effects of flags with intervals, and greedy selection, from the rows of `which_flag_helps.py`. Needs scipy.

An effect is the mean over seeds of a variant's bits per byte less those of its baseline with the same seed, so that
what is below zero helps; with it stands its 95 % interval by Student's t. In equal time a variant is compared with what
its baseline reaches in the time that the variant took, between its runs of more and fewer steps. Of the effects of one
baseline those count as shown which hold at a false discovery rate of 5 % (Benjamini and Hochberg).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flag_variants import FAMILY, SEQ_LEN, go_together
from scipy import stats

if TYPE_CHECKING:
    from flag_rows import Row

ROUNDS = 8  # of greedy selection, at the least
NEXT = 10  # of the other variants that are tried where none of the best is left


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
