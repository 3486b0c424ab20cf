"""Torch's attention kernels with every derivative: against finite differences, in all modes of torch that ask."""

import contextlib
import weakref

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from x_transformers.kernels import dense
from x_transformers.kernels.dense import (
    by_formula,
    differentiable_sdpa,
    register,
    sdpa_formula,
    sdpa_gradients,
    sdpa_weights,
)

SEEN = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]], dtype=torch.bool)
OPTIONS = {
    'plain': {},
    'causal': dict(is_causal=True),
    'scale': dict(scale=0.3),
    'mask': dict(attn_mask=SEEN),
    'bias': dict(attn_mask=torch.linspace(-1, 2, 24, dtype=torch.float64).sin().view(2, 1, 3, 4)),
    'hidden by a bias': dict(attn_mask=torch.zeros(3, 4, dtype=torch.float64).masked_fill(~SEEN, -torch.inf)),
}
each_option = pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)


def qkv(rows=3, keys=4, width=2):
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 2, n, width) for n in (rows, keys, keys))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in sizes)


@each_option
def test_first_and_second_derivatives(options):
    def attend(*qkv):
        return differentiable_sdpa(*qkv, **options)

    assert_close(sdpa_formula(*qkv(), **options), F.scaled_dot_product_attention(*qkv(), **options))
    assert gradcheck(attend, qkv(), fast_mode=True, check_batched_grad=True)
    assert gradgradcheck(attend, qkv(), fast_mode=True, check_batched_grad=True)


@each_option
def test_forward_mode(options):
    def attend(*qkv):
        return differentiable_sdpa(*qkv, **options)

    defined = dict(check_undefined_grad=False)
    forward = dict(check_forward_ad=True, check_backward_ad=False, check_batched_forward_grad=True, **defined)
    assert gradcheck(attend, qkv(), **forward)
    assert gradgradcheck(attend, qkv(), fast_mode=True, check_fwd_over_rev=True, check_rev_over_rev=False, **defined)


@each_option
def test_heads_that_are_laid_side_by_side(options, monkeypatch):
    """Many rows: the same numbers, derivatives included, from heads that stand apart."""
    monkeypatch.setattr(dense, 'SIDE_BY_SIDE', 3)

    def attend(*merged):
        return differentiable_sdpa(*(t.transpose(1, 2) for t in merged), **options)

    merged = tuple(t.detach().transpose(1, 2).contiguous().requires_grad_() for t in qkv())
    taken, kernel = [], F.scaled_dot_product_attention
    with monkeypatch.context() as watched:
        watched.setattr(F, 'scaled_dot_product_attention', lambda *t, **o: taken.append(t) or kernel(*t, **o))
        out = attend(*merged)
    assert all(t.is_contiguous() for t in taken[0]) and len(taken) == 1
    assert_close(out, kernel(*(t.transpose(1, 2) for t in merged), **options))
    assert gradgradcheck(attend, merged, fast_mode=True)


@each_option
def test_gradients_by_the_formula(options):
    """Of queries, keys, values and a bias: those of what the formula computes."""
    (q, k, v), mask = (t.detach().requires_grad_() for t in qkv()), options.get('attn_mask')
    learned = [q, k, v]
    if mask is not None and mask.is_floating_point():
        mask = mask.clone().requires_grad_()
        learned.append(mask)
    rest = options.get('is_causal', False), options.get('scale')
    out = sdpa_weights(q, k, mask, *rest) @ v
    grad = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    wanted = torch.autograd.grad(out, learned, grad)
    found = sdpa_gradients(grad, q, k, v, mask, *rest)
    for own, one in zip(found, wanted, strict=False):
        assert_close(own, one)
    assert (found[3] is None) == (mask is None)


def test_a_row_that_sees_nothing_weighs_nothing():
    q, k, v = qkv()
    seen = SEEN.clone()
    seen[1] = False
    out = sdpa_formula(q, k, v, seen)
    assert (out[:, :, 1] == 0).all() and (out[:, :, 0] != 0).all()
    for grad in torch.autograd.grad(out.sin().sum(), (q, k, v)):
        assert grad.isfinite().all()


class Node:
    """A node of a graph: its name, what comes before it, and what it has saved."""

    def __init__(self, name, before=None, **saved):
        self.name, self.next_functions, self.hooks = (lambda: name), ((before, 0),), []
        self.register_hook = self.hooks.append
        vars(self).update(saved)


def test_which_nodes_get_a_hook():
    """A kernel's, also behind the slice of features that it was padded with."""
    kernel, other = Node('ScaledDotProductFlashAttentionBackward0'), Node('BmmBackward0')
    for node in (kernel, Node('SliceBackward0', kernel), other, Node('SliceBackward0', other)):
        register(node, print)
    assert kernel.hooks == [print, print] and not other.hooks


def test_weights_that_a_kernel_has_dropped_have_no_formula(monkeypatch):
    node = Node('ScaledDotProductFlashAttentionBackward0', _saved_dropout_p=0.1)
    monkeypatch.setattr(torch._C, '_current_autograd_node', lambda: node)
    with torch.enable_grad():
        assert by_formula((None,) * 3, (torch.ones(1),)) is None


def test_third_derivatives():
    def second(x):
        (first,) = torch.autograd.grad(differentiable_sdpa(x, x, x).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x, create_graph=True)[0]

    assert gradcheck(second, qkv()[0], fast_mode=True)


def test_queries_that_are_keys_count_once_each():
    def attend(x):
        return differentiable_sdpa(x, x, x, is_causal=True)

    assert gradgradcheck(attend, qkv()[0], fast_mode=True)


def in_checkpoint(attend, *inputs):
    return checkpoint(attend, *inputs, use_reentrant=False)


def with_hooks(attend, *inputs):
    with torch.autograd.graph.save_on_cpu():
        return attend(*inputs)


# before, a checkpoint hands out what it computed once, and says so where a second derivative asks again


@pytest.mark.parametrize('packed', [in_checkpoint, with_hooks])
def test_where_saved_tensors_are_packed(packed):
    def attend(*inputs):
        return packed(lambda *inputs: differentiable_sdpa(*inputs, is_causal=True), *inputs)

    assert gradcheck(attend, qkv(), fast_mode=True)
    assert gradgradcheck(attend, qkv(), fast_mode=True)


def test_transforms_of_functions():
    q, k, v = (t.detach() for t in qkv())

    def loss(q):
        return F.scaled_dot_product_attention(q, k, v).sin().sum()

    def ours(q):
        return differentiable_sdpa(q, k, v).sin().sum()

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = torch.autograd.functional.hessian(loss, q)
    assert_close(torch.func.hessian(ours)(q), wanted)
    assert_close(torch.autograd.functional.hessian(ours, q), wanted)
    assert_close(torch.autograd.functional.hessian(ours, q, vectorize=True), wanted)
    rows = torch.vmap(torch.func.grad(lambda q, k, v: differentiable_sdpa(q[None], k[None], v[None]).sin().sum()))
    assert_close(rows(q, k, v), torch.func.grad(ours)(q))


@torch.no_grad()
def test_dropout_in_transforms():
    """Of equal values, a row of weights with dropout sums to what was kept: 1 on average, and not always."""
    q, k, _ = qkv(rows=50, keys=60)
    draw = torch.vmap(lambda q: differentiable_sdpa(q, k, torch.ones_like(k), dropout_p=0.4), randomness='different')
    drawn = draw(q.expand(20, -1, -1, -1, -1))
    assert abs(drawn.mean() - 1) < 0.02
    assert drawn[0].std() > 0.05
    assert not torch.equal(drawn[0], drawn[1])


def test_an_ordinary_backward_pass_is_the_kernels_own():
    """Bit for bit, and what was saved is released."""
    inputs = qkv(rows=16, keys=16, width=8)
    ours, theirs = (f(*inputs, is_causal=True) for f in (differentiable_sdpa, F.scaled_dot_product_attention))
    assert torch.equal(ours, theirs)
    grads = [torch.autograd.grad(out.square().sum(), inputs) for out in (ours, theirs)]
    assert all(map(torch.equal, *grads))
    with pytest.raises(RuntimeError, match='second time'):
        torch.autograd.grad(ours.sum(), inputs)


@pytest.mark.parametrize('packs', [False, True])
def test_what_is_saved_is_released(packs):
    """After the backward pass, though its output lives on, as a loss does until the next step."""
    inputs = qkv()
    doubled = [t * 2 for t in inputs]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if packs else contextlib.nullcontext():
        out = differentiable_sdpa(*doubled)
    saved = [weakref.ref(t) for t in doubled]
    del doubled
    assert all(ref() is not None for ref in saved)
    torch.autograd.grad(out.sum(), inputs)
    assert all(ref() is None for ref in saved)
