"""Feedforwards that process the tokens in chunks, to save memory."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from x_transformers.core.modes import transformed
from x_transformers.core.recompute import ModuleSnapshot, recompute
from x_transformers.features.levels import FeedForwardFeature
from x_transformers.flags import ConfigError, flag, size

# from tokens (... n d) to a tensor that counts them, or several
OfTokens = Callable[[Tensor], Any]


class ChunkedFeedForward(FeedForwardFeature):
    """Run the feedforward on one chunk of the tokens after the other, with the same result.

        out = cat(ff(slice) for slice in chunks(x))

    Only the inner activations of n / c tokens are in memory at a time. In training, the backward pass still needs those
    of all chunks, unless `chunk_checkpoint` recomputes them chunk by chunk.
    """

    paper = 'Reformer, arXiv:2001.04451'
    chunks = flag(
        1,
        'number of chunks c of the tokens, processed one after the other to save memory in evaluation',
        size,
        example=3,
    )
    chunk_checkpoint = flag(False, 'recompute each chunk in the backward pass, to save memory in training')
    uncut = 'each slice would wait for the other devices'

    def initialise(self) -> None:
        """Refuse what would not be the same slice by slice."""
        at = self.host.features.at
        built = [f for stage in ('activation', 'widen', 'layers') for f in at.get(stage, ())]
        for feature in built:
            if why := feature.reason('documents'):
                raise ConfigError(f'`chunks` does not go with `{feature.title}`: {why}')
        for feature in at.get('run', ()):
            if not feature.in_slices:
                raise ConfigError(f'`chunks` does not go with `{feature.title}`: it does not say `in_slices`')

    def enter(self, x: Tensor, call: Any) -> Tensor:
        call.slices = functools.partial(self.sliced, call=call)
        return x

    def sliced(self, function: OfTokens, call: Any) -> OfTokens:
        def in_slices(x: Tensor) -> Any:
            count = 1 if x.ndim < 2 else self.chunks
            if count == 1:
                return function(x)
            recomputes = self.chunk_checkpoint and call.training and torch.is_grad_enabled() and not transformed()
            run = recomputed(function) if recomputes else function
            parts = [run(part) for part in slices(x, count)]
            return parts[0] if len(parts) == 1 else tree_map(lambda *ts: torch.cat(ts, dim=-2), *parts)

        return in_slices


def slices(x: Tensor, count: int) -> tuple[Tensor, ...]:
    """Up to `count` parts of the tokens of x (... n d), equally long but for the last ones."""
    n = x.shape[-2]
    if not torch.compiler.is_compiling():
        return x.chunk(count, dim=-2)
    # a graph for all lengths has as many slices for each
    stops = [step * n // count for step in range(count + 1)]
    return x.split([stop - start for start, stop in itertools.pairwise(stops)], dim=-2)


def recomputed(function: OfTokens) -> OfTokens:
    """The same, of which nothing is saved but its input."""
    kept = None
    if isinstance(function, nn.Module) and not torch.compiler.is_compiling():
        kept = ModuleSnapshot(function)
    return lambda x: recompute(lambda now, x: now(function)(x), x, kept=kept)
