"""Text to learn from: which files are read, what of them is for validation, and sequences from random places."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from common.options import Stop

# the standard library, without its tests and what was installed beside it
SKIPPED = {'site-packages', 'dist-packages', 'test', 'tests', 'idle_test', '__pycache__'}


class Wishes(Protocol):
    """What of a script's configuration is about its text."""

    data: str | None
    max_bytes: int
    seq_len: int
    batch_size: int
    val_windows: int


def files_below(root: Path, suffix: str, skipped: set[str]) -> tuple[list[Path], list[Path]]:
    """The files below `root` in a fixed order, and what is passed over: what is hidden, or no file."""
    found: list[Path] = []
    passed: list[Path] = []
    for folder, inner, names in os.walk(root):
        hidden = [Path(folder, name) for name in (*inner, *names) if name.startswith('.')]
        inner[:] = [name for name in inner if name not in skipped and not name.startswith('.')]
        paths = [Path(folder, name) for name in names if name.endswith(suffix) and not name.startswith('.')]
        found += [path for path in paths if path.is_file()]
        passed += [*hidden, *(path for path in paths if not path.is_file())]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix()), passed


def read_texts(root: Path, paths: list[Path], max_bytes: int) -> tuple[list[bytes], list[Path]]:
    """The bytes of each file, `max_bytes` in all. In a folder, files with a zero byte are taken for binary, and
    passed over: the second list."""
    texts, binary, left = [], [], max_bytes
    for path in paths:
        with path.open('rb') as file:
            text = file.read(left)
        if b'\0' in text and path != root:
            binary.append(path)
            continue
        if b'\0' in text:
            print(f'note: {path} has zero bytes, it may be no text; it is read as it is')
        texts += [text] if text else []
        left -= len(text)
        if left == 0:
            print(f'note: reading ends after {max_bytes:,} bytes, in {path} (--max-bytes)')
            break
    return texts, binary


def note_skipped(root: Path, paths: list[Path], what: str) -> None:
    """Say which paths below `root` are not read."""
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    if names:
        more = f' and {len(names) - 3} more' if len(names) > 3 else ''
        print(f'note: {len(names)} skipped, {what}: {", ".join(names[:3])}{more}')


def read_corpus(config: Wishes) -> tuple[Tensor, Tensor]:
    """The bytes to train on and to validate on, uint8. Of several files every tenth is for validation, of one its end.

    Raises Stop for a path that cannot be read, no text, or less than a sequence of it.
    """
    root = Path(config.data or sysconfig.get_paths()['stdlib'])
    if not (root.is_file() or root.is_dir()):
        raise Stop(f'--data {root} {"is no file or folder" if root.exists() else "does not exist"}')
    suffix, skipped = ('', set()) if config.data else ('.py', SKIPPED)
    paths, passed = ([root], []) if root.is_file() else files_below(root, suffix, skipped)
    try:
        texts, binary = read_texts(root, paths, config.max_bytes)
    except OSError as error:
        raise Stop(f'cannot read {error.filename}: {error.strerror}') from None
    if config.data:
        note_skipped(root, binary, 'with zero bytes, which no text has')
        note_skipped(root, passed, 'hidden or no file')
    if not texts:
        raise Stop(f'there is no text in {root}; name a text file, or a folder with some, with --data')
    if len(texts) == 1:
        cut = len(texts[0]) * 9 // 10
        parts = [texts[0][:cut], texts[0][cut:]]
    else:
        every = min(10, len(texts))
        parts = [b''.join(t for i, t in enumerate(texts) if (i % every == every - 1) == val) for val in (False, True)]
    check_enough(parts, config, 'bytes')
    print(f'data: {len(texts):,} file(s) of {root}, {len(parts[0]):,} bytes to train on, {len(parts[1]):,} to validate')
    # a bytearray, since torch warns of memory that cannot be written
    train, valid = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)
    return train, valid


def check_enough(parts: Sequence[Sized], config: Wishes, unit: str) -> None:
    root = config.data or sysconfig.get_paths()['stdlib']
    for part, name in zip(parts, ('train', 'validate'), strict=True):
        if len(part) < config.seq_len:
            few = f'{root} gives {len(part)} {unit} to {name} on, fewer than one sequence of {config.seq_len}'
            raise Stop(f'{few}; give more text, or shorter sequences with --seq-len')


def random_crops(train: Tensor, config: Wishes, generator: torch.Generator) -> Tensor:
    """A batch of sequences from random places: (batch_size, seq_len)."""
    starts = torch.randint(len(train) - config.seq_len + 1, (config.batch_size, 1), generator=generator)
    return train[starts + torch.arange(config.seq_len)].long()


def fixed_windows(valid: Tensor, config: Wishes) -> Tensor:
    """Evenly spaced sequences that do not overlap, always the same: (up to val_windows, seq_len)."""
    count = min(config.val_windows, len(valid) // config.seq_len)
    starts = torch.arange(count)[:, None] * (len(valid) - config.seq_len) // max(count - 1, 1)
    return valid[starts + torch.arange(config.seq_len)].long()


def printable(text: str) -> str:
    """The text, with a sign in place of what a terminal would not show."""
    return ''.join(c if c.isprintable() or c in '\n\t' else '\N{REPLACEMENT CHARACTER}' for c in text)
