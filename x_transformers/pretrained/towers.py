"""Texts beside images: SigLIP and CLIP, each tower and both."""

from __future__ import annotations

import math
from typing import Any

from x_transformers.pretrained.changes import FIRST
from x_transformers.pretrained.fields import activation, back
from x_transformers.pretrained.images import tower_block
from x_transformers.pretrained.rows import Const, Fields, Row, link, links, register

T = 'text_model'


def eos_back(v: int | None) -> dict[str, int]:
    return {'eos_token_id': 2 if v is None else v}


def eos(c: Fields) -> int | None:
    """The id of the last token; configs of old say 2 and mean the largest id."""
    return None if c.eos_token_id == 2 else c.eos_token_id


def clip_pooler_back(v: Any, k: dict[str, Any]) -> dict[str, Any]:
    if v is None:
        return {}
    return {**eos_back(v.get('eos')), **({'projection_dim': v['dim']} if 'dim' in v else {})}


@back(clip_pooler_back)
def clip_pooler(c: Fields) -> dict[str, Any] | None:
    if c.architecture == 'CLIPModel':  # pools for itself
        return None
    found = {'token': 'eos', 'eos': eos(c)}
    if found['eos'] is not None:
        found['instead'] = 'first'  # as `transformers` does for a text without the token
    return {**found, 'dim': c.projection_dim, 'bias': False} if c.architecture.endswith('WithProjection') else found


CLIP_TEXT = register(
    Row(
        'clip_text_model',
        ('CLIPTextModel', 'CLIPTextModelWithProjection', 'CLIPModel'),
        defaults=dict(
            vocab_size=49408, hidden_size=512, intermediate_size=2048, projection_dim=512, num_hidden_layers=12,
            num_attention_heads=8, max_position_embeddings=77, hidden_act='quick_gelu', layer_norm_eps=1e-5,
            attention_dropout=0.0, eos_token_id=49407,
        ),
        fixed=dict(is_decoder=(False,), add_cross_attention=(False,)),
        model=dict(
            num_tokens='vocab_size', max_seq_len='max_position_embeddings', abs_pos_emb_scale=1.0,
            return_only_embed=True, pooler=clip_pooler,
        ),
        layers=dict(
            dim='hidden_size', depth='num_hidden_layers', heads='num_attention_heads',
            attn_dim_head=lambda c: c.hidden_size // c.num_attention_heads, norm_bias=True, norm_add_unit_offset=False,
            norm_eps='layer_norm_eps', attn_qkv_bias=True, attn_out_bias=True, ff_dim_inner='intermediate_size',
            ff_activation=activation('hidden_act'), verbose=False, attn_dropout='attention_dropout',
        ),
        sizes=dict(
            heads='num_attention_heads', kv_heads='num_attention_heads',
            dim_head=lambda c: c.hidden_size // c.num_attention_heads,
            dim_value=lambda c: c.hidden_size // c.num_attention_heads,
        ),
        links=links(
            link(f'{T}.embeddings.token_embedding.weight', 'token_emb.emb.weight'),
            link(f'{T}.embeddings.position_embedding.weight', 'pos_emb.emb.weight'),
            tower_block(T), link(f'{T}.final_layer_norm', 'attn_layers.final_norm.norm'),
            link('text_projection.weight', 'pooler.weight'),
        ),
        base=f'{T}.',
        bare=('CLIPTextModel',),
        tied=None,
    )
)  # fmt: skip


@back(lambda v, k: {'projection_size': v['dim']})
def siglip_pooler(c: Fields) -> dict[str, Any] | None:
    if c.architecture == 'SiglipModel':  # pools for itself
        return None
    return {'token': 'last', 'dim': c.projection_size or c.hidden_size}


SIGLIP_TEXT = register(
    CLIP_TEXT.like(
        'siglip_text_model', 'SiglipTextModel', 'SiglipModel', without=('projection_dim', 'eos_token_id'),
        stack='Encoder',
        defaults=dict(
            vocab_size=32000, hidden_size=768, intermediate_size=3072, num_attention_heads=12,
            max_position_embeddings=64, hidden_act='gelu_pytorch_tanh', layer_norm_eps=1e-6, projection_size=None,
        ),
        model=dict(pooler=siglip_pooler),
        links=links(CLIP_TEXT.links[:-1], link(f'{T}.head.*', 'pooler.*')),
        bare=('SiglipTextModel',),
    )
)  # fmt: skip

# both towers


@back(lambda v, k: {'text_config': eos_back(v)})
def text_eos(c: Fields) -> int | None:
    return eos(c.parts['text'])


@back(lambda v, k: {'logit_scale_init_value': math.log(v)})
def logit_scale(c: Fields) -> float:
    return math.exp(c.logit_scale_init_value)


CLIP = register(
    Row(
        'clip',
        ('CLIPModel',),
        wrapper='TwoTowers',
        stack=None,
        defaults=dict(
            text_config=None, vision_config=None, text_config_dict=None, vision_config_dict=None, projection_dim=512,
            logit_scale_init_value=2.6592,
        ),
        fixed=dict(is_decoder=(False,), add_cross_attention=(False,)),
        parts=dict(
            image=('vision_config', 'clip_vision_model', 'CLIPModel'),
            text=('text_config', 'clip_text_model', 'CLIPModel'),
        ),
        model=dict(
            text_pool=Const('eos'), eos_id=text_eos, dim_shared='projection_dim', logit_scale=logit_scale,
        ),
        links=links(
            link('visual_projection.weight', 'to_image.weight'), link('text_projection.weight', 'to_text.weight'),
            link('logit_scale', 'logit_scale'),
        ),
        tied=None,
    )
)  # fmt: skip


@back(lambda v, k: {'text_config': {'projection_size': v}})
def text_width(c: Fields) -> int:
    return c.parts['text'].projection_size or c.parts['text'].hidden_size


register(
    CLIP.like(
        'siglip', 'SiglipModel',
        without=('projection_dim', 'logit_scale_init_value', 'eos_id', 'text_config_dict', 'vision_config_dict'),
        parts=dict(
            image=('vision_config', 'siglip_vision_model', 'SiglipModel'),
            text=('text_config', 'siglip_text_model', 'SiglipModel'),
        ),
        model=dict(
            text_pool=Const('last'), dim_shared=text_width, project_image=False, project_bias=True,
            loss=Const('sigmoid'), logit_scale=1.0, logit_bias=0.0,
        ),
        links=links(
            link(f'{T}.head.*', 'to_text.*'), link('logit_scale', 'logit_scale', FIRST),
            link('logit_bias', 'logit_bias', FIRST),
        ),
    )
)  # fmt: skip

__all__ = ['CLIP', 'CLIP_TEXT', 'SIGLIP_TEXT']
