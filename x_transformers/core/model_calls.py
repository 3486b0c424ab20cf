"""Per-call state of a model: prefix tokens, their masks, and the token order of left-padded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from x_transformers.cache import Cache, LayerIntermediates, cache_of
from x_transformers.core.aux_losses import AddsLosses, AuxLosses, gathering
from x_transformers.core.buffers import CachedState
from x_transformers.core.checks import (
    as_mask,
    can_read_values,
    check_device,
    check_given,
    check_lengths,
    check_model_inputs,
    check_range,
    check_tensor,
    extend_mask,
    parts_kept,
    prepend_positions,
    zero_masked,
)
from x_transformers.core.own_modules import is_of_others, known_stack, overrides_forward, reads_whole, refuse_own_stack
from x_transformers.core.state import HasStates
from x_transformers.flags import Remembered, warn_once
from x_transformers.flags.checks import Maybe

if TYPE_CHECKING:
    from x_transformers.x_transformers import Wrapper as Model


@dataclass
class OutputRequest:
    """Outputs that the caller of a model requests besides the main one.

    `trace` is True if intermediates are returned, `mems_alone` if memories are, but no attention maps. `keeps` is
    'past' if of the intermediates only the cache is requested, 'all' for more, and None for nothing.

    Raises:
        ValueError: Memories and maps are both requested, which only the intermediates hold.
    """

    intermediates: bool | str
    mems: bool
    maps: bool
    detach_mems: bool = True
    entropies: bool = False
    z_loss: bool = False
    z_loss_weight: float | None = None

    def __post_init__(self) -> None:
        self.all_intermediates = bool(self.intermediates or self.entropies or self.z_loss)
        self.mems_alone = self.mems and not (self.all_intermediates or self.maps)
        more = self.entropies or self.z_loss or self.mems or self.maps
        self.keeps = 'all' if more else parts_kept(self.intermediates)
        if self.mems and self.maps and not self.all_intermediates:
            raise ValueError('`return_mems` and `return_attn` were both given, set `return_intermediates` for both')


@dataclass
class ModelCall(AddsLosses, HasStates):
    """One pass through a model: what is new, what stands in front of it, and the masks.

    The sequence is `num_prefix_tokens` tokens (memory, class, prepended), then `tokens` tokens, the last `new_len` of
    them new. `continues` says that the leading tokens are in the cache already. `spread`, if set, turns a mask of the
    sequence into one of a longer sequence that the stack sees. In rows with padding on the left, of `left_pad` tokens,
    the stack sees the leading tokens behind the padding, next to the first real token. `input_len` tokens came with the
    call, `offset` were processed before; `prefix_parts` lists the leading tokens as (count, mask), of which
    `num_removed` were taken off again. `features` are the features that act in this call, `token_mask` is the mask that
    the caller gave, of tokens alone. `ids` is what the caller gave, if modules of others embed it: it may have further
    axes, such as those of codebooks. `keeps` says what the trace holds of what the layers leave behind, as in
    `StackCall`, `maps_apart` that nobody reads the attention maps, `hides` that a mask or padding on the left hides
    tokens, `returns_readout` that the caller wants a `Readout` in place of logits.
    """

    old_names: ClassVar[dict[str, str]] = {
        'before_padding': 'move_before_padding',
        'behind_padding': 'move_after_padding',
        'front': 'prefix_parts',
        'given': 'input_len',
        'leading': 'num_prefix_tokens',
        'new': 'new_len',
        'on': 'features',
        'only_new': 'select_new',
        'own': 'ctx',
        'put_in_front': 'prepend_tokens',
        'shown': 'token_mask',
        'take_off': 'remove_prefix',
        'tokens_mask': 'make_token_mask',
        'trace': 'intermediates',
        'with_front': 'prepend_positions',
    }

    intermediates: LayerIntermediates
    inputs: dict[str, Any]
    cache: Maybe[Cache]
    tokens: int
    input_len: int
    new_len: int
    offset: int | Tensor
    like_tokens: Maybe[Tensor] = None
    ids: Any = None
    before: Maybe[Tensor] = None
    token_mask: Maybe[Tensor] = None
    mask: Maybe[Tensor] = None
    num_prefix_tokens: int = 0
    num_removed: int = 0
    prefix_parts: list[tuple[int, Tensor | None]] = field(default_factory=list)
    spread: Maybe[Callable[..., Tensor]] = None
    keeps: str | None = None
    maps_apart: bool = False
    continues: bool = False
    hides: bool = False
    returns_readout: bool = False
    losses: AuxLosses = field(default_factory=lambda: AuxLosses(joins=True))
    features: Any = None
    new_states: dict[str, CachedState] = field(default_factory=dict)

    @classmethod
    def from_intermediates(cls, intermediates: LayerIntermediates, features: Any) -> ModelCall:
        """Make a call that stands for several calls which read one segment, from their intermediates."""
        tokens = intermediates.hiddens[0].shape[1] if intermediates.hiddens else 0
        return cls(
            intermediates,
            {},
            None,
            tokens,
            tokens,
            tokens,
            0,
            features=features,
            new_states=dict(intermediates.model_states),
        )

    def extend_inputs(self, model: Model, kwargs: dict[str, Any], token_mask: Tensor | None) -> dict[str, Any]:
        """Extend positions, key masks and prefix lengths by entries for the prefix tokens."""
        pos, kv_mask = self.inputs.get('pos'), kwargs.get('self_attn_kv_mask')
        moves = self.num_prefix_tokens and self.inputs.get('seq_start_pos') is not None
        if moves and kwargs.get('attn_mask') is not None:
            raise ValueError(
                '`attn_mask` cannot be combined with `seq_start_pos` and prefix tokens: they move behind the padding'
            )
        fits = torch.is_tensor(pos) and pos.shape[-1] == self.tokens
        if not fits and is_of_others(getattr(model, 'pos_emb', None)):
            pos = None  # it is for the user's module alone
        if pos is not None and not pos.is_floating_point():
            kwargs = {**kwargs, 'pos': self.prepend_positions(pos, token_mask)}
        if kwargs.get('prefix_attn_len') is not None and self.num_prefix_tokens:
            kwargs = {**kwargs, 'prefix_attn_len': kwargs['prefix_attn_len'] + self.num_prefix_tokens}
        if kv_mask is not None and self.num_prefix_tokens:
            if check_tensor(kv_mask, 'self_attn_kv_mask').ndim == 2 and kv_mask.shape[1] == self.tokens:
                kv_mask = F.pad(kv_mask, (self.num_prefix_tokens, 0), value=True)
            kwargs = {**kwargs, 'self_attn_kv_mask': self.move_after_padding(kv_mask)}
        return kwargs

    @property
    def declared(self) -> Mapping[str, Remembered]:
        return self.features.states

    @property
    def old_states(self) -> Mapping[str, CachedState] | None:
        return None if self.cache is None else self.cache.model_states

    @property
    def count(self) -> int:
        return self.new_len

    @property
    def num_prepended(self) -> int:
        """Return the number of `prepend_embeds` among the tokens of this call."""
        embeds = None if self.continues else self.inputs.get('prepend_embeds')
        return 0 if embeds is None else embeds.shape[1]

    def add_loss(self, name: str, value: Tensor) -> None:
        if any(one is self.losses for one in gathering.open):
            return super().add_loss(name, value)
        with self.losses:
            return super().add_loss(name, value)

    add_loss.__doc__ = AddsLosses.add_loss.__doc__

    def check_inputs(self, model: Model, mems: Any, kwargs: dict[str, Any], keeps: str | None) -> None:
        """Check the inputs of the stack, the cache and the memories, before anything is computed."""
        check_model_inputs(model, known_stack(model.attn_layers), kwargs)
        self.check_past(model, mems)
        start = self.inputs.get('seq_start_pos')
        if start is not None and self.cache is None and not keeps:
            check_range(start, 'seq_start_pos', 0, self.tokens, 'numbers')

    def check_past(self, model: Model, mems: Any) -> None:
        """Refuse a cache or memories that the stack cannot use, and warn where segments count positions from 0."""
        given = isinstance(mems, (list, tuple)) and any(mem is not None for mem in mems)
        if self.cache is not None or given:
            refuse_own_stack(model.attn_layers, 'mems' if self.cache is None else 'cache', 'it keeps no past')
        if given and model.has_absolute_positions and self.inputs.get('pos') is None:
            warn_once(
                '`mems` with absolute positions: every segment starts at position 0, unless `pos` is passed. Relative '
                'positions (rotary, T5, ALiBi) do not need it'
            )

    def check_front(self, model: Model) -> None:
        """Refuse a cache that was made with other tokens in front of the sequence."""
        leading = self.cache.num_prefix_tokens
        if not model.can_cache_kv:
            raise ValueError('`cache` was given, but this model cannot be cached: its output depends on later tokens')
        if self.continues and self.num_prefix_tokens and self.num_prefix_tokens != leading:
            raise ValueError(
                f'the cache was made with {leading} tokens in front of the sequence, now there are '
                f'{self.num_prefix_tokens}'
            )
        if self.continues and not self.prefix_parts and leading:
            self.prefix_parts, self.num_prefix_tokens = [(leading, None)], leading

    def with_values(self, **values: Any) -> ModelCall:
        """Copy this call with other values."""
        return ModelCall(**{**{name: getattr(self, name) for name in OF_CALLS}, **values})

    def embed_tokens(self, model: Model, tokens: Any, embed: Callable[[Any], Tensor]) -> Tensor:
        """Embed the new ones of the `tokens`, (b, n, ...) or a dict of these."""
        return embed(tokens) if self.input_len == self.new_len else self.embed_new(model, tokens, embed)

    def embed_new(self, model: Model, tokens: Any, embed: Callable[[Any], Tensor]) -> Tensor:
        """Embed the new tokens of a call that was given cached ones too.

        Modules of others are handed all that was given, and may know nothing of a cache; the last of what they give is
        kept. A stack whose `forward` is a user's gets the embeddings of those `before` too, and cuts them off itself.
        """
        given, new, offset = self.input_len, self.new_len, self.offset
        if not reads_whole(model):
            return embed(tree_map_only(Tensor, lambda t: t[:, t.shape[1] - new :], tokens))
        self.new_len, self.offset = given, offset - (given - new)
        x = embed(tokens)
        self.new_len, self.offset = new, offset
        self.like_tokens = self.like_tokens[:, given - new :]
        if self.intermediates.initial_embeds is not None:
            self.intermediates.initial_embeds = self.intermediates.initial_embeds[:, given - new :]
        before, x = x.tensor_split([x.shape[1] - new], dim=1)
        self.before = before if overrides_forward(model.attn_layers) and not self.cache.num_prefix_tokens else None
        return x

    def prepend_tokens(self, tokens: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Put tokens (m d) or (b m d) in front of `x`, unless they are in the cache already."""
        self.prefix_parts.insert(0, (tokens.shape[-2], mask))
        self.num_prefix_tokens += tokens.shape[-2]
        return x if self.continues else torch.cat((tokens.expand(x.shape[0], -1, -1), x), dim=1)

    def remove_prefix(self, x: Tensor, count: int, behind: int) -> tuple[Tensor, Tensor]:
        """Split off the prefix tokens that were added when there were `behind` others, and return them and the rest."""
        start = self.num_prefix_tokens - behind - count - self.num_removed
        self.num_removed += count
        rest = x[:, start + count :]
        return x[:, start : start + count], rest if start == 0 else torch.cat((x[:, :start], rest), dim=1)

    def select_new(self, t: Tensor, name: str) -> Tensor:
        """Select the new tokens of a per-token input, (n, ...) or (b, n, ...)."""
        axis = 0 if t.ndim == 1 or (t.ndim == 2 and t.is_floating_point()) else 1
        if t.shape[axis] == self.new_len or (t.shape[axis] == 1 and t.ndim == 3):
            return t
        if t.shape[axis] in (self.input_len, self.tokens):
            return t.narrow(axis, t.shape[axis] - self.new_len, self.new_len)
        raise ValueError(f'`{name}` must have {self.input_len} tokens, got {t.shape[axis]}')

    def zero_hidden_tokens(self, t: Tensor) -> Tensor:
        """Return per-token inputs of the new tokens, (b, n, d), finite where masks or left padding hide them."""
        token_mask, start = self.token_mask, self.inputs.get('seq_start_pos')
        if token_mask is not None and (
            token_mask.ndim != 2 or token_mask.shape[1] < self.new_len or token_mask.shape[0] != t.shape[0]
        ):
            return t  # which is refused below
        if start is not None:
            begun = torch.arange(self.tokens - self.new_len, self.tokens, device=t.device) >= start.unsqueeze(-1)
            token_mask = (
                begun if token_mask is None else begun & token_mask[:, token_mask.shape[1] - self.new_len :].bool()
            )
        return zero_masked(t, token_mask)

    def make_token_mask(self, x: Tensor) -> Tensor | None:
        """Return which of the last tokens, as many as `x` has, are real (b n); None for all."""
        token_mask, start = self.mask, self.inputs.get('seq_start_pos')
        if token_mask is None and start is None:
            return None
        place = torch.arange(-x.shape[1], 0, device=x.device) + self.tokens  # below 0 for tokens in front
        token_mask = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            if token_mask is None
            else token_mask[:, -x.shape[1] :]
        )
        return token_mask if start is None else token_mask & ((place < 0) | (place >= start.unsqueeze(-1)))

    def make_known_mask(self) -> Tensor | None:
        """Return which of the cached tokens are real, (b held), if only they were given a mask."""
        given = self.token_mask
        if not self.num_prefix_tokens and given is not None and given.ndim == 2 and given.shape[1] == self.tokens:
            return None  # rows of the cache may have been exchanged by hand since
        token_mask: Any = None if self.cache is None else self.cache.model_states.get('real')
        return None if token_mask is None else token_mask.tensor.squeeze(-1)

    def select_key_mask(self, mask: Tensor | None) -> Tensor | None:
        """Return the mask of all tokens in the stack's order. Cached tokens keep theirs."""
        known = self.make_known_mask()
        if known is None and self.mask is not None and self.spread is not None:
            return self.spread(self.mask)
        if known is None:
            return None if self.mask is None else self.move_after_padding(self.mask)
        new = known.new_ones(known.shape[0], self.new_len) if mask is None else mask[:, -self.new_len :].bool()
        return torch.cat((known, new), dim=1)

    @property
    def left_pad(self) -> Tensor | None:
        """Return how much padding each row has before its leading tokens, where that changes the order."""
        return self.inputs.get('seq_start_pos') if self.num_prefix_tokens else None

    def move_after_padding(self, t: Tensor) -> Tensor:
        """Move the prefix tokens of a sequence, (b, n, ...), after its left padding, as in the stack."""
        if self.left_pad is None:
            return t
        if can_read_values(self.left_pad) and int(self.left_pad.max()) > self.tokens:
            raise ValueError(
                f'`seq_start_pos` got {int(self.left_pad.max())}, more than the {self.tokens} tokens of the first '
                'call: '
                f'tokens in front stand behind the whole padding'
            )
        place, start = torch.arange(t.shape[1], device=t.device), self.left_pad.unsqueeze(-1)
        moved = torch.where(place < start, place + self.num_prefix_tokens, place - start)
        return select_sequences(t, torch.where(place < start + self.num_prefix_tokens, moved, place))

    def prepend_positions(self, pos: Tensor, token_mask: Tensor | None) -> Tensor:
        """Prepend the positions of the prefix to those of the tokens, (n,), (b, n) or (b, h, n), in the stack's order.

        The prefix comes right before the first real token of each sequence. `token_mask` is the mask of all tokens.
        """
        if self.left_pad is None:
            return prepend_positions(
                pos, self.num_prefix_tokens, None if token_mask is None else token_mask[:, -pos.shape[-1] :]
            )
        if pos.ndim == 3:
            raise ValueError('`pos` per head, (b, h, n), cannot be combined with padding before prefix tokens')
        start = self.left_pad.unsqueeze(-1)
        begun = torch.arange(pos.shape[-1], device=pos.device) >= start
        return self.move_after_padding(prepend_positions(pos.expand(start.shape[0], -1), self.num_prefix_tokens, begun))

    def move_before_padding(self, t: Tensor) -> Tensor:
        """Undo `move_after_padding`."""
        if self.left_pad is None:
            return t
        place, start = torch.arange(t.shape[1], device=t.device), self.left_pad.unsqueeze(-1)
        moved = torch.where(place < self.num_prefix_tokens, place + start, place - self.num_prefix_tokens)
        return select_sequences(t, torch.where(place < start + self.num_prefix_tokens, moved, place))

    def make_full_mask(self, mask: Tensor | None, batch: int, device: torch.device) -> Tensor | None:
        """Return the mask of all tokens including the prefix, or None if nothing is hidden."""
        if mask is None and not self.prefix_parts:
            return None
        masks = [m for _, m in self.prefix_parts] + [mask]
        if all(m is None for m in masks):
            return None
        if (
            mask is not None
            and mask.ndim == 2
            and mask.shape == (batch, self.new_len)
            and self.make_known_mask() is not None
        ):
            mask = masks[-1] = F.pad(mask, (self.tokens - self.new_len, 0), value=True)
        elif self.cache is not None:
            mask = masks[-1] = extend_mask(mask, 'mask', batch, self.new_len, self.tokens - self.new_len)
        if mask is not None and mask.ndim == 2 and mask.shape[1] != self.tokens:
            raise ValueError(
                f'`mask` must have shape ({batch}, {self.tokens}), one entry per token, got {tuple(mask.shape)}'
            )
        counts = [count for count, _ in self.prefix_parts] + [self.tokens]
        known = [
            torch.ones(batch, c, dtype=torch.bool, device=device) if m is None else m
            for c, m in zip(counts, masks, strict=True)
        ]
        names = ['prepend_mask'] * len(self.prefix_parts) + ['mask']
        return torch.cat([as_mask(m, name, batch, c) for m, name, c in zip(known, names, counts, strict=True)], dim=1)


OF_CALLS = tuple(one.name for one in fields(ModelCall))


def select_sequences(t: Tensor, order: Tensor) -> Tensor:
    """Reorder the tokens of each sequence of `t`, (b, n, ...), by `order`, (b, n)."""
    return t[torch.arange(t.shape[0], device=t.device).unsqueeze(-1), order]


def make_model_call(
    model: Model, inputs: dict[str, Any], given: int, cache: Cache | None, only_new: bool, batch: int | None = None
) -> ModelCall:
    """Settle which of the `given` tokens are new: those beyond the cached; the last, if too few; all, if `only_new`."""
    for name, value in inputs.items():
        if value is not None and not (name == 'pos' and is_of_others(getattr(model, 'pos_emb', None))):
            check_given({name: value}, model.features)
    if inputs.get('seq_start_pos') is not None and batch is not None:
        check_lengths(inputs['seq_start_pos'], 'seq_start_pos', batch)
    of_model: dict[str, Any] = dict(training=model.training, features=model.features.active_for(inputs))
    if cache is None:
        return ModelCall(LayerIntermediates(), inputs, None, given, given, given, 0, **of_model)
    return _call_with_cache(inputs, given, cache, only_new, of_model)


def _call_with_cache(
    inputs: dict[str, Any], given: int, cache: Cache, only_new: bool, of_model: dict[str, Any]
) -> ModelCall:
    """Return the call of a model beside a cache."""
    held = cache.length - cache.num_prefix_tokens
    sizes = (given, given, given - held, held)
    if only_new or given <= held:
        new = given if only_new else min(given, 1)
        sizes = (held + new, given, new, cache.num_seen_tokens - cache.num_prefix_tokens)
    return ModelCall(LayerIntermediates(), inputs, cache, *sizes, continues=cache.length > 0, **of_model)


def open_model(
    model: Model, x: Tensor, mask: Tensor | None, cache: Any, only_new: bool, kwargs: dict[str, Any]
) -> ModelCall:
    """Open the call of a model with tokens `x`, (b, n, ...). The inputs of its features are removed from `kwargs`."""
    inputs: dict[str, Any] = {'seq_start_pos': kwargs.get('seq_start_pos')}
    for name in model.features.call_inputs.intersection(kwargs):
        inputs[name] = kwargs.pop(name)
    cache = None if cache is None else cache_of(cache)
    call = make_model_call(model, inputs, x.shape[1], cache, only_new, x.shape[0])
    if mask is not None:
        check_device(check_tensor(mask, 'mask'), 'mask', x)
    call.token_mask, call.hides = mask, mask is not None or inputs['seq_start_pos'] is not None
    return call
