"""Single wrong lines of the package, one file for each of its packages.

`BUGS` in each file: path in x_transformers -> (arguments of pytest, rows), with a row for each bug: (what goes wrong, code
that is there, code that replaces it). A fourth entry names other tests than those of the file. `mutate.py` runs them;
`test_mutants.py` checks that each still applies to the source as it is.
"""

from importlib import import_module
from pkgutil import iter_modules

BUGS: dict[str, tuple[str, list[tuple[str, ...]]]] = {}
for module in iter_modules(__path__):
    found = import_module(f'{__name__}.{module.name}').BUGS
    if twice := BUGS.keys() & found.keys():
        raise ValueError(f'{module.name} repeats files of other modules: {sorted(twice)}')
    BUGS |= found
