"""The scripts in examples/ as modules: their `main` takes arguments and returns an exit code, without a new process."""

import contextlib
import importlib
import sys
from pathlib import Path

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


def call(module, *arguments):
    """The exit code for these arguments."""
    try:
        return module.main([*map(str, arguments)])
    except SystemExit as stop:
        return stop.code
