"""`Intermediates` of an attention layer: attention maps, values, and keys for the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from x_transformers.core.aux_losses import IgnoredLosses
from x_transformers.core.buffers import CachedState, KeysValues
from x_transformers.core.state import RecurrentValue


def log_prob_from_hard_attend(intermeds: Intermediates) -> Tensor:
    """The log probability, under the softmax, of the key that each query chose:  b h i."""
    chosen = intermeds.post_softmax_attn.argmax(dim=-1, keepdim=True)
    return intermeds.pre_softmax_attn.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)


class MissingMaps:
    """Stands for the maps of a call that has none, and says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self) -> Any:
        raise ValueError(self.reason)


@dataclass(init=False, repr=False, eq=False)
class Intermediates:
    """Intermediates of one attention call.

    The maps are computed when they are first read, from the queries and keys that were kept, so that asking for the
    cache costs nothing.

        qk_similarities     b h i j    scaled similarities, before biases and masks
        pre_softmax_attn    b h i j    the logits that enter the softmax; hidden ones hold the lowest finite number
        post_softmax_attn   b h i j    the weights, before dropout
        values              b k j d    values as projected
        cached_kv           (b k n d, b k n d)    keys (not yet rotated) and values of all tokens so far
        hybrid_hidden       what a recurrent module beside attention left
        layer_type          'a' or 'c', and the index of the layer in its stack, `layer_index`

    The fields are those of the original. Their properties follow the class, where they are no defaults.
    """

    qk_similarities: Any  # a tensor or None; the properties behind the class are what is found there
    pre_softmax_attn: Any
    post_softmax_attn: Any
    values: Tensor | None
    cached_kv: Any
    layer_type: str | None
    hybrid_hidden: Any
    log_probs: Tensor | None

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
        self.compute_maps, self.assigned = compute_maps, frozenset()
        self.maps: list[Any] = [qk_similarities, pre_softmax_attn, post_softmax_attn]
        self.values, self.layer_type = values, layer_type
        self.layer_index: int | None = None
        self.log_probs, self.loose = log_probs, {}
        self.past = None if cached_kv is None else KeysValues.of(cached_kv)
        if hybrid_hidden is not None:
            self.hybrid_hidden = hybrid_hidden

    def map(self, index: int) -> Tensor | None:
        if self.maps[index] is None and self.compute_maps is not None and index not in self.assigned:
            with IgnoredLosses():
                computed = self.compute_maps()
            kept = [known is not None or at in self.assigned for at, known in enumerate(self.maps)]
            self.maps = [known if keep else new for known, new, keep in zip(self.maps, computed, kept, strict=True)]
            self.compute_maps = None
        return self.maps[index]

    def set_map(self, index: int, value: Tensor | None) -> None:
        self.maps = [value if i == index else map for i, map in enumerate(self.maps)]
        self.assigned |= {index}

    @property
    def states(self) -> dict[str, CachedState]:
        """Return the states of features by name, other than keys and values."""
        return self.loose if self.past is None else self.past.states

    def get_hybrid_hidden(self) -> Any:
        state: Any = self.states.get('hybrid_hidden')
        return None if state is None else state.value

    def set_hybrid_hidden(self, value: Any) -> None:
        length = 0 if self.past is None else self.past.length
        own = {} if value is None else {'hybrid_hidden': RecurrentValue(value, length, batch_first=False)}
        states = {name: state for name, state in self.states.items() if name != 'hybrid_hidden'} | own
        if self.past is None:
            self.loose = states
        else:  # others may hold the same past
            self.past = KeysValues(self.past.buffers, states, self.past.changed_by)

    def get_cached_kv(self) -> Any:
        if self.past is None:
            return None
        self.past = self.past.plain()  # kept so, since what is read here may be edited in place
        return self.past.pair

    def set_cached_kv(self, pair: tuple[Tensor, Tensor] | None) -> None:
        states = {} if self.past is None else self.past.plain().states
        old, self.past = self.past, KeysValues.of(pair)
        if old is not None and self.past is not None and old.num_evicted and old.buffers[0].length == self.past.length:
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
        if isinstance(self.compute_maps, MissingMaps):
            return self.__dict__ | {'maps': [*self.maps]}
        maps = [self.map(index) for index in range(len(self.maps))]
        maps = [t if t is None or t.is_leaf else t.detach() for t in maps]  # a graph cannot be copied
        return self.__dict__ | {'maps': maps, 'compute_maps': None}

    def to_tuple(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.qk_similarities, self.pre_softmax_attn, self.post_softmax_attn


# Of map 0, 1 and 2. In the class they would be the defaults of its fields.
Intermediates.qk_similarities = property(lambda self: self.map(0), lambda self, value: self.set_map(0, value))
Intermediates.pre_softmax_attn = property(lambda self: self.map(1), lambda self, value: self.set_map(1, value))
Intermediates.post_softmax_attn = property(lambda self: self.map(2), lambda self, value: self.set_map(2, value))
Intermediates.cached_kv = property(Intermediates.get_cached_kv, Intermediates.set_cached_kv)
Intermediates.hybrid_hidden = property(Intermediates.get_hybrid_hidden, Intermediates.set_hybrid_hidden)
