"""What calls and features know of the modules that they run in, without importing the file that defines these.

Attention   an attention layer: its `shape` of sizes, and what makes queries and keys, `to_q` and `to_k`
Layer       a branch of a stack: its norms, what computes, and how it joins the stream
Stack       `AttentionLayers`: its layers, their order, and what they have in common
Model       a wrapper around a stack
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from x_transformers.x_transformers import Attention, AttentionLayers as Stack, Layer, Wrapper as Model
else:  # names alone: the file that defines them imports this one
    Attention = Layer = Model = Stack = Any

__all__ = ('Attention', 'Layer', 'Model', 'Stack')
