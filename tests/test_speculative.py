"""Speculative decoding: greedy tokens are those of `generate`, sampled ones have the model's distribution."""

import math
from itertools import product

import pytest
import torch
from law_cases import CASES, inputs_for, model_of, randomise
from torch import nn
from toy_nets import MODELS, ROTARY, VOCAB, Fixed, History, diverse, ids_of, language_model, vectors_of, wrapped
from toy_tasks import learned, markov, net_for

from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
from x_transformers.generation.speculative import find_match, shift_cache

GREEDY = dict(temperature=0.0)


def drafts_for(model, keywords):
    """Look-up, another small model, and the model itself, which is always right."""
    return None, language_model(**{**keywords, 'depth': 1}), model


# greedy


PROMPTS = dict(
    one=ids_of(6, vocab=11),
    several=ids_of(4, 5, vocab=11),
    unequal=[ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)],
)


def crossed(suite):
    """Every model with all prompts; nightly, but for those in the suite."""
    return pytest.mark.parametrize(
        'name, prompts',
        [pytest.param(*pair, marks=() if pair in suite else pytest.mark.nightly) for pair in product(MODELS, PROMPTS)],
    )


@crossed({*((name, 'unequal') for name in MODELS), ('rotary', 'several'), ('rotary', 'one')})
def test_greedy_tokens_are_those_of_generate(name, prompts):
    model, prompts = language_model(**MODELS[name]), PROMPTS[prompts]
    for seq_len in (0, 1, 2, 9):
        expected = model.generate(prompts, seq_len, **GREEDY)
        for draft in drafts_for(model, MODELS[name])[: 3 if seq_len > 2 else 2]:
            assert torch.equal(model.speculative(prompts, seq_len, draft, **GREEDY), expected)


@crossed({('absolute', 'several'), ('rotary', 'unequal'), ('shifted tokens', 'unequal'), ('memory tokens', 'several')})
def test_greedy_tokens_of_few_and_many_guesses(name, prompts):
    model, prompts = language_model(**MODELS[name]), PROMPTS[prompts]
    expected = model.generate(prompts, 11, **GREEDY)
    for count in (1, 2, 9):
        assert torch.equal(model.speculative(prompts, 11, model, count, **GREEDY), expected)
    assert torch.equal(model.speculative(prompts, 11, None, cache_kv=False, **GREEDY), expected)


@pytest.mark.costly
@pytest.mark.parametrize('name', ['absolute', 'rotary', 't5', 'alibi', 'memory tokens'])
def test_greedy_tokens_past_the_window(name):
    """Near the window nothing is guessed any more; then it slides token by token, as in `generate`."""
    keywords = MODELS[name] | dict(limit=7)
    model, prompts = language_model(**keywords), [ids_of(n, seed=n, vocab=11) for n in (5, 1, 3)]
    short = language_model(**{**keywords, 'limit': 5, 'depth': 1})
    for row in (prompts, prompts[0], ids_of(2, 10, vocab=11)):
        expected = model.generate(row, 9, **GREEDY)
        for draft in (*drafts_for(model, keywords), short):
            assert torch.equal(model.speculative(row, 9, draft, **GREEDY), expected)


@pytest.mark.parametrize('how', ['context', 'prepended', 'mask', 'several heads'])
def test_greedy_tokens_with_keywords(how):
    around = dict(num_output_heads=2) if how == 'several heads' else None
    model = language_model(**ROTARY, cross_attend=how == 'context', around=around)
    given = dict(
        context=dict(context=vectors_of(3, 5, 16), context_mask=torch.arange(5) < torch.tensor([[5], [2], [4]])),
        prepended=dict(prepend_embeds=vectors_of(3, 2, 16)),
        mask=dict(mask=torch.tensor([[True, False, True, True], [False, False, True, True], [True] * 4])),
    ).get(how, {})  # fmt: skip
    prompts = ids_of(3, 4, vocab=11)
    expected = model.generate(prompts, 12, **given, **GREEDY)
    for draft in (None, model):
        assert torch.equal(model.speculative(prompts, 12, draft, 3, **given, **GREEDY), expected)
    if how != 'context':
        return
    draft = language_model(**ROTARY, depth=1)
    assert torch.equal(model.speculative(prompts, 12, draft, draft_kwargs={}, **given, **GREEDY), expected)
    with pytest.raises(ValueError, match='`context` was given, but the stack has no cross-attention'):
        model.speculative(prompts, 12, draft, **given)


OPTIONS = {
    'eos': dict(eos_token=(2, 5)),
    'stop': dict(stop_sequences=[(3,), (1, 4), (0, 2, 7)], eos_token=9),
    'penalties': dict(repetition_penalty=1.6, presence_penalty=0.4, frequency_penalty=0.2, banned_tokens=[4]),
    'processor': dict(logits_processor=lambda ids, z: z.scatter(1, ids[:, -1:], -math.inf)),
}


@pytest.mark.parametrize('seed', [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
@pytest.mark.parametrize('name', OPTIONS)
def test_greedy_tokens_with_options(name, seed):
    model = language_model(dict(pad_value=1), **ROTARY)
    prompts = [ids_of(n, seed=seed + n, vocab=11) for n in (4, 1, 5, 2)]
    expected = model.generate(prompts, 13, **OPTIONS[name], **GREEDY)
    for draft in drafts_for(model, ROTARY):
        assert torch.equal(model.speculative(prompts, 13, draft, **OPTIONS[name], **GREEDY), expected)


@pytest.mark.parametrize('flags', [dict(attn_cluster='routing', attn_num_clusters=3),
                                   dict(attn_cluster='lsh', attn_cluster_size=3)], ids=['routing', 'lsh'])  # fmt: skip
def test_guesses_would_move_clusters_of_earlier_tokens(flags):
    model, prompts = language_model(**flags), ids_of(4, 7, vocab=11)
    expected = model.generate(prompts, 8, **GREEDY)
    assert diverse(expected)
    for draft in (None, 1):
        assert torch.equal(model.speculative(prompts, 8, draft, **GREEDY), expected)


@pytest.mark.parametrize('draft', [None, 1])
def test_no_rows_are_no_rows(draft):
    tokens, stats = language_model(**ROTARY).speculative(ids_of(0, 5), 4, draft, return_stats=True, eos_token=3)
    assert tokens.shape == (0, 0) and stats.rounds == 0


def test_every_row_moves_at_its_own_pace():
    model = language_model(**ROTARY)
    draft = language_model(depth=1, rotary_pos_emb=True)
    prompts = ids_of(3, 5, vocab=11)
    rounds = [model.speculative(row, 10, draft, return_stats=True, **GREEDY)[1].rounds for row in prompts]
    _, stats = model.speculative(prompts, 10, draft, return_stats=True, **GREEDY)
    # as many as the slowest row alone: a row never waits for another
    assert len(set(rounds)) > 1 and stats.rounds == max(rounds)


def test_a_perfect_draft_is_always_accepted():
    model, prompts = language_model(**ROTARY), ids_of(3, 4, vocab=11)
    for temperature in (0.0, 1.0):
        options = dict(temperature=temperature, filter_logits_fn='top_p', generator=torch.Generator().manual_seed(0))
        _, stats = model.speculative(prompts, 20, model, 4, return_stats=True, **options)
        assert stats.accepted == stats.guessed == 3 * 16 and stats.rounds == 4


class Counts(nn.Module):
    """A model that stays at what it has read; its cache counts nothing, so it reads all again."""

    max_seq_len, num_tokens = 0, 4

    def forward(self, ids, seq_start_pos=None, **_):
        if seq_start_pos is not None:
            raise ValueError('no padding here')
        return nn.functional.one_hot(ids.cumsum(1) % 4, 4).double()


def test_nets_that_cannot_cache_read_again_and_say_so(logged):
    """They need no padding: their rows go together."""
    model, prompts = AutoregressiveWrapper(Counts()), ids_of(4, 6, vocab=4)
    expected = model.generate(prompts, 15, **GREEDY)
    for _ in range(2):
        assert torch.equal(model.speculative(prompts, 15, **GREEDY), expected)
    assert len([text for text in logged if 'recomputes all tokens of a Counts' in text]) == 1


class Recurrent(nn.Module):
    """A module with a state, beside attention."""

    def __init__(self):
        super().__init__()
        self.inner = nn.GRU(16, 16, batch_first=True)

    def forward(self, x, state=None):
        return self.inner(x, state)


def test_recurrent_states_are_not_taken_back(logged):
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, attn_hybrid_module=Recurrent())
    net = TransformerWrapper(num_tokens=11, max_seq_len=32, attn_layers=stack).double()
    model, prompts = AutoregressiveWrapper(randomise(net, scale=0.8)), ids_of(3, 5, vocab=11)
    expected = model.generate(prompts, 12, **GREEDY)
    assert diverse(expected)
    assert torch.equal(model.speculative(prompts, 12, **GREEDY), expected)
    assert torch.equal(model.speculative(prompts, 12, model, **GREEDY), expected)
    assert any('the running state `hybrid_hidden`' in text for text in logged)
    # rows of such a cache cannot be repeated either
    assert torch.equal(model.generate(prompts, 12, num_samples=2, **GREEDY)[:, 1], expected)
    assert torch.equal(model.beam_search(prompts, 6), model.beam_search(prompts, 6, cache_kv=False))


# parts


def test_look_up_finds_the_latest_longest_run():
    rows = [
        ([7, 1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 0, [9, 2, 3]),  # 1 2 3 stands before, though 2 3 comes later
        ([5, 3, 4, 6, 3, 4, 8, 8, 0, 3, 4], 0, [8, 8, 0]),
        ([0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3], 0, []),
        ([3, 4, 4, 4, 4, 4, 4, 4, 5, 9, 3], 0, [4, 4, 4]),
        ([3, 8, 4, 4, 4, 4, 4, 4, 5, 9, 3], 1, []),  # the first is padding
        ([6, 7, 8, 9, 0, 1, 2, 4, 4, 4, 4], 0, [4]),  # as far as there are tokens
    ]
    ids, pads = torch.tensor([row for row, _, _ in rows]), torch.tensor([pad for _, pad, _ in rows])
    guesses, real = find_match(ids, pads, 3, 3)
    for (_, _, expected), guess, count in zip(rows, guesses.tolist(), real.tolist(), strict=True):
        assert guess[:count] == expected
    assert find_match(ids[:, :1], None, 3, 3)[1].tolist() == [0] * len(rows)


def test_a_cache_whose_rows_moved_is_that_of_padded_rows():
    model, prompts = language_model(**ROTARY), ids_of(3, 6, vocab=11)
    cache = model.net(prompts, return_intermediates=True)[1].cache
    places = torch.tensor([0, 2, 1])
    moved, new = shift_cache(cache, places, 2), ids_of(3, 1, vocab=11, seed=4)
    logits = model.net(new, cache=moved, input_not_include_cache=True, seq_start_pos=places)
    for row, pad in enumerate(places.tolist()):
        whole = torch.cat((prompts[row, : 6 - pad], new[row]))
        assert torch.allclose(logits[row, -1], model.net(whole[None])[0, -1])


# sampled


def chi_square(counts, probs):
    """Pearson's statistic, and the value that it exceeds once in 10,000 times (Wilson and Hilferty)."""
    expected = probs * counts.sum()
    kept = expected > 0
    assert (counts[~kept] == 0).all()
    statistic = ((counts - expected)[kept].square() / expected[kept]).sum().item()
    freedom = int(kept.sum()) - 1
    return statistic, freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3


class Pairs(nn.Module):
    """The next token depends on the last one, through a table (l l)."""

    max_seq_len, can_cache_kv = 0, False

    def __init__(self, seed, scale=1.0):
        super().__init__()
        table = scale * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.table = nn.Parameter(table)

    def forward(self, ids, **_):
        return self.table[ids]


SAMPLING = {
    'plain': dict(filter_logits_fn='top_p', filter_kwargs=dict(thres=1.0)),
    'warm': dict(filter_logits_fn='top_p', filter_kwargs=dict(thres=1.0), temperature=1.7),
    'filtered': dict(filter_logits_fn='top_k', filter_kwargs=dict(k=3), temperature=0.8),
    'banned': dict(filter_logits_fn='min_p', filter_kwargs=dict(min_p=0.01), banned_tokens=[1]),
}


def weights_of(net, options):
    """The table of probabilities (l l) that each token is drawn from."""
    logits = net.table.detach().clone()
    logits[:, list(options.get('banned_tokens', ()))] = -math.inf
    probs = logits.softmax(-1)
    if options['filter_logits_fn'] == 'top_k':
        logits[logits < logits.topk(3, dim=-1).values[:, -1:]] = -math.inf
    if options['filter_logits_fn'] == 'min_p':
        logits[probs < 0.01 * probs.amax(-1, keepdim=True)] = -math.inf
    return (logits / options.get('temperature', 1.0)).softmax(-1)


@pytest.mark.parametrize('draft', ['look-up', 'model', 'bad model'])
@pytest.mark.parametrize('name', SAMPLING)
def test_sampled_tokens_have_the_distribution_of_the_model(name, draft):
    """All runs of three tokens, against the product of their probabilities."""
    net, options = Pairs(0), SAMPLING[name]
    guesses = {'look-up': None, 'model': Pairs(1), 'bad model': Pairs(2, 6.0)}[draft]
    prompts = torch.tensor([[2, 0, 1, 2, 0, 4, 2]]).expand(6000, -1)
    model, generator = AutoregressiveWrapper(net), torch.Generator().manual_seed(0)
    out, stats = model.speculative(prompts, 3, guesses, 2, generator=generator, return_stats=True, **options)
    assert 0 < stats.accepted < stats.guessed
    table = weights_of(net, options)
    probs = (table[2][:, None, None] * table[:, :, None] * table[None]).flatten()
    runs = torch.bincount((out * torch.tensor([25, 5, 1])).sum(-1), minlength=125)
    statistic, limit = chi_square(runs, probs)
    assert statistic < limit


@pytest.mark.costly
def test_two_tokens_at_once_in_many_runs():
    """Of 200,000 runs the counts of pairs fit their probabilities, and those of a wrong remedy would not.

    Which is to draw from the model itself where a guess is refused. The first guess is taken as often as the two
    distributions overlap.
    """
    net, draft, runs = Pairs(0), Pairs(1), 200_000
    options, generator = SAMPLING['plain'], torch.Generator().manual_seed(0)
    model, prompts = AutoregressiveWrapper(net), torch.full((runs, 1), 2)
    p, q = weights_of(net, options), weights_of(draft, options)
    out = model.speculative(prompts, 2, draft, 2, generator=generator, **options)
    counts = torch.bincount((out * torch.tensor([5, 1])).sum(-1), minlength=25)
    overlap = torch.minimum(p, q)
    wrong = overlap + (1 - overlap.sum(-1, keepdim=True)) * p

    def statistic(table):
        expected = (table[2][:, None] * table).flatten() * runs
        return ((counts - expected).square() / expected).sum()

    assert statistic(p) < 51.2 < statistic(wrong)
    generator = torch.Generator().manual_seed(1)
    _, stats = model.speculative(prompts, 2, draft, 1, generator=generator, return_stats=True, **options)
    share, expected = stats.accepted / stats.guessed, overlap[2].sum().item()
    assert abs(share - expected) < 4 * (expected * (1 - expected) / runs) ** 0.5


@pytest.mark.slow
def test_a_draft_of_the_same_chain_saves_passes():
    """Both have learned one chain, the draft in fewer steps."""
    torch.manual_seed(0)
    task, nets = markov(32, tokens=8), []
    for depth, steps in ((2, 400), (1, 300)):
        net = net_for(task, Decoder, depth=depth)
        learned(net, task, steps)
        nets.append(AutoregressiveWrapper(net))
    model, draft = nets
    prompts = task.draw(32)[0][:, :4]
    _, stats = model.speculative(prompts, 24, draft, 4, return_stats=True, **SAMPLING['plain'])
    assert 24 * 32 / (24 * 32 - stats.accepted) >= 1.5  # every pass of a row makes one token itself


@pytest.mark.costly
def test_sampled_tokens_of_a_cached_model_have_its_distribution():
    """Rows that move apart: the fourth token after each run of three, by a model with a cache."""
    model, draft = language_model(**ROTARY, tokens=4), language_model(**ROTARY, tokens=4, depth=1)
    with torch.no_grad():
        model.net.to_logits.weight.mul_(0.3)
    prompt, generator = ids_of(1, 5, vocab=4), torch.Generator().manual_seed(3)
    options = dict(filter_logits_fn='top_p', filter_kwargs=dict(thres=1.0))
    for guesser in (draft, None):
        out = model.speculative(prompt.expand(2000, -1), 4, guesser, 3, generator=generator, **options)
        every = torch.tensor(list(product(range(4), repeat=4)))
        whole = torch.cat((prompt.expand(256, -1), every), dim=1)
        scores = model.net(whole[:, :-1]).log_softmax(-1)[:, 4:].gather(-1, every[..., None]).sum(dim=(1, 2))
        runs = torch.bincount((out * torch.tensor([64, 16, 4, 1])).sum(-1), minlength=256)
        statistic, limit = chi_square(runs, scores.exp())
        assert statistic < limit


def test_draws_repeat_with_the_seed():
    model, prompts = language_model(**ROTARY), ids_of(3, 4, vocab=11)
    draft = language_model(depth=1)
    made = [
        model.speculative(prompts, 9, draft, generator=torch.Generator().manual_seed(seed), filter_logits_fn='min_p')
        for seed in (1, 1, 2)
    ]
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


# shapes, modes, refusals


def test_shapes_and_modes():
    model = language_model(**ROTARY).train()
    draft = language_model(depth=1).train()
    assert model.speculative(ids_of(4, vocab=11), 5).shape == (5,)
    out, stats = model.speculative(ids_of(2, 3, 4, vocab=11), 5, draft, return_stats=True)
    assert out.shape == (2, 3, 5) and stats.rounds >= 1 and stats._fields == ('rounds', 'guessed', 'accepted')
    assert model.training and model.net.training and draft.training and torch.is_grad_enabled()


def test_a_looped_net_with_one_row_guesses_nothing(logged):
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, pre_and_post_norm=True)
    net = TransformerWrapper(num_tokens=11, max_seq_len=32, attn_layers=stack, looped=True, max_looped_steps=3)
    model = AutoregressiveWrapper(randomise(net.double()))
    for prompts, own in ((ids_of(1, 4, vocab=11), dict(looped_inference=True)), (ids_of(3, 4, vocab=11), {})):
        made, stats = model.speculative(prompts, 9, return_stats=True, **GREEDY, **own)
        assert torch.equal(made, model.generate(prompts, 9, **GREEDY, **own))
        assert (stats.guessed == 0) == bool(own)
    assert len([text for text in logged if 'looped' in text]) == 1


@pytest.mark.parametrize(
    'keywords, words',
    [
        (dict(num_draft_tokens=0), '`num_draft_tokens` must be an integer of at least 1, got 0'),
        (dict(max_ngram=0), r'`max_ngram` must .*got 0'),
        (dict(seq_len=-1), r'`seq_len` must .*got -1'),
        (dict(temperature=-1), r'`temperature` must .*got -1'),
        (dict(draft=language_model(tokens=7)), "`draft` must be a model of 11 tokens, got '7 tokens'"),
        (dict(draft=nn.Linear(1, 1)), '`net` must be a whole model'),
        (dict(draft_kwargs={}), '`draft_kwargs` needs a `draft`'),
        (dict(num_samples=2), '`num_samples` cannot be combined with speculative decoding'),
        (dict(amateur_model=History()), '`amateur_model` cannot be combined with speculative decoding'),
        (dict(cache=1), '`cache` cannot be given to speculative'),
        (dict(eos_token=11), r'`eos_token` must .*got 11'),
    ],
)
def test_bad_arguments_are_refused_by_name(keywords, words):
    with pytest.raises(ValueError, match=words):
        language_model().speculative(ids_of(1, 2), **{'seq_len': 2, **keywords})


def test_a_draft_of_other_logits_is_refused():
    with pytest.raises(ValueError, match=r'`draft` must give 5.*got 3 logits'):
        wrapped(can_cache=False).speculative(ids_of(1, 2), 5, Fixed([0.0, 1.0, 2.0]))


# every flag


# models that are none of the next token, or ask for an input with every token, and the words with which they say so
OTHERS = {
    **dict.fromkeys(('encoder', 'cross_attender', 'attn_inverted_attention'), '`net` must be causal'),
    **dict.fromkeys(('use_cls_token', 'num_cls_tokens', 'attn_pool', 'num_pooled_tokens'), '`net` must be causal'),
    **dict.fromkeys(('attn_pool_depth', 'dim_pooled_tokens'), '`net` must be causal'),
    'orthog_residual_over_sequence': '`net` must be causal',
    'attn_orthog_projected_values_over_sequence': '`net` must be causal',
    'return_only_embed=True': 'it has no head',
    'average_pool_embed': 'it gives one vector for the whole sequence',
    'squeeze_out_last_dim': '`net` must give logits of a vocabulary',
    'embed_num_tokens': '`embed_ids` got the names',
}


@pytest.mark.nightly
@pytest.mark.parametrize('case', [case for case in CASES if case.wrapper is TransformerWrapper], ids=str)
def test_every_flag_in_every_kind_of_generation(case):
    """Guessed, sampled several times, from a prompt's cache, with beams: all give what the plain ways give."""
    net = model_of(case)
    refused = OTHERS.get(case.name, '`net` must be causal' if case.kind is Encoder else None)
    if refused is not None:
        with pytest.raises(ValueError, match=refused):
            AutoregressiveWrapper(net).generate(ids_of(3, 4), 1)
        return
    model = AutoregressiveWrapper(net)
    given = inputs_for(net, case)
    prompts = given.pop('x')[:, :4]
    given = {name: value for name, value in given.items() if name.startswith(('context', 'prepend'))}
    if takes_condition(net):
        given['condition'] = vectors_of(3, case.stack.get('dim_condition', net.attn_layers.dim))
    expected = model.generate(prompts, 10, **given, **GREEDY)
    assert torch.equal(model.speculative(prompts, 10, **given, **GREEDY), expected)
    samples = model.generate(prompts, 10, num_samples=2, **given, **GREEDY)
    assert torch.equal(samples, expected.unsqueeze(1).expand(-1, 2, -1))
    if net.can_cache_kv:
        cache = model.read_prompt(prompts[:, :3], **given)
        assert torch.equal(model.generate(prompts, 10, prompt_cache=cache, **GREEDY), expected)
    beams = [model.beam_search(prompts, 6, beams=3, eos_token=1, cache_kv=kv, **given) for kv in (True, False)]
    assert torch.equal(*beams)
    if 'interspersed' in case.flag:
        return
    unequal = [prompts[0], prompts[1, 1:], prompts[2, 2:]]
    expected = model.generate(unequal, 10, **given, **GREEDY)
    assert torch.equal(model.speculative(unequal, 10, **given, **GREEDY), expected)


def takes_condition(net):
    return any(
        'condition' in feature.call_inputs for owner in (net, net.attn_layers) for feature in owner.features.active
    )
