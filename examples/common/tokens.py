"""Tokens of a text: its bytes, or the pieces of a file that `tokenizers` or sentencepiece wrote.

A checkpoint holds its tokenizer beside the weights, as tokenizer.json or tokenizer.model; else tokens are bytes.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from common.options import Stop
from x_transformers.core.plain_text import PlainText

BLOCK = 2**16  # characters that are encoded at a time
ABREAST = 16  # such blocks, on several threads


class Codec(Protocol):
    """Between text and ids, of which there are `size`; `ends` are those that end a text.

    `encode` gives a whole text, cut to `longest` tokens; `encode_part` one that stands within another.
    """

    size: int
    ends: list[int]
    unit: str

    def encode(self, text: str, longest: int | None = None) -> list[int]: ...
    def encode_part(self, text: str) -> list[int]: ...
    def encode_all(self, texts: list[str]) -> list[list[int]]: ...
    def decode(self, ids: list[int]) -> str: ...
    def save(self, folder: Path) -> None: ...


class Bytes:
    """A byte is an id."""

    size, unit = 256, 'bytes'
    ends: list[int] = []  # noqa: RUF012  never written to

    def encode(self, text: str, longest: int | None = None) -> list[int]:
        return list(text.encode('utf-8', errors='surrogateescape'))[:longest]

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return list(map(self.encode, texts))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode('utf-8', errors='replace')

    def save(self, folder: Path) -> None:
        pass


class Pieces:
    """Ids as a tokenizer.json says; with `specials`, a text begins and ends with what stands for no text."""

    unit = 'tokens'

    def __init__(self, tokenizer: Any, ends: list[int], specials: bool = False) -> None:
        self.tokenizer, self.ends, self.specials = tokenizer, ends, specials
        self.size, self.plain = max(tokenizer.get_vocab().values(), default=0) + 1, PlainText(tokenizer)

    @classmethod
    def read(cls, path: Path, ends: list[int], specials: bool) -> Pieces:
        return cls(package('tokenizers', path).Tokenizer.from_file(str(path)), ends, specials)

    @classmethod
    def learn(cls, text: str, size: int) -> Pieces:
        """Pairs of bytes, and of what they make, the most frequent first, so that there are `size` tokens."""
        of = package('tokenizers', '--train-tokenizer')
        tokenizer, bytewise = of.Tokenizer(of.models.BPE()), of.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.pre_tokenizer, tokenizer.decoder = bytewise, of.decoders.ByteLevel()
        options = dict(initial_alphabet=bytewise.alphabet(), show_progress=False)
        tokenizer.train_from_iterator(blocks(text), of.trainers.BpeTrainer(vocab_size=size, **options))
        return cls(tokenizer, [])

    def encode(self, text: str, longest: int | None = None) -> list[int]:
        return self.plain.ids(readable(text), self.specials, longest)

    def encode_part(self, text: str) -> list[int]:
        return self.plain.ids(readable(text))

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return self.plain.all_ids(texts)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    def save(self, folder: Path) -> None:
        (folder / 'tokenizer.json').write_text(self.tokenizer.to_str(), encoding='utf-8')


class Sentences:
    """Ids as a model of sentencepiece says."""

    unit = 'tokens'

    def __init__(self, path: Path, ends: list[int]) -> None:
        self.path, self.model = path, package('sentencepiece', path).SentencePieceProcessor(model_file=str(path))
        self.ends, self.size = ends, self.model.get_piece_size()

    def encode(self, text: str, longest: int | None = None) -> list[int]:
        return self.model.encode(readable(text))[:longest]

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        return self.model.encode(texts)

    def decode(self, ids: list[int]) -> str:
        return self.model.decode(ids)

    def save(self, folder: Path) -> None:
        shutil.copyfile(self.path, folder / 'tokenizer.model')


def package(name: str, what: object) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise Stop(f'{what} needs a package that is not installed: pip install {name}') from None


def read_tokenizer(path: Path, ends: list[int] | None = None, specials: bool = False) -> Codec:
    """The tokenizer of a file, JSON of `tokenizers` or a model of sentencepiece.  Raises Stop for any other."""
    try:
        with path.open('rb') as file:
            is_json = file.read(64).lstrip().startswith(b'{')
        return Pieces.read(path, ends or [], specials) if is_json else Sentences(path, ends or [])
    except OSError as error:
        raise Stop(f'the tokenizer {path} cannot be read: {error.strerror or error}') from None
    except Stop:
        raise
    except Exception as error:  # of either package, which have no class of their own
        raise Stop(f'{path} is no file of tokenizers or sentencepiece: {str(error).splitlines()[0]}') from None


def tokenizer_in(folder: Path, ends: list[int] | None = None, specials: bool = False) -> Codec:
    """That of a checkpoint."""
    found = [folder / name for name in ('tokenizer.json', 'tokenizer.model') if (folder / name).is_file()]
    return read_tokenizer(found[0], ends, specials) if found else Bytes()


def readable(text: str) -> str:
    """The text with a sign in place of bytes, as of a command line, that are none."""
    return text.encode('utf-8', errors='surrogateescape').decode('utf-8', errors='replace')


def blocks(text: str) -> Iterator[str]:
    """The text in parts that end with a line, if lines are not too long."""
    start = 0
    while start < len(text):
        end = min(start + BLOCK, len(text))
        end = end if end == len(text) else text.rfind('\n', start, end) + 1 or end
        yield text[start:end]
        start = end


def encoded(part: Tensor, codec: Codec) -> Tensor:
    """Bytes of text, uint8, as ids."""
    if isinstance(codec, Bytes):
        return part
    parts = list(blocks(part.numpy().tobytes().decode('utf-8', errors='replace')))
    found: list[Tensor] = []
    with tqdm(total=len(parts), desc='tokens', leave=False, dynamic_ncols=True, disable=len(parts) <= ABREAST) as bar:
        for at in range(0, len(parts), ABREAST):
            some = parts[at : at + ABREAST]
            found += [torch.tensor(ids, dtype=torch.int32) for ids in codec.encode_all(some)]
            bar.update(len(some))
    return torch.cat(found)
