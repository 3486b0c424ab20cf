"""Reading and writing of files: whole or not at all, alone or as a set, and containers of tensors with a checksum.

`replace_file` writes one file. `renew_folder` writes a set, such as the config and the weights of a model, into a
folder of its own inside of the target folder. Once all of it is on the disk, that folder gets the name `.new`: from
then on the set counts, and its files move to their places. Readers of a folder ask `StampedFile` where its files are,
also where a process was killed meanwhile.

`write_content` and `read_content` store plain containers of tensors, in one of two formats:

    any name         a line with the format and the SHA-256 of the rest, then the content as `torch.save` writes it
    .safetensors     metadata with `format`, `content` (JSON, in which {'tensor': name} stands for a tensor) and the
                     SHA-256 of that JSON; the tensors are memory-mapped
"""

from __future__ import annotations

import hashlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType
from typing import IO, Any, BinaryIO, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar('T')
PIECE = 2**20  # bytes that are read at once
ENDING = '.safetensors'
NEW, LIST = '.new', 'files.json'
TRIES = 100  # of several processes that write the same set, one after the other
numbers = itertools.count()


def import_optional(name: str, what: str, extra: str) -> ModuleType:
    """Import an optional package that `what` needs.  Raises ImportError that says what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{what} needs `{name}`: pip install 'x-transformers[{extra}]'") from error


# Files that appear as a whole.


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file under another name, which takes the place of `path` once it is written and on the disk.

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
        _sync_to_disk(target.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(target)
        raise


def _sync_to_disk(path: Path) -> None:
    """Wait until a file, or the list of the files of a folder, is on the disk."""
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
def renew_folder(path: str | os.PathLike[str], others: Sequence[str] = ()) -> Iterator[Path]:
    """Open a folder for the files of a new set. They replace those in `path` once all of them are on the disk.

    others   patterns of names that are of the set: files that only the set before had are removed

    raises   OSError, which names `path`. Until the new set is whole, what was there before is left as it was
    """
    folder = Path(path)
    existed = folder.exists()
    unfinished = folder / f'{NEW}.{os.getpid()}-{next(numbers)}.tmp'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _move_into_place(folder)
        _remove_unfinished(folder)
        unfinished.mkdir()
        yield unfinished
        names = sorted(file.name for file in unfinished.iterdir())
        with replace_file(unfinished / LIST) as file:
            file.write(json.dumps({'files': names, 'others': list(others)}).encode())
        for each in (*map(unfinished.joinpath, names), unfinished):
            _sync_to_disk(each)
        publish(unfinished, folder)
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
        _sync_to_disk(folder)
        _move_into_place(folder)
    except OSError as error:  # whoever reads or writes the folder next goes on from here
        raise OSError(error.errno, f'`{folder}` is written, but not all files are in their places: {error}') from error


def publish(unfinished: Path, folder: Path) -> None:
    """Give a set that is on the disk the name by which it counts."""
    for left in reversed(range(TRIES)):
        try:
            return os.rename(unfinished, folder / NEW)
        except OSError:  # another process has written a set meanwhile
            if not left or not (folder / NEW).exists():
                raise
            _move_into_place(folder)
            time.sleep(0.01)


def _move_into_place(folder: Path) -> None:
    """Move the files of a new set, if there is one, to their places."""
    new = folder / NEW
    if not new.is_dir():
        return
    present = StampedFile(folder)
    for file in folder.iterdir():
        if present.is_gone(file.name):
            file.unlink(missing_ok=True)
    for name in present.files:
        with suppress(FileNotFoundError):  # it has moved
            os.replace(new / name, folder / name)
    _sync_to_disk(folder)
    (new / LIST).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        new.rmdir()


def _remove_unfinished(folder: Path) -> None:
    """Remove unfinished sets of processes that were killed."""
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


class StampedFile:
    """Paths of the files of a folder: those of a new set before those that it replaces.  `StampedFile(folder) /
    name`"""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.files: list[str] = []
        self.others: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError):
            about = json.loads((self.folder / NEW / LIST).read_text(encoding='utf-8'))
            self.files, self.others = about['files'], about['others']

    def is_gone(self, name: str) -> bool:
        """Return True if a file is of the previous set only."""
        return name not in self.files and any(fnmatch(name, pattern) for pattern in self.others)

    def __truediv__(self, name: str) -> Path:
        new = self.folder / NEW / name
        if self.is_gone(name):
            return new  # where it is not
        return new if name in self.files and new.exists() else self.folder / name


# JSON.


def read_json(path: Path, name: str) -> dict[str, Any]:
    """Return the dict of a file of JSON.  Raises ValueError if the file is damaged or holds something else."""
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(f'`{path}` cannot be read as {name}, the file is damaged: {error}') from error
    if not isinstance(content, dict):
        raise ValueError(f'`{path}` cannot be read as {name}: it holds a {type(content).__name__}')
    return content


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a dict as a file of JSON."""
    with replace_file(path) as file:
        file.write((json.dumps(content, indent=2, ensure_ascii=False) + '\n').encode())


def sum_file(path: Path) -> str:
    """Return the CRC-32 of a file in hexadecimal digits, and hold little of the file in memory at once."""
    total = 0
    with open(path, 'rb') as file:
        while piece := file.read(PIECE):
            total = zlib.crc32(piece, total)
    return f'{total:08x}'


# Containers of tensors, as torch.save writes them.


class HashingWriter:
    """File that hashes what is written to it. An error is kept for later: torch.save would hide its reason."""

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


class RemainingFile(io.RawIOBase):
    """Rest of a file from its current position, as a file: early torch looks for an archive from the beginning."""

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


def _format_line(kind: str, digest: str) -> bytes:
    return f'{kind} sha256:{digest}\n'.encode()


def write_content(content: dict[str, Any], path: str | os.PathLike[str], kind: str) -> None:
    """Write plain containers of tensors to a file of a kind.  Raises OSError, and leaves what was there before."""
    if _is_mapped(path):
        return _write_mapped(content, path, kind)
    with replace_file(path) as file:
        file.write(_format_line(kind, '0' * 64))
        hashing = HashingWriter(file)
        torch.save(content, cast('IO[bytes]', hashing))  # of a file it needs `write` and `flush`
        if hashing.error is not None:
            raise hashing.error
        file.seek(0)
        file.write(_format_line(kind, hashing.digest.hexdigest()))


def _describe_mismatch(found: Any, kind: str, remedy: str) -> str:
    """Return the two formats in words, with the `remedy` if they are versions of one format."""
    again = f'. {remedy}' if str(found).rpartition(' ')[0] == kind.rpartition(' ')[0] else ''
    return f'{found!r}, not {kind!r}{again}'


def read_content(
    path: str | os.PathLike[str],
    device: torch.device | str | None,
    kind: str,
    name: str,
    build: Callable[[dict[str, Any]], T],
    remedy: str,
) -> T:
    """Read a file of `write_content`, and return what `build` makes of its content.

    Args:
        path: The file.
        device: Device of the tensors. None means where they were.
        kind: Format that the file must have, with a version at its end.
        name: Name of the content, for errors.
        build: Function from the content to the result.
        remedy: Sentence that says how to make the file again. It is part of the error for another version.

    Raises:
        ValueError: The file is of another kind or version, it is damaged, or `build` refuses its content.
    """
    if _is_mapped(path):
        content = read_mapped(path, device, kind, name, remedy)
        try:
            return build(content)
        except Exception as error:
            raise ValueError(f'`{path}` cannot be read as a {name}: {error}') from error
    with open(path, 'rb') as file:
        known = re.fullmatch(rb'(x-transformers [\w ]+?) sha256:([0-9a-f]{64})\n', file.readline(200))
        found = '' if known is None else known[1].decode()
        if known is not None and found != kind:
            raise ValueError(f'`{path}` is not a {name} of this version: {_describe_mismatch(found, kind, remedy)}')
        start, digest = file.tell(), hashlib.sha256()
        while piece := file.read(PIECE):
            digest.update(piece)
        if known is None or digest.hexdigest().encode() != known[2]:
            raise ValueError(
                f'`{path}` cannot be read as a {name}: the file is damaged, of another kind, or without a checksum'
            )
        file.seek(start)
        try:
            return build(torch.load(cast('IO[bytes]', RemainingFile(file)), map_location=device, weights_only=True))
        except Exception as error:  # Data that is no pickle may fail anywhere in the unpickler.
            raise ValueError(f'`{path}` cannot be read as a {name}: {error}') from error


# Containers of tensors in the format of safetensors.


def _is_mapped(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix == ENDING


def safetensors(name: str = 'safetensors') -> ModuleType:
    return import_optional(name, f'a file that ends with {ENDING}', 'pretrained')


def flatten(value: Any, tensors: dict[str, Tensor], name: str = '') -> Any:
    """Return containers in the form of JSON, and collect their tensors by name.  Raises ValueError for other values."""
    if torch.is_tensor(value):
        tensors[name] = value.detach()
        return {'tensor': name}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f'`{name}` has keys that are no texts, which {ENDING} files cannot hold')
        return {'dict': {key: flatten(one, tensors, f'{name}.{key}' if name else key) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        kind = 'tuple' if isinstance(value, tuple) else 'list'
        return {kind: [flatten(one, tensors, f'{name}.{at}') for at, one in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {'value': value}
    raise ValueError(f'`{name}` got {type(value).__name__}, which cannot be saved: tensors and numbers can')


def rebuild(form: dict[str, Any], tensors: Callable[[str], Tensor]) -> Any:
    """Undo `flatten`."""
    ((kind, value),) = form.items()
    if kind == 'tensor':
        return tensors(value)
    if kind == 'dict':
        return {key: rebuild(one, tensors) for key, one in value.items()}
    if kind in ('list', 'tuple'):
        several = [rebuild(one, tensors) for one in value]
        return tuple(several) if kind == 'tuple' else several
    return value


def _write_mapped(content: dict[str, Any], path: str | os.PathLike[str], kind: str) -> None:
    """Write plain containers of tensors as a file of safetensors."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(flatten(content, tensors))
    own, seen = {}, set()
    for name, t in tensors.items():  # no two may share memory
        held = t.cpu().contiguous()
        place = held.untyped_storage().data_ptr()
        own[name] = held.clone() if place in seen or held.untyped_storage().nbytes() > held.nbytes else held
        seen.add(own[name].untyped_storage().data_ptr())
    digest = hashlib.sha256(text.encode()).hexdigest()
    data = safetensors('safetensors.torch').save(own, {'format': kind, 'content': text, 'sha256': digest})
    with replace_file(path) as file:
        file.write(data)


def read_mapped(
    path: str | os.PathLike[str], device: torch.device | str | None, kind: str, name: str, remedy: str = ''
) -> Any:
    """Read a file of safetensors of this kind. Its tensors are memory-mapped.

    raises   ValueError if the file is cut short, of another kind, or its header is damaged; the numbers of tensors are
             not summed up, which would read them
    """
    package = safetensors()
    try:
        with package.safe_open(path, framework='pt', device='cpu' if device is None else str(device)) as file:
            about = file.metadata() or {}
            if about.get('format') != kind:
                raise ValueError(f'it is {_describe_mismatch(about.get("format"), kind, remedy)}')
            text = about.get('content', '')
            if hashlib.sha256(text.encode()).hexdigest() != about.get('sha256'):
                raise ValueError('its header is damaged')
            return rebuild(json.loads(text), file.get_tensor)
    except (package.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f'`{path}` cannot be read as a {name}: {error}') from error


# Fields of a content.


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def all_are(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test of lists, or of dicts with texts as keys, that applies `test` to their values."""
    return lambda value: all(map(test, value)) if isinstance(value, list) else (
        isinstance(value, dict) and all(isinstance(k, str) and test(v) for k, v in value.items())
    )  # fmt: skip


def check_fields(content: Any, fields: dict[str, Callable[[Any], bool]], name: str) -> dict[str, Any]:
    """Return a dict that has these fields and no others.  Raises ValueError that names the first wrong one."""
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
