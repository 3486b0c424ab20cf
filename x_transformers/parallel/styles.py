"""What `parallelize_module` does to each part of a model, so that several devices share its work.

Attention is dealt out by heads, feedforwards by inner features, token table and head by tokens of the vocabulary. Each
device then runs the ordinary code of the module on fewer of them; what the branches add is summed. Megatron-LM,
arXiv:1909.08053; with the sequence cut between branches, arXiv:2205.05198.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from x_transformers.features.biases import AlibiPositionalBias, PositionBias, SplitAlibi
from x_transformers.features.feedforward import GLU
from x_transformers.features.readouts import TiedReadout
from x_transformers.flags import ConfigError, Feature
from x_transformers.parallel.views import WHOLE, Lane, View, joined, moved, overridden, see, spread, summed


def laid_out(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The parameters below a module that are still on each device alone, by owner and name."""
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None and not isinstance(parameter, DTensor):
                yield owner, name


class Style(ParallelStyle):
    """A style of ours. `source` is the rank whose values count, as `parallelize_module` says."""

    @property
    def source(self) -> int | None:
        return getattr(self, 'src_data_rank', 0)

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'


class Alike(Style):
    """Every device has all of what no other style has taken, and does the same with it."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for owner, name in laid_out(module):
            see(owner, name, View(device_mesh), self.source)
        return module


# attention


def cuts_of(feature: Feature) -> dict[str, tuple[int, str]] | None:
    """What a feature says of itself: exactly its class, since another may do otherwise."""
    return feature.cuts if 'cuts' in vars(type(feature)) else None


def held(feature: Feature, path: str) -> tuple[nn.Module, str] | None:
    """The module that holds a tensor of a feature, and its name there; None if the feature has none."""
    first, _, rest = path.partition('.')
    inside = feature.stored_as.get(first, first)
    *outer, name = (f'{inside}.{rest}' if rest else inside).split('.')
    module: Any = feature.host
    for one in outer:
        module = getattr(module, one, None)
    return (module, name) if module is not None and module._parameters.get(name) is not None else None


class Heads(Style):
    """The heads of an attention layer, dealt out with their keys; those of few keys share them.

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
            for path, (axis, of) in (cuts_of(feature) or {}).items():
                found = held(feature, path)
                view = of_queries if of == 'heads' else of_keys
                if found is not None:
                    see(*found, view if view.axis is None else replace(view, axis=axis), self.source)
        for owner, name in laid_out(attn):
            see(owner, name, View(device_mesh, partial=True), self.source)
        keys = sizes.kv_heads // count if groups else sizes.kv_heads
        count_heads(attn, sizes.heads // count, keys)
        self.override(attn, device_mesh)
        return attn

    def override(self, attn: Any, mesh: DeviceMesh) -> None:
        kind, lane = type(attn), self.lane

        def forward(self: Any, x: Tensor, context: Tensor | None = None, *args: Any, **inputs: Any) -> Any:
            x = lane.enter(x, mesh)
            context = None if context is None else spread(context, mesh)
            out = kind.forward(self, x, context, *args, **inputs)
            if isinstance(out, tuple):
                return lane.leave(out[0], mesh), *out[1:]
            return lane.leave(out, mesh)

        overridden(attn, forward=forward)


def dealt(heads: int, kv_heads: int, devices: int) -> int:
    """Of how many groups the query heads are, if each device gets some of the keys; 0 if all get all of them."""
    if kv_heads % devices == 0:
        return heads // kv_heads
    if heads // kv_heads % devices == 0:
        return 0
    few = '' if heads == kv_heads else f', with {kv_heads} key heads,'
    raise ConfigError(f'`heads` got {heads}{few} which cannot be dealt out to {devices} devices')


def heads_here(heads: int, kv_heads: int, mesh: DeviceMesh) -> list[int]:
    """Which heads this device has, in its own order."""
    groups, rank, count = dealt(heads, kv_heads, mesh.size()), mesh.get_local_rank(), mesh.size()
    every = torch.arange(heads).view(groups or 1, -1)
    return every.chunk(count, dim=1)[rank].flatten().tolist()


def count_heads(attn: Any, heads: int, kv_heads: int) -> None:
    """Say how many heads an attention layer has on this device."""
    all_turn = attn.rotate_num_heads == attn.heads
    attn.shape = replace(attn.shape, heads=heads, kv_heads=kv_heads)
    attn.dim_merged = attn.dim_merged * heads // attn.heads
    attn.query_heads, attn.key_heads = heads, kv_heads
    attn.heads, attn.kv_heads = heads, kv_heads
    attn.rotate_num_heads = heads if all_turn else attn.rotate_num_heads


class BiasOfHeads(Style):
    """The position bias of a stack, for the heads of this device."""

    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        own = heads_here(self.heads, self.kv_heads, device_mesh)
        for owner, name in laid_out(module):
            see(owner, name, View(device_mesh, partial=True), self.source)
        if isinstance(module, AlibiPositionalBias):
            for name in ('each', 'sides') if isinstance(module, SplitAlibi) else ('each',):
                setattr(module, name, tuple(getattr(module, name)[head] for head in own))
            module.heads = module.total_heads = len(own)
            return module
        kind: Any = type(module)

        def of_distance(self: PositionBias, distance: Tensor) -> Tensor:
            return kind.of_distance(self, distance)[..., own]

        overridden(module, of_distance=of_distance)
        return module


# feedforward


class Features(Style):
    """The inner features of a feedforward; value and gate of a gated unit are cut each by itself."""

    def __init__(self, lane: Lane = WHOLE) -> None:
        super().__init__()
        self.lane = lane

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        widened, output = module.ff[0], module.output
        gated = isinstance(widened, GLU)
        inner = View(device_mesh, axis=0, parts=2 if gated else 1)
        wide = widened.proj if gated else widened[0]
        for name in [name for name, t in wide._parameters.items() if t is not None]:
            see(wide, name, inner, self.source)
        if gated and torch.is_tensor(widened.mult_bias):
            see(widened, 'mult_bias', View(device_mesh, axis=0), self.source)
        see(output, 'weight', View(device_mesh, axis=1), self.source)
        if output.bias is not None:
            see(output, 'bias', View(device_mesh, partial=True, divided=True), self.source)
        lane = self.lane

        def enter(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return lane.enter(args[0], device_mesh), *args[1:]

        module.ff.register_forward_pre_hook(enter)
        module.ff.register_forward_hook(lambda _, args, out: lane.leave(out, device_mesh))
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
            return summed(found, device_mesh)

        overridden(table, forward=forward)
        return table


class Logits(Style):
    """The rows of a head: each device gives the logits of the tokens that it has, and gets those of all."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        tied = isinstance(module, TiedReadout)
        classes = module.shared[0].emb.num_embeddings if tied else module.out_features
        for name in [name for name, t in module._parameters.items() if t is not None]:
            see(module, name, View(device_mesh, axis=0), self.source)
        module.register_forward_pre_hook(lambda _, args: (spread(args[0], device_mesh), *args[1:]))
        module.register_forward_hook(lambda _, args, out: joined(out, device_mesh, -1, classes))
        return module


# the stream


class Sequence(Style):
    """The stream of a stack, cut along the sequence between branches: each device norms and adds its own tokens."""

    def __init__(self, lane: Lane) -> None:
        super().__init__()
        self.lane = lane

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        stack, lane, kind = module, self.lane, type(module)
        for owner, name in laid_out(stack.layers):
            see(owner, name, View(device_mesh, lane=lane), self.source)

        def run_layers(self: Any, on: Any, transform: Any, x: Tensor, call: Any, steps: Any) -> Tensor:
            """As on one device; what is kept of layers, in a cache too, is whole."""
            length = x.shape[-2]
            if lane.length is not None or call.keeps or call.cache is not None or length < device_mesh.size():
                return kind.run_layers(self, on, transform, x, call, steps)
            lane.length = length
            try:
                own = moved(x, device_mesh, Replicate(), Shard(1))
                own = kind.run_layers(self, on, transform, own, call, steps)
            finally:
                lane.length = None
            return joined(own, device_mesh, 1, length)

        overridden(stack, run_layers=run_layers)
        return stack
