"""Segmentation by entropy: against a loop over tokens, on real models and on given entropies."""

import pytest
import torch
from building import ids_below
from loguru import logger
from oracles import randomised
from training_laws import fit

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.entropy_based_tokenizer import EntropyBasedTokenizer, get_accumulated_threshold_mask, get_start
from x_transformers.flags import ConfigError, warn_once

V, N = 7, 40


def decoder(seed=0):
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, attn_dropout=0.5)
    return randomised(TransformerWrapper(num_tokens=V, max_seq_len=N, attn_layers=stack), seed=seed)


def tokenizer(threshold=1.2, **keywords):
    return EntropyBasedTokenizer(decoder(), threshold, **keywords)


ids = ids_below(V)


def by_hand(entropies, threshold, accumulate=False, ignore=0.0, longest=None):
    """Lengths of the tokens of one row, from its entropies."""
    lengths, size, total = [], 0, 0.0
    for place, h in enumerate(entropies):
        size += 1
        total += h if h >= ignore else 0.0
        if (total if accumulate else h) >= threshold or place == len(entropies) - 1:
            while longest is not None and size > longest:
                lengths.append(longest)
                size -= longest
            lengths.append(size)
            size, total = 0, 0.0
    return lengths


CASES = {
    'threshold': dict(),
    'pieces': dict(max_token_size=2),
    'sum': dict(threshold=3.0, accumulate_entropy=True),
    'sum in pieces': dict(threshold=3.0, accumulate_entropy=True, max_token_size=2),
    'sum of large ones': dict(threshold=3.0, accumulate_entropy=True, ignore_entropy_below=1.0),
    'never': dict(threshold=1e9),
    'never, in pieces': dict(threshold=1e9, accumulate_entropy=True, max_token_size=7),
    'always': dict(threshold=1e-9),
    'of one': dict(max_token_size=1),
}


@pytest.mark.parametrize('accumulate', [False, True])
def test_an_entropy_at_the_threshold_ends_a_token(accumulate):
    model = tokenizer(1.5, accumulate_entropy=accumulate)
    assert model.ends(torch.tensor([[1.5, 0.75, 1.25, 1.5]])).tolist() == [[True, False, accumulate, True]]


@pytest.mark.parametrize('keywords', CASES.values(), ids=CASES)
def test_tokens_end_where_the_loop_ends_them(keywords):
    model, seq, lens = tokenizer(**keywords), ids(4, N), [N, 17, 1, 0]
    probs = model.decoder(seq).softmax(dim=-1)
    entropies = -(probs * probs.log()).sum(dim=-1)
    options = {
        'threshold': 1.2,
        **{
            {'accumulate_entropy': 'accumulate', 'ignore_entropy_below': 'ignore', 'max_token_size': 'longest'}.get(
                name, name
            ): value
            for name, value in keywords.items()
        },
    }
    expected = [by_hand(row[:n].tolist(), **options) for row, n in zip(entropies, lens, strict=True)]
    found = model(seq, lens=torch.tensor(lens))
    assert found.shape[1] == max(map(len, expected))
    assert [[k for k in row if k] for row in found.tolist()] == expected
    assert found.sum(dim=-1).tolist() == lens
    assert model(seq[0]).tolist() == expected[0]
    pieces = model(seq, lens=torch.tensor(lens), return_segmented_seq=True)
    for row, n, cut, sizes in zip(seq, lens, pieces, expected, strict=True):
        assert [len(piece) for piece in cut] == sizes
        assert not n or torch.equal(torch.cat(cut), row[:n])
    alone = model(seq[0], return_segmented_seq=True)
    assert isinstance(alone, tuple) and [len(piece) for piece in alone] == expected[0]


@pytest.mark.parametrize('n', [1, 2, 7, 63, 64, 65])
def test_sums_that_start_again(n):
    generator = torch.Generator().manual_seed(n)
    x = torch.rand(5, n, generator=generator, dtype=torch.float64).masked_fill(torch.rand(5, n) < 0.3, 0.0)
    for threshold in (0.01, 0.7, 2.0, 100.0):
        found = get_accumulated_threshold_mask(x, threshold)
        for row, ends in zip(x.tolist(), found.tolist(), strict=True):
            total, expected = 0.0, []
            for value in row:
                total += value
                expected.append(total >= threshold)
                total = 0.0 if expected[-1] else total
            assert ends == expected


def test_starts_of_tokens():
    ends = torch.tensor([[False, True, False, False, True, True, False]])
    assert get_start(ends).tolist() == [[0, 0, 2, 2, 2, 5, 6]]


def test_b14_every_training_flag_comes_back():
    model = tokenizer().train()
    model.decoder.emb_dropout.eval()
    first = model(ids(2, N))
    assert model.training and model.decoder.training and not model.decoder.emb_dropout.training
    assert torch.equal(first, model.eval()(ids(2, N)))
    assert not any(p.grad is not None for p in model.parameters())


def test_keywords_reach_the_decoder():
    model, seq = tokenizer(), ids(2, N)
    hidden = dict(mask=torch.arange(N).expand(2, N) != 3)
    assert not torch.equal(model(seq, decoder_forward_kwargs=hidden), model(seq))


def test_refusals_and_warnings():
    with pytest.raises(ConfigError, match=r'`ignore_entropy_below` got 2.0, it must be at most `entropy_threshold`'):
        tokenizer(ignore_entropy_below=2.0, accumulate_entropy=True)
    with pytest.raises(ConfigError, match='`entropy_threshold` must be a positive number, got 0'):
        tokenizer(0)
    with pytest.raises(ValueError, match=r'must return logits.*pass its `net`'):
        EntropyBasedTokenizer(AutoregressiveWrapper(decoder()), 1.0)
    model = tokenizer()
    for call, error, words in (
        (lambda: model(ids(2, 3, 4)), ValueError, r'`seq` must .*got shape \(2, 3, 4\)'),
        (lambda: model(ids(2, 5) + 0.5), TypeError, r'`seq` must hold integer token ids, got torch.float32'),
        (lambda: model(ids(2, 5), lens=torch.tensor([1])), ValueError, r'`lens` must .*got \(1,\)'),
        (lambda: model(ids(2, 5), lens=torch.tensor([1, 6])), ValueError, r'`lens` must .*got numbers from 1 to 6'),
        (lambda: model(ids(5), lens=torch.tensor([1])), ValueError, r'`lens` goes with a batch'),
        (
            lambda: model(ids(5), decoder_forward_kwargs=dict(return_attn=True)),
            ValueError,
            r'`return_attn` cannot be given to the tokenizer',
        ),
    ):
        with pytest.raises(error, match=words):
            call()
    warn_once.cache_clear()
    texts = []
    sink = logger.add(texts.append, level='WARNING')
    tokenizer(ignore_entropy_below=1.0)
    logger.remove(sink)
    assert len(texts) == 1 and '`ignore_entropy_below` has no effect unless `accumulate_entropy` is set' in texts[0]


@pytest.mark.slow
def test_it_finds_the_words_of_a_language():
    """Words of a fixed spelling in random order: 95 of 100 ends of words are found, and nothing else."""
    torch.manual_seed(0)
    words = [[0, 1, 2], [3, 4], [5, 1, 6, 2], [6, 4, 0]]

    def text(rows):
        made, ends = [], []
        for _ in range(rows):
            row, last = [], []
            while len(row) < N:
                word = words[int(torch.randint(len(words), ()))]
                row += word
                last += [False] * (len(word) - 1) + [True]
            made.append(row[:N])
            ends.append(last[:N])
        return torch.tensor(made), torch.tensor(ends)

    net = TransformerWrapper(
        num_tokens=V, max_seq_len=N, attn_layers=Decoder(dim=32, depth=2, heads=2, attn_dim_head=16)
    )
    model = AutoregressiveWrapper(net)
    fit(model, lambda: model(text(16)[0]), 250)
    seq, ends = text(50)
    lengths = EntropyBasedTokenizer(net, entropy_threshold=0.7)(seq)
    found = torch.zeros(50, N + 1, dtype=torch.bool).scatter(1, lengths.cumsum(dim=-1), True)[:, 1:]
    # behind the first word, and before the end of the text
    assert (found == ends)[:, 4:-1].float().mean() > 0.95
