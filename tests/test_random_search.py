"""The random search of `random_search.py` runs, and holds for the same configurations every night."""

import pytest
from random_search import try_one, try_wrapper


@pytest.mark.nightly
@pytest.mark.parametrize('number', range(96))
def test_flags(number):
    words, *configuration = try_one('night', number)
    assert words in ('ok', 'refused'), (words, configuration)


@pytest.mark.nightly
@pytest.mark.parametrize('number', range(48))
def test_wrappers(number):
    words, *configuration = try_wrapper('night', number)
    assert words in ('ok', 'refused'), (words, configuration)
