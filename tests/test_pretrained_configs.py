"""Tensors that a file may have twice, and fields of configs, read by the rules of the other library."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from config_sweep import LINEAR, YARN, changes_of, said_with
from pretrained_cases import (
    CASES,
    HEAD_CASES,
    IMAGE_CASES,
    SEQ2SEQ_CASES,
    TOWER_CASES,
    Case,
    check_same_tensors,
    checkpoint,
)

from x_transformers import pretrained
from x_transformers.flags import ConfigError
from x_transformers.pretrained.__main__ import compare_outputs
from x_transformers.pretrained.heads import find_spec

transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()
safetensors = pytest.importorskip('safetensors.torch')

pytestmark = pytest.mark.filterwarnings('ignore')  # those of the other library
slow = pytest.mark.slow
TWICE = [
    case
    for case in (*CASES, *SEQ2SEQ_CASES, *HEAD_CASES)
    if case.number == 0 or (case in HEAD_CASES and case.kind in ('T5EncoderModel', 'BertModel'))
]


def options_of(theirs):
    experts = {'experts_implementation': 'eager'} if 'experts' in str(theirs.config) else {}
    return {'attn_implementation': theirs.config._attn_implementation, **experts}


def folder_of(path, case, tensors, **fields):
    """A folder with these tensors, and the config of a case with other fields."""
    config = json.loads((checkpoint(case)[1] / 'config.json').read_text())
    path.mkdir()
    (path / 'config.json').write_text(json.dumps({**config, **fields}))
    safetensors.save_file(
        {name: t.clone() for name, t in tensors.items()}, path / 'model.safetensors', {'format': 'pt'}
    )
    return path


def check_alike(folder, theirs) -> None:
    """Equal outputs, and the same file again."""
    again, said = type(theirs).from_pretrained(folder, output_loading_info=True, **options_of(theirs))
    ours = pretrained.load(folder)
    worst, size = compare_outputs(ours, again.eval())
    assert worst < 1e-4 * max(size, 1.0) or said['missing_keys']  # which theirs draws anew
    pretrained.save(ours, folder.parent / f'{folder.name} again')
    back = type(theirs).from_pretrained(folder.parent / f'{folder.name} again', **options_of(theirs))
    assert compare_outputs(ours, back.eval())[0] < 1e-4 * max(size, 1.0) or said['missing_keys']


def check_kept(folder, again) -> None:
    """That every tensor is written again. Where only one side has a table of its own, that of the other is too."""
    before, after = (safetensors.load_file(path / 'model.safetensors') for path in (folder, again))
    more = sorted(after.keys() - before.keys())
    assert all(torch.equal(after[name], t) for name, t in before.items())
    assert not more or (
        len(more) < 3 and all(name.endswith(('embed_tokens.weight', 'lm_head.weight')) for name in more)
    )


@slow
@pytest.mark.parametrize('case', TWICE, ids=lambda case: f'{case.type}-{case.kind}')
def test_tensors_that_may_be_copies(case, tmp_path):
    """Of equal values they change nothing. Of other values they count, or are refused by name."""
    theirs, folder = checkpoint(case)
    tensors = safetensors.load_file(folder / 'model.safetensors')
    row = find_spec(json.loads((folder / 'config.json').read_text()))
    head = {} if row.tied is None else {row.tied[0]: row.tied[1]}
    sources = {copy: source for copy, source in {**row.copies, **head}.items() if source in tensors}
    for n, (copy, source) in enumerate(sources.items()):
        if copy in tensors:  # an own head
            continue
        equal = folder_of(tmp_path / f'equal {n}', case, {**tensors, copy: tensors[source]})
        assert pretrained.load(equal, return_info=True)[1].ignored == [copy]
        check_alike(equal, theirs)
        if copy not in head:
            check_same_tensors(equal, tmp_path / f'equal {n} again')
        other = tensors[source] + 0.3 * torch.randn(tensors[source].shape)
        for tie in (True, False):
            folder = folder_of(tmp_path / f'other {n} {tie}', case, {**tensors, copy: other}, tie_word_embeddings=tie)
            try:
                pretrained.load(folder)
            except ConfigError as error:
                assert f'`{copy}`' in str(error) or f'`{row.tied[0]}`' in str(error), error
                continue
            check_alike(folder, theirs)
            check_kept(folder, tmp_path / f'other {n} {tie} again')
    untied = {copy: tensors.get(copy, tensors[source] + 0.3 * torch.randn(tensors[source].shape))
              for copy, source in sources.items()}  # fmt: skip
    folder = folder_of(tmp_path / 'untied', case, {**tensors, **untied}, tie_word_embeddings=False)
    check_alike(folder, theirs)
    check_same_tensors(folder, tmp_path / 'untied again')
    for source in set(sources.values()):  # the other name alone
        copies = [copy for copy in sources if sources[copy] == source and copy not in tensors]
        if not copies:
            continue
        rest = {name: t for name, t in tensors.items() if name != source}
        named = folder_of(tmp_path / f'named {source}', case, {**rest, **dict.fromkeys(copies, tensors[source])})
        check_alike(named, theirs)


@slow
def test_an_own_head_and_an_own_bias(tmp_path):
    """Of BERT, untied; and tied, with a copy of the bias that is none."""
    from pretrained_cases import D

    case = Case('bert', {**D, 'num_hidden_layers': 1, 'tie_word_embeddings': False}, kind='MaskedLM')
    theirs, folder = checkpoint(case)
    tensors = safetensors.load_file(folder / 'model.safetensors')
    assert not torch.equal(tensors['cls.predictions.decoder.bias'], tensors['cls.predictions.bias'])
    check_alike(folder_of(tmp_path / 'untied', case, tensors), theirs)
    check_same_tensors(tmp_path / 'untied', tmp_path / 'untied again')


# configs


def wide(case):
    """Heads of which a part can turn."""
    narrow = ('gpt_neox', 'phi', 'stablelm', 'glm4', 'nemotron', 'phi3')
    return replace(case, config={**case.config, 'hidden_size': 64}) if case.type in narrow else case


FIRST: dict[str, Case] = {}
for case in (*CASES, *SEQ2SEQ_CASES, *IMAGE_CASES, *TOWER_CASES):
    FIRST.setdefault(case.type, wide(case))
# what changes nothing there, and in ours something that nobody asks for
# the last is read by the class of another type here
APART = {('falcon', 'alibi'), ('gpt2', 'reorder_and_upcast_attn'), ('iquestcoder', 'rms_norm_eps')}


def of_theirs(folder, theirs):
    """Their model of a folder, None where its config is none, or is not one of these weights."""
    try:
        model, said = type(theirs).from_pretrained(folder, output_loading_info=True, **options_of(theirs))
    except Exception:  # of many kinds
        return None
    return None if any(said.values()) else model.eval()


def says_nothing(base, change):
    """Whether the texts of the comparison are none of such a model: they end with padding, or are too long."""
    said = {**base, **change}
    longest = [change.get(name) for name in ('max_seq_len', 'max_position_embeddings')]
    return said.get('eos_token_id') == said.get('pad_token_id') != None or any(n in (0, 1, -1) for n in longest)  # noqa: E711


def check_read_alike(case, theirs, folder, changes) -> int:
    """Outputs of the same weights under changed configs: equal, or a refusal. Returns how many were equal."""
    base = json.loads((checkpoint(case)[1] / 'config.json').read_text())
    equal = 0
    for change in changes:
        if any((case.type, name) in APART for name in change):
            continue
        if says_nothing(base, change):
            continue
        (folder / 'config.json').write_text(said_with(base, change))
        try:
            ours = pretrained.load(folder)
        except (ValueError, TypeError):
            continue
        model = of_theirs(folder, theirs)
        if model is None:
            continue
        try:
            worst, size = compare_outputs(ours, model)
        except Exception:  # theirs loads what it does not compute
            compare_outputs(ours, checkpoint(case)[0])
            continue
        assert worst < 2e-4 * max(size, 1.0), change
        equal += 1
    return equal


def weights_alone(path, case):
    theirs, source = checkpoint(case)
    path.mkdir()
    for file in source.glob('*.safetensors*'):
        (path / file.name).symlink_to(file)
    return theirs, path


# of each kind that was read otherwise once: the older place of a scaling, windows that a class does not read, words of
# another type, rewritten values, factors that a field has though it is switched off
FOUND = [
    ('gpt_oss', dict(rope_parameters=None, rope_theta=150000.0, rope_scaling=dict(
        YARN, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=8, truncate=False))),
    ('llama', dict(rope_scaling=LINEAR, rope_parameters={'rope_type': 'default', 'rope_theta': 500.0})),
    ('gpt_neox', dict(rope_parameters=None, partial_rotary_factor=0.5, rope_theta=500.0)),
    ('qwen3_moe', dict(use_sliding_window=True, sliding_window=4, layer_types=['full_attention'] * 3)),
    ('gemma2', dict(hidden_act='relu')),
    ('gemma3_text', dict(rope_parameters=None, rope_scaling={'type': 'linear', 'factor': 4.0}, rope_theta=500.0)),
    ('modernbert', dict(rope_parameters=None, rope_scaling=LINEAR)),
    ('deberta-v2', dict(relative_attention=False)),
    ('deberta-v2', dict(position_buckets=256)),
    ('t5', dict(relative_attention_max_distance=7)),
    ('t5', dict(scale_decoder_outputs=None)),
    ('deepseek_v3', dict(norm_topk_prob=None)),
    ('mpnet', dict(pad_token_id=0)),
    ('distilbert', dict(layer_norm_eps=0.1)),
    ('llama', dict(rope_parameters=YARN, original_max_position_embeddings=8)),
    ('olmo3', dict(rope_parameters=None, rope_scaling=YARN, rope_theta=500.0, original_max_position_embeddings=8)),
    ('gemma3_text', dict(rope_parameters=None, rope_scaling=YARN, original_max_position_embeddings=8)),
    ('deepseek_v3', dict(rope_parameters=dict(LINEAR, rope_theta=1e4, partial_rotary_factor=0.25))),  # refused
    ('bert', dict(hidden_act='gelu_python')), ('gpt2', dict(activation_function='gelu_accurate')),
    ('distilbert', dict(sinusoidal_pos_embds=True)), ('gpt_oss', dict(hidden_act='gelu')),
    ('llama', dict(layer_types=['full_attention'] * 3, bias=False)), ('bart', dict(save_step=58)),
    ('cohere2', dict(use_qk_norm=False)), ('vit', dict(vocab_size=97)),
]  # fmt: skip


@slow
@pytest.mark.parametrize('kind, change', FOUND)
def test_configs_that_were_read_otherwise(kind, change, tmp_path):
    theirs, folder = weights_alone(tmp_path / 'folder', FIRST[kind])
    assert check_read_alike(FIRST[kind], theirs, folder, [change]) or kind in ('deberta-v2', 'deepseek_v3')


@slow
def test_lists_that_two_classes_read_otherwise(tmp_path):
    """Theirs takes a mistral that lists its layers for a ministral, unless its class is named."""
    theirs, folder = weights_alone(tmp_path / 'folder', FIRST['mistral'])
    base = json.loads((checkpoint(FIRST['mistral'])[1] / 'config.json').read_text())
    kinds = ['full_attention', 'sliding_attention', 'sliding_attention']
    (folder / 'config.json').write_text(json.dumps({**base, 'layer_types': kinds}))
    ids = torch.arange(3, 33)[None]
    named = type(theirs).from_pretrained(folder)(ids).logits
    auto = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert auto.config.model_type == 'ministral' and (auto(ids).logits - named).abs().max() > 0.01
    with pytest.raises(ConfigError, match=r'`layer_types` .* ministral'):
        pretrained.load(folder)
    for change in (dict(model_type='ministral'), dict(layer_types=['sliding_attention'] * 3)):
        (folder / 'config.json').write_text(json.dumps({**base, 'layer_types': kinds, **change}))
        wanted = transformers.AutoModelForCausalLM.from_pretrained(folder)(ids).logits
        assert (pretrained.load(folder)(ids) - wanted).abs().max() < 1e-4


@pytest.mark.nightly
@pytest.mark.parametrize('kind', FIRST)
def test_every_field_beside_its_other_words(kind, tmp_path):
    """A fourth of all changes, drawn anew for each type."""
    case = FIRST[kind]
    theirs, folder = weights_alone(tmp_path / 'folder', case)
    base = json.loads((checkpoint(case)[1] / 'config.json').read_text())
    changes = list(changes_of(case, base, type(theirs.config).attribute_map))
    drawn = random.Random(kind).sample(changes, min(len(changes), max(40, len(changes) // 4)))
    assert check_read_alike(case, theirs, folder, drawn) > 5
