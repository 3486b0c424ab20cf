"""Pictures of images/: each is a function of the code, and shows what its module says."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip('matplotlib', reason='needs x-transformers[examples]')
FOLDER = Path(__file__).resolve().parents[1] / 'images'
sys.path.insert(0, str(FOLDER))

import draw  # noqa: E402
import draw_measured  # noqa: E402

sys.path.remove(str(FOLDER))
# drawn from measurements, by other scripts
PNG_OF_NO_PICTURE = {'efficient_memory', 'efficient_time', 'digits', 'moons', 'train_lm', 'speed', 'gpu'}
PNG_OF_NO_PICTURE |= {'flag_effects', 'flag_costs', 'flag_pairs', 'flag_lengths'}


def without_kernels(told):
    """Parts of a model but for the kernels of its attention, which depend on the version of torch."""
    title, rows, parts = told
    kept = (
        None if parts is None else [[at, [stage for stage in stages if stage[0] != 'attend']] for at, stages in parts]
    )
    return title, rows, kept


@pytest.mark.costly
def test_files_show_what_the_code_gives():
    """Each file holds the numbers that it was drawn from; they are those of today."""
    from PIL import Image

    names = {path.stem for path in FOLDER.glob('*.png')} - PNG_OF_NO_PICTURE
    assert names == set(draw.PICTURES)
    for name in draw.PICTURES:
        told, numbers = json.loads(Image.open(FOLDER / f'{name}.png').text['Comment'])
        told_now, now = json.loads(draw.summary(draw.made(name)))
        assert without_kernels(told) == without_kernels(told_now), (
            f'{name} is out of date: python images/draw.py {name}'
        )
        near = 0.5 if name == 'flash-attention' else 0.02  # what a kernel keeps is of its version
        for then, today in zip(numbers, now, strict=True):
            assert today == pytest.approx(then, rel=near, abs=1e-3), name


@pytest.mark.parametrize('name', ['scalenorm', 'sandwich', 'bigbird', 'gating'])
def test_the_same_numbers_are_the_same_bytes(name, tmp_path):
    one, other = (next(draw.written([name], tmp_path / folder)).read_bytes() for folder in 'ab')
    assert one == other and len(one) > 1000


@pytest.mark.parametrize('name', draw.GALLERY)
def test_pictures_of_patterns(name):
    """By `visible`, query by query."""
    shown = draw.GALLERY[name]
    at, heads = torch.arange(draw.N), []
    pixels = draw.made(name).maps[0][1]
    causal = at.unsqueeze(0) <= at.unsqueeze(1) if shown.causal else torch.ones(draw.N, draw.N, dtype=torch.bool)
    drawn = shown.pattern.draw(draw.N, causal=shown.causal, heads=shown.heads, marks=draw.marks).split('\n\n')
    for head in range(shown.heads):
        lines = torch.tensor([[sign == '#' for sign in line] for line in drawn[head].splitlines()])
        heads.append(lines)
    if shown.heads == 1:
        seen = shown.pattern.visible(at.unsqueeze(1), at.unsqueeze(0), draw.marks) & causal
        assert (seen.expand(draw.N, draw.N) == heads[0]).all()
    wanted = sum(head.long() * (number + 1) for number, head in enumerate(heads))
    assert (pixels == torch.where(~causal & (wanted == 0), draw.AHEAD, wanted)).all()
    assert (pixels == draw.ONE).any()


def test_what_else_is_seen():
    assert len({draw.made(name).maps[0][1].numpy().tobytes() for name in draw.GALLERY}) == len(draw.GALLERY)
    sparse = draw.made('strided').maps[0][1]
    assert sparse[30, 23:31].tolist() == [3, 1, 1, 1, 1, 1, 1, 3] and sparse[30, 16] == 2 and sparse[30, 31] == 4
    table, at = draw.made('sinusoids').maps[0][1], torch.arange(48).float()[:, None]
    angles = at * 10000 ** (-torch.arange(32) / 32)
    torch.testing.assert_close(table, torch.cat((angles.sin(), angles.cos()), dim=-1), atol=1e-5, rtol=0)
    topk = draw.made('topk-attention').maps
    assert [(table[-1] > 0).sum().item() for _, table in topk] == [24, 8, 2]
    memory = draw.made('all-attention').maps
    assert [tuple(table.shape) for _, table in memory] == [(24, 24), (24, 28), (24, 40)]
    for prob, (_, table) in zip((0, 0.15, 0.5), draw.made('fcm').maps, strict=True):
        assert (table[-1] == draw.NOTHING).sum() == int(24 * prob)
    rotary = {name: y for name, _, y in draw.made('rotary').curves}['rotary_emb_base=10,000']
    angles = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(rotary, angles.cos().mean(dim=-1), atol=1e-4, rtol=0)
    rows = dict(draw.made('sandwich').rows)
    assert rows['sandwich_coef=2'] == ('a',) * 2 + ('a', 'f') * 4 + ('f',) * 2
    qk = {name: y for name, _, y in draw.made('qknorm-analysis').curves}
    assert qk['attn_qk_norm=True'].std() < 1e-3 and qk['attn_qk_norm=False'][-1] > 100 * qk['attn_qk_norm=False'][0]
    rezero = {name: y for name, _, y in draw.made('rezero').curves}
    assert (rezero['use_rezero=True'] == 0).all() and rezero['plain'][-1] > rezero['plain'][0]
    back = {name: y for name, _, y in draw.made('enhanced-recurrence').curves}
    assert back['shift_mem_down=0'][4] == 0 < back['shift_mem_down=1'][5]
    reads, below = dict(draw.made('residuals').maps), torch.ones(9, 9).tril()
    assert torch.allclose(reads['plain'], below, atol=1e-5)  # all that came before, alike
    pairs = below[torch.arange(9) // 2 * 2]  # a feedforward does not read the attention beside it
    assert torch.allclose(reads['parallel_block=True'], pairs, atol=1e-5)
    streams = (torch.arange(8)[:, None] - torch.arange(8)) % 2 == 1
    assert ((reads['reversible=True'][:8, 1:] > 0) == (streams & (below[:8, 1:] > 0))[:, :8]).all()
    assert all((table.triu(1) == 0).all() and (table[-1] > 0).all() for table in reads.values())
    assert (reads['gate_residual=True'][8, :-1].diff() > 0).any() and len(reads) == 12
    for name, stage in (('gating', 'residual'), ('ffglu', 'widen'), ('talking-heads', 'mix')):
        stages = [stage for _, part in draw.made(name).parts for stage in part]
        assert any(seen == stage and by_flag for seen, _, by_flag in stages)


def test_names(capsys, tmp_path):
    assert draw.main(['--list']) == 0 and capsys.readouterr().out.split() == list(draw.PICTURES)
    assert draw.main(['--to', str(tmp_path), 'fcm', 'macaron-1']) == 0
    assert {path.name for path in tmp_path.iterdir()} == {'fcm.png', 'macaron-1.png'}
    assert draw.main(['rotery']) == 2
    assert "draw.py: there is no picture 'rotery', did you mean `rotary`?" in capsys.readouterr().err
    with pytest.raises(ValueError, match='there is no picture'):
        draw.made('rotery')


def test_what_was_measured(tmp_path, capsys, monkeypatch):
    """The bars are the numbers of the tables; the run of the README is drawn from what it saved."""
    from matplotlib.figure import Figure
    from safetensors.torch import save_file

    tables = (FOLDER.parent / 'benchmarks' / 'README.md').read_text(encoding='utf-8')
    found = draw_measured.speeds(tables)
    draw_measured.draw_speed(figure := Figure(), found)
    for axes, row in zip(figure.axes, draw_measured.SPEED, strict=True):
        names = [label.get_text() for label in axes.get_xticklabels()]
        heights = [bar.get_height() for bar in axes.patches]
        assert dict(zip(names, heights, strict=True)) == found[row] and len(names) > 2
    assert draw_measured.main(['--to', str(tmp_path)]) == 0

    last = tmp_path / 'run' / 'step_000002'
    stack = draw.Decoder(dim=32, depth=1, heads=2, verbose=False)
    draw.TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=stack).save_pretrained(last)
    (last / 'state.json').write_text(json.dumps({'validations': [[1, 5.0], [2, 4.25]]}))
    save_file({'losses': torch.tensor([4.0, 3.0])}, last / 'training.safetensors')
    text = draw_measured.sample(last, length=70)
    assert text.startswith('def ') and text == draw_measured.sample(last, length=70)
    draw_measured.draw_run(figure := Figure(), {'validations': [[1, 5.0], [2, 4.25]]}, [4.0, 3.0], 'def words():')
    curves = [line.get_ydata().tolist() for line in figure.axes[0].lines]
    assert curves[1] == [5.0, 4.25] and curves[0] == pytest.approx([4 / math.log(2), 3 / math.log(2)])
    monkeypatch.setattr(draw_measured, 'sample', lambda checkpoint: 'def words():')
    assert draw_measured.main(['--run', str(tmp_path / 'run'), '--to', str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob('*.png')} == {'speed.png', 'train_lm.png'}
    assert draw_measured.main(['--run', str(tmp_path)]) == 2 and 'there is no checkpoint' in capsys.readouterr().err
