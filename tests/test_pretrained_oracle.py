"""Around logits, against the other library: fields of configs, half precision, gradients, files, generation."""

from __future__ import annotations

import copy
import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from pretrained_cases import CASES, HEAD_CASES, SEQ2SEQ_CASES, checkpoint, ids_of, lifted, of_theirs

from x_transformers import AutoregressiveWrapper, pretrained
from x_transformers.flags import ConfigError
from x_transformers.pretrained.__main__ import main
from x_transformers.pretrained.described import canonicalize, find_differences
from x_transformers.pretrained.generation import IDLE, SAMPLING, TOKENS, extract_generation_config
from x_transformers.pretrained.specs import SPECS, WITHOUT_EFFECT

transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
transformers.logging.set_verbosity_error()

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('ignore')]  # those of the other library
BASES = {case.type: case for case in CASES if case.number == 0}
FEW = ['gpt2', 'llama', 'gemma2', 'bert']

of = functools.cache(lambda kind: checkpoint(BASES[kind]))


def options_of(case, theirs) -> dict:
    experts = {'experts_implementation': 'eager'} if 'experts' in str(case.config) else {}
    return {'attn_implementation': theirs.config._attn_implementation, **experts}


def logits(model, ids):
    with torch.no_grad(), lifted():
        return model(ids).logits


def folder_with(folder: Path, target: Path, **fields) -> Path:
    """The same weights, with other fields."""
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        if not (target / file.name).exists() and file.name != 'config.json':
            (target / file.name).symlink_to(file)
    config = json.loads((folder / 'config.json').read_text())
    (target / 'config.json').write_text(json.dumps({**config, **fields}))
    return target


def outputs(case, model) -> list[torch.Tensor]:
    """Logits, or states and what is pooled."""
    if case in HEAD_CASES:
        return of_theirs(case, model)
    ids = ids_of(case).clamp(max=80)
    if case not in SEQ2SEQ_CASES:
        return [logits(model, ids)]
    sound = torch.randn(2, 10, 24, generator=torch.Generator().manual_seed(0)).double()
    given = dict(input_features=sound) if case.type == 'whisper' else dict(input_ids=ids)
    with torch.no_grad(), lifted():
        return [model(**given, decoder_input_ids=ids[:, :9]).logits]


# a BART of two tables says so by the tensors of its file alone
NEVER = [case for case in (*CASES, *SEQ2SEQ_CASES, *HEAD_CASES) if str(case) != 'bart-2']


@pytest.mark.parametrize('case', NEVER, ids=lambda case: case.kind if case in HEAD_CASES else str(case))
def test_models_that_were_never_loaded_are_read_there(case, tmp_path):
    """Their config is found from their keywords, and says it in the words of the other library."""
    model, folder = checkpoint(case)
    ours = pretrained.load(folder)
    del ours.pretrained
    pretrained.save(ours, tmp_path, hf_type=case.type)
    config = json.loads((tmp_path / 'config.json').read_text())
    assert config['model_type'] == case.type and config['architectures'] == [type(model).__name__]
    back, info = type(model).from_pretrained(tmp_path, output_loading_info=True, **options_of(case, model))
    assert not (info['missing_keys'] or info['unexpected_keys'])
    for found, wanted in zip(*(outputs(case, copy.deepcopy(one).double()) for one in (back, model)), strict=True):
        assert (found - wanted).abs().max() < 1e-10


# configs


def test_defaults_of_every_type():
    """A config without fields says what one with all of theirs says."""
    for kind in SPECS:
        config = transformers.AutoConfig.for_model(SPECS[kind].spelled or kind)
        whole = json.loads(config.to_json_string(use_diff=False))
        found = find_differences(
            canonicalize(pretrained.keywords({'model_type': kind})), canonicalize(pretrained.keywords(whole))
        )
        assert not found, (kind, found)


@pytest.mark.parametrize('kind', [kind for kind, row in SPECS.items() if row.names])
def test_fields_by_names_that_only_others_read(kind):
    """Their class has a name of its own for them, writes what else it is given, and reads nothing of it."""
    names = SPECS[kind].names
    strange = {field: 'relu' if field == 'hidden_act' else 0.3 if 'drop' in field else 7 for field in names.values()}
    own, other = (
        json.loads(
            transformers.AutoConfig.for_model(SPECS[kind].spelled or kind, **more).to_json_string(use_diff=False)
        )
        for more in ({}, strange)
    )
    assert strange.items() <= other.items()
    assert pretrained.keywords(other) == pretrained.keywords(own)
    own.pop('rope_parameters', None)  # beside which a base in an older place says nothing
    for name, field in names.items():
        changed = pretrained.keywords({**own, name: strange[field]})
        assert (changed != pretrained.keywords(own)) == (kind != 'mpt' or name != 'max_seq_len'), name


ACTIVATIONS = ('hidden_act', 'hidden_activation', 'activation_function', 'activation', 'classifier_activation')
# changes of shape, which files settle; and what does nothing in either
LEFT = {'dtype', 'transformers_version', 'vocab_size', 'model_type', 'return_dict', 'chunk_size_feed_forward'}
# refused though they have no effect on logits, or are computed otherwise there: see the specification of the types
KNOWN = {('falcon', 'alibi'), ('gpt2', 'reorder_and_upcast_attn')}


def altered(name, value):
    if name in ACTIVATIONS:
        return 'relu' if value != 'relu' else 'gelu'
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value * 1.7 if value else 0.3
    return value + 1 if isinstance(value, int) and value else 3 if isinstance(value, int) else None


@pytest.mark.nightly
@pytest.mark.parametrize('kind', BASES)
def test_every_field_moves_both_alike(kind, tmp_path):
    """One field after the other says something else, of the same weights: equal logits, or a refusal."""
    case, (theirs, folder) = BASES[kind], of(kind)
    ids = ids_of(case)
    before = logits(copy.deepcopy(theirs).double(), ids)
    compared = 0
    for name, value in json.loads(theirs.config.to_json_string(use_diff=False)).items():
        new = altered(name, value)
        if new is None or name in LEFT or name.endswith('_token_id') or (kind, name) in KNOWN:
            continue
        changed = folder_with(folder, tmp_path, **{name: new})
        try:
            model, info = type(theirs).from_pretrained(changed, output_loading_info=True, **options_of(case, theirs))
            wanted = None if any(info.values()) else logits(model.double().eval(), ids)
        except Exception:  # of many kinds: that config is none
            wanted = None
        try:
            with torch.no_grad():
                found = pretrained.load(changed).double()(ids)
        except (ConfigError, ValueError, RuntimeError):
            found = None
        if wanted is None or found is None:
            continue
        compared += 1
        assert (found - wanted).abs().max() < 1e-6, (name, new)
        if WITHOUT_EFFECT.fullmatch(name):
            assert (wanted - before).abs().max() < 1e-9, name
    assert compared > 5


# numbers


@pytest.mark.parametrize('kind', FEW)
def test_half_precision_is_as_near(kind):
    """To the float64 model of the same weights, in bfloat16: no more than one and a half times as far as theirs."""
    theirs, folder = of(kind)
    ids = ids_of(BASES[kind], rows=8)
    half = copy.deepcopy(theirs).bfloat16()
    exact = logits(copy.deepcopy(half).double(), ids)
    with torch.no_grad():
        far = (half(ids).logits.double() - exact).norm()
        own = (pretrained.load(folder, dtype=torch.bfloat16)(ids).double() - exact).norm()
    assert own < 1.5 * far


@pytest.mark.parametrize('kind', FEW)
def test_gradients_and_a_step(kind, tmp_path):
    """The gradient of the embeddings; and after a step of both, written back, the same model."""
    theirs, folder = of(kind)
    theirs = copy.deepcopy(theirs).double()
    has_pad = getattr(theirs.config, 'pad_token_id', None) is not None
    ours = pretrained.load(folder, freeze_pad=has_pad).double()
    ids = ids_of(BASES[kind])
    ids[:, -2:] = 0  # padding
    with lifted():
        out = theirs(ids).logits
        F.cross_entropy(out.flatten(0, 1), ids.flatten()).backward()
    F.cross_entropy(ours(ids).flatten(0, 1), ids.flatten()).backward()
    table = theirs.get_input_embeddings().weight
    torch.testing.assert_close(ours.token_emb.emb.weight.grad, table.grad, rtol=0, atol=1e-8)
    for model in (theirs, ours):
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    pretrained.save(ours, tmp_path)
    again, info = type(theirs).from_pretrained(
        tmp_path, output_loading_info=True, dtype=torch.float64, attn_implementation='eager'
    )
    assert not any(info.values()), info
    bar = 1e-6 if kind == 'gemma2' else 1e-10  # its scale of embeddings is rounded as the file is
    assert (logits(again.eval().double(), ids) - logits(theirs, ids)).abs().max() < bar


# files


@pytest.mark.parametrize('kind', FEW)
def test_files_of_other_releases(kind, tmp_path):
    """Several files; old names of norms; names of a base model; a dtype in its old place."""
    from safetensors.torch import load_file, save_file

    theirs, folder = of(kind)
    ids = ids_of(BASES[kind])
    with torch.no_grad():
        wanted = pretrained.load(folder)(ids)
        theirs.save_pretrained(tmp_path / 'several', max_shard_size='40KB')
        assert len([*(tmp_path / 'several').glob('*.safetensors')]) > 1
        assert torch.equal(pretrained.load(tmp_path / 'several')(ids), wanted)
        old = folder_with(folder, tmp_path / 'old', torch_dtype='float32', dtype=None)
        state = load_file(folder / 'model.safetensors')
        state = {
            n.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta'): t
            for n, t in state.items()
        }
        base = theirs.base_model_prefix + '.'
        if kind != 'bert':
            state = {n.removeprefix(base): t for n, t in state.items()}
        state['transformer.h.0.attn.bias' if kind == 'gpt2' else 'embeddings.position_ids'] = torch.ones(2)
        (old / 'model.safetensors').unlink()
        save_file(state, old / 'model.safetensors')
        model, info = pretrained.load(old, return_info=True)
        assert torch.equal(model(ids), wanted) and len(info.ignored) == 1


def test_memory_of_loading(tmp_path):
    """A model of 100 MB needs at most 1.2 times of it, above what the process had before."""
    from x_transformers import Decoder, TransformerWrapper

    stack = Decoder(
        dim=512, depth=6, heads=8, attn_dim_head=64, use_rmsnorm=True, norm_eps=1e-6, norm_add_unit_offset=False,
        rotary_pos_emb=True, rotary_emb_dim=64, ff_glu=True, ff_activation='silu', ff_no_bias=True, ff_glu_bias=False,
        ff_dim_inner=1536,
    )  # fmt: skip
    net = TransformerWrapper(num_tokens=6000, max_seq_len=0, attn_layers=stack)
    pretrained.save(net, tmp_path, hf_type='llama')
    size = sum(p.nbytes for p in net.parameters())
    assert size > 90e6
    script = f"""
import resource, torch
from x_transformers import pretrained
import safetensors.torch
torch.set_num_threads(1)
torch.randn(64, 64) @ torch.randn(64, 64)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = pretrained.load({str(tmp_path)!r})
print(peak() - before)
"""
    used = int(subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True).stdout)
    assert used < 1.2 * size, used / size


# generation


@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_tokens_by_generation_config(kind, tmp_path):
    """Penalties, banned words and ends as the file says them."""
    theirs, folder = of(kind)
    theirs = copy.deepcopy(theirs).double()
    ids = ids_of(BASES[kind])[:, :6]
    said = dict(
        max_new_tokens=16, do_sample=False, repetition_penalty=1.2, no_repeat_ngram_size=2, suppress_tokens=[5, 7],
        bad_words_ids=[[11], [12, 13]], eos_token_id=[2, 90, 91, 92, 93, 94, 95], pad_token_id=0,
    )  # fmt: skip
    with lifted():
        wanted = theirs.generate(ids, **said)[:, 6:]
    (folder_with(folder, tmp_path) / 'generation_config.json').unlink(missing_ok=True)
    (tmp_path / 'generation_config.json').write_text(json.dumps(said))
    net = pretrained.load(tmp_path).double()
    found = AutoregressiveWrapper(net, pad_value=0).generate(ids, **net.generation_defaults)
    assert torch.equal(found, wanted)


def test_generation_that_a_config_says_itself(tmp_path):
    """Without a generation_config.json, the settings in config.json count, as `from_pretrained` reads them."""
    more = dict(
        eos_token_id=[2, 5], max_length=30, do_sample=True, temperature=0.5, top_k=7, repetition_penalty=1.2,
        num_beams=3, no_repeat_ngram_size=2, bad_words_ids=[[3]], suppress_tokens=[4], min_length=3,
        forced_eos_token_id=2, forced_bos_token_id=7, length_penalty=0.4, early_stopping=True,
    )  # fmt: skip
    plain = transformers.GenerationConfig()
    for kind in ('llama', 'gpt2', 't5', 'bart', 'whisper'):
        for config in ({}, {'eos_token_id': None}, more, {'eos_token_id': [2, 5]}):
            (tmp_path / 'config.json').write_text(json.dumps({'model_type': kind, **config}))
            wanted = transformers.GenerationConfig.from_pretrained(tmp_path, config_file_name='config.json')
            found = extract_generation_config({'vocab_size': 99, **config})
            for name in {*TOKENS, *SAMPLING, *IDLE, 'max_length', 'do_sample'}:
                value = getattr(wanted, name, None)
                said = found.get(name, getattr(plain, name, None))
                assert said == value or not (said or value), (kind, config, name, said, value)


@pytest.mark.parametrize('kind', ['llama', 'gpt2'])
def test_tokens_without_a_cache_in_parts_and_by_guesses(kind):
    """The same greedy tokens uncached, from a prompt cache, speculative."""
    theirs, folder = of(kind)
    ids = ids_of(BASES[kind])[:, :6]
    with lifted():
        wide = copy.deepcopy(theirs).double()
        wanted = wide.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None)[:, 6:]
    net = AutoregressiveWrapper(pretrained.load(folder).double())
    assert torch.equal(net.generate(ids, 20, temperature=0.0, cache_kv=False), wanted)
    cache = net.read_prompt(ids)
    assert torch.equal(net.generate(None, 20, temperature=0.0, prompt_cache=cache), wanted)
    found = net.speculative(ids, 20, temperature=0.0)
    assert torch.equal(found, wanted)


# the command line


def test_check_and_convert(tmp_path, capsys):
    _, folder = of('llama')
    assert main(['check', str(folder)]) == 0
    assert main(['convert', str(folder), str(tmp_path / 'own')]) == 0
    back = ['convert', str(tmp_path / 'own'), str(tmp_path / 'hf'), '--format', 'hf']
    assert main(back) == 2 and 'must be one of llama, mistral' in capsys.readouterr().err
    assert main([*back, '--type', 'llama']) == 0 == main(['check', str(tmp_path / 'hf')])
    far = folder_with(folder, tmp_path / 'far', eos_token_id=32000)  # of a larger vocabulary, as a class may have it
    assert main(['check', str(far)]) == 0
    wrong = folder_with(folder, tmp_path / 'wrong', rms_norm_eps='eps')
    assert main(['inspect', str(wrong)]) == 2 and '`norm_eps` ' in capsys.readouterr().err
    assert main(['inspect', str(folder_with(folder, tmp_path / 'refused', norm_of_tomorrow=2))]) == 2
    assert '`norm_of_tomorrow` of this llama checkpoint is 2' in capsys.readouterr().err
    assert main(['inspect', str(folder)]) == main(['supported']) == 0
