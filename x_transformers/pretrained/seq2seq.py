"""Encoder-decoder models: T5, BART, Marian, Whisper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from x_transformers.pretrained import fields
from x_transformers.pretrained.fields import activation, is_not, set_way_back, unless, when
from x_transformers.pretrained.heads import HeadSpec, classifier, map_classes, sequence_head
from x_transformers.pretrained.mappings import CUT, JOIN, ROW, link, links, map_projections
from x_transformers.pretrained.specs import Const, Fields, ModelSpec, ModuleSpec, Value, register


def on_both_sides(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return keywords for both the encoder and the decoder."""
    return {side + name: value for side in ('enc_', 'dec_') for name, value in values.items()}


# The id that fills sequences after their end.
pad_id = set_way_back('pad_token_id')(lambda c: 0 if c.pad_token_id is None else c.pad_token_id)


# Embeddings of both sides: one table, or two if the config or the file says so.


@set_way_back('share_encoder_decoder_embeddings', inverse=bool)
def is_shared(c: Fields) -> bool:
    return bool(c.values.get('share_encoder_decoder_embeddings', True)) and not c.values.get('own_tables')


SIDES = {'encoder': 'encoder.', 'decoder': 'decoder.net.'}


def map_tables(one: str, base: str) -> Any:
    return links(
        link(one, 'encoder.token_emb.emb.weight', when=is_shared),
        *(
            link(f'{base}{side}.embed_tokens.weight', f'{ours}token_emb.emb.weight', when=is_not(is_shared))
            for side, ours in SIDES.items()
        ),
    )


def list_copies(one: str, base: str) -> dict[str, str]:
    return {f'{base}{side}.embed_tokens.weight': one for side in SIDES}


# T5


def t5_is_gated(c: Fields) -> bool:
    """Return True for a gated feedforward: as the config says, or by the name of the activation."""
    kind, _, _ = c.feed_forward_proj.rpartition('-')
    return kind == 'gated' if c.is_gated_act is None else c.is_gated_act


def invert_t5_activation(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    gated, name = k.get('enc_ff_glu') or k.get('ff_glu') or False, fields.invert_activation(v)
    kind = f'gated-{name.removesuffix("_new")}' if gated else name  # gated-gelu means gelu_new.
    return {'feed_forward_proj': kind, 'dense_act_fn': name, 'is_gated_act': gated}


@set_way_back(invert_t5_activation)
def t5_activation(c: Fields) -> str:
    kind, _, name = c.feed_forward_proj.rpartition('-')
    name = c.dense_act_fn or ('gelu_new' if c.feed_forward_proj == 'gated-gelu' else name)
    if kind not in ('', 'gated') or name not in fields.ACTIVATIONS:
        must = f'must be one of {", ".join(fields.ACTIVATIONS)}, or gated-gelu, gated-silu, ...'
        raise c.spec.error('feed_forward_proj', must, c.feed_forward_proj)
    return fields.ACTIVATIONS[name]


def t5_scale(c: Fields) -> float | None:
    """Return the scale of the logits. A tied head is scaled, unless the config says otherwise."""
    if c.config.get('is_encoder_decoder') is False:
        raise c.spec.error('is_encoder_decoder', 'must be True, since its architecture has a decoder', False)
    scales = c.scale_decoder_outputs
    if 'scale_decoder_outputs' not in c.config:  # null means False.
        scales = c.values.get('tie_word_embeddings') is not False
    return c.d_model**-0.5 if scales else 1.0


def invert_t5_scale(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    return {'scale_decoder_outputs': (v if k['dec_tie_embedding'] else k['dec_logits_scale']) != 1}


@set_way_back(invert_t5_scale)
def t5_tied_scale(c: Fields) -> float | None:
    return t5_scale(c) if c.tied else None


T5_LAYERS = dict(
    heads='num_heads', attn_dim_head='d_kv', use_rmsnorm=True, norm_add_unit_offset=False,
    norm_eps='layer_norm_epsilon', attn_softmax_scale=1.0, rel_pos_bias=True, rel_pos_kwargs=Const({'scale': 1.0}),
    verbose=False, rel_pos_num_buckets='relative_attention_num_buckets',
    rel_pos_max_distance='relative_attention_max_distance', ff_glu=when(t5_is_gated),
    ff_glu_bias=when(t5_is_gated, False), ff_no_bias=True, ff_activation=t5_activation, ff_dim_inner='d_ff',
    attn_dropout='dropout_rate', ff_dropout='dropout_rate', **fields.drop_branches('dropout_rate'),
)  # fmt: skip
T5_MODEL = dict(max_seq_len=0, num_tokens='vocab_size', emb_dropout='dropout_rate')


def t5_encoder(spec: ModelSpec) -> dict[str, Any]:
    """Return the changes of a spec for the encoder alone."""
    side = 'encoder.'
    own = tuple(
        replace(one, ours=tuple(name.removeprefix(side) for name in one.ours))
        for one in spec.links
        if one.ours[0].startswith(side)
    )
    return dict(
        wrapper='TransformerWrapper', stack='Encoder', links=own, model=dict(T5_MODEL, return_only_embed=True),
        layers=dict(T5_LAYERS, dim='d_model', depth='num_layers'),
        copies={'encoder.embed_tokens.weight': 'shared.weight'}, differs={},
        ignored=(*spec.ignored, r'decoder\..*', r'lm_head\.weight'),
    )  # fmt: skip


def map_t5_feedforward(theirs: str, ours: str) -> Any:
    return links(
        link(f'{theirs}.wi.weight', f'{ours}.1.ff.0.0.weight'),
        link(f'{theirs}.wi_1.weight {theirs}.wi_0.weight', f'{ours}.1.ff.0.proj.weight', JOIN),
        link(f'{theirs}.wo.weight', f'{ours}.1.ff.2.weight'),
    )


ENC, DEC = 'encoder.block.{i}', 'decoder.block.{i}'
BIAS = 'relative_attention_bias.weight'

T5 = register(ModelSpec(
    't5', ('T5ForConditionalGeneration',), wrapper='XTransformer', stack=None,
    defaults=dict(
        vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_decoder_layers=None, num_heads=8,
        relative_attention_num_buckets=32, relative_attention_max_distance=128, layer_norm_epsilon=1e-6,
        feed_forward_proj='relu', scale_decoder_outputs=None, tie_word_embeddings=True, dropout_rate=0.1,
        pad_token_id=0, dense_act_fn=None, is_gated_act=None,
    ),
    fixed=dict(is_decoder=(False,)), free=('classifier_dropout', 'n_positions', 'output_past'),
    model=dict(
        dim='d_model', tie_token_emb=is_shared, pad_value=pad_id, **on_both_sides({**T5_MODEL, **T5_LAYERS}),
        enc_depth='num_layers', dec_depth=lambda c: c.num_decoder_layers or c.num_layers,
        dec_tie_embedding=when('tied', True), dec_tie_embedding_scale=t5_tied_scale,
        dec_logits_scale=unless('tied', t5_scale),
    ),
    sizes=dict(heads='num_heads', kv_heads='num_heads', dim_head='d_kv', dim_value='d_kv'),
    links=links(
        map_tables('shared.weight', ''), map_projections(f'{ENC}.layer.0.SelfAttention', 'qkvo', 'E.{2i}'),
        link(f'{ENC}.layer.0.layer_norm', 'E.{2i}.0.0.norm'),
        map_t5_feedforward(f'{ENC}.layer.1.DenseReluDense', 'E.{2i+1}'),
        link(f'{ENC}.layer.1.layer_norm', 'E.{2i+1}.0.0.norm'),
        map_projections(f'{DEC}.layer.0.SelfAttention', 'qkvo', 'D.{3i}'),
        link(f'{DEC}.layer.0.layer_norm', 'D.{3i}.0.0.norm'),
        map_projections(f'{DEC}.layer.1.EncDecAttention', 'qkvo', 'D.{3i+1}'),
        link(f'{DEC}.layer.1.layer_norm', 'D.{3i+1}.0.0.norm'),
        map_t5_feedforward(f'{DEC}.layer.2.DenseReluDense', 'D.{3i+2}'),
        link(f'{DEC}.layer.2.layer_norm', 'D.{3i+2}.0.0.norm'),
        link(f'encoder.block.0.layer.0.SelfAttention.{BIAS}', f'encoder.attn_layers.rel_pos.{BIAS}'),
        link(f'decoder.block.0.layer.0.SelfAttention.{BIAS}', f'decoder.net.attn_layers.rel_pos.{BIAS}'),
        link('encoder.final_layer_norm', 'encoder.attn_layers.final_norm.norm'),
        link('decoder.final_layer_norm', 'decoder.net.attn_layers.final_norm.norm'),
        link('lm_head.weight', 'decoder.net.to_logits.weight'),
    ),
    spare=(r'decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight',),
    copies=list_copies('shared.weight', ''), differs=dict(own_tables=tuple(list_copies('shared.weight', ''))),
    tied=('lm_head.weight', 'shared.weight'), always_ties=lambda config: True,
    heads={'embed': HeadSpec(('EncoderModel',), changes=t5_encoder)},
))  # fmt: skip

register(T5.like(
    'mt5', 'MT5ForConditionalGeneration',
    defaults=dict(vocab_size=250112, d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj='gated-gelu'),
    model=dict(dec_tie_embedding_scale=when('tied', 1.0), dec_logits_scale=None),
))  # fmt: skip

# BART and its heirs

BART_LAYERS = dict(
    pre_norm=False, norm_bias=True, norm_add_unit_offset=False, norm_eps=1e-5, attn_qkv_bias=True, attn_out_bias=True,
    ff_activation=activation('activation_function'), verbose=False, attn_dropout='attention_dropout',
    ff_dropout='activation_dropout', **fields.drop_branches('dropout'),
)  # fmt: skip
BART_MODEL = dict(
    max_seq_len='max_position_embeddings', emb_dropout='dropout', abs_pos_emb_scale=1.0,
    emb_scale=when('scale_embedding', fields.power('d_model', 0.5)),
)  # fmt: skip
BART_NORM = dict(post_emb_norm=True, post_emb_norm_bias=True, post_emb_norm_eps=1e-5)


def side_keywords(side: str, prefix: str = '') -> dict[str, Value]:
    """Return keywords of the stack of one side, which may differ from the other."""
    found = dict(
        depth=f'{side}_layers', heads=f'{side}_attention_heads', ff_dim_inner=f'{side}_ffn_dim',
        attn_dim_head=fields.divide('d_model', f'{side}_attention_heads'), layer_dropout=f'{side}_layerdrop',
    )  # fmt: skip
    return {prefix + name: value for name, value in found.items()}


def map_bart_layers(norm: str) -> Any:
    """Map both stacks, with their norms at `.0.{norm}` of a layer."""
    e, d = 'model.encoder.layers.{i}', 'model.decoder.layers.{i}'
    attentions = ((e, 'self_attn', 'E.{2i}'), (d, 'self_attn', 'D.{3i}'), (d, 'encoder_attn', 'D.{3i+1}'))
    found = []
    for layer, name, ours in attentions:
        found += map_projections(f'{layer}.{name}', ('q_proj', 'k_proj', 'v_proj', 'out_proj'), ours)
        found += link(f'{layer}.{name}_layer_norm', f'{ours}.0.{norm}.norm')
    for layer, ours in ((e, 'E.{2i+1}'), (d, 'D.{3i+2}')):
        found += links(link(f'{layer}.fc1.*', f'{ours}.1.ff.0.0.*'), link(f'{layer}.fc2.*', f'{ours}.1.ff.2.*'))
        found += link(f'{layer}.final_layer_norm', f'{ours}.0.{norm}.norm')
    return tuple(found)


def map_tables_and_head() -> Any:
    """Map the embeddings of both sides and the head of the decoder."""
    return links(
        map_tables('model.shared.weight', 'model.'),
        link('final_logits_bias', 'decoder.net.to_logits.bias', ROW),
        link('lm_head.weight', 'decoder.net.to_logits.weight'),
    )  # fmt: skip


# Classes are predicted at the last end-of-sequence token; both sides read the sequence.
BART_CLASSES = sequence_head(
    classifier(
        'last_eos', 'tanh', eos_id=fields.token_id('eos_token_id', 2), dropout='classifier_dropout',
        start_id=fields.token_id('decoder_start_token_id', 2),
    ),
    map_classes('classification_head.dense', 'classification_head.out_proj'),
    dict(dec_tie_embedding=True, dec_tie_embedding_scale=1.0),
)  # fmt: skip

BART = register(ModelSpec(
    'bart', ('BartForConditionalGeneration',), wrapper='XTransformer', stack=None,
    defaults=dict(
        vocab_size=50265, max_position_embeddings=1024, encoder_layers=12, encoder_ffn_dim=4096,
        encoder_attention_heads=16, decoder_layers=12, decoder_ffn_dim=4096, decoder_attention_heads=16,
        activation_function='gelu', d_model=1024, scale_embedding=False, tie_word_embeddings=True, dropout=0.1,
        attention_dropout=0.0, activation_dropout=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
        classifier_dropout=0.0, num_labels=3, has_bias=True, pad_token_id=1,
    ),
    aliases=dict(num_hidden_layers='encoder_layers'),
    fixed=dict(
        is_decoder=(False,), add_final_layer_norm=(False,), normalize_before=(False,), normalize_embedding=(True,),
        static_position_embeddings=(False,), add_bias_logits=(False,), tie_encoder_decoder=(False,),
    ),
    free=('classif_dropout', 'extra_pos_embeddings', 'force_bos_token_to_be_generated', 'do_blenderbot_90_layernorm'),
    model=dict(
        dim='d_model', tie_token_emb=is_shared, pad_value=pad_id,
        **on_both_sides({**BART_MODEL, **BART_LAYERS, **BART_NORM}), **side_keywords('encoder', 'enc_'),
        **side_keywords('decoder', 'dec_'), enc_num_tokens='vocab_size', dec_num_tokens='vocab_size',
        dec_tie_embedding=when('tied', True), dec_tie_embedding_scale=when('tied', 1.0), dec_logits_bias='has_bias',
    ),
    sizes=dict(
        heads='encoder_attention_heads', kv_heads='encoder_attention_heads',
        dim_head=fields.divide('d_model', 'encoder_attention_heads'), cut=2,
    ),
    links=links(
        map_tables_and_head(), map_bart_layers('2'),
        link('model.encoder.embed_positions.weight', 'encoder.pos_emb.emb.weight', CUT),
        link('model.decoder.embed_positions.weight', 'decoder.net.pos_emb.emb.weight', CUT),
        link('model.encoder.layernorm_embedding', 'encoder.post_emb_norm.norm'),
        link('model.decoder.layernorm_embedding', 'decoder.net.post_emb_norm.norm'),
    ),
    copies=list_copies('model.shared.weight', 'model.'),
    differs=dict(own_tables=tuple(list_copies('model.shared.weight', 'model.'))), base='model.',
    tied=('lm_head.weight', 'model.shared.weight'), presence=dict(has_bias='final_logits_bias'),
    heads={'classify': BART_CLASSES},
))  # fmt: skip


@set_way_back('decoder_vocab_size')
def marian_tokens(c: Fields) -> int:
    """Return the size of the vocabulary of the decoder."""
    return c.vocab_size if c.share_encoder_decoder_embeddings else c.decoder_vocab_size or c.vocab_size


def compute_sines(c: Fields) -> Tensor:
    """Return sinusoidal positions (n, d), sines first."""
    rates = 10000.0 ** (-torch.arange(0, c.d_model, 2, dtype=torch.float64) / c.d_model)
    angles = torch.arange(c.max_position_embeddings)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=1)


MARIAN = register(BART.like(
    'marian', 'MarianMTModel', without=(*on_both_sides(BART_NORM), 'classify'),
    defaults=dict(vocab_size=58101, decoder_vocab_size=None, share_encoder_decoder_embeddings=True, pad_token_id=58100),
    fixed=dict(normalize_embedding=(False,), static_position_embeddings=(True,)),
    model=dict(
        enc_scaled_sinu_pos_emb=True, dec_scaled_sinu_pos_emb=True, tie_token_emb=is_shared,
        dec_num_tokens=marian_tokens,
    ),
    links=links(map_tables_and_head(), map_bart_layers('2')),
    ignored=(r'model\.(encoder|decoder)\.embed_positions\.weight',),
    settled={f'model.{side}.embed_positions.weight': compute_sines for side in SIDES},
))  # fmt: skip

# Whisper


def make_stack(side: str, kind: str, **more: Value) -> ModuleSpec:
    own = dict(dim='d_model', pre_norm=None, attn_qkv_bias=Const('qv'), **more)
    return ModuleSpec(kind, {**BART_LAYERS, **side_keywords(side), **own})


WHISPER_ENCODER = ModuleSpec('ContinuousTransformerWrapper', dict(
    dim_in='num_mel_bins', conv_stem=lambda c: [[c.d_model, 3, 1, 1], [c.d_model, 3, 2, 1]],
    max_seq_len='max_source_positions', abs_pos_emb_scale=1.0, emb_dropout='dropout',
    attn_layers=make_stack('encoder', 'Encoder'),
))  # fmt: skip
WHISPER_DECODER = ModuleSpec('TransformerWrapper', dict(
    num_tokens='vocab_size', max_seq_len='max_target_positions', abs_pos_emb_scale=1.0, emb_dropout='dropout',
    tie_embedding=when('tied', True), tie_embedding_scale=when('tied', 1.0),
    attn_layers=make_stack('decoder', 'Decoder', cross_attend=True),
))  # fmt: skip

register(BART.like(
    'whisper', 'WhisperForConditionalGeneration', without=('max_position_embeddings', 'classify', *BART.model),
    wrapper='EncoderDecoder',
    defaults=dict(
        vocab_size=51865, num_mel_bins=80, encoder_layers=4, encoder_attention_heads=6, decoder_layers=4,
        decoder_attention_heads=6, decoder_ffn_dim=1536, encoder_ffn_dim=1536, d_model=384, dropout=0.0,
        max_source_positions=1500, max_target_positions=448, pad_token_id=50256,
    ),
    fixed=dict(use_weighted_layer_sum=(False,), apply_spec_augment=(False,)),
    free=(
        'classifier_proj_size', 'median_filter_width', 'mask_time_prob', 'mask_time_length', 'mask_time_min_masks',
        'mask_feature_prob', 'mask_feature_length', 'mask_feature_min_masks', 'max_length', 'scale_embedding',
    ),
    model=dict(
        encoder=WHISPER_ENCODER,
        decoder=ModuleSpec('AutoregressiveWrapper', dict(net=WHISPER_DECODER, pad_value=pad_id)),
    ),
    links=links(
        map_bart_layers('0'), link('model.encoder.conv1.*', 'encoder.conv_stem.0.*'),
        link('model.encoder.conv2.*', 'encoder.conv_stem.1.*'),
        link('model.encoder.embed_positions.weight', 'encoder.pos_emb.emb.weight'),
        link('model.encoder.layer_norm', 'encoder.attn_layers.final_norm.norm'),
        link('model.decoder.embed_tokens.weight', 'decoder.net.token_emb.emb.weight'),
        link('model.decoder.embed_positions.weight', 'decoder.net.pos_emb.emb.weight'),
        link('model.decoder.layer_norm', 'decoder.net.attn_layers.final_norm.norm'),
        link('proj_out.weight', 'decoder.net.to_logits.weight'),
    ),
    ignored=(), copies={}, differs={}, presence={}, tied=('proj_out.weight', 'model.decoder.embed_tokens.weight'),
))  # fmt: skip
