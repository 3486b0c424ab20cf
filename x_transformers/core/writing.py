"""Files that are written whole or not at all, alone (`replacing`) or as a set (`renewing`).

A set, such as the config and the weights of a model, is written into a folder of its own inside of that in which it
belongs. Once all of it is on the disk, that folder gets the name `.new`: from then on the set counts, and its files
move to their places. Who reads a folder asks `Present` where its files are, also where a process was killed meanwhile.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

NEW, LIST = '.new', 'files.json'
TRIES = 100  # of several processes that write the same set, one after the other
numbers = itertools.count()


def flush(path: Path) -> None:
    """Wait until a file, or what a folder says of its files, is on the disk."""
    if path.is_dir():
        if os.name == 'nt':  # which opens no folders
            return
        held = os.open(path, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)
    else:
        with open(path, 'rb+') as file:
            os.fsync(file.fileno())


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file under another name, which takes the place of `path` once it is written, and on the disk.

    raises   OSError, which names `path`, and leaves what was there before
    """
    target = Path(path)
    temporary = target.with_name(f'{target.name}.{os.getpid()}-{next(numbers)}.tmp')
    try:
        with open(temporary, 'xb') as file:  # with the usual permissions, which those of tempfile are not
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        flush(target.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(target)
        raise


@contextmanager
def renewing(path: str | os.PathLike[str], others: Sequence[str] = ()) -> Iterator[Path]:
    """A folder for the files of a new set, which take the places of those in `path` once all of them are on the disk.

    others   patterns of names that are of the set: files that only the set before had are removed

    raises   OSError, which names `path`. Until the new set is whole, what was there before is left as it was
    """
    folder = Path(path)
    existed = folder.exists()
    unfinished = folder / f'{NEW}.{os.getpid()}-{next(numbers)}.tmp'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settle(folder)
        remove_left(folder)
        unfinished.mkdir()
        yield unfinished
        names = sorted(file.name for file in unfinished.iterdir())
        with replacing(unfinished / LIST) as file:
            file.write(json.dumps({'files': names, 'others': list(others)}).encode())
        for each in (*map(unfinished.joinpath, names), unfinished):
            flush(each)
        commit(unfinished, folder)
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not existed:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError) and error.errno is not None:
            words = f'`{folder}` cannot be written, what it held is left as it was: {error}'
            raise OSError(error.errno, words) from error
        raise
    try:
        flush(folder)
        settle(folder)
    except OSError as error:  # whoever reads or writes the folder next goes on from here
        raise OSError(error.errno, f'`{folder}` is written, but not all files are in their places: {error}') from error


def commit(unfinished: Path, folder: Path) -> None:
    """Let a set count that is on the disk."""
    for left in reversed(range(TRIES)):
        try:
            return os.rename(unfinished, folder / NEW)
        except OSError:  # another process has written a set meanwhile
            if not left or not (folder / NEW).exists():
                raise
            settle(folder)
            time.sleep(0.01)


def settle(folder: Path) -> None:
    """Move the files of a new set, if there is one, to their places."""
    new = folder / NEW
    if not new.is_dir():
        return
    present = Present(folder)
    for file in folder.iterdir():
        if present.is_gone(file.name):
            file.unlink(missing_ok=True)
    for name in present.files:
        with suppress(FileNotFoundError):  # it has moved
            os.replace(new / name, folder / name)
    flush(folder)
    (new / LIST).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        new.rmdir()


def remove_left(folder: Path) -> None:
    """Remove what processes left that were killed before their set was whole."""
    for left in folder.glob(f'{NEW}.*.tmp'):
        process = left.name.removeprefix(f'{NEW}.').partition('-')[0]
        if process.isdigit() and not is_running(int(process)):
            shutil.rmtree(left, ignore_errors=True)


def is_running(process: int) -> bool:
    if os.name == 'nt':  # where a signal of 0 would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


class Present:
    """Where the files of a folder are: those of a new set before those that it replaces.  `Present(folder) / name`"""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.files: list[str] = []
        self.others: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            about = json.loads((self.folder / NEW / LIST).read_text(encoding='utf-8'))
            self.files, self.others = about['files'], about['others']

    def is_gone(self, name: str) -> bool:
        """Whether a file is of the set before alone."""
        return name not in self.files and any(fnmatch(name, pattern) for pattern in self.others)

    def __truediv__(self, name: str) -> Path:
        new = self.folder / NEW / name
        if self.is_gone(name):
            return new  # where it is not
        return new if name in self.files and new.exists() else self.folder / name
