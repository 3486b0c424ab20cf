"""What is computed again in the backward pass instead of being kept for it.

A segment of layers runs on a fork of the call, which is then adopted: what its layers leave behind is that of the first
run, with its gradient. The second run gets a fork of its own, as the call was before the segment, and is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from x_transformers.features.levels import StackFeature
from x_transformers.flags import boolean, count, flag

Run = Callable[[Tensor, Any, Sequence[int]], Tensor]


class CheckpointLayers(StackFeature):
    """In training, keep the input of every k-th layer only, and run the k layers again in the backward pass.

    Memory for the backward pass falls from all that n layers save to n / k streams and what one segment saves.
    Numbers and gradients are the same: dropout draws the same again.
    """

    paper = 'Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174'
    checkpoint_layers = flag(
        False,
        'in training, compute layers again in the backward pass: True for each by itself, k for segments of k layers',
        boolean | count,
        example=True,
    )
    only_trains = True

    def through(self, run: Run, x: Tensor, call: Any) -> Tensor:
        steps = range(len(call.order))
        if not (self.host.training and torch.is_grad_enabled()):
            return run(x, call, steps)
        length = int(self.checkpoint_layers)  # True is one
        for start in range(0, len(steps), length):
            x = self.again(run, x, call, steps[start : start + length])
        return x

    @staticmethod
    def again(run: Run, x: Tensor, call: Any, steps: Sequence[int]) -> Tensor:
        """Run some layers, now and in the backward pass, from the same call."""
        before = call.fork()

        def segment(x: Tensor) -> tuple[Tensor, Any]:
            own = before.fork()
            return run(x, own, steps), own

        x, own = checkpoint(segment, x, use_reentrant=False)
        call.adopt(own)
        return x
