"""Mixture of block attention (MoBA)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.features.selected.chosen import ChosenKeys, find_attended, gather_key_mask
from x_transformers.features.selected.kernel import BlockGrid, attend_before, attend_blocks, attend_each
from x_transformers.flags import PerToken, flag, none, size
from x_transformers.kernels.dense import tile_heads
from x_transformers.patterns.engine.formula import concat_groups, prefix_scores


class MoBA(ChosenKeys):
    """MoBA: each query attends to its own block of keys, and to the k - 1 best blocks before it.

        s_tj = q_t mean(k of block j)           of each head, for complete blocks j before that of token t
        o_t = softmax over the keys of the k chosen blocks together; in its own block, keys up to t

    Keys are those after the rotation. The choice has no gradient and no parameters. Blocks are counted from the first
    token after left padding, and in each of several documents from its first token. With as many blocks as there are,
    it equals attention to all keys. Time and memory are n (n / block + k block) per head.
    """

    paper = 'MoBA, arXiv:2502.13189'
    moba_block = flag(None, 'number of keys per block (mixture of block attention)', size | none, example=2)
    moba_topk = flag(3, 'number k of blocks that each query attends to, its own included', size, example=2)
    requires_flag = {'moba_topk': 'moba_block'}
    states = {'block means': PerToken(derived=True)}
    tp_shards = {}

    def prepare(self, k: Tensor, call: Any) -> tuple[Tensor, BlockGrid, Tensor]:
        """Return the mean keys of complete blocks (b g m e), the blocks, and the first tokens of sequences."""
        begin, block = self.find_begins(call), self.moba_block
        grid = BlockGrid.of(begin, call.keys, block, block)
        with torch.no_grad():
            own = to_float(k[:, : self.owner.key_heads].detach())
            return self.summarize('block means', grid, begin, call, own, mean_keys), grid, begin

    def choose(self, q: Tensor, means: Tensor, grid: BlockGrid, at: Tensor, begin: Tensor, call: Any) -> Tensor:
        """Return the blocks before its own that each query (b h i e) attends to, (b h i c); -1 for none."""
        own = at - (at - begin) % self.moba_block  # (b|1, i), where the block of the query begins
        before = (grid.last[:, None] < own.unsqueeze(-1)) & (grid.first[:, None] >= begin.unsqueeze(-1))
        real = gather_key_mask(grid, call, call.keys)
        before = before if real is None else before & real.flatten(3).any(dim=-1)
        with torch.no_grad(), disable_autocast(q):
            scores = to_float(q.detach()) @ tile_heads(means, q.shape[1]).to(to_float(q).dtype).mT
            scores = scores.masked_fill(~before.unsqueeze(1), -torch.inf)
            count, blocks = self.moba_topk - 1, scores.shape[-1]
            if torch.compiler.is_compiling():  # a graph for all lengths cannot ask whether there are so many
                scores, blocks = F.pad(scores, (0, count), value=-torch.inf), count
            best = scores.topk(min(count, blocks), dim=-1)
            return torch.where(best.values > -torch.inf, best.indices, -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        added, block = call.total_keys - call.keys, self.moba_block
        means, grid, begin = self.prepare(k[:, :, added:], call)
        means = tile_heads(means, q.shape[1])
        places, begins = self.find_queries(begin, call)
        each = self.takes_each(call)

        def run(q: Tensor, k: Tensor, v: Tensor, means: Tensor, at: slice, own: Any) -> tuple[Tensor]:
            here, start = places[:, at], begins[:, at]
            first = here - (here - start) % block
            choice = self.choose(q, means, grid, here, start, call)
            if each:
                parts = [attend_each(q, k, v, here, first, block, choice, grid, own)]
            else:
                parts = [attend_before(q, k, v, call.keys - call.q_len + at.start, first, block, own)]
                parts += attend_blocks(q, k, v, choice, grid, own) if choice.shape[-1] else []
            parts += [prefix_scores(q, k, v, own)] if own.added else []
            return (concat_groups(parts, q, v)[0],)

        (out,) = self.run_in_parts(run, call, (self.moba_topk + 1) * block, (q,), (k, v, means))
        return out.to(v.dtype), None

    def find_visible(self, q: Tensor, k: Tensor, call: Any) -> Tensor:
        means, grid, begin = self.prepare(k, call)
        at, begin = self.find_queries(begin, call)
        choice = self.choose(q, means, grid, at, begin, call)
        place = torch.arange(call.keys, device=q.device)
        near = (place >= (at - (at - begin) % self.moba_block).unsqueeze(-1)) & (place <= at.unsqueeze(-1))
        return near.unsqueeze(1) | find_attended(choice, grid, call.keys)


def mean_keys(t: Tensor, real: Tensor | None) -> Tensor:
    """Return the mean of the keys of each block (b h m s e) that are real tokens."""
    if real is None:
        return t.mean(dim=-2)
    return (t * real).sum(dim=-2) / real.sum(dim=-2).clamp(min=1)
