"""What a model around a stack says of itself to those who generate with it: whether it can be cached, and how far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from x_transformers.cache import Cache
from x_transformers.core.own_modules import has_own_forward, known_stack, reads_whole
from x_transformers.features.positions import no_positions
from x_transformers.flags import Features


class overridable:
    """A property that may be assigned on an instance, as the plain attributes of the original are."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.function(instance)


class Abilities:
    """Derived from the features of a model and its stack, whichever stack that is now."""

    attn_layers: Any
    features: Features
    pos_emb: Any
    num_memory_tokens: int

    @overridable
    def has_memory_tokens(self) -> bool:
        return self.num_memory_tokens > 0

    @overridable
    def can_cache_kv(self) -> bool:
        stack = known_stack(self.attn_layers)
        if not (stack.causal and stack.can_cache_kv):
            return False
        return not [f for f in self.features.active if 'cache' in f.refuses and f.reason('cache')]

    @overridable
    def can_cache_kv_in_training(self) -> bool:
        return self.can_cache_kv and known_stack(self.attn_layers).can_cache_kv_in_training

    @overridable
    def can_cache_kv_outside_max_seq_len(self) -> bool:
        of_stack = known_stack(self.attn_layers).features.active
        return not (self.has_absolute_positions or any(feature.from_first for feature in of_stack))

    @overridable
    def has_absolute_positions(self) -> bool:
        """Whether positions begin anew in every segment, unless the caller says where it stands."""
        if self.pos_emb is not None and self.pos_emb is not no_positions:
            return True
        of_stack = any(feature.begins_anew for feature in known_stack(self.attn_layers).features.active)
        return of_stack or any(feature.bounded for feature in self.features.active)

    @overridable
    def follows_length(self) -> bool:
        """Whether what a token becomes depends on how many are read with it."""
        return any(feature.follows_length for feature in known_stack(self.attn_layers).features.active)

    @overridable
    def has_multiple_heads(self) -> bool:
        return getattr(self, 'num_output_heads', 1) > 1

    @overridable
    def train_max_looped_steps(self) -> int:
        """How often a looped model runs its stack in training."""
        return getattr(self, 'max_looped_steps', 1)

    def starts_over(self, cache: Cache, count: int, pads: Tensor | None = None) -> bool:
        """Whether tokens of a cache must be read again, once there are `count` more; rows begin with `pads` (b)."""
        of_stack = known_stack(self.attn_layers).features.active
        return any(f.starts_over is not None and f.starts_over(cache, count, pads) for f in of_stack)

    @overridable
    def reads_whole(self) -> bool:
        """Whether tokens must be read together with those before them, as modules of others may need."""
        return has_own_forward(self) or reads_whole(self)

    @overridable
    def can_pad_left(self) -> bool:
        """Whether rows may have padding on the left, `seq_start_pos`."""
        return not any(feature.reason('left padding') for feature in self.features.active)
