"""The examples beside train_lm.py: what they refuse, that they learn, go on after a stop, and agree with each other."""

import itertools
import json
import re
from pathlib import Path

import example_scripts
import pytest
import torch
from example_scripts import call
from safetensors.torch import load_file, save_file

from x_transformers import Encoder, TransformerWrapper

TINY = '--dim 32 --heads 1 --depth 1'.split()
LM = [*TINY, *'--seq-len 32 --batch-size 2 --val-windows 4 --steps 2 --sample-bytes 2'.split()]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Relative paths lead there."""
    monkeypatch.chdir(tmp_path)
    with example_scripts.usual_signals():
        yield


def needs(script):
    """The package that a script reads its data from."""
    package = {'classify_images': 'sklearn', 'draw_digits': 'sklearn', 'translate': 'babel'}.get(script)
    if package:
        pytest.importorskip(package, reason='needs x-transformers[examples]')


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(scope='module')
def backbone(tmp_path_factory):
    """A run of train_lm.py."""
    folder = tmp_path_factory.mktemp('lm')
    (folder / 'text').write_text('the cat sat on the mat. ' * 40)
    with example_scripts.script('train_lm') as train_lm:
        assert call(train_lm, *LM, '--data', folder / 'text', '--out', folder / 'run') == 0
    return folder / 'run'


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
    """A folder with two classes of short texts."""
    root = tmp_path_factory.mktemp('texts')
    for name, words in (('cats', 'the cat sat on the mat '), ('sums', '1 + 2 = 3; 4 + 5 = 9; ')):
        (root / name).mkdir()
        for index in range(20):
            (root / name / f'{index:02d}').write_text(f'{words[index % 7 :]}{words} no. {index}')
    return root


# refusals


REFUSED = {
    'classify_images': [
        (['--steps', '0'], "argument --steps: got '0', it must be an integer of at least 1"),
        (['--bend', '-1'], 'a number of at least 0'),
        (['--dim', '30'], '--dim 30 cannot be divided among 4 --heads'),
        (['--patch-size', '3'], 'there is no such model: `patch_size` must divide'),
        (['--set', 'pool=None'], 'it answers with (1, 16, 10) numbers, not with one per digit'),
        (['--set', 'num_register_token=4'], 'there is no such flag, did you mean `num_register_tokens`'),
        (['--set', 'dim=3'], '--set dim: this is not set by flag'),
        (['--resume'], '--resume needs --out'),
        (['--resume', '--out', 'nowhere'], '--resume: there is no checkpoint in nowhere'),
        (['--resume', '--out', 'other'], 'step_000001: it is of another script, which knows `wheels`'),
        (['--device', 'abacus'], '--device abacus cannot be used'),
        (['--out', 'taken'], '--out taken is not empty; choose another folder'),
    ],
    'image_transformer': [
        (['--order', 'spiral'], "argument --order: invalid choice: 'spiral'"),
        (['--pattern', 'conv2d'], '--pattern conv2d is one of rows: it needs --order raster'),
        (['--set', 'attn_sparse_pattern=sliding'], '--set attn_sparse_pattern: this is not set by flag'),
        (['--set', 'axial_abs_pos_emb=(3, 3)'], 'there is no such model: `axial_abs_pos_emb` got (3, 3)'),
        (['--channels', '2'], 'argument --channels: invalid choice: 2'),
        (['--channels', '3', '--pattern', 'conv2d', '--order', 'raster'], 'it cannot be combined with --channels 3'),
        (['--source', '--side', '6'], '--source needs a --side that is a multiple of 4, not 6'),
    ],
    'long_windows': [
        (['--window-schedule', '2,8'], "got '2,8', it must be WINDOW,LENGTH,STEPS, integers of at least 1"),
        (['--window-schedule', '4,16,1', '2,8,1'], 'sequences of 8 after those of 16, not longer'),
        (['--dim', '30'], '--dim 30 cannot be divided among 4 heads'),
        (['--data', 'empty'], 'there is no text in empty'),
    ],
    'act_rnn': [
        (['--entries', '1'], "argument --entries: got '1', it must be an integer of at least 2"),
        (['--ponder-weight', '-1'], "argument --ponder-weight: got '-1', it must be a number of at least 0"),
    ],
    'flow_moons': [
        (['--dim', '30'], '--dim 30 cannot be divided by 4'),
        (['--walk', '0'], "argument --walk: got '0', it must be an integer of at least 1"),
    ],
    'draw_digits': [
        (['--model', 'muse'], "argument --model: invalid choice: 'muse'"),
        (['--cond-scale', '-1'], "argument --cond-scale: got '-1', it must be a number of at least 0"),
    ],
    'length_extrapolation': [
        (['--schemes', 'learned'], '--schemes learned has a table for windows of 32, it cannot read those of 256'),
        (['--dim', '30'], '--dim 30 cannot be divided by 4'),
        (['--data', 'empty'], 'there is no text in empty'),
    ],
    'phenaki_toy': [
        (['--dim', '30'], '--dim 30 cannot be divided by 4'),
        (['--side', '5'], '--side 5 cannot be divided by 2'),
        (['--keep', '5'], '--keep 5 leaves nothing of 5 --frames'),
    ],
    'predecessors': [
        (['--attention', 'cosine'], "argument --attention: invalid choice: 'cosine'"),
        (['--bidirectional', '--dim', '5'], '--dim 5 cannot be divided among two directions'),
    ],
    'video_dit_toy': [
        (['--dim', '30'], '--dim 30 cannot be divided by 4'),
        (['--frames', '3'], '--frames 3 cannot be divided by 2'),
    ],
    'lra': [
        (['--dim', '30'], '--dim 30 cannot be divided by 4'),
        (['--rows', '9'], "argument --rows: got '9', it must be an integer of at least 10"),
    ],
    'memory_corridor': [
        (['--gate', 'lstm'], "argument --gate: invalid choice: 'lstm'"),
        (['--dim', '30'], '--dim 30 cannot be divided by 4'),
        (['--length', '1'], "argument --length: got '1', it must be an integer of at least 2"),
        (['--lr', '0'], "argument --lr: got '0', it must be a number above 0"),
    ],
    'translate': [
        (['--source', ''], 'argument --source: is empty'),
        (['--invented', '1.5'], 'a number of at least 0 and at most 1'),
        (['--set', 'dec_depth=3'], '--set dec_depth: this is not set by flag'),
        (['--set', 'enc'], "--set got 'enc', it must be NAME=VALUE"),
    ],
    'finetune': [
        ([], '--backbone: there is no run of train_lm.py in runs/; make one with train_lm.py'),
        (['--backbone', 'nowhere'], '--backbone nowhere does not exist'),
        (['--backbone', 'taken'], '--backbone taken holds no checkpoint of train_lm.py and no config.json'),
        (['--backbone', 'broken'], '--backbone broken cannot be read: '),
        (['--backbone', 'wordy'], 'cannot be read: '),
        (['--train', 'half'], "argument --train: invalid choice: 'half'"),
        (['--classes', '1'], 'an integer of at least 2'),
        (['--rank', '4'], '--rank is for --train lora'),
    ],
    'generate': [
        ([], '--model: there is no run of train_lm.py in runs/'),
        (['--model', 'taken/file'], '--model taken/file is no folder'),
        (['--beams', '2', '--stream'], '--beams cannot be combined with --stream'),
        (['--samples', '2', '--speculative'], '--speculative cannot be combined with --samples'),
        (['--beams', '2', '--top-k', '3'], '--beams cannot be combined with --top-k'),
        (['--draft', 'x'], '--draft needs --speculative'),
        (['--prompt', 'a', '--prompt-file', 'b'], '--prompt cannot be combined with --prompt-file'),
        (['--prompt-file', 'nowhere'], '--prompt-file nowhere cannot be read: No such file'),
        (['--prompt-file', 'empty'], '--prompt-file empty is empty'),
        (['--top-p', '0'], 'a number above 0'),
        (['--min-p', '2'], 'and at most 1'),
        (['--seed', str(2**63)], 'an integer of at least 0 and at most'),
    ],
}


@pytest.mark.parametrize('script', REFUSED)
def test_what_cannot_be_is_refused(script, tmp_path, capsys):
    for name, content in (('taken', None), ('broken', '{'), ('wordy', '{"model_type": "no such type"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / ('config.json' if content else 'file')).write_text(content or 'x')
    (tmp_path / 'empty').write_text('')
    (tmp_path / 'other' / 'step_000001').mkdir(parents=True)
    (tmp_path / 'other' / 'step_000001' / 'state.json').write_text('{"config": {"steps": 3, "wheels": 2}}')
    (tmp_path / 'other' / '.lock').touch()
    before = sorted(map(str, tmp_path.rglob('*')))
    with example_scripts.script(script) as module:
        for arguments, words in REFUSED[script]:
            assert call(module, *arguments) == 2, arguments
            said = capsys.readouterr().err
            assert words in said and 'Traceback' not in said, (arguments, said)
        assert call(module, '--help') == 0
    assert sorted(map(str, tmp_path.rglob('*'))) == before


def test_languages_that_do_not_exist_are_refused(capsys):
    needs('translate')
    with example_scripts.script('translate') as translate:
        for arguments, words in (
            (['--target', 'xx'], "--target xx: unknown locale 'xx'"),
            (['--source', 'e'], '--source e: '),
            (['--dim', '31'], '--dim 31 cannot be divided among 2 --heads'),
            (['--set', 'dec_attn_dropout=much'], 'there is no such model: '),
        ):
            assert call(translate, *arguments) == 2, arguments
            assert words in capsys.readouterr().err, arguments


# data


def test_no_text_is_in_two_parts(texts):
    with example_scripts.script('finetune') as finetune:
        (texts / 'cats' / 'again').write_text((texts / 'cats' / '00').read_text())
        for per_class in (300, 12):
            names, parts = finetune.read_classes(finetune.Config(data=str(texts), per_class=per_class))
            found = [text for part in parts.values() for text, _ in part]
            assert names == ['cats', 'sums'] and len(set(found)) == len(found)
            for name, most in (('train', per_class), ('validate', per_class // 10), ('test', per_class // 6)):
                counts = [sum(label == one for _, label in parts[name]) for one in (0, 1)]
                assert all(1 <= count <= most for count in counts), (name, counts)
        (texts / 'cats' / 'again').unlink()
        with pytest.raises(finetune.Stop, match='1 folder'):
            finetune.read_classes(finetune.Config(data=str(texts), classes=1))


def test_functions_are_found():
    with example_scripts.script('finetune') as finetune:
        long = '    ' + 'x = 1; ' * 20
        source = f'def short(): pass\n\nclass A:\n  async def method(self):\n{long}\n\ndef long():\n{long}\n'
        assert sorted(text.split('(')[0] for text in finetune.functions_in(source)) == [
            '  async def method',
            'def long',
        ]


def test_classes_are_read_from_real_tokens_alone():
    with example_scripts.script('finetune') as finetune:
        torch.manual_seed(0)
        layers = Encoder(dim=16, depth=1, heads=2)
        model = finetune.Classifier(TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=layers), 16, 3).eval()
        ids = torch.randint(0, 9, (2, 8))
        mask = torch.arange(8) < torch.tensor([[8], [3]])
        torch.testing.assert_close(model(ids, mask)[1:], model(ids[1:, :3], mask[1:, :3]))


def test_images_stay_where_nothing_bends_them():
    with example_scripts.script('classify_images') as classify:
        images = torch.rand(3, 1, 8, 8) * 2 - 1
        same, other = (classify.bent(images, strength, torch.Generator().manual_seed(0)) for strength in (0.0, 1.0))
        torch.testing.assert_close(same, images)
        assert other.shape == images.shape and -1 <= other.min() and other.max() <= 1
        assert (other - images).abs().max() > 0.1


def test_names_are_bytes_with_an_end():
    with example_scripts.script('translate') as translate:
        ids = translate.ids_of(['é', 'abc'], start=True)
        assert ids.tolist() == [[1, 195, 169, 2, 0], [1, 97, 98, 99, 2]]
        assert [translate.text_of(row) for row in ids[:, 1:].tolist()] == ['é', 'abc']
        assert translate.spelled('né') == ['n', 'é', '', '∎']
        words = [translate.invented(['a', 'é'], torch.Generator().manual_seed(seed)) for seed in range(9)]
        assert all(re.fullmatch('[AÉ][aé]{2,7}', word) for word in words) and len(set(words)) > 3


# runs


class Killed(BaseException):
    pass


RUNS = {
    'classify_images': [*TINY, '--steps', '6', '--batch-size', '4', '--set', 'emb_dropout=0.2'],
    'image_transformer': [*TINY, *'--steps 6 --batch-size 4 --side 8 --head mixture --channels 3 --source'.split()],
    'translate': [*TINY, '--steps', '6', '--batch-size', '4', '--source', 'en', '--target', 'nl'],
    'finetune': ['--steps', '6', '--batch-size', '4', '--seq-len', '16'],
}


@pytest.mark.slow
@pytest.mark.parametrize('script', RUNS)
def test_a_run_goes_on_as_if_it_had_not_stopped(script, backbone, texts, tmp_path, monkeypatch, capsys):
    needs(script)
    arguments = [*RUNS[script], '--interval', '4']
    arguments += ['--backbone', backbone, '--data', texts] if script == 'finetune' else []
    with example_scripts.script(script) as module:
        if script == 'translate':  # whose untrained model writes to the end of each line
            read = module.read_names
            monkeypatch.setattr(module, 'read_names', lambda config: {p: some[:40] for p, some in read(config).items()})
        assert call(module, *arguments, '--out', 'straight') == 0
        printed = capsys.readouterr().out.splitlines()[-1]
        assert re.match(r'test(, right to the last letter|, nats per pixel| accuracy): \d', printed)
        pictures = [path for path in Path('straight').iterdir() if path.suffix == '.png']
        assert len(pictures) >= 2 and all(path.read_bytes().startswith(b'\x89PNG') for path in pictures)

        train_step = module.Run.train_step

        def dying(run):
            if run.step == 5:
                raise Killed
            return train_step(run)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module.Run, 'train_step', dying)
            call(module, *arguments, '--out', 'killed')
        assert call(module, '--out', 'killed', '--resume') == 0
        assert capsys.readouterr().out.splitlines()[-1] == printed
        assert call(module, '--out', 'killed', '--resume', '--batch-size', '3') == 2
        assert '--batch-size is 3 here and 4 there' in capsys.readouterr().err
    straight, killed = (files(Path(out, 'step_000006')) for out in ('straight', 'killed'))
    assert straight['model.safetensors'] == killed['model.safetensors']
    assert straight['training.safetensors'] == killed['training.safetensors']


@pytest.mark.slow
def test_what_learns_is_what_was_asked_for(backbone, texts, capsys):
    pytest.importorskip('peft', reason='pip install -e .[ecosystem]')
    before = load_file(sorted(backbone.glob('step_*'))[-1] / 'model.safetensors')
    accuracies, moved = {}, {}
    with example_scripts.script('finetune') as finetune:
        arguments = ['--backbone', backbone, '--data', texts, '--seq-len', '32', '--steps', '30', '--seed', '1']
        for train in ('full', 'head', 'lora', 'scratch'):
            assert call(finetune, *arguments, '--train', train, '--out', train) == 0
            accuracies[train] = float(re.findall(r'test accuracy: ([\d.]+)%', capsys.readouterr().out)[0])
            weights = load_file(Path(train, 'step_000030', 'model.safetensors'))
            plain = {name.replace('base_model.model.', '').replace('base_layer.', ''): w for name, w in weights.items()}
            same = [torch.equal(weight, plain[f'backbone.{name}']) for name, weight in before.items()]
            assert all(same) == (train in ('head', 'lora')), train
            assert any('lora' in name for name in weights) == (train == 'lora')
            moved[train] = (plain['backbone.token_emb.emb.weight'] - before['token_emb.emb.weight']).norm()
    assert min(accuracies.values()) == 100.0, accuracies  # letters or digits
    assert moved['scratch'] > 2 * moved['full'], moved


@pytest.mark.slow
def test_digits_are_learned(capsys):
    needs('classify_images')
    with example_scripts.script('classify_images') as classify:
        assert call(classify, '--steps', '150', '--dim', '32', '--depth', '2', '--interval', '150') == 0
    accuracy = float(re.findall(r'test accuracy: ([\d.]+)%', capsys.readouterr().out)[0])
    assert accuracy > 60  # by chance 10


@pytest.mark.slow
@pytest.mark.parametrize('order, pattern, source', [('block', 'local2d', True), ('raster', 'conv2d', False)])
def test_pixels_are_foretold_and_generated_in_one_order(order, pattern, source):
    """What is generated pixel by pixel has the logits of one pass, and stands where it belongs."""
    with example_scripts.script('image_transformer') as script:
        sizes = dict(dim=16, heads=2, depth=1, side=8, precision='float32')
        channels = 3 if source else 1
        config = script.Config(order=order, pattern=pattern, source=source, channels=channels, **sizes)
        run = script.Run(config, torch.device('cpu'))
        before = run.score()
        for _ in range(10):
            run.losses.append(run.train_step())
        assert run.score() < before
        found = []
        with run.painter.register_forward_hook(lambda model, given, out: found.append(out[0][:, -1])):
            pixels = run.samples(run.known[:3]).flatten(1)[:, run.order]
        first, context = torch.full((3, 1), script.SHADES), run.source_of(run.known[:3])
        whole = run.painter.eval()(torch.cat((first, pixels[:, :-1]), dim=1), pos=run.order, **context)
        torch.testing.assert_close(torch.stack(found, dim=1), whole)
        upper = 32 * channels  # the upper tile is the upper half
        assert torch.equal(run.order[:upper].sort().values, torch.arange(upper))
        small = script.smaller(run.known)  # whose pixels are means of those of each channel
        assert small.shape == (64, 2, 2, channels)
        assert small[5, 1, 0, -1] == run.known[5, 4:, :4, -1].float().mean().round()
        if source:
            assert not torch.equal(run.source_of(run.known[3:6])['context'], context['context'])


@pytest.mark.slow
def test_windows_grow_around_what_was_learned(monkeypatch):
    Path('text').write_text('abcdefgh' * 100)
    with example_scripts.script('long_windows') as script:
        args = script.read_arguments(
            '--window-schedule 2,8,30 4,16,3 --data text --dim 32 --depth 2 --lr 0.01 --tokens 64'.split()
        )
        build, models = script.build_model, []
        monkeypatch.setattr(script, 'build_model', lambda args: models.append(build(args)) or models[0])
        shapes = []
        for stage, lr, bits in script.train(args):
            assert bits < 1.5  # 3 by chance
            shapes.append((stage.window, lr, models[0].net.max_seq_len))
        assert shapes == [(2, 0.01, 8), (4, 0.005, 16)]
        near, far = models[0].net.attn_layers.config['attn_sparse_pattern']
        assert near['window'] == far['window'] == 4 and list(far['dilation']) == [1, 1, 2, 2]


@pytest.mark.slow
def test_an_agent_remembers_through_its_memories():
    """Each segment sees nothing of the one with the cue: without memories it can only guess."""
    with example_scripts.script('memory_corridor') as script:
        for length, memory, low, high in ((6, 6, 0.9, 1.0), (6, 0, 0.2, 0.8)):
            args = script.read_arguments(f'--length {length} --segment 2 --depth 2 --steps 60 --lr 3e-3'.split())
            build = script.build_agent
            script.build_agent = lambda args, memory=memory, build=build: with_memory(build(args), memory)
            found = list(script.train(args))
            script.build_agent = build
            assert low <= sum(found[-10:]) / 10 <= high


def with_memory(agent, length):
    agent.max_mem_len = length
    return agent


@pytest.mark.slow
def test_a_cell_that_halts_answers_what_is_easy(capsys):
    with example_scripts.script('act_rnn') as script:
        argv = '--look-ups 1 --entries 2 --steps 150 --batch-size 64 --max-steps 3 --lr 0.02'.split()
        args = script.read_arguments(argv)
        hard, steps, right = script.answers(script.train(args), args)
        assert (hard == 1).all() and steps.max() <= 3 and right.float().mean() > 0.9
        questions = script.draw(script.read_arguments(['--look-ups', '3']), 50)
        for often, x, answer in zip(*questions, strict=True):
            table, found = x[:16].view(4, 4).argmax(dim=-1), x[-4:].argmax()
            assert x[16:19].sum() == often + 1
            for _ in range(often + 1):
                found = table[found]
            assert found == answer
        ties = script.ranks(torch.tensor([3, 1, 3, 0]))
        assert ties.tolist() == [2.5, 1, 2.5, 0]
        assert script.main([*argv[:-2], '--steps', '2']) == 0
        assert 'look-ups  right  steps' in capsys.readouterr().out


@pytest.mark.nightly
def test_harder_questions_take_more_steps():
    with example_scripts.script('act_rnn') as script:
        good = 0
        for seed in '012':
            args = script.read_arguments(['--seed', seed])
            hard, steps, right = script.answers(script.train(args), args)
            good += right.float().mean() > 0.9 and script.correlation(hard, steps) > 0.5
        assert good >= 2


@pytest.mark.slow
def test_a_flow_to_one_point(capsys, tmp_path):
    """Where the velocity is exact, one step of Euler's is enough; points of the data lie in their moons."""
    with example_scripts.script('flow_moons') as script:
        goal, noise = torch.tensor([0.3, -0.7]), torch.randn(5, 2)
        found = script.walked(lambda z, t, which: noise - goal, noise, torch.zeros(5).long(), 1)
        assert torch.allclose(found, goal.expand(5, -1), atol=1e-6)
        points, which = script.moons(500)
        assert script.within(points, which).float().mean() > 0.97
        assert script.within(points, 1 - which).float().mean() < 0.2
        few = '--steps 2 --points 9 --walk 2 --dim 8 --depth 1'.split()
        assert script.main([*few, '--out', str(tmp_path / 'moons.png')]) == 0
        assert 'of 9 points' in capsys.readouterr().out and (tmp_path / 'moons.png').stat().st_size > 1000


@pytest.mark.nightly
def test_points_lie_in_the_moon_that_was_asked_for():
    with example_scripts.script('flow_moons') as script:
        args = script.read_arguments([])
        model, which = script.train(args), torch.randint(0, 2, (1000,))
        points = script.walked(model, torch.randn(1000, 2), which, args.walk)
        assert script.within(points, which).float().mean() >= 0.9


@pytest.mark.slow
def test_losses_at_other_lengths(tmp_path, capsys):
    """Each byte is foretold once, from those before it in its window; at the trained length that is the usual loss."""
    (tmp_path / 'text').write_bytes(bytes(range(33, 123)) * 60)
    argv = '--data text --length 4 --times 1 3 --steps 3 --batch-size 2 --dim 8 --depth 1 --val-windows 5'.split()
    with example_scripts.script('length_extrapolation') as script:
        args = script.read_arguments([*argv, '--schemes', 'alibi'])
        model = script.build_model('alibi', args).eval()
        text = torch.randint(0, 256, (5, 13))
        for length in (4, 12):
            expected = 0.0
            for row in text:
                for begin in range(0, 12, length):
                    logits = model.net(row[None, begin : begin + length]).log_softmax(dim=-1)[0]
                    read = row[begin + 1 : begin + length + 1]
                    expected -= logits.gather(1, read[:, None]).sum().item() / (5 * 12)
            assert abs(script.loss_at(model, text, length) - expected) < 1e-5
        for scheme in script.SCHEMES:
            if scheme != 'learned':
                positions = script.build_model(scheme, args)(text)  # longer than it was made for
                assert positions.isfinite()
        assert script.main([*argv, '--schemes', 'sinusoids', 't5']) == 0
        assert script.main([*argv, '--schemes', 'learned', '--times', '1']) == 0
        printed = capsys.readouterr().out
        assert 'sinusoids' in printed and '(1.00)' in printed and 'learned' in printed


@pytest.mark.nightly
def test_what_understands_longer_texts():
    with example_scripts.script('length_extrapolation') as script:
        args = script.read_arguments('--schemes sinusoids dynamic alibi --times 1 4'.split())
        found = {scheme: losses[1] / losses[0] for scheme, losses in script.losses(args)}
    assert found['dynamic'] <= 1.15 and found['alibi'] <= 1.15 and found['sinusoids'] >= 1.5, found


@pytest.mark.slow
def test_tokens_of_digits(capsys, tmp_path):
    needs('draw_digits')
    few = '--steps 2 --tokenizer-steps 2 --classifier-steps 2 --samples 7 --batch-size 3'.split()
    with example_scripts.script('draw_digits') as script:
        images, tokenizer = torch.rand(3, 1, 8, 8) * 2 - 1, script.DiscreteVAE()
        ids = tokenizer.encode(images)
        assert ids.shape == (3, 16) and (ids == tokenizer.to_codes(images).flatten(2).argmax(dim=1)).all()
        one_hot = torch.nn.functional.one_hot(ids, script.CODES).float()
        table = (one_hot @ tokenizer.table.weight).mT.reshape(3, -1, 4, 4)
        assert torch.allclose(tokenizer.decode(ids), tokenizer.to_pixels(table).clamp(-1, 1), atol=1e-6)
        vq = script.QuantisedVAE()
        vq(images, 1.0)
        before = vq.table.count.clone()
        ids = vq.encode(images)
        assert torch.equal(vq.table.count, before) and vq.table.training  # encoding moves no code
        of_codes = vq.to_codes(vq.decode(ids)).shape
        assert ids.shape == (3, 16) and of_codes == (3, 64, 4, 4) and abs(script.used(torch.arange(64)) - 64) < 1e-3
        for model, kind in (('maskgit', 'vq'), ('dalle', 'dvae')):
            more = ['--model', model, '--tokenizer', kind, '--out', str(tmp_path / f'{model}.png')]
            assert script.main([*few, *more]) == 0
            assert 'drawn digits are taken for what was asked for' in capsys.readouterr().out
            assert (tmp_path / f'{model}.png').stat().st_size > 1000


@pytest.mark.nightly
def test_codes_of_digits_are_as_good_as_those_of_a_discrete_autoencoder():
    needs('draw_digits')
    with example_scripts.script('draw_digits') as script:
        found = {}
        for kind in script.TOKENIZERS:
            args = script.read_arguments(['--tokenizer', kind, *'--steps 1 --classifier-steps 1'.split()])
            _, tokenizer, _, (images, _) = script.trained(args)
            ids = tokenizer.encode(images)
            found[kind] = torch.nn.functional.mse_loss(tokenizer.decode(ids), images).item()
        assert found['vq'] <= 1.1 * found['dvae'] and script.used(ids) > script.CODES / 4, found


@pytest.mark.nightly
@pytest.mark.parametrize('model', ['maskgit', 'dalle'])
def test_digits_that_were_asked_for(model):
    needs('draw_digits')
    with example_scripts.script('draw_digits') as script:
        args = script.read_arguments(['--model', model])
        net, tokenizer, classifier, (images, labels) = script.trained(args)
        digits = torch.arange(10).repeat(50)
        drawn = tokenizer.decode(net.drawn(digits, args.cond_scale))
        assert script.taken_for(classifier, images, labels) > 0.95
        assert script.taken_for(classifier, drawn, digits) >= 0.8
        assert len(drawn.flatten(1).unique(dim=0)) > 100  # not one of each


@pytest.mark.slow
def test_stories_of_several_words(capsys, tmp_path):
    """What was there stays as it was, bit by bit; a dot is where its token says."""
    with example_scripts.script('phenaki_toy') as script:
        few = '--steps 2 --clips 5 --dim 8 --depth 1 --batch-size 3 --keep 2'.split()
        args = script.read_arguments(few)
        video, words = script.clips(50, args)
        frames = video.unflatten(1, (5, 4))
        assert ((frames != script.EMPTY).sum(dim=-1) == 1).all()
        for row in range(50):
            places = script.found(frames[row], args.side)
            assert (script.drawn(places.unsqueeze(0), args.side)[0] == video[row]).all()
            assert ((places[2:] - places[1:-1] - script.STEPS_OF[words[row]]) % args.side == 0).all()
        assert script.followed(video, words[:, None].expand(-1, 3), 2, args).all()
        assert not script.followed(video, (words[:, None] + 1).expand(-1, 3) % 4, 2, args).any()
        model = script.train(args)
        begun = video[:3, :8]
        for keep in (1, 2):
            longer = model.extend(begun, words[:3], keep)
            assert longer.shape == (3, 8 + (5 - keep) * 4) and (longer[:, :8] == begun).all()
        for keep in (0, 3):
            with pytest.raises(ValueError, match=rf'`keep` got {keep}, it must be from 1 to 2 frames'):
                model.extend(begun, words[:3], keep)
        assert script.main([*few, '--out', str(tmp_path / 'story.png')]) == 0
        assert 'first and second clips' in capsys.readouterr().out and (tmp_path / 'story.png').stat().st_size > 1000


@pytest.mark.nightly
def test_a_dot_goes_where_the_words_say():
    with example_scripts.script('phenaki_toy') as script:
        good = 0
        for seed in '01':
            args = script.read_arguments(['--seed', seed])
            good += script.told(script.train(args), args)[1].float().mean(dim=0).amin() >= 0.9
        assert good


@pytest.mark.slow
def test_videos_of_a_flow(capsys, tmp_path):
    with example_scripts.script('video_dit_toy') as script:
        args = script.read_arguments(
            '--frames 4 --dim 8 --depth 1 --steps 2 --batch-size 3 --videos 5 --walk 2'.split()
        )
        video, words = script.videos(40, args)
        assert script.followed(video, words, args).all() and not script.followed(video, (words + 1) % 4, args).any()
        assert ((video > 0).sum(dim=(2, 3)) == 1).all() and not script.followed(-video, words, args).any()
        model = script.train(args)
        assert (model.to_video(model.to_tokens(video)) == video).all()
        blank = script.VideoTransformer(args)
        x = torch.randn(2, 8, 8)
        condition = dict(condition=torch.randn(2, 8))
        assert torch.allclose(blank.stack(x, **condition), blank.stack.final_norm(x), atol=1e-6)  # gates are 0
        small = '--dim 8 --depth 1 --steps 2 --batch-size 3 --videos 5 --walk 2'.split()
        assert script.main([*small, '--out', str(tmp_path / 'video.png')]) == 0
        assert 'of 5 videos' in capsys.readouterr().out and (tmp_path / 'video.png').stat().st_size > 1000


@pytest.mark.nightly
def test_dots_go_where_the_words_say():
    with example_scripts.script('video_dit_toy') as script:
        args = script.read_arguments([])
        model, words = script.train(args), torch.randint(0, 4, (400,))
        assert script.followed(script.made(model, words, args), words, args).float().mean() >= 0.9


@pytest.mark.nightly
def test_gates_let_a_deep_agent_learn():
    with example_scripts.script('memory_corridor') as script:

        def right(gate, seed):
            """Of the steps up to the middle of training, the last thirty."""
            args = script.read_arguments(['--gate', gate, '--seed', seed])
            return sum(list(itertools.islice(script.train(args), 150))[-30:]) / 30

        found = {gate: [right(gate, seed) for seed in '012'] for gate in ('gtrxl', 'none')}
    assert min(found['gtrxl']) > 0.95, found
    assert sorted(found['none'])[1] < 0.7, found


@pytest.mark.slow
def test_names_are_learned(tmp_path):
    """As many as fit into a batch are known by heart."""
    needs('translate')
    with example_scripts.script('translate') as translate:
        config = translate.Config(
            dim=64, heads=1, depth=1, batch_size=8, steps=60, invented=0.0, dropout=0.0, precision='float32'
        )
        run = translate.Run(config, torch.device('cpu'))
        short = [pair for pair in run.parts['train'] if max(map(len, pair)) < 9][:8]
        run.parts['train'] = short
        seen = []
        hook = run.model.register_forward_pre_hook(
            lambda _, given, more: seen.append((*given, *more.values())), with_kwargs=True
        )
        run.batch_loss()
        hook.remove()
        ((source, target, mask),) = seen
        assert torch.equal(mask, source != translate.PAD) and (target == translate.IGNORED).any()
        assert not (target == translate.PAD).any()
        for _ in range(60):
            run.losses.append(run.train_step())
        sources, targets = zip(*short, strict=True)
        assert translate.share(run.translations(sources), targets) > 0.5
        seen = translate.looks(run, sources[0], targets[0])
        assert seen.shape == (translate.bytes_of(targets[0]) + 1, translate.bytes_of(sources[0]) + 1)
        torch.testing.assert_close(seen.sum(-1), torch.ones(len(seen)))


# generation


@pytest.mark.slow
def test_every_way_to_generate_says_the_same(backbone, monkeypatch, capsys):
    with example_scripts.script('generate') as generate:

        def said(*arguments):
            assert call(generate, '--model', backbone, '--prompt', 'the cat ', '--tokens', 12, *arguments) == 0
            return capsys.readouterr()

        greedy = said('--temperature', 0)
        assert greedy.out.startswith('the cat ') and re.search(r'12 tokens in [\d.]+ s', greedy.err)
        draft = ['--speculative', '--draft', backbone]
        for arguments in (['--stream'], ['--speculative'], draft, ['--cache', 'c'], ['--cache', 'c'], ['--beams', 1]):
            told = said('--temperature', 0, *arguments)
            assert told.out == greedy.out, arguments
        assert 'guesses kept' in said('--temperature', 0, *draft).err
        long = 'a dog ran. the cat sat on the mat. the cat '  # the model sees 32 bytes
        whole, seen = (said('--temperature', 0, '--prompt', text) for text in (long, long[-32:]))
        assert whole.out[len(long) - 32 :] == seen.out and 'the model sees the last 32' in whole.err
        assert '8 tokens of the prompt come from c' in said('--cache', 'c').err
        assert said('--seed', 1, '--top-k', 50).out == said('--seed', 1, '--top-k', 50, '--stream').out
        assert len(said('--samples', 3, '--top-p', 0.9).out.split('-' * 20)) == 3
        with monkeypatch.context() as patch:
            given, usual = {}, generate.AutoregressiveWrapper.generate
            patch.setattr(
                generate.AutoregressiveWrapper,
                'generate',
                lambda *args, **all_: given.update(all_) or usual(*args, **all_),
            )
            said('--stop', 'on', '--stop', 'é', '--repetition-penalty', 1.5, '--min-p', 0.2, '--temperature', 0.9)
            assert given['stop_sequences'] == [[*b'on'], [0xC3, 0xA9]] and given['repetition_penalty'] == 1.5
            assert given['filter_kwargs'] == [{'min_p': 0.2}] and given['temperature'] == 0.9
        assert call(generate, '--model', backbone, '--cache', 'c', '--prompt', 'a dog') == 2
        assert '`prompts` must begin with the 8 tokens of `prompt_cache`' in capsys.readouterr().err

        encoder = TransformerWrapper(num_tokens=256, max_seq_len=8, attn_layers=Encoder(dim=32, depth=1, heads=1))
        Path('encoder').mkdir()
        Path('encoder', 'config.json').write_text(json.dumps(encoder.config))
        save_file(encoder.state_dict(), Path('encoder', 'model.safetensors'))
        assert call(generate, '--model', 'encoder') == 2
        assert '--model: an encoder does not go on with a text' in capsys.readouterr().err


@pytest.mark.slow
def test_models_of_transformers(texts, tmp_path, monkeypatch, capsys):
    transformers = pytest.importorskip('transformers', reason='pip install -e .[test-pretrained]')
    tokenizers = pytest.importorskip('tokenizers', reason='pip install -e .[ecosystem]')
    monkeypatch.setattr(transformers.utils.logging, 'disable_progress_bar', lambda: None)
    words = {word: i for i, word in enumerate(['<end>', 'the', 'cat', 'sat', 'on', 'mat', '1', '2', '+', '=', '?'])}
    config = transformers.GPT2Config(vocab_size=11, n_embd=32, n_layer=1, n_head=2, n_positions=64, eos_token_id=0)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / 'gpt2')
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token='?'))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    with example_scripts.script('generate') as generate:
        assert call(generate, '--model', 'gpt2', '--prompt', 'the cat') == 2
        assert 'has no tokenizer.json, and 11 ids are no bytes' in capsys.readouterr().err
        tokenizer.save(str(tmp_path / 'gpt2' / 'tokenizer.json'))
        assert call(generate, '--model', 'gpt2', '--prompt', 'the cat', '--tokens', 5) == 0
        said = capsys.readouterr().out.split()
        assert said[:2] == ['the', 'cat'] and len(said) > 2 and {*said} <= {*words}
    with example_scripts.script('finetune') as finetune:
        arguments = ['--backbone', 'gpt2', '--data', texts, '--steps', '30', '--seq-len', '16', '--interval', '30']
        assert call(finetune, *arguments, '--out', 'run') == 0
        assert 'test accuracy: 100.0%' in capsys.readouterr().out
    described = json.loads(Path('run', 'step_000030', 'config.json').read_text())
    assert described['classes'] == ['cats', 'sums'] and described['train'] == 'full'
