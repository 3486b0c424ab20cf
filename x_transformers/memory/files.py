"""The files of a datastore: blocks of keys and values as safetensors, which are memory-mapped, and what all share.

    store.json                   sizes, and whose keys they are
    block-00000000.safetensors   values n (int32), keys n d; a checksum of both in its metadata

A file appears as a whole or not at all, so that an interrupted process loses what it had not written yet and no more.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.writing import replacing

FORMAT = 'x-transformers datastore 1'
NAMES = {torch.float16: 'F16', torch.bfloat16: 'BF16', torch.float32: 'F32', torch.int32: 'I32'}
TYPES = {name: dtype for dtype, name in NAMES.items()}
PIECE = 2**20  # bytes that are summed up at once
LARGEST_HEADER = 2**20


def bytes_of(t: Tensor) -> memoryview:
    held: Any = t.contiguous().flatten().view(torch.uint8).numpy()
    return memoryview(held)


def checksum(data: memoryview) -> str:
    total = 0
    for at in range(0, len(data), PIECE):
        total = zlib.crc32(data[at : at + PIECE], total)
    return f'{total:08x}'


def checksum_of(path: Path) -> str:
    """That of a whole file, of which little is in memory at once."""
    total = 0
    with open(path, 'rb') as file:
        while piece := file.read(PIECE):
            total = zlib.crc32(piece, total)
    return f'{total:08x}'


def write_json(content: Mapping[str, Any], path: Path) -> None:
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b'\n')


def read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except ValueError as error:
        raise ValueError(f'`{path}` cannot be read as {what}, the file is damaged: {error}') from error
    if not isinstance(content, dict):
        raise ValueError(f'`{path}` cannot be read as {what}: it holds a {type(content).__name__}')
    return content


def write_block(path: Path, keys: Tensor, values: Tensor) -> None:
    """Write keys (n d) and values (n), atomically: it is on the disk when this returns."""
    # whole numbers stand first, so that both begin at a multiple of their width
    parts = {'values': values, 'keys': keys}
    data, header, at = {name: bytes_of(t) for name, t in parts.items()}, {}, 0
    for name, t in parts.items():
        end = at + len(data[name])
        header[name] = {'dtype': NAMES[t.dtype], 'shape': list(t.shape), 'data_offsets': [at, end]}
        at = end
    total = zlib.crc32(data['keys'], zlib.crc32(data['values']))
    text = json.dumps({'__metadata__': {'format': FORMAT, 'crc32': f'{total:08x}'}, **header}).encode()
    text += b' ' * (-len(text) % 8)
    with replacing(path) as file:
        file.write(len(text).to_bytes(8, 'little') + text)
        for part in data.values():
            file.write(part)


class Block:
    """A block on the disk, memory-mapped: `keys` n d, `values` n.

    Raises ValueError if the file is damaged, or is of another width or type. `verify` looks at every byte.
    """

    def __init__(self, path: Path, dim: int, dtype: torch.dtype) -> None:
        self.path = path
        with open(path, 'rb') as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise self.damaged('it is too short')
            # a private mapping: tensors of a read-only one could not be made without a warning
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        length = int.from_bytes(self.map[:8], 'little')
        if not 0 < length <= min(size - 8, LARGEST_HEADER):
            raise self.damaged('its header does not fit')
        self.data = memoryview(self.map)[8 + length :]
        try:
            header = json.loads(self.map[8 : 8 + length])
            self.crc32 = header['__metadata__']['crc32']
            self.values, self.keys = (self.part(header[name], 8 + length) for name in ('values', 'keys'))
        except (KeyError, TypeError, ValueError) as error:
            raise self.damaged(str(error)) from error
        if self.keys.shape != (len(self.values), dim) or self.keys.dtype != dtype or self.values.dtype != torch.int32:
            shapes = f'keys {tuple(self.keys.shape)} of {self.keys.dtype}, values {tuple(self.values.shape)}'
            raise self.damaged(f'it holds {shapes}, the store is of width {dim} and {dtype}')
        if 4 * len(self.values) + self.keys.nbytes != len(self.data):
            raise self.damaged('its length is not that of its content')

    def part(self, entry: Mapping[str, Any], start: int) -> Tensor:
        (at, end), shape, dtype = entry['data_offsets'], entry['shape'], TYPES[entry['dtype']]
        count = 1
        for length in shape:
            count *= length
        if at < 0 or end - at != count * dtype.itemsize or start + end > len(self.map):
            raise ValueError('it ends before its content does')
        return torch.frombuffer(self.map, dtype=dtype, count=count, offset=start + at).view(shape)

    def damaged(self, why: str) -> ValueError:
        return ValueError(f'`{self.path}` cannot be read as a block of a datastore, the file is damaged: {why}')

    def __len__(self) -> int:
        return len(self.values)

    def verify(self) -> None:
        """Raises ValueError if any byte is another than was written."""
        if checksum(self.data) != self.crc32:
            raise self.damaged('its checksum does not agree')

    def release(self) -> None:
        """Let go of the memory that was read; what is asked for again is read again."""
        with contextlib.suppress(AttributeError, OSError, ValueError):  # not on every system
            self.map.madvise(mmap.MADV_DONTNEED)
