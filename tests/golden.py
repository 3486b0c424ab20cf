"""Golden data: models whose weights are drawn from their names, with the outputs that another library gave for them.

A case is the text of a model and of a call. A `Golden` file holds, by release and case, names and shapes of the state
dict, buffers, and outputs; equal entries are stored once.
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
import zlib
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from torch import nn


@functools.cache
def inputs() -> dict[str, torch.Tensor]:
    """What the calls of all cases may use."""
    rng = np.random.RandomState(7)
    ids, other = rng.randint(0, 12, (2, 9)), rng.randint(0, 12, (2, 9))
    ids[:, 4] = 3
    floats = {
        'x': rng.standard_normal((2, 9, 16)),
        'y': rng.standard_normal((2, 9, 16)),
        'context': rng.standard_normal((2, 7, 16)),
        'image': rng.standard_normal((2, 3, 8, 8)),
        'noise': rng.standard_normal((2, 2, 9, 9)),
    }
    return {
        'ids': torch.from_numpy(ids).long(),
        'other': torch.from_numpy(other).long(),
        'mask': torch.arange(9) < torch.tensor([[9], [6]]),
        'context_mask': torch.arange(7) < torch.tensor([[5], [7]]),
        'holes': torch.from_numpy(rng.rand(9, 9) > 0.3) | torch.eye(9, dtype=torch.bool),
        'pos': torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [2, 3, 4, 5, 6, 7, 8, 9, 10]]),
        **{name: torch.from_numpy(value.astype(np.float32)) for name, value in floats.items()},
    }


@functools.cache
def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of a parameter, from its name: matrices that keep the size of what they map, vectors around one half."""
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape or (1,)).astype(np.float32)
    value = noise * (1.2 / math.sqrt(shape[-1])) if len(shape) >= 2 else 0.5 + 0.4 * noise
    return torch.from_numpy(value.astype(np.float32).reshape(shape))


def layout(model: nn.Module) -> list[list]:
    """Name and shape of every entry of the state dict, and the name to draw it from: None for a buffer.

    Tied parameters have several names and are drawn from the first.
    """
    first: dict[int, str] = {}
    source = {name: first.setdefault(id(p), name) for name, p in model.named_parameters(remove_duplicate=False)}
    return [[name, list(t.shape), source.get(name)] for name, t in model.state_dict().items()]


def weights(entries: list[list], buffers: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The state dict of a layout."""
    return {
        name: torch.from_numpy(np.array(buffers[name])) if source is None else draw(source, tuple(shape)).clone()
        for name, shape, source in entries
    }


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts."""
    if torch.is_tensor(value):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [t for part in parts for t in tensors(part)]


def namespace() -> dict[str, Any]:
    """What the text of a model may use."""
    import x_transformers
    from x_transformers import x_transformers as core

    return {**vars(core), **vars(x_transformers), 'torch': torch, 'nn': nn}


def seed() -> None:
    """Seed torch on the CPU alone, which is quicker than for all devices that there may be."""
    torch.default_generator.manual_seed(0)


def build(make: str, **names: Any) -> nn.Module:
    seed()
    return eval(make, {**namespace(), **names})


def run(model: nn.Module, call: str) -> list[np.ndarray]:
    model.eval()
    seed()
    with torch.no_grad():
        out = eval(call, {'model': model, 'torch': torch, **inputs()})
    return [t.float().numpy() for t in tensors(out)]


def spread(t: np.ndarray, most: int = 64) -> np.ndarray:
    """At most so many values of an array, from anywhere in it."""
    flat = t.reshape(-1)
    return flat if flat.size <= most else flat[np.sort(np.random.RandomState(0).permutation(flat.size)[:most])]


def distance(got: list[np.ndarray], want: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest value."""
    if [t.shape for t in got] != [t.shape for t in want]:
        return math.inf
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-6)) for a, b in zip(got, want, strict=True))


class Golden:
    """A file of recorded cases:  releases[version][case] = {make, call, state, buffers, ...}.

    Of an output 64 values are kept.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = pathlib.Path(path)
        self.arrays: dict[str, np.ndarray] = {}
        self.states: list[list[list]] = []
        self.releases: dict[str, dict[str, dict]] = {}
        if self.path.exists():
            with np.load(self.path) as file:
                self.arrays = dict(file)
            meta = json.loads(bytes(self.arrays.pop('meta')))
            self.states, self.releases = meta['states'], meta['releases']

    def save(self) -> None:
        self.releases = dict(sorted(self.releases.items(), key=lambda item: Version(item[0])))
        meta = json.dumps({'states': self.states, 'releases': self.releases}).encode()
        np.savez_compressed(self.path, meta=np.frombuffer(meta, np.uint8), **self.arrays)

    def keep(self, name: str, array: np.ndarray) -> str:
        """The key of an array, of an earlier one that is the same up to rounding if there is one."""
        known = [key for key in self.arrays if key.rpartition('#')[0] == name]
        for key in known:
            if distance([array], [self.arrays[key]]) < 2e-6:
                return key
        key = f'{name}#{len(known)}'
        self.arrays[key] = array
        return key

    def record(self, version: str, name: str, make: str, call: str) -> None:
        """Build and run a case with the library at hand, and keep what it gave."""
        model = build(make)
        entries, state = layout(model), model.state_dict()
        buffers = {key: state[key].numpy() for key, _, source in entries if source is None}
        model.load_state_dict(weights(entries, buffers))
        outputs = run(model, call)
        if not outputs or not all(np.isfinite(t).all() for t in outputs):
            raise ValueError('no outputs, or not finite')
        if entries not in self.states:
            self.states.append(entries)
        self.releases.setdefault(version, {})[name] = {
            'make': make,
            'call': call,
            'state': self.states.index(entries),
            'buffers': {key: self.keep(f'{name}/{key}', value) for key, value in buffers.items()},
            'shapes': [list(value.shape) for value in outputs],
            'outputs': [self.keep(f'{name}/{index}', spread(value)) for index, value in enumerate(outputs)],
        }

    def state(self, version: str, name: str) -> dict[str, torch.Tensor]:
        case = self.releases[version][name]
        buffers = {key: self.arrays[at] for key, at in case['buffers'].items()}
        return weights(self.states[case['state']], buffers)

    def error(self, version: str, name: str, got: list[np.ndarray]) -> float:
        """How far outputs are from the recorded ones, relative to the largest value."""
        case = self.releases[version][name]
        if [list(t.shape) for t in got] != case['shapes']:
            return math.inf
        return distance([spread(t) for t in got], [self.arrays[key] for key in case['outputs']])
