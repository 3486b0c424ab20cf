"""Chunked cross-attention: which neighbours a token reads, by formula, and what changes nothing."""

import pytest
import torch
from oracles import assert_close, bools, randn, randomised

from x_transformers import ChunkedCrossAttention
from x_transformers.flags import ConfigError

B, D, H, E, M = 2, 6, 2, 3, 4


def layer():
    return randomised(ChunkedCrossAttention(D, H, E, M))


def by_hand(net, x, neighbours, mask):
    """One token and one head after the other."""
    out = torch.zeros_like(x)
    for b, t in ((b, t) for b in range(B) for t in range(x.shape[1])):
        u = (t + 1) // M - 1
        if not 0 <= u < neighbours.shape[1]:
            continue
        keys = neighbours[b, u].flatten(0, 1)[mask[b, u].flatten()]
        heads = []
        for h in range(H):
            own = slice(h * E, (h + 1) * E)
            q, k, v = net.to_q(x[b, t])[own], net.to_k(keys)[:, own], net.to_v(keys)[:, own]
            heads.append((k @ q / E**0.5).softmax(dim=0) @ v)
        out[b, t] = net.to_out(torch.cat(heads))
    return out


@pytest.mark.parametrize(('n', 'c'), [(13, 3), (12, 3), (15, 3), (15, 2), (4, 1), (3, 0), (9, 0)])
def test_the_formula(n, c):
    net, x, neighbours = layer(), randn(B, n, D), randn(B, c, 2, 3, D)
    mask = bools(B, c, 2, 3, keep=0.7)
    assert_close(net(x, neighbours, mask), by_hand(net, x, neighbours, mask), tolerance=1e-12)
    assert_close(net(x, neighbours), by_hand(net, x, neighbours, mask | True), tolerance=1e-12)


def test_gradients_are_those_of_the_formula():
    net, inputs = layer(), (randn(B, 11, D).requires_grad_(), randn(B, 2, 2, 3, D).requires_grad_())
    mask, around = bools(B, 2, 2, 3, keep=0.8), randn(B, 11, D, seed=5)
    wanted = [*inputs, *net.parameters()]
    found, by_formula = (
        torch.autograd.grad((f * around).sum(), wanted) for f in (net(*inputs, mask), by_hand(net, *inputs, mask))
    )
    for one, other in zip(found, by_formula, strict=True):
        assert_close(one, other, tolerance=1e-10)


def test_no_token_reads_the_neighbours_of_its_unfinished_chunk():
    """So that what is found by a chunk never reaches its own tokens, but for the last."""
    net, x, neighbours = layer(), randn(B, 14, D), randn(B, 3, 2, 3, D)
    out = net(x, neighbours)
    for u in range(3):
        changed = neighbours.clone()
        changed[:, u] += 1
        differs = (net(x, changed) != out).any(dim=-1).any(dim=0)
        assert differs.nonzero().flatten().tolist() == [*range((u + 1) * M - 1, min((u + 2) * M - 1, 14))]
    assert_close(net(x[:, :9], neighbours[:, :2]), out[:, :9], tolerance=1e-12)
    assert_close(net(x, neighbours.flip(2)), out, tolerance=1e-12)  # neighbours have no order
    mask = torch.ones(B, 3, 2, 3) > 0
    mask[:, :, 1] = mask[0, 1] = False
    filled = net(x, neighbours.masked_fill(~mask.unsqueeze(-1), 9.0), mask)
    assert torch.equal(filled, net(x, neighbours.masked_fill(~mask.unsqueeze(-1), 0.0), mask))
    assert not filled[0, 2 * M - 1 : 3 * M - 1].any()


def test_it_begins_as_nothing_and_what_is_refused():
    net, x = ChunkedCrossAttention(D, H, E, M), torch.zeros(B, 8, D)
    assert not net(torch.randn(B, 9, D), torch.randn(B, 2, 1, 3, D)).any()
    for call, error, words in (
        (
            lambda: net(torch.zeros(B, 7, D), torch.zeros(B, 2, 1, 3, D)),
            ValueError,
            'at most 1 whole chunks of 7 tokens',
        ),
        (lambda: net(x, torch.zeros(B, 2, 3, D)), ValueError, '`neighbours` must have shape'),
        (
            lambda: net(torch.zeros(B, 8, D), torch.zeros(B, 1, 1, 3, D), torch.ones(B, 3) > 0),
            ValueError,
            '`mask` must',
        ),
        (lambda: ChunkedCrossAttention(D, chunk=0), ConfigError, '`chunk` must be'),
    ):
        with pytest.raises(error, match=words):
            call()
