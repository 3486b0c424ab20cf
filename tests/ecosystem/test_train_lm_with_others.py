"""The example that trains a language model, with tokenizers of other libraries, and its curves in TensorBoard."""

import json
import shutil
import sys
from pathlib import Path

import example_scripts
import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
RUN = '--dim 32 --heads 1 --depth 1 --seq-len 16 --batch-size 2 --val-windows 4 --steps 12 --interval 6'.split()
RUN += ['--sample-bytes', '8', '--set', 'ff_dropout=0.2']
LINES = ['the cat sat on the mat.\n', 'a dog ran after the cat.\n', 'Ünïcödé is läßt too.\n'] * 100


@pytest.fixture(scope='module')
def script():
    with example_scripts.script('train_lm') as module:
        yield module


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp('text')
    for index in range(10):
        (folder / f'{index}.txt').write_text(''.join(LINES[index:]), encoding='utf-8')
    return folder


def newest(out):
    return max(path for path in Path(out).glob('step_*') if path.is_dir())


def weights(out):
    return load_file(newest(out) / 'model.safetensors')


def sentencepiece_model(folder):
    sentencepiece = pytest.importorskip('sentencepiece', reason="pip install -e '.[ecosystem]'")
    path = folder / 'pieces.model'
    with path.open('wb') as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES), model_writer=file, vocab_size=30, byte_fallback=False, minloglevel=2
        )
    return path


@pytest.mark.parametrize('kind', ['learned', 'tokenizers', 'sentencepiece'])
def test_tokens_of_several_bytes(script, text, tmp_path, capsys, kind):
    pytest.importorskip('tokenizers', reason="pip install -e '.[ecosystem]'")
    if kind == 'learned':
        wish = ['--train-tokenizer', 300]
    elif kind == 'tokenizers':
        learned = script.Pieces.learn(''.join(LINES), 280)
        learned.save(tmp_path)
        wish = ['--tokenizer', tmp_path / 'tokenizer.json']
    else:
        wish = ['--tokenizer', sentencepiece_model(tmp_path)]
    out = tmp_path / 'run'
    assert example_scripts.call(script, *RUN, *wish, '--data', text, '--out', out) == 0
    said = capsys.readouterr().out
    codec = script.tokenizer_in(newest(out))
    assert f'of {codec.size:,} kinds' in said and 'val bits per byte: ' in said
    assert json.loads((newest(out) / 'config.json').read_text())['num_tokens'] == codec.size

    # bits per byte are those of the text, whatever its tokens are
    config = script.Config(data=str(text), seq_len=16, val_windows=4)
    valid = script.read_corpus(config)[1]
    ids = script.encoded(valid, codec)
    assert codec.unit == 'tokens' and len(ids) < 0.8 * len(valid)
    net = script.TransformerWrapper.from_config((newest(out) / 'config.json').read_text())
    net.load_state_dict(weights(out))
    model = script.AutoregressiveWrapper(net)
    with torch.no_grad():
        nats = model.eval()(script.fixed_windows(ids, config)).item()
    wanted = nats / torch.log(torch.tensor(2.0)).item() * len(ids) / len(valid)
    found = json.loads((newest(out) / 'state.json').read_text())['validations'][-1][1]
    assert found == pytest.approx(wanted, rel=1e-5)
    if kind == 'learned':
        assert codec.decode(ids.tolist()) == valid.numpy().tobytes().decode()

    # resumed with the tokenizer of the checkpoint, it is the same run
    shutil.copytree(out, again := tmp_path / 'again')
    shutil.rmtree(newest(again))
    for path in tmp_path.glob('*.*'):
        path.unlink()  # the file it came from
    assert example_scripts.call(script, '--out', again, '--resume') == 0
    assert all(torch.equal(weight, weights(again)[name]) for name, weight in weights(out).items())
    # and with other tokens it is refused
    other = tmp_path / 'other'
    other.mkdir()
    script.Pieces.learn(''.join(LINES), 270).save(other)
    shutil.rmtree(newest(again))
    code = example_scripts.call(script, '--out', again, '--resume', '--tokenizer', other / 'tokenizer.json')
    words = 'both say what a token is' if kind == 'learned' else 'cannot resume'
    assert code == 2 and words in capsys.readouterr().err


def test_learning_gives_the_same_tokens_again(script):
    pytest.importorskip('tokenizers', reason="pip install -e '.[ecosystem]'")
    first, second = (script.Pieces.learn(''.join(LINES), 300).tokenizer.to_str() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    'wish, words',
    [
        (['--tokenizer', 'nowhere'], 'the tokenizer nowhere cannot be read: No such file or directory'),
        (['--tokenizer', 'broken.json'], 'broken.json is no file of tokenizers or sentencepiece: '),
        (['--tokenizer', 'broken.model'], 'broken.model is no file of tokenizers or sentencepiece: '),
        (['--tokenizer', 'a', '--train-tokenizer', '300'], 'both say what a token is, give only one'),
        (['--train-tokenizer', '256'], "argument --train-tokenizer: got '256', it must be an integer of at least 257"),
        (['--train-tokenizer', '300', '--seq-len', '100'], 'tokens to validate on, fewer than one sequence of 100'),
    ],
)
def test_what_cannot_be_is_refused(script, tmp_path, monkeypatch, capsys, wish, words):
    for package in ('tokenizers', 'sentencepiece'):
        pytest.importorskip(package, reason="pip install -e '.[ecosystem]'")
    monkeypatch.chdir(tmp_path)
    Path('broken.json').write_text('{"version": "1.0"}')
    Path('broken.model').write_bytes(b'\1\2\3')
    Path('text').write_text(''.join(LINES[:60]))
    size = [] if '--seq-len' in wish else ['--seq-len', '16']
    assert example_scripts.call(script, '--data', 'text', '--out', 'run', '--steps', '1', *size, *wish) == 2
    assert words in capsys.readouterr().err and not Path('run').exists()


@pytest.mark.parametrize('package', ['tokenizers', 'tensorboard'])
def test_a_missing_package_is_named(script, text, tmp_path, monkeypatch, capsys, package):
    monkeypatch.setitem(sys.modules, package, None)
    wish = ['--train-tokenizer', 300] if package == 'tokenizers' else ['--tensorboard']
    assert example_scripts.call(script, *RUN, *wish, '--data', text, '--out', tmp_path / 'run') == 2
    assert f'needs a package that is not installed: pip install {package}' in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


def test_curves_for_tensorboard(script, text, tmp_path):
    pytest.importorskip('tensorboard', reason="pip install -e '.[ecosystem]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / 'run'
    assert example_scripts.call(script, *RUN, '--data', text, '--out', out, '--tensorboard') == 0
    shutil.rmtree(newest(out))  # the last 6 steps again
    assert example_scripts.call(script, '--out', out, '--resume', '--tensorboard') == 0
    curves = EventAccumulator(str(out / 'tensorboard')).Reload()
    names = ['train/learning_rate', 'train/loss', 'train/steps_per_second', 'validation/bits_per_byte']
    assert sorted(curves.Tags()['scalars']) == names
    losses = load_file(newest(out) / 'training.safetensors')['losses'].tolist()
    found = {event.step: event.value for event in curves.Scalars('train/loss')}
    assert [*found] == [*range(1, 13)] and list(found.values()) == pytest.approx(losses)
    state = json.loads((newest(out) / 'state.json').read_text())
    scores = [[event.step, event.value] for event in curves.Scalars('validation/bits_per_byte')]
    assert [step for step, _ in scores] == [6, 12]
    assert [score for _, score in scores] == pytest.approx([score for _, score in state['validations']])
