"""Samplers against plain loops over the vocabulary, and draws against counted frequencies."""

import doctest
import itertools
import math

import pytest
import torch
from hypothesis import given, strategies as st

from x_transformers.autoregressive_wrapper import (
    FILTER_LOGITS_FN,
    align_right,
    contrastive_decode_fn,
    min_p,
    top_a,
    top_k,
    top_p,
)
from x_transformers.generation import sampling
from x_transformers.generation.sampling import (
    entmax,
    epsilon,
    filter_named,
    gumbel_noise,
    gumbel_sample,
    padded_prompts,
    sample,
    typical,
)

SHAPES = [(7,), (1,), (3, 7), (2, 1, 5), (2, 3, 4, 11)]


def logits_of(*shape, seed=0, scale=2.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rows(t):
    return t.reshape(-1, t.shape[-1]).tolist()


def softmax(row):
    weights = [math.exp(z - max(row)) for z in row]
    return [w / sum(weights) for w in weights]


# the reference sets, one row at a time, as sets of kept places


def kept_top_k(row, frac=0.1, k=None):
    k = min(k if k is not None else math.ceil(frac * len(row)), len(row))
    return set(sorted(range(len(row)), key=lambda v: -row[v])[:k])


def kept_top_p(row, thres=0.9):
    probs, total, kept = softmax(row), 0.0, set()
    for v in sorted(range(len(row)), key=lambda v: -row[v]):
        if total <= thres:
            kept.add(v)
        total += probs[v]
    return kept


def kept_top_a(row, power=2.0, ratio=0.02):
    probs = softmax(row)
    return {v for v, p in enumerate(probs) if p >= ratio * max(probs) ** power}


def kept_min_p(row, least=0.1):
    probs = softmax(row)
    return {v for v, p in enumerate(probs) if p >= least * max(probs)}


CASES = [
    (top_k, {}, kept_top_k, ()),
    (top_k, dict(frac_num_tokens=0.5), kept_top_k, (0.5,)),
    (top_k, dict(frac_num_tokens=1.0), kept_top_k, (1.0,)),
    (top_k, dict(k=1), kept_top_k, (None, 1)),
    (top_k, dict(k=3), kept_top_k, (None, 3)),
    (top_k, dict(k=1000), kept_top_k, (None, 1000)),
    (top_p, {}, kept_top_p, ()),
    (top_p, dict(thres=0.4), kept_top_p, (0.4,)),
    (top_p, dict(thres=0.0), kept_top_p, (0.0,)),
    (top_p, dict(thres=1.0), kept_top_p, (1.1,)),
    (top_a, {}, kept_top_a, ()),
    (top_a, dict(min_p_pow=1.0, min_p_ratio=0.5), kept_top_a, (1.0, 0.5)),
    (top_a, dict(min_p_pow=3.0, min_p_ratio=1.0), kept_top_a, (3.0, 1.0)),
    (min_p, {}, kept_min_p, ()),
    (min_p, dict(min_p=0.6), kept_min_p, (0.6,)),
    (min_p, dict(min_p=0.0), kept_min_p, (0.0,)),
    (min_p, dict(min_p=1.0), kept_min_p, (1.0,)),
]


@pytest.mark.parametrize('case', CASES, ids=lambda case: f'{case[0].__name__}-{case[1]}')
def test_filter_keeps_the_reference_set(case):
    keep, keywords, reference, arguments = case
    for shape, (seed, scale) in itertools.product(SHAPES, ((0, 2.0), (1, 0.3), (2, 9.0))):
        logits = logits_of(*shape, seed=seed, scale=scale)
        before = logits.clone()
        out = keep(logits, **keywords)
        assert torch.equal(logits, before), 'the input was modified'
        assert out.shape == logits.shape and out.dtype == logits.dtype
        for row, new in zip(rows(logits), rows(out), strict=True):
            kept = reference(row, *arguments)
            assert kept == {v for v, z in enumerate(new) if z != -math.inf}
            assert all(new[v] == row[v] for v in kept)


def test_filters_by_name():
    assert FILTER_LOGITS_FN == dict(
        top_k=top_k, top_p=top_p, top_a=top_a, min_p=min_p, typical=typical, epsilon=epsilon, entmax=entmax
    )
    assert filter_named('top_a') is top_a and filter_named(max) is max
    with pytest.raises(ValueError, match=r'`filter_logits_fn` must '):
        filter_named('topk')


def test_top_k_keeps_exactly_k_of_ties():
    for k in (1, 2, 4):
        assert top_k(torch.zeros(3, 5), k=k).isfinite().sum(dim=-1).tolist() == [k] * 3


@pytest.mark.parametrize('size, frac, k', [(10, 0.1, 1), (11, 0.1, 2), (7, 0.1, 1), (7, 0.5, 4), (1, 0.1, 1)])
def test_top_k_rounds_the_part_up(size, frac, k):
    assert top_k(logits_of(size), frac_num_tokens=frac).isfinite().sum() == k


def test_old_spelling_of_top_k(logged):
    logits = logits_of(2, 20)
    assert torch.equal(top_k(logits, thres=0.75), top_k(logits, frac_num_tokens=0.25))
    assert top_k(logits_of(7), thres=0.9).isfinite().sum() == 1
    assert any('`frac_num_tokens`' in text for text in logged)


def test_top_p_of_a_near_certain_row_keeps_one():
    logits = torch.tensor([[100.0, 0.0, 0.0], [0.0, 100.0, -100.0]])
    assert top_p(logits).isfinite().tolist() == [[True, False, False], [False, True, False]]


def test_top_p_of_one_keeps_all_in_spite_of_rounding():
    for seed in range(20):
        assert top_p(logits_of(4, 999, seed=seed).float(), thres=1.0).isfinite().all()


def test_top_a_never_leaves_nothing():
    logits = torch.zeros(50)
    assert top_a(logits, min_p_pow=0.0, min_p_ratio=0.5).isfinite().all()


# entmax gives the logarithms of its own probabilities
KEEPING = {name: keep for name, keep in FILTER_LOGITS_FN.items() if name != 'entmax'}


@pytest.mark.parametrize('keep', KEEPING.values(), ids=KEEPING)
def test_half_precision_keeps_its_type_and_the_set(keep):
    logits = logits_of(3, 40).bfloat16()
    out = keep(logits)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out.isfinite(), keep(logits.double()).isfinite())
    assert torch.equal(out[out.isfinite()], logits[out.isfinite()])


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda z: top_k(z, k=0), r'`k` must be an integer of at least 1, got 0'),
        (lambda z: top_k(z, k=2.5), r'`k` must .*got 2.5'),
        (lambda z: top_k(z, frac_num_tokens=0.0), r'`frac_num_tokens` must be more than 0 and at most 1, got 0.0'),
        (lambda z: top_k(z, frac_num_tokens=1.5), r'`frac_num_tokens` must .*got 1.5'),
        (lambda z: top_k(z, thres=1.0), r'`thres` must be at least 0 and less than 1, got 1.0'),
        (lambda z: top_p(z, thres=1.5), r'`thres` must be a probability from 0 to 1, got 1.5'),
        (lambda z: top_p(z, thres=-0.1), r'`thres` must .*got -0.1'),
        (lambda z: top_p(z, thres=math.nan), r'`thres` must .*got nan'),
        (lambda z: top_a(z, min_p_pow=-1.0), r'`min_p_pow` must .*got -1.0'),
        (lambda z: top_a(z, min_p_ratio=2.0), r'`min_p_ratio` must be a number from 0 to 1, got 2.0'),
        (lambda z: min_p(z, min_p=1.1), r'`min_p` must be a number from 0 to 1, got 1.1'),
        (lambda z: sample(z, temperature=-1.0), r'`temperature` must be a number of at least 0.*got -1.0'),
        (lambda z: gumbel_sample(z, temperature=-1.0), r'`temperature` must .*got -1.0'),
        (lambda z: contrastive_decode_fn(z, z, alpha=0.0), r'`alpha` must be more than 0 and at most 1, got 0.0'),
        (lambda z: contrastive_decode_fn(z, z, beta=-1.0), r'`beta` must .*got -1.0'),
        (lambda z: contrastive_decode_fn(z, z[:, 1:]), r'same vocabulary: .* \(2, 5\) and \(2, 4\)'),
        (lambda z: top_k(z[:, :0]), r'`logits` got the shape \(2, 0\)'),
        (lambda z: top_p(z.sum()), r'`logits` got the shape \(\)'),
    ],
)
def test_arguments_out_of_range_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.zeros(2, 5))


@pytest.mark.parametrize('keep', [*FILTER_LOGITS_FN.values(), sample, gumbel_sample])
def test_integers_are_no_logits(keep):
    with pytest.raises(TypeError, match=r'`logits` must be a floating point tensor, got torch.int64'):
        keep(torch.arange(3))


# draws


def frequencies(draw, count=20000, size=5):
    return torch.bincount(draw(count), minlength=size).double() / count


@pytest.mark.parametrize('temperature', [0.5, 1.0, 2.0])
@pytest.mark.parametrize('draw', [sample, gumbel_sample])
def test_draws_have_the_frequencies_of_the_softmax(draw, temperature):
    logits = torch.tensor([0.5, -1.0, 2.0, -math.inf, 0.0])
    generator = torch.Generator().manual_seed(3)
    seen = frequencies(lambda count: draw(logits.expand(count, 5), temperature, generator=generator))
    # four standard deviations of a count
    assert ((seen - (logits / temperature).softmax(-1)).abs() < 4 * 0.5 / math.sqrt(20000)).all()
    assert seen[3] == 0


def test_sample_keeps_leading_axes_and_draws_rows_apart():
    logits = torch.full((2, 3, 4), -math.inf)
    wanted = torch.tensor([[0, 1, 2], [3, 3, 0]])
    logits.scatter_(-1, wanted[..., None], 0.0)
    assert torch.equal(sample(logits), wanted)
    assert torch.equal(gumbel_sample(logits), wanted)
    assert sample(logits[0, 1]).shape == () and sample(logits[0, 1]) == 1


def test_sample_at_temperature_zero_and_close_to_it_is_the_largest():
    logits = logits_of(50, 9)
    assert torch.equal(sample(logits, 0), logits.argmax(-1))
    assert torch.equal(sample(1e4 * logits.float(), 1e-38), logits.argmax(-1))


def test_draws_repeat_with_the_generator():
    logits = logits_of(100, 9)
    for draw in (sample, gumbel_sample):
        first = draw(logits, 1.0, generator=torch.Generator().manual_seed(5))
        assert torch.equal(first, draw(logits, 1.0, generator=torch.Generator().manual_seed(5)))
        assert not torch.equal(first, draw(logits, 1.0, generator=torch.Generator().manual_seed(6)))


def test_gumbel_noise_is_finite_with_the_right_moments():
    noise = gumbel_noise(torch.zeros(100000), torch.Generator().manual_seed(0))
    assert noise.isfinite().all()
    assert abs(noise.mean() - 0.5772) < 0.02 and abs(noise.std() - math.pi / math.sqrt(6)) < 0.02


def test_extreme_uniforms_give_finite_noise(monkeypatch):
    for extreme in (0.0, 1.0):
        monkeypatch.setattr(torch.Tensor, 'uniform_', lambda t, *_, value=extreme, **__: t.fill_(value))
        assert gumbel_noise(torch.zeros(3)).isfinite().all()


# two models


@pytest.mark.parametrize('alpha, beta', [(0.1, 0.5), (1.0, 0.0), (0.5, 2.0)])
def test_contrast_is_its_formula(alpha, beta):
    expert, amateur = logits_of(3, 7), logits_of(3, 7, seed=1)
    out = contrastive_decode_fn(expert, amateur, alpha, beta)
    for row, weak, new in zip(rows(expert), rows(amateur), rows(out), strict=True):
        for z, a, result in zip(row, weak, new, strict=True):
            kept = z >= max(row) + math.log(alpha)
            expected = (1 + beta) * z - beta * a if kept else -torch.finfo(torch.float64).max
            assert result == pytest.approx(expected, rel=1e-12)


def test_contrast_leaves_out_what_the_expert_rules_out():
    expert = torch.tensor([0.0, -math.inf, -1.0])
    out = contrastive_decode_fn(expert, expert)
    assert not out.isnan().any() and out[1] == torch.finfo(out.dtype).min


# sequences


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.sampled_from([(), (2,), (2, 3)]))
def test_align_right_moves_each_row(lens, trailing):
    n = 6
    t = torch.arange(1, 1 + len(lens) * n * math.prod(trailing)).reshape(len(lens), n, *trailing)
    out = align_right(t, torch.tensor(lens), pad_id=-1)
    for row, new, length in zip(t, out, lens, strict=True):
        assert torch.equal(new[n - length :], row[:length])
        assert (new[: n - length] == -1).all()


def test_align_right_refuses_bad_lengths():
    t = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r'`lens` got \[1, 4\], every length must be from 0 to 3'):
        align_right(t, torch.tensor([1, 4]))
    with pytest.raises(ValueError, match=r'one length for each of the 2 rows, got the shape \(3,\)'):
        align_right(t, torch.tensor([1, 1, 1]))


def test_prompts_are_padded_on_the_left():
    ids, pads, leading = padded_prompts([torch.tensor([1, 2, 3]), torch.tensor([4])], None, 9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4]] and pads.tolist() == [0, 2] and leading == (2,)
    # a column in which nobody has a token is left out
    ids, pads, _ = padded_prompts(torch.tensor([[1, 2, 7, 7], [4, 7, 7, 7]]), torch.tensor([2, 1]), 9)
    assert ids.tolist() == [[1, 2], [9, 4]] and pads.tolist() == [0, 1]
    ids, pads, _ = padded_prompts([torch.tensor([1, 2]), torch.tensor([3, 4])], None, 9)
    assert ids.tolist() == [[1, 2], [3, 4]] and pads is None
    ids, pads, leading = padded_prompts(torch.arange(12, dtype=torch.int32).reshape(2, 2, 3), None, 9)
    assert ids.shape == (4, 3) and ids.dtype == torch.int64 and pads is None and leading == (2, 2)


@pytest.mark.parametrize(
    'prompts, lens, error, words',
    [
        ([], None, ValueError, r'one 1-D tensor or more, got \[\]'),
        ([torch.zeros(1, 2).long()], None, ValueError, r'got \[\(1, 2\)\]'),
        ([[1], 2], None, ValueError, 'its entries must be ids, or all of them rows of ids'),
        ([['a']], None, TypeError, 'must be ids, got .*: a tensor, an array, or lists of them'),
        ([torch.tensor([1])], torch.tensor([1]), ValueError, r'`prompt_lens` cannot be given with a list'),
        ([torch.tensor([1]), torch.tensor([]).long()], None, ValueError, r'`prompt_lens` must .*got \[1, 0\]'),
        (torch.zeros(2, 0).long(), None, ValueError, r'`prompts` must .*got shape \(2, 0\)'),
        (torch.tensor(3), None, TypeError, r'`prompts` must be a tensor with at least one axis'),
        ('abc', None, TypeError, r"`prompts` must be .*got 'abc'"),
        (torch.full((2, 3), 0.5), None, TypeError, r'`prompts` must hold integer token ids, got torch.float32'),
        (torch.zeros(2, 3).bool(), None, TypeError, r'`prompts` must hold integer token ids, got torch.bool'),
        (
            torch.zeros(2, 3).long(),
            torch.tensor([1, 4]),
            ValueError,
            r'`prompt_lens` must hold 2 integers from 1 to 3, one for each prompt, got \[1, 4\]',
        ),
        (torch.zeros(2, 3).long(), torch.tensor([0, 3]), ValueError, r'`prompt_lens` must .*got \[0, 3\]'),
        (torch.zeros(2, 3).long(), torch.tensor([3]), ValueError, r'`prompt_lens` must .*got \[3\]'),
        (torch.zeros(2, 3).long(), torch.tensor([1.0, 2.0]), ValueError, r'`prompt_lens` must .*got \[1.0, 2.0\]'),
    ],
)
def test_bad_prompts_are_refused(prompts, lens, error, words):
    with pytest.raises(error, match=words):
        padded_prompts(prompts, lens, 0)


def test_examples_in_docstrings():
    result = doctest.testmod(sampling, extraglobs=dict(torch=torch))
    assert result.failed == 0 and result.attempted >= 6
