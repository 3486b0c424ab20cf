"""The layers of a plain stack, written out: what the stages of a pass come to where no feature acts in it.

In a small model most of the time goes into calling modules and asking stages. A stack without features that act on its
layers, called without masks, caches or anything else that a layer would see, is the few lines below, with the same
numbers. `PlainLayers.of` says which stacks; `plain_step.py` builds the decode step of a model from the same parts.

Modules and features opt in by `plain = True`; `untouched.py` tells what else is looked at before each pass. During a
pass no code of others runs, so that what was true before it holds until its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.jit._trace import is_tracing

from x_transformers import attend
from x_transformers.core import calls, traces
from x_transformers.core.calls import StackCall
from x_transformers.core.hosts import Layer, Stack
from x_transformers.core.notes import TakesNotes
from x_transformers.core.rows import is_large
from x_transformers.fast.gains import Gains, scale_of
from x_transformers.fast.untouched import PACKAGE, Code, Snapshot, is_known, is_ours
from x_transformers.features import norms
from x_transformers.features.feedforward import GLU
from x_transformers.features.heads import HeadNorm, QKHeadNorm, QKRMSNorm
from x_transformers.features.layouts import ParallelBlock
from x_transformers.features.norms import BiasedLayerNorm, LayerNorm, MultiheadRMSNorm, RMSNorm, ScaleNorm
from x_transformers.features.residuals import Residual
from x_transformers.features.rotary import Rotary, RotaryLayers, is_one
from x_transformers.flags import Feature, Features
from x_transformers.flags.maybe import Maybe
from x_transformers.kernels import dense
from x_transformers.kernels.dense import Sight, fused, sight_of
from x_transformers.kernels.derivatives import differentiable_sdpa

CORE = f'{PACKAGE}.x_transformers'  # which imports this file
OWN_LAYER_NORM = F.layer_norm
TURNED = {'rotary_pos_emb': True}
# inputs of plain attention; the features that read them act in it
INPUTS = {'rotary_pos_emb': True, 'rel_pos': True, 'value_residual': True}
SEEN = frozenset(('rel_pos', 'mask', 'context_mask'))  # say what queries see
SHARED = frozenset((*TURNED, *SEEN, 'clean'))


# the parts of a layer, each a function  b n d -> b n d', or of rows (b n) d


def linear(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    def product(x: Tensor) -> Tensor:
        own: Any = module._parameters  # without the search that an attribute of a module takes
        return F.linear(x, own['weight'], own['bias'])

    return product


def normed(x: Tensor, gain: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    if F.layer_norm is OWN_LAYER_NORM:  # all that it does
        return torch.layer_norm(x, gain.shape, gain, bias, eps)
    return F.layer_norm(x, gain.shape, gain, bias, eps)


def layer_norm(module: LayerNorm) -> Callable[..., Tensor]:
    offset, own, eps, biased = module.unit_offset, module._parameters, module.eps, type(module) is BiasedLayerNorm

    def norm(x: Tensor, gain: Tensor | None = None) -> Tensor:
        if gain is None:
            gain = own['gamma']
            if gain is None:
                return module(x)
            gain = gain + offset if offset else gain
        return normed(x, gain, own['beta'] if biased else None, eps)

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

    def read(self, x: Tensor, gains: dict[Any, Tensor] | None = None) -> Tensor:
        if self.before is None:
            return x
        gain = gains.get(self.norm) if gains else None
        return self.before(x) if gain is None else self.before(x, gain)

    def norms(self) -> Iterator[Any]:
        """Those whose gains a pass may compute at once."""
        if self.norm is not None:
            yield self.norm

    def join(self, out: Tensor, x: Tensor) -> Tensor:
        x = (out if self.after is None else self.after(out)) + x
        return x if self.outside is None else self.outside(x)


class PlainAttention(PlainLayer):
    """Attention of a sequence to itself.

    It is `Attention.forward` without its stages: to ask those takes longer than all that is left, so that the few lines
    between the parts are written again here and, for one token, in `AttentionStep`. What computes is shared: what
    features do to heads and values, turns, what queries see, and kernels.
    """

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        attn = self.branch
        self.shape, self.rotary = attn.shape, attn.features.find(Rotary)
        self.to_q, self.to_k, self.to_v, self.to_out = map(part, (attn.to_q, attn.to_k, attn.to_v, attn.to_out))
        self.grouped, self.scale = attn.shape.kv_heads < attn.shape.heads, attn.logit_scale
        self.counts = [attn.shape.heads, attn.shape.kv_heads]
        self.projections = (*zip((self.to_q, self.to_k), self.counts, strict=True), (self.to_v, self.counts[1]))
        self.turns_all = attn.rotate_num_heads == attn.heads
        self.options: Any = SimpleNamespace(dropout=0.0, scale=self.scale, backends=None)
        self.layer, (self.rings, _) = layer, rings_of(attn, {})
        joint: Any = attn.features.find(QKRMSNorm) or attn.features.find(QKHeadNorm)
        # queries and keys that nothing but their norms change are normed side by side
        alone = joint is not None and self.rings == [joint.heads]
        pair: Any = (joint.q_norm, joint.k_norm) if joint is not None and alone else ()
        self.gained = alone and differ_in_gains(*pair)
        self.qk_norms = dict.fromkeys(pair if self.gained or isinstance(joint, QKRMSNorm) else ())
        self.shared = rings_of(attn, {'value_residual': True})

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if self.grouped:  # which takes equal heads too, but 2 % of a layer longer
            return dense.grouped_sdpa(q, k, v, mask, self.options, is_causal=is_causal)
        return differentiable_sdpa(q, k, v, attn_mask=mask, is_causal=is_causal, scale=self.scale)

    def norms(self) -> Iterator[Any]:
        yield from super().norms()
        yield from self.qk_norms

    def changed(
        self, q: Tensor, k: Tensor, v: Tensor, rings: list[Any], given: PlainCall | None, run: PlainPass
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Heads after what features do to them, turned by their positions.

        Without a backward pass, which would keep other tensors, queries and keys go through norms and turns together.
        """
        qk, gains = None, run.gains
        turns = run.turns if run.by_layer is None else run.by_layer[self.layer.index]
        if gains is not None and rings is self.rings and self.gained:
            qk = self.normed(torch.cat((q, k), dim=1), self.joint_gain(gains))
        elif gains is not None and rings is self.rings and self.qk_norms and gains.keys() >= self.qk_norms.keys():
            qk = norms.l2norm(torch.cat((q, k), dim=1)) * torch.cat([gains[norm] for norm in self.qk_norms])
        else:
            for ring in rings:
                q, k, v = ring((q, k, v), given)
        if turns is not None and gains is not None and self.turns_all:
            qk = self.rotary.turned(torch.cat((q, k), dim=1) if qk is None else qk, turns)
        q, k = (q, k) if qk is None else qk.split_with_sizes(self.counts, dim=1)
        if turns is not None and not (gains is not None and self.turns_all):
            q, k = self.rotary.turned(q, turns), self.rotary.turned(k, turns)
        return q, k, v

    def joint_gain(self, gains: dict[Any, Tensor]) -> Tensor:
        """The gains of query and key heads, (h + k) 1 d, of which some are known."""
        each = zip(self.qk_norms, self.counts, strict=True)
        return torch.cat([(gains[n] if n in gains else n.gain).expand(heads, 1, -1) for n, heads in each])

    def normed(self, qk: Tensor, gain: Tensor) -> Tensor:
        """Heads of queries and keys, b (h + k) n d, by the norm that they share."""
        norm = next(iter(self.qk_norms))
        return (norm.normed(qk) * gain).to(qk.dtype)

    def __call__(self, x: Tensor, y: Tensor, run: PlainPass) -> Tensor:
        rows, width = run.rows, self.shape.dim_head
        given = run.inputs_of(self.layer) if run.shares else None
        rings, sources = (self.rings, ()) if given is None else self.shared
        for ring in sources:
            ring((y.view(*rows, y.shape[-1]),) * 3, given)
        q, k, v = [to(y).view(*rows, count, width).transpose(1, 2) for to, count in self.projections]
        if run.shares:
            run.on.collect('attended', self.layer, SimpleNamespace(values=v), run.call)
        q, k, v = self.changed(q, k, v, rings, given, run)
        mask, triangle, sighted = run.sight or run.sight_for(q)
        out = self.attend(q, k, v, mask, triangle)
        out = out if sighted is None else out.masked_fill(~sighted, 0.0)
        out = self.to_out(out.transpose(1, 2).reshape(*x.shape[:-1], self.shape.dim_inner))
        if run.hidden is not None:
            out = out.masked_fill(run.hidden, 0.0) if run.gains is None else out.masked_fill_(run.hidden, 0.0)
        return self.join(out, x)


def differ_in_gains(q: nn.Module, k: nn.Module) -> bool:
    """Whether nothing else tells the norm of query heads from that of key heads."""
    of_heads = type(q) is type(k) is HeadNorm and q.beta is k.beta is None
    return of_heads and (q.kind, q.eps) == (k.kind, k.eps)


def rings_of(attn: Any, inputs: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What features do to heads, and to what is projected, in a call with these inputs."""
    active = attn.features.acting(inputs).active
    heads, sources = ([getattr(f, stage) for f in active if stage in f.runs_at()] for stage in ('heads', 'sources'))
    return heads, sources


class PlainCall(TakesNotes):
    """What features find in a plain call: nothing but their inputs and notes."""

    context = places = None
    memories = 0
    rebuilds_values = False

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs, self.notes = inputs, {}

    @staticmethod
    def cleared(t: Tensor) -> Tensor:
        return t


class PlainPass:
    """What the layers of one pass share: how many `rows`, (b, n), by which angles they turn, what queries see."""

    hidden: Maybe[Tensor] = None
    hides_blind = False
    gains: dict[Any, Tensor] | None = None
    sight: Maybe[Sight] = None
    by_layer: dict[int, Tensor | None] | None = None

    def __init__(self, x: Tensor, call: StackCall, on: Features, first: PlainAttention | None) -> None:
        given = call.shared['a']
        self.rows, self.call, self.on = x.shape[:-1], call, on
        self.turns = given['rotary_pos_emb'][0] if 'rotary_pos_emb' in given else None
        hear = on.at.get('inputs')
        self.shares = bool(hear) and not only_turn(hear)
        if hear and self.turns is not None:
            self.by_layer = next((own.turns(call) for own in hear if type(own) is RotaryLayers), None)
        # a plain bool of a symbolic length too
        self.sight = Sight(None, True if first is not None and first.branch.causal and x.shape[1] > 1 else False)
        if first is None or SEEN.isdisjoint(given):
            return
        inputs = {name: value for name, value in given.items() if name not in ('mask', 'context_mask')}
        mask, keys = given.get('mask'), given.get('context_mask')
        attn = first.branch
        self.sight, self.own = None, attn.open_call((x, x, x), None, None, mask, None, None, inputs)
        own = self.own
        own.keys = x.shape[1]
        real = own.key_mask(mask, keys)
        attend.settle(attn.features.acting(inputs), own, (x, x, x), [] if real is None else [real[:, None, None]])
        own.combine()
        if own.query_mask is not None:
            self.hidden = ~own.query_mask.unsqueeze(-1)
            self.hidden = self.hidden if torch.is_grad_enabled() else self.hidden.flatten(0, 1)
        # a real query sees at least itself, and what others give is hidden anyway; a backward pass keeps both
        alone = len(own.masks) == 1 and (keys is None or keys is mask)
        self.hides_blind = self.hidden is not None and alone and not torch.is_grad_enabled()

    def sight_for(self, q: Tensor) -> Sight:
        """What queries see, with a mask as torch's kernel adds it."""
        mask, is_causal, sighted = sight_of(self.own, q)
        if mask is not None and mask.dtype == torch.bool and not torch.is_grad_enabled():
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
        mask = mask if mask is None else mask.expand(-1, -1, q.shape[-2], -1)
        sight = Sight(mask, is_causal, None if self.hides_blind else sighted)
        if mask is None or not mask.requires_grad:  # in half precision, layers would add up what one bias learns
            self.sight = sight
        return sight

    def inputs_of(self, layer: Layer) -> PlainCall | None:
        """A call with what the stack gives to a layer; None for nothing."""
        inputs = self.on.chain('inputs', {}, layer, self.call)
        return PlainCall(inputs) if inputs else None


def only_turn(features: Sequence[Feature]) -> bool:
    """Whether what features at `inputs` give to layers are angles alone."""
    return all(type(feature) is RotaryLayers for feature in features)


class PlainFeedForward(PlainLayer):
    """Linear layers and activations, one after the other."""

    def __init__(self, layer: Layer, part: Callable[[nn.Module | None], Any] = part) -> None:
        super().__init__(layer, part)
        self.parts = [part(module) for module in leaves(self.branch.ff)]

    def __call__(self, x: Tensor, y: Tensor, run: PlainPass | None = None) -> Tensor:
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
    known = (calls.Call, calls.StackCall, traces.Intermediates, sys.modules[CORE], dense, attend, calls, traces)
    return seen, Code((*known, *code, *seen.kinds))


# the layers of a stack


def drops(module: nn.Module) -> bool:
    """Whether a dropout inside of a module is at work, whatever the mode of the module itself."""
    return any(type(m) is nn.Dropout and m.training and m.p for m in module.modules())


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

    def __init__(self, stack: Stack) -> None:
        kinds = {'a': PlainAttention, 'f': PlainFeedForward}
        self.stack, self.layers = stack, [kinds[layer.kind](layer) for layer in stack.layers]
        self.first = next((layer for layer in self.layers if type(layer) is PlainAttention), None)
        self.gains = Gains(norm for layer in self.layers for norm in layer.norms())
        self.parallel = stack.features.find(ParallelBlock)
        side_by_side(self.layers, self.parallel)
        self.seen, self.code = snapshot(stack, stack, stack.layers.modules())
        self.drops = drops(stack.layers)

    @classmethod
    def of(cls, stack: Stack) -> PlainLayers | None:
        """The layers of a stack, if they are plain. A graph, compiled or traced, has no use for them, and its symbols
        are no sizes to keep."""
        if torch.compiler.is_compiling() or is_tracing() or torch._C._len_torch_dispatch_stack():
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

    def is_current(self, stack: Stack) -> bool:
        return self.stack is stack and self.code.holds() and self.seen.holds()

    @staticmethod
    def fits(stack: Stack) -> bool:
        attention: list[Any] = [layer[1] for layer in stack.layers if layer.kind == 'a'] if is_plain(stack) else [None]
        return all(
            a is not None and a.kernel is fused and a.shape.dim_head == a.shape.dim_value for a in attention
        ) and (len({a.causal for a in attention}) < 2)

    def takes(self, x: Tensor, call: StackCall, on: Features) -> bool:
        """Whether a pass, in which the features `on` act, needs nothing else of its layers."""
        if on is not self.stack.features.acting(call.inputs):
            return False
        if call.keeps or call.cache is not None or call.mems or call.norm_inputs or call.shared['f']:
            return False
        if any(value is not None and name != 'rotary_pos_emb' for name, value in call.inputs.items()):
            return False
        given = call.shared['a']
        if given.keys() - SHARED:
            return False
        if 'rotary_pos_emb' in given and not is_one(given['rotary_pos_emb'][1]):
            return False
        if not SEEN.isdisjoint(given):
            hides = 'mask' in given or 'context_mask' in given
            if (hides and not given.get('clean')) or is_large(x, len(x), self.stack.attn_heads, x.shape[1], x.shape[1]):
                return False
        return not (self.drops or self.seen.is_hooked())

    def __call__(self, x: Tensor, call: StackCall, on: Features, steps: Sequence[int]) -> Tensor:
        run = PlainPass(x, call, on, self.first)
        run.gains = None if torch.is_grad_enabled() else self.gains()
        # products of matrices take less than those of (b, n, d); what is kept for a backward pass must be what the
        # ordinary way keeps, which may compute it again
        x = x if torch.is_grad_enabled() else x.flatten(0, -2)
        own = None if self.parallel is None else call.own(self.parallel)
        stream, y = getattr(own, 'stream', None), None  # of a block that goes on
        for call.step in steps:
            layer = self.layers[call.order[call.step]]
            if layer.opens:
                stream = x
            if y is None or not layer.borrows or run.gains is None:
                y = layer.read(stream, run.gains)
            x = layer(x, y, run)
        if own is not None:
            own.stream = stream
        return x if torch.is_grad_enabled() else x.unflatten(0, run.rows)
