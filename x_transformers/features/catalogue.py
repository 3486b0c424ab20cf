"""The features of every level, in the order in which they run. A new feature joins by a line in one of these tuples."""

from __future__ import annotations

from x_transformers.features.biases import Alibi, AttnBias, DynamicBias, RelativeBias, T5Bias
from x_transformers.features.block_outputs import BlockOutputs, BlockReadouts
from x_transformers.features.chunks import ChunkedFeedForward
from x_transformers.features.clusters import Clusters, SharedQK
from x_transformers.features.contextual import GivenCoPE, Selective, UseCoPE
from x_transformers.features.convolutions import BlockNorm, ConvModule
from x_transformers.features.data_positions import DataDependentBias, RelativeProjectedBias
from x_transformers.features.differential import Differential
from x_transformers.features.disentangled import Disentangled, DisentangledTable
from x_transformers.features.documents import Documents, DocumentsInModel, DocumentsInStack
from x_transformers.features.early import GateValuesBias, OutputBias, RotateValues
from x_transformers.features.embeddings import (
    AbsolutePositions,
    AveragePool,
    AxialPositions,
    ClassTokens,
    DeepEmbeds,
    EmbFracGradient,
    EmbScale,
    ExtraIds,
    MemoryTokens,
    PostEmbNorm,
    PrependEmbeds,
    Sinusoids,
    SumEmbeds,
    TransformTokens,
)
from x_transformers.features.exits import ExitsInModel, ExitsInStack
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
from x_transformers.features.gates import GateResidual
from x_transformers.features.halting import TokensHalt
from x_transformers.features.head_dims import HeadDims, HeadDimsInStack
from x_transformers.features.heads import (
    HeadNormsInStack,
    KeyRMSNorm,
    QKHeadNorm,
    QKNorm,
    QKRMSNorm,
    ValueRMSNorm,
)
from x_transformers.features.hybrid import Hybrid
from x_transformers.features.integrators import AggregatedResiduals, IntegrateLayers, ReceiveViews
from x_transformers.features.latents import (
    LatentBias,
    LatentKeysValues,
    LatentNorm,
    LatentQueries,
    LatentRope,
    RopeSubheads,
)
from x_transformers.features.layer_positions import LayerPositions, LayerPositionsInModel
from x_transformers.features.layouts import (
    CustomLayers,
    DropContextTokens,
    ExecuteOrder,
    KeptRead,
    Macaron,
    OnlyAttention,
    ParallelBlock,
    ParRatio,
    ReinjectInput,
    SandwichCoef,
    ScaledByDeepEmbeds,
    TransformReads,
    UnetSkips,
    WeightTying,
)
from x_transformers.features.linear.aft import AttentionFree
from x_transformers.features.linear.attention import LinearAttention
from x_transformers.features.linformer import Slots, SlotsOfLayers
from x_transformers.features.memory.compressive import CompressiveMemory
from x_transformers.features.memory.knn import KNNMemory, KNNMemoryLayers, KNNMemoryOfModel
from x_transformers.features.norms import (
    BranchPostNorm,
    Condition,
    FirstAttentionNorm,
    NormAffine,
    NormBias,
    NormEps,
    PreAndPostNorm,
    SandwichNorm,
    UseAdaLNZero,
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
from x_transformers.features.patterns import (
    DrawnInStack,
    GlobalTokensInModel,
    GlobalTokensInStack,
    PatternsInModel,
    PatternsInStack,
    SparsePattern,
)
from x_transformers.features.polar import InfusedPositions, Polar, PolarPositions, PositionInfused
from x_transformers.features.positions import Window
from x_transformers.features.projections import ProjectionBias, ProjectionClip, ProjectionNorm, SoftmaxScale
from x_transformers.features.readouts import (
    HeadTransform,
    LogitsScale,
    LogitsSoftclamp,
    MixtureOfSoftmax,
    NextEmbedHead,
    OutputHeads,
    PoolByAttention,
    Pooler,
    SigSoftmax,
    SqueezeLogits,
    TieEmbedding,
)
from x_transformers.features.recompute import CheckpointLayers
from x_transformers.features.recurrent import RecurrentModule
from x_transformers.features.relative import ShawKeys, ShawPositions, ShawValues
from x_transformers.features.rescaled import DistanceRescaling, DistanceRescalingInStack
from x_transformers.features.residuals import (
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
from x_transformers.features.segments import MemSameLength, SameLength, SameLengthInStack
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
    ValueContext,
    ValueResidual,
    ZeroKV,
)
from x_transformers.features.spans import AdaptiveSpan
from x_transformers.features.streams import HyperConnections, ResidualStreams, UseGatedMultiResidual
from x_transformers.features.two_streams import (
    InOrder,
    SegmentsInModel,
    SegmentsInStack,
    SegmentTerm,
    TwoStreams,
    TwoStreamsInModel,
)
from x_transformers.features.universal import CoordinatePositions, UniversalTransition
from x_transformers.features.untied import UntiedPositions, UntiedPositionsInModel, UntiedPositionsInStack
from x_transformers.features.xl import XLPositions, XLPositionsInStack
from x_transformers.flags import Feature

# how queries and keys become scores, and those weights: in a layer, and in `Attend` alone
SCORES: tuple[type[Feature], ...] = (
    SDPKwargs,
    Onnxable,
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
    ResidualScores,  # before all others that change scores
    ValueContext,
    KVInputResidual,
    SegmentMemory,
    ValueResidual,
    InfusedPositions,
    RopeSubheads,
    ProjectionBias,
    ProjectionClip,
    ProjectionNorm,
    LatentRope,
    LatentNorm,
    LatentQueries,
    LatentKeysValues,
    LatentBias,
    Deltas,
    SoftmaxScale,
    QKNorm,
    QKRMSNorm,
    QKHeadNorm,
    KeyRMSNorm,
    ValueRMSNorm,
    KNNMemory,
    Clusters,
    SharedQK,
    SegmentTerm,  # reads queries before others turn them
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
    XLPositions,
    UntiedPositions,
    Disentangled,
    Window,
    AdaptiveSpan,
    SameLength,
    InOrder,
    Documents,
    PackedDocuments,
    CollabHeads,
    L2Distance,
    Laser,
    LinearAttention,
    SparsePattern,
    AttentionFree,
    Slots,
    Differential,  # before what mixes weights, which so mixes those of both maps
    DistanceRescaling,
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
    HeadDims,  # after all that know heads of one width
    AttentionOnAttention,  # builds the projection that the next ones change
    OutputProjDepth,
    ZeroInitOutput,
    OutputBias,
    DropOutput,
)

# those that act in `Attend` alone, where there are only queries, keys and values
ATTEND: tuple[type[Feature], ...] = (
    ResidualScores,
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
    ChunkedFeedForward,
)

STACK: tuple[type[Feature], ...] = (
    BlockOutputs,
    Macaron,
    ConvModule,
    OnlyAttention,
    CustomLayers,
    RecurrentModule,
    ParRatio,
    SandwichCoef,
    WeightTying,
    ExecuteOrder,
    UniversalTransition,
    LayerPositions,
    CoordinatePositions,
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
    NormEps,
    NormAffine,
    BranchPostNorm,
    FirstAttentionNorm,
    SandwichNorm,
    PreAndPostNorm,
    BlockNorm,
    ParallelBlock,
    ResiDual,
    DocumentsInStack,
    SegmentsInStack,
    TwoStreams,
    SameLengthInStack,
    PackedInStack,
    PatternsInStack,
    KNNMemoryLayers,
    GlobalTokensInStack,
    GivenAngles,
    RotaryPositions,
    RotaryLayers,
    PolarPositions,
    PositionInfused,
    Alibi,
    T5Bias,
    DynamicBias,
    ShawPositions,
    XLPositionsInStack,
    UntiedPositionsInStack,
    DistanceRescalingInStack,
    DisentangledTable,
    SlotsOfLayers,
    HeadNormsInStack,
    HeadDimsInStack,
    DrawnInStack,
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
    UseAdaLNZero,
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
    TokensHalt,
    ExitsInStack,
    KeptRead,  # sees what all others made of it
)

MODEL: tuple[type[Feature], ...] = (
    DocumentsInModel,
    TwoStreamsInModel,
    SegmentsInModel,
    GlobalTokensInModel,
    PatternsInModel,
    MemSameLength,
    LayerPositionsInModel,
    UntiedPositionsInModel,
    AbsolutePositions,
    Sinusoids,
    AxialPositions,
    ExtraIds,
    SumEmbeds,
    EmbScale,
    TransformTokens,
    PostEmbNorm,
    PrependEmbeds,
    EmbFracGradient,
    ClassTokens,
    MemoryTokens,
    DeepEmbeds,
    Recycling,
    Looped,
    CompressiveMemory,
    KNNMemoryOfModel,
    AveragePool,
    PoolByAttention,
    HeadTransform,
    TieEmbedding,
    OutputHeads,
    LogitsScale,
    LogitsSoftclamp,
    SigSoftmax,
    MixtureOfSoftmax,
    SqueezeLogits,
    NextEmbedHead,
    Pooler,
    ExitsInModel,
    BlockReadouts,
)
