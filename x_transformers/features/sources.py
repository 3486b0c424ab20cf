"""Inputs of queries, keys and values: separate inputs, residuals, deltas, memories, extra keys, earlier values.

Prepended keys have this order: zero key, keys passed by the caller, learned keys, memories.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from x_transformers.cache import LayerIntermediates
from x_transformers.core.checks import as_mask, check_broadcast, check_digits, check_tensor, check_vectors, zero_masked
from x_transformers.features.levels import AttentionFeature, StackFeature
from x_transformers.features.polar import Polar
from x_transformers.flags import Input, PerToken, count, flag, format_value
from x_transformers.flags.checks import a_switch, floating, get_tensor
from x_transformers.flags.contracts import BareKeys
from x_transformers.kernels.dense import tile_heads


class SeparateInputs(AttentionFeature):
    """Separate inputs for queries, keys and values. Everything else uses the input of the queries."""

    paper = 'Hyper-Connections, arXiv:2409.19606'
    qkv_receive_diff_residuals = flag(False, 'x has shape (3, b, n, d), the inputs of queries, keys and values')
    refuses = {'cross-attention': 'keys and values of a context come from the context'}

    def select_inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if x.ndim != 4 or x.shape[0] != 3:
            raise ValueError(f'`x` must be (3, b, n, d) with `qkv_receive_diff_residuals`, got {tuple(x.shape)}')
        q, k, v = x
        return q, k, v

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.refuse_context(call)
        return qkv


class ValueContext(AttentionFeature):
    """Values from a separate sequence, as long as that of the keys:  Q = X_q W_q,  K = X_k W_k,  V = X_v W_v"""

    paper = 'Attention Is All You Need, arXiv:1706.03762, section 3.2.2'
    call_inputs = {
        'value_context': Input(
            'b j d, input of the values, one vector per token of `context`', get_tensor('b j d', floats=True)
        ),
    }
    tp_shards = {}

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        given = call.inputs.get('value_context')
        if given is None:
            return qkv
        if call.context is None:
            raise ValueError('`value_context` needs a `context`, of which it has the values')
        if any('use_latent_kv' in feature.flags for feature in self.owner.features.active):
            raise ValueError(
                '`value_context` cannot be combined with `use_latent_kv`: keys and values share one latent'
            )
        q, k, v = qkv
        check_vectors(given, 'value_context', k.shape[0], k.shape[1], v.shape[-1], like=call.x)
        check_digits(given, 'value_context', k)
        return q, k, call.zero_hidden_keys(given)


class KVInputResidual(AttentionFeature):
    """A tensor passed by the caller and added to the inputs of keys and values."""

    call_inputs = {'kv_input_residual': Input('broadcasts to the input of the keys, b j d', floating)}
    tp_shards = {}

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        residual = call.inputs.get('kv_input_residual')
        if residual is None:
            return qkv
        q, k, v = qkv
        check_broadcast(residual, 'kv_input_residual', k)
        if residual.ndim == 3 and residual.shape[1] == k.shape[1]:
            residual = call.zero_hidden_keys(residual)
        return q, k + residual, v + residual


class Deltas(AttentionFeature):
    """Tensors passed by the caller and added to projected queries, keys, values and merged heads.  arXiv:2605.12357"""

    call_inputs = {
        'q_delta': Input('broadcasts to b n (h d)', floating),
        'k_delta': Input('broadcasts to b j (k d)', floating),
        'v_delta': Input('broadcasts to b j (k d)', floating),
        'o_delta': Input('broadcasts to b n (h d)', floating),
    }
    tp_shards = {}
    tp_input_shards = {
        **dict.fromkeys(('q_delta', 'o_delta'), '... (h d)'),
        **dict.fromkeys(('k_delta', 'v_delta'), '... (k d)'),
    }

    def projected(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self.moved(t, f'{name}_delta', call) for t, name in zip(qkv, 'qkv', strict=True))
        return q, k, v

    def merged_heads(self, out: Tensor, call: Any) -> Tensor:
        return self.moved(out, 'o_delta', call)

    def moved(self, t: Tensor, name: str, call: Any) -> Tensor:
        delta = call.inputs.get(name)
        if delta is None:
            return t
        check_broadcast(delta, name, t)
        if delta.shape[:2] == t.shape[:2]:
            of_keys = name in ('k_delta', 'v_delta')
            delta = call.zero_hidden_keys(delta) if of_keys else zero_masked(delta, call.token_mask)
        return t + delta


class SegmentMemory(AttentionFeature):
    """Memories: prepend the hidden states of earlier segments to the inputs of keys and values."""

    paper = 'Transformer-XL, arXiv:1901.02860'
    call_inputs = {
        'mem': Input('b l d, normalized like x', get_tensor('b l d', floats=True)),
        'mem_mask': Input('b l', get_tensor('b l')),
    }
    tp_shards = {}

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        mem = call.inputs.get('mem')
        if mem is None:
            return qkv
        q, k, v = qkv
        check_digits(mem, 'mem', k)
        mask = call.inputs.get('mem_mask')
        as_mask(mask, 'mem_mask', mem.shape[0], mem.shape[1] if mem.ndim > 1 else 'l')
        if mem.ndim != 3 or mem.shape[0] != k.shape[0] or mem.shape[-1] != k.shape[-1]:
            raise ValueError(f'`mem` must have shape ({k.shape[0]}, l, {k.shape[-1]}), got {tuple(mem.shape)}')
        mem = zero_masked(mem, call.inputs.get('mem_mask'))
        return q, torch.cat((mem, k), dim=1), torch.cat((mem, v), dim=1)


class ValueResidual(AttentionFeature):
    """Mix the values with those of an earlier layer, r:  v = r + m (v - r),  m one half, or per token and head."""

    paper = 'Value Residual Learning, arXiv:2410.17897'
    learned_value_residual_mix = flag(False, 'compute the mix per token and head from the input, instead of one half')
    always = False
    call_inputs = {'value_residual': Input('like the values, b h n d', get_tensor('b h n d', floats=True))}
    stored_as = {'to_mix': 'to_value_residual_mix'}
    states = {'value mix': PerToken()}
    tp_shards = {'to_mix.0.weight': (0, 'kv_heads'), 'to_mix.0.bias': (0, 'kv_heads')}
    tp_input_shards = {'value_residual': ''}

    @classmethod
    def is_on(cls, values: Any) -> bool:
        return True

    def setup(self, owner: Any) -> None:
        if self.learned_value_residual_mix:
            self.to_mix = nn.Sequential(nn.Linear(owner.dim, owner.shape.kv_heads), nn.Sigmoid())

    def qkv_inputs(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        residual = call.inputs.get('value_residual')
        if self.learned_value_residual_mix and residual is not None:
            if call.context is not None:
                raise ValueError(
                    '`learned_value_residual_mix` cannot be combined with a context: it mixes per token of x'
                )
            own = qkv[0] if call.token_idx is None else qkv[1][:, call.memories :]
            tokens = torch.cat((qkv[1][:, : call.memories], own), dim=1) if call.memories else own
            call.ctx(self).mix = self.to_mix(tokens).transpose(1, 2).unsqueeze(-1)
        return qkv

    def qkv_heads(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        residual = call.inputs.get('value_residual')
        if residual is None:
            return qkv
        q, k, v = qkv
        if residual.shape != v.shape:
            raise ValueError(f'`value_residual` got shape {tuple(residual.shape)}, the values have {tuple(v.shape)}')
        mix, residual = getattr(call.ctx(self), 'mix', 0.5), call.zero_hidden_keys(residual)
        if torch.is_tensor(mix) and call.rebuilds_values:
            mix = call.state('value mix').append(mix)
        return q, k, residual + mix * (v - residual)


class MemoryKV(AttentionFeature):
    """Learned key/value pairs (persistent memory) that every query can attend to."""

    paper = 'Augmenting Self-attention with Persistent Memory, arXiv:1907.01470'
    num_mem_kv = flag(0, 'number of learned key/value pairs per head', count, example=2)
    stored_as = {'k': 'mem_k', 'v': 'mem_v'}
    allows_eviction = True
    tp_shards = {'k': (0, 'kv_heads'), 'v': (0, 'kv_heads')}

    def setup(self, owner: Any) -> None:
        shape = owner.shape
        self.k = nn.Parameter(torch.randn(shape.kv_heads, self.num_mem_kv, shape.dim_head))
        self.v = nn.Parameter(torch.randn(shape.kv_heads, self.num_mem_kv, shape.dim_value))

    def prepend_kv(self, call: Any) -> tuple[Tensor, Tensor]:
        k = self.owner.features.apply('extra_keys', self.k.expand(call.batch, -1, -1, -1), call)
        return k, self.v.expand(call.batch, -1, -1, -1)


class AdditionalKV(AttentionFeature):
    """Keys and values passed by the caller: not normalized, without a position, visible to every query."""

    call_inputs = {
        'additional_key_values': Input('(k, v), b k m d each, k a divisor of the number of heads'),
        'additional_key_value_mask': Input('b m'),
    }
    allows_eviction = True
    tp_shards = {}
    tp_input_shards = {'additional_key_values': 'b h m d'}

    def prepend_kv(self, call: Any) -> tuple[Tensor, Tensor] | None:
        given = call.inputs.get('additional_key_values')
        if given is None:
            return None
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise TypeError(f'`additional_key_values` must be a pair of keys and values, got {format_value(given)}')
        shape, (k, v) = self.owner.shape, given
        check_tensor(k, 'additional_key_values')
        for t, width in ((k, shape.dim_head), (v, shape.dim_value)):
            m = k.shape[-2] if k.ndim > 1 else 'm'
            check_vectors(t, 'additional_key_values', call.batch, 'k', m, width, like=call.x)
            if shape.heads % t.shape[1]:
                heads = f'{shape.heads}, got {t.shape[1]} heads'
                raise ValueError(f'`additional_key_values` must divide the heads, {heads}')
        if k.shape[1] != shape.kv_heads:
            k, v = tile_heads(k, shape.heads), tile_heads(v, shape.heads)
        mask = call.inputs.get('additional_key_value_mask')
        if torch.is_tensor(mask) and mask.shape == (call.batch, k.shape[-2]):  # any other is refused below
            k, v = zero_masked(k, mask), zero_masked(v, mask)
        polar = self.owner.features.find(Polar)
        return k if polar is None else polar.extra_keys(k, call), v

    def mask(self, call: Any) -> Tensor | None:
        mask, given = call.inputs.get('additional_key_value_mask'), call.inputs.get('additional_key_values')
        if mask is None:
            return None
        if given is None:
            raise ValueError('`additional_key_value_mask` was given without `additional_key_values`')
        mask = as_mask(mask, 'additional_key_value_mask', call.batch, given[0].shape[-2], like=call.x)
        memory = self.owner.features.find(MemoryKV)
        behind = call.keys + (0 if memory is None else memory.num_mem_kv)
        call.hides_added = True
        mask = F.pad(mask, (call.total_keys - behind - mask.shape[1], behind), value=True)
        return rearrange(mask, 'b j -> b 1 1 j')


class ZeroKV(AttentionFeature):
    """Add a key and a value of zeros, so that a head can attend to nothing."""

    paper = 'Attention Is Off By One, evanmiller.org/attention-is-off-by-one.html'
    add_zero_kv = flag(False, 'prepend one key and one value of zeros')
    allows_eviction = True
    tp_shards = {}

    def prepend_kv(self, call: Any) -> BareKeys:
        return BareKeys(0.0, 0.0)


# features of a stack


class AddValueResidual(StackFeature):
    """Value residual: mix the values of every attention layer with those of the first one of its kind."""

    paper = 'Value Residual Learning, arXiv:2410.17897'
    add_value_residual = flag(False, 'mix the values of the first attention layer into the later ones')
    learned_value_residual_mix = flag(True, 'in self-attention, compute the mix from the input, instead of one half')
    tp_shards = {}

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        learns = kind == 'a' and number > 0 and bool(self.learned_value_residual_mix)
        return {**flags, 'learned_value_residual_mix': True} if learns else flags

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        first = getattr(call.ctx(self), 'first', {}).get(layer.kind)
        return inputs if first is None else {**inputs, 'value_residual': first}

    def on_attention(self, layer: Any, intermediates: Any, call: Any) -> None:
        own = call.ctx(self)
        own.first = {layer.kind: intermediates.values, **getattr(own, 'first', {})}


RESIDUALS = get_tensor('l b n d | b n d', floats=True)


class KVResiduals(StackFeature):
    """Tensors passed by the caller and added to the inputs of keys and values, in the order in which layers run."""

    call_inputs = {
        'self_attn_kv_residuals': Input('l b n d, or b n d for the first layer', RESIDUALS),
        'cross_attn_kv_residuals': Input('l b m d, or b m d for the first layer', RESIDUALS),
    }

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        name = {'a': 'self_attn_kv_residuals', 'c': 'cross_attn_kv_residuals'}.get(layer.kind, '')
        given = call.inputs.get(name)
        if given is None:
            return inputs
        each = given.unsqueeze(0) if given.ndim == 3 else given
        if each.ndim != 4 or each.shape[0] > call.count_layers(layer.kind):
            raise ValueError(
                f'`{name}` must be (l, b, n, d) for at most '
                f'{call.count_layers(layer.kind)} layers, or (b, n, d) for the first, got shape {tuple(given.shape)}'
            )
        at = (call.self_attended if layer.kind == 'a' else call.attended - call.self_attended) - 1
        if at >= each.shape[0]:
            return inputs
        hidden = call.shared['c'].get('context_mask')
        stream = call.whole or call
        residual = stream.select_new(each[at], name) if layer.kind == 'a' else zero_masked(each[at], hidden)
        if layer.kind == 'c' and call.cache is not None:  # the keys of the context are in the cache
            residual = residual[:, :0]
        return {**inputs, 'kv_input_residual': residual}


class AdditionalKVs(StackFeature):
    """Keys and values of another model, one pair per self-attention layer, from its cache or as tensors."""

    call_inputs = {
        'self_attn_additional_kv': Input(
            'list of (k, v), b k m d each, or the cache or intermediates of another stack'
        ),
        'additional_kv_mask': Input('b m'),
        'detach_additional_kv': Input('True to stop the gradient into them', a_switch),
        'route_additional_kv_to_top': Input(
            'True: the last pair goes to the last layer; False: the first to the first', a_switch
        ),
    }

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        given = call.inputs.get('self_attn_additional_kv')
        if given is None:
            if call.inputs.get('additional_kv_mask') is not None:
                raise ValueError('`additional_kv_mask` was given without `self_attn_additional_kv`')
            return x
        pairs, layers = self.pairs(given), call.count_layers('a')
        if call.inputs.get('detach_additional_kv'):
            pairs = [(k.detach(), v.detach()) for k, v in pairs]
        top = call.inputs.get('route_additional_kv_to_top')
        if top is None or top:
            pairs = [None] * (layers - len(pairs)) + pairs[max(len(pairs) - layers, 0) :]
        call.ctx(self).pairs = dict(enumerate(pairs))
        return x

    @staticmethod
    def pairs(given: Any) -> list[tuple[Tensor, Tensor]]:
        if isinstance(given, LayerIntermediates):
            given = [inter.cached_kv for inter in given.attn_intermediates or () if inter.layer_type == 'a']
        kind = 'it must be a list of pairs (k, v), (b, k, m, d) each, or the intermediates of a stack'
        if not isinstance(given, (tuple, list)):
            raise TypeError(f'`self_attn_additional_kv` got {format_value(given)}, {kind}')
        for pair in given:
            tensors = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(map(torch.is_tensor, pair))
            if not tensors or any(t.ndim != 4 for t in pair):
                raise ValueError(f'`self_attn_additional_kv` got an entry {format_value(pair)}, {kind}')
        return [tuple(pair) for pair in given]

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        pairs = getattr(call.ctx(self), 'pairs', {})
        pair = pairs.get(call.self_attended - 1) if layer.kind == 'a' else None
        if pair is None:
            return inputs
        mask = call.inputs.get('additional_kv_mask')
        return {**inputs, 'additional_key_values': pair, 'additional_key_value_mask': mask}
