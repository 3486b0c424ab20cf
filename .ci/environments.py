"""The environments that CI tests, from `environments.csv`: for `.ci/run`, and as the table of the README.

python .ci/environments.py list      # a line each: name, Python, versions, tests, with tabs between
python .ci/environments.py lowest    # the lowest versions that pyproject.toml allows, as arguments of pip
python .ci/environments.py table     # for the README
python .ci/environments.py write     # into the README
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    'suite': 'the test command, and half of the further cases',
    'slow': '1/8 of the slow and 1/96 of the nightly tests',
    'quick': '`pytest -m quick`',
}
BLOCK = re.compile(r'(?<=<!-- environments -->\n).*?(?=\n<!-- /environments -->)', re.DOTALL)
# what the quick tests import
NEEDED = ('torch', 'einops', 'einx', 'loguru', 'packaging', 'pytest', 'pytest-xdist', 'hypothesis', 'safetensors')


def environments() -> list[dict[str, str]]:
    """The rows of the table."""
    with (ROOT / '.ci' / 'environments.csv').open(newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def lowest() -> dict[str, str]:
    """The lowest allowed version of each package that the quick tests need, as pyproject.toml has it."""
    text = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
    found = dict(reversed(re.findall(r"'([a-z-]+)>=([0-9.]+)", text)))  # the first mention counts
    return {name: found[name] for name in NEEDED}


def table() -> str:
    """The environments as a table of Markdown."""
    low = lowest()
    lines = ['| Python | torch | other packages | tests |', '| --- | --- | --- | --- |']
    names = ('einops', 'einx', 'safetensors', 'loguru', 'packaging')
    for row in environments():
        torch, others = 'the newest', 'the newest'
        if row['versions'] == 'lowest':
            torch, others = low['torch'], 'the lowest: ' + ', '.join(f'{name} {low[name]}' for name in names)
        elif row['versions'] != 'newest':
            first, *rest = row['versions'].split()
            torch, others = first.removeprefix('torch=='), ', '.join((*rest, 'else the newest'))
        lines.append(f'| {row["python"]} | {torch} | {others} | {TESTS[row["tests"]]} |')
    return '\n'.join(lines)


def main(what: str) -> None:
    if what == 'list':
        print('\n'.join('\t'.join(row.values()) for row in environments()))
    elif what == 'lowest':
        print(' '.join(f'{name}=={version}' for name, version in lowest().items()))
    elif what == 'table':
        print(table())
    elif what == 'write':
        path = ROOT / 'README.md'
        path.write_text(BLOCK.sub(table(), path.read_text(encoding='utf-8'), count=1), encoding='utf-8')
    else:
        sys.exit(f'{what!r} is none of list, lowest, table, write')


if __name__ == '__main__':
    main(*sys.argv[1:2] or ['table'])
