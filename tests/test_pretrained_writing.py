"""Models as they leave training, written in the format of `transformers`; files of tensors; files of tokenizers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from test_pretrained_folders import BASES, IDS, config_of, folder, model_of, same_weights  # noqa: F401

from x_transformers import (
    AutoregressiveWrapper,
    Classifier,
    ContinuousTransformerWrapper,
    Decoder,
    TransformerWrapper,
    pretrained,
)
from x_transformers.dpo import DPO
from x_transformers.finetuning import finetune
from x_transformers.flags import ConfigError
from x_transformers.integrations.trainer import CausalLM
from x_transformers.pretrained.files import write_weights
from x_transformers.pretrained.folders import TOKENIZER

safe = pytest.importorskip('safetensors.torch')


def written(model, target, **options):
    pretrained.save(model, target, **options)
    return pretrained.load(target, return_info=True)


@pytest.mark.parametrize('wrap', [AutoregressiveWrapper, CausalLM, torch.compile, torch.nn.DataParallel])
def test_wrappers_of_training_are_written_as_their_model(folder, tmp_path, wrap):  # noqa: F811
    again, info = written(wrap(pretrained.load(folder('llama'))), tmp_path)
    assert info.config['architectures'] == ['LlamaForCausalLM']
    same_weights(again, model_of('llama'))


def test_new_heads_are_written_as_a_class_or_refused(folder, tmp_path):  # noqa: F811
    """What is written gives the same; what is not says what to train, or to save, instead."""
    tokens = finetune(pretrained.load(folder('bert')), 'tokens', num_labels=3)[0].eval()
    again, info = written(tokens, tmp_path / 'tokens')
    assert info.config['architectures'] == ['BertForTokenClassification'] and torch.equal(again(IDS), tokens(IDS))
    for n, (kind, head, end) in enumerate((
        ('llama', 'tokens', 'TokenClassification'), ('llama', 'span', 'QuestionAnswering'),
        ('bert', 'span', 'QuestionAnswering'),
    )):  # fmt: skip
        net = finetune(pretrained.load(folder(kind)), head)[0].eval()
        again, info = written(net, tmp_path / str(n))
        assert info.config['architectures'][0].endswith(f'For{end}') and torch.equal(again(IDS), net(IDS))
    last = dict(num_classes=3, token='last', bias=False)
    around = Classifier(pretrained.load(folder('llama'), head='embed'), **last).eval()
    again, info = written(around, tmp_path / 'last')
    assert info.config['architectures'] == ['LlamaForSequenceClassification']
    assert torch.equal(again(IDS), around(IDS))
    for kind, words in (('llama', 'to_classes.bias'), ('bert', 'head_transform')):
        net = finetune(pretrained.load(folder(kind)), 'class', num_labels=3)[0]
        train = r"train `pretrained.load\(source, head='classify', num_classes=3\)`, or `format='own'`"
        with pytest.raises(ConfigError, match=rf"FineTuned of `head='class'`.*{words}.*{train}"):
            pretrained.save(net, tmp_path / 'new')
        pretrained.save(net, tmp_path / kind, format='own')
    inner = pretrained.load(folder('bert'), head='embed')
    with pytest.raises(ConfigError, match=r'format of `transformers`: bert: `token` would be .*mean'):
        pretrained.save(Classifier(inner, num_classes=3, token='mean'), tmp_path / 'new')
    with pytest.raises(ConfigError, match='was not loaded in that format'):
        pretrained.save(finetune(model_of('llama'), 'tokens')[0], tmp_path / 'new')


def test_modules_that_are_no_class_of_transformers(folder, tmp_path):  # noqa: F811
    with pytest.raises(ConfigError, match='a DPO has no class in `transformers`: save its `policy_model`'):
        pretrained.save(DPO(pretrained.load(folder('llama'))), tmp_path)
    stack = Decoder(dim=8, depth=1, heads=1, attn_talking_heads=True)
    with pytest.raises(ConfigError, match=r"a ContinuousTransformerWrapper has no class .*: `format='own'` saves"):
        pretrained.save(ContinuousTransformerWrapper(dim_in=3, dim_out=3, max_seq_len=8, attn_layers=stack), tmp_path)
    with pytest.raises(ConfigError, match=r'; and \d+ other types, of which `hf_type` names one') as error:
        pretrained.save(AutoregressiveWrapper(TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack)), 'no')
    assert len(str(error.value)) < 600


@pytest.mark.parametrize('kind', ['clip', 't5', 'gpt2', 'marian', 'bert', 'whisper'])
def test_a_larger_vocabulary_is_written(tmp_path, kind):
    model = pretrained.keywords(config_of(next(case for case in BASES if case.type == kind)))
    pretrained.save(pretrained.engine.build(model, 'cpu'), tmp_path / 'small', hf_type=kind)
    net = pretrained.load(tmp_path / 'small', num_tokens=103)
    again, info = written(net, tmp_path / 'large')
    assert (info.config.get('text_config') or info.config)['vocab_size'] == 103
    same_weights(again, net)


def test_a_model_of_several_dtypes_is_written_without_loss(folder, tmp_path):  # noqa: F811
    net = pretrained.load(folder('llama')).bfloat16()
    net.attn_layers.final_norm.float()
    again, info = written(net, tmp_path)
    assert info.config['dtype'] == 'float32'
    for name, t in net.state_dict().items():
        assert torch.equal(again.state_dict()[name], t.float()), name


# files of tensors


def test_tensors_are_written_as_the_package_of_safetensors_does(tmp_path):
    """Of every dtype, without elements, strided, with letters of other alphabets, in one file and in several."""
    tensors = {
        'a': torch.randn(3, 5).T, 'ä.1': torch.randn(()), 'empty': torch.zeros(0, 4), 'b': torch.randn(7)[::2],
        'h': torch.randn(3).bfloat16(), 'i': torch.arange(5), 'k': torch.tensor([True, False, True]),
        'd': torch.randn(2, 2, 2).double(),
    }  # fmt: skip
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].itemsize))
    sizes = {name: t.nbytes for name, t in tensors.items()}
    for most in (10**6, 30):
        path = tmp_path / str(most)
        path.mkdir()
        write_weights(path, sizes, lambda names: {name: tensors[name] for name in names}, most)
        found = {name: t for file in path.glob('*.safetensors') for name, t in safe.load_file(file).items()}
        assert found.keys() == tensors.keys()
        for name, t in found.items():
            assert t.dtype == tensors[name].dtype and torch.equal(t, tensors[name]), name


@pytest.mark.slow
def test_writing_holds_little_more_than_the_model(tmp_path):
    """At most the largest tensor above the model, of which there are many here, and what allocators keep."""
    for format in ('hf', 'own'):
        script = f"""
import resource
from x_transformers import pretrained
config = dict(model_type='llama', hidden_size=256, intermediate_size=2048, num_attention_heads=8)
config |= dict(tie_word_embeddings=False)
build = lambda **sizes: pretrained.engine.build(pretrained.keywords({{**config, **sizes}}), 'cpu')
net = build(num_hidden_layers=12, vocab_size=4096)
pretrained.save(build(num_hidden_layers=1, vocab_size=64), 'small', hf_type='llama')  # what is imported and kept
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
pretrained.save(net, 'large', format={format!r}, hf_type='llama')
print((peak() - before) / sum(p.nbytes for p in net.parameters()))
"""
        run = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert float(run.stdout) < 0.35, (format, run.stdout)


@pytest.mark.slow
def test_building_a_model_for_its_weights_imports_no_compiler():
    """Which would take longer than to read the weights."""
    script = """
import sys
from x_transformers import pretrained
for kind in ('llama', 'gpt2', 'bert', 't5', 'bart', 'whisper'):
    pretrained.engine.build(pretrained.keywords({'model_type': kind}))
print(*{'sympy', 'torch._dynamo'} & sys.modules.keys())
"""
    run = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ''


# files of tokenizers


def test_every_file_of_a_tokenizer_is_copied(folder, tmp_path):  # noqa: F811
    names = [
        'tokenizer.json', 'source.spm', 'target.spm', 'target_vocab.json', 'spiece.model', 'chat_template.jinja',
        'additional_chat_templates/tools.jinja', 'preprocessor_config.json', 'video_preprocessor_config.json',
        'processor_config.json', 'added_tokens.json', 'sentencepiece.bpe.model', 'bpe.codes', 'qwen.tiktoken',
    ]  # fmt: skip
    for name in (*names, 'config.json', 'pytorch_model.bin', 'notes.md', 'model.safetensors.index.json'):
        (tmp_path / 'from' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'from' / name).write_text('{}' if name.endswith('.json') else name)
    pretrained.save(model_of('llama'), tmp_path / 'to', hf_type='llama', tokenizer_from=tmp_path / 'from')
    found = {str(path.relative_to(tmp_path / 'to')) for path in (tmp_path / 'to').rglob('*') if path.is_file()}
    assert found == {*names, 'config.json', 'model.safetensors'}
    assert json.loads((tmp_path / 'to' / 'config.json').read_text())['model_type'] == 'llama'


@pytest.mark.slow
def test_the_files_that_tokenizers_of_transformers_read_are_known():
    """Go through `vocab_files_names` of all tokenizers."""
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    from fnmatch import fnmatch

    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    seen = set()
    for name in {name for name in TOKENIZER_MAPPING_NAMES.values() if name}:
        try:
            seen |= {*getattr(transformers, name).vocab_files_names.values()}
        except (AttributeError, ImportError, NameError):  # a package of theirs that is not here
            continue
    assert len(seen) > 8
    assert not [name for name in seen if not any(fnmatch(name, pattern) for pattern in TOKENIZER)]
