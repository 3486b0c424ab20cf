"""Rotary positions of other models: theta, scaled frequencies, layers that turn otherwise or not at all."""

import math

import oracles
import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.features.frequencies import Frequencies
from x_transformers.flags import ConfigError
from x_transformers.training.losses import tell_padding
from x_transformers.x_transformers import RotaryEmbedding

LINEAR, DYNAMIC = dict(kind='linear', factor=4.0), dict(kind='dynamic', factor=4.0, length=6)
YARN = dict(kind='yarn', factor=4.0, length=16)
TUNED = dict(YARN, mscale=1.0, mscale_all_dim=0.5, beta_fast=4, beta_slow=2, truncate=False)
LONG = dict(kind='longrope', short_factor=(1.0, 1.1, 1.2, 1.3), long_factor=(1.5, 2.0, 3.0, 4.0), length=6, factor=3.0)
LLAMA3 = dict(kind='llama3', factor=8.0, low=1.0, high=4.0, length=32)


def frequencies(r, theta, scaling=None, n=0):
    """Radians per token of each pair, in a row of n tokens."""
    o, pairs = scaling or {}, range(r // 2)
    plain = [theta ** (-2 * i / r) for i in pairs]
    kind = o.get('kind')
    if kind == 'linear':
        return [w / o['factor'] for w in plain]
    if kind == 'proportional':
        return [w if i < int(o['partial'] * r / 2) else 0.0 for i, w in enumerate(plain)]
    if kind == 'dynamic':
        grown = o['factor'] * max(n, o['length']) / o['length'] - (o['factor'] - 1)
        return [(theta * grown ** (r / (r - 2))) ** (-2 * i / r) for i in pairs]
    if kind == 'longrope':
        return [w / by for w, by in zip(plain, o['long_factor' if n > o['length'] else 'short_factor'], strict=True)]
    if kind == 'llama3':
        found = []
        for w in plain:
            wave, share = 2 * math.pi / w, (o['length'] * w / (2 * math.pi) - o['low']) / (o['high'] - o['low'])
            mixed = w if wave < o['length'] / o['high'] else (1 - share) * w / o['factor'] + share * w
            found.append(w / o['factor'] if wave > o['length'] / o['low'] else mixed)
        return found
    if kind == 'yarn':
        low, high = (
            r * math.log(o['length'] / (2 * math.pi * o.get(*beta))) / (2 * math.log(theta))
            for beta in (('beta_fast', 32), ('beta_slow', 1))
        )
        low, high = (math.floor(low), math.ceil(high)) if o.get('truncate', True) else (low, high)
        low, high = max(low, 0), min(high, r - 1)
        high += 0.001 * (low == high)
        ramps = [min(max((i - low) / (high - low), 0), 1) for i in pairs]
        return [w * (1 - ramp) + w / o['factor'] * ramp for w, ramp in zip(plain, ramps, strict=True)]
    return plain


def test_a_part_of_the_pairs_rotates():
    for partial, kept in ((0.25, 1), (0.7, 2), (0.0, 0), (1.0, 4)):
        scaling = dict(kind='proportional', partial=partial)
        found, wanted = Frequencies(8, 50.0, scaling).table(), frequencies(8, 50.0, scaling)
        assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), tolerance=1e-6)
        assert (found != 0).sum() == kept
    with pytest.raises(ConfigError, match='`partial` of `rotary_scaling` must be a number from 0 to 1'):
        Frequencies(8, 50.0, dict(kind='proportional', partial=1.5))


def test_angles_backwards():
    forwards, backwards = (RotaryEmbedding(8, interpolation_factor=sign).double() for sign in (1.0, -1.0))
    pos = torch.arange(5)
    assert_close(backwards(pos)[0], -forwards(pos)[0])


@pytest.mark.parametrize('scaling', [None, LINEAR, DYNAMIC, YARN, TUNED, LONG, LLAMA3], ids=str)
@pytest.mark.parametrize('theta', [10000.0, 50.0])
def test_frequencies(scaling, theta):
    own = Frequencies(8, theta, scaling)
    first, lengths = own.table(), torch.tensor([3, 6, 7, 40])
    assert first.dtype == torch.float32
    assert_close(first.double(), torch.tensor(frequencies(8, theta, scaling)).double(), tolerance=1e-6)
    rows = own.of_rows(first, lengths, first)
    for n, row in zip(lengths.tolist(), rows[:, 0] if own.longest else rows.expand(4, -1), strict=True):
        wanted = torch.tensor(frequencies(8, theta, scaling, n), dtype=torch.float64)
        assert_close(row.double() / wanted, torch.ones(4).double(), tolerance=2e-6)
    assert torch.equal(own.without_table().of_rows(None, lengths, first), rows)


def test_factors_of_cosines_and_sines():
    factors = [
        (LLAMA3, 1.0),
        (YARN, 0.1 * math.log(4) + 1),
        (TUNED, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
        (dict(YARN, mscale=2.0), 0.1 * math.log(4) + 1),
        (dict(YARN, factor=0.5), 1.0),
        (dict(YARN, attention_factor=0.7), 0.7),
        (LONG, math.sqrt(1 + math.log(3) / math.log(6))),
        (dict(LONG, factor=None), 1.0),
        (dict(LONG, attention_factor=1.5), 1.5),
    ]
    for scaling, wanted in factors:
        assert Frequencies(8, 1e4, scaling).factor == pytest.approx(wanted, rel=1e-12), scaling


# stacks of attention alone, with their formula


def stack(**flags):
    layers = ('a',) * len(flags.get('rotary_layers', 'aa'))
    sizes = dict(dim=12, heads=2, attn_dim_head=10, rotary_emb_dim=8, custom_layers=layers, verbose=False)
    return randomised(Decoder(**sizes, rotary_pos_emb=True, **flags))


def attended(net, x, angles, factors):
    """Each layer turns by angles (b n r) of its own, None for none, times its factor."""
    for layer, own, factor in zip(net.layers, angles, factors, strict=True):
        (before, _, _), attn, _ = layer
        y = F.layer_norm(x, (12,), before.gamma + 1)
        q, k, v = (to(y).unflatten(-1, (2, 10)).transpose(1, 2) for to in (attn.to_q, attn.to_k, attn.to_v))
        q, k = (q, k) if own is None else (oracles.rotate(t, own, factor) for t in (q, k))
        scores = (q @ k.transpose(-1, -2) * 10**-0.5).masked_fill(
            ~torch.ones(x.shape[1], x.shape[1]).tril().bool(), -1e9
        )
        x = x + attn.to_out((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
    return F.layer_norm(x, (12,), net.final_norm.gamma + 1)


def angles_of(places, table):
    return oracles.rotary_angles(torch.tensor(places), table)


def in_steps(net, x, *ends):
    """What a stack gives, read up to these places one after the other, each time from the cache."""
    parts, cache, start = [], None, 0
    for end in ends:
        options = dict(cache=cache, input_not_include_cache=True, return_hiddens=True)
        out, cache = net(x[:, start:end], **options)
        parts.append(out)
        start = end
    return torch.cat(parts, dim=1), cache


def test_each_layer_turns_as_it_is_told():
    own = (True, False, dict(theta=50.0, scaling=TUNED), dict(theta=50.0), dict(scaling=YARN, theta=300.0), True)
    net, x = stack(rotary_theta=300.0, rotary_scaling=YARN, rotary_layers=own), randn(2, 7, 12)
    sets = [Frequencies(8, *given) for given in ((300.0, YARN), (50.0, TUNED), (50.0, None))]
    tables = [angles_of(range(7), one.table()) for one in sets]
    factors = [one.factor for one in sets]
    wanted = [(tables[0], factors[0]), (None, 1), (tables[1], factors[1]), (tables[2], 1)]
    wanted += [(tables[0], factors[0])] * 2
    expected = attended(net, x, *zip(*wanted, strict=True))
    assert_close(net(x), expected, tolerance=1e-12)
    with torch.no_grad():
        assert_close(net(x), expected, tolerance=1e-12)
    # whatever the cache holds: turned keys of three kinds, and plain ones
    out, trace = in_steps(net, x, 3, 6, 7)
    assert_close(out, expected, tolerance=1e-12)
    assert {name for name in trace.cache.states if name.endswith('angles')} == {'angles', '1.angles', '2.angles'}
    keys = [layer.pair[0] for layer in trace.cache.plain().layers]
    assert_close(keys[0], net.layers[0][1].to_k(net.layers[0][0][0](x)).unflatten(-1, (2, 10)).transpose(1, 2))
    assert {name for name in net.state_dict() if 'rotary' in name} == {'rotary_pos_emb.inv_freq'}


def test_angles_of_the_user_are_those_of_all_layers_that_turn():
    net, x = stack(rotary_layers=(True, False, dict(theta=50.0))), randn(2, 7, 12)
    given = net.rotary_pos_emb(torch.arange(7) * 3)
    expected = attended(net, x, [given[0], None, given[0]], (1, 1, 1))
    assert_close(net(x, rotary_pos_emb=given), expected, tolerance=1e-12)


# frequencies that depend on how long a row is


def by_length(net, scaling, theta=1e4):
    """The angles of rows of n tokens."""

    def of(places, n):
        table = torch.tensor(frequencies(8, theta, scaling, n), dtype=torch.float64)
        return angles_of(places, table)

    return of


@pytest.mark.parametrize('scaling', [DYNAMIC, LONG], ids=['dynamic', 'longrope'])
def test_all_tokens_turn_by_the_length_of_their_row(scaling):
    net, x = stack(rotary_scaling=scaling), randn(2, 9, 12)
    of, factor = by_length(net, scaling), Frequencies(8, 1e4, scaling).factor
    for n in (5, 9):
        expected = attended(net, x[:, :n], [of(range(n), n)] * 2, (factor,) * 2)
        assert_close(net(x[:, :n]), expected, tolerance=1e-6)  # tables are of float32
    # rows do not know how long the others are, padded on one side or the other
    alone = net(x[1:, :5])
    assert_close(net(x, mask=torch.arange(9) < torch.tensor([[9], [5]]))[1:, :5], alone)
    shifted = torch.cat((x[1:, 5:], x[1:, :5]), dim=1)
    assert_close(net(torch.cat((x[:1], shifted)), seq_start_pos=torch.tensor([0, 4]))[1:, 4:], alone)


@pytest.mark.parametrize('scaling', [DYNAMIC, LONG], ids=['dynamic', 'longrope'])
def test_documents_turn_by_lengths_of_their_own(scaling):
    net, x, ids = stack(rotary_scaling=scaling), randn(1, 12, 12), torch.tensor([[0] * 9 + [1] * 3])
    out = net(x, document_ids=ids)
    assert_close(out[:, :9], net(x[:, :9]))
    assert_close(out[:, 9:], net(x[:, 9:]))
    hidden = (torch.arange(12) >= 5) & (torch.arange(12) < 9)
    assert_close(net(x, document_ids=ids, mask=~hidden[None])[:, :5], net(x[:, :5]))


def test_layers_turn_by_the_length_of_their_row():
    net, x = stack(rotary_layers=(dict(scaling=DYNAMIC), dict(theta=50.0, scaling=LONG))), randn(2, 9, 12)
    factors = (1, Frequencies(8, 50.0, LONG).factor)
    for n in (5, 9):
        angles = [by_length(net, *own)(range(n), n) for own in ((DYNAMIC,), (LONG, 50.0))]
        assert_close(net(x[:, :n]), attended(net, x[:, :n], angles, factors), tolerance=1e-6)


def test_keys_of_a_context_turn_by_the_length_of_the_row():
    sizes = dict(dim=12, heads=2, attn_dim_head=10, rotary_emb_dim=8, depth=1, cross_attend=True, verbose=False)
    net = randomised(Decoder(**sizes, rotary_pos_emb=True, rotary_scaling=DYNAMIC))
    x, seen = randn(2, 9, 12), []
    given = dict(context=randn(2, 3, 12), context_pos=torch.arange(3))
    next(layer[1] for layer in net.layers if layer.kind == 'c').register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs['context_rotary_pos_emb'][0]), with_kwargs=True
    )
    net(x, **given)
    assert_close(seen[0].double(), by_length(net, DYNAMIC)(range(3), 9), tolerance=1e-6)
    with pytest.raises(ValueError, match='`context_pos` cannot be combined with packed documents'):
        net(x, **given, document_ids=torch.tensor([[0] * 6 + [1] * 3] * 2))


def test_cached_keys_keep_the_angles_that_they_were_turned_by():
    net, x = stack(rotary_scaling=DYNAMIC), randn(2, 9, 12)
    of = by_length(net, DYNAMIC)
    own = torch.cat([of(range(5), 5), *(of([place], place + 1) for place in range(5, 9))], dim=1)
    out, _ = in_steps(net, x, *range(5, 10))
    assert_close(out, attended(net, x, [own] * 2, (1, 1)), tolerance=1e-6)


def test_a_cache_is_refused_where_earlier_tokens_turn_otherwise():
    net, x = stack(rotary_scaling=LONG), randn(2, 9, 12)
    assert_close(in_steps(net, x[:, :6], 2, 5, 6)[0], net(x[:, :6]))
    out, trace = in_steps(net, x, 7, 9)
    assert_close(out[:, 7:], net(x)[:, 7:])
    with pytest.raises(ValueError, match='`rotary_scaling` turns otherwise'):
        in_steps(net, x, 5, 7)
    with pytest.raises(ValueError, match='`rotary_scaling` turns otherwise'):
        net(x[:, :1], cache=trace.cache.crop(3), input_not_include_cache=True)


def model(**flags):
    layers = Decoder(
        dim=16, depth=2, heads=2, attn_dim_head=8, rotary_emb_dim=8, rotary_pos_emb=True, verbose=False, **flags
    )
    return AutoregressiveWrapper(randomised(TransformerWrapper(num_tokens=17, max_seq_len=0, attn_layers=layers)))


PROMPTS = [torch.arange(3), torch.tensor([5, 2, 9, 1])]


@pytest.mark.parametrize('prompts', [PROMPTS[:1], PROMPTS], ids=['one', 'two of different lengths'])
def test_generation_reads_all_again_where_a_row_has_become_long(prompts):
    net, read = model(rotary_scaling=LONG), []
    net.net.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[1]))
    tokens = net.generate(prompts, 9, temperature=0.0)
    longest = max(map(len, prompts))
    wanted = {1: [3, 1, 1, 1, 7, 1, 1, 1, 1], 2: [4, 1, 1, 7, 8, 1, 1, 1, 1]}[len(prompts)]
    assert read == wanted and len(prompts[-1]) == longest
    assert torch.equal(tokens, net.generate(prompts, 9, temperature=0.0, cache_kv=False))
    assert torch.equal(tokens, net.speculative(prompts, 9, temperature=0.0))


BOTH = [dict(theta=50.0, scaling={**DYNAMIC, 'length': 6}), dict(theta=70.0, scaling=LONG)]


@pytest.mark.parametrize('flags', [dict(rotary_scaling=DYNAMIC), dict(rotary_scaling=LONG), dict(rotary_layers=BOTH)])
@pytest.mark.parametrize('most', [0, 8])
def test_a_prompt_says_the_same_alone_in_a_batch_and_without_a_cache(flags, most):
    net, options = model(**flags), dict(temperature=0.0, return_log_probs=True)
    net.net.max_seq_len = most
    alone = [net.generate(prompt, 9, **options) for prompt in PROMPTS]
    both = net.generate(PROMPTS, 9, **options)
    for at, (one, prompt) in enumerate(zip(alone, PROMPTS, strict=True)):
        assert_close(both.log_probs[at], one.log_probs, tolerance=1e-12)
        assert torch.equal(both.tokens[at], one.tokens)
        assert_close(net.generate(prompt, 9, **options, cache_kv=False).log_probs, one.log_probs, tolerance=1e-12)
        assert torch.equal(net.speculative(prompt, 9, temperature=0.0), one.tokens)


def test_padding_that_a_mask_hides_is_no_part_of_a_row_that_becomes_long():
    net, read = model(rotary_scaling=LONG), []
    wanted = net.generate(PROMPTS[:1], 9, temperature=0.0)
    net.net.register_forward_pre_hook(lambda _, given: read.append(given[0].shape[1]))
    mask = torch.tensor([[False, False, True, True, True]])
    assert torch.equal(net.generate(F.pad(PROMPTS[0], (2, 0))[None], 9, temperature=0.0, mask=mask), wanted)
    assert read == [5, 1, 1, 1, 9, 1, 1, 1, 1]


def test_nothing_is_guessed_where_a_token_depends_on_how_many_are_read():
    net = model(rotary_scaling=DYNAMIC)
    repeated = torch.tensor([[3, 1, 4, 3, 1, 4, 3]])  # of which much could be guessed
    tokens, stats = net.speculative(repeated, 9, temperature=0.0, return_stats=True)
    assert stats.guessed == 0 and torch.equal(tokens, net.generate(repeated, 9, temperature=0.0))
    assert net.net.follows_length and not model().net.follows_length


def test_nets_that_count_tokens_are_told_which_are_padding():
    real = torch.tensor([[True, True, False]])
    for flags, told in ((dict(rotary_scaling=DYNAMIC), True), ({}, False)):
        inputs, given = {}, {'mask': ~real}
        net = model(**flags).net
        tell_padding(net, inputs, lambda: real)
        tell_padding(net, given, lambda: real)
        assert inputs == ({'mask': real} if told else {}) and torch.equal(given['mask'], ~real)


REFUSED = [
    (dict(rotary_scaling=dict(kind='axial')), 'a dict with a `kind` and its parameters: linear'),
    (dict(rotary_scaling=dict(kind='yarn', factor=2.0)), "`rotary_scaling` of kind 'yarn' needs `length`"),
    (dict(rotary_scaling=dict(LLAMA3, theta=1.0)), "of kind 'llama3' got `theta`, it may have kind, factor, low"),
    (
        dict(rotary_scaling=dict(DYNAMIC, factor=0.5)),
        '`factor` of `rotary_scaling` must be a number of at least 1, got 0.5',
    ),
    (dict(rotary_scaling=dict(LONG, long_factor=(1.0,))), '`long_factor` of `rotary_scaling` must have 4 numbers'),
    (
        dict(rotary_scaling=dict(LONG, length=1)),
        '`rotary_scaling` must be an integer of at least 2',
    ),
    (dict(rotary_scaling=dict(LLAMA3, low=4.0)), '`low` of `rotary_scaling` must be less than `high`, 4.0, got 4.0'),
    (dict(rotary_layers=(True,)), '`rotary_layers` must have one per layer, 2, got 1 values'),
    (dict(rotary_layers=(True, dict(base=1.0))), 'each True, False or a dict with `theta`, a number greater'),
    (dict(rotary_layers=(True, dict(theta=-3.0))), 'each True, False or a dict with `theta`, a number greater than 1'),
    (dict(rotary_layers=(dict(theta='a'), True)), 'each True, False or a dict with `theta`, a number greater than 1'),
    (dict(rotary_layers=(True, dict(scaling=dict(kind='yarn')))), "`scaling` in `rotary_layers` of kind 'yarn' needs"),
    (dict(rotary_layers=(True, False), rotary_xpos=True), '`rotary_layers` cannot be combined with `rotary_xpos`'),
    (dict(rotary_theta=1.0), '`rotary_theta` must be a number greater than 1, got 1.0'),
]


def test_refusals():
    for flags, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            model(**flags)
