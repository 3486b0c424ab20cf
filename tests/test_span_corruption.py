"""Span corruption: counts, lengths, texts that come back, mixtures of tasks, and a text that is learned."""

from collections import Counter
from itertools import pairwise

import pytest
import torch
from oracles import assert_close, randomised
from toy_tasks import SEEDS, taught

from x_transformers import (
    AutoregressiveWrapper,
    Decoder,
    SpanCorruption,
    T5PretrainWrapper,
    TransformerWrapper,
    UL2Mixture,
    XTransformer,
)
from x_transformers.flags import ConfigError

START, EOS = 999, 1


def texts(b, n, seed=0):
    return torch.randint(2, 800, (b, n), generator=torch.Generator().manual_seed(seed))


def spliced(inputs, targets):
    """The text, from one row of both: each sentinel of the inputs becomes what follows it in the targets."""
    said, current = {}, None
    assert targets[-1] == inputs[-1] == EOS
    for token in targets[:-1]:
        if token > START - 100:
            current = token
            said[token] = []
        else:
            said[current].append(token)
    out, order = [], []
    for token in inputs[:-1]:
        out += said[token] if token in said else [token]
        order += [token] if token in said else []
    assert order == [START - at for at in range(len(order))] and order == [*said][: len(order)]
    return out, list(map(len, [said[s] for s in order]))


@pytest.mark.parametrize('density, mean_span, n', [(0.15, 3.0, 40), (0.5, 3.0, 41), (0.5, 1.0, 21), (0.15, 32.0, 64),
                                                   (0.9, 1.0, 11), (0.15, 3.0, 2)])  # fmt: skip
def test_texts_come_back_and_counts_are_exact(density, mean_span, n):
    """Also: no two spans touch, as each sentinel of the inputs stands behind a kept token."""
    corruption, ids = SpanCorruption(START, EOS, density, mean_span), texts(200, n)
    inputs, targets = corruption(ids, generator=torch.Generator().manual_seed(0))
    noise = min(max(round(n * density), 1), n - 1)
    spans = min(max(round(noise / mean_span), 1), noise, n - noise)
    assert inputs.shape == (200, n - noise + spans + 1) and targets.shape == (200, noise + spans + 1)
    for row, read, said in zip(ids.tolist(), inputs.tolist(), targets.tolist(), strict=True):
        text, lengths = spliced(read, said)
        assert text == row and len(lengths) == spans and sum(lengths) == noise
        is_sentinel = [token > 800 for token in read]
        assert not is_sentinel[0] and is_sentinel[-2]
        assert not any(a and b for a, b in pairwise(is_sentinel))
    again = corruption(ids, generator=torch.Generator().manual_seed(0))
    assert all(map(torch.equal, again, (inputs, targets)))


def test_lengths_of_t5():
    inputs, targets = SpanCorruption(START, EOS)(texts(2, 568))
    assert (inputs.shape, targets.shape) == ((2, 512), (2, 114))


def test_all_compositions_are_drawn_alike():
    """Of 3 tokens in 2 spans between 4 kept ones: 2 ways for the spans, 3 for what is between."""
    inputs, _ = SpanCorruption(START, EOS, 3 / 7, 1.5)(torch.arange(2, 9).expand(6000, -1))
    counts = Counter(map(tuple, inputs.tolist()))
    assert len(counts) == 6 and max(abs(found - 1000) for found in counts.values()) < 4 * (1000 * 5 / 6) ** 0.5


def test_rows_of_unequal_lengths():
    """Each row is as one of its own: counts, sentinels, and its text; the rest is padding."""
    lens, ids = torch.tensor([40, 2, 17, 9]), texts(4, 40)
    corruption = SpanCorruption(START, EOS, 0.3, 2.0, final_sentinel=True)
    for seed in range(30):
        inputs, real, targets = corruption.with_lengths(ids, lens, torch.Generator().manual_seed(seed))
        assert inputs.shape[1] == real.max()
        for row, size, read, count, said in zip(ids, lens, inputs, real, targets, strict=True):
            noise = min(max(round(0.3 * int(size)), 1), int(size) - 1)
            spans = max(round(noise / 2), 1)
            said = said[said != -100].tolist()
            assert count == size - noise + spans + 1 and len(said) == noise + spans + 2
            assert said[-2] == START - spans and (read[count:] == 0).all()
            assert spliced(read[:count].tolist(), said)[0] == row[:size].tolist()


def test_a_mixture_of_tasks():
    """R, X and S by the first token; each has its counts, and S leaves a prefix."""
    mixture, ids = UL2Mixture(START, EOS, mode_ids=(900 - 2, 900 - 1, 900)), texts(600, 100)
    inputs, real, targets = mixture.with_lengths(ids, generator=torch.Generator().manual_seed(0))
    counts = Counter()
    for row, read, count, said in zip(ids, inputs, real, targets, strict=True):
        said = said[said != -100].tolist()
        text, lengths = spliced(read[1:count].tolist(), said)
        assert text == row.tolist()
        counts[int(read[0]), len(lengths), sum(lengths)] += 1
        if read[0] == 900:
            assert read[1:76].tolist() == row[:75].tolist() and said == [START, *row[75:].tolist(), EOS]
    assert counts.keys() == {(898, 5, 15), (899, 1, 15), (899, 2, 50), (899, 17, 50), (900, 1, 25)}
    assert max(abs(found - 120) for found in counts.values()) < 4 * (120 * 0.8) ** 0.5
    rare = UL2Mixture(START, EOS, denoisers=((7, 3, 0.2), (8, None, 0.5)), weights=(1, 1e-9))
    assert set(rare(texts(50, 20))[0][:, 0].tolist()) == {7}


def t5(tokens=30, dim=16, length=40, **stack):
    sizes = dict(num_tokens=tokens, max_seq_len=length, depth=2, heads=2, attn_dim_head=8, **stack)
    return XTransformer(dim=dim, **{f'{side}_{name}': size for side in ('enc', 'dec') for name, size in sizes.items()})


def test_the_loss_by_hand():
    """The mean over the targets of all rows, each said from those before it and the inputs without padding."""
    made = randomised(T5PretrainWrapper(t5(), SpanCorruption(29, EOS, 0.3, 2.0, num_sentinels=9), start_id=3))
    ids, lens = torch.randint(2, 20, (3, 16)), torch.tensor([16, 5, 9])
    loss = made(ids, lens, generator=torch.Generator().manual_seed(0))
    inputs, real, targets = made.corruption.with_lengths(ids, lens, torch.Generator().manual_seed(0))
    total, count = 0.0, 0
    for read, size, said in zip(inputs, real, targets, strict=True):
        said = said[said != -100]
        context = made.net.encoder(read[None, :size])
        before = torch.cat((torch.tensor([3]), said[:-1]))
        log_probs = made.net.decoder.net(before[None], context=context)[0].log_softmax(dim=-1)
        total, count = total - log_probs.gather(1, said[:, None]).sum(), count + len(said)
    assert_close(loss, total / count)


def decoder():
    layers = Decoder(dim=16, depth=1, heads=2)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=30, max_seq_len=9, attn_layers=layers))


@pytest.mark.parametrize('build, words', [
    (lambda: SpanCorruption(START, EOS, noise_density=1.0), 'must be a number between 0 and 1, got 1.0'),
    (lambda: SpanCorruption(START, EOS, mean_span=0.5), '`mean_span` must be a number of at least 1, got 0.5'),
    (lambda: SpanCorruption(50, EOS), '`num_sentinels` got 100'),
    (lambda: SpanCorruption(START, 950), '`eos_id` got 950, which is a sentinel'),
    (lambda: SpanCorruption(START, EOS)(texts(2, 1)), r'`tokens` must .*got shape'),
    (lambda: SpanCorruption(START, EOS)(texts(2, 9), torch.tensor([9, 1])), r'`lens` must .*got a row of 1'),
    (lambda: SpanCorruption(START, EOS, 0.5, 1.0)(texts(2, 300)), 'a row for 150 sentinels, there are 100'),
    (lambda: SpanCorruption(START, EOS, num_sentinels=3)(texts(2, 99) + 200), '`tokens` got a row for 5'),
    (lambda: SpanCorruption(START, EOS)(texts(2, 99).clamp(min=995)), r'`tokens` must be at.*got ids up to 995'),
    (lambda: UL2Mixture(START, EOS), '`mode_ids` and `denoisers`'),
    (lambda: UL2Mixture(START, EOS, mode_ids=(1, 2)), '`mode_ids` must be'),
    (lambda: UL2Mixture(START, EOS, denoisers=((1, 0.5, 0.1),)), '`denoisers` must be'),
    (lambda: UL2Mixture(START, EOS, mode_ids=(1, 2, 3), weights=(1,)), '`weights` got 1 numbers for 5'),
    (lambda: T5PretrainWrapper(decoder(), SpanCorruption(START, EOS)), r'`net` must .*got AutoregressiveWrapper'),
    (lambda: T5PretrainWrapper(t5(), SpanCorruption(START, EOS)), r'`sentinel_start` must .*got 999'),
    (lambda: T5PretrainWrapper(t5(1001), SpanCorruption(START, EOS), start_id=-1), r'`start_id` must .*got -1'),
])  # fmt: skip
def test_refusals(build, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        build()


@pytest.mark.slow
@SEEDS
def test_spans_of_a_text_that_repeats_are_said(seed):
    """Rows that say five random tokens over and over: what is missing stands elsewhere."""
    torch.manual_seed(seed)
    net = t5(20, 32, 24, rotary_pos_emb=True, verbose=False)
    made = T5PretrainWrapper(net, SpanCorruption(19, EOS, 0.15, 3.0, num_sentinels=4))

    def draw(b):
        return (2 + torch.rand(b, 8).argsort(dim=-1)[:, :4]).repeat(1, 5)

    taught(made, lambda: made(draw(64)), 400)
    inputs, targets = made.corruption(draw(200))
    with torch.no_grad():
        said = net.generate(inputs, torch.zeros(200, 1, dtype=torch.long), targets.shape[1], temperature=0.0)
    assert (said == targets).all(dim=-1).double().mean() >= 0.9
