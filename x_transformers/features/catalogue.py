"""The features of every level, in the order in which they run. A new feature joins by a line in one of these tuples."""

from __future__ import annotations

from x_transformers.features.embeddings import (
    AbsolutePositions,
    AveragePool,
    ClassTokens,
    EmbFracGradient,
    ExtraIds,
    MemoryTokens,
    PostEmbNorm,
    PrependEmbeds,
    SumEmbeds,
)
from x_transformers.features.feedforward import (
    CustomActivation,
    GatedLinearUnit,
    PostActivationNorm,
    Swish,
    UseReluSquared,
    ZeroInitFeedForward,
)
from x_transformers.features.heads import QKNorm, QKRMSNorm
from x_transformers.features.layouts import (
    CustomLayers,
    ExecuteOrder,
    Macaron,
    ParRatio,
    SandwichCoef,
    WeightTying,
)
from x_transformers.features.norms import (
    Condition,
    SandwichNorm,
    UseAdaptiveLayerNorm,
    UseAdaptiveLayerScale,
    UseAdaptiveRMSNorm,
    UseLayerScale,
    UseRMSNorm,
    UseScaleNorm,
    UseSimpleRMSNorm,
)
from x_transformers.features.outputs import (
    AttentionOnAttention,
    GateValueHeads,
    GateValues,
    HeadScale,
    ZeroInitOutput,
)
from x_transformers.features.positions import (
    Alibi,
    AttnBias,
    DynamicBias,
    RelativeBias,
    Rotary,
    RotaryPositions,
    T5Bias,
    Window,
)
from x_transformers.features.readouts import OutputHeads, TieEmbedding
from x_transformers.features.residuals import (
    GateResidual,
    LayerDropout,
    ResidualScale,
    SoftclampOutput,
    TokenShift,
    ZeroInitBranches,
)
from x_transformers.features.scores import (
    AttentionDropout,
    CrossResidualAttention,
    CustomNormaliser,
    PostTalkingHeads,
    PreScalePostTalkingHeads,
    PreTalkingHeads,
    ResidualAttention,
    ResidualScores,
    SigmoidAttention,
    SoftclampLogits,
    SparseTopk,
)
from x_transformers.features.sources import AddValueResidual, MemoryKV, SegmentMemory, ValueResidual, ZeroKV
from x_transformers.flags import Feature

ATTENTION: tuple[type[Feature], ...] = (
    SegmentMemory,
    ValueResidual,
    QKNorm,
    QKRMSNorm,
    Rotary,
    MemoryKV,
    ZeroKV,
    RelativeBias,
    AttnBias,
    Window,
    ResidualScores,
    PreScalePostTalkingHeads,
    PreTalkingHeads,
    PostTalkingHeads,
    AttentionDropout,
    SoftclampLogits,
    SparseTopk,
    SigmoidAttention,
    CustomNormaliser,
    HeadScale,
    GateValueHeads,
    GateValues,
    AttentionOnAttention,
    ZeroInitOutput,
)

FEEDFORWARD: tuple[type[Feature], ...] = (
    CustomActivation,
    UseReluSquared,
    Swish,
    GatedLinearUnit,
    PostActivationNorm,
    ZeroInitFeedForward,
)

STACK: tuple[type[Feature], ...] = (
    Macaron,
    CustomLayers,
    ParRatio,
    SandwichCoef,
    WeightTying,
    ExecuteOrder,
    Condition,
    UseScaleNorm,
    UseRMSNorm,
    UseSimpleRMSNorm,
    UseAdaptiveLayerNorm,
    UseAdaptiveRMSNorm,
    SandwichNorm,
    RotaryPositions,
    Alibi,
    T5Bias,
    DynamicBias,
    AddValueResidual,
    ResidualAttention,
    CrossResidualAttention,
    LayerDropout,
    ZeroInitBranches,
    TokenShift,
    UseLayerScale,
    UseAdaptiveLayerScale,
    ResidualScale,
    GateResidual,
    SoftclampOutput,
)

MODEL: tuple[type[Feature], ...] = (
    AbsolutePositions,
    ExtraIds,
    SumEmbeds,
    PostEmbNorm,
    PrependEmbeds,
    EmbFracGradient,
    ClassTokens,
    MemoryTokens,
    AveragePool,
    TieEmbedding,
    OutputHeads,
)
