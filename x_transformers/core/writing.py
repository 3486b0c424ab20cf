"""Files that are written whole or not at all."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

numbers = itertools.count()


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file under another name, which takes the place of `path` once it is written, and on the disk."""
    target = Path(path)
    temporary = target.with_name(f'{target.name}.{os.getpid()}-{next(numbers)}.tmp')
    try:
        with open(temporary, 'xb') as file:  # with the usual permissions, which those of tempfile are not
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
