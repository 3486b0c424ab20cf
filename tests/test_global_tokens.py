"""Longformer: tokens that `global_mask` marks see all and are seen by all, with projections of their own."""

import pytest
import torch
from building import vectors
from law_cases import randomise
from oracles import assert_close
from torch._subclasses import FakeTensorMode

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.patterns import Global, Sliding, Strided, local

TIGHT, N = 1e-10, 14
WINDOW = Sliding(2) | Global('mask')
MARKS = torch.zeros(3, N, dtype=torch.bool)
MARKS[0, [0, 7]], MARKS[1, [3, 4, 5, 13]] = True, True  # and none in the last row
REAL = torch.ones(3, N, dtype=torch.bool)
REAL[0, 9:], REAL[2, :4] = False, False


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(local, 'CHUNK', 2)


def layer(causal=False, pattern=WINDOW, scale=0.4, **flags):
    torch.manual_seed(0)
    sizes = dict(heads=4, dim_head=6, kv_heads=2, value_dim_head=5, causal=causal)
    return randomise(Attention(16, **sizes, sparse_pattern=pattern, **flags).double(), scale=scale)


def dense(attn, x, seen, marks):
    """Queries that are marked, and the keys and values that they read, are of the other projections."""

    def heads(letter, which):
        width = 5 if letter == 'v' else 6
        t = getattr(attn, f'to_{letter}{which}')(x).unflatten(-1, (-1, width)).transpose(1, 2)
        return t if letter == 'q' else t.repeat(1, 2, 1, 1)

    outs = []
    for which in ('', '_global'):
        q, k, v = (heads(letter, which) for letter in 'qkv')
        weights = (q @ k.mT * 6**-0.5).masked_fill(~seen, -1e300).softmax(dim=-1) * seen
        outs.append(weights @ v)
    out = torch.where(marks[:, None, :, None], outs[1], outs[0])
    return attn.to_out(out.transpose(1, 2).flatten(2))


def sight(marks, causal, mask=None):
    place = torch.arange(N)
    seen = ((place[:, None] - place).abs() <= 2) | marks[:, None, :, None] | marks[:, None, None]
    seen = seen.tril() if causal else seen
    return seen if mask is None else seen & mask[:, None, None]


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('mask', [None, REAL], ids=['all', 'padding'])
def test_the_dense_twin(causal, mask):
    attn, x = layer(causal), vectors(3, N, 16).requires_grad_()
    assert {'to_q_global.weight', 'to_k_global.weight', 'to_v_global.weight'} <= attn.state_dict().keys()
    for marks in (MARKS, torch.ones_like(MARKS), torch.zeros_like(MARKS)):
        out, wanted = attn(x, mask=mask, global_mask=marks), dense(attn, x, sight(marks, causal, mask), marks)
        wanted = wanted if mask is None else wanted * mask[..., None]
        assert_close(out, wanted, tolerance=TIGHT)
        params = [x, *attn.parameters()]
        found, grads = (torch.autograd.grad(t.sin().sum(), params, allow_unused=True) for t in (out, wanted))
        for one, other in zip(found, grads, strict=True):
            assert_close(torch.zeros(()) if one is None else one, torch.zeros(()) if other is None else other,
                         'gradient', tolerance=TIGHT)  # fmt: skip
    assert_close(attn(x, mask=mask), attn(x, mask=mask, global_mask=torch.zeros_like(MARKS)), tolerance=TIGHT)


def test_copies_at_first_and_shared_projections():
    """The same as dense attention where they see each other."""
    torch.manual_seed(0)
    flags, x = dict(heads=4, dim_head=4, qk_norm=True, qkv_bias=True), vectors(3, N, 16)
    plain = Attention(16, **flags).double()
    wanted = plain(x, attn_mask=sight(MARKS, False).expand(-1, 4, -1, -1))
    for own in (None, False):
        attn = Attention(16, **flags, sparse_pattern=WINDOW, global_separate_qkv=own).double()
        weights = plain.state_dict()
        if own is None:
            weights |= {n.replace('.', '_global.'): t for n, t in weights.items() if n[:4] in ('to_q', 'to_k', 'to_v')}
        attn.load_state_dict(weights)
        assert_close(attn(x, global_mask=MARKS), wanted, tolerance=TIGHT)
        _, trace = attn(x, global_mask=MARKS, return_intermediates=True)
        _, other = plain(x, attn_mask=sight(MARKS, False).expand(-1, 4, -1, -1), return_intermediates=True)
        assert_close(trace.post_softmax_attn, other.post_softmax_attn, tolerance=TIGHT)
        whole = Attention(16, **flags, sparse_pattern=Sliding(2 * N) | Global('mask'), global_separate_qkv=own).double()
        whole.load_state_dict(weights)
        assert_close(whole(x, global_mask=MARKS), plain(x), tolerance=TIGHT)
    fresh = Attention(16, **flags, sparse_pattern=WINDOW)
    assert fresh.to_k_global.weight.equal(fresh.to_k.weight) and fresh.to_v_global.bias is not fresh.to_v.bias


def test_maps_of_other_projections():
    attn, x = layer(), vectors(3, N, 16)
    out, trace = attn(x, global_mask=MARKS, return_intermediates=True)
    values = [to(x).unflatten(-1, (-1, 5)).transpose(1, 2).repeat(1, 2, 1, 1) for to in (attn.to_v_global, attn.to_v)]
    values = torch.where(MARKS[:, None, :, None, None], *(t.unsqueeze(2) for t in values))
    found = torch.einsum('b h i j, b h i j d -> b i h d', trace.post_softmax_attn, values.expand(-1, -1, N, -1, -1))
    assert_close(attn.to_out(found.flatten(2)), out, tolerance=TIGHT)


def model(pattern=WINDOW, kind=Decoder, **flags):
    stack = kind(dim=16, depth=2, heads=4, attn_dim_head=4, attn_sparse_pattern=pattern, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=11, max_seq_len=0, attn_layers=stack, use_abs_pos_emb=False, **flags)
    return randomise(net.double()).eval()


@pytest.mark.costly
@pytest.mark.parametrize('flags', [{}, dict(num_memory_tokens=2)], ids=['plain', 'memory tokens'])
@pytest.mark.parametrize('pattern', [WINDOW, Strided(3) | Global('mask')], ids=['window', 'strides'])
def test_cache(pattern, flags):
    """Global tokens of the prompt stay so; new ones are none unless it is said."""
    net, ids = model(pattern, **flags), torch.randint(0, 11, (3, N), generator=torch.Generator().manual_seed(0))
    for marks in (MARKS, MARKS[:, :6]):
        wanted = net(ids, global_mask=marks)
        for stops in ((5, 6, 7, 8), (1, 2, N), (6, N)):
            outs, cache = [], None
            for stop in stops:
                out, cache = net(ids[:, :stop], cache=cache, global_mask=marks[:, :stop], return_intermediates=True)
                outs.append(out[:, -(stop - sum(o.shape[1] for o in outs)) :])
            assert_close(torch.cat(outs, dim=1), wanted[:, : stops[-1]], tolerance=TIGHT)
    out, cache = net(ids[:, :6], global_mask=MARKS[:, :6], return_intermediates=True)
    assert_close(net(ids[:, :7], cache=cache)[:, -1], wanted[:, 6], tolerance=TIGHT)


def test_generate():
    net, prompt = AutoregressiveWrapper(model()), torch.randint(0, 11, (3, 6))
    marks = MARKS[:, :6]
    kept, anew = (net.generate(prompt, 5, temperature=0.0, cache_kv=on, global_mask=marks) for on in (True, False))
    assert kept.equal(anew)


def test_layers_without_global_tokens():
    stack = Encoder(dim=16, depth=3, heads=4, attn_sparse_pattern=(Sliding(2), WINDOW, None)).double()
    x = vectors(3, N, 16)
    assert_close(stack(x[:1], global_mask=MARKS[:1])[0], stack(x, global_mask=MARKS)[0], tolerance=TIGHT)
    assert (stack(x, global_mask=MARKS)[:2] - stack(x)[:2]).abs().max() > 1e-3


@pytest.mark.costly
def test_marks_of_which_nobody_can_tell_how_many_there_are():
    """Inside of `vmap`, and of tensors without values."""
    stack = Encoder(dim=16, depth=2, heads=4, attn_sparse_pattern=WINDOW).double()
    x = vectors(3, N, 16)
    each = torch.func.vmap(lambda x, marks: stack(x[None], global_mask=marks[None])[0])
    assert_close(each(x, MARKS), stack(x, global_mask=MARKS), tolerance=TIGHT)
    with FakeTensorMode(allow_non_fake_inputs=True):
        marks = torch.ones(3, N, dtype=torch.bool)
        assert stack(torch.ones(3, N, 16, dtype=x.dtype), global_mask=marks).shape == (3, N, 16)


@pytest.mark.slow
def test_one_graph():
    """Whose number of global tokens is that of a call."""
    stack = randomise(Encoder(dim=8, depth=1, heads=2, attn_dim_head=4, attn_sparse_pattern=WINDOW).double()).eval()
    torch._dynamo.reset()
    compiled, x = torch.compile(stack, fullgraph=True, backend='aot_eager'), vectors(3, N, 8)
    for marks in (MARKS, MARKS.flip(1), MARKS | (torch.arange(N) > 9)):
        assert_close(compiled(x, global_mask=marks), stack(x, global_mask=marks), tolerance=TIGHT)


REFUSED = [
    (lambda: Attention(8, sparse_pattern=Sliding(2), global_separate_qkv=True), "`sparse_pattern` with Global('mask')"),
    (lambda: Encoder(dim=8, depth=1, attn_sparse_pattern=Sliding(2))(torch.zeros(1, 3, 8), global_mask=MARKS[:1, :3]),
     '`global_mask` was given, but no `attn_sparse_pattern`'),
    (lambda: Encoder(dim=8, depth=1, attn_sparse_pattern=WINDOW)(torch.zeros(1, 3, 8), global_mask=MARKS[:1]),
     '`global_mask` got 14 tokens, there are 3'),
    (lambda: Global('mask', positions=(3,)), 'given without `first`'),
    (lambda: WINDOW.visible(torch.arange(3), torch.arange(3)), 'needs `marks`'),
]  # fmt: skip


@pytest.mark.parametrize(('make', 'words'), REFUSED)
def test_refusals(make, words):
    with pytest.raises((ConfigError, ValueError)) as error:
        make()
    assert words in str(error.value)


def test_transformers_longformer():
    """A tiny random one; its window is counted from end to end."""
    found = pytest.importorskip('transformers')
    torch.manual_seed(0)
    config = found.LongformerConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32,
        max_position_embeddings=64, attention_window=[4], attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
        pad_token_id=1,
    )  # fmt: skip
    theirs = found.LongformerModel(config, add_pooling_layer=False).eval()
    own = theirs.encoder.layer[0].attention.self
    with torch.no_grad():
        for part in own.parameters():
            part.normal_(std=0.4)
    attn = Attention(16, heads=4, dim_head=4, qkv_bias=True, sparse_pattern=WINDOW, project_out=False).eval()
    names = dict(to_q='query', to_k='key', to_v='value')
    attn.load_state_dict(
        {f'{ours}{tail}.{part}': getattr(getattr(own, name + tail), part).detach()
         for ours, name in names.items() for tail in ('', '_global') for part in ('weight', 'bias')},
        strict=False,
    )  # fmt: skip
    handed = []
    own.register_forward_hook(lambda module, args, kwargs, out: handed.append((args, kwargs, out)), with_kwargs=True)
    ids = torch.randint(2, 20, (3, 16))
    marks = torch.zeros(3, 16, dtype=torch.bool)
    marks[0, 0], marks[1, [2, 9]], marks[2, [0, 15]] = True, True, True
    real = torch.ones(3, 16, dtype=torch.long)
    real[0, 12:] = 0
    with torch.no_grad():
        theirs(ids, attention_mask=real, global_attention_mask=marks.long())
        ((args, kwargs, out),) = handed
        x = args[0] if args else kwargs['hidden_states']
        ours = attn(x, mask=real.bool(), global_mask=marks)
    assert_close(ours[real.bool()], out[0][real.bool()], tolerance=1e-4)
