"""Which parameters of a test are for the suite, and which are left to the night."""

import contextlib
import itertools
import zlib

import pytest


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


def is_late(share, law, case):
    """Whether a case is for the night, where the suite tries one case in `share`, in each law another."""
    return zlib.crc32(f'{law} {case}'.encode()) % share != 0


def some(first, *others):
    """One parameter for the suite, the others for the night."""
    return [first, *map(nightly, others)]


def every_third(combinations):
    """Of combinations in order."""
    return [each if at % 3 == 0 else nightly(*each) for at, each in enumerate(combinations)]


def crossed(first, *others):
    """All combinations: each of the first with one of each other in turns, the rest for the night.

    A value that stands twice has two turns: lengths without a common divisor bring every value together with all.
    """
    chosen = [(one, *(other[at % len(other)] for other in others)) for at, one in enumerate(first)]
    others = [[value for at, value in enumerate(other) if value not in other[:at]] for other in others]
    every = [(one, *rest) for one in first for rest in itertools.product(*others)]
    return [each if each in chosen else nightly(*each) for each in every]


@contextlib.contextmanager
def naming(what):
    """Say at which of many things a test fails, where each is too small for a test of its own."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f'at {what}: {type(error).__name__}: {error}') from error
