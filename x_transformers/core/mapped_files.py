"""Files of plain containers of tensors in the format of safetensors: a JSON header, and tensors that are mapped.

metadata   format: the kind; content: JSON with {'tensor': name} in place of tensors; sha256: of that JSON
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.optional import needed
from x_transformers.core.writing import replacing

ENDING = '.safetensors'


def is_mapped(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix == ENDING


def safetensors(name: str = 'safetensors') -> ModuleType:
    return needed(name, f'a file that ends with {ENDING}', 'pretrained')


def flattened(value: Any, tensors: dict[str, Tensor], name: str = '') -> Any:
    """Containers as JSON has them, and their tensors by name.  Raises ValueError for what is no plain value."""
    if torch.is_tensor(value):
        tensors[name] = value.detach()
        return {'tensor': name}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f'`{name}` has keys that are no texts, which {ENDING} files cannot hold')
        return {'dict': {key: flattened(one, tensors, f'{name}.{key}' if name else key) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        kind = 'tuple' if isinstance(value, tuple) else 'list'
        return {kind: [flattened(one, tensors, f'{name}.{at}') for at, one in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {'value': value}
    raise ValueError(f'`{name}` got {type(value).__name__}, which cannot be saved: tensors and numbers can')


def built(form: dict[str, Any], tensors: Callable[[str], Tensor]) -> Any:
    """The way back from `flattened`."""
    ((kind, value),) = form.items()
    if kind == 'tensor':
        return tensors(value)
    if kind == 'dict':
        return {key: built(one, tensors) for key, one in value.items()}
    if kind in ('list', 'tuple'):
        several = [built(one, tensors) for one in value]
        return tuple(several) if kind == 'tuple' else several
    return value


def write_mapped(content: dict[str, Any], path: str | os.PathLike[str], kind: str) -> None:
    """Write plain containers of tensors, atomically."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(flattened(content, tensors))
    own, seen = {}, set()
    for name, t in tensors.items():  # no two may share memory
        held = t.cpu().contiguous()
        place = held.untyped_storage().data_ptr()
        own[name] = held.clone() if place in seen or held.untyped_storage().nbytes() > held.nbytes else held
        seen.add(own[name].untyped_storage().data_ptr())
    digest = hashlib.sha256(text.encode()).hexdigest()
    data = safetensors('safetensors.torch').save(own, {'format': kind, 'content': text, 'sha256': digest})
    with replacing(path) as file:
        file.write(data)


def read_mapped(path: str | os.PathLike[str], device: torch.device | str | None, kind: str, name: str) -> Any:
    """The content of a file of this kind, whose tensors are mapped.

    raises   ValueError if the file is cut short, of another kind, or its header is damaged; the numbers of tensors are
             not summed up, which would read them
    """
    package = safetensors()
    try:
        with package.safe_open(path, framework='pt', device='cpu' if device is None else str(device)) as file:
            about = file.metadata() or {}
            if about.get('format') != kind:
                raise ValueError(f'it is {about.get("format")!r}, not {kind!r}')
            text = about.get('content', '')
            if hashlib.sha256(text.encode()).hexdigest() != about.get('sha256'):
                raise ValueError('its header is damaged')
            return built(json.loads(text), file.get_tensor)
    except (package.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f'`{path}` cannot be read as a {name}: {error}') from error
