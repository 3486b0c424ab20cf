"""Models that `transformers` wrote once, `write_frozen.py`: what they said then they say now, without that library."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from x_transformers import pretrained
from x_transformers.pretrained.__main__ import compare_outputs

safetensors = pytest.importorskip('safetensors')
from safetensors.torch import load_file, save_file  # noqa: E402

FOLDER = Path(__file__).parent / 'data' / 'frozen'
FILES = sorted(FOLDER.glob('*.safetensors'))


class Frozen:
    """Stands for the model of the other library: knows one answer."""

    def __init__(self, held, config):
        self.held = held
        text = {**config, **config.get('text_config', {})}
        self.config = SimpleNamespace(**config, get_text_config=lambda: SimpleNamespace(**text))

    def __call__(self, **inputs):
        for name, value in inputs.items():
            assert torch.equal(value, self.held[f'input:{name}']), f'another generator draws other {name}'
        said = {name.removeprefix('output:'): t for name, t in self.held.items() if name.startswith('output:')}
        return type('Output', (dict,), {'__getattr__': dict.__getitem__})(said)


def test_every_type_is_there():
    assert {path.stem.replace('-', '_') for path in FILES} == {row.type for row in pretrained.supported()}
    assert all(path.stat().st_size < 60_000 for path in FILES)


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_what_was_said_once(path, tmp_path):
    held = load_file(path)
    with safetensors.safe_open(path, framework='pt') as file:
        config = json.loads(file.metadata()['config'])
    (tmp_path / 'config.json').write_text(json.dumps(config))
    weights = {name.removeprefix('weight:'): t for name, t in held.items() if name.startswith('weight:')}
    save_file(weights, tmp_path / 'model.safetensors')
    model = pretrained.load(tmp_path)
    worst, size = compare_outputs(model, Frozen(held, config))
    assert worst < 1e-4 * max(size, 1.0)
    pretrained.save(model, tmp_path / 'again')  # and back, to the bit
    again = load_file(tmp_path / 'again' / 'model.safetensors')
    assert again.keys() == weights.keys() and all(torch.equal(again[name], t) for name, t in weights.items())
