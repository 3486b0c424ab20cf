"""The example that trains a language model: it learns, survives being killed, and refuses what it cannot do."""

import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import example_scripts
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file

from x_transformers import Decoder, TransformerWrapper

DRAW = Figure.savefig

pytestmark = pytest.mark.costly
ROOT = Path(__file__).resolve().parents[1]
TINY = '--dim 32 --heads 1 --depth 1 --seq-len 32 --batch-size 2 --val-windows 4'.split()
# without dropout the random state of torch would not matter
RUN = [*TINY, '--steps', '12', '--interval', '3', '--set', 'ff_dropout=0.2']


@pytest.fixture(scope='module')
def script():
    with example_scripts.script('train_lm') as module:
        yield module


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    """A folder with eleven small files of text that repeats itself."""
    folder = tmp_path_factory.mktemp('text')
    for index in range(11):
        (folder / f'{index:02d}.txt').write_text('the cat sat on the mat. ' * 40)
    return folder


@pytest.fixture(scope='module')
def straight(script, text, tmp_path_factory):
    """The folder of a run that nothing has stopped. Read only."""
    out = tmp_path_factory.mktemp('straight') / 'run'
    assert call(script, *RUN, '--data', text, '--out', out) == 0
    return out


@pytest.fixture(scope='module', autouse=True)
def _plain_pictures(script):
    """Drawing takes longer than the runs here; those in a process of their own draw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, 'savefig', lambda figure, path, **more: write(path, b'drawn'))
        yield


@pytest.fixture(autouse=True)
def _usual_signals():
    with example_scripts.usual_signals():
        yield


def call(script, *arguments):
    return example_scripts.call(script, '--sample-bytes', 2, *arguments)


@pytest.fixture
def start(tmp_path_factory):
    """Run the script as a user does, in a process of its own. `finish` waits, and gives its code and what it said."""
    processes = []

    def begin(*arguments, **environment):
        # files, since a process waits when nobody empties its pipes
        folder = tmp_path_factory.mktemp('said')
        command = [sys.executable, str(Path('examples', 'train_lm.py')), *map(str, arguments)]
        environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', **environment}
        with open(folder / 'out', 'wb') as out, open(folder / 'err', 'wb') as err:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)

        def finish():
            process.wait(timeout=300)
            return process.returncode, *((folder / name).read_text(encoding='utf-8') for name in ('out', 'err'))

        process.finish = finish
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def digests(folder):
    paths = sorted(Path(folder).rglob('*'))
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else '' for path in paths}


def names(out):
    """What a run leaves in its folder, but for its lock."""
    return sorted(path.name for path in out.iterdir() if path.name != '.lock')


def contents(out):
    """All that the newest checkpoint holds, but for the path of the text."""
    folder = sorted(path for path in out.glob('step_*') if path.suffix != '.tmp')[-1]
    state = json.loads((folder / 'state.json').read_text())
    del state['config']['data']
    files = {name: (folder / name).read_bytes() for name in ('model.safetensors', 'training.safetensors')}
    return folder.name, state, files


def write(path, content):
    path.write_bytes(content)
    return path


# a run


@pytest.mark.parametrize('program', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_from_start_to_end(script, start, text, tmp_path, monkeypatch, capsys, program):
    out = tmp_path / 'new' / 'run'
    sizes = [*TINY, '--sample-bytes', '8', '--steps', '60', '--interval', '25', '--lr', '0.01']
    if program:
        code, printed, progress = start(*sizes, '--data', text, '--out', out).finish()
    else:
        monkeypatch.setattr(Figure, 'savefig', DRAW)
        code = call(script, *sizes, '--data', text, '--out', out)
        printed, progress = capsys.readouterr()
    assert code == 0, progress
    assert re.fullmatch(r'val bits per byte: \d\.\d{3}', printed.splitlines()[-1])
    for shown in ('60/60', 'loss ', 'bits/byte ', 'tokens/s'):
        assert shown in progress
    assert printed.count('bits per byte in validation') == 3
    assert (out / 'loss.png').read_bytes().startswith(b'\x89PNG')
    assert names(out) == ['loss.png', 'step_000050', 'step_000060']

    losses = load_file(out / 'step_000060' / 'training.safetensors')['losses']
    state = json.loads((out / 'step_000060' / 'state.json').read_text())
    assert losses.shape == (60,) and losses[-10:].mean() < losses[:5].mean() / 2
    assert printed.splitlines()[-1].endswith(f'{state["validations"][-1][1]:.3f}')


@pytest.mark.parametrize('described', [False, True])
def test_the_weights_are_those_of_the_model(script, straight, text, described):
    config = script.Config(dim=32, heads=1, depth=1, seq_len=32, val_windows=4, data=str(text))
    if described:  # by what lies beside them
        net = TransformerWrapper.from_config((straight / 'step_000012' / 'config.json').read_text())
    else:
        layers = Decoder(dim=32, depth=1, heads=1, attn_dim_head=32, **script.STACK)
        net = TransformerWrapper(num_tokens=256, max_seq_len=32, attn_layers=layers)
    net.load_state_dict(load_file(straight / 'step_000012' / 'model.safetensors'), strict=True)
    windows = script.fixed_windows(script.read_corpus(config)[1], config)
    with torch.no_grad():
        logits = net.eval()(windows)[:, :-1]
    nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), windows[:, 1:])
    state = json.loads((straight / 'step_000012' / 'state.json').read_text())
    assert state['validations'][-1][1] == pytest.approx(nats.item() / torch.tensor(2.0).log().item(), abs=1e-5)


def test_a_new_run_takes_the_next_free_folder(script, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert call(script, *TINY, '--data', text, '--steps', '1') == 0
    assert sorted(path.name for path in Path('runs').iterdir()) == ['train_lm-001', 'train_lm-002']


def test_set_changes_the_model(script, text, tmp_path, capsys):
    counts = []
    for number, flags in enumerate(([], ['--set', 'attn_num_mem_kv=3'], ['--set', 'tie_embedding=True'])):
        assert call(script, *TINY, '--data', text, '--steps', '1', '--out', tmp_path / str(number), *flags) == 0
        counts.append(int(re.search(r'model: ([\d,]+) parameters', capsys.readouterr().out)[1].replace(',', '')))
    assert counts[1] - counts[0] == 2 * 3 * 32
    assert counts[2] - counts[0] == -256 * 32


@pytest.mark.parametrize('flags', [[], ['--set', 'rotary_pos_emb=False']], ids=['rotary', 'table'])
def test_the_sample_may_go_past_the_length_of_the_model(script, text, tmp_path, capsys, flags):
    arguments = [*TINY, *flags, '--data', text, '--steps', '1', '--out', tmp_path / 'run']
    assert call(script, *arguments, '--prompt', 'é' * 40, '--sample-bytes', '50') == 0
    printed = capsys.readouterr().out
    assert 'of the 80 bytes of the prompt, the model sees the last 32' in printed
    assert 'é' * 40 in printed


def test_help(script, capsys):
    assert call(script, '--help') == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in ('--data', '--set NAME=VALUE', '--resume', '--precision'))


# stopping and going on


class Killed(BaseException):
    pass


def killed_at(script, monkeypatch, step):
    """Make the script die at the beginning of a step."""
    train_step = script.Run.train_step

    def dying(run):
        if run.step == step:
            raise Killed
        return train_step(run)

    monkeypatch.setattr(script.Run, 'train_step', dying)


@pytest.mark.parametrize('step', [6, 8])
def test_resuming_is_bit_identical(script, straight, text, tmp_path, monkeypatch, capsys, step):
    arguments = ['--data', text, '--out', tmp_path / 'run']
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(script, patch, step)
        call(script, *RUN, *arguments)
    capsys.readouterr()
    # the configuration is remembered, and may be said again
    assert call(script, *(RUN if step == 6 else ['--interval', '3']), *arguments, '--resume') == 0
    assert 'resumed at step 6' in capsys.readouterr().out
    assert contents(tmp_path / 'run') == contents(straight)


def test_saving_by_time(script, straight, text, tmp_path):
    arguments = ['--data', text, '--out', tmp_path / 'run', '--save-minutes', '1e-9']
    assert call(script, *RUN, *arguments) == 0
    assert names(tmp_path / 'run') == ['loss.png', 'step_000011', 'step_000012']  # every step
    assert contents(tmp_path / 'run') == contents(straight)  # which changes no number


def test_a_finished_run_can_go_on_for_more_steps(script, straight, tmp_path, monkeypatch):
    out, rates = shutil.copytree(straight, tmp_path / 'run'), []
    train_step = script.Run.train_step

    def watched(run):
        loss = train_step(run)
        rates.append(run.optimizer.param_groups[0]['lr'])
        return loss

    monkeypatch.setattr(script.Run, 'train_step', watched)
    assert call(script, '--out', out, '--resume', '--steps', '18', '--interval', '3') == 0
    name, state, _ = contents(out)
    assert (name, state['config']['steps']) == ('step_000018', 18)
    assert rates == [script.runs.learning_rate(step, script.Config(steps=18)) for step in range(12, 18)]
    losses = [load_file(folder / 'training.safetensors')['losses'] for folder in (straight / 'step_000012', out / name)]
    assert torch.equal(losses[1][:12], losses[0]) and len(losses[1]) == 18
    # from then on it is a run of 18 steps
    assert call(script, '--out', out, '--resume') == 0 and contents(out)[0] == 'step_000018'


@pytest.mark.parametrize('resume', [False, True])
def test_a_folder_belongs_to_one_run(script, straight, text, tmp_path, capsys, resume):
    out = shutil.copytree(straight, tmp_path / 'run') if resume else tmp_path / 'run'
    out.mkdir(exist_ok=True)
    with script.runs.claimed(out):
        before = digests(out)
        assert call(script, *RUN, '--data', text, '--out', out, *(['--resume'] if resume else [])) == 2
        assert f'--out {out} is in use: another run writes to it' in capsys.readouterr().err
        assert digests(out) == before
    assert call(script, *RUN, '--data', text, '--out', out, *(['--resume'] if resume else [])) == 0


def test_runs_that_start_together_take_folders_of_their_own(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with script.runs.new_folder(None, 'train_lm') as first, script.runs.new_folder(None, 'train_lm') as second:
        assert [first, second] == [Path('runs', 'train_lm-001'), Path('runs', 'train_lm-002')]


@pytest.mark.parametrize('kind', ['weights', 'state', 'flush'])
def test_a_full_disk_stops_the_run(script, straight, text, tmp_path, monkeypatch, capsys, kind):
    out = tmp_path / 'run'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(script, patch, 5)
        call(script, *RUN, '--data', text, '--out', out)
    before = digests(out)

    def full(*arguments, **more):
        raise (script.runs.SafetensorError if kind == 'weights' else OSError)('No space left on device')

    with monkeypatch.context() as patch:
        targets = {
            'weights': (script.runs, 'save_file'),
            'state': (Path, 'write_text'),
            'flush': (script.runs, 'flush'),
        }
        patch.setattr(*targets[kind], full)
        capsys.readouterr()
        assert call(script, '--interval', '3', '--out', out, '--resume') == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f'train_lm.py: step 6 cannot be saved in {out}: No space left on device')
    assert f'the last checkpoint is {out / "step_000003"}' in said
    assert digests(out) == before
    assert call(script, '--interval', '3', '--out', out, '--resume') == 0
    assert contents(out) == contents(straight)


def test_a_picture_that_cannot_be_written(script, straight, tmp_path, monkeypatch, capsys):
    out = shutil.copytree(straight, tmp_path / 'run')
    before = digests(out)

    def full(*arguments, **more):
        raise OSError('No space left on device')

    monkeypatch.setattr(Figure, 'savefig', full)
    assert call(script, '--out', out, '--resume') == 1
    said = capsys.readouterr().err
    assert 'the loss curve cannot be written: No space left on device; the last checkpoint is' in said
    assert digests(out) == before


def test_files_may_be_read_by_others_as_usual(straight):
    modes = {path.name: path.stat().st_mode & 0o777 for path in (straight / 'step_000012').iterdir()}
    assert sorted(modes) == ['config.json', 'model.safetensors', 'state.json', 'training.safetensors']
    assert len(set(modes.values())) == 1


def test_validation_shows_how_far_it_is(script, tmp_path, capsys):
    write(tmp_path / 'text', b'abc ' * 8000)
    run = [*TINY, '--data', tmp_path / 'text', '--steps', '1', '--out', tmp_path / 'run', '--val-windows', '64']
    assert call(script, *run) == 0
    assert 'validation: ' in capsys.readouterr().err


def test_a_finished_run_can_be_resumed(script, straight, tmp_path, capsys):
    out = shutil.copytree(straight, tmp_path / 'run')
    (out / 'loss.png').unlink()
    assert call(script, '--out', out, '--resume') == 0
    bits = contents(straight)[1]['validations'][-1][1]
    assert capsys.readouterr().out.splitlines()[-1] == f'val bits per byte: {bits:.3f}'
    assert (out / 'loss.png').exists() and contents(out) == contents(straight)


@pytest.mark.parametrize('kind', ['write', 'flush', 'rename'])
def test_a_checkpoint_is_whole_or_absent(script, straight, text, tmp_path, monkeypatch, kind):
    out = tmp_path / 'run'
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_at(script, patch, 3)
        call(script, *RUN, '--data', text, '--out', out)
    before = digests(out)
    # what is left of a checkpoint whose removal was cut short
    (out / 'step_000002.tmp').mkdir()

    def die(*arguments, **more):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        targets = {'write': (script.runs, 'save_file'), 'flush': (script.runs, 'flush'), 'rename': (Path, 'rename')}
        patch.setattr(*targets[kind], die)
        call(script, '--interval', '3', '--out', out, '--resume')
    assert {path: digest for path, digest in digests(out).items() if '.tmp' not in path} == before
    assert call(script, '--interval', '3', '--out', out, '--resume') == 0
    assert contents(out) == contents(straight) and not list(out.glob('*.tmp'))


def test_a_loss_that_is_not_finite_stops_the_run(script, text, tmp_path, monkeypatch, capsys):
    arguments = [*TINY, '--data', text, '--steps', '9']
    # at once, so that there is nothing to save
    assert call(script, *arguments, '--lr', '1e38', '--interval', '1', '--out', tmp_path / 'first') == 1
    assert 'no longer finite, a lower --lr may help; nothing was saved yet' in capsys.readouterr().err
    assert names(tmp_path / 'first') == []

    monkeypatch.setattr(script.Run, 'train_step', lambda run: float('nan') if run.step == 5 else 1.0)
    assert call(script, *arguments, '--interval', '2', '--out', tmp_path / 'second') == 1
    assert f'the last checkpoint is {tmp_path / "second" / "step_000004"}' in capsys.readouterr().err
    assert names(tmp_path / 'second') == ['step_000002', 'step_000004']


def wait_for(condition, process, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.finish()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(os.name != 'posix', reason='signals as in POSIX')
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_after_the_step(script, text, tmp_path, monkeypatch, capsys, number):
    train_step, out = script.Run.train_step, tmp_path / 'run'

    def interrupted(run):
        if run.step == 7:
            signal.raise_signal(number)
        return train_step(run)

    monkeypatch.setattr(script.Run, 'train_step', interrupted)
    assert call(script, *RUN, '--data', text, '--out', out) == 128 + number
    assert f'the last checkpoint is {out / "step_000008"}, to go on' in capsys.readouterr().err
    assert len(load_file(out / 'step_000008' / 'training.safetensors')['losses']) == 8


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='signals as in POSIX')
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(start, text, tmp_path, number):
    long = [*TINY, '--steps', '100000', '--interval', '7', '--data', text]
    process = start(*long, '--out', tmp_path / 'run')
    wait_for(lambda: any((tmp_path / 'run').glob('step_*')), process)
    process.send_signal(number)
    code, _, said = process.finish()
    assert code == 128 + number
    assert f'--resume --out {tmp_path / "run"}' in said
    name = contents(tmp_path / 'run')[0]
    losses = load_file(tmp_path / 'run' / name / 'training.safetensors')['losses']
    assert len(losses) == int(name[5:]) >= 7


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='signals as in POSIX')
def test_killed_at_random_moments_again_and_again(start, text, tmp_path):
    # an interval of one step: most of the time goes into saving
    arguments = [*TINY, '--steps', '150', '--interval', '1', '--set', 'ff_dropout=0.2', '--data', text]
    chance = random.Random()
    reached, resume = 0, []
    for _ in range(3):
        process = start(*arguments, '--out', tmp_path / 'killed', *resume)
        # counted in steps, since a fast machine is through all of them in a second
        there = f'step_{reached + chance.randint(1, 30):06d}'
        wait_for(lambda name=there: any(p.name >= name for p in (tmp_path / 'killed').glob('step_??????')), process)
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        assert process.finish()[0] == -signal.SIGKILL
        reached, resume = int(contents(tmp_path / 'killed')[0][5:]), ['--resume']
        assert 0 < reached < 150
    for out, more in (('killed', ['--resume']), ('straight', [])):
        assert start(*arguments, '--out', tmp_path / out, *more).finish()[0] == 0
    assert contents(tmp_path / 'killed') == contents(tmp_path / 'straight')


# refusals


NEW = [
    (['--steps', '0'], "argument --steps: got '0', it must be an integer of at least 1"),
    (['--lr', 'nan'], "argument --lr: got 'nan', it must be a number above 0"),
    (['--seq-len', '1'], 'an integer of at least 2'),
    (['--seed', '-1'], 'an integer of at least 0'),
    (['--prompt', ''], 'argument --prompt: is empty'),
    (['--no-such-option'], 'unrecognized arguments: --no-such-option'),
    (['--heads', '5'], '--dim 32 cannot be divided among 5 --heads'),
    (['--tensor-parallel', '2'], '--tensor-parallel is for --parallel fsdp+tp'),
    (['--data', 'nowhere'], '--data nowhere does not exist'),
    (['--data', ''], 'argument --data: is empty'),
    (['--data', 'empty.txt'], 'there is no text in empty.txt'),
    (['--data', 'binaries'], 'there is no text in binaries'),
    (['--data', 'short.txt'], 'short.txt gives 36 bytes to train on, fewer than one sequence of 64'),
    (['--data', 'uneven'], 'uneven gives 2 bytes to validate on, fewer than one sequence of 64'),
    (['--precision', 'float16', '--device', 'cpu'], '--precision float16 does not work on cpu'),
    (['--device', 'abacus'], '--device abacus cannot be used'),
    (['--resume'], '--resume: there is no checkpoint in new'),
    (['--set', 'attn_kv_head=1'], '--set attn_kv_head: there is no such flag, did you mean `attn_kv_heads`'),
    (['--set', 'dim=64'], '--set dim: this is not set by flag'),
    (['--set', 'rotary_pos_emb'], "--set got 'rotary_pos_emb', it must be NAME=VALUE"),
    (['--set', 'ff_dropout=much'], 'there is no such model: '),
    (['--set', 'cross_attend=True'], 'a language model with these flags does not work here'),
    (['--out', 'taken'], '--out taken is not empty; choose another folder'),
    (['--out', 'empty.txt'], '--out empty.txt is not a folder'),
    (['--out', 'taken/new', '--data', 'taken'], '--out taken/new lies in --data taken'),
]


@pytest.mark.parametrize('arguments, words', NEW, ids=[' '.join(arguments) for arguments, _ in NEW])
def test_a_run_that_cannot_be_is_refused(script, text, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / 'empty.txt', b'')
    write(tmp_path / 'short.txt', b'x' * 40)
    for folder in ('binaries', 'uneven', 'taken'):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / 'a', b'x' * 100 if folder == 'uneven' else b'\0' * 100)
    write(tmp_path / 'uneven' / 'b', b'xy')
    before = digests(tmp_path)
    rest = [] if '--out' in arguments else ['--out', 'new']
    rest += ['--seq-len', '64'] if 'fewer than' in words else []
    assert call(script, *TINY, '--data', text, '--steps', '1', *rest, *arguments) == 2
    assert words in capsys.readouterr().err
    assert digests(tmp_path) == before


OTHER = [
    (RUN, 'is not empty; add --resume to go on with the run in it, or choose another folder'),
    (['--resume', '--dim', '64'], '--dim is 64 here and 32 there'),
    (['--resume', '--seed', '1', '--lr', '1'], '--seed is 1 here and 0 there, --lr is 1.0 here and 0.002 there'),
    (['--resume', '--steps', '6'], '--steps is 6 here and 12 there; steps may be raised, not taken back'),
    (['--resume', '--set', 'ff_dropout=0.1'], '--set ff_dropout is 0.1 here and 0.2 there'),
    (['--resume', '--set', 'attn_dropout=0.1'], '--set attn_dropout is 0.1 here and not set there'),
    (['--resume', '--data', __file__], 'it was trained on other text than'),
    (['--resume', '--precision', 'bfloat16'], '--precision is bfloat16 here and float32 there'),
]


@pytest.mark.parametrize('arguments, words', OTHER, ids=[' '.join(arguments[:3]) for arguments, _ in OTHER])
def test_another_configuration_is_refused(script, straight, tmp_path, capsys, arguments, words):
    out = shutil.copytree(straight, tmp_path / 'run')
    before = digests(out)
    assert call(script, '--out', out, *arguments) == 2
    assert words in capsys.readouterr().err
    assert digests(out) == before


@pytest.mark.parametrize('name', ['model.safetensors', 'training.safetensors', 'state.json'])
def test_a_damaged_checkpoint_is_refused(script, straight, tmp_path, capsys, name):
    out = shutil.copytree(straight, tmp_path / 'run')
    path = out / 'step_000012' / name
    write(path, path.read_bytes()[:-7])
    before = digests(out)
    assert call(script, '--out', out, '--resume') == 2
    assert f'{out / "step_000012"} is damaged' in capsys.readouterr().err
    assert digests(out) == before
    shutil.rmtree(out / 'step_000012')
    assert call(script, '--out', out, '--resume', '--interval', '3') == 0
    assert contents(out) == contents(straight)


def test_a_checkpoint_of_a_model_built_otherwise_is_refused(script, straight, tmp_path, capsys):
    out = shutil.copytree(straight, tmp_path / 'run')
    path = out / 'step_000012' / 'config.json'
    path.write_text(path.read_text().replace('"shift_tokens": 2', '"shift_tokens": 1'))  # no weight tells
    assert call(script, '--out', out, '--resume') == 2
    assert 'is damaged or of another model' in capsys.readouterr().err
    path.unlink()  # as the first version of the script wrote them
    assert call(script, '--out', out, '--resume') == 0


def test_weights_of_another_model_are_refused(script, straight, text, tmp_path, capsys):
    out = shutil.copytree(straight, tmp_path / 'run')
    state = json.loads((out / 'step_000012' / 'state.json').read_text())
    state['config']['depth'] = 2
    (out / 'step_000012' / 'state.json').write_text(json.dumps(state))
    assert call(script, '--out', out, '--resume') == 2
    assert 'is damaged or of another model' in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_package_is_named(start, tmp_path):
    write(tmp_path / 'tqdm.py', b"raise ModuleNotFoundError('no', name='tqdm')")
    process = start('--help', PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    code, _, said = process.finish()
    assert code == 2
    assert said == 'tqdm is not installed: pip install "x-transformers[examples]"\n'


# data


def read(script, data, **more):
    parts = script.read_corpus(script.Config(data=str(data), seq_len=2, **more))
    return [bytes(part.tolist()) for part in parts]


def test_a_folder_is_split_by_file(script, tmp_path, capsys):
    for index in reversed(range(20)):
        (tmp_path / f'{index % 2}').mkdir(exist_ok=True)
        write(tmp_path / f'{index % 2}' / f'{index:02d}', b'%02d' % index)
    (tmp_path / '.hidden').mkdir()
    write(tmp_path / '.hidden' / 'file', b'hidden')
    write(tmp_path / '0' / '.file', b'hidden')
    write(tmp_path / '0' / 'binary', b'bi\0nary')
    write(tmp_path / '0' / 'empty', b'')
    even, odd = [b'%02d' % i for i in range(0, 20, 2)], [b'%02d' % i for i in range(1, 20, 2)]
    (tmp_path / '1' / 'nowhere').symlink_to(tmp_path / 'nothing')
    assert read(script, tmp_path) == [b''.join(even[:-1] + odd[:-1]), even[-1] + odd[-1]]
    said = capsys.readouterr().out
    assert 'note: 1 skipped, with zero bytes, which no text has: 0/binary\n' in said
    assert 'note: 3 skipped, hidden or no file: .hidden, 0/.file, 1/nowhere\n' in said


def test_two_files_are_one_each(script, tmp_path):
    write(tmp_path / 'a', b'aaaa')
    write(tmp_path / 'b', b'bb')
    assert read(script, tmp_path) == [b'aaaa', b'bb']


@pytest.mark.parametrize('zeros', [False, True])
def test_a_file_is_split_by_place_and_need_not_be_text(script, tmp_path, capsys, zeros):
    content = bytes(range(0 if zeros else 1, 256)) * 2
    cut = len(content) * 9 // 10
    assert read(script, write(tmp_path / 'bytes', content)) == [content[:cut], content[cut:]]
    assert (f'note: {tmp_path / "bytes"} has zero bytes, it may be no text' in capsys.readouterr().out) == zeros


def test_reading_is_limited_and_says_so(script, tmp_path, capsys):
    for name in 'abc':
        write(tmp_path / name, name.encode() * 10)
    assert read(script, tmp_path, max_bytes=15) == [b'a' * 10, b'b' * 5]
    assert 'reading ends after 15 bytes' in capsys.readouterr().out


def test_the_default_is_the_standard_library(script):
    config = script.Config()
    train, valid = script.read_corpus(config)
    assert len(train) > len(valid) > config.val_windows * config.seq_len
    assert b'def ' in bytes(valid.tolist())
    again = script.read_corpus(config)
    assert torch.equal(train, again[0]) and torch.equal(valid, again[1])
    root = Path(json.__file__).parents[1]
    texts = sys.modules['common.texts']
    paths = [path.relative_to(root).as_posix() for path in texts.files_below(root, '.py', texts.SKIPPED)[0]]
    assert 'json/decoder.py' in paths and paths == sorted(paths)
    assert not any(re.search('(^|/)(tests?|site-packages)/', path) for path in paths)


def test_windows_are_even_and_do_not_overlap(script):
    for length, wanted in itertools.product((5, 9, 10, 11, 63, 64, 1001), (1, 2, 7)):
        windows = script.fixed_windows(torch.arange(length), script.Config(seq_len=5, val_windows=wanted))
        assert len(windows) == min(wanted, length // 5), (length, wanted)
        assert torch.equal(windows, windows[:, :1] + torch.arange(5)), (length, wanted)
        starts = windows[:, 0]
        assert starts[0] == 0 and windows[-1, -1] < length, (length, wanted)
        if len(windows) > 1:
            gaps = starts.diff()
            even = gaps.min() >= 5 and gaps.max() - gaps.min() <= 1 and starts[-1] == length - 5
            assert even, (length, wanted)


def test_text_is_encoded_in_parts_that_end_with_a_line(script, monkeypatch):
    tokens = sys.modules['common.tokens']
    monkeypatch.setattr(tokens, 'BLOCK', 8)
    assert list(tokens.blocks('ab\ncd\nefghijklmnop\nq')) == ['ab\ncd\n', 'efghijkl', 'mnop\nq']


def test_crops_reach_both_ends(script):
    config = script.Config(seq_len=5, batch_size=200)
    crops = script.random_crops(torch.arange(8), config, torch.Generator().manual_seed(0))
    assert crops.shape == (200, 5) and set(crops[:, 0].tolist()) == {0, 1, 2, 3}
    assert torch.equal(crops, crops[:, :1] + torch.arange(5))


# training


def test_the_learning_rate_rises_and_falls(script):
    config = script.Config(steps=1000, lr=2.0)
    rates = [script.runs.learning_rate(step, config) for step in range(1000)]
    assert max(rates) == pytest.approx(2.0, rel=0.01) and rates.index(max(rates)) == 49
    assert rates[0] == pytest.approx(0.04) and rates[-1] == pytest.approx(0.04, rel=0.01)
    assert rates[:50] == sorted(rates[:50]) and rates[49:] == sorted(rates[49:], reverse=True)


def test_bfloat16(script, text, tmp_path, capsys):
    arguments = [*TINY, '--data', text, '--steps', '2', '--out', tmp_path / 'run', '--device', 'cpu']
    assert call(script, *arguments, '--precision', 'bfloat16') == 0
    assert 'bfloat16 on cpu' in capsys.readouterr().out
    weights = load_file(tmp_path / 'run' / 'step_000002' / 'model.safetensors')
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_compile_without_a_compiler_is_refused(script, text, tmp_path, monkeypatch, capsys):
    def refuse(model):
        raise RuntimeError('no compiler\nfound')

    monkeypatch.setattr(torch, 'compile', refuse)
    assert call(script, *TINY, '--data', text, '--compile', '--out', tmp_path / 'run') == 2
    assert '--compile does not work here: no compiler' in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_compile(start, text, tmp_path):
    if not shutil.which(os.environ.get('CXX', 'g++')):
        pytest.skip('no compiler')
    losses = []
    for compiled in ([], ['--compile']):
        out = tmp_path / f'run{len(losses)}'
        code, _, said = start(*TINY, '--data', text, '--steps', '5', '--out', out, *compiled).finish()
        assert code == 0, said
        losses.append(load_file(out / 'step_000005' / 'training.safetensors')['losses'])
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
@pytest.mark.parametrize('precision', ['auto', 'float16'])
def test_cuda_resumes_too(script, text, tmp_path, monkeypatch, precision):
    for out, step in (('straight', None), ('killed', 8)):
        arguments = [*RUN, '--device', 'cuda', '--precision', precision, '--data', text, '--out', tmp_path / out]
        if step is not None:
            with monkeypatch.context() as patch, pytest.raises(Killed):
                killed_at(script, patch, step)
                call(script, *arguments)
            arguments.append('--resume')
        assert call(script, *arguments) == 0
    straight, killed = (
        load_file(tmp_path / o / 'step_000012' / 'training.safetensors') for o in ('straight', 'killed')
    )
    torch.testing.assert_close(killed['losses'], straight['losses'], atol=1e-3, rtol=1e-3)
