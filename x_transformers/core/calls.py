"""`Call`, the state of one call of an attention layer: keys, masks and biases, the past and the intermediates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core import rows as blocks
from x_transformers.core.aux_losses import AddsLosses
from x_transformers.core.buffers import CachedState, KeysValues
from x_transformers.core.checks import (
    as_mask,
    boolean_mask,
    check_device,
    check_digits,
    check_mask_covers,
    check_past,
    check_range,
    check_tensor,
    check_vectors,
    check_weight,
    extend_mask,
    input_width,
    zero_masked,
)
from x_transformers.core.intermediates import Intermediates
from x_transformers.core.modes import disable_autocast, is_exporting, is_transformed
from x_transformers.core.rows import BlockwiseCall, block_size, gather_along, split_queries, to_4d
from x_transformers.core.state import HasStates
from x_transformers.core.token_subset import check_no_subset
from x_transformers.core.window import AttentionWindow, select_window
from x_transformers.flags import Feature, Features, Remembered
from x_transformers.flags.checks import Maybe

Views = tuple[Tensor, Tensor, Tensor]


def check_attention_inputs(
    attn: Any, views: Views, token_idx: Tensor | None, context: Tensor | None, mask: Maybe[Tensor], cache: Any
) -> Tensor | None:
    """Return which queries of an attention layer are real, of all tokens or of those at `token_idx`; or a refusal."""
    x = views[0]
    check_vectors(x, 'x', 'b', 'n', input_width(x, attn.dim, attn.to_q))
    n = views[1].shape[1]
    check_weight(x, getattr(attn.to_q, 'weight', None))
    if context is not None:
        width = input_width(context, attn.dim_kv_in, attn.to_k)
        check_vectors(context, 'context', x.shape[0], 'j', width, like=x)
        check_digits(context, 'context', x)
    if context is None and attn.dim_kv_in != attn.dim:
        raise ValueError(f'`context` is missing: the layer reads keys from a context of width {attn.dim_kv_in}')
    if cache is not None and not attn.can_cache_kv:
        raise ValueError('`cache` was given, but a feature of this layer cannot be cached')
    if cache is not None and not isinstance(cache, Intermediates):
        raise TypeError(f'`cache` must be the Intermediates of an earlier call, got {type(cache).__name__}')
    token_mask = as_mask(mask, 'mask', x.shape[0], 'n', like=x)
    if token_mask is None:
        return None
    check_mask_covers(token_mask, n, cache is not None and cache.past is not None)
    return select_query_mask(token_mask, token_idx, n)


def select_query_mask(token_mask: Tensor | None, token_idx: Tensor | None, new: int) -> Tensor | None:
    """Return which queries are real, of all tokens or of those at `token_idx` of the `new` ones."""
    if token_mask is None or token_idx is None:
        return token_mask
    return gather_along(token_mask[:, token_mask.shape[1] - new :], token_idx, -1)


def select_views(x: Tensor, features: Features, at: Tensor | None) -> tuple[Views, Tensor | None]:
    """Return the inputs of queries, keys and values, and the token indices of the queries if a feature selects them.

    With `at`, (b, k), only the queries of these tokens of `x` (..., n, d) are returned.
    """
    views: Any = (x, x, x) if features.select_inputs is None else features.select_inputs(x)
    *three, token_idx = views if len(views) == 4 else (*views, None)
    if at is not None:
        check_no_subset(features)
        if token_idx is not None:
            raise ValueError('`select_inputs` must not move queries if only those of some tokens are computed')
        return (gather_along(three[0], at, -2), *three[1:]), at
    if any(not torch.is_tensor(t) or t.ndim != 3 for t in three):
        return tuple(three), None  # refused below
    counts, n = [t.shape[1] for t in three], x.shape[-2]
    if len(three) != 3 or counts[1:] != [n, n]:
        raise ValueError(
            f'`select_inputs` gave inputs of {counts} tokens, those of keys and values must have the {n} of `x`'
        )
    if token_idx is None and counts[0] != n:
        raise ValueError(
            f'`select_inputs` gave {counts[0]} queries for {n} tokens: a fourth value must be the indices of their '
            f'tokens'
        )
    if token_idx is None:
        return tuple(three), None
    wanted = ((counts[0],), (three[0].shape[0], counts[0]))
    whole = check_tensor(token_idx, 'select_inputs').dtype in (torch.int32, torch.int64)
    if not whole or token_idx.shape not in wanted:
        raise ValueError(
            f'`select_inputs` gave places of {token_idx.dtype} and shape {tuple(token_idx.shape)}, they must be whole '
            f'numbers, {wanted[0]} or {wanted[1]}'
        )
    check_range(token_idx, 'select_inputs', 0, n - 1, 'places')
    check_device(token_idx, 'select_inputs', three[0])
    return tuple(three), token_idx.long()


def is_large(like: Tensor, batch: int, heads: int, rows: int, keys: int) -> bool:
    """Return True if the scores of a call are too many to hold at once; never in an exported graph."""
    if rows == 1 or (
        is_exporting() or rows <= blocks.COMPILED_ROWS if torch.compiler.is_compiling() else is_transformed()
    ):
        return False
    return batch * heads * rows * keys > blocks.LARGE.get(like.device.type, blocks.LARGE['cuda'])


@dataclass
class Call(AddsLosses, HasStates, BlockwiseCall):
    """One pass through an attention layer: what came in, and what its stages tell one another.

    There are `q_len` queries, of the tokens `x` or of some of them, `keys` keys, and `total_keys` with those that
    features put in front. `key_mask` says which of the keys are real tokens (b j), `token_mask` is the caller's mask of
    the tokens (b n), None for all. `masks` and `biases` are what features and the caller gave; `combine` makes one
    `mask` and one `bias` of them, when a kernel runs. `may_have_fully_masked` says that some query may see no key.

    `keeps` says that the caller wants what the call leaves behind; `rebuilds_values` that the cache holds what keys and
    values are made from, so that those of all tokens are made again in every call; `unmasked` that the caller hides
    nothing; `hides_added` that keys which features put in front may be hidden; `changed_by` is the feature that changes
    keys before they are cached; `summed` how many earlier tokens are no keys any more, since a feature at `past` has
    summed them up, or they are out of `window`, which is None where all keys are needed; `all_key_mask` which of these
    and of the keys are real; `visible_keys` says which of the new keys any query may see (b n); `tokens` is the input
    of the keys; `is_large` that the scores are too many to be held at once; `maps` how many query heads there are for
    each head. `drop` and `attn_fn` are what users have put in the place of dropout and softmax, None where they have
    not.

    A kernel may run the call in blocks of its queries: each is a call of its own, with fewer rows and keys.
    """

    old_names: ClassVar[dict[str, str]] = {
        'all_real': 'all_key_mask',
        'blind': 'fully_masked',
        'may_be_blind': 'may_have_fully_masked',
        'own': 'ctx',
        'places': 'token_idx',
        'real': 'key_mask',
        'real_queries': 'query_mask',
        'rows': 'q_len',
        'sight': 'window',
        'sighted': 'has_visible_key',
        'trace': 'intermediates',
        'triangle': 'needs_causal_mask',
    }

    x: Tensor
    heads: int
    context: Maybe[Tensor]
    token_mask: Maybe[Tensor]
    causal: bool
    scale: float
    inputs: dict[str, Any]
    dropout: float = 0.0
    past: Maybe[KeysValues] = None
    made_trace: Maybe[Intermediates] = None
    values: Maybe[Tensor] = None
    keeps: str | None = None
    new_states: dict[str, CachedState] = field(default_factory=dict)
    old_states: Maybe[Mapping[str, CachedState]] = None
    declared: Mapping[str, Remembered] = field(default_factory=dict)
    changed_by: Maybe[Feature] = None
    rebuilds_values: bool = False
    unmasked: bool = False
    hides_added: bool = False
    tokens: Maybe[Tensor] = None
    keys: int = 0
    total_keys: int = 0
    summed: int = 0
    window: Maybe[AttentionWindow] = None
    visible_keys: Maybe[Tensor] = None
    key_mask: Maybe[Tensor] = None
    all_key_mask: Maybe[Tensor] = None
    mask: Maybe[Tensor] = None
    bias: Maybe[Tensor] = None
    bare_keys: Sequence[tuple[Tensor, Tensor]] = ()
    similarities: Maybe[Tensor] = None
    may_have_fully_masked: bool = False
    is_large: bool = False
    maps: int = 1
    full_precision: bool = False
    backends: tuple[str, ...] | None = None
    drop: Any = None
    attn_fn: Any = None
    batch: int = 0
    q_len: int = 0

    @property
    def intermediates(self) -> Intermediates:
        """The intermediates of this call, made when somebody first asks for them."""
        if self.made_trace is None:
            self.made_trace = Intermediates(values=self.values)
            self.made_trace.loose = self.new_states
        return self.made_trace

    def finish(self) -> Intermediates:
        """Return the intermediates, complete."""
        self.intermediates.values = self.values
        return self.intermediates

    @property
    def memories(self) -> int:
        """Return how many keys come from the memory of an earlier segment."""
        mem = self.inputs.get('mem')
        return 0 if mem is None else mem.shape[1]

    @property
    def num_memories(self) -> int:
        return self.memories

    @property
    def continues(self) -> bool:
        return self.past is not None

    @property
    def count(self) -> int:
        return self.tokens.shape[1]

    def zero_hidden_inputs(self, views: Views, key_mask: Tensor | None, attn_mask: Tensor | None) -> Views:
        """Return the inputs of queries, keys and values with 0 at hidden tokens that are not finite."""
        q, k, v = views
        key_mask = as_mask(key_mask, 'context_mask', self.batch, None, like=self.x)
        self.visible_keys = key_mask
        if attn_mask is not None and attn_mask.shape[-1] > 1:
            seen = attn_mask.any(dim=2).any(dim=1).expand(self.batch, -1)
            self.visible_keys = seen if key_mask is None or key_mask.shape != seen.shape else seen & key_mask
        same = k is q and self.visible_keys is self.token_mask
        self.x = zero_masked(q, self.token_mask)
        k = self.x if same else self.zero_hidden_keys(k)
        return self.x, k, k if v is views[1] else self.zero_hidden_keys(v)

    def zero_hidden_keys(self, keys: Tensor) -> Tensor:
        """Zero hidden keys, (b, ..., j, d) with the new ones last, that are not finite."""
        shown = self.visible_keys
        if shown is not None and shown.shape[1] < keys.shape[-2]:
            shown = F.pad(shown, (keys.shape[-2] - shown.shape[1], 0), value=True)
        return zero_masked(keys, shown)

    @property
    def needs_causal_mask(self) -> bool:
        """Return True if the causal triangle hides anything."""
        hides = self.causal and self.token_idx is None and (self.q_len > 1 or self.later_keys > 0)
        return True if hides else False  # a plain bool also where the length is symbolic

    @property
    def source(self) -> Tensor:
        """The new tokens: the input of queries, or of keys where queries stand elsewhere."""
        return self.x if self.token_idx is None else self.tokens

    def append_past(self, *rows: Tensor | None) -> Any:
        """Concatenate memories, cached and new vectors, such as keys and values. The cache keeps the last two."""
        if self.past is None and not self.keeps:
            return rows
        new = rows if self.memories == 0 else [None if t is None else t[..., self.memories :, :] for t in rows]
        if self.past is not None and self.changed_by is None:
            self.past = self.past.plain()
        if self.past is not None:
            check_past(new, self.past.buffers)
        past: Any = KeysValues.of(new) if self.past is None else self.past.append(*new)
        past = past.limit_window(self.window)
        past.states, past.changed_by = self.new_states, self.changed_by
        self.intermediates.past = past
        if self.past is None:
            return rows
        if self.window is not None or self.past.num_evicted:
            return select_window(self, past, self.past)
        if self.memories == 0:
            return past.pair
        return tuple(
            None if t is None else torch.cat((t[..., : self.memories, :], kept), dim=-2)
            for t, kept in zip(rows, past.pair, strict=True)
        )

    @staticmethod
    def append_past_keys(k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        return call.append_past(k, v)

    def make_key_mask(self, mask: Tensor | None, context_mask: Tensor | None) -> Tensor | None:
        """Return which keys are real, (b j): the context's mask, else in self-attention that of the tokens."""
        own = self.context is None
        mem_mask: Any = self.inputs.get('mem_mask')
        name = 'context_mask' if context_mask is not None else 'mask'
        keep: Any = context_mask if context_mask is not None else mask if own else None
        if keep is not None:
            boolean_mask(check_tensor(keep, name), name)
        if own and self.past is not None:
            keep = extend_mask(keep, name, self.batch, self.count, self.keys + self.summed - self.memories - self.count)
        if keep is None and mem_mask is None:
            return None
        if keep is None:
            keep = mem_mask.new_ones(self.batch, self.keys + self.summed - self.memories, dtype=torch.bool)
        if own and self.memories and keep.ndim == 2 and keep.shape[1] != self.keys + self.summed:
            front = keep.new_ones(self.batch, self.memories) if mem_mask is None else mem_mask
            keep = torch.cat((as_mask(front, 'mem_mask', self.batch, self.memories).to(keep.dtype), keep), dim=1)
        if keep.ndim == 2 and keep.shape[1] < self.keys + self.summed and self.past is not None:
            raise ValueError(
                f'`{name}` got shape {tuple(keep.shape)}: '
                f'with a cache it must cover all {self.keys + self.summed} keys, cached and new'
            )
        self.all_key_mask = as_mask(keep, name, self.batch, self.keys + self.summed)
        if self.summed == 0:
            return self.all_key_mask
        return torch.cat(
            (self.all_key_mask[:, : self.memories], self.all_key_mask[:, self.memories + self.summed :]), dim=1
        )

    @property
    def query_mask(self) -> Tensor | None:
        """Return which of the queries are real tokens, (b i), from the masks of the call; None for all."""
        real = None if self.token_mask is None else self.token_mask[:, -self.q_len :]
        if self.context is None and self.key_mask is not None:
            keys = self.of_queries(self.key_mask)
            real = keys if real is None else real & keys
        return real

    @property
    def is_lower_triangular(self) -> bool:
        """Return True if the causal triangle hides only what is to the right of the diagonal, in the last keys."""
        return self.needs_causal_mask and self.later_keys == 0 and self.keys >= self.q_len

    def visible(self) -> Tensor | None:
        """Return which keys each query sees, broadcasting to b h i j; None for all. Known once `combine` has run.

        raises   ValueError at earlier stages, and at `attend`, which reads `mask_entry` or `masks`
        """
        if not self.combined:
            raise ValueError(
                '`visible` is known from `scores` to `weighted_values` only, where masks have been put together'
            )
        if not self.needs_causal_mask:
            return self.mask
        added, stop = self.total_keys - self.keys, self.keys - self.later_keys
        place = torch.arange(-added, self.keys, device=self.x.device)
        triangle = place <= torch.arange(stop - self.q_len, stop, device=self.x.device).unsqueeze(-1)
        if added and stop < self.q_len:
            triangle = triangle | (place < 0)
        return triangle[None, None] if self.mask is None else self.mask & triangle

    def has_visible_in_last(self, last: int) -> Tensor | None:
        """Return which queries see any of the last keys, broadcasting to b h i 1; None for all."""
        if not self.masks and not (self.needs_causal_mask and self.keys < self.q_len):
            return None
        if not is_large(self.x, self.batch, 1, self.q_len, self.total_keys):
            return self.combine().has_visible_key(self.total_keys - last)
        blocks = [self.block(span) for span in split_queries(self, block_size(self.x, self.batch * self.total_keys))]
        seen = [
            block.has_visible_key(self.total_keys - last).expand(self.batch, -1, block.q_len, -1) for block in blocks
        ]
        return torch.cat(seen, dim=-2)

    def has_visible_key(self, first: int = 0) -> Tensor:
        """Return which queries see any key, from the `first` on, broadcasting to b h i 1."""
        seen = self.visible()
        if seen is None:
            return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.x.device)
        return (seen[..., first:] if seen.shape[-1] > 1 else seen).any(dim=-1, keepdim=True)

    def fully_masked(self) -> Tensor:
        """Return which queries see no key, broadcasting to b h i 1."""
        return ~self.has_visible_key()

    def precision(self) -> AbstractContextManager:
        """Return a context for the kernel that disables autocast if a feature needs full precision."""
        return disable_autocast(self.x) if self.full_precision else nullcontext()

    def keep_maps(self, maps: tuple[Tensor, Tensor, Tensor]) -> None:
        if self.inputs.get('keep_maps'):
            self.intermediates.maps, self.intermediates.compute_maps = list(maps), None


def prefix_mask(x: Tensor, prefix_len: int | Tensor | None, attn_mask: Tensor | None) -> Tensor:
    """Return the causal mask in which the first `prefix_len` tokens attend to each other, within `attn_mask`."""
    n = x.shape[1]
    place = torch.arange(n, device=x.device)
    seen = place.unsqueeze(-1) >= place
    if prefix_len is not None:
        prefix = torch.as_tensor(prefix_len, device=x.device)
        seen = seen | (place < (prefix[:, None, None, None] if prefix.ndim else prefix))
    if attn_mask is None:
        return seen
    if any(length not in (1, n) for length in attn_mask.shape[-2:]):
        raise ValueError(f'`attn_mask` got shape {tuple(attn_mask.shape)}, its last axes must be {n} and {n}')
    return to_4d(seen) & attn_mask
