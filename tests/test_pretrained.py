"""Models of `transformers` as they lie on disk: equal logits, equal tokens, and the way back. Tiny ones, drawn anew."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from pretrained_cases import BARS, CASES, check_same_tensors, ids_of, lifted, theirs

from x_transformers import AutoregressiveWrapper, pretrained
from x_transformers.flags import ConfigError

transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
every_case = pytest.mark.parametrize('case', CASES, ids=str)
BASES = [case for case in CASES if case.number == 0]
DECODERS = [case for case in BASES if case.kind == 'CausalLM']


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """A checkpoint of every case, written by the other library, and its model."""
    kept = {}

    def of(case):
        if str(case) not in kept:
            model, folder = theirs(case), tmp_path_factory.mktemp(str(case))
            model.save_pretrained(folder)
            kept[str(case)] = model, folder
        return kept[str(case)]

    return of


def logits(model, ids):
    with torch.no_grad(), lifted():
        return model(ids).logits


@every_case
def test_logits_and_the_way_back(folders, case, tmp_path):
    theirs, folder = folders(case)
    ours, info = pretrained.load(folder, return_info=True)
    assert info.type == case.type.replace('-', '_') and not ours.training
    pretrained.save(ours, tmp_path, format='hf')
    check_same_tensors(folder, tmp_path)
    ids = ids_of(case)
    wide = logits(copy.deepcopy(theirs).double(), ids)  # some keep frequencies from call to call
    with torch.no_grad():
        assert (ours(ids) - theirs(ids).logits).abs().max() < 1e-4
        assert (ours.double()(ids) - wide).abs().max() < BARS.get(str(case), BARS.get(case.type, 1e-10))


@pytest.mark.parametrize('case', DECODERS, ids=str)
def test_greedy_tokens(folders, case):
    """Of prompts of unequal lengths, across the windows; theirs have padding on the left."""
    theirs, folder = folders(case)
    net = AutoregressiveWrapper(pretrained.load(folder).double())
    rows = [row[:n] for row, n in zip(ids_of(case), (5, 3), strict=True)]
    ids = torch.stack([torch.nn.functional.pad(row, (5 - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(5) >= 5 - len(row) for row in rows]).long()
    with lifted():
        options = dict(max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=0)
        wanted = copy.deepcopy(theirs).double().generate(ids, attention_mask=mask, **options)
    found = net.generate(rows, 25, temperature=0.0)
    assert torch.equal(torch.as_tensor(found), wanted[:, 5:])


def changed(folder, target, **fields):
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / 'config.json').read_text())
    (target / 'config.json').write_text(json.dumps({**config, **fields}))
    return target


@pytest.mark.parametrize('fields, words', [
    (dict(quantization_config={'bits': 4}), 'quantization_config'),
    (dict(model_type='lama'), 'did you mean `llama`'),
    (dict(rotary_sharpness=2), 'rotary_sharpness'),
    (dict(hidden_act='sharkfin'), 'hidden_act'),
    (dict(norm_of_tomorrow=2), 'norm_of_tomorrow'),
    (dict(vocab_size=97), 'model.embed_tokens.weight'),
    (dict(num_hidden_layers=4), r'layers\.3'),
    (dict(num_hidden_layers=2), r'layers\.2'),
    (dict(rope_parameters={'rope_type': 'mrope_section'}), 'mrope_section'),
])  # fmt: skip
def test_refusals(folders, fields, words, tmp_path):
    folder = folders(next(case for case in CASES if case.type == 'llama'))[1]
    with pytest.raises(ConfigError, match=words):
        pretrained.load(changed(folder, tmp_path / 'changed', **fields))
