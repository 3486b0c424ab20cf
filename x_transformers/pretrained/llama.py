"""Causal language models like Llama: RMS norms, rotary positions, gated feedforwards."""

from __future__ import annotations

from collections.abc import Callable

from x_transformers.pretrained import fields
from x_transformers.pretrained.fields import activation, drop_branches, negate, set_way_back, unless, when
from x_transformers.pretrained.heads import OF_DECODERS, SPANS_OF_BASE
from x_transformers.pretrained.mappings import (
    ALTERNATING,
    ALTERNATING_BIAS,
    HALVES,
    JOIN,
    R_LAST,
    R_ONE,
    ROTATE_QKV,
    ROTATED_FIRST,
    SPLIT,
    SPLIT_LATENT,
    SPLIT_LATENT_HEADS,
    A,
    B,
    F,
    Mappings,
    Q,
    R,
    T,
    WeightTransform,
    link,
    links,
    map_attention,
    map_ends,
    map_experts,
    map_ff,
    map_fused,
    map_gated,
    map_norms,
    map_output,
    map_qk_norms,
    transform_separately,
)
from x_transformers.pretrained.specs import Const, Fields, ModelSpec, register

# The reference from which the other types are derived.

S = f'{B}.self_attn'
LLAMA_ATTENTION = map_attention(*(f'{S}.{name}_proj' for name in 'qkvo'))
PAIRS = map_attention(*(f'{S}.{name}_proj' for name in 'qkvo'), rotate=False)  # Rotary pairs are neighbors, as here.
LLAMA_GATED = map_gated(*(f'{B}.mlp.{name}_proj' for name in ('up', 'gate', 'down')))
LLAMA_NORMS = map_norms(f'{B}.input_layernorm', f'{B}.post_attention_layernorm')
LLAMA_ENDS = map_ends('model.embed_tokens', 'model.norm', 'lm_head')
SANDWICH = links(
    link(f'{B}.input_layernorm', f'{A}.0.0.norm'),
    link(f'{B}.post_attention_layernorm', f'{A}.0.1.norm'),
    link(f'{B}.pre_feedforward_layernorm', f'{F}.0.0.norm'),
    link(f'{B}.post_feedforward_layernorm', f'{F}.0.1.norm'),
)
HEAD_NORMS = map_qk_norms('norm.weight', (R_LAST,), (R_LAST,))

LLAMA = register(ModelSpec(
    'llama', ('LlamaForCausalLM',),
    defaults=dict(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=None, head_dim=None, hidden_act='silu', max_position_embeddings=2048,
        original_max_position_embeddings=None, rms_norm_eps=1e-6, rope_parameters=None, rope_scaling=None,
        rope_theta=10000.0, partial_rotary_factor=1.0, attention_bias=False, mlp_bias=False, attention_dropout=0.0,
        tie_word_embeddings=False,
    ),
    model=dict(
        num_tokens='vocab_size', max_seq_len=0, tie_embedding=when('tied', True), tie_embedding_scale=when('tied', 1.0),
    ),
    layers=dict(
        dim='hidden_size', depth='num_hidden_layers', heads='num_attention_heads', attn_kv_heads=fields.kv_heads,
        attn_dim_head=fields.head_width, attn_qkv_bias='attention_bias', attn_out_bias='attention_bias',
        use_rmsnorm=True, norm_add_unit_offset=False, norm_eps='rms_norm_eps', rotary_pos_emb=True,
        rotary_emb_dim=fields.rotated_channels, rotary_theta=fields.theta, rotary_scaling=fields.read_scaling,
        ff_glu=True, ff_activation=activation('hidden_act'), ff_dim_inner='intermediate_size', ff_glu_bias='mlp_bias',
        ff_no_bias=negate('mlp_bias'), attn_dropout='attention_dropout', verbose=False,
    ),
    sizes=dict(
        heads='num_attention_heads', kv_heads=fields.kv_heads, dim_head=fields.head_width, dim_value=fields.head_width,
        rotated=fields.rotated_channels,
    ),
    links=links(LLAMA_ATTENTION, LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS), ignored=(r'.*rotary_emb\.inv_freq',),
    base='model.', heads=OF_DECODERS,
))  # fmt: skip

NO_BIAS = dict(attn_qkv_bias=False, attn_out_bias=False, ff_no_bias=True, ff_glu_bias=False)
WINDOW = dict(attn_max_attend_past=fields.window)
HEAD_RMS = dict(attn_qk_head_norm=Const('rms'))
ROPE_BY_KIND = dict(
    rotary_emb_dim=fields.head_width, rotary_layers=fields.rotating_by_kind, rotary_theta=None, rotary_scaling=None,
)  # fmt: skip
FUSED_GATED = links(
    link(f'{B}.mlp.gate_up_proj.*', f'{F}.1.ff.0.proj.*', HALVES), link(f'{B}.mlp.down_proj.*', f'{F}.1.ff.2.*'),
)  # fmt: skip

MISTRAL = register(LLAMA.like(
    'mistral', 'MistralForCausalLM', without=('attention_bias', 'mlp_bias'),
    defaults=dict(intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072, sliding_window=4096),
    rules=dict(sliding=fields.sliding_unless_listed), free=('layer_types',), layers={**NO_BIAS, **WINDOW},
    heads=SPANS_OF_BASE,
))  # fmt: skip


GPT_OSS_ROPE = dict(
    rope_type='yarn', factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=4096,
)  # fmt: skip

MOE = dict(
    ff_moe_experts='num_local_experts', ff_moe_top_k='num_experts_per_tok', ff_moe_kind=Const('softmax'),
    ff_moe_renormalise=True,
)  # fmt: skip
EXPERTS = dict(experts='num_local_experts')

register(MISTRAL.like(
    'mixtral', 'MixtralForCausalLM',
    defaults=dict(
        num_local_experts=8, num_experts_per_tok=2, sliding_window=None, rope_theta=1e6, rms_norm_eps=1e-5,
        router_jitter_noise=0.0,
    ),
    rules=dict(sliding=fields.sliding_everywhere),
    free=('output_router_logits', 'router_aux_loss_coef', 'layer_types'),  # no class reads the last one
    aliases=dict(num_experts='num_local_experts'), layers=MOE, sizes=EXPERTS,
    links=links(
        LLAMA_ATTENTION, LLAMA_NORMS, LLAMA_ENDS,
        map_experts(f'{B}.block_sparse_moe.gate', f'{B}.block_sparse_moe.experts', 'w3', 'w1', 'w2'),
    ),
))  # fmt: skip

QWEN2 = register(LLAMA.like(
    'qwen2', 'Qwen2ForCausalLM', without=('attention_bias', 'mlp_bias'), fixed=dict(use_mrope=(False,)),
    defaults=dict(
        vocab_size=151936, intermediate_size=22016, num_key_value_heads=32, max_position_embeddings=32768,
        use_sliding_window=False, sliding_window=4096, max_window_layers=28, layer_types=None,
    ),
    rules=dict(sliding=fields.sliding_late, lists_if_used=True), layers={**NO_BIAS, **WINDOW, 'attn_qkv_bias': True},
))  # fmt: skip

QWEN3 = register(QWEN2.like(
    'qwen3', 'Qwen3ForCausalLM', defaults=dict(attention_bias=False, head_dim=128),
    layers=dict(attn_qkv_bias='attention_bias', attn_out_bias='attention_bias', **HEAD_RMS),
    links=links(QWEN2.links, HEAD_NORMS),
))  # fmt: skip

GEMMA = register(LLAMA.like(
    'gemma', 'GemmaForCausalLM', without=('mlp_bias',),
    defaults=dict(
        vocab_size=256000, hidden_size=3072, intermediate_size=24576, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=16, head_dim=256, hidden_act='gelu_pytorch_tanh', max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    free=('hidden_activation',),  # its class does not read it
    fixed=dict(use_bidirectional_attention=(None, False)), model=dict(emb_scale=fields.emb_scale('hidden_size')),
    layers=dict(norm_add_unit_offset=True, ff_no_bias=True, ff_glu_bias=False),
))  # fmt: skip

GEMMA2 = register(GEMMA.like(
    'gemma2', 'Gemma2ForCausalLM', free=('sliding_window_size',), names=dict(hidden_activation='hidden_act'),
    defaults=dict(
        hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4,
        query_pre_attn_scalar=256, sliding_window=4096, layer_types=None, final_logit_softcapping=30.0,
        attn_logit_softcapping=50.0,
    ),
    rules=dict(sliding=fields.sliding_but_every('pattern'), pattern=2),
    model=dict(logits_softclamp='final_logit_softcapping'),
    layers=dict(
        sandwich_norm=True, attn_softmax_scale=fields.power('query_pre_attn_scalar', -0.5),
        attn_softclamp_logits=lambda c: c.attn_logit_softcapping is not None or None,
        attn_logit_softclamp_value='attn_logit_softcapping', **WINDOW,
    ),
    links=links(LLAMA_ATTENTION, LLAMA_GATED, SANDWICH, LLAMA_ENDS),
))  # fmt: skip

register(GEMMA2.like(
    'gemma3_text', 'Gemma3ForCausalLM', 'Gemma3TextForSequenceClassification', 'Gemma3TextModel',
    without=('attn_softclamp_logits', 'attn_logit_softclamp_value'),
    defaults=dict(
        vocab_size=262208, max_position_embeddings=131072, sliding_window_pattern=6, final_logit_softcapping=None,
        attn_logit_softcapping=None, full_theta=1e6, local_theta=10000.0,
    ),
    rules=dict(sliding=fields.sliding_but_every('sliding_window_pattern'), scaled_kinds=('full_attention',)),
    names=dict(rope_theta='full_theta', rope_local_base_freq='local_theta'), free=('_sliding_window_pattern',),
    fixed=dict(attn_logit_softcapping=(None,)),
    layers=dict(**HEAD_RMS, **ROPE_BY_KIND),
    sizes=dict(rotated=fields.head_width), links=links(GEMMA2.links, HEAD_NORMS),
))  # fmt: skip

register(LLAMA.like(
    'phi3', 'Phi3ForCausalLM', without=('attention_bias', 'mlp_bias'), free=('attention_bias', 'layer_types'),
    defaults=dict(
        vocab_size=32064, hidden_size=3072, intermediate_size=8192, max_position_embeddings=4096,
        original_max_position_embeddings=4096, rms_norm_eps=1e-5, sliding_window=None, resid_pdrop=0.0, embd_pdrop=0.0,
    ),
    rules=dict(sliding=fields.sliding_everywhere, rotates_part=True, older_kinds=dict(su='longrope', yarn='longrope')),
    model=dict(emb_dropout='embd_pdrop'),
    layers={**NO_BIAS, **WINDOW, **drop_branches('resid_pdrop')},
    links=links(
        map_fused(f'{B}.self_attn.qkv_proj', SPLIT, ROTATE_QKV), map_output(f'{B}.self_attn.o_proj'),
        FUSED_GATED, LLAMA_NORMS, LLAMA_ENDS,
    ),
))  # fmt: skip

register(LLAMA.like(
    'olmo', 'OlmoForCausalLM', without=('rms_norm_eps', 'mlp_bias', 'use_rmsnorm'),
    defaults=dict(vocab_size=50304, clip_qkv=None),
    layers=dict(
        norm_affine=False, norm_eps=1e-5, attn_qkv_clip='clip_qkv', ff_no_bias=True, ff_glu_bias=False,
        norm_add_unit_offset=None,
    ),
))  # fmt: skip

BRANCH_NORMS = links(
    link(f'{B}.post_attention_layernorm', f'{A}.0.1.norm'), link(f'{B}.post_feedforward_layernorm', f'{F}.0.1.norm')
)

OLMO2 = register(LLAMA.like(
    'olmo2', 'Olmo2ForCausalLM', without=('mlp_bias',), defaults=dict(vocab_size=50304, rms_norm_eps=1e-5),
    layers=dict(branch_post_norm=True, attn_qk_proj_norm=True, ff_no_bias=True, ff_glu_bias=False),
    links=links(
        LLAMA_ATTENTION, LLAMA_GATED, BRANCH_NORMS, LLAMA_ENDS, map_qk_norms('norm.weight', (Q, R), (R,), 'proj_norm'),
    ),
))  # fmt: skip

register(QWEN3.like(
    'exaone4', 'Exaone4ForCausalLM', without=('attention_bias', 'use_sliding_window', 'max_window_layers'),
    defaults=dict(
        vocab_size=102400, intermediate_size=16384, max_position_embeddings=2048, rms_norm_eps=1e-5, head_dim=None,
        sliding_window=4096, sliding_window_pattern=4,
    ),
    rules=dict(sliding=fields.sliding_but_every('sliding_window_pattern')),
    layers={**NO_BIAS, 'branch_post_norm': True, 'rotary_layers': when('sliding_window', fields.rotating_windows)},
    links=links(LLAMA_ATTENTION, LLAMA_GATED, BRANCH_NORMS, HEAD_NORMS, LLAMA_ENDS),
))  # fmt: skip


register(QWEN3.like(
    'qwen3_moe', 'Qwen3MoeForCausalLM', without=('max_window_layers', 'layer_types'),
    defaults=dict(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=24, num_key_value_heads=4, head_dim=None,
        decoder_sparse_step=1, moe_intermediate_size=768, num_experts_per_tok=8, num_local_experts=128,
        norm_topk_prob=False, mlp_only_layers=(),
    ),
    rules=dict(sliding=fields.sliding_everywhere),
    free=('output_router_logits', 'router_aux_loss_coef', 'max_window_layers', 'layer_types'),
    aliases=dict(num_experts='num_local_experts'),
    layers={
        **MOE, 'ff_moe_experts': fields.qwen_experts, 'ff_moe_renormalise': 'norm_topk_prob',
        'ff_moe_dim_inner': 'moe_intermediate_size',
    },
    sizes=EXPERTS, links=links(QWEN3.links, map_experts(f'{B}.mlp.gate', f'{B}.mlp.experts')),
))  # fmt: skip

SHARED = f'{B}.mlp.shared_experts'


def map_rotated(
    theirs: str, ours: str, *changes: WeightTransform, rotation: WeightTransform, when: Callable[[Fields], bool]
) -> Mappings:
    """Map weights whose rotated channels are stored either in pairs or in halves, as `rope_interleave` says."""
    return links(
        link(theirs, ours, *changes, rotation, when=lambda c: when(c) and not c.rope_interleave),
        link(theirs, ours, *changes, when=lambda c: when(c) and c.rope_interleave),
    )


def has_latent(c: Fields) -> bool:
    return c.q_lora_rank is not None


# transformers requires an equal number of key heads.
latent_heads = set_way_back('num_attention_heads', 'num_key_value_heads')(lambda c: c.num_attention_heads)
LATENT, ROTATED = f'{A}.1.to_latent_kv', f'{A}.1.to_rotated_k'
DEEPSEEK_LINKS = links(
    map_rotated(f'{S}.q_proj.*', f'{A}.1.to_q.*', ROTATED_FIRST, rotation=R, when=lambda c: not has_latent(c)),
    link(f'{S}.q_a_proj.*', f'{A}.1.to_latent_q.*'), link(f'{S}.q_a_layernorm.weight', f'{A}.1.q_latent_norm.norm'),
    map_rotated(f'{S}.q_b_proj.weight', f'{A}.1.to_q.weight', ROTATED_FIRST, rotation=R, when=has_latent),
    map_rotated(
        f'{S}.kv_a_proj_with_mqa.*', f'{LATENT}.* {ROTATED}.*', SPLIT_LATENT,
        rotation=transform_separately(None, R_ONE), when=lambda c: True,
    ),
    link(f'{S}.kv_a_layernorm.weight', f'{A}.1.kv_latent_norm.norm'),
    link(f'{S}.kv_b_proj.weight', f'{A}.1.to_k.weight {A}.1.to_v.weight', SPLIT_LATENT_HEADS),
    link(f'{S}.o_proj.*', f'{A}.1.to_out.*'), map_experts(f'{B}.mlp.gate', f'{B}.mlp.experts'),
    link(f'{B}.mlp.gate.e_score_correction_bias', f'{F}.1.moe.score_bias'),
    link(f'{SHARED}.up_proj.weight {SHARED}.gate_proj.weight', f'{F}.1.moe.shared.0.proj.weight', JOIN),
    link(f'{SHARED}.down_proj.weight', f'{F}.1.moe.shared.2.weight'),
)  # fmt: skip

register(LLAMA.like(
    'deepseek_v3', 'DeepseekV3ForCausalLM', without=('mlp_bias', 'head_dim', 'attn_kv_heads'),
    defaults=dict(
        vocab_size=129280, hidden_size=7168, intermediate_size=18432, moe_intermediate_size=2048, num_hidden_layers=61,
        num_attention_heads=128, num_key_value_heads=128, n_shared_experts=1, n_routed_experts=256,
        routed_scaling_factor=2.5, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64, v_head_dim=128,
        qk_nope_head_dim=128, n_group=8, topk_group=4, num_experts_per_tok=8, first_k_dense_replace=3,
        norm_topk_prob=True, max_position_embeddings=4096, rope_interleave=True, num_nextn_predict_layers=1,
    ),
    aliases=dict(num_local_experts='n_routed_experts', num_experts='n_routed_experts'),
    free=(
        'output_router_logits', 'router_aux_loss_coef', 'aux_loss_alpha', 'seq_aux', 'ep_size', 'qk_head_dim',
        'head_dim', 'moe_layer_freq', 'scoring_func', 'topk_method',
    ),
    fixed=dict(scoring_func=('sigmoid',), topk_method=('noaux_tc',), moe_layer_freq=(1,)),
    layers=dict(
        heads=latent_heads, attn_dim_head=fields.latent_head_width, attn_value_dim_head='v_head_dim',
        attn_qkv_bias=None, attn_use_latent_q=lambda c: c.q_lora_rank is not None or None,
        attn_dim_latent_q='q_lora_rank', attn_use_latent_kv=True, attn_dim_latent_kv='kv_lora_rank',
        attn_dim_latent_rope='qk_rope_head_dim', attn_latent_norm=True, attn_latent_bias=when('attention_bias'),
        attn_softmax_scale=fields.deepseek_scale, rotary_emb_dim=fields.rotated_latents, ff_no_bias=True,
        ff_glu_bias=False, ff_moe_experts=fields.deepseek_experts, ff_moe_top_k='num_experts_per_tok',
        ff_moe_kind=Const('sigmoid'), ff_moe_renormalise='norm_topk_prob', ff_moe_groups='n_group',
        ff_moe_top_groups='topk_group', ff_moe_scale='routed_scaling_factor', ff_moe_score_bias=True,
        ff_moe_dim_inner='moe_intermediate_size', ff_moe_shared=when('n_shared_experts'),
    ),
    sizes=dict(
        kv_heads='num_attention_heads', dim_head=fields.latent_head_width, dim_value='v_head_dim',
        rotated='qk_rope_head_dim', latent='kv_lora_rank', experts='n_routed_experts',
    ),
    links=links(LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS, DEEPSEEK_LINKS), ignored=LLAMA.ignored,
    left=fields.is_extra_layer,
))  # fmt: skip

register(LLAMA.like(
    'gpt_oss', 'GptOssForCausalLM', without=('mlp_bias', 'ff_glu_bias'),
    defaults=dict(
        vocab_size=201088, hidden_size=2880, intermediate_size=2880, num_hidden_layers=36, num_attention_heads=64,
        num_key_value_heads=8, head_dim=64, sliding_window=128, layer_types=None, max_position_embeddings=131072,
        rms_norm_eps=1e-5, rope_theta=150000.0, rope_parameters=GPT_OSS_ROPE, num_local_experts=128,
        num_experts_per_tok=4, swiglu_alpha=1.702, swiglu_limit=7.0, attention_bias=True,
    ),
    rules=dict(sliding=fields.sliding_but_every('pattern'), pattern=2),
    free=('output_router_logits', 'router_aux_loss_coef', 'initial_context_length', 'experts_per_token', 'hidden_act'),
    aliases=dict(num_experts='num_local_experts'),
    layers={
        **WINDOW, **MOE, 'ff_moe_kind': Const('topk_softmax'), 'ff_moe_renormalise': None, 'ff_moe_router_bias': True,
        'ff_no_bias': False, 'ff_glu_bias': True, 'attn_head_learned_sink': True, 'ff_swiglu_limit': 'swiglu_limit',
        'ff_swiglu_alpha': 'swiglu_alpha', 'ff_activation': None,
    },
    sizes=EXPERTS,
    links=links(
        LLAMA_ATTENTION, LLAMA_NORMS, LLAMA_ENDS, link(f'{S}.sinks', f'{A}.1.attend.head_attn_sink', Q),
        link(f'{B}.mlp.router.*', f'{F}.1.moe.router.*'),
        link(f'{B}.mlp.experts.gate_up_proj', f'{F}.1.moe.up_gate.weight', ALTERNATING),
        link(f'{B}.mlp.experts.gate_up_proj_bias', f'{F}.1.moe.up_gate.bias', ALTERNATING_BIAS),
        link(f'{B}.mlp.experts.down_proj', f'{F}.1.moe.down.weight', T),
        link(f'{B}.mlp.experts.down_proj_bias', f'{F}.1.moe.down.bias'),
    ),
))  # fmt: skip

GLM4 = register(LLAMA.like(
    'glm4', 'Glm4ForCausalLM', without=('mlp_bias',),
    defaults=dict(
        vocab_size=151552, intermediate_size=13696, num_hidden_layers=40, num_key_value_heads=2, head_dim=128,
        max_position_embeddings=131072, rms_norm_eps=1.5625e-7, partial_rotary_factor=0.5, attention_bias=True,
    ),
    rules=dict(rotates_part=True),
    layers=dict(sandwich_norm=True, attn_out_bias=False, ff_no_bias=True, ff_glu_bias=False),
    links=links(
        PAIRS, FUSED_GATED, LLAMA_NORMS, link(f'{B}.post_self_attn_layernorm', f'{A}.0.1.norm'),
        link(f'{B}.post_mlp_layernorm', f'{F}.0.1.norm'), LLAMA_ENDS,
    ),
))  # fmt: skip

register(LLAMA.like(
    'granite', 'GraniteForCausalLM',
    defaults=dict(embedding_multiplier=1.0, logits_scaling=1.0, residual_multiplier=1.0, attention_multiplier=1.0),
    model=dict(
        emb_scale='embedding_multiplier', tie_embedding_scale=when('tied', fields.one_over('logits_scaling')),
        logits_scale=unless('tied', fields.one_over('logits_scaling')),
    ),
    layers=dict(attn_softmax_scale='attention_multiplier', depth_scale_residual='residual_multiplier'),
))  # fmt: skip

register(LLAMA.like(
    'smollm3', 'SmolLM3ForCausalLM', without=('pretraining_tp',), free=('max_window_layers', 'pretraining_tp'),
    defaults=dict(
        vocab_size=128256, hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=4,
        max_position_embeddings=32768, rope_theta=2000000.0, use_sliding_window=False, sliding_window=None,
        no_rope_layers=None, no_rope_layer_interval=4, layer_types=None, tie_word_embeddings=True,
    ),
    rules=dict(sliding=fields.sliding_unrotated),
    layers={**WINDOW, 'rotary_layers': lambda c: fields.none_if_all(fields.rotating_as_listed(c))},
))  # fmt: skip

# Types that equal another type, or nearly so.

register(LLAMA.like(
    'iquestcoder', 'LlamaForCausalLM',
    defaults=dict(
        vocab_size=76800, hidden_size=5120, intermediate_size=27648, num_hidden_layers=80, num_attention_heads=40,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5,
    ),
))  # fmt: skip
register(MISTRAL.like(
    'ministral', 'MinistralForCausalLM', defaults=dict(layer_types=None, head_dim=None),
    heads={'span': LLAMA.heads['span']},
))  # fmt: skip
register(LLAMA.like(
    'seed_oss', 'SeedOssForCausalLM',
    defaults=dict(
        vocab_size=155136, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=80, num_key_value_heads=8,
        max_position_embeddings=524288, attention_bias=True, attention_out_bias=False, attention_dropout=0.1,
        residual_dropout=0.1, head_dim=128,
    ),
    layers=dict(attn_out_bias='attention_out_bias', **drop_branches('residual_dropout')),
))  # fmt: skip
register(LLAMA.like(
    'cwm', 'CwmForCausalLM',
    defaults=dict(
        vocab_size=128256, hidden_size=6144, intermediate_size=21504, num_hidden_layers=64, num_attention_heads=48,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=1e6,
        bos_token_id=0,  # its class does not accept None
        rope_parameters=dict(
            rope_type='llama3', rope_theta=1e6, factor=16.0, high_freq_factor=4.0, low_freq_factor=1.0,
            original_max_position_embeddings=8192,
        ),
        sliding_window=8192, layer_types=None,
    ),
    rules=dict(sliding=lambda c: tuple(i % 4 > 0 for i in range(c.num_hidden_layers))),
    layers=dict(WINDOW, attn_qkv_bias=False, attn_out_bias=False),
))  # fmt: skip
register(LLAMA.like(
    'arcee', 'ArceeForCausalLM', without=('ff_glu', 'ff_glu_bias'),
    defaults=dict(
        hidden_size=2560, intermediate_size=18432, hidden_act='relu2', max_position_embeddings=4096, rms_norm_eps=1e-5,
    ),
    links=links(LLAMA_ATTENTION, map_ff(f'{B}.mlp.up_proj', f'{B}.mlp.down_proj'), LLAMA_NORMS, LLAMA_ENDS),
))  # fmt: skip

register(LLAMA.like(
    'helium', 'HeliumForCausalLM',
    defaults=dict(
        vocab_size=48000, hidden_size=2560, intermediate_size=7040, num_hidden_layers=24, num_attention_heads=20,
        num_key_value_heads=20, head_dim=128, max_position_embeddings=4096, rms_norm_eps=1e-8, rope_theta=100000.0,
    ),
    layers=dict(attn_out_bias=False), links=links(PAIRS, LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS),
))  # fmt: skip
register(LLAMA.like(
    'ernie4_5', 'Ernie4_5ForCausalLM', without=('attention_bias', 'attention_dropout', 'attn_dropout', 'mlp_bias'),
    defaults=dict(
        vocab_size=103424, hidden_size=1024, intermediate_size=3072, num_hidden_layers=18, num_attention_heads=16,
        num_key_value_heads=2, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5, use_bias=False,
        tie_word_embeddings=True, rope_theta=500000.0,
    ),
    layers=dict(
        attn_qkv_bias='use_bias', attn_out_bias='use_bias', ff_no_bias=negate('use_bias'), ff_glu_bias='use_bias',
    ),
    links=links(PAIRS, LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS),
))  # fmt: skip
register(GLM4.like(
    'glm', 'GlmForCausalLM', without=('sandwich_norm',), links=links(PAIRS, FUSED_GATED, LLAMA_NORMS, LLAMA_ENDS),
))  # fmt: skip
register(OLMO2.like(
    'olmo3', 'Olmo3ForCausalLM',
    defaults=dict(sliding_window=4096, layer_types=None, full_theta=500000.0, local_theta=500000.0),
    rules=dict(sliding=fields.sliding_but_every('pattern'), pattern=4, scaled_kinds=('full_attention',)),
    aliases=dict(rope_theta='full_theta'),
    layers=dict(**WINDOW, **ROPE_BY_KIND),
))  # fmt: skip
register(GEMMA2.like(
    'vaultgemma', 'VaultGemmaForCausalLM', without=('sandwich_norm', 'use_bidirectional_attention'),
    links=links(
        LLAMA_ATTENTION, LLAMA_GATED, map_norms(f'{B}.input_layernorm', f'{B}.pre_feedforward_layernorm'), LLAMA_ENDS,
    ),
))  # fmt: skip
