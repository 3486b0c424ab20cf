"""Files of plain containers of tensors, written whole or not at all, and believed only if their checksum agrees; those
whose name ends with .safetensors in that format instead (`mapped_files.py`).

line        the format, and the SHA-256 of what follows
torch.save  the content
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Mapping
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch

from x_transformers.core.mapped_files import is_mapped, read_mapped, write_mapped
from x_transformers.core.writing import replacing
from x_transformers.flags.maybe import Maybe

T = TypeVar('T')
PIECE = 2**20  # bytes that are read at once


class Hashing:
    """A file that sums up what is written to it. An error is kept for later: torch.save would hide its reason."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.error = file, hashlib.sha256(), None

    def write(self, data: Any) -> int:
        if self.error is None:
            self.digest.update(data)
            try:
                self.file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        pass


def header(kind: str, digest: str) -> bytes:
    return f'{kind} sha256:{digest}\n'.encode()


def write_content(content: dict[str, Any], path: str | os.PathLike[str], kind: str) -> None:
    """Write plain containers of tensors to a file of a kind.  Raises OSError, and leaves what was there before."""
    if is_mapped(path):
        return write_mapped(content, path, kind)
    with replacing(path) as file:
        file.write(header(kind, '0' * 64))
        hashing = Hashing(file)
        torch.save(content, cast('IO[bytes]', hashing))  # of a file it needs `write` and `flush`
        if hashing.error is not None:
            raise hashing.error
        file.seek(0)
        file.write(header(kind, hashing.digest.hexdigest()))


class Rest(io.RawIOBase):
    """What a file holds from here on, as a file: early torch looks for an archive from the beginning."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.file: Any = file
        self.start = file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.file.seek(offset + (self.start if whence == io.SEEK_SET else 0), whence) - self.start

    def tell(self) -> int:
        return self.file.tell() - self.start

    def readinto(self, buffer: Any) -> int:
        return self.file.readinto(buffer)


def read_content(
    path: str | os.PathLike[str],
    device: torch.device | str | None,
    kind: str,
    name: str,
    build: Callable[[dict[str, Any]], T],
    older: Maybe[Mapping[str, Callable[[Any], dict[str, Any]]]] = None,
) -> T:
    """The way back from `write_content`, and what `build` makes of it.

    `older` are kinds that may be there instead, each with what brings its content into the form of `kind`.

    Raises ValueError if the file is of another kind, is damaged, or if `build` refuses it.
    """
    if is_mapped(path):
        content = read_mapped(path, device, kind, name)
        try:
            return build(content)
        except Exception as error:
            raise ValueError(f'`{path}` cannot be read as a {name}: {error}') from error
    with open(path, 'rb') as file:
        known = re.fullmatch(rb'(x-transformers [\w ]+?) sha256:([0-9a-f]{64})\n', file.readline(200))
        found = '' if known is None else known[1].decode()
        if known is not None and found not in (kind, *(older or ())):
            raise ValueError(f'`{path}` is not a {name} of this version: {found!r}, not {kind!r}')
        start, digest = file.tell(), hashlib.sha256()
        while piece := file.read(PIECE):
            digest.update(piece)
        if known is None or digest.hexdigest().encode() != known[2]:
            raise ValueError(
                f'`{path}` cannot be read as a {name}: the file is damaged, of another kind, or without a checksum'
            )
        file.seek(start)
        try:
            content = torch.load(cast('IO[bytes]', Rest(file)), map_location=device, weights_only=True)
            return build(content if found == kind else older[found](content))
        except Exception as error:  # what is no pickle may fail anywhere in the unpickler
            raise ValueError(f'`{path}` cannot be read as a {name}: {error}') from error


# what a file may hold


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def all_are(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A test of lists, or of dicts with texts as keys, by their values."""
    return lambda value: all(map(test, value)) if isinstance(value, list) else (
        isinstance(value, dict) and all(isinstance(k, str) and test(v) for k, v in value.items())
    )  # fmt: skip


def check_fields(content: Any, fields: dict[str, Callable[[Any], bool]], name: str) -> dict[str, Any]:
    """A dict that has these fields and no others.  Raises ValueError that names the first wrong one."""
    if not isinstance(content, dict):
        raise ValueError(f'the {name} is a {type(content).__name__}, it must be a dict')
    for field, test in fields.items():
        if field not in content:
            raise ValueError(f'a part of the {name} is missing: `{field}`')
        if not test(content[field]):
            raise ValueError(f'`{field}` of the {name} got {repr(content[field])[:80]}, which it cannot be')
    if more := sorted(map(str, content.keys() - fields.keys())):
        raise ValueError(f'the {name} has a part that is not known: `{more[0]}`')
    return content
