"""Relative positions: learned vectors per distance (Shaw), scores rescaled by it (DA-Transformer), Transformer-XL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, is_exporting, precise_matmul, to_float
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup, summable
from x_transformers.features.biases import distances
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.positions import sinusoids
from x_transformers.flags import ConfigError, Input, count, flag, none, size
from x_transformers.flags.checks import get_pair, is_floating

Heads = tuple[Tensor, Tensor, Tensor]


class ShawKeys(AttentionFeature):
    """Add to every key a learned vector for its distance from the query, shared by all heads.

    sim_ij = scale q_i (k_j + a_r(i, j)),   r = clip(p_j - p_i, -m, m)         a_r: 2m + 1 vectors
    """

    paper = 'Self-Attention with Relative Position Representations, arXiv:1803.02155'
    shaw_rel_pos = flag(False, 'add learned vectors per distance to keys and values')
    shaw_max_distance = flag(16, 'maximum distance m: larger distances use its vector', count, example=3)
    stored_as = {'table': 'shaw_k'}
    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        self.table = nn.Parameter(torch.randn(2 * self.shaw_max_distance + 1, owner.dim_key) * 0.02)

    def bias(self, call: Any) -> BlockwiseTerm:
        self.refuse_context(call)
        own = call.ctx(self)
        q_pos, k_pos, most = call.q_pos, call.k_pos, self.shaw_max_distance

        def of(rows: slice, keys: slice) -> Tensor:
            index = clip_distance(q_pos[..., rows], k_pos[..., keys], most)
            known = own.products[..., rows, :]
            return known.gather(-1, index.expand(*known.shape[:-1], -1))

        def entry() -> Pointwise:
            known, of_query, of_key = summable(own.products), make_axis_lookup(q_pos), make_axis_lookup(k_pos)
            return lambda b, h, i, j: known[b, h, i, (of_key(b, j) - of_query(b, i)).clamp(-most, most) + most]

        learns = self.table.requires_grad or call.x.requires_grad
        return BlockwiseTerm(of, learns=learns, entry=entry if k_pos.ndim < 3 else None)

    def pre_attention(self, qkv: Heads, call: Any) -> Heads:
        q = qkv[0]
        if q.shape[-1] != self.table.shape[-1]:
            raise ValueError(
                f'`shaw_rel_pos` got queries of width {q.shape[-1]}, its vectors have {self.table.shape[-1]}: '
                f'it cannot be combined with `polar_pos_emb`, which doubles them'
            )
        call.ctx(self).products = precise_matmul(q * call.scale, self.table.to(q.dtype).mT)
        return qkv


class ShawValues(AttentionFeature):
    """Add to every value a learned vector for its distance:  out_i = sum_j A_ij (v_j + c_r(i, j)).

    Computed from the summed attention weights per distance. Prepended keys have no distance, and no vector.
    """

    paper = ShawKeys.paper
    shaw_rel_values = flag(True, 'also add vectors to the values; if False, the fused kernel can be used')
    stored_as = {'table': 'shaw_v'}
    requires_flag = {'shaw_rel_values': 'shaw_rel_pos'}
    clashes = {'laser': 'it attends to exponentials of the values, to which no vectors can be added'}
    row_wise = True
    tp_shards = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return bool(values.get('shaw_rel_pos') and values.get('shaw_rel_values'))

    def setup(self, owner: Any) -> None:
        self.table = nn.Parameter(torch.randn(len(owner.shaw_k), owner.shape.dim_value) * 0.02)

    def weighted_values(self, out: Tensor, attn: Tensor, call: Any) -> Tensor:
        index = clip_distance(call.q_pos, call.k_pos, len(self.table) // 2)
        attn = to_float(attn[..., attn.shape[-1] - call.keys :])
        sums = attn.new_zeros(*attn.shape[:-1], len(self.table)).scatter_add(-1, index.expand_as(attn), attn)
        return out + sums.to(out.dtype) @ self.table.to(out.dtype)


def clip_distance(q_pos: Tensor, k_pos: Tensor, most: int) -> Tensor:
    """Return which vector belongs to each pair:  broadcasts to b h i j."""
    if k_pos.is_floating_point():
        raise ValueError(f'`pos` must be whole numbers, got {k_pos.dtype}: each distance has a separate vector')
    index = (-distances(q_pos, k_pos)).clamp(-most, most) + most
    return index.unsqueeze(1) if index.ndim == 3 else index[(None,) * (4 - index.ndim)]


class ShawPositions(StackFeature):
    """Learned vectors per relative distance, with a separate table in each self-attention layer of a stack.

    sim_ij = scale q_i (k_j + a_r),   out_i = sum_j A_ij (v_j + c_r),   r = clip(p_j - p_i, -m, m)
    """

    paper = ShawKeys.paper
    shaw_rel_pos = flag(False, 'add learned vectors per distance to keys and values')
    shaw_max_distance = flag(16, 'maximum distance m: larger distances use its vector', count, example=3)
    shaw_rel_values = flag(True, 'also add vectors to the values; if False, the fused kernel can be used')
    gives_positions = True

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.flags}
        return {**own, **flags} if kind == 'a' else flags


WORDS = 'multiply the ReLU of the scores by a learned function of the distance, one per head'
ONE_FUNCTION = {'alibi_pos_bias': 'only one function of the distance is possible'}


class DistanceRescaling(AttentionFeature):
    """Multiply the scores by a learned function of the distance, per head, which favors near or distant keys.

        sim_ij = relu(q_i k_j / sqrt(e)) f(a_h |p_i - p_j|),   f(R) = (1 + e^b) / (1 + e^(b - R)),   b = b_h

    f(0) = 1; for large distances f tends to 0 if a < 0, and to 1 + e^b if a > 0. A score of 0 still counts in the
    softmax, a masked key does not. Prepended keys have no distance and the factor 1.
    """

    paper = 'DA-Transformer, arXiv:2010.06925'
    da_pos_rescale = flag(False, WORDS)
    stored_as = {'slopes': 'da_alpha', 'bounds': 'da_beta'}
    refuses = {**ShawKeys.refuses, **ONE_FUNCTION}
    clashes = {'l2_distance': 'all its scores are negative, so that ReLU would set them to zero'}
    row_wise = True
    tp_shards = {'slopes': (0, 'heads'), 'bounds': (0, 'heads')}

    def setup(self, owner: Any) -> None:
        self.slopes = nn.Parameter(torch.linspace(-1, 1, owner.shape.heads) / 8)
        self.bounds = nn.Parameter(torch.ones(owner.shape.heads))

    def pre_attention(self, qkv: Heads, call: Any) -> Heads:
        self.refuse_context(call)
        return qkv

    def scores(self, sim: Tensor, call: Any) -> Tensor:
        distance = distances(call.q_pos, call.k_pos).abs()
        distance = distance if distance.ndim == 4 else distance[:, None] if distance.ndim == 3 else distance[None, None]
        a, b = (t.repeat(sim.shape[1] // len(t)).view(-1, 1, 1) for t in (self.slopes, self.bounds))
        factor = get_factor(to_float(a) * distance.to(at_least_float(a.dtype)), to_float(b))
        factor = F.pad(factor, (sim.shape[-1] - factor.shape[-1], 0), value=1.0)
        return sim.relu() * factor.to(sim.dtype)

    def score_mod(self, call: Any) -> Callable[..., Tensor]:
        a, b, heads, added = summable(self.slopes), summable(self.bounds), len(self.slopes), call.total_keys - call.keys
        of_query, of_key = make_axis_lookup(call.q_pos), make_axis_lookup(call.k_pos)

        def rescaled(score: Tensor, batch: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = (of_query(batch, i) - of_key(batch, (j - added).clamp(min=0))).abs()
            factor = get_factor(a[h % heads] * distance, b[h % heads])
            return score.relu() * (factor if added == 0 else torch.where(j < added, 1.0, factor))

        return rescaled


def get_factor(r: Tensor, b: Tensor) -> Tensor:
    return (1 + b.exp()) * (r - b).sigmoid()


class DistanceRescalingInStack(StackFeature):
    """Multiply the scores by a learned function of the distance, separate in each self-attention layer of a stack.

    sim_ij = relu(q_i k_j / sqrt(e)) f(a_h |p_i - p_j|),   f(R) = (1 + e^b) / (1 + e^(b - R)),   b = b_h
    """

    paper = DistanceRescaling.paper
    da_pos_rescale = flag(False, WORDS)
    clashes = ONE_FUNCTION
    branch_flags = ShawPositions.branch_flags


Pair = tuple[Tensor, Tensor]
ONE_AT_A_TIME = 'only one relative position scheme is possible'
OTHERS = ('rel_pos_bias', 'alibi_pos_bias', 'dynamic_pos_bias', 'rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb')
CLAMPED = 'maximum distance, in both directions: larger distances are clamped to it; None for no limit'


class XLPositions(AttentionFeature):
    """Scores with keys and with distances, where separate learned vectors u and v are added to the query.

        sim_ij = scale ((q_i + u) k_j + (q_i + v) W r_t),   t = p_i - p_j        u, v: (h, e), W: (d, h e)

    r_t are sines and cosines of the distance, (d). Prepended keys have no distance and get no such term. If positions
    are not consecutive, r_t is expanded by sin (a - b) = sin a cos b - cos a sin b: the queries are rotated instead.
    """

    paper = 'Transformer-XL, arXiv:1901.02860'
    xl_rel_pos = flag(False, 'add the scores of the queries with sinusoids of the distance (Transformer-XL)')
    xl_rel_pos_untied = flag(True, 'learn u and v in this layer; if False, the stack provides them')
    xl_clamp_len = flag(None, CLAMPED, size | none, example=3)
    call_inputs = {'xl_vectors': Input('(u, v), each h e', get_pair('(u, v), tensors', is_floating, is_floating))}
    stored_as = {'matrix': 'xl_r', 'u': 'xl_u', 'v': 'xl_v'}
    refuses = {**ShawKeys.refuses, **dict.fromkeys(OTHERS, ONE_AT_A_TIME)}

    def setup(self, owner: Any) -> None:
        if owner.dim % 2:
            raise ConfigError(f'`xl_rel_pos` needs an even width for sines and cosines, got {owner.dim}')
        bound = owner.dim**-0.5  # as other projections have it
        self.matrix = nn.Parameter(torch.empty(owner.dim, owner.shape.heads * owner.dim_key).uniform_(-bound, bound))
        if self.xl_rel_pos_untied:
            self.u, self.v = (vectors(owner.shape.heads, owner.dim_key) for _ in 'uv')

    def bias(self, call: Any) -> BlockwiseTerm:
        self.refuse_context(call)
        if call.memories and not call.causal and call.inputs.get('order_of_keys') is None:
            raise ValueError('`xl_rel_pos` with memories needs `causal`: earlier tokens have no distance to them')
        if self.xl_clamp_len is not None and call.k_pos.is_floating_point():
            raise ValueError(f'`pos` must be whole numbers with `xl_clamp_len`, got {call.k_pos.dtype}')
        own, q_pos, k_pos = call.ctx(self), call.q_pos, call.k_pos
        # a single query turns faster than all distances go through the matrix
        in_order = call.in_order('pos', 'index') and call.q_len > 1 and not is_exporting()
        own.way = 'clamped' if self.xl_clamp_len else 'in order' if in_order else ''
        behind, n, keys = call.keys - call.q_len, call.q_len, call.keys

        def of(rows: slice, cols: slice) -> Tensor:
            q = own.queries[..., rows, :]
            if own.way == 'in order':
                last = behind + rows.stop - 1 - cols.start
                # the table begins with the largest distance, keys - 1
                first = keys - 1 - last
                count = rows.stop - rows.start + cols.stop - cols.start - 1
                return shifted(precise_matmul(q, own.table.narrow(-2, first, count).mT), cols.stop - cols.start)
            if own.way == 'clamped':
                index = distances(q_pos[..., rows], k_pos[..., cols]).clamp(-self.xl_clamp_len, self.xl_clamp_len)
                index = index[:, None] if index.ndim == 3 else index[(None,) * (4 - index.ndim)]
                found = precise_matmul(q, own.table.mT)
                return found.gather(-1, (self.xl_clamp_len - index).expand(*found.shape[:-1], -1))
            return self.turned(q, q_pos[..., rows], k_pos[..., cols])

        def entry() -> Pointwise:
            known = summable(of(slice(0, n), slice(0, keys)))
            return lambda b, h, i, j: known[b, h, i, j]

        return BlockwiseTerm(of, learns=True, entry=entry)

    def pre_kernel(self, qk: Pair, call: Any) -> Pair:
        (q, k), own, given = qk, call.ctx(self), call.inputs.get('xl_vectors')
        if given is None and not self.xl_rel_pos_untied:
            raise ValueError('`xl_vectors` is missing: a stack gives u and v, a layer alone has `xl_rel_pos_untied`')
        vectors: Any = (self.u, self.v) if self.xl_rel_pos_untied else given
        u, v = vectors
        if q.shape[-1] != u.shape[-1]:
            raise ValueError(f'`xl_rel_pos` got queries of width {q.shape[-1]}, its vectors have {u.shape[-1]}')
        u, v = (t.repeat(q.shape[1] // len(t), 1).unsqueeze(-2).to(q.dtype) for t in (u, v))
        own.queries = (q + v) * call.scale
        if own.way:
            most = self.xl_clamp_len
            first, last = (call.keys - 1, call.keys - call.q_len - call.keys + 1) if most is None else (most, -most)
            own.table = self.table(torch.arange(first, last - 1, -1, device=q.device), q)
        return q + u, k

    def table(self, distance: Tensor, q: Tensor) -> Tensor:
        """The vectors W r_t of distances (t), for the heads of q:  h t e"""
        waves = sinusoids(distance, self.owner.dim, 10000.0, 'd', at_least_float(q.dtype)).to(q.dtype)
        each = (waves @ self.matrix.to(q.dtype)).unflatten(-1, (-1, q.shape[-1])).transpose(0, 1)
        return each.repeat(q.shape[1] // len(each), 1, 1)

    def turned(self, q: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Return the products for any positions:  (b, h, i, e) -> (b, h, i, j)"""
        dim, wide = self.owner.dim, at_least_float(q.dtype)
        matrix = self.matrix.to(q.dtype).unflatten(-1, (-1, q.shape[-1])).permute(1, 2, 0)
        of_sines, of_cosines = (q @ matrix.repeat(q.shape[1] // len(matrix), 1, 1)).to(wide).chunk(2, dim=-1)

        def waves(pos: Tensor) -> Tensor:
            found = sinusoids(pos, dim, 10000.0, 'd', wide)
            return found.unsqueeze(1) if found.ndim == 3 else found

        sin, cos = waves(q_pos).chunk(2, dim=-1)
        own = torch.cat((of_cosines * sin - of_sines * cos, of_sines * sin + of_cosines * cos), dim=-1)
        return (own @ waves(k_pos).mT).to(q.dtype)


def shifted(products: Tensor, keys: int) -> Tensor:
    """Products of rows with all distances, from the largest of the last row on, as those with keys:

    out[i, j] = products[i, j + rows - 1 - i]         ... i t -> ... i j, t = i + j - 1
    """
    rows, count = products.shape[-2:]
    if rows == 1:
        return products
    flat = products.flatten(-2).narrow(-1, rows - 1, rows * (count - 1))
    return flat.unflatten(-1, (rows, count - 1))[..., :keys]


def vectors(heads: int, width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(heads, width) * 0.02)


class XLPositionsInStack(StackFeature):
    """Relative positions of Transformer-XL in all self-attention layers, which share the vectors u and v.

    sim_ij = scale ((q_i + u) k_j + (q_i + v) W r_t),   t = p_i - p_j        r_t: sinusoids of t
    """

    paper = XLPositions.paper
    xl_rel_pos = flag(False, 'add the scores of the queries with sinusoids of the distance (Transformer-XL)')
    xl_rel_pos_untied = flag(False, 'learn separate vectors u and v in each layer')
    xl_clamp_len = flag(None, CLAMPED, size | none, example=3)
    stored_as = {'u': 'xl_u', 'v': 'xl_v'}
    clashes = dict.fromkeys(OTHERS, ONE_AT_A_TIME)
    gives_positions = True
    branch_flags = ShawPositions.branch_flags

    def setup(self, owner: Any) -> None:
        if not self.xl_rel_pos_untied:
            self.u, self.v = (vectors(owner.attn_heads, owner.attn_dim_head) for _ in 'uv')

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if not self.xl_rel_pos_untied:
            call.shared['a']['xl_vectors'] = (self.u, self.v)
        return x
