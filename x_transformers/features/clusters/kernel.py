"""Attention inside of clusters: tokens are sorted by their cluster, and see some of their neighbours in that order.

What belongs here: sort and chunk, for clusters of any kind. What forms them is a feature (`features/clusters`).
Nothing is as large as n x n; all shapes follow from the lengths alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.checks import can_read_values
from x_transformers.core.merging import merge_outputs
from x_transformers.core.modes import disable_autocast, is_transformed, to_float
from x_transformers.core.recompute import differentiate_formula, is_batched_grad
from x_transformers.core.rows import gather_along
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.dense import differentiable_sdpa

# scores that are held at once, and are computed again in the backward pass: what stays in the cache of a core
PIECE = {'cpu': 2**18, 'cuda': 2**25}
MOST = 64  # queries of a block
WHOLE = 128  # queries of a cluster that is not cut into blocks
GRAIN = 16  # sizes of blocks are multiples of it
FAR = 1e30  # what is taken off scores of keys that are not seen: with -inf exponentials take four times as long
UNSEEN = -FAR / 4  # scores below are those of such keys
LOG2 = math.log2(math.e)  # powers of two take a third of the time of those of e
SELF = -1e5  # added to the score of a token with itself, if that is its last resort
BLIND = SELF * LOG2 * 64  # less than any score of a key that is seen, to the base of 2; others are at twice that

# of queries (c g 1) and keys (c 1 w), their row and places (b, h, i, j) -> what is added to their scores
Extra = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Order(NamedTuple):
    """The tokens of each row, sorted, and which places of this order each one sees: from `first` to before `last`.

    token   r n   which token stands at a place
    place   r n   at which place a token stands
    first, last   r n   by place
    inner  r n   by place: which one of its chunk it is, or of a sequence of chunks of the same size
    part   queries of a long cluster are cut where `inner` is a multiple of this
    block, back, ahead   places are cut into blocks; none sees further than so many blocks back and ahead
    """

    token: Tensor
    place: Tensor
    first: Tensor
    last: Tensor
    inner: Tensor
    part: int
    block: int
    back: int
    ahead: int

    @property
    def width(self) -> int:
        """Return how many keys a block of queries meets."""
        return (self.back + 1 + self.ahead) * self.block


# orders


def sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (r n) of whole numbers from 0 on, sorted; equal ones stay in their order. And which token stands where."""
    rows, n = keys.shape
    # one row is sorted by its digits, which is many times as fast
    row = torch.arange(rows, device=keys.device).unsqueeze(-1)
    order = (keys + row * (keys.amax() + 1)).flatten().argsort(stable=True).view(rows, n) - row * n
    return keys.gather(-1, order), order


def spans(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for sorted rows (r, n), where the run of equals of each entry begins and ends."""
    n = keys.shape[-1]
    place = torch.arange(n, device=keys.device)
    begins = F.pad(keys[:, 1:] != keys[:, :-1], (1, 0), value=True)
    start = torch.where(begins, place, 0).cummax(dim=-1).values
    ends = F.pad(begins[:, 1:], (0, 1), value=True)
    end = torch.where(ends, place + 1, n).flip(-1).cummin(dim=-1).values.flip(-1)
    return start, end


def sort_by_rank(
    clusters: Tensor, hidden: Tensor | None, width: int, causal: bool, widths: Tensor | None = None
) -> Order:
    """Each cluster is cut by itself, into chunks of `width` tokens; a token sees its chunk and the one before.

    clusters   r n   which one each token is of, from 0 on
    hidden     r n   tokens that neither see nor are seen
    widths     r n   sizes of chunks that differ between rows or documents, by token, at most `width`; None for one size
    """
    keys = clusters if hidden is None else torch.where(hidden, clusters.amax() + 1, clusters)
    keys, token = sort(keys)
    start, end = spans(keys)
    place = torch.arange(keys.shape[-1], device=keys.device)
    inner = place - start
    own = width if widths is None else widths.gather(-1, token)
    chunk = inner.div(own, rounding_mode='floor')
    first = start + (chunk - 1).clamp(min=0) * own
    last = (place + 1).expand_as(end) if causal else torch.minimum(start + (chunk + 1) * own, end)
    block = min(width, MOST)
    back, ahead = -(-(2 * width - 1) // block), 0 if causal else -(-width // block)
    return seeing(token, first, last, hidden, inner, width, block, back, ahead)


def seeing(
    token: Tensor, first: Tensor, last: Tensor, hidden: Tensor | None, inner: Tensor, width: int, *blocks: int
) -> Order:
    if hidden is not None:
        last = torch.where(hidden.gather(-1, token), first, last)
    part = -(-width // -(-width // MOST))  # an equal part of a chunk that is no longer than a block
    place = torch.empty_like(token).scatter_(
        -1, token, torch.arange(token.shape[-1], device=token.device).expand_as(token)
    )
    return Order(token, place, first, last, inner, part, *blocks)


def sort_by_chunk(clusters: Tensor, hidden: Tensor | None, documents: Tensor | None, width: int, across: bool) -> Order:
    """All tokens of a document are cut into chunks of `width`, sorted by their clusters; a token sees its chunk, the
    one before and the one behind: of these its own cluster, or, if `across`, all tokens.

    documents   r n   which one each token is of, from 0 on; None for one
    """
    many = clusters.amax() + 1
    of = torch.zeros_like(clusters) if documents is None else documents
    of = of if hidden is None else torch.where(hidden, of.amax() + 1, of)
    keys, token = sort(of * many + clusters)
    begin, stop = spans(keys.div(many, rounding_mode='floor'))
    start, end = (begin, stop) if across else spans(keys)
    inner = torch.arange(keys.shape[-1], device=keys.device) - begin
    chunk = inner.div(width, rounding_mode='floor')
    first = torch.maximum(begin + (chunk - 1) * width, start)
    last = torch.minimum(begin + (chunk + 2) * width, end)
    reach = 1 if documents is None else 2  # chunks of a document need not begin with a block
    return seeing(token, first, last, hidden, inner, width, width, reach, reach)


# what blocks of queries meet


class Meeting:
    """Blocks of queries, and the keys around them, in one of several orders of the same tokens.

    A key that is seen in several orders is seen in the first of them alone, so that it counts once.
    """

    def __init__(self, orders: Sequence[Order], at: int, last_resort: bool) -> None:
        self.order, self.last_resort = orders[at], last_resort
        token, place, first, last, _, _, self.block, self.back, self.ahead = self.order
        self.rows, n = token.shape
        self.empty = -n % self.block  # places behind the last one, which see nothing
        count = torch.arange(n + self.empty, device=token.device)
        begins = (count.div(self.block, rounding_mode='floor') - self.back) * self.block  # where the keys of each do
        row = torch.arange(self.rows, device=token.device).unsqueeze(-1)
        self.token = (self.filled(token) + row * n).flatten()
        self.place = (place + row * (n + self.empty)).flatten()
        self.first = self.of_queries((self.filled(first) - begins).float())
        self.last = self.of_queries((self.filled(last) - 1 - begins).float())  # the last one that is seen
        self.earlier = []
        for other in orders[:at]:
            there = other.place.gather(-1, token)
            start, stop = other.first.gather(-1, there), other.last.gather(-1, there)
            middle, half = (start + stop - 1) / 2, (stop - start) / 2
            keys = self.windows(self.filled(there).float().view(-1, self.block, 1)).squeeze(-1)
            self.earlier.append((keys, *(self.of_queries(self.filled(t).float()) for t in (middle, half))))

    def filled(self, t: Tensor) -> Tensor:
        return F.pad(t, (0, self.empty))

    def of_queries(self, t: Tensor) -> Tensor:
        return t.reshape(-1, self.block, 1)

    def sorted(self, t: Tensor) -> Tensor:
        """Rows of all tokens (r n d) in blocks (c g d)."""
        return t.flatten(0, 1).index_select(0, self.token).view(-1, self.block, t.shape[-1])

    def unsorted(self, t: Tensor) -> Tensor:
        """Rows of blocks (c g d), for all tokens (r n d)."""
        return t.flatten(0, 1).index_select(0, self.place).view(self.rows, -1, t.shape[-1])

    def windows(self, blocks: Tensor) -> Tensor:
        """Return the entries that each block attends to, (c, w, d), from all blocks (c, g, d)."""
        wide, count = F.pad(blocks, (0, 0, 0, 0, self.back, self.ahead)), blocks.shape[0]
        return torch.cat([wide[at : at + count] for at in range(self.back + 1 + self.ahead)], dim=1)

    def nearness(self) -> Tensor:
        """0 for the keys that a query sees, c g w, at most -FAR / 2 for the others."""
        key = torch.arange(self.order.width, device=self.token.device, dtype=torch.float32)
        least = torch.minimum(key - self.first, self.last - key)
        for place, middle, half in self.earlier:
            least = torch.minimum(least, (place.unsqueeze(-2) - middle).abs_().sub_(half))
        return least.clamp_(max=0.0).mul_(FAR)

    def penalty(self) -> Tensor | None:
        """Return the penalty of a token's attention to itself, (g, w); None for none."""
        if not self.last_resort:
            return None
        key = torch.arange(self.order.width, device=self.token.device)
        own = torch.arange(self.block, device=key.device).unsqueeze(-1) + self.back * self.block
        return torch.where(key == own, SELF, 0.0)

    def extra(self, of: Extra, heads: int) -> Tensor:
        """Return the sum of terms for the scores of all blocks, (c, g, w)."""
        n = self.order.token.shape[-1]
        row = (self.token // n).view(-1, self.block, 1)[:, :1]
        query = self.token.view(-1, self.block, 1) - row * n
        key = self.windows(query).mT
        return of(row.div(heads, rounding_mode='floor'), row % heads, query, key)


# attention


def attend(
    q: Tensor, k: Tensor, v: Tensor, orders: Sequence[Order], last_resort: bool = False, extra: Maybe[Extra] = None
) -> tuple[Tensor, Tensor]:
    """Attention of each token to what it sees in any of these orders, together.

    q, k, v       b h n e, scaled, as many queries as keys
    orders        of rows (b h)
    last_resort   a token sees itself only if there is nothing else
    extra         what else is added to scores
    returns       outputs b h n e in float32 at least, and log-sums b h n
    """
    heads: Any = q.shape[1]
    if q.shape[0] == 0 or q.shape[2] == 0:
        return torch.zeros_like(to_float(v)), to_float(v).new_zeros(q.shape[:-1])
    rows = tuple([to_float(t).flatten(0, 1) for t in (q, k, v)])
    if extra is None and not torch.compiler.is_compiling() and not is_transformed():
        out, lse = Clustered.apply(*rows, tuple(orders), last_resort)
    else:
        out, lse = attend_by_formula(*rows, orders=orders, last_resort=last_resort, extra=extra, heads=heads)
    return out.unflatten(0, (-1, heads)), lse.unflatten(0, (-1, heads))


def attend_by_formula(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    orders: Sequence[Order],
    last_resort: bool,
    extra: Extra | None = None,
    heads: int = 1,
) -> tuple[Tensor, Tensor]:
    """Compute the output of rows (r, n, e) with all derivatives: a softmax for each order, then over orders."""
    parts = []
    for at in range(len(orders)):
        own = Meeting(orders, at, last_resort)
        scores = own.sorted(q) @ own.windows(own.sorted(k)).mT
        scores = scores + own.nearness().to(scores.dtype)
        penalty = own.penalty()
        scores = scores if penalty is None else scores + penalty
        scores = scores if extra is None else scores + own.extra(extra, heads)
        most = scores.detach().amax(dim=-1, keepdim=True)
        blind = most < UNSEEN
        weights = (scores - most.masked_fill(blind, 0.0)).exp()
        total = weights.sum(dim=-1, keepdim=True).masked_fill(blind, 1.0)  # whose logarithm has a gradient
        lse = (total.log() + most).masked_fill(blind, -math.inf)
        out = (weights / total) @ own.windows(own.sorted(v))
        parts.append((own.unsorted(out), own.unsorted(lse).squeeze(-1)))
    return parts[0] if len(parts) == 1 else merge_outputs(parts)


def sort_in_groups(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, hidden: Tensor | None, extra: Extra | None,
    ragged: bool = False,
) -> Tensor:  # fmt: skip
    """Attention inside of groups of any tokens: the mean over those in which a token sees a key, zeros for none.

    q, k, v   b h n e, scaled; there may be other counts of keys than of queries
    queries   b h c w   those of each group, no query twice; `keys` alike
    hidden    b j       keys that no one sees
    ragged    groups may be smaller in some rows: -1 stands for no query, and for no key
    """
    (b, h, n), groups = q.shape[:3], queries.shape[2]
    some_queries: Any = queries >= 0 if ragged else None
    some_keys: Any = keys >= 0 if ragged else None
    queries, keys = (queries.clamp(min=0), keys.clamp(min=0)) if ragged else (queries, keys)
    row = torch.arange(b * h, device=q.device).view(b, h, 1, 1)
    at, there = (row * n + queries).flatten(), (row * k.shape[2] + keys).flatten()
    own = q.flatten(0, 2).index_select(0, at).view(b, h * groups, -1, q.shape[-1])
    others = (t.flatten(0, 2).index_select(0, there).view(b, h * groups, -1, t.shape[-1]) for t in (k, v))
    bias = sighted = None
    if extra is not None:
        row = torch.arange(b, device=q.device).view(-1, 1, 1, 1, 1)
        head = torch.arange(h, device=q.device).view(-1, 1, 1, 1)
        of = extra(row, head, queries.unsqueeze(-1), keys.unsqueeze(-2))
        bias = of.flatten(1, 2).to(q.dtype)
    if hidden is not None or ragged:
        unseen = ~some_keys if ragged else torch.zeros_like(keys, dtype=torch.bool)
        unseen = unseen if hidden is None else unseen | gather_along(hidden, keys.flatten(1), -1).view_as(keys)
        bias = torch.where(unseen.view(b, h * groups, 1, -1), -FAR, q.new_zeros(()) if bias is None else bias)
    if bias is not None:  # who sees no key sees all, which counts nothing
        sighted = bias.amax(dim=-1, keepdim=True) > UNSEEN
        bias = torch.where(sighted, bias, 0.0)
    out = differentiable_sdpa(own, *others, attn_mask=bias, scale=1.0)
    rows = F.pad(out, (0, 1), value=1.0)
    rows = rows if sighted is None else rows * sighted
    rows = (rows * some_queries.view(b, h * groups, -1, 1) if ragged else rows).flatten(0, 2)
    total = q.new_zeros(b * h * n, rows.shape[-1]).index_add(0, at, rows)
    return (total[:, :-1] / total[:, -1:].clamp(min=1)).view(b, h, n, -1)


class Clustered(torch.autograd.Function):
    """`attend_by_formula`, a piece at a time, of which only the outcome is kept: the backward pass computes scores
    again.

    As all orders together are one softmax, its backward pass needs of them but their log-sum Z:  P = exp(s - Z)
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, orders: tuple[Order, ...], last_resort: bool
    ) -> tuple[Tensor, Tensor]:
        blocks = ClusterBlocks(orders, last_resort)
        outs, stats = pieces_forward(blocks, q * LOG2, torch.cat((k, v), dim=-1), any(ctx.needs_input_grad))
        most, totals = torch.stack([stats.index_select(0, slots) for slots in blocks.slots]).split(1, dim=-1)
        level = most.amax(dim=0)
        shares = (most - level.masked_fill(level == -math.inf, 0.0)).exp2_()
        total = (totals * shares).sum(dim=0)
        lse = total.log2().add_(level).view(q.shape[:-1]) / LOG2
        shares /= total.masked_fill(total == 0, 1.0)
        out = outs.new_zeros(len(total), v.shape[-1])
        for slots, share in zip(blocks.slots, shares, strict=True):
            out.addcmul_(outs.index_select(0, slots), share)
        out = out.view(*q.shape[:-1], -1)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.orders, ctx.last_resort, ctx.blocks = orders, last_resort, blocks
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_sums: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # in a checkpoint they are handed out once
        grad = torch.zeros_like(saved[3]) if grad is None else grad
        with disable_autocast(grad):
            return *get_gradients(ctx, saved, grad, of_sums), None, None


def get_gradients(ctx: Any, saved: Sequence[Tensor], grad: Tensor, of_sums: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of queries, keys and values."""
    q, k, v, out, lse = saved
    if torch.is_grad_enabled() or is_batched_grad(grad):

        def formula(*qkv: Tensor) -> Tensor:
            found, sums = attend_by_formula(*qkv, orders=ctx.orders, last_resort=ctx.last_resort)
            return found if of_sums is None else torch.cat((found, sums.unsqueeze(-1)), dim=-1)

        both = grad if of_sums is None else torch.cat((grad, of_sums.unsqueeze(-1)), dim=-1)
        return differentiate_formula(formula, (q, k, v), ctx.needs_input_grad[:3], both)
    # ds = P (dP - d),  d = sum(P dP) less the gradient of the log-sum
    level = (grad * out).sum(dim=-1, keepdim=True)
    level = level if of_sums is None else level - of_sums.unsqueeze(-1)
    lse = (lse * LOG2).masked_fill(lse == -math.inf, math.inf)  # exp(s - inf) is nothing
    of_queries = torch.cat((q * LOG2, grad, level, lse.unsqueeze(-1)), dim=-1)
    of_q, of_k, of_v = pieces_backward(ctx.blocks, of_queries, torch.cat((k, v), dim=-1), q.shape[-1])
    return of_q, of_k / LOG2, of_v


class ClusterPiece(NamedTuple):
    """Some blocks of the same size.

    queries   (c g)   tokens of all rows: those of each block, and others that fill it up and see nothing
    keys      (c w)
    near      c g w   whole numbers: 0 for the keys that a query sees, -127 or less for others, -1 for a last resort
    start     how many queries are in earlier pieces
    """

    queries: Tensor
    keys: Tensor
    near: Tensor
    start: int


class ClusterBlocks:
    """Queries that stand side by side in some orders, cut into blocks, and the keys that each block sees.

    Where that can be looked at, blocks are those of a cluster, with so many keys as they need; else all are of one
    size. Places are counted through, order by order and row by row.

    begin, low   by block: the place of its first query, and of its first key
    count        by block: how many queries are its own
    number       by block: how many orders are earlier than its own, or more
    sizes        queries and keys of each block, and how many blocks of that size follow each other
    slots        by token, for each order: which query of all blocks it is; `filled` where it sees nothing
    """

    def __init__(self, orders: Sequence[Order], last_resort: bool) -> None:
        self.orders, self.last_resort, self.kept = orders, last_resort, []
        self.rows, self.n = rows, n = orders[0].token.shape
        device = orders[0].token.device
        self.row = torch.arange(rows, device=device).unsqueeze(-1) * n
        token = (torch.stack([own.token for own in orders]) + self.row).flatten()
        first, last = (torch.stack(t).flatten() for t in zip(*((own.first, own.last) for own in orders), strict=True))
        slot = self.cut(first, last) if can_read_values(token) else self.grid(device)
        self.slots = [
            slot.index_select(0, (own.place + self.row).flatten() + at * rows * n) for at, own in enumerate(orders)
        ]
        seen = [(first + last - 1).float() / 2, (last - first - 1).float() / 2]  # its middle, and its half
        earlier = [self.seen_in(at, token, *seen) for at in range(len(orders) - 1)]
        of_queries, of_keys, many = (
            torch.tensor(t, device=device) for t in zip(*self.sizes or [(1, 1, 0)], strict=True)
        )
        self.filled = sum(size * count for size, _, count in self.sizes)
        block, inner = inside(of_queries.repeat_interleave(many, output_size=len(self.begin)), self.filled)
        begin, low, count, start = (
            t.index_select(0, block)
            for t in (self.begin, self.low, self.count, self.begin.div(n, rounding_mode='floor'))
        )
        place = (begin + inner).clamp_(max=len(token) - 1)
        self.queries, self.own = token.index_select(0, place), begin - low + inner
        self.of_queries = torch.stack([*seen, *(t for _, *own in earlier for t in own)], dim=-1).index_select(0, place)
        self.of_queries[:, 0] -= low - start * n
        self.of_queries[:, 1].masked_fill_(inner >= count, -1.0)
        filled = sum(size * count for _, size, count in self.sizes)
        block, inner = inside(of_keys.repeat_interleave(many, output_size=len(self.begin)), filled)
        place = (self.low.index_select(0, block) + inner).clamp_(0, len(token) - 1)
        self.keys, *self.of_keys = (t.index_select(0, place) for t in (token, *(there for there, *_ in earlier)))

    def seen_in(self, at: int, token: Tensor, middle: Tensor, half: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for the tokens at all indices, their index in one order, and the middle and half width of the keys
        visible there; below zero, unless that order is an earlier one."""
        size, own = self.rows * self.n, self.orders[at].place
        there = (own + self.row).flatten() + at * size
        of = own.flatten().float(), middle.index_select(0, there), half.index_select(0, there) + 0.5
        places, middle, half = (t.index_select(0, token) for t in of)
        half[: (at + 1) * size] = -1.0
        return places, middle, half

    def grid(self, device: torch.device) -> Tensor:
        """Blocks of one size; and by place, which query of all blocks it is."""
        own, total = self.orders[0], len(self.orders) * self.rows * self.n
        at = torch.arange(0, self.n, own.block, device=device)
        begin = torch.arange(0, total, self.n, device=device).unsqueeze(-1) + at
        self.begin, self.low = begin.flatten(), begin.flatten() - own.back * own.block
        self.count = (self.n - at).clamp(max=own.block).expand_as(begin).flatten()
        self.sizes, self.number = [(own.block, own.width, len(self.begin))], [len(self.orders) - 1] * len(self.begin)
        inner = torch.arange(self.n, device=device)
        wide = -(-self.n // own.block) * own.block  # of a row, filled up
        return (torch.arange(total // self.n, device=device).unsqueeze(-1) * wide + inner).flatten()

    def cut(self, first: Tensor, last: Tensor) -> Tensor:
        """Cut ranges of clusters, sorted by size. Those that see nothing are left out: their number is that of all."""
        total, place = len(first), torch.arange(self.n)
        begins = (first.view(-1, self.n) == place).flatten()
        lengths = torch.diff(begins.nonzero().squeeze(-1), append=torch.tensor([total]))
        if (long := lengths > WHOLE).any():
            cuts = torch.stack([own.inner % own.part == 0 for own in self.orders]).flatten()
            begins |= cuts & long.repeat_interleave(lengths)
        begin = begins.nonzero().squeeze(-1)
        count = torch.diff(begin, append=torch.tensor([total]))
        low, high = first[begin], last[begin + count - 1]
        grain = GRAIN if total >= 2**14 else 4 * GRAIN
        queries, keys = (t.add(grain - 1).div(grain, rounding_mode='floor') * grain for t in (count, high - low))
        kinds, order = (queries * (self.n + grain + 1) + keys).masked_fill(high <= low, -1).sort(stable=True)
        empty = int((kinds < 0).sum())
        order = order[empty:]
        self.begin, self.count = begin[order], count[order]
        self.low = low[order] + self.begin.div(self.n, rounding_mode='floor') * self.n
        self.number = self.begin.div(self.rows * self.n, rounding_mode='floor').tolist()
        _, many = kinds[empty:].unique_consecutive(return_counts=True)
        queries, ends = queries[order], many.cumsum(dim=0) - 1
        self.sizes = list(zip(queries[ends].tolist(), keys[order][ends].tolist(), many.tolist(), strict=True))
        base = torch.full_like(begin, total * grain)  # beyond all
        base[order] = queries.cumsum(dim=0) - queries
        slot = (base - begin).repeat_interleave(count).add_(torch.arange(total))
        return slot.clamp_(max=int(queries.sum()))

    def pieces(self, keep: bool) -> Iterator[ClusterPiece]:
        """A few blocks at a time; if they are to be kept, for the next time."""
        if self.kept:
            yield from self.kept
            return
        for piece in self.made():
            if keep:
                self.kept.append(piece)
            yield piece

    def made(self) -> Iterator[ClusterPiece]:
        most, block, q_at, k_at = PIECE.get(self.queries.device.type, PIECE['cuda']), 0, 0, 0
        for queries, keys, many in self.sizes:
            key = torch.arange(keys, device=self.queries.device, dtype=torch.float32)
            step = max(most // (queries * keys), 1)
            for at in range(0, many, step):
                blocks = min(step, many - at)
                block, q_stop, k_stop = block + blocks, q_at + blocks * queries, k_at + blocks * keys
                near = self.near(slice(q_at, q_stop), slice(k_at, k_stop), key, self.number[block - 1])
                yield ClusterPiece(self.queries[q_at:q_stop], self.keys[k_at:k_stop], near, q_at)
                q_at, k_at = q_stop, k_stop

    def near(self, queries: slice, keys: slice, key: Tensor, earlier: int) -> Tensor:
        """See `Piece`, of blocks with so many keys."""
        blocks, wide = (keys.stop - keys.start) // len(key), len(key)
        of = self.of_queries[queries].view(blocks, -1, self.of_queries.shape[-1]).split(1, dim=-1)
        near = (key - of[0]).abs_()
        near = torch.sub(of[1], near, out=near)
        for at in range(earlier):
            there = self.of_keys[at][keys].view(blocks, 1, wide)
            near = torch.minimum(near, (there - of[2 + 2 * at]).abs_().sub_(of[3 + 2 * at]), out=near)
        near = near.mul_(254.0).clamp_(-127.0, 0.0)  # what is not seen is at most -0.5
        if self.last_resort:
            own = torch.arange(0, near.numel(), wide, device=near.device) + self.own[queries].clamp(max=wide - 1)
            near.view(-1).index_add_(0, own, near.new_full((), -1.0).expand(len(own)))
        return near.to(torch.int8)


def inside(sizes: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Return, for blocks of some sizes, the block of each entry and its index inside."""
    block = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes, output_size=total)
    begins = (sizes.cumsum(dim=0) - sizes).repeat_interleave(sizes, output_size=total)
    return block, torch.arange(total, device=sizes.device) - begins


def get_scores(piece: ClusterPiece, q: Tensor, k: Tensor) -> Tensor:
    """To the base of 2."""
    return piece.near.to(q.dtype).mul_(-SELF * LOG2).baddbmm_(q, k.mT)


def pieces_forward(blocks: ClusterBlocks, q: Tensor, kv: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """Return, for all queries and one that sees nothing, values under powers of two, less the largest one; and the
    largest score, and the sum of powers."""
    q, kv, e = q.flatten(0, 1), kv.flatten(0, 1), q.shape[-1]
    outs, stats = q.new_empty(blocks.filled + 1, kv.shape[-1] - e), q.new_empty(blocks.filled + 1, 2)
    outs[-1], stats[-1, 0], stats[-1, 1] = 0.0, -math.inf, 0.0
    for piece in blocks.pieces(keep):
        (c, g, w), here = piece.near.shape, slice(piece.start, piece.start + len(piece.queries))
        own = q.index_select(0, piece.queries).view(c, g, -1)
        k, v = kv.index_select(0, piece.keys).view(c, w, -1).tensor_split([e], dim=-1)
        scores = get_scores(piece, own, k)
        most = scores.amax(dim=-1, keepdim=True)
        weights = scores.sub_(most).exp2_()
        torch.bmm(weights, v, out=outs[here].view(c, g, -1))
        torch.cat((most.masked_fill_(most < BLIND, -math.inf), weights.sum(dim=-1, keepdim=True)), dim=-1,
                  out=stats[here].view(c, g, 2))  # fmt: skip
    return outs, stats


def pieces_backward(blocks: ClusterBlocks, of_queries: Tensor, kv: Tensor, e: int) -> tuple[Tensor, ...]:
    """The gradients of queries, keys and values."""
    rows, of_queries, kv = of_queries.shape[:2], of_queries.flatten(0, 1), kv.flatten(0, 1)
    d = kv.shape[-1] - e
    own, of_k, of_v = (
        kv.new_zeros(size, width) for size, width in ((blocks.filled + 1, e), (len(kv), e), (len(kv), d))
    )
    for piece in blocks.pieces(True):
        c, g, w = piece.near.shape
        of = of_queries.index_select(0, piece.queries).view(c, g, -1)
        q, grad, level, lse = of.split((e, d, 1, 1), dim=-1)
        k, v = kv.index_select(0, piece.keys).view(c, w, -1).split((e, d), dim=-1)
        weights = get_scores(piece, q, k).sub_(lse).exp2_()
        inner = torch.bmm(grad, v.mT).sub_(level).mul_(weights)
        torch.bmm(inner, k, out=own[piece.start : piece.start + c * g].view(c, g, -1))
        of_k.index_add_(0, piece.keys, torch.bmm(inner.mT, q).flatten(0, 1))
        of_v.index_add_(0, piece.keys, torch.bmm(weights.mT, grad).flatten(0, 1))
    of_q = own.index_select(0, blocks.slots[0])
    for slots in blocks.slots[1:]:
        of_q += own.index_select(0, slots)
    return of_q.unflatten(0, rows), of_k.unflatten(0, rows), of_v.unflatten(0, rows)
