"""Layers that attend to the keys and values of an earlier layer: two layers by loops, caches, and refusals."""

import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised
from test_heads import rms, turned

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.cache import Cache
from x_transformers.flags import ConfigError

DIM, HEADS, GROUPS, WIDTH, TOKENS = 10, 4, 2, 6, 8
SIZES = dict(dim=DIM, heads=HEADS, attn_dim_head=WIDTH, attn_kv_heads=GROUPS, verbose=False)
MODERN = dict(rotary_pos_emb=True, rotary_emb_dim=4, attn_qk_head_norm='rms', norm_add_unit_offset=False)
MODERN |= dict(attn_value_head_norm='rms', attn_value_head_norm_affine=False)


def build(kv_from=(None, None, 0, 1), **flags):
    return randomised(Decoder(depth=len(kv_from), attn_kv_from=kv_from, **{**SIZES, **MODERN, **flags}))


def by_loops(w, x):
    """Two layers of attention alone, of which the second has no keys."""
    kept = []
    for at in (0, 1):
        normed, own = torch.nn.functional.layer_norm(x, (DIM,), w[f'layers.{at}.0.0.gamma']), f'layers.{at}.1.'
        rows = []
        for row in normed:
            if at == 0:
                k, v = (row @ w[f'{own}to_{name}.weight'].T for name in 'kv')
                k, v = (t.unflatten(-1, (GROUPS, WIDTH)) for t in (k, v))
                k = [[turned(rms(h, w[f'{own}k_norm.gamma']), j, 4) for h in one] for j, one in enumerate(k)]
                v = [[rms(h) for h in one] for one in v]
            else:
                k, v = kept[len(rows)]
            rows.append((row, k, v))
        kept = [(k, v) for _, k, v in rows]
        outs = []
        for row, k, v in rows:
            tokens = []
            for i in range(TOKENS):
                q = (w[f'{own}to_q.weight'] @ row[i]).unflatten(0, (HEADS, WIDTH))
                parts = []
                for h in range(HEADS):
                    one = turned(rms(q[h], w[f'{own}q_norm.gamma']), i, 4) * WIDTH**-0.5
                    weights = torch.stack([one @ k[j][h % GROUPS] for j in range(i + 1)]).softmax(dim=0)
                    parts.append(sum(weights[j] * v[j][h % GROUPS] for j in range(i + 1)))
                tokens.append(w[f'{own}to_out.weight'] @ torch.cat(parts))
            outs.append(torch.stack(tokens))
        x = x + torch.stack(outs)
    return torch.nn.functional.layer_norm(x, (DIM,), w['final_norm.gamma'])


def test_the_formula():
    """With the gradients of the keys, which both layers use. (Frequencies are stored in float32.)"""
    net = build((None, 0), only_attn=True)
    assert_same(net, net, by_loops, randn(2, TOKENS, DIM), tolerance=1e-9)


def test_parameters_and_cache_of_a_layer_without_keys(tmp_path):
    """Neither projections nor norms of keys; of the cache the length alone, and windows are those of the reader."""
    net, x = build(attn_max_attend_past=(2, None, 2, None)), randn(2, 90, DIM)
    own = {name.partition('.1.')[2] for name in net.state_dict() if name.startswith('layers.4.1.')}
    assert own == {'to_q.weight', 'to_out.weight', 'q_norm.gamma'}
    wanted, cache, outs = net(x), None, []
    for first, last in ((0, 3), (3, 20), *((at, at + 1) for at in range(20, 90))):
        out, left = net(x[:, first:last], cache=cache, input_not_include_cache=True, return_hiddens='past')
        outs.append(out)
        cache = left.cache
        if last == 20:  # a value that goes through files, beams and rejected tokens
            cache.save(tmp_path / 'cache')
            cache = Cache.load(tmp_path / 'cache').expand(2).reorder(torch.tensor([0, 2]))
            more = net(x[:, 20:23], cache=cache, input_not_include_cache=True, return_hiddens='past')[1]
            cache = more.cache.crop(20)
    assert_close(torch.cat(outs, dim=1), wanted, tolerance=1e-11)
    sizes = [sum(t.numel() for t in layer.pair) for layer in cache.layers]
    assert sizes[2:] == [0, 0] and all(sizes[:2])


def test_padding_and_documents():
    net, x = build(), randn(2, 12, DIM)
    alone, start = net(x[:1, 5:]), torch.tensor([5, 0])
    assert_close(net(x, seq_start_pos=start)[:1, 5:], alone, tolerance=1e-11)
    assert_close(net(x, mask=torch.arange(12) >= start[:, None])[:1, 5:], alone, tolerance=1e-11)
    assert_close(net(x, document_ids=(torch.arange(12) >= 5).long().expand(2, -1))[:1, 5:], alone, tolerance=1e-11)


def test_it_generates():
    net = AutoregressiveWrapper(randomised(TransformerWrapper(num_tokens=20, max_seq_len=40, attn_layers=build())))
    prompt = torch.arange(6).view(2, 3)
    outs = [net.eval().generate(prompt, 12, temperature=0.0, cache_kv=cache) for cache in (True, False)]
    assert (outs[0] == outs[1]).all()


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (
            dict(kv_from=(None, 1)),
            'must be the index of an earlier layer of self-attention with keys of its own, got 1',
        ),
        (dict(kv_from=(0, None)), 'must be the index of an earlier layer'),
        (dict(kv_from=(None, 0, 1)), 'must be the index of an earlier layer'),
        (dict(kv_from=(None, 0), attn_kv_heads=(1, 2)), 'plain keys of the same heads and widths'),
        (dict(kv_from=(None, 0), rotary_layers=(True, False)), 'layer 0 rotates its keys otherwise'),
        (dict(kv_from=(None, 0), attn_qk_head_norm_at='after'), 'the other layer norms its keys'),
        (dict(kv_from=(None, 0), add_value_residual=True), 'cannot be combined with'),
    ],
)
def test_refusals(flags, words):
    with pytest.raises(ConfigError, match=words):
        build(**flags)


def test_calls_that_are_refused():
    net, x = build((None, 0)), randn(1, 4, DIM)
    with pytest.raises(ValueError, match='`mems` cannot be combined with `kv_from`'):
        net(x, mems=[x, x])
    with pytest.raises(ValueError, match='`kv_from` needs a stack, whose layer of self-attention 0 ran before'):
        net.layers[2][1](x)
