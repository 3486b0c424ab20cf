"""Recurrent modules: token by token, in chunks, as a convolution; their states, alone, as layers, beside attention."""

import copy
import inspect
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import toy_tasks
from costs import grows
from law_cases import randomise
from oracles import (
    assert_close,
    bools,
    diagonal_ssm,
    gated_convolution,
    gated_delta,
    gated_linear_attention,
    griffin_block,
    lightning_attention,
    mamba,
    mamba2,
    matrix_lstm,
    randn,
    rwkv_channel_mix,
    rwkv_time_mix,
    ssm_by_fft,
)
from torch import nn
from toy_tasks import SEEDS

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    XLAutoregressiveWrapper,
    param_groups,
)
from x_transformers.flags import ConfigError
from x_transformers.kernels import recurrences
from x_transformers.recurrent import (
    MODULES,
    DiagonalSSM,
    GatedDelta,
    GatedLinearAttention,
    GriffinBlock,
    LightningAttention,
    Mamba,
    Mamba2,
    MatrixLSTM,
    RWKVChannelMix,
    RWKVTimeMix,
    ShortConvolution,
)

TIGHT = 1e-12
FACTORS = (0.5, 1.5, 0.7, 2.0, 1.2)
MADE = {
    'rwkv': (lambda: RWKVTimeMix(6), rwkv_time_mix),
    'channels': (lambda: RWKVChannelMix(6, mult=1.5), rwkv_channel_mix),
    'ssm': (lambda: DiagonalSSM(6, state=3), diagonal_ssm),
    'short_conv': (lambda: ShortConvolution(6, bias=True), gated_convolution),
    'gated_delta': (
        lambda: GatedDelta(6, heads=4, key_heads=2, dim_head=3, dim_value_head=2, allow_negative=True, eps=1e-3),
        partial(gated_delta, heads=4, width=3, keys=2, most=2.0, eps=1e-3),
    ),
    'delta': (
        lambda: GatedDelta(6, heads=2, dim_head=3, conv=2, decay=None, gate=None, qk_l2norm=False),
        partial(gated_delta, heads=2, width=3, gate=None, unit=False),
    ),
    'kda': (
        lambda: MODULES['kda'](6, heads=2, dim_head=3),
        partial(gated_delta, heads=2, width=3, gate=torch.sigmoid),
    ),
    'bounded': (
        lambda: GatedDelta(6, heads=2, dim_head=3, decay='channel', decay_low=-5, gate='sigmoid'),
        partial(gated_delta, heads=2, width=3, gate=torch.sigmoid, low=-5),
    ),
    'gla': (
        lambda: GatedLinearAttention(6, heads=2, dim_head=2, decay_rank=4, tau=2.0),
        partial(gated_linear_attention, heads=2, width=2, tau=2.0),
    ),
    'lightning': (
        lambda: LightningAttention(6, heads=2, dim_head=3, place=(1, 3)),
        partial(lightning_attention, heads=2, layer=1, layers=3),
    ),
    'mamba2': (
        lambda: Mamba2(6, heads=4, dim_head=3, state=5, groups=2, bias=True),
        partial(mamba2, heads=4, width=3, state=5, groups=2),
    ),
    'mamba2_norm_first': (
        lambda: Mamba2(6, heads=4, dim_head=2, state=3, groups=2, norm='norm_first', rows_scale=FACTORS),
        partial(mamba2, heads=4, width=2, state=3, groups=2, norm='norm_first', scale=FACTORS),
    ),
    'mamba2_without_norm': (
        lambda: Mamba2(6, heads=2, dim_head=3, state=4, norm=None, dt_limits=(0.5, 1.0), conv_bias=False),
        partial(mamba2, heads=2, width=3, state=4, norm=None, limits=(0.5, 1.0)),
    ),
    'mamba': (lambda: Mamba(6, state=3, norm_inputs='affine', bias=True), mamba),
    'mlstm': (lambda: MatrixLSTM(6, heads=2, dim_head=2, dim_value_head=3), partial(matrix_lstm, heads=2)),
    'rg_lru': (lambda: GriffinBlock(6, width=8, heads=2), griffin_block),
    'rg_lru, plain': (lambda: GriffinBlock(6, width=8, heads=2, conv=2, bias=False), griffin_block),
    'mamba, plain': (lambda: Mamba(6, state=2, dt_rank=2, expand=1, conv=2, conv_bias=False), mamba),
}
EACH = pytest.mark.parametrize('name', MADE)
HOLES = torch.tensor([[0, 0, 1, 0, 1, 1, 1, 0, 1], [1, 0, 1, 1, 0, 1, 0, 0, 0]], dtype=torch.bool)


def module(name, seed=0):
    torch.manual_seed(seed)
    return randomise(MADE[name][0]().double())


@EACH
@pytest.mark.parametrize('graph', [False, True])
def test_token_by_token(name, graph, monkeypatch):
    """With gradients, for lengths within a chunk and beyond; by the way of compiled graphs, too."""
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: graph)
    made, oracle = module(name), MADE[name][1]
    if made.span is not None:
        monkeypatch.setattr(type(made), 'span', 20)
    for n in (1, 5, 40):
        x = randn(2, n, 6).requires_grad_()
        weights = dict(made.named_parameters())
        found, wanted = made(x)[0], oracle(weights, x)
        assert_close(found, wanted, f'{n} tokens', tolerance=TIGHT)
        inputs = [x, *weights.values()]
        grads = (torch.autograd.grad(t.sin().sum(), inputs, materialize_grads=True, allow_unused=True)
                 for t in (found, wanted))  # fmt: skip
        for one, other in zip(*grads, strict=True):
            assert_close(one, other, 'gradient', tolerance=1e-10)


def test_a_convolution(monkeypatch):
    """By a fast Fourier transform, for chunks of any length, and in a graph; the values that it begins with, too."""
    x = randn(2, 300, 6)
    for made in (module('ssm'), DiagonalSSM(6, state=5).double()):
        for size in (128, 7, 'those of a graph'):
            monkeypatch.setattr(DiagonalSSM, 'chunk', size)
            monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: isinstance(DiagonalSSM.chunk, str))
            assert_close(made(x)[0], ssm_by_fft(dict(made.named_parameters()), x), f'chunks of {size}', tolerance=1e-10)


@pytest.mark.parametrize('graph', [False, True])
def test_scans_of_many(graph, monkeypatch):
    """Chunks of chunks, too."""
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: graph)
    decay, x, start = randn(600, 1, 2).sigmoid(), randn(600, 3, 2), randn(3, 2)
    wanted = [start]
    for a, own in zip(decay, x, strict=True):
        wanted.append(a * wanted[-1] + own)
    assert_close(recurrences.scan(decay, x, start), torch.stack(wanted[1:]), tolerance=TIGHT)
    levels = [start]
    for a, own in zip(decay, x, strict=True):
        levels.append(torch.maximum(levels[-1] - a, own))
    found = recurrences.peaks(decay.expand_as(x), x, start)
    assert_close(found, torch.stack(levels[1:]), tolerance=TIGHT)


@EACH
@pytest.mark.parametrize('graph', [False, True])
def test_in_parts(name, graph, monkeypatch):
    """The state that a part leaves is all that the next one needs, and of fixed size; no token is one, too."""
    monkeypatch.setattr(torch.compiler, 'is_compiling', lambda: graph)
    made, x, sizes = module(name), randn(2, 42, 6), set()
    whole, last = made(x)
    outs, state = [], None
    for start, stop in ((0, 1), (1, 1), (1, 3), (3, 20), (20, 26), (26, 42)):
        out, state = made(x[:, start:stop], state)
        outs.append(out)
        sizes.add(tuple(t.shape for t in state))
    assert_close(torch.cat(outs, dim=1), whole, tolerance=TIGHT)
    assert_close(numbers_of(name, state), numbers_of(name, last), 'state', tolerance=TIGHT)
    assert len(sizes) == 1


@EACH
def test_padding_is_passed_over(name):
    """In front, inside and behind; a part of padding alone leaves the state as it was."""
    made, x = module(name), randn(2, 9, 6)
    out, last = made(torch.where(HOLES.unsqueeze(-1), x, 1e3), mask=HOLES)
    first, state = made(x[:, :4], mask=HOLES[:, :4])
    second, state = made(x[:, 4:], state, mask=HOLES[:, 4:])
    none, after = made(x, state, mask=torch.zeros_like(HOLES))
    assert none.isfinite().all()
    for row in range(2):
        wanted, alone = made(x[row : row + 1, HOLES[row]])
        for found in (out, torch.cat((first, second), dim=1)):
            assert_close(found[row, HOLES[row]], wanted[0], tolerance=TIGHT)
        for held in (last, state, after):
            assert_close(numbers_of(name, held)[row], numbers_of(name, alone)[0], 'state', tolerance=TIGHT)


def numbers_of(name, state):
    """Every number of a state, of sums whatever their level:  b x."""
    if name == 'rwkv':
        state = [state[0] * state[1].exp().unsqueeze(1), state[2]]
    return torch.cat([t.flatten(1) for t in state], dim=1)


def test_the_first_token_of_griffin():
    """It enters whole, also behind a part of padding alone; the derivative of the root of the others has a bound."""
    made, x = module('rg_lru'), randn(1, 4, 6)
    _, state = made(x[:, :2], mask=torch.zeros(1, 2).bool())
    assert_close(made(x[:, 2:], state)[0], made(x[:, 2:])[0], tolerance=TIGHT)
    edges = torch.tensor([0.0, 1e-9, 2e-7, 3e-7, 1.0], dtype=torch.float64, requires_grad=True)
    roots = inspect.getmodule(GriffinBlock).bounded_sqrt(edges)
    assert_close(roots, edges.sqrt(), tolerance=TIGHT)
    (slopes,) = torch.autograd.grad(roots.sum(), edges)
    assert_close(slopes, (0.5 / edges.clamp(min=2.5e-7).sqrt()).detach(), tolerance=1e-9)


@EACH
def test_documents(name):
    """Of any order, and with padding: each is as if it stood alone."""
    made, x = module(name), randn(2, 40, 6)
    ids = torch.stack((torch.arange(40) // 17, torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))))
    for keep in (1.0, 0.7):
        mask = bools(2, 40, keep=keep)
        out, _ = made(x, document_ids=ids, mask=None if mask.all() else mask)
        for row in range(2):
            for document in range(3):
                own = (ids[row] == document) & mask[row]
                assert_close(out[row, own], made(x[row : row + 1, own])[0][0], tolerance=TIGHT)
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with `state`: documents are complete'):
        made(x, made(x)[1], document_ids=ids)


def test_keys_of_any_size():
    """A hundred times what is usual, growing or falling: finite in float32, with the numbers that float64 gives."""
    made = module('rwkv')
    with torch.no_grad():
        made.to_k.weight.mul_(100)
    wide = randn(2, 70, 6).float().double()
    for x in (wide, wide * torch.linspace(0.01, 3, 70)[:, None], wide * torch.linspace(3, 0.01, 70)[:, None]):
        assert_close(made(x)[0], rwkv_time_mix(dict(made.named_parameters()), x), tolerance=TIGHT)
        out = made.float()(x.float())[0]
        grads = torch.autograd.grad(out.sum(), [*made.parameters()])
        assert out.isfinite().all() and all(grad.isfinite().all() for grad in grads)
        made.double()
    # keys themselves, so that float32 rounds none of them
    k, v = 100 * wide.float().transpose(0, 1), randn(70, 2, 6).float()
    found = wkv_of(made.float(), k, v)
    assert_close(found.double(), wkv_of(made.double(), k.double(), v.double()), tolerance=1e-4)


def wkv_of(made, k, v):
    sums, level, _ = made.state_of(v.transpose(0, 1))
    w = made.time_decay.exp().expand_as(k)
    return made.wkv(k, v, w, recurrences.peaks(w.detach(), k, level), (sums, level), None)[0]


@EACH
def test_derivatives_of_derivatives(name):
    made = module(name).requires_grad_(False)
    x = (0.5 * randn(1, 4, 6)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: made(x)[0], x, fast_mode=True)


@EACH
def test_gradients_know_nothing_of_padding(name):
    """Whatever stands there, of a module alone, too."""
    made, x = module(name), randn(2, 9, 6)
    found = []
    for filler in (0.0, torch.nan):
        given = x.masked_fill(~HOLES[..., None], filler).requires_grad_()
        out = made(given, mask=HOLES)[0][HOLES]
        found.append([out, *torch.autograd.grad(out.sin().sum(), [given, *made.parameters()])])
    for one, other in zip(*found, strict=True):
        assert_close(other, one, tolerance=TIGHT)


@EACH
def test_no_rows(name):
    made, x = module(name), randn(0, 5, 6)
    for inputs in ({}, dict(mask=torch.ones(0, 5).bool()), dict(document_ids=torch.zeros(0, 5).long())):
        assert made(x, **inputs)[0].shape == x.shape


def test_values_at_first():
    made, channels = RWKVTimeMix(8), RWKVChannelMix(8)
    assert made.time_decay[0] == -6 and made.time_decay[-1] == -1 and made.time_decay.diff().std() < 1e-6
    assert_close(made.time_first, torch.full((8,), math.log(0.3)))
    for mix in (made.mix_r, made.mix_k, made.mix_v, channels.mix_r, channels.mix_k):
        assert_close(mix, torch.arange(8) / 8)
    assert channels.to_k.weight.shape == (32, 8)
    ssm = DiagonalSSM(200)
    assert ssm.b.shape == ssm.c.shape == (200, 64, 2) and (ssm.d == 1).all()
    assert_close(ssm.log_a_real.exp(), torch.full((200, 64), 0.5))
    assert_close(ssm.a_imag / math.pi, torch.arange(64.0).expand(200, -1), tolerance=1e-6)
    lstm = MatrixLSTM(8, heads=4)
    assert not any(layer.weight.any() for layer in (lstm.to_input, lstm.to_forget, lstm.to_gate))
    assert lstm.to_input.bias.tolist() == [-10.0] * 4 and lstm.to_forget.bias.tolist() == [3.0, 4.0, 5.0, 6.0]
    torch.manual_seed(0)
    griffin = GriffinBlock(512)
    most = (-8 * nn.functional.softplus(griffin.recurrent_param)).exp()
    assert 0.81**4 <= most.min() < 0.46 and 0.98 < most.max() <= 0.9921
    assert griffin.input_gate_weight.shape == (2, 256, 256)
    steps = torch.cat((ssm.log_dt.exp(), nn.functional.softplus(Mamba(100).dt_proj.bias)))
    assert 0.999e-3 <= steps.min() < 2e-3 and 0.05 < steps.max() <= 0.1001
    mamba = Mamba(32)
    assert_close(mamba.A_log.exp(), torch.arange(1.0, 17).expand(64, -1), tolerance=1e-5)
    assert (
        (mamba.D == 1).all() and mamba.x_proj.weight.shape == (34, 64) and mamba.dt_proj.weight.abs().max() <= 2**-0.5
    )
    decaying = param_groups(mamba)[0]['param_names']
    assert decaying == [f'{name}.weight' for name in ('in_proj', 'conv', 'x_proj', 'dt_proj', 'out_proj')]


def test_values_at_first_of_matrix_mixers():
    """Decays and step sizes are drawn as the papers draw them, and none of these parameters decays by its weight."""
    heads = 400
    for made, low in (
        (GatedDelta(4, heads=heads, dim_head=1), 0),
        (MODULES['kda'](4, heads=heads, dim_head=1), 1),
        (Mamba2(4, heads=heads, dim_head=1, state=2), 1),
    ):
        steps = F.softplus(made.dt_bias)
        assert 0.9e-3 < steps.min() < 2e-3 and 0.05 < steps.max() < 0.101 and 5e-3 < steps.median() < 2e-2
        rates = made.A_log.exp()
        assert low <= rates.min() < low + 0.5 and 15.5 < rates.max() <= 16
        kept = {name for group in param_groups(made) if group['weight_decay'] == 0 for name in group['param_names']}
        assert kept >= {'A_log', 'dt_bias', 'norm_weight'} & set(dict(made.named_parameters()))
    assert 'D' in kept and (made.D == 1).all() and (made.norm_weight == 1).all()
    net = stack(layers=('r', 'f', 'a', 'f', 'r'), recurrent_module='lightning')
    assert [layer[1].module.place for kind, layer in zip(net.layer_types, net.layers, strict=True) if kind == 'r'] == [
        (0, 3),
        (2, 3),
    ]


@pytest.mark.parametrize('name', ['gated_delta', 'kda', 'gla', 'lightning', 'mamba2'])
def test_states_in_half_precision(name):
    """A sum of many tokens has the digits of float32; so have steps of one token, and autocast."""
    made, x = module(name).float(), randn(1, 90, 6).float()
    wanted = made(x)[0]
    half = copy.deepcopy(made).bfloat16()
    first, state = half(x[:, :89].bfloat16())
    last, state = half(x[:, 89:].bfloat16(), state)
    assert state[-1].dtype == torch.float32 and first.dtype == torch.bfloat16
    assert_close(torch.cat((first, last), dim=1).float(), wanted, tolerance=0.3)
    with torch.autocast('cpu', torch.bfloat16):
        out, state = made(x)
    assert state[-1].dtype == torch.float32
    assert_close(out.float(), wanted, tolerance=0.3)


@EACH
def test_costs(name):
    made = module(name)
    # where chunks grow no longer, and are few
    first = {'ssm': 8192, 'rwkv': 128, 'channels': 128, 'short_conv': 128}.get(name, 512)
    grows(lambda n: made(randn(1, n, 6).requires_grad_())[0], first)


# as layers


def stack(build=Decoder, recurrent_module='rwkv', layers=('r', 'f', 'a', 'r'), **flags):
    torch.manual_seed(0)
    made = build(dim=6, heads=2, attn_dim_head=3, custom_layers=layers, recurrent_module=recurrent_module, **flags)
    return randomise(made.double()).eval()


STACKS = {
    'rwkv': dict(recurrent_module='rwkv'),
    'ssm': dict(recurrent_module='ssm'),
    'short_conv': dict(recurrent_module='short_conv'),
    'gated_delta': dict(recurrent_module='gated_delta', recurrent_kwargs=dict(heads=2, dim_head=3)),
    'kda': dict(recurrent_module='kda', recurrent_kwargs=dict(heads=2, dim_head=3)),
    'gla': dict(recurrent_module='gla', recurrent_kwargs=dict(heads=2)),
    'lightning': dict(recurrent_module='lightning', recurrent_kwargs=dict(heads=2, dim_head=3)),
    'mamba2': dict(recurrent_module='mamba2', recurrent_kwargs=dict(heads=2, dim_head=3, state=4)),
    'mamba': dict(recurrent_module='mamba', recurrent_kwargs=dict(norm_inputs=True)),
    'rg_lru': dict(recurrent_module='rg_lru'),
    'beside': dict(recurrent_module=None, layers=('a', 'f'), attn_hybrid_module=DiagonalSSM(6, state=3)),
    'added': dict(
        recurrent_module=None,
        layers=('a', 'f'),
        attn_hybrid_module='gated_delta',
        attn_hybrid_merge='sum',
        attn_hybrid_kwargs=dict(heads=2, dim_head=3),
        attn_hybrid_factors=(0.5, None, 2.0, 0.7),
    ),
}


@pytest.mark.parametrize('kind', STACKS)
def test_what_a_cache_can_do(kind, tmp_path):
    """In parts, reordered, for several rows each, saved, and cut to where the last part began."""
    net = stack(**STACKS[kind])
    model = TransformerWrapper(num_tokens=9, max_seq_len=16, attn_layers=net).double().eval()
    ids = torch.randint(0, 9, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, trace = model(ids), None
        for stop in (4, 7):
            _, trace = model(ids[:, :stop], cache=trace, return_intermediates=True)
        cache = trace.cache
        assert_close(model(ids, cache=cache), whole[:, 7:], tolerance=TIGHT)
        assert_close(model(ids.flip(0), cache=cache.reorder(torch.tensor([1, 0]))), whole.flip(0)[:, 7:])
        assert_close(model(ids.repeat_interleave(3, 0), cache=cache.expand(3)), whole.repeat_interleave(3, 0)[:, 7:])
        cache.save(tmp_path / 'cache')
        assert_close(model(ids, cache=type(cache).load(tmp_path / 'cache')), whole[:, 7:])
        assert_close(model(ids, cache=cache.crop(4)), whole[:, 4:])
        with pytest.raises(ValueError, match='which is known after 4 and 7 tokens only'):
            cache.crop(5)
        real = torch.arange(12) >= torch.tensor([[0], [3]])
        whole, trace = model(ids, mask=real), model(ids[:, :6], mask=real[:, :6], return_intermediates=True)[1]
        assert_close(model(ids, mask=real, cache=trace), whole[:, 6:], tolerance=TIGHT)
    wrapper = AutoregressiveWrapper(model)
    made = wrapper.generate(ids[:, :3], 8, temperature=0.0)
    assert torch.equal(made, wrapper.generate(ids[:, :3], 8, temperature=0.0, cache_kv=False))


class Mean(nn.Module):
    """A module of a user's own: the mean so far."""

    def forward(self, x, state=None):
        total, count = (torch.zeros_like(x[:, :1]), x.new_zeros(x.shape[0], 1, 1)) if state is None else state
        total, count = total + x.cumsum(dim=1), count + torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
        return total / count, (total[:, -1:], count[:, -1:])


def test_one_module_for_each_layer():
    """By names or built, with keywords of their own, which a config holds."""
    own = Mean()
    net = stack(
        layers=('r', 'f', 'r', 'a', 'r'),
        recurrent_module=('ssm', own, 'short_conv'),
        recurrent_kwargs=(dict(state=5), None, dict(conv=2)),
    )
    made = [layer[1].module for kind, layer in zip(net.layer_types, net.layers, strict=True) if kind == 'r']
    assert [type(module) for module in made] == [DiagonalSSM, Mean, ShortConvolution]
    assert made[0].size == 5 and made[2].conv.kernel_size == (2,)
    flags = dict(layers=('r', 'f', 'r'), recurrent_module=('ssm', 'ssm'), recurrent_kwargs=dict(state=3))
    again = TransformerWrapper.from_config(
        TransformerWrapper(num_tokens=9, max_seq_len=9, attn_layers=stack(**flags)).config
    )
    assert [
        layer[1].module.size for kind, layer in zip('rfr', again.attn_layers.layers, strict=True) if kind == 'r'
    ] == [3, 3]


def test_modules_of_ones_own():
    own = Mean()
    net, x = stack(recurrent_module=own), randn(2, 7, 6)
    assert net.layers[0][1].module is not own
    first, trace = net(x[:, :4], return_hiddens=True)
    assert_close(torch.cat((first, net(x, cache=trace)), dim=1), net(x), tolerance=TIGHT)
    with pytest.raises(
        ValueError, match='`document_ids` cannot be combined with `recurrent_module`: a module of your own'
    ):
        net(x, document_ids=torch.zeros(2, 7).long())


class Gives(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.given = given

    def forward(self, x, state=None):
        return self.given(x)


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        (lambda x: x, r'gave shape \(2, 3, 6\) and no state, it must be a pair of \(2, 3, 6\) and what it knows'),
        (lambda x: (x[..., :2], None), r'gave shape \(2, 3, 2\), it must be a pair'),
        (lambda x: (None, x), 'gave None, it must be a pair'),
    ],
)
def test_modules_that_give_something_else(given, words):
    """Two rows of a batch are no pair."""
    with pytest.raises(ValueError, match=f'`recurrent_module` {words}'):
        stack(recurrent_module=Gives(given))(randn(2, 3, 6))


def test_segments():
    """Memories are those of attention: states go on by a cache."""
    for layers in (('r', 'f'), ('r', 'a')):
        net = stack(layers=layers)
        model = TransformerWrapper(num_tokens=9, max_seq_len=4, max_mem_len=4, attn_layers=net)
        with pytest.raises(ValueError, match="`max_mem_len` cannot be combined with layers of kind 'r': they do not"):
            XLAutoregressiveWrapper(model.double())(torch.zeros(1, 9).long())


@EACH
def test_states_of_another_shape(name):
    made, x = module(name), randn(1, 3, 6)
    _, state = made(x)
    for other in (state[0], [*state, state[0]], [t[..., :1] for t in state], ['a'], 3):
        with pytest.raises(ValueError, match=r'`state` must be that of the part before, tensors of.*got .*'):
            made(x, other)


@pytest.mark.parametrize('name', ['rwkv', 'ssm'])
def test_beside_attention(name):
    """As `attn_hybrid_module`: norms of both, and a state for the cache; padding is passed over."""
    kind = {'rwkv': RWKVTimeMix, 'ssm': DiagonalSSM}[name]
    given = kind(6, dim_out=8)
    attn = randomise(Attention(6, heads=2, dim_head=4, causal=True, hybrid_module=given).double()).eval()
    x, made = randn(2, 9, 6), []
    beside = attn.hybrid_module.fn
    beside.register_forward_hook(lambda module, args, out: made.append(out[0]))
    whole = attn(x)
    assert_close(made[0], beside(x)[0])
    outs, trace = [], None
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        out, trace = attn(x[:, start:stop], cache=trace, return_intermediates=True)
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), whole, tolerance=TIGHT)
    out = attn(x, mask=HOLES)
    for row in range(2):
        assert_close(out[row, HOLES[row]], attn(x[row : row + 1, HOLES[row]])[0], tolerance=TIGHT)


REFUSED = {
    'state': (lambda: DiagonalSSM(4, state=0), '`state` must be an integer of at least 1, got 0'),
    'key heads': (
        lambda: GatedDelta(4, heads=4, key_heads=3),
        '`key_heads` must divide `heads`, got key_heads=3 and heads=4',
    ),
    'decay': (lambda: GatedDelta(4, decay='token'), "`decay` must be one of 'head', 'channel'"),
    'no decay': (
        lambda: GatedDelta(4, decay=None, decay_low=-5.0),
        '`decay_rank` and `decay_low` cannot be combined with `decay=None`: nothing fades',
    ),
    'low': (lambda: GatedDelta(4, decay_low=5.0), '`decay_low` must be a number below 0'),
    'rank': (lambda: GatedDelta(4, decay_rank='dim'), '`decay_rank` must be'),
    'gate': (lambda: GatedDelta(4, gate='relu'), "`gate` must be one of 'silu', 'sigmoid'"),
    'no gate': (lambda: GatedDelta(4, gate=None, gate_rank=2), '`gate_rank` cannot be combined with `gate=None`'),
    'groups': (lambda: Mamba2(4, heads=4, groups=3), '`groups` must divide `heads`, got groups=3 and heads=4'),
    'norm': (lambda: Mamba2(4, norm='gate'), "`norm` must be one of 'gate_first', 'norm_first'"),
    'limits': (lambda: Mamba2(4, dt_limits=(1.0, 0.5)), '`dt_limits` must be a pair of numbers, of which the first'),
    'scale': (lambda: Mamba2(4, rows_scale=(1.0, 2.0)), '`rows_scale` must be five numbers, for z, x, B, C and dt'),
    'tau': (lambda: GatedLinearAttention(4, tau=0.0), '`tau` must be a positive number'),
    'heads': (lambda: LightningAttention(4, heads=0), '`heads` must be an integer of at least 1'),
    'norms': (
        lambda: Mamba(4, norm_inputs='rms'),
        "`norm_inputs` must be one of False, True, 'affine', got 'rms'",
    ),
    'cap': (
        lambda: MatrixLSTM(6, gate_soft_cap=40),
        '`gate_soft_cap` must be a number in 0 .. 30, got 40',
    ),
    'blocks': (
        lambda: GriffinBlock(6, heads=4),
        '`heads` must divide the width, got heads=4 and width=6',
    ),
    'direction': (
        lambda: stack(Encoder),
        '`recurrent_module` needs a causal stack: its state depends on earlier tokens',
    ),
    'keyword': (
        lambda: stack(recurrent_module='ssm', recurrent_kwargs=dict(stat=4)),
        "`recurrent_kwargs` of 'ssm' may have `state`, got `stat`, did you mean `state`?",
    ),
    'count': (
        lambda: stack(recurrent_module=('ssm', 'ssm', 'ssm')),
        "`recurrent_module` must have an entry for each of the 2 layers of kind 'r', got 3",
    ),
    'built': (
        lambda: stack(recurrent_module=Mean(), recurrent_kwargs=dict(state=4)),
        '`recurrent_kwargs` cannot be combined with a custom `recurrent_module`: it is built already',
    ),
    'nothing': (lambda: stack(recurrent_module=None), "`custom_layers` has recurrent layers ('r'), which need `recurr"),
    'name': (lambda: stack(recurrent_module='lstm'), "`recurrent_module` must be one of 'rwkv', 'ssm'"),
    'mems': (
        lambda: stack()(randn(1, 2, 6), mems=[randn(1, 2, 6)]),
        "`mems` cannot be combined with layers of kind 'r': they do not read memories",
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_refusals(name):
    make, words = REFUSED[name]
    with pytest.raises((ConfigError, ValueError)) as error:
        make()
    assert str(error.value).startswith(words)


def test_a_module_without_its_layers(logged):
    Decoder(dim=6, depth=1, heads=2, recurrent_module='rwkv')
    assert any("`recurrent_module` has no effect without layers of kind 'r'" in line for line in logged)


# beside another library


def test_transformers_rwkv():
    """A tiny block with weights of its own, and the whole stack of it."""
    found = pytest.importorskip('transformers')
    torch.manual_seed(0)
    config = found.RwkvConfig(
        vocab_size=11, context_length=32, hidden_size=8, num_hidden_layers=2, attention_hidden_size=8,
        intermediate_size=12,
    )  # fmt: skip
    theirs = randomise(found.RwkvModel(config)).eval()
    names = dict(time_mix_key='mix_k', time_mix_value='mix_v', time_mix_receptance='mix_r', key='to_k', value='to_v')
    names |= dict(receptance='to_r', output='to_out', time_decay='time_decay', time_first='time_first')
    x = torch.randn(2, 19, 8)
    with torch.no_grad():
        for block in theirs.blocks:
            for own, part in ((RWKVTimeMix(8), block.attention), (RWKVChannelMix(8, 1.5), block.feed_forward)):
                weights = {key.split('.')[0]: (key, t) for key, t in part.state_dict().items()}
                ours = {names[head] + key[len(head) :]: t.reshape(t.shape[-1]) if 'mix' in key else t
                        for head, (key, t) in weights.items()}  # fmt: skip
                own.load_state_dict(ours)
                assert_close(own(x)[0], part(x)[0], tolerance=1e-5)


HF_MIXERS = {
    'mamba': ('MambaMixer', 'MambaConfig', dict(state_size=5), False),
    'falcon_mamba': ('FalconMambaMixer', 'FalconMambaConfig', dict(state_size=5), True),
    'jamba': ('JambaMambaMixer', 'JambaConfig', dict(mamba_d_state=5, mamba_dt_rank=3), 'affine'),
}


@pytest.mark.slow
@pytest.mark.parametrize('kind', HF_MIXERS)
def test_transformers_mamba(kind, monkeypatch):
    """Their full pass, which computes in float32."""
    found = pytest.importorskip('transformers')
    mixer, config, sizes, norm_inputs = HF_MIXERS[kind]
    module = __import__(f'transformers.models.{kind}.modeling_{kind}', fromlist=[mixer])
    torch.manual_seed(0)
    config = getattr(found, config)(hidden_size=16, num_hidden_layers=1, **sizes)
    mixer = getattr(module, mixer)  # one draws the weights of norms that it does not have
    monkeypatch.setattr(mixer, f'init_{kind}_weights', lambda self: None, raising=False)
    theirs = randomise(mixer(config, 0)).eval()
    own = Mamba(16, state=5, dt_rank=theirs.dt_proj.weight.shape[1], norm_inputs=norm_inputs)
    norms = dict(dt_layernorm='norms.0', b_layernorm='norms.1', c_layernorm='norms.2', conv1d='conv')
    own.load_state_dict({
        '.'.join((norms.get(head, head), *rest)): t
        for head, *rest, t in ((*key.split('.'), t) for key, t in theirs.state_dict().items())
    })  # fmt: skip
    x = torch.randn(2, 70, 16)
    with torch.no_grad():
        wanted = theirs(x)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        assert_close(own(x)[0], wanted, tolerance=1e-5 * wanted.abs().max().item())


@pytest.mark.slow
def test_transformers_griffin():
    found = pytest.importorskip('transformers')
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = found.RecurrentGemmaConfig(hidden_size=16, lru_width=24, num_attention_heads=4, num_hidden_layers=1)
    theirs = randomise(RecurrentGemmaRecurrentBlock(config, 0)).eval()
    own, x = GriffinBlock(16, width=24, heads=4), torch.randn(2, 40, 16)
    own.load_state_dict({
        key.removeprefix('rg_lru.').replace('conv_1d', 'conv'): t.view_as(own.state_dict()[name])
        for key, t in theirs.state_dict().items()
        for name in (key.removeprefix('rg_lru.').replace('conv_1d', 'conv'),)
    })  # fmt: skip
    with torch.no_grad():
        wanted = theirs(x, torch.arange(40)[None], torch.ones(2, 40), use_cache=False)[0]
        assert_close(own(x)[0], wanted, tolerance=1e-5 * wanted.abs().max().item())


# what is learned


@pytest.mark.slow
@pytest.mark.parametrize('layers', [('r', 'f') * 2, ('a', 'f')])
@SEEDS
def test_the_latest_value(layers, seed):
    """As layers, and beside attention."""
    torch.manual_seed(seed)
    task = toy_tasks.latest()
    flags = dict(recurrent_module='rwkv') if 'r' in layers else dict(attn_hybrid_module=RWKVTimeMix(48))
    net = toy_tasks.net_for(task, Decoder, custom_layers=layers, depth=None, **flags)
    assert toy_tasks.learned(net, task, steps=400, b=32) > 0.95
