"""Mixin of features with a sparse pattern."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from x_transformers.flags import ConfigError
from x_transformers.flags.checks import Check, is_int
from x_transformers.flags.maybe import Maybe
from x_transformers.kernels.patterns.placement import Placement
from x_transformers.patterns import Pattern, as_pattern, check_known, is_pattern

OUTSIDE = {
    'outside_pattern': 'tokens outside of the pattern, their number at the start or their indices (p): all tokens '
    'attend to them, and they attend to all'
}
OUTSIDE_MUST_BE = {
    'outside_pattern': Check(
        'a number of tokens, or a tensor of indices (p)',
        lambda value: (is_int(value) and value >= 0) or (torch.is_tensor(value) and value.ndim == 1),
    )
}
a_pattern = Check("a pattern, its dict, or a name such as 'sliding'", is_pattern, 'str | Mapping[str, Any] | Pattern')


class HoldsPattern:
    """Mixin of attention features in which all or some heads attend according to a pattern.

    pattern         a subclass calls `hold` where it is set up
    random_blocks   what is drawn for the pattern, if anything is, a buffer: `stored_as` must name it
    """

    host: Any
    random_blocks: Tensor
    pattern: Maybe[Pattern] = None
    is_drawn = False

    def hold(self, given: Any, name: str, heads: int) -> None:
        """Of the flag `name`, for so many heads."""
        self.pattern = as_pattern(given, name)
        check_known(self.pattern, name)
        self.name = given if isinstance(given, str) else repr(self.pattern)
        if self.host.causal and self.pattern.looks_ahead:
            raise ConfigError(f'`{name}` got {self.name}, not for a causal stack: {self.pattern.looks_ahead}')
        self.heads_of_pattern = heads
        self.pattern.for_heads(heads)
        table = self.pattern.drawn(heads, 0)
        self.is_drawn = table is not None
        if table is not None:
            self.random_blocks = table

    @property
    def counts_tokens(self) -> bool:
        return self.pattern is not None and self.pattern.depends_on_length

    @property
    def not_by_differences(self) -> str:
        """Why its documents cannot be told apart, if they cannot."""
        return '' if self.pattern.of_differences else 'its blocks are counted from where a row begins'

    def draw(self, layer: int) -> None:
        """Blocks at random are those of the layer."""
        if self.is_drawn:
            drawn: Any = self.pattern.drawn(self.heads_of_pattern, layer)
            self.random_blocks.copy_(drawn)

    def of_heads(self, heads: int, call: Any) -> tuple[Pattern, ...]:
        """The patterns of all heads in a call, of the length of each row where that counts."""
        own = self.pattern.of_layer(getattr(self.host, 'layer_number', 0))
        if own.depends_on_length:
            place = Placement.of(call, own)
            n = call.keys - place.count
            own = own.of_length(n) if place.lengths is None else own.of_lengths(place.lengths, n)
        own = own.stored(self.random_blocks) if self.is_drawn else own
        return own.for_heads(heads)

    def wrong_call(self, call: Any) -> str | None:
        """Why a call has too many or too few tokens, or tokens outside of the pattern that it cannot have."""
        size, outside = self.pattern.size, call.inputs.get('outside_pattern')
        if call.memories and torch.is_tensor(outside):
            return '`mems` and tokens outside of the pattern between the others'
        count = 0 if outside is None else len(outside) if torch.is_tensor(outside) else outside
        n = call.keys - (0 if self.pattern.of_differences else count)
        if size is not None and (n > size or (n < size and not call.causal)):
            return f'{n} tokens: its pattern is of {size}'
        return None
