"""Rotary position embeddings (RoPE): rotate queries and keys by angles that depend on their positions.

The angles are computed once for all layers of a stack. The cache stores them together with the rotated keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from x_transformers.core.buffers import Buffer, KeysValues
from x_transformers.core.checks import can_read_values, first_positions
from x_transformers.core.modes import at_least_float, dtype_of_products, is_exporting
from x_transformers.core.own_modules import inputs_taken_by, is_of_others
from x_transformers.features.documents import lengths_of_documents
from x_transformers.features.frequencies import Frequencies, a_scaling
from x_transformers.features.latents import RopeSubheads, turning_features
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.positions import KeepsPrecision, angles_at
from x_transformers.flags import (
    Check,
    ConfigError,
    Input,
    PerToken,
    each,
    flag,
    format_value,
    instance_of,
    is_number,
    none,
    positive,
    size,
    warn_once,
)
from x_transformers.flags.checks import Maybe, get_tensor, rotary_angles

# The scale of xPos is at most exp(1.26 reach): so many lengths of the decay apart, float32 holds it, and float16 keys
# of up to 35 times it.
REACH, REACH_IN_FLOAT16 = 70.0, 6.0

# angles


class RotaryEmbedding(KeepsPrecision):
    """The angles of rotary positions, each repeated for both channels of a pair.

        pos      n | b n                       positions
        centre   number | (1 or b) 1           position at which the scale of xPos is 1, the middle if None
        lengths  (1 or b) | (1 or b) n         length of each sequence, or of the document of each token, if `scaling`
                                               depends on it
        reach                                  maximum distance from the centre, in lengths of the decay
        returns  (1 or b) n dim, and a scale   the scale is 1., or a tensor of the same shape with xPos
        raises   ValueError                    for positions so far from the centre that the scale of xPos overflows

    Channels are rotated in pairs: with an odd `dim`, the last frequency rotates one channel more.

    Su et al. 2021, arXiv:2104.09864; xPos: Sun et al. 2022, arXiv:2212.10554; interpolation: arXiv:2306.15595
    """

    inv_freq: Any
    scale: Any

    def __init__(
        self,
        dim: int,
        use_xpos: bool = False,
        scale_base: float = 512,
        interpolation_factor: float = 1.0,
        base: float = 10000,
        base_rescale_factor: float = 1.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ConfigError(f'rotary positions must have a width of at least 1, got {dim}')
        if abs(interpolation_factor) < 1:
            wanted = 'must be at least 1, or at most -1'
            raise ConfigError(f'`rotary_interpolation_factor` {wanted}, got {interpolation_factor}')
        if base_rescale_factor != 1:
            base *= base_rescale_factor ** (dim / max(dim - 2, 1))
        self.dim, self.interpolation_factor, self.scale_base = dim, interpolation_factor, scale_base
        self.frequencies = Frequencies(dim, base, scaling)
        self.register_buffer('inv_freq', self.frequencies.table())
        scale = (torch.arange(0, dim, 2).float() + 0.4 * dim) / (1.4 * dim) if use_xpos else None
        self.register_buffer('scale', scale)

    def forward_from_seq_len(self, seq_len: int) -> tuple[Tensor, Tensor | float]:
        return self.forward(torch.arange(seq_len, device=self.inv_freq.device))

    def forward(
        self,
        t: Tensor,
        offset: int = 0,
        centre: int | Tensor | None = None,
        lengths: Tensor | None = None,
        reach: float = REACH,
    ) -> tuple[Tensor, Tensor | float]:
        pos = t.unsqueeze(0) if t.ndim == 1 else t
        angles = self.angles_at(pos, self.frequencies.of_rows(self.inv_freq, lengths, self.inv_freq))
        if self.scale is None:
            return angles, 1.0
        centre = (pos.max() + 1) // 2 if centre is None else centre
        power = (pos - centre).unsqueeze(-1).to(at_least_float(self.scale.dtype)) / self.scale_base
        if can_read_values(power) and bool((power.abs() > reach).any()):
            raise ValueError(
                f'`rotary_xpos` overflows at positions more than {int(reach * self.scale_base)} from the first one, '
                f'or from `centre`: raise `rotary_xpos_scale_base`'
            )
        return angles, (self.scale**power).repeat_interleave(2, dim=-1)

    def angles_at(self, pos: Tensor, frequencies: Tensor) -> Tensor:
        """Return angles, positions (b, n) times frequencies (r / 2,) or (b, 1, r / 2), each twice, (b, n, r).

        In float32 they are from 0 to 2 pi.
        """
        angles = angles_at(pos.unsqueeze(-1), frequencies, self.inv_freq.dtype, self.interpolation_factor)
        return angles.repeat_interleave(2, dim=-1)

    def angles_by(self, others: Frequencies, t: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The angles of positions by other frequencies."""
        pos = t.unsqueeze(0) if t.ndim == 1 else t
        return self.angles_at(pos, others.of_rows(None, lengths, self.inv_freq))


def apply_rotary_pos_emb(t: Tensor, freqs: Tensor, scale: Tensor | float | None = 1.0) -> Tensor:
    """Turn the first features of `t` by the angles of its positions.

    t        b n d | b h n d      the last positions of `freqs` are those of `t`
    freqs    (1 or b) n r | n r   angles, r <= d, equal for the two features of a pair
    scale    number, None or like freqs
    returns  like t, in its dtype; features beyond r are left alone
    """
    dtype = torch.float32
    if not t.dtype is freqs.dtype is torch.float32:
        dtype = at_least_float(torch.promote_types(t.dtype, freqs.dtype))
    # One product of complex numbers, the pairs of channels, takes a fifth of the time, where it is not compiled.
    in_pairs = t.device.type in ('cpu', 'cuda') and t.shape[-1] % 2 == 0
    if torch.compiler.is_compiling() or not in_pairs:
        width = freqs.shape[-1]
        cos, sin = cos_and_sin(freqs, scale, t, dtype)
        even, odd = t[..., :width].unflatten(-1, (-1, 2)).to(dtype).unbind(dim=-1)
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        return torch.cat((turned.to(t.dtype), t[..., width:]), dim=-1)
    # a symbolic length has no hash
    keeps = not isinstance(scale, Tensor) and isinstance(t.shape[-2], int)
    known = getattr(freqs, 'known_turns', None) if keeps else None
    if known is None or freqs.requires_grad:
        return rotate_by(t, make_rotations(freqs, scale, t, dtype))
    wanted = (*t.shape[-2:], t.ndim, dtype, 0 if freqs.is_inference() else freqs._version, scale)
    turn = known.get(wanted)
    if turn is None:
        known.clear()
        turn = known[wanted] = make_rotations(freqs, scale, t, dtype)  # the next layers turn by the same
    return rotate_by(t, turn)


def make_rotations(freqs: Tensor, scale: Tensor | float | None, t: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the factors of pairs of channels; those beyond the angles are one."""
    cos, sin = cos_and_sin(freqs, scale, t, dtype)
    still = (0, (t.shape[-1] - freqs.shape[-1]) // 2)
    return torch.complex(F.pad(cos, still, value=1.0), F.pad(sin, still))


def rotate_by(t: Tensor, turn: Tensor) -> Tensor:
    """Pairs of features, read as complex numbers, times a turn; in the dtype of `t`."""
    wide = t if t.dtype is turn.dtype.to_real() else t.to(turn.dtype.to_real())
    pairs = torch.view_as_complex(wide.contiguous().view(*t.shape[:-1], t.shape[-1] // 2, 2))
    turned = torch.view_as_real(pairs * turn).flatten(-2)
    return turned if turned.dtype is t.dtype else turned.to(t.dtype)


def make_pass_cache(angles: Tensor) -> Tensor:
    """Return the angles for the layers of one pass, which compute the rotation once."""
    if torch.compiler.is_compiling():
        return angles
    angles = angles.view_as(angles)  # what is kept beside it must not outlive the pass
    angles.known_turns = {}  # pyright: ignore[reportAttributeAccessIssue]  tensors take attributes
    return angles


def cos_and_sin(freqs: Tensor, scale: Maybe[Tensor | float], t: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angles for the tokens of `t`, one per pair of channels, times the scale."""
    length = t.shape[-2]
    angles = with_heads(freqs[..., -length:, ::2], t).to(dtype)
    cos, sin = angles.cos(), angles.sin()
    if torch.is_tensor(scale):
        scale = with_heads(scale[..., -length:, ::2], t).to(dtype)
    elif scale is None or scale == 1:
        return cos, sin
    return cos * scale, sin * scale


def with_heads(angles: Tensor, t: Tensor) -> Tensor:
    """Angles (b n r) beside heads (b h n d)."""
    return angles.unsqueeze(1) if t.ndim == 4 and angles.ndim == 3 else angles


# features of attention


class Rotary(AttentionFeature):
    """Rotate pairs of channels of queries and keys:  (x + iy) e^(i p theta),  p the position.

    The scores then depend on relative distances only.
    """

    paper = 'RoFormer, arXiv:2104.09864'
    rotate_num_heads = flag(None, 'number of heads that are rotated, the last ones; None: all', size | none, example=2)
    rotary_factor = flag(1.0, 'factor of the rotated channels, in queries and in keys', positive, example=1.2)
    always = False
    call_inputs = {
        'rotary_pos_emb': Input('(angles (1 or b) j r, scale)', rotary_angles),
        'context_rotary_pos_emb': Input('(angles (1 or b) j r, scale), of the keys of a context', rotary_angles),
        'kept_angles': Input(
            'a Buffer with the angles of all cached and new tokens: the cache stores rotated keys', instance_of(Buffer)
        ),
    }
    allows_eviction = True
    sets_on_module = ('rotate_num_heads',)
    states = {'angles': PerToken(derived=True)}
    tp_shards = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    def setup(self, owner: Any) -> None:
        heads, own = owner.shape.heads, self.rotate_num_heads
        if own is not None and own > heads:
            raise ConfigError(f'`rotate_num_heads` must be at most `heads`, {heads}, got {own}')
        if own is not None and own < heads and owner.shape.kv_heads < heads:
            raise ConfigError(
                '`rotate_num_heads` cannot be combined with `kv_heads`: a key '
                'head would serve rotated and other queries'
            )
        subheads = owner.features.find(RopeSubheads)
        owner.rotate_num_heads = own or (heads if subheads is None else subheads.latent_rope_subheads)

    def rotate_new(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        """Turn new keys before they are cached, so that each is turned once."""
        kept = call.inputs.get('kept_angles')
        if kept is None:
            return qk
        for feature in self.owner.features.active:
            if feature.keeps_unrotated_keys:
                return qk
        (q, k), (angles, _) = qk, call.inputs['rotary_pos_emb']
        new = k.shape[-2] - call.memories
        if call.past is not None and call.past.changed_by is None:
            held = kept.tensor[:, : kept.length - new]
            keys, *rest = call.past.buffers
            call.past = KeysValues((keys.map(lambda t: self.turned(t, held)), *rest), call.past.states)
        call.changed_by, call.new_states['angles'] = self, kept  # the stack has appended to it
        ahead = angles if call.memories == 0 else torch.cat((angles[:, : call.memories], angles[:, -new:]), dim=1)
        own = angles if call.token_idx is None else call.of_queries(angles, -2)
        return self.turned(q, own), self.turned(k, ahead)

    def rotate(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        own = call.inputs.get('rotary_pos_emb')
        if own is None or call.changed_by is self:
            return qk
        q, k = qk
        angles, scale = own
        count = q.shape[-2] if call.token_idx is None else call.tokens.shape[1]
        if angles.shape[-2] < count:
            raise ValueError(f'`rotary_pos_emb` got angles for {angles.shape[-2]} positions, there are {count} queries')
        if call.token_idx is not None:
            angles, scale = (call.of_queries(t, -2) if torch.is_tensor(t) and t.ndim > 1 else t for t in own)
        q = self.turned(q, angles, scale)
        other = own if call.context is None else call.inputs.get('context_rotary_pos_emb')
        if other is None:
            raise ValueError('`context_rotary_pos_emb` is missing: with `rotary_pos_emb`, a context needs angles too')
        angles, scale = other
        if angles.shape[-2] < k.shape[-2]:
            raise ValueError(f'the rotary angles cover {angles.shape[-2]} positions, the keys have {k.shape[-2]}')
        return q, self.turned(k, angles, 1.0 if scale is None else scale**-1)

    def restored(self, k: Tensor, states: Mapping[str, Any]) -> Tensor:
        """Keys as they were before they were turned."""
        return self.turned(k, -states['angles'].tensor, self.rotary_factor**-2)

    def turned(self, t: Tensor, angles: Tensor, scale: Tensor | float | None = 1.0) -> Tensor:
        if self.rotary_factor != 1:
            scale = self.rotary_factor if scale is None else scale * self.rotary_factor
        still = self.owner.heads - self.owner.rotate_num_heads
        if still == 0:
            return self.owner._rotate(t, angles, scale)
        return torch.cat((t[:, :still], self.owner._rotate(t[:, still:], angles, scale)), dim=1)


# features of a stack


class GivenAngles(StackFeature):
    """Position angles passed by the caller, used in all self-attention layers instead of those of the stack."""

    call_inputs = {
        'rotary_pos_emb': Input('(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them'),
        'polar_pos_emb': Input('(angles (1 or b) j d, shifts of the keys h 1 d)'),
    }

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        for name in self.call_inputs:
            given, keys = call.inputs.get(name), call.memories + call.tokens
            if given is None:
                continue
            if not isinstance(given, (tuple, list)) or len(given) != 2 or not torch.is_tensor(given[0]):
                raise TypeError(f'`{name}` must be a pair, of which the first are angles, got {format_value(given)}')
            if given[0].shape[-2] < keys:
                raise ValueError(
                    f'`{name}` got angles for {given[0].shape[-2]} positions, '
                    f'there are {keys} keys (prepend_embeds, memory tokens and mems included)'
                )
            call.shared['a'][name] = tuple(given)
        return x


a_base = Check('a number greater than 1', lambda value: is_number(value) and value > 1, 'float')


def turns_a_layer(value: Any) -> bool:
    known = isinstance(value, Mapping) and value.keys() <= {'theta', 'scaling'}
    return isinstance(value, bool) or (known and a_base.test(value.get('theta', 2)))


class RotaryPositions(StackFeature):
    """Rotary position embeddings (RoPE) in all self-attention layers of a stack."""

    paper = 'RoFormer, arXiv:2104.09864'
    rotary_pos_emb = flag(False, 'rotate queries and keys by their positions (RoPE)')
    rotary_emb_dim = flag(None, 'number of rotated channels per head, half of the head if None', size | none, example=4)
    rotary_theta = flag(
        10000.0,
        'base of the frequencies: pair i of r channels has frequency theta ** (-2 i / r)',
        a_base,
        example=100.0,
    )
    rotary_scaling = flag(
        None,
        "frequency scaling for longer contexts, a dict with `kind` ('linear', 'dynamic', 'yarn', 'longrope', 'llama3' "
        "or 'proportional') and its parameters",
        a_scaling | none,
        example=dict(kind='llama3', factor=4.0, low=1.0, high=4.0, length=8),
    )
    rotary_xpos = flag(False, 'also decay the scores with distance (xPos)')
    rotary_xpos_scale_base = flag(512, 'length scale of the xPos decay, in tokens', positive, example=64)
    rotary_interpolation_factor = flag(
        1.0,
        'divisor of the positions (position interpolation); a negative one rotates backwards',
        Check('a number of at least 1, or at most -1', lambda v: is_number(v) and abs(v) >= 1, 'float'),
        example=2.0,
    )
    rotary_base_rescale_factor = flag(1.0, 'NTK-aware factor of the base, for longer contexts', positive, example=2.0)
    rotate_num_heads = Rotary.flags['rotate_num_heads']
    call_inputs = {'context_pos': Input('m | b m', get_tensor('m | b m'))}
    stored_as = {'angles': 'rotary_pos_emb'}
    switches = ('rotary_pos_emb', 'rotary_xpos')
    requires_flag = {'rotary_xpos_scale_base': 'rotary_xpos'}
    states = {'positions': PerToken(derived=True), 'angles': PerToken(derived=True)}
    gives_positions = True
    tp_shards = {}

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        own = {}
        if kind == 'a' and self.rotate_num_heads is not None:
            own['rotate_num_heads'] = self.rotate_num_heads
        if kind in ('a', 'c') and self.sets[0].factor != 1:
            own['rotary_factor'] = self.sets[0].factor
        return {**flags, **own}

    def setup(self, owner: Any) -> None:
        if self.rotary_xpos and not owner.causal:
            raise ConfigError('`rotary_xpos` needs `causal`: its decay looks backwards only')
        of_latents = turning_features(owner)
        width = self.rotary_emb_dim or of_latents or max(1, owner.attn_dim_head // 2)
        if of_latents not in (None, width):
            raise ConfigError(f'`rotary_emb_dim` must be `attn_dim_latent_rope`, {of_latents}, got {width}')
        if width + width % 2 > owner.attn_dim_head:
            why = ': features turn in pairs' if width % 2 else ''
            raise ConfigError(
                f'`rotary_emb_dim` must be at most the head width, {owner.attn_dim_head}{why}, got {width}'
            )
        if width < 32 and owner.verbose:
            warn_once(f'rotary positions rotate {width} channels per head: fewer than 32 make models worse')
        self.angles = RotaryEmbedding(
            width,
            use_xpos=bool(self.rotary_xpos),
            scale_base=self.rotary_xpos_scale_base,
            interpolation_factor=self.rotary_interpolation_factor,
            base=self.rotary_theta,
            base_rescale_factor=self.rotary_base_rescale_factor,
            scaling=self.rotary_scaling,
        )
        self.use([self.angles.frequencies])

    def use(self, sets: list[Frequencies]) -> None:
        """Turn layers by these: the first is that of the module."""
        self.sets = sets
        if self.rereads:
            self.states = {**type(self).states, 'stage': PerToken()}

    @property
    def follows_length(self) -> bool:
        return any(one.longest is not None for one in self.sets)

    counts_tokens: Any = follows_length

    @property
    def rereads(self) -> list[int]:
        """The lengths past which earlier tokens turn otherwise too."""
        return [one.longest for one in self.sets if one.longest is not None and not one.keeps_turned]

    def stage_of(self, lengths: Any) -> Any:
        """A number that changes where rows of these lengths turn earlier tokens otherwise.

        Beside a set for which rows are read again, those that keep what is turned cannot: other rows of a batch would
        decide when a row is read again.
        """
        limits = [(one.longest, one.keeps_turned) for one in self.sets if one.longest is not None]
        return sum((lengths > most) * (lengths - most if keeps else 1) for most, keeps in limits)

    def starts_over(self, cache: Any, count: int, pads: Tensor | None) -> bool:
        """Return True if generation has to read all tokens again.

        A cache in the caller's hands keeps what dynamic scaling has turned; generation does not depend on its cache.
        """
        kept, known = (
            next((state for name, state in cache.states.items() if name.rpartition(': ')[2] == wanted), None)
            for wanted in ('stage', 'positions')
        )
        lengths = cache.num_seen_tokens + count - (0 if pads is None else pads)
        if known is not None and known.length:  # Padding that a mask hides has no part in them.
            lengths = known.tensor[:, -1, 0] + 1 + count
        stage = torch.as_tensor(self.stage_of(lengths))
        if not self.rereads:
            return bool(stage.any())
        return kept is not None and kept.length > 0 and bool((kept.tensor[:, -1, 0] != stage).any())

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        own, centred, lengths = call.shared['a'].get('rotary_pos_emb'), {'centre': 0}, None
        continues = call.cache_len == 0 or self.goes_on(x, call)
        if own is not None:
            call.shared['a']['rotary_pos_emb'] = make_pass_cache(own[0]), own[1]
        elif not self.rotary_xpos and continues and (call.keeps or call.cache is not None):
            lengths = self.share_kept_angles(x, call)
        else:
            positions = self.positions_of(x, call)
            if self.rotary_xpos:
                positions, centred = self.centred(positions, x, call)
            lengths = self.lengths(positions, x, call)
            several, scale = self.angles_of(positions, lengths, **centred)
            self.share(call, [(angles, scale if at == 0 else 1.0, None) for at, angles in enumerate(several)])
        context_pos = call.inputs.get('context_pos')
        if context_pos is not None:
            given, wanted = context_pos.shape[-1], call.context_length
            if given != wanted:
                raise ValueError(f'`context_pos` got {given} positions, the context has {wanted}')
            if lengths is not None and lengths.ndim == 2:
                raise ValueError(
                    '`context_pos` cannot be combined with packed documents where `rotary_scaling` depends '
                    'on the length: keys of a context turn by the length of one row'
                )
            call.shared['c']['rotary_pos_emb'] = call.shared['a']['rotary_pos_emb']
            call.shared['c']['context_rotary_pos_emb'] = self.angles_of_first(context_pos, lengths, **centred)
        return x

    def centred(self, positions: Tensor, x: Tensor, call: Any) -> tuple[Tensor, dict[str, Any]]:
        """Positions of the keys, hidden ones replaced, and where the scale of xPos is 1: at the first token of a row.
        With the middle, keys without a scale (learned ones) would reveal the length; with 0, rows that begin far away
        would overflow."""
        reach = REACH_IN_FLOAT16 if dtype_of_products(x) == torch.float16 else REACH
        longest = int(reach * self.rotary_xpos_scale_base)
        if call.shared['a'].get('pos') is None:
            if call.memories + call.tokens > longest:
                where = ' in float16' if reach < REACH else ''
                raise ValueError(
                    f'`rotary_xpos` overflows past {longest} positions{where}, raise `rotary_xpos_scale_base`'
                )
            centre = 0 if call.left_pad is not None else call.past_len - call.cache_len
            return positions, dict(centre=centre, reach=reach)
        centre = first_positions(positions[..., call.memories :], call.token_mask).reshape(-1, 1)
        if call.token_mask is not None:
            token_mask = F.pad(call.token_mask, (positions.shape[-1] - call.token_mask.shape[1], 0), value=True)
            positions = torch.where(token_mask, positions, centre)
        return positions, dict(centre=centre, reach=reach)

    @staticmethod
    def share(call: Any, sets: list[tuple[Tensor, Any, Buffer | None]]) -> None:
        """Give layers the angles of each set, with their scale, and what is kept of them."""
        given = [
            {'rotary_pos_emb': (make_pass_cache(angles), scale), **({} if kept is None else {'kept_angles': kept})}
            for angles, scale, kept in sets
        ]
        call.shared['a'].update(given[0])
        if len(given) > 1:
            call.shared['turns'] = dict(enumerate(given))  # of which `RotaryLayers` hands out one

    @staticmethod
    def goes_on(x: Tensor, call: Any) -> bool:
        """Return True if positions go on from the kept ones."""
        kept = call.state('positions').past
        # rows that the user repeated or took out of `cached_kv` are not those whose positions were kept
        same = kept is not None and kept.batch == x.shape[0] and kept.length == call.cache_len
        # else an offset moves all of them; what is one tensor is equal without a look at it
        past_len = call.cache.num_seen_tokens
        return same and (call.past_len is past_len or bool(call.past_len == past_len))

    def angles_of(
        self, positions: Tensor, lengths: Tensor | None = None, centre: int | Tensor = 0, reach: float = REACH
    ) -> tuple[list[Tensor], Any]:
        """The angles of each set, and the scale of the first."""
        first, scale = self.angles_of_first(positions, lengths, centre, reach)
        return [first, *(self.angles.angles_by(one, positions, lengths) for one in self.sets[1:])], scale

    def angles_of_first(
        self, positions: Tensor, lengths: Tensor | None, centre: int | Tensor = 0, reach: float = REACH
    ) -> tuple[Tensor, Any]:
        """Return the angles that the module gives, and their scale. A user's module need not take further keywords."""
        inputs: dict[str, Any] = dict(centre=centre, lengths=lengths, reach=reach)
        if is_of_others(self.angles):
            inputs = inputs_taken_by(self.angles, inputs, idle=(None, centre, reach))
        return self.angles(positions, **inputs)

    def share_kept_angles(self, x: Tensor, call: Any) -> Tensor | None:
        """Share angles of all keys, and return their `lengths`. Only those of new tokens are computed; positions go on
        from the kept ones."""
        if call.cache_len and call.shared['a'].get('pos') is None:
            positions = call.state('positions').vectors[:, -1:, 0] + torch.arange(1, call.new_len + 1, device=x.device)
        else:
            positions = self.positions_of(x, call)[..., call.memories + call.cache_len :]
        known = self.kept(call, 'positions', positions.unsqueeze(-1), x)
        lengths = self.lengths(known.tensor[..., 0], x, call)
        several, _ = self.angles_of(positions, lengths)
        front = self.angles_of(self.positions_of(x, call)[..., : call.memories], lengths)[0] if call.memories else None
        sets = []
        for at, angles in enumerate(several):
            kept = self.kept(call, 'angles', angles, x, at)
            everything = kept.tensor if call.cache_len else angles
            if front is not None:
                everything = torch.cat((front[at].expand(everything.shape[0], -1, -1), everything), dim=1)
            sets.append((everything, 1.0, kept))
        self.share(call, sets)
        return lengths

    @staticmethod
    def kept(call: Any, name: str, rows: Tensor, x: Tensor, at: int = 0) -> Buffer:
        """Rows of new tokens behind those that are kept."""
        rows, state = rows.expand(x.shape[0], *rows.shape[-2:]).contiguous(), call.state(name, at or None)
        return state.store(state.past.append(rows)) if call.cache_len else state.begin(rows)

    def positions_of(self, x: Tensor, call: Any) -> Tensor:
        """Return the positions of all keys, (j) or (b, j).

        Where frequencies depend on the length, they are counted from the least position of the real tokens of a row, so
        that padding in front of them does not count.
        """
        positions = call.key_positions(x)
        if not self.follows_length or call.new_len == 0:
            return positions
        own = positions[..., call.memories :]
        if call.token_mask is None:
            return positions - own.amin(dim=-1, keepdim=True)
        hidden = ~call.token_mask[:, call.token_mask.shape[1] - own.shape[-1] :]
        behind = own.amax(dim=-1, keepdim=True) + 1
        least = own.where(~hidden, behind).amin(dim=-1, keepdim=True)
        return positions - least.where(least < behind, 0)

    def lengths(self, positions: Tensor, x: Tensor, call: Any) -> Tensor | None:
        """Return how many tokens each row has, (1 or b), or the document of each token, (b, j), by the positions of all
        keys. None if no frequency depends on it."""
        if not self.follows_length or positions.shape[-1] == 0:
            return None
        if call.documents is not None:
            return lengths_of_documents(positions, call.documents, call.token_mask)
        if call.token_mask is not None:
            token_mask = F.pad(call.token_mask, (positions.shape[-1] - call.token_mask.shape[1], 0), value=True)
            positions = positions.masked_fill(~token_mask, -1)
        lengths = positions.amax(dim=-1).reshape(-1) + 1
        if self.rereads and (call.keeps or call.cache is not None):
            stage = self.stage_of(lengths).expand(x.shape[0])
            self.refuse_other_stage(stage, call)
            self.kept(call, 'stage', stage.reshape(-1, 1, 1).expand(-1, call.new_len, -1), x)
        return lengths

    def refuse_other_stage(self, stage: Tensor, call: Any) -> None:
        """Earlier tokens were read by other frequencies, in every layer: to turn their keys is not enough."""
        known = call.state('stage').vectors if call.cache_len else None
        words = (
            f'`cache` holds tokens that `rotary_scaling` turns otherwise, now that there are more, or fewer, than '
            f'{" or ".join(map(str, self.rereads))}: read all of them again, without it'
        )
        if known is not None and is_exporting():
            torch._assert_async((known[:, -1, 0] == stage).all(), words)  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
        readable = can_read_values(stage) or stage.device.type == 'cuda'
        if known is None or torch.compiler.is_compiling() or not readable:
            return
        if bool((known[:, -1, 0] != stage).any()):
            raise ValueError(words)


class RotaryLayers(StackFeature):
    """Rotary settings per self-attention layer: rotated or not, and with which frequencies."""

    paper = 'Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466'
    rotary_layers = flag(
        None,
        'one value per self-attention layer: True, False for no rotation, or a dict with another `theta` or `scaling`',
        each(
            Check(
                f'True, False or a dict with `theta`, {a_base.words}, `scaling` or both',
                turns_a_layer,
                'bool | Mapping[str, Any]',
            )
        )
        | none,
        example=(False, dict(theta=100.0)),
    )
    needs = {'rotary_pos_emb': 'it selects the layers that use these positions'}
    clashes = {'rotary_xpos': 'the xPos decay is not defined for layers with other frequencies'}
    tp_shards = {}

    def setup(self, owner: Any) -> None:
        layers, given = [index for index, kind in enumerate(owner.layer_types) if kind == 'a'], len(self.rotary_layers)
        if given != len(layers):
            raise ConfigError(f'`rotary_layers` must have one per layer, {len(layers)}, got {given} values')
        positions = owner.features.find(RotaryPositions)
        self.sets = [*positions.sets]
        self.numbers = [self.number(one, positions) for one in self.rotary_layers]
        # of which set each layer is; None for none
        self.set_of = dict(zip(layers, self.numbers, strict=True))
        positions.use(self.sets)

    def number(self, wanted: bool | Mapping[str, Any], positions: RotaryPositions) -> int | None:
        """Return which set a layer turns by, a new one if it is not there yet."""
        if isinstance(wanted, bool):
            return 0 if wanted else None
        theta, first = wanted.get('theta', positions.rotary_theta), self.sets[0]
        theta *= first.theta / positions.rotary_theta  # `rotary_base_rescale_factor`
        own = Frequencies(first.dim, theta, wanted.get('scaling'), 'scaling` in `rotary_layers')
        if own not in self.sets:
            self.sets.append(own.without_table())
        return self.sets.index(own)

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        at = self.numbers[number] if kind == 'a' else None
        return flags if at is None else {**flags, 'rotary_factor': self.sets[at].factor}

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        at = self.set_of.get(layer.index, 0)
        if at == 0 or 'rotary_pos_emb' not in inputs:
            return inputs
        if at is None:
            return {name: value for name, value in inputs.items() if name not in ('rotary_pos_emb', 'kept_angles')}
        return {**inputs, **call.shared.get('turns', {}).get(at, {})}  # the user's angles are those of all

    def turns(self, call: Any) -> dict[int, Tensor | None]:
        """By which angles the layers of a pass turn, None for none."""
        first, sets = call.shared['a'].get('rotary_pos_emb'), call.shared.get('turns', {})
        each = {at: sets[at]['rotary_pos_emb'][0] if at in sets else first[0] for at in {*self.numbers} - {None}}
        return {index: each.get(at) for index, at in self.set_of.items()}
