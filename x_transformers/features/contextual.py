"""Attention that depends on the content of the tokens in between: contextual positions (CoPE), selective attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, disable_autocast
from x_transformers.features.documents import TellsDocuments, begins
from x_transformers.features.levels import AttentionFeature
from x_transformers.flags import ConfigError, a_callable, flag, none, size
from x_transformers.kernels.dense import lowest_value


def is_hidden(sim: Tensor) -> Tensor:
    """Return which logits the mask has hidden: they hold the lowest finite number."""
    return sim <= lowest_value(sim)


def check_causal(call: Any, name: str, reason: str) -> None:
    """Refuse a call that overrides the causality of the layer, or hands it a context."""
    if not call.causal:
        raise ValueError(f'`causal=False` cannot be combined with `{name}`: {reason}')
    if call.context is not None:
        raise ValueError(f'`context` cannot be combined with `{name}`: {reason}')


class HeadMixer(nn.Conv2d):
    """Mix over heads:  b h i j -> b h i j, in the dtype of what is mixed, also of no rows at all."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads, heads, 1, bias=False)

    def forward(self, t: Tensor) -> Tensor:
        if t.shape[-2] == 0:
            return t
        with disable_autocast(t):  # scores are float32
            return self._conv_forward(t, self.weight.to(t.dtype), None)


class ContextualPositions(nn.Module):
    """Positions counted by gates:  p_ij = sum of sigmoid(sim) over the keys j .. i,  sim + q . e(p)

    q          b h i d
    sim        b h i j, hidden logits at the lowest number
    returns    like sim

    A position between two integers reads both vectors, or with `soft` all of them, by a softmax of -|p - n| / 0.05.
    """

    positions: Tensor  # a buffer, if `soft`

    def __init__(self, dim: int, heads: int, max_pos: int, soft: bool = False, talking_heads: bool = False) -> None:
        super().__init__()
        self.max_pos, self.soft, self.temperature = max_pos, soft, 0.05
        self.pos_emb = nn.Parameter(torch.zeros(max_pos, dim))
        self.talking_heads = HeadMixer(heads) if talking_heads else None
        if soft:
            self.register_buffer('positions', torch.arange(max_pos))

    def forward(self, q: Tensor, sim: Tensor) -> Tensor:
        hidden = is_hidden(sim)
        gates = sim if self.talking_heads is None else self.talking_heads(sim.masked_fill(hidden, 0.0))
        gates = gates.to(at_least_float(sim.dtype)).sigmoid().masked_fill(hidden, 0.0)
        place = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=self.max_pos - 1)
        known = q @ self.pos_emb.to(q.dtype).mT  # b h i p
        return torch.where(hidden, sim, sim + self.read(known, place).to(sim.dtype))

    def read(self, known: Tensor, place: Tensor) -> Tensor:
        """Interpolate the values of positions (b h i p) at places between them (b h i j)."""
        if self.soft:
            near = -(place.unsqueeze(-1) - self.positions).abs() / self.temperature
            return torch.einsum('b h i j p, b h i p -> b h i j', near.softmax(dim=-1).to(known.dtype), known)
        below = place.floor()
        above, share = place.ceil().long(), (place - below).to(known.dtype)
        return share * known.gather(-1, above) + (1 - share) * known.gather(-1, below.long())


class CoPE(ContextualPositions):
    """Contextual positions as what is added to the logits, for an `Attend(cope=...)`. Talking heads hide later keys."""

    def __init__(
        self, dim: int, heads: int, max_pos: int, soft_onehot: bool = False, talking_heads: bool = False,
        soft_onehot_temp: float = 5e-2,
    ) -> None:  # fmt: skip
        super().__init__(dim, heads, max_pos, soft_onehot, talking_heads)
        self.temperature = soft_onehot_temp

    def forward(self, query: Tensor, attn_logits: Tensor) -> Tensor:
        sim = attn_logits
        if self.talking_heads is not None:
            i, j = sim.shape[-2:]
            later = torch.ones(i, j, dtype=torch.bool, device=sim.device).triu(j - i + 1)
            sim = sim.masked_fill(later, -torch.finfo(sim.dtype).max)
        return torch.where(is_hidden(sim), 0.0, super().forward(query, sim) - sim)


class UseCoPE(AttentionFeature):
    """Contextual positions (CoPE): the distance to a key is the number of tokens in between that the query attends to.

    p_ij = sum of sigmoid(sim) over the keys j .. i,   sim + q . e(p)
    """

    paper = 'Contextual Position Encoding, arXiv:2405.18719'
    use_cope = flag(False, 'contextual position embeddings, which count attended tokens instead of all tokens')
    cope_max_pos = flag(16, 'number of positions; larger ones are clamped to the last', size, example=3)
    cope_soft_onehot_pos = flag(False, 'look up positions by a soft one-hot vector, not by interpolating between two')
    cope_talking_heads = flag(False, 'mix the logits over heads before positions are counted')
    stored_as = {'positions': 'attend.cope'}
    refuses = {'cross-attention': 'it counts tokens between a query and keys of one sequence'}
    row_wise = True
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        if self.cope_talking_heads:
            self.refuse({'several devices': 'it mixes heads'})
        if not owner.causal:
            raise ConfigError(f'`use_cope` needs `causal`: {self.reason("cross-attention")}')
        soft, talking = bool(self.cope_soft_onehot_pos), bool(self.cope_talking_heads)
        self.positions = ContextualPositions(owner.dim_key, owner.query_heads, self.cope_max_pos, soft, talking)

    def pre_attention(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        check_causal(call, 'use_cope', self.reason('cross-attention'))
        if qkv[0].shape[-1] != self.owner.dim_key:
            raise ValueError(
                f'`use_cope` got queries of width {qkv[0].shape[-1]}, its positions have {self.owner.dim_key}: '
                f'it cannot be combined with `polar_pos_emb`, which doubles them'
            )
        call.ctx(self).queries = qkv[0]  # `pre_kernel` may change them
        return qkv

    def masked_scores(self, sim: Tensor, call: Any) -> Tensor:
        return self.positions(call.cut_rows(call.ctx(self).queries), sim)


class GivenCoPE(AttentionFeature):
    """A custom module whose output is added to the logits, such as contextual positions."""

    paper = UseCoPE.paper
    cope = flag(
        None,
        'module from queries (b, h, i, d) and logits (b, h, i, j), the lowest number where masked, to what is '
        'added to the logits',
        a_callable | none,
    )
    sets_on_module = ('cope',)

    def setup(self, owner: Any) -> None:
        if isinstance(self.cope, nn.Module):
            owner.cope = self.cope

    def pre_attention(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        call.ctx(self).queries = qkv[0]  # `pre_kernel` may change them
        return qkv

    def masked_scores(self, sim: Tensor, call: Any) -> Tensor:
        added = self.owner.cope(call.ctx(self).queries, sim)
        return torch.where(is_hidden(sim), sim, sim + added.to(sim.dtype))


class Selective(AttentionFeature):
    """Selective attention: a token can mask an earlier token for all later queries.

        sim_ij - sum over i' < i of relu(sim_i'j),        the sum from the scores of the first head

    A token can mask neither itself nor the first token. No parameters.
    """

    paper = 'Selective Attention Improves Transformer, arXiv:2410.02703'
    selective = flag(False, 'let tokens mask earlier tokens for later queries')
    refuses = {
        'several devices': 'the first head masks keys for all heads',
        'cross-attention': 'a token masks others for later queries of the same sequence',
        'some tokens': 'queries mask keys for later queries',
        'cache': 'later queries need the masks of all earlier ones',
    }
    row_wise = True
    carries = ('votes',)

    def setup(self, owner: Any) -> None:
        if not owner.causal:
            raise ConfigError(f'`selective` needs `causal`: {self.reason("cross-attention")}')

    def pre_attention(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        check_causal(call, 'selective', self.reason('cross-attention'))
        call.check_no_token_idx('selective', 'queries mask keys for later queries')
        return qkv

    def masked_scores(self, sim: Tensor, call: Any) -> Tensor:
        hidden = is_hidden(sim)
        votes = (sim[:, 0].relu() * self.may_hide(call)).to(at_least_float(sim.dtype))
        earlier = votes.cumsum(dim=-2) - votes  # those of rows before
        if (known := call.carried.get('votes')) is not None:
            earlier = earlier + F.pad(known, (0, votes.shape[-1] - known.shape[-1]))
        if call.span is not None:
            call.carried['votes'] = earlier[..., -1:, :] + votes[..., -1:, :]
        return torch.where(hidden, sim, (sim - earlier.unsqueeze(1)).to(sim.dtype))

    def may_hide(self, call: Any) -> Tensor:
        """Return which keys a query may hide, (i j) or (b i j): no others' padding, not itself, not the first of a
        sequence, nothing in front of the tokens."""
        place = torch.arange(call.keys, device=call.x.device)
        allowed = place != call.of_queries(place).unsqueeze(-1)
        allowed = allowed & call.cut_keys(~self.first(call.whole))
        if (real := call.query_mask) is not None:
            allowed = allowed & real.unsqueeze(-1)
        return F.pad(allowed, (call.total_keys - call.keys, 0), value=False)

    @staticmethod
    def first(call: Any) -> Tensor:
        """Return which keys a sequence begins with, or stand in front of it, (j) or (b 1 j)."""
        n = call.q_len
        first = torch.arange(n, device=call.x.device) == 0
        documents, real = getattr(call.ctx(TellsDocuments), 'ids', None), call.query_mask
        first = first if documents is None else begins(documents)
        if real is not None:
            count = real.cumsum(dim=-1)
            before = torch.where(first, count - real.long(), 0).cummax(dim=-1).values
            first = count - before <= 1
        first = first if first.ndim == 1 else first.unsqueeze(1)
        return F.pad(first, (call.keys - n, 0), value=True)
