"""What the rows of `which_flag_helps.py` say: effects with intervals, costs, and which flags go together.

    python benchmarks/flag_effects.py [--sizes small]     the tables                  needs scipy
    python benchmarks/flag_effects.py --write             tables, pictures, and what the library says of its flags

`--write` fills `benchmarks/results/README.md`, `images/flag_*.png`, `x_transformers/flags/measured.json`, and the
tables of `docs/measured.md` between their marks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from flag_rows import RESULTS, SIZES, Row, Sizes, keywords_of, read
from flag_statistics import (
    Cost,
    Effect,
    alone,
    by_length,
    effects,
    interactions,
    mean_and_half,
    runs_of,
    trainings,
    usual,
    with_interval,
)
from flag_variants import BASELINES, BY_NAME, FAMILY, SEQ_LEN
from measure import ROOT, markdown
from which_flag_helps import Plan

SHOWN = {'small': 'small models', '50M': '50M parameters'}  # what the documentation and the library tell, and as what


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
    values = keywords_of(baseline, variant, sizes)
    given = {name: values[name] for name in BY_NAME[variant].flags}
    switched = {name: owner_of(name) for name, value in given.items() if value is not False}
    if not switched:
        return None, None, None, None
    named = (name for name in switched if name.rpartition('.')[2] == variant.split()[0])
    name = next(named, next(iter(switched)))
    own, owner = switched[name]
    others = {owner_of(other)[0]: value for other, value in given.items() if owner_of(other)[1] == owner}
    others.pop(own)
    of_one_class = {other for _, other in switched.values()} == {owner}
    return own, owner, values[name], others if of_one_class else None


def owner_of(name: str) -> tuple[str, str]:
    """A keyword as its class declares it, and that class."""
    from x_transformers import Attention, AttentionLayers, AutoregressiveWrapper, FeedForward, TransformerWrapper
    from x_transformers.flags import get_flags

    part, _, own = name.rpartition('.')
    if part:
        return own, {'model': TransformerWrapper, 'train': AutoregressiveWrapper}[part].__name__
    if own in {**AttentionLayers.arguments(), **get_flags(AttentionLayers.catalogue)}:
        return own, AttentionLayers.__name__
    prefix, inner = ('attn_', Attention) if own.startswith('attn_') else ('ff_', FeedForward)
    return own.removeprefix(prefix), inner.__name__


def records(rows_of: dict[str, Sequence[Row]]) -> dict[str, Any]:
    """What the library says of its flags; numbers of three decimals, since intervals are wider."""
    from x_transformers.flags.explain import Measured

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
