"""Locality-sensitive hashing (LSH): clusters of tokens whose queries have similar directions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, disable_autocast, to_float
from x_transformers.core.rows import BlockwiseTerm, Pointwise
from x_transformers.features.clusters.clusters import Clusters
from x_transformers.features.clusters.kernel import SELF, Order, attend, sort_by_chunk, sort_by_rank
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, PerToken, flag

Heads = tuple[Tensor, Tensor, Tensor]
OF_QUERIES = 'keys are computed from the queries'
LATER = 'chunks of all tokens end by later ones'
ONE_HASH = 128  # buckets at most; more are the product of two hashes
# what has numbers of its own for keys, or makes keys otherwise
MAKE_KEYS = (
    'use_latent_kv',
    'collab_heads',
    'differential',
    'disentangled',
    'qk_rmsnorm',
    'k_rmsnorm',
    'qk_head_norm',
    'qk_proj_norm',
    'qkv_bias',
    'use_latent_q',
)


class KeysOfQueries:
    """There is no projection of keys:  k = q / |q|"""

    owner: Any
    display_name: Any  # of the feature

    def without_keys(self, owner: Any) -> None:
        if owner.kv_heads != owner.heads:
            raise ConfigError(f'`{self.display_name}` cannot be combined with `kv_heads`: {OF_QUERIES}')
        owner.to_k = nn.Identity()

    def qkv_inputs(self, qkv: Heads, call: Any) -> Heads:
        if call.context is not None:
            raise ValueError(f'`{self.display_name}` cannot be combined with a context: {OF_QUERIES}')
        call.ctx(self).same = qkv[0] is qkv[1]
        return qkv

    def projected(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, q if call.ctx(self).same else self.owner.to_q(k), v

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        return q, F.normalize(to_float(k), dim=-1).to(k.dtype), v


class SharedQK(KeysOfQueries, AttentionFeature):
    """Shared queries and keys: keys are the normalized queries. A token attends to itself only if it has no other key.

    sim_ij = q_i q_j / |q_j|
    """

    paper = 'Reformer, arXiv:2001.04451, section 2'
    shared_qk = flag(False, 'use the L2-normalized queries as keys, without a key projection')
    refuses = {'cross-attention': 'keys are computed from the queries of the same tokens'}
    sets_on_module = ('logit_scale',)
    clashes = {
        **dict.fromkeys(MAKE_KEYS, OF_QUERIES),
        'cluster': "'lsh' already shares queries and keys, other methods need separate keys",
    }
    row_wise = True
    tp_shards = None

    def setup(self, owner: Any) -> None:
        self.without_keys(owner)
        owner.logit_scale = 1.0

    def bias(self, call: Any) -> BlockwiseTerm:
        """The penalty of a token with itself, wherever it stands."""
        q_at, k_at = call.of_queries(own := torch.arange(call.keys, device=call.x.device)), own
        nothing = torch.zeros((), dtype=at_least_float(call.x.dtype), device=own.device)  # float16 has no such number

        def of(rows: slice, keys: slice) -> Tensor:
            same = q_at[..., rows].unsqueeze(-1) == k_at[keys]
            same = same if same.ndim == 2 else same.unsqueeze(1)
            return torch.where(same, SELF, nothing)

        def entry() -> Pointwise:
            behind = torch.full((), call.keys - call.q_len, device=own.device)
            return lambda b, h, i, j: torch.where(j == i + behind, SELF, 0.0)

        return BlockwiseTerm(of, entry=entry if call.token_idx is None else None)


class LSH(KeysOfQueries, Clusters, kind='lsh'):
    """LSH attention: tokens in the same bucket of a random hash attend to each other, in several rounds of hashing.

        k = q / |q|,  hash(x) = argmax [x R; -x R]        R: random, (e, b / 2), for each round and head
        o_i = softmax_j over the union of the keys of all rounds (s q_i k_j - 1e5 [i = j]) v_j

    R is sampled again in training; in evaluation it is computed from `lsh_seed`. Without `lsh_buckets`, the number of
    buckets depends on the length of the sequence or document without padding: shorter ones use the first columns of R.
    """

    paper = 'Reformer, arXiv:2001.04451'
    options_of = ('lsh_rounds', 'lsh_buckets', 'lsh_chunks', 'lsh_across_buckets', 'lsh_scale')
    states = {'lsh_ids': PerToken()}
    stored_as = {'seed': 'lsh_seed'}
    sets_on_module = ('logit_scale',)
    clashes = {**Clusters.clashes, **dict.fromkeys((*MAKE_KEYS, 'qkv_receive_diff_residuals'), OF_QUERIES)}

    @property
    def counts_tokens(self) -> bool:
        return self.lsh_buckets is None

    @property
    def sorts(self) -> bool:
        return self.lsh_chunks == 'sorted' or (self.lsh_chunks is None and not self.owner.causal)

    def setup(self, owner: Any) -> None:
        super().setup(owner)
        self.without_keys(owner)
        if self.lsh_across_buckets and not self.sorts:
            raise ConfigError("`lsh_across_buckets` needs `lsh_chunks='sorted'`: chunks are those of a bucket")
        if self.sorts and owner.causal:
            raise ConfigError(f"`lsh_chunks='sorted'` cannot be combined with `causal`: {LATER}")
        self.width = self.cluster_size or 64
        owner.logit_scale = float(self.lsh_scale)
        # else the number of buckets, and so all of them, changes with the length
        if not (owner.causal and self.lsh_buckets is not None):
            self.refuse({'cache': 'the number of buckets follows the length'})
        if self.sorts:
            self.refuse({'causal': (LATER, 'lsh_chunks')})
        self.seed = torch.randint(2**31, ())

    def refuse_shared_keys(self, owner: Any) -> None:
        """See `without_keys`."""

    # hashes

    def buckets(self, length: Any) -> tuple[int, int]:
        """Return how many there are: of one hash, or of two, whose product it is."""
        many = self.lsh_buckets or max(2 * -(-length // self.width), 2)
        if many <= ONE_HASH:
            return many, 1
        one = 2 * round(math.sqrt(many) / 2)
        return one, 2 * -(-many // (2 * one))

    def buckets_of(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return `buckets` of each length."""
        many = (2 * -(-lengths // self.width)).clamp(min=2)
        root = 2 * (many.float().sqrt() / 2).round().long()
        is_one = many <= ONE_HASH
        return torch.where(is_one, many, root), torch.where(is_one, 1, 2 * -(-many // (2 * root)))

    def directions(self, one: int, other: int, like: Tensor) -> Tensor:
        """Random ones of each hash, r h e m. If their number follows from the length, fewer are the first of more."""
        shape, sides = (self.lsh_rounds, self.owner.heads, like.shape[-1]), (one // 2, other // 2)
        if self.owner.training:
            return torch.randn(*shape, sum(sides), device=like.device, dtype=like.dtype)
        if self.lsh_buckets is not None:
            return normals(self.seed, (*shape, sum(sides)), like)
        found = normals(self.seed, (max(sides), 2, *shape), like).movedim(0, -1)
        return torch.cat((found[0, ..., : sides[0]], found[1, ..., : sides[1]]), dim=-1)

    @torch.no_grad()
    def hashes(self, q: Tensor, length: Any, lengths: Tensor | None = None) -> Tensor:
        """Return the buckets of each token, one for each round:  b h n e -> b h n r

        length    of the call
        lengths   of the row, or of the document, of each token, b 1 or b n; None: that of the call
        """
        q, (one, other) = to_float(q.detach()), self.buckets(length)
        limits: tuple[Tensor | None, ...] = None, None
        if lengths is not None and self.lsh_buckets is None:
            many = max(one * other, 2)
            limits = self.buckets_of(lengths.view(len(lengths), 1, -1, 1))
            # Shorter rows may have more buckets in a hash than the longest one: of a single hash, or by rounding.
            most = 2 * (round(math.sqrt(many) / 2) + 3)
            one, other = (many, 1) if many <= ONE_HASH else (max(ONE_HASH, most), most)
        with disable_autocast(q):
            of = self.directions(one, other, q)  # r h e m
            along = (q @ of.permute(1, 2, 0, 3).flatten(2)).unflatten(-1, (len(of), -1))  # b h n r m
        found = side(along[..., : one // 2], limits[0])
        if other == 1:
            return found
        further = side(along[..., one // 2 :], limits[1])
        return found + (one if limits[0] is None else limits[0]) * further

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        own = call.ctx(self)
        call.full_precision = True
        if self.lsh_buckets is None:
            own.asks = qkv[0]  # hashed when it is known which tokens are real
            return super().qkv_heads(qkv, call)
        own.ids = self.hashes(qkv[0], call.count)
        if call.keeps or call.past is not None:
            own.ids = call.state('lsh_ids').append(own.ids)
        return super().qkv_heads(qkv, call)

    # attention

    def unsupported(self, call: Any) -> str | None:
        if call.inputs.get('kv_input_residual') is not None:
            return f'`kv_input_residual`: {OF_QUERIES}'
        return super().unsupported(call)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor | None]:
        if q.numel() == 0:
            return torch.zeros_like(v), None
        heads, q, own = q.shape[1], to_float(q) * call.scale, call.ctx(self)
        ids = self.hashes(own.asks, call.keys, self.lengths(call)) if self.lsh_buckets is None else own.ids
        if self.are_few(call):
            return self.of_few(q, k, v, ids, self.width, call, resort=True).to(v.dtype), None
        hidden, documents = self.hidden(call, heads), self.documents(call, heads)
        orders = [self.order(each, hidden, documents, call) for each in ids.flatten(0, 1).unbind(-1)]
        out, lse = self.of_new(*attend(self.of_all(q, call), k, v, orders, True, self.extra(call)), call)
        return out.to(v.dtype), lse

    def order(self, ids: Tensor, hidden: Tensor | None, documents: Tensor | None, call: Any) -> Order:
        """Return the order of tokens by one round of buckets, ((b h), n)."""
        if self.sorts:
            return sort_by_chunk(ids, hidden, documents, self.width, bool(self.lsh_across_buckets))
        ids = ids if documents is None else ids + documents * (ids.amax() + 1)
        return sort_by_rank(ids, hidden, self.width, call.causal)


def side(along: Tensor, limits: Tensor | None = None) -> Tensor:
    """argmax [x; -x] over the last axis, of m numbers one of 2 m; or of the first ones, which make as many as the
    `limits` say, 1 for a single one."""
    count, highest, lowest = along.shape[-1], along, along
    if limits is not None:
        count = limits // 2
        gone = torch.arange(along.shape[-1], device=along.device) >= count.clamp(min=1).unsqueeze(-1)
        highest, lowest = along.masked_fill(gone, -torch.inf), along.masked_fill(gone, torch.inf)
    most, least = highest.max(dim=-1), lowest.min(dim=-1)
    return torch.where(most.values >= -least.values, most.indices, least.indices + count)


def normals(seed: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Numbers from N(0, 1) that follow from the seed alone, on every device and in a graph; exact in float32."""
    count = torch.arange(math.prod(shape), device=like.device)
    first, second = (scramble_bits(count * 2 + at + scramble_bits(seed.to(like.device))).float() for at in (1, 2))
    radius = (-2 * ((first + 0.5) / 2**32).log()).sqrt()
    return (radius * (second * (2 * math.pi / 2**32)).cos()).view(shape).to(like.dtype)


def scramble_bits(x: Tensor) -> Tensor:
    """Whole numbers of 32 bits, mixed (the finaliser of murmur3)."""
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)
