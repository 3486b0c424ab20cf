"""What a call of an attention layer leaves behind: maps, values, keys for the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.aux_losses import Unheard
from x_transformers.core.buffers import KeysValues, State
from x_transformers.core.state import Sum

UNREAD: ContextVar[bool] = ContextVar('unread', default=False)


@contextmanager
def cache_alone() -> Iterator[None]:
    """Passes inside keep what a cache needs alone, for callers who know that nobody reads maps and hidden states."""
    token = UNREAD.set(True)
    try:
        yield
    finally:
        UNREAD.reset(token)


def is_read() -> bool:
    """Whether somebody may read what a pass leaves behind beside its cache."""
    return torch.compiler.is_compiling() or not UNREAD.get()


def log_prob_from_hard_attend(intermeds: Intermediates) -> Tensor:
    """The log probability, under the softmax, of the key that each query chose:  b h i."""
    chosen = intermeds.post_softmax_attn.argmax(dim=-1, keepdim=True)
    return intermeds.pre_softmax_attn.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)


class NoMaps:
    """Stands for the maps of a call that has none, and says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self) -> Any:
        raise ValueError(self.reason)


class Intermediates:
    """What one attention call leaves behind.

    The maps are computed when they are first read, from the queries and keys that were kept, so that asking for the
    cache costs nothing.

        qk_similarities     b h i j    scaled similarities, before biases and masks
        pre_softmax_attn    b h i j    the logits that enter the softmax; hidden ones hold the lowest finite number
        post_softmax_attn   b h i j    the weights, before dropout
        values              b k j d    values as projected
        cached_kv           (b k n d, b k n d)    keys (not yet rotated) and values of all tokens so far
        hybrid_hidden       what a recurrent module beside attention left
        layer_type          'a' or 'c', and the index of the layer in its stack, `layer_index`
    """

    def __init__(
        self,
        qk_similarities: Tensor | None = None,
        pre_softmax_attn: Tensor | None = None,
        post_softmax_attn: Tensor | None = None,
        values: Tensor | None = None,
        cached_kv: tuple[Tensor, Tensor] | KeysValues | None = None,
        layer_type: str | None = None,
        hybrid_hidden: Any = None,
        log_probs: Tensor | None = None,
        *,
        compute_maps: Callable[[], tuple[Tensor, Tensor, Tensor]] | None = None,
    ) -> None:
        self.compute_maps = compute_maps
        self.maps = [qk_similarities, pre_softmax_attn, post_softmax_attn]
        self.values, self.layer_type, self.layer_index = values, layer_type, None
        self.log_probs, self.loose = log_probs, {}
        self.past = KeysValues.of(cached_kv)
        if hybrid_hidden is not None:
            self.hybrid_hidden = hybrid_hidden

    def map(self, index: int) -> Tensor | None:
        if self.maps[index] is None and self.compute_maps is not None:
            with Unheard():
                computed = self.compute_maps()
            self.maps = [edited if edited is not None else map for edited, map in zip(self.maps, computed, strict=True)]
            self.compute_maps = None
        return self.maps[index]

    def set_map(self, index: int, value: Tensor | None) -> None:
        self.maps = [value if i == index else map for i, map in enumerate(self.maps)]

    qk_similarities = property(lambda self: self.map(0), lambda self, value: self.set_map(0, value))
    pre_softmax_attn = property(lambda self: self.map(1), lambda self, value: self.set_map(1, value))
    post_softmax_attn = property(lambda self: self.map(2), lambda self, value: self.set_map(2, value))

    @property
    def states(self) -> dict[str, State]:
        """What features remember, by name: beside keys and values, or where these are not kept."""
        return self.loose if self.past is None else self.past.states

    @property
    def hybrid_hidden(self) -> Any:
        state = self.states.get('hybrid_hidden')
        return None if state is None else state.value

    @hybrid_hidden.setter
    def hybrid_hidden(self, value: Any) -> None:
        length = 0 if self.past is None else self.past.length
        own = {} if value is None else {'hybrid_hidden': Sum(value, length, batch_first=False)}
        states = {name: state for name, state in self.states.items() if name != 'hybrid_hidden'} | own
        if self.past is None:
            self.loose = states
        else:  # others may hold the same past
            self.past = KeysValues(self.past.buffers, states, self.past.changed_by)

    @property
    def cached_kv(self) -> tuple[Tensor, Tensor] | None:
        if self.past is None:
            return None
        self.past = self.past.plain()  # kept so, since what is read here may be edited in place
        return self.past.pair

    @cached_kv.setter
    def cached_kv(self, pair: tuple[Tensor, Tensor] | None) -> None:
        states = {} if self.past is None else self.past.plain().states
        old, self.past = self.past, KeysValues.of(pair)
        if old is not None and self.past is not None and old.gone and old.buffers[0].length == self.past.length:
            both = zip(old.buffers, self.past.buffers, strict=True)
            self.past = KeysValues(tuple(None if new is None else own.like(new.tensor) for own, new in both))
        if self.past is not None:  # of another length, they no longer fit, and the layer says so when it needs them
            self.past.states = {n: state for n, state in states.items() if state.length == self.past.length}

    def __copy__(self) -> Intermediates:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: the maps themselves, since what computes them holds the layer."""
        if isinstance(self.compute_maps, NoMaps):
            return self.__dict__ | {'maps': [*self.maps]}
        known = self.maps
        self.map(0)
        maps = known if self.maps is known else [None if t is None else t.detach() for t in self.maps]
        return self.__dict__ | {'maps': [*maps], 'compute_maps': None}

    def to_tuple(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.qk_similarities, self.pre_softmax_attn, self.post_softmax_attn
