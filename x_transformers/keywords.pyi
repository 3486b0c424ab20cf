"""Written by `python docs/generate.py` from the declarations of the flags."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, overload

from torch import Tensor, nn
from typing_extensions import Required
from typing_extensions import Unpack as Unpack
from torch._C import Generator
from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core.intermediates import Intermediates
from x_transformers.flags import PerLayer
from x_transformers.flags.declared import Feature
from x_transformers.generation.batching import Paged
from x_transformers.generation.prompt_cache import PromptCache
from x_transformers.patterns.base import Pattern

class StackKeywords(TypedDict, total=False):
    macaron: bool
    """Use a feedforward before and after attention, each times one half. Default: False. Macaron Net, arXiv:1906.02762."""
    conv_module: bool
    """Add a convolution module along the sequence after each attention layer. Default: False. Conformer, arXiv:2005.08100."""
    conv_kernel_size: int
    """Kernel size in tokens; odd, unless `conv_causal` is set. Default: 31. Conformer, arXiv:2005.08100."""
    conv_causal: bool
    """Use a causal convolution. Default: False. Conformer, arXiv:2005.08100."""
    conv_norm: Literal['batch', 'layer', 'group']
    """Norm of the module: 'batch', or per token 'layer' or 'group'. Default: 'batch'. Conformer, arXiv:2005.08100."""
    only_attn: bool
    """Remove all feedforwards. Default: False. arXiv:2607.18363."""
    custom_layers: Sequence[Any] | None
    """Kinds of all layers, such as ('a', 'f', 'a', 'f'); possible kinds are the keys of `KINDS`. Default: None."""
    recurrent_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | Sequence[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module] | None
    """Module of the layers of kind 'r': a name, or a custom module, of which each layer gets a copy; or a tuple with one for each of these layers. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`."""
    recurrent_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    """Keywords of the class of the module, a dict; a tuple has one for each of these layers. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`."""
    par_ratio: int | None
    """Number of layers per attention layer. Default: None. PAR Transformer, arXiv:2009.04534."""
    sandwich_coef: int | None
    """Number of attention layers at the start, and of feedforwards at the end. Default: None. Sandwich Transformers, arXiv:1911.03864."""
    weight_tie_layers: bool
    """Share the weights of one block between all depths. Default: False. ALBERT, arXiv:1909.11942."""
    layers_execute_order: Sequence[int] | None
    """Layer indices in the order of execution, with repeats allowed. Default: None."""
    ut_transition: Literal['ff', 'sepconv']
    """Second branch of each block: 'ff' (feedforward) or 'sepconv' (separable convolutions). Default: 'ff'. Universal Transformers, arXiv:1807.03819."""
    per_layer_abs_pos_emb: int | None
    """Number of positions in the table of each layer. Default: None. Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444."""
    coord_pos_emb: bool | Literal['learned']
    """Add sinusoids of position and step before every run of a block; 'learned': a learned vector per step. Default: False. Universal Transformers, arXiv:1807.03819."""
    unet_skips: bool
    """Concatenate and project the inputs of mirrored blocks (U-Net skips). Default: False. U-ViT, arXiv:2209.12152."""
    dim_condition: int | None
    """Width of the condition, `dim` if None. Default: None."""
    adaptive_condition_mlp: bool
    """First expand the condition with a linear layer and SiLU. Default: False."""
    adaptive_condition_mlp_expansion: int
    """Expansion factor of this layer. Default: 4."""
    use_scalenorm: bool
    """ScaleNorm instead of LayerNorm. Default: False. Transformers without Tears, arXiv:1910.05895."""
    use_rmsnorm: bool
    """RMSNorm instead of LayerNorm. Default: False. Root Mean Square Layer Normalization, arXiv:1910.07467."""
    use_simple_rmsnorm: bool
    """RMSNorm without learned weights, instead of LayerNorm. Default: False. TransNormer, arXiv:2307.14995."""
    use_dynamic_tanh: bool
    """Dynamic tanh instead of LayerNorm. Default: False. Transformers without Normalization, arXiv:2503.10622."""
    dynamic_tanh_init_alpha: float
    """Initial value of the factor a. Default: 1.0. Transformers without Normalization, arXiv:2503.10622."""
    use_derf: bool
    """Derf (error function) instead of LayerNorm. Default: False. Stronger Normalization-Free Transformers, arXiv:2512.10938."""
    use_adaptive_layernorm: bool
    """Layer norm with weights computed from `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    use_adaptive_rmsnorm: bool
    """RMSNorm with weights computed from `condition`. Default: False."""
    norm_bias: bool
    """Learn a bias in the layer norms (also for weights of releases before 1.27). Default: False. Layer Normalization, arXiv:1607.06450."""
    norm_eps: float | None
    """Eps of every norm; None: 1e-5 in layer norms, no eps in others (x / |x|). Default: None. Layer Normalization, arXiv:1607.06450."""
    norm_affine: bool
    """Learn weights in the norms. Default: True. OLMo, arXiv:2402.00838."""
    branch_post_norm: bool
    """Normalize the output of every branch instead of its input. Default: False. OLMo 2, arXiv:2501.00656."""
    first_attn_norm: bool
    """Use a norm before the first attention layer. Default: True. ModernBERT, arXiv:2412.13663."""
    sandwich_norm: bool
    """Also normalize the output of every branch. Default: False. CogView, arXiv:2105.13290."""
    pre_and_post_norm: bool
    """Use a norm before every branch and another after its residual. Default: False."""
    block_norm: bool
    """Normalize the residual stream after each block. Default: False. Conformer, arXiv:2005.08100."""
    parallel_block: bool | Literal['shared']
    """Run the branches of a block in parallel, with a separate norm each (True) or one norm for all ('shared'). Default: False. PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745."""
    per_layer_emb_dim: int | None
    """Width of an embedding per token and block, which gates a branch. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    resi_dual: bool
    """Post-norm layers plus a second, unnormalized residual stream. Default: False. ResiDual, arXiv:2304.14802."""
    resi_dual_scale: float
    """Factor c of the second stream, against overflow in half precision. Default: 1.0. ResiDual, arXiv:2304.14802."""
    xl_rel_segments: bool
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    two_stream: bool
    """Add a query stream that predicts tokens in a given order (XLNet). Default: False. XLNet, arXiv:1906.08237."""
    window_growth: float | None
    """Factor by which `attn_max_attend_past` grows from one self-attention layer to the next. Default: None. MSWA: Refining Local Attention with Multi-Scale Window Attention, arXiv:2501.01039."""
    knn_mem_layers: Sequence[int]
    """Self-attention layers with a kNN memory, counted from 0. Default: (). Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_size: int
    """Number of stored tokens per batch entry. Default: 65536. Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_topk: int
    """Number of stored tokens that each query retrieves, per head. Default: 32. Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_gate_init: float
    """Initial gate, a logit; -4 to add memory to a pretrained model. Default: 0.0. Memorizing Transformers, arXiv:2203.08913."""
    knn_mem_search: Literal['exact', 'coarse']
    """Search: 'exact', or 'coarse', which first compares only some channels and may miss some keys. Default: 'exact'. Memorizing Transformers, arXiv:2203.08913."""
    rotary_pos_emb: bool
    """Rotate queries and keys by their positions (RoPE). Default: False. RoFormer, arXiv:2104.09864."""
    rotary_emb_dim: int | None
    """Number of rotated channels per head, half of the head if None. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_theta: float
    """Base of the frequencies: pair i of r channels has frequency theta ** (-2 i / r). Default: 10000.0. RoFormer, arXiv:2104.09864."""
    rotary_scaling: Mapping[str, Any] | None
    """Frequency scaling for longer contexts, a dict with `kind` ('linear', 'dynamic', 'yarn', 'longrope', 'llama3' or 'proportional') and its parameters. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_xpos: bool
    """Also decay the scores with distance (xPos). Default: False. RoFormer, arXiv:2104.09864."""
    rotary_xpos_scale_base: float
    """Length scale of the xPos decay, in tokens. Default: 512. RoFormer, arXiv:2104.09864."""
    rotary_interpolation_factor: float
    """Divisor of the positions (position interpolation); a negative one rotates backwards. Default: 1.0. RoFormer, arXiv:2104.09864."""
    rotary_base_rescale_factor: float
    """NTK-aware factor of the base, for longer contexts. Default: 1.0. RoFormer, arXiv:2104.09864."""
    rotate_num_heads: int | None
    """Number of heads that are rotated, the last ones; None: all. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_layers: Sequence[bool | Mapping[str, Any]] | None
    """One value per self-attention layer: True, False for no rotation, or a dict with another `theta` or `scaling`. Default: None. Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466."""
    polar_pos_emb: bool
    """Polar positions: magnitudes from content, angles from positions. Default: False. PoPE, arXiv:2509.10534."""
    polar_bias_uniform_init: bool
    """Initialize the angle shift of the keys uniformly at random, not with zeros. Default: False. PoPE, arXiv:2509.10534."""
    position_infused_attn: bool
    """Add sinusoidal positions to the inputs of queries and keys. Default: False. Shortformer, arXiv:2012.15832."""
    alibi_pos_bias: bool
    """Add a linear penalty on the distance to the scores (ALiBi). Default: False. Train Short, Test Long, arXiv:2108.12409."""
    alibi_num_heads: int | None
    """Number of heads with a slope, the first ones; all if None. Default: None. Train Short, Test Long, arXiv:2108.12409."""
    alibi_bidirectional: Literal['symmetric', 'split']
    """In non-causal stacks: 'symmetric', or 'split' for half of these heads backwards and half forwards. Default: 'symmetric'. Train Short, Test Long, arXiv:2108.12409."""
    rel_pos_bias: bool
    """Add a learned bias per bucket of distances to the scores (T5). Default: False. T5, arXiv:1910.10683."""
    rel_pos_num_buckets: int
    """Number of buckets. Default: 32. T5, arXiv:1910.10683."""
    rel_pos_max_distance: int
    """Maximum distance, in tokens; larger ones share the last bucket. Default: 128. T5, arXiv:1910.10683."""
    rel_pos_bias_scale: float | None
    """Factor of the bias, sqrt(dim_head) if None; T5 uses 1. Default: None. T5, arXiv:1910.10683."""
    dynamic_pos_bias: bool
    """Add a bias that a small MLP computes from the distance. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dynamic_pos_bias_log_distance: bool
    """Use the signed logarithm of the distance as its input. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dynamic_pos_bias_mlp_depth: int
    """Number of hidden layers of the MLP. Default: 2. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dynamic_pos_bias_norm: bool
    """Use layer norms in the MLP. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    shaw_rel_pos: bool
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_max_distance: int
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_rel_values: bool
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    xl_rel_pos: bool
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    xl_rel_pos_untied: bool
    """Learn separate vectors u and v in each layer. Default: False. Transformer-XL, arXiv:1901.02860."""
    xl_clamp_len: int | None
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    tupe_pos: bool
    """Add separate scores of the position embeddings, instead of adding these to the tokens. Default: False. TUPE, arXiv:2006.15595."""
    tupe_cls_first: bool
    """Treat the token at position 0 as [CLS], which has no position. Default: False. TUPE, arXiv:2006.15595."""
    da_pos_rescale: bool
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    add_value_residual: bool
    """Mix the values of the first attention layer into the later ones. Default: False. Value Residual Learning, arXiv:2410.17897."""
    learned_value_residual_mix: bool
    """In self-attention, compute the mix from the input, instead of one half. Default: True. Value Residual Learning, arXiv:2410.17897."""
    residual_attn: bool
    """Add the logits of the previous self-attention layer. Default: False. RealFormer, arXiv:2012.11747."""
    cross_residual_attn: bool
    """Add the logits of the previous cross-attention layer. Default: False. RealFormer, arXiv:2012.11747."""
    layer_dropout: float | Sequence[float]
    """Probability of skipping a layer in training, or a tuple with one value per layer. Default: 0.0. Deep Networks with Stochastic Depth, arXiv:1603.09382."""
    zero_init_branch_output: bool
    """Initialize the output projection of every branch with zeros. Default: False."""
    shift_tokens: int | Sequence[int]
    """Maximum shift, in tokens, or one value per layer. Default: 0. RWKV, github.com/BlinkDL/RWKV-LM (token shift)."""
    use_layerscale: bool
    """Scale the output of every branch by a learned factor per channel. Default: False. Going deeper with Image Transformers, arXiv:2103.17239."""
    layerscale_init_value: float
    """Initial value of this factor. Default: 0.0. Going deeper with Image Transformers, arXiv:2103.17239."""
    use_adaptive_layerscale: bool
    """Gate the output of every branch by a sigmoid of `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    use_adaln_zero: bool
    """Shift, scale and gate every branch by `condition` (adaLN-Zero), initialized with zeros. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    scale_residual: bool | float
    """Learn a factor per channel of the residual; a number is also a constant factor of every branch output. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    scale_residual_constant: float
    """Constant factor of the residual. Default: 1.0. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    depth_scale_residual: bool | float
    """True: smaller initial output weights in deeper layers; a number: constant factor of every branch output. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    use_rezero: bool
    """Scale every branch by a learned factor, instead of norms. Default: False. ReZero is All You Need, arXiv:2003.04887."""
    cross_attn_tokens_dropout: float
    """Fraction of context tokens that each cross-attention layer drops in training. Default: 0.0. Perceiver AR, arXiv:2202.07765."""
    integrate_layers: bool
    """Use a learned mix of all previous branch inputs as the input of each branch. Default: False. LIMe, arXiv:2502.09245."""
    layer_integrate_use_softmax: bool
    """Normalize the weights of the mix by softmax, otherwise apply ReLU. Default: True. LIMe, arXiv:2502.09245."""
    attn_aggregated_residuals: bool
    """Let each branch input attend to the inputs of all previous branches. Default: False. arXiv:2601.21582, arXiv:2603.15031."""
    attn_aggregated_residual_kwargs: Mapping[str, Any] | None
    """`lora_rank` (default 64) and `lora_activation` of the queries. Default: None. arXiv:2601.21582, arXiv:2603.15031."""
    reinject_input: bool
    """Add a projection of the stack's input to the input of every branch. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    learned_reinject_input_gate: bool
    """Gate this projection, or `in_attn_cond`, per token. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    qkv_receive_diff_residuals: bool
    """Use separate inputs for queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    gate_residual: bool
    """Gate residuals: by a GRU cell, or as in `residual_fn_kwargs=dict(gate='gtrxl', ...)`. Default: False. Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764."""
    laurel_rank: int | None
    """Rank of a learned path beside each branch. Default: None. LAuReL, arXiv:2411.07501."""
    laurel_kind: Literal['low_rank', 'weighted', 'gemma3n']
    """How the path is added: 'low_rank', 'weighted' with learned factors, or 'gemma3n'. Default: 'low_rank'. LAuReL, arXiv:2411.07501."""
    orthog_residual: bool
    """Add only the component of the branch output that is orthogonal to the residual. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    orthog_residual_over_sequence: bool
    """Treat all tokens as one vector, for weights of x-transformers 2.31. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    mv_split_residual: bool
    """Scale the mean over tokens and the deviation from it by separate factors. Default: False. arXiv:2605.06169."""
    gated_multi_residual: bool
    """Mix the streams by gates; needs `residual_fn_kwargs=dict(read_gate_rank=...)`. Default: False."""
    num_residual_streams: int
    """Number of residual streams. Default: 1. Hyper-Connections, arXiv:2409.19606."""
    altup: bool
    """AltUp: blocks compute one of the streams, the others are predicted and corrected. Default: False. Hyper-Connections, arXiv:2409.19606."""
    hyper_conn_sinkhorn_iters: int
    """Number of Sinkhorn iterations for the mixing matrix. Default: 5. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    hyper_conn_residual_mix: Literal['sinkhorn', 'mhc', 'ones']
    """Mixing matrix of the streams: 'sinkhorn' (doubly stochastic), 'mhc' (from all streams of a token, with a learned readout; 20 iterations in the paper), or 'ones' for weights of x-transformers 2.31. Default: 'sinkhorn'. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    softclamp_output: bool
    """Soft-clamp the output of the last layer with tanh. Default: False. Gemma 2, arXiv:2408.00118."""
    softclamp_output_value: float
    """Bound c of this output. Default: 30.0. Gemma 2, arXiv:2408.00118."""
    checkpoint_layers: bool | int
    """Recompute layers in the backward pass: True for each layer separately, k for segments of k layers. Default: False. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    reversible: bool
    """Use two residual streams, which are recomputed in the backward pass instead of stored. Default: False. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    reversible_merge: Literal['mean', 'concat_norm']
    """Input of the final norm: 'mean' of the two streams, or both ('concat_norm'). Default: 'mean'. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    act_halting: bool
    """Let each token decide after each run of the block whether it needs another one. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_eps: float
    """Eps: a token halts when its halting probabilities sum to 1 - eps. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_ponder_weight: float
    """Weight of the ponder loss, which penalizes many runs. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_dense: bool
    """Compute all tokens in every run, also those that have halted. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    act_max_steps: int | None
    """Maximum number of runs; `depth` if None. Default: None. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    ff_mult: float | tuple[float, ...] | PerLayer
    """Inner width as a multiple of `dim`. Default: 4."""
    ff_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width, instead of `mult`. Default: None."""
    ff_activation: str | None | tuple[str | None, ...] | PerLayer
    """Name of the activation; GELU if None. Default: None."""
    ff_no_bias: bool | tuple[bool, ...] | PerLayer
    """Use linear layers without bias; a gated linear unit keeps its bias. Default: False."""
    ff_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability before the output projection. Default: 0.0."""
    ff_custom_activation: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """Activation module instead of GELU. Default: None."""
    ff_relu_squared: bool | tuple[bool, ...] | PerLayer
    """Squared ReLU instead of GELU. Default: False. Primer, arXiv:2109.08668."""
    ff_solu: bool | tuple[bool, ...] | PerLayer
    """Softmax linear unit with a norm, instead of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    ff_swish: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    ff_glu: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_glu_mult_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a factor per channel after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_glu_softclamp: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp u and the linear factor of the gate with tanh; only for GELU and SiLU. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_glu_gate_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the linear factor of the gate g. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_glu_up_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the ungated half u. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_glu_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Bias of the gated projection; None: with a bias. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_swiglu_limit: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves u and g, clamped, for  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_swiglu_alpha: float | tuple[float, ...] | PerLayer
    """Factor alpha of `swiglu_limit`. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_glu_clamp: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves: clamp(u, -c, c) act(min(g, c)). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_gate_sparsity: float | tuple[float, ...] | PerLayer
    """Share of the channels of g that a threshold sets to zero before the activation, for normally distributed g. Default: 0.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    ff_softclamp_value: float | None | tuple[float | None, ...] | PerLayer
    """Soft bound c of the input of the activation, by tanh. Default: None."""
    ff_post_act_ln: bool | tuple[bool, ...] | PerLayer
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    ff_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    ff_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    ff_moe_experts: int | None | tuple[int | None, ...] | PerLayer
    """Number of experts; None for an ordinary feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_top_k: int | tuple[int, ...] | PerLayer
    """Number of experts per token. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of each expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_kind: Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'] | tuple[Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'], ...] | PerLayer
    """Router scores: 'softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax' (softmax over the chosen experts), or 'sparsemixer', which cannot be trained. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_renormalise: bool | tuple[bool, ...] | PerLayer
    """Normalize the weights of the chosen experts to sum 1. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_groups: int | tuple[int, ...] | PerLayer
    """Number of equal groups; experts are chosen from the best groups only. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_top_groups: int | tuple[int, ...] | PerLayer
    """Number of best groups from which experts are chosen. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_group_score: Literal['top2', 'max'] | tuple[Literal['top2', 'max'], ...] | PerLayer
    """Score of a group: the sum of its two largest scores ('top2') or the largest ('max'). Default: 'top2'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_scale: float | tuple[float, ...] | PerLayer
    """Factor of the expert weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_score_bias: bool | tuple[bool, ...] | PerLayer
    """Add a buffer to the scores for choosing experts, not for weighting them. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_shared: int | None | tuple[int | None, ...] | PerLayer
    """Number of shared experts, which process every token as one feedforward of that many inner widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_dim_shared: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of the shared feedforward, instead of that. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_shared_gate: bool | tuple[bool, ...] | PerLayer
    """Scale the shared feedforward by a sigmoid gate, one number per token. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_weight_at: Literal['output', 'input'] | tuple[Literal['output', 'input'], ...] | PerLayer
    """Weights scale the 'output' or the 'input' of experts. Default: 'output'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_zero_experts: int | tuple[int, ...] | PerLayer
    """Number of further experts that return their input. Default: 0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_router_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Biases in all experts; None: yes, unless `no_bias` is set. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_balance_loss: float | tuple[float, ...] | PerLayer
    """Weight of the load balancing loss, in training. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_balance_per_sequence: bool | tuple[bool, ...] | PerLayer
    """Compute this loss for each sequence by itself. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_balance: Literal['bias'] | None | tuple[Literal['bias'] | None, ...] | PerLayer
    """'bias': balance by the score bias, without a loss. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_moe_balance_rate: float | tuple[float, ...] | PerLayer
    """Step of the score bias at each optimizer step. Default: 0.001. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    ff_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    ff_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: divides the variance of the initial output weights. Default: None. OLMo, arXiv:2402.00838."""
    ff_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize weights and bias of the output projection with zeros. Default: False."""
    ff_chunks: int | tuple[int, ...] | PerLayer
    """Number of chunks c of tokens, processed in turn to save memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    ff_chunk_checkpoint: bool | tuple[bool, ...] | PerLayer
    """Recompute each chunk in the backward pass, to save memory in training. Default: False. Reformer, arXiv:2001.04451."""
    cross_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of each query and key head. Default: 64."""
    cross_attn_dim_context: int | None | tuple[int | None, ...] | PerLayer
    """Width of the context, `dim` if None. Default: None."""
    cross_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """Attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both. Default: None."""
    cross_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key/value heads (grouped-query attention); `heads` if None. Default: None."""
    cross_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """Use one key/value head for all query heads (multi-query attention). Default: False."""
    cross_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of each value head, `dim_head` if None. Default: None."""
    cross_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Use an output projection; None: yes, unless there is one head of the output width. Default: None."""
    cross_attn_kv_from: int | None | tuple[int | None, ...] | PerLayer
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    cross_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    cross_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    cross_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    cross_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    cross_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    cross_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    cross_attn_dconv_kernel_size: int | None | tuple[int | None, ...] | PerLayer
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    cross_attn_dconv_on: str | tuple[str, ...] | PerLayer
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    cross_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    cross_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    cross_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    cross_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    cross_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    cross_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    cross_attn_latent_absorb: Literal['auto', True, False] | tuple[Literal['auto', True, False], ...] | PerLayer
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    cross_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    cross_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    cross_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_qk_norm_scale: float | Literal['learned'] | tuple[float | Literal['learned'], ...] | PerLayer
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    cross_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    cross_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    cross_attn_value_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    cross_attn_value_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    cross_attn_value_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    cross_attn_value_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    cross_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    cross_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_sortcut: int | tuple[int, ...] | PerLayer
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cross_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    cross_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    cross_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_qk_head_norm_at: Literal['before', 'after'] | tuple[Literal['before', 'after'], ...] | PerLayer
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    cross_attn_query_temperature: Mapping[str, float] | None | tuple[Mapping[str, float] | None, ...] | PerLayer
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    cross_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    cross_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    cross_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    cross_attn_log_cpb: bool | tuple[bool, ...] | PerLayer
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_log_cpb_window: tuple[int, int] | tuple[tuple[int, int], ...] | PerLayer
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_log_cpb_hidden: int | tuple[int, ...] | PerLayer
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    cross_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    cross_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    cross_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of learned curves. Default: 16."""
    cross_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    cross_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    cross_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    cross_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    cross_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    cross_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    cross_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    cross_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    cross_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    cross_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    cross_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    cross_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_max_span: int | tuple[int, ...] | PerLayer
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_span_init: float | tuple[float, ...] | PerLayer
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    cross_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    cross_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    cross_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    cross_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    cross_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    cross_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    cross_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    cross_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    cross_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    cross_attn_moba_block: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    cross_attn_moba_topk: int | tuple[int, ...] | PerLayer
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    cross_attn_indexer: bool | tuple[bool, ...] | PerLayer
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_indexer_heads: int | tuple[int, ...] | PerLayer
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_indexer_dim: int | tuple[int, ...] | PerLayer
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_indexer_topk: int | tuple[int, ...] | PerLayer
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_indexer_rotary: Literal['half', 'pairs'] | tuple[Literal['half', 'pairs'], ...] | PerLayer
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_indexer_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_indexer_warmup: bool | tuple[bool, ...] | PerLayer
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    cross_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    cross_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    cross_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    cross_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    cross_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    cross_attn_differential: bool | Literal['v2'] | tuple[bool | Literal['v2'], ...] | PerLayer
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    cross_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    cross_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    cross_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    cross_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    cross_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    cross_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    cross_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    cross_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    cross_attn_scalable_softmax: bool | tuple[bool, ...] | PerLayer
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    cross_attn_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    cross_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    cross_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    cross_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cross_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    cross_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    cross_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    cross_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    cross_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    cross_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    cross_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    cross_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    cross_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    cross_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    cross_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    cross_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    cross_attn_entmax_alpha: Literal['learned'] | float | None | tuple[Literal['learned'] | float | None, ...] | PerLayer
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    cross_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    cross_attn_value_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    cross_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    cross_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    cross_attn_hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None | tuple[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None, ...] | PerLayer
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_hybrid_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_hybrid_merge: Literal['mean', 'sum'] | tuple[Literal['mean', 'sum'], ...] | PerLayer
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_hybrid_factors: Sequence[float | None] | None | tuple[Sequence[float | None] | None, ...] | PerLayer
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    cross_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_gate_values_activation: Literal['sigmoid', 'softplus'] | tuple[Literal['sigmoid', 'softplus'], ...] | PerLayer
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    cross_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    cross_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    cross_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    cross_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    cross_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    cross_attn_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    cross_attn_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    cross_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    cross_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    cross_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize the output projection with zeros. Default: False."""
    cross_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    cross_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """Attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both. Default: None."""
    attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key/value heads (grouped-query attention); `heads` if None. Default: None."""
    attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """Use one key/value head for all query heads (multi-query attention). Default: False."""
    attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of each value head, `dim_head` if None. Default: None."""
    attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Use an output projection; None: yes, unless there is one head of the output width. Default: None."""
    attn_kv_from: int | None | tuple[int | None, ...] | PerLayer
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    attn_dconv_kernel_size: int | None | tuple[int | None, ...] | PerLayer
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    attn_dconv_on: str | tuple[str, ...] | PerLayer
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    attn_latent_absorb: Literal['auto', True, False] | tuple[Literal['auto', True, False], ...] | PerLayer
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    attn_qk_norm_scale: float | Literal['learned'] | tuple[float | Literal['learned'], ...] | PerLayer
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    attn_value_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    attn_value_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    attn_value_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    attn_value_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_routing_decay: float | tuple[float, ...] | PerLayer
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_sortcut: int | tuple[int, ...] | PerLayer
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_qk_head_norm_at: Literal['before', 'after'] | tuple[Literal['before', 'after'], ...] | PerLayer
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    attn_query_temperature: Mapping[str, float] | None | tuple[Mapping[str, float] | None, ...] | PerLayer
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    attn_log_cpb: bool | tuple[bool, ...] | PerLayer
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    attn_log_cpb_window: tuple[int, int] | tuple[tuple[int, int], ...] | PerLayer
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    attn_log_cpb_hidden: int | tuple[int, ...] | PerLayer
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of learned curves. Default: 16."""
    attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_max_span: int | tuple[int, ...] | PerLayer
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_span_ramp: int | tuple[int, ...] | PerLayer
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_span_init: float | tuple[float, ...] | PerLayer
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    attn_moba_block: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    attn_moba_topk: int | tuple[int, ...] | PerLayer
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    attn_indexer: bool | tuple[bool, ...] | PerLayer
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_indexer_heads: int | tuple[int, ...] | PerLayer
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_indexer_dim: int | tuple[int, ...] | PerLayer
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_indexer_topk: int | tuple[int, ...] | PerLayer
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_indexer_rotary: Literal['half', 'pairs'] | tuple[Literal['half', 'pairs'], ...] | PerLayer
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_indexer_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_indexer_warmup: bool | tuple[bool, ...] | PerLayer
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    attn_aft_window: int | tuple[int, ...] | PerLayer
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    attn_differential: bool | Literal['v2'] | tuple[bool | Literal['v2'], ...] | PerLayer
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    attn_scalable_softmax: bool | tuple[bool, ...] | PerLayer
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    attn_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    attn_selective: bool | tuple[bool, ...] | PerLayer
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    attn_entmax_alpha: Literal['learned'] | float | None | tuple[Literal['learned'] | float | None, ...] | PerLayer
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    attn_value_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    attn_hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None | tuple[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None, ...] | PerLayer
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_hybrid_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_hybrid_merge: Literal['mean', 'sum'] | tuple[Literal['mean', 'sum'], ...] | PerLayer
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_hybrid_factors: Sequence[float | None] | None | tuple[Sequence[float | None] | None, ...] | PerLayer
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_gate_values_activation: Literal['sigmoid', 'softplus'] | tuple[Literal['sigmoid', 'softplus'], ...] | PerLayer
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    attn_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    attn_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize the output projection with zeros. Default: False."""
    attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""

class TwoStacksKeywords(TypedDict, total=False):
    enc_heads: int
    """Number of attention heads in every layer. Default: 8."""
    enc_pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    enc_pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    enc_norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    enc_disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    enc_rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    enc_residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    enc_verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""
    enc_macaron: bool
    """Use a feedforward before and after attention, each times one half. Default: False. Macaron Net, arXiv:1906.02762."""
    enc_conv_module: bool
    """Add a convolution module along the sequence after each attention layer. Default: False. Conformer, arXiv:2005.08100."""
    enc_conv_kernel_size: int
    """Kernel size in tokens; odd, unless `conv_causal` is set. Default: 31. Conformer, arXiv:2005.08100."""
    enc_conv_causal: bool
    """Use a causal convolution. Default: False. Conformer, arXiv:2005.08100."""
    enc_conv_norm: Literal['batch', 'layer', 'group']
    """Norm of the module: 'batch', or per token 'layer' or 'group'. Default: 'batch'. Conformer, arXiv:2005.08100."""
    enc_only_attn: bool
    """Remove all feedforwards. Default: False. arXiv:2607.18363."""
    enc_custom_layers: Sequence[Any] | None
    """Kinds of all layers, such as ('a', 'f', 'a', 'f'); possible kinds are the keys of `KINDS`. Default: None."""
    enc_recurrent_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | Sequence[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module] | None
    """Module of the layers of kind 'r': a name, or a custom module, of which each layer gets a copy; or a tuple with one for each of these layers. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`."""
    enc_recurrent_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    """Keywords of the class of the module, a dict; a tuple has one for each of these layers. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`."""
    enc_par_ratio: int | None
    """Number of layers per attention layer. Default: None. PAR Transformer, arXiv:2009.04534."""
    enc_sandwich_coef: int | None
    """Number of attention layers at the start, and of feedforwards at the end. Default: None. Sandwich Transformers, arXiv:1911.03864."""
    enc_weight_tie_layers: bool
    """Share the weights of one block between all depths. Default: False. ALBERT, arXiv:1909.11942."""
    enc_layers_execute_order: Sequence[int] | None
    """Layer indices in the order of execution, with repeats allowed. Default: None."""
    enc_ut_transition: Literal['ff', 'sepconv']
    """Second branch of each block: 'ff' (feedforward) or 'sepconv' (separable convolutions). Default: 'ff'. Universal Transformers, arXiv:1807.03819."""
    enc_per_layer_abs_pos_emb: int | None
    """Number of positions in the table of each layer. Default: None. Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444."""
    enc_coord_pos_emb: bool | Literal['learned']
    """Add sinusoids of position and step before every run of a block; 'learned': a learned vector per step. Default: False. Universal Transformers, arXiv:1807.03819."""
    enc_unet_skips: bool
    """Concatenate and project the inputs of mirrored blocks (U-Net skips). Default: False. U-ViT, arXiv:2209.12152."""
    enc_dim_condition: int | None
    """Width of the condition, `dim` if None. Default: None."""
    enc_adaptive_condition_mlp: bool
    """First expand the condition with a linear layer and SiLU. Default: False."""
    enc_adaptive_condition_mlp_expansion: int
    """Expansion factor of this layer. Default: 4."""
    enc_use_scalenorm: bool
    """ScaleNorm instead of LayerNorm. Default: False. Transformers without Tears, arXiv:1910.05895."""
    enc_use_rmsnorm: bool
    """RMSNorm instead of LayerNorm. Default: False. Root Mean Square Layer Normalization, arXiv:1910.07467."""
    enc_use_simple_rmsnorm: bool
    """RMSNorm without learned weights, instead of LayerNorm. Default: False. TransNormer, arXiv:2307.14995."""
    enc_use_dynamic_tanh: bool
    """Dynamic tanh instead of LayerNorm. Default: False. Transformers without Normalization, arXiv:2503.10622."""
    enc_dynamic_tanh_init_alpha: float
    """Initial value of the factor a. Default: 1.0. Transformers without Normalization, arXiv:2503.10622."""
    enc_use_derf: bool
    """Derf (error function) instead of LayerNorm. Default: False. Stronger Normalization-Free Transformers, arXiv:2512.10938."""
    enc_use_adaptive_layernorm: bool
    """Layer norm with weights computed from `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    enc_use_adaptive_rmsnorm: bool
    """RMSNorm with weights computed from `condition`. Default: False."""
    enc_norm_bias: bool
    """Learn a bias in the layer norms (also for weights of releases before 1.27). Default: False. Layer Normalization, arXiv:1607.06450."""
    enc_norm_eps: float | None
    """Eps of every norm; None: 1e-5 in layer norms, no eps in others (x / |x|). Default: None. Layer Normalization, arXiv:1607.06450."""
    enc_norm_affine: bool
    """Learn weights in the norms. Default: True. OLMo, arXiv:2402.00838."""
    enc_branch_post_norm: bool
    """Normalize the output of every branch instead of its input. Default: False. OLMo 2, arXiv:2501.00656."""
    enc_first_attn_norm: bool
    """Use a norm before the first attention layer. Default: True. ModernBERT, arXiv:2412.13663."""
    enc_sandwich_norm: bool
    """Also normalize the output of every branch. Default: False. CogView, arXiv:2105.13290."""
    enc_pre_and_post_norm: bool
    """Use a norm before every branch and another after its residual. Default: False."""
    enc_block_norm: bool
    """Normalize the residual stream after each block. Default: False. Conformer, arXiv:2005.08100."""
    enc_parallel_block: bool | Literal['shared']
    """Run the branches of a block in parallel, with a separate norm each (True) or one norm for all ('shared'). Default: False. PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745."""
    enc_per_layer_emb_dim: int | None
    """Width of an embedding per token and block, which gates a branch. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_resi_dual: bool
    """Post-norm layers plus a second, unnormalized residual stream. Default: False. ResiDual, arXiv:2304.14802."""
    enc_resi_dual_scale: float
    """Factor c of the second stream, against overflow in half precision. Default: 1.0. ResiDual, arXiv:2304.14802."""
    enc_xl_rel_segments: bool
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    enc_two_stream: bool
    """Add a query stream that predicts tokens in a given order (XLNet). Default: False. XLNet, arXiv:1906.08237."""
    enc_window_growth: float | None
    """Factor by which `attn_max_attend_past` grows from one self-attention layer to the next. Default: None. MSWA: Refining Local Attention with Multi-Scale Window Attention, arXiv:2501.01039."""
    enc_knn_mem_layers: Sequence[int]
    """Self-attention layers with a kNN memory, counted from 0. Default: (). Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_size: int
    """Number of stored tokens per batch entry. Default: 65536. Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_topk: int
    """Number of stored tokens that each query retrieves, per head. Default: 32. Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_gate_init: float
    """Initial gate, a logit; -4 to add memory to a pretrained model. Default: 0.0. Memorizing Transformers, arXiv:2203.08913."""
    enc_knn_mem_search: Literal['exact', 'coarse']
    """Search: 'exact', or 'coarse', which first compares only some channels and may miss some keys. Default: 'exact'. Memorizing Transformers, arXiv:2203.08913."""
    enc_rotary_pos_emb: bool
    """Rotate queries and keys by their positions (RoPE). Default: False. RoFormer, arXiv:2104.09864."""
    enc_rotary_emb_dim: int | None
    """Number of rotated channels per head, half of the head if None. Default: None. RoFormer, arXiv:2104.09864."""
    enc_rotary_theta: float
    """Base of the frequencies: pair i of r channels has frequency theta ** (-2 i / r). Default: 10000.0. RoFormer, arXiv:2104.09864."""
    enc_rotary_scaling: Mapping[str, Any] | None
    """Frequency scaling for longer contexts, a dict with `kind` ('linear', 'dynamic', 'yarn', 'longrope', 'llama3' or 'proportional') and its parameters. Default: None. RoFormer, arXiv:2104.09864."""
    enc_rotary_xpos: bool
    """Also decay the scores with distance (xPos). Default: False. RoFormer, arXiv:2104.09864."""
    enc_rotary_xpos_scale_base: float
    """Length scale of the xPos decay, in tokens. Default: 512. RoFormer, arXiv:2104.09864."""
    enc_rotary_interpolation_factor: float
    """Divisor of the positions (position interpolation); a negative one rotates backwards. Default: 1.0. RoFormer, arXiv:2104.09864."""
    enc_rotary_base_rescale_factor: float
    """NTK-aware factor of the base, for longer contexts. Default: 1.0. RoFormer, arXiv:2104.09864."""
    enc_rotate_num_heads: int | None
    """Number of heads that are rotated, the last ones; None: all. Default: None. RoFormer, arXiv:2104.09864."""
    enc_rotary_layers: Sequence[bool | Mapping[str, Any]] | None
    """One value per self-attention layer: True, False for no rotation, or a dict with another `theta` or `scaling`. Default: None. Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466."""
    enc_polar_pos_emb: bool
    """Polar positions: magnitudes from content, angles from positions. Default: False. PoPE, arXiv:2509.10534."""
    enc_polar_bias_uniform_init: bool
    """Initialize the angle shift of the keys uniformly at random, not with zeros. Default: False. PoPE, arXiv:2509.10534."""
    enc_position_infused_attn: bool
    """Add sinusoidal positions to the inputs of queries and keys. Default: False. Shortformer, arXiv:2012.15832."""
    enc_alibi_pos_bias: bool
    """Add a linear penalty on the distance to the scores (ALiBi). Default: False. Train Short, Test Long, arXiv:2108.12409."""
    enc_alibi_num_heads: int | None
    """Number of heads with a slope, the first ones; all if None. Default: None. Train Short, Test Long, arXiv:2108.12409."""
    enc_alibi_bidirectional: Literal['symmetric', 'split']
    """In non-causal stacks: 'symmetric', or 'split' for half of these heads backwards and half forwards. Default: 'symmetric'. Train Short, Test Long, arXiv:2108.12409."""
    enc_rel_pos_bias: bool
    """Add a learned bias per bucket of distances to the scores (T5). Default: False. T5, arXiv:1910.10683."""
    enc_rel_pos_num_buckets: int
    """Number of buckets. Default: 32. T5, arXiv:1910.10683."""
    enc_rel_pos_max_distance: int
    """Maximum distance, in tokens; larger ones share the last bucket. Default: 128. T5, arXiv:1910.10683."""
    enc_rel_pos_bias_scale: float | None
    """Factor of the bias, sqrt(dim_head) if None; T5 uses 1. Default: None. T5, arXiv:1910.10683."""
    enc_dynamic_pos_bias: bool
    """Add a bias that a small MLP computes from the distance. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_dynamic_pos_bias_log_distance: bool
    """Use the signed logarithm of the distance as its input. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_dynamic_pos_bias_mlp_depth: int
    """Number of hidden layers of the MLP. Default: 2. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_dynamic_pos_bias_norm: bool
    """Use layer norms in the MLP. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    enc_shaw_rel_pos: bool
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_shaw_max_distance: int
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_shaw_rel_values: bool
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_xl_rel_pos: bool
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_xl_rel_pos_untied: bool
    """Learn separate vectors u and v in each layer. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_xl_clamp_len: int | None
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    enc_tupe_pos: bool
    """Add separate scores of the position embeddings, instead of adding these to the tokens. Default: False. TUPE, arXiv:2006.15595."""
    enc_tupe_cls_first: bool
    """Treat the token at position 0 as [CLS], which has no position. Default: False. TUPE, arXiv:2006.15595."""
    enc_da_pos_rescale: bool
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    enc_add_value_residual: bool
    """Mix the values of the first attention layer into the later ones. Default: False. Value Residual Learning, arXiv:2410.17897."""
    enc_learned_value_residual_mix: bool
    """In self-attention, compute the mix from the input, instead of one half. Default: True. Value Residual Learning, arXiv:2410.17897."""
    enc_residual_attn: bool
    """Add the logits of the previous self-attention layer. Default: False. RealFormer, arXiv:2012.11747."""
    enc_cross_residual_attn: bool
    """Add the logits of the previous cross-attention layer. Default: False. RealFormer, arXiv:2012.11747."""
    enc_layer_dropout: float | Sequence[float]
    """Probability of skipping a layer in training, or a tuple with one value per layer. Default: 0.0. Deep Networks with Stochastic Depth, arXiv:1603.09382."""
    enc_zero_init_branch_output: bool
    """Initialize the output projection of every branch with zeros. Default: False."""
    enc_shift_tokens: int | Sequence[int]
    """Maximum shift, in tokens, or one value per layer. Default: 0. RWKV, github.com/BlinkDL/RWKV-LM (token shift)."""
    enc_use_layerscale: bool
    """Scale the output of every branch by a learned factor per channel. Default: False. Going deeper with Image Transformers, arXiv:2103.17239."""
    enc_layerscale_init_value: float
    """Initial value of this factor. Default: 0.0. Going deeper with Image Transformers, arXiv:2103.17239."""
    enc_use_adaptive_layerscale: bool
    """Gate the output of every branch by a sigmoid of `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    enc_use_adaln_zero: bool
    """Shift, scale and gate every branch by `condition` (adaLN-Zero), initialized with zeros. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    enc_scale_residual: bool | float
    """Learn a factor per channel of the residual; a number is also a constant factor of every branch output. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    enc_scale_residual_constant: float
    """Constant factor of the residual. Default: 1.0. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    enc_depth_scale_residual: bool | float
    """True: smaller initial output weights in deeper layers; a number: constant factor of every branch output. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    enc_use_rezero: bool
    """Scale every branch by a learned factor, instead of norms. Default: False. ReZero is All You Need, arXiv:2003.04887."""
    enc_cross_attn_tokens_dropout: float
    """Fraction of context tokens that each cross-attention layer drops in training. Default: 0.0. Perceiver AR, arXiv:2202.07765."""
    enc_integrate_layers: bool
    """Use a learned mix of all previous branch inputs as the input of each branch. Default: False. LIMe, arXiv:2502.09245."""
    enc_layer_integrate_use_softmax: bool
    """Normalize the weights of the mix by softmax, otherwise apply ReLU. Default: True. LIMe, arXiv:2502.09245."""
    enc_attn_aggregated_residuals: bool
    """Let each branch input attend to the inputs of all previous branches. Default: False. arXiv:2601.21582, arXiv:2603.15031."""
    enc_attn_aggregated_residual_kwargs: Mapping[str, Any] | None
    """`lora_rank` (default 64) and `lora_activation` of the queries. Default: None. arXiv:2601.21582, arXiv:2603.15031."""
    enc_reinject_input: bool
    """Add a projection of the stack's input to the input of every branch. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    enc_learned_reinject_input_gate: bool
    """Gate this projection, or `in_attn_cond`, per token. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    enc_qkv_receive_diff_residuals: bool
    """Use separate inputs for queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    enc_gate_residual: bool
    """Gate residuals: by a GRU cell, or as in `residual_fn_kwargs=dict(gate='gtrxl', ...)`. Default: False. Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764."""
    enc_laurel_rank: int | None
    """Rank of a learned path beside each branch. Default: None. LAuReL, arXiv:2411.07501."""
    enc_laurel_kind: Literal['low_rank', 'weighted', 'gemma3n']
    """How the path is added: 'low_rank', 'weighted' with learned factors, or 'gemma3n'. Default: 'low_rank'. LAuReL, arXiv:2411.07501."""
    enc_orthog_residual: bool
    """Add only the component of the branch output that is orthogonal to the residual. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    enc_orthog_residual_over_sequence: bool
    """Treat all tokens as one vector, for weights of x-transformers 2.31. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    enc_mv_split_residual: bool
    """Scale the mean over tokens and the deviation from it by separate factors. Default: False. arXiv:2605.06169."""
    enc_gated_multi_residual: bool
    """Mix the streams by gates; needs `residual_fn_kwargs=dict(read_gate_rank=...)`. Default: False."""
    enc_num_residual_streams: int
    """Number of residual streams. Default: 1. Hyper-Connections, arXiv:2409.19606."""
    enc_altup: bool
    """AltUp: blocks compute one of the streams, the others are predicted and corrected. Default: False. Hyper-Connections, arXiv:2409.19606."""
    enc_hyper_conn_sinkhorn_iters: int
    """Number of Sinkhorn iterations for the mixing matrix. Default: 5. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    enc_hyper_conn_residual_mix: Literal['sinkhorn', 'mhc', 'ones']
    """Mixing matrix of the streams: 'sinkhorn' (doubly stochastic), 'mhc' (from all streams of a token, with a learned readout; 20 iterations in the paper), or 'ones' for weights of x-transformers 2.31. Default: 'sinkhorn'. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    enc_softclamp_output: bool
    """Soft-clamp the output of the last layer with tanh. Default: False. Gemma 2, arXiv:2408.00118."""
    enc_softclamp_output_value: float
    """Bound c of this output. Default: 30.0. Gemma 2, arXiv:2408.00118."""
    enc_checkpoint_layers: bool | int
    """Recompute layers in the backward pass: True for each layer separately, k for segments of k layers. Default: False. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    enc_reversible: bool
    """Use two residual streams, which are recomputed in the backward pass instead of stored. Default: False. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    enc_reversible_merge: Literal['mean', 'concat_norm']
    """Input of the final norm: 'mean' of the two streams, or both ('concat_norm'). Default: 'mean'. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    enc_act_halting: bool
    """Let each token decide after each run of the block whether it needs another one. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_eps: float
    """Eps: a token halts when its halting probabilities sum to 1 - eps. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_ponder_weight: float
    """Weight of the ponder loss, which penalizes many runs. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_dense: bool
    """Compute all tokens in every run, also those that have halted. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_act_max_steps: int | None
    """Maximum number of runs; `depth` if None. Default: None. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    enc_ff_mult: float | tuple[float, ...] | PerLayer
    """Inner width as a multiple of `dim`. Default: 4."""
    enc_ff_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width, instead of `mult`. Default: None."""
    enc_ff_activation: str | None | tuple[str | None, ...] | PerLayer
    """Name of the activation; GELU if None. Default: None."""
    enc_ff_no_bias: bool | tuple[bool, ...] | PerLayer
    """Use linear layers without bias; a gated linear unit keeps its bias. Default: False."""
    enc_ff_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability before the output projection. Default: 0.0."""
    enc_ff_custom_activation: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """Activation module instead of GELU. Default: None."""
    enc_ff_relu_squared: bool | tuple[bool, ...] | PerLayer
    """Squared ReLU instead of GELU. Default: False. Primer, arXiv:2109.08668."""
    enc_ff_solu: bool | tuple[bool, ...] | PerLayer
    """Softmax linear unit with a norm, instead of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    enc_ff_swish: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    enc_ff_glu: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_glu_mult_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a factor per channel after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_glu_softclamp: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp u and the linear factor of the gate with tanh; only for GELU and SiLU. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_glu_gate_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the linear factor of the gate g. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_glu_up_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the ungated half u. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_glu_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Bias of the gated projection; None: with a bias. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_swiglu_limit: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves u and g, clamped, for  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_swiglu_alpha: float | tuple[float, ...] | PerLayer
    """Factor alpha of `swiglu_limit`. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_glu_clamp: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves: clamp(u, -c, c) act(min(g, c)). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_gate_sparsity: float | tuple[float, ...] | PerLayer
    """Share of the channels of g that a threshold sets to zero before the activation, for normally distributed g. Default: 0.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    enc_ff_softclamp_value: float | None | tuple[float | None, ...] | PerLayer
    """Soft bound c of the input of the activation, by tanh. Default: None."""
    enc_ff_post_act_ln: bool | tuple[bool, ...] | PerLayer
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    enc_ff_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    enc_ff_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    enc_ff_moe_experts: int | None | tuple[int | None, ...] | PerLayer
    """Number of experts; None for an ordinary feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_top_k: int | tuple[int, ...] | PerLayer
    """Number of experts per token. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of each expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_kind: Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'] | tuple[Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'], ...] | PerLayer
    """Router scores: 'softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax' (softmax over the chosen experts), or 'sparsemixer', which cannot be trained. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_renormalise: bool | tuple[bool, ...] | PerLayer
    """Normalize the weights of the chosen experts to sum 1. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_groups: int | tuple[int, ...] | PerLayer
    """Number of equal groups; experts are chosen from the best groups only. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_top_groups: int | tuple[int, ...] | PerLayer
    """Number of best groups from which experts are chosen. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_group_score: Literal['top2', 'max'] | tuple[Literal['top2', 'max'], ...] | PerLayer
    """Score of a group: the sum of its two largest scores ('top2') or the largest ('max'). Default: 'top2'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_scale: float | tuple[float, ...] | PerLayer
    """Factor of the expert weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_score_bias: bool | tuple[bool, ...] | PerLayer
    """Add a buffer to the scores for choosing experts, not for weighting them. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_shared: int | None | tuple[int | None, ...] | PerLayer
    """Number of shared experts, which process every token as one feedforward of that many inner widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_dim_shared: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of the shared feedforward, instead of that. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_shared_gate: bool | tuple[bool, ...] | PerLayer
    """Scale the shared feedforward by a sigmoid gate, one number per token. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_weight_at: Literal['output', 'input'] | tuple[Literal['output', 'input'], ...] | PerLayer
    """Weights scale the 'output' or the 'input' of experts. Default: 'output'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_zero_experts: int | tuple[int, ...] | PerLayer
    """Number of further experts that return their input. Default: 0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_router_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Biases in all experts; None: yes, unless `no_bias` is set. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_balance_loss: float | tuple[float, ...] | PerLayer
    """Weight of the load balancing loss, in training. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_balance_per_sequence: bool | tuple[bool, ...] | PerLayer
    """Compute this loss for each sequence by itself. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_balance: Literal['bias'] | None | tuple[Literal['bias'] | None, ...] | PerLayer
    """'bias': balance by the score bias, without a loss. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_moe_balance_rate: float | tuple[float, ...] | PerLayer
    """Step of the score bias at each optimizer step. Default: 0.001. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    enc_ff_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    enc_ff_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: divides the variance of the initial output weights. Default: None. OLMo, arXiv:2402.00838."""
    enc_ff_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize weights and bias of the output projection with zeros. Default: False."""
    enc_ff_chunks: int | tuple[int, ...] | PerLayer
    """Number of chunks c of tokens, processed in turn to save memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    enc_ff_chunk_checkpoint: bool | tuple[bool, ...] | PerLayer
    """Recompute each chunk in the backward pass, to save memory in training. Default: False. Reformer, arXiv:2001.04451."""
    enc_cross_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of each query and key head. Default: 64."""
    enc_cross_attn_dim_context: int | None | tuple[int | None, ...] | PerLayer
    """Width of the context, `dim` if None. Default: None."""
    enc_cross_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """Attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both. Default: None."""
    enc_cross_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key/value heads (grouped-query attention); `heads` if None. Default: None."""
    enc_cross_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """Use one key/value head for all query heads (multi-query attention). Default: False."""
    enc_cross_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of each value head, `dim_head` if None. Default: None."""
    enc_cross_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Use an output projection; None: yes, unless there is one head of the output width. Default: None."""
    enc_cross_attn_kv_from: int | None | tuple[int | None, ...] | PerLayer
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    enc_cross_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    enc_cross_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    enc_cross_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    enc_cross_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_cross_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_cross_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_cross_attn_dconv_kernel_size: int | None | tuple[int | None, ...] | PerLayer
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    enc_cross_attn_dconv_on: str | tuple[str, ...] | PerLayer
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    enc_cross_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    enc_cross_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    enc_cross_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    enc_cross_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    enc_cross_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_cross_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_cross_attn_latent_absorb: Literal['auto', True, False] | tuple[Literal['auto', True, False], ...] | PerLayer
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_cross_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    enc_cross_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    enc_cross_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_qk_norm_scale: float | Literal['learned'] | tuple[float | Literal['learned'], ...] | PerLayer
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    enc_cross_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    enc_cross_attn_value_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_cross_attn_value_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_cross_attn_value_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_cross_attn_value_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_cross_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    enc_cross_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_sortcut: int | tuple[int, ...] | PerLayer
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_cross_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    enc_cross_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    enc_cross_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_qk_head_norm_at: Literal['before', 'after'] | tuple[Literal['before', 'after'], ...] | PerLayer
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_cross_attn_query_temperature: Mapping[str, float] | None | tuple[Mapping[str, float] | None, ...] | PerLayer
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    enc_cross_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    enc_cross_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    enc_cross_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    enc_cross_attn_log_cpb: bool | tuple[bool, ...] | PerLayer
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_log_cpb_window: tuple[int, int] | tuple[tuple[int, int], ...] | PerLayer
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_log_cpb_hidden: int | tuple[int, ...] | PerLayer
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    enc_cross_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    enc_cross_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    enc_cross_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of learned curves. Default: 16."""
    enc_cross_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    enc_cross_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_cross_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_cross_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_cross_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_cross_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    enc_cross_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    enc_cross_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    enc_cross_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    enc_cross_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_cross_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_cross_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_max_span: int | tuple[int, ...] | PerLayer
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_span_init: float | tuple[float, ...] | PerLayer
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_cross_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    enc_cross_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_cross_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_cross_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    enc_cross_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_cross_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_cross_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_cross_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_cross_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_cross_attn_moba_block: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    enc_cross_attn_moba_topk: int | tuple[int, ...] | PerLayer
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    enc_cross_attn_indexer: bool | tuple[bool, ...] | PerLayer
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_indexer_heads: int | tuple[int, ...] | PerLayer
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_indexer_dim: int | tuple[int, ...] | PerLayer
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_indexer_topk: int | tuple[int, ...] | PerLayer
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_indexer_rotary: Literal['half', 'pairs'] | tuple[Literal['half', 'pairs'], ...] | PerLayer
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_indexer_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_indexer_warmup: bool | tuple[bool, ...] | PerLayer
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_cross_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    enc_cross_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    enc_cross_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    enc_cross_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    enc_cross_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    enc_cross_attn_differential: bool | Literal['v2'] | tuple[bool | Literal['v2'], ...] | PerLayer
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    enc_cross_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    enc_cross_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    enc_cross_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    enc_cross_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    enc_cross_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    enc_cross_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_cross_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_cross_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    enc_cross_attn_scalable_softmax: bool | tuple[bool, ...] | PerLayer
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    enc_cross_attn_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    enc_cross_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    enc_cross_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    enc_cross_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_cross_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    enc_cross_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    enc_cross_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    enc_cross_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    enc_cross_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_cross_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_cross_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    enc_cross_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    enc_cross_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_cross_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_cross_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_cross_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    enc_cross_attn_entmax_alpha: Literal['learned'] | float | None | tuple[Literal['learned'] | float | None, ...] | PerLayer
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    enc_cross_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    enc_cross_attn_value_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    enc_cross_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    enc_cross_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    enc_cross_attn_hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None | tuple[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None, ...] | PerLayer
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_hybrid_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_hybrid_merge: Literal['mean', 'sum'] | tuple[Literal['mean', 'sum'], ...] | PerLayer
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_hybrid_factors: Sequence[float | None] | None | tuple[Sequence[float | None] | None, ...] | PerLayer
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_cross_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_gate_values_activation: Literal['sigmoid', 'softplus'] | tuple[Literal['sigmoid', 'softplus'], ...] | PerLayer
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_cross_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    enc_cross_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_cross_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_cross_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_cross_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    enc_cross_attn_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    enc_cross_attn_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    enc_cross_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    enc_cross_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    enc_cross_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize the output projection with zeros. Default: False."""
    enc_cross_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    enc_cross_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    enc_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of each query and key head. Default: 64."""
    enc_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """Attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both. Default: None."""
    enc_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key/value heads (grouped-query attention); `heads` if None. Default: None."""
    enc_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """Use one key/value head for all query heads (multi-query attention). Default: False."""
    enc_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of each value head, `dim_head` if None. Default: None."""
    enc_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Use an output projection; None: yes, unless there is one head of the output width. Default: None."""
    enc_attn_kv_from: int | None | tuple[int | None, ...] | PerLayer
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    enc_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    enc_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    enc_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    enc_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    enc_attn_dconv_kernel_size: int | None | tuple[int | None, ...] | PerLayer
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    enc_attn_dconv_on: str | tuple[str, ...] | PerLayer
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    enc_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    enc_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    enc_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    enc_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    enc_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_attn_latent_absorb: Literal['auto', True, False] | tuple[Literal['auto', True, False], ...] | PerLayer
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    enc_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    enc_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    enc_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_qk_norm_scale: float | Literal['learned'] | tuple[float | Literal['learned'], ...] | PerLayer
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    enc_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    enc_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    enc_attn_value_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_attn_value_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_attn_value_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_attn_value_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    enc_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_sortcut: int | tuple[int, ...] | PerLayer
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    enc_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    enc_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    enc_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_qk_head_norm_at: Literal['before', 'after'] | tuple[Literal['before', 'after'], ...] | PerLayer
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    enc_attn_query_temperature: Mapping[str, float] | None | tuple[Mapping[str, float] | None, ...] | PerLayer
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    enc_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    enc_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    enc_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    enc_attn_log_cpb: bool | tuple[bool, ...] | PerLayer
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_log_cpb_window: tuple[int, int] | tuple[tuple[int, int], ...] | PerLayer
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_log_cpb_hidden: int | tuple[int, ...] | PerLayer
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    enc_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    enc_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    enc_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of learned curves. Default: 16."""
    enc_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    enc_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    enc_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    enc_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    enc_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    enc_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    enc_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    enc_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_max_span: int | tuple[int, ...] | PerLayer
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_span_init: float | tuple[float, ...] | PerLayer
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    enc_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    enc_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    enc_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    enc_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    enc_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    enc_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    enc_attn_moba_block: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    enc_attn_moba_topk: int | tuple[int, ...] | PerLayer
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    enc_attn_indexer: bool | tuple[bool, ...] | PerLayer
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_indexer_heads: int | tuple[int, ...] | PerLayer
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_indexer_dim: int | tuple[int, ...] | PerLayer
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_indexer_topk: int | tuple[int, ...] | PerLayer
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_indexer_rotary: Literal['half', 'pairs'] | tuple[Literal['half', 'pairs'], ...] | PerLayer
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_indexer_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_indexer_warmup: bool | tuple[bool, ...] | PerLayer
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    enc_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    enc_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    enc_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    enc_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    enc_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    enc_attn_differential: bool | Literal['v2'] | tuple[bool | Literal['v2'], ...] | PerLayer
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    enc_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    enc_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    enc_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    enc_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    enc_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    enc_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    enc_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    enc_attn_scalable_softmax: bool | tuple[bool, ...] | PerLayer
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    enc_attn_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    enc_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    enc_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    enc_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    enc_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    enc_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    enc_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    enc_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    enc_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    enc_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    enc_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    enc_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    enc_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    enc_attn_entmax_alpha: Literal['learned'] | float | None | tuple[Literal['learned'] | float | None, ...] | PerLayer
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    enc_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    enc_attn_value_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    enc_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    enc_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    enc_attn_hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None | tuple[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None, ...] | PerLayer
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_hybrid_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_hybrid_merge: Literal['mean', 'sum'] | tuple[Literal['mean', 'sum'], ...] | PerLayer
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_hybrid_factors: Sequence[float | None] | None | tuple[Sequence[float | None] | None, ...] | PerLayer
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    enc_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_gate_values_activation: Literal['sigmoid', 'softplus'] | tuple[Literal['sigmoid', 'softplus'], ...] | PerLayer
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    enc_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    enc_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    enc_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    enc_attn_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    enc_attn_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    enc_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    enc_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    enc_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize the output projection with zeros. Default: False."""
    enc_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    enc_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    enc_num_tokens: Required[int]
    """Size of the vocabulary."""
    enc_max_seq_len: Required[int | None]
    """Maximum length with absolute positions; 0, -1 or None to use no absolute positions."""
    enc_emb_dim: int | None
    """Width of the embeddings, that of the stack if None. Default: None."""
    enc_emb_dropout: float
    """Dropout probability of the embeddings. Default: 0.0."""
    enc_l2norm_embed: bool
    """L2-normalize the embeddings. Default: False."""
    enc_project_emb: bool | None
    """Project the embeddings to the width of the stack; None: only if the widths differ. Default: None."""
    enc_project_emb_bias: bool
    """Use a bias in this projection. Default: True."""
    enc_post_emb_norm_at: str
    """Position of `post_emb_norm`: before ('embedding') or after ('stream') this projection. Default: 'embedding'."""
    enc_logits_dim: int | None
    """Width of the logits, `num_tokens` if None. Default: None."""
    enc_logits_bias: bool
    """Add a bias to the logits, also with `tie_embedding`. Default: False."""
    enc_token_emb: nn.Module | None
    """Custom token embedding. Default: None."""
    enc_to_logits: nn.Module | None
    """Custom output head. Default: None."""
    enc_max_mem_len: int
    """Number of hidden states returned as memories (Transformer-XL). Default: 0."""
    enc_shift_mem_down: int
    """Number n of layers: layer i gets the memories of layer i + n. Default: 0."""
    enc_attn_z_loss_weight: float
    """Weight of the z-loss of the attention logits. Default: 0.0001."""
    enc_input_not_include_cache: bool
    """Calls with a cache pass only the new tokens. Default: False."""
    enc_mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    enc_use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    enc_abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    enc_sinu_pos_emb: bool
    """Sinusoidal position embeddings instead of a learned table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_sinu_denominator: Literal['d', 'half_minus_1']
    """'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    enc_axial_abs_pos_emb: Sequence[int] | None
    """Lengths of the axes of the flattened data, which get one table of learned vectors each. Default: None. Sparse Transformer, arXiv:1904.10509, section 5.2."""
    enc_embed_num_tokens: Mapping[str, int]
    """Name -> vocabulary size of each additional kind of ids. Default: {}."""
    enc_embed_default_ids: Mapping[str, int]
    """Name -> id used for every token if a call does not pass these ids. Default: {}."""
    enc_emb_scale: float
    """Factor of the token embeddings, rounded to the dtype of their table. Default: 1.0. Attention Is All You Need, arXiv:1706.03762, section 3.4."""
    enc_post_emb_norm: bool
    """Layer norm of the summed embeddings. Default: False. BERT, arXiv:1810.04805."""
    enc_post_emb_norm_bias: bool
    """Learn a bias in this layer norm. Default: False. BERT, arXiv:1810.04805."""
    enc_post_emb_norm_eps: float | None
    """Eps of this layer norm, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    enc_emb_frac_gradient: float
    """Factor of the gradient of the embeddings, in (0, 1]. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    enc_use_cls_token: bool
    """Prepend learned class tokens and take the output from them. Default: False. BERT, arXiv:1810.04805."""
    enc_num_cls_tokens: int
    """Number of class tokens. Default: 1. BERT, arXiv:1810.04805."""
    enc_num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    enc_memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    enc_ff_deep_embed: bool
    """Scale the output of each feedforward by a learned vector per token id. Default: False. RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM."""
    enc_per_layer_emb: Mapping[str, Any] | bool | None
    """Embeddings per token and block: True, or dict(num_tokens=...) for a table of the first tokens only. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    enc_recycling: bool
    """Run the stack several times, on the input plus a projection of the previous output. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    enc_train_max_recycle_steps: int
    """Passes in evaluation; in training 1 to this number, at random. Default: 4. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    enc_looped: bool
    """Run the stack several times, each time on the previous output. Default: False. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    enc_max_looped_steps: int
    """Number of passes. Default: 4. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    enc_cmem_len: int
    """Compressed memories per self-attention layer, in addition to `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_ratio: int
    """Compression ratio: number of memories that are compressed to one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """Compression function: 'conv', 'dilated_conv', 'mean', 'max' or 'most_used'. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_loss: Literal['attn', 'ae'] | None
    """Loss of the compression: 'attn' (attention reconstruction), 'ae' (autoencoding), or None. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    enc_cmem_init: Literal['mean'] | None
    """Initialization of the convolutions: 'mean' (averaging), or None for PyTorch's default. Default: None. Compressive Transformer, arXiv:1911.05507."""
    enc_average_pool_embed: bool
    """Average the tokens before the output head. Default: False."""
    enc_attn_pool: bool
    """Pool the final embeddings by attention of learned queries. Default: False."""
    enc_num_pooled_tokens: int
    """Number of queries. Default: 1."""
    enc_attn_pool_depth: int
    """Number of cross-attention blocks. Default: 1."""
    enc_dim_pooled_tokens: int | None
    """Width of the pooled tokens, that of the stack if None. Default: None."""
    enc_head_transform: Mapping[str, Any] | None
    """A dict that describes a linear layer, activation and norm before the output head. Default: None. BERT, arXiv:1810.04805."""
    enc_tie_embedding: bool
    """Use the table of token embeddings as the output head (weight tying). Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    enc_tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    enc_tie_embedding_normed: bool
    """With `l2norm_embed`, use the normalized table for the logits; False, as in the original: the stored one. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    enc_num_output_heads: int
    """Number of output heads; with several, the model returns a tuple of logits. Default: 1."""
    enc_logits_scale: float
    """Factor of the logits. Default: 1.0. Tensor Programs V, arXiv:2203.03466."""
    enc_logits_softclamp: float | None
    """Bound c of the logits, soft-clamped with tanh. Default: None. Gemma 2, arXiv:2408.00118, section 2."""
    enc_sigsoftmax_logits: bool
    """Add the log sigmoid of the logits to the logits (sigsoftmax). Default: False. Sigsoftmax, arXiv:1805.10829."""
    enc_mixture_of_softmax: bool
    """Return log probabilities of a mixture of softmaxes instead of logits. Default: False. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    enc_mixture_of_softmax_k: int
    """Number k of softmaxes. Default: 4. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    enc_squeeze_out_last_dim: bool
    """Remove the last axis of the logits if it has size 1. Default: False."""
    enc_add_continuous_pred_head: bool
    """Add a head that predicts the embedding of the next token. Default: False."""
    enc_pooler: Mapping[str, Any] | None
    """A dict that describes how `return_pooled` computes one vector per sequence. Default: None. BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020."""
    enc_mtp_depth: int
    """Number of modules that each predict one more token. Default: 0. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    enc_mtp_block: Mapping[str, Any] | None
    """Keywords of the block of each module that differ from those of the last block of the stack. Default: None. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    enc_mtp_hidden: Literal['stream', 'normed']
    """Hidden states that the first module gets: before ('stream') or after ('normed') the final norm. Default: 'stream'. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    enc_mtp_loss_weight: float
    """Weight of the loss of all modules. Default: 0.3. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    dec_heads: int
    """Number of attention heads in every layer. Default: 8."""
    dec_pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    dec_pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    dec_norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    dec_disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    dec_rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    dec_residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    dec_verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""
    dec_macaron: bool
    """Use a feedforward before and after attention, each times one half. Default: False. Macaron Net, arXiv:1906.02762."""
    dec_conv_module: bool
    """Add a convolution module along the sequence after each attention layer. Default: False. Conformer, arXiv:2005.08100."""
    dec_conv_kernel_size: int
    """Kernel size in tokens; odd, unless `conv_causal` is set. Default: 31. Conformer, arXiv:2005.08100."""
    dec_conv_causal: bool
    """Use a causal convolution. Default: False. Conformer, arXiv:2005.08100."""
    dec_conv_norm: Literal['batch', 'layer', 'group']
    """Norm of the module: 'batch', or per token 'layer' or 'group'. Default: 'batch'. Conformer, arXiv:2005.08100."""
    dec_only_attn: bool
    """Remove all feedforwards. Default: False. arXiv:2607.18363."""
    dec_custom_layers: Sequence[Any] | None
    """Kinds of all layers, such as ('a', 'f', 'a', 'f'); possible kinds are the keys of `KINDS`. Default: None."""
    dec_recurrent_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | Sequence[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module] | None
    """Module of the layers of kind 'r': a name, or a custom module, of which each layer gets a copy; or a tuple with one for each of these layers. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`."""
    dec_recurrent_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    """Keywords of the class of the module, a dict; a tuple has one for each of these layers. Default: None. RWKV, arXiv:2305.13048; diagonal state spaces, arXiv:2203.14343; see `help(x_transformers.recurrent)`."""
    dec_par_ratio: int | None
    """Number of layers per attention layer. Default: None. PAR Transformer, arXiv:2009.04534."""
    dec_sandwich_coef: int | None
    """Number of attention layers at the start, and of feedforwards at the end. Default: None. Sandwich Transformers, arXiv:1911.03864."""
    dec_weight_tie_layers: bool
    """Share the weights of one block between all depths. Default: False. ALBERT, arXiv:1909.11942."""
    dec_layers_execute_order: Sequence[int] | None
    """Layer indices in the order of execution, with repeats allowed. Default: None."""
    dec_ut_transition: Literal['ff', 'sepconv']
    """Second branch of each block: 'ff' (feedforward) or 'sepconv' (separable convolutions). Default: 'ff'. Universal Transformers, arXiv:1807.03819."""
    dec_per_layer_abs_pos_emb: int | None
    """Number of positions in the table of each layer. Default: None. Character-Level Language Modeling with Deeper Self-Attention, arXiv:1808.04444."""
    dec_coord_pos_emb: bool | Literal['learned']
    """Add sinusoids of position and step before every run of a block; 'learned': a learned vector per step. Default: False. Universal Transformers, arXiv:1807.03819."""
    dec_unet_skips: bool
    """Concatenate and project the inputs of mirrored blocks (U-Net skips). Default: False. U-ViT, arXiv:2209.12152."""
    dec_dim_condition: int | None
    """Width of the condition, `dim` if None. Default: None."""
    dec_adaptive_condition_mlp: bool
    """First expand the condition with a linear layer and SiLU. Default: False."""
    dec_adaptive_condition_mlp_expansion: int
    """Expansion factor of this layer. Default: 4."""
    dec_use_scalenorm: bool
    """ScaleNorm instead of LayerNorm. Default: False. Transformers without Tears, arXiv:1910.05895."""
    dec_use_rmsnorm: bool
    """RMSNorm instead of LayerNorm. Default: False. Root Mean Square Layer Normalization, arXiv:1910.07467."""
    dec_use_simple_rmsnorm: bool
    """RMSNorm without learned weights, instead of LayerNorm. Default: False. TransNormer, arXiv:2307.14995."""
    dec_use_dynamic_tanh: bool
    """Dynamic tanh instead of LayerNorm. Default: False. Transformers without Normalization, arXiv:2503.10622."""
    dec_dynamic_tanh_init_alpha: float
    """Initial value of the factor a. Default: 1.0. Transformers without Normalization, arXiv:2503.10622."""
    dec_use_derf: bool
    """Derf (error function) instead of LayerNorm. Default: False. Stronger Normalization-Free Transformers, arXiv:2512.10938."""
    dec_use_adaptive_layernorm: bool
    """Layer norm with weights computed from `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    dec_use_adaptive_rmsnorm: bool
    """RMSNorm with weights computed from `condition`. Default: False."""
    dec_norm_bias: bool
    """Learn a bias in the layer norms (also for weights of releases before 1.27). Default: False. Layer Normalization, arXiv:1607.06450."""
    dec_norm_eps: float | None
    """Eps of every norm; None: 1e-5 in layer norms, no eps in others (x / |x|). Default: None. Layer Normalization, arXiv:1607.06450."""
    dec_norm_affine: bool
    """Learn weights in the norms. Default: True. OLMo, arXiv:2402.00838."""
    dec_branch_post_norm: bool
    """Normalize the output of every branch instead of its input. Default: False. OLMo 2, arXiv:2501.00656."""
    dec_first_attn_norm: bool
    """Use a norm before the first attention layer. Default: True. ModernBERT, arXiv:2412.13663."""
    dec_sandwich_norm: bool
    """Also normalize the output of every branch. Default: False. CogView, arXiv:2105.13290."""
    dec_pre_and_post_norm: bool
    """Use a norm before every branch and another after its residual. Default: False."""
    dec_block_norm: bool
    """Normalize the residual stream after each block. Default: False. Conformer, arXiv:2005.08100."""
    dec_parallel_block: bool | Literal['shared']
    """Run the branches of a block in parallel, with a separate norm each (True) or one norm for all ('shared'). Default: False. PaLM, arXiv:2204.02311; GPT-NeoX, arXiv:2204.06745."""
    dec_per_layer_emb_dim: int | None
    """Width of an embedding per token and block, which gates a branch. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_resi_dual: bool
    """Post-norm layers plus a second, unnormalized residual stream. Default: False. ResiDual, arXiv:2304.14802."""
    dec_resi_dual_scale: float
    """Factor c of the second stream, against overflow in half precision. Default: 1.0. ResiDual, arXiv:2304.14802."""
    dec_xl_rel_segments: bool
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    dec_two_stream: bool
    """Add a query stream that predicts tokens in a given order (XLNet). Default: False. XLNet, arXiv:1906.08237."""
    dec_window_growth: float | None
    """Factor by which `attn_max_attend_past` grows from one self-attention layer to the next. Default: None. MSWA: Refining Local Attention with Multi-Scale Window Attention, arXiv:2501.01039."""
    dec_knn_mem_layers: Sequence[int]
    """Self-attention layers with a kNN memory, counted from 0. Default: (). Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_size: int
    """Number of stored tokens per batch entry. Default: 65536. Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_topk: int
    """Number of stored tokens that each query retrieves, per head. Default: 32. Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_gate_init: float
    """Initial gate, a logit; -4 to add memory to a pretrained model. Default: 0.0. Memorizing Transformers, arXiv:2203.08913."""
    dec_knn_mem_search: Literal['exact', 'coarse']
    """Search: 'exact', or 'coarse', which first compares only some channels and may miss some keys. Default: 'exact'. Memorizing Transformers, arXiv:2203.08913."""
    dec_rotary_pos_emb: bool
    """Rotate queries and keys by their positions (RoPE). Default: False. RoFormer, arXiv:2104.09864."""
    dec_rotary_emb_dim: int | None
    """Number of rotated channels per head, half of the head if None. Default: None. RoFormer, arXiv:2104.09864."""
    dec_rotary_theta: float
    """Base of the frequencies: pair i of r channels has frequency theta ** (-2 i / r). Default: 10000.0. RoFormer, arXiv:2104.09864."""
    dec_rotary_scaling: Mapping[str, Any] | None
    """Frequency scaling for longer contexts, a dict with `kind` ('linear', 'dynamic', 'yarn', 'longrope', 'llama3' or 'proportional') and its parameters. Default: None. RoFormer, arXiv:2104.09864."""
    dec_rotary_xpos: bool
    """Also decay the scores with distance (xPos). Default: False. RoFormer, arXiv:2104.09864."""
    dec_rotary_xpos_scale_base: float
    """Length scale of the xPos decay, in tokens. Default: 512. RoFormer, arXiv:2104.09864."""
    dec_rotary_interpolation_factor: float
    """Divisor of the positions (position interpolation); a negative one rotates backwards. Default: 1.0. RoFormer, arXiv:2104.09864."""
    dec_rotary_base_rescale_factor: float
    """NTK-aware factor of the base, for longer contexts. Default: 1.0. RoFormer, arXiv:2104.09864."""
    dec_rotate_num_heads: int | None
    """Number of heads that are rotated, the last ones; None: all. Default: None. RoFormer, arXiv:2104.09864."""
    dec_rotary_layers: Sequence[bool | Mapping[str, Any]] | None
    """One value per self-attention layer: True, False for no rotation, or a dict with another `theta` or `scaling`. Default: None. Gemma 3, arXiv:2503.19786; without positions: arXiv:2305.19466."""
    dec_polar_pos_emb: bool
    """Polar positions: magnitudes from content, angles from positions. Default: False. PoPE, arXiv:2509.10534."""
    dec_polar_bias_uniform_init: bool
    """Initialize the angle shift of the keys uniformly at random, not with zeros. Default: False. PoPE, arXiv:2509.10534."""
    dec_position_infused_attn: bool
    """Add sinusoidal positions to the inputs of queries and keys. Default: False. Shortformer, arXiv:2012.15832."""
    dec_alibi_pos_bias: bool
    """Add a linear penalty on the distance to the scores (ALiBi). Default: False. Train Short, Test Long, arXiv:2108.12409."""
    dec_alibi_num_heads: int | None
    """Number of heads with a slope, the first ones; all if None. Default: None. Train Short, Test Long, arXiv:2108.12409."""
    dec_alibi_bidirectional: Literal['symmetric', 'split']
    """In non-causal stacks: 'symmetric', or 'split' for half of these heads backwards and half forwards. Default: 'symmetric'. Train Short, Test Long, arXiv:2108.12409."""
    dec_rel_pos_bias: bool
    """Add a learned bias per bucket of distances to the scores (T5). Default: False. T5, arXiv:1910.10683."""
    dec_rel_pos_num_buckets: int
    """Number of buckets. Default: 32. T5, arXiv:1910.10683."""
    dec_rel_pos_max_distance: int
    """Maximum distance, in tokens; larger ones share the last bucket. Default: 128. T5, arXiv:1910.10683."""
    dec_rel_pos_bias_scale: float | None
    """Factor of the bias, sqrt(dim_head) if None; T5 uses 1. Default: None. T5, arXiv:1910.10683."""
    dec_dynamic_pos_bias: bool
    """Add a bias that a small MLP computes from the distance. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_dynamic_pos_bias_log_distance: bool
    """Use the signed logarithm of the distance as its input. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_dynamic_pos_bias_mlp_depth: int
    """Number of hidden layers of the MLP. Default: 2. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_dynamic_pos_bias_norm: bool
    """Use layer norms in the MLP. Default: False. CrossFormer, arXiv:2108.00154; Swin v2, arXiv:2111.09883."""
    dec_shaw_rel_pos: bool
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_shaw_max_distance: int
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_shaw_rel_values: bool
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_xl_rel_pos: bool
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_xl_rel_pos_untied: bool
    """Learn separate vectors u and v in each layer. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_xl_clamp_len: int | None
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    dec_tupe_pos: bool
    """Add separate scores of the position embeddings, instead of adding these to the tokens. Default: False. TUPE, arXiv:2006.15595."""
    dec_tupe_cls_first: bool
    """Treat the token at position 0 as [CLS], which has no position. Default: False. TUPE, arXiv:2006.15595."""
    dec_da_pos_rescale: bool
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    dec_add_value_residual: bool
    """Mix the values of the first attention layer into the later ones. Default: False. Value Residual Learning, arXiv:2410.17897."""
    dec_learned_value_residual_mix: bool
    """In self-attention, compute the mix from the input, instead of one half. Default: True. Value Residual Learning, arXiv:2410.17897."""
    dec_residual_attn: bool
    """Add the logits of the previous self-attention layer. Default: False. RealFormer, arXiv:2012.11747."""
    dec_cross_residual_attn: bool
    """Add the logits of the previous cross-attention layer. Default: False. RealFormer, arXiv:2012.11747."""
    dec_layer_dropout: float | Sequence[float]
    """Probability of skipping a layer in training, or a tuple with one value per layer. Default: 0.0. Deep Networks with Stochastic Depth, arXiv:1603.09382."""
    dec_zero_init_branch_output: bool
    """Initialize the output projection of every branch with zeros. Default: False."""
    dec_shift_tokens: int | Sequence[int]
    """Maximum shift, in tokens, or one value per layer. Default: 0. RWKV, github.com/BlinkDL/RWKV-LM (token shift)."""
    dec_use_layerscale: bool
    """Scale the output of every branch by a learned factor per channel. Default: False. Going deeper with Image Transformers, arXiv:2103.17239."""
    dec_layerscale_init_value: float
    """Initial value of this factor. Default: 0.0. Going deeper with Image Transformers, arXiv:2103.17239."""
    dec_use_adaptive_layerscale: bool
    """Gate the output of every branch by a sigmoid of `condition`. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    dec_use_adaln_zero: bool
    """Shift, scale and gate every branch by `condition` (adaLN-Zero), initialized with zeros. Default: False. Scalable Diffusion Models with Transformers, arXiv:2212.09748."""
    dec_scale_residual: bool | float
    """Learn a factor per channel of the residual; a number is also a constant factor of every branch output. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    dec_scale_residual_constant: float
    """Constant factor of the residual. Default: 1.0. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    dec_depth_scale_residual: bool | float
    """True: smaller initial output weights in deeper layers; a number: constant factor of every branch output. Default: False. NormFormer, arXiv:2110.09456; DeepNet, arXiv:2203.00555; OLMo, arXiv:2402.00838."""
    dec_use_rezero: bool
    """Scale every branch by a learned factor, instead of norms. Default: False. ReZero is All You Need, arXiv:2003.04887."""
    dec_cross_attn_tokens_dropout: float
    """Fraction of context tokens that each cross-attention layer drops in training. Default: 0.0. Perceiver AR, arXiv:2202.07765."""
    dec_integrate_layers: bool
    """Use a learned mix of all previous branch inputs as the input of each branch. Default: False. LIMe, arXiv:2502.09245."""
    dec_layer_integrate_use_softmax: bool
    """Normalize the weights of the mix by softmax, otherwise apply ReLU. Default: True. LIMe, arXiv:2502.09245."""
    dec_attn_aggregated_residuals: bool
    """Let each branch input attend to the inputs of all previous branches. Default: False. arXiv:2601.21582, arXiv:2603.15031."""
    dec_attn_aggregated_residual_kwargs: Mapping[str, Any] | None
    """`lora_rank` (default 64) and `lora_activation` of the queries. Default: None. arXiv:2601.21582, arXiv:2603.15031."""
    dec_reinject_input: bool
    """Add a projection of the stack's input to the input of every branch. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    dec_learned_reinject_input_gate: bool
    """Gate this projection, or `in_attn_cond`, per token. Default: False. Deep Equilibrium Models, arXiv:1909.01377; arXiv:2410.03020; in_attn_cond: arXiv:2105.04090."""
    dec_qkv_receive_diff_residuals: bool
    """Use separate inputs for queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    dec_gate_residual: bool
    """Gate residuals: by a GRU cell, or as in `residual_fn_kwargs=dict(gate='gtrxl', ...)`. Default: False. Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764."""
    dec_laurel_rank: int | None
    """Rank of a learned path beside each branch. Default: None. LAuReL, arXiv:2411.07501."""
    dec_laurel_kind: Literal['low_rank', 'weighted', 'gemma3n']
    """How the path is added: 'low_rank', 'weighted' with learned factors, or 'gemma3n'. Default: 'low_rank'. LAuReL, arXiv:2411.07501."""
    dec_orthog_residual: bool
    """Add only the component of the branch output that is orthogonal to the residual. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    dec_orthog_residual_over_sequence: bool
    """Treat all tokens as one vector, for weights of x-transformers 2.31. Default: False. Revisiting Residual Connections, arXiv:2505.11881."""
    dec_mv_split_residual: bool
    """Scale the mean over tokens and the deviation from it by separate factors. Default: False. arXiv:2605.06169."""
    dec_gated_multi_residual: bool
    """Mix the streams by gates; needs `residual_fn_kwargs=dict(read_gate_rank=...)`. Default: False."""
    dec_num_residual_streams: int
    """Number of residual streams. Default: 1. Hyper-Connections, arXiv:2409.19606."""
    dec_altup: bool
    """AltUp: blocks compute one of the streams, the others are predicted and corrected. Default: False. Hyper-Connections, arXiv:2409.19606."""
    dec_hyper_conn_sinkhorn_iters: int
    """Number of Sinkhorn iterations for the mixing matrix. Default: 5. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    dec_hyper_conn_residual_mix: Literal['sinkhorn', 'mhc', 'ones']
    """Mixing matrix of the streams: 'sinkhorn' (doubly stochastic), 'mhc' (from all streams of a token, with a learned readout; 20 iterations in the paper), or 'ones' for weights of x-transformers 2.31. Default: 'sinkhorn'. Hyper-Connections, arXiv:2409.19606; mHC, arXiv:2512.24880."""
    dec_softclamp_output: bool
    """Soft-clamp the output of the last layer with tanh. Default: False. Gemma 2, arXiv:2408.00118."""
    dec_softclamp_output_value: float
    """Bound c of this output. Default: 30.0. Gemma 2, arXiv:2408.00118."""
    dec_checkpoint_layers: bool | int
    """Recompute layers in the backward pass: True for each layer separately, k for segments of k layers. Default: False. Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174."""
    dec_reversible: bool
    """Use two residual streams, which are recomputed in the backward pass instead of stored. Default: False. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    dec_reversible_merge: Literal['mean', 'concat_norm']
    """Input of the final norm: 'mean' of the two streams, or both ('concat_norm'). Default: 'mean'. The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451."""
    dec_act_halting: bool
    """Let each token decide after each run of the block whether it needs another one. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_eps: float
    """Eps: a token halts when its halting probabilities sum to 1 - eps. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_ponder_weight: float
    """Weight of the ponder loss, which penalizes many runs. Default: 0.01. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_dense: bool
    """Compute all tokens in every run, also those that have halted. Default: False. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_act_max_steps: int | None
    """Maximum number of runs; `depth` if None. Default: None. Adaptive Computation Time, arXiv:1603.08983; Universal Transformers, arXiv:1807.03819."""
    dec_ff_mult: float | tuple[float, ...] | PerLayer
    """Inner width as a multiple of `dim`. Default: 4."""
    dec_ff_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width, instead of `mult`. Default: None."""
    dec_ff_activation: str | None | tuple[str | None, ...] | PerLayer
    """Name of the activation; GELU if None. Default: None."""
    dec_ff_no_bias: bool | tuple[bool, ...] | PerLayer
    """Use linear layers without bias; a gated linear unit keeps its bias. Default: False."""
    dec_ff_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability before the output projection. Default: 0.0."""
    dec_ff_custom_activation: nn.Module | None | tuple[nn.Module | None, ...] | PerLayer
    """Activation module instead of GELU. Default: None."""
    dec_ff_relu_squared: bool | tuple[bool, ...] | PerLayer
    """Squared ReLU instead of GELU. Default: False. Primer, arXiv:2109.08668."""
    dec_ff_solu: bool | tuple[bool, ...] | PerLayer
    """Softmax linear unit with a norm, instead of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    dec_ff_swish: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    dec_ff_glu: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_glu_mult_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a factor per channel after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_glu_softclamp: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp u and the linear factor of the gate with tanh; only for GELU and SiLU. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_glu_gate_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the linear factor of the gate g. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_glu_up_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound of the ungated half u. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_glu_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Bias of the gated projection; None: with a bias. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_swiglu_limit: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves u and g, clamped, for  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_swiglu_alpha: float | tuple[float, ...] | PerLayer
    """Factor alpha of `swiglu_limit`. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_glu_clamp: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of both halves: clamp(u, -c, c) act(min(g, c)). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_gate_sparsity: float | tuple[float, ...] | PerLayer
    """Share of the channels of g that a threshold sets to zero before the activation, for normally distributed g. Default: 0.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    dec_ff_softclamp_value: float | None | tuple[float | None, ...] | PerLayer
    """Soft bound c of the input of the activation, by tanh. Default: None."""
    dec_ff_post_act_ln: bool | tuple[bool, ...] | PerLayer
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    dec_ff_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    dec_ff_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    dec_ff_moe_experts: int | None | tuple[int | None, ...] | PerLayer
    """Number of experts; None for an ordinary feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_top_k: int | tuple[int, ...] | PerLayer
    """Number of experts per token. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_dim_inner: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of each expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_kind: Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'] | tuple[Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer'], ...] | PerLayer
    """Router scores: 'softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax' (softmax over the chosen experts), or 'sparsemixer', which cannot be trained. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_renormalise: bool | tuple[bool, ...] | PerLayer
    """Normalize the weights of the chosen experts to sum 1. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_groups: int | tuple[int, ...] | PerLayer
    """Number of equal groups; experts are chosen from the best groups only. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_top_groups: int | tuple[int, ...] | PerLayer
    """Number of best groups from which experts are chosen. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_group_score: Literal['top2', 'max'] | tuple[Literal['top2', 'max'], ...] | PerLayer
    """Score of a group: the sum of its two largest scores ('top2') or the largest ('max'). Default: 'top2'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_scale: float | tuple[float, ...] | PerLayer
    """Factor of the expert weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_score_bias: bool | tuple[bool, ...] | PerLayer
    """Add a buffer to the scores for choosing experts, not for weighting them. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_shared: int | None | tuple[int | None, ...] | PerLayer
    """Number of shared experts, which process every token as one feedforward of that many inner widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_dim_shared: int | None | tuple[int | None, ...] | PerLayer
    """Inner width of the shared feedforward, instead of that. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_shared_gate: bool | tuple[bool, ...] | PerLayer
    """Scale the shared feedforward by a sigmoid gate, one number per token. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_weight_at: Literal['output', 'input'] | tuple[Literal['output', 'input'], ...] | PerLayer
    """Weights scale the 'output' or the 'input' of experts. Default: 'output'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_zero_experts: int | tuple[int, ...] | PerLayer
    """Number of further experts that return their input. Default: 0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_router_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_bias: bool | None | tuple[bool | None, ...] | PerLayer
    """Biases in all experts; None: yes, unless `no_bias` is set. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_balance_loss: float | tuple[float, ...] | PerLayer
    """Weight of the load balancing loss, in training. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_balance_per_sequence: bool | tuple[bool, ...] | PerLayer
    """Compute this loss for each sequence by itself. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_balance: Literal['bias'] | None | tuple[Literal['bias'] | None, ...] | PerLayer
    """'bias': balance by the score bias, without a loss. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_moe_balance_rate: float | tuple[float, ...] | PerLayer
    """Step of the score bias at each optimizer step. Default: 0.001. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    dec_ff_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    dec_ff_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: divides the variance of the initial output weights. Default: None. OLMo, arXiv:2402.00838."""
    dec_ff_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize weights and bias of the output projection with zeros. Default: False."""
    dec_ff_chunks: int | tuple[int, ...] | PerLayer
    """Number of chunks c of tokens, processed in turn to save memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    dec_ff_chunk_checkpoint: bool | tuple[bool, ...] | PerLayer
    """Recompute each chunk in the backward pass, to save memory in training. Default: False. Reformer, arXiv:2001.04451."""
    dec_cross_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of each query and key head. Default: 64."""
    dec_cross_attn_dim_context: int | None | tuple[int | None, ...] | PerLayer
    """Width of the context, `dim` if None. Default: None."""
    dec_cross_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """Attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both. Default: None."""
    dec_cross_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key/value heads (grouped-query attention); `heads` if None. Default: None."""
    dec_cross_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """Use one key/value head for all query heads (multi-query attention). Default: False."""
    dec_cross_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of each value head, `dim_head` if None. Default: None."""
    dec_cross_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Use an output projection; None: yes, unless there is one head of the output width. Default: None."""
    dec_cross_attn_kv_from: int | None | tuple[int | None, ...] | PerLayer
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    dec_cross_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    dec_cross_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    dec_cross_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    dec_cross_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_cross_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_cross_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_cross_attn_dconv_kernel_size: int | None | tuple[int | None, ...] | PerLayer
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    dec_cross_attn_dconv_on: str | tuple[str, ...] | PerLayer
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    dec_cross_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    dec_cross_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    dec_cross_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    dec_cross_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    dec_cross_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_cross_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_cross_attn_latent_absorb: Literal['auto', True, False] | tuple[Literal['auto', True, False], ...] | PerLayer
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_cross_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    dec_cross_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    dec_cross_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_qk_norm_scale: float | Literal['learned'] | tuple[float | Literal['learned'], ...] | PerLayer
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    dec_cross_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    dec_cross_attn_value_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_cross_attn_value_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_cross_attn_value_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_cross_attn_value_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_cross_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    dec_cross_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_sortcut: int | tuple[int, ...] | PerLayer
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_cross_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    dec_cross_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    dec_cross_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_qk_head_norm_at: Literal['before', 'after'] | tuple[Literal['before', 'after'], ...] | PerLayer
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_cross_attn_query_temperature: Mapping[str, float] | None | tuple[Mapping[str, float] | None, ...] | PerLayer
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    dec_cross_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    dec_cross_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    dec_cross_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    dec_cross_attn_log_cpb: bool | tuple[bool, ...] | PerLayer
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_log_cpb_window: tuple[int, int] | tuple[tuple[int, int], ...] | PerLayer
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_log_cpb_hidden: int | tuple[int, ...] | PerLayer
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    dec_cross_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    dec_cross_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    dec_cross_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of learned curves. Default: 16."""
    dec_cross_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    dec_cross_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_cross_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_cross_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_cross_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_cross_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    dec_cross_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    dec_cross_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    dec_cross_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    dec_cross_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_cross_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_cross_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_max_span: int | tuple[int, ...] | PerLayer
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_span_init: float | tuple[float, ...] | PerLayer
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_cross_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    dec_cross_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_cross_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_cross_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    dec_cross_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_cross_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_cross_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_cross_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_cross_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_cross_attn_moba_block: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    dec_cross_attn_moba_topk: int | tuple[int, ...] | PerLayer
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    dec_cross_attn_indexer: bool | tuple[bool, ...] | PerLayer
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_indexer_heads: int | tuple[int, ...] | PerLayer
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_indexer_dim: int | tuple[int, ...] | PerLayer
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_indexer_topk: int | tuple[int, ...] | PerLayer
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_indexer_rotary: Literal['half', 'pairs'] | tuple[Literal['half', 'pairs'], ...] | PerLayer
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_indexer_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_indexer_warmup: bool | tuple[bool, ...] | PerLayer
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_cross_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    dec_cross_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    dec_cross_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    dec_cross_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    dec_cross_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    dec_cross_attn_differential: bool | Literal['v2'] | tuple[bool | Literal['v2'], ...] | PerLayer
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    dec_cross_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    dec_cross_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    dec_cross_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    dec_cross_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    dec_cross_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    dec_cross_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_cross_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_cross_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    dec_cross_attn_scalable_softmax: bool | tuple[bool, ...] | PerLayer
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    dec_cross_attn_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    dec_cross_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    dec_cross_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    dec_cross_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_cross_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    dec_cross_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    dec_cross_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    dec_cross_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    dec_cross_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_cross_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_cross_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    dec_cross_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    dec_cross_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_cross_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_cross_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_cross_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    dec_cross_attn_entmax_alpha: Literal['learned'] | float | None | tuple[Literal['learned'] | float | None, ...] | PerLayer
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    dec_cross_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    dec_cross_attn_value_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    dec_cross_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    dec_cross_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    dec_cross_attn_hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None | tuple[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None, ...] | PerLayer
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_hybrid_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_hybrid_merge: Literal['mean', 'sum'] | tuple[Literal['mean', 'sum'], ...] | PerLayer
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_hybrid_factors: Sequence[float | None] | None | tuple[Sequence[float | None] | None, ...] | PerLayer
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_cross_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_gate_values_activation: Literal['sigmoid', 'softplus'] | tuple[Literal['sigmoid', 'softplus'], ...] | PerLayer
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_cross_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    dec_cross_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_cross_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_cross_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_cross_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    dec_cross_attn_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    dec_cross_attn_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    dec_cross_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    dec_cross_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    dec_cross_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize the output projection with zeros. Default: False."""
    dec_cross_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    dec_cross_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    dec_attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of each query and key head. Default: 64."""
    dec_attn_flash: bool | None | tuple[bool | None, ...] | PerLayer
    """Attention kernel; True: fused, False: eager (materializes the scores), None: the fastest of both. Default: None."""
    dec_attn_kv_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of key/value heads (grouped-query attention); `heads` if None. Default: None."""
    dec_attn_one_kv_head: bool | tuple[bool, ...] | PerLayer
    """Use one key/value head for all query heads (multi-query attention). Default: False."""
    dec_attn_value_dim_head: int | None | tuple[int | None, ...] | PerLayer
    """Width of each value head, `dim_head` if None. Default: None."""
    dec_attn_project_out: bool | None | tuple[bool | None, ...] | PerLayer
    """Use an output projection; None: yes, unless there is one head of the output width. Default: None."""
    dec_attn_kv_from: int | None | tuple[int | None, ...] | PerLayer
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    dec_attn_latent_rope_subheads: int | None | tuple[int | None, ...] | PerLayer
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    dec_attn_qkv_bias: bool | str | tuple[bool | str, ...] | PerLayer
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    dec_attn_qkv_clip: float | None | tuple[float | None, ...] | PerLayer
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    dec_attn_qk_proj_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_attn_qk_proj_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_attn_qk_proj_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dec_attn_dconv_kernel_size: int | None | tuple[int | None, ...] | PerLayer
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    dec_attn_dconv_on: str | tuple[str, ...] | PerLayer
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    dec_attn_dim_latent_rope: int | None | tuple[int | None, ...] | PerLayer
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    dec_attn_latent_norm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    dec_attn_use_latent_q: bool | tuple[bool, ...] | PerLayer
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    dec_attn_dim_latent_q: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    dec_attn_use_latent_kv: bool | tuple[bool, ...] | PerLayer
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_attn_dim_latent_kv: int | None | tuple[int | None, ...] | PerLayer
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_attn_latent_absorb: Literal['auto', True, False] | tuple[Literal['auto', True, False], ...] | PerLayer
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dec_attn_latent_bias: bool | tuple[bool, ...] | PerLayer
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    dec_attn_softmax_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    dec_attn_qk_norm: bool | tuple[bool, ...] | PerLayer
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_qk_norm_groups: int | tuple[int, ...] | PerLayer
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_qk_norm_scale: float | Literal['learned'] | tuple[float | Literal['learned'], ...] | PerLayer
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_qk_norm_dim_scale: bool | tuple[bool, ...] | PerLayer
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_qk_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    dec_attn_k_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of keys, per head. Default: False."""
    dec_attn_value_rmsnorm: bool | tuple[bool, ...] | PerLayer
    """RMS norm of values, per head. Default: False."""
    dec_attn_value_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_attn_value_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_attn_value_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_attn_value_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_attn_knn_mem: Sequence[Any] | None | tuple[Sequence[Any] | None, ...] | PerLayer
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    dec_attn_cluster: Literal['lsh', 'routing', 'sinkhorn'] | None | tuple[Literal['lsh', 'routing', 'sinkhorn'] | None, ...] | PerLayer
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_cluster_size: int | None | tuple[int | None, ...] | PerLayer
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_rounds: int | tuple[int, ...] | PerLayer
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_buckets: int | None | tuple[int | None, ...] | PerLayer
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_chunks: Literal['bucket', 'sorted'] | None | tuple[Literal['bucket', 'sorted'] | None, ...] | PerLayer
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_across_buckets: bool | tuple[bool, ...] | PerLayer
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_lsh_scale: float | tuple[float, ...] | PerLayer
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_num_clusters: int | None | tuple[int | None, ...] | PerLayer
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_local_heads: int | None | tuple[int | None, ...] | PerLayer
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_local_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_routing_decay: float | tuple[float, ...] | PerLayer
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_routing_balanced: bool | None | tuple[bool | None, ...] | PerLayer
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_cluster_blocks: int | None | tuple[int | None, ...] | PerLayer
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_sort: Literal['bilinear', 'net'] | tuple[Literal['bilinear', 'net'], ...] | PerLayer
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_iters: int | tuple[int, ...] | PerLayer
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sinkhorn_gumbel: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_sortcut: int | tuple[int, ...] | PerLayer
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    dec_attn_shared_qk: bool | tuple[bool, ...] | PerLayer
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    dec_attn_xl_rel_segments: bool | tuple[bool, ...] | PerLayer
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    dec_attn_qk_head_norm: Literal['rms', 'layer'] | None | tuple[Literal['rms', 'layer'] | None, ...] | PerLayer
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_shared: bool | tuple[bool, ...] | PerLayer
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_bias: bool | tuple[bool, ...] | PerLayer
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_eps: float | None | tuple[float | None, ...] | PerLayer
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_unit_offset: bool | None | tuple[bool | None, ...] | PerLayer
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_affine: bool | tuple[bool, ...] | PerLayer
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_qk_head_norm_at: Literal['before', 'after'] | tuple[Literal['before', 'after'], ...] | PerLayer
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    dec_attn_query_temperature: Mapping[str, float] | None | tuple[Mapping[str, float] | None, ...] | PerLayer
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    dec_attn_rotate_values: bool | tuple[bool, ...] | PerLayer
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    dec_attn_num_mem_kv: int | tuple[int, ...] | PerLayer
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    dec_attn_add_zero_kv: bool | tuple[bool, ...] | PerLayer
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    dec_attn_log_cpb: bool | tuple[bool, ...] | PerLayer
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_log_cpb_window: tuple[int, int] | tuple[tuple[int, int], ...] | PerLayer
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_log_cpb_hidden: int | tuple[int, ...] | PerLayer
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    dec_attn_data_dependent_alibi: bool | tuple[bool, ...] | PerLayer
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_data_dependent_alibi_per_row: bool | tuple[bool, ...] | PerLayer
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_data_dependent_alibi_per_row_dim_head: int | tuple[int, ...] | PerLayer
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_data_dependent_alibi_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    dec_attn_use_rel_proj_pos_bias: bool | tuple[bool, ...] | PerLayer
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    dec_attn_rel_proj_num_distance_basis: int | tuple[int, ...] | PerLayer
    """Number of learned curves. Default: 16."""
    dec_attn_rel_proj_max_dist: int | tuple[int, ...] | PerLayer
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    dec_attn_shaw_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_attn_shaw_max_distance: int | tuple[int, ...] | PerLayer
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_attn_shaw_rel_values: bool | tuple[bool, ...] | PerLayer
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    dec_attn_xl_rel_pos: bool | tuple[bool, ...] | PerLayer
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_attn_xl_rel_pos_untied: bool | tuple[bool, ...] | PerLayer
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    dec_attn_xl_clamp_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    dec_attn_tupe_pos: bool | tuple[bool, ...] | PerLayer
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    dec_attn_disentangled: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    dec_attn_max_attend_past: int | None | tuple[int | None, ...] | PerLayer
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_attn_max_attend_future: int | None | tuple[int | None, ...] | PerLayer
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    dec_attn_adaptive_span: None | Literal['static', 'dynamic'] | tuple[None | Literal['static', 'dynamic'], ...] | PerLayer
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_max_span: int | tuple[int, ...] | PerLayer
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_span_ramp: int | tuple[int, ...] | PerLayer
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_span_init: float | tuple[float, ...] | PerLayer
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_span_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    dec_attn_flash_pack_seq: bool | tuple[bool, ...] | PerLayer
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    dec_attn_collab_heads: bool | tuple[bool, ...] | PerLayer
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_attn_collab_compression: float | tuple[float, ...] | PerLayer
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    dec_attn_l2_distance: bool | tuple[bool, ...] | PerLayer
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    dec_attn_laser: bool | tuple[bool, ...] | PerLayer
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_attn_laser_softclamp_value: float | tuple[float, ...] | PerLayer
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    dec_attn_kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'] | tuple[None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos'], ...] | PerLayer
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_update: Literal['sum', 'gate', 'delta'] | tuple[Literal['sum', 'gate', 'delta'], ...] | PerLayer
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_normalize: None | bool | tuple[None | bool, ...] | PerLayer
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_l2norm: None | bool | tuple[None | bool, ...] | PerLayer
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_key_norm: None | Literal['sum', 'l2'] | tuple[None | Literal['sum', 'l2'], ...] | PerLayer
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_features: int | None | tuple[int | None, ...] | PerLayer
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_orthogonal: bool | tuple[bool, ...] | PerLayer | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_redraw: int | None | tuple[int | None, ...] | PerLayer
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_hyperbolic: bool | tuple[bool, ...] | PerLayer
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_kernel_chunk: int | tuple[int, ...] | PerLayer
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_dpfp_nu: int | tuple[int, ...] | PerLayer
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_rff_sigma: Literal['learned'] | float | tuple[Literal['learned'] | float, ...] | PerLayer
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dec_attn_sparse_pattern: None | str | Mapping[str, Any] | Pattern | tuple[None | str | Mapping[str, Any] | Pattern, ...] | PerLayer
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_attn_global_separate_qkv: bool | None | tuple[bool | None, ...] | PerLayer
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    dec_attn_moba_block: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    dec_attn_moba_topk: int | tuple[int, ...] | PerLayer
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    dec_attn_indexer: bool | tuple[bool, ...] | PerLayer
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_indexer_heads: int | tuple[int, ...] | PerLayer
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_indexer_dim: int | tuple[int, ...] | PerLayer
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_indexer_topk: int | tuple[int, ...] | PerLayer
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_indexer_rotary: Literal['half', 'pairs'] | tuple[Literal['half', 'pairs'], ...] | PerLayer
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_indexer_loss_weight: float | tuple[float, ...] | PerLayer
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_indexer_warmup: bool | tuple[bool, ...] | PerLayer
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    dec_attn_aft: None | Literal['full', 'local', 'simple', 'conv'] | tuple[None | Literal['full', 'local', 'simple', 'conv'], ...] | PerLayer
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_aft_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_aft_rank: int | tuple[int, ...] | PerLayer
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_aft_window: int | tuple[int, ...] | PerLayer
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    dec_attn_linformer_k: int | None | tuple[int | None, ...] | PerLayer
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    dec_attn_linformer_max_len: int | None | tuple[int | None, ...] | PerLayer
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    dec_attn_linformer_share: Literal['none', 'headwise', 'kv', 'layerwise'] | tuple[Literal['none', 'headwise', 'kv', 'layerwise'], ...] | PerLayer
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    dec_attn_linformer_proj: Literal['linear', 'mean', 'max', 'conv'] | tuple[Literal['linear', 'mean', 'max', 'conv'], ...] | PerLayer
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    dec_attn_differential: bool | Literal['v2'] | tuple[bool | Literal['v2'], ...] | PerLayer
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    dec_attn_differential_init: float | None | tuple[float | None, ...] | PerLayer
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    dec_attn_da_pos_rescale: bool | tuple[bool, ...] | PerLayer
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    dec_attn_attend_sdp_kwargs: Mapping[str, bool] | tuple[Mapping[str, bool], ...] | PerLayer
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    dec_attn_onnxable: bool | tuple[bool, ...] | PerLayer
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    dec_attn_pre_scale_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    dec_attn_pre_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_attn_post_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dec_attn_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    dec_attn_scalable_softmax: bool | tuple[bool, ...] | PerLayer
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    dec_attn_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    dec_attn_softclamp_logits: bool | tuple[bool, ...] | PerLayer
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    dec_attn_logit_softclamp_value: float | tuple[float, ...] | PerLayer
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    dec_attn_use_cope: bool | tuple[bool, ...] | PerLayer
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_cope_max_pos: int | tuple[int, ...] | PerLayer
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_cope_soft_onehot_pos: bool | tuple[bool, ...] | PerLayer
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_cope_talking_heads: bool | tuple[bool, ...] | PerLayer
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    dec_attn_selective: bool | tuple[bool, ...] | PerLayer
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    dec_attn_head_learned_sink: bool | tuple[bool, ...] | PerLayer
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    dec_attn_cog_signed: bool | tuple[bool, ...] | PerLayer
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    dec_attn_inverted_attention: bool | tuple[bool, ...] | PerLayer
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    dec_attn_sparse_topk: int | None | tuple[int | None, ...] | PerLayer
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_attn_sparse_topk_straight_through: bool | tuple[bool, ...] | PerLayer
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    dec_attn_sigmoid: bool | tuple[bool, ...] | PerLayer
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    dec_attn_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    dec_attn_gumbel_softmax: bool | tuple[bool, ...] | PerLayer
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_attn_gumbel_softmax_temp: float | tuple[float, ...] | PerLayer
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_attn_gumbel_softmax_hard: bool | tuple[bool, ...] | PerLayer
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    dec_attn_use_entmax15: bool | tuple[bool, ...] | PerLayer
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    dec_attn_entmax_alpha: Literal['learned'] | float | None | tuple[Literal['learned'] | float | None, ...] | PerLayer
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    dec_attn_custom_attn_fn: Callable[..., Any] | None | tuple[Callable[..., Any] | None, ...] | PerLayer
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    dec_attn_value_scale: float | None | tuple[float | None, ...] | PerLayer
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    dec_attn_head_scale: bool | tuple[bool, ...] | PerLayer
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    dec_attn_gate_value_heads: bool | tuple[bool, ...] | PerLayer
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    dec_attn_hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None | tuple[Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None, ...] | PerLayer
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_hybrid_kwargs: Mapping[str, Any] | None | tuple[Mapping[str, Any] | None, ...] | PerLayer
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_hybrid_merge: Literal['mean', 'sum'] | tuple[Literal['mean', 'sum'], ...] | PerLayer
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_hybrid_factors: Sequence[float | None] | None | tuple[Sequence[float | None] | None, ...] | PerLayer
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_hybrid_mask_kwarg: str | None | tuple[str | None, ...] | PerLayer
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_hybrid_fold_axial_dim: int | None | tuple[int | None, ...] | PerLayer
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_hybrid_learned_mix: bool | tuple[bool, ...] | PerLayer
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    dec_attn_gate_values: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_gate_values_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_gate_values_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_output_gate: bool | tuple[bool, ...] | PerLayer
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_output_gate_rank: int | None | tuple[int | None, ...] | PerLayer
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_output_gate_headwise: bool | tuple[bool, ...] | PerLayer
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_swiglu_values: bool | tuple[bool, ...] | PerLayer
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_gate_values_activation: Literal['sigmoid', 'softplus'] | tuple[Literal['sigmoid', 'softplus'], ...] | PerLayer
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_low_rank_silu_gates: bool | tuple[bool, ...] | PerLayer
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    dec_attn_gate_values_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    dec_attn_orthog_projected_values: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_attn_orthog_projected_values_per_head: bool | tuple[bool, ...] | PerLayer
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_attn_orthog_projected_values_over_sequence: bool | tuple[bool, ...] | PerLayer
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    dec_attn_head_dims: Sequence[int] | None | tuple[Sequence[int] | None, ...] | PerLayer
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    dec_attn_inner_norm: Literal['rms'] | None | tuple[Literal['rms'] | None, ...] | PerLayer
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    dec_attn_inner_norm_eps: float | tuple[float, ...] | PerLayer
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    dec_attn_on_attn: bool | tuple[bool, ...] | PerLayer
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    dec_attn_output_proj_depth: int | None | tuple[int | None, ...] | PerLayer
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    dec_attn_zero_init_output: bool | tuple[bool, ...] | PerLayer
    """Initialize the output projection with zeros. Default: False."""
    dec_attn_out_bias: bool | tuple[bool, ...] | PerLayer
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    dec_attn_sublayer_dropout: float | tuple[float, ...] | PerLayer
    """Dropout probability after the output projection. Default: 0.0."""
    dec_num_tokens: Required[int]
    """Size of the vocabulary."""
    dec_max_seq_len: Required[int | None]
    """Maximum length with absolute positions; 0, -1 or None to use no absolute positions."""
    dec_emb_dim: int | None
    """Width of the embeddings, that of the stack if None. Default: None."""
    dec_emb_dropout: float
    """Dropout probability of the embeddings. Default: 0.0."""
    dec_l2norm_embed: bool
    """L2-normalize the embeddings. Default: False."""
    dec_project_emb: bool | None
    """Project the embeddings to the width of the stack; None: only if the widths differ. Default: None."""
    dec_project_emb_bias: bool
    """Use a bias in this projection. Default: True."""
    dec_post_emb_norm_at: str
    """Position of `post_emb_norm`: before ('embedding') or after ('stream') this projection. Default: 'embedding'."""
    dec_logits_dim: int | None
    """Width of the logits, `num_tokens` if None. Default: None."""
    dec_logits_bias: bool
    """Add a bias to the logits, also with `tie_embedding`. Default: False."""
    dec_token_emb: nn.Module | None
    """Custom token embedding. Default: None."""
    dec_to_logits: nn.Module | None
    """Custom output head. Default: None."""
    dec_max_mem_len: int
    """Number of hidden states returned as memories (Transformer-XL). Default: 0."""
    dec_shift_mem_down: int
    """Number n of layers: layer i gets the memories of layer i + n. Default: 0."""
    dec_attn_z_loss_weight: float
    """Weight of the z-loss of the attention logits. Default: 0.0001."""
    dec_input_not_include_cache: bool
    """Calls with a cache pass only the new tokens. Default: False."""
    dec_mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    dec_use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    dec_abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    dec_sinu_pos_emb: bool
    """Sinusoidal position embeddings instead of a learned table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_sinu_denominator: Literal['d', 'half_minus_1']
    """'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    dec_axial_abs_pos_emb: Sequence[int] | None
    """Lengths of the axes of the flattened data, which get one table of learned vectors each. Default: None. Sparse Transformer, arXiv:1904.10509, section 5.2."""
    dec_embed_num_tokens: Mapping[str, int]
    """Name -> vocabulary size of each additional kind of ids. Default: {}."""
    dec_embed_default_ids: Mapping[str, int]
    """Name -> id used for every token if a call does not pass these ids. Default: {}."""
    dec_emb_scale: float
    """Factor of the token embeddings, rounded to the dtype of their table. Default: 1.0. Attention Is All You Need, arXiv:1706.03762, section 3.4."""
    dec_post_emb_norm: bool
    """Layer norm of the summed embeddings. Default: False. BERT, arXiv:1810.04805."""
    dec_post_emb_norm_bias: bool
    """Learn a bias in this layer norm. Default: False. BERT, arXiv:1810.04805."""
    dec_post_emb_norm_eps: float | None
    """Eps of this layer norm, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    dec_emb_frac_gradient: float
    """Factor of the gradient of the embeddings, in (0, 1]. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    dec_use_cls_token: bool
    """Prepend learned class tokens and take the output from them. Default: False. BERT, arXiv:1810.04805."""
    dec_num_cls_tokens: int
    """Number of class tokens. Default: 1. BERT, arXiv:1810.04805."""
    dec_num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    dec_memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    dec_ff_deep_embed: bool
    """Scale the output of each feedforward by a learned vector per token id. Default: False. RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM."""
    dec_per_layer_emb: Mapping[str, Any] | bool | None
    """Embeddings per token and block: True, or dict(num_tokens=...) for a table of the first tokens only. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    dec_recycling: bool
    """Run the stack several times, on the input plus a projection of the previous output. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    dec_train_max_recycle_steps: int
    """Passes in evaluation; in training 1 to this number, at random. Default: 4. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    dec_looped: bool
    """Run the stack several times, each time on the previous output. Default: False. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    dec_max_looped_steps: int
    """Number of passes. Default: 4. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    dec_cmem_len: int
    """Compressed memories per self-attention layer, in addition to `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_ratio: int
    """Compression ratio: number of memories that are compressed to one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """Compression function: 'conv', 'dilated_conv', 'mean', 'max' or 'most_used'. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_loss: Literal['attn', 'ae'] | None
    """Loss of the compression: 'attn' (attention reconstruction), 'ae' (autoencoding), or None. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    dec_cmem_init: Literal['mean'] | None
    """Initialization of the convolutions: 'mean' (averaging), or None for PyTorch's default. Default: None. Compressive Transformer, arXiv:1911.05507."""
    dec_average_pool_embed: bool
    """Average the tokens before the output head. Default: False."""
    dec_attn_pool: bool
    """Pool the final embeddings by attention of learned queries. Default: False."""
    dec_num_pooled_tokens: int
    """Number of queries. Default: 1."""
    dec_attn_pool_depth: int
    """Number of cross-attention blocks. Default: 1."""
    dec_dim_pooled_tokens: int | None
    """Width of the pooled tokens, that of the stack if None. Default: None."""
    dec_head_transform: Mapping[str, Any] | None
    """A dict that describes a linear layer, activation and norm before the output head. Default: None. BERT, arXiv:1810.04805."""
    dec_tie_embedding: bool
    """Use the table of token embeddings as the output head (weight tying). Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    dec_tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    dec_tie_embedding_normed: bool
    """With `l2norm_embed`, use the normalized table for the logits; False, as in the original: the stored one. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    dec_num_output_heads: int
    """Number of output heads; with several, the model returns a tuple of logits. Default: 1."""
    dec_logits_scale: float
    """Factor of the logits. Default: 1.0. Tensor Programs V, arXiv:2203.03466."""
    dec_logits_softclamp: float | None
    """Bound c of the logits, soft-clamped with tanh. Default: None. Gemma 2, arXiv:2408.00118, section 2."""
    dec_sigsoftmax_logits: bool
    """Add the log sigmoid of the logits to the logits (sigsoftmax). Default: False. Sigsoftmax, arXiv:1805.10829."""
    dec_mixture_of_softmax: bool
    """Return log probabilities of a mixture of softmaxes instead of logits. Default: False. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    dec_mixture_of_softmax_k: int
    """Number k of softmaxes. Default: 4. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    dec_squeeze_out_last_dim: bool
    """Remove the last axis of the logits if it has size 1. Default: False."""
    dec_add_continuous_pred_head: bool
    """Add a head that predicts the embedding of the next token. Default: False."""
    dec_pooler: Mapping[str, Any] | None
    """A dict that describes how `return_pooled` computes one vector per sequence. Default: None. BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020."""
    dec_mtp_depth: int
    """Number of modules that each predict one more token. Default: 0. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    dec_mtp_block: Mapping[str, Any] | None
    """Keywords of the block of each module that differ from those of the last block of the stack. Default: None. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    dec_mtp_hidden: Literal['stream', 'normed']
    """Hidden states that the first module gets: before ('stream') or after ('normed') the final norm. Default: 'stream'. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    dec_mtp_loss_weight: float
    """Weight of the loss of all modules. Default: 0.3. DeepSeek-V3, arXiv:2412.19437, section 2.2."""

class AttentionKeywords(TypedDict, total=False):
    qkv_receive_diff_residuals: bool
    """X has shape (3, b, n, d), the inputs of queries, keys and values. Default: False. Hyper-Connections, arXiv:2409.19606."""
    kv_from: int | None
    """Index of the earlier layer of self-attention whose keys and values are used; None: own ones. Default: None. Cross-Layer Attention, arXiv:2405.12981; Gemma 3n."""
    learned_value_residual_mix: bool
    """Compute the mix per token and head from the input, instead of one half. Default: False. Value Residual Learning, arXiv:2410.17897."""
    latent_rope_subheads: int | None
    """Number of rotated key heads that bypass the latents. Default: None. DeepSeek-V2, arXiv:2405.04434 (decoupled rotary embedding)."""
    qkv_bias: bool | str
    """Biases of the projections: True for all three, or some of the letters 'qkv', such as 'qv'. Default: False. BERT, arXiv:1810.04805; without that of keys: Whisper, arXiv:2212.04356."""
    qkv_clip: float | None
    """Bound c of the projected queries, keys and values. Default: None. MPT, github.com/mosaicml/llm-foundry; OLMo, arXiv:2402.00838."""
    qk_proj_norm: bool
    """RMS norm of queries and keys, over all heads together. Default: False. 2 OLMo 2 Furious, arXiv:2501.00656."""
    qk_proj_norm_eps: float | None
    """Eps; None: `norm_eps` of the stack, otherwise 1e-6. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    qk_proj_norm_unit_offset: bool | None
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. 2 OLMo 2 Furious, arXiv:2501.00656."""
    dconv_kernel_size: int | None
    """Size of a convolution of queries, keys and values along the sequence, in tokens. Default: None. Primer, arXiv:2109.08668."""
    dconv_on: str
    """Which of queries, keys and values are convolved: some of the letters 'qkv'. Default: 'qkv'. Primer, arXiv:2109.08668."""
    dim_latent_rope: int | None
    """Number r of rotated channels per head that bypass the latent. Default: None. DeepSeek-V2, arXiv:2405.04434, section 2.1.3; DeepSeek-V3, arXiv:2412.19437."""
    latent_norm: bool
    """RMS norm of the latents, with an eps of 1e-6. Default: False. DeepSeek-V2, arXiv:2405.04434, section 3.1.2."""
    use_latent_q: bool
    """Compute queries from a low-rank latent. Default: False. DeepSeek-V2, arXiv:2405.04434."""
    dim_latent_q: int | None
    """Width of the latent of the queries. Default: None. DeepSeek-V2, arXiv:2405.04434."""
    use_latent_kv: bool
    """Compute keys and values from a shared low-rank latent, and cache only the latent. Default: False. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    dim_latent_kv: int | None
    """Width of the latent of keys and values. Default: None. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    latent_absorb: Literal['auto', True, False]
    """Attend to the latents themselves, True wherever the other features allow it, False never; 'auto': after a cache, if it takes fewer products. Default: 'auto'. DeepSeek-V2, arXiv:2405.04434 (multi-head latent attention)."""
    latent_bias: bool
    """Biases of the projections to the latents. Default: False. DeepSeek-V3, arXiv:2412.19437."""
    softmax_scale: float | None
    """Factor of the dot products of queries and keys; dim_head ** -0.5 if None. Default: None. Gemma 2, arXiv:2408.00118; the root: Attention Is All You Need, arXiv:1706.03762."""
    qk_norm: bool
    """L2-normalize queries and keys (cosine similarity attention). Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    qk_norm_groups: int
    """Number of groups of channels per head that are normalized separately. Default: 1. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    qk_norm_scale: float | Literal['learned']
    """Fixed factor of the cosines, or 'learned', one per head. Default: 10. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    qk_norm_dim_scale: bool
    """Learn a scale per head and channel instead of the fixed factor. Default: False. Query-Key Normalization, arXiv:2010.04245; scales per channel: ViT-22B, arXiv:2302.05442; per head: Swin Transformer V2, arXiv:2111.09883."""
    qk_rmsnorm: bool
    """RMS norm of queries and keys, per head. Default: False. ViT-22B, arXiv:2302.05442."""
    k_rmsnorm: bool
    """RMS norm of keys, per head. Default: False."""
    value_rmsnorm: bool
    """RMS norm of values, per head. Default: False."""
    value_head_norm: Literal['rms', 'layer'] | None
    """Norm of each value head: 'rms' or 'layer'. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    value_head_norm_affine: bool
    """Learn weights in this norm, shared between all heads. Default: True. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    value_head_norm_eps: float | None
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    value_head_norm_unit_offset: bool | None
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    knn_mem: Sequence[Any] | None
    """Settings (top k, initial gate, search), set by `knn_mem_layers` of the stack. Default: None. Memorizing Transformers, arXiv:2203.08913."""
    cluster: Literal['lsh', 'routing', 'sinkhorn'] | None
    """Attend within clusters: 'lsh', 'routing' or 'sinkhorn'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cluster_size: int | None
    """Tokens per chunk of a cluster; None: 64, or with `num_clusters` k and n tokens n / k. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_rounds: int
    """Number of hash rounds; a token attends to its neighbors in any of them. Default: 4. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_buckets: int | None
    """Number of hash buckets, even; None: two per chunk, depending on the length, without a cache. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_chunks: Literal['bucket', 'sorted'] | None
    """'bucket': chunks in each bucket; 'sorted': chunks of all tokens sorted by bucket; None: 'bucket' if causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_across_buckets: bool
    """With 'sorted', attend to all tokens of neighboring chunks, also of other buckets. Default: False. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    lsh_scale: float
    """Factor of the dot products of queries and unit-length keys. Default: 1.0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    num_clusters: int | None
    """Number of centroids per head, for 'routing'. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    local_heads: int | None
    """Number of heads with local attention; None: half of the heads. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    local_pattern: None | str | Mapping[str, Any] | Pattern
    """Sparse pattern of these heads; None: a window. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    routing_decay: float
    """Decay of the moving averages of the centroids, per step. Default: 0.999. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    routing_balanced: bool | None
    """Give each centroid the same number of tokens, those nearest to it; None: yes, unless causal. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    cluster_blocks: int | None
    """Maximum number of blocks, for `sinkhorn_sort='net'`. Default: None. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_sort: Literal['bilinear', 'net']
    """How blocks are compared: 'bilinear' (their mean queries and keys) or 'net' (a small network). Default: 'bilinear'. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_iters: int
    """Number of Sinkhorn iterations. Default: 8. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_temp: float
    """Temperature of the soft permutation. Default: 0.75. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sinkhorn_gumbel: bool
    """Add Gumbel noise in training, so that permutations are sampled. Default: True. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    sortcut: int
    """If positive, all queries attend only to this number of sorted blocks. Default: 0. Reformer, arXiv:2001.04451; Sparse Sinkhorn Attention, arXiv:2002.11296."""
    shared_qk: bool
    """Use the L2-normalized queries as keys, without a key projection. Default: False. Reformer, arXiv:2001.04451, section 2."""
    xl_rel_segments: bool
    """Add a term to the scores that depends on whether two tokens share a segment. Default: False. XLNet, arXiv:1906.08237."""
    rotate_num_heads: int | None
    """Number of heads that are rotated, the last ones; None: all. Default: None. RoFormer, arXiv:2104.09864."""
    rotary_factor: float
    """Factor of the rotated channels, in queries and in keys. Default: 1.0. RoFormer, arXiv:2104.09864."""
    qk_head_norm: Literal['rms', 'layer'] | None
    """Norm of each query and key head: 'rms' or 'layer'. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_shared: bool
    """Share the norm weights between all heads instead of learning them per head. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_bias: bool
    """Learn a bias in this norm. Default: False. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_eps: float | None
    """Eps; None: `norm_eps` of the stack, or 1e-6 ('rms') or 1e-5 ('layer'). Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_unit_offset: bool | None
    """Store the norm weights as weight - 1; None: same as the stack. Default: None. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_affine: bool
    """Learn weights in this norm. Default: True. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    qk_head_norm_at: Literal['before', 'after']
    """Norm 'before' or 'after' the rotation of positions. Default: 'before'. Qwen3, arXiv:2505.09388; Gemma 3, arXiv:2503.19786; layer norms: ViT-22B, arXiv:2302.05442."""
    query_temperature: Mapping[str, float] | None
    """Factor of queries by their position, `dict(scale=0.1, floor=8192, offset=1)`. Default: None. Llama 4, Ministral 3; by the logarithm of the length: arXiv:2501.19399."""
    rotate_values: bool
    """Also rotate the values by their positions (for weights of releases 0.15 to 1.19). Default: False. RoFormer, arXiv:2104.09864."""
    num_mem_kv: int
    """Number of learned key/value pairs per head. Default: 0. Augmenting Self-attention with Persistent Memory, arXiv:1907.01470."""
    add_zero_kv: bool
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    log_cpb: bool
    """Add a bias computed from the distance of pixels in rows and columns, on a log scale. Default: False. Swin Transformer V2, arXiv:2111.09883."""
    log_cpb_window: tuple[int, int]
    """Rows and columns m of a window in training. Default: (8, 8). Swin Transformer V2, arXiv:2111.09883."""
    log_cpb_hidden: int
    """Inner width of its network. Default: 512. Swin Transformer V2, arXiv:2111.09883."""
    data_dependent_alibi: bool
    """Add to the scores the summed log forget gates of the tokens in between. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    data_dependent_alibi_per_row: bool
    """Compute these gates from query and key, not from the token alone. Default: False. Forgetting Transformer, arXiv:2503.02130."""
    data_dependent_alibi_per_row_dim_head: int
    """Width of the queries and keys for these gates. Default: 8. Forgetting Transformer, arXiv:2503.02130."""
    data_dependent_alibi_kwargs: Mapping[str, Any] | None
    """Additional arguments of the bias module. Default: None. Forgetting Transformer, arXiv:2503.02130."""
    use_rel_proj_pos_bias: bool
    """Add a bias over the distance that each query mixes from learned curves. Default: False."""
    rel_proj_num_distance_basis: int
    """Number of learned curves. Default: 16."""
    rel_proj_max_dist: int
    """Length of the curves, in tokens; beyond it the bias is 0. Default: 1024."""
    shaw_rel_pos: bool
    """Add learned vectors per distance to keys and values. Default: False. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_max_distance: int
    """Maximum distance m: larger distances use its vector. Default: 16. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    shaw_rel_values: bool
    """Also add vectors to the values; if False, the fused kernel can be used. Default: True. Self-Attention with Relative Position Representations, arXiv:1803.02155."""
    xl_rel_pos: bool
    """Add the scores of the queries with sinusoids of the distance (Transformer-XL). Default: False. Transformer-XL, arXiv:1901.02860."""
    xl_rel_pos_untied: bool
    """Learn u and v in this layer; if False, the stack provides them. Default: True. Transformer-XL, arXiv:1901.02860."""
    xl_clamp_len: int | None
    """Maximum distance, in both directions: larger distances are clamped to it; None for no limit. Default: None. Transformer-XL, arXiv:1901.02860."""
    tupe_pos: bool
    """Add scores of the position embeddings, computed by the stack. Default: False. TUPE, arXiv:2006.15595."""
    disentangled: Mapping[str, Any] | None
    """Disentangled relative positions, a dict: `span` S for a table of 2 S vectors; optionally `max_distance` for logarithmic buckets (without it, one vector per distance), `terms` (some of 'c2p' and 'p2c'), `share` (project the table with `to_k` and `to_q`) and `norm` (layer norm of the table). Default: None. DeBERTa, arXiv:2006.03654; with shared projections and buckets: DeBERTaV3, arXiv:2111.09543."""
    max_attend_past: int | None
    """Number of earlier tokens that a query attends to, besides itself; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    max_attend_future: int | None
    """Number of later tokens that a query attends to in non-causal attention; all if None. Default: None. Longformer, arXiv:2004.05150; ModernBERT, arXiv:2412.13663."""
    adaptive_span: None | Literal['static', 'dynamic']
    """Learn the attention span of each head: 'static', or 'dynamic' per query. Default: None. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    max_span: int
    """Maximum span S, in tokens. Default: 1024. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    span_ramp: int
    """Length R of the ramp over which weights fade out, in tokens. Default: 32. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    span_init: float
    """Initial static span, as a fraction of S. Default: 0.0. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    span_loss_weight: float
    """Weight of the loss that penalizes long spans. Default: 2e-06. Adaptive Attention Span in Transformers, arXiv:1905.07799."""
    flash_pack_seq: bool
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    collab_heads: bool
    """Share one query and one key projection between heads, with channel weights per head. Default: False. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    collab_compression: float
    """Width of the shared projection, as a fraction of heads * dim_head. Default: 0.3. Multi-Head Attention: Collaborate Instead of Concatenate, arXiv:2006.16362."""
    l2_distance: bool
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    laser: bool
    """Attend to exponentials of the values (LASER). Default: False. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    laser_softclamp_value: float
    """Soft bound s of the values, before the exponential. Default: 15.0. LASER: Attention with Exponential Transformation, arXiv:2411.03493."""
    kernel: None | Literal['elu', 'favor', 'relu', 'identity', 'dpfp', 'rff', 'arccos']
    """Feature map of linear attention, which replaces softmax attention. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_update: Literal['sum', 'gate', 'delta']
    """Update of the state by each token: 'sum', 'gate' or 'delta'. Default: 'sum'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_normalize: None | bool
    """Divide by the sum of weights; None: if no delta rule. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_l2norm: None | bool
    """L2-normalize queries and keys; None: for 'rff', 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_key_norm: None | Literal['sum', 'l2']
    """Normalize the features to unit 'sum' or 'l2' norm; None: with the delta rule, by 'sum', or 'l2' if features may be negative. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_features: int | None
    """Number of random vectors per head; None: e log(e), or e for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_orthogonal: bool | None
    """Orthogonal random vectors; None: of 'favor', 'relu'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_redraw: int | None
    """Number of training steps after which random vectors are sampled again, 0 for never; None: 1000, or 0 for 'rff' and 'arccos'. Default: None. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_hyperbolic: bool
    """Use random vectors in pairs w, -w. Default: False. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    kernel_chunk: int
    """Chunk size, in tokens: within a chunk, causal scores are computed. Default: 64. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    dpfp_nu: int
    """Number nu of shifts of 'dpfp'. Default: 3. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    rff_sigma: Literal['learned'] | float
    """Width sigma of 'rff': a number, or 'learned' per channel and head. Default: 'learned'. Linear attention, arXiv:2006.16236; Performer (FAVOR+), arXiv:2009.14794; Random Feature Attention, arXiv:2103.02143; fast weights and the delta rule, arXiv:2102.11174."""
    sparse_pattern: None | str | Mapping[str, Any] | Pattern
    """Sparse pattern of keys that each query attends to: a `Pattern`, its dict, or its name. Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    global_separate_qkv: bool | None
    """Use separate projections for the tokens of `global_mask`; None: yes, if the pattern has Global('mask'). Default: None. Sparse Transformer, arXiv:1904.10509; Longformer, arXiv:2004.05150."""
    moba_block: int | None
    """Number of keys per block (mixture of block attention). Default: None. MoBA, arXiv:2502.13189."""
    moba_topk: int
    """Number k of blocks that each query attends to, its own included. Default: 3. MoBA, arXiv:2502.13189."""
    indexer: bool
    """Attend only to the keys that a small indexer chooses (DeepSeek sparse attention). Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    indexer_heads: int
    """Number of heads h_I of the indexer. Default: 64. DeepSeek-V3.2, arXiv:2512.02556."""
    indexer_dim: int
    """Width d_I of the heads of the indexer. Default: 128. DeepSeek-V3.2, arXiv:2512.02556."""
    indexer_topk: int
    """Number k of keys that each query attends to. Default: 2048. DeepSeek-V3.2, arXiv:2512.02556."""
    indexer_rotary: Literal['half', 'pairs']
    """How the indexer rotates: 'half' (channel c with c + r / 2, as in DeepSeek-V3.2) or 'pairs' (neighbors). Default: 'half'. DeepSeek-V3.2, arXiv:2512.02556."""
    indexer_loss_weight: float
    """Weight of the loss of the indexer. Default: 1.0. DeepSeek-V3.2, arXiv:2512.02556."""
    indexer_warmup: bool
    """Attend to all keys, while the indexer learns. Default: False. DeepSeek-V3.2, arXiv:2512.02556."""
    aft: None | Literal['full', 'local', 'simple', 'conv']
    """AFT instead of softmax attention, with this kind of position weights. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    aft_max_len: int | None
    """Number of positions, for 'full' and 'local'. Default: None. An Attention Free Transformer, arXiv:2105.14103."""
    aft_rank: int
    """Rank r of the position weights, for 'full' and 'local'. Default: 128. An Attention Free Transformer, arXiv:2105.14103."""
    aft_window: int
    """Window of the position weights, in tokens, for 'local' and 'conv'. Default: 32. An Attention Free Transformer, arXiv:2105.14103."""
    linformer_k: int | None
    """Number k of slots that replace keys and values (Linformer). Default: None. Linformer, arXiv:2006.04768."""
    linformer_max_len: int | None
    """Maximum length of the sequence, in tokens. Default: None. Linformer, arXiv:2006.04768."""
    linformer_share: Literal['none', 'headwise', 'kv', 'layerwise']
    """Sharing of the matrices: 'none', 'headwise' (by heads), 'kv' (also keys and values), 'layerwise' (all layers). Default: 'none'. Linformer, arXiv:2006.04768."""
    linformer_proj: Literal['linear', 'mean', 'max', 'conv']
    """Projection to the slots: 'linear', 'mean', 'max' or 'conv'. Default: 'linear'. Linformer, arXiv:2006.04768."""
    differential: bool | Literal['v2']
    """Use the difference of two attention maps per head; 'v2': of two outputs. Default: False. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    differential_init: float | None
    """Initial factor l0 of the second map; None: computed from the layer index. Default: None. Differential Transformer, arXiv:2410.05258; V2, github.com/microsoft/unilm (Diff-Transformer)."""
    da_pos_rescale: bool
    """Multiply the ReLU of the scores by a learned function of the distance, one per head. Default: False. DA-Transformer, arXiv:2010.06925."""
    attend_sdp_kwargs: Mapping[str, bool]
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    onnxable: bool
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    pre_scale_post_talking_heads: bool
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    pre_talking_heads: bool
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    post_talking_heads: bool
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    talking_heads: bool
    """Replace attention logits and weights by learned mixes over heads. Default: False. Talking-Heads Attention, arXiv:2003.02436, as in the first versions of the library."""
    scalable_softmax: bool
    """Multiply scores by a learned factor per head and the logarithm of the number of keys. Default: False. Scalable-Softmax Is Superior for Attention, arXiv:2501.19399."""
    dropout: float
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    softclamp_logits: bool
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    logit_softclamp_value: float
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    use_cope: bool
    """Contextual position embeddings, which count attended tokens instead of all tokens. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cope_max_pos: int
    """Number of positions; larger ones are clamped to the last. Default: 16. Contextual Position Encoding, arXiv:2405.18719."""
    cope_soft_onehot_pos: bool
    """Look up positions by a soft one-hot vector, not by interpolating between two. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    cope_talking_heads: bool
    """Mix the logits over heads before positions are counted. Default: False. Contextual Position Encoding, arXiv:2405.18719."""
    selective: bool
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    head_learned_sink: bool
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    cog_signed: bool
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    inverted_attention: bool
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    sparse_topk: int | None
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sparse_topk_straight_through: bool
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sigmoid: bool
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    hard: bool
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    gumbel_softmax: bool
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_temp: float
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_hard: bool
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    use_entmax15: bool
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    entmax_alpha: Literal['learned'] | float | None
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    custom_attn_fn: Callable[..., Any] | None
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""
    value_scale: float | None
    """Factor of the weighted values. Default: None. MiMo-V2-Flash, github.com/XiaomiMiMo/MiMo-V2-Flash."""
    head_scale: bool
    """Scale the output of each head by a learned factor. Default: False. NormFormer, arXiv:2110.09456."""
    gate_value_heads: bool
    """Gate the output of each head by a sigmoid of the input. Default: False. Quantizable Transformers, arXiv:2306.12929."""
    hybrid_module: Literal['rwkv', 'ssm', 'short_conv', 'gated_delta', 'kda', 'gla', 'lightning', 'mamba2', 'mamba', 'rg_lru', 'mlstm'] | nn.Module | None
    """Module that runs in parallel with attention: a name, or a custom one, (b, n, dim) -> (b, n, heads * dim_head). Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    hybrid_kwargs: Mapping[str, Any] | None
    """Keywords of the class of the module, a dict, if it has a name. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    hybrid_merge: Literal['mean', 'sum']
    """'mean': normalized per head and mixed, before the output projection; 'sum': added to the output of the layer. Default: 'mean'. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    hybrid_factors: Sequence[float | None] | None
    """Factors of a sum: of the input of attention, of its output, of the input of the module, of its output. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    hybrid_mask_kwarg: str | None
    """Keyword argument of the module for the mask, in non-causal attention. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    hybrid_fold_axial_dim: int | None
    """A: run the module along every a-th token, such as the frames of a video. Default: None. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    hybrid_learned_mix: bool
    """Compute the mix per token and head from the input, instead of one half. Default: False. Hymba, arXiv:2411.13676; Falcon-H1, arXiv:2507.22448."""
    gate_values: bool
    """Gate the attention output, with a gate computed from the input. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    gate_values_rank: int | None
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    gate_values_headwise: bool
    """Compute one gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    output_gate: bool
    """Gate the attention output, with a gate computed from the output itself. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    output_gate_rank: int | None
    """Rank of this gate, full if None. Default: None. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    output_gate_headwise: bool
    """Compute one such gate per head instead of one per channel. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    swiglu_values: bool
    """SiLU instead of sigmoid in these gates. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    gate_values_activation: Literal['sigmoid', 'softplus']
    """Activation of these gates: 'sigmoid' or 'softplus'. Default: 'sigmoid'. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    low_rank_silu_gates: bool
    """SiLU between the two projections of a low-rank gate. Default: True. AlphaFold 2, doi:10.1038/s41586-021-03819-2; Gated Attention, arXiv:2505.06708; arXiv:2608.11805."""
    gate_values_bias: bool
    """Bias of the gate of `gate_values`, initialized open (for weights of releases before 2.26). Default: False."""
    orthog_projected_values: bool
    """Remove the component along the token's own value, of all heads together. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    orthog_projected_values_per_head: bool
    """Remove the component along the token's own value in each head. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    orthog_projected_values_over_sequence: bool
    """Treat all tokens as one vector, as x-transformers 2.31 does. Default: False. Belief attention, openreview.net/forum?id=Ard2QzPAUK."""
    head_dims: Sequence[int] | None
    """Widths of the heads, instead of `dim_head`; for a stack `PerLayer(...)` of them. Default: None. Attention Is All You Need, arXiv:1706.03762, section 3.2.2."""
    inner_norm: Literal['rms'] | None
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    inner_norm_eps: float
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    on_attn: bool
    """Use a gated linear unit as the output projection. Default: False. Attention on Attention, arXiv:1908.06954."""
    output_proj_depth: int | None
    """Depth of the layer, from 1: the variance of the initial output weights is divided by it. Default: None. OLMo, arXiv:2402.00838."""
    zero_init_output: bool
    """Initialize the output projection with zeros. Default: False."""
    out_bias: bool
    """Bias of the output projection (for weights of releases before 0.26). Default: False. Attention Is All You Need, arXiv:1706.03762."""
    sublayer_dropout: float
    """Dropout probability after the output projection. Default: 0.0."""

class FeedForwardKeywords(TypedDict, total=False):
    custom_activation: nn.Module | None
    """Activation module instead of GELU. Default: None."""
    relu_squared: bool
    """Squared ReLU instead of GELU. Default: False. Primer, arXiv:2109.08668."""
    solu: bool
    """Softmax linear unit with a norm, instead of GELU. Default: False. Softmax Linear Units, transformer-circuits.pub/2022/solu."""
    swish: bool
    """SiLU instead of GELU. Default: False. Searching for Activation Functions, arXiv:1710.05941."""
    glu: bool
    """Use a gated linear unit. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    glu_mult_bias: bool
    """Learn a factor per channel after the gate. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    glu_softclamp: bool
    """Soft-clamp u and the linear factor of the gate with tanh; only for GELU and SiLU. Default: False. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    glu_gate_softclamp_value: float
    """Bound of the linear factor of the gate g. Default: 4.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    glu_up_softclamp_value: float
    """Bound of the ungated half u. Default: 25.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    glu_bias: bool | None
    """Bias of the gated projection; None: with a bias. Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    swiglu_limit: float | None
    """Bound c of both halves u and g, clamped, for  (u + 1) g sigmoid(alpha g). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    swiglu_alpha: float
    """Factor alpha of `swiglu_limit`. Default: 1.702. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    glu_clamp: float | None
    """Bound c of both halves: clamp(u, -c, c) act(min(g, c)). Default: None. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    gate_sparsity: float
    """Share of the channels of g that a threshold sets to zero before the activation, for normally distributed g. Default: 0.0. GLU Variants, arXiv:2002.05202; soft clamps: arXiv:2607.24653; `swiglu_limit`: gpt-oss, arXiv:2508.10925; `gate_sparsity`: Spark Transformer, arXiv:2506.06644."""
    softclamp_value: float | None
    """Soft bound c of the input of the activation, by tanh. Default: None."""
    post_act_ln: bool
    """Layer norm after the activation. Default: False. NormFormer, arXiv:2110.09456."""
    inner_norm: Literal['rms'] | None
    """Norm before the output projection: 'rms'. Default: None. BitNet b1.58 2B4T, arXiv:2504.12285."""
    inner_norm_eps: float
    """Epsilon of this norm. Default: 1e-05. BitNet b1.58 2B4T, arXiv:2504.12285."""
    moe_experts: int | None
    """Number of experts; None for an ordinary feedforward. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_top_k: int
    """Number of experts per token. Default: 2. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_dim_inner: int | None
    """Inner width of each expert; that of the feedforward if None. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_kind: Literal['softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax', 'sparsemixer']
    """Router scores: 'softmax', 'sigmoid', 'sqrtsoftplus', 'topk_softmax' (softmax over the chosen experts), or 'sparsemixer', which cannot be trained. Default: 'softmax'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_renormalise: bool
    """Normalize the weights of the chosen experts to sum 1. Default: True. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_groups: int
    """Number of equal groups; experts are chosen from the best groups only. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_top_groups: int
    """Number of best groups from which experts are chosen. Default: 1. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_group_score: Literal['top2', 'max']
    """Score of a group: the sum of its two largest scores ('top2') or the largest ('max'). Default: 'top2'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_scale: float
    """Factor of the expert weights. Default: 1.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_score_bias: bool
    """Add a buffer to the scores for choosing experts, not for weighting them. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_shared: int | None
    """Number of shared experts, which process every token as one feedforward of that many inner widths. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_dim_shared: int | None
    """Inner width of the shared feedforward, instead of that. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_shared_gate: bool
    """Scale the shared feedforward by a sigmoid gate, one number per token. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_weight_at: Literal['output', 'input']
    """Weights scale the 'output' or the 'input' of experts. Default: 'output'. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_zero_experts: int
    """Number of further experts that return their input. Default: 0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_router_bias: bool
    """Learn a bias of the router. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_bias: bool | None
    """Biases in all experts; None: yes, unless `no_bias` is set. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_balance_loss: float
    """Weight of the load balancing loss, in training. Default: 0.0. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_balance_per_sequence: bool
    """Compute this loss for each sequence by itself. Default: False. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_balance: Literal['bias'] | None
    """'bias': balance by the score bias, without a loss. Default: None. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    moe_balance_rate: float
    """Step of the score bias at each optimizer step. Default: 0.001. arXiv:1701.06538; Switch Transformers (balance), arXiv:2101.03961; Mixtral, arXiv:2401.04088; DeepSeek-V3 (sigmoid, groups, shared experts), arXiv:2412.19437; balance by a bias, arXiv:2408.15664; sparsemixer, arXiv:2409.12136; zero experts, arXiv:2509.01322."""
    sublayer_dropout: float
    """Dropout probability after the output projection. Default: 0.0."""
    output_proj_depth: int | None
    """Depth of the layer, from 1: divides the variance of the initial output weights. Default: None. OLMo, arXiv:2402.00838."""
    zero_init_output: bool
    """Initialize weights and bias of the output projection with zeros. Default: False."""
    chunks: int
    """Number of chunks c of tokens, processed in turn to save memory in evaluation. Default: 1. Reformer, arXiv:2001.04451."""
    chunk_checkpoint: bool
    """Recompute each chunk in the backward pass, to save memory in training. Default: False. Reformer, arXiv:2001.04451."""

class AttendKeywords(TypedDict, total=False):
    add_zero_kv: bool
    """Prepend one key and one value of zeros. Default: False. Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html."""
    flash_pack_seq: bool
    """Accept packed documents, with boundaries in `flash_pack_seq_kwargs` of a call. Default: False."""
    l2_distance: bool
    """Use negative squared L2 distances as scores. Default: False. The Lipschitz Constant of Self-Attention, arXiv:2006.04710."""
    attend_sdp_kwargs: Mapping[str, bool]
    """Allowed backends of the fused kernel. Default: {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True}."""
    onnxable: bool
    """Accepted without effect: the causal mask can always be exported. Default: False."""
    pre_scale_post_talking_heads: bool
    """Multiply the attention weights by scores that are mixed over heads. Default: False."""
    pre_talking_heads: bool
    """Add logits mixed over heads, before the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    post_talking_heads: bool
    """Mix attention weights over heads, after the softmax. Default: False. Talking-Heads Attention, arXiv:2003.02436."""
    dropout: float
    """Dropout probability of the attention weights. Default: 0.0. arXiv:1706.03762."""
    softclamp_logits: bool
    """Soft-clamp the attention logits with tanh. Default: False. Gemma 2, arXiv:2408.00118, section 2."""
    logit_softclamp_value: float
    """Bound c of the attention logits. Default: 50.0. Gemma 2, arXiv:2408.00118, section 2."""
    cope: Callable[..., Any] | None
    """Module from queries (b, h, i, d) and logits (b, h, i, j), the lowest number where masked, to what is added to the logits. Default: None. Contextual Position Encoding, arXiv:2405.18719."""
    selective: bool
    """Let tokens mask earlier tokens for later queries. Default: False. Selective Attention Improves Transformer, arXiv:2410.02703."""
    head_learned_sink: bool
    """Add a learned sink logit per head to the softmax. Default: False. gpt-oss, arXiv:2508.10925; Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453."""
    cog_signed: bool
    """Give each attention weight the sign of its logit. Default: False. More Expressive Attention with Negative Weights, arXiv:2411.07176."""
    inverted_attention: bool
    """Softmax over the queries instead of the keys. Default: False. Inverted-Attention Transformers, OpenReview WgQZNoQ5AB; Slot Attention, arXiv:2006.15055."""
    sparse_topk: int | None
    """Number of keys k that each query attends to. Default: None. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sparse_topk_straight_through: bool
    """Use the gradient of the full softmax (straight-through). Default: False. Explicit Sparse Transformer, arXiv:1912.11637; straight-through: arXiv:2505.22074."""
    sigmoid: bool
    """Sigmoid instead of softmax. Default: False. Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv:2409.04431."""
    hard: bool
    """Attend only to the key with the largest logit. Default: False. straight-through estimator, arXiv:1308.3432; hard attention: arXiv:2410.01104."""
    gumbel_softmax: bool
    """Add Gumbel noise to the logits in training (Gumbel softmax). Default: False. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_temp: float
    """Temperature of the Gumbel softmax. Default: 1.0. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    gumbel_softmax_hard: bool
    """Attend only to the key with the largest noisy logit (straight-through). Default: True. Categorical Reparameterization with Gumbel-Softmax, arXiv:1611.01144."""
    use_entmax15: bool
    """1.5-entmax instead of softmax. Default: False. Sparse Sequence-to-Sequence Models, arXiv:1905.05702; Adaptively Sparse Transformers, arXiv:1909.00015."""
    entmax_alpha: Literal['learned'] | float | None
    """Alpha of the entmax instead of softmax, from 1 to 2; 'learned': one per head. Default: None. Adaptively Sparse Transformers, arXiv:1909.00015."""
    custom_attn_fn: Callable[..., Any] | None
    """Callable from logits (b, h, i, j) to attention weights, instead of softmax. Default: None."""

class TransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sinusoidal position embeddings instead of a learned table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    axial_abs_pos_emb: Sequence[int] | None
    """Lengths of the axes of the flattened data, which get one table of learned vectors each. Default: None. Sparse Transformer, arXiv:1904.10509, section 5.2."""
    embed_num_tokens: Mapping[str, int]
    """Name -> vocabulary size of each additional kind of ids. Default: {}."""
    embed_default_ids: Mapping[str, int]
    """Name -> id used for every token if a call does not pass these ids. Default: {}."""
    emb_scale: float
    """Factor of the token embeddings, rounded to the dtype of their table. Default: 1.0. Attention Is All You Need, arXiv:1706.03762, section 3.4."""
    post_emb_norm: bool
    """Layer norm of the summed embeddings. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """Learn a bias in this layer norm. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Eps of this layer norm, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    emb_frac_gradient: float
    """Factor of the gradient of the embeddings, in (0, 1]. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    use_cls_token: bool
    """Prepend learned class tokens and take the output from them. Default: False. BERT, arXiv:1810.04805."""
    num_cls_tokens: int
    """Number of class tokens. Default: 1. BERT, arXiv:1810.04805."""
    num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    ff_deep_embed: bool
    """Scale the output of each feedforward by a learned vector per token id. Default: False. RWKV-8 (DeepEmbed), github.com/BlinkDL/RWKV-LM."""
    per_layer_emb: Mapping[str, Any] | bool | None
    """Embeddings per token and block: True, or dict(num_tokens=...) for a table of the first tokens only. Default: None. Gemma 3n, ai.google.dev/gemma/docs/gemma-3n."""
    recycling: bool
    """Run the stack several times, on the input plus a projection of the previous output. Default: False. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    train_max_recycle_steps: int
    """Passes in evaluation; in training 1 to this number, at random. Default: 4. AlphaFold 2, doi:10.1038/s41586-021-03819-2, section 1.10."""
    looped: bool
    """Run the stack several times, each time on the previous output. Default: False. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    max_looped_steps: int
    """Number of passes. Default: 4. Scaling Latent Reasoning via Looped Language Models, arXiv:2510.25741."""
    cmem_len: int
    """Compressed memories per self-attention layer, in addition to `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    cmem_ratio: int
    """Compression ratio: number of memories that are compressed to one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """Compression function: 'conv', 'dilated_conv', 'mean', 'max' or 'most_used'. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss: Literal['attn', 'ae'] | None
    """Loss of the compression: 'attn' (attention reconstruction), 'ae' (autoencoding), or None. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    cmem_init: Literal['mean'] | None
    """Initialization of the convolutions: 'mean' (averaging), or None for PyTorch's default. Default: None. Compressive Transformer, arXiv:1911.05507."""
    average_pool_embed: bool
    """Average the tokens before the output head. Default: False."""
    attn_pool: bool
    """Pool the final embeddings by attention of learned queries. Default: False."""
    num_pooled_tokens: int
    """Number of queries. Default: 1."""
    attn_pool_depth: int
    """Number of cross-attention blocks. Default: 1."""
    dim_pooled_tokens: int | None
    """Width of the pooled tokens, that of the stack if None. Default: None."""
    head_transform: Mapping[str, Any] | None
    """A dict that describes a linear layer, activation and norm before the output head. Default: None. BERT, arXiv:1810.04805."""
    tie_embedding: bool
    """Use the table of token embeddings as the output head (weight tying). Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_normed: bool
    """With `l2norm_embed`, use the normalized table for the logits; False, as in the original: the stored one. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    num_output_heads: int
    """Number of output heads; with several, the model returns a tuple of logits. Default: 1."""
    logits_scale: float
    """Factor of the logits. Default: 1.0. Tensor Programs V, arXiv:2203.03466."""
    logits_softclamp: float | None
    """Bound c of the logits, soft-clamped with tanh. Default: None. Gemma 2, arXiv:2408.00118, section 2."""
    sigsoftmax_logits: bool
    """Add the log sigmoid of the logits to the logits (sigsoftmax). Default: False. Sigsoftmax, arXiv:1805.10829."""
    mixture_of_softmax: bool
    """Return log probabilities of a mixture of softmaxes instead of logits. Default: False. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    mixture_of_softmax_k: int
    """Number k of softmaxes. Default: 4. Breaking the Softmax Bottleneck, arXiv:1711.03953."""
    squeeze_out_last_dim: bool
    """Remove the last axis of the logits if it has size 1. Default: False."""
    add_continuous_pred_head: bool
    """Add a head that predicts the embedding of the next token. Default: False."""
    pooler: Mapping[str, Any] | None
    """A dict that describes how `return_pooled` computes one vector per sequence. Default: None. BERT, arXiv:1810.04805; CLIP, arXiv:2103.00020."""
    mtp_depth: int
    """Number of modules that each predict one more token. Default: 0. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    mtp_block: Mapping[str, Any] | None
    """Keywords of the block of each module that differ from those of the last block of the stack. Default: None. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    mtp_hidden: Literal['stream', 'normed']
    """Hidden states that the first module gets: before ('stream') or after ('normed') the final norm. Default: 'stream'. DeepSeek-V3, arXiv:2412.19437, section 2.2."""
    mtp_loss_weight: float
    """Weight of the loss of all modules. Default: 0.3. DeepSeek-V3, arXiv:2412.19437, section 2.2."""

class AttentionLayersKeywords(StackKeywords, total=False):
    attn_dim_head: int | tuple[int, ...] | PerLayer
    """Width of each query and key head. Default: 64."""

class XTransformerKeywords(TwoStacksKeywords, total=False):
    enc_depth: int | None
    """Number of blocks. Default: None."""
    dec_depth: int | None
    """Number of blocks. Default: None."""

class ContinuousTransformerAutoencoderKeywords(StackKeywords, total=False):
    depth: int | None
    """Number of blocks. Default: None."""
    causal: bool
    """Causal attention: tokens attend only to themselves and earlier tokens. Default: False."""
    cross_attend: bool
    """Add cross-attention to a context to every block. Default: False."""
    only_cross: bool
    """Use cross-attention only, without self-attention. Default: False."""
    pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""

class ContinuousTransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sinusoidal position embeddings instead of a learned table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    post_emb_norm: bool
    """Layer norm of the summed embeddings. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """Learn a bias in this layer norm. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Eps of this layer norm, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    emb_dropout: float
    """Dropout probability of the embeddings. Default: 0.0."""
    cmem_len: int
    """Compressed memories per self-attention layer, in addition to `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    cmem_ratio: int
    """Compression ratio: number of memories that are compressed to one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """Compression function: 'conv', 'dilated_conv', 'mean', 'max' or 'most_used'. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss: Literal['attn', 'ae'] | None
    """Loss of the compression: 'attn' (attention reconstruction), 'ae' (autoencoding), or None. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    cmem_init: Literal['mean'] | None
    """Initialization of the convolutions: 'mean' (averaging), or None for PyTorch's default. Default: None. Compressive Transformer, arXiv:1911.05507."""
    average_pool_embed: bool
    """Average the tokens before the output head. Default: False."""

class CrossAttenderKeywords(AttentionLayersKeywords, total=False):
    dim: Required[int]
    """Width of the residual stream."""
    depth: int | None
    """Number of blocks. Default: None."""
    heads: int
    """Number of attention heads in every layer. Default: 8."""
    causal: bool
    """Causal attention: tokens attend only to themselves and earlier tokens. Default: False."""
    pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""
    features: Sequence[type[Feature]] | None

class DecoderKeywords(AttentionLayersKeywords, total=False):
    dim: Required[int]
    """Width of the residual stream."""
    depth: int | None
    """Number of blocks. Default: None."""
    heads: int
    """Number of attention heads in every layer. Default: 8."""
    cross_attend: bool
    """Add cross-attention to a context to every block. Default: False."""
    only_cross: bool
    """Use cross-attention only, without self-attention. Default: False."""
    pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""
    features: Sequence[type[Feature]] | None

class EncoderKeywords(DecoderKeywords, total=False):
    pass

class FreeTransformerKeywords(ContinuousTransformerAutoencoderKeywords, total=False):
    pass

class GPTVAEKeywords(StackKeywords, total=False):
    causal: bool
    """Causal attention: tokens attend only to themselves and earlier tokens. Default: False."""
    cross_attend: bool
    """Add cross-attention to a context to every block. Default: False."""
    only_cross: bool
    """Use cross-attention only, without self-attention. Default: False."""
    pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""

class MultiInputTransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sinusoidal position embeddings instead of a learned table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    post_emb_norm: bool
    """Layer norm of the summed embeddings. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """Learn a bias in this layer norm. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Eps of this layer norm, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    emb_frac_gradient: float
    """Factor of the gradient of the embeddings, in (0, 1]. Default: 1.0. GLM-130B, arXiv:2210.02414."""
    num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""

class PartiKeywords(TwoStacksKeywords, total=False):
    tie_token_emb: bool
    """Share the token embedding of encoder and decoder. Default: False."""
    ignore_index: int
    """Target id that is ignored by the loss. Default: -100."""
    pad_value: int
    """Id of the padding token. Default: 0."""
    cross_attn_tokens_dropout: float
    """Share of encoder tokens dropped in training. Default: 0.0."""
    label_smoothing: float
    """Label smoothing: 1 - e for the target, e spread over all tokens, arXiv:1512.00567. Default: 0.0."""

class PrefixDecoderKeywords(DecoderKeywords, total=False):
    pass

class SpeechEncoderKeywords(TypedDict, total=False):
    dim_out: int | None
    """Width of the output, that of the stack if None. Default: None."""
    project_in: nn.Module | None
    """Custom input projection. Default: None."""
    project_out: nn.Module | None
    """Custom output projection. Default: None."""
    max_mem_len: int
    """Number of hidden states returned as memories (Transformer-XL). Default: 0."""
    probabilistic: bool
    """Predict a mean and a variance. Default: False."""
    use_identity_if_same_dim: bool
    """Use no projection between equal widths. Default: False."""
    mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    post_emb_norm: bool
    """Layer norm of the summed embeddings. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_bias: bool
    """Learn a bias in this layer norm. Default: False. BERT, arXiv:1810.04805."""
    post_emb_norm_eps: float | None
    """Eps of this layer norm, 1e-5 if None. Default: None. BERT, arXiv:1810.04805."""
    num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    emb_dropout: float
    """Dropout probability of the embeddings. Default: 0.0."""
    cmem_len: int
    """Compressed memories per self-attention layer, in addition to `max_mem_len`. Default: 0. Compressive Transformer, arXiv:1911.05507."""
    cmem_ratio: int
    """Compression ratio: number of memories that are compressed to one. Default: 4. Compressive Transformer, arXiv:1911.05507."""
    cmem_fn: Literal['conv', 'dilated_conv', 'mean', 'max', 'most_used']
    """Compression function: 'conv', 'dilated_conv', 'mean', 'max' or 'most_used'. Default: 'conv'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss: Literal['attn', 'ae'] | None
    """Loss of the compression: 'attn' (attention reconstruction), 'ae' (autoencoding), or None. Default: 'attn'. Compressive Transformer, arXiv:1911.05507."""
    cmem_loss_weight: float
    """Weight of this loss. Default: 1.0. Compressive Transformer, arXiv:1911.05507."""
    cmem_init: Literal['mean'] | None
    """Initialization of the convolutions: 'mean' (averaging), or None for PyTorch's default. Default: None. Compressive Transformer, arXiv:1911.05507."""
    average_pool_embed: bool
    """Average the tokens before the output head. Default: False."""

class TTTMetaLearningTargetKLLossKeywords(AttentionLayersKeywords, total=False):
    cross_attend: bool
    """Add cross-attention to a context to every block. Default: False."""
    only_cross: bool
    """Use cross-attention only, without self-attention. Default: False."""
    pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    pre_norm_has_final_norm: bool
    """Use a final norm in pre-norm stacks. Default: True."""
    norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""

class TransformerBlockKeywords(AttentionLayersKeywords, total=False):
    heads: int
    """Number of attention heads in every layer. Default: 8."""
    causal: bool
    """Causal attention: tokens attend only to themselves and earlier tokens. Default: False."""
    cross_attend: bool
    """Add cross-attention to a context to every block. Default: False."""
    only_cross: bool
    """Use cross-attention only, without self-attention. Default: False."""
    pre_norm: bool
    """Normalize the input of every branch (pre-norm), otherwise the residual stream after it (post-norm). Default: True."""
    norm_add_unit_offset: bool
    """Store norm weights as `weight - 1`. Default: True."""
    disable_abs_pos_emb: bool | None
    """Disable the absolute positions of the model; None: disable them if the stack has another position scheme. Default: None."""
    rel_pos_kwargs: dict | None
    """Additional arguments of the position bias. Default: None."""
    residual_fn_kwargs: dict | None
    """Additional arguments of the residual connections. Default: None."""
    verbose: bool
    """Warn about settings that are known to perform poorly. Default: True."""
    features: Sequence[type[Feature]] | None

class XValTransformerWrapperKeywords(TypedDict, total=False):
    mem_same_length: bool
    """Limit each query to `max_mem_len` keys before itself, memories included. Default: False. Transformer-XL, arXiv:1901.02860."""
    use_abs_pos_emb: bool
    """Add absolute position embeddings, unless the stack has another position scheme. Default: True. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    abs_pos_emb_scale: float | None
    """Factor of the position embeddings; None: emb_dim ** -0.5 (1 with `l2norm_embed`), learned for sinusoids. Default: None. Convolutional Sequence to Sequence Learning, arXiv:1705.03122."""
    sinu_pos_emb: bool
    """Sinusoidal position embeddings instead of a learned table. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    scaled_sinu_pos_emb: bool
    """Sinusoidal position embeddings times a learned scale. Default: False. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_theta: float
    """Frequency base: wavelengths are from 2 pi to 2 pi theta tokens. Default: 10000.0. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    sinu_denominator: Literal['d', 'half_minus_1']
    """'d': frequency k is theta ** (-2 k / d); 'half_minus_1': theta ** (-k / (d / 2 - 1)), as in Whisper. Default: 'd'. Attention Is All You Need, arXiv:1706.03762, section 3.5; Whisper, arXiv:2212.04356."""
    num_memory_tokens: int | None
    """Number of memory tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    memory_tokens_interspersed_every: int | None
    """Chunk length: insert the memory tokens before every chunk of this many tokens. Default: None. Memory Transformer, arXiv:2006.11527; Vision Transformers Need Registers, arXiv:2309.16588."""
    emb_dropout: float
    """Dropout probability of the embeddings. Default: 0.0."""
    tie_embedding: bool
    """Use the table of token embeddings as the output head (weight tying). Default: False. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_scale: float | None
    """Factor of tied logits, dim ** -0.5 if None. Default: None. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""
    tie_embedding_normed: bool
    """With `l2norm_embed`, use the normalized table for the logits; False, as in the original: the stored one. Default: True. Using the Output Embedding to Improve Language Models, arXiv:1608.05859."""

class AttentionInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    causal: bool | None
    cache: Intermediates | None
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """b, True to clear the store"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale)"""
    context_rotary_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j r, scale), of the keys of a context"""
    kept_angles: Any
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    polar_pos_emb: Sequence[Any] | None
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    document_ids: Tensor | None
    """b n, document of each token"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"""
    global_mask: Tensor | None
    """b n, True for global tokens, which attend to all and to which all attend, for Global('mask')"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""

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
    seq_pos_offset: Tensor | int | None
    cache: Cache | LayerIntermediates | None
    input_not_include_cache: bool
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    def __call__(self, _x: Tensor, _context: Tensor | None = ..., _mask: Tensor | None = ..., _context_mask: Tensor | None = ..., _attn_mask: Tensor | None = ..., _self_attn_kv_mask: Tensor | None = ..., _mems: Sequence[Tensor | None] | None = ..., _mem_masks: Sequence[Tensor | None] | None = ..., _seq_start_pos: Tensor | None = ..., _seq_pos_offset: Tensor | int | None = ..., _cache: Cache | LayerIntermediates | None = ..., _input_not_include_cache: bool = ..., _cache_age: int | None = ..., _return_hiddens: bool = ..., /, *, return_hiddens: bool = ..., return_gumbel_log_probs: bool = ..., **inputs: Unpack[AttentionLayersInputs]) -> Any: ...

class PrefixDecoderInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    prefix_attn_len: Tensor | int | None
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    seq_pos_offset: Tensor | int | None
    cache: Cache | LayerIntermediates | None
    input_not_include_cache: bool | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    """number of passes; default `train_max_recycle_steps`, random in training"""
    looped_steps: Any
    """exact number of passes, without early exit"""
    max_looped_steps: Any
    """maximum number of passes, overrides the flag"""
    looped_pred_all_logits: bool | None
    """return the logits of every pass; the default is True in training"""
    looped_inference: bool | None
    """let the gate exit early; needs a batch of 1, token by token"""
    looped_exit_prob_threshold: float | None
    """exit once the cumulative exit probability reaches this, 0.9 by default"""
    return_block_readouts: bool | None
    """store in `block_readouts` the logits of each block except the last"""
    return_mtp: Literal[False, True, 'hidden'] | None
    """store in the intermediates `mtp_readouts`, the logits of each module; or with 'hidden' only `mtp_hidden`, the hidden states for the first module"""

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
    seq_pos_offset: Tensor | int | None
    cache: Cache | LayerIntermediates | None
    input_not_include_cache: bool | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    """number of passes; default `train_max_recycle_steps`, random in training"""
    looped_steps: Any
    """exact number of passes, without early exit"""
    max_looped_steps: Any
    """maximum number of passes, overrides the flag"""
    looped_pred_all_logits: bool | None
    """return the logits of every pass; the default is True in training"""
    looped_inference: bool | None
    """let the gate exit early; needs a batch of 1, token by token"""
    looped_exit_prob_threshold: float | None
    """exit once the cumulative exit probability reaches this, 0.9 by default"""
    return_block_readouts: bool | None
    """store in `block_readouts` the logits of each block except the last"""
    return_mtp: Literal[False, True, 'hidden'] | None
    """store in the intermediates `mtp_readouts`, the logits of each module; or with 'hidden' only `mtp_hidden`, the hidden states for the first module"""
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
    prefix_attn_len: Tensor | int | str | None
    num_items_in_batch: Tensor | int | None

class AutoregressiveWrapperCall(Protocol):
    @overload
    def __call__(self, x: Tensor, *, return_outputs: Literal[False] = ..., **inputs: Unpack[AutoregressiveWrapperInputs]) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, *, return_outputs: Literal[True], **inputs: Unpack[AutoregressiveWrapperInputs]) -> tuple[Tensor, tuple[Tensor, LayerIntermediates]]: ...
    @overload
    def __call__(self, x: Tensor, *, return_outputs: bool = ..., **inputs: Unpack[AutoregressiveWrapperInputs]) -> Any: ...
    @overload
    def __call__(self, _x: Tensor, _return_outputs: bool = ..., _prepend_embeds: Tensor | None = ..., _lens: Tensor | None = ..., _labels: Tensor | None = ..., _progress: float | None = ..., _prefix_attn_len: Tensor | int | str | None = ..., _num_items_in_batch: Tensor | int | None = ..., /, *, return_outputs: bool = ..., **inputs: Unpack[AutoregressiveWrapperInputs]) -> Any: ...

class StreamInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_pos_offset: Tensor | int | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    """number of passes; default `train_max_recycle_steps`, random in training"""
    looped_steps: Any
    """exact number of passes, without early exit"""
    max_looped_steps: Any
    """maximum number of passes, overrides the flag"""
    looped_pred_all_logits: bool | None
    """return the logits of every pass; the default is True in training"""
    looped_inference: bool | None
    """let the gate exit early; needs a batch of 1, token by token"""
    looped_exit_prob_threshold: float | None
    """exit once the cumulative exit probability reaches this, 0.9 by default"""
    return_block_readouts: bool | None
    """store in `block_readouts` the logits of each block except the last"""
    return_mtp: Literal[False, True, 'hidden'] | None
    """store in the intermediates `mtp_readouts`, the logits of each module; or with 'hidden' only `mtp_hidden`, the hidden states for the first module"""
    prompt_lens: Sequence[int] | Tensor | None
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
    filter_kwargs: Sequence[dict[str, Any]] | dict[str, Any] | None
    generator: Generator | None
    allowed_tokens: Sequence[int] | Tensor | None
    banned_tokens: Sequence[int] | Tensor | None
    frequency_penalty: float
    logit_bias: Any | Mapping[int, float]
    logits_processor: Callable[..., Tensor] | Sequence[Callable[..., Tensor]] | None
    min_new_tokens: int
    no_repeat_ngram_size: int
    presence_penalty: float
    repetition_penalty: float
    stop_sequences: Sequence[Sequence[int]] | None
    cond_scale: float
    negative_prompts: Sequence[Tensor] | Tensor | None
    negative_context: Any | Tensor

class GenerateInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_pos_offset: Tensor | int | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    """number of passes; default `train_max_recycle_steps`, random in training"""
    looped_steps: Any
    """exact number of passes, without early exit"""
    max_looped_steps: Any
    """maximum number of passes, overrides the flag"""
    looped_pred_all_logits: bool | None
    """return the logits of every pass; the default is True in training"""
    looped_inference: bool | None
    """let the gate exit early; needs a batch of 1, token by token"""
    looped_exit_prob_threshold: float | None
    """exit once the cumulative exit probability reaches this, 0.9 by default"""
    return_block_readouts: bool | None
    """store in `block_readouts` the logits of each block except the last"""
    return_mtp: Literal[False, True, 'hidden'] | None
    """store in the intermediates `mtp_readouts`, the logits of each module; or with 'hidden' only `mtp_hidden`, the hidden states for the first module"""
    prompt_lens: Sequence[int] | Tensor | None
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
    filter_kwargs: Sequence[dict[str, Any]] | dict[str, Any] | None
    generator: Generator | None
    kv_storage: Paged | None
    allowed_tokens: Sequence[int] | Tensor | None
    banned_tokens: Sequence[int] | Tensor | None
    frequency_penalty: float
    logit_bias: Any | Mapping[int, float]
    logits_processor: Callable[..., Tensor] | Sequence[Callable[..., Tensor]] | None
    min_new_tokens: int
    no_repeat_ngram_size: int
    presence_penalty: float
    repetition_penalty: float
    stop_sequences: Sequence[Sequence[int]] | None
    cond_scale: float
    negative_prompts: Sequence[Tensor] | Tensor | None
    negative_context: Any | Tensor

class BeamSearchInputs(TypedDict, total=False):
    context: Tensor | None
    mask: Tensor | None
    context_mask: Tensor | None
    attn_mask: Tensor | None
    mems: Sequence[Tensor | None] | None
    mem_masks: Sequence[Tensor | None] | None
    seq_pos_offset: Tensor | int | None
    cache_age: int | None
    causal: bool | None
    layers_execute_order: Sequence[int] | None
    repeat_blocks: Any
    transform_block_inputs: Any
    return_block_outputs: bool | None
    """store in `block_outputs` the output after each block except the last"""
    return_stream: bool | None
    """store in `stream` the residual stream before the final norm"""
    token_pos: Tensor | None
    """n | b n, positions of the new tokens, negative for tokens without a position"""
    condition: Tensor | None
    """b d | b n d"""
    per_layer_embeds: Tensor | None
    """b n e"""
    document_ids: Tensor | None
    """b n, document of each token"""
    segment_ids: Tensor | None
    """b n, segment of each token"""
    stream_ranks: Tensor | None
    """b n, the rank of each token in the order, -1 for known tokens"""
    stream_at: Tensor | None
    """b k, indices of the tokens to predict; the last k entries of x are their queries"""
    mem_same_length: int | None
    """number of keys before itself that a query attends to"""
    flash_pack_seq_kwargs: Any
    """dict of cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, for the sequence"""
    flash_pack_seq_context_kwargs: Any
    """dict of the same entries, with the keys of the context"""
    outside_pattern: Any
    """tokens outside of the pattern, their number at the start or their indices (p): all tokens attend to them, and they attend to all"""
    knn_mems: Any
    """stores of earlier segments, one for each run of such a layer"""
    knn_reset: Tensor | None
    """b, True to clear the store"""
    global_mask: Tensor | None
    """b n, True for tokens that see all and that all see; False beyond its end"""
    rotary_pos_emb: Any
    """(angles (1 or b) j r, scale), as `RotaryEmbedding` returns them"""
    polar_pos_emb: Any
    """(angles (1 or b) j d, shifts of the keys h 1 d)"""
    context_pos: Tensor | None
    """m | b m"""
    pos_vectors: Tensor | None
    """n d | b n d, position embeddings of the new tokens"""
    pos_known: Tensor | None
    """n | b n, True for tokens with a position; all if None"""
    self_attn_kv_residuals: Tensor | None
    """l b n d, or b n d for the first layer"""
    cross_attn_kv_residuals: Tensor | None
    """l b m d, or b m d for the first layer"""
    self_attn_additional_kv: Any
    """list of (k, v), b k m d each, or the cache or intermediates of another stack"""
    additional_kv_mask: Tensor | None
    """b m"""
    detach_additional_kv: bool | None
    """True to stop the gradient into them"""
    route_additional_kv_to_top: bool | None
    """True: the last pair goes to the last layer; False: the first to the first"""
    deep_embeds_and_ids: Sequence[Any] | None
    """(num_tokens f d, ids b n)"""
    transform_attn_inputs: Callable[..., Any] | None
    """f(layer, x) of the input of each self-attention, counted from 0"""
    in_attn_cond: Tensor | None
    """b d | b n d"""
    exits: Any
    """an `Exits`, which decides after which block each token exits"""
    ff_input_of: Sequence[Any] | None
    """(list, index of a feedforward in the order of execution): its input is appended to the list"""
    prev_attn: Tensor | None
    """broadcasts to b h i j"""
    value_context: Tensor | None
    """b j d, input of the values, one vector per token of `context`"""
    kv_input_residual: Tensor | None
    """broadcasts to the input of the keys, b j d"""
    mem: Tensor | None
    """b l d, normalized like x"""
    mem_mask: Tensor | None
    """b l"""
    shared_kv: Any
    """keys and values of the other layer, (b k j d) each, and whether the keys have been rotated"""
    value_residual: Tensor | None
    """like the values, b h n d"""
    infused_positions: Sequence[Any] | None
    """(module from positions to vectors, positions j | b j)"""
    dconv_mask: Tensor | None
    """b n, True except for padding"""
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
    """a Buffer with the angles of all cached and new tokens: the cache stores rotated keys"""
    query_pos: Tensor | None
    """(1 or b) n, position of each query, for a factor of it"""
    additional_key_values: Any
    """(k, v), b k m d each, k a divisor of the number of heads"""
    additional_key_value_mask: Tensor | None
    """b m"""
    rel_pos: Callable[..., Any] | None
    """module (i, j) -> h i j"""
    pos: Tensor | None
    """j | b j | b h j, of the keys; the last are the queries"""
    attn_bias: Tensor | None
    """broadcasts to b h i j, where j excludes prepended keys"""
    xl_vectors: Sequence[Any] | None
    """(u, v), each h e"""
    untied_scores: Tensor | None
    """b h i j, for all keys, or their factors"""
    disentangled_table: Tensor | None
    """s d, the table of relative positions"""
    order_of_queries: Tensor | None
    """b n, ranks"""
    order_of_keys: Tensor | None
    """b n, ranks"""
    linformer_table: Tensor | None
    """n k, the matrix shared by all layers"""
    attn_delta: Tensor | None
    """broadcasts to b h i j; prepended keys get 0, unless its last axis includes them"""
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
    """number of passes; default `train_max_recycle_steps`, random in training"""
    looped_steps: Any
    """exact number of passes, without early exit"""
    max_looped_steps: Any
    """maximum number of passes, overrides the flag"""
    looped_pred_all_logits: bool | None
    """return the logits of every pass; the default is True in training"""
    looped_inference: bool | None
    """let the gate exit early; needs a batch of 1, token by token"""
    looped_exit_prob_threshold: float | None
    """exit once the cumulative exit probability reaches this, 0.9 by default"""
    return_block_readouts: bool | None
    """store in `block_readouts` the logits of each block except the last"""
    return_mtp: Literal[False, True, 'hidden'] | None
    """store in the intermediates `mtp_readouts`, the logits of each module; or with 'hidden' only `mtp_hidden`, the hidden states for the first module"""
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
    logit_bias: Any | Mapping[int, float]
    logits_processor: Callable[..., Tensor] | Sequence[Callable[..., Tensor]] | None
    min_new_tokens: int
    no_repeat_ngram_size: int
    presence_penalty: float
    repetition_penalty: float
    stop_sequences: Sequence[Sequence[int]] | None
    cond_scale: float
    negative_prompts: Sequence[Tensor] | Tensor | None
    negative_context: Any | Tensor
