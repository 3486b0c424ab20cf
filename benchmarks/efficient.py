"""Attention below the square of the length: time, memory and decoding of each way, beside dense attention and packages.

    pip install --target ORIGINAL x-transformers==2.31.10
    pip install --target PEERS --no-deps local-attention reformer-pytorch routing-transformer sinkhorn-transformer \
        linformer performer-pytorch linear-attention-transformer axial-attention aft-pytorch \
        hyper-connections axial-positional-embedding product-key-memory colt5-attention mixture-of-experts mambapy
    python benchmarks/efficient.py --original ORIGINAL --peers PEERS [--ways 'LSH;routing'] [--results FILE]

Forward and backward of one layer of attention with its projections, dim 256, 8 heads, batch 1. Dense attention is that
of the fused kernel ("flash") and of the formula; it is measured once for stacks that are causal and once for others,
and up to 4,096 tokens once more beside each way, whose own turn it shares. Decoding is the time of one more token
behind a context, greedily, by `generate`: the time of 72 tokens less that of 8.

A way of this list that the package does not know, and a package that is absent, are left out by name. With `--results`
the parts of several runs add up in a file, whose numbers of dense attention stay; `--show` measures nothing, and shows
what it holds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import ABSENT, Row, Settings, Sides, Work, columns_of, markdown, options_of, parser_of, serve
from score_flags import too_much
from torch.utils._pytree import tree_leaves
from ways import PEERS, WAYS, Sizes, Way

DENSE = ('original', 'original flash', 'ours dense', 'ours flash')
NAMES = (*DENSE, 'peer', 'ours')
BESIDE = 4096  # tokens up to which dense attention is measured beside each way
TOKENS = 64  # that are decoded
TIME, MEMORY, DECODING = 'ms', 'MiB', 'ms a token'
UNITS = {'time': TIME, 'memory': MEMORY}

# one measurement


def layer(column: str, case: dict[str, Any]) -> Callable[..., Any]:
    """The layer of a column."""
    way, n, sizes, depth = WAYS.get(case['way']), case['length'], Sizes(**case['sizes']), case['depth']
    if column == 'peer':
        return PEERS[way.peer](n, sizes, way.causal)
    if column == 'ours' and way.build:
        return way.build(n, sizes)
    from x_transformers.x_transformers import Attention, Encoder

    flags = way.flags(n, sizes) if column == 'ours' else {f'{"attn_" * (depth > 0)}flash': column.endswith('flash')}
    if depth:
        return Encoder(dim=sizes.dim, depth=depth, heads=sizes.heads, attn_dim_head=sizes.head, **flags)
    return Attention(dim=sizes.dim, heads=sizes.heads, dim_head=sizes.head, causal=case['causal'], **flags)


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """Forward and backward of a layer, or what it takes to decode a token."""
    given = {'device': settings.device, 'dtype': getattr(torch, settings.dtype)}
    if case['what'] == DECODING:
        return decoding(column, case, settings, given)
    net = layer(column, case).to(**given)
    inputs = WAYS[case['way']].inputs(case['length']) if column == 'ours' else {}
    inputs = {name: value.to(settings.device) for name, value in inputs.items()}
    x = torch.randn(1, case['length'], case['sizes']['dim'], **given, requires_grad=True)

    def step() -> None:
        outputs = [t for t in tree_leaves(net(x, **inputs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        sum(t.sum() for t in outputs).backward()
        net.zero_grad()
        x.grad = None

    return step


def decoding(column: str, case: dict[str, Any], settings: Settings, given: dict[str, Any]) -> Work:
    """Milliseconds for one more token, on the average of 64."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    sizes, n = Sizes(**case['sizes']), case['length'] + TOKENS + 8
    way = WAYS[case['way']] if column == 'ours' else Way(lambda n, sizes: {})
    flags = way.decoder or {'depth': 1, **{f'attn_{name}': value for name, value in way.flags(n, sizes).items()}}
    stack = Decoder(dim=sizes.dim, heads=sizes.heads, attn_dim_head=sizes.head, **flags)
    model = TransformerWrapper(num_tokens=256, max_seq_len=n, use_abs_pos_emb=False, attn_layers=stack)
    model = AutoregressiveWrapper(model).to(**given).eval()
    with torch.no_grad():
        prompt = model.read_prompt(torch.randint(256, (1, case['length']), device=settings.device))

    def seconds(tokens: int) -> float:
        clock = time.process_time if settings.clock == 'cpu' else time.perf_counter
        start = clock()
        model.generate(None, tokens, prompt_cache=prompt, temperature=0.0)
        if settings.device != 'cpu':
            torch.cuda.synchronize()
        return clock() - start

    return lambda: 1e3 * max(seconds(TOKENS + 8) - seconds(8), 1e-9) / TOKENS


# all of them


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, rounds=3, seconds=0.0)
    parser.add_argument('--peers', type=Path, help='folder of `pip install --target` with other packages')
    parser.add_argument(
        '--ways', help=f'only these, or all that contain such a text, with semicolons: {"; ".join(WAYS)}'
    )
    parser.add_argument('--what', default='time,memory,decoding', help='of these three')
    parser.add_argument('--lengths', default='1024,4096,16384', help='with commas')
    parser.add_argument('--linear', default='65536', help='more lengths for ways whose time is linear')
    parser.add_argument('--contexts', default='1024,16384', help='lengths behind which a token is decoded')
    parser.add_argument('--limit-gib', type=float, default=8, help='what a step may take')
    parser.add_argument('--limit-seconds', type=float, default=60, help='what a step may take')
    parser.add_argument('--results', type=Path, help='keep the rows in this file, beside those that it has')
    parser.add_argument('--show', action='store_true', help='measure nothing, show what `--results` holds')
    parser.add_argument('--summary', action='store_true', help='one table, with a line for each way')
    parser.add_argument('--markdown', type=Path, help='write the tables to this file')
    return parser


def chosen_ways(options: argparse.Namespace) -> dict[str, Way]:
    """Those of these names, or with these texts in their name."""
    found: dict[str, Way] = {}
    for text in options.ways.split(';') if options.ways else ['']:
        names = [text.strip()] if text.strip() in WAYS else [name for name in WAYS if text.strip() in name]
        if not names:
            raise SystemExit(f'--ways: {text!r} is in none of {"; ".join(WAYS)}')
        found |= {name: WAYS[name] for name in names}
    return found


def lengths_of(options: argparse.Namespace, name: str, tiny: list[int]) -> list[int]:
    return tiny if options.tiny else sorted(int(n) for n in getattr(options, name).split(',') if n)


def rows(options: argparse.Namespace) -> list[Row]:
    return list(measured(options))


def measured(options: argparse.Namespace, known: Collection[tuple[str, str]] = ()) -> Iterator[Row]:
    """Row by row, so that what is stopped keeps what it has. Dense attention that is `known` is not measured again."""
    ways, what = chosen_ways(options), options.what.split(',')
    columns = columns_of(options, NAMES)
    if options.peers is None:
        del columns['peer']
    elif not options.peers.is_dir():
        raise SystemExit(f'--peers: {options.peers} is no folder')
    else:
        columns['peer'] = options.peers.resolve()
    lengths, longer = lengths_of(options, 'lengths', [64, 128]), lengths_of(options, 'linear', [256])
    sizes = asdict(Sizes(16, 2, 16) if options.tiny else Sizes())
    with Sides(__file__, columns, options) as sides:
        if {'time', 'memory'} & set(what):
            for causal, depth in dict.fromkeys((way.causal, way.depth) for way in ways.values()):
                case = {'way': '', 'causal': causal, 'depth': depth, 'sizes': sizes}
                name, units = dense_name(causal, depth), [u for word, u in UNITS.items() if word in what]
                if not all((f'{name}; {n}', unit) in known for n in lengths for unit in units):
                    yield from grown(sides, name, case, lengths, lambda n: DENSE)
            for name, way in ways.items():
                wide = {**sizes, 'wide': way.wide and way.wide // sizes['scale']}
                case = {'way': name, 'causal': way.causal, 'depth': way.depth, 'sizes': wide}
                own = ['ours', *(['peer'] if way.peer else [])]
                all_lengths = lengths + (longer if way.linear else [])
                yield from grown(sides, name, case, all_lengths, lambda n, own=own: own + beside(n))
        if 'decoding' in what:
            for name, way in ways.items():
                if way.decodes:
                    yield from decoded(
                        sides, name, {'way': name, 'sizes': sizes}, lengths_of(options, 'contexts', [32])
                    )


def beside(n: int) -> list[str]:
    return ['ours flash'] if n <= BESIDE else []


def dense_name(causal: bool, depth: int = 0) -> str:
    return f'dense{", causal" * causal}{f", depth {depth}" * (depth > 0)}'


def grown(
    sides: Sides, name: str, case: dict[str, Any], lengths: list[int], among: Callable[[int], Sequence[str]]
) -> Iterator[Row]:
    """Time and memory at all lengths, as far as limits and the package allow."""
    options, times, peaks = sides.options, [], []
    what = options.what.split(',')
    for n in lengths:
        names = [column for column in among(n) if column in sides.sides]
        out = {}
        for done, limit in ((times, 1e3 * options.limit_seconds), (peaks, 1024 * options.limit_gib)):
            out |= {column: why for column in names if (why := too_much(column, done, limit, 16))}
        left, own = [column for column in names if column not in out], {**case, 'length': n}
        if not left:
            continue
        if 'time' in what:
            own['what'] = TIME
            times.append(sides.seconds(f'{name}; {n}', own, among=left, refused=dict(out)))
            yield times[-1]
            left, out = list(times[-1].values), times[-1].refused
        if 'memory' in what:
            own['what'] = TIME  # the same work
            peaks.append(sides.memory(f'{name}; {n}', own, among=left, refused=dict(out)))
            yield peaks[-1]
        if 'ours' in names and 'ours' in (times or peaks)[-1].refused:
            break


def decoded(sides: Sides, name: str, case: dict[str, Any], contexts: list[int]) -> Iterator[Row]:
    for n in contexts:
        own = {**case, 'length': n, 'what': DECODING}
        row = sides.numbers(f'{name}; {n}', own, DECODING, among=('ours flash', 'ours'))
        yield row
        if 'ours' in row.refused:
            break


# tables


class Found:
    """What was measured, by way, unit, length and column."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(*row.work.rsplit('; ', 1), row.unit): row for row in rows}

    def lengths(self, unit: str) -> list[int]:
        return sorted({int(n) for _, n, own in self.rows if own == unit})

    def value(self, name: str, unit: str, n: int, column: str) -> float | None:
        row = self.rows.get((name, str(n), unit))
        return median(row.values[column]) if row and row.values.get(column) else None

    def curve(self, name: str, unit: str, column: str) -> dict[int, float]:
        every = {n: self.value(name, unit, n, column) for n in self.lengths(unit)}
        return {n: value for n, value in every.items() if value is not None}

    def dense(self, name: str, unit: str) -> dict[int, float]:
        """Of our fused kernel, from the same rounds where it was measured in them."""
        way = WAYS[name]
        apart = self.curve(dense_name(way.causal, way.depth), unit, 'ours flash')
        return apart | self.curve(name, unit, 'ours flash')

    def ways(self, unit: str) -> list[str]:
        return [name for name in WAYS if self.curve(name, unit, 'ours')]

    def crossing(self, name: str) -> str:
        """The length from which a way is faster than dense attention, between lengths along a straight line of logs."""
        own, dense = self.curve(name, TIME, 'ours'), self.dense(name, TIME)
        gains = [(n, math.log(dense[n] / own[n])) for n in sorted(own) if n in dense]
        slower = [place for place, (_, gain) in enumerate(gains) if gain < 0]
        if not gains or not slower:
            return f'< {gains[0][0]}' if gains else '-'
        last = slower[-1]
        if last == len(gains) - 1:
            return f'> {gains[-1][0]}'
        (n, gain), (after, more) = gains[last : last + 2]
        found = n * (after / n) ** (gain / (gain - more))
        digits = 10 ** (len(str(int(found))) - 2)
        return str(round(found / digits) * digits)

    def refusals(self) -> dict[str, str]:
        """Why columns were left out, in words."""
        found = {}
        for (name, _, _), row in self.rows.items():
            for column, why in row.refused.items():
                if column in ('ours', 'peer') and not why.startswith('left out'):
                    label = name if column == 'ours' else WAYS[name].peer
                    found.setdefault(label, 'the package is absent' if why == ABSENT else why)
        return found


def cells(curve: dict[int, float], lengths: Sequence[int]) -> list[str]:
    return [
        f'{curve[n]:.3g}' if n in curve and curve[n] < 1000 else f'{curve[n]:.0f}' if n in curve else '-'
        for n in lengths
    ]


def over(found: Found, name: str, unit: str, column: str) -> str:
    """How many times our number another is, at each length of both."""
    own, other = found.curve(name, unit, 'ours'), found.curve(name, unit, column)
    other = found.dense(name, unit) if column == 'ours flash' else other
    factors = []
    for n in (n for n in own if n in other):
        row = replace(found.rows[name, str(n), unit], base='ours')
        factors.append(median(row.ratios(column) or [other[n] / own[n]]))  # within rounds, where they were the same
    return ' / '.join(f'{factor:.3g}' for factor in factors) or '-'


def costs(found: Found, unit: str, head: str) -> str:
    lengths, lines = found.lengths(unit), []
    kinds = {'original': 'original, formula', 'original flash': 'original, flash'}
    for name in dict.fromkeys(name for name, _, own in found.rows if own == unit and name not in WAYS):
        for column in DENSE:
            curve = found.curve(name, unit, column)
            label = kinds.get(column, f'ours, {"flash" if column == "ours flash" else "formula"}')
            if curve:
                lines.append([f'{name} ({label})', *cells(curve, lengths), *['-'] * (len(lengths) + 3)])
    for name in found.ways(unit):
        own, peer = found.curve(name, unit, 'ours'), found.curve(name, unit, 'peer')
        shown, goal = over(found, name, unit, 'peer'), WAYS[name].goal
        shown = goal_beside(shown, goal) if peer and unit == TIME else shown
        last = found.crossing(name) if unit == TIME else over(found, name, unit, 'ours flash')
        lines.append([name, *cells(own, lengths), WAYS[name].peer or '-', *cells(peer, lengths), shown, last])
    last = 'faster than flash from' if unit == TIME else 'flash over ours'
    return markdown([head, *map(str, lengths), 'package', *map(str, lengths), 'package over ours', last], lines)


def tokens(found: Found) -> str:
    lengths, lines = found.lengths(DECODING), []
    for name in found.ways(DECODING):
        own, dense = (found.curve(name, DECODING, column) for column in ('ours', 'ours flash'))
        grown = [own[b] / own[a] for a, b in itertools.pairwise(sorted(own))]
        factors = over(found, name, DECODING, 'ours flash')
        lines.append([name, *cells(own, lengths), *cells(dense, lengths), factors, *(f'{g:.2f}' for g in grown)])
    growth = [f'{b} over {a}' for a, b in itertools.pairwise(lengths)]
    heads = [f'{what}, {n}' for what in ('ours', 'dense') for n in lengths]
    return markdown(['decoding, ms a token', *heads, 'dense over ours', *growth], lines)


def show(rows: Sequence[Row]) -> str:
    found = Found(rows)
    parts = [costs(found, TIME, 'forward and backward, ms')] if found.lengths(TIME) else []
    parts += [costs(found, MEMORY, 'peak memory, MiB')] if found.lengths(MEMORY) else []
    parts += [tokens(found)] if found.lengths(DECODING) else []
    words = [f'- {name}: {why}' for name, why in found.refusals().items()]
    return '\n\n'.join(parts + (['Left out:\n' + '\n'.join(words)] if words else []))


def summary(rows: Sequence[Row]) -> str:
    """One table of all that decides between ways, a line for each; lengths stand side by side."""
    found = Found(rows)
    lengths = found.lengths(TIME)
    heads = {
        TIME: f'ms at {words(lengths)}',
        'crossing': 'faster than dense from',
        'peer': 'package',
        'over': 'package over ours',
        MEMORY: f'MiB at {words(found.lengths(MEMORY))}',
        DECODING: f'ms a token behind {words(found.lengths(DECODING))}',
    }
    lines = []
    for name in dict.fromkeys([*(name for name, *_ in found.rows if name not in WAYS), *found.ways(TIME)]):
        way, column = WAYS.get(name), 'ours' if name in WAYS else 'ours flash'
        own = {unit: ' / '.join(cells(found.curve(name, unit, column), found.lengths(unit))) for unit in UNITS.values()}
        own[DECODING] = ' / '.join(cells(found.curve(name, DECODING, 'ours'), found.lengths(DECODING)))
        if way:
            shown = over(found, name, TIME, 'peer')
            own |= {'crossing': found.crossing(name), 'peer': way.peer, 'over': goal_beside(shown, way.goal)}
        lines.append([name, *(shorter(own.get(key, '')) for key in heads)])
    decoded = found.ways(DECODING)
    if decoded:
        curves = [found.curve(name, DECODING, 'ours flash') for name in decoded]
        each = {n: [curve[n] for curve in curves if n in curve] for n in found.lengths(DECODING)}
        dense = {n: median(values) for n, values in each.items() if values}  # it was measured beside each of them
        lines[0][-1] = ' / '.join(cells(dense, found.lengths(DECODING)))
    return markdown(['', *heads.values()], lines)


def words(lengths: Sequence[int]) -> str:
    return ' / '.join(f'{n // 1024}k' if n % 1024 == 0 else str(n) for n in lengths)


def goal_beside(shown: str, goal: float | None) -> str:
    return f'{shown} (>= {goal:g})' if goal and shown != '-' else shown


def shorter(cell: str) -> str:
    """Without lengths at the end at which nothing was measured."""
    while cell.endswith(' / -'):
        cell = cell[: -len(' / -')]
    return cell or '-'


def main() -> None:
    options = options_of(parser())
    if options.serve:
        return serve(work)
    kept = json.loads(options.results.read_text()) if options.results and options.results.exists() else []
    rows_of_all = {(fields['work'], fields['unit']): Row(**fields) for fields in kept}
    files = [path for path in (options.results, options.json) if path]
    for row in [] if options.show else measured(options, set(rows_of_all)):
        rows_of_all[row.work, row.unit] = row
        for path in files:
            path.write_text(json.dumps([asdict(one) for one in rows_of_all.values()], indent=1))
    filled = list(rows_of_all.values())
    text = (summary if options.summary else show)(filled)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + '\n')


if __name__ == '__main__':
    main()
