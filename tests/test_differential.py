"""Differential attention by the formula of its paper, alone and beside what counts heads."""

import math

import pytest
import torch
from building import vectors
from law_cases import randomise
from oracles import assert_close

from x_transformers import Attention, Decoder, Encoder
from x_transformers.core import rows
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import AlibiPositionalBias

N, H, D = 6, 4, 6
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 1]], dtype=torch.bool)


def layer(kv_heads=H, causal=True, **flags):
    attn = Attention(
        16, heads=H, dim_head=D, value_dim_head=5, kv_heads=kv_heads, causal=causal, differential=True, **flags
    )
    return randomise(attn.double())


def maps_of(attn, x, mask, kv_heads, slopes=None):
    """The two maps of every head, before their difference:  b 2 h i j, row by row."""
    q = attn.to_q(x).view(len(x), N, 2, H, D)
    k = attn.to_k(x).view(len(x), N, 2, kv_heads, D)
    i, j = torch.arange(N)[:, None], torch.arange(N)
    logits = x.new_empty(len(x), 2, H, N, N)
    for part in range(2):
        for h in range(H):
            logits[:, part, h] = q[:, :, part, h] @ k[:, :, part, h % kv_heads].mT * D**-0.5
            if slopes is not None:
                logits[:, part, h] -= slopes[h] * (i - j).abs()
    seen = mask[:, None, None, None] & (j <= i if attn.causal else j >= 0)
    return logits, seen


def finished(attn, weights, x, kv_heads, number=0):
    """From weights (b 2 h i j) to the output."""
    least = 0.8 - 0.6 * math.exp(-0.3 * number)
    a1, b1, a2, b2 = attn.differential_lambda.detach()
    factor = math.exp(a1 @ b1) - math.exp(a2 @ b2) + least
    v = attn.to_v(x).view(len(x), N, kv_heads, 5)
    out = x.new_empty(len(x), N, H, 5)
    for h in range(H):
        head = (weights[:, 0, h] - factor * weights[:, 1, h]) @ v[:, :, h % kv_heads]
        head = head / (head.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * attn.differential_norm
        out[:, :, h] = (1 - least) * head
    return attn.to_out(out.flatten(2))


def softmax(logits, seen):
    return logits.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num()


@pytest.mark.parametrize('kv_heads', [4, 2, 1])
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('blocks', [False, True])
def test_the_formula(monkeypatch, kv_heads, causal, blocks):
    attn, x, slopes = layer(kv_heads, causal), vectors(2, N, 16), AlibiPositionalBias(H, H).double()
    if blocks:
        monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 2)
    every = torch.ones(2, N, dtype=torch.bool)
    for inputs, mask, own in (
        ({}, every, None), (dict(mask=MASK), MASK, None), (dict(rel_pos=slopes), every, slopes.slopes)
    ):  # fmt: skip
        out = finished(attn, softmax(*maps_of(attn, x, mask, kv_heads, own)), x, kv_heads)
        assert_close(attn(x, **inputs), out * mask[..., None])


def test_beside_a_sink():
    """Each map has its own."""
    attn, x = layer(head_learned_sink=True), vectors(2, N, 16)
    sink = attn.attend.head_attn_sink
    assert sink.shape == (2 * H,)
    logits, seen = maps_of(attn, x, torch.ones(2, N, dtype=torch.bool), H)
    powers = logits.masked_fill(~seen, -torch.inf).exp()
    weights = powers / (powers.sum(dim=-1, keepdim=True) + sink.exp().view(2, H, 1, 1))
    assert_close(attn(x), finished(attn, weights, x, H))


def test_beside_talking_heads():
    """Which mix both maps of all heads, before the softmax and behind it."""
    attn, x = layer(talking_heads=True), vectors(2, N, 16)
    logits, seen = maps_of(attn, x, torch.ones(2, N, dtype=torch.bool), H)
    mixed = torch.einsum('b h i j, h k -> b k i j', logits.flatten(1, 2), attn.pre_softmax_proj)
    weights = softmax(mixed, seen[:, 0])
    weights = torch.einsum('b h i j, h k -> b k i j', weights, attn.post_softmax_proj)
    assert_close(attn(x), finished(attn, weights.unflatten(1, (2, H)), x, H))


def test_a_bias_or_mask_of_heads_is_for_both_maps():
    attn, x = layer(), vectors(2, N, 16)
    bias, seen = vectors(2, H, N, N, seed=4), vectors(2, H, N, N, seed=5) > -0.5
    logits, causal = maps_of(attn, x, torch.ones(2, N, dtype=torch.bool), H)
    out = finished(attn, softmax(logits + bias[:, None], causal & seen[:, None]), x, H)
    assert_close(attn(x, attn_bias=bias, attn_mask=seen), out)


def test_layers_know_their_number():
    net = Decoder(dim=16, depth=3, heads=2, attn_differential=True, attn_dim_head=8, verbose=False)
    found = [
        f.least for m in net.modules() if isinstance(m, Attention) for f in m.features.active if hasattr(f, 'least')
    ]
    assert found == [0.8 - 0.6 * math.exp(-0.3 * n) for n in range(3)]
    own = Attention(16, differential=True, differential_init=0.3)
    assert own.features.by_stage['post_attention'][-1].least == 0.3
    assert own.differential_lambda.std() < 0.2 and (own.differential_norm == 1).all()


@pytest.mark.parametrize(
    'flags',
    [
        dict(rotary_pos_emb=True),
        dict(rel_pos_bias=True, attn_kv_heads=2),
        dict(dynamic_pos_bias=True, attn_pre_talking_heads=True),
        dict(attn_use_cope=True, attn_cope_talking_heads=True),
        dict(attn_data_dependent_alibi=True, attn_head_learned_sink=True),
        dict(attn_qk_rmsnorm=True, attn_one_kv_head=True, attn_num_mem_kv=2),
        dict(shaw_rel_pos=True, attn_head_scale=True),
    ],
    ids=str,
)
def test_token_by_token(flags):
    net = Decoder(dim=16, depth=2, heads=4, attn_dim_head=8, attn_differential=True, verbose=False, **flags)
    net, x, cache, outs = randomise(net.double()), vectors(2, N, 16), None, []
    for n in range(N):
        out, cache = net(x[:, : n + 1], cache=cache, return_hiddens=True)
        outs.append(out[:, -1:])
    assert_close(torch.cat(outs, dim=1), net(x))


def test_refusals():
    for name in ('laser', 'collab_heads'):
        with pytest.raises(ConfigError, match=f'`differential` cannot be combined with `{name}`'):
            layer(**{name: True})
    with pytest.raises(
        ConfigError, match='`flash=True` cannot be combined with `differential`: the fused kernel forms no'
    ):
        layer(flash=True)
    net = Encoder(dim=16, depth=1, heads=2, attn_differential=True, polar_pos_emb=True, verbose=False)
    with pytest.raises(ValueError, match='`differential` cannot be combined with `polar_pos_emb`'):
        net(torch.randn(1, 3, 16))


@pytest.mark.parametrize('kv_heads', [4, 2, 1])
def test_the_second_version(kv_heads):
    """Two query heads that read the same key head, by loops; the second one has a gate, and nothing is normed."""
    attn = Attention(
        16, heads=H, dim_head=D, value_dim_head=5, kv_heads=kv_heads, causal=True, differential='v2', flash=True
    )
    attn, x = randomise(attn.double()), vectors(2, N, 16)
    assert attn.to_q.out_features == 2 * H * D and attn.to_k.out_features == kv_heads * D
    q, k, v = attn.to_q(x).view(2, N, 2, H, D), attn.to_k(x).view(2, N, kv_heads, D), attn.to_v(x)
    v, gate, out = v.view(2, N, kv_heads, 5), attn.differential_gate(x).sigmoid(), x.new_empty(2, N, H, 5)
    for h in range(H):
        both = []
        for part in range(2):
            logits = q[:, :, part, h] @ k[:, :, h % kv_heads].mT * D**-0.5
            both.append(softmax(logits, torch.ones(N, N).tril().bool()) @ v[:, :, h % kv_heads])
        out[:, :, h] = both[0] - gate[..., h, None] * both[1]
    assert_close(attn(x), attn.to_out(out.flatten(2)))
    plain = Attention(16, heads=H, dim_head=D, value_dim_head=5, kv_heads=kv_heads, causal=True).double()
    first = {name: t[: H * D] if name == 'to_q.weight' else t for name, t in attn.state_dict().items()}
    plain.load_state_dict({name: t for name, t in first.items() if 'differential' not in name})
    attn.differential_gate = torch.nn.Linear(16, H).double()
    torch.nn.init.zeros_(attn.differential_gate.weight), torch.nn.init.constant_(attn.differential_gate.bias, -60.0)
    assert_close(attn(x), plain(x))
    with pytest.raises(ConfigError, match="`differential_init` cannot be combined with `differential='v2'`"):
        Attention(16, heads=H, differential='v2', differential_init=0.5)
