"""Folders of models, without the other library: what the table says, options of loading, refusals, both formats."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pretrained_cases import CASES, HEAD_CASES, IMAGE_CASES, SEQ2SEQ_CASES, TOWER_CASES, Case

from x_transformers import (
    AutoregressiveWrapper,
    Classifier,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    pretrained,
)
from x_transformers.features import AttentionFeature, ModelFeature, flag
from x_transformers.flags import ConfigError
from x_transformers.flags.config import decode
from x_transformers.pretrained.__main__ import main
from x_transformers.pretrained.described import canonicalize, find_differences, get_call, infer_config
from x_transformers.pretrained.engine import build, list_saved, make_plan as plan_of, make_steps
from x_transformers.pretrained.heads import NOTHING, HeadSpec, find_spec
from x_transformers.pretrained.options import add_keywords
from x_transformers.pretrained.specs import SPECS, Fields

EVERY = [*CASES, *SEQ2SEQ_CASES, *IMAGE_CASES, *TOWER_CASES]
BASES = [case for case in EVERY if case.number == 0]
IDS = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(0))
# four decoders and an encoder, which differ in most of what tables can say
WRITTEN = ['llama', 'gpt2', 'qwen3_moe', 'gemma2', 'bert']


def config_of(case: Case):
    """As a file would say it, with fields left out that have defaults."""
    kind = {} if case.kind in ('CausalLM', 'MaskedLM', 'Seq2SeqLM') else {'architectures': [case.kind]}
    return json.loads(json.dumps({'model_type': case.type, **kind, **case.config}))


@functools.cache
def model_of(kind: str):
    torch.manual_seed(0)
    config = config_of(next(case for case in BASES if case.type == kind))
    model = decode(pretrained.keywords(config)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn(p.shape, generator=generator)
    return model


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A model that was never loaded, as a folder of a type."""
    pytest.importorskip('safetensors')

    @functools.cache
    def of(kind):
        path = tmp_path_factory.mktemp(kind)
        pretrained.save(model_of(kind), path, hf_type=kind)
        return path

    return of


def same_weights(a, b):
    state, other = a.state_dict(), b.state_dict()
    assert state.keys() == other.keys()
    for name, t in state.items():
        assert torch.equal(t, other[name]), name


# the table


def check_row(case):
    """Every weight once, in both directions; keywords that JSON holds."""
    config = config_of(case)
    call = pretrained.keywords(config)
    model = build(call)
    assert not find_differences(canonicalize(json.loads(json.dumps(call))), canonicalize(get_call(model)))
    fields = Fields(pretrained.specs.get_spec(config), config)
    ours = list_saved(model)
    steps = make_steps(fields.spec, fields, ours)
    theirs = [name for step in steps for name in step.theirs]
    assert len(theirs) == len(set(theirs))
    assert sorted(name for step in steps for name in step.ours) == sorted(ours)
    for step in steps:
        given = {name: torch.randn(ours[name].shape) for name in step.ours}
        back = step.read(step.write(given).__getitem__)
        for name, t in given.items():
            close = torch.equal if step.change.exact else torch.allclose
            assert close(back[name], t), (step.theirs, step.change.name)


@pytest.mark.costly
def test_every_row_gives_each_weight_once():
    for case in BASES:
        check_row(case)


@pytest.mark.costly
def test_no_row_loads_the_compiler_of_torch():
    """A model without values, and shapes of its files. In a process of its own, since tests here compile."""
    code = """
import json, sys
from pretrained_cases import CASES, HEAD_CASES, IMAGE_CASES, SEQ2SEQ_CASES, TOWER_CASES
from x_transformers.pretrained import engine, keywords, specs
for case in (*CASES, *IMAGE_CASES, *SEQ2SEQ_CASES, *TOWER_CASES):
    if case.number:
        continue
    config = json.loads(json.dumps({'model_type': case.type, 'architectures': [case.kind], **case.config}))
    fields = specs.Fields(specs.get_spec(config), config)
    ours = engine.list_saved(engine.build(fields.keywords()))
    steps = engine.make_steps(fields.spec, fields, ours)
    for step in steps:
        step.write(ours)
    heavy = [name for name in sys.modules if name.startswith(('torch._dynamo', 'torch._inductor', 'sympy'))]
    assert not heavy, (case.type, heavy[:3])
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=Path(__file__).parent)
    assert not done.returncode, done.stderr


@pytest.mark.slow
def test_so_does_every_case():
    for case in EVERY:
        check_row(case)


@pytest.mark.parametrize('kind', [row.type for row in pretrained.supported() if row.fixed])
def test_what_a_type_does_not_compute_is_refused_by_field(kind):
    row = SPECS[kind]
    config = {'model_type': kind}
    for name, allowed in row.fixed.items():
        wrong = 'something' if isinstance(allowed[0], str) or allowed[0] is None else not allowed[0]
        if isinstance(allowed[0], (int, float)) and not isinstance(allowed[0], bool):
            wrong = allowed[0] + 3
        with pytest.raises(ConfigError, match=f'`{name}` of this {kind} checkpoint'):
            pretrained.keywords({**config, name: wrong})
    for name in ('quantization_config', 'a_field_of_tomorrow'):
        with pytest.raises(ConfigError, match=f'`{name}` of this {kind} checkpoint'):
            pretrained.keywords({**config, name: {'bits': 4}})


def test_fields_that_say_nothing(folder, tmp_path):
    """Words of tools, and unknown ones that the user passes over; of models within a model too."""
    nothing = dict(
        unsloth_version='2024.9', _attn_implementation_autoset=True, pruned_heads={}, torchscript=False,
        is_decoder=True, pretraining_tp=2, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False,
        a_field_of_tomorrow=None,
        **{'transformers.js_config': {'dtype': 'q4'}},
    )  # fmt: skip
    config = json.loads((folder('llama') / 'config.json').read_text())
    path = shutil.copytree(folder('llama'), tmp_path / 'm')
    (path / 'config.json').write_text(json.dumps({**config, **nothing}))
    same_weights(pretrained.load(path), model_of('llama'))
    for wrong in (dict(lm_head_bias=True), dict(full_attn_mod=2), dict(tomorrow=False), dict(quantization={'bits': 4})):
        with pytest.raises(ConfigError, match=f'`{next(iter(wrong))}` of this llama checkpoint'):
            pretrained.keywords({**config, **wrong})
    (path / 'config.json').write_text(json.dumps({**config, 'tomorrow': 3, 'later': False}))
    with pytest.raises(ConfigError, match=r"`tomorrow` .* is 3, .*`unknown=\['tomorrow', 'later'\]` ignores it"):
        pretrained.load(path)
    for unknown in ('ignore', ['later', 'tomorrow'], ('tomorrow', 'later', 'absent')):
        net, info = pretrained.load(path, unknown=unknown, return_info=True)
        assert sorted(info.passed) == ['later', 'tomorrow']
    pretrained.save(net, tmp_path / 'again')
    assert pretrained.load(tmp_path / 'again', return_info=True)[1].passed == []
    with pytest.raises(ConfigError, match='`tomorrow`'):
        pretrained.load(path, unknown='later')
    with pytest.raises(ConfigError, match='`unknown` cannot ignore `hidden_size`, which a llama needs'):
        pretrained.load(path, unknown=['hidden_size'])
    with pytest.raises(TypeError, match=r'`unknown` must be .*, got 3'):
        pretrained.load(path, unknown=3)
    clip = config_of(next(case for case in BASES if case.type == 'clip'))
    clip['text_config'] = {**clip['text_config'], 'tomorrow': 3}
    with pytest.raises(ConfigError, match='`tomorrow` of this clip_text_model checkpoint'):
        pretrained.keywords(clip)
    assert pretrained.keywords(clip, unknown='tomorrow')


# a model that was never loaded


@pytest.mark.costly
@pytest.mark.parametrize('kind', WRITTEN)
def test_a_model_that_was_never_loaded_is_written_and_read(folder, kind):
    loaded, info = pretrained.load(folder(kind), return_info=True)
    assert info.type == kind and not info.new
    same_weights(loaded, model_of(kind))
    assert torch.equal(loaded(IDS), model_of(kind)(IDS))


@pytest.mark.parametrize(
    'case', [pytest.param(case, marks=pytest.mark.slow) for case in (*CASES, *IMAGE_CASES, *TOWER_CASES)], ids=str
)
def test_a_config_is_found_for_the_keywords_of_every_type(case):
    check_found(case)


FEW = 'BertModel BertForTokenClassification LlamaForSequenceClassification T5EncoderModel BartForSequenceClassification'


@pytest.mark.costly
def test_configs_of_other_heads_and_of_decoders_with_a_source_are_found():
    for case in [*(case for case in HEAD_CASES if case.kind in FEW.split()), *SEQ2SEQ_CASES]:
        check_found(case)


def check_found(case):
    """A config of the same keywords and the same weights; of which ids are special it says no more than keywords do."""
    config = config_of(case)
    fields = Fields(find_spec(config), config)
    found = infer_config(build(fields.keywords()), bool(fields.tied), fields.spec.type)
    row = find_spec(found)
    assert row.architectures == fields.spec.architectures
    assert [s.theirs for s in plan_of(found, row)] == [s.theirs for s in plan_of(config, row)]
    known = found.get('vocab_size', 0)
    assert all(value is None or value < known for name, value in found.items() if name.endswith('_token_id'))


def test_a_config_has_the_names_that_are_read():
    net = build(pretrained.keywords(dict(model_type='gpt2', n_embd=16, n_layer=1, n_head=2, n_inner=24, vocab_size=9)))
    config = infer_config(net, True, 'gpt2')
    assert dict(n_inner=24, activation_function='gelu_new', layer_norm_epsilon=1e-5).items() <= config.items()
    assert config.keys().isdisjoint({'intermediate_size', 'hidden_act', 'layer_norm_eps'})
    assert all(config[f'{kind}_token_id'] is None for kind in ('pad', 'bos', 'eos'))


def test_turned_features_are_written_as_a_number():
    for width, turned in ((128, 64), (48, 32), (32, 32)):
        said, meant = (
            canonicalize(get_call(Decoder(dim=8, depth=1, heads=1, attn_dim_head=width, rotary_pos_emb=True, **own)))
            for own in ({}, dict(rotary_emb_dim=turned))
        )
        assert said == meant and said['rotary_emb_dim'] == turned


def test_keywords_of_ones_own_words_are_a_llama():
    """Other keywords that come to the same."""
    net = TransformerWrapper(
        num_tokens=96, max_seq_len=64, use_abs_pos_emb=False,
        attn_layers=Decoder(
            dim=32, depth=2, heads=4, attn_one_kv_head=True, attn_dim_head=8, use_rmsnorm=True, norm_eps=1e-6,
            norm_add_unit_offset=False, rotary_pos_emb=True, rotary_emb_dim=8, ff_glu=True, ff_swish=True,
            ff_no_bias=True, ff_glu_bias=False, ff_mult=2,
        ),
    )  # fmt: skip
    config = infer_config(net, False, 'llama')
    wanted = dict(
        num_key_value_heads=1, head_dim=8, intermediate_size=64, max_position_embeddings=64, hidden_act='silu'
    )
    assert {name: config[name] for name in wanted} == wanted


def test_keywords_of_ones_own_words_are_a_t5():
    """Of both sides, what follows from other keywords, and what changes nothing, left out."""
    side = dict(
        num_tokens=9, depth=1, heads=4, attn_dim_head=8, max_seq_len=0, use_rmsnorm=True, norm_add_unit_offset=False,
        norm_eps=1e-6, attn_softmax_scale=1.0, rel_pos_bias=True, rel_pos_kwargs={'scale': 1.0}, ff_no_bias=True,
        ff_glu=True, ff_glu_bias=False, ff_mult=2, attn_kv_heads=4,
    )  # fmt: skip
    both = {which + name: value for which in ('enc_', 'dec_') for name, value in side.items()}
    net = XTransformer(
        dim=32, tie_token_emb=True, pad_value=1, dec_tie_embedding=True, dec_tie_embedding_scale=1.0, **both
    )
    config = infer_config(net, True, 't5')
    wanted = dict(
        d_ff=64, d_kv=8, feed_forward_proj='gated-gelu', dense_act_fn='gelu', pad_token_id=1, eos_token_id=None,
        scale_decoder_outputs=False,
    )  # fmt: skip
    assert {name: config[name] for name in wanted} == wanted


@pytest.mark.costly
@pytest.mark.parametrize('changed, words', [
    (dict(attn_talking_heads=True), 'attn_talking_heads'),
    (dict(attn_num_mem_kv=2), 'attn_num_mem_kv'),
    (dict(use_rmsnorm=False), 'norm_add_unit_offset'),
])  # fmt: skip
def test_what_a_type_has_no_field_for_is_refused_by_keyword(changed, words):
    call = json.loads(json.dumps(get_call(model_of('llama'))))
    call['attn_layers'].update(changed)
    if changed == dict(use_rmsnorm=False):
        call['attn_layers'].pop('norm_add_unit_offset')
    with pytest.raises(ConfigError, match=f'llama: .*{words}'):
        pretrained.save(decode(call), 'nowhere', hf_type='llama')
    with pytest.raises(ConfigError, match=r'cannot be written.*mistral: '):
        pretrained.save(decode(call), 'nowhere')


def test_a_model_of_other_classes_is_refused_by_their_names():
    net = TransformerWrapper(
        num_tokens=9, max_seq_len=8, return_only_embed=True, attn_layers=Decoder(dim=8, depth=1, heads=1)
    )
    words = (
        'bert: would be TransformerWrapper(Encoder) or Classifier(TransformerWrapper(Encoder)), here it is Classifier('
    )
    with pytest.raises(ConfigError, match=re.escape(words + 'TransformerWrapper(Decoder))')):
        pretrained.save(Classifier(net, num_classes=2), 'nowhere', hf_type='bert')


def test_heads_that_cannot_be_told_apart_are_named(monkeypatch):
    row = SPECS['llama']
    monkeypatch.setitem(SPECS, 'llama', replace(row, heads={**row.heads, 'again': HeadSpec(('Backbone',), NOTHING)}))
    net = build({**pretrained.keywords({'model_type': 'llama'}), 'return_only_embed': True})
    with pytest.raises(ConfigError, match='LlamaModel and LlamaBackbone say the same'):
        infer_config(net, True, 'llama')


def test_padding_that_is_no_token_is_refused():
    call = pretrained.keywords(config_of(next(case for case in BASES if case.type == 'bart')))
    for pad in (-1, 96):
        with pytest.raises(ConfigError, match=f'bart: `pad_token_id` would be {pad}, which is no token'):
            infer_config(build({**call, 'pad_value': pad}), True, 'bart')


def test_several_types_that_fit_are_named():
    with pytest.raises(ConfigError, match='`hf_type` must be one of llama, mistral'):
        pretrained.save(model_of('llama'), 'nowhere')
    with pytest.raises(ConfigError, match='did you mean `llama`'):
        pretrained.save(model_of('llama'), 'nowhere', hf_type='lama')


# the format of this library


def test_own_format(tmp_path):
    pytest.importorskip('safetensors')
    net = AutoregressiveWrapper(TransformerWrapper(
        num_tokens=20, max_seq_len=16, tie_embedding=True,
        attn_layers=Decoder(dim=16, depth=2, heads=2, alibi_pos_bias=True, attn_num_mem_kv=2, weight_tie_layers=True),
    ))  # fmt: skip
    net.save_pretrained(tmp_path)
    assert json.loads((tmp_path / 'config.json').read_text())['model_type'] == 'x_transformers'
    for loaded in (AutoregressiveWrapper.from_pretrained(tmp_path), pretrained.load(tmp_path / 'config.json')):
        same_weights(loaded, net)
        assert type(loaded) is AutoregressiveWrapper and not loaded.training
        assert loaded.net.token_emb.emb.weight.requires_grad
        ids = IDS[:, :8] % 20
        assert torch.equal(loaded.net(ids), net.eval().net(ids))
    (tmp_path / 'config.json').write_text(json.dumps(net.config))  # that of the model alone
    same_weights(AutoregressiveWrapper.from_pretrained(tmp_path), net)
    half = pretrained.load(tmp_path, dtype=torch.bfloat16, num_tokens=24)
    assert half.net.num_tokens == 24 and half.net.token_emb.emb.weight.dtype is torch.bfloat16
    assert half.net(IDS[:, :8] % 20).shape[-1] == 24


class Shouting(TransformerWrapper):
    """A user's own, with more to it."""

    def shout(self):
        return 'MINE'


def test_wrappers_read_and_write_folders(folder, tmp_path):
    assert isinstance(TransformerWrapper.from_pretrained(folder('llama')), TransformerWrapper)
    mine = Shouting.from_pretrained(folder('llama'), dtype='float64')
    assert mine.shout() == 'MINE' and mine.token_emb.emb.weight.dtype is torch.float64
    with pytest.raises(TypeError, match='a llama checkpoint is a TransformerWrapper, not a ViTransformerWrapper'):
        ViTransformerWrapper.from_pretrained(folder('llama'))
    for name in ('tokenizer.json', 'merges.txt', 'other.json'):
        (tmp_path / name).write_text(name)
    mine.save_pretrained(tmp_path / 'written', format='hf', tokenizer_from=tmp_path)
    copied = {path.name for path in (tmp_path / 'written').iterdir() if path.read_bytes() == path.name.encode()}
    assert copied == {'tokenizer.json', 'merges.txt'}
    mine.save_pretrained(tmp_path, format='hf')
    same_weights(pretrained.load(tmp_path), pretrained.load(folder('llama'), dtype='float64'))


def test_a_classifier_of_ones_own_wrapper_is_written_and_read(tmp_path):
    pytest.importorskip('safetensors')
    call = {**get_call(model_of('llama')), 'class': 'Shouting', 'return_only_embed': True}
    net = Classifier(decode(call), num_classes=2, token='last', pad_id=5, bias=False)
    pretrained.save(net, tmp_path, hf_type='llama')
    config = json.loads((tmp_path / 'config.json').read_text())
    assert config['architectures'] == ['LlamaForSequenceClassification'] and config['pad_token_id'] == 5
    loaded = pretrained.load(tmp_path)
    same_weights(loaded, net)
    assert loaded.pad_id == 5 and type(loaded.net) is TransformerWrapper


def with_tensors(source, target, **more):
    """A folder with further tensors, or others."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    (target / 'config.json').write_text((source / 'config.json').read_text())
    tensors = load_file(source / 'model.safetensors') | more
    save_file(tensors, target / 'model.safetensors', {'format': 'pt'})
    return target, tensors


@pytest.mark.parametrize('has_head, has_bias', [(True, True), (False, True), (True, False)])
def test_tensors_that_may_be_copies_count_where_they_are_none(folder, has_head, has_bias, tmp_path):
    names = {'weight': 'bert.embeddings.word_embeddings.weight', 'bias': 'cls.predictions.bias'}
    wanted = {'weight': has_head, 'bias': has_bias}
    source, tensors = with_tensors(folder('bert'), tmp_path / 'plain')
    own = {end: torch.randn(tensors[names[end]].shape) for end in names if wanted[end]}
    said = {f'cls.predictions.decoder.{end}': own.get(end, tensors[names[end]]) for end in names}
    said = {name: t.clone() for name, t in said.items()}
    source, tensors = with_tensors(folder('bert'), tmp_path / 'twice', **said)
    model, info = pretrained.load(source, return_info=True)
    assert info.tied != has_head and ('to_logits.weight' in model.state_dict()) == has_head
    if has_head:
        assert torch.equal(model.to_logits.weight, own['weight'])
    assert torch.equal(model.to_logits.bias, own['bias'] if has_bias else tensors[names['bias']])
    pretrained.save(model, tmp_path / 'again')
    _, again = with_tensors(tmp_path / 'again', tmp_path / 'copy')
    once = set() if has_head else {'cls.predictions.decoder.weight'}  # a head that is the table
    assert again.keys() == tensors.keys() - once and all(torch.equal(t, tensors[name]) for name, t in again.items())


YARN = dict(rope_type='yarn', factor=4.0, original_max_position_embeddings=8)


@pytest.mark.parametrize('kind, config, keyword, value', [
    ('gpt_oss', dict(rope_scaling=YARN), 'rotary_scaling', {'kind': 'yarn', 'factor': 4.0, 'length': 8}),
    ('llama', dict(rope_parameters={'rope_theta': 5.0}, rope_scaling=YARN), 'rotary_theta', 10000.0),
    ('gpt_neox', dict(rope_theta=500.0, partial_rotary_factor=1.0), 'rotary_theta', 10000.0),
    ('gpt_neox', dict(rotary_pct=1.0, partial_rotary_factor=0.5), 'rotary_emb_dim', 96),
    ('mistral', dict(sliding_window=4, layer_types=['sliding_attention'] * 32), 'attn_max_attend_past', 3),
    ('mistral', dict(sliding_window=None, layer_types=['full_attention'] * 32), 'attn_max_attend_past', None),
    ('qwen2', dict(sliding_window=4, layer_types=['sliding_attention'] * 32), 'attn_max_attend_past', None),
    ('smollm3', dict(sliding_window=4, layer_types=['sliding_attention'] * 36), 'attn_max_attend_past', 3),
    ('gpt2', dict(hidden_act='relu'), 'ff_activation', 'gelu_tanh'),
    ('deberta_v2', dict(pos_att_type=['c2p', 'p2c']), 'attn_softmax_scale', (3 * 64) ** -0.5),
    ('deepseek_v3', dict(n_shared_experts=0), 'ff_moe_shared', None),
])  # fmt: skip
def test_fields_are_read_by_the_rules_of_their_classes(kind, config, keyword, value):
    assert pretrained.keywords({'model_type': kind, **config})['attn_layers'].get(keyword) == value


def test_a_refusal_names_the_field_that_a_keyword_comes_from(folder, tmp_path):
    source, _ = with_tensors(folder('llama'), tmp_path / 'folder')
    config = json.loads((source / 'config.json').read_text())
    (source / 'config.json').write_text(json.dumps({**config, 'rms_norm_eps': 0.0}))
    with pytest.raises(
        ConfigError, match=r'`norm_eps` must be a positive number or None, got 0\.0.*says so by `rms_norm_eps`'
    ):
        pretrained.load(source)
    (source / 'config.json').write_text(json.dumps({**config, 'num_attention_heads': None}))
    with pytest.raises(ConfigError, match=r'`num_attention_heads` .* must be a number, got None'):
        pretrained.load(source)


def test_a_head_that_equals_the_table_is_written_once(tmp_path):
    net = copy.deepcopy(model_of('llama'))
    with torch.no_grad():
        net.to_logits.weight.copy_(net.token_emb.emb.weight)
    pretrained.save(net, tmp_path / 'twice', hf_type='llama')
    once = pretrained.load(tmp_path / 'twice')
    assert 'to_logits.weight' not in once.state_dict()
    pretrained.save(once, tmp_path / 'once')
    again, info = pretrained.load(tmp_path / 'once', return_info=True)
    assert info.config['tie_word_embeddings'] and torch.equal(again(IDS), net(IDS))


def test_what_cannot_be_written(folder, tmp_path):
    net, path = pretrained.load(folder('llama')), tmp_path / 'new'
    for given, error, words in (
        (dict(generation='greedy'), TypeError, '`generation` must be a dict or None, got .greedy.'),
        (
            dict(tokenizer_from=tmp_path / 'nowhere'),
            NotADirectoryError,
            '`tokenizer_from` must be a folder, got .*nowhere',
        ),
        (dict(max_shard_size='0GB'), ValueError, '`max_shard_size` must be .*, got .0GB.'),
    ):
        with pytest.raises(error, match=words):
            pretrained.save(net, path, **given)
    with pytest.raises(TypeError, match='`model` must be a model of this library, got a Linear'):
        pretrained.save(torch.nn.Linear(2, 2), path, format='own')
    for format in ('hf', 'own'):
        net.token_emb.emb.weight.full_tensor = None  # as tensors have that lie on several devices
        with pytest.raises(
            ValueError, match=r'`token_emb.emb.weight` of the model must not be distributed over several devices'
        ):
            pretrained.save(net, path, format=format)
    del net.token_emb.emb.weight.full_tensor
    net.token_emb.emb.weight.data = torch.zeros(100, 32)
    with pytest.raises(ConfigError, match=r'`token_emb.emb.weight` of the model has shape \(100, 32\), .* \(96, 32\)'):
        pretrained.save(net, path)
    net.token_emb.emb.weight.data, net.more = torch.zeros(96, 32), torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r'`more.weight` of the model has shape \(2, 2\), .* is missing'):
        pretrained.save(net, path)


def test_the_mixin_of_the_hub(tmp_path):
    pytest.importorskip('huggingface_hub', reason='pip install -e .[hub]')
    pytest.importorskip('safetensors')

    class OnTheHub(pretrained.HubMixin, TransformerWrapper):
        pass

    stack = Decoder(dim=16, depth=1, heads=2)
    net = OnTheHub(num_tokens=20, max_seq_len=8, attn_layers=stack)
    net.save_pretrained(tmp_path)
    again = OnTheHub.from_pretrained(tmp_path)
    assert type(again) is OnTheHub
    same_weights(again, net)


# options of loading


def test_more_tokens_begin_as_the_mean(folder, tmp_path):
    net = pretrained.load(folder('gpt2'), num_tokens=100)
    before = model_of('gpt2').token_emb.emb.weight
    table = net.token_emb.emb.weight
    assert table.shape[0] == 100 and torch.equal(table[:96], before)
    torch.testing.assert_close(table[96:], before.mean(dim=0).expand(4, -1))
    torch.testing.assert_close(net(IDS)[..., :96], model_of('gpt2')(IDS))
    assert pretrained.load(folder('gpt2'), num_tokens=100, num_classes=2).net.num_tokens == 100
    pretrained.save(net, tmp_path)
    assert json.loads((tmp_path / 'config.json').read_text())['vocab_size'] == 100
    same_weights(pretrained.load(tmp_path), net)
    for wrong, error in ((95, ConfigError), (97.0, TypeError)):
        with pytest.raises(error, match=r'`num_tokens` must be .*, got 9'):
            pretrained.load(folder('gpt2'), num_tokens=wrong)


def test_what_learns(folder, tmp_path):
    def learning(**options):
        net = pretrained.load(folder('llama'), **options)
        return {name for name, p in net.named_parameters() if p.requires_grad}

    assert learning(trainable='head') == {'to_logits.weight'}
    wrapped = AutoregressiveWrapper(pretrained.load(folder('llama')))
    wrapped.save_pretrained(tmp_path)
    trained = pretrained.load(tmp_path, trainable='head')
    assert [name for name, p in trained.named_parameters() if p.requires_grad] == ['net.to_logits.weight']
    last = 'attn_layers.layers.5'
    assert all(name.startswith((last, 'to_logits')) for name in learning(trainable=[last, 'to_logits']))
    assert len(learning()) > len(learning(trainable=last)) > 0
    with pytest.raises(ValueError, match=r'`trainable` must be prefixes of parameters, got .attn_layer.'):
        learning(trainable='attn_layer')
    with pytest.raises(ValueError, match='no head with separate parameters'):
        pretrained.load(folder('gpt2'), trainable='head')


def test_padding_may_have_no_gradient(folder, tmp_path):
    with pytest.raises(ValueError, match='without `pad_token_id`'):
        pretrained.load(folder('llama'), freeze_pad=True)
    padded = tmp_path / 'padded'
    shutil.copytree(folder('llama'), padded)
    config = json.loads((padded / 'config.json').read_text())
    (padded / 'config.json').write_text(json.dumps({**config, 'pad_token_id': 0}))
    for freeze_pad in (False, True):
        net = pretrained.load(padded, freeze_pad=freeze_pad).train()
        ids = IDS.clone()
        ids[:, -3:] = 0
        net(ids).square().sum().backward()
        assert (net.token_emb.emb.weight.grad[0].abs().sum() == 0) == freeze_pad
        assert net.token_emb.emb.weight.grad[5:].abs().sum() > 0


def test_keywords_beside_those_of_the_config(folder):
    path = folder('llama')
    net = pretrained.load(path, dropout=0.25, attn_flash=True, num_memory_tokens=None, emb_dropout=0.25)
    assert net.config['emb_dropout'] == 0.25 and net.attn_layers.config['attn_dropout'] == 0.25
    torch.testing.assert_close(net(IDS), model_of('llama')(IDS))
    with pytest.raises(ConfigError, match=r'`attn_num_mem_kv` add .*mem_k.*strict=False'):
        pretrained.load(path, attn_num_mem_kv=2)
    torch.manual_seed(3)
    net, info = pretrained.load(path, attn_num_mem_kv=2, strict=False, return_info=True)
    assert info.new and all('mem_' in name for name in info.new)
    assert all(p.isfinite().all() and not p.is_meta for p in net.parameters())
    net, info = pretrained.load(path, use_layerscale=True, strict=False, return_info=True)  # around each branch
    assert info.new == sorted(f'attn_layers.layers.{at}.1.gamma' for at in range(6))
    with pytest.raises(ConfigError, match=r'`use_layerscale` of the model must be .*, got True'):
        pretrained.save(net, 'nowhere')
    net = pretrained.load(path, attn_num_mem_kv=2, strict=False)
    with pytest.raises(ConfigError, match=r'`attn_num_mem_kv` of the model must be .*, got 2'):
        pretrained.save(net, 'nowhere')
    with pytest.raises(ConfigError, match=r'attn_num_mem_kx.*did you mean `attn_num_mem_kv`'):
        pretrained.load(path, attn_num_mem_kx=2)


class Tilt(AttentionFeature):
    """Add a number to the scores of each head, from a table that no file holds."""

    tilt = flag(0.0, 'how much')

    def setup(self, owner):
        self.table = self.tilt * torch.arange(1.0, 5.0)[:, None, None]

    def scores(self, sim, call):
        return sim * (1 + self.table)


class Doubled(ModelFeature):
    """Logits twice as large."""

    doubled = flag(False, 'twice as large')

    def logits(self, x, call):
        return 2 * x


def test_features_of_ones_own(folder, tmp_path):
    given = dict(tilt=0.5, doubled=True, features=(Tilt, Doubled))
    net = pretrained.load(folder('llama'), **given)
    plain = pretrained.load(folder('llama'), features=(Tilt,), attn_tilt=0.5)
    assert net.features.find(Doubled) and not plain.features.find(Doubled)
    assert torch.equal(net(IDS), 2 * plain(IDS)) and not torch.allclose(plain(IDS), model_of('llama')(IDS))
    net.save_pretrained(tmp_path)
    assert torch.equal(pretrained.load(tmp_path, attn_flash=False)(IDS), net(IDS))
    with pytest.raises(ConfigError, match='unknown keyword `tilt`'):
        pretrained.load(folder('llama'), tilt=0.5)


def test_keywords_go_to_both_towers():
    call = pretrained.keywords(config_of(next(case for case in BASES if case.type == 'clip')))
    call = add_keywords(call, dict(attn_flash=True))
    assert all(call[tower]['attn_layers']['attn_flash'] for tower in ('image', 'text'))


def test_types_and_devices(folder):
    path = folder('llama')
    net = pretrained.load(path, dtype='bfloat16', device_map={'': 'cpu', 'token_emb': 'cpu'})
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert net.attn_layers.rotary_pos_emb.inv_freq.dtype is torch.float32
    net = pretrained.load(path, device_map={'': 'cpu', 'attn_layers.layers': 'meta', 'attn_layers.layers.1': 'cpu'})
    elsewhere = {name for name, p in net.named_parameters() if p.is_meta}
    assert elsewhere == {name for name, _ in net.named_parameters() if re.match(r'attn_layers\.layers\.(?!1\.)', name)}
    for options, words in (
        (dict(dtype='int8'), '`dtype` must be'),
        (dict(device_map='auto'), "`device_map` must be .*, got 'auto'"),
        (dict(device_map={'token_emb': 'cpu'}), '`device_map` must have a prefix of'),
    ):
        with pytest.raises(ValueError, match=words):
            pretrained.load(path, **options)


def test_arguments_that_are_none(folder):
    for options, error in (
        (dict(trainable=3), TypeError), (dict(trainable=[]), ValueError), (dict(head=['lm']), ConfigError),
        (dict(device_map='nowhere'), ValueError), (dict(device_map={'': 'nowhere'}), ValueError),
        (dict(dropout=2.0), ValueError), (dict(dropout='a'), ValueError),
    ):  # fmt: skip
        with pytest.raises(error, match=f'`{next(iter(options))}` .*must '):
            pretrained.load(folder('llama'), **options)
    with pytest.raises(TypeError, match='`source` must be a path or a repository id, got 3'):
        pretrained.load(3)


@pytest.mark.parametrize('allow_pickle', [False, True])
def test_what_is_fetched_of_a_repository(folder, monkeypatch, allow_pickle):
    hub = pytest.importorskip('huggingface_hub', reason='pip install -e .[hub]')
    asked = {}
    monkeypatch.setattr(hub, 'snapshot_download', lambda name, **given: asked.update(given) or folder('llama'))
    pretrained.load('some/llama', revision='main', allow_pickle=allow_pickle)
    assert asked['revision'] == 'main' and ('*.bin' in asked['allow_patterns']) == allow_pickle
    assert {'*.safetensors', '*.json', 'chat_template*'} <= set(asked['allow_patterns'])


# files


def test_several_files(folder, tmp_path):
    net = pretrained.load(folder('llama'))
    pretrained.save(net, tmp_path, max_shard_size='8KB')
    index = json.loads((tmp_path / 'model.safetensors.index.json').read_text())
    files = set(index['weight_map'].values())
    assert len(files) > 3 and all((tmp_path / name).is_file() for name in files)
    same_weights(pretrained.load(tmp_path), net)
    (tmp_path / 'model_of_mine.safetensors').touch()
    pretrained.save(net, tmp_path)  # again, in one: nothing of before is left
    left = ['config.json', 'model.safetensors', 'model_of_mine.safetensors']
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    with pytest.raises(ValueError, match='`max_shard_size` must be'):
        pretrained.save(net, tmp_path, max_shard_size='5 parsecs')
    sizes = dict(a=4, b=4, c=5, d=20, e=1)
    assert pretrained.files.split_shards(sizes, 8) == [['a', 'b'], ['c'], ['d'], ['e']]


def test_files_that_are_not_what_the_config_says(folder, tmp_path):
    safe = pytest.importorskip('safetensors.torch')
    path = folder('llama')
    state, config = safe.load_file(path / 'model.safetensors'), (path / 'config.json').read_text()

    def tried(words, changed, **fields):
        (tmp_path / 'config.json').write_text(json.dumps({**json.loads(config), **fields}))
        safe.save_file({name: t.contiguous() for name, t in changed.items()}, tmp_path / 'model.safetensors')
        with pytest.raises(ConfigError, match=words):
            pretrained.load(tmp_path)

    name = 'model.layers.1.self_attn.q_proj.weight'
    tried(name, {n: t for n, t in state.items() if n != name})
    tried('model.layers.0.mlp.surprise', {**state, 'model.layers.0.mlp.surprise': torch.ones(2)})
    tried(rf'{name}. of the file must have shape .*, got \(3, 32\)', {**state, name: state[name][:3]})
    tried('`tie_word_embeddings` of its config is False', {n: t for n, t in state.items() if n != 'lm_head.weight'})
    bare = {n.removeprefix('model.'): t for n, t in state.items()}  # as base models are written
    safe.save_file(bare, tmp_path / 'model.safetensors')
    (tmp_path / 'config.json').write_text(config)
    same_weights(pretrained.load(tmp_path), model_of('llama'))


def test_files_that_cannot_be_read(folder, tmp_path):
    """Each is named, and the command ends with 2: 1 says that models differ."""
    pytest.importorskip('safetensors')
    path = tmp_path / 'several'
    pretrained.save(pretrained.load(folder('llama')), path, max_shard_size='8KB')
    index = json.loads((path / 'model.safetensors.index.json').read_text())
    where = index['weight_map']
    where['model.norm.weight'] = next(file for file in where.values() if file != where['model.norm.weight'])
    (path / 'model.safetensors.index.json').write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r'the file has no `model.norm.weight`'):  # which was alone in a file
        pretrained.load(path)
    (path / where['model.norm.weight']).write_bytes(b'no tensors')
    with pytest.raises(ValueError, match=rf'{where["model.norm.weight"]}. cannot be read'):
        pretrained.load(path)
    assert main(['convert', str(path), str(tmp_path / 'own')]) == 2
    (path / 'model.safetensors.index.json').unlink()
    (path / 'pytorch_model.bin').write_bytes(b'no pickle')
    with pytest.raises(ValueError, match=r'pytorch_model.bin. cannot be read'):
        pretrained.load(path, allow_pickle=True)


def test_configs_that_cannot_be_read(tmp_path, capsys):
    for rope in ({'rope_type': 'llama3', 'factor': 8.0}, 'yes'):
        with pytest.raises(ConfigError, match='cannot be found from the config of this llama checkpoint: '):
            pretrained.keywords({'model_type': 'llama', 'rope_parameters': rope})
    own = {'model_type': 'x_transformers'}
    for config in (None, [1], {'num_tokens': 3}, {'class': 'Decodr'}):
        with pytest.raises(ConfigError, match='`config` of this x_transformers checkpoint must be'):
            pretrained.keywords({**own, 'config': config})
    (tmp_path / 'config.json').write_text(json.dumps({**own, 'config': get_call(model_of('gpt2'))}))
    assert main(['inspect', str(tmp_path)]) == 0 and 'abs_pos_emb_scale' in capsys.readouterr().out
    (tmp_path / 'config.json').write_text(json.dumps(own))
    assert main(['inspect', str(tmp_path)]) == 2


def test_pickles_are_read_if_they_are_trusted(folder, tmp_path):
    safe = pytest.importorskip('safetensors.torch')
    (tmp_path / 'config.json').write_text((folder('llama') / 'config.json').read_text())
    torch.save(safe.load_file(folder('llama') / 'model.safetensors'), tmp_path / 'pytorch_model.bin')
    with pytest.raises(ValueError, match='allow_pickle=True'):
        pretrained.load(tmp_path)
    same_weights(pretrained.load(tmp_path, allow_pickle=True), model_of('llama'))


def test_sources_that_are_none(tmp_path):
    for path in ('./nowhere/at/all', './nowhere', '/nowhere', 'nowhere/at/all'):
        with pytest.raises(FileNotFoundError, match='no folder and no file'):
            pretrained.load(path, local_files_only=True)
    with pytest.raises(ValueError, match=r'has no config.json: it is empty'):
        pretrained.load(tmp_path)
    (tmp_path / 'config.json').write_text('{"model_type": "llama"}')
    with pytest.raises(FileNotFoundError, match=r'no model.safetensors'):
        pretrained.load(tmp_path)


# generation_config.json


def test_generation_defaults(folder, tmp_path):
    said = dict(max_new_tokens=6, do_sample=False, eos_token_id=[2, 5], repetition_penalty=1.3, no_repeat_ngram_size=2,
                temperature=0.6, top_p=0.9, bad_words_ids=[[7], [8, 9]], suppress_tokens=[11])  # fmt: skip
    pretrained.save(pretrained.load(folder('llama')), tmp_path, generation=said)
    net, info = pretrained.load(tmp_path, return_info=True)
    assert info.generation == said
    defaults = net.generation_defaults
    assert defaults['seq_len'] == 6 and defaults['eos_token'] == (2, 5) and defaults['temperature'] == 0
    tokens = AutoregressiveWrapper(net).generate(IDS, **defaults)
    assert tokens.shape[1] <= 6 and not (tokens == 11).any()
    for row in torch.cat((IDS, tokens), dim=1)[:, IDS.shape[1] - 1 :].tolist():
        pairs = list(itertools.pairwise(row))
        ended = next((i for i, token in enumerate(row[1:]) if token in (2, 5)), len(pairs))
        pairs = pairs[: ended + 1]
        assert len(set(pairs)) == len(pairs) and (8, 9) not in pairs and all(b != 7 for _, b in pairs)
    pretrained.save(net, tmp_path / 'again')
    assert json.loads((tmp_path / 'again' / 'generation_config.json').read_text()) == said


def test_generation_defaults_of_a_config(folder, tmp_path):
    """Without a generation_config.json: what config.json says of ends and choices."""
    path = shutil.copytree(folder('llama'), tmp_path / 'm')
    config = json.loads((path / 'config.json').read_text())
    for said, wanted in (
        ({'eos_token_id': [2, 5]}, {'eos_token': (2, 5), 'temperature': 0.0}),
        ({'eos_token_id': None}, {'temperature': 0.0}),
        ({'eos_token_id': 500}, {'temperature': 0.0}),  # beyond the vocabulary
        ({'eos_token_id': 3, 'repetition_penalty': 1.2}, dict(eos_token=3, repetition_penalty=1.2, temperature=0.0)),
    ):
        (path / 'config.json').write_text(json.dumps({**config, **said}))
        assert pretrained.load(path).generation_defaults == wanted
    assert pretrained.load(path, head='embed').generation_defaults and not pretrained.load(path).pretrained.generation
    assert pretrained.load(folder('bert')).generation_defaults == {}


def test_generation_defaults_that_sample(logged):
    from x_transformers.pretrained.generation import generation_keywords

    found = generation_keywords(dict(do_sample=True, temperature=0.5, top_p=0.9, min_p=0.1))
    names = [one.__name__ for one in found['filter_logits_fn']]
    assert names == ['top_k', 'top_p', 'min_p'] and found['filter_kwargs'][0] == {'k': 50}
    logits = torch.randn(3, 7)
    assert torch.equal(found['logits_processor'][0](IDS, logits), logits / 0.5)
    assert generation_keywords(dict(do_sample=True, top_k=0))['filter_logits_fn'] == ()  # which keeps all
    for greedy in (dict(bos_token_id=1), dict(do_sample=True, temperature=0.0)):
        assert generation_keywords(greedy) == dict(temperature=0.0)
    assert generation_keywords({}) == {}
    generation_keywords(dict(num_beams=4), 'test')
    assert any(re.search('`num_beams`.*beams=4', line) for line in logged)


def test_generation_defaults_of_decoders_with_a_source(logged):
    """A length counts the token that the decoder begins with, and so do places of tokens."""
    from x_transformers.pretrained.generation import (
        ForcedFirstToken,
        ForcedLastToken,
        SuppressedAtBegin,
        generation_keywords,
    )

    said = dict(max_length=9, forced_bos_token_id=4, forced_eos_token_id=2, begin_suppress_tokens=[5, 6])
    found = generation_keywords(said, has_source=True)
    assert found.pop('logits_processor') == (
        ForcedFirstToken((4,)),
        ForcedLastToken((2,)),
        SuppressedAtBegin((5, 6), True),
    )
    assert found == dict(seq_len=8, temperature=0.0) and found['seq_len'].total == 9
    found = generation_keywords(dict(begin_suppress_tokens=[5], max_new_tokens=3, max_length=9), has_source=True)
    assert found == dict(seq_len=3, temperature=0.0, logits_processor=(SuppressedAtBegin((5,)),))
    assert not logged


def test_a_type_of_ones_own():
    with pytest.raises(TypeError, match='must be a Row'):
        pretrained.register({'type': 'mine'})
    row = SPECS['bert'].like('of-mine', 'BertForMaskedLM')
    pretrained.register(row)
    try:
        call = pretrained.keywords({'model_type': 'of-mine'})
        assert call['attn_layers']['class'] == Encoder.__name__
    finally:
        del SPECS['of_mine']


def test_what_may_not_be_said():
    """Each step of the choice of a token, against a loop over rows and tokens."""
    from x_transformers.pretrained.generation import BadWords, NoRepeat, SuppressedAtBegin

    ids, logits = torch.randint(0, 4, (8, 9), generator=torch.Generator().manual_seed(5)), torch.zeros(8, 5)

    def said(row, token):
        return [*row.tolist(), token]

    def repeats(text, n):
        pieces = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
        return pieces[-1] in pieces[:-1]

    words = ((2,), (1, 3), (0, 1, 2), (1,) * 12)
    rules = [
        *((NoRepeat(n), functools.partial(repeats, n=n)) for n in (1, 2, 3)),
        (BadWords(words), lambda text: any(tuple(text[-len(word) :]) == word for word in words)),
        (SuppressedAtBegin((1, 2)), lambda text: text[-1] in (1, 2)),
    ]
    for rule, banned in rules:
        found = rule(ids, logits).isinf()
        wanted = torch.tensor([[banned(said(row, token)) for token in range(5)] for row in ids])
        assert torch.equal(found, wanted), rule
        assert not logits.isinf().any()
    assert torch.equal(NoRepeat(12)(ids, logits), logits)


def test_tensors_that_compute_nothing_are_left_out(tmp_path, logged):
    """Norms of relative positions that a DeBERTa does not have; layers of a DeepSeek that guess further tokens."""
    safe = pytest.importorskip('safetensors.torch')
    for kind, changed, more in (
        ('deberta-v2', dict(relative_attention=False), 'deberta.encoder.LayerNorm.weight'),
        ('deepseek_v3', {}, 'model.layers.3.embed_tokens.weight'),
    ):
        config = {**config_of(next(case for case in BASES if case.type == kind)), **changed}
        model = decode(pretrained.keywords(config))
        pretrained.save(model, tmp_path, hf_type=config['model_type'].replace('-', '_'))
        state = safe.load_file(tmp_path / 'model.safetensors')
        safe.save_file({**state, more: torch.ones(32)}, tmp_path / 'model.safetensors')
        again, info = pretrained.load(tmp_path, return_info=True)
        assert info.left == [more] and any(more in line for line in logged)
        same_weights(again, model)
