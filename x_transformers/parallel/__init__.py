"""Models on several devices, by the engines of PyTorch.

    parallelize(model, mesh)     tensor parallelism by `plan`: the devices share the work of every layer
    shard(model, mesh)           FSDP2: the devices share parameters, gradients and moments
    State(model, optimizer)      checkpoints of torch.distributed.checkpoint, for any number of devices

Each accepts any model, also with tied weights and grouped heads. Its outputs are those on one device.
"""

# ruff: noqa: F401  (names for users)

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    raise ImportError('x_transformers.parallel needs a torch that is built with torch.distributed') from None

from x_transformers.parallel.plans import parallelize, plan, shard
from x_transformers.parallel.states import State
