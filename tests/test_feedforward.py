"""`FeedForward` against its formulas: values and gradients."""

import json
import math

import oracles
import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised
from torch import nn

from x_transformers import Decoder, FeedForward
from x_transformers.flags import ConfigError


class Cubed(nn.Module):
    def forward(self, t):
        return t**3


ACTIVATIONS = {
    'gelu': {},
    'swish': dict(swish=True),
    'relu_squared': dict(relu_squared=True),
    'custom_activation': dict(custom_activation=Cubed()),
}
SHAPES = {
    'plain': {},
    'glu': dict(glu=True),
    'glu_mult_bias': dict(glu=True, glu_mult_bias=True),
    'post_act_ln': dict(post_act_ln=True),
    'glu_post_act_ln': dict(glu=True, post_act_ln=True, glu_mult_bias=True),
    'no_bias': dict(no_bias=True),
    'glu_no_bias': dict(glu=True, no_bias=True),
    'mult': dict(mult=2.5),
    'dim_out': dict(dim_out=3, mult=1),
}


@pytest.mark.parametrize('n', [1, 7])
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_formula(activation, shape, n):
    flags = {**ACTIVATIONS[activation], **SHAPES[shape]}
    module = randomised(FeedForward(dim=5, **flags))
    assert_same(module, module, lambda w, x: oracles.feedforward(w, x, **flags), randn(2, n, 5))


def clamped(x, bound):
    return bound * torch.tanh(x / bound)


def inner(w, x, name='ff.0.0'):
    return x @ w[f'{name}.weight'].T + w[f'{name}.bias']


def output(w, h, at=2):
    return h @ w[f'ff.{at}.weight'].T + w[f'ff.{at}.bias']


@pytest.mark.parametrize('bound', [None, 0.7])
def test_solu(bound):
    """transformer-circuits.pub/2022/solu: norm(softmax(h) h)."""
    module = randomised(FeedForward(dim=5, solu=True, softclamp_value=bound))
    name = 'ff.0.1' if bound is None else 'ff.0.2'

    def oracle(w, x):
        h = inner(w, x) if bound is None else clamped(inner(w, x), bound)
        return output(w, oracles.layer_norm(h.softmax(dim=-1) * h, w[f'{name}.norm.gamma']))

    assert_same(module, module, oracle, randn(2, 7, 5))
    assert (FeedForward(dim=5, solu=True).state_dict()['ff.0.1.norm.gamma'] == 1).all()


def test_gated_solu():
    module = randomised(FeedForward(dim=5, solu=True, glu=True))

    def oracle(w, x):
        u, g = inner(w, x, 'ff.0.proj').chunk(2, dim=-1)
        return output(w, u * oracles.layer_norm(g.softmax(dim=-1) * g, w['ff.0.act.norm.gamma']))

    assert_same(module, module, oracle, randn(2, 7, 5))


@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_soft_clamp_in_front_of_the_activation(activation):
    module = randomised(FeedForward(dim=5, softclamp_value=0.7, **ACTIVATIONS[activation]))

    def oracle(w, x):
        return output(w, module.ff[0][2](clamped(inner(w, x), 0.7)))

    assert_same(module, module, oracle, randn(2, 7, 5))


def test_xielu():
    """arXiv:2411.13010: quadratic above zero, exponential below, with two learned numbers; both are 0.8 at first."""
    module = randomised(FeedForward(dim=5, activation='xielu'))

    def oracle(w, x):
        p, q = w['ff.0.1.alpha_p'][0].exp().log1p(), 0.5 + w['ff.0.1.alpha_n'][0].exp().log1p()
        h = inner(w, x)
        parts = [p * t * t + t / 2 if t > 0 else q * (t.exp() - 1 - t) + t / 2 for t in h.flatten()]
        return output(w, torch.stack(parts).view_as(h))

    assert_same(module, module, oracle, randn(2, 7, 5))
    act, x = FeedForward(dim=5, activation='xielu').ff[0][1], torch.tensor([-1e4, -1.0, 0.0, 2.0], requires_grad=True)
    below = 0.8 * (math.exp(-1) - 1 + 1) - 0.5
    torch.testing.assert_close(act(x)[1:], torch.tensor([below, -0.8e-6, 0.8 * 4 + 1]))
    big = torch.tensor([1e3], requires_grad=True)
    act(torch.cat((x, big))).sum().backward()
    assert all(t.grad.isfinite().all() for t in (x, big, act.alpha_p, act.alpha_n))


@pytest.mark.slow
def test_xielu_of_transformers():
    activations = pytest.importorskip('transformers.activations')
    act, theirs = FeedForward(dim=5, activation='xielu').double().ff[0][1], activations.ACT2FN['xielu'].double()
    with torch.no_grad():
        act.alpha_p.copy_(theirs.alpha_p.fill_(0.3))
        act.alpha_n.copy_(theirs.alpha_n.fill_(-0.7))
    x = 3 * randn(4, 500)
    assert_close(act(x), theirs(x), tolerance=1e-10)


@pytest.mark.parametrize('flags', [dict(swish=True), dict(activation='gelu_tanh', glu_clamp=0.4)], ids=str)
def test_sparse_gates(flags):
    module = randomised(FeedForward(dim=5, glu=True, gate_sparsity=0.75, **flags))
    act = nn.functional.silu if 'swish' in flags else lambda g: nn.functional.gelu(g, approximate='tanh')

    def oracle(w, x):
        u, g = inner(w, x, 'ff.0.proj').chunk(2, dim=-1)
        u, g = (u.clamp(-0.4, 0.4), g.clamp(max=0.4)) if 'glu_clamp' in flags else (u, g)
        mean = g.mean(dim=-1, keepdim=True)
        std = ((g - mean) ** 2).mean(dim=-1, keepdim=True).sqrt()
        z = math.sqrt(2) * torch.erfinv(torch.tensor(2 * 0.75 - 1, dtype=g.dtype))
        return output(w, u * act(torch.where(g > mean + z * std, g - mean - z * std, 0.0)))

    assert_same(module, module, oracle, randn(2, 7, 5))


def test_the_share_of_closed_gates():
    act = FeedForward(dim=5, glu=True, gate_sparsity=0.95, activation='relu').ff[0].act
    gates = act(3 * randn(2, 5000, seed=1) + 7)
    assert abs((gates == 0).double().mean() - 0.95) < 0.01
    assert act(torch.full((1, 9), 4.0, requires_grad=True)).sum() == 0  # gates that are equal have no spread


@pytest.mark.parametrize('activation', ['gelu', 'silu', 'relu2'])
def test_hard_bounds_of_a_gated_unit(activation):
    module = randomised(FeedForward(dim=5, glu=True, glu_clamp=0.3, activation=activation, glu_mult_bias=True))
    act = dict(gelu=nn.functional.gelu, silu=nn.functional.silu, relu2=lambda g: g.relu() ** 2)[activation]

    def oracle(w, x):
        u, g = inner(w, x, 'ff.0.proj').chunk(2, dim=-1)
        return output(w, torch.clamp(u, -0.3, 0.3) * act(torch.clamp(g, max=0.3)) * w['ff.0.mult_bias'])

    assert_same(module, module, oracle, randn(2, 7, 5))


@pytest.mark.parametrize('flags', [dict(), dict(glu=True, relu_squared=True, inner_norm_eps=0.3)], ids=str)
def test_norm_before_the_output(flags):
    module = randomised(FeedForward(dim=5, inner_norm='rms', **flags))

    def oracle(w, x):
        if 'glu' in flags:
            u, g = inner(w, x, 'ff.0.proj').chunk(2, dim=-1)
            h = u * g.relu() ** 2
        else:
            h = nn.functional.gelu(inner(w, x))
        h = h / ((h * h).mean(dim=-1, keepdim=True) + flags.get('inner_norm_eps', 1e-5)).sqrt() * w['ff.1.g']
        return output(w, h, at=3)

    assert_same(module, module, oracle, randn(2, 7, 5))


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(glu_clamp=1.0, glu_softclamp=True), '`glu_clamp` cannot be combined with `glu_softclamp`'),
        (dict(glu_clamp=1.0, swiglu_limit=1.0), '`swiglu_limit` cannot be combined with `glu_clamp`'),
        (dict(gate_sparsity=0.5, glu_softclamp=True), '`gate_sparsity` cannot be combined with `glu_softclamp`'),
        (dict(gate_sparsity=0.5, swiglu_limit=1.0), '`gate_sparsity` cannot be combined with `swiglu_limit`'),
        (dict(inner_norm='rms', post_act_ln=True), '`inner_norm` cannot be combined with `post_act_ln`'),
        (dict(moe_experts=2, activation='xielu'), '`moe_experts` cannot be combined with an activation'),
        (dict(moe_experts=2, inner_norm='rms'), '`moe_experts` cannot be combined with `inner_norm`'),
    ],
    ids=str,
)
def test_units_that_do_not_go_together(flags, words):
    with pytest.raises(ConfigError, match=words):
        FeedForward(dim=5, glu=True, **flags)


GATES = {
    'gelu': ({}, lambda g: torch.distributions.Normal(0, 1).cdf(g)),
    'swish': (dict(swish=True), torch.sigmoid),
    # W17: an approximate GELU stays one
    'tanh': (dict(custom_activation=nn.GELU('tanh')), lambda g: nn.functional.gelu(g, approximate='tanh') / g),
}


@pytest.mark.parametrize('bounds', [(4.0, 25.0), (0.5, 0.8)])
@pytest.mark.parametrize('name', GATES)
def test_soft_clamps_of_a_gated_unit(name, bounds):
    flags, opened = GATES[name]
    gate, up = bounds
    own = {} if bounds == (4.0, 25.0) else dict(glu_gate_softclamp_value=gate, glu_up_softclamp_value=up)
    module = randomised(FeedForward(dim=5, glu=True, glu_softclamp=True, glu_mult_bias=True, **own, **flags))

    def oracle(w, x):
        u, g = inner(w, x, 'ff.0.proj').chunk(2, dim=-1)
        return output(w, clamped(u, up) * clamped(g, gate) * opened(g) * w['ff.0.mult_bias'])

    assert_same(module, module, oracle, randn(2, 7, 5))


def test_wide_soft_clamps_change_nothing():
    wide = dict(glu_softclamp=True, glu_gate_softclamp_value=1e9, glu_up_softclamp_value=1e9)
    for flags, _ in GATES.values():
        plain, module = FeedForward(dim=5, glu=True, **flags), FeedForward(dim=5, glu=True, **flags, **wide)
        module.load_state_dict(plain.state_dict())
        x = randn(2, 7, 5)
        assert_close(module.double()(x), plain.double()(x), tolerance=1e-6)


NAMED = {
    'gelu': oracles.gelu,
    'gelu_tanh': lambda t: t / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (t + 0.044715 * t**3))),
    'quick_gelu': lambda t: t / (1 + torch.exp(-1.702 * t)),
    'relu': lambda t: t * (t > 0),
    'relu2': lambda t: t * t * (t > 0),
    'silu': lambda t: t / (1 + torch.exp(-t)),
    'tanh': lambda t: (torch.exp(t) - torch.exp(-t)) / (torch.exp(t) + torch.exp(-t)),
}


@pytest.mark.parametrize('glu', [False, True])
@pytest.mark.parametrize('name', NAMED)
def test_activations_by_name(name, glu):
    flags = dict(glu=True, glu_bias=False) if glu else {}
    module = randomised(FeedForward(dim=5, dim_inner=7, activation=name, **flags))

    def oracle(w, x):
        if not glu:
            return output(w, NAMED[name](inner(w, x)))
        u, g = (x @ w['ff.0.proj.weight'].T).chunk(2, dim=-1)
        return output(w, u * NAMED[name](g))

    assert_same(module, module, oracle, randn(2, 3, 5), tolerance=1e-12)
    again = FeedForward.from_config(json.dumps(module.config))
    assert again.state_dict().keys() == module.state_dict().keys() and again.activation == name


@pytest.mark.parametrize('alpha', [None, 0.7])
def test_a_bounded_gated_unit(alpha):
    """gpt-oss: (clamp(u, -c, c) + 1) g sigmoid(alpha g) of g = min(gate, c)."""
    own = {} if alpha is None else dict(swiglu_alpha=alpha)
    module = randomised(FeedForward(dim=5, glu=True, swiglu_limit=0.4, swish=True, glu_mult_bias=True, **own))

    def oracle(w, x):
        u, g = inner(w, x, 'ff.0.proj').chunk(2, dim=-1)
        u, g = (torch.where(t > 0.4, torch.full_like(t, 0.4), t) for t in (u, g))
        u = torch.where(u < -0.4, torch.full_like(u, -0.4), u)
        return output(w, (u + 1) * g / (1 + torch.exp(-(alpha or 1.702) * g)) * w['ff.0.mult_bias'])

    assert_same(module, module, oracle, randn(2, 7, 5), tolerance=1e-12)


def test_inner_widths(logged):
    for flags, first in ((dict(dim_inner=9), 'ff.0.0'), (dict(dim_inner=9, glu=True), 'ff.0.proj')):
        shapes = {n: tuple(t.shape) for n, t in FeedForward(dim=5, **flags).state_dict().items()}
        assert shapes[f'{first}.weight'] == (18 if 'glu' in flags else 9, 5) and shapes['ff.2.weight'] == (5, 9)
    assert not logged
    FeedForward(dim=5, dim_inner=9, mult=2)
    assert '`mult` has no effect beside `dim_inner`' in logged[0]
    net = Decoder(
        dim=8,
        depth=2,
        heads=2,
        ff_dim_inner=(5, 6),
        ff_activation=('relu', None),
        ff_glu=True,
        ff_glu_bias=(False, True),
    )
    assert [tuple(net.layers[at][1].ff[0].proj.weight.shape) for at in (1, 3)] == [(10, 8), (12, 8)]
    assert [net.layers[at][1].ff[0].proj.bias is None for at in (1, 3)] == [True, False]


@pytest.mark.parametrize('post_act_ln', [False, True])
def test_dropout_behind_the_output_projection(post_act_ln):
    module = randomised(FeedForward(dim=5, sublayer_dropout=0.5, post_act_ln=post_act_ln))
    x = randn(16, 7, 5)
    whole, dropped = module(x), module.train()(x)
    gone = dropped == 0
    assert 0.4 < gone.double().mean() < 0.6
    assert_close(dropped[~gone], 2 * whole[~gone])
    assert f'ff.{3 if post_act_ln else 2}.weight' in module.state_dict()
    assert len(FeedForward(dim=5).ff) == 3 and len(FeedForward(dim=5, sublayer_dropout=0.5).ff) == 4


def test_initial_values_shrink_with_depth():
    """2402.00838: a normal of variance 1 / (2 fan_in depth)."""
    for depth in (1, 5):
        module = FeedForward(dim=100, output_proj_depth=depth)
        assert abs(module.output_layer.weight.std() * (2 * 400 * depth) ** 0.5 - 1) < 0.03
        assert module.output_layer.bias.abs().max() > 0
    assert (FeedForward(dim=5, output_proj_depth=2, zero_init_output=True).output_layer.weight == 0).all()


def test_gelu_is_exact():
    """1606.08415: x times the chance that a normal variable is below x, not the tanh approximation."""
    module = randomised(FeedForward(dim=1, mult=1, no_bias=True))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1)
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    assert_close(module(x[:, None])[:, 0], x * torch.distributions.Normal(0, 1).cdf(x))


@pytest.mark.parametrize(
    ('flags', 'wanted'),
    [
        ({}, {'ff.0.0.weight': (20, 5), 'ff.0.0.bias': (20,), 'ff.2.weight': (5, 20), 'ff.2.bias': (5,)}),
        (dict(mult=1.5, no_bias=True, dim_out=2), {'ff.0.0.weight': (7, 5), 'ff.2.weight': (2, 7)}),
        (
            dict(glu=True, glu_mult_bias=True, post_act_ln=True, mult=1, dropout=0.5),
            {
                **{'ff.0.proj.weight': (10, 5), 'ff.0.proj.bias': (10,), 'ff.0.mult_bias': (5,), 'ff.1.gamma': (5,)},
                **{'ff.3.weight': (5, 5), 'ff.3.bias': (5,)},
            },
        ),
        (
            dict(glu=True, no_bias=True, mult=1),
            {'ff.0.proj.weight': (10, 5), 'ff.0.proj.bias': (10,), 'ff.2.weight': (5, 5)},
        ),
    ],
)
def test_state_dict_names_and_shapes(flags, wanted):
    state = FeedForward(dim=5, **flags).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == wanted


def test_initial_values():
    state = FeedForward(dim=5, glu=True, glu_mult_bias=True, post_act_ln=True, zero_init_output=True).state_dict()
    for name, value in {'ff.0.mult_bias': 1, 'ff.1.gamma': 1, 'ff.3.weight': 0, 'ff.3.bias': 0}.items():
        assert (state[name] == value).all(), name


def test_custom_activation_is_copied():
    activation = nn.PReLU()
    module = FeedForward(dim=5, custom_activation=activation)
    x = torch.randn(2, 7, 5)
    before = module(x)
    with torch.no_grad():
        activation.weight.fill_(9)
    assert torch.equal(module(x), before)
    assert 'ff.0.1.weight' in module.state_dict()


@pytest.mark.parametrize('glu', [False, True])
def test_dropout_is_before_the_output_projection(glu):
    module = randomised(FeedForward(dim=5, mult=1, dropout=0.5, glu=glu))
    with torch.no_grad():
        module.ff[2].weight.copy_(torch.eye(5))
        module.ff[2].bias.fill_(3)
    x = randn(16, 7, 5)
    hidden = module(x) - 3
    dropped = module.train()(x) - 3
    gone = dropped == 0
    assert 0.4 < gone.double().mean() < 0.6
    assert_close(dropped[~gone], 2 * hidden[~gone])


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(gluu=True), 'glu'),
        (dict(mult=0), 'mult'),
        (dict(dropout=1.5), 'dropout'),
        (dict(dim=0), 'dim'),
        (dict(solu=True, relu_squared=True), 'relu_squared.*solu'),
        (dict(glu=True, glu_softclamp=True, relu_squared=True), 'glu_softclamp.*ReluSquared'),
        (dict(softclamp_value=0), 'softclamp_value'),
        (dict(dim_inner=0), 'dim_inner'),
        (dict(activation='swiglu'), "`activation` must be one of 'gelu', 'gelu_tanh', .*got 'swiglu'"),
        (dict(activation='relu', swish=True), '`activation` cannot be combined with `swish`'),
        (
            dict(activation='relu', custom_activation=nn.Tanh()),
            '`activation` cannot be combined with `custom_activation`',
        ),
        (dict(glu=True, swiglu_limit=1.0, activation='relu'), '`swiglu_limit` cannot be combined with `activation`'),
        (dict(glu=True, swiglu_limit=1.0, relu_squared=True), '`swiglu_limit` cannot be combined with `relu_squared`'),
        (
            dict(glu=True, swiglu_limit=1.0, glu_softclamp=True),
            '`swiglu_limit` cannot be combined with `glu_softclamp`',
        ),
        (dict(sublayer_dropout=1.0), 'sublayer_dropout'),
        (dict(output_proj_depth=0), 'output_proj_depth'),
    ],
)
def test_refusals(flags, words):
    with pytest.raises((ValueError, TypeError), match=words):
        FeedForward(**{'dim': 5, **flags})
