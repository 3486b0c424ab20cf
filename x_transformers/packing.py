"""Weights laid out for few rows: what a decode step multiplies with.

On a CPU, torch keeps the weight of a linear layer in the order (out, in), and BLAS serves one row, or a few, up to
twice as fast from (in, out). `Packed` keeps such copies of a net's linear layers while it generates, and uses them
inside a `with` block only; outside of it the net is untouched.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# rows for which the copy is faster, by measurement; from two to three rows torch has a kernel of its own
FEW_ROWS = frozenset({1, *range(4, 33)})
MOST_BYTES = 2**30  # of copies, all layers together


class PackedLinear:
    """In place of a linear layer's `forward`:  x W^T + b  from a transposed copy of W, made again if W changes."""

    __slots__ = ('copy', 'linear', 'own', 'version', 'weight')

    def __init__(self, linear: nn.Linear) -> None:
        self.linear, self.weight, self.version, self.copy = linear, None, -1, None
        self.own = linear._parameters  # read without the search that an attribute of a module takes

    def __call__(self, x: Tensor) -> Tensor:
        weight = self.own.get('weight')
        rows = x.numel() // max(x.shape[-1], 1)
        if weight is None or rows not in FEW_ROWS or x.dtype != weight.dtype:
            return F.linear(x, self.linear.weight, self.linear.bias)
        return self.few(x.reshape(rows, x.shape[-1])).view(*x.shape[:-1], len(weight))

    def few(self, x: Tensor) -> Tensor:
        """The same for rows (b d) that are known to be few."""
        weight, bias = self.own['weight'], self.own['bias']
        if weight is not self.weight or weight._version != self.version:
            self.copy = weight.detach().t().contiguous()
            self.weight, self.version = weight, weight._version
        return torch.mm(x, self.copy) if bias is None else torch.addmm(bias, x, self.copy)


class JoinedLinear:
    """What several layers without bias give for few rows (b d), side by side, in one product."""

    __slots__ = ('copy', 'known', 'parts')

    def __init__(self, *layers: nn.Linear) -> None:
        self.parts, self.known, self.copy = [layer._parameters for layer in layers], (), None

    def __call__(self, x: Tensor) -> Tensor:
        for own, weight, version in self.known:
            if own['weight'] is not weight or weight._version != version:
                self.copy = None
        if self.copy is None:
            weights = [own['weight'] for own in self.parts]
            self.copy = torch.cat([weight.detach() for weight in weights]).t().contiguous()
            self.known = [(own, w, w._version) for own, w in zip(self.parts, weights, strict=True)]
        return torch.mm(x, self.copy)


def fits(weight: Tensor) -> bool:
    """Whether a copy pays: on a CPU, in single precision, and where a change of the weight can be seen."""
    return weight.device.type == 'cpu' and weight.dtype == torch.float32 and not weight.is_inference()


class Packed:
    """A net whose plain linear layers, inside `with`, multiply by packed copies of their weights."""

    def __init__(self, net: nn.Module) -> None:
        # no subclass, whose forward may be its own; nothing whose forward has been replaced already
        plain = [m for m in getattr(net, 'modules', tuple)() if type(m) is nn.Linear and 'forward' not in m.__dict__]
        fitting = [m for m in plain if fits(m.weight)]
        small = sum(m.weight.numel() * m.weight.element_size() for m in fitting) <= MOST_BYTES
        self.forwards = [(m.__dict__, PackedLinear(m)) for m in fitting] if small else []

    def __enter__(self) -> Packed:
        for attributes, forward in self.forwards:
            attributes['forward'] = forward
        return self

    def __exit__(self, *_: Any) -> None:
        for attributes, _ in self.forwards:
            attributes.pop('forward', None)
