"""Folders of runs: each belongs to one run at a time, and holds its checkpoints."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from common.options import Stop

# held by the run that writes to a folder; the system lets go of it when the process ends, however it does
LOCK = '.lock'


def checkpoints(out: Path) -> list[Path]:
    """The complete checkpoints in `out`, oldest first."""
    found = [path for path in out.glob('step_*') if re.fullmatch(r'step_\d+', path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def flush(path: Path) -> None:
    """Wait until a file, or the list of the files in a folder, is on the disk."""
    if os.name == 'posix' or path.is_file():
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        os.fsync(handle)
        os.close(handle)


def saved(out: Path) -> str:
    return f'the last checkpoint is {checkpoints(out)[-1]}' if checkpoints(out) else 'nothing was saved yet'


def described(folder: Path) -> dict[str, Any] | None:
    """How the model of a checkpoint is built; None in a checkpoint of the first version of train_lm.py."""
    path = folder / 'config.json'
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def check_out(out: Path) -> None:
    """Refuse to write where something is already. What a killed run left unfinished does not count."""
    if out.exists() and not out.is_dir():
        raise Stop(f'--out {out} is not a folder')
    if out.exists() and any(path.suffix != '.tmp' and path.name != LOCK for path in out.iterdir()):
        advice = 'add --resume to go on with the run in it, or ' if checkpoints(out) else ''
        raise Stop(f'--out {out} is not empty; {advice}choose another folder')


@contextmanager
def claimed(out: Path) -> Iterator[Path]:
    """Hold the folder of a run, so that no other one writes to it.  Raises Stop if one does."""
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Stop(f'--out {out} is in use: another run writes to it') from None
    try:
        yield out
    finally:
        lock.release()


@contextmanager
def new_folder(wanted: str | None, script: str) -> Iterator[Path]:
    """Make the folder of a new run, or the next one that is free, and hold it."""
    numbered = (Path('runs', f'{script}-{number:03d}') for number in itertools.count(1))
    for out in [Path(wanted)] if wanted else numbered:
        try:
            out.mkdir(parents=True, exist_ok=bool(wanted))
        except FileExistsError:
            continue  # another run took that number a moment ago
        with claimed(out):
            check_out(out)
            yield out
        return
