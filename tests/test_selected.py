"""Attention to chosen keys: plain loops, exact limits, what a cache holds, and what it costs."""

import pytest
import torch
from building import vectors
from costs import Costs, grows
from law_cases import randomise
from oracles import assert_close as assert_near

from x_transformers import Attention, Decoder, Encoder
from x_transformers.flags import ConfigError

N = 23
SIZES = dict(heads=4, dim_head=6, kv_heads=2, causal=True)
BLOCK = 4


def assert_close(ours, theirs):
    assert_near(ours, theirs, tolerance=1e-10)


def layer(**flags):
    return randomise(Attention(16, **{**SIZES, **flags}).double())


def qkv_of(attn, x):
    """Queries, keys and values of all heads, b h n d, without rotation."""
    q, k, v = attn.to_q(x), attn.to_k(x), attn.to_v(x)
    q, k, v = (t.unflatten(-1, (-1, 6)).transpose(1, 2) for t in (q, k, v))
    return q, *(t.repeat(1, attn.heads // attn.kv_heads, 1, 1) for t in (k, v))


def over(q, keys, values, scale):
    return ((keys @ q) * scale).softmax(dim=0) @ values


def moba_by_hand(q, k, v, block, topk, scale):
    """One query of one head at a time:  n d."""
    rows = []
    for t in range(len(q)):
        own = t // block
        means = {j: float(q[t].detach() @ k.detach()[j * block : (j + 1) * block].mean(dim=0)) for j in range(own)}
        best = sorted(means, key=means.__getitem__, reverse=True)[: topk - 1]
        seen = [i for j in sorted(best) for i in range(j * block, (j + 1) * block)] + [*range(own * block, t + 1)]
        rows.append(over(q[t], k[seen], v[seen], scale))
    return torch.stack(rows)


def by_hand(attn, x, formula, *args):
    q, k, v = qkv_of(attn, x)
    out = torch.stack(
        [
            torch.stack([formula(q[b, h], k[b, h], v[b, h], *args, 6**-0.5) for h in range(attn.heads)], dim=1)
            for b in range(len(x))
        ]
    )
    return attn.to_out(out.flatten(2))


@pytest.mark.parametrize('topk', [1, 2, 3])
def test_moba_is_its_formula_and_so_are_its_gradients(topk):
    attn, x = layer(moba_block=BLOCK, moba_topk=topk), vectors(2, N, 16).requires_grad_()
    out, want = attn(x), by_hand(attn, x, moba_by_hand, BLOCK, topk)
    assert_close(out, want)
    wanted = [x, *attn.parameters()]
    grads = (torch.autograd.grad(t.square().sum(), wanted) for t in (out, want))
    for own, other in zip(*grads, strict=True):
        assert_close(own, other)


FAR = dict(moba_block=dict(moba_block=BLOCK, moba_topk=9), one_block=dict(moba_block=50, moba_topk=1))


@pytest.mark.parametrize('name', FAR)
def test_with_all_keys_chosen_it_is_dense(name):
    dense, x = layer(), vectors(2, N, 16)
    chosen = layer(**FAR[name])
    chosen.load_state_dict(dense.state_dict())
    assert_close(chosen(x), dense(x))
    bias = vectors(4, N, N)
    assert_close(chosen(x, attn_bias=bias), dense(x, attn_bias=bias))
    mask = torch.rand(2, N, N, generator=torch.Generator().manual_seed(0)) < 0.7
    mask = mask[:, None] | torch.eye(N, dtype=torch.bool)
    assert_close(chosen(x, attn_mask=mask.expand(2, 4, N, N)), dense(x, attn_mask=mask.expand(2, 4, N, N)))


KINDS = {'moba': dict(attn_moba_block=BLOCK, attn_moba_topk=2)}


def stack(name, **flags):
    return (
        randomise(
            Decoder(dim=16, depth=2, heads=4, attn_dim_head=6, attn_kv_heads=2, verbose=False, **KINDS[name], **flags)
        )
        .double()
        .eval()
    )


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize('rotary', [False, True])
def test_a_padded_row_and_a_document_are_what_they_are_alone(name, rotary):
    net, x = stack(name, rotary_pos_emb=rotary), vectors(2, N, 16)
    mask = torch.arange(N) >= torch.tensor([[3], [9]])
    left, right = net(x, mask=mask), net(x, mask=mask.flip(-1))
    for row, pads in enumerate((3, 9)):
        assert_close(left[row, pads:], net(x[row : row + 1, pads:])[0])
        assert_close(right[row, : N - pads], net(x[row : row + 1, : N - pads])[0])
    ids = torch.tensor([[0] * 5 + [1] * 11 + [2] * 7, [4] * 13 + [2] * 2 + [7] * 8])
    packed = net(x, document_ids=ids)
    for row in range(2):
        for one in ids[row].unique():
            own = ids[row] == one
            assert_close(packed[row, own], net(x[row : row + 1, own])[0])


@pytest.mark.parametrize('name', KINDS)
def test_what_padding_inside_of_a_row_holds_does_not_matter(name):
    net, x = stack(name), vectors(2, N, 16)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[:, [2, 5, 6, 13]] = False
    other = torch.where(mask.unsqueeze(-1), x, 5.0)
    assert_close(net(other, mask=mask)[mask], net(x, mask=mask)[mask])


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize('pieces', [(1,) * N, (5, 1, 1, 9, 1, 6), (12, 11)])
def test_pieces_with_a_cache_are_the_whole(name, pieces):
    net, x = stack(name, rotary_pos_emb=True), vectors(2, N, 16)
    mask = torch.arange(N) >= torch.tensor([[2], [6]])
    want, cache, outs, at = net(x, mask=mask), None, [], 0
    for count in pieces:
        known = {} if cache is None else dict(cache=cache, input_not_include_cache=True)
        out, cache = net(x[:, at : at + count], mask=mask[:, : at + count], return_hiddens=True, **known)
        outs.append(out)
        at += count
    assert_close(torch.cat(outs, dim=1)[mask], want[mask])


@pytest.mark.parametrize('name', KINDS)
def test_its_maps_are_its_weights(name):
    net, x = stack(name), vectors(2, N, 16)
    attn = net.layers[0][1]
    out, inter = attn(x, return_intermediates=True, keep_maps=True)
    *_, v = qkv_of(attn, x)
    assert_close(attn.to_out((inter.post_softmax_attn @ v).transpose(1, 2).flatten(2)), out)


def test_parts_of_heads_and_queries_are_the_whole(monkeypatch):
    x, bias = vectors(2, N, 16).requires_grad_(), vectors(4, N, N)
    net = layer(moba_block=BLOCK, moba_topk=3, num_mem_kv=1)
    want = net(x, attn_bias=bias)
    wanted = torch.autograd.grad(want.square().sum(), [x, *net.parameters()])
    monkeypatch.setattr('x_transformers.core.rows.LARGE', {'cpu': 150, 'cuda': 150})
    monkeypatch.setattr('x_transformers.core.rows.block_size', lambda q, width: 5)
    out = net(x, attn_bias=bias)
    assert_close(out, want)
    for own, other in zip(torch.autograd.grad(out.square().sum(), [x, *net.parameters()]), wanted, strict=True):
        assert_close(own, other)


def test_a_step_of_moba_costs_what_it_chooses_and_the_cache_a_share_of_the_keys():
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=32, attn_moba_block=16, attn_moba_topk=2).eval()
    found = []
    for n in (128, 1024):
        _, cache = net(torch.randn(1, n, 16), return_hiddens=True)
        held = cache.attn_intermediates[0].past.states['block means'].tensor
        assert held.numel() == n * 2 * 2  # 32 channels by 16 tokens
        with Costs() as costs, torch.no_grad():
            net(torch.randn(1, 1, 16), cache=cache, input_not_include_cache=True)
        found.append(costs.flops)
    assert found[1] - found[0] == 2 * 2 * 32 * (1024 - 128) // 16


@pytest.mark.parametrize('backward', [False, True])
def test_moba_grows_with_the_length(backward):
    attn = Attention(4, heads=1, dim_head=4, causal=True, moba_block=64, moba_topk=2)

    def run(n):
        out = attn(torch.randn(1, n, 4, requires_grad=backward))
        if backward:
            out.sum().backward()

    grows(run, 1024, 2.2)


@pytest.mark.parametrize(
    'make, text',
    [
        (lambda: Encoder(dim=8, depth=1, attn_moba_block=4), '`attn_moba_block` needs `causal`'),
        (lambda: Attention(8, causal=True, moba_block=0), '`moba_block`'),
        (lambda: Attention(8, causal=True, moba_block=4, moba_topk=0), '`moba_topk`'),
        (lambda: Attention(8, causal=True, moba_block=4, sparse_pattern='sliding'), 'both choose'),
        (lambda: Attention(8, causal=True, moba_block=4, talking_heads=True), 'cannot be combined'),
        (lambda: Attention(8, causal=True, moba_block=4, flash=True), 'cannot be combined'),
    ],
)
def test_what_cannot_be_is_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()
