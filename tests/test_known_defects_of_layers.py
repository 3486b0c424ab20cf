"""Where a reference implementation of the stack of layers goes wrong (W), fails (F) or is odd (O): one case per number.

Each shows what is right. Where an oddity is kept, so that checkpoints and numbers agree with it, the case says why.
"""

import math
import random
import weakref

import pytest
import torch
import torch.nn.functional as F
from defects import (
    HOLES,
    Known,
    X,
    check_causal,
    check_decoding,
    refused,
    stack,
    warned,
)
from oracles import assert_close, randn, randomised

from x_transformers import Decoder, Encoder, FeedForward, PrefixDecoder
from x_transformers.x_transformers import PolarEmbedding, ScaledSinusoidalEmbedding

known = Known()
START = torch.tensor([0, 2])
FRONT = [randn(2, 3, 24, seed=6), randn(2, 3, 24, seed=7)]  # memories of two layers


def attention_pool(**options):
    from x_transformers import AttentionPool

    return randomised(AttentionPool(**{**dict(dim=24, heads=2, dim_head=8), **options}))


def intermediates(net, **inputs):
    return net(X, return_hiddens=True, **inputs)[1]


def pairs(net, kinds='a', **inputs):
    found = intermediates(net, **inputs).attn_intermediates
    return [inter.cached_kv for inter in found if inter.layer_type in kinds]


# 7.1 wrong results


@known('W15')
def causal_of_a_call_reaches_the_fused_kernel():
    fused, eager = (stack(attn_flash=flash) for flash in (True, False))
    assert_close(fused(X, causal=False), eager(X, causal=False))
    assert_close(fused(X, causal=False), stack(Encoder)(X))


@known('W16')
def a_deep_pool_takes_attention_flags():
    pool = attention_pool(depth=2, attn_kwargs=dict(qk_norm=True, qk_norm_dim_scale=True))
    assert sum('qk_norm_q_scale' in name for name in pool.state_dict()) == 2


@known('W18')
def a_pool_of_one_head_has_the_width_of_the_model():
    assert attention_pool(heads=1)(randn(2, 5, 24)).shape == (2, 1, 24)


def check_clipping(net, **inputs):
    """The first layer's logits are bounded where they were above, and every head is left alone where they were not."""
    before = intermediates(net, **inputs)
    largest = before.attn_intermediates[0].pre_softmax_attn.amax(dim=(0, 2, 3))
    bound = largest.max().item() / 2
    net.attn_qk_clip_(before, tau=bound)
    after = intermediates(net, **inputs).attn_intermediates[0].pre_softmax_attn.amax(dim=(0, 2, 3))
    assert_close(after, largest.clamp(max=bound))


@known('W20')
def clipping_scales_heads_not_inputs():
    for shape in (dict(attn_dim_head=6), dict(attn_dim_head=8), dict(attn_kv_heads=2), dict(cross_attend=True)):
        check_clipping(stack(Encoder, **shape), **(dict(context=X) if 'cross_attend' in shape else {}))
    net = stack()
    with torch.no_grad():
        net.layers[0][1].to_q.weight.copy_(-net.layers[0][1].to_k.weight)
    net.attn_qk_clip_(net(X[:, :1], return_hiddens=True)[1], tau=1.0)  # all logits are negative
    assert torch.equal(net.layers[0][1].to_q.weight, -net.layers[0][1].to_k.weight)


@known('W21')
def a_mask_of_new_tokens_alone_is_refused():
    net = stack()
    cache = net(X[:, :5], return_hiddens=True)[1]
    refused(lambda: net(X, cache=cache, mask=HOLES[:, 5:]), 'mask', '6')


# 7.2 failures


@known('F1')
def polar_shifts_can_start_at_random():
    bias = Decoder(dim=24, depth=1, heads=8, polar_pos_emb=True, polar_bias_uniform_init=True, verbose=False)
    bias = bias.polar_pos_emb.learned_bias
    assert -2 * math.pi <= bias.min() < -4 and -2 < bias.max() <= 0
    assert PolarEmbedding(8, 4).learned_bias.abs().max() == 0


@known('F4')
def initial_values_reach_every_projection_of_a_stack():
    for shape in (dict(heads=4, attn_on_attn=True), dict(heads=1, attn_dim_head=24)):
        sizes = dict(dim=24, depth=2, verbose=False, **shape)
        net = Decoder(zero_init_branch_output=True, pre_norm_has_final_norm=False, **sizes)
        weights = [p for name, p in net.named_parameters() if 'to_out' in name or '.ff.2.' in name]
        assert weights and not any(weight.any() for weight in weights)
        net = Decoder(depth_scale_residual=True, **sizes)
        for index in range(4):
            weights = [p for n, p in net.layers[index].named_parameters() if 'to_out' in n or 'ff.2.weight' in n]
            assert len(weights) == (index % 2 == 1 or 'attn_on_attn' in shape)
            for weight in weights:
                assert abs(weight.std() * (2 * weight.shape[1] * (index // 2 + 1)) ** 0.5 - 1) < 0.15


@known('F7')
def positions_given_by_the_user_stand_behind_memories():
    net = stack(rotary_pos_emb=True)
    assert_close(net(X, mems=FRONT, pos=torch.arange(6)), net(X, mems=FRONT))


@known('F9')
def odd_widths_of_rotation_turn_one_feature_more_or_are_refused():
    assert stack(rotary_pos_emb=True, attn_dim_head=6).rotary_pos_emb.inv_freq.shape == (2,)
    check_causal(stack(rotary_pos_emb=True, attn_dim_head=6))
    refused(lambda: stack(rotary_pos_emb=True, rotary_emb_dim=5, attn_dim_head=5), 'rotary', 'pairs')


@known('F10')
def heads_of_single_layers_have_their_width_unless_they_share_positions():
    net = stack(attn_dim_head=(8, 16))
    assert [net.layers[index][1].to_q.out_features for index in (0, 2)] == [32, 64]
    check_decoding(net)
    refused(lambda: stack(attn_dim_head=(8, 16), rotary_pos_emb=True), 'attn_dim_head')


@known('F19')
def masks_of_keys_are_extended_over_memories():
    net, longer = stack(), F.pad(HOLES, (3, 0), value=True)
    masked = net(X, mems=FRONT, self_attn_kv_mask=longer)
    assert_close(net(X, mems=FRONT, self_attn_kv_mask=HOLES), masked)
    started = net(X, mems=FRONT, seq_start_pos=START)
    begun = torch.arange(-3, 6) >= START[:, None]
    begun[:, :3] = True
    wanted = net(X, mems=FRONT, self_attn_kv_mask=begun)
    assert_close(started[0], net(X, mems=FRONT)[0])
    assert_close(started[1, 2:], wanted[1, 2:])


@known('F21')
def sinusoids_take_positions_of_their_own_for_each_row():
    module = randomised(ScaledSinusoidalEmbedding(24))
    rows = torch.arange(6) * torch.tensor([[1], [3]])
    assert_close(module(X, pos=rows), torch.stack([module(X, pos=pos) for pos in rows]))
    begun = (torch.arange(6) - START[:, None]).clamp(min=0)
    assert_close(module(X, seq_start_pos=START), module(X, pos=begun))


@known('F24')
def clipping_reaches_wrapped_and_tied_branches():
    wrapped = dict(use_layerscale=True), dict(shift_tokens=1), dict(scale_residual=0.5), dict(macaron=True)
    for flags in wrapped:
        net = stack(Encoder, **flags)
        at = next(i for i, inter in enumerate(net.layer_types) if inter == 'a')
        assert at == ('macaron' in flags)
        check_clipping(net)
    net = stack(weight_tie_layers=True)
    trace, before = intermediates(net), net.layers[0][1].to_q.weight.detach().clone()
    largest = torch.stack([t.pre_softmax_attn.amax(dim=(0, 2, 3)) for t in trace.attn_intermediates]).amax(dim=0)
    net.attn_qk_clip_(trace, tau=largest.max().item() / 2)
    factor = (largest.max() / 2 / largest).clamp(max=1).sqrt().repeat_interleave(8)
    assert_close(net.layers[0][1].to_q.weight, before * factor[:, None])


@known('F25')
def keys_of_another_stack_are_taken_in_every_form():
    giver, context = stack(cross_attend=True), randn(2, 5, 24)
    trace, own = intermediates(giver, context=context), pairs(giver, context=context)
    assert len(own) == 2
    for flags in ({}, dict(alibi_pos_bias=True)):
        net = stack(**flags)
        for to_top in (True, False):
            out = net(X, self_attn_additional_kv=own, route_additional_kv_to_top=to_top)
            assert (out - net(X)).abs().max() > 1e-3
            for form in (tuple(own), trace):
                assert_close(net(X, self_attn_additional_kv=form, route_additional_kv_to_top=to_top), out)
        check_causal(net, self_attn_additional_kv=own)


@known('F27')
def masks_and_biases_follow_memories_and_caches():
    net = stack(PrefixDecoder)
    plain = stack()
    assert_close(net(X, mems=FRONT), plain(X, mems=FRONT))
    # a prefix that grows would change what was cached
    cache = plain(X[:, :5], return_hiddens=True)[1]
    refused(lambda: net(X, cache=cache), 'cache', 'causal')
    bias = randn(4, 6, 6)
    check_decoding(plain, attn_bias=lambda stop: bias[:, :stop, :stop])


# 7.3 oddities


@known('O1')
def residual_logits_add_up_biases_but_not_what_is_hidden():
    # kept: the bias of the first layer enters layer l l + 1 times, as in models that were trained so
    net = stack(depth=3, residual_attn=True, alibi_pos_bias=True)
    with torch.no_grad():
        for index in (0, 2, 4):
            net.layers[index][1].to_q.weight.zero_()
    bias = net.rel_pos(6, 6)
    earlier = torch.ones(6, 6).tril().bool()
    for count, inter in enumerate(intermediates(net).attn_intermediates, start=1):
        assert_close(inter.pre_softmax_attn[..., earlier], (bias * count)[..., earlier].expand(2, -1, -1))
        # right: hidden keys hand on no logit, which would grow beyond all numbers
        assert (inter.qk_similarities[..., ~earlier] > -100).all()


@known('O2')
def gated_streams_are_normed_after_the_residual():
    # kept: the norms are in the checkpoints
    net = Decoder(dim=24, depth=1, heads=4, gated_multi_residual=True, num_residual_streams=2, verbose=False,
                  residual_fn_kwargs=dict(read_gate_rank=4))  # fmt: skip
    hiddens = net(X.float() * 50, return_hiddens=True)[1].layer_hiddens
    assert_close(hiddens[-1].std(dim=-1, correction=0), torch.ones(4, 6), tolerance=1e-3)
    assert 'layers.0.0.2.gamma' in net.state_dict() and 'layers.0.0.0.gamma' not in net.state_dict()


@known('O3')
def streams_are_written_with_weights_above_one_at_first():
    # kept: the weight is squashed twice, and models were trained so
    net = Decoder(dim=24, depth=1, heads=4, num_residual_streams=2, pre_norm_has_final_norm=False, verbose=False)
    with torch.no_grad():
        net.layers[1][1].ff[2].weight.zero_()
        net.layers[1][1].ff[2].bias.zero_()
    given = []
    net.layers[0][1].register_forward_hook(lambda module, args, out: given.append(out))
    given_out = net(X.float()) - 2 * X.float()  # the mix of the streams keeps their sum
    (out,) = (out[0] if isinstance(out, tuple) else out for out in given)
    assert_close(given_out, 2 * 2 * torch.tensor(1.01).sigmoid() * out, tolerance=1e-3)


@known('O4')
def a_number_scales_the_residual_and_the_branches():
    # kept: checkpoints hold the scale of the residual
    net, plain = stack(scale_residual=0.5, only_attn=True, depth=1), stack(only_attn=True, depth=1)
    weights = {name.replace('.1.fn.', '.1.'): t for name, t in net.state_dict().items()}
    plain.load_state_dict({name: t for name, t in weights.items() if 'residual_scale' not in name})
    with torch.no_grad():
        net.layers[0][2].residual_scale.fill_(1.0)
        plain.layers[0][1].to_out.weight *= 0.5
    assert_close(net(X), plain(X))
    # right: nothing is silenced by a number that looks like False
    refused(lambda: stack(depth_scale_residual=0), 'depth_scale_residual')


@known('O5')
def clamps_without_effect_are_said_and_a_gated_unit_keeps_its_bias():
    # kept: checkpoints hold the bias
    assert 'ff.0.proj.bias' in FeedForward(24, glu=True, no_bias=True).state_dict()
    warned(lambda: FeedForward(24, glu=True, softclamp_value=2.0), 'softclamp_value')
    warned(lambda: FeedForward(24, glu_softclamp=True), 'glu_softclamp')


@known('O6')
def norms_of_a_dynamic_bias_are_of_two_kinds():
    # kept: checkpoints hold them by these names
    net = stack(dynamic_pos_bias=True, dynamic_pos_bias_norm=True)
    norms = {name for name in net.state_dict() if name.split('.')[-2] == '1'}
    assert norms == {'rel_pos.mlp.0.1.gamma', 'rel_pos.mlp.1.1.weight', 'rel_pos.mlp.1.1.bias'}


@known('O7')
def a_block_closes_at_the_last_layer_counted_in_stored_ones():
    # kept: callers index the list
    net = stack()
    out, trace = net(X, return_hiddens=True, layers_execute_order=(0, 1, 2))
    assert len(trace.block_hiddens) == 1
    assert_close(trace.block_hiddens[-1], out)


@known('O8')
def tied_layers_are_counted_as_stored():
    net = stack(depth=3, weight_tie_layers=True)
    # kept: layers and the depth are counted as stored, hidden states as executed
    assert net.num_attn_layers == net.depth == 1
    assert len(intermediates(net).hiddens) == 3


@known('O9')
def hidden_states_nobody_asks_for_are_not_kept():
    net, found = stack(depth=3), []
    net.layers[0][2].register_forward_hook(lambda module, args, out: found.append(weakref.ref(out)))
    net.layers[5][2].register_forward_hook(lambda module, args, out: found.append(found[0]()))
    with torch.no_grad():
        net(X)
    assert found[1] is None


@known('O10')
def layers_are_left_out_by_torchs_own_random_numbers():
    net, outs = stack(depth=4, layer_dropout=0.5).train(), []
    for seed in range(2):
        random.seed(seed)
        torch.manual_seed(0)
        outs.append(net(X))
    assert_close(*outs)


@known('O11')
def forget_gates_add_to_a_dynamic_bias():
    net = stack(attn_data_dependent_alibi=True, dynamic_pos_bias=True)
    before = net(X)
    with torch.no_grad():
        net.rel_pos.mlp[0][0].weight += 1
    assert (net(X) - before).abs().max() > 1e-3


@known('O12')
def each_stream_is_bounded_before_the_sum():
    # kept: it is part of the numbers of trained models
    net = stack(depth=1, only_attn=True, num_residual_streams=2, softclamp_output=True, softclamp_output_value=2.0,
                pre_norm_has_final_norm=False)  # fmt: skip
    streams = intermediates(net).layer_hiddens[-1]
    assert streams.shape == (4, 6, 24)
    assert_close(net(X), (2 * (streams / 2).tanh()).unflatten(0, (2, 2)).sum(dim=1))


@known('O13')
def buckets_are_checked_only_where_there_are_some():
    warned(lambda: stack(rel_pos_num_buckets=64, rel_pos_max_distance=16), 'rel_pos_num_buckets')
    refused(lambda: stack(rel_pos_bias=True, rel_pos_num_buckets=64, rel_pos_max_distance=32), 'rel_pos_num_buckets')


@known('O14')
def positions_of_a_context_need_rotations():
    net, context = stack(cross_attend=True), randn(2, 5, 24)
    refused(lambda: net(X, context=context, context_pos=torch.arange(5)), 'context_pos')


@pytest.mark.parametrize('number', known)
def test_known_defect_of_layers(number):
    known[number]()


# Held by laws (`law_cases.py` has their rows) and by tests of the feature.
ELSEWHERE = (
    'F2 F3 F5 F6 F8 F11 F12 F13 F14 F15 F16 F17 F18 F20 F22 F23 F26 F28 F29 F30 F31 W1 W2 W3 W4 W5 W6 W7 '
    'W8 W9 W10 W11 W12 W13 W14 W17 W19'
).split()


def test_no_number_is_missing():
    last = {'W': 21, 'F': 31, 'O': 14}
    assert {*known, *ELSEWHERE} == {
        f'{letter}{number}' for letter, count in last.items() for number in range(1, count + 1)
    }
