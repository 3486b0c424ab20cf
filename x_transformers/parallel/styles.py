"""Styles for `parallelize_module`: how each part of a model is sharded.

Attention is sharded by heads, feedforwards by inner channels, token table and head by tokens of the vocabulary. Each
device runs the ordinary code of the module on its part, and the outputs of branches are summed. Megatron-LM,
arXiv:1909.08053; with the sequence sharded between branches, arXiv:2205.05198.
"""

from __future__ import annotations

import re
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
    distribute,
    join_shards,
    move_tensors,
    override_forward,
    sum_shards,
    use_replicated,
)
from x_transformers.x_transformers import Attention


class Style(ParallelStyle):
    """Base class of the parallel styles. `lane` is that of the stream of the stack around a module."""

    def __init__(self, lane: Lane = WHOLE) -> None:
        super().__init__()
        self.lane = lane

    def distribute_all(self, module: nn.Module, view: View) -> None:
        """Distribute the parameters below a module that are not distributed yet."""
        for owner in module.modules():
            for name, parameter in list(owner._parameters.items()):
                if parameter is not None and not isinstance(parameter, DTensor):
                    distribute(owner, name, view, self.src_data_rank)

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'


class Alike(Style):
    """Style that replicates the parameters without another style. `own` is the style of the module itself, if any."""

    def __init__(self, own: Style | None = None) -> None:
        super().__init__()
        self.own = own

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if self.own is not None:
            self.own.src_data_rank = self.src_data_rank
            self.own._apply(module, device_mesh)
        self.distribute_all(module, View(device_mesh))
        return module


# attention


def get_shards(feature: Feature) -> dict[str, tuple[int, str]] | None:
    """Return the shards that the class of a feature declares. Those of a base class may not apply."""
    return feature.tp_shards if 'tp_shards' in vars(type(feature)) else None


def find_shard(feature: Feature, path: str) -> tuple[nn.Module, str] | None:
    """Return the module with a parameter of a feature, and its name there; None if the feature has none."""
    first, _, rest = path.partition('.')
    inside = feature.stored_as.get(first, first)
    *outer, name = (f'{inside}.{rest}' if rest else inside).split('.')
    module: Any = feature.owner
    for one in outer:
        module = getattr(module, one, None)
    return (module, name) if module is not None and module._parameters.get(name) is not None else None


class ShardedHeads(Style):
    """Style that shards the heads of an attention layer with their keys. Few key heads are replicated instead.

    Query head h uses key head h mod k, so that each group of k query heads is sharded like the keys.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        attn: Any = module
        sizes, count = attn.shape, device_mesh.size()
        groups = count_groups(sizes.heads, sizes.kv_heads, count)
        of_keys = View(device_mesh, axis=0) if groups else View(device_mesh, partial=True)
        of_queries = View(device_mesh, axis=0, parts=groups or 1)
        for linear, view in ((attn.to_q, of_queries), (attn.to_k, of_keys), (attn.to_v, of_keys)):
            self.distribute_all(linear, view)
        distribute(attn.to_out, 'weight', replace(of_queries, axis=1), self.src_data_rank)
        if attn.to_out.bias is not None:
            distribute(attn.to_out, 'bias', View(device_mesh, partial=True, divided=True), self.src_data_rank)
        for feature in attn.features.active:
            for path, (axis, of) in (get_shards(feature) or {}).items():
                found = find_shard(feature, path)
                view = of_queries if of == 'heads' else of_keys
                if found is not None:
                    distribute(*found, view if view.axis is None else replace(view, axis=axis), self.src_data_rank)
        self.distribute_all(attn, View(device_mesh, partial=True))
        keys = sizes.kv_heads // count if groups else sizes.kv_heads
        count_heads(attn, sizes.heads // count, keys)
        self.override(attn, HeadShard(sizes.heads, sizes.kv_heads, device_mesh))
        return attn

    def override(self, attn: Any, shard: HeadShard) -> None:
        kind, lane, mesh = type(attn), self.lane, shard.mesh
        axes = {'attn_mask': '... h i j'}
        for feature in attn.features.active:
            axes |= feature.tp_input_shards

        def forward(self: Any, x: Tensor, context: Tensor | None = None, *masks: Any, **inputs: Any) -> Any:
            inputs = {**dict(zip(MASKS, masks, strict=False)), **inputs}
            inputs = {name: shard.shard_input(value, axes.get(name)) for name, value in inputs.items()}
            context = None if context is None else use_replicated(context, mesh)
            with AuxLosses() as losses:
                out = kind.forward(self, lane.gather(x, mesh), context, **inputs)
            check_losses(losses, 'some of the heads')
            if isinstance(out, tuple):
                shard.gather_maps(out[1])
                return lane.scatter(out[0], mesh), *out[1:]
            return lane.scatter(out, mesh)

        override_forward(attn, forward=forward)


MASKS = ('mask', 'context_mask', 'attn_mask')  # Positional inputs of attention after x and context.


def check_losses(losses: AuxLosses, share: str) -> None:
    """Raise ConfigError for features that add a loss, since it would be computed from local values."""
    for name in losses.by_name:
        raise ConfigError(f'the loss `{name}` cannot be shared by several devices: each would compute it from {share}')


@dataclass(frozen=True)
class HeadShard:
    """Total heads of an attention layer, and the local part of tensors with an axis of heads."""

    heads: int
    kv_heads: int
    mesh: DeviceMesh

    def list_heads(self, rank: int, letter: str = 'h') -> list[int]:
        """Return the indices of local query heads ('h') or key heads ('k'), in their local order."""
        groups, count = count_groups(self.heads, self.kv_heads, self.mesh.size()), self.mesh.size()
        if letter == 'h':
            return torch.arange(self.heads).view(groups or 1, -1).chunk(count, dim=1)[rank].flatten().tolist()
        return torch.arange(self.kv_heads).chunk(count if groups else 1)[rank if groups else 0].tolist()

    def shard_input(self, value: Any, axes: Maybe[str | tuple[str | None, ...]]) -> Any:
        """Return the local part of an input: axes of heads are sharded, and gradients are summed."""
        if isinstance(axes, tuple) and isinstance(value, (tuple, list)):
            return tuple(self.shard_input(one, own) for one, own in zip(value, axes, strict=True))
        if axes == '':
            return value

        pattern: Any = axes  # A string here, since pairs returned above.

        def make_local(t: Any) -> Any:
            if not torch.is_tensor(t):
                return t
            t = use_replicated(t, self.mesh) if t.requires_grad and torch.is_grad_enabled() else t
            return t if axes is None else self.shard_heads(t, pattern)

        return tree_map(make_local, value)

    def shard_heads(self, t: Tensor, axes: str) -> Tensor:
        """Return the part of a tensor with axes such as '... h i j' or 'b n (h d)' for the local heads. Of fewer heads,
        which several share, it selects those in use; a single one is kept.
        """
        names = re.findall(r'\(.*?\)|\S+', axes)
        axis = next(at for at, name in enumerate(names) if 'h' in name or 'k' in name) - len(names)
        letter = 'h' if 'h' in names[axis] else 'k'
        if t.ndim < -axis or (names[0] != '...' and t.ndim != len(names)) or t.shape[axis] == 1:
            return t
        heads = self.list_heads(self.mesh.get_local_rank(), letter)
        total, size = self.heads if letter == 'h' else self.kv_heads, t.shape[axis]
        if size % total == 0:
            index = torch.arange(size, device=t.device).view(total, -1)[heads].flatten()
        elif total % size == 0:
            index = torch.tensor(list(dict.fromkeys(head % size for head in heads)), device=t.device)
        else:
            return t  # The layer raises an error with the right size.
        return t.index_select(axis, index)

    def gather_maps(self, intermediates: Any) -> None:
        """Gather the attention maps of all heads in the intermediates of a call. All devices must call it."""
        compute, known = intermediates.compute_maps, intermediates.maps
        each = [head for rank in range(self.mesh.size()) for head in self.list_heads(rank)]

        def gather(maps: Any) -> list[Tensor | None]:
            back = torch.tensor(each).argsort()
            joins = (None if t is None else join_shards(t, self.mesh, 1, self.heads) for t in maps)
            return [None if t is None else t.index_select(1, back.to(t.device)) for t in joins]

        if any(t is not None for t in known):
            intermediates.maps = gather(known)
        if compute is not None and not isinstance(compute, MissingMaps):
            intermediates.compute_maps = lambda: gather(compute())


def count_groups(heads: int, kv_heads: int, devices: int) -> int:
    """Return the number of groups of query heads if key heads are sharded, or 0 if they are replicated."""
    if kv_heads % devices == 0:
        return heads // kv_heads
    if heads // kv_heads % devices == 0:
        return 0
    raise ConfigError(
        f'`kv_heads` or `heads` / `kv_heads` must be a multiple of the {devices} devices, got heads={heads} and '
        f'kv_heads={kv_heads}'
    )


def count_heads(attn: Any, heads: int, kv_heads: int) -> None:
    """Set the number of local heads of an attention layer."""
    rotates_all = attn.rotate_num_heads == attn.heads
    attn.shape = replace(attn.shape, heads=heads, kv_heads=kv_heads)
    attn.dim_merged = attn.dim_merged * heads // attn.heads
    attn.query_heads, attn.key_heads = heads, kv_heads
    attn.heads, attn.kv_heads = heads, kv_heads
    if rotates_all:
        vars(attn)['rotate_num_heads'] = heads  # Flags of a built layer cannot be assigned.


class BiasOfHeads(Style):
    """Style that computes the position bias of a stack for the local heads."""

    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        own = HeadShard(self.heads, self.kv_heads, device_mesh).list_heads(device_mesh.get_local_rank())
        self.distribute_all(module, View(device_mesh, partial=True))
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
    """Style that shards the inner channels of a feedforward; value and gate of a gated unit separately."""

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> nn.Module:
        widened, output = module.ff[0], module.output_layer
        gated = isinstance(widened, GLU)
        inner = View(device_mesh, axis=0, parts=2 if gated else 1)
        wide: Any = widened.proj if gated else widened[0]
        self.distribute_all(wide, inner)
        if gated and torch.is_tensor(widened.mult_bias):
            distribute(widened, 'mult_bias', View(device_mesh, axis=0), self.src_data_rank)
        distribute(output, 'weight', View(device_mesh, axis=1), self.src_data_rank)
        if output.bias is not None:
            distribute(output, 'bias', View(device_mesh, partial=True, divided=True), self.src_data_rank)
        lane = self.lane
        kind: Any = type(module.ff)

        def forward(self: Any, x: Tensor, *args: Any) -> Tensor:
            return lane.scatter(kind.forward(self, lane.gather(x, device_mesh), *args), device_mesh)

        override_forward(module.ff, forward=forward)
        return module


# vocabulary


class Vocabulary(Style):
    """Style that shards a token table by tokens: each device looks up its own."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        table: Any = module
        distribute(table, 'weight', View(device_mesh, axis=0), self.src_data_rank)
        each = -(-table.num_embeddings // device_mesh.size())  # As torch shards.
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
    """Style that shards a head by tokens: each device computes the logits of its own, and gathers all."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        tied = isinstance(module, TiedReadout)
        classes: Any = module.shared[0].emb.num_embeddings if tied else module.out_features
        self.distribute_all(module, View(device_mesh, axis=0))
        module.register_forward_pre_hook(lambda _, args: (use_replicated(args[0], device_mesh), *args[1:]))
        module.register_forward_hook(lambda _, args, out: join_shards(cast('Tensor', out), device_mesh, -1, classes))
        return module


# the stream


class Sequence(Style):
    """Style that shards the stream of a stack along the sequence between branches, with norms and residuals."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        lane = self.lane
        stack: Any = module
        kind: Any = type(module)
        # Attention gets these inputs for all tokens.
        of_attention = {name for m in stack.modules() if isinstance(m, Attention) for name in m.features.call_inputs}

        def needs_whole(call: Any) -> bool:
            """Return True if a call keeps results of whole layers, or has inputs with an axis of tokens."""
            if call.keeps or call.cache is not None or call.mems or call.norm_inputs:
                return True
            return any(value is not None and name not in of_attention for name, value in call.inputs.items())

        self.distribute_all(stack.layers, View(device_mesh, lane=lane))

        def run_steps(self: Any, features: Any, transform: Any, x: Tensor, call: Any, steps: Any) -> Tensor:
            """Run the layers on local tokens, or as on one device if results are kept, in a cache for example."""
            length = x.shape[-2]
            if lane.length is not None or transform is not None or length < device_mesh.size() or needs_whole(call):
                return kind.run_steps(self, features, transform, x, call, steps)
            lane.length = length
            try:
                own = move_tensors(x, device_mesh, Replicate(), Shard(1))
                with AuxLosses() as losses:
                    own = kind.run_steps(self, features, transform, own, call, steps)
            finally:
                lane.length = None
            check_losses(losses, 'some of the tokens')
            return join_shards(own, device_mesh, 1, length)

        override_forward(stack, run_steps=run_steps)
        return stack
