"""Activation checkpointing: recompute layers in the backward pass instead of storing their activations.

A segment of layers runs on a copy of the call, which is then merged: its results are those of the first run, with their
gradient. The second run gets another copy of the call as it was before the segment, which is discarded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.modes import transformed
from x_transformers.core.recompute import ModuleSnapshot, recompute
from x_transformers.features.layouts import ParallelBlock
from x_transformers.features.levels import StackFeature
from x_transformers.flags import Features, boolean, count, flag

Run = Callable[[Tensor, Any, Sequence[int]], Tensor]


class CheckpointLayers(StackFeature):
    """Activation checkpointing: store only the input of every k-th layer, and recompute the rest in the backward pass.

    In training, n layers store n / k inputs, plus the activations of one segment of k layers. Outputs and gradients do
    not change, since dropout uses the same random numbers again.
    """

    paper = 'Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174'
    checkpoint_layers = flag(
        False,
        'recompute layers in the backward pass: True for each layer separately, k for segments of k layers',
        boolean | count,
        example=True,
    )
    only_trains = True
    cuts = {}

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[CheckpointLayers]:
        return CheckpointRuns if values.get('act_halting') else cls

    def through(self, run: Run, x: Tensor, call: Any) -> Tensor:
        return self.segments(run, x, call, range(len(call.order)))

    def segments(self, run: Run, x: Tensor, call: Any, steps: Sequence[int]) -> Tensor:
        """Run some steps, of which only the inputs of segments are kept."""
        if not (self.host.training and torch.is_grad_enabled()) or transformed():
            return run(x, call, steps)
        length = int(self.checkpoint_layers)  # True is one
        for start in range(0, len(steps), length):
            x = self.recompute(run, x, call, steps[start : start + length])
        return x

    def recompute(self, run: Run, x: Tensor, call: Any, steps: Sequence[int]) -> Tensor:
        """Run some layers, now and in the backward pass, from the same call."""
        before, stack = call.fork(), self.host

        def segment(now: Callable[[Any], Any], x: Tensor) -> tuple[Tensor, Any]:
            own = before.fork()
            return by(run, stack, now)(x, own, steps), own

        kept = None
        if not torch.compiler.is_compiling():
            own, parallel = {call.order[step] for step in steps}, stack.features.find(ParallelBlock)
            own |= set() if parallel is None else {parallel.first(index) for index in own}  # whose norm they share
            kept = ModuleSnapshot(
                stack, without=[layer for index, layer in enumerate(stack.layers) if index not in own]
            )
        x, own = recompute(segment, x, kept=kept, reads=() if kept is None else call.beside())
        call.adopt(own)
        return x


class CheckpointRuns(CheckpointLayers):
    """The same where another feature says how layers run, and asks for `segments`."""

    through: Any = None


def by(run: Run, stack: nn.Module, now: Callable[[Any], Any]) -> Run:
    """What runs the layers of a stack, for the stack as `now` gives it."""
    here = now(stack)
    if here is stack:
        return run
    args = (now(each) if isinstance(each, Features) else each for each in run.args)
    return functools.partial(getattr(here, run.func.__name__), *args)
