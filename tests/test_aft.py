"""Attention-free transformers: the formula as a softmax of each channel, numbers of any size, sums in place of keys."""

import itertools

import pytest
import torch
import toy_tasks
from costs import grows
from law_cases import randomise
from oracles import aft, assert_close, randn

from x_transformers import Attention, Decoder, Encoder, PrefixDecoder
from x_transformers.features.linear import aft_sums as sums
from x_transformers.flags import ConfigError

KINDS, MOST, TIGHT = ('simple', 'full', 'local', 'conv'), 200, 1e-12
HOLES = torch.tensor([[0, 0, 0, 1, 0, 1, 0, 1, 1], [1, 1, 0, 1, 0, 0, 0, 1, 1]], dtype=torch.bool)
EACH = pytest.mark.parametrize('kind', KINDS)


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(sums, 'CHUNK', 4)
    monkeypatch.setattr(sums, 'SPAN', 4)
    monkeypatch.setattr(sums, 'SCORES', 64)


def layer(kind, causal=True, window=3, scale=0.4, **flags):
    torch.manual_seed(0)
    attn = Attention(
        8, heads=2, dim_head=3, causal=causal, aft=kind, aft_max_len=MOST, aft_rank=4, aft_window=window, **flags
    )
    return randomise(attn.double(), scale=scale)


@pytest.mark.costly
@EACH
@pytest.mark.parametrize('causal', [True, False])
def test_the_softmax_of_each_channel(kind, causal):
    """With gradients, for windows shorter than chunks and longer, and padding inside."""
    for n, window in ((1, 1), (9, 3), (17, 5), (6, 20)):
        attn, x = layer(kind, causal, window), randn(2 if n == 9 else 1, n, 8).requires_grad_()
        for mask in (None, HOLES) if n == 9 else (None,):
            out, wanted = attn(x, mask=mask), aft(attn, x, kind, causal, window, mask)
            assert_close(out, wanted, f'{n} tokens, window {window}', tolerance=TIGHT)
            inputs = [x, *attn.parameters()]
            grads = (torch.autograd.grad(t.sin().sum(), inputs) for t in (out, wanted))
            for one, other in zip(*grads, strict=True):
                assert_close(one, other, 'gradient', tolerance=1e-10)


def test_kinds_that_are_one_another():
    x = randn(2, 23, 8)
    for causal in (True, False):
        simple, full, local = (layer(kind, causal, window=23) for kind in ('simple', 'full', 'local'))
        assert_close(local(x), full(x), tolerance=TIGHT)
        with torch.no_grad():
            full.aft_u.zero_()
            table = layer('conv', causal, window=2)
            table.aft_w.zero_()
        assert_close(full(x), simple(x), tolerance=TIGHT)
        assert_close(table(x), simple(x), tolerance=TIGHT)


@EACH
@pytest.mark.parametrize('causal', [True, False])
def test_keys_of_any_size(kind, causal):
    """Keys that grow from token to token, or fall, six hundred times what is usual: no denominator vanishes."""
    attn = layer(kind, causal)
    with torch.no_grad():
        attn.to_k.weight.mul_(600)
    x = randn(2, 33, 8)
    for given in (x, x * torch.linspace(0.01, 3, 33)[:, None], x * torch.linspace(3, 0.01, 33)[:, None]):
        # numbers that float32 has, since its roundings are as large as weights
        wide = given.float().double()
        k = attn.to_k(wide).float()
        found = sums.quotient(of_kind(attn, kind, k, wide.float(), causal))
        wanted = sums.quotient(of_kind(attn, kind, k.double(), wide, causal))
        assert found.isfinite().all()
        assert_close(found.double(), wanted, tolerance=2e-5)
        narrow = attn.float()(given.float().requires_grad_())
        grads = torch.autograd.grad(narrow.sum(), [*attn.parameters()])
        assert narrow.isfinite().all() and all(grad.isfinite().all() for grad in grads)
        attn.double()


def of_kind(attn, kind, k, x, causal):
    """The sums of a layer for keys (b n d), the values being as many features of its input."""
    k, v = k[:, None], x[:, None, :, : k.shape[-1]]
    if kind == 'simple':
        return sums.sum_simple(k, v, None) if causal else sums.sum_everything(k, v)
    if kind == 'conv':
        table = attn.aft_w.to(k.dtype)
        k, v = (t.squeeze(1).unflatten(-1, (2, -1)).transpose(1, 2) for t in (k, v))
        return sums.local(k, v, sums.sum_by_distance(table, 3), 3, causal, None)
    places = [t[None, : k.shape[-2]].to(k.dtype) for t in (attn.aft_u, attn.aft_v)]
    if kind == 'full':
        return sums.full(k, v, *places, causal, MOST)
    return sums.local(k, v, sums.sum_by_products(*places, 3), 3, causal, None)


@EACH
def test_a_cache_of_any_length(kind):
    """After a prompt of any length; with sums it does not grow."""
    attn, x, sizes = layer(kind, window=4), randn(2, 17, 8), []
    whole = attn(x)
    for prompt in (1, 2, 3, 4, 9, 13):
        outs, trace = [], None
        for start, stop in itertools.pairwise((0, prompt, prompt + 1, prompt + 3, 17)):
            out, trace = attn(x[:, start:stop], cache=trace, return_intermediates=True)
            outs.append(out)
        assert_close(torch.cat(outs, dim=1), whole, tolerance=TIGHT)
        if kind != 'full':
            assert trace.past.length == 17 and trace.past.buffers[0].tensor.numel() == 0
            sizes.append([t.shape for t in trace.states['aft'].value])
    assert all(one == sizes[0] for one in sizes)


@EACH
@pytest.mark.parametrize('causal', [True, False])
def test_nothing_at_all(kind, causal):
    for b, n in ((2, 0), (0, 5)):
        attn, x = layer(kind, causal), randn(b, n, 8)
        assert attn(x).shape == attn(x, mask=torch.ones(b, n).bool()).shape == x.shape


@EACH
def test_the_past_of_padded_rows(kind):
    """Keys hidden once stay so, and places are counted from the first real token."""
    attn, x = layer(kind, window=4), randn(2, 9, 8)
    wanted = attn(x, mask=HOLES)
    assert_close(wanted[0, 3:], attn(x[:1, 3:], mask=HOLES[:1, 3:])[0], tolerance=TIGHT)
    _, trace = attn(x[:, :5], mask=HOLES[:, :5], return_intermediates=True)
    assert_close(attn(x[:, 5:], mask=HOLES, cache=trace), wanted[:, 5:], tolerance=TIGHT)
    assert (attn(x, context_mask=HOLES)[0, :3] == 0).all()  # queries that see no key


def test_a_context():
    attn, context = layer('simple', causal=False), randn(2, 9, 8, seed=2)
    x = randn(2, 4, 8)
    out, trace = attn(x, context=context, context_mask=HOLES, return_intermediates=True)
    k = attn.to_k(context).masked_fill(~HOLES[..., None], -torch.inf)
    mean = (k.softmax(dim=1) * attn.to_v(context)).sum(dim=1, keepdim=True)
    assert_close(out, attn.to_out(attn.to_q(x).sigmoid() * mean), tolerance=TIGHT)
    assert_close(attn(x, context=context[:, :0], context_mask=HOLES, cache=trace), out, tolerance=TIGHT)


@EACH
@pytest.mark.parametrize('causal', [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_costs(kind, causal, monkeypatch):
    """Memory grows with the length, and so does time unless all places have weights."""
    monkeypatch.undo()
    monkeypatch.setattr(sums, 'SCORES', 2**12)
    attn = layer(kind, causal)
    attn.aft_u, attn.aft_v = (torch.nn.Parameter(torch.randn(2048, 4).double()) for _ in 'uv')
    attn.features.by_stage['attend'][0].aft_max_len = 2048
    n = 192 if kind == 'full' else 96 if causal else 256
    grows(lambda n: attn(randn(1, n, 8)), n, 2.0, 4.0 if kind == 'full' else None)


@EACH
def test_derivatives_of_derivatives(kind):
    attn = layer(kind).requires_grad_(False)
    x = (randn(1, 6, 8) * 0.5).requires_grad_()
    for causal in (True, False) if kind != 'conv' else (True,):
        assert torch.autograd.gradgradcheck(lambda x: attn(x, causal=causal), x, fast_mode=True)  # noqa: B023


def test_values_at_first():
    attn = Attention(64, heads=4, dim_head=8, aft='full', aft_max_len=50)
    assert attn.aft_u.shape == attn.aft_v.shape == (50, 128) and 0.009 < attn.aft_u.std() < 0.011
    assert Attention(64, heads=4, aft='conv', causal=True).aft_w.shape == (4, 32)
    assert Attention(64, heads=4, aft='conv').aft_w.shape == (4, 63)
    assert not [name for name, _ in Attention(64, aft='simple').named_parameters() if 'aft' in name]


# refusals

BUILT = {
    'aft_max_len': (dict(attn_aft='full'), "`attn_aft='full'` needs `attn_aft_max_len`: each place has a vector"),
    'kv_heads': (
        dict(attn_kv_heads=1),
        '`attn_aft` cannot be combined with `attn_kv_heads`: each channel has a separate',
    ),
    'dropout': (
        dict(attn_dropout=0.1),
        '`attn_aft` cannot be combined with `attn_dropout`: it forms no attention weights',
    ),
    'qk_norm': (
        dict(attn_qk_norm=True),
        '`attn_aft` cannot be combined with `attn_qk_norm`: it has no dot products of queries and keys',
    ),
    'rotary': (
        dict(rotary_pos_emb=True),
        '`attn_aft` cannot be combined with `rotary_pos_emb`: it has no dot products of queries and keys',
    ),
    'alibi': (
        dict(alibi_pos_bias=True),
        '`attn_aft` cannot be combined with `alibi_pos_bias`: its weights depend only',
    ),
    'flash': (dict(attn_flash=True), '`attn_flash=True` cannot be combined with `attn_aft`: it attends in its own way'),
    'cross': (
        dict(attn_aft='conv', cross_attend=True),
        '`attn_aft` cannot be combined with `cross_attend`: its positions are',
    ),
    'prepend_kv': (
        dict(attn_num_mem_kv=2),
        '`attn_aft` cannot be combined with `attn_num_mem_kv`: its keys must be the tokens',
    ),
}


@pytest.mark.parametrize('name', BUILT)
def test_flags_that_it_does_not_go_with(name):
    flags, words = BUILT[name]
    with pytest.raises(ConfigError) as error:
        Decoder(**{**dict(dim=8, depth=1, attn_aft='simple'), **flags})
    assert str(error.value).startswith(words)


CALLS = {
    'aft_max_len': (dict(), '`aft_max_len=5`: there are 9 tokens'),
    'mems': (dict(mem=torch.zeros(2, 1, 8)), '`aft` cannot be combined with `mems`: its keys are those of its queries'),
    'documents': (
        dict(document_ids=torch.zeros(2, 9).long()),
        '`document_ids` cannot be combined with `aft`: it sums up',
    ),
    'attn_mask': (
        dict(attn_mask=torch.ones(9, 9).bool()),
        '`aft` cannot be combined with `attn_mask`: it hides no keys but from',
    ),
    'maps': (dict(keep_maps=True), '`aft` cannot be combined with `return_attn`'),
    'context': (
        dict(context=torch.zeros(2, 3, 8)),
        '`aft` cannot be combined with a context: its positions are those of one',
    ),
}


@pytest.mark.parametrize('name', CALLS)
def test_calls_that_it_does_not_go_with(name):
    inputs, words = CALLS[name]
    attn = Attention(8, heads=2, dim_head=3, causal=True, aft='local', aft_max_len=5 if name == 'aft_max_len' else 9)
    with pytest.raises(ValueError) as error:
        attn(torch.zeros(2, 9, 8), **inputs)
    assert str(error.value).startswith(words)


def test_directions_that_there_are_not():
    with pytest.raises(ConfigError, match='`attn_aft` needs a stack that is causal or bidirectional'):
        PrefixDecoder(dim=8, depth=1, attn_aft='simple')
    with pytest.raises(
        ValueError, match='`aft` cannot be combined with `causal=False`: its table is one of earlier keys'
    ):
        layer('conv')(randn(1, 3, 8), causal=False)
    attn = layer('simple', causal=False)
    _, trace = attn(randn(1, 3, 8), return_intermediates=True)
    with pytest.raises(
        ValueError, match='`aft` cannot be combined with `cache`: where all tokens see all, there is no past'
    ):
        attn(randn(1, 3, 8), cache=trace)
    assert not Encoder(dim=8, depth=1, attn_aft='conv').can_cache_kv


# what is learned


@pytest.mark.slow
@pytest.mark.parametrize(
    'kind', ['simple', *(pytest.param(k, marks=pytest.mark.nightly) for k in ('local', 'conv', 'full'))]
)
@toy_tasks.SEEDS
def test_a_majority_of_a_few_in_many_noisy_tokens(kind, seed):
    torch.manual_seed(seed)
    task = toy_tasks.marked_class(512 if kind == 'simple' else 256)
    places = dict(attn_aft_max_len=512, attn_aft_rank=8) if kind in ('local', 'full') else {}
    flags = dict(attn_aft=kind, attn_aft_window=8, **places)
    net = toy_tasks.net_for(task, Encoder, dict(use_abs_pos_emb=False), **flags)
    assert toy_tasks.learned(net, task, steps=200, b=16) > 0.95
