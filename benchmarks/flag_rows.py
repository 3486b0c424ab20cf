"""Rows of `which_flag_helps.py`, their files in `results/SIZES/`, and the sizes of its models."""

from __future__ import annotations

import csv
import math
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from flag_variants import BASELINES, BY_NAME, SEQ_LEN
from measure import ROOT

RESULTS = ROOT / 'benchmarks' / 'results'


@dataclass
class Row:
    """One run: a model that was trained once, or whose costs were measured."""

    stage: str
    baseline: str
    variant: str = ''  # names, with ` + ` between them; nothing for the baseline itself
    seed: int = 0
    steps: int = 0
    rate: float = 0.0
    bits: float = math.nan  # per held-out byte, at the end
    length: int = SEQ_LEN  # of the sequences that `bits` is of
    seconds: float = math.nan  # of the processor, for training
    step_ms: float = math.nan  # these four times and sizes beside those of the baseline, as ratios
    step: float = math.nan
    memory: float = math.nan
    token: float = math.nan
    parameters: int = 0
    refused: str = ''
    version: str = ''
    torch: str = torch.__version__
    machine: str = ''
    text: str = ''  # of what bytes: the beginning of their hash
    day: str = field(default_factory=lambda: time.strftime('%Y-%m-%d'))


# rows on disk


def read(folder: Path) -> list[Row]:
    """All rows of all files, without a line that was cut off while it was written."""
    kinds = {one.name: type(one.default) for one in fields(Row) if one.name not in ('stage', 'baseline', 'day')}
    found = []
    for file in sorted(folder.glob('*.csv')):
        with file.open(newline='') as lines:
            for line in csv.DictReader(lines):
                if None not in line.values():
                    found.append(Row(**{name: kinds.get(name, str)(text) for name, text in line.items()}))
    return found


def append(folder: Path, row: Row) -> None:
    """Add a row to the file of its stage, on a line of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    file, names = folder / f'{row.stage}.csv', [one.name for one in fields(Row)]
    new = not file.exists()
    cut = not new and not file.read_bytes().endswith(b'\n')
    with file.open('a', newline='') as lines:
        if cut:
            lines.write('\n')
        writer = csv.DictWriter(lines, names, lineterminator='\n')
        if new:
            writer.writeheader()
        writer.writerow(
            {name: f'{value:.6g}' if isinstance(value, float) else value for name, value in asdict(row).items()}
        )


@dataclass(frozen=True)
class Sizes:
    """Of all models, and of their training."""

    dim: int = 48
    depth: int = 3
    heads: int = 2
    batch: int = 2
    steps: int = 700
    held_out: int = 256
    bytes: int = 20_000_000
    seq_len: int = SEQ_LEN
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    rounds: int = 5  # of costs
    device: str = 'cpu'
    data: str | None = None

    @property
    def dim_head(self) -> int:
        return self.dim // self.heads


SIZES = {
    'small': Sizes(),
    '4M': Sizes(256, 4, 4, 16, 1000, 512, rates=(1e-3, 2e-3, 4e-3), rounds=3),
    '50M': Sizes(640, 8, 10, 32, 600, 512, rates=(5e-4, 1e-3, 2e-3), rounds=3),
    'tiny': Sizes(32, 1, 2, 2, 4, 4, 10**5, rates=(1e-3, 2e-3)),
}


def keywords_of(baseline: str, names: str, sizes: Sizes) -> dict[str, Any]:
    """The keywords of a baseline with some variants."""
    found = dict(BASELINES[baseline])
    for name in filter(None, names.split(' + ')):
        found.update(BY_NAME[name].flags)
    return {name: value(sizes) if callable(value) else value for name, value in found.items()}
