"""What an operation costs, counted and not timed: storages, products, and all that is written.

    grows(lambda n: layer(torch.randn(1, n, 16)), 512)                       # linear in time and memory
    grows(lambda n: layer_of(stride=isqrt(n))(torch.randn(1, n, 16)), 256, 2**1.5)

Counts are the same in every run and on every machine. Choose n of at least 16 (dim + window), so that what grows with
n alone cannot hide what grows with its square.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
SLACK = 1.15
# fused attention, as (products of queries with keys, products with values): weights are computed again backwards
FUSED = {
    aten._scaled_dot_product_flash_attention_for_cpu: (0, 1, 1),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (1, 3, 2),
}


def flops_of(packet: object, args: tuple, kwargs: dict, out: object) -> int:
    """Two for each multiplication of a product; what is no product has none."""
    if packet in FUSED:
        at, with_keys, with_values = FUSED[packet]  # backwards, the gradient stands in front
        q, k, v = args[at : at + 3]
        return 2 * q.shape[:-1].numel() * k.shape[-2] * (with_keys * q.shape[-1] + with_values * v.shape[-1])
    if packet is aten.linalg_solve_triangular:
        return args[1].numel() * args[0].shape[-1]
    if packet in (aten.mv, aten.dot):
        return 2 * args[0].numel()
    count = flop_registry.get(packet)
    return 0 if count is None else count(*args, **kwargs, out_val=out)


class Costs(TorchDispatchMode):
    """Counts what runs inside of it, forwards and backwards.

    largest    elements of the largest storage that an operation gives
    flops      of products: matrices, batches of them, einsum, convolutions, and the fused attention of the CPU, whose
               triangle counts as a square
    written    elements of all storages that operations give, and of what they change in place; views write nothing
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.flops = self.written = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function not in (torch.ops.prim.device.default,) and function._overloadpacket not in flop_registry:
            with self:  # what is composed of other operations, in inference mode
                found = function.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = function(*args, **kwargs)
        self.flops += flops_of(function._overloadpacket, args, kwargs, out)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                elements = storage.nbytes() // tensor.element_size()
                self.largest = max(self.largest, elements)
                if storage._cdata not in given:
                    self.written += elements
                elif function._schema.is_mutable:
                    self.written += tensor.numel()
        return out

    def __repr__(self) -> str:
        return f'largest {self.largest:,}, flops {self.flops:,}, written {self.written:,}'


def leaves_of(*outputs: Tensor) -> Iterator[Tensor]:
    """The tensors that would get a gradient."""
    todo = [out.grad_fn for out in outputs if out.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if hasattr(node, 'variable'):
            yield node.variable
        new = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= new
        todo += new


def costs_of(work: Callable[[int], object], n: int) -> Costs:
    """Of `work(n)`, and of the gradients of what it returns, where that has any. No `.grad` is touched."""
    with Costs() as costs:
        outputs = [t for t in tree_leaves(work(n)) if isinstance(t, Tensor) and t.requires_grad]
        leaves = list(leaves_of(*outputs))
        if leaves:
            torch.autograd.grad(outputs, leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)
    return costs


def grows(work: Callable[[int], object], n: int, ratio: float = 2.0, time: float | None = None) -> list[Costs]:
    """Asserts that costs of `work(n)` grow by at most `ratio` where n doubles, from n to 2n and from 2n to 4n.

    ratio    2 where they are linear, 2**1.5 where they are n * sqrt(n), 4 where they are quadratic, times 1.15 for
             what does not fill its blocks
    time     that of products and of all that is written, where it is not that of the largest storage
    Unless `ratio` is 4, no storage may have a quarter of n * n elements, n being the largest.
    """
    sizes = (n, 2 * n, 4 * n)
    found = [costs_of(work, size) for size in sizes]
    report = '\n'.join(f'n = {size}: {costs!r}' for size, costs in zip(sizes, found, strict=True))
    for name, limit in (('largest', ratio), ('flops', time or ratio), ('written', time or ratio)):
        values = [getattr(costs, name) for costs in found]
        growth = [after / before if before else math.inf * after for before, after in pairwise(values)]
        assert not any(factor > limit * SLACK for factor in growth), (
            f'`{name}` grows by {growth}, {limit:.3g} is allowed\n{report}'
        )
    if ratio < 4:
        assert found[-1].largest < sizes[-1] ** 2 / 4, f'a storage of the size of n * n\n{report}'
    return found
