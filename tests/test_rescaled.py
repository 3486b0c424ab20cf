"""Scores times a function of the distance, against loops, and what that function is."""

import functools
import math

import pytest
import torch
from law_cases import randomise
from oracles import assert_close, bools, randn
from toy_tasks import SEEDS, latest, learned, net_for

from x_transformers import Attention, Decoder, Encoder
from x_transformers.core import rows
from x_transformers.features.relative import get_factor
from x_transformers.flags import ConfigError

N, B, DIM, HEAD = 7, 2, 16, 6
ROWS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 3, 4, 8, 9, 20, 21]])


def layer(**flags):
    return randomise(Attention(DIM, heads=4, dim_head=HEAD, da_pos_rescale=True, **flags).double(), scale=0.7)


def by_loops(attn, x, pos, causal, mask=None):
    q, k, v = (to(x).unflatten(-1, (-1, HEAD)) for to in (attn.to_q, attn.to_k, attn.to_v))
    out = torch.zeros(len(x), N, 4, HEAD, dtype=x.dtype)
    front = attn.mem_k.shape[1] if hasattr(attn, 'mem_k') else 0
    for b in range(len(x)):
        for h in range(4):
            a, c, g = attn.da_alpha[h], attn.da_beta[h], h % k.shape[2]
            for i in range(N):
                keys = [j for j in range(i + 1 if causal else N) if mask is None or mask[b, j]]
                logits = [attn.mem_k[g, m] @ q[b, i, h] for m in range(front)]
                logits = [torch.relu(t) * HEAD**-0.5 for t in logits]
                for j in keys:
                    r = a * abs(int(pos[b, i] - pos[b, j]))
                    f = (1 + c.exp()) / (1 + (c - r).exp())
                    logits.append(torch.relu(q[b, i, h] @ k[b, j, g]) * f / math.sqrt(HEAD))
                if logits:
                    values = [attn.mem_v[g, m] for m in range(front)] + [v[b, j, g] for j in keys]
                    out[b, i, h] = torch.stack(logits).softmax(dim=0) @ torch.stack(values)
    return attn.to_out(out.flatten(2))


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('flags', [{}, dict(num_mem_kv=2, kv_heads=2)], ids=str)
@pytest.mark.parametrize('blocks', [False, True])
def test_by_loops(causal, flags, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 3)
    attn, x, mask = layer(causal=causal, **flags), randn(B, N, DIM), bools(B, N, seed=3)
    mask[0, 0] = False
    for inputs, pos in (({}, torch.arange(N).expand(B, -1)), (dict(pos=ROWS), ROWS)):
        assert_close(attn(x, **inputs), by_loops(attn, x, pos, causal))
        assert_close(attn(x, context_mask=mask, **inputs), by_loops(attn, x, pos, causal, mask))


def test_without_slopes_scores_only_lose_their_sign():
    attn, x = layer(), randn(B, N, DIM)
    torch.nn.init.zeros_(attn.da_alpha)
    q, k, v = (to(x).unflatten(-1, (4, HEAD)).transpose(1, 2) for to in (attn.to_q, attn.to_k, attn.to_v))
    weights = ((q @ k.mT).relu() / math.sqrt(HEAD)).softmax(dim=-1)
    assert_close(attn(x), attn.to_out((weights @ v).transpose(1, 2).flatten(2)))


def test_the_function_of_the_distance():
    b = torch.tensor([-2.0, 0.0, 1.3]).double().view(-1, 1)
    r = torch.linspace(-40, 40, 201, dtype=torch.float64).expand(3, -1)
    f = get_factor(r, b)
    assert_close(f, (1 + b.exp()) / (1 + (b - r).exp()))
    assert (f.diff(dim=-1)[:, 50:150] > 0).all()
    assert_close(f[:, 100], torch.ones(3).double())  # 1 at a distance of 0
    assert_close(f[:, -1:], 1 + b.exp())
    assert f[:, 0].max() < 1e-12
    assert abs(get_factor(torch.tensor(1e9), torch.tensor(1.3)).item() - 4.669) < 1e-3
    assert get_factor(torch.tensor(-1e9), torch.tensor(1.3)).item() == 0.0
    distance = torch.arange(4).double()
    a, b = (torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in (-0.3, 0.7))
    assert torch.autograd.gradcheck(lambda a, b: get_factor(a * distance, b), (a, b))


def test_initial_values_and_names():
    attn = Attention(DIM, heads=5, da_pos_rescale=True)
    assert_close(attn.state_dict()['da_alpha'] * 8, torch.tensor([-1, -0.5, 0, 0.5, 1]), tolerance=1e-6)
    assert torch.equal(attn.state_dict()['da_beta'], torch.ones(5))
    stack = Decoder(dim=DIM, depth=2, heads=4, da_pos_rescale=True)
    assert [n for n in stack.state_dict() if 'da_' in n] == [
        f'layers.{at}.1.da_{name}' for at in (0, 2) for name in ('alpha', 'beta')
    ]


@pytest.mark.parametrize('flags', [dict(attn_differential=True), dict(attn_qk_norm=True, rel_pos_bias=True)], ids=str)
def test_padding_documents_and_memories(flags):
    sizes = dict(dim=DIM, depth=1, heads=4, attn_dim_head=HEAD, da_pos_rescale=True)
    net, x = randomise(Decoder(**sizes, **flags).double()), randn(1, N, DIM)
    whole = net(x)
    padded = torch.cat((torch.full((1, 2, DIM), 9.0).double(), x), dim=1)
    assert_close(net(padded, seq_start_pos=torch.tensor([2]))[:, 2:], whole)
    _, trace = net(x[:, :3], return_hiddens=True)
    assert_close(net(x[:, 3:], mems=[trace.hiddens[0]]), whole[:, 3:])
    assert_close(net(x, pos=torch.arange(N) + 100), whole)
    ids = torch.tensor([[0, 0, 0, 5, 5, 5, 5]])
    assert_close(net(x, document_ids=ids)[:, 3:], net(x[:, 3:]))


def test_refusals():
    stack = functools.partial(Encoder, dim=8, depth=1, heads=2)
    with pytest.raises(ConfigError, match='`da_pos_rescale` cannot be combined with `alibi_pos_bias`'):
        stack(da_pos_rescale=True, alibi_pos_bias=True)
    with pytest.raises(ConfigError, match='`attn_da_pos_rescale` cannot be combined with `alibi_pos_bias`'):
        stack(attn_da_pos_rescale=True, alibi_pos_bias=True)
    with pytest.raises(
        ConfigError, match='`flash=True` cannot be combined with `da_pos_rescale`: the fused kernel forms no'
    ):
        layer(flash=True)
    with pytest.raises(ConfigError, match='`da_pos_rescale` cannot be combined with `l2_distance`'):
        layer(l2_distance=True)
    with pytest.raises(ConfigError, match='`attn_da_pos_rescale` cannot be combined with `cross_attend`'):
        Decoder(dim=8, depth=1, cross_attend=True, attn_da_pos_rescale=True)
    with pytest.raises(ValueError, match='`da_pos_rescale` cannot be combined with a context'):
        layer()(randn(1, N, DIM), context=randn(1, 3, DIM))


@pytest.mark.slow
@SEEDS
def test_some_head_learns_to_look_near(seed):
    torch.manual_seed(seed)
    task = latest(marked=0.25)
    net = net_for(task, Decoder, around=dict(use_abs_pos_emb=False), da_pos_rescale=True)
    assert learned(net, task, steps=200) > 0.9
    assert min(layer[1].da_alpha.min().item() for layer in net.attn_layers.layers if layer.kind == 'a') < -0.126
