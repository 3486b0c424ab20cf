"""The parts of a decode step: layers of a plain stack as functions of one token, and which stacks are plain.

In a small model most of a step goes into calling modules and asking stages. A stack without features that act on its
layers is the few lines below, with the same numbers; `plain_step.py` builds the step of a model from them.

Modules and features opt in by `plain = True`; `untouched.py` tells what else is looked at before each step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from x_transformers import attend
from x_transformers.core import calls, intermediates
from x_transformers.core.hosts import Layer, Stack
from x_transformers.fast.gains import scale_of
from x_transformers.fast.untouched import PACKAGE, Code, Snapshot, is_known, is_ours
from x_transformers.features import norms
from x_transformers.features.feedforward import GLU
from x_transformers.features.heads import HeadNorm, QKHeadNorm, QKRMSNorm
from x_transformers.features.layouts import ParallelBlock
from x_transformers.features.norms import BiasedLayerNorm, LayerNorm, MultiheadRMSNorm, RMSNorm, ScaleNorm
from x_transformers.features.residuals import Residual
from x_transformers.features.rotary import Rotary, RotaryLayers
from x_transformers.flags import Feature
from x_transformers.kernels import dense
from x_transformers.kernels.derivatives import differentiable_sdpa

CORE = f'{PACKAGE}.x_transformers'  # which imports this file
# inputs of plain attention; the features that read them act in it
INPUTS = {'rotary_pos_emb': True, 'rel_pos': True, 'value_residual': True}


# the parts of a layer, each a function  b n d -> b n d', or of rows (b n) d


def linear(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    def product(x: Tensor) -> Tensor:
        own: Any = module._parameters  # without the search that an attribute of a module takes
        return F.linear(x, own['weight'], own['bias'])

    return product


def layer_norm(module: LayerNorm) -> Callable[..., Tensor]:
    offset, own, eps, biased = module.unit_offset, module._parameters, module.eps, type(module) is BiasedLayerNorm

    def norm(x: Tensor, gain: Tensor | None = None) -> Tensor:
        if gain is None:
            gain = own['gamma']
            if gain is None:
                return module(x)
            gain = gain + offset if offset else gain
        return torch.layer_norm(x, gain.shape, gain, own['beta'] if biased else None, eps)

    return norm


def rms_norm(module: RMSNorm) -> Callable[..., Tensor]:
    offset, scale, own, eps = module.unit_offset, scale_of(module), module._parameters, module.eps

    def norm(x: Tensor, gain: Tensor | None = None) -> Tensor:
        if gain is None:
            gain = own['g']
            if gain is None:
                return module(x)
            gain = gain + offset if offset else gain
            gain = gain if eps is not None else scale * gain
        return (norms.l2norm(x) if eps is None else norms.rms_normed(x, eps)) * gain

    return norm


def glu(module: GLU, part: Callable[[nn.Module | None], Any]) -> Any:
    if module.softclamps is not None:
        return module
    project, act, own = part(module.proj), part(module.act), module._parameters

    def gated(x: Tensor) -> Tensor:
        value, gate = project(x).chunk(2, dim=-1)
        out, gain = value * act(gate), own.get('mult_bias')
        return out if gain is None else out * gain

    return gated


def gelu(module: nn.GELU) -> Callable[[Tensor], Tensor]:
    approximate = module.approximate
    return lambda x: F.gelu(x, approximate=approximate)


def silu(module: nn.SiLU) -> Callable[[Tensor], Tensor]:
    inplace = module.inplace
    return lambda x: F.silu(x, inplace=inplace)


PARTS: dict[type, Callable[[Any], Callable[[Tensor], Tensor]]] = {
    nn.Linear: linear,
    LayerNorm: layer_norm,
    BiasedLayerNorm: layer_norm,
    RMSNorm: rms_norm,
    ScaleNorm: rms_norm,
    GLU: lambda module: glu(module, part),
    nn.GELU: gelu,
    nn.SiLU: silu,
    nn.ReLU: lambda module: lambda x: F.relu(x, inplace=module.inplace),
    nn.Tanh: lambda module: lambda x: torch.tanh(x),
}
READ = {
    nn.Linear: {'weight', 'bias'},
    nn.Embedding: {'weight'},
    LayerNorm: {'gamma'},
    BiasedLayerNorm: {'gamma', 'beta'},
    RMSNorm: {'g'},
    ScaleNorm: {'g'},
    MultiheadRMSNorm: {'gamma'},
    HeadNorm: {'gamma'},
}


def part(module: nn.Module | None) -> Any:
    """What a module does, without the way through its call, where that is known."""
    return PARTS.get(type(module), lambda module: module)(module)


def leaves(module: Any) -> Iterator[nn.Module]:
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
        self.norm, self.index = norms[0], layer.index
        # whether it reads the stream as it comes, and not that from before its block; whether in the norm of another
        self.opens, self.borrows = True, False

    def read(self, x: Tensor) -> Tensor:
        return x if self.before is None else self.before(x)

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        x = (out if self.after is None else self.after(out)) + x
        return x if self.outside is None else self.outside(x)


class PlainAttention(PlainLayer):
    """Attention of a sequence to itself.

    It is `Attention.forward` without its stages; `AttentionStep` runs it. What computes is shared: what features do to
    heads and values, turns, and kernels.
    """

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        attn = self.branch
        self.shape, self.rotary = attn.shape, attn.features.find(Rotary)
        self.to_q, self.to_k, self.to_v, self.to_out = map(part, (attn.to_q, attn.to_k, attn.to_v, attn.to_out))
        self.grouped, self.scale = attn.shape.kv_heads < attn.shape.heads, attn.logit_scale
        self.counts = [attn.shape.heads, attn.shape.kv_heads]
        self.turns_all = attn.rotate_num_heads == attn.heads
        self.options: Any = SimpleNamespace(dropout=0.0, scale=self.scale, backends=None)
        self.rings = list(attn.features.acting({}).heads)
        joint: Any = attn.features.find(QKRMSNorm) or attn.features.find(QKHeadNorm)
        # queries and keys that nothing but their norms change are normed side by side
        alone = joint is not None and self.rings == [joint.heads]
        pair: Any = (joint.q_norm, joint.k_norm) if joint is not None and alone else ()
        self.gained = alone and differ_in_gains(*pair)
        self.qk_norms = dict.fromkeys(pair if self.gained or isinstance(joint, QKRMSNorm) else ())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if self.grouped:  # which takes equal heads too, but 2 % of a layer longer
            return dense.grouped_sdpa(q, k, v, mask, self.options, is_causal=is_causal)
        return differentiable_sdpa(q, k, v, attn_mask=mask, is_causal=is_causal, scale=self.scale)

    def joint_gain(self, gains: dict[Any, Tensor]) -> Tensor:
        """The gains of query and key heads, (h + k) 1 d, of which some are known."""
        each = zip(self.qk_norms, self.counts, strict=True)
        return torch.cat([(gains[n] if n in gains else n.gain).expand(heads, 1, -1) for n, heads in each])

    def normed(self, qk: Tensor, gain: Tensor) -> Tensor:
        """Heads of queries and keys, b (h + k) n d, by the norm that they share."""
        norm = next(iter(self.qk_norms))
        return (norm.normed(qk) * gain).to(qk.dtype)


def differ_in_gains(q: nn.Module, k: nn.Module) -> bool:
    """Whether nothing else tells the norm of query heads from that of key heads."""
    of_heads = type(q) is type(k) is HeadNorm and q.beta is k.beta is None
    return of_heads and (q.kind, q.eps) == (k.kind, k.eps)


def only_turn(features: Sequence[Feature]) -> bool:
    """Whether what features at `inputs` give to layers are angles alone."""
    return all(type(feature) is RotaryLayers for feature in features)


class PlainFeedForward(PlainLayer):
    """Linear layers and activations, one after the other."""

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        self.parts = [part(module) for module in leaves(self.branch.ff)]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        for part in self.parts:
            y = part(y)
        return self.join(y, x)


def side_by_side(layers: Sequence[PlainLayer], parallel: Any) -> None:
    """Tell layers where blocks begin whose branches read the same, and which norm they borrow."""
    blocks: Any = parallel
    for at, layer in enumerate(layers if parallel is not None else ()):
        layer.opens = blocks.begins(layer.index)
        layer.borrows = blocks.shares and not layer.opens
        if layer.borrows:
            layer.before, layer.norm = layers[at - 1].before, layers[at - 1].norm


# which layers


def are_plain(features: Iterable[Feature]) -> bool:
    return all(map(is_known, features))


def holds_known(module: nn.Module) -> bool:
    """Whether everything below a module is known, its parameters being where they are read from."""
    return all(is_known(m) and m._parameters.keys() >= READ.get(type(m), set()) for m in module.modules())


def of_core(thing: Any, name: str) -> bool:
    """Whether something is of exactly a class of the core."""
    kind = type(thing)
    return kind.__module__ == CORE and kind.__qualname__ == name


def is_plain(stack: Stack) -> bool:
    """Whether nothing acts in a stack but what is written out here, and holds for it now."""

    def fits(layer: Layer, kind: str, index: int) -> bool:
        if not of_core(layer, 'Layer') or type(layer[2]) is not Residual or (layer.kind, layer.index) != (kind, index):
            return False
        norms, branch, residual = layer
        if len(norms) != 3 or residual.residual_scale is not None or residual.scale_residual_constant != 1:
            return False
        if layer.kind == 'f':
            return of_core(branch, 'FeedForward') and type(branch.ff) is nn.Sequential and branch.dim == stack.dim
        if layer.kind != 'a' or not of_core(branch, 'Attention'):
            return False
        if branch.sdp_backends is not None or branch.limits is not None:
            return False
        own = type(branch.attend) is attend.Attend and branch.attend.layer is branch and branch.attend.is_as_built
        return own and branch.dim == branch.dim_kv_in == stack.dim and branch.dim_key == branch.shape.dim_head

    if not (is_known(stack) and are_plain(acting(stack)) and holds_known(stack)):
        return False
    stack.check_assigned()
    kinds = stack.layer_types
    if len(kinds) != len(stack.layers) or not all(map(fits, stack.layers, kinds, range(len(kinds)))):
        return False
    parallel = stack.features.find(ParallelBlock)
    if parallel is not None and parallel.shares:  # a user may give a layer a norm of its own beside that of its block
        if any(layer[0][0] is not None for layer in stack.layers if not parallel.begins(layer.index)):
            return False
    turns = all(layer[1].features.find(Rotary) for layer in stack.layers if layer.kind == 'a')
    return turns and all(are_plain(acting(layer[1])) for layer in stack.layers)


def acting(host: Any) -> Sequence[Feature]:
    """The features of a module that may act in a plain pass: none that waits for other inputs, or for training."""
    active = host.features.acting(INPUTS).active
    return active if host.training else [f for f in active if not (f.only_trains and is_ours(f))]


def snapshot(
    root: nn.Module, stack: Stack, unseen: Iterable[nn.Module], code: Sequence[type | ModuleType] = ()
) -> tuple[Snapshot, Code]:
    """All that a short cut for `root`, whose stack is plain, has looked at, and the code that it stands for."""
    hosts = dict.fromkeys((root, stack, *(layer[1] for layer in stack.layers)))
    features = [feature for host in hosts for feature in acting(host)]
    seen = Snapshot(root, features, unseen)
    known = (
        calls.Call,
        calls.StackCall,
        intermediates.Intermediates,
        sys.modules[CORE],
        dense,
        attend,
        calls,
        intermediates,
    )
    return seen, Code((*known, *code, *seen.kinds))


def drops(module: nn.Module) -> bool:
    """Whether a dropout inside of a module is at work, whatever the mode of the module itself."""
    return any(type(m) is nn.Dropout and m.training and m.p for m in module.modules())
