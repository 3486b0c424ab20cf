"""Where queries, keys and values come from, and what becomes of the heads: formulas, twins, degenerate cases."""

import copy
import math

import pytest
import torch
from building import stacks
from oracles import assert_close, bools, randn, randomised
from torch import nn

from x_transformers import Attention, Encoder, FeedForward, PrefixDecoder
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import FoldAxially

SIZES = dict(dim=10, heads=4, dim_head=6)
N = 6


def layer(**flags):
    return randomised(Attention(**{**SIZES, **flags}))


stack = stacks(finish=randomised, dim=12, depth=2, heads=4, attn_dim_head=6, verbose=False)


def steps(run, sizes):
    """The outputs of calls with new tokens only, `run(start, stop, cache)`."""
    outs, cache, start = [], None, 0
    for size in sizes:
        out, cache = run(start, start + size, cache)
        outs.append(out)
        start += size
    return torch.cat(outs, dim=1)


def plain(module, x_q, x_k=None, x_v=None, extra=(), mask=None, causal=True, output=True):
    """Attention from three inputs, written plainly; `extra` keys and values stand in front, always visible."""
    x_k, x_v = x_q if x_k is None else x_k, x_q if x_v is None else x_v
    weights = module.state_dict()
    heads, dim = 4, 6
    q, k, v = (
        (t @ weights[f'to_{n}.weight'].T).unflatten(-1, (-1, dim)).transpose(1, 2)
        for n, t in zip('qkv', (x_q, x_k, x_v), strict=True)
    )
    k, v = (t.repeat(1, heads // t.shape[1], 1, 1) for t in (k, v))
    seen = torch.ones(x_q.shape[1], k.shape[2], dtype=torch.bool)
    seen = seen.tril(k.shape[2] - x_q.shape[1]) if causal else seen
    seen = seen.expand(len(x_q), 1, -1, -1)
    if mask is not None:
        seen = seen & mask[:, None, None]
    for extra_k, extra_v, visible in extra:
        repeats = heads // extra_k.shape[1]
        k, v = (torch.cat((e.repeat(1, repeats, 1, 1), t), dim=2) for e, t in ((extra_k, k), (extra_v, v)))
        columns = visible[:, None, None].expand(-1, 1, x_q.shape[1], -1)
        seen = torch.cat((columns, seen), dim=-1)
    logits = (q @ k.transpose(-1, -2) / math.sqrt(dim)).masked_fill(~seen, -torch.inf)
    attn = logits.softmax(-1).nan_to_num(0.0)
    merged = (attn @ v).transpose(1, 2).flatten(-2)
    return merged @ weights['to_out.weight'].T if output else merged


# three inputs


@pytest.mark.parametrize('mask', [None, bools(2, N, keep=0.7)])
def test_separate_inputs(mask):
    module, x = layer(causal=True, qkv_receive_diff_residuals=True), randn(3, 2, N, 10)
    out = module(x, mask=mask)
    wanted = plain(module, *x, mask=mask)
    assert_close(out if mask is None else out[mask], wanted if mask is None else wanted[mask])
    assert_close(module(x[:1].expand(3, -1, -1, -1)), plain(module, x[0]))


@pytest.mark.parametrize(
    'flags',
    [
        dict(gate_values=True),
        dict(gate_value_heads=True),
        dict(num_mem_kv=2),
        dict(data_dependent_alibi=True),
        dict(data_dependent_alibi_per_row=True, data_dependent_alibi=True),
        dict(hybrid_module=nn.Linear(10, 24)),
        dict(use_rel_proj_pos_bias=True),
        dict(learned_value_residual_mix=True),
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_beside_separate_inputs_features_read_that_of_queries(flags):
    module, twin = layer(causal=True, qkv_receive_diff_residuals=True, **flags), layer(causal=True, **flags)
    twin.load_state_dict(module.state_dict())
    x, further = randn(1, 2, N, 10).expand(3, -1, -1, -1), {}
    if 'learned_value_residual_mix' in flags:
        further = {'value_residual': randn(2, 4, N, 6, seed=4)}
    assert_close(module(x, **further), twin(x[0], **further))
    mem, mem_mask = randn(2, 3, 10, seed=2), bools(2, 3)
    if not further:
        assert_close(module(x, mem=mem, mem_mask=mem_mask), twin(x[0], mem=mem, mem_mask=mem_mask))


def test_separate_inputs_are_refused():
    module = layer(qkv_receive_diff_residuals=True)
    with pytest.raises(ValueError, match='qkv_receive_diff_residuals'):
        module(randn(2, N, 10))
    with pytest.raises(ValueError, match='context'):
        module(randn(3, 2, N, 10), randn(2, N, 10))
    with pytest.raises(ConfigError, match=r'use_latent_kv.*qkv_receive_diff_residuals'):
        layer(qkv_receive_diff_residuals=True, use_latent_kv=True, dim_latent_kv=4)


# what the caller adds


def test_residuals_of_key_and_value_inputs():
    module, x, residual = layer(causal=True), randn(2, N, 10), randn(2, N, 10, seed=1)
    assert_close(module(x, kv_input_residual=residual), plain(module, x, x + residual, x + residual))
    mem = randn(2, 3, 10, seed=2)  # memories get none
    keys = torch.cat((mem, x + residual), dim=1)
    assert_close(module(x, kv_input_residual=residual, mem=mem), plain(module, x, keys, keys))
    with pytest.raises(ValueError, match='kv_input_residual'):
        module(x, kv_input_residual=residual[:, :2])


def test_deltas():
    module, x = layer(causal=True, dim_head=5, value_dim_head=3), randn(2, N, 10)
    twin = copy.deepcopy(module)
    deltas = {name: randn(1, 1, 10, seed=i) for i, name in enumerate(('q_delta', 'k_delta', 'v_delta'))}
    for name in deltas:  # what a change of the weights gives
        weight = getattr(twin, f'to_{name[0]}').weight
        step = randn(*weight.shape, seed=5)
        with torch.no_grad():
            weight += step
        deltas[name] = x @ step.T
    o_delta = randn(12, seed=9)
    assert_close(module(x, **deltas, o_delta=o_delta), twin(x) + o_delta @ module.to_out.weight.T)
    with pytest.raises(ValueError, match=r'`v_delta` must .*got shape'):
        module(x, v_delta=randn(2, N, 3))


@pytest.mark.parametrize('kind', ['a', 'c'])
@pytest.mark.parametrize('layers', [1, 2])
def test_residuals_of_a_stack(kind, layers):
    """They go to the layers in the order in which these run."""
    name = {'a': 'self_attn_kv_residuals', 'c': 'cross_attn_kv_residuals'}[kind]
    net = stack(cross_attend=True)
    x, context, given = randn(2, N, 12), randn(2, 3, 12, seed=1), randn(layers, 2, {'a': N, 'c': 3}[kind], 12, seed=2)
    seen = []
    for found in net.layers:
        if found.kind == kind:
            found[1].register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    whole = net(x, context, **{name: given})
    assert len(seen) == 2
    for at, kwargs in enumerate(seen):
        assert ('kv_input_residual' in kwargs) == (at < layers)
        assert at >= layers or torch.equal(kwargs['kv_input_residual'], given[at])
    if layers == 1:
        assert_close(net(x, context, **{name: given[0]}), whole)
    cache = None
    outs = []
    for stop in (2, 3, N):
        cut = given[:, :, :stop] if kind == 'a' else given
        out, cache = net(x[:, :stop], context, cache=cache, return_hiddens=True, **{name: cut})
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), whole)
    with pytest.raises(ValueError, match=name):
        net(x, context, **{name: randn(3, 2, N, 12)})


# further keys


@pytest.mark.parametrize('flash', [False, True])
@pytest.mark.parametrize(('own', 'given'), [(4, 4), (4, 2), (2, 4), (2, 1), (1, 2), (1, 1)])
def test_additional_keys(own, given, flash):
    module = layer(causal=True, kv_heads=own, num_mem_kv=2, add_zero_kv=True, flash=flash)
    x, pair = randn(2, N, 10), (randn(2, given, 3, 6, seed=1), randn(2, given, 3, 6, seed=2))
    mask, real = torch.tensor([[True, False, True], [False, False, True]]), bools(2, N, keep=0.7)
    all_of = torch.ones(2, 2, dtype=torch.bool)
    memory = (module.mem_k.expand(2, -1, -1, -1), module.mem_v.expand(2, -1, -1, -1), all_of)
    zero = torch.zeros(2, 1, 1, 6, dtype=torch.float64)
    extra = [memory, (*pair, mask), (zero, zero, all_of[:, :1])]
    out = module(x, additional_key_values=pair, additional_key_value_mask=mask, context_mask=real)
    assert_close(out, plain(module, x, extra=extra, mask=real))
    found = steps(
        lambda start, stop, cache: module(
            x[:, start:stop],
            cache=cache,
            additional_key_values=pair,
            additional_key_value_mask=mask,
            context_mask=real[:, :stop],
            return_intermediates=True,
        ),
        (2, 1, 3),
    )
    assert_close(found, out)


@pytest.mark.parametrize('flash', [False, True])
def test_hidden_additional_keys_are_not_there(flash):
    module, x = layer(causal=True, flash=flash), randn(2, N, 10)
    pair = (randn(2, 4, 3, 6, seed=1), randn(2, 4, 3, 6, seed=2))
    none = torch.zeros(2, 3, dtype=torch.bool)
    inputs = dict(additional_key_values=pair, additional_key_value_mask=none)
    assert_close(module(x, **inputs), module(x))
    out = module(x, context_mask=torch.arange(N).expand(2, -1) > 2, **inputs)  # the first rows see nothing at all
    assert (out[:, :3] == 0).all()


def test_masks_and_biases_need_not_know_of_additional_keys():
    module = layer(causal=True, num_mem_kv=2, max_attend_past=2)
    x, pair = randn(2, N, 10), (randn(2, 4, 3, 6, seed=1), randn(2, 4, 3, 6, seed=2))
    bias, seen = randn(4, N, N, seed=3), bools(N, N)
    wide_bias = nn.functional.pad(bias, (5, 0))
    wide_seen = nn.functional.pad(seen, (5, 0), value=True)
    narrow = module(x, additional_key_values=pair, attn_bias=bias, attn_mask=seen)
    assert_close(module(x, additional_key_values=pair, attn_bias=wide_bias, attn_mask=wide_seen), narrow)


def test_additional_keys_are_refused():
    module, x = layer(), randn(2, N, 10)
    pair = (randn(2, 3, 3, 6), randn(2, 3, 3, 6))
    for given in (pair, pair[0], (pair[0][:1], pair[1]), (randn(2, 4, 3, 5), randn(2, 4, 3, 6))):
        with pytest.raises((ValueError, TypeError), match='additional_key_values'):
            module(x, additional_key_values=given)
    with pytest.raises(ValueError, match='additional_key_value_mask'):
        module(x, additional_key_value_mask=torch.ones(2, 3).bool())


@pytest.mark.parametrize('kind', [list, tuple])
@pytest.mark.parametrize(
    ('top', 'wanted'), [(None, [None, None, 0]), (True, [None, None, 0]), (False, [0, None, None])]
)
def test_additional_keys_are_routed(kind, top, wanted):
    net, x = stack(depth=3, alibi_pos_bias=True), randn(2, N, 12)
    pairs = [(randn(2, 4, 3, 6, seed=s), randn(2, 4, 3, 6, seed=s + 9)) for s in range(4)]
    seen = []
    for found in net.layers:
        if found.kind == 'a':
            found[1].register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    route = {} if top is None else {'route_additional_kv_to_top': top}
    net(x, self_attn_additional_kv=kind(pairs[:1]), **route)
    for kwargs, at in zip(seen, wanted, strict=True):
        assert ('additional_key_values' in kwargs) == (at is not None)
    seen.clear()
    net(x, self_attn_additional_kv=kind(pairs), **route)
    expected = pairs[:3] if top is False else pairs[1:]
    assert all(kwargs['additional_key_values'][0] is k for kwargs, (k, _) in zip(seen, expected, strict=True))


@pytest.mark.parametrize('top', [True, False])
def test_additional_keys_from_another_stack(top):
    """Only its self-attention counts; gradients flow into it, unless detached."""
    source, net = stack(cross_attend=True), stack()
    x = randn(2, N, 12)
    trace = source(randn(2, 4, 12, seed=1), randn(2, 3, 12, seed=2), return_hiddens=True)[1]
    pairs = [inter.cached_kv for inter in trace.attn_intermediates if inter.layer_type == 'a']
    out = net(x, self_attn_additional_kv=trace, route_additional_kv_to_top=top)
    assert_close(net(x, self_attn_additional_kv=pairs), out)
    weight = source.layers[0][1].to_k.weight
    assert torch.autograd.grad(out.sum(), weight, retain_graph=True)[0].abs().max() > 0
    detached = net(x, self_attn_additional_kv=trace, route_additional_kv_to_top=top, detach_additional_kv=True)
    assert_close(detached, out)
    assert torch.autograd.grad(detached.sum(), weight, allow_unused=True)[0] is None
    with pytest.raises(TypeError, match='self_attn_additional_kv'):
        net(x, self_attn_additional_kv=3)
    with pytest.raises(ValueError, match='self_attn_additional_kv'):
        net(x, self_attn_additional_kv=pairs[0])
    with pytest.raises(ValueError, match='additional_kv_mask'):
        net(x, additional_kv_mask=torch.ones(2, 3).bool())


# latents


def test_latents_are_a_factorised_projection():
    """Queries, keys and values of a layer whose weights are the products."""
    flags = dict(causal=True, kv_heads=2)
    module = layer(use_latent_q=True, dim_latent_q=3, use_latent_kv=True, dim_latent_kv=5, **flags)
    assert module.to_latent_q.weight.shape == (3, 10) and module.to_latent_kv.weight.shape == (5, 10)
    twin, x = layer(**flags), randn(2, N, 10)
    with torch.no_grad():
        twin.to_q.weight.copy_(module.to_q.weight @ module.to_latent_q.weight)
        twin.to_k.weight.copy_(module.to_k.weight @ module.to_latent_kv.weight)
        twin.to_v.weight.copy_(module.to_v.weight @ module.to_latent_kv.weight)
        twin.to_out.weight.copy_(module.to_out.weight)
    out, inter = module(x, return_intermediates=True)
    assert_close(out, twin(x))
    latent, keys = inter.cached_kv
    assert keys is None
    assert_close(latent, x @ module.to_latent_kv.weight.T)


def test_rope_subheads():
    """The last key heads are those of a plain layer, and alone they are rotated, with their queries."""
    module = layer(causal=True, use_latent_kv=True, dim_latent_kv=5, latent_rope_subheads=1)
    twin, x = layer(causal=True, rotate_num_heads=1), randn(2, N, 10)
    assert module.to_k.weight.shape == (18, 5) and module.to_rotateable_k.weight.shape == (6, 10)
    with torch.no_grad():
        first = module.to_k.weight @ module.to_latent_kv.weight
        twin.to_k.weight.copy_(torch.cat((first, module.to_rotateable_k.weight)))
        twin.to_v.weight.copy_(module.to_v.weight @ module.to_latent_kv.weight)
        twin.to_q.weight.copy_(module.to_q.weight)
        twin.to_out.weight.copy_(module.to_out.weight)
    angles = (torch.arange(N)[:, None] * torch.tensor([1.0, 1.0, 0.1, 0.1])).double()[None]
    out, inter = module(x, rotary_pos_emb=(angles, 1.0), return_intermediates=True)
    assert_close(out, twin(x, rotary_pos_emb=(angles, 1.0)))
    assert [tuple(t.shape) for t in inter.cached_kv] == [(2, N, 5), (2, 1, N, 6)]


@pytest.mark.filterwarnings('ignore:Initializing zero-element')  # of torch: all key heads bypass the latent
@pytest.mark.parametrize('subheads', [None, 1, 4])
@pytest.mark.parametrize('memories', [0, 3])
def test_latents_with_cache_memories_and_value_mix(subheads, memories):
    """The cache holds latents of tokens, not of memories; mixes are those of each token's own step."""
    flags = {} if subheads is None else dict(latent_rope_subheads=subheads)
    module = layer(causal=True, use_latent_kv=True, dim_latent_kv=5, learned_value_residual_mix=True, **flags)
    x, mem, first = randn(2, N, 10), randn(2, memories, 10, seed=1), randn(2, 4, memories + N, 6, seed=2)
    angles = (torch.arange(memories + N)[:, None] * torch.tensor([1.0, 1.0])).double()[None]

    def run(start, stop, cache):
        given = dict(rotary_pos_emb=(angles[:, : memories + stop], 1.0), value_residual=first[:, :, : memories + stop])
        out, inter = module(x[:, start:stop], mem=mem, cache=cache, return_intermediates=True, **given)
        assert inter.cached_kv[0].shape == (2, stop, 5)
        return out, inter

    assert_close(steps(run, (1, 2, 1, 2)), run(0, N, None)[0])


def test_latents_of_a_context():
    module = layer(use_latent_kv=True, dim_latent_kv=5, dim_context=7, latent_rope_subheads=2)
    assert module.to_latent_kv.in_features == module.to_rotateable_k.in_features == 7
    assert module(randn(2, N, 10), randn(2, 3, 7)).shape == (2, N, 10)
    net = stack(
        cross_attend=True,
        cross_attn_dim_context=7,
        attn_use_latent_kv=True,
        attn_dim_latent_kv=5,
        add_value_residual=True,
    )
    x, context = randn(2, N, 12), randn(2, 3, 7)
    trace = net(x[:, :4], context, return_hiddens=True)[1]
    assert_close(net(x, context, cache=trace), net(x, context)[:, 4:])
    for cache in (trace.cache.crop(2), trace.cache.reorder(torch.tensor([0, 1])), trace.cache.expand(1)):
        assert net(x, context, cache=cache).isfinite().all()


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(use_latent_q=True), 'dim_latent_q'),
        (dict(use_latent_kv=True), 'dim_latent_kv'),
        (dict(latent_rope_subheads=2), 'latent_rope_subheads.*use_latent_kv'),
        (
            dict(latent_rope_subheads=5, use_latent_kv=True, dim_latent_kv=4),
            'latent_rope_subheads` must be at most `heads`, 4, got 5',
        ),
        (dict(latent_rope_subheads=2, use_latent_kv=True, dim_latent_kv=4, kv_heads=2), 'kv_heads'),
        (dict(latent_rope_subheads=2, use_latent_kv=True, dim_latent_kv=4, rotate_num_heads=2), 'rotate_num_heads'),
        (dict(k_rmsnorm=True, qk_rmsnorm=True), 'k_rmsnorm.*qk_rmsnorm'),
        (dict(gate_values=True, gate_values_rank=2, gate_values_headwise=True), 'gate_values_rank'),
        (dict(output_gate=True, output_gate_rank=24), 'output_gate_rank` must be less than 24, got 24'),
    ],
)
def test_what_is_refused(flags, words):
    with pytest.raises(ConfigError, match=words):
        layer(**flags)


# norms


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_norms_of_keys_and_values(kv_heads):
    module = layer(causal=True, k_rmsnorm=True, value_rmsnorm=True, kv_heads=kv_heads, value_dim_head=3)
    assert module.k_rmsnorm.gamma.shape == (kv_heads, 1, 6) and module.value_rmsnorm.gamma.shape == (kv_heads, 1, 3)
    x = randn(2, N, 10)
    k, v = module(x, return_intermediates=True)[1].cached_kv
    for found, name, norm in ((k, 'to_k', module.k_rmsnorm), (v, 'to_v', module.value_rmsnorm)):
        heads = (x @ getattr(module, name).weight.T).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
        mean_square = heads.square().mean(dim=-1, keepdim=True)
        assert_close(found, heads / mean_square.sqrt() * (1 + norm.gamma))


# gates


GATES = [
    dict(gate_values=True),
    dict(gate_values=True, gate_values_headwise=True),
    dict(gate_values=True, gate_values_rank=2),
    dict(output_gate=True, swiglu_values=True),
    dict(output_gate=True, output_gate_headwise=True, gate_values=True, gate_values_rank=3, low_rank_silu_gates=False),
    dict(output_gate=True, output_gate_rank=2, gate_values=True, gate_values_headwise=True, swiglu_values=True),
]


@pytest.mark.parametrize('flags', GATES, ids=lambda flags: '+'.join(flags))
def test_gates(flags):
    module, x = layer(causal=True, **flags), randn(2, N, 10)
    merged = plain(module, x, output=False)
    logits = torch.zeros_like(merged)

    def through(gate, t):
        if hasattr(gate, 'weight'):
            found = t @ gate.weight.T
            return found if found.shape[-1] == 24 else found.repeat_interleave(6, dim=-1)
        low = t @ gate.down.weight.T
        return (low if flags.get('low_rank_silu_gates') is False else low * low.sigmoid()) @ gate.up.weight.T

    if flags.get('gate_values'):
        logits = logits + through(module.to_v_gate, x)
    if flags.get('output_gate'):
        logits = logits + through(module.to_output_gate, merged)
    gates = logits.sigmoid() * (logits if flags.get('swiglu_values') else 1)
    assert_close(module(x), (merged * gates) @ module.to_out.weight.T)


@pytest.mark.parametrize('flags', GATES, ids=lambda flags: '+'.join(flags))
def test_gates_start_half_open_or_shut(flags):
    torch.manual_seed(0)
    module, x = Attention(**SIZES, causal=True, **flags).double(), randn(2, N, 10)
    factor = 0 if flags.get('swiglu_values') else 0.5
    assert_close(module(x), factor * plain(module, x))


# the projection out


def test_depth_scaled_projection():
    torch.manual_seed(0)
    for flags in (dict(), dict(on_attn=True)):
        module = Attention(64, 64, heads=8, output_proj_depth=3, **flags)
        weight = next(m for m in module.to_out.modules() if isinstance(m, nn.Linear)).weight
        assert abs(weight.std().item() * (2 * 512 * 3) ** 0.5 - 1) < 0.02
    assert isinstance(Attention(16, 16, heads=1, output_proj_depth=2).to_out, nn.Identity)
    zero = Attention(16, output_proj_depth=2, zero_init_output=True)
    assert (zero.to_out.weight == 0).all()


def test_sublayer_dropout():
    torch.manual_seed(0)
    module = Attention(64, heads=2, sublayer_dropout=0.25)
    x = torch.randn(8, 32, 64)
    assert abs((module(x) == 0).float().mean() - 0.25) < 0.02
    assert torch.equal(module.eval()(x), module(x))


# own values taken out


def without(o, v):
    return o - (o * v).sum(-1, keepdim=True) / (v * v).sum(-1, keepdim=True) * v


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
@pytest.mark.parametrize('which', [(True, False), (False, True), (True, True)])
def test_orthogonal_values(which, kv_heads):
    whole, per_head = which
    module = layer(
        causal=True, orthog_projected_values=whole, orthog_projected_values_per_head=per_head, kv_heads=kv_heads
    )
    x = randn(2, N, 10)
    merged = plain(module, x, output=False)
    own = (x @ module.to_v.weight.T).unflatten(-1, (kv_heads, 6)).repeat(1, 1, 4 // kv_heads, 1)
    parts = [without(merged, own.flatten(-2))] if whole else []
    parts += [without(merged.unflatten(-1, (4, 6)), own).flatten(-2)] if per_head else []
    assert module.to_out.in_features == 24 * len(parts)
    out = torch.cat(parts, dim=-1) @ module.to_out.weight.T
    assert_close(module(x), out)
    changed = torch.cat((x[:, :-1], randn(2, 1, 10, seed=8)), dim=1)
    assert_close(module(changed)[:, :-1], out[:, :-1])
    assert_close(module(x, mem=randn(2, 0, 10)), out)
    found = steps(lambda a, b, cache: module(x[:, a:b], cache=cache, return_intermediates=True), (1, 3, 2))
    assert_close(found, out)


def test_orthogonal_values_with_memories_and_latents():
    module = layer(causal=True, orthog_projected_values_per_head=True, use_latent_kv=True, dim_latent_kv=5)
    x, mem = randn(2, N, 10), randn(2, 3, 10, seed=1)
    assert_close(module(x, mem=mem), module(torch.cat((mem, x), dim=1))[:, 3:])
    found = steps(lambda a, b, cache: module(x[:, a:b], cache=cache, return_intermediates=True), (1, 3, 2))
    assert_close(found, module(x))
    with pytest.raises(ValueError, match=r'orthog_projected_values.*context'):
        module(x, mem)
    with pytest.raises(ConfigError, match='attn_orthog_projected_values_per_head'):
        stack(cross_attend=True, attn_orthog_projected_values_per_head=True)


# modules beside attention


class Recorder(nn.Module):
    """A causal module without a state: the mean of what came so far."""

    def __init__(self, width=24):
        super().__init__()
        self.to_out, self.calls = nn.Linear(10, width), []

    def forward(self, x, mask=None):
        self.calls.append((x, mask))
        return self.to_out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


def normed(heads, norm):
    return heads / heads.square().mean(-1, keepdim=True).sqrt() * (1 + norm.gamma)


@pytest.mark.parametrize('learned', [False, True])
@pytest.mark.parametrize('fold', [None, 1, 2, 4])
def test_hybrid(fold, learned):
    module = layer(causal=True, hybrid_module=Recorder(), hybrid_fold_axial_dim=fold, hybrid_learned_mix=learned)
    x = randn(2, N, 10)
    fold = fold or 1
    made = torch.zeros(2, N, 24, dtype=torch.float64)
    for first in range(fold):  # each stride is a sequence of its own
        made[:, first::fold] = module.hybrid_module.fn(x[:, first::fold])
    beside = normed(made.unflatten(-1, (4, 6)).transpose(1, 2), module.hybrid_norms[1])
    own = normed(plain(module, x, output=False).unflatten(-1, (4, 6)).transpose(1, 2), module.hybrid_norms[0])
    mix = 0.5
    if learned:
        mix = (x @ module.hybrid_mix.weight.T).sigmoid().transpose(1, 2).unsqueeze(-1)
    out = own + mix * (beside - own)
    assert_close(module(x), out.transpose(1, 2).flatten(-2) @ module.to_out.weight.T)
    assert module.can_cache_kv == (fold == 1)


def test_hybrid_is_a_copy_of_its_own():
    given = Recorder()
    module = layer(hybrid_module=given)
    assert module.hybrid_module.fn is not given and 'hybrid_norms.0.gamma' in module.state_dict()
    assert layer(hybrid_module=Recorder(12), value_dim_head=3)(randn(2, N, 10)).shape == (2, N, 10)
    with pytest.raises(ValueError, match='hybrid_module'):
        layer(hybrid_module=Recorder(12))(randn(2, N, 10))
    with pytest.raises(ConfigError, match='hybrid_module'):
        stack(cross_attend=True, attn_hybrid_module=nn.Linear(12, 24))


def recurrent(kind):
    return Recorder() if kind == 'none' else getattr(nn, kind)(10, 24, batch_first=True)


@pytest.mark.parametrize('kind', ['GRU', 'LSTM', 'RNN', 'none'])
@pytest.mark.parametrize('sizes', [(1,) * N, (3, 2, 1)])
def test_hybrid_with_cache(kind, sizes):
    """The whole state is handed on; a module without one reads all tokens again."""
    module, x = layer(causal=True, hybrid_module=recurrent(kind)), randn(2, N, 10)
    found = steps(lambda a, b, cache: module(x[:, a:b], cache=cache, return_intermediates=True), sizes)
    assert_close(found, module(x))
    state = module(x, return_intermediates=True)[1].hybrid_hidden
    assert {'none': state is None, 'LSTM': isinstance(state, tuple)}.get(kind, torch.is_tensor(state))


@pytest.mark.parametrize('kind', ['GRU', 'LSTM', 'none'])
@pytest.mark.parametrize('fold', [1, 2])
def test_hybrid_beside_padding(kind, fold):
    """A padded row is the row alone, whatever the padding holds, and so it is token by token."""
    module, x = layer(causal=True, hybrid_module=recurrent(kind), hybrid_fold_axial_dim=fold), randn(2, N, 10)
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0]]).bool()
    out = module(x, mask=real)
    for row in range(2):
        assert_close(out[row][real[row]], module(x[row][real[row]][None])[0])
    other = torch.where(real[..., None], x, randn(2, N, 10, seed=7))
    assert_close(module(other, mask=real), out)
    if fold == 1:
        found = steps(
            lambda a, b, c: module(x[:, a:b], mask=real[:, :b], cache=c, return_intermediates=True), (2, 1, 3)
        )
        assert_close(found, out)


def test_hybrid_gets_the_mask_where_there_is_no_order():
    module, x, mask = layer(hybrid_module=Recorder(), hybrid_mask_kwarg='mask'), randn(2, N, 10), bools(2, N)
    calls = module.hybrid_module.fn.calls
    module(x, mask=mask)
    assert torch.equal(calls[-1][0], x) and torch.equal(calls[-1][1], mask)
    module(x)
    assert calls[-1][1] is None
    module(x, mask=mask, causal=True)
    assert calls[-1][1] is None
    folded = layer(hybrid_module=Recorder(), hybrid_mask_kwarg='mask', hybrid_fold_axial_dim=4)
    folded(x, mask=mask)
    seen, known = folded.hybrid_module.fn.calls[-1]
    assert seen.shape[:2] == known.shape == (8, 2)
    assert torch.equal(known[1], mask[0, 1::4]) and not known[3, 1]


def test_what_padding_holds_never_reaches_a_module_without_order():
    module, x = layer(hybrid_module=nn.GRU(10, 12, batch_first=True, bidirectional=True)), randn(2, N, 10)
    real = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 0]]).bool()
    other = torch.where(real[..., None], x, randn(2, N, 10, seed=7))
    assert_close(module(other, mask=real), module(x, mask=real))


def test_folding():
    x = randn(2, 7, 3)
    assert torch.equal(FoldAxially(3, nn.Identity())(x), x)
    state = FoldAxially(3, nn.GRU(3, 5, batch_first=True).double())(x)[1]
    assert state.shape == (1, 6, 5)
    # consecutive tokens, of which the last ones stand beside zeros
    gru = nn.GRU(3, 5, batch_first=True).double()
    for count in (1, 3):
        padded = torch.cat((x, x.new_zeros(2, -7 % count, 3)), dim=1)
        wanted = [gru(part)[0] for part in padded.split(count, dim=1)]
        assert_close(FoldAxially(count, gru, consecutive=True)(x)[0], torch.cat(wanted, dim=1)[:, :7])


def test_hybrid_of_a_stack_continues_from_a_saved_cache(tmp_path):
    from x_transformers.cache import Cache

    net, x = stack(attn_hybrid_module=nn.LSTM(12, 24, batch_first=True)), randn(2, N, 12)
    whole, trace = net(x), net(x[:, :4], return_hiddens=True)[1]
    trace.cache.save(tmp_path / 'cache')
    assert_close(net(x, cache=Cache.load(tmp_path / 'cache')), whole[:, 4:])
    with pytest.raises(ValueError, match='hybrid_hidden'):
        trace.cache.crop(2)


# helpers for optimisers


@pytest.mark.parametrize('flash', [False, None])
@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_clipping_of_logits(kv_heads, flash):
    """No head is above the bound any more, those below are untouched; key heads that are shared stay."""
    module, x = layer(causal=True, kv_heads=kv_heads, flash=flash), randn(2, N, 10) * 2
    before = module(x, return_intermediates=True)[1]
    seen = torch.ones(N, N, dtype=torch.bool).tril()
    largest = before.pre_softmax_attn.masked_fill(~seen, -torch.inf).amax(dim=(0, 2, 3))
    tau = largest.sort().values[1].item()
    keys = module.to_k.weight.clone()
    module.qk_clip_(before, tau)
    after = module(x, return_intermediates=True)[1].pre_softmax_attn
    factor = torch.where(largest > tau, tau / largest, 1.0)
    assert (largest > tau).sum() == 2
    wanted = before.pre_softmax_attn * factor[:, None, None]
    assert_close(after.masked_fill(~seen, 0.0), wanted.masked_fill(~seen, 0.0))
    assert torch.equal(module.to_k.weight, keys) == (kv_heads < 4)
    module.qk_clip_(after, tau * 1.001)
    assert_close(module(x, return_intermediates=True)[1].pre_softmax_attn, after)


def test_clipping_of_heads_with_negative_logits():
    module = layer()
    before = copy.deepcopy(module.state_dict())
    module.qk_clip_(-torch.rand(2, 4, N, N).double() - 1, tau=0.5)
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    with pytest.raises(TypeError, match='qk_clip_'):
        module.qk_clip_(None)


@pytest.mark.parametrize(
    'flags',
    [
        dict(),
        dict(use_layerscale=True, shift_tokens=1, scale_residual=0.5),
        dict(weight_tie_layers=True),
        dict(macaron=True),
        dict(layers_execute_order=(2, 0, 0, 3), depth=None, custom_layers=('a', 'f', 'a', 'f')),
        dict(cross_attend=True, attn_kv_heads=2),
        dict(attn_use_latent_kv=True, attn_dim_latent_kv=5, attn_latent_rope_subheads=1, rotary_pos_emb=True),
    ],
    ids=lambda flags: next(iter(flags), 'plain'),
)
def test_clipping_of_a_stack(flags):
    if 'custom_layers' in flags:
        flags = {'layers_execute_order': (2, 0, 0, 3)}
    net, x = stack(**flags), randn(2, N, 12)
    context = {'context': randn(2, 3, 12, seed=1)} if net.cross_attend else {}
    trace = net(x, return_hiddens=True, **context)[1]
    largest = {}
    for inter in trace.attn_intermediates:
        logits = inter.pre_softmax_attn.amax(dim=(0, 2, 3))
        known = largest.get(inter.layer_index)
        largest[inter.layer_index] = logits if known is None else torch.maximum(known, logits)
    tau = torch.cat(tuple(largest.values())).median().item()
    attention = {i: next(m for m in net.layers[i][1].modules() if isinstance(m, Attention)) for i in largest}
    before = {i: m.to_q.weight.clone() for i, m in attention.items()}
    net.attn_qk_clip_(trace, tau=tau)
    for index, module in attention.items():
        factor = torch.where(largest[index] > tau, tau / largest[index], 1.0)
        factor = factor if module.kv_heads < 4 else factor.sqrt()
        assert_close(module.to_q.weight, before[index] * factor.repeat_interleave(6)[:, None])


def test_matrices_for_muon():
    module = Attention(8, 4, heads=2)
    assert [id(p) for p in module.muon_parameters()] == [id(module.to_v.weight), id(module.to_out.weight)]
    gated = Attention(8, 4, heads=2, on_attn=True).muon_parameters()
    assert [tuple(p.shape) for p in gated] == [(8, 8), (16, 8)]
    assert [tuple(p.shape) for p in FeedForward(8, glu=True).muon_parameters()] == [(64, 8), (8, 32)]
    net = Encoder(dim=8, depth=3, heads=2, attn_dim_head=4, weight_tie_layers=True, use_layerscale=True)
    assert [p.ndim for p in net.muon_parameters()] == [2] * 4


# what a stack hands on


def test_prefix_decoder_sees_its_memories():
    net = stack(PrefixDecoder, rotary_pos_emb=True)
    x = randn(2, N, 12)
    trace = net(x[:, :3], return_hiddens=True, prefix_attn_len=3)[1]
    whole = net(x, prefix_attn_len=3)
    assert_close(net(x[:, 3:], mems=trace.hiddens), whole[:, 3:])
    with pytest.raises(ValueError, match=r'cache.*causal|causal.*cache'):
        net(x, cache=trace)


def test_bias_and_mask_of_all_tokens_beside_cache_and_memories():
    net, x, bias = stack(), randn(2, N, 12), randn(4, N, N, seed=1)
    whole = net(x, attn_bias=bias)
    trace = net(x[:, :4], attn_bias=bias[:, :4, :4], return_hiddens=True)[1]
    for given in (bias, bias[:, 4:]):
        assert_close(net(x, attn_bias=given, cache=trace), whole[:, 4:])
    mems = [randn(2, 3, 12, seed=s) for s in (2, 3)]
    wide = nn.functional.pad(bias, (3, 0))
    assert_close(net(x, attn_bias=bias, mems=mems), net(x, attn_bias=wide, mems=mems))
    seen = bools(N, N) | torch.eye(N).bool()
    assert_close(
        net(x, attn_mask=seen, mems=mems), net(x, attn_mask=nn.functional.pad(seen, (3, 0), value=True), mems=mems)
    )


def test_what_was_remembered_beside_keys_that_were_cut_is_given_up():
    module, x = layer(causal=True, data_dependent_alibi=True), randn(2, 4, 10)
    _, inter = module(x, return_intermediates=True)
    whole = inter.past.states
    inter.cached_kv = tuple(t[..., :4, :] for t in inter.cached_kv)
    assert inter.past.states == whole
    inter.cached_kv = tuple(t[..., 2:, :] for t in inter.cached_kv)
    assert inter.past.states == {} and inter.past.length == 2
    with pytest.raises(ValueError, match='`cache` holds no forget gates'):
        module(x[:, :1], cache=inter)
