"""All tables of the section on speed in `docs/benchmarks.md`, in one run.

    pip install --target ORIGINAL x-transformers==2.31.10
    pip install --target HUGGINGFACE transformers --no-deps
    python benchmarks/table.py --original ORIGINAL [--huggingface HUGGINGFACE] [--compile] [--results results.json]

Without `--compile` that takes minutes. `--groups training,generate` measures a part; `lengths`, `score_flags` and
`efficient` take long, and run only where they are named. With `--results` the parts add up in a file, and all that it
holds is printed. What follows the line of dashes is markdown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from measure import Row, chosen, options_of, parser_of, quartiles

# a group is a script beside this one, with `parser()`, `rows(options)` and `show(rows)`
GROUPS = ('training', 'overhead', 'loss', 'biases', 'generate')
LONG = ('lengths', 'score_flags', 'efficient')


def measure(group: str) -> list[Row]:
    """The rows of a script, with its own defaults and those options of the command line that it knows."""
    script = importlib.import_module(group)
    return script.rows(options_of(script.parser(), known=True))


def noise(rows: Sequence[Row]) -> str:
    """How far apart the quartiles of the ratios of ours lie, at most."""
    widths = []
    for row in rows:
        numbers = row.ratios('ours') or row.values.get('ours')
        if numbers and len(numbers) > 1:
            low, median, high = quartiles(numbers)
            widths.append((high - low) / median)
    return f'{100 * max(widths):.0f} %' if widths else 'unknown'


def machine(options: argparse.Namespace) -> str:
    """One line about where this ran."""
    import torch

    name = torch.cuda.get_device_name() if options.device != 'cpu' else torch.backends.cpu.get_cpu_capability()
    where = f'torch {torch.__version__}, Python {platform.python_version()}, {options.threads} thread(s), {name}'
    return f'{where}, {options.clock} clock'


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument('--groups', help=f'only these of {", ".join(GROUPS + LONG)}, with commas')
    parser.add_argument('--compile', action='store_true', help='add `generate(compile=True)`')
    parser.add_argument('--results', type=Path, help='keep the rows in this file, beside those that it has')
    options = options_of(parser)
    groups = chosen('--groups', options.groups or ','.join(GROUPS), GROUPS + LONG)
    results = options.results
    kept = json.loads(results.read_text()) if results and results.exists() else {}
    for group in groups:
        kept[group] = [asdict(row) for row in measure(group)]
        if results:
            results.write_text(json.dumps(kept, indent=1))
    print('-' * 100)
    shown: list[Row] = []
    for group in filter(kept.get, GROUPS + LONG):
        rows = [Row(**fields) for fields in kept[group]]
        shown += rows
        print(importlib.import_module(group).show(rows), end='\n\n')
    print(f'{machine(options)}; the quartiles of our numbers are at most {noise(shown)} apart.')


if __name__ == '__main__':
    main()
