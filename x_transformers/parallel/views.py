"""Views of distributed tensors: the local part of a tensor as a plain one.

Modules compute with ordinary tensors, as on one device, with fewer heads or channels. This module defines the view that
a module has of its parameters, which are `DTensor`s, and the communication where a branch begins and ends. All of it is
PyTorch's redistribution, which is differentiable.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from x_transformers.flags import ConfigError
from x_transformers.flags.checks import Maybe

LENGTH = 1  # The axis of tokens in the stream (b, n, d).


# between devices


def move_tensors(
    x: Tensor,
    mesh: DeviceMesh,
    now: Placement,
    then: Placement,
    grads: Placement | None = None,
    size: int | None = None,
) -> Tensor:
    """Return the local part of a tensor with placement `then` for one, `x`, with placement `now`.

    `grads` is the placement of the gradient, if it differs from `then`, and `size` the total length of the axis that
    `now` shards.
    """
    whole: dict[str, Any] = {}
    if isinstance(now, Shard) and size is not None:
        shape = torch.Size((*x.shape[: now.dim], size, *x.shape[now.dim + 1 :]))
        whole = dict(shape=shape, stride=torch.empty(shape, device='meta').stride())
    placed = DTensor.from_local(x.contiguous(), mesh, [now], run_check=False, **whole)
    return placed.redistribute(mesh, [then]).to_local(grad_placements=None if grads is None else [grads])


def use_replicated(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return a replicated tensor for local use. Its gradients are summed."""
    return move_tensors(x, mesh, Replicate(), Replicate(), grads=Partial())


def sum_shards(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the sum over devices, on all of them."""
    return move_tensors(x, mesh, Partial(), Replicate())


def join_shards(x: Tensor, mesh: DeviceMesh, axis: int, size: int) -> Tensor:
    """Return the parts of all devices concatenated along an axis, on all of them."""
    return move_tensors(x, mesh, Shard(axis % x.ndim), Replicate(), size=size)


class Lane:
    """Placement of the stream of a stack: replicated, or sharded along tokens.

    Attributes:
        length: Length of the whole sequence while it is sharded, else None.
    """

    def __init__(self) -> None:
        self.length: int | None = None

    def gather(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """Return the whole stream (b, n, d) for a branch."""
        if self.length is None:
            return use_replicated(x, mesh)
        return move_tensors(x, mesh, Shard(LENGTH), Replicate(), grads=Partial(), size=self.length)

    def scatter(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """Return the sum over devices of a branch's output, with the placement of the stream."""
        return sum_shards(x, mesh) if self.length is None else move_tensors(x, mesh, Partial(), Shard(LENGTH))


WHOLE = Lane()  # The lane of models that do not shard the sequence. It never changes.


# parameters


@dataclass(frozen=True)
class View:
    """Local view that a module has of one of its parameters.

    Attributes:
        axis: Sharded axis; None for a replicated parameter.
        parts: Number of parts that are sharded separately.
        partial: True if the local results, and so the gradients, differ between devices.
        lane: A lane in whose sharded stream the same holds.
        divided: True if each device adds its share of the parameter.
    """

    mesh: DeviceMesh
    axis: Maybe[int] = None
    parts: int = 1
    partial: bool = False
    lane: Maybe[Lane] = None
    divided: bool = False

    def list_names(self, name: str) -> list[str]:
        """Return the names of the parameters that store the parts."""
        return [name] if self.parts == 1 else [f'{name}_{part}' for part in range(self.parts)]

    def get(self, module: nn.Module, name: str) -> Tensor:
        found: list[Any] = [module._parameters[one] for one in self.list_names(name)]
        if any(not isinstance(t, DTensor) or t.device_mesh.ndim != 1 for t in found):
            if len(found) == 1:
                return found[0]  # The module does not run, and the parameter is sharded further.
            raise RuntimeError(f'`{name}` is sharded further, and gathered only while its module runs')
        own = [t.to_local() for t in found]
        t: Any = own[0] if len(own) == 1 else torch.cat(own, dim=self.axis)
        if self.partial or (self.lane is not None and self.lane.length is not None):
            t: Any = use_replicated(t, self.mesh)
        return t / self.mesh.size() if self.divided else t


@functools.cache
def make_parallel_class(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """Return a subclass whose given parameters are local views."""

    def make_property(name: str) -> property:
        return property(lambda self: self.parallel_views[name].get(self, name))

    own = {name: make_property(name) for name in names}
    own |= {'__module__': __name__, '__doc__': kind.__doc__, 'kind_on_one': kind}
    return type(f'Parallel{kind.__name__}', (kind,), own)


def distribute(module: nn.Module, name: str, view: View, source: int | None) -> None:
    """Distribute a parameter of a module over the devices, and replace it by a local view."""
    whole: Any = module._parameters.pop(name)
    if view.axis is not None and whole.shape[view.axis] % view.parts:
        raise ConfigError(f'`{name}` of shape {tuple(whole.shape)} cannot be split into {view.parts} parts')
    placement = Replicate() if view.axis is None else Shard(view.axis)
    pieces = [whole.detach()] if view.parts == 1 else whole.detach().chunk(view.parts, view.axis)
    for one, piece in zip(view.list_names(name), pieces, strict=True):
        placed = distribute_tensor(piece.contiguous(), view.mesh, [placement], src_data_rank=source)
        module._parameters[one] = nn.Parameter(placed, requires_grad=whole.requires_grad)
    views = {**vars(module).get('parallel_views', {}), name: view}
    vars(module)['parallel_views'] = views
    kind = vars(type(module)).get('kind_on_one', type(module))
    module.__class__ = make_parallel_class(kind, tuple(sorted(views)))


def override_forward(module: nn.Module, **methods: Any) -> None:
    """Replace the class of a module by a subclass with other methods, which can call those that they override."""
    kind = type(module)
    module.__class__ = type(f'Parallel{kind.__name__}', (kind,), {**methods, '__module__': __name__})
