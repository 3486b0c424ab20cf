"""What becomes queries, keys and values: memories of earlier segments, learned keys, values of an earlier layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.flags import count, flag


class SegmentMemory(AttentionFeature):
    """Keys and values also come from hidden states of an earlier segment, which stand in front."""

    paper = 'Transformer-XL, arXiv:1901.02860'
    takes = {'mem': 'b l d, normed like x', 'mem_mask': 'b l'}

    def sources(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        mem = call.inputs.get('mem')
        if mem is None:
            return qkv
        q, k, v = qkv
        if mem.ndim != 3 or mem.shape[0] != k.shape[0] or mem.shape[-1] != k.shape[-1]:
            raise ValueError(f'`mem` got shape {tuple(mem.shape)}, it must be ({k.shape[0]}, l, {k.shape[-1]})')
        return q, torch.cat((mem, k), dim=1), torch.cat((mem, v), dim=1)


class ValueResidual(AttentionFeature):
    """Mix in the values of an earlier layer:  v = r + m (v - r),  m one half, or learned per token and head."""

    paper = 'Value Residual Learning, arXiv:2410.17897'
    learned_value_residual_mix = flag(False, 'learn the mix per token and head, from the input')
    takes = {'value_residual': 'like the values, b h n d'}
    stored_as = {'to_mix': 'to_value_residual_mix'}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    def setup(self, host: Any) -> None:
        if self.learned_value_residual_mix:
            self.to_mix = nn.Sequential(nn.Linear(host.dim, host.shape.kv_heads), nn.Sigmoid())

    def sources(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        residual = call.inputs.get('value_residual')
        if self.learned_value_residual_mix and residual is not None:
            if call.context is not None:
                raise ValueError(
                    '`learned_value_residual_mix` mixes per token of one sequence, it has no meaning for a context'
                )
            tokens = torch.cat((qkv[1][:, : call.memories], qkv[0]), dim=1)
            call.notes['value mix'] = self.to_mix(tokens).transpose(1, 2).unsqueeze(-1)
        return qkv

    def heads(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        residual = call.inputs.get('value_residual')
        if residual is None:
            return qkv
        q, k, v = qkv
        if residual.shape != v.shape:
            raise ValueError(f'`value_residual` got shape {tuple(residual.shape)}, the values have {tuple(v.shape)}')
        mix = call.notes.get('value mix', 0.5)
        if torch.is_tensor(mix) and call.rebuilds_values:
            mix = call.recall('value mix', mix)
        return q, k, residual + mix * (v - residual)


class MemoryKV(AttentionFeature):
    """Learned keys and values that every query can attend to."""

    paper = 'Augmenting Self-attention with Persistent Memory, arXiv:1907.01470'
    num_mem_kv = flag(0, 'number of learned key/value pairs', count, example=2)
    stored_as = {'k': 'mem_k', 'v': 'mem_v'}

    def setup(self, host: Any) -> None:
        shape = host.shape
        self.k = nn.Parameter(torch.randn(shape.kv_heads, self.num_mem_kv, shape.dim_head))
        self.v = nn.Parameter(torch.randn(shape.kv_heads, self.num_mem_kv, shape.dim_value))

    def keys(self, call: Any) -> tuple[Tensor, Tensor]:
        k = self.host.features.down('stored_keys', self.k.expand(call.batch, -1, -1, -1), call)
        return k, self.v.expand(call.batch, -1, -1, -1)


class ZeroKV(AttentionFeature):
    """A key and a value of zero, so that a head may attend to nothing."""

    paper = 'Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html'
    add_zero_kv = flag(False, 'one key and value of zero in front')

    def bare_keys(self, k: Tensor, v: Tensor, call: Any) -> tuple[Tensor, Tensor]:
        return tuple(t.new_zeros(*t.shape[:2], 1, t.shape[-1]) for t in (k, v))


# features of a stack


class AddValueResidual(StackFeature):
    """Every attention layer mixes in the values of the first one of its kind."""

    paper = 'Value Residual Learning, arXiv:2410.17897'
    add_value_residual = flag(False, 'mix the values of the first attention layer into the later ones')
    learned_value_residual_mix = flag(True, 'learn the mix in self-attention, else one half')

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        learns = kind == 'a' and number > 0 and bool(self.learned_value_residual_mix)
        return {**flags, 'learned_value_residual_mix': True} if learns else flags

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        first = call.notes.get(f'first values {layer.kind}')
        return inputs if first is None else {**inputs, 'value_residual': first}

    def attended(self, layer: Any, intermediates: Any, call: Any) -> None:
        call.notes.setdefault(f'first values {layer.kind}', intermediates.values)
