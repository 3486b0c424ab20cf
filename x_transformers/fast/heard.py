"""Forward hooks of a net that is read by a short cut: they hear what a call of it would give.

A hook gets the ids and (logits, intermediates). Most look at the clock, or at the logits; intermediates are what the
ordinary way leaves behind, and it is gone only if somebody reads them, or keeps them for later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.cache import Cache, LayerIntermediates

LEFT = frozenset(one.name for one in fields(LayerIntermediates))


class Late(LayerIntermediates):
    """Intermediates that are computed when one of them is read."""

    def __init__(self, read: Callable[[], LayerIntermediates], cache: Cache) -> None:
        vars(self).update(read=read, known=cache)

    def __getattribute__(self, name: str) -> Any:
        if name in LEFT:
            self.settle()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.settle()
        super().__setattr__(name, value)

    def settle(self) -> None:
        """Compute what is left behind, once: an object like any other comes of it."""
        own = vars(self)
        if 'read' in own:
            read = own.pop('read')
            own.pop('known')
            own.update(vars(read()))

    @property
    def cache(self) -> Cache:
        return vars(self)['known'] if 'read' in vars(self) else super().cache

    def __reduce__(self) -> Any:
        self.settle()
        return object.__reduce_ex__(self, 2)

    def __copy__(self) -> LayerIntermediates:
        self.settle()
        return super().__copy__()


def hears_only(net: nn.Module) -> bool:
    """Whether the hooks of a net itself are such that hear what it gives, and no others."""
    return not (
        net._forward_pre_hooks
        or net._backward_hooks
        or net._backward_pre_hooks
        or net._forward_hooks_with_kwargs
        or net._forward_hooks_always_called
    )


def tell(
    net: nn.Module, ids: Tensor, logits: Any, cache: Cache, read: Callable[[], LayerIntermediates]
) -> tuple[Any, Cache]:
    """Call the forward hooks of a net with what a step has given; what they give in its place counts."""
    with torch.inference_mode(False):
        left = Late(read, cache)
        out: Any = (logits, left)
        for hook in tuple(net._forward_hooks.values()):
            given = hook(net, (ids,), out)
            out = out if given is None else given
        logits, intermediates = out
        cache = intermediates.cache
        del out, intermediates
        if sys.getrefcount(left) > 2:  # kept by a hook: later the net may be another
            left.settle()
    return logits, cache
