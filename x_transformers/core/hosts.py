"""What calls and features know of the modules that they run in, without importing the file that defines these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import nn

from x_transformers.flags import Features


class Layer(Protocol):
    """A branch of a stack: its norms, what computes, and how it joins the stream."""

    kind: str
    index: int

    def __getitem__(self, at: int) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class Attention(Protocol):
    """An attention layer: its sizes, and what makes queries and keys."""

    shape: Any
    to_q: nn.Linear
    to_k: nn.Linear


class Stack(Protocol):
    """`AttentionLayers`."""

    training: bool
    features: Features
    dim: int
    dim_context: int
    attn_heads: int
    causal: bool
    cross_attend: bool
    can_cache_kv: bool
    can_cache_kv_in_training: bool
    layers: Sequence[Layer]
    layers_execute_order: Sequence[int]
    final_norm: nn.Module | None


class Model(Protocol):
    """A wrapper around a stack."""

    training: bool
    features: Features
    attn_layers: Any
    can_cache_kv_outside_max_seq_len: bool
    has_absolute_positions: bool
