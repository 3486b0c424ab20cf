"""The sizes of an attention layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of an attention layer."""

    heads: int
    kv_heads: int
    dim_head: int
    dim_value: int
    dim_out: int

    @property
    def dim_inner(self) -> int:
        return self.heads * self.dim_value


@dataclass
class Widths:
    """What queries and keys are made from: input widths, and how many heads of which width the projections give.

    Of the features of a key head, some may come from `elsewhere`.
    """

    q: int
    kv: int
    query_heads: int
    key_heads: int
    dim_key: int
    elsewhere: int = 0
