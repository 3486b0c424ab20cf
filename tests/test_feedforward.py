"""`FeedForward` against its formulas: values and gradients."""

import oracles
import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised
from torch import nn

from x_transformers import FeedForward


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
    [(dict(gluu=True), 'glu'), (dict(mult=0), 'mult'), (dict(dropout=1.5), 'dropout'), (dict(dim=0), 'dim')],
)
def test_refusals(flags, words):
    with pytest.raises((ValueError, TypeError), match=words):
        FeedForward(**{'dim': 5, **flags})
