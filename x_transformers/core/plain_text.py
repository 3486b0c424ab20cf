"""Reading text with a tokenizer of the `tokenizers` package so that no text gives a special token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class PlainText:
    """Ids of texts, in which the name of a special token is text like any other: whole texts, without padding.

    The package finds special tokens in texts unless `encode_special_tokens` is set, which no file holds. A model whose
    vocabulary has their names, as Unigram does, finds them nonetheless: then they are spelled with other pieces.

    tokenizer   of the package. Its options that pad, cut or find special tokens are switched off where it is used
    reserved    ids beside those of its special tokens that no text may give
    """

    def __init__(self, tokenizer: Any, reserved: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        found = {at for at, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        # text that the vocabulary cannot say is unknown, text that names this token is not
        names = {getattr(tokenizer.model, 'unk_token', None), '[UNK]', '<unk>'} - {None}
        self.unknown = {at: name for name in names if (at := tokenizer.token_to_id(name)) is not None}
        self.reserved = frozenset({*found, *reserved} - self.unknown.keys())

    def plain(self) -> Any:
        tokenizer = self.tokenizer
        if not tokenizer.encode_special_tokens:
            tokenizer.encode_special_tokens = True
        if tokenizer.padding is not None:
            tokenizer.no_padding()
        if tokenizer.truncation is not None:
            tokenizer.no_truncation()
        return tokenizer

    def tokens(self, text: str, framed: bool = False, longest: int | None = None) -> list[tuple[int, str]]:
        """Ids and pieces of a text.

        framed    between the special tokens that the tokenizer puts around a text
        longest   of longer texts only so many tokens, those around it included
        raises    ValueError for a text that only a special token can say
        """
        found = self.plain().encode(text, add_special_tokens=framed)
        pairs, added = list(zip(found.ids, found.tokens, strict=True)), found.special_tokens_mask
        front = next((at for at, one in enumerate(added) if not one), len(added))
        end = next((len(added) - at for at, one in enumerate(reversed(added)) if not one), front)
        inner = pairs[front:end]
        odd = any(at in self.reserved for at, _ in inner)
        if odd or any(name in text for name in self.unknown.values()):
            places = zip(inner, found.offsets[front:end], strict=True)
            inner = [one for pair, (start, stop) in places for one in self.without_names(pair, text[start:stop])]
        room = None if longest is None else max(longest - front - len(pairs) + end, 0)
        return [*pairs[:front], *inner[:room], *pairs[end:]]

    def without_names(self, pair: tuple[int, str], part: str) -> list[tuple[int, str]]:
        """A token as it is, or spelled if it stands for its own name in the text, of which it is a part."""
        return self.spelled(pair[1]) if self.is_name(pair[0], part) else [pair]

    def is_name(self, at: int, part: str) -> bool:
        return at in self.reserved or (at in self.unknown and self.unknown[at] in part)

    def ids(self, text: str, framed: bool = False, longest: int | None = None) -> list[int]:
        return [at for at, _ in self.tokens(text, framed, longest)]

    def all_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Those of many texts, on several threads."""
        found = [made.ids for made in self.plain().encode_batch_fast(list(texts), add_special_tokens=False)]
        named = [any(name in text for name in self.unknown.values()) for text in texts]
        rows = zip(texts, found, named, strict=True)
        return [self.ids(text) if odd or not self.reserved.isdisjoint(ids) else ids for text, ids, odd in rows]

    def spelled(self, name: str) -> list[tuple[int, str]]:
        """The name of a token with pieces of the vocabulary that are none of the special ones."""
        model, tokens = self.tokenizer.model, []
        for part in (name[:1], name[1:]) if len(name) > 1 else ():
            if model.token_to_id(name) is None:  # it was added, and is no piece of the model
                tokens += self.tokens(part)
                continue
            for piece in model.tokenize(part):
                says = part.encode()[slice(*piece.offsets)].decode(errors='replace')
                tokens += self.spelled(says) if self.is_name(piece.id, says) else [(piece.id, piece.value)]
        if not tokens:
            raise ValueError(f'`text` holds {name!r}, which only a special token can say')
        return tokens
