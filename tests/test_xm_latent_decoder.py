"""Learning from the best of several latents, against plain calls of the net, row by row."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import DIM, VOCAB, fit, ids_of, net_of

from x_transformers import AutoregressiveWrapper, Encoder
from x_transformers.flags import ConfigError
from x_transformers.xm_latent_decoder import XMLatentDecoder, lowest_loss_winner_fn


def build(model=None, **options):
    return XMLatentDecoder(net_of(**{'max_seq_len': 16, **(model or {})}), **options)


def model_of(model=None, **options):
    return randomised(build(model, **options), scale=0.3)


def by_hand(model, ids, latents, ignored=(), worst=False):
    """The loss of the best candidate, row by row, and the disagreement; `ignored` (row, place) are no targets."""
    chosen, apart = [], []
    for row, tokens in enumerate(ids):
        losses, probs = [], []
        kept = [at for at in range(1, len(tokens)) if (row, at) not in ignored]
        for candidate in latents[row]:
            prefix = model.latent_proj(candidate)[None]
            logits = model.net(tokens[None].clamp(min=0), prepend_embeds=prefix)[0, len(candidate) :]
            losses.append(F.cross_entropy(logits[[at - 1 for at in kept]], tokens[kept]))
            probs.append(logits[[at - 1 for at in kept]].softmax(-1))
        chosen.append(max(losses) if worst else min(losses))
        mean = sum(probs) / len(probs)
        apart += list(sum((p * (p / mean).log()).sum(-1) for p in probs) / len(probs))
    return sum(chosen) / len(chosen), sum(apart) / len(apart)


@pytest.mark.parametrize('options', [{}, dict(latent_dim=5), dict(always_latent_proj=True)], ids=str)
@pytest.mark.parametrize('most', [None, 2, 4])
def test_the_loss_of_the_best(options, most):
    model, ids = model_of(**options, max_batch_size=most), ids_of(3, 6)
    latents = randn(3, 3, 4, model.latent_dim)
    loss, apart = by_hand(model, ids, latents)
    assert_close(model(ids, latents=latents), loss)
    assert_close(model(ids, latents=latents, repulsive_loss_weight=0.7), loss - 0.7 * apart)


def test_b12_ignored_ids_and_masks_with_and_without_latents():
    model, ids, latents = model_of(), ids_of(3, 6), randn(3, 2, 4, DIM)
    ids[0, 4:] = ids[2, 5] = -100
    ignored = {(0, 4), (0, 5), (2, 5)}
    wanted = by_hand(model, ids, latents, ignored)[0]
    assert_close(model(ids, latents=latents), wanted)
    mask = ids != -100
    assert_close(model(ids.clamp(min=0), latents=latents, mask=mask), wanted)
    model.train()
    plain = AutoregressiveWrapper(model.net)(ids)
    assert_close(model(ids, latent_drop_prob=1.0), plain)
    assert_close(model(ids.clamp(min=0), latent_drop_prob=1.0, mask=mask), plain)


def test_latents_are_dropped_in_training_only():
    model, ids, latents = model_of(latent_drop_prob=1.0), ids_of(3, 6), randn(3, 2, 4, DIM)
    wanted, plain = by_hand(model, ids, latents)[0], AutoregressiveWrapper(model.net)(ids)
    assert_close(model.eval()(ids, latents=latents), wanted)
    assert_close(model.train()(ids, latents=latents), plain)
    assert (wanted - plain).abs() > 1e-3


def test_rows_without_targets_do_not_count():
    model, ids, latents = model_of(), ids_of(3, 6), randn(3, 2, 4, DIM)
    ids[1] = -100
    wanted = by_hand(model, ids[[0, 2]], latents[[0, 2]])[0]
    assert_close(model(ids, latents=latents), wanted)
    loss = model(torch.full_like(ids, -100), latents=latents)
    assert loss == 0
    loss.backward()


@pytest.mark.parametrize('most', [None, 2], ids=['whole', 'b12 in parts'])
def test_another_rule_chooses(most):
    model, ids, latents, told = model_of(max_batch_size=most), ids_of(3, 6), randn(3, 2, 4, DIM), []

    def worst(losses, intermediates):
        told.append(intermediates)
        return losses.argmax(dim=-1)

    wanted = by_hand(model, ids, latents, worst=True)[0]
    assert_close(model(ids, latents=latents, winner_fn=worst), wanted)
    assert isinstance(told[0], list) == (most is not None)
    rules = [lowest_loss_winner_fn] * 3 + [worst]
    assert_close(model(ids, latents=latents, winner_fns=rules, active_latent_index=3), wanted)
    assert_close(model(ids, latents=latents, winner_fns=rules, active_latent_index=0), by_hand(model, ids, latents)[0])


def test_candidates_share_all_latents_but_the_active_one():
    model, ids, given = model_of(), ids_of(3, 6), randn(3, 4, DIM)
    logits, latents = model(ids, latents=given, candidates=5, active_latent_index=1, return_loss=False)
    assert logits.shape == (3, 5, 6, VOCAB) and latents.shape == (3, 5, 4, DIM)
    for slot in (0, 2, 3):
        assert_close(latents[:, :, slot], given[:, None, slot].expand(-1, 5, -1))
    assert latents[:, :, 1].flatten(0, 1).unique(dim=0).shape[0] == 15
    active = {int((model(ids, return_loss=False)[1].std(dim=1) > 0).any(-1).int()[0].argmax()) for _ in range(40)}
    assert active == {0, 1, 2, 3}
    assert_close(model(ids, latents=latents, return_loss=False)[0], logits)


def test_what_latents_may_be():
    model, given = model_of(), randn(4, DIM)
    assert_close(model.init_latents(given, 3), given.expand(3, -1, -1))
    found = model.init_latents([None, given[1], randn(3, DIM), None], 3)
    assert found.shape == (3, 4, DIM)
    assert_close(found[:, 1], given[1].expand(3, -1))
    drawn = model.init_latents(None, 1000)
    assert drawn.mean().abs() < 0.02 and abs(drawn.std() - 1) < 0.02


def test_inputs_of_the_net_go_with_their_row():
    model, ids, latents = model_of(dict(stack=dict(cross_attend=True))), ids_of(2, 5), randn(2, 3, 4, DIM)
    context = randn(2, 3, DIM)
    logits, _ = model(ids, latents=latents, context=context, return_loss=False, max_batch_size=4)
    for row in range(2):
        for k in range(3):
            wanted = model.net(ids[row : row + 1], prepend_embeds=latents[row, k][None], context=context[row : row + 1])
            assert_close(logits[row, k], wanted[0, 4:])


@pytest.mark.parametrize('cache_kv', [True, False], ids=['cached', 'uncached'])
def test_it_continues_given_latents(cache_kv):
    model, prompts, latents = model_of(), ids_of(3, 3), randn(3, 4, DIM)
    ids = prompts
    for _ in range(5):
        ids = torch.cat((ids, model.net(ids, prepend_embeds=latents)[:, -1:].argmax(dim=-1)), dim=1)
    options = dict(temperature=0.0, cache_kv=cache_kv)
    assert torch.equal(model.generate(prompts, 5, latents=latents, **options), ids[:, 3:])
    assert torch.equal(model.generate(prompts[0], 5, latents=latents[0], **options), ids[0, 3:])
    model.train()
    model.generate(prompts, 1)
    assert model.training and model.net.training


def test_b12_it_continues_given_the_best_latents():
    model, prompts = model_of(), ids_of(3, 4)
    tokens, (latents, winners) = model.generate_with_candidate_latents(
        prompts, 5, candidates=3, return_best_latents=True, temperature=0.0
    )
    assert latents.shape == (3, 3, 4, DIM) and winners.shape == (3,)
    logits, _ = model(prompts, latents=latents, return_loss=False)
    losses = F.cross_entropy(
        logits[:, :, :-1].movedim(-1, 1), prompts[:, None, 1:].expand(-1, 3, -1), reduction='none'
    ).mean(dim=-1)
    assert torch.equal(winners, losses.argmin(dim=-1))
    best = latents[torch.arange(3), winners]
    assert torch.equal(tokens, model.generate(prompts, 5, latents=best, temperature=0.0))
    # a rule of the caller's sees the logits of the prompts
    tokens, (_, winners) = model.generate_with_candidate_latents(
        prompts, 5, lambda z: z[:, :, -1, 0].argmax(dim=-1), latents=latents, return_best_latents=True, temperature=0.0
    )
    assert torch.equal(winners, logits[:, :, -1, 0].argmax(dim=-1))
    model.generate_with_candidate_latents(prompts, 2, prompt_lens=torch.tensor([2, 4, 1]))
    outs = [model.generate_with_candidate_latents(prompts, 2, prompt_lens=lens, latents=latents, temperature=0.0)
            for lens in (torch.tensor([2, 4, 1]), [2, 4, 1])]  # fmt: skip
    assert torch.equal(*outs)


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(dict(kind=Encoder)), 'causal'),
        (lambda: build(dim=5), '`dim` got 5'),
        (lambda: build(winner_fns=[lowest_loss_winner_fn] * 3), r'`winner_fns` must .*got 3'),
        (lambda: build()(ids_of(2, 1)), '`seq`'),
        (lambda: build()(ids_of(2, 5), latents=torch.randn(2, 3, DIM)), r'`latents` must .*got shape'),
        (lambda: build()(ids_of(2, 5), latents=[None]), r'`latents` must .*got 1'),
        (lambda: build()(ids_of(2, 5), latents=[randn(2, 2, DIM), None, None, None]), r'`latents` got .*\(2, 2, 16\)'),
        (lambda: build().generate(ids_of(2, 5), 3, latents=[randn(3, DIM)] * 4), r'`latents` got .*\(3, 16\)'),
        (lambda: build().generate_with_candidate_latents(ids_of(2, 5), 3, prompt_lens=[2]), '`prompt_lens` must '),
        (lambda: build()(ids_of(2, 5), candidates=0), '`candidates`'),
        (lambda: build()(ids_of(2, 5), active_latent_index=4), '`active_latent_index`'),
        (lambda: build()(ids_of(2, 5), winner_fn=lambda losses, _: losses), '`winner_fn` must give'),
        (lambda: build()(ids_of(2, 5), mask=torch.ones(2, 4).bool()), '`mask`'),
        (lambda: build()(ids_of(2, 5), prepend_embeds=torch.randn(2, 1, DIM)), '`prepend_embeds`'),
        (lambda: build().generate(ids_of(2, 5), 3, latents=torch.randn(2, 2, 4, DIM)), 'candidates'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


def test_names():
    assert {'latent_proj.weight', 'latent_proj.bias', 'net.to_logits.weight'} <= set(build(latent_dim=5).state_dict())
    assert not any('latent_proj' in name for name in build().state_dict())


@pytest.mark.slow
def test_latents_learn_to_tell_futures_apart():
    """Half of the rows count up, half down: with the right latent, the second token is no coin toss."""
    torch.manual_seed(0)

    def rows(b):
        start, step = torch.randint(0, VOCAB, (b, 1)), torch.randint(0, 2, (b, 1)) * 2 - 1
        return (start + step * torch.arange(6)) % VOCAB

    model = build(num_latents=1, candidates=4)
    fit(model, lambda: model(rows(32)), 400)
    ids = rows(64)
    one = torch.stack([model.eval()(ids, candidates=1).detach() for _ in range(10)]).mean()
    assert model(ids, candidates=16) < 0.7 * one
    out = model.generate(ids[:, :2], 4, temperature=0.0)
    assert (out == ids[:, 2:]).float().mean() > 0.95
