"""Styles for `parallelize_module`: how each part of a model is sharded.

Attention is dealt out by heads, feedforwards by inner features, token table and head by tokens of the vocabulary. Each
device then runs the ordinary code of the module on fewer of them; what the branches add is summed. Megatron-LM,
arXiv:1909.08053; with the sequence cut between branches, arXiv:2205.05198.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.utils._pytree import tree_map

from x_transformers.core.aux_losses import AuxLosses
from x_transformers.core.intermediates import MissingMaps
from x_transformers.features.biases import AlibiPositionalBias, PositionBias
from x_transformers.features.feedforward import GLU
from x_transformers.features.readouts import TiedReadout
from x_transformers.flags import ConfigError, Feature
from x_transformers.flags.checks import Maybe
from x_transformers.parallel.views import (
    WHOLE,
    Lane,
    View,
    join_shards,
    move_tensors,
    override_forward,
    see,
    spread,
    sum_shards,
)
from x_transformers.x_transformers import Attention


def laid_out(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Return the parameters below a module that are not distributed yet, by owner and name."""
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None and not isinstance(parameter, DTensor):
                yield owner, name


class Style(ParallelStyle):
    """Base of the parallel styles of this library. `source` is the rank whose values are used, as in
    `parallelize_module`.
    """

    @property
    def source(self) -> int | None:
        return getattr(self, 'src_data_rank', 0)

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'


class Alike(Style):
    """Replicate the parameters that no other style has sharded. `own` is the style of the module itself, if any."""

    def __init__(self, own: Style | None = None) -> None:
        super().__init__()
        self.own = own

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self.own is not None:
            self.own.src_data_rank = self.source
            self.own._apply(module, device_mesh)
        for owner, name in laid_out(module):
            see(owner, name, View(device_mesh), self.source)
        return module


# attention


def get_cuts(feature: Feature) -> dict[str, tuple[int, str]] | None:
    """Return the sharding that a feature declares itself: exactly its class, since a subclass may differ."""
    return feature.tp_shards if 'tp_shards' in vars(type(feature)) else None


def hold_shard(feature: Feature, path: str) -> tuple[nn.Module, str] | None:
    """Return the module that holds a tensor of a feature, and its name there; None if the feature has none."""
    first, _, rest = path.partition('.')
    inside = feature.stored_as.get(first, first)
    *outer, name = (f'{inside}.{rest}' if rest else inside).split('.')
    module: Any = feature.owner
    for one in outer:
        module = getattr(module, one, None)
    return (module, name) if module is not None and module._parameters.get(name) is not None else None


class ShardedHeads(Style):
    """Shard the heads of an attention layer with their keys. Few key heads are replicated instead.

    Query head h reads key head h mod k, so that each group of k query heads is cut like the keys.
    """

    def __init__(self, lane: Lane = WHOLE) -> None:
        super().__init__()
        self.lane = lane

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        attn: Any = module
        sizes, count = attn.shape, device_mesh.size()
        groups = dealt(sizes.heads, sizes.kv_heads, count)
        of_keys = View(device_mesh, axis=0) if groups else View(device_mesh, partial=True)
        of_queries = View(device_mesh, axis=0, parts=groups or 1)
        for linear, view in ((attn.to_q, of_queries), (attn.to_k, of_keys), (attn.to_v, of_keys)):
            for name in [name for name, t in linear._parameters.items() if t is not None]:
                see(linear, name, view, self.source)
        see(attn.to_out, 'weight', replace(of_queries, axis=1), self.source)
        if attn.to_out.bias is not None:
            see(attn.to_out, 'bias', View(device_mesh, partial=True, divided=True), self.source)
        for feature in attn.features.active:
            for path, (axis, of) in (get_cuts(feature) or {}).items():
                found = hold_shard(feature, path)
                view = of_queries if of == 'heads' else of_keys
                if found is not None:
                    see(*found, view if view.axis is None else replace(view, axis=axis), self.source)
        for owner, name in laid_out(attn):
            see(owner, name, View(device_mesh, partial=True), self.source)
        keys = sizes.kv_heads // count if groups else sizes.kv_heads
        count_heads(attn, sizes.heads // count, keys)
        self.override(attn, Dealt(sizes.heads, sizes.kv_heads, device_mesh))
        return attn

    def override(self, attn: Any, dealt: Dealt) -> None:
        kind, lane, mesh = type(attn), self.lane, dealt.mesh
        axes = {'attn_mask': '... h i j'}
        for feature in attn.features.active:
            axes |= feature.tp_input_shards

        def forward(self: Any, x: Tensor, context: Tensor | None = None, *masks: Any, **inputs: Any) -> Any:
            inputs = {**dict(zip(MASKS, masks, strict=False)), **inputs}
            inputs = {name: dealt.part(value, axes.get(name)) for name, value in inputs.items()}
            context = None if context is None else spread(context, mesh)
            with AuxLosses() as losses:
                out = kind.forward(self, lane.enter(x, mesh), context, **inputs)
            refuse_losses(losses, 'some of the heads')
            if isinstance(out, tuple):
                dealt.join_maps(out[1])
                return lane.leave(out[0], mesh), *out[1:]
            return lane.leave(out, mesh)

        override_forward(attn, forward=forward)


MASKS = ('mask', 'context_mask', 'attn_mask')  # what attention may be given by position, behind x and context


def refuse_losses(losses: AuxLosses, share: str) -> None:
    """Refuse features that add a loss computed from local values."""
    for name in losses.by_name:
        raise ConfigError(f'the loss `{name}` cannot be shared by several devices: each would form it of {share}')


@dataclass(frozen=True)
class Dealt:
    """The heads of an attention layer, all together, and what of a tensor that counts them is this device's."""

    heads: int
    kv_heads: int
    mesh: DeviceMesh

    def of_device(self, rank: int, letter: str = 'h') -> list[int]:
        """Return the indices of local query heads ('h') or key heads ('k'), in their local order."""
        groups, count = dealt(self.heads, self.kv_heads, self.mesh.size()), self.mesh.size()
        if letter == 'h':
            return torch.arange(self.heads).view(groups or 1, -1).chunk(count, dim=1)[rank].flatten().tolist()
        return torch.arange(self.kv_heads).chunk(count if groups else 1)[rank if groups else 0].tolist()

    @property
    def here(self) -> list[int]:
        return self.of_device(self.mesh.get_local_rank())

    def part(self, value: Any, axes: Maybe[str | tuple[str | None, ...]]) -> Any:
        """Return an input of the layer as this device reads it: gradients are summed, and head axes are sharded."""
        if isinstance(axes, tuple) and isinstance(value, (tuple, list)):
            return tuple(self.part(one, own) for one, own in zip(value, axes, strict=True))
        if axes == '':
            return value

        cut_by: Any = axes  # a text: pairs are taken apart above

        def own(t: Any) -> Any:
            if not torch.is_tensor(t):
                return t
            t = spread(t, self.mesh) if t.requires_grad and torch.is_grad_enabled() else t
            return t if axes is None else self.cut(t, cut_by)

        return tree_map(own, value)

    def cut(self, t: Tensor, axes: str) -> Tensor:
        """Return the part of a tensor with axes such as '... h i j' or 'b n (h d)' that belongs to the local heads. If
        each head stands for several, it selects those that are read; a single one is kept.
        """
        names = re.findall(r'\(.*?\)|\S+', axes)
        axis = next(at for at, name in enumerate(names) if 'h' in name or 'k' in name) - len(names)
        letter = 'h' if 'h' in names[axis] else 'k'
        if t.ndim < -axis or (names[0] != '...' and t.ndim != len(names)) or t.shape[axis] == 1:
            return t
        heads = self.of_device(self.mesh.get_local_rank(), letter)
        total, size = self.heads if letter == 'h' else self.kv_heads, t.shape[axis]
        if size % total == 0:
            index = torch.arange(size, device=t.device).view(total, -1)[heads].flatten()
        elif total % size == 0:
            index = torch.tensor(list(dict.fromkeys(head % size for head in heads)), device=t.device)
        else:
            return t  # which the layer refuses, with what it should be
        return t.index_select(axis, index)

    def join_maps(self, trace: Any) -> None:
        """Gather the attention maps of all heads for readers of a call's intermediates. All devices must call it."""
        compute, known = trace.compute_maps, trace.maps
        each = [head for rank in range(self.mesh.size()) for head in self.of_device(rank)]

        def whole(maps: Any) -> list[Tensor | None]:
            back = torch.tensor(each).argsort()
            joins = (None if t is None else join_shards(t, self.mesh, 1, self.heads) for t in maps)
            return [None if t is None else t.index_select(1, back.to(t.device)) for t in joins]

        if any(t is not None for t in known):
            trace.maps = whole(known)
        if compute is not None and not isinstance(compute, MissingMaps):
            trace.compute_maps = lambda: whole(compute())


def dealt(heads: int, kv_heads: int, devices: int) -> int:
    """Return the number of groups of query heads if key heads are sharded, or 0 if they are replicated."""
    if kv_heads % devices == 0:
        return heads // kv_heads
    if heads // kv_heads % devices == 0:
        return 0
    few = '' if heads == kv_heads else f', with {kv_heads} key heads,'
    raise ConfigError(f'`heads` got {heads}{few} which cannot be dealt out to {devices} devices')


def count_heads(attn: Any, heads: int, kv_heads: int) -> None:
    """Set the number of local heads of an attention layer."""
    all_turn = attn.rotate_num_heads == attn.heads
    attn.shape = replace(attn.shape, heads=heads, kv_heads=kv_heads)
    attn.dim_merged = attn.dim_merged * heads // attn.heads
    attn.query_heads, attn.key_heads = heads, kv_heads
    attn.heads, attn.kv_heads = heads, kv_heads
    if all_turn:
        vars(attn)['rotate_num_heads'] = heads  # which is a flag: from outside, those of a built layer are settled


class BiasOfHeads(Style):
    """The position bias of a stack, for the heads of this device."""

    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        own = Dealt(self.heads, self.kv_heads, device_mesh).here
        for owner, name in laid_out(module):
            see(owner, name, View(device_mesh, partial=True), self.source)
        if isinstance(module, AlibiPositionalBias):
            module.keep_heads(own)
            return module
        kind: Any = type(module)

        def of_distance(self: PositionBias, distance: Tensor) -> Tensor:
            return kind.of_distance(self, distance)[..., own]

        override_forward(module, of_distance=of_distance)
        return module


# feedforward


class ShardedFeedForward(Style):
    """The inner features of a feedforward; value and gate of a gated unit are cut each by itself."""

    def __init__(self, lane: Lane = WHOLE) -> None:
        super().__init__()
        self.lane = lane

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        widened, output = module.ff[0], module.output_layer
        gated = isinstance(widened, GLU)
        inner = View(device_mesh, axis=0, parts=2 if gated else 1)
        wide: Any = widened.proj if gated else widened[0]
        for name in [name for name, t in wide._parameters.items() if t is not None]:
            see(wide, name, inner, self.source)
        if gated and torch.is_tensor(widened.mult_bias):
            see(widened, 'mult_bias', View(device_mesh, axis=0), self.source)
        see(output, 'weight', View(device_mesh, axis=1), self.source)
        if output.bias is not None:
            see(output, 'bias', View(device_mesh, partial=True, divided=True), self.source)
        lane = self.lane
        kind: Any = type(module.ff)

        def forward(self: Any, x: Tensor, *args: Any) -> Tensor:
            return lane.leave(kind.forward(self, lane.enter(x, device_mesh), *args), device_mesh)

        override_forward(module.ff, forward=forward)
        return module


# vocabulary


class Vocabulary(Style):
    """The rows of a token table: each device looks up the tokens that it has."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        table: Any = module
        see(table, 'weight', View(device_mesh, axis=0), self.source)
        each = -(-table.num_embeddings // device_mesh.size())  # as torch cuts
        start = each * device_mesh.get_local_rank()

        def forward(self: Any, ids: Tensor) -> Tensor:
            weight = self.weight
            own = ids - start
            other = (own < 0) | (own >= len(weight))
            if len(weight) == 0:
                found = weight.new_zeros(*ids.shape, weight.shape[1])
            else:
                found = F.embedding(own.masked_fill(other, 0), weight).masked_fill(other.unsqueeze(-1), 0.0)
            return sum_shards(found, device_mesh)

        override_forward(table, forward=forward)
        return table


class Logits(Style):
    """The rows of a head: each device gives the logits of the tokens that it has, and gets those of all."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        tied = isinstance(module, TiedReadout)
        classes: Any = module.shared[0].emb.num_embeddings if tied else module.out_features
        for name in [name for name, t in module._parameters.items() if t is not None]:
            see(module, name, View(device_mesh, axis=0), self.source)
        module.register_forward_pre_hook(lambda _, args: (spread(args[0], device_mesh), *args[1:]))
        module.register_forward_hook(lambda _, args, out: join_shards(cast('Tensor', out), device_mesh, -1, classes))
        return module


# the stream


class Sequence(Style):
    """The stream of a stack, cut along the sequence between branches: each device norms and adds its own tokens."""

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self.lane = lane

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        lane = self.lane
        stack: Any = module
        kind: Any = type(module)
        # what attention takes it reads for all tokens
        taken = {name for m in stack.modules() if isinstance(m, Attention) for name in m.features.call_inputs}

        def reads_whole(call: Any) -> bool:
            """Return True if a call keeps results of whole layers, or reads inputs that count tokens."""
            if call.keeps or call.cache is not None or call.mems or call.norm_inputs:
                return True
            return any(value is not None and name not in taken for name, value in call.inputs.items())

        for owner, name in laid_out(stack.layers):
            see(owner, name, View(device_mesh, lane=lane), self.source)

        def run_steps(self: Any, features: Any, transform: Any, x: Tensor, call: Any, steps: Any) -> Tensor:
            """Run the layers as on one device. What is kept of them, in a cache too, is whole."""
            length = x.shape[-2]
            if lane.length is not None or transform is not None or length < device_mesh.size() or reads_whole(call):
                return kind.run_steps(self, features, transform, x, call, steps)
            lane.length = length
            try:
                own = move_tensors(x, device_mesh, Replicate(), Shard(1))
                with AuxLosses() as losses:
                    own = kind.run_steps(self, features, transform, own, call, steps)
            finally:
                lane.length = None
            refuse_losses(losses, 'some of the tokens')
            return join_shards(own, device_mesh, 1, length)

        override_forward(stack, run_steps=run_steps)
        return stack
