"""One new token for each of many sequences of unequal length, whose past stands in a pool of blocks."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor

from x_transformers.fast.plain_step import AttentionStep, PlainStep
from x_transformers.features.rotary import for_one_pass


class PagedPast:
    """Keys and values of one layer: what `AttentionStep` asks of a past."""

    def __init__(self, pool: Any, at: int, index: Tensor, heads: int) -> None:
        self.pool, self.names, self.index, self.heads = pool, (f'{at}.keys', f'{at}.values'), index, heads
        self.states: dict[str, Any] = {}

    def append(self, k: Tensor, v: Tensor) -> PagedPast:
        for name, rows in zip(self.names, (k, v), strict=True):
            self.pool.write(name, self.index[:, -1], rows)
        return self

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        k, v = (self.pool.read(name, self.index).unflatten(-1, (self.heads, -1)) for name in self.names)
        return k.transpose(1, 2), v.transpose(1, 2)


class PagedStep(PlainStep):
    """ids b, their places b, slots b n -> logits b l.

    Slots are those of each sequence, the new token's last; shorter ones have blank slots in front.
    """

    def __call__(self, ids: Tensor, places: Tensor, index: Tensor, pool: Any) -> Tensor:  # type: ignore[override]
        layers, norm, head = self.parts(len(ids))
        with torch.inference_mode():
            x = self.run(ids, places, index, pool, layers)
            x = x if norm is None else norm(x)
        out = self.read_out(x, head)
        return (out[0] if isinstance(out, tuple) else out).squeeze(1)

    def run(self, ids: Tensor, places: Tensor, index: Tensor, pool: Any, layers: list[Any]) -> Tensor:  # type: ignore[override]
        x, pasts = self.embed(ids.unsqueeze(-1), places), count()
        sets: dict[Any, Any] = {None: None}
        if self.rotary is not None:
            pool.write('positions', index[:, -1], places)
            for number, turns in enumerate(self.rotary.angles_of(places.unsqueeze(-1))[0]):
                pool.write(self.angles[number], index[:, -1], turns)
                sets[number] = for_one_pass(turns)
        bias = self.seen_by(index, pool, x)

        def attend(layer: AttentionStep, x: Tensor, y: Tensor) -> Tensor:
            at = next(pasts)
            past: Any = PagedPast(pool, at, index, layer.shape.kv_heads)
            return layer.continued(x, y, past, None, sets[self.turns[at]], bias)[0]

        return self.through(x, layers, attend)

    def seen_by(self, index: Tensor, pool: Any, x: Tensor) -> Tensor | None:
        """What is added to scores, or which keys are there:  b h 1 n, None for all. The last keys are the nearest."""
        ragged = bool((index[:, 0] == pool.blank).any())
        seen = (index != pool.blank)[:, None, None] if ragged else None
        if self.bias is None:
            return seen
        bias = self.bias(1, index.shape[1]).unsqueeze(0).to(x.dtype)
        return bias if seen is None else torch.where(seen, bias, -torch.inf)
