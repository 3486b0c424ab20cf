"""Approximate search by faiss, hnswlib or ScaNN (all optional).

    index/index.json            which entries are in it, how far a query looks, checksums of the files
    index/trained.faiss         clusters of keys, of faiss
    index/shard-00000-9.faiss   entries of each cluster, up to the one with this number, 2**20 of them; memory-mapped

Shards are written one by one, so that building goes on where it was interrupted, and no more than one is in memory. One
that grows is written beside itself: the other counts until index.json names the new one.
What the index finds are candidates: the store computes their distances from the keys.
"""

from __future__ import annotations

import io
import math
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.files import import_optional, read_json, replace_file, sum_file, write_json

FORMAT = 'x-transformers index 1'
SHARD = 2**20
ADDED = 2**14  # keys that are added at once
MOST_CLUSTERS = 2**14
PER_CLUSTER = 64  # keys that a cluster is learned from
CANDIDATES = 1.25  # for each neighbour wanted: rounded keys stand in another order

Blocks = Callable[[int, int], Iterator[Tensor]]  # the keys of entries from one to another, some at a time


def clusters_for(entries: int) -> int:
    """Return a power of two near the square root of the number of keys, with enough keys for each cluster."""
    wanted = 2 ** round(math.log2(max(entries, 1)) / 2)
    return max(min(wanted, MOST_CLUSTERS, entries // PER_CLUSTER), 1)


class Engine:
    """Package that searches, with a shard of keys as its own object. Keys and queries are arrays of float32.

    learn(keys, clusters)         an empty shard with clusters, for packages with `learns`
    make(empty, parts, count)     a shard of keys, given in parts (n, d)
    save(shard, file), load(path, is_mapped), most_probes(shard)
    ask(shard, queries, count, probes)   distances and entries (q, at most count), -1 for none; more probes find more

    Keys of 'cosine' are unit vectors, whose nearest by 'l2' they are.
    """

    package, extra, learns = '', '', False

    def __init__(self, dim: int, metric: str) -> None:
        self.dim, self.metric = dim, 'ip' if metric == 'ip' else 'l2'
        self.module: ModuleType = import_optional(self.package, f'`backend={self.extra!r}`', self.extra)


class FaissEngine(Engine):
    """Clusters of keys rounded to 8 bits. A probe is a cluster."""

    package, extra, learns = 'faiss', 'faiss', True

    def learn(self, keys: Any, clusters: int) -> Any:
        kind = self.module.METRIC_INNER_PRODUCT if self.metric == 'ip' else self.module.METRIC_L2
        empty = self.module.index_factory(self.dim, f'IVF{clusters},SQ8', kind)
        empty.train(keys)
        return empty

    def make(self, empty: Any, parts: Iterator[Any], count: int) -> Any:
        for part in parts:
            empty.add(part)
        return empty

    def save(self, shard: Any, file: Any) -> None:
        self.module.write_index(shard, self.module.PyCallbackIOWriter(file.write))

    def load(self, path: Path, is_mapped: bool) -> Any:
        return self.module.read_index(str(path), self.module.IO_FLAG_MMAP if is_mapped else 0)

    def most_probes(self, shard: Any) -> int:
        return shard.nlist

    def ask(self, shard: Any, queries: Any, count: int, probes: int) -> tuple[Any, Any]:
        shard.nprobe = min(probes, shard.nlist)
        distances, index = shard.search(queries, min(count, shard.ntotal))
        return (-distances if self.metric == 'ip' else distances), index


class HnswlibEngine(Engine):
    """Graph of near keys in layers (arXiv:1603.09320). A probe is one candidate per neighbour that is asked for."""

    package, extra = 'hnswlib', 'hnswlib'
    links, at_building, most = 16, 128, 64

    def make(self, empty: Any, parts: Iterator[Any], count: int) -> Any:
        shard = self.module.Index(self.metric, self.dim)
        shard.init_index(count, M=self.links, ef_construction=self.at_building)
        for part in parts:
            shard.add_items(part)
        return shard

    def save(self, shard: Any, file: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shard.save_index(f'{folder}/shard')
            file.write(Path(folder, 'shard').read_bytes())

    def load(self, path: Path, is_mapped: bool) -> Any:
        shard = self.module.Index(self.metric, self.dim)
        shard.load_index(str(path))
        return shard

    def most_probes(self, shard: Any) -> int:
        return self.most

    def ask(self, shard: Any, queries: Any, count: int, probes: int) -> tuple[Any, Any]:
        count = min(count, shard.element_count)
        shard.set_ef(max(count * probes, self.at_building))
        index, distances = shard.knn_query(queries, count)
        return distances, index.astype('int64')


class ScannEngine(Engine):
    """Clusters of keys, compared by anisotropic quantization (arXiv:1908.10396). A probe is a cluster."""

    package, extra = 'scann', 'scann'
    least = 1024  # keys that are compared exactly, without clusters
    deeper = 4  # candidates that are compared again, for each neighbour

    def make(self, empty: Any, parts: Iterator[Any], count: int) -> Any:
        keys = torch.cat([torch.from_numpy(part).clone() for part in parts]).numpy()
        kind = 'dot_product' if self.metric == 'ip' else 'squared_l2'
        builder = self.module.scann_ops_pybind.builder(keys, 10, kind)
        if count < self.least:
            return builder.score_brute_force().build()
        tree = builder.tree(clusters_for(count), 1, training_sample_size=count)
        return tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()

    def save(self, shard: Any, file: Any) -> None:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=file, mode='w') as archive:
            shard.serialize(folder, relative_path=True)
            archive.add(folder, arcname='.')

    def load(self, path: Path, is_mapped: bool) -> Any:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            archive.extractall(folder, filter='data')
            return self.module.scann_ops_pybind.load_searcher(folder)

    def most_probes(self, shard: Any) -> int:
        return clusters_for(shard.size())

    def ask(self, shard: Any, queries: Any, count: int, probes: int) -> tuple[Any, Any]:
        count = min(count, shard.size())
        deeper = None if shard.size() < self.least else min(self.deeper * count, shard.size())
        index, distances = shard.search_batched(queries, count, deeper, None if deeper is None else probes)
        return (-distances if self.metric == 'ip' else distances), index.astype('int64')


ENGINES: dict[str, type[Engine]] = {'faiss': FaissEngine, 'hnswlib': HnswlibEngine, 'scann': ScannEngine}


class Index:
    """Index in the folder of a store, which provides its keys by `blocks`."""

    def __init__(self, folder: Path, dim: int, blocks: Blocks, backend: str = 'faiss', metric: str = 'l2') -> None:
        # Each backend has a folder, that of faiss is the one of earlier stores.
        self.folder = folder if backend == 'faiss' else folder.with_name(f'{folder.name}-{backend}')
        self.dim, self.blocks, self.backend, self.metric = dim, blocks, backend, metric
        self.engine: Any = ENGINES[backend](dim, metric)
        self.about = self.folder / 'index.json'
        self.notes: dict[str, Any] = {
            'format': FORMAT, 'backend': backend, 'metric': metric,
            'entries': 0, 'probes': 1, 'files': {}, 'recall': None,
        }  # fmt: skip
        self.opened: dict[int, Any] = {}
        if self.about.exists():
            found = {'backend': 'faiss', 'metric': 'l2', **read_json(self.about, 'an index')}
            if found.get('format') != FORMAT or found.keys() != self.notes.keys():
                raise ValueError(f'`{self.about}` is not an index of this version: {found.get("format")!r}')
            for name in ('backend', 'metric'):
                if found[name] != self.notes[name]:
                    raise ValueError(f'`{self.about}` is of {name} {found[name]!r}, the store has {self.notes[name]!r}')
            self.notes = found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != 'engine'} | {'opened': {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, engine=ENGINES[state['backend']](state['dim'], state['metric']))

    @property
    def entries(self) -> int:
        return self.notes['entries']

    def as_asked(self, vectors: Tensor) -> Tensor:
        """Return keys or queries as the engine gets them: unit vectors for cosines."""
        vectors = vectors.detach().float().cpu()
        return F.normalize(vectors, dim=-1) if self.metric == 'cosine' else vectors

    def read(self, name: str, is_mapped: bool = False) -> Any:
        path = self.folder / name
        if sum_file(path) != self.notes['files'].get(name):
            raise ValueError(f'`{path}` cannot be read as part of an index, the file is damaged: build it again')
        return self.engine.load(path, is_mapped)

    def write(self, index: Any, name: str) -> None:
        with replace_file(self.folder / name) as file:
            self.engine.save(index, file)
        self.notes['files'][name] = sum_file(self.folder / name)

    def build(self, entries: int, sample: Callable[[int], Tensor]) -> None:
        """Index the given number of entries. `sample` provides keys to train the clusters."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.engine.learns and 'trained.faiss' not in self.notes['files']:
            clusters = clusters_for(entries)
            keys = self.as_asked(sample(PER_CLUSTER * clusters)).numpy()
            self.write(self.engine.learn(keys, clusters), 'trained.faiss')
            write_json(self.notes, self.about)
        for start in range(self.entries // SHARD * SHARD, entries, SHARD):
            end = min(start + SHARD, entries)
            if end <= self.entries:
                continue
            empty = self.read('trained.faiss') if self.engine.learns else None
            shard = self.engine.make(empty, self.parts(start, end), end - start)
            number = start // SHARD
            for old in self.files_of(number):
                del self.notes['files'][old]
            self.write(shard, f'shard-{number:05d}-{end}.{self.backend}')
            self.opened.pop(number, None)
            self.notes['entries'] = end
            self.notes['recall'] = None
            write_json(self.notes, self.about)
            for file in self.folder.glob(f'shard-{number:05d}*.faiss'):
                if file.name not in self.notes['files']:
                    file.unlink(missing_ok=True)

    def parts(self, start: int, end: int) -> Iterator[Any]:
        """Yield the keys of entries, as the engine gets them, some at a time."""
        # one place for all: new ones between the growing lists of clusters would break memory into pieces
        room = torch.empty(ADDED, self.dim, dtype=torch.float32, device='cpu')
        for keys in self.blocks(start, end):
            for part in keys.split(ADDED):
                yield room[: len(part)].copy_(self.as_asked(part)).numpy()

    def files_of(self, number: int) -> list[str]:
        """Return the file names of a shard: one, if it has been written."""
        return [name for name in self.notes['files'] if name.startswith(f'shard-{number:05d}')]

    def shard(self, number: int) -> Any:
        if number not in self.opened:
            name = next(iter(self.files_of(number)), f'shard-{number:05d}.{self.backend}')
            self.opened[number] = self.read(name, is_mapped=True)
        return self.opened[number]

    @property
    def most_probes(self) -> int:
        return self.engine.most_probes(self.shard(0))

    def candidates(self, queries: Tensor, count: int, probes: int | None = None) -> Tensor:
        """Return entries (q, c): the nearest `count` and some more by rounded keys; -1 for none."""
        own, wanted = self.as_asked(queries).contiguous().numpy(), math.ceil(count * CANDIDATES) + 8
        found = []
        for number in range(-(-self.entries // SHARD)):
            answer = self.engine.ask(self.shard(number), own, wanted, probes or self.notes['probes'])
            distances, index = (torch.from_numpy(t) for t in answer)
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
