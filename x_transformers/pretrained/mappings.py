"""Mappings between the weights of transformers and of this library: names and transforms of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor

Tensors = tuple[Tensor, ...]
Condition = Callable[[Any], bool]  # Predicate on the `Fields` of a config.
Way = Callable[[Tensors, 'ModelSizes'], Tensors]


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model that transforms of weights depend on."""

    heads: int = 1
    kv_heads: int = 1
    dim_head: int = 1
    dim_value: int = 1
    rotated: int = 0
    patch: tuple[int, int] = (1, 1)
    channels: int = 1
    cut: int = 0  # number of leading rows in a table of positions that are not positions
    experts: int = 1
    latent: int = 0  # width of the latent of keys and values

    @property
    def groups(self) -> int:
        return self.heads // self.kv_heads


class WeightTransform(NamedTuple):
    """Transform of weights from transformers to this library, and its inverse.

    Attributes:
        exact: True if the inverse gives the same bits.
        cuts: True if rows are left out, which the inverse fills with zeros.
    """

    name: str
    ours: Way
    theirs: Way
    exact: bool = True
    cuts: bool = False


def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return `torch.cat` of tensors, and of meta tensors too, for which it would import the compiler of PyTorch."""
    if not tensors[0].is_meta:
        return torch.cat([*tensors], dim)
    shape, dtype = [*tensors[0].shape], functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    shape[dim] = sum(t.shape[dim] for t in tensors)
    return torch.empty(shape, dtype=dtype, device='meta')


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return concatenate([t.unsqueeze(dim) for t in tensors], dim)


def make_way(function: Callable[[Tensor, ModelSizes], Tensor]) -> Way:
    return lambda tensors, s: tuple(function(t, s) for t in tensors)


def transform_each(
    name: str, ours: Callable[..., Tensor], theirs: Callable[..., Tensor], exact: bool = True
) -> WeightTransform:
    """Return a transform that is applied to each tensor."""
    return WeightTransform(name, make_way(ours), make_way(theirs), exact)


def transform_separately(*changes: WeightTransform | None) -> WeightTransform:
    """Return a transform with one entry for each tensor; None leaves a tensor as it is."""

    def way(which: str) -> Way:
        def walk(tensors: Tensors, s: ModelSizes) -> Tensors:
            pairs = zip(tensors, changes, strict=True)
            return tuple(t if change is None else getattr(change, which)((t,), s)[0] for t, change in pairs)

        return walk

    name = ', '.join('-' if change is None else change.name for change in changes)
    exact = all(change is None or change.exact for change in changes)
    return WeightTransform(f'({name})', way('ours'), way('theirs'), exact)


def compose(*changes: WeightTransform) -> WeightTransform:
    """Return the composition of transforms, the first one applied first."""

    def ours(tensors: Tensors, s: ModelSizes) -> Tensors:
        for change in changes:
            tensors = change.ours(tensors, s)
        return tensors

    def theirs(tensors: Tensors, s: ModelSizes) -> Tensors:
        for change in reversed(changes):
            tensors = change.theirs(tensors, s)
        return tensors

    exact, cuts = all(c.exact for c in changes), any(c.cuts for c in changes)
    return WeightTransform(' '.join(c.name for c in changes), ours, theirs, exact, cuts)


# Permutations.


def permute(name: str, order: Callable[[ModelSizes, int], Tensor], dim: int = 0) -> WeightTransform:
    """Return a transform that reorders an axis: index i here is index `order[i]` in transformers."""

    def ours(t: Tensor, s: ModelSizes) -> Tensor:
        return t.index_select(dim, order(s, t.shape[dim]).to(t.device))

    def theirs(t: Tensor, s: ModelSizes) -> Tensor:
        return t.index_select(dim, order(s, t.shape[dim]).argsort().to(t.device))

    return transform_each(name, ours, theirs)


def order_heads(s: ModelSizes, length: int) -> Tensor:
    """Return the order of query channels: heads of a key are neighbors in transformers, and every k-th one here."""
    rows = torch.arange(length).unflatten(0, (s.kv_heads, s.groups, -1))
    return rearrange(rows, 'k g e -> (g k e)')


def order_pairs(width: int, rotated: int) -> Tensor:
    """Return the order of channels: rotary pairs are (i, i + r / 2) in theirs, (2 i, 2 i + 1) in ours."""
    pairs = rearrange(torch.arange(rotated), '(two i) -> (i two)', two=2)
    return torch.cat((pairs, torch.arange(rotated, width)))


def order_pairs_in_heads(s: ModelSizes, length: int) -> Tensor:
    """Return the order of rotary pairs in every head of a projection, or in a vector of one head."""
    width = min(s.dim_head, length)
    return (torch.arange(0, length, width)[:, None] + order_pairs(width, s.rotated)).flatten()


Q = permute('Q', order_heads)
Q_COLUMNS = permute('Q columns', order_heads, dim=1)
R = permute('R', order_pairs_in_heads)
R_LAST = permute('R', order_pairs_in_heads, dim=-1)


def swap_halves(t: Tensor, s: ModelSizes) -> Tensor:
    return concatenate(t.chunk(2)[::-1])


def prepend_zeros(t: Tensor, s: ModelSizes) -> Tensor:
    return concatenate((torch.zeros(s.cut, t.shape[1], dtype=t.dtype, device=t.device), t))


T = transform_each('T', lambda t, s: t.mT, lambda t, s: t.mT)
PER_HEAD = transform_each('per head', lambda t, s: t.unsqueeze(1), lambda t, s: t.squeeze(1))  # (h, e) -> (h, 1, e)
HALVES = transform_each('halves', swap_halves, swap_halves)  # The gate comes first in theirs.


# One tensor for several, several for one.


def split_into(
    name: str, ours: Callable[[Tensor, ModelSizes], Any], theirs: Callable[[Any, ModelSizes], Tensor]
) -> WeightTransform:
    """Return a transform of queries, keys and values that are stored as one tensor."""
    return WeightTransform(name, lambda ts, s: tuple(ours(ts[0], s)), lambda ts, s: (theirs(ts, s),))


def unflatten_heads(t: Tensor, heads: int) -> Tensor:
    return t.unflatten(0, (heads, -1))


def split_falcon(t: Tensor, s: ModelSizes) -> Tensors:
    q, k, v = t.unflatten(0, (s.kv_heads, s.groups + 2, s.dim_head)).split((s.groups, 1, 1), dim=1)
    return tuple(part.flatten(0, 2) for part in (q, k, v))


def join_falcon(ts: Tensors, s: ModelSizes) -> Tensor:
    parts = (t.unflatten(0, (s.kv_heads, -1, s.dim_head)) for t in ts)
    return concatenate([*parts], dim=1).flatten(0, 2)


SPLIT = split_into(
    'qkv',
    lambda t, s: t.split((s.heads * s.dim_head, s.kv_heads * s.dim_head, s.kv_heads * s.dim_value)),
    lambda ts, s: concatenate(ts),
)
SPLIT_HEADS = split_into(  # (h, 3, e): query, key and value of each head together
    'neox',
    lambda t, s: (part.flatten(0, 1) for part in t.unflatten(0, (s.heads, 3, s.dim_head)).unbind(1)),
    lambda ts, s: stack([unflatten_heads(t, s.heads) for t in ts], dim=1).flatten(0, 2),
)
SPLIT_GROUPS = split_into('falcon', split_falcon, join_falcon)  # Grouped by key: its queries, the key, its value.

JOIN = WeightTransform('cat', lambda ts, s: (concatenate(ts),), lambda ts, s: tuple(ts[0].chunk(2)))
STACK = WeightTransform('stack', lambda ts, s: (stack(ts),), lambda ts, s: ts[0].unbind())
HEAD_STACK = compose(STACK, PER_HEAD)


def stack_gates(ts: Tensors, s: ModelSizes) -> Tensors:
    up, gate = (stack(ts[i : i + s.experts]) for i in (0, s.experts))
    return (concatenate((up, gate), dim=1),)


STACK_GATED = WeightTransform(
    'stack, cat', stack_gates, lambda ts, s: tuple(t for half in ts[0].chunk(2, dim=1) for t in half.unbind())
)


def interleave_halves(t: Tensor) -> Tensor:
    """Interleave columns, the second half first:  (..., 2 f) -> (..., f 2)"""
    return stack(t.chunk(2, dim=-1)[::-1], dim=-1).flatten(-2)


def separate_halves(t: Tensor) -> Tensor:
    """Separate interleaved columns, the gate in even ones:  (..., f 2) -> (..., 2 f) with values first"""
    return concatenate((t[..., 1::2], t[..., ::2]), dim=-1)


# (x, d, 2 f) -> (x, 2 f, d)
ALTERNATING = transform_each('alternating', lambda t, s: separate_halves(t).mT, lambda t, s: interleave_halves(t.mT))
ALTERNATING_BIAS = transform_each('alternating', lambda t, s: separate_halves(t), lambda t, s: interleave_halves(t))


# Numbers.


def scale(name: str, factor: Callable[[ModelSizes], float]) -> WeightTransform:
    return transform_each(name, lambda t, s: t * factor(s), lambda t, s: t / factor(s), exact=False)


# Cuts the leading rows of a table of positions that are not positions.
CUT = WeightTransform('cut', make_way(lambda t, s: t[s.cut :]), make_way(prepend_zeros), cuts=True)
PATCHES = transform_each(
    'conv',
    lambda t, s: rearrange(t, 'd c p1 p2 -> d (p1 p2 c)'),
    lambda t, s: rearrange(t, 'd (p1 p2 c) -> d c p1 p2', p1=s.patch[0], p2=s.patch[1]),
)
ROW = transform_each('row', lambda t, s: t.flatten(), lambda t, s: t.unsqueeze(0))
FIRST = transform_each('first', lambda t, s: t.squeeze(0), lambda t, s: t.unsqueeze(0))  # (1, ...) -> (...)
ONE = transform_each('one', lambda t, s: t.unsqueeze(0), lambda t, s: t.squeeze(0))  # (...) -> (1, ...)

# Decoupled rotary embeddings: rotated channels come last in a head of theirs, first in ours.


def order_rotated_first(s: ModelSizes, length: int) -> Tensor:
    width = s.dim_head
    own = torch.cat((torch.arange(width - s.rotated, width), torch.arange(width - s.rotated)))
    return (torch.arange(0, length, width)[:, None] + own).flatten()


def split_latent_heads(t: Tensor, s: ModelSizes) -> Tensors:
    """Split keys without rotated channels from values, in every head:  (h (n' + v)) -> (h n'), (h v)"""
    parts = t.unflatten(0, (s.heads, -1)).split((s.dim_head - s.rotated, s.dim_value), dim=1)
    return tuple(part.flatten(0, 1) for part in parts)


ROTATED_FIRST = permute('turned first', order_rotated_first)
SPLIT_LATENT_HEADS = split_into(
    'kv_b',
    split_latent_heads,
    lambda ts, s: concatenate([unflatten_heads(t, s.heads) for t in ts], dim=1).flatten(0, 1),
)
SPLIT_LATENT = split_into('kv_a', lambda t, s: t.split((s.latent, s.rotated)), lambda ts, s: concatenate(ts))
R_ONE = permute('R', lambda s, length: order_pairs(length, length))  # All channels of the one head are rotated.


@dataclass(frozen=True)
class WeightMapping:
    """Names in transformers, names in this library, and the transform between their tensors.

    {i} is the number of a block, and in names of ours {2i}, {2i+1}, ... its layers; {x} stands for all experts, {j} for
    all heads, one after the other.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    change: WeightTransform
    when: Condition | None = None


# Abbreviations for the layers of a stack.
PLACES = {'L.': 'attn_layers.layers.', 'E.': 'encoder.attn_layers.layers.', 'D.': 'decoder.net.attn_layers.layers.'}


def link(theirs: str, ours: str, *changes: WeightTransform, when: Condition | None = None) -> tuple[WeightMapping, ...]:
    """Return mappings of names separated by blanks. `*` stands for `weight`, and for `bias` where there is one.

    A norm of ours, `x.norm`, holds the weight as `g` or `gamma`, and the bias as `beta`. Names of ours begin with
    `L.`, `E.` or `D.`, the layers of the stack, of an encoder, of a decoder, or are whole.
    """
    ours = ' '.join(PLACES.get(name[:2], name[:2]) + name[2:] for name in ours.split())
    if ours.endswith('.norm'):
        stem, source = ours.removesuffix('.norm'), theirs.removesuffix('.*').removesuffix('.weight')
        pairs = (('weight', 'g'), ('weight', 'gamma'), ('bias', 'beta'))
        return tuple(WeightMapping((f'{source}.{a}',), (f'{stem}.{b}',), compose(*changes), when) for a, b in pairs)
    ends = ('weight', 'bias') if '*' in theirs else ('',)
    pairs = [(tuple(theirs.replace('*', end).split()), tuple(ours.replace('*', end).split())) for end in ends]
    return tuple(WeightMapping(one, other, compose(*changes), when) for one, other in pairs)


def links(*groups: Sequence[WeightMapping]) -> tuple[WeightMapping, ...]:
    return tuple(one for group in groups for one in group)


Mappings = tuple[WeightMapping, ...]
A, F = 'L.{2i}', 'L.{2i+1}'  # Attention and feedforward of a block.
B = 'model.layers.{i}'


def map_projections(theirs: str, names: Sequence[str], ours: str = A) -> Mappings:
    """Map queries, keys, values and output of one attention layer, of the given names after `theirs`."""
    pairs = zip(names, ('to_q', 'to_k', 'to_v', 'to_out'), strict=True)
    return links(*(link(f'{theirs}.{a}.*', f'{ours}.1.{b}.*') for a, b in pairs))


def map_attention(q: str, k: str, v: str, out: str, *, rotate: bool = True) -> Mappings:
    """Map four separate projections."""
    return links(
        link(f'{q}.*', f'{A}.1.to_q.*', *((Q, R) if rotate else (Q,))),
        link(f'{k}.*', f'{A}.1.to_k.*', *((R,) if rotate else ())),
        link(f'{v}.*', f'{A}.1.to_v.*'),
        map_output(out),
    )


def map_output(out: str) -> Mappings:
    return links(link(f'{out}.weight', f'{A}.1.to_out.weight', Q_COLUMNS), link(f'{out}.bias', f'{A}.1.to_out.bias'))


def map_fused(name: str, *changes: WeightTransform, when: Condition | None = None) -> Mappings:
    """Map one projection for queries, keys and values."""
    ours = f'{A}.1.to_q.* {A}.1.to_k.* {A}.1.to_v.*'
    return link(f'{name}.*', ours, *changes, when=when)


ROTATE_QKV = transform_separately(compose(Q, R), R, None)  # queries, keys, values


def map_gated(up: str, gate: str, down: str) -> Mappings:
    return links(link(f'{up}.* {gate}.*', f'{F}.1.ff.0.proj.*', JOIN), link(f'{down}.*', f'{F}.1.ff.2.*'))


def map_ff(up: str, down: str) -> Mappings:
    return links(link(f'{up}.*', f'{F}.1.ff.0.0.*'), link(f'{down}.*', f'{F}.1.ff.2.*'))


def map_norms(before_attention: str, before_feedforward: str | None) -> Mappings:
    after = () if before_feedforward is None else link(before_feedforward, f'{F}.0.0.norm')
    return links(link(before_attention, f'{A}.0.0.norm'), after)


def map_ends(table: str, norm: str, head: str) -> Mappings:
    return links(
        link(f'{table}.weight', 'token_emb.emb.weight'),
        link(norm, 'attn_layers.final_norm.norm'),
        link(f'{head}.*', 'to_logits.*'),
    )


def map_qk_norms(
    theirs: str, q: tuple[WeightTransform, ...], k: tuple[WeightTransform, ...], ours: str = 'norm'
) -> Mappings:
    """Map norms of queries and keys: `theirs` and `ours` follow `q_` and `k_`, `q` and `k` are their transforms."""
    sides = (('q', q), ('k', k))
    return links(*(link(f'{B}.self_attn.{at}_{theirs}', f'{A}.1.{at}_{ours}.norm', *own) for at, own in sides))


def map_experts(
    router: str, experts: str, up: str = 'up_proj', gate: str = 'gate_proj', down: str = 'down_proj'
) -> Mappings:
    """Map a router, and experts that store each projection as its own tensor."""
    each = f'{experts}.{{x}}'
    return links(
        link(f'{router}.weight', f'{F}.1.moe.router.weight'),
        link(f'{each}.{up}.weight {each}.{gate}.weight', f'{F}.1.moe.up_gate.weight', STACK_GATED),
        link(f'{each}.{down}.weight', f'{F}.1.moe.down.weight', STACK),
    )
