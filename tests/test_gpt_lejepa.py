"""A model that learns in the space of its latents, against loops over rows, places and steps."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from training_laws import DIM, VOCAB, check_copies, fit, holes, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Encoder
from x_transformers.flags import ConfigError
from x_transformers.gpt_lejepa import LatentAutoregressive, scale_grad
from x_transformers.next_latent_wrapper import sigreg_loss


def build(model=None, **options):
    return LatentAutoregressive(net_of(**(model or {})), dim=DIM, **options)


def wrapped(model=None, **options):
    return randomised(build(model, **options), scale=0.4)


def by_hand(model, x, weights=(1.0,), index=-1, unit=True):
    """The next-token loss of the probe, and the distances with and without actions."""
    ids = x.masked_fill(x == -100, 0)
    hidden, trace = model.net(ids, return_embeddings_and_intermediates=True)
    source = hidden if index is None else trace.hiddens[index][:, model.net.num_memory_tokens :]
    probe = model.net.to_logits(hidden)
    ce = F.cross_entropy(probe[:, :-1].flatten(0, 1), x[:, 1:].flatten(), ignore_index=-100)
    totals = []
    for predictor, acts in ((model.to_next_embed_pred, True), (model.to_next_embed_no_action_pred, False)):
        total = torch.zeros((), dtype=torch.float64)
        for step, weight in enumerate(weights, start=1) if predictor is not None else ():
            errors = []
            for row in range(len(x)):
                for place in range(x.shape[1] - step):
                    state = source[row, place]
                    for at in range(1, step + 1):
                        action = [model.action_emb.weight[ids[row, place + at]]] if acts else []
                        state = predictor(torch.cat((state, *action)))
                    goal = hidden[row, place + step]
                    if unit:
                        state, goal = state / state.norm(), goal / goal.norm()
                    if x[row, place + step] != -100:
                        errors.append((state - goal).square().mean())
            total = total + weight / sum(weights) * torch.stack(errors).mean()
        totals.append(total)
    return ce, *totals


@pytest.mark.costly
@pytest.mark.parametrize('make', [ids_of, holes], ids=['full', 'holes'])
@pytest.mark.parametrize('unit', [True, False], ids=['unit', 'plain'])
@pytest.mark.parametrize('index', [-1, 0, None])
def test_the_losses_of_several_steps(make, unit, index):
    model = wrapped(
        num_rollouts=2,
        rollout_loss_weights=(1.0, 3.0),
        predict_next_embed_no_action=True,
        predict_next_cosine_sim=unit,
        predictor_input_hiddens_index=index,
        sigreg_loss_weight=0.2,
        l2_loss_weight=0.3,
    )
    ids = make(2, 6)
    total, parts = model(ids, return_loss_breakdown=True)
    for one, other in zip(parts[:3], by_hand(model, ids, (1.0, 3.0), index, unit), strict=True):
        assert_close(one, other)
    assert_close(total, parts.ce + 0.8 * 0.3 * (parts.l2 + parts.l2_no_action) + 0.2 * parts.sigreg)


def test_sigreg_looks_at_states_with_a_target():
    model, ids = wrapped(), holes(2, 6)
    hidden, trace = model.net(ids.clamp(min=0), return_embeddings_and_intermediates=True)
    real = ids[:, 1:] != -100
    torch.manual_seed(1)
    found = model(ids, return_loss_breakdown=True)[1].sigreg
    torch.manual_seed(1)
    wanted = [sigreg_loss(states[:, :-1][real]) for states in (hidden, trace.hiddens[-1])]
    assert_close(found, sum(wanted) / 2)


@pytest.mark.parametrize('fraction', [0.0, 0.3, 1.0])
def test_how_much_tokens_teach_the_model(fraction):
    """The gradient of the tokens' loss that reaches the model, as part of the whole."""
    ids, grads = ids_of(2, 6), []
    for frac in (fraction, 1.0):
        model = wrapped(frac_gradient=frac)
        model(ids, return_loss_breakdown=True)[1].ce.backward()
        grads.append(model.net.attn_layers.layers[0][1].to_q.weight.grad)
        assert model.net.to_logits[1].weight.grad.abs().max() > 0
    if fraction == 0:
        assert grads[0] is None
    else:
        assert_close(grads[0], fraction * grads[1])
    x = torch.randn(3)
    assert_close(scale_grad(x, 0.3), x)


@pytest.mark.parametrize('detach', [True, False])
def test_targets_learn_only_if_told(detach):
    model, ids = wrapped(detach_target=detach, predictor_input_hiddens_index=0), ids_of(2, 6)
    model(ids, return_loss_breakdown=True)[1].l2.backward()
    grad = model.net.attn_layers.layers[-2][1].to_q.weight.grad
    assert (grad is None) == detach


def test_b5_copies_stay_tied():
    model, ids = wrapped(dict(tie_embedding=True), sigreg_loss_weight=0.0), ids_of(2, 6)
    assert 'net.to_logits.6.weight' not in model.state_dict()
    for other in check_copies(model, lambda m: m(ids)):
        assert other.net.to_logits[6].shared[0] is other.net.token_emb


def test_names():
    names = set(build(ce_probe_module=torch.nn.Linear(DIM, DIM)).state_dict())
    layers = {f'{at}.{part}' for at in (1, 3, 5) for part in ('weight', 'bias')}
    assert {f'to_next_embed_pred.{layer}' for layer in layers} <= names
    assert {'to_next_embed_pred.0.g', 'action_emb.weight'} <= names
    assert {'net.to_logits.0.weight', 'net.to_logits.1.g', 'net.to_logits.7.weight'} <= names


def test_a_net_with_memory_tokens():
    model, ids = wrapped(dict(num_memory_tokens=2), sigreg_loss_weight=0.0), ids_of(2, 6)
    total, parts = model(ids, return_loss_breakdown=True)
    for one, other in zip(parts[:2], by_hand(model, ids)[:2], strict=True):
        assert_close(one, other)
    assert_close(total, parts.ce + parts.l2)


def test_a_net_with_several_heads():
    model, ids = wrapped(dict(num_output_heads=2)), ids_of(2, 6)
    hidden = model.net(ids, return_embeddings=True)
    losses = [F.cross_entropy(z[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) for z in model.net.to_logits(hidden)]
    assert_close(model(ids, return_loss_breakdown=True)[1].ce, sum(losses) / 2)


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: LatentAutoregressive(net_of(), dim=8), r'`dim` must .*got 8'),
        (lambda: build(dict(kind=Encoder)), 'causal'),
        (lambda: build(num_rollouts=2, rollout_loss_weights=(1.0,)), '`rollout_loss_weights`'),
        (lambda: build(predict_next_embed_with_action=False), 'nothing is foretold'),
        (lambda: build(predictor_input_hiddens_index=2), r'`predictor_input_hiddens_index` must .*got 2'),
        (lambda: build(dict(num_memory_tokens=2, memory_tokens_interspersed_every=2)), 'interspersed_every'),
        (lambda: build(sigreg_loss_weight=1.5), '`sigreg_loss_weight`'),
        (lambda: build(dict(mixture_of_softmax=True)), 'mixture_of_softmax'),
        (lambda: build(num_rollouts=3)(ids_of(2, 3)), '`x`'),
        (lambda: build()(ids_of(2, 5), prepend_embeds=torch.zeros(2, 1, DIM)), '`prepend_embeds`'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


@pytest.mark.slow
def test_the_probe_reads_tokens_off_latents_that_never_saw_their_loss():
    torch.manual_seed(0)

    def rows(b):
        start, step = torch.randint(0, VOCAB, (b, 1)), torch.randint(1, 3, (b, 1))
        return (start + step * torch.arange(8)) % VOCAB

    model = build(sigreg_loss_kwargs=dict(num_slices=64))
    first = model(rows(64), return_loss_breakdown=True)[1]
    fit(model, lambda: model(rows(32)), 600)
    ids = rows(64)
    last = model(ids, return_loss_breakdown=True)[1]
    assert last.l2 < 0.3 * first.l2
    out = AutoregressiveWrapper(model.net).generate(ids[:, :2], 6, temperature=0.0)
    assert (out == ids[:, 2:]).float().mean() > 0.9
