"""Reference values: several keywords at a time give the numbers that x-transformers 2.31.10 gives, from its weights."""

import pathlib

import pytest
from golden import Golden, build, layout, run

VERSION = '2.31.10'
GOLDEN = Golden(pathlib.Path(__file__).parent / 'data' / 'parity.npz')


def made(case):
    """The class of a case."""
    return case['make'].partition('(')[0]


@pytest.mark.parametrize('kind', dict.fromkeys(map(made, GOLDEN.releases[VERSION].values())))
def test_parity(kind):
    for name, case in GOLDEN.releases[VERSION].items():
        if made(case) == kind:
            model = build(case['make'])
            shapes = [(entry, shape) for entry, shape, _ in GOLDEN.states[case['state']]]
            assert [(entry, shape) for entry, shape, _ in layout(model)] == shapes, name
            model.load_state_dict(GOLDEN.state(VERSION, name), strict=True)
            assert GOLDEN.error(VERSION, name, run(model, case['call'])) < 2e-4, name


def test_there_is_something_to_compare():
    """The recorded cases differ from one another: no keyword was left without effect."""
    cases = GOLDEN.releases[VERSION]
    assert len(cases) >= 60
    first = [tuple(GOLDEN.arrays[case['outputs'][0]].ravel()[:8].round(5)) for case in cases.values()]
    same = {one for one in first if first.count(one) > 1}
    assert not same, [name for name, value in zip(cases, first, strict=True) if value in same]
