"""Kinds of branch of a stack, the sizes of an attention layer, and checks of a layer against its stack.

`KINDS` has a `Kind` for each letter or word of `custom_layers`:

    KINDS['conv'] = Kind(lambda stack, index: Convolution(stack.dim), inputs=lambda call: {'mask': call.token_mask})
    Decoder(dim=64, custom_layers=('a', 'conv', 'f'))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from x_transformers.flags import Check, ConfigError, Features, Remembered, did_you_mean, warn_once
from x_transformers.flags.declared import check_states


@dataclass(frozen=True)
class Kind:
    """Kind of branch: a module that is called with x (b, n, dim) and returns a tensor of the same shape.

    build       (stack, index of the layer) -> Module
    inputs      (StackCall) -> keywords of its call. Other tokens must not depend on padding, where `call.token_mask`
                (b, n) is False; None means no padding
    remembers   name -> PerToken(), RecurrentState(), Ring(w): its states of earlier tokens, which `inputs` passes to it
                as `call.state(name, call.step)`; or a function of the stack that returns them. {} if it treats each
                token separately. None if it mixes tokens without a state: then the stack cannot be cached
    attends     it is an attention of the library: it stores keys and values, and returns `Intermediates`
    cuts_documents   `inputs` passes it `document_ids`, and it does not mix tokens of different documents
    """

    build: Callable[[Any, int], Any]
    inputs: Callable[[Any], Mapping[str, Any]] | None = None
    remembers: Mapping[str, Remembered] | Callable[[Any], Mapping[str, Remembered]] | None = None
    attends: bool = False
    cuts_documents: bool = False

    def __post_init__(self) -> None:
        for name, value in (('build', self.build), ('inputs', self.inputs)):
            if not callable(value) and (name == 'build' or value is not None):
                raise ConfigError(f'`{name}` of a Kind must be a function, got {value!r}')
        if self.remembers is not None and not callable(self.remembers):
            check_states('a Kind', self.remembers, 'remembers')

    @property
    def joins_tokens(self) -> str:
        """Return the reason why it mixes tokens other than by attention, or ''."""
        return '' if self.attends or self.remembers == {} else 'such a layer reads other tokens'

    @property
    def recalls(self) -> bool:
        """Return True if its states replace earlier tokens, so that it can be cached."""
        return self.attends or self.remembers is not None


# The kinds of the library are added in the modules that define their layers.
KINDS: dict[str, Kind] = {}

a_kind = Check('a kind of layer', lambda kind: isinstance(kind, str) and kind != '')


def is_attention(kind: str) -> bool:
    return KINDS[kind].attends


def collect_states(features: Features, kinds: Iterable[str], stack: Any = None) -> dict[str, Remembered]:
    """Collect the states of features and of kinds of layers.  Raises ConfigError for a name used twice."""
    owners = dict.fromkeys(features.states, 'a feature of the stack')
    declared = dict(features.states)
    for kind in dict.fromkeys(kinds):
        own = KINDS[kind].remembers
        for name, state in ((own(stack) if callable(own) else own) or {}).items():
            if name in owners:
                raise ConfigError(f'{owners[name]} and layers of kind {kind!r} must not both have a state `{name}`')
            owners[name], declared[name] = f'layers of kind {kind!r}', state
    return declared


def check_kinds(kinds: list[str]) -> None:
    """Raise ConfigError for kinds that are not in `KINDS`."""
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(
                f"`custom_layers` must have layers of kind 'a', 'c', 'f', or of one added to `KINDS`, "
                f'got {kind!r}{did_you_mean(kind, KINDS)}'
            )


def check_memories_allowed(name: str, kinds: Iterable[str]) -> None:
    """Raise ValueError for hidden states of earlier segments, if layers mix tokens other than by attention."""
    for kind in kinds:
        if KINDS[kind].joins_tokens:
            raise ValueError(
                f'`{name}` cannot be combined with layers of kind {kind!r}: they do not read memories. Their '
                'state is in the `cache` of the segment before: pass that on, detached'
            )


# Sizes.


@dataclass(frozen=True)
class Shape:
    """Sizes of an attention layer."""

    heads: int
    kv_heads: int
    dim_head: int
    dim_value: int
    dim_out: int

    @property
    def dim_inner(self) -> int:
        return self.heads * self.dim_value


@dataclass
class Widths:
    """Sizes of the projections to queries and keys: widths of the inputs, numbers of heads, and channels of a key head,
    of which `elsewhere` come from another projection."""

    q: int
    kv: int
    query_heads: int
    key_heads: int
    dim_key: int
    elsewhere: int = 0


# Checks of an attention layer against its stack, by the names that the user wrote.


def check_branch(stack: Any, attn: Any, kind: str) -> None:
    """Raise ConfigError for a layer of self-attention, kind 'a', or cross-attention, 'c', that its stack excludes."""
    if kind == 'c':
        _check_across(attn)
    _check_around(stack, attn, kind)
    _check_order(stack, attn, kind)
    of_heads = next((f for f in stack.features.active if f.per_head), None)
    if of_heads is not None and attn.query_heads > attn.heads:
        name = next(iter(of_heads.flags))
        raise ConfigError(f'`{name}` cannot be combined with {attn.query_heads} query heads of {attn.heads} heads')


def _check_across(attn: Any) -> None:
    """Raise ConfigError for features without a meaning in cross-attention."""
    for feature in attn.features.active:
        if not (reason := feature.reason('cross-attention')):
            continue
        switches = feature.switches or tuple(feature.flags)[:1]
        name = next((n for n in switches if getattr(feature, n)), switches[0])
        raise ConfigError(
            f'`attn_{name}` cannot be combined with `cross_attend`: {reason}. '
            f'Set `cross_attn_{name}={feature.flags[name].default!r}`'
        )


def _check_order(stack: Any, attn: Any, kind: str) -> None:
    """Raise ConfigError for non-causal features in a causal stack; warn for those of cross-attention only."""
    for feature in () if stack.sees_future else attn.features.active:
        if not (reason := feature.reason('causal')):
            continue
        own = [name for name, declared in feature.flags.items() if getattr(feature, name) != declared.default]
        found = feature.refuses['causal']
        by = own[-1] if isinstance(found, str) else found[1]
        name, title = stack.written(kind, by), stack.written(kind, feature.display_name)
        given = f'`{name}`' if by in own else f'`{title}` with `{name}={getattr(feature, by)!r}`'
        words = f'{given} cannot be combined with a causal stack: {reason}'
        if not name.startswith('cross_attn_'):
            raise ConfigError(f'{words}. In cross-attention alone it is written `cross_{name}`')
        warn_once(f'{words}. Tokens depend on later ones')


def _check_around(stack: Any, attn: Any, kind: str) -> None:
    """Raise ConfigError for features that exclude flags of the stack, or its masks."""
    features = set(stack.features.list_switched()) if any(f.refuses for f in attn.features.active) else ()
    for feature in attn.features.active:
        for name, reason in feature.refuses.items():
            if name in features and (kind == 'a' or name.startswith('cross_')):
                raise ConfigError(
                    f'`{stack.written(kind, feature.display_name)}` cannot be combined with `{name}`: {reason}'
                )
    for feature in attn.features.by_stage.get('attend', ()) if kind == 'a' and stack.masks_pairs else ():
        if 'masks' not in feature.handles:
            raise ConfigError(
                f'`{stack.written(kind, feature.display_name)}` needs a stack that is causal or bidirectional: '
                f'it cannot mask keys for some queries only'
            )
