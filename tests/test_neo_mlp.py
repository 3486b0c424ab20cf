"""NeoMLP: against its formula, its degenerate cases, refusals, and a function that it learns."""

import math

import pytest
import torch
from oracles import assert_close, randn, randomised
from training_laws import fit

from x_transformers.flags import ConfigError
from x_transformers.neo_mlp import NeoMLP

SIZES = dict(dim_in=3, dim_hidden=4, dim_out=2, dim_model=16, depth=1)


def model(**keywords):
    return randomised(NeoMLP(**{**SIZES, **keywords}))


@pytest.mark.parametrize('hidden', [0, 4])
def test_the_output_is_the_formula(hidden):
    net, x = model(dim_hidden=hidden), randn(2, 3)
    w = net.state_dict()
    tokens = []
    for row in x:
        inputs = [
            torch.cos(2 * math.pi * (w['random_fourier.0.proj.weight'][:, 0] * value + w['random_fourier.0.proj.bias']))
            @ w['random_fourier.1.weight'].T
            + w['random_fourier.1.bias']
            + w['input_embed'][node]
            for node, value in enumerate(row)
        ]
        tokens.append(torch.stack([*inputs, *w['hidden_embed'], *w['output_embed']]))
    embeds = net.transformer(torch.stack(tokens)).detach()
    expected = [
        [sum(embeds[b, 3 + hidden + o] * w['to_output_weights'][o]) + w['to_output_bias'][o] for o in range(2)]
        for b in range(2)
    ]
    y, parts = net(x, return_embeds=True)
    assert_close(y, torch.tensor(expected, dtype=torch.float64))
    assert_close(torch.cat(parts, dim=1), embeds)
    assert [part.shape[1] for part in parts] == [3, hidden, 2]


def test_e1_one_input_has_no_batch_axis_anywhere():
    net, x = model(), randn(2, 3)
    y, parts = net(x[0], return_embeds=True)
    many, many_parts = net(x, return_embeds=True)
    assert_close(y, many[0])
    assert_close(net(x[0]), many[0])
    for part, others in zip(parts, many_parts, strict=True):
        assert_close(part, others[0])


def test_parameters():
    net = NeoMLP(**{**SIZES, 'dim_in': 40, 'dim_model': 64})
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert frozen == {'random_fourier.0.proj.weight', 'random_fourier.0.proj.bias'}
    assert net.input_embed.std().item() == pytest.approx(0.02, rel=0.1)
    assert net.random_fourier[0].proj.weight.abs().max() <= 1 and net.to_output_bias.abs().max() == 0
    net(torch.randn(2, 40)).square().sum().backward()
    for name, p in net.named_parameters():
        assert name in frozen or (p.grad.isfinite().all() and p.grad.abs().max() > 0), name


def test_refusals():
    net = model()
    with pytest.raises(ValueError, match=r'`x` must '):
        net(randn(2, 4))
    with pytest.raises(ValueError, match=r'`x` must '):
        net(randn(4))
    with pytest.raises(TypeError, match=r'`x` must .*got torch.int64'):
        net(torch.zeros(2, 3).long())
    with pytest.raises(ConfigError, match='`encoder_kwargs` got `depth`, write `dim_model` and `depth`'):
        model(encoder_kwargs=dict(depth=3))
    with pytest.raises(ConfigError, match='unknown keyword `headz`'):
        model(encoder_kwargs=dict(headz=3))
    with pytest.raises(ConfigError, match='`dim_in` must be an integer of at least 1, got 0'):
        model(dim_in=0)


@pytest.mark.slow
def test_it_learns_curves():
    """A sine and a parabola of one number: mean squared errors below 0.01, against variances of 0.51 and 0.09."""
    torch.manual_seed(0)
    net = NeoMLP(dim_in=1, dim_hidden=4, dim_out=2, dim_model=32, depth=1)

    def points(b):
        x = torch.rand(b, 1) * 2 - 1
        return x, torch.cat((torch.sin(3 * x), x.square()), dim=1)

    def loss():
        x, y = points(64)
        return (net(x) - y).square().mean()

    fit(net, loss, 400, falls=True)
    x, y = points(1000)
    with torch.no_grad():
        assert ((net(x) - y).square().mean(dim=0) < 0.01).all()
