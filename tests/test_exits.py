"""Tokens that leave a stack after a block: what goes on is computed alone, and comes to what all together give."""

import pytest
import torch
from law_cases import CASES, CROSS_CASES, inputs_for, model_of, per_token, randomise, run, tokens, weighted
from oracles import assert_close
from refusals import refusal

from x_transformers import Decoder, TransformerWrapper
from x_transformers.features import exits as room
from x_transformers.generation.exits import ByDepth, BySequence

DEPTHS = torch.tensor([[3, 1, 2, 1, 3, 1, 1], [1, 1, 1, 1, 1, 1, 1], [2, 1, 1, 2, 2, 1, 2]])
QUICK = {'plain', 'cross_attend', 'rotary_pos_emb', 'alibi_pos_bias', 'num_memory_tokens', 'use_adaptive_layernorm'}
SOME = [
    pytest.param(case, marks=() if case.name in QUICK else pytest.mark.nightly)
    for case in (*CASES, *CROSS_CASES)
    if case.wrapper is TransformerWrapper
]


def with_exits(case):
    """The model of a case with three blocks, and its inputs, with depths for its tokens."""
    case = case.with_keywords(depth=3)
    if refusal(case):
        pytest.skip('refused')
    net = model_of(case)
    inputs = {**inputs_for(net, case), 'exits': ByDepth(DEPTHS)}
    stack = net.attn_layers.features.find(room.ExitsInStack)
    if stack.refusal() or 'memory_tokens_interspersed_every' in case.model:
        with pytest.raises(ValueError, match='`exits` cannot be combined with '):
            net(**inputs)
        pytest.skip('refused')
    return net, inputs


@pytest.mark.parametrize('case', SOME, ids=str)
def test_those_that_go_on_and_all(case, monkeypatch):
    """Rows and tokens that have left are not computed: the same output and gradients, whatever else is on."""
    (net, inputs), found = with_exits(case), []
    for whole in (False, True):
        monkeypatch.setattr(room, 'is_transformed', lambda whole=whole: whole)
        torch.manual_seed(0)
        out = net(**inputs)
        loss = sum(weighted(t) for t in (out if isinstance(out, tuple) else (out,)))
        found.append((loss, torch.autograd.grad(loss, [*net.parameters()], allow_unused=True)))
    (some, grads), (every, others) = found
    assert_close(some, every)
    for grad, other in zip(grads, others, strict=True):
        if grad is not None and other is not None:
            assert_close(grad, other, 'gradient')


@pytest.mark.parametrize('case', SOME, ids=str)
def test_with_a_cache(case):
    """Token by token, and from a cache that was cut: later tokens read what those that have left kept for them."""
    net, inputs = with_exits(case)
    if not net.can_cache_kv or not net.attn_layers.causal or getattr(net, 'looped', False):
        pytest.skip('no cache')
    start = torch.tensor([0, 2, 3])
    for options in ({}, {'seq_start_pos': start}):
        real = torch.arange(7) >= (start[:, None] if options else torch.zeros(3, 1))
        if options and not net.can_pad_left:
            continue
        whole, trace, outs = per_token(net, inputs, **options), None, []
        for begin, end in ((0, 3), (3, 4), (4, 5), (5, 7)):
            part = tokens(inputs, begin, end, only_new=begin > 0)
            out, trace = run(net, part, return_intermediates=True, cache=trace, input_not_include_cache=True, **options)
            outs.append(out[:, out.shape[1] - (end - begin) :])
        out = torch.cat(outs, dim=1)
        assert_close(out[real], whole[real])
        depth = trace.cache.states['exit_depth'].tensor[:, -7:, 0]
        if not trace.cache.num_prefix_tokens:  # which stands behind padding
            assert depth.equal(
                DEPTHS.clamp(max=len(net.attn_layers.layers_execute_order) // net.attn_layers.len_default_block).where(
                    real, 0
                )
            )


def small(**model):
    stack = Decoder(dim=16, depth=3, heads=3, attn_dim_head=8)
    return randomise(TransformerWrapper(num_tokens=20, max_seq_len=12, attn_layers=stack, **model).double())


@pytest.mark.parametrize('shape', [(3, 3), (3, 3, 3), (3, 3, 3, 3)], ids=str)
def test_masks_of_pairs_are_no_rows(shape, monkeypatch):
    """As many tokens as heads as rows: what counts which is known by what it is."""
    net, ids, found = small(), torch.randint(0, 20, (3, 3)), []
    mask = torch.rand(shape) < 0.7
    for whole in (False, True):
        monkeypatch.setattr(room, 'is_transformed', lambda whole=whole: whole)
        found.append(net(ids, attn_mask=mask, exits=ByDepth(DEPTHS[:, :3])))
    assert_close(*found)


def test_a_cache_that_is_read_alone():
    """Nothing is kept for later: rows that go on still find the past of their layers."""
    net, ids = small(), torch.randint(0, 20, (3, 7))
    exits = ByDepth(DEPTHS)
    whole = net(ids, exits=exits)
    for start in (4, 5, 6):
        _, trace = net(ids[:, :start], return_intermediates=True, exits=exits)
        out = net(ids[:, start:], cache=trace, input_not_include_cache=True, exits=exits)
        assert_close(out, whole[:, start:])


def test_the_depths_are_part_of_the_cache(tmp_path):
    """Rows that are exchanged, repeated, taken back and saved go on as if they had been read so."""
    net, ids = small(), torch.randint(0, 20, (3, 7))
    whole = net(ids, exits=ByDepth(DEPTHS))
    _, trace = net(ids[:, :5], return_intermediates=True, exits=ByDepth(DEPTHS))
    trace.cache.save(tmp_path / 'cache')
    order = torch.tensor([2, 0, 2, 1])
    ways = {
        'reorder': (trace.cache.reorder(order), order, 5),
        'expand': (trace.cache.expand(3), torch.arange(3).repeat_interleave(3), 5),
        'crop': (trace.cache.crop(3), torch.arange(3), 3),
        'load': (type(trace.cache).load(tmp_path / 'cache'), torch.arange(3), 5),
    }
    for name, (cache, rows, start) in ways.items():
        options = dict(cache=cache, input_not_include_cache=True, return_intermediates=True)
        out, after = net(ids[rows, start:], exits=ByDepth(DEPTHS[rows]), **options)
        assert_close(out, whole[rows, start:], name)
        assert torch.equal(after.cache.states['exit_depth'].tensor[..., 0], DEPTHS[rows]), name
    _, plain = net(ids[:, :5], return_intermediates=True)
    with pytest.raises(ValueError, match='`cache` holds no exit_depth'):
        net(ids[:, 5:], exits=ByDepth(DEPTHS), cache=plain, input_not_include_cache=True)


def test_tokens_in_front_stay_to_the_end():
    net, ids, log = small(num_memory_tokens=2), torch.randint(0, 20, (3, 7)), []
    exits = ByDepth(torch.ones_like(DEPTHS))
    exits.log = log
    out = net(ids, exits=exits)
    start = torch.tensor([0, 2, 0])
    net(ids, exits=exits, seq_start_pos=start)
    assert log[0].tolist() == [[3, 3, 1, 1, 1, 1, 1, 1, 1]] * 3
    assert log[1].tolist() == [log[0][0].tolist(), [0, 0, 3, 3, 1, 1, 1, 1, 1], log[0][0].tolist()]
    assert_close(out, net(ids, layers_execute_order=(0, 1)))  # of which the others know nothing


def test_a_sequence_leaves_by_its_real_context():
    context = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    found = [
        BySequence(torch.nn.Identity()).bound({'context': context, 'context_mask': one}, 0, None).depths.tolist()
        for one in (mask, None)
    ]
    assert found == [[2], [3]]
