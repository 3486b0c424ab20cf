"""From text to ids and back: bytes, or subwords learned from a text by the `tokenizers` package.

    tokenizer = train_bpe(texts, num_tokens=1000)         # or train_wordpiece, train_unigram, ByteTokenizer()
    ids, mask = tokenizer.pad_batch(['one text', 'another'])
    tokenizer.decode(ids[0])
    for piece in tokenizer.stream(model.stream(...)):     # text as it is generated
        print(piece, end='')

Sennrich et al. 2015, arXiv:1508.07909 (BPE); Wu et al. 2016, arXiv:1609.08144 (WordPiece); Kudo 2018, arXiv:1804.10959
and Kudo & Richardson 2018, arXiv:1808.06226 (Unigram)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.files import import_optional, replace_file
from x_transformers.core.plain_text import PlainText
from x_transformers.flags import at_least, format_value, is_int, none, size
from x_transformers.flags.unexpected import answering

__all__ = ['ByteTokenizer', 'Tokenizer', 'train_bpe', 'train_unigram', 'train_wordpiece', 'wordpiece_of']

PAD, UNK, BOS, EOS = '[PAD]', '[UNK]', '[BOS]', '[EOS]'
SPECIAL = (PAD, UNK, BOS, EOS)
BROKEN = '\ufffd'  # what a part of a letter is decoded to
BYTE_TOKEN = re.compile('<0x[0-9A-F]{2}>')
SCORE_DIGITS, LETTER_STEP = 9, 1e-4  # digits behind the point that scores of unigrams keep, and see `reproducible`


def package() -> ModuleType:
    """Import the package. Raise ImportError that says what to install."""
    return import_optional('tokenizers', 'a tokenizer of subwords', 'tokenizers')


class Encodes:
    """Base class of tokenizers.

    num_tokens       ids are below this
    pad_id, bos_id, eos_id
    special_tokens   name -> id of special tokens of one's own
    """

    num_tokens: int
    pad_id: int
    bos_id: int
    eos_id: int
    special_tokens: Mapping[str, int] = {}

    def ids_of(self, text: str) -> list[int]:
        raise NotImplementedError

    def text_of(self, ids: list[int]) -> str:
        raise NotImplementedError

    def is_open(self, last: int) -> bool:
        """Return whether later ids may still change the text of one, although it ends with a whole letter."""
        return False

    @answering
    def encode(
        self, text: str, bos: bool = False, eos: bool = False, special_tokens: bool | Iterable[str] = False
    ) -> list[int]:
        """Return the ids of a text, between those of its beginning and its end if they are wanted.

        Whatever is written in the text, it gives none of these, nor padding, nor a special token, unless it may.

        Args:
            text: Any text.
            bos: Begin with `bos_id`.
            eos: End with `eos_id`.
            special_tokens: True: the names of all special tokens of one's own give their ids, in place of the ids of
                their letters. Or those names that do.

        Raises:
            TypeError: `text` is no text, or `special_tokens` no names.
            ValueError: `text` cannot be written as UTF-8, or a name is no special token.
        """
        if not isinstance(text, str):
            raise TypeError(f'`text` must be a text, got {format_value(text)}')
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f'`text` must be valid UTF-8, got {format_value(text)}: {error.reason}') from None
        names = self.names_to_find(special_tokens)
        ids = self.ids_of(text) if not names else self.ids_with(text, names)
        return [*([self.bos_id] if bos else ()), *ids, *([self.eos_id] if eos else ())]

    def names_to_find(self, wanted: Any) -> dict[str, int]:
        """Return the special tokens that a text may give, name -> id."""
        if wanted is True or wanted is False:
            return dict(self.special_tokens) if wanted else {}
        if isinstance(wanted, str) or not isinstance(wanted, Iterable):
            raise TypeError(f'`special_tokens` must be True, False, or a list of names, got {format_value(wanted)}')
        names = list(wanted)
        for name in names:
            if name not in self.special_tokens:
                known = ', '.join(map(repr, self.special_tokens)) or 'there are none'
                raise ValueError(f'`special_tokens` got {format_value(name)}, which is no special token: {known}')
        return {name: self.special_tokens[name] for name in names}

    def ids_with(self, text: str, names: Mapping[str, int]) -> list[int]:
        """Return the ids of a text in which names stand for special tokens, the longest one where several do."""
        either = '|'.join(map(re.escape, sorted(names, key=len, reverse=True)))
        found: list[int] = []
        for part in re.split(f'({either})', text):
            found += [names[part]] if part in names else self.ids_of(part)
        return found

    @answering
    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """Return the text of ids (n), without padding, beginnings and ends.

        raises   ValueError for an id that is none, TypeError for what is no row of ids
        """
        return self.text_of([*self.said(ids)])

    def stream(self, ids: Iterable[Any]) -> Iterator[str]:
        """Return the text of ids piece by piece, as they come: an iterator over texts, which joined are `decode(ids)`.

        A letter of several ids is given as a whole, with its last one.

        Args:
            ids: Any iterable of ids, such as `AutoregressiveWrapper.stream(...)` of one prompt: numbers, or tensors and
                arrays of one.

        Raises:
            TypeError: `ids` is no iterable, or gives something that is no id.
            ValueError: An id is out of range.
        """
        return self.pieces_of(self.said(ids))

    def said(self, ids: Any) -> Iterator[int]:
        """Return an iterator over the ids of one row that stand for text: not for padding, beginnings and ends."""
        if torch.is_tensor(ids):
            if ids.ndim != 1 or ids.is_floating_point():
                raise TypeError(f'`ids` must be whole numbers (n), got {ids.dtype} of shape {tuple(ids.shape)}')
            ids = ids.tolist()
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise TypeError(f'`ids` must be ids, got {format_value(ids)}: a list, a tensor (n) or an iterator')
        own = map(self.checked_id, ids)
        return (one for one in own if one not in (self.pad_id, self.bos_id, self.eos_id))

    def checked_id(self, one: Any) -> int:
        if not is_int(one) and getattr(one, 'shape', None) in ((), (1,)):
            one = one.item()
        if not is_int(one):
            raise TypeError(f'`ids` must hold whole numbers, got {format_value(one)}')
        if not 0 <= one < self.num_tokens:
            raise ValueError(f'`ids` must be from 0 to {self.num_tokens - 1}, got {one}')
        return int(one)

    def pieces_of(self, ids: Iterator[int]) -> Iterator[str]:
        """Yield texts, each of the ids since the last one, behind which a decoder may set a space.

        Only the ids of the last piece are decoded again, so that the time of an id does not depend on how many there
        were.
        """
        before: list[int] = []  # the ids of the last piece
        new: list[int] = []
        printed = ''  # their text
        for one in ids:
            new.append(one)
            text = self.text_of([*before, *new])
            if len(text) > len(printed) and not text.endswith(BROKEN) and not self.is_open(one):
                yield text[len(printed) :]
                before, new = new, []
                printed = self.text_of(before)
        if rest := self.text_of([*before, *new])[len(printed) :]:
            yield rest

    @answering
    def pad_batch(
        self,
        texts: Sequence[str],
        bos: bool = False,
        eos: bool = False,
        max_len: int | None = None,
        special_tokens: bool | Iterable[str] = False,
    ) -> tuple[Tensor, Tensor]:
        """Return texts as ids padded on the right, and their mask:  b n, b n

        max_len   longer texts are cut, so that the end, if it is wanted, still stands behind what is left
        special_tokens   names in the texts that give special tokens, as in `encode`
        raises    ValueError without texts, or for a `max_len` that leaves no room for a beginning and an end
        """
        if isinstance(texts, str) or not len(texts):
            raise ValueError(f'`texts` must be one text at least, in a list, got {format_value(texts)}')
        (size | none).require('max_len', max_len)
        if max_len is not None and max_len < bool(bos) + bool(eos):
            raise ValueError(f'`max_len` must leave room for a beginning and an end, 2 tokens, got {max_len}')
        names = [*self.names_to_find(special_tokens)]
        rows = [self.encode(text, bos, special_tokens=names) for text in texts]
        if eos:
            rows = [[*row[: None if max_len is None else max_len - 1], self.eos_id] for row in rows]
        rows = [row[:max_len] for row in rows]
        n = max(map(len, rows))
        ids = torch.tensor([row + [self.pad_id] * (n - len(row)) for row in rows], dtype=torch.long).view(len(rows), n)
        lengths = torch.tensor([len(row) for row in rows])
        return ids, torch.arange(n) < lengths.unsqueeze(-1)


class ByteTokenizer(Encodes):
    """Each byte of the text in UTF-8 is an id; then padding, beginning and end, and special tokens of one's own.

    Args:
        special_tokens: Their names. Only `encode(..., special_tokens=True)` gives their ids, from 259 on.
    """

    num_tokens, pad_id, bos_id, eos_id = 259, 256, 257, 258

    def __init__(self, special_tokens: Iterable[str] = ()) -> None:
        names = check_special(special_tokens)
        self.special_tokens = {name: ByteTokenizer.num_tokens + at for at, name in enumerate(names)}
        self.num_tokens = ByteTokenizer.num_tokens + len(names)
        self.names = {at: name.encode() for name, at in self.special_tokens.items()}

    def ids_of(self, text: str) -> list[int]:
        return list(text.encode())

    def text_of(self, ids: list[int]) -> str:
        """Decode bytes; those that are no text, as an incomplete letter, become U+FFFD."""
        if not self.names:
            return bytes(ids).decode(errors='replace')
        return b''.join(self.names.get(one) or bytes((one,)) for one in ids).decode(errors='replace')

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON.  Raises OSError, and leaves what was there before."""
        with replace_file(path) as file:
            file.write(json.dumps({'type': 'bytes', 'special_tokens': [*self.special_tokens]}).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ByteTokenizer:
        """Load a tokenizer. Raise ValueError for a file that `save` has not written."""
        if not os.path.exists(path):
            raise FileNotFoundError(f'there is no file `{os.fspath(path)}`')
        try:
            with open(path, encoding='utf-8') as file:
                found = json.load(file)
        except ValueError as error:
            raise ValueError(f'`{os.fspath(path)}` cannot be read as a tokenizer of bytes: {error}') from error
        if not isinstance(found, dict) or found.get('type') != 'bytes':
            raise ValueError(f'`{os.fspath(path)}` is no tokenizer of bytes')
        return cls(found.get('special_tokens', ()))


def check_special(names: Any) -> list[str]:
    """Return the names of special tokens.

    Raises:
        TypeError: They are no list of texts.
        ValueError: One is there twice, has a single letter, or is one of the special tokens of every tokenizer.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f'`special_tokens` must be a list of names, got {format_value(names)}')
    names = list(names)
    for at, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f'`special_tokens` must hold texts, got {format_value(name)}')
        if len(name) < 2 or name != name.strip():
            words = 'names must have two letters or more, and no spaces around them'
            raise ValueError(f'`special_tokens` got {name!r}, {words}')
        if name in SPECIAL or name in names[:at]:
            raise ValueError(f'`special_tokens` got {name!r}, which is there already')
    return names


class Tokenizer(Encodes):
    """A tokenizer of the `tokenizers` package, which stays reachable as `inner`.

    Text is text: `[EOS]` in one is spelled, and padding and truncation that `inner` may have are switched off.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        missing = [name for name in (PAD, BOS, EOS) if inner.token_to_id(name) is None]
        if missing:
            raise ValueError(f'`inner` has no token {missing[0]}: it must have {PAD}, {BOS} and {EOS}')
        self.pad_id, self.bos_id, self.eos_id = map(inner.token_to_id, (PAD, BOS, EOS))
        self.plain = PlainText(inner, (self.pad_id, self.bos_id, self.eos_id))
        self.joins_bytes = '"ByteFallback"' in inner.to_str()

    @property
    def num_tokens(self) -> int:  # type: ignore[override]
        return int(self.inner.get_vocab_size())

    @property
    def special_tokens(self) -> dict[str, int]:  # type: ignore[override]
        added = self.inner.get_added_tokens_decoder()
        return {one.content: at for at, one in sorted(added.items()) if one.special and one.content not in SPECIAL}

    @property
    def vocabulary(self) -> dict[str, int]:
        return dict(self.inner.get_vocab())

    def is_open(self, last: int) -> bool:
        """Return whether an id is a byte of a tokenizer that decodes neighbouring bytes together."""
        return self.joins_bytes and BYTE_TOKEN.fullmatch(self.inner.id_to_token(last) or '') is not None

    def ids_of(self, text: str) -> list[int]:
        return self.plain.ids(text)

    def pieces(self, text: str) -> list[str]:
        return [piece for _, piece in self.plain.tokens(text)]

    def text_of(self, ids: list[int]) -> str:
        return str(self.inner.decode(ids, skip_special_tokens=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, in the format of the package.  Raises OSError, and leaves what was there before."""
        with replace_file(path) as file:
            file.write(self.inner.to_str(pretty=True).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Load a tokenizer. Raise ValueError for a file that is no tokenizer."""
        if not os.path.exists(path):
            raise FileNotFoundError(f'there is no file `{os.fspath(path)}`')
        try:
            inner = package().Tokenizer.from_file(os.fspath(path))
        except ImportError:
            raise
        except Exception as error:  # the package raises no class of its own
            raise ValueError(f'`{os.fspath(path)}` cannot be read as a tokenizer: {error}') from error
        return cls(inner)


def order_tokens(made: ModuleType, model: Any, like: Any, own: Sequence[str] = ()) -> Tokenizer:
    """Return a tokenizer of `model` with ids in our order, otherwise as `like`."""
    inner = made.Tokenizer(model)
    for part in ('normalizer', 'pre_tokenizer', 'decoder'):
        if getattr(like, part) is not None:
            setattr(inner, part, getattr(like, part))
    inner.add_special_tokens([*SPECIAL, *own])
    return Tokenizer(inner)


def checked_texts(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise TypeError('`texts` must be several, got a single text: a list or an iterator of texts')
    return texts


@answering
def train_bpe(
    texts: Iterable[str],
    num_tokens: int,
    *,
    byte_level: bool = True,
    min_frequency: int = 1,
    special_tokens: Iterable[str] = (),
) -> Tokenizer:
    """Train byte pair encoding: the most frequent pair of neighbours becomes one token, again and again.

    texts           texts to learn from
    num_tokens      size of the vocabulary, with four special tokens and those of one's own
    byte_level      start from the 256 bytes, so that every text can be said; else from the letters of `texts`, others
                    are [UNK]
    min_frequency   pairs that are rarer stay two
    special_tokens  names of special tokens of one's own, which get the ids from 4 on. In a text they are text, unless
                    `encode(..., special_tokens=True)` is asked for them
    raises          ValueError or TypeError for arguments out of range, ImportError without the package
    """
    own = check_special(special_tokens)
    at_least(len(SPECIAL) + len(own) + (256 if byte_level else 1)).require('num_tokens', num_tokens)
    made = package()
    inner = made.Tokenizer(made.models.BPE(unk_token=None if byte_level else UNK))
    options: dict[str, Any] = {'min_frequency': min_frequency, 'show_progress': False}
    if byte_level:
        inner.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = made.decoders.ByteLevel()
        options['initial_alphabet'] = made.pre_tokenizers.ByteLevel.alphabet()
    else:
        inner.pre_tokenizer = made.pre_tokenizers.Metaspace(prepend_scheme='never')
        inner.decoder = made.decoders.Metaspace(prepend_scheme='never')
    trainer = made.trainers.BpeTrainer(vocab_size=num_tokens, special_tokens=[*SPECIAL, *own], **options)
    inner.train_from_iterator(checked_texts(texts), trainer)
    return Tokenizer(inner)


@answering
def train_wordpiece(
    texts: Iterable[str], num_tokens: int, *, lowercase: bool = False, special_tokens: Iterable[str] = ()
) -> Tokenizer:
    """Train WordPiece, as of BERT: words are cut into the longest known beginnings; later pieces begin with ##.

    texts, num_tokens, special_tokens   as in `train_bpe`
    lowercase           letters become small, and lose their accents
    """
    own = check_special(special_tokens)
    at_least(len(SPECIAL) + len(own) + 1).require('num_tokens', num_tokens)
    made = package()
    inner = made.Tokenizer(made.models.WordPiece(unk_token=UNK))
    split_around_words(made, inner, lowercase)
    texts = checked_texts(texts)
    texts = [*texts] if iter(texts) is texts else texts  # they are read twice

    def pieces_of(size: int, known: Sequence[str]) -> dict[str, int]:
        trainer = made.trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=[*known], show_progress=False, continuing_subword_prefix='##'
        )
        inner.train_from_iterator(texts, trainer)
        return dict(inner.get_vocab(with_added_tokens=False))

    # The trainer numbers single letters in the order of a hash table, and of pairs that are equally frequent it joins
    # those with the lower numbers first. So the letters are numbered for it: a vocabulary of size 1 holds them alone.
    special = [*SPECIAL, *own]
    letters = sorted(pieces_of(1, special).keys() - {*special}, key=lambda piece: (piece.startswith('##'), piece))
    pieces = pieces_of(num_tokens, [*special, *letters])
    return order_tokens(made, made.models.WordPiece(pieces, unk_token=UNK), inner, own)


def wordpiece_of(
    vocabulary: Mapping[str, int], *, lowercase: bool = False, special_tokens: Iterable[str] = ()
) -> Tokenizer:
    """Build WordPiece from a known vocabulary, piece -> id, with [PAD], [UNK], [BOS] and [EOS].

    special_tokens   names of special tokens of one's own, as in `train_bpe`; those that are no piece get the next ids
    """
    own = check_special(special_tokens)
    made = package()
    inner = made.Tokenizer(made.models.WordPiece(dict(vocabulary), unk_token=UNK, max_input_chars_per_word=100))
    split_around_words(made, inner, lowercase)
    inner.add_special_tokens(own)
    return Tokenizer(inner)


def split_around_words(made: ModuleType, inner: Any, lowercase: bool) -> None:
    inner.normalizer = made.normalizers.BertNormalizer(lowercase=lowercase)
    inner.pre_tokenizer = made.pre_tokenizers.BertPreTokenizer()
    inner.decoder = made.decoders.WordPiece()


def reproducible(scores: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return pieces with their scores, the best first, without what differs from one training to the next.

    The trainer adds up in the order of a hash table, so that last digits and the order of equal scores differ. In such
    an order, too, it gives letters that are no piece the least score, and the next one `LETTER_STEP` more: these all
    get the least.
    """
    least = min((score for _, score in scores), default=0.0)
    found = []
    for piece, score in scores:
        steps = (score - least) / LETTER_STEP
        given = len(piece) == 1 and steps < len(scores) and abs(steps - round(steps)) < 1e-4
        found.append((piece, round(least if given else score, SCORE_DIGITS)))
    return sorted(found, key=lambda one: (-one[1], one[0]))


@answering
def train_unigram(texts: Iterable[str], num_tokens: int, *, special_tokens: Iterable[str] = ()) -> Tokenizer:
    """Train Unigram, as of SentencePiece: of all ways to cut a text, the one with the largest sum of log p(piece).

    texts, num_tokens, special_tokens   as in `train_bpe`
    """
    own = check_special(special_tokens)
    at_least(len(SPECIAL) + len(own) + 1).require('num_tokens', num_tokens)
    made = package()
    inner = made.Tokenizer(made.models.Unigram())
    inner.pre_tokenizer = made.pre_tokenizers.Metaspace(prepend_scheme='never')
    inner.decoder = made.decoders.Metaspace(prepend_scheme='never')
    trainer = made.trainers.UnigramTrainer(
        vocab_size=num_tokens, special_tokens=[*SPECIAL, *own], unk_token=UNK, show_progress=False
    )
    inner.train_from_iterator(checked_texts(texts), trainer)
    learned = json.loads(inner.to_str())['model']
    first = len(SPECIAL) + len(own)
    scores = [*learned['vocab'][:first], *reproducible(learned['vocab'][first:])]
    return order_tokens(made, made.models.Unigram([*map(tuple, scores)], unk_id=learned['unk_id']), inner, own)
