"""Names that other people's code imports from `x_transformers.x_transformers`, and that live elsewhere."""

from einops import repeat

from x_transformers.features.data_positions import (
    DataDependentAlibi,
    PerRowDataDependentAlibi,
    RelativeProjPositionalBias,
)
from x_transformers.features.embeddings import TokenEmbedding
from x_transformers.features.feedforward import GLU, ReluSquared
from x_transformers.features.hybrid import FoldAxially
from x_transformers.features.layouts import ConcatCombine
from x_transformers.features.norms import (
    AdaptiveLayerNorm,
    AdaptiveLayerScale,
    AdaptiveRMSNorm,
    LayerNorm,
    LayerScale,
    MultiheadRMSNorm,
    RMSNorm,
    Scale,
    ScaleNorm,
    SimpleRMSNorm,
    l2norm,
)
from x_transformers.features.polar import PolarEmbedding
from x_transformers.features.positions import (
    AbsolutePositionalEmbedding,
    AlibiPositionalBias,
    DynamicPositionBias,
    RelativePositionBias,
    RotaryEmbedding,
    ScaledSinusoidalEmbedding,
    apply_rotary_pos_emb,
)
from x_transformers.features.residuals import GRUGating, Residual, ShiftTokens
from x_transformers.features.scores import softclamp
from x_transformers.helpers import always, default, equals, exists, not_equals, pad_at_dim
from x_transformers.losses import calc_z_loss

__all__ = [
    'GLU',
    'AbsolutePositionalEmbedding',
    'AdaptiveLayerNorm',
    'AdaptiveLayerScale',
    'AdaptiveRMSNorm',
    'AlibiPositionalBias',
    'ConcatCombine',
    'DataDependentAlibi',
    'DynamicPositionBias',
    'FoldAxially',
    'GRUGating',
    'LayerNorm',
    'LayerScale',
    'MultiheadRMSNorm',
    'PerRowDataDependentAlibi',
    'PolarEmbedding',
    'RMSNorm',
    'RelativePositionBias',
    'RelativeProjPositionalBias',
    'ReluSquared',
    'Residual',
    'RotaryEmbedding',
    'Scale',
    'ScaleNorm',
    'ScaledSinusoidalEmbedding',
    'ShiftTokens',
    'SimpleRMSNorm',
    'TokenEmbedding',
    'always',
    'apply_rotary_pos_emb',
    'calc_z_loss',
    'default',
    'equals',
    'exists',
    'l2norm',
    'not_equals',
    'pad_at_dim',
    'repeat',
    'softclamp',
]
