"""The bugs on purpose still are bugs of the source as it is, and those who put them in can."""

import ast

import pytest
from mutants import BUGS
from mutate import ROOT, bugs, outcome, with_bug

ALL = list(bugs())
EVERY_MODULE = {path.relative_to(ROOT / 'x_transformers').as_posix() for path in ROOT.glob('x_transformers/**/*.py')}
# nothing but names and tables, each entry of which has a test of its own
WITHOUT = {
    *(name for name in EVERY_MODULE if name.endswith('__init__.py')),
    'compat/names.py',
    'kernels/merging.py',
    'schedules.py',
    'memory/__main__.py',
    'memory/index.py',  # needs faiss
    'features/catalogue.py',
    'features/levels.py',
}


def test_every_bug_still_applies():
    for bug in ALL:
        text = (ROOT / 'x_transformers' / bug.file).read_text(encoding='utf-8')
        assert with_bug(bug, text) != text, bug
        for name in bug.tests:
            path, _, test = name.partition('::')
            assert path.startswith('-') or (ROOT / path).exists(), path
            assert not test or f'def {test}(' in (ROOT / path).read_text(encoding='utf-8'), name


@pytest.mark.slow
@pytest.mark.parametrize('file', BUGS)
def test_every_bug_can_be_read(file):
    """It is an error of meaning, which no parser finds."""
    text = (ROOT / 'x_transformers' / file).read_text(encoding='utf-8')
    right = ast.dump(ast.parse(text))
    for bug in (bug for bug in ALL if bug.file == file):
        assert ast.dump(ast.parse(with_bug(bug, text))) != right, bug


def test_every_room_has_bugs():
    assert EVERY_MODULE - {bug.file for bug in ALL} <= WITHOUT
    assert len({(bug.file, bug.words) for bug in ALL}) == len(ALL) >= 100


@pytest.mark.parametrize(('found', 'code'), [('killed', 1), ('survived', 0), ('broken', 4)])
def test_outcomes(found, code, tmp_path, monkeypatch):
    """The source is wrong while the tests run, and right again afterwards."""
    bug = ALL[0]
    path = tmp_path / 'x_transformers' / bug.file
    path.parent.mkdir(parents=True)
    text = (ROOT / 'x_transformers' / bug.file).read_text(encoding='utf-8')
    path.write_text(text)
    seen = []

    def run(command, cwd, **_):
        seen.append((command[-len(bug.tests) :], cwd, path.read_text()))
        return type('Done', (), {'returncode': code})

    monkeypatch.setattr('mutate.subprocess.run', run)
    assert outcome(bug, tmp_path, 1.0) == found
    assert seen == [([*bug.tests], tmp_path, with_bug(bug, text))]
    assert path.read_text() == text
