"""Weights laid out for few rows: what a decode step multiplies with.

On a CPU, torch keeps the weight of a linear layer in the order (out, in), and BLAS serves a few rows up to twice as
fast from (in, out); one row from whichever order has the longer rows. Copies in that order, and gains with their unit
added, are made where a step is written out and so many steps follow that they pay, for as long as nobody else's code
runs between two steps: a change of a weight through `.data` cannot be seen. Other changes can, and the copy is made
again. Who replaces or watches the products of linear layers, by a function, a mode or a kind of tensor of their own,
gets those, without copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers.fast.gains import GAINS
from x_transformers.fast.plain import PARTS, part
from x_transformers.flags.maybe import Maybe

NORMS = GAINS.keys() & PARTS.keys()  # of the stream

# rows for which a copy is faster, by measurement; from two to three rows torch has a kernel of its own
FEW_ROWS = frozenset({1, *range(4, 33)})
SMALL, WIDE, NARROW = 2**18, 2**13, 2**9  # weights, outputs, and inputs
SOON, LATE = 16, 48  # steps until a copy has paid
MOST_BYTES = 2**30  # of copies, all layers together
OWN_LINEAR = F.linear


class PackedLinear:
    """What linear layers give for few rows (b d), side by side, in one product."""

    __slots__ = ('bias', 'copy', 'joined', 'known', 'layers')

    def __init__(self, *layers: nn.Linear) -> None:
        self.layers, self.bias = layers, None
        self.known: Any = ()
        self.copy: Any = None
        self.joined: Any = (), None

    def __call__(self, x: Tensor) -> Tensor:
        for own, weight, version, bias in self.known:
            if own['weight'] is not weight or weight._version != version or own['bias'] is not bias:
                self.copy = None
        if self.copy is None:
            self.pack([layer._parameters for layer in self.layers], len(x))
        packed: Any = self.copy
        if self.bias is None:
            return torch.mm(x, packed)
        return torch.addmm(self.bias if len(self.known) == 1 else self.biases(), x, packed)

    def pack(self, owns: list[dict[str, Any]], rows: int) -> None:
        self.known = [(own, own['weight'], own['weight']._version, own['bias']) for own in owns]
        weights = [own['weight'].detach() for own in owns]
        weight = (weights[0] if len(weights) == 1 else torch.cat(weights)).t()
        # one row, us from (out, in) and (in, out): 1,024 of 256 145 and 73, 8,192 of 256 1,141 and 434, 3,072 of 768
        # 852 and 554; the other way round 256 of 1,024 85 and 140, 768 of 3,072 742 and 827
        self.copy = weight if rows == 1 and weight.shape[0] > weight.shape[1] else weight.contiguous()
        self.bias = next((own['bias'] for own in owns if own['bias'] is not None), None)
        self.joined = (), None

    def biases(self) -> Tensor:
        """Side by side, zeros for layers without."""
        own = [bias for *_, bias in self.known if bias is not None]
        seen = not any(bias.is_inference() for bias in own)
        versions = tuple([bias._version for bias in own]) if seen else None
        if self.joined[0] != versions or versions is None:
            each = [w.new_zeros(len(w)) if bias is None else bias.detach() for _, w, _, bias in self.known]
            self.joined = versions, torch.cat(each)
        return self.joined[1]


class PackedNorm:
    """A norm whose gain is summed and scaled once."""

    __slots__ = ('gain', 'known', 'name', 'norm', 'offset', 'own', 'scale', 'version')

    def __init__(self, norm: nn.Module) -> None:
        self.own, self.norm = norm._parameters, part(norm)
        self.name, self.offset, self.scale = GAINS[type(norm)](norm)
        self.known, self.version, self.gain = None, -1, None

    def __call__(self, x: Tensor) -> Tensor:
        gain = self.own[self.name]
        if gain is None:
            return self.norm(x)
        if gain is not self.known or gain._version != self.version:
            self.known, self.version, self.gain = gain, gain._version, gain.detach() + self.offset
            self.gain = self.gain if self.scale == 1 else self.scale * self.gain
        return self.norm(x, self.gain)


class PackedGain:
    """The gains of queries and keys, side by side."""

    __slots__ = ('gain', 'known', 'make', 'norms')

    def __init__(self, norms: Iterable[nn.Module], make: Callable[[dict[Any, Tensor]], Tensor]) -> None:
        self.norms: list[dict[str, Any]] = [norm._parameters for norm in norms]
        self.make, self.known = make, []
        self.gain: Any = None

    def __call__(self) -> Tensor:
        each = [own['gamma'] for own in self.norms]
        if any(gain.is_inference() for gain in each):
            return self.make({})
        same = len(self.known) == len(each) and all(
            gain is known and gain._version == version for gain, (known, version) in zip(each, self.known, strict=True)
        )
        if not same:
            self.known, self.gain = [(gain, gain._version) for gain in each], self.make({}).detach()
        return self.gain


def products_are_torchs() -> bool:
    """Whether linear layers are products of torch, and nobody watches them."""
    return F.linear is OWN_LINEAR and not (torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def fits(weight: Any) -> bool:
    """Whether a copy pays: on a CPU, in single precision, and where a change of the weight can be seen."""
    return weight.device.type == 'cpu' and weight.dtype == torch.float32 and not weight.is_inference()


def pays(weight: Tensor, rows: int, steps: int) -> bool:
    """Whether so many products from a copy, where the weights of other layers were read in between, save more than
    the copy takes.

    One row, us from (out, in), from (in, out), and of the copy: 4,096 of 768 1,290, 800 and 7,000; 32,000 of 768
    10,200, 6,500 and 126,000. For 4 to 32 rows small matrices, and vocabularies of narrow models: 8 rows, 1,024 of 256
    219 and 204, 32,000 of 512 13,400 and 10,600, 50,257 of 768 34,900 and 32,500; 4,096 of 768 1,900 and 2,630.
    """
    is_wide = len(weight) >= WIDE
    if rows == 1:
        return steps >= (LATE if is_wide else SOON)
    return steps >= LATE and weight.shape[1] <= NARROW and (is_wide or weight.numel() <= SMALL)


def packable(modules: Iterable[nn.Module], rows: int, steps: int) -> set[nn.Linear]:
    """The linear layers among modules that are worth a copy for so many rows and steps.

    None if they are too large together, or among tensors of a kind of their own, which may bring other products.
    """
    modules = list(modules)
    of_torch = all(type(t) in (nn.Parameter, Tensor, NoneType) for m in modules for t in m._parameters.values())
    if rows not in FEW_ROWS or not of_torch:
        return set()
    able = [m for m in modules if type(m) is nn.Linear and fits(m.weight) and pays(m.weight, rows, steps)]
    sizes = {m: m.weight.numel() * m.weight.element_size() for m in able}
    return set(sizes) if sum(sizes.values()) <= MOST_BYTES else set()


def packs_gain(module: Maybe[nn.Module]) -> bool:
    """Whether a module is a norm whose gain is computed, and a change of which can be seen."""
    if type(module) not in NORMS:
        return False
    name, offset, scale = GAINS[type(module)](module)
    gain = module._parameters[name]
    return gain is not None and bool(offset or scale != 1) and not gain.is_inference()
