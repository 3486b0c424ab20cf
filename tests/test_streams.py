"""How branches read and write the stream or the streams, against plain formulas: residuals, integrators, scales."""

import math

import pytest
import torch
from oracles import assert_close, assert_same, layer_norm, linear, randn, randomised, rms_norm, sub
from torch import nn

from x_transformers import Decoder, Encoder, PrefixDecoder
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import (
    AttentionResidual,
    Derf,
    DynamicLIMe,
    DynamicTanh,
    GatedMultiResidual,
    HyperConnection,
    LoRALinear,
    MVSplitResidualUpdate,
    OrthogonalResidualUpdate,
    ShiftTokens,
    orthog_project,
    sinkhorn,
)

SIZES = dict(dim=6, depth=3, heads=2, attn_dim_head=4, ff_mult=1)
GATED = dict(gated_multi_residual=True, residual_fn_kwargs=dict(read_gate_rank=3))


def built(kind=Decoder, seed=0, **flags):
    return randomised(kind(**{**SIZES, **flags}), seed)


def branch(net, index, x):
    """The branch of a layer behind its norm, on plain vectors."""
    norms, fn, _ = net.layers[index]
    return fn(x if norms[0] is None else norms[0](x))


# plain formulas


def plain_sinkhorn(matrix, iters):
    """One matrix, rows s and columns t, entry by entry."""
    m = [[math.exp(v) for v in row] for row in matrix.tolist()]
    size = range(len(m))
    columns = [sum(m[s][t] for s in size) for t in size]
    m = [[m[s][t] / columns[t] for t in size] for s in size]
    for _ in range(iters):
        m = [[v / sum(row) for v in row] for row in m]
        columns = [sum(m[s][t] for s in size) for t in size]
        m = [[m[s][t] / columns[t] for t in size] for s in size]
    return torch.tensor(m, dtype=matrix.dtype)


def hyper_connection(w, streams, fn, views=1, iters=5):
    """2409.19606 with 2512.24880, for one token: streams (s d) -> streams (s d); `fn` of `views` vectors."""
    n = layer_norm(streams, w['norm.weight'])
    alpha = n @ w['dynamic_alpha_fn'] * w['dynamic_alpha_scale'] + w['static_alpha']
    read = torch.sigmoid(alpha[:, :views])
    mix = plain_sinkhorn(alpha[:, views:], iters)
    beta = 2 * torch.sigmoid(2 * torch.sigmoid(n @ w['dynamic_beta_fn']) * w['dynamic_beta_scale'] + w['static_beta'])
    out = fn(*(sum(read[s, v] * streams[s] for s in range(len(streams))) for v in range(views)))
    kept = [sum(mix[s, t] * streams[s] for s in range(len(streams))) for t in range(len(streams))]
    return torch.stack([kept[t] + beta[t] * out for t in range(len(streams))])


def gated_multi_residual(w, streams, fn, views=1):
    """For one token: streams (s d) -> streams (s d)."""
    size, dim = streams.shape
    eps = torch.finfo(torch.float32).eps
    n = torch.stack([r / torch.sqrt((r**2).mean() + eps) * w['read_gain'][s] for s, r in enumerate(streams)])
    hidden = linear(w, 'to_bottleneck', n.flatten() / size)
    gate = hidden * torch.sigmoid(hidden) * w['dynamic_gate_scale']
    read = linear(w, 'to_read_gate', gate).view(views, size, dim) + w['static_read_logit']
    beta = 2 * torch.sigmoid(linear(w, 'to_write_gate', gate) + w['static_write_logit'])
    out = fn(*(sum(torch.sigmoid(read[v, s]) * n[s] for s in range(size)) / size for v in range(views)))
    return torch.stack([streams[s] + beta[s] * out for s in range(size)])


def rms(x, gain):
    return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + torch.finfo(torch.float32).eps) * gain


def lime(w, inputs, views=1, softmax=True):
    """2502.09245: one mix of all inputs so far per view."""
    layers = len(inputs)
    logits = linear(w, 'to_weights.1', rms_norm(inputs[-1], w['to_weights.0.g']))
    outs = []
    for v in range(views):
        part = logits[..., v * layers : (v + 1) * layers]
        part = part.softmax(dim=-1) if softmax else part.clamp(min=0)
        outs.append(sum(part[..., l : l + 1] * inputs[l] for l in range(layers)))
    return outs[0] if views == 1 else torch.stack(outs)


def attention_residual(w, inputs, views=1, activation=lambda t: t):
    """The latest input attends to all of them."""
    y, dim = inputs[-1], inputs[-1].shape[-1]
    ups = linear(w, 'to_query.1.up', activation(linear(w, 'to_query.1.down', rms(y, w['to_query.0.weight']))))
    outs = []
    for v in range(views):
        q = rms(y + ups[..., v * dim : (v + 1) * dim], w['norm.weight'])
        logits = torch.stack([(q * rms(one, w['to_keys.weight'])).sum(dim=-1) / math.sqrt(dim) for one in inputs])
        weights = logits.softmax(dim=0)
        outs.append(sum(weights[l, ..., None] * inputs[l] for l in range(len(inputs))))
    return outs[0] if views == 1 else torch.stack(outs)


def mean_variance_split(w, out, residual, real, causal):
    """2605.06169, token by token: means over the real tokens, up to each one if causal."""
    joined = torch.empty_like(out)
    for b in range(out.shape[0]):
        for n in range(out.shape[1]):
            seen = [m for m in range(n + 1 if causal else out.shape[1]) if real[b, m]]
            mean_o = sum((out[b, m] for m in seen), torch.zeros_like(out[b, n])) / max(len(seen), 1e-5)
            mean_r = sum((residual[b, m] for m in seen), torch.zeros_like(out[b, n])) / max(len(seen), 1e-5)
            alpha = w['alpha'] if 'alpha' in w else linear(w, 'to_alpha', mean_o)
            beta = w['beta'] if 'beta' in w else linear(w, 'to_beta', mean_o)
            joined[b, n] = residual[b, n] + (out[b, n] - mean_o) * beta + (mean_o - mean_r) * alpha
    return joined


# parts alone


@pytest.mark.parametrize('size', [1, 2, 5])
def test_sinkhorn(size):
    t = randn(3, 2, size, size)
    for iters in (0, 1, 7):
        wanted = torch.stack([plain_sinkhorn(m, iters) for m in t.flatten(0, 1)]).view_as(t)
        assert_close(sinkhorn(t, iters), wanted)
    both = sinkhorn(t, 200)
    assert_close(both.sum(dim=-1), torch.ones(3, 2, size).double())
    assert_close(both.sum(dim=-2), torch.ones(3, 2, size).double())
    assert sinkhorn(t.bfloat16(), 5).dtype == torch.bfloat16


def test_lora_linear():
    plain, low = LoRALinear(4, 3), LoRALinear(4, 3, 2, nn.SiLU())
    assert {n: tuple(p.shape) for n, p in plain.named_parameters()} == {'weight': (3, 4)}
    assert {n: tuple(p.shape) for n, p in low.named_parameters()} == {'down.weight': (2, 4), 'up.weight': (3, 2)}
    for module in (plain, low):
        assert (module(torch.randn(2, 4)) == 0).all()
    x = randn(2, 4)
    low, plain = randomised(low), randomised(plain)
    assert_close(low(x), torch.nn.functional.silu(x @ low.down.weight.T) @ low.up.weight.T)
    assert_close(plain(x), x @ plain.weight.T)
    with pytest.raises(ConfigError, match='lora_rank'):
        LoRALinear(4, 3, 4)


def test_orthogonal_projection_is_per_token():
    """W2: along each vector of `y` nothing is left, and no token sees another."""
    x, y = randn(2, 5, 6), randn(2, 5, 6, seed=1)
    out = orthog_project(x, y)
    for b in range(2):
        for n in range(5):
            wanted = x[b, n] - (x[b, n] @ y[b, n]) / (y[b, n] @ y[b, n]) * y[b, n]
            assert_close(out[b, n], wanted)
    assert_close((out * y).sum(dim=-1), torch.zeros(2, 5).double())
    assert_close(orthog_project(x, torch.zeros_like(y)), x)
    assert orthog_project(x.bfloat16(), y.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize('scale', [False, True])
def test_orthogonal_residual(scale):
    module = randomised(OrthogonalResidualUpdate(6, scale_residual=scale))

    def oracle(w, out, residual):
        residual = residual * w['residual_scale'] if scale else residual
        along = (out * residual).sum(dim=-1, keepdim=True) / (residual**2).sum(dim=-1, keepdim=True)
        return residual + out - along * residual

    assert_same(module, module, oracle, randn(2, 5, 6), randn(2, 5, 6, seed=1))


@pytest.mark.parametrize('learned', [False, True])
def test_mean_variance_split_alone(learned):
    module = MVSplitResidualUpdate(6, learned=learned)
    start = module.state_dict()
    if learned:
        assert (start['to_alpha.bias'] == 0).all() and (start['to_beta.weight'] == 0).all()
    assert torch.allclose(start['to_beta.bias' if learned else 'beta'], torch.tensor(0.03))
    module, real = randomised(module), torch.ones(2, 5).bool()
    x, y = randn(2, 5, 6), randn(2, 5, 6, seed=1)
    assert_close(module(x, y), mean_variance_split(module.state_dict(), x, y, real, False))


BRANCH_DIM = 4


def tokenwise(formula, module, views):
    """A residual module around a branch, token by token."""

    def fn(*inputs):
        return sum((v + 1) * t.sin() for v, t in enumerate(inputs))

    def ours(x):
        read, kept, extra = module.prepare(x)
        assert read.shape == ((2, 3, BRANCH_DIM) if views == 1 else (views, 2, 3, BRANCH_DIM))
        return module(fn(read) if views == 1 else fn(*read), kept, call=None, **extra)

    def oracle(w, x):
        streams = module.streams
        rows = x.view(2, streams, 3, BRANCH_DIM)
        out = [[formula(w, rows[b, :, n], fn, views) for n in range(3)] for b in range(2)]
        return torch.stack([torch.stack(row, dim=1) for row in out]).flatten(0, 1)

    return ours, oracle


@pytest.mark.parametrize('views', [1, 3])
@pytest.mark.parametrize('streams', [1, 3])
def test_gated_multi_residual_alone(streams, views):
    module = randomised(GatedMultiResidual(BRANCH_DIM, 1, streams=streams, views=views, read_gate_rank=2))
    ours, oracle = tokenwise(gated_multi_residual, module, views)
    assert_same(module, ours, oracle, randn(2 * streams, 3, BRANCH_DIM))


@pytest.mark.parametrize('views', [1, 3])
@pytest.mark.parametrize('streams', [2, 4])
def test_hyper_connection_alone(streams, views):
    module = randomised(HyperConnection(BRANCH_DIM, 1, streams=streams, views=views, sinkhorn_iters=3))
    ours, oracle = tokenwise(lambda w, r, fn, v: hyper_connection(w, r, fn, v, iters=3), module, views)
    x = randn(2 * streams, 3, BRANCH_DIM)
    assert_close(ours(x), oracle(module.state_dict(), x))


def test_initial_values_of_streams():
    state = HyperConnection(5, layer_index=4, streams=3, views=2).state_dict()
    assert torch.equal(state['static_alpha'], torch.cat((torch.eye(3)[[1]].T.repeat(1, 2), torch.eye(3)), dim=1))
    for name, value in dict(static_beta=1, dynamic_alpha_fn=0, dynamic_beta_fn=0).items():
        assert (state[name] == value).all(), name
    assert {n: tuple(t.shape) for n, t in state.items()} == {
        **{'static_beta': (3,), 'static_alpha': (3, 5), 'dynamic_alpha_fn': (5, 5), 'dynamic_alpha_scale': ()},
        **{'dynamic_beta_fn': (5,), 'dynamic_beta_scale': (), 'norm.weight': (5,)},
    }
    state = GatedMultiResidual(5, layer_index=4, streams=3, views=2, read_gate_rank=2).state_dict()
    assert (state['static_read_logit'] == torch.eye(3)[1][:, None]).all()
    assert {n: tuple(t.shape) for n, t in state.items()} == {
        **{'read_gain': (3, 5), 'static_read_logit': (2, 3, 5), 'static_write_logit': (3,)},
        **{'to_bottleneck.weight': (2, 15), 'to_read_gate.weight': (30, 2), 'to_write_gate.weight': (3, 2)},
        'dynamic_gate_scale': (),
    }


@pytest.mark.parametrize('softmax', [True, False])
@pytest.mark.parametrize('views', [1, 3])
def test_lime_alone(views, softmax):
    module = randomised(DynamicLIMe(5, 3, views, use_softmax=softmax))
    inputs = [randn(2, 4, 5, seed=i) for i in range(3)]
    assert_same(module, lambda *t: module(t[-1], t), lambda w, *t: lime(w, t, views, softmax), *inputs)
    with pytest.raises(ValueError, match='3'):
        module(inputs[0], inputs[:2])
    assert list(DynamicLIMe(5, 3, norm=False).state_dict()) == ['to_weights.0.weight', 'to_weights.0.bias']


@pytest.mark.parametrize('views', [1, 3])
def test_attention_residual_alone(views):
    module = randomised(AttentionResidual(5, views, 2, nn.Tanh()))
    inputs = [randn(2, 4, 5, seed=i) for i in range(3)]
    assert_same(module, lambda *t: module(t), lambda w, *t: attention_residual(w, t, views, torch.tanh), *inputs)
    stacked = torch.stack(inputs)
    for out in (module(inputs[-1], inputs), module(hiddens=inputs), module(stacked), module(hiddens=stacked)):
        assert_close(out, module(inputs))


@pytest.mark.parametrize(('dim', 'rank'), [(80, 64), (65, 64), (64, 32), (8, 4), (2, 1)])
def test_default_rank_fits(dim, rank):
    """F30."""
    assert AttentionResidual(dim).to_query[1].down.weight.shape == (rank, dim)


# in a stack


@pytest.mark.parametrize('streams', [2, 4])
def test_hyper_connections_in_a_stack(streams):
    net, x = built(num_residual_streams=streams), randn(2, 5, 6)
    state = net.state_dict()
    r = torch.stack([x + state['stream_emb'][s] for s in range(streams)], dim=2)
    for index in range(6):
        w, out = sub(state, f'layers.{index}.2.'), None
        read = torch.zeros_like(x)
        for keep in (True, False):  # what the branch reads, then what it writes
            for b in range(2):
                for n in range(5):
                    seen = []

                    def fn(t, b=b, n=n, seen=seen, out=out):
                        seen.append(t)
                        return torch.zeros_like(t) if out is None else out[b, n]

                    new = hyper_connection(w, r[b, n], fn)
                    read[b, n] = seen[0]
                    if not keep:
                        r[b, n] = new
            out = branch(net, index, read)
    assert_close(net(x), net.final_norm(r.sum(dim=2)))


def test_streams_do_not_grow():
    """W1: the mix is doubly stochastic, so with silent branches nothing grows with depth."""
    net = Decoder(**{**SIZES, 'depth': 12}, num_residual_streams=4, zero_init_branch_output=True)
    x = torch.randn(2, 5, 6)
    _, trace = net(x, return_hiddens=True)
    first, last = trace.layer_hiddens[0].norm(), trace.layer_hiddens[-2].norm()
    assert 0.5 < last / first < 2
    assert_close(trace.layer_hiddens[-1].mean(), x.mean(), tolerance=1e-4)


def test_every_mix_learns():
    net = built(num_residual_streams=3)
    net(randn(2, 5, 6)).square().sum().backward()
    for index, layer in enumerate(net.layers):
        grad = layer[2].static_alpha.grad
        assert grad.isfinite().all()
        # all streams are equal in front of the first layer, but for their embeddings
        assert grad[:, 1:].abs().max() > 1e-9, index


def test_identical_streams_stay_identical_reads():
    """With a uniform read and equal streams, hyper-connections are a plain residual with a factor."""
    net = Decoder(**SIZES, num_residual_streams=3).double().eval()
    with torch.no_grad():
        for layer in net.layers:
            layer[2].static_alpha[:, 0] = -math.log(2)  # sigmoid 1 / 3
            layer[2].static_alpha[:, 1:] = 0
            layer[2].static_beta.fill_(-0.01)  # plus 0.01: a factor of one
    x = randn(2, 5, 6)
    wanted = x
    for index in range(6):
        wanted = wanted + branch(net, index, wanted)
    assert_close(net(x), net.final_norm(3 * wanted), tolerance=1e-9)


@pytest.mark.parametrize('streams', [1, 3])
def test_gated_multi_residual_in_a_stack(streams):
    net, x = built(num_residual_streams=streams, **GATED), randn(2, 5, 6)
    state = net.state_dict()
    embeds = state['stream_emb'] if streams > 1 else torch.zeros(1, 6)
    r = torch.stack([x + embeds[s] for s in range(streams)], dim=2)
    assert [norm is None for norm in net.layers[0][0]] == [True, True, False]
    for index in range(6):
        w, outs = sub(state, f'layers.{index}.2.'), []
        for b in range(2):
            for n in range(5):
                gated_multi_residual(w, r[b, n], lambda t, outs=outs: outs.append(t) or t)
        out, new = branch(net, index, torch.stack(outs).view(2, 5, 6)), r.clone()
        for b in range(2):
            for n in range(5):
                new[b, n] = gated_multi_residual(w, r[b, n], lambda t, written=out[b, n]: written)
        r = new
        r = net.layers[index][0][2](r)
    assert_close(net(x), net.final_norm(r.sum(dim=2)))


@pytest.mark.parametrize('softmax', [True, False])
@pytest.mark.parametrize('macaron', [False, True])
def test_lime_in_a_stack(macaron, softmax):
    flags = dict(integrate_layers=True, layer_integrate_use_softmax=softmax, macaron=macaron)
    net, x = built(**flags), randn(2, 5, 6)
    state, inputs, first = net.state_dict(), [], True
    for index, kind in enumerate(net.layer_types):
        inputs.append(x)
        views = 3 if kind == 'a' and not first else 1
        first = first and kind != 'a'
        x = x + branch(net, index, lime(sub(state, f'layer_integrators.{index}.'), inputs, views, softmax))
    assert_close(net(randn(2, 5, 6)), net.final_norm(x))


@pytest.mark.parametrize('views', [1, 3])
def test_aggregated_residuals_in_a_stack(views):
    flags = dict(attn_aggregated_residuals=True, attn_aggregated_residual_kwargs=dict(lora_rank=2))
    net, x = built(**flags, qkv_receive_diff_residuals=views == 3), randn(2, 5, 6)
    state, inputs = net.state_dict(), []
    for index, kind in enumerate(net.layer_types):
        inputs.append(x)
        w = sub(state, f'layer_integrators.{index}.')
        x = x + branch(net, index, attention_residual(w, inputs, views if kind == 'a' else 1))
    assert_close(net(randn(2, 5, 6)), net.final_norm(x))


@pytest.mark.parametrize('kind', [Encoder, Decoder, PrefixDecoder])
@pytest.mark.parametrize('learned', [False, True])
def test_mean_variance_split_in_a_stack(learned, kind):
    """W4: running means where the stack is causal."""
    net, x = built(kind, mv_split_residual=True, residual_fn_kwargs=dict(learned=learned)), randn(2, 5, 6)
    state, causal = net.state_dict(), kind is not Encoder
    for mask in (None, torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]).bool()):
        real, t = torch.ones(2, 5).bool() if mask is None else mask, x
        for index, layer in enumerate(net.layers):
            given = {} if layer.kind == 'f' else dict(mask=mask)
            if kind is PrefixDecoder and layer.kind == 'a':
                given['attn_mask'] = torch.ones(5, 5).tril().bool()
            out = layer[1](layer[0][0](t), **given)
            t = mean_variance_split(sub(state, f'layers.{index}.2.'), out, t, real, causal)
        assert_close(net(x, mask=mask)[real], net.final_norm(t)[real])


# scales


@pytest.mark.parametrize(
    ('flags', 'factor'),
    [
        (dict(depth_scale_residual=0.3), 0.3),
        (dict(depth_scale_residual=0.3, scale_residual=0.7), 0.3),
        (dict(depth_scale_residual=1, scale_residual=0.7), 1),
        (dict(depth_scale_residual=True, scale_residual=0.7), 0.7),
        (dict(depth_scale_residual=0.3, attn_aggregated_residuals=True), 1),
        (dict(scale_residual=0.7, attn_aggregated_residuals=True), 1),
        (dict(scale_residual=True), 1),
    ],
)
def test_factor_of_the_branch(flags, factor):
    for _, fn, _ in Decoder(**SIZES, **flags).layers:
        assert getattr(fn, 'scale', 1) == factor or (factor == 1 and not hasattr(fn, 'fn'))


def test_initial_outputs_shrink_with_depth():
    net = Decoder(dim=64, depth=8, heads=4, attn_dim_head=64, depth_scale_residual=True)
    for index, (_, fn, _) in enumerate(net.layers):
        output = fn.to_out if index % 2 == 0 else fn.output_layer
        block = index // 2 + 1
        assert abs(output.weight.std() * (2 * output.in_features * block) ** 0.5 - 1) < 0.06
    silent = Decoder(**SIZES, depth_scale_residual=True, zero_init_branch_output=True)
    assert all((fn.output_layer.weight == 0).all() for _, fn, _ in silent.layers[1::2])


@pytest.mark.parametrize('value', [0, 0.0, 'deep'])
def test_depth_scale_is_not_zero(value):
    with pytest.raises(ConfigError, match='depth_scale_residual'):
        Decoder(**SIZES, depth_scale_residual=value)


# norms and gates


@pytest.mark.parametrize('offset', [False, True])
@pytest.mark.parametrize('alpha', [1, 0.7])
def test_dynamic_tanh(alpha, offset):
    """F29: also a whole number."""
    x = randn(2, 5, 6)
    assert_close(DynamicTanh(6, alpha, unit_offset=offset).double()(x), torch.tanh(alpha * x), tolerance=1e-6)
    module = randomised(DynamicTanh(6, alpha, unit_offset=offset))

    def oracle(w, x):
        scale, gain = w['pre_tanh_scale'] + alpha * offset, w['gamma'] + offset
        return torch.tanh(x * scale) * gain + w['beta']

    assert_same(module, module, oracle, x)
    assert Decoder(**SIZES, use_dynamic_tanh=True, dynamic_tanh_init_alpha=alpha)(torch.randn(1, 2, 6)).isfinite().all()


@pytest.mark.parametrize('offset', [False, True])
def test_derf(offset):
    x = randn(2, 5, 6)
    assert_close(Derf(6, unit_offset=offset).double()(x), torch.erf(0.5 * x))
    module = randomised(Derf(6, unit_offset=offset))

    def oracle(w, x):
        return torch.erf(x * (w['alpha'] + offset) + w['s']) * (w['gamma'] + offset) + w['beta']

    assert_same(module, module, oracle, x)


def test_pre_and_post_norm():
    net, x = built(pre_and_post_norm=True), randn(2, 5, 6)
    assert net.final_norm(x) is x
    wanted = x
    for index, layer in enumerate(net.layers):
        wanted = layer[0][2](wanted + branch(net, index, wanted))
    assert_close(net(x), wanted)
    with pytest.raises(ConfigError, match=r'pre_and_post_norm.*pre_norm'):  # W19
        Decoder(**SIZES, pre_and_post_norm=True, pre_norm=False)


def test_rezero():
    """Every branch is gated, attention and feedforward; at first the stack is the identity."""
    fresh = Decoder(**SIZES, use_rezero=True, cross_attend=True)
    x, context = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    assert torch.equal(fresh(x, context), x)
    assert {n for n in fresh.state_dict() if n.endswith('.g')} == {f'layers.{i}.1.g' for i in range(9)}
    net, x = built(use_rezero=True), randn(2, 5, 6)
    wanted = x
    for _, fn, _ in net.layers:
        wanted = wanted + fn.fn(wanted) * fn.g
    assert_close(net(x), wanted)


@pytest.mark.parametrize('scale', [1.0, 0.25])
def test_resi_dual(scale):
    net, x = built(resi_dual=True, resi_dual_scale=scale), randn(2, 5, 6)
    assert not net.pre_norm
    wanted, dual = x, x * scale
    for norms, fn, _ in net.layers:
        assert norms[0] is None
        out = fn(wanted)
        dual, wanted = dual + scale * out, norms[2](wanted + out)
    assert_close(net(x), wanted + net.final_norm(dual))
    assert {'final_norm.gamma', 'layers.0.0.2.gamma'} <= set(net.state_dict())


# three inputs


def mhc_weights(w, u, s, iters):
    """2512.24880, for one token: weights of reading (s), of writing (s), and the mix (s s), row from, column to."""
    u = u.flatten() / ((u * u).mean() + 1e-6).sqrt()
    a, p, m = (w['fn'] @ u).split((s, s, s * s))
    of_read, of_write, of_mix = w['base'].split((s, s, s * s))
    mix = (w['scale'][2] * m + of_mix).view(s, s).tolist()
    mix = [[math.exp(v) / sum(math.exp(o) for o in row) + 1e-6 for v in row] for row in mix]
    for step in range(2 * iters - 1):
        if step % 2:
            mix = [[v / (sum(row) + 1e-6) for v in row] for row in mix]
        else:
            sums = [sum(row[t] for row in mix) + 1e-6 for t in range(s)]
            mix = [[row[t] / sums[t] for t in range(s)] for row in mix]
    read = torch.sigmoid(w['scale'][0] * a + of_read) + 1e-6
    return read, 2 * torch.sigmoid(w['scale'][1] * p + of_write), torch.tensor(mix, dtype=u.dtype)


@pytest.mark.parametrize(('streams', 'iters'), [(2, 1), (3, 20)])
def test_manifold_hyper_connections(streams, iters):
    flags = dict(num_residual_streams=streams, hyper_conn_residual_mix='mhc', hyper_conn_sinkhorn_iters=iters)
    net, x = built(Encoder, depth=1, **flags), randn(1, 3, 6)
    s = [x + net.stream_emb[i] for i in range(streams)]
    for i, layer in enumerate(net.layers):
        w = dict(layer[2].named_parameters())
        tokens = [mhc_weights(w, torch.stack([t[0, at] for t in s]), streams, iters) for at in range(3)]
        read = torch.stack([sum(tokens[at][0][j] * s[j][0, at] for j in range(streams)) for at in range(3)])[None]
        out = branch(net, i, read)
        s = [
            torch.stack([
                sum(tokens[at][2][j, t] * s[j][0, at] for j in range(streams)) + tokens[at][1][t] * out[0, at]
                for at in range(3)
            ])[None]
            for t in range(streams)
        ]  # fmt: skip
    w, rows = dict(net.stream_readout.named_parameters()), []
    for at in range(3):
        u = torch.cat([t[0, at] for t in s])
        u = u / ((u * u).mean() + 1e-6).sqrt()
        weights = torch.sigmoid(w['scale'] * (w['fn'] @ u) + w['base']) + 1e-6
        rows.append(sum(weights[j] * s[j][0, at] for j in range(streams)))
    assert_close(net(x), net.final_norm(torch.stack(rows)[None]))


@pytest.mark.slow
def test_manifold_hyper_connections_of_transformers():
    theirs = pytest.importorskip('transformers.models.deepseek_v4.modeling_deepseek_v4')
    config = pytest.importorskip('transformers').DeepseekV4Config(hidden_size=6, num_attention_heads=2)
    flags = dict(num_residual_streams=4, hyper_conn_residual_mix='mhc', hyper_conn_sinkhorn_iters=20)
    net, streams = built(depth=1, **flags), randn(1, 5, 4, 6)
    layer, head = theirs.DeepseekV4HyperConnection(config).double(), theirs.DeepseekV4HyperHead(config).double()
    layer.load_state_dict(net.layers[0][2].state_dict())
    head.load_state_dict({f'hc_{name}': t for name, t in net.stream_readout.state_dict().items()})
    beta, mix, read = layer(streams)
    packed = streams[0].transpose(0, 1)
    own, kept, extra = net.layers[0][2].prepare(packed)
    for ours, wanted in ((own, read), (extra['beta'], beta), (kept, mix.mT @ streams)):
        assert_close(ours, wanted, tolerance=1e-6)  # its weights are in float32
    assert_close(net.stream_readout(packed), head(streams), tolerance=1e-6)


def plain_rms(t, weight):
    return t / ((t * t).mean() + 1e-6).sqrt() * weight


@pytest.mark.parametrize('kind', ['low_rank', 'weighted', 'gemma3n'])
def test_laurel(kind):
    """2411.07501, token by token: a low-rank path of the branch input beside each branch, or each self-attention."""
    net = built(Encoder, laurel_rank=2, laurel_kind=kind, scale_residual_constant=0.5)
    x = randn(2, 5, 6)
    stream = x
    for i, (norms, _, residual) in enumerate(net.layers):
        out, y, w = branch(net, i, stream), norms[0](stream), dict(residual.named_parameters())
        if kind == 'gemma3n' and i % 2:
            assert not w
            stream = out + stream / 2
            continue
        low = torch.stack([plain_rms(w['up.weight'] @ (w['down.weight'] @ t), w['norm.g']) for t in y.flatten(0, 1)])
        low, (a, b) = low.view_as(y), w.get('factors', torch.ones(2, dtype=x.dtype))
        stream = a * out + b * (stream / 2 + low) if kind != 'gemma3n' else (stream / 2 + out + y + low) / math.sqrt(2)
    assert_close(net(x), net.final_norm(stream))


def test_laurel_starts_without_its_path():
    torch.manual_seed(0)
    net, plain = Decoder(**SIZES, laurel_rank=2), Decoder(**SIZES)
    plain.load_state_dict(net.state_dict(), strict=False)
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(net(x), plain(x))
    net(x).square().sum().backward()
    assert net.layers[0][2].norm.g.grad.abs().min() > 0


@pytest.mark.parametrize('sides', [False, True])
@pytest.mark.parametrize('streams', [2, 3])
def test_altup(streams, sides):
    """2301.13310, token by token: predict all streams, run the block on the first one, correct all by its change."""
    more = dict(per_layer_emb_dim=3) if sides else {}
    net = built(Encoder, num_residual_streams=streams, altup=True, depth=2, **more)
    assert len(net.altup_blocks) == 2
    h, each = randn(2, 5, 6), range(streams)

    def alike(t, like):
        return torch.stack([a * (b.square().mean() / a.square().mean().clamp(min=1e-5)).sqrt() for a, b in
                            zip(t.flatten(0, 1), like.flatten(0, 1), strict=True)]).view_as(t)  # fmt: skip

    def by_token(function, *tensors):
        return torch.stack([function(*rows) for rows in zip(*(t.flatten(0, 1) for t in tensors), strict=True)])

    x = [h] + [alike(h @ w.weight.T, h) for w in net.altup_ups]
    for number, block in enumerate(net.altup_blocks):
        w = dict(block.named_parameters())

        def routed(t, w=w):
            return torch.tanh(w['router.weight'] @ (plain_rms(t, w['norm.g']) / 6))

        mixes = by_token(lambda t, w=w: (w['to_prediction.weight'] @ routed(t)).view(streams, streams), x[0])
        mixes = mixes.view(2, 5, streams, streams)
        x = [x[i] + sum(mixes[..., i, j, None] * x[j] for j in each) for i in each]
        first = number * (3 if sides else 2)
        z = x[0] + branch(net, first, x[0])
        z = z + branch(net, first + 1, z)
        steps = by_token(lambda t, w=w: w['to_correction.weight'] @ routed(t) + 1, z).view(2, 5, streams)
        x = [x[i] + (z - x[0]) * steps[..., i, None] for i in each]
        if sides:
            side = net.layers[first + 2][1]
            added = side.branch(x[0] * side.scale)
            x = [x[0], *(t + added for t in x[1:])]
    out = [x[0]] + [alike(t @ w.weight.T, x[0]) for t, w in zip(x[1:], net.altup_unembeds, strict=True)]
    assert_close(net(h), net.final_norm(sum(out) / streams))


def test_altup_starts_with_the_first_stream_of_a_plain_stack():
    torch.manual_seed(0)
    net, plain = Decoder(**SIZES, num_residual_streams=3, altup=True), Decoder(**SIZES)
    plain.load_state_dict({n: t for n, t in net.state_dict().items() if 'altup' not in n})
    x, seen = torch.randn(2, 5, 6), []
    for one in (net, plain):
        one.layers[-1][1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        one(x)
    torch.testing.assert_close(*seen)


def test_shifts_of_three_views_are_shifts_of_tokens():
    """W14: also where the batch is smaller than the shift."""
    shift = ShiftTokens((0, 2), nn.Identity())
    x = randn(3, 1, 5, 4)
    seen = shift(x)
    assert_close(seen[..., :2], x[..., :2])
    assert_close(seen[:, :, 2:, 2:], x[:, :, :-2, 2:])
    assert (seen[:, :, :2, 2:] == 0).all()


VIEWS = [
    dict(num_residual_streams=2),
    dict(GATED, num_residual_streams=2),
    dict(attn_aggregated_residuals=True),
    dict(attn_aggregated_residuals=True, num_residual_streams=2),
    dict(integrate_layers=True),
    dict(integrate_layers=True, num_residual_streams=2),
]


@pytest.mark.parametrize('source', VIEWS, ids=str)
@pytest.mark.parametrize(
    'more',
    [
        {},
        dict(shift_tokens=1),
        dict(attn_num_mem_kv=2, attn_gate_values=True),
        dict(attn_data_dependent_alibi=True),
        dict(add_value_residual=True, attn_kv_heads=1),
    ],
    ids=str,
)
def test_sources_of_three_inputs(source, more):
    """F16, F17, F18: each source alone or with streams; the cache agrees."""
    net, x = built(**source, **more, qkv_receive_diff_residuals=True), randn(2, 5, 6)
    whole, trace = net(x, return_hiddens=True)
    assert whole.isfinite().all() and all(t.shape == (2, 5, 6) for t in trace.hiddens)
    _, cache = net(x[:, :3], return_hiddens=True)
    assert_close(net(x, cache=cache), whole[:, 3:])
    net(x, mems=[t[:, :2] for t in trace.hiddens])


def test_three_inputs_need_a_source():
    with pytest.raises(ConfigError, match=r'qkv_receive_diff_residuals.*num_residual_streams'):
        Decoder(**SIZES, qkv_receive_diff_residuals=True)


# what goes with streams


def test_input_that_joins_streams_again():
    """F14: computed before the streams part."""
    flags = dict(num_residual_streams=2, learned_reinject_input_gate=True)
    net, x = built(**flags, reinject_input=True), randn(2, 5, 6)
    assert net(x).shape == x.shape
    given = built(**flags)
    given.load_state_dict({n: t for n, t in net.state_dict().items() if 'reinject_input_proj' not in n})
    assert_close(given(x, in_attn_cond=x @ net.reinject_input_proj.weight.T), net(x))


# the layers that LIMe counts


def test_lime_fills_the_slots_of_dropped_layers():
    """F12: a layer left out still has an input, which later ones mix in."""
    for streams in (1, 2):
        net = built(integrate_layers=True, layer_dropout=0.5, num_residual_streams=streams).train()
        for seed in range(8):
            torch.manual_seed(seed)
            out, trace = net(randn(2, 5, 6), return_hiddens=True)
            assert out.isfinite().all() and len(trace.hiddens) == 3


def test_lime_takes_over_from_aggregated_residuals():
    both = Decoder(**SIZES, integrate_layers=True, attn_aggregated_residuals=True)
    assert both.state_dict().keys() == Decoder(**SIZES, integrate_layers=True).state_dict().keys()


@pytest.mark.parametrize('flags', [dict(weight_tie_layers=True), dict(layers_execute_order=(0, 1, 1))])
def test_lime_refuses_repeats(flags):
    with pytest.raises(ConfigError, match=f'integrate_layers.*{next(iter(flags))}'):
        Decoder(**SIZES, integrate_layers=True, **flags)


def test_lime_refuses_repeats_in_a_call():
    net, x = built(integrate_layers=True), randn(2, 5, 6)
    for call in (dict(repeat_blocks=(0, 2)), dict(layers_execute_order=(0, 1, 1))):
        with pytest.raises(ValueError, match=f'integrate_layers.*{next(iter(call))}'):
            net(x, **call)
    assert net(x, layers_execute_order=(0, 1)).isfinite().all()


# refusals


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(num_residual_streams=2, gate_residual=True), 'num_residual_streams.*gate_residual'),
        (dict(num_residual_streams=2, orthog_residual=True), 'num_residual_streams.*orthog_residual'),
        (dict(num_residual_streams=2, mv_split_residual=True), 'num_residual_streams.*mv_split_residual'),
        (dict(num_residual_streams=0), 'num_residual_streams'),
        (dict(num_residual_streams=2, hyper_conn_residual_mix='mhc', hyper_conn_sinkhorn_iters=0), 'iters.*at least 1'),
        (
            dict(num_residual_streams=2, hyper_conn_residual_mix='mhc', qkv_receive_diff_residuals=True),
            'mhc.*diff_resid',
        ),
        (dict(laurel_rank=2, num_residual_streams=2), 'laurel_rank.*both choose the residual'),
        (dict(laurel_rank=2, gate_residual=True), 'gate_residual.*laurel_rank'),
        (dict(laurel_rank=2, reversible=True), 'laurel_rank.*reversible'),
        (dict(altup=True, num_residual_streams=2, qkv_receive_diff_residuals=True), 'altup.*qkv_receive_diff'),
        (dict(altup=True, num_residual_streams=2, gate_residual=True), 'num_residual_streams.*gate_residual'),
        (dict(altup=True, num_residual_streams=2, **GATED), 'altup.*gated_multi_residual'),
        (dict(gate_residual=True, orthog_residual=True), 'gate_residual.*orthog_residual'),
        (dict(mv_split_residual=True, orthog_residual=True), 'orthog_residual.*mv_split_residual'),
        (dict(GATED, gate_residual=True), 'gate_residual.*gated_multi_residual'),
        (dict(GATED, attn_aggregated_residuals=True), 'attn_aggregated_residuals.*gated_multi_residual'),
        (dict(GATED, sandwich_norm=True), 'sandwich_norm.*gated_multi_residual'),
        (dict(GATED, use_dynamic_tanh=True), 'use_dynamic_tanh.*gated_multi_residual'),
        (dict(gated_multi_residual=True), 'gated_multi_residual.*read_gate_rank'),
        (dict(attn_aggregated_residuals=True, gate_residual=True), 'attn_aggregated_residuals.*gate_residual'),
        (dict(use_dynamic_tanh=True, pre_norm=False), 'use_dynamic_tanh.*pre_norm'),
        (dict(use_dynamic_tanh=True, use_derf=True), 'use_dynamic_tanh.*use_derf'),
        (dict(use_rezero=True, use_rmsnorm=True), 'use_r.*use_r'),
        (dict(resi_dual=True, sandwich_norm=True), 'sandwich_norm.*resi_dual'),
        (dict(resi_dual=True, resi_dual_scale=1.5), 'resi_dual_scale'),
        (dict(resi_dual=True, num_residual_streams=2), 'resi_dual.*num_residual_streams'),
        (dict(attn_aggregated_residuals=True, attn_aggregated_residual_kwargs=dict(lora_rank=6)), 'lora_rank'),
        (dict(attn_aggregated_residuals=True, attn_aggregated_residual_kwargs=dict(rank=2)), 'residual_kwargs'),
    ],
    ids=str,
)
def test_refusals(flags, words):
    with pytest.raises(ConfigError, match=words):
        Decoder(**SIZES, **flags)
