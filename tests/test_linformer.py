"""Linformer: slots as sums over places, in all ways of sharing, and what they cannot be combined with."""

import pytest
import torch
import toy_tasks
from costs import costs_of, grows
from law_cases import randomise
from oracles import assert_close, linformer, randn
from torch import nn
from torch.nn import functional as F
from toy_tasks import SEEDS, Task, ids, learned, net_for, nothing_asked

from x_transformers import Attention, AutoregressiveWrapper, CrossAttender, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError

SHARES, PROJECTIONS = ('none', 'headwise', 'kv', 'layerwise'), ('linear', 'mean', 'max', 'conv')
HOLES = torch.tensor([[0, 0, 1, 0, 0, 0, 1, 1, 0], [1, 1, 0, 1, 0, 0, 0, 0, 0]], dtype=torch.bool)


def layer(share='none', proj='linear', k=3, most=12, **flags):
    torch.manual_seed(0)
    sizes = dict(heads=4, dim_head=3, linformer_k=k, linformer_max_len=most)
    return randomise(Attention(8, **sizes, linformer_share=share, linformer_proj=proj, **flags).double())


@pytest.mark.parametrize('proj', PROJECTIONS)
def test_the_formula(proj):
    """With gradients: of any length, with padding on all sides and inside, and fewer key heads."""
    for share in SHARES[:3] if proj in ('linear', 'conv') else ('none',):
        for n, mask, kv_heads in ((12, None, 4), (7, None, 2), (9, HOLES, 2)):
            attn, x = layer(share, proj, kv_heads=kv_heads), randn(2, n, 8).requires_grad_()
            out, wanted = attn(x, mask=mask), linformer(attn, x, proj, 3, 12, mask)
            assert_close(out, wanted, f'{share}, {n} tokens', tolerance=1e-12)
            grads = (torch.autograd.grad(t.sin().sum(), [x, *attn.parameters()]) for t in (out, wanted))
            for one, other in zip(*grads, strict=True):
                assert_close(one, other, 'gradient', tolerance=1e-10)


def test_as_many_slots_as_tokens():
    """By the identity it is attention."""
    for share in SHARES[:3]:
        attn, plain, x = layer(share, k=12), Attention(8, heads=4, dim_head=3).double(), randn(2, 12, 8)
        plain.load_state_dict(attn.state_dict(), strict=False)
        with torch.no_grad():
            for name in ('lin_k', 'lin_v')[: 1 + (share != 'kv')]:
                getattr(attn, name).copy_(torch.eye(12).expand_as(getattr(attn, name)))
        assert_close(attn(x), plain(x), tolerance=1e-12)


def test_convolutions_of_equal_weights_are_means():
    x, mean = randn(2, 12, 8), layer(proj='mean')
    for share in SHARES[:3]:
        conv = layer(share, 'conv')
        conv.load_state_dict(mean.state_dict(), strict=False)
        with torch.no_grad():
            for name in ('lin_k', 'lin_v')[: 1 + (share != 'kv')]:
                getattr(conv, name).weight.fill_(1 / 4)
        assert_close(conv(x), mean(x), tolerance=1e-12)


@pytest.mark.parametrize('n', [1, 2, 3, 5, 12])
@pytest.mark.parametrize('proj', ['mean', 'max'])
def test_shares_are_those_of_adaptive_pooling(proj, n):
    """Of the tokens that there are, not of the places that it knows."""
    attn, x = layer(proj=proj), randn(2, n, 8)
    pool = F.adaptive_avg_pool1d if proj == 'mean' else F.adaptive_max_pool1d
    q, k, v = (to(x).unflatten(-1, (4, 3)).transpose(1, 2) for to in (attn.to_q, attn.to_k, attn.to_v))
    k, v = (pool(t.transpose(2, 3).flatten(0, 1), 3).unflatten(0, (2, 4)).mT for t in (k, v))
    wanted = F.scaled_dot_product_attention(q, k, v)
    assert_close(attn(x), attn.to_out(wanted.transpose(1, 2).flatten(2)), tolerance=1e-12)


def test_what_is_shared():
    """Matrices of three layers of four heads."""
    for share, count in zip(SHARES, (24, 6, 3, 1), strict=True):
        stack = Encoder(
            dim=8, depth=3, heads=4, attn_dim_head=3, attn_linformer_k=3, attn_linformer_max_len=12,
            attn_linformer_share=share,
        )  # fmt: skip
        found = [t for name, t in stack.named_parameters() if 'lin_' in name]
        assert sum(t.numel() for t in found) == count * 36
        assert 0.2 < torch.cat([t.flatten() for t in found]).std() < 0.4  # 12 ** -0.5 = 0.29
    assert dict(stack.named_parameters())['lin_k'].shape == (12, 3)
    assert layer().lin_k.shape == (4, 12, 3) and layer('headwise').lin_v.shape == (1, 12, 3)
    assert layer(proj='conv').lin_k.weight.shape == (12, 1, 4)
    assert layer('headwise', 'conv').lin_v.weight.shape == (3, 1, 4)
    assert not [name for name in layer(proj='mean').state_dict() if 'lin' in name]
    flags = dict(attn_linformer_max_len=12, attn_linformer_share='layerwise')
    with pytest.raises(ConfigError, match="`linformer_share='layerwise'` got other values for some layers"):
        Encoder(dim=8, depth=2, attn_linformer_k=(3, 4), **flags)
    stack = Encoder(dim=8, depth=2, attn_linformer_k=(3, 2), attn_linformer_max_len=12)
    assert [layer[1].lin_k.shape[-1] for layer in stack.layers[::2]] == [3, 2]
    with pytest.raises(ValueError, match='`linformer_table` is missing: a stack gives it'):
        layer('layerwise')(randn(1, 3, 8))


@pytest.mark.parametrize('proj', PROJECTIONS)
def test_a_context_is_projected_once(proj, monkeypatch):
    attn, x, context = layer(proj=proj), randn(2, 5, 8), randn(2, 9, 8, seed=2)
    inputs = dict(context_mask=HOLES)
    whole = attn(x, context=context, **inputs)
    out, trace = attn(x[:, :3], context=context, return_intermediates=True, **inputs)
    assert trace.past.length == 9 and trace.past.buffers[0].tensor.numel() == 0
    monkeypatch.setattr(type(attn.features.by_stage['attend'][0]), 'slots', None)
    rest = attn(x[:, 3:], context=context[:, :0], cache=trace, **inputs)
    assert_close(torch.cat((out, rest), dim=1), whole, tolerance=1e-12)


def test_a_context_stays_where_tokens_are_taken_back():
    """Slots are those of the context: cut to any length, and read by guesses that are taken back."""
    torch.manual_seed(0)
    flags = {f'cross_{name}': value for name, value in FLAGS.items()}
    stack = Decoder(dim=8, depth=2, heads=2, attn_dim_head=4, cross_attend=True, **flags)
    net = randomise(TransformerWrapper(num_tokens=9, max_seq_len=32, attn_layers=stack).double()).eval()
    ids, inputs = torch.randint(0, 9, (2, 8)), dict(context=randn(2, 9, 8), context_mask=HOLES)
    whole, trace = net(ids, **inputs), None
    for stop in (4, 5, 7):
        _, trace = net(ids[:, :stop], cache=trace, return_intermediates=True, **inputs)
    assert_close(net(ids, cache=trace.cache.crop(2), **inputs), whole[:, 2:], tolerance=1e-12)
    rows = torch.tensor([1, 1, 0])
    other = {name: t[rows] for name, t in inputs.items()}
    assert_close(net(ids[rows], cache=trace.cache.reorder(rows), **other), whole[rows, 7:], tolerance=1e-12)
    model, one = AutoregressiveWrapper(net), {name: t[:1] for name, t in inputs.items()}
    found = model.speculative(ids[:1], 9, temperature=0.0, **one)
    assert torch.equal(found, model.generate(ids[:1], 9, temperature=0.0, **one))


def test_rows_without_keys_give_zeros():
    for proj in PROJECTIONS:
        out = layer(proj=proj)(randn(2, 9, 8), context_mask=HOLES & torch.tensor([[True], [False]]))
        assert (out[1] == 0).all() and (out[0] != 0).any(dim=-1).all()
        assert (layer(proj=proj)(randn(2, 2, 8), context=randn(2, 0, 8)) == 0).all()
        for b, n in ((2, 0), (0, 5)):
            assert layer(proj=proj)(randn(b, n, 8), mask=torch.ones(b, n).bool()).shape == (b, n, 8)


@pytest.mark.parametrize('proj', ['linear', *(pytest.param(p, marks=pytest.mark.nightly) for p in PROJECTIONS[1:])])
def test_costs(proj):
    grows(lambda n: layer('headwise', proj, k=4, most=n)(randn(1, n, 8)), 256)


FLAGS = dict(attn_linformer_k=3, attn_linformer_max_len=12)
BUILT = {
    'causal': (
        Decoder,
        FLAGS,
        '`attn_linformer_k` cannot be combined with `causal`: its slots are sums over all tokens. In cross-at',
    ),
    'length': (Encoder, dict(attn_linformer_k=3), '`attn_linformer_k` needs `attn_linformer_max_len`: a slot is a sum'),
    'too many': (Encoder, {**FLAGS, 'attn_linformer_k': 13}, '`attn_linformer_k` must be at most `attn_lin'),
    'rotary': (
        Encoder,
        {**FLAGS, 'rotary_pos_emb': True},
        '`attn_linformer_k` cannot be combined with `rotary_pos_emb`: its',
    ),
    'alibi': (
        Encoder,
        {**FLAGS, 'alibi_pos_bias': True},
        '`attn_linformer_k` cannot be combined with `alibi_pos_bias`: its',
    ),
    'flash': (
        Encoder,
        {**FLAGS, 'attn_flash': True},
        '`attn_flash=True` cannot be combined with `attn_linformer_k`: it atten',
    ),
}


@pytest.mark.parametrize('name', BUILT)
def test_flags_that_it_does_not_go_with(name):
    stack, flags, words = BUILT[name]
    with pytest.raises(ConfigError) as error:
        stack(dim=8, depth=1, **flags)
    assert str(error.value).startswith(words)
    CrossAttender(dim=8, depth=1, rotary_pos_emb=True, **{f'cross_{n}': v for n, v in FLAGS.items()})


CALLS = {
    'length': (dict(), 13, '`linformer_max_len=12`: there are 13 keys'),
    'causal': (dict(causal=True), 9, '`linformer_k` cannot be combined with `causal`: its queries see later keys'),
    'maps': (dict(keep_maps=True), 9, '`linformer_k` cannot be combined with `return_attn`'),
    'mems': (
        dict(mem=torch.zeros(2, 1, 8)),
        9,
        '`linformer_k` cannot be combined with `mems`: its slots are sums over all tokens',
    ),
    'documents': (
        dict(document_ids=torch.zeros(2, 9).long()),
        9,
        '`document_ids` cannot be combined with `linformer_k`: its',
    ),
    'attn_mask': (
        dict(attn_mask=torch.ones(9, 9).bool()),
        9,
        '`linformer_k` cannot be combined with `attn_mask`: it hides no keys',
    ),
    'attn_bias': (
        dict(attn_bias=torch.ones(9, 9)),
        9,
        '`linformer_k` cannot be combined with `attn_bias`: it hides no keys',
    ),
}


@pytest.mark.parametrize('name', CALLS)
def test_calls_that_it_does_not_go_with(name):
    inputs, n, words = CALLS[name]
    with pytest.raises(ValueError) as error:
        layer()(randn(2, n, 8).double(), **inputs)
    assert str(error.value).startswith(words)


def test_no_cache_of_its_own_tokens():
    attn, x = layer(), randn(2, 5, 8)
    _, trace = attn(x, return_intermediates=True)
    with pytest.raises(
        ValueError, match='`linformer_k` cannot be combined with `cache`: its slots are sums over all tokens'
    ):
        attn(x, cache=trace)


# what is learned


def leaning(n=512, marked=0.3, share=0.8):
    """T-class: of which of two kinds most of the marked tokens are likely to be. Tokens: '?', two, eight of noise."""

    def draw(b):
        side = ids(2, b, 1)
        kind = 1 + (torch.rand(b, n) < torch.where(side == 1, share, 1 - share)).long()
        x = torch.where(torch.rand(b, n) < marked, kind, 3 + ids(8, b, n))
        x[:, 0] = 0
        return x, torch.cat((side, nothing_asked(b, n - 1)), dim=1)

    return Task(draw, n, 11, 2)


@pytest.mark.slow
@pytest.mark.parametrize('proj', ['linear', pytest.param('mean', marks=pytest.mark.nightly)])
@SEEDS
def test_a_majority_in_512_noisy_tokens(proj, seed):
    """By 32 slots; means find a few marked tokens, and matrices, which learn each place by itself, many."""
    torch.manual_seed(seed)
    task, steps = (leaning(), 150) if proj == 'linear' else (toy_tasks.marked_class(512), 400)
    flags = dict(attn_linformer_k=32, attn_linformer_max_len=512, attn_linformer_proj=proj)
    net = net_for(task, Encoder, dict(use_abs_pos_emb=False), **flags)
    assert learned(net, task, steps=steps, b=16) > 0.95


def test_slots_of_the_input():
    """Projected are the slots of the input, where that is less work and nobody sees keys and values on their way."""
    plain, x = layer('headwise'), randn(2, 12, 8)
    seen = layer('headwise')
    seen.load_state_dict(plain.state_dict())
    rows = []
    seen.to_k.register_forward_hook(lambda module, args, out: rows.append(out.shape[1]))
    assert_close(plain(x), seen(x), tolerance=1e-12)
    assert rows == [12]
    assert costs_of(lambda n: plain(x), 12).flops < costs_of(lambda n: seen(x), 12).flops

    class Squared(nn.Linear):
        def forward(self, t):
            return super().forward(t).square()

    changed, wanted = layer('headwise'), layer('headwise')
    changed.to_v = Squared(8, 12, bias=False).double()
    wanted.load_state_dict(changed.state_dict())
    wanted.to_v.register_forward_hook(lambda module, args, out: out.square())
    assert_close(changed(x), wanted(x), tolerance=1e-12)
    kept, inside = plain(x, return_intermediates=True)
    assert_close(kept, plain(x), tolerance=1e-12)
    assert inside.values.shape[2] == 12

    flags = dict(attn_linformer_k=3, attn_linformer_max_len=12, attn_linformer_share='kv', add_value_residual=True)
    stack = randomise(Encoder(dim=8, depth=2, heads=4, attn_dim_head=3, **flags).double())
    out = stack(x)
    for attn in (stack.layers[0][1], stack.layers[2][1]):
        attn.to_k.register_forward_hook(lambda module, args, out: out)
    assert_close(stack(x), out, tolerance=1e-12)
