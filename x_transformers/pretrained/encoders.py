"""Encoders with a head for masked tokens: BERT and its relatives."""

from __future__ import annotations

from typing import Any

from x_transformers.pretrained import fields
from x_transformers.pretrained.fields import activation, drop_branches, negate, set_way_back, when
from x_transformers.pretrained.heads import (
    NOTHING,
    HeadSpec,
    classifier,
    encoder_heads,
    first_set,
    map_classes,
    replace_base,
    sequence_head,
    span_head,
)
from x_transformers.pretrained.mappings import (
    CUT,
    HALVES,
    ROTATE_QKV,
    SPLIT,
    A,
    F,
    Mappings,
    link,
    links,
    map_ff,
    map_fused,
    map_output,
    map_projections,
)
from x_transformers.pretrained.specs import Const, Fields, ModelSpec, Value, register


def map_post_norm(block: str, q: str, k: str, v: str, out: str, norm: str, up: str, down: str, last: str) -> Mappings:
    """Map a block whose norms follow each residual."""
    return links(
        map_projections(block, (q, k, v, out)),
        link(f'{block}.{norm}', f'{A}.0.2.norm'),
        map_ff(f'{block}.{up}', f'{block}.{down}'),
        link(f'{block}.{last}', f'{F}.0.2.norm'),
    )


def map_bert_block(prefix: str) -> Mappings:
    s, o = 'attention.self', 'attention.output'
    return map_post_norm(
        f'{prefix}.encoder.layer.{{i}}', f'{s}.query', f'{s}.key', f'{s}.value', f'{o}.dense', f'{o}.LayerNorm',
        'intermediate.dense', 'output.dense', 'output.LayerNorm',
    )  # fmt: skip


def map_embeddings(prefix: str, *positions: Any) -> Mappings:
    return links(
        link(f'{prefix}.embeddings.word_embeddings.weight', 'token_emb.emb.weight'),
        link(f'{prefix}.embeddings.position_embeddings.weight', 'pos_emb.emb.weight', *positions),
        link(f'{prefix}.embeddings.token_type_embeddings.weight', 'embeds.token_type_embed.weight'),
        link(f'{prefix}.embeddings.LayerNorm', 'post_emb_norm.norm'),
    )


CLS, LM = 'cls.predictions', 'lm_predictions.lm_head'


def map_head(dense: str, norm: str, bias: str, table: str = '', when: Any = None) -> Mappings:
    """Map the transform before a head, the bias of the head, and its table if that is not the embedding."""
    own = link(table, 'to_logits.weight', when=when) if table else ()
    return links(
        own,
        link(f'{dense}.*', 'head_transform.dense.*', when=when),
        link(norm, 'head_transform.norm.norm', when=when),
        link(bias, 'to_logits.bias', when=when),
    )


def invert_disentangled(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    if v is None:
        return {'relative_attention': False}
    longest = v['max_distance']
    return {
        'relative_attention': True, 'position_buckets': -1 if longest is None else v['span'],
        'max_relative_positions': longest or v['span'], 'pos_att_type': list(v['terms']),
        'share_att_key': v['share'], 'norm_rel_ebd': 'layer_norm' if v['norm'] else 'none',
    }  # fmt: skip


def list_terms(c: Fields) -> tuple[str, ...]:
    kinds = c.pos_att_type or ()
    kinds = [kind.strip() for kind in kinds.lower().split('|')] if isinstance(kinds, str) else kinds
    return tuple(kind for kind in ('c2p', 'p2c') if kind in kinds)


@set_way_back(
    lambda v, k: {} if v is None else {'pos_att_type': ['c2p', 'p2c'][: round(1 / (v**2 * k['attn_dim_head'])) - 1]}
)
def deberta_scale(c: Fields) -> float | None:
    """Return the softmax scale, which depends on the number of relative terms even if none is computed."""
    if c.relative_attention or not list_terms(c):
        return None
    return (c.hidden_size // c.num_attention_heads * (1 + len(list_terms(c)))) ** -0.5


@set_way_back(invert_disentangled)
def map_disentangled(c: Fields) -> dict[str, Any] | None:
    """Return the relative positions as a value of `attn_disentangled`."""
    if not c.relative_attention or not list_terms(c):
        return None
    longest = c.max_relative_positions if c.max_relative_positions >= 1 else c.max_position_embeddings
    half = c.position_buckets // 2
    # It is exact if no two distances share a bucket.
    exact = c.position_buckets <= 0 or max(longest, c.max_position_embeddings) <= half + 1
    if not exact and longest < half + 2:
        must = f'must be less than twice the longest distance, {longest} of `max_relative_positions` or '
        raise c.spec.error('position_buckets', f'{must}`max_position_embeddings`', c.position_buckets)
    norms = c.norm_rel_ebd.lower().split('|')
    return {
        'span': c.position_buckets if c.position_buckets > 0 else longest,
        'max_distance': None if exact else longest,
        'terms': list_terms(c),
        'share': bool(c.share_att_key),
        'norm': 'layer_norm' in norms,
    }


OWN_ACTIVATION = activation('hidden_act')


def dense_transform(
    width: Value, act: Value = OWN_ACTIVATION, norm: str | None = 'layer', eps: Value = 'layer_norm_eps'
) -> Any:
    """Return a function to the `head_transform` of a config: a dense layer, its activation and its norm."""
    own = {} if norm is None else {'eps': eps}
    given = {'dim': width, 'activation': act, 'norm': Const(norm), **own}
    return lambda c: {name: c.value(value) for name, value in given.items()}


# Classes of BERT follow its pooler, those of RoBERTa and ELECTRA another dense layer.
DROP = first_set('classifier_dropout', 'hidden_dropout_prob')


def first_token_heads(
    act: str | Value, dense: str, classes: str, dropout: Value = DROP, tokens_dropout: Value = DROP, **more: Any
) -> dict[str, HeadSpec]:
    """Return the heads of an encoder whose classes of sequences follow a dense layer on the first token."""
    classify = sequence_head(classifier('first', act, dropout=dropout), map_classes(dense, classes))
    return encoder_heads(classify, dropout=tokens_dropout, **more)


def roberta_heads(base: str) -> dict[str, HeadSpec]:
    return first_token_heads('tanh', 'classifier.dense', 'classifier.out_proj', pooler=f'{base}pooler.dense')


def bert_heads(base: str) -> dict[str, HeadSpec]:
    return first_token_heads('tanh', f'{base}pooler.dense', 'classifier', pooler=f'{base}pooler.dense')


BUFFERS = (r'.*position_ids', r'.*token_type_ids')

BERT = register(ModelSpec(
    'bert', ('BertForMaskedLM',), stack='Encoder',
    defaults=dict(
        vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        hidden_act='gelu', max_position_embeddings=512, type_vocab_size=2, layer_norm_eps=1e-12, pad_token_id=0,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, tie_word_embeddings=True,
    ),
    fixed=dict(is_decoder=(False,), add_cross_attention=(False,), position_embedding_type=('absolute',)),
    free=('classifier_dropout', 'gradient_checkpointing'),
    model=dict(
        num_tokens='vocab_size', max_seq_len='max_position_embeddings', abs_pos_emb_scale=1.0,
        embed_num_tokens=lambda c: {'token_type': c.type_vocab_size} if c.type_vocab_size else None,
        embed_default_ids=lambda c: {'token_type': 0} if c.type_vocab_size else None, post_emb_norm=True,
        post_emb_norm_bias=True, post_emb_norm_eps='layer_norm_eps', emb_dropout='hidden_dropout_prob',
        head_transform=dense_transform('hidden_size'), tie_embedding=when('tied', True),
        tie_embedding_scale=when('tied', 1.0), logits_bias=True,
    ),
    layers=dict(
        fields.ENCODER_LAYERS, pre_norm=False, attn_dropout='attention_probs_dropout_prob',
        **drop_branches('hidden_dropout_prob'),
    ),
    sizes=fields.MULTI_HEAD,
    links=links(
        map_embeddings('bert'), map_bert_block('bert'),
        map_head(f'{CLS}.transform.dense', f'{CLS}.transform.LayerNorm', f'{CLS}.bias', f'{CLS}.decoder.weight'),
    ),
    ignored=BUFFERS, spare=(r'cls\.seq_relationship\..*', r'.*pooler\.dense\..*'),
    copies={f'{CLS}.decoder.bias': f'{CLS}.bias'}, base='bert.',
    tied=(f'{CLS}.decoder.weight', 'bert.embeddings.word_embeddings.weight'), heads=bert_heads('bert.'),
))  # fmt: skip

ROBERTA = register(BERT.like(
    'roberta', 'RobertaForMaskedLM', defaults=dict(vocab_size=50265, pad_token_id=1),
    model=dict(
        max_seq_len=lambda c: c.max_position_embeddings - c.pad_token_id - 1,
        head_transform=dense_transform('hidden_size', Const('gelu')),
    ),
    sizes=dict(cut=lambda c: c.pad_token_id + 1),
    links=links(
        map_embeddings('roberta', CUT), map_bert_block('roberta'),
        map_head('lm_head.dense', 'lm_head.layer_norm', 'lm_head.bias', 'lm_head.decoder.weight'),
    ),
    spare=(r'.*pooler\.dense\..*',), copies={'lm_head.decoder.bias': 'lm_head.bias'}, base='roberta.',
    tied=('lm_head.decoder.weight', 'roberta.embeddings.word_embeddings.weight'), heads=roberta_heads('roberta.'),
))  # fmt: skip

register(BERT.like(
    'distilbert', 'DistilBertForMaskedLM',
    without=('type_vocab_size', 'embed_num_tokens', 'embed_default_ids', 'layer_norm_eps'),
    defaults=dict(num_hidden_layers=6),
    names=dict(
        hidden_dim='intermediate_size', activation='hidden_act', dropout='hidden_dropout_prob',
        attention_dropout='attention_probs_dropout_prob',
    ),
    aliases=dict(dim='hidden_size', n_layers='num_hidden_layers', n_heads='num_attention_heads'),
    # `sinusoidal_pos_embds` only affects initial values.
    free=('sinusoidal_pos_embds', 'qa_dropout', 'seq_classif_dropout', 'tie_weights_', 'layer_norm_eps'),
    layers=dict(norm_eps=1e-12),
    model=dict(post_emb_norm_eps=1e-12, head_transform=dense_transform('hidden_size', eps=1e-12)),
    links=links(
        map_embeddings('distilbert'),
        map_post_norm(
            'distilbert.transformer.layer.{i}', 'attention.q_lin', 'attention.k_lin', 'attention.v_lin',
            'attention.out_lin', 'sa_layer_norm', 'ffn.lin1', 'ffn.lin2', 'output_layer_norm',
        ),
        map_head('vocab_transform', 'vocab_layer_norm', 'vocab_projector.bias', 'vocab_projector.weight'),
    ),
    spare=(), copies={}, base='distilbert.',
    tied=('vocab_projector.weight', 'distilbert.embeddings.word_embeddings.weight'),
    heads=first_token_heads(
        'relu', 'pre_classifier', 'classifier', first_set('seq_classif_dropout'), 'hidden_dropout_prob',
        span=span_head(dropout=first_set('qa_dropout')),
    ),
))  # fmt: skip

# The discriminator predicts for each token whether the generator drew it.
DISCRIMINATOR = HeadSpec(
    ('ForPreTraining',),
    dict(
        logits_dim=1, logits_bias=True, squeeze_out_last_dim=True,
        head_transform=dense_transform('hidden_size', norm=None),
    ),
    links=links(
        link('discriminator_predictions.dense.*', 'head_transform.dense.*'),
        link('discriminator_predictions.dense_prediction.*', 'to_logits.*'),
    ),
)  # fmt: skip

register(BERT.like(
    'electra', 'ElectraForMaskedLM',
    defaults=dict(hidden_size=256, num_attention_heads=4, intermediate_size=1024, embedding_size=128),
    model=dict(emb_dim='embedding_size', head_transform=dense_transform('embedding_size', Const('gelu'))),
    links=links(
        map_embeddings('electra'), map_bert_block('electra'), link('electra.embeddings_project.*', 'project_emb.*'),
        map_head(
            'generator_predictions.dense', 'generator_predictions.LayerNorm', 'generator_lm_head.bias',
            'generator_lm_head.weight',
        ),
    ),
    spare=(), copies={}, base='electra.',
    tied=('generator_lm_head.weight', 'electra.embeddings.word_embeddings.weight'),
    heads=first_token_heads('gelu', 'classifier.dense', 'classifier.out_proj', discriminate=DISCRIMINATOR),
))  # fmt: skip

T1 = 'albert.encoder.albert_layer_groups.0.albert_layers.0'

register(BERT.like(
    'albert', 'AlbertForMaskedLM',
    defaults=dict(
        vocab_size=30000, hidden_size=4096, embedding_size=128, num_attention_heads=64, intermediate_size=16384,
        hidden_act='gelu_new', hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ),
    fixed=dict(num_hidden_groups=(1,), inner_group_num=(1,)),
    free=('classifier_dropout_prob', 'net_structure_type', 'gap_size', 'num_memory_blocks', 'down_scale_factor'),
    model=dict(emb_dim='embedding_size', project_emb=True, head_transform=dense_transform('embedding_size')),
    layers=dict(weight_tie_layers=True),
    links=links(
        map_embeddings('albert'), link('albert.encoder.embedding_hidden_mapping_in.*', 'project_emb.*'),
        map_post_norm(
            T1, 'attention.query', 'attention.key', 'attention.value', 'attention.dense', 'attention.LayerNorm', 'ffn',
            'ffn_output', 'full_layer_layer_norm',
        ),
        map_head('predictions.dense', 'predictions.LayerNorm', 'predictions.bias', 'predictions.decoder.weight'),
    ),
    spare=(r'albert\.pooler\..*', r'sop_classifier\..*'), copies={'predictions.decoder.bias': 'predictions.bias'},
    base='albert.', tied=('predictions.decoder.weight', 'albert.embeddings.word_embeddings.weight'),
    heads=first_token_heads(
        'tanh', 'albert.pooler', 'classifier', first_set('classifier_dropout_prob'),
        first_set('classifier_dropout_prob'), pooler='albert.pooler',
    ),
))  # fmt: skip


embedding_width = set_way_back('embedding_size', if_set=True)(lambda c: c.embedding_size)


def if_projected(value: Any) -> Any:
    """Return a function to a value for models whose embeddings have another width than the stack, else to None."""
    return lambda c: c.value(value) if c.embedding_size not in (None, c.hidden_size) else None


OF_DISTANCES = ('deberta.encoder.LayerNorm.', 'deberta.encoder.rel_embeddings.')
V2 = 'deberta.encoder.layer.{i}.attention.self'

register(BERT.like(
    'deberta_v2', 'DebertaV2ForMaskedLM', spelled='deberta-v2',
    defaults=dict(
        vocab_size=128100, hidden_size=1536, num_hidden_layers=24, num_attention_heads=24, intermediate_size=6144,
        type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=False, max_relative_positions=-1,
        position_buckets=-1, position_biased_input=True, pos_att_type=None, share_att_key=False, norm_rel_ebd='none',
        legacy=True, embedding_size=None, conv_kernel_size=0, pooler_hidden_act='gelu',
    ),
    fixed=dict(conv_kernel_size=(None, 0)),
    free=(
        'pooler_hidden_size', 'cls_dropout', 'pooler_dropout', 'padding_idx', 'attention_head_size', 'conv_act',
        'conv_groups',
    ),
    model=dict(
        emb_dim=embedding_width, project_emb_bias=if_projected(False), post_emb_norm_at=if_projected(Const('stream')),
        head_transform=dense_transform(lambda c: c.embedding_size or c.hidden_size),
        max_seq_len=lambda c: c.max_position_embeddings if c.position_biased_input else 0,
        abs_pos_emb_scale=when('position_biased_input', 1.0),
    ),
    layers=dict(
        attn_disentangled=map_disentangled, attn_softmax_scale=deberta_scale,
        disable_abs_pos_emb=negate('position_biased_input'),
    ),
    links=links(
        map_embeddings('deberta'),
        map_post_norm(
            'deberta.encoder.layer.{i}', 'attention.self.query_proj', 'attention.self.key_proj',
            'attention.self.value_proj', 'attention.output.dense', 'attention.output.LayerNorm', 'intermediate.dense',
            'output.dense', 'output.LayerNorm',
        ),
        link(f'{V2}.pos_key_proj.*', f'{A}.1.to_pos_k.*'), link(f'{V2}.pos_query_proj.*', f'{A}.1.to_pos_q.*'),
        link('deberta.encoder.rel_embeddings.weight', 'attn_layers.rel_embeddings'),
        link('deberta.encoder.LayerNorm', 'attn_layers.rel_embeddings_norm.norm'),
        link('deberta.embeddings.embed_proj.weight', 'project_emb.weight'),
        map_head(
            f'{CLS}.transform.dense', f'{CLS}.transform.LayerNorm', f'{CLS}.bias', f'{CLS}.decoder.weight',
            when=lambda c: c.legacy,
        ),
        map_head(f'{LM}.dense', f'{LM}.LayerNorm', f'{LM}.bias', when=negate('legacy')),
    ),
    base='deberta.', tied=(f'{CLS}.decoder.weight', 'deberta.embeddings.word_embeddings.weight'),
    always_ties=lambda config: config.get('legacy') is False,
    left=lambda c, name: map_disentangled(c) is None and name.startswith(OF_DISTANCES),
    heads=first_token_heads(
        activation('pooler_hidden_act'), 'pooler.dense', 'classifier', first_set('cls_dropout'), 'hidden_dropout_prob',
    ),
))  # fmt: skip

MB = 'model.layers.{i}'
MODERN = links(map_classes('head.dense', 'classifier'), link('head.norm', 'head_transform.norm.norm'))


def invert_modern_transform(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    return {'classifier_activation': fields.invert_activation(v['activation']), 'classifier_bias': v['bias']}


@set_way_back(invert_modern_transform)
def modern_transform(c: Fields) -> dict[str, Any]:
    return {
        'activation': activation('classifier_activation')(c), 'bias': c.classifier_bias, 'norm': 'layer',
        'norm_bias': c.norm_bias, 'eps': c.layer_norm_eps,
    }  # fmt: skip


pooling_way = set_way_back('classifier_pooling', inverse=lambda v: {'first': 'cls'}.get(v, v))
modern_token = pooling_way(lambda c: {'cls': 'first', 'mean': 'mean'}[c.classifier_pooling])


def modern_classifier(token: str, place: Any = None) -> dict[str, Any]:
    """Return keywords of a `Classifier` whose dense layer has a norm."""
    own = classifier(token, **({} if place is None else {'token': place}))
    return dict(own, head_transform=modern_transform, dropout=first_set('classifier_dropout'))


register(BERT.like(
    'modernbert', 'ModernBertForMaskedLM',
    without=(
        'hidden_act', 'type_vocab_size', 'embed_num_tokens', 'embed_default_ids', 'hidden_dropout_prob',
        'attention_probs_dropout_prob', 'abs_pos_emb_scale', 'pre_norm',
    ),
    defaults=dict(
        vocab_size=50368, intermediate_size=1152, num_hidden_layers=22, hidden_activation='gelu',
        max_position_embeddings=8192, layer_norm_eps=1e-5, norm_bias=False, attention_bias=False, mlp_bias=False,
        local_attention=128, layer_types=None, global_attn_every_n_layers=3, decoder_bias=True, full_theta=160000.0,
        local_theta=10000.0, rope_parameters=None, rope_scaling=None, embedding_dropout=0.0, mlp_dropout=0.0,
        attention_dropout=0.0, pad_token_id=50283, classifier_bias=False, classifier_activation='gelu',
        classifier_pooling='cls',
    ),
    names=dict(norm_eps='layer_norm_eps', global_rope_theta='full_theta', local_rope_theta='local_theta'),
    rules=dict(
        sliding=lambda c: tuple(i % c.global_attn_every_n_layers > 0 for i in range(c.num_hidden_layers)),
        scaled_kinds=('full_attention', 'sliding_attention'),
    ),
    fixed=dict(classifier_pooling=('cls', 'mean')), free=('repad_logits_with_grad',),
    model=dict(
        max_seq_len=0, post_emb_norm_bias='norm_bias', emb_dropout='embedding_dropout', logits_bias='decoder_bias',
        head_transform=set_way_back(invert_modern_transform)(lambda c: {'dim': c.hidden_size, **modern_transform(c)}),
    ),
    layers=dict(
        norm_bias='norm_bias', first_attn_norm=False, attn_qkv_bias='attention_bias', attn_out_bias='attention_bias',
        attn_dropout='attention_dropout', attn_sublayer_dropout='attention_dropout', ff_sublayer_dropout=None,
        ff_dropout='mlp_dropout', ff_glu=True, ff_glu_bias='mlp_bias', ff_no_bias=negate('mlp_bias'),
        ff_activation=activation('hidden_activation'), rotary_pos_emb=True, rotary_emb_dim=fields.equal_width,
        rotary_layers=fields.rotating_by_kind, attn_max_attend_past=fields.window_both,
        attn_max_attend_future=fields.window_both,
    ),
    sizes=dict(rotated=fields.equal_width),
    links=links(
        link('model.embeddings.tok_embeddings.weight', 'token_emb.emb.weight'),
        link('model.embeddings.norm', 'post_emb_norm.norm'), map_fused(f'{MB}.attn.Wqkv', SPLIT, ROTATE_QKV),
        map_output(f'{MB}.attn.Wo'), link(f'{MB}.attn_norm', f'{A}.0.0.norm'), link(f'{MB}.mlp_norm', f'{F}.0.0.norm'),
        link(f'{MB}.mlp.Wi.*', f'{F}.1.ff.0.proj.*', HALVES), link(f'{MB}.mlp.Wo.*', f'{F}.1.ff.2.*'),
        link('model.final_norm', 'attn_layers.final_norm.norm'),
        map_head('head.dense', 'head.norm', 'decoder.bias', 'decoder.weight'),
    ),
    ignored=(r'.*rotary_emb\.inv_freq',), spare=(), copies={}, base='model.',
    tied=('decoder.weight', 'model.embeddings.tok_embeddings.weight'),
    heads=encoder_heads(
        sequence_head(modern_classifier('first', modern_token), MODERN),
        tokens=HeadSpec(('ForTokenClassification',), NOTHING, around=modern_classifier('all'), links=MODERN),
        span=HeadSpec(('ForQuestionAnswering',), NOTHING, around=modern_classifier('span'), links=MODERN),
    ),
))  # fmt: skip

# Types that equal another type, or nearly so.


def replace_prefix(spec: ModelSpec, base: str, heads: dict[str, HeadSpec]) -> dict[str, Any]:
    """Return the changes of a spec for another prefix of the base model."""
    moved = replace_base(spec, base)
    changes: dict[str, Any] = dict(base=base, links=moved.links, heads=heads)
    if spec.tied is not None:
        changes['tied'] = (spec.tied[0], spec.tied[1].replace(spec.base, base, 1))
    return changes


register(ROBERTA.like('xlm_roberta', 'XLMRobertaForMaskedLM', spelled='xlm-roberta', defaults=dict(vocab_size=30522)))
register(ROBERTA.like('camembert', 'CamembertForMaskedLM', defaults=dict(vocab_size=30522)))
register(ROBERTA.like(
    'data2vec_text', 'Data2VecTextForMaskedLM', spelled='data2vec-text', defaults=dict(vocab_size=30522),
    **replace_prefix(ROBERTA, 'data2vec_text.', roberta_heads('data2vec_text.')),
))  # fmt: skip
register(BERT.like(
    'ernie', 'ErnieForMaskedLM', fixed=dict(use_task_id=(False,)), free=(*BERT.free, 'task_type_vocab_size'),
    **replace_prefix(BERT, 'ernie.', bert_heads('ernie.')),
))  # fmt: skip


def map_pre_norm(prefix: str, attention_norm: str, feedforward_norm: str, last: str) -> Mappings:
    """Map a block of BERT whose norms precede each residual."""
    block = f'{prefix}.encoder.layer.{{i}}'
    return links(
        map_projections(f'{block}.attention', ('self.query', 'self.key', 'self.value', 'output.dense')),
        map_ff(f'{block}.intermediate.dense', f'{block}.output.dense'),
        link(f'{block}.{attention_norm}', f'{A}.0.0.norm'),
        link(f'{block}.{feedforward_norm}', f'{F}.0.0.norm'),
        link(f'{prefix}.{last}', 'attn_layers.final_norm.norm'),
    )


def get_head_mappings(spec: ModelSpec) -> Mappings:
    """Return the mappings of a spec that belong to its head."""
    return tuple(one for one in spec.links if one.ours[0].startswith(('to_logits.', 'head_transform.')))


EMB_NORM = ('post_emb_norm', 'post_emb_norm_bias', 'post_emb_norm_eps')
PRE = 'roberta_prelayernorm'
register(ROBERTA.like(
    PRE, 'RobertaPreLayerNormForMaskedLM', spelled='roberta-prelayernorm', layers=dict(pre_norm=True),
    **{
        **replace_prefix(ROBERTA, f'{PRE}.', roberta_heads(f'{PRE}.')),
        'links': links(
            map_embeddings(PRE, CUT), map_pre_norm(PRE, 'attention.LayerNorm', 'intermediate.LayerNorm', 'LayerNorm'),
            get_head_mappings(ROBERTA),
        ),
    },
))  # fmt: skip
register(ROBERTA.like(
    'xlm_roberta_xl', 'XLMRobertaXLForMaskedLM', spelled='xlm-roberta-xl', without=EMB_NORM,
    defaults=dict(
        vocab_size=250880, hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, intermediate_size=10240,
        max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
    ),
    layers=dict(pre_norm=True),
    links=links(
        map_embeddings('roberta', CUT),
        map_pre_norm('roberta', 'attention.self_attn_layer_norm', 'LayerNorm', 'encoder.LayerNorm'),
        get_head_mappings(ROBERTA),
    ),
))  # fmt: skip
register(BERT.like(
    'megatron_bert', 'MegatronBertForMaskedLM', spelled='megatron-bert', without=EMB_NORM,
    defaults=dict(
        vocab_size=29056, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
    ),
    layers=dict(pre_norm=True),
    links=links(
        map_embeddings('bert'), map_pre_norm('bert', 'attention.ln', 'ln', 'encoder.ln'), get_head_mappings(BERT),
    ),
))  # fmt: skip

MP = 'mpnet.encoder.layer.{i}'
register(ROBERTA.like(
    'mpnet', 'MPNetForMaskedLM', without=('type_vocab_size', 'embed_num_tokens', 'embed_default_ids'),
    defaults=dict(vocab_size=30527, relative_attention_num_buckets=32),
    model=dict(max_seq_len=lambda c: c.max_position_embeddings - 2),  # independent of the id of padding
    sizes=dict(cut=2),
    fixed=dict(relative_attention_num_buckets=(32,)),  # transformers always uses 32
    layers=dict(
        rel_pos_bias=True, disable_abs_pos_emb=False, rel_pos_kwargs=Const({'scale': 1.0}),
        rel_pos_num_buckets='relative_attention_num_buckets', rel_pos_max_distance=128,
    ),
    **{
        **replace_prefix(ROBERTA, 'mpnet.', roberta_heads('mpnet.')),
        'links': links(
            map_embeddings('mpnet', CUT),
            map_projections(f'{MP}.attention.attn', 'qkvo'),
            link(f'{MP}.attention.LayerNorm', f'{A}.0.2.norm'),
            map_ff(f'{MP}.intermediate.dense', f'{MP}.output.dense'),
            link(f'{MP}.output.LayerNorm', f'{F}.0.2.norm'),
            link('mpnet.encoder.relative_attention_bias.weight',
                 'attn_layers.rel_pos.relative_attention_bias.weight'),
            get_head_mappings(ROBERTA),
        ),
    },
))  # fmt: skip
