"""Types that are another row under another name, or nearly so."""

from __future__ import annotations

from typing import Any

from x_transformers.pretrained.changes import CUT, HALVES
from x_transformers.pretrained.encoders import BERT, DROP, ROBERTA, embeddings
from x_transformers.pretrained.fields import head_width, no, rotating_by_kind, sliding_but_every
from x_transformers.pretrained.heads import Head, classifier, of_encoders, of_sequence, on, with_base
from x_transformers.pretrained.llama import GEMMA2, GLM4, LLAMA, MISTRAL, OLMO2, WINDOW
from x_transformers.pretrained.parts import (
    LLAMA_ATTENTION,
    LLAMA_ENDS,
    LLAMA_GATED,
    LLAMA_NORMS,
    A,
    B,
    F,
    Links,
    attention,
    plain,
)
from x_transformers.pretrained.rows import Const, Row, link, links, register

# encoders


def roberta_heads(base: str) -> dict[str, Head]:
    classes = of_sequence(classifier('first', 'tanh', **DROP), on('classifier.dense', 'classifier.out_proj'))
    return of_encoders(classes, f'{base}pooler.dense', DROP['dropout'])


def bert_heads(base: str) -> dict[str, Head]:
    pooler = f'{base}pooler.dense'
    return of_encoders(
        of_sequence(classifier('first', 'tanh', **DROP), on(pooler, 'classifier')), pooler, DROP['dropout']
    )


def renamed(row: Row, base: str, heads: dict[str, Head]) -> dict[str, Any]:
    """What a row with another prefix of the base model changes."""
    moved = with_base(row, base)
    changes: dict[str, Any] = dict(base=base, links=moved.links, heads=heads)
    if row.tied is not None:
        changes['tied'] = (row.tied[0], row.tied[1].replace(row.base, base, 1))
    return changes


XLM_ROBERTA = register(
    ROBERTA.like('xlm_roberta', 'XLMRobertaForMaskedLM', spelled='xlm-roberta', defaults=dict(vocab_size=30522))
)
register(ROBERTA.like('camembert', 'CamembertForMaskedLM', defaults=dict(vocab_size=30522)))
register(
    ROBERTA.like(
        'data2vec_text', 'Data2VecTextForMaskedLM', spelled='data2vec-text', defaults=dict(vocab_size=30522),
        **renamed(ROBERTA, 'data2vec_text.', roberta_heads('data2vec_text.')),
    )
)  # fmt: skip
register(
    BERT.like(
        'ernie', 'ErnieForMaskedLM', fixed=dict(use_task_id=(False,)), free=(*BERT.free, 'task_type_vocab_size'),
        **renamed(BERT, 'ernie.', bert_heads('ernie.')),
    )
)  # fmt: skip


def pre_norm(prefix: str, attention_norm: str, feedforward_norm: str, last: str) -> Links:
    """Blocks of BERT with their norms before each residual."""
    block, s = f'{prefix}.encoder.layer.{{i}}', 'attention.self'
    return links(
        *(link(f'{block}.{s}.{name}.*', f'{A}.1.to_{name[0]}.*') for name in ('query', 'key', 'value')),
        link(f'{block}.attention.output.dense.*', f'{A}.1.to_out.*'),
        plain(f'{block}.intermediate.dense', f'{block}.output.dense'),
        link(f'{block}.{attention_norm}', f'{A}.0.0.norm'),
        link(f'{block}.{feedforward_norm}', f'{F}.0.0.norm'),
        link(f'{prefix}.{last}', 'attn_layers.final_norm.norm'),
    )


def ends_of(row: Row) -> Links:
    """The links of a row outside of its blocks and embeddings: the head."""
    return tuple(one for one in row.links if one.ours[0].startswith(('to_logits.', 'head_transform.')))


EMB_NORM = ('post_emb_norm', 'post_emb_norm_bias', 'post_emb_norm_eps')
PRE = 'roberta_prelayernorm'
register(
    ROBERTA.like(
        PRE, 'RobertaPreLayerNormForMaskedLM', spelled='roberta-prelayernorm', layers=dict(pre_norm=True),
        **{
            **renamed(ROBERTA, f'{PRE}.', roberta_heads(f'{PRE}.')),
            'links': links(
                embeddings(PRE, CUT), pre_norm(PRE, 'attention.LayerNorm', 'intermediate.LayerNorm', 'LayerNorm'),
                ends_of(ROBERTA),
            ),
        },
    )
)  # fmt: skip
register(
    ROBERTA.like(
        'xlm_roberta_xl', 'XLMRobertaXLForMaskedLM', spelled='xlm-roberta-xl', without=EMB_NORM,
        defaults=dict(
            vocab_size=250880, hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, intermediate_size=10240,
            max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
        ),
        layers=dict(pre_norm=True),
        links=links(
            embeddings('roberta', CUT),
            pre_norm('roberta', 'attention.self_attn_layer_norm', 'LayerNorm', 'encoder.LayerNorm'),
            ends_of(ROBERTA),
        ),
    )
)  # fmt: skip
register(
    BERT.like(
        'megatron_bert', 'MegatronBertForMaskedLM', spelled='megatron-bert', without=EMB_NORM,
        defaults=dict(
            vocab_size=29056, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        ),
        layers=dict(pre_norm=True),
        links=links(embeddings('bert'), pre_norm('bert', 'attention.ln', 'ln', 'encoder.ln'), ends_of(BERT)),
    )
)  # fmt: skip

MP = 'mpnet.encoder.layer.{i}'
register(
    ROBERTA.like(
        'mpnet', 'MPNetForMaskedLM', without=('type_vocab_size', 'embed_num_tokens', 'embed_default_ids'),
        defaults=dict(vocab_size=30527, relative_attention_num_buckets=32),
        model=dict(max_seq_len=lambda c: c.max_position_embeddings - 2),  # whatever token fills up
        sizes=dict(cut=2),
        fixed=dict(relative_attention_num_buckets=(32,)),  # theirs counts 32, whatever the table holds
        layers=dict(
            rel_pos_bias=True, disable_abs_pos_emb=False, rel_pos_kwargs=Const({'scale': 1.0}),
            rel_pos_num_buckets='relative_attention_num_buckets', rel_pos_max_distance=128,
        ),
        **{
            **renamed(ROBERTA, 'mpnet.', roberta_heads('mpnet.')),
            'links': links(
                embeddings('mpnet', CUT),
                *(link(f'{MP}.attention.attn.{a}.*', f'{A}.1.{b}.*')
                  for a, b in (('q', 'to_q'), ('k', 'to_k'), ('v', 'to_v'), ('o', 'to_out'))),
                link(f'{MP}.attention.LayerNorm', f'{A}.0.2.norm'),
                plain(f'{MP}.intermediate.dense', f'{MP}.output.dense'),
                link(f'{MP}.output.LayerNorm', f'{F}.0.2.norm'),
                link('mpnet.encoder.relative_attention_bias.weight',
                     'attn_layers.rel_pos.relative_attention_bias.weight'),
                ends_of(ROBERTA),
            ),
        },
    )
)  # fmt: skip

# decoders

register(
    LLAMA.like(
        'iquestcoder', 'LlamaForCausalLM',
        defaults=dict(
            vocab_size=76800, hidden_size=5120, intermediate_size=27648, num_hidden_layers=80, num_attention_heads=40,
            num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5,
        ),
    )
)  # fmt: skip
register(
    MISTRAL.like(
        'ministral', 'MinistralForCausalLM', defaults=dict(layer_types=None, head_dim=None),
        heads={'span': LLAMA.heads['span']},
    )
)  # fmt: skip
register(
    LLAMA.like(
        'seed_oss', 'SeedOssForCausalLM',
        defaults=dict(
            vocab_size=155136, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=80,
            num_key_value_heads=8, max_position_embeddings=524288, attention_bias=True, attention_out_bias=False,
            attention_dropout=0.1, residual_dropout=0.1, head_dim=128,
        ),
        layers=dict(
            attn_out_bias='attention_out_bias', attn_sublayer_dropout='residual_dropout',
            ff_sublayer_dropout='residual_dropout',
        ),
    )
)  # fmt: skip
register(
    LLAMA.like(
        'cwm', 'CwmForCausalLM',
        defaults=dict(
            vocab_size=128256, hidden_size=6144, intermediate_size=21504, num_hidden_layers=64, num_attention_heads=48,
            num_key_value_heads=8, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=1e6,
            bos_token_id=0,  # their class takes no None
            rope_parameters=dict(
                rope_type='llama3', rope_theta=1e6, factor=16.0, high_freq_factor=4.0, low_freq_factor=1.0,
                original_max_position_embeddings=8192,
            ),
            sliding_window=8192, layer_types=None,
        ),
        rules=dict(sliding=lambda c: tuple(i % 4 > 0 for i in range(c.num_hidden_layers))),
        layers=dict(WINDOW, attn_qkv_bias=False, attn_out_bias=False),
    )
)  # fmt: skip
register(
    LLAMA.like(
        'arcee', 'ArceeForCausalLM', without=('ff_glu', 'ff_glu_bias'),
        defaults=dict(
            hidden_size=2560, intermediate_size=18432, hidden_act='relu2', max_position_embeddings=4096,
            rms_norm_eps=1e-5,
        ),
        links=links(LLAMA_ATTENTION, plain(f'{B}.mlp.up_proj', f'{B}.mlp.down_proj'), LLAMA_NORMS, LLAMA_ENDS),
    )
)  # fmt: skip

S = f'{B}.self_attn'
PAIRS = attention(*(f'{S}.{name}_proj' for name in 'qkvo'), turn=False)  # they turn neighbors, as this library does
register(
    LLAMA.like(
        'helium', 'HeliumForCausalLM',
        defaults=dict(
            vocab_size=48000, hidden_size=2560, intermediate_size=7040, num_hidden_layers=24, num_attention_heads=20,
            num_key_value_heads=20, head_dim=128, max_position_embeddings=4096, rms_norm_eps=1e-8, rope_theta=100000.0,
        ),
        layers=dict(attn_out_bias=False),
        links=links(PAIRS, LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS),
    )
)  # fmt: skip
register(
    LLAMA.like(
        'ernie4_5', 'Ernie4_5ForCausalLM', without=('attention_bias', 'attention_dropout', 'attn_dropout', 'mlp_bias'),
        defaults=dict(
            vocab_size=103424, hidden_size=1024, intermediate_size=3072, num_hidden_layers=18, num_attention_heads=16,
            num_key_value_heads=2, head_dim=128, max_position_embeddings=131072, rms_norm_eps=1e-5, use_bias=False,
            tie_word_embeddings=True, rope_theta=500000.0,
        ),
        layers=dict(
            attn_qkv_bias='use_bias', attn_out_bias='use_bias', ff_no_bias=no('use_bias'), ff_glu_bias='use_bias',
        ),
        links=links(PAIRS, LLAMA_GATED, LLAMA_NORMS, LLAMA_ENDS),
    )
)  # fmt: skip
register(
    GLM4.like(
        'glm', 'GlmForCausalLM', without=('sandwich_norm',),
        links=links(
            PAIRS, link(f'{B}.mlp.gate_up_proj.weight', f'{F}.1.ff.0.proj.weight', HALVES),
            link(f'{B}.mlp.down_proj.weight', f'{F}.1.ff.2.weight'), LLAMA_NORMS, LLAMA_ENDS,
        ),
    )
)  # fmt: skip
register(
    OLMO2.like(
        'olmo3', 'Olmo3ForCausalLM',
        defaults=dict(sliding_window=4096, layer_types=None, full_theta=500000.0, local_theta=500000.0),
        rules=dict(sliding=sliding_but_every('pattern'), pattern=4, scaled_kinds=('full_attention',)),
        aliases=dict(rope_theta='full_theta'),
        layers=dict(
            WINDOW, rotary_emb_dim=head_width, rotary_layers=rotating_by_kind, rotary_theta=None, rotary_scaling=None,
        ),
    )
)  # fmt: skip
register(
    GEMMA2.like(
        'vaultgemma', 'VaultGemmaForCausalLM', without=('sandwich_norm', 'use_bidirectional_attention'),
        links=links(
            LLAMA_ATTENTION, LLAMA_GATED, LLAMA_ENDS,
            link(f'{B}.input_layernorm', f'{A}.0.0.norm'), link(f'{B}.pre_feedforward_layernorm', f'{F}.0.0.norm'),
        ),
    )
)  # fmt: skip
