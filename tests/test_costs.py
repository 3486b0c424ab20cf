"""What counts the costs of operations counts right."""

import pytest
import torch
from costs import Costs, costs_of, grows
from torch import nn
from torch.nn import functional as F


def test_flops_of_products():
    a, b, c = torch.randn(3, 5), torch.randn(5, 7), torch.randn(2, 3, 5)
    vector = torch.randn(5)
    for work, multiplications in {
        lambda: a @ b: 3 * 5 * 7,
        lambda: c @ b: 2 * 3 * 5 * 7,
        lambda: c @ c.mT: 2 * 3 * 5 * 3,
        lambda: torch.addmm(torch.zeros(3, 7), a, b): 3 * 5 * 7,
        lambda: torch.baddbmm(torch.zeros(2, 3, 3), c, c.mT): 2 * 3 * 5 * 3,
        lambda: torch.einsum('b n d, b m d -> b n m', c, c): 2 * 3 * 5 * 3,
        lambda: F.linear(c, b.T): 2 * 3 * 5 * 7,
        lambda: a @ vector: 3 * 5,
        lambda: F.conv1d(c, torch.ones(4, 3, 2)): 2 * 4 * 4 * 3 * 2,
        lambda: c.relu() + 1: 0,
    }.items():
        for mode in (torch.enable_grad, torch.inference_mode):
            with mode(), Costs() as costs:
                work()
            assert costs.flops == 2 * multiplications


@pytest.mark.parametrize('causal', [False, True])
def test_flops_of_the_fused_kernel(causal):
    """Two products of n m e forwards, five backwards: weights, and the gradients of weights, queries, keys, values."""
    q, k, v = (torch.randn(2, 3, n, 8, requires_grad=True) for n in (6, 10, 10))

    def attend(n):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    product = 2 * 2 * 3 * 6 * 10 * 8
    assert costs_of(attend, 0).flops == 7 * product
    with torch.no_grad():
        assert costs_of(attend, 0).flops == 2 * product


def test_storages():
    """Of the largest all elements, also those that a view leaves out; a view writes nothing, and a mask counts, too."""
    x = torch.randn(4, 5)
    with Costs() as costs:
        y = x.repeat(3, 1)
        y[:2].mT.unsqueeze(0).expand(100, 5, 2)
        y > 0  # noqa: B015
        y[0].mul_(2)
    assert (costs.largest, costs.written) == (60, 125)


def test_gradients_are_counted_and_left_alone():
    layer = nn.Linear(8, 8, bias=False)
    layer.weight.grad = torch.ones(8, 8)
    costs = costs_of(lambda n: (layer(torch.randn(n, 8, requires_grad=True)), None), 4)
    assert costs.flops == 3 * 2 * 4 * 8 * 8
    assert layer.weight.grad.equal(torch.ones(8, 8))


def dense(n, window=None):
    x = torch.randn(1, 1, n, 4)
    return (x @ x.mT).softmax(dim=-1) @ x


def fused(n):
    x = torch.randn(1, 1, n, 4)
    return F.scaled_dot_product_attention(x, x, x)


def local(n):
    x = torch.randn(1, n // 8, 8, 4)
    return F.scaled_dot_product_attention(x, x, x)


def test_growth():
    """Quadratic time is noticed where memory is linear, and a table of n by n that no product makes."""
    grows(local, 64)
    grows(fused, 64, time=4)
    grows(dense, 64, 4)
    with pytest.raises(AssertionError, match='`largest` grows by'):
        grows(dense, 64)
    with pytest.raises(AssertionError, match='`flops` grows by'):
        grows(fused, 64)
    with pytest.raises(AssertionError, match='`written` grows by'):
        grows(lambda n: [torch.ones(n) for _ in range(n)] and None, 64)
    with pytest.raises(AssertionError, match='of the size of n'):
        grows(lambda n: torch.ones(64, n), 64)
