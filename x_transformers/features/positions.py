"""Where tokens are: rotations of queries and keys, biases of their scores, windows, and vectors added to the input.

Everything here is a function of the positions of queries and keys, never of the size of a grid. So decoding with a
cache, memories, left padding and positions given by the user need no case of their own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.again import Kept
from x_transformers.blocks import Diagonals, Pointwise, Rows, is_large, of_each, summable
from x_transformers.cache import Buffer, KeysValues
from x_transformers.checks import a_tensor, check_range, overridden_together
from x_transformers.derivatives import transformed
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import (
    Check,
    ConfigError,
    a_callable,
    an_instance,
    count,
    flag,
    is_number,
    none,
    positive,
    shown,
    size,
    warn_once,
)
from x_transformers.flags.inputs import rotary_angles, tensor_of
from x_transformers.precision import at_least_float


class KeepsPrecision(nn.Module):
    """A module whose buffers stay in float32 at least, whatever the model is cast to: angles need the digits."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KeepsPrecision:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = before[name].to(buffer.device)
        return self


class Placed(nn.Module):
    """A module that knows where it is without a buffer, `place`: device, and dtype of at least float32.

    Its tables come from its configuration and are made where they are used, so that memory allocated without content,
    or weights assigned to a module without memory, leave nothing undefined.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = torch.empty(0).device, torch.float32

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Placed:
        super()._apply(fn, recurse)
        device, dtype = self.place
        moved = fn(torch.empty(0, device=device, dtype=dtype))
        self.place = moved.device, at_least_float(moved.dtype)
        return self

    def found_on(self, device: torch.device) -> None:
        """Settle where the module is, if its weights were assigned and it has none."""
        if self.place[0].type == 'meta':
            self.place = device, self.place[1]


def constant(values: tuple[float, ...], device: Any, dtype: torch.dtype) -> Tensor:
    """Numbers of a configuration as a tensor. Kept, where it is one like any other."""
    if torch.compiler.is_compiling() or transformed() or torch._C._len_torch_dispatch_stack():
        return torch.tensor(values, device=device, dtype=torch.float32).to(dtype)
    return kept_constant(values, torch.device(device), dtype)


@functools.lru_cache(maxsize=256)
def kept_constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(values, device=device, dtype=torch.float32).to(dtype)


# vectors added to the input


def positions_of(length: int, pos: Tensor | None, seq_start_pos: Tensor | None, offset: int, device: Any) -> Tensor:
    """Positions (n,) or (b n), counted from the first real token of each row, never below 0."""
    if pos is None:
        pos = torch.arange(offset, offset + length, device=device)
    return pos if seq_start_pos is None else (pos - seq_start_pos[:, None]).clamp(min=0)


class AbsolutePositionalEmbedding(nn.Module):
    """A learned vector per position, times dim ** -0.5, or of unit length with `l2norm_embed`.

    x        b n ...      only its length and device are used
    pos      n | b n      positions, 0.. if None
    returns  n d | b n d
    """

    plain = True

    def __init__(self, dim: int, max_seq_len: int, l2norm_embed: bool = False) -> None:
        super().__init__()
        self.scale = 1.0 if l2norm_embed else dim**-0.5
        self.max_seq_len, self.l2norm_embed = max_seq_len, l2norm_embed
        self.emb = nn.Embedding(max_seq_len, dim)

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int = 0
    ) -> Tensor:
        length = x.shape[1]
        if pos is None and offset + length > self.max_seq_len:
            raise ValueError(
                f'the sequence has {offset + length} tokens, more than the table of absolute positions, '
                f'`max_seq_len={self.max_seq_len}`'
            )
        if pos is not None and seq_start_pos is None:
            check_range(pos, 'pos', 0, self.max_seq_len - 1, 'positions')
        embedded = self.emb(positions_of(length, pos, seq_start_pos, offset, x.device))
        return F.normalize(embedded, dim=-1) if self.l2norm_embed else embedded * self.scale


class ScaledSinusoidalEmbedding(nn.Module):
    """Sines and cosines of the position, times one learned scale.  Vaswani et al. 2017, arXiv:1706.03762

    pos      n | b n      positions, 0.. if None
    returns  n d | b n d
    """

    plain = True

    def __init__(self, dim: int, theta: float = 10000) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f'the sinusoidal embedding got width {dim}, it must be even')
        self.scale = nn.Parameter(torch.full((1,), dim**-0.5))
        self.dim, self.theta = dim, theta

    @property
    def inv_freq(self) -> Tensor:
        half = self.dim // 2
        places = torch.arange(half, device=self.scale.device, dtype=torch.float32)
        return (self.theta ** -(places / half)).to(at_least_float(self.scale.dtype))

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int = 0
    ) -> Tensor:
        pos = positions_of(x.shape[1], pos, seq_start_pos, offset, x.device)
        angles = pos.unsqueeze(-1) * self.inv_freq
        return torch.cat((angles.sin(), angles.cos()), dim=-1).to(self.scale.dtype) * self.scale


# rotations


class RotaryEmbedding(KeepsPrecision):
    """The angles of rotary positions, each repeated for the two features of a pair.

        pos      n | b n                       positions
        centre                                 position where the scale of xPos is 1, the middle if None
        returns  (1 or b) n dim, and a scale   the scale is 1., or a tensor of the same shape with xPos

    Features turn in pairs: of an odd `dim`, the last frequency turns one more.

    Su et al. 2021, arXiv:2104.09864; xPos: Sun et al. 2022, arXiv:2212.10554; interpolation: arXiv:2306.15595
    """

    plain = True

    def __init__(
        self,
        dim: int,
        use_xpos: bool = False,
        scale_base: float = 512,
        interpolation_factor: float = 1.0,
        base: float = 10000,
        base_rescale_factor: float = 1.0,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ConfigError(f'rotary positions got width {dim}, it must be at least 1')
        if interpolation_factor < 1:
            raise ConfigError(f'`rotary_interpolation_factor` got {interpolation_factor}, it must be at least 1')
        if base_rescale_factor != 1:
            base *= base_rescale_factor ** (dim / max(dim - 2, 1))
        pairs = torch.arange(0, dim, 2).float()
        self.dim, self.interpolation_factor, self.scale_base = dim, interpolation_factor, scale_base
        self.register_buffer('inv_freq', base ** -(pairs / dim))
        self.register_buffer('scale', (pairs + 0.4 * dim) / (1.4 * dim) if use_xpos else None)

    def forward_from_seq_len(self, seq_len: int) -> tuple[Tensor, Tensor | float]:
        return self.forward(torch.arange(seq_len, device=self.inv_freq.device))

    def forward(self, t: Tensor, offset: int = 0, centre: int | None = None) -> tuple[Tensor, Tensor | float]:
        pos = t.unsqueeze(0) if t.ndim == 1 else t
        angles = pos.unsqueeze(-1).to(self.inv_freq.dtype) * self.inv_freq / self.interpolation_factor
        angles = angles.repeat_interleave(2, dim=-1)
        if self.scale is None:
            return angles, 1.0
        centre = (pos.max() + 1) // 2 if centre is None else centre
        power = (pos - centre).unsqueeze(-1) / self.scale_base
        return angles, (self.scale**power).repeat_interleave(2, dim=-1)


def apply_rotary_pos_emb(t: Tensor, freqs: Tensor, scale: Tensor | float | None = 1.0) -> Tensor:
    """Turn the first features of `t` by the angles of its positions.

    t        b n d | b h n d      the last positions of `freqs` are those of `t`
    freqs    (1 or b) n r | n r   angles, r <= d, equal for the two features of a pair
    scale    number, None or like freqs
    returns  like t, in its dtype; features beyond r are left alone
    """
    length, width = t.shape[-2], freqs.shape[-1]
    dtype = at_least_float(torch.promote_types(t.dtype, freqs.dtype))
    if torch.compiler.is_compiling() or t.device.type not in ('cpu', 'cuda') or t.shape[-1] % 2:
        cos, sin = cos_and_sin(freqs, scale, t, dtype)
        even, odd = t[..., :width].unflatten(-1, (-1, 2)).to(dtype).unbind(dim=-1)
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        return torch.cat((turned.to(t.dtype), t[..., width:]), dim=-1)
    # one complex product does the same in a fifth of the time, where it is not compiled; the rest turns by nothing
    wanted = (length, t.ndim, t.shape[-1], dtype, 0 if freqs.is_inference() else freqs._version)
    keeps = is_one(scale) and isinstance(length, int) and not freqs.requires_grad  # a symbolic length has no hash
    known = getattr(freqs, 'known_turns', None) if keeps else None
    turn = None if known is None else known.get(wanted)
    if turn is None:
        cos, sin = cos_and_sin(freqs, scale, t, dtype)
        still = (0, (t.shape[-1] - width) // 2)
        turn = torch.complex(F.pad(cos, still, value=1.0), F.pad(sin, still))
        if known is not None:
            known.clear()
            known[wanted] = turn  # the next layers turn by the same
    pairs = torch.view_as_complex(t.to(dtype).contiguous().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(t.dtype)


def for_one_pass(angles: Tensor) -> Tensor:
    """The same angles, for the layers of one pass, which compute once what they turn by."""
    if torch.compiler.is_compiling():
        return angles
    angles = angles.view_as(angles)  # what is kept beside it must not outlive the pass
    angles.known_turns = {}
    return angles


def is_one(scale: Tensor | float | None) -> bool:
    return scale is None or (isinstance(scale, (int, float)) and scale == 1)


def cos_and_sin(freqs: Tensor, scale: Tensor | float | None, t: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of the angles for the places of `t`, one for each pair of features, times the scale."""
    length = t.shape[-2]
    angles = with_heads(freqs[..., -length:, ::2], t).to(dtype)
    cos, sin = angles.cos(), angles.sin()
    if is_one(scale):
        return cos, sin
    if torch.is_tensor(scale):
        scale = with_heads(scale[..., -length:, ::2], t).to(dtype)
    return cos * scale, sin * scale


def with_heads(angles: Tensor, t: Tensor) -> Tensor:
    """Angles (b n r) beside heads (b h n d)."""
    return angles.unsqueeze(1) if t.ndim == 4 and angles.ndim == 3 else angles


# biases: each gives, for positions of queries (i,) or (b i) and keys (j,) or (b j), a bias (h i j) or (b h i j)


def distances(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """How far each key lies behind each query, q - k:  i, j -> i j, or with rows b i j."""
    return q_pos.unsqueeze(-1) - k_pos.unsqueeze(-2)


class PositionBias(nn.Module):
    """A bias of attention scores, one per head, from the distance between query and key."""

    def of_distance(self, distance: Tensor) -> Tensor:
        """(...) whole numbers -> (... h)"""
        raise NotImplementedError

    def at(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        """The bias for given positions:  i, j -> h i j; b i, b j -> b h i j; or per head, b h i, b h j -> b h i j."""
        bias = self.of_distance(distances(q_pos, k_pos))
        if q_pos.ndim < 3:
            return bias.movedim(-1, -3)
        if q_pos.shape[1] != bias.shape[-1]:
            raise ValueError(f'`pos` got positions for {q_pos.shape[1]} heads, there are {bias.shape[-1]}')
        return bias.diagonal(dim1=1, dim2=-1).movedim(-1, 1)

    def forward(self, i: int, j: int) -> Tensor:
        """The bias of the last `i` of `j` positions:  h i j. Each distance is computed once."""
        device = self.place[0] if isinstance(self, Placed) else next(iter((*self.parameters(), *self.buffers()))).device
        table = self.of_distance(torch.arange(1 - i, j, device=device))
        index = torch.arange(j - i, j, device=device).unsqueeze(-1) - torch.arange(j, device=device)
        return table[index + i - 1].movedim(-1, -3)

    def diagonals(self, i: int, j: int, device: Any) -> Diagonals:
        """The same as what can be computed for a few rows at a time."""
        return Diagonals(self.of_distance(torch.arange(j - 1, -i, -1, device=device)).transpose(0, 1).contiguous(), i)

    def forward_custom_pos(self, pos_i: Tensor, pos_j: Tensor | None = None) -> Tensor:
        return self.at(pos_i, pos_i if pos_j is None else pos_j)


class AlibiPositionalBias(Placed, PositionBias):
    """A penalty on distance, with a slope per head.  Press et al. 2021, arXiv:2108.12409"""

    def __init__(self, heads: int, total_heads: int | None = None, slopes: list[float] | None = None) -> None:
        super().__init__()
        self.heads, self.total_heads = heads, total_heads or heads
        slopes = self.slopes_for(heads) if slopes is None else slopes
        if len(slopes) != heads:
            raise ConfigError(
                f'`rel_pos_kwargs` got {len(slopes)} `slopes`, it must have one per head with a slope, {heads}'
            )
        self.each = (*map(float, slopes), *[0.0] * (self.total_heads - heads))

    @property
    def slopes(self) -> Tensor:
        """One per head, 0 for those without."""
        return constant(self.each, *self.place)

    @staticmethod
    def slopes_for(heads: int) -> list[float]:
        """2 ** (-8 k / heads) for a power of two, else those of the power below, and every other one of twice it."""
        below = 2 ** math.floor(math.log2(heads))
        slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
        between = [2 ** (-8 * k / (2 * below)) for k in range(1, 2 * below + 1, 2)]
        return slopes + between[: heads - below]

    def of_distance(self, distance: Tensor) -> Tensor:
        return distance.abs().unsqueeze(-1).to(self.place[1]) * -constant(self.each, distance.device, self.place[1])

    def entry(self) -> Callable[[Tensor, Tensor], Tensor]:
        """For one head and one distance:  h, q - k -> bias"""
        slopes = -self.slopes
        return lambda h, distance: distance.abs() * slopes[h]


class RelativePositionBias(PositionBias):
    """A learned bias per bucket of distances; far ones share logarithmic buckets.

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
            raise ValueError(f'`pos` got {distance.dtype}, it must be whole numbers: distances are sorted into buckets')
        return self.relative_attention_bias(self.bucket(distance)) * self.scale

    def entry(self) -> Callable[[Tensor, Tensor], Tensor]:
        """For one head and one distance, from a table:  h, q - k -> bias"""
        far = self.max_distance  # from here on all share a bucket
        table = self.of_distance(torch.arange(-far, far + 1, device=self.relative_attention_bias.weight.device))
        table = summable(table)
        return lambda h, distance: table[distance.clamp(-far, far) + far, h]


class DynamicPositionBias(PositionBias):
    """A bias that a small network computes from the distance.  Wang et al. 2021, arXiv:2108.00154

    With `log_distance` it sees sign(d) log(|d| + 1).  Liu et al. 2021, arXiv:2111.09883
    """

    def __init__(self, dim: int, *, heads: int, depth: int, log_distance: bool = False, norm: bool = False) -> None:
        from x_transformers.features.norms import LayerNorm

        super().__init__()
        self.log_distance = log_distance
        self.mlp = nn.ModuleList()
        for layer in range(depth):
            linear = nn.Linear(dim if layer else 1, dim)
            kind = nn.LayerNorm if layer else LayerNorm
            self.mlp.append(nn.Sequential(linear, kind(dim) if norm else nn.Identity(), nn.SiLU()))
        self.mlp.append(nn.Linear(dim, heads))

    def of_distance(self, distance: Tensor) -> Tensor:
        x = distance.to(next(self.parameters()).dtype).unsqueeze(-1)
        if self.log_distance:
            x = x.sign() * (x.abs() + 1).log()
        for layer in self.mlp:
            x = layer(x)
        return x


# features of attention


class Rotary(AttentionFeature):
    """Turn queries and keys by their positions:  (x + iy) e^(i p theta), so that scores depend on distances."""

    paper = 'RoFormer, arXiv:2104.09864'
    rotate_num_heads = flag(None, 'how many heads are rotated, the last ones; all if None', size | none, example=2)
    takes = {
        'rotary_pos_emb': '(angles (1 or b) j r, scale)',
        'context_rotary_pos_emb': '(angles (1 or b) j r, scale), of the keys of a context',
        'kept_angles': 'a Buffer of the angles of all cached and new tokens: the cache keeps turned keys',
    }
    must_be = {
        'rotary_pos_emb': rotary_angles,
        'context_rotary_pos_emb': rotary_angles,
        'kept_angles': an_instance(Buffer),
    }
    waits = True
    plain = True

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    def setup(self, host: Any) -> None:
        heads, own = host.shape.heads, self.rotate_num_heads
        if own is not None and own > heads:
            raise ConfigError(f'`rotate_num_heads` got {own}, it must be at most `heads`, {heads}')
        if own is not None and own < heads and host.shape.kv_heads < heads:
            raise ConfigError(
                '`rotate_num_heads` does not go with `kv_heads`: a key head would serve rotated and other queries'
            )
        host.rotate_num_heads = own or getattr(host, 'rotate_num_heads', None) or heads

    def turn(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        """Turn new keys before they are cached, so that each is turned once."""
        kept = call.inputs.get('kept_angles')
        if kept is None or any(feature.keeps_plain_keys for feature in self.host.features.active):
            return qk
        (q, k), (angles, _) = qk, call.inputs['rotary_pos_emb']
        new = k.shape[-2] - call.memories
        if call.past is not None and call.past.turned_by is None:
            held = kept.tensor[:, : kept.length - new]
            keys, *rest = call.past.buffers
            call.past = KeysValues((keys.map(lambda t: self.turned(t, held)), *rest), call.past.states)
        call.turned_by, call.states['angles'] = self, kept
        ahead = angles if call.memories == 0 else torch.cat((angles[:, : call.memories], angles[:, -new:]), dim=1)
        own = angles if call.places is None else call.of_queries(angles, -2)
        return self.turned(q, own), self.turned(k, ahead)

    def place(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        own = call.inputs.get('rotary_pos_emb')
        if own is None or call.turned_by is self:
            return qk
        q, k = qk
        angles, scale = own
        count = q.shape[-2] if call.places is None else call.tokens.shape[1]
        if angles.shape[-2] < count:
            raise ValueError(f'`rotary_pos_emb` got angles for {angles.shape[-2]} positions, there are {count} queries')
        if call.places is not None:
            angles, scale = (call.of_queries(t, -2) if torch.is_tensor(t) and t.ndim > 1 else t for t in own)
        q = self.turned(q, angles, scale)
        other = own if call.context is None else call.inputs.get('context_rotary_pos_emb')
        if other is None:
            raise ValueError(
                '`context_rotary_pos_emb` is missing: with `rotary_pos_emb`, the keys of a context need angles too'
            )
        angles, scale = other
        if angles.shape[-2] < k.shape[-2]:
            raise ValueError(f'the rotary angles cover {angles.shape[-2]} positions, the keys have {k.shape[-2]}')
        return q, self.turned(k, angles, 1.0 if scale is None else scale**-1)

    def turned(self, t: Tensor, angles: Tensor, scale: Tensor | float | None = 1.0) -> Tensor:
        # through the module of the core, where users have always replaced it
        from x_transformers import x_transformers as core

        still = self.host.heads - self.host.rotate_num_heads
        if still == 0:
            return core.apply_rotary_pos_emb(t, angles, scale)
        return torch.cat((t[:, :still], core.apply_rotary_pos_emb(t[:, still:], angles, scale)), dim=1)


def of_lengths(rel_pos: Any, x: Tensor, heads: int, i: int, j: int) -> Tensor | Rows:
    """The bias of the last `i` of `j` positions, by a module or `SharedBias`; in rows, if it is large."""
    if hasattr(rel_pos, 'diagonals') and is_large(x, x.shape[0], heads, i, j):
        return rel_pos.diagonals(i, j, x.device)
    return rel_pos(i, j)


def of_positions(rel_pos: Any, x: Tensor, heads: int, own: Tensor, pos: Tensor) -> Tensor | Rows:
    """The same for given positions of the queries, (i), (b i) or (b h i), and of all keys, (j), (b j) or (b h j)."""
    i = own.shape[-1]
    if not is_large(x, x.shape[0], heads, i, pos.shape[-1]):
        return rel_pos.at(own, pos)
    rel_pos = rel_pos if isinstance(rel_pos, SharedBias) else SharedBias(rel_pos)
    module = rel_pos.module
    learns = any(parameter.requires_grad for parameter in module.parameters())

    def entry() -> Pointwise:
        by_distance, of_query, of_key = rel_pos.then.entry(), of_each(own), of_each(pos)
        return lambda b, h, i, j: by_distance(h, of_query(b, i) - of_key(b, j))

    knows = (
        pos.ndim < 3
        and not pos.is_floating_point()
        and hasattr(module, 'entry')
        and overridden_together(type(module), 'entry', 'of_distance', 'at')
    )
    return Rows(
        lambda rows, keys: rel_pos.then.at(own[..., rows], pos[..., keys]),
        learns=learns,
        entry=entry if knows else None,
    )


class RelativeBias(AttentionFeature):
    """A bias from the positions of queries and keys, by a module shared between layers."""

    takes = {'rel_pos': 'module (i, j) -> h i j', 'pos': 'j | b j | b h j, of the keys; the last are the queries'}
    must_be = {'rel_pos': a_callable, 'pos': tensor_of('j | b j | b h j')}
    waits = True

    def bias(self, call: Any) -> Tensor | Rows | None:
        rel_pos, pos = call.inputs.get('rel_pos'), call.inputs.get('pos')
        if rel_pos is None:
            return None
        if pos is None:
            pos = call.inputs.get('index')
        if pos is None and call.places is not None:
            pos = torch.arange(call.keys, device=call.x.device)
        if pos is None:
            return of_lengths(rel_pos, call.x, call.heads, call.rows, call.keys)
        if not hasattr(rel_pos, 'at'):
            raise ValueError('`pos` got positions, but `rel_pos` is a module that knows only lengths')
        if call.places is not None and isinstance(rel_pos, SharedBias):  # the others ask with the last keys
            rel_pos = SharedBias(rel_pos.module)
        return of_positions(rel_pos, call.x, call.heads, call.of_queries(pos), pos)


class AttnBias(AttentionFeature):
    """A bias given by the caller."""

    takes = {'attn_bias': 'broadcasts to b h i j; counts the keys without those that features add'}
    must_be = {'attn_bias': tensor_of()}
    waits = True

    def bias(self, call: Any) -> Tensor | None:
        bias = call.inputs.get('attn_bias')
        if bias is not None and not a_tensor(bias, 'attn_bias').is_floating_point():
            raise TypeError(f'`attn_bias` got {bias.dtype}, it must be numbers to add; keys are hidden by `attn_mask`')
        return bias

    def mask(self, call: Any) -> Tensor | None:
        """A key with a bias of -inf is hidden: else a row of nothing but those would look at what other masks hide."""
        bias = self.bias(call)
        if bias is None:
            return None
        call.term(bias, 'attn_bias')  # its shape is that of the bias, by name
        return bias != -torch.inf


class Window(AttentionFeature):
    """See no further back than a number of tokens. The future is left to `causal`."""

    max_attend_past = flag(None, 'how many tokens before itself a query sees', count | none, example=3)

    not_across = 'it counts back to keys of the same sequence'

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return values['max_attend_past'] is not None

    def setup(self, host: Any) -> None:
        host.max_attend_past = self.max_attend_past

    def mask(self, call: Any) -> Rows:
        if call.context is not None:
            raise ValueError(f'`max_attend_past` does not go with a context: {self.not_across}')
        index = call.inputs.get('index')
        # with positions of its own per row, memories are nearer than they stand
        reach = self.max_attend_past if index is None and call.places is None else None
        made_of = (self.max_attend_past, index)
        if index is None:
            index = torch.arange(call.keys, device=call.x.device)
        own, most = call.of_queries(index), self.max_attend_past
        made_of = made_of if call.places is None else (most, index, own)

        def near(rows: slice, keys: slice) -> Tensor:
            mask = distances(own[..., rows], index[..., keys]) <= most
            return mask if mask.ndim == 2 else mask.unsqueeze(1)

        def entry() -> Pointwise:
            farthest, of_key = of_each(own - most), of_each(index)
            return lambda b, h, i, j: of_key(b, j) >= farthest(b, i)

        return Rows(near, reach=reach, entry=entry, made_of=made_of)


# features of a stack


class GivenAngles(StackFeature):
    """Positions computed elsewhere, for all self-attention layers of a stack, whether it has its own or not."""

    takes = {
        'rotary_pos_emb': '(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them',
        'polar_pos_emb': '(angles (1 or b) j d, shifts of the keys h 1 d)',
    }
    waits = True
    plain = True

    def open(self, x: Tensor, call: Any) -> Tensor:
        for name in self.takes:
            given = call.inputs.get(name)
            if given is not None:
                call.shared['a'][name] = self.checked(name, given, call.memories + call.tokens)
        return x

    @staticmethod
    def checked(name: str, given: Any, keys: int) -> tuple[Tensor, Any]:
        if not isinstance(given, (tuple, list)) or len(given) != 2 or not torch.is_tensor(given[0]):
            raise TypeError(f'`{name}` got {shown(given)}, it must be a pair, of which the first are angles')
        if given[0].shape[-2] < keys:
            raise ValueError(
                f'`{name}` got angles for {given[0].shape[-2]} positions, '
                f'there are {keys} keys (prepend_embeds, memory tokens and mems included)'
            )
        return tuple(given)


class RotaryPositions(StackFeature):
    """Rotary positions for all self-attention layers of a stack."""

    paper = 'RoFormer, arXiv:2104.09864'
    rotary_pos_emb = flag(False, 'rotate queries and keys by their positions')
    rotary_emb_dim = flag(None, 'how many features of a head turn, half of them if None', size | none, example=4)
    rotary_xpos = flag(False, 'decay with distance as well (xPos)')
    rotary_xpos_scale_base = flag(512, 'length scale of the decay, in tokens', positive, example=64)
    rotary_interpolation_factor = flag(
        1.0, 'divide positions by this', Check('a number of at least 1', lambda v: is_number(v) and v >= 1), example=2.0
    )
    rotary_base_rescale_factor = flag(1.0, 'stretch the base for longer contexts (NTK-aware)', positive, example=2.0)
    rotate_num_heads = flag(None, 'how many heads are rotated, the last ones; all if None', size | none, example=2)
    takes = {'context_pos': 'm | b m'}
    must_be = {'context_pos': tensor_of('m | b m')}
    stored_as = {'angles': 'rotary_pos_emb'}
    switches = ('rotary_pos_emb', 'rotary_xpos')
    options = {'rotary_xpos_scale_base': 'rotary_xpos'}
    gives_positions = True

    @property
    def plain(self) -> bool:
        return not self.rotary_xpos

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return bool(values['rotary_pos_emb'] or values['rotary_xpos'])

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        chosen = kind == 'a' and self.rotate_num_heads is not None
        return {**flags, 'rotate_num_heads': self.rotate_num_heads} if chosen else flags

    def setup(self, host: Any) -> None:
        if self.rotary_xpos and not host.causal:
            raise ConfigError('`rotary_xpos` needs `causal`: its decay looks backwards only')
        width = self.rotary_emb_dim or max(1, host.attn_dim_head // 2)
        if width + width % 2 > host.attn_dim_head:
            why = ': features turn in pairs' if width % 2 else ''
            raise ConfigError(
                f'`rotary_emb_dim` got {width}, it must be at most the head width, {host.attn_dim_head}{why}'
            )
        if width < 32 and host.verbose:
            warn_once(f'rotary positions turn {width} features per head: below 32 models are known to suffer')
        self.angles = RotaryEmbedding(
            width,
            use_xpos=bool(self.rotary_xpos),
            scale_base=self.rotary_xpos_scale_base,
            interpolation_factor=self.rotary_interpolation_factor,
            base_rescale_factor=self.rotary_base_rescale_factor,
        )

    def open(self, x: Tensor, call: Any) -> Tensor:
        own = call.shared['a'].get('rotary_pos_emb')
        # a fixed centre: with the middle, keys without a scale (memories, a context) would reveal the length
        longest = int(70 * self.rotary_xpos_scale_base)
        if self.rotary_xpos and call.seen + call.new > longest:
            raise ValueError(f'`rotary_xpos` overflows past {longest} positions, raise `rotary_xpos_scale_base`')
        past = {} if call.cache is None else call.cache.states
        # rows that the user repeated or took out of `cached_kv` are not those whose positions were kept
        same = 'positions' in past and past['positions'].tensor.shape[0] == x.shape[0]
        continues = call.held == 0 or (same and past['positions'].length == call.held)
        continues = continues and (call.held == 0 or call.seen == call.cache.seen)  # else an offset moves all of them
        if own is None and not self.rotary_xpos and continues and (call.keeps or call.cache is not None):
            self.share_kept_angles(x, call, past if call.held else {})
        else:
            angles, scale = self.angles(call.key_positions(x), centre=0) if own is None else own
            call.shared['a']['rotary_pos_emb'] = for_one_pass(angles), scale
        context_pos = call.inputs.get('context_pos')
        if context_pos is not None:
            if context_pos.shape[-1] != call.context_length:
                raise ValueError(
                    f'`context_pos` got {context_pos.shape[-1]} positions, the context has {call.context_length}'
                )
            call.shared['c']['rotary_pos_emb'] = call.shared['a']['rotary_pos_emb']
            call.shared['c']['context_rotary_pos_emb'] = self.angles(context_pos, centre=0)
        return x

    def share_kept_angles(self, x: Tensor, call: Any, past: dict[str, Buffer]) -> None:
        """Angles of all keys, of which only those of new tokens are computed; positions go on from the `past` ones."""
        if past and call.shared['a'].get('pos') is None:
            positions = past['positions'].tensor[:, -1:, 0] + torch.arange(1, call.new + 1, device=x.device)
        else:
            positions = call.key_positions(x)[..., call.memories + call.held :]
        angles, _ = self.angles(positions)
        for name, rows in (('positions', positions.unsqueeze(-1)), ('angles', angles)):
            rows = rows.expand(x.shape[0], *rows.shape[-2:]).contiguous()
            call.trace.states[name] = past[name].append(rows) if past else Buffer(rows)
        kept = call.trace.states['angles']
        everything = kept.tensor if past else angles
        if call.memories:
            before, _ = self.angles(call.key_positions(x)[..., : call.memories])
            everything = torch.cat((before.expand(everything.shape[0], -1, -1), everything), dim=1)
        call.shared['a'].update(rotary_pos_emb=(for_one_pass(everything), 1.0), kept_angles=kept)


def uses(stack: Any, name: str) -> bool:
    """Whether any self-attention of a stack has a flag on."""
    value = stack.branch_flags['a'].get(name)
    return any(value) if isinstance(value, tuple) else bool(value)


class StackBias(StackFeature):
    """Hands the bias module of a stack to its self-attention layers."""

    stored_as = {'module': 'rel_pos'}

    def refuse_gates(self) -> None:
        if uses(self.host, 'data_dependent_alibi'):
            raise ConfigError(
                f'`{next(iter(self.flags))}` does not go with `attn_data_dependent_alibi`: one position bias at a time'
            )

    def build(self, kind: type[PositionBias], **own: Any) -> PositionBias:
        """The module, with what the user gave for it besides flags."""
        extra = self.host.rel_pos_kwargs
        try:
            return kind(**own, **extra)
        except TypeError as error:
            raise ConfigError(f'`rel_pos_kwargs` got {shown(extra)}: {error}') from None

    def open(self, x: Tensor, call: Any) -> Tensor:
        if isinstance(self.module, Placed):
            self.module.found_on(x.device)
        shared = call.shared['a']['rel_pos'] = SharedBias(self.module)
        # here and not in the first layer that asks, so that a layer can be recomputed on its own
        own = call.shared['a']
        positions = own.get('pos', own.get('index'))
        if positions is None:
            of_lengths(shared, x, self.host.attn_heads, call.new, call.memories + call.tokens)
        else:
            of_positions(shared, x, self.host.attn_heads, positions[..., -call.new :], positions)
        return x


class SharedBias:
    """A bias module for one pass through a stack: computes once what all layers add."""

    def __init__(self, module: PositionBias) -> None:
        self.module = module
        self.kept = None if torch.compiler.is_compiling() else Kept(module)
        self.sizes: tuple[int, int] = (-1, -1)
        self.known: Tensor | None = None
        self.table: Diagonals | None = None

    @property
    def then(self) -> PositionBias:
        """The module as it was when the pass began: layers may ask again in the backward pass."""
        return self.module if self.kept is None else self.kept.now(self.module)

    def __call__(self, i: int, j: int) -> Tensor:
        return self.remembered(i, j, lambda: self.then(i, j))

    def at(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.remembered(q_pos.shape[-1], k_pos.shape[-1], lambda: self.then.at(q_pos, k_pos))

    def diagonals(self, i: int, j: int, device: Any) -> Diagonals:
        if self.table is None or self.sizes != (i, j):
            self.sizes, self.table = (i, j), self.then.diagonals(i, j, device)
        return self.table

    def remembered(self, i: int, j: int, compute: Callable[[], Tensor]) -> Tensor:
        if self.known is None or self.sizes[0] != i or self.sizes[1] != j:  # no dict: it would fix symbolic lengths
            self.sizes, self.known = (i, j), compute()
        return self.known


class Alibi(StackBias):
    """Linear penalty on the distance, a slope per head:  -slope |q - k|"""

    per_head = True
    paper = 'Train Short, Test Long, arXiv:2108.12409'
    alibi_pos_bias = flag(False, 'penalise distance linearly')
    alibi_num_heads = flag(None, 'how many heads have a slope, the first ones; all if None', size | none, example=2)
    clashes = {'rel_pos_bias': 'one position bias at a time', 'dynamic_pos_bias': 'one position bias at a time'}

    def setup(self, host: Any) -> None:
        self.refuse_gates()
        heads = self.alibi_num_heads or host.attn_heads
        if heads > host.attn_heads:
            raise ConfigError(f'`alibi_num_heads` got {heads}, it must be at most `heads`, {host.attn_heads}')
        self.module = self.build(AlibiPositionalBias, heads=heads, total_heads=host.attn_heads)


class T5Bias(StackBias):
    """A learned bias per bucket of distances."""

    per_head = True
    paper = 'T5, arXiv:1910.10683'
    rel_pos_bias = flag(False, 'learned bias per bucket of distances')
    rel_pos_num_buckets = flag(32, 'number of buckets', size, example=8)
    rel_pos_max_distance = flag(128, 'distance from which on all share a bucket', size, example=64)
    clashes = {'dynamic_pos_bias': 'one position bias at a time'}
    gives_positions = True

    def setup(self, host: Any) -> None:
        self.refuse_gates()
        if self.rel_pos_num_buckets > self.rel_pos_max_distance:
            raise ConfigError(
                f'`rel_pos_num_buckets` got {self.rel_pos_num_buckets}, '
                f'it must be at most `rel_pos_max_distance`, {self.rel_pos_max_distance}'
            )
        self.module = self.build(
            RelativePositionBias,
            scale=host.attn_dim_head**0.5,
            causal=host.causal,
            heads=host.attn_heads,
            num_buckets=self.rel_pos_num_buckets,
            max_distance=self.rel_pos_max_distance,
        )


class DynamicBias(StackBias):
    """A bias computed from the distance by a small network."""

    per_head = True
    paper = 'CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883'
    dynamic_pos_bias = flag(False, 'a small network turns distances into biases')
    dynamic_pos_bias_log_distance = flag(False, 'it sees the signed logarithm of the distance')
    dynamic_pos_bias_mlp_depth = flag(2, 'its hidden layers', size, example=3)
    dynamic_pos_bias_norm = flag(False, 'norms inside it')

    def setup(self, host: Any) -> None:
        self.module = self.build(
            DynamicPositionBias,
            dim=max(host.dim // 4, 1),
            heads=host.attn_heads,
            depth=self.dynamic_pos_bias_mlp_depth,
            log_distance=bool(self.dynamic_pos_bias_log_distance),
            norm=bool(self.dynamic_pos_bias_norm),
        )
