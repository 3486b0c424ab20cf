"""Disentangled attention by its formula, pair by pair, and the table that all layers of a stack share."""

import math

import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised

from x_transformers import Attention, Encoder, TransformerWrapper
from x_transformers.core import rows
from x_transformers.flags import ConfigError

DIM, HEADS, WIDTH, TOKENS = 10, 4, 6, 9
SHAPE = dict(dim=DIM, heads=HEADS, dim_head=WIDTH)


def bucket(t, span, most=None):
    """The vector of a distance."""
    middle = span // 2
    if most is not None and abs(t) > middle:
        far = math.ceil(math.log(abs(t) / middle) / math.log((most - 1) / middle) * (middle - 1) - 1e-9)
        t = (middle + far) * (1 if t > 0 else -1)
    return min(max(t + span, 0), 2 * span - 1)


def by_formula(w, x, table, kv_heads=HEADS, span=0, max_distance=None, terms=('c2p', 'p2c'), share=True, norm=True):
    def heads(t, name, count):
        t = t @ w[f'{name}.weight'].T
        t = t + w[f'{name}.bias'] if f'{name}.bias' in w else t
        return [t.split(WIDTH, dim=-1)[head % count] for head in range(HEADS)]

    q, k, v = heads(x, 'to_q', HEADS), heads(x, 'to_k', kv_heads), heads(x, 'to_v', kv_heads)
    far_k = heads(table, 'to_k' if share else 'to_pos_k', kv_heads) if 'c2p' in terms else None
    far_q = heads(table, 'to_q' if share else 'to_pos_q', HEADS) if 'p2c' in terms else None
    outs = []
    for h in range(HEADS):
        rows_of_head = []
        for i in range(TOKENS):
            scores = []
            for j in range(TOKENS):
                at = bucket(i - j, span, max_distance)
                score = (q[h][:, i] * k[h][:, j]).sum(-1)
                score = score + (q[h][:, i] * far_k[h][at]).sum(-1) if far_k else score
                score = score + (k[h][:, j] * far_q[h][at]).sum(-1) if far_q else score
                scores.append(score / math.sqrt((1 + len(terms)) * WIDTH))
            rows_of_head.append((torch.stack(scores, -1).softmax(-1).unsqueeze(-1) * v[h]).sum(1))
        outs.append(torch.stack(rows_of_head, 1))
    return torch.cat(outs, -1) @ w['to_out.weight'].T


KINDS = {
    'all distances': dict(span=3),
    'buckets': dict(span=4, max_distance=6),
    'its own projections': dict(span=4, max_distance=7, share=False),
    'one term': dict(span=2, terms=('c2p',)),
    'the other': dict(span=20, terms=('p2c',), share=False),
}


@pytest.mark.parametrize('own', KINDS.values(), ids=KINDS)
def test_formula(own):
    x, table = randn(2, TOKENS, DIM), randn(2 * own['span'], DIM, seed=2)
    for kv_heads, flash in ((4, False), (2, None)):
        layer = randomised(Attention(**SHAPE, kv_heads=kv_heads, flash=flash, qkv_bias=True, disentangled=own))
        assert_same(
            layer,
            lambda x, table, layer=layer: layer(x, disentangled_table=table),
            lambda w, x, table, k=kv_heads: by_formula(w, x, table, k, **own),
            x,
            table,
            tolerance=1e-12,
        )


def test_buckets_are_those_of_all_distances():
    from x_transformers.features.disentangled import Buckets

    for span, most in ((4, 6), (8, 64), (256, 512), (5, None)):
        found = Buckets(span, most).of(torch.arange(-1200, 1201)).tolist()
        assert found == [bucket(t, span, most) for t in range(-1200, 1201)]
        reach = Buckets(span, most).reach
        assert len({*found[: 1200 - reach + 1]}) == len({*found[1200 + reach :]}) == 1


def test_blocks_and_the_other_kernels_agree(monkeypatch):
    x, table = randn(1, 150, DIM), randn(8, DIM, seed=2)
    layer = randomised(Attention(**SHAPE, disentangled=dict(span=4, max_distance=9)))
    wanted = layer(x, disentangled_table=table)
    monkeypatch.setitem(rows.LARGE, 'cpu', 1)
    monkeypatch.setitem(rows.BLOCK, 'cpu', 1)
    assert_close(layer(x, disentangled_table=table), wanted)


def test_all_layers_share_a_table():
    """It is normed once, and stored in the stack."""
    own = dict(span=4, share=False)
    stack = randomised(Encoder(dim=DIM, heads=HEADS, attn_dim_head=WIDTH, depth=2, attn_disentangled=own))
    names = {name for name, _ in stack.named_parameters() if 'layers.' not in name}
    assert names == {'rel_embeddings', 'rel_embeddings_norm.gamma', 'rel_embeddings_norm.beta', 'final_norm.gamma'}
    assert stack.disable_abs_pos_emb
    table, seen = stack.rel_embeddings, []
    gain, bias = stack.rel_embeddings_norm.gamma + stack.rel_embeddings_norm.unit_offset, stack.rel_embeddings_norm.beta
    for layer in (stack.layers[0][1], stack.layers[2][1]):
        layer.register_forward_pre_hook(lambda m, a, given: seen.append(given['disentangled_table']), with_kwargs=True)
    net = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=stack).double()
    net(torch.arange(6).view(1, 6)).sum().backward()
    assert_close(seen[0], torch.nn.functional.layer_norm(table, (DIM,), gain, bias))
    assert seen[0] is seen[1] and table.grad.abs().sum() > 0
    plain = Encoder(dim=DIM, depth=1, attn_disentangled=dict(span=4, norm=False))
    assert not hasattr(plain, 'rel_embeddings_norm')


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(disentangled=dict(span=1)), '`disentangled` must be'),
        (dict(disentangled=dict(span=4, terms=('c2c',))), '`disentangled` must be'),
        (dict(disentangled=dict(span=8, max_distance=5)), 'the distance must be larger than half of the span'),
        (dict(disentangled=dict(span=4), qk_norm=True), 'both settle `logit_scale`'),
        (dict(disentangled=dict(span=4), kernel='elu'), '`kernel` cannot be combined with `disentangled`'),
        (dict(disentangled=dict(span=4), use_latent_q=True, dim_latent_q=3), 'cannot be combined with `use_latent_q`'),
    ],
)
def test_refusals(flags, words):
    with pytest.raises(ConfigError, match=words):
        Attention(**SHAPE, **flags)


def test_refusals_of_the_stack_and_of_calls():
    with pytest.raises(ConfigError, match='`attn_disentangled` got other values for some layers'):
        Encoder(dim=DIM, depth=2, attn_disentangled=(dict(span=4), None))
    layer, x = Attention(**SHAPE, disentangled=dict(span=4)), randn(2, TOKENS, DIM).float()
    with pytest.raises(ValueError, match='`disentangled_table` is missing'):
        layer(x)
    with pytest.raises(ValueError, match=r'`disentangled_table` must '):
        layer(x, disentangled_table=torch.zeros(6, DIM))
    with pytest.raises(ValueError, match='`disentangled` cannot be combined with a context'):
        layer(x, x, disentangled_table=torch.zeros(8, DIM))
