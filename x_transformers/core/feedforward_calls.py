"""`FeedForwardCall`, the state of one call of a feedforward with active features: its mask and place in the stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from x_transformers.core.aux_losses import AddsLosses
from x_transformers.core.buffers import CachedState
from x_transformers.core.checks import boolean_mask, check_device, check_tensor
from x_transformers.core.stack_calls import StackCall
from x_transformers.core.state import HasStates
from x_transformers.flags import Remembered


@dataclass
class FeedForwardCall(AddsLosses, HasStates):
    """One pass through a feedforward: its input (... d), inputs of its features, and what the stack says of it: `stack`
    is its call, which keeps the states, and the step of this layer."""

    old_names: ClassVar[dict[str, str]] = {
        'own': 'ctx',
        'real': 'zero_padding',
    }

    x: Tensor
    inputs: dict[str, Any]
    mask: Tensor | None = None
    layer: int | None = None
    kind: str | None = None
    stack: tuple[StackCall, int] | None = None
    declared: Mapping[str, Remembered] = field(default_factory=dict)
    alone: dict[str, CachedState] = field(default_factory=dict)
    slices: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def in_slices(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of tokens (... n d), or one that runs it on some of the tokens at a time."""
        return function if self.slices is None else self.slices(function)

    @property
    def scope(self) -> str:
        return '' if self.stack is None else f'{self.stack[1]}.{self.kind}.'

    @property
    def old_states(self) -> Mapping[str, CachedState] | None:
        return None if self.stack is None else self.stack[0].old_states

    @property
    def new_states(self) -> dict[str, CachedState]:
        return self.alone if self.stack is None else self.stack[0].new_states

    @property
    def continues(self) -> bool:
        return self.stack is not None and self.stack[0].continues

    @property
    def batch(self) -> int:
        return self.x.shape[0]

    @property
    def count(self) -> int:
        return self.x.shape[-2]

    @classmethod
    def of(cls, x: Tensor, inputs: dict[str, Any], training: bool) -> FeedForwardCall:
        """A call with these inputs, those of the stack among them."""
        own = {name: inputs.pop(name) for name in ('mask', 'layer', 'kind', 'stack') if name in inputs}
        mask = own.get('mask')
        if mask is not None:
            own['mask'] = boolean_mask(check_tensor(mask, 'mask'), 'mask')
            check_device(mask, 'mask', x)
            if not mask.ndim or mask.shape != x.shape[:-1][-mask.ndim :]:
                wanted = tuple(x.shape[:-1])
                raise ValueError(f'`mask` must have shape {wanted}, True for real tokens, got {tuple(mask.shape)}')
        return cls(x, inputs, training=training, **own)

    def zero_padding(self, t: Tensor) -> Tensor:
        """Numbers of the tokens (... d) with zeros for what is padding."""
        return t if self.mask is None else t.masked_fill(~self.mask.unsqueeze(-1), 0.0)
