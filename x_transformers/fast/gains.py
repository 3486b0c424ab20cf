"""The gains of norms, computed for all layers of a pass at once.

To add a number or multiply by it takes torch twice as long as the same with a tensor, and as long for one gain as for
those of all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
