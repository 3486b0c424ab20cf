"""The language model wrapper: its loss against hand sums, its generation against loops that recompute everything.

Most tests use `History`, a net whose logits are a plain function of the tokens it may see, in float64: what a cache, a
window or a padding gets wrong shows in its tokens. Those at the end repeat the main claims on real models.
"""

import copy
import itertools
import json
import math
import pickle
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from loguru import logger
from torch import nn

from x_transformers import Decoder, Encoder, PrefixDecoder, TransformerWrapper, autoregressive_wrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper, hidden_keys, next_token_loss
from x_transformers.flags import ConfigError, warn_once
from x_transformers.sampling import FILTER_LOGITS_FN, contrastive_decode_fn, top_k

VOCAB = 5


@pytest.fixture
def logged():
    """The warnings that the library logs while the test runs; a text that came before may come again."""
    warn_once.cache_clear()
    texts = []
    sink = logger.add(texts.append, level='WARNING')
    yield texts
    logger.remove(sink)


@dataclass
class Past:
    """A cache of `History`: the vectors themselves."""

    vectors: torch.Tensor
    seen: int
    leading: int = 0

    @property
    def length(self):
        return self.vectors.shape[1]

    def keep_last(self, count):
        assert 0 <= count <= self.length and self.leading == 0
        return Past(self.vectors[:, self.length - count :], self.seen)

    def reorder(self, rows):
        return Past(self.vectors[rows], self.seen, self.leading)


@dataclass
class Seen:
    """The intermediates of `History`."""

    cache: Past
    attn_z_loss: torch.Tensor = None


class History(nn.Module):
    """Logits from a sum over the visible past, older tokens weighing less: one layer, one exact formula."""

    def __init__(self, vocab=VOCAB, dim=6, max_seq_len=0, can_cache=True, absolute=False, heads=1, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.max_seq_len, self.can_cache_kv, self.can_cache_kv_outside_max_seq_len = (
            max_seq_len,
            can_cache,
            not absolute,
        )
        self.table = nn.Parameter(torch.randn(vocab, dim, generator=generator, dtype=torch.float64))
        self.places = nn.Parameter(absolute * torch.randn(64, dim, generator=generator, dtype=torch.float64))
        self.heads = nn.Parameter(2 * torch.randn(heads, dim, vocab, generator=generator, dtype=torch.float64))
        self.dropout = nn.Dropout(0.5)
        self.fed = []

    def forward(
        self,
        ids,
        mask=None,
        context=None,
        prepend_embeds=None,
        seq_start_pos=None,
        self_attn_kv_mask=None,
        cache=None,
        input_not_include_cache=False,
        return_intermediates=False,
        return_attn_z_loss=False,
    ):
        self.fed.append(tuple(ids.shape))
        b, new = ids.shape
        before = 0 if cache is None else cache.seen
        start = torch.zeros(b, dtype=torch.long) if seq_start_pos is None else seq_start_pos
        place = (torch.arange(before, before + new) - start[:, None]).clamp(min=0)
        vectors, p = self.table[ids] + self.places[place], 0
        if prepend_embeds is not None and cache is None:
            vectors, p = torch.cat((prepend_embeds, vectors), dim=1), prepend_embeds.shape[1]
        if cache is not None:
            assert input_not_include_cache
            vectors, p = torch.cat((cache.vectors, vectors), dim=1), cache.leading

        n = vectors.shape[1]
        # places count from the prefix on, and padding takes none
        index = torch.arange(n).expand(b, n)
        padding = (index >= p) & (index < p + start[:, None])
        real = ~padding
        for kept in (mask, self_attn_kv_mask):
            real = real if kept is None else real & F.pad(kept, (n - kept.shape[1], 0), value=True)
        place = torch.where(index < p, index, index - start[:, None])
        age = place[:, :, None] - place[:, None]
        weight = torch.where(age >= 0, 0.8**age, 0.0) * real[:, None] * (index[:, :, None] >= index[:, None])
        state = self.dropout(weight.double() @ vectors)[:, n - new - (p if cache is None else 0) :]
        if context is not None:
            state = state + context.mean(dim=1, keepdim=True)
        out = tuple((3 * state).sin() @ head for head in self.heads)
        out = out if len(out) > 1 else out[0]
        if not return_intermediates:
            return out
        return out, Seen(Past(vectors, before + new, p), self.table.square().mean() if return_attn_z_loss else None)


def brute_force(net, prompts, steps, window=None, choose=None, **inputs):
    """The whole sequence, cut to the window, through the net for each new token."""
    choose = choose or (lambda logits: logits.argmax(-1))
    out = prompts
    net.eval()
    for _ in range(steps):
        read = out if not window else out[:, -window:]
        out = torch.cat((out, choose(net(read, **inputs)[:, -1])[:, None]), dim=1)
    return out[:, prompts.shape[1] :]


def ids_of(*shape, seed=0, vocab=VOCAB):
    return torch.randint(0, vocab, shape, generator=torch.Generator().manual_seed(seed))


def wrapped(**keywords):
    return AutoregressiveWrapper(History(**keywords))


def diverse(tokens):
    """Guard against an oracle that only ever says one thing."""
    return len(set(tokens.flatten().tolist())) > 2


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
@pytest.mark.parametrize('cache_kv', [True, False])
def test_each_row_of_unequal_prompts_equals_the_row_alone(cache_kv, absolute, window):
    model = wrapped(absolute=absolute, max_seq_len=window, seed=1)
    prompts = [ids_of(n, seed=n) for n in (5, 1, 3, 5)]
    out = model.generate(prompts, 10, temperature=0.0, cache_kv=cache_kv)
    assert diverse(out)
    for prompt, row in zip(prompts, out, strict=True):
        assert torch.equal(row, model.generate(prompt, 10, temperature=0.0, cache_kv=False))

    padded = nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=3)
    for lens in (torch.tensor([5, 1, 3, 5]), [5, 1, 3, 5]):
        again = model.generate(padded, 10, temperature=0.0, prompt_lens=lens, cache_kv=cache_kv)
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

    with pytest.raises(ValueError, match=r'`mask` got the shape \(2, 4\), it must be \(2, 5\)'):
        model.generate(prompts, 8, mask=mask[:, 1:])
    with pytest.raises(ValueError, match=r'`mask` cannot be given with prompts of unequal length'):
        model.generate(prompts, 8, mask=mask, prompt_lens=torch.tensor([5, 4]))


# the window


@pytest.mark.parametrize('window', [1, 2, 5])
@pytest.mark.parametrize('length', [1, 4, 9])
def test_past_the_window_the_oldest_tokens_leave(length, window):
    model = wrapped(max_seq_len=window, seed=1)
    prompts = ids_of(2, length, seed=3)
    expected = brute_force(model.net, prompts, 12, window=window)
    for cache_kv in (True, False):
        model.net.fed.clear()
        assert torch.equal(model.generate(prompts, 12, temperature=0.0, cache_kv=cache_kv), expected)
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


class Fixed(nn.Module):
    """The same distribution for every token."""

    max_seq_len = 0

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, ids, return_intermediates=False, **_):
        out = self.logits.expand(*ids.shape, -1)
        return (out, None) if return_intermediates else out


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
    with pytest.raises(ValueError, match='`seq_len` got -1'):
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
        (dict(seq_len=-1), '`seq_len` got -1, it must be an integer of at least 0'),
        (dict(seq_len=2.0), '`seq_len` got 2.0'),
        (dict(temperature=-0.5), '`temperature` got -0.5, it must be a number of at least 0'),
        (dict(temperature=None), '`temperature` got None'),
        (dict(eos_token=1.5), '`eos_token` got 1.5, it must be a token id or None'),
        (dict(filter_logits_fn='topp'), "`filter_logits_fn` got 'topp'"),
        (dict(cache=3), '`cache` cannot be given to generate, it keeps its own'),
        (dict(seq_start_pos=3), '`seq_start_pos` cannot be given to generate, give `prompt_lens`'),
        (dict(return_hiddens=True), '`return_hiddens` cannot be given to generate'),
    ],
)
def test_generate_refuses_before_computing(keywords, words):
    model = wrapped()
    with pytest.raises(ValueError, match=words):
        model.generate(ids_of(1, 2), **{'seq_len': 2, **keywords})
    assert model.net.fed == []


# beam search


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
        (dict(beams=0), '`beams` got 0, it must be an integer of at least 1'),
        (dict(eos_token=3), '`eos_token` got 3, it must be None'),
        (dict(seq_len=-2), '`seq_len` got -2'),
        (dict(temperature=-1.0), '`temperature` got -1.0'),
        (dict(cache=1), '`cache` cannot be given to beam_search'),
    ],
)
def test_beam_search_refuses_before_computing(keywords, words):
    model = wrapped()
    with pytest.raises(ValueError, match=words):
        model.beam_search(ids_of(1, 2), **{'seq_len': 2, **keywords})
    assert model.net.fed == []


# the loss


def loss_by_hand(logits, targets, ignored=()):
    """Mean of -log softmax over the targets that count; logits (b n l) for targets (b n)."""
    terms = []
    for row, wanted in zip(logits.tolist(), targets.tolist(), strict=True):
        for scores, target in zip(row, wanted, strict=True):
            if target not in ignored:
                terms.append(math.log(sum(math.exp(s) for s in scores)) - scores[target])
    return sum(terms) / len(terms)


def test_loss_is_the_mean_cross_entropy_of_the_next_token():
    model = wrapped().eval()
    x = ids_of(3, 7)
    assert model(x).item() == pytest.approx(loss_by_hand(model.net(x[:, :-1]), x[:, 1:]), rel=1e-12)
    assert model.net.fed[0] == (3, 7)
    assert model(x.int()).item() == model(x).item()


def test_ignored_ids_are_no_targets_and_padding_to_the_net():
    model = AutoregressiveWrapper(History(), ignore_index=-1, pad_value=2).eval()
    x = ids_of(2, 6)
    x[0, 3], x[1, 4:] = -1, -1
    fed = x.masked_fill(x == -1, 2)
    expected = loss_by_hand(model.net(fed[:, :-1]), x[:, 1:], {-1})
    assert model(x).item() == pytest.approx(expected, rel=1e-12)
    # one id for both, as most language models have it
    model = AutoregressiveWrapper(History(), ignore_index=0, pad_value=0).eval()
    expected = loss_by_hand(model.net(x[:1, :3]), torch.tensor([[x[0, 1], x[0, 2], 0]]), {0})
    assert model(torch.tensor([[*x[0, :3], 0]])).item() == pytest.approx(expected, rel=1e-12)


def test_lengths_end_the_targets():
    model = AutoregressiveWrapper(History(), pad_value=3).eval()
    x, lens = ids_of(3, 6), torch.tensor([6, 2, 4])
    marked = x.clone()
    marked[1, 2:], marked[2, 4:] = -100, -100
    assert model(x, lens=lens).item() == model(marked).item()
    assert model(x, lens=lens).item() != model(x).item()
    other = x.masked_fill(torch.arange(6) >= lens[:, None], 1)
    assert model(other, lens=lens).item() == model(x, lens=lens).item()
    with pytest.raises(ValueError, match=r'`lens` must hold one length for each of the 3 rows, got the shape \(2,\)'):
        model(x, lens=lens[:2])


def test_without_targets_the_loss_is_zero_with_zero_gradients():
    model = wrapped()
    loss = model(torch.full((2, 4), -100))
    assert loss.item() == 0.0
    loss.backward()
    assert all(p.grad is not None and (p.grad == 0).all() for p in model.parameters())


def test_prepended_vectors_are_no_targets():
    model = wrapped().eval()
    x, prefix = ids_of(2, 5), torch.randn(2, 3, 6, dtype=torch.float64)
    expected = loss_by_hand(model.net(x, prepend_embeds=prefix)[:, 3:-1], x[:, 1:])
    loss, (logits, _) = model(x, prepend_embeds=prefix, return_outputs=True)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.equal(logits, model.net(x, prepend_embeds=prefix)[:, 3:-1])


def test_outputs_come_back():
    model = wrapped().eval()
    x = ids_of(2, 5)
    loss, (logits, inter) = model(x, return_outputs=True)
    assert loss.item() == model(x).item()
    assert torch.equal(logits, model.net(x)[:, :-1]) and isinstance(inter, Seen)


def test_losses_of_several_heads_are_averaged():
    model = wrapped(heads=3).eval()
    x = ids_of(2, 5)
    expected = sum(loss_by_hand(head[:, :-1], x[:, 1:]) for head in model.net(x)) / 3
    loss, (logits, _) = model(x, return_outputs=True)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert len(logits) == 3 and logits[2].shape == (2, 4, VOCAB)


def test_z_loss_is_added():
    plain, with_z = wrapped().eval(), AutoregressiveWrapper(History(), add_attn_z_loss=True).eval()
    x = ids_of(2, 5)
    extra = with_z.net.table.square().mean().item()
    assert with_z(x).item() == pytest.approx(plain(x).item() + extra, rel=1e-12)


class LogProbs(History):
    output_is_log_prob = True

    def forward(self, ids, **inputs):
        return super().forward(ids, **inputs).log_softmax(-1) + 0.25


def test_log_probabilities_are_not_normalised_again():
    x = ids_of(2, 5)
    plain, log_probs = wrapped().eval(), AutoregressiveWrapper(LogProbs()).eval()
    assert log_probs(x).item() == pytest.approx(plain(x).item() - 0.25, rel=1e-12)


@pytest.mark.parametrize('n, q, count', [(7, 0.15, 1), (7, 0.5, 3), (2, 0.9, 1), (9, 0.99, 8), (5, 0.1, 0)])
def test_forgetful_masking_hides_exactly_k_keys_and_never_the_first(n, q, count):
    rows = hidden_keys(ids_of(200, n), q)
    assert rows.dtype == torch.bool and rows.shape == (200, n)
    assert ((~rows).sum(-1) == count).all() and rows[:, 0].all()
    often = (~rows[:, 1:]).float().mean(0)
    assert (often - count / (n - 1)).abs().max() < 4 * 0.5 / math.sqrt(200)


def test_forgetful_masking_reaches_the_loss():
    model = AutoregressiveWrapper(History(), mask_prob=0.5).eval()
    x = ids_of(2, 6)
    torch.manual_seed(3)
    kept = hidden_keys(x, 0.5)
    torch.manual_seed(3)
    expected = loss_by_hand(model.net(x, self_attn_kv_mask=kept)[:, :-1], x[:, 1:])
    assert model(x).item() == pytest.approx(expected, rel=1e-12)
    torch.manual_seed(3)
    mine = torch.ones_like(kept)
    mine[:, 0] = False
    expected = loss_by_hand(model.net(x, self_attn_kv_mask=kept & mine)[:, :-1], x[:, 1:])
    assert model(x, self_attn_kv_mask=mine).item() == pytest.approx(expected, rel=1e-12)


def test_a_mask_goes_to_the_net_and_removes_no_targets():
    model = wrapped().eval()
    x, mask = ids_of(2, 5), torch.tensor([[True, False, True, True, True]] * 2)
    expected = loss_by_hand(model.net(x, mask=mask)[:, :-1], x[:, 1:])
    assert model(x, mask=mask).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_loss_of_half_precision_logits_is_summed_in_float32(dtype):
    # the sum of 40,000 losses of about 6 passes the range of float16 and the digits of bfloat16
    logits, targets = (3 * torch.randn(4, 10000, 9)).to(dtype), torch.randint(0, 9, (4, 10000))
    loss = next_token_loss(logits, targets, ignore_index=-100)
    exact = F.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact.item(), rel=1e-3)


@pytest.mark.parametrize(
    'x, error, words',
    [
        (torch.zeros(2, 1).long(), ValueError, r'`x` got the shape \(2, 1\), it must be \(b, n\) with n of at least 2'),
        (torch.zeros(4).long(), ValueError, r'`x` got the shape \(4,\)'),
        (torch.zeros(2, 4), TypeError, r'`x` must hold integer token ids, got torch.float32'),
        ([[1, 2]], TypeError, r'`x` must be a tensor of token ids, got list'),
    ],
)
def test_the_loss_refuses_other_inputs(x, error, words):
    model = wrapped()
    with pytest.raises(error, match=words):
        model(x)
    assert model.net.fed == []


@pytest.mark.parametrize('name', ['cache', 'return_hiddens', 'input_not_include_cache'])
def test_the_loss_refuses_keywords_that_change_what_the_net_returns(name):
    with pytest.raises(ValueError, match=f'`{name}` cannot be given to the loss'):
        wrapped()(ids_of(1, 3), **{name: True})


# construction


def test_attributes_that_users_read():
    net = History(max_seq_len=7)
    model = AutoregressiveWrapper(net, pad_value=3, ignore_index=-1)
    assert model.net is net and (model.pad_value, model.ignore_index, model.max_seq_len) == (3, -1, 7)
    assert all(name.startswith('net.') for name in model.state_dict())


def test_a_subclass_may_override_generate():
    class Twice(AutoregressiveWrapper):
        def generate(self, *args, **kwargs):
            return 2 * super().generate(*args, **kwargs)

    prompts = ids_of(2, 3)
    out = Twice(History()).generate(prompts, 4, temperature=0.0)
    assert torch.equal(out, 2 * wrapped().generate(prompts, 4, temperature=0.0))


@pytest.mark.parametrize(
    'keywords, words',
    [
        (dict(mask_prob=1.0), '`mask_prob` got 1.0'),
        (dict(mask_prob=-0.1), '`mask_prob` got -0.1'),
        (dict(pad_value='a'), "`pad_value` got 'a', it must be an integer"),
        (dict(ignore_index=None), '`ignore_index` got None'),
        (dict(mask_probs=0.1), 'unknown keyword `mask_probs` of AutoregressiveWrapper, did you mean `mask_prob`'),
    ],
)
def test_construction_refuses(keywords, words):
    with pytest.raises(ConfigError, match=words):
        AutoregressiveWrapper(History(), **keywords)


def test_nets_without_next_token_logits_are_refused():
    class Stack:
        causal = False

    net = History()
    net.attn_layers = Stack()
    with pytest.raises(ValueError, match=r'`net` must be causal, .* its stack is Stack, use Decoder'):
        AutoregressiveWrapper(net)
    with pytest.raises(ValueError, match=r'`net` got Linear, which has no `max_seq_len`'):
        AutoregressiveWrapper(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r'`net` got 3, it must be an instance of Module'):
        AutoregressiveWrapper(3)


# on real models


def language_model(wrapper=None, *, depth=2, tokens=11, limit=32, dim=16, around=None, **stack):
    torch.manual_seed(6)
    attn_layers = Decoder(dim=dim, depth=depth, heads=2, attn_dim_head=8, **stack)
    net = TransformerWrapper(num_tokens=tokens, max_seq_len=limit, attn_layers=attn_layers, **(around or {}))
    model = AutoregressiveWrapper(net, **(wrapper or {})).double().eval()
    with torch.no_grad():
        # a fresh model says little: louder weights make its choices depend on all it sees
        for parameter in model.parameters():
            parameter.mul_(2.0 if parameter.ndim > 1 else 1.0)
    return model


MODELS = {
    'absolute': {},
    'sinusoid': dict(around=dict(scaled_sinu_pos_emb=True)),
    'rotary': dict(rotary_pos_emb=True),
    'xpos': dict(rotary_pos_emb=True, rotary_xpos=True),
    't5': dict(rel_pos_bias=True),
    'alibi': dict(alibi_pos_bias=True, around=dict(use_abs_pos_emb=False)),
    'one key head': dict(rotary_pos_emb=True, attn_one_kv_head=True),
    'memory tokens': dict(rotary_pos_emb=True, around=dict(num_memory_tokens=2)),
    'memory keys': dict(rotary_pos_emb=True, attn_num_mem_kv=2),
    'shifted tokens': dict(rotary_pos_emb=True, shift_tokens=1),
    'emb_dim': dict(around=dict(emb_dim=12)),
    'no limit': dict(limit=0),
}
models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)
ROTARY = MODELS['rotary']


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
    for cache_kv in (True, False):
        out = model.generate(prompts, 8, temperature=0.0, cache_kv=cache_kv)
        for prompt, row in zip(prompts, out, strict=True):
            assert torch.equal(row, brute_force(model.net, prompt[None], 8)[0])


@models
def test_models_with_prepended_vectors(keywords):
    model, prompts = language_model(**keywords), [ids_of(n, seed=n, vocab=11) for n in (4, 2)]
    width = keywords.get('around', {}).get('emb_dim', 16)
    given = dict(prepend_embeds=vectors_of(2, 3, width), prepend_mask=torch.tensor([[True] * 3, [False, True, True]]))
    for cache_kv in (True, False):
        out = model.generate(prompts, 8, temperature=0.0, cache_kv=cache_kv, **given)
        for row, prompt in enumerate(prompts):
            mine = {name: value[row : row + 1] for name, value in given.items()}
            assert torch.equal(out[row : row + 1], brute_force(model.net, prompt[None], 8, **mine))


def vectors_of(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# with one layer, a key holds nothing but its own token; a shifted one holds its neighbour, which may have left
@pytest.mark.parametrize('name', [name for name in MODELS if name != 'shifted tokens'])
def test_models_past_their_window(name):
    keywords = dict(limit=6) | MODELS[name] | dict(depth=1)
    model, prompts = language_model(**keywords), ids_of(2, 4, vocab=11)
    expected = brute_force(model.net, prompts, 14, window=model.max_seq_len)
    for cache_kv in (True, False):
        assert torch.equal(model.generate(prompts, 14, temperature=0.0, cache_kv=cache_kv), expected)


@pytest.mark.parametrize('cache_kv', [True, False])
def test_unequal_prompts_past_the_window_of_a_model(cache_kv):
    model, prompts = language_model(**ROTARY, depth=1, limit=6), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    out = model.generate(prompts, 14, temperature=0.0, cache_kv=cache_kv)
    for prompt, row in zip(prompts, out, strict=True):
        assert torch.equal(row, brute_force(model.net, prompt[None], 14, window=6)[0])


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


@models
def test_loss_of_models(keywords):
    model, x = language_model(**keywords), ids_of(2, 7, vocab=11)
    width = keywords.get('around', {}).get('emb_dim', 16)
    prefix, lens = vectors_of(2, 3, width), torch.tensor([7, 4])
    targets = x[:, 1:].masked_fill(torch.arange(6) >= lens[:, None] - 1, -100)
    logits = model.net(x)[:, :-1]
    assert model(x, lens=lens).item() == pytest.approx(loss_by_hand(logits, targets, {-100}), rel=1e-9)
    logits = model.net(x, prepend_embeds=prefix)[:, 3:-1]
    loss, (given, _) = model(x, lens=lens, prepend_embeds=prefix, return_outputs=True)
    assert loss.item() == pytest.approx(loss_by_hand(logits, targets, {-100}), rel=1e-9)
    assert given.shape == (2, 6, 11)
    assert model(x, prepend_embeds=prefix, excise_prepend_embeds=True).item() == pytest.approx(
        model(x, prepend_embeds=prefix).item(), rel=1e-12
    )


@pytest.mark.parametrize('keywords', [{}, dict(around=dict(num_memory_tokens=2)), dict(attn_num_mem_kv=2)], ids=str)
def test_forgetful_masking_hides_tokens_and_nothing_in_front(keywords):
    model, x = language_model(dict(mask_prob=0.5), **keywords), ids_of(2, 6, vocab=11)
    prefix, memories = vectors_of(2, 3, 16), [vectors_of(2, 2, 16, seed=i) for i in (1, 2)]
    for given in ({}, dict(prepend_embeds=prefix), dict(mems=memories), dict(prepend_embeds=prefix, mems=memories)):
        torch.manual_seed(4)
        loss = model(x, **given)
        torch.manual_seed(4)
        kept = hidden_keys(x, 0.5)
        # a hidden key is one that has no influence: changing it changes nothing behind it, the loss excepted
        torch.manual_seed(4)
        place = (~kept[0]).nonzero()[0].item()
        other = x.clone()
        other[0, place] = (other[0, place] + 1) % 11
        torch.manual_seed(4)
        _, (before, _) = model(x, return_outputs=True, **given)
        torch.manual_seed(4)
        _, (after, _) = model(other, return_outputs=True, **given)
        assert torch.equal(before[0, place + 1 :], after[0, place + 1 :]) and torch.equal(before[1], after[1])
        shown = kept[0].nonzero()[1].item()
        other = x.clone()
        other[0, shown] = (other[0, shown] + 1) % 11
        torch.manual_seed(4)
        _, (after, _) = model(other, return_outputs=True, **given)
        assert not torch.allclose(before[0, shown + 1 :], after[0, shown + 1 :])
        for name in given:
            old = given[name]
            changed = [2.0 * t + vectors_of(16, seed=9) for t in (old if name == 'mems' else [old])]
            changed = changed if name == 'mems' else changed[0]
            torch.manual_seed(4)
            assert not torch.isclose(model(x, **{**given, name: changed}), loss), f'{name} is hidden'


def test_z_loss_of_a_model():
    x = ids_of(2, 6, vocab=11)
    plain, with_z = language_model(attn_flash=False), language_model(dict(add_attn_z_loss=True), attn_flash=False)
    _, inter = with_z.net(x, return_intermediates=True)
    sums = sum(maps.pre_softmax_attn.logsumexp(-1) for maps in inter.attn_intermediates)
    expected = plain(x).item() + 1e-4 * sums.square().sum(1).mean().item()
    assert with_z(x).item() == pytest.approx(expected, rel=1e-9) and with_z(x).item() > plain(x).item()


def test_several_heads_of_a_model():
    model, x = language_model(around=dict(num_output_heads=2)), ids_of(2, 6, vocab=11)
    expected = sum(loss_by_hand(head[:, :-1], x[:, 1:]) for head in model.net(x)) / 2
    assert model(x).item() == pytest.approx(expected, rel=1e-9)
    first = model.net(x)[0][:, -1].argmax(-1)
    for cache_kv in (True, False):
        out = model.generate(x, 3, temperature=0.0, cache_kv=cache_kv)
        assert out.shape == (2, 3) and torch.equal(out[:, 0], first)


def test_later_tokens_never_reach_earlier_predictions():
    model, x = language_model(), ids_of(2, 6, vocab=11)
    other = x.clone()
    other[:, 4] = (other[:, 4] + 1) % 11
    _, (before, _) = model(x, return_outputs=True)
    _, (after, _) = model(other, return_outputs=True)
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.allclose(before[:, 4], after[:, 4])


@pytest.mark.parametrize(
    'stack, around, words',
    [
        (Encoder, {}, r'`net` must be causal, .* its stack is Encoder, use Decoder'),
        (Decoder, dict(return_only_embed=True), r'it has no head \(`return_only_embed` is set\)'),
        (Decoder, dict(average_pool_embed=True), r'one vector for the whole sequence \(`average_pool_embed` is set\)'),
        (Decoder, dict(use_cls_token=True), r'from the cls tokens \(`use_cls_token` is set\)'),
    ],
)
def test_models_that_cannot_learn_the_next_token_are_refused(stack, around, words):
    net = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=stack(dim=8, depth=1, heads=1), **around)
    with pytest.raises(ValueError, match=words):
        AutoregressiveWrapper(net)


def test_a_prefix_model_is_accepted_and_not_cached():
    torch.manual_seed(0)
    stack = PrefixDecoder(dim=16, depth=2, heads=2, attn_dim_head=8)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=11, max_seq_len=16, attn_layers=stack)).double().eval()
    x = ids_of(2, 6, vocab=11)
    given = dict(prefix_attn_len=2)
    expected = loss_by_hand(model.net(x, **given)[:, :-1], x[:, 1:])
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


@pytest.mark.slow
def test_the_loss_compiles_to_one_graph():
    model, x = language_model(**ROTARY), ids_of(2, 6, vocab=11)
    lens = torch.tensor([6, 3])
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    assert compiled(x, lens=lens).item() == pytest.approx(model(x, lens=lens).item(), rel=1e-9)
