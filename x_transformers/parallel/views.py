"""How one device of several sees a tensor that lies on all of them: its part of it, as a plain tensor.

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


def moved(
    x: Tensor,
    mesh: DeviceMesh,
    now: Placement,
    then: Placement,
    grads: Placement | None = None,
    size: int | None = None,
) -> Tensor:
    """This device's part of a tensor, laid out as `now`, after it is laid out as `then`.

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
    """What every device has, to be used by each for its part: gradients are summed."""
    return moved(x, mesh, Replicate(), Replicate(), grads=Partial())


def summed(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """The sum of what the devices have, on all of them."""
    return moved(x, mesh, Partial(), Replicate())


def joined(x: Tensor, mesh: DeviceMesh, axis: int, size: int) -> Tensor:
    """The parts of all devices along an axis, side by side, on all of them."""
    return moved(x, mesh, Shard(axis % x.ndim), Replicate(), size=size)


class Lane:
    """How the stream of a stack lies: whole on every device, or each with some of the tokens.

    length   of the whole sequence, while it is cut; None while it is whole
    """

    def __init__(self) -> None:
        self.length: int | None = None

    def enter(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """The stream (b n d) as a branch reads it: whole."""
        if self.length is None:
            return spread(x, mesh)
        return moved(x, mesh, Shard(LENGTH), Replicate(), grads=Partial(), size=self.length)

    def leave(self, x: Tensor, mesh: DeviceMesh) -> Tensor:
        """What a branch adds to the stream, of which each device has a summand."""
        return summed(x, mesh) if self.length is None else moved(x, mesh, Partial(), Shard(LENGTH))


WHOLE = Lane()  # of what never cuts the sequence; never written to


# parameters


@dataclass(frozen=True)
class View:
    """How a module sees one of its parameters.

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
def seen_through(kind: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """A class of modules whose parameters of these names are seen through the module's views."""

    def read(name: str) -> property:
        return property(lambda self: self.parallel_views[name].of(self, name))

    own = {name: read(name) for name in names}
    own |= {'__module__': __name__, '__doc__': kind.__doc__, 'kind_on_one': kind}
    return type(f'Parallel{kind.__name__}', (kind,), own)


def see(module: nn.Module, name: str, view: View, source: int | None) -> None:
    """Lay a parameter of a module out over the devices, and let the module see it through a view."""
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
    module.__class__ = seen_through(kind, tuple(sorted(views)))


def from_device(source: int | None) -> dict[str, Any]:
    """The keyword of `distribute_tensor` that says whose values count, where torch has it."""
    return {'src_data_rank': source} if 'src_data_rank' in distribute_tensor.__code__.co_varnames else {}


def overridden(module: nn.Module, **methods: Any) -> None:
    """Give a module a class of its own, with other methods. Each calls what it overrides by the class before."""
    kind = type(module)
    module.__class__ = type(f'Parallel{kind.__name__}', (kind,), {**methods, '__module__': __name__})
