"""Abilities of a model around a stack that generation depends on: whether it can be cached, and how far."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core.branches import check_memories_allowed
from x_transformers.core.checks import check_list
from x_transformers.core.model_calls import ModelCall, OutputRequest
from x_transformers.core.own_modules import has_own_forward, known_stack, reads_whole, refuse_own_stack
from x_transformers.features.derived import ModuleMixin
from x_transformers.features.positions import no_positions
from x_transformers.flags import ConfigError
from x_transformers.flags.checks import Maybe
from x_transformers.training.losses import attn_z_loss, each_head, entropy


class overridable:
    """A property that may be assigned on an instance, as the plain attributes of the original are."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.function(instance)


class Abilities(ModuleMixin):
    """Abilities that follow from the features of a model and its stack, whichever stack that is now."""

    attn_layers: Any

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
        return not (self.has_absolute_positions or any(feature.counts_from == 'call' for feature in of_stack))

    @overridable
    def has_absolute_positions(self) -> bool:
        """Return True if positions begin anew in every segment, unless the caller says where it stands."""
        if self.pos_emb is not None and self.pos_emb is not no_positions:
            return True
        features = (*known_stack(self.attn_layers).features.active, *self.features.active)
        return any(feature.counts_from == 'segment' for feature in features)

    @overridable
    def follows_length(self) -> bool:
        """Return True if what a token becomes depends on how many are read with it."""
        return any(feature.follows_length for feature in known_stack(self.attn_layers).features.active)

    @overridable
    def has_multiple_heads(self) -> bool:
        return getattr(self, 'num_output_heads', 1) > 1

    @overridable
    def train_max_looped_steps(self) -> int:
        """Return how often a looped model runs its stack in training."""
        return getattr(self, 'max_looped_steps', 1)

    def starts_over(self, cache: Cache, count: int, pads: Tensor | None = None) -> bool:
        """Return True if tokens of a cache must be read again, after `count` more; rows begin with `pads` (b)."""
        of_stack = known_stack(self.attn_layers).features.active
        return any(f.starts_over is not None and f.starts_over(cache, count, pads) for f in of_stack)

    @overridable
    def reads_whole(self) -> bool:
        """Return True if tokens must be read together with those before them, as modules of others may need."""
        return has_own_forward(self) or reads_whole(self)

    @overridable
    def can_pad_left(self) -> bool:
        """Return True if rows may have padding on the left, `seq_start_pos`."""
        return not any(feature.reason('left padding') for feature in self.features.active)

    def check_no_stack_flags(self, flags: Mapping[str, Any]) -> None:
        """Raise ConfigError for a keyword of the model that belongs to its stack."""
        for name in flags:
            if name in known_stack(self.attn_layers).accepted() and name not in self.accepted():
                kind = type(self.attn_layers).__name__
                raise ConfigError(
                    f'unknown keyword `{name}` of {type(self).__name__}: it belongs to the stack, {kind}({name}=...)'
                )


class GivesOutputs(ModuleMixin):
    """Mixin of a model that returns memories, maps, entropies and losses besides its main output."""

    def shifted(self, mems: Maybe[Sequence[Tensor | None]]) -> Sequence[Tensor | None] | None:
        """Return memories in the order of the layers that read them, `shift_mem_down` below those that left them."""
        return [*mems[self.shift_mem_down :], *mems[: self.shift_mem_down]] if check_list(mems, 'mems') else mems

    def new_mems(
        self, trace: LayerIntermediates, mems: Sequence[Tensor | None] | None, detach: bool, call: Any = None
    ) -> list[Tensor]:
        """Return the memories for the next segment: the last `max_mem_len` hidden states of each self-attention, or as
        a feature chooses. Without a `call` the segment was read in several."""
        refuse_own_stack(self.attn_layers, 'return_mems', 'which of its hidden states are memories is not known')
        check_memories_allowed('max_mem_len', known_stack(self.attn_layers).layer_types if self.max_mem_len else ())
        call = call or ModelCall.from_intermediates(trace, self.features)
        kept = self.features.select('update_memories', self.last_hiddens)(mems, trace.hiddens, call)
        return tree_map_only(Tensor, Tensor.detach, kept) if detach else kept

    def last_hiddens(self, mems: Sequence[Tensor | None] | None, hiddens: list[Tensor], call: Any) -> list[Tensor]:
        if mems:
            pairs = itertools.zip_longest(mems[: len(hiddens)], hiddens)
            hiddens = [new if old is None else torch.cat((old, new), dim=1) for old, new in pairs]
        return [t[:, max(t.shape[1] - self.max_mem_len, 0) :] for t in hiddens]

    def returned(self, out: Any, request: OutputRequest, call: ModelCall, mems: Any, logits: Any, x: Tensor) -> Any:
        """Return the output, with what was asked for: of `mems` before, the logits, and hidden states `x`."""
        trace = call.intermediates
        if request.maps or request.z_loss:
            asked = 'return_attn' if request.maps else 'return_attn_z_loss'
            refuse_own_stack(self.attn_layers, asked, 'it gives no maps')
        if request.entropies:
            trace.logit_entropies = each_head(entropy, logits)
        if request.z_loss:
            weight = self.attn_z_loss_weight if request.z_loss_weight is None else request.z_loss_weight
            trace.attn_z_loss = attn_z_loss(trace, weight, x, call, known_stack(self.attn_layers))
        if request.mems:
            trace.mems = self.new_mems(trace, mems, request.detach_mems, call)
        for transform in call.features.model_output:
            out = transform(out, x, call)
        if request.all_intermediates:
            return out, trace
        if request.mems:
            return out, trace.mems
        return (out, [inter.post_softmax_attn for inter in trace.attn_intermediates]) if request.maps else out
