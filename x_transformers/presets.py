"""Models of well-known papers by name: the keywords that build them, and their initial values.

    from x_transformers import presets

    keywords = presets.vaswani_base(enc_depth=12)             # a dict, in the form of `model.config`
    model = presets.build(keywords)                           # an XTransformer

These models are newly initialized; `pretrained` loads weights of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers import encoder_decoder, pretrained  # noqa: F401  (configs can name their classes)
from x_transformers.features.norms import LayerNorm, RMSNorm
from x_transformers.flags import (
    ConfigError,
    Features,
    advice,
    did_you_mean,
    format_value,
    none,
    one_of,
    positive,
    size,
)
from x_transformers.flags.config import KINDS, decode
from x_transformers.pretrained import published
from x_transformers.pretrained.specs import get_spec
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward

__all__ = [
    'albert_base', 'bert_base', 'bigbird_base', 'build', 'chinchilla', 'conformer', 'deepseek_v3', 'gemma3',
    'gopher', 'gpt1', 'gpt2', 'gpt3', 'gpt_oss', 'gtrxl', 'initialise_', 'lfm2', 'llama', 'llama3', 'llama_7b',
    'longformer_base', 'mamba2', 'palm', 'perceiver', 'performer', 'qwen3', 'qwen3_next', 'reformer',
    'roberta_base', 't5_base', 'transformer_xl', 'vaswani_base', 'vaswani_big', 'vicuna_13b', 'vit', 'vit_b16',
    'vit_simple_s16', 'whisper_tiny', 'xlnet_base',
]  # fmt: skip


class Preset(dict[str, Any]):
    """Keywords of a model, in the form of `model.config`, and the keywords of `initialise_` for `build`.

    A copy as a simple dict, for example from JSON, builds the same model with the initial values of its classes.
    """

    initial: dict[str, Any] | None  # None for the initial values of the classes

    def __init__(self, keywords: Mapping[str, Any], initial: Mapping[str, Any] | None) -> None:
        super().__init__(keywords)
        self.initial = None if initial is None else dict(initial)


def change_preset(keywords: dict[str, Any], overrides: Mapping[str, Any], initial: Mapping[str, Any] | None) -> Preset:
    """Return keywords with overrides of the class or its stack.  Raises ConfigError for unknown ones."""
    own, stack = KINDS[keywords['class']].accepted(), dict(keywords.get('attn_layers', {}))
    inner = KINDS[stack['class']].accepted() if stack else {}
    for name in overrides:
        if name not in own and name not in inner:
            hint = advice(name, (*own, *inner), overrides[name], KINDS[keywords['class']])
            raise ConfigError(f'unknown keyword `{name}` of {keywords["class"]}{hint}')
    of_stack = {name: value for name, value in overrides.items() if name not in own}
    keywords = {**keywords, **({'attn_layers': {**stack, **of_stack}} if stack else {})}
    return Preset({**keywords, **{name: overrides[name] for name in overrides if name in own}}, initial)


# encoder and decoder


def make_vaswani(dim: int, heads: int, dropout: float, overrides: Mapping[str, Any]) -> Preset:
    """Return the keywords of the first transformer in a size. A head has dim / heads channels."""
    dim = overrides.get('dim', dim)
    size.require('dim', dim, ConfigError)
    keywords: dict[str, Any] = {'class': 'XTransformer', 'dim': dim, 'tie_token_emb': True, 'label_smoothing': 0.1}
    for side in ('enc_', 'dec_'):
        own = {
            'num_tokens': 37000,  # English and German in byte-pair encoding
            'max_seq_len': 1024, 'scaled_sinu_pos_emb': True, 'abs_pos_emb_scale': 1.0, 'emb_scale': dim**0.5,
            'emb_dropout': dropout, 'depth': 6, 'heads': heads, 'pre_norm': False, 'norm_bias': True,
            'attn_dim_head': max(dim // overrides.get(f'{side}heads', heads), 1), 'attn_sublayer_dropout': dropout,
            'ff_dim_inner': 4 * dim, 'ff_activation': 'relu', 'ff_sublayer_dropout': dropout,
        }  # fmt: skip
        keywords |= {side + name: value for name, value in own.items()}
    keywords |= {'dec_tie_embedding': True, 'dec_tie_embedding_scale': 1.0}
    return change_preset(keywords, overrides, dict(xavier=True))


def vaswani_base(**overrides: Any) -> Preset:
    """Return the base model of Vaswani et al. 2017, arXiv:1706.03762: 6 + 6 layers of width 512, norms after each
    branch, sinusoidal positions, one table for source, target and output, Xavier-uniform matrices, label smoothing.

    Args:
        **overrides: Keywords of XTransformer.

    Returns:
        The keywords, for `build`.

    Raises:
        ConfigError: A name is no keyword.
    """
    return make_vaswani(512, 8, 0.1, overrides)


def vaswani_big(**overrides: Any) -> Preset:
    """Return the big model of arXiv:1706.03762: `vaswani_base` of width 1024, with 16 heads and more dropout."""
    return make_vaswani(1024, 16, 0.3, overrides)


# models with published configs


SIZES = ('dim', 'depth', 'heads')  # Overrides that determine other sizes.


@dataclass(frozen=True)
class Published:
    """Config in the format of `transformers`, without its default values, and its fields that depend on sizes."""

    config: Mapping[str, Any]
    dim: str = 'hidden_size'
    depth: tuple[str, ...] = ('num_hidden_layers',)
    heads: tuple[str, ...] = ('num_attention_heads',)
    inner: tuple[str, ...] = ('intermediate_size', 'moe_intermediate_size')  # proportional to the width, if there
    head: str = ''  # width of a head, if the config has it

    def resize(self, dim: Any = None, depth: Any = None, heads: Any = None) -> dict[str, Any]:
        """Return the config in other sizes. The inner width keeps its ratio to the width, and heads share the width."""
        for name, value in (('dim', dim), ('depth', depth), ('heads', heads)):
            (size | none).require(name, value, ConfigError)
        sizes = {**get_spec(self.config).defaults, **self.config}
        before, held = sizes[self.dim], sizes[self.heads[0]]
        width, count = dim or before, heads or held
        if width % count:
            raise ConfigError(f'`dim` must be a multiple of `heads`, got dim={width} and heads={count}')
        changed = {name: sizes[name] * width // before for name in self.inner if sizes.get(name)} | {self.dim: width}
        changed |= dict.fromkeys(self.depth, depth) if depth else {}
        changed |= dict.fromkeys(self.heads, heads) if heads else {}
        if heads and sizes.get('num_key_value_heads'):  # as many heads share a key
            changed['num_key_value_heads'] = max(heads * sizes['num_key_value_heads'] // held, 1)
        changed |= {self.head: width // count} if self.head and (dim or count != held) else {}
        return {**self.config, **changed}

    def make_preset(self, overrides: Mapping[str, Any], initial: Mapping[str, Any], **config: Any) -> Preset:
        sizes = {name: overrides[name] for name in SIZES if name in overrides}
        rest = {name: value for name, value in overrides.items() if name not in SIZES}
        given = {name: value for name, value in config.items() if value is not None}
        return change_preset(pretrained.keywords({**self.resize(**sizes), **given}), rest, initial)


GPT2 = Published({'model_type': 'gpt2'}, inner=())
BERT = Published({'model_type': 'bert'})
T5 = Published(
    {'model_type': 't5', 'd_model': 768, 'd_ff': 3072, 'num_layers': 12, 'num_decoder_layers': 12, 'num_heads': 12},
    dim='d_model', depth=('num_layers', 'num_decoder_layers'), heads=('num_heads',), inner=('d_ff',), head='d_kv',
)  # fmt: skip
LLAMA = Published({'model_type': 'llama'})
VIT = Published({'model_type': 'vit'})
WHISPER = Published(
    {'model_type': 'whisper'}, dim='d_model', depth=('encoder_layers', 'decoder_layers'),
    heads=('encoder_attention_heads', 'decoder_attention_heads'), inner=('encoder_ffn_dim', 'decoder_ffn_dim'),
)  # fmt: skip


QWEN3_DENSE = Published(
    {'model_type': 'qwen3', 'head_dim': 128, 'rope_theta': 1e6, 'max_position_embeddings': 40960}, head='head_dim'
)  # fmt: skip
GEMMA3_TEXT = Published({'model_type': 'gemma3_text', 'head_dim': 256}, head='head_dim')


def choose_size(size: Any, known: Mapping[str, Any]) -> Any:
    """Return the entry of a size.  Raises ConfigError with the known sizes if it is none of them."""
    one_of(*known).require('size', size, ConfigError)
    return known[size]


def make_sized(kind: Published, sizes: Sequence[int], scale: Any, overrides: Mapping[str, Any], **own: Any) -> Preset:
    """Return a preset with sizes in the order of `FIELDS`, those of `SCALED` multiplied by `scale`."""
    positive.require('scale', scale, ConfigError)
    config = {**kind.config, **dict(zip(published.FIELDS, sizes, strict=False)), **own}
    before, factor = {**get_spec(config).defaults, **config}, Fraction(scale).limit_denominator(2**16)
    scaled = {name: before[name] * factor for name in published.SCALED if before.get(name)}
    if broken := next((name for name, value in scaled.items() if value.denominator != 1), None):
        raise ConfigError(f'`scale` must give whole sizes, got {scale} times {before[broken]} for `{broken}`')
    config |= {name: int(value) for name, value in scaled.items()}
    return replace(kind, config=config).make_preset(overrides, {})


def mix_layers(found: Preset, block: Callable[[int], str], **stack: Any) -> Preset:
    """Return a preset with the kinds of layers that `block` gives for each block, such as 'rf', and their keywords."""
    stack = {**stack, **found['attn_layers']}
    stack['custom_layers'] = [kind for at in range(stack['depth']) for kind in block(at)]
    return Preset({**found, 'attn_layers': stack}, found.initial)


def bert_base(architecture: str = 'BertModel', **overrides: Any) -> Preset:
    """Return BERT, uncased: Devlin et al. 2018, arXiv:1810.04805.

    Args:
        architecture: Class with the output head: 'BertModel' pools the first token, 'BertForMaskedLM' has logits.
        **overrides: `dim`, `depth`, `heads`, which set other sizes too, and keywords of TransformerWrapper or Encoder.

    Returns:
        The keywords, for `build`.

    Raises:
        ConfigError: A keyword or an architecture is unknown.
    """
    return BERT.make_preset(overrides, {}, architectures=[architecture])


def albert_base(architecture: str = 'AlbertModel', **overrides: Any) -> Preset:
    """Return ALBERT: Lan et al. 2019, arXiv:1909.11942. Arguments as in `bert_base`."""
    own = {'model_type': 'albert', 'hidden_size': 768, 'num_attention_heads': 12, 'intermediate_size': 3072}
    return Published(own).make_preset(overrides, {}, architectures=[architecture])


def longformer_base(**overrides: Any) -> Preset:
    """Return Longformer: Beltagy et al. 2020, arXiv:2004.05150. RoBERTa with 4,096 positions, windows of 512 tokens,
    and global tokens by `global_mask`, which have queries, keys and values of their own. Arguments as in `bert_base`.
    """
    pattern = {'union': [{'pattern': 'sliding', 'window': 256}, {'pattern': 'global', 'mask': True}]}
    own = {'attn_sparse_pattern': pattern, 'attn_global_separate_qkv': True, 'max_seq_len': 4096}
    return roberta_base(**{**own, **overrides})


def bigbird_base(**overrides: Any) -> Preset:
    """Return BigBird: Zaheer et al. 2020, arXiv:2007.14062. BERT with 4,096 positions and blocks of 64 tokens: three
    around the query's own, two global and three random ones. Arguments as in `bert_base`.
    """
    own = {'attn_sparse_pattern': {'pattern': 'bigbird'}, 'ff_activation': 'gelu_tanh'}
    return bert_base(**{**own, 'num_tokens': 50358, 'max_seq_len': 4096, **overrides})


def roberta_base(architecture: str = 'RobertaModel', **overrides: Any) -> Preset:
    """Return RoBERTa: Liu et al. 2019, arXiv:1907.11692. Like BERT, with 512 positions and one token type, masks that
    are sampled again each time, as in `MLMWrapper`, and without sentence pairs. Its weight files have two additional
    positions, which are never used. Arguments as in `bert_base`.
    """
    own = {'model_type': 'roberta', 'max_position_embeddings': 514, 'type_vocab_size': 1, 'layer_norm_eps': 1e-5}
    return Published(own).make_preset(overrides, {}, architectures=[architecture])


def gpt1(**overrides: Any) -> Preset:
    """Return GPT: Radford et al. 2018. 12 layers of width 768, norms after each branch, 512 learned positions, and a
    tied head. Its weights cannot be loaded. Arguments as in `gpt2`.
    """
    found = gpt2(**{name: overrides.pop(name) for name in SIZES if name in overrides})
    stack = {**found['attn_layers'], 'pre_norm': False}
    return change_preset({**found, 'num_tokens': 40478, 'max_seq_len': 512, 'attn_layers': stack}, overrides, {})


def gpt2(**overrides: Any) -> Preset:
    """Return GPT-2, small: Radford et al. 2019. Others: `dim=1024, depth=24, heads=16`, `1280, 36, 20`, `1600, 48, 25`.

    Args:
        **overrides: `dim`, `depth`, `heads`, which set other sizes too, and keywords of TransformerWrapper or Decoder.

    Returns:
        The keywords, for `build`. Output projections are divided by the root of the number of branches.

    Raises:
        ConfigError: A name is no keyword.
    """
    return GPT2.make_preset(overrides, {'residual': 'depth'})


def gpt3(size: str = '175b', **overrides: Any) -> Preset:
    """Return GPT-3, '125m' to '175b' parameters: Brown et al. 2020, arXiv:2005.14165. GPT-2 with 2,048 tokens. All
    layers have dense attention, since the sparse pattern of every second one is not published. '1.3b' and '13b' have
    the heads and widths that fit their numbers of parameters. Other arguments as in `gpt2`.
    """
    own = dict(zip(SIZES, choose_size(size, published.GPT3), strict=True))
    return gpt2(**{**own, 'max_seq_len': 2048, **overrides})


def t5_base(version: str = '1.0', **overrides: Any) -> Preset:
    """Return T5: Raffel et al. 2019, arXiv:1910.10683.

    Args:
        version: '1.1' has gated GELUs and an untied output head.
        **overrides: `dim`, `depth`, `heads` of both sides, which determine other sizes, and keywords of XTransformer.
    """
    one_of('1.0', '1.1').require('version', version, ConfigError)
    own = {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False, 'd_ff': 2048} if version == '1.1' else {}
    return replace(T5, config={**T5.config, **own}).make_preset(overrides, {})


def llama(size: str = '1-7b', scale: float = 1.0, **overrides: Any) -> Preset:
    """Return Llama: Touvron et al. 2023, arXiv:2302.13971. The first number of a size is that of the generation:
    '1-7b' to '1-65b', '2-7b', '2-13b', '2-70b', '3-8b', '3-70b' or '3-405b'. `scale` multiplies the width and the
    number of heads, which keep their width. Other arguments as in `gpt2`.
    """
    sizes = choose_size(size, published.LLAMAS)
    own: dict[str, Any] = {'1': {}, '2': published.LONGER, '3': published.LATER}[size[0]]
    return make_sized(LLAMA, sizes, scale, overrides, **own)


def llama_7b(**overrides: Any) -> Preset:
    """Return Llama: Touvron et al. 2023, arXiv:2302.13971. Arguments as in `gpt2`; `attn_kv_heads=8` shares keys."""
    return llama('1-7b', **overrides)


def vicuna_13b(version: str = '1.1', **overrides: Any) -> Preset:
    """Return Vicuna 13B, which is Llama, of version '1.5' Llama 2: Zheng et al. 2023, arXiv:2306.05685."""
    one_of('1.1', '1.5').require('version', version, ConfigError)
    return llama('1-13b' if version == '1.1' else '2-13b', **overrides)


def llama3(size: str = '8b', scale: float = 1.0, **overrides: Any) -> Preset:
    """Return Llama 3, '8b', '70b' or '405b': arXiv:2407.21783. Arguments as in `llama`."""
    own = {name[2:]: name for name in published.LLAMAS if name[0] == '3'}
    return llama(choose_size(size, own), scale, **overrides)


def qwen3(size: str = '8b', scale: float = 1.0, **overrides: Any) -> Preset:
    """Return Qwen3, '0.6b' to '32b', or with experts '30b-a3b' and '235b-a22b': arXiv:2505.09388.

    Arguments as in `llama`; `scale` multiplies experts too, but not how many of them a token has.
    """
    sizes = choose_size(size, published.QWEN3)
    kind = {'model_type': 'qwen3_moe', 'norm_topk_prob': True} if len(sizes) > 5 else {}
    kind |= {'tie_word_embeddings': size in ('0.6b', '1.7b', '4b')}
    return make_sized(QWEN3_DENSE, sizes, scale, overrides, **kind)


def gemma3(size: str = '4b', scale: float = 1.0, **overrides: Any) -> Preset:
    """Return the language model of Gemma 3, '1b', '4b', '12b' or '27b': arXiv:2503.19786. Arguments as in `llama`."""
    sizes = choose_size(size, published.GEMMA3)
    own = published.GEMMA3_1B if size == '1b' else published.GEMMA3_LARGER
    own = {**own, 'query_pre_attn_scalar': 168, 'head_dim': 128} if size == '27b' else own
    return make_sized(GEMMA3_TEXT, sizes, scale, overrides, **own)


def gpt_oss(size: str = '20b', scale: float = 1.0, **overrides: Any) -> Preset:
    """Return gpt-oss, '20b' or '120b': arXiv:2508.10925. Arguments as in `qwen3`."""
    sizes = {'20b': (2880, 2880, 24, 64, 8), '120b': (2880, 2880, 36, 64, 8)}
    own = Published({'model_type': 'gpt_oss', 'num_local_experts': 32 if size == '20b' else 128}, head='head_dim')
    return make_sized(own, choose_size(size, sizes), scale, overrides)


def lfm2(size: str = '1.2b', scale: float = 1.0, **overrides: Any) -> Preset:
    """Return LFM2, '350m', '700m' or '1.2b': arXiv:2511.23404. Ten gated convolutions and six layers of attention.
    Arguments as in `llama`.
    """
    own = {'vocab_size': 65536, 'head_dim': 64, 'rms_norm_eps': 1e-5, 'tie_word_embeddings': True}
    found = make_sized(QWEN3_DENSE, choose_size(size, published.LFM2), scale, overrides, **own)
    attends = (2, 5, 8, 10, 12, 14)
    return mix_layers(found, lambda at: 'af' if at in attends else 'rf', recurrent_module='short_conv')


def qwen3_next(scale: float = 1.0, **overrides: Any) -> Preset:
    """Return Qwen3-Next, 80 billion parameters: arXiv:2412.06464 for its gated delta rule, in three of four layers.
    Others have gated attention. Without its module of multi-token prediction. Arguments as in `qwen3`.
    """
    found = make_sized(QWEN3_DENSE, published.QWEN3_NEXT, scale, overrides, **published.QWEN3_NEXT_FIELDS)
    heads = found['attn_layers']['heads']
    own = {'recurrent_kwargs': {'heads': 2 * heads, 'key_heads': heads, 'dim_head': 128}, **published.GATED_ATTENTION}
    own |= {'recurrent_module': 'gated_delta', 'ff_moe_shared': 1, 'ff_moe_shared_gate': True}
    return mix_layers(found, lambda at: 'af' if at % 4 == 3 else 'rf', **own)


def mamba2(size: str = '2.7b', **overrides: Any) -> Preset:
    """Return Mamba-2, '130m' to '2.7b': Dao and Gu 2024, arXiv:2405.21060. Other arguments as in `gpt2`."""
    dim, depth = choose_size(size, published.MAMBA2)
    model = {'num_tokens': 50288, 'max_seq_len': 0, **TIED}
    found = make_decoder((dim, depth, 1, dim), overrides, {}, model, use_rmsnorm=True, norm_eps=1e-5)
    return mix_layers(found, lambda at: 'r', recurrent_module='mamba2')


def deepseek_v3(scale: float = 1.0, **overrides: Any) -> Preset:
    """Return DeepSeek-V3, 671 billion parameters: arXiv:2412.19437. Without its module of multi-token prediction, which
    `mtp_depth=1` adds. Arguments as in `qwen3`; `scale` multiplies the ranks of latents too.
    """
    return make_sized(Published({'model_type': 'deepseek_v3'}), (), scale, overrides)


def vit(size: str = 'b16', architecture: str = 'ViTModel', num_classes: int | None = None, **overrides: Any) -> Preset:
    """Return ViT: Dosovitskiy et al. 2020, arXiv:2010.11929.

    Args:
        size: 's16', 'b16', 'l16', 'l14' or 'h14': the number is the height and width of a patch.
        architecture: 'ViTModel' pools the first token, 'ViTForImageClassification' has logits of `num_classes`.
        num_classes: Number of classes, for a classifier.
        **overrides: `dim`, `depth` and `heads`, which determine other sizes, and keywords of ViTransformerWrapper or
            Encoder.
    """
    if num_classes is not None:
        architecture = 'ViTForImageClassification'
        overrides['num_classes'] = num_classes
    *own, patch = choose_size(size, published.VITS)
    overrides = {**dict(zip(SIZES, own, strict=True)), **overrides}
    return VIT.make_preset(overrides, {}, architectures=[architecture], patch_size=patch)


def vit_b16(architecture: str = 'ViTModel', num_classes: int | None = None, **overrides: Any) -> Preset:
    """Return ViT-B/16: Dosovitskiy et al. 2020, arXiv:2010.11929. Arguments as in `vit`."""
    return vit('b16', architecture, num_classes, **overrides)


def vit_simple_s16(num_classes: int | None = 1000, **overrides: Any) -> Preset:
    """Return SimpleViT-S/16: Beyer et al. 2022, arXiv:2205.01580. Fixed sinusoidal positions, the mean of the patches,
    no class token, no dropout. The head starts from zeros.

    Args:
        num_classes: Number of classes; None for the mean of the patches without a head.
        **overrides: `dim`, `depth` and `heads`, as in `vit_b16`, and keywords of ViTransformerWrapper or Encoder.
    """
    sizes = {'dim': 384, 'heads': 6, **{name: overrides.pop(name) for name in SIZES if name in overrides}}
    found = VIT.make_preset(sizes, {})
    stack = {**found['attn_layers'], 'norm_eps': 1e-6}
    simple = {'prefix_tokens': 0, 'pool': 'mean', 'sincos_pos_emb': True, 'interpolate_pos_emb': None, 'pooler': None}
    own = {**found, **simple, 'num_classes': num_classes, 'attn_layers': stack}
    return change_preset(own, overrides, dict(xavier=True, lecun=('patch_to_embedding',), zeros=('mlp_head',)))


def whisper_tiny(num_tokens: int | None = None, **overrides: Any) -> Preset:
    """Return the multilingual tiny Whisper: Radford et al. 2022, arXiv:2212.04356.

    Args:
        num_tokens: Size of the vocabulary.
        **overrides: `dim`, `depth` and `heads` of both sides, which determine other sizes.
    """
    return WHISPER.make_preset(overrides, {}, vocab_size=num_tokens)


def gtrxl(**overrides: Any) -> Preset:
    """Return GTrXL: Parisotto et al. 2019, arXiv:1910.06764. A stack on vectors, for agents: 12 layers of width 256
    with gates, relative positions and 512 memories, norms before branches only, and ReLU. Overrides are keywords of
    ContinuousTransformerWrapper, such as `dim_in` and `dim_out`, or of Decoder.
    """
    stack = {
        'class': 'Decoder', 'dim': 256, 'depth': 12, 'heads': 8, 'xl_rel_pos': True, 'gate_residual': True,
        'residual_fn_kwargs': {'gate': 'gtrxl', 'pre_relu': True}, 'norm_bias': True, 'pre_norm_has_final_norm': False,
        'ff_activation': 'relu', 'verbose': False,
    }  # fmt: skip
    return change_preset(
        {'class': 'ContinuousTransformerWrapper', 'max_mem_len': 512, 'attn_layers': stack}, overrides, None
    )


# models by keywords


def override_sizes(sizes: Sequence[int], overrides: Mapping[str, Any]) -> list[int]:
    """Return width, blocks and heads: those of the overrides, or else the first of `sizes`."""
    found = [overrides.get(name, own) for name, own in zip(SIZES, sizes, strict=False)]
    for name, value in zip(SIZES, found, strict=True):
        size.require(name, value, ConfigError)
    return found


def make_decoder(sizes: Sequence[int], overrides: Mapping[str, Any], initial: Any, model: Any, **stack: Any) -> Preset:
    """Return a language model of these sizes: width, blocks, heads, and widths of a head and of feedforwards."""
    dim, depth, heads = override_sizes(sizes, overrides)
    head = sizes[3] if (dim, heads) == (sizes[0], sizes[2]) else max(dim // heads, 1)
    stack = {'class': 'Decoder', 'dim': dim, 'depth': depth, 'heads': heads, 'attn_dim_head': head, **stack}
    if len(sizes) > 4:
        stack['ff_dim_inner'] = sizes[4] * dim // sizes[0]
    model = {'class': 'TransformerWrapper', **model, 'attn_layers': {**stack, 'verbose': False}}
    return change_preset(model, overrides, initial)


TIED = {'tie_embedding': True, 'tie_embedding_scale': 1.0}


def palm(size: str = '540b', **overrides: Any) -> Preset:
    """Return PaLM, '8b', '62b' or '540b': Chowdhery et al. 2022, arXiv:2204.02311. Parallel blocks, one key head.
    Other arguments as in `gpt2`.
    """
    model = {'num_tokens': 256000, 'max_seq_len': 2048, 'tie_embedding': True}
    own = {'ff_glu': True, 'ff_swish': True, 'ff_no_bias': True, 'ff_glu_bias': False, 'attn_one_kv_head': True}
    own |= {'rotary_pos_emb': True, 'parallel_block': 'shared'}
    return make_decoder(choose_size(size, published.PALMS), overrides, None, model, **own)


def gopher(size: str = '280b', **overrides: Any) -> Preset:
    """Return Gopher, '44m' to '280b': Rae et al. 2021, arXiv:2112.11446. Relative positions as in Transformer-XL,
    RMSNorm, and feedforwards without biases. Other arguments as in `gpt2`.
    """
    model = {'num_tokens': 32000, 'max_seq_len': 2048, **TIED}
    own = {'use_rmsnorm': True, 'xl_rel_pos': True, 'ff_no_bias': True}
    return make_decoder(choose_size(size, published.GOPHERS), overrides, {'residual': 'depth'}, model, **own)


def chinchilla(size: str = '70b', **overrides: Any) -> Preset:
    """Return Chinchilla, '70b': Hoffmann et al. 2022, arXiv:2203.15556. `gopher` in another size."""
    choose_size(size, {'70b': None})
    return gopher(**{'dim': 8192, 'depth': 80, 'heads': 64, **overrides})


def transformer_xl(size: str = 'wt103_base', **overrides: Any) -> Preset:
    """Return Transformer-XL, 'wt103_base', 'enwik8_base' or 'enwik8_large': Dai et al. 2019, arXiv:1901.02860. Its
    softmax is not adaptive, with the same parameters in these sizes. Other arguments as in `gpt2`.
    """
    *sizes, tokens, length, dropout = choose_size(size, published.TRANSFORMER_XLS)
    model = {'num_tokens': tokens, 'max_seq_len': 0, 'max_mem_len': length, 'emb_dropout': dropout, **TIED}
    model['emb_scale'] = override_sizes(sizes, overrides)[0] ** 0.5
    own = dict.fromkeys(('attn_sublayer_dropout', 'ff_sublayer_dropout', 'ff_dropout'), dropout)
    own |= {'pre_norm': False, 'norm_bias': True, 'xl_rel_pos': True, 'ff_activation': 'relu'}
    return make_decoder(sizes, overrides, {}, model, **own)


def reformer(size: str = 'enwik8', **overrides: Any) -> Preset:
    """Return Reformer, 'enwik8': Kitaev et al. 2020, arXiv:2001.04451. Four rounds of hashes, queries as keys,
    reversible blocks, and axial positions, which are added, not joined. Other arguments as in `gpt2`.
    """
    choose_size(size, {'enwik8': None})
    model = {'num_tokens': 258, 'max_seq_len': 65536, 'axial_abs_pos_emb': (128, 512)}
    own = {'attn_cluster': 'lsh', 'attn_cluster_size': 64, 'attn_lsh_rounds': 4, 'ff_activation': 'relu'}
    return make_decoder((1024, 12, 8, 128), overrides, {}, model, reversible=True, **own)


def performer(size: str = 'imagenet64', **overrides: Any) -> Preset:
    """Return Performer, 'imagenet64' or 'protein': Choromanski et al. 2020, arXiv:2009.14794. ReLU features.
    Other arguments as in `gpt2`.
    """
    *sizes, tokens, length = choose_size(size, published.PERFORMERS)
    return make_decoder(sizes, overrides, {}, {'num_tokens': tokens, 'max_seq_len': length}, attn_kernel='relu')


def conformer(size: str = 'l', **overrides: Any) -> Preset:
    """Return the encoder of Conformer, 's', 'm' or 'l': Gulati et al. 2020, arXiv:2005.08100. Overrides are `dim`,
    `depth`, `heads`, and keywords of ConformerEncoder.
    """
    sizes = {'s': (144, 16, 4), 'm': (256, 16, 4), 'l': (512, 17, 8)}
    dim, depth, heads = override_sizes(choose_size(size, sizes), overrides)
    own = {'dim': dim, 'depth': depth, 'heads': heads, 'attn_dim_head': max(dim // heads, 1), 'conv_kernel_size': 31}
    return change_preset(
        {'class': 'ConformerEncoder', **own}, {n: v for n, v in overrides.items() if n not in SIZES}, None
    )


def perceiver(size: str = 'imagenet', **overrides: Any) -> Preset:
    """Return Perceiver, 'imagenet': Jaegle et al. 2021, arXiv:2103.03206. Eight rounds, which share their
    weights except for the first cross-attention. Overrides are keywords of Perceiver.
    """
    choose_size(size, {'imagenet': None})
    dim, depth, heads = override_sizes((1024, 8, 8), overrides)
    own = {'input_channels': 3, 'input_axis': 2, 'num_latents': 512, 'dim': dim, 'depth': depth, 'max_freq': 224.0}
    own |= {'heads': heads, 'dim_head': max(dim // heads, 1), 'cross_dim_head': 261, 'self_per_cross': 6}
    own |= dict(weight_tie_layers=True, num_classes=1000, cross_kwargs={'ff_mult': 1}, self_kwargs={'ff_mult': 1})
    return change_preset({'class': 'Perceiver', **own}, overrides, None)


# building


def build(keywords: Mapping[str, Any]) -> nn.Module:
    """Build a model from keywords: a preset, or in the form of `model.config` and `pretrained.keywords`.

    A preset is initialized as in its paper, with the default random generator of PyTorch.
    """
    if not isinstance(keywords, Mapping) or not isinstance(keywords.get('class'), str):
        raise ConfigError(f'`keywords` must be a dict with the name of a class, `class`, got {format_value(keywords)}')
    model = decode(keywords)
    initial = keywords.initial if isinstance(keywords, Preset) else None
    return model if initial is None else initialise_(model, **initial)


@torch.no_grad()
def initialise_(
    model: nn.Module,
    std: float = 0.02,
    xavier: bool = False,
    residual: str | None = None,
    *,
    lecun: Sequence[str] = (),
    zeros: Sequence[str] = (),
    force: bool = False,
) -> nn.Module:
    """Initialize a model in place: matrices and tables from N(0, std), biases with zeros, norm weights with ones.

    Parameters of features of stacks and of their branches keep their values, or are initialized by the feature.

    Args:
        model: The model.
        std: Standard deviation.
        xavier: True for uniform matrices with the variance 2 / (inputs + outputs), and tables from N(0, 1 / width).
        residual: 'depth' to divide output projections by the root of the number of branches in their stack.
        lecun: Names of submodules whose matrices come from N(0, 1 / inputs).
        zeros: Names of submodules whose matrices are zero.
        force: True to replace weights from a file too.

    Returns:
        The model.

    Raises:
        ValueError: A value is out of range, or the model has weights from a file.
    """
    positive.require('std', std)
    one_of(None, 'depth').require('residual', residual)
    if not force and getattr(model, 'pretrained', None) is not None:
        raise ValueError('`model` has weights from a file, which would be lost: `force=True` replaces them')
    kept = {id(p) for p in list_feature_parameters(model)}

    def draw(weight: Tensor, scale: float | None) -> None:
        if id(weight) in kept:
            return
        if scale is None:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.normal_(weight, std=scale)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            draw(module.weight, None if xavier else std)
            if module.bias is not None and id(module.bias) not in kept:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            draw(module.weight, module.embedding_dim**-0.5 if xavier else std)
        elif isinstance(module, LayerNorm | RMSNorm):
            reset_norm(module, kept)
    for stack in (m for m in model.modules() if isinstance(m, AttentionLayers) and residual is not None):
        for output in list_outputs(stack):
            output.weight.mul_(len(stack.layers_execute_order) ** -0.5)
    modules = dict(model.named_modules())
    for name in (*lecun, *zeros):
        one_of(*modules).require('zeros' if name in zeros else 'lecun', name)
        for linear in (m for m in modules[name].modules() if isinstance(m, nn.Linear)):
            draw(linear.weight, 0.0 if name in zeros else linear.in_features**-0.5)
    for branch in (m for m in model.modules() if isinstance(m, Attention | FeedForward)):
        for feature in branch.features.by_stage.get('initialize', ()):
            feature.initialize()
    return model


def list_feature_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of the features of stacks and branches."""
    for owner in model.modules():
        if not isinstance(owner, AttentionLayers | Attention | FeedForward) or not isinstance(owner.features, Features):
            continue
        for feature in owner.features.active:
            for name in feature.owned:
                own = getattr(feature, name)
                yield from own.parameters() if isinstance(own, nn.Module) else [own]


def reset_norm(norm: Any, kept: set[int]) -> None:
    """Set the weight of a norm to one, which may be stored as its difference from one, and the bias to zero."""
    for name, value in (('gamma', 1.0), ('g', 1.0), ('beta', 0.0)):
        parameter = getattr(norm, name, None)
        if parameter is not None and id(parameter) not in kept:
            nn.init.constant_(parameter, value - (norm.unit_offset if value else 0.0))


def list_outputs(stack: AttentionLayers) -> Iterator[nn.Linear]:
    """Yield the output projections of the branches."""
    for _, branch, _ in stack.layers:
        for module in branch.modules():
            found = [module.to_out] if isinstance(module, Attention) else []
            found += module.output_layers if isinstance(module, FeedForward) else []
            yield from (one for one in found if isinstance(one, nn.Linear))


def xlnet_base(**overrides: Any) -> Preset:
    """Return XLNet: Yang et al. 2019, arXiv:1906.08237. For `PermutationLMWrapper`, or alone if all tokens are known.
    Its weights cannot be loaded. Overrides are keywords of TransformerWrapper, such as `max_mem_len`, or of Encoder.
    """
    model = {'num_tokens': 32000, 'max_seq_len': 0, 'emb_dropout': 0.1, 'logits_bias': True, **TIED}
    drops = ('attn_dropout', 'attn_sublayer_dropout', 'ff_dropout', 'ff_sublayer_dropout')
    own: dict[str, Any] = dict.fromkeys(drops, 0.1)
    own |= {'class': 'Encoder', 'pre_norm': False, 'norm_bias': True, 'norm_eps': 1e-12, 'two_stream': True}
    own |= {'xl_rel_pos': True, 'xl_rel_pos_untied': True, 'xl_rel_segments': True}
    return make_decoder((768, 12, 12, 64), overrides, {}, model, **own)


def __getattr__(name: str) -> Any:
    raise AttributeError(f'`presets` has no {name!r}{did_you_mean(name, __all__)}')
