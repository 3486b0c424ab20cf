"""Causal language models with layer norms: GPT-2 and its relatives, ALiBi, parallel blocks."""

from __future__ import annotations

from x_transformers.pretrained import fields
from x_transformers.pretrained.fields import drop_branches, is_not, negate, unless, when
from x_transformers.pretrained.heads import SPANS_OF_BASE, TOKEN_CLASSES
from x_transformers.pretrained.llama import LLAMA, LLAMA_ATTENTION, LLAMA_ENDS, LLAMA_GATED, LLAMA_NORMS, PAIRS, WINDOW
from x_transformers.pretrained.mappings import (
    HEAD_STACK,
    PER_HEAD,
    R_LAST,
    ROTATE_QKV,
    SPLIT,
    SPLIT_GROUPS,
    SPLIT_HEADS,
    A,
    B,
    F,
    Q,
    T,
    link,
    links,
    map_attention,
    map_ends,
    map_ff,
    map_fused,
    map_norms,
    map_output,
    map_qk_norms,
)
from x_transformers.pretrained.specs import Const, register

ROPE = (
    'rope_parameters', 'rope_scaling', 'rope_theta', 'partial_rotary_factor', 'original_max_position_embeddings',
)  # fmt: skip
ROTARY = ('rotary_pos_emb', 'rotary_emb_dim', 'rotary_theta', 'rotary_scaling')
NO_ROTARY = (*ROTARY, 'rotated')
ONE_KEY_EACH = ('num_key_value_heads', 'attn_kv_heads', 'head_dim')
MASKS = (r'.*\.(attn|attention)\.(bias|masked_bias)',)
# Layer norms with a bias, biases everywhere, a feedforward without gates.
CLASSIC = dict(norm_bias=True, norm_eps='layer_norm_eps', attn_qkv_bias=True, attn_out_bias=True, ff_no_bias=False)
NOT_BUT_BIAS = ('rms_norm_eps', 'mlp_bias', 'use_rmsnorm', 'ff_glu', 'ff_glu_bias')
NOT_CLASSIC = (*NOT_BUT_BIAS, 'attention_bias')

# learned positions

N = 'transformer.h.{i}'

register(LLAMA.like(
    'gpt2', 'GPT2LMHeadModel', without=(*ROPE, *NO_ROTARY, *ONE_KEY_EACH, *NOT_CLASSIC),
    defaults=dict(
        vocab_size=50257, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, max_position_embeddings=1024,
        intermediate_size=None, hidden_act='gelu_new', layer_norm_eps=1e-5, scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False, tie_word_embeddings=True, resid_pdrop=0.1, embd_pdrop=0.1,
        attn_pdrop=0.1,
    ),
    names=dict(n_inner='intermediate_size', activation_function='hidden_act', layer_norm_epsilon='layer_norm_eps'),
    aliases=dict(
        n_embd='hidden_size', n_layer='num_hidden_layers', n_head='num_attention_heads',
        n_positions='max_position_embeddings',
    ),
    free=('reorder_and_upcast_attn', 'n_ctx'), fixed=dict(add_cross_attention=(False,)),
    model=dict(max_seq_len='max_position_embeddings', abs_pos_emb_scale=1.0, emb_dropout='embd_pdrop'),
    layers=dict(
        **CLASSIC, attn_softmax_scale=fields.gpt2_scale, attn_dropout='attn_pdrop', ff_dim_inner=fields.inner_width,
        **drop_branches('resid_pdrop'),
    ),
    sizes=dict(kv_heads='num_attention_heads'),
    links=links(
        link(f'{N}.attn.c_attn.weight', f'{A}.1.to_q.weight {A}.1.to_k.weight {A}.1.to_v.weight', T, SPLIT),
        link(f'{N}.attn.c_attn.bias', f'{A}.1.to_q.bias {A}.1.to_k.bias {A}.1.to_v.bias', SPLIT),
        link(f'{N}.attn.c_proj.weight', f'{A}.1.to_out.weight', T), link(f'{N}.attn.c_proj.bias', f'{A}.1.to_out.bias'),
        link(f'{N}.mlp.c_fc.weight', f'{F}.1.ff.0.0.weight', T), link(f'{N}.mlp.c_fc.bias', f'{F}.1.ff.0.0.bias'),
        link(f'{N}.mlp.c_proj.weight', f'{F}.1.ff.2.weight', T), link(f'{N}.mlp.c_proj.bias', f'{F}.1.ff.2.bias'),
        map_norms(f'{N}.ln_1', f'{N}.ln_2'), link('transformer.wpe.weight', 'pos_emb.emb.weight'),
        map_ends('transformer.wte', 'transformer.ln_f', 'lm_head'),
    ),
    ignored=MASKS, base='transformer.', heads=TOKEN_CLASSES, tied=('lm_head.weight', 'transformer.wte.weight'),
))  # fmt: skip

# rotary positions

X = 'gpt_neox.layers.{i}'

register(LLAMA.like(
    'gpt_neox', 'GPTNeoXForCausalLM', without=(*ONE_KEY_EACH, *NOT_BUT_BIAS),
    defaults=dict(
        vocab_size=50432, hidden_size=6144, num_hidden_layers=44, num_attention_heads=64, intermediate_size=24576,
        hidden_act='gelu', layer_norm_eps=1e-5, partial_rotary_factor=0.25, use_parallel_residual=True,
        attention_bias=True, hidden_dropout=0.0,
    ),
    rules=dict(rotates_part=True), names=dict(rotary_emb_base='rope_theta', rotary_pct='partial_rotary_factor'),
    free=('is_decoder',), model=dict(emb_dropout='hidden_dropout'),
    layers={
        **CLASSIC, 'attn_qkv_bias': 'attention_bias', 'attn_out_bias': 'attention_bias',
        'parallel_block': when('use_parallel_residual'), **drop_branches('hidden_dropout'),
    },
    sizes=dict(kv_heads='num_attention_heads'),
    links=links(
        map_fused(f'{X}.attention.query_key_value', SPLIT_HEADS, ROTATE_QKV), map_output(f'{X}.attention.dense'),
        map_ff(f'{X}.mlp.dense_h_to_4h', f'{X}.mlp.dense_4h_to_h'),
        map_norms(f'{X}.input_layernorm', f'{X}.post_attention_layernorm'),
        map_ends('gpt_neox.embed_in', 'gpt_neox.final_layer_norm', 'embed_out'),
    ),
    renames=((r'^lm_head\.', 'embed_out.'),), ignored=(*MASKS, *LLAMA.ignored), base='gpt_neox.',
    heads={**TOKEN_CLASSES, **SPANS_OF_BASE}, tied=('embed_out.weight', 'gpt_neox.embed_in.weight'),
))  # fmt: skip

register(LLAMA.like(
    'phi', 'PhiForCausalLM', without=NOT_CLASSIC,
    defaults=dict(
        vocab_size=51200, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, hidden_act='gelu_new',
        layer_norm_eps=1e-5, partial_rotary_factor=0.5, qk_layernorm=False, resid_pdrop=0.0, embd_pdrop=0.0,
    ),
    rules=dict(rotates_part=True), model=dict(logits_bias=True, emb_dropout='embd_pdrop'),
    layers=dict(
        **CLASSIC, **drop_branches('resid_pdrop'), parallel_block=Const('shared'),
        attn_qk_head_norm=when('qk_layernorm', Const('layer')), attn_qk_head_norm_bias=when('qk_layernorm'),
    ),
    links=links(
        map_attention(
            f'{B}.self_attn.q_proj', f'{B}.self_attn.k_proj', f'{B}.self_attn.v_proj', f'{B}.self_attn.dense',
        ),
        map_ff(f'{B}.mlp.fc1', f'{B}.mlp.fc2'), map_norms(f'{B}.input_layernorm', None),
        map_qk_norms('layernorm', (R_LAST,), (R_LAST,)),
        map_ends('model.embed_tokens', 'model.final_layernorm', 'lm_head'),
    ),
))  # fmt: skip

register(LLAMA.like(
    'stablelm', 'StableLmForCausalLM',
    without=('rms_norm_eps', 'mlp_bias', 'attention_bias', 'use_rmsnorm', 'head_dim'),
    defaults=dict(
        vocab_size=50304, intermediate_size=6912, hidden_size=2560, max_position_embeddings=4096, layer_norm_eps=1e-5,
        partial_rotary_factor=0.25, use_qkv_bias=False, qk_layernorm=False, use_parallel_residual=False,
        hidden_dropout=0.0,
    ),
    rules=dict(rotates_part=True),
    layers=dict(
        norm_bias=True, norm_eps='layer_norm_eps', attn_qkv_bias='use_qkv_bias', attn_out_bias=False, ff_no_bias=True,
        ff_glu_bias=False, ff_sublayer_dropout='hidden_dropout',
        parallel_block=when('use_parallel_residual', Const('shared')),
        attn_qk_head_norm=when('qk_layernorm', Const('layer')), attn_qk_head_norm_shared=when('qk_layernorm', False),
    ),
    links=links(
        LLAMA_ATTENTION, LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS,
        link(f'{B}.self_attn.q_layernorm.norms.{{j}}.weight', f'{A}.1.q_norm.norm', HEAD_STACK, Q, R_LAST),
        link(f'{B}.self_attn.k_layernorm.norms.{{k}}.weight', f'{A}.1.k_norm.norm', HEAD_STACK, R_LAST),
    ),
))  # fmt: skip

register(LLAMA.like(
    'starcoder2', 'Starcoder2ForCausalLM', without=NOT_CLASSIC,
    free=('activation_function', 'layer_norm_epsilon', 'scale_attn_weights', 'layer_types'),
    fixed=dict(mlp_type=('default',), norm_type=('layer_norm',)),
    defaults=dict(
        vocab_size=49152, intermediate_size=12288, hidden_size=3072, num_hidden_layers=30, num_attention_heads=24,
        num_key_value_heads=2, hidden_act='gelu_pytorch_tanh', max_position_embeddings=4096, layer_norm_eps=1e-5,
        use_bias=True, sliding_window=None, tie_word_embeddings=True, residual_dropout=0.0, embedding_dropout=0.0,
    ),
    rules=dict(sliding=fields.sliding_everywhere), names=dict(norm_epsilon='layer_norm_eps'),
    model=dict(emb_dropout='embedding_dropout'),
    layers={
        **CLASSIC, **WINDOW, 'attn_qkv_bias': 'use_bias', 'attn_out_bias': 'use_bias', 'ff_no_bias': negate('use_bias'),
        **drop_branches('residual_dropout'),
    },
    links=links(LLAMA_ATTENTION, map_ff(f'{B}.mlp.c_fc', f'{B}.mlp.c_proj'), LLAMA_NORMS, LLAMA_ENDS),
))  # fmt: skip

COHERE = register(LLAMA.like(
    'cohere', 'CohereForCausalLM', without=('rms_norm_eps', 'mlp_bias', 'use_rmsnorm'),
    defaults=dict(
        vocab_size=256000, hidden_size=8192, intermediate_size=22528, logit_scale=0.0625, num_hidden_layers=40,
        num_attention_heads=64, max_position_embeddings=8192, layer_norm_eps=1e-5, rope_theta=500000.0,
        use_qk_norm=False, tie_word_embeddings=True,
    ),
    model=dict(tie_embedding_scale=when('tied', 'logit_scale'), logits_scale=unless('tied', 'logit_scale')),
    layers=dict(
        norm_eps='layer_norm_eps', parallel_block=Const('shared'), ff_no_bias=True, ff_glu_bias=False,
        attn_qk_head_norm=when('use_qk_norm', Const('layer')), attn_qk_head_norm_shared=when('use_qk_norm', False),
    ),
    links=links(
        PAIRS, LLAMA_GATED, map_norms(f'{B}.input_layernorm', None), LLAMA_ENDS,
        map_qk_norms('norm.weight', (PER_HEAD, Q), (PER_HEAD,)),
    ),
))  # fmt: skip

register(COHERE.like(
    'cohere2', 'Cohere2ForCausalLM', without=('use_qk_norm', 'attn_qk_head_norm', 'attn_qk_head_norm_shared'),
    defaults=dict(rope_theta=10000.0, sliding_window=4096, layer_types=None, sliding_window_pattern=4),
    rules=dict(sliding=fields.sliding_but_every('sliding_window_pattern')), free=('_sliding_window_pattern',),
    layers={**WINDOW, 'rotary_layers': fields.rotating_windows},
))  # fmt: skip

register(LLAMA.like(
    'nemotron', 'NemotronForCausalLM', without=('rms_norm_eps', 'use_rmsnorm', 'ff_glu', 'ff_glu_bias'),
    defaults=dict(
        vocab_size=256000, hidden_size=6144, intermediate_size=24576, num_attention_heads=48, hidden_act='relu2',
        max_position_embeddings=4096, layer_norm_eps=1e-5, partial_rotary_factor=0.5,
    ),
    rules=dict(rotates_part=True), names=dict(norm_eps='layer_norm_eps'),
    layers=dict(norm_bias=True, norm_add_unit_offset=True, norm_eps='layer_norm_eps'),
    links=links(LLAMA_ATTENTION, map_ff(f'{B}.mlp.up_proj', f'{B}.mlp.down_proj'), LLAMA_NORMS, LLAMA_ENDS),
))  # fmt: skip

PARALLEL_NORMS = links(
    link(f'{N}.ln_attn', f'{A}.0.0.norm', when=fields.has_two_norms),
    link(f'{N}.ln_mlp', f'{F}.0.0.norm', when=fields.has_two_norms),
    link(f'{N}.input_layernorm', f'{A}.0.0.norm', when=is_not(fields.has_two_norms)),
    link(f'{N}.post_attention_layernorm', f'{F}.0.0.norm', when=is_not(fields.has_two_norms)),
)

register(LLAMA.like(
    'falcon', 'FalconForCausalLM', without=(*NOT_CLASSIC, 'num_key_value_heads', 'head_dim'),
    fixed=dict(apply_residual_connection_post_layernorm=(False,)),
    defaults=dict(
        vocab_size=65024, hidden_size=4544, num_attention_heads=71, layer_norm_eps=1e-5, num_ln_in_parallel_attn=None,
        num_kv_heads=None, alibi=False, new_decoder_architecture=False, multi_query=True, parallel_attn=True,
        bias=False, intermediate_size=None, hidden_act='gelu', tie_word_embeddings=True, hidden_dropout=0.0,
    ),
    names=dict(layer_norm_epsilon='layer_norm_eps', ffn_hidden_size='intermediate_size', activation='hidden_act'),
    aliases=dict(
        n_embed='hidden_size', n_layer='num_hidden_layers', n_head='num_attention_heads', n_head_kv='num_kv_heads',
    ),
    layers={
        **CLASSIC, 'attn_kv_heads': fields.falcon_kv_heads, 'attn_qkv_bias': 'bias', 'attn_out_bias': 'bias',
        'ff_no_bias': negate('bias'), 'ff_dim_inner': fields.inner_width, 'parallel_block': fields.falcon_block,
        'alibi_pos_bias': when('alibi'), 'rel_pos_kwargs': when('alibi', fields.falcon_slopes),
        **drop_branches('hidden_dropout'),
        **{name: unless('alibi', LLAMA.layers[name]) for name in ROTARY},
    },
    sizes=dict(kv_heads=fields.falcon_kv_heads),
    links=links(
        map_fused(f'{N}.self_attention.query_key_value', SPLIT_HEADS, ROTATE_QKV, when=is_not(fields.is_grouped)),
        map_fused(f'{N}.self_attention.query_key_value', SPLIT_GROUPS, ROTATE_QKV, when=fields.is_grouped),
        map_output(f'{N}.self_attention.dense'), map_ff(f'{N}.mlp.dense_h_to_4h', f'{N}.mlp.dense_4h_to_h'),
        PARALLEL_NORMS, map_ends('transformer.word_embeddings', 'transformer.ln_f', 'lm_head'),
    ),
    base='transformer.', heads=TOKEN_CLASSES, tied=('lm_head.weight', 'transformer.word_embeddings.weight'),
))  # fmt: skip

# ALiBi

ALIBI = dict(alibi_pos_bias=True)
M = 'transformer.blocks.{i}'

register(LLAMA.like(
    'mpt', 'MptForCausalLM',
    without=(*ROPE, *NO_ROTARY, *ONE_KEY_EACH, *NOT_CLASSIC, 'hidden_act', 'intermediate_size'),
    defaults=dict(
        vocab_size=50368, hidden_size=2048, num_attention_heads=16, num_hidden_layers=24, layer_norm_eps=1e-5,
        attn_config={}, tie_word_embeddings=True, resid_pdrop=0.0, emb_pdrop=0.0,
    ),
    names=dict(max_seq_len='max_position_embeddings', layer_norm_epsilon='layer_norm_eps'),
    aliases=dict(d_model='hidden_size', n_heads='num_attention_heads', n_layers='num_hidden_layers'),
    free=('learned_pos_emb', 'init_device', 'verbose', 'init_config', 'expansion_ratio'),
    fixed=dict(
        logit_scale=(None,), no_bias=(True,), embedding_fraction=(1, 1.0),
        norm_type=('low_precision_layernorm', 'layernorm'),
    ),
    model=dict(emb_dropout='emb_pdrop'),
    layers=dict(
        **ALIBI, rel_pos_kwargs=fields.mpt_slopes, norm_eps='layer_norm_eps', attn_qkv_bias=None, attn_out_bias=None,
        attn_qkv_clip=fields.mpt_clip,
        attn_softmax_scale=lambda c: fields.mpt_attention(c).get('softmax_scale'),
        attn_dropout=lambda c: fields.mpt_attention(c).get('attn_pdrop', 0), ff_no_bias=True,
        ff_activation=Const('gelu'), ff_dim_inner=lambda c: 4 * c.hidden_size, **drop_branches('resid_pdrop'),
    ),
    sizes=dict(kv_heads='num_attention_heads'),
    links=links(
        map_fused(f'{M}.attn.Wqkv', SPLIT), map_output(f'{M}.attn.out_proj'),
        map_ff(f'{M}.ffn.up_proj', f'{M}.ffn.down_proj'), map_norms(f'{M}.norm_1', f'{M}.norm_2'),
        map_ends('transformer.wte', 'transformer.norm_f', 'lm_head'),
    ),
    base='transformer.', heads=TOKEN_CLASSES, tied=('lm_head.weight', 'transformer.wte.weight'),
))  # fmt: skip

register(LLAMA.like(
    'bloom', 'BloomForCausalLM',
    without=(
        *ROPE, *NO_ROTARY, *ONE_KEY_EACH, *NOT_CLASSIC, 'hidden_act', 'intermediate_size', 'max_position_embeddings',
    ),
    defaults=dict(
        vocab_size=250880, hidden_size=64, num_hidden_layers=2, num_attention_heads=8, layer_norm_eps=1e-5,
        tie_word_embeddings=True, hidden_dropout=0.0,
    ),
    names=dict(layer_norm_epsilon='layer_norm_eps'),
    aliases=dict(n_embed='hidden_size', n_layer='num_hidden_layers', n_head='num_attention_heads'),
    free=(
        'seq_length', 'offset_alibi', 'attention_softmax_in_fp32', 'masked_softmax_fusion', 'bias_dropout_fusion',
        'skip_bias_add', 'skip_bias_add_qkv', 'unk_token_id', 'n_inner',
    ),
    fixed=dict(apply_residual_connection_post_layernorm=(False,), slow_but_exact=(False,)),
    model=dict(post_emb_norm=True, post_emb_norm_bias=True, post_emb_norm_eps='layer_norm_eps'),
    layers=dict(
        **ALIBI, **CLASSIC, ff_activation=Const('gelu_tanh'), ff_dim_inner=lambda c: 4 * c.hidden_size,
        **drop_branches('hidden_dropout'),
    ),
    sizes=dict(kv_heads='num_attention_heads'),
    links=links(
        map_fused(f'{N}.self_attention.query_key_value', SPLIT_HEADS), map_output(f'{N}.self_attention.dense'),
        map_ff(f'{N}.mlp.dense_h_to_4h', f'{N}.mlp.dense_4h_to_h'),
        map_norms(f'{N}.input_layernorm', f'{N}.post_attention_layernorm'),
        link('transformer.word_embeddings_layernorm', 'post_emb_norm.norm'),
        map_ends('transformer.word_embeddings', 'transformer.ln_f', 'lm_head'),
    ),
    base='transformer.', heads=TOKEN_CLASSES, tied=('lm_head.weight', 'transformer.word_embeddings.weight'),
))  # fmt: skip
