"""Positions that depend on the tokens, polar and infused positions, partial rotation: formulas written plainly."""

import math

import pytest
import torch
from building import stacks
from oracles import assert_close, randn, randomised

from x_transformers import Attention, Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import (
    DataDependentAlibi,
    PerRowDataDependentAlibi,
    PolarEmbedding,
    RelativeProjPositionalBias,
)

SIZES = dict(dim=10, heads=3, dim_head=6)
N = 6


def layer(**flags):
    return randomised(Attention(**SIZES, **flags))


stack = stacks(finish=randomised, dim=12, depth=2, heads=4, attn_dim_head=6, verbose=False)


def added_bias(module, x, bias, **inputs):
    """The output of an attention layer without the feature, the bias given by hand."""
    plain = randomised(Attention(**SIZES, causal=module.causal, kv_heads=module.kv_heads))
    plain.load_state_dict({n: t for n, t in module.state_dict().items() if n in plain.state_dict()})
    return plain(x, attn_bias=bias, **inputs)


def test_the_shift_of_polar_keys_is_between_a_turn_back_and_none():
    module = PolarEmbedding(3, heads=1)
    with torch.no_grad():
        module.learned_bias.copy_(torch.tensor([1.0, -1.0, -7.0]).view(1, 1, 3))
    assert_close(module(torch.arange(2))[1].flatten(), torch.tensor([0.0, -1.0, -2 * math.pi]))


def test_a_gate_per_row_lies_in_front_of_its_query():
    """Nothing stands between a query and itself; between it and the key before it, the gate of that key."""
    module, x = randomised(PerRowDataDependentAlibi(10, 3, dim_head=4)), randn(1, N, 10)
    bias, (q, k) = module(x)[0], module.small(x)
    assert (bias.diagonal(dim1=-2, dim2=-1) == 0).all()
    gates = torch.nn.functional.logsigmoid((q[0, :, 1:] * k[0, :, :-1]).sum(dim=-1) / 2)
    assert_close(bias[:, 1:].diagonal(dim1=-2, dim2=-1), gates)


# plain formulas


def log_sigmoid(t):
    return -math.log1p(math.exp(-t))


def forget_bias(weight, bias, x, heads, causal, factor=1.0, real=None, loops=None):
    """bias_ij: the log gates of the tokens behind the nearer one, up to the further one."""
    logits = x @ weight.T + bias
    b, n, _ = x.shape
    out = torch.zeros(b, heads, n, n, dtype=x.dtype)

    def gate(r, t, h):
        return 0.0 if real is not None and not real[r, t] else factor * log_sigmoid(logits[r, t, h].item())

    for r in range(b):
        for h in range(heads):
            for i in range(n):
                for j in range(n):
                    if j < i:
                        out[r, h, i, j] = sum(gate(r, t, h) for t in range(j + 1, i + 1))
                    if j > i and not causal:
                        out[r, h, i, j] = sum(gate(r, t, heads + h) for t in range(i + 1, j + 1))
    return out


def forget_bias_per_row(weight, x, heads, width, factor=1.0, real=None):
    u = (x @ weight.T).unflatten(-1, (2, heads, width))
    b, n, _ = x.shape
    out = torch.zeros(b, heads, n, n, dtype=x.dtype)
    for r in range(b):
        for h in range(heads):
            for i in range(n):
                for j in range(i):
                    for t in range(j, i):
                        if real is None or real[r, t]:
                            logit = (u[r, i, 0, h] * u[r, t, 1, h]).sum().item() / math.sqrt(width)
                            out[r, h, i, j] += factor * log_sigmoid(logit)
    return out


def projected_bias(weight, bias, bank, x, heads, q_pos, k_pos):
    mix = (x @ weight.T + bias).unflatten(-1, (heads, -1))
    out = torch.zeros(len(x), heads, len(q_pos), len(k_pos), dtype=x.dtype)
    for i, p in enumerate(q_pos):
        for j, s in enumerate(k_pos):
            if 0 <= p - s < bank.shape[1]:
                out[:, :, i, j] = (mix[:, i] * bank[:, p - s]).sum(-1)
    return out


# forget gates


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('mask', [None, torch.tensor([[1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1]]).bool()])
@pytest.mark.parametrize('factor', [1.0, 0.5])
def test_forget_gates(causal, mask, factor):
    module = layer(causal=causal, data_dependent_alibi=True, data_dependent_alibi_kwargs={'post_log_scale': factor})
    x, inner = randn(2, N, 10), module.data_dependent_alibi.to_forget_gates[0]
    bias = forget_bias(inner.weight, inner.bias, x, 3, causal, factor, mask)
    assert_close(module(x, mask=mask), added_bias(module, x, bias, mask=mask))


@pytest.mark.parametrize('mask', [None, torch.tensor([[1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1]]).bool()])
def test_forget_gates_per_row(mask):
    module = layer(
        causal=True,
        data_dependent_alibi=True,
        data_dependent_alibi_per_row=True,
        data_dependent_alibi_per_row_dim_head=5,
        kv_heads=1,
    )
    x, weight = randn(2, N, 10), module.data_dependent_alibi.to_forget_gates[0].weight
    assert weight.shape == (2 * 3 * 5, 10)
    bias = forget_bias_per_row(weight, x, 3, 5, real=mask)
    assert_close(module(x, mask=mask), added_bias(module, x, bias, mask=mask))


def test_forget_gates_start_nearly_open():
    torch.manual_seed(0)
    gates = DataDependentAlibi(8, 2).to_forget_gates[0]
    assert (gates.bias == 5).all() and gates.weight.shape == (2, 8)
    assert (DataDependentAlibi(8, 2, bias_init=1.0).to_forget_gates[0].bias == 1).all()
    assert PerRowDataDependentAlibi(8, 2).to_forget_gates[0].bias is None


@pytest.mark.parametrize('kind', [dict(), dict(data_dependent_alibi_per_row=True)])
def test_open_gates_change_nothing(kind):
    module = layer(causal=True, data_dependent_alibi=True, data_dependent_alibi_kwargs={'post_log_scale': 0.0}, **kind)
    x = randn(2, N, 10)
    assert_close(module(x), added_bias(module, x, torch.zeros(3, N, N).double()))


@pytest.mark.parametrize('kind', [dict(), dict(data_dependent_alibi_per_row=True)])
@pytest.mark.parametrize('flash', [False, True])
def test_forget_gates_join_other_biases(kind, flash):
    """A bias of the caller is added, not dropped; keys in front have none."""
    module = layer(causal=True, data_dependent_alibi=True, flash=flash, **kind)
    x, own = randn(2, N, 10), randn(3, N, N, seed=3)
    bias = module.data_dependent_alibi(x)
    assert_close(module(x, attn_bias=own), added_bias(module, x, own + bias))
    pair = (randn(2, 3, 2, 6, seed=4), randn(2, 3, 2, 6, seed=5))
    wanted = added_bias(module, x, bias, additional_key_values=pair)
    assert_close(module(x, additional_key_values=pair), wanted)


@pytest.mark.parametrize('kind', [dict(), dict(data_dependent_alibi_per_row=True)])
@pytest.mark.parametrize('sizes', [(1,) * N, (2, 3, 1)])
def test_forget_gates_with_cache_and_memories(kind, sizes):
    module = layer(causal=True, data_dependent_alibi=True, **kind)
    x, mem = randn(2, N, 10), randn(2, 3, 10, seed=1)
    whole = module(torch.cat((mem, x), dim=1))[:, 3:]
    assert_close(module(x, mem=mem), whole)
    outs, cache, start = [], None, 0
    for size in sizes:
        out, cache = module(x[:, start : start + size], mem=mem, cache=cache, return_intermediates=True)
        outs.append(out)
        start += size
    assert_close(torch.cat(outs, dim=1), whole)


def test_forget_gates_are_refused():
    with pytest.raises(ConfigError, match=r'data_dependent_alibi_per_row.*causal'):
        layer(data_dependent_alibi=True, data_dependent_alibi_per_row=True)
    with pytest.raises(ConfigError, match=r'data_dependent_alibi_kwargs.*nonsense'):
        layer(data_dependent_alibi=True, data_dependent_alibi_kwargs={'nonsense': 1})
    with pytest.raises(ValueError, match=r'data_dependent_alibi.*context'):
        layer(data_dependent_alibi=True)(randn(2, N, 10), randn(2, N, 10))
    for name in ('alibi_pos_bias', 'rel_pos_bias'):
        with pytest.raises(ConfigError, match=rf'{name}.*attn_data_dependent_alibi'):
            stack(attn_data_dependent_alibi=True, **{name: True})
        with pytest.raises(ConfigError, match=name):
            stack(attn_data_dependent_alibi=(False, True), **{name: True})
    stack(attn_data_dependent_alibi=True, dynamic_pos_bias=True)


# projected curves


@pytest.mark.parametrize('reach', [1, 4, 1024])
@pytest.mark.parametrize('causal', [True, False])
def test_projected_bias(reach, causal):
    module = layer(causal=causal, use_rel_proj_pos_bias=True, rel_proj_num_distance_basis=2, rel_proj_max_dist=reach)
    x, inner = randn(2, N, 10), module.rel_proj_pos_bias
    linear, place = inner.to_distance_weights[0], range(N)
    assert inner.distance_bank.shape == (2, reach)
    bias = projected_bias(linear.weight, linear.bias, inner.distance_bank, x, 3, place, place)
    assert_close(module(x), added_bias(module, x, bias))
    assert_close(inner(x), bias)
    assert_close(inner(x[:, -2:], N), bias[:, :, -2:])


def test_projected_bias_counts_no_keys_in_front():
    module = layer(causal=True, use_rel_proj_pos_bias=True)
    x, own = randn(2, N, 10), randn(3, N, N, seed=1)
    pair = (randn(2, 3, 2, 6, seed=4), randn(2, 3, 2, 6, seed=5))
    bias = module.rel_proj_pos_bias(x) + own
    assert_close(
        module(x, additional_key_values=pair, attn_bias=own), added_bias(module, x, bias, additional_key_values=pair)
    )


def test_projected_bias_of_padded_rows_with_memories():
    """Distances are those of the tokens, whatever padding stands between them and the memories."""
    net = stack(attn_use_rel_proj_pos_bias=True)
    x, mems = randn(2, N, 12), [randn(2, 3, 12, seed=s) for s in (1, 2)]
    start = torch.tensor([0, 2])
    out = net(x, mems=mems, seq_start_pos=start)
    assert_close(out[1:, 2:], net(x[1:, 2:], mems=[mem[1:] for mem in mems]))
    assert RelativeProjPositionalBias(8, 2, 3, 5).distance_bank.std() < 0.05


# rotation of some heads


def test_only_the_last_heads_are_rotated():
    module = layer(causal=True, rotate_num_heads=1)
    every = randomised(Attention(**SIZES, causal=True))
    angles = randn(1, N, 4).repeat_interleave(2, -1)[..., :4]
    x = randn(2, N, 10)
    still, turned = (
        every(x, return_intermediates=True)[1],
        every(x, rotary_pos_emb=(angles, 1.0), return_intermediates=True)[1],
    )
    mixed = module(x, rotary_pos_emb=(angles, 1.0), return_intermediates=True)[1]
    assert_close(mixed.post_softmax_attn[:, :2], still.post_softmax_attn[:, :2])
    assert_close(mixed.post_softmax_attn[:, 2:], turned.post_softmax_attn[:, 2:])


def test_rotated_heads_of_a_stack():
    net = stack(rotary_pos_emb=True, rotate_num_heads=3, cross_attend=True)
    assert [m.rotate_num_heads for m in net.modules() if isinstance(m, Attention)] == [3, 4, 3, 4]
    with pytest.raises(ConfigError, match=r'`rotate_num_heads` must .*got 5'):
        stack(rotary_pos_emb=True, rotate_num_heads=5)
    with pytest.raises(ConfigError, match='`rotate_num_heads` cannot be combined with `attn_kv_heads`'):
        stack(rotary_pos_emb=True, rotate_num_heads=3, attn_kv_heads=2)
    stack(rotary_pos_emb=True, rotate_num_heads=4, attn_kv_heads=2)


@pytest.mark.parametrize(('width', 'pairs'), [(4, 1), (5, 1), (6, 2), (7, 2)])
def test_narrow_and_odd_heads_are_rotated_by_pairs(width, pairs):
    net = Decoder(dim=12, depth=1, heads=2, attn_dim_head=width, rotary_pos_emb=True, verbose=False)
    assert (net.rotary_pos_emb.dim, len(net.rotary_pos_emb.inv_freq)) == (width // 2, pairs)
    assert net(torch.randn(1, N, 12)).isfinite().all()
    with pytest.raises(ConfigError, match='pairs'):
        Decoder(dim=12, depth=1, heads=2, attn_dim_head=3, rotary_pos_emb=True, rotary_emb_dim=3, verbose=False)


# polar


def exact(table, values):
    """The values of a table in float32, then all their digits."""
    assert_close(table, torch.tensor(values).double(), tolerance=1e-6)
    table.copy_(torch.tensor(values, dtype=table.dtype))


def polar_logits(q, k, q_pos, k_pos, shift, scale):
    """Softplus sizes; the phase of a pair of features is p theta - s theta - shift."""
    d = q.shape[-1]
    theta = torch.tensor([10000 ** (-i / d) for i in range(d)], dtype=q.dtype)
    k = k.repeat(1, q.shape[1] // k.shape[1], 1, 1)
    sizes = torch.nn.functional.softplus(q)[..., :, None, :] * torch.nn.functional.softplus(k)[..., None, :, :]
    phase = (q_pos[..., :, None] - k_pos[..., None, :])[..., None] * theta
    phase = phase if phase.ndim == 3 else phase.unsqueeze(1)
    return (sizes * (phase - shift.clamp(-2 * math.pi, 0).unsqueeze(-2)).cos()).sum(-1) * scale


def projected(module, x, name, heads):
    return (x @ getattr(module, name).weight.T).unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize('kv_heads', [1, 2, 4])
@pytest.mark.parametrize('rows', [False, True])
@pytest.mark.parametrize('flash', [False, None])
def test_polar(kv_heads, rows, flash):
    module = randomised(Attention(10, 6, heads=4, kv_heads=kv_heads, num_mem_kv=2, flash=flash))
    positions = randomised(PolarEmbedding(6, 4), seed=2)
    with torch.no_grad():
        positions.learned_bias.mul_(-5)
        exact(positions.inv_freq, [10000 ** (-i / 6) for i in range(6)])
    x = randn(4, N, 10)  # as many rows as heads: positions of rows must not end up at heads
    pos = torch.arange(N) * 2 if not rows else torch.arange(4)[:, None] * 3 + torch.arange(N)
    _, inter = module(x, polar_pos_emb=positions(pos), return_intermediates=True)
    q, k = projected(module, x, 'to_q', 4), projected(module, x, 'to_k', kv_heads)
    wanted = polar_logits(q, k, pos, pos, positions.learned_bias, 6**-0.5)
    assert_close(inter.pre_softmax_attn[..., 2:], wanted)
    memory = polar_logits(
        q, module.mem_k.expand(4, -1, -1, -1), pos, torch.zeros(2, dtype=torch.long), positions.learned_bias, 6**-0.5
    )
    assert_close(inter.pre_softmax_attn[..., :2], memory)
    angles, shift = positions(pos)
    longer = torch.cat((randn(*angles.shape[:-2], 3, 6), angles), dim=-2)
    assert_close(module(x, polar_pos_emb=(longer, shift)), module(x, polar_pos_emb=(angles, shift)))


def test_polar_scores_depend_on_distances_only():
    net = stack(polar_pos_emb=True, attn_kv_heads=2)
    x = randn(4, N, 12)
    assert_close(net(x, pos=torch.arange(N) + 11), net(x))
    assert_close(net(x, pos=torch.arange(N) + torch.arange(4)[:, None]), net(x))


def test_polar_bias_starts_uniform():
    torch.manual_seed(0)
    net = Encoder(dim=64, depth=1, heads=8, attn_dim_head=64, polar_pos_emb=True, polar_bias_uniform_init=True)
    bias = net.polar_pos_emb.learned_bias
    assert bias.shape == (8, 1, 64) and bias.requires_grad
    assert -2 * math.pi <= bias.min() < -6 and -0.3 < bias.max() <= 0
    assert abs(bias.mean() + math.pi) < 0.3
    assert (PolarEmbedding(6, 2).learned_bias == 0).all()


def test_polar_excludes_rotary():
    for name in ('rotary_pos_emb', 'rotary_xpos'):
        with pytest.raises(ConfigError, match='polar_pos_emb'):
            stack(polar_pos_emb=True, **{name: True})


# infused


@pytest.mark.parametrize('own', ['rotary_pos_emb', 'polar_pos_emb'])
@pytest.mark.parametrize('bias', ['alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias'])
def test_counted_positions_beside_biases(own, bias):
    """Positions that the stack counts itself are not taken for positions of the user's."""
    net, x = stack(**{own: True, bias: True}), randn(2, N, 12)
    nothing = [h[:, :0] for h in net(x[:, :4], return_hiddens=True)[1].hiddens]
    assert_close(net(x[:, 4:], mems=nothing, pos=torch.arange(4, N)), net(x[:, 4:]))


def sinusoids(pos, dim):
    angles = [pos.double() * 10000 ** (-2 * k / dim) for k in range(dim // 2)]
    return torch.stack([a.sin() for a in angles] + [a.cos() for a in angles], dim=-1)


def test_infused_positions():
    net = stack(position_infused_attn=True, depth=1)
    assert net.disable_abs_pos_emb and net.state_dict()['pia_pos_emb.inv_freq'].shape == (6,)
    x, mem = randn(2, N, 12), randn(2, 2, 12, seed=1)
    attend = net.layers[0][1]
    q = x + sinusoids(torch.arange(2, N + 2), 12)
    keys = torch.cat((mem, x), dim=1)
    k = keys + sinusoids(torch.arange(N + 2), 12)
    parts = [projected(attend, t, n, 4) for t, n in ((q, 'to_q'), (k, 'to_k'), (keys, 'to_v'))]
    logits = parts[0] @ parts[1].transpose(-1, -2) / math.sqrt(6)
    hidden = torch.ones(N, N + 2, dtype=torch.bool).triu(3)
    out = logits.masked_fill(hidden, -torch.inf).softmax(-1) @ parts[2]
    wanted = out.transpose(1, 2).flatten(-2) @ attend.to_out.weight.T
    exact(net.pia_pos_emb.inv_freq, [10000 ** (-2 * i / 12) for i in range(6)])
    given = (net.pia_pos_emb, torch.arange(-2, N))
    assert_close(attend(x, mem=mem, infused_positions=given), wanted)


def test_infused_positions_leave_cross_attention_alone():
    net = stack(position_infused_attn=True, cross_attend=True, depth=1)
    seen = []
    net.layers[1][1].register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    net(randn(2, N, 12), context=randn(2, 3, 12))
    assert 'infused_positions' not in seen[0]
    with pytest.raises(ConfigError, match=r'position_infused_attn.*use_latent_kv'):
        stack(position_infused_attn=True, attn_use_latent_kv=True, attn_dim_latent_kv=4)
