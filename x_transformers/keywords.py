"""The types of all keywords, for editors and type checkers (PEP 692), are in `keywords.pyi`.

At run time no type is evaluated, so that importing the library costs nothing: each name is an empty TypedDict, which a
user's own may extend.

    class MyKeywords(DecoderKeywords, total=False):
        my_flag: int  # of a feature of yours

    def build(**keywords: Unpack[MyKeywords]) -> Decoder: ...
"""

from __future__ import annotations

import typing
from typing import Any

KINDS = ('Keywords', 'Inputs', 'Call')


class Unpack:
    """`typing_extensions.Unpack` for type checkers. At run time `Unpack[...]` is Any."""

    def __class_getitem__(cls, item: Any) -> Any:
        return Any


def __getattr__(name: str) -> Any:
    if name.endswith(KINDS) and not name.startswith('_'):
        globals()[name] = found = typing.TypedDict(name, {}, total=False)  # type: ignore[operator]
        return found
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
