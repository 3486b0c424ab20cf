"""What every test starts from: one thread, fixed seeds, and torch's global settings as they were found."""

import os
import random

import pytest
import torch
from hypothesis import HealthCheck, settings
from loguru import logger

from x_transformers.flags import warn_once

# no deadline: a first call compiles and caches, and a busy machine is no failure
settings.register_profile('suite', deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile('explore', settings.get_profile('suite'), print_blob=True)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'suite'))

# on tiny tensors a second thread costs more than it saves
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_start():
    """Seed the generators before each test, and undo what it changed in torch's global state."""
    random.seed(0)
    torch.manual_seed(0)
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def logged():
    """The warnings that the library logs while the test runs; a text that came before may come again."""
    warn_once.cache_clear()
    texts = []
    sink = logger.add(texts.append, level='WARNING')
    yield texts
    logger.remove(sink)
