"""Blocks of the queries of a call: queries and keys (`QueryBlock`), masks and biases that can be computed per block
(`BlockwiseTerm`), and the call itself (`BlockwiseCall`).

The keys of a block end at its last query if the call is causal, and begin where a window reaches. Prepended keys are in
every block.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.checks import check_scores
from x_transformers.core.notes import FeatureContext
from x_transformers.flags.checks import Maybe

# Above this many scores, b * h * i * j, a call runs in blocks. Below, one pass is faster, since blocks are computed
# again in the backward pass.
LARGE = {'cpu': 2**22, 'cuda': 2**26}
# Scores of a block: on a CPU they fit in the cache of a core.
BLOCK = {'cpu': 2**19, 'cuda': 2**24}
# Minimum of queries per block: with fewer, loading the keys takes longer than the matrix product.
FEWEST_ROWS = 64
# Maximum of queries per block in a compiled graph, which has code for each block.
COMPILED_ROWS = 512

# (b, h, i, j) -> value for one query and one key, from tensors of indices
Pointwise = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def holds_maps(scores: int) -> bool:
    """Return True if maps of so many scores, b * h * i * j, are computed at once if they need gradients.

    The limit of a CPU is that of a GPU: its blocks are for speed only.
    """
    return scores <= LARGE['cuda']


def scores_of_block(like: Tensor) -> int:
    return BLOCK.get(like.device.type, BLOCK['cuda'])


def block_size(like: Tensor, scores_per_row: int) -> int:
    """Return the queries per block of `like` (..., n, d). In compiled graphs the number of blocks is a power of two."""
    if torch.compiler.is_compiling():
        q_len, count = like.shape[-2], 1
        while count * COMPILED_ROWS < q_len:
            count *= 2
        return (q_len + count - 1) // count
    return max(scores_of_block(like) // scores_per_row, FEWEST_ROWS)


@contextmanager
def replay_noise(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Draw the same noise again as after `noise_state`, in a `with` block."""
    with torch.random.fork_rng([device.index] if device.type == 'cuda' else []):
        torch.set_rng_state(state[0])
        if device.type == 'cuda':
            torch.cuda.set_rng_state(state[1], device)
        yield


def noise_state(device: torch.device) -> tuple[Tensor, ...]:
    of_device = (torch.cuda.get_rng_state(device),) if device.type == 'cuda' else ()
    return torch.get_rng_state(), *of_device


# Splitting.


class QueryBlock(NamedTuple):
    """Range of queries, and of keys without the prepended ones, of a block.

    It has numbers, since dynamo would specialize symbolic ones in the slices of an object.
    """

    start: int
    stop: int
    first: int
    last: int

    @property
    def queries(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def keys(self) -> slice:
        return slice(self.first, self.last)


def split_queries(
    call: BlockwiseCall, height: int, whole_rows: bool = False, leftmost: bool = False
) -> list[QueryBlock]:
    """Split the queries of a call into blocks of `height`, without keys that are masked for the whole block.

    `whole_rows` keeps all keys, `leftmost` all keys before those of the block.
    """
    causal = call.causal and call.token_idx is None
    reaches = [mask.reach for mask in call.masks if mask.reach is not None]
    ahead = [0] if causal else [mask.reach_ahead for mask in call.masks if mask.reach_ahead is not None]
    found, start, past = [], 0, call.keys - call.q_len
    while start < call.q_len:  # A range would specialize a symbolic length.
        stop = min(start + height, call.q_len)
        last = min(max(past + stop + min(ahead), 1), call.keys) if ahead and not whole_rows else call.keys
        first = min(max(past + start - min(reaches), 0), last - 1) if reaches and not (whole_rows or leftmost) else 0
        found.append(QueryBlock(start, stop, first, last))
        start = stop
    return found


def key_slices(keys: slice, added: int) -> tuple[slice, ...]:
    """Return the indices of a block's keys among all keys: the prepended ones, then its own."""
    own = slice(added + keys.start, added + keys.stop)
    return (slice(0, own.stop),) if keys.start == 0 else (own,) if added == 0 else (slice(0, added), own)


def slice_keys(t: Tensor, keys: slice, all_keys: int, dim: int) -> Tensor:
    """Return the keys of a block, with the prepended ones."""
    if t.shape[dim] == 1 or (keys.start == 0 and keys.stop == all_keys):
        return t
    found = [t.narrow(dim, p.start, p.stop - p.start) for p in key_slices(keys, t.shape[dim] - all_keys)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=dim)


# Masks and biases per block.


class BlockwiseTerm:
    """Mask or bias that is computed per block.

    of(rows, keys)   -> tensor that broadcasts to (b, h, i, j), for slices of the queries and of the keys without the
                     prepended ones
    reach            keys at a larger distance before the query are masked
    reach_ahead      keys at a larger distance after the query are masked
    band             True if it masks no other keys
    learns           True if it has a gradient
    of_keys          True if it is equal for all heads and queries
    entry()          -> function of one query and one key, for FlexAttention (`flex.py`), or None. It may hold tensors,
                     and numbers that do not change with the lengths
    by_entry         True if it is available for one query and one key, by `pointwise`
    made_of          tensors and numbers that, with the lengths, determine it, if known
    """

    of_keys = False
    name = ''  # The keyword of the user.

    def __init__(
        self,
        of: Maybe[Callable[[slice, slice], Tensor]],
        *,
        reach: int | None = None,
        reach_ahead: int | None = None,
        band: bool = False,
        learns: bool = False,
        entry: Maybe[Callable[[], Pointwise]] = None,
        made_of: tuple[Any, ...] | None = None,
    ) -> None:
        self.make, self.reach, self.reach_ahead, self.band, self.learns = of, reach, reach_ahead, band, learns
        self.entry, self.made_of, self.by_entry = entry, made_of, entry is not None

    def of(self, queries: slice, keys: slice) -> Tensor:
        return self.make(queries, keys)

    def pointwise(self, added: int, filler: float) -> Pointwise:
        """Return `entry` for all keys of the call, with the filler for the `added` prepended ones."""
        return _offset_entry(self.entry(), added, filler)


def _offset_entry(entry: Pointwise, added: int, filler: float) -> Pointwise:
    if added == 0:
        return entry
    return lambda b, h, i, j: torch.where(j < added, filler, entry(b, h, i, (j - added).clamp(min=0)))


class DenseTerm(BlockwiseTerm):
    """Mask or bias given as one tensor."""

    def __init__(self, t: Tensor, q_len: int, keys: int) -> None:
        super().__init__(None, learns=t.requires_grad)
        self.by_entry = True
        self.t, self.size, self.of_keys = t, (q_len, keys), t.shape[1:-1] == (1, 1)
        self.made_of = (t,)
        self.parts: dict[int, Tensor] = {}

    def split(self, height: int) -> DenseTerm:
        """Split all queries at once: slices one by one would each have a gradient of the full size."""
        if self.t.requires_grad and self.t.ndim > 1 and self.t.shape[-2] == self.size[0]:
            self.parts = dict(zip(range(0, self.size[0], height), self.t.split(height, dim=-2), strict=True))
        return self

    def of(self, queries: slice, keys: slice) -> Tensor:
        (all_rows, all_keys), t = self.size, self.t
        if (queries.start > 0 or queries.stop != all_rows) and t.ndim > 1 and t.shape[-2] == all_rows:
            t = self.parts[queries.start] if self.parts else t[..., queries, :]
        return slice_keys(t, keys, all_keys, -1)

    def pointwise(self, added: int, filler: float) -> Pointwise:
        t = to_4d(summable(self.t))
        wide, covers = tuple(n != 1 for n in t.shape), t.shape[-1] == self.size[1] + added
        return _offset_entry(
            _make_lookup(t.reshape([n for n in t.shape if n != 1]), wide), 0 if covers else added, filler
        )


class RepeatedTerm(BlockwiseTerm):
    """Mask or bias of heads, repeated for several query heads of each."""

    def __init__(self, inner: BlockwiseTerm, maps: int, heads: int) -> None:
        super().__init__(None, reach=inner.reach, reach_ahead=inner.reach_ahead, learns=inner.learns)
        self.inner, self.maps, self.heads, self.of_keys = inner, maps, heads, inner.of_keys

    def of(self, queries: slice, keys: slice) -> Tensor:
        return _repeat_heads(to_4d(self.inner.of(queries, keys)), self.maps, self.heads)


def _repeat_heads(t: Tensor, maps: int, heads: int) -> Tensor:
    """Repeat heads of (b, h, i, j) for all query heads: query head q has head q mod h."""
    return t.repeat(1, maps, 1, 1) if maps > 1 and t.shape[1] * maps == heads else t


def summable(t: Tensor) -> Tensor:
    """Cast to float32 if a gradient would be summed in half precision."""
    return t.float() if t.requires_grad and t.dtype in (torch.float16, torch.bfloat16) else t


def _make_lookup(t: Tensor, wide: tuple[bool, ...]) -> Pointwise:
    """Return a function of indices for a tensor with those axes of b h i j that are `wide`."""
    if not any(wide):
        t = t.reshape(1)
        return lambda b, h, i, j: t[b * 0]
    return lambda *at: t[tuple([place for place, is_wide in zip(at, wide) if is_wide])]  # noqa: B905


def make_axis_lookup(t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function (b, n) -> t_bn for a tensor (n,), (1, n) or (b, n)."""
    if t.ndim > 1 and t.shape[0] > 1:
        return lambda b, n: t[b, n]
    t = t if t.ndim == 1 else t[0]
    return lambda b, n: t[n]


def gather_along(t: Tensor, index: Tensor, dim: int) -> Tensor:
    """Gather entries of `t` along a negative axis, at an index (i,) for the whole batch, or (b, i)."""
    if index.ndim == 1:
        return t.index_select(dim, index)
    if t.ndim == 1:
        return t[index]
    between, (rows, count) = t.ndim - 1 + dim, index.shape
    return torch.take_along_dim(t, index.reshape(rows, *[1] * between, count, *[1] * (-1 - dim)), dim)


class DistanceTable(BlockwiseTerm):
    """Bias that depends only on the distance between query and key, from a table of all distances.

    `table` is (h, i + j - 1), from the largest distance to the smallest: query r of i and key c have c - r + i - 1.
    """

    def __init__(self, table: Tensor, q_len: int) -> None:
        super().__init__(None, learns=table.requires_grad)
        self.by_entry = True
        self.table, self.q_len = table, q_len

    def window(self, queries: slice, keys: slice) -> slice:
        """Return the range of the table for a block."""
        first = keys.start - queries.stop + self.q_len
        return slice(first, first + queries.stop - queries.start + keys.stop - keys.start - 1)

    def reversed_block(self, queries: slice, keys: slice) -> Tensor:
        """Return a block (h, i, j) with its last query first, which is a view of the table."""
        return self.table[:, self.window(queries, keys)].unfold(-1, keys.stop - keys.start, 1)

    def of(self, queries: slice, keys: slice) -> Tensor:
        if torch.compiler.is_compiling():  # A view would specialize a symbolic length.
            row, key = (torch.arange(at.start, at.stop, device=self.table.device) for at in (queries, keys))
            return self.table[:, key - row.unsqueeze(-1) + (self.q_len - 1)].unsqueeze(0)
        return self.reversed_block(queries, keys).flip(-2).unsqueeze(0)

    def pointwise(self, added: int, filler: float) -> Pointwise:
        table, last = summable(self.table), torch.full((), self.q_len - 1, device=self.table.device)
        return _offset_entry(lambda b, h, i, j: table[h, j - i + last], added, filler)


def and_entries(masks: tuple[Pointwise, ...]) -> Pointwise:
    def entry(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = masks[0](b, h, i, j)
        for mask in masks[1:]:
            seen = seen & mask(b, h, i, j)
        return seen

    return entry


def _sum_entries(biases: tuple[Pointwise, ...]) -> Pointwise:
    def entry(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        total = biases[0](b, h, i, j)
        for bias in biases[1:]:
            total = total + bias(b, h, i, j)
        return total

    return entry


def _causal_entry(call: BlockwiseCall) -> Pointwise:
    """Return the causal mask. Prepended keys are visible to all queries."""
    added, past = call.total_keys - call.keys, torch.full((), call.total_keys - call.q_len, device=call.x.device)
    if added == 0:
        return lambda b, h, i, j: j <= i + past
    return lambda b, h, i, j: (j <= i + past) | (j < added)


# Calls and their blocks.


def to_4d(t: Tensor) -> Tensor:
    return t[(None,) * (4 - t.ndim)]


if TYPE_CHECKING:

    class CallFields:
        """Fields of the call that `BlockwiseCall` reads. (In that class they would become dataclass fields.)"""

        x: Tensor
        tokens: Tensor
        inputs: dict[str, Any]
        contexts: dict[type, FeatureContext]
        mask: Tensor | None
        bias: Tensor | None
        key_mask: Tensor | None
        token_mask: Tensor | None
        batch: int
        q_len: int
        heads: int
        keys: int
        total_keys: int
        needs_causal_mask: bool
        causal: bool
        in_part: bool
        maps: int
else:
    CallFields = object


@dataclass(kw_only=True)
class BlockwiseCall(CallFields):
    """Mixin of an attention call that can run in blocks: its masks and biases, and their parts for a block.

    `block(span)` of the `whole` call is a call with fewer queries and keys. Its `later_keys` are the number of keys
    after that of its last query, and `carried` has tensors of earlier blocks. `token_idx`, (i,) or (b, i), are the
    indices of the queries among the new tokens, if queries are not these tokens in order.
    """

    masks: list[BlockwiseTerm] = field(default_factory=list)
    biases: list[BlockwiseTerm] = field(default_factory=list)
    span: Maybe[QueryBlock] = None
    later_keys: int = 0
    combined: bool = False
    carried: dict[str, Tensor] = field(default_factory=dict)
    split_once: dict[int, DenseTerm] = field(default_factory=dict)
    in_one: Any = None
    token_idx: Maybe[Tensor] = None
    positions: dict[tuple[str, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)
    visibility: Any = None

    def term(self, t: Tensor | BlockwiseTerm, name: str) -> BlockwiseTerm:
        """Return a mask or bias as a term, after a check of its shape."""
        if isinstance(t, BlockwiseTerm):
            whole = isinstance(t, (RepeatedTerm, DenseTerm))
            return t if self.maps == 1 or whole else RepeatedTerm(t, self.maps, self.heads)
        t = _repeat_heads(to_4d(t), self.maps, self.heads)
        if not torch.compiler.is_compiling() and t.shape[-1] not in (1, self.keys, self.total_keys):
            raise ValueError(f'`{name}` must have {self.keys} keys on its last axis, got shape {tuple(t.shape)}')
        if not torch.compiler.is_compiling():
            check_scores(t, name, self.batch, self.heads, self.q_len)
        return DenseTerm(t, self.q_len, self.keys)

    def expand_term(self, term: BlockwiseTerm, filler: float) -> Tensor:
        """Return a mask or bias for the queries and keys of the call, padded for prepended keys."""
        own = (slice(0, self.q_len), slice(0, self.keys)) if self.span is None else (self.span.queries, self.span.keys)
        t = to_4d(term.of(*own))
        if t.shape[-1] == self.total_keys:
            return t
        return F.pad(t.expand(*t.shape[:-1], self.keys), (self.total_keys - self.keys, 0), value=filler)

    def combine(self) -> Any:
        """Compute mask and bias for all queries of the call."""
        masks = [self.expand_term(term, True) for term in self.masks]
        biases = [self.expand_term(term, 0.0) for term in self.biases]
        self.mask = functools.reduce(torch.logical_and, masks) if masks else None
        self.bias = sum(biases[1:], biases[0]) if biases else None
        self.combined = True
        return self

    @property
    def whole(self) -> Any:
        """Return the call of which this may be a block."""
        return self.in_one or self

    def block(self, span: QueryBlock) -> Any:
        """Return the call of a block of queries and keys."""
        new = copy.copy(self)
        new.span, new.in_one, new.x = span, self, self.x[:, span.queries]
        new.q_len, new.visibility = new.x.shape[1], None
        new.contexts = {kind: own.copy() for kind, own in self.contexts.items()}
        new.in_part = True
        new.later_keys = span.keys.stop - (self.keys - self.q_len + span.queries.stop)
        new.keys = span.keys.stop - span.keys.start
        new.total_keys = self.total_keys - self.keys + new.keys
        new.key_mask = None if self.key_mask is None else self.key_mask[:, span.keys]
        if self.token_idx is not None:
            new.token_idx = self.token_idx[..., span.queries]
        if self.token_mask is not None:
            new.token_mask = self.token_mask[:, -self.q_len :][:, span.queries]
        return new.combine()

    def reads(self) -> list[Tensor]:
        """Return the tensors that blocks read, and that the caller may change."""
        tensors = [term.t for term in (*self.masks, *self.biases) if isinstance(term, DenseTerm)]
        return tensors + [t for t in (*self.inputs.values(), self.key_mask, self.token_mask) if torch.is_tensor(t)]

    def with_biases(self, biases: list[BlockwiseTerm]) -> Any:
        new = copy.copy(self)
        new.biases = biases
        return new

    def mask_entry(self) -> Pointwise | None:
        """Return the combined mask as a function (b, h, i, j) -> bool, where j counts prepended keys, too.

        It includes causality. All masks must be `by_entry`. None if all keys are visible.
        """
        added = self.total_keys - self.keys
        masks = [mask.pointwise(added, True) for mask in self.masks] + (
            [_causal_entry(self)] if self.needs_causal_mask else []
        )
        return and_entries(tuple(masks)) if masks else None

    def bias_entry(self) -> Pointwise | None:
        """Return the combined bias as a function (b, h, i, j) -> float, or None without biases."""
        added = self.total_keys - self.keys
        biases = [bias.pointwise(added, 0.0) for bias in self.biases]
        return _sum_entries(tuple(biases)) if biases else None

    def split_inputs(self, height: int) -> None:
        """Split the terms and inputs that have gradients into blocks."""
        if torch.compiler.is_compiling():  # It would specialize a symbolic length.
            return
        for t in self.inputs.values():
            if torch.is_tensor(t) and t.requires_grad and t.ndim > 2 and t.shape[-2] == self.q_len:
                self.split_once[id(t)] = DenseTerm(t, self.q_len, self.keys).split(height)
        for term in (*self.masks, *self.biases):
            if isinstance(term, DenseTerm):
                term.split(height)

    def cut(self, t: Tensor) -> Tensor:
        """Narrow a tensor that broadcasts to all scores, (..., i, j), to the scores of this block."""
        if self.span is None:
            return t
        whole = self.whole
        return whole.split_once.get(id(t), DenseTerm(t, whole.q_len, whole.keys)).of(self.span.queries, self.span.keys)

    def cut_keys(self, t: Tensor) -> Tensor:
        """Narrow a tensor of all keys, (..., j), to the keys of this block."""
        return t if self.span is None else slice_keys(t, self.span.keys, self.whole.keys, -1)

    def cut_rows(self, t: Tensor) -> Tensor:
        """Narrow a tensor of all queries, (..., i, d), to the queries of this block."""
        return t if self.span is None else t[..., self.span.queries, :]

    def of_queries(self, t: Tensor, dim: int = -1) -> Tensor:
        """Select the entries of the queries along an axis of keys, such as (..., j)."""
        if self.token_idx is not None:
            return gather_along(t, self.token_idx + (t.shape[dim] - self.tokens.shape[1]), dim)
        stop = t.shape[dim] - self.later_keys
        start = max(stop - self.q_len, 0)
        return t.narrow(dim, start, max(stop, start) - start)

    @property
    def q_pos(self) -> Tensor:
        """Return the positions of the queries:  (i,), (b, i), or per head (b, h, i)."""
        return self.find_positions('pos', 'index')[0]

    @property
    def k_pos(self) -> Tensor:
        """Return the positions of the keys, without prepended ones:  (j,), (b, j), or per head (b, h, j).

        They are those of the caller, else `k_at`. Only differences are meaningful: padding on the left may count, too.
        """
        return self.find_positions('pos', 'index')[1]

    @property
    def q_at(self) -> Tensor:
        """Return the indices of the queries in their sequence:  (i,) or (b, i)."""
        return self.find_positions('index')[0]

    @property
    def k_at(self) -> Tensor:
        """Return the indices of the keys in their sequence, (j,) or (b, j), whatever positions the caller gives.

        They count from the first key; with memories and padding on the left from the first real token of each sequence,
        with negative indices for memories. Only differences are meaningful.
        """
        return self.find_positions('index')[1]

    def in_order(self, *names: str) -> bool:
        """Return True if the queries are the last keys, and none of these inputs gives other positions."""
        return self.token_idx is None and all(self.inputs.get(name) is None for name in names)

    def find_positions(self, *names: str) -> tuple[Tensor, Tensor]:
        """Return positions of queries and keys by the first of these inputs that is given.

        They are computed when first needed, since then all keys are known.
        """
        if self.span is not None:
            q_pos, k_pos = self.whole.find_positions(*names)
            return q_pos[..., self.span.queries], k_pos[..., self.span.keys]
        if names not in self.positions:
            positions = [t for t in map(self.inputs.get, names) if t is not None]
            k_pos = positions[0] if positions else torch.arange(self.keys, device=self.x.device)
            self.positions[names] = self.of_queries(k_pos), k_pos
        return self.positions[names]

    def make_order_mask(self) -> list[BlockwiseTerm]:
        """Return the causal mask of queries that are not the last keys, by their indices."""
        if self.token_idx is None or not self.causal:
            return []
        key_idx = torch.arange(self.keys, device=self.x.device)
        query_idx = self.of_queries(key_idx)

        def of(queries: slice, keys: slice) -> Tensor:
            mask = key_idx[keys] <= query_idx[..., queries].unsqueeze(-1)
            return mask if mask.ndim == 2 else mask.unsqueeze(1)

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(query_idx), make_axis_lookup(key_idx)
            return lambda b, h, i, j: of_key(b, j) <= of_query(b, i)

        return [BlockwiseTerm(of, entry=entry, made_of=(query_idx,))]

    def check_no_token_idx(self, name: str, reason: str) -> None:
        """Raise ValueError for queries that are not the last keys, which a feature does not support."""
        if self.token_idx is not None:
            raise ValueError(f'`{name}` cannot be combined with queries that `select_inputs` puts elsewhere: {reason}')
