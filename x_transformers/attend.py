"""The attention operator: kernels behind one signature, with one result.

    eager     the plain formula, with a place for every feature that changes scores or weights; the definition of truth
    fused     torch's scaled_dot_product_attention, for additive terms and masks only

Both run on all rows of the queries at once, or where the scores would be many in blocks (`blocks.py`), with the same
result; on a GPU torch's FlexAttention may take the place of blocks (`flex.py`).

What belongs here: the kernels, the choice between them, and what a call of the operator leaves behind. A kernel gets
q (b h i d), k and v (b k j d) with k dividing h, the `Call` (bias, mask, triangle, scale) and the features of the
layer. Query head h reads key head h mod k. A row without any visible key gives zeros, on every kernel.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from x_transformers.again import COPIED, MAPS, Kept, Surroundings, hosts_of
from x_transformers.aux_losses import Unheard
from x_transformers.blocks import additive, by_rows, can_add
from x_transformers.cache import KeysValues
from x_transformers.derivatives import differentiable_sdpa
from x_transformers.elsewhere import also
from x_transformers.helpers import default_device, pack_one, unpack_one
from x_transformers.hooks import is_hooked

if TYPE_CHECKING:
    from x_transformers.calls import Call
    from x_transformers.flags import Feature, Features

# a feature at one of these stages sees what the fused kernel never forms
EAGER_STAGES = (
    'similarity', 'prior', 'scores', 'logits', 'sight', 'rows', 'normaliser', 'normalising', 'weights', 'mix'
)  # fmt: skip


PROJECTIONS = ('to_q', 'to_k', 'to_v', 'to_out')


def lowest(t: Tensor) -> float:
    """The most negative finite number of a tensor's dtype."""
    return torch.finfo(t.dtype).min


def softmax(sim: Tensor, call: Call | None = None) -> Tensor:
    """Softmax over keys, in float32 if the logits are in half precision."""
    half = sim.dtype in (torch.float16, torch.bfloat16)
    return sim.softmax(dim=-1, dtype=torch.float32 if half else sim.dtype)


def heads_of(t: Tensor, width: int) -> Tensor:
    """Split the last axis into heads of a width:  b n (h d) -> b h n d."""
    return t.view(*t.shape[:2], t.shape[-1] // width, width).transpose(1, 2)


def tile_heads(t: Tensor, heads: int) -> Tensor:
    """Repeat key heads so that query head h finds key head h mod k:  b k j d -> b h j d."""
    if t.shape[1] == heads:
        return t
    return t.expand(-1, heads, -1, -1) if t.shape[1] == 1 else t.repeat(1, heads // t.shape[1], 1, 1)


def dot_product(q: Tensor, k: Tensor, call: Call) -> Tensor:
    """Scaled similarities:  b h i d, b k j d -> b h i j."""
    return (q * call.scale) @ tile_heads(k, q.shape[1]).transpose(-1, -2)


# eager


def attention_maps(q: Tensor, k: Tensor, call: Call, on: Features) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities, logits and weights of one call, each b h i j; the features may add columns in front."""
    sim = similarities = sum(on.gather('prior', call), on.choose('similarity', dot_product)(q, k, call))
    sim = on.down('scores', sim, call)
    if call.bias is not None:
        sim = sim + call.bias.to(sim.dtype)
    sim = on.down('logits', sim, call)
    seen = on.choose('sight', lambda call: call.seen())(call)
    if seen is not None:
        sim = sim.masked_fill(~seen, lowest(sim))
    sim = on.down('rows', sim, call)
    normalise = on.down('normalising', on.choose('normaliser', softmax))
    attn = on.up('weights', normalise(sim, call).to(q.dtype), call)
    if call.may_be_blind:
        attn = attn.masked_fill(call.blind(), 0.0)
    return similarities, sim, attn


unread: ContextVar[bool] = ContextVar('unread', default=False)


@contextmanager
def without_maps() -> Iterator[None]:
    """Passes inside keep nothing to compute maps from, for callers who know that nobody reads them."""
    token = unread.set(True)
    try:
        yield
    finally:
        unread.reset(token)


def wants_maps(module: nn.Module, call: Call) -> bool:
    """Whether somebody may read the maps of a call."""
    return is_hooked(module) or (call.keeps and (torch.compiler.is_compiling() or not unread.get()))


def maps_later(q: Tensor, k: Tensor, call: Call, on: Features) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """A function that gives the maps of a call whenever it is asked: with the parameters, masks, mode, precision and
    gradients of the call. Parameters of few numbers are copied; a change of others in place is refused."""
    if torch.compiler.is_compiling():
        return lambda: attention_maps(q, k, call.gather(), on)
    own = copy.copy(call)
    own.trace = None  # no circle, which would keep queries and keys alive
    kept = None
    if not on.at.keys().isdisjoint(EAGER_STAGES):
        hosts = hosts_of(on)
        # no stage of scores computes with these
        found = (getattr(host, name, None) for host in hosts for name in PROJECTIONS)
        projections = [module for module in found if isinstance(module, nn.Linear)]
        kept = Kept(*hosts, without=projections, copied=COPIED, needed_by=MAPS)
    reads = [(t, t._version) for t in own.reads() if not t.is_inference()] if torch.is_grad_enabled() else []
    surroundings = Surroundings(q.device.type)

    def compute() -> tuple[Tensor, Tensor, Tensor]:
        if any(t._version != version for t, version in reads):
            raise RuntimeError(f'a mask, bias or other input of the call was changed in place after it: {MAPS}')
        with surroundings, own.precision():
            return attention_maps(q, k, copy.copy(own).gather(), on if kept is None else kept.now(on))

    return compute


def eager(q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
    """Attention by its formula, every stage open to the features."""
    maps = attention_maps(q, k, call, on)
    call.keep_maps(maps)
    attn = on.up('mix', maps[-1], call)
    out = attn @ tile_heads(v, attn.shape[1])
    if call.may_be_blind and on.at.get('mix'):  # where heads mix, a blind row may have got weights from another head
        out = out.masked_fill(call.blind(), 0.0)
    return out


def at_work(call: Call, on: Features, stages: Sequence[str] = EAGER_STAGES) -> list[Feature]:
    """The features that act at these stages, in running order, once for each."""
    found = [f for stage in stages for f in on.at.get(stage, ())]
    return [f for f in found if f.flags or not f.takes or any(call.inputs.get(name) is not None for name in f.takes)]


def eager_by_rows(q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
    """The same in blocks. Every feature at work must be `row_wise`."""
    acting = at_work(call, on)
    whole_rows, carries = any(f.counts_hidden for f in acting), any(f.carries for f in acting)
    return by_rows(eager, q, k, v, call, on, whole_rows, carries)


# fused


def fused(q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
    """Attention by torch's fused kernel. No n x n mask is formed for a plain triangle."""
    if call.bias is None and call.mask is None and triangle_fits(call):
        return grouped_sdpa(q, k, v, None, call, is_causal=call.triangle)
    seen = call.seen()
    if seen is None:
        return grouped_sdpa(q, k, v, call.bias.to(q.dtype), call)
    sighted = seen.any(dim=-1, keepdim=True) if call.may_be_blind else None
    if sighted is not None:
        seen = seen | ~sighted  # a blind row looks everywhere, for finite gradients, and is zeroed below
    mask = seen if call.bias is None else call.bias.to(q.dtype).masked_fill(~seen, lowest(q) / 2)
    out = grouped_sdpa(q, k, v, mask, call)
    return out if sighted is None else out.masked_fill(~sighted, 0.0)


def fused_by_rows(q: Tensor, k: Tensor, v: Tensor, call: Call, on: Features) -> Tensor:
    """The same without scores, masks or biases of all rows: in one piece where torch's kernel can, else in blocks."""
    # torch has one kernel for the CPU that forms no scores, without dropout
    flash = call.dropout == 0 and (call.backends is None or 'FLASH_ATTENTION' in call.backends)
    if is_plain(call) and (flash or q.device.type != 'cpu'):
        return folded(q, k, v, call)
    if can_add(q, k, v, call):
        return additive(q, tile_heads(k, q.shape[1]), tile_heads(v, q.shape[1]), call)
    return by_rows(fused, q, k, v, call, on)


def is_plain(call: Call) -> bool:
    """Whether whole keys are hidden, by the triangle or for all queries, and nothing is added to scores."""
    return not call.biases and triangle_fits(call) and all(mask.of_keys for mask in call.masks)


def triangle_fits(call: Call) -> bool:
    """Whether the triangle, if there is one, is that of torch's kernels: of as many queries as keys."""
    return not call.triangle or call.rows == call.keys == call.total_keys


def folded(q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
    """Attention where only whole keys are hidden, and by the triangle: one more feature, 1 of each query, makes the
    logits of hidden keys so low that they weigh nothing."""
    width = v.shape[-1]
    visible = call.gather().mask
    if visible is not None:
        lowered = torch.zeros_like(k[:, :1, :, :1]).masked_fill(~visible.mT, max(lowest(k) / 2, -1e30))
        q = torch.cat((q, torch.ones_like(q[..., :1])), dim=-1)
        k = torch.cat((k, lowered.expand(-1, k.shape[1], -1, -1)), dim=-1)
    if q.device.type == 'cpu' and q.shape[-1] != width:  # its kernel wants one width
        most = max(q.shape[-1], width)
        q, k, v = (F.pad(t, (0, most - t.shape[-1])) for t in (q, k, v))
    out = grouped_sdpa(q, k, v, None, call, is_causal=call.triangle)[..., :width]
    if visible is None or not call.may_be_blind:
        return out
    sighted = visible.cumsum(dim=-1).mT > 0 if call.triangle else visible.any(dim=-1, keepdim=True)
    return out.masked_fill(~sighted, 0.0)


def grouped_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call, is_causal: bool = False) -> Tensor:
    """SDPA with fewer key than query heads. A single query per head folds its group into the rows instead of
    copying the keys."""
    heads, kv_heads, rows = q.shape[1], k.shape[1], q.shape[-2]
    options: dict[str, Any] = dict(dropout_p=call.dropout, scale=call.scale)
    if kv_heads == v.shape[1] < heads and rows == 1 and (mask is None or mask.shape[1] == 1):
        folded = q.unflatten(1, (heads // kv_heads, kv_heads)).squeeze(-2).transpose(1, 2)
        out = sdpa(call, folded, k, v, attn_mask=mask, **options)
        return out.transpose(1, 2).flatten(1, 2).unsqueeze(-2)
    if mask is not None:
        mask = mask.expand(-1, -1, rows, -1)
    k, v = tile_heads(k, heads), tile_heads(v, heads)
    return sdpa(call, q, k, v, attn_mask=mask, is_causal=is_causal, **options)


def sdpa(call: Call, *qkv: Tensor, **options: Any) -> Tensor:
    """Torch's kernel, chosen among the backends that the layer allows."""
    if call.backends is None:
        return differentiable_sdpa(*qkv, **options)
    with sdpa_kernel([getattr(SDPBackend, name) for name in call.backends]):
        return differentiable_sdpa(*qkv, **options)


# what a call leaves behind


def log_prob_from_hard_attend(intermeds: Intermediates) -> Tensor:
    """The log probability, under the softmax, of the key that each query chose:  b h i."""
    chosen = intermeds.post_softmax_attn.argmax(dim=-1, keepdim=True)
    return intermeds.pre_softmax_attn.log_softmax(dim=-1).gather(-1, chosen).squeeze(-1)


class Intermediates:
    """What one attention call leaves behind.

    The maps are computed when they are first read, from the queries and keys that were kept, so that asking for the
    cache costs nothing.

        qk_similarities     b h i j    scaled similarities, before biases and masks
        pre_softmax_attn    b h i j    the logits that enter the softmax; hidden ones hold the lowest finite number
        post_softmax_attn   b h i j    the weights, before dropout
        values              b k j d    values as projected
        cached_kv           (b k n d, b k n d)    keys (not yet rotated) and values of all tokens so far
        layer_type          'a' or 'c', and the index of the layer in its stack, `layer_index`
    """

    def __init__(
        self,
        qk_similarities: Tensor | None = None,
        pre_softmax_attn: Tensor | None = None,
        post_softmax_attn: Tensor | None = None,
        values: Tensor | None = None,
        cached_kv: tuple[Tensor, Tensor] | KeysValues | None = None,
        layer_type: str | None = None,
        hybrid_hidden: Any = None,
        log_probs: Tensor | None = None,
        *,
        compute_maps: Callable[[], tuple[Tensor, Tensor, Tensor]] | None = None,
    ) -> None:
        self.compute_maps = compute_maps
        self.maps = [qk_similarities, pre_softmax_attn, post_softmax_attn]
        self.values, self.layer_type, self.layer_index = values, layer_type, None
        self.hybrid_hidden, self.log_probs = hybrid_hidden, log_probs
        self.past = KeysValues.of(cached_kv)

    def map(self, index: int) -> Tensor | None:
        if self.maps[index] is None and self.compute_maps is not None:
            with Unheard():
                computed = self.compute_maps()
            self.maps = [given if given is not None else map for given, map in zip(self.maps, computed, strict=True)]
            self.compute_maps = None
        return self.maps[index]

    def set_map(self, index: int, value: Tensor | None) -> None:
        self.maps = [value if i == index else map for i, map in enumerate(self.maps)]

    qk_similarities = property(lambda self: self.map(0), lambda self, value: self.set_map(0, value))
    pre_softmax_attn = property(lambda self: self.map(1), lambda self, value: self.set_map(1, value))
    post_softmax_attn = property(lambda self: self.map(2), lambda self, value: self.set_map(2, value))

    @property
    def cached_kv(self) -> tuple[Tensor, Tensor] | None:
        if self.past is None:
            return None
        self.past = self.past.plain()  # kept so, since what is read here may be edited in place
        return self.past.pair

    @cached_kv.setter
    def cached_kv(self, pair: tuple[Tensor, Tensor] | None) -> None:
        states = {} if self.past is None else self.past.plain().states
        self.past = KeysValues.of(pair)
        if self.past is not None:  # of another length, they no longer fit, and the layer says so when it needs them
            self.past.states = {n: state for n, state in states.items() if state.length == self.past.length}

    def __copy__(self) -> Intermediates:
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: the maps themselves, since what computes them holds the layer."""
        known = self.maps
        self.map(0)
        maps = known if self.maps is known else [None if t is None else t.detach() for t in self.maps]
        return self.__dict__ | {'maps': [*maps], 'compute_maps': None}

    def to_tuple(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.qk_similarities, self.pre_softmax_attn, self.post_softmax_attn


__getattr__, __dir__ = also(__name__)
