"""Models of well-known papers by name: the keywords that build them, and the values they start from.

    from x_transformers import presets

    keywords = presets.vaswani_base(enc_depth=12)             # a dict, in the form of `model.config`
    model = presets.build(keywords)                           # an XTransformer

Weights of other libraries are read by `pretrained`; here all values are fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers import encoder_decoder  # noqa: F401  which a config can name then
from x_transformers.features.norms import LayerNorm, RMSNorm
from x_transformers.flags import ConfigError, Features, did_you_mean, is_number, shown
from x_transformers.flags.config import KINDS, decode
from x_transformers.x_transformers import Attention, AttentionLayers, FeedForward

__all__ = ['build', 'initialise_', 'vaswani_base', 'vaswani_big']


class Preset(dict[str, Any]):
    """Keywords of a model, in the form of `model.config`, and `initial`: those of `initialise_` that `build` gives it.

    A copy that is a plain dict, as JSON makes one, builds the same model with the initial values of its class.
    """

    initial: dict[str, Any]

    def __init__(self, keywords: Mapping[str, Any], initial: Mapping[str, Any]) -> None:
        super().__init__(keywords)
        self.initial = dict(initial)


def changed(keywords: dict[str, Any], overrides: Mapping[str, Any], initial: Mapping[str, Any]) -> Preset:
    """The keywords with those of the user, each of the class or else of its stack.  Raises ConfigError for others."""
    own, stack = KINDS[keywords['class']].accepted(), dict(keywords.get('attn_layers', {}))
    inner = KINDS[stack['class']].accepted() if stack else {}
    for name in overrides:
        if name not in own and name not in inner:
            hint = did_you_mean(name, (*own, *inner))
            raise ConfigError(f'unknown keyword `{name}` of {keywords["class"]}{hint}')
    of_stack = {name: value for name, value in overrides.items() if name not in own}
    keywords = {**keywords, **({'attn_layers': {**stack, **of_stack}} if stack else {})}
    return Preset({**keywords, **{name: overrides[name] for name in overrides if name in own}}, initial)


# encoder and decoder


def vaswani(dim: int, heads: int, dropout: float, overrides: Mapping[str, Any]) -> Preset:
    """The first transformers, in a size. Sizes that others decide follow them: a head has dim / heads features."""
    dim = overrides.get('dim', dim)
    if not (is_number(dim) and dim >= 1):
        raise ConfigError(f'`dim` got {shown(dim)}, it must be an integer of at least 1')
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
    return changed(keywords, overrides, dict(xavier=True))


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


# building


def build(keywords: Mapping[str, Any]) -> nn.Module:
    """The model of some keywords, a preset or in the form of `model.config` and `pretrained.keywords`.

    A preset starts from the values that its paper names, drawn from torch's generator.
    """
    if not isinstance(keywords, Mapping) or not isinstance(keywords.get('class'), str):
        raise ConfigError(f'`keywords` got {shown(keywords)}, it must be a dict with the name of a class as `class`')
    model = decode(keywords)
    return initialise_(model, **keywords.initial) if isinstance(keywords, Preset) else model


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
        raise ValueError(f'`std` got {shown(std)}, it must be a number above 0')
    if residual not in (None, 'depth'):
        raise ValueError(f"`residual` got {shown(residual)}, it must be None or 'depth'")
    if not force and getattr(model, 'pretrained', None) is not None:
        raise ValueError('`model` has weights from a file, which would be lost: `force=True` draws them anew')
    kept = {id(p) for p in of_features(model)}

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
        for feature in branch.features.at.get('initialise', ()):
            feature.initialise()
    return model


def of_features(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that features of stacks and branches own."""
    for host in model.modules():
        if not isinstance(host, AttentionLayers | Attention | FeedForward) or not isinstance(host.features, Features):
            continue
        for feature in host.features.active:
            for name in feature.owned:
                own = getattr(feature, name)
                yield from own.parameters() if isinstance(own, nn.Module) else [own]


def as_if_absent(norm: nn.Module, kept: set[int]) -> None:
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
            found += module.outputs if isinstance(module, FeedForward) else []
            yield from (one for one in found if isinstance(one, nn.Linear))


PRESETS: dict[str, Callable[..., Preset]] = {'vaswani_base': vaswani_base, 'vaswani_big': vaswani_big}


def __getattr__(name: str) -> Any:
    raise AttributeError(f'`presets` has no {name!r}{did_you_mean(name, PRESETS)}')
