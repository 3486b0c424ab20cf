"""Texts for a datastore: tokens of files, in overlapping windows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.files import import_optional
from x_transformers.core.plain_text import PlainText
from x_transformers.training.masking import IGNORED

PIECE = 2**20  # bytes of a file that are read at once


def get_tokenizer(folder: Path, num_tokens: int) -> Callable[[bytes], Sequence[int]]:
    """Return a function from bytes to ids, by the tokenizer.json of a checkpoint; without one, bytes are ids.

    raises   ValueError for a model of other ids, ImportError that says what to install
    """
    path = folder / 'tokenizer.json'
    if path.is_file():
        package = import_optional('tokenizers', f'`{path}`', 'tokenizers')
        try:
            tokenizer = package.Tokenizer.from_file(str(path))
        except Exception as error:  # it has no class of its own
            raise ValueError(f'`{path}` is no file of tokenizers: {error}') from error
        plain = PlainText(tokenizer)
        return lambda data: plain.ids(data.decode('utf-8', errors='replace'))
    if num_tokens != 256:
        raise ValueError(
            f'`{folder}` has no tokenizer.json, and its {num_tokens} ids are no bytes: give ids by `build`'
        )
    return list


def lines(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the files, some whole lines at a time, or parts of lines that are too long."""
    for path in paths:
        with open(path, 'rb') as file:
            while piece := file.read(PIECE):
                yield piece + file.readline(PIECE)


def windows(pieces: Iterable[Sequence[int]], length: int, overlap: int) -> Iterator[tuple[list[int], int]]:
    """Yield sequences of `length` ids, and how many of them are only context from the previous one.

    The last row is shorter.
    """
    held: list[int] = []
    known = 0
    for piece in pieces:
        held += piece
        at = 0
        while len(held) - at >= length:
            yield held[at : at + length], known
            known = overlap
            at += length - overlap
        held = held[at:]
    if len(held) > max(known, 1):
        yield held, known


def batches(rows: Iterable[tuple[list[int], int]], size: int) -> Iterator[dict[str, Tensor]]:
    """Yield sequences of equal length, `size` at a time, as `KNNDatastore.build` takes them."""
    for _, group in itertools.groupby(rows, key=lambda row: len(row[0])):
        while part := list(itertools.islice(group, size)):
            yield get_batch(part)


def get_batch(rows: Sequence[tuple[list[int], int]]) -> dict[str, Any]:
    x = torch.tensor([ids for ids, _ in rows])
    labels = x.clone()
    for row, (_, known) in enumerate(rows):
        labels[row, :known] = IGNORED
    return {'x': x, 'labels': labels}
