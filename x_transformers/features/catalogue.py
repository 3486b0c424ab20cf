"""The features of every level, in the order in which they run. A new feature joins by a line in one of these tuples."""

from __future__ import annotations

from x_transformers.features.biases import Alibi, AttnBias, DynamicBias, RelativeBias, T5Bias
from x_transformers.features.contextual import GivenCoPE, Selective, UseCoPE
from x_transformers.features.data_positions import DataDependentBias, RelativeProjectedBias
from x_transformers.features.differential import Differential
from x_transformers.features.documents import Documents, DocumentsInModel, DocumentsInStack
from x_transformers.features.early import GateValuesBias, NormBias, OutputBias, RotateValues
from x_transformers.features.embeddings import (
    AbsolutePositions,
    AveragePool,
    ClassTokens,
    DeepEmbeds,
    EmbFracGradient,
    ExtraIds,
    MemoryTokens,
    PostEmbNorm,
    PrependEmbeds,
    SumEmbeds,
    TransformTokens,
)
from x_transformers.features.experts import MixtureOfExperts
from x_transformers.features.feedforward import (
    CustomActivation,
    DeepEmbed,
    DepthScaledFeedForward,
    GatedLinearUnit,
    PostActivationNorm,
    SoftclampActivation,
    SublayerDropout,
    Swish,
    UseReluSquared,
    UseSoLU,
    ZeroInitFeedForward,
)
from x_transformers.features.halting import ACT
from x_transformers.features.heads import KeyRMSNorm, QKNorm, QKRMSNorm, ValueRMSNorm
from x_transformers.features.hybrid import Hybrid
from x_transformers.features.integrators import AggregatedResiduals, IntegrateLayers, ReceiveViews
from x_transformers.features.latents import LatentKeysValues, LatentQueries, RopeSubheads
from x_transformers.features.layouts import (
    CustomLayers,
    DropContextTokens,
    ExecuteOrder,
    Macaron,
    OnlyAttention,
    ParRatio,
    ReinjectInput,
    SandwichCoef,
    ScaledByDeepEmbeds,
    TransformReads,
    UnetSkips,
    WeightTying,
)
from x_transformers.features.linear import LinearAttention
from x_transformers.features.norms import (
    Condition,
    PreAndPostNorm,
    SandwichNorm,
    UseAdaptiveLayerNorm,
    UseAdaptiveLayerScale,
    UseAdaptiveRMSNorm,
    UseDerf,
    UseDynamicTanh,
    UseLayerScale,
    UseReZero,
    UseRMSNorm,
    UseScaleNorm,
    UseSimpleRMSNorm,
)
from x_transformers.features.operands import (
    CollabHeads,
    L2Distance,
    Laser,
    Onnxable,
    PackedDocuments,
    PackedInStack,
    SDPKwargs,
)
from x_transformers.features.outputs import (
    AttentionOnAttention,
    DropOutput,
    GateValueHeads,
    GateValues,
    HeadScale,
    OrthogonalValues,
    OutputProjDepth,
    ZeroInitOutput,
)
from x_transformers.features.passes import Looped, Recycling
from x_transformers.features.polar import InfusedPositions, Polar, PolarPositions, PositionInfused
from x_transformers.features.positions import Window
from x_transformers.features.readouts import (
    MixtureOfSoftmax,
    NextEmbedHead,
    OutputHeads,
    PoolByAttention,
    SigSoftmax,
    SqueezeLogits,
    TieEmbedding,
)
from x_transformers.features.recompute import CheckpointLayers
from x_transformers.features.relative import ShawKeys, ShawPositions, ShawValues
from x_transformers.features.residuals import (
    GateResidual,
    LayerDropout,
    MVSplitResidual,
    OrthogResidual,
    ResiDual,
    ResidualScale,
    SoftclampOutput,
    TokenShift,
    ZeroInitBranches,
)
from x_transformers.features.reversible import Reversible
from x_transformers.features.rotary import GivenAngles, Rotary, RotaryLayers, RotaryPositions
from x_transformers.features.scores import (
    AttentionDropout,
    AttnDelta,
    CogSigned,
    CrossResidualAttention,
    CustomNormaliser,
    Entmax15,
    GumbelSoftmax,
    HardAttention,
    InvertedAttention,
    LearnedSink,
    PostTalkingHeads,
    PreScalePostTalkingHeads,
    PreTalkingHeads,
    ResidualAttention,
    ResidualScores,
    SigmoidAttention,
    SoftclampLogits,
    SparseTopk,
    TalkingHeads,
)
from x_transformers.features.sources import (
    AdditionalKV,
    AdditionalKVs,
    AddValueResidual,
    Deltas,
    KVInputResidual,
    KVResiduals,
    MemoryKV,
    SegmentMemory,
    SeparateInputs,
    ValueResidual,
    ZeroKV,
)
from x_transformers.features.streams import HyperConnections, ResidualStreams, UseGatedMultiResidual
from x_transformers.flags import Feature

# how queries and keys become scores, and those weights: in a layer, and in `Attend` alone
SCORES: tuple[type[Feature], ...] = (
    SDPKwargs,
    Onnxable,
    ResidualScores,
    PreScalePostTalkingHeads,
    PreTalkingHeads,
    PostTalkingHeads,
)

WEIGHTS: tuple[type[Feature], ...] = (
    Selective,
    LearnedSink,
    CogSigned,
    AttnDelta,
    InvertedAttention,
    SparseTopk,
    SigmoidAttention,
    HardAttention,
    GumbelSoftmax,
    Entmax15,
    CustomNormaliser,
)

ATTENTION: tuple[type[Feature], ...] = (
    SeparateInputs,
    KVInputResidual,
    SegmentMemory,
    ValueResidual,
    InfusedPositions,
    RopeSubheads,
    LatentQueries,
    LatentKeysValues,
    Deltas,
    QKNorm,
    QKRMSNorm,
    KeyRMSNorm,
    ValueRMSNorm,
    Rotary,
    RotateValues,
    Polar,
    MemoryKV,
    AdditionalKV,
    ZeroKV,
    RelativeBias,
    AttnBias,
    DataDependentBias,
    RelativeProjectedBias,
    ShawKeys,
    ShawValues,
    Window,
    Documents,
    PackedDocuments,
    CollabHeads,
    L2Distance,
    Laser,
    LinearAttention,
    Differential,  # before what mixes weights, which so mixes those of both maps
    *SCORES,
    TalkingHeads,
    AttentionDropout,
    SoftclampLogits,
    UseCoPE,
    *WEIGHTS,
    HeadScale,
    GateValueHeads,
    Hybrid,
    GateValues,
    GateValuesBias,
    OrthogonalValues,
    AttentionOnAttention,
    OutputProjDepth,
    ZeroInitOutput,
    OutputBias,
    DropOutput,
)

# those that act in `Attend` alone, where there are only queries, keys and values
ATTEND: tuple[type[Feature], ...] = (
    ZeroKV,
    AttnBias,
    PackedDocuments,
    L2Distance,
    *SCORES,
    AttentionDropout,
    SoftclampLogits,
    GivenCoPE,
    *WEIGHTS,
)

FEEDFORWARD: tuple[type[Feature], ...] = (
    CustomActivation,
    UseReluSquared,
    UseSoLU,
    Swish,
    GatedLinearUnit,
    SoftclampActivation,
    PostActivationNorm,
    MixtureOfExperts,
    SublayerDropout,
    DepthScaledFeedForward,
    ZeroInitFeedForward,
    DeepEmbed,
)

STACK: tuple[type[Feature], ...] = (
    Macaron,
    OnlyAttention,
    CustomLayers,
    ParRatio,
    SandwichCoef,
    WeightTying,
    ExecuteOrder,
    UnetSkips,
    Condition,
    UseScaleNorm,
    UseRMSNorm,
    UseSimpleRMSNorm,
    UseDynamicTanh,
    UseDerf,
    UseAdaptiveLayerNorm,
    UseAdaptiveRMSNorm,
    NormBias,
    SandwichNorm,
    PreAndPostNorm,
    ResiDual,
    DocumentsInStack,
    PackedInStack,
    GivenAngles,
    RotaryPositions,
    RotaryLayers,
    PolarPositions,
    PositionInfused,
    Alibi,
    T5Bias,
    DynamicBias,
    ShawPositions,
    AddValueResidual,
    KVResiduals,
    AdditionalKVs,
    ResidualAttention,
    CrossResidualAttention,
    LayerDropout,
    ZeroInitBranches,
    TokenShift,
    UseLayerScale,
    UseAdaptiveLayerScale,
    ResidualScale,
    UseReZero,
    DropContextTokens,
    ScaledByDeepEmbeds,
    TransformReads,
    IntegrateLayers,
    AggregatedResiduals,
    ReinjectInput,
    ReceiveViews,
    GateResidual,
    OrthogResidual,
    MVSplitResidual,
    UseGatedMultiResidual,
    ResidualStreams,
    HyperConnections,
    SoftclampOutput,
    CheckpointLayers,
    Reversible,
    ACT,
)

MODEL: tuple[type[Feature], ...] = (
    DocumentsInModel,
    AbsolutePositions,
    ExtraIds,
    SumEmbeds,
    TransformTokens,
    PostEmbNorm,
    PrependEmbeds,
    EmbFracGradient,
    ClassTokens,
    MemoryTokens,
    DeepEmbeds,
    Recycling,
    Looped,
    AveragePool,
    PoolByAttention,
    TieEmbedding,
    OutputHeads,
    SigSoftmax,
    MixtureOfSoftmax,
    SqueezeLogits,
    NextEmbedHead,
)
