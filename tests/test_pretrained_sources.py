"""What users name as the source of a model: files, folders of other tools, adapters, wrapped state dicts."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import tarfile
import zipfile

import pytest
import torch

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, pretrained
from x_transformers.flags import ConfigError
from x_transformers.pretrained.foreign import FOREIGN, NoModelError

safe = pytest.importorskip('safetensors.torch')
IDS = torch.randint(3, 90, (2, 12), generator=torch.Generator().manual_seed(0))
LFS = b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n'
CONFIG = dict(
    model_type='llama', architectures=['LlamaForCausalLM'], vocab_size=96, hidden_size=16, intermediate_size=24,
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False,
)  # fmt: skip


def state_of(seed=0):
    generator = torch.Generator().manual_seed(seed)
    named = [step for step in pretrained.plan(CONFIG)]
    shapes = {'q_proj': (16, 16), 'k_proj': (16, 16), 'v_proj': (16, 16), 'o_proj': (16, 16), 'up_proj': (24, 16),
              'gate_proj': (24, 16), 'down_proj': (16, 24), 'embed_tokens': (96, 16), 'lm_head': (96, 16)}  # fmt: skip
    names = [name for theirs, _, _ in named for name in theirs]
    sizes = {name: next((size for word, size in shapes.items() if word in name), (16,)) for name in names}
    return {name: 0.3 * torch.randn(size, generator=generator) for name, size in sizes.items()}


STATE, OTHER = state_of(), state_of(1)


def put(folder, config=CONFIG, **files):
    """Write a folder: dicts of tensors as safetensors or pickles, bytes as they are; `__` stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / 'config.json').write_text(json.dumps(config))
    for name, content in files.items():
        path = folder / name.replace('__', '.')
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif path.suffix == '.safetensors':
            safe.save_file({n: t.clone() for n, t in content.items()}, path)
        elif path.suffix == '.json':
            path.write_text(json.dumps(content))
        else:
            torch.save(content, path)
    return folder


def table_of(path, **options):
    model, info = pretrained.load(path, return_info=True, **options)
    return model.token_emb.emb.weight, info


def is_first(path, **options):
    return torch.equal(table_of(path, **options)[0], STATE['model.embed_tokens.weight'])


# files that are named


NAMES = ['model__fp16__safetensors', 'adapted__safetensors', 'x__bin', 'x__pt', 'x__pth', 'x__ckpt']


def test_a_file_that_is_named_is_read(tmp_path):
    """Beside a set of other weights, which a folder alone stands for."""
    put(tmp_path, model__safetensors=OTHER, **dict.fromkeys(NAMES, STATE))
    for name in NAMES:
        path = tmp_path / name.replace('__', '.')
        table, info = table_of(path, allow_pickle=True)
        assert torch.equal(table, STATE['model.embed_tokens.weight']) and info.files == [path.name]
        if path.suffix != '.safetensors':
            with pytest.raises(ValueError, match=f'`{path.name}`, a pickle.*allow_pickle=True'):
                pretrained.load(path)
    assert not is_first(tmp_path) and not is_first(tmp_path / 'config.json')


def test_the_set_that_a_folder_stands_for_is_that_of_transformers(tmp_path):
    """model.safetensors, then its index, then pickles; other names on request alone."""
    halves = [dict(list(STATE.items())[:4]), dict(list(STATE.items())[4:])]
    where = {name: f'part-0000{i}-of-00002.safetensors' for i, half in enumerate(halves, 1) for name in half}
    put(tmp_path, **{f'part-0000{i}-of-00002__safetensors': half for i, half in enumerate(halves, 1)})
    put(tmp_path, model__safetensors__index__json={'weight_map': where}, model__fp16__safetensors=OTHER)
    put(tmp_path, pytorch_model__bin=OTHER)
    assert is_first(tmp_path)
    named = ('model.safetensors.index.json', 'part-00001-of-00002.safetensors', 'part-00002-of-00002.safetensors')
    assert all(is_first(tmp_path / name) for name in named)
    put(tmp_path, model__safetensors=OTHER)
    assert not is_first(tmp_path)
    assert is_first(tmp_path / named[0])
    for path in tmp_path.glob('*.safetensors*'):
        if 'fp16' not in path.name:
            path.unlink()
    assert not is_first(tmp_path, allow_pickle=True)
    (tmp_path / 'pytorch_model.bin').unlink()
    with pytest.raises(NoModelError, match=r'no model.safetensors.*`model.fp16.safetensors`: name one'):
        pretrained.load(tmp_path)
    put(tmp_path, model__bf16__safetensors=STATE)
    with pytest.raises(NoModelError, match=r'`model.bf16.safetensors`, `model.fp16.safetensors`: name one'):
        pretrained.load(tmp_path)


def test_an_index_names_files_and_their_tensors_count(tmp_path):
    """As in `transformers`, whatever its list lacks or has too much; of two of one name, that of the listed file."""
    names = [*STATE]
    first, last = {n: STATE[n] for n in names[:4]}, {n: STATE[n] for n in names[4:]}
    right = {**dict.fromkeys(first, 'a.safetensors'), **dict.fromkeys(last, 'b.safetensors')}
    changes = {
        'short': {names[0]: None}, 'wrong': {names[0]: 'b.safetensors'}, 'long': {'model.layers.7.x': 'b.safetensors'},
        'inv_freq': {'model.layers.0.self_attn.rotary_emb.inv_freq': 'b.safetensors'},
    }  # fmt: skip
    for title, change in changes.items():
        where = {name: file for name, file in (right | change).items() if file}
        path = put(tmp_path / title, a__safetensors=first, b__safetensors=last)
        put(path, model__safetensors__index__json={'weight_map': where})
        table, info = table_of(path)
        assert torch.equal(table, STATE['model.embed_tokens.weight']) and not info.left
    for at in (0, 1):  # the file that is opened later, or earlier
        files = [(OTHER if at else {}) | first, ({} if at else OTHER) | last]
        path = put(tmp_path / f'twice-{at}', a__safetensors=files[0], b__safetensors=files[1])
        put(path, model__safetensors__index__json={'weight_map': right})
        assert torch.equal(pretrained.load(path)(IDS), pretrained.load(tmp_path / 'short')(IDS))
    mixed = {'b.safetensors': 'a.bin', 'a.safetensors': 'b.safetensors'}
    path = put(tmp_path / 'mixed', b__safetensors=first, a__bin=OTHER | last)
    put(path, model__safetensors__index__json={'weight_map': {name: mixed[file] for name, file in right.items()}})
    assert torch.equal(pretrained.load(path, allow_pickle=True)(IDS), pretrained.load(tmp_path / 'short')(IDS))
    path = put(tmp_path / 'below', **{'parts/a.safetensors': first, 'parts/b.safetensors': last})
    where = {name: f'parts/{file}' for name, file in right.items()}
    assert is_first(put(path, model__safetensors__index__json={'weight_map': where}))
    for wrong in ('../short/a.safetensors', '/a.safetensors', 3, ['a']):
        put(path, model__safetensors__index__json={'weight_map': {names[0]: wrong}})
        with pytest.raises(ValueError, match='must name files in its folder, got'):
            pretrained.load(path)
    put(path, model__safetensors__index__json={'weight_map': {}})
    with pytest.raises(ValueError, match=r'the file has no `lm_head.weight`'):
        pretrained.load(path)
    with pytest.raises(NoModelError, match=r'`.*empty/model.safetensors` holds no tensors'):
        pretrained.load(put(tmp_path / 'empty', model__safetensors={}))


@pytest.mark.parametrize('form', [
    'model-0000{}-of-00002.fp16.safetensors', 'model.fp16-0000{}-of-00002.safetensors',
    'model-0000{}-of-000002.safetensors', 'model_0000{}-of-00002.safetensors',
])  # fmt: skip
def test_names_of_parts(form, tmp_path):
    """With a variant, with more digits in the count; and the index of a variant."""
    names = [*STATE]
    files = {form.format(i): {n: STATE[n] for n in part} for i, part in ((1, names[:4]), (2, names[4:]))}
    put(tmp_path, **files)
    assert all(is_first(tmp_path / name) for name in files)
    with pytest.raises(NoModelError, match='only shards without their index'):
        pretrained.load(tmp_path)
    where = {name: file for file, state in files.items() for name in state}
    put(tmp_path, model__safetensors__index__fp16__json={'weight_map': where})
    assert is_first(tmp_path / 'model.safetensors.index.fp16.json')
    with pytest.raises(
        NoModelError, match=r'no model.safetensors.*, but `model.safetensors.index.fp16.json`: name one'
    ):
        pretrained.load(tmp_path)


@pytest.mark.parametrize('change, words', [
    (lambda raw: b'', 'it is empty'),
    (lambda raw: raw + b'xx', r'its header lists'),
    (lambda raw: b'{"error":"Repository not found"}', 'an error of a server'),
    (lambda raw: b'# xet version 0', 'a pointer of git-xet'),
    (lambda raw: LFS, 'git lfs pull'),
    (lambda raw: b'<!doctype html>', 'a web page'),
    (lambda raw: raw[:-9], r'has \d+,\d+ of \d+,\d+ bytes'),
    (lambda raw: raw[:40], 'has 40 of '),
    (lambda raw: b'GGUF' + raw, 'GGUF'),
    (lambda raw: raw[:8] + b'{ ' + raw[10:], 'is damaged'),
    (lambda raw: b'no tensors', 'neither safetensors nor a pickle'),
])  # fmt: skip
def test_a_file_that_is_not_what_its_name_says(tmp_path, change, words):
    put(tmp_path, model__safetensors=STATE)
    path = tmp_path / 'model.safetensors'
    path.write_bytes(change(path.read_bytes()))
    for source in (tmp_path, path):
        with pytest.raises(ValueError, match=rf'model.safetensors. cannot be read: .*{words}'):
            pretrained.load(source)


@pytest.mark.filterwarnings('ignore:Validating sparse tensor', 'ignore:Detected pickle protocol')
def test_state_dicts_within_other_things(tmp_path):
    wrapped = {f'_orig_mod.{name}': t for name, t in STATE.items()}
    moments = {'state': {0: {'exp_avg': torch.ones(2)}}, 'param_groups': []}
    named = {'state': {'model.norm.weight': {'exp_avg': torch.ones(2)}}, 'param_groups': [{}]}
    for content in (
        {'model_state': STATE, 'step': 1}, {'network': wrapped, 'optimizer': moments, 'rng': {'cpu': torch.ones(2)}},
        {'model': {'state_dict': STATE}, 'optimizer': named}, {'state': {'model': {'params': STATE}}, 'x': IDS},
        {**STATE, 'epoch': 3, 'extra': {'a.b': torch.ones(2)}}, {'module': STATE, 'student': OTHER},
    ):  # fmt: skip
        assert is_first(put(tmp_path, x__pt=content) / 'x.pt', allow_pickle=True), [*content]
    norm = STATE['model.norm.weight']
    for content, words in (
        ({'generator': STATE, 'critic': OTHER}, 'several models, `generator`, `critic`'),
        ({'a': {'b': STATE}, 'c': OTHER}, r'several models, `a\.b`, `c`'), ({0: torch.ones(2)}, 'by name, got `0`'),
        ({}, 'got an empty dict'), ({**STATE, 'model.norm.weight': norm.to_sparse()}, 'got a sparse one'),
        ({**STATE, 'model.norm.weight': norm.to('meta')}, 'got one without values'),
    ):  # fmt: skip
        with pytest.raises(NoModelError, match=words):
            pretrained.load(put(tmp_path, x__pt=content) / 'x.pt', allow_pickle=True)
    with pytest.raises(NoModelError, match=r'a.pkl` cannot be read: it is a pickle, but none that `torch.save` wrote'):
        pretrained.load(put(tmp_path, a__pkl=pickle.dumps({'a': 1})) / 'a.pkl', allow_pickle=True)


def test_pickles_of_other_things(tmp_path):
    put(
        tmp_path, a__pt={'model': STATE, 'step': 3}, b__ckpt={'state_dict': {f'model.{n}': t for n, t in STATE.items()}}
    )
    assert is_first(tmp_path / 'a.pt', allow_pickle=True) and is_first(tmp_path / 'b.ckpt', allow_pickle=True)
    put(tmp_path, c__pt={'model': STATE, 'ema': OTHER}, d__pt={'state': {}, 'param_groups': []}, e__pt={'step': 3})
    put(tmp_path, f__pt=torch.nn.Linear(2, 2))
    for name, words in dict(
        c='`model`, `ema`', d='state of an optimizer', e='by name, got `step`', f='not only tensors'
    ).items():
        with pytest.raises(NoModelError, match=words):
            pretrained.load(tmp_path / f'{name}.pt', allow_pickle=True)
    raw = (tmp_path / 'a.pt').read_bytes()
    put(tmp_path, a__pt=raw[: len(raw) // 2], model__safetensors=raw)
    with pytest.raises(NoModelError, match='it is cut off'):
        pretrained.load(tmp_path / 'a.pt', allow_pickle=True)
    assert is_first(tmp_path, allow_pickle=True)  # a pickle whatever its name says


# folders


def test_folders_of_other_tools_are_described(tmp_path):
    """Each pattern of the table, alone in a folder, and beside a config: what it is, what is needed, who makes it."""
    whole = put(tmp_path / 'whole', model__safetensors=STATE)  # beside which none is a reason to refuse
    for number, foreign in enumerate(FOREIGN):
        for at, pattern in enumerate(foreign.patterns):
            name = pattern.replace('*', 'x')
            content = b'{}' if name.endswith('.json') else b'xx'
            files = {f'{name}inside' if name.endswith('/') else name: content}
            folder = put(tmp_path / f'{number}-{at}', None, **files)
            for words in ('no config.json', 'no model.safetensors'):
                with pytest.raises(NoModelError) as error:
                    pretrained.load(folder)
                said = str(error.value)
                assert words in said and 'the library needs' in said and ': ' in said.partition('; ')[2], said
                put(folder)
            put(whole, **files)
    assert is_first(whole)


def test_folders_without_a_model(tmp_path):
    for files, words in (
        ({}, 'it is empty'), ({'model__safetensors': STATE}, 'weights alone, `model.safetensors`'),
        ({'a__png': b'', 'README.md': b''}, 'it holds `a.png`'),
        ({'.cache/huggingface/download/x.incomplete': b'x'}, 'an interrupted download'),
    ):  # fmt: skip
        with pytest.raises(NoModelError, match=rf'has no config.json: .*{words}'):
            pretrained.load(put(tmp_path / words.replace('`', ''), None, **files))
    with pytest.raises(NoModelError, match=r'it holds no more than config.json; the library needs weights'):
        pretrained.load(put(tmp_path / 'alone'))
    with zipfile.ZipFile(tmp_path / 'model.zip', 'w') as archive:
        archive.write(tmp_path / 'alone' / 'config.json', 'config.json')
    with tarfile.open(tmp_path / 'model.tar', 'w') as tar:
        tar.add(tmp_path / 'alone')
    shutil.copy(tmp_path / 'model.zip', tmp_path / 'model.pt2')
    shutil.copy(tmp_path / 'model.tar', tmp_path / 'model.nemo')
    said = {'zip': 'an archive; .*unpack it', 'tar': 'an archive', 'pt2': 'an exported program', 'nemo': 'part .* NeMo'}
    for end, words in said.items():
        with pytest.raises(NoModelError, match=f'it is {words}'):
            pretrained.load(tmp_path / f'model.{end}')


def test_configs_of_other_kinds(tmp_path):
    for config, words in (
        (b'', 'it is empty'), (b'{"a": ', 'Expecting value'), (b'[1]', 'a dict, got a list'), (LFS, 'git lfs pull'),
        (b'{"builder_config": {}, "pretrained_config": {}}', 'TensorRT-LLM'),
        (b'{"hidden_size": 3}', '"model_type": "bert"'), (b'{"pretrained_cfg": {}, "architecture": "v"}', 'timm'),
        (b'{"model_type": "llama", "quantization": {"bits": 4}}', 'quantized weights'),
        (b'{"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}', 'quantized weights'),
    ):  # fmt: skip
        put(tmp_path, None, config__json=config, model__safetensors=STATE)
        with pytest.raises(ValueError, match=words):
            pretrained.load(tmp_path)
    raw = json.dumps({name: value for name, value in CONFIG.items() if name != 'model_type'}).encode()
    put(tmp_path, None, config__json=b'\xef\xbb\xbf' + raw)  # its class names the type; and a mark of byte order
    assert table_of(tmp_path)[1].type == 'llama'


def test_one_folder_up_and_down(tmp_path, logged):
    run = tmp_path / 'run'
    put(run / 'checkpoint-90', model__safetensors=STATE)
    assert is_first(run) and any('checkpoint-90' in line for line in logged)
    put(run / 'checkpoint-1000', model__safetensors=OTHER)
    with pytest.raises(NoModelError, match=r'several models, `checkpoint-90`, `checkpoint-1000`: .*checkpoint-1000`'):
        pretrained.load(run)
    (run / 'checkpoint-90' / 'global_step90').mkdir()
    with pytest.raises(NoModelError, match=r'it is empty.* The folder above it holds a model: name `.*checkpoint-90`'):
        pretrained.load(run / 'checkpoint-90' / 'global_step90')
    put(run / 'checkpoint-90', tokenizer__json={})
    with pytest.raises(NoModelError, match='holds no weights: name the folder'):
        pretrained.load(run / 'checkpoint-90' / 'tokenizer.json')
    put(tmp_path / 'unpacked' / 'a' / 'b', model__safetensors=STATE)
    assert is_first(tmp_path / 'unpacked')


def test_the_cache_of_the_hub(tmp_path):
    cache = tmp_path / 'models--some--llama'
    put(cache / 'snapshots' / 'abc', model__safetensors=STATE)
    assert is_first(cache) and is_first(cache / 'snapshots') and is_first(tmp_path)
    put(cache / 'snapshots' / 'def', model__safetensors=OTHER)
    with pytest.raises(NoModelError, match='several snapshots: name one'):
        pretrained.load(cache)
    put(cache, None, **{'refs/main': b'abc\n', 'blobs/x': b'x'})
    assert is_first(cache)
    with pytest.raises(NoModelError, match=r'part of the cache of the hub: name `.*models--some--llama`'):
        pretrained.load(cache / 'blobs')
    file = cache / 'snapshots' / 'abc' / 'model.safetensors'
    file.unlink()
    file.symlink_to('../../blobs/absent')
    with pytest.raises(NoModelError, match='a link to a file that is absent'):
        pretrained.load(cache)


def test_names_that_are_no_paths(monkeypatch):
    hub = pytest.importorskip('huggingface_hub', reason='pip install -e .[hub]')

    def fetch(*name, **options):
        raise OSError('no network')

    monkeypatch.setattr(hub, 'snapshot_download', fetch)
    for name, words in (
        ('some/llama', 'no folder and no file here, and no repository.*: no network'),
        ('https://huggingface.co/some/llama/tree/main', "name the repository by its id, 'some/llama'"),
        ('s3://some/llama', 'must not be a link'),
    ):
        with pytest.raises(NoModelError, match=words):
            pretrained.load(name)


def test_paths_of_nothing(tmp_path, monkeypatch):
    """No name of a file is asked for at the hub; an empty path is not the current folder."""
    put(tmp_path, model__safetensors=STATE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="`source` must be a path or a repository id, got ''"):
        pretrained.load('')
    assert is_first('.')
    for name in ('model.fp32.safetensors', './pytorch_model.bin', tmp_path / 'model.gguf'):
        with pytest.raises(NoModelError, match=r'no folder and no file; `.*` has `config.json`, `model.safetensors`$'):
            pretrained.load(name)


@pytest.mark.skipif(os.name == 'nt' or os.geteuid() == 0, reason='this user may open everything')
def test_paths_without_permission(tmp_path):
    run = put(tmp_path / 'run', model__safetensors=STATE)
    file = run / 'model.safetensors'
    for path, mode, source in (
        (file, 0, run), (run / 'config.json', 0, run), (run, 0, run), (run, 0o600, run), (run, 0, file)
    ):  # fmt: skip
        before = path.stat().st_mode
        path.chmod(mode)
        try:
            with pytest.raises(PermissionError, match=r'`.*run.*` cannot be read: this process has no permission'):
                pretrained.load(source)
        finally:
            path.chmod(before)
    assert is_first(run)


# names of tensors


def test_common_beginnings_of_names_are_removed(tmp_path, logged):
    tied = {name: t for name, t in STATE.items() if name != 'lm_head.weight'}
    for prefix in ('module.', '_orig_mod.', 'model.', '_forward_module.', 'module._orig_mod.', '0.net.'):
        for state, config in ((STATE, CONFIG), (tied, {**CONFIG, 'tie_word_embeddings': True})):
            if prefix == 'model.' and state is tied:
                continue  # the prefix of the base model, of which older files leave out one
            put(tmp_path, config, model__safetensors={prefix + name: t for name, t in state.items()})
            table, info = table_of(tmp_path)
            assert torch.equal(table, STATE['model.embed_tokens.weight']) and info.prefix == prefix
            assert any(f'`{prefix}' in line for line in logged)
    averaged = torch.optim.swa_utils.AveragedModel(torch.nn.Linear(2, 2)).state_dict()
    count = {name: t for name, t in averaged.items() if not name.startswith('module.')}
    put(tmp_path, model__safetensors=count | {f'module.{name}': t for name, t in STATE.items()})
    assert count and is_first(tmp_path)
    inside = {name.replace('self_attn', '_checkpoint_wrapped_module.self_attn'): t for name, t in STATE.items()}
    put(tmp_path, model__safetensors=inside)
    assert is_first(tmp_path)
    put(tmp_path, model__safetensors={n.replace('model.', 'model.x.'): t for n, t in STATE.items()})
    with pytest.raises(ConfigError, match='the file has no'):
        pretrained.load(tmp_path)


def test_names_of_other_tools_are_described(tmp_path):
    for old, new, words in (
        ('q_proj.weight', 'q_proj.qweight', 'quantized weights'), ('q_proj', 'q_proj.base_layer', 'LoRA'),
        ('q_proj.weight', 'q_proj.parametrizations.weight.original0', 'remove_parametrizations'),
        ('q_proj.weight', 'q_proj.weight_orig', 'prune.remove'), ('q_proj.weight', 'q_proj.W_q', 'quantized weights'),
        ('q_proj.weight', 'q_proj.weight._data', 'quantized weights'),
        ('q_proj.weight', 'q_proj.codebooks', 'quantized weights'),
        ('self_attn.q_proj', 'attention.wq', "Meta's"), ('q_proj.weight', 'q_proj.kernel', 'JAX'),
    ):  # fmt: skip
        put(tmp_path, model__safetensors={name.replace(old, new): t for name, t in STATE.items()})
        with pytest.raises(NoModelError, match=f'the file has no .*{words}'):
            pretrained.load(tmp_path)
    for state, words in (
        ({'lm_head.weight': IDS, 'wte.weight': IDS, 'h.0.attn.c_attn.weight': IDS}, '`h.0.*`, are those of a gpt2'),
        ({'transformer.h.0.attn.c_attn.weight': STATE['lm_head.weight']}, '`transformer.*`, are those of a gpt2, not'),
        ({'net.0.weight': STATE['lm_head.weight']}, 'Its names, such as `net.0.weight`, are not those of a llama'),
        ({**{f'pretrained_model.{n}': t for n, t in STATE.items()}, 'v_head.summary.bias': torch.ones(1)}, 'of TRL'),
    ):  # fmt: skip
        with pytest.raises(NoModelError, match=words):
            pretrained.load(put(tmp_path, model__safetensors=state))
    with pytest.raises(ConfigError, match=r"`model_type` must be .*, got 'LLaMA', did you mean `llama`"):
        pretrained.load(put(tmp_path, {**CONFIG, 'model_type': 'LLaMA'}))
    put(tmp_path)
    name = 'model.layers.0.mlp.up_proj.weight'
    put(tmp_path, model__safetensors={**STATE, name: STATE[name].to(torch.int8)})
    with pytest.raises(NoModelError, match=rf'`{name}` of the file must be floating-point, got torch.int8'):
        pretrained.load(tmp_path)


def test_wrapped_weights_of_this_library(tmp_path):
    stack = Decoder(dim=16, depth=1, heads=2)
    net = AutoregressiveWrapper(TransformerWrapper(num_tokens=96, max_seq_len=16, attn_layers=stack))
    net.save_pretrained(tmp_path)
    path = tmp_path / 'model.safetensors'
    safe.save_file({f'module.{name}': t for name, t in safe.load_file(path).items()}, path)
    again, info = pretrained.load(tmp_path, return_info=True)
    assert info.prefix == 'module.' and torch.equal(again.net(IDS), net.eval().net(IDS))


# adapters


def adapter(folder, base, tensors, **config):
    said = {'peft_type': 'LORA', 'base_model_name_or_path': base and str(base), 'r': 2, 'lora_alpha': 3, **config}
    named = {f'base_model.model.{name}': t for name, t in tensors.items()}
    return put(folder, None, adapter_config__json=said, adapter_model__safetensors=named)


def product(module, out, inner, rank=2, seed=2):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(rank, inner, generator=generator), torch.randn(out, rank, generator=generator)
    return {f'{module}.lora_A.weight': a, f'{module}.lora_B.weight': b}, b @ a


def test_an_adapter_is_added_to_its_base(tmp_path):
    """Against base models whose weights were changed by hand."""
    base = put(tmp_path / 'base', model__safetensors=STATE)
    q, down, head = 'model.layers.0.self_attn.q_proj', 'model.layers.0.mlp.down_proj', 'lm_head'
    (q_file, q_delta), (down_file, down_delta) = product(q, 16, 16), product(down, 16, 24, rank=3)
    files = {**q_file, **down_file, f'{head}.weight': OTHER[f'{head}.weight']}
    path = adapter(tmp_path / 'adapter', base, files, alpha_pattern={'mlp.down_proj': 5}, use_rslora=True)
    changed = {
        **STATE,
        f'{q}.weight': STATE[f'{q}.weight'] + 3 / math.sqrt(2) * q_delta,
        f'{down}.weight': STATE[f'{down}.weight'] + 5 / math.sqrt(3) * down_delta,
        f'{head}.weight': OTHER[f'{head}.weight'],
    }
    wanted = pretrained.load(put(tmp_path / 'merged', model__safetensors=changed))
    for source in (path, path / 'adapter_model.safetensors', path / 'adapter_config.json'):
        model, info = pretrained.load(source, return_info=True)
        torch.testing.assert_close(model(IDS), wanted(IDS))
        assert info.merged == [f'{down}.weight', f'{q}.weight']
    adapter(tmp_path / 'adapter', 'base', q_file)  # a base beside the adapter, by its name
    shutil.copytree(base, path / 'base')
    assert pretrained.load(path, return_info=True)[1].merged == [f'{q}.weight']


def test_an_adapter_with_magnitudes_and_of_a_tied_table(tmp_path):
    tied = {name: t for name, t in STATE.items() if name != 'lm_head.weight'}
    base = put(tmp_path / 'base', {**CONFIG, 'tie_word_embeddings': True}, model__safetensors=tied)
    q, table = 'model.layers.0.self_attn.q_proj', 'model.embed_tokens'
    q_file, q_delta = product(q, 16, 16)
    a, b = torch.randn(2, 96), torch.randn(16, 2)
    magnitude = torch.rand(16) + 1
    path = adapter(tmp_path / 'adapter', base, {
        **q_file, f'{q}.lora_magnitude_vector': magnitude,
        f'{table}.lora_embedding_A': a, f'{table}.lora_embedding_B': b,
    })  # fmt: skip
    own = STATE[f'{q}.weight'] + 1.5 * q_delta
    changed = {
        **tied,
        f'{q}.weight': own * (magnitude / own.norm(dim=1))[:, None],
        f'{table}.weight': tied[f'{table}.weight'] + 1.5 * (b @ a).T,
        'lm_head.weight': tied[f'{table}.weight'],  # the head is the table before
    }
    wanted = pretrained.load(put(tmp_path / 'merged', model__safetensors=changed))
    torch.testing.assert_close(pretrained.load(path)(IDS), wanted(IDS))


def test_adapters_that_cannot_be_added(tmp_path):
    base = put(tmp_path / 'base', model__safetensors=STATE)
    q = 'model.layers.0.self_attn.q_proj'
    files, _ = product(q, 16, 16)
    for given, words in (
        (dict(peft_type=None), 'must be LORA, got NONE'),
        (dict(peft_type='IA3'), 'must be LORA, got IA3: .*merge_and_unload'),
        (dict(init_lora_weights='pissa'), 'init_lora_weights'),
        (dict(base_model_name_or_path=None), 'does not name: give `base=`'),
        (dict(base_model_name_or_path='/nowhere/at/all'), 'no folder and no file. `base=` gives'),
    ):  # fmt: skip
        with pytest.raises(NoModelError, match=words):
            pretrained.load(adapter(tmp_path / 'adapter', base, files, **given))
    assert pretrained.load(tmp_path / 'adapter', base=base, return_info=True)[1].merged == [f'{q}.weight']
    with pytest.raises(NoModelError, match='has no `peft_type`'):
        pretrained.load(put(tmp_path / 'other', None, adapter_config__json={'config': {'reduction_factor': 16}}))
    for tensors, words in (
        (product(q, 16, 12)[0], r'shape \(16, 12\)'),
        (product('model.q', 16, 16)[0], 'no such tensor'),
    ):
        with pytest.raises(ConfigError, match=words):
            pretrained.load(adapter(tmp_path / 'adapter', base, tensors))
    with pytest.raises(ValueError, match=r'`base` must be None, since .* is no adapter'):
        pretrained.load(base, base=base)
