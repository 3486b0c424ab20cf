"""Masked models: the parts of the loss by hand, generation against a loop, and data that is learned and generated."""

import math

import pytest
import torch
from loguru import logger
from oracles import assert_close, randn, randomised
from torch import nn
from training_laws import fit

from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError, warn_once
from x_transformers.generation.sampling import gumbel_noise
from x_transformers.nonautoregressive_wrapper import (
    NonAutoregressiveWrapper,
    cosine_schedule,
    get_mask_subset_prob,
    hidden_part,
    linear_schedule,
)

V, N, D, MASK = 11, 12, 16, 10
PLAIN = dict(no_replace_prob=0.0, random_token_prob=0.0, use_simple_mdlm_loss_weight=False)
REAL = torch.arange(N) < torch.tensor([N, 5, 8])[:, None]


def net(stack=None, kind=Encoder, **keywords):
    layers = kind(**{**dict(dim=D, depth=2, heads=2, attn_dim_head=8), **(stack or {})})
    return TransformerWrapper(**{**dict(num_tokens=V, max_seq_len=N), **keywords}, attn_layers=layers)


def wrapped(around=None, **keywords):
    return randomised(NonAutoregressiveWrapper(net(**(around or {})), **{**dict(mask_id=MASK, steps=5), **keywords}))


def ids(b=3, n=N, seed=0):
    return torch.randint(0, MASK, (b, n), generator=torch.Generator().manual_seed(seed))


class Watched(nn.Module):
    """A net that notes what it was called with."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, []
        for name in ('dim', 'emb_dim', 'num_tokens', 'max_seq_len'):
            setattr(self, name, getattr(inner, name))

    def forward(self, x, **keywords):
        out = self.inner(x, **keywords)
        self.calls.append((x, keywords, out))
        return out


class Critic(nn.Module):
    """One score per id; notes what it judged."""

    def __init__(self):
        super().__init__()
        self.scores, self.seen = nn.Embedding(V, 1), []

    def forward(self, x):
        self.seen.append(x)
        return self.scores(x)


def watched(**keywords):
    model = wrapped(**keywords)
    model.net = Watched(model.net)
    return model


# what is hidden


@pytest.mark.parametrize('name, schedule', [('linear', linear_schedule), ('cosine', cosine_schedule)])
def test_schedules_fall_from_all_to_none(name, schedule):
    t = torch.linspace(0, 1, 9, dtype=torch.float64)
    expected = [1 - v if name == 'linear' else math.cos(math.pi * v / 2) for v in t.tolist()]
    assert_close(schedule(t), torch.tensor(expected, dtype=torch.float64))
    assert schedule(t)[0] == 1 and abs(schedule(t)[-1]) < 1e-9


def test_a_part_of_each_row_is_hidden():
    share = torch.tensor([0.0, 0.26, 0.5, 1.0])
    counts = [hidden_part(share, None, (4, N), torch.device('cpu')).sum(dim=-1).tolist() for _ in range(20)]
    assert all(found == [1, 4, 6, N] for found in counts)
    real = torch.arange(N) < torch.tensor([5, 5, 0, 8])[:, None]
    found = hidden_part(share, real, (4, N), torch.device('cpu'))
    assert found.sum(dim=-1).tolist() == [1, 2, 0, 8] and not (found & ~real).any()
    # everywhere alike
    often = sum(hidden_part(share, None, (4, N), torch.device('cpu')).double() for _ in range(2000)) / 2000
    assert ((often - torch.tensor([[1], [4], [6], [N]]) / N).abs() < 0.05).all()


@pytest.mark.costly
def test_a_part_of_the_hidden_ones():
    mask = REAL.clone()
    often = torch.zeros(3, N)
    for _ in range(2000):
        part = get_mask_subset_prob(mask, 0.3)
        assert part.sum(dim=-1).tolist() == [math.ceil(0.3 * k) for k in (N, 5, 8)] and not (part & ~mask).any()
        often += part
    expected = torch.tensor([4 / N, 2 / 5, 3 / 8])[:, None] * REAL
    assert ((often / 2000 - expected).abs() < 0.05).all()
    assert not get_mask_subset_prob(torch.zeros(2, N, dtype=torch.bool), 0.3).any()


def test_n4_wrong_tokens_are_any_but_the_hidden_one():
    model, x = wrapped(no_replace_prob=0.5, random_token_prob=1.0, mask_id=4), ids().masked_fill(ids() == 4, 5)
    hidden, drawn = torch.ones_like(x, dtype=torch.bool), []
    for _ in range(400):
        shown = model.corrupted(x, hidden)
        if (shown == 4).sum() in (3 * N, 3 * (N - N // 2)):  # nothing but the mask, or tokens left as they are
            assert ((shown == x) | (shown == 4)).all()
            continue
        drawn.append(shown)
    drawn = torch.cat(drawn)
    assert set(drawn.flatten().tolist()) == set(range(V))
    # with a share of one, the only hidden ones are those left by `no_replace_prob`
    both = wrapped(no_replace_prob=0.0, random_token_prob=1.0, mask_id=4)
    found = [both.corrupted(x, hidden) for _ in range(200)]
    wrong = torch.cat([shown for shown in found if not (shown == 4).all()])
    assert 50 < len(wrong) / 3 < 150 and set(wrong.flatten().tolist()) == set(range(V)) - {4}
    counts = torch.bincount(wrong.flatten(), minlength=V)
    assert (counts[[i for i in range(V) if i != 4]] / wrong.numel() - 1 / (V - 1)).abs().max() < 0.02


def test_shown_tokens_stay():
    model, x = wrapped(no_replace_prob=0.5, random_token_prob=0.5), ids()
    hidden = torch.rand(3, N) < 0.5
    for _ in range(50):
        assert torch.equal(model.corrupted(x, hidden)[~hidden], x[~hidden])


# the loss


def cross_entropy(logits, x):
    return -logits.log_softmax(dim=-1).gather(-1, x[..., None])[..., 0]


def test_loss_is_the_mean_over_the_hidden_tokens():
    model, x = watched(**PLAIN), ids()
    for _ in range(5):
        losses = model(x)
        shown, _, logits = model.net.calls[-1]
        hidden = shown == MASK
        assert torch.equal(shown[~hidden], x[~hidden])
        assert_close(losses.loss, cross_entropy(logits, x)[hidden].mean())
        assert losses.generator_loss is losses.loss and losses.critic_loss is None


@pytest.mark.parametrize('schedule', ['linear', 'cosine', 'square'])
def test_n1_weights_are_positive(schedule):
    shape = {'square': lambda t: (1 - t) ** 2}.get(schedule, schedule)
    model, t = wrapped(schedule=shape), torch.linspace(0.05, 0.85, 20, dtype=torch.float64)
    tangent = torch.tan(math.pi * t / 2) * math.pi / 2
    expected = {'linear': 1 / (1 - t), 'cosine': tangent, 'square': 2 / (1 - t)}[schedule]
    assert_close(model.loss_weight(t, 1000), expected)
    # one token at least is hidden, so the share that is never falls below 1 / n
    late = torch.tensor([0.9999], dtype=torch.float64)
    slope = {'linear': 1.0, 'cosine': math.pi / 2, 'square': 2e-4}[schedule]
    assert_close(model.loss_weight(late, N), torch.tensor([N * slope], dtype=torch.float64), tolerance=1e-5)


def test_n1_the_loss_is_weighted_row_by_row():
    model, x = watched(**{**PLAIN, 'use_simple_mdlm_loss_weight': True}), ids()
    torch.manual_seed(3)
    losses = model(x)
    torch.manual_seed(3)
    weight = 1 / (1 - torch.rand(3))
    shown, _, logits = model.net.calls[-1]
    hidden = shown == MASK
    expected = (cross_entropy(logits, x) * weight[:, None])[hidden].mean()
    assert_close(losses.loss, expected, tolerance=1e-6)
    assert losses.loss > 0


def test_padding_is_neither_hidden_nor_a_target():
    model, x = watched(**PLAIN, self_token_critic=True), ids()
    for seed in range(5):
        found = []
        for one in (x, x.masked_fill(~REAL, 3)):
            torch.manual_seed(seed)
            found.append(model(one, mask=REAL))
            assert torch.equal(model.net.calls[-1][0][~REAL], one[~REAL])
        assert_close(found[0].generator_loss, found[1].generator_loss)
        assert_close(found[0].critic_loss, found[1].critic_loss)
    critic = Critic()
    model = wrapped(**PLAIN, token_critic=critic)
    model(x, mask=REAL)
    assert (critic.seen[-1][~REAL] == MASK).all()


@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_n2_the_critic_learns_what_differs_from_the_data(temperature):
    critic = Critic()
    model, x = watched(**PLAIN, token_critic=critic, critic_loss_weight=0.3), ids()
    losses = model(x, generator_sample_temperature=temperature)
    shown, _, logits = model.net.calls[-1]
    judged, hidden = critic.seen[-1], shown == MASK
    assert torch.equal(judged[~hidden], x[~hidden])
    if temperature == 0:
        assert torch.equal(judged[hidden], logits.argmax(dim=-1)[hidden])
    wrong, score = judged != x, critic(judged)[..., 0]
    probability = torch.where(wrong, score.sigmoid(), 1 - score.sigmoid())
    assert wrong.any() and not wrong[~hidden].any()
    assert_close(losses.critic_loss, -probability.log().mean())
    assert_close(losses.loss, losses.generator_loss + 0.3 * losses.critic_loss)


def test_what_is_trained():
    model, x = wrapped(**PLAIN, self_token_critic=True), ids()
    only = model(x, only_train_critic=True)
    assert only.loss is only.critic_loss and only.generator_loss is None
    only.loss.backward()
    assert model.net.to_logits.weight.grad is None and model.token_critic.to_logits.weight.grad is not None
    both = model(x, only_train_generator=True)
    assert both.loss is both.generator_loss and both.critic_loss is None
    # guesses are no path for gradients
    model.zero_grad(set_to_none=True)
    model(x).critic_loss.backward()
    assert model.net.to_logits.weight.grad is None
    names = set(model.state_dict())
    assert {name.removeprefix('token_critic.') for name in names if name.startswith('token_critic.net.')} == {
        name for name in names if name.startswith('net.')
    }
    assert names - {n for n in names if 'net.' in n} == {'token_critic.to_logits.weight', 'token_critic.to_logits.bias'}


@pytest.mark.parametrize('emb_dim', [D, 6], ids=['same width', 'N3 narrow embeddings'])
def test_n3_self_conditioning(emb_dim):
    around = dict(around=dict(emb_dim=emb_dim))
    model, x = watched(**around, **PLAIN, self_cond=True, self_cond_train_prob=1.0), ids()
    assert model.null_embed.shape == (D,) and model.to_self_cond.weight.shape == (emb_dim, D)
    model(x).loss.backward()
    (first, _, embeds), (second, given, _) = model.net.calls
    assert torch.equal(first, second) and not embeds.requires_grad
    assert_close(given['sum_embeds'], embeds @ model.to_self_cond.weight.T)
    assert model.null_embed.grad is None
    model.self_cond_train_prob = 0.0
    model(x).loss.backward()
    assert len(model.net.calls) == 3 and model.null_embed.grad.abs().max() > 0
    assert_close(model.net.calls[-1][1]['sum_embeds'][1, 2], model.to_self_cond.weight @ model.null_embed)
    assert model.generate(2).shape == (2, N)


def test_keywords_reach_the_net_and_the_critic_that_it_is():
    stack, context = dict(cross_attend=True), randn(3, 4, D)
    model, x = wrapped(around=dict(stack=stack), **PLAIN, self_token_critic=True), ids()
    found = []
    for given in (context, context + 1):
        torch.manual_seed(0)
        found.append((model(x, context=given), model.generate(3, context=given)))
    assert not torch.allclose(found[0][0].generator_loss, found[1][0].generator_loss)
    assert not torch.allclose(found[0][0].critic_loss, found[1][0].critic_loss)
    assert not torch.equal(found[0][1], found[1][1])


# generation


def generated(model, b, temperature, thres, noise):
    """The steps one by one, with the draws of a seed."""
    seq, hidden, last = torch.full((b, N), MASK), torch.ones(b, N, dtype=torch.bool), None
    cosine = model.schedule == 'cosine'
    for step in range(1, model.steps + 1):
        share = math.cos(math.pi / 2 * step / model.steps) if cosine else 1 - step / model.steps
        left, count = 1 - step / model.steps, int(max(share, 0) * N + 1e-6)
        given = {}
        if model.self_cond:
            last = model.null_embed.expand(b, N, -1) if last is None else last
            given['sum_embeds'] = last @ model.to_self_cond.weight.T
        logits, last = model.net(seq, return_logits_and_embeddings=True, **given)
        logits = torch.where(torch.arange(V) == MASK, -math.inf, logits)  # what is hidden is no answer
        if thres is not None:
            lowest = logits.sort(dim=-1, descending=True).values[..., math.ceil((1 - thres) * V) - 1, None]
            logits = logits.masked_fill(logits < lowest, -math.inf)
        guess = (logits / max(temperature * left, 1e-3) + gumbel_noise(logits)).argmax(dim=-1)
        seq = torch.where(hidden, guess, seq)
        if model.token_critic is None:
            score = 1 - logits.softmax(dim=-1).gather(-1, guess[..., None])[..., 0]
        else:
            score = model.token_critic(seq)[..., 0]
            score = score + noise * left * gumbel_noise(score)
        for row in range(b):
            allowed = [i for i in range(N) if model.can_mask_prev_unmasked or hidden[row, i]]
            again = sorted(allowed, key=lambda i: -score[row, i].item())[:count]
            hidden[row] = torch.tensor([i in again for i in range(N)])
        seq = seq.masked_fill(hidden, MASK)
    assert not hidden.any() and not (seq == MASK).any()
    return seq


GENERATION = {
    'plain': {},
    'cosine': dict(schedule='cosine', steps=7),
    'self-conditioning': dict(self_cond=True),
    'self critic': dict(self_token_critic=True),
    'hidden again': dict(can_mask_prev_unmasked=True),
    'more steps than tokens': dict(steps=18),
    'one step': dict(steps=1),
}


@pytest.mark.parametrize('keywords', GENERATION.values(), ids=GENERATION)
@pytest.mark.parametrize('thres', [None, 0.7])
@torch.no_grad()
def test_generation_is_the_loop(thres, keywords):
    model = wrapped(**keywords)
    for temperature, noise in ((1.0, 1.0), (0.0, 0.5)):
        torch.manual_seed(1)
        expected = generated(model, 3, temperature, thres, noise)
        torch.manual_seed(1)
        found = model.generate(3, start_temperature=temperature, filter_thres=thres, noise_level_scale=noise)
        assert torch.equal(found, expected)
        again = [model.generate(3, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
        assert torch.equal(*again)


def test_shapes_of_generation():
    model = wrapped().train()
    assert model.generate().shape == (N,) and model.generate(batch_size=2).shape == (2, N)
    assert model.generate(2, seq_len=5).shape == (2, 5)
    assert model.training and model.net.training
    free = wrapped(around=dict(max_seq_len=0))
    assert free.generate(2, seq_len=30).shape == (2, 30)
    assert free(ids(2, 20)).loss > 0


def test_nothing_stays_hidden_whatever_the_schedule():
    model = wrapped(schedule=lambda t: 1 - 0.5 * t, steps=3)
    with torch.no_grad():
        model.net.to_logits.weight[MASK] = 0.0
    assert model.hidden_counts(torch.tensor([N]))[:, 0].tolist() == [10, 8, 0]
    assert (
        NonAutoregressiveWrapper(net(), mask_id=MASK, steps=4, schedule='cosine').hidden_counts(torch.tensor([N]))[-1]
        == 0
    )


@pytest.mark.parametrize('order', ['confidence', 'random'])
@torch.no_grad()
def test_what_is_hidden_is_never_an_answer(order):
    """Also where the net would say it everywhere, with a critic and without, beside tokens that are given."""
    for keywords in ({}, dict(self_token_critic=True), dict(can_mask_prev_unmasked=True), dict(steps=1)):
        model = wrapped(**keywords)
        model.net.to_logits.weight[MASK] *= 50
        for thres in (None, 0.99):
            found = model.generate(40, filter_thres=thres, order=order)
            assert not (found == MASK).any()
        given = ids(8).masked_fill(torch.arange(N) % 3 > 0, MASK)
        filled = model.generate(given=given, order=order)
        assert not (filled == MASK).any() and torch.equal(filled[:, ::3], given[:, ::3])
    model = wrapped(self_token_critic=True)
    model.net.to_logits.weight[MASK] *= 50
    seen = []
    model.token_critic.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(ids(), generator_sample_temperature=1.0)
    assert not (seen[0] == MASK).any()  # nor does the critic learn from it


# the rest


def test_refusals_and_warnings():
    model, x = wrapped(), ids()
    for call, error, words in (
        (lambda: model(x[:, :5]), ValueError, r'`x` must have 12'),
        (lambda: model(x + 0.5), TypeError, r'`x` must .*got torch.float32'),
        (lambda: model(x + 5), ValueError, r'`x` must .*got token ids from 5'),
        (lambda: model(x, mask=REAL[:, 1:]), ValueError, r'`mask` must .*got \(3, 11\)'),
        (lambda: model(x, sum_embeds=x), ValueError, r'`sum_embeds` cannot be given to the loss'),
        (lambda: model(x, only_train_critic=True), ValueError, r'`only_train_critic` needs a critic'),
        (lambda: model(x, True, True), ValueError, r'were both given'),
        (lambda: model.generate(0), ValueError, r'`batch_size` must .*got 0'),
        (lambda: model.generate(start_temperature=-1.0), ValueError, r'`start_temperature` must .*got -1.0'),
        (lambda: model.generate(filter_thres=1.0), ValueError, r'`filter_thres` must .*got 1.0'),
        (lambda: model.generate(seq_len=13), ValueError, r'`seq_len` must be an integer from 1 to 12, got 13'),
        (lambda: wrapped(around=dict(max_seq_len=0)).generate(), ValueError, r'`seq_len` must .*got None'),
        (lambda: wrapped(mask_id=V), ConfigError, r'`mask_id` must be less than `num_tokens`.*got 11'),
        (lambda: model(x.masked_fill(torch.arange(N) == 3, MASK)), ValueError, r'must not hold `mask_id`, 10, .*row 0'),
        (lambda: wrapped(around=dict(kind=Decoder)), ConfigError, r'`net` must see both sides of a token'),
        (lambda: NonAutoregressiveWrapper(net(num_tokens=1), mask_id=0), ConfigError, r'must have another token than'),
        (lambda: wrapped(schedule='sine'), ConfigError, r"`schedule` must be one of 'linear', 'cosine'"),
        (lambda: wrapped(token_critic=Critic(), self_token_critic=True), ConfigError, r'set only one'),
        (lambda: wrapped(around=dict(return_only_embed=True)), ValueError, r'`return_only_embed` is set'),
        (lambda: NonAutoregressiveWrapper(Decoder(dim=8, depth=1), mask_id=1), ValueError, r'has no `num_tokens`'),
        (lambda: wrapped(no_replace_probs=0.1), ConfigError, r'did you mean `no_replace_prob`'),
    ):
        with pytest.raises(error, match=words):
            call()
    warn_once.cache_clear()
    texts = []
    sink = logger.add(texts.append, level='WARNING')
    wrapped(critic_loss_weight=0.5, self_cond_train_prob=0.1)
    logger.remove(sink)
    assert len(texts) == 2 and '`critic_loss_weight` has no effect unless' in texts[0]


def counting(b):
    return (torch.randint(0, MASK, (b, 1)) + torch.arange(N)) % MASK


def taught_to_count(steps, **keywords):
    torch.manual_seed(0)
    around = TransformerWrapper(
        num_tokens=V, max_seq_len=N, attn_layers=Encoder(dim=32, depth=2, heads=2, attn_dim_head=16)
    )
    model = NonAutoregressiveWrapper(around, mask_id=MASK, steps=N, schedule='cosine', **keywords)
    fit(model, lambda: model(counting(32)).loss, steps, falls=True)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize('keywords', [{}, dict(self_token_critic=True)], ids=str)
def test_n1_it_learns_to_count(keywords):
    """Rows that count on from any number: 9 of 10 rows that are generated do, and not from one number alone."""
    found = taught_to_count(500, **keywords).generate(200)
    right = (found == (found[:, :1] + torch.arange(N)) % MASK).all(dim=-1)
    assert right.float().mean() > 0.9
    assert len(found[right][:, 0].unique()) > 2


@pytest.mark.slow
@torch.no_grad()
def test_n3_it_learns_to_fill_in_with_its_first_guess():
    """The same rows, half of each hidden: 95 of 100 tokens are guessed right, given the embeddings of a first guess."""
    with torch.enable_grad():
        model = taught_to_count(1000, self_cond=True)
    x = counting(200)
    hidden = torch.rand(x.shape).argsort(dim=-1) < N // 2
    shown = x.masked_fill(hidden, MASK)
    logits, _ = model.guess(shown, model.net(shown, return_embeddings=True), {})
    assert (logits.argmax(dim=-1) == x)[hidden].float().mean() > 0.95


def test_a_critic_learns_from_real_tokens_alone():
    model, x = wrapped(self_token_critic=True), ids()
    filled, real = x.roll(1, dims=1), torch.arange(N) < torch.tensor([[N], [N - 2], [1]])
    scores = model.criticised(filled.masked_fill(~real, model.mask_id), {'mask': real})
    wrong = (filled != x).to(scores.dtype)
    each = -(wrong * scores.sigmoid().log() + (1 - wrong) * (-scores).sigmoid().log())
    assert_close(model.critic_loss(filled, x, real, {'mask': real}), each[real].mean())
