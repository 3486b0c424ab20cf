"""Absolute position embeddings and attention windows. Rotations are in `rotary.py`, biases in `biases.py`.

Everything there and here is a function of the positions of queries and keys, so that caches, memories, left padding and
positions passed by the user need no special cases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import check_offset, check_range, is_past, positions_from
from x_transformers.core.modes import at_least_float
from x_transformers.core.rows import Pointwise, Rows, of_each
from x_transformers.features.biases import (  # noqa: F401  names that other code imports from here
    Alibi,
    AlibiPositionalBias,
    AttnBias,
    DynamicBias,
    DynamicPositionBias,
    PositionBias,
    RelativeBias,
    RelativePositionBias,
    SharedBias,
    SplitAlibi,
    StackBias,
    T5Bias,
    distances,
)
from x_transformers.features.levels import AttentionFeature, uses  # noqa: F401
from x_transformers.features.norms import l2norm
from x_transformers.features.rotary import (  # noqa: F401
    GivenAngles,
    Rotary,
    RotaryEmbedding,
    RotaryLayers,
    RotaryPositions,
    apply_rotary_pos_emb,
    for_one_pass,
    is_one,
    with_heads,
)
from x_transformers.features.tables import (  # noqa: F401
    DENOMINATORS,
    KeepsPrecision,
    Placed,
    constant,
    sinusoids,
)
from x_transformers.flags import ConfigError, count, flag, none
from x_transformers.flags.checks import Maybe

# vectors added to the input


def positions_of(
    length: int, pos: Tensor | None, seq_start_pos: Tensor | None, offset: int | Tensor, device: Any
) -> Tensor:
    """Positions (n,) or (b n), counted from the first real token of each row, never below 0."""
    if pos is None:
        pos = positions_from(offset, length, device)
    return pos if seq_start_pos is None else (pos - seq_start_pos[:, None]).clamp(min=0)


def no_positions(
    x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int | Tensor = 0
) -> int:
    """Stand in for a table, as `pos_emb` of a model that adds no positions: there is nothing to add."""
    return 0


class AbsolutePositionalEmbedding(nn.Module):
    """A learned vector per position times `scale`: by default dim ** -0.5, or 1 if `l2norm_embed` normalizes it.

    x        b n ...      only its length and device are used
    pos      n | b n      positions, 0.. if None
    offset                position of the first token, an integer or a tensor of one
    returns  n d | b n d
    """

    def __init__(self, dim: int, max_seq_len: int, l2norm_embed: bool = False, scale: float | None = None) -> None:
        super().__init__()
        self.scale = (1.0 if l2norm_embed else dim**-0.5) if scale is None else float(scale)
        self.max_seq_len, self.l2norm_embed = max_seq_len, l2norm_embed
        self.emb = nn.Embedding(max_seq_len, dim)

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int | Tensor = 0
    ) -> Tensor:
        length = x.shape[1]
        if type(offset) is not int:
            check_offset(offset, 'offset')
        if pos is None and is_past(offset + length, self.max_seq_len):
            raise ValueError(
                f'the sequence has {int(offset + length)} tokens, more than the table of absolute positions, '
                f'`max_seq_len={self.max_seq_len}`'
            )
        if pos is not None and seq_start_pos is None:
            check_range(pos, 'pos', 0, self.max_seq_len - 1, 'positions')
        embedded = self.emb(positions_of(length, pos, seq_start_pos, offset, x.device))
        embedded = l2norm(embedded) if self.l2norm_embed else embedded
        return embedded if self.scale == 1 else embedded * self.scale


class ScaledSinusoidalEmbedding(nn.Module):
    """Sinusoids of the position p, first sines, then cosines, times a scale, learned if None.  arXiv:1706.03762

        sin(p w_k), cos(p w_k),   w_k = theta ** (-k / n),   k = 0 .. dim / 2 - 1

    pos           n | b n      positions, 0.. if None
    offset                     position of the first token, an integer or a tensor of one
    denominator   n is dim / 2 if 'd', as 2 k / d has it; with 'half_minus_1', as in Whisper, dim / 2 - 1
    returns       n d | b n d
    """

    kind: Any

    def __init__(self, dim: int, theta: float = 10000, scale: float | None = None, denominator: str = 'd') -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f'the sinusoidal embedding got width {dim}, it must be even')
        if denominator not in DENOMINATORS:
            raise ConfigError(f'`denominator` got {denominator!r}, it must be one of {", ".join(DENOMINATORS)}')
        if denominator == 'half_minus_1' and dim < 4:
            raise ConfigError(f"`sinu_denominator='half_minus_1'` needs a width of at least 4, got {dim}")
        self.scale: Any = nn.Parameter(torch.full((1,), dim**-0.5)) if scale is None else float(scale)
        self.dim, self.theta, self.denominator = dim, theta, denominator
        if scale is not None:  # it holds nothing but the dtype and the device of the model
            self.register_buffer('kind', torch.empty(0), persistent=False)

    @property
    def like(self) -> Tensor:
        return self.scale if isinstance(self.scale, Tensor) else self.kind

    def forward(
        self, x: Tensor, pos: Tensor | None = None, seq_start_pos: Tensor | None = None, offset: int | Tensor = 0
    ) -> Tensor:
        check_offset(offset, 'offset')
        pos = positions_of(x.shape[1], pos, seq_start_pos, offset, x.device)
        vectors = sinusoids(pos, self.dim, self.theta, self.denominator, at_least_float(self.like.dtype))
        return vectors.to(self.like.dtype) * self.scale


# features of attention


class Window(AttentionFeature):
    """Sliding window: attend only to keys within a distance, backwards and (if not causal) forwards."""

    paper = 'Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663'
    max_attend_past = flag(
        None, 'number of earlier tokens that a query attends to, besides itself; all if None', count | none, example=3
    )
    max_attend_future = flag(
        None, 'number of later tokens that a query attends to in non-causal attention; all if None', count | none,
        example=1,
    )  # fmt: skip

    refuses = {'cross-attention': 'its distances are between tokens of one sequence'}
    switches = ('max_attend_past', 'max_attend_future')
    settles = ('max_attend_past',)
    is_band = True
    keys_may_leave = limits_sight = True
    cuts = {}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return any(values[name] is not None for name in cls.switches)

    def setup(self, host: Any) -> None:
        if host.causal and self.max_attend_future is not None:
            raise ConfigError('`max_attend_future` does not go with `causal`: no query attends to later tokens')
        host.max_attend_past = self.max_attend_past

    def reach_and_step(self, call: Any) -> tuple[int, int] | None:
        return None if self.max_attend_past is None else (self.max_attend_past, 1)

    def mask(self, call: Any) -> Rows:
        if call.context is not None:
            name = next(name for name in self.switches if getattr(self, name) is not None)
            raise ValueError(f'`{name}` does not go with a context: {self.reason("cross-attention")}')
        return window(call, self.max_attend_past, self.max_attend_future)


def window(call: Any, past: int | None, ahead: Maybe[int]) -> Rows:
    """Queries see no keys further back than `past`, and none further ahead than `ahead`; None is no bound."""
    index, own = call.k_at, call.q_at
    # with positions of its own per row, memories are nearer than they stand
    in_order = call.in_order('index')
    reach, reach_ahead = (past, ahead) if in_order else (None, None)

    def near(rows: slice, keys: slice) -> Tensor:
        behind = distances(own[..., rows], index[..., keys])
        mask = behind <= past if past is not None else behind >= -ahead
        mask = mask if past is None or ahead is None else mask & (behind >= -ahead)
        return mask if mask.ndim == 2 else mask.unsqueeze(1)

    def entry() -> Pointwise:
        first, last = (None if past is None else own - past), (None if ahead is None else own + ahead)
        return between(of_each(index), first, last)

    made_of = (past, ahead) if in_order else (past, ahead, index, own)
    return Rows(near, reach=reach, reach_ahead=reach_ahead, band=in_order, entry=entry, made_of=made_of)


def between(of_key: Callable[[Tensor, Tensor], Tensor], first: Maybe[Tensor], last: Tensor | None) -> Pointwise:
    """Whether the place of a key is none before the first and none behind the last one that a query sees."""
    if last is None:
        farthest = of_each(first)
        return lambda b, h, i, j: of_key(b, j) >= farthest(b, i)
    if first is None:
        latest = of_each(last)
        return lambda b, h, i, j: of_key(b, j) <= latest(b, i)
    farthest, latest = of_each(first), of_each(last)
    return lambda b, h, i, j: (of_key(b, j) >= farthest(b, i)) & (of_key(b, j) <= latest(b, i))
