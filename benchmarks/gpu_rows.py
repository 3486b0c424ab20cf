"""Rows of `gpu.py`, and their files in `results/gpu/`."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from measure import ROOT

RESULTS = ROOT / 'benchmarks' / 'results' / 'gpu'
STAGES = ('correct', 'training', 'decoding', 'features', 'serving')


@dataclass(frozen=True)
class Row:
    """One measurement. `value` is a median with its quartiles, `note` says why there is none."""

    stage: str
    device: str
    torch: str
    commit: str
    work: str
    column: str
    unit: str = ''
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None  # what the device allows, in `unit`
    memory: float | None = None  # peak, MiB
    p50: float | None = None  # seconds
    p99: float | None = None
    prepared: float | None = None  # seconds to build, compile and run once
    note: str = ''

    @property
    def key(self) -> tuple[str, ...]:
        return self.device, self.torch, self.commit, self.work, self.column


def read(folder: Path, stages: Sequence[str] = STAGES) -> list[Row]:
    """All rows of a folder, in the order in which they were measured."""
    rows = []
    for stage in stages:
        path = folder / f'{stage}.csv'
        if path.exists():
            with path.open(newline='', encoding='utf-8') as file:
                rows += [row_from_text(line) for line in csv.DictReader(file)]
    return rows


def row_from_text(line: dict[str, str]) -> Row:
    """The row of a line; empty cells of numbers are None."""
    numbers = {f.name for f in fields(Row) if 'float' in str(f.type)}
    return Row(**{k: (float(v) if v else None) if k in numbers else v for k, v in line.items()})


def append(folder: Path, row: Row) -> None:
    """Add a row to the file of its stage."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f'{row.stage}.csv'
    begun = path.exists()
    with path.open('a', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        if not begun:
            writer.writeheader()
        numbers = {k: f'{v:.6g}' if isinstance(v, float) else v for k, v in asdict(row).items()}
        writer.writerow({k: '' if v is None else v for k, v in numbers.items()})


def latest(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], Row]:
    """The last row of each (stage, device, work, column): those of newer commits come later."""
    return {(row.stage, row.device, row.work, row.column): row for row in rows}
