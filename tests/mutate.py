"""Bugs on purpose: does any test notice a single wrong line?

    python tests/mutate.py                   every bug of `mutants/`, one after the other
    python tests/mutate.py cache 'stop'      those whose file or words hold one of these texts
    python tests/mutate.py --list            what there is, without running anything

Each bug is put into a copy of the working tree, and the tests that one would expect to notice run there until the first
failure. Nothing outside of the copy changes. The exit status is the number of bugs that nobody noticed.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mutants import BUGS

ROOT = Path(__file__).parent.parent
# Rows whose tests are slow name them by a mark, which counts then.
OPTIONS = ('-q', '-x', '-p', 'no:cacheprovider', '-p', 'no:randomly', '-m', 'not slow and not nightly')
COPIED = ('x_transformers', 'tests', 'examples', 'benchmarks', 'docs', 'pyproject.toml', 'README.md', 'CHANGELOG.md')


class Bug(NamedTuple):
    """One wrong line: in `file`, `old` becomes `new`; `tests` are arguments of pytest."""

    file: str
    words: str
    old: str
    new: str
    tests: tuple[str, ...]


def bugs() -> Iterator[Bug]:
    for file, (tests, rows) in BUGS.items():
        for words, old, new, *own in rows:
            chosen = (own[0] if own else tests).split()
            yield Bug(file, words, old, new, tuple(t if t.startswith('-') else f'tests/{t}' for t in chosen))


def with_bug(bug: Bug, text: str) -> str:
    """The source with the bug in it.  Raises ValueError if it stands nowhere, or at several places."""
    if text.count(bug.old) != 1:
        raise ValueError(f'{bug.file}: {bug.words!r} is to change what stands there {text.count(bug.old)} times')
    return text.replace(bug.old, bug.new)


def outcome(bug: Bug, root: Path, timeout: float) -> str:
    """'killed' by a failing test, 'hangs', which is noticed as well, 'survived', or 'broken': no test has run."""
    path = root / 'x_transformers' / bug.file
    text = path.read_text(encoding='utf-8')
    path.write_text(with_bug(bug, text), encoding='utf-8')
    command = [sys.executable, '-m', 'pytest', *OPTIONS, *bug.tests]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return 'hangs'
    finally:
        path.write_text(text, encoding='utf-8')
    return {0: 'survived', 1: 'killed', 2: 'killed'}.get(done.returncode, 'broken')


def copy_to(folder: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns('__pycache__'))
        elif source.exists():
            shutil.copy(source, folder / name)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('texts', nargs='*', help='only bugs whose file or words hold one of these')
    parser.add_argument('--list', action='store_true', help='print the bugs and run nothing')
    parser.add_argument('--timeout', type=float, default=300, help='seconds for the tests of one bug')
    given = parser.parse_args()
    chosen = [bug for bug in bugs() if not given.texts or any(t in f'{bug.file}: {bug.words}' for t in given.texts)]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        root = copy_to(Path(folder))
        for bug in chosen:
            start = time.monotonic()
            found = '' if given.list else outcome(bug, root, given.timeout)
            survived += found in ('survived', 'broken')
            seconds = '' if given.list else f'{time.monotonic() - start:6.1f} s'
            print(f'{found:9}{seconds} {bug.file}: {bug.words}', flush=True)
    print(f'{len(chosen)} bugs' + ('' if given.list else f', {survived} not noticed'))
    return survived


if __name__ == '__main__':
    sys.exit(main())
