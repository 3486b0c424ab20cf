"""ALiBi in stacks that see both sides: half of the heads look back, and half ahead."""

import pytest
import torch
from oracles import alibi_slopes, assert_close, bools, randn, randomised
from toy_tasks import SEEDS, latest, learned, net_for, right

from x_transformers import Attention, Decoder, Encoder
from x_transformers.core import rows
from x_transformers.features.biases import SplitAlibi
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import AlibiPositionalBias

N, B, DIM, HEAD = 7, 2, 16, 6
SPLIT = dict(alibi_pos_bias=True, alibi_bidirectional='split')
ROWS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [4, 0, 9, 2, 2, 11, 1]])


def by_loops(attn, x, pos, mask=None, biased=4, mem_kv=None):
    """Head h looks back for h < biased / 2, ahead for h < biased, both with the slopes of half as many heads."""
    q, k, v = (to(x).unflatten(-1, (4, HEAD)) for to in (attn.to_q, attn.to_k, attn.to_v))
    slopes, out = alibi_slopes(biased // 2), torch.zeros(len(x), N, 4, HEAD, dtype=x.dtype)
    for b in range(len(x)):
        for h in range(4):
            side = 1 if h < biased // 2 else -1 if h < biased else 0
            slope = slopes[h % (biased // 2)] if side else 0.0
            for i in range(N):
                seen, logits = [], []
                for j in range(N):
                    distance = int(pos[b, i] - pos[b, j])
                    if side * distance < 0 or (mask is not None and not mask[b, j]):
                        continue
                    seen.append(v[b, j, h])
                    logits.append(q[b, i, h] @ k[b, j, h] * HEAD**-0.5 - slope * abs(distance))
                if seen:
                    out[b, i, h] = torch.stack(logits).softmax(dim=0) @ torch.stack(seen)
    return attn.to_out(out.flatten(2))


@pytest.mark.parametrize('flash', [False, None, True])
@pytest.mark.parametrize('blocks', [False, True])
@pytest.mark.parametrize('biased', [4, 2])
def test_split_heads_by_loops(flash, blocks, biased, monkeypatch):
    if blocks:
        monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 3)
    attn, x = randomised(Attention(DIM, heads=4, dim_head=HEAD, flash=flash)), randn(B, N, DIM)
    slopes = SplitAlibi(biased, 4).double()
    mask = bools(B, N, seed=3)
    mask[0, 0] = False
    for inputs, pos in (({}, torch.arange(N).expand(B, -1)), (dict(pos=ROWS), ROWS)):
        assert_close(attn(x, rel_pos=slopes, **inputs), by_loops(attn, x, pos, biased=biased))
        found = attn(x, rel_pos=slopes, context_mask=mask, **inputs)  # the first query may see nothing: zeros
        assert_close(found, by_loops(attn, x, pos, mask, biased))


def test_halves_change_places_with_the_order():
    net = randomised(Encoder(dim=DIM, depth=2, heads=4, attn_dim_head=HEAD, ff_mult=1, **SPLIT))
    other, x = Encoder(dim=DIM, depth=2, heads=4, attn_dim_head=HEAD, ff_mult=1, **SPLIT).double(), randn(1, N, DIM)
    weights = net.state_dict()
    for name, t in weights.items():
        if name.endswith(('to_q.weight', 'to_k.weight', 'to_v.weight')):
            weights[name] = t.roll(2 * HEAD, dims=0)
        elif name.endswith('to_out.weight'):
            weights[name] = t.roll(2 * HEAD, dims=1)
    other.load_state_dict(weights)
    assert_close(other(x.flip(1)).flip(1), net(x))
    with torch.no_grad():
        assert_close(other.eval()(x.flip(1)).flip(1), net(x).detach())
        assert_close(net(x), net.train()(x))  # where there are no short cuts
    assert (net(x.flip(1)).flip(1) - net(x)).abs().max() > 0.1
    assert net.explain() and net.config['alibi_bidirectional'] == 'split'
    assert isinstance(net.rel_pos, SplitAlibi) and net.rel_pos.each == (*alibi_slopes(2), *alibi_slopes(2))


def test_padding_documents_and_keys_in_front():
    net, x = (
        randomised(Encoder(dim=DIM, depth=2, heads=4, attn_dim_head=HEAD, ff_mult=1, attn_num_mem_kv=2, **SPLIT)),
        0,
    )
    x, ids = randn(1, N, DIM), torch.tensor([[0, 0, 0, 5, 5, 5, 5]])
    assert_close(net(x, document_ids=ids), torch.cat((net(x[:, :3]), net(x[:, 3:])), dim=1))
    assert_close(net(x, seq_start_pos=torch.tensor([2]))[:, 2:], net(x[:, 2:]))


def test_refusals():
    with pytest.raises(ConfigError, match="`alibi_bidirectional='split'` cannot be combined with `causal`"):
        Decoder(dim=8, depth=1, heads=2, **SPLIT)
    for heads in (dict(heads=3), dict(heads=4, alibi_num_heads=1)):
        with pytest.raises(ConfigError, match=r'needs an even number of heads with a slope, got [13]'):
            Encoder(dim=8, depth=1, **heads, **SPLIT)
    for other in ('rel_pos_bias', 'dynamic_pos_bias'):
        with pytest.raises(ConfigError, match=f'`alibi_pos_bias` cannot be combined with `{other}`'):
            Encoder(dim=8, depth=1, heads=2, **SPLIT, **{other: True})


@pytest.mark.parametrize('heads', [1, 3, 8, 12])
def test_a_causal_bias_that_grows_with_the_key(heads):
    """The rows of a causal softmax do not change by m_h (j - i) + m_h i = m_h j."""
    scores, hidden = randn(1, heads, N, N), torch.ones(N, N, dtype=torch.bool).triu(1)
    bias = AlibiPositionalBias(heads).double()(N, N)
    growing = torch.tensor(alibi_slopes(heads)).double().view(-1, 1, 1) * torch.arange(N)
    one, other = ((scores + t).masked_fill(hidden, -torch.inf).softmax(dim=-1) for t in (bias, growing))
    assert_close(one, other, tolerance=1e-7)


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('table', [False, True])
def test_it_goes_on_past_the_trained_length(seed, table):
    torch.manual_seed(seed)
    task, longer = (latest(n, marked=0.25) for n in (32, 128))
    flags, around = ({}, dict(max_seq_len=128)) if table else (dict(alibi_pos_bias=True), dict(use_abs_pos_emb=False))
    net = net_for(task, Decoder, around=around, **flags)
    assert learned(net, task, steps=200) >= 0.97
    assert right(net, longer) <= 0.6 if table else right(net, longer) >= 0.97
