"""Names of tensors as the row has them: without what wrappers of PyTorch put in front of them, or inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from x_transformers.flags import ConfigError, warn_once
from x_transformers.pretrained.files import Weights
from x_transformers.pretrained.rows import ROWS, Row

# of `torch.compile`, FSDP, activation checkpointing and DeepSpeed
WRAPPERS = re.compile(r'(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.')

AVERAGED = 'n_averaged'  # a count of `torch.optim.swa_utils.AveragedModel`, beside `module.`


def canonical(row: Row, name: str) -> str:
    """Return a name of a file as the row has it, but for the prefix of the base model."""
    name = name.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta', 'LayerNorm.bias')
    for pattern, replacement in row.renames:
        name = re.sub(pattern, replacement, name)
    return name


def without_numbers(name: str) -> str:
    return re.sub(r'\d+|\{[^}]*\}', '#', name)


def names_of(row: Row) -> set[str]:
    """Return the names of all tensors of a row, with `#` for numbers."""
    own = {without_numbers(name) for one in row.links for name in one.theirs}
    return own.union(*(names_of(ROWS[kind]) for _, kind, _ in row.parts.values()))


def knows(row: Row) -> Callable[[str], int]:
    """Return a function that says how well a name of a file fits a tensor of the row: 2, or 1 but for the prefix of the
    base model."""
    known = names_of(row)

    def fit(name: str) -> int:
        new = canonical(row, name)
        if without_numbers(new) in known:
            return 2
        return int(any(without_numbers(n) in known for n in (row.base + new, new.removeprefix(row.base))))

    return fit


def describe_names(row: Row, names: Collection[str]) -> str | None:
    """Return a sentence that says which type has the names of a file, or None if the row knows half of them."""
    other = [name for name in names if not knows(row)(name)]
    if 2 * len(other) <= len(names):
        return None
    fits = {kind: sum(map(knows(one), names)) for kind, one in ROWS.items()}
    best = max(fits, key=lambda kind: fits[kind])
    said = f'those of a {ROWS[best].type}, not' if fits[best] > fits.get(row.type, 0) else 'not those'
    return f'Its names, such as `{min(other)}`, are {said} of a {row.type}'


def common_prefixes(names: Collection[str]) -> list[str]:
    """Return '' and the beginnings that all names share, up to a dot, the shortest first."""
    first, last = (name.split('.')[:-1] for name in (min(names), max(names)))
    same = [a == b for a, b in zip(first, last, strict=False)]
    count = [*same, False].index(False)
    return [''.join(f'{part}.' for part in first[:i]) for i in range(count + 1)]


def strip_prefixes(weights: Weights, fit: Callable[[str], int]) -> str:
    """Rename the tensors of a file whose names all begin with what a row does not know, and log what was removed.

    Returns the beginning that was removed.
    """
    others = weights.files.keys() - {AVERAGED}
    if AVERAGED in weights and all(name.startswith('module.') for name in others):
        del weights.files[AVERAGED]
    names = {name: WRAPPERS.sub('', name) for name in weights.files}
    prefixes = common_prefixes([*names.values()]) if names else ['']
    fits = [sum(fit(name.removeprefix(p)) for name in names.values()) if prefixes[1:] else 0 for p in prefixes]
    prefix = prefixes[fits.index(max(fits))]
    names = {name: new.removeprefix(prefix) for name, new in names.items()}
    if all(name == new for name, new in names.items()):
        return ''
    if len(set(names.values())) < len(names):
        raise ConfigError(f'names of the file, such as `{next(iter(names))}`, differ in the wrappers around them alone')
    name, new = next((name, new) for name, new in names.items() if name != new)
    warn_once(f'names of tensors are read without the wrappers around their modules: `{name}` as `{new}`')
    weights.strip(names)
    return name.removesuffix(new) if name.endswith(new) else prefix
