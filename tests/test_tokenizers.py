"""Tokenizers: there and back, merges and pieces by hand, the best cut by brute force, padding, and what is refused."""

import copy
import itertools
import json
import random
from functools import partial

import pytest
import torch

from x_transformers.core import files
from x_transformers.core.plain_text import PlainText
from x_transformers.memory.texts import get_tokenizer
from x_transformers.tokenizers import ByteTokenizer, Tokenizer, train_bpe, train_unigram, train_wordpiece, wordpiece_of

STORY = [
    'the cat sat on the mat, and the other cat saw that.',
    'a cat that sat on a mat is no other cat than the cat on the mat',
    'mats are what cats sit on; the cats saw the mats, and sat.',
] * 20
ODD = 'naïve 猫 \n\t "quotes"  two  spaces 🙂'
needs_package = pytest.mark.skipif(
    __import__('importlib.util').util.find_spec('tokenizers') is None,
    reason='pip install tokenizers',
)


@pytest.mark.parametrize('text', ['', 'plain', ODD])
def test_bytes_there_and_back(text):
    made = ByteTokenizer()
    ids = made.encode(text, bos=True, eos=True)
    assert ids == [257, *text.encode(), 258] and made.decode(ids) == made.decode(torch.tensor(ids)) == text
    assert made.decode('猫'.encode()[:2]) == '\ufffd'


@needs_package
@pytest.mark.parametrize('text', ['', 'the cat', ODD])
def test_subwords_of_bytes_there_and_back(text):
    made = train_bpe(STORY, 290)
    assert made.decode(made.encode(text)) == text and made.num_tokens == 290
    assert made.encode('the cat', bos=True, eos=True)[0] == made.bos_id
    assert len(made.encode(STORY[0])) < len(STORY[0]) / 2


def merges_by_hand(words, count):
    """The most frequent pair, the first in the order of its tokens among equals, again and again."""
    words = {tuple(word): often for word, often in words.items()}
    made, order = [], sorted({letter for word in words for letter in word})
    for _ in range(count):
        pairs = {}
        for word, often in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] = pairs.get(pair, 0) + often
        best = min(pairs, key=lambda pair: (-pairs[pair], *map(order.index, pair)))
        made.append(best)
        order.append(''.join(best))
        new = {}
        for word, often in words.items():
            cut, at = [], 0
            while at < len(word):
                both = word[at : at + 2] == best
                cut.append(''.join(best) if both else word[at])
                at += 2 if both else 1
            new[tuple(cut)] = often
        words = new
    return made


@needs_package
def test_the_first_merges(tmp_path):
    """es, est, and so on, as in the paper's example."""
    words = {'low': 5, 'lower': 2, 'newest': 6, 'widest': 3}
    letters = sorted({letter for word in words for letter in word})
    made = train_bpe(
        [word for word, often in words.items() for _ in range(often)], 4 + len(letters) + 5, byte_level=False
    )
    made.save(tmp_path / 'bpe.json')
    merges = json.loads((tmp_path / 'bpe.json').read_text())['model']['merges']
    wanted = merges_by_hand(words, 5)
    assert wanted[:2] == [('e', 's'), ('es', 't')]
    assert [tuple(m.split() if isinstance(m, str) else m) for m in merges] == wanted
    assert made.pieces('lowest') == ['low', 'est'] and made.pieces('x') == ['[UNK]']


@needs_package
def test_wordpieces_are_the_longest_beginnings():
    pieces = ['[PAD]', '[UNK]', '[BOS]', '[EOS]', 'un', '##aff', '##able', '##a', '##ff', 'una', '##b', 'cat']
    made = wordpiece_of({piece: at for at, piece in enumerate(pieces)} | {'unaff': 12}, lowercase=True)
    assert made.pieces('cat') == ['cat'] and made.pieces('CAT') == ['cat'] and made.pieces('dog') == ['[UNK]']
    assert made.pieces('unaffable') == ['unaff', '##able']
    without = wordpiece_of({piece: at for at, piece in enumerate(pieces[:9])})
    assert without.pieces('unaffable') == ['un', '##aff', '##able']
    assert without.decode(without.encode('unaffable')) == 'unaffable'
    learned = train_wordpiece(STORY, 60)
    for word in 'the cat sat on mats other'.split():
        left, found = word, []
        while left:  # the longest beginning that is known
            mark = '##' if found else ''
            size = next((k for k in range(len(left), 0, -1) if mark + left[:k] in learned.vocabulary), 0)
            assert size
            found.append(mark + left[:size])
            left = left[size:]
        assert learned.pieces(word) == found


@needs_package
def test_unigrams_are_the_best_cut(tmp_path):
    """Of all ways to cut a word, the largest sum of log probabilities."""
    made = train_unigram(STORY, 50)
    made.save(tmp_path / 'unigram.json')
    scores = dict(json.loads((tmp_path / 'unigram.json').read_text())['model']['vocab'])

    def cuts(word):
        if not word:
            yield []
        for size in range(1, len(word) + 1):
            if word[:size] in scores:
                yield from ([word[:size], *rest] for rest in cuts(word[size:]))

    for word in ('that', 'other', 'mats', 'cat', 'sat'):
        total = max(sum(scores[piece] for piece in cut) for cut in cuts(word))
        assert sum(scores[piece] for piece in made.pieces(word)) == pytest.approx(total)
    for text in STORY[:3]:
        assert made.decode(made.encode(text)) == text


# words of which many are equally frequent, and pieces, too
TIES = [' '.join(a + b + c for a in 'bdgk' for b in 'aou' for c in 'bdgk')] * 2


@needs_package
@pytest.mark.parametrize('train', [train_bpe, partial(train_bpe, byte_level=False), train_wordpiece, train_unigram])
def test_the_same_texts_give_the_same_ids(train):
    """Hash tables of the package are in an order of their own each time, as between processes."""
    made = [train(texts, 280 if train is train_bpe else 40) for texts in (TIES, iter(TIES), [*TIES], iter(TIES))]
    assert len({one.inner.to_str() for one in made}) == 1
    assert [made[0].vocabulary[piece] for piece in ('[PAD]', '[UNK]', '[BOS]', '[EOS]')] == [0, 1, 2, 3]
    assert made[0].encode('bad[EOS]') == made[1].encode('bad[EOS]')
    assert made[0].decode(made[0].encode('bad gok')) == 'bad gok'


@needs_package
@pytest.mark.parametrize('train', [train_bpe, train_wordpiece, train_unigram])
def test_files_and_batches(train, tmp_path):
    made = train(STORY, 300 if train is train_bpe else 50)
    made.save(tmp_path / 'own.json')
    again = Tokenizer.load(tmp_path / 'own.json')
    assert again.vocabulary == made.vocabulary and again.encode(STORY[0]) == made.encode(STORY[0])
    ids, mask = made.pad_batch(['the cat', '', 'the other cat sat'], bos=True, eos=True)
    rows = [made.encode(text, bos=True, eos=True) for text in ('the cat', '', 'the other cat sat')]
    assert mask.sum(dim=1).tolist() == [len(row) for row in rows] and ids.shape == mask.shape
    for row, own, real in zip(rows, ids, mask, strict=True):
        assert own[real].tolist() == row and (own[~real] == made.pad_id).all()
        assert made.decode(own) == made.decode(row)
    short, _ = made.pad_batch(['the other cat sat'], max_len=2)
    assert short.tolist() == [made.encode('the other cat sat')[:2]]


# text is text, whatever is written in it

NAMES = ('[PAD]', '[UNK]', '[BOS]', '[EOS]')
LETTERS = ['[EOS] a cat [PAD] sat [', ']BOS [BOS] OS] [UNK]', 'EOS UNK PAD [x] a b c'] * 9


def bytes_pair():
    return train_bpe(LETTERS, 300)


def as_file(made, folder, change=lambda inner: None):
    """The same, read from a file."""
    change(made.inner)
    made.save(folder / 'tokenizer.json')
    return Tokenizer.load(folder / 'tokenizer.json')


def pads_and_cuts(inner):
    inner.enable_padding(length=30, pad_token='[PAD]')
    inner.enable_truncation(2)


def frames(inner):
    """[EOS] behind each text, as the files of many models say."""
    processors = files.import_optional('tokenizers', '', '').processors
    inner.post_processor = processors.TemplateProcessing(single='$A [EOS]', special_tokens=[('[EOS]', 3)])


ALL_PIECES = [*NAMES, *(mark + letter for mark in ('', '##') for letter in 'EOSUNKPADB[]abc')]
KINDS = {
    'bytes': lambda folder: ByteTokenizer(),
    'pairs of bytes': lambda folder: train_bpe(LETTERS, 300),
    'pairs of letters': lambda folder: train_bpe(LETTERS, 60, byte_level=False),
    'unigrams': lambda folder: train_unigram(LETTERS, 40),
    'wordpieces': lambda folder: wordpiece_of({piece: at for at, piece in enumerate(ALL_PIECES)}),
    'pairs of a file': lambda folder: as_file(train_bpe(LETTERS, 300), folder),
    'unigrams of a file': lambda folder: as_file(train_unigram(LETTERS, 40), folder),
    'a file that pads and cuts': lambda folder: as_file(train_bpe(LETTERS, 300), folder, pads_and_cuts),
    'a file that ends texts': lambda folder: as_file(train_bpe(LETTERS, 300), folder, frames),
    'a copy': lambda folder: copy.deepcopy(train_unigram(LETTERS, 40)),
    'added without a mark': lambda folder: Tokenizer(without_marks()),
}


def without_marks():
    """Pairs of bytes, to which [PAD], [BOS] and [EOS] were added like ordinary words."""
    inner = train_bpe(LETTERS, 300).inner
    content = json.loads(inner.to_str())
    content['added_tokens'] = [{**token, 'special': False} for token in content['added_tokens']]
    return type(inner).from_str(json.dumps(content))


@pytest.mark.parametrize('kind', [pytest.param(k, marks=[needs_package] * (k != 'bytes')) for k in KINDS])
def test_names_of_special_tokens_are_text(kind, tmp_path):
    made, draw = KINDS[kind](tmp_path), random.Random(0)
    special = {made.pad_id, made.bos_id, made.eos_id, 1 if kind != 'bytes' else None}
    parts = [*NAMES, 'a', 'b ', ' c', '[', ']', '[E', 'OS]', ' ']
    texts = ['a [EOS] b', *NAMES, '', '[[EOS]]', *(''.join(draw.choices(parts, k=6)) for _ in range(40))]
    if kind != 'bytes':
        assert made.plain.all_ids(texts) == [made.encode(text) for text in texts]
    for text in texts:
        ids = made.encode(text)
        assert not special & {*ids}, text
        assert made.encode(text, bos=True, eos=True) == [made.bos_id, *ids, made.eos_id]
        # a vocabulary of words does not say where spaces are
        squeezed = (lambda t: t.replace(' ', '')) if kind == 'wordpieces' else str
        assert squeezed(made.decode(ids)) == squeezed(text)
    for bos, max_len in ((True, None), (False, None), (True, 3), (False, 1)):
        ids, mask = made.pad_batch(texts, bos=bos, eos=True, max_len=max_len)
        assert ((ids == made.eos_id).sum(dim=1) == 1).all() and ((ids == made.bos_id).sum(dim=1) == bos).all()
        assert ((ids == made.pad_id) == ~mask).all() and ids.shape[1] <= (max_len or 99)
        assert (ids[torch.arange(len(texts)), mask.sum(dim=1) - 1] == made.eos_id).all()


@needs_package
def test_only_a_special_token_can_say_it():
    """Which is refused, rather than left out."""
    inner = bytes_pair().inner
    inner.add_special_tokens(['\N{SNOWMAN}'])
    assert Tokenizer(inner).decode(Tokenizer(inner).encode('\N{SNOWMAN}')) == '\N{SNOWMAN}'  # bytes can
    models = files.import_optional('tokenizers', '', '').models
    inner = type(inner)(models.WordLevel({'a': 0, '[PAD]': 1, '[BOS]': 2, '[EOS]': 3, 'x': 4}, unk_token='x'))
    for name in ('a', '[PAD]', '[BOS]', '[EOS]'):
        inner.add_special_tokens([name])
    with pytest.raises(ValueError, match="`text` holds 'a', which only a special token can say"):
        Tokenizer(inner).encode('a')


@needs_package
def test_texts_around_which_a_file_puts_special_tokens():
    inner = bytes_pair().inner
    frames(inner)
    read, text = PlainText(inner), 'a cat [EOS] sat'
    plain = read.ids(text)
    assert read.ids(text, framed=True) == [*plain, 3] and 3 not in plain
    assert read.ids(text, framed=True, longest=4) == [*plain[:3], 3] and read.ids(text, longest=4) == plain[:4]
    assert read.ids('', framed=True, longest=4) == [3]
    assert read.all_ids([text, '', '[UNK]']) == [plain, [], read.ids('[UNK]')]
    assert [piece for _, piece in read.tokens('[UNK]')] != ['[UNK]']


@needs_package
def test_a_datastore_reads_them_as_text(tmp_path):
    made = as_file(train_unigram(LETTERS, 40), tmp_path, pads_and_cuts)
    assert get_tokenizer(tmp_path, made.num_tokens)(b'a [EOS] cat') == made.encode('a [EOS] cat')


def test_batches_of_nothing():
    ids, mask = ByteTokenizer().pad_batch(['', ''])
    assert ids.shape == mask.shape == (2, 0) and ids.dtype == torch.long


BYTES = ByteTokenizer()


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: BYTES.encode(3), '`text` must be a text, got 3'),
        (lambda: BYTES.decode([259]), '`ids` must be from 0 to 258, got 259'),
        (lambda: BYTES.decode([-1]), r'`ids` must .*got -1'),
        (lambda: BYTES.decode([0.5]), '`ids` must hold whole numbers, got 0.5'),
        (lambda: BYTES.decode(torch.zeros(2, 2).long()), r'`ids` must .*got torch.int64 of shape \(2, 2\)'),
        (lambda: BYTES.pad_batch([]), '`texts` must '),
        (lambda: BYTES.pad_batch('text'), "`texts` must be one text at least, in a list, got 'text'"),
        (lambda: BYTES.pad_batch(['a'], max_len=0), r'`max_len` must .*got 0'),
        (
            lambda: BYTES.pad_batch(['a'], bos=True, eos=True, max_len=1),
            r'`max_len` must leave room for a beginning and an end.*got 1',
        ),
        (lambda: BYTES.encode('a\ud800'), '`text` must be valid UTF-8, got .*: surrogates not allowed'),
        (lambda: train_bpe(STORY, 259), '`num_tokens` must be an integer of at least 260, got 259'),
        (lambda: train_unigram(STORY, 1.5), r'`num_tokens` must .*got 1.5'),
        (lambda: train_wordpiece('text', 50), r'`texts` must .*got a single text'),
        (lambda: wordpiece_of({'[UNK]': 0}), r'`inner` has no token \[PAD\]'),
    ],
)
def test_refused(call, words):
    if words.startswith(('`texts` got a single', '`inner`')):
        pytest.importorskip('tokenizers')
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@needs_package
def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match='there is no file'):
        Tokenizer.load(tmp_path / 'none.json')
    (tmp_path / 'bad.json').write_text('{"a": 1}')
    with pytest.raises(ValueError, match='cannot be read as a tokenizer'):
        Tokenizer.load(tmp_path / 'bad.json')


def test_without_the_package(monkeypatch):
    def away(name):
        raise ImportError(name)

    monkeypatch.setattr(files.importlib, 'import_module', away)
    with pytest.raises(ImportError, match=r"needs `tokenizers`: pip install 'x-transformers\[tokenizers\]'"):
        train_bpe(STORY, 300)


OWN = ['<user>', '<user>2', 'cat', '<|my sys|>']
CHAT = 'the cat<user>2 sat <user> on <|my sys|>猫é🙂<user>'


def with_fallback(special_tokens):
    """Pieces of one letter, and bytes for all others, as files of SentencePiece have them."""
    import tokenizers as made

    pieces = ['[PAD]', '[UNK]', '[BOS]', '[EOS]', *special_tokens, *'▁acehnostu']
    pieces += [f'<0x{byte:02X}>' for byte in range(256)]
    model = made.models.BPE({p: at for at, p in enumerate(pieces)}, [], unk_token='[UNK]', byte_fallback=True)
    inner = made.Tokenizer(model)
    inner.normalizer = made.normalizers.Replace(' ', '▁')
    one = made.decoders
    inner.decoder = one.Sequence([one.Replace('▁', ' '), one.ByteFallback(), one.Fuse(), one.Strip(' ', 1, 0)])
    inner.add_special_tokens(pieces[: 4 + len(special_tokens)])
    return Tokenizer(inner)


MAKERS = {
    'bytes': lambda own=(): ByteTokenizer(own),
    'BPE': lambda own=(): train_bpe(STORY, 300, special_tokens=own),
    'BPE of letters': lambda own=(): train_bpe(STORY, 60, byte_level=False, special_tokens=own),
    'WordPiece': lambda own=(): train_wordpiece(STORY, 60, special_tokens=own),
    'Unigram': lambda own=(): train_unigram(STORY, 48, special_tokens=own),
    'bytes of letters': lambda own=(): with_fallback(list(own)),
}
all_makers = pytest.mark.parametrize(
    'name', [pytest.param(name, marks=() if name == 'bytes' else needs_package) for name in MAKERS]
)


@pytest.mark.whole
@all_makers
def test_special_tokens_of_ones_own(name, tmp_path):
    """They are text, unless the caller says that they are not; a file keeps them."""
    made = MAKERS[name](OWN)
    own = made.special_tokens
    assert set(own) == set(OWN) and len(set(own.values())) == 4 and max(own.values()) < made.num_tokens
    assert not set(made.encode(CHAT)) & set(own.values())
    spoken = made.encode(CHAT, special_tokens=True, bos=True)
    wanted = [own[piece] for piece in ('cat', '<user>2', '<user>', '<|my sys|>', '<user>')]
    assert [one for one in spoken if one in own.values()] == wanted and spoken[0] == made.bos_id
    some = made.encode(CHAT, special_tokens=['<user>'])
    assert [one for one in some if one in own.values()] == [own['<user>']] * 3
    assert made.pad_batch([CHAT, 'a'], bos=True, special_tokens=True)[0][0].tolist() == spoken
    if name in ('bytes', 'BPE', 'bytes of letters'):
        assert made.decode(spoken) == made.decode(made.encode(CHAT)) == CHAT
    made.save(tmp_path / 'tokenizer.json')
    again = type(made).load(tmp_path / 'tokenizer.json')
    assert again.special_tokens == own and again.num_tokens == made.num_tokens
    assert again.encode(CHAT) == made.encode(CHAT) and again.encode(CHAT, special_tokens=True) == spoken[1:]
    plain = MAKERS[name]()
    assert not plain.special_tokens and plain.encode('the cat', special_tokens=True) == plain.encode('the cat')
    for wrong, error in (('<user>', TypeError), (['<bot>'], ValueError), ([3], ValueError), (1.0, TypeError)):
        with pytest.raises(error, match=r'`special_tokens` (must|got) '):
            made.encode('a', special_tokens=wrong)
    for wrong, error in (('<user>', TypeError), ([3], TypeError), (['x'], ValueError), (['[EOS]'], ValueError)):
        with pytest.raises(error, match=r'`special_tokens` (must|got) '):
            ByteTokenizer(wrong)
    with pytest.raises(ValueError, match='there already'):
        ByteTokenizer(['<a>', '<a>'])


@pytest.mark.whole
@all_makers
def test_text_as_it_comes(name):
    """Whole letters, which joined are the text of all ids, whatever ids come; one after another."""
    made = MAKERS[name](['<user>'])
    draw = random.Random(0)
    rows = [made.encode(CHAT + text, True, True, special_tokens=True) for text in (ODD, 'é', '')]
    for ids in rows:
        pieces = [*made.stream(iter(ids))]
        assert ''.join(pieces) == made.decode(ids) and all(pieces) and len(pieces) >= (6 if name != 'Unigram' else 4)
        assert not any('\ufffd' in piece for piece in pieces)
    for _ in range(300):
        ids = [draw.randrange(made.num_tokens) for _ in range(draw.randrange(12))]
        assert ''.join(made.stream(ids)) == made.decode(ids)
    ids = torch.tensor(rows[0])
    for given in (ids, ids.unbind(), ids.numpy(), ids.unsqueeze(-1).unbind()):
        assert ''.join(made.stream(given)) == made.decode(rows[0])
    # a piece is there as soon as its last id is
    seen = []
    first = next(made.stream(seen.append(one) or one for one in made.encode('the the the')))
    assert made.decode(seen) == first and len(seen) < 9
    for wrong, error in (([made.num_tokens], ValueError), ([0.5], TypeError), ([ids], TypeError)):
        with pytest.raises(error, match='`ids` must '):
            [*made.stream(wrong)]
    for wrong in ('abc', 5, ids.float()):
        with pytest.raises(TypeError, match='`ids` must '):
            made.stream(wrong)


def test_letters_of_several_bytes_are_whole():
    made = ByteTokenizer()
    assert [*made.stream(made.encode('aé猫🙂'))] == ['a', 'é', '猫', '🙂']
    assert [*made.stream([*'é'.encode(), 0xE7, 0x8C])] == ['é', '\ufffd']  # the last letter never came
    assert [*made.stream([0xFF, *b'ab'])] == ['\ufffda', 'b']
