"""Cases for `tests/test_parity.py`: several keywords at a time, whose numbers x-transformers 2.31.10 gives.

    pip install --no-deps --target FOLDER x-transformers==2.31.10       # and einops, einx, loguru, torch-einops-utils
    python parity_cases.py FOLDER parity.npz

Keywords for which that release is wrong are left out: there the right numbers are tested, against their formulas.
"""

from __future__ import annotations

import pathlib
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from golden import Golden

CASES: dict[str, tuple[str, str]] = {}


def stack(
    name: str, flags: str = '', call: str = 'model(x)', kind: str = 'Decoder', depth: int | None = 2, heads: int = 2
):
    """A bare stack."""
    CASES[name] = (
        f'{kind}(dim=16, depth={depth}, heads={heads}, attn_dim_head=8{", " + flags if flags else ""})',
        call,
    )


def model(
    name: str,
    flags: str = '',
    wrapper: str = '',
    call: str = 'model(ids)',
    kind: str = 'Decoder',
    depth: int = 2,
    heads: int = 2,
):
    """A token model."""
    CASES[name] = (
        f'TransformerWrapper(num_tokens=12, max_seq_len=16, {wrapper + ", " if wrapper else ""}'
        f'attn_layers={kind}(dim=16, depth={depth}, heads={heads}, attn_dim_head=8{", " + flags if flags else ""}))',
        call,
    )


def attention(name: str, flags: str = '', call: str = 'model(x)', heads: int = 2):
    CASES[name] = (f'Attention(dim=16, heads={heads}, dim_head=8{", " + flags if flags else ""})', call)


def feedforward(name: str, flags: str, call: str = 'model(x)'):
    CASES[name] = (f'FeedForward(16, {flags})', call)


MASKED = 'model(x, mask=mask)[mask]'
CROSS = 'model(x, context=context, context_mask=context_mask)'

# attention alone

attention('attn_causal_zero_kv_clamp', 'causal=True, add_zero_kv=True, softclamp_logits=True, logit_softclamp_value=3.')
attention('attn_mem_kv_kv_heads', 'num_mem_kv=3, kv_heads=2, causal=True, head_scale=True', heads=4)
attention('attn_one_kv_value_width', 'one_kv_head=True, value_dim_head=5, dim_out=12, on_attn=True')
attention('attn_talking_both', 'pre_talking_heads=True, post_talking_heads=True, softclamp_logits=True')
attention('attn_talking_scale', 'pre_scale_post_talking_heads=True, num_mem_kv=2, head_scale=True', heads=4)
attention('attn_sparse_mask', 'sparse_topk=3, sparse_topk_straight_through=True', MASKED.replace('x,', 'x,', 1))
attention('attn_hard_causal', 'hard=True, causal=True, num_mem_kv=1, qk_rmsnorm=True')
attention('attn_sigmoid_bias', 'sigmoid=True, head_scale=True', 'model(x, attn_bias=noise[0])')
attention('attn_l2_rmsnorm', 'l2_distance=True, value_rmsnorm=True, kv_heads=2', heads=2)
attention('attn_k_rmsnorm', 'k_rmsnorm=True, value_rmsnorm=True, gate_value_heads=True, causal=True')
attention('attn_qk_norm_groups_mem', 'qk_norm=True, qk_norm_groups=2, qk_norm_scale=4, num_mem_kv=2, causal=True')
attention('attn_qk_norm_dim_scale', 'qk_norm=True, qk_norm_dim_scale=True, kv_heads=2, causal=True', heads=4)
attention('attn_gates', 'gate_values=True, output_gate=True, gate_value_heads=True')
attention('attn_gates_swiglu', 'gate_values=True, swiglu_values=True, output_gate=True, output_gate_headwise=True')
attention('attn_gates_rank', 'gate_values=True, gate_values_rank=3, output_gate=True, output_gate_rank=2')
attention('attn_gates_rank_linear', 'gate_values=True, gate_values_rank=3, low_rank_silu_gates=False')
attention('attn_gates_headwise', 'gate_values=True, gate_values_headwise=True, on_attn=True, value_dim_head=6')
attention('attn_selective_zero', 'selective=True, causal=True, head_scale=True')
attention('attn_cog', 'cog_signed=True, causal=True, post_talking_heads=True')
attention('attn_cog_mem', 'cog_signed=True, num_mem_kv=2, gate_values=True', MASKED)
attention('attn_sink', 'head_learned_sink=True, causal=True, softclamp_logits=True, num_mem_kv=1')
attention('attn_laser', 'laser=True, laser_softclamp_value=4., num_mem_kv=2, causal=True')
attention('attn_laser_heads', 'laser=True, kv_heads=1, value_rmsnorm=False, gate_values=True', MASKED)
attention('attn_cope', 'use_cope=True, cope_max_pos=5, causal=True, head_scale=True')
attention('attn_cope_talking', 'use_cope=True, cope_max_pos=4, cope_talking_heads=True, causal=True')
attention('attn_ddalibi', 'data_dependent_alibi=True, causal=True, head_scale=True')
attention('attn_ddalibi_both_ways', 'data_dependent_alibi=True, value_dim_head=6')
attention(
    'attn_ddalibi_rows',
    'data_dependent_alibi=True, data_dependent_alibi_per_row=True, causal=True, '
    'data_dependent_alibi_per_row_dim_head=3',
)
attention(
    'attn_rel_proj', 'use_rel_proj_pos_bias=True, rel_proj_num_distance_basis=4, rel_proj_max_dist=16, causal=True'
)
attention('attn_latent_q_kv', 'use_latent_q=True, dim_latent_q=6, use_latent_kv=True, dim_latent_kv=5, causal=True')
attention('attn_latent_gates', 'use_latent_kv=True, dim_latent_kv=7, gate_values=True, num_mem_kv=2, kv_heads=1')
attention('attn_hybrid', 'hybrid_module=nn.GRU(16, 16, batch_first=True), hybrid_fold_axial_dim=1, causal=True')
attention(
    'attn_hybrid_mix',
    'hybrid_module=nn.GRU(16, 16, batch_first=True), hybrid_fold_axial_dim=3, hybrid_learned_mix=True',
)
attention('attn_inverted', 'inverted_attention=True, head_scale=True')
attention('attn_custom_fn', 'custom_attn_fn=torch.nn.Softplus(), gate_values=True', 'model(x, attn_bias=noise[0])')
attention('attn_onnxable', 'onnxable=True, causal=True, num_mem_kv=2')
attention('attn_past', 'max_attend_past=2, causal=True, kv_heads=1')
attention('attn_flash', 'flash=True, causal=True, num_mem_kv=2, qk_rmsnorm=True', heads=4)
attention('attn_flash_cross', 'flash=True, dim_context=16, gate_values=True', CROSS)
attention('attn_cross_width', 'dim_context=10, num_mem_kv=2, kv_heads=1', 'model(x, context=context[..., :10])')
attention('attn_no_projection', 'project_out=False, value_dim_head=8, head_scale=True')
attention('attn_one_head', 'project_out=True, value_dim_head=4', heads=1)
attention('attn_masks', 'num_mem_kv=0, head_scale=True', 'model(x, attn_mask=holes, mask=mask)[mask]')
attention('attn_mem', 'causal=True, qk_norm=True', 'model(x, mem=y[:, :4])')
attention('attn_mem_mask', 'gate_value_heads=True', 'model(x, mem=y[:, :4], mem_mask=mask[:, 3:7], mask=mask)[mask]')
attention('attn_prev', 'softclamp_logits=True', 'model(x, prev_attn=noise)')
attention(
    'attn_value_residual',
    'learned_value_residual_mix=True',
    'model(x, value_residual=y.view(2, 9, 2, 8).transpose(1, 2))',
)
attention(
    'attn_additional_kv',
    'causal=True, gate_values=True',
    'model(x, additional_key_values=(noise[..., :3, :8], noise[..., 3:6, :8]), additional_key_value_mask=mask[:, 5:8])',
)
attention('attn_kv_input_residual', 'causal=True', 'model(x, kv_input_residual=y)')
attention(
    'attn_deltas',
    'causal=True, num_mem_kv=1',
    'model(x, q_delta=y, k_delta=y.flip(1), v_delta=y.flip(2), o_delta=y.roll(1, 1), attn_delta=noise[..., :1])',
)
attention('attn_causal_off', 'causal=True, head_scale=True', 'model(x, causal=False)')
attention(
    'attn_intermediates',
    'causal=True, post_talking_heads=True',
    '(lambda kept: (kept.post_softmax_attn, kept.values))(model(x, return_intermediates=True)[1])',
)
attention(
    'attn_rotary_given',
    'rotate_num_heads=1, causal=True, qk_norm=True',
    'model(x, rotary_pos_emb=(y[:1, :, :1].expand(1, 9, 4), 1.))',
)

# feedforward alone

feedforward('ff_glu_all', 'mult=3, glu=True, glu_mult_bias=True, post_act_ln=True, dim_out=10')
feedforward('ff_glu_swish_no_bias', 'glu=True, swish=True, no_bias=True')
feedforward('ff_glu_clamps', 'glu=True, glu_softclamp=True, glu_gate_softclamp_value=0.7, glu_up_softclamp_value=1.5')
feedforward('ff_relu_squared', 'relu_squared=True, post_act_ln=True, no_bias=True, mult=2.5')
feedforward('ff_solu', 'solu=True, sublayer_dropout=0.3, dropout=0.2')
feedforward('ff_softclamp', 'softclamp_value=0.8, swish=True, mult=1')
feedforward('ff_custom', 'custom_activation=torch.nn.Tanh(), glu=True, glu_mult_bias=True')
feedforward('ff_depth_init', 'output_proj_depth=4, zero_init_output=False')

# stacks: norms and residuals

stack('rmsnorm_sandwich_residual', 'use_rmsnorm=True, sandwich_norm=True, scale_residual=True')
stack('scalenorm_post', 'use_scalenorm=True, pre_norm=False, scale_residual_constant=0.6', MASKED, 'Encoder')
stack('simple_rmsnorm_clamp', 'use_simple_rmsnorm=True, softclamp_output=True, softclamp_output_value=1.5')
stack('dynamic_tanh', 'use_dynamic_tanh=True, dynamic_tanh_init_alpha=0.8, ff_glu=True')
stack('derf', 'use_derf=True, ff_swish=True, attn_gate_values=True')
stack('pre_and_post', 'pre_and_post_norm=True, use_rmsnorm=True, attn_qk_norm=True')
stack('no_final_layerscale', 'pre_norm_has_final_norm=False, use_layerscale=True, layerscale_init_value=0.4')
stack('plain_gains', 'norm_add_unit_offset=False, use_layerscale=True, sandwich_norm=True, macaron=True')
stack(
    'adaptive_all',
    'use_adaptive_layernorm=True, use_adaptive_layerscale=True, dim_condition=6, adaptive_condition_mlp=True, '
    'adaptive_condition_mlp_expansion=2',
    'model(x, condition=y[:, :, :6])',
)
stack(
    'adaptive_rms_cross',
    'use_adaptive_rmsnorm=True, dim_condition=6, cross_attend=True, cross_attn_dim_context=10',
    'model(x, context=context[..., :10], condition=y[:, 0, :6])',
)
stack('gru_residual', 'gate_residual=True, use_rmsnorm=True, shift_tokens=1')
stack('gru_residual_scaled', 'gate_residual=True, scale_residual=True, scale_residual_constant=0.8, macaron=True')
stack('scale_residual_number', 'scale_residual=0.5, use_layerscale=True')
stack('depth_scale_number', 'depth_scale_residual=0.5, ff_relu_squared=True')
stack('depth_scale_init', 'depth_scale_residual=True, ff_glu=True, attn_kv_heads=1')
stack('integrate_views', 'integrate_layers=True, qkv_receive_diff_residuals=True')
stack('integrate_relu', 'integrate_layers=True, layer_integrate_use_softmax=False, use_rmsnorm=True, ff_glu=True')
stack(
    'aggregated', 'attn_aggregated_residuals=True, attn_aggregated_residual_kwargs=dict(lora_rank=4), use_rmsnorm=True'
)
stack('gated_multi', 'gated_multi_residual=True, num_residual_streams=2, residual_fn_kwargs=dict(read_gate_rank=4)')
stack('unet', 'unet_skips=True, attn_qk_norm=True, use_rmsnorm=True', depth=4)
stack('reinject_rotary', 'reinject_input=True, learned_reinject_input_gate=True, rotary_pos_emb=True, ff_glu=True')
stack('in_attn_cond', 'learned_reinject_input_gate=True, use_rmsnorm=True', 'model(x, in_attn_cond=y)')
stack('value_residual_gates', 'add_value_residual=True, attn_gate_values=True, attn_head_scale=True', depth=3)
stack('value_residual_flash', 'add_value_residual=True, learned_value_residual_mix=False, attn_flash=True', depth=3)
stack('residual_attn_alibi', 'residual_attn=True, alibi_pos_bias=True, attn_pre_talking_heads=True')
stack(
    'cross_residual_attn',
    'cross_attend=True, cross_residual_attn=True, residual_attn=True, cross_attn_gate_values=True',
    CROSS,
)

# stacks: layout

stack('sandwich_par', 'sandwich_coef=1, ff_glu=True, use_rmsnorm=True', depth=3)
stack('par_ratio', 'par_ratio=3, ff_post_act_ln=True, attn_head_scale=True', depth=4)
stack('macaron_cross', 'macaron=True, cross_attend=True, ff_swish=True', CROSS)
stack('tied_layers', 'weight_tie_layers=True, rotary_pos_emb=True, ff_no_bias=True', depth=3)
stack('only_attn', 'only_attn=True, attn_on_attn=True, alibi_pos_bias=True')
stack('execute_order', '', 'model(x, layers_execute_order=(0, 1, 0, 1, 2, 3))')
stack('repeat_blocks', 'use_rmsnorm=True', 'model(x, repeat_blocks=(1, 2))')
stack('shift_tuple', 'shift_tokens=(1, 0, 2, 1), ff_glu=True, use_layerscale=True')
stack('shift_encoder', 'shift_tokens=(2, 0, 1, 0), use_rmsnorm=True', 'model(x)', 'Encoder')
stack('per_layer', 'ff_mult=(1, 3), attn_num_mem_kv=(1, 2), attn_sparse_topk=(3, 4)')
stack('cross_flags', 'cross_attend=True, cross_attn_num_mem_kv=2, attn_kv_heads=1, cross_attn_on_attn=True', CROSS)
stack('only_cross', 'cross_attend=True, only_cross=True, attn_qk_norm=True, use_scalenorm=True', CROSS, 'Encoder')
stack('cross_attender', 'ff_glu=True, cross_attn_gate_value_heads=True', CROSS, 'CrossAttender')
stack(
    'prefix', 'attn_kv_heads=1, alibi_pos_bias=True', 'model(x, prefix_attn_len=torch.tensor([3, 5]))', 'PrefixDecoder'
)
stack('per_head_mask', 'attn_head_scale=True', 'model(x, attn_mask=holes.expand(2, 9, 9))', 'Encoder')
stack('kv_mask', 'attn_num_mem_kv=1, ff_glu=True', 'model(x, self_attn_kv_mask=mask)', 'Encoder')
stack('bias_given', 'attn_softclamp_logits=True, use_rmsnorm=True', 'model(x, attn_bias=noise[0])')
stack('causal_off', 'rotary_pos_emb=True, attn_gate_values=True', 'model(x, causal=False)')
stack('hiddens', 'macaron=True, ff_glu=True', 'model(x, return_hiddens=True)[1].layer_hiddens')
stack('dropouts_idle', 'layer_dropout=0.3, attn_dropout=0.2, ff_dropout=0.1, cross_attn_tokens_dropout=0.2')
stack(
    'transformed_blocks',
    'ff_glu=True, use_rmsnorm=True',
    'model(x, transform_block_inputs=lambda block, t: t * 2 if block == 2 else t)',
)
stack('kv_residuals', 'use_rmsnorm=True', 'model(x, self_attn_kv_residuals=torch.stack((y, y.flip(1))))')

# stacks: positions

stack('rotary_part_kv_heads', 'rotary_pos_emb=True, rotary_emb_dim=6, attn_kv_heads=2, attn_qk_norm=True', heads=4)
stack('rotary_scaled', 'rotary_pos_emb=True, rotary_base_rescale_factor=3., rotary_interpolation_factor=2.')
stack('rotary_pos_batch', 'rotary_pos_emb=True, rotate_num_heads=1, use_rmsnorm=True', 'model(x, pos=pos)')
stack(
    'rotary_context_pos',
    'rotary_pos_emb=True, cross_attend=True',
    'model(x, context=context, context_pos=pos[0, :7] * 2)',
)
stack('xpos_short', 'rotary_xpos=True, rotary_xpos_scale_base=32, rotary_emb_dim=8, ff_no_bias=True')
stack('alibi_part_mem', 'alibi_pos_bias=True, alibi_num_heads=2, attn_num_mem_kv=2, attn_flash=True', heads=4)
stack('alibi_pos', 'alibi_pos_bias=True, ff_relu_squared=True', 'model(x, pos=pos)', 'Encoder')
stack('t5_mem', 'rel_pos_bias=True, rel_pos_num_buckets=8, rel_pos_max_distance=10, attn_num_mem_kv=2')
stack('t5_encoder', 'rel_pos_bias=True, rel_pos_num_buckets=6, rel_pos_max_distance=7, ff_glu=True', MASKED, 'Encoder')
stack('dynamic_deep', 'dynamic_pos_bias=True, dynamic_pos_bias_mlp_depth=3, dynamic_pos_bias_log_distance=True')
stack('dynamic_norm', 'dynamic_pos_bias=True, dynamic_pos_bias_norm=True, attn_qk_norm=True', MASKED, 'Encoder')
stack('polar_norm', 'polar_pos_emb=True, attn_qk_rmsnorm=True, ff_glu=True')
stack('left_padding', 'rotary_pos_emb=True, attn_kv_heads=1', 'model(x, seq_start_pos=torch.tensor([0, 3]))[:, 3:]')
stack('mems', 'rotary_pos_emb=True, use_rmsnorm=True', 'model(x, mems=[y[:, :4], y[:, 4:8]])')
stack('mems_alibi', 'alibi_pos_bias=True, attn_gate_values=True', 'model(x, mems=[y[:, :3], y[:, 3:6]])')
stack('mem_masks', 'ff_glu=True', 'model(x, mems=[y[:, :4]] * 2, mem_masks=[mask[:, 3:7]] * 2, mask=mask)[mask]')

# further keywords

attention(
    'attn_sdp', 'flash=True, attend_sdp_kwargs=dict(enable_flash=False, enable_math=True, enable_mem_efficient=False)'
)
attention(
    'attn_context_rotary',
    'qk_norm=True',
    'model(x, context=context, rotary_pos_emb=(y[:1, :, :1].expand(1, 9, 4), 1.), '
    'context_rotary_pos_emb=(y[:1, :7, 1:2].expand(1, 7, 4), 1.))',
)
stack('custom_layers', "custom_layers=('a', 'f', 'f', 'a'), use_rmsnorm=True", depth=None)
stack('zero_init', 'zero_init_branch_output=True, ff_glu=True, attn_gate_values=True')
stack('no_absolute', 'disable_abs_pos_emb=True, verbose=False, ff_no_bias=True')
stack('alibi_slopes', 'alibi_pos_bias=True, rel_pos_kwargs=dict(slopes=[0.3, 0.01]), ff_swish=True')
stack(
    'rope_subheads',
    'attn_use_latent_kv=True, attn_dim_latent_kv=6, attn_latent_rope_subheads=1, rotary_pos_emb=True, rotary_emb_dim=8',
)
stack(
    'additional_kv',
    'ff_glu=True',
    'model(x, self_attn_additional_kv=[(noise[..., :3, :8], noise[..., 3:6, :8])], additional_kv_mask=mask[:, 5:8])',
)
stack(
    'additional_kv_of_another', 'use_rmsnorm=True', 'model(x, self_attn_additional_kv=model(y, return_hiddens=True)[1])'
)
stack(
    'deep_embeds',
    'ff_glu=True, use_rmsnorm=True',
    'model(x, deep_embeds_and_ids=(torch.cat((x, y)).flatten()[:384].view(12, 2, 16), ids))',
)
stack('position_offset', 'rotary_xpos=True, attn_kv_heads=1', 'model(x, seq_pos_offset=5)')
stack(
    'cached_stack',
    'alibi_pos_bias=True, attn_value_dim_head=6',
    'model(x, cache=model(x[:, :8], return_hiddens=True)[1])',
)
stack('uncut_cache', 'ff_glu=True', 'model(x[:, 8:], cache=model(x[:, :8], return_hiddens=True)[1], cache_age=1)')
stack(
    'cross_kv_residuals',
    'cross_attend=True, use_rmsnorm=True',
    'model(x, context=y, cross_attn_kv_residuals=torch.stack((x, x.flip(1))))',
)
stack('kept_values', 'attn_kv_heads=1, macaron=True', 'model(x, return_hiddens=True)[1].attn_intermediates[0].values')

# token models

model('lm_rich', 'rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_kv_heads=1, attn_qk_norm=True')
model('lm_embedding_width', 'ff_swish=True', 'emb_dim=10, post_emb_norm=True, logits_dim=5')
model('lm_tied', 'use_scalenorm=True', 'tie_embedding=True, tie_embedding_scale=0.5')
model('lm_l2', 'use_dynamic_tanh=True', 'l2norm_embed=True, num_memory_tokens=1, use_abs_pos_emb=True')
model('lm_sinusoidal', 'attn_head_scale=True', 'scaled_sinu_pos_emb=True, num_output_heads=2')
model(
    'lm_memory',
    'alibi_pos_bias=True',
    'num_memory_tokens=3, use_abs_pos_emb=False',
    'model(ids, mask=mask)[mask]',
    'Encoder',
)
model('lm_memory_inside', 'rotary_pos_emb=True', 'num_memory_tokens=2, memory_tokens_interspersed_every=3')
model('lm_cls_tokens', 'ff_glu=True', 'use_cls_token=True, num_cls_tokens=2, logits_dim=5', kind='Encoder')
model('lm_attn_pool', 'use_rmsnorm=True', 'attn_pool=True, logits_dim=4', 'model(ids, mask=mask)', 'Encoder')
model('lm_average', 'ff_relu_squared=True', 'average_pool_embed=True, logits_dim=4', 'model(ids, mask=mask)', 'Encoder')
model('lm_mixture', 'use_rmsnorm=True', 'mixture_of_softmax=True, mixture_of_softmax_k=2, sigsoftmax_logits=True')
model('lm_recycling', 'ff_glu=True', 'recycling=True, train_max_recycle_steps=3', 'model(ids, recycle_steps=2)')
model(
    'lm_extra_ids',
    '',
    'embed_num_tokens=dict(a=12), emb_dim=10',
    'model(ids, embed_ids=dict(a=other), sum_embeds=y[..., :10])',
)
model(
    'lm_prefix',
    'rotary_pos_emb=True',
    'num_memory_tokens=2',
    'model(ids, prepend_embeds=y[:, :3], prepend_mask=mask[:, 3:6])',
)
model(
    'lm_mems',
    'rel_pos_bias=True, use_rmsnorm=True',
    'max_mem_len=6, shift_mem_down=1',
    'model(ids, mems=model(other, return_mems=True)[1], return_mems=True)',
)
model(
    'lm_cache',
    'rotary_pos_emb=True, attn_kv_heads=1, attn_gate_values=True',
    call='model(ids, cache=model(ids[:, :8], return_intermediates=True)[1])',
)
model(
    'lm_cache_cross',
    'cross_attend=True, attn_num_mem_kv=2, alibi_pos_bias=True',
    call='model(ids, context=context, cache=model(ids[:, :8], context=context, return_intermediates=True)[1])[:, -1:]',
)
model('lm_left_padding', 'use_rmsnorm=True', call='model(ids, seq_start_pos=torch.tensor([0, 4]))[:, 4:]')
model('lm_pos', 'attn_head_scale=True', call='model(ids, pos=pos)')
model('lm_embeddings', 'softclamp_output=True', 'return_only_embed=True', 'model(ids)')
model('lm_maps', 'attn_sigmoid=True, rotary_pos_emb=True', call='model(ids, return_attn=True)')
model('lm_entropies', 'ff_glu=True', call='model(ids, return_logit_entropies=True)[1].logit_entropies')
CASES |= {
    'ar_loss': (
        'AutoregressiveWrapper(TransformerWrapper(num_tokens=12, max_seq_len=16, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, ff_glu=True)), '
        'ignore_index=3)',
        'model(ids)',
    ),
    'ar_greedy': (
        'AutoregressiveWrapper(TransformerWrapper(num_tokens=12, max_seq_len=16, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, alibi_pos_bias=True, attn_kv_heads=1)))',
        'model.generate(ids[:, :4], 8, temperature=0.)',
    ),
    'enc_dec': (
        'XTransformer(dim=16, enc_num_tokens=12, enc_depth=1, enc_heads=2, enc_attn_dim_head=8, enc_max_seq_len=16, '
        'enc_use_rmsnorm=True, dec_num_tokens=12, dec_depth=2, dec_heads=2, dec_attn_dim_head=8, dec_max_seq_len=16, '
        'dec_rotary_pos_emb=True, dec_ff_glu=True)',
        'model(ids, other, mask=mask)',
    ),
    'continuous': (
        'ContinuousTransformerWrapper(dim_in=6, dim_out=5, max_seq_len=16, num_memory_tokens=2, post_emb_norm=True, '
        'attn_layers=Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, ff_glu=True))',
        'model(x[..., :6], mask=mask)[mask]',
    ),
    'continuous_probabilistic': (
        'ContinuousTransformerWrapper(dim_in=6, dim_out=5, max_seq_len=16, probabilistic=True, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True))',
        'model(x[..., :6], prepend_embeds=y[:, :2])',
    ),
    'images': (
        'ViTransformerWrapper(image_size=8, patch_size=4, num_classes=5, num_register_tokens=2, '
        'attn_layers=Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, use_rmsnorm=True, attn_qk_norm=True))',
        'model(image)',
    ),
    'pool': (
        'AttentionPool(dim=16, num_pooled_tokens=3, dim_context=16, heads=2, dim_head=8, add_residual=True)',
        'model(context, mask=context_mask)',
    ),
    'pool_blocks': (
        'AttentionPool(dim=16, num_pooled_tokens=1, dim_context=16, heads=2, dim_head=8, depth=2, squeeze_output=True)',
        'model(context, mask=context_mask)',
    ),
    'multi_input': (
        'MultiInputTransformerWrapper(num_tokens=dict(a=12, b=12), max_seq_len=16, num_memory_tokens=2, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, ff_glu=True))',
        'model(dict(a=ids, b=other))',
    ),
    'xval': (
        'XValTransformerWrapper(num_tokens=12, numerical_token_id=3, max_seq_len=16, '
        'attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, use_rmsnorm=True))',
        'tuple(model(ids, x[..., 0]))',
    ),
}


def main(folder: str, file: str) -> None:
    sys.path.insert(0, folder)
    warnings.simplefilter('ignore')
    golden = Golden(file)
    golden.releases = {}
    for name, (make, call) in CASES.items():
        try:
            golden.record('2.31.10', name, make, call)
        except Exception as error:
            print(f'{name}: left out, {type(error).__name__}: {str(error)[:160]}')
    golden.save()
    print(f'{len(golden.releases["2.31.10"])} cases')


if __name__ == '__main__':
    main(*sys.argv[1:])
