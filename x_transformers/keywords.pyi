"""Written by `python -m x_transformers.flags --write-types` from the declarations of the flags."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, overload

from torch import Tensor, nn
from typing_extensions import Required
from typing_extensions import Unpack as Unpack
from torch._C import Generator
from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core.traces import Intermediates
from x_transformers.flags import PerLayer
from x_transformers.flags.declared import Feature
from x_transformers.generation.batching import Paged
from x_transformers.generation.prompt_cache import PromptCache

class StackKeywords(TypedDict, total=False):
    macaron: bool
    """Feedforward before and after attention, each at half weight. Default: False. Macaron Net, arXiv:1906.02762."""
    conv_module: bool
    """A convolution along the sequence behind each attention. Default: False. Conformer, arXiv:2005.08100."""
    conv_kernel_size: int
    """Tokens of its kernel; odd, unless it looks back alone. Default: 31. Conformer, arXiv:2005.08100."""
    conv_causal: bool
    """It looks back alone. Default: False. Conformer, arXiv:2005.08100."""
    conv_norm: Literal['batch', 'layer', 'group']
    """Its norm: over the 'batch', or of each token, 'layer' or 'group'. Default: 'batch'. Conformer, arXiv:2005.08100."""
    only_attn: bool
    """Leave out every feedforward. Default: False. arXiv:2607.18363."""
    custom_layers: Sequence[Any] | None
    """Kinds of all layers, such as ('a', 'f', 'a', 'f'): those of `KINDS`. Default: None."""
    recurrent_module: Literal['rwkv', 'ssm'] | nn.Module | None
    """What layers of kind 'r' in `custom_layers` are, by name or as a module of your own, of which each gets a copy. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343."""
    par_ratio: int | None
    """One attention to so many layers. Default: None. PAR Transformer, arXiv:2009.04534."""
    sandwich_coef: int | None
    """How many attention layers come first, and feedforwards last. Default: None. Sandwich Transformers, arXiv:1911.03864."""
    weight_tie_layers: bool
    """Share one block between all depths. Default: False. ALBERT, arXiv:1909.11942."""
    layers_execute_order: Sequence[int] | None
    """Indices of layers, in the order in which they run. Default: None."""
    ut_transition: Literal['ff', 'sepconv']
    """What stands in place of feedforwards: 'sepconv' for convolutions. Default: 'ff'. Universal Transformers, arXiv:1807.03819."""
    per_layer_abs_pos_emb: int | None
    """How many positions have a vector in each layer, added to the stream before it. Default: None. Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444."""
    coord_pos_emb: bool | Literal['learned']
    """Waves of positions and runs, added at every run of a block; 'learned': a vector per run. Default: False. Universal Transformers, arXiv:1807.03819."""
    unet_skips: bool
    """Concatenate the inputs of mirrored blocks. Default: False. U-ViT, arXiv:2209.12152."""
    dim_condition: int | None
    """Width of the condition, `dim` if None. Default: None."""
    adaptive_condition_mlp: bool
    """Expand the condition by a linear layer and SiLU first. Default: False."""
    adaptive_condition_mlp_expansion: int
    """By how much. Default: 4."""
    use_scalenorm: bool
    """ScaleNorm in place of LayerNorm. Default: False. Transformers without Tears, arXiv:1910.05895."""
    use_rmsnorm: bool
    """RMSNorm in place of LayerNorm. Default: False. Root Mean Square Layer Normalization, arXiv:1910.07467."""
    use_simple_rmsnorm: bool
    """RMSNorm without a gain, in place of LayerNorm. Default: False. TransNormer, arXiv:2307.14995."""
    use_dynamic_tanh: bool
    """DynamicTanh in place of LayerNorm. Default: False. Transformers without Normalization, arXiv:2503.10622."""
    dynamic_tanh_init_alpha: float
    """Initial factor of what it bounds. Default: 1.0. Transformers without Normalization, arXiv:2503.10622."""
    use_derf: bool
    """Derf in place of LayerNorm. Default: False. Stronger Normalization-Free Transformers, arXiv:2512.10938."""
    use_adaptive_layernorm: bool
    """Layer norm with the gain from `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    use_adaptive_rmsnorm: bool
    """RMSNorm with the gain from `condition`. Default: False."""
    norm_bias: bool
    """Layer norms with a bias (also for weights of releases before 1.27). Default: False. Layer Normalization, arXiv:1607.06450."""
    norm_eps: float | None
    """Eps of every norm; None: 1e-5 of layer norms, x / |x| of others. Default: None. Layer Normalization, arXiv:1607.06450."""
    norm_affine: bool
    """Norms with a gain. Default: True. OLMo, arXiv:2402.00838."""
    branch_post_norm: bool
    """Norm the output of every branch in place of its input. Default: False. OLMo 2, arXiv:2501.00656."""
    first_attn_norm: bool
    """A norm in front of the first attention. Default: True. ModernBERT, arXiv:2412.13663."""
    sandwich_norm: bool
    """Norm the output of every branch as well. Default: False. CogView, arXiv:2105.13290."""
    pre_and_post_norm: bool
    """Norm before every branch and after its residual. Default: False."""
    block_norm: bool
    """Norm the stream behind each block. Default: False. Conformer, arXiv:2005.08100."""
    parallel_block: bool | Literal['shared']
    """Branches of a block stand side by side, with norms of their own (True) or one for all ('shared'). Default: False. PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745."""
    resi_dual: bool
    """Post-norm with a second, pre-norm stream beside it. Default: False. ResiDual, arXiv:2304.14802."""
    resi_dual_scale: float
    """The factor c of the second stream, against overflow. Default: 1.0. ResiDual, arXiv:2304.14802."""
    xl_rel_segments: bool
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    two_stream: bool
    """Tokens may be asked for in an order, by queries that do not see them. Default: False. XLNet, arXiv:1906.08237."""
    knn_mem_layers: Sequence[int]
    """Which layers of self-attention, counted from 0. Default: (). Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_size: int
    """Tokens that are stored for each row. Default: 65536. Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_topk: int
    """How many of them a head reads. Default: 32. Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_gate_init: float
    """Where gates start, a logit; -4 to add memory to a trained net. Default: 0.0. Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_search: Literal['exact', 'coarse']
    """How they are found: 'coarse' looks at few dimensions first, and may miss some. Default: 'exact'. Memorizing Transformers, arXiv:2203.08913."""
    rotary_pos_emb: bool
    """Rotate queries and keys by their positions. Default: False. RoFormer, arXiv:2104.09864."""
    rotary_emb_dim: int | None
    """How many features of a head turn, half of them if None. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_theta: float
    """Base of the frequencies, theta ** (-2 i / r) for pair i of r features. Default: 10000.0. RoFormer, arXiv:2104.09864."""
    rotary_scaling: Mapping[str, Any] | None
    """Frequencies for longer contexts, a dict with a `kind`. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_xpos: bool
    """Decay with distance as well (xPos). Default: False. RoFormer, arXiv:2104.09864."""
    rotary_xpos_scale_base: float
    """Length scale of the decay, in tokens. Default: 512. RoFormer, arXiv:2104.09864."""
    rotary_interpolation_factor: float
    """Divide positions by this. Default: 1.0. RoFormer, arXiv:2104.09864."""
    rotary_base_rescale_factor: float
    """Stretch the base for longer contexts (NTK-aware). Default: 1.0. RoFormer, arXiv:2104.09864."""
    rotate_num_heads: int | None
    """How many heads are rotated, the last ones; all if None. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_layers: Sequence[bool | Mapping[str, Any]] | None
    """For each self-attention True, False for no rotation, or a dict with `theta` and `scaling` of its own. Default: None. Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466."""
    polar_pos_emb: bool
    """Sizes from content, angles from positions. Default: False. PoPE, arXiv:2509.10534."""
    polar_bias_uniform_init: bool
    """The learned shift of the keys starts at random, else at zero. Default: False. PoPE, arXiv:2509.10534."""
    position_infused_attn: bool
    """Add sinusoids to what queries and keys are made from. Default: False. Shortformer, arXiv:2012.15832."""
    alibi_pos_bias: bool
    """Penalise distance linearly. Default: False. Train Short, Test Long, arXiv:2108.12409."""
    alibi_num_heads: int | None
    """How many heads have a slope, the first ones; all if None. Default: None. Train Short, Test Long, arXiv:2108.12409."""
    alibi_bidirectional: Literal['symmetric', 'split']
    """In stacks that are not causal: 'split', so that half of these heads look back, and the others ahead. Default: 'symmetric'. Train Short, Test Long, arXiv:2108.12409."""
    rel_pos_bias: bool
    """Learned bias per bucket of distances. Default: False. T5, arXiv:1910.10683."""
    rel_pos_num_buckets: int
    """Number of buckets. Default: 32. T5, arXiv:1910.10683."""
    rel_pos_max_distance: int
    """Distance from which on all share a bucket. Default: 128. T5, arXiv:1910.10683."""
    rel_pos_bias_scale: float | None
    """Factor of the bias, the root of the head width if None; T5 has 1. Default: None. T5, arXiv:1910.10683."""
    dynamic_pos_bias: bool
    """A small network turns distances into biases. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dynamic_pos_bias_log_distance: bool
    """It sees the signed logarithm of the distance. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dynamic_pos_bias_mlp_depth: int
    """Its hidden layers. Default: 2. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dynamic_pos_bias_norm: bool
    """Norms inside it. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    shaw_rel_pos: bool
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_max_distance: int
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_rel_values: bool
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    xl_rel_pos: bool
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    xl_rel_pos_untied: bool
    """Vectors u and v of each layer. Default: False. Transformer-XL, arXiv:1901.02860."""
    xl_clamp_len: int | None
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    tupe_pos: bool
    """Positions have scores of their own, apart from contents. Default: False. TUPE, arXiv:2006.15595."""
    tupe_cls_first: bool
    """The token at position 0 is [CLS], and has no position either. Default: False. TUPE, arXiv:2006.15595."""
    da_pos_rescale: bool
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    add_value_residual: bool
    """Mix the values of the first attention layer into the later ones. Default: False. Value Residual Learning, arXiv:2410.17897."""
    learned_value_residual_mix: bool
    """Learn the mix in self-attention, else one half. Default: True. Value Residual Learning, arXiv:2410.17897."""
    residual_attn: bool
    """Add the logits of the self-attention before. Default: False. RealFormer, arXiv:2012.11747."""
    cross_residual_attn: bool
    """Add the logits of the cross-attention before. Default: False. RealFormer, arXiv:2012.11747."""
    layer_dropout: float | Sequence[float]
    """Probability of leaving a layer out in training, or a tuple with one per layer. Default: 0.0. Deep Networks with Stochastic Depth, arXiv:1603.09382."""
    zero_init_branch_output: bool
    """Zero the last projection of every branch at first. Default: False."""
    shift_tokens: int | Sequence[int]
    """By how many tokens features are shifted, or a tuple with one number per layer. Default: 0. RWKV, github.com/BlinkDL/RWKV-LM (token shift)."""
    use_layerscale: bool
    """Learned gain per feature on every branch. Default: False. Going deeper with Image Transformers, arXiv:2103.17239."""
    layerscale_init_value: float
    """Its effective initial value. Default: 0.0. Going deeper with Image Transformers, arXiv:2103.17239."""
    use_adaptive_layerscale: bool
    """Gate every branch by a sigmoid of `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    use_adaln_zero: bool
    """Shift, scale and gate of every branch from `condition`, zero at first. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    scale_residual: bool | float
    """Learned scale per feature on the residual; a number also scales every branch. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    scale_residual_constant: float
    """Constant factor of the residual. Default: 1.0. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    depth_scale_residual: bool | float
    """True: initial outputs shrink with depth; a number: constant factor of every branch. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    use_rezero: bool
    """A learned gate on every branch in place of norms. Default: False. ReZero is All You Need, arXiv:2003.04887."""
    cross_attn_tokens_dropout: float
    """Fraction of context tokens that a cross-attention does not see in training. Default: 0.0. Perceiver AR, arXiv:2202.07765."""
    integrate_layers: bool
    """Branches read a learned mix of the inputs of all before. Default: False. LIMe, arXiv:2502.09245."""
    layer_integrate_use_softmax: bool
    """Weights of the mix sum to one, else they are ReLUs. Default: True. LIMe, arXiv:2502.09245."""
    attn_aggregated_residuals: bool
    """Branches attend to the inputs of all before. Default: False. arXiv:2601.21582, arXiv:2603.15031."""
    attn_aggregated_residual_kwargs: Mapping[str, Any] | None
    """`lora_rank` (64) and `lora_activation` of its queries. Default: None. arXiv:2601.21582, arXiv:2603.15031."""
    reinject_input: bool
    """Add a projection of the input to the input of every branch. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    learned_reinject_input_gate: bool
    """Gate it, or `in_attn_cond`, per token. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    qkv_receive_diff_residuals: bool
    """Separate inputs of queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    gate_residual: bool
    """Gates in place of the sum: a GRU cell, or of `residual_fn_kwargs=dict(gate='gtrxl', ...)`. Default: False. Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764."""
    orthog_residual: bool
    """Add only what is orthogonal to the residual. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    orthog_residual_over_sequence: bool
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    mv_split_residual: bool
    """Separate rates for the mean over tokens, and for what differs from it. Default: False. arXiv:2605.06169."""
    gated_multi_residual: bool
    """Gated reads and writes; needs `residual_fn_kwargs=dict(read_gate_rank=...)`. Default: False."""
    num_residual_streams: int
    """Number of residual streams. Default: 1. Hyper-Connections, arXiv:2409.19606."""
    hyper_conn_sinkhorn_iters: int
    """Iterations that make the mix doubly stochastic. Default: 5. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    hyper_conn_residual_mix: Literal['sinkhorn', 'ones']
    """The mix of streams: 'sinkhorn', doubly stochastic, or 'ones', as in weights of x-transformers 2.31. Default: 'sinkhorn'. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    softclamp_output: bool
    """Bound the output of the last layer smoothly. Default: False. Gemma 2, arXiv:2408.00118."""
    softclamp_output_value: float
    """The bound c. Default: 30.0. Gemma 2, arXiv:2408.00118."""
    checkpoint_layers: bool | int
    """In training, compute layers again in the backward pass: True for each by itself, k for segments of k layers. Default: False. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    reversible: bool
    """Two streams, whose values are computed back in the backward pass instead of being kept. Default: False. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    reversible_merge: Literal['mean', 'concat_norm']
    """What the final norm reads: the mean of the streams, or both. Default: 'mean'. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    act_halting: bool
    """Each token says after each run of the block whether it needs another. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_eps: float
    """A token halts at a sum of 1 less this. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_ponder_weight: float
    """Weight of the loss for going on. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_dense: bool
    """Compute all tokens in every run, also those that have halted. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_max_steps: int | None
    """Runs of the block at most; `None`: all, as many as `depth`. Default: None. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    ff_mult: float | tuple[float, ...] | PerLayer
    """Inner width as a multiple of `dim`. Default: 4."""
    ff_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width, in place of `mult`. Default: None."""
    ff_activation: str | None | tuple[str | None, ...] | PerLayer
    """By name; GELU if None. Default: None."""
    ff_no_bias: bool | tuple[bool, ...] | PerLayer
    """Linear layers without bias; a gated unit keeps its own. Default: False."""
    ff_dropout: float | tuple[float, ...] | PerLayer
    """Dropout before the output projection. Default: 0.0."""
    ff_custom_activation: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """Module in place of GELU. Default: None."""
    ff_relu_squared: bool | tuple[bool, ...] | PerLayer
    """Squared ReLU in place of GELU. Default: False. Primer, arXiv:2109.08668."""
    ff_solu: bool | tuple[bool, ...] | PerLayer
    """Softmax linear unit, with a norm, in place of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    ff_swish: bool | tuple[bool, ...] | PerLayer
    """SiLU in place of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    ff_glu: bool | tuple[bool, ...] | PerLayer
    """Gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_glu_mult_bias: bool | tuple[bool, ...] | PerLayer
    """Learned scale per feature after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_glu_softclamp: bool | tuple[bool, ...] | PerLayer
    """Bound both factors smoothly, but not what opens the gate; of GELU or SiLU only. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_glu_gate_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the linear factor of the gate. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_glu_up_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the other half. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_glu_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Bias of the gated projection; None: always. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_swiglu_limit: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves u, g:  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_swiglu_alpha: float | tuple[float, ...] | PerLayer
    """The factor alpha in it. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    ff_softclamp_value: float | None | tuple[float | None, ...] | PerLayer
    """Bound the input of the activation smoothly. Default: None."""
    ff_post_act_ln: bool | tuple[bool, ...] | PerLayer
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    ff_moe_experts: int | None | tuple[int | None, ...] | PerLayer
    """Number of experts; None for a plain feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_top_k: int | tuple[int, ...] | PerLayer
    """How many experts a token goes through. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of an expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_kind: Literal['softmax', 'sigmoid', 'topk_softmax'] | tuple[Literal['softmax', 'sigmoid', 'topk_softmax'], ...] | PerLayer
    """How experts are chosen and weighted. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_renormalise: bool | tuple[bool, ...] | PerLayer
    """Weights of the chosen experts sum to one. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_groups: int | tuple[int, ...] | PerLayer
    """Equal groups of experts, of which only the best count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_top_groups: int | tuple[int, ...] | PerLayer
    """How many groups count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_scale: float | tuple[float, ...] | PerLayer
    """Factor of the weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_score_bias: bool | tuple[bool, ...] | PerLayer
    """A buffer that is added to the scores where experts are chosen, not to their weights. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_shared: int | None | tuple[int | None, ...] | PerLayer
    """Experts that every token goes through, as one feedforward of that many widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_router_bias: bool | tuple[bool, ...] | PerLayer
    """A bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Biases of all experts; None: unless `no_bias`. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_moe_balance_loss: float | tuple[float, ...] | PerLayer
    """Weight of the loss that spreads tokens over experts. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    ff_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout after the output projection. Default: 0.0."""
    ff_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Number of the block, by which initial outputs shrink. Default: None. OLMo, arXiv:2402.00838."""
    ff_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights and bias of the output projection at first. Default: False."""
    ff_chunks: int | tuple[int, ...] | PerLayer
    """Slices of the tokens, one after the other: less memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    ff_chunk_checkpoint: bool | tuple[bool, ...] | PerLayer
    """In training, compute each slice again in the backward pass: less memory there too. Default: False. Reformer, arXiv:2001.04451."""
    cross_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of a query or key head. Default: 64."""
    cross_attn_dim_context: int | None | tuple[int | None, ...] | PerLayer
    """Width of the context, `dim` if None. Default: None."""
    cross_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """None: the fastest exact kernel; True: the fused one; False: the formula. Default: None."""
    cross_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key heads, shared between query heads. Default: None."""
    cross_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """One key head for all query heads. Default: False."""
    cross_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of a value head, `dim_head` if None. Default: None."""
    cross_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Project the output; None: unless one head has the width already. Default: None."""
    cross_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    cross_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    cross_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    cross_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    cross_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    cross_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    cross_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    cross_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    cross_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    cross_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    cross_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    cross_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    cross_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    cross_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    cross_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_norm_scale: float | tuple[float, ...] | PerLayer
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    cross_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    cross_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    cross_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sortcut: int | tuple[int, ...] | PerLayer
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    cross_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    cross_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    cross_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    cross_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    cross_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """A bias over distance that the query projects. Default: False."""
    cross_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of curves that it mixes. Default: 16."""
    cross_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves; further back the bias is 0. Default: 1024."""
    cross_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    cross_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    cross_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    cross_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    cross_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    cross_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    cross_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    cross_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    cross_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    cross_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    cross_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_max_span: int | tuple[int, ...] | PerLayer
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_span_init: float | tuple[float, ...] | PerLayer
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    cross_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    cross_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    cross_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    cross_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    cross_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    cross_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    cross_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    cross_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    cross_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    cross_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    cross_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    cross_attn_differential: bool | tuple[bool, ...] | PerLayer
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    cross_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    cross_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    cross_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    cross_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted; the causal triangle can always be exported. Default: False."""
    cross_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the weights by mixed similarities. Default: False."""
    cross_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    cross_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    cross_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    cross_attn_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    cross_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    cross_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    cross_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    cross_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    cross_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    cross_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    cross_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    cross_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    cross_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    cross_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    cross_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    cross_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    cross_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    cross_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    cross_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable, logits b h i j -> weights. Default: None."""
    cross_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    cross_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    cross_attn_hybrid_module: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    cross_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    cross_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    cross_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    cross_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    cross_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    cross_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    cross_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    cross_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    cross_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    cross_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    cross_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    cross_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights of the output projection at first. Default: False."""
    cross_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    cross_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping a feature of the output. Default: 0.0."""
    attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """None: the fastest exact kernel; True: the fused one; False: the formula. Default: None."""
    attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key heads, shared between query heads. Default: None."""
    attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """One key head for all query heads. Default: False."""
    attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of a value head, `dim_head` if None. Default: None."""
    attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Project the output; None: unless one head has the width already. Default: None."""
    attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    attn_qk_norm_scale: float | tuple[float, ...] | PerLayer
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_routing_decay: float | tuple[float, ...] | PerLayer
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sortcut: int | tuple[int, ...] | PerLayer
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """A bias over distance that the query projects. Default: False."""
    attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of curves that it mixes. Default: 16."""
    attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves; further back the bias is 0. Default: 1024."""
    attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_max_span: int | tuple[int, ...] | PerLayer
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_span_ramp: int | tuple[int, ...] | PerLayer
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_span_init: float | tuple[float, ...] | PerLayer
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    attn_aft_window: int | tuple[int, ...] | PerLayer
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    attn_differential: bool | tuple[bool, ...] | PerLayer
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted; the causal triangle can always be exported. Default: False."""
    attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the weights by mixed similarities. Default: False."""
    attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    attn_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    attn_selective: bool | tuple[bool, ...] | PerLayer
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable, logits b h i j -> weights. Default: None."""
    attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    attn_hybrid_module: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights of the output projection at first. Default: False."""
    attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping a feature of the output. Default: 0.0."""

class TwoStacksKeywords(TypedDict, total=False):
    enc_heads: int
    """Attention heads of every layer. Default: 8."""
    enc_pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    enc_pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    enc_norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    enc_disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    enc_rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    enc_residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    enc_verbose: bool
    """Warn of choices known to hurt. Default: True."""
    enc_macaron: bool
    """Feedforward before and after attention, each at half weight. Default: False. Macaron Net, arXiv:1906.02762."""
    enc_conv_module: bool
    """A convolution along the sequence behind each attention. Default: False. Conformer, arXiv:2005.08100."""
    enc_conv_kernel_size: int
    """Tokens of its kernel; odd, unless it looks back alone. Default: 31. Conformer, arXiv:2005.08100."""
    enc_conv_causal: bool
    """It looks back alone. Default: False. Conformer, arXiv:2005.08100."""
    enc_conv_norm: Literal['batch', 'layer', 'group']
    """Its norm: over the 'batch', or of each token, 'layer' or 'group'. Default: 'batch'. Conformer, arXiv:2005.08100."""
    enc_only_attn: bool
    """Leave out every feedforward. Default: False. arXiv:2607.18363."""
    enc_custom_layers: Sequence[Any] | None
    """Kinds of all layers, such as ('a', 'f', 'a', 'f'): those of `KINDS`. Default: None."""
    enc_recurrent_module: Literal['rwkv', 'ssm'] | nn.Module | None
    """What layers of kind 'r' in `custom_layers` are, by name or as a module of your own, of which each gets a copy. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343."""
    enc_par_ratio: int | None
    """One attention to so many layers. Default: None. PAR Transformer, arXiv:2009.04534."""
    enc_sandwich_coef: int | None
    """How many attention layers come first, and feedforwards last. Default: None. Sandwich Transformers, arXiv:1911.03864."""
    enc_weight_tie_layers: bool
    """Share one block between all depths. Default: False. ALBERT, arXiv:1909.11942."""
    enc_layers_execute_order: Sequence[int] | None
    """Indices of layers, in the order in which they run. Default: None."""
    enc_ut_transition: Literal['ff', 'sepconv']
    """What stands in place of feedforwards: 'sepconv' for convolutions. Default: 'ff'. Universal Transformers, arXiv:1807.03819."""
    enc_per_layer_abs_pos_emb: int | None
    """How many positions have a vector in each layer, added to the stream before it. Default: None. Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444."""
    enc_coord_pos_emb: bool | Literal['learned']
    """Waves of positions and runs, added at every run of a block; 'learned': a vector per run. Default: False. Universal Transformers, arXiv:1807.03819."""
    enc_unet_skips: bool
    """Concatenate the inputs of mirrored blocks. Default: False. U-ViT, arXiv:2209.12152."""
    enc_dim_condition: int | None
    """Width of the condition, `dim` if None. Default: None."""
    enc_adaptive_condition_mlp: bool
    """Expand the condition by a linear layer and SiLU first. Default: False."""
    enc_adaptive_condition_mlp_expansion: int
    """By how much. Default: 4."""
    enc_use_scalenorm: bool
    """ScaleNorm in place of LayerNorm. Default: False. Transformers without Tears, arXiv:1910.05895."""
    enc_use_rmsnorm: bool
    """RMSNorm in place of LayerNorm. Default: False. Root Mean Square Layer Normalization, arXiv:1910.07467."""
    enc_use_simple_rmsnorm: bool
    """RMSNorm without a gain, in place of LayerNorm. Default: False. TransNormer, arXiv:2307.14995."""
    enc_use_dynamic_tanh: bool
    """DynamicTanh in place of LayerNorm. Default: False. Transformers without Normalization, arXiv:2503.10622."""
    enc_dynamic_tanh_init_alpha: float
    """Initial factor of what it bounds. Default: 1.0. Transformers without Normalization, arXiv:2503.10622."""
    enc_use_derf: bool
    """Derf in place of LayerNorm. Default: False. Stronger Normalization-Free Transformers, arXiv:2512.10938."""
    enc_use_adaptive_layernorm: bool
    """Layer norm with the gain from `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    enc_use_adaptive_rmsnorm: bool
    """RMSNorm with the gain from `condition`. Default: False."""
    enc_norm_bias: bool
    """Layer norms with a bias (also for weights of releases before 1.27). Default: False. Layer Normalization, arXiv:1607.06450."""
    enc_norm_eps: float | None
    """Eps of every norm; None: 1e-5 of layer norms, x / |x| of others. Default: None. Layer Normalization, arXiv:1607.06450."""
    enc_norm_affine: bool
    """Norms with a gain. Default: True. OLMo, arXiv:2402.00838."""
    enc_branch_post_norm: bool
    """Norm the output of every branch in place of its input. Default: False. OLMo 2, arXiv:2501.00656."""
    enc_first_attn_norm: bool
    """A norm in front of the first attention. Default: True. ModernBERT, arXiv:2412.13663."""
    enc_sandwich_norm: bool
    """Norm the output of every branch as well. Default: False. CogView, arXiv:2105.13290."""
    enc_pre_and_post_norm: bool
    """Norm before every branch and after its residual. Default: False."""
    enc_block_norm: bool
    """Norm the stream behind each block. Default: False. Conformer, arXiv:2005.08100."""
    enc_parallel_block: bool | Literal['shared']
    """Branches of a block stand side by side, with norms of their own (True) or one for all ('shared'). Default: False. PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745."""
    enc_resi_dual: bool
    """Post-norm with a second, pre-norm stream beside it. Default: False. ResiDual, arXiv:2304.14802."""
    enc_resi_dual_scale: float
    """The factor c of the second stream, against overflow. Default: 1.0. ResiDual, arXiv:2304.14802."""
    enc_xl_rel_segments: bool
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    enc_two_stream: bool
    """Tokens may be asked for in an order, by queries that do not see them. Default: False. XLNet, arXiv:1906.08237."""
    enc_knn_mem_layers: Sequence[int]
    """Which layers of self-attention, counted from 0. Default: (). Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_size: int
    """Tokens that are stored for each row. Default: 65536. Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_topk: int
    """How many of them a head reads. Default: 32. Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_gate_init: float
    """Where gates start, a logit; -4 to add memory to a trained net. Default: 0.0. Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_search: Literal['exact', 'coarse']
    """How they are found: 'coarse' looks at few dimensions first, and may miss some. Default: 'exact'. Memorizing Transformers, arXiv:2203.08913."""
    enc_rotary_pos_emb: bool
    """Rotate queries and keys by their positions. Default: False. RoFormer, arXiv:2104.09864."""
    enc_rotary_emb_dim: int | None
    """How many features of a head turn, half of them if None. Default: None. RoFormer, arXiv:2104.09864."""
    enc_rotary_theta: float
    """Base of the frequencies, theta ** (-2 i / r) for pair i of r features. Default: 10000.0. RoFormer, arXiv:2104.09864."""
    enc_rotary_scaling: Mapping[str, Any] | None
    """Frequencies for longer contexts, a dict with a `kind`. Default: None. RoFormer, arXiv:2104.09864."""
    enc_rotary_xpos: bool
    """Decay with distance as well (xPos). Default: False. RoFormer, arXiv:2104.09864."""
    enc_rotary_xpos_scale_base: float
    """Length scale of the decay, in tokens. Default: 512. RoFormer, arXiv:2104.09864."""
    enc_rotary_interpolation_factor: float
    """Divide positions by this. Default: 1.0. RoFormer, arXiv:2104.09864."""
    enc_rotary_base_rescale_factor: float
    """Stretch the base for longer contexts (NTK-aware). Default: 1.0. RoFormer, arXiv:2104.09864."""
    enc_rotate_num_heads: int | None
    """How many heads are rotated, the last ones; all if None. Default: None. RoFormer, arXiv:2104.09864."""
    enc_rotary_layers: Sequence[bool | Mapping[str, Any]] | None
    """For each self-attention True, False for no rotation, or a dict with `theta` and `scaling` of its own. Default: None. Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466."""
    enc_polar_pos_emb: bool
    """Sizes from content, angles from positions. Default: False. PoPE, arXiv:2509.10534."""
    enc_polar_bias_uniform_init: bool
    """The learned shift of the keys starts at random, else at zero. Default: False. PoPE, arXiv:2509.10534."""
    enc_position_infused_attn: bool
    """Add sinusoids to what queries and keys are made from. Default: False. Shortformer, arXiv:2012.15832."""
    enc_alibi_pos_bias: bool
    """Penalise distance linearly. Default: False. Train Short, Test Long, arXiv:2108.12409."""
    enc_alibi_num_heads: int | None
    """How many heads have a slope, the first ones; all if None. Default: None. Train Short, Test Long, arXiv:2108.12409."""
    enc_alibi_bidirectional: Literal['symmetric', 'split']
    """In stacks that are not causal: 'split', so that half of these heads look back, and the others ahead. Default: 'symmetric'. Train Short, Test Long, arXiv:2108.12409."""
    enc_rel_pos_bias: bool
    """Learned bias per bucket of distances. Default: False. T5, arXiv:1910.10683."""
    enc_rel_pos_num_buckets: int
    """Number of buckets. Default: 32. T5, arXiv:1910.10683."""
    enc_rel_pos_max_distance: int
    """Distance from which on all share a bucket. Default: 128. T5, arXiv:1910.10683."""
    enc_rel_pos_bias_scale: float | None
    """Factor of the bias, the root of the head width if None; T5 has 1. Default: None. T5, arXiv:1910.10683."""
    enc_dynamic_pos_bias: bool
    """A small network turns distances into biases. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_dynamic_pos_bias_log_distance: bool
    """It sees the signed logarithm of the distance. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_dynamic_pos_bias_mlp_depth: int
    """Its hidden layers. Default: 2. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_dynamic_pos_bias_norm: bool
    """Norms inside it. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_shaw_rel_pos: bool
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_shaw_max_distance: int
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_shaw_rel_values: bool
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_xl_rel_pos: bool
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_xl_rel_pos_untied: bool
    """Vectors u and v of each layer. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_xl_clamp_len: int | None
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    enc_tupe_pos: bool
    """Positions have scores of their own, apart from contents. Default: False. TUPE, arXiv:2006.15595."""
    enc_tupe_cls_first: bool
    """The token at position 0 is [CLS], and has no position either. Default: False. TUPE, arXiv:2006.15595."""
    enc_da_pos_rescale: bool
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    enc_add_value_residual: bool
    """Mix the values of the first attention layer into the later ones. Default: False. Value Residual Learning, arXiv:2410.17897."""
    enc_learned_value_residual_mix: bool
    """Learn the mix in self-attention, else one half. Default: True. Value Residual Learning, arXiv:2410.17897."""
    enc_residual_attn: bool
    """Add the logits of the self-attention before. Default: False. RealFormer, arXiv:2012.11747."""
    enc_cross_residual_attn: bool
    """Add the logits of the cross-attention before. Default: False. RealFormer, arXiv:2012.11747."""
    enc_layer_dropout: float | Sequence[float]
    """Probability of leaving a layer out in training, or a tuple with one per layer. Default: 0.0. Deep Networks with Stochastic Depth, arXiv:1603.09382."""
    enc_zero_init_branch_output: bool
    """Zero the last projection of every branch at first. Default: False."""
    enc_shift_tokens: int | Sequence[int]
    """By how many tokens features are shifted, or a tuple with one number per layer. Default: 0. RWKV, github.com/BlinkDL/RWKV-LM (token shift)."""
    enc_use_layerscale: bool
    """Learned gain per feature on every branch. Default: False. Going deeper with Image Transformers, arXiv:2103.17239."""
    enc_layerscale_init_value: float
    """Its effective initial value. Default: 0.0. Going deeper with Image Transformers, arXiv:2103.17239."""
    enc_use_adaptive_layerscale: bool
    """Gate every branch by a sigmoid of `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    enc_use_adaln_zero: bool
    """Shift, scale and gate of every branch from `condition`, zero at first. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    enc_scale_residual: bool | float
    """Learned scale per feature on the residual; a number also scales every branch. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    enc_scale_residual_constant: float
    """Constant factor of the residual. Default: 1.0. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    enc_depth_scale_residual: bool | float
    """True: initial outputs shrink with depth; a number: constant factor of every branch. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    enc_use_rezero: bool
    """A learned gate on every branch in place of norms. Default: False. ReZero is All You Need, arXiv:2003.04887."""
    enc_cross_attn_tokens_dropout: float
    """Fraction of context tokens that a cross-attention does not see in training. Default: 0.0. Perceiver AR, arXiv:2202.07765."""
    enc_integrate_layers: bool
    """Branches read a learned mix of the inputs of all before. Default: False. LIMe, arXiv:2502.09245."""
    enc_layer_integrate_use_softmax: bool
    """Weights of the mix sum to one, else they are ReLUs. Default: True. LIMe, arXiv:2502.09245."""
    enc_attn_aggregated_residuals: bool
    """Branches attend to the inputs of all before. Default: False. arXiv:2601.21582, arXiv:2603.15031."""
    enc_attn_aggregated_residual_kwargs: Mapping[str, Any] | None
    """`lora_rank` (64) and `lora_activation` of its queries. Default: None. arXiv:2601.21582, arXiv:2603.15031."""
    enc_reinject_input: bool
    """Add a projection of the input to the input of every branch. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    enc_learned_reinject_input_gate: bool
    """Gate it, or `in_attn_cond`, per token. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    enc_qkv_receive_diff_residuals: bool
    """Separate inputs of queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    enc_gate_residual: bool
    """Gates in place of the sum: a GRU cell, or of `residual_fn_kwargs=dict(gate='gtrxl', ...)`. Default: False. Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764."""
    enc_orthog_residual: bool
    """Add only what is orthogonal to the residual. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    enc_orthog_residual_over_sequence: bool
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    enc_mv_split_residual: bool
    """Separate rates for the mean over tokens, and for what differs from it. Default: False. arXiv:2605.06169."""
    enc_gated_multi_residual: bool
    """Gated reads and writes; needs `residual_fn_kwargs=dict(read_gate_rank=...)`. Default: False."""
    enc_num_residual_streams: int
    """Number of residual streams. Default: 1. Hyper-Connections, arXiv:2409.19606."""
    enc_hyper_conn_sinkhorn_iters: int
    """Iterations that make the mix doubly stochastic. Default: 5. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    enc_hyper_conn_residual_mix: Literal['sinkhorn', 'ones']
    """The mix of streams: 'sinkhorn', doubly stochastic, or 'ones', as in weights of x-transformers 2.31. Default: 'sinkhorn'. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    enc_softclamp_output: bool
    """Bound the output of the last layer smoothly. Default: False. Gemma 2, arXiv:2408.00118."""
    enc_softclamp_output_value: float
    """The bound c. Default: 30.0. Gemma 2, arXiv:2408.00118."""
    enc_checkpoint_layers: bool | int
    """In training, compute layers again in the backward pass: True for each by itself, k for segments of k layers. Default: False. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    enc_reversible: bool
    """Two streams, whose values are computed back in the backward pass instead of being kept. Default: False. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    enc_reversible_merge: Literal['mean', 'concat_norm']
    """What the final norm reads: the mean of the streams, or both. Default: 'mean'. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    enc_act_halting: bool
    """Each token says after each run of the block whether it needs another. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_eps: float
    """A token halts at a sum of 1 less this. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_ponder_weight: float
    """Weight of the loss for going on. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_dense: bool
    """Compute all tokens in every run, also those that have halted. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_max_steps: int | None
    """Runs of the block at most; `None`: all, as many as `depth`. Default: None. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_ff_mult: float | tuple[float, ...] | PerLayer
    """Inner width as a multiple of `dim`. Default: 4."""
    enc_ff_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width, in place of `mult`. Default: None."""
    enc_ff_activation: str | None | tuple[str | None, ...] | PerLayer
    """By name; GELU if None. Default: None."""
    enc_ff_no_bias: bool | tuple[bool, ...] | PerLayer
    """Linear layers without bias; a gated unit keeps its own. Default: False."""
    enc_ff_dropout: float | tuple[float, ...] | PerLayer
    """Dropout before the output projection. Default: 0.0."""
    enc_ff_custom_activation: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """Module in place of GELU. Default: None."""
    enc_ff_relu_squared: bool | tuple[bool, ...] | PerLayer
    """Squared ReLU in place of GELU. Default: False. Primer, arXiv:2109.08668."""
    enc_ff_solu: bool | tuple[bool, ...] | PerLayer
    """Softmax linear unit, with a norm, in place of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    enc_ff_swish: bool | tuple[bool, ...] | PerLayer
    """SiLU in place of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    enc_ff_glu: bool | tuple[bool, ...] | PerLayer
    """Gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_glu_mult_bias: bool | tuple[bool, ...] | PerLayer
    """Learned scale per feature after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_glu_softclamp: bool | tuple[bool, ...] | PerLayer
    """Bound both factors smoothly, but not what opens the gate; of GELU or SiLU only. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_glu_gate_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the linear factor of the gate. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_glu_up_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the other half. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_glu_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Bias of the gated projection; None: always. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_swiglu_limit: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves u, g:  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_swiglu_alpha: float | tuple[float, ...] | PerLayer
    """The factor alpha in it. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    enc_ff_softclamp_value: float | None | tuple[float | None, ...] | PerLayer
    """Bound the input of the activation smoothly. Default: None."""
    enc_ff_post_act_ln: bool | tuple[bool, ...] | PerLayer
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    enc_ff_moe_experts: int | None | tuple[int | None, ...] | PerLayer
    """Number of experts; None for a plain feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_top_k: int | tuple[int, ...] | PerLayer
    """How many experts a token goes through. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of an expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_kind: Literal['softmax', 'sigmoid', 'topk_softmax'] | tuple[Literal['softmax', 'sigmoid', 'topk_softmax'], ...] | PerLayer
    """How experts are chosen and weighted. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_renormalise: bool | tuple[bool, ...] | PerLayer
    """Weights of the chosen experts sum to one. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_groups: int | tuple[int, ...] | PerLayer
    """Equal groups of experts, of which only the best count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_top_groups: int | tuple[int, ...] | PerLayer
    """How many groups count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_scale: float | tuple[float, ...] | PerLayer
    """Factor of the weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_score_bias: bool | tuple[bool, ...] | PerLayer
    """A buffer that is added to the scores where experts are chosen, not to their weights. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_shared: int | None | tuple[int | None, ...] | PerLayer
    """Experts that every token goes through, as one feedforward of that many widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_router_bias: bool | tuple[bool, ...] | PerLayer
    """A bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Biases of all experts; None: unless `no_bias`. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_moe_balance_loss: float | tuple[float, ...] | PerLayer
    """Weight of the loss that spreads tokens over experts. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    enc_ff_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout after the output projection. Default: 0.0."""
    enc_ff_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Number of the block, by which initial outputs shrink. Default: None. OLMo, arXiv:2402.00838."""
    enc_ff_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights and bias of the output projection at first. Default: False."""
    enc_ff_chunks: int | tuple[int, ...] | PerLayer
    """Slices of the tokens, one after the other: less memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    enc_ff_chunk_checkpoint: bool | tuple[bool, ...] | PerLayer
    """In training, compute each slice again in the backward pass: less memory there too. Default: False. Reformer, arXiv:2001.04451."""
    enc_cross_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of a query or key head. Default: 64."""
    enc_cross_attn_dim_context: int | None | tuple[int | None, ...] | PerLayer
    """Width of the context, `dim` if None. Default: None."""
    enc_cross_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """None: the fastest exact kernel; True: the fused one; False: the formula. Default: None."""
    enc_cross_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key heads, shared between query heads. Default: None."""
    enc_cross_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """One key head for all query heads. Default: False."""
    enc_cross_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of a value head, `dim_head` if None. Default: None."""
    enc_cross_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Project the output; None: unless one head has the width already. Default: None."""
    enc_cross_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    enc_cross_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    enc_cross_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    enc_cross_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_cross_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_cross_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_cross_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    enc_cross_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    enc_cross_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    enc_cross_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    enc_cross_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_cross_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_cross_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    enc_cross_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    enc_cross_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_norm_scale: float | tuple[float, ...] | PerLayer
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    enc_cross_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    enc_cross_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    enc_cross_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sortcut: int | tuple[int, ...] | PerLayer
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    enc_cross_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    enc_cross_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    enc_cross_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    enc_cross_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    enc_cross_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """A bias over distance that the query projects. Default: False."""
    enc_cross_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of curves that it mixes. Default: 16."""
    enc_cross_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves; further back the bias is 0. Default: 1024."""
    enc_cross_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_cross_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_cross_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_cross_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_cross_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    enc_cross_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    enc_cross_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    enc_cross_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    enc_cross_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_cross_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_cross_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_max_span: int | tuple[int, ...] | PerLayer
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_span_init: float | tuple[float, ...] | PerLayer
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    enc_cross_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_cross_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_cross_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    enc_cross_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_cross_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_cross_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_cross_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_cross_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    enc_cross_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    enc_cross_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    enc_cross_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    enc_cross_attn_differential: bool | tuple[bool, ...] | PerLayer
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    enc_cross_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    enc_cross_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    enc_cross_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    enc_cross_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted; the causal triangle can always be exported. Default: False."""
    enc_cross_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the weights by mixed similarities. Default: False."""
    enc_cross_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_cross_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_cross_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    enc_cross_attn_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    enc_cross_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    enc_cross_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    enc_cross_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    enc_cross_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    enc_cross_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    enc_cross_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    enc_cross_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_cross_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_cross_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    enc_cross_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    enc_cross_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_cross_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_cross_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_cross_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    enc_cross_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable, logits b h i j -> weights. Default: None."""
    enc_cross_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    enc_cross_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    enc_cross_attn_hybrid_module: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    enc_cross_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    enc_cross_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    enc_cross_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    enc_cross_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_cross_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    enc_cross_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_cross_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_cross_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_cross_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    enc_cross_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    enc_cross_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    enc_cross_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights of the output projection at first. Default: False."""
    enc_cross_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    enc_cross_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping a feature of the output. Default: 0.0."""
    enc_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of a query or key head. Default: 64."""
    enc_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """None: the fastest exact kernel; True: the fused one; False: the formula. Default: None."""
    enc_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key heads, shared between query heads. Default: None."""
    enc_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """One key head for all query heads. Default: False."""
    enc_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of a value head, `dim_head` if None. Default: None."""
    enc_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Project the output; None: unless one head has the width already. Default: None."""
    enc_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    enc_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    enc_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    enc_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    enc_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    enc_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    enc_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    enc_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    enc_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    enc_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_norm_scale: float | tuple[float, ...] | PerLayer
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    enc_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    enc_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    enc_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sortcut: int | tuple[int, ...] | PerLayer
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    enc_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    enc_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    enc_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    enc_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    enc_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """A bias over distance that the query projects. Default: False."""
    enc_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of curves that it mixes. Default: 16."""
    enc_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves; further back the bias is 0. Default: 1024."""
    enc_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    enc_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    enc_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    enc_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    enc_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_max_span: int | tuple[int, ...] | PerLayer
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_span_init: float | tuple[float, ...] | PerLayer
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    enc_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    enc_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    enc_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    enc_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    enc_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    enc_attn_differential: bool | tuple[bool, ...] | PerLayer
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    enc_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    enc_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    enc_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    enc_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted; the causal triangle can always be exported. Default: False."""
    enc_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the weights by mixed similarities. Default: False."""
    enc_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    enc_attn_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    enc_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    enc_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    enc_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    enc_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    enc_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    enc_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    enc_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    enc_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    enc_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    enc_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable, logits b h i j -> weights. Default: None."""
    enc_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    enc_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    enc_attn_hybrid_module: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    enc_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    enc_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    enc_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    enc_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    enc_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    enc_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    enc_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    enc_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    enc_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights of the output projection at first. Default: False."""
    enc_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    enc_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping a feature of the output. Default: 0.0."""
    enc_num_tokens: Required[int]
    """Size of the vocabulary."""
    enc_max_seq_len: Required[int | None]
    """Longest sequence with absolute positions; 0, -1 or None for none of them."""
    enc_emb_dim: int | None
    """Width of the embeddings, that of the stack if None. Default: None."""
    enc_emb_dropout: float
    """Dropout on the embeddings. Default: 0.0."""
    enc_l2norm_embed: bool
    """Embeddings of unit length. Default: False."""
    enc_project_emb: bool | None
    """A projection to the width of the stack; None: where widths differ. Default: None."""
    enc_project_emb_bias: bool
    """A bias of this projection. Default: True."""
    enc_post_emb_norm_at: str
    """Where `post_emb_norm` stands, before or after this projection. Default: 'embedding'."""
    enc_logits_dim: int | None
    """Width of the logits, `num_tokens` if None. Default: None."""
    enc_logits_bias: bool
    """A bias of the head, also beside `tie_embedding`. Default: False."""
    enc_token_emb: nn.Module | None
    """A token embedding of your own. Default: None."""
    enc_to_logits: nn.Module | None
    """A head of your own. Default: None."""
    enc_max_mem_len: int
    """Hidden states kept as memories. Default: 0."""
    enc_shift_mem_down: int
    """Memories of a layer go to the one so many below. Default: 0."""
    enc_attn_z_loss_weight: float
    """Weight of the loss on the size of attention logits. Default: 0.0001."""
    enc_input_not_include_cache: bool
    """With a cache, calls pass new tokens only. Default: False."""
    enc_mem_same_length: bool
    """Each query sees `max_mem_len` keys before itself, memories or not. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_use_abs_pos_emb: bool
    """Add a vector per position, unless the stack has positions of its own. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    enc_abs_pos_emb_scale: float | None
    """Factor of the table, emb_dim ** -0.5 if None; of sines, in place of the learned one. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    enc_sinu_pos_emb: bool
    """Sines and cosines of the position, instead of a table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_scaled_sinu_pos_emb: bool
    """The same with a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_sinu_theta: float
    """Waves are 2 pi to 2 pi times this long, in tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_sinu_denominator: Literal['d', 'half_minus_1']
    """Frequency k is theta ** (-2 k / d); theta ** (-k / (d / 2 - 1)) if 'half_minus_1', as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_axial_abs_pos_emb: Sequence[int] | None
    """Lengths of the axes of data; a learned vector per place on each, in place of one per token. Default: None. Sparse Transformer, arXiv:1904.10509, section 5.2."""
    enc_embed_num_tokens: Mapping[str, int]
    """Name -> vocabulary of each further stream of ids. Default: {}."""
    enc_embed_default_ids: Mapping[str, int]
    """Name -> id of all tokens of a stream that a call leaves out. Default: {}."""
    enc_emb_scale: float
    """Factor of token embeddings, rounded to the dtype of their table. Default: 1.0. Attention Is All You Need, arXiv:1706.03762, section 3.4."""
    enc_post_emb_norm: bool
    """Layer norm after the embeddings are summed. Default: False. BERT, arXiv:1810.04805."""
    enc_post_emb_norm_bias: bool
    """With a bias. Default: False. BERT, arXiv:1810.04805."""
    enc_post_emb_norm_eps: float | None
    """Its eps, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    enc_emb_frac_gradient: float
    """Fraction of the gradient that reaches the embeddings. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    enc_use_cls_token: bool
    """Read the output from learned tokens in front. Default: False. BERT, arXiv:1810.04805."""
    enc_num_cls_tokens: int
    """How many. Default: 1. BERT, arXiv:1810.04805."""
    enc_num_memory_tokens: int | None
    """How many. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    enc_memory_tokens_interspersed_every: int | None
    """Put them in front of every chunk of so many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    enc_ff_deep_embed: bool
    """A learned vector per token scales the output of each feedforward. Default: False. RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM."""
    enc_recycling: bool
    """Run the stack several times, each time with its last output added to the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    enc_train_max_recycle_steps: int
    """In training, the passes are drawn from 1 to this many. Default: 4. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    enc_looped: bool
    """Run the stack several times over its own output. Default: False. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    enc_max_looped_steps: int
    """How often. Default: 4. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    enc_cmem_len: int
    """Compressed memories of each self-attention, behind `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_ratio: int
    """How many memories become one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """What makes one of them. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_loss: Literal['attn', 'ae'] | None
    """What it learns by: attention, or the way back. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_init: Literal['mean'] | None
    """How convolutions start: None as torch's do. Default: None. Compressive Transformer, arXiv:1911.05507."""
    enc_average_pool_embed: bool
    """Mean over tokens before the head. Default: False."""
    enc_attn_pool: bool
    """Pool the output by attention of learned queries. Default: False."""
    enc_num_pooled_tokens: int
    """Number of queries. Default: 1."""
    enc_attn_pool_depth: int
    """Blocks of cross-attention. Default: 1."""
    enc_dim_pooled_tokens: int | None
    """Width of the pooled tokens, that of the stack if None. Default: None."""
    enc_head_transform: Mapping[str, Any] | None
    """A dict of what stands in front of the head: a linear map, an activation, a norm. Default: None. BERT, arXiv:1810.04805."""
    enc_tie_embedding: bool
    """Logits from the token table. Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    enc_tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    enc_tie_embedding_normed: bool
    """Of `l2norm_embed`, logits come from the normed table; False, as in the original: from that which is stored. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    enc_num_output_heads: int
    """How many heads; the logits become a tuple. Default: 1."""
    enc_logits_scale: float
    """Factor of the logits. Default: 1.0. Tensor Programs V, arXiv:2203.03466."""
    enc_logits_softclamp: float | None
    """Bound the logits smoothly by this. Default: None. Gemma 2, arXiv:2408.00118, section 2."""
    enc_sigsoftmax_logits: bool
    """Add log sigmoid to the logits. Default: False. Sigsoftmax, arXiv:1805.10829."""
    enc_mixture_of_softmax: bool
    """Log probabilities of a mixture of softmaxes, in place of logits. Default: False. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    enc_mixture_of_softmax_k: int
    """Number of components. Default: 4. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    enc_squeeze_out_last_dim: bool
    """Drop the last axis of logits if it has one entry. Default: False."""
    enc_add_continuous_pred_head: bool
    """Predict the next embedding as well. Default: False."""
    enc_pooler: Mapping[str, Any] | None
    """A dict of how `return_pooled` reads a vector of the sequence. Default: None. BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020."""
    dec_heads: int
    """Attention heads of every layer. Default: 8."""
    dec_pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    dec_pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    dec_norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    dec_disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    dec_rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    dec_residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    dec_verbose: bool
    """Warn of choices known to hurt. Default: True."""
    dec_macaron: bool
    """Feedforward before and after attention, each at half weight. Default: False. Macaron Net, arXiv:1906.02762."""
    dec_conv_module: bool
    """A convolution along the sequence behind each attention. Default: False. Conformer, arXiv:2005.08100."""
    dec_conv_kernel_size: int
    """Tokens of its kernel; odd, unless it looks back alone. Default: 31. Conformer, arXiv:2005.08100."""
    dec_conv_causal: bool
    """It looks back alone. Default: False. Conformer, arXiv:2005.08100."""
    dec_conv_norm: Literal['batch', 'layer', 'group']
    """Its norm: over the 'batch', or of each token, 'layer' or 'group'. Default: 'batch'. Conformer, arXiv:2005.08100."""
    dec_only_attn: bool
    """Leave out every feedforward. Default: False. arXiv:2607.18363."""
    dec_custom_layers: Sequence[Any] | None
    """Kinds of all layers, such as ('a', 'f', 'a', 'f'): those of `KINDS`. Default: None."""
    dec_recurrent_module: Literal['rwkv', 'ssm'] | nn.Module | None
    """What layers of kind 'r' in `custom_layers` are, by name or as a module of your own, of which each gets a copy. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343."""
    dec_par_ratio: int | None
    """One attention to so many layers. Default: None. PAR Transformer, arXiv:2009.04534."""
    dec_sandwich_coef: int | None
    """How many attention layers come first, and feedforwards last. Default: None. Sandwich Transformers, arXiv:1911.03864."""
    dec_weight_tie_layers: bool
    """Share one block between all depths. Default: False. ALBERT, arXiv:1909.11942."""
    dec_layers_execute_order: Sequence[int] | None
    """Indices of layers, in the order in which they run. Default: None."""
    dec_ut_transition: Literal['ff', 'sepconv']
    """What stands in place of feedforwards: 'sepconv' for convolutions. Default: 'ff'. Universal Transformers, arXiv:1807.03819."""
    dec_per_layer_abs_pos_emb: int | None
    """How many positions have a vector in each layer, added to the stream before it. Default: None. Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444."""
    dec_coord_pos_emb: bool | Literal['learned']
    """Waves of positions and runs, added at every run of a block; 'learned': a vector per run. Default: False. Universal Transformers, arXiv:1807.03819."""
    dec_unet_skips: bool
    """Concatenate the inputs of mirrored blocks. Default: False. U-ViT, arXiv:2209.12152."""
    dec_dim_condition: int | None
    """Width of the condition, `dim` if None. Default: None."""
    dec_adaptive_condition_mlp: bool
    """Expand the condition by a linear layer and SiLU first. Default: False."""
    dec_adaptive_condition_mlp_expansion: int
    """By how much. Default: 4."""
    dec_use_scalenorm: bool
    """ScaleNorm in place of LayerNorm. Default: False. Transformers without Tears, arXiv:1910.05895."""
    dec_use_rmsnorm: bool
    """RMSNorm in place of LayerNorm. Default: False. Root Mean Square Layer Normalization, arXiv:1910.07467."""
    dec_use_simple_rmsnorm: bool
    """RMSNorm without a gain, in place of LayerNorm. Default: False. TransNormer, arXiv:2307.14995."""
    dec_use_dynamic_tanh: bool
    """DynamicTanh in place of LayerNorm. Default: False. Transformers without Normalization, arXiv:2503.10622."""
    dec_dynamic_tanh_init_alpha: float
    """Initial factor of what it bounds. Default: 1.0. Transformers without Normalization, arXiv:2503.10622."""
    dec_use_derf: bool
    """Derf in place of LayerNorm. Default: False. Stronger Normalization-Free Transformers, arXiv:2512.10938."""
    dec_use_adaptive_layernorm: bool
    """Layer norm with the gain from `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    dec_use_adaptive_rmsnorm: bool
    """RMSNorm with the gain from `condition`. Default: False."""
    dec_norm_bias: bool
    """Layer norms with a bias (also for weights of releases before 1.27). Default: False. Layer Normalization, arXiv:1607.06450."""
    dec_norm_eps: float | None
    """Eps of every norm; None: 1e-5 of layer norms, x / |x| of others. Default: None. Layer Normalization, arXiv:1607.06450."""
    dec_norm_affine: bool
    """Norms with a gain. Default: True. OLMo, arXiv:2402.00838."""
    dec_branch_post_norm: bool
    """Norm the output of every branch in place of its input. Default: False. OLMo 2, arXiv:2501.00656."""
    dec_first_attn_norm: bool
    """A norm in front of the first attention. Default: True. ModernBERT, arXiv:2412.13663."""
    dec_sandwich_norm: bool
    """Norm the output of every branch as well. Default: False. CogView, arXiv:2105.13290."""
    dec_pre_and_post_norm: bool
    """Norm before every branch and after its residual. Default: False."""
    dec_block_norm: bool
    """Norm the stream behind each block. Default: False. Conformer, arXiv:2005.08100."""
    dec_parallel_block: bool | Literal['shared']
    """Branches of a block stand side by side, with norms of their own (True) or one for all ('shared'). Default: False. PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745."""
    dec_resi_dual: bool
    """Post-norm with a second, pre-norm stream beside it. Default: False. ResiDual, arXiv:2304.14802."""
    dec_resi_dual_scale: float
    """The factor c of the second stream, against overflow. Default: 1.0. ResiDual, arXiv:2304.14802."""
    dec_xl_rel_segments: bool
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    dec_two_stream: bool
    """Tokens may be asked for in an order, by queries that do not see them. Default: False. XLNet, arXiv:1906.08237."""
    dec_knn_mem_layers: Sequence[int]
    """Which layers of self-attention, counted from 0. Default: (). Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_size: int
    """Tokens that are stored for each row. Default: 65536. Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_topk: int
    """How many of them a head reads. Default: 32. Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_gate_init: float
    """Where gates start, a logit; -4 to add memory to a trained net. Default: 0.0. Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_search: Literal['exact', 'coarse']
    """How they are found: 'coarse' looks at few dimensions first, and may miss some. Default: 'exact'. Memorizing Transformers, arXiv:2203.08913."""
    dec_rotary_pos_emb: bool
    """Rotate queries and keys by their positions. Default: False. RoFormer, arXiv:2104.09864."""
    dec_rotary_emb_dim: int | None
    """How many features of a head turn, half of them if None. Default: None. RoFormer, arXiv:2104.09864."""
    dec_rotary_theta: float
    """Base of the frequencies, theta ** (-2 i / r) for pair i of r features. Default: 10000.0. RoFormer, arXiv:2104.09864."""
    dec_rotary_scaling: Mapping[str, Any] | None
    """Frequencies for longer contexts, a dict with a `kind`. Default: None. RoFormer, arXiv:2104.09864."""
    dec_rotary_xpos: bool
    """Decay with distance as well (xPos). Default: False. RoFormer, arXiv:2104.09864."""
    dec_rotary_xpos_scale_base: float
    """Length scale of the decay, in tokens. Default: 512. RoFormer, arXiv:2104.09864."""
    dec_rotary_interpolation_factor: float
    """Divide positions by this. Default: 1.0. RoFormer, arXiv:2104.09864."""
    dec_rotary_base_rescale_factor: float
    """Stretch the base for longer contexts (NTK-aware). Default: 1.0. RoFormer, arXiv:2104.09864."""
    dec_rotate_num_heads: int | None
    """How many heads are rotated, the last ones; all if None. Default: None. RoFormer, arXiv:2104.09864."""
    dec_rotary_layers: Sequence[bool | Mapping[str, Any]] | None
    """For each self-attention True, False for no rotation, or a dict with `theta` and `scaling` of its own. Default: None. Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466."""
    dec_polar_pos_emb: bool
    """Sizes from content, angles from positions. Default: False. PoPE, arXiv:2509.10534."""
    dec_polar_bias_uniform_init: bool
    """The learned shift of the keys starts at random, else at zero. Default: False. PoPE, arXiv:2509.10534."""
    dec_position_infused_attn: bool
    """Add sinusoids to what queries and keys are made from. Default: False. Shortformer, arXiv:2012.15832."""
    dec_alibi_pos_bias: bool
    """Penalise distance linearly. Default: False. Train Short, Test Long, arXiv:2108.12409."""
    dec_alibi_num_heads: int | None
    """How many heads have a slope, the first ones; all if None. Default: None. Train Short, Test Long, arXiv:2108.12409."""
    dec_alibi_bidirectional: Literal['symmetric', 'split']
    """In stacks that are not causal: 'split', so that half of these heads look back, and the others ahead. Default: 'symmetric'. Train Short, Test Long, arXiv:2108.12409."""
    dec_rel_pos_bias: bool
    """Learned bias per bucket of distances. Default: False. T5, arXiv:1910.10683."""
    dec_rel_pos_num_buckets: int
    """Number of buckets. Default: 32. T5, arXiv:1910.10683."""
    dec_rel_pos_max_distance: int
    """Distance from which on all share a bucket. Default: 128. T5, arXiv:1910.10683."""
    dec_rel_pos_bias_scale: float | None
    """Factor of the bias, the root of the head width if None; T5 has 1. Default: None. T5, arXiv:1910.10683."""
    dec_dynamic_pos_bias: bool
    """A small network turns distances into biases. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_dynamic_pos_bias_log_distance: bool
    """It sees the signed logarithm of the distance. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_dynamic_pos_bias_mlp_depth: int
    """Its hidden layers. Default: 2. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_dynamic_pos_bias_norm: bool
    """Norms inside it. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_shaw_rel_pos: bool
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_shaw_max_distance: int
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_shaw_rel_values: bool
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_xl_rel_pos: bool
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_xl_rel_pos_untied: bool
    """Vectors u and v of each layer. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_xl_clamp_len: int | None
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    dec_tupe_pos: bool
    """Positions have scores of their own, apart from contents. Default: False. TUPE, arXiv:2006.15595."""
    dec_tupe_cls_first: bool
    """The token at position 0 is [CLS], and has no position either. Default: False. TUPE, arXiv:2006.15595."""
    dec_da_pos_rescale: bool
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    dec_add_value_residual: bool
    """Mix the values of the first attention layer into the later ones. Default: False. Value Residual Learning, arXiv:2410.17897."""
    dec_learned_value_residual_mix: bool
    """Learn the mix in self-attention, else one half. Default: True. Value Residual Learning, arXiv:2410.17897."""
    dec_residual_attn: bool
    """Add the logits of the self-attention before. Default: False. RealFormer, arXiv:2012.11747."""
    dec_cross_residual_attn: bool
    """Add the logits of the cross-attention before. Default: False. RealFormer, arXiv:2012.11747."""
    dec_layer_dropout: float | Sequence[float]
    """Probability of leaving a layer out in training, or a tuple with one per layer. Default: 0.0. Deep Networks with Stochastic Depth, arXiv:1603.09382."""
    dec_zero_init_branch_output: bool
    """Zero the last projection of every branch at first. Default: False."""
    dec_shift_tokens: int | Sequence[int]
    """By how many tokens features are shifted, or a tuple with one number per layer. Default: 0. RWKV, github.com/BlinkDL/RWKV-LM (token shift)."""
    dec_use_layerscale: bool
    """Learned gain per feature on every branch. Default: False. Going deeper with Image Transformers, arXiv:2103.17239."""
    dec_layerscale_init_value: float
    """Its effective initial value. Default: 0.0. Going deeper with Image Transformers, arXiv:2103.17239."""
    dec_use_adaptive_layerscale: bool
    """Gate every branch by a sigmoid of `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    dec_use_adaln_zero: bool
    """Shift, scale and gate of every branch from `condition`, zero at first. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    dec_scale_residual: bool | float
    """Learned scale per feature on the residual; a number also scales every branch. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    dec_scale_residual_constant: float
    """Constant factor of the residual. Default: 1.0. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    dec_depth_scale_residual: bool | float
    """True: initial outputs shrink with depth; a number: constant factor of every branch. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    dec_use_rezero: bool
    """A learned gate on every branch in place of norms. Default: False. ReZero is All You Need, arXiv:2003.04887."""
    dec_cross_attn_tokens_dropout: float
    """Fraction of context tokens that a cross-attention does not see in training. Default: 0.0. Perceiver AR, arXiv:2202.07765."""
    dec_integrate_layers: bool
    """Branches read a learned mix of the inputs of all before. Default: False. LIMe, arXiv:2502.09245."""
    dec_layer_integrate_use_softmax: bool
    """Weights of the mix sum to one, else they are ReLUs. Default: True. LIMe, arXiv:2502.09245."""
    dec_attn_aggregated_residuals: bool
    """Branches attend to the inputs of all before. Default: False. arXiv:2601.21582, arXiv:2603.15031."""
    dec_attn_aggregated_residual_kwargs: Mapping[str, Any] | None
    """`lora_rank` (64) and `lora_activation` of its queries. Default: None. arXiv:2601.21582, arXiv:2603.15031."""
    dec_reinject_input: bool
    """Add a projection of the input to the input of every branch. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    dec_learned_reinject_input_gate: bool
    """Gate it, or `in_attn_cond`, per token. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    dec_qkv_receive_diff_residuals: bool
    """Separate inputs of queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    dec_gate_residual: bool
    """Gates in place of the sum: a GRU cell, or of `residual_fn_kwargs=dict(gate='gtrxl', ...)`. Default: False. Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764."""
    dec_orthog_residual: bool
    """Add only what is orthogonal to the residual. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    dec_orthog_residual_over_sequence: bool
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    dec_mv_split_residual: bool
    """Separate rates for the mean over tokens, and for what differs from it. Default: False. arXiv:2605.06169."""
    dec_gated_multi_residual: bool
    """Gated reads and writes; needs `residual_fn_kwargs=dict(read_gate_rank=...)`. Default: False."""
    dec_num_residual_streams: int
    """Number of residual streams. Default: 1. Hyper-Connections, arXiv:2409.19606."""
    dec_hyper_conn_sinkhorn_iters: int
    """Iterations that make the mix doubly stochastic. Default: 5. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    dec_hyper_conn_residual_mix: Literal['sinkhorn', 'ones']
    """The mix of streams: 'sinkhorn', doubly stochastic, or 'ones', as in weights of x-transformers 2.31. Default: 'sinkhorn'. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    dec_softclamp_output: bool
    """Bound the output of the last layer smoothly. Default: False. Gemma 2, arXiv:2408.00118."""
    dec_softclamp_output_value: float
    """The bound c. Default: 30.0. Gemma 2, arXiv:2408.00118."""
    dec_checkpoint_layers: bool | int
    """In training, compute layers again in the backward pass: True for each by itself, k for segments of k layers. Default: False. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    dec_reversible: bool
    """Two streams, whose values are computed back in the backward pass instead of being kept. Default: False. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    dec_reversible_merge: Literal['mean', 'concat_norm']
    """What the final norm reads: the mean of the streams, or both. Default: 'mean'. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    dec_act_halting: bool
    """Each token says after each run of the block whether it needs another. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_eps: float
    """A token halts at a sum of 1 less this. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_ponder_weight: float
    """Weight of the loss for going on. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_dense: bool
    """Compute all tokens in every run, also those that have halted. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_max_steps: int | None
    """Runs of the block at most; `None`: all, as many as `depth`. Default: None. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_ff_mult: float | tuple[float, ...] | PerLayer
    """Inner width as a multiple of `dim`. Default: 4."""
    dec_ff_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width, in place of `mult`. Default: None."""
    dec_ff_activation: str | None | tuple[str | None, ...] | PerLayer
    """By name; GELU if None. Default: None."""
    dec_ff_no_bias: bool | tuple[bool, ...] | PerLayer
    """Linear layers without bias; a gated unit keeps its own. Default: False."""
    dec_ff_dropout: float | tuple[float, ...] | PerLayer
    """Dropout before the output projection. Default: 0.0."""
    dec_ff_custom_activation: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """Module in place of GELU. Default: None."""
    dec_ff_relu_squared: bool | tuple[bool, ...] | PerLayer
    """Squared ReLU in place of GELU. Default: False. Primer, arXiv:2109.08668."""
    dec_ff_solu: bool | tuple[bool, ...] | PerLayer
    """Softmax linear unit, with a norm, in place of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    dec_ff_swish: bool | tuple[bool, ...] | PerLayer
    """SiLU in place of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    dec_ff_glu: bool | tuple[bool, ...] | PerLayer
    """Gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_glu_mult_bias: bool | tuple[bool, ...] | PerLayer
    """Learned scale per feature after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_glu_softclamp: bool | tuple[bool, ...] | PerLayer
    """Bound both factors smoothly, but not what opens the gate; of GELU or SiLU only. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_glu_gate_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the linear factor of the gate. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_glu_up_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the other half. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_glu_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Bias of the gated projection; None: always. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_swiglu_limit: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves u, g:  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_swiglu_alpha: float | tuple[float, ...] | PerLayer
    """The factor alpha in it. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    dec_ff_softclamp_value: float | None | tuple[float | None, ...] | PerLayer
    """Bound the input of the activation smoothly. Default: None."""
    dec_ff_post_act_ln: bool | tuple[bool, ...] | PerLayer
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    dec_ff_moe_experts: int | None | tuple[int | None, ...] | PerLayer
    """Number of experts; None for a plain feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_top_k: int | tuple[int, ...] | PerLayer
    """How many experts a token goes through. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of an expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_kind: Literal['softmax', 'sigmoid', 'topk_softmax'] | tuple[Literal['softmax', 'sigmoid', 'topk_softmax'], ...] | PerLayer
    """How experts are chosen and weighted. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_renormalise: bool | tuple[bool, ...] | PerLayer
    """Weights of the chosen experts sum to one. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_groups: int | tuple[int, ...] | PerLayer
    """Equal groups of experts, of which only the best count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_top_groups: int | tuple[int, ...] | PerLayer
    """How many groups count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_scale: float | tuple[float, ...] | PerLayer
    """Factor of the weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_score_bias: bool | tuple[bool, ...] | PerLayer
    """A buffer that is added to the scores where experts are chosen, not to their weights. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_shared: int | None | tuple[int | None, ...] | PerLayer
    """Experts that every token goes through, as one feedforward of that many widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_router_bias: bool | tuple[bool, ...] | PerLayer
    """A bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Biases of all experts; None: unless `no_bias`. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_moe_balance_loss: float | tuple[float, ...] | PerLayer
    """Weight of the loss that spreads tokens over experts. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    dec_ff_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout after the output projection. Default: 0.0."""
    dec_ff_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Number of the block, by which initial outputs shrink. Default: None. OLMo, arXiv:2402.00838."""
    dec_ff_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights and bias of the output projection at first. Default: False."""
    dec_ff_chunks: int | tuple[int, ...] | PerLayer
    """Slices of the tokens, one after the other: less memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    dec_ff_chunk_checkpoint: bool | tuple[bool, ...] | PerLayer
    """In training, compute each slice again in the backward pass: less memory there too. Default: False. Reformer, arXiv:2001.04451."""
    dec_cross_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of a query or key head. Default: 64."""
    dec_cross_attn_dim_context: int | None | tuple[int | None, ...] | PerLayer
    """Width of the context, `dim` if None. Default: None."""
    dec_cross_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """None: the fastest exact kernel; True: the fused one; False: the formula. Default: None."""
    dec_cross_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key heads, shared between query heads. Default: None."""
    dec_cross_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """One key head for all query heads. Default: False."""
    dec_cross_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of a value head, `dim_head` if None. Default: None."""
    dec_cross_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Project the output; None: unless one head has the width already. Default: None."""
    dec_cross_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    dec_cross_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    dec_cross_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    dec_cross_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_cross_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_cross_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_cross_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    dec_cross_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    dec_cross_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    dec_cross_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    dec_cross_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_cross_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_cross_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    dec_cross_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    dec_cross_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_norm_scale: float | tuple[float, ...] | PerLayer
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    dec_cross_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    dec_cross_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    dec_cross_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sortcut: int | tuple[int, ...] | PerLayer
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    dec_cross_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    dec_cross_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    dec_cross_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    dec_cross_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    dec_cross_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """A bias over distance that the query projects. Default: False."""
    dec_cross_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of curves that it mixes. Default: 16."""
    dec_cross_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves; further back the bias is 0. Default: 1024."""
    dec_cross_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_cross_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_cross_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_cross_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_cross_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    dec_cross_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    dec_cross_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    dec_cross_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    dec_cross_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_cross_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_cross_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_max_span: int | tuple[int, ...] | PerLayer
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_span_init: float | tuple[float, ...] | PerLayer
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    dec_cross_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_cross_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_cross_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    dec_cross_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_cross_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_cross_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_cross_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_cross_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    dec_cross_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    dec_cross_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    dec_cross_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    dec_cross_attn_differential: bool | tuple[bool, ...] | PerLayer
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    dec_cross_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    dec_cross_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    dec_cross_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    dec_cross_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted; the causal triangle can always be exported. Default: False."""
    dec_cross_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the weights by mixed similarities. Default: False."""
    dec_cross_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_cross_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_cross_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    dec_cross_attn_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    dec_cross_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    dec_cross_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    dec_cross_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    dec_cross_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    dec_cross_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    dec_cross_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    dec_cross_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_cross_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_cross_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    dec_cross_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    dec_cross_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_cross_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_cross_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_cross_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    dec_cross_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable, logits b h i j -> weights. Default: None."""
    dec_cross_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    dec_cross_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    dec_cross_attn_hybrid_module: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    dec_cross_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    dec_cross_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    dec_cross_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    dec_cross_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_cross_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    dec_cross_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_cross_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_cross_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_cross_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    dec_cross_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    dec_cross_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    dec_cross_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights of the output projection at first. Default: False."""
    dec_cross_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    dec_cross_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping a feature of the output. Default: 0.0."""
    dec_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of a query or key head. Default: 64."""
    dec_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """None: the fastest exact kernel; True: the fused one; False: the formula. Default: None."""
    dec_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key heads, shared between query heads. Default: None."""
    dec_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """One key head for all query heads. Default: False."""
    dec_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of a value head, `dim_head` if None. Default: None."""
    dec_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Project the output; None: unless one head has the width already. Default: None."""
    dec_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    dec_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    dec_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    dec_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    dec_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    dec_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    dec_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    dec_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    dec_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    dec_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_norm_scale: float | tuple[float, ...] | PerLayer
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    dec_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    dec_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    dec_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sortcut: int | tuple[int, ...] | PerLayer
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    dec_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    dec_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    dec_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    dec_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    dec_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """A bias over distance that the query projects. Default: False."""
    dec_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of curves that it mixes. Default: 16."""
    dec_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves; further back the bias is 0. Default: 1024."""
    dec_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    dec_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    dec_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    dec_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    dec_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_max_span: int | tuple[int, ...] | PerLayer
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_span_init: float | tuple[float, ...] | PerLayer
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    dec_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    dec_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    dec_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    dec_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    dec_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    dec_attn_differential: bool | tuple[bool, ...] | PerLayer
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    dec_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    dec_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    dec_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    dec_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted; the causal triangle can always be exported. Default: False."""
    dec_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the weights by mixed similarities. Default: False."""
    dec_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    dec_attn_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    dec_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    dec_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    dec_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    dec_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    dec_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    dec_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    dec_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    dec_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    dec_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    dec_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable, logits b h i j -> weights. Default: None."""
    dec_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    dec_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    dec_attn_hybrid_module: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    dec_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    dec_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    dec_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    dec_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    dec_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    dec_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    dec_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    dec_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    dec_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Zero weights of the output projection at first. Default: False."""
    dec_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    dec_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Probability of dropping a feature of the output. Default: 0.0."""
    dec_num_tokens: Required[int]
    """Size of the vocabulary."""
    dec_max_seq_len: Required[int | None]
    """Longest sequence with absolute positions; 0, -1 or None for none of them."""
    dec_emb_dim: int | None
    """Width of the embeddings, that of the stack if None. Default: None."""
    dec_emb_dropout: float
    """Dropout on the embeddings. Default: 0.0."""
    dec_l2norm_embed: bool
    """Embeddings of unit length. Default: False."""
    dec_project_emb: bool | None
    """A projection to the width of the stack; None: where widths differ. Default: None."""
    dec_project_emb_bias: bool
    """A bias of this projection. Default: True."""
    dec_post_emb_norm_at: str
    """Where `post_emb_norm` stands, before or after this projection. Default: 'embedding'."""
    dec_logits_dim: int | None
    """Width of the logits, `num_tokens` if None. Default: None."""
    dec_logits_bias: bool
    """A bias of the head, also beside `tie_embedding`. Default: False."""
    dec_token_emb: nn.Module | None
    """A token embedding of your own. Default: None."""
    dec_to_logits: nn.Module | None
    """A head of your own. Default: None."""
    dec_max_mem_len: int
    """Hidden states kept as memories. Default: 0."""
    dec_shift_mem_down: int
    """Memories of a layer go to the one so many below. Default: 0."""
    dec_attn_z_loss_weight: float
    """Weight of the loss on the size of attention logits. Default: 0.0001."""
    dec_input_not_include_cache: bool
    """With a cache, calls pass new tokens only. Default: False."""
    dec_mem_same_length: bool
    """Each query sees `max_mem_len` keys before itself, memories or not. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_use_abs_pos_emb: bool
    """Add a vector per position, unless the stack has positions of its own. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    dec_abs_pos_emb_scale: float | None
    """Factor of the table, emb_dim ** -0.5 if None; of sines, in place of the learned one. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    dec_sinu_pos_emb: bool
    """Sines and cosines of the position, instead of a table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_scaled_sinu_pos_emb: bool
    """The same with a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_sinu_theta: float
    """Waves are 2 pi to 2 pi times this long, in tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_sinu_denominator: Literal['d', 'half_minus_1']
    """Frequency k is theta ** (-2 k / d); theta ** (-k / (d / 2 - 1)) if 'half_minus_1', as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_axial_abs_pos_emb: Sequence[int] | None
    """Lengths of the axes of data; a learned vector per place on each, in place of one per token. Default: None. Sparse Transformer, arXiv:1904.10509, section 5.2."""
    dec_embed_num_tokens: Mapping[str, int]
    """Name -> vocabulary of each further stream of ids. Default: {}."""
    dec_embed_default_ids: Mapping[str, int]
    """Name -> id of all tokens of a stream that a call leaves out. Default: {}."""
    dec_emb_scale: float
    """Factor of token embeddings, rounded to the dtype of their table. Default: 1.0. Attention Is All You Need, arXiv:1706.03762, section 3.4."""
    dec_post_emb_norm: bool
    """Layer norm after the embeddings are summed. Default: False. BERT, arXiv:1810.04805."""
    dec_post_emb_norm_bias: bool
    """With a bias. Default: False. BERT, arXiv:1810.04805."""
    dec_post_emb_norm_eps: float | None
    """Its eps, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    dec_emb_frac_gradient: float
    """Fraction of the gradient that reaches the embeddings. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    dec_use_cls_token: bool
    """Read the output from learned tokens in front. Default: False. BERT, arXiv:1810.04805."""
    dec_num_cls_tokens: int
    """How many. Default: 1. BERT, arXiv:1810.04805."""
    dec_num_memory_tokens: int | None
    """How many. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    dec_memory_tokens_interspersed_every: int | None
    """Put them in front of every chunk of so many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    dec_ff_deep_embed: bool
    """A learned vector per token scales the output of each feedforward. Default: False. RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM."""
    dec_recycling: bool
    """Run the stack several times, each time with its last output added to the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    dec_train_max_recycle_steps: int
    """In training, the passes are drawn from 1 to this many. Default: 4. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    dec_looped: bool
    """Run the stack several times over its own output. Default: False. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    dec_max_looped_steps: int
    """How often. Default: 4. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    dec_cmem_len: int
    """Compressed memories of each self-attention, behind `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_ratio: int
    """How many memories become one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """What makes one of them. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_loss: Literal['attn', 'ae'] | None
    """What it learns by: attention, or the way back. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_init: Literal['mean'] | None
    """How convolutions start: None as torch's do. Default: None. Compressive Transformer, arXiv:1911.05507."""
    dec_average_pool_embed: bool
    """Mean over tokens before the head. Default: False."""
    dec_attn_pool: bool
    """Pool the output by attention of learned queries. Default: False."""
    dec_num_pooled_tokens: int
    """Number of queries. Default: 1."""
    dec_attn_pool_depth: int
    """Blocks of cross-attention. Default: 1."""
    dec_dim_pooled_tokens: int | None
    """Width of the pooled tokens, that of the stack if None. Default: None."""
    dec_head_transform: Mapping[str, Any] | None
    """A dict of what stands in front of the head: a linear map, an activation, a norm. Default: None. BERT, arXiv:1810.04805."""
    dec_tie_embedding: bool
    """Logits from the token table. Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    dec_tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    dec_tie_embedding_normed: bool
    """Of `l2norm_embed`, logits come from the normed table; False, as in the original: from that which is stored. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    dec_num_output_heads: int
    """How many heads; the logits become a tuple. Default: 1."""
    dec_logits_scale: float
    """Factor of the logits. Default: 1.0. Tensor Programs V, arXiv:2203.03466."""
    dec_logits_softclamp: float | None
    """Bound the logits smoothly by this. Default: None. Gemma 2, arXiv:2408.00118, section 2."""
    dec_sigsoftmax_logits: bool
    """Add log sigmoid to the logits. Default: False. Sigsoftmax, arXiv:1805.10829."""
    dec_mixture_of_softmax: bool
    """Log probabilities of a mixture of softmaxes, in place of logits. Default: False. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    dec_mixture_of_softmax_k: int
    """Number of components. Default: 4. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    dec_squeeze_out_last_dim: bool
    """Drop the last axis of logits if it has one entry. Default: False."""
    dec_add_continuous_pred_head: bool
    """Predict the next embedding as well. Default: False."""
    dec_pooler: Mapping[str, Any] | None
    """A dict of how `return_pooled` reads a vector of the sequence. Default: None. BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020."""

class AttentionKeywords(TypedDict, total=False):
    qkv_receive_diff_residuals: bool
    """X is three inputs, 3 b n d, for queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    learned_value_residual_mix: bool
    """Learn the mix per token and head, from the input. Default: False. Value Residual Learning, arXiv:2410.17897."""
    latent_rope_subheads: int | None
    """How many key heads bypass the latents, and are rotated. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    qkv_bias: bool | str
    """Biases of the projections: True for all three, or some of the letters, 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    qkv_clip: float | None
    """The bound c of queries, keys and values as projected. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    qk_proj_norm: bool
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    qk_proj_norm_eps: float | None
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    qk_proj_norm_unit_offset: bool | None
    """Store gains as their difference from one; None: as the stack does. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dim_latent_rope: int | None
    """How many features of a head bypass the latent, and turn; the stack turns as many. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    latent_norm: bool
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    use_latent_q: bool
    """Queries are made from a narrow latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    dim_latent_q: int | None
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    use_latent_kv: bool
    """Keys and values are made from a narrow latent, which is what is cached. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dim_latent_kv: int | None
    """Its width. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    latent_bias: bool
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    softmax_scale: float | None
    """Factor of the products of queries and keys. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    qk_norm: bool
    """Cosine similarity attention. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    qk_norm_groups: int
    """Parts of a head that are normed on their own. Default: 1. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    qk_norm_scale: float
    """The fixed scale of the cosines. Default: 10. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    qk_norm_dim_scale: bool
    """Learned scales per feature instead. Default: False. Query-Key Normalization, arXiv:2010.04245; learned scales: ViT-22B, arXiv:2302.05442."""
    qk_rmsnorm: bool
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    qk_head_norm: Literal['rms', 'layer'] | None
    """Norm of query and key heads, 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_shared: bool
    """One gain for all heads, else one for each. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_bias: bool
    """With a bias. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_eps: float | None
    """What is added to the mean square; None: `norm_eps` of the stack, else 1e-6, 1e-5 for 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_unit_offset: bool | None
    """Store gains as their difference from one; None: as the stack does. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    k_rmsnorm: bool
    """RMS norm of keys, per head. Default: False."""
    value_rmsnorm: bool
    """RMS norm of values, per head. Default: False."""
    knn_mem: Sequence[Any] | None
    """As `knn_mem_layers` of the stack says. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    cluster: Literal['lsh', 'routing', 'sinkhorn'] | None
    """Attention inside of clusters, formed in this way. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cluster_size: int | None
    """Tokens of a chunk of a cluster; None: 64, with `num_clusters` k of n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_rounds: int
    """Hashes of each token: it sees its neighbours by any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_buckets: int | None
    """Buckets of a hash, even; None: by the length, two for each chunk, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_chunks: Literal['bucket', 'sorted'] | None
    """'bucket': each bucket is cut into chunks; 'sorted': all tokens, sorted by bucket; None: the first if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_across_buckets: bool
    """With 'sorted', a token sees all of the chunks around it. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_scale: float
    """Factor of the products of queries and keys, which have length one. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    num_clusters: int | None
    """How many centroids each head has, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    local_heads: int | None
    """How many heads see nearby tokens; None: half of them. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    local_pattern: None | str | Mapping[str, Any] | Pattern
    """What these see, a pattern; None: a window of `cluster_size`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    routing_decay: float
    """How much of a centroid is left after a step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    routing_balanced: bool | None
    """Centroids take equally many tokens, their best; None: unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cluster_blocks: int | None
    """Blocks at most, which `sinkhorn_sort='net'` has weights for. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_sort: Literal['bilinear', 'net']
    """How blocks are compared: by their queries and keys, or 'net': by a network. Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_iters: int
    """How often columns and rows are divided by their sums. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_temp: float
    """Temperature of the permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_gumbel: bool
    """Noise in training, so that the permutation is a drawn one. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sortcut: int
    """All queries see so many sorted blocks alone; 0: their own block and its mix. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    shared_qk: bool
    """Keys are the directions of queries, without a projection of their own. Default: False. Reformer, arXiv:2001.04451, section 2."""
    xl_rel_segments: bool
    """Scores say whether two tokens are of one segment. Default: False. XLNet, arXiv:1906.08237."""
    rotate_num_heads: int | None
    """How many heads are rotated, the last ones; all if None. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_factor: float
    """Factor of features that are rotated, of queries and of keys. Default: 1.0. RoFormer, arXiv:2104.09864."""
    rotate_values: bool
    """Rotary positions turn values too (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    num_mem_kv: int
    """Number of learned key/value pairs. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    add_zero_kv: bool
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    data_dependent_alibi: bool
    """A penalty on distance that the tokens in between decide. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    data_dependent_alibi_per_row: bool
    """And the query with them. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    data_dependent_alibi_per_row_dim_head: int
    """Width of the small queries and keys for that. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    data_dependent_alibi_kwargs: Mapping[str, Any] | None
    """Further arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    use_rel_proj_pos_bias: bool
    """A bias over distance that the query projects. Default: False."""
    rel_proj_num_distance_basis: int
    """Number of curves that it mixes. Default: 16."""
    rel_proj_max_dist: int
    """Length of the curves; further back the bias is 0. Default: 1024."""
    shaw_rel_pos: bool
    """Vectors for distances, added to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_max_distance: int
    """Distance from which on all share a vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_rel_values: bool
    """Vectors for values too; without them the fused kernel can do it. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    xl_rel_pos: bool
    """Queries meet sinusoids of the distance. Default: False. Transformer-XL, arXiv:1901.02860."""
    xl_rel_pos_untied: bool
    """Vectors u and v of its own; else a stack gives them. Default: True. Transformer-XL, arXiv:1901.02860."""
    xl_clamp_len: int | None
    """Distance from which on all are alike, on both sides; None for none. Default: None. Transformer-XL, arXiv:1901.02860."""
    tupe_pos: bool
    """Positions have scores of their own, which a stack forms. Default: False. TUPE, arXiv:2006.15595."""
    disentangled: Mapping[str, Any] | None
    """Relative positions with keys and queries of their own: a dict with `span` S of 2 S vectors, and perhaps `max_distance`, of logarithmic buckets, else each distance has its vector; `terms`; `share`, whether `to_k` and `to_q` make them; `norm`, whether the table is normed. Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    max_attend_past: int | None
    """How many tokens before itself a query sees. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    max_attend_future: int | None
    """How many tokens after itself a query sees, if it is not causal. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    adaptive_span: None | Literal['static', 'dynamic']
    """Heads learn how far back they look. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    max_span: int
    """S, the longest span. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    span_ramp: int
    """R, over how many tokens weights fade out. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    span_init: float
    """Of static spans, as a share of the longest. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    span_loss_weight: float
    """Weight of the loss for long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    flash_pack_seq: bool
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    collab_heads: bool
    """One projection of queries and keys, weighed by each head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    collab_compression: float
    """Its width, as a fraction of that of all heads. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    l2_distance: bool
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    laser: bool
    """Attend to exponentials of values. Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    laser_softclamp_value: float
    """The bound s of the values. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos']
    """Feature map of linear attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_update: Literal['sum', 'gate', 'delta']
    """What a token does to the state of linear attention. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_normalize: None | bool
    """Divide by the sum of weights; None: yes, but for the delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_l2norm: None | bool
    """Queries and keys of unit length; None: with 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_key_norm: None | Literal['sum', 'l2']
    """Features of unit sum or length; None: for the delta rule, unit sum, or length where some may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_features: int | None
    """Random vectors of a head; None: e log(e), for 'rff' and 'arccos' e. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_orthogonal: bool | None
    """Random vectors orthogonal in blocks; None: with 'favor' and 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_redraw: int | None
    """Draw them anew after so many steps of training, 0 never; None: 1000, for 'rff' and 'arccos' 0. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_hyperbolic: bool
    """Random features in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_chunk: int
    """Tokens of a chunk, inside of which causal queries meet keys one by one. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dpfp_nu: int
    """Places that 'dpfp' looks back. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    rff_sigma: Literal['learned'] | float
    """Width of 'rff', of each feature of a head if learned. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    sparse_pattern: None | str | Mapping[str, Any] | Pattern
    """Which keys a query sees, by their places. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    global_separate_qkv: bool | None
    """Tokens that `global_mask` marks have projections of their own; None: yes, where there is Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    aft: None | Literal['full', 'local', 'simple', 'conv']
    """Weights of keys by themselves and by place. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    aft_max_len: int | None
    """How many places full and local know. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    aft_rank: int
    """Features of a place, for full and local. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    aft_window: int
    """Keys less than this away have weights by place, for local and conv. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    linformer_k: int | None
    """Slots that queries meet in place of the keys. Default: None. Linformer, arXiv:2006.04768."""
    linformer_max_len: int | None
    """How many places it knows. Default: None. Linformer, arXiv:2006.04768."""
    linformer_share: Literal['none', 'headwise', 'kv', 'layerwise']
    """By what matrices are shared: heads, keys and values too, all layers too. Default: 'none'. Linformer, arXiv:2006.04768."""
    linformer_proj: Literal['linear', 'mean', 'max', 'conv']
    """How places become slots. Default: 'linear'. Linformer, arXiv:2006.04768."""
    differential: bool
    """The difference of two maps per head. Default: False. Differential Transformer, arXiv:2410.05258."""
    differential_init: float | None
    """L0; None: by the number of the layer. Default: None. Differential Transformer, arXiv:2410.05258."""
    da_pos_rescale: bool
    """Scores without their sign, times a learned function of the distance, one for each head. Default: False. DA-Transformer, arXiv:2010.06925."""
    attend_sdp_kwargs: Mapping[str, bool]
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    onnxable: bool
    """Accepted; the causal triangle can always be exported. Default: False."""
    pre_scale_post_talking_heads: bool
    """Multiply the weights by mixed similarities. Default: False."""
    pre_talking_heads: bool
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    post_talking_heads: bool
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    talking_heads: bool
    """Replace logits and weights by mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    dropout: float
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    softclamp_logits: bool
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    logit_softclamp_value: float
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    use_cope: bool
    """Positions counted by content. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cope_max_pos: int
    """Number of positions, the last one for all that is further away. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    cope_soft_onehot_pos: bool
    """Read positions by a soft one-hot instead of interpolating. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cope_talking_heads: bool
    """Mix the logits that count over heads. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    selective: bool
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    head_learned_sink: bool
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    cog_signed: bool
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    inverted_attention: bool
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    sparse_topk: int | None
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sparse_topk_straight_through: bool
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sigmoid: bool
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    hard: bool
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    gumbel_softmax: bool
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_temp: float
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_hard: bool
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    use_entmax15: bool
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    custom_attn_fn: Callable[..., Any] | None
    """Callable, logits b h i j -> weights. Default: None."""
    head_scale: bool
    """Learned scale per head. Default: False. NormFormer, arXiv:2110.09456."""
    gate_value_heads: bool
    """Gate every head from the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    hybrid_module: nn.Module | None
    """A module of your own beside attention, b n dim -> b n (h d). Default: None. Hymba, arXiv:2411.13676."""
    hybrid_mask_kwarg: str | None
    """Keyword under which it gets the mask, where there is no order. Default: None. Hymba, arXiv:2411.13676."""
    hybrid_fold_axial_dim: int | None
    """It runs along every so many-th token. Default: None. Hymba, arXiv:2411.13676."""
    hybrid_learned_mix: bool
    """Learn the mix per token and head, else one half. Default: False. Hymba, arXiv:2411.13676."""
    gate_values: bool
    """Gate the aggregated values from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    gate_values_rank: int | None
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    gate_values_headwise: bool
    """One logit per head from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    output_gate: bool
    """Gate the aggregated values from themselves. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    output_gate_rank: int | None
    """Rank of that gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    output_gate_headwise: bool
    """One logit per head from the values. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    swiglu_values: bool
    """Gates by SiLU instead of a sigmoid. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    low_rank_silu_gates: bool
    """SiLU between the two maps of a gate of low rank. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; arXiv:2608.11805."""
    gate_values_bias: bool
    """Bias of the gate on values, open at first (for weights of releases before 2.26). Default: False."""
    orthog_projected_values: bool
    """Remove the direction of the own values, all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    orthog_projected_values_per_head: bool
    """The same in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    orthog_projected_values_over_sequence: bool
    """All tokens as one vector, as in weights of x-transformers 2.31. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    head_dims: Sequence[int] | None
    """A width for each head, in place of `dim_head`; of a stack `PerLayer(...)`. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    on_attn: bool
    """Gated projection of the output. Default: False. Attention on Attention, arXiv:1908.06954."""
    output_proj_depth: int | None
    """Depth of the network, for small initial weights. Default: None. OLMo, arXiv:2402.00838."""
    zero_init_output: bool
    """Zero weights of the output projection at first. Default: False."""
    out_bias: bool
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    sublayer_dropout: float
    """Probability of dropping a feature of the output. Default: 0.0."""

class FeedForwardKeywords(TypedDict, total=False):
    custom_activation: nn.Module | None
    """Module in place of GELU. Default: None."""
    relu_squared: bool
    """Squared ReLU in place of GELU. Default: False. Primer, arXiv:2109.08668."""
    solu: bool
    """Softmax linear unit, with a norm, in place of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    swish: bool
    """SiLU in place of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    glu: bool
    """Gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    glu_mult_bias: bool
    """Learned scale per feature after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    glu_softclamp: bool
    """Bound both factors smoothly, but not what opens the gate; of GELU or SiLU only. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    glu_gate_softclamp_value: float
    """Bound of the linear factor of the gate. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    glu_up_softclamp_value: float
    """Bound of the other half. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    glu_bias: bool | None
    """Bias of the gated projection; None: always. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    swiglu_limit: float | None
    """Bound c of both halves u, g:  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    swiglu_alpha: float
    """The factor alpha in it. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925."""
    softclamp_value: float | None
    """Bound the input of the activation smoothly. Default: None."""
    post_act_ln: bool
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    moe_experts: int | None
    """Number of experts; None for a plain feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_top_k: int
    """How many experts a token goes through. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_dim_inner: int | None
    """Inner width of an expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_kind: Literal['softmax', 'sigmoid', 'topk_softmax']
    """How experts are chosen and weighted. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_renormalise: bool
    """Weights of the chosen experts sum to one. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_groups: int
    """Equal groups of experts, of which only the best count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_top_groups: int
    """How many groups count. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_scale: float
    """Factor of the weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_score_bias: bool
    """A buffer that is added to the scores where experts are chosen, not to their weights. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_shared: int | None
    """Experts that every token goes through, as one feedforward of that many widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_router_bias: bool
    """A bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_bias: bool | None
    """Biases of all experts; None: unless `no_bias`. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    moe_balance_loss: float
    """Weight of the loss that spreads tokens over experts. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437."""
    sublayer_dropout: float
    """Dropout after the output projection. Default: 0.0."""
    output_proj_depth: int | None
    """Number of the block, by which initial outputs shrink. Default: None. OLMo, arXiv:2402.00838."""
    zero_init_output: bool
    """Zero weights and bias of the output projection at first. Default: False."""
    chunks: int
    """Slices of the tokens, one after the other: less memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    chunk_checkpoint: bool
    """In training, compute each slice again in the backward pass: less memory there too. Default: False. Reformer, arXiv:2001.04451."""

class AttendKeywords(TypedDict, total=False):
    add_zero_kv: bool
    """One key and value of zero in front. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    flash_pack_seq: bool
    """Documents packed in one row, as `flash_pack_seq_kwargs` of the call says. Default: False."""
    l2_distance: bool
    """Similarity is the negative squared distance. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    attend_sdp_kwargs: Mapping[str, bool]
    """Backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    onnxable: bool
    """Accepted; the causal triangle can always be exported. Default: False."""
    pre_scale_post_talking_heads: bool
    """Multiply the weights by mixed similarities. Default: False."""
    pre_talking_heads: bool
    """Mix logits over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    post_talking_heads: bool
    """Mix weights over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dropout: float
    """Probability of dropping an attention weight. Default: 0.0. arXiv:1706.03762."""
    softclamp_logits: bool
    """Bound the attention logits smoothly. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    logit_softclamp_value: float
    """The bound c, in logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    cope: Callable[..., Any] | None
    """Module, (queries b h i d, logits b h i j) -> logits; hidden ones are the lowest. Default: None. Contextual Position Encoding, arXiv:2405.18719."""
    selective: bool
    """Tokens hide others from later ones. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    head_learned_sink: bool
    """A learned sink per head. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    cog_signed: bool
    """Weights keep the sign of their logits. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    inverted_attention: bool
    """Softmax over the queries. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    sparse_topk: int | None
    """How many keys a query keeps. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sparse_topk_straight_through: bool
    """With the gradient of the full softmax. Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sigmoid: bool
    """Sigmoid in place of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    hard: bool
    """Attend to the best key only. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    gumbel_softmax: bool
    """Sample the attended keys in training. Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_temp: float
    """Temperature. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_hard: bool
    """Attend to the chosen key only, with the gradient of the softmax. Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    use_entmax15: bool
    """1.5-entmax in place of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    custom_attn_fn: Callable[..., Any] | None
    """Callable, logits b h i j -> weights. Default: None."""

class TransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Each query sees `max_mem_len` keys before itself, memories or not. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add a vector per position, unless the stack has positions of its own. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the table, emb_dim ** -0.5 if None; of sines, in place of the learned one. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sines and cosines of the position, instead of a table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """The same with a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Waves are 2 pi to 2 pi times this long, in tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """Frequency k is theta ** (-2 k / d); theta ** (-k / (d / 2 - 1)) if 'half_minus_1', as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    axial_abs_pos_emb: Sequence[int] | None
    """Lengths of the axes of data; a learned vector per place on each, in place of one per token. Default: None. Sparse Transformer, arXiv:1904.10509, section 5.2."""
    embed_num_tokens: Mapping[str, int]
    """Name -> vocabulary of each further stream of ids. Default: {}."""
    embed_default_ids: Mapping[str, int]
    """Name -> id of all tokens of a stream that a call leaves out. Default: {}."""
    emb_scale: float
    """Factor of token embeddings, rounded to the dtype of their table. Default: 1.0. Attention Is All You Need, arXiv:1706.03762, section 3.4."""
    post_emb_norm: bool
    """Layer norm after the embeddings are summed. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """With a bias. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Its eps, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    emb_frac_gradient: float
    """Fraction of the gradient that reaches the embeddings. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    use_cls_token: bool
    """Read the output from learned tokens in front. Default: False. BERT, arXiv:1810.04805."""
    num_cls_tokens: int
    """How many. Default: 1. BERT, arXiv:1810.04805."""
    num_memory_tokens: int | None
    """How many. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Put them in front of every chunk of so many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    ff_deep_embed: bool
    """A learned vector per token scales the output of each feedforward. Default: False. RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM."""
    recycling: bool
    """Run the stack several times, each time with its last output added to the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    train_max_recycle_steps: int
    """In training, the passes are drawn from 1 to this many. Default: 4. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    looped: bool
    """Run the stack several times over its own output. Default: False. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    max_looped_steps: int
    """How often. Default: 4. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    cmem_len: int
    """Compressed memories of each self-attention, behind `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    cmem_ratio: int
    """How many memories become one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """What makes one of them. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss: Literal['attn', 'ae'] | None
    """What it learns by: attention, or the way back. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    cmem_init: Literal['mean'] | None
    """How convolutions start: None as torch's do. Default: None. Compressive Transformer, arXiv:1911.05507."""
    average_pool_embed: bool
    """Mean over tokens before the head. Default: False."""
    attn_pool: bool
    """Pool the output by attention of learned queries. Default: False."""
    num_pooled_tokens: int
    """Number of queries. Default: 1."""
    attn_pool_depth: int
    """Blocks of cross-attention. Default: 1."""
    dim_pooled_tokens: int | None
    """Width of the pooled tokens, that of the stack if None. Default: None."""
    head_transform: Mapping[str, Any] | None
    """A dict of what stands in front of the head: a linear map, an activation, a norm. Default: None. BERT, arXiv:1810.04805."""
    tie_embedding: bool
    """Logits from the token table. Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_normed: bool
    """Of `l2norm_embed`, logits come from the normed table; False, as in the original: from that which is stored. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    num_output_heads: int
    """How many heads; the logits become a tuple. Default: 1."""
    logits_scale: float
    """Factor of the logits. Default: 1.0. Tensor Programs V, arXiv:2203.03466."""
    logits_softclamp: float | None
    """Bound the logits smoothly by this. Default: None. Gemma 2, arXiv:2408.00118, section 2."""
    sigsoftmax_logits: bool
    """Add log sigmoid to the logits. Default: False. Sigsoftmax, arXiv:1805.10829."""
    mixture_of_softmax: bool
    """Log probabilities of a mixture of softmaxes, in place of logits. Default: False. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    mixture_of_softmax_k: int
    """Number of components. Default: 4. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    squeeze_out_last_dim: bool
    """Drop the last axis of logits if it has one entry. Default: False."""
    add_continuous_pred_head: bool
    """Predict the next embedding as well. Default: False."""
    pooler: Mapping[str, Any] | None
    """A dict of how `return_pooled` reads a vector of the sequence. Default: None. BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020."""

class AttentionLayersKeywords(StackKeywords, total=False):
    attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of a query or key head. Default: 64."""

class XTransformerKeywords(TwoStacksKeywords, total=False):
    enc_depth: int | None
    """Number of blocks. Default: None."""
    dec_depth: int | None
    """Number of blocks. Default: None."""

class ContinuousTransformerAutoencoderKeywords(StackKeywords, total=False):
    depth: int | None
    """Number of blocks. Default: None."""
    causal: bool
    """A token sees only itself and what came before. Default: False."""
    cross_attend: bool
    """Blocks also attend to a context. Default: False."""
    only_cross: bool
    """Blocks attend to the context only. Default: False."""
    pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    verbose: bool
    """Warn of choices known to hurt. Default: True."""

class ContinuousTransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Each query sees `max_mem_len` keys before itself, memories or not. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add a vector per position, unless the stack has positions of its own. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the table, emb_dim ** -0.5 if None; of sines, in place of the learned one. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sines and cosines of the position, instead of a table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """The same with a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Waves are 2 pi to 2 pi times this long, in tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """Frequency k is theta ** (-2 k / d); theta ** (-k / (d / 2 - 1)) if 'half_minus_1', as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    post_emb_norm: bool
    """Layer norm after the embeddings are summed. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """With a bias. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Its eps, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    num_memory_tokens: int | None
    """How many. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Put them in front of every chunk of so many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    emb_dropout: float
    """Dropout on the embeddings. Default: 0.0."""
    cmem_len: int
    """Compressed memories of each self-attention, behind `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    cmem_ratio: int
    """How many memories become one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """What makes one of them. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss: Literal['attn', 'ae'] | None
    """What it learns by: attention, or the way back. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    cmem_init: Literal['mean'] | None
    """How convolutions start: None as torch's do. Default: None. Compressive Transformer, arXiv:1911.05507."""
    average_pool_embed: bool
    """Mean over tokens before the head. Default: False."""

class CrossAttenderKeywords(AttentionLayersKeywords, total=False):
    dim: Required[int]
    """Width of the stream."""
    depth: int | None
    """Number of blocks. Default: None."""
    heads: int
    """Attention heads of every layer. Default: 8."""
    causal: bool
    """A token sees only itself and what came before. Default: False."""
    pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    verbose: bool
    """Warn of choices known to hurt. Default: True."""
    features: Sequence[type[Feature]] | None

class DecoderKeywords(AttentionLayersKeywords, total=False):
    dim: Required[int]
    """Width of the stream."""
    depth: int | None
    """Number of blocks. Default: None."""
    heads: int
    """Attention heads of every layer. Default: 8."""
    cross_attend: bool
    """Blocks also attend to a context. Default: False."""
    only_cross: bool
    """Blocks attend to the context only. Default: False."""
    pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    verbose: bool
    """Warn of choices known to hurt. Default: True."""
    features: Sequence[type[Feature]] | None

class EncoderKeywords(DecoderKeywords, total=False):
    pass

class FreeTransformerKeywords(ContinuousTransformerAutoencoderKeywords, total=False):
    pass

class GPTVAEKeywords(StackKeywords, total=False):
    causal: bool
    """A token sees only itself and what came before. Default: False."""
    cross_attend: bool
    """Blocks also attend to a context. Default: False."""
    only_cross: bool
    """Blocks attend to the context only. Default: False."""
    pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    verbose: bool
    """Warn of choices known to hurt. Default: True."""

class MultiInputTransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Each query sees `max_mem_len` keys before itself, memories or not. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add a vector per position, unless the stack has positions of its own. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the table, emb_dim ** -0.5 if None; of sines, in place of the learned one. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sines and cosines of the position, instead of a table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """The same with a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Waves are 2 pi to 2 pi times this long, in tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """Frequency k is theta ** (-2 k / d); theta ** (-k / (d / 2 - 1)) if 'half_minus_1', as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    post_emb_norm: bool
    """Layer norm after the embeddings are summed. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """With a bias. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Its eps, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    emb_frac_gradient: float
    """Fraction of the gradient that reaches the embeddings. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    num_memory_tokens: int | None
    """How many. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Put them in front of every chunk of so many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""

class PartiKeywords(TwoStacksKeywords, total=False):
    tie_token_emb: bool
    """One token table for both. Default: False."""
    ignore_index: int
    """Target id without a loss. Default: -100."""
    pad_value: int
    """Id that fills up sequences. Default: 0."""
    cross_attn_tokens_dropout: float
    """Fraction of encoder tokens hidden in training. Default: 0.0."""
    label_smoothing: float
    """E: the target has probability 1 - e, and all tokens share e, arXiv:1512.00567. Default: 0.0."""

class PrefixDecoderKeywords(DecoderKeywords, total=False):
    pass

class SpeechEncoderKeywords(ContinuousTransformerWrapperKeywords, total=False):
    max_seq_len: int | None
    """Longest sequence with absolute positions; 0, -1 or None for none of them. Default: None."""
    dim_in: int | None
    """Width of the input, that of the stack if None. Default: None."""
    dim_out: int | None
    """Width of the output, that of the stack if None. Default: None."""
    project_in: nn.Module | None
    """An input projection of your own. Default: None."""
    project_out: nn.Module | None
    """An output projection of your own. Default: None."""
    max_mem_len: int
    """Hidden states kept as memories. Default: 0."""
    probabilistic: bool
    """Give a mean and a variance. Default: False."""
    use_identity_if_same_dim: bool
    """No projection between equal widths. Default: False."""
    conv_stem: Sequence[Sequence[int]] | None
    """(channels, kernel, stride, padding) of convolutions in place of the input projection, GELU after each. Default: None."""

class TTTMetaLearningTargetKLLossKeywords(AttentionLayersKeywords, total=False):
    cross_attend: bool
    """Blocks also attend to a context. Default: False."""
    only_cross: bool
    """Blocks attend to the context only. Default: False."""
    pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    pre_norm_has_final_norm: bool
    """Norm the output of a pre-norm stack. Default: True."""
    norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    verbose: bool
    """Warn of choices known to hurt. Default: True."""

class TransformerBlockKeywords(AttentionLayersKeywords, total=False):
    heads: int
    """Attention heads of every layer. Default: 8."""
    causal: bool
    """A token sees only itself and what came before. Default: False."""
    cross_attend: bool
    """Blocks also attend to a context. Default: False."""
    only_cross: bool
    """Blocks attend to the context only. Default: False."""
    pre_norm: bool
    """Norm the input of every branch, else the stream after it. Default: True."""
    norm_add_unit_offset: bool
    """Store gains as their difference from one. Default: True."""
    disable_abs_pos_emb: bool | None
    """No absolute positions in the wrapper; by default if the stack has its own. Default: None."""
    rel_pos_kwargs: dict | None
    """Further arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Further arguments of the residuals. Default: None."""
    verbose: bool
    """Warn of choices known to hurt. Default: True."""
    features: Sequence[type[Feature]] | None

class XValTransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Each query sees `max_mem_len` keys before itself, memories or not. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add a vector per position, unless the stack has positions of its own. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the table, emb_dim ** -0.5 if None; of sines, in place of the learned one. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sines and cosines of the position, instead of a table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """The same with a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Waves are 2 pi to 2 pi times this long, in tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """Frequency k is theta ** (-2 k / d); theta ** (-k / (d / 2 - 1)) if 'half_minus_1', as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    num_memory_tokens: int | None
    """How many. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Put them in front of every chunk of so many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    emb_dropout: float
    """Dropout on the embeddings. Default: 0.0."""
    tie_embedding: bool
    """Logits from the token table. Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_normed: bool
    """Of `l2norm_embed`, logits come from the normed table; False, as in the original: from that which is stored. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""

class AttentionInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    causal: bool | None
    cache: Intermediates | None
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    knn_reset: Any
    """b, rows that forget"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale)"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    polar_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all, for Global('mask')"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""

class AttentionCall(Protocol):
    @overload
    def __call__(self, x: Tensor, *, return_intermediates: Literal[False] = ..., **inputs: Unpack[AttentionInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, *, return_intermediates: Literal[True], **inputs: Unpack[AttentionInputs]) -> tuple[Tensor, Intermediates]: ...
    @overload
    def __call__(self, x: Tensor, *, return_intermediates: bool = ..., **inputs: Unpack[AttentionInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor, _context: Tensor | None = ..., _mask: Tensor | None = ..., _context_mask: Tensor | None = ..., _attn_mask: Tensor | None = ..., /, *, return_intermediates: bool = ..., **inputs: Unpack[AttentionInputs]) -> Any: ...

class AttentionLayersInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    self_attn_kv_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_start_pos: Tensor | None
    seq_pos_offset: int | Tensor | None
    cache: LayerIntermediates | Cache | None
    input_not_include_cache: bool
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""

class AttentionLayersCall(Protocol):
    @overload
    def __call__(self, x: Tensor, *, return_hiddens: Literal[False] = ..., return_gumbel_log_probs: Literal[False] = ..., **inputs: Unpack[AttentionLayersInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, *, return_hiddens: Literal[True], return_gumbel_log_probs: Literal[False] = ..., **inputs: Unpack[AttentionLayersInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor, *, return_gumbel_log_probs: Literal[True], return_hiddens: Literal[False] = ..., **inputs: Unpack[AttentionLayersInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor, *, return_hiddens: bool = ..., return_gumbel_log_probs: bool = ..., **inputs: Unpack[AttentionLayersInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor, _context: Tensor | None = ..., _mask: Tensor | None = ..., _context_mask: Tensor | None = ..., _attn_mask: Tensor | None = ..., _self_attn_kv_mask: Tensor | None = ..., _mems: Sequence[Tensor | None] | None = ..., _mem_masks: Sequence[Tensor | None] | None = ..., _seq_start_pos: Tensor | None = ..., _seq_pos_offset: int | Tensor | None = ..., _cache: LayerIntermediates | Cache | None = ..., _input_not_include_cache: bool = ..., _cache_age: int | None = ..., _return_hiddens: bool = ..., /, *, return_hiddens: bool = ..., return_gumbel_log_probs: bool = ..., **inputs: Unpack[AttentionLayersInputs]) -> Any: ...

class PrefixDecoderInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    prefix_attn_len: int | Tensor | None
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""

class PrefixDecoderCall(Protocol):
    @overload
    def __call__(self, x: Tensor, *, return_hiddens: Literal[False] = ..., return_gumbel_log_probs: Literal[False] = ..., **inputs: Unpack[PrefixDecoderInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, *, return_hiddens: Literal[True], return_gumbel_log_probs: Literal[False] = ..., **inputs: Unpack[PrefixDecoderInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor, *, return_gumbel_log_probs: Literal[True], return_hiddens: Literal[False] = ..., **inputs: Unpack[PrefixDecoderInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor, *, return_hiddens: bool = ..., return_gumbel_log_probs: bool = ..., **inputs: Unpack[PrefixDecoderInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor, _context: Tensor | None = ..., _mask: Tensor | None = ..., _context_mask: Tensor | None = ..., _attn_mask: Tensor | None = ..., /, *, return_hiddens: bool = ..., return_gumbel_log_probs: bool = ..., **inputs: Unpack[PrefixDecoderInputs]) -> Any: ...

class TransformerWrapperInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    self_attn_kv_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_start_pos: Tensor | None
    seq_pos_offset: int | Tensor | None
    cache: LayerIntermediates | Cache | None
    input_not_include_cache: bool | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""
    return_embeddings: bool
    return_logit_entropies: bool
    detach_mems: bool
    return_attn_z_loss: bool
    attn_z_loss_weight: float | None
    excise_prepend_embeds: bool
    token_emb_kwargs: dict[str, Any] | None
    to_logits_kwargs: dict[str, Any] | None
    logits_to_keep: int | None
    embed_ids: Any
    """name -> ids b n"""
    sum_embeds: Tensor | None
    """b n e"""
    transform_token_embeds: Callable[..., Any] | None
    """function of the token embeddings b n e"""
    prepend_embeds: Tensor | None
    """b p e"""
    prepend_mask: Tensor | None
    """b p"""
    recycle_steps: int | None
    """number of passes; `train_max_recycle_steps` if not given, in training a random one"""
    looped_steps: int | None
    """number of passes, of which none is left out"""
    max_looped_steps: int | None
    """number of passes at most, in place of the flag"""
    looped_pred_all_logits: bool | None
    """keep the logits of every pass; in training, if not given"""
    looped_inference: bool | None
    """stop early where the gate says so; one row, token by token"""
    looped_exit_prob_threshold: float | None
    """stop once the probability to have stopped reaches this, 0.9 if not given"""
    return_block_readouts: bool | None
    """keep in `block_readouts` the logits after each block but the last"""

class TransformerWrapperCall(Protocol):
    @overload
    def __call__(self, x: Tensor | None, *, return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_logits_and_embeddings: Literal[False] = ..., return_embeddings_and_intermediates: Literal[False] = ..., return_readout: Literal[False] = ..., return_pooled: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_intermediates: Literal[True], return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_logits_and_embeddings: Literal[False] = ..., return_embeddings_and_intermediates: Literal[False] = ..., return_readout: Literal[False] = ..., return_pooled: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_mems: Literal[True], return_intermediates: Literal[False] = ..., return_attn: Literal[False] = ..., return_logits_and_embeddings: Literal[False] = ..., return_embeddings_and_intermediates: Literal[False] = ..., return_readout: Literal[False] = ..., return_pooled: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_attn: Literal[True], return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_logits_and_embeddings: Literal[False] = ..., return_embeddings_and_intermediates: Literal[False] = ..., return_readout: Literal[False] = ..., return_pooled: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_logits_and_embeddings: Literal[True], return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_embeddings_and_intermediates: Literal[False] = ..., return_readout: Literal[False] = ..., return_pooled: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_embeddings_and_intermediates: Literal[True], return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_logits_and_embeddings: Literal[False] = ..., return_readout: Literal[False] = ..., return_pooled: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_pooled: Literal[True], return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_logits_and_embeddings: Literal[False] = ..., return_embeddings_and_intermediates: Literal[False] = ..., return_readout: Literal[False] = ..., return_knn_mems: Literal[False] = ..., return_next_embed_pred: Literal[False] = ..., **inputs: Unpack[TransformerWrapperInputs]) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(self, x: Tensor | None, *, return_intermediates: bool = ..., return_mems: bool = ..., return_attn: bool = ..., return_logits_and_embeddings: bool = ..., return_embeddings_and_intermediates: bool = ..., return_readout: bool = ..., return_pooled: bool = ..., return_knn_mems: bool = ..., return_next_embed_pred: bool = ..., **inputs: Unpack[TransformerWrapperInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor | None, _return_embeddings: bool = ..., _return_logits_and_embeddings: bool = ..., _return_intermediates: bool = ..., _return_embeddings_and_intermediates: bool = ..., _return_logit_entropies: bool = ..., /, *, return_intermediates: bool = ..., return_mems: bool = ..., return_attn: bool = ..., return_logits_and_embeddings: bool = ..., return_embeddings_and_intermediates: bool = ..., return_readout: bool = ..., return_pooled: bool = ..., return_knn_mems: bool = ..., return_next_embed_pred: bool = ..., **inputs: Unpack[TransformerWrapperInputs]) -> Any: ...

class ContinuousTransformerWrapperInputs(AttentionLayersInputs, total=False):
    return_embeddings: bool
    lens: Tensor | None
    detach_mems: bool
    sum_embeds: Tensor | None
    """b n e"""
    prepend_embeds: Tensor | None
    """b p e"""
    prepend_mask: Tensor | None
    """b p"""

class ContinuousTransformerWrapperCall(Protocol):
    @overload
    def __call__(self, x: Tensor, *, return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_knn_mems: Literal[False] = ..., **inputs: Unpack[ContinuousTransformerWrapperInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, *, return_intermediates: Literal[True], return_mems: Literal[False] = ..., return_attn: Literal[False] = ..., return_knn_mems: Literal[False] = ..., **inputs: Unpack[ContinuousTransformerWrapperInputs]) -> tuple[Tensor, LayerIntermediates]: ...
    @overload
    def __call__(self, x: Tensor, *, return_mems: Literal[True], return_intermediates: Literal[False] = ..., return_attn: Literal[False] = ..., return_knn_mems: Literal[False] = ..., **inputs: Unpack[ContinuousTransformerWrapperInputs]) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def __call__(self, x: Tensor, *, return_attn: Literal[True], return_intermediates: Literal[False] = ..., return_mems: Literal[False] = ..., return_knn_mems: Literal[False] = ..., **inputs: Unpack[ContinuousTransformerWrapperInputs]) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def __call__(self, x: Tensor, *, return_intermediates: bool = ..., return_mems: bool = ..., return_attn: bool = ..., return_knn_mems: bool = ..., **inputs: Unpack[ContinuousTransformerWrapperInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor, _return_embeddings: bool = ..., _return_intermediates: bool = ..., _return_mems: bool = ..., _mask: Tensor | None = ..., _lens: Tensor | None = ..., _return_attn: bool = ..., _mems: Sequence[Tensor | None] | None = ..., /, *, return_intermediates: bool = ..., return_mems: bool = ..., return_attn: bool = ..., return_knn_mems: bool = ..., **inputs: Unpack[ContinuousTransformerWrapperInputs]) -> Any: ...

class ViTransformerWrapperInputs(TypedDict, total=False):
    return_embeddings: bool
    hidden_patches: Tensor | None

class ViTransformerWrapperCall(Protocol):
    @overload
    def __call__(self, img: Tensor, *, return_logits_and_embeddings: Literal[False] = ..., return_hiddens: Literal[False] = ..., **inputs: Unpack[ViTransformerWrapperInputs]) -> Tensor: ...
    @overload
    def __call__(self, img: Tensor, *, return_logits_and_embeddings: Literal[True], return_hiddens: Literal[False] = ..., **inputs: Unpack[ViTransformerWrapperInputs]) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(self, img: Tensor, *, return_hiddens: Literal[True], return_logits_and_embeddings: Literal[False] = ..., **inputs: Unpack[ViTransformerWrapperInputs]) -> tuple[Tensor, list[Tensor]]: ...
    @overload
    def __call__(self, img: Tensor, *, return_logits_and_embeddings: bool = ..., return_hiddens: bool = ..., **inputs: Unpack[ViTransformerWrapperInputs]) -> Any: ...
    @overload
    def __call__(self, _img: Tensor, _return_embeddings: bool = ..., _return_logits_and_embeddings: bool = ..., /, *, return_logits_and_embeddings: bool = ..., return_hiddens: bool = ..., **inputs: Unpack[ViTransformerWrapperInputs]) -> Any: ...

class AutoregressiveWrapperInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    self_attn_kv_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_start_pos: Tensor | None
    seq_pos_offset: int | Tensor | None
    cache: LayerIntermediates | Cache | None
    input_not_include_cache: bool | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""
    return_embeddings: bool
    return_logit_entropies: bool
    detach_mems: bool
    return_attn_z_loss: bool
    attn_z_loss_weight: float | None
    excise_prepend_embeds: bool
    token_emb_kwargs: dict[str, Any] | None
    to_logits_kwargs: dict[str, Any] | None
    logits_to_keep: int | None
    embed_ids: Any
    """name -> ids b n"""
    sum_embeds: Tensor | None
    """b n e"""
    transform_token_embeds: Callable[..., Any] | None
    """function of the token embeddings b n e"""
    prepend_embeds: Tensor | None
    prepend_mask: Tensor | None
    """b p"""
    recycle_steps: int | None
    """number of passes; `train_max_recycle_steps` if not given, in training a random one"""
    looped_steps: int | None
    """number of passes, of which none is left out"""
    max_looped_steps: int | None
    """number of passes at most, in place of the flag"""
    looped_pred_all_logits: bool | None
    """keep the logits of every pass; in training, if not given"""
    looped_inference: bool | None
    """stop early where the gate says so; one row, token by token"""
    looped_exit_prob_threshold: float | None
    """stop once the probability to have stopped reaches this, 0.9 if not given"""
    return_block_readouts: bool | None
    """keep in `block_readouts` the logits after each block but the last"""
    return_intermediates: bool
    return_mems: bool
    return_attn: bool
    return_logits_and_embeddings: bool
    return_embeddings_and_intermediates: bool
    return_readout: bool
    return_pooled: bool
    return_knn_mems: bool
    return_next_embed_pred: bool
    lens: Tensor | None
    labels: Tensor | None
    progress: float | None
    prefix_attn_len: int | Tensor | str | None

class AutoregressiveWrapperCall(Protocol):
    @overload
    def __call__(self, x: Tensor, *, return_outputs: Literal[False] = ..., **inputs: Unpack[AutoregressiveWrapperInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, *, return_outputs: Literal[True], **inputs: Unpack[AutoregressiveWrapperInputs]) -> tuple[Tensor, tuple[Tensor, LayerIntermediates]]: ...
    @overload
    def __call__(self, x: Tensor, *, return_outputs: bool = ..., **inputs: Unpack[AutoregressiveWrapperInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor, _return_outputs: bool = ..., _prepend_embeds: Tensor | None = ..., _lens: Tensor | None = ..., _labels: Tensor | None = ..., _progress: float | None = ..., _prefix_attn_len: int | Tensor | str | None = ..., /, *, return_outputs: bool = ..., **inputs: Unpack[AutoregressiveWrapperInputs]) -> Any: ...

class StreamInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_pos_offset: int | Tensor | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""
    return_embeddings: bool
    return_logit_entropies: bool
    detach_mems: bool
    return_attn_z_loss: bool
    attn_z_loss_weight: float | None
    excise_prepend_embeds: bool
    token_emb_kwargs: dict[str, Any] | None
    to_logits_kwargs: dict[str, Any] | None
    embed_ids: Any
    """name -> ids b n"""
    sum_embeds: Tensor | None
    """b n e"""
    transform_token_embeds: Callable[..., Any] | None
    """function of the token embeddings b n e"""
    prepend_embeds: Tensor | None
    """b p e"""
    prepend_mask: Tensor | None
    """b p"""
    recycle_steps: int | None
    """number of passes; `train_max_recycle_steps` if not given, in training a random one"""
    looped_steps: int | None
    """number of passes, of which none is left out"""
    max_looped_steps: int | None
    """number of passes at most, in place of the flag"""
    looped_pred_all_logits: bool | None
    """keep the logits of every pass; in training, if not given"""
    looped_inference: bool | None
    """stop early where the gate says so; one row, token by token"""
    looped_exit_prob_threshold: float | None
    """stop once the probability to have stopped reaches this, 0.9 if not given"""
    return_block_readouts: bool | None
    """keep in `block_readouts` the logits after each block but the last"""
    eos_token: int | Sequence[int] | None
    stop_sequences: Sequence[Sequence[int]] | None
    prompt_lens: Tensor | Sequence[int] | None
    num_samples: int | None
    restrict_to_max_seq_len: bool
    amateur_model: nn.Module | tuple[nn.Module, ...] | None
    contrastive_decode_kwargs: dict[str, float] | tuple[dict[str, float], ...] | None
    cache_kv: bool
    slide_cache: bool
    prompt_cache: PromptCache | None
    callback: Callable[[Tensor], Any] | None
    compile: bool | str
    temperature: float
    filter_logits_fn: Any
    filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None
    generator: Generator | None
    kv_storage: Paged | None
    allowed_tokens: Sequence[int] | Tensor | None
    banned_tokens: Sequence[int] | Tensor | None
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    logits_processor: Callable[..., Tensor] | Sequence[Callable[..., Tensor]] | None
    presence_penalty: float
    repetition_penalty: float
    cond_scale: float
    negative_prompts: Tensor | Sequence[Tensor] | None
    negative_context: Tensor | None

class GenerateInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_pos_offset: int | Tensor | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""
    return_embeddings: bool
    return_logit_entropies: bool
    detach_mems: bool
    return_attn_z_loss: bool
    attn_z_loss_weight: float | None
    excise_prepend_embeds: bool
    token_emb_kwargs: dict[str, Any] | None
    to_logits_kwargs: dict[str, Any] | None
    embed_ids: Any
    """name -> ids b n"""
    sum_embeds: Tensor | None
    """b n e"""
    transform_token_embeds: Callable[..., Any] | None
    """function of the token embeddings b n e"""
    prepend_embeds: Tensor | None
    """b p e"""
    prepend_mask: Tensor | None
    """b p"""
    recycle_steps: int | None
    """number of passes; `train_max_recycle_steps` if not given, in training a random one"""
    looped_steps: int | None
    """number of passes, of which none is left out"""
    max_looped_steps: int | None
    """number of passes at most, in place of the flag"""
    looped_pred_all_logits: bool | None
    """keep the logits of every pass; in training, if not given"""
    looped_inference: bool | None
    """stop early where the gate says so; one row, token by token"""
    looped_exit_prob_threshold: float | None
    """stop once the probability to have stopped reaches this, 0.9 if not given"""
    return_block_readouts: bool | None
    """keep in `block_readouts` the logits after each block but the last"""
    stop_sequences: Sequence[Sequence[int]] | None
    prompt_lens: Tensor | Sequence[int] | None
    num_samples: int | None
    restrict_to_max_seq_len: bool
    amateur_model: nn.Module | tuple[nn.Module, ...] | None
    contrastive_decode_kwargs: dict[str, float] | tuple[dict[str, float], ...] | None
    cache_kv: bool
    slide_cache: bool
    prompt_cache: PromptCache | None
    callback: Callable[[Tensor], Any] | None
    compile: bool | str
    filter_logits_fn: Any
    filter_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None
    generator: Generator | None
    kv_storage: Paged | None
    allowed_tokens: Sequence[int] | Tensor | None
    banned_tokens: Sequence[int] | Tensor | None
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    logits_processor: Callable[..., Tensor] | Sequence[Callable[..., Tensor]] | None
    presence_penalty: float
    repetition_penalty: float
    cond_scale: float
    negative_prompts: Tensor | Sequence[Tensor] | None
    negative_context: Tensor | None

class BeamSearchInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_pos_offset: int | Tensor | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """keep in `block_outputs` what the stack would give after each block but the last"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, below 0 of those that have none"""
    condition: Tensor | None
    """b d | b n d"""
    document_ids: Tensor | None
    """b n, which document each token is of"""
    segment_ids: Tensor | None
    """b n, which segment each token is of"""
    stream_ranks: Tensor | None
    """b n, the place of each token in the order, -1 for known ones"""
    stream_at: Tensor | None
    """b k, which tokens are asked for; the last k of x are their queries"""
    mem_same_length: int | None
    """how many keys before itself a query sees"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, of the sequence"""
    flash_pack_seq_context_kwargs: Any
    """the same, with the keys of the context"""
    outside_pattern: Any
    """how many of the first tokens stand outside of the pattern, or at which places (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, rows that forget"""
    global_mask: Tensor | None
    """b n, which tokens see all and are seen by all; those behind its end are not"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as a `RotaryEmbedding` gives them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, of the positions of the new tokens"""
    pos_known: Tensor | None
    """n | b n, which of them have a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or what another stack left behind"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True or False: no gradient flows into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of what a self-attention layer reads; these layers count from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which says after which block each token leaves"""
    ff_input_of: Sequence[Any] | None
    """(a list, which feedforward that runs): what it reads is added to the list"""
    value_context: Tensor | None
    """b j d, values of the tokens of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normed like x"""
    mem_mask: Tensor | None
    """b l"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    q_delta: Tensor | None
    """broadcasts to b n (h d)"""
    k_delta: Tensor | None
    """broadcasts to b j (k d)"""
    v_delta: Tensor | None
    """broadcasts to b j (k d)"""
    o_delta: Tensor | None
    """broadcasts to b n (h d)"""
    knn_store: Any
    """(k b h m e, v b h m e, count b), of earlier segments"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer of the angles of all cached and new tokens: the cache keeps turned keys"""
    additional_key_values: Any
    """(k, v), b k m d each, the heads divide those of the layer"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j; counts the keys without those that features add"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, of all keys; or what they are products of"""
    disentangled_table: Tensor | None
    """s d, the vectors of relative positions"""
    order_of_queries: Tensor | None
    """b n, numbers"""
    order_of_keys: Tensor | None
    """b n, numbers"""
    linformer_table: Tensor | None
    """n k, the matrix that all layers share"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; keys that features add get nothing, unless it counts them"""
    deep_embed: Any
    """to b n dim_out"""
    return_embeddings: bool
    return_logit_entropies: bool
    detach_mems: bool
    return_attn_z_loss: bool
    attn_z_loss_weight: float | None
    excise_prepend_embeds: bool
    token_emb_kwargs: dict[str, Any] | None
    to_logits_kwargs: dict[str, Any] | None
    embed_ids: Any
    """name -> ids b n"""
    sum_embeds: Tensor | None
    """b n e"""
    transform_token_embeds: Callable[..., Any] | None
    """function of the token embeddings b n e"""
    prepend_embeds: Tensor | None
    """b p e"""
    prepend_mask: Tensor | None
    """b p"""
    recycle_steps: int | None
    """number of passes; `train_max_recycle_steps` if not given, in training a random one"""
    looped_steps: int | None
    """number of passes, of which none is left out"""
    max_looped_steps: int | None
    """number of passes at most, in place of the flag"""
    looped_pred_all_logits: bool | None
    """keep the logits of every pass; in training, if not given"""
    looped_inference: bool | None
    """stop early where the gate says so; one row, token by token"""
    looped_exit_prob_threshold: float | None
    """stop once the probability to have stopped reaches this, 0.9 if not given"""
    return_block_readouts: bool | None
    """keep in `block_readouts` the logits after each block but the last"""
    stop_sequences: Sequence[Sequence[int]] | None
    num_samples: int | None
    amateur_model: nn.Module | tuple[nn.Module, ...] | None
    contrastive_decode_kwargs: dict[str, float] | tuple[dict[str, float], ...] | None
    prompt_cache: PromptCache | None
    callback: Callable[[Tensor], Any] | None
    compile: bool | str
    kv_storage: Paged | None
    allowed_tokens: Sequence[int] | Tensor | None
    banned_tokens: Sequence[int] | Tensor | None
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    logits_processor: Callable[..., Tensor] | Sequence[Callable[..., Tensor]] | None
    presence_penalty: float
    repetition_penalty: float
    cond_scale: float
    negative_prompts: Tensor | Sequence[Tensor] | None
    negative_context: Tensor | None
