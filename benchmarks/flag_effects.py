"""What the rows of `which_flag_helps.py` say: effects with intervals, costs, and which flags go together.

    python benchmarks/flag_effects.py [--markdown FILE] [--json FILE]           needs scipy

An effect is the mean over seeds of a variant's bits per byte less those of its baseline with the same seed, so that
what is below zero helps; with it stands its 95 % interval by Student's t. In equal time a variant is compared with what
its baseline reaches in the time that the variant took, between its runs of more and fewer steps. Of the effects of one
baseline those count as shown which hold at a false discovery rate of 5 % (Benjamini and Hochberg).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flag_variants import SEQ_LEN
from measure import markdown
from scipy import stats

if TYPE_CHECKING:
    from which_flag_helps import Row


@dataclass(frozen=True)
class Effect:
    """Of one variant, in bits per byte; costs are ratios to the baseline."""

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
        return f'{self.mean:+.4f} ± {self.half:.4f}'


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean of some numbers and half of its 95 % interval; of one there is no interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
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


def between(curve: Sequence[tuple[float, float]], steps: float) -> float:
    """Bits after so many steps, by straight lines over the logarithm of the steps."""
    points = [(math.log(at), bits) for at, bits in sorted(curve)]
    x = min(max(math.log(steps), points[0][0]), points[-1][0])
    for (low, below), (high, above) in pairwise(points):
        if x <= high:
            return below + (above - below) * (x - low) / (high - low)
    return points[-1][1]


def curves_of(own: Iterable[Row]) -> dict[int, dict[float, float]]:
    """Bits of a baseline by steps, for each seed."""
    found: dict[int, dict[float, float]] = defaultdict(dict)
    for row in own:
        if row.stage in ('baselines', 'single') and not row.variant and row.length == SEQ_LEN:
            found[row.seed][row.steps] = row.bits
    return found


def costs_of(own: Iterable[Row]) -> dict[str, Row]:
    return {row.variant: row for row in own if row.stage == 'costs'}


def effects(rows: Iterable[Row], baseline: str, stage: str = 'single') -> dict[str, Effect]:
    """What each variant of a stage changes, by name; those alone of which the baseline of the same seed is there."""
    own = [row for row in rows if row.baseline == baseline and row.length == SEQ_LEN and not row.refused]
    base = {(row.seed, row.steps, row.text): row for row in own if row.stage == stage and not row.variant}
    curves, costs = curves_of(own), costs_of(own)
    differences: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in own:
        other = base.get((row.seed, row.steps, row.text))
        if row.stage != stage or not row.variant or other is None:
            continue
        step = cost_of(costs, row.variant).step
        curve = curves[row.seed]
        reached = between([*curve.items()], row.steps * step) if len(curve) > 1 else other.bits
        differences[row.variant].append((row.bits - other.bits, row.bits - reached))
    p_values = {name: p_value([plain for plain, _ in both]) for name, both in differences.items()}
    shown, found = discoveries(p_values), {}
    for name, both in differences.items():
        (mean, half), (timed, half_timed) = (mean_and_half([each[at] for each in both]) for at in (0, 1))
        cost = cost_of(costs, name)
        found[name] = Effect(
            name,
            len(both),
            mean,
            half,
            p_values[name],
            timed,
            half_timed,
            cost.step,
            cost.memory,
            cost.token,
            name in shown,
        )
    return found


@dataclass(frozen=True)
class Cost:
    step: float = 1.0
    memory: float = 1.0
    token: float = 1.0


def cost_of(costs: dict[str, Row], names: str) -> Cost:
    """That of some variants together: the product of each, where they were not measured together."""
    if names in costs:
        return Cost(costs[names].step, costs[names].memory, costs[names].token)
    parts = [costs[name] for name in names.split(' + ') if name in costs]
    return Cost(*(math.prod(getattr(one, what) for one in parts) for what in ('step', 'memory', 'token')))


def chosen(rows: Sequence[Row], baseline: str, best: Sequence[str], seeds: int) -> list[str]:
    """What greedy selection has taken so far: in each round the variant that gains most in equal time, until none does.

    A round counts when all of its runs are there.
    """
    from flag_variants import VARIANTS

    kind = {variant.name: variant.family for variant in VARIANTS}
    done: dict[str, dict[int, Row]] = defaultdict(dict)
    gone = set()
    for row in rows:
        if row.stage == 'forward' and row.baseline == baseline:
            if row.refused:
                gone.add(row.variant)
            else:
                done[row.variant][row.seed] = row
    own = [row for row in rows if row.baseline == baseline and not row.refused]
    curves, costs = curves_of(own), costs_of(own)

    def worth(names: str) -> float:
        """Less what the baseline reaches in the same time."""
        step = cost_of(costs, names).step if names else 1.0
        return statistics.fmean(
            row.bits - between([*curves[seed].items()], row.steps * step) for seed, row in done[names].items()
        )

    names: list[str] = []
    while True:
        start = ' + '.join(names)
        taken = {kind[name] for name in names}
        left = [name for name in best if name not in names and kind[name] not in taken]
        more = {name: f'{start} + {name}' if start else name for name in left}
        tried = {name: text for name, text in more.items() if text not in gone}
        if not tried or any(len(done[text]) < seeds for text in (start, *tried.values())):
            return names
        name = min(tried, key=lambda each: worth(tried[each]))
        if worth(tried[name]) >= worth(start):
            return names
        names.append(name)


# what is shown


def table(rows: Sequence[Row], baseline: str) -> str:
    """Every variant of a baseline, family by family, the best first."""
    from flag_variants import VARIANTS

    found = effects(rows, baseline)
    kind = {variant.name: variant.family for variant in VARIANTS}
    lines = []
    for name in sorted(found, key=lambda each: (list(kind.values()).index(kind[each]), found[each].mean)):
        one = found[name]
        timed = f'{one.equal_time:+.4f} ± {one.half_equal_time:.4f}'
        ratios = [f'{value:.2f}' for value in (one.step, one.memory, one.token)]
        lines.append([kind[name], f'**{name}**' if one.shown else name, one.cell, timed, *ratios, str(one.seeds)])
    head = ['family', f'variant of the {baseline} baseline', 'bits per byte, equal steps', 'equal time']
    return markdown([*head, 'time of a step', 'memory', 'time of a token', 'seeds'], lines)


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """What the package shows beside a flag: effects by baseline and variant."""
    from flag_variants import BASELINES

    return {baseline: {name: asdict(one) for name, one in effects(rows, baseline).items()} for baseline in BASELINES}


def main(arguments: Sequence[str] | None = None) -> None:
    from flag_variants import BASELINES
    from which_flag_helps import RESULTS, read

    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of the rows')
    parser.add_argument('--markdown', type=Path, help='write the tables to this file')
    parser.add_argument('--json', type=Path, help='write all effects to this file')
    options = parser.parse_args(arguments)
    rows = read(options.results)
    text = '\n\n'.join(table(rows, baseline) for baseline in BASELINES)
    hours = sum(row.seconds for row in rows if not math.isnan(row.seconds)) / 3600
    print(f'{text}\n\n{len(rows)} runs, {hours:.1f} hours of one processor')
    if options.markdown:
        options.markdown.write_text(text + '\n')
    if options.json:
        options.json.write_text(json.dumps(summary(rows), indent=1))


if __name__ == '__main__':
    main()
