"""Memorizing Transformer: layers that retrieve keys and values of earlier segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_device, check_list, check_tensor
from x_transformers.core.modes import disable_autocast, to_float
from x_transformers.core.own_modules import known_stack
from x_transformers.features.levels import AttentionFeature, ModelFeature, StackFeature
from x_transformers.features.memory.kept import real_rows
from x_transformers.features.norms import l2norm
from x_transformers.flags import (
    Check,
    ConfigError,
    Input,
    OfContext,
    PerToken,
    flag,
    format_value,
    is_int,
    none,
    number,
    one_of,
    size,
)
from x_transformers.flags.checks import a_switch, get_tensor

# keys of a part
PART = 1024


def nearest(q: Tensor, k: Tensor, seen: Tensor, count: int) -> Tensor:
    """Return which keys have the largest products with each query, among those seen.

    q         b k m e
    k         b k j e
    seen      b j      the others come last
    count              how many
    returns   b k m min(count, j)
    """
    q, count = to_float(q), min(count, k.shape[2])
    best, at = q.new_empty(*q.shape[:3], 0), seen.new_empty(*q.shape[:3], 0, dtype=torch.long)
    for start in range(0, k.shape[2], PART):
        own = slice(start, min(start + PART, k.shape[2]))
        scores = q @ to_float(k[:, :, own]).mT
        scores = scores.masked_fill(~seen[:, None, None, own], -torch.inf)
        found = scores.topk(min(count, scores.shape[-1]), dim=-1)
        best, at = torch.cat((best, found.values), dim=-1), torch.cat((at, found.indices + start), dim=-1)
        if best.shape[-1] > count:
            best, order = best.topk(count, dim=-1)
            at = at.gather(-1, order)
    return at


def nearest_of_coarse(q: Tensor, k: Tensor, seen: Tensor, count: int, projection: Tensor, wide: int = 4) -> Tensor:
    """Return the nearest of the `wide * count` best keys in the channels of a `projection` (e, r), by r / e of the
    work. Some of the best may be missing."""
    narrow = to_float(q) @ projection.to(to_float(q).dtype), to_float(k) @ projection.to(to_float(q).dtype)
    at = nearest(*narrow, seen, wide * count)
    scores = (to_float(taken_for_each(k, at)) @ to_float(q).unsqueeze(-1)).squeeze(-1)
    known = seen[:, None, None].expand(*at.shape[:3], -1).gather(-1, at)
    order = scores.masked_fill(~known, -torch.inf).topk(min(count, at.shape[-1]), dim=-1).indices
    return at.gather(-1, order)


def taken_for_each(t: Tensor, at: Tensor) -> Tensor:
    """Rows of a store (b k j e) for each query, by their numbers (b k m n):  b k m n e."""
    index = at.flatten(2).unsqueeze(-1).expand(-1, -1, -1, t.shape[-1])
    return t.gather(2, index).unflatten(2, at.shape[2:])


Heads = tuple[Tensor, Tensor, Tensor]
# keys b k j e and values b k j d, the newest last, and how many of them are real in each row (b): the last ones
Store = Sequence[Tensor]

NOT_SUMMED = 'it retrieves keys for a softmax'
is_settings = Check(
    'what the stack says: (keys that a query gets, initial gate, search)',
    lambda value: isinstance(value, (tuple, list)) and len(value) == 3,
    'Sequence[Any]',
)
are_layers = Check(
    'a tuple of numbers of layers, at least 0',
    lambda value: isinstance(value, (tuple, list)) and all(is_int(number) and number >= 0 for number in value),
    'Sequence[int]',
)


class KNNMemory(AttentionFeature):
    """Attention also to the best matching keys of earlier segments; a gate mixes both results.

        q, k <- q / |q| t, k / |k|       t = exp(knn_scale), per head, initialized with sqrt(e)
        near = attention(q, k, v)        ordinary attention, with positions
        far = softmax(q k_far) v_far     the K best keys in the store of the batch entry, without positions
        out = g far + (1 - g) near       g = sigmoid(knn_gate), per head; near if the store is empty

    Stores have no gradient, and do not change within a segment: its own tokens are added at its end. The cache holds
    the store, and the keys and values of the segment.
    """

    paper = 'Memorizing Transformers, arXiv:2203.08913'
    knn_mem = flag(
        None,
        'settings (top k, initial gate, search), set by `knn_mem_layers` of the stack',
        is_settings | none,
        example=(2, 0.5, 'exact'),
    )
    call_inputs = {
        'knn_store': Input('(k b h m e, v b h m e, count b), of earlier segments'),
        'knn_reset': Input('b, True to clear the store'),
    }
    stored_as = {'gate': 'knn_gate', 'scale': 'knn_scale'}
    states = {'knn': OfContext(), 'knn keys': PerToken(), 'knn values': PerToken()}
    refuses = {
        'documents': 'keys of several documents would be stored together',
        'some tokens': 'the keys of all tokens are stored',
        'cross-attention': 'it stores keys of the sequence itself',
    }
    sets_on_module = ('logit_scale',)
    per_head = True
    clashes = {
        **dict.fromkeys(
            ('qk_norm', 'qk_rmsnorm', 'qk_head_norm', 'k_rmsnorm'), 'queries and keys are already normalized'
        ),
        **dict.fromkeys(('kernel', 'aft', 'linformer_k', 'cluster'), NOT_SUMMED),
        'collab_heads': 'keys are stored per head, but all heads share one key projection',
        'l2_distance': 'keys are retrieved by dot products',
        'use_latent_kv': 'it stores keys and values, not latents',
        **dict.fromkeys(('latent_rope_subheads', 'dim_latent_rope'), 'some of its key channels are rotated'),
    }

    def setup(self, owner: Any) -> None:
        if not owner.causal:
            raise ConfigError('`knn_mem_layers` needs `causal`: the stored tokens are earlier ones')
        self.topk, gate, self.search = self.knn_mem
        heads = owner.query_heads
        self.gate = nn.Parameter(torch.full((heads,), float(gate)))
        self.scale = nn.Parameter(torch.full((heads,), 0.5 * math.log(owner.dim_key)))
        owner.logit_scale = 1.0
        if self.search == 'coarse':
            # a quarter of the dimensions of a random rotation, the same for all models
            width, seeded = owner.dim_key, torch.Generator().manual_seed(0)
            drawn = torch.randn(width, width, generator=seeded, dtype=torch.float64, device='cpu')
            self.knn_projection = torch.linalg.qr(drawn).Q[:, : max(width // 4, 1)].float()

    # in a call

    def qkv_heads(self, qkv: Heads, call: Any) -> Heads:
        q, k, v = qkv
        q, k = l2norm(q) * self.scale.exp()[:, None, None].to(q.dtype), l2norm(k)
        call.ctx(self).queries, call.ctx(self).like = q, (k, v)
        if call.keeps or call.past is not None:
            call.state('knn keys').append(k.detach())
            call.state('knn values').append(v.detach())
        return q, k, v

    def extra_keys(self, k: Tensor, call: Any) -> Tensor:
        return l2norm(k)

    def head_outputs(self, out: Tensor, call: Any) -> Tensor:
        k, v, count = self.store(call)
        if call.keeps or call.past is not None:
            call.state('knn').keep([k, v, count])
        if k.shape[2] == 0:
            return out
        far = self.looked_up(call.ctx(self).queries, k, v, count).to(out.dtype)
        gate = self.gate.sigmoid()[:, None, None].to(out.dtype)
        return torch.where((count > 0)[:, None, None, None], gate * far + (1 - gate) * out, out)

    def store(self, call: Any) -> Store:
        """Return the store that is given, or that of the cache, without the sequences that forget."""
        given, (k, v) = call.inputs.get('knn_store'), call.ctx(self).like
        if given is not None:
            check_store(given, k, v)
            store = [t.detach() for t in given]
        else:
            store = None if call.past is None else call.state('knn').value
        if store is None:
            store = [k[:, :, :0].detach(), v[:, :, :0].detach(), torch.zeros(k.shape[0], device=k.device).long()]
        reset = call.inputs.get('knn_reset')
        if reset is None:
            return store
        reset = as_mask(reset.unsqueeze(-1), 'knn_reset', k.shape[0], 1, like=k).squeeze(-1)
        return [store[0], store[1], store[2].masked_fill(reset, 0)]

    def looked_up(self, q: Tensor, k: Tensor, v: Tensor, count: Tensor) -> Tensor:
        """Return the attention of queries (b, h, i, e) to a store, (b, h, i, d)."""
        heads, groups = k.shape[1], q.shape[1] // k.shape[1]
        q = rearrange(q, 'b (g k) i e -> b k (g i) e', k=heads)  # query head h reads key head h mod k
        seen = torch.arange(k.shape[2], device=k.device) >= k.shape[2] - count.unsqueeze(-1)
        with disable_autocast(q):
            with torch.no_grad():
                if self.search == 'coarse':
                    at = nearest_of_coarse(q, k, seen, self.topk, self.knn_projection)
                else:
                    at = nearest(q, k, seen, self.topk)
            known = seen[:, None, None].expand(*at.shape[:3], -1).gather(-1, at)
            scores = (to_float(taken_for_each(k, at)) @ to_float(q).unsqueeze(-1)).squeeze(-1)
            known = known | (count == 0)[:, None, None, None]  # of nothing there is nothing, but no NaN
            weights = scores.masked_fill(~known, -torch.inf).softmax(dim=-1)
            found = (weights.unsqueeze(-2) @ to_float(taken_for_each(v, at))).squeeze(-2)
        return rearrange(found, 'b k (g i) d -> b (g k) i d', g=groups)


def check_store(store: Any, k: Tensor, v: Tensor) -> None:
    """Refuse a store of other sizes than the layer's."""
    if not isinstance(store, (list, tuple)) or len(store) != 3:
        raise ValueError(f'`knn_mems` got {format_value(store)}, each must be keys, values and how many are real')
    for t, like, name in ((store[0], k, 'keys'), (store[1], v, 'values')):
        m = store[0].shape[2] if torch.is_tensor(store[0]) and store[0].ndim == 4 else 'm'
        wanted = (*like.shape[:2], m, like.shape[3])
        if not torch.is_tensor(t) or tuple(t.shape) != wanted:
            got = tuple(t.shape) if torch.is_tensor(t) else format_value(t)
            raise ValueError(f'`knn_mems` must be {wanted}, as of the layer and this batch, got {name} {got}')
        check_device(t, 'knn_mems', like)
    count = check_tensor(store[2], 'knn_mems')
    if count.is_floating_point() or count.shape != k.shape[:1]:
        raise ValueError(f'`knn_mems` must be whole numbers, ({k.shape[0]},), got counts of shape {tuple(count.shape)}')
    check_device(count, 'knn_mems', k)


class KNNMemoryLayers(StackFeature):
    """kNN memory: some self-attention layers store their keys and values, and retrieve those of earlier segments.

    Each batch entry has a separate store in each of these layers, with the last `knn_mem_size` tokens. Stores are part
    of the cache, and can be passed to later calls as `knn_mems`.
    """

    paper = KNNMemory.paper
    knn_mem_layers = flag((), 'self-attention layers with a kNN memory, counted from 0', are_layers, example=(1,))
    knn_mem_size = flag(65536, 'number of stored tokens per batch entry', size, example=6)
    knn_mem_topk = flag(32, 'number of stored tokens that each query retrieves, per head', size, example=3)
    knn_mem_gate_init = flag(0.0, 'initial gate, a logit; -4 to add memory to a pretrained model', number, example=1.0)
    knn_mem_search = flag(
        'exact',
        "search: 'exact', or 'coarse', which first compares only some channels and may miss some keys",
        one_of('exact', 'coarse'),
        example='coarse',
    )
    call_inputs = {
        'knn_mems': Input('stores of earlier segments, one for each run of such a layer'),
        'knn_reset': Input('b, True to clear the store', get_tensor('b')),
    }
    refuses = {'documents': KNNMemory.refuses['documents'], 'some tokens': 'the keys of all tokens are stored'}
    clashes = {'reversible': 'it cannot recompute the stores', 'layer_dropout': 'a skipped layer stores nothing'}

    def setup(self, owner: Any) -> None:
        layers, which = owner.layer_types.count('a'), self.knn_mem_layers
        if not owner.causal:
            raise ConfigError('`knn_mem_layers` needs a causal stack: the stored tokens are earlier ones')
        if max(which) >= layers or len(set(which)) < len(which):
            raise ConfigError(
                f'`knn_mem_layers` must be different numbers below the {layers} '
                f'layers of self-attention, got {format_value(which)}'
            )
        attention = [at for at, kind in enumerate(owner.layer_types) if kind == 'a']
        self.at = {attention[number] for number in which}

    def branch_flags(self, flags: dict[str, Any], kind: str, number: int) -> dict[str, Any]:
        if kind != 'a' or number not in self.knn_mem_layers:
            return flags
        return {**flags, 'knn_mem': (self.knn_mem_topk, self.knn_mem_gate_init, self.knn_mem_search)}

    def steps(self, call: Any) -> list[int]:
        """The steps at which such layers run."""
        return [step for step, at in enumerate(call.order) if at in self.at]

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        given, runs = call.inputs.get('knn_mems'), self.steps(call)
        if given is not None:
            check_list(given, 'knn_mems')
        if given and len(given) != len(runs):
            raise ValueError(f'`knn_mems` must have one for each of {len(runs)} runs, got {len(given)} stores')
        return x

    def inputs(self, inputs: dict[str, Any], layer: Any, call: Any) -> dict[str, Any]:
        if layer.kind != 'a' or layer.index not in self.at:
            return inputs
        given, reset = call.inputs.get('knn_mems'), call.inputs.get('knn_reset')
        store = given[self.steps(call).index(call.step)] if given else None
        own = {'knn_store': store, 'knn_reset': reset}
        return {**inputs, **{name: value for name, value in own.items() if value is not None}}


class KNNMemoryOfModel(ModelFeature):
    """Return the stores of the layers, with the tokens of the current segment."""

    paper = KNNMemory.paper
    call_inputs = {'return_knn_mems': Input('True to return (output, knn_mems)', a_switch)}
    by_token = True  # but where it is asked for by hand

    def embedded(self, x: Tensor, call: Any) -> Tensor:
        if call.inputs.get('return_knn_mems'):
            if self.layers is None:
                raise ValueError('`return_knn_mems` needs `knn_mem_layers`: no layer stores anything')
            call.keeps = 'all'
        return x

    def model_output(self, out: Any, x: Tensor, call: Any) -> Any:
        if not call.inputs.get('return_knn_mems'):
            return out
        return out, self.stored(call.intermediates, call.inputs.get('seq_start_pos'))

    def next_segment_inputs(self, trace: Any) -> dict[str, Any] | None:
        return None if self.layers is None else {'knn_mems': self.stored(trace), 'knn_reset': None}

    @property
    def layers(self) -> Any:
        return known_stack(self.owner.attn_layers).features.find(KNNMemoryLayers)

    def stored(self, trace: Any, start: Tensor | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Each store with the keys and values of the segment behind."""
        found = []
        for own in (one.states for one in trace.attn_intermediates if 'knn keys' in one.states):
            k, v = own['knn keys'].tensor, own['knn values'].tensor
            token_mask = real_rows(trace.model_states, start, k.shape[2])
            found.append(append_entries(own['knn'].value, k, v, token_mask, self.layers.knn_mem_size))
        return found


def append_entries(
    store: Store, k: Tensor, v: Tensor, token_mask: Tensor | None, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A store with new keys and values behind, the real ones, of which the last ones stay."""
    keys, values = (torch.cat((old, new.to(old.dtype)), dim=2) for old, new in zip(store[:2], (k, v), strict=True))
    held, count = store[0].shape[2], store[2]
    if token_mask is None:
        count = count + k.shape[2]
    else:
        begun = torch.arange(held, device=k.device) >= held - count.unsqueeze(-1)
        order = torch.cat((begun, token_mask), dim=1).to(torch.uint8).argsort(dim=-1, stable=True)[:, None, :, None]
        keys, values = (t.gather(2, order.expand(-1, t.shape[1], -1, t.shape[3])) for t in (keys, values))
        count = count + token_mask.sum(dim=-1)
    left = max(keys.shape[2] - most, 0)
    return keys[:, :, left:].detach(), values[:, :, left:].detach(), count.clamp(max=most)
