"""One new token through a plain model, written out: what the stages of a decode step come to where no feature acts.

For a small model most of a step is the bookkeeping that features need. Where none of them acts, beside rotary and
absolute positions, norms and what builds a feedforward, a step is the few lines below, on the same cache and with the
same numbers. `PlainStep.of` says which models; all others, and every call with a mask, a context, hooks or padding,
take the ordinary way.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from x_transformers.attend import grouped_sdpa
from x_transformers.cache import Buffer, Cache, KeysValues
from x_transformers.features.embeddings import AbsolutePositions
from x_transformers.features.norms import LayerNorm
from x_transformers.features.positions import Rotary, RotaryPositions
from x_transformers.features.residuals import Residual
from x_transformers.flags import Features
from x_transformers.packing import JoinedLinear, Packed, PackedLinear

# choices that are made when a module is built
BUILT = {'norm', 'norm_branch', 'residual', 'order', 'layout', 'readout', 'project_out'}


def is_quiet(features: Features, *understood: type) -> bool:
    """Whether no feature acts in a call without further inputs, apart from those understood here."""
    for feature in features.given({}).active:
        at = {stage for stage in feature.runs_at() if feature.stages[stage] != 'build'}
        if not (at <= BUILT or feature.fuses or isinstance(feature, understood)):
            return False
    return True


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested sequences, in order, without dropout, which does nothing here."""
    for child in module:
        if type(child) is nn.Sequential:
            yield from leaves(child)
        elif not isinstance(child, nn.Dropout):
            yield child


class NormStep:
    """A layer norm whose gain is computed once, and again if it changes."""

    def __init__(self, norm: LayerNorm) -> None:
        self.own, self.offset, self.stored, self.version, self.gain = norm._parameters, norm.unit_offset, None, -1, None

    def __call__(self, x: Tensor) -> Tensor:
        gamma = self.own['gamma']
        if gamma is not self.stored or gamma._version != self.version:
            self.stored, self.version, self.gain = gamma, gamma._version, gamma.detach() + self.offset
        return torch.layer_norm(x, self.gain.shape, self.gain)


def norm_step(norm: nn.Module | None) -> Any:
    """What a norm does, or None."""
    return NormStep(norm) if type(norm) is LayerNorm and not norm.gamma.is_inference() else norm


class AttentionStep:
    """x b 1 d -> b 1 d, with the past of the layer continued."""

    def __init__(self, layer: Any, maps: dict[nn.Module, Any]) -> None:
        norms, attn, _ = layer
        self.before, self.after, self.outside = map(norm_step, norms)
        self.to_out = maps.get(attn.to_out, attn.to_out)
        self.shape, self.rotary = attn.shape, attn.features.find(Rotary)
        inputs = [maps.get(m, m) for m in (attn.to_q, attn.to_k, attn.to_v)]
        packed = all(isinstance(m, PackedLinear) and m.own.get('bias') is None for m in inputs)
        self.project = JoinedLinear(*inputs) if packed else lambda x: torch.cat([m(x) for m in inputs], dim=-1)
        self.turns_all = attn.rotate_num_heads == attn.heads
        self.options = SimpleNamespace(dropout=0.0, scale=attn.logit_scale, backends=None)

    def __call__(self, x: Tensor, past: KeysValues, angles: Buffer | None, turns: Tensor) -> tuple[Tensor, KeysValues]:
        b, shape = len(x), self.shape
        qkv = self.project(x if self.before is None else self.before(x))
        v = qkv[..., -shape.kv_heads * shape.dim_value :].view(b, 1, shape.kv_heads, -1).transpose(1, 2)
        qk = qkv[..., : (shape.heads + shape.kv_heads) * shape.dim_head].view(b, 1, -1, shape.dim_head).transpose(1, 2)
        if angles is not None and self.turns_all:
            qk = self.rotary.turned(qk, turns)
        q, k = qk[:, : shape.heads], qk[:, shape.heads :]
        if angles is not None and not self.turns_all:
            q, k = self.rotary.turned(q, turns), self.rotary.turned(k, turns)
        past = past.append(k, v)
        past.states = {} if angles is None else {'angles': angles}
        out = grouped_sdpa(q, *past.pair, None, self.options)
        out = self.to_out(out.transpose(1, 2).reshape(b, 1, -1))
        x = x + (out if self.after is None else self.after(out))
        return x if self.outside is None else self.outside(x), past


class FeedForwardStep:
    """x b 1 d -> b 1 d."""

    def __init__(self, layer: Any, maps: dict[nn.Module, Any]) -> None:
        norms, branch, _ = layer
        self.before, self.after, self.outside = map(norm_step, norms)
        self.maps = [maps.get(m, m) for m in leaves(branch.ff)]

    def __call__(self, x: Tensor) -> Tensor:
        out = x if self.before is None else self.before(x)
        for function in self.maps:
            out = function(out)
        x = x + (out if self.after is None else self.after(out))
        return x if self.outside is None else self.outside(x)


class PlainStep:
    """ids b 1, cache -> logits b 1 l, and the cache continued."""

    def __init__(self, net: Any, packed: Packed) -> None:
        stack = net.attn_layers
        self.net, self.packed = net, packed
        self.hooks = [held for m in net.modules() for held in (m._forward_hooks, m._forward_pre_hooks)]
        maps = {forward.linear: forward for _, forward in packed.forwards}
        steps = {'a': AttentionStep, 'f': FeedForwardStep}
        layers = [stack.layers[index] for index in stack.layers_execute_order]
        self.steps = [(layer.kind, steps[layer.kind](layer, maps)) for layer in layers]
        self.rotary, self.final_norm = stack.features.find(RotaryPositions), norm_step(stack.final_norm)

    @classmethod
    def of(cls, net: Any, inputs: dict[str, Any], packed: Packed) -> PlainStep | None:
        """The step of a net called with further inputs, if it is plain."""
        return cls(net, packed) if cls.fits(net) and all(value is None for value in inputs.values()) else None

    @staticmethod
    def fits(net: Any) -> bool:
        from x_transformers import x_transformers as core

        if type(net) is not core.TransformerWrapper or not is_quiet(net.features, AbsolutePositions):
            return False
        stack = net.attn_layers
        if any('forward' in m.__dict__ for m in net.modules()):  # somebody has replaced it
            return False
        if type(stack).forward is not core.AttentionLayers.forward or not stack.causal or net.to_logits is None:
            return False
        if not is_quiet(stack.features, RotaryPositions) or 'c' in stack.layer_types:
            return False
        rotary = stack.features.find(RotaryPositions)
        return not (rotary and rotary.rotary_xpos) and all(map(PlainStep.fits_layer, stack.layers))

    @staticmethod
    def fits_layer(layer: Any) -> bool:
        from x_transformers import x_transformers as core

        _, branch, residual = layer
        if type(layer) is not core.Layer or type(residual) is not Residual or residual.residual_scale is not None:
            return False
        if residual.scale_residual_constant != 1:
            return False
        if layer.kind == 'f':
            return type(branch) is core.FeedForward and type(branch.ff) is nn.Sequential
        quiet = type(branch) is core.Attention and is_quiet(branch.features) and branch.can_cache_kv
        return quiet and branch.causal and branch.sdp_backends is None and branch.dim_key == branch.shape.dim_head

    def takes(self, ids: Tensor, cache: Cache) -> bool:
        """Whether this step can go on from there. Hooks want to see modules called."""
        if ids.shape[1] != 1 or cache.leading or cache.exits is not None or torch.compiler.is_compiling():
            return False
        known = {'positions', 'angles'} if self.rotary is not None else set()
        if cache.states.keys() != known or not all(past is not None for past in cache.layers):
            return False
        if any((past.turned_by is None) != (self.rotary is None) for past in cache.layers):
            return False
        everywhere = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
        return not (everywhere or any(self.hooks) or self.net.training)

    def __call__(self, ids: Tensor, cache: Cache) -> tuple[Any, Cache]:
        net, states, angles, turns, pasts = self.net, {}, None, None, []
        with self.packed:
            x = net.token_emb(ids)
            if net.pos_emb is not None:
                x = x + net.pos_emb(ids, offset=cache.seen)
            x = net.project_emb(x)
            if self.rotary is not None:
                positions = cache.states['positions'].tensor[:, -1:, 0] + 1
                turns, _ = self.rotary.angles(positions)
                angles = cache.states['angles'].append(turns)
                states = {'positions': cache.states['positions'].append(positions.unsqueeze(-1)), 'angles': angles}
            for kind, step in self.steps:
                if kind == 'f':
                    x = step(x)
                    continue
                x, past = step(x, cache.layers[len(pasts)], angles, turns)
                pasts.append(past)
            x = x if self.final_norm is None else self.final_norm(x)
            logits = net.to_logits(x)
        return logits, Cache(pasts, list(cache.kinds), states, cache.seen + 1)
