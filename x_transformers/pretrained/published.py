"""Sizes of published models, by name, for `presets`."""

# Sizes that `scale` multiplies: widths, and numbers of heads and experts. Widths of heads stay.
SCALED = (
    'hidden_size intermediate_size moe_intermediate_size num_attention_heads num_key_value_heads q_lora_rank '
    'kv_lora_rank num_experts num_local_experts n_routed_experts'
).split()
FIELDS = 'hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads'.split()
FIELDS += ['moe_intermediate_size']
LLAMAS = {
    '1-7b': (4096, 11008, 32, 32, 32), '1-13b': (5120, 13824, 40, 40, 40), '1-33b': (6656, 17920, 60, 52, 52),
    '1-65b': (8192, 22016, 80, 64, 64), '2-7b': (4096, 11008, 32, 32, 32), '2-13b': (5120, 13824, 40, 40, 40),
    '2-70b': (8192, 28672, 80, 64, 8), '3-8b': (4096, 14336, 32, 32, 8), '3-70b': (8192, 28672, 80, 64, 8),
    '3-405b': (16384, 53248, 126, 128, 8),
}  # fmt: skip
LONGER = {'rms_norm_eps': 1e-5, 'max_position_embeddings': 4096}
LATER = {**LONGER, 'max_position_embeddings': 8192, 'vocab_size': 128256, 'rope_theta': 500000.0}
QWEN3 = {
    '0.6b': (1024, 3072, 28, 16, 8), '1.7b': (2048, 6144, 28, 16, 8), '4b': (2560, 9728, 36, 32, 8),
    '8b': (4096, 12288, 36, 32, 8), '14b': (5120, 17408, 40, 40, 8), '32b': (5120, 25600, 64, 64, 8),
    '30b-a3b': (2048, 6144, 48, 32, 4, 768), '235b-a22b': (4096, 12288, 94, 64, 4, 1536),
}  # fmt: skip
LFM2 = {'350m': (1024, 4608, 16, 16, 8), '700m': (1536, 6912, 16, 24, 8), '1.2b': (2048, 8192, 16, 32, 8)}
GEMMA3_1B = {'vocab_size': 262144, 'sliding_window': 512, 'max_position_embeddings': 32768}
GEMMA3_LARGER = {'sliding_window': 1024, 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}}
GEMMA3 = {'1b': (1152, 6912, 26, 4, 1), '4b': (2560, 10240, 34, 8, 4)}
GEMMA3 |= {'12b': (3840, 15360, 48, 16, 8), '27b': (5376, 21504, 62, 32, 16)}
# width, blocks, heads, and the height of a patch or the width of a head; inner width, vocabulary, length, dropout
GPT3 = {
    '125m': (768, 12, 12), '350m': (1024, 24, 16), '760m': (1536, 24, 16), '1.3b': (2048, 24, 16),
    '2.7b': (2560, 32, 32), '6.7b': (4096, 32, 32), '13b': (5120, 40, 40), '175b': (12288, 96, 96),
}  # fmt: skip
VITS = {'s16': (384, 12, 6, 16), 'b16': (768, 12, 12, 16), 'l16': (1024, 24, 16, 16)}
VITS |= {'l14': (1024, 24, 16, 14), 'h14': (1280, 32, 16, 14)}
PALMS = {'8b': (4096, 32, 16, 256), '62b': (8192, 64, 32, 256), '540b': (18432, 118, 48, 256)}
GOPHERS = {'44m': (512, 8, 16, 32), '117m': (768, 12, 12, 64), '417m': (1536, 12, 12, 128)}
GOPHERS |= {'1.4b': (2048, 24, 16, 128), '7.1b': (4096, 32, 32, 128), '280b': (16384, 80, 128, 128)}
TRANSFORMER_XLS = {
    'wt103_base': (410, 16, 10, 41, 2100, 267735, 150, 0.1), 'enwik8_base': (512, 12, 8, 64, 2048, 204, 512, 0.1),
    'enwik8_large': (1024, 24, 8, 128, 3072, 204, 768, 0.15),
}  # fmt: skip
PERFORMERS = {'imagenet64': (512, 6, 8, 64, 2048, 256, 12288), 'protein': (512, 36, 8, 64, 1024, 30, 8192)}
QWEN3_NEXT = (2048, 5632, 48, 16, 2, 512)
QWEN3_NEXT_FIELDS = {
    'model_type': 'qwen3_moe', 'norm_topk_prob': True, 'head_dim': 256, 'num_local_experts': 512,
    'num_experts_per_tok': 10, 'rope_theta': 1e7, 'partial_rotary_factor': 0.25, 'max_position_embeddings': 262144,
}  # fmt: skip
MAMBA2 = {'130m': (768, 24), '370m': (1024, 48), '780m': (1536, 48), '1.3b': (2048, 48), '2.7b': (2560, 64)}
GATED_ATTENTION = {'attn_gate_values': True, 'attn_gate_values_bias': False}
