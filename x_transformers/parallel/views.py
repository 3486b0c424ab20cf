"""Views of distributed tensors: the local part of a tensor as a plain one.

Modules compute with plain tensors, as on one device, only with fewer heads or features. What belongs here: the view
that a module gets of its parameters, which are `DTensor`s, and what goes between devices where a branch begins and
ends. All of it is torch's own redistribution, which knows the gradients.
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

LENGTH = 1  # the axis of tokens in the stream, b n d


# between devices


def move_tensors(
    x: Tensor,
    mesh: DeviceMesh,
    now: Placement,
    then: Placement,
    grads: Placement | None = None,
    size: int | None = None,
) -> Tensor:
    """Return the local part of a tensor with placement `now`, after one with placement `then`.

    grads   how the gradient arrives, if not as `then`
    size    of the axis that `now` cuts, all parts together
    """
    whole: dict[str, Any] = {}
    if isinstance(now, Shard) and size is not None:
        shape = torch.Size((*x.shape[: now.dim], size, *x.shape[now.dim + 1 :]))
        whole = dict(shape=shape, stride=torch.empty(shape, device='meta').stride())
    laid = DTensor.from_local(x.contiguous(), mesh, [now], run_check=False, **whole)
    return laid.redistribute(mesh, [then]).to_local(grad_placements=None if grads is None else [grads])


def spread(x: Tensor, mesh: DeviceMesh) -> Tensor:
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

    length   of the whole sequence, while it is cut; None while it is whole
    """

    def __init__(self) -> None:
        self.length: int | None = None

    def enter(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """Return the whole stream (b, n, d) for a branch."""
        if self.length is None:
            return spread(x, mesh)
        return move_tensors(x, mesh, Shard(LENGTH), Replicate(), grads=Partial(), size=self.length)

    def leave(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """Return the sum over devices of a branch's output, with the placement of the stream."""
        return sum_shards(x, mesh) if self.length is None else move_tensors(x, mesh, Partial(), Shard(LENGTH))


WHOLE = Lane()  # The lane of models that do not shard the sequence. It is never written to.


# parameters


@dataclass(frozen=True)
class View:
    """Local view that a module has of one of its parameters.

    axis      along which it is cut; None if every device has all of it
    parts     how many parts it has, each of which is cut by itself
    partial   each device uses it for what only that one computes
    lane      the same while the stream is cut
    divided   each device adds its share, and all of them together add the parameter
    """

    mesh: DeviceMesh
    axis: Maybe[int] = None
    parts: int = 1
    partial: bool = False
    lane: Maybe[Lane] = None
    divided: bool = False

    def names(self, name: str) -> list[str]:
        """Of the parameters that hold it."""
        return [name] if self.parts == 1 else [f'{name}_{part}' for part in range(self.parts)]

    def of(self, module: nn.Module, name: str) -> Tensor:
        found: list[Any] = [module._parameters[one] for one in self.names(name)]
        if any(not isinstance(t, DTensor) or t.device_mesh.ndim != 1 for t in found):
            if len(found) == 1:
                return found[0]  # at rest, sharded further
            raise RuntimeError(f'`{name}` is sharded further, and gathered only while its module runs')
        own = [t.to_local() for t in found]
        t: Any = own[0] if len(own) == 1 else torch.cat(own, dim=self.axis)
        if self.partial or (self.lane is not None and self.lane.length is not None):
            t: Any = spread(t, self.mesh)
        return t / self.mesh.size() if self.divided else t


@functools.cache
def see_through(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """Return a class of modules that read the given parameters through the module's views."""

    def read(name: str) -> property:
        return property(lambda self: self.parallel_views[name].of(self, name))

    own = {name: read(name) for name in names}
    own |= {'__module__': __name__, '__doc__': kind.__doc__, 'kind_on_one': kind}
    return type(f'Parallel{kind.__name__}', (kind,), own)


def see(module: nn.Module, name: str, view: View, source: int | None) -> None:
    """Distribute a parameter of a module over the devices, and let the module read it through a view."""
    whole: Any = module._parameters.pop(name)
    if view.axis is not None and whole.shape[view.axis] % view.parts:
        raise ConfigError(f'`{name}` of shape {tuple(whole.shape)} cannot be cut into {view.parts} parts')
    placement = Replicate() if view.axis is None else Shard(view.axis)
    pieces = [whole.detach()] if view.parts == 1 else whole.detach().chunk(view.parts, view.axis)
    for one, piece in zip(view.names(name), pieces, strict=True):
        laid = distribute_tensor(piece.contiguous(), view.mesh, [placement], **from_device(source))
        module._parameters[one] = nn.Parameter(laid, requires_grad=whole.requires_grad)
    views = {**vars(module).get('parallel_views', {}), name: view}
    vars(module)['parallel_views'] = views
    kind = vars(type(module)).get('kind_on_one', type(module))
    module.__class__ = see_through(kind, tuple(sorted(views)))


def from_device(source: int | None) -> dict[str, Any]:
    """Return the keyword of `distribute_tensor` that selects the source rank, if PyTorch has it."""
    return {'src_data_rank': source} if 'src_data_rank' in distribute_tensor.__code__.co_varnames else {}


def override_forward(module: nn.Module, **methods: Any) -> None:
    """Give a module its own class with other methods. Each can call the method that it overrides."""
    kind = type(module)
    module.__class__ = type(f'Parallel{kind.__name__}', (kind,), {**methods, '__module__': __name__})
