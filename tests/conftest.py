"""What every test starts from: one thread, fixed seeds, and torch's global settings as they were found."""

import gc
import importlib.util
import os
import random
import zlib

import pytest
import torch
from hypothesis import HealthCheck, settings
from loguru import logger
from sweeps import is_late

from x_transformers.flags import warn_once

# no deadline: a first call compiles and caches, and a busy machine is no failure
settings.register_profile('suite', deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile('explore', settings.get_profile('suite'), print_blob=True)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'suite'))

LONGER = {'costly', 'slow', 'nightly'}
SHARE = 16  # of the further cases of a test the suite runs one in so many
# on tiny tensors a second thread costs more than it saves
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption('--part', metavar='K/N', default='0/1', help='run the K-th of N parts of the tests, from 0 on')


def pytest_configure(config):
    """Let `-k` choose among all cases, and let no run of CI hide tests that need a library they compare with."""
    if config.option.keyword and config.option.markexpr == 'not later':
        config.option.markexpr = 'not slow and not nightly'  # who asks for tests by name means all of their cases
    if os.environ.get('CI') and importlib.util.find_spec('transformers') is None:
        raise pytest.UsageError("CI is set, and `transformers` is not there: pip install -e '.[test-pretrained]'")


def pytest_collection_modifyitems(config, items):
    """Mark the `quick` tests, and those that come `later`.

    Quick is the first case of every test without a mark of `LONGER`. The suite runs these, and of further cases one in
    `SHARE`, or all of a test that is marked `whole`. What is chosen goes by names: every process chooses the same ones.
    """
    seen = set()
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if LONGER & marks:
            item.add_marker('later')
        elif (item.path, item.originalname) not in seen:
            seen.add((item.path, item.originalname))
            item.add_marker('quick')
        elif 'whole' not in marks and is_late(SHARE, 'the suite', item.nodeid):
            item.add_marker('later')
    part, parts = map(int, config.getoption('part').split('/'))
    if not 0 <= part < parts:
        raise pytest.UsageError(f'--part got {part}/{parts}, it must be one of 0/{parts} to {parts - 1}/{parts}')
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == part]


def pytest_collection_finish(session):
    """What collection has made is no garbage, and need not be looked through again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_start():
    """Seed the generators before each test, and undo what it changed in torch's global state."""
    random.seed(0)
    # without a GPU `torch.manual_seed` keeps the call stack for when there is one: a tenth of the time of small tests
    (torch if torch.cuda.is_available() else torch.default_generator).manual_seed(0)
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_default_dtype(dtype)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # which imports the compiler, seconds long
        torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def logged():
    """The warnings that the library logs while the test runs; a text that came before may come again."""
    warn_once.cache_clear()
    texts = []
    sink = logger.add(texts.append, level='WARNING')
    yield texts
    logger.remove(sink)
