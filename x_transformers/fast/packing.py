"""Weights laid out for few rows: what a decode step multiplies with.

On a CPU, torch keeps the weight of a linear layer in the order (out, in), and BLAS serves a few rows up to twice as
fast from (in, out). Copies in that order, and gains with their unit added, are made where a step is written out, for
as long as nobody else's code runs between two steps: a change of a weight through `.data` cannot be seen. Other
changes can, and the copy is made again. Who replaces or watches the products of linear layers, by a function, a mode or
a kind of tensor of their own, gets those, without copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.fast.plain import normed
from x_transformers.features.norms import LayerNorm

# rows for which a copy is faster, by measurement; from two to three rows torch has a kernel of its own
FEW_ROWS = frozenset({1, *range(4, 33)})
MOST_BYTES = 2**30  # of copies, all layers together
MOST_FOR_ONE_ROW = 2**21  # of one weight: a larger one comes from memory, which takes the time, however it is laid out
OWN_LINEAR = F.linear


class PackedLinear:
    """What linear layers give for few rows (b d), side by side, in one product."""

    __slots__ = ('bias', 'copy', 'known', 'layers')

    def __init__(self, *layers: nn.Linear) -> None:
        self.layers, self.known, self.copy, self.bias = layers, (), None, None

    def __call__(self, x: Tensor) -> Tensor:
        for own, weight, version, bias in self.known:
            if own['weight'] is not weight or weight._version != version or own['bias'] is not bias:
                self.copy = None
        if self.copy is None:
            self.pack([layer._parameters for layer in self.layers])
        if self.bias is None:
            return torch.mm(x, self.copy)
        return torch.addmm(self.bias if len(self.known) == 1 else self.biases(), x, self.copy)

    def pack(self, owns: list[dict[str, Any]]) -> None:
        self.known = [(own, own['weight'], own['weight']._version, own['bias']) for own in owns]
        weights = [own['weight'].detach() for own in owns]
        self.copy = (weights[0] if len(weights) == 1 else torch.cat(weights)).t().contiguous()
        self.bias = next((own['bias'] for own in owns if own['bias'] is not None), None)

    def biases(self) -> Tensor:
        return torch.cat([w.new_zeros(len(w)) if bias is None else bias for _, w, _, bias in self.known])


class PackedNorm:
    """A layer norm whose gain is summed once."""

    __slots__ = ('gain', 'known', 'offset', 'own', 'version')

    def __init__(self, norm: LayerNorm) -> None:
        self.own, self.offset, self.known, self.version, self.gain = norm._parameters, norm.unit_offset, None, -1, None

    def __call__(self, x: Tensor) -> Tensor:
        gamma = self.own['gamma']
        if gamma is not self.known or gamma._version != self.version:
            self.known, self.version, self.gain = gamma, gamma._version, gamma.detach() + self.offset
        return normed(x, self.gain)


def products_are_torchs() -> bool:
    """Whether linear layers are products of torch, and nobody watches them."""
    return F.linear is OWN_LINEAR and not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def fits(weight: Any) -> bool:
    """Whether a copy pays: on a CPU, in single precision, and where a change of the weight can be seen."""
    return weight.device.type == 'cpu' and weight.dtype == torch.float32 and not weight.is_inference()


def packable(modules: Iterable[nn.Module], rows: int) -> set[nn.Linear]:
    """The linear layers among modules that are worth a copy for so many rows.

    None if all of them are too large, or among tensors of a kind of their own, which may bring other products.
    """
    modules = list(modules)
    of_torch = all(type(t) in (nn.Parameter, Tensor, NoneType) for m in modules for t in m._parameters.values())
    if rows not in FEW_ROWS or not of_torch:
        return set()
    sizes = {m: m.weight.numel() * m.weight.element_size() for m in modules if type(m) is nn.Linear and fits(m.weight)}
    if sum(sizes.values()) > MOST_BYTES:
        return set()
    return {m for m, size in sizes.items() if rows > 1 or size <= MOST_FOR_ONE_ROW}


def packs_gain(module: nn.Module | None) -> bool:
    """Whether a module is a layer norm whose gain is a sum, and a change of which can be seen."""
    return type(module) is LayerNorm and bool(module.unit_offset) and not module.gamma.is_inference()
