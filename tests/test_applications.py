"""Small applications of the examples: what holds for every seed, how they end below a bar, and that they reach it."""

import itertools
import math

import example_scripts
import pytest
import torch

NAMES = [
    'answer_questions', 'clone_or_plan', 'contact_map', 'enlarge_images', 'entailment', 'evaluate_chess',
    'find_motifs', 'find_names', 'follow_instructions', 'forecast', 'frozen_bits', 'judge_sentences', 'name_patterns',
    'plan_returns', 'repair_text', 'search_texts', 'summarise', 'transcribe_tones', 'translate_numbers',
    'watch_videos', 'write_code', 'write_documents',
]  # fmt: skip


@pytest.fixture
def app(request):
    with example_scripts.script(request.param) as module:
        torch.manual_seed(0)
        yield module


def of(name):
    return pytest.mark.parametrize('app', [name], indirect=True)


@pytest.mark.costly
@pytest.mark.parametrize('name', NAMES)
def test_one_that_has_not_learned_says_so(name, capsys):
    with example_scripts.script(name) as module:
        code = example_scripts.call(module, '--steps', '1', '--batch-size', '2')
    said = capsys.readouterr()
    assert code == 1 and '(bar: at ' in said.out and f'{name}.py: below the bar: ' in said.err


@pytest.mark.nightly
@pytest.mark.parametrize('name', NAMES)
def test_it_reaches_its_bar(name, capsys):
    """With two of three seeds at least."""
    good = 0
    for seed in range(3):
        with example_scripts.script(name) as module:
            good += example_scripts.call(module, '--seed', seed) == 0
        if good == 2:
            return
    pytest.fail(capsys.readouterr().out)


def test_what_is_a_bar(capsys):
    with example_scripts.script('forecast') as module:
        toys = __import__('common.toys', fromlist=['toys'])
        Score = toys.Score
        assert Score('x', 1.0, 1.0).good and not Score('x', 0.9, 1.0).good and not Score('x', math.nan, 0.0).good
        assert Score('x', 1.0, 1.0, at_most=True).good and not Score('x', 1.1, 1.0, at_most=True).good
        assert not Score('x', math.nan, 1.0, at_most=True).good
        for scores, code in (([Score('x', 1, 1)], 0), ([Score('x', 1, 1), Score('y', 0, 1)], 1)):
            assert toys.run('a.py', None, lambda args, scores=scores: scores, [], steps=3) == code
        assert 'a.py: below the bar: y\n' in capsys.readouterr().err
        words = toys.Words('ab')
        assert words.read(['ab', 'a'], end=True).tolist() == [[3, 4, 1], [3, 1, 0]]
        assert words.written(torch.tensor([4, 3, 1, 4])) == ['b', 'a']
        made, wanted = torch.tensor([[3, 1, 4, 4], [3, 4, 4, 4], [4, 1, 0, 0]]), torch.tensor([[3, 1, 0]] * 3)
        assert toys.same_rows(made, wanted).tolist() == [True, False, False]
        assert toys.same_rows(made[:, :1], wanted).tolist() == [False, False, False]
        assert module.series(2).shape == (2, 64, 1)


@of('translate_numbers')
def test_numbers_in_words(app):
    for number, words in ((0, 'zero'), (13, 'thirteen'), (40, 'forty'), (99, 'ninety nine'), (700, 'seven hundred')):
        assert ' '.join(app.in_words(number)) == words
    assert app.in_words(512) == ['five', 'hundred', 'twelve']
    assert len({' '.join(app.in_words(number)) for number in range(1000)}) == 1000


@of('summarise')
def test_summaries(app):
    long, short = app.texts(20)
    for text, summary in zip(long, short, strict=True):
        assert app.WORDS.written(summary) == [word for word in app.WORDS.written(text) if word.isupper()]


@of('write_documents')
def test_documents(app):
    rows, lens = app.documents(20)
    for row, length in zip(rows, lens, strict=True):
        assert app.readable(bytes(row[1 : length - 1].tolist())) and not app.readable(
            bytes(row[1 : length - 2].tolist())
        )
    for text in (b'[]', b'{"name": "anna"}', b'{"name": "zoe", "age": 1, "likes": []}', b'', b'\xff'):
        assert not app.readable(text)


@of('write_code')
def test_brackets(app):
    assert all(app.balanced(list(app.program())) for _ in range(200))
    assert max(len(app.program()) for _ in range(200)) <= app.LENGTH
    for text in ('(', ')', '([)]', '(]', '())'):
        assert not app.balanced(list(text))


@of('find_names')
def test_names(app):
    words, tags = app.sentences(200)
    assert ((words == 0) == (tags < 0)).all() and set(tags.unique().tolist()) == {-100, 0, 1, 2, 3, 4}
    assert app.spans([1, 2, 1, 0, 3, 4, 4, 2]) == {(1, 0, 2), (1, 2, 3), (3, 4, 7)}
    assert app.f1(tags, tags) == 1 and app.f1(torch.zeros_like(tags), tags) == 0
    half = torch.tensor([[1, 0, 3, 4]]), torch.tensor([[1, 0, 3, 0]])
    assert app.f1(*half) == 0.5


@of('answer_questions')
def test_answers(app):
    ids, answers = app.questions(50)
    for row, (first, last) in zip(ids.tolist(), answers.tolist(), strict=True):
        assert row[first - 1] == row[0] and row[last + 1] == app.STOP
        assert all(at in app.VALUES for at in row[first : last + 1])
    found = torch.tensor([[[0.0, 5.0, 1.0], [9.0, 1.0, 2.0]]])
    assert app.best(found).tolist() == [[0, 0]]  # 9 + 0 in order, not 9 + 5 backwards
    assert app.best(found - torch.tensor([[[0.0, 0, 0], [9.0, 0, 0]]])).tolist() == [[1, 2]]


@of('repair_text')
def test_cut_texts(app):
    rows = app.texts(10)
    for row in rows.tolist():
        said, again = row[: app.LENGTH], row[app.LENGTH + 1 :]
        assert again == said[4:] + said[:4] and len(set(said)) == 8
    answers = torch.tensor([[40, 5, 39, 1], [40, 5, 39, 1]])
    assert app.known(torch.tensor([[4, 5, 40], [4, 6, 40]]), answers).tolist() == [True, False]


@of('judge_sentences')
def test_judgements(app):
    words, friendly = app.sentiments(200)
    for row, label in zip(words.tolist(), friendly.tolist(), strict=True):
        sign, negated = 0, False
        for word in row:
            if word == app.NOT:
                negated = True
                continue
            sign += (1 if word in app.GOOD else -1) * (-1 if negated else 1)
            negated = False
        assert label == (sign > 0)
    words, fits = app.agreements(200)
    assert ((words[:, 0] >= app.PLURAL[0]) == (words[:, -1] == app.ARE)).long().tolist() == fits.tolist()
    rows, same = app.pairs(200)
    for row, label in zip(rows.tolist(), same.tolist(), strict=True):
        ours, theirs = ({(word - app.FIRST_THING) // app.WAYS for word in part} for part in (row[:4], row[5:]))
        assert label == (ours == theirs) and len(ours & theirs) >= 3
    assert (app.swapped(app.swapped(rows)) == rows).all()


@of('entailment')
def test_what_follows(app):
    premise, hypothesis, follows = app.pairs(200)
    for said, asked, label in zip(premise.tolist(), hypothesis.tolist(), follows.tolist(), strict=True):
        assert label == (set(asked) <= set(said)) and len(set(asked)) == 3


@of('search_texts')
def test_paraphrases(app):
    ours, theirs = app.paraphrases(50)
    things = [[frozenset(row) for row in (side // app.WAYS).tolist()] for side in (ours, theirs)]
    assert things[0] == things[1] and len(set(things[0])) == 50
    same = torch.nn.functional.normalize(torch.randn(1, 8), dim=-1).expand(7, -1)
    assert abs(app.contrastive_loss(same, same).item() - math.log(7)) < 1e-6


@of('follow_instructions')
def test_instructions(app):
    pairs = app.requests(100)
    by_hand = {'copy': lambda t: t, 'reverse': lambda t: t[::-1], 'double': lambda t: t + t, 'sort': sorted}
    for asked, answer in pairs:
        assert answer == by_hand[asked[0]](asked[2:-1])
    rows, labels = app.rows_and_labels(pairs)
    for row, label, (asked, answer) in zip(rows, labels, pairs, strict=True):
        assert (label[: len(asked)] == app.NOTHING).all() and app.WORDS.written(row[len(asked) :]) == answer
        learned = label != app.NOTHING
        assert learned.sum() == len(answer) + 1 and (label[learned] == row[learned]).all()


@of('transcribe_tones')
def test_tones(app):
    waves, letters = app.sounds(20)
    for wave, row in zip(waves, letters, strict=True):
        for part, letter in zip(wave.view(app.TONES, -1), row[1:-1].tolist(), strict=True):
            loudest = torch.fft.rfft(part).abs().argmax().item() * app.RATE / len(part)
            silent = letter == app.END
            assert (part.std() < 0.1) == silent and (silent or loudest == 400 * 2 ** (letter - app.FIRST_LETTER))


@of('find_motifs')
def test_strands(app):
    letters, planted = app.strands(50)
    third, motifs = app.LENGTH // 3, {tuple(motif) for motif in app.MOTIFS.tolist()}
    for row, where in zip(letters.split(third, dim=1), planted.split(third, dim=1), strict=True):
        for strand, mask in zip(row, where, strict=True):
            assert not mask.any() or tuple(strand[mask].tolist()) in motifs
    assert 0.6 < planted.float().sum() / (50 * 24) < 0.8


@of('contact_map')
def test_chains(app):
    places = app.chain().tolist()
    assert len({tuple(place) for place in places}) == app.LENGTH
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in itertools.pairwise(places))
    contacts = app.touching(torch.tensor([places]))[0]
    for i, (a, b) in enumerate(places):
        for j, (c, d) in enumerate(places):
            assert contacts[i, j] == (abs(a - c) + abs(b - d) <= 2 and abs(i - j) >= 3)
    letters, signs, contacts = app.chains(3)
    assert (signs == signs.mT).all() and 0.4 < (signs - contacts.float()).std() < 0.6
    logits = app.Folder(64)(letters, signs)
    assert (logits == logits.mT).all()
    sure = contacts.float()
    assert app.precision(sure, contacts) == 1 and app.precision(-sure, contacts) == 0


@of('watch_videos')
def test_dots(app):
    video, which = app.videos(20)
    at = video[:, 0].flatten(2).argmax(dim=-1)
    row, column = at // app.SIDE, at % app.SIDE
    steps = torch.stack((row.diff(dim=1), column.diff(dim=1)), dim=-1) % app.SIDE
    assert (steps == app.STEPS[which].unsqueeze(1) % app.SIDE).all()


@of('enlarge_images')
def test_textures(app):
    small, large = app.images(10)
    for few, many in zip(small.view(-1, 4, 4), large.view(-1, 8, 8), strict=True):
        for r in range(4):
            for c in range(4):
                assert (many[2 * r : 2 * r + 2, 2 * c : 2 * c + 2] == app.TEXTURES[few[r, c]]).all()


@of('evaluate_chess')
def test_positions(app):
    def board(text):
        return {
            (row, column): piece
            for row, line in enumerate(text.split('/'))
            for column, piece in enumerate(line)
            if piece != '.'
        }

    for text, checked in (
        ('k......./......../R.......', True), ('k......./P......./R.......', False), ('k......./.......B', False),
        ('k......./......../..B.....', True), ('.P....../k.......', True), ('k......./.P......', False),
        ('k......./..N.....', True), ('kK', True), ('k......Q', True), ('k.p....Q', False), ('k......r', False),
    ):  # fmt: skip
        assert app.in_check(board(text)) == checked, text
    squares = app.position()
    assert squares.count('K') == squares.count('k') == 1 and len(squares) == 64
    assert not set('Pp') & set(squares[:8] + squares[-8:])
    assert app.flipped(app.flipped(squares)) == squares
    boards = app.ids([squares, app.flipped(squares)])
    assert app.material(boards)[0] == -app.material(boards)[1]
    assert (app.classes(boards)[0] + app.classes(boards)[1]) == len(app.EDGES)


@of('plan_returns')
def test_walks(app):
    states, actions, rewards = app.walks(50)
    for row, went, paid in zip(states.tolist(), actions.tolist(), rewards.tolist(), strict=True):
        assert row[0] in (0, 1) and paid[:-1] == [0] * 7
        at = row[0]
        for place, action in zip(row, went, strict=True):
            assert place == at
            at = min(max(at + (1 if action else -1), 0), app.STATES - 1)
        assert paid[-1] == at / (app.STATES - 1)


@of('clone_or_plan')
def test_walks_through_rooms_and_along_a_chain(app):
    rooms, chain = app.WORLDS['key to door'], app.WORLDS['chain']
    side, actions = rooms.begin(300), torch.randint(0, 3, (300, 12))
    states, rewards = rooms.states(side, actions), rooms.rewards(side, actions)
    for row in range(300):
        touched, ends = [], (0, 4) if side[row] == 0 else (4, 0)
        for step in range(12):
            place = 2 if step % 4 == 0 else place  # noqa: F821
            sign = [float(side[row] == 0), float(side[row] == 1)] if step == 0 else [0, 0]
            assert states[row, step].tolist() == [float(place == at) for at in range(5)] + sign
            place = min(max(place + int(actions[row, step]) - 1, 0), 4)
            touched += [step // 4] if place == ends[step // 8] and step // 4 != 1 else []
        assert rewards[row].tolist() == [0] * 11 + [float({0, 2} <= set(touched))]
    start, actions = chain.begin(50), torch.randint(0, 2, (50, 8))
    rewards = chain.rewards(start, actions)
    at_end = app.delayed(rewards)
    assert torch.allclose(at_end.sum(dim=1), rewards.sum(dim=1)) and not at_end[:, :-1].any()
    assert torch.allclose(app.returns_to_go(at_end), rewards.sum(dim=1, keepdim=True).expand(-1, 8))
    for row in range(50):
        place, paid = 1, []
        for action in actions[row].tolist():
            after = min(max(place + (1 if action else -1), 0), 8)
            paid.append((after - place) / 7)
            place = after
        assert rewards[row].tolist() == pytest.approx(paid)
        assert app.returns_to_go(rewards)[row].tolist() == pytest.approx([sum(paid[at:]) for at in range(8)])
    assert app.best(torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0]), 0.5).tolist() == [1, 3, 2]
    assert app.best(torch.ones(10), 0.3).tolist() == [0, 1, 2]


@of('frozen_bits')
def test_bits_and_what_learns(app):
    x, wanted = app.xor(50)
    bits = x > 0
    assert x.shape == (50, 10, 1) and torch.equal(wanted > 0, bits[:, :5] ^ bits[:, 5:])
    x, wanted = app.memory(50)
    assert x.shape == (50, 24, 20) and wanted.shape == (50, 4, 10)
    shown, strings = x[:, 20:, 10:] > 0, x[:, :20, :10].unflatten(1, (5, 4)) > 0
    assert (x[:, :20, 10:] == 1).all() and (x[:, 20:, :10][~shown] == 0).all() and 0.4 < shown.float().mean() < 0.6
    assert torch.equal(x[:, 20:, :10][shown] > 0, wanted[shown] > 0)
    assert (strings == (wanted > 0).unsqueeze(1)).flatten(2).all(dim=-1).any(dim=1).all()
    args = __import__('argparse').Namespace(steps=2, batch_size=2, lr=1e-3)
    for task in app.TASKS:
        for kind in app.KINDS:
            net, names = app.made(kind, task, args)
            frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
            assert frozen.isdisjoint(names) and len(frozen) + len(names) == len([*net.parameters()])
            assert bool(frozen) == (kind in ('pretrained', 'random')) and app.right(kind, task, args)[1] <= 1


@of('name_patterns')
def test_patterns(app):
    ids, images = app.shown(50)
    for row, image in zip(ids.tolist(), images[:, 0], strict=True):
        kind, sharp = row[3] - app.NAMES, image.round()
        across, down = (sharp.diff(dim=axis).abs().amax() > 0 for axis in (1, 0))
        assert row[:3] == [app.ASK, app.IMAGE, app.IS] and (across, down) == ((0, 1), (1, 0), (1, 1), (0, 0))[kind]
