"""Beam search against exhaustive search, and against beams kept by hand."""

import itertools
import math

import pytest
import torch
from toy_nets import ROTARY, VOCAB, Fixed, History, ids_of, language_model, vectors_of, wrapped

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper


def exhaustive(net, prompt, steps):
    """Every continuation of a prompt (n), with its summed log probability, best first."""
    net.eval()
    found = []
    for tokens in itertools.product(range(VOCAB), repeat=steps):
        whole = torch.cat((prompt, torch.tensor(tokens)))
        lp = net(whole[None, :-1])[0, len(prompt) - 1 :].log_softmax(-1)
        found.append((lp.gather(-1, torch.tensor(tokens)[:, None]).sum().item(), tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize('cache_kv', [True, False])
@pytest.mark.parametrize('absolute', [True, False])
def test_a_wide_beam_is_exhaustive(absolute, cache_kv):
    model, prompts = wrapped(absolute=absolute), ids_of(2, 3, seed=1)
    steps, count = 3, VOCAB**3
    tokens, scores = model.beam_search(prompts, steps, beams=count, return_beams_and_scores=True, cache_kv=cache_kv)
    assert tokens.shape == (count, 2, steps) and scores.shape == (count, 2)
    for row in range(2):
        expected = exhaustive(model.net, prompts[row], steps)
        assert [tuple(t) for t in tokens[:, row].tolist()] == [t for _, t in expected]
        assert scores[:, row].tolist() == pytest.approx([s for s, _ in expected], rel=1e-9)
    best = model.beam_search(prompts, steps, beams=count, cache_kv=cache_kv)
    assert torch.equal(best, tokens[0])


def beams_by_hand(net, prompt, steps, beams):
    net.eval()
    found = [(0.0, prompt)]
    for _ in range(steps):
        longer = []
        for score, whole in found:
            lp = net(whole[None])[0, -1].log_softmax(-1)
            longer += [(score + lp[v].item(), torch.cat((whole, torch.tensor([v])))) for v in range(VOCAB)]
        found = sorted(longer, key=lambda pair: -pair[0])[:beams]
    return [(score, whole[len(prompt) :].tolist()) for score, whole in found]


@pytest.mark.parametrize('window', [0, 4])
@pytest.mark.parametrize('cache_kv', [True, False])
@pytest.mark.parametrize('beams', [1, 2, 4, 7])
def test_beams_are_those_kept_by_hand(beams, cache_kv, window):
    model, prompts = wrapped(seed=2), ids_of(2, 3, seed=1)
    plain = model.net
    if window:
        model = wrapped(seed=2, max_seq_len=window)
        plain = lambda ids: model.net(ids[:, -window:])  # noqa: E731
        plain.eval = model.net.eval
    tokens, scores = model.beam_search(prompts, 7, beams=beams, return_beams_and_scores=True, cache_kv=cache_kv)
    for row in range(2):
        expected = beams_by_hand(plain, prompts[row], 7, beams)
        assert tokens[:, row].tolist() == [t for _, t in expected]
        assert scores[:, row].tolist() == pytest.approx([s for s, _ in expected], rel=1e-9)


def test_one_beam_is_greedy():
    model, prompts = wrapped(), ids_of(3, 4)
    assert torch.equal(model.beam_search(prompts, 9, beams=1), model.generate(prompts, 9, temperature=0.0))


@pytest.mark.parametrize('cache_kv', [True, False])
def test_keywords_with_a_row_per_prompt_follow_their_beams(cache_kv):
    model, prompts = wrapped(), ids_of(2, 3)
    context = 3 * torch.randn(2, 4, 6, dtype=torch.float64)
    prefix = 3 * torch.randn(2, 2, 6, dtype=torch.float64)
    mask = torch.tensor([[True, False, True], [False, True, True]])
    given = dict(context=context, prepend_embeds=prefix, mask=mask)
    out = model.beam_search(prompts, 6, beams=3, cache_kv=cache_kv, return_beams_and_scores=True, **given)
    for row in range(2):
        mine = {name: value[row : row + 1] for name, value in given.items()}
        alone = model.beam_search(prompts[row : row + 1], 6, beams=3, return_beams_and_scores=True, **mine)
        assert torch.equal(out[0][:, row], alone[0][:, 0])
        assert torch.allclose(out[1][:, row], alone[1][:, 0], rtol=1e-12)
    assert not torch.equal(out[0], model.beam_search(prompts, 6, beams=3, return_beams_and_scores=True)[0])


@pytest.mark.parametrize('cache_kv', [True, False])
def test_beams_of_unequal_prompts(cache_kv):
    model = wrapped(seed=1)
    prompts = [ids_of(n, seed=n) for n in (4, 1, 2)]
    tokens, scores = model.beam_search(prompts, 6, beams=3, return_beams_and_scores=True, cache_kv=cache_kv)
    for row, prompt in enumerate(prompts):
        alone = model.beam_search(prompt, 6, beams=3, return_beams_and_scores=True)
        assert torch.equal(tokens[:, row], alone[0])
        assert torch.allclose(scores[:, row], alone[1], rtol=1e-12)


def test_shapes_of_beams():
    model = wrapped()
    assert model.beam_search(ids_of(4), 3).shape == (3,)
    assert model.beam_search(ids_of(2, 3, 4), 3).shape == (2, 3, 3)
    tokens, scores = model.beam_search(ids_of(4), 3, beams=2, return_beams_and_scores=True)
    assert tokens.shape == (2, 3) and scores.shape == (2,)
    tokens, scores = model.beam_search(ids_of(2, 3, 4), 3, beams=6, return_beams_and_scores=True)
    assert tokens.shape == (6, 2, 3, 3) and scores.shape == (6, 2, 3)
    # more beams than there are continuations
    tokens, scores = model.beam_search(ids_of(4), 1, beams=9, return_beams_and_scores=True)
    assert tokens.shape == (VOCAB, 1) and scores.exp().sum().item() == pytest.approx(1.0)
    assert model.beam_search(ids_of(2, 4), 0).shape == (2, 0)


def test_stochastic_beams_are_drawn_without_replacement():
    logits = torch.tensor([1.0, -1.0, 0.0, 0.5, -2.0])
    model = AutoregressiveWrapper(Fixed(logits.tolist()))
    generator = torch.Generator().manual_seed(0)
    options = dict(stochastic=True, generator=generator, return_beams_and_scores=True)
    tokens, scores = model.beam_search(torch.zeros(8000, 1).long(), 1, beams=2, temperature=2.0, **options)
    tokens, scores = tokens[..., 0], scores
    assert (tokens[0] != tokens[1]).all()
    # scores are those of the model, whatever the temperature
    assert torch.allclose(scores, logits.log_softmax(-1)[tokens]) and (scores[0] >= scores[1]).all()
    probs = (logits / 2.0).softmax(-1)
    for v, w in itertools.combinations(range(VOCAB), 2):
        expected = probs[v] * probs[w] / (1 - probs[v]) + probs[w] * probs[v] / (1 - probs[w])
        both = ((tokens == v).any(0) & (tokens == w).any(0)).float().mean()
        assert abs(both - expected) < 4 * 0.5 / math.sqrt(8000)


def test_a_filter_of_stochastic_beams_holds_where_too_few_tokens_remain():
    model = AutoregressiveWrapper(Fixed([1.0, -1.0, 0.0, 0.5, -2.0]))
    options = dict(stochastic=True, filter_logits_fn=lambda logits: logits.masked_fill(logits > 0, -math.inf))
    tokens = model.beam_search(torch.zeros(50, 1).long(), 3, beams=4, **options)
    assert set(tokens.flatten().tolist()) <= {1, 2, 4}
    tokens, scores = model.beam_search(torch.zeros(1).long(), 1, beams=5, return_beams_and_scores=True, **options)
    assert tokens[:3, 0].tolist() == [2, 1, 4] and scores.isneginf().tolist() == [False] * 3 + [True] * 2


def test_stochastic_beams_at_temperature_zero_are_the_deterministic_ones():
    model, prompts = wrapped(), ids_of(2, 3)
    assert torch.equal(model.beam_search(prompts, 5, stochastic=True, temperature=0.0), model.beam_search(prompts, 5))


@pytest.mark.parametrize(
    'keywords, words',
    [
        (dict(beams=0), '`beams` must be an integer of at least 1, got 0'),
        (dict(eos_token=0.5), r'`eos_token` must be a token id or None.*got 0.5'),
        (dict(seq_len=-2), r'`seq_len` must .*got -2'),
        (dict(temperature=-1.0), r'`temperature` must .*got -1.0'),
        (dict(cache=1), '`cache` cannot be given to beam_search'),
    ],
)
def test_beam_search_refuses_before_computing(keywords, words):
    model = wrapped()
    with pytest.raises(ValueError, match=words):
        model.beam_search(ids_of(1, 2), **{'seq_len': 2, **keywords})
    assert model.net.fed == []


@pytest.mark.parametrize('cache_kv', [True, False])
def test_beams_of_a_model_with_a_context(cache_kv):
    model, prompts = language_model(**ROTARY, cross_attend=True), ids_of(2, 3, vocab=11)
    context, kept = vectors_of(2, 5, 16), torch.tensor([[True] * 5, [True, False, True, False, True]])
    options = dict(beams=3, return_beams_and_scores=True, cache_kv=cache_kv)
    tokens, scores = model.beam_search(prompts, 5, context=context, context_mask=kept, **options)
    for row in range(2):
        given = dict(context=context[row : row + 1], context_mask=kept[row : row + 1])
        alone = model.beam_search(prompts[row : row + 1], 5, **given, **options)
        assert torch.equal(tokens[:, row], alone[0][:, 0]) and torch.allclose(scores[:, row], alone[1][:, 0])
        whole = torch.cat((prompts[row].expand(3, -1), tokens[:, row]), dim=1)
        lp = model.net(whole[:, :-1], **{n: v.expand(3, *v.shape[1:]) for n, v in given.items()}).log_softmax(-1)[:, 2:]
        assert torch.allclose(lp.gather(-1, tokens[:, row, :, None]).sum(dim=(1, 2)), scores[:, row])
    greedy = model.generate(prompts, 5, context=context, context_mask=kept, temperature=0.0, cache_kv=cache_kv)
    assert torch.equal(model.beam_search(prompts, 5, beams=1, context=context, context_mask=kept), greedy)


def test_beams_of_unequal_prompts_on_a_model():
    model, prompts = language_model(), [ids_of(n, seed=n, vocab=11) for n in (4, 2)]
    tokens, scores = model.beam_search(prompts, 5, beams=3, return_beams_and_scores=True)
    for row, prompt in enumerate(prompts):
        alone = model.beam_search(prompt, 5, beams=3, return_beams_and_scores=True, cache_kv=False)
        assert torch.equal(tokens[:, row], alone[0]) and torch.allclose(scores[:, row], alone[1])


# ends and lengths


def ended(net, prompt, steps, ends, penalty):
    """Every continuation up to one of the tokens `ends` or so many steps, with its score, best first."""
    net.eval()
    found = []
    for length in range(1, steps + 1):
        for tokens in itertools.product(range(VOCAB), repeat=length):
            complete = tokens[-1] in ends or length == steps
            if not complete or any(token in ends for token in tokens[:-1]):
                continue
            whole = torch.cat((prompt, torch.tensor(tokens)))
            lp = net(whole[None, :-1])[0, len(prompt) - 1 :].log_softmax(-1)
            total = lp.gather(-1, torch.tensor(tokens)[:, None]).sum().item()
            found.append((total / length**penalty, tokens))
    return sorted(found, reverse=True)


@pytest.mark.parametrize('cache_kv', [True, False])
@pytest.mark.parametrize('penalty', [0.0, 1.0, -0.5, 2.0])
@pytest.mark.parametrize('ends', [2, (0, 3)])
def test_a_wide_beam_with_ends_is_exhaustive(ends, penalty, cache_kv):
    model, prompts, steps = AutoregressiveWrapper(History(seed=3), pad_value=4), ids_of(2, 3, seed=1), 3
    known = [
        ended(model.net, prompt, steps, ends if isinstance(ends, tuple) else (ends,), penalty) for prompt in prompts
    ]
    count = len(known[0])
    options = dict(eos_token=ends, length_penalty=penalty, cache_kv=cache_kv)
    tokens, scores = model.beam_search(prompts, steps, beams=count, return_beams_and_scores=True, **options)
    assert tokens.shape == (count, 2, steps)
    for row, expected in enumerate(known):
        assert scores[:, row].tolist() == pytest.approx([score for score, _ in expected], rel=1e-9)
        assert [tuple(t) for t in tokens[:, row].tolist()] == [(*t, *(4,) * (steps - len(t))) for _, t in expected]
    best = model.beam_search(prompts, steps, beams=count, **options)
    assert torch.equal(best, tokens[0])


@pytest.mark.parametrize('beams', [1, 2, 3])
@pytest.mark.parametrize('seed', range(4))
def test_scores_of_narrow_beams_are_those_of_the_model(seed, beams):
    model, prompts = wrapped(seed=seed).eval(), ids_of(3, 3, seed=seed)
    options = dict(eos_token=1, length_penalty=0.7, return_beams_and_scores=True)
    tokens, scores = model.beam_search(prompts, 9, beams=beams, **options)
    assert len(tokens) == beams
    for row, hypothesis in itertools.product(range(3), range(beams)):
        made = tokens[hypothesis, row].tolist()
        made = made[: made.index(1) + 1] if 1 in made else made
        assert 1 in made or len(made) == 9
        whole = torch.cat((prompts[row], torch.tensor(made)))
        lp = model.net(whole[None, :-1])[0, 2:].log_softmax(-1).gather(-1, torch.tensor(made)[:, None]).sum()
        assert scores[hypothesis, row].item() == pytest.approx(lp.item() / len(made) ** 0.7, rel=1e-9)
    assert (scores[:-1] >= scores[1:]).all()
    alone = [model.beam_search(prompt, 9, beams=beams, **options) for prompt in prompts]
    for row, (mine, score) in enumerate(alone):
        assert torch.allclose(scores[:, row], score, rtol=1e-12)
        assert torch.equal(tokens[:, row, : mine.shape[-1]], mine)


def test_the_search_stops_when_nothing_can_become_better():
    logits = [-30.0, -30.0, 0.0, -30.0, -30.0]
    model = AutoregressiveWrapper(Fixed(logits))
    tokens = model.beam_search(torch.zeros(2, 1).long(), 50, beams=1, eos_token=2)
    assert tokens.tolist() == [[2], [2]]
    # a large penalty favours long ones, so it has to go on
    assert model.beam_search(torch.zeros(2, 1).long(), 5, beams=1, eos_token=1, length_penalty=9.0).shape == (2, 5)


def test_an_end_that_never_comes_changes_nothing():
    model, prompts = wrapped(), ids_of(2, 3)
    free = model.beam_search(prompts, 5, beams=3, return_beams_and_scores=True)
    tokens, scores = model.beam_search(prompts, 5, beams=3, return_beams_and_scores=True, eos_token=77)
    assert torch.equal(tokens, free[0]) and torch.allclose(scores, free[1])
    halved = model.beam_search(prompts, 5, beams=3, return_beams_and_scores=True, length_penalty=1.0)
    assert torch.equal(halved[0], free[0]) and torch.allclose(halved[1], free[1] / 5)
    assert model.beam_search(prompts, 0, eos_token=1, length_penalty=1.0).shape == (2, 0)


@pytest.mark.parametrize('how', ['list', 'single', 'context', 'no cache'])
def test_ends_on_a_model(how):
    """G12, G13: rows with keywords of their own, and prompts without a batch, with hypotheses that end."""
    model = language_model(**ROTARY, cross_attend=how == 'context')
    prompts = [ids_of(n, seed=n, vocab=11) for n in ((4, 2) if how == 'list' else (4, 4))]
    given = dict(context=vectors_of(2, 5, 16)) if how == 'context' else {}
    options = dict(beams=4, eos_token=(3, 7), length_penalty=0.6, return_beams_and_scores=True)
    tokens, scores = model.beam_search(prompts, 6, cache_kv=how != 'no cache', **options, **given)
    for row, prompt in enumerate(prompts):
        mine = {name: value[row : row + 1] for name, value in given.items()}
        whole = prompt if how == 'single' else prompt[None]
        alone = model.beam_search(whole, 6, **options, **mine)
        made = alone[0] if how == 'single' else alone[0][:, 0]
        assert torch.equal(tokens[:, row, : made.shape[-1]], made)
        assert torch.allclose(scores[:, row], alone[1].flatten())


@pytest.mark.parametrize(
    'keywords, words',
    [
        (dict(eos_token=11), r'`eos_token` must .*got 11'),
        (dict(length_penalty='long'), r"`length_penalty` must be a number.*got 'long'"),
        (dict(filter_kwargs=dict(k=1)), "`filter_kwargs` got 'k'"),
    ],
)
def test_bad_options_of_beams_are_refused_by_name(keywords, words):
    with pytest.raises(ValueError, match=words):
        language_model().beam_search(ids_of(1, 2), 2, filter_logits_fn=lambda z: z, **keywords)


def test_hypotheses_that_go_on_are_no_results():
    """With a search that favours short ones, what has ended is the best although what goes on scores higher so far."""
    model = AutoregressiveWrapper(Fixed([math.log(0.45), math.log(0.55)]))
    options = dict(beams=2, eos_token=0, length_penalty=-1.0, return_beams_and_scores=True)
    tokens, scores = model.beam_search(torch.zeros(1, 1, dtype=torch.long), 5, **options)
    assert tokens.tolist() == [[[0, 0]], [[1, 0]]] and scores[0].item() == pytest.approx(math.log(0.45))
