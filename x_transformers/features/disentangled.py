"""Disentangled attention (DeBERTa): scores between contents and relative positions, with separate queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import precise_matmul
from x_transformers.core.rows import BlockwiseTerm, Pointwise, make_axis_lookup, summable
from x_transformers.features.biases import distances
from x_transformers.features.heads import HeadNorm
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import Check, ConfigError, Input, flag, is_int, none
from x_transformers.flags.checks import Maybe, get_tensor
from x_transformers.kernels.dense import split_heads, tile_heads

Heads = tuple[Tensor, Tensor, Tensor]
TERMS = ('c2p', 'p2c')
DEFAULTS = {'max_distance': None, 'terms': TERMS, 'share': True, 'norm': True}


def describes(value: Any) -> bool:
    if not isinstance(value, Mapping) or not value.keys() <= {'span', *DEFAULTS}:
        return False
    own = {**DEFAULTS, **value}
    terms, most = own['terms'], own['max_distance']
    return (
        is_int(own.get('span'))
        and own['span'] >= 2
        and (most is None or is_int(most))
        and isinstance(terms, (list, tuple))
        and 0 < len(terms) == len(set(terms))
        and set(terms) <= set(TERMS)
        and isinstance(own['share'], bool)
        and isinstance(own['norm'], bool)
    )


a_description = Check(
    'a dict with `span`, an integer of at least 2, and perhaps `max_distance`, an integer, `terms`, some of '
    "'c2p' and 'p2c', `share` and `norm`, True or False",
    describes,
    'Mapping[str, Any]',
)


class Buckets:
    """Buckets of distances t = i - j, one for each of 2 S vectors:  clamp(b(t) + S, 0, 2S - 1).

    Up to m = S / 2, or without a longest distance M, b(t) = t; beyond that M has logarithmic buckets:
    b(t) = sign(t) (m + ceil(ln(|t| / m) / ln((M - 1) / m) (m - 1)))
    """

    def __init__(self, span: int, most: int | None) -> None:
        self.span, self.most, self.middle = span, most, span // 2
        if most is not None and most < self.middle + 2:
            raise ConfigError(
                f'`disentangled` got `span` {span} and `max_distance` {most}: the distance must be larger than half '
                f'of the span, by 2 at least'
            )
        self.reach = span if most is None else most  # from here on all are alike
        self.last = 1.0
        if most is not None:
            # In float32, as it is divided by, so that M - 1 falls on the last bucket.
            self.last = float(torch.tensor((most - 1) / self.middle, dtype=torch.float32, device='cpu').log())

    def of(self, distance: Tensor) -> Tensor:
        if self.most is not None:
            size = distance.abs()
            far = (size.clamp(min=1).float() / self.middle).log() / self.last * (self.middle - 1)
            far = (far.ceil().long() + self.middle) * distance.sign()
            distance = torch.where(size <= self.middle, distance, far)
        return (distance + self.span).clamp(0, 2 * self.span - 1)

    def table(self, device: Any) -> Tensor:
        """Return the buckets of all distances from -reach to reach."""
        return self.of(torch.arange(-self.reach, self.reach + 1, device=device))


class Disentangled(AttentionFeature):
    """Disentangled attention: content-to-content, content-to-position and position-to-content scores.

        sim_ij = (q_i k_j + q_i K_t + Q_t k_j) / sqrt(3 e)        t the bucket of i - j

    K and Q are keys and queries of a table with one vector per bucket of distances, which all layers of a stack share.
    The last two terms are `c2p` and `p2c`.
    """

    paper = 'DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543'
    disentangled = flag(
        None,
        'disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for '
        "logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` "
        '(project the table with `to_k` and `to_q`) and `norm` (layer norm of the table)',
        a_description | none,
        example={'span': 3},
    )
    call_inputs = {'disentangled_table': Input('s d, the table of relative positions', get_tensor('s d', floats=True))}
    stored_as = {'to_keys': 'to_pos_k', 'to_queries': 'to_pos_q'}
    sets_on_module = ('logit_scale',)
    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}
    clashes = {
        'collab_heads': 'all heads share one key projection',
        'differential': 'its position vectors are for a single attention map per head',
        'use_latent_q': 'its position vectors are not projected through latents',
        'use_latent_kv': 'its position vectors are not projected through latents',
    }

    def setup(self, owner: Any) -> None:
        own = {**DEFAULTS, **self.disentangled}
        self.terms, self.buckets = tuple(own['terms']), Buckets(own['span'], own['max_distance'])
        owner.logit_scale = ((1 + len(self.terms)) * owner.dim_key) ** -0.5
        self.share = own['share']
        if not self.share and 'c2p' in self.terms:
            self.to_keys = nn.Linear(owner.dim, owner.to_k.out_features)
        if not self.share and 'p2c' in self.terms:
            self.to_queries = nn.Linear(owner.dim, owner.to_q.out_features)

    def pre_attention(self, qkv: Heads, call: Any) -> Heads:
        """Multiply contents by the vectors of all positions."""
        q, k, _ = qkv
        table, owner, own = call.inputs.get('disentangled_table'), self.owner, call.ctx(self)
        if table is None:
            raise ValueError('`disentangled_table` is missing: a stack gives it, a layer alone needs 2 span vectors')
        if table.shape != (wanted := (2 * self.buckets.span, owner.dim)):
            raise ValueError(f'`disentangled_table` must have shape {wanted}, got {tuple(table.shape)}')
        if q.shape[-1] != owner.dim_key:
            raise ValueError(
                f'`disentangled` got queries of width {q.shape[-1]}, its vectors have {owner.dim_key}: '
                f'it cannot be combined with `polar_pos_emb`, which doubles them'
            )
        own.of_queries = own.of_keys = None
        if 'c2p' in self.terms:
            keys = split_heads((owner.to_k if self.share else self.to_keys)(table).unsqueeze(0), owner.dim_key)
            own.of_queries = precise_matmul(q * call.scale, tile_heads(keys, q.shape[1]).to(q.dtype).mT)
        if 'p2c' in self.terms:
            queries = split_heads((owner.to_q if self.share else self.to_queries)(table).unsqueeze(0), owner.dim_key)
            k = tile_heads(k[..., k.shape[-2] - call.keys :, :], q.shape[1])
            own.of_keys = precise_matmul((queries * call.scale).to(k.dtype), k.mT)
        return qkv

    def bias(self, call: Any) -> BlockwiseTerm:
        if call.context is not None:
            raise ValueError(f'`disentangled` cannot be combined with a context: {self.reason("cross-attention")}')
        own, q_pos, k_pos, reach = call.ctx(self), call.q_pos, call.k_pos, self.buckets.reach
        if k_pos.is_floating_point():
            raise ValueError(f'`pos` must be whole numbers, got {k_pos.dtype}: each distance has a separate vector')
        table = self.buckets.table(call.x.device)

        def of(rows: slice, keys: slice) -> Tensor:
            index = table[distances(q_pos[..., rows], k_pos[..., keys]).clamp(-reach, reach) + reach]
            index = index.unsqueeze(1) if index.ndim == 3 else index[(None,) * (4 - index.ndim)]
            found = []
            if own.of_queries is not None:
                known = own.of_queries[..., rows, :]
                found.append(known.gather(-1, index.expand(*known.shape[:-1], -1)))
            if own.of_keys is not None:
                known = own.of_keys[..., keys]
                found.append(known.gather(-2, index.expand(*known.shape[:2], -1, -1)))
            return sum(found[1:], found[0])

        def entry() -> Pointwise:
            known = (None if t is None else summable(t) for t in (own.of_queries, own.of_keys))
            return products_at(make_axis_lookup(q_pos), make_axis_lookup(k_pos), table, reach, *known)

        return BlockwiseTerm(of, learns=True, entry=entry if k_pos.ndim < 3 else None)


def products_at(
    of_query: Any, of_key: Any, table: Tensor, reach: int, of_queries: Maybe[Tensor], of_keys: Tensor | None
) -> Pointwise:
    """Return the bias of one query and one key."""

    def bucket(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return table[(of_query(b, i) - of_key(b, j)).clamp(-reach, reach) + reach]

    if of_keys is None:
        return lambda b, h, i, j: of_queries[b, h, i, bucket(b, i, j)]
    if of_queries is None:
        return lambda b, h, i, j: of_keys[b, h, bucket(b, i, j), j]
    return lambda b, h, i, j: of_queries[b, h, i, bucket(b, i, j)] + of_keys[b, h, bucket(b, i, j), j]


class DisentangledTable(StackFeature):
    """The table of relative positions, shared by all layers of a stack, with a layer norm."""

    paper = Disentangled.paper
    stored_as = {'table': 'rel_embeddings', 'norm': 'rel_embeddings_norm'}
    enabled_by = ('disentangled',)
    gives_positions = True

    def setup(self, owner: Any) -> None:
        layers = range(owner.layer_types.count('a'))
        each = [owner.flags_for('a', number).get('disentangled') for number in layers]
        own = [{**DEFAULTS, **one} for one in each if isinstance(one, Mapping)]
        self.used = bool(own)
        if not own:
            return
        if len(own) < len(each) or any((one['span'], one['norm']) != (own[0]['span'], own[0]['norm']) for one in own):
            raise ConfigError('`attn_disentangled` got other values for some layers: all of them share a table')
        self.table = nn.Parameter(torch.randn(2 * own[0]['span'], owner.dim) * 0.02)
        self.normed = own[0]['norm']
        if self.normed:
            eps = getattr(owner, 'norm_eps', None)
            self.norm = HeadNorm('layer', (owner.dim,), eps, owner.norm_add_unit_offset, True)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if self.used:
            call.shared['a']['disentangled_table'] = self.norm(self.table) if self.normed else self.table
        return x
