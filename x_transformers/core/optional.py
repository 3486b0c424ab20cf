"""Packages that are no dependency of the library, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType


def needed(name: str, what: str, extra: str) -> ModuleType:
    """An optional package, which `what` needs.  Raises ImportError that says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{what} needs `{name}`: pip install 'x-transformers[{extra}]'") from error
