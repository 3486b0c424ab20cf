"""Sparse Sinkhorn attention: blocks of queries attend to their own block and to a soft permutation of all blocks.

    S = sinkhorn(exp(R / t)),  K'_i = sum_j S_ij K_j,  V'_i = sum_j S_ij V_j        block by block
    out_i = attention of the queries of block i to [K'_i ; K_i]

Axes: b batch, h heads, r blocks of queries, N blocks of keys, c tokens of a block, e channels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import clamp_to_dtype, is_exporting, promote_dtypes, to_float
from x_transformers.features.clusters.clusters import NO_SCORES, Clusters
from x_transformers.features.levels import visible_keys
from x_transformers.features.linear.kernel import first_token, least_value, triangle
from x_transformers.flags import ConfigError, RecurrentState, warn_once
from x_transformers.flags.checks import Maybe
from x_transformers.kernels.dense import differentiable_sdpa

MIXED = 'blocks of tokens are mixed'
NOTHING = 1e-12  # a sum below this has no part
# logarithms of which sums can be formed
FURTHEST = {torch.float64: 600.0, torch.float32: 80.0}


class Sums(NamedTuple):
    """What the columns of S were divided by, up to each row:  b h r N for each round, the first one as logarithm."""

    rounds: tuple[Tensor, ...]

    def before(self, row: Any, carry: Tensor | None = None) -> Tensor:
        """Those up to the row before one, a number or one for each of the batch (b):  b h rounds N. Before the first
        stands `carry`."""
        one = self.rounds[0][:, :, :1]
        none = [torch.full_like(one[:, :, 0], 0.0 if at else least_value(one)) for at in range(len(self.rounds))]
        start = torch.stack(none, dim=2) if carry is None else carry
        if isinstance(row, Tensor):
            index = (row - 1).clamp(min=0)[:, None, None, None].expand(-1, one.shape[1], 1, one.shape[3])
            found = torch.cat([t.gather(2, index) for t in self.rounds], dim=2)
            return torch.where((row > 0)[:, None, None, None], found, start)
        return torch.stack([t[:, :, row - 1] for t in self.rounds], dim=2) if row > 0 else start


def widen_blocks(carry: Tensor, blocks: Any) -> Tensor:
    """Widen the divisors of columns for more of them."""
    known = carry.shape[-1]
    at = torch.arange(blocks, device=carry.device)
    none = torch.zeros_like(carry[..., :1])
    none[:, :, 0] = least_value(carry)
    return torch.where(at < known, carry.index_select(-1, at.clamp(max=known - 1)), none)


def first_of_column(x: Tensor, pairs: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logarithms of columns by their sum up to each row, and these sums:  b h r N twice. Sums are relative to the first
    entry, or to what stands before, which no later row changes; logarithms further off are clamped to `FURTHEST`."""
    wide = promote_dtypes(x.device)
    pairs, first = pairs.expand(x.shape), pairs.to(torch.uint8).argmax(dim=-2, keepdim=True)
    base = x.detach().gather(-2, first.expand_as(x[:, :, :1]))
    start = torch.zeros_like(base, dtype=wide)
    if carry is not None:
        known = carry > least_value(carry) / 2
        base, start = torch.where(known, carry, base), known.to(wide)
    most = FURTHEST[wide]
    relative = (x - base).to(wide).clamp(-most, most)
    sums = torch.where(pairs, relative, -torch.inf).exp().cumsum(dim=-2) + start
    empty = sums == 0
    logs = sums.masked_fill(empty, 1.0).log()
    return (relative - logs).to(x.dtype), torch.where(empty, least_value(x), (base + logs).to(x.dtype))


def divide_blocks(s: Tensor, sums: Tensor) -> Tensor:
    """By a sum, unless it is that of nothing."""
    return s / sums.masked_fill(sums < NOTHING, 1.0)


def balance_scores(
    logits: Tensor, pairs: Maybe[Tensor], rounds: int, causal: bool, carry: Maybe[Tensor] = None
) -> tuple[Tensor, Sums]:
    """S of the logits (b h r N): columns are divided by their sum, then rows, so many times.

    pairs    bool, to b h r N: which blocks a row mixes, None for all. Others get nothing
    causal   row i divides a column by its sum up to row i: what comes later changes no row that is there
    carry    `Sums.before` the first row, b h rounds N

    The first round works with logarithms. After it the first entry of a column is at least 1 / N, and so are all sums;
    the other rounds divide plain numbers.
    """

    def mixed(x: Tensor) -> Tensor:
        return x if pairs is None else torch.where(pairs, x, least_value(x))

    if causal:
        x, sums = first_of_column(logits, pairs, None if carry is None else carry[:, :, :1])
    else:
        sums = mixed(logits).logsumexp(dim=-2, keepdim=True)
        x = logits - sums
    found, s = [sums], mixed(x).softmax(dim=-1)
    s = s if pairs is None else torch.where(pairs, s, 0.0)
    for step in range(1, rounds):
        sums = s.cumsum(dim=-2) if causal else s.sum(dim=-2, keepdim=True)
        sums = sums if carry is None else sums + carry[:, :, step : step + 1]
        found.append(sums)
        s = divide_blocks(s, sums)
        s = divide_blocks(s, s.sum(dim=-1, keepdim=True))
    return s, Sums(tuple(found))


def mix_blocks(s: Tensor, t: Tensor) -> Tensor:
    """Blocks of tokens by the weights S:  b h r N, b h N c e -> b h r c e."""
    return (s.to(t.dtype) @ t.flatten(3)).unflatten(3, t.shape[3:])


def pick_blocks(t: Tensor, index: Tensor, dim: int) -> Tensor:
    """Entries along an axis, of each row of the batch (b i). To broadcast the index would fix a symbolic length."""
    shape, view = [*t.shape], [t.shape[0], *[1] * (t.ndim - 1)]
    shape[dim] = view[dim] = index.shape[1]
    return t.gather(dim, index.reshape(view).expand(shape))


def split_blocks(t: Tensor, width: int, blocks: int, filler: float = 0.0) -> Tensor:
    """... n e -> ... N c e, with what is missing at the end"""
    short = blocks * width - t.shape[-2]
    padded = F.pad(t, (0, 0, 0, short), value=filler) if torch.compiler.is_compiling() or short else t
    return padded.unfold(-2, width, width).mT if is_exporting() else padded.unflatten(-2, (blocks, width))


def get_blocks(n: Any, width: int) -> Any:
    # a graph for all lengths cannot ask whether one fits
    return n // width + 1 if torch.compiler.is_compiling() else -(-n // width)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Maybe[Tensor], scale: Any, sighted: Tensor | None = None) -> Tensor:
    """b h i e; `mask` bool, to b h i j. Rows that are not `sighted` (b h i 1) see no key and give zeros."""
    if isinstance(scale, Tensor):
        q, scale = q * scale, 1.0
    if sighted is None:
        return differentiable_sdpa(q, k, v, attn_mask=mask, scale=scale)
    out = differentiable_sdpa(q, k, v, attn_mask=mask | ~sighted, scale=scale)
    return out.masked_fill(~sighted, 0.0)


Blocks = tuple[Tensor, Tensor]  # keys or values of each block, in its mix and in itself:  b h r c e


def side_by_side(blocks: Blocks) -> Tensor:
    """(b r) h 2c e, of which all heads of a token lie together."""
    both = torch.cat([t.permute(0, 2, 3, 1, 4) for t in blocks], dim=2)
    return both.flatten(0, 1).transpose(1, 2)


def attended(q: Tensor, k: Blocks, v: Blocks, mask: Tensor | None, scale: Any, blind: bool = False) -> Tensor:
    """Blocks of queries (b h r c e) to their keys:  b h r c e.   mask: bool, to b r c 2c; `blind`: some see no key"""
    b, r, sighted = q.shape[0], q.shape[2], None
    if mask is not None:
        mask = mask.expand(b, r, -1, -1).flatten(0, 1).unsqueeze(1)
        sighted = mask.any(dim=-1, keepdim=True) if blind else None
    rows = q.permute(0, 2, 3, 1, 4).flatten(0, 1).transpose(1, 2)
    out = sdpa(rows, side_by_side(k), side_by_side(v), mask, scale, sighted)
    return out.transpose(1, 2).unflatten(0, (b, r)).permute(0, 3, 1, 2, 4)


def no_later(rows: Tensor, width: int) -> Tensor:
    """Return the causal mask of these blocks (r), in which the first block sees no mix, (r, c, 2c)."""
    own = triangle(width, rows)
    return torch.cat(((rows > 0)[:, None, None].expand(-1, width, width), own.expand(len(rows), -1, -1)), dim=-1)


NO_PLACE = 'mixed keys have no position'


class SinkhornState(NamedTuple):
    """What the tokens so far leave to the next one.

    sums      b h rounds N    what columns were divided by up to the row before that of the last token
    asks      b g w           what that row is made of
    total     b g w           the sum of all tokens
    count     b               of how many
    k, v      b h c e         the mix that the block of the last token sees
    """

    sums: Tensor
    asks: Tensor
    total: Tensor
    count: Tensor
    k: Tensor
    v: Tensor


class Sinkhorn(Clusters, kind='sinkhorn'):
    """A block of tokens attends to itself and to a soft permutation of all blocks.

        R_ij = s mean(q of block i) mean(k of block j)              'bilinear'
        R_i = relu(X_i W1 + b1) W2 + b2,  X_i = sum(x of block i)   'net'
        S = sinkhorn(exp((R + g) / t))                              g: gumbel noise, in training
        K'_i = sum_j S_ij K_j,  V'_i = sum_j S_ij V_j
        out_i = softmax(s q_i [K'_i; K_i]) [V'_i; V_i]

    `sinkhorn` divides columns by their sums, then rows, `sinkhorn_iters` times. In causal attention, i mixes only
    j < i, columns are divided by their sums up to row i, and the queries or x of row i are those of all tokens up to
    the first one of its block, so that no row depends on later tokens. The first block attends only to itself.
    With `sortcut=c`, all queries attend only to the first c blocks of K'.
    """

    paper = 'Sparse Sinkhorn Attention, arXiv:2002.11296'
    options_of = ('cluster_blocks', 'sinkhorn_sort', 'sinkhorn_iters', 'sinkhorn_temp', 'sinkhorn_gumbel', 'sortcut')
    states = {'sinkhorn': RecurrentState()}
    handles = ('causal', 'padding', 'past')
    clashes = {
        'dropout': 'it forms no attention weights',
        'collab_heads': 'blocks are sorted per head, but all heads share one key projection',
        'l2_distance': 'scores are dot products',
        'flash_pack_seq': MIXED,
        **{name: Clusters.clashes[name] for name in ('num_mem_kv', 'add_zero_kv')},
        **dict.fromkeys(('max_attend_past', 'max_attend_future', 'shaw_rel_pos', 'xl_rel_pos'), NO_PLACE),
        **dict.fromkeys(('shaw_rel_values', 'disentangled', 'data_dependent_alibi', 'use_rel_proj_pos_bias'), NO_PLACE),
    }
    refuses = {
        'documents': MIXED,
        'some tokens': 'a block is that of the tokens in their order',
        'cross-attention': Clusters.refuses['cross-attention'],
        **dict.fromkeys(('alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias', 'shaw_rel_pos', 'xl_rel_pos'), NO_PLACE),
        **dict.fromkeys(('residual_attn', 'cross_residual_attn'), NO_SCORES),
        'two_stream': MIXED,
    }

    def setup(self, owner: Any) -> None:
        super().setup(owner)
        self.width, self.by_net = self.cluster_size or 64, self.sinkhorn_sort == 'net'
        if self.sortcut and owner.causal:
            raise ConfigError('`sortcut` cannot be combined with `causal`: sorted blocks hold later tokens')
        if self.by_net != (self.cluster_blocks is not None):
            if self.by_net:
                raise ConfigError("`sinkhorn_sort='net'` needs `cluster_blocks`: it has weights for each block")
            warn_once("`cluster_blocks` has no effect unless `sinkhorn_sort='net'`")
        if not owner.causal:
            self.refuse({'cache': 'blocks are sorted as a whole'})
        if self.sinkhorn_gumbel:
            self.refuse({'cache in training': 'noise is drawn again'})
        if self.by_net:
            blocks, heads = self.cluster_blocks, owner.query_heads
            self.sort: Any = nn.Sequential(nn.Linear(owner.dim, blocks), nn.ReLU(), nn.Linear(blocks, heads * blocks))
            for layer in (self.sort[0], self.sort[2]):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def refuse_shared_keys(self, owner: Any) -> None:
        """Keys of several query heads are sorted for each of them."""

    def unsupported(self, call: Any) -> str | None:
        most = self.cluster_blocks * self.width if self.by_net else math.inf
        if not torch.compiler.is_compiling() and call.keys > most:
            return f'{call.keys} tokens: `cluster_blocks` of {self.width} tokens hold {most}'
        return super().unsupported(call)

    def pre_attention(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        call.full_precision = True
        return qkv

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        seen, compiling = visible_keys(call), torch.compiler.is_compiling()
        seen = None if seen is None else seen[:, 0, 0]
        if not compiling and q.shape[-2] == 0:
            return self.nothing(q, k, v, call), None
        if not call.causal:
            return self.both_ways(q, k, v, seen, call), None
        if seen is None and (call.past is None or (not compiling and call.keys == call.q_len)):
            return self.from_the_start(q, k, v, call), None
        if seen is None and not compiling:
            return self.going_on(q, k, v, call), None
        return self.anywhere(q, k, v, seen, call), None

    # scores of blocks

    def carrier(self, q: Tensor, call: Any) -> Tensor:
        """Return the vectors that rows of S are made of, for each new token, (b, g, n, w)."""
        return to_float(call.x).unsqueeze(1) if self.by_net else to_float(q)

    def summary(self, total: Tensor, many: Tensor) -> Tensor:
        return total if self.by_net else total / many

    def balanced(
        self, asks: Tensor, keys: Tensor, pairs: Tensor | None, call: Any, carry: Tensor | None = None
    ) -> tuple[Tensor, Sums]:
        """Return S of blocks of queries, by their summary (b g r w), and means of keys (b h N e):  b h r N."""
        if self.by_net:
            scores = self.sort(clamp_to_dtype(asks.squeeze(1), self.sort[0].weight.dtype))
            scores = to_float(scores).unflatten(-1, (-1, self.cluster_blocks)).transpose(1, 2)
            at = torch.arange(keys.shape[2], device=keys.device)
            # a graph for all lengths has one block too many
            scores = scores.index_select(-1, at.clamp(max=self.cluster_blocks - 1))
        else:
            scores = (asks * call.scale) @ keys.mT
        if self.sinkhorn_gumbel and call.training:
            scores = scores - torch.empty_like(scores).exponential_().clamp(min=1e-30).log()
        return balance_scores(scores / self.sinkhorn_temp, pairs, self.sinkhorn_iters, call.causal, carry)

    # no token sees a later one

    def from_the_start(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        """All tokens are new, and none is hidden."""
        n, c, scale = q.shape[-2], self.width, call.scale
        blocks = get_blocks(n, c)
        first = torch.arange(blocks, device=q.device)
        tokens = self.carrier(q, call)
        per_block = split_blocks(tokens, c, blocks).sum(dim=-2)
        asks = per_block.cumsum(dim=2) - per_block + tokens.index_select(2, (first * c).clamp(max=n - 1))
        asks = self.summary(asks, first[:, None] * c + 1)
        q, k, v = (split_blocks(t, c, blocks) for t in (q, k, v))
        s, sums = self.balanced(asks, to_float(k).mean(dim=-2), first[:, None] > first, call)
        mixes = [mix_blocks(s, t) for t in (k, v)]
        if self.keeps(call):
            last = (n - 1) // c
            rest = asks[:, :, last], per_block.sum(dim=2), torch.full_like(asks[:, 0, 0, 0], n)
            self.keep(call, SinkhornState(sums.before(last), *rest, *(t[:, :, last] for t in mixes)))
        out = attended(q, (mixes[0], k), (mixes[1], v), no_later(first, c), scale)
        return first_token(out.flatten(2, 3), n)

    def going_on(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        """None is hidden, some came before."""
        n, c = q.shape[-2], self.width
        m = k.shape[-2] - n
        state, tokens = SinkhornState(*call.state('sinkhorn').value), self.carrier(q, call)
        known, last, first = (m - 1) // c, (m + n - 1) // c, m // c
        mix_k, mix_v = state.k.unsqueeze(2), state.v.unsqueeze(2)
        total = state.total + tokens.sum(dim=2)
        if last > known:
            rows = torch.arange(known, last + 1, device=q.device)
            at = rows[1:] * c - m
            sums = state.total.unsqueeze(2) + tokens.cumsum(dim=2).index_select(2, at)
            asks = self.summary(sums, rows[1:, None] * c + 1)
            asks = torch.cat((state.asks.unsqueeze(2), asks), dim=2)
            blocks = [t[:, :, : last * c].unflatten(2, (last, c)) for t in (k, v)]
            carry = widen_blocks(state.sums, last)
            pairs = rows[:, None] > torch.arange(last, device=q.device)
            s, sums = self.balanced(asks, to_float(blocks[0]).mean(dim=-2), pairs, call, carry)
            new_k, new_v = (mix_blocks(s[:, :, 1:], t) for t in blocks)
            mix_k, mix_v = torch.cat((mix_k, new_k), dim=2), torch.cat((mix_v, new_v), dim=2)
            state = SinkhornState(
                sums.before(last - known, carry), asks[:, :, -1], total, state.count, mix_k[:, :, -1], mix_v[:, :, -1]
            )
        self.keep(call, state._replace(total=total, count=state.count + n))
        mix_k, mix_v = (t[:, :, first - known :] for t in (mix_k, mix_v))
        own_k, own_v, off = k[:, :, first * c :], v[:, :, first * c :], m - first * c
        if last == first:  # some queries at the end of a block that has begun
            own = own_k.shape[-2]
            mask = torch.ones(n, own, dtype=torch.bool, device=q.device).tril(own - n) if n > 1 else None
            if first:
                own_k, own_v = torch.cat((mix_k.squeeze(2), own_k), dim=2), torch.cat((mix_v.squeeze(2), own_v), dim=2)
                mask = mask if mask is None else F.pad(mask, (own_k.shape[-2] - own, 0), value=True)
            return sdpa(q, own_k, own_v, mask, call.scale)
        count = last - first + 1
        q = split_blocks(F.pad(q, (0, 0, off, 0)), c, count)
        pairs = [(mix, split_blocks(own, c, count)) for mix, own in ((mix_k, own_k), (mix_v, own_v))]
        out = attended(q, pairs[0], pairs[1], no_later(torch.arange(first, last + 1, device=q.device), c), call.scale)
        return out.flatten(2, 3)[:, :, off : off + n]

    def anywhere(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, call: Any) -> Tensor:
        """Some may be hidden, some came before; rows of the batch begin where their first real token stands."""
        n, c = q.shape[-2], self.width
        m = k.shape[-2] - n
        grid = SinkhornGrid.of(seen, c, k)
        k, v = grid.placed(k, hide=True), grid.placed(v, hide=True)
        begin = m - grid.starts
        real = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if seen is None else seen[:, m:].expand(len(q), -1)
        known = torch.div(begin - 1, c, rounding_mode='floor')
        which = torch.arange((c - 1 + n) // c + 1, device=q.device)
        rows = known[:, None] + which  # b a
        at = rows * c - begin[:, None]
        old = self.left(call)
        tokens = self.carrier(q, call) * real[:, None, :, None]
        total, count = tokens.cumsum(dim=2), real.cumsum(dim=-1)
        if old is not None:
            total, count = total + old.total.unsqueeze(2), count + old.count.unsqueeze(-1).long()
        inside = at.clamp(0, n - 1)
        many = pick_blocks(count, inside, 1).clamp(min=1)[:, None, :, None]
        asks = self.summary(pick_blocks(total, inside, 2), many)
        is_row = (at >= 0) & (at < n)
        if old is not None:
            asks = torch.where((which == 0)[:, None], old.asks.unsqueeze(2), asks)
            is_row = is_row | (which == 0)
        earlier = torch.arange(grid.blocks, device=q.device) < rows.unsqueeze(-1)
        pairs = earlier & grid.real.any(dim=-1).unsqueeze(1) & is_row.unsqueeze(-1)  # b a N
        carry = None if old is None else widen_blocks(old.sums, grid.blocks)
        means = to_float(k).sum(dim=-2) / grid.real.sum(dim=-1).clamp(min=1)[:, None, :, None]
        s, sums = self.balanced(asks, means, pairs.unsqueeze(1), call, carry)
        mixes = [mix_blocks(s, t) for t in (k, v)]
        if self.keeps(call):
            last = torch.div(begin + n - 1, c, rounding_mode='floor') - known
            rest = nth(asks, last), total[:, :, -1], count[:, -1].to(asks.dtype)
            self.keep(call, SinkhornState(sums.before(last, carry), *rest, *(nth(t, last) for t in mixes)))
        slots = get_slots(pairs, grid.real)
        # the tokens of these blocks
        place = begin[:, None] - known[:, None] * c + torch.arange(n, device=q.device)
        back = torch.arange(len(which) * c, device=q.device) - place[:, :1]
        q = pick_blocks(q, back.clamp(0, n - 1), 2).unflatten(2, (-1, c))
        inside = rows.clamp(0, grid.blocks - 1)
        own = [pick_blocks(t, inside, 2) for t in (k, v)]
        own_real = pick_blocks(grid.real, inside, 1)
        own_real = own_real & ((rows >= 0) & (rows < grid.blocks)).unsqueeze(-1)
        mask = torch.cat((slots.unsqueeze(2).expand(-1, -1, c, -1), own_real.unsqueeze(2) & triangle(c, q)), dim=-1)
        out = attended(q, (mixes[0], own[0]), (mixes[1], own[1]), mask, call.scale, blind=True)
        return pick_blocks(out.flatten(2, 3), place, 2)

    # all tokens see all

    def both_ways(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, call: Any) -> Tensor:
        n, c = q.shape[-2], self.width
        tokens, blocks, grid = self.carrier(q, call), get_blocks(n, c), None
        real: Any
        if seen is not None:
            grid = SinkhornGrid.of(seen, c, k)
            q, k, v, tokens = grid.placed(q), *(grid.placed(t, hide=True) for t in (k, v, tokens))
            real, blocks = grid.real, grid.blocks
        else:
            q, k, v, tokens = (split_blocks(t, c, blocks) for t in (q, k, v, tokens))
            short = torch.compiler.is_compiling() or blocks * c != n
            real = (torch.arange(blocks * c, device=q.device) < n).unflatten(0, (blocks, c))[None] if short else None
        many: Any = c if real is None else real.sum(dim=-1).clamp(min=1)[:, None, :, None]
        filled: Any = None if real is None else real.any(dim=-1)
        pairs: Any = None if real is None else (filled.unsqueeze(-1) & filled.unsqueeze(-2)).unsqueeze(1)
        asks, keys = self.summary(tokens.sum(dim=-2), many), to_float(k).sum(dim=-2) / many
        s, _ = self.balanced(asks, keys, pairs, call)
        if self.sortcut:
            s, pairs = s[:, :, : self.sortcut], None if pairs is None else pairs[:, :, : self.sortcut]
        mixes = [mix_blocks(s, t) for t in (k, v)]
        slots: Any = None if real is None else get_slots(pairs.squeeze(1), real)
        if self.sortcut:
            mask = None if slots is None else slots.flatten(1)[:, None, None]
            sighted = None if mask is None else mask.any(dim=-1, keepdim=True)
            out = sdpa(q.flatten(2, 3), mixes[0].flatten(2, 3), mixes[1].flatten(2, 3), mask, call.scale, sighted)
        else:
            both: Any = slots, real
            mask = None if slots is None else torch.cat(both, dim=-1).unsqueeze(2)
            out = attended(q, (mixes[0], k), (mixes[1], v), mask, call.scale, blind=True).flatten(2, 3)
        return first_token(out, n) if grid is None else grid.back(out, n)

    def nothing(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        """There are no queries."""
        if self.keeps(call):
            tokens, heads = self.carrier(q, call), q.shape[1]
            own = tokens.new_zeros(tokens.shape[0], *tokens.shape[1::2])
            mixes = (t.new_zeros(t.shape[0], heads, self.width, t.shape[-1]) for t in (k, v))
            sums = own.new_zeros(len(own), heads, self.sinkhorn_iters, 1)
            self.keep(call, self.left(call) or SinkhornState(sums, own, own, own[:, 0, 0] * 0, *mixes))
        return v[..., :0, :]

    # what is kept

    @staticmethod
    def keeps(call: Any) -> bool:
        return 'sinkhorn' in call.declared and (call.keeps or call.past is not None)

    @staticmethod
    def left(call: Any) -> SinkhornState | None:
        value = None if call.past is None else call.state('sinkhorn').value
        return None if value is None else SinkhornState(*value)

    def keep(self, call: Any, state: SinkhornState) -> None:
        if self.keeps(call):
            # what they are part of is forgotten
            call.state('sinkhorn').keep(tuple([t.clone() for t in state]))


def nth(t: Tensor, which: Tensor) -> Tensor:
    """One of the third axis for each of the batch:  b h r ... -> b h ..."""
    return pick_blocks(t, which.unsqueeze(-1), 2).squeeze(2)


def get_slots(pairs: Tensor, real: Tensor) -> Tensor:
    """Return which keys of a mix have anything in them:  b r N, b N c -> b r c"""
    return pairs.to(torch.float32) @ real.to(torch.float32) > 0


class SinkhornGrid(NamedTuple):
    """Blocks that are counted from the first real token of each row.

    starts   b            where that stands
    places   b (N c)      which token stands where in the blocks; None for their order
    real     b N c        whether there is one, and is not hidden
    """

    starts: Tensor
    places: Maybe[Tensor]
    real: Tensor

    @classmethod
    def of(cls, seen: Tensor | None, width: int, keys: Tensor) -> SinkhornGrid:
        """Build it from keys (b, h, n, e) of which `seen` (b, n) are visible; None for all."""
        b, n = keys.shape[0], keys.shape[-2]
        blocks = get_blocks(n, width)
        places = torch.arange(blocks * width, device=keys.device)
        if seen is None:
            starts, inside = places.new_zeros(b), (places < n).expand(b, -1)
            return cls(starts, None, inside.unflatten(-1, (blocks, width)))
        seen = seen.expand(b, -1)
        starts = (seen.cumsum(dim=-1) == 0).sum(dim=-1)
        places = places + starts.unsqueeze(-1)
        inside = places < n
        places = places.clamp(max=n - 1)
        return cls(starts, places, (inside & seen.gather(-1, places)).unflatten(-1, (blocks, width)))

    @property
    def blocks(self) -> Any:
        return self.real.shape[1]

    def placed(self, t: Tensor, hide: bool = False) -> Tensor:
        """b h n e -> b h N c e"""
        if self.places is None:
            t = split_blocks(t, self.real.shape[-1], self.blocks)
        else:
            t = pick_blocks(t, self.places, 2).unflatten(2, self.real.shape[1:])
        return t.masked_fill(~self.real[:, None, :, :, None], 0.0) if hide else t

    def back(self, t: Tensor, n: Any) -> Tensor:
        """b h (N c) e -> b h n e, zeros for what stands before the first real token"""
        at = torch.arange(n, device=t.device) - self.starts.unsqueeze(-1)
        return pick_blocks(t, at.clamp(min=0), 2).masked_fill((at < 0)[:, None, :, None], 0.0)
