"""Belief states, against a loop that reads every prefix and every suffix by itself."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import (
    DIM,
    LIMIT,
    VOCAB,
    fit,
    ids_of,
    net_of,
)

from x_transformers import Encoder
from x_transformers.belief_state_wrapper import BeliefStateWrapper
from x_transformers.flags import ConfigError


def wrapped(two=False, model=None, **wrapper):
    nets = [net_of(**(model or {})) for _ in range(1 + two)]
    return randomised(BeliefStateWrapper(*nets, **wrapper), scale=0.4)


def belief_of(model, front, behind):
    """Both embeddings, of the tokens before and after a gap (lists of ids)."""
    first = model.suffix_token[None, None]
    forwards = model.forward_decoder(torch.tensor([front]), return_embeddings=True)[0, -1]
    suffix = torch.tensor([behind[::-1]]).long()
    backwards = model.backward_decoder(suffix, prepend_embeds=first, return_embeddings=True)[0, -1]
    return torch.cat((forwards, backwards))


def pair_losses(model, row, pairs=None):
    """Of one row: the losses of both directions, and of the distance, for each pair."""
    n, found = len(row), {}
    for f in range(n):
        for k in range(f + 2, n + 1):
            belief = belief_of(model, row[: f + 1], row[k:])
            logits = model.text_head(belief)
            both = [
                F.cross_entropy(logits[:VOCAB], torch.tensor(row[f + 1])),
                F.cross_entropy(logits[VOCAB:], torch.tensor(row[k - 1])),
            ]
            if model.to_distance_logits is not None:
                far = torch.tensor(min(k - f, model.max_pred_distance - 1))
                both.append(F.cross_entropy(model.to_distance_logits(belief), far))
            found[f, k] = torch.stack(both)
    return found


def by_hand(model, rows, weigh=lambda f, k: 1.0, backward=1.0, distance=0.0):
    each = [(pair, losses) for row in rows for pair, losses in pair_losses(model, row).items()]
    text = [(losses[0] + backward * losses[1]) / 2 * weigh(*pair) for pair, losses in each]
    total = torch.stack(text).mean()
    return total + distance * torch.stack([losses[2] for _, losses in each]).mean() if distance else total


# the loss


@pytest.mark.parametrize('two', [False, True], ids=['one decoder', 'two decoders'])
@pytest.mark.parametrize('length', [2, 3, 6])
def test_the_loss_is_that_of_every_prefix_with_every_suffix(two, length):
    model, ids = wrapped(two), ids_of(2, length)
    assert_close(model(ids), by_hand(model, ids.tolist()))


def test_a_weight_of_the_backward_direction():
    model, ids = wrapped(backward_ar_loss_weight=0.25), ids_of(2, 5)
    assert_close(model(ids), by_hand(model, ids.tolist(), backward=0.25))


@pytest.mark.parametrize('backward', [1.0, 0.25])
def test_b1_weights_of_pairs_always_count(backward):
    model, ids = wrapped(backward_ar_loss_weight=backward), ids_of(2, 5)
    weighted = model(ids, loss_weight_by_fb_indices=lambda pairs: pairs[:, 0] + 0.5 * pairs[:, 1])
    assert_close(weighted, by_hand(model, ids.tolist(), lambda f, k: f + 0.5 * k, backward))
    assert model(ids, loss_weight_by_fb_indices=lambda pairs: 0.0 * pairs[:, 0]).item() == 0
    both = model(ids, loss_weight_by_fb_indices=lambda pairs: torch.tensor([1.0, 0.25]).expand(len(pairs), 2))
    assert_close(both, by_hand(model, ids.tolist(), backward=0.25 * backward))


@pytest.mark.costly
@pytest.mark.parametrize('longest', [None, 4])
def test_the_distance_is_learned(longest):
    model = wrapped(pred_distance=True, pred_distance_loss_weight=0.7, max_pred_distance=longest)
    ids = ids_of(2, 7)
    assert_close(model(ids), by_hand(model, ids.tolist(), distance=0.7))


def test_b2_the_head_is_told_the_distance():
    model, ids = (
        wrapped(cond_on_distance=True, cond_on_distance_prob=1 - 1e-9, pred_distance=True).train(),
        ids_of(2, 5),
    )
    loss = model(ids)
    loss.backward()
    for parameter in model.to_distance_cond.parameters():
        assert parameter.grad.abs().max() > 0
    assert model.to_distance_logits[0].weight.grad is None, 'what it was told is not to be learned'
    total = []
    for row in ids.tolist():
        for f in range(5):
            for k in range(f + 2, 6):
                gate = model.to_distance_cond(torch.tensor(float(k - f)).double()).sigmoid()
                logits = model.text_head(belief_of(model, row[: f + 1], row[k:]) * gate)
                total += [F.cross_entropy(logits[:VOCAB], torch.tensor(row[f + 1]))]
                total += [F.cross_entropy(logits[VOCAB:], torch.tensor(row[k - 1]))]
    assert_close(loss, torch.stack(total).mean())
    model.eval()
    assert_close(model(ids), by_hand(model, ids.tolist(), distance=1.0))


@pytest.mark.parametrize('lens', [[6, 6], [6, 3], [2, 5], [4, 1], [0, 6]], ids=str)
@pytest.mark.parametrize('distance', [0.0, 1.0])
def test_b3_rows_of_unequal_length(lens, distance):
    """The pairs of all rows, whatever stands behind their ends."""
    model, ids = wrapped(pred_distance=distance > 0), ids_of(2, 6)
    expected = by_hand(model, [row[:n] for row, n in zip(ids.tolist(), lens, strict=True)], distance=distance)
    lens = torch.tensor(lens)
    assert_close(model(ids, lens=lens), expected)
    other = ids.masked_fill(torch.arange(6) >= lens[:, None], -1)
    assert_close(model(other, lens=lens), expected)


def test_rows_that_are_too_short_have_no_loss():
    model, ids = wrapped(), ids_of(2, 4)
    loss = model(ids, lens=torch.tensor([1, 0]))
    loss.backward()
    assert loss.item() == 0


def test_a_part_of_the_pairs():
    model, ids = wrapped(train_frac_forward_backward_pairs=0.25), ids_of(1, 6)
    found, drawn = pair_losses(model, ids[0].tolist()), []
    for _ in range(20):
        pairs = model.pairs(6, torch.device('cpu'))
        assert len(pairs) == int(0.25 * len(found))
        assert set(map(tuple, pairs.tolist())) <= set(found)
        drawn += map(tuple, pairs.tolist())
    assert set(drawn) == set(found)
    torch.manual_seed(0)
    pairs = model.pairs(6, torch.device('cpu'))
    torch.manual_seed(0)
    assert_close(model(ids), torch.stack([found[tuple(pair)].mean() for pair in pairs.tolist()]).mean())
    model.train_frac_forward_backward_pairs = 1e-9
    assert len(model.pairs(6, torch.device('cpu'))) == 1


# generation


def tokens_by_hand(model, rows, steps, ends=None, backwards=False):
    """Greedy, everything read again for each token."""
    made = []
    for number, row in enumerate(rows):
        row, end, new = list(row), list((ends or [[]] * len(rows))[number]), []
        for _ in range(steps):
            if backwards:
                belief = belief_of(model, end, row)
                new.append(model.text_head(belief)[VOCAB:].argmax().item())
                row = [new[-1], *row]
            else:
                belief = belief_of(model, row, end)
                new.append(model.text_head(belief)[:VOCAB].argmax().item())
                row = [*row, new[-1]]
        made.append(new)
    return made


@pytest.mark.parametrize('two', [False, True], ids=['one decoder', 'two decoders'])
@pytest.mark.parametrize('cache_kv', [False, True], ids=['uncached', 'cached'])
def test_it_continues_towards_a_suffix(two, cache_kv):
    model, ids, ends = wrapped(two), ids_of(2, 3), ids_of(2, 4, seed=1)
    options = dict(temperature=0.0, cache_kv=cache_kv)
    for suffix, lists in ((ends, ends.tolist()), (ends[0], [ends[0].tolist()] * 2), (None, None)):
        out = model.generate_with_suffix_cond(ids, 5, suffix=suffix, **options)
        assert out.tolist() == tokens_by_hand(model, ids.tolist(), 5, lists)
    assert torch.equal(model.generate_with_suffix_cond(ids[0], 5, suffix=ends[0], **options),
                       model.generate_with_suffix_cond(ids, 5, suffix=ends, **options)[0])  # fmt: skip


@pytest.mark.parametrize('cache_kv', [False, True], ids=['uncached', 'cached'])
def test_it_continues_backwards(cache_kv):
    model, ids, begins = wrapped(), ids_of(2, 3), ids_of(2, 4, seed=1)
    options = dict(temperature=0.0, cache_kv=cache_kv, decode_backwards=True)
    out = model.generate_with_suffix_cond(ids, 5, prefix=begins, **options)
    assert out.tolist() == tokens_by_hand(model, ids.tolist(), 5, begins.tolist(), backwards=True)
    torch.manual_seed(3)
    drawn = torch.randint(VOCAB, (2, 1))
    torch.manual_seed(3)
    out = model.generate_with_suffix_cond(ids, 5, **options)
    assert out.tolist() == tokens_by_hand(model, ids.tolist(), 5, drawn.tolist(), backwards=True)


def test_draws_ends_and_modes():
    model, ids = wrapped(model=dict(emb_dropout=0.5)).train(), ids_of(3, 3)
    one, two = (model.generate_with_suffix_cond(ids, 6, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, two)
    assert model.training
    assert model.forward_decoder.training
    plain = model.generate_with_suffix_cond(ids, 6, temperature=0.0)
    eos = plain[0, 1].item()
    ended = model.generate_with_suffix_cond(ids, 6, temperature=0.0, eos_token=eos)
    for row, whole in zip(ended.tolist(), plain.tolist(), strict=True):
        stop = whole.index(eos) + 1 if eos in whole else 6
        assert row == (whole[:stop] + [0] * 6)[: len(row)]
    assert model.generate_with_suffix_cond(ids, 0).shape == (3, 0)


# construction


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: BeliefStateWrapper(net_of(Encoder)), 'forward_decoder'),
        (lambda: BeliefStateWrapper(net_of(), net_of(average_pool_embed=True)), 'average_pool_embed'),
        (lambda: BeliefStateWrapper(net_of(), net_of(num_tokens=5)), 'num_tokens'),
        (lambda: BeliefStateWrapper(net_of(), net_of(stack=dict(dim=8))), 'dim'),
        (lambda: BeliefStateWrapper(net_of(), train_frac_forward_backward_pairs=0.0), 'train_frac'),
        (lambda: BeliefStateWrapper(net_of(), cond_on_distance_prob=1.5), 'cond_on_distance_prob'),
        (lambda: BeliefStateWrapper(net_of(max_seq_len=0), pred_distance=True), 'max_pred_distance'),
        (lambda: BeliefStateWrapper(net_of(), pred_distanze=True), 'pred_distance'),
    ],
)
def test_refused_settings(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda m: m(ids_of(2, 1)), '`seq`'),
        (lambda m: m(randn(2, 5)), '`seq`'),
        (lambda m: m([1, 2, 3]), '`seq`'),
        (lambda m: m(ids_of(2, 5) + VOCAB), '`seq`'),
        (lambda m: m(ids_of(2, 5), lens=torch.tensor([3, 6])), '`lens`'),
        (lambda m: m(ids_of(2, 5), loss_weight_by_fb_indices=lambda pairs: pairs.sum()), '`loss_weight_by_fb_indices`'),
        (lambda m: m.generate_with_suffix_cond(ids_of(2, 5), -1), '`seq_len`'),
        (lambda m: m.generate_with_suffix_cond([[1, 2], [1]], 1), '`prompts`'),
        (lambda m: m.generate_with_suffix_cond(ids_of(2, 5), 1, suffix=ids_of(3, 2)), '`suffix`'),
        (lambda m: m.generate_with_suffix_cond(ids_of(2, 5), 1, suffix=[[1], [2], [3]]), '`suffix`'),
        (lambda m: m.generate_with_suffix_cond(ids_of(2, 5), 1, prefix=ids_of(2, 2)), '`prefix`'),
        (lambda m: m.generate_with_suffix_cond(ids_of(2, 5), 1, suffix=ids_of(2, 2), decode_backwards=True),
         '`suffix`'),
    ],
)  # fmt: skip
def test_refused_inputs(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(wrapped())


def test_names_and_initial_values():
    model = BeliefStateWrapper(net_of(), pred_distance=True, cond_on_distance=True, backward_ar_loss_weight=0.5)
    assert model.backward_decoder is model.forward_decoder
    own = {n: tuple(t.shape) for n, t in model.state_dict().items() if 'decoder' not in n}
    assert own == {
        'suffix_token': (DIM,),
        'loss_weights': (2,),
        'text_head.0.weight': (DIM, 2 * DIM),
        'text_head.0.bias': (DIM,),
        'text_head.2.weight': (2 * VOCAB, DIM),
        'text_head.2.bias': (2 * VOCAB,),
        'to_distance_logits.0.weight': (DIM, 2 * DIM),
        'to_distance_logits.0.bias': (DIM,),
        'to_distance_logits.2.weight': (LIMIT, DIM),
        'to_distance_logits.2.bias': (LIMIT,),
        'to_distance_cond.1.weight': (DIM, 1),
        'to_distance_cond.1.bias': (DIM,),
        'to_distance_cond.3.weight': (2 * DIM, DIM),
        'to_distance_cond.3.bias': (2 * DIM,),
    }
    assert model.loss_weights.tolist() == [1.0, 0.5]
    wide = BeliefStateWrapper(net_of(stack=dict(dim=512, depth=1)))
    assert wide.suffix_token.std().item() == pytest.approx(0.02, rel=0.15)


# learning


@pytest.mark.slow
def test_it_learns_to_reach_a_goal():
    """Counting up or down by a step that only the end of the text tells: s, s + d, ..., s + 6 d."""
    torch.manual_seed(0)

    def rows(b):
        start, step = torch.randint(0, VOCAB, (b, 1)), torch.randint(1, 5, (b, 1))
        return (start + step * torch.arange(7)) % VOCAB

    model = BeliefStateWrapper(net_of(stack=dict(dim=32, attn_dim_head=16, ff_mult=2), return_only_embed=True))
    fit(model, lambda: model(rows(32)), 300)
    ids = rows(64)
    out = model.generate_with_suffix_cond(ids[:, :1], 4, temperature=0.0, suffix=ids[:, 5:])
    assert (out == ids[:, 1:5]).float().mean() > 0.95
    back = model.generate_with_suffix_cond(ids[:, 6:], 4, temperature=0.0, prefix=ids[:, :2], decode_backwards=True)
    assert (back.flip(1) == ids[:, 2:6]).float().mean() > 0.95
