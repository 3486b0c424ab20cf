"""Encoders and decoders of `transformers` as they lie on disk: equal logits, equal tokens, and the way back."""

from __future__ import annotations

import copy
import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from pretrained_cases import SEQ2SEQ_CASES, Case, check_same_tensors, checkpoint, lifted
from torch import Tensor, nn

from x_transformers import pretrained
from x_transformers.flags import ConfigError

transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
every_case = pytest.mark.parametrize('case', SEQ2SEQ_CASES, ids=str)
LENGTHS = 20, 13


def ids(length: int, seed: int) -> Tensor:
    return torch.randint(3, 80, (2, length), generator=torch.Generator().manual_seed(seed))


def sources(case: Case) -> tuple[Tensor, Tensor | None]:
    """Texts of unequal lengths, and where they are real; or sounds, which have one length."""
    if case.type == 'whisper':
        return torch.randn(2, 24, 10, generator=torch.Generator().manual_seed(1)), None
    real = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    return ids(LENGTHS[0], 1).masked_fill(~real, 0), real


def inputs_of(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same, for the other library."""
    source, real = sources(case)
    if real is None:
        return dict(input_features=source.to(dtype).mT)
    return dict(input_ids=source, attention_mask=real.long())


def widened(model: nn.Module) -> nn.Module:
    """In float64, sines included, of which the other library keeps a table."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if 'Sinusoidal' in type(module).__name__:
            n, d = module.weight.shape
            angles = torch.arange(n)[:, None] * 10000.0 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)
            module.weight.data = torch.cat((angles.sin(), angles.cos()), dim=1)
    return model


def of_theirs(case: Case, model: nn.Module, target: Tensor) -> Tensor:
    with torch.no_grad(), lifted():
        return model(**inputs_of(case, model.dtype), decoder_input_ids=target).logits


def of_ours(case: Case, model: nn.Module, target: Tensor) -> Tensor:
    source, real = sources(case)
    source = source.to(next(model.parameters()).dtype) if real is None else source
    with torch.no_grad():
        context = model.encoder(source, mask=real)
        return model.decoder.net(target, context=context, context_mask=real)


def check_written(folder, model, target) -> None:
    """A model as it was read gives the same file again."""
    pretrained.save(model, target, format='hf')
    check_same_tensors(folder, target)
    configs = [json.loads((path / 'config.json').read_text()) for path in (folder, target)]
    assert configs[0] == configs[1]


@every_case
def test_logits_and_the_way_back(case, tmp_path):
    theirs, folder = checkpoint(case)
    ours, target = pretrained.load(folder), ids(11, 2)
    assert type(ours).from_config(ours.config.to_json_string()).config == ours.config
    check_written(folder, ours, tmp_path)
    assert (of_ours(case, ours, target) - of_theirs(case, theirs, target)).abs().max() < 1e-4
    wanted = of_theirs(case, widened(theirs), target)
    assert (of_ours(case, ours.double(), target) - wanted).abs().max() < 1e-10


@every_case
def test_greedy_tokens_and_the_loss(case):
    """Of sources of unequal lengths, from the start token, which most of theirs return, cached and read anew. Without
    the penalty, models with a tied head would say one token again and again."""
    theirs, folder = checkpoint(case)
    theirs, ours = widened(theirs), pretrained.load(folder).double()
    (source, real), target = sources(case), ids(11, 2)
    source = source.double() if real is None else source
    options = dict(max_new_tokens=25, do_sample=False, eos_token_id=None, forced_eos_token_id=None, num_beams=1)
    options['repetition_penalty'] = 3.0
    with lifted():
        wanted = theirs.generate(**inputs_of(case, torch.float64), **options)
    start = torch.full((2, 1), case.config['decoder_start_token_id'])
    wanted = wanted if case.type == 'whisper' else wanted[:, 1:]
    assert wanted.shape == (2, 25) and len(wanted.unique()) > 10
    for cached in (True, False):
        found = ours.generate(source, start, 25, mask=real, temperature=0.0, repetition_penalty=3.0, cache_kv=cached)
        assert torch.equal(found, wanted)
    logits = of_theirs(case, theirs, target[:, :-1])
    loss = ours(source, target, mask=real)
    assert (loss - F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())).abs() < 1e-10
    loss.backward()
    assert all(p.grad is not None for p in ours.parameters())


def test_a_head_of_its_own_counts_whatever_the_config_says(tmp_path):
    """It loads so in the other library as well."""
    case = SEQ2SEQ_CASES[0]
    theirs = copy.deepcopy(checkpoint(case)[0])
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
    assert (of_ours(case, ours.double(), target) - of_theirs(case, again, target)).abs().max() < 1e-10
    pretrained.save(pretrained.load(tmp_path / 'untied'), tmp_path / 'again', format='hf')
    assert torch.equal(
        pretrained.files.Weights(tmp_path / 'again').load('lm_head.weight').double(), again.lm_head.weight
    )


def test_models_without_a_head(tmp_path):
    """Their names have no prefix, those of positions that are computed too."""
    case = next(case for case in SEQ2SEQ_CASES if case.type == 'marian')
    theirs, target = copy.deepcopy(checkpoint(case)[0].model), ids(11, 2)
    theirs.save_pretrained(tmp_path)
    ours = pretrained.load(tmp_path)
    inputs = inputs_of(case, torch.float32)
    with torch.no_grad():
        states = theirs(**inputs, decoder_input_ids=target).last_hidden_state
        context, real = (
            ours.encoder(inputs['input_ids'], mask=inputs['attention_mask'].bool(), return_embeddings=True),
            inputs['attention_mask'].bool(),
        )
        found = ours.decoder.net(target, context=context, context_mask=real, return_embeddings=True)
    assert (found - states).abs().max() < 1e-4


@pytest.mark.parametrize('type', ['t5', 'bart', 'marian', 'whisper'])
def test_rows_that_have_ended(type, tmp_path):
    """They are filled up with the config's padding; each begins with a token of its own."""
    case = next(case for case in SEQ2SEQ_CASES if case.type == type)
    theirs, folder = checkpoint(case)
    shutil.copytree(folder, tmp_path / 'changed')
    config = json.loads((folder / 'config.json').read_text())
    (tmp_path / 'changed' / 'config.json').write_text(json.dumps({**config, 'pad_token_id': 95}))
    ours = pretrained.load(tmp_path / 'changed').double()
    assert ours.decoder.pad_value == 95
    if type == 'whisper':  # whose `generate` is one of its own
        return
    source, real = sources(case)
    start = torch.tensor([[case.config['decoder_start_token_id']], [50]])
    options = dict(mask=real, temperature=0.0, repetition_penalty=3.0)
    end = int(ours.generate(source, start, 6, **options)[0, 5])
    found = ours.generate(source, start, 20, eos_token=end, **options)
    own = dict(max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=95, forced_eos_token_id=None)
    with lifted():
        inputs = dict(inputs_of(case, torch.float64), decoder_input_ids=start)
        wanted = widened(theirs).generate(**inputs, **own, repetition_penalty=3.0, num_beams=1)
    assert torch.equal(found, wanted[:, 1:]) and (found == 95).any()


FIELDS = [
    ('t5', dict(layer_norm_epsilon=1e-2)), ('t5', dict(relative_attention_max_distance=9)),
    ('t5', dict(feed_forward_proj='silu', dense_act_fn='silu')), ('t5', dict(dense_act_fn='gelu')),
    ('t5', dict(scale_decoder_outputs=False)), ('t5', dict(tie_word_embeddings=False)),
    ('mt5', dict(scale_decoder_outputs=True)), ('mt5', dict(feed_forward_proj='gated-silu')),
    ('mt5', dict(dense_act_fn='silu')), ('mt5', dict(tie_word_embeddings=False)),
    ('bart', dict(scale_embedding=True)), ('bart', dict(activation_function='gelu_new')),
    ('bart', dict(encoder_attention_heads=8)), ('bart', dict(decoder_attention_heads=2)),
    ('marian', dict(scale_embedding=False)), ('marian', dict(activation_function='swish')),
    ('whisper', dict(activation_function='quick_gelu')), ('whisper', dict(decoder_attention_heads=8)),
    ('whisper', dict(scale_embedding=True)),
]  # fmt: skip


@pytest.mark.parametrize('type, fields', FIELDS, ids=lambda value: value if isinstance(value, str) else '-'.join(value))
def test_fields(type, fields, tmp_path):
    """What a field changes in theirs, it changes in ours."""
    case = next(case for case in SEQ2SEQ_CASES if case.type == type)
    theirs, folder = checkpoint(case)
    shutil.copytree(folder, tmp_path / 'changed')
    config = json.loads((folder / 'config.json').read_text())
    (tmp_path / 'changed' / 'config.json').write_text(json.dumps({**config, **fields}))
    other = theirs.__class__.from_pretrained(tmp_path / 'changed', attn_implementation='eager')
    target = ids(11, 2)
    wanted = of_theirs(case, widened(other), target)
    assert (of_ours(case, pretrained.load(tmp_path / 'changed').double(), target) - wanted).abs().max() < 1e-10


def gradients_as_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)


@pytest.mark.parametrize('case', [case for case in SEQ2SEQ_CASES if case.number == 0], ids=str)
def test_gradients(case, tmp_path):
    """Of one step, written as weights are: those of theirs."""
    theirs, folder = checkpoint(case)
    theirs, ours = widened(theirs), pretrained.load(folder, dtype=torch.float64)
    (source, real), target = sources(case), ids(11, 2)
    loss = ours(source.double() if real is None else source, target, mask=real)
    with lifted():
        logits = theirs(**inputs_of(case, torch.float64), decoder_input_ids=target[:, :-1]).logits
        wanted = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    assert (loss - wanted).abs() < 1e-10
    loss.backward()
    wanted.backward()
    gradients_as_weights(ours)
    pretrained.save(ours, tmp_path, format='hf')
    found = pretrained.files.Weights(tmp_path)
    for name, p in theirs.named_parameters():
        if p.grad is None or name not in found:
            continue
        grad, written = p.grad, found.load(name)
        if name.endswith(('shared.weight', 'embed_tokens.weight')):  # the row of padding has none in theirs
            grad, written = grad[1:], written[1:]
        if 'embed_positions' in name and case.type == 'bart':
            grad, written = grad[2:], written[2:]
        assert (written - grad).abs().max() < 1e-8, name


@pytest.mark.parametrize('case', [case for case in SEQ2SEQ_CASES if case.number == 0], ids=str)
def test_half_precision(case):
    """No further from float64 than 1.5 times what theirs is."""
    theirs, folder = checkpoint(case)
    target = ids(11, 2)
    exact = of_theirs(case, widened(theirs), target)
    half = of_theirs(case, copy.deepcopy(theirs).bfloat16(), target)
    ours = of_ours(case, pretrained.load(folder, dtype=torch.bfloat16), target)
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).square().mean().sqrt() < 1.5 * (half - exact).square().mean().sqrt()


@pytest.mark.parametrize('name', ['BartModel', 'T5Model'])
def test_a_file_without_a_head_has_that_of_the_table(name, tmp_path):
    case = next(case for case in SEQ2SEQ_CASES if name.lower().startswith(case.type))
    theirs, folder = checkpoint(case)
    (theirs.model if name == 'BartModel' else getattr(transformers, name).from_pretrained(folder)).save_pretrained(
        tmp_path
    )
    ours, info = pretrained.load(tmp_path, return_info=True)
    assert info.tied and not info.new
    wanted, target = pretrained.load(folder), ids(11, 2)
    bias = 0.0 if wanted.decoder.net.to_logits.bias is None else wanted.decoder.net.to_logits.bias
    assert (of_ours(case, ours, target) + bias - of_ours(case, wanted, target)).abs().max() < 1e-4


@pytest.mark.parametrize('type, fields, words', [
    ('t5', dict(is_decoder=True), 'is_decoder'),
    ('t5', dict(feed_forward_proj='twice-relu'), 'feed_forward_proj'), ('t5', dict(dense_act_fn='sharkfin'), 'gated'),
    ('t5', dict(num_decoder_layers=3), r'decoder\.block\.2'),
    ('t5', dict(vocab_size=97), 'shared.weight'),
    ('bart', dict(normalize_before=True), 'normalize_before'),
    ('bart', dict(activation_function='sharkfin'), 'activation_function'),
    ('bart', dict(decoder_attention_dropuot=0.5), 'decoder_attention_dropuot'),
    ('marian', dict(share_encoder_decoder_embeddings=False), 'embed_tokens'),
    ('whisper', dict(use_weighted_layer_sum=True), 'use_weighted_layer_sum'),
    ('whisper', dict(max_source_positions=10), 'embed_positions'),
])  # fmt: skip
def test_refusals(type, fields, words, tmp_path):
    folder = checkpoint(next(case for case in SEQ2SEQ_CASES if case.type == type))[1]
    config = json.loads((folder / 'config.json').read_text())
    shutil.copytree(folder, tmp_path / 'changed')
    (tmp_path / 'changed' / 'config.json').write_text(json.dumps({**config, **fields}))
    with pytest.raises(ConfigError, match=words):
        pretrained.load(tmp_path / 'changed')
