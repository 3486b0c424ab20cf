"""Command line: the table of all flags, and the documentation of one.

python -m x_transformers.flags             the table
python -m x_transformers.flags rotary      one flag, or every flag whose name contains this
python -m x_transformers.flags --helps     measured effects of flags, the best first
python -m x_transformers.flags --refusals  flags that cannot be combined
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import x_transformers
import x_transformers.flags.explain as results
from x_transformers.flags import REQUIRED, Configurable, Feature, Flag, did_you_mean, format_value, get_flags


def table() -> list[tuple[str, str, Flag]]:
    """Return every flag of the library as rows (class, name, flag)."""
    rows, seen = [], set()
    for public in x_transformers.__all__:
        cls = getattr(x_transformers, public)
        if not (isinstance(cls, type) and issubclass(cls, Configurable)):
            continue
        for name, declared in {**cls.arguments(), **get_flags(cls.catalogue)}.items():
            key = (name, declared.feature) if declared.feature else (name, cls)
            if key not in seen:
                seen.add(key)
                rows.append((cls.__name__, name, declared))
    return rows


def describe(where: str, name: str, declared: Flag) -> str:
    """Return the documentation, default, range, paper and conflicts of a flag as a paragraph."""
    default = 'required' if declared.default is REQUIRED else f'default {declared.default!r}'
    lines = [f'{name}  ({where}, {default})', f'    {declared.doc}']
    if declared.check is not None:
        lines.append(f'    must be {declared.check.words}')
    if declared.example is not None:
        lines.append(f'    for example {name}={format_value(declared.example)}')
    if declared.feature is not None:
        feature = declared.feature
        lines += ['    ' + line for line in inspect.cleandoc(feature.__doc__ or '').split('\n')]
        if feature.paper:
            lines.append(f'    paper: {feature.paper}')
        lines += [f'    needs `{other}`: {reason}' for other, reason in feature.needs.items()]
        lines += [f'    not with `{other}`: {reason}' for other, reason in feature.clashes.items()]
    owners = {cls.__name__ for cls in getattr(x_transformers, where).__mro__}
    lines += [f'    measured: {one.as_given()}: {one}' for one in results.measured(owners, name)]
    return '\n'.join(line.rstrip() for line in lines)


def rank_effects() -> Iterator[str]:
    """Yield the lines of the ranking for each size and baseline."""
    yield 'bits per held-out byte, less those of the baseline with the same seed; below zero is better'
    yield from (f'{models}: {text}' for models, text in results.about().items())
    for (models, baseline), ranking in results.rankings().items():
        yield f'\n{models}, {baseline} baseline; * holds at a false discovery rate of 5 %'
        yield f'{"bits, equal steps":>19}   {"equal time":>16}   step  memory  variant'
        for one in ranking:
            bits, timed = f'{one.bits:+.3f} ± {one.half:.3f}', f'{one.timed:+.3f} ± {one.half_timed:.3f}'
            costs = f'{one.step:5.2f}  {one.memory:6.2f}'
            yield f'{"*" if one.holds else " "}{bits:>18}   {timed:>16}  {costs}  {one.variant}'


# Classes with flags, and the prefixes of their flags as keywords of a stack or wrapper.
OWNERS: dict[type[Configurable], str] = {
    x_transformers.Attention: 'attn_',
    x_transformers.FeedForward: 'ff_',
    x_transformers.AttentionLayers: '',
    x_transformers.TransformerWrapper: '',
}


def refusals() -> Iterator[tuple[str, list[str]]]:
    """Yield flags that cannot be combined, as keywords of a stack or wrapper.

    First ('one of', flags) for those that exclude each other, then each flag with those that it excludes.
    """
    for owner, prefix in OWNERS.items():
        choosing: dict[str, list[type[Feature]]] = {}
        for cls in owner.catalogue:
            for stage in cls.runs_at() if cls.flags else ():
                if cls.stages[stage] == 'choice':
                    choosing.setdefault(stage, []).append(cls)
        for group in choosing.values():
            rigid = [cls for cls in group if all(stays_on(cls, other, owner) for other in group)]
            if len(rigid) > 1:
                yield 'one of', [prefix + switch(cls) for cls in rigid]
    for owner, prefix in OWNERS.items():
        for cls in owner.catalogue:
            if cls.clashes:
                yield prefix + switch(cls), [prefix + name for name in cls.clashes]


def stays_on(cls: type[Feature], other: type[Feature], owner: type[Configurable]) -> bool:
    """Return True if a feature stays on if another one is switched on, and neither overrides the other."""
    known = get_flags(owner.catalogue)
    both = {name: known[name].example for name in (switch(cls), switch(other))}
    is_on = cls.is_on({**{name: declared.default for name, declared in known.items()}, **both})
    return is_on and switch(other) not in cls.overridden_by and switch(cls) not in other.overridden_by


def switch(cls: type[Feature]) -> str:
    """Return the flag that switches a feature on."""
    return (cls.switches or tuple(cls.flags))[0]


def main(arguments: list[str]) -> int:
    """Print the table of flags, or explain those whose name holds the given text."""
    rows = table()
    if not arguments:
        for where, name, declared in rows:
            default = 'required' if declared.default is REQUIRED else repr(declared.default)
            print(f'{where:<24} {name:<34} {default:<12} {declared.doc}')
        return 0
    if arguments == ['--helps']:
        print('\n'.join(rank_effects()))
        return 0
    if arguments == ['--refusals']:
        print('\n'.join(f'{flag:<30} {", ".join(others)}' for flag, others in refusals()))
        return 0
    wanted = arguments[0]
    bare = wanted.removeprefix('cross_').removeprefix('attn_').removeprefix('ff_')
    found = [row for row in rows if row[1] in (wanted, bare)] or [row for row in rows if wanted in row[1]]
    if not found:
        print(f'unknown flag `{wanted}`{did_you_mean(wanted, (row[1] for row in rows))}', file=sys.stderr)
        return 2
    print('\n\n'.join(describe(*row) for row in found))
    return 0


if __name__ == '__main__':
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # The reader, such as `head`, has stopped.
        sys.stderr.close()
