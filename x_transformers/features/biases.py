"""Position biases of attention scores: ALiBi, T5, an MLP of the distance, and biases passed by the caller.

A bias is a function of the positions of queries and keys. For many scores it is computed in blocks of queries, or as a
table of distances (diagonals), instead of as a whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.calls import is_large
from x_transformers.core.checks import check_tensor, find_weights, first_tensor, is_overridden_together
from x_transformers.core.recompute import ModuleSnapshot
from x_transformers.core.rows import BlockwiseTerm, DistanceTable, Pointwise, make_axis_lookup, summable
from x_transformers.features.levels import AttentionFeature, StackFeature, uses
from x_transformers.features.norms import LayerNorm
from x_transformers.features.positions import KeepsPrecision, Placed, constant, is_traced
from x_transformers.flags import ConfigError, Input, a_callable, flag, format_value, none, number, one_of, size
from x_transformers.flags.checks import get_tensor


def distances(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Return how far each key lies behind each query, q - k:  i, j -> i j, or with rows b i j."""
    return q_pos.unsqueeze(-1) - k_pos.unsqueeze(-2)


class PositionBias(nn.Module):
    """A bias of attention scores, one per head, from the distance between query and key."""

    def of_distance(self, distance: Tensor) -> Tensor:
        """(...) whole numbers -> (... h)"""
        raise NotImplementedError

    def at(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Return the bias of positions:  i, j -> h i j; b i, b j -> b h i j; or per head, b h i, b h j -> b h i j."""
        bias = self.of_distance(distances(q_pos, k_pos))
        if q_pos.ndim < 3:
            return bias.movedim(-1, -3)
        if q_pos.shape[1] != bias.shape[-1]:
            raise ValueError(f'`pos` got positions for {q_pos.shape[1]} heads, there are {bias.shape[-1]}')
        return bias.diagonal(dim1=1, dim2=-1).movedim(-1, 1)

    @property
    def device(self) -> torch.device:
        if isinstance(self, Placed):
            return self.place[0]
        return first_tensor((*find_weights(self), *self.buffers())).device

    def forward(self, i: int, j: int) -> Tensor:
        """Return the bias of the last `i` of `j` positions:  h i j. Each distance is computed once."""
        device = self.device
        table = self.of_distance(torch.arange(-i, j, device=device)[1:])  # none if there are no tokens
        index = distances(torch.arange(j - i, j, device=device), torch.arange(j, device=device))
        return table[index + i - 1].movedim(-1, -3)

    def diagonals(self, i: int, j: int, device: Any) -> DistanceTable:
        """Return this bias as a table of distances, from which a block of queries reads its own."""
        table = self.of_distance(torch.arange(j, -i, -1, device=device)[1:])
        return DistanceTable(table.transpose(0, 1).contiguous(), i)

    def forward_custom_pos(self, pos_i: Tensor, pos_j: Tensor | None = None) -> Tensor:
        return self.at(pos_i, pos_i if pos_j is None else pos_j)


class AlibiPositionalBias(Placed, KeepsPrecision, PositionBias):
    """A penalty on distance, with a slope per head.  Press et al. 2021, arXiv:2108.12409

    slopes   one per head with a slope, h 1 1. Changes in place and assigned tensors count from then on; an assigned
             parameter is learned.
    """

    def __init__(self, heads: int, total_heads: int | None = None, slopes: list[float] | None = None) -> None:
        super().__init__()
        self.heads, self.total_heads = heads, total_heads or heads
        slopes = self.slopes_for(heads) if slopes is None else slopes
        if len(slopes) != heads:
            raise ConfigError(
                f'`slopes` of `rel_pos_kwargs` must have {heads} numbers, one per head with a slope, got {len(slopes)}'
            )
        self.each = (*map(float, slopes), *[0.0] * (self.total_heads - heads))

    @property
    def slopes(self) -> Any:
        held = self.held_slopes()
        if held is None:
            with torch.inference_mode(False):
                held = torch.tensor(self.each[: self.heads], device=self.place[0]).to(self.place[1]).view(-1, 1, 1)
            if not is_traced():
                self.slopes = held  # pyright: ignore[reportAttributeAccessIssue]  a module keeps it as its buffer
        return held

    def __setattr__(self, name: str, value: Any) -> None:
        if name != 'slopes':
            return super().__setattr__(name, value)
        if check_tensor(value, 'slopes').numel() != self.heads:
            raise ConfigError(f'`slopes` must have one per head, ({self.heads}, 1, 1), got shape {tuple(value.shape)}')
        self._parameters.pop(name, None)
        self._buffers.pop(name, None)
        learned = isinstance(value, nn.Parameter)
        (self._parameters if learned else self._buffers)[name] = value
        self._non_persistent_buffers_set.add(name)  # a parameter is in the state dict all the same

    def held_slopes(self) -> Tensor | None:
        """Return the slopes if somebody has asked for them or assigned some."""
        held = self._parameters.get('slopes')
        held = self._buffers.get('slopes') if held is None else held
        return None if held is None or (held.is_meta and self.place[0].type != 'meta') else held

    def slopes_of_all(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return a slope per head, (h,): 0 for those without."""
        held = self.held_slopes()
        if held is None:
            return constant(self.each, device, dtype)
        return F.pad(held.to(device, dtype).flatten(), (0, self.total_heads - self.heads))

    def keep_heads(self, heads: list[int]) -> None:
        """Keep the slopes of some heads alone."""
        held = self.held_slopes()
        own = None if held is None else self.slopes_of_all(held.device, held.dtype)[heads].view(-1, 1, 1)
        self.each = tuple(self.each[head] for head in heads)
        self.heads = self.total_heads = len(heads)
        if own is not None:
            slopes = nn.Parameter(own.detach()) if 'slopes' in self._parameters else own
            self.slopes = slopes  # pyright: ignore[reportAttributeAccessIssue]  a module keeps it as its parameter

    @staticmethod
    def slopes_for(heads: int) -> list[float]:
        """2 ** (-8 k / heads) for a power of two, else those of the power below, and every other one of twice it."""
        below = 2 ** math.floor(math.log2(heads))
        slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
        between = [2 ** (-8 * k / (2 * below)) for k in range(1, 2 * below + 1, 2)]
        return slopes + between[: heads - below]

    def of_distance(self, distance: Tensor) -> Tensor:
        return distance.abs().unsqueeze(-1).to(self.place[1]) * -self.slopes_of_all(distance.device, self.place[1])

    def entry(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the bias of one head and one distance:  h, q - k -> bias"""
        slopes = -self.slopes_of_all(*self.place)
        return lambda h, distance: distance.abs() * slopes[h]


class SplitAlibi(AlibiPositionalBias):
    """ALiBi in both directions: half of the heads with a slope attend backwards, half, with the same slopes, ahead.

    Every query attends to itself. Heads without a slope attend to all keys.
    """

    def __init__(self, heads: int, total_heads: int | None = None, slopes: list[float] | None = None) -> None:
        half = heads // 2
        super().__init__(heads, total_heads, self.slopes_for(half) * 2 if slopes is None else slopes)
        # of the sign of the distances q - k that a head sees; 0 for all
        self.sides = (*[1] * half, *[-1] * half, *[0] * (self.total_heads - heads))

    def keep_heads(self, heads: list[int]) -> None:
        super().keep_heads(heads)
        self.sides = tuple(self.sides[head] for head in heads)

    def sees(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """Return which keys the queries see, by their positions:  b i, b j -> b h i j; i, j -> 1 h i j"""
        distance = distances(q_pos, k_pos)
        distance = distance if distance.ndim == 4 else distance[:, None] if distance.ndim == 3 else distance[None, None]
        return distance * torch.tensor(self.sides, device=distance.device).view(-1, 1, 1) >= 0


class RelativePositionBias(PositionBias):
    """A learned bias per bucket of distances, with logarithmic buckets for large distances.

    Raffel et al. 2019, arXiv:1910.10683
    """

    def __init__(
        self, scale: float, causal: bool = False, num_buckets: int = 32, max_distance: int = 128, heads: int = 8
    ) -> None:
        super().__init__()
        self.scale, self.causal, self.num_buckets, self.max_distance = scale, causal, num_buckets, max_distance
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)

    def bucket(self, distance: Tensor) -> Tensor:
        buckets, first = self.num_buckets, 0
        if self.causal:
            distance = distance.clamp(min=0)
        else:
            buckets //= 2
            first, distance = (distance < 0) * buckets, distance.abs()
        exact = buckets // 2
        far = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact) * (buckets - exact)
        far = (exact + far.long()).clamp(max=buckets - 1)
        return first + torch.where(distance < exact, distance, far)

    def of_distance(self, distance: Tensor) -> Tensor:
        if distance.is_floating_point():
            raise ValueError(f'`pos` must be whole numbers, got {distance.dtype}: distances are sorted into buckets')
        return self.relative_attention_bias(self.bucket(distance)) * self.scale

    def entry(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the bias of one head and one distance, from a table:  h, q - k -> bias"""
        far = self.max_distance  # from here on all share a bucket
        table = summable(self.of_distance(torch.arange(-far, far + 1, device=self.device)))
        return lambda h, distance: table[distance.clamp(-far, far) + far, h]


class DynamicPositionBias(PositionBias):
    """A bias that a small MLP computes from the distance d.  Wang et al. 2021, arXiv:2108.00154

    With `log_distance` its input is sign(d) log(|d| + 1).  Liu et al. 2021, arXiv:2111.09883
    """

    def __init__(self, dim: int, *, heads: int, depth: int, log_distance: bool = False, norm: bool = False) -> None:
        super().__init__()
        self.log_distance = log_distance
        self.mlp = nn.ModuleList()
        for layer in range(depth):
            linear = nn.Linear(dim if layer else 1, dim)
            kind = nn.LayerNorm if layer else LayerNorm
            self.mlp.append(nn.Sequential(linear, kind(dim) if norm else nn.Identity(), nn.SiLU()))
        self.mlp.append(nn.Linear(dim, heads))

    def of_distance(self, distance: Tensor) -> Tensor:
        x = distance.to(first_tensor(find_weights(self)).dtype).unsqueeze(-1)
        if self.log_distance:
            x = x.sign() * (x.abs() + 1).log()
        for layer in self.mlp:
            x = layer(x)
        return x


class SharedBias:
    """A bias module for one pass through a stack: computes the bias once for all layers."""

    def __init__(self, module: PositionBias) -> None:
        self.module = module
        self.kept = None if torch.compiler.is_compiling() else ModuleSnapshot(module)
        self.sizes: tuple[int, int] = (-1, -1)
        self.known: Tensor | None = None
        self.table: DistanceTable | None = None

    @property
    def then(self) -> PositionBias:
        """The module as it was when the pass began: layers may ask again in the backward pass."""
        return self.module if self.kept is None else self.kept.restored(self.module)

    def __call__(self, i: int, j: int) -> Tensor:
        return self.compute_once(i, j, lambda: self.then(i, j))

    def at(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.compute_once(q_pos.shape[-1], k_pos.shape[-1], lambda: self.then.at(q_pos, k_pos))

    def diagonals(self, i: int, j: int, device: Any) -> DistanceTable:
        if self.table is None or self.sizes != (i, j):
            self.sizes, self.table = (i, j), self.then.diagonals(i, j, device)
        return self.table

    def side_inputs(self) -> list[Tensor]:
        return [t for t in (self.known, None if self.table is None else self.table.table) if t is not None]

    def replace_side_inputs(self, swapped: dict[int, Tensor]) -> SharedBias:
        """Return a copy with other tensors in place of those that it has computed, by their ids."""
        new = copy.copy(self)
        new.known = None if self.known is None else swapped.get(id(self.known), self.known)
        if self.table is not None:
            new.table = DistanceTable(swapped.get(id(self.table.table), self.table.table), self.table.q_len)
        return new

    def compute_once(self, i: int, j: int, compute: Callable[[], Tensor]) -> Tensor:
        if self.known is None or self.sizes[0] != i or self.sizes[1] != j:  # no dict: it would fix symbolic lengths
            self.sizes, self.known = (i, j), compute()
        return self.known


def bias_of_lengths(rel_pos: Any, x: Tensor, heads: int, i: int, j: int) -> Tensor | BlockwiseTerm:
    """Return the bias of the last `i` of `j` positions, by a module or `SharedBias`; in blocks, if it is large."""
    if hasattr(rel_pos, 'diagonals') and is_large(x, x.shape[0], heads, i, j):
        return rel_pos.diagonals(i, j, x.device)
    return rel_pos(i, j)


def bias_of_positions(rel_pos: Any, x: Tensor, heads: int, own: Tensor, pos: Tensor) -> Tensor | BlockwiseTerm:
    """Return the bias of queries at positions (i), (b i) or (b h i), and keys at (j), (b j) or (b h j)."""
    i = own.shape[-1]
    if not is_large(x, x.shape[0], heads, i, pos.shape[-1]):
        return rel_pos.at(own, pos)
    rel_pos = rel_pos if isinstance(rel_pos, SharedBias) else SharedBias(rel_pos)
    module = rel_pos.module

    def entry() -> Pointwise:
        by_distance, of_query, of_key = rel_pos.then.entry(), make_axis_lookup(own), make_axis_lookup(pos)
        return lambda b, h, i, j: by_distance(h, of_query(b, i) - of_key(b, j))

    knows = (
        pos.ndim < 3
        and not pos.is_floating_point()
        and hasattr(module, 'entry')
        and is_overridden_together(type(module), 'entry', 'of_distance', 'at')
    )
    return BlockwiseTerm(
        lambda rows, keys: rel_pos.then.at(own[..., rows], pos[..., keys]),
        learns=any(weight.requires_grad for weight in find_weights(module)),
        entry=entry if knows else None,
    )


class RelativeBias(AttentionFeature):
    """A bias from the positions of queries and keys, by a module shared between layers."""

    call_inputs = {
        'rel_pos': Input('module (i, j) -> h i j', a_callable),
        'pos': Input('j | b j | b h j, of the keys; the last are the queries', get_tensor('j | b j | b h j')),
    }
    allows_eviction = True
    tp_shards = {}
    tp_input_shards = {'pos': 'b h j'}
    same_in_layers = True

    def mask(self, call: Any) -> BlockwiseTerm | None:
        rel_pos = call.inputs.get('rel_pos')
        module = rel_pos.then if isinstance(rel_pos, SharedBias) else rel_pos
        if not isinstance(module, SplitAlibi):
            return None
        q_pos, k_pos = call.q_pos, call.k_pos

        def entry() -> Pointwise:
            of_query, of_key = make_axis_lookup(q_pos), make_axis_lookup(k_pos)
            sides = torch.tensor(module.sides, device=module.place[0])
            return lambda b, h, i, j: (of_query(b, i) - of_key(b, j)) * sides[h] >= 0

        return BlockwiseTerm(
            lambda rows, keys: module.sees(q_pos[..., rows], k_pos[..., keys]),
            entry=entry if k_pos.ndim < 3 else None,
            made_of=(q_pos, k_pos, module.sides),
        )

    def bias(self, call: Any) -> Tensor | BlockwiseTerm | None:
        rel_pos = call.inputs.get('rel_pos')
        if rel_pos is None:
            return None
        if call.in_order('pos', 'index'):
            return bias_of_lengths(rel_pos, call.x, call.heads, call.q_len, call.keys)
        if not hasattr(rel_pos, 'at'):
            raise ValueError('`pos` got positions, but `rel_pos` is a module that knows only lengths')
        if call.token_idx is not None and isinstance(rel_pos, SharedBias):  # the others ask with the last keys
            rel_pos = SharedBias(rel_pos.module)
        return bias_of_positions(rel_pos, call.x, call.heads, call.q_pos, call.k_pos)


class AttnBias(AttentionFeature):
    """A bias passed by the caller and added to the scores."""

    call_inputs = {'attn_bias': Input('broadcasts to b h i j, where j excludes prepended keys', get_tensor())}
    allows_eviction = True
    tp_shards = {}
    tp_input_shards = {'attn_bias': '... h i j'}

    def bias(self, call: Any) -> Tensor | None:
        bias = call.inputs.get('attn_bias')
        if bias is not None and not check_tensor(bias, 'attn_bias').is_floating_point():
            raise TypeError(f'`attn_bias` must be numbers to add, got {bias.dtype}; keys are hidden by `attn_mask`')
        return bias

    def mask(self, call: Any) -> Tensor | None:
        """A key with a bias of -inf is hidden: else a row of nothing but those would look at what other masks hide."""
        bias = self.bias(call)
        if bias is None:
            return None
        call.term(bias, 'attn_bias')  # its shape is that of the bias, by name
        return bias != -torch.inf


class StackBias(StackFeature):
    """Pass the bias module of a stack to its self-attention layers."""

    stored_as = {'module': 'rel_pos'}

    def refuse_gates(self) -> None:
        if uses(self.owner, 'data_dependent_alibi'):
            raise ConfigError(
                f'`{next(iter(self.flags))}` cannot be combined with '
                '`attn_data_dependent_alibi`: one position bias at a time'
            )

    def build(self, kind: type[PositionBias], **own: Any) -> PositionBias:
        """Build the module, with what the user gave for it besides flags."""
        extra = self.owner.rel_pos_kwargs
        if 'scale' in extra:
            own.pop('scale', None)  # which no flag settles
        try:
            return kind(**own, **extra)
        except TypeError as error:
            raise ConfigError(f'`rel_pos_kwargs` got {format_value(extra)}: {error}') from None

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if isinstance(self.module, Placed):
            self.module.found_on(x.device)
        module: Any = self.module
        shared = call.shared['a']['rel_pos'] = SharedBias(module)
        # here and not in the first layer that asks, so that a layer can be recomputed on its own
        own = call.shared['a']
        positions = own.get('pos', own.get('index'))
        if positions is None:
            bias_of_lengths(shared, x, self.owner.attn_heads, call.new_len, call.memories + call.tokens)
        else:
            bias_of_positions(shared, x, self.owner.attn_heads, positions[..., -call.new_len :], positions)
        return x


class Alibi(StackBias):
    """ALiBi: a linear penalty on the distance, with one slope per head:  -slope |q - k|

    In a non-causal stack, all heads attend in both directions ('symmetric'). With 'split', half of the heads with a
    slope attend to earlier tokens and the other half, with the same slopes, to later tokens.
    """

    paper = 'Train Short, Test Long, arXiv:2108.12409'
    alibi_pos_bias = flag(False, 'add a linear penalty on the distance to the scores (ALiBi)')
    alibi_num_heads = flag(None, 'number of heads with a slope, the first ones; all if None', size | none, example=2)
    alibi_bidirectional = flag(
        'symmetric',
        "in non-causal stacks: 'symmetric', or 'split' for half of these heads backwards and half forwards",
        one_of('symmetric', 'split'),
        example='split',
    )
    clashes = {'rel_pos_bias': 'one position bias at a time', 'dynamic_pos_bias': 'one position bias at a time'}
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        self.refuse_gates()
        heads = self.alibi_num_heads or owner.attn_heads
        if heads > owner.attn_heads:
            raise ConfigError(f'`alibi_num_heads` must be at most `heads`, {owner.attn_heads}, got {heads}')
        kind: type[PositionBias] = AlibiPositionalBias
        if self.alibi_bidirectional == 'split':
            kind = SplitAlibi
            if owner.causal:
                raise ConfigError(
                    "`alibi_bidirectional='split'` cannot be combined with `causal`: no head may look ahead"
                )
            if heads % 2:
                raise ConfigError(
                    f"`alibi_bidirectional='split'` needs an even number of heads with a slope, got {heads}"
                )
        self.module = self.build(kind, heads=heads, total_heads=owner.attn_heads)


class T5Bias(StackBias):
    """T5 relative position bias: one learned number per head and bucket of distances, added to the scores."""

    paper = 'T5, arXiv:1910.10683'
    rel_pos_bias = flag(False, 'add a learned bias per bucket of distances to the scores (T5)')
    rel_pos_num_buckets = flag(32, 'number of buckets', size, example=8)
    rel_pos_max_distance = flag(128, 'maximum distance, in tokens; larger ones share the last bucket', size, example=64)
    rel_pos_bias_scale = flag(None, 'factor of the bias, sqrt(dim_head) if None; T5 uses 1', number | none, example=1.0)
    clashes = {'dynamic_pos_bias': 'one position bias at a time'}
    gives_positions = True
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        self.refuse_gates()
        least = 2 if owner.causal else 4  # half of those of one side are of one distance each
        if self.rel_pos_num_buckets < least:
            raise ConfigError(f'`rel_pos_num_buckets` must be at least {least} here, got {self.rel_pos_num_buckets}')
        exact = self.rel_pos_num_buckets // least
        if exact >= self.rel_pos_max_distance:
            raise ConfigError(
                f'`rel_pos_num_buckets` got {self.rel_pos_num_buckets}, of which {exact} are for one distance each: '
                f'`rel_pos_max_distance` must be larger, it is {self.rel_pos_max_distance}'
            )
        if self.rel_pos_bias_scale is not None and 'scale' in owner.rel_pos_kwargs:
            raise ConfigError('`rel_pos_bias_scale` and `rel_pos_kwargs` both give the `scale`, set only one')
        self.module = self.build(
            RelativePositionBias,
            scale=owner.attn_dim_head**0.5 if self.rel_pos_bias_scale is None else float(self.rel_pos_bias_scale),
            causal=owner.causal,
            heads=owner.attn_heads,
            num_buckets=self.rel_pos_num_buckets,
            max_distance=self.rel_pos_max_distance,
        )


class DynamicBias(StackBias):
    """A position bias that a small MLP computes from the distance."""

    paper = 'CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883'
    dynamic_pos_bias = flag(False, 'add a bias that a small MLP computes from the distance')
    dynamic_pos_bias_log_distance = flag(False, 'use the signed logarithm of the distance as its input')
    dynamic_pos_bias_mlp_depth = flag(2, 'number of hidden layers of the MLP', size, example=3)
    dynamic_pos_bias_norm = flag(False, 'use layer norms in the MLP')
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        self.module = self.build(
            DynamicPositionBias,
            dim=max(owner.dim // 4, 1),
            heads=owner.attn_heads,
            depth=self.dynamic_pos_bias_mlp_depth,
            log_distance=bool(self.dynamic_pos_bias_log_distance),
            norm=bool(self.dynamic_pos_bias_norm),
        )
