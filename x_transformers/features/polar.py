"""Polar positions (PoPE), and sinusoids added to the inputs of queries and keys (position-infused attention)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.core.modes import at_least_float
from x_transformers.features.levels import AttentionFeature, StackFeature, uses
from x_transformers.features.positions import KeepsPrecision, angles_at
from x_transformers.features.rotary import with_heads
from x_transformers.flags import ConfigError, Input, flag
from x_transformers.flags.checks import get_pair, is_floating
from x_transformers.kernels.dense import tile_heads


class PolarEmbedding(KeepsPrecision):
    """The angles of polar positions, one per channel, and a learned shift of them for the keys of each head.

        pos      n | b n                         positions
        returns  (1 or b) n d,  h 1 d            angles p base^(-k / d) modulo 2 pi, and shifts from -2 pi to 0

    Gopalakrishnan et al. 2025, arXiv:2509.10534
    """

    inv_freq: Any

    def __init__(self, dim: int, heads: int, bias_uniform_init: bool = False, base: float = 10000) -> None:
        super().__init__()
        bias = torch.zeros(heads, 1, dim)
        self.learned_bias = nn.Parameter(bias.uniform_(-2 * math.pi, 0) if bias_uniform_init else bias)
        self.register_buffer('inv_freq', base ** -(torch.arange(dim).float() / dim))

    def forward(self, t: Tensor, offset: int = 0) -> tuple[Tensor, Tensor]:
        pos = t.unsqueeze(0) if t.ndim == 1 else t
        angles = angles_at(pos.unsqueeze(-1), self.inv_freq, self.inv_freq.dtype)
        return angles, self.learned_bias.clamp(-2 * math.pi, 0)


class InfusedSinusoids(KeepsPrecision):
    """Unscaled sinusoids of positions, first sines, then cosines:  positions (...) -> (..., d).  arXiv:2012.15832"""

    inv_freq: Any

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise ConfigError(f'`dim` must be even for `position_infused_attn`, got {dim}')
        self.register_buffer('inv_freq', 10000 ** -(torch.arange(0, dim, 2).float() / dim))

    def forward(self, pos: Tensor) -> Tensor:
        angles = angles_at(pos.unsqueeze(-1), self.inv_freq, self.inv_freq.dtype)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)


# features of attention


class Polar(AttentionFeature):
    """Magnitudes from content, angles from positions:  q -> softplus(q) e^(i p theta), keys shifted by a learned angle.

    Real and imaginary parts are concatenated, so that queries and keys become twice as wide.
    """

    paper = 'PoPE, arXiv:2509.10534'
    call_inputs = {
        'polar_pos_emb': Input(
            '(angles (1 or b) j d, shifts of the keys h 1 d)',
            get_pair('(angles, shifts), tensors', is_floating, is_floating),
        ),
    }
    tp_shards = {}
    tp_input_shards = {'polar_pos_emb': (None, 'h i d')}

    def rotate(self, qk: tuple[Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor]:
        given = call.inputs.get('polar_pos_emb')
        if given is None:
            return qk
        if call.context is not None:
            raise ValueError('`polar_pos_emb` cannot be combined with a context: it has positions of one sequence only')
        q, k = qk
        angles, shift = given
        if angles.shape[-2] < k.shape[-2]:
            raise ValueError(f'`polar_pos_emb` covers {angles.shape[-2]} positions, there are {k.shape[-2]} keys')
        angles = with_heads(angles[..., angles.shape[-2] - k.shape[-2] :, :], q)
        return self.turned(q, call.of_queries(angles, -2)), self.shifted(k, angles + shift)

    def extra_keys(self, k: Tensor, call: Any) -> Tensor:
        """Keys that no token gave have no position, only the shift."""
        given = call.inputs.get('polar_pos_emb')
        return k if given is None else self.shifted(k, given[1])

    def shifted(self, k: Tensor, angles: Tensor) -> Tensor:
        """Every query head sees a shared key with a shift of its own."""
        return self.turned(tile_heads(k, self.owner.heads), angles)

    @staticmethod
    def turned(t: Tensor, angles: Tensor) -> Tensor:
        dtype = at_least_float(torch.promote_types(t.dtype, angles.dtype))
        # in one piece: torch's compiler expects a gradient of softplus laid out as its input, which need not be so
        sizes, angles = F.softplus(t.to(dtype).contiguous()), angles.to(dtype)
        return torch.cat((sizes * angles.cos(), sizes * angles.sin()), dim=-1).to(t.dtype)


def apply_polar_pos_emb(t: Tensor, freqs: Tensor) -> Tensor:
    """Queries or keys ([b h] n d) turned by the last n angles ([b] n d):  [b h] n 2d"""
    n = t.shape[-2]
    return Polar.turned(t, with_heads(freqs.narrow(-2, freqs.shape[-2] - n, n), t))


class InfusedPositions(AttentionFeature):
    """Add sinusoids of the positions to the inputs of queries and keys, not to the input of the values."""

    paper = 'Shortformer, arXiv:2012.15832'
    call_inputs = {
        'infused_positions': Input(
            '(module from positions to vectors, positions j | b j)',
            get_pair('(module, positions)', callable, torch.is_tensor),
        ),
    }
    tp_shards = {}

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        given = call.inputs.get('infused_positions')
        if given is None:
            return qkv
        q, k, v = qkv
        module, pos = given
        # the first real memory is at 0, so that a segment behind its memories is the end of the whole
        mask = call.inputs.get('mem_mask')
        pos = pos + (call.memories if mask is None else mask.sum(dim=-1, keepdim=True))
        embedded = module(pos).to(q.dtype)
        embedded = embedded if embedded.ndim == 3 else embedded.unsqueeze(0)
        new = embedded[:, embedded.shape[1] - (k.shape[1] - call.memories) :]
        return q + call.of_queries(new, -2), k + torch.cat((embedded[:, : call.memories], new), dim=1), v


# features of a stack


class PolarPositions(StackFeature):
    """Polar position embeddings (PoPE) in all self-attention layers of a stack.

    q -> softplus(q) e^(i p theta)          one angle per channel; keys are shifted by a learned angle
    """

    paper = 'PoPE, arXiv:2509.10534'
    polar_pos_emb = flag(False, 'polar positions: magnitudes from content, angles from positions')
    polar_bias_uniform_init = flag(False, 'initialize the angle shift of the keys uniformly at random, not with zeros')
    clashes = dict.fromkeys(('rotary_pos_emb', 'rotary_xpos'), 'both rotate queries and keys by their positions')
    stored_as = {'module': 'polar_pos_emb'}
    gives_positions = True
    refuses = {'several devices': 'its angle shifts are per head'}

    def setup(self, owner: Any) -> None:
        self.module = PolarEmbedding(owner.attn_dim_head, owner.attn_heads, bool(self.polar_bias_uniform_init))

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        if call.shared['a'].get('polar_pos_emb') is None:
            call.shared['a']['polar_pos_emb'] = self.module(call.key_positions(x))
        return x


class PositionInfused(StackFeature):
    """Add sinusoids of the positions to the inputs of queries and keys in every self-attention layer.

    The residual stream and the values are not changed.
    """

    paper = 'Shortformer, arXiv:2012.15832'
    position_infused_attn = flag(False, 'add sinusoidal positions to the inputs of queries and keys')
    stored_as = {'module': 'pia_pos_emb'}
    gives_positions, counts_from = True, 'call'

    def setup(self, owner: Any) -> None:
        if uses(owner, 'use_latent_kv'):
            raise ConfigError(
                '`position_infused_attn` cannot be combined with `attn_use_latent_kv`: values share its latent'
            )
        self.module = InfusedSinusoids(owner.dim)

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        call.shared['a']['infused_positions'] = (self.module, call.key_positions(x))
        return x
