"""What can be switched on in a generation: ends, penalties, bans, several samples, and what comes back.

The oracle is a loop over rows and tokens that recomputes everything with plain Python numbers.
"""

import itertools
import math

import pytest
import torch
from toy_nets import MODELS, VOCAB, Fixed, History, brute_force, diverse, ids_of, language_model, vectors_of, wrapped

from x_transformers.autoregressive_wrapper import AutoregressiveWrapper, Generated, min_p, top_k
from x_transformers.generation.choice import REASONS, StoppingCriteria, TokenSampler, get_vocabulary
from x_transformers.generation.sampling import counts, epsilon, filter_with, typical


def by_hand(net, prompt, steps, change):
    """Greedy tokens of one row; `change` gets the tokens so far, how many of them are prompt, and a list of logits."""
    net.eval()
    tokens = list(prompt)
    for _ in range(steps):
        logits = net(torch.tensor([tokens]))[0, -1].tolist()
        logits = change(tokens, len(prompt), logits)
        tokens.append(max(range(len(logits)), key=lambda v: logits[v]))
    return tokens[len(prompt) :]


def penalised(repetition=1.0, presence=0.0, frequency=0.0, bias=None, banned=(), allowed=None):
    def change(tokens, n, logits):
        out = []
        for v, z in enumerate(logits):
            if v in tokens:
                z = z / repetition if z > 0 else z * repetition
            z -= presence * (v in tokens[n:]) + frequency * tokens[n:].count(v)
            z += (bias or {}).get(v, 0.0)
            if v in banned or (allowed is not None and v not in allowed):
                z = -math.inf
            out.append(z)
        return out

    return change


OPTIONS = {
    'repetition': (dict(repetition_penalty=3.0), penalised(repetition=3.0)),
    'less repetition': (dict(repetition_penalty=0.4), penalised(repetition=0.4)),
    'presence': (dict(presence_penalty=1.5), penalised(presence=1.5)),
    'frequency': (dict(frequency_penalty=0.7), penalised(frequency=0.7)),
    'bias': (dict(logit_bias={1: 2.0, 3: -4.0}), penalised(bias={1: 2.0, 3: -4.0})),
    'banned': (dict(banned_tokens=[1, 4]), penalised(banned=[1, 4])),
    'allowed': (dict(allowed_tokens=torch.tensor([0, 2, 3])), penalised(allowed=[0, 2, 3])),
    'all': (
        dict(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.3, logit_bias={2: 1.0},
             banned_tokens=(1,), allowed_tokens=range(4)),
        penalised(1.3, 0.5, -0.3, {2: 1.0}, [1], range(4)),
    ),
}  # fmt: skip


@pytest.mark.parametrize('cache_kv', [True, False])
@pytest.mark.parametrize('name', OPTIONS)
def test_logits_are_changed_as_by_hand(name, cache_kv):
    model, prompts = wrapped(seed=1), [ids_of(n, seed=n) for n in (4, 1, 3)]
    options, change = OPTIONS[name]
    out = model.generate(prompts, 12, temperature=0.0, cache_kv=cache_kv, **options)
    for row, prompt in zip(out.tolist(), prompts, strict=True):
        assert row == by_hand(model.net, prompt.tolist(), 12, change)
    assert not torch.equal(out, model.generate(prompts, 12, temperature=0.0))


def test_padding_and_masked_tokens_are_not_penalised():
    model = AutoregressiveWrapper(History(seed=1), pad_value=2)
    prompts, options = [ids_of(5, seed=4), ids_of(1)], dict(temperature=0.0, repetition_penalty=5.0)
    out = model.generate(prompts, 8, **options)
    for row, prompt in zip(out, prompts, strict=True):
        assert torch.equal(row, model.generate(prompt, 8, **options))
    prompt, mask = torch.tensor([[3, 1, 0]]), torch.tensor([[False, True, True]])
    expected = model.generate(prompt, 8, mask=mask, **options)
    prompt[0, 0] = 4
    assert torch.equal(model.generate(prompt, 8, mask=mask, **options), expected)


def test_processors_see_all_tokens_so_far_and_decide():
    model, prompts, seen = wrapped(), ids_of(2, 3), []

    def counting(ids, logits):  # a grammar: the next token is the last one, plus one
        seen.append(tuple(ids.shape))
        wanted = (ids[:, -1:] + 1) % VOCAB
        return torch.full_like(logits, -math.inf).scatter(1, wanted, 0.0)

    out = model.generate(prompts, 6, logits_processor=counting)
    assert torch.equal(out, (prompts[:, -1:] + torch.arange(1, 7)) % VOCAB)
    assert seen == [(2, n) for n in range(3, 9)]
    twice = model.generate(prompts, 6, temperature=0.0, logits_processor=[lambda _, z: -z, lambda _, z: -z])
    assert torch.equal(twice, model.generate(prompts, 6, temperature=0.0))
    with pytest.raises(ValueError, match=r'`logits_processor` gave \(2,\), it must give logits of the shape \(2, 5\)'):
        model.generate(prompts, 6, logits_processor=lambda _, z: z[:, 0])


def test_what_is_not_used_costs_nothing():
    decoding = wrapped().decoding(ids_of(2, 3), 2)
    assert decoding.weigh is None and not decoding.endings and decoding.samples == 1
    assert TokenSampler().steps == []


# filters


def test_filters_run_one_after_the_other():
    logits = torch.tensor([[3.0, 2.5, 2.0, 1.0, -1.0]])
    chain = filter_with(['top_k', min_p], [dict(k=3), dict(min_p=0.5)])
    assert torch.equal(chain(logits), min_p(top_k(logits, k=3), min_p=0.5))
    assert chain(logits).isinf().tolist() == [[False, False, True, True, True]]
    model = AutoregressiveWrapper(Fixed(logits[0].tolist()))
    options = dict(filter_logits_fn=('top_k', 'min_p'), filter_kwargs=[dict(k=3), dict(min_p=0.5)])
    out = model.generate(torch.zeros(400, 1).long(), 1, **options)
    assert set(out.flatten().tolist()) == {0, 1}
    assert filter_with(('top_k', 'min_p'))(logits).isfinite().sum() == 1


@pytest.mark.parametrize('mass', [0.0, 0.2, 0.5, 0.9, 1.0])
def test_typical_keeps_what_is_near_the_entropy(mass):
    logits = 2 * torch.randn(6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for row, kept in zip(logits.tolist(), typical(logits, mass), strict=True):
        probs = [math.exp(z) / sum(map(math.exp, row)) for z in row]
        entropy = -sum(p * math.log(p) for p in probs)
        order = sorted(range(9), key=lambda v: abs(-math.log(probs[v]) - entropy))
        expected, total = set(), 0.0
        for v in order:
            if total <= mass:
                expected.add(v)
            total += probs[v]
        assert {v for v in range(9) if not kept[v].isinf()} == expected
        assert all(kept[v] == row[v] for v in expected)


def test_typical_beside_banned_tokens():
    logits = torch.tensor([0.0, -math.inf, 1.0, 0.5])
    assert typical(logits, 1.0).isinf().tolist() == [False, True, False, False]


@pytest.mark.parametrize('thres', [0.0, 0.05, 0.3, 1.0])
def test_epsilon_keeps_probable_tokens(thres):
    logits = 2 * torch.randn(6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    probs = logits.softmax(-1)
    expected = (probs < thres) & (probs < probs.max(-1, keepdim=True).values)
    assert torch.equal(epsilon(logits, thres).isinf(), expected)


# ends


def cut(row, ends):
    """A row up to the first place at which one of the sequences `ends` is complete, and which one that is."""
    for n in range(1, len(row) + 1):
        for number, end in enumerate(ends):
            if n >= len(end) and row[n - len(end) : n] == list(end):
                return row[:n], number
    return row, None


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('eos, stops', [((2, 4), ()), (None, ((1,), (3, 0))), (2, ((0, 3), (1, 1, 1))), ([], ())])
def test_rows_end_at_any_of_several_tokens_and_sequences(eos, stops, seed):
    model = AutoregressiveWrapper(History(seed=seed), pad_value=3)
    prompts = ids_of(6, 3, seed=seed)
    free = model.generate(prompts, 15, temperature=0.0).tolist()
    tokens = (eos,) if isinstance(eos, int) else eos or ()
    ends = [*((token,) for token in tokens), *stops]
    options = dict(eos_token=eos, stop_sequences=stops, temperature=0.0)
    made = model.generate(prompts, 15, return_finish_reasons=True, **options)
    cuts = [cut(row, ends) for row in free]
    width = max(len(row) for row, _ in cuts)
    assert made.tokens.tolist() == [row + [3] * (width - len(row)) for row, _ in cuts]
    words = ['length' if at is None else 'eos' if at < len(tokens) else 'stop' for _, at in cuts]
    assert made.finish_reasons == words and made.log_probs is None
    assert torch.equal(torch.stack(list(model.stream(prompts, 15, **options)), dim=-1), made.tokens)


def test_stop_sequences_do_not_begin_in_the_prompt():
    model = AutoregressiveWrapper(Fixed([0.0, 9.0]))
    prompts = torch.tensor([[1, 1, 1]])
    made = model.generate(prompts, 9, stop_sequences=[[1, 1]], temperature=0.0, return_finish_reasons=True)
    assert made.tokens.tolist() == [[1, 1]] and made.finish_reasons == ['stop']


def test_an_end_token_that_completes_a_sequence_is_the_reason():
    endings = StoppingCriteria(eos_token=[3, 4], stop_sequences=[(1, 3), (5,)])
    tails = torch.tensor([[1, 3], [2, 3], [3, 5], [4, 1], [1, 5]])
    assert [REASONS[code] for code in endings.reasons(tails)] == ['eos', 'eos', 'stop', 'length', 'stop']


def test_finish_reasons_have_the_axes_of_the_prompts():
    model = wrapped()
    options = dict(return_finish_reasons=True, eos_token=1)
    assert model.generate(ids_of(4), 2, **options).finish_reasons in ('eos', 'length')
    many = model.generate(ids_of(2, 3, 4), 2, num_samples=5, **options).finish_reasons
    assert [len(many), len(many[0]), len(many[0][0])] == [2, 3, 5]
    assert model.generate(ids_of(2, 4), 0, **options).finish_reasons == ['length'] * 2


# log probabilities, samples, callbacks


@pytest.mark.parametrize('cache_kv', [True, False])
def test_log_probabilities_are_those_of_the_net(cache_kv):
    model, prompts = wrapped(seed=1).eval(), ids_of(3, 4)
    options = dict(eos_token=2, temperature=0.7, repetition_penalty=1.5, cache_kv=cache_kv, filter_kwargs=dict(k=4))
    made = model.generate(prompts, 9, return_log_probs=True, return_finish_reasons=True, **options)
    assert isinstance(made, Generated) and made.log_probs.shape == made.tokens.shape
    whole = torch.cat((prompts, made.tokens), dim=1)
    scores = model.net(whole[:, :-1]).log_softmax(-1)[:, 3:].gather(-1, made.tokens[..., None])[..., 0]
    for row, tokens in enumerate(made.tokens.tolist()):
        length = len(cut(tokens, [(2,)])[0])
        assert torch.allclose(made.log_probs[row, :length], scores[row, :length], rtol=1e-12)
        assert (made.log_probs[row, length:] == 0).all()


def test_what_comes_back():
    model, prompts = wrapped(), ids_of(2, 4)
    plain = model.generate(prompts, 3, temperature=0.0)
    assert torch.is_tensor(plain)
    made = model.generate(prompts, 3, temperature=0.0, return_log_probs=True, return_intermediates=True)
    assert torch.equal(made.tokens, plain) and made.finish_reasons is None
    assert made.intermediates.cache.length == 6
    assert made._fields == ('tokens', 'log_probs', 'finish_reasons', 'intermediates')
    empty = model.generate(prompts, 0, return_log_probs=True)
    assert empty.tokens.shape == empty.log_probs.shape == (2, 0)
    with pytest.raises(ValueError, match='`return_log_probs` cannot be given'):
        model.stream(prompts, 3, return_log_probs=True)


@pytest.mark.parametrize('shape', [(4,), (2, 4), (2, 1, 4)])
def test_samples_get_an_axis_and_the_prompt_is_read_once(shape):
    model, prompts = wrapped(), ids_of(*shape)
    out = model.generate(prompts, 5, num_samples=3, filter_kwargs=dict(k=5), temperature=2.0)
    assert out.shape == (*shape[:-1], 3, 5) and len(torch.unique(out.reshape(-1, 5), dim=0)) > 1
    rows = prompts.reshape(-1, 4).shape[0]
    assert model.net.fed == [(rows, 4)] + [(3 * rows, 1)] * 4
    greedy = model.generate(prompts, 5, num_samples=3, temperature=0.0)
    assert torch.equal(greedy, model.generate(prompts, 5, temperature=0.0).unsqueeze(-2).expand(greedy.shape))
    assert model.generate(prompts, 5, num_samples=1).shape == (*shape[:-1], 1, 5)
    steps = list(model.stream(prompts, 5, num_samples=3, temperature=0.0))
    assert torch.equal(torch.stack(steps, dim=-1), greedy)
    assert model.generate(prompts, 0, num_samples=3).shape == (*shape[:-1], 3, 0)


@pytest.mark.parametrize('cache_kv', [True, False])
def test_samples_of_unequal_prompts_with_keywords_per_row(cache_kv):
    model, prompts = wrapped(), [ids_of(n, seed=n) for n in (4, 2)]
    context = 3 * vectors_of(2, 4, 6)
    options = dict(cache_kv=cache_kv, temperature=0.0)
    amateur = dict(amateur_model=History(seed=7))
    for more in ({}, amateur):
        out = model.generate(prompts, 6, num_samples=2, context=context, **options, **more)
        for row, prompt in enumerate(prompts):
            alone = model.generate(prompt[None], 6, context=context[row : row + 1], **options, **more)
            assert torch.equal(out[row], alone.expand(2, -1))
    seeded = [
        model.generate(prompts, 6, num_samples=2, cache_kv=kv, generator=torch.Generator().manual_seed(1))
        for kv in (True, False)
    ]
    assert torch.equal(*seeded)


def test_samples_have_the_frequencies_of_the_model():
    model = AutoregressiveWrapper(Fixed([1.0, -1.0, 0.0]))
    options = dict(filter_logits_fn='top_p', filter_kwargs=dict(thres=1.0), num_samples=20000)
    out = model.generate(torch.zeros(1).long(), 1, generator=torch.Generator().manual_seed(0), **options)
    seen = torch.bincount(out.flatten(), minlength=3) / 20000
    assert (seen - torch.tensor([1.0, -1.0, 0.0]).softmax(-1)).abs().max() < 4 * 0.5 / math.sqrt(20000)


def test_a_callback_gets_the_tokens_of_each_step():
    model, prompts, told = wrapped(), ids_of(2, 4), []
    out = model.generate(prompts, 5, temperature=0.0, callback=told.append, num_samples=2)
    assert torch.equal(torch.stack(told, dim=-1), out)


# what is refused


BAD = [
    (dict(eos_token=60), r'`eos_token` must be a token id, .* below 11.*got 60'),
    (dict(eos_token=-1), r'`eos_token` must .*got -1'),
    (dict(eos_token='end'), r"`eos_token` must be a token id or None, or a sequence.*got 'end'"),
    (dict(eos_token=[1, 2.5]), r'`eos_token` must .*got 2.5'),
    (dict(stop_sequences=[[1], []]), r'`stop_sequences` must be sequences of token ids.*got .*'),
    (dict(stop_sequences=[3]), '`stop_sequences` must '),
    (dict(stop_sequences='end'), '`stop_sequences` must '),
    (dict(stop_sequences=[[1, 11]]), r'`stop_sequences` must .*got 11'),
    (dict(filter_kwargs=dict(thress=0.5)), "`filter_kwargs` got 'thress', .* of `top_k` are .*did you mean `thres`"),
    (dict(filter_kwargs=dict(k=0)), r'`k` must .*got 0'),
    (dict(filter_kwargs=[dict(k=1), {}]), r'`filter_kwargs` must be a dict, got .*'),
    (dict(filter_logits_fn=['top_k', 'min_p'], filter_kwargs=dict(k=1)), 'a dict for each of the 2 filters'),
    (dict(filter_logits_fn=['top_k', 'typicl']), '`filter_logits_fn` must '),
    (dict(filter_logits_fn=lambda z: z, filter_kwargs=dict(k=1)), "`filter_kwargs` got 'k'.* are none"),
    (dict(repetition_penalty=0.0), r'`repetition_penalty` must be a number of more than 0.*got 0.0'),
    (dict(presence_penalty='1'), r"`presence_penalty` must .*got '1'"),
    (dict(frequency_penalty=None), r'`frequency_penalty` must .*got None'),
    (dict(logit_bias=[1.0]), '`logit_bias` must '),
    (dict(logit_bias={12: 1.0}), r'`logit_bias` must .*got 12'),
    (dict(logit_bias={1: 'a'}), r"`logit_bias` must .*got 'a'"),
    (dict(banned_tokens=[11]), r'`banned_tokens` must .*got 11'),
    (dict(banned_tokens=range(11)), r'`banned_tokens` must leave a token.*got .*'),
    (dict(allowed_tokens=[]), r'`allowed_tokens` must leave a token.*got .*'),
    (dict(allowed_tokens=3), '`allowed_tokens` must be a sequence of token ids, got 3'),
    (dict(logits_processor=3), r'`logits_processor` must be a callable.*got 3'),
    (dict(num_samples=0), r'`num_samples` must be an integer of at least 1.*got 0'),
    (dict(callback=3), r'`callback` must .*got 3'),
    (dict(prompt_cache=3), r'`prompt_cache` must .*got 3'),
]


@pytest.mark.parametrize('keywords, words', BAD, ids=[next(iter(k)) + str(i) for i, (k, _) in enumerate(BAD)])
def test_bad_arguments_are_refused_by_name_before_computing(keywords, words, monkeypatch):
    model = language_model()
    assert get_vocabulary(model.net) == 11
    monkeypatch.setattr(type(model.net), 'forward', lambda *a, **k: pytest.fail('it computed'))
    with pytest.raises(ValueError, match=words):
        model.generate(ids_of(1, 2), 2, **keywords)


def test_an_unknown_vocabulary_is_checked_at_the_first_logits():
    with pytest.raises(ValueError, match=r'`banned_tokens` must .*got 5'):
        wrapped().generate(ids_of(1, 2), 2, banned_tokens=[5])


# on real models


@pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)
def test_models_with_samples_and_penalties(keywords):
    model, prompts = language_model(**keywords), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    options = dict(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.3, banned_tokens=[3])
    out = model.generate(prompts, 6, num_samples=2, **options)
    change = penalised(1.4, 0.3, banned=[3])
    for row, prompt in zip(out.tolist(), prompts, strict=True):
        assert row[0] == row[1] == by_hand(model.net, prompt.tolist(), 6, change)


SCHEMES = {
    'absolute': {},
    'sinusoid': dict(around=dict(scaled_sinu_pos_emb=True)),
    'none': dict(around=dict(use_abs_pos_emb=False)),
    'rotary': dict(rotary_pos_emb=True),
    'xpos': dict(rotary_pos_emb=True, rotary_xpos=True),
    't5': dict(rel_pos_bias=True),
    'alibi': dict(alibi_pos_bias=True, around=dict(use_abs_pos_emb=False)),
    'alibi and absolute': dict(alibi_pos_bias=True),
    'dynamic': dict(dynamic_pos_bias=True, around=dict(use_abs_pos_emb=False)),
    'dynamic log': dict(dynamic_pos_bias=True, dynamic_pos_bias_log_distance=True, around=dict(use_abs_pos_emb=False)),
    'polar': dict(polar_pos_emb=True),
    'contextual': dict(attn_use_cope=True, around=dict(use_abs_pos_emb=False)),
    'data-dependent alibi': dict(attn_data_dependent_alibi=True, around=dict(use_abs_pos_emb=False)),
    'data-dependent alibi per row': dict(
        attn_data_dependent_alibi=True, attn_data_dependent_alibi_per_row=True, around=dict(use_abs_pos_emb=False)
    ),
    'relative projection': dict(attn_use_rel_proj_pos_bias=True, around=dict(use_abs_pos_emb=False)),
    'at most so far back': dict(rotary_pos_emb=True, attn_max_attend_past=3),
}


FRONTS = ('nothing', 'memory tokens', 'prepended')


@pytest.mark.parametrize(
    'name, front',
    [
        # each scheme with one of them, rotary positions with all; the rest by night
        pytest.param(name, front, marks=() if name == 'rotary' or (at + of) % 3 == 0 else pytest.mark.nightly)
        for at, name in enumerate(SCHEMES)
        for of, front in enumerate(FRONTS)
    ],
)
def test_every_scheme_of_positions_past_its_window(name, front):
    """G4, G6, G7: with one layer, where a key holds nothing but its own token, a cache changes nothing."""
    keywords = dict(depth=1, limit=6) | SCHEMES[name]
    if front == 'memory tokens':
        keywords['around'] = keywords.get('around', {}) | dict(num_memory_tokens=2)
    given = dict(prepend_embeds=vectors_of(3, 2, 16)) if front == 'prepended' else {}
    model, prompts = language_model(**keywords), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    made = [
        model.generate(prompts, 9, temperature=0.0, cache_kv=kv, return_log_probs=True, **given) for kv in (True, False)
    ]
    assert torch.allclose(made[0].log_probs, made[1].log_probs)
    for row, prompt in enumerate(prompts):
        mine = {key: value[row : row + 1] for key, value in given.items()}
        expected = brute_force(model.net, prompt[None], 9, window=6, **mine)[0]
        assert all(torch.equal(tokens[row], expected) for tokens, *_ in made)


@pytest.mark.parametrize('name', SCHEMES)
def test_without_a_limit_no_scheme_loses_a_token(name):
    """G6: `max_seq_len=0` is no window."""
    keywords = dict(limit=0) | SCHEMES[name]
    if 'sinusoid' in name:
        keywords['limit'] = 64
    model, prompts = language_model(**keywords), ids_of(2, 4, vocab=11)
    expected = brute_force(model.net, prompts, 9)
    assert diverse(expected) or name == 'relative projection'
    scores = model.net(torch.cat((prompts, expected), dim=1)[:, :-1]).log_softmax(-1)[:, 3:].amax(-1)
    for cache_kv, restrict in itertools.product((True, False), (True, False)):
        options = dict(temperature=0.0, cache_kv=cache_kv, restrict_to_max_seq_len=restrict)
        made = model.generate(prompts, 9, return_log_probs=True, **options)
        assert torch.equal(made.tokens, expected) and torch.allclose(made.log_probs, scores)


def test_counts_of_ids_with_and_without_a_logit():
    ids = torch.tensor([[9, 3, 9, 0, 3], [5, 4, 4, 8, 4]])
    assert counts(ids, None, 5).tolist() == [[1, 0, 0, 2, 0], [0, 0, 0, 0, 3]]
    assert counts(ids, ids != 3, 5).tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 3]]
