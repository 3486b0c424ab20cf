"""Processes that train one model together, as torchrun starts them.

    torchrun --nproc-per-node 2 examples/train_lm.py --parallel fsdp

    ddp       each process has the whole model, and takes its rows of every batch
    fsdp      the same, but parameters, gradients and moments are dealt out
    fsdp+tp   groups of `--tensor-parallel` processes share the work of every layer, and the rows of the group

All of them draw the same, so that a run has the numbers of one process, but for rounding; a checkpoint is that of one
process, and resumed by any number.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.options import Config, Stop, size

WAYS = ('ddp', 'fsdp', 'fsdp+tp')


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--parallel', choices=WAYS, help='how the processes that torchrun started share the work')
    parser.add_argument('--tensor-parallel', type=size, help='with fsdp+tp: processes to a layer (2)')


class Ranks:
    """How the processes of a run share its work; by default there is one.

    number, count   this process, and how many there are
    row, rows       which share of each batch it takes, and of how many
    """

    def __init__(self, how: str | None = None, number: int = 0, count: int = 1, together: int = 1) -> None:
        self.how, self.number, self.count, self.together = how, number, count, together
        self.row, self.rows = number // together, count // together

    @classmethod
    def started(cls, args: argparse.Namespace) -> Ranks:
        """The processes that torchrun has started.  Raises Stop if --parallel does not fit them."""
        how, count = args.parallel, int(os.environ.get('WORLD_SIZE', 1)) if 'RANK' in os.environ else 0
        if args.tensor_parallel is not None and how != 'fsdp+tp':
            raise Stop('--tensor-parallel is for --parallel fsdp+tp')
        if how is None:
            if count > 1:
                raise Stop(f'torchrun started {count} processes; --parallel says how they share the work')
            return cls()
        if not count:
            command = f'torchrun --nproc-per-node 2 {sys.argv[0]} --parallel {how}'
            raise Stop(f'--parallel {how} is for several processes: {command}')
        together = (args.tensor_parallel or 2) if how == 'fsdp+tp' else 1
        if count % together:
            raise Stop(f'--tensor-parallel {together} must divide the number of processes, {count}')
        return cls(how, int(os.environ['RANK']), count, together)

    @property
    def leads(self) -> bool:
        """Whether this process speaks, and writes."""
        return self.number == 0

    def machine(self, device: str) -> str:
        """The device of this process."""
        own_gpu = device in ('auto', 'cuda') and torch.cuda.is_available()
        return f'cuda:{os.environ["LOCAL_RANK"]}' if self.how and own_gpu else device

    @contextmanager
    def meeting(self) -> Iterator[Ranks]:
        """While it lasts, the processes can talk to one another. Only the first one writes to the terminal."""
        if self.how is None:
            yield self
            return
        logging.getLogger('torch.distributed.tensor._redistribute').setLevel(logging.ERROR)
        warnings.filterwarnings('ignore', 'FSDP2-wrapped module', UserWarning)  # of views that nobody changes
        out, met = sys.stdout, torch.distributed.is_initialized()
        with open(os.devnull, 'w', encoding='utf-8') as nowhere:
            sys.stdout = out if self.leads else nowhere
            if not met:
                torch.distributed.init_process_group()
            try:
                yield self
            finally:
                sys.stdout = out
                if not met:
                    torch.distributed.destroy_process_group()

    def check(self, config: Config, compiled: bool) -> None:
        """Refuse what this many processes cannot share."""
        if config.batch_size % self.rows:
            raise Stop(f'--batch-size {config.batch_size} cannot be shared by {self.rows} processes, or groups of them')
        if self.how and compiled:
            raise Stop('--compile cannot be combined with --parallel')
        if self.how and config.precision == 'float16':
            raise Stop('--precision float16 cannot be combined with --parallel; bfloat16 does')

    # the model

    def laid_out(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model as it lies on these processes, in place."""
        if self.how not in ('fsdp', 'fsdp+tp'):
            return model
        from torch.distributed.device_mesh import init_device_mesh

        from x_transformers.parallel import parallelize, shard

        try:
            mesh = init_device_mesh(device.type, (self.rows, self.together), mesh_dim_names=('rows', 'layers'))
            if self.how == 'fsdp+tp':
                parallelize(model, mesh['layers'])
            return shard(model, mesh['rows'])
        except ValueError as error:
            raise Stop(f'--parallel {self.how}: {error}') from None

    def called(self, model: nn.Module) -> nn.Module:
        """What is called for the loss."""
        return nn.parallel.DistributedDataParallel(model) if self.how == 'ddp' else model

    def state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        """What gathers a model that is dealt out, and deals it out again; None if each process has all of it."""
        if self.how not in ('fsdp', 'fsdp+tp'):
            return None
        from x_transformers.parallel import State

        return State(model, optimizer)

    # numbers

    def own(self, batch: Tensor) -> Tensor:
        """The rows of a batch that this process takes."""
        return batch[self.row :: self.rows]

    def mean(self, value: Tensor) -> Tensor:
        """The mean of what the processes have."""
        if self.how is None:
            return value
        value = value.detach().clone()
        torch.distributed.all_reduce(value)
        return value / self.count

    def any(self, *flags: bool) -> list[bool]:
        """Whether any of the processes says so, for each question."""
        if self.how is None:
            return list(flags)
        device = torch.device('cuda') if torch.distributed.get_backend() == 'nccl' else torch.device('cpu')
        said = torch.tensor(flags, dtype=torch.int32, device=device)
        torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX)
        return [bool(flag) for flag in said.tolist()]

    # files

    @contextmanager
    def first(self, folder: AbstractContextManager[Path]) -> Iterator[Path]:
        """The folder that the first process makes and holds, for all of them."""
        if self.how is None:
            with folder as out:
                yield out
            return
        if not self.leads:
            found: list[Any] = [None]
            torch.distributed.broadcast_object_list(found)
            yield found[0]
            return
        with folder as out:
            torch.distributed.broadcast_object_list([out])
            yield out


ALONE = Ranks()


def local(t: Tensor) -> Tensor:
    """What of a tensor is on this process."""
    return t.to_local() if hasattr(t, 'to_local') else t


def whole(t: Tensor) -> Tensor:
    return t.full_tensor() if hasattr(t, 'full_tensor') else t
