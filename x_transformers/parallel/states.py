"""Checkpoints of sharded models and optimizers, by the names and shapes of one device.

`torch.distributed.checkpoint` saves and loads them on any number of devices, with any sharding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Joined(Tensor):
    """Tensor stored as several tensors along an axis, which a checkpoint of PyTorch treats as one."""

    parts: list[Tensor]
    axis: int

    @staticmethod
    def __new__(cls, parts: list[Tensor], axis: int) -> Joined:
        shape = list(parts[0].shape)
        shape[axis] *= len(parts)
        new = Tensor._make_wrapper_subclass(cls, shape, dtype=parts[0].dtype, device=parts[0].device)
        new.parts, new.axis = parts, axis
        return new

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].parts, args[0].axis)
        raise NotImplementedError(f'{func} of a tensor that is stored as several')

    def __repr__(self, **_: Any) -> str:
        return f'Joined({self.parts}, axis={self.axis})'

    def list_pieces(self) -> Iterator[tuple[tuple[int, ...], Tensor]]:
        """Yield the offsets of each local piece, and the piece."""
        for number, part in enumerate(self.parts):
            offsets, piece = get_local_part(part)
            if piece.numel():
                begin = list(offsets)
                begin[self.axis] += number * part.shape[self.axis]
                yield tuple(begin), piece

    def full_tensor(self) -> Tensor:
        return torch.cat([gather_full(part) for part in self.parts], dim=self.axis)

    # The protocol of PyTorch's planners.

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(begin), piece.shape) for begin, piece in self.list_pieces()]

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(begin)),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=ChunkStorageMetadata(torch.Size(begin), piece.shape),
                    properties=TensorProperties.create_from_tensor(piece),
                    size=self.shape,
                ),
            )
            for begin, piece in self.list_pieces()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(piece for begin, piece in self.list_pieces() if torch.Size(begin) == index.offset)

    __torch_function__: Any = torch._C._disabled_torch_function_impl


def get_local_part(t: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the offsets of the local part of a tensor, and the part."""
    if not isinstance(t, DTensor):
        return (0,) * t.ndim, t.detach()
    piece = t.to_local().detach()
    if not piece.numel():
        return (0,) * t.ndim, piece
    return tuple(compute_local_shape_and_global_offset(t.shape, t.device_mesh, t.placements)[1]), piece


def gather_full(t: Any) -> Any:
    """Return the whole of a tensor, on every device."""
    return t.full_tensor() if isinstance(t, (DTensor, Joined)) else t


def write_local_part(target: Any, whole: Tensor) -> None:
    """Write the local part of a whole tensor into a tensor, in place."""
    pieces = target.list_pieces() if isinstance(target, Joined) else [get_local_part(target)]
    for begin, piece in pieces:
        own = tuple(slice(start, start + length) for start, length in zip(begin, piece.shape, strict=True))
        piece.copy_(whole[own])


class State:
    """State of a model, and of an optimizer, for `torch.distributed.checkpoint`:

        dcp.save({'app': State(model, optimizer)}, checkpoint_id=folder)
        dcp.load({'app': State(model, optimizer)}, checkpoint_id=folder)

    Names and shapes are those of the model on one device: a checkpoint of two devices that share heads can be loaded
    by three that share parameters, or by one.
    """

    optimizer: Any

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        is_ddp = isinstance(model, nn.parallel.DistributedDataParallel)
        self.model, self.optimizer = model.module if is_ddp else model, optimizer
        self.wholes: dict[str, tuple[str, int, int]] = {}  # Parts -> name on one device, index, axis.
        for prefix, module in self.model.named_modules(remove_duplicate=False):
            for name, view in vars(module).get('parallel_views', {}).items():
                for number, part in enumerate(view.list_names(name) if view.parts > 1 else ()):
                    path = f'{prefix}.' if prefix else ''
                    self.wholes[path + part] = path + name, number, view.axis

    def state_dict(self) -> dict[str, Any]:
        state = {'model': self.join_parts(get_model_state_dict(self.model))}
        if self.optimizer is not None:
            state['optimizer'] = self.join_parts(self.get_moments())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint. Tensors of `state_dict` already have their new values."""
        set_model_state_dict(self.model, self.split_parts(state['model'], get_model_state_dict(self.model)))
        if self.optimizer is not None:
            moments = self.split_parts(state['optimizer'], self.get_moments())
            set_optimizer_state_dict(self.model, self.optimizer, moments, options=FLAT)

    def get_moments(self) -> dict[str, Any]:
        return get_optimizer_state_dict(self.model, self.optimizer, options=FLAT)

    def whole(self) -> dict[str, dict[str, Any]]:
        """Return the state as whole tensors on every device. All devices must call it."""
        return {level: {n: gather_full(t) for n, t in own.items()} for level, own in self.state_dict().items()}

    def put(self, wholes: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the state from whole tensors."""
        state = self.state_dict()
        for level, own in state.items():
            for name, target in own.items():
                if isinstance(target, (Tensor, Joined)):
                    write_local_part(target, wholes[level][name])
                else:
                    own[name] = wholes[level].get(name, target)
        self.load_state_dict(state)

    # names

    def find_whole(self, name: str) -> tuple[str, int, int] | None:
        """Return the single-device name of a part or its optimizer state, the part, and the axis."""
        lead = next((lead for lead in ('state.', 'param_groups.') if name.startswith(lead)), '')
        path = name.removeprefix(lead)
        for part, end in ((path, ''), (path.rpartition('.')[0], f'.{path.rpartition(".")[2]}')):
            if part in self.wholes:
                whole, number, axis = self.wholes[part]
                return f'{lead}{whole}{end}', number, axis
        return None

    def join_parts(self, state: Mapping[str, Any]) -> dict[str, Any]:
        new: dict[str, Any] = {}
        apart: dict[tuple[str, int], dict[int, Tensor]] = {}
        for name, value in state.items():
            found = self.find_whole(name)
            if found is None:
                new[name] = value
            elif torch.is_tensor(value) and value.ndim:
                whole, number, axis = found
                apart.setdefault((whole, axis), {})[number] = value
            else:  # A number of steps or a learning rate, which all parts share.
                new[found[0]] = value
        return new | {name: Joined([own[n] for n in sorted(own)], axis) for (name, axis), own in apart.items()}

    def split_parts(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        new: dict[str, Any] = {}
        for name in own:
            found: Any = self.find_whole(name)
            value = state[name if found is None else found[0]]
            value = value.parts[found[1]] if isinstance(value, Joined) and found is not None else value
            counts = found is not None and torch.is_tensor(value) and not value.ndim
            new[name] = value.clone() if counts else value  # Each part counts its own steps.
        return new
