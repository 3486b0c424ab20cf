"""Names that other people's code imports from `x_transformers.x_transformers`, and that live elsewhere."""

from einops import repeat

from x_transformers.compat.helpers import (
    LinearNoBias,
    always,
    calc_entropy,
    cross_entropy,
    default_device,
    divisible_by,
    equals,
    exists,
    first,
    group_by_key_prefix,
    group_dict_by_key,
    groupby_prefix_and_trim,
    identity,
    init_zero_,
    is_empty,
    lens_to_mask,
    log,
    masked_mean,
    max_neg_value,
    maybe,
    not_equals,
    or_reduce,
    pack_one,
    pad_at_dim,
    pick_and_pop,
    rotate_half,
    string_begins_with,
    unpack_one,
)
from x_transformers.compat.helpers import cast_to_depth as cast_tuple
from x_transformers.compat.helpers import first_existing_called as default
from x_transformers.core.traces import log_prob_from_hard_attend
from x_transformers.features.biases import AlibiPositionalBias, DynamicPositionBias, RelativePositionBias
from x_transformers.features.contextual import CoPE
from x_transformers.features.data_positions import (
    DataDependentAlibi,
    PerRowDataDependentAlibi,
    RelativeProjPositionalBias,
)
from x_transformers.features.embeddings import TokenEmbedding
from x_transformers.features.feedforward import GLU, ReluSquared, SoLU
from x_transformers.features.gates import GRUGating
from x_transformers.features.hybrid import FoldAxially
from x_transformers.features.integrators import AttentionResidual, DynamicLIMe, LoRALinear
from x_transformers.features.layouts import ConcatCombine, layer_schedule
from x_transformers.features.norms import (
    AdaptiveLayerNorm,
    AdaptiveLayerScale,
    AdaptiveRMSNorm,
    Derf,
    DynamicTanh,
    Identity,
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
from x_transformers.features.positions import AbsolutePositionalEmbedding, ScaledSinusoidalEmbedding
from x_transformers.features.residuals import (
    MVSplitResidualUpdate,
    OrthogonalResidualUpdate,
    Residual,
    ShiftTokens,
    orthog_project,
    shift,
)
from x_transformers.features.rotary import RotaryEmbedding, apply_rotary_pos_emb
from x_transformers.features.scores import softclamp
from x_transformers.features.streams import GatedMultiResidual, HyperConnection, sinkhorn
from x_transformers.training.losses import calc_z_loss

__all__ = [
    'GLU',
    'AbsolutePositionalEmbedding',
    'AdaptiveLayerNorm',
    'AdaptiveLayerScale',
    'AdaptiveRMSNorm',
    'AlibiPositionalBias',
    'AttentionResidual',
    'CoPE',
    'ConcatCombine',
    'DataDependentAlibi',
    'Derf',
    'DynamicLIMe',
    'DynamicPositionBias',
    'DynamicTanh',
    'FoldAxially',
    'GRUGating',
    'GatedMultiResidual',
    'HyperConnection',
    'Identity',
    'LayerNorm',
    'LayerScale',
    'LinearNoBias',
    'LoRALinear',
    'MVSplitResidualUpdate',
    'MultiheadRMSNorm',
    'OrthogonalResidualUpdate',
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
    'SoLU',
    'TokenEmbedding',
    'always',
    'apply_rotary_pos_emb',
    'calc_entropy',
    'calc_z_loss',
    'cast_tuple',
    'cross_entropy',
    'default',
    'default_device',
    'divisible_by',
    'equals',
    'exists',
    'first',
    'group_by_key_prefix',
    'group_dict_by_key',
    'groupby_prefix_and_trim',
    'identity',
    'init_zero_',
    'is_empty',
    'l2norm',
    'layer_schedule',
    'lens_to_mask',
    'log',
    'log_prob_from_hard_attend',
    'masked_mean',
    'max_neg_value',
    'maybe',
    'not_equals',
    'or_reduce',
    'orthog_project',
    'pack_one',
    'pad_at_dim',
    'pick_and_pop',
    'repeat',
    'rotate_half',
    'shift',
    'sinkhorn',
    'softclamp',
    'string_begins_with',
    'unpack_one',
]
