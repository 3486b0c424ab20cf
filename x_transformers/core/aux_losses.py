"""Losses that features add to the training loss, by `call.add_loss(name, value)`.

What trains a model gathers them around its calls of the model, and adds their sum once:

    with AuxLosses() as aux:
        logits = net(ids)
    loss = aux.added_to(cross_entropy(logits, targets))

Every wrapper with a loss does so. A loss is gathered by the innermost `AuxLosses` of its thread, so that a wrapper
inside another one adds its own. What runs again in the backward pass, or without an `AuxLosses` around, adds nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from x_transformers.core.modes import to_float
from x_transformers.core.notes import HasContexts

__all__ = ['AuxLosses', 'NamedLosses']


class OpenLosses(threading.local):
    """Who gathers losses in this thread. The list stays and its entries change: early compilers follow that."""

    def __init__(self) -> None:
        self.open: list[AuxLosses] = []
        self.named: list[NamedLosses] = []


gathering = OpenLosses()


@dataclass(eq=False)
class ByName:
    """Losses by name, those of one name summed up."""

    by_name: dict[str, Tensor] = field(default_factory=dict, init=False)

    def add(self, name: str, value: Tensor) -> None:
        value = to_float(value)
        self.by_name[name] = self.by_name[name] + value if name in self.by_name else value


@dataclass(eq=False)
class AuxLosses(ByName):
    """The losses that features add in a `with` block, by name:  `by_name`, each a scalar.

    `joins`: those who gather around the block get them too. `again`: also those of what runs again in a backward pass.
    """

    joins: bool = False
    again: bool = False
    around: list[AuxLosses] = field(default_factory=list, init=False, repr=False)

    def __enter__(self) -> AuxLosses:
        self.around = gathering.open.copy()
        gathering.open[:] = [*self.around, self] if self.joins else [self]
        return self

    def __exit__(self, *error: Any) -> None:
        gathering.open[:] = self.around

    def take(self, other: AuxLosses, share: Any = 1.0) -> None:
        """Add the losses of a part, weighted by its share of the whole."""
        for name, value in other.by_name.items():
            self.add(name, value * share)

    def hand_on(self) -> None:
        """Give the losses to those who gather now."""
        for around in gathering.open:
            around.take(self)

    def added_to(self, loss: Tensor, share: Any = 1) -> Tensor:
        """A loss with `share` times the sum of all, in float32 at least."""
        loss = to_float(loss)
        for name, value in self.by_name.items():
            added = value.to(loss.device) * share
            loss = loss + added
            for named in gathering.named:
                named.add(name, added.detach())
        return loss


class NamedLosses(ByName):
    """The losses of features as wrappers add them to theirs in a `with` block, by name:  `by_name`, scalars to look at.

        with NamedLosses() as losses:
            loss = model(ids)
        print(loss, losses.by_name)

    Their sum is what they make of the loss of any wrapper, whatever it returns; of one inside another, too.
    """

    def __enter__(self) -> NamedLosses:
        gathering.named.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        gathering.named.remove(self)


class IgnoredLosses(AuxLosses):
    """Around what is computed a second time, to be looked at: its losses were counted."""

    def __enter__(self) -> AuxLosses:
        self.around = gathering.open.copy()
        gathering.open.clear()
        return self


def is_in_backward() -> bool:
    """Return True if this is run again by a backward pass, as checkpoints are: its losses were counted."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


@dataclass(kw_only=True)
class AddsLosses(HasContexts):
    """Mixin of the calls of every level, to which features add losses.

    `training` is that of the module that was called; `in_part` says that the call is one of several parts.
    """

    training: bool = False
    in_part: bool = False

    def add_loss(self, name: str, value: Tensor) -> None:
        """Add a scalar, already weighted, to the loss of the wrapper around the model; in training only.

        Losses of one name are summed, over layers and passes. They are named in `aux_losses` of the intermediates.

        raises   TypeError or ValueError for a name that is no text, or a value that is no scalar
        """
        if not isinstance(name, str):
            raise TypeError(f'`name`, the name of the loss, must be a text, got {name!r}')
        if not torch.is_tensor(value) or not value.is_floating_point():
            got = value.dtype if torch.is_tensor(value) else repr(value)
            raise TypeError(f'the loss `{name}` must be a floating point tensor, got {got}')
        if value.ndim:
            raise ValueError(f'the loss `{name}` must be a scalar, got a tensor of shape {tuple(value.shape)}')
        if self.in_part:
            raise ValueError(
                f'the loss `{name}` was added from a part of the rows: a feature with a loss at this stage '
                'must be neither `row_wise` nor `by_token`'
            )
        for around in gathering.open if self.training else ():
            if around.again or not is_in_backward():
                around.add(name, value)
