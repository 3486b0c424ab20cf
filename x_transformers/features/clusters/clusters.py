"""Base class of attention within clusters: keywords of all clustering methods, and common checks of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.modes import is_transformed, to_float
from x_transformers.core.rows import and_entries
from x_transformers.features.clusters.kernel import FAR, SELF, UNSEEN, Extra
from x_transformers.features.documents import TellsDocuments
from x_transformers.features.levels import AttentionFeature, visible_keys
from x_transformers.features.patterns import a_pattern
from x_transformers.flags import (
    Check,
    ConfigError,
    boolean,
    count,
    flag,
    is_int,
    none,
    one_of,
    positive,
    probability,
    size,
    warn_once,
)

even = Check('an even number of at least 2', lambda value: is_int(value) and value >= 2 and value % 2 == 0, 'int')
# keys from which a single query looks for those that it sees before it meets them
MANY = 1024
NO_SCORES = 'it computes no scores of all keys for the next layer'
NO_DISTANCES = 'it does not use distances between tokens of a cluster'


class Clusters(AttentionFeature):
    """Attention within clusters: queries attend only to keys of the same cluster, which depends on the content.

        lsh        locality-sensitive hashing: queries with similar directions           `lsh.py`
        routing    tokens near the same centroid, by online k-means                      `routing.py`
        sinkhorn   blocks of tokens, each with a soft permutation of all blocks          `sinkhorn.py`

    Time and memory are linear in the length, not quadratic. With several documents, clusters are formed within each
    document, and padding has a separate cluster.
    """

    paper = 'Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296'
    cluster = flag(
        None,
        "attend within clusters: 'lsh', 'routing' or 'sinkhorn'",
        one_of('lsh', 'routing', 'sinkhorn') | none,
        example='lsh',
    )
    cluster_size = flag(
        None,
        'tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k',
        size | none,
        example=3,
    )
    lsh_rounds = flag(4, 'number of hash rounds; a token attends to its neighbors in any of them', size, example=2)
    lsh_buckets = flag(
        None,
        'number of hash buckets, even; None: two per chunk, depending on the length, without a cache',
        even | none,
        example=4,
    )
    lsh_chunks = flag(
        None,
        "'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal",
        one_of('bucket', 'sorted') | none,
        example='bucket',
    )
    lsh_across_buckets = flag(False, "with 'sorted', attend to all tokens of neighboring chunks, also of other buckets")
    lsh_scale = flag(1.0, 'factor of the dot products of queries and unit-length keys', positive, example=2.0)

    num_clusters = flag(None, "number of centroids per head, for 'routing'", size | none, example=2)
    local_heads = flag(None, 'number of heads with local attention; None: half of the heads', count | none, example=1)
    local_pattern = flag(None, 'sparse pattern of these heads; None: a window', none | a_pattern, example='sliding')
    routing_decay = flag(0.999, 'decay of the moving averages of the centroids, per step', probability, example=0.5)
    routing_balanced = flag(
        None,
        'give each centroid the same number of tokens, those nearest to it; None: yes, unless causal',
        boolean | none,
        example=False,
    )
    cluster_blocks = flag(None, "maximum number of blocks, for `sinkhorn_sort='net'`", size | none, example=16)
    sinkhorn_sort = flag(
        'bilinear',
        "how blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network)",
        one_of('bilinear', 'net'),
        example='net',
    )
    sinkhorn_iters = flag(8, 'number of Sinkhorn iterations', size, example=2)
    sinkhorn_temp = flag(0.75, 'temperature of the soft permutation', positive, example=0.3)
    sinkhorn_gumbel = flag(True, 'add Gumbel noise in training, so that permutations are sampled')
    sortcut = flag(0, 'if positive, all queries attend only to this number of sorted blocks', count, example=2)

    kinds: ClassVar[dict[str, type[Clusters]]] = {}
    options_of: ClassVar[tuple[str, ...]] = ()  # the keywords that a way reads, beside those of all
    stored_as = {'sort': 'sinkhorn_sort'}  # where there is one, in place of the flag
    refuses = {
        'documents': '',
        'cross-attention': 'clusters contain tokens of one sequence',
        **dict.fromkeys(('shaw_rel_pos', 'xl_rel_pos'), NO_DISTANCES),
        'polar_pos_emb': 'its keys are shifted per head, but clusters are formed by queries',
        **dict.fromkeys(('residual_attn', 'cross_residual_attn'), NO_SCORES),
        'two_stream': 'clusters are formed from all tokens, also those that are still to be predicted',
        'some tokens': 'its clusters are formed from all tokens',
    }
    handles = ('causal', 'masks', 'padding', 'documents', 'biases', 'past')
    clashes = {
        **dict.fromkeys(('max_attend_future', 'max_attend_past'), 'a token attends to its cluster instead of a window'),
        **dict.fromkeys(('num_mem_kv', 'add_zero_kv'), 'prepended keys belong to no cluster'),
        'dropout': 'it forms weights of chunks, which are computed twice',
        'collab_heads': 'clusters are formed per head, but all heads share one key projection',
        'flash_pack_seq': 'use `document_ids` instead',
        'l2_distance': 'scores are dot products',
        **dict.fromkeys(('shaw_rel_pos', 'xl_rel_pos', 'shaw_rel_values', 'disentangled'), NO_DISTANCES),
        'use_rel_proj_pos_bias': 'this bias is computed for all keys at once',
    }
    tp_shards = None

    def __init_subclass__(cls, kind: str = '', **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if kind:
            Clusters.kinds[kind] = cls

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[Clusters]:
        return Clusters.kinds[values['cluster']]

    def setup(self, owner: Any) -> None:
        for name, declared in self.flags.items():
            if name not in ('cluster', 'cluster_size', *self.options_of) and getattr(self, name) != declared.default:
                warn_once(f'`{name}` has no effect with `cluster={self.cluster!r}`')
        self.refuse_shared_keys(owner)

    def refuse_shared_keys(self, owner: Any) -> None:
        if owner.kv_heads != owner.heads:
            raise ConfigError(
                f'`cluster` cannot be combined with `kv_heads`: {self.cluster!r} has a key for each query head'
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError

    def unsupported(self, call: Any) -> str | None:
        if call.memories:
            return '`mems`: its clusters contain tokens of one sequence'
        if call.past is not None and not call.causal:
            return '`cache`: where it is not causal, later tokens change the clusters of earlier ones'
        if call.inputs.get('polar_pos_emb') is not None and 'polar_pos_emb' in self.refuses:
            return f'`polar_pos_emb`: {self.reason("polar_pos_emb")}'
        return super().unsupported(call)

    # what ways to form clusters read of a call

    @staticmethod
    def of_all(q: Tensor, call: Any) -> Tensor:
        """Queries for all keys: earlier tokens ask nothing."""
        return q if call.past is None else F.pad(q, (0, 0, call.keys - call.q_len, 0))

    @staticmethod
    def of_new(out: Tensor, lse: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        if call.past is None:
            return out, lse
        return out[..., call.keys - call.q_len :, :], lse[..., call.keys - call.q_len :]

    @staticmethod
    def are_few(call: Any) -> bool:
        """Return True if the queries are few beside the keys of a cache, so that they look through them one by one."""
        return call.past is not None and call.q_len <= 8

    def of_few(
        self, q: Tensor, k: Tensor, v: Tensor, ids: Tensor, width: int, call: Any, head: int = 0, resort: bool = False
    ) -> Tensor:
        """The last queries, which see what `by_rank` shows them.

        q, k, v   b h i e, scaled, b h n e    of heads from `head` on
        ids       b h n r   the clusters of all tokens, in each round
        """
        rows, keys, heads = q.shape[2], k.shape[2], q.shape[1]
        ordinary = type(q) is Tensor and not torch.compiler.is_compiling() and not is_transformed()
        if rows == 1 and keys >= MANY and ordinary:
            return self.of_one(q, k, v, ids, width, call, head, resort)
        place = torch.arange(keys, device=q.device)
        own = place[keys - rows :]
        same = ids[:, :, keys - rows :].unsqueeze(3) == ids.unsqueeze(2)
        if (hidden := self.hidden(call, heads)) is not None:
            shown = ~hidden.view(-1, heads, keys)
            same = same & (shown[:, :, keys - rows :, None] & shown[:, :, None])[..., None]
        chunk = (same.cumsum(dim=3) - 1).div(width, rounding_mode='floor')
        at = own.view(-1, 1, 1).expand(*chunk.shape[:3], 1, chunk.shape[-1])
        seen = (same & (chunk.gather(3, at) - chunk <= 1)).any(dim=-1) & (place <= own.unsqueeze(-1))
        scores = to_float(q) @ to_float(k).mT
        if resort:
            scores = scores + torch.where(place == own.unsqueeze(-1), SELF, 0.0)
        if (extra := self.extra(call, head)) is not None:
            b, h = (torch.arange(m, device=q.device).view(-1, *[1] * (3 - a)) for a, m in enumerate(q.shape[:2]))
            scores = scores + extra(b, h, own.unsqueeze(-1), place)
            seen = seen & (scores > UNSEEN)
        blind = ~seen.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~seen & ~blind, -torch.inf).softmax(dim=-1).masked_fill(blind, 0.0)
        return weights @ to_float(v)

    def of_one(
        self, q: Tensor, k: Tensor, v: Tensor, ids: Tensor, width: int, call: Any, head: int, resort: bool
    ) -> Tensor:
        """Compute the output of a single query, which attends only to the keys that it sees."""
        (batch, heads), keys, rounds = q.shape[:2], k.shape[2], ids.shape[-1]
        same = (ids == ids[:, :, -1:]).movedim(-1, 2)
        if (hidden := self.hidden(call, heads)) is not None:
            shown = ~hidden.view(-1, heads, 1, keys)
            same = same & shown & shown[..., -1:]
        row, rank, place, count = list_clusters(same.flatten(0, 2))
        near = rank.div(width, rounding_mode='floor') >= (count - 1).div(width, rounding_mode='floor')[row] - 1
        seen = torch.zeros(batch * heads, keys, dtype=torch.bool, device=q.device)
        seen[row[near] // rounds, place[near]] = True
        row, rank, place, count = list_clusters(seen)  # once, of keys that several rounds show
        most = max(int(count.amax()), 1)
        at = torch.zeros(batch * heads, most, dtype=torch.long, device=q.device)
        at[row, rank] = place
        at, visible = (t.view(batch, heads, most) for t in (at, torch.arange(most, device=q.device) < count[:, None]))
        b, h = (torch.arange(m, device=q.device).view(-1, *[1] * (2 - a)) for a, m in enumerate(q.shape[:2]))
        k, v = (to_float(t[b, h, at]) for t in (k, v))
        scores = to_float(q) @ k.mT
        at, visible = at.unsqueeze(2), visible.unsqueeze(2)
        if resort:
            scores = scores + torch.where(at == keys - 1, SELF, 0.0)
        if (extra := self.extra(call, head)) is not None:
            own = torch.full((1, 1), keys - 1, device=q.device)
            scores = scores + extra(b.unsqueeze(-1), h.unsqueeze(-1), own, at)
            visible = visible & (scores > UNSEEN)
        blind = ~visible.any(dim=-1, keepdim=True)
        return scores.masked_fill(~visible & ~blind, -torch.inf).softmax(dim=-1).masked_fill(blind, 0.0) @ v

    @staticmethod
    def hidden(call: Any, heads: int) -> Tensor | None:
        """Return which keys are padding, (b h) n, None for none."""
        seen = visible_keys(call)
        return None if seen is None else ~seen[:, 0, 0].expand(call.batch, call.keys).repeat_interleave(heads, dim=0)

    @staticmethod
    def documents(call: Any, heads: int) -> Tensor | None:
        """Return which document each token is of, counted from 0 on, as rows of all heads (r n); None for one."""
        ids = getattr(call.ctx(TellsDocuments), 'ids', None)
        if ids is None:
            return None
        ids = ids.expand(call.batch, -1)
        known, order = ids.sort(dim=-1, stable=True)
        number = F.pad(known[:, 1:] != known[:, :-1], (1, 0)).cumsum(dim=-1)
        return torch.zeros_like(number).scatter(-1, order, number).repeat_interleave(heads, dim=0)

    @staticmethod
    def lengths(call: Any) -> Tensor | None:
        """Return how many real tokens there are in the row of each token, or in its document:  b 1, or b n. None where
        all rows are as long as the call."""
        hidden, documents = Clusters.hidden(call, 1), Clusters.documents(call, 1)
        if documents is None:
            return None if hidden is None else (~hidden).sum(dim=-1, keepdim=True)
        real = torch.ones_like(documents) if hidden is None else (~hidden).long()
        return torch.zeros_like(documents).scatter_add(-1, documents, real).gather(-1, documents)

    @staticmethod
    def extra(call: Any, head: int = 0) -> Extra | None:
        """Return a function of what biases add to one score, for heads from `head` on, and what
        masks of pairs take off; None for nothing."""
        masks = tuple([t.pointwise(0, True) for t in call.masks if not t.of_keys and t.name != 'document_ids'])
        if not call.biases and not masks:
            return None
        bias, seen = call.bias_entry(), and_entries(masks) if masks else None
        behind = 0 if call.context is not None else call.keys - call.q_len

        def of(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            at = b, h + head, (i - behind).clamp(min=0), j
            added = torch.zeros((), dtype=torch.float32, device=j.device) if bias is None else to_float(bias(*at))
            return added if seen is None else torch.where(seen(*at), added, -FAR)

        return of


def list_clusters(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return, for chosen entries of (r, n), the row, the number before, and the index; and the number in each row."""
    row, place = chosen.nonzero().unbind(-1)
    count = torch.bincount(row, minlength=chosen.shape[0])
    first = count.cumsum(dim=0) - count
    return row, torch.arange(row.shape[0], device=row.device) - first[row], place, count
