"""Approximate search by faiss (optional): clusters of keys rounded to 8 bits.

    index/index.json            which entries are in it, how many clusters a query looks into, checksums of the files
    index/trained.faiss         the clusters
    index/shard-00000-9.faiss   entries of each cluster, up to the one with this number, 2**20 of them; memory-mapped

Shards are written one by one, so that building goes on where it was interrupted, and no more than one is in memory. One
that grows is written beside itself: the other counts until index.json names the new one.
What the index finds are candidates: the store computes their distances from the keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.files import import_optional, read_json, replace_file, sum_file, write_json

FORMAT = 'x-transformers index 1'
SHARD = 2**20
ADDED = 2**14  # keys that are added at once
MOST_CLUSTERS = 2**14
PER_CLUSTER = 64  # keys that a cluster is learned from
CANDIDATES = 1.25  # for each neighbour wanted: rounded keys stand in another order

Blocks = Callable[[int, int], Iterator[Tensor]]  # the keys of entries from one to another, some at a time


def engine() -> ModuleType:
    """Return the faiss package.  Raises ImportError that says what to install."""
    return import_optional('faiss', "`backend='faiss'`", 'faiss')


def clusters_for(entries: int) -> int:
    """Return a power of two near the square root of the number of keys, with enough keys for each cluster."""
    wanted = 2 ** round(math.log2(max(entries, 1)) / 2)
    return max(min(wanted, MOST_CLUSTERS, entries // PER_CLUSTER), 1)


class Index:
    """Index in the folder of a store, which provides its keys by `blocks`."""

    def __init__(self, folder: Path, dim: int, blocks: Blocks) -> None:
        self.folder, self.dim, self.blocks = folder, dim, blocks
        self.faiss = engine()
        self.about = folder / 'index.json'
        self.notes: dict[str, Any] = {'format': FORMAT, 'entries': 0, 'probes': 1, 'files': {}, 'recall': None}
        self.opened: dict[int, Any] = {}
        if self.about.exists():
            found = read_json(self.about, 'an index')
            if found.get('format') != FORMAT or found.keys() != self.notes.keys():
                raise ValueError(f'`{self.about}` is not an index of this version: {found.get("format")!r}')
            self.notes = found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != 'faiss'} | {'opened': {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, faiss=engine())

    @property
    def entries(self) -> int:
        return self.notes['entries']

    def read(self, name: str, flags: int = 0) -> Any:
        path = self.folder / name
        if sum_file(path) != self.notes['files'].get(name):
            raise ValueError(f'`{path}` cannot be read as part of an index, the file is damaged: build it again')
        return self.faiss.read_index(str(path), flags)

    def write(self, index: Any, name: str) -> None:
        with replace_file(self.folder / name) as file:
            self.faiss.write_index(index, self.faiss.PyCallbackIOWriter(file.write))
        self.notes['files'][name] = sum_file(self.folder / name)

    def build(self, entries: int, sample: Callable[[int], Tensor]) -> None:
        """Index the given number of entries. `sample` provides keys to train the clusters."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if 'trained.faiss' not in self.notes['files']:
            clusters = clusters_for(entries)
            trained = self.faiss.index_factory(self.dim, f'IVF{clusters},SQ8')
            trained.train(sample(PER_CLUSTER * clusters).float().numpy())
            self.write(trained, 'trained.faiss')
            write_json(self.notes, self.about)
        # one place for all: new ones between the growing lists of clusters would break memory into pieces
        room = torch.empty(ADDED, self.dim, dtype=torch.float32, device='cpu')
        for start in range(self.entries // SHARD * SHARD, entries, SHARD):
            end = min(start + SHARD, entries)
            if end <= self.entries:
                continue
            shard = self.read('trained.faiss')
            for keys in self.blocks(start, end):
                for part in keys.split(ADDED):
                    shard.add(room[: len(part)].copy_(part).numpy())
            number = start // SHARD
            for old in self.files_of(number):
                del self.notes['files'][old]
            self.write(shard, f'shard-{number:05d}-{end}.faiss')
            self.opened.pop(number, None)
            self.notes['entries'] = end
            self.notes['recall'] = None
            write_json(self.notes, self.about)
            for file in self.folder.glob(f'shard-{number:05d}*.faiss'):
                if file.name not in self.notes['files']:
                    file.unlink(missing_ok=True)

    def files_of(self, number: int) -> list[str]:
        """Return the file names of a shard: one, if it has been written."""
        return [name for name in self.notes['files'] if name.startswith(f'shard-{number:05d}')]

    def shard(self, number: int) -> Any:
        if number not in self.opened:
            name = next(iter(self.files_of(number)), f'shard-{number:05d}.faiss')
            self.opened[number] = self.read(name, self.faiss.IO_FLAG_MMAP)
        return self.opened[number]

    @property
    def clusters(self) -> int:
        return self.shard(0).nlist

    def candidates(self, queries: Tensor, count: int, probes: int | None = None) -> Tensor:
        """Return entries (q, c): the nearest `count` and some more by rounded keys; -1 for none."""
        own, wanted = queries.detach().float().cpu().contiguous().numpy(), math.ceil(count * CANDIDATES) + 8
        found = []
        for number in range(-(-self.entries // SHARD)):
            shard = self.shard(number)
            shard.nprobe = min(probes or self.notes['probes'], shard.nlist)
            distances, index = (torch.from_numpy(t) for t in shard.search(own, min(wanted, shard.ntotal)))
            found.append(
                (distances.masked_fill(index < 0, torch.inf), torch.where(index < 0, -1, index + number * SHARD))
            )
        distances, index = (torch.cat(one, dim=-1) for one in zip(*found, strict=True))
        order = distances.topk(min(wanted, distances.shape[-1]), dim=-1, largest=False, sorted=False).indices
        return index.gather(-1, order).to(queries.device)

    def settle(self, probes: int, recall: float) -> None:
        """Keep how many clusters a query looks into, and what that finds."""
        self.notes.update(probes=probes, recall=recall)
        write_json(self.notes, self.about)
