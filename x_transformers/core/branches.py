"""Whether an attention layer goes with the stack that it is built for: refusals by the names that the user wrote."""

from __future__ import annotations

from typing import Any

from x_transformers.flags import ConfigError, warn_once


def check_branch(stack: Any, attn: Any, kind: str) -> None:
    """Refuse what a layer of self-attention, kind 'a', or cross-attention, 'c', cannot do in its stack.

    raises   ConfigError
    """
    if kind == 'c':
        check_across(attn)
    check_around(stack, attn, kind)
    check_order(stack, attn, kind)
    of_heads = next((f for f in stack.features.active if f.per_head), None)
    if of_heads is not None and attn.query_heads > attn.heads:
        name = next(iter(of_heads.flags))
        raise ConfigError(f'`{name}` does not go with {attn.query_heads} query heads of {attn.heads} heads')


def check_across(attn: Any) -> None:
    """Refuse what has no meaning in cross-attention."""
    for feature in attn.features.active:
        if not feature.not_across:
            continue
        switches = feature.switches or tuple(feature.flags)[:1]
        name = next((n for n in switches if getattr(feature, n)), switches[0])
        raise ConfigError(
            f'`attn_{name}` does not go with `cross_attend`: {feature.not_across}. '
            f'Set `cross_attn_{name}={feature.flags[name].default!r}`'
        )


def check_order(stack: Any, attn: Any, kind: str) -> None:
    """Refuse what looks ahead where the stack must not; warn, if it was asked for in cross-attention alone."""
    for feature in () if stack.sees_future else attn.features.active:
        if not feature.looks_ahead:
            continue
        own = [name for name, declared in feature.flags.items() if getattr(feature, name) != declared.default]
        by = feature.looks_ahead_by or own[-1]
        name, title = stack.written(kind, by), stack.written(kind, feature.title)
        given = f'`{name}`' if by in own else f'`{title}` with `{name}={getattr(feature, by)!r}`'
        words = f'{given} does not go with a causal stack: {feature.looks_ahead}'
        if not name.startswith('cross_attn_'):
            raise ConfigError(f'{words}. In cross-attention alone it is written `cross_{name}`')
        warn_once(f'{words}. Tokens depend on later ones')


def check_around(stack: Any, attn: Any, kind: str) -> None:
    """Refuse what does not go with flags of the stack, or with its masks."""
    on = set(stack.features.switched()) if any(f.not_in_stack for f in attn.features.active) else ()
    for feature in attn.features.active:
        for name, reason in feature.not_in_stack.items():
            if name in on and (kind == 'a' or name.startswith('cross_')):
                raise ConfigError(f'`{stack.written(kind, feature.title)}` does not go with `{name}`: {reason}')
    for feature in attn.features.at.get('attend', ()) if kind == 'a' and stack.masks_pairs else ():
        if 'masks' not in feature.handles:
            raise ConfigError(
                f'`{stack.written(kind, feature.title)}` needs a stack that is causal, or sees all: '
                f'it hides no keys from some queries only'
            )
