"""What `which_flag_helps.py` switches on: one flag with its recommended options, or one of a family of alternatives.

A variant is named as a user would write it. Its keywords are those of the decoder, of the model around it (behind
`model.`), or of the wrapper that trains it (behind `train.`). What a baseline has already is another value there:
`off` takes the keyword away. A value that is a function is one of the sizes of the models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SEQ_LEN = 256


@dataclass(frozen=True)
class Variant:
    """Keywords of one flag; `only` names the one baseline where it means something."""

    name: str
    family: str
    flags: dict[str, Any] = field(default_factory=dict)
    only: str | None = None


# what a model has before a flag is switched on
BASELINES: dict[str, dict[str, Any]] = {
    'plain': {'model.use_abs_pos_emb': True},
    'modern': dict(rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True),
}
ALTERNATIVES = ('positions', 'norms', 'attention below the square')  # families of which a model has one
NO_POSITIONS = {'rotary_pos_emb': False, 'model.use_abs_pos_emb': False}
GATED = dict(ff_glu=True, ff_swish=True)


def family(name: str, only: str | None = None, **variants: dict[str, Any]) -> list[Variant]:
    return [Variant(own.replace('__', ' '), name, flags, only) for own, flags in variants.items()]


VARIANTS: list[Variant] = [
    *family(
        'positions',
        no__positions=NO_POSITIONS,
        learned=dict(NO_POSITIONS, **{'model.use_abs_pos_emb': True}),
        rotary_pos_emb=dict(NO_POSITIONS, rotary_pos_emb=True),
        rotary_xpos=dict(NO_POSITIONS, rotary_pos_emb=True, rotary_xpos=True),
        rotary__all__of__the__width=dict(
            NO_POSITIONS, rotary_pos_emb=True, rotary_emb_dim=lambda sizes: sizes.dim_head
        ),
        rotary__and__learned={'rotary_pos_emb': True, 'disable_abs_pos_emb': False, 'model.use_abs_pos_emb': True},
        polar_pos_emb=dict(NO_POSITIONS, polar_pos_emb=True),
        alibi_pos_bias=dict(NO_POSITIONS, alibi_pos_bias=True),
        alibi__half__of__the__heads=dict(
            NO_POSITIONS, alibi_pos_bias=True, alibi_num_heads=lambda sizes: sizes.heads // 2
        ),
        rel_pos_bias=dict(NO_POSITIONS, rel_pos_bias=True),
        rel_pos_bias__of__scale__1=dict(NO_POSITIONS, rel_pos_bias=True, rel_pos_bias_scale=1.0),
        dynamic_pos_bias=dict(NO_POSITIONS, dynamic_pos_bias=True),
        shaw_rel_pos=dict(NO_POSITIONS, shaw_rel_pos=True),
        attn_use_cope=dict(NO_POSITIONS, attn_use_cope=True),
        attn_data_dependent_alibi=dict(NO_POSITIONS, attn_data_dependent_alibi=True),
        attn_use_rel_proj_pos_bias=dict(NO_POSITIONS, attn_use_rel_proj_pos_bias=True),
        scaled_sinu_pos_emb=dict(NO_POSITIONS, **{'model.use_abs_pos_emb': True, 'model.scaled_sinu_pos_emb': True}),
        position_infused_attn=dict(NO_POSITIONS, position_infused_attn=True),
        attn_disentangled=dict(NO_POSITIONS, attn_disentangled={'span': 64}),
        xl_rel_pos=dict(NO_POSITIONS, xl_rel_pos=True),
        tupe_pos=dict(NO_POSITIONS, tupe_pos=True, **{'model.use_abs_pos_emb': True}),
        da_pos_rescale=dict(NO_POSITIONS, da_pos_rescale=True),
        coord_pos_emb=dict(NO_POSITIONS, coord_pos_emb=True),
        axial_abs_pos_emb=dict(NO_POSITIONS, **{'model.axial_abs_pos_emb': (32, 64)}),
        rotary__but__every__third__layer=dict(
            NO_POSITIONS, rotary_pos_emb=True, rotary_layers=lambda sizes: [at % 3 != 2 for at in range(sizes.depth)]
        ),
    ),
    *family(
        'norms',
        LayerNorm=dict(use_rmsnorm=False),
        use_rmsnorm=dict(use_rmsnorm=True),
        use_simple_rmsnorm=dict(use_rmsnorm=False, use_simple_rmsnorm=True),
        use_scalenorm=dict(use_rmsnorm=False, use_scalenorm=True),
        use_dynamic_tanh=dict(use_rmsnorm=False, use_dynamic_tanh=True),
        use_derf=dict(use_rmsnorm=False, use_derf=True),
        norm_bias=dict(use_rmsnorm=False, norm_bias=True),
    ),
    *family(
        'where norms stand',
        post_norm=dict(pre_norm=False),
        sandwich_norm=dict(sandwich_norm=True),
        branch_post_norm=dict(branch_post_norm=True),
        pre_and_post_norm=dict(pre_and_post_norm=True),
        resi_dual=dict(pre_norm=False, resi_dual=True),
        no__final__norm=dict(pre_norm_has_final_norm=False),
        post_emb_norm={'model.post_emb_norm': True},
        first_attn_norm__off=dict(first_attn_norm=False),
        block_norm=dict(block_norm=True),
    ),
    *family(
        'residuals',
        gate_residual=dict(gate_residual=True),
        scale_residual=dict(scale_residual=True),
        depth_scale_residual=dict(depth_scale_residual=True),
        use_rezero=dict(use_rezero=True, use_rmsnorm=False),
        use_layerscale=dict(use_layerscale=True),
        residual_attn=dict(residual_attn=True),
        add_value_residual=dict(add_value_residual=True),
        reinject_input=dict(reinject_input=True),
        integrate_layers=dict(integrate_layers=True),
        attn_aggregated_residuals=dict(attn_aggregated_residuals=True),
        orthog_residual=dict(orthog_residual=True),
        mv_split_residual=dict(mv_split_residual=True),
        gated_multi_residual=dict(gated_multi_residual=True, residual_fn_kwargs=dict(read_gate_rank=16)),
        hyper__connections__2=dict(num_residual_streams=2),
        hyper__connections__4=dict(num_residual_streams=4),
        unet_skips=dict(unet_skips=True),
        zero_init_branch_output=dict(zero_init_branch_output=True),
        qkv_receive_diff_residuals=dict(qkv_receive_diff_residuals=True, integrate_layers=True),
    ),
    *family(
        'layout',
        macaron=dict(macaron=True),
        parallel_block=dict(parallel_block=True),
        sandwich_coef__1=dict(sandwich_coef=1),
        weight_tie_layers=dict(weight_tie_layers=True),
        layer_dropout=dict(layer_dropout=0.1),
        looped={'model.looped': True, 'pre_and_post_norm': True},
        recycling={'model.recycling': True},
        par_ratio__4=dict(par_ratio=4),
        conv_module=dict(conv_module=True, conv_causal=True, conv_kernel_size=7, conv_norm='layer'),
        act_halting=dict(act_halting=True, weight_tie_layers=True),
        reversible=dict(reversible=True),
        all__attention=dict(only_attn=True, attn_num_mem_kv=lambda sizes: 4 * sizes.dim),
    ),
    *family(
        'feedforward',
        GELU=dict(ff_glu=False, ff_swish=False),
        ff_relu_squared=dict(ff_glu=False, ff_swish=False, ff_relu_squared=True),
        ff_solu=dict(ff_glu=False, ff_swish=False, ff_solu=True),
        ff_swish=dict(ff_glu=False, ff_swish=True),
        ff_glu=dict(ff_glu=True, ff_swish=False),
        ff_glu__ff_swish=GATED,
        ff_glu__of__equal__size=dict(GATED, ff_mult=8 / 3),
        ff_glu_mult_bias=dict(GATED, ff_glu_mult_bias=True),
        ff_glu_softclamp=dict(GATED, ff_glu_softclamp=True),
        ff_no_bias=dict(ff_no_bias=True),
        ff_post_act_ln=dict(ff_post_act_ln=True),
        ff_mult__8=dict(ff_mult=8),
        ff_mult__2=dict(ff_mult=2),
        ff_moe__4__of__which__1=dict(ff_moe_experts=4, ff_moe_top_k=1, ff_moe_balance_loss=0.01),
        ff_moe__4__of__which__2=dict(ff_moe_experts=4, ff_moe_top_k=2, ff_moe_balance_loss=0.01),
        ff_deep_embed={'model.ff_deep_embed': True},
        ff_moe_shared=dict(ff_moe_experts=4, ff_moe_top_k=1, ff_moe_balance_loss=0.01, ff_moe_shared=1),
        ff_moe__sigmoid=dict(ff_moe_experts=4, ff_moe_top_k=2, ff_moe_balance_loss=0.01, ff_moe_kind='sigmoid'),
        ff_swiglu_limit=dict(ff_glu=True, ff_swish=False, ff_swiglu_limit=7.0),
        ff_dropout=dict(ff_dropout=0.1),
        ff_output_proj_depth=dict(ff_output_proj_depth=2),
    ),
    *family(
        'queries and keys',
        attn_qk_norm=dict(attn_qk_norm=True),
        attn_qk_norm_dim_scale=dict(attn_qk_norm=True, attn_qk_norm_dim_scale=True),
        attn_qk_rmsnorm=dict(attn_qk_rmsnorm=True),
        attn_k_rmsnorm=dict(attn_k_rmsnorm=True),
        attn_value_rmsnorm=dict(attn_value_rmsnorm=True),
        attn_qk_proj_norm=dict(attn_qk_proj_norm=True),
        attn_qk_head_norm=dict(attn_qk_head_norm='rms'),
        attn_kv_heads__1=dict(attn_kv_heads=1),
        attn_kv_heads__half=dict(attn_kv_heads=lambda sizes: sizes.heads // 2),
        attn_shared_qk=dict(attn_shared_qk=True),
        attn_collab_heads=dict(attn_collab_heads=True),
        attn_use_latent_kv=dict(attn_use_latent_kv=True, attn_dim_latent_kv=lambda sizes: sizes.dim // 2),
        attn_use_latent_q=dict(attn_use_latent_q=True, attn_dim_latent_q=lambda sizes: sizes.dim // 2),
        attn_qkv_bias=dict(attn_qkv_bias=True),
        attn_num_mem_kv=dict(attn_num_mem_kv=4),
        attn_rotate_values=dict(NO_POSITIONS, rotary_pos_emb=True, attn_rotate_values=True),
    ),
    *family(
        'scores',
        attn_talking_heads=dict(attn_talking_heads=True),
        attn_pre_talking_heads=dict(attn_pre_talking_heads=True),
        attn_sparse_topk=dict(attn_sparse_topk=16),
        attn_use_entmax15=dict(attn_use_entmax15=True),
        attn_sigmoid=dict(attn_sigmoid=True),
        attn_softclamp_logits=dict(attn_softclamp_logits=True),
        attn_selective=dict(attn_selective=True),
        attn_head_learned_sink=dict(attn_head_learned_sink=True),
        attn_add_zero_kv=dict(attn_add_zero_kv=True),
        attn_cog_signed=dict(attn_cog_signed=True),
        attn_l2_distance=dict(attn_l2_distance=True),
        attn_laser=dict(attn_laser=True),
        attn_differential=dict(attn_differential=True),
        attn_hard=dict(attn_hard=True),
        attn_gumbel_softmax=dict(attn_gumbel_softmax=True),
        attn_sparse_topk_straight_through=dict(attn_sparse_topk=16, attn_sparse_topk_straight_through=True),
        attn_adaptive_span=dict(attn_adaptive_span='static', attn_max_span=SEQ_LEN, attn_span_init=0.5),
        attn_dropout=dict(attn_dropout=0.1),
        attn_z_loss={'train.add_attn_z_loss': True},
    ),
    *family(
        'outputs of attention',
        attn_head_scale=dict(attn_head_scale=True),
        attn_gate_value_heads=dict(attn_gate_value_heads=True),
        attn_gate_values=dict(attn_gate_values=True),
        attn_output_gate=dict(attn_output_gate=True),
        attn_gate_values_headwise=dict(attn_gate_values=True, attn_gate_values_headwise=True),
        attn_output_gate_headwise=dict(attn_output_gate=True, attn_output_gate_headwise=True),
        attn_swiglu_values=dict(attn_swiglu_values=True, attn_gate_values=True),
        attn_on_attn=dict(attn_on_attn=True),
        attn_orthog_projected_values=dict(attn_orthog_projected_values=True),
        attn_output_proj_depth=dict(attn_output_proj_depth=2),
        attn_out_bias=dict(attn_out_bias=True),
    ),
    *family(
        'tokens',
        shift_tokens__1=dict(shift_tokens=1),
        shift_tokens__2=dict(shift_tokens=2),
        num_memory_tokens={'model.num_memory_tokens': 4},
        emb_frac_gradient={'model.emb_frac_gradient': 0.1},
        l2norm_embed={'model.l2norm_embed': True},
        emb_dropout={'model.emb_dropout': 0.1},
        sublayer_dropout=dict(attn_sublayer_dropout=0.1, ff_sublayer_dropout=0.1),
        emb_dim__half={'model.emb_dim': lambda sizes: sizes.dim // 2},
        tie_embedding={'model.tie_embedding': True},
        mixture_of_softmax={'model.mixture_of_softmax': True},
        sigsoftmax_logits={'model.sigsoftmax_logits': True},
        logits_softclamp={'model.logits_softclamp': 30.0},
        softclamp_output=dict(softclamp_output=True),
        num_output_heads__2={'model.num_output_heads': 2},
        future_target_weights={'model.num_output_heads': 2, 'train.future_target_weights': (0.5,)},
        intermediate_layer_loss={'train.intermediate_layer_loss': 'linear'},
        label_smoothing={'train.label_smoothing': 0.1},
        mask_prob={'train.mask_prob': 0.15},
        z_loss={'train.z_loss_weight': 1e-4},
        next__embedding={'model.add_continuous_pred_head': True},
    ),
    *family(
        'attention below the square',
        attn_max_attend_past=dict(attn_max_attend_past=64),
        strided=dict(attn_sparse_pattern={'pattern': 'strided', 'stride': 16}),
        attn_cluster__lsh=dict(attn_cluster='lsh', attn_cluster_size=32),
        attn_cluster__routing=dict(attn_cluster='routing', attn_num_clusters=8),
        attn_cluster__sinkhorn=dict(attn_cluster='sinkhorn', attn_cluster_size=32),
        attn_kernel__elu=dict(NO_POSITIONS, attn_kernel='elu', **{'model.use_abs_pos_emb': True}),
        attn_kernel__favor=dict(NO_POSITIONS, attn_kernel='favor', **{'model.use_abs_pos_emb': True}),
        attn_kernel__relu=dict(NO_POSITIONS, attn_kernel='relu', **{'model.use_abs_pos_emb': True}),
        attn_kernel__rff=dict(NO_POSITIONS, attn_kernel='rff', **{'model.use_abs_pos_emb': True}),
        delta__rule=dict(
            NO_POSITIONS, attn_kernel='elu', attn_kernel_update='delta', **{'model.use_abs_pos_emb': True}
        ),
        attn_aft__local=dict(NO_POSITIONS, attn_aft='local', attn_aft_max_len=SEQ_LEN),
        rwkv=dict(NO_POSITIONS, custom_layers=lambda sizes: ('r', 'f') * sizes.depth, recurrent_module='rwkv'),
        ssm=dict(NO_POSITIONS, custom_layers=lambda sizes: ('r', 'f') * sizes.depth, recurrent_module='ssm'),
    ),
]
BY_NAME = {variant.name: variant for variant in VARIANTS}
FAMILY = {variant.name: variant.family for variant in VARIANTS}


# what has no place in a stack of which the layers are named, and none of which is attention
OF_ATTENTION = ('positions', 'queries and keys', 'scores', 'outputs of attention')
OF_ITS_LAYERS = (
    *('residual_attn', 'add_value_residual', 'qkv_receive_diff_residuals', 'sublayer_dropout'),
    *('macaron', 'sandwich_coef 1', 'par_ratio 4', 'conv_module', 'all attention'),
)


def go_together(one: str, other: str) -> bool:
    """Whether two variants make a third: no keyword has two values, neither is a part of the other, and both act."""
    own, more = BY_NAME[one].flags, BY_NAME[other].flags
    both = own | more
    if FAMILY[one] == FAMILY[other] and FAMILY[one] in ALTERNATIVES:
        return False
    if 'custom_layers' in both and any(FAMILY[n] in OF_ATTENTION or n in OF_ITS_LAYERS for n in (one, other)):
        return False
    return both == more | own and both not in (own, more)
