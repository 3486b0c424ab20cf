"""Relative positions of Transformer-XL: scores of the queries with sinusoids of the distance."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float, is_exporting, product
from x_transformers.core.rows import Pointwise, Rows, summable
from x_transformers.features.biases import distances
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.tables import sinusoids
from x_transformers.flags import ConfigError, Input, flag, none, size
from x_transformers.flags.checks import is_floating, pair_of

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
    takes = {'xl_vectors': Input('(u, v), each h e', pair_of('(u, v), tensors', is_floating, is_floating))}
    stored_as = {'matrix': 'xl_r', 'u': 'xl_u', 'v': 'xl_v'}
    refuses = {
        'cross-attention': 'its distances are between tokens of one sequence',
        **dict.fromkeys(OTHERS, ONE_AT_A_TIME),
    }

    def setup(self, host: Any) -> None:
        if host.dim % 2:
            raise ConfigError(f'`xl_rel_pos` needs an even width for sines and cosines, got {host.dim}')
        bound = host.dim**-0.5  # as other projections have it
        self.matrix = nn.Parameter(torch.empty(host.dim, host.shape.heads * host.dim_key).uniform_(-bound, bound))
        if self.xl_rel_pos_untied:
            self.u, self.v = (vectors(host.shape.heads, host.dim_key) for _ in 'uv')

    def bias(self, call: Any) -> Rows:
        if call.context is not None:
            raise ValueError(f'`xl_rel_pos` does not go with a context: {self.reason("cross-attention")}')
        if call.memories and not call.causal and call.inputs.get('order_of_keys') is None:
            raise ValueError('`xl_rel_pos` with memories needs `causal`: earlier tokens have no distance to them')
        if self.xl_clamp_len is not None and call.k_pos.is_floating_point():
            raise ValueError(f'`pos` got {call.k_pos.dtype}, with `xl_clamp_len` it must be whole numbers')
        own, q_pos, k_pos = call.own(self), call.q_pos, call.k_pos
        # a single query turns faster than all distances go through the matrix
        in_order = call.in_order('pos', 'index') and call.rows > 1 and not is_exporting()
        own.way = 'clamped' if self.xl_clamp_len else 'in order' if in_order else ''
        behind, n, keys = call.keys - call.rows, call.rows, call.keys

        def of(rows: slice, cols: slice) -> Tensor:
            q = own.queries[..., rows, :]
            if own.way == 'in order':
                last = behind + rows.stop - 1 - cols.start
                # the table begins with the largest distance, keys - 1
                first = keys - 1 - last
                count = rows.stop - rows.start + cols.stop - cols.start - 1
                return shifted(product(q, own.table.narrow(-2, first, count).mT), cols.stop - cols.start)
            if own.way == 'clamped':
                index = distances(q_pos[..., rows], k_pos[..., cols]).clamp(-self.xl_clamp_len, self.xl_clamp_len)
                index = index[:, None] if index.ndim == 3 else index[(None,) * (4 - index.ndim)]
                found = product(q, own.table.mT)
                return found.gather(-1, (self.xl_clamp_len - index).expand(*found.shape[:-1], -1))
            return self.turned(q, q_pos[..., rows], k_pos[..., cols])

        def entry() -> Pointwise:
            known = summable(of(slice(0, n), slice(0, keys)))
            return lambda b, h, i, j: known[b, h, i, j]

        return Rows(of, learns=True, entry=entry)

    def meet(self, qk: Pair, call: Any) -> Pair:
        (q, k), own, given = qk, call.own(self), call.inputs.get('xl_vectors')
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
            first, last = (call.keys - 1, call.keys - call.rows - call.keys + 1) if most is None else (most, -most)
            own.table = self.table(torch.arange(first, last - 1, -1, device=q.device), q)
        return q + u, k

    def table(self, distance: Tensor, q: Tensor) -> Tensor:
        """The vectors W r_t of distances (t), for the heads of q:  h t e"""
        waves = sinusoids(distance, self.host.dim, 10000.0, 'd', at_least_float(q.dtype)).to(q.dtype)
        each = (waves @ self.matrix.to(q.dtype)).unflatten(-1, (-1, q.shape[-1])).transpose(0, 1)
        return each.repeat(q.shape[1] // len(each), 1, 1)

    def turned(self, q: Tensor, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The same products for any positions:  b h i e -> b h i j"""
        dim, wide = self.host.dim, at_least_float(q.dtype)
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

    def setup(self, host: Any) -> None:
        if not self.xl_rel_pos_untied:
            self.u, self.v = (vectors(host.attn_heads, host.attn_dim_head) for _ in 'uv')

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.flags}
        return {**own, **flags} if kind == 'a' else flags

    def open(self, x: Tensor, call: Any) -> Tensor:
        if not self.xl_rel_pos_untied:
            call.shared['a']['xl_vectors'] = (self.u, self.v)
        return x
