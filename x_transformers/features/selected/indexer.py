"""Sparse indexer (DeepSeek sparse attention): a small scorer chooses the keys of each query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.features.selected.chosen import ChosenKeys
from x_transformers.flags import ConfigError, PerToken, boolean, flag, not_negative, one_of, size
from x_transformers.patterns.engine.attention import get_scores
from x_transformers.patterns.engine.formula import Scores, concat_groups, group_scores, index_scores, prefix_scores

Views = tuple[Tensor, Tensor, Tensor]
# Up to these multiples of `indexer_topk`, masking all keys takes less time than gathering the chosen ones: for few
# queries, and for many, which share the keys.
MASKED_FEW, MASKED = 2, 16


class SparseIndexer(ChosenKeys):
    """DeepSeek sparse attention: each query attends to the k keys with the best scores of a small indexer.

        I_ts = sum_h w_th relu(q^I_th k^I_s) / sqrt(h_I d_I),  s <= t
        q^I = c W_q,  w = x W_w,  k^I = layer_norm(x W_k)           one k^I for all heads, c the query latent, or x
        loss = weight mean_t KL(p_t || softmax_s I_ts)              p_t: mean attention weights of all heads

    With rotary positions, the first channels of q^I and k^I are rotated. The indexer learns only from its loss, in
    which s are the chosen keys, and its inputs are detached; the choice has no gradient. With `indexer_warmup`, queries
    attend to all keys, and so does the loss: the indexer of a dense model learns, while the others are frozen. With at
    most k keys, it equals attention to all keys. The scores take time n^2 h_I d_I, attention n k; no tensor has all
    heads, queries and keys.
    """

    paper = 'DeepSeek-V3.2, arXiv:2512.02556'
    indexer = flag(False, 'attend only to the keys that a small indexer chooses (DeepSeek sparse attention)')
    indexer_heads = flag(64, 'number of heads h_I of the indexer', size, example=2)
    indexer_dim = flag(128, 'width d_I of the heads of the indexer', size, example=8)
    indexer_topk = flag(2048, 'number k of keys that each query attends to', size, example=3)
    indexer_rotary = flag(
        'half',
        "how the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors)",
        one_of('half', 'pairs'),
        example='pairs',
    )
    indexer_loss_weight = flag(1.0, 'weight of the loss of the indexer', not_negative, example=0.5)
    indexer_warmup = flag(False, 'attend to all keys, while the indexer learns', boolean)
    stored_as = {'to_q': 'to_index_q', 'to_k': 'to_index_k', 'norm': 'index_norm', 'to_weights': 'to_index_weights'}
    no_memories = 'it has keys of its own for each token, not for memories'
    states = {'index keys': PerToken()}

    def setup(self, owner: Any) -> None:
        super().setup(owner)
        if self.indexer_dim % 2:
            raise ConfigError(f'`indexer_dim` must be even, got {self.indexer_dim}')
        self.to_q = nn.Linear(owner.to_q.in_features, self.indexer_heads * self.indexer_dim, bias=False)
        self.to_k = nn.Linear(owner.dim, self.indexer_dim, bias=False)
        self.norm = nn.LayerNorm(self.indexer_dim, eps=1e-6)
        self.to_weights = nn.Linear(owner.dim, self.indexer_heads, bias=False)

    def qkv_inputs(self, views: Views, call: Any) -> Views:
        own, heads = call.ctx(self), self.indexer_heads
        own.q = self.to_q(views[0].detach()).unflatten(-1, (heads, -1)).transpose(1, 2)  # (b, h, i, d)
        weights = self.to_weights(call.x.detach()) * (heads * self.indexer_dim) ** -0.5
        own.weights = weights.transpose(1, 2).unsqueeze(-1)  # (b, h, i, 1)
        source = call.x if call.token_idx is None else call.zero_hidden_keys(call.tokens)
        own.k = self.norm(self.to_k(source.detach())).unsqueeze(1)  # (b, 1, n, d)
        if call.keeps or call.past is not None:
            own.k = call.state('index keys').append(own.k)
        return views

    def rotate_both(self, call: Any) -> tuple[Tensor, Tensor]:
        """Return queries and keys of the indexer, rotated if the layer rotates its own."""
        q, k, given = call.ctx(self).q, call.ctx(self).k, call.inputs.get('rotary_pos_emb')
        if given is None:
            return q, k
        (angles, scale), kept = given, call.inputs.get('kept_angles')
        width, every = angles.shape[-1], angles if kept is None else kept.tensor
        if width > self.indexer_dim:
            raise ValueError(
                f'`indexer_dim` must be at least the number of rotated channels, {width}, got {q.shape[-1]}'
            )
        if self.indexer_rotary == 'half':
            q, k = (torch.cat((as_pairs(t[..., :width]), t[..., width:]), dim=-1) for t in (q, k))
        if call.token_idx is not None:
            angles, scale = (
                call.of_queries(t, -2) if torch.is_tensor(t) and t.ndim > 1 else t for t in (angles, scale)
            )
        q = self.owner._rotate(q, angles, scale)
        return q, self.owner._rotate(k, every, 1.0 if given[1] is None else given[1] ** -1)

    def index_keys(self, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
        """Return the scores of the indexer, (b, i, j)."""
        with disable_autocast(q):
            products = (to_float(q) @ to_float(k).mT).relu()  # (b, h, i, j)
            return torch.einsum('bhij,bhiz->bij', products, to_float(weights))

    def find_seen(self, at: Tensor, own: Scores, call: Any) -> Tensor:
        """Return which keys queries (b|1, i) may attend to in any head, (b|1, i, j)."""
        j = torch.arange(call.keys, device=at.device)
        seen = j <= at.unsqueeze(-1)
        if own.mask is None:
            return seen
        b = torch.arange(call.batch, device=at.device)[:, None, None, None, None]
        row = torch.arange(at.shape[-1], device=at.device).unsqueeze(-1)[None, None, None]
        mask = own.mask(b, own.head_index(call.heads, at.device), row, j[None, None, None, None] + own.added)
        return seen & mask.any(dim=1)[:, 0]

    @torch.no_grad()
    def choose(self, scores: Tensor, seen: Tensor) -> Tensor:
        """Return which keys are the best of each query, (b, i, j). Of equal scores, which zeros are, the first ones."""
        scores = scores.masked_fill(~seen, -torch.inf)
        count = min(self.indexer_topk, scores.shape[-1])
        least = scores.topk(count, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
        above, equal = scores > least, (scores == least) & seen
        return above | (equal & (equal.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        places, _ = self.find_queries(torch.zeros(1, 1, dtype=torch.long, device=q.device), call)
        own_q, own_k = self.rotate_both(call)
        learns = self.owner.training and torch.is_grad_enabled() and self.indexer_loss_weight > 0
        most = (MASKED_FEW if self.takes_each(call) else MASKED) * self.indexer_topk
        every = bool(self.indexer_warmup) or call.keys <= self.indexer_topk

        def run(
            q: Tensor, own_q: Tensor, weights: Tensor, k: Tensor, v: Tensor, own_k: Tensor, at: slice, own: Scores
        ) -> tuple[Tensor, ...]:
            seen = self.find_seen(places[:, at], own, call)
            scores: Any = self.index_keys(own_q, own_k, weights) if learns or not every else None
            row, j = (torch.arange(t.shape[2], device=q.device)[None, None, None] for t in (q, own_k))
            group_axis = 2  # All queries are one group.
            if not every:
                seen = self.choose(scores, seen)
                if call.keys > most:  # Each query is a group.
                    best = list_chosen(seen, self.indexer_topk)
                    scores, seen = scores.gather(-1, best.clamp(min=0)), best >= 0
                    row, j, group_axis = row.mT, best.clamp(min=0).unsqueeze(1), 3
            grouped = seen.unsqueeze(1).unsqueeze(group_axis)
            found = [index_scores(q, k, v, row, j + own.added, grouped, own)]
            found += [prefix_scores(q, k, v, own)] if own.added else []
            out, _ = concat_groups(found, q, v)
            if not learns:
                return (out,)
            return out, divergence(
                scores, seen, *group_scores(q.detach(), k.detach(), row, j + own.added, grouped, own)
            )

        width = self.indexer_heads * call.keys + call.heads * min(call.keys, self.indexer_topk)
        rows = q, own_q, call.ctx(self).weights
        out, *losses = self.run_in_parts(run, call, width, rows, (k, v, own_k), by_head=False)
        if losses:
            loss = losses[0][:, 0, :, 0]
            real = torch.ones_like(loss) if call.query_mask is None else call.query_mask.to(loss.dtype)
            mean = (loss * real).sum() / real.expand_as(loss).sum().clamp(min=1)
            call.add_loss('indexer', self.indexer_loss_weight * mean)
        return out.to(v.dtype), None

    def find_visible(self, q: Tensor, k: Tensor, call: Any) -> Tensor:
        own_q, own_k = self.rotate_both(call)
        at, _ = self.find_queries(torch.zeros(1, 1, dtype=torch.long, device=q.device), call)
        seen = self.find_seen(at, get_scores(call, call.masks), call)
        if self.indexer_warmup:
            return seen.unsqueeze(1)
        scores = self.index_keys(own_q, own_k, call.ctx(self).weights)
        return self.choose(scores, seen).unsqueeze(1)


def as_pairs(t: Tensor) -> Tensor:
    """Put channels c and c + r / 2 side by side."""
    return t.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def list_chosen(seen: Tensor, most: int) -> Tensor:
    """Return the indices of at most `most` chosen keys (b, i, j) of each query, (b, i, k); -1 for none."""
    place = torch.where(seen, seen.cumsum(dim=-1) - 1, most)
    found = torch.full((*seen.shape[:2], most + 1), -1, device=seen.device)
    return found.scatter(-1, place, torch.arange(seen.shape[-1], device=seen.device).expand_as(place))[..., :most]


def divergence(scores: Tensor, seen: Tensor, logits: Tensor, visible: Tensor) -> Tensor:
    """Return KL(p || softmax of the indexer's scores) of each query, (b, 1, i, 1); p has no gradient.

    Scores of the indexer and their mask are (b, i, s), logits of attention and theirs (b, h, G, c, s), G c = i.
    """
    with torch.no_grad():
        blind = ~visible.any(dim=-1, keepdim=True)
        weights = logits.masked_fill(~(visible | blind), -torch.inf).softmax(dim=-1)
        weights = weights.masked_fill(~visible, 0.0).mean(dim=1).flatten(1, 2)  # (b, i, s)
        target = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    some = seen.any(dim=-1, keepdim=True)
    known = scores.masked_fill(~seen & some, -torch.inf).log_softmax(dim=-1).masked_fill(~seen, 0.0)
    each = torch.special.xlogy(target, target) - target * known.to(target.dtype)
    return each.sum(dim=-1)[:, None, :, None]
