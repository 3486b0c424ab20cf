"""The generation of a language model, against loops that recompute everything.

Most tests use `History`, a net whose logits are a plain function of the tokens it may see, in float64: what a cache, a
window or a padding gets wrong shows in its tokens. Those at the end repeat the main claims on real models.
"""

import copy
import itertools
import json
import math
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toy_nets import (
    MODELS,
    ROTARY,
    VOCAB,
    Fixed,
    History,
    brute_force,
    diverse,
    ids_of,
    language_model,
    loss_by_hand,
    vectors_of,
    wrapped,
)

from x_transformers import PrefixDecoder, TransformerWrapper, autoregressive_wrapper
from x_transformers.autoregressive_wrapper import FILTER_LOGITS_FN, AutoregressiveWrapper, contrastive_decode_fn, top_k
from x_transformers.flags import warn_once
from x_transformers.generation.engine import HELD, eval_modules
from x_transformers.x_transformers import no_positions

models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)


# greedy generation


@pytest.mark.parametrize('absolute', [False, True])
@pytest.mark.parametrize('seed', range(3))
def test_greedy_is_brute_force_with_and_without_cache(seed, absolute):
    model = wrapped(seed=seed, absolute=absolute)
    prompts = ids_of(3, 4, seed=seed)
    expected = brute_force(model.net, prompts, 12)
    assert diverse(expected)
    for cache_kv in (True, False):
        assert torch.equal(model.generate(prompts, 12, temperature=0.0, cache_kv=cache_kv), expected)


def test_with_a_cache_only_new_tokens_are_read():
    model = wrapped()
    model.generate(ids_of(2, 4), 3)
    assert model.net.fed == [(2, 4), (2, 1), (2, 1)]
    model.net.fed.clear()
    model.generate(ids_of(2, 4), 3, cache_kv=False)
    assert model.net.fed == [(2, 4), (2, 5), (2, 6)]
    model.net.fed.clear()
    model.net.can_cache_kv = False
    model.generate(ids_of(2, 4), 2)
    assert model.net.fed == [(2, 4), (2, 5)]


def test_leading_axes_come_back():
    model = wrapped()
    prompts = ids_of(2, 3, 4)
    out = model.generate(prompts, 5, temperature=0.0)
    assert out.shape == (2, 3, 5) and out.dtype == torch.int64
    for i, j in itertools.product(range(2), range(3)):
        assert torch.equal(model.generate(prompts[i, j], 5, temperature=0.0), out[i, j])
    assert torch.equal(model.generate(prompts[0].int(), 5, temperature=0.0), out[0])


@pytest.mark.parametrize('eos_token', [None, 1])
@pytest.mark.parametrize('shape', [(4,), (2, 4), (2, 1, 4)])
def test_nothing_is_generated_in_no_steps(shape, eos_token):
    model = wrapped()
    assert model.generate(ids_of(*shape), 0, eos_token=eos_token).shape == (*shape[:-1], 0)
    assert model.net.fed == []


def test_prompts_are_not_changed():
    prompts = ids_of(2, 4)
    before = prompts.clone()
    wrapped().generate(prompts, 3, prompt_lens=torch.tensor([2, 4]), eos_token=1)
    assert torch.equal(prompts, before)


def test_of_several_heads_the_first_speaks():
    model = wrapped(heads=2)
    one = wrapped()
    with torch.no_grad():
        one.net.table.copy_(model.net.table)
        one.net.heads.copy_(model.net.heads[:1])
    prompts = ids_of(2, 4)
    for cache_kv in (True, False):
        out = model.generate(prompts, 8, temperature=0.0, cache_kv=cache_kv)
        assert torch.equal(out, one.generate(prompts, 8, temperature=0.0))


# prompts of unequal length


@pytest.mark.parametrize('window', [0, 6])
@pytest.mark.parametrize('absolute', [False, True])
@pytest.mark.parametrize('cache', [{}, dict(cache_kv=False), dict(slide_cache=False)], ids=str)
def test_each_row_of_unequal_prompts_equals_the_row_alone(cache, absolute, window):
    model = wrapped(absolute=absolute, max_seq_len=window, seed=1)
    prompts = [ids_of(n, seed=n) for n in (5, 1, 3, 5)]
    out = model.generate(prompts, 10, temperature=0.0, **cache)
    assert diverse(out)
    for prompt, row in zip(prompts, out, strict=True):
        assert torch.equal(row, model.generate(prompt, 10, temperature=0.0, cache_kv=False))

    padded = nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=3)
    for lens in (torch.tensor([5, 1, 3, 5]), [5, 1, 3, 5]):
        again = model.generate(padded, 10, temperature=0.0, prompt_lens=lens, **cache)
        assert torch.equal(again, out)


def test_lengths_of_prompts_with_more_axes():
    model = wrapped()
    prompts, lens = ids_of(2, 2, 4), torch.tensor([[1, 2], [3, 4]])
    out = model.generate(prompts, 6, temperature=0.0, prompt_lens=lens)
    for i, j in itertools.product(range(2), range(2)):
        assert torch.equal(model.generate(prompts[i, j, : lens[i, j]], 6, temperature=0.0), out[i, j])


@pytest.mark.parametrize('cache_kv', [True, False])
def test_prepended_vectors_go_with_unequal_prompts(cache_kv):
    model = wrapped(seed=2)
    prompts, prefix = [ids_of(n, seed=n) for n in (4, 1)], torch.randn(2, 3, 6, dtype=torch.float64)
    out = model.generate(prompts, 8, temperature=0.0, prepend_embeds=prefix, cache_kv=cache_kv)
    for i, prompt in enumerate(prompts):
        alone = brute_force(model.net, prompt[None], 8, prepend_embeds=prefix[i : i + 1])
        assert torch.equal(out[i : i + 1], alone)
    assert not torch.equal(out, model.generate(prompts, 8, temperature=0.0))


def test_a_mask_moves_with_the_window():
    """Where the window begins inside of the prompt, the rest of its mask counts."""
    model, mask = wrapped(seed=1, max_seq_len=4), torch.tensor([[True, False, True, True, False, True]])
    prompts = ids_of(1, 6, seed=3)
    out = prompts
    for step in range(6):
        whole = F.pad(mask, (0, step), value=True)
        logits = model.eval().net(out[:, -4:], mask=whole[:, -4:])[:, -1]
        out = torch.cat((out, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(model.generate(prompts, 6, temperature=0.0, mask=mask, cache_kv=False), out[:, 6:])
    assert not torch.equal(model.generate(prompts, 6, temperature=0.0, cache_kv=False), out[:, 6:])


def test_a_mask_of_the_prompts_is_continued():
    model = wrapped(seed=1)
    prompts, mask = ids_of(2, 5), torch.tensor([[True, False, True, True, True], [False, False, True, False, True]])
    out = prompts
    model.eval()
    for step in range(8):
        logits = model.net(out, mask=F.pad(mask, (0, step), value=True))[:, -1]
        out = torch.cat((out, logits.argmax(-1, keepdim=True)), dim=1)
    expected = out[:, 5:]
    for cache_kv in (True, False):
        assert torch.equal(model.generate(prompts, 8, temperature=0.0, mask=mask, cache_kv=cache_kv), expected)
    assert not torch.equal(model.generate(prompts, 8, temperature=0.0), expected)

    with pytest.raises(ValueError, match=r'`mask` must '):
        model.generate(prompts, 8, mask=mask[:, 1:])
    with pytest.raises(ValueError, match=r'`mask` cannot be given with prompts of unequal length'):
        model.generate(prompts, 8, mask=mask, prompt_lens=torch.tensor([5, 4]))


def test_a_mask_that_hides_the_end_says_lengths():
    """Generation goes on from the last real token of each row, as with `prompt_lens`, in every way to generate."""
    model, prompts, lens = language_model(**ROTARY), ids_of(3, 5, vocab=11), torch.tensor([5, 2, 3])
    mask = torch.arange(5) < lens[:, None]
    short = [prompt[:n] for prompt, n in zip(prompts, lens.tolist(), strict=True)]
    cold = dict(temperature=0.0)
    expected = model.generate(short, 6, **cold)
    alone = torch.cat([model.generate(prompt[None], 6, **cold) for prompt in short])
    assert diverse(expected) and torch.equal(expected, alone)
    assert torch.equal(model.generate(prompts, 6, mask=mask, **cold), expected)
    assert torch.equal(model.generate(prompts[None], 6, mask=mask, **cold), expected[None])
    assert torch.equal(model.speculative(prompts, 6, mask=mask, **cold), expected)
    assert torch.equal(model.generate(None, 6, prompt_cache=model.read_prompt(prompts, mask=mask), **cold), expected)
    assert torch.equal(model.beam_search(prompts, 6, beams=2, mask=mask), model.beam_search(short, 6, beams=2))


@pytest.mark.parametrize('row', ['10110', '00000', '01110', '01111'])
def test_masks_of_prompts_that_say_no_length(row):
    """Holes in front of a hidden end, nothing at all, padding on both sides, or on another side than the next row."""
    mask = torch.tensor([[one == '1' for one in row], [True, True, True, True, False]])
    with pytest.raises(ValueError, match=r'`mask` hides .* of row 0, and generation goes on from the last token'):
        wrapped().generate(ids_of(2, 5), 3, mask=mask)


# the window


@pytest.mark.parametrize('window', [1, 2, 5])
@pytest.mark.parametrize('length', [1, 4, 9])
def test_past_the_window_the_oldest_tokens_leave(length, window):
    model = wrapped(max_seq_len=window, seed=1)
    prompts = ids_of(2, length, seed=3)
    expected = brute_force(model.net, prompts, 12, window=window)
    for options in ({}, dict(cache_kv=False), dict(slide_cache=False)):
        model.net.fed.clear()
        assert torch.equal(model.generate(prompts, 12, temperature=0.0, **options), expected)
        assert max(fed for _, fed in model.net.fed) <= window
    unlimited = model.generate(prompts, 12, temperature=0.0, restrict_to_max_seq_len=False)
    assert torch.equal(unlimited, brute_force(model.net, prompts, 12))
    assert length + window > 9 or not torch.equal(unlimited, expected)


@pytest.mark.parametrize('limit', [0, -1, None])
def test_no_limit_is_no_window(limit):
    model = wrapped(max_seq_len=limit)
    prompts = ids_of(2, 3)
    assert torch.equal(model.generate(prompts, 12, temperature=0.0), brute_force(model.net, prompts, 12))
    assert model.net.fed[:3] == [(2, 3), (2, 1), (2, 1)]


def test_absolute_places_are_read_again_past_the_window(logged):
    model = wrapped(max_seq_len=6, absolute=True, seed=1)
    prompts = ids_of(2, 4)
    expected = brute_force(model.net, prompts, 9, window=6)
    model.net.fed.clear()
    assert torch.equal(model.generate(prompts, 3, temperature=0.0), expected[:, :3])
    assert model.net.fed == [(2, 4), (2, 1), (2, 1)] and not logged
    model.net.fed.clear()
    assert torch.equal(model.generate(prompts, 9, temperature=0.0), expected)
    assert model.net.fed == [(2, 4), (2, 1), (2, 1)] + [(2, 6)] * 6
    assert len(logged) == 1 and '`max_seq_len`' in logged[0]
    # a net that cannot cache has nothing to warn about
    warn_once.cache_clear()
    model.net.can_cache_kv = False
    assert torch.equal(model.generate(prompts, 9, temperature=0.0), expected)
    assert len(logged) == 1


def test_prepended_vectors_stay_as_the_window_slides(logged):
    model = wrapped(max_seq_len=5, seed=3)
    prompts, prefix = ids_of(2, 3), torch.randn(2, 2, 6, dtype=torch.float64)
    expected = brute_force(model.net, prompts, 10, window=5, prepend_embeds=prefix)
    for cache_kv in (True, False):
        out = model.generate(prompts, 10, temperature=0.0, prepend_embeds=prefix, cache_kv=cache_kv)
        assert torch.equal(out, expected)
    assert len(logged) == 1 and 'in front of the tokens' in logged[0]


# the end of a row


def after_first(row, eos_token):
    return row.index(eos_token) + 1 if eos_token in row else len(row)


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('cache_kv', [True, False])
def test_after_the_first_eos_only_padding_follows(cache_kv, seed):
    model = AutoregressiveWrapper(History(seed=seed), pad_value=4)
    prompts = ids_of(6, 3, seed=seed)
    free = model.generate(prompts, 15, temperature=0.0, cache_kv=cache_kv).tolist()
    out = model.generate(prompts, 15, temperature=0.0, eos_token=2, cache_kv=cache_kv).tolist()
    ends = [after_first(row, 2) for row in free]
    assert len(set(ends)) > 1, 'the case shows nothing'
    assert {len(row) for row in out} == {max(ends)}
    for row, plain, end in zip(out, free, ends, strict=True):
        assert row == plain[:end] + [4] * (max(ends) - end)


def test_an_eos_in_the_prompt_does_nothing():
    model = wrapped(seed=1)
    prompts = torch.tensor([[2, 2, 1], [0, 1, 2]])
    free = model.generate(prompts, 15, temperature=0.0)
    out = model.generate(prompts, 15, temperature=0.0, eos_token=2)
    assert out.shape[1] > 0 and torch.equal(out[:, 0], free[:, 0])
    assert out.shape[1] == max(after_first(row, 2) for row in free.tolist())


def test_an_eos_that_never_comes_changes_nothing():
    model = wrapped()
    prompts = ids_of(2, 3)
    free = model.generate(prompts, 9, temperature=0.0)
    assert torch.equal(model.generate(prompts, 9, temperature=0.0, eos_token=77), free)


# sampling


@pytest.mark.parametrize(
    'keywords, kept',
    [
        (dict(filter_logits_fn='top_k', filter_kwargs=dict(k=2)), [0, 3]),
        (dict(filter_logits_fn='top_p', filter_kwargs=dict(thres=0.99)), [0, 1, 2, 3]),
        (dict(filter_logits_fn='min_p', filter_kwargs=dict(min_p=0.2), temperature=3.0), [0, 2, 3]),
        (dict(filter_logits_fn=lambda logits: logits, temperature=0.5), [0, 1, 2, 3]),
        ({}, [3]),
    ],
)
def test_samples_have_the_frequencies_of_filter_and_temperature(keywords, kept):
    logits = torch.tensor([1.0, -1.0, 0.0, 1.5, -9.0])
    model = AutoregressiveWrapper(Fixed(logits.tolist()))
    out = model.generate(torch.zeros(2000, 1).long(), 5, generator=torch.Generator().manual_seed(0), **keywords)
    seen = torch.bincount(out.flatten(), minlength=5) / out.numel()
    rest = torch.full((5,), -math.inf)
    rest[kept] = logits[kept] / keywords.get('temperature', 1.0)
    assert ((seen - rest.softmax(-1)).abs() < 4 * 0.5 / math.sqrt(10000)).all()


@pytest.mark.parametrize('name', FILTER_LOGITS_FN)
def test_samples_repeat_with_the_seed_and_do_not_depend_on_the_cache(name):
    model, prompts = wrapped(), ids_of(3, 4)

    def draw(seed, **keywords):
        return model.generate(prompts, 20, filter_logits_fn=name, filter_kwargs=loose, **keywords, **source(seed))

    loose = dict(k=4) if name == 'top_k' else {}
    source = lambda seed: dict(generator=torch.Generator().manual_seed(seed))  # noqa: E731
    first = draw(1)
    assert torch.equal(first, draw(1)) and torch.equal(first, draw(1, cache_kv=False))
    assert not torch.equal(first, draw(2))
    assert torch.equal(draw(1, temperature=0.0), brute_force(model.net, prompts, 20))
    # without a generator, torch's own is used
    torch.manual_seed(5)
    first = model.generate(prompts, 20, filter_kwargs=dict(k=4))
    torch.manual_seed(5)
    assert torch.equal(first, model.generate(prompts, 20, filter_kwargs=dict(k=4)))


def test_sampling_is_brute_force_with_the_same_draws():
    model, prompts = wrapped(), ids_of(3, 4)
    generator = torch.Generator().manual_seed(0)

    def choose(logits):
        return torch.multinomial((top_k(logits, k=3) / 1.5).softmax(-1), 1, generator=generator)[:, 0]

    expected = brute_force(model.net, prompts, 12, choose=choose)
    generator = torch.Generator().manual_seed(0)
    out = model.generate(prompts, 12, filter_kwargs=dict(k=3), temperature=1.5, generator=generator)
    assert torch.equal(out, expected)


# amateurs


def contrasted(nets, weights, prompts, steps, window=None):
    out = prompts
    for net in nets:
        net.eval()
    for _ in range(steps):
        read = out if not window else out[:, -window:]
        logits, *others = (net(read)[:, -1] for net in nets)
        for other, weight in zip(others, weights, strict=True):
            logits = contrastive_decode_fn(logits, other, **weight)
        out = torch.cat((out, logits.argmax(-1, keepdim=True)), dim=1)
    return out[:, prompts.shape[1] :]


@pytest.mark.parametrize('cache_kv', [True, False])
@pytest.mark.parametrize('window', [0, 5])
def test_amateurs_are_contrasted_with(window, cache_kv):
    model, prompts = wrapped(max_seq_len=window), ids_of(3, 4)
    first, second = (History(seed=seed, max_seq_len=window) for seed in (7, 8))
    given = dict(temperature=0.0, cache_kv=cache_kv)
    strong = dict(alpha=0.01, beta=3.0)

    expected = contrasted([model.net, first], [{}], prompts, 10, window)
    assert not torch.equal(expected, model.generate(prompts, 10, **given))
    for amateur in (first, AutoregressiveWrapper(first), (first,), [first]):
        assert torch.equal(model.generate(prompts, 10, amateur_model=amateur, **given), expected)

    both = (first, AutoregressiveWrapper(second))
    for weights, shared in (
        (None, [{}, {}]),
        (strong, [strong, strong]),
        (({}, strong), [{}, strong]),
    ):
        expected = contrasted([model.net, first, second], shared, prompts, 10, window)
        out = model.generate(prompts, 10, amateur_model=both, contrastive_decode_kwargs=weights, **given)
        assert torch.equal(out, expected)


def test_no_filter_runs_for_the_most_probable_token_or_with_amateurs():
    def refuses(logits):
        raise AssertionError('the filter ran')

    model, prompts = wrapped(), ids_of(2, 4)
    expected = model.generate(prompts, 4, temperature=0.0)
    assert torch.equal(model.generate(prompts, 4, temperature=0.0, filter_logits_fn=refuses), expected)
    model.generate(prompts, 4, amateur_model=History(seed=7), filter_logits_fn=refuses)
    with pytest.raises(AssertionError, match='the filter ran'):
        model.generate(prompts, 4, filter_logits_fn=refuses)


def test_each_amateur_needs_its_own_weights_or_the_same():
    with pytest.raises(ValueError, match=r'`contrastive_decode_kwargs` holds 2 dicts for 1 amateurs'):
        wrapped().generate(ids_of(1, 2), 1, amateur_model=History(), contrastive_decode_kwargs=({}, {}))


# modes


class Once(nn.Module):
    """Fails, or checks that it runs in eval mode."""

    max_seq_len = 0

    def __init__(self, fails):
        super().__init__()
        self.fails, self.inner = fails, nn.Linear(1, 1)

    def forward(self, ids, **_):
        if self.fails:
            raise RuntimeError('broken')
        assert not self.training and not self.inner.training and not torch.is_grad_enabled()
        return torch.zeros(*ids.shape, VOCAB)


@pytest.mark.parametrize('fails', [False, True])
@pytest.mark.parametrize('how', ['generate', 'stream', 'beam_search', 'amateur'])
def test_every_training_flag_comes_back(how, fails):
    model, amateur = AutoregressiveWrapper(Once(fails)), Once(fails)
    model.train()
    model.net.inner.eval()
    amateur.train()
    before = {name: m.training for name, m in model.named_modules()}
    calls = dict(
        generate=lambda: model.generate(ids_of(1, 2), 2),
        stream=lambda: list(model.stream(ids_of(1, 2), 2)),
        beam_search=lambda: model.beam_search(ids_of(1, 2), 2),
        amateur=lambda: model.generate(ids_of(1, 2), 2, amateur_model=amateur),
    )
    if fails:
        with pytest.raises(RuntimeError, match='broken'):
            calls[how]()
    else:
        calls[how]()
    assert {name: m.training for name, m in model.named_modules()} == before
    assert before['net.inner'] is False and before['net'] is True
    assert amateur.training and amateur.inner.training
    assert torch.is_grad_enabled()


def test_the_decorator_restores_each_module():
    class Model(nn.Sequential):
        @autoregressive_wrapper.eval_decorator
        def mode(self, fail=False):
            if fail:
                raise RuntimeError('broken')
            return [m.training for m in self.modules()], torch.is_grad_enabled()

    model = Model(nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].eval()
    assert model.mode() == ([False] * 3, True)
    assert [m.training for m in model.modules()] == [True, False, True]
    with pytest.raises(RuntimeError, match='broken'):
        model.mode(fail=True)
    assert [m.training for m in model.modules()] == [True, False, True]


# streams


@pytest.mark.parametrize('shape', [(4,), (3, 4), (2, 1, 4)])
@pytest.mark.parametrize('keywords', [{}, dict(eos_token=2), dict(cache_kv=False), dict(amateur_model=History(seed=4))])
def test_a_stream_gives_the_tokens_of_generate(keywords, shape):
    model, prompts = AutoregressiveWrapper(History(), pad_value=4), ids_of(*shape)
    options = dict(filter_kwargs=dict(k=4), **keywords)
    whole = model.generate(prompts, 12, generator=torch.Generator().manual_seed(0), **options)
    parts = list(model.stream(prompts, 12, generator=torch.Generator().manual_seed(0), **options))
    assert all(part.shape == shape[:-1] for part in parts)
    assert torch.equal(torch.stack(parts, dim=-1), whole)


def test_a_stream_of_unequal_prompts():
    model, prompts = wrapped(), [ids_of(3), ids_of(1)]
    parts = list(model.stream(prompts, 5, temperature=0.0))
    assert torch.equal(torch.stack(parts, dim=-1), model.generate(prompts, 5, temperature=0.0))


def test_between_the_steps_of_a_stream_the_model_is_as_before():
    model = wrapped().train()
    for token in model.stream(ids_of(1, 2), 3):
        assert model.training and model.net.dropout.training and torch.is_grad_enabled()
        assert not token.requires_grad


def test_a_stream_checks_before_its_first_step():
    with pytest.raises(ValueError, match=r'`seq_len` must .*got -1'):
        wrapped().stream(ids_of(1, 2), -1)


def test_a_stream_computes_only_what_is_asked_for():
    model = wrapped()
    stream = model.stream(ids_of(2, 4), 100)
    next(stream), next(stream)
    assert model.net.fed == [(2, 4), (2, 1)]


# what comes back, and what is refused


def test_intermediates_come_back():
    model = wrapped()
    out, inter = model.generate(ids_of(2, 4), 3, return_intermediates=True)
    # the last token has been chosen, and not read
    assert out.shape == (2, 3) and inter.cache.length == 6
    out, inter = model.generate(ids_of(2, 4), 3, return_intermediates=True, cache_kv=False)
    assert out.shape == (2, 3) and inter is None


def test_old_spellings_are_accepted_with_a_warning(logged):
    model, prompts = wrapped(), ids_of(2, 4)
    expected = model.generate(prompts, 6, generator=torch.Generator().manual_seed(0), filter_kwargs=dict(k=2))
    old = model.generate(start_tokens=prompts, seq_len=6, filter_thres=0.6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(old, expected)
    assert any('`prompts`' in text for text in logged) and any('`filter_kwargs' in text for text in logged)


@pytest.mark.parametrize(
    'keywords, words',
    [
        (dict(seq_len=-1), '`seq_len` must be an integer of at least 0, got -1'),
        (dict(seq_len=2.0), r'`seq_len` must .*got 2.0'),
        (dict(temperature=-0.5), r'`temperature` must be a number of at least 0.*got -0.5'),
        (dict(temperature=None), r'`temperature` must .*got None'),
        (dict(eos_token=1.5), r'`eos_token` must be a token id or None.*got 1.5'),
        (dict(filter_logits_fn='topp'), r"`filter_logits_fn` must .*got 'topp'"),
        (dict(cache=3), '`cache` cannot be given to generate, it keeps its own'),
        (dict(prompt_lens=torch.tensor([True])), r'`prompt_lens` must hold 1 integers.*got .*'),
        (dict(seq_start_pos=3), '`seq_start_pos` cannot be given to generate, give `prompt_lens`'),
        (dict(return_hiddens=True), '`return_hiddens` cannot be given to generate'),
    ],
)
def test_generate_refuses_before_computing(keywords, words):
    model = wrapped()
    with pytest.raises(ValueError, match=words):
        model.generate(ids_of(1, 2), **{'seq_len': 2, **keywords})
    assert model.net.fed == []


def test_a_subclass_may_override_generate():
    class Twice(AutoregressiveWrapper):
        def generate(self, *args, **kwargs):
            return 2 * super().generate(*args, **kwargs)

    prompts = ids_of(2, 3)
    out = Twice(History()).generate(prompts, 4, temperature=0.0)
    assert torch.equal(out, 2 * wrapped().generate(prompts, 4, temperature=0.0))


# on real models


@models
def test_models_decode_alike_with_and_without_cache(keywords):
    model, prompts = language_model(**keywords), ids_of(2, 4, vocab=11)
    expected = brute_force(model.net, prompts, 12)
    assert diverse(expected)
    for cache_kv in (True, False):
        assert torch.equal(model.generate(prompts, 12, temperature=0.0, cache_kv=cache_kv), expected)


@models
def test_models_treat_each_of_unequal_prompts_as_alone(keywords):
    model, prompts = language_model(**keywords), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    expected = torch.cat([brute_force(model.net, prompt[None], 8) for prompt in prompts])
    for cache_kv in (True, False):
        assert torch.equal(model.generate(prompts, 8, temperature=0.0, cache_kv=cache_kv), expected)


@models
def test_models_with_prepended_vectors(keywords):
    model, prompts = language_model(**keywords), [ids_of(n, seed=n, vocab=11) for n in (4, 2)]
    width = keywords.get('around', {}).get('emb_dim', 16)
    given = dict(prepend_embeds=vectors_of(2, 3, width), prepend_mask=torch.tensor([[True] * 3, [False, True, True]]))
    expected = []
    for row, prompt in enumerate(prompts):
        mine = {name: value[row : row + 1] for name, value in given.items()}
        expected.append(brute_force(model.net, prompt[None], 8, **mine))
    for cache_kv in (True, False):
        out = model.generate(prompts, 8, temperature=0.0, cache_kv=cache_kv, **given)
        assert torch.equal(out, torch.cat(expected))


@models
def test_models_past_their_window(keywords):
    model, prompts = language_model(**dict(limit=6) | keywords), ids_of(3, 4, vocab=11)
    expected = brute_force(model.net, prompts, 9, window=model.max_seq_len)
    for cache in (dict(cache_kv=False), dict(slide_cache=False)):
        assert torch.equal(model.generate(prompts, 9, temperature=0.0, **cache), expected)
    if model.net.pos_emb is not no_positions or model.net.num_memory_tokens:
        assert torch.equal(model.generate(prompts, 9, temperature=0.0), expected)


# not learned keys beside rotary positions: they stand at no place, and see where a query stands
RELATIVE = ('rotary', 'xpos', 't5', 'alibi', 'one key head', 'shifted tokens')


@pytest.mark.costly
@pytest.mark.parametrize(
    'name, length',
    [(name, 4) for name in RELATIVE]
    + [pytest.param(name, 9, marks=() if name == 'rotary' else pytest.mark.nightly) for name in RELATIVE],
)
def test_a_sliding_cache_is_attention_with_a_window(name, length):
    model, windowed = (
        language_model(**dict(limit=6) | MODELS[name] | own) for own in ({}, dict(attn_max_attend_past=5))
    )
    windowed.load_state_dict(model.state_dict())
    prompts = ids_of(6, length, vocab=11)
    expected = brute_force(windowed.net, prompts[:, -6:], 10)
    assert not torch.equal(expected, brute_force(model.net, prompts, 10, window=6))
    for generate in (greedily, likely_beams, guessed, streamed):
        assert torch.equal(generate(model, prompts, 10), expected)


def greedily(model, prompts, steps, **options):
    return model.generate(prompts, steps, temperature=0.0, **options)


def likely_beams(model, prompts, steps, **options):
    return model.beam_search(prompts, steps, beams=1, **options)


def guessed(model, prompts, steps, **options):
    return model.speculative(prompts, steps, temperature=0.0, **options)


def streamed(model, prompts, steps, **options):
    return torch.stack(list(model.stream(prompts, steps, temperature=0.0, **options)), dim=-1)


@pytest.mark.parametrize('generate', [likely_beams, guessed, streamed])
def test_every_generation_reads_its_window_again(generate):
    model, prompts = language_model(**ROTARY, limit=6), ids_of(3, 4, vocab=11)
    expected = brute_force(model.net, prompts, 14, window=6)
    assert torch.equal(generate(model, prompts, 14, slide_cache=False), expected)
    assert torch.equal(generate(model, prompts, 14, cache_kv=False), expected)


@pytest.mark.parametrize('slides', [True, False])
def test_a_recurrent_state_does_not_slide(slides):
    stack = dict(ROTARY, attn_hybrid_module=nn.GRU(16, 16, batch_first=True).double())
    model, prompts = language_model(limit=6, **stack), ids_of(3, 4, vocab=11)
    expected = brute_force(model.net, prompts, 10, window=6)
    assert torch.equal(model.generate(prompts, 10, temperature=0.0, slide_cache=slides), expected)


# with one layer, a key holds nothing but its own token
@pytest.mark.parametrize('cache, depth', [({}, 1), (dict(cache_kv=False), 2), (dict(slide_cache=False), 2)])
def test_unequal_prompts_past_the_window_of_a_model(cache, depth):
    model, prompts = language_model(**ROTARY, depth=depth, limit=6), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    out = model.generate(prompts, 14, temperature=0.0, **cache)
    for prompt, row in zip(prompts, out, strict=True):
        assert torch.equal(row, brute_force(model.net, prompt[None], 14, window=6)[0])


@pytest.mark.parametrize('limit', [0, 6])
def test_unequal_prompts_with_memories_between_tokens(limit):
    """No padding goes with them: each row is read as if it were alone."""
    around = dict(num_memory_tokens=2, memory_tokens_interspersed_every=3)
    model, prompts = language_model(around=around, limit=limit), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3, 5)]
    rows = [brute_force(model.net, prompt[None], 8, window=limit)[0] for prompt in prompts]
    assert torch.equal(model.generate(prompts, 8, temperature=0.0), torch.stack(rows))
    assert torch.equal(model.speculative(prompts, 8, temperature=0.0), torch.stack(rows))
    assert torch.equal(model.beam_search(prompts, 8, beams=1), torch.stack(rows))


def test_intermediates_of_generation_continue_on_a_model():
    model, prompts = language_model(**ROTARY), ids_of(2, 4, vocab=11)
    out, inter = model.generate(prompts, 3, temperature=0.0, return_intermediates=True)
    logits = model.net(out[:, -1:], cache=inter, input_not_include_cache=True)
    expected = model.net(torch.cat((prompts, out), dim=1))
    assert torch.allclose(logits[:, -1], expected[:, -1])


def test_amateurs_of_other_shapes_on_a_model():
    model, amateur = language_model(**ROTARY), language_model(depth=1, dim=8)
    prompts = ids_of(2, 4, vocab=11)
    expected = contrasted([model.net, amateur.net], [dict(beta=2.0)], prompts, 10)
    assert not torch.equal(expected, model.generate(prompts, 10, temperature=0.0))
    for cache_kv in (True, False):
        given = dict(amateur_model=amateur, contrastive_decode_kwargs=dict(beta=2.0), cache_kv=cache_kv)
        assert torch.equal(model.generate(prompts, 10, temperature=0.0, **given), expected)


def test_several_heads_of_a_model():
    model, x = language_model(around=dict(num_output_heads=2)), ids_of(2, 6, vocab=11)
    expected = sum(loss_by_hand(head[:, :-1], x[:, 1:]) for head in model.net(x)) / 2
    assert model(x).item() == pytest.approx(expected, rel=1e-9)
    first = model.net(x)[0][:, -1].argmax(-1)
    for cache_kv in (True, False):
        out = model.generate(x, 3, temperature=0.0, cache_kv=cache_kv)
        assert out.shape == (2, 3) and torch.equal(out[:, 0], first)


def test_a_prefix_model_is_accepted_and_not_cached():
    torch.manual_seed(0)
    stack = PrefixDecoder(dim=16, depth=2, heads=2, attn_dim_head=8)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=11, max_seq_len=16, attn_layers=stack)).double().eval()
    x = ids_of(2, 6, vocab=11)
    given = dict(prefix_attn_len=2)
    expected = loss_by_hand(model.net(x, **given)[:, 1:-1], x[:, 2:])  # tokens of the prefix are seen by their queries
    assert model(x, **given).item() == pytest.approx(expected, rel=1e-9)
    out = model.generate(x, 4, temperature=0.0, **given)
    assert torch.equal(out, brute_force(model.net, x, 4, **given))


def test_a_model_comes_back_from_its_config_and_from_a_pickle():
    model, prompts = language_model(dict(mask_prob=0.25, pad_value=3), **ROTARY), ids_of(2, 4, vocab=11)
    again = AutoregressiveWrapper.from_config(json.loads(json.dumps(model.config))).double().eval()
    again.load_state_dict(model.state_dict())
    assert (again.mask_prob, again.pad_value) == (0.25, 3)
    expected = model.generate(prompts, 6, temperature=0.0)
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.generate(prompts, 6, temperature=0.0), expected)


def test_threads_that_generate_keep_a_model_in_eval_mode_together():
    net, inside, leave = nn.Sequential(nn.Linear(1, 1), nn.Dropout().eval()), threading.Event(), threading.Event()

    def other():
        with eval_modules(list(net.modules())):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with eval_modules(list(net.modules())):
        thread.start()
        inside.wait()
    assert not any(module.training for module in net.modules())
    leave.set()
    thread.join()
    assert [module.training for module in net.modules()] == [True, True, False] and not HELD
