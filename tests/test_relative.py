"""Vectors for distances: the formula by loops, blocks of rows, and what follows from it."""

import copy

import pytest
import torch
from building import vectors
from law_cases import randomise
from oracles import assert_close
from toy_tasks import SEEDS, learned, net_for, right, shift

from x_transformers import Attention, Encoder
from x_transformers.attend import Attend
from x_transformers.core import rows
from x_transformers.features import AttentionFeature
from x_transformers.flags import ConfigError
from x_transformers.patterns import Sliding

N, MOST = 7, 2
MASK = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)


def layer(causal=True, **flags):
    sizes = dict(heads=4, dim_head=6, value_dim_head=5, kv_heads=2, causal=causal)
    return randomise(Attention(16, **sizes, shaw_rel_pos=True, shaw_max_distance=MOST, **flags).double())


def by_loops(attn, x, mask, pos):
    """Every pair of query and key by itself."""
    shape, out = attn.shape, x.new_zeros(len(x), N, 4, attn.shape.dim_value)
    q, k, v = (t(x).unflatten(-1, (-1, w)) for t, w in zip((attn.to_q, attn.to_k, attn.to_v), (6, 6, 5), strict=True))
    values = getattr(attn, 'shaw_v', torch.zeros(2 * MOST + 1, shape.dim_value, dtype=x.dtype))
    for b in range(len(x)):
        for h in range(4):
            for i in range(N):
                seen = [j for j in range(N) if mask[b, j] and (j <= i or not attn.causal)]
                if not seen:
                    continue
                at = [int(min(max(pos[b, j] - pos[b, i], -MOST), MOST)) + MOST for j in seen]
                logits = [
                    6**-0.5 * q[b, i, h] @ (k[b, j, h % 2] + attn.shaw_k[r]) for j, r in zip(seen, at, strict=True)
                ]
                weights = torch.stack(logits).softmax(dim=0)
                terms = [w * (v[b, j, h % 2] + values[r]) for w, j, r in zip(weights, seen, at, strict=True)]
                out[b, i, h] = torch.stack(terms).sum(dim=0)
    return attn.to_out(out.flatten(2)) * mask[..., None]


@pytest.mark.parametrize('flags', [{}, dict(shaw_rel_values=False), dict(shaw_rel_values=False, flash=True)], ids=str)
@pytest.mark.parametrize('causal', [True, False])
def test_the_formula_by_loops(monkeypatch, flags, causal):
    attn, x = layer(causal, **flags), vectors(2, N, 16).requires_grad_()
    params = [x, *attn.parameters()]
    every, pos = torch.ones(2, N, dtype=torch.bool), torch.arange(N).expand(2, -1)
    own = torch.tensor([[0, 1, 1, 5, 2, 3, 9], [4, 3, 2, 1, 0, 0, 7]])
    wanted = [by_loops(attn, x, *given) for given in ((every, pos), (MASK, pos), (every, own))]
    slopes = [torch.autograd.grad(t.sin().sum(), params) for t in wanted]
    for blocks in (False, True):
        if blocks:
            monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
            monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
            monkeypatch.setattr(rows, 'FEWEST_ROWS', 2)
        for inputs, expected, grads in zip(({}, dict(mask=MASK), dict(pos=own)), wanted, slopes, strict=True):
            out = attn(x, **inputs)
            assert_close(out, expected)
            for one, other in zip(torch.autograd.grad(out.sin().sum(), params), grads, strict=True):
                assert_close(one, other)


def test_what_follows():
    x = vectors(1, N, 16)
    attn = layer(causal=False)
    pos = torch.arange(N)[None]
    assert_close(attn(x, pos=pos + 100), attn(x))  # only differences count
    far = torch.tensor([[0, 1, 2, 3, 50, 51, 52]])
    assert_close(attn(x, pos=far), attn(x, pos=torch.where(far > 3, far + 40, far)))
    none = randomise(Attention(16, heads=2, dim_head=6, shaw_rel_pos=True, shaw_max_distance=0).double())
    plain = Attention(16, heads=2, dim_head=6).double()
    plain.load_state_dict({n: t for n, t in none.state_dict().items() if 'shaw' not in n})
    constant = plain.to_out(none.shaw_v.expand(2, -1).flatten())
    assert_close(none(x), plain(x) + constant)  # one vector for all: nothing for the weights, a constant for values


def test_refusals():
    with pytest.raises(
        ConfigError, match='`flash=True` cannot be combined with `shaw_rel_values`: the fused kernel forms no'
    ):
        layer(flash=True)
    with pytest.raises(ConfigError, match='`shaw_rel_values` cannot be combined with `laser`'):
        layer(laser=True)
    with pytest.raises(ValueError, match=r'`pos` must be whole numbers, got torch\.float64: each distance has a'):
        layer()(vectors(1, N, 16), pos=torch.arange(N).double())
    attn = layer(causal=False)
    with pytest.raises(ValueError, match='`shaw_rel_pos` cannot be combined with a context'):
        attn(vectors(1, N, 16), context=vectors(1, 3, 16))
    net = Encoder(dim=16, depth=1, heads=2, shaw_rel_pos=True, polar_pos_emb=True, verbose=False)
    with pytest.raises(ValueError, match='`shaw_rel_pos` got queries of width 128, its vectors have 64'):
        net(torch.randn(1, 3, 16))


OPERATORS = {
    'pattern': dict(sparse_pattern=Sliding(2)),
    'feature map': dict(kernel='elu'),
    'delta rule': dict(kernel='elu', kernel_update='delta'),
    'random features': dict(kernel='favor'),
    'lsh': dict(cluster='lsh'),
    'routing': dict(cluster='routing'),
    'sinkhorn': dict(cluster='sinkhorn'),
    'linformer': dict(linformer_k=4, causal=False),
}


@pytest.mark.parametrize('name', OPERATORS)
def test_operators_take_no_values_of_distances_and_few_their_keys(name):
    """They form no weights; a pattern of positions forms scores."""
    with pytest.raises(
        ConfigError, match='cannot be combined with `shaw_rel_values`: it takes the place of weighted_values'
    ):
        layer(**OPERATORS[name])
    if name == 'pattern':
        assert layer(**OPERATORS[name], shaw_rel_values=False)(vectors(1, N, 16)).isfinite().all()
        return
    with pytest.raises(ConfigError, match='cannot be combined with `shaw_rel_pos`'):
        layer(**OPERATORS[name], shaw_rel_values=False)


def test_a_window_with_keys_of_distances():
    """As all scores under a mask, since they are functions of positions."""
    near, x = layer(sparse_pattern=Sliding(2), shaw_rel_values=False), vectors(2, N, 16)
    dense = layer(shaw_rel_values=False)
    dense.load_state_dict(near.state_dict())
    assert_close(near(x), dense(x, attn_mask=Sliding(2).visible(torch.arange(N)[:, None], torch.arange(N)[None])))
    assert (near(x) - dense(x)).abs().max() > 1e-3


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('distances', [True, False])
def test_distances_go_on_past_the_trained_length(seed, distances):
    torch.manual_seed(seed)
    task, longer = (shift(3, n=n) for n in (32, 128))
    around = dict(use_abs_pos_emb=False) if distances else dict(max_seq_len=128)
    net = net_for(task, Encoder, around=around, shaw_rel_pos=distances)
    assert learned(net, task, steps=200) >= 0.99
    assert right(net, longer) >= 0.95 if distances else right(net, longer) <= 0.5


@pytest.mark.parametrize('replaced', [False, True])
def test_under_a_hook_that_sees_the_bias(replaced):
    attn, seen = layer(), []
    hooked = copy.deepcopy(attn)
    if replaced:
        hooked.attend.forward = lambda *a, **k: seen.append(k['attn_bias']) or Attend.forward(hooked.attend, *a, **k)
    else:
        hooked.attend.register_forward_pre_hook(lambda m, a, k: seen.append(k['attn_bias']), with_kwargs=True)
    x = vectors(2, N, 16)
    assert_close(hooked(x, mask=MASK), attn(x, mask=MASK))
    assert seen[0].shape == (2, 4, N, N)


# the stage


class Counted(AttentionFeature):
    """Counts how much every key was looked at, and adds the largest weight to the output."""

    row_wise = True

    def weighted_values(self, out, weights, call):
        self.owner.__dict__.setdefault('used', []).append(weights.detach().sum(dim=-2))
        return out + weights.amax(dim=-1, keepdim=True)


def test_what_is_gathered_in_blocks(monkeypatch):
    attn = Attention(16, heads=2, dim_head=8, features=(Counted,)).double()
    x = vectors(2, 9, 16)
    out, whole = attn(x), attn.__dict__.pop('used')
    _, trace = attn(x, return_intermediates=True)
    weights = trace.post_softmax_attn
    v = attn.to_v(x).unflatten(-1, (2, -1)).transpose(1, 2)
    expected = weights @ v + weights.amax(dim=-1, keepdim=True)
    assert_close(out, attn.to_out(expected.transpose(1, 2).flatten(2)))
    assert_close(whole[0], weights.sum(dim=-2))
    attn.__dict__.pop('used')
    monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
    monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
    monkeypatch.setattr(rows, 'FEWEST_ROWS', 4)
    with torch.no_grad():
        assert_close(attn(x), out)
    assert len(attn.used) == 3
    assert_close(sum(attn.used), whole[0])
