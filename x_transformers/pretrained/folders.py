"""Location of a model: the folder with its config.json, from a folder, a file, or what tools leave around them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from x_transformers.core.files import StampedFile, import_optional
from x_transformers.flags import format_value, warn_once
from x_transformers.pretrained.foreign import (
    AGAIN,
    CUT_OFF,
    NEEDS,
    SUFFIXES,
    NoModelError,
    close_sentence,
    describe_config,
    describe_folder,
    find_foreign,
    first_bytes,
    get_format,
    list_names,
    names_in,
    text_of_other,
)
from x_transformers.pretrained.specs import SPECS

CONFIG, ADAPTER = 'config.json', 'adapter_config.json'
# Files that tokenizers and processors of `transformers` read, in any release.
TOKENIZER = (
    'tokenizer*', 'vocab*', '*vocab.json', 'merges.txt', '*.model', 'special_tokens_map.json', 'added_tokens.json',
    'chat_template*', 'additional_chat_templates/*', '*preprocessor_config.json', 'processor_config.json',
    'audio_tokenizer_config.json', 'dict.txt', 'dict-*.txt', 'bpe.codes', '*.spm', '*.tiktoken', 'tekken.json',
    'emoji.json', 'byte_maps.json', 'prophetnet.tokenizer', 'word_*.json', 'normalizer.json', 'label_*.json',
    'vocab-*.json', 'entities.json', 'lang_*.json', '*.jinja', 'speaker_embeddings*',
)  # fmt: skip
DEPTH = 4  # Maximum depth of folders that contain only one folder.


@dataclass(frozen=True)
class ModelLocation:
    """Location of a model on the disk.

    Attributes:
        folder: The folder with its config.json, or with the adapter_config.json of an adapter.
        file: The file of weights, or the index of several, if the user named one.
    """

    folder: Path
    file: str | None = None

    @property
    def is_adapter(self) -> bool:
        return (StampedFile(self.folder) / ADAPTER).is_file()


def resolve(source: str | os.PathLike[str], allow_pickle: bool = False, **hub: Any) -> Path:
    """Return the path of a folder, of a file, or of a repository that `snapshot_download(**hub)` fetches by its id."""
    if not isinstance(source, str | os.PathLike):
        raise TypeError(f'`source` must be a path or a repository id, got {format_value(source)}')
    path, name = Path(source).expanduser(), os.fspath(source)
    if not name:  # An empty path would be the current folder.
        raise ValueError("`source` must be a path or a repository id, got ''")
    try:
        if path.exists() or path.is_symlink():
            return path
    except PermissionError as error:  # A folder above it cannot be opened.
        raise close_sentence(path) from error
    link = re.match(r'(?:https?://(?:huggingface\.co|hf\.co)/|hf://)(?:models/)?([\w.-]+/[\w.-]+)', name)
    if link or '://' in name:
        way = f"name the repository by its id, '{link[1]}'" if link else 'download it, and name the folder'
        raise NoModelError(f'`source` must not be a link, got {name!r}: {way}')
    looks_like_path = path.is_absolute() or name.startswith(('.', '~'))
    is_file = name.endswith((*SUFFIXES, '.json', '.gguf'))
    if (os.sep in name and looks_like_path) or name.count('/') > 1 or is_file:
        there = list_names(names_in(path.parent)) if is_file and path.parent.is_dir() else ''
        raise NoModelError(
            f'`source` got {name!r}, which is no folder and no file{f"; `{path.parent}` has {there}" if there else ""}'
        )
    hub_of = import_optional('huggingface_hub', f'to load {name!r}, which is no folder,', 'hub')
    patterns = ['*.json', '*.safetensors', *TOKENIZER, *(['*.bin'] if allow_pickle else [])]
    try:
        return Path(hub_of.snapshot_download(name, allow_patterns=patterns, **hub))
    except Exception as error:
        said = str(error).strip().splitlines()[0].rstrip('.') if str(error).strip() else type(error).__name__
        raise NoModelError(
            f'`source` got {name!r}, which is no folder and no file here, and no repository that can be fetched: {said}'
        ) from error


def locate(path: Path, depth: int = 0) -> ModelLocation:
    """Return the location of the model at a path.

    The only model in a folder of a folder is found, and the snapshot named by `main` in a folder of the hub's cache.

    Raises:
        NoModelError: The path has no model; the error describes what it has.
    """
    if not path.is_dir():
        return locate_file(path)
    if not os.access(path, os.X_OK):
        raise close_sentence(path)
    at = StampedFile(path)
    if any((at / name).exists() or (at / name).is_symlink() for name in (ADAPTER, CONFIG)):
        return ModelLocation(path)
    try:
        inner = None if depth == DEPTH else find_inside(path)
        said = '' if inner else describe_folder(path)
    except PermissionError as error:
        raise close_sentence(path) from error
    if inner is None:
        raise NoModelError(f'`{path}` has no config.json: {said}{hint_above(path)}')
    warn_once(f'`{path}` has no config.json, so the model in `{inner}` is loaded')
    return locate(inner, depth + 1)


def locate_file(path: Path) -> ModelLocation:
    """Return the location of a file named by the user. Its config.json is in the same folder."""
    folder, name = path.parent, path.name
    if name in (CONFIG, ADAPTER):
        return ModelLocation(folder)
    start = first_bytes(path)
    if path.suffix == '.json':
        if text_of_other(start) is not None or 'weight_map' not in read_json(path):
            raise NoModelError(f'`{path}` holds no weights: name the folder, a file of weights, or its index')
    else:
        get_format(path)
    at = StampedFile(folder)
    if (at / ADAPTER).is_file() and name.startswith('adapter_model'):
        return ModelLocation(folder, name)
    if not (at / CONFIG).is_file():
        foreign = find_foreign([name])
        way = f'it {foreign[1].description}: {foreign[1].way}' if foreign else f'put that of the model into `{folder}`'
        raise NoModelError(f'`{path}` has no config.json beside it, which the library needs: {way}{hint_above(folder)}')
    return ModelLocation(folder, name)


def find_inside(path: Path) -> Path | None:
    """Return the only folder within a folder that holds a model, or None if there is none."""
    snapshots = path if path.name == 'snapshots' else path / 'snapshots'
    if snapshots.is_dir() and snapshots.parent.name.startswith('models--'):
        return find_snapshot(snapshots)
    if (path / 'model_index.json').is_file():  # The parts of a pipeline are not models on their own.
        return None
    folders = [one for one in sorted(path.iterdir()) if one.is_dir() and not one.name.startswith('.')]
    models = [one for one in folders if is_model(one)]
    if len(models) > 1:
        models.sort(key=lambda one: [int(n) if n.isdigit() else n for n in re.split(r'(\d+)', one.name)])
        names = list_names([one.name for one in models])
        raise NoModelError(f'`{path}` has no config.json, but several models, {names}: name one, as `{models[-1]}`')
    if not models and len(folders) == 1:
        names = names_in(path)
        return folders[0] if names == [f'{folders[0].name}/'] and not find_foreign(names) else None
    return models[0] if models else None


def is_model(folder: Path) -> bool:
    """Return True for a folder with the config of a model or an adapter, or one of the hub's cache."""
    if folder.name.startswith('models--') or (folder / ADAPTER).is_file():
        return True
    try:
        config = json.loads((folder / CONFIG).read_text(encoding='utf-8'))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and ('model_type' in config or 'class' in config)


def find_snapshot(snapshots: Path) -> Path:
    """Return the snapshot in the hub's cache named by `main`, or the only one."""
    main = snapshots.parent / 'refs' / 'main'
    named = snapshots / main.read_text().strip() if main.is_file() else None
    found = [one for one in sorted(snapshots.iterdir()) if one.is_dir()]
    if named is not None and named.is_dir():
        return named
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoModelError(f'`{snapshots.parent}` of the cache of the hub has no snapshot: {AGAIN}')
    raise NoModelError(f'`{snapshots}` has several snapshots: name one, as `{found[-1]}`')


def hint_above(folder: Path) -> str:
    """Return the end of an error for a folder that is part of a model."""
    above = folder.resolve().parent
    if above.name.startswith('models--') and (above / 'snapshots').is_dir():
        return f'. It is part of the cache of the hub: name `{above}`'
    return f'. The folder above it holds a model: name `{folder.parent}`' if is_model(above) else ''


# files of JSON


def read_json(path: Path) -> dict[str, Any]:
    """Return the dict in a file of JSON.  Raises ValueError, which describes any other content."""
    said = text_of_other(first_bytes(path)) if path.is_file() or path.is_symlink() else None
    if said is not None:
        raise NoModelError(f'`{path}` cannot be read as JSON: it is {said[0]}: {said[1]}')
    try:
        content = json.loads(path.read_text(encoding='utf-8-sig'))
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        is_empty = isinstance(error, ValueError) and not first_bytes(path).strip(b' \r\n\t\0')
        why = f'it is empty, {CUT_OFF}' if is_empty else error
        raise ValueError(f'`{path}` cannot be read as JSON: {why}') from error
    if not isinstance(content, dict):
        raise ValueError(f'`{path}` must hold a dict, got a {type(content).__name__}')
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder. A missing `model_type` is inferred from the classes in it."""
    path = StampedFile(folder) / CONFIG
    config = read_json(path)
    if config.get('model_type') is not None or 'class' in config:
        return config
    kind = infer_type(config)
    if kind is None:
        raise NoModelError(f'`{path}` has no `model_type`; {NEEDS}: {describe_config(config)}{hint_above(folder)}')
    warn_once(f'`{path}` has no `model_type`, its `architectures` name a {kind}')
    return {**config, 'model_type': kind}


def infer_type(config: Mapping[str, Any]) -> str | None:
    """Return the only type with the classes that a config names, else None."""
    names = config.get('architectures')
    if not isinstance(names, list):
        return None
    found = [(spec, str(name)) for spec in SPECS.values() for name in names if name in spec.architectures]
    # A type that writes classes of another type is recognized only by its name.
    own = [spec for spec, name in found if name.lower().startswith(re.sub('[-_]', '', spec.type))]
    kinds = {spec.spelled or spec.type for spec in own or [spec for spec, _ in found]}
    return kinds.pop() if len(kinds) == 1 else None
