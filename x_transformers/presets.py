"""Models of well-known papers by name: the keywords that build them, and their initial values.

    from x_transformers import presets

    keywords = presets.vaswani_base(enc_depth=12)             # a dict, in the form of `model.config`
    model = presets.build(keywords)                           # an XTransformer

These models are newly initialized; `pretrained` loads weights of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers import encoder_decoder, pretrained  # noqa: F401  which a config can name then
from x_transformers.features.norms import LayerNorm, RMSNorm
from x_transformers.flags import ConfigError, Features, advice, did_you_mean, format_value, is_int, is_number
from x_transformers.flags.config import KINDS, decode
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward

__all__ = [
    'bert_base', 'build', 'gpt1', 'gpt2', 'gpt3', 'gtrxl', 'initialise_', 'llama_7b', 'roberta_base', 't5_base',
    'vaswani_base', 'vaswani_big', 'vit_b16', 'whisper_tiny',
    'xlnet_base',
]  # fmt: skip


class Preset(dict[str, Any]):
    """Keywords of a model, in the form of `model.config`, and `initial`: those of `initialise_` that `build` gives it.

    A copy that is a plain dict, as JSON makes one, builds the same model with the initial values of its class.
    """

    initial: dict[str, Any] | None  # None: the values of its classes

    def __init__(self, keywords: Mapping[str, Any], initial: Mapping[str, Any] | None) -> None:
        super().__init__(keywords)
        self.initial = None if initial is None else dict(initial)


def change_preset(keywords: dict[str, Any], overrides: Mapping[str, Any], initial: Mapping[str, Any] | None) -> Preset:
    """The keywords with those of the user, each of the class or else of its stack.  Raises ConfigError for others."""
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


def vaswani(dim: int, heads: int, dropout: float, overrides: Mapping[str, Any]) -> Preset:
    """The first transformers, in a size. Sizes that others decide follow them: a head has dim / heads features."""
    dim = overrides.get('dim', dim)
    if not (is_number(dim) and dim >= 1):
        raise ConfigError(f'`dim` got {format_value(dim)}, it must be an integer of at least 1')
    keywords: dict[str, Any] = {'class': 'XTransformer', 'dim': dim, 'tie_token_emb': True, 'label_smoothing': 0.1}
    for side in ('enc_', 'dec_'):
        own = {
            'num_tokens': 37000,  # English and German in pairs of bytes
            'max_seq_len': 1024,
            'scaled_sinu_pos_emb': True,
            'abs_pos_emb_scale': 1.0,
            'emb_scale': dim**0.5,
            'emb_dropout': dropout,
            'depth': 6,
            'heads': heads,
            'pre_norm': False,
            'norm_bias': True,
            'attn_dim_head': max(dim // overrides.get(f'{side}heads', heads), 1),
            'attn_sublayer_dropout': dropout,
            'ff_dim_inner': 4 * dim,
            'ff_activation': 'relu',
            'ff_sublayer_dropout': dropout,
        }
        keywords |= {side + name: value for name, value in own.items()}
    keywords |= {'dec_tie_embedding': True, 'dec_tie_embedding_scale': 1.0}
    return change_preset(keywords, overrides, dict(xavier=True))


def vaswani_base(**overrides: Any) -> Preset:
    """The base model of Vaswani et al. 2017, arXiv:1706.03762: 6 + 6 layers of width 512, norms after each branch,
    sines and cosines, one table for source, target and output, Xavier-uniform matrices, smoothed targets.

    overrides   keywords of XTransformer, in place of these or beside them
    returns     the keywords, for `build`
    raises      ConfigError for a name that is no keyword
    """
    return vaswani(512, 8, 0.1, overrides)


def vaswani_big(**overrides: Any) -> Preset:
    """The big model of Vaswani et al. 2017, arXiv:1706.03762: as `vaswani_base`, of width 1024, with 16 heads and more
    dropout."""
    return vaswani(1024, 16, 0.3, overrides)


# those whose configs are published


@dataclass(frozen=True)
class Published:
    """A config as `transformers` writes it, and what it calls the sizes that an override may change."""

    config: Mapping[str, Any]
    dim: str = 'hidden_size'
    depth: tuple[str, ...] = ('num_hidden_layers',)
    heads: tuple[str, ...] = ('num_attention_heads',)
    inner: tuple[str, ...] = ('intermediate_size',)  # grows with the width
    head: str = ''  # the width of a head, where the config has it

    def sized(self, dim: Any = None, depth: Any = None, heads: Any = None) -> dict[str, Any]:
        """The config in other sizes: the inner width keeps its ratio to the width, heads share the width."""
        for name, value in (('dim', dim), ('depth', depth), ('heads', heads)):
            if value is not None and not (is_int(value) and value >= 1):
                raise ConfigError(f'`{name}` got {format_value(value)}, it must be an integer of at least 1')
        config = dict(self.config)
        config |= dict.fromkeys(self.depth, depth) if depth else {}
        config |= dict.fromkeys(self.heads, heads) if heads else {}
        heads, before = config[self.heads[0]], config[self.dim]
        width = dim or before
        if width % heads:
            raise ConfigError(f'`dim` got {width}, which {heads} heads do not divide')
        config |= {name: config[name] * width // before for name in self.inner}
        config |= {self.head: width // heads} if self.head and (dim or heads != self.config[self.heads[0]]) else {}
        return {**config, self.dim: width}

    def preset(self, overrides: Mapping[str, Any], initial: Mapping[str, Any], **config: Any) -> Preset:
        sizes = {name: overrides[name] for name in ('dim', 'depth', 'heads') if name in overrides}
        rest = {name: value for name, value in overrides.items() if name not in sizes}
        found = pretrained.keywords(
            {**self.sized(**sizes), **{name: value for name, value in config.items() if value is not None}}
        )
        return change_preset(found, rest, initial)


GPT2 = Published(
    {'model_type': 'gpt2', 'vocab_size': 50257, 'n_positions': 1024, 'n_embd': 768, 'n_layer': 12, 'n_head': 12,
     'n_inner': 3072, 'activation_function': 'gelu_new'},
    dim='n_embd', depth=('n_layer',), heads=('n_head',), inner=('n_inner',),
)  # fmt: skip
BERT = Published(
    {'model_type': 'bert', 'vocab_size': 30522, 'hidden_size': 768, 'num_hidden_layers': 12, 'num_attention_heads': 12,
     'intermediate_size': 3072, 'max_position_embeddings': 512, 'type_vocab_size': 2}
)  # fmt: skip
T5 = Published(
    {'model_type': 't5', 'vocab_size': 32128, 'd_model': 768, 'd_kv': 64, 'd_ff': 3072, 'num_layers': 12,
     'num_decoder_layers': 12, 'num_heads': 12},
    dim='d_model', depth=('num_layers', 'num_decoder_layers'), heads=('num_heads',), inner=('d_ff',), head='d_kv',
)  # fmt: skip
LLAMA = Published(
    {'model_type': 'llama', 'vocab_size': 32000, 'hidden_size': 4096, 'intermediate_size': 11008,
     'num_hidden_layers': 32, 'num_attention_heads': 32, 'num_key_value_heads': 32, 'rms_norm_eps': 1e-6},
    heads=('num_attention_heads', 'num_key_value_heads'),
)  # fmt: skip
VIT = Published(
    {'model_type': 'vit', 'hidden_size': 768, 'num_hidden_layers': 12, 'num_attention_heads': 12,
     'intermediate_size': 3072, 'image_size': 224, 'patch_size': 16, 'num_channels': 3}
)  # fmt: skip
WHISPER = Published(
    {'model_type': 'whisper', 'vocab_size': 51865, 'd_model': 384, 'num_mel_bins': 80, 'max_source_positions': 1500,
     'max_target_positions': 448, 'encoder_layers': 4, 'decoder_layers': 4, 'encoder_attention_heads': 6,
     'decoder_attention_heads': 6, 'encoder_ffn_dim': 1536, 'decoder_ffn_dim': 1536},
    dim='d_model', depth=('encoder_layers', 'decoder_layers'),
    heads=('encoder_attention_heads', 'decoder_attention_heads'), inner=('encoder_ffn_dim', 'decoder_ffn_dim'),
)  # fmt: skip


def bert_base(architecture: str = 'BertModel', **overrides: Any) -> Preset:
    """BERT, uncased: Devlin et al. 2018, arXiv:1810.04805.

    architecture   class with the output head: 'BertModel' pools the first token, 'BertForMaskedLM' has logits
    overrides      `dim`, `depth`, `heads`, which determine other sizes, and keywords of TransformerWrapper or Encoder
    returns        the keywords, for `build`
    raises         ConfigError for unknown keywords or architectures
    """
    return BERT.preset(overrides, {}, architectures=[architecture])


def roberta_base(architecture: str = 'RobertaModel', **overrides: Any) -> Preset:
    """RoBERTa: Liu et al. 2019, arXiv:1907.11692. Like BERT, with 512 positions and one token type, masks that
    are sampled again each time, as in `MLMWrapper`, and without sentence pairs. Its weight files have two additional
    positions, which are never used. Arguments as in `bert_base`."""
    own = {'vocab_size': 50265, 'max_position_embeddings': 514, 'type_vocab_size': 1, 'layer_norm_eps': 1e-5}
    roberta = replace(BERT, config={**BERT.config, 'model_type': 'roberta', **own})
    return roberta.preset(overrides, {}, architectures=[architecture])


def gpt1(**overrides: Any) -> Preset:
    """GPT: Radford et al. 2018. 12 layers of width 768, norms after each branch, 512 learned positions, logits by the
    table of tokens. Weights of it are not read. Arguments as in `gpt2`."""
    own = {'attn_layers': {'pre_norm': False}, 'num_tokens': 40478, 'max_seq_len': 512}
    found = gpt2(**{name: value for name, value in overrides.items() if name in ('dim', 'depth', 'heads')})
    stack = {**found.pop('attn_layers'), **own.pop('attn_layers')}
    rest = {name: value for name, value in overrides.items() if name not in ('dim', 'depth', 'heads')}
    return change_preset({**found, **own, 'attn_layers': stack}, rest, {})


def gpt2(**overrides: Any) -> Preset:
    """GPT-2, small: Radford et al. 2019. The others are `dim=1024, depth=24, heads=16`, `1280, 36, 20`, `1600, 48, 25`.

    overrides   `dim`, `depth` and `heads`, which determine other sizes, and keywords of TransformerWrapper or Decoder
    returns     the keywords, for `build`; what joins the stream starts smaller by the root of how often that happens
    raises      ConfigError for a name that is no keyword
    """
    return GPT2.preset(overrides, {'residual': 'depth'})


def gpt3(**overrides: Any) -> Preset:
    """GPT-3, 175 billion weights: Brown et al. 2020, arXiv:2005.14165. GPT-2 of width 12,288, 96 layers and heads,
    with 2,048 tokens. All layers have dense attention here: the sparse pattern of every second one is not published.
    Arguments as in `gpt2`."""
    own: dict[str, Any] = {'dim': 12288, 'depth': 96, 'heads': 96, 'max_seq_len': 2048}
    return gpt2(**{**own, **overrides})


def t5_base(version: str = '1.0', **overrides: Any) -> Preset:
    """T5: Raffel et al. 2019, arXiv:1910.10683.

    version     '1.1' has gated GELUs and an untied output head
    overrides   `dim`, `depth` and `heads` of both sides, which determine other sizes, and keywords of XTransformer
    """
    if version not in ('1.0', '1.1'):
        raise ConfigError(f"`version` got {format_value(version)}, it must be '1.0' or '1.1'")
    own = {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False, 'd_ff': 2048} if version == '1.1' else {}
    return replace(T5, config={**T5.config, **own}).preset(overrides, {})


def llama_7b(**overrides: Any) -> Preset:
    """Llama: Touvron et al. 2023, arXiv:2302.13971. Arguments as in `gpt2`; `attn_kv_heads=8` shares keys, values."""
    return LLAMA.preset(overrides, {})


def vit_b16(architecture: str = 'ViTModel', num_classes: int | None = None, **overrides: Any) -> Preset:
    """ViT-B/16: Dosovitskiy et al. 2020, arXiv:2010.11929.

    architecture   'ViTModel' pools the first token, 'ViTForImageClassification' has logits of `num_classes`
    overrides      `dim`, `depth` and `heads`, which determine other sizes (ViT-S is `dim=384, heads=6`, ViT-L
                   `dim=1024, depth=24, heads=16`), and keywords of ViTransformerWrapper or Encoder
    """
    if num_classes is not None:
        architecture = 'ViTForImageClassification'
        overrides['num_classes'] = num_classes
    return VIT.preset(overrides, {}, architectures=[architecture])


def whisper_tiny(num_tokens: int | None = None, **overrides: Any) -> Preset:
    """Whisper, tiny, of many languages: Radford et al. 2022, arXiv:2212.04356.

    overrides   `dim`, `depth` and `heads` of both sides, which determine other sizes
    """
    return WHISPER.preset(overrides, {}, vocab_size=num_tokens)


def gtrxl(**overrides: Any) -> Preset:
    """GTrXL: Parisotto et al. 2019, arXiv:1910.06764. Vectors in, vectors out, for agents: 12 layers of width 256 with
    gates, relative positions and 512 memories; norms before branches only, and ReLU.

    overrides   keywords of ContinuousTransformerWrapper, as `dim_in` and `dim_out`, or of Decoder
    """
    stack = {
        'class': 'Decoder',
        'dim': 256,
        'depth': 12,
        'heads': 8,
        'xl_rel_pos': True,
        'gate_residual': True,
        'residual_fn_kwargs': {'gate': 'gtrxl', 'pre_relu': True},
        'norm_bias': True,
        'pre_norm_has_final_norm': False,
        'ff_activation': 'relu',
        'verbose': False,
    }
    return change_preset(
        {'class': 'ContinuousTransformerWrapper', 'max_mem_len': 512, 'attn_layers': stack}, overrides, None
    )


# building


def build(keywords: Mapping[str, Any]) -> nn.Module:
    """Build a model from keywords: a preset, or in the form of `model.config` and `pretrained.keywords`.

    A preset is initialized as in its paper, with the default random generator of PyTorch.
    """
    if not isinstance(keywords, Mapping) or not isinstance(keywords.get('class'), str):
        raise ConfigError(
            f'`keywords` got {format_value(keywords)}, it must be a dict with the name of a class as `class`'
        )
    model = decode(keywords)
    initial = keywords.initial if isinstance(keywords, Preset) else None
    return model if initial is None else initialise_(model, **initial)


@torch.no_grad()
def initialise_(
    model: nn.Module, std: float = 0.02, xavier: bool = False, residual: str | None = None, *, force: bool = False
) -> nn.Module:
    """Draw the weights of a model anew: matrices and tables from N(0, std), biases zero, gains one.

    xavier     matrices uniform with the variance 2 / (inputs + outputs), tables N(0, 1 / width)
    residual   'depth': what writes to the stream is divided by the root of how many branches do, those of a stack
    force      also weights that were read from a file
    returns    the model
    raises     ValueError for a value out of range, or for a model with weights from a file

    What features of stacks and of their branches own keeps its values, as does what they set to zero on purpose.
    """
    if not is_number(std) or std <= 0:
        raise ValueError(f'`std` got {format_value(std)}, it must be a number above 0')
    if residual not in (None, 'depth'):
        raise ValueError(f"`residual` got {format_value(residual)}, it must be None or 'depth'")
    if not force and getattr(model, 'pretrained', None) is not None:
        raise ValueError('`model` has weights from a file, which would be lost: `force=True` draws them anew')
    kept = {id(p) for p in preset_of_features(model)}

    def drawn(weight: Tensor, scale: float | None) -> None:
        if id(weight) in kept:
            return
        if scale is None:
            nn.init.xavier_uniform_(weight)
        else:
            nn.init.normal_(weight, std=scale)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            drawn(module.weight, None if xavier else std)
            if module.bias is not None and id(module.bias) not in kept:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            drawn(module.weight, module.embedding_dim**-0.5 if xavier else std)
        elif isinstance(module, LayerNorm | RMSNorm):
            as_if_absent(module, kept)
    for stack in (m for m in model.modules() if isinstance(m, AttentionLayers) and residual is not None):
        for output in outputs(stack):
            output.weight.mul_(len(stack.layers_execute_order) ** -0.5)
    for branch in (m for m in model.modules() if isinstance(m, Attention | FeedForward)):
        for feature in branch.features.by_stage.get('initialize', ()):
            feature.initialize()
    return model


def preset_of_features(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that features of stacks and branches own."""
    for owner in model.modules():
        if not isinstance(owner, AttentionLayers | Attention | FeedForward) or not isinstance(owner.features, Features):
            continue
        for feature in owner.features.active:
            for name in feature.owned:
                own = getattr(feature, name)
                yield from own.parameters() if isinstance(own, nn.Module) else [own]


def as_if_absent(norm: Any, kept: set[int]) -> None:
    """Gains of one and no bias; a gain may be stored as its difference from one."""
    for name, value in (('gamma', 1.0), ('g', 1.0), ('beta', 0.0)):
        parameter = getattr(norm, name, None)
        if parameter is not None and id(parameter) not in kept:
            nn.init.constant_(parameter, value - (norm.unit_offset if value else 0.0))


def outputs(stack: AttentionLayers) -> Iterator[nn.Linear]:
    """The projections that write to the stream."""
    for _, branch, _ in stack.layers:
        for module in branch.modules():
            found = [module.to_out] if isinstance(module, Attention) else []
            found += module.output_layers if isinstance(module, FeedForward) else []
            yield from (one for one in found if isinstance(one, nn.Linear))


def xlnet_base(**overrides: Any) -> Preset:
    """XLNet: Yang et al. 2019, arXiv:1906.08237. For `PermutationLMWrapper`, and as it is where all tokens are known;
    weights of it are not read.

    overrides   keywords of TransformerWrapper, as `max_mem_len`, or of Encoder
    """
    dim, heads = overrides.get('dim', 768), overrides.get('heads', 12)
    stack = {
        'class': 'Encoder',
        'dim': 768,
        'depth': 12,
        'heads': 12,
        'attn_dim_head': dim // heads if is_int(dim) and is_int(heads) and heads > 0 else 64,
        'pre_norm': False,
        'norm_bias': True,
        'norm_eps': 1e-12,
        'xl_rel_pos': True,
        'xl_rel_pos_untied': True,
        'xl_rel_segments': True,
        'two_stream': True,
        **dict.fromkeys(('attn_dropout', 'attn_sublayer_dropout', 'ff_dropout', 'ff_sublayer_dropout'), 0.1),
        'verbose': False,
    }
    tied = {'tie_embedding': True, 'tie_embedding_scale': 1.0, 'logits_bias': True}
    around = {'num_tokens': 32000, 'max_seq_len': 0, 'emb_dropout': 0.1, **tied}
    return change_preset({'class': 'TransformerWrapper', **around, 'attn_layers': stack}, overrides, {})


PRESETS: tuple[Callable[..., Preset], ...] = (
    vaswani_base, vaswani_big, bert_base, roberta_base, gpt1, gpt2, gpt3, t5_base, llama_7b, vit_b16, whisper_tiny,
    gtrxl, xlnet_base,
)  # fmt: skip


def __getattr__(name: str) -> Any:
    raise AttributeError(f'`presets` has no {name!r}{did_you_mean(name, [preset.__name__ for preset in PRESETS])}')
