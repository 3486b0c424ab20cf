"""Laws that hold for every flag alone, for pairs of flags, and for random combinations of them."""

import copy
import functools
import itertools
import json
import os
import pickle
import random
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given, seed, settings, strategies as st
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    CASES,
    CROSS_CASES,
    FIRST,
    FLAG_CASES,
    GIVEN_BY_THE_STACK,
    INPUT_CASES,
    LONGEST,
    PREFIX,
    WITHOUT_CASE,
    Case,
    as_one,
    build,
    changed,
    each_tensor,
    gradients,
    inputs_for,
    is_pooled,
    model_of,
    padded,
    per_token,
    randomise,
    refused,
    replica_of,
    rows,
    run,
    shallow,
    tokens,
    weighted,
)
from oracles import assert_close, randn
from refusals import is_known, names_a_flag, refusal
from safetensors.torch import load, save
from sweeps import is_late, nightly, some
from torch.utils._pytree import tree_leaves

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, PrefixDecoder, TransformerWrapper
from x_transformers.cache import Cache
from x_transformers.continuous import CONTINUOUS
from x_transformers.core.intermediates import MissingMaps
from x_transformers.features import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.sources import ValueResidual
from x_transformers.flags import ConfigError, PerLayer
from x_transformers.flags.__main__ import table
from x_transformers.x_transformers import AttentionLayers

ALL = (*CASES, *CROSS_CASES)
LENGTH = 7


def each(cases=ALL, every=False, whole=False, share=1, also=()):
    """A test of the first case of each feature, at night of the others too; of every case where arguments matter.

    Of laws that hold by how all features are built, one case in `share` is tried in the suite, in each law another, and
    `also` those that have found something. What is on trial inside of a branch is so in one block, or a `whole` stack.
    """

    def parametrized(test):
        @functools.wraps(test)
        def on_trial(case, **others):
            test(case=shallow(case) if case.flag and not whole else case, **others)

        def is_now(case):
            first = (every or case.name in FIRST) and not is_late(share, test.__name__, case)
            return first or case.name in also

        chosen = [case if is_now(case) else nightly(case) for case in cases]
        return pytest.mark.parametrize('case', chosen, ids=str)(on_trial)

    return parametrized


def of_kind(case, kind):
    """The case with another kind of stack; refused only for a reason that has to do with order."""
    case = case.of_kind(kind)
    reason = refused(case)
    known = reason is None or ('causal' in reason and is_known(reason, case.keywords))
    assert known, f'{kind.__name__} with {case}: {reason}'
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


@pytest.mark.slow
def test_every_input_has_a_case():
    tried = {name.removesuffix('_per_row') for case in ALL for name in inputs_for(model_of(case), case)}
    features = (*ATTENTION, *FEEDFORWARD, *STACK, *MODEL, *CONTINUOUS)
    tried |= {'global_mask', 'pos_vectors', 'pos_known'}  # in test_global_tokens.py, test_untied.py
    assert {name for feature in features for name in feature.call_inputs} <= tried | GIVEN_BY_THE_STACK


# 1 off is free


def values_of(net):
    return {name: t.clone() for name, t in net.state_dict().items()}


# flags of the smallest model are sizes: without them it is another
SIZES = ('max_seq_len', 'dim_in', 'dim_out', 'attn_dim_head', 'heads', 'ff_mult', 'project_in', 'project_out')


@each([case for case in CASES if case.flag and case.flag not in SIZES], every=True, share=4)
def test_off_is_free(case):
    """At its default, a flag adds no parameter and changes no bit."""
    absent, default = (build(case.switched(to_default)) for to_default in (False, True))
    assert str(absent) == str(default)
    before, after = values_of(absent), values_of(default)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    inputs = inputs_for(absent, case.switched(False))
    absent, default = (randomise(net.double()) for net in (absent, default))
    assert torch.equal(run(absent, inputs), run(default, inputs))


# 2 on matters


def compressed(net, inputs):
    """What is kept of a second segment, and its loss."""
    mems = [randn(3, LONGEST, 16, seed=at) for at in range(2)]
    trace = net.train()(**inputs, mems=mems, return_mems=True, return_intermediates=True)[1]
    return [*tree_leaves(trace.mems), *trace.aux_losses.values()]


# what else to look at, where the output stays the same
LOOK_AT = {
    **dict.fromkeys(('cmem_len', 'cmem_ratio', 'cmem_fn', 'cmem_loss', 'cmem_loss_weight'), compressed),
    'knn_mem_size': lambda net, inputs: tree_leaves(net(**inputs, return_knn_mems=True)[1]),
    'add_continuous_pred_head': lambda net, inputs: (
        net(**inputs, return_next_embed_pred=True)[1] if net.add_continuous_pred_head else []
    ),
    'pooler': lambda net, inputs: net(**inputs, return_pooled=True)[1:] if net.pooler else [],
    **dict.fromkeys(
        ('mtp_depth', 'mtp_block', 'mtp_hidden', 'mtp_loss_weight'),
        lambda net, inputs: [AutoregressiveWrapper(net.train())(inputs['x']).reshape(1)],
    ),
    'embed_default_ids': lambda net, inputs: [net(inputs['x'])] if net.embed_default_ids else [],
    'max_mem_len': lambda net, inputs: net(**inputs, return_mems=True)[1],
    'shift_mem_down': lambda net, inputs: [net(**inputs, mems=[randn(3, 2, 16, seed=i) for i in range(2)])],
    'attn_z_loss_weight': lambda net, inputs: [net(**inputs, return_attn_z_loss=True)[1].attn_z_loss],
    'two_stream': lambda net, inputs: (
        [net(inputs['x'], stream_ranks=(inputs['x'] * 0)[:, 1:], stream_at=inputs['x'][:, :1] * 0 + 2)]
        if net.attn_layers.two_stream
        else []
    ),
    'input_not_include_cache': lambda net, inputs: [
        net(inputs['x'][:, 3:], cache=net(inputs['x'][:, :3], return_intermediates=True)[1])
    ],
}


def effects(case):
    """What a flag could change, in steps: shapes and initial values with the output, then gradients, LOOK_AT, and the
    output in training."""
    net = build(case)
    inputs = inputs_for(net, case, length=LONGEST)
    seen = {f'initial {name}': t.double() for name, t in net.named_parameters()}
    net = randomise(net.double())
    seen['output'] = run(net, inputs)
    yield seen
    seen |= {f'gradient {name}': grad for name, grad in gradients(net, inputs).items() if grad is not None}
    if case.flag in LOOK_AT:
        seen |= {f'{case.flag} {i}': t for i, t in enumerate(LOOK_AT[case.flag](net, inputs))}
    torch.manual_seed(1)
    seen['training'] = run(net.train(), inputs)
    yield seen


KNOWN_EFFECTS = {}  # of models without the flag on trial, which many flags have in common


def effects_without(case):
    off = case.switched(False)
    same = str((off.kind, off.wrapper, off.stack, off.model, off.inputs))
    if same not in KNOWN_EFFECTS:
        KNOWN_EFFECTS[same] = next(effects(off))
    yield KNOWN_EFFECTS[same]
    yield from itertools.islice(effects(off), 1, None)


# cases that change nothing to look at, and why
NO_EFFECT = {
    'attn_flash=True': 'kernels give the same numbers: law 7',
    'attn_flash=False': 'kernels give the same numbers: law 7',
    'attn_sparse_topk=50': 'there are fewer keys',
    'attn_moba_topk=50': 'there are fewer blocks',
    'attn_indexer_loss_weight': 'the weight of a loss: see test_selected',
    'cross, attn_sparse_topk=50': 'there are fewer keys',
    'knn_mem_search': 'few are stored, which are all found: see test_knn_memory',
    'act_dense': 'tokens that have halted keep their state: see test_halting',
    'act_ponder_weight': 'the weight of a loss: see test_halting',
    'attn_span_loss_weight': 'the weight of a loss: see test_spans',
    'cross, attn_span_loss_weight': 'the same',
    'ff_moe_kind=topk_softmax': 'a softmax of the chosen is the whole one renormalised',
    'ff_moe_score_bias': 'it starts at zero: see test_experts',
    'ff_moe_balance_loss': 'wrappers add it: see test_experts',
    'ff_moe_balance_per_sequence': 'wrappers add it: see test_experts',
    **dict.fromkeys(('ff_moe_balance', 'ff_moe_balance_rate'), 'in training: see test_experts'),
    'checkpoint_layers': 'layers that run again give the same numbers: see test_recompute',
    **dict.fromkeys(('ff_chunks', 'ff_chunk_checkpoint'), 'slices give the same numbers: see test_feedforward_chunks'),
    **dict.fromkeys(('attn_kernel_chunk', 'cross, attn_kernel_chunk'), 'chunks give the same numbers'),
    **dict.fromkeys(('attn_kernel_redraw', 'cross, attn_kernel_redraw'), 'in training: see test_linear_attention'),
    **dict.fromkeys(
        ('attn_global_separate_qkv', 'cross, attn_global_separate_qkv'), 'nothing is marked: test_global_tokens'
    ),
    **dict.fromkeys(('attn_routing_decay', 'cross, attn_routing_decay'), 'in training: see test_clusters'),
    **dict.fromkeys(('attn_latent_absorb', 'cross, attn_latent_absorb'), 'both forms give the same: see test_latents'),
    'attn_onnxable': 'the triangle can always be exported',
    'cross, attn_onnxable': 'the triangle can always be exported',
    'attn_attend_sdp_kwargs': 'backends give the same numbers: law 7',
    'cross, attn_attend_sdp_kwargs': 'backends give the same numbers: law 7',
    'attn_hybrid_mask_kwarg': 'the module takes the mask where there is no order: see test_sources',
    'cross, attn_hybrid_mask_kwarg': 'the module takes the mask where there is no order: see test_sources',
    'attn_flash_pack_seq': 'without boundaries each row is one document: see test_scores',
    'cross, attn_flash_pack_seq': 'without boundaries each row is one document: see test_scores',
}


@each([case for case in CASES if case.flag and case.name not in NO_EFFECT], every=True)
def test_on_matters(case):
    matters_law(case)


def matters_law(case):
    """A flag changes the output, and if not that, what is read or learned from the model."""

    def differs(name):
        a, b = on.get(name), off.get(name)
        return a is None or b is None or a.shape != b.shape or not torch.allclose(a, b, rtol=1e-9, atol=1e-12)

    for on, off in zip(effects(case), effects_without(case), strict=True):
        learned = [name for name in on if name.startswith('initial') and name not in off]
        if learned and case.flag not in LOOK_AT:
            assert differs('output'), f'{learned} are there, but the output is the same'
        if any(map(differs, on)):
            return
    raise AssertionError('nothing differs')


@pytest.mark.nightly
@each([case for case in CROSS_CASES if case.flag and case.name not in NO_EFFECT], every=True)
def test_on_matters_across(case):
    matters_law(case)


# 3 finite, and everything learns

# parameters without a gradient, and why
NO_GRADIENT = {
    **{
        f'cmem.{at}.{name}': 'learns from a loss of its own, segment by segment: see test_compressive_memory'
        for at in (0, 1)
        for name in ('conv.weight', 'conv.bias', 'back.weight', 'back.bias')
    },
    'to_next_embed_pred.0.weight': 'read by `return_next_embed_pred`: see test_model_features',
    'to_next_embed_pred.2.weight': 'read by `return_next_embed_pred`: see test_model_features',
    'pooler.weight': 'read by `return_pooled`: see test_embeddings_and_heads',
    'pooler.bias': 'read by `return_pooled`: see test_embeddings_and_heads',
    **dict.fromkeys(
        ('to_index_q.weight', 'to_index_k.weight', 'index_norm.weight', 'index_norm.bias', 'to_index_weights.weight'),
        'learns from its own loss: see test_selected',
    ),
    'two_stream_w': 'read by queries: see test_permutation',
    **{
        f'mtp.{at}.{name}': 'learns from the loss of AutoregressiveWrapper: see test_mtp'
        for at in (0, 1)
        for name in (
            'embed_norm.g',
            'hidden_norm.g',
            'merge.weight',
            'norm.g',
            *(
                f'block.layers.0.{rest}'
                for rest in ('0.0.gamma', '1.to_q.weight', '1.to_k.weight', '1.to_v.weight', '1.to_out.weight')
            ),
            *(
                f'block.layers.1.{rest}'
                for rest in ('0.0.gamma', '1.ff.0.0.weight', '1.ff.0.0.bias', '1.ff.2.weight', '1.ff.2.bias')
            ),
        )
    },
    'exit_gate.weight': 'learns from the loss of AutoregressiveWrapper',
    'rel_pos.mlp.2.bias': 'adding the same to all logits of a row changes nothing',
    'rel_pos.mlp.3.bias': 'adding the same to all logits of a row changes nothing',
    'layer_integrators.0.to_weights.0.g': 'the first layer has one input to choose from',
    'layer_integrators.0.to_weights.1.weight': 'the first layer has one input to choose from',
    'layer_integrators.0.to_weights.1.bias': 'the first layer has one input to choose from',
    'layer_integrators.0.to_keys.weight': 'the first layer has one input to choose from',
    'layer_integrators.0.to_query.0.weight': 'the first layer has one input to choose from',
    'layer_integrators.0.to_query.1.down.weight': 'the first layer has one input to choose from',
    'layer_integrators.0.to_query.1.up.weight': 'the first layer has one input to choose from',
    'layer_integrators.0.norm.weight': 'the first layer has one input to choose from',
    'sinkhorn_sort.2.bias': 'columns are divided by their sums',
    **dict.fromkeys(('to_k.bias', 'k_norm.beta', 'to_pos_k.bias'), 'what is added to the scores of all keys'),
}


def chooses_one_key(case):
    """Whether every query has a single key, so that queries and keys are without influence."""
    return case.stack.get('attn_max_attend_past') == 0 or case.stack.get('attn_sparse_topk') == 1


def finite_law(case):
    net = model_of(case)
    inputs = inputs_for(net, case)
    grads = gradients(net, inputs)
    allowed = tuple(NO_GRADIENT)
    if 'attn_pool' in case.model:  # the pooled tokens are the output
        allowed += ('to_logits.weight',)
    if chooses_one_key(case):
        grads = {name: grad for name, grad in grads.items() if not name.endswith(('to_q.weight', 'to_k.weight'))}
        allowed += ('.gamma',) if 'cross_attend' in case.stack else ()
    missing = [n for n, g in grads.items() if (g is None or g.abs().max() < 1e-12) and not n.endswith(allowed)]
    assert not missing, f'no gradient reaches {missing}'
    assert all(g.isfinite().all() for g in grads.values() if g is not None)
    assert run(net, inputs).isfinite().all()


@each()
def test_finite_and_every_parameter_learns(case):
    finite_law(case)


# 4 causal


def causal_law(case):
    """Other content from token 4 on changes nothing before it, nor does its absence."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    later = changed(inputs, torch.arange(LENGTH).expand(3, -1) >= 4)
    before, after = per_token(net, inputs), per_token(net, later)
    assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])
    assert_close(per_token(net, tokens(inputs, 0, 4)), before[:, :4])


@each()
@pytest.mark.parametrize('kind', some(Decoder, PrefixDecoder))
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
    wide = padded(net, inputs, left, right)
    options = {'seq_start_pos': torch.full((3,), left)} if left else {}
    if right:
        mask = torch.ones(3, LENGTH + left + right, dtype=torch.bool)
        mask[:, left + LENGTH :] = False
        options['mask'] = mask
    if left and case.model.get('memory_tokens_interspersed_every'):
        with pytest.raises(ValueError, match='memory_tokens_interspersed_every'):
            per_token(net, wide, **options)
        return
    out = per_token(net, wide, **options)[:, left : left + LENGTH]
    assert_close(out, per_token(net, inputs))
    if is_pooled(net):
        assert_close(run(net, wide, **options), run(net, inputs))


def order_of(case, kind):
    """The kind asked for, unless the case is about another."""
    return kind if issubclass(case.kind, (Decoder, Encoder)) else case.kind


@each(also=['attn_orthog_projected_values_over_sequence', 'orthog_residual_over_sequence'])
def test_content_of_padding_never_matters(case):
    hidden_content_law(case, case.kind)


@each(share=2, also=['shift_tokens'])
def test_content_of_padding_never_matters_in_the_other_order(case):
    hidden_content_law(case, order_of(case, Encoder if case.kind is Decoder else Decoder))


@pytest.mark.nightly
@each(every=True)
def test_right_padding(case):
    padding_law(case, order_of(case, Encoder), 0, 3)


@each()
def test_left_padding(case):
    padding_law(case, order_of(case, Decoder), 2, 0)


@each()
def test_padding_on_both_sides(case):
    padding_law(case, order_of(case, Encoder), 1, 2)


def batch_law(case):
    """The rest of the batch never matters, whatever its padding."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    whole, hidden = run(net, inputs), run(net, inputs, mask=HOLES)
    for index in ([1], [2, 0]):
        own = rows(inputs, index)
        assert_close(run(net, own), whole[index])
        assert_close(run(net, own, mask=HOLES[index]), hidden[index])


@each(share=2)
def test_rows_are_independent(case):
    batch_law(case)


# 6 cache = no cache


@torch.no_grad()  # with gradients a cache is not written in place
def steps(net, inputs, sizes, only_new=False, cache=None, start=0, **options):
    """Outputs of the tokens from `start` on, in calls of the given sizes, and the last intermediates."""
    outs = []
    for size in sizes:
        part = tokens(inputs, start, start + size, only_new)
        given = {n: v[:, : start + size] if n == 'mask' else v for n, v in options.items()}
        out, cache = run(net, part, cache=cache, return_intermediates=True, input_not_include_cache=only_new, **given)
        outs.append(out[:, out.shape[1] - size :])
        start += size
    return torch.cat(outs, dim=1), cache


def cacheable(case):
    """The model and its inputs, or None if it says that it cannot be cached, or what it is given, and refuses."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    if net.can_cache_kv and 'segment_ids' not in inputs:
        return net, inputs
    _, inter = run(net, tokens(inputs, 0, 3), return_intermediates=True)
    with pytest.raises(ValueError, match='cache'):
        run(net, inputs, cache=inter)
    return None


def cache_law(case, tmp_path=None):
    """Tokens one by one, some at a time and alone, by rows that are chosen, repeated, saved and loaded."""
    if not (found := cacheable(case)):
        return
    net, inputs = found
    whole, (out, trace) = per_token(net, inputs), steps(net, inputs, (1, 2, 1))
    assert_close(out, whole[:, :4])
    in_front = net.num_memory_tokens or 0
    in_front += PREFIX if 'prepend_embeds' in inputs else 0
    assert trace.cache.length == trace.cache_length == 4 + in_front
    ways = [
        ([2, 0, 0], (1, 2), True, lambda: trace.cache.reorder(torch.tensor([2, 0, 0]))),
        ([0, 0, 1, 1, 2, 2], (2, 1), False, lambda: trace.cache.expand(2)),
    ]
    if tmp_path is not None:
        trace.cache.detach().to('cpu').save(tmp_path / 'cache')
        ways.append(([0, 1, 2], (3,), True, lambda: Cache.load(tmp_path / 'cache')))
    for index, sizes, only_new, cache in ways:
        out, last = steps(net, rows(inputs, index), sizes, only_new, cache=cache(), start=4)
        assert_close(out, whole[index][:, 4:], f'rows {index}, {sizes} tokens')
        assert last.cache.length == LENGTH + in_front


@each()
def test_cache(case, tmp_path):
    cache_law(case, tmp_path)


@each([case for case in ALL if case.name not in FIRST], every=True, share=4)
def test_cache_token_by_token(case):
    """Other arguments of a feature too."""
    if found := cacheable(case):
        net, inputs = found
        assert_close(steps(net, inputs, (1, 1, 5))[0], per_token(net, inputs))


def padded_cache_law(case, crossed=True):
    """With padding on the left, and with a mask; all tokens or the new ones only."""
    if not (found := cacheable(case)):
        return
    net, inputs = found
    # tokens in front stand before the first real one: with positions of the user's, the first call must have it
    start = torch.tensor([0, 2, 2 if 'pos' in inputs and 'num_memory_tokens' in case.model else 3])
    real = torch.arange(LENGTH) >= start[:, None]
    for options, seen, only_new in (
        ({'seq_start_pos': start}, real, False),
        ({'mask': HOLES}, HOLES, True),
        ({'seq_start_pos': start}, real, True),
        ({'mask': HOLES}, HOLES, False),
    )[: 4 if crossed else 2]:
        whole = per_token(net, inputs, **options)
        stepwise, _ = steps(net, inputs, (3, 1, 3), only_new, **options)
        assert_close(stepwise[seen], whole[seen], f'with {next(iter(options))}')


@each(share=2)
@pytest.mark.parametrize('crossed', some(False, True))
def test_cache_with_padding(case, crossed):
    padded_cache_law(case, crossed)


def branching_law(case):
    """Crop, and two continuations of one cache: each is as if it had been alone."""
    if not (found := cacheable(case)):
        return
    net, inputs = found
    other = changed(inputs, torch.arange(LENGTH).expand(3, -1) >= 3)
    wholes = [per_token(net, i) for i in (inputs, other)]
    _, trace = steps(net, inputs, (5,))
    in_front = trace.cache.length - 5
    if trace.cache.cannot('crop', 2):  # what runs is known where a call has ended
        with pytest.raises(ValueError, match=r'`crop` got a cache with the .* state `'):
            trace.cache.crop(in_front + 3)
        _, trace = steps(net, inputs, (3, 2))
    cropped = trace.cache.crop(in_front + 3)
    assert (trace.cache.length, cropped.length) == (in_front + 5, in_front + 3)
    caches = [cropped, cropped]
    for start, size in ((3, 1), (4, 3)):
        for i, content in enumerate((inputs, other)):
            out, caches[i] = steps(net, content, (size,), only_new=bool(i), cache=caches[i], start=start)
            assert_close(out, wholes[i][:, start : start + size], f'continuation {i}')
    out, _ = steps(net, inputs, (2,), cache=trace, start=5)
    assert_close(out, wholes[0][:, 5:], 'the cache that was cropped')


@each(share=2)
def test_cache_cropped_and_continued_twice(case):
    branching_law(case)


@each([case for case in INPUT_CASES if 'prepend_embeds' in case.inputs])
def test_cache_without_the_prefix_given_again(case):
    """It is in the cache already, and is remembered whole, mask included; beside memory tokens it is asked for."""
    net, inputs = cacheable(case)
    _, trace = steps(net, inputs, (4,))
    part = {name: value for name, value in tokens(inputs, 4, LENGTH, True).items() if not name.startswith('prepend')}
    if 'num_memory_tokens' in case.model:
        with pytest.raises(ValueError, match='made with 4 tokens in front of the sequence, now there are 2'):
            run(net, part, cache=trace, input_not_include_cache=True)
        return
    out = run(net, part, cache=trace, input_not_include_cache=True)
    assert_close(out, per_token(net, inputs)[:, 4:])


def with_relative_positions(case, **stack):
    """The case without a table of absolute positions."""
    return replace(case, stack={**case.stack, **stack}, model={**case.model, 'max_seq_len': 0, 'max_mem_len': LENGTH})


# what a sequence cut into parts is not the whole for: absolute numbers, and what stands in front of each part
WHOLE_ONLY = ('pos', 'context_pos', 'attn_bias', 'rotary_pos_emb', 'polar_pos_emb', 'prepend_embeds')
DIVISIBLE = [
    case
    for case in ALL
    if not set(case.inputs) & set(WHOLE_ONLY)
    and not {'num_memory_tokens', 'axial_abs_pos_emb'} & set(case.model)
    and case.kind is Decoder
    # learned keys stand at phase 0, whatever is cut
    and not ('attn_num_mem_kv' in case.stack and {'polar_pos_emb', 'rotary_pos_emb'} & set(case.stack))
]


# what looks for itself how far back, and what counts positions from the start of the window
NOT_IN_WINDOWS = {'attn_max_attend_past', 'attn_kernel', 'cross_attend', 'position_infused_attn', 'attn_rotate_values'}
NOT_IN_WINDOWS |= {'coord_pos_emb'}
NOT_IN_WINDOWS |= {'attn_cluster', 'attn_moba_block'}  # whose chunks are counted from the start
NOT_IN_WINDOWS |= {'attn_aft'}
NOT_IN_WINDOWS |= {'per_layer_abs_pos_emb', 'tupe_pos'}  # which are for no model with memories, as those here are


@each([case for case in DIVISIBLE if not NOT_IN_WINDOWS & set(case.stack)], share=4, also=['latents, turning'])
def test_cache_of_a_window(case):
    """Where nobody looks further back than the window, dropping what lies before it changes nothing."""
    case = with_relative_positions(case, attn_max_attend_past=2)
    if found := cacheable(case):
        net, inputs = found
        whole, (_, trace) = per_token(net, inputs), steps(net, inputs, (4,))
        if trace.cache.cannot('keep_last', 2):
            with pytest.raises(ValueError, match=r'`keep_last` got a cache with the .* state `'):
                trace.cache.keep_last(2)
            return
        for start in range(4, LENGTH):
            cache = trace.cache.keep_last(2)
            assert cache.length == 2
            out, trace = steps(net, inputs, (1,), only_new=True, cache=cache, start=start)
            assert_close(out, whole[:, start : start + 1])


# memories are hidden states from before the branch, one per token: what joins them there is lost, whether it comes
# from other tokens or from other layers, and so is what sets keys and values apart
NOT_IN_MEMORIES = (
    'shift_tokens mv_split_residual reinject_input in_attn_cond in_attn_cond_per_row integrate_layers'
    ' attn_aggregated_residuals qkv_receive_diff_residuals attn_hybrid_module recurrent_module self_attn_kv_residuals'
    ' recycling looped attn_cluster attn_moba_block attn_indexer'
    ' attn_aft cross_attn_aft cross_attn_linformer_k cross_attn_sparse_pattern per_layer_abs_pos_emb tupe_pos'
    ' coord_pos_emb ut_transition conv_module'
    ' cmem_len cmem_ratio cmem_fn cmem_loss cmem_loss_weight cmem_init'  # pairs: see test_compressive_memory
).split()
WITH_MEMORIES = [
    case for case in DIVISIBLE if not set(NOT_IN_MEMORIES) & set(case.keywords) and case.flag != 'shift_mem_down'
]


BY_POSITION = ['position_infused_attn', 'rotary_pos_emb', 'alibi_pos_bias', 'rel_pos_bias', 'shaw_rel_pos']


# a segment starts anew: what earlier tokens have hidden is forgotten, and values that turn do so from its start
@each(
    [case for case in WITH_MEMORIES if not {'attn_selective', 'attn_rotate_values'} & set(case.stack)],
    share=4,
    also=[*BY_POSITION, 'gated_multi_residual', 'continuous'],
)
def test_memories_of_an_earlier_segment(case):
    """A segment with the memories of all before it is the end of the whole; so it is token by token."""
    case = with_relative_positions(case)
    net = model_of(case)
    inputs = inputs_for(net, case)
    whole = per_token(net, inputs)
    first, second = tokens(inputs, 0, 4), tokens(inputs, 4, LENGTH, only_new=True)
    mems = net(**first, return_mems=True)[1]
    if inputs.get('condition') is not None and inputs['condition'].ndim == 3:
        with pytest.raises(ValueError, match='`condition` got one row per token, but `mems` have no conditions'):
            net(**second, mems=mems)
        return
    assert [mem.shape for mem in mems] == [(3, 4, 16)] * len(mems)
    out = per_token(net, second, mems=mems)
    assert_close(out, whole[:, 4:])
    if net.can_cache_kv:
        assert_close(steps(net, second, (1, 2), mems=mems)[0], out)


@each(WITH_MEMORIES, share=4)
def test_masked_memories(case):
    """What they hold never matters; masked altogether they are not there."""
    case = with_relative_positions(case)
    net = model_of(case)
    inputs = inputs_for(net, case)
    if 'condition' in inputs:  # memories have none of their own
        inputs['condition'] = inputs['condition'].reshape(3, -1, inputs['condition'].shape[-1])[:, 0]
    mems = net(**inputs, return_mems=True)[1]
    others = [mem.flip(1) for mem in mems]
    masks = [torch.tensor([[True] * 7, [False] * 4 + [True] * 3, [False] * 7])] * len(mems)
    mixed = [torch.where(mask[..., None], mem, other) for mask, mem, other in zip(masks, mems, others, strict=True)]
    out = per_token(net, inputs, mems=mems, mem_masks=masks)
    assert_close(per_token(net, inputs, mems=mixed, mem_masks=masks), out)
    assert_close(out[2], per_token(net, inputs)[2])


# a bare stack, given vectors


def stack_inputs(stack, inputs):
    vectors = torch.randn(3, LENGTH, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    known = ('condition', 'context', 'context_mask', 'context_pos', 'attn_bias', 'rotary_pos_emb', 'pos')
    known += ('in_attn_cond', 'deep_embeds_and_ids', 'polar_pos_emb', 'self_attn_kv_residuals')
    known += ('cross_attn_kv_residuals', 'self_attn_additional_kv', 'additional_kv_mask', 'route_additional_kv_to_top')
    places = {'pos_vectors': vectors.flip(1)} if any(f.gives_positions is None for f in stack.features.active) else {}
    return {'sum_embeds': vectors, **places, **{name: value for name, value in inputs.items() if name in known}}


def run_stack(stack, inputs, start, stop, **options):
    """The outputs of the tokens from `start` to `stop`, given all of them or the new ones only."""
    part = tokens(inputs, start, stop, options.get('input_not_include_cache', False))
    out, trace = stack(part.pop('sum_embeds'), **part, return_hiddens=True, **options)
    return out[:, start - stop :], trace


@each([case for case in ALL if not case.model and case.wrapper is TransformerWrapper and case.kind is Decoder], share=4)
def test_cache_of_a_bare_stack(case):
    net = model_of(case)
    stack, inputs = net.attn_layers, stack_inputs(net.attn_layers, inputs_for(net, case))
    if not stack.can_cache_kv:
        with pytest.raises(ValueError, match='cache'):
            run_stack(stack, inputs, 0, LENGTH, cache=run_stack(stack, inputs, 0, 4)[1])
        return
    for options, only_new in (({}, True), ({'seq_start_pos': torch.tensor([0, 1, 3])}, False)):
        whole, trace = run_stack(stack, inputs, 0, LENGTH, **options)
        real = torch.arange(LENGTH) >= options.get('seq_start_pos', torch.zeros(3))[:, None]
        outs, cache, start = [], None, 0
        for size in (4, 1, 2):
            out, cache = run_stack(
                stack, inputs, start, start + size, cache=cache, input_not_include_cache=only_new, **options
            )
            outs.append(out)
            start += size
        assert cache.cache_length == trace.cache_length == LENGTH
        assert_close(torch.cat(outs, dim=1)[real], whole[real])


# 7 kernels agree


def with_kernel(case, flash):
    """The case with a kernel demanded, or None if that is refused by the name of what rules it out."""
    variant = case.with_keywords(attn_flash=flash)
    reason = refused(variant)
    if reason is None:
        return variant
    assert flash or 'flash=False' in reason, reason
    assert names_a_flag(reason, [name for name in case.stack if name != 'attn_flash']), reason
    return None


def attends_itself(trace):
    """Whether a feature attended in its own way, and left no maps."""
    return isinstance(trace.compute_maps, MissingMaps)


def kernels_law(case, demanded=True):
    """The formula, the choice of a kernel, and the `demanded` one give the same outputs, gradients and maps."""
    wanted, kernels = None, []
    for flash in (False, None, True) if demanded else (False, None):
        if (variant := with_kernel(case, flash)) is None:
            continue
        net = model_of(variant)
        chosen = [layer.kernel for layer in net.modules() if isinstance(layer, Attention)]
        if chosen == kernels:
            continue
        kernels = chosen
        inputs = inputs_for(net, variant)
        out, trace = run(net, inputs, mask=HOLES, return_intermediates=True)
        grads = torch.autograd.grad(weighted(out), list(net.parameters()), allow_unused=True)
        maps = [inter.post_softmax_attn for inter in trace.attn_intermediates if not attends_itself(inter)]
        found = {'output': out, 'output without a mask': run(net, inputs)}
        found |= {f'map {index}': each for index, each in enumerate(maps)}
        named = zip(net.named_parameters(), grads, strict=True)
        found |= {f'gradient of {name}': grad for (name, _), grad in named if grad is not None}
        wanted = wanted or found
        assert found.keys() == wanted.keys()
        for name, value in found.items():
            assert_close(value, wanted[name], f'{name} with attn_flash={flash}')


@each([case for case in ALL if 'attn_flash' not in case.stack], share=2)
@pytest.mark.parametrize('demanded', some(False, True))
def test_kernels_agree(case, demanded):
    kernels_law(case, demanded)


# cases of one attention layer, without the prefixes
LAYER_CASES = [
    case
    for case in FLAG_CASES
    if case.feature in ATTENTION and not any(isinstance(value, tuple) for value in case.stack.values())
]


def layer_of(case, flash, causal):
    """One attention layer of a case, with inputs, or None if the kernel is refused."""
    flags = {name.removeprefix('attn_'): value for name, value in case.stack.items() if name.startswith('attn_')}
    flags = {name: value.values[0] if isinstance(value, PerLayer) else value for name, value in flags.items()}
    inputs = {}
    if case.feature is ValueResidual:
        flags, inputs = {'learned_value_residual_mix': True}, {'value_residual': randn(2, 4, 6, 8, seed=1)}
    if 'disentangled' in flags:
        inputs = {'disentangled_table': randn(2 * flags['disentangled']['span'], 16)}
    torch.manual_seed(0)
    try:
        layer = Attention(dim=16, heads=4, dim_head=8, flash=flash, causal=causal, **flags)
    except ConfigError as error:
        assert flash or 'flash=False' in str(error) or 'causal' in str(error), error
        return None
    return randomise(layer.double()), {'x': randn(2, 6, 16), **inputs}


MIXES_HEADS = ('attn_post_talking_heads', 'attn_orthog_projected_values')


@each(LAYER_CASES)
@pytest.mark.parametrize('causal', [False, True])
def test_rows_that_see_nothing_give_zeros(case, causal):
    """And their gradients are finite, on every kernel."""
    seen = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.7
    seen[:, :, 3], seen[1, 2] = False, False
    wanted = None
    if case.flag in ('attn_hybrid_merge', 'attn_hybrid_factors'):  # a module is added behind the output projection
        return
    for flash in (False, None, True):
        if (built := layer_of(case, flash, causal)) is None:
            continue
        layer, inputs = built
        layer.to_out = torch.nn.Identity()
        inputs['x'].requires_grad_()
        if any('masks' not in f.handles for f in layer.features.by_stage.get('attend', ())):
            with pytest.raises(ValueError, match='`attn_mask`: it hides no keys but from all queries alike'):
                layer(**inputs, attn_mask=seen)
            continue
        out, trace = layer(**inputs, attn_mask=seen, return_intermediates=True)
        (grad,) = torch.autograd.grad(weighted(out), inputs['x'])
        if not switched_on(layer, 'prepend_kv'):
            heads = out.unflatten(-1, (4, 8)).transpose(1, 2)
            blind = ~(seen & torch.ones(6, 6, dtype=torch.bool).tril() if causal else seen).any(dim=-1)
            assert blind.sum() > 10
            if case.flag not in MIXES_HEADS and 'hybrid' not in case.flag:  # a module beside attention sees
                assert (heads[blind] == 0).all()
            if all(f.maps is not None for f in layer.features.by_stage.get('attend', ())):
                maps = trace.post_softmax_attn.unflatten(1, (-1, 4)).movedim(1, -1)
                assert (maps[blind] == 0).all()
        assert grad.isfinite().all()
        if wanted is not None:
            assert_close(out, wanted[0])
            assert_close(grad, wanted[1])
        wanted = out, grad


def switched_on(layer, *stages):
    """Whether a flag has put a feature at one of the stages."""
    return any(feature.flags for stage in stages for feature in layer.features.by_stage.get(stage, ()))


def changes_the_sum(layer):
    after = ('mixed_weights', 'weighted_values', 'post_attention', 'head_outputs', 'merged_heads')
    return switched_on(layer, 'prepend_kv', *after, 'update_cache')


@each(LAYER_CASES)
@pytest.mark.parametrize('flash', [False, None])
def test_maps_times_values_are_the_output(case, flash):
    """Where nothing acts between weights and output; read after the pass, on every kernel."""
    if (built := layer_of(case, flash, True)) is None:
        return
    layer, inputs = built
    out, trace = layer(**inputs, return_intermediates=True)
    if attends_itself(trace):
        return
    weights, logits, values = trace.post_softmax_attn, trace.pre_softmax_attn, trace.cached_kv[1]
    assert weights.shape == logits.shape and weights.shape[:3] == (
        2,
        layer.query_heads if layer.query_heads > 4 else 4,
        6,
    )
    assert (weights[..., -6:].triu(1) == 0).all()
    if not layer.features.by_stage.get('normalizer'):
        assert_close(weights.abs(), logits.softmax(dim=-1))  # some give them a sign
    if not changes_the_sum(layer) and 'hybrid' not in case.flag:
        heads = weights[..., -6:] @ values
        assert_close(layer.to_out(heads.transpose(1, 2).flatten(-2)), out)


# 8 round trips


def jsonable(value):
    if isinstance(value, (tuple, list)):
        return all(map(jsonable, value))
    return value is None or isinstance(value, (bool, int, float, str, dict, PerLayer))


def config_law(case):
    """A model goes to JSON and back; what JSON cannot hold is refused by name, unless it has no effect."""
    net = model_of(case)
    idle = {'to_logits'} if case.model.get('return_only_embed') else set()
    given = {**case.stack, **case.model}
    idle |= {'features'}  # classes are named
    strange = [name for name, value in given.items() if not jsonable(value) and name not in idle]
    if strange:
        with pytest.raises(ValueError) as refusal:
            json.dumps(net.config)
        assert names_a_flag(str(refusal.value), strange)
        return
    text = json.dumps(net.config)
    again = type(net).from_config(text)
    assert type(again) is type(net) and type(again.attn_layers) is type(net.attn_layers)
    assert json.dumps(again.config) == text
    assert str(again) == str(net)
    again.double().eval().load_state_dict(net.state_dict(), strict=True)
    inputs = inputs_for(net, case)
    assert torch.equal(run(again, inputs), run(net, inputs))


def copies_law(case):
    """A copy computes the same, and goes its own way; so does a model that loads what another has saved."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    wanted = run(net, inputs)
    source = pickle.loads(pickle.dumps(net))
    assert source is not net and torch.equal(run(source, inputs), wanted)
    copied = copy.deepcopy(source)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert torch.equal(run(copied, inputs), wanted)
    assert torch.equal(run(net, inputs), wanted)
    assert not torch.equal(run(source, inputs), wanted)
    state = load(save({name: t.contiguous() for name, t in net.state_dict().items()}))
    loaded = build(case, seed=1).double().eval()
    assert loaded.load_state_dict(state, strict=True)
    assert torch.equal(run(loaded, inputs), wanted)


@each(CASES, share=4)
def test_round_trips(case):
    config_law(case)
    copies_law(case)


@each(share=4, also=['reversible'])
def test_replicas(case):
    """A replica computes with its own tensors, and gradients reach the parameters that these were made from."""
    net, other = copy.deepcopy(model_of(case)).train(), copy.deepcopy(model_of(case)).train()
    inputs = {n: each_tensor(torch.detach, value) for n, value in inputs_for(net, case).items()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1.25
    outs, grads = [], []
    for runs, learns in ((replica_of(net, 1.25), net), (other, other)):
        torch.manual_seed(0)
        outs.append(run(runs, inputs))
        grads.append(torch.autograd.grad(weighted(outs[-1]), list(learns.parameters()), allow_unused=True))
    assert_close(*outs)
    for own, wanted in zip(*grads, strict=True):
        assert (own is None) == (wanted is None)
        if own is not None:
            assert_close(own, 1.25 * wanted, 'gradient')


# 9 evaluation is deterministic


def in_training(case, passes):
    """The output in evaluation, which is always the same, and outputs in training, each from other random numbers."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    out = run(net, inputs)
    assert torch.equal(run(net, inputs), out)
    training, outs = copy.deepcopy(net).train(), []
    for start in range(passes):
        torch.manual_seed(start)
        outs.append(run(training, inputs))
    return out, outs


RANDOM = [
    case
    for case in CASES
    if any(part in case.name for part in ('dropout', 'gumbel', 'recycl', 'attn_cluster', 'lsh'))
    and case.stack.get('attn_sinkhorn_gumbel') is not False
]


@each(RANDOM)
def test_dropouts_make_a_difference_in_training(case):
    _, (out, *others) = in_training(case, 4)
    assert any(not torch.equal(out, other) for other in others)


@each([case for case in CASES if case not in RANDOM], share=4)
def test_only_dropouts_make_a_difference_in_training(case):
    out, others = in_training(case, 2)
    assert all(torch.equal(out, other) for other in others)


# 10 half precision


def as_dtype(inputs, dtype):
    return {
        name: each_tensor(lambda t: t.to(dtype) if t.is_floating_point() else t, value)
        for name, value in inputs.items()
    }


# cases that multiply what half precision rounds, some 0.01 of the norm elsewhere, by more than 3
LOUD = (
    'adaptive_condition_mlp', 'gate_residual', 'looped', 'attn_qk_norm_groups', 'attn_l2_distance', 'use_derf',
    'rotary_pos_emb, of a stack without any', 'differential, sinks', 'attn_kernel=rff', 'gate.grucell', 'gate.gtrxl',
    'gate.sigtanh', 'streams, condition',
)  # fmt: skip
# of two experts that fit nearly as well, rounding may choose the other
CHOOSY = [case.name for case in CASES if {'ff_moe_experts', 'attn_cluster'} & set(case.stack)]


@each(CASES, share=4)
def test_bfloat16(case):
    """Runs in bfloat16, by autocast and cast, forward and backward, finite and close to float32."""
    net = copy.deepcopy(model_of(case)).float()
    inputs = as_dtype(inputs_for(net, case), torch.float32)
    out = run(net, inputs)
    for cast in (False, True):
        if cast:
            net, inputs = net.bfloat16(), as_dtype(inputs, torch.bfloat16)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=not cast):
            half = run(net, inputs)
            grads = torch.autograd.grad(weighted(half), list(net.parameters()), allow_unused=True)
        assert half.dtype == torch.bfloat16 or (not cast and half.dtype == torch.float32)
        assert half.isfinite().all()
        assert all(grad.isfinite().all() for grad in grads if grad is not None)
        error = (half.float() - out).norm() / out.norm()
        assert error < (0.3 if case.name in CHOOSY else 0.1 if case.name in LOUD else 0.03), (
            f'{"cast" if cast else "autocast"}: off by {error:.3f} of the norm'
        )


def with_extremes(net, inputs, norm):
    """The model and its inputs with a row of zeros, and one of a norm, in each row of the batch: of vectors, or of the
    table of tokens."""
    net, inputs = copy.deepcopy(net), dict(inputs)
    table = getattr(getattr(net, 'token_emb', None), 'emb', None)
    with torch.no_grad():
        for row, (empty, full) in enumerate(((1, 4), (3, 5), (5, 2))):
            vectors, at = inputs['x'][row], [empty, full]
            if table is not None:
                vectors, at = table.weight, vectors[at]
            if vectors.ndim == 2 and vectors.is_floating_point():
                vectors[at[0]] = 0.0
                vectors[at[1]] = vectors[at[1]].sign() * norm / vectors.shape[-1] ** 0.5
    return net, inputs


def largest(net, inputs):
    """The largest number that a linear layer gives: with it, what of a model float16 holds."""
    found, hooks = [torch.zeros(())], []
    for module in net.modules():
        if isinstance(module, torch.nn.Linear):
            hooks.append(module.register_forward_hook(lambda m, args, out: found.append(out.detach().abs().max())))
    run(net, inputs, mask=HOLES)
    for hook in hooks:
        hook.remove()
    return max(found)


def float16_law(case):
    """Cast to float16 and under autocast, with rows of zeros and rows as large as the model holds: finite, near to
    float32, nothing of later and hidden tokens, and from a cache the same."""
    whole = copy.deepcopy(model_of(case)).half().float()  # the weights are those of float16
    given = as_dtype(as_dtype(inputs_for(whole, case), torch.float16), torch.float32)
    for norm in (1e5, 3e3, 1e2):
        net, inputs = with_extremes(whole, given, norm)
        if largest(net, inputs) < 3e4:
            break
    wanted = run(net, inputs, mask=HOLES)
    bound = 0.3 if case.name in CHOOSY else 0.1 if case.name in (*LOUD, 'attn_cog_signed') else 0.03
    for cast in (False, True):
        if cast:
            net, inputs = net.half(), as_dtype(inputs, torch.float16)
        with torch.autocast('cpu', dtype=torch.float16, enabled=not cast):
            half = run(net, inputs, mask=HOLES)
            with torch.no_grad():
                known = per_token(net, inputs, mask=HOLES)
                hidden = per_token(net, changed(inputs, ~HOLES), mask=HOLES)
                later = per_token(net, changed(inputs, torch.arange(LENGTH).expand(3, -1) >= 4), mask=HOLES)
                one_by_one = steps(net, inputs, (3, 1, 3), mask=HOLES)[0] if cacheable(case) else known
        grads = torch.autograd.grad(weighted(half.float()) / 100, list(net.parameters()), allow_unused=True)
        error = (half.float() - wanted).norm() / wanted.norm()
        assert half.isfinite().all() and error < bound, f'cast={cast}: off by {error:.3f} of the norm'
        assert all(grad.isfinite().all() for grad in grads if grad is not None), f'cast={cast}'
        assert_close(hidden[HOLES].float(), known[HOLES].float(), 'hidden tokens', 4e-3)
        early = HOLES & (torch.arange(LENGTH) < 4)
        if not net.attn_layers.sees_future:
            assert_close(later[early].float(), known[early].float(), 'later tokens', 4e-3)
        error = (one_by_one[HOLES].float() - known[HOLES].float()).norm() / known[HOLES].float().norm()
        assert error < bound, f'from a cache off by {error:.3f} of the norm'


@each(share=16)
def test_float16(case):
    float16_law(case)


# on another device

GPU = 'cuda'
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU')


@pytest.mark.slow
@NO_GPU
@each(CASES, every=True)
def test_gpu_equals_cpu(case):
    """Outputs and gradients, and token by token from a cache."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    there = copy.deepcopy(net).to(GPU)
    moved = {name: each_tensor(lambda t: t.to(GPU), value) for name, value in inputs.items()}
    assert_close(run(there, moved).cpu(), run(net, inputs))
    wanted = gradients(net, inputs)
    for name, grad in gradients(there, moved).items():
        if grad is not None:
            assert_close(grad.cpu(), wanted[name], f'gradient of {name}')
    if net.can_cache_kv:
        assert_close(steps(there, moved, (3, 1, 3))[0].cpu(), per_token(net, inputs))


# 11 one compiled graph


def compiled(case, backend):
    """The model of a case, compiled and not, with inputs."""
    torch._dynamo.reset()
    net = copy.deepcopy(model_of(case))
    return torch.compile(net, fullgraph=True, backend=backend), net, inputs_for(net, case)


# `test_compile.py` trains and decodes with the first case of every feature
@pytest.mark.nightly
@each([case for case in ALL if case.name not in FIRST], every=True)
def test_one_compiled_graph(case):
    graph, net, inputs = compiled(case, 'eager')
    assert_close(as_one(net, graph(**inputs)), run(net, inputs))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which('g++') is None, reason='generated code needs a C++ compiler')
@pytest.mark.parametrize('name', ['plain', 'rotary_pos_emb', 'attn_sparse_topk', 'gate_residual'])
def test_generated_code(name):
    """Forward and backward through one graph; every gradient is that of the plain step."""
    graph, net, inputs = compiled(BY_NAME[name], 'inductor')
    wanted = gradients(net, inputs)
    weighted(as_one(net, graph(**inputs))).backward()
    for parameter_name, parameter in net.named_parameters():
        if wanted[parameter_name] is not None:
            assert_close(parameter.grad, wanted[parameter_name], f'gradient of {parameter_name}')


# 12 pairs

# every flag, and the arguments that other flags could trip over
PAIRED = [
    case
    for case in (*FLAG_CASES, *ARGUMENT_CASES)
    if case.flag and case.wrapper is TransformerWrapper and case.kind is not AttentionLayers
]


def pair_law(first, second):
    """Any two flags run, or are refused by name: the words, or None."""
    both = first.together(second)
    try:
        net = build(both)
        inputs = as_dtype(inputs_for(net, both), torch.float32)
        out = run(net, inputs)
        grads = gradients(net, inputs)
    except ValueError as error:
        known = is_known(str(error), both.keywords, in_call=True)
        return None if known else f'{both}: {type(error).__name__} is no known refusal: {error}'
    except Exception as error:  # whatever else it is, it is no refusal
        return f'{both}: {type(error).__name__}: {error}'
    finite = out.isfinite().all() and all(g.isfinite().all() for g in grads.values() if g is not None)
    return None if finite else f'{both}: not finite'


def partners(case):
    return [other for other in PAIRED[PAIRED.index(case) + 1 :] if other.flag != case.flag]


@each(PAIRED, whole=True, share=4)
def test_some_pairs_run_or_are_refused(case):
    others = partners(case)
    chosen = random.Random(case.name).sample(others, min(len(others), 2))
    assert not list(filter(None, (pair_law(case, other) for other in chosen)))


@pytest.mark.nightly
@each(PAIRED, every=True, whole=True)
def test_every_pair_runs_or_is_refused(case):
    assert not list(filter(None, (pair_law(case, other) for other in partners(case))))


# all laws, for random combinations

COMBINED = [*PAIRED, *(case for case in INPUT_CASES if case.wrapper is TransformerWrapper)]


def all_laws(case):
    """What holds for each flag alone, for a combination."""
    net = model_of(case)
    grads = gradients(net, inputs_for(net, case))
    assert all(grad.isfinite().all() for grad in grads.values() if grad is not None)
    if net.attn_layers.causal:
        causal_law(case)
    hidden_content_law(case, case.kind)
    padding_law(case, case.kind, 0, 2)
    padding_law(case, case.kind, 2, 0)
    batch_law(case)
    cache_law(case)
    padded_cache_law(case)
    branching_law(case)
    if 'attn_flash' not in case.stack:
        kernels_law(case)
    config_law(case)
    copies_law(case)


combinations = st.lists(st.sampled_from([case.name for case in COMBINED]), min_size=2, max_size=6, unique=True)
kinds = st.sampled_from([Decoder, Decoder, Encoder])


def combined(names, kind):
    """As many of the cases as go with one another; what is refused beside those before it is left out."""
    whole = Case('plain').of_kind(kind)
    for case in map(BY_NAME.get, names):
        longer = whole.together(case).of_kind(kind)
        whole = whole if refusal(longer) else longer
    return whole


@pytest.mark.costly
@settings(max_examples=6, derandomize=True)
@given(names=combinations, kind=kinds)
def test_random_combinations(names, kind):
    all_laws(combined(names, kind))


@pytest.mark.parametrize(
    'names',
    [
        ('rotary_xpos', 'attn_num_mem_kv'),
        ('use_adaptive_layerscale', 'pos, memory tokens'),
        ('residual_attn', 'attn_pre_scale_post_talking_heads'),
        ('num_memory_tokens', 'looped'),
        ('prepend_embeds', 'max_looped_steps'),
        ('looped', 'only_cross=True'),
        ('to_logits', 'return_only_embed=True'),
        ('attn_sparse_topk', 'memory_tokens_interspersed_every'),
        ('attn_adaptive_span=dynamic', 'attn_sparse_pattern'),
        ('attn_adaptive_span=dynamic', 'attn_cluster'),
        ('xl_rel_segments', 'rotary_pos_emb'),
        ('per_layer_abs_pos_emb', 'pos'),
    ],
    ids=' + '.join,
)
def test_combinations_that_failed_once(names):
    case = functools.reduce(lambda one, other: one.together(other), map(BY_NAME.get, names))
    assert refusal(case) is None
    all_laws(case)


@pytest.mark.parametrize(
    ('names', 'words'),
    [
        (('residual_attn', 'attn_num_mem_kv=(1,3)'), '`residual_attn` all layers need equally many'),
        (('rotary_pos_emb, given', 'prepend_embeds'), '`rotary_pos_emb` got angles for 7 positions, there are 9 keys'),
        (('emb_dim=10', 'token_emb'), '`token_emb` must have width 10, got vectors of width 16'),
        (
            ('heads=2', "rel_pos_kwargs={'slopes': [0.5, 1.0, 1.5, 2.0]}"),
            '`slopes` of `rel_pos_kwargs` must have 2 numbers',
        ),
    ],
    ids=lambda names: ' + '.join(names) if isinstance(names, tuple) else '',
)
def test_combinations_that_failed_once_are_refused(names, words):
    assert words in refusal(functools.reduce(lambda one, other: one.together(other), map(BY_NAME.get, names)))


@pytest.mark.nightly
@pytest.mark.parametrize('part', range(24))
def test_many_random_combinations(part):
    """The same ones every time, so that a merge is judged by its own; others with HYPOTHESIS_PROFILE=explore."""

    @settings(max_examples=25)
    @given(names=combinations, kind=kinds)
    def hold(names, kind):
        all_laws(combined(names, kind))

    (hold if os.environ.get('HYPOTHESIS_PROFILE') == 'explore' else seed(part)(hold))()
