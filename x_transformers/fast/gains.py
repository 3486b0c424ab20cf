"""The gains of norms, computed for all layers of a pass at once.

To add a number or multiply by it takes torch twice as long as the same with a tensor, and as long for one gain as for
those of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.heads import HeadNorm
from x_transformers.features.norms import BiasedLayerNorm, LayerNorm, MultiheadRMSNorm, RMSNorm, ScaleNorm

# norms with a gain, scale * (parameter + offset): the name of the parameter, the offset, the scale
GAINS: dict[type, Callable[[Any], tuple[str, float, float]]] = {
    LayerNorm: lambda norm: ('gamma', norm.unit_offset, 1.0),
    BiasedLayerNorm: lambda norm: ('gamma', norm.unit_offset, 1.0),
    RMSNorm: lambda norm: ('g', norm.unit_offset, scale_of(norm)),
    ScaleNorm: lambda norm: ('g', norm.unit_offset, scale_of(norm)),
    MultiheadRMSNorm: lambda norm: ('gamma', 1.0, norm.scale),
    HeadNorm: lambda norm: ('gamma', norm.unit_offset, 1.0),
}


def scale_of(norm: RMSNorm) -> float:
    """What stands beside the gain."""
    return norm.scale if norm.eps is None else 1.0


class Gains:
    """Norms of layers, in groups that are computed alike."""

    def __init__(self, norms: Iterable[nn.Module]) -> None:
        self.groups: dict[Any, list[nn.Module]] = {}
        for norm in norms:
            if type(norm) in GAINS:
                name, offset, scale = GAINS[type(norm)](norm)
                gain = norm._parameters[name]
                if gain is not None and (offset or scale != 1):
                    shape = gain.shape
                    self.groups.setdefault((name, offset, scale, shape), []).append(norm)

    def __call__(self) -> dict[nn.Module, Tensor]:
        """The gain of each norm, of its parameter as it is now; without those that are no longer of one kind."""
        found: dict[nn.Module, Tensor] = {}
        for (name, offset, scale, shape), group in self.groups.items():
            each: Any = [norm._parameters[name] for norm in group]
            if any([gain is None for gain in each]):
                continue
            kinds = {(type(gain), gain.shape, gain.dtype, gain.device) for gain in each}
            if len(kinds) == 1 and each[0].shape == shape and type(each[0]) in (nn.Parameter, Tensor):
                gains = torch.stack(each)
                gains = gains + offset if offset else gains
                found.update(zip(group, (gains if scale == 1 else scale * gains).unbind(), strict=True))
        return found
