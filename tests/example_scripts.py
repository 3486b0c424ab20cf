"""The scripts in examples/ as modules: their `main` takes arguments and returns an exit code, without a new process.

A test file that imports this one is skipped where what the scripts need is not installed.
"""

import contextlib
import importlib
import signal
import sys
from pathlib import Path

import pytest

for package in ('matplotlib', 'tqdm', 'filelock', 'safetensors'):
    pytest.importorskip(package, reason='needs x-transformers[examples]')

FOLDER = Path(__file__).resolve().parents[1] / 'examples'


@contextlib.contextmanager
def script(name):
    """One of them, which finds `common` beside it; both are forgotten afterwards."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))
        for module in [module for module in sys.modules if module == name or module.split('.')[0] == 'common']:
            del sys.modules[module]


@contextlib.contextmanager
def usual_signals():
    """A run that fails inside this process leaves its handlers behind."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def call(module, *arguments):
    """The exit code for these arguments."""
    try:
        return module.main([*map(str, arguments)])
    except SystemExit as stop:
        return stop.code
