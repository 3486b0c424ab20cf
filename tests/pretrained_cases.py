"""Tiny models of `transformers`, the oracle of `pretrained`, and what makes them compute in float64 throughout."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers import pretrained

D = dict(
    vocab_size=96, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
G = {**D, 'num_key_value_heads': 2}
D_IMAGE = dict(
    hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=56, image_size=16, patch_size=4,
    num_labels=7,
)  # fmt: skip
S2S = dict(
    vocab_size=96, d_model=32, encoder_layers=3, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=56, decoder_ffn_dim=56, max_position_embeddings=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
)  # fmt: skip
WHISPER = {
    **{name: value for name, value in S2S.items() if name != 'max_position_embeddings'},
    **dict(num_mel_bins=10, max_source_positions=12, max_target_positions=30, begin_suppress_tokens=None),
}
T5 = dict(
    vocab_size=96, d_model=32, d_kv=6, d_ff=56, num_layers=3, num_decoder_layers=2, num_heads=4,
    relative_attention_num_buckets=8, relative_attention_max_distance=16, pad_token_id=0, eos_token_id=1,
    decoder_start_token_id=0,
)  # fmt: skip


def rope(kind: str, theta: float = 10000.0, **rest: Any) -> dict[str, Any]:
    return {'rope_parameters': {'rope_type': kind, 'rope_theta': theta, **rest}}


ROPES = {
    'linear': rope('linear', factor=4.0),
    'dynamic': {**rope('dynamic', factor=4.0), 'max_position_embeddings': 16},
    'yarn': rope('yarn', factor=4.0, original_max_position_embeddings=16),
    'yarn by mscale': rope(
        'yarn', factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=0.5, beta_fast=4.0,
        beta_slow=2.0, truncate=False,
    ),
    'longrope, long': rope(
        'longrope', short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 3.0, 4.0], factor=4.0,
        original_max_position_embeddings=16,
    ),
    'longrope, short': rope(
        'longrope', short_factor=[1.0, 1.1, 1.2, 1.3], long_factor=[1.0, 2.0, 3.0, 4.0], factor=4.0,
        original_max_position_embeddings=48,
    ),
    'llama3': rope(
        'llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    'partial': rope('default', partial_rotary_factor=0.5),
}  # fmt: skip
GEMMA2 = {**G, 'head_dim': 12, 'sliding_window': 8, 'query_pre_attn_scalar': 20}
DEEPSEEK = dict(
    **D, num_key_value_heads=4, moe_intermediate_size=20, n_routed_experts=8, n_shared_experts=1,
    num_experts_per_tok=2, n_group=2, topk_group=1, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=4,
    qk_nope_head_dim=8, v_head_dim=10, first_k_dense_replace=1,
)  # fmt: skip
GPT2 = dict(n_embd=32, n_layer=3, n_head=4, n_positions=64, n_inner=56, vocab_size=96, bos_token_id=1, eos_token_id=2)
FALCON = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, vocab_size=96, bos_token_id=1, eos_token_id=2)
MPT = dict(d_model=32, n_layers=3, n_heads=4, max_seq_len=64, vocab_size=96)
BLOOM = dict(hidden_size=32, n_layer=3, n_head=4, vocab_size=96)
SMOL = {**G, 'num_hidden_layers': 4}
DEBERTA = dict(
    **D, relative_attention=True, position_buckets=8, norm_rel_ebd='layer_norm', share_att_key=True,
    pos_att_type=['p2c', 'c2p'], position_biased_input=False, type_vocab_size=0,
)  # fmt: skip

# type: the base, and what further cases change of it
DECODERS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    'gpt2': (
        GPT2,
        [
            dict(scale_attn_weights=False),
            dict(scale_attn_by_inverse_layer_idx=True),
            dict(activation_function='relu', tie_word_embeddings=False, n_inner=None),
        ],
    ),
    'gpt_neox': (
        D,
        [
            dict(use_parallel_residual=False, tie_word_embeddings=True),
            dict(attention_bias=False, **rope('linear', factor=4.0, partial_rotary_factor=0.5)),
        ],
    ),
    'llama': (
        G,
        [
            dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
            dict(num_key_value_heads=1, head_dim=16),
            dict(num_attention_heads=8, num_key_value_heads=4, head_dim=6),
            *ROPES.values(),
            dict(num_attention_heads=1, num_key_value_heads=1),
        ],
    ),
    'mistral': ({**G, 'sliding_window': 8}, [dict(sliding_window=None)]),
    'mixtral': ({**G, 'num_local_experts': 4, 'num_experts_per_tok': 2}, [dict(sliding_window=8)]),
    'qwen2': (
        G,
        [dict(use_sliding_window=True, sliding_window=8, max_window_layers=1), dict(tie_word_embeddings=True)],
    ),
    'qwen3': (
        {**G, 'head_dim': 12},
        [dict(attention_bias=True, use_sliding_window=True, sliding_window=8, max_window_layers=2)],
    ),
    'qwen3_moe': (
        {**G, 'head_dim': 12, 'num_experts': 6, 'num_experts_per_tok': 2, 'moe_intermediate_size': 20,
         'mlp_only_layers': [1]},
        [dict(norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[])],
    ),
    'gemma': ({**G, 'head_dim': 12}, []),
    'gemma2': (GEMMA2, [dict(attn_logit_softcapping=2.0, final_logit_softcapping=1.0)]),
    'gemma3_text': (
        {**GEMMA2, 'num_hidden_layers': 7},
        [
            dict(final_logit_softcapping=1.0),
            dict(
                rope_parameters={
                    'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0},
                    'full_attention': {'rope_type': 'linear', 'rope_theta': 1e6, 'factor': 8.0},
                }
            ),
        ],
    ),
    'phi': (G, [dict(qk_layernorm=True), dict(head_dim=12)]),
    'phi3': (
        G,
        [
            dict(
                sliding_window=8, original_max_position_embeddings=16,
                **rope('longrope', short_factor=[1.0, 1.1], long_factor=[1.0, 2.0], partial_rotary_factor=0.5),
            ),
            dict(head_dim=12),
        ],
    ),
    'olmo': ({**G, 'clip_qkv': 0.02}, [dict(clip_qkv=None), dict(head_dim=12)]),
    'olmo2': (G, [dict(head_dim=12)]),
    'falcon': (
        FALCON,
        [
            dict(multi_query=False, bias=True, parallel_attn=False),
            dict(multi_query=False),
            dict(new_decoder_architecture=True, num_kv_heads=2),
            dict(new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1, tie_word_embeddings=False),
            dict(alibi=True),
            dict(alibi=True, new_decoder_architecture=True, num_kv_heads=2),
        ],
    ),
    'mpt': (
        MPT,
        [dict(n_heads=6, d_model=48), dict(attn_config=dict(clip_qkv=0.5)), dict(attn_config=dict(softmax_scale=0.7))],
    ),
    'bloom': (BLOOM, [dict(n_head=6, hidden_size=48)]),
    'stablelm': (G, [dict(qk_layernorm=True, use_qkv_bias=True), dict(use_parallel_residual=True)]),
    'starcoder2': ({**G, 'sliding_window': 8}, [dict(use_bias=False, sliding_window=None), dict(head_dim=12)]),
    'cohere': (G, [dict(use_qk_norm=True), dict(use_qk_norm=True, head_dim=12)]),
    'cohere2': ({**G, 'num_hidden_layers': 4, 'sliding_window': 8}, []),
    'granite': (
        {**G, 'embedding_multiplier': 12.0, 'logits_scaling': 8.0, 'residual_multiplier': 0.22,
         'attention_multiplier': 0.3},
        [dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True), dict(head_dim=12)],
    ),
    'smollm3': (
        SMOL,
        [
            dict(
                use_sliding_window=True, sliding_window=8,
                layer_types=['sliding_attention'] * 3 + ['full_attention'],
            ),
            dict(head_dim=12),
        ],
    ),
    'deepseek_v3': (
        DEEPSEEK,
        [
            dict(rope_interleave=False),
            rope('yarn', factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0),
            dict(q_lora_rank=None),
            dict(n_shared_experts=2, attention_bias=True),
        ],
    ),
    'gpt_oss': (
        {**G, 'head_dim': 12, 'num_local_experts': 4, 'num_experts_per_tok': 2, 'sliding_window': 8,
         'num_hidden_layers': 4},
        [dict(swiglu_limit=0.2, **rope('default'))],
    ),
    'glm4': ({**G, 'head_dim': 8}, []),
    'nemotron': (G, [dict(mlp_bias=True, attention_bias=True)]),
    'exaone4': (
        {**G, 'num_hidden_layers': 5, 'sliding_window': 8},
        [dict(sliding_window=None, layer_types=['full_attention'] * 5)],
    ),
}  # fmt: skip

WINDOWED = {**G, 'num_hidden_layers': 4, 'sliding_window': 8}
DECODERS |= {
    'iquestcoder': ({**G, 'head_dim': 8}, [dict(attention_bias=True)]),
    'ministral': (
        {**WINDOWED, 'head_dim': 12},
        [dict(layer_types=['sliding_attention', 'full_attention'] * 2)],
    ),
    'seed_oss': (
        {**G, 'head_dim': 12}, [dict(attention_bias=False, attention_out_bias=True, tie_word_embeddings=True)],
    ),
    'cwm': ({**WINDOWED, 'head_dim': 12}, [rope('default'), dict(layer_types=['sliding_attention'] * 4)]),
    'arcee': ({**G, 'head_dim': 12}, [dict(mlp_bias=True, attention_bias=True, **rope('linear', factor=4.0))]),
    'helium': ({**G, 'head_dim': 8}, [dict(attention_bias=True, mlp_bias=True)]),
    'ernie4_5': ({**G, 'head_dim': 12}, [dict(use_bias=True, tie_word_embeddings=False)]),
    'glm': ({**G, 'head_dim': 8}, [dict(attention_bias=False)]),
    'olmo3': (
        WINDOWED,
        [
            dict(attention_bias=True, head_dim=12),
            dict(
                rope_parameters={
                    'sliding_attention': {'rope_type': 'default', 'rope_theta': 10000.0},
                    'full_attention': ROPES['yarn']['rope_parameters'],
                }
            ),
        ],
    ),
    'vaultgemma': ({**GEMMA2, 'num_hidden_layers': 4}, [dict(attn_logit_softcapping=2.0, attention_bias=True)]),
}  # fmt: skip

ENCODERS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    'bert': (D, [dict(hidden_act='gelu_new', layer_norm_eps=1e-5), dict(tie_word_embeddings=False)]),
    'roberta': ({**D, 'pad_token_id': 1, 'bos_token_id': 0, 'type_vocab_size': 1}, []),
    'distilbert': (
        dict(vocab_size=96, dim=32, n_layers=3, n_heads=4, hidden_dim=56, max_position_embeddings=64, pad_token_id=0),
        [],
    ),
    'electra': ({**D, 'embedding_size': 20}, [dict(embedding_size=32), dict(tie_word_embeddings=False)]),
    'albert': ({**D, 'embedding_size': 20}, []),
    'deberta-v2': (
        DEBERTA,
        [
            dict(share_att_key=False, position_buckets=-1, norm_rel_ebd='none', position_biased_input=True),
            dict(pos_att_type=['c2p']),
            dict(embedding_size=20, type_vocab_size=2, position_biased_input=True, tie_word_embeddings=False),
        ],
    ),
    'modernbert': (
        {**D, 'num_hidden_layers': 4, 'local_attention': 8,
         'layer_types': ['full_attention', 'sliding_attention', 'sliding_attention', 'full_attention']},
        [
            dict(attention_bias=True, mlp_bias=True, norm_bias=True),
            dict(classifier_bias=True, classifier_activation='relu', hidden_activation='silu'),
        ],
    ),
}  # fmt: skip

XLM_R = ENCODERS['roberta'][0]
ENCODERS |= {
    'xlm-roberta': (XLM_R, [dict(hidden_act='relu', type_vocab_size=3)]),
    'camembert': (XLM_R, []),
    'data2vec-text': (XLM_R, []),
    'ernie': (D, [dict(hidden_act='gelu_new', type_vocab_size=3)]),
    'roberta-prelayernorm': (XLM_R, [dict(layer_norm_eps=1e-3)]),
    'xlm-roberta-xl': (XLM_R, [dict(layer_norm_eps=1e-3)]),
    'megatron-bert': (D, [dict(hidden_act='relu')]),
    'mpnet': ({**D, 'pad_token_id': 1, 'bos_token_id': 0}, [dict(hidden_act='relu')]),
}  # fmt: skip

SEQ2SEQ: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    't5': (T5, [dict(feed_forward_proj='gated-gelu', tie_word_embeddings=False)]),
    'mt5': ({**T5, 'feed_forward_proj': 'gated-gelu'}, []),
    'bart': (S2S, [dict(scale_embedding=True, activation_function='relu'), dict(tie_word_embeddings=False)]),
    'marian': (
        {**S2S, 'scale_embedding': True, 'activation_function': 'relu'},
        [dict(share_encoder_decoder_embeddings=False, decoder_vocab_size=90, scale_embedding=False)],
    ),
    'whisper': (
        WHISPER,
        [dict(scale_embedding=True, activation_function='relu', encoder_attention_heads=2, decoder_attention_heads=1)],
    ),
}

OTHER = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=24, patch_size=8, num_channels=1,
    hidden_act='gelu_new', layer_norm_eps=1e-4,
)  # fmt: skip
TEXT = {**D, 'max_position_embeddings': 24, 'eos_token_id': 95}
VISION = {name: value for name, value in D_IMAGE.items() if name != 'num_labels'}
DINO = {**{name: value for name, value in D_IMAGE.items() if name != 'intermediate_size'}, 'mlp_ratio': 2}

# type: the base, and what the models of a class change of it
IMAGES: dict[str, tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]] = {
    'vit': (
        D_IMAGE,
        {
            'ViTForImageClassification': [{}, dict(qkv_bias=False)],
            'ViTModel': [
                {},
                dict(OTHER, pooler_output_size=20, pooler_act='gelu', hidden_act='silu'),
                dict(image_size=[16, 24], patch_size=[4, 8]),
            ],
        },
    ),
    'deit': (
        D_IMAGE,
        {
            'DeiTForImageClassification': [{}],
            'DeiTForImageClassificationWithTeacher': [{}, dict(OTHER, qkv_bias=False)],
            'DeiTModel': [{}, dict(image_size=[18, 24])],
        },
    ),
    'dinov2': (
        DINO,
        {
            'Dinov2ForImageClassification': [{}, dict(use_swiglu_ffn=True)],
            'Dinov2Model': [{}, dict(OTHER, mlp_ratio=3, use_swiglu_ffn=True, qkv_bias=False), OTHER],
        },
    ),
    'dinov2_with_registers': (
        {**DINO, 'num_register_tokens': 3},
        {
            'Dinov2WithRegistersForImageClassification': [{}],
            'Dinov2WithRegistersModel': [dict(use_swiglu_ffn=True), dict(OTHER, num_register_tokens=1)],
        },
    ),
    'siglip_vision_model': (
        VISION,
        {
            'SiglipVisionModel': [
                {}, dict(vision_use_head=False), {**OTHER, 'image_size': 27, 'num_attention_heads': 1},
            ]
        },
    ),
    'clip_vision_model': (
        {**VISION, 'projection_dim': 12},
        {'CLIPVisionModel': [{}, OTHER], 'CLIPVisionModelWithProjection': [{}, dict(hidden_act='gelu')]},
    ),
}  # fmt: skip
CLIP = dict(text_config=TEXT, vision_config=VISION, projection_dim=12)
TOWERS: dict[str, tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]] = {
    'siglip_text_model': (
        TEXT, {'SiglipTextModel': [{}, dict(projection_size=20, hidden_act='relu', num_attention_heads=2)]}
    ),
    'clip_text_model': (
        {**TEXT, 'projection_dim': 12},
        {'CLIPTextModel': [{}, dict(eos_token_id=2)], 'CLIPTextModelWithProjection': [{}, dict(hidden_act='gelu')]},
    ),
    'clip': (CLIP, {'CLIPModel': [{}, dict(vision_config={**VISION, **OTHER}, projection_dim=20)]}),
    'siglip': (
        dict(text_config=TEXT, vision_config=VISION),
        {
            'SiglipModel': [
                {},
                dict(text_config={**TEXT, 'projection_size': 24}, vision_config={**VISION, **OTHER}),
            ]
        },
    ),
}  # fmt: skip

CLASSES = {'num_labels': 5}


def heads_of(stem: str, base: dict[str, Any], *further: str, **changed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Classes for sequences, for tokens, and without a head."""
    kinds = {f'{stem}ForSequenceClassification': [{**CLASSES, **changed}], f'{stem}Model': [{}]}
    return base, {**kinds, **{stem + end: [{} if end == OF_SPANS else CLASSES] for end in further}}


OF_TOKENS, OF_SPANS = 'ForTokenClassification', 'ForQuestionAnswering'
BOTH = (OF_TOKENS, OF_SPANS)
HEADS: dict[str, tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]] = {
    'bert': heads_of('Bert', ENCODERS['bert'][0], *BOTH),
    'roberta': heads_of('Roberta', ENCODERS['roberta'][0], *BOTH),
    'distilbert': heads_of('DistilBert', ENCODERS['distilbert'][0], *BOTH),
    'electra': heads_of('Electra', ENCODERS['electra'][0], 'ForPreTraining', *BOTH),
    'albert': heads_of('Albert', ENCODERS['albert'][0], *BOTH),
    'deberta-v2': heads_of('DebertaV2', ENCODERS['deberta-v2'][0], *BOTH),
    'modernbert': heads_of(
        'ModernBert', ENCODERS['modernbert'][0], *BOTH, classifier_pooling='mean', classifier_bias=True,
        classifier_activation='relu', norm_bias=True,
    ),
    'gpt2': heads_of('GPT2', {**GPT2, 'pad_token_id': 0}, *BOTH),
    'llama': heads_of('Llama', G, *BOTH),
    'mistral': heads_of('Mistral', DECODERS['mistral'][0], *BOTH),
    'mixtral': heads_of('Mixtral', DECODERS['mixtral'][0], *BOTH),
    'qwen2': heads_of('Qwen2', G, *BOTH),
    'qwen3': heads_of('Qwen3', DECODERS['qwen3'][0], *BOTH),
    'gemma2': heads_of('Gemma2', GEMMA2, OF_TOKENS),
    'gemma3_text': heads_of('Gemma3Text', GEMMA2),
    'phi3': heads_of('Phi3', G, OF_TOKENS),
    'gpt_oss': heads_of('GptOss', DECODERS['gpt_oss'][0], OF_TOKENS),
    'nemotron': heads_of('Nemotron', G, *BOTH),
    'gpt_neox': heads_of('GPTNeoX', D, *BOTH),
    'falcon': heads_of('Falcon', {**FALCON, 'pad_token_id': 0}, *BOTH),
    'mpt': heads_of('Mpt', {**MPT, 'pad_token_id': 0}, *BOTH),
    'bloom': heads_of('Bloom', {**BLOOM, 'pad_token_id': 0}, *BOTH),
    'cohere': (G, {'CohereModel': [{}]}),
    'xlm-roberta': heads_of('XLMRoberta', XLM_R, *BOTH),
    'camembert': heads_of('Camembert', XLM_R, *BOTH),
    'data2vec-text': heads_of('Data2VecText', XLM_R, *BOTH),
    'ernie': heads_of('Ernie', D, *BOTH),
    'roberta-prelayernorm': heads_of('RobertaPreLayerNorm', XLM_R, *BOTH),
    'xlm-roberta-xl': heads_of('XLMRobertaXL', XLM_R, *BOTH),
    'megatron-bert': heads_of('MegatronBert', D, *BOTH),
    'mpnet': heads_of('MPNet', ENCODERS['mpnet'][0], *BOTH),
    'ministral': heads_of('Ministral', DECODERS['ministral'][0], *BOTH),
    'seed_oss': heads_of('SeedOss', DECODERS['seed_oss'][0], *BOTH),
    'arcee': heads_of('Arcee', DECODERS['arcee'][0], *BOTH),
    'bart': (S2S, {'BartForSequenceClassification': [CLASSES]}),
    't5': (T5, {'T5EncoderModel': [{}]}),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    type: str
    config: dict[str, Any] = field(hash=False)
    number: int = 0
    kind: str = 'CausalLM'

    def __str__(self) -> str:
        return f'{self.type}-{self.number}'


def cases_of(table: dict[str, Any], kind: str) -> list[Case]:
    return [
        Case(name, {**base, **changed}, number, kind)
        for name, (base, further) in table.items()
        for number, changed in enumerate([{}, *further])
    ]


def cases_of_classes(table: dict[str, Any]) -> list[Case]:
    """Their kind is the class itself."""
    return [
        Case(name, {**base, **changed}, number, kind)
        for name, (base, kinds) in table.items()
        for number, (kind, changed) in enumerate((kind, one) for kind, further in kinds.items() for one in further)
    ]


CASES = [*cases_of(DECODERS, 'CausalLM'), *cases_of(ENCODERS, 'MaskedLM')]

SEQ2SEQ_CASES = [
    replace(case, kind='SpeechSeq2Seq') if case.type == 'whisper' else case for case in cases_of(SEQ2SEQ, 'Seq2SeqLM')
]
HEAD_CASES = cases_of_classes(HEADS)
IMAGE_CASES, TOWER_CASES = cases_of_classes(IMAGES), cases_of_classes(TOWERS)

# what HF computes a little differently
BARS = {'bloom': 1e-8, 'deberta-v2': 1e-6, 'falcon-5': 1e-8, 'falcon-6': 1e-7}


@contextmanager
def lifted():
    """Casts to float32 leave float64 as it is, and integers become float64: all that is computed is float64."""
    own = {name: getattr(torch.Tensor, name) for name in ('to', 'float', 'type')}
    softmax, functional = torch.Tensor.softmax, torch.nn.functional.softmax
    plain = torch.softmax

    def kept(t: torch.Tensor, dtype: Any) -> Any:
        wide = t.dtype == torch.float64 or not t.dtype.is_floating_point
        return torch.float64 if wide and dtype in (torch.float32, torch.float) else dtype

    def to(self, *args, **kwargs):
        args = tuple(kept(self, a) if isinstance(a, torch.dtype) else a for a in args)
        if isinstance(kwargs.get('dtype'), torch.dtype):
            kwargs['dtype'] = kept(self, kwargs['dtype'])
        return own['to'](self, *args, **kwargs)

    def as_float(self, *args, **kwargs):
        return own['to'](self, kept(self, torch.float32))

    def as_type(self, dtype=None, *args, **kwargs):
        return own['type'](self, kept(self, dtype) if isinstance(dtype, torch.dtype) else dtype, *args, **kwargs)

    def softly(function):
        @functools.wraps(function)
        def run(x, *args, dtype=None, **kwargs):
            return function(x, *args, **({} if dtype is None else {'dtype': kept(x, dtype)}), **kwargs)

        return run

    torch.Tensor.to, torch.Tensor.float, torch.Tensor.type = to, as_float, as_type
    torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax = map(softly, (functional, plain, softmax))
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(torch.Tensor, name, value)
        torch.nn.functional.softmax, torch.softmax, torch.Tensor.softmax = functional, plain, softmax


def noisy(model: torch.nn.Module, seed: int = 1) -> None:
    """No bias is zero, no gain one. Sines stay what they are."""
    generator = torch.Generator().manual_seed(seed)
    fixed = {id(m.weight) for m in model.modules() if 'Sinusoidal' in type(m).__name__}
    drawn = {name: t for name, t in model.named_parameters() if id(t) not in fixed}
    drawn |= {n: b for n, b in model.named_buffers() if 'correction_bias' in n or 'final_logits_bias' in n}
    with torch.no_grad():
        for t in drawn.values():
            t += torch.randn(t.shape, generator=generator) * (0.15 if t.ndim > 1 else 0.3)


def config_of(case: Case) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(case.type, **case.config)


def theirs(case: Case) -> Any:
    """A model of `transformers`, in float32, with noise on all of its weights."""
    import transformers

    torch.manual_seed(1)
    config = config_of(case)
    auto = getattr(transformers, f'AutoModelFor{case.kind}', None)
    build = getattr(transformers, case.kind)._from_config if auto is None else auto.from_config
    eager = 'sdpa' if case.config.get('alibi') is True else 'eager'
    options = {'experts_implementation': 'eager'} if 'experts' in str(case.config) else {}
    model = build(config, attn_implementation=eager, **options)
    noisy(model)
    return model.eval()


@functools.cache
def checkpoint(case: Case) -> tuple[Any, Path]:
    """A model of `transformers`, and the folder that it has written. Do not change the model."""
    model, folder = theirs(case), Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model.save_pretrained(folder)
    return model, folder


def check_same_tensors(folder: Path, other: Path) -> None:
    """That two folders hold the same weights under the same names, to the bit."""
    before, after = (pretrained.files.Weights(path) for path in (folder, other))
    assert before.files.keys() == after.files.keys()
    for name in before.files:
        assert torch.equal(before.load(name), after.load(name)), name


def ids_of(case: Case, rows: int = 2, seed: int = 0) -> torch.Tensor:
    length = 30 if case.kind == 'CausalLM' else 20
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 96, (rows, length), generator=generator)


def texts(case: Case, pad: int | None) -> tuple[Tensor, Tensor]:
    """Ids of unequal lengths, each with an end, and where they are real."""
    ids = ids_of(case)[:, :20].clamp(max=90)
    real = torch.arange(20) < torch.tensor([20, 13])[:, None]
    ids[torch.arange(2), real.sum(dim=1) - 1] = 2
    return ids.masked_fill(~real, pad or 0), real


def of_theirs(case: Case, model: nn.Module) -> list[Tensor]:
    """Logits, or hidden states of real tokens, and what is pooled."""
    ids, real = texts(case, model.config.pad_token_id)
    wide = lifted() if model.dtype == torch.float64 else nullcontext()
    with torch.no_grad(), wide:
        out = model(ids, attention_mask=real.long())
    first = out.get('logits', out.get('last_hidden_state'))
    if first is None:
        first = torch.stack((out.start_logits, out.end_logits), dim=-1)
    pooled = out.get('pooler_output')
    return [first[real] if first.shape[:2] == real.shape else first, *([] if pooled is None else [pooled])]
