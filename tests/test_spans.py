"""Heads that learn how far back they look."""

import pytest
import torch
from oracles import assert_close
from toy_tasks import IGNORED, net_for, right, shift, taught

from x_transformers import Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.training import AuxLosses
from x_transformers.x_transformers import Attention


def formula(q, k, v, z, limit, ramp):
    """As it is written, with weights times m, normalised again."""
    n = q.shape[-2]
    x = torch.arange(n)[:, None] - torch.arange(n)
    share = (ramp + z[..., None] - x) / ramp
    m = torch.where((share > 0) & (share < 1), share, (share >= 1).double()) * (x >= 0) * (x <= limit)
    weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(x < 0, -torch.inf).softmax(-1) * m
    return weights / weights.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize('kind', ['static', 'dynamic'])
@pytest.mark.parametrize('n, limit, ramp', [(19, 12, 4), (19, 40, 3), (300, 150, 8)])
def test_weights_fade_out_over_the_ramp(kind, n, limit, ramp):
    torch.manual_seed(0)
    options = dict(adaptive_span=kind, max_span=limit, span_ramp=ramp)
    net = Attention(16, heads=3, dim_head=8, causal=True, **options).double()
    parameters = dict(net.named_parameters())
    with torch.no_grad():
        if kind == 'static':
            parameters['span'].copy_(torch.tensor([-0.2, 0.3, 1.1]))
        else:
            parameters['span_v'].normal_(std=0.3)
            parameters['span_b'].copy_(torch.tensor([-0.5, 0.5, 4.0]))
    x = torch.randn(2, n, 16, dtype=torch.float64)
    q, k, v = (to(x).unflatten(-1, (3, 8)).transpose(1, 2) for to in (net.to_q, net.to_k, net.to_v))
    if kind == 'static':
        raw = parameters['span']
        z = limit * (raw + (raw.clamp(0, 1) - raw).detach())[:, None]
    else:
        z = limit * (x @ parameters['span_v'].mT + parameters['span_b']).sigmoid().transpose(1, 2)
    expected = net.to_out(formula(q, k, v, z, limit, ramp).transpose(1, 2).flatten(2))
    with AuxLosses() as aux:
        found = net(x)
    assert_close(aux.by_name['attn_span'], 2e-6 * z.mean(), tolerance=1e-12)
    assert_close(found, expected, tolerance=1e-10)
    weight = torch.randn_like(found)
    names, given = zip(*parameters.items(), strict=True)
    ours = torch.autograd.grad((found * weight).sum(), given, retain_graph=True)
    theirs = torch.autograd.grad((expected * weight).sum(), given)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert_close(a, b, name, tolerance=1e-9)


@pytest.mark.parametrize('n, flags', [(9, {}), (200, {}), (9, dict(attn_differential=True))])
def test_a_full_span_is_plain_attention(n, flags):
    options = dict(dim=16, depth=2, heads=2, attn_dim_head=8, **flags)
    plain = Decoder(**options).double().eval()
    net = Decoder(**options, attn_adaptive_span='static', attn_max_span=256, attn_span_init=1.0).double().eval()
    net.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, n, 16, dtype=torch.float64)
    assert_close(net(x), plain(x), tolerance=1e-12)


def net_of(kind='static', limit=300, **flags):
    torch.manual_seed(0)
    options = dict(attn_adaptive_span=kind, attn_max_span=limit, attn_span_ramp=4, attn_span_init=0.05, **flags)
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, **options).double().eval()
    parameters = dict(net.layers[0][1].named_parameters())
    if kind == 'dynamic':
        torch.nn.init.normal_(parameters['span_v'])
    return net


def continued(net, x, sizes, cache=None):
    found = []
    for part in x.split(sizes, dim=1):
        out, cache = net(part, cache=cache, return_hiddens=True, input_not_include_cache=True)
        found.append(out)
    return torch.cat(found, dim=1), cache


@torch.no_grad()
@pytest.mark.parametrize('kind, limit, kept', [('static', 300, 64 + 64), ('dynamic', 70, 70 + 64)])
def test_a_cache_says_the_same_and_lets_keys_go(kind, limit, kept):
    net, x = net_of(kind, limit), torch.randn(2, 260, 16, dtype=torch.float64)
    found, cache = continued(net, x, [240, *[4] * 5])
    assert_close(found, net(x), tolerance=1e-12)
    assert cache.cache.length == 260
    assert cache.cache.layers[0].buffers[0].tensor.shape[-2] == kept


@torch.no_grad()
def test_a_span_is_looked_up_once_in_a_call(monkeypatch):
    net, read = net_of(), []
    monkeypatch.setattr(torch.Tensor, 'item', lambda t, item=torch.Tensor.item: read.append(item(t)) or read[-1])
    continued(net, torch.randn(1, 9, 16, dtype=torch.float64), [5, 4])
    assert read == pytest.approx([15.0] * 2, abs=1e-4)


@pytest.mark.costly
@torch.no_grad()
def test_a_span_that_grew_misses_its_keys():
    net, x = net_of(), torch.randn(1, 264, 16, dtype=torch.float64)
    _, cache = continued(net, x[:, :260], [260])
    graph = torch.compile(net, backend='eager', fullgraph=True)
    assert_close(continued(graph, x[:, 260:], [4], cache)[0], net(x)[:, 260:], tolerance=1e-12)
    net.layers[0][1].span.fill_(0.9)
    assert_close(graph(x), net(x), tolerance=1e-12)
    with pytest.raises(ValueError, match='as `adaptive_span` has left them: here earlier ones are needed'):
        continued(net, x[:, 260:], [4], cache)
    with pytest.raises(RuntimeError, match='they have grown'):
        continued(graph, x[:, 260:], [4], cache)


@torch.no_grad()
@pytest.mark.parametrize('kind', ['static', 'dynamic'])
def test_documents_and_memories(kind):
    x = torch.randn(1, 40, 16, dtype=torch.float64)
    net, parts = net_of(kind, 20), x.split([13, 27], dim=1)
    documents = torch.tensor([[0] * 13 + [1] * 27])
    assert_close(net(x, document_ids=documents), torch.cat([net(part) for part in parts], dim=1), tolerance=1e-12)
    _, left = net_of(kind, 20)(parts[0], return_hiddens=True)
    assert_close(net(parts[1], mems=left.layer_hiddens[:1]), net(x)[:, 13:], tolerance=1e-12)
    assert not torch.allclose(net(parts[1]), net(x)[:, 13:])


@torch.no_grad()
def test_blocks_have_spans_of_their_own():
    net, x = net_of('dynamic', 70), torch.randn(1, 1500, 16, dtype=torch.float64)
    assert_close(net(x)[:, -200:], net(x[:, -300:])[:, -200:], tolerance=1e-10)


def test_padding_costs_nothing():
    net, x = net_of('dynamic').train(), torch.randn(2, 9, 16, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    with AuxLosses() as aux:
        net(x, mask=mask)
    z = 300 * (net.layers[0][0][0](x) @ net.layers[0][1].span_v.mT + net.layers[0][1].span_b).sigmoid()
    assert_close(aux.by_name['attn_span'], 2e-6 * z[mask].mean(), tolerance=1e-12)


@pytest.mark.slow
def test_spans_shrink_to_what_a_task_needs():
    torch.manual_seed(0)
    task = shift(3)
    flags = dict(attn_adaptive_span='static', attn_max_span=32, attn_span_ramp=4, attn_span_init=1.0)
    flags |= dict(depth=1, shaw_rel_pos=True, attn_span_loss_weight=1e-2)
    net = net_for(task, Decoder, around=dict(use_abs_pos_emb=False), **flags).train()

    def loss():
        x, y = task.draw(64)
        with AuxLosses() as aux:
            found = torch.nn.functional.cross_entropy(net(x).transpose(1, 2), y, ignore_index=IGNORED)
        return found + aux.by_name['attn_span']

    taught(net, loss, 600)
    assert right(net, task) >= 0.95
    assert 32 * net.attn_layers.layers[0][1].span.clamp(0, 1).mean() < 8


@pytest.mark.parametrize(
    'stack, flags, words',
    [
        (Encoder, {}, '`attn_adaptive_span` needs `causal`: its distances are between tokens of one sequence'),
        (Decoder, dict(cross_attend=True), 'In cross-attention leave it out: `cross_attn_adaptive_span=None`'),
        (Decoder, dict(attn_flash=True), '`attn_flash=True` cannot be combined with `attn_adaptive_span`'),
        (
            Decoder,
            dict(attn_num_mem_kv=1),
            '`attn_adaptive_span` cannot be combined with `attn_num_mem_kv`: prepended keys',
        ),
        (Decoder, dict(attn_add_zero_kv=True), '`attn_adaptive_span` cannot be combined with `attn_add_zero_kv`'),
        (
            Decoder,
            dict(attn_head_learned_sink=True),
            '`attn_adaptive_span` cannot be combined with `attn_head_learned_sink`',
        ),
        (Decoder, dict(attn_max_span=0), '`attn_max_span` must be an integer of at least 1, got 0'),
        (Decoder, dict(attn_span_ramp=0), '`attn_span_ramp` must be an integer of at least 1, got 0'),
    ],
)
def test_refusals(stack, flags, words):
    with pytest.raises(ConfigError, match=words):
        stack(dim=8, depth=1, attn_adaptive_span='static', **flags)
    with pytest.raises(ConfigError, match='`adaptive_span` needs `causal`'):
        Attention(16, adaptive_span='static')


def test_calls_keep_the_order():
    net, x = Attention(16, causal=True, adaptive_span='static'), torch.randn(1, 4, 16)
    for inputs in (dict(causal=False), dict(context=x)):
        with pytest.raises(
            ValueError, match=f'`{next(iter(inputs))}.*cannot be combined with `adaptive_span`: its distances are'
        ):
            net(x, **inputs)
