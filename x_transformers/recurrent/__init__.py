"""Recurrent modules: layers whose past is a state of fixed size.

    RWKVTimeMix           'rwkv'         sums of values by their keys, that fade at a rate of each channel
    DiagonalSSM           'ssm'          a linear state-space model with a diagonal matrix
    ShortConvolution      'short_conv'   a gated convolution over the last few tokens
    GatedDelta            'gated_delta'  the gated delta rule: states fade, and correct what they give for each key
    GatedDelta            'kda'          the same with a decay of each channel: Kimi delta attention
    GatedLinearAttention  'gla'          sums of values by their keys, with a decay of each channel
    LightningAttention    'lightning'    sums of values by their keys, with a fixed decay of each head
    Mamba2                'mamba2'       a state-space model with one decay of each head and token
    Mamba                 'mamba'        a state-space model whose steps, inputs and outputs depend on the token
    GriffinBlock          'rg_lru'       Griffin's block: a gated linear recurrence of each channel
    MatrixLSTM            'mlstm'        sums of values by their keys, with exponential gates: the mLSTM of xLSTM
    RWKVChannelMix                       a feedforward that also reads the token before

Each maps x (b n dim) and a state, None at the beginning, to a pair of its output (b n dim_out) and the state that it
leaves. `mask` (b n) says which tokens are real: others are passed over. `document_ids` (b n) which tokens belong
together: others know nothing of one another. They stand in place of attention, as layers of kind 'r', or beside it, as
`attn_hybrid_module`:  Decoder(dim=64, custom_layers=('r', 'f') * 6, recurrent_module='rwkv').
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from x_transformers.flags import ConfigError, did_you_mean
from x_transformers.recurrent.base import Recurrent
from x_transformers.recurrent.convolution import ShortConvolution
from x_transformers.recurrent.gated import GatedDelta, GatedLinearAttention, LightningAttention
from x_transformers.recurrent.griffin import GriffinBlock
from x_transformers.recurrent.mamba import Mamba
from x_transformers.recurrent.mamba2 import Mamba2
from x_transformers.recurrent.rwkv import RWKVChannelMix, RWKVTimeMix
from x_transformers.recurrent.ssm import DiagonalSSM
from x_transformers.recurrent.xlstm import MatrixLSTM

__all__ = [
    'MODULES',
    'DiagonalSSM',
    'GatedDelta',
    'GatedLinearAttention',
    'GriffinBlock',
    'LightningAttention',
    'Mamba',
    'Mamba2',
    'MatrixLSTM',
    'RWKVChannelMix',
    'RWKVTimeMix',
    'Recurrent',
    'ShortConvolution',
    'build_module',
]

MODULES: dict[str, Callable[..., nn.Module]] = {
    'rwkv': RWKVTimeMix,
    'ssm': DiagonalSSM,
    'short_conv': ShortConvolution,
    'gated_delta': GatedDelta,
    'kda': partial(GatedDelta, decay='channel', decay_rank='dim_head', gate='sigmoid', gate_rank='dim_head'),
    'gla': GatedLinearAttention,
    'lightning': LightningAttention,
    'mamba2': Mamba2,
    'mamba': Mamba,
    'rg_lru': GriffinBlock,
    'mlstm': MatrixLSTM,
}


def build_module(flag: str, name: str, dim: int, keywords: Mapping[str, Any], **own: Any) -> nn.Module:
    """Build the recurrent module of a name.

    Args:
        flag: name of the flag whose value the keywords are, for errors
        name: one of `MODULES`
        dim: width of its input
        keywords: further keywords of its class
        own: keywords that the caller sets, of which those that the class does not have are left out

    Raises:
        ConfigError: keywords that the class does not have, or values that it does not take.
    """
    known = list(inspect.signature(MODULES[name]).parameters)
    own = {key: value for key, value in own.items() if key in known}
    free = [key for key in known if key not in ('dim', 'dim_out', 'place')]
    for key in keywords:
        if key not in free:
            listed = ', '.join(f'`{one}`' for one in free) or 'no keywords'
            raise ConfigError(f'`{flag}` of {name!r} may have {listed}, got `{key}`{did_you_mean(key, free)}')
    return MODULES[name](dim, **own, **keywords)
