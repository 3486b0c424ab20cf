"""Per-layer embeddings: a vector per token for each block, looked up by its id, which gates a small branch.

Gemma 3n and Gemma 4, ai.google.dev/gemma/docs/gemma-3n
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.branches import KINDS, Kind
from x_transformers.core.own_modules import known_stack
from x_transformers.features.levels import ModelFeature, StackFeature
from x_transformers.features.norms import RMSNorm
from x_transformers.flags import ConfigError, Input, boolean, flag, none, size
from x_transformers.flags.checks import get_tensor, mapping_with_keys

PAPER = 'Gemma 3n, ai.google.dev/gemma/docs/gemma-3n'


class PerLayerBranch(nn.Module):
    """norm(W_proj (gelu(W_gate x) e)),  e (b, n, l, width) the embeddings of all such layers, of which it is one."""

    def __init__(self, dim: int, width: int, number: int) -> None:
        super().__init__()
        self.gate, self.proj = nn.Linear(dim, width, bias=False), nn.Linear(width, dim, bias=False)
        self.norm, self.number = RMSNorm(dim, eps=1e-6), number

    def forward(self, x: Tensor, embeds: Tensor | None = None) -> Tensor:
        gates = F.gelu(self.gate(x), approximate='tanh')
        return self.norm(self.proj(gates if embeds is None else gates * embeds[..., self.number, :]))


def build(stack: Any, index: int) -> PerLayerBranch:
    found = stack.features.find(PerLayerEmbeddings)
    if found is None:
        raise ConfigError("layers of kind 'p' need `per_layer_emb_dim`, the width of their embeddings")
    return PerLayerBranch(stack.dim, found.per_layer_emb_dim, stack.layer_types[:index].count('p'))


KINDS['p'] = Kind(build, lambda call: {'embeds': call.ctx(PerLayerEmbeddings).embeds}, remembers={})


class PerLayerEmbeddings(StackFeature):
    """Layers of kind 'p' after each block, gated by embeddings of their own, `per_layer_embeds` (b, n, l width).

        x + norm(W_proj (gelu(W_gate x) e))             e (width) of the token, for this layer of l such layers

    `per_layer_emb` of a `TransformerWrapper` passes them. Without them, the factor e is left out.
    """

    paper = PAPER
    per_layer_emb_dim = flag(None, 'width of an embedding per token and block, which gates a branch', size | none,
                             example=4)  # fmt: skip
    call_inputs = {'per_layer_embeds': Input('b n e', get_tensor('b n e', floats=True))}

    def setup(self, owner: Any) -> None:
        self.count = owner.layer_types.count('p')

    def block(self, block: list[str]) -> list[str]:
        return [*block, 'p']

    def norms(self, norms: Any, kind: str, index: int) -> Any:
        return (None, None, norms[2]) if kind == 'p' else norms

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        given, width = call.inputs.get('per_layer_embeds'), self.count * self.per_layer_emb_dim
        call.ctx(self).embeds = None
        if given is None:
            return x
        if given.shape[-1] != width or given.shape[0] != x.shape[0]:
            raise ValueError(
                f'`per_layer_embeds` must have shape ({x.shape[0]}, n, {width}), {self.count} layers of width '
                f'{self.per_layer_emb_dim}, got {tuple(given.shape)}'
            )
        given = call.select_new(given, 'per_layer_embeds')
        call.ctx(self).embeds = rearrange(given, 'b n (l e) -> b n l e', l=self.count).to(x.dtype)
        return x


class PerLayerModule(nn.Module):
    """Table and projection of `PerLayerTables`."""

    def __init__(self, num_tokens: int, dim: int, layers: int, width: int) -> None:
        super().__init__()
        self.layers, self.scales = layers, (dim**-0.5, width**0.5)
        self.table, self.proj = nn.Embedding(num_tokens, layers * width), nn.Linear(dim, layers * width, bias=False)
        self.norm = RMSNorm(width, eps=1e-6)
        nn.init.normal_(self.table.weight, std=width**-0.5)

    def forward(self, x: Tensor, ids: Tensor, has_id: Tensor) -> Tensor:
        """Return the embeddings (b, n, l e) of the stream (b, n, d), with zeros of the table for tokens without id."""
        projected = rearrange(self.proj(x) * self.scales[0], 'b n (l e) -> b n l e', l=self.layers)
        ids = ids.masked_fill(ids >= self.table.weight.shape[0], 0)
        looked_up = self.table(ids).masked_fill(~has_id.unsqueeze(-1), 0.0) * self.scales[1]
        return (rearrange(self.norm(projected), 'b n l e -> b n (l e)') + looked_up) * 0.5**0.5


class PerLayerTables(ModelFeature):
    """Per-layer embeddings from the token ids and the input of the stack, for `per_layer_emb_dim` of the stack.

        e = (norm(W x / sqrt(d)) + E[id] sqrt(width)) / sqrt(2)          E (num_tokens, l width)

    Ids of at least `num_tokens` have the first row; tokens without an id, such as prepended ones, have E[id] = 0.
    """

    paper = PAPER
    per_layer_emb = flag(
        None,
        'embeddings per token and block: True, or dict(num_tokens=...) for a table of the first tokens only',
        mapping_with_keys(num_tokens=size) | boolean | none,
        example=dict(num_tokens=40),
    )
    stored_as = {'module': 'per_layer_tables'}

    def setup(self, owner: Any) -> None:
        stack = known_stack(owner.attn_layers)
        found = stack.features.find(PerLayerEmbeddings)
        if found is None:
            raise ConfigError('`per_layer_emb` needs `per_layer_emb_dim` of the stack, the width of the embeddings')
        own = self.per_layer_emb if isinstance(self.per_layer_emb, dict) else {}
        rows = own.get('num_tokens', owner.num_tokens)
        self.module = PerLayerModule(rows, stack.dim, found.count, found.per_layer_emb_dim)

    def prepend_prefix(self, x: Tensor, call: Any) -> Tensor:
        no_id = -1
        ids = F.pad(call.like_tokens, (0 if call.continues else call.num_prefix_tokens, 0), value=no_id)
        ids = ids if call.spread is None else call.spread(ids, no_id)
        call.ctx(self).embeds = self.module(x, ids.clamp(min=0), ids != no_id)
        return x

    def stack_inputs(self, inputs: dict[str, Any], call: Any) -> dict[str, Any]:
        embeds = call.ctx(self).embeds
        return {**inputs, 'per_layer_embeds': embeds if call.continues else call.move_after_padding(embeds)}
