"""Heads of pretrained models: those of a spec replaced by classes, spans, poolers, or none."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.flags import ConfigError, format_value, none, size
from x_transformers.pretrained.engine import ConversionStep
from x_transformers.pretrained.fields import classes, invert_classes, invert_value, is_set, set_way_back, token_id
from x_transformers.pretrained.mappings import Mappings, WeightMapping, link, links
from x_transformers.pretrained.specs import Const, Fields, ModelSpec, Value, get_spec

# Keywords of a head for tokens, and prefixes of the names of weights after the stack.
OF_TOKENS = (
    'tie_embedding', 'tie_embedding_scale', 'logits_scale', 'logits_softclamp', 'logits_bias', 'head_transform',
)  # fmt: skip
OF_HEADS = (
    'to_logits.', 'decoder.net.to_logits.', 'head_transform.', 'to_classes.', 'pooler.', 'mlp_head.',
    'project_emb_out.', 'to_image.', 'to_text.',
)  # fmt: skip


@dataclass(frozen=True)
class HeadSpec:
    """Specification of one more head for the models of a type.

    Attributes:
        ends: Ends of its class names in transformers; the first is written.
        model: Further keywords of the wrapper, in place of those of a head for tokens.
        around: Keywords of a `Classifier` around it.
        links: The mappings of its weights.
        presence: Fields that are True if the file has a tensor of that name.
        bare: True if files lack the prefix of the base model.
        base: The prefix of the base model, if it differs from that of the spec.
        changes: Function from the spec to its further changes.
    """

    ends: tuple[str, ...]
    model: Mapping[str, Value] = field(default_factory=dict)
    around: Mapping[str, Value] | None = None
    links: Mappings = ()
    presence: Mapping[str, str] = field(default_factory=dict)
    bare: bool = False
    base: str = ''
    changes: Callable[[ModelSpec], dict[str, Any]] = lambda spec: {}

    def of(self, spec: ModelSpec, kind: str, name: str = '') -> ModelSpec:
        """Return the spec of a type with this head, for the class `name`."""
        if not name.endswith(self.ends):
            known = (own for own in spec.architectures[1:] if own.endswith(self.ends))
            name = next(known, get_class_stem(spec) + self.ends[0])
        sides = ('', 'dec_') if spec.stack is None else ('',)
        gone = {side + keyword for side in sides for keyword in OF_TOKENS}
        changed = dict(
            architectures=(name,), head=kind, tied=None, bare=(name,) if self.bare else (), around=self.around,
            model={**{k: v for k, v in spec.model.items() if k not in gone}, **self.model},
            links=(*(one for one in spec.links if not is_head_weight(one.ours[0])), *self.links),
            presence={**spec.presence, **self.presence},
            defaults={**spec.defaults, **dict.fromkeys(self.presence, True)},
        )  # fmt: skip
        return replace_base(replace(spec, **{**changed, **self.changes(spec)}), self.base or spec.base)


def replace_base(spec: ModelSpec, base: str) -> ModelSpec:
    """Return the spec for files with another prefix of the base model."""
    if base == spec.base:
        return spec

    def move(one: WeightMapping) -> WeightMapping:
        return replace(one, theirs=tuple(re.sub(rf'^{re.escape(spec.base)}', base, name) for name in one.theirs))

    return replace(spec, base=base, links=tuple(map(move, spec.links)))


def adapt_base(spec: ModelSpec, read: ModelSpec, name: str) -> ModelSpec:
    """Return the spec `read` for a file of the class `name`, which may have another prefix of the base model."""
    own = next((head.base for head in spec.heads.values() if name.endswith(head.ends)), '') or spec.base
    if own == read.base:
        return read
    return replace(read, renames=(*read.renames, (rf'^{re.escape(own)}', read.base)))


def is_head_weight(name: str) -> bool:
    """Return True for a weight of this library that follows the stack."""
    return name.removeprefix('net.').startswith(OF_HEADS)


# Types without a class of `transformers` for these heads: they can be trained but not saved in its format.
NO_CLASSES = ('granite', 'cohere', 'cohere2', 'cwm', 'ernie4_5', 'vaultgemma')
NO_TOKENS = (*NO_CLASSES, 'gemma3_text', 'olmo', 'olmo2', 'olmo3')
NO_SPANS = (
    *NO_TOKENS, 'gemma', 'gemma2', 'phi3', 'deepseek_v3', 'gpt_oss', 'glm', 'glm4', 'phi', 'stablelm', 'starcoder2',
    'helium',
)  # fmt: skip
NOT_THERE = {'classify': NO_CLASSES, 'tokens': NO_TOKENS, 'span': NO_SPANS}

MAIN = ('ForCausalLM', 'LMHeadModel', 'ForMaskedLM', 'ForConditionalGeneration', 'MTModel')


def get_class_stem(spec: ModelSpec) -> str:
    """Return the beginning of the class names of a type."""
    name = spec.architectures[0]
    return next((name.removesuffix(end) for end in MAIN if name.endswith(end)), name)


def list_heads(spec: ModelSpec) -> dict[str, Callable[[str], ModelSpec]]:
    """Return the heads that models of a type can be loaded with, each a function of the class in the config."""
    found: dict[str, Callable[[str], ModelSpec]] = {}
    if spec.architectures[0].endswith(MAIN):
        found['mlm' if spec.architectures[0].endswith('MaskedLM') else 'lm'] = lambda name: spec
    for kind, part in (('classify', 'Classification'), ('embed', 'Model')):  # Heads of specs with several classes.
        own = [name for name in spec.architectures if part in name and not spec.heads and not name.endswith(MAIN)]
        if own:
            found[kind] = functools.partial(select_class, spec, kind, own)
    found.update({kind: functools.partial(head.of, spec, kind) for kind, head in spec.heads.items()})
    return found


def select_class(spec: ModelSpec, kind: str, own: list[str], name: str) -> ModelSpec:
    """Return the spec for one of its own classes."""
    first = name if name in own else own[0]
    return replace(spec, head=kind, architectures=(first, *(n for n in spec.architectures if n != first)))


def select_head(spec: ModelSpec, config: Mapping[str, Any], head: Any) -> ModelSpec:
    """Return the spec of a type with the head of the class in the config, or with another one."""
    name = (config.get('architectures') or [''])[0]
    kinds = list_heads(spec)
    known = f'a module, or one of {", ".join(kinds)}'
    if head == 'auto':
        fits = [] if name.endswith(MAIN) else [kind for kind, own in spec.heads.items() if name.endswith(own.ends)]
        if not fits and spec.heads and re.search(r'For(?!PreTraining)[A-Z]\w*$', name) and not name.endswith(MAIN):
            raise spec.error('architectures', f'must have a supported head, or `head` must be {known}', name)
        return kinds[fits[0]](name) if fits else spec
    if not isinstance(head, str) or head not in kinds:
        raise ConfigError(f"`head` of a {spec.type} must be 'auto', {known}, got {format_value(head)}")
    return adapt_base(spec, kinds[head](name), name)


def find_spec(config: Mapping[str, Any], head: Any = 'auto') -> ModelSpec:
    return select_head(get_spec(config), config, head)


def resolve_head(config: Mapping[str, Any], head: Any, num_classes: int | None) -> tuple[ModelSpec, dict[str, Any]]:
    """Return the spec for a head given by name or as a module, and the config that describes it."""
    kind = 'embed' if isinstance(head, nn.Module) else head
    (size | none).require('num_classes', num_classes)
    spec = find_spec(config, kind)
    if spec.head == 'span' and num_classes not in (None, 2):
        raise ConfigError(f"`num_classes` must be 2 for a span head, got {num_classes}: use `head='classify'`")
    if num_classes is not None and spec.around is None and kind != 'classify':
        if kind != 'auto' or 'classify' not in list_heads(get_spec(config)):
            raise ConfigError(f'`num_classes` must be None for this {spec.type} without classes, got {num_classes}')
        spec = find_spec(config, 'classify')
    if isinstance(head, nn.Module):
        if spec.wrapper != 'TransformerWrapper':
            raise ConfigError(f'`head` of a {spec.type} ({spec.wrapper}) cannot be a module, got {type(head).__name__}')
        model = {name: value for name, value in spec.model.items() if name not in ('return_only_embed', 'pooler')}
        spec = replace(spec, model={**model, 'to_logits': Const(head)}, presence={})
    return spec, add_labels(config, num_classes, spec, head == 'auto')


def add_labels(config: Mapping[str, Any], num_classes: int | None, spec: ModelSpec, as_saved: bool) -> dict[str, Any]:
    """Return the config of a spec with its head and number of classes. `as_saved`: with the heads of the file."""
    found, name = dict(config), (config.get('architectures') or [''])[0]
    if spec.head == 'span' and name != spec.architectures[0]:
        num_classes = 2
    own = (*MAIN, 'ForPreTraining') if as_saved else MAIN
    if spec.head or (spec.heads and not name.endswith(own)):
        found['architectures'] = list(spec.architectures[:1])
    if num_classes is not None:
        found.update(invert_classes(num_classes, {}))
        found.pop('num_labels', None)
    return found


# Weights that a file lacks.


def find_new_steps(
    spec: ModelSpec, steps: list[ConversionStep], names: Mapping[str, str], num_classes: int | None
) -> list[ConversionStep]:
    """Return the steps of a head that the file lacks, or of classes that are to be learned anew."""

    def is_new(step: ConversionStep) -> bool:
        own = step.ours[0].removeprefix('net.')
        again = num_classes is not None and own.startswith(('to_classes.', 'mlp_head.'))
        return is_head_weight(own) and (again or any(name not in names for name in step.theirs))

    return [step for step in steps if is_new(step)]


def find_other_heads(spec: ModelSpec, names: Mapping[str, str], needed: Collection[str]) -> list[str]:
    """Return names in a file that do not belong to the model without a head."""
    return [name for name in names if spec.base and name not in needed and not name.startswith(spec.base)]


def initialize_weights(names: list[str], like: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return initial values: normal with `initializer_range`, zeros for biases, ones for norm weights."""
    std = config.get('initializer_range', config.get('init_std', 0.02))
    found = {}
    for name in names:
        shape = like[name].shape
        values = torch.zeros(shape) if name.endswith(('bias', 'beta')) else torch.ones(shape)
        found[name] = values if len(shape) < 2 else torch.randn(shape) * std
    return found


# tables


# The kind of labels, which decides the loss.
problem_type = set_way_back('problem_type', if_set=True)(lambda c: c.values.get('problem_type'))


def classifier(kind: str, act: str | Value = None, **more: Value) -> dict[str, Value]:
    """Return keywords of a `Classifier`: the token that it reads, and the activation of its dense layer, if any."""
    act = Const(act) if isinstance(act, str) else act
    labels = {} if kind in ('all', 'span') else {'problem_type': problem_type}

    @set_way_back(lambda v, k: invert_value(act, v['activation'], k))
    def transform(c: Fields) -> dict[str, Any]:
        return {'activation': c.value(act), 'norm': None}

    more = {'head_transform': None if act is None else transform, **labels, **more}
    return {'num_classes': 2 if kind == 'span' else classes, 'token': Const(kind), **more}


def first_set(*names: str, default: float = 0.0) -> Value:
    """Return a function to the first of some fields that is set."""
    return lambda c: next((c.values[name] for name in names if c.values.get(name) is not None), default)


def map_classes(dense: str, classes: str) -> Mappings:
    return links(link(f'{dense}.*', 'head_transform.dense.*'), link(f'{classes}.*', 'to_classes.*'))


NOTHING = dict(return_only_embed=True)


def embedding_head(pooler: str = '') -> HeadSpec:
    """Return the spec without a head; with a pooler on the first token if its name is given and the file has it."""
    if not pooler:
        return HeadSpec(('Model',), NOTHING, bare=True)
    options = {'token': 'first', 'activation': 'tanh'}

    @set_way_back('has_pooler', inverse=is_set)
    def layer(c: Fields) -> dict[str, Any] | None:
        return {**options, 'dim': c.hidden_size} if c.has_pooler else None

    own, presence = link(f'{pooler}.*', 'pooler.*'), dict(has_pooler=f'{pooler}.weight')
    return HeadSpec(('Model',), dict(NOTHING, pooler=layer), links=own, presence=presence, bare=True)


def sequence_head(around: Mapping[str, Value], own: Mappings, model: Mapping[str, Value] = NOTHING) -> HeadSpec:
    return HeadSpec(('ForSequenceClassification',), model, around=around, links=own)


def token_head(weights: str = 'classifier', dropout: Value = None) -> HeadSpec:
    around = classifier('all', dropout=dropout)
    return HeadSpec(('ForTokenClassification',), NOTHING, around=around, links=link(f'{weights}.*', 'to_classes.*'))


def span_head(base: str = '', dropout: Value = None) -> HeadSpec:
    """Return the head that marks where an answer starts and ends."""
    around, own = classifier('span', dropout=dropout), link('qa_outputs.*', 'to_classes.*')
    return HeadSpec(('ForQuestionAnswering',), NOTHING, around=around, links=own, base=base)


# Decoders predict classes at the last token.
SCORE = HeadSpec(
    ('ForSequenceClassification',), NOTHING,
    around=classifier('last', pad_id=token_id('pad_token_id'), bias=False),
    links=link('score.weight', 'to_classes.weight'),
)  # fmt: skip
OF_SCORES = first_set('classifier_dropout', 'hidden_dropout', default=0.1)
OF_DECODERS = {
    'classify': SCORE, 'tokens': token_head('score', OF_SCORES), 'span': span_head('transformer.'),
    'embed': embedding_head(),
}  # fmt: skip
# Names that differ between types: the base model of files with spans, and the classes of tokens.
SPANS_OF_BASE = {'span': span_head()}
TOKEN_CLASSES = {'tokens': token_head('classifier', OF_SCORES)}


def encoder_heads(classify: HeadSpec, pooler: str = '', dropout: Value = None, **more: HeadSpec) -> dict[str, HeadSpec]:
    """Return the heads of an encoder type. `dropout` precedes the classes of tokens."""
    heads = {'classify': classify, 'tokens': token_head(dropout=dropout), 'span': span_head()}
    return {**heads, 'embed': embedding_head(pooler), **more}
