"""The layers of a plain stack, written out: what the stages of a pass come to where no feature acts in it.

In a small model most of the time goes into calling modules and asking stages. A stack without features that act on its
layers, called without masks, caches or anything else that a layer would see, is the few lines below, with the same
numbers. `PlainLayers.of` says which stacks; `plain_step.py` builds the decode step of a model from the same parts.

Modules and features opt in by `plain = True`; `untouched.py` tells what else is looked at before each pass. During a
pass no code of others runs, so that what was true before it holds until its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers import attend
from x_transformers.attend import fused, heads_of
from x_transformers.derivatives import differentiable_sdpa
from x_transformers.features.norms import LayerNorm
from x_transformers.features.positions import Rotary, is_one
from x_transformers.features.residuals import Residual
from x_transformers.untouched import Code, Snapshot, is_known

if TYPE_CHECKING:
    from x_transformers.calls import StackCall
    from x_transformers.flags import Feature, Features
    from x_transformers.x_transformers import AttentionLayers, Layer

OWN_LAYER_NORM = F.layer_norm
TURNED = {'rotary_pos_emb': True}  # the one input that plain attention knows


# the parts of a layer, each a function  b n d -> b n d'


def linear(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    def product(x: Tensor) -> Tensor:
        own = module._parameters  # without the search that an attribute of a module takes
        return F.linear(x, own['weight'], own['bias'])

    return product


def normed(x: Tensor, gain: Tensor) -> Tensor:
    if F.layer_norm is OWN_LAYER_NORM:  # all that it does
        return torch.layer_norm(x, gain.shape, gain)
    return F.layer_norm(x, gain.shape, gain)


def layer_norm(module: LayerNorm) -> Callable[[Tensor], Tensor]:
    offset, own = module.unit_offset, module._parameters
    return lambda x: normed(x, own['gamma'] + offset if offset else own['gamma'])


def gelu(module: nn.GELU) -> Callable[[Tensor], Tensor]:
    approximate = module.approximate
    return lambda x: F.gelu(x, approximate=approximate)


PARTS: dict[type, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    nn.Linear: linear,
    LayerNorm: layer_norm,
    nn.GELU: gelu,
}
READ = {nn.Linear: {'weight', 'bias'}, nn.Embedding: {'weight'}, LayerNorm: {'gamma'}}


def part(module: nn.Module | None) -> Any:
    """What a module does, without the way through its call, where that is known."""
    return PARTS.get(type(module), lambda module: module)(module)


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of nested sequences, in order, without dropout, which does nothing here."""
    for child in module:
        if type(child) is nn.Sequential:
            yield from leaves(child)
        elif type(child) is not nn.Dropout:
            yield child


class PlainLayer:
    """A branch with its norms and its residual, made of what `part` gives for its modules."""

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        norms, self.branch, _ = layer
        self.before, self.after, self.outside = map(part, norms)

    def read(self, x: Tensor) -> Tensor:
        return x if self.before is None else self.before(x)

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        x = (out if self.after is None else self.after(out)) + x
        return x if self.outside is None else self.outside(x)


class PlainAttention(PlainLayer):
    """Attention of a sequence to itself; `turns` are the angles of rotary positions."""

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        attn = self.branch
        self.shape, self.rotary = attn.shape, attn.features.find(Rotary)
        self.to_q, self.to_k, self.to_v, self.to_out = map(part, (attn.to_q, attn.to_k, attn.to_v, attn.to_out))
        self.grouped, self.scale = attn.shape.kv_heads < attn.shape.heads, attn.logit_scale
        self.options = SimpleNamespace(dropout=0.0, scale=self.scale, backends=None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        if self.grouped:
            return attend.grouped_sdpa(q, k, v, None, self.options, is_causal=is_causal)
        return differentiable_sdpa(q, k, v, is_causal=is_causal, scale=self.scale)

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

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        self.parts = [part(module) for module in leaves(self.branch.ff)]

    def __call__(self, x: Tensor, turns: Tensor | None) -> Tensor:
        out = self.read(x)
        for part in self.parts:
            out = part(out)
        return self.join(out, x)


# which layers


def are_plain(features: Iterable[Feature]) -> bool:
    return all(map(is_known, features))


def holds_known(module: nn.Module) -> bool:
    """Whether everything below a module is known, its parameters being where they are read from."""
    return all(is_known(m) and m._parameters.keys() >= READ.get(type(m), set()) for m in module.modules())


def is_plain(stack: AttentionLayers) -> bool:
    """Whether nothing acts in a stack but what is written out here, and holds for it now."""
    from x_transformers import x_transformers as core

    def fits(layer: Layer) -> bool:
        if type(layer) is not core.Layer or type(layer[2]) is not Residual:
            return False
        norms, branch, residual = layer
        if len(norms) != 3 or residual.residual_scale is not None or residual.scale_residual_constant != 1:
            return False
        if layer.kind == 'f':
            return type(branch) is core.FeedForward and type(branch.ff) is nn.Sequential and branch.dim == stack.dim
        if layer.kind != 'a' or type(branch) is not core.Attention or branch.sdp_backends is not None:
            return False
        own = type(branch.attend) is core.Attend and branch.attend.layer is branch
        return own and branch.dim == branch.dim_kv_in == stack.dim and branch.dim_key == branch.shape.dim_head

    if not (is_known(stack) and are_plain(acting(stack)) and holds_known(stack) and all(map(fits, stack.layers))):
        return False
    turns = all(layer[1].features.find(Rotary) for layer in stack.layers if layer.kind == 'a')
    return turns and all(are_plain(acting(layer[1])) for layer in stack.layers)


def acting(host: Any) -> Sequence[Feature]:
    """The features of a module that may act in a plain pass: none that waits for other inputs."""
    return host.features.given(TURNED).active


def snapshot(
    root: nn.Module, stack: AttentionLayers, unseen: nn.Module, code: Sequence[type | ModuleType] = ()
) -> tuple[Snapshot, Code]:
    """All that a short cut for `root`, whose stack is plain, has looked at, and the code that it stands for."""
    from x_transformers import attending, calls
    from x_transformers import x_transformers as core

    hosts = dict.fromkeys((root, stack, *(layer[1] for layer in stack.layers)))
    features = [feature for host in hosts for feature in acting(host)]
    seen = Snapshot(root, features, unseen.modules())
    known = (calls.Call, calls.StackCall, attend.Intermediates, core, attend, attending, calls)
    return seen, Code((*known, *code, *seen.kinds))


# the layers of a stack


class ShortCuts:
    """What a stack keeps of its plain layers, in training and not; a copy of the stack makes its own."""

    def __init__(self) -> None:
        self.known: dict[bool, PlainLayers | None] = {}

    def __deepcopy__(self, memo: Any) -> ShortCuts:
        return ShortCuts()

    def __reduce__(self) -> Any:
        return ShortCuts, ()


class PlainLayers:
    """What `AttentionLayers.run_layers` does for a plain stack. Nothing in it changes, so that threads may share it."""

    def __init__(self, stack: AttentionLayers) -> None:
        kinds = {'a': PlainAttention, 'f': PlainFeedForward}
        self.stack, self.layers = stack, [kinds[layer.kind](layer) for layer in stack.layers]
        self.seen, self.code = snapshot(stack, stack, stack.layers)
        self.drops = any(type(m) is nn.Dropout and m.training and m.p for m in stack.layers.modules()) or any(
            layer.branch.training and layer.branch.dropout for layer in self.layers if type(layer) is PlainAttention
        )

    @classmethod
    def of(cls, stack: AttentionLayers) -> PlainLayers | None:
        """The layers of a stack, if they are plain. A graph, compiled or traced, has no use for them."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return None
        kept = vars(stack).get('short_cuts', ShortCuts()).known
        known = kept.get(stack.training, False)
        if known is None or (known and known.is_current(stack)):
            return known
        made = cls(stack) if cls.fits(stack) else None
        if made is not None and not made.code.holds():
            return None
        kept[stack.training] = made
        return made

    def is_current(self, stack: AttentionLayers) -> bool:
        return self.stack is stack and self.code.holds() and self.seen.holds()

    @staticmethod
    def fits(stack: AttentionLayers) -> bool:
        attention = [layer[1] for layer in stack.layers if layer.kind == 'a'] if is_plain(stack) else [None]
        return all(a is not None and a.kernel is fused and a.shape.dim_head == a.shape.dim_value for a in attention)

    def takes(self, call: StackCall, on: Features) -> bool:
        """Whether a pass, in which the features `on` act, needs nothing else of its layers."""
        if on is not self.stack.features.given(call.inputs):
            return False
        if call.keeps or call.cache is not None or call.mems or call.norm_inputs or call.shared['f']:
            return False
        if any(value is not None and name != 'rotary_pos_emb' for name, value in call.inputs.items()):
            return False
        given = call.shared['a']
        if given.keys() - TURNED.keys():
            return False
        if 'rotary_pos_emb' in given and not is_one(given['rotary_pos_emb'][1]):
            return False
        return not (self.drops or self.seen.is_hooked())

    def __call__(self, x: Tensor, call: StackCall, steps: Sequence[int]) -> Tensor:
        turns, _ = call.shared['a'].get('rotary_pos_emb', (None, None))
        for step in steps:
            x = self.layers[call.order[step]](x, turns)
        return x
