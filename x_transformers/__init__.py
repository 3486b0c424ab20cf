"""A concise, complete and fast transformer library. Every paper is a keyword."""

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.continuous import ContinuousAutoregressiveWrapper, ContinuousTransformerWrapper
from x_transformers.features.norms import AdaptiveRMSNorm, RMSNorm
from x_transformers.x_transformers import (
    Attention,
    AttentionLayers,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    PrefixDecoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)

__version__ = '0.1.0'

__all__ = [
    'AdaptiveRMSNorm',
    'Attention',
    'AttentionLayers',
    'AutoregressiveWrapper',
    'ContinuousAutoregressiveWrapper',
    'ContinuousTransformerWrapper',
    'CrossAttender',
    'Decoder',
    'Encoder',
    'FeedForward',
    'PrefixDecoder',
    'RMSNorm',
    'TransformerWrapper',
    'ViTransformerWrapper',
    'XTransformer',
]
