"""Encoders and decoders of `transformers` as they lie on disk: equal logits, equal tokens, and the way back."""

from __future__ import annotations

import copy
import json
import os

import pytest
import torch
import torch.nn.functional as F
from pretrained_cases import SEQ2SEQ_CASES, checkpoint, lifted
from torch import Tensor

from x_transformers import pretrained

if os.environ.get('CI'):
    import transformers
else:
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
every_case = pytest.mark.parametrize('case', SEQ2SEQ_CASES, ids=str)
LENGTHS = 20, 13


def ids(length: int, seed: int) -> Tensor:
    return torch.randint(3, 80, (2, length), generator=torch.Generator().manual_seed(seed))


def sources() -> tuple[Tensor, Tensor]:
    """Two of unequal lengths, and where they are real."""
    real = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    return ids(LENGTHS[0], 1).masked_fill(~real, 0), real


def of_theirs(model, target: Tensor) -> Tensor:
    source, real = sources()
    with torch.no_grad(), lifted():
        return model(input_ids=source, attention_mask=real.long(), decoder_input_ids=target).logits


def of_ours(model, target: Tensor) -> Tensor:
    source, real = sources()
    with torch.no_grad():
        return model.decoder.net(target, context=model.encoder(source, mask=real), context_mask=real)


def check_written(folder, model, target) -> None:
    """A model as it was read gives the same file again."""
    pretrained.save(model, target, format='hf')
    before, after = (pretrained.files.Weights(path) for path in (folder, target))
    assert before.files.keys() == after.files.keys()
    for name in before.files:
        assert torch.equal(before.load(name), after.load(name)), name
    configs = [json.loads((path / 'config.json').read_text()) for path in (folder, target)]
    assert configs[0] == configs[1]


@every_case
def test_logits_and_the_way_back(case, tmp_path):
    theirs, folder = checkpoint(case)
    ours, target = pretrained.load(folder), ids(11, 2)
    assert type(ours).from_config(ours.config.to_json_string()).config == ours.config
    check_written(folder, ours, tmp_path)
    assert (of_ours(ours, target) - of_theirs(theirs, target)).abs().max() < 1e-4
    wanted = of_theirs(copy.deepcopy(theirs).double(), target)
    assert (of_ours(ours.double(), target) - wanted).abs().max() < 1e-10


@every_case
def test_greedy_tokens_and_the_loss(case):
    """Of sources of unequal lengths, from the start token, which theirs returns, cached and read anew. Models with a
    tied head would say one token again and again, without the penalty."""
    theirs, folder = checkpoint(case)
    theirs, ours = copy.deepcopy(theirs).double(), pretrained.load(folder).double()
    (source, real), target = sources(), ids(11, 2)
    options = dict(max_new_tokens=25, do_sample=False, eos_token_id=None, forced_eos_token_id=None, num_beams=1)
    options['repetition_penalty'] = 3.0
    with lifted():
        wanted = theirs.generate(source, attention_mask=real.long(), **options)
    start = torch.full((2, 1), case.config['decoder_start_token_id'])
    assert torch.equal(wanted[:, :1], start) and len(wanted.unique()) > 10
    for cached in (True, False):
        found = ours.generate(source, start, 25, mask=real, temperature=0.0, repetition_penalty=3.0, cache_kv=cached)
        assert torch.equal(found, wanted[:, 1:])
    logits = of_theirs(theirs, target[:, :-1])
    loss = ours(source, target, mask=real)
    assert (loss - F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())).abs() < 1e-10
    loss.backward()


def test_a_head_of_its_own_counts_whatever_the_config_says(tmp_path):
    """It loads so in the other library as well."""
    theirs = copy.deepcopy(checkpoint(SEQ2SEQ_CASES[0])[0])
    theirs.lm_head.weight = torch.nn.Parameter(torch.randn(96, 32, generator=torch.Generator().manual_seed(3)))
    theirs.config.tie_word_embeddings = False
    theirs.save_pretrained(tmp_path / 'untied')
    config = tmp_path / 'untied' / 'config.json'
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    ours, info = pretrained.load(tmp_path / 'untied', return_info=True)
    assert not info.tied
    again = type(theirs).from_pretrained(tmp_path / 'untied', attn_implementation='eager').double()
    assert not torch.equal(again.lm_head.weight, again.shared.weight)
    target = ids(11, 2)
    assert (of_ours(ours.double(), target) - of_theirs(again, target)).abs().max() < 1e-10
    pretrained.save(pretrained.load(tmp_path / 'untied'), tmp_path / 'again', format='hf')
    assert torch.equal(
        pretrained.files.Weights(tmp_path / 'again').load('lm_head.weight').double(), again.lm_head.weight
    )
