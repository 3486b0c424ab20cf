"""Every keyword and every input of x-transformers 2.31.10 exists here, with the same default."""

import inspect

import pytest

from x_transformers import Attention, AttentionLayers, FeedForward
from x_transformers.core.routing import SETTLED

# keyword: default; ... is required
ATTENTION = {
    'dim': ...,
    'dim_head': 64,
    'dim_context': None,
    'heads': 8,
    'causal': False,
    'flash': False,
    'pre_talking_heads': False,
    'post_talking_heads': False,
    'pre_scale_post_talking_heads': False,
    'head_scale': False,
    'sparse_topk': None,
    'sparse_topk_straight_through': False,
    'num_mem_kv': 0,
    'dropout': 0.0,
    'sublayer_dropout': 0.0,
    'on_attn': False,
    'gate_value_heads': False,
    'swiglu_values': False,
    'gate_values': False,
    'gate_values_rank': None,
    'gate_values_headwise': False,
    'output_gate': False,
    'output_gate_rank': None,
    'output_gate_headwise': False,
    'low_rank_silu_gates': True,
    'zero_init_output': False,
    'output_proj_depth': None,
    'hard': False,
    'max_attend_past': None,
    'qk_norm': False,
    'qk_norm_groups': 1,
    'qk_norm_scale': 10,
    'qk_norm_dim_scale': False,
    'qk_rmsnorm': False,
    'k_rmsnorm': False,
    'value_rmsnorm': False,
    'l2_distance': False,
    'sigmoid': False,
    'gumbel_softmax': False,
    'gumbel_softmax_temp': 1.0,
    'gumbel_softmax_hard': True,
    'selective': False,
    'cog_signed': False,
    'custom_attn_fn': None,
    'hybrid_module': None,
    'hybrid_mask_kwarg': None,
    'hybrid_fold_axial_dim': None,
    'hybrid_learned_mix': False,
    'hybrid_kwargs': None,
    'hybrid_merge': 'mean',
    'hybrid_factors': None,
    'one_kv_head': False,
    'kv_heads': None,
    'value_dim_head': None,
    'dim_out': None,
    'add_zero_kv': False,
    'head_learned_sink': False,
    'rotate_num_heads': None,
    'data_dependent_alibi': False,
    'data_dependent_alibi_per_row': False,
    'data_dependent_alibi_per_row_dim_head': 8,
    'data_dependent_alibi_kwargs': {},
    'use_rel_proj_pos_bias': False,
    'rel_proj_num_distance_basis': 16,
    'rel_proj_max_dist': 1024,
    'use_cope': False,
    'cope_max_pos': 16,
    'cope_soft_onehot_pos': False,
    'cope_talking_heads': False,
    'softclamp_logits': False,
    'logit_softclamp_value': 50.0,
    'learned_value_residual_mix': False,
    'orthog_projected_values': False,
    'orthog_projected_values_per_head': False,
    'laser': False,
    'laser_softclamp_value': 15.0,
    'qkv_receive_diff_residuals': False,
    'project_out': None,
    'use_latent_q': False,
    'dim_latent_q': None,
    'use_latent_kv': False,
    'dim_latent_kv': None,
    'latent_rope_subheads': None,
    'onnxable': False,
    'inverted_attention': False,
    'attend_sdp_kwargs': {'enable_flash': True, 'enable_math': True, 'enable_mem_efficient': True},
    'flash_pack_seq': False,
}
FEEDFORWARD = {
    'dim': ...,
    'dim_out': None,
    'mult': 4,
    'glu': False,
    'glu_mult_bias': False,
    'swish': False,
    'relu_squared': False,
    'solu': False,
    'custom_activation': None,
    'post_act_ln': False,
    'dropout': 0.0,
    'sublayer_dropout': 0.0,
    'no_bias': False,
    'zero_init_output': False,
    'output_proj_depth': None,
    'softclamp_value': None,
    'glu_softclamp': False,
    'glu_gate_softclamp_value': 4.0,
    'glu_up_softclamp_value': 25.0,
}
STACK = {
    'dim': ...,
    'depth': None,
    'heads': 8,
    'causal': False,
    'cross_attend': False,
    'only_cross': False,
    'only_attn': False,
    'use_scalenorm': False,
    'use_rmsnorm': False,
    'use_dynamic_tanh': False,
    'use_derf': False,
    'dynamic_tanh_init_alpha': 1.0,
    'use_simple_rmsnorm': False,
    'use_adaptive_layernorm': False,
    'use_adaptive_rmsnorm': False,
    'use_adaptive_layerscale': False,
    'norm_add_unit_offset': True,
    'dim_condition': None,
    'adaptive_condition_mlp': False,
    'adaptive_condition_mlp_expansion': 4,
    'alibi_pos_bias': False,
    'alibi_num_heads': None,
    'rel_pos_bias': False,
    'rel_pos_num_buckets': 32,
    'rel_pos_max_distance': 128,
    'dynamic_pos_bias': False,
    'dynamic_pos_bias_log_distance': False,
    'dynamic_pos_bias_mlp_depth': 2,
    'dynamic_pos_bias_norm': False,
    'rotary_pos_emb': False,
    'rotary_emb_dim': None,
    'rotary_xpos': False,
    'rotary_interpolation_factor': 1.0,
    'rotary_xpos_scale_base': 512,
    'rotary_base_rescale_factor': 1.0,
    'rotate_num_heads': None,
    'polar_pos_emb': False,
    'polar_bias_uniform_init': False,
    'weight_tie_layers': False,
    'custom_layers': None,
    'layers_execute_order': None,
    'sandwich_coef': None,
    'par_ratio': None,
    'residual_attn': False,
    'cross_residual_attn': False,
    'macaron': False,
    'pre_norm': True,
    'pre_norm_has_final_norm': True,
    'pre_and_post_norm': False,
    'attn_aggregated_residuals': False,
    'attn_aggregated_residual_kwargs': {},
    'gate_residual': False,
    'orthog_residual': False,
    'mv_split_residual': False,
    'gated_multi_residual': False,
    'scale_residual': False,
    'scale_residual_constant': 1.0,
    'depth_scale_residual': False,
    'shift_tokens': 0,
    'sandwich_norm': False,
    'softclamp_output': False,
    'softclamp_output_value': 30.0,
    'zero_init_branch_output': False,
    'layer_dropout': 0.0,
    'cross_attn_tokens_dropout': 0.0,
    'disable_abs_pos_emb': None,
    'use_layerscale': False,
    'layerscale_init_value': 0.0,
    'unet_skips': False,
    'integrate_layers': False,
    'layer_integrate_use_softmax': True,
    'num_residual_streams': 1,
    'qkv_receive_diff_residuals': False,
    'reinject_input': False,
    'learned_reinject_input_gate': False,
    'add_value_residual': False,
    'learned_value_residual_mix': True,
    'rel_pos_kwargs': {},
    'residual_fn_kwargs': {},
    'hyper_conn_sinkhorn_iters': 5,
    'verbose': True,
}

# keywords that earlier releases had
EARLIER = {
    Attention: ('talking_heads', 'use_entmax15', 'collab_heads', 'collab_compression'),
    AttentionLayers: ('use_rezero', 'position_infused_attn', 'resi_dual', 'resi_dual_scale'),
}
ATTENTION_INPUTS = """
    x context mask context_mask attn_mask rel_pos attn_bias rotary_pos_emb context_rotary_pos_emb
    polar_pos_emb pos prev_attn mem mem_mask return_intermediates cache value_residual additional_key_values
    additional_key_value_mask kv_input_residual q_delta k_delta v_delta o_delta attn_delta
    flash_pack_seq_kwargs causal
""".split()
STACK_INPUTS = """
    x context mask context_mask attn_mask self_attn_kv_mask mems mem_masks seq_start_pos seq_pos_offset cache
    input_not_include_cache cache_age return_hiddens return_gumbel_log_probs rotary_pos_emb polar_pos_emb pos
    context_pos attn_bias deep_embeds_and_ids self_attn_additional_kv additional_kv_mask detach_additional_kv
    route_additional_kv_to_top condition in_attn_cond layers_execute_order repeat_blocks
    self_attn_kv_residuals cross_attn_kv_residuals flash_pack_seq_kwargs flash_pack_seq_context_kwargs causal
    transform_block_inputs
""".split()

# other defaults here, and why
DIFFERENT = {
    (Attention, 'flash'): (None, 'None is the fastest kernel that is exact for the call; False forces the formula'),
    (AttentionLayers, 'rel_pos_kwargs'): (None, 'no mutable default'),
    (AttentionLayers, 'residual_fn_kwargs'): (None, 'no mutable default'),
    (AttentionLayers, 'attn_aggregated_residual_kwargs'): (None, 'no mutable default'),
    (Attention, 'data_dependent_alibi_kwargs'): (None, 'no mutable default'),
}
CLASSES = {Attention: ATTENTION, FeedForward: FEEDFORWARD, AttentionLayers: STACK}


@pytest.mark.parametrize('cls', CLASSES)
def test_keywords(cls):
    declared = cls.accepted()
    for name, default in CLASSES[cls].items():
        assert name in declared, f'{cls.__name__} has no `{name}`'
        assert declared[name].doc, f'`{name}` says nothing'
        own = inspect.Parameter.empty if default is ... else default
        found = declared[name].default
        if found != own or type(found) is not type(own):
            known = (cls, name) in DIFFERENT and found == DIFFERENT[cls, name][0]
            assert known, f'`{name}`: {found!r} here, {own!r} there'


@pytest.mark.parametrize(('cls', 'name'), [(cls, name) for cls, names in EARLIER.items() for name in names])
def test_keyword_of_earlier_releases(cls, name):
    assert name in cls.accepted()


def test_keywords_of_branches_reach_them_through_the_stack():
    known = AttentionLayers.accepted()
    wanted = {f'ff_{name}' for name in FEEDFORWARD if name not in SETTLED['f']}
    wanted |= {f'attn_{name}' for name in ATTENTION if name not in SETTLED['a']}
    wanted |= {f'cross_attn_{name}' for name in ATTENTION if name not in SETTLED['c']}
    assert wanted <= set(known)


@pytest.mark.parametrize(
    ('cls', 'names'), [(Attention, ATTENTION_INPUTS), (AttentionLayers, STACK_INPUTS)], ids=['Attention', 'stack']
)
def test_inputs(cls, names):
    declared = {name for name, p in inspect.signature(cls.forward).parameters.items() if p.kind is not p.VAR_KEYWORD}
    taken = {name for feature in cls.catalogue for name in feature.call_inputs} | {'pos', 'attn_bias'}
    assert not [name for name in names if name not in declared | taken]


def test_differences_are_still_differences():
    for (cls, name), (here, why) in DIFFERENT.items():
        assert cls.accepted()[name].default == here and why
        assert CLASSES[cls][name] != here
