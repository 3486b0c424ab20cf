"""Models on several devices, by the engines of PyTorch.

    parallelize(model, mesh)     tensor parallel: the devices share the work of every layer; `plan` says how
    shard(model, mesh)           FSDP2: the devices share parameters, gradients and moments
    State(model, optimizer)      what torch.distributed.checkpoint saves and loads, on any number of devices

Each takes a model as it is, tied weights and grouped heads included, and the model computes what it computed on one
device.
"""

# ruff: noqa: F401  names that users import from here

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    raise ImportError('x_transformers.parallel needs a torch that is built with torch.distributed') from None

from x_transformers.parallel.plans import parallelize, plan, shard
from x_transformers.parallel.states import State
