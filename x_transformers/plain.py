"""The layers of a plain stack, written out: what the stages of a pass come to where no feature acts in it.

In a small model most of the time goes into calling modules and asking stages. A stack without features that act on its
layers, called without masks, caches or anything else that a layer would see, is the few lines below, with the same
numbers. `PlainLayers.of` says which stacks; `plain_step.py` builds the decode step of a model from the same parts.

What users may do to a model still counts: a hook, a replaced module, parameter or `forward` is seen before each pass,
which then goes the ordinary way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import contains
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from x_transformers.attend import fused, grouped_sdpa, heads_of
from x_transformers.derivatives import differentiable_sdpa
from x_transformers.features.norms import LayerNorm
from x_transformers.features.positions import Rotary, RotaryPositions, is_one
from x_transformers.features.residuals import Residual
from x_transformers.flags import Features

if TYPE_CHECKING:
    from x_transformers.calls import StackCall
    from x_transformers.x_transformers import AttentionLayers, Layer

# choices that are made when a module is built, and how layers are run
BUILT = {'norm', 'norm_branch', 'residual', 'order', 'layout', 'readout', 'project_out', 'through'}

# hooks of all modules
EVERYWHERE = (
    hooks._global_forward_hooks,
    hooks._global_forward_pre_hooks,
    hooks._global_backward_hooks,
    hooks._global_backward_pre_hooks,
)

# what is written out here, as long as nobody replaces it
FORWARDS: dict[type, Callable[..., Any]] = {
    kind: kind.forward for kind in (nn.Linear, nn.GELU, nn.Dropout, nn.Sequential, LayerNorm, Residual)
}


def written_out(kind: type) -> type:
    """Decorates a class whose `forward` is written out here."""
    FORWARDS[kind] = kind.forward
    return kind


# the parts of a layer, each a function  b n d -> b n d'


class PlainNorm:
    """A layer norm."""

    def __init__(self, norm: LayerNorm) -> None:
        self.own, self.offset = norm._parameters, norm.unit_offset

    def __call__(self, x: Tensor) -> Tensor:
        gamma = self.own['gamma']
        return torch.layer_norm(x, gamma.shape, gamma + self.offset if self.offset else gamma)


def nobody_replaced_a_forward() -> bool:
    return all(kind.forward is forward for kind, forward in FORWARDS.items())


def is_untouched(module: nn.Module) -> bool:
    """Whether a module has the forward of its class, and its parameters are where they are read from."""
    wanted = {nn.Linear: {'weight', 'bias'}, nn.Embedding: {'weight'}, LayerNorm: {'gamma'}}.get(type(module), set())
    return 'forward' not in module.__dict__ and module._parameters.keys() >= wanted


def plain(module: nn.Module | None) -> Any:
    """What a module does, without the way through its call."""
    own = getattr(module, '_parameters', None)
    if type(module) is nn.Linear:
        return lambda x: F.linear(x, own['weight'], own['bias'])
    if type(module) is nn.GELU:
        return partial(F.gelu, approximate=module.approximate)
    return PlainNorm(module) if type(module) is LayerNorm else module


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested sequences, in order, without dropout, which does nothing here."""
    for child in module:
        if type(child) is nn.Sequential:
            yield from leaves(child)
        elif type(child) is not nn.Dropout:
            yield child


class PlainLayer:
    """A branch with its norms and its residual. `maps` holds other ways of some of its modules."""

    def __init__(self, layer: Layer, maps: dict[nn.Module, Any]) -> None:
        norms, self.branch, _ = layer
        self.maps = maps
        self.before, self.after, self.outside = map(self.map, norms)

    def map(self, module: nn.Module | None) -> Any:
        return self.maps.get(module) or plain(module)

    def read(self, x: Tensor) -> Tensor:
        return x if self.before is None else self.before(x)

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        x = (out if self.after is None else self.after(out)) + x
        return x if self.outside is None else self.outside(x)


class PlainAttention(PlainLayer):
    """Attention of a sequence to itself; `turns` are the angles of rotary positions."""

    def __init__(self, layer: Layer, maps: dict[nn.Module, Any]) -> None:
        super().__init__(layer, maps)
        attn = self.branch
        self.shape, self.rotary = attn.shape, attn.features.find(Rotary)
        self.to_q, self.to_k, self.to_v, self.to_out = map(self.map, (attn.to_q, attn.to_k, attn.to_v, attn.to_out))
        if self.shape.heads == self.shape.kv_heads:
            self.attend = partial(differentiable_sdpa, scale=attn.logit_scale)
        else:
            options = SimpleNamespace(dropout=0.0, scale=attn.logit_scale, backends=None)
            self.attend = lambda q, k, v, **causal: grouped_sdpa(q, k, v, None, options, **causal)

    def __call__(self, x: Tensor, turns: Tensor | None) -> Tensor:
        y, width = self.read(x), self.shape.dim_head
        q, k, v = heads_of(self.to_q(y), width), heads_of(self.to_k(y), width), heads_of(self.to_v(y), width)
        if turns is not None:
            q, k = self.rotary.turned(q, turns), self.rotary.turned(k, turns)
        triangle = True if self.branch.causal and x.shape[1] > 1 else False  # a plain bool of a symbolic length too
        out = self.attend(q, k, v, is_causal=triangle)
        return self.join(self.to_out(out.transpose(1, 2).flatten(2)), x)


class PlainFeedForward(PlainLayer):
    """Linear layers and activations, one after the other."""

    def __init__(self, layer: Layer, maps: dict[nn.Module, Any]) -> None:
        super().__init__(layer, maps)
        self.parts = [self.map(module) for module in leaves(self.branch.ff)]

    def __call__(self, x: Tensor, turns: Tensor | None) -> Tensor:
        out = self.read(x)
        for part in self.parts:
            out = part(out)
        return self.join(out, x)


# which layers


def is_quiet(features: Features, *understood: type) -> bool:
    """Whether no feature acts in a call without further inputs, apart from those understood here."""
    for feature in features.given({}).active:
        at = {stage for stage in feature.runs_at() if feature.stages[stage] != 'build'}
        if not (at <= BUILT or feature.fuses or isinstance(feature, understood)):
            return False
    return True


def is_plain(stack: AttentionLayers) -> bool:
    """Whether nothing but positions of rotary kind acts in the layers of a stack."""
    rotary = stack.features.find(RotaryPositions)
    quiet = is_quiet(stack.features, RotaryPositions) and not (rotary and rotary.rotary_xpos)
    if not quiet or 'c' in stack.layer_types or not all(map(is_plain_layer, stack.layers)):
        return False
    return rotary is None or all(layer[1].features.find(Rotary) for layer in stack.layers if layer.kind == 'a')


def is_plain_layer(layer: Layer) -> bool:
    from x_transformers import x_transformers as core

    if type(layer) is not core.Layer or type(layer[2]) is not Residual:
        return False
    _, branch, residual = layer
    if residual.residual_scale is not None or residual.scale_residual_constant != 1:
        return False
    if layer.kind == 'f':
        return type(branch) is core.FeedForward and type(branch.ff) is nn.Sequential
    quiet = type(branch) is core.Attention and is_quiet(branch.features)
    quiet = quiet and type(branch.attend) is core.Attend and branch.attend.layer is branch
    return quiet and branch.sdp_backends is None and branch.dim_key == branch.shape.dim_head


class Snapshot:
    """The modules below one, as they are now: to see later whether anybody has changed them."""

    def __init__(self, root: nn.Module) -> None:
        self.modules = list(root.modules())
        self.types = list(map(type, self.modules))
        self.attributes = [m.__dict__ for m in self.modules]
        self.children = [m._modules for m in self.modules if m._modules]
        self.known = [list(children.values()) for children in self.children]
        self.parameters = [m._parameters for m in self.modules if m._parameters]
        self.counts = list(map(len, self.parameters))
        self.hooks = [
            held
            for m in self.modules
            for held in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
        ]

    def is_hooked(self) -> bool:
        """Whether a hook wants to see a module called."""
        return any(self.hooks) or any(EVERYWHERE)

    def holds(self) -> bool:
        """Whether all modules are the same, with their own `forward`, and no parameter was taken away."""
        return (
            list(map(type, self.modules)) == self.types
            and list(map(list, map(dict.values, self.children))) == self.known
            and list(map(len, self.parameters)) == self.counts
            and not any(map(contains, self.attributes, repeat('forward')))
            and nobody_replaced_a_forward()
        )


# the layers of a stack


class PlainLayers:
    """What `AttentionLayers.run_layers` does for a plain stack."""

    kept: ClassVar[weakref.WeakKeyDictionary[AttentionLayers, PlainLayers | None]] = weakref.WeakKeyDictionary()

    def __init__(self, stack: AttentionLayers) -> None:
        kinds = {'a': PlainAttention, 'f': PlainFeedForward}
        self.layers = [kinds[layer.kind](layer, {}) for layer in stack.layers]
        self.seen = Snapshot(stack.layers)
        modules = self.seen.modules
        self.dropouts = [m for m in modules if type(m) is nn.Dropout]
        self.attentions = [layer.branch for layer in self.layers if isinstance(layer, PlainAttention)]

    @classmethod
    def of(cls, stack: AttentionLayers) -> PlainLayers | None:
        """The layers of a stack, if they are plain. A graph, compiled or traced, has no use for them."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        known = cls.kept.get(stack, False)
        if known is False or (known is not None and not known.seen.holds()):
            known = cls.kept[stack] = cls(stack) if cls.fits(stack) else None
        return known

    @staticmethod
    def fits(stack: AttentionLayers) -> bool:
        if not nobody_replaced_a_forward() or not is_plain(stack):
            return False
        if not all(map(is_untouched, stack.layers.modules())):
            return False
        attention = [layer[1] for layer in stack.layers if layer.kind == 'a']
        return all(a.kernel is fused and a.shape.dim_head == a.shape.dim_value for a in attention)

    def takes(self, call: StackCall) -> bool:
        """Whether a pass needs nothing else of its layers."""
        if call.keeps or call.cache is not None or call.mems or call.norm_inputs or call.shared['f']:
            return False
        if any(value is not None and name != 'rotary_pos_emb' for name, value in call.inputs.items()):
            return False
        given = call.shared['a']
        if given.keys() - {'rotary_pos_emb'}:
            return False
        if 'rotary_pos_emb' in given and not is_one(given['rotary_pos_emb'][1]):
            return False
        drops = any(m.training and m.p for m in self.dropouts) or any(a.training and a.dropout for a in self.attentions)
        return not (drops or self.seen.is_hooked())

    def __call__(self, x: Tensor, call: StackCall, steps: Sequence[int]) -> Tensor:
        turns, _ = call.shared['a'].get('rotary_pos_emb', (None, None))
        for step in steps:
            x = self.layers[call.order[step]](x, turns)
        return x
