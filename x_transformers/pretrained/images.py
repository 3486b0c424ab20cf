"""Vision models (ViT, DeiT, DINOv2) and pairs of image and text towers (CLIP, SigLIP)."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Any

from x_transformers.flags import warn_once
from x_transformers.modalities.vit import sides
from x_transformers.pretrained import fields
from x_transformers.pretrained.fields import activation, negate, set_way_back, when
from x_transformers.pretrained.mappings import (
    FIRST,
    HALVES,
    JOIN,
    ONE,
    PATCHES,
    ROW,
    SPLIT,
    A,
    F,
    Mappings,
    WeightTransform,
    link,
    links,
    map_ff,
    map_projections,
)
from x_transformers.pretrained.specs import Const, Fields, ModelSpec, register


def is_bare(c: Fields) -> bool:
    """Return True for a model without a head for a task."""
    return c.architecture in c.spec.bare


def invert_pooler(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    if v is None:
        return {'has_pooler': False}
    return {'has_pooler': True, 'pooler_output_size': v['dim'], 'pooler_act': fields.invert_activation(v['activation'])}


@set_way_back(invert_pooler)
def pooler(c: Fields) -> dict[str, Any] | None:
    """Return the layer on the first token, if the file has one."""
    if not is_bare(c) or not c.has_pooler:
        return None
    return {'dim': c.pooler_output_size or c.hidden_size, 'activation': activation('pooler_act')(c)}


@set_way_back(fields.invert_classes)
def num_classes(c: Fields) -> int | None:
    return None if is_bare(c) else fields.classes(c) or None


def map_block(theirs: str, before: str, after: str, *attention: str) -> Mappings:
    """Map a pre-norm block without its feedforward. `attention`: names of queries, keys, values and output."""
    return links(
        map_projections(theirs, attention),
        link(f'{theirs}.{before}', f'{A}.0.0.norm'),
        link(f'{theirs}.{after}', f'{F}.0.0.norm'),
    )


QUERY = ('attention.attention.query', 'attention.attention.key', 'attention.attention.value', 'attention.output.dense')
# Names of attention weights in memory -> names in files.
TO_QUERY = (
    (r'\battention\.q_proj\.', 'attention.attention.query.'), (r'\battention\.k_proj\.', 'attention.attention.key.'),
    (r'\battention\.v_proj\.', 'attention.attention.value.'), (r'\battention\.o_proj\.', 'attention.output.dense.'),
)  # fmt: skip


def map_embeddings(base: str, prefix: str, *changes: WeightTransform, mask: tuple[WeightTransform, ...]) -> Mappings:
    """Map patches, positions and learned tokens. `prefix`: names of the tokens in front."""
    e = f'{base}.embeddings'
    return links(
        link(f'{e}.patch_embeddings.projection.weight', 'patch_to_embedding.1.weight', PATCHES),
        link(f'{e}.patch_embeddings.projection.bias', 'patch_to_embedding.1.bias'),
        link(f'{e}.position_embeddings', 'pos_embedding'),
        link(' '.join(f'{e}.{name}' for name in prefix.split()), 'prefix_tokens', FIRST, *changes),
        link(f'{e}.mask_token', 'mask_token', *mask),
    )


def map_vit(base: str, prefix: str, *changes: WeightTransform) -> Mappings:
    layer = f'{base}.encoder.layer.{{i}}'
    return links(
        map_embeddings(base, prefix, *changes, mask=(FIRST, FIRST)),
        map_block(layer, 'layernorm_before', 'layernorm_after', *QUERY),
        map_ff(f'{layer}.intermediate.dense', f'{layer}.output.dense'),
        link(f'{base}.layernorm', 'attn_layers.final_norm.norm'),
        link(f'{base}.pooler.dense.*', 'pooler.0.*'),
        link('classifier.*', 'mlp_head.*'),
    )  # fmt: skip


def patch_sides(c: Fields) -> tuple[int, int]:
    return sides(c.value(fields.area('patch_size')))


VIT = register(ModelSpec(
    'vit', ('ViTForImageClassification', 'ViTModel'), wrapper='ViTransformerWrapper', stack='Encoder',
    defaults=dict(
        hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, hidden_act='gelu',
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-12, image_size=224, patch_size=16,
        num_channels=3, qkv_bias=True, pooler_output_size=None, pooler_act='tanh', has_pooler=True,
        has_mask_token=False,
    ),
    fixed=dict(is_decoder=(False,), add_cross_attention=(False,)),
    model=dict(
        image_size=fields.area('image_size'), patch_size=fields.area('patch_size'), channels='num_channels',
        patch_norm=False, prefix_tokens=1, interpolate_pos_emb=Const('bicubic'), crop_to_patches=True,
        pool=Const('first'), pooler=pooler, num_classes=num_classes, mask_token='has_mask_token',
        emb_dropout='hidden_dropout_prob',
    ),
    layers={
        **fields.ENCODER_LAYERS, 'attn_qkv_bias': 'qkv_bias', 'attn_dropout': 'attention_probs_dropout_prob',
        **fields.drop_branches('hidden_dropout_prob'),
    },
    sizes=dict(fields.MULTI_HEAD, patch=patch_sides, channels='num_channels'), links=map_vit('vit', 'cls_token'),
    renames=(
        (r'(^|\.)layers\.(\d+)\.', r'\1encoder.layer.\2.'), *TO_QUERY, (r'\bmlp\.fc1\.', 'intermediate.dense.'),
        (r'\bmlp\.fc2\.', 'output.dense.'),
    ),
    spare=(r'(\w+\.)?pooler\.dense\..*',), base='vit.', bare=('ViTModel',), tied=None,
    presence=dict(has_pooler='vit.pooler.dense.weight', has_mask_token='vit.embeddings.mask_token'),
))  # fmt: skip


register(VIT.like(
    'deit', 'DeiTForImageClassification', 'DeiTForImageClassificationWithTeacher', 'DeiTModel',
    model=dict(prefix_tokens=2, pool=lambda c: 'prefix' if c.architecture.endswith('WithTeacher') else 'first'),
    links=links(
        map_vit('deit', 'cls_token distillation_token', JOIN), link('cls_classifier.*', 'mlp_head.0.*'),
        link('distillation_classifier.*', 'mlp_head.1.*'),
    ),
    base='deit.', bare=('DeiTModel',),
    presence=dict(has_pooler='deit.pooler.dense.weight', has_mask_token='deit.embeddings.mask_token'),
))  # fmt: skip


def dinov2_width(dim: int, ratio: float, gated: bool) -> int:
    """Return the inner width of a feedforward. A gated one has two thirds of it, rounded up to a multiple of eight."""
    inner = int(dim * ratio)
    return (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner


def invert_dinov2_inner(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    gated = bool(k['ff_glu'])
    ratios = [ratio for ratio in range(1, 33) if dinov2_width(k['dim'], ratio, gated) == v]
    return {'use_swiglu_ffn': gated, 'mlp_ratio': ratios[0] if ratios else v / k['dim']}


@set_way_back(invert_dinov2_inner)
def dinov2_inner(c: Fields) -> int:
    return dinov2_width(c.hidden_size, c.mlp_ratio, c.use_swiglu_ffn)


@set_way_back(lambda v, k: {} if k['ff_glu'] else {'hidden_act': fields.invert_activation(v)})
def dinov2_activation(c: Fields) -> str:
    return 'silu' if c.use_swiglu_ffn else activation('hidden_act')(c)


@set_way_back('use_mask_token', inverse=bool)
def dinov2_mask(c: Fields) -> bool:
    return c.use_mask_token if c.has_mask_token is None else c.has_mask_token


def warn_of_dropped_paths(c: Fields) -> None:
    """Warn if transformers would drop paths in training; sets no `layer_dropout`."""
    if rate := c.values.get('drop_path_rate'):
        start = f'`drop_path_rate` of this {c.spec.type} checkpoint is {rate}'
        warn_once(f'{start}: paths are not dropped in training, see `layer_dropout`')


@set_way_back('image_size', inverse=fields.list_if_pair)
def dinov2_image(c: Fields) -> Any:
    """Return the image size. Sizes whose positions transformers would resample as a square are refused."""
    size = c.value(fields.area('image_size'))
    height, width = sides(size)
    down, across = patch_sides(c)
    rows, columns = height // down, width // across
    if height != width and rows != columns and math.isqrt(rows * columns) ** 2 == rows * columns:
        raise c.spec.error('image_size', f'must not have {rows} x {columns} positions, as many as a square', size)
    return size


def map_dinov2(base: str) -> Mappings:
    layer = f'{base}.encoder.layer.{{i}}'
    return links(
        map_embeddings(base, 'cls_token', mask=(ROW,)),
        link(f'{base}.embeddings.register_tokens', 'register_tokens', FIRST),
        map_block(layer, 'norm1', 'norm2', *QUERY),
        link(f'{layer}.mlp.fc1.*', f'{F}.1.ff.0.0.*'),
        link(f'{layer}.mlp.fc2.*', f'{F}.1.ff.2.*', when=negate('use_swiglu_ffn')),
        link(f'{layer}.mlp.weights_in.*', f'{F}.1.ff.0.proj.*', HALVES),
        link(f'{layer}.mlp.weights_out.*', f'{F}.1.ff.2.*', when=lambda c: c.use_swiglu_ffn),
        link(f'{layer}.layer_scale1.lambda1', f'{A}.1.gamma'),
        link(f'{layer}.layer_scale2.lambda1', f'{F}.1.gamma'),
        link(f'{base}.layernorm', 'attn_layers.final_norm.norm'),
        link('classifier.*', 'mlp_head.*'),
    )


DINOV2 = register(VIT.like(
    'dinov2', 'Dinov2ForImageClassification', 'Dinov2Model',
    without=('intermediate_size', 'pooler_output_size', 'pooler_act', 'pooler', 'has_pooler'),
    defaults=dict(
        mlp_ratio=4, layer_norm_eps=1e-6, patch_size=14, use_swiglu_ffn=False, use_mask_token=True, has_mask_token=None,
    ),
    free=('layerscale_value', 'drop_path_rate'),
    model=dict(image_size=dinov2_image, pool=lambda c: 'first' if is_bare(c) else 'first_mean', mask_token=dinov2_mask),
    layers=dict(
        use_layerscale=True, ff_dim_inner=dinov2_inner, layer_dropout=warn_of_dropped_paths,
        ff_glu=when('use_swiglu_ffn'), ff_glu_bias=when('use_swiglu_ffn'), ff_activation=dinov2_activation,
    ),
    links=map_dinov2('dinov2'), renames=TO_QUERY, spare=(), base='dinov2.', bare=('Dinov2Model',),
    presence=dict(has_mask_token='dinov2.embeddings.mask_token'),
))  # fmt: skip

register(DINOV2.like(
    'dinov2_with_registers', 'Dinov2WithRegistersForImageClassification', 'Dinov2WithRegistersModel',
    without=('use_mask_token',), defaults=dict(patch_size=16, num_register_tokens=4, has_mask_token=True),
    model=dict(
        mask_token='has_mask_token', num_register_tokens='num_register_tokens',
        interpolate_pos_emb=Const('bicubic_antialias'), register_place=when('num_register_tokens', Const('front')),
    ),
    links=map_dinov2('dinov2_with_registers'), base='dinov2_with_registers.', bare=('Dinov2WithRegistersModel',),
    presence=dict(has_mask_token='dinov2_with_registers.embeddings.mask_token'),
))  # fmt: skip

# Towers of SigLIP and CLIP.


def map_tower_block(base: str) -> Mappings:
    layer = f'{base}.encoder.layers.{{i}}'
    attention = (f'self_attn.{name}_proj' for name in ('q', 'k', 'v', 'out'))
    return links(
        map_block(layer, 'layer_norm1', 'layer_norm2', *attention), map_ff(f'{layer}.mlp.fc1', f'{layer}.mlp.fc2')
    )


def map_tower(base: str) -> Mappings:
    """Map patches, positions and blocks."""
    return links(
        link(f'{base}.embeddings.patch_embedding.weight', 'patch_to_embedding.1.weight', PATCHES),
        link(f'{base}.embeddings.patch_embedding.bias', 'patch_to_embedding.1.bias'),
        link(f'{base}.embeddings.position_embedding.weight', 'pos_embedding', ONE),
        map_tower_block(base),
    )


attention_way = set_way_back('vision_use_head', inverse=fields.is_set)
attention_head = attention_way(lambda c: 'attention' if c.vision_use_head else Const(None))


def attention_options(c: Fields) -> dict[str, Any] | None:
    if not c.vision_use_head:
        return None
    return {
        'attn_qkv_bias': True, 'attn_out_bias': True, 'attn_project_out': True, 'ff_dim_inner': c.intermediate_size,
        'ff_activation': activation('hidden_act')(c), 'attn_dropout': c.attention_dropout,
    }  # fmt: skip


V = 'vision_model'
OF_VIT = (
    'qkv_bias', 'hidden_dropout_prob', 'attention_probs_dropout_prob', 'pooler_output_size', 'pooler_act', 'has_pooler',
    'has_mask_token', 'mask_token', 'num_classes', 'emb_dropout', 'attn_sublayer_dropout', 'ff_sublayer_dropout',
)  # fmt: skip
VISION = dict(attention_dropout=0.0)

SIGLIP_VISION = register(VIT.like(
    'siglip_vision_model', 'SiglipVisionModel', 'SiglipModel', without=(*OF_VIT, 'prefix_tokens', 'pooler'),
    defaults=dict(**VISION, hidden_act='gelu_pytorch_tanh', layer_norm_eps=1e-6, vision_use_head=True),
    model=dict(pool=attention_head, pool_kwargs=attention_options),
    layers=dict(attn_qkv_bias=True, attn_dropout='attention_dropout'),
    links=links(
        map_tower(V), link(f'{V}.post_layernorm', 'attn_layers.final_norm.norm'),
        link(f'{V}.head.probe', 'attn_pool.query', FIRST),
        *(
            link(f'{V}.head.attention.in_proj_{kind}', ' '.join(f'attn_pool.attn.to_{name}.{kind}'
            for name in 'qkv'), SPLIT) for kind in ('weight', 'bias')
        ),
        link(f'{V}.head.attention.out_proj.*', 'attn_pool.attn.to_out.*'),
        link(f'{V}.head.layernorm', 'attn_pool.norm.norm'), link(f'{V}.head.mlp.fc1.*', 'attn_pool.ff.ff.0.0.*'),
        link(f'{V}.head.mlp.fc2.*', 'attn_pool.ff.ff.2.*'),
    ),
    renames=(), spare=(), base=f'{V}.', bare=('SiglipVisionModel',), presence={},
))  # fmt: skip


@set_way_back('projection_dim', inverse=itemgetter('dim'), if_set=True)
def projection(c: Fields) -> dict[str, Any] | None:
    if not c.architecture.endswith('WithProjection'):
        return None
    return {'dim': c.projection_dim, 'activation': None, 'bias': False}


CLIP_VISION = register(VIT.like(
    'clip_vision_model', 'CLIPVisionModel', 'CLIPVisionModelWithProjection', 'CLIPModel', without=OF_VIT,
    defaults=dict(**VISION, hidden_act='quick_gelu', layer_norm_eps=1e-5, patch_size=32, projection_dim=512),
    model=dict(
        patch_bias=False, post_emb_norm=True, post_emb_norm_bias=True, post_emb_norm_eps='layer_norm_eps',
        post_pool_norm=True, pooler=projection,
    ),
    layers=dict(attn_qkv_bias=True, attn_dropout='attention_dropout', pre_norm_has_final_norm=False),
    links=links(
        map_tower(V), link(f'{V}.embeddings.class_embedding', 'prefix_tokens', ONE),
        link(f'{V}.pre_layrnorm', 'post_emb_norm.norm'), link(f'{V}.post_layernorm', 'post_pool_norm.norm'),
        link('visual_projection.weight', 'pooler.0.weight'),
    ),
    renames=(), spare=(), base=f'{V}.', bare=('CLIPVisionModel',), presence={},
))  # fmt: skip


T = 'text_model'


def invert_eos(v: int | None) -> dict[str, int]:
    return {'eos_token_id': 2 if v is None else v}


def get_eos(c: Fields) -> int | None:
    """Return the id of the last token, or None for the largest id, which old configs write as 2."""
    return None if c.eos_token_id == 2 else c.eos_token_id


def invert_clip_pooler(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    if v is None:
        return {}
    return {**invert_eos(v.get('eos')), **({'projection_dim': v['dim']} if 'dim' in v else {})}


@set_way_back(invert_clip_pooler)
def clip_pooler(c: Fields) -> dict[str, Any] | None:
    if c.architecture == 'CLIPModel':  # The whole model pools.
        return None
    found = {'token': 'eos', 'eos': get_eos(c)}
    if found['eos'] is not None:
        found['instead'] = 'first'  # transformers uses the first token of a text without the token.
    return {**found, 'dim': c.projection_dim, 'bias': False} if c.architecture.endswith('WithProjection') else found


CLIP_TEXT = register(ModelSpec(
    'clip_text_model', ('CLIPTextModel', 'CLIPTextModelWithProjection', 'CLIPModel'),
    defaults=dict(
        vocab_size=49408, hidden_size=512, intermediate_size=2048, projection_dim=512, num_hidden_layers=12,
        num_attention_heads=8, max_position_embeddings=77, hidden_act='quick_gelu', layer_norm_eps=1e-5,
        attention_dropout=0.0, eos_token_id=49407,
    ),
    fixed=dict(is_decoder=(False,), add_cross_attention=(False,)),
    model=dict(
        num_tokens='vocab_size', max_seq_len='max_position_embeddings', abs_pos_emb_scale=1.0, return_only_embed=True,
        pooler=clip_pooler,
    ),
    layers=dict(fields.ENCODER_LAYERS, attn_dropout='attention_dropout'), sizes=fields.MULTI_HEAD,
    links=links(
        link(f'{T}.embeddings.token_embedding.weight', 'token_emb.emb.weight'),
        link(f'{T}.embeddings.position_embedding.weight', 'pos_emb.emb.weight'), map_tower_block(T),
        link(f'{T}.final_layer_norm', 'attn_layers.final_norm.norm'), link('text_projection.weight', 'pooler.weight'),
    ),
    base=f'{T}.', bare=('CLIPTextModel',), tied=None,
))  # fmt: skip


@set_way_back('projection_size', inverse=itemgetter('dim'))
def siglip_pooler(c: Fields) -> dict[str, Any] | None:
    if c.architecture == 'SiglipModel':  # The whole model pools.
        return None
    return {'token': 'last', 'dim': c.projection_size or c.hidden_size}


SIGLIP_TEXT = register(CLIP_TEXT.like(
    'siglip_text_model', 'SiglipTextModel', 'SiglipModel', without=('projection_dim', 'eos_token_id'), stack='Encoder',
    defaults=dict(
        vocab_size=32000, hidden_size=768, intermediate_size=3072, num_attention_heads=12, max_position_embeddings=64,
        hidden_act='gelu_pytorch_tanh', layer_norm_eps=1e-6, projection_size=None,
    ),
    model=dict(pooler=siglip_pooler), links=links(CLIP_TEXT.links[:-1], link(f'{T}.head.*', 'pooler.*')),
    bare=('SiglipTextModel',),
))  # fmt: skip

# Both towers.


text_eos = set_way_back('text_config', inverse=invert_eos)(lambda c: get_eos(c.parts['text']))
logit_scale = set_way_back('logit_scale_init_value', inverse=math.log)(lambda c: math.exp(c.logit_scale_init_value))


CLIP = register(ModelSpec(
    'clip', ('CLIPModel',), wrapper='TwoTowers', stack=None,
    defaults=dict(
        text_config=None, vision_config=None, text_config_dict=None, vision_config_dict=None, projection_dim=512,
        logit_scale_init_value=2.6592,
    ),
    fixed=dict(is_decoder=(False,), add_cross_attention=(False,)),
    parts=dict(
        image=('vision_config', 'clip_vision_model', 'CLIPModel'), text=('text_config', 'clip_text_model', 'CLIPModel'),
    ),
    model=dict(text_pool=Const('eos'), eos_id=text_eos, dim_shared='projection_dim', logit_scale=logit_scale),
    links=links(
        link('visual_projection.weight', 'to_image.weight'), link('text_projection.weight', 'to_text.weight'),
        link('logit_scale', 'logit_scale'),
    ),
    tied=None,
))  # fmt: skip


@set_way_back('text_config', inverse=lambda v: {'projection_size': v})
def text_width(c: Fields) -> int:
    return c.parts['text'].projection_size or c.parts['text'].hidden_size


register(CLIP.like(
    'siglip', 'SiglipModel',
    without=('projection_dim', 'logit_scale_init_value', 'eos_id', 'text_config_dict', 'vision_config_dict'),
    parts=dict(
        image=('vision_config', 'siglip_vision_model', 'SiglipModel'),
        text=('text_config', 'siglip_text_model', 'SiglipModel'),
    ),
    model=dict(
        text_pool=Const('last'), dim_shared=text_width, project_image=False, project_bias=True, loss=Const('sigmoid'),
        logit_scale=1.0, logit_bias=0.0,
    ),
    links=links(
        link(f'{T}.head.*', 'to_text.*'), link('logit_scale', 'logit_scale', FIRST),
        link('logit_bias', 'logit_bias', FIRST),
    ),
))  # fmt: skip
