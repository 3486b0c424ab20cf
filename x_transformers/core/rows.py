"""Blocks of the queries of a call: queries and keys (`QueryBlock`), masks and biases that can be computed per block
(`BlockwiseTerm`), and the call itself (`BlockwiseCall`).

A block sees the keys up to its last row where the call is causal, and no further back than a window reaches; keys that
features put in front are always there.
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

# Scores, b h i j in all, from which on a call runs in blocks: fewer are held at once, which is faster than twice.
LARGE = {'cpu': 2**22, 'cuda': 2**26}
# Scores that a block holds: on a CPU, what stays in the cache of a core.
BLOCK = {'cpu': 2**19, 'cuda': 2**24}
# With fewer rows, reading the keys would take longer than multiplying them.
FEWEST_ROWS = 64
# Rows of a block in a compiled graph at most, where each block is compiled apart.
COMPILED_ROWS = 512

# (b, h, i, j) -> the value for one query and one key, from tensors that count them
Pointwise = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def holds_maps(scores: int) -> bool:
    """Return True if maps of so many scores, b h i j in all, are formed at once where gradients must reach them. A CPU
    is asked for as many as a GPU: its blocks are there for speed, and gradients come first."""
    return scores <= LARGE['cuda']


def scores_of_block(like: Tensor) -> int:
    return BLOCK.get(like.device.type, BLOCK['cuda'])


def block_size(like: Tensor, scores_per_row: int) -> int:
    """Return how many rows of `like` (... n d) a block has. A graph has as many blocks up to twice the length."""
    if torch.compiler.is_compiling():
        q_len, count = like.shape[-2], 1
        while count * COMPILED_ROWS < q_len:
            count *= 2
        return (q_len + count - 1) // count
    return max(scores_of_block(like) // scores_per_row, FEWEST_ROWS)


@contextmanager
def replay_noise(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
    """Draw the same noise as when `noise_state` was asked."""
    with torch.random.fork_rng([device.index] if device.type == 'cuda' else []):
        torch.set_rng_state(state[0])
        if device.type == 'cuda':
            torch.cuda.set_rng_state(state[1], device)
        yield


def noise_state(device: torch.device) -> tuple[Tensor, ...]:
    of_device = (torch.cuda.get_rng_state(device),) if device.type == 'cuda' else ()
    return torch.get_rng_state(), *of_device


# cutting


class QueryBlock(NamedTuple):
    """A block: which queries, and which of the keys behind those that features put in front.

    Numbers, since dynamo fixes symbolic ones in a slice that an object is made with.
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
    """The blocks of a call, of `height` rows each, without the keys that are too late or too far back for all rows.

    `whole_rows`: with all keys. `leftmost`: with all keys from the first on.
    """
    causal = call.causal and call.token_idx is None
    reaches = [mask.reach for mask in call.masks if mask.reach is not None]
    ahead = [0] if causal else [mask.reach_ahead for mask in call.masks if mask.reach_ahead is not None]
    found, start, behind = [], 0, call.keys - call.q_len
    while start < call.q_len:  # a range would fix a symbolic length
        stop = min(start + height, call.q_len)
        last = min(max(behind + stop + min(ahead), 1), call.keys) if ahead and not whole_rows else call.keys
        first = min(max(behind + start - min(reaches), 0), last - 1) if reaches and not (whole_rows or leftmost) else 0
        found.append(QueryBlock(start, stop, first, last))
        start = stop
    return found


def key_slices(keys: slice, added: int) -> tuple[slice, ...]:
    """Where the keys of a block stand among all: those in front, then its own."""
    own = slice(added + keys.start, added + keys.stop)
    return (slice(0, own.stop),) if keys.start == 0 else (own,) if added == 0 else (slice(0, added), own)


def slice_keys(t: Tensor, keys: slice, all_keys: int, dim: int) -> Tensor:
    """The keys of a block; what stands in front of them stays."""
    if t.shape[dim] == 1 or (keys.start == 0 and keys.stop == all_keys):
        return t
    found = [t.narrow(dim, p.start, p.stop - p.start) for p in key_slices(keys, t.shape[dim] - all_keys)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=dim)


# masks and biases, a block at a time


class BlockwiseTerm:
    """A mask or bias that is computed for a block at a time.

    of(rows, keys)   -> broadcasts to b h i j, for two slices: of the queries, and of the keys without those in front
    reach            keys further back than this, counted in keys, are hidden
    reach_ahead      keys further ahead than this are hidden
    band             whether it hides nothing else
    learns           whether a gradient flows into it
    of_keys          whether it is the same for all heads and queries
    entry()          -> the same for one query and one key, if it can be: for FlexAttention (`flex.py`). A function
                     that holds tensors, and numbers that do not change with the lengths
    made_of          the tensors and numbers that, with the lengths, decide what it gives, if known
    """

    of_keys = False

    name = ''  # what the user wrote for it

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
        self.entry, self.made_of = entry, made_of

    def of(self, queries: slice, keys: slice) -> Tensor:
        return self.make(queries, keys)

    @property
    def by_entry(self) -> bool:
        """Return True if `pointwise` has an answer."""
        return self.entry is not None

    def pointwise(self, added: int, filler: float) -> Pointwise:
        """`entry` for all keys of the call, of which the `added` ones in front get the filler."""
        return _offset_entry(self.entry(), added, filler)


def _offset_entry(entry: Pointwise, added: int, filler: float) -> Pointwise:
    if added == 0:
        return entry
    return lambda b, h, i, j: torch.where(j < added, filler, entry(b, h, i, (j - added).clamp(min=0)))


class DenseTerm(BlockwiseTerm):
    """A mask or bias that was given as one tensor."""

    @property
    def by_entry(self) -> bool:
        return True

    def __init__(self, t: Tensor, q_len: int, keys: int) -> None:
        super().__init__(None, learns=t.requires_grad)
        self.t, self.size, self.of_keys = t, (q_len, keys), t.shape[1:-1] == (1, 1)
        self.made_of = (t,)
        self.parts: dict[int, Tensor] = {}

    def split(self, height: int) -> DenseTerm:
        """Cut all rows at once: cut one by one, each would have a gradient as large as the whole."""
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
    """A mask or bias of heads, for several query heads of each."""

    def __init__(self, inner: BlockwiseTerm, maps: int, heads: int) -> None:
        super().__init__(None, reach=inner.reach, reach_ahead=inner.reach_ahead, learns=inner.learns)
        self.inner, self.maps, self.heads, self.of_keys = inner, maps, heads, inner.of_keys

    def of(self, queries: slice, keys: slice) -> Tensor:
        return _repeat_heads(to_4d(self.inner.of(queries, keys)), self.maps, self.heads)


def _repeat_heads(t: Tensor, maps: int, heads: int) -> Tensor:
    """What is given for each head, b h i j, for all query heads: query head q is one of head q mod h."""
    return t.repeat(1, maps, 1, 1) if maps > 1 and t.shape[1] * maps == heads else t


def summable(t: Tensor) -> Tensor:
    """In a dtype in which many gradients of one entry can be summed up."""
    return t.float() if t.requires_grad and t.dtype in (torch.float16, torch.bfloat16) else t


def _make_lookup(t: Tensor, wide: tuple[bool, ...]) -> Pointwise:
    """The entries of a tensor with some of the axes b h i j."""
    if not any(wide):
        t = t.reshape(1)
        return lambda b, h, i, j: t[b * 0]
    return lambda *at: t[tuple([place for place, is_wide in zip(at, wide) if is_wide])]  # noqa: B905


def make_axis_lookup(t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The entries of a row that all of the batch share, (n) or (1 n), or of rows (b n):  b, n -> t_bn"""
    if t.ndim > 1 and t.shape[0] > 1:
        return lambda b, n: t[b, n]
    t = t if t.ndim == 1 else t[0]
    return lambda b, n: t[n]


def gather_along(t: Tensor, index: Tensor, dim: int) -> Tensor:
    """Entries of `t` along an axis counted from the last, the same for the batch (i), or of each row (b i)."""
    if index.ndim == 1:
        return t.index_select(dim, index)
    if t.ndim == 1:
        return t[index]
    between, (rows, count) = t.ndim - 1 + dim, index.shape
    return torch.take_along_dim(t, index.reshape(rows, *[1] * between, count, *[1] * (-1 - dim)), dim)


class DistanceTable(BlockwiseTerm):
    """A bias that depends on the distance between query and key alone, from a table of all distances.

    table    h (i + j - 1), from the largest distance to the smallest: the query r of i sees key c at c - r + i - 1
    """

    @property
    def by_entry(self) -> bool:
        return True

    def __init__(self, table: Tensor, q_len: int) -> None:
        super().__init__(None, learns=table.requires_grad)
        self.table, self.q_len = table, q_len

    def window(self, queries: slice, keys: slice) -> slice:
        """The part of the table that a block reads."""
        first = keys.start - queries.stop + self.q_len
        return slice(first, first + queries.stop - queries.start + keys.stop - keys.start - 1)

    def reversed_block(self, queries: slice, keys: slice) -> Tensor:
        """A block with its last row first, which is a view of the table:  h i j."""
        return self.table[:, self.window(queries, keys)].unfold(-1, keys.stop - keys.start, 1)

    def of(self, queries: slice, keys: slice) -> Tensor:
        if torch.compiler.is_compiling():  # a view would fix a symbolic length
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
    """No later keys. Those that features put in front are never late."""
    added, behind = call.total_keys - call.keys, torch.full((), call.total_keys - call.q_len, device=call.x.device)
    if added == 0:
        return lambda b, h, i, j: j <= i + behind
    return lambda b, h, i, j: (j <= i + behind) | (j < added)


# a call, and a block of it


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
    """Mixin of an attention call that runs in blocks: its masks and biases, and how to narrow them to a block.

    A block is a call with fewer `rows` and `keys`, made by `block(span)` of the `whole`. Then `later_keys` follow that
    of its last query, and `carried` is what earlier blocks hand on. `token_idx` says at which of the new tokens each
    query stands, (i) or (b i), where they are not these tokens in their order.
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
        """A mask or bias as what can be cut into blocks, its shape checked."""
        if isinstance(t, BlockwiseTerm):
            whole = isinstance(t, (RepeatedTerm, DenseTerm))
            return t if self.maps == 1 or whole else RepeatedTerm(t, self.maps, self.heads)
        t = _repeat_heads(to_4d(t), self.maps, self.heads)
        if not torch.compiler.is_compiling() and t.shape[-1] not in (1, self.keys, self.total_keys):
            raise ValueError(
                f'`{name}` got shape {tuple(t.shape)}, its last axis must be {self.keys}, the number of keys'
            )
        if not torch.compiler.is_compiling():
            check_scores(t, name, self.batch, self.heads, self.q_len)
        return DenseTerm(t, self.q_len, self.keys)

    def expand_term(self, term: BlockwiseTerm, filler: float) -> Tensor:
        """A mask or bias for the rows and keys of the call, padded in front for the keys that features add."""
        own = (slice(0, self.q_len), slice(0, self.keys)) if self.span is None else (self.span.queries, self.span.keys)
        t = to_4d(term.of(*own))
        if t.shape[-1] == self.total_keys:
            return t
        return F.pad(t.expand(*t.shape[:-1], self.keys), (self.total_keys - self.keys, 0), value=filler)

    def combine(self) -> Any:
        """Compute mask and bias for all rows of the call."""
        masks = [self.expand_term(term, True) for term in self.masks]
        biases = [self.expand_term(term, 0.0) for term in self.biases]
        self.mask = functools.reduce(torch.logical_and, masks) if masks else None
        self.bias = sum(biases[1:], biases[0]) if biases else None
        self.combined = True
        return self

    @property
    def whole(self) -> Any:
        """The call of which this may be a block."""
        return self.in_one or self

    def block(self, span: QueryBlock) -> Any:
        """The call of some queries, and the keys that they may see."""
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
        """Return the tensors that blocks read and the caller may hold."""
        tensors = [term.t for term in (*self.masks, *self.biases) if isinstance(term, DenseTerm)]
        return tensors + [t for t in (*self.inputs.values(), self.key_mask, self.token_mask) if torch.is_tensor(t)]

    def with_biases(self, biases: list[BlockwiseTerm]) -> Any:
        new = copy.copy(self)
        new.biases = biases
        return new

    def mask_entry(self) -> Pointwise | None:
        """Return True if one query sees one key:  b, h, i, j -> bool, where j counts the keys in front too. All masks
        and the triangle, each of which must be `by_entry`; None if every query sees all."""
        added = self.total_keys - self.keys
        masks = [mask.pointwise(added, True) for mask in self.masks] + (
            [_causal_entry(self)] if self.needs_causal_mask else []
        )
        return and_entries(tuple(masks)) if masks else None

    def bias_entry(self) -> Pointwise | None:
        """Return the function of the bias of one query and key:  b, h, i, j -> float. None for nothing."""
        added = self.total_keys - self.keys
        biases = [bias.pointwise(added, 0.0) for bias in self.biases]
        return _sum_entries(tuple(biases)) if biases else None

    def split_inputs(self, height: int) -> None:
        """Prepare for blocks what was given for all scores and has a gradient. It would fix a symbolic length."""
        if torch.compiler.is_compiling():
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
        """What counts the keys of the call along an axis, such as (... j), for those that are queries too."""
        if self.token_idx is not None:
            return gather_along(t, self.token_idx + (t.shape[dim] - self.tokens.shape[1]), dim)
        stop = t.shape[dim] - self.later_keys
        start = max(stop - self.q_len, 0)
        return t.narrow(dim, start, max(stop, start) - start)

    @property
    def q_pos(self) -> Tensor:
        """Positions of the queries:  i, or with rows b i, or per head b h i."""
        return self.find_positions('pos', 'index')[0]

    @property
    def k_pos(self) -> Tensor:
        """Positions of the keys, without those that features put in front:  j, or with rows b j, or per head b h j.

        The caller's own, else those of `k_at`. Distances mean something, the numbers themselves need not: those of
        padding on the left may count too.
        """
        return self.find_positions('pos', 'index')[1]

    @property
    def q_at(self) -> Tensor:
        """Where the queries stand in their sequence:  i, or with rows b i."""
        return self.find_positions('index')[0]

    @property
    def k_at(self) -> Tensor:
        """Where the keys stand in their sequence:  j, or with rows b j. Positions of the caller's change nothing.

        Counted from the first key; with memories and padding on the left from the first real token of each row,
        memories at negative ones. Distances mean something, the numbers themselves need not.
        """
        return self.find_positions('index')[1]

    def in_order(self, *names: str) -> bool:
        """Return True if the queries are the last keys, and all are counted from the first one, by these inputs."""
        return self.token_idx is None and all(self.inputs.get(name) is None for name in names)

    def find_positions(self, *names: str) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys by the first of these inputs that is given; settled when first asked for,
        which is once all keys are known."""
        if self.span is not None:
            q_pos, k_pos = self.whole.find_positions(*names)
            return q_pos[..., self.span.queries], k_pos[..., self.span.keys]
        if names not in self.positions:
            positions = [t for t in map(self.inputs.get, names) if t is not None]
            k_pos = positions[0] if positions else torch.arange(self.keys, device=self.x.device)
            self.positions[names] = self.of_queries(k_pos), k_pos
        return self.positions[names]

    def make_order_mask(self) -> list[BlockwiseTerm]:
        """What takes the place of the triangle for queries that are not the last keys: a mask by their places."""
        if self.token_idx is None or not self.causal:
            return []
        place = torch.arange(self.keys, device=self.x.device)
        own = self.of_queries(place)

        def of(queries: slice, keys: slice) -> Tensor:
            mask = place[keys] <= own[..., queries].unsqueeze(-1)
            return mask if mask.ndim == 2 else mask.unsqueeze(1)

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(own), make_axis_lookup(place)
            return lambda b, h, i, j: of_key(b, j) <= of_query(b, i)

        return [BlockwiseTerm(of, entry=entry, made_of=(own,))]

    def check_no_token_idx(self, name: str, reason: str) -> None:
        """For a feature that knows its queries only in the order of the keys."""
        if self.token_idx is not None:
            raise ValueError(f'`{name}` does not go with queries that `select_inputs` puts elsewhere: {reason}')
