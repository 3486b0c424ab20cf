"""Modules of users in places where the library has its own: what is asked of them, and what is left to them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

OWN = __name__.partition('.')[0]
KNOWN = (OWN, 'torch')
# what brings the input of a wrapper to its stack, under the names of all wrappers
EMBEDS = ('token_emb', 'embeds', 'project_in', 'pos_emb', 'post_emb_norm', 'emb_dropout', 'project_emb')


def is_of_others(module: Any) -> bool:
    """Return True if a module, or one inside of it, runs code that is neither of this library nor of torch."""
    if not isinstance(module, nn.Module):
        return False
    package = type(module).__module__.partition('.')[0]
    if package not in KNOWN or 'forward' in module.__dict__:
        return True
    return package != OWN and any(map(is_of_others, module._modules.values()))  # a class of ours knows what it calls


def embeds_together(model: nn.Module) -> bool:
    """Return True if what a token becomes may follow from those around it, since modules of others embed it.

    They are given all tokens that the caller gave, cached ones too, of which the last are kept: they need not know of
    a cache.
    """
    own = model._modules
    return any(is_of_others(own[name]) for name in EMBEDS if own.get(name) is not None)


# keywords by which branches of the library are told what those of others cannot know
OURS = frozenset({'clean', 'index', 'at', 'keep_maps', 'kept_angles', 'shift_mask', 'shift_within', 'recall', 'layer',
                  'kind', 'stack'})  # fmt: skip


def for_branch(branch: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords for a branch: for a user's, without those of the library that it does not take."""
    if not is_of_others(branch):
        return inputs
    known = keywords_of_module(branch)
    if known is None:
        return inputs
    return {name: value for name, value in inputs.items() if name in known or name not in OURS}


def keywords_of_module(module: nn.Module) -> frozenset[str] | None:
    """Return the names that the `forward` of a module takes by keyword, its own or that of its class; None for any."""
    own = module.__dict__.get('forward')
    return keywords_of(type(module).forward if own is None else own)


def keywords_of(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names that a function takes by keyword; None for any."""
    # The compiler of torch warns of `functools.cache`, and traces into what it wraps.
    if function in KEYWORDS:
        return KEYWORDS[function]
    found = read_keywords(function)
    with contextlib.suppress(TypeError):  # of what takes no weak reference, such as a builtin
        KEYWORDS[function] = found
    return found


KEYWORDS: WeakKeyDictionary[Callable[..., Any], frozenset[str] | None] = WeakKeyDictionary()


def read_keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return what `keywords_of` keeps, from the signature."""
    known = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in known):
        return None
    return frozenset(p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def taken_by(module: nn.Module, inputs: dict[str, Any], idle: Iterable[Any] = (None,)) -> dict[str, Any]:
    """Return the keywords for a module of a user's: without those that say nothing, if its `forward` lacks them."""
    known = keywords_of_module(module)
    if known is None:
        return inputs
    idle = tuple(idle)
    return {name: value for name, value in inputs.items() if name in known or not any(value is one for one in idle)}
