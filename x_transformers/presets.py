"""Models of well-known papers by name: the keywords that build them, and their initial values.

    from x_transformers import presets

    keywords = presets.vaswani_base(enc_depth=12)             # a dict, in the form of `model.config`
    model = presets.build(keywords)                           # an XTransformer

These models are newly initialized; `pretrained` loads weights of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    is_int,
    none,
    one_of,
    positive,
    size,
)
from x_transformers.flags.config import KINDS, decode
from x_transformers.pretrained.specs import get_spec
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward

__all__ = [
    'bert_base', 'build', 'gpt1', 'gpt2', 'gpt3', 'gtrxl', 'initialise_', 'llama_7b', 'roberta_base', 't5_base',
    'vaswani_base', 'vaswani_big', 'vit_b16', 'vit_simple_s16', 'whisper_tiny', 'xlnet_base',
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
    inner: tuple[str, ...] = ('intermediate_size',)  # proportional to the width
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
        changed = {name: sizes[name] * width // before for name in self.inner} | {self.dim: width}
        changed |= dict.fromkeys(self.depth, depth) if depth else {}
        changed |= dict.fromkeys(self.heads, heads) if heads else {}
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


def gpt3(**overrides: Any) -> Preset:
    """Return GPT-3, 175 billion parameters: Brown et al. 2020, arXiv:2005.14165. GPT-2 of width 12,288, 96 layers and
    heads, with 2,048 tokens. All layers have dense attention, since the sparse pattern of every second one is not
    published. Arguments as in `gpt2`.
    """
    return gpt2(**{'dim': 12288, 'depth': 96, 'heads': 96, 'max_seq_len': 2048, **overrides})


def t5_base(version: str = '1.0', **overrides: Any) -> Preset:
    """Return T5: Raffel et al. 2019, arXiv:1910.10683.

    Args:
        version: '1.1' has gated GELUs and an untied output head.
        **overrides: `dim`, `depth`, `heads` of both sides, which determine other sizes, and keywords of XTransformer.
    """
    one_of('1.0', '1.1').require('version', version, ConfigError)
    own = {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False, 'd_ff': 2048} if version == '1.1' else {}
    return replace(T5, config={**T5.config, **own}).make_preset(overrides, {})


def llama_7b(**overrides: Any) -> Preset:
    """Return Llama: Touvron et al. 2023, arXiv:2302.13971. Arguments as in `gpt2`; `attn_kv_heads=8` shares keys."""
    return LLAMA.make_preset(overrides, {})


def vit_b16(architecture: str = 'ViTModel', num_classes: int | None = None, **overrides: Any) -> Preset:
    """Return ViT-B/16: Dosovitskiy et al. 2020, arXiv:2010.11929.

    Args:
        architecture: 'ViTModel' pools the first token, 'ViTForImageClassification' has logits of `num_classes`.
        num_classes: Number of classes, for a classifier.
        **overrides: `dim`, `depth` and `heads`, which determine other sizes (ViT-S is `dim=384, heads=6`, ViT-L
            `dim=1024, depth=24, heads=16`), and keywords of ViTransformerWrapper or Encoder.
    """
    if num_classes is not None:
        architecture = 'ViTForImageClassification'
        overrides['num_classes'] = num_classes
    return VIT.make_preset(overrides, {}, architectures=[architecture])


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
    with gates, relative positions and 512 memories, norms before branches only, and ReLU.

    Args:
        **overrides: Keywords of ContinuousTransformerWrapper, such as `dim_in` and `dim_out`, or of Decoder.
    """
    stack = {
        'class': 'Decoder', 'dim': 256, 'depth': 12, 'heads': 8, 'xl_rel_pos': True, 'gate_residual': True,
        'residual_fn_kwargs': {'gate': 'gtrxl', 'pre_relu': True}, 'norm_bias': True, 'pre_norm_has_final_norm': False,
        'ff_activation': 'relu', 'verbose': False,
    }  # fmt: skip
    return change_preset(
        {'class': 'ContinuousTransformerWrapper', 'max_mem_len': 512, 'attn_layers': stack}, overrides, None
    )


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
    Its weights cannot be loaded.

    Args:
        **overrides: Keywords of TransformerWrapper, such as `max_mem_len`, or of Encoder.
    """
    dim, heads = overrides.get('dim', 768), overrides.get('heads', 12)
    stack = {
        'class': 'Encoder', 'dim': 768, 'depth': 12, 'heads': 12,
        'attn_dim_head': dim // heads if is_int(dim) and is_int(heads) and heads > 0 else 64,
        'pre_norm': False, 'norm_bias': True, 'norm_eps': 1e-12, 'xl_rel_pos': True, 'xl_rel_pos_untied': True,
        'xl_rel_segments': True, 'two_stream': True, 'verbose': False,
        **dict.fromkeys(('attn_dropout', 'attn_sublayer_dropout', 'ff_dropout', 'ff_sublayer_dropout'), 0.1),
    }  # fmt: skip
    tied = {'tie_embedding': True, 'tie_embedding_scale': 1.0, 'logits_bias': True}
    around = {'num_tokens': 32000, 'max_seq_len': 0, 'emb_dropout': 0.1, **tied}
    return change_preset({'class': 'TransformerWrapper', **around, 'attn_layers': stack}, overrides, {})


PRESETS: tuple[Callable[..., Preset], ...] = (
    vaswani_base, vaswani_big, bert_base, roberta_base, gpt1, gpt2, gpt3, t5_base, llama_7b, vit_b16, vit_simple_s16,
    whisper_tiny, gtrxl, xlnet_base,
)  # fmt: skip


def __getattr__(name: str) -> Any:
    raise AttributeError(f'`presets` has no {name!r}{did_you_mean(name, [preset.__name__ for preset in PRESETS])}')
