"""Datastores: pairs of a key and a token, in blocks on the disk, and the search for the nearest keys.

    store.json                   sizes, and the model of the keys
    block-00000000.safetensors   values (n) of int32, keys (n, d); a checksum of both in its metadata

Blocks are memory-mapped. A file appears as a whole or not at all, so that an interrupted build loses at most the block
that it had not written yet.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import check_tensor
from x_transformers.core.files import read_json, replace_file, write_json
from x_transformers.core.modes import to_float
from x_transformers.flags import ConfigError, format_value, is_int, is_number
from x_transformers.flags.unexpected import answering
from x_transformers.generation.prompt_cache import fingerprint
from x_transformers.memory.index import ENGINES, Index
from x_transformers.memory.keys import KEYS, KeyReader, get_entries
from x_transformers.memory.search import METRICS, Neighbours, exact, nearest, pieces

DTYPES = {'float16': torch.float16, 'bfloat16': torch.bfloat16, 'float32': torch.float32}
BACKENDS = ('exact', *ENGINES)
FORMAT = 'x-transformers datastore 1'
NAMES = {torch.float16: 'F16', torch.bfloat16: 'BF16', torch.float32: 'F32', torch.int32: 'I32'}
TYPES = {name: dtype for dtype, name in NAMES.items()}
LARGEST_HEADER = 2**20
OPEN = 128  # blocks that are mapped at once
LARGEST = 2**31 - 1  # a value
# what says whose keys a store holds
OWNER = ('fingerprint', 'key_layer', 'key_at')
SIZES = ('dim', 'size', 'dtype', 'block', 'metric')


def write_block(path: Path, keys: Tensor, values: Tensor) -> None:
    """Write keys (n, d) and values (n,) atomically. They are on the disk when this returns."""
    # whole numbers stand first, so that both begin at a multiple of their width
    parts = {'values': values, 'keys': keys}
    data = {name: t.contiguous().flatten().view(torch.uint8).numpy().data for name, t in parts.items()}
    header, at = {}, 0
    for name, t in parts.items():
        end = at + len(data[name])
        header[name] = {'dtype': NAMES[t.dtype], 'shape': list(t.shape), 'data_offsets': [at, end]}
        at = end
    total = zlib.crc32(data['keys'], zlib.crc32(data['values']))
    text = json.dumps({'__metadata__': {'format': FORMAT, 'crc32': f'{total:08x}'}, **header}).encode()
    text += b' ' * (-len(text) % 8)
    with replace_file(path) as file:
        file.write(len(text).to_bytes(8, 'little') + text)
        for part in data.values():
            file.write(part)


class Block:
    """Block on the disk, memory-mapped: `keys` (n, d), `values` (n,).

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
        count = math.prod(shape)
        if at < 0 or end - at != count * dtype.itemsize or start + end > len(self.map):
            raise ValueError('it ends before its content does')
        return torch.frombuffer(self.map, dtype=dtype, count=count, offset=start + at).view(shape)

    def damaged(self, why: str) -> ValueError:
        return ValueError(f'`{self.path}` cannot be read as a block of a datastore, the file is damaged: {why}')

    def __len__(self) -> int:
        return len(self.values)

    def verify(self) -> None:
        """Raises ValueError if any byte is another than was written."""
        if f'{zlib.crc32(self.data):08x}' != self.crc32:
            raise self.damaged('its checksum does not agree')

    def release(self) -> None:
        """Release the memory of pages that were read. Later reads load them again."""
        with contextlib.suppress(AttributeError, OSError, ValueError):  # not on every system
            self.map.madvise(mmap.MADV_DONTNEED)


class KNNDatastore:
    """A datastore for `KNNLMWrapper`: hidden states of a text as keys (d), and the tokens after them as values.

        store = KNNDatastore(dim, size=10_000_000, path='store/')
        store.build(net, loader)                   every token of the batches, except the first of each sequence
        store.search(queries, k)                   ... d  ->  distances, values and places, each ... k

    dim       width of the keys
    size      maximum number of entries
    path      a folder, or None to keep all in memory. Building continues with the entries of an existing folder
    dtype     of the keys, 'float16', 'bfloat16' or 'float32'; distances are of single precision or better
    backend   'exact', or 'faiss', 'hnswlib' or 'scann': an index, which `build` makes, finds candidates, whose
              distances are then computed from the keys
    block     entries per file, the most that an interrupted build loses; written when full, and by `flush`
    metric    of distances: 'l2', |q - k|^2; 'ip', -q k; or 'cosine', 1 - q k / (|q| |k|)

    Values are int32, so that any vocabulary fits. arXiv:1911.00172
    """

    @answering
    def __init__(
        self,
        dim: int,
        size: int,
        path: str | os.PathLike[str] | None = None,
        dtype: str = 'float16',
        backend: str = 'exact',
        *,
        block: int = 2**16,
        metric: str = 'l2',
    ) -> None:
        for name, value in dict(dim=dim, size=size, block=block).items():
            if not (is_int(value) and value >= 1):
                raise ConfigError(f'`{name}` must be an integer of at least 1, got {format_value(value)}')
        choices = ('dtype', dtype, tuple(DTYPES)), ('backend', backend, BACKENDS), ('metric', metric, METRICS)
        for name, value, allowed in choices:
            if value not in allowed:
                raise ConfigError(f'`{name}` must be one of {", ".join(map(repr, allowed))}, got {format_value(value)}')
        if backend != 'exact' and path is None:
            raise ConfigError(f'`backend={backend!r}` needs a `path`, where its index is kept')
        self.metric = metric
        self.dim, self.size, self.dtype, self.backend, self.block = int(dim), int(size), dtype, backend, int(block)
        self.path: Any = None if path is None else Path(path)
        self.owner: dict[str, Any] = dict.fromkeys(OWNER)
        self.full, self.written = 0, 0  # entries in full blocks, and those that are on the disk
        self.verified, self.mapped = set(), OrderedDict()
        self.kept: list[tuple[Tensor, Tensor]] = []  # the full blocks of a store in memory
        self.tail = torch.zeros(0, self.dim, dtype=DTYPES[dtype]), torch.zeros(0, dtype=torch.int32)
        self.index: Any = None  # an `Index`, if there is one
        if self.path is not None:
            self.open_folder(self.path)
            if backend != 'exact':
                self.index = Index(self.path / 'index', self.dim, self.keys_between, backend, metric)

    @classmethod
    def open(cls, path: str | os.PathLike[str], backend: str = 'exact') -> KNNDatastore:
        """Open the store of a folder.  Raises ValueError if there is none, or it is damaged."""
        about = Path(path) / 'store.json'
        if not about.is_file():
            raise ValueError(f'`path` got {str(path)!r}, where there is no datastore: it has no store.json')
        content = read_store(about)
        return cls(path=path, backend=backend, **{name: content[name] for name in SIZES})

    def open_folder(self, folder: Path) -> None:
        """Create the folder of a store, or continue with an existing one."""
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / 'store.json'
        if not about.exists():
            if any(folder.glob('block-*')):
                raise ValueError(f'`path` got {str(folder)!r}, which holds blocks without a store.json')
            self.write_about()
            return
        content = read_store(about)
        for name in SIZES:
            if content[name] != getattr(self, name):
                raise ConfigError(
                    f'`{name}` got {getattr(self, name)!r}, the store in `{folder}` has {content[name]!r}'
                )
        self.owner = {name: content[name] for name in OWNER}
        names = sorted(path.name for path in folder.glob('block-*.safetensors'))
        for number, name in enumerate(names):
            if name != self.name_of(number):
                raise ValueError(f'the store in `{folder}` is damaged: `{self.name_of(number)}` is missing')
            block = Block(folder / name, self.dim, DTYPES[self.dtype])
            if len(block) > self.block or (len(block) < self.block and number + 1 < len(names)):
                raise ValueError(f'the store in `{folder}` is damaged: `{name}` holds {len(block)} entries')
            self.written += len(block)
            if len(block) == self.block:
                self.full += self.block
            else:  # it will be written anew, with more
                block.verify()
                self.tail = block.keys.clone(), block.values.clone()

    @staticmethod
    def name_of(number: int) -> str:
        return f'block-{number:08d}.safetensors'

    def write_about(self) -> None:
        sizes = {name: getattr(self, name) for name in SIZES}
        write_json({'format': FORMAT, **sizes, **self.owner}, self.path / 'store.json')

    def __len__(self) -> int:
        return self.full + len(self.tail[1])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and deepcopy, which map the files again."""
        return self.__dict__ | {'mapped': OrderedDict()}

    # reading

    def read_block(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the keys (n, d) and values (n,) of a block."""
        if number * self.block == self.full:
            return self.tail
        if self.path is None:
            return self.kept[number]
        if number in self.mapped:
            self.mapped.move_to_end(number)
        else:
            self.mapped[number] = Block(self.path / self.name_of(number), self.dim, DTYPES[self.dtype])
            if number not in self.verified:  # once: damage that comes later is not seen
                self.mapped[number].verify()
                self.verified.add(number)
            if len(self.mapped) > OPEN:
                self.mapped.popitem(last=False)
        found = self.mapped[number]
        return found.keys, found.values

    def release(self, number: int) -> None:
        if number in self.mapped:
            self.mapped[number].release()

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the first entry of each block and its keys, which are released afterwards."""
        for number in range(-(-len(self) // self.block)):
            yield number * self.block, self.read_block(number)[0]
            self.release(number)

    def keys_between(self, start: int, end: int) -> Iterator[Tensor]:
        for number in range(start // self.block, -(-end // self.block)):
            first = number * self.block
            yield self.read_block(number)[0][max(start - first, 0) : end - first]
            self.release(number)

    def read(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (..., d) and values (...) of entries, on the CPU."""
        wanted, order = index.detach().cpu().flatten().sort()
        keys = torch.empty(len(wanted), self.dim, dtype=DTYPES[self.dtype])
        values = torch.empty(len(wanted), dtype=torch.long)
        numbers, counts = torch.div(wanted, self.block, rounding_mode='floor').unique_consecutive(return_counts=True)
        places = order.split(counts.tolist())
        for number, place, own in zip(numbers.tolist(), places, wanted.split(counts.tolist()), strict=True):
            block_keys, block_values = self.read_block(number)
            keys[place] = block_keys[own - number * self.block]
            values[place] = block_values[own - number * self.block].long()
            self.release(number)
        return keys.view(*index.shape, self.dim), values.view(index.shape)

    def verify(self) -> None:
        """Compare all blocks with their checksums.  Raises ValueError that names the first damaged one."""
        self.flush()
        if self.path is None:
            return
        for number in range(-(-self.written // self.block)):
            block = Block(self.path / self.name_of(number), self.dim, DTYPES[self.dtype])
            block.verify()
            block.release()

    # writing

    def add(self, keys: Tensor, values: Tensor) -> None:
        """Add entries, keys (n, d) and values (n,).

        raises   ValueError for other shapes, values outside of 0 .. 2**31 - 1, keys that are not finite in the dtype
                 of the store, and more than `size` entries
        """
        keys, values = check_tensor(keys, 'keys').detach(), check_tensor(values, 'values').detach().cpu()
        if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            raise ValueError(f'`values` must be token ids, got {values.dtype}')
        if self.metric == 'cosine' and not keys.is_floating_point():
            raise ValueError(f"`keys` must be floating point for `metric='cosine'`, got {keys.dtype}")
        if keys.ndim != 2 or keys.shape[1] != self.dim:
            raise ValueError(f'`keys` must have shape (n, {self.dim}), got {tuple(keys.shape)}')
        if values.shape != keys.shape[:1]:
            raise ValueError(f'`values` must have shape {tuple(keys.shape[:1])}, got {tuple(values.shape)}')
        if len(self) + len(keys) > self.size:
            raise ValueError(f'`keys` got {len(keys)} entries, the store has room for {self.size - len(self)}')
        if not len(keys):
            return
        if values.min() < 0 or values.max() > LARGEST:
            raise ValueError(f'`values` must be from 0 to {LARGEST}, got {values.min()} to {values.max()}')
        keys = keys.to('cpu', DTYPES[self.dtype])
        if not keys.isfinite().all():
            raise ValueError(f'`keys` must be finite as {self.dtype}, the type of the store')
        keys, values = torch.cat((self.tail[0], keys)), torch.cat((self.tail[1], values.to(torch.int32)))
        while len(keys) >= self.block:
            self.store(keys[: self.block], values[: self.block])
            self.full += self.block
            keys, values = keys[self.block :], values[self.block :]
        self.tail = keys.clone(), values.clone()

    def store(self, keys: Tensor, values: Tensor) -> None:
        """Write the next block."""
        if self.path is None:
            self.kept.append((keys.clone(), values.clone()))
        else:
            write_block(self.path / self.name_of(self.full // self.block), keys, values)
        self.written = self.full + len(values)

    def flush(self) -> None:
        """Write entries that are only in memory, if there is a folder."""
        if self.path is not None and len(self) > self.written:
            self.store(*self.tail)

    # building

    def build(
        self,
        net: nn.Module,
        loader: Iterable[Tensor | Mapping[str, Any]],
        *,
        key_layer: int = -1,
        key_at: str = 'ff_input',
        ignore_index: int = -100,
    ) -> KNNDatastore:
        """Run a model on a text, and add a key for each token that has a next one, which is the value.

        net        a causal model of tokens; it is called in eval mode, without gradients
        loader     batches: ids (b n), or dicts with these as `x`, with `labels` (b n), the tokens of `x` that become
                   values (others hold `ignore_index`, as in `AutoregressiveWrapper`), and keywords of the net: `mask`
        key_layer  index of the feedforward for the keys; -1 for the last
        key_at     'ff_input', its input after the norm, or 'output', the input of the output head

        A store with entries skips as many of the loader, which must be the same: their values are compared, and the
        model is not run on these batches. It stops at the end of the loader, or when the store is full.

        raises     ValueError if the store is of another net or another loader
        """
        reader = KeyReader(net, key_layer, key_at)
        self.own(net, key_layer, key_at)
        passed = 0
        for batch in loader:
            entries = get_entries(batch, ignore_index)
            count = len(entries.values)
            known = max(min(len(self) - passed, count), 0)
            self.compare(passed, entries.values[:known])
            room = self.size - passed
            if count > known and room > known:
                keys = reader.keys(entries.inputs)[entries.rows, entries.places]
                self.add(keys[known:room], entries.values[known:room])
            passed += count
            if passed >= self.size:
                break
        if passed < len(self):
            raise ValueError(f'`loader` gave {passed} entries, the store holds {len(self)}: it is of another text')
        self.flush()
        if self.index is not None and len(self):
            self.build_index()
        return self

    def own(self, net: nn.Module, key_layer: int, key_at: str) -> None:
        """Record which model the keys belong to, once."""
        owner = dict(fingerprint=fingerprint(net), key_layer=key_layer, key_at=key_at)
        if len(self) and self.owner != owner:
            changed = next(name for name in OWNER if self.owner[name] != owner[name])
            if changed == 'fingerprint':
                raise ValueError('`net` is not the one that the datastore was begun with, or its weights have changed')
            raise ValueError(
                f'`{changed}` got {owner[changed]!r}, the datastore was begun with {self.owner[changed]!r}'
            )
        self.owner = owner
        if self.path is not None:
            for left in self.path.glob('block-*.tmp'):  # by a build that was killed
                left.unlink(missing_ok=True)
            self.write_about()

    def compare(self, start: int, values: Tensor) -> None:
        """Refuse a loader whose entries from `start` on are not those that are here."""
        at, end = start, start + len(values)
        while at < end:
            number = at // self.block
            held = self.read_block(number)[1][at - number * self.block : end - number * self.block]
            if not torch.equal(held.long(), values[at - start : at - start + len(held)].cpu()):
                raise ValueError(f'`loader` gives other tokens than the store holds, after entry {at}')
            at += len(held)

    def build_index(self, recall: float = 0.95, k: int = 1024, queries: int = 128, seed: int = 0) -> float | None:
        """Update the index, and choose the number of clusters that it searches. Called by `build`.

        recall     fraction of the `k` nearest keys that it must find, on average
        queries    number of stored keys, sampled with `seed`, for measuring this, each without itself
        returns    the measured recall; None for a store with one entry
        """
        if self.index is None:
            raise ValueError("`build_index` needs `backend='faiss'` or another index, the store has 'exact'")
        if not (is_number(recall) and 0 < recall <= 1):
            raise ValueError(f'`recall` must be a number above 0, up to 1, got {format_value(recall)}')
        if not len(self):
            raise ValueError('`build_index` needs entries, the store holds none')
        self.flush()
        draws = torch.Generator().manual_seed(seed)

        def drawn(count: int) -> Tensor:
            return torch.randint(len(self), (count,), generator=draws)

        self.index.build(len(self), lambda count: self.read(drawn(min(count, 2 * len(self))))[0])
        if self.index.notes['recall'] is not None or len(self) == 1:
            return self.index.notes['recall']
        places = drawn(min(queries, len(self)))
        asked, k = to_float(self.read(places)[0]), min(k, len(self) - 1)
        wanted = self.search_exactly(asked, k, places[:, None])
        probes = 1
        while True:
            found = exact(
                asked, self.index.candidates(asked, k + 1, probes), k, places[:, None], self.read, self.metric
            )
            # equally near keys are as good: what counts is how many distances are those of the nearest
            share = (found.distances <= wanted.distances[:, -1:]).float().mean().item()
            if share >= recall or probes >= self.index.most_probes:
                break
            probes = min(2 * probes, self.index.most_probes)
        self.index.settle(probes, share)
        return share

    # searching

    def search(self, queries: Tensor, k: int, exclude: Tensor | None = None) -> Neighbours:
        """Return the nearest entries of queries.

        queries   ... d    any floating point; distances are in single precision, or double for such queries
        k                  from 1 to the entries there are
        exclude   ... e    entries that are excluded, such as the query itself; -1 for none
        returns            `Neighbours`, each ... k; where fewer remain, distances are infinite and places -1

        raises    ValueError for other shapes, a damaged block, or an index that lacks entries
        """
        queries = to_float(check_tensor(queries, 'queries').detach())
        if not queries.is_floating_point() or queries.ndim < 1 or queries.shape[-1] != self.dim:
            raise ValueError(
                f'`queries` must be floating point of shape (..., {self.dim}), '
                f'got {queries.dtype} of shape {tuple(queries.shape)}'
            )
        if not (is_int(k) and 1 <= k <= len(self)):
            raise ValueError(
                f'`k` must be an integer from 1 to {len(self)}, the number of entries, got {format_value(k)}'
            )
        if exclude is not None:
            exclude = check_tensor(exclude, 'exclude').to(queries.device)
            if exclude.shape[:-1] != queries.shape[:-1] or exclude.is_floating_point():
                wanted = (*queries.shape[:-1], 'e')
                raise ValueError(
                    f'`exclude` must be whole numbers {wanted}, got {exclude.dtype} of shape {tuple(exclude.shape)}'
                )
            exclude = exclude.reshape(-1, exclude.shape[-1]).long()
        self.flush()
        lead, rows = queries.shape[:-1], queries.reshape(-1, self.dim)
        found = (self.search_index if self.index is not None else self.search_exactly)(rows, k, exclude)
        return Neighbours(*(t.view(*lead, k) for t in found))

    def search_exactly(self, queries: Tensor, k: int, exclude: Tensor | None) -> Neighbours:
        # distances by products are rounded: of some more, the nearest are chosen again
        count, parts = min(k + 16 + k // 16, len(self)), []
        for own, left_out in pieces(queries, exclude):
            _, index = nearest(own, self.blocks(), count, left_out, self.metric)
            parts.append(exact(own, index, k, left_out, self.read, self.metric))
        return Neighbours(*(torch.cat(one) for one in zip(*parts, strict=True)))

    def search_index(self, queries: Tensor, k: int, exclude: Tensor | None) -> Neighbours:
        if self.index.entries != len(self):
            raise ValueError(
                f'the index covers {self.index.entries} of {len(self)} entries: call `build_index()` first'
            )
        parts = []
        for own, left_out in pieces(queries, exclude):
            index = self.index.candidates(own, k + (0 if left_out is None else left_out.shape[-1]))
            if index.shape[-1] < k:
                index = torch.nn.functional.pad(index, (0, k - index.shape[-1]), value=-1)
            parts.append(exact(own, index, k, left_out, self.read, self.metric))
        return Neighbours(*(torch.cat(one) for one in zip(*parts, strict=True)))

    def recall(self, queries: Tensor, k: int) -> float:
        """Return the share of the `k` nearest entries of queries (..., d) that `search` finds.

        An entry that is as near as the last of them counts as one of them.
        """
        found = self.search(queries, k).distances.flatten(0, -2)
        rows = to_float(queries.detach()).reshape(-1, self.dim)
        last = self.search_exactly(rows, k, None).distances[:, -1:]
        return (found <= last).float().mean().item()


def read_store(about: Path) -> dict[str, Any]:
    content = {'metric': 'l2', **read_json(about, 'a datastore')}  # earlier stores do not name it
    if content.get('format') != FORMAT:
        raise ValueError(f'`{about}` is not a datastore of this version: {content.get("format")!r}, not {FORMAT!r}')
    wanted = {'format', *SIZES, *OWNER}
    if content.keys() != wanted or content['key_at'] not in (None, *KEYS):
        raise ValueError(f'`{about}` is damaged: it must have {", ".join(sorted(wanted))}')
    return content
