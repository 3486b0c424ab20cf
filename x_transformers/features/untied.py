"""Untied positions (TUPE): separate scores of the position embeddings, which are not added to the tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.calls import is_large
from x_transformers.core.model_calls import select_sequences
from x_transformers.core.modes import precise_matmul
from x_transformers.core.own_modules import known_stack
from x_transformers.core.rows import BlockwiseTerm, Pointwise, summable
from x_transformers.features.embeddings import adds_positions
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.features.positions import positions_of
from x_transformers.flags import ConfigError, Input, PerToken, flag
from x_transformers.flags.checks import get_tensor

OTHERS = ('rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb', 'xl_rel_pos', 'per_layer_abs_pos_emb')
ONE_SCHEME = 'only one position scheme is possible'
WANTED = 'a model gives it, whose positions are then not added to its tokens; a stack alone is given it'


def get_scores(q: Tensor, k: Tensor, q_known: Tensor, k_known: Tensor, without: Tensor) -> Tensor:
    """Return the position scores:  b h i e, b h j e, b i, b j, 2 h -> b h i j

    A query without a position has the first number of its head for all keys, a key without one the second.
    """
    scores = precise_matmul(q, k.mT)
    of_query, of_key = without.to(scores.dtype).unsqueeze(-1).unsqueeze(-1)
    scores = torch.where(k_known[:, None, None], scores, of_key)
    return torch.where(q_known[:, None, :, None], scores, of_query)


class UntiedPositions(AttentionFeature):
    """Separate scores of contents and positions:  sim_ij = (q_i k_j + (p_i U) (p_j V)) / sqrt(2 e).

    The stack computes the second term, which is the same in all layers.
    """

    paper = 'TUPE, arXiv:2006.15595'
    tupe_pos = flag(False, 'add scores of the position embeddings, computed by the stack')
    call_inputs = {'untied_scores': Input('b h i j, for all keys, or their factors')}
    sets_on_module = ('logit_scale',)
    refuses = {'cross-attention': 'its positions belong to one sequence', **dict.fromkeys(OTHERS, ONE_SCHEME)}

    def setup(self, owner: Any) -> None:
        if owner.shape.kv_heads != owner.shape.heads:
            raise ConfigError(
                '`tupe_pos` cannot be combined with `kv_heads`: each head has its own scores of positions'
            )
        owner.logit_scale = (2 * owner.dim_key) ** -0.5

    def bias(self, call: Any) -> Tensor | BlockwiseTerm:
        self.refuse_context(call)
        given = call.inputs.get('untied_scores')
        if given is None:
            raise ValueError('`untied_scores` is missing: a stack with `tupe_pos` gives it')
        if torch.is_tensor(given):
            return repeat_heads(call.of_queries(given, -2), call.heads)
        q, k, q_known, k_known, without = given
        q, k = repeat_heads(call.of_queries(q, -2), call.heads), repeat_heads(k, call.heads)
        q_known, without = call.of_queries(q_known), without.repeat(1, call.heads // without.shape[1])

        def of(rows: slice, keys: slice) -> Tensor:
            return get_scores(q[..., rows, :], k[..., keys, :], q_known[:, rows], k_known[:, keys], without)

        def entry() -> Pointwise:
            known = summable(of(slice(0, call.q_len), slice(0, call.keys)))
            if known.shape[0] == 1:
                return lambda b, h, i, j: known[0, h, i, j]
            return lambda b, h, i, j: known[b, h, i, j]

        return BlockwiseTerm(of, learns=True, entry=entry)


def repeat_heads(t: Tensor, heads: int) -> Tensor:
    """Vectors or scores of heads, b h ..., for a multiple of these."""
    return t if t.shape[1] == heads else t.repeat(1, heads // t.shape[1], *[1] * (t.ndim - 2))


class UntiedPositionsInStack(StackFeature):
    """Separate scores of the position embeddings, the same in all self-attention layers:  (p_i U) (p_j V) / sqrt(2 e)

    The vectors p are the position embeddings of the model, which are then not added to the tokens. Prepended tokens
    have no position, like [CLS] in the paper: their term is a learned number per head, one for queries (with all keys)
    and one for keys. It can be combined with the T5 bias.
    """

    paper = UntiedPositions.paper
    tupe_pos = flag(False, 'add separate scores of the position embeddings, instead of adding these to the tokens')
    tupe_cls_first = flag(False, 'treat the token at position 0 as [CLS], which has no position')
    call_inputs = {
        'pos_vectors': Input(
            'n d | b n d, position embeddings of the new tokens', get_tensor('n d | b n d', floats=True)
        ),
        'pos_known': Input('n | b n, True for tokens with a position; all if None', get_tensor('n | b n')),
    }
    stored_as = {'to_queries': 'tupe_q', 'to_keys': 'tupe_k', 'without': 'tupe_cls'}
    requires_flag = {'tupe_cls_first': 'tupe_pos'}
    states = {'tupe_k': PerToken()}
    gives_positions = None
    clashes = dict.fromkeys(OTHERS, ONE_SCHEME)

    def setup(self, owner: Any) -> None:
        self.to_queries, self.to_keys = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(owner.dim, owner.attn_heads * owner.attn_dim_head)))
            for _ in 'qk'
        )
        self.without = nn.Parameter(torch.zeros(2, owner.attn_heads))

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        return {'tupe_pos': True, **flags} if kind == 'a' else flags

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if call.memories:
            raise ValueError('`tupe_pos` cannot be combined with `mems`, which have no position in a table')
        vectors, known = self.given(x, call)
        width, heads = self.owner.attn_dim_head, self.owner.attn_heads
        scale = (2 * width) ** -0.5
        q, k = (vectors * scale) @ self.to_queries.to(x.dtype), vectors @ self.to_keys.to(x.dtype)
        rows = torch.cat((k, known.unsqueeze(-1).to(k.dtype).expand(k.shape[0], -1, -1)), dim=-1)
        state = call.state('tupe_k')
        begins = state.checked_past is None
        # in memory of their own, into which later tokens are written
        held = state.append(rows.expand(x.shape[0], -1, -1).contiguous()) if call.keeps or not begins else rows
        rows = rows if begins else held
        q, k = (t.unflatten(-1, (heads, width)).transpose(1, 2) for t in (q, rows[..., :-1]))
        terms = (q, k, known, rows[..., -1] > 0, self.without)
        large = is_large(x, max(q.shape[0], k.shape[0]), heads, q.shape[-2], k.shape[-2])
        call.shared['a']['untied_scores'] = terms if large else get_scores(*terms)
        return x

    def given(self, x: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        """The vectors of the new tokens and which of them have a position:  b n d, b n, b may be 1"""
        vectors, known = call.inputs.get('pos_vectors'), call.inputs.get('pos_known')
        if vectors is None:
            raise ValueError(f'`pos_vectors` is missing, which `tupe_pos` needs: {WANTED}')
        if vectors.shape[-1] != x.shape[-1] or vectors.shape[:-2] not in ((), (1,), (x.shape[0],)):
            n, d = call.new_len, x.shape[-1]
            raise ValueError(
                f'`pos_vectors` must have shape ({n}, {d}) or ({x.shape[0]}, {n}, {d}), got {tuple(vectors.shape)}'
            )
        vectors = vectors.reshape(vectors.shape[:-2].numel(), *vectors.shape[-2:])
        vectors = call.select_new(vectors, 'pos_vectors').to(x.dtype)
        if known is None:
            known = torch.ones(1, call.new_len, dtype=torch.bool, device=x.device)
        elif known.shape[:-1] not in ((), (1,), (x.shape[0],)):
            raise ValueError(f'`pos_known` must have shape ({call.new_len},) or b of them, got {tuple(known.shape)}')
        else:
            known = known.reshape(known.shape[:-1].numel(), known.shape[-1], 1)
            known = call.select_new(known, 'pos_known')[..., 0].bool()
        vectors, known = vectors.expand(-1, call.new_len, -1), known.expand(-1, call.new_len)
        return vectors.masked_fill(~known.unsqueeze(-1), 0.0), known


def begins_with_cls(stack: Any) -> bool:
    """Return True if the token at position 0 has no position in a stack with scores of positions."""
    own = stack.features.find(UntiedPositionsInStack)
    return own is not None and own.tupe_cls_first


class UntiedPositionsInModel(ModelFeature):
    """Pass the position embeddings to a stack with `tupe_pos`."""

    enabled_by = ('tupe_pos',)

    def active_stages(self) -> tuple[str, ...]:
        own = known_stack(self.owner.attn_layers).features.find(UntiedPositionsInStack)
        return () if own is None else self.runs_at()

    def setup(self, owner: Any) -> None:
        own = known_stack(owner.attn_layers).features.find(UntiedPositionsInStack)
        if own is None:
            return
        self.first = own.tupe_cls_first
        if not adds_positions(owner):
            raise ConfigError('`tupe_pos` needs absolute positions: `max_seq_len`, and no `use_abs_pos_emb=False`')
        if owner.emb_dim != owner.dim:
            raise ConfigError(
                f'`tupe_pos` needs positions as wide as the stack, {owner.dim}, `emb_dim` got {owner.emb_dim}'
            )
        if getattr(owner, 'max_mem_len', 0):
            raise ConfigError('`tupe_pos` cannot be combined with `max_mem_len`: memories have no position in a table')

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        found = (f.vectors(call) for f in self.owner.features.active if hasattr(f, 'vectors'))
        vectors = next(one for one in found if one is not None)
        vectors = vectors if vectors.ndim == 3 else vectors.unsqueeze(0)
        tokens, known = call.like_tokens, self.known(call)
        if not call.num_prefix_tokens and call.spread is None:
            return {**inputs, 'pos_vectors': vectors, 'pos_known': known}
        at = torch.arange(call.new_len, device=tokens.device).expand(tokens.shape[0], -1)
        if not call.continues:
            at = call.move_after_padding(F.pad(at, (call.num_prefix_tokens, 0), value=-1))
        at = at if call.spread is None else call.spread(at, -1)
        place, known = at.clamp(min=0), torch.ones_like(at[:, :1]).bool() if known is None else known
        known = (at >= 0) & known.expand(tokens.shape[0], call.new_len).gather(1, place)
        vectors = select_sequences(vectors.expand(tokens.shape[0], -1, -1), place)
        return {**inputs, 'pos_vectors': vectors, 'pos_known': known}

    def known(self, call: Any) -> Tensor | None:
        """Return which of the new tokens have a position, b n; None for all."""
        pos, start = call.inputs.get('pos'), call.inputs.get('seq_start_pos')
        if not self.first:
            return None
        if pos is not None and pos.is_floating_point():
            raise ValueError(f'`pos` must be whole numbers with `tupe_cls_first`, got {pos.dtype}')
        pos = None if pos is None else call.select_new(pos, 'pos').long()
        pos = positions_of(call.new_len, pos, None, call.offset, call.like_tokens.device)
        pos = pos if start is None else pos - start.unsqueeze(-1)
        return (pos if pos.ndim == 2 else pos.unsqueeze(0)) != 0
