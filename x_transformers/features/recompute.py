"""Activation checkpointing and reversible layers: recompute in the backward pass instead of storing activations.

A segment of layers runs on a copy of the call, which is then merged: its results are those of the first run, with their
gradient. The second run gets another copy of the call as it was before the segment, which is discarded.

While reversible layers run, the hidden states are two concatenated residual streams, (b, n, 2d). A training step stores
only their last values; the backward pass recomputes the input of each layer from its output, from last to first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.modes import is_hooked, is_transformed, may_get_others
from x_transformers.core.notes import FeatureContext
from x_transformers.core.recompute import GradAndCastMode, ModuleSnapshot, leave_vmap, recompute
from x_transformers.core.rows import noise_state, replay_noise
from x_transformers.features.layouts import ParallelBlock
from x_transformers.features.levels import StackFeature
from x_transformers.flags import ConfigError, Features, boolean, count, flag, format_value, one_of

Run = Callable[[Tensor, Any, Sequence[int]], Tensor]
MORE_STREAMS = 'a layer needs more than the two streams before it'


class CheckpointLayers(StackFeature):
    """Activation checkpointing: store only the input of every k-th layer, and recompute the rest in the backward pass.

    In training, n layers store n / k inputs, plus the activations of one segment of k layers. Outputs and gradients do
    not change, since dropout uses the same random numbers again.
    """

    paper = 'Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174'
    checkpoint_layers = flag(
        False,
        'recompute layers in the backward pass: True for each layer separately, k for segments of k layers',
        boolean | count,
        example=True,
    )
    training_only = True
    tp_shards = {}

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[CheckpointLayers]:
        return CheckpointRuns if values.get('act_halting') else cls

    def execute_layers(self, run: Run, x: Tensor, call: Any) -> Tensor:
        return self.segments(run, x, call, range(len(call.order)))

    def segments(self, run: Run, x: Tensor, call: Any, steps: Sequence[int]) -> Tensor:
        """Run some steps, of which only the inputs of segments are kept."""
        if not (self.owner.training and torch.is_grad_enabled()) or is_transformed():
            return run(x, call, steps)
        length = int(self.checkpoint_layers)  # True is one
        for start in range(0, len(steps), length):
            x = self.recompute(run, x, call, steps[start : start + length])
        return x

    def recompute(self, run: Run, x: Tensor, call: Any, steps: Sequence[int]) -> Tensor:
        """Run some layers, now and in the backward pass, from the same call."""
        before, stack = call.fork(), self.owner

        def segment(now: Callable[[Any], Any], x: Tensor) -> tuple[Tensor, Any]:
            own, here, again = before.fork(), now(stack), run
            if here is not stack:
                args = (now(each) if isinstance(each, Features) else each for each in run.args)
                again = functools.partial(getattr(here, run.func.__name__), *args)
            return again(x, own, steps), own

        kept = None
        if not torch.compiler.is_compiling():
            own, parallel = {call.order[step] for step in steps}, stack.features.find(ParallelBlock)
            own |= set() if parallel is None else {parallel.first(index) for index in own}  # whose norm they share
            others = [layer for index, layer in enumerate(stack.layers) if index not in own]
            kept = ModuleSnapshot(stack, without=others)
        x, own = recompute(segment, x, kept=kept, reads=() if kept is None else call.side_inputs())
        call.merge_from(own)
        return x


class CheckpointRuns(CheckpointLayers):
    """The same where another feature says how layers run, and asks for `segments`."""

    execute_layers: Any = None


class Coupled(nn.Module):
    """A branch reads one of two streams (b n 2d), and is added to the other; `writes` says which."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.writes = writes

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        return x.chunk(2, dim=-1)[1 - self.writes], x, {}

    def forward(self, out: Tensor, residual: Tensor, **_: Any) -> Tensor:
        first, second = residual.chunk(2, dim=-1)
        pair = (first, second + out) if self.writes else (first + out, second)
        return torch.cat(pair, dim=-1)


class Reversible(StackFeature):
    """Reversible residual connections with two streams, so that training does not store the activations of layers.

        x1 = x2 = x
        x1 = x1 + attention(norm(x2))          and cross-attention
        x2 = x2 + feedforward(norm(x1))
        mean           output = final_norm((x1 + x2) / 2)
        concat_norm    y1, y2 = final_norm(concatenation of x1 and x2),   output = (y1 + y2) / 2

    The norm over both streams has 2d weights, one for each channel of each stream. The output has width d, so that the
    output head can be tied; the paper's logits W1 y1 + W2 y2 then have one W, up to the norm weights. If both streams
    are equal, it is the norm of one.
    The input of a layer follows from its output: x2 = y2 - feedforward(norm(y1)). In training, only the last two
    streams are stored, for any depth, and the random state before each layer; the backward pass recomputes each layer,
    with the same dropout. The same result is computed in the ordinary way, with stored activations, outside of
    training, in compiled graphs, in transforms of `torch.func`, if layers or parameters have hooks, if each branch
    gathers its parameters (FSDP), and if the call returns states of layers (`return_hiddens`, memories, a cache).
    """

    paper = 'The Reversible Residual Network, arXiv:1707.04585; Reformer, arXiv:2001.04451'
    reversible = flag(False, 'use two residual streams, which are recomputed in the backward pass instead of stored')
    reversible_merge = flag(
        'mean',
        "input of the final norm: 'mean' of the two streams, or both ('concat_norm')",
        one_of('mean', 'concat_norm'),
        example='concat_norm',
    )
    sets_on_module = ('dim',)  # while the final norm is built
    clashes = {
        'checkpoint_layers': 'no activations are stored between the layers anyway',
        'only_attn': 'the second stream is updated by the feedforwards',
        **dict.fromkeys(('pre_and_post_norm', 'resi_dual'), 'a norm of the residual stream cannot be inverted'),
        'num_residual_streams': 'both define the residual streams',
        'qkv_receive_diff_residuals': 'it needs other residual streams or branch inputs',
        **dict.fromkeys(('unet_skips', 'integrate_layers', 'attn_aggregated_residuals'), MORE_STREAMS),
        **dict.fromkeys(('add_value_residual', 'residual_attn', 'cross_residual_attn'), MORE_STREAMS),
    }

    def setup(self, owner: Any) -> None:
        if not owner.pre_norm:
            raise ConfigError('`reversible` needs `pre_norm`: the stream after a norm cannot be computed back')
        if not {'f'} < set(owner.layer_types):
            raise ConfigError('`reversible` needs attention and feedforwards: each writes the stream the other reads')
        self.norms_both = self.reversible_merge == 'concat_norm'
        if self.norms_both and not owner.norm_at_end:
            raise ConfigError("`reversible_merge='concat_norm'` needs `pre_norm_has_final_norm`")

    def residual(self, dim: int, layer_index: int, **options: Any) -> nn.Module:
        for name, value in options.items():
            if value is True or value not in (None, False, 1.0):
                raise ConfigError(
                    f'`reversible` cannot be combined with `{name}`, got {format_value(value)}: streams add up'
                )
        return Coupled(int(self.owner.layer_types[layer_index] == 'f'))

    def norms(self, norms: tuple[Any, ...], kind: str, index: int) -> tuple[Any, ...]:
        if kind != 'end' or not self.norms_both:
            return norms
        owner, width = self.owner, self.owner.dim
        owner.dim = 2 * width
        try:
            return (*norms[:2], owner.new_norm())
        finally:
            owner.dim = width

    def stack_input(self, x: Tensor, call: Any) -> Tensor:
        return torch.cat((x, x), dim=-1)

    def execute_layers(self, run: Run, x: Tensor, call: Any) -> Tensor:
        features, transform = run.args
        if transform is not None:
            raise ValueError('`transform_block_inputs` cannot be combined with `reversible`: blocks have two streams')
        if self.saves(x, call):
            replay, named = Replay(self.owner, features, x, call), AuxLosses()
            x, *losses = ThereAndBack.apply(replay, x, *replay.parameters, *replay.side_inputs)
            named.by_name = dict(zip(replay.losses, losses, strict=True))
            named.hand_on()
        else:
            x = run(x, call, range(len(call.order)))
        if self.norms_both:
            call.ctx(self).streams = x
        return mean_of_halves(x)

    def stack_output(self, x: Tensor, call: Any) -> Tensor:
        return call.ctx(self).streams if self.norms_both else x

    def finish(self, x: Tensor, call: Any) -> Tensor:
        x = call.norm(self.owner.final_norm, x)
        return mean_of_halves(x) if self.norms_both else x

    def saves(self, x: Tensor, call: Any) -> bool:
        """Return True if a backward pass may come that computes the streams back."""
        stack = self.owner
        if not (stack.training and torch.is_grad_enabled()) or torch.compiler.is_compiling() or is_transformed():
            return False
        if call.keeps or call.cache is not None or any(map(callable, call.inputs.values())):
            return False
        if any(is_hooked(layer) or any(map(may_get_others, layer.modules())) for layer in stack.current_layers()):
            return False
        # the hook of a parameter would change its gradient layer by layer, and once more at the end
        return all(p.is_leaf and not p._backward_hooks for p in stack.parameters()) and owns_what_learns(stack)


def mean_of_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (first + second) / 2


def owns_what_learns(stack: nn.Module) -> bool:
    """Return True if gradients flow into parameters only, or what hooks make of these: a replica of `nn.DataParallel`
    has other tensors in their place."""
    beside = (t for m in stack.modules() if not m._forward_pre_hooks for t in (*m._buffers.values(), *vars(m).values()))
    return not any(torch.is_tensor(t) and t.requires_grad for t in beside)


class Replay:
    """One pass through reversible layers, forwards without a graph, and back with one layer's graph at a time."""

    stack: Any

    def __init__(self, stack: Any, features: Features, x: Tensor, call: Any) -> None:
        self.stack, self.features, self.call, self.device = stack, features, call, x.device
        self.before = call.replace_side_inputs(call.side_inputs())
        self.kept, self.surroundings = ModuleSnapshot(stack), GradAndCastMode(x.device.type)
        self.parameters = [parameter for parameter in stack.parameters() if parameter.requires_grad]
        self.side_inputs = call.side_inputs()
        own = {id(parameter) for layer in stack.current_layers() for parameter in layer.parameters()}
        self.shared = [parameter for parameter in self.parameters if id(parameter) not in own]
        self.noise: list[tuple[Tensor, ...]] = []
        self.left_out: set[int] = set()
        self.losses: tuple[str, ...] = ()

    def forwards(self, x: Tensor) -> tuple[Tensor, ...]:
        """The last streams, and the losses that layers added."""
        call, features, last = self.call, self.features, None
        layers = self.stack.current_layers()
        with AuxLosses() as losses:
            for step, index in enumerate(call.order):
                now = noise_state(self.device)
                # one state for all layers that draw no numbers
                last = last if last is not None and all(map(torch.equal, now, last)) else now
                self.noise.append(last)
                own = call.at_step(step)
                if features.collect('should_skip', layers[index], own):
                    self.left_out.add(step)
                else:
                    x = layers[index](x, own, features)
                self.refuse_notes(own)
        call.step = len(call.order) - 1
        self.kept.note_own_changes()
        self.losses = tuple(losses.by_name)
        return x, *losses.by_name.values()

    def refuse_notes(self, own: Any) -> None:
        before = self.call.contexts
        if not all(note.is_unchanged(before.get(kind, FeatureContext())) for kind, note in own.contexts.items()):
            raise ValueError(
                '`reversible` cannot be combined with a feature that notes something from layer to '
                'layer in `call.ctx(self)`: each layer is computed again by itself'
            )

    def backwards(
        self, x: Tensor, beside: Sequence[Tensor], grad: Tensor, of_losses: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The gradients of the first streams, and of `parameters` and `beside`, from those of the last."""
        layers, features = self.kept.restored(self.stack).current_layers(), self.kept.restored(self.features)
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in beside]
        before = self.before.replace_side_inputs(leaves)
        learning = [leaf for leaf in leaves if leaf.requires_grad]
        streams = list(x.chunk(2, dim=-1))
        grads: list[Any] = list(grad.chunk(2, dim=-1))
        found: dict[int, Tensor | None] = {}
        for step in reversed(range(len(self.noise))):
            if step in self.left_out:
                continue
            layer, own = layers[before.order[step]], before.at_step(step)
            writes = layer[2].writes
            read = streams[1 - writes].detach().requires_grad_()
            noise, gathered = replay_noise(self.noise[step], self.device), AuxLosses(again=True)
            with leave_vmap(), self.surroundings.restore(), noise, gathered:
                features.collect('should_skip', layer, own)  # draws what it drew before
                out, losses = layer.branch(read, own, features), gathered.by_name
            wanted = [read, *(p for p in layer.parameters() if p.requires_grad), *self.shared, *learning]
            outs = [(out, grads[writes].to(out.dtype))]
            outs += [(losses[n], g) for n, g in zip(self.losses, of_losses, strict=True) if n in losses]
            of_read, *new = gradients([(t, g) for t, g in outs if t.requires_grad], wanted)
            streams[writes] = streams[writes] - out.detach()
            grads[1 - writes] = added(grads[1 - writes], of_read)
            for t, g in zip(wanted[1:], new, strict=True):
                found[id(t)] = added(found.get(id(t)), g)
        return torch.cat(grads, dim=-1), [found.get(id(t)) for t in (*self.parameters, *leaves)]


def gradients(pairs: Sequence[tuple[Tensor, Tensor]], wanted: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The gradients of the wanted tensors, from outputs and theirs."""
    if not pairs:
        return [None] * len(wanted)
    outs, grads = zip(*pairs, strict=True)
    return torch.autograd.grad(outs, wanted, grads, allow_unused=True)


def added(total: Tensor | None, more: Tensor | None) -> Tensor | None:
    return more if total is None else total if more is None else total + more


class ThereAndBack(torch.autograd.Function):
    """The layers of a pass as one function of the streams, the parameters, and what layers read beside."""

    @staticmethod
    def forward(ctx: Any, run: Replay, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        out, *losses = run.forwards(x)
        ctx.run = run
        ctx.save_for_backward(out, *tensors[len(run.parameters) :])
        return out, *losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *of_losses: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                '`reversible` cannot be combined with gradients of gradients '
                '(`create_graph=True`): the layers that are computed again leave no graph. Call '
                '`eval()`, or give a layer a hook, to compute in the ordinary way'
            )
        out, *beside = ctx.saved_tensors
        first, others = ctx.run.backwards(out, beside, grad, of_losses)
        return None, first, *others
