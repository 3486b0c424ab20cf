"""Models to go on with: runs of train_lm.py and folders as `transformers` writes them, and what their ids stand for."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from common.folders import checkpoints
from common.options import Stop
from common.tokens import Bytes, Codec, tokenizer_in
from x_transformers import TransformerWrapper, pretrained
from x_transformers.core.files import StampedFile


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
    if not (StampedFile(folder) / 'config.json').is_file():
        raise Stop(f'{option} {folder} holds no checkpoint of train_lm.py and no config.json')
    return folder


def read_model(folder: Path, option: str, dtype: str = 'auto') -> tuple[TransformerWrapper, Codec]:
    """A model that reads ids, in eval mode, and what they stand for. `dtype` is that of the file if 'auto'."""
    try:
        net, info = pretrained.load(folder, dtype=dtype, return_info=True)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise Stop(f'{option} {folder} cannot be read: {error}') from None
    if not isinstance(net, TransformerWrapper):
        raise Stop(f'{option} {folder} is a {type(net).__name__}, not a model of text alone')
    found = info.generation.get('eos_token_id', info.config.get('eos_token_id'))
    ends = found if isinstance(found, list) else [] if found is None else [found]
    codec = tokenizer_in(folder, ends, specials=True)
    if isinstance(codec, Bytes) and net.num_tokens != codec.size:
        raise Stop(f'{option} {folder} has no tokenizer.json, and {net.num_tokens:,} ids are no bytes')
    return net, codec
