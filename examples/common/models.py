"""Models to go on with: runs of train_lm.py and folders as `transformers` writes them, and what their ids stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file

from common.folders import checkpoints
from common.options import Stop
from x_transformers import TransformerWrapper


class Codec(Protocol):
    """Between text and ids; `ends` are ids that end a text."""

    ends: list[int]

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...


class Bytes:
    """A byte is an id."""

    ends: list[int] = []  # noqa: RUF012  never written to

    def encode(self, text: str) -> list[int]:
        return list(text.encode('utf-8', errors='surrogateescape'))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode('utf-8', errors='replace')


class Pieces:
    """Ids as a tokenizer.json says."""

    def __init__(self, path: Path, ends: list[int]) -> None:
        self.ends = ends
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise Stop(f'{path} needs a package that is not installed: pip install tokenizers') from None
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # it raises no more special one
            raise Stop(f'{path} cannot be read: {error}') from None

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)


def find(wanted: str | None, option: str) -> Path:
    """The folder of a model: the newest checkpoint of a run, or a folder with a config.json."""
    if wanted is None:
        made = [folder for folder in sorted(Path('runs').glob('train_lm-*')) if checkpoints(folder)]
        if not made:
            how = 'make one with train_lm.py, or name a run or a folder in the format of transformers'
            raise Stop(f'{option}: there is no run of train_lm.py in runs/; {how}')
        return checkpoints(made[-1])[-1]
    folder = Path(wanted)
    if not folder.is_dir():
        raise Stop(f'{option} {folder} {"is no folder" if folder.exists() else "does not exist"}')
    if checkpoints(folder):
        return checkpoints(folder)[-1]
    if not (folder / 'config.json').is_file():
        raise Stop(f'{option} {folder} holds no checkpoint of train_lm.py and no config.json')
    return folder


def read_model(folder: Path, option: str, dtype: str = 'auto') -> tuple[TransformerWrapper, Codec]:
    """A model that reads ids, in eval mode, and what they stand for. `dtype` is that of the file if 'auto'."""
    ends: list[int] = []
    try:
        config: dict[str, Any] = json.loads((folder / 'config.json').read_text(encoding='utf-8'))
        if 'model_type' in config:
            from x_transformers import pretrained

            net, info = pretrained.load(folder, dtype=dtype, return_info=True)
            found = info.generation.get('eos_token_id', config.get('eos_token_id'))
            ends = found if isinstance(found, list) else [] if found is None else [found]
        else:
            net = TransformerWrapper.from_config(config)
            net.load_state_dict(load_file(folder / 'model.safetensors'))
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise Stop(f'{option} {folder} cannot be read: {error}') from None
    if not isinstance(net, TransformerWrapper):
        raise Stop(f'{option} {folder} is a {type(net).__name__}, not a model of text alone')
    pieces = folder / 'tokenizer.json'
    if not pieces.is_file() and net.num_tokens != 256:
        raise Stop(f'{option} {folder} has no tokenizer.json, and {net.num_tokens:,} ids are no bytes')
    return net.eval(), Pieces(pieces, ends) if pieces.is_file() else Bytes()
