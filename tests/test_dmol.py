"""The mixture of logistics over pixels: against its formula, its sums, what it draws, and as the head of a model."""

import itertools
import math

import pytest
import torch
from oracles import assert_close, randn, randomised
from training_laws import net_of

from x_transformers import AutoregressiveWrapper, DMOLHead, NonAutoregressiveWrapper


def sigmoid(t):
    return 1 / (1 + math.exp(-t))


def probability(p, pixel, components, levels):
    """Of one pixel by the formula, for parameters of each component: a weight, means, scales, coefficients."""
    c, total = len(pixel), 0.0
    params = p.view(components, -1).tolist()
    weights = torch.tensor([row[0] for row in params], dtype=torch.float64).softmax(dim=0)
    for weight, (_, *rest) in zip(weights.tolist(), params, strict=True):
        means, scales, more = rest[:c], rest[c : 2 * c], iter(rest[2 * c :])
        xs = [2 * value / (levels - 1) - 1 for value in pixel]
        product = 1.0
        for at in range(c):
            mean = means[at] + sum(math.tanh(next(more)) * before for before in xs[:at])
            width, half = math.exp(max(scales[at], -7)), 1 / (levels - 1)
            above = 1 if pixel[at] == levels - 1 else sigmoid((xs[at] - mean + half) / width)
            product *= above - (0 if pixel[at] == 0 else sigmoid((xs[at] - mean - half) / width))
        total += weight * product
    return total


def test_it_is_the_formula():
    head, x = randomised(DMOLHead(6, components=2, levels=5)), randn(2, 3, 6)
    assert head.to_params.weight.shape == (20, 6)
    params, pixels = head(x), torch.arange(18).view(2, 3, 3) * 7 % 5
    rows = zip(params.flatten(0, 1), pixels.flatten(0, 1).tolist(), strict=True)
    wanted = torch.tensor([math.log(probability(p, pixel, 2, 5)) for p, pixel in rows]).double()
    assert_close(head.log_prob(params, pixels), wanted.view(2, 3), tolerance=1e-6)


@pytest.mark.parametrize('channels, levels', [(1, 256), (3, 4)])
def test_probabilities_sum_to_one_and_far_pixels_have_some(channels, levels):
    """The edges have the tails, whichever way the means lie; far away logarithms and gradients stay finite."""
    head = randomised(DMOLHead(4, channels=channels, levels=levels), scale=2.0)
    every = torch.tensor([*itertools.product(range(levels), repeat=channels)])
    params = head(randn(3, 4)).unsqueeze(1).expand(-1, len(every), -1)
    total = head.log_prob(params, every.expand(3, -1, -1)).logsumexp(dim=-1)
    assert_close(total, torch.zeros(3).double(), tolerance=1e-9)
    far = torch.full((1, head.to_params.out_features), -50.0, requires_grad=True)
    found = head.log_prob(far, torch.full((1, channels), levels - 1))
    (grad,) = torch.autograd.grad(found.sum(), far)
    assert found.isfinite().all() and found < -100 and grad.isfinite().all()
    # as wide as no number is: every value inside has a share of 2 / (levels - 1) e^-scale / 4
    wide = torch.zeros(1, head.components, sum(head.parts), dtype=torch.float64)
    head.split(wide.flatten(-2))[2].fill_(1000.0)
    wide = wide.flatten(-2).requires_grad_()
    found = head.log_prob(wide, torch.full((1, channels), 1))
    (grad,) = torch.autograd.grad(found.sum(), wide)
    share = channels * (math.log(0.5 / (levels - 1)) - 1000)
    assert_close(found, torch.tensor([share], dtype=torch.float64), tolerance=1e-9)
    assert_close(head.split(grad)[2].sum(), torch.tensor(-float(channels)).double())


def test_it_draws_what_it_says():
    head = randomised(DMOLHead(4, components=3, channels=2, levels=4))
    params = head(randn(1, 4))
    every = torch.tensor([*itertools.product(range(4), repeat=2)])
    wanted = head.log_prob(params.expand(16, -1), every).exp()
    drawn = head.sample(params.expand(20_000, -1), generator=torch.Generator().manual_seed(0))
    found = (drawn @ torch.tensor([4, 1])).bincount(minlength=16)
    assert ((found - 20_000 * wanted) ** 2 / (20_000 * wanted)).sum() < 37.7  # 15 degrees of freedom, 0.1 %
    again = head.sample(params.expand(20_000, -1), generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)


def test_it_is_a_head_of_a_model():
    net = net_of(to_logits=DMOLHead(16, channels=1, components=4, levels=11))
    ids = torch.arange(12).view(2, 6) % 11
    params = net(ids)
    assert params.shape == (2, 6, 12) and type(net).from_config(net.config).config == net.config
    head = DMOLHead(400)
    scales = head.split(head.to_params.bias)[2]
    assert (scales == -2).all() and head.to_params.bias.sum() == -60 and 0.015 < head.to_params.weight.std() < 0.025
    for words, call in (
        (
            '`pixels` must be from 0 to 10, got values from 1 to 11',
            lambda: net.to_logits.log_prob(params, ids[..., None] + 1),
        ),
        (r'`pixels` must ', lambda: net.to_logits.log_prob(params, ids)),
        ('`params` must ', lambda: net.to_logits.sample(params[..., :3])),
        ('`net` must give logits of a vocabulary, its DMOLHead gives parameters', lambda: AutoregressiveWrapper(net)),
        ('its DMOLHead gives parameters', lambda: NonAutoregressiveWrapper(net, mask_id=10)),
    ):
        with pytest.raises(ValueError, match=words):
            call()
