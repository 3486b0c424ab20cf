"""Names that published code imports from `x_transformers.x_transformers`, and that are defined elsewhere.

`from x_transformers.x_transformers import *` gives them too, with the names of torch and einops that such code uses.
"""

from collections.abc import Callable as Callable
from copy import deepcopy as deepcopy
from functools import partial as partial

from einops import pack as pack, rearrange as rearrange, reduce as reduce, repeat as repeat, unpack as unpack
from einops.layers.torch import Rearrange as Rearrange
from torch import Tensor as Tensor, einsum as einsum, nn as nn
from torch.nn import Module as Module, ModuleList as ModuleList
from torch.utils._pytree import tree_map as tree_map

from x_transformers.compat.helpers import (
    always as always,
    default_device as default_device,
    default_or_call,
    equals as equals,
    exists as exists,
    log as log,
    not_equals as not_equals,
    pack_one as pack_one,
    pad_at_dim as pad_at_dim,
    unpack_one as unpack_one,
)
from x_transformers.core.intermediates import log_prob_from_hard_attend as log_prob_from_hard_attend
from x_transformers.features.biases import (
    AlibiPositionalBias as AlibiPositionalBias,
    DynamicPositionBias as DynamicPositionBias,
    RelativePositionBias as RelativePositionBias,
)
from x_transformers.features.contextual import CoPE as CoPE
from x_transformers.features.data_positions import (
    DataDependentAlibi as DataDependentAlibi,
    PerRowDataDependentAlibi as PerRowDataDependentAlibi,
    RelativeProjPositionalBias as RelativeProjPositionalBias,
)
from x_transformers.features.embeddings import TokenEmbedding as TokenEmbedding
from x_transformers.features.feedforward import GLU as GLU, ReluSquared as ReluSquared, SoLU as SoLU
from x_transformers.features.gates import GRUGating as GRUGating
from x_transformers.features.hybrid import FoldAxially as FoldAxially
from x_transformers.features.integrators import (
    AttentionResidual as AttentionResidual,
    DynamicLIMe as DynamicLIMe,
    LoRALinear as LoRALinear,
)
from x_transformers.features.layouts import ConcatCombine as ConcatCombine, layer_schedule as layer_schedule
from x_transformers.features.norms import (
    AdaptiveLayerNorm as AdaptiveLayerNorm,
    AdaptiveLayerScale as AdaptiveLayerScale,
    AdaptiveRMSNorm as AdaptiveRMSNorm,
    Derf as Derf,
    DynamicTanh as DynamicTanh,
    Identity as Identity,
    LayerNorm as LayerNorm,
    LayerScale as LayerScale,
    MultiheadRMSNorm as MultiheadRMSNorm,
    RMSNorm as RMSNorm,
    Scale as Scale,
    ScaleNorm as ScaleNorm,
    SimpleRMSNorm as SimpleRMSNorm,
    l2norm as l2norm,
)
from x_transformers.features.polar import PolarEmbedding as PolarEmbedding, apply_polar_pos_emb as apply_polar_pos_emb
from x_transformers.features.positions import (
    AbsolutePositionalEmbedding as AbsolutePositionalEmbedding,
    ScaledSinusoidalEmbedding as ScaledSinusoidalEmbedding,
)
from x_transformers.features.residuals import (
    MVSplitResidualUpdate as MVSplitResidualUpdate,
    OrthogonalResidualUpdate as OrthogonalResidualUpdate,
    Residual as Residual,
    ShiftTokens as ShiftTokens,
    orthog_project as orthog_project,
    shift as shift,
)
from x_transformers.features.rotary import (
    RotaryEmbedding as RotaryEmbedding,
    apply_rotary_pos_emb as apply_rotary_pos_emb,
)
from x_transformers.features.scores import softclamp as softclamp
from x_transformers.features.streams import (
    GatedMultiResidual as GatedMultiResidual,
    HyperConnection as HyperConnection,
    sinkhorn as sinkhorn,
)
from x_transformers.training.losses import calc_z_loss as calc_z_loss

default = default_or_call
