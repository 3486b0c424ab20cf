"""Laws that hold for every flag alone, for pairs of flags, and for random combinations of them."""

import copy
import functools
import io
import itertools
import json
import pickle
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    CASES,
    CROSS_CASES,
    FLAG_CASES,
    GIVEN_BY_THE_STACK,
    INPUT_CASES,
    LONGEST,
    PREFIX,
    WITHOUT_CASE,
    build,
    changed,
    gradients,
    inputs_for,
    is_pooled,
    model_of,
    padded,
    per_token,
    randomise,
    refused,
    rows,
    run,
    tokens,
    weighted,
)
from oracles import assert_close
from safetensors.torch import load, save

from x_transformers import Attention, Decoder, Encoder, PrefixDecoder, TransformerWrapper
from x_transformers.cache import Cache
from x_transformers.continuous import CONTINUOUS
from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.flags import ConfigError
from x_transformers.flags.__main__ import table

ALL = (*CASES, *CROSS_CASES)
LENGTH = 7


def each(cases=ALL):
    return pytest.mark.parametrize('case', cases, ids=str)


def of_kind(case, kind):
    """The case with another kind of stack; refused only for a reason that has to do with order."""
    case = replace(case, kind=kind)
    reason = refused(case)
    assert reason is None or 'causal' in reason, f'{kind.__name__} with {case}: {reason}'
    return None if reason else case


# the cases are complete


def test_every_flag_has_a_case():
    tried = {(case.feature, case.name.split('=')[0].removeprefix('continuous.')) for case in FLAG_CASES}
    levels = [(ATTENTION, 'attn_'), (FEEDFORWARD, 'ff_'), (STACK, ''), (MODEL, ''), (CONTINUOUS, '')]
    wanted = {(cls, prefix + name) for level, prefix in levels for cls in level for name in cls.flags}
    assert wanted <= tried
    assert {declared.feature for _, _, declared in table() if declared.feature} <= {cls for cls, _ in wanted}


def test_every_flag_has_an_example():
    for case in FLAG_CASES:
        if case.flag:
            assert case.stack.get(case.flag, case.model.get(case.flag)) not in (None, case.default), case.name


def test_every_argument_has_a_case():
    tried = {case.flag for case in ARGUMENT_CASES} | set(WITHOUT_CASE)
    prefixes = {'Attention': 'attn_', 'FeedForward': 'ff_'}
    classes = ('Attention', 'FeedForward', 'AttentionLayers', 'TransformerWrapper', 'ContinuousTransformerWrapper')
    rows_of_table = [(where, name) for where, name, declared in table() if declared.feature is None]
    wanted = {prefixes.get(where, '') + name for where, name in rows_of_table if where in classes}
    assert wanted <= tried


def test_every_input_has_a_case():
    tried = {name.removesuffix('_per_row') for case in ALL for name in inputs_for(model_of(case), case)}
    features = (*ATTENTION, *FEEDFORWARD, *STACK, *MODEL, *CONTINUOUS)
    assert {name for feature in features for name in feature.takes} <= tried | GIVEN_BY_THE_STACK


# 1 off is free


def values_of(net):
    return {name: t.clone() for name, t in net.state_dict().items()}


@each([case for case in ALL if case.flag])
def test_off_is_free(case):
    """At its default, a flag adds no parameter and changes no bit."""
    if case.flag in ('max_seq_len', 'dim_in', 'dim_out', 'attn_dim_head', 'heads', 'ff_mult', 'project_in', 'project_out'):
        pytest.skip('a size')
    absent, default = (build(case.switched(to_default)) for to_default in (False, True))
    assert str(absent) == str(default)
    before, after = values_of(absent), values_of(default)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    inputs = inputs_for(absent, case.switched(False))
    absent, default = (randomise(net.double()) for net in (absent, default))
    assert torch.equal(run(absent, inputs), run(default, inputs))


# 2 on matters

# what else to look at, where the output stays the same
LOOK_AT = {
    'max_mem_len': lambda net, inputs: net(**inputs, return_mems=True)[1],
    'shift_mem_down': lambda net, inputs: [
        net(**inputs, mems=[torch.ones(3, 2, 16).double() * (i + 1) for i in range(2)])
    ],
    'attn_z_loss_weight': lambda net, inputs: [net(**inputs, return_attn_z_loss=True)[1].attn_z_loss],
    'input_not_include_cache': lambda net, inputs: [
        net(inputs['x'][:, 3:], cache=net(inputs['x'][:, :3], return_intermediates=True)[1])
    ],
}


def effects(case):
    """What a flag could change: shapes and initial values, output, output in training, gradients, and LOOK_AT."""
    net = build(case)
    inputs = inputs_for(net, case)
    seen = {f'initial {name}': t.double() for name, t in net.named_parameters()}
    net = randomise(net.double())
    seen['output'] = run(net, inputs)
    seen |= {f'gradient {name}': grad for name, grad in gradients(net, inputs).items() if grad is not None}
    if case.flag in LOOK_AT:
        seen |= {f'{case.flag} {i}': t for i, t in enumerate(LOOK_AT[case.flag](net, inputs))}
    torch.manual_seed(1)
    seen['training'] = run(net.train(), inputs)
    return seen


@each([case for case in ALL if case.flag])
def test_on_matters(case):
    """A flag changes the output, and if not that, what is read or learned from the model."""
    on, off = effects(case), effects(case.switched(False))

    def differs(name):
        a, b = on.get(name), off.get(name)
        return a is None or b is None or a.shape != b.shape or not torch.equal(a, b)

    learned = [name for name in on if name.startswith('initial') and name not in off]
    if learned:
        assert differs('output'), f'{learned} are there, but the output is the same'
    assert any(map(differs, on))


# 3 finite, and everything learns

# parameters without a gradient, and why
NO_GRADIENT = {
    'rel_pos.mlp.2.bias': 'adding the same to all logits of a row changes nothing',
    'rel_pos.mlp.3.bias': 'adding the same to all logits of a row changes nothing',
}


def finite_law(case):
    net = model_of(case)
    inputs = inputs_for(net, case)
    grads = gradients(net, inputs)
    allowed = tuple(NO_GRADIENT)
    missing = [n for n, g in grads.items() if (g is None or g.abs().max() < 1e-12) and not n.endswith(allowed)]
    assert not missing, f'no gradient reaches {missing}'
    assert all(g.isfinite().all() for g in grads.values() if g is not None)
    assert run(net, inputs).isfinite().all()


@each()
def test_finite_and_every_parameter_learns(case):
    finite_law(case)


# 4 causal


def causal_law(case):
    """Other content from token 4 on changes nothing before it."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    later = changed(inputs, torch.arange(LENGTH).expand(3, -1) >= 4)
    before, after = per_token(net, inputs), per_token(net, later)
    assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])


@each()
@pytest.mark.parametrize('kind', [Decoder, PrefixDecoder])
def test_causal(case, kind):
    if case.kind is Encoder or case.name in ('cross_attender', 'causal'):
        kind = case.kind if case.kind is not Encoder else kind
    case = of_kind(case, kind)
    if case is not None:
        causal_law(case)


# 5 padding


def masked(case, kind):
    case = of_kind(case, kind)
    return (None, None, None) if case is None else (case, model_of(case), inputs_for(model_of(case), case))


HOLES = torch.tensor([[1, 1, 0, 1, 0, 1, 1], [1, 0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)


def hidden_content_law(case, kind):
    """What masked tokens hold never matters for real ones."""
    case, net, inputs = masked(case, kind)
    if case is None:
        return
    other = changed(inputs, ~HOLES)
    before, after = (per_token(net, i, mask=HOLES) for i in (inputs, other))
    assert_close(after[HOLES], before[HOLES])
    if is_pooled(net):
        assert_close(run(net, other, mask=HOLES), run(net, inputs, mask=HOLES))


def padding_law(case, kind, left, right):
    """A row with padding on either side is the row alone; the content of other rows never matters."""
    case, net, inputs = masked(case, kind)
    if case is None:
        return
    wide = padded(inputs, left, right)
    options = {'seq_start_pos': torch.full((3,), left)} if left else {}
    if right:
        mask = torch.ones(3, LENGTH + left + right, dtype=torch.bool)
        mask[:, left + LENGTH :] = False
        options['mask'] = mask
    out = per_token(net, wide, **options)[:, left : left + LENGTH]
    assert_close(out, per_token(net, inputs))
    if is_pooled(net) and not left:
        assert_close(run(net, wide, **options), run(net, inputs))


KINDS = pytest.mark.parametrize('kind', [Decoder, Encoder])


def kind_of(case, kind):
    return kind if issubclass(case.kind, (Decoder, Encoder)) else case.kind


@each()
@KINDS
def test_content_of_padding_never_matters(case, kind):
    hidden_content_law(case, kind_of(case, kind))


@each()
@KINDS
def test_right_padding(case, kind):
    padding_law(case, kind_of(case, kind), 0, 3)


@each()
@KINDS
def test_left_padding(case, kind):
    padding_law(case, kind_of(case, kind), 2, 0)


@each()
def test_padding_on_both_sides(case):
    padding_law(case, case.kind, 1, 2)


def batch_law(case):
    """The rest of the batch never matters, whatever its padding."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    whole, hidden = run(net, inputs), run(net, inputs, mask=HOLES)
    for row in range(3):
        one = rows(inputs, [row])
        assert_close(run(net, one), whole[[row]])
        assert_close(run(net, one, mask=HOLES[[row]]), hidden[[row]])


@each()
def test_rows_are_independent(case):
    batch_law(case)


# 6 cache = no cache


def steps(net, inputs, sizes, only_new=False, cache=None, start=0, **options):
    """Outputs of the tokens from `start` on, in calls of the given sizes, and the last intermediates."""
    outs = []
    for size in sizes:
        part = tokens(inputs, start, start + size, only_new)
        if only_new and cache is not None:
            part.pop('prepend_embeds', None), part.pop('prepend_mask', None)
        given = {n: v[:, : start + size] if n == 'mask' else v for n, v in options.items()}
        out, cache = run(
            net, part, cache=cache, return_intermediates=True, input_not_include_cache=only_new, **given
        )
        outs.append(out[:, out.shape[1] - size :])
        start += size
    return torch.cat(outs, dim=1), cache


def cacheable(case):
    """The model and its inputs, or None if it says that it cannot be cached, and refuses."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    if net.can_cache_kv:
        return net, inputs
    out, inter = run(net, tokens(inputs, 0, 3), return_intermediates=True)
    with pytest.raises(ValueError, match='cache'):
        run(net, inputs, cache=inter)
    return None


def cache_law(case, sizes, only_new=False, **options):
    if found := cacheable(case):
        net, inputs = found
        whole = per_token(net, inputs, **options)
        stepwise, trace = steps(net, inputs, sizes, only_new, **options)
        assert_close(stepwise, whole)
        in_front = net.num_memory_tokens or 0
        in_front += PREFIX if 'prepend_embeds' in inputs else 0
        assert trace.cache.length == trace.cache_length == LENGTH + in_front


@each()
def test_cache_token_by_token(case):
    cache_law(case, (1,) * LENGTH)


@each()
def test_cache_in_chunks(case):
    cache_law(case, (3, 2, 2))


@each()
def test_cache_new_tokens_only(case):
    cache_law(case, (2, 1, 3, 1), only_new=True)


@each()
def test_cache_with_left_padding(case):
    if 'pos' in case.inputs:
        pytest.skip('positions are given')
    start = torch.tensor([0, 2, 3])
    if found := cacheable(case):
        net, inputs = found
        for only_new in (False, True):
            stepwise, _ = steps(net, inputs, (4, 1, 2), only_new, seq_start_pos=start)
            whole = per_token(net, inputs, seq_start_pos=start)
            real = torch.arange(LENGTH) >= start[:, None]
            assert_close(stepwise[real], whole[real])


@each()
def test_cache_with_a_mask(case):
    if found := cacheable(case):
        net, inputs = found
        for only_new in (False, True):
            stepwise, _ = steps(net, inputs, (3, 1, 2, 1), only_new, mask=HOLES)
            assert_close(stepwise[HOLES], per_token(net, inputs, mask=HOLES)[HOLES])


def branching_law(case):
    """Crop, and two continuations of one cache: each is as if it had been alone."""
    if not (found := cacheable(case)):
        return
    net, inputs = found
    other = changed(inputs, torch.arange(LENGTH).expand(3, -1) >= 3)
    wholes = [per_token(net, i) for i in (inputs, other)]
    _, trace = steps(net, inputs, (5,))
    in_front = trace.cache.length - 5
    cropped = trace.cache.crop(in_front + 3)
    assert (trace.cache.length, cropped.length) == (in_front + 5, in_front + 3)
    caches = [cropped, cropped]
    for start in range(3, LENGTH):
        for i, content in enumerate((inputs, other)):
            out, caches[i] = steps(net, content, (1,), only_new=bool(i), cache=caches[i], start=start)
            assert_close(out, wholes[i][:, start : start + 1], f'continuation {i}')
    out, _ = steps(net, inputs, (2,), cache=trace, start=5)
    assert_close(out, wholes[0][:, 5:], 'the cache that was cropped')


@each()
def test_cache_cropped_and_continued_twice(case):
    branching_law(case)


def reordering_law(case):
    """Rows of the batch chosen, repeated, saved and loaded."""
    if not (found := cacheable(case)):
        return
    net, inputs = found
    _, trace = steps(net, inputs, (4,))
    file = io.BytesIO()
    for index, cache in (
        ([2, 0, 0], trace.cache.reorder(torch.tensor([2, 0, 0]))),
        ([0, 0, 1, 1, 2, 2], trace.cache.expand(2)),
        ([0, 1, 2], trace.cache.detach().to('cpu')),
    ):
        chosen = rows(inputs, index)
        out, _ = steps(net, chosen, (1, 2), cache=cache, start=4)
        assert_close(out, per_token(net, chosen)[:, 4:], f'rows {index}')
    del file


@each()
def test_cache_reordered_and_expanded(case):
    reordering_law(case)


@each()
def test_cache_saved_and_loaded(case, tmp_path):
    if found := cacheable(case):
        net, inputs = found
        _, trace = steps(net, inputs, (4,))
        trace.cache.save(tmp_path / 'cache')
        out, _ = steps(net, inputs, (3,), cache=Cache.load(tmp_path / 'cache'), start=4)
        assert_close(out, per_token(net, inputs)[:, 4:])
