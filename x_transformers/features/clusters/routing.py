"""Routing: clusters around centroids that are updated by online k-means."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from x_transformers.core.modes import disable_autocast, is_transformed, to_float
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup
from x_transformers.features.clusters.clusters import Clusters
from x_transformers.features.clusters.kernel import attend, sort_by_rank, sort_in_groups
from x_transformers.features.patterns import OUTSIDE, HoldsPattern
from x_transformers.flags import ConfigError, PerToken, warn_once
from x_transformers.patterns import Sliding
from x_transformers.patterns.engine.attention import attend_patterns

Heads = tuple[Tensor, Tensor, Tensor]
BEST = 'a centroid takes the best of all tokens'
UNITS = 2**24  # in which sums are counted: whole numbers add up to the same in every order


class Routing(HoldsPattern, Clusters, kind='routing'):
    """Routing attention: in the last heads, tokens near the same centroid m attend to each other; the first are local.

        q, k = layer_norm(q), layer_norm(k)        without weight and bias
        argmax    a token belongs to the centroid with the largest m q; it attends to its chunk of the cluster and to
                  the one before
        balanced  each centroid gets the w queries with the largest m q and the w keys with the largest m k; a token in
                  several clusters gets the mean of their outputs, a token in none gets zeros
        m = decay m + (1 - decay) (mean q + mean k) / 2, normalized, over the tokens nearest to it

    Without `cluster_size`, the chunks, the balanced clusters and the window of the local heads have the length of the
    sequence (or document), without padding, divided by the number of centroids. Centroids are updated in `on_step_end`,
    from the training passes since the last update.
    """

    paper = 'Routing Transformer, arXiv:2003.05997'
    options_of = ('num_clusters', 'local_heads', 'local_pattern', 'routing_decay', 'routing_balanced')
    call_inputs = OUTSIDE
    stored_as = {'centroids': 'centroids', 'random_blocks': 'random_blocks'}
    clashes = {
        **Clusters.clashes,
        **dict.fromkeys(
            ('qk_norm', 'qk_rmsnorm', 'k_rmsnorm', 'qk_head_norm', 'qk_proj_norm'),
            'it already normalizes queries and keys',
        ),
        'differential': 'heads are local or routed, not both',
        'shared_qk': 'queries and keys have separate centroids',
    }
    # centroids follow the real tokens, whatever gives the sizes
    counts_tokens = True  # pyright: ignore[reportAssignmentType]  a property of other patterns

    def setup(self, owner: Any) -> None:
        super().setup(owner)
        if self.num_clusters is None:
            raise ConfigError("`cluster='routing'` needs `num_clusters`: a stack does not know how long its inputs are")
        self.local = owner.heads // 2 if self.local_heads is None else self.local_heads
        if self.local > owner.heads:
            raise ConfigError(f'`local_heads` must be at most `heads`, {owner.heads}, got {self.local}')
        self.balanced = not owner.causal if self.routing_balanced is None else bool(self.routing_balanced)
        if self.balanced and owner.causal:
            raise ConfigError(f'`routing_balanced` cannot be combined with `causal`: {BEST}')
        self.holds = self.local > 0 and self.local_pattern is not None
        if self.holds:
            self.hold(self.local_pattern, 'local_pattern', self.local)
            if self.pattern.marked:
                raise ConfigError(f'`local_pattern` got {self.name}: no one marks tokens, as for `sparse_pattern`')
        elif self.local_pattern is not None:
            warn_once('`local_pattern` has no effect with `local_heads=0`')
        if self.balanced:
            self.handles = (*Clusters.handles, 'context')
        else:
            self.states = {'cluster': PerToken()}
        # a call's own size would change clusters with the length
        if not (owner.causal and self.cluster_size is not None):
            self.refuse({'cache': 'the size of clusters follows the length'})
        if self.holds and self.pattern.cannot_cache:
            self.refuse({'cache': self.pattern.cannot_cache})
        if self.balanced:
            near = 'its local heads see nearby tokens, `local_heads=0` has none' if self.local else ''
            self.refuse({'cross-attention': near, 'causal': (BEST, 'routing_balanced'), 'documents': BEST})
        elif self.holds:
            self.refuse({'documents': self.not_by_differences})
        routed, width = owner.heads - self.local, owner.dim_key
        drawn = torch.randn(routed, self.num_clusters, width, dtype=torch.float32)
        self.centroids = F.normalize(drawn, dim=-1).to(torch.get_default_dtype())
        # no buffer, as those of one replica are sent to all
        self.tally = [torch.zeros(2, routed, self.num_clusters, width + 1, dtype=torch.long)]

    def unsupported(self, call: Any) -> str | None:
        if call.context is not None and (across := self.reason('cross-attention')):
            return f'`context`: {across}'
        return (self.wrong_call(call) if self.holds else None) or super().unsupported(call)

    # routes

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        call.full_precision = True
        # no slices: each of them would fill up a gradient of its own
        near, routed = zip(*(t.split([self.local, t.shape[1] - self.local], dim=1) for t in (q, k)), strict=True)
        routed = [F.layer_norm(to_float(t), t.shape[-1:]) for t in routed]
        own = call.ctx(self)
        own.scores = [self.products(t) for t in routed]
        own.routed = [t.detach() for t in routed] if self.owner.training else None
        if not self.balanced:
            own.ids = own.scores[0].argmax(dim=-1, keepdim=True)
            if call.keeps or call.past is not None:
                own.ids = call.state('cluster').append(own.ids)
        q, k = (torch.cat((t, new.to(t.dtype)), dim=1) for t, new in zip(near, routed, strict=True))
        return q, k, v

    @torch.no_grad()
    def products(self, t: Tensor) -> Tensor:
        """Return the products of tokens and centroids, (b, h, n, e) -> (b, h, n, k)."""
        with disable_autocast(t):
            return t.detach() @ self.centroids.to(t.dtype).mT

    def size_of(self, length: Any) -> Any:
        """Return how many tokens a chunk has, or a balanced cluster takes."""
        return self.cluster_size or -(-length // self.num_clusters)

    def sizes_of(self, lengths: Tensor | None) -> Tensor | None:
        """Return the sizes where they differ between rows or documents, of their lengths; None for one size."""
        return None if self.cluster_size or lengths is None else self.size_of(lengths).clamp(min=1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        if v.numel() == 0 or q.numel() == 0:
            return v.new_zeros(*q.shape[:-1], v.shape[-1]), None
        parts, at = [], self.local
        near, routed = zip(*(t.split([at, t.shape[1] - at], dim=1) for t in (q, k, v)), strict=True)
        if at:
            parts.append(self.nearby(*near, call=call).to(v.dtype))
        if at < q.shape[1]:
            self.count(call)
            way = self.taken if self.balanced else self.ranked
            parts.append(way(*routed, call=call).to(v.dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1), None

    def nearby(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        """Heads that see a pattern, or a window as wide as a chunk."""
        if self.holds:
            return attend_patterns(q, k, v, call, self.of_heads(self.local, call))[0]
        windows = self.sizes_of(self.lengths(call))
        if windows is not None:
            call = copy.copy(call)
            call.masks = [*call.masks, mask_within(windows.expand(-1, call.keys))]
        return attend_patterns(q, k, v, call, Sliding(self.size_of(call.keys)).for_heads(self.local))[0]

    def ranked(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        """Each token sees its chunk of its cluster, and the one before."""
        ids, heads = call.ctx(self).ids, q.shape[1]
        width, q = self.size_of(call.keys), to_float(q) * call.scale
        if self.are_few(call):
            return self.of_few(q, k, v, ids, width, call, self.local)
        hidden, documents = self.hidden(call, heads), self.documents(call, heads)
        ids = ids.flatten(0, 1).squeeze(-1)
        ids = ids if documents is None else ids + documents * self.num_clusters
        widths = self.sizes_of(self.lengths(call))
        if widths is not None:
            widths = widths.expand(-1, call.keys).repeat_interleave(heads, dim=0)
        order = sort_by_rank(ids, hidden, width, call.causal, widths)
        return self.of_new(*attend(self.of_all(q, call), k, v, [order], extra=self.extra(call, self.local)), call)[0]

    def taken(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> Tensor:
        """Each centroid takes its best queries and keys."""
        of_q, of_k = (t.mT for t in call.ctx(self).scores)
        queries, keys = call.query_mask, self.hidden(call, 1)
        of_q = of_q if queries is None else of_q.masked_fill(~queries[:, None, None], -torch.inf)
        of_k = of_k if keys is None else of_k.masked_fill(keys[:, None, None], -torch.inf)
        real = queries, None if keys is None else ~keys
        sizes = [self.sizes_of(None if t is None else t.sum(dim=-1)) for t in real]
        picks = [self.best_of(t, size).sort(dim=-1).values for t, size in zip((of_q, of_k), sizes, strict=True)]
        q, k, v = to_float(q) * call.scale, to_float(k), to_float(v)
        ragged = any(size is not None for size in sizes)
        return sort_in_groups(q, k, v, picks[0], picks[1], keys, self.extra(call, self.local), ragged)

    def best_of(self, scores: Tensor, sizes: Tensor | None) -> Tensor:
        """Return the places with the largest scores (b h k n), as many as a centroid takes in each row; -1 for none.

        Of equal scores, which equal tokens have, the first ones are taken: a row is then what it is without padding.
        """
        most = min(self.size_of(scores.shape[-1]), scores.shape[-1])
        found = scores.sort(dim=-1, descending=True, stable=True).indices[..., :most]
        if sizes is None:
            return found
        return torch.where(torch.arange(most, device=found.device) < sizes[:, None, None, None], found, -1)

    # centroids

    @torch.no_grad()
    def count(self, call: Any) -> None:
        """Add the tokens of a pass in training to those of their centroids."""
        own = call.ctx(self)
        if not self.owner.training or own.routed is None or is_transformed():
            return
        self.tally[0] = self.tally[0].to(call.x.device)
        masks = call.query_mask, None if (hidden := self.hidden(call, 1)) is None else ~hidden
        for side, (t, scores, real) in enumerate(zip(own.routed, own.scores, masks, strict=True)):
            nearest = scores.argmax(dim=-1, keepdim=True)
            of = torch.zeros_like(scores).scatter_(-1, nearest, 1.0)
            of = of if real is None else of * real[:, None, -t.shape[2] :, None]
            sums = of.mT @ t * t.shape[-1] ** -0.5
            new = torch.cat((sums, of.sum(dim=-2).unsqueeze(-1)), dim=-1).sum(dim=0)
            self.tally[0][side].add_(new.mul_(UNITS).round_().long())

    def on_step_end(self, progress: float) -> None:
        (tally,) = self.tally = [self.tally[0].to(self.centroids.device)]
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(tally)
        sums, counts = (tally / UNITS).split((tally.shape[-1] - 1, 1), dim=-1)
        sides = (counts > 0).sum(dim=0)  # that have any
        mean = (sums / counts.clamp(min=1)).sum(dim=0) / sides.clamp(min=1)
        moved = self.routing_decay * self.centroids + (1 - self.routing_decay) * mean
        self.centroids.copy_(torch.where(sides > 0, F.normalize(moved, dim=-1), self.centroids))
        tally.zero_()


def mask_within(windows: Tensor) -> BlockwiseTerm:
    """Hide keys further from a query than the window of its row or document, b n."""

    def entry() -> Pointwise:
        of_query = make_axis_lookup(windows)
        return lambda b, h, i, j: (i - j).abs() <= of_query(b, i)

    return BlockwiseTerm(None, entry=entry)
