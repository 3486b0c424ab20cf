"""Folders in the format of `transformers`: config.json, weights in one or several safetensors files."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.files import StampedFile, import_optional, write_json
from x_transformers.flags import format_value
from x_transformers.pretrained.folders import CONFIG, TOKENIZER, read_json
from x_transformers.pretrained.foreign import (
    AGAIN,
    CUT_OFF,
    SUFFIXES,
    NoModelError,
    describe_folder,
    find_foreign,
    get_format,
    list_names,
    names_in,
)

GENERATION = 'generation_config.json'
WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
SHARDS = 'model-?????-of-?????.safetensors'
OF_MODEL = ('config.json', WEIGHTS, INDEX, SHARDS)  # The files that `save` replaces.
PICKLED, PICKLED_INDEX = 'pytorch_model.bin', 'pytorch_model.bin.index.json'
SETS = (WEIGHTS, INDEX, PICKLED, PICKLED_INDEX)  # In the order of `transformers`.
SHARD = re.compile(r'[-_](\d{5,})-of-(\d{5,})(?=(?:\.\w+)+$)')  # A variant, such as fp16, may follow.
IS_INDEX = re.compile(r'\.index(\.\w+)?\.json$')
RELEASED = 2**25  # bytes
UNITS = {'KB': 10**3, 'MB': 10**6, 'GB': 10**9}


def safetensors() -> ModuleType:
    return import_optional('safetensors', 'to read weights', 'pretrained')


class Weights:
    """Tensors of a folder, loaded one at a time.

    Attributes:
        files: Names of tensors -> the file of each, '' for those in memory.
        read_from: The files that are read: `file`, a file of weights or the index of several, or as `transformers`.
    """

    def __init__(self, folder: Path, allow_pickle: bool = False, file: str | None = None) -> None:
        self.folder, self.stack, self.at = folder, ExitStack(), StampedFile(folder)
        self.given: dict[str, Tensor] = {}
        self.stored: dict[str, str] = {}
        self.changes: dict[str, Callable[[Tensor], Tensor]] = {}
        self.opened: dict[str, Any] = {}
        self.touched = 0
        self.read_from: list[str] = []
        self.files = self.find_tensors(self.choose_file() if file is None else file, allow_pickle)

    def choose_file(self) -> str:
        """Return the file, or the index of several, that `transformers` would load."""
        for name in SETS:
            if (self.at / name).is_file() or (self.folder / name).is_symlink():
                return name
        named = [
            name
            for name in names_in(self.folder)
            if (name.endswith(SUFFIXES) or IS_INDEX.search(name)) and find_foreign([name]) is None
        ]
        shards = [name for name in named if SHARD.search(name)]
        start = f'`{self.folder}` has no {WEIGHTS} and no {INDEX}'
        indices = [name for name in named if IS_INDEX.search(name)]
        if shards and not indices:
            raise NoModelError(f'{start}, only shards without their index, {list_names(shards)}: {AGAIN}, or name one')
        if named:
            said = indices + [name for name in named if name not in (*indices, *(shards if indices else ()))]
            raise NoModelError(f'{start}, but {list_names(said)}: name one, as `{self.folder / said[0]}`')
        raise NoModelError(f'{start}: {describe_folder(self.folder, CONFIG)}')

    def find_tensors(self, file: str, allow_pickle: bool) -> dict[str, str]:
        """Return the file of each tensor. An index lists the files, and selects one if two have a name."""
        where = self.read_index(file) if file.endswith('.json') else {}
        if not where and file.endswith('.json'):  # A model without tensors.
            return {}
        self.read_from = sorted(set(where.values())) if where else self.list_shards(file)
        kinds = {name: get_format(self.at / name) for name in self.read_from}
        if 'pickle' in kinds.values() and not allow_pickle:
            raise ValueError(
                f'`{self.folder}` has its weights in `{file}`, a pickle, which can run code when it is loaded; '
                f'give `allow_pickle=True` if you trust it: `torch.load(weights_only=True)` loads it'
            )
        found: dict[str, str] = {}
        for one, kind in kinds.items():
            given = read_pickle(self.at / one) if kind == 'pickle' else {}
            for name in given or self.open_file(one).keys():
                if name not in found or where.get(name) == one:
                    found[name] = '' if given else one
                    self.given.pop(name, None)
                    self.given.update({name: given[name]} if given else {})
        if not found:
            raise NoModelError(f'`{self.at / file}` holds no tensors')
        return found

    def read_index(self, index: str) -> dict[str, str]:
        """Return the `weight_map` of an index."""
        path = self.at / index
        files = read_json(path).get('weight_map')
        if not isinstance(files, dict):
            raise ValueError(f'`{path}` has no `weight_map` from tensors to files')
        for name in {str(name): name for name in files.values()}.values():
            if not isinstance(name, str) or os.path.isabs(name) or '..' in Path(name).parts:
                raise ValueError(f'`weight_map` of `{path}` must name files in its folder, got {format_value(name)}')
            if not (self.at / name).is_file():
                raise NoModelError(f'`{self.folder}` has no {name}, which its index names, {CUT_OFF}')
        return files

    def list_shards(self, file: str) -> list[str]:
        """Return all shards of a model from the name of one: `model-00001-of-00002.safetensors` is one of two."""
        part = SHARD.search(file)
        if part is None:
            return [file]
        names = [
            f'{file[: part.start(1)]}{i:0{len(part[1])}d}{file[part.end(1) :]}' for i in range(1, int(part[2]) + 1)
        ]
        missing = [name for name in names if not (self.at / name).is_file()]
        if missing:
            few = f'is one of {int(part[2])} files of a model, of which {list_names(missing)} is absent'
            raise NoModelError(f'`{self.at / file}` {few}')
        return names

    def open_file(self, name: str) -> Any:
        """Return an open file of safetensors."""
        if name not in self.opened:
            with self.name_errors(name):
                file = safetensors().safe_open(self.at / name, framework='pt', device='cpu')
            self.opened[name] = self.stack.enter_context(file)
        return self.opened[name]

    @contextmanager
    def name_errors(self, file: str) -> Iterator[None]:
        """Add the name of a file to its errors."""
        try:
            yield
        except safetensors().SafetensorError as error:
            raise ValueError(f'`{self.folder / file}` cannot be read: {error}') from error

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def rename(self, renames: Mapping[str, str]) -> None:
        """Give tensors new names."""
        self.stored = {new: self.stored.get(old, old) for old, new in renames.items()}
        self.given = {renames[old]: t for old, t in self.given.items()}
        self.files = {renames[old]: file for old, file in self.files.items()}

    def add(self, name: str, t: Tensor) -> None:
        """Add a tensor in memory, which replaces one of the same name."""
        self.given[name], self.files[name] = t, ''

    def load(self, name: str) -> Tensor:
        t = self.given.get(name)
        if t is None:
            with self.name_errors(self.files[name]):
                t = self.open_file(self.files[name]).get_tensor(self.stored.get(name, name))
            self.touched += t.nbytes
        return self.changes[name](t) if name in self.changes else t

    def release(self) -> None:
        """Close files of which much was read, since their pages count as memory of the process."""
        if self.touched > RELEASED:
            self.__exit__()
            self.touched = 0

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.given:
            return tuple(self.given[name].shape)
        with self.name_errors(self.files[name]):
            return tuple(self.open_file(self.files[name]).get_slice(self.stored.get(name, name)).get_shape())

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()
        self.opened.clear()


INSIDE = ('state_dict', 'model_state_dict', 'model', 'module', 'weights', 'net', 'params', 'ema', 'ema_state_dict')


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file of `torch.save`: a state dict, or a dict that contains one."""
    try:
        with open(path, 'rb') as file:  # For a path, torch would choose the format by its name.
            content = torch.load(file, map_location='cpu', weights_only=True)
    except Exception as error:  # Pickles fail in many ways.
        others = re.search(r'GLOBAL ([\w.]+)', str(error))
        why = 'it is a pickle, but none that `torch.save` wrote, or it is damaged'
        if others is not None:
            why = f'it holds objects of `{others[1]}`, not only tensors. Save the `state_dict()` of the model alone'
        raise NoModelError(f'`{path}` cannot be read: {why}') from error
    if not isinstance(content, dict):
        raise NoModelError(f'`{path}` must hold a dict of tensors, got {format_value(content)}')
    state = find_state_dict(content, path)
    for name, t in state.items():
        if t.layout is not torch.strided or t.is_meta or t.is_quantized:
            kind = 'one without values' if t.is_meta else 'a quantized one' if t.is_quantized else 'a sparse one'
            raise NoModelError(f'`{name}` of `{path}` must be a dense tensor, got {kind}')
    return state


def find_state_dict(content: dict[Any, Any], path: Path) -> dict[str, Tensor]:
    """Return the dict, or the state dict in it.  Raises NoModelError if there is none, or several."""
    if is_state_dict(content):
        return content
    if content.keys() >= {'state', 'param_groups'}:
        raise NoModelError(f'`{path}` holds the state of an optimizer, no weights of a model')
    loose = {name: t for name, t in content.items() if isinstance(name, str) and torch.is_tensor(t)}
    inside = list_state_dicts(content)
    found = {name: one for name, one in inside.items() if {*name.split('.')} <= {*INSIDE}}
    if not found and not has_dots(loose):
        found = {name: one for name, one in inside.items() if has_dots(one)}
    if len(found) > 1:
        raise NoModelError(f'`{path}` holds several models, {list_names([*found])}: save one of them alone')
    if found or loose:
        return next(iter(found.values()), loose)
    said = list_names([str(name) for name in content]) or 'an empty dict'
    raise NoModelError(f'`{path}` must hold a dict of tensors by name, got {said}')


def list_state_dicts(content: dict[Any, Any], depth: int = 3) -> dict[str, dict[str, Tensor]]:
    """Return the state dicts in a dict, also in inner dicts, by the path of names."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in content.items():
        if is_state_dict(value):
            found[str(name)] = value
        elif isinstance(value, dict) and depth:
            found.update((f'{name}.{inner}', one) for inner, one in list_state_dicts(value, depth - 1).items())
    return found


def is_state_dict(value: Any) -> bool:
    named = isinstance(value, dict) and all(isinstance(n, str) and torch.is_tensor(t) for n, t in value.items())
    return named and bool(value)


def has_dots(state: Mapping[str, Tensor]) -> bool:
    return any('.' in name for name in state)


def compact(t: Tensor) -> Tensor:
    """Return a contiguous tensor whose storage has no other values."""
    whole = t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return t if whole and t.is_contiguous() else t.clone(memory_format=torch.contiguous_format)


def count_bytes(size: int | str) -> int:
    """Return a number of bytes for a size such as '5GB'."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r'(\d+) ?([KMG]B)', str(size).upper())
    if match is None or not int(match[1]):
        raise ValueError(f"`max_shard_size` must be bytes or a text such as '5GB' or '200MB', got {format_value(size)}")
    return int(match[1]) * UNITS[match[2]]


def split_shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Split names into files of at most `most` bytes, in order. A larger tensor is alone in its file."""
    files: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if not files or held + size > most:
            files.append([])
            held = 0
        files[-1].append(name)
        held += size
    return files


Get = Callable[[Iterable[str]], dict[str, Tensor]]
DTYPES = {
    torch.float64: 'F64', torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16', torch.int64: 'I64',
    torch.int32: 'I32', torch.int16: 'I16', torch.int8: 'I8', torch.uint8: 'U8', torch.bool: 'BOOL',
    torch.uint16: 'U16', torch.uint32: 'U32', torch.uint64: 'U64', torch.complex64: 'C64',
    torch.float8_e4m3fn: 'F8_E4M3', torch.float8_e5m2: 'F8_E5M2',
}  # fmt: skip


def write_weights(folder: Path, sizes: Mapping[str, int], get: Get, most: int) -> None:
    """Write tensors to files of at most `most` bytes, and an index of several. `sizes`: wider dtypes come first."""
    files = split_shards(sizes, most)
    if len(files) == 1:
        return write_tensors(folder / WEIGHTS, sizes, get)
    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = f'model-{number:05d}-of-{len(files):05d}.safetensors'
        write_tensors(folder / file, {name: sizes[name] for name in names}, get)
        where.update(dict.fromkeys(names, file))
    write_json({'metadata': {'total_size': sum(sizes.values())}, 'weight_map': where}, folder / INDEX)


def write_tensors(path: Path, sizes: Mapping[str, int], get: Get) -> None:
    """Write a file of safetensors, with no more than its largest tensor in memory.

    The header is a JSON dict, which may end with blanks: it is written last, into reserved space.
    Raises OSError, or TypeError for a dtype that the format does not have.
    """
    digits = len(str(sum(sizes.values())))
    room = sum(len(json.dumps(name)) + 2 * digits + 120 for name in sizes) // 8 * 8 + 64
    about: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
    end = 0
    with open(path, 'wb') as file:
        file.seek(8 + room)
        for names in split_shards(sizes, max(sizes.values(), default=1)):
            for name, given in get(names).items():
                t = given.detach().to('cpu').contiguous()
                if t.dtype not in DTYPES:
                    raise TypeError(f'`{name}` of the model must have a dtype of safetensors, got {t.dtype}')
                about[name] = {'dtype': DTYPES[t.dtype], 'shape': [*t.shape], 'data_offsets': [end, end + t.nbytes]}
                if t.nbytes:
                    file.write((ctypes.c_char * t.nbytes).from_address(t.data_ptr()))
                end += t.nbytes
        file.truncate(8 + room + end)
        file.seek(0)
        file.write(struct.pack('<Q', room) + json.dumps(about, separators=(',', ':')).encode().ljust(room))


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a tokenizer or a processor."""
    for pattern in TOKENIZER:
        for file in sorted(source.glob(pattern)):
            if file.is_file() and not file.name.endswith('.index.json'):
                (target / file.relative_to(source)).parent.mkdir(exist_ok=True)
                (target / file.relative_to(source)).write_bytes(file.read_bytes())
