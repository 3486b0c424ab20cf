"""Folders in the format of `transformers`: config.json, weights in one or several safetensors files."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.optional import needed
from x_transformers.core.writing import Present, replacing
from x_transformers.flags import shown

GENERATION = 'generation_config.json'
WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
SHARDS = 'model-?????-of-?????.safetensors'
OF_MODEL = ('config.json', WEIGHTS, INDEX, SHARDS)  # a set, beside which there may be other files
PICKLED, PICKLED_INDEX = 'pytorch_model.bin', 'pytorch_model.bin.index.json'
TOKENIZER = ('tokenizer*.json', 'vocab*', 'merges.txt', '*.model', 'special_tokens_map.json', 'chat_template*',
             'preprocessor_config.json')  # fmt: skip
RELEASED = 2**25  # bytes
UNITS = {'KB': 10**3, 'MB': 10**6, 'GB': 10**9}


def safetensors() -> ModuleType:
    return needed('safetensors', 'to read weights', 'pretrained')


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise ValueError(f'`{path}` cannot be read as JSON: {error}') from error
    if not isinstance(content, dict):
        raise ValueError(f'`{path}` holds a {type(content).__name__}, it must hold a dict')
    return content


def write_json(content: Mapping[str, Any], path: Path) -> None:
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2, ensure_ascii=False) + '\n').encode())


def resolve(source: str | os.PathLike[str], allow_pickle: bool = False, **hub: Any) -> Path:
    """The folder of a model: one on the disk, that of a file, or one that is downloaded by its repository id.

    hub   keywords of `huggingface_hub.snapshot_download`
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f'`source` got {shown(source)}, it must be a path or a repository id')
    path = Path(source)
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    if (os.sep in str(source) and (path.is_absolute() or str(source).startswith('.'))) or str(source).count('/') > 1:
        raise FileNotFoundError(f'`source` got {str(source)!r}, which is no folder and no file')
    hub_of = needed('huggingface_hub', f'to load {str(source)!r}, which is no folder,', 'hub')
    patterns = ['*.json', '*.safetensors', *TOKENIZER, *(['*.bin'] if allow_pickle else [])]
    return Path(hub_of.snapshot_download(str(source), allow_patterns=patterns, **hub))


@contextmanager
def readable(path: Path, error: type[Exception]) -> Iterator[None]:
    """Say of which file an error is."""
    try:
        yield
    except error as found:
        raise ValueError(f'`{path}` cannot be read: {found}') from found


class Weights:
    """The tensors of a folder, read one at a time."""

    def __init__(self, folder: Path, allow_pickle: bool = False) -> None:
        self.folder, self.stack, self.at = folder, ExitStack(), Present(folder)
        self.pickled: dict[str, Tensor] = {}
        self.files = self.found(allow_pickle)
        self.opened: dict[str, Any] = {}
        self.touched = 0

    def found(self, allow_pickle: bool) -> dict[str, str]:
        """In which file each name is."""
        folder, at = self.folder, self.at
        if (at / INDEX).is_file():
            return self.listed(read_json(at / INDEX))
        if (at / WEIGHTS).is_file():
            with self.open(WEIGHTS) as file:
                return dict.fromkeys(file.keys(), WEIGHTS)
        pickled = [folder / name for name in (PICKLED, PICKLED_INDEX) if (folder / name).is_file()]
        if not pickled:
            raise FileNotFoundError(f'`{folder}` has no {WEIGHTS} and no {INDEX}')
        if not allow_pickle:
            raise ValueError(
                f'`{folder}` has its weights in `{pickled[0].name}`, a pickle, which can run code when it is read; '
                f'give `allow_pickle=True` if you trust it: it is read by `torch.load(weights_only=True)`'
            )
        names = [PICKLED] if pickled[0].name == PICKLED else sorted(set(self.listed(read_json(pickled[0])).values()))
        for name in names:
            with readable(folder / name, Exception):  # pickles fail in many ways
                self.pickled.update(torch.load(folder / name, map_location='cpu', weights_only=True))
        return dict.fromkeys(self.pickled, '')

    def listed(self, index: Mapping[str, Any]) -> dict[str, str]:
        files = index.get('weight_map')
        if not isinstance(files, dict):
            raise ValueError(f'`{self.folder / INDEX}` has no `weight_map`, which says where each tensor is')
        for name in set(files.values()):
            if not isinstance(name, str) or os.path.basename(name) != name:
                raise ValueError(f'`weight_map` names {shown(name)}, it must name files beside it')
            if not (self.at / name).is_file():
                raise FileNotFoundError(f'`{self.folder}` has no {name}, which its index names')
        return files

    def open(self, name: str) -> Any:
        with self.reading(name):
            return safetensors().safe_open(self.at / name, framework='pt', device='cpu')

    def file(self, name: str) -> Any:
        """The open file that a tensor is in."""
        if self.files[name] not in self.opened:
            self.opened[self.files[name]] = self.stack.enter_context(self.open(self.files[name]))
        return self.opened[self.files[name]]

    def reading(self, file: str) -> AbstractContextManager[None]:
        return readable(self.folder / file, safetensors().SafetensorError)

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def load(self, name: str) -> Tensor:
        if self.pickled:
            return self.pickled[name]
        with self.reading(self.files[name]):
            t = self.file(name).get_tensor(name)
        self.touched += t.nbytes
        return t

    def release(self) -> None:
        """Let go of the pages of files that have been read: they count as memory of the process."""
        if self.touched > RELEASED:
            self.__exit__()
            self.touched = 0

    def shape(self, name: str) -> tuple[int, ...]:
        if self.pickled:
            return tuple(self.pickled[name].shape)
        with self.reading(self.files[name]):
            return tuple(self.file(name).get_slice(name).get_shape())

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stack.close()
        self.opened.clear()


def compact(t: Tensor) -> Tensor:
    """A tensor that holds nothing but itself."""
    whole = t.untyped_storage().nbytes() == t.numel() * t.element_size()
    return t if whole and t.is_contiguous() else t.clone(memory_format=torch.contiguous_format)


def in_bytes(size: int | str) -> int:
    """'5GB' -> 5,000,000,000"""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = re.fullmatch(r'(\d+) ?([KMG]B)', str(size).upper())
    if match is None or not int(match[1]):
        raise ValueError(f"`max_shard_size` got {shown(size)}, it must be bytes, or a text such as '5GB' or '200MB'")
    return int(match[1]) * UNITS[match[2]]


def shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in files of at most so many bytes, in order; a larger tensor has a file of its own."""
    files: list[list[str]] = []
    held = 0
    for name, size in sizes.items():
        if not files or held + size > most:
            files.append([])
            held = 0
        files[-1].append(name)
        held += size
    return files


def write_weights(
    folder: Path, sizes: Mapping[str, int], get: Callable[[Iterable[str]], dict[str, Tensor]], most: int
) -> None:
    """Write tensors to one file, or several and an index, in an empty folder. `get` gives those of one file."""
    files = shards(sizes, most)
    if len(files) == 1:
        return write_tensors(get(files[0]), folder / WEIGHTS)
    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        title = f'model-{number:05d}-of-{len(files):05d}.safetensors'
        write_tensors(get(names), folder / title)
        where.update(dict.fromkeys(names, title))
    write_json({'metadata': {'total_size': sum(sizes.values())}, 'weight_map': where}, folder / INDEX)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write one file of safetensors.  Raises OSError."""
    package = needed('safetensors.torch', 'to write weights', 'pretrained')
    own, seen = {}, set()
    for name, t in tensors.items():  # no two may share memory
        held = compact(t.detach().to('cpu'))
        own[name] = held.clone() if held.untyped_storage().data_ptr() in seen else held
        seen.add(own[name].untyped_storage().data_ptr())
    path.touch()
    mode = path.stat().st_mode  # the usual one: the package makes files for their owner alone
    try:
        package.save_file(own, path, metadata={'format': 'pt'})
    except safetensors().SafetensorError as error:
        raise OSError(errno.EIO, str(error), path.name) from error
    path.chmod(mode)


def copy_tokenizer(source: Path, target: Path) -> None:
    """The files of a tokenizer, as they are."""
    for pattern in TOKENIZER:
        for file in sorted(source.glob(pattern)):
            (target / file.name).write_bytes(file.read_bytes())
