"""Flags of other libraries and their counterparts here: rows for functions that build models.

`foreign_words.py` explains the rows, and has those for calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# Kinds of functions.
BUILD, CALL, GENERATE, LOAD, SAVE = 'build', 'call', 'generate', 'load', 'save'


class Word(NamedTuple):
    """Words of one meaning, and their counterparts."""

    theirs: str
    libraries: str
    ours: str
    kind: str = BUILD
    note: str = ''
    values: Mapping[Any, str] = {}


HF, TORCH, TIMM, GPT = 'transformers', 'torch.nn', 'timm', 'nanoGPT, LitGPT'
FAIRSEQ, FLASH, VLLM, PEFT, JAX = 'fairseq', 'flash-attn', 'vLLM, OpenAI', 'peft', 'Flax, T5X'
MEGATRON = 'Megatron-LM'
ENCODER_OR_DECODER = ': causality is fixed by the class of the stack: `Decoder` is causal, `Encoder` is not'
FLASH_VALUES = {
    'eager': 'attn_flash=False', 'math': 'attn_flash=False', False: 'attn_flash=False', True: 'attn_flash=True',
    'sdpa': 'attn_flash=True', 'flash_attention_2': 'attn_flash=True', 'flash_attention_3': 'attn_flash=True',
    'flash': 'attn_flash=True', None: ': leave it out, the fastest kernel is chosen',
    'flex_attention': ': leave it out, the fastest kernel is chosen', 'xformers': 'attn_flash=True',
    'auto': ': leave it out, the fastest kernel is chosen',
}  # fmt: skip
ACTIVATIONS = {
    **{name: "ff_activation='gelu_tanh'" for name in ('gelu_new', 'gelu_pytorch_tanh', 'gelu_fast', 'gelu_accurate')},
    **{name: f"ff_activation='{name}'" for name in ('gelu', 'relu', 'relu2', 'silu', 'tanh', 'quick_gelu')},
    'swish': "ff_activation='silu'",
    **dict.fromkeys(('swiglu', 'gated-silu', 'silu_glu'), 'ff_glu=True, ff_swish=True'),
    **dict.fromkeys(('geglu', 'gelu_glu'), 'ff_glu=True'),
    'gated-gelu': "ff_glu=True, ff_activation='gelu_tanh'",
    'gated-relu': "ff_glu=True, ff_activation='relu'", 'reglu': "ff_glu=True, ff_activation='relu'",
}  # fmt: skip
NO_POSITIONS = 'use_abs_pos_emb=False'
ALIBI = 'alibi_pos_bias=True, disable_abs_pos_emb=True'
POSITIONS = {
    **dict.fromkeys(('rope', 'rotary', 'rotate'), 'rotary_pos_emb=True'),
    'alibi': ALIBI,
    **dict.fromkeys(('t5', 'relative', 'rpe'), 'rel_pos_bias=True'),
    **dict.fromkeys(('relative_key', 'relative_key_query'), 'shaw_rel_pos=True'),
    **dict.fromkeys(('sinusoidal', 'sine', 'sincos', 'fixed'), 'sinu_pos_emb=True'),
    **dict.fromkeys(('none', None, False, 'nope'), NO_POSITIONS),
    **dict.fromkeys(
        ('absolute', 'learned', 'learnable', 'learned_absolute', 'learn'),
        ': leave it out, TransformerWrapper has a learned table of positions unless `use_abs_pos_emb=False`',
    ),
}
NORMS = {
    **dict.fromkeys(('rmsnorm', 'RMSNorm', 'rms', 'rms_norm'), 'use_rmsnorm=True'),
    **dict.fromkeys(('scalenorm', 'ScaleNorm'), 'use_scalenorm=True'),
    **dict.fromkeys(
        ('layernorm', 'LayerNorm', 'layer_norm', 'layer', 'ln', 'LN', None), ': leave it out, it is the default'
    ),
}
BIASES = {
    False: 'ff_no_bias=True | @Attention : leave it out, projections have no bias by default',
    True: 'attn_qkv_bias=True, attn_out_bias=True | @FeedForward : leave it out, biases are the default',
}
SUBLAYER_DROPOUT = (
    'attn_sublayer_dropout={value}, ff_sublayer_dropout={value} | attn_sublayer_dropout | ff_sublayer_dropout | dropout'
)
POOLS = {
    **dict.fromkeys(('avg', 'mean', 'gap', 'average'), "pool='mean' | token='mean' | average_pool_embed=True"),
    **dict.fromkeys(
        ('token', 'cls', 'cls_token'), "pool='first', prefix_tokens=1 | token='first' | use_cls_token=True"
    ),
    **dict.fromkeys(('last', 'lasttoken'), "token='last'"),
    **dict.fromkeys(('map', 'attention', 'attn'), "pool='attention' | !attn_pool=True"),
    **dict.fromkeys(('', None), 'pool=None'),
}
OF_VECTORS = ' | '.join(
    f'@{cls} x'
    for cls in ('AttentionLayers', 'Attention', 'FeedForward', 'TransformerBlock', 'ContinuousTransformerWrapper',
                'ContinuousAutoregressiveWrapper', 'RMSNorm')
)  # fmt: skip

FLAG_WORDS: tuple[Word, ...] = (
    # sizes of a stack
    Word('hidden_dim', 'torchvision, Llama', '!dim_inner | dim'),
    Word('hidden_size d_model n_embd n_embed embed_dim embedding_dim model_dim model_size emb_size embed_size '
         'embed_dims hidden_units hidden_channels attention_dim d_embed dmodel emb_dim dim_model '
         'width hidden residual_dim dim_embed dim_embedding base_dim encoder_hidden_size decoder_hidden_size '
         'decoder_input_dim decoder_output_dim features num_features num_hidden qkv_features',
         f'{HF}, {TORCH}, {TIMM}, {GPT}, {FAIRSEQ}', 'dim'),
    Word('embedding_size', HF, '!emb_dim | dim'),
    Word('normalized_shape units', f'{TORCH}, Keras', 'dim'),
    Word('num_layers n_layer n_layers num_hidden_layers num_blocks n_blocks nlayers layers num_transformer_layers '
         'nlayer num_block number_of_layers num_layer block_count n_hidden_layers depths',
         f'{HF}, {TORCH}, {GPT}, {FAIRSEQ}', 'depth'),
    Word('num_heads n_head n_heads nhead nheads num_attention_heads attention_heads num_q_heads n_q_heads '
         'num_query_heads num_head attn_heads number_of_heads n_attention_heads attention_head_count',
         f'{HF}, {TORCH}, {TIMM}, {GPT}, {FAIRSEQ}', 'heads'),
    Word('num_key_value_heads num_kv_heads n_kv_heads n_kv_head n_head_kv n_query_groups num_query_groups num_kv '
         'num_heads_kv num_heads_k nheads_k kv_n_heads num_key_value_groups n_heads_kv '
         'multi_query_group_num num_kv_head '
         'head_count_kv',
         f'{HF}, LitGPT, {MEGATRON}', 'attn_kv_heads', note='the number of heads of keys and values'),
    Word('multiple_of ffn_dim_multiplier',
         'Llama', ': give the width itself, `ff_dim_inner`: int(ffn_dim_multiplier * (8 * dim // 3)), rounded up'),
    Word('multi_query multi_query_attention use_multi_query mqa',
         HF, 'attn_one_kv_head', values={True: 'attn_one_kv_head=True', False: ': leave it out'}),
    Word('head_dim dim_per_head d_kv d_head head_size kv_channels attention_head_dim attention_head_size dim_heads '
         'head_width dim_key d_k d_qkv key_size key_dim size_per_head n_embd_head heads_dim',
         f'{HF}, LitGPT, {JAX}', 'attn_dim_head', note='64 by default, whatever the width of the stack'),
    Word('v_head_dim d_v value_dim dim_value value_head_dim', HF, 'attn_value_dim_head'),
    Word('kdim vdim', TORCH, 'cross_attn_dim_context | dim_context'),
    Word('cross_attention_hidden_size cross_attention_dim encoder_dim memory_dim context_dim encoder_width',
         HF, 'cross_attn_dim_context'),
    Word('intermediate_size dim_feedforward ffn_dim d_ff n_inner mlp_dim mlp_hidden_dim ffn_hidden_size d_inner '
         'hidden_features inner_dim ffn_embed_dim ff_dim feedforward_dim d_mlp filter_size dim_ffn ffn_inner_dim '
         'intermediate_dim dim_ff dim_mlp mlp_hidden_size ffn_size ffn_intermediate_size feed_forward_dim d_hidden '
         'feed_forward_length inner_size dff ff_size ff_hidden_dim hidden_dims',
         f'{HF}, {TORCH}, {FAIRSEQ}, {MEGATRON}', 'ff_dim_inner'),
    Word('mlp_ratio mlp_mult ffn_mult expansion_factor ff_expansion widening_factor mlp_expansion expansion '
         'expansion_ratio ffn_ratio ff_ratio ffn_expansion mlp_scale hidden_layer_multiplier ffn_mult_factor',
         f'{TIMM}, MPT', 'ff_mult'),
    # dropout
    Word('dropout',
         f'{TORCH}, {FAIRSEQ}', 'attn_dropout={value}, ff_dropout={value} | attn_dropout | ff_dropout',
         note='of weights and hidden units; `attn_sublayer_dropout`, `ff_sublayer_dropout` for the output'),
    Word('dropout_rate dropout_prob hidden_dropout hidden_dropout_prob resid_pdrop residual_dropout drop_rate '
         'resid_dropout residual_dropout_prob hidden_dropout_rate drop proj_drop resid_drop proj_drop_rate '
         'resid_dropout1 resid_dropout2',
         f'{HF}, {TIMM}, {JAX}', SUBLAYER_DROPOUT),
    Word('attention_dropout attention_probs_dropout_prob attn_pdrop attn_drop attn_drop_rate '
         'attention_dropout_prob attention_dropout_rate att_dropout dropatt dropout_p attn_dropout_p '
         'attn_dropout_rate '
         'attention_probs_dropout attn_drop_p',
         f'{HF}, {TIMM}, {FLASH}', 'attn_dropout'),
    Word('activation_dropout mlp_dropout ffn_dropout relu_dropout act_dropout mlp_drop ffn_dropout_rate '
         'mlp_dropout_prob',
         f'{HF}, {FAIRSEQ}', 'ff_dropout'),
    Word('embd_pdrop embedding_dropout embed_dropout emb_pdrop pos_drop_rate embed_pdrop dropout_emb embd_drop '
         'embedding_dropout_prob embeddings_dropout emb_drop embed_drop embed_dropout_prob',
         f'{HF}, {TIMM}', 'emb_dropout'),
    Word('layerdrop drop_path drop_path_rate stochastic_depth stochastic_depth_prob stochastic_depth_rate droppath '
         'drop_path_prob layer_drop layerdrop_prob',
         f'{HF}, {TIMM}, {FAIRSEQ}', 'layer_dropout'),
    Word('classifier_dropout cls_dropout head_dropout drop_head head_drop classifier_dropout_prob qa_dropout '
         'seq_classif_dropout final_dropout summary_last_dropout summary_first_dropout',
         HF, '@Classifier dropout'),
    Word('model transformer backbone base_model decoder_model lm',
         'other libraries', 'net | model | decoder | attn_layers'),
    # biases
    Word('bias use_bias add_bias', f'{TORCH}, {GPT}', 'ff_no_bias={not} | @Classifier bias', values=BIASES),
    Word('add_qkv_bias add_bias_qkv use_qkv_bias qkv_proj_bias', MEGATRON, 'attn_qkv_bias'),
    Word('attention_bias attn_bias_terms use_attention_bias attention_use_bias',
         HF, 'attn_qkv_bias={value}, attn_out_bias={value} | attn_qkv_bias', note='they are off by default'),
    Word('mlp_bias ffn_bias add_bias_linear use_mlp_bias feedforward_bias', f'{HF}, {MEGATRON}', 'ff_no_bias={not}'),
    Word('proj_bias o_proj_bias attention_out_bias out_proj_bias', f'{TIMM}, {FLASH}', 'attn_out_bias'),
    Word('lm_head_bias head_bias decoder_bias', HF, 'logits_bias'),
    Word('add_bias_kv',
         TORCH, 'attn_num_mem_kv', note='a number of learned keys and values',
         values={True: 'attn_num_mem_kv=1', False: ': leave it out'}),
    Word('add_zero_attn', TORCH, 'attn_add_zero_kv'),
    # norms
    Word('norm_first pre_ln prenorm pre_lnorm pre_layer_norm normalize_before do_layer_norm_before',
         f'{TORCH}, {FAIRSEQ}, {HF}', 'pre_norm',
         values={True: ': leave it out, pre-norm is the default', False: 'pre_norm=False'}),
    Word('post_norm postnorm post_ln apply_residual_connection_post_layernorm post_layer_norm',
         HF, 'pre_norm={not}', values={False: ': leave it out, pre-norm is the default', True: 'pre_norm=False'}),
    Word('layer_norm_eps layer_norm_epsilon rms_norm_eps norm_epsilon layernorm_epsilon eps epsilon ln_eps '
         'rmsnorm_eps layernorm_eps rms_norm_epsilon variance_epsilon norm_eps rms_eps',
         f'{HF}, {TORCH}, {MEGATRON}', 'norm_eps'),
    Word('norm_type norm_class norm_class_name norm_layer normalization layernorm_type norm_layer_type '
         'layer_norm_type normalization_type',
         f'{GPT}, {TIMM}', 'use_rmsnorm', note='LayerNorm is the default', values=NORMS),
    Word('use_rms_norm rms_norm rmsnorm rms_layer_norm', FLASH, 'use_rmsnorm'),
    Word('elementwise_affine layer_norm_elementwise_affine', TORCH, 'norm_affine'),
    Word('layer_norm_bias ln_bias use_layernorm_bias', HF, 'norm_bias'),
    Word('use_qk_norm qk_layernorm qk_layer_norm use_qk_layernorm qk_layernorms norm_qk normalize_qk',
         f'{HF}, {MEGATRON}', "attn_qk_head_norm='layer'", note="'rms' for an RMSNorm"),
    Word('layer_scale_init_value init_values layer_scale layerscale layerscale_value layer_scale_init',
         f'{TIMM}, {HF}', 'use_layerscale=True, layerscale_init_value={value}'),
    Word('parallel_residual use_parallel_residual parallel_attn parallel_attention parallel_blocks '
         'shared_attention_norm',
         f'{HF}, LitGPT', 'parallel_block'),
    Word('norm final_norm',
         TORCH, 'pre_norm_has_final_norm', values={None: ': leave it out, a stack has a final norm'}),
    Word('post_attention_norm post_mlp_norm post_sublayer_norm use_post_norm', 'LitGPT', 'sandwich_norm'),
    Word('fc_norm', TIMM, 'post_pool_norm'),
    Word('layernorm_embedding embedding_layer_norm embed_layer_norm', FAIRSEQ, 'post_emb_norm'),
    # feedforwards
    Word('hidden_act hidden_activation activation_function act_layer act_fn ffn_act_fn dense_act_fn activation_fn '
         'act nonlinearity feed_forward_proj activation mlp_act activation_type ffn_activation mlp_activation '
         'act_func activation_func ffn_type activations hidden_act_fn mlp_class_name mlp_activations',
         f'{HF}, {TORCH}, {TIMM}, {FAIRSEQ}, {JAX}', 'ff_activation', values=ACTIVATIONS,
         note='`ff_glu=True` for a gated feedforward'),
    Word('swiglu use_swiglu use_swiglu_ffn',
         f'{HF}, {MEGATRON}', 'ff_glu=True, ff_swish=True', values={False: ': leave it out'}),
    Word('is_gated_act use_glu gated gated_mlp use_gated_mlp gated_linear_unit gated_act use_geglu geglu',
         HF, 'ff_glu'),
    Word('squared_relu', MEGATRON, 'ff_activation', values={True: "ff_activation='relu2'", False: ': leave it out'}),
    Word('openai_gelu', MEGATRON, 'ff_activation',
         values={True: "ff_activation='gelu_tanh'", False: ': leave it out'}),
    Word('gelu_approximate', 'LitGPT', ': leave it out', values={'tanh': "ff_activation='gelu_tanh'"}),
    Word('first_k_dense_replace mlp_only_layers decoder_sparse_step moe_layer_freq interleave_moe_layer_step',
         HF, ': give `ff_moe_experts` a tuple with a value per layer, 0 for a dense one'),
    Word('chunk_size_feed_forward',
         HF, 'ff_chunks', note='the number of chunks', values={0: ': leave it out, it is not chunked'}),
    Word('num_local_experts num_experts n_routed_experts moe_num_experts n_experts num_moe_experts n_expert '
         'ffn_num_experts',
         f'{HF}, LitGPT, {MEGATRON}', 'ff_moe_experts'),
    Word('num_experts_per_tok moe_topk n_expert_per_token num_experts_per_token moe_router_topk '
         'num_selected_experts experts_per_token router_topk moe_k num_experts_per_topk',
         f'{HF}, LitGPT, {MEGATRON}', 'ff_moe_top_k'),
    Word('moe_intermediate_size expert_dim moe_ffn_hidden_size', HF, 'ff_moe_dim_inner'),
    Word('n_shared_experts num_shared_experts shared_expert_intermediate_size',
         HF, 'ff_moe_shared', note='see `help(FeedForward)`'),
    Word('norm_topk_prob', HF, 'ff_moe_renormalise'),
    Word('n_group num_expert_group', HF, 'ff_moe_groups'),
    Word('topk_group', HF, 'ff_moe_top_groups'),
    Word('routed_scaling_factor', HF, 'ff_moe_scale'),
    Word('router_aux_loss_coef aux_loss_coef moe_aux_loss_coeff load_balance_coef aux_loss_alpha',
         f'{HF}, {MEGATRON}', 'ff_moe_balance_loss'),
    Word('scoring_func score_func', HF, 'ff_moe_kind'),
    # attention
    Word('attn_implementation _attn_implementation attn_impl use_flash_attention use_flash_attn flash_attn '
         'use_flash flash_attention use_sdpa attention_implementation attention_backend use_flash_attention_2 '
         'sdp_backend fused_attn use_sdp use_fused_attn use_memory_efficient_attention use_xformers attention_type '
         'use_flash_attention_3 experts_implementation sdpa xformers memory_efficient attn_mode mechanism',
         f'{HF}, {TIMM}', 'attn_flash', note='None chooses the fastest', values=FLASH_VALUES),
    Word('sliding_window local_attention attention_window window_size local_window sliding_window_size '
         'window_attention attn_window local_attn_window_size use_local_attn',
         f'{HF}, {FLASH}, {GPT}', 'attn_max_attend_past={less}',
         note='the tokens before the query, which is not counted', values={-1: ': leave it out, there is no window'}),
    Word('layer_types attention_layers attention_types sliding_window_pattern use_sliding_window max_window_layers '
         'global_attn_every_n_layers sliding_window_indices '
         'no_rope_layers',
         HF, ': give a keyword a tuple with a value per layer, `attn_max_attend_past=(127, None)`'),
    Word('attn_logit_softcapping attn_logits_soft_cap softcap attn_logit_cap attention_logit_softcapping '
         'attention_logit_softcap logit_softcap',
         f'{HF}, {FLASH}', 'attn_softclamp_logits=True, attn_logit_softclamp_value={value}'),
    Word('final_logit_softcapping final_logit_softcap logits_soft_cap', HF, 'logits_softclamp'),
    Word('softmax_scale scale attention_multiplier attn_scale qk_scale sm_scale attention_scale scaling',
         FLASH, 'attn_softmax_scale'),
    Word('scale_attn_weights', HF, 'attn_softmax_scale=1.0', values={True: ': leave it out, scores are scaled'}),
    Word('enable_gqa', TORCH, ': leave it out, `attn_kv_heads` chooses the heads of keys and values'),
    Word('attention_fn attn_fn', JAX, 'attn_custom_attn_fn'),
    Word('relative_attention pos_att_type',
         HF, "attn_disentangled={{'span': 256, 'terms': ('c2p', 'p2c')}}", note='`span` is its `position_buckets`',
         values={False: ': leave it out'}),
    Word('max_relative_positions position_buckets', HF, "attn_disentangled={{'span': {value}}}"),
    Word('position_biased_input', HF, 'use_abs_pos_emb'),
    Word('latent_attention use_mla mla', 'LitGPT', 'attn_use_latent_kv=True'),
    Word('num_hidden_groups inner_group_num share_layers '
         'cross_layer_sharing', HF, 'weight_tie_layers=True', values={False: ': leave it out'}),
    Word('query_pre_attn_scalar', HF, 'attn_softmax_scale={root}'),
    Word('clip_qkv', 'MPT', 'attn_qkv_clip'),
    Word('attention_sinks attn_sink attention_sink use_sinks', HF, 'attn_head_learned_sink'),
    Word('is_decoder is_causal causal use_bidirectional_attention bidirectional autoregressive unidirectional '
         'attention_dir attn_type bi_data block_type prefix_lm',
         f'{HF}, {TORCH}, {FLASH}', f'!causal | {ENCODER_OR_DECODER}'),
    Word('add_cross_attention cross_attention use_cross_attention with_cross_attention has_cross_attention cross_attn '
         'encoder_decoder_attention',
         HF, 'cross_attend'),
    Word('is_encoder_decoder', HF, ': use `XTransformer` or `EncoderDecoder` for an encoder with a decoder'),
    Word('kv_lora_rank', HF, 'attn_use_latent_kv=True, attn_dim_latent_kv={value}'),
    Word('q_lora_rank', HF, 'attn_use_latent_q=True, attn_dim_latent_q={value}'),
    Word('qk_rope_head_dim', HF, 'attn_dim_latent_rope'),
    Word('qk_nope_head_dim qk_head_dim', HF, 'attn_dim_head', note='`attn_dim_latent_rope` channels are added'),
    Word('gradient_checkpointing use_checkpoint activation_checkpointing grad_checkpointing recompute remat '
         'checkpoint_activations use_gradient_checkpointing grad_checkpoint checkpoint recompute_granularity',
         f'{HF}, {TIMM}, {JAX}', 'checkpoint_layers'),
    # positions
    Word('use_rope rope use_rotary use_rotary_embeddings rotary_embeddings rotary_embedding rotary '
         'rotary_emb use_rotary_emb '
         'use_rotary_position_embeddings use_rotary_pos_emb rotary_position_embedding',
         f'{HF}, {FLASH}, {MEGATRON}', 'rotary_pos_emb'),
    Word('rope_theta rotary_emb_base rotary_base rope_base rope_theta_base rotary_embedding_base rope_freq_base '
         'rope_max_wavelength',
         f'{HF}, LitGPT', 'rotary_pos_emb=True, rotary_theta={value}'),
    Word('rope_scaling rope_parameters rope_adjustments rope_scaling_factor',
         f'{HF}, LitGPT', 'rotary_scaling', note="a dict such as {{'kind': 'yarn', 'factor': 4.0, 'length': 4096}}"),
    Word('partial_rotary_factor rotary_pct rotary_percentage rotary_percent rotary_emb_fraction',
         f'{HF}, LitGPT', 'rotary_emb_dim', note='the number of rotated channels per head, not their share'),
    Word('rotary_dim n_rot rope_dim rope_n_elem rotary_dims', f'{HF}, {FLASH}', 'rotary_emb_dim'),
    Word('position_embedding_type pos_embed position_encoding_type positional_encoding pos_encoding pos_embed_type '
         'position_embedding pos_encoding_type positional_embedding position_encoding pos_embedding_type '
         'positional_embedding_type pos_emb_type positional_embeddings',
         f'{HF}, {TIMM}, {MEGATRON}', 'rotary_pos_emb=True',
         values=POSITIONS,
         note='see also `alibi_pos_bias`, `rel_pos_bias`, `sinu_pos_emb`'),
    Word('original_max_position_embeddings', HF, 'rotary_scaling', note='whose `length` it is'),
    Word('rope_condense_ratio', 'LitGPT', 'rotary_interpolation_factor'),
    Word('sinusoidal_pos_embds sinusoidal use_sinusoidal', HF, 'sinu_pos_emb'),
    Word('learned_pos learned_pos_emb',
         FAIRSEQ, ': leave it out, TransformerWrapper has a learned table of positions',
         values={False: 'sinu_pos_emb=True'}),
    Word('mem_len memory_len n_mems', HF, 'max_mem_len'),
    Word('same_length', HF, 'mem_same_length'),
    Word('clamp_len', HF, 'xl_clamp_len', values={-1: ': leave it out, distances are not clamped'}),
    Word('alibi use_alibi', f'{HF}, {FLASH}', ALIBI, values={False: ': leave it out'}),
    Word('relative_attention_num_buckets num_buckets', HF, 'rel_pos_bias=True, rel_pos_num_buckets={value}'),
    Word('relative_attention_max_distance', HF, 'rel_pos_bias=True, rel_pos_max_distance={value}'),
    Word('use_position_embeddings use_positional_embeddings use_pos_embed use_learned_position_embeddings',
         HF, 'use_abs_pos_emb'),
    Word('no_token_positional_embeddings no_pos_embed', FAIRSEQ, 'use_abs_pos_emb={not}'),
    # models
    Word('vocab_size n_vocab vocabulary_size num_embeddings ntoken ntokens n_words padded_vocab_size num_words '
         'vocab_dim dict_size size_vocab nvocab token_size num_vocab voc_size vocab_len n_token '
         'vocab d_vocab d_vocab_out',
         f'{HF}, {TORCH}, {GPT}', 'num_tokens'),
    Word('max_position_embeddings n_positions n_ctx block_size context_length max_seq_length seq_length '
         'num_positions max_sequence_length max_len context_size context_window max_position max_context_length '
         'max_positions max_pos max_target_positions max_source_positions max_length seq_len sequence_length '
         'maxlen max_context_len ctx_len max_ctx context_len n_context model_max_length max_model_len num_ctx',
         f'{HF}, {GPT}, {FAIRSEQ}', 'max_seq_len | max_positions', note='0 for no table of positions'),
    Word('tie_word_embeddings tie_weights weight_tying share_input_output_embed tie_embeddings tied_embeddings '
         'weight_tie share_decoder_input_output_embed tie_word_embedding tie_lm_head '
         'share_embeddings_and_output_weights tie_embed tied_weights tie_weight '
         'logits_via_embedding',
         f'{HF}, {FAIRSEQ}, {JAX}', 'tie_embedding'),
    Word('untie_embeddings_and_output_weights',
         MEGATRON, 'tie_embedding={not}', values={True: ': leave it out, they are not tied by default'}),
    Word('make_vocab_size_divisible_by pad_vocab_size_multiple pad_vocab_size_multiple_of',
         MEGATRON, ': round `num_tokens` up to a multiple'),
    Word('num_memory_kv num_mem_kv n_persistent_memory', 'other libraries', 'attn_num_mem_kv'),
    Word('share_all_embeddings share_embeddings share_encoder_decoder_embeddings joined_dictionary',
         FAIRSEQ, 'tie_token_emb | tie_embedding'),
    Word('type_vocab_size', HF, "embed_num_tokens={{'token_type': {value}}}"),
    Word('scale_embedding embed_scale scale_embeddings embedding_multiplier normalize_embedding',
         HF, 'emb_scale', note='the factor itself, such as dim ** 0.5', values={False: ': leave it out'}),
    Word('logit_scale logits_scaling output_multiplier lm_head_multiplier', HF, 'logits_scale'),
    Word('word_embed_proj_dim', HF, 'emb_dim'),
    Word('projection_dim', HF, 'dim_shared'),
    Word('pooler_hidden_act pooler_act',
         HF, "pooler={{'token': 'first', 'activation': {value}}}"),
    Word('pooler_hidden_size pooler_output_size', HF, "pooler={{'token': 'first', 'dim': {value}}}"),
    Word('add_pooling_layer',
         HF, "pooler={{'token': 'first', 'activation': 'tanh'}}", values={False: ': leave it out, there is none'}),
    Word('no_scale_embedding', FAIRSEQ, ': leave it out, embeddings are not scaled unless `emb_scale` is given'),
    Word('num_nextn_predict_layers mtp_num_layers num_mtp_modules', f'{HF}, {MEGATRON}', 'mtp_depth'),
    Word('no_cross_attention', FAIRSEQ, ': leave it out, `cross_attend=True` adds it'),
    Word('block_fn mlp_layer attn_layer embed_layer embed_norm_layer',
         TIMM, ': layers are changed by keywords of the stack, or by features'),
    Word('dynamic_img_size', TIMM, "interpolate_pos_emb='bicubic'"),
    Word('pretrained checkpoint_path', TIMM, ': `pretrained.load` loads a folder, or a repository of a hub'),
    Word('new_decoder_architecture num_ln_in_parallel_attn reorder_and_upcast_attn '
         'router_jitter_noise scale_attn_by_inverse_layer_idx use_weighted_layer_sum apply_spec_augment '
         'adaptive_softmax_cutoff quant_noise_pq padding_multiple patch_drop_rate broadcast_dropout decode '
         'deterministic_flash_attn sparse_prediction scale_attn_norm no_embed_class pool_include_prefix '
         'apply_query_key_layer_scaling adaptive_input cutoffs div_val untie_r '
         'attn_temperature_tuning topk_method seq_aux '
         'ep_size fused_bias_fc dwconv return_residual residual_in_fp32 fused_add_norm rotary_emb_interleaved '
         'attn_uses_sequence_id attn_only n_params use_attn_scale residual_norm_style tokenizer_name supports_masking '
         'mask_zero attention_axes max_norm scale_grad_by_freq sparse ffn_config multi_head_config feedforward_config '
         'position_encoding_config attention_chunk_size pooler_dropout layer_idx name scan_layers trainable '
         'dynamic_img_pad cross_self_attention qkv_format mask_time_prob mask_feature_prob legacy slow_but_exact '
         'tensor_parallel_size sequence_parallel',
         f'{HF}, {TIMM}, {FAIRSEQ}', ': it has no counterpart here'),
    Word('cls_token_id sep_token_id', HF, ': ids of special tokens are part of the inputs'),
    Word('encoder_layer decoder_layer',
         TORCH, ': a stack builds its layers: `Encoder(dim=..., depth=..., heads=...)`'),
    Word('custom_encoder custom_decoder',
         TORCH, '@EncoderDecoder encoder | @VisionLanguageWrapper decoder | attn_layers'),
    Word('batch_first',
         TORCH, ': leave it out, tensors are (b, n, d): the batch is always first',
         values={False: ': tensors are (b, n, d): transpose them, the batch is always first'}),
    Word('enable_nested_tensor mask_check', TORCH, ': leave it out, padding is given to the call as `mask`'),
    Word('config',
         HF,
         ': keywords are given one by one; `from_config` takes a `config` of this library, `pretrained.load` a folder'),
    Word('num_labels num_classes n_classes num_class nb_classes n_labels nclasses',
         f'{HF}, {TIMM}', '!num_classes | !num_labels | @Classifier num_classes'),
    Word('id2label label2id',
         HF, ': it has no counterpart, the loss follows from the head and its labels'),
    Word('img_size input_resolution image_resolution', TIMM, 'image_size'),
    Word('num_channels in_chans in_channels n_channels num_input_channels input_channels',
         f'{HF}, {TIMM}', 'channels | input_channels'),
    Word('global_pool pool_type pooling pooling_mode classifier_pooling summary_type pooling_type',
         f'{TIMM}, {HF}', 'pool | token | read | average_pool_embed=True', values=POOLS),
    Word('num_reg_tokens reg_tokens n_registers num_registers register_tokens',
         TIMM, 'num_register_tokens | num_memory_tokens'),
    Word('class_token cls_token '
         'num_prefix_tokens',
         TIMM, 'prefix_tokens=1 | use_cls_token=True', values={False: ': leave it out, there is none by default'}),
    Word('use_mask_token', HF, 'mask_token'),
    Word('input_dim input_size in_features feature_dim in_dim d_input n_features input_features dim_input '
         'input_channels',
         TORCH, 'dim_in | dim_input'),
    Word('output_dim output_size out_features out_dim d_output d_out target_dim out_channels', TORCH, 'dim_out'),
    Word('sr sampling_rate sampling_freq', 'librosa', 'sample_rate | : it is `sample_rate` of LogMelSpectrogram'),
    Word('num_mel_bins num_mels mel_bins', HF, 'n_mels'),
    Word('pad_token_id padding_idx pad_id pad_idx pad_index pad_token padding_value pad_token_idx',
         f'{HF}, {TORCH}', 'pad_value | pad_token_id | pad_id'),
    Word('ignore_idx label_ignore_index ignore_id ignore_label ignored_index', 'other libraries', 'ignore_index'),
    Word('mask_token_id mask_id mask_idx mask_token_index', HF, 'mask_token_id | mask_id'),
    Word('mlm_probability mlm_prob masking_ratio mask_ratio mask_probability masked_lm_prob', HF, 'mask_prob'),
    Word('class_weight weights_of_classes loss_weights ce_weight weight', TORCH, 'class_weights'),
    Word('label_smoothing_factor smoothing label_smoothing_eps', HF, 'label_smoothing'),
    Word('initializer_range init_std initializer_factor init_scale weight_init std init_method_std init_method '
         'kernel_init bias_init weight_init_std fix_init initializer kernel_initializer bias_initializer '
         'embeddings_initializer kernel_regularizer',
         HF, ': weights are drawn when a model is built; `presets.initialise_(model, std=0.02)` draws them anew'),
    Word('device init_device', TORCH, ': move the model, `.to(device)`, or build it inside `with torch.device(...)`'),
    Word('device_map', HF, ': `.to(device)` moves a model; `pretrained.load` has a `device_map`'),
    Word('dtype torch_dtype precision param_dtype params_dtype fp16 bf16 float16 bfloat16',
         f'{TORCH}, {HF}',
         ': convert the model, `.to(torch.bfloat16)`, or set `torch.set_default_dtype` before it is built'),
    Word('architectures model_type transformers_version pretraining_tp use_return_dict pruned_heads reuse',
         HF, ': it describes a file of transformers, see `pretrained.load`: leave it out'),
    Word('r lora_r lora_alpha lora_rank lora_dropout target_modules modules_to_save peft_config use_rslora '
         'use_dora init_lora_weights lora_config',
         PEFT,
         ': adapters are those of peft: `get_peft_model(model, LoraConfig(...))`, layers are ordinary `nn.Linear`'),
    Word('task_type task problem_kind', f'{PEFT}, {HF}', '@finetune head'),
    Word('layerwise_lr_decay llrd layer_decay lr_decay layer_decay_rate', TIMM, '@finetune layer_lr_decay'),
    Word('learning_rate lr base_lr max_lr', HF, '@finetune lr | : it is of the optimizer'),
    Word('freeze_layers frozen_layers freeze_backbone freeze_base', 'other libraries', '@finetune freeze'),
    Word('weight_decay wd decay_rate',
         HF, '!weight_decay | : it is of the optimizer, see `param_groups(model, weight_decay=...)`'),
    Word('no_decay no_decay_bias_params filter_bias_and_bn no_weight_decay_list exclude_from_weight_decay '
         'no_decay_name_list skip_list',
         f'{TIMM}, {HF}', ': leave it out, `param_groups(model)` lets no bias, norm or embedding decay'),
    Word('num_warmup_steps warmup_steps warmup_iters warmup_ratio warmup_epochs warmup_t '
         'warmup_updates warmup_proportion',
         HF, '!warmup | : `schedules.warmup(optimizer, total_steps, warmup=...)` makes a schedule'),
    Word('num_training_steps max_steps max_iters t_total T_max lr_decay_iters total_iters num_updates',
         HF, '!total_steps | : `schedules.warmup(optimizer, total_steps)` makes a schedule'),
    Word('lr_scheduler_type scheduler_type schedule lr_scheduler '
         'decay_style', HF, '!decay | : see `schedules.warmup`'),
    Word('min_lr_ratio min_lr_rate lr_end_ratio eta_min_ratio', HF, '!min_ratio | : see `schedules.warmup`'),
    Word('betas optim optimizer num_train_epochs max_epochs epochs batch_size per_device_train_batch_size accelerator '
         'devices strategy gradient_clip_val max_grad_norm grad_clip accumulate_grad_batches '
         'gradient_accumulation_steps',
         f'{HF}, Lightning', ': it is of the optimizer or the trainer'),
    Word('max_num_seqs max_running_requests max_batch_size max_num_requests',
         VLLM, '!max_batch | : it is `max_batch` of PagedEngine'),
    Word('max_queue_size max_waiting_requests max_pending', VLLM, '!max_waiting | : it is of PagedEngine'),
    Word('num_gpu_blocks num_gpu_blocks_override num_kv_blocks', VLLM,
         '!num_blocks | : it is of PagedEngine', note='how many blocks of keys and values there are'),
    Word('kv_block_size page_size', VLLM, '!block_size | : it is of PagedEngine'),
    Word('enforce_eager', VLLM, '!compile={not} | : leave it out, steps are compiled with `compile=True` alone'),
    Word('gpu_memory_utilization enable_prefix_caching enable_chunked_prefill max_num_batched_tokens swap_space '
         'kv_cache_dtype quantization '
         'max_paddings scheduling_policy num_scheduler_steps',
         VLLM, ': it has no counterpart; PagedEngine shares the blocks of equal prefixes'),
    Word('min_freq min_frequence', 'tokenizers', '!min_frequency | : see `x_transformers.tokenizers`'),
    Word('do_lower_case lower_case do_lower uncased', HF, '!lowercase | : see `x_transformers.tokenizers`'),
    Word('additional_special_tokens extra_special_tokens user_defined_symbols',
         HF, '!special_tokens | : see `x_transformers.tokenizers`'),
    Word('iterator corpus files dataset sentences sentence_iterator',
         'tokenizers, SentencePiece', '!texts | : see `x_transformers.tokenizers`'),
    Word('add_special_tokens add_bos_token '
         'add_eos_token',
         HF, '@encode bos={value}, eos={value} | @pad_batch bos={value}, eos={value} '
         '| : see `encode` of the tokenizer'),
    Word('return_tensors padding truncation pad_to_multiple_of return_attention_mask return_token_type_ids',
         HF, ': `encode` gives a list, `pad_batch` a tensor of padded ids and its mask'),
)  # fmt: skip
