"""Relative positions of Transformer-XL against loops, in segments, and in the ways that they are computed."""

import math

import pytest
import torch
from law_cases import randomise
from oracles import assert_close, bools, randn

from x_transformers import Attention, Decoder, Encoder
from x_transformers.core import rows
from x_transformers.features.relative import shifted
from x_transformers.flags import ConfigError

N, B, DIM, HEAD = 7, 2, 16, 6
ROWS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 3, 4, 8, 2, 20, 21]])
SIZES = dict(dim=DIM, depth=3, heads=2, attn_dim_head=HEAD, ff_mult=1, xl_rel_pos=True)


def by_loops(attn, x, pos, causal, most=None, mask=None):
    """((q_i + u) k_j + (q_i + v) W r_t) / sqrt(e), r_t = sin t w, cos t w."""
    q, k, v = (to(x).unflatten(-1, (-1, HEAD)) for to in (attn.to_q, attn.to_k, attn.to_v))
    matrix = attn.xl_r.unflatten(-1, (4, HEAD))
    w = [10000 ** (-2 * c / DIM) for c in range(DIM // 2)]
    out = torch.zeros(len(x), N, 4, HEAD, dtype=x.dtype)
    for b in range(len(x)):
        for h in range(4):
            for i in range(N):
                keys = [j for j in range(i + 1 if causal else N) if mask is None or mask[b, j]]
                logits = []
                for j in keys:
                    t = (pos[b, i] - pos[b, j]).item()
                    t = t if most is None else max(-most, min(t, most))
                    r = torch.tensor([math.sin(t * f) for f in w] + [math.cos(t * f) for f in w], dtype=x.dtype)
                    own = q[b, i, h] + attn.xl_u[h], q[b, i, h] + attn.xl_v[h]
                    key = k[b, j, h % k.shape[2]]
                    logits.append((own[0] @ key + own[1] @ (r @ matrix[:, h])) * HEAD**-0.5)
                if logits:
                    out[b, i, h] = torch.stack(logits).softmax(dim=0) @ torch.stack(
                        [v[b, j, h % v.shape[2]] for j in keys]
                    )
    return attn.to_out(out.flatten(2))


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('most', [None, 2])
@pytest.mark.parametrize(('blocks', 'flags'), [(False, {}), (True, {}), (False, dict(flash=True, kv_heads=2))], ids=str)
def test_by_loops(causal, most, blocks, flags, monkeypatch):
    if blocks:
        monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 3)
    sizes = dict(heads=4, dim_head=HEAD, xl_rel_pos=True, xl_clamp_len=most, causal=causal)
    attn = randomise(Attention(DIM, **sizes, **flags).double())
    x, mask = randn(B, N, DIM), bools(B, N, seed=3)
    mask[0, 0] = False
    calls = [({}, torch.arange(N).expand(B, -1)), (dict(pos=ROWS), ROWS)]
    times = ROWS.double() * 0.37
    calls += [(dict(pos=times), times)] if most is None else []
    for inputs, pos in calls:
        out, wanted = attn(x, **inputs), by_loops(attn, x, pos, causal, most)
        assert_close(out, wanted)
        grads = [torch.autograd.grad(t.sin().sum(), list(attn.parameters())) for t in (out, wanted)]
        for one, other in zip(*grads, strict=True):
            assert_close(one, other, 'gradient')
        assert_close(attn(x, context_mask=mask, **inputs), by_loops(attn, x, pos, causal, most, mask))


@pytest.mark.parametrize(('n', 'keys'), [(1, 5), (4, 4), (3, 9), (5, 2)])
def test_the_shift_is_a_gather(n, keys):
    products = randn(2, 3, n, n + keys - 1)
    index = torch.arange(keys) + (n - 1 - torch.arange(n))[:, None]
    assert torch.equal(shifted(products, keys), products.gather(-1, index.expand(2, 3, n, keys)))


def test_nothing_learned_is_no_position():
    attn, x = Attention(DIM, heads=4, dim_head=HEAD, xl_rel_pos=True, causal=True).double(), randn(B, N, DIM)
    plain = Attention(DIM, heads=4, dim_head=HEAD, causal=True).double()
    plain.load_state_dict({name: t for name, t in attn.state_dict().items() if 'xl_' not in name})
    for t in (attn.xl_u, attn.xl_v, attn.xl_r):
        torch.nn.init.zeros_(t)
    assert_close(attn(x), plain(x))


@pytest.mark.parametrize(
    'flags', [{}, dict(xl_rel_pos_untied=True), dict(xl_clamp_len=3), dict(attn_differential=True)]
)
def test_segments_are_one_long_text(flags):
    """With memories of the whole past, at every depth; by the cache too, and wherever positions begin."""
    net, x = randomise(Decoder(**SIZES, **flags).double()), randn(B, 9, DIM)
    whole, trace = net(x, return_hiddens=True)
    mems, parts = [x[:, :0]] * 3, []
    for part in x.split((4, 1, 4), dim=1):
        out, found = net(part, mems=mems, return_hiddens=True)
        parts.append(out)
        mems = [torch.cat(pair, dim=1) for pair in zip(mems, found.hiddens, strict=True)]
    assert_close(torch.cat(parts, dim=1), whole)
    _, trace = net(x[:, :3], return_hiddens=True)
    for at in range(3, 9):
        out, trace = net(x[:, : at + 1], cache=trace, return_hiddens=True)
        assert_close(out[:, -1:], whole[:, at : at + 1])
    assert_close(net(x, pos=torch.arange(9) + 10**7), whole, tolerance=1e-7)
    padded = net(torch.cat((randn(B, 2, DIM), x), dim=1), seq_start_pos=torch.tensor([2, 2]))
    assert_close(padded[:, 2:], whole)


def test_names_and_initial_values():
    torch.manual_seed(0)
    stack = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, xl_rel_pos=True)
    own = {name: tuple(t.shape) for name, t in stack.state_dict().items() if 'xl_' in name}
    assert own == {'xl_u': (4, 16), 'xl_v': (4, 16), 'layers.0.1.xl_r': (64, 64), 'layers.2.1.xl_r': (64, 64)}
    assert abs(stack.xl_u.std() - 0.02) < 0.006
    matrix = stack.layers[0][1].xl_r
    assert matrix.abs().max() <= 0.125 and abs(matrix.std() / stack.layers[0][1].to_q.weight.std() - 1) < 0.05
    untied = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, xl_rel_pos=True, xl_rel_pos_untied=True)
    assert {name for name in untied.state_dict() if 'xl_' in name} == {
        f'layers.{at}.1.xl_{name}' for at in (0, 2) for name in 'ruv'
    }


@pytest.mark.parametrize(
    'other',
    ['rel_pos_bias', 'alibi_pos_bias', 'dynamic_pos_bias', 'rotary_pos_emb', 'rotary_xpos', 'polar_pos_emb'],
)
def test_refused_beside(other):
    with pytest.raises(
        ConfigError, match=r'`xl_rel_pos` cannot be combined with `(rel|alibi|dynamic|rotary|polar)_pos_'
    ):
        Decoder(**SIZES, **{other: True})
    with pytest.raises(ConfigError, match=f'`attn_xl_rel_pos` cannot be combined with `{other}`'):
        Decoder(**{**SIZES, 'xl_rel_pos': False}, attn_xl_rel_pos=True, **{other: True})


def test_refusals():
    x = randn(1, N, DIM)
    with pytest.raises(ConfigError, match='`xl_rel_pos` needs an even width for sines and cosines, got 7'):
        Attention(7, xl_rel_pos=True)
    net = Encoder(**SIZES).double()
    with pytest.raises(ValueError, match='`xl_rel_pos` with memories needs `causal`'):
        net(x, mems=[x] * 3)
    attn = Attention(DIM, heads=2, xl_rel_pos=True, xl_clamp_len=3).double()
    with pytest.raises(ValueError, match='`xl_rel_pos` cannot be combined with a context'):
        attn(x, context=x)
    with pytest.raises(ValueError, match=r'`pos` must be whole numbers'):
        attn(x, pos=torch.arange(N).double())
    with pytest.raises(ValueError, match='`xl_vectors` is missing: a stack gives u and v'):
        Attention(DIM, heads=2, xl_rel_pos=True, xl_rel_pos_untied=False).double()(x)
