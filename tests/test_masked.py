"""Masked language models: what is hidden and how often, the loss by hand, and a chain that is learned."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from building import models
from oracles import assert_close, randomised
from torch import nn
from toy_tasks import SEEDS, markov, taught

from x_transformers import Decoder, Encoder, MLMWrapper, PrefixDecoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.training.masking import chosen_spans, chosen_tokens, chosen_words, get_share

V, PAD, CLS, MASK = 13, 0, 1, 12
SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8)


net = models(V, 40, Encoder, **SIZES)


def model(**options):
    return randomised(MLMWrapper(net(), MASK, PAD, **{**dict(ignore_token_ids=(CLS,)), **options}))


def texts(*lengths, n=20, seed=0):
    """Rows of [CLS], so many tokens, and padding."""
    ids = torch.randint(2, MASK, (len(lengths), n), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] = CLS
    return ids.masked_fill(torch.arange(n) > torch.tensor(lengths)[:, None], PAD)


@pytest.mark.parametrize(
    'count, share, wanted',
    [(20, 0.15, 3), (21, 0.15, 4), (40, 0.15, 6), (1, 0.15, 1), (0, 0.15, 0), (10, 0.1, 1), (7, 1.0, 7), (9, 1 / 3, 3)],
)
def test_shares_are_rounded_up_in_whole_numbers(count, share, wanted):
    assert get_share(count, share) == get_share(torch.tensor(count), share) == wanted


@pytest.mark.parametrize('max_span', [1, 4])
def test_how_many_are_hidden_and_which(max_span):
    """A share of each row, rounded up, never padding nor [CLS]; the labels are what was there."""
    made, x = model(max_span=max_span, mask_prob=0.3), texts(19, 12, 1, 0, 5)
    for seed in range(20):
        hidden, read = made.hide(x, generator=torch.Generator().manual_seed(seed))
        again, _ = made.hide(x, generator=torch.Generator().manual_seed(seed))
        assert all(map(torch.equal, hidden, again))
        assert hidden.chosen.sum(dim=1).tolist() == [6, 4, 1, 0, 2] and hidden.places.shape == (5, 6)
        assert not hidden.chosen[x <= CLS].any() and torch.equal(read['mask'], x != PAD)
        assert torch.equal(hidden.ids[~hidden.chosen], x[~hidden.chosen])
        for row, places, labels, chosen in zip(x, hidden.places, hidden.labels, hidden.chosen, strict=True):
            at = chosen.nonzero().squeeze(1)
            assert torch.equal(places[: len(at)], at) and torch.equal(labels[: len(at)], row[at])
            assert (labels[len(at) :] == -100).all()


def test_every_token_is_hidden_equally_often_and_read_in_three_ways():
    made, x = model(mask_prob=0.25, ignore_token_ids=()), torch.full((10_000, 40), 5)
    hidden, _ = made.hide(x, generator=torch.Generator().manual_seed(0))
    count = 10_000 * 10
    assert hidden.chosen.sum() == count
    assert ((hidden.chosen.double().mean(dim=0) - 0.25).abs() < 4.5 * (0.25 * 0.75 / 10_000) ** 0.5).all()
    read = hidden.ids[hidden.chosen]
    for found, wanted in (
        (read == MASK, 0.8 + 0.1 / V),
        (read == 5, 0.1 + 0.1 / V),
        (read == 7, 0.1 / V),
        (read == PAD, 0.1 / V),
    ):
        assert abs(found.sum() / count - wanted) < 3 * (wanted * (1 - wanted) / count) ** 0.5
    few = model(mask_prob=0.25, random_token_prob=1.0, replace_prob=0.0, num_tokens=3)
    assert set(few.hide(x[:100])[0].ids[few.hide(x[:100])[0].chosen].tolist()) <= {0, 1, 2, 5}


def test_whole_words():
    """By hand: any words hidden are whole, they fit into the share, and no word that is left would."""
    words = torch.tensor(
        [[0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4, 5, 6, 6, 7, 7], [9, 9, 9, 9, 2, 2, 9, 9, 9, 9, 9, 0, 0, 0, 1, 1]]
    )
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[0, 11] = mask[1, 13:] = False
    seen = set()
    for seed in range(60):
        chosen = chosen_words(mask, words, 0.3, torch.Generator().manual_seed(seed))
        for row, (hidden, real, names) in enumerate(zip(chosen, mask, words, strict=True)):
            left, at = int(get_share(int(real.sum()), 0.3)) - int(hidden.sum()), 0
            assert left >= 0
            for _, group in itertools.groupby(names.tolist()):
                size = len(list(group))
                own = hidden[at : at + size][real[at : at + size]].tolist()
                assert len(set(own)) <= 1, 'a word is hidden in part'
                if own and own[0]:
                    seen.add((row, at))
                else:
                    assert not own or len(own) > left, 'a word would have fitted'
                at += size
        assert not (chosen & ~mask).any()
    assert seen == {(0, 0), (0, 3), (0, 4), (0, 6), (0, 7), (0, 12), (0, 14), (1, 0), (1, 4), (1, 11)}
    made = model(mask_prob=0.3, ignore_token_ids=())
    _, (_, hidden) = made(words + 1, word_ids=words, return_outputs=True)
    assert all(len(set(hidden.chosen[0, at].tolist())) == 1 for at in ([0, 1, 2], [4, 5], [7, 8, 9, 10], [14, 15]))


def test_spans_against_a_loop():
    """Spans one after another from random tokens on, each until it stops, all until the share is reached."""
    mask = torch.ones(3, 30, dtype=torch.bool)
    mask[1, 10:13] = mask[2, 20:] = False
    documents = (torch.arange(30) >= 5).long().expand(3, -1)
    chosen = chosen_spans(mask, 0.3, 4, 0.3, documents, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    orders = torch.rand(3, 30, generator=generator).masked_fill(~mask, 2.0).argsort(dim=-1)
    draws = torch.rand(3, 30, generator=generator).double()
    for row in range(3):
        wanted, found = int(get_share(int(mask[row].sum()), 0.3)), set()
        for start in orders[row].tolist():
            length = 1
            while length < 4 and draws[row, start] <= 0.7**length:
                length += 1
            for at in range(start, min(start + length, 30)):
                if not mask[row, at] or documents[row, at] != documents[row, start] or len(found) == wanted:
                    break
                found.add(at)
        assert set(chosen[row].nonzero().squeeze(1).tolist()) == found


def test_spans_end_with_their_document():
    made, x = model(max_span=6, span_stop_prob=0.05, mask_prob=0.5), texts(19, 19)
    documents = (torch.arange(20) // 3).expand(2, -1)
    found, _ = made.hide(x, generator=torch.Generator().manual_seed(0), inputs=dict(document_ids=documents))
    wanted, other = (
        chosen_spans(x > CLS, 0.5, 6, 0.05, runs, torch.Generator().manual_seed(0)) for runs in (documents, None)
    )
    assert torch.equal(found.chosen, wanted) and not torch.equal(wanted, other)


def test_the_loss_is_that_of_hidden_tokens_alone():
    """The mean over all chosen tokens, given the other logits no gradient; with the head on chosen tokens as on all."""
    made, x = model(mask_prob=0.4), texts(19, 7)
    torch.manual_seed(1)
    loss, (logits, hidden) = made(x, return_outputs=True)
    whole = made.net(hidden.ids, mask=x != PAD)
    assert_close(loss, F.cross_entropy(whole[hidden.chosen], x[hidden.chosen]))
    torch.manual_seed(1)
    assert_close(made(x), loss)
    assert logits.shape == (2, 8, V)
    handle = made.net.to_logits.register_forward_hook(lambda *_: None)  # whoever listens hears all logits
    torch.manual_seed(1)
    assert_close(made(x), loss)
    handle.remove()


def test_documents_and_masks():
    """Documents of a row see their own tokens; a mask hides as padding does."""
    made, x = model(mask_prob=0.4, ignore_token_ids=()), texts(19, 19)[:, 1:]
    documents = (torch.arange(19) >= 8).long().expand(2, -1)
    torch.manual_seed(0)
    loss, (_, hidden) = made(x, document_ids=documents, return_outputs=True)
    parts = [made.net(hidden.ids[:, at]) for at in (slice(0, 8), slice(8, None))]
    parts[1] = made.net(hidden.ids, document_ids=documents)[:, 8:]
    assert_close(loss, F.cross_entropy(torch.cat(parts, dim=1)[hidden.chosen], x[hidden.chosen]))
    other, real = x.clone(), torch.arange(19).expand(2, -1) < 11
    other[~real] = 7
    torch.manual_seed(0)
    loss = made(x, mask=real)
    torch.manual_seed(0)
    assert_close(made(other, mask=real), loss)
    torch.manual_seed(0)
    assert_close(made(x.masked_fill(~real, PAD)), loss)


def test_a_row_with_nothing_to_hide(logged):
    made, x = model(), texts(19, 0)
    torch.manual_seed(0)
    loss, (_, hidden) = made(x, return_outputs=True)
    assert any('no token that may be hidden' in line for line in logged)
    assert_close(loss, F.cross_entropy(made.net(hidden.ids, mask=x != PAD)[hidden.chosen], x[hidden.chosen]))
    assert made(texts(0, 0)) == 0


class NoVocabulary(nn.Module):
    """A net that does not say how many tokens it knows."""

    def forward(self, ids, **_):
        return F.one_hot(ids, V).double()


@pytest.mark.parametrize('build, words', [
    (lambda: MLMWrapper(net(Decoder), MASK, PAD), '`net` must see both sides'),
    (lambda: MLMWrapper(net(PrefixDecoder), MASK, PAD), '`net` must see both sides'),
    (lambda: MLMWrapper(net(return_only_embed=True), MASK, PAD), 'return_only_embed'),
    (lambda: MLMWrapper(net(), V, PAD), r'`mask_token_id` must .*got 13'),
    (lambda: MLMWrapper(net(), MASK, 44), r'`pad_token_id` must .*got 44'),
    (lambda: MLMWrapper(net(), MASK, PAD, num_tokens=20), r'`num_tokens` must .*got 20'),
    (lambda: MLMWrapper(net(), MASK, PAD, replace_prob=0.8, random_token_prob=0.3), 'their sum'),
    (lambda: MLMWrapper(net(), MASK, PAD, mask_prob=0.0), '`mask_prob` must be a number above 0, up to 1, got 0.0'),
    (lambda: MLMWrapper(net(), MASK, PAD, ignore_token_ids=3), '`ignore_token_ids` must be token ids'),
    (lambda: MLMWrapper(NoVocabulary(), MASK, PAD), '`num_tokens` is missing'),
    (lambda: model(max_span=3)(texts(9), word_ids=texts(9)), '`word_ids` cannot be combined with `max_span`'),
    (lambda: model()(texts(9), word_ids=texts(9)[:, :3]), '`word_ids` must '),
    (lambda: model()(texts(9) + 5), r'`x` must .*got token ids from 5'),
    (lambda: model()(texts(9), cache=3), '`cache` cannot be given'),
])  # fmt: skip
def test_refusals(build, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        build()


def test_a_net_without_a_vocabulary_needs_none_if_nothing_is_drawn_from_it():
    assert MLMWrapper(NoVocabulary(), MASK, PAD, random_token_prob=0.0)(texts(19)).isfinite()


def test_other_tokens_have_no_gradient():
    """The logits of what was not chosen do not touch the loss: nor do those of places that follow."""
    made, x = model(mask_prob=0.2), texts(19, 5)
    hidden, _ = made.hide(x)
    logits = torch.randn(2, 20, V, dtype=torch.float64, requires_grad=True)
    made.loss(hidden.of(logits), hidden).backward()
    assert torch.equal(logits.grad.abs().sum(dim=-1) > 0, hidden.chosen)
    assert chosen_tokens(x > CLS, 0.2).sum() == 5


@pytest.mark.slow
@SEEDS
def test_a_chain_is_learned(seed):
    """Masked accuracy on an order-2 chain is far above that of the most frequent token."""
    torch.manual_seed(seed)
    task = markov(n=25, tokens=4)
    layers = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True, verbose=False)
    net = TransformerWrapper(num_tokens=5, max_seq_len=0, attn_layers=layers)
    made = MLMWrapper(net, 4, None, num_tokens=4)
    taught(made, lambda: made(task.draw(64)[0]), 250)
    x = task.draw(300)[0]
    with torch.no_grad():
        _, (logits, hidden) = made(x, return_outputs=True)
    real = hidden.labels != -100
    found = (logits.argmax(dim=-1) == hidden.labels)[real].double().mean().item()
    most = (x == x.flatten().mode().values).double().mean().item()
    assert found > most + 0.2, (found, most)
