"""Hidden states that foretell one another, against loops over rows, places and steps."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import DIM, VOCAB, fit, holes, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Encoder
from x_transformers.flags import ConfigError
from x_transformers.next_latent_wrapper import (
    MSECosineSimLoss,
    NextLatentWrapper,
    RolloutGRU,
    sigreg_loss,
)


def wrapped(model=None, **wrapper):
    return randomised(NextLatentWrapper(net_of(**(model or {})), dim=DIM, **wrapper), scale=0.4)


def step_of(model, state, action):
    """One step of the dynamics for one token."""
    if isinstance(model.dynamics_model, RolloutGRU):
        gru = model.dynamics_model.gru
        cell = torch.nn.GRUCell(gru.input_size, gru.hidden_size).double()
        cell.load_state_dict({name.removesuffix('_l0'): t for name, t in gru.state_dict().items()})
        return cell(action, state)
    return state + model.dynamics_model.net(torch.cat((state, action)))


DISTANCES = {
    'mse': lambda z, h: (z - h).square(),
    'smooth_l1': lambda z, h: torch.where((z - h).abs() < 1, 0.5 * (z - h).square(), (z - h).abs() - 0.5),
    'mse_and_cosine_sim': lambda z, h: 0.1 * (z - h).square() + 0.9 * (1 - z @ h / z.norm() / h.norm()),
}


def by_hand(model, x, kind='smooth_l1', weights=(1.0,), decay=1.0):
    """The next-token loss, the distances and the divergences."""
    ids = x.masked_fill(x == -100, 0)
    logits, hidden = model.net(ids, return_logits_and_embeddings=True)
    ce = F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten(), ignore_index=-100)
    found = [[] for _ in weights]
    for row, tokens in enumerate(x):
        for place in range(x.shape[1] - 1):
            state, faded = hidden[row, place], 0.0
            for step, weight in enumerate(weights, start=1):
                there = place + step
                if there >= x.shape[1]:
                    break
                state = step_of(model, state, model.net.token_emb(ids[row : row + 1, there])[0])
                goal = hidden[row, there]
                distance = DISTANCES[kind](state, goal).mean()
                wanted, got = model.net.to_logits(goal).softmax(-1), model.net.to_logits(state).softmax(-1)
                divergence = (wanted * (wanted / got).log()).sum()
                factor = weight / sum(weights) * math.exp(-decay * faded)
                if tokens[there] != -100:
                    found[step - 1].append(torch.stack((factor * distance, factor * divergence)))
                faded += distance.item()
    return ce, *sum(torch.stack(step).mean(dim=0) for step in found)


@pytest.mark.parametrize('make', [ids_of, holes], ids=['full', 'holes'])
@pytest.mark.parametrize('kind', DISTANCES)
@pytest.mark.parametrize('dynamics', ['residual', 'gru'])
def test_the_losses_of_several_steps(make, kind, dynamics):
    model, ids = wrapped(num_rollouts=2, loss_type=kind, dynamics_type=dynamics), make(2, 6)
    total, parts = model(ids, return_loss_breakdown=True)
    for one, other in zip(parts[:3], by_hand(model, ids, kind, (1.0,) * 2), strict=True):
        assert_close(one, other)
    assert parts.sigreg == 0
    assert_close(total, sum(parts))


def test_weights_of_steps_and_losses():
    settings = dict(num_rollouts=2, next_latent_loss_weight=0.3, kl_loss_weight=2.0, rollout_weights=(1.0, 3.0))
    for options, decay in ((dict(dynamic_loss_decay=0.5), 0.5), (dict(dynamic_rollout_loss_weight=False), 0.0)):
        model, ids = wrapped(**settings, **options), ids_of(2, 6)
        ce, distance, divergence = by_hand(model, ids, weights=(1.0, 3.0), decay=decay)
        assert_close(model(ids), ce + 0.3 * distance + 2.0 * divergence, tolerance=1e-7)
    model = wrapped(next_latent_loss_weight=0.0, kl_loss_weight=0.0)
    assert_close(model(ids), AutoregressiveWrapper(model.net)(ids))


def test_nothing_but_states_and_dynamics_learns():
    """Targets, tokens and the head are given."""
    model, ids = wrapped(), ids_of(2, 6)
    _, parts = model(ids, return_loss_breakdown=True)
    for loss in (parts.next_latent, parts.kl):
        model.zero_grad()
        loss.backward(retain_graph=True)
        assert model.net.to_logits.weight.grad is None
        for parameter in model.dynamics_model.parameters():
            assert parameter.grad.abs().max() > 0
        assert model.net.attn_layers.layers[0][1].to_q.weight.grad.abs().max() > 0
    ids[:, -1] = 10  # the last token is a target and a token that follows, but never part of a state
    ids[:, :-1] = ids[:, :-1].clamp(max=9)
    _, parts = model(ids, return_loss_breakdown=True)
    model.zero_grad()
    (parts.next_latent + parts.kl).backward()
    assert model.net.token_emb.emb.weight.grad[10].abs().max() == 0


@pytest.mark.parametrize('rollouts', [1, 2])
def test_b5_tied_embeddings(rollouts):
    model, ids = wrapped(dict(tie_embedding=True), num_rollouts=rollouts), ids_of(2, 6)
    _, parts = model(ids, return_loss_breakdown=True)
    for one, other in zip(parts[:3], by_hand(model, ids, weights=(1.0,) * rollouts), strict=True):
        assert_close(one, other)
    ids = ids.clamp(max=9)
    _, parts = model(ids, return_loss_breakdown=True)
    parts.kl.backward()
    assert model.net.token_emb.emb.weight.grad[10].abs().max() == 0, 'the table does not learn as a head'


def test_several_heads_and_logits_that_are_changed():
    model, ids = wrapped(dict(num_output_heads=2)), ids_of(2, 6)
    _, parts = model(ids, return_loss_breakdown=True)
    each = []
    for head in model.net.to_logits:
        one = wrapped()
        one.load_state_dict({n: t for n, t in model.state_dict().items() if 'to_logits' not in n}
                            | {'net.to_logits.weight': head.weight})  # fmt: skip
        each.append(one(ids, return_loss_breakdown=True)[1])
    assert_close(parts.kl, (each[0].kl + each[1].kl) / 2)
    assert_close(parts.ce, (each[0].ce + each[1].ce) / 2)
    bent, plain = wrapped(dict(sigsoftmax_logits=True)), wrapped()
    assert (bent(ids, return_loss_breakdown=True)[1].kl - plain(ids, return_loss_breakdown=True)[1].kl).abs() > 1e-6


def test_embeddings_of_another_width():
    for dynamics in ('residual', 'gru'):
        model, ids = wrapped(dict(emb_dim=6), dynamics_type=dynamics), ids_of(2, 6)
        parts = model(ids, return_loss_breakdown=True)[1]
        assert_close(parts.next_latent, by_hand(model, ids)[1])


def test_dynamics_and_distances_of_ones_own():
    class Stay(torch.nn.Module):
        def forward(self, tokens, states):
            return states.expand(len(tokens), -1, -1, -1)

    model = wrapped(dynamics_type='custom', dynamics_network=Stay(), loss_type=torch.nn.L1Loss(reduction='none'),
                    kl_loss_weight=0.0)  # fmt: skip
    ids = ids_of(2, 6)
    hidden = model.net(ids, return_embeddings=True)
    assert_close(model(ids, return_loss_breakdown=True)[1].next_latent, (hidden[:, 1:] - hidden[:, :-1]).abs().mean())
    net = torch.nn.Linear(2 * DIM, DIM)
    model = wrapped(dynamics_network=net)
    assert_close(model(ids, return_loss_breakdown=True)[1].next_latent, by_hand(model, ids)[1])


def test_no_target_no_loss():
    model = wrapped(sigreg_loss_weight=1.0)
    loss = model(torch.full((2, 5), -100))
    loss.backward()
    assert loss.item() == 0


def test_a_mask_reaches_the_net():
    model, ids = wrapped(kl_loss_weight=0.0), ids_of(2, 6)
    mask = torch.arange(6) < torch.tensor([[6], [3]])
    ids[1, 3:] = -100
    assert_close(model(ids, mask=mask), model(ids))


# SIGReg


def test_sigreg_of_one_dimension():
    """There is one direction and its opposite, so that nothing is left to chance."""
    x, mask = randn(3, 5, 1), torch.arange(5) < torch.tensor([[5], [2], [0]])
    values = x[mask][:, 0].tolist()
    t = [-5 + 10 * k / 16 for k in range(17)]

    def apart(at):
        real = sum(math.cos(at * v) for v in values) / len(values) - math.exp(-at * at / 2)
        imaginary = sum(math.sin(at * v) for v in values) / len(values)
        return (real**2 + imaginary**2) * math.exp(-at * at / 2)

    expected = sum((apart(a) + apart(b)) / 2 * (b - a) for a, b in itertools.pairwise(t))
    assert sigreg_loss(x, mask=mask).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.costly
def test_sigreg_of_a_normal_distribution():
    normal = randn(2000, 6)
    assert sigreg_loss(normal, num_slices=64) < 2e-3
    for other in (2 * normal, normal + 1, normal[:, :1].sign() * normal.abs()):
        assert sigreg_loss(other, num_slices=64) > 10 * sigreg_loss(normal, num_slices=64)
    x = torch.nn.Parameter(0.3 * normal[:100] + 1)
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        sigreg_loss(x, num_slices=16).backward()
        optimiser.step()
    assert x.detach().std().item() == pytest.approx(1, abs=0.2)
    assert x.detach().mean().item() == pytest.approx(0, abs=0.2)


def test_b4_sigreg_is_part_of_the_loss():
    options = dict(sigreg_loss_weight=0.5, sigreg_loss_kwargs=dict(num_slices=32))
    model, ids = wrapped(**options), holes(2, 6)
    torch.manual_seed(1)
    total, parts = model(ids, return_loss_breakdown=True)
    torch.manual_seed(1)
    hidden = model.net(ids.clamp(min=0), return_embeddings=True)
    assert_close(parts.sigreg, sigreg_loss(hidden[:, :-1], mask=ids[:, 1:] != -100, num_slices=32))
    assert_close(total, parts.ce + parts.next_latent + parts.kl + 0.5 * parts.sigreg)
    parts.sigreg.backward()
    assert model.net.attn_layers.layers[0][1].to_q.weight.grad.abs().max() > 0


def test_squares_and_angles():
    one, other = randn(2, 3, 5), randn(2, 3, 5, seed=1)
    out = MSECosineSimLoss()(one, other)
    for i in range(2):
        for j in range(3):
            assert_close(out[i, j], DISTANCES['mse_and_cosine_sim'](one[i, j], other[i, j]))


# construction


def build(model=None, **wrapper):
    return NextLatentWrapper(net_of(**(model or {})), **{'dim': DIM, **wrapper})


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: build(dict(kind=Encoder)), 'causal'),
        (lambda: build(dim=8), '`dim`'),
        (lambda: build(num_rollouts=0), 'num_rollouts'),
        (lambda: build(num_rollouts=2, rollout_weights=(1.0,)), 'rollout_weights'),
        (lambda: build(rollout_weights=(0.0,)), 'rollout_weights'),
        (lambda: build(loss_type='l3'), 'loss_type'),
        (lambda: build(dynamics_type='lstm'), 'dynamics_type'),
        (lambda: build(dynamics_type='custom'), 'dynamics_network'),
        (lambda: build(dynamics_type='gru', dynamics_network=torch.nn.Linear(1, 1)), 'dynamics_network'),
        (lambda: build(dict(mixture_of_softmax=True)), 'kl_loss_weight'),
        (lambda: build(kl_loss_weight=-1.0), 'kl_loss_weight'),
        (lambda: build(num_rollout=2), 'num_rollouts'),
    ],
)
def test_refused_settings(make, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        make()


class Sum(torch.nn.Module):
    def forward(self, one, other):
        return (one - other).sum()


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: wrapped(num_rollouts=2)(ids_of(2, 3)), '`x`'),
        (lambda: wrapped()(randn(2, 5)), '`x`'),
        (lambda: wrapped()(ids_of(2, 5), prepend_embeds=randn(2, 1, DIM)), '`prepend_embeds`'),
        (lambda: wrapped()(ids_of(2, 5), return_embeddings=True), '`return_embeddings`'),
        (lambda: wrapped(loss_type=Sum())(ids_of(2, 5)), '`loss_type`'),
        (lambda: wrapped(dynamics_type='custom', dynamics_network=Sum())(ids_of(2, 5)), '`dynamics_network`'),
    ],
)
def test_refused_inputs(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_names_and_initial_values():
    model, ids = build(dynamics_hidden_dim=20), ids_of(2, 6)
    own = {n: tuple(t.shape) for n, t in model.state_dict().items() if not n.startswith('net.')}
    assert own == {
        'token_emb.emb.weight': (VOCAB, DIM),
        'dynamics_model.net.0.weight': (2 * DIM,),
        'dynamics_model.net.0.bias': (2 * DIM,),
        'dynamics_model.net.1.0.weight': (20, 2 * DIM),
        'dynamics_model.net.1.0.bias': (20,),
        'dynamics_model.net.1.2.weight': (20, 20),
        'dynamics_model.net.1.2.bias': (20,),
        'dynamics_model.net.1.4.weight': (DIM, 20),
        'dynamics_model.net.1.4.bias': (DIM,),
    }
    hidden = model.net(ids, return_embeddings=True)
    expected = F.smooth_l1_loss(hidden[:, :-1], hidden[:, 1:])
    assert_close(model(ids, return_loss_breakdown=True)[1].next_latent, expected, 'at first states stay', 1e-5)


# learning


@pytest.mark.slow
def test_it_learns_to_count_and_its_states_foretell_one_another():
    torch.manual_seed(0)

    def rows(b):
        start, step = torch.randint(0, VOCAB, (b, 1)), torch.randint(1, 4, (b, 1))
        return (start + step * torch.arange(8)) % VOCAB

    model = build(num_rollouts=2)
    first = model(rows(64), return_loss_breakdown=True)[1]
    fit(model, lambda: model(rows(32)), 400)
    ids = rows(64)
    last = model(ids, return_loss_breakdown=True)[1]
    assert last.next_latent < 0.5 * first.next_latent
    out = AutoregressiveWrapper(model.net).generate(ids[:, :2], 6, temperature=0.0)
    assert (out == ids[:, 2:]).float().mean() > 0.95
