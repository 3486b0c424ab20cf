"""Pictures of images/: each is a function of the code, and shows what its module says."""

import itertools
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
import style  # noqa: E402

sys.path.remove(str(FOLDER))
# drawn from measurements and by examples
MEASURED = {'digits', 'moons', 'train_lm', 'speed', 'efficient', 'flag_effects', 'flag_costs', 'flag_lengths'}


def texts(figure):
    """Texts of a drawn figure with their boxes, in points."""
    from matplotlib.text import Text

    away = set()  # labels of ticks out of view, which are not drawn
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            away |= {
                tick.label1 for tick in axis.get_major_ticks() if not (axes.axison and low <= tick.get_loc() <= high)
            }
    found = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    for text in found:
        text.get_window_extent()  # places annotations
    return [(text, Text.get_window_extent(text)) for text in found if text not in away]  # without arrows


def is_legible(figure):
    """Whether at a width of 400 pixels no text is smaller than 9 pixels, leaves the card, or covers another."""
    card, found = figure.bbox, texts(figure)
    assert card.width == pytest.approx(style.WIDTH) and len(found) > 2
    for text, box in found:
        assert text.get_fontsize() >= style.SMALL, text
        assert box.x0 >= 2 and box.x1 <= card.width - 2 and box.y0 >= 2 and box.y1 <= card.height - 2, text
    for (one, box), (other, beside) in itertools.combinations(found, 2):
        wide = min(box.x1, beside.x1) - max(box.x0, beside.x0)
        assert wide < 1 or min(box.y1, beside.y1) - max(box.y0, beside.y0) < 3, (one, other)
    return True


def is_card(path):
    """Whether a file is a light card with transparent corners, small and in few colors."""
    from PIL import Image

    image = Image.open(path).convert('RGBA')
    corners = [image.getpixel((x, y))[3] for x in (0, image.width - 1) for y in (0, image.height - 1)]
    assert corners == [0] * 4 and image.getpixel((image.width // 2, 4))[:3] == pytest.approx((246, 248, 250), abs=4)
    assert path.stat().st_size < 60_000 and path.stat().st_size > 5_000, path
    return True


@pytest.mark.costly
def test_files_show_what_the_code_gives():
    """Each file holds the numbers that it was drawn from; they are those of today."""
    from PIL import Image

    for name in draw.PICTURES:
        told, numbers = json.loads(Image.open(FOLDER / f'{name}.png').text['Comment'])
        told_now, now = json.loads(draw.summary(draw.made(name)))
        assert told == told_now, f'{name} is out of date: python images/draw.py {name}'
        near = 0.5 if name == 'flash-attention' else 0.02  # what a kernel keeps is of its version
        for then, today in zip(numbers, now, strict=True):
            assert today == pytest.approx(then, rel=near, abs=1e-3), name


def test_all_pictures_are_cards_that_a_page_shows():
    files = {path.stem for path in FOLDER.glob('*.png')}
    assert files == set(draw.PICTURES) | MEASURED
    assert all(is_card(FOLDER / f'{name}.png') for name in files)
    root = FOLDER.parent
    pages = [root / 'README.md', *root.glob('docs/*.md'), *root.glob('benchmarks/**/*.md')]
    text = '\n'.join(page.read_text(encoding='utf-8') for page in pages)
    assert {name for name in files if f'images/{name}.png)' in text} == files


@pytest.mark.costly
def test_text_is_legible():
    for name in draw.PICTURES:
        found = draw.made(name)
        assert is_legible(style.figure_of(found.title, found.draw))


def test_the_same_numbers_are_the_same_bytes(tmp_path):
    one, other = (next(draw.written(['orders'], tmp_path / folder)).read_bytes() for folder in 'ab')
    assert one == other and len(one) > 1000


@pytest.mark.parametrize('name', draw.GALLERY)
def test_pictures_of_patterns(name):
    """By `visible`, query by query."""
    shown = draw.GALLERY[name]
    at, heads = torch.arange(draw.N), []
    pixels = shown.pixels()
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
    every = dict(draw.made('patterns').maps)
    assert len(every) == 16 and len({table.numpy().tobytes() for table in every.values()}) == 16
    sparse = every['Sparse, strided']
    assert sparse[30, 23:31].tolist() == [3, 1, 1, 1, 1, 1, 1, 3] and sparse[30, 16] == 2 and sparse[30, 31] == 4
    top = every['Top 4 scores'] == draw.ONE  # and the token itself, by the residual connection
    assert ((4 <= top[4:].sum(dim=-1)) & (top[4:].sum(dim=-1) <= 5)).all() and top.diagonal().all()
    assert (every['FCM'][-1] == draw.NOTHING).sum() == int(draw.N * 0.3)
    rotary = {name: y for name, _, y in draw.made('rotary').curves}['base 10,000']
    angles = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
    torch.testing.assert_close(rotary, angles.cos().mean(dim=-1), atol=1e-4, rtol=0)
    rows = dict(draw.made('orders').rows)
    assert rows['sandwich_coef=2'] == ('a',) * 2 + ('a', 'f') * 4 + ('f',) * 2
    assert rows['macaron=True'] == ('f', 'a', 'f') * 6 and rows['default'] == ('a', 'f') * 6
    qk = {name: y for name, _, y in draw.made('qk-norm').curves}
    assert qk['attn_qk_norm=True'].std() < 1e-3 and qk['attn_qk_norm=False'][-1] > 100 * qk['attn_qk_norm=False'][0]
    back = {name: y for name, _, y in draw.made('recurrence').curves}
    assert back['shift_mem_down=0'][4] == 0 < back['shift_mem_down=1'][5]
    reads, below = dict(draw.made('residuals').maps), torch.ones(9, 9).tril()
    assert torch.allclose(reads['default'], below, atol=1e-5)  # all that came before, alike
    pairs = below[torch.arange(9) // 2 * 2]  # a feedforward does not read the attention beside it
    assert torch.allclose(reads['parallel_block'], pairs, atol=1e-5)
    streams = (torch.arange(8)[:, None] - torch.arange(8)) % 2 == 1
    assert ((reads['reversible'][:8, 1:] > 0) == (streams & (below[:8, 1:] > 0))[:, :8]).all()
    assert all((table.triu(1) == 0).all() and (table[-1] > 0).all() for table in reads.values())
    assert (reads['gate_residual'][8, :-1].diff() > 0).any() and len(reads) == 12


def test_layouts():
    """Norms stand where the flags put them; a decoder with an encoder attends to its last norm."""
    norm, plain = ('norm', 'LayerNorm'), dict(draw.made('layouts').columns)
    branches = [item for item in plain['Decoder'] if isinstance(item, list)]
    assert branches == [[norm, ('a', 'causal attention'), '+'], [norm, ('f', 'feedforward'), '+']]
    kinds = [item[1][0] for item in plain['XTransformer.decoder'] if isinstance(item, list)]
    assert kinds == ['a', 'c', 'f'] and plain['XTransformer.encoder'][-1] == norm
    blocks = dict(draw.made('blocks').columns)
    attn, ff = ('a', 'self-attention'), ('f', 'feedforward')
    assert blocks['default'] == [[norm, attn, '+'], [norm, ff, '+'], norm]
    assert blocks['pre_norm=False'] == [[attn, '+'], norm, [ff, '+'], norm]
    assert blocks['sandwich_norm=True'] == [[norm, attn, norm, '+'], [norm, ff, norm, '+'], norm]
    assert blocks['pre_and_post_norm=True'] == [[norm, attn, '+'], norm, [norm, ff, '+'], norm]
    assert [item[-1] for item in blocks['gate_residual=True'][:2]] == ['gate', 'gate']
    assert [item[1][1] for item in blocks['macaron=True'][:3]] == ['½ feedforward', 'self-attention', '½ feedforward']


def test_names(capsys, tmp_path):
    assert draw.main(['--list']) == 0 and capsys.readouterr().out.split() == list(draw.PICTURES)
    assert draw.main(['--to', str(tmp_path), 'rotary', 'blocks']) == 0
    assert {path.name for path in tmp_path.iterdir()} == {'rotary.png', 'blocks.png'}
    assert draw.main(['rotery']) == 2
    assert "draw.py: there is no picture 'rotery', did you mean `rotary`?" in capsys.readouterr().err
    with pytest.raises(ValueError, match='there is no picture'):
        draw.made('rotery')


def test_what_was_measured(tmp_path, capsys, monkeypatch):
    """Bars and points are the numbers of the tables; the run of the README is drawn from what it saved."""
    from safetensors.torch import save_file

    tables = (FOLDER.parent / 'benchmarks' / 'README.md').read_text(encoding='utf-8')
    found = draw_measured.speeds(tables)
    figure = style.figure_of('speed', lambda card: draw_measured.draw_speed(card, found))
    assert is_legible(figure)
    for axes, row in zip(figure.axes, draw_measured.SPEED, strict=True):
        names = [label.get_text() for label in axes.get_yticklabels()]
        widths = [bar.get_width() for bar in axes.patches]
        assert dict(zip(names, widths, strict=True)) == found[row] and len(names) > 2

    ways = draw_measured.ways(tables)
    assert ways['dense'] == ([41.7, 454, 4554], [10.3, 37.4, 146]) and ways['LSH'] == (
        [79.2, 324, 1299],
        [29.7, 109, 426],
    )
    figure = style.figure_of('ways', lambda card: draw_measured.draw_efficient(card, ways))
    assert is_legible(figure)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted([*rows, 'dense']) == sorted(ways) and len(rows) > 10
    for part, axes in enumerate(figure.axes):
        for at, points in enumerate(axes.lines[:3]):
            wanted = [ways[name][part][at] / ways['dense'][part][at] for name in rows]
            assert points.get_xdata() == pytest.approx(wanted)
    assert draw_measured.main(['--to', str(tmp_path)]) == 0

    last = tmp_path / 'run' / 'step_000002'
    stack = draw.Decoder(dim=32, depth=1, heads=2, verbose=False)
    draw.TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=stack).save_pretrained(last)
    state, losses = {'validations': [[1, 5.0], [2, 4.25]]}, [4.0, 3.0]
    (last / 'state.json').write_text(json.dumps(state))
    save_file({'losses': torch.tensor(losses)}, last / 'training.safetensors')
    text = draw_measured.sample(last, length=70)
    assert text.startswith('def ') and text == draw_measured.sample(last, length=70)
    figure = style.figure_of('run', lambda card: draw_measured.draw_run(card, state, losses, 'def words():' * 99))
    assert is_legible(figure)
    curves = [line.get_ydata().tolist() for line in figure.axes[0].lines]
    assert curves[1] == [5.0, 4.25] and curves[0] == pytest.approx([4 / math.log(2), 3 / math.log(2)])
    monkeypatch.setattr(draw_measured, 'sample', lambda checkpoint: 'def words():')
    assert draw_measured.main(['--run', str(tmp_path / 'run'), '--to', str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.glob('*.png')} == {'speed.png', 'efficient.png', 'train_lm.png'}
    assert all(map(is_card, tmp_path.glob('*.png')))
    assert draw_measured.main(['--run', str(tmp_path)]) == 2 and 'there is no checkpoint' in capsys.readouterr().err


@pytest.mark.costly
def test_effects_of_flags(monkeypatch):
    """The points are the effects of the rows in benchmarks/results."""
    pytest.importorskip('scipy', reason='pip install scipy')
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER.parent / 'benchmarks'))
    import flag_effects
    import flag_pictures
    import which_flag_helps

    rows = which_flag_helps.read(which_flag_helps.RESULTS / 'small')
    modern = flag_effects.alone(flag_effects.effects(rows, 'modern'))
    figures = {
        name: style.figure_of(flag_pictures.TITLES[name], draw(rows)) for name, draw in flag_pictures.ALL.items()
    }
    assert all(map(is_legible, figures.values()))

    def points(axes):
        return {(*line.get_xydata()[0], line.get_color()) for line in axes.lines if len(line.get_xydata()) == 1}

    def wanted(one):
        return 'better' if one.shown and one.mean < 0 else 'worse' if one.shown else 'no effect shown'

    families = list(dict.fromkeys(flag_effects.FAMILY.values()))
    own = figures['effects'].axes[1]
    colors = {color: name for color, name in flag_pictures.WORDS.items()}
    shown = {(x, families[int(y)], colors[color]) for x, y, color in points(own)}
    assert shown == {(one.mean, flag_effects.FAMILY[one.variant], wanted(one)) for one in modern.values()}
    shown = {(x, y, colors[color]) for x, y, color in points(figures['costs'].axes[0])}
    assert shown == {(one.step, one.mean, wanted(one)) for one in modern.values() if one.mean < 0.35 and one.step > 0}
    bits = flag_effects.by_length(rows, 'modern')['dynamic_pos_bias']
    axes = figures['lengths'].axes[1]
    at = [label.get_text() for label in figures['lengths'].axes[0].get_yticklabels()].index('dynamic_pos_bias')
    dots = [line.get_xydata() for line in axes.lines if line.get_marker() == 'o']
    assert [x for dot in dots for x, y in dot if y == at] == [mean for mean, _ in bits.values()]
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], '__file__', None) or '.').parent == FOLDER.parent / 'benchmarks':
            del sys.modules[name]


def test_a_picture_on_a_card(tmp_path):
    from PIL import Image

    Image.new('RGBA', (189, 100), '#d55e00').save(tmp_path / 'a.png')
    assert draw_measured.main(['--card', str(tmp_path / 'a.png'), '--to', str(tmp_path / 'cards')]) == 0
    card = Image.open(tmp_path / 'cards' / 'a.png').convert('RGBA')
    assert card.size == (201, 112)  # margins of 11 points, 400 points wide
    assert card.getpixel((card.width // 2, card.height // 2)) == (213, 94, 0, 255) and card.getpixel((0, 0))[3] == 0
