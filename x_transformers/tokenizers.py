"""From text to ids and back: bytes, or subwords learned from a text by the `tokenizers` package.

    tokenizer = train_bpe(texts, num_tokens=1000)         # or train_wordpiece, train_unigram, ByteTokenizer()
    ids, mask = tokenizer.pad_batch(['one text', 'another'])
    tokenizer.decode(ids[0])

Sennrich et al. 2015, arXiv:1508.07909 (BPE); Wu et al. 2016, arXiv:1609.08144 (WordPiece); Kudo 2018, arXiv:1804.10959
and Kudo & Richardson 2018, arXiv:1808.06226 (Unigram)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.optional import needed
from x_transformers.core.plain_text import PlainText
from x_transformers.core.writing import replacing
from x_transformers.flags import is_int, shown

__all__ = ['ByteTokenizer', 'Tokenizer', 'train_bpe', 'train_unigram', 'train_wordpiece', 'wordpiece_of']

PAD, UNK, BOS, EOS = '[PAD]', '[UNK]', '[BOS]', '[EOS]'
SPECIAL = (PAD, UNK, BOS, EOS)
SCORE_DIGITS, LETTER_STEP = 9, 1e-4  # digits behind the point that scores of unigrams keep, and see `reproducible`


def package() -> ModuleType:
    """Raises ImportError that says what to install."""
    return needed('tokenizers', 'a tokenizer of subwords', 'tokenizers')


class Encodes:
    """What all tokenizers share.

    num_tokens   ids are below this
    pad_id, bos_id, eos_id
    """

    num_tokens: int
    pad_id: int
    bos_id: int
    eos_id: int

    def ids_of(self, text: str) -> list[int]:
        raise NotImplementedError

    def text_of(self, ids: list[int]) -> str:
        raise NotImplementedError

    def encode(self, text: str, bos: bool = False, eos: bool = False) -> list[int]:
        """The ids of a text, between those of its beginning and its end if they are wanted. The text gives none of
        these, nor padding, whatever is written in it.

        raises   TypeError for what is no text, ValueError for one that cannot be written as UTF-8
        """
        if not isinstance(text, str):
            raise TypeError(f'`text` got {shown(text)}, it must be a text')
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f'`text` got {shown(text)}, which cannot be written as UTF-8: {error.reason}') from None
        return [*([self.bos_id] if bos else ()), *self.ids_of(text), *([self.eos_id] if eos else ())]

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """The text of ids (n), without padding, beginnings and ends.

        raises   ValueError for an id that is none, TypeError for what is no row of ids
        """
        if torch.is_tensor(ids):
            if ids.ndim != 1 or ids.is_floating_point():
                raise TypeError(f'`ids` got {ids.dtype} of shape {tuple(ids.shape)}, it must be whole numbers (n)')
            ids = ids.tolist()
        own = list(ids)
        for one in own:
            if not is_int(one):
                raise TypeError(f'`ids` got {shown(one)}, it must hold whole numbers')
            if not 0 <= one < self.num_tokens:
                raise ValueError(f'`ids` got {one}, it must be from 0 to {self.num_tokens - 1}')
        return self.text_of([one for one in own if one not in (self.pad_id, self.bos_id, self.eos_id)])

    def pad_batch(
        self, texts: Sequence[str], bos: bool = False, eos: bool = False, max_len: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Texts as rows of equal length, padded on the right, and which tokens are real:  b n, b n

        max_len   longer texts are cut, so that the end, if it is wanted, still stands behind what is left
        raises    ValueError without texts, or for a `max_len` that leaves no room for a beginning and an end
        """
        if isinstance(texts, str) or not len(texts):
            raise ValueError(f'`texts` got {shown(texts)}, it must be one text at least, in a list')
        if max_len is not None and not (is_int(max_len) and max_len >= 1):
            raise ValueError(f'`max_len` got {shown(max_len)}, it must be an integer of at least 1, or None')
        if max_len is not None and max_len < bool(bos) + bool(eos):
            raise ValueError(f'`max_len` got {max_len}, it must leave room for a beginning and an end, 2 tokens')
        rows = [self.encode(text, bos) for text in texts]
        if eos:
            rows = [[*row[: None if max_len is None else max_len - 1], self.eos_id] for row in rows]
        rows = [row[:max_len] for row in rows]
        n = max(map(len, rows))
        ids = torch.tensor([row + [self.pad_id] * (n - len(row)) for row in rows], dtype=torch.long).view(len(rows), n)
        lengths = torch.tensor([len(row) for row in rows])
        return ids, torch.arange(n) < lengths.unsqueeze(-1)


class ByteTokenizer(Encodes):
    """Each byte of the text in UTF-8 is an id; then padding, beginning and end."""

    num_tokens, pad_id, bos_id, eos_id = 259, 256, 257, 258

    def ids_of(self, text: str) -> list[int]:
        return list(text.encode())

    def text_of(self, ids: list[int]) -> str:
        """Bytes that are no text, as a beginning of a letter may be, become U+FFFD."""
        return bytes(ids).decode(errors='replace')


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

    @property
    def num_tokens(self) -> int:  # type: ignore[override]
        return int(self.inner.get_vocab_size())

    @property
    def vocabulary(self) -> dict[str, int]:
        return dict(self.inner.get_vocab())

    def ids_of(self, text: str) -> list[int]:
        return self.plain.ids(text)

    def pieces(self, text: str) -> list[str]:
        return [piece for _, piece in self.plain.tokens(text)]

    def text_of(self, ids: list[int]) -> str:
        return str(self.inner.decode(ids, skip_special_tokens=False))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, in the format of the package.  Raises OSError, and leaves what was there before."""
        with replacing(path) as file:
            file.write(self.inner.to_str(pretty=True).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Raises ValueError for a file that is no tokenizer, FileNotFoundError where there is none."""
        if not os.path.exists(path):
            raise FileNotFoundError(f'there is no file `{os.fspath(path)}`')
        try:
            inner = package().Tokenizer.from_file(os.fspath(path))
        except ImportError:
            raise
        except Exception as error:  # the package raises no class of its own
            raise ValueError(f'`{os.fspath(path)}` cannot be read as a tokenizer: {error}') from error
        return cls(inner)


def trained(inner: Any, trainer: Any, texts: Iterable[str]) -> Tokenizer:
    inner.train_from_iterator(checked_texts(texts), trainer)
    return Tokenizer(inner)


def ordered(made: ModuleType, model: Any, like: Any) -> Tokenizer:
    """A tokenizer of `model`, whose ids are in an order of ours, with all else as in `like`."""
    inner = made.Tokenizer(model)
    for part in ('normalizer', 'pre_tokenizer', 'decoder'):
        if getattr(like, part) is not None:
            setattr(inner, part, getattr(like, part))
    inner.add_special_tokens([*SPECIAL])
    return Tokenizer(inner)


def checked_texts(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise TypeError('`texts` got a single text, it must be several: a list or an iterator of texts')
    return texts


def check_size(num_tokens: Any, least: int) -> None:
    if not is_int(num_tokens) or num_tokens < least:
        raise ValueError(f'`num_tokens` got {shown(num_tokens)}, it must be an integer of at least {least}')


def train_bpe(texts: Iterable[str], num_tokens: int, *, byte_level: bool = True, min_frequency: int = 1) -> Tokenizer:
    """Byte pair encoding: the most frequent pair of neighbours becomes one token, again and again.

    texts           texts to learn from
    num_tokens      size of the vocabulary, with four special tokens
    byte_level      start from the 256 bytes, so that every text can be said; else from the letters of `texts`, others
                    are [UNK]
    min_frequency   pairs that are rarer stay two
    raises          ValueError or TypeError for arguments out of range, ImportError without the package
    """
    check_size(num_tokens, len(SPECIAL) + (256 if byte_level else 1))
    made = package()
    inner = made.Tokenizer(made.models.BPE(unk_token=None if byte_level else UNK))
    options: dict[str, Any] = {}
    if byte_level:
        inner.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = made.decoders.ByteLevel()
        options['initial_alphabet'] = made.pre_tokenizers.ByteLevel.alphabet()
    else:
        inner.pre_tokenizer = made.pre_tokenizers.Metaspace(prepend_scheme='never')
        inner.decoder = made.decoders.Metaspace(prepend_scheme='never')
    trainer = made.trainers.BpeTrainer(
        vocab_size=num_tokens, min_frequency=min_frequency, special_tokens=[*SPECIAL], show_progress=False, **options
    )
    return trained(inner, trainer, texts)


def train_wordpiece(texts: Iterable[str], num_tokens: int, *, lowercase: bool = False) -> Tokenizer:
    """WordPiece, as BERT has it: words are cut into the longest known beginnings; later pieces begin with ##.

    texts, num_tokens   as in `train_bpe`
    lowercase           letters become small, and lose their accents
    """
    check_size(num_tokens, len(SPECIAL) + 1)
    made = package()
    inner = made.Tokenizer(made.models.WordPiece(unk_token=UNK))
    around_words(made, inner, lowercase)
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
    letters = sorted(pieces_of(1, SPECIAL).keys() - {*SPECIAL}, key=lambda piece: (piece.startswith('##'), piece))
    return ordered(made, made.models.WordPiece(pieces_of(num_tokens, [*SPECIAL, *letters]), unk_token=UNK), inner)


def wordpiece_of(vocabulary: Mapping[str, int], *, lowercase: bool = False) -> Tokenizer:
    """WordPiece of a vocabulary that is known, piece -> id, which holds [PAD], [UNK], [BOS] and [EOS]."""
    made = package()
    inner = made.Tokenizer(made.models.WordPiece(dict(vocabulary), unk_token=UNK, max_input_chars_per_word=100))
    around_words(made, inner, lowercase)
    return Tokenizer(inner)


def around_words(made: ModuleType, inner: Any, lowercase: bool) -> None:
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


def train_unigram(texts: Iterable[str], num_tokens: int) -> Tokenizer:
    """Unigram, as SentencePiece has it: of all ways to cut a text, the one with the largest sum of log p(piece).

    texts, num_tokens   as in `train_bpe`
    """
    check_size(num_tokens, len(SPECIAL) + 1)
    made = package()
    inner = made.Tokenizer(made.models.Unigram())
    inner.pre_tokenizer = made.pre_tokenizers.Metaspace(prepend_scheme='never')
    inner.decoder = made.decoders.Metaspace(prepend_scheme='never')
    trainer = made.trainers.UnigramTrainer(
        vocab_size=num_tokens, special_tokens=[*SPECIAL], unk_token=UNK, show_progress=False
    )
    inner.train_from_iterator(checked_texts(texts), trainer)
    learned = json.loads(inner.to_str())['model']
    scores = [*learned['vocab'][: len(SPECIAL)], *reproducible(learned['vocab'][len(SPECIAL) :])]
    return ordered(made, made.models.Unigram([*map(tuple, scores)], unk_id=learned['unk_id']), inner)
