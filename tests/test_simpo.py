"""Simple preference optimisation: the loss against a hand sum over tokens, padding, and a model that takes sides."""

import math

import pytest
import torch
from oracles import assert_close, randomised
from test_dpo import OTHER, PREFERRED, PROMPTS, N, V, net, pairs, until
from training_laws import fit

from x_transformers import AutoregressiveWrapper, SimPO
from x_transformers.flags import ConfigError


def by_hand(model, a, b, lens_a, lens_b):
    """The loss, token by token, each row alone and without its padding."""
    losses = []
    for row, start in enumerate(PROMPTS):
        means = []
        for seq, lens in ((a, lens_a), (b, lens_b)):
            ids = seq[row, : lens[row]]
            found = [model.net(ids[None, :at])[0, -1].log_softmax(dim=-1)[ids[at]] for at in range(start, len(ids))]
            means.append(sum(found).item() / len(found))
        ahead = model.beta * means[0] - model.beta * means[1] - model.margin
        losses.append(math.log1p(math.exp(-ahead)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize('options', [{}, dict(beta=0.7, margin=0.0), dict(beta=3.0, margin=2.5)], ids=str)
def test_the_loss_is_that_of_the_tokens_of_the_answers(options):
    model, (a, b, prompt) = randomised(SimPO(net(), **options)), pairs()
    assert model(a, b, prompt_mask=prompt).item() == pytest.approx(by_hand(model, a, b, [N] * 3, [N] * 3), rel=1e-9)
    masks = dict(preferred_seq_mask=until(PREFERRED), unpreferred_seq_mask=until(OTHER))
    expected = by_hand(model, a, b, PREFERRED, OTHER)
    assert model(a, b, prompt_mask=prompt, **masks).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('pad_id', [-1, 5])
def test_masks_come_from_the_padding(pad_id):
    model, (a, b, prompt) = randomised(SimPO(net(), pad_id=pad_id)), pairs()
    a, b = a.masked_fill(a == pad_id, 0), b.masked_fill(b == pad_id, 0)
    padded = a.masked_fill(~until(PREFERRED), pad_id), b.masked_fill(~until(OTHER), pad_id)
    expected = by_hand(model, a, b, PREFERRED, OTHER)
    assert model(*padded, prompt_mask=prompt).item() == pytest.approx(expected, rel=1e-9)


def test_equal_answers_have_the_loss_of_the_margin():
    model, (a, b, prompt) = randomised(SimPO(net(), margin=1.5)), pairs()
    assert model(a, a, prompt_mask=prompt).item() == pytest.approx(math.log1p(math.exp(1.5)))
    assert model(a, b, prompt_mask=torch.ones_like(prompt)).item() == 0  # there is no answer to prefer
    some = prompt | (torch.arange(3)[:, None] > 0)
    assert_close(model(a, b, prompt_mask=some), model(a[:1], b[:1], prompt_mask=prompt[:1]))


def test_refusals():
    model, (a, b, prompt) = SimPO(net()), pairs()
    for call, error, words in (
        (lambda: model(a, b[:, :5], prompt_mask=prompt), ValueError, r'`unpreferred_seq` must .*got \(3, 5\)'),
        (lambda: model(a, b, prompt_mask=prompt[:, 1:]), ValueError, r'`prompt_mask` must .*got \(3, 8\)'),
        (lambda: SimPO(AutoregressiveWrapper(net())), ValueError, r'gives a loss: pass its `net`'),
        (lambda: SimPO(net(), margin=-1), ConfigError, r'`margin` must be a number of at least 0, got -1'),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.slow
def test_it_learns_what_is_preferred():
    """Answers that repeat the prompt are preferred to those that do not: new prompts are repeated, 9 of 10 tokens."""
    torch.manual_seed(0)
    model = SimPO(net())
    prompt = torch.arange(6).expand(64, 6) < 3

    def loss():
        start, other = torch.randint(0, V, (64, 3)), torch.randint(0, V, (64, 3))
        return model(torch.cat((start, start), dim=1), torch.cat((start, other), dim=1), prompt_mask=prompt)

    fit(model, loss, 300)
    start = torch.randint(0, V, (100, 3))
    answers = AutoregressiveWrapper(model.net).generate(start, 3, temperature=0.0)
    assert (answers == start).float().mean() > 0.9
