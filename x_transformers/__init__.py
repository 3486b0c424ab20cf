"""A concise, complete and fast transformer library. Every paper is a keyword."""

from x_transformers.attention_pool import AttentionPool
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.continuous import ContinuousAutoregressiveWrapper, ContinuousTransformerWrapper
from x_transformers.features.layouts import layer_schedule
from x_transformers.features.norms import AdaptiveRMSNorm, RMSNorm
from x_transformers.x_transformers import (
    Attention,
    AttentionLayers,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    PrefixDecoder,
    TransformerBlock,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)

__version__ = '0.1.0'

__all__ = [
    'AdaptiveRMSNorm',
    'Attention',
    'AttentionLayers',
    'AttentionPool',
    'AutoregressiveWrapper',
    'ContinuousAutoregressiveWrapper',
    'ContinuousTransformerWrapper',
    'CrossAttender',
    'Decoder',
    'Encoder',
    'FeedForward',
    'PrefixDecoder',
    'RMSNorm',
    'TransformerBlock',
    'TransformerWrapper',
    'ViTransformerWrapper',
    'XTransformer',
    'layer_schedule',
]
