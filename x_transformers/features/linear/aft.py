"""Attention-free transformers (AFT): weights per channel from the keys and from the positions of query and key."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from x_transformers.core.modes import to_float
from x_transformers.features.levels import AttentionFeature, visible_keys
from x_transformers.features.linear import aft_sums as sums
from x_transformers.features.linear.kernel import Scaled, least_value
from x_transformers.flags import ConfigError, RecurrentState, flag, none, one_of, size

WHOLE = torch.contiguous_format
NO_PRODUCTS = 'it has no dot products of queries and keys'
NOT_ADDED = 'its weights depend only on keys and positions'


class AttentionFree(AttentionFeature):
    """Attention-free transformer (AFT): a weighted mean of the values per channel, gated by the queries.

        out_t = sigmoid(q_t) * sum_s exp(k_s + w_ts) v_s / sum_s exp(k_s + w_ts)          s <= t if causal

        full     w_ts = u_t . v_s, from learned vectors of rank r for each position
        local    the same for distances below the window, otherwise 0
        conv     w_ts a learned table of distances per head within the window, otherwise 0
        simple   0

    The cache holds sums of fixed size, for local and conv also the last tokens, and for full the keys and values.
    Positions count from the first token after left padding.
    """

    paper = 'An Attention Free Transformer, arXiv:2105.14103'
    aft = flag(
        None, 'AFT instead of softmax attention, with this kind of position weights',
        none | one_of('full', 'local', 'simple', 'conv'),
        example='local',
    )  # fmt: skip
    aft_max_len = flag(None, "number of positions, for 'full' and 'local'", size | none, example=40)
    aft_rank = flag(128, "rank r of the position weights, for 'full' and 'local'", size, example=5)
    aft_window = flag(32, "window of the position weights, in tokens, for 'local' and 'conv'", size, example=3)
    stored_as = {'u': 'aft_u', 'v': 'aft_v', 'w': 'aft_w'}
    refuses = {
        'documents': 'it sums up all tokens of a sequence',
        'cross-attention': 'its positions are those of one sequence',
        **dict.fromkeys(('rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb'), NO_PRODUCTS),
        **dict.fromkeys(
            ('alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias', 'shaw_rel_pos', 'xl_rel_pos'), NOT_ADDED
        ),
        **dict.fromkeys(('residual_attn', 'cross_residual_attn'), 'it forms no scores for the next layer'),
    }
    handles = ('causal', 'padding', 'past', 'context')
    clashes = {
        'dropout': 'it forms no attention weights',
        'laser': 'the logarithm would also include its gates',
        **dict.fromkeys(('collab_heads', 'l2_distance', 'softmax_scale', 'qk_norm', 'qk_rmsnorm'), NO_PRODUCTS),
        **dict.fromkeys(('qk_head_norm', 'qk_proj_norm'), NO_PRODUCTS),
        **dict.fromkeys(('max_attend_past', 'max_attend_future'), 'use `aft_window` instead'),
        **dict.fromkeys(('num_mem_kv', 'add_zero_kv'), 'its keys must be the tokens'),
        'flash_pack_seq': 'it sums up all tokens of a sequence',
        **dict.fromkeys(('shaw_rel_pos', 'disentangled', 'data_dependent_alibi', 'use_rel_proj_pos_bias'), NOT_ADDED),
    }

    def setup(self, owner: Any) -> None:
        self.refuse({'some tokens': 'its sums are those of the tokens in their order'})
        if not (owner.causal or self.aft == 'simple'):
            self.refuse({'cache': 'where all tokens see all, there is no past'})
        shape, kind = owner.shape, self.aft
        if shape.kv_heads != shape.heads:
            raise ConfigError('`aft` cannot be combined with `kv_heads`: each channel has a separate key')
        if shape.dim_value != owner.dim_key:
            raise ConfigError('`aft` cannot be combined with `value_dim_head`: each channel has a separate key')
        if kind in ('full', 'local'):
            if self.aft_max_len is None:
                raise ConfigError(f'`aft={kind!r}` needs `aft_max_len`: each place has a vector')
            self.u, self.v = (nn.Parameter(torch.randn(self.aft_max_len, self.aft_rank) * 0.01) for _ in 'uv')
        if kind == 'conv':
            reach = self.aft_window if owner.causal else 2 * self.aft_window - 1
            self.w = nn.Parameter(torch.randn(shape.heads, reach) * 0.01)
        if kind == 'simple':
            self.refuse({'cross-attention': ''})
        if kind != 'full':
            self.states = {'aft': RecurrentState()}

    def unsupported(self, call: Any) -> str | None:
        for name in ('rotary_pos_emb', 'polar_pos_emb'):
            if call.inputs.get(name) is not None:
                return f'`{name}`: {NO_PRODUCTS}'
        if call.memories:
            return '`mems`: its keys are those of its queries'
        across = self.reason('cross-attention')
        if call.context is not None and (call.causal or across):
            return f'a context: {across or "where it is causal, its keys are those of its queries"}'
        if call.context is None and call.past is not None and not call.causal:
            return '`cache`: where all tokens see all, there is no past'
        if self.aft == 'conv' and self.owner.causal and not call.causal:
            return '`causal=False`: its table is one of earlier keys'
        return super().unsupported(call)

    def update_cache(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        """Append to the cache; with sums of a causal sequence it only counts tokens, in vectors of width 0."""
        call.full_precision = True
        if not call.causal or call.context is not None or self.aft == 'full':
            return call.append_past(k, v)
        call.summed = 0 if call.past is None else call.past.length
        call.append_past(k[..., :0], None)
        return k, v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, None]:
        total = call.keys + call.summed
        if self.aft in ('full', 'local') and total > self.aft_max_len:
            raise ValueError(f'`aft_max_len={self.aft_max_len}`: there are {total} tokens')
        seen = visible_keys(call)
        k = k if seen is None else k.masked_fill(~seen.mT, -torch.inf)
        if q.numel() == 0:
            return q.to(v.dtype), None
        if self.aft != 'conv':  # heads side by side, which all have the same weights
            k, v = (t.transpose(1, 2).flatten(2).unsqueeze(1) for t in (k, v))  # b 1 n (h d)
        out = sums.quotient(self.found(k, v, q.shape[-2], call))
        if self.aft != 'conv':
            out = out.squeeze(1).unflatten(-1, (q.shape[1], -1)).transpose(1, 2)
        return (to_float(q).sigmoid() * out).to(q.dtype), None

    def found(self, k: Tensor, v: Tensor, rows: int, call: Any) -> Scaled:
        if self.aft == 'full':
            of_query, of_key = self.vectors(call, rows, k.shape[-2])
            return sums.full(*finite(k, v), of_query, of_key, call.needs_causal_mask, self.aft_max_len)
        if not call.causal:
            if self.aft == 'simple':
                return sums.sum_everything(*finite(k, v))
            return sums.local(*finite(k, v), self.near(call, k.shape[-2]), self.aft_window, False, None)
        return self.after(k, v, rows, call)

    def after(self, k: Tensor, v: Tensor, rows: int, call: Any) -> Scaled:
        """Keys up to each query, behind those of which the past left sums, and the last ones as they are."""
        past, keeps = call.state('aft').value, call.keeps or call.past is not None
        sums_before = None if past is None else Scaled(*past[:2])
        if self.aft == 'simple':
            found = sums.sum_simple(*finite(k, v), sums_before)
            if keeps:
                # by itself: a view would keep those of all tokens
                call.state('aft').keep([t[:, :, -1].clone(memory_format=WHOLE) for t in found])
            return found
        if past is not None:
            k, v = (torch.cat(both, dim=-2) for both in zip(past[2:], (k, v), strict=True))
        found = sums.local(*finite(k, v), self.near(call, k.shape[-2]), self.aft_window, True, sums_before)
        if keeps:  # what is near no later query
            gone = max(k.shape[-2] - self.aft_window + 1, 0)
            total = sums.sum_everything(*finite(k[..., :gone, :], v[..., :gone, :])).map(lambda t: t.squeeze(2))
            total = total.plus(sums_before)
            call.state('aft').keep([*total, *(t[..., gone:, :].clone(memory_format=WHOLE) for t in (k, v))])
        return Scaled(*(t[:, :, -rows:] for t in found))

    # places

    def vectors(self, call: Any, *counts: int) -> list[Tensor]:
        """The vectors of the last so many tokens, each (b or 1, n, r):  of queries, and of keys."""
        total, real = call.keys + call.summed, call.all_key_mask
        tables = [to_float(self.u), to_float(self.v)]
        if real is None:
            return [t[total - n : total].unsqueeze(0) for t, n in zip(tables, counts, strict=True)]
        at = torch.arange(total, device=real.device)
        at = (at - real.to(torch.uint8).argmax(dim=-1, keepdim=True)).clamp(min=0)
        return [F.embedding(at[:, total - n :], t) for t, n in zip(tables, counts, strict=True)]

    def near(self, call: Any, n: int) -> sums.Near:
        """Logits of places near each other, of the last n tokens."""
        if self.aft == 'local':
            return sums.sum_by_products(*self.vectors(call, n, n), window=self.aft_window)
        return sums.sum_by_distance(to_float(self.w), self.aft_window)


def finite(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values in many digits; hidden keys at a level of which differences are finite."""
    k = to_float(k)
    return k.clamp(min=least_value(k)), to_float(v)
