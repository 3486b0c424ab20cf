"""One new token through a plain model, written out: what the stages of a decode step come to where no feature acts.

For a small model most of a step is the bookkeeping that features need. Where none of them acts, beside rotary and
absolute positions, norms and what builds a feedforward, a step is the few lines below, on the same cache and with the
same numbers. `PlainStep.of` says which models; all others, and every call with a mask, a context, hooks or padding,
take the ordinary way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers import cache as caches
from x_transformers.cache import Cache, LayerIntermediates
from x_transformers.core import buffers, model_calls
from x_transformers.core.buffers import Buffer, Derived, KeysValues
from x_transformers.core.model_calls import ModelCall
from x_transformers.fast.heard import hears_only, tell
from x_transformers.fast.packing import (
    FEW_ROWS,
    PackedGain,
    PackedLinear,
    PackedNorm,
    packable,
    packs_gain,
    products_are_torchs,
)
from x_transformers.fast.plain import (
    PlainAttention,
    PlainFeedForward,
    acting,
    are_plain,
    drops,
    glu,
    holds_known,
    is_plain,
    of_core,
    only_turn,
    part,
    side_by_side,
    snapshot,
)
from x_transformers.fast.untouched import is_known
from x_transformers.features import biases
from x_transformers.features.embeddings import EmbScale, PostEmbNorm, TokenEmbedding
from x_transformers.features.feedforward import GLU
from x_transformers.features.layouts import ParallelBlock
from x_transformers.features.norms import Identity
from x_transformers.features.positions import AbsolutePositionalEmbedding, no_positions
from x_transformers.features.rotary import RotaryLayers, RotaryPositions, for_one_pass
from x_transformers.flags.maybe import Maybe
from x_transformers.kernels.dense import eager, fused


class AttentionStep(PlainAttention):
    """x b d -> b d, one new token per row, with the past of the layer continued."""

    def __init__(self, layer: Any, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        attn, parts = self.branch, (self.to_q, self.to_k, self.to_v)
        packed = all(type(one) is PackedLinear for one in parts)
        joined = PackedLinear(attn.to_q, attn.to_k, attn.to_v) if packed else None
        self.project = joined or (lambda x: torch.cat([part(x) for part in parts], dim=-1))
        self.joint = (
            PackedGain(self.qk_norms, self.joint_gain) if packed and self.gained else lambda: self.joint_gain({})
        )
        self.widths = [sum(self.counts) * attn.shape.dim_head, attn.shape.kv_heads * attn.shape.dim_value]

    def continued(
        self, x: Tensor, y: Tensor, past: KeysValues, angles: Buffer | None, turns: Tensor | None, bias: Maybe[Tensor]
    ) -> tuple[Tensor, KeysValues]:
        b = x.shape[0]
        qk, v = self.project(y).split_with_sizes(self.widths, dim=-1)
        qk, v = qk.view(b, -1, 1, self.shape.dim_head), v.view(b, -1, 1, self.shape.dim_value)
        if self.gained:
            qk = self.normed(qk, self.joint())
        for ring in () if self.gained else self.rings:
            q, k, v = ring((*qk.split_with_sizes(self.counts, dim=1), v), None)
            qk = torch.cat((q, k), dim=1)
        if turns is not None and self.turns_all:
            qk = self.rotary.turned(qk, turns)
        q, k = qk.split_with_sizes(self.counts, dim=1)
        if turns is not None and not self.turns_all:
            q, k = self.rotary.turned(q, turns), self.rotary.turned(k, turns)
        past = past.append(k, v)
        past.states = {}
        if angles is not None:
            past.states['angles'] = angles
        out = self.attend(q, *past.pair, mask=bias)
        return self.join(self.to_out(out.reshape(b, -1)), x), past


LOOK_UP = F.embedding


class EmbeddingStep:
    """ids b 1 at a position, or one of each (b) -> b d: a row of each table, what stands behind, the projection."""

    def __init__(self, net: Any) -> None:
        self.table = None if net.pos_emb is no_positions else net.pos_emb
        self.net, self.scale = net, getattr(self.table, 'scale', None)
        self.times, norm = net.features.find(EmbScale), net.features.find(PostEmbNorm)
        behind = None if norm is None or type(norm.norm) is Identity else part(norm.norm)
        self.behind = (None, behind) if norm is not None and norm.late else (behind, None)
        plain = [
            type(m) is kind and not m.l2norm_embed and type(m.emb) is nn.Embedding and m.emb.max_norm is None
            for m, kind in ((net.token_emb, TokenEmbedding), (self.table, AbsolutePositionalEmbedding))
            if m is not None
        ]
        self.tables = [m.emb for m in (net.token_emb, self.table) if m is not None] if all(plain) else None

    def __call__(self, ids: Tensor, at: int | Tensor) -> Tensor:
        x, (early, late) = self.summed(ids, at), self.behind
        x = self.net.project_emb(x if early is None else early(x))
        return x if late is None else late(x)

    def summed(self, ids: Tensor, at: int | Tensor) -> Tensor:
        net, times, one = self.net, self.times, not torch.is_tensor(at)
        if self.tables is None or F.embedding is not LOOK_UP or not one or at >= net.max_seq_len > 0:  # who refuses it
            x = net.token_emb(ids)
            x = x if times is None else times.token_embeds(x, None)
            where = {'pos': at.unsqueeze(-1)} if torch.is_tensor(at) else {'offset': at}
            return (x if self.table is None else x + self.table(ids, **where)).squeeze(1)
        tokens, *places = (table._parameters['weight'] for table in self.tables)
        x = F.embedding(ids.squeeze(1).long(), tokens)
        x = x if times is None else times.token_embeds(x, None)
        return torch.add(x, places[0][at], alpha=self.scale) if places else x


class PlainStep:
    """ids b 1, cache -> logits b 1 l, and the cache continued.

    With `packs`, a number of steps to come, few rows are multiplied by copies of the weights: see `packing.py` for when
    that is right.
    """

    def __init__(self, net: Any, packs: int) -> None:
        stack = net.attn_layers
        self.net, self.packs = net, packs
        code = (Cache, Buffer, Derived, KeysValues, LayerIntermediates, ModelCall, caches, buffers, model_calls, biases)
        self.seen, self.code = snapshot(net, stack, (m for m in net.modules() if m is not net), code)
        self.layers = [stack.layers[index] for index in stack.layers_execute_order]
        self.steps: dict[int, tuple[list[Any], Any, Any]] = {}
        self.rotary, self.embed = stack.features.find(RotaryPositions), EmbeddingStep(net)
        own = stack.features.find(RotaryLayers)
        # by which of the sets of angles each attention turns; None for none
        first = None if self.rotary is None else 0
        self.turns = [first if own is None else own.set_of[one.index] for one in self.layers if one.kind == 'a']
        self.angles = [f'{at}.angles' if at else 'angles' for at in range(len(self.rotary.sets) if self.rotary else 0)]
        self.bias = getattr(stack, 'rel_pos', None)

    def parts(self, rows: int) -> tuple[list[Any], Any, Any]:
        """The layers, the final norm and the head, with packed weights where the rows are few."""
        packs = self.packs > 0 and rows in FEW_ROWS and products_are_torchs()
        layout = min(rows, 2) if packs else 0  # for none, one and some
        if layout not in self.steps:
            kinds, stack, head = {'a': AttentionStep, 'f': PlainFeedForward}, self.net.attn_layers, self.net.to_logits
            packed = packable(self.net.modules(), rows, self.packs) if layout else set()

            def own(module: Any) -> Any:
                if layout and packs_gain(module):
                    return PackedNorm(module)
                if type(module) is GLU:
                    return glu(module, own)
                return PackedLinear(module) if module in packed else part(module)

            steps = [kinds[layer.kind](layer, own) for layer in self.layers]
            side_by_side(steps, stack.features.find(ParallelBlock))
            self.steps[layout] = steps, own(stack.final_norm), own(head) if type(head) is nn.Linear else None
        return self.steps[layout]

    @classmethod
    def of(cls, net: Any, inputs: dict[str, Any], packs: int = 0) -> PlainStep | None:
        """The step of a net called with further inputs, if it is plain."""
        if any(value is not None for value in inputs.values()) or not cls.fits(net):
            return None
        step = cls(net, packs)
        return step if step.is_current() else None

    @staticmethod
    def fits(net: Any) -> bool:
        if not of_core(net, 'TransformerWrapper') or not hasattr(net.attn_layers, 'layers_execute_order'):
            return False
        stack = net.attn_layers
        if type(net.emb_dropout) is not nn.Dropout or (drops(net) and not net.training):
            return False
        if not (are_plain(acting(net)) and holds_known(net) and is_known(stack) and is_plain(stack)):
            return False
        acts = stack.features.acting({})
        if not only_turn(acts.at.get('inputs', ())):  # layers that hear of one another
            return False
        if any(feature.follows_length for feature in acts.active):
            return False
        attention = [layer[1] for layer in stack.layers if layer.kind == 'a']
        known = all(a.can_cache_kv and a.causal and a.kernel in (fused, eager) for a in attention)
        return known and stack.causal and net.to_logits is not None and not net.return_only_embed

    def is_current(self) -> bool:
        """Whether nothing was changed since the step was made, but what parameters hold."""
        return self.code.holds() and self.seen.holds()

    def takes(self, ids: Tensor, cache: Cache) -> bool:
        """Whether this step can go on from there. Hooks want to see modules called."""
        if ids.shape[0] == 0 or ids.shape[1] != 1 or torch.compiler.is_compiling():
            return False
        if cache.leading or cache.model_states or any(past is not None and past.gone for past in cache.layers):
            return False
        known = {'positions', *self.angles} if self.rotary is not None else set()
        if cache.states.keys() != known or not all(past is not None for past in cache.layers):
            return False
        if len(cache.layers) != len(self.turns):
            return False
        pasts: Any = cache.layers
        if any((past.changed_by is None) != (at is None) for past, at in zip(pasts, self.turns, strict=True)):
            return False
        return hears_only(self.net) and not (self.seen.is_hooked() or self.net.training)

    def read(self, ids: Tensor, cache: Cache, inputs: dict[str, Any]) -> tuple[Any, Cache]:
        """A step, of which the hooks of the net hear as if it had been called with these inputs."""
        out, new = self(ids, cache)
        if not self.net._forward_hooks:
            return out, new
        return tell(self.net, ids, out, new, lambda: self.net.forward(ids, return_intermediates=True, **inputs)[1])

    def __call__(self, ids: Tensor, cache: Cache) -> tuple[Any, Cache]:
        layers, norm, head = self.parts(ids.shape[0])
        with torch.inference_mode():  # each small operation takes a little less
            x, cache = self.run(ids, cache, layers)
            x = x if norm is None else norm(x)
        return self.read_out(x, head), cache

    def read_out(self, x: Tensor, head: Any) -> Any:
        """Logits (b 1 l) of hidden states (b d), a tuple of several heads."""
        on = self.net.features
        x = on.chain('spread', x, None)
        logits = self.net.to_logits(x.unsqueeze(1)) if head is None else head(x).unsqueeze(1)
        if 'logits' not in on.at:
            return logits
        each = functools.partial(on.chain, 'logits')
        return tuple(each(one, None) for one in logits) if isinstance(logits, tuple) else each(logits, None)

    @staticmethod
    def through(x: Tensor, layers: list[Any], attend: Callable[[AttentionStep, Tensor, Tensor], Tensor]) -> Tensor:
        """The stream (b d) behind all layers, of which `attend` runs those of attention."""
        stream = y = x
        for layer in layers:
            if layer.opens:
                stream = x
            if not layer.borrows:
                y = layer.read(stream)
            x = attend(layer, x, y) if type(layer) is AttentionStep else layer(x, y)
        return x

    def run(self, ids: Tensor, cache: Cache, layers: list[Any]) -> tuple[Tensor, Cache]:
        """Hidden states (b d) of the new tokens."""
        x, pasts = self.embed(ids, cache.seen), []
        states: dict[Any, Any] = {}
        sets: dict[Any, Any] = {None: (None, None)}
        before: Any = cache.states
        if self.rotary is not None:
            positions = before['positions'].tensor[:, -1:, 0] + 1
            states = {'positions': before['positions'].append(positions.unsqueeze(-1))}
            for at, turns in enumerate(self.rotary.angles_of(positions)[0]):
                states[self.angles[at]] = before[self.angles[at]].append(turns)
                sets[at] = states[self.angles[at]], for_one_pass(turns)
        bias = None if self.bias is None else self.bias(1, cache.length + 1).unsqueeze(0).to(x.dtype)

        layers_held: Any = cache.layers

        def attend(layer: AttentionStep, x: Tensor, y: Tensor) -> Tensor:
            at = len(pasts)
            x, past = layer.continued(x, y, layers_held[at], *sets[self.turns[at]], bias=bias)
            pasts.append(past)
            return x

        x = self.through(x, layers, attend)
        return x, Cache(pasts, list(cache.kinds), states, cache.seen + 1, made_by=cache.made_by)
