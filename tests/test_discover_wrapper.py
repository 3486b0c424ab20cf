"""Tensor product representations: roles, the sum of what is bound, and surgery on encodings."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
import toy_nets
from oracles import assert_close, randn, randomised
from training_laws import DIM, fit, net_of

from x_transformers import Encoder
from x_transformers.discover_wrapper import (
    ROLE_SCHEMES,
    DiscoverDecoder,
    TPREncoder,
    num_roles_for_scheme,
    role_ids_for_tokens,
)
from x_transformers.flags import ConfigError

FILLERS, BOS, PAD, MOST = 6, 7, 8, 6


def build(model=None, **options):
    sizes = dict(num_fillers=FILLERS, bos_id=BOS, pad_id=PAD, max_seq_len=MOST)
    return DiscoverDecoder(
        decoder=net_of(**{'num_tokens': 9, 'max_seq_len': 16, **(model or {})}), **{**sizes, **options}
    )


def model_of(**options):
    return randomised(build(**options), scale=0.3)


ids_of = partial(toy_nets.ids_of, vocab=FILLERS)


LENGTHS = torch.tensor([6, 4, 1])


def padded(ids):
    return ids.masked_fill(torch.arange(ids.shape[1]) >= LENGTHS[:, None], PAD)


def role_by_hand(row, at, scheme):
    if scheme == 'left_to_right':
        return at
    if scheme == 'right_to_left':
        return len(row) - 1 - at
    if scheme == 'wickel':
        left, right = (row[i] if 0 <= i < len(row) else FILLERS for i in (at - 1, at + 1))
        return left * (FILLERS + 1) + right
    if scheme == 'bidirectional':
        # all pairs of distances from both ends, shorter rows first
        return [(length, i) for length in range(1, MOST + 1) for i in range(length)].index((len(row), at))
    return 0


@pytest.mark.parametrize('scheme', ROLE_SCHEMES)
def test_roles(scheme):
    sizes = dict(max_seq_len=MOST, num_fillers=FILLERS)
    ids = ids_of(3, 6)
    found = role_ids_for_tokens(padded(ids), LENGTHS, scheme, **sizes)
    for row, length, roles in zip(ids.tolist(), LENGTHS.tolist(), found.tolist(), strict=True):
        wanted = [role_by_hand(row[:length], at, scheme) for at in range(length)]
        assert roles == wanted + [0] * (6 - length)
    every = {(n, at): role_by_hand(list(range(n)), at, scheme) for n in range(1, MOST + 1) for at in range(n)}
    assert max(every.values()) < num_roles_for_scheme(scheme, **sizes)


@pytest.mark.parametrize('wide', [None, 7])
def test_the_sum_of_what_is_bound(wide):
    model = randomised(TPREncoder(dim=5, num_fillers=FILLERS, num_roles=4, filler_dim=3, role_dim=2, mlp_dim=wide))
    tokens, roles = ids_of(2, 4), torch.randint(0, 4, (2, 4))
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0]]).bool()
    for given in (None, mask):
        for row in range(2):
            total = model.bias.clone()
            for at in range(4):
                if given is None or given[row, at]:
                    filler, role = model.filler_emb.weight[tokens[row, at]], model.role_emb.weight[roles[row, at]]
                    total = total + torch.stack([filler @ matrix @ role for matrix in model.binding])
            assert_close(model.state(tokens, roles, given)[row], total)
            assert_close(model(tokens, roles, given)[row], total if wide is None else model.mlp(total))
    # what is masked may be any id
    assert_close(model(tokens.masked_fill(~mask, 99), roles, mask), model(tokens, roles, mask))


def test_initial_values_of_the_sum():
    model = TPREncoder(dim=5, num_fillers=600, num_roles=400)
    assert not model.binding.any() and not model.bias.any() and model.mlp is None
    for table in (model.filler_emb.weight, model.role_emb.weight):
        assert abs(table.std() - 0.05) < 0.002 and table.shape[1] == 24


@pytest.mark.parametrize('place', ['last', 0])
def test_encodings_are_hidden_states(place):
    model, ids = model_of(enc_pos=place), ids_of(3, 6)
    for given in (None, padded(ids) != PAD):
        found = model.encode(padded(ids), given)
        for row, length in enumerate(LENGTHS.tolist()):
            hidden = model.decoder(ids[row : row + 1, :length], return_embeddings=True)[0]
            assert_close(found[row], hidden[-1 if place == 'last' else 0])
    assert_close(model(padded(ids)), model.encode(padded(ids)))


def test_decoding_given_an_encoding():
    model, encodings = model_of(), 3 * randn(3, DIM)
    ids = torch.full((3, 1), BOS)
    for _ in range(MOST):
        logits = model.decoder(ids, prepend_embeds=encodings[:, None])[:, -1:]
        logits[..., PAD] = -torch.inf  # padding is never an answer
        ids = torch.cat((ids, logits.argmax(dim=-1)), dim=1)
    ids = ids[:, 1:]
    assert torch.equal(model.decode(encodings, LENGTHS), padded(ids))
    assert torch.equal(model.decode(encodings, LENGTHS.clamp(max=3)), ids[:, :3].masked_fill(
        torch.arange(3) >= LENGTHS[:, None], PAD))  # fmt: skip
    end = int(ids[0, 1])
    found = model.decode(encodings, eos_id=end, max_len=4)
    for row, wanted in zip(found.tolist(), ids[:, :4].tolist(), strict=True):
        stop = wanted.index(end) + 1 if end in wanted else 4
        assert row == (wanted[:stop] + [PAD] * 4)[: found.shape[1]]
    targets = ids_of(3, 4)
    logits = model(padded(ids_of(3, 6)), targets)
    inputs = torch.cat((torch.full((3, 1), BOS), targets[:, :-1]), dim=1)
    wanted = model.decoder(inputs, prepend_embeds=model.encode(padded(ids_of(3, 6)))[:, None])
    assert_close(logits, wanted[:, 1:])


def test_surgery_adds_the_difference():
    model = model_of()
    tpr = randomised(TPREncoder(dim=DIM, num_fillers=FILLERS, num_roles=MOST), scale=0.5)
    old, new = ids_of(3, 6), ids_of(3, 6, seed=1)
    roles, lengths = torch.arange(6).expand(3, 6), LENGTHS.flip(0)
    assert not torch.equal(lengths, LENGTHS)
    encodings = model.encode(padded(old))
    for row, (before, after) in enumerate(zip(LENGTHS.tolist(), lengths.tolist(), strict=True)):
        gone, come = (slice(row, row + 1), slice(0, before)), (slice(row, row + 1), slice(0, after))
        encodings[row] += (tpr(new[come], roles[come]) - tpr(old[gone], roles[gone]))[0]
    edited = new.masked_fill(torch.arange(6) >= lengths[:, None], model.pad_id)
    found = model.surgery(padded(old), edited, roles, roles, tpr)
    assert torch.equal(found, model.decode(encodings, lengths))


def test_fitting_finds_a_sum_that_there_is():
    teacher = randomised(TPREncoder(dim=5, num_fillers=FILLERS, num_roles=4, filler_dim=3, role_dim=2)).float()
    model = TPREncoder(dim=5, num_fillers=FILLERS, num_roles=4, filler_dim=6, role_dim=4)
    tokens, roles = ids_of(64, 4), torch.arange(4).expand(64, 4)
    targets = teacher(tokens, roles).detach()
    mean = targets.var(dim=0, unbiased=False).mean()
    loss = model.fit(tokens, roles, targets, steps=300, lr=0.02)
    assert isinstance(loss, float) and loss < 0.05 * mean
    assert all(p.grad is not None for p in model.parameters())


def test_the_loss_of_fitting_is_a_running_mean():
    tpr = randomised(TPREncoder(dim=5, num_fillers=FILLERS, num_roles=4))
    tokens, roles, targets = ids_of(64, 4), torch.arange(4).expand(64, 4), randn(64, 5)
    torch.manual_seed(3)
    found = tpr.fit(tokens, roles, targets, steps=4, batch_size=2, lr=0.0, ema_decay=0.75)
    torch.manual_seed(3)
    losses = [F.mse_loss(tpr(tokens[rows], roles[rows]), targets[rows]) for rows in torch.randint(64, (4, 2))]
    wanted = losses[0]
    for loss in losses[1:]:
        wanted = 0.75 * wanted + 0.25 * loss
    assert found == pytest.approx(wanted.item(), rel=1e-12)


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(dict(kind=Encoder)), 'causal'),
        (lambda: build(dict(emb_dim=8)), '`emb_dim`'),
        (lambda: build(bos_id=9), r'`bos_id` must .*got 9'),
        (lambda: build(pad_id=2), r'`pad_id` must .*got 2'),
        (lambda: build(enc_pos=6), r'`enc_pos` must .*got 6'),
        (lambda: build(enc_pos='first'), '`enc_pos`'),
        (lambda: build().encode(ids_of(2, 7)), r'`tokens` must .*got 7'),
        (lambda: build(enc_pos=3).encode(ids_of(2, 3)), '`enc_pos`, 3'),
        (lambda: build().encode(ids_of(2, 3), torch.ones(2, 4).bool()), '`mask`'),
        (lambda: build().decode(torch.randn(2, 4), eos_id=1), '`encodings`'),
        (lambda: build().decode(torch.randn(2, DIM)), 'give one of them'),
        (lambda: build().decode(torch.randn(2, DIM), torch.tensor([2, 7])), r'`lengths` must .*got 7'),
        (lambda: build().decode(torch.randn(2, DIM), torch.tensor([2])), '`lengths`'),
        (lambda: build()(ids_of(2, 3), ids_of(3, 3)), '`targets`'),
        (lambda: TPREncoder(dim=3, num_fillers=4, num_roles=0), '`num_roles`'),
        (lambda: TPREncoder(dim=3, num_fillers=4, num_roles=2)(ids_of(2, 3), ids_of(2, 4)), '`role_ids`'),
        (lambda: role_ids_for_tokens(ids_of(2, 3), LENGTHS[:2], 'up', max_seq_len=3, num_fillers=6), '`scheme`'),
        (lambda: role_ids_for_tokens(ids_of(2, 3), LENGTHS, 'wickel', max_seq_len=3, num_fillers=6), '`lengths`'),
        (lambda: role_ids_for_tokens(ids_of(2, 3), LENGTHS[:2], 'wickel', max_seq_len=2, num_fillers=6), '`tokens`'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


def test_names():
    model, tpr = build(), TPREncoder(dim=DIM, num_fillers=FILLERS, num_roles=4, mlp_dim=5)
    names = {'binding', 'bias', 'filler_emb.weight', 'role_emb.weight', 'mlp.0.weight', 'mlp.2.bias'}
    assert names <= set(tpr.state_dict()) and all(name.startswith('decoder.') for name in model.state_dict())


@pytest.mark.slow
def test_it_learns_to_repeat_sequences_and_surgery_changes_a_token():
    torch.manual_seed(0)
    length = 3
    model, lengths = build(dict(emb_dim=None)), torch.full((256,), length)

    def loss():
        ids = torch.randint(0, FILLERS, (64, length))
        return F.cross_entropy(model(ids, ids).flatten(0, 1), ids.flatten())

    fit(model, loss, 500, lr=4e-3)
    model.eval()
    ids = torch.randint(0, FILLERS, (256, length))
    assert (model.decode(model(ids), lengths) == ids).float().mean() > 0.95
    tpr = TPREncoder(dim=DIM, num_fillers=FILLERS, num_roles=length)
    roles = torch.arange(length).expand(256, length)
    encodings = model(ids).detach()
    assert tpr.fit(ids, roles, encodings, steps=600) < 0.5 * encodings.var(dim=0).mean()
    edited = ids.clone()
    edited[:, 1] = (ids[:, 1] + 1) % FILLERS
    found = model.surgery(ids, edited, roles, roles, tpr)
    assert (found == edited).float().mean() > 0.8
