"""`Global` in cross-attention: keys that all queries see, and queries that see the whole context."""

import pytest
import torch
from building import vectors
from costs import grows
from law_cases import randomise
from oracles import assert_close

from x_transformers import Attention, AutoregressiveWrapper, CrossAttender, Decoder, TransformerWrapper, XTransformer
from x_transformers.flags import ConfigError
from x_transformers.patterns import BlockLocal, Global, Mix, Sliding, Strided

TIGHT, HEADS, N, KEYS = 1e-10, 4, 7, 9
PATTERNS = [Global(2), Global(positions=(1, 5, 8)), Global(1, positions=(3, 30)), Global(20)]


def some(*shape, seed=1, share=0.6):
    real = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    real[:, 0] = True  # others count from there
    return real


def dense(pattern, n, keys, first=0):
    """The formula, written out: either is global, each counted from its own beginning."""
    known = {*range(pattern.first), *pattern.positions}
    return torch.tensor([[i + first in known or j in known for j in range(keys)] for i in range(n)])


def twins(pattern, **flags):
    """A layer with a pattern, and the same without."""
    torch.manual_seed(0)
    sizes = dict(heads=HEADS, dim_head=3, kv_heads=2, value_dim_head=5, dim_context=6, **flags)
    sparse = randomise(Attention(8, **sizes, sparse_pattern=pattern).double())
    plain = Attention(8, **sizes).double()
    plain.load_state_dict(sparse.state_dict())
    return sparse, plain


def agree(sparse, plain, inputs, params, seen, twice=False):
    out, wanted = sparse(**inputs), plain(**inputs, attn_mask=seen)
    assert_close(out, wanted, tolerance=TIGHT)
    grads = []
    for t, layer in ((out, sparse), (wanted, plain)):
        of = [*params, *layer.parameters()]
        grads.append(torch.autograd.grad(t.sin().sum(), of, allow_unused=True, create_graph=twice))
    for one, other in zip(*grads, strict=True):
        assert_close(*(torch.zeros(()) if g is None else g for g in (one, other)), 'gradient', tolerance=TIGHT)
    if twice:
        both = [torch.autograd.grad(own[0].square().sum(), params[0])[0] for own in grads]
        assert_close(*both, 'second derivative', tolerance=TIGHT)


@pytest.mark.parametrize('pattern', PATTERNS, ids=repr)
@pytest.mark.parametrize('flags', [{}, dict(num_mem_kv=2, qk_norm=True)], ids=['plain', 'keys in front'])
def test_the_dense_twin(pattern, flags):
    layers = twins(pattern, **flags)
    for n, keys in ((N, KEYS), (1, KEYS), (N, 1), (KEYS, N)):
        x, context = vectors(2, n, 8).requires_grad_(), vectors(2, keys, 6, seed=2).requires_grad_()
        for mask in (None, some(2, n)):
            for hidden in (None, some(2, keys)):
                inputs = dict(x=x, context=context, mask=mask, context_mask=hidden)
                agree(*layers, inputs, (x, context), dense(pattern, n, keys), twice=n == 1)
    bias = vectors(2, HEADS, KEYS, N, seed=3).requires_grad_()
    agree(*layers, dict(x=x, context=context, attn_bias=bias), (x, context, bias), dense(pattern, KEYS, N))


def test_queries_that_see_nothing_and_contexts_without_tokens():
    pattern = Global(positions=(1, 2))
    attn = Attention(8, heads=2, dim_head=4, sparse_pattern=pattern, project_out=False).double()
    x, context = vectors(1, N, 8), vectors(1, KEYS, 8)
    hidden = (torch.arange(KEYS)[None] - 1.5).abs() > 1  # the global ones
    out = attn(x, context, context_mask=hidden)
    assert (out[:, [0, *range(3, N)]] == 0).all() and (out[:, 1:3] != 0).all()
    assert (attn(x, context[:, :0]) == 0).all() and attn(x[:, :0], context).shape == (1, 0, 8)
    x.requires_grad_()
    assert torch.autograd.grad(attn(x, context, context_mask=hidden).sum(), x)[0].isfinite().all()


def test_maps():
    sparse, plain = twins(Global(1, positions=(3,)))
    x, context = vectors(2, N, 8), vectors(2, KEYS, 6)
    seen = dense(Global(1, positions=(3,)), N, KEYS)
    _, own = sparse(x, context, return_intermediates=True)
    _, other = plain(x, context, attn_mask=seen, return_intermediates=True)
    assert_close(own.post_softmax_attn, other.post_softmax_attn, tolerance=TIGHT)


@pytest.mark.costly
def test_dropout_keeps_the_mean():
    attn, _ = twins(Global(3), dropout=0.5)
    x, context = vectors(1, N, 8), vectors(1, KEYS, 6)
    torch.manual_seed(0)
    mean = torch.stack([attn.train()(x, context) for _ in range(400)]).mean(dim=0)
    assert (mean - attn.eval()(x, context)).abs().max() < 0.2 * mean.abs().max()


def test_cache_of_a_layer():
    """It counts the queries that came before."""
    attn, _ = twins(Global(positions=(0, 4)))
    x, context = vectors(2, N, 8), vectors(2, KEYS, 6)
    wanted = attn(x, context)
    for stops in ((1, 2, 3, 4, 5, 6, N), (3, N)):
        outs, cache, start = [], None, 0
        for stop in stops:
            new = context if cache is None else context[:, :0]
            out, cache = attn(x[:, start:stop], new, cache=cache, return_intermediates=True)
            outs.append(out)
            start = stop
        assert_close(torch.cat(outs, dim=1), wanted, tolerance=TIGHT)


def model(pattern=None, **flags):
    flags = dict(cross_attn_sparse_pattern=Global(2, positions=(4,)) if pattern is None else pattern, **flags)
    stack = Decoder(dim=8, depth=2, heads=2, attn_dim_head=4, cross_attend=True, rotary_pos_emb=True, **flags)
    return randomise(TransformerWrapper(num_tokens=11, max_seq_len=0, attn_layers=stack).double()).eval()


@pytest.mark.costly
@pytest.mark.parametrize('flags', [{}, dict(attn_kv_heads=1), dict(cross_attn_num_mem_kv=1)], ids=str)
def test_cache_of_a_model(flags):
    net, ids = model(**flags), torch.randint(0, 11, (3, N), generator=torch.Generator().manual_seed(0))
    context, hidden = vectors(3, KEYS, 8), some(3, KEYS)
    pads = torch.tensor([0, 1, 3])
    for inputs in ({}, dict(context_mask=hidden), dict(seq_start_pos=pads)):
        wanted = net(ids, context=context, **inputs)
        real = torch.arange(N) >= (pads if 'seq_start_pos' in inputs else torch.zeros(3))[:, None]
        for stops in ((*range(1, N + 1),), (4, N)):
            outs, cache = [], None
            for stop in stops:
                out, cache = net(ids[:, :stop], context=context, cache=cache, return_intermediates=True, **inputs)
                outs.append(out[:, -(stop - sum(o.shape[1] for o in outs)) :])
            assert_close(torch.cat(outs, dim=1)[real], wanted[real], tolerance=TIGHT)
    padded = net(ids, context=context, seq_start_pos=pads)
    assert_close(padded[2, 3:], net(ids[2:, 3:], context=context[2:])[0], tolerance=TIGHT)
    _, cache = net(ids, context=context, return_intermediates=True)
    again = net(ids[:, :5], context=context, cache=cache.cache.crop(3))
    assert_close(again[:, -1], net(ids, context=context)[:, 4], tolerance=TIGHT)


def test_generate():
    net = AutoregressiveWrapper(model())
    prompt, context = torch.randint(0, 11, (2, 3)), vectors(2, KEYS, 8)
    kept, anew = (net.generate(prompt, 5, temperature=0.0, cache_kv=on, context=context) for on in (True, False))
    assert kept.equal(anew)


def test_stacks():
    """Forms, and flags that it starts from."""
    pattern = Global(positions=(2,))
    stack = Decoder(dim=8, depth=1, heads=2, cross_attend=True, attn_sparse_pattern=pattern)
    own = [layer[1].features.by_stage['attend'][0].pattern for layer in stack.layers if layer.kind != 'f']
    assert own == [pattern, pattern] and Decoder.from_config(stack.config).config == stack.config
    reader = CrossAttender(dim=8, depth=1, heads=2, attn_sparse_pattern=pattern, cross_attn_dim_context=6)
    x, context = torch.randn(1, 5, 8), torch.randn(1, 6, 6, requires_grad=True)
    out = reader(x, context=context)
    seen = [torch.autograd.grad(out[0, at, 0], context, retain_graph=True)[0][0] for at in range(5)]
    assert [(one != 0).any(dim=-1).nonzero()[:, 0].tolist() for one in seen] == [[2], [2], [0, 1, 2, 3, 4, 5], [2], [2]]
    out = reader(x, context=context, document_ids=torch.tensor([[0, 0, 1, 1, 1]]))  # places within documents
    seen = [torch.autograd.grad(out[0, at, 0], context, retain_graph=True)[0][0] for at in range(5)]
    assert [int((one != 0).any(dim=-1).sum()) for one in seen] == [1, 1, 1, 1, 6]
    net = XTransformer(
        dim=8, enc_num_tokens=11, enc_depth=1, enc_heads=2, enc_max_seq_len=8, dec_num_tokens=11, dec_depth=1,
        dec_heads=2, dec_max_seq_len=8, dec_cross_attn_sparse_pattern={'pattern': 'global', 'first': 2},
    )  # fmt: skip
    source = torch.randint(0, 11, (2, 6))
    net(source, source, mask=torch.arange(6) < torch.tensor([[6], [3]])).backward()
    assert net.generate(source, source[:, :1], 4).shape == (2, 4)


def test_a_pass_over_some_tokens():
    """Each stands where it stood among all."""
    flags = dict(weight_tie_layers=True, act_halting=True, cross_attn_sparse_pattern=Global(positions=(4,)))
    sizes = dict(dim=8, depth=4, heads=2, cross_attend=True)
    some, whole = (Decoder(**sizes, **flags, act_dense=dense).double().eval() for dense in (False, True))
    whole.load_state_dict(randomise(some, scale=1.0).state_dict())
    x, context, mask = vectors(3, N, 8), vectors(3, KEYS, 8), torch.arange(N) < torch.tensor([[5], [7], [6]])
    runs = []
    some.layers[1][1].to_q.register_forward_hook(lambda module, args, out: runs.append(out.shape[1]))
    for inputs in ({}, dict(mask=mask), dict(seq_start_pos=torch.tensor([0, 2, 1]))):
        assert_close(some(x, context=context, **inputs), whole(x, context=context, **inputs), tolerance=TIGHT)
    assert min(runs) < N


def test_costs():
    """Neither all queries by all keys, nor all scores at once."""
    attn = Attention(4, heads=1, dim_head=4, sparse_pattern=Global(2))
    grows(lambda n: attn(torch.randn(1, n, 4), torch.randn(1, n, 4)), 256, 2.0, 2.0)
    grows(
        lambda n: attn(torch.randn(1, n, 4), torch.randn(1, n, 4), context_mask=torch.arange(n)[None] < n - 9),
        256, 2.0, 2.0,
    )  # fmt: skip


@pytest.mark.slow
def test_one_graph():
    attn, _ = twins(Global(2))
    torch._dynamo.reset()
    compiled = torch.compile(attn.eval(), fullgraph=True, backend='aot_eager')
    for n, keys in ((N, KEYS), (N + 3, KEYS + 2), (4, 5)):
        x, context, hidden = vectors(2, n, 8), vectors(2, keys, 6), some(2, keys)
        assert_close(compiled(x, context, context_mask=hidden), attn(x, context, context_mask=hidden), tolerance=TIGHT)
    net = model()
    compiled = torch.compile(net, fullgraph=True, backend='aot_eager')
    ids, context = torch.randint(0, 11, (2, N)), vectors(2, KEYS, 8)
    assert_close(compiled(ids, context=context), net(ids, context=context), tolerance=TIGHT)


ELSE = (Sliding(2), Sliding(2) | Global(1), Strided(2), BlockLocal(2), Mix((Global(1), Global(2))))


@pytest.mark.parametrize('pattern', [*ELSE, Global('mask')], ids=repr)
def test_everything_else_is_refused(pattern):
    reason = '`global_mask` marks tokens' if pattern == Global('mask') else 'its positions are those of one sequence'
    with pytest.raises(ConfigError, match=f'`attn_sparse_pattern` cannot be combined with `cross_attend`: {reason}'):
        Decoder(dim=8, depth=1, heads=2, cross_attend=True, cross_attn_sparse_pattern=pattern)
    with pytest.raises(ValueError, match=f'`sparse_pattern` cannot be combined with a context: {reason}'):
        Attention(8, heads=2, sparse_pattern=pattern)(torch.zeros(1, 3, 8), torch.zeros(1, 3, 8))


def test_refusals():
    x = torch.zeros(1, 3, 8)
    with pytest.raises(ValueError, match='`global_mask` was given, but `sparse_pattern` is'):
        Attention(8, sparse_pattern=Global(1))(x, x, global_mask=torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match='a context: where it is causal'):
        Attention(8, sparse_pattern=Global(1), causal=True)(x, x)
    net = Decoder(dim=8, depth=1, cross_attend=True, cross_attn_sparse_pattern=Global(1))
    with pytest.raises(ValueError, match=r'`cross_attn_sparse_pattern` cannot be combined with `mems`: its queries'):
        net(x, context=x, mems=[x])
