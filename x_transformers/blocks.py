"""Blocks: attention a few rows of queries at a time, so that its memory grows with the length, not with its square.

What belongs here: how queries and keys of a call are cut (`Span`), masks and biases that can be computed for a block
at a time (`Rows`), the loop over blocks (`by_rows`), and additive attention in blocks with a gradient of its own.

A block sees the keys up to its last row where the call is causal, and no further back than a window reaches; keys that
features put in front are always there. What a block computes is forgotten, and computed again in the backward pass.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.again import Kept, again, batched, differentiated, hosts_of, itself, outside_of_vmap
from x_transformers.checks import check_scores, first_of
from x_transformers.derivatives import transformed

if TYPE_CHECKING:
    from x_transformers.calls import Call

# Scores, b h i j in all, from which on a call runs in blocks: fewer are held at once, which is faster than twice.
LARGE = {'cpu': 2**22, 'cuda': 2**26}
# Scores that a block holds: on a CPU, what stays in the cache of a core.
BLOCK = {'cpu': 2**19, 'cuda': 2**24}
# With fewer rows, reading the keys would take longer than multiplying them.
FEWEST_ROWS = 64
# Rows that torch's kernel is given at once, where it cannot know of the triangle.
FLASH_ROWS = 256

# (b, h, i, j) -> the value for one query and one key, from tensors that count them
Pointwise = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def is_large(like: Tensor, batch: int, heads: int, rows: int, keys: int) -> bool:
    """Whether the scores of a call are too many to be held at once. A compiled graph has one way for all lengths."""
    if rows == 1 or torch.compiler.is_compiling() or transformed():
        return False
    return batch * heads * rows * keys > LARGE.get(like.device.type, LARGE['cuda'])


def height_of(like: Tensor, scores_per_row: int) -> int:
    """How many rows a block has."""
    return max(BLOCK.get(like.device.type, BLOCK['cuda']) // scores_per_row, FEWEST_ROWS)


@contextmanager
def replayed(state: tuple[Tensor, ...], device: torch.device) -> Iterator[None]:
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


@dataclass(frozen=True)
class Span:
    """A block: which queries, and which of the keys behind those that features put in front."""

    rows: slice
    keys: slice


def spans_of(call: Call, height: int, whole_rows: bool = False, leftmost: bool = False) -> list[Span]:
    """The blocks of a call, of `height` rows each, without the keys that are too late or too far back for all rows.

    `whole_rows`: with all keys. `leftmost`: with all keys from the first on.
    """
    causal = call.causal and call.places is None
    reaches = [mask.reach for mask in call.masks if mask.reach is not None]
    found, behind = [], call.keys - call.rows
    for start in range(0, call.rows, height):
        stop = min(start + height, call.rows)
        last = min(max(behind + stop, 1), call.keys) if causal and not whole_rows else call.keys
        first = min(max(behind + start - min(reaches), 0), last - 1) if reaches and not (whole_rows or leftmost) else 0
        found.append(Span(slice(start, stop), slice(first, last)))
    return found


def pieces(keys: slice, added: int) -> tuple[slice, ...]:
    """Where the keys of a block stand among all: those in front, then its own."""
    own = slice(added + keys.start, added + keys.stop)
    return (slice(0, own.stop),) if keys.start == 0 else (own,) if added == 0 else (slice(0, added), own)


def cut_keys(t: Tensor, keys: slice, all_keys: int, dim: int) -> Tensor:
    """The keys of a block; what stands in front of them stays."""
    if t.shape[dim] == 1 or keys == slice(0, all_keys):
        return t
    found = [t.narrow(dim, p.start, p.stop - p.start) for p in pieces(keys, t.shape[dim] - all_keys)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=dim)


# masks and biases, a block at a time


class Rows:
    """A mask or bias that is computed for a block at a time.

    of(rows, keys)   -> broadcasts to b h i j, for two slices: of the queries, and of the keys without those in front
    reach            keys further back than this, counted in keys, are hidden
    learns           whether a gradient flows into it
    of_keys          whether it is the same for all heads and queries
    entry()          -> the same for one query and one key, if it can be: for FlexAttention (`flex.py`). A function
                     that holds tensors, and numbers that do not change with the lengths
    made_of          the tensors and numbers that, with the lengths, decide what it gives, if known
    """

    of_keys = False

    def __init__(
        self,
        of: Callable[[slice, slice], Tensor] | None,
        *,
        reach: int | None = None,
        learns: bool = False,
        entry: Callable[[], Pointwise] | None = None,
        made_of: tuple[Any, ...] | None = None,
    ) -> None:
        self.make, self.reach, self.learns = of, reach, learns
        self.entry, self.made_of = entry, made_of

    def of(self, rows: slice, keys: slice) -> Tensor:
        return self.make(rows, keys)

    @property
    def by_entry(self) -> bool:
        """Whether `pointwise` has an answer."""
        return self.entry is not None

    def pointwise(self, added: int, filler: float) -> Pointwise:
        """`entry` for all keys of the call, of which the `added` ones in front get the filler."""
        return behind(self.entry(), added, filler)


def behind(entry: Pointwise, added: int, filler: float) -> Pointwise:
    if added == 0:
        return entry
    return lambda b, h, i, j: torch.where(j < added, filler, entry(b, h, i, (j - added).clamp(min=0)))


class Given(Rows):
    """What was given whole."""

    by_entry = True

    def __init__(self, t: Tensor, rows: int, keys: int) -> None:
        super().__init__(None, learns=t.requires_grad)
        self.t, self.size, self.of_keys = t, (rows, keys), t.shape[1:-1] == (1, 1)
        self.made_of = (t,)
        self.parts: dict[int, Tensor] = {}

    def split(self, height: int) -> Given:
        """Cut all rows at once: cut one by one, each would have a gradient as large as the whole."""
        if self.t.requires_grad and self.t.ndim > 1 and self.t.shape[-2] == self.size[0]:
            self.parts = dict(zip(range(0, self.size[0], height), self.t.split(height, dim=-2), strict=True))
        return self

    def of(self, rows: slice, keys: slice) -> Tensor:
        (all_rows, all_keys), t = self.size, self.t
        if rows != slice(0, all_rows) and t.ndim > 1 and t.shape[-2] == all_rows:
            t = self.parts[rows.start] if self.parts else t[..., rows, :]
        return cut_keys(t, keys, all_keys, -1)

    def pointwise(self, added: int, filler: float) -> Pointwise:
        t = to_4d(summable(self.t))
        wide, covers = tuple(n > 1 for n in t.shape), t.shape[-1] == self.size[1] + added
        return behind(read_at(t.reshape([n for n in t.shape if n > 1]), wide), 0 if covers else added, filler)


def summable(t: Tensor) -> Tensor:
    """In a dtype in which many gradients of one entry can be summed up."""
    return t.float() if t.requires_grad and t.dtype in (torch.float16, torch.bfloat16) else t


def read_at(t: Tensor, wide: tuple[bool, ...]) -> Pointwise:
    """The entries of a tensor with some of the axes b h i j."""
    if not any(wide):
        t = t.reshape(1)
        return lambda b, h, i, j: t[b * 0]
    return lambda *at: t[tuple([place for place, is_wide in zip(at, wide) if is_wide])]  # noqa: B905


def of_each(t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The entries of a row that all of the batch share, (n) or (1 n), or of rows (b n):  b, n -> t_bn"""
    if t.ndim > 1 and t.shape[0] > 1:
        return lambda b, n: t[b, n]
    t = t if t.ndim == 1 else t[0]
    return lambda b, n: t[n]


def taken(t: Tensor, index: Tensor, dim: int) -> Tensor:
    """Entries of `t` along an axis counted from the last, the same for the batch (i), or of each row (b i)."""
    if index.ndim == 1:
        return t.index_select(dim, index)
    if t.ndim == 1:
        return t[index]
    between = t.ndim - 1 + dim
    return torch.take_along_dim(t, index.reshape(index.shape[0], *[1] * between, -1, *[1] * (-1 - dim)), dim)


class Diagonals(Rows):
    """A bias that depends on the distance between query and key alone, from a table of all distances.

    table    h (i + j - 1), from the largest distance to the smallest: the query r of i sees key c at c - r + i - 1
    """

    by_entry = True

    def __init__(self, table: Tensor, rows: int) -> None:
        super().__init__(None, learns=table.requires_grad)
        self.table, self.rows = table, rows

    def window(self, rows: slice, keys: slice) -> slice:
        """The part of the table that a block reads."""
        first = keys.start - rows.stop + self.rows
        return slice(first, first + rows.stop - rows.start + keys.stop - keys.start - 1)

    def upwards(self, rows: slice, keys: slice) -> Tensor:
        """A block with its last row first, which is a view of the table:  h i j."""
        return self.table[:, self.window(rows, keys)].unfold(-1, keys.stop - keys.start, 1)

    def of(self, rows: slice, keys: slice) -> Tensor:
        return self.upwards(rows, keys).flip(-2).unsqueeze(0)

    def pointwise(self, added: int, filler: float) -> Pointwise:
        table, last = summable(self.table), torch.full((), self.rows - 1, device=self.table.device)
        return behind(lambda b, h, i, j: table[h, j - i + last], added, filler)


# a call, and a block of it


def to_4d(t: Tensor) -> Tensor:
    return t[(None,) * (4 - t.ndim)]


@dataclass(kw_only=True)
class InBlocks:
    """What a call of an attention layer needs to be run in blocks: its masks and biases, and how to narrow it.

    A block is a call with fewer `rows` and `keys`, made by `block(span)` of the `whole`. Then `later` keys follow that
    of its last query, and `carried` is what earlier blocks hand on. `places` says at which of the new tokens each query
    stands, (i) or (b i), where they are not these tokens in their order.
    """

    masks: list[Rows] = field(default_factory=list)
    biases: list[Rows] = field(default_factory=list)
    span: Span | None = None
    later: int = 0
    carried: dict[str, Tensor] = field(default_factory=dict)
    given: dict[int, Given] = field(default_factory=dict)
    in_one: Any = None
    places: Tensor | None = None

    if TYPE_CHECKING:
        x: Tensor
        tokens: Tensor
        inputs: dict[str, Any]
        notes: dict[str, Any]
        mask: Tensor | None
        bias: Tensor | None
        real: Tensor | None
        query_mask: Tensor | None
        batch: int
        rows: int
        heads: int
        keys: int
        total_keys: int

    def term(self, t: Tensor | Rows, name: str) -> Rows:
        """A mask or bias as what can be cut into blocks, its shape checked."""
        if isinstance(t, Rows):
            return t
        t = to_4d(t)
        if not torch.compiler.is_compiling() and t.shape[-1] not in (1, self.keys, self.total_keys):
            raise ValueError(
                f'`{name}` got shape {tuple(t.shape)}, its last axis must be {self.keys}, the number of keys'
            )
        if not torch.compiler.is_compiling():
            check_scores(t, name, self.batch, self.heads, self.rows)
        return Given(t, self.rows, self.keys)

    def widened(self, term: Rows, filler: float) -> Tensor:
        """A mask or bias for the rows and keys of the call, padded in front for the keys that features add."""
        own = (slice(0, self.rows), slice(0, self.keys)) if self.span is None else (self.span.rows, self.span.keys)
        t = to_4d(term.of(*own))
        if t.shape[-1] == self.total_keys:
            return t
        return F.pad(t.expand(*t.shape[:-1], self.keys), (self.total_keys - self.keys, 0), value=filler)

    def gather(self) -> Any:
        """Compute mask and bias for all rows of the call."""
        masks = [self.widened(term, True) for term in self.masks]
        biases = [self.widened(term, 0.0) for term in self.biases]
        self.mask = functools.reduce(torch.logical_and, masks) if masks else None
        self.bias = sum(biases[1:], biases[0]) if biases else None
        return self

    @property
    def whole(self) -> Any:
        """The call of which this may be a block."""
        return self.in_one or self

    def block(self, span: Span) -> Any:
        """The call of some queries, and the keys that they may see."""
        new = copy.copy(self)
        new.span, new.in_one, new.notes, new.x = span, self, dict(self.notes), self.x[:, span.rows]
        new.in_part = True
        new.later = span.keys.stop - (self.keys - self.rows + span.rows.stop)
        new.keys = span.keys.stop - span.keys.start
        new.total_keys = self.total_keys - self.keys + new.keys
        new.real = None if self.real is None else self.real[:, span.keys]
        if self.places is not None:
            new.places = self.places[..., span.rows]
        if self.query_mask is not None:
            new.query_mask = self.query_mask[:, -self.rows :][:, span.rows]
        return new.gather()

    def reads(self) -> list[Tensor]:
        """What blocks read of what the caller may hold."""
        given = [term.t for term in (*self.masks, *self.biases) if isinstance(term, Given)]
        return given + [t for t in (*self.inputs.values(), self.real, self.query_mask) if torch.is_tensor(t)]

    def with_biases(self, biases: list[Rows]) -> Any:
        new = copy.copy(self)
        new.biases = biases
        return new

    def split_inputs(self, height: int) -> None:
        """Prepare for blocks what was given for all scores and has a gradient."""
        for t in self.inputs.values():
            if torch.is_tensor(t) and t.requires_grad and t.ndim > 2 and t.shape[-2] == self.rows:
                self.given[id(t)] = Given(t, self.rows, self.keys).split(height)
        for term in (*self.masks, *self.biases):
            if isinstance(term, Given):
                term.split(height)

    def cut(self, t: Tensor) -> Tensor:
        """What broadcasts to the scores of the whole call, (... i j), for those of this block."""
        if self.span is None:
            return t
        whole = self.whole
        return whole.given.get(id(t), Given(t, whole.rows, whole.keys)).of(self.span.rows, self.span.keys)

    def cut_keys(self, t: Tensor) -> Tensor:
        """What counts all keys, (... j), for those of this block."""
        return t if self.span is None else cut_keys(t, self.span.keys, self.whole.keys, -1)

    def cut_rows(self, t: Tensor) -> Tensor:
        """What counts the queries of the whole call, (... i d), for those of this block."""
        return t if self.span is None else t[..., self.span.rows, :]

    def of_queries(self, t: Tensor, dim: int = -1) -> Tensor:
        """What counts the keys of the call along an axis, such as (... j), for those that are queries too."""
        if self.places is not None:
            return taken(t, self.places + (t.shape[dim] - self.tokens.shape[1]), dim)
        stop = t.shape[dim] - self.later
        start = max(stop - self.rows, 0)
        return t.narrow(dim, start, max(stop, start) - start)

    def order(self) -> list[Rows]:
        """What takes the place of the triangle for queries that are not the last keys: a mask by their places."""
        if self.places is None or not self.causal:
            return []
        place = torch.arange(self.keys, device=self.x.device)
        own = self.of_queries(place)

        def of(rows: slice, keys: slice) -> Tensor:
            mask = place[keys] <= own[..., rows].unsqueeze(-1)
            return mask if mask.ndim == 2 else mask.unsqueeze(1)

        def entry() -> Pointwise:
            of_query, of_key = of_each(own), of_each(place)
            return lambda b, h, i, j: of_key(b, j) <= of_query(b, i)

        return [Rows(of, entry=entry, made_of=(own,))]

    def refuse_places(self, name: str, reason: str) -> None:
        """For a feature that knows its queries only in the order of the keys."""
        if self.places is not None:
            raise ValueError(f'`{name}` does not go with queries that `views` puts elsewhere: {reason}')


# any kernel, block after block


def by_rows(
    kernel: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, call: Call, on: Any,
    whole_rows: bool = False, carries: bool = False,
) -> Tensor:  # fmt: skip
    """A kernel, block after block. Each is computed again in the backward pass, with the same noise.

    `whole_rows`: hidden keys count, and stay. `carries`: what a block leaves in `call.carried` is there for the next.
    """
    height = height_of(q, q.shape[0] * call.heads * k.shape[-2])
    call.split_inputs(height)
    names: tuple[str, ...] = ()
    outs, carried = [], ()

    def run(
        now: Callable[[Any], Any], span: Span, known: tuple[str, ...], q: Tensor, k: Tensor, v: Tensor, *carried: Tensor
    ) -> tuple[Tensor, ...]:
        nonlocal names
        block = call.block(span)
        block.carried = dict(zip(known, carried, strict=True))
        out = kernel(q, *(cut_keys(t, span.keys, call.keys, -2) for t in (k, v)), block, now(on))
        names = tuple(block.carried)
        return out, *block.carried.values()

    step: Callable[..., Any] = functools.partial(run, itself)
    if torch.is_grad_enabled():
        step = functools.partial(again, run, kept=Kept(*hosts_of(on)), reads=call.reads())
    for span, rows in zip(spans_of(call, height, whole_rows, carries), q.split(height, dim=-2), strict=True):
        out, *carried = step(span, names, rows, k, v, *carried)
        outs.append(out)
    return torch.cat(outs, dim=-2)


# additive attention in blocks


def table_and_rest(call: Call) -> tuple[Diagonals | None, list[Rows]]:
    """The bias that is a table of distances, and the others."""
    table = first_of(bias for bias in call.biases if isinstance(bias, Diagonals))
    return table, [bias for bias in call.biases if bias is not table]


def can_add(q: Tensor, k: Tensor, v: Tensor, call: Call) -> bool:
    """Whether `additive` does this call: on a CPU, in one dtype of many digits, if only a table of distances learns."""
    if q.device.type != 'cpu' or (torch.is_autocast_enabled('cpu') and not call.full_precision):
        return False
    learns = torch.is_grad_enabled() and any(bias.learns for bias in table_and_rest(call)[1])
    return q.dtype == k.dtype == v.dtype and q.dtype in (torch.float32, torch.float64) and not learns


def additive(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """softmax(q k^T + bias) v,  where hidden keys weigh nothing.

    q, k, v     b h i d, b h j d, b h j e
    """
    bias, rest = table_and_rest(call)
    table = None if bias is None else bias.table.to(q.dtype)
    bias = None if bias is None else Diagonals(table, bias.rows)
    # with the last row first, a bias of distances is a view of its table
    q = (q * call.scale).flip(-2)
    return Additive.apply(call.with_biases(rest), bias, q, k.contiguous(), v.contiguous(), table).flip(-2)


class Additive(torch.autograd.Function):
    """The forward pass keeps its inputs, its output and l = logsumexp(s); the backward pass makes each block again:

    P = exp(s - l),  dP = dO V^T,  ds = P (dP - sum(dO O)),  dq = ds k,  dk = ds^T q,  dv = P^T dO

    and sums ds along diagonals for the table. The two differences are one more feature of what is multiplied. For
    derivatives of derivatives, and several losses at once, autograd goes through the formula.
    """

    @staticmethod
    def forward(
        ctx: Any, call: Call, bias: Diagonals | None, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None
    ) -> Tensor:
        ctx.call, ctx.bias = call, bias
        ctx.noise = noise_state(q.device) if call.dropout else None
        if only_distances(call, bias, q, v):
            out, log_sums = by_flash(call, bias, q, k, v)
            ctx.save_for_backward(q, k, v, table, out, log_sums, *call.reads())
            return out
        out, log_sums = q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(*q.shape[:-1], 1)
        for part in parts_of(call, bias, q, k):
            scores = part.scores(q, k)
            p = scores.softmax(dim=-1)
            if any(ctx.needs_input_grad):  # the largest is exp(its score - l)
                part.rows(log_sums).copy_(scores.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log())
            p = part.cleared(p)
            kept = part.kept(p)
            torch.bmm(p if kept is None else p.mul_(kept), part.keys(v), out=part.rows(out))
        ctx.save_for_backward(q, k, v, table, out, log_sums, *call.reads())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            with nullcontext() if ctx.noise is None else replayed(ctx.noise, grad.device):
                if not (torch.is_grad_enabled() or batched(grad)):
                    return Additive.gradients(ctx, grad)
                formula = functools.partial(additive_formula, ctx.call, ctx.bias)
                return None, None, *differentiated(formula, ctx.saved_tensors[:4], ctx.needs_input_grad[2:], grad)

    @staticmethod
    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, table, out, log_sums = ctx.saved_tensors[:6]
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        diagonals = DiagonalSums(table) if ctx.needs_input_grad[5] else None
        shifted_q, ones_k = torch.cat((q, -log_sums), dim=-1), torch.cat((k, torch.ones_like(k[..., :1])), dim=-1)
        inner = (grad * out).sum(dim=-1, keepdim=True)
        shifted_grad, ones_v = torch.cat((grad, -inner), dim=-1), torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
        for part in parts_of(ctx.call, ctx.bias, q, k):
            p = part.exponentials(part.scores(shifted_q, ones_k))
            kept, dout = part.kept(p), part.rows(grad)
            if kept is None:
                part.add_to(dv, p, dout)
                dp = torch.bmm(part.rows(shifted_grad), part.keys(ones_v).mT)
            else:
                part.add_to(dv, p * kept, dout)
                dp = torch.bmm(dout, part.keys(v).mT).mul_(kept).sub_(part.rows(inner))
            ds = p.mul_(dp) if diagonals is None else diagonals.add(part, p, dp)
            torch.bmm(ds, part.keys(k), out=part.rows(dq))
            part.add_to(dk, ds, part.rows(q))
        return None, None, dq, dk, dv, None if diagonals is None else diagonals.sums


def additive_formula(
    call: Call, bias: Diagonals | None, q: Tensor, k: Tensor, v: Tensor, table: Tensor | None
) -> Tensor:
    """The same output, of steps that have derivatives, which save the scores of all rows."""
    bias = None if table is None else Diagonals(table, bias.rows)
    rows: dict[int, dict[int, list[Tensor]]] = {}
    for part in parts_of(call, bias, q, k):
        p = part.scores(q, k).softmax(dim=-1)
        if part.block.may_be_blind:
            p = p.masked_fill(part.of_heads(part.block.blind()), 0.0)
        with torch.no_grad(), outside_of_vmap():
            kept = part.kept(p)
        out = (p if kept is None else p * kept) @ part.keys(v)
        rows.setdefault(part.back.start, {}).setdefault(part.at[0], []).append(out)
    blocks = [torch.stack([torch.cat(heads) for heads in batch.values()]) for _, batch in sorted(rows.items())]
    return torch.cat(blocks, dim=-2)


def only_distances(call: Call, bias: Diagonals | None, q: Tensor, v: Tensor) -> bool:
    """Whether nothing is added but a table of distances, and nothing hidden but by the triangle."""
    known = hasattr(torch.ops.aten, '_scaled_dot_product_flash_attention_for_cpu')
    alone = bias is not None and not call.biases and not call.masks and call.total_keys == call.keys >= call.rows
    return known and alone and call.dropout == 0 and call.later == 0 and q.shape[-1] == v.shape[-1]


def by_flash(call: Call, bias: Diagonals, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sums by torch's kernel, whose mask is a view of the table: it forms no scores."""
    table, total = bias.table.detach(), q.shape[-2]
    if call.triangle:  # the future has distances of its own
        table = table.clone()
        table[:, call.keys :] = torch.finfo(q.dtype).min / 2
    bias = Diagonals(table, bias.rows)
    out, log_sums = torch.empty_like(q), q.new_empty(*q.shape[:-1], 1)
    for span in spans_of(call, FLASH_ROWS):
        back = slice(total - span.rows.stop, total - span.rows.start)
        mask = bias.upwards(span.rows, span.keys).expand(q.shape[0], -1, -1, -1)
        qkv = q[:, :, back], k[:, :, span.keys], v[:, :, span.keys]
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0, False, attn_mask=mask, scale=1.0)
        out[:, :, back], log_sums[:, :, back, 0] = found
    return out, log_sums


class DiagonalSums:
    """Sums the gradient of scores along diagonals: with each row one step further to the right, they are columns."""

    def __init__(self, table: Tensor) -> None:
        self.sums = torch.zeros_like(table)
        self.skewed, self.size = table.new_zeros(0), (0, 0)

    def add(self, part: Part, p: Tensor, dp: Tensor) -> Tensor:
        """The gradient p dp of the scores, last row first."""
        heads, height, width = p.shape
        width -= part.added
        room = self.sums.shape[-1]
        stays = self.size[0] == height and self.size[1] <= width  # what is not written below is zero
        if self.skewed.numel() < heads * height * room or not stays:
            self.skewed = p.new_zeros(heads * height * room)
        self.size = height, width
        view = self.skewed.as_strided((heads, height, width), (height * room, room + 1, 1))
        if part.added:
            ds = p.mul_(dp)
            view.copy_(ds[..., part.added :])
        else:
            ds = torch.mul(p, dp, out=view)
        columns = self.skewed.as_strided((heads, height, width + height - 1), (height * room, room, 1))
        self.sums[part.at[1], part.window].add_(columns.sum(dim=1))
        return ds


def negligible(dtype: torch.dtype) -> float:
    """Weights below this one count for nothing."""
    return torch.finfo(dtype).tiny ** 0.66


class Part:
    """Some heads of one row of the batch, in one block; rows stand in reverse."""

    def __init__(self, block: Call, span: Span, total: int, at: tuple[int, slice], bias: Diagonals | None) -> None:
        self.block, self.span, self.bias, self.at = block, span, bias, at
        self.back = slice(total - span.rows.stop, total - span.rows.start)
        self.added = block.total_keys - block.keys

    def rows(self, t: Tensor) -> Tensor:
        """The block's rows (h i d) of b h i d, as a view."""
        batch, heads = self.at
        return t[batch, heads, self.back]

    def keys(self, t: Tensor) -> Tensor:
        batch, heads = self.at
        return cut_keys(t[batch, heads], self.span.keys, self.block.whole.keys, -2)

    def of_heads(self, t: Tensor) -> Tensor:
        """From a mask or bias, b h i j or broadcasting to that."""
        batch, heads = self.at
        t = t[batch if t.shape[0] > 1 else 0]
        t = t[heads] if t.shape[0] > 1 else t
        return t.flip(-2) if t.shape[-2] > 1 else t

    @property
    def window(self) -> slice:
        return self.bias.window(self.span.rows, self.span.keys)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """The logits (h i j); hidden ones hold the lowest finite number."""
        block, span = self.block, self.span
        known = None if self.bias is None else self.bias.upwards(span.rows, span.keys)[self.at[1]]
        if known is not None and self.added == 0:
            scores = torch.baddbmm(known, self.rows(q), self.keys(k).mT)
        else:
            scores = torch.bmm(self.rows(q), self.keys(k).mT)
            if known is not None:
                scores[..., self.added :].add_(known)
        if block.bias is not None:
            scores.add_(self.of_heads(block.bias.to(scores.dtype)))
        hidden = torch.finfo(scores.dtype).min
        if block.triangle_alone:  # it hides nothing but the last keys, as many as there are rows
            scores[..., -block.rows :].masked_fill_(upper(block.rows, scores.device), hidden)
            seen = block.mask
        else:
            seen = block.seen()
        return scores if seen is None else scores.masked_fill_(~self.of_heads(seen), hidden)

    def cleared(self, p: Tensor) -> Tensor:
        """Weights without those of rows that see nothing, and those that a bias made far too small to count: numbers
        below the normal ones are multiplied ten times slower."""
        if self.bias is not None or self.block.bias is not None:
            torch.threshold_(p, negligible(p.dtype), 0.0)
        return self.sighted(p)

    def exponentials(self, logits: Tensor) -> Tensor:
        """The weights again, from logits less their log-sums. What underflows takes a hundred times longer."""
        least = negligible(logits.dtype)
        return self.sighted(torch.threshold_(logits.clamp_(min=math.log(least) - 1).exp_(), least, 0.0))

    def sighted(self, p: Tensor) -> Tensor:
        return p.masked_fill_(self.of_heads(self.block.blind()), 0.0) if self.block.may_be_blind else p

    def kept(self, p: Tensor) -> Tensor | None:
        """What dropout leaves of each weight, scaled."""
        share = 1 - self.block.dropout
        return None if share == 1 else torch.empty_like(p).bernoulli_(share).div_(share)

    def add_to(self, total: Tensor, left: Tensor, right: Tensor) -> None:
        """Add left^T right to the rows of `total` that belong to the block's keys."""
        batch, heads = self.at
        done = 0
        for piece in pieces(self.span.keys, self.added):
            columns = slice(done, done + piece.stop - piece.start)
            total[batch, heads, piece].baddbmm_(left[..., columns].mT, right)
            done = columns.stop


def parts_of(call: Call, bias: Diagonals | None, q: Tensor, k: Tensor) -> Iterator[Part]:
    """The parts of a call, each about as large as a block should be."""
    batch, heads, total, keys = *q.shape[:3], k.shape[-2]
    height = height_of(q, heads * keys)
    for span in spans_of(call, height):
        block = call.block(span)
        some = max(BLOCK.get(q.device.type, BLOCK['cuda']) // (height * block.total_keys), 1)
        for row in range(batch):
            for first in range(0, heads, some):
                yield Part(block, span, total, (row, slice(first, min(first + some, heads))), bias)


@functools.cache
def upper(rows: int, device: torch.device) -> Tensor:
    """What the triangle hides of a square whose last row comes first."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1).flip(0)
