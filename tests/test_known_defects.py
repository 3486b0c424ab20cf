"""Where a reference implementation of attention goes wrong or is odd: one case per number, showing what is right.

Where an oddity is kept, so that checkpoints and numbers agree with it, the case says why.
"""

import math

import oracles
import pytest
import torch
import torch.nn.functional as F
from defects import (
    HOLES,
    LEFT,
    Known,
    X,
    attention,
    check_causal,
    check_decoding,
    check_finite_gradients,
    check_rows,
    decoded,
    like,
    refused,
    stack,
)
from oracles import assert_close, merge_heads, randn, randomised, split_heads
from torch import nn

from x_transformers import Attention, AutoregressiveWrapper, Encoder, TransformerWrapper
from x_transformers.x_transformers import AlibiPositionalBias, PolarEmbedding, RotaryEmbedding

known = Known()
SIZES = dict(heads=4, dim_head=8)
MEM = randn(2, 3, 24, seed=5)
LATER = torch.ones(6, 6).triu(1).bool()


def single(layer, x, change):
    """The output for sequences of one token, whose values pass unweighted: changed, shared out to heads, projected."""
    weights = layer.state_dict()
    values = change(split_heads(x @ weights['to_v.weight'].T, layer.kv_heads), weights)
    return merge_heads(values.repeat(1, 4 // layer.kv_heads, 1, 1)) @ weights['to_out.weight'].T


def dealt_out(weights):
    """The weights with a key head for each of 4 query heads, in place of 2."""
    repeated = {f'to_{name}.weight': weights[f'to_{name}.weight'].repeat(2, 1) for name in 'kv'}
    return {**weights, **repeated}


# orthogonal projection


@known('2')
def the_projection_per_head_is_per_head():
    for flag, heads in (('orthog_projected_values', 1), ('orthog_projected_values_per_head', 4)):
        out, trace = attention(project_out=False, **{flag: True})(X, return_intermediates=True)
        along = split_heads(out, heads) * split_heads(merge_heads(trace.values), heads)
        assert_close(along.sum(dim=-1), torch.zeros(2, heads, 6))


@known('3')
def the_projection_uses_the_values_of_the_queries():
    layer = attention(causal=True, orthog_projected_values=True)
    assert_close(layer(X[:, 3:], mem=X[:, :3]), layer(X)[:, 3:])
    check_decoding(attention(causal=True, orthog_projected_values=True, use_latent_kv=True, dim_latent_kv=6))
    refused(lambda: layer(X, randn(2, 5, 24)), 'orthog_projected_values')


# what a query sees


@known('4')
def a_row_that_sees_nothing_is_zero_on_every_kernel():
    for flash in (True, False):
        layer = attention(causal=True, flash=flash)
        out = layer(X, context_mask=LEFT)
        assert not out[0, :2].any()
        check_causal(layer, context_mask=LEFT)


@known('5')
def inverted_attention_is_neither_causal_nor_cached():
    refused(lambda: attention(causal=True, inverted_attention=True), 'inverted_attention', 'causal')
    assert not attention(inverted_attention=True).can_cache_kv


@known('9')
def the_fused_kernel_honours_causal_of_the_call():
    for own in (True, False):
        fused, eager = (attention(causal=own, flash=flash) for flash in (True, False))
        assert_close(fused(X, causal=not own), eager(X, causal=not own))
        assert_close(fused(X, causal=not own), attention(causal=not own, flash=True)(X))


@known('10')
def the_fused_kernel_refuses_what_it_cannot_do():
    for flags in (dict(gumbel_softmax=True), dict(custom_attn_fn=torch.sigmoid)):
        refused(lambda flags=flags: Attention(24, flash=True, **flags), 'flash', next(iter(flags)))


@known('11')
def a_short_context_ends_with_the_queries():
    context = randn(2, 4, 24)
    for flash in (True, False):
        layer = attention(causal=True, flash=flash)
        out = layer(X, context)
        assert not out[:, :2].any()
        other = torch.cat((context[:, :-1], randn(2, 1, 24, seed=3)), dim=1)
        assert_close(layer(X, other)[:, :-1], out[:, :-1])
        assert (layer(X, other)[:, -1] != out[:, -1]).any()


@known('39')
def a_mask_with_a_cache_covers_all_keys():
    layer = attention(causal=True)
    for count in (1, 2):
        cache = layer(X[:, :-count], return_intermediates=True)[1]
        new = HOLES[:, -count:]
        refused(lambda cache=cache, new=new, n=count: layer(X[:, -n:], mask=new, cache=cache), 'mask', '(2, 6)')


@known('40')
def padded_queries_give_zero_with_a_cache_too():
    layer = attention(causal=True)
    check_decoding(layer, mask=lambda stop: HOLES[:, :stop])
    assert not decoded(layer, mask=lambda stop: HOLES[:, :stop])[~HOLES].any()


@known('41')
def a_mask_of_the_tokens_is_extended_over_memories():
    layer, longer = attention(causal=True), F.pad(LEFT, (3, 0), value=True)
    assert_close(layer(X, mem=MEM, context_mask=LEFT), layer(X, mem=MEM, context_mask=longer))


@known('44')
def a_window_is_not_for_a_context():
    refused(lambda: attention(max_attend_past=2)(X, randn(2, 5, 24)), 'max_attend_past', 'context')


@known('45')
def inverted_attention_of_a_stack_acts_or_is_refused():
    refused(lambda: stack(attn_inverted_attention=True), 'inverted_attention')
    assert (stack(Encoder, attn_inverted_attention=True)(X) - stack(Encoder)(X)).abs().max() > 1e-3


@known('46')
def selective_attention_takes_no_cache():
    layer = attention(causal=True, selective=True)
    assert not layer.can_cache_kv
    cache = layer(X[:, :5], return_intermediates=True)[1]
    refused(lambda: layer(X[:, 5:], cache=cache), 'cache')


@known('49')
def attention_maps_are_zero_where_nothing_is_seen():
    for flags in ({}, dict(cog_signed=True), dict(hard=True), dict(sparse_topk=2)):
        layer = attention(causal=True, flash=False, **flags)
        maps = layer(X, context_mask=LEFT, return_intermediates=True)[1].post_softmax_attn
        assert not maps[0, :, :2].any() and maps[0, :, 2:].any()


@known('51')
def masks_of_whole_numbers_are_cast():
    layer = attention()
    assert_close(layer(X, mask=HOLES.long()), layer(X, mask=HOLES))
    # not cast: additive masks of 0 and -inf would be read the wrong way round
    refused(lambda: layer(X, mask=HOLES.double()), 'mask', 'boolean')


# biases


@known('7')
def forget_gates_know_memories_further_keys_and_views():
    for per_row in (False, True):
        flags = dict(causal=True, data_dependent_alibi=True, data_dependent_alibi_per_row=per_row)
        layer = attention(**flags)
        assert_close(layer(X[:, 3:], mem=X[:, :3]), layer(X)[:, 3:])
        nothing = torch.zeros(2, 4, 1, 8).double()
        assert_close(layer(X, additional_key_values=(nothing, nothing)), like(layer, add_zero_kv=True, **flags)(X))
        views = like(layer, qkv_receive_diff_residuals=True, **flags)
        assert_close(views(X.expand(3, -1, -1, -1)), layer(X))
        refused(lambda layer=layer: layer(X, randn(2, 5, 24)), 'data_dependent_alibi', 'context')


@known('8')
def forget_gates_add_to_other_biases():
    for per_row in (False, True):
        layer = attention(causal=True, data_dependent_alibi=True, data_dependent_alibi_per_row=per_row)
        own, bias = layer.data_dependent_alibi(X), randn(4, 6, 6)
        assert_close(layer(X, attn_bias=bias), like(layer, causal=True)(X, attn_bias=own + bias))


def distance_bias(weights, x, reach):
    """What `use_rel_proj_pos_bias` adds:  b h i j."""
    mix = split_heads(oracles.linear(weights, 'rel_proj_pos_bias.to_distance_weights.0', x), 4)
    curves = mix @ weights['rel_proj_pos_bias.distance_bank']
    behind = torch.arange(6)[:, None] - torch.arange(6)
    bias = curves.gather(-1, behind.clamp(0, reach - 1).expand(2, 4, 6, 6))
    return bias.masked_fill((behind < 0) | (behind >= reach), 0.0)


@known('20')
def a_projected_bias_leaves_memory_keys_alone():
    flags = dict(use_rel_proj_pos_bias=True, rel_proj_num_distance_basis=3, rel_proj_max_dist=4)
    for more in (dict(num_mem_kv=2), dict(use_latent_q=True, dim_latent_q=6)):
        layer = attention(causal=True, **flags, **more)
        weights = dict(layer.state_dict())
        if 'to_latent_q.weight' in weights:
            weights['to_q.weight'] = weights['to_q.weight'] @ weights['to_latent_q.weight']
        memories = dict(num_mem_kv=more.get('num_mem_kv', 0))
        bias = distance_bias(weights, X, reach=4)
        assert_close(layer(X), oracles.attention(weights, X, causal=True, attn_bias=bias, **memories, **SIZES))


@known('21')
def masks_and_biases_are_extended_over_further_keys():
    layer = attention(num_mem_kv=2)
    bias, keep = randn(6, 6), oracles.bools(6, 6)
    wanted = oracles.attention(layer.state_dict(), X, attn_mask=keep, attn_bias=bias, num_mem_kv=2, **SIZES)
    assert_close(layer(X, attn_mask=keep, attn_bias=bias), wanted)
    nothing = torch.zeros(2, 4, 1, 8).double()
    biased = dict(rel_pos=AlibiPositionalBias(4).double())
    for flags, inputs in (({}, biased), (dict(max_attend_past=2), {}), (dict(data_dependent_alibi=True), {})):
        layer = attention(causal=True, **flags)
        zero = like(layer, causal=True, add_zero_kv=True, **flags)
        assert_close(layer(X, additional_key_values=(nothing, nothing), **inputs), zero(X, **inputs))


@known('48')
def a_bias_takes_the_precision_of_the_scores():
    for flash in (True, False):
        layer = attention(causal=True, flash=flash).bfloat16()
        assert layer(X.bfloat16(), attn_bias=randn(4, 6, 6).float()).dtype == torch.bfloat16
        alibi = AlibiPositionalBias(4).float()
        assert layer(X.bfloat16(), rel_pos=alibi).dtype == torch.bfloat16


# scores


@known('12')
def squared_distances_are_scaled_by_the_width_on_every_kernel():
    # here `Attend` only keeps parameters: the scale is settled by the layer
    for flash in (True, False):
        layer = attention(l2_distance=True, flash=flash, causal=True)
        weights = layer.state_dict()
        q, k, v = (split_heads(X @ weights[f'to_{name}.weight'].T, 4) for name in 'qkv')
        sim = -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(dim=-1) * 8**-0.5
        sim = sim.masked_fill(LATER, -math.inf)
        assert_close(layer(X), merge_heads(sim.softmax(dim=-1) @ v) @ weights['to_out.weight'].T)


@known('13')
def contextual_positions_are_read_softly():
    layer = attention(causal=True, use_cope=True, cope_max_pos=4, cope_soft_onehot_pos=True)
    weights = {name: t.double() for name, t in layer.state_dict().items()}
    q, k, v = (split_heads(X @ weights[f'to_{name}.weight'].T, 4) for name in 'qkv')
    sim = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(LATER, -math.inf)
    place = sim.sigmoid().flip(-1).cumsum(dim=-1).flip(-1).clamp(max=3)
    near = (-(place.unsqueeze(-1) - torch.arange(4)).abs() / 0.05).softmax(dim=-1)
    sim = sim + torch.einsum('bhijp,bhip->bhij', near, q @ weights['attend.cope.pos_emb'].T)
    assert_close(layer(X), merge_heads(sim.softmax(dim=-1) @ v) @ weights['to_out.weight'].T)


@known('14')
def a_masked_token_is_no_contextual_position():
    layer = attention(causal=True, use_cope=True, cope_max_pos=8, cope_talking_heads=True)
    hidden = torch.tensor([True, True, False, True, True, True]).expand(2, -1)
    rest = [0, 1, 3, 4, 5]
    assert_close(layer(X, mask=hidden)[:, rest], layer(X[:, rest]))


@known('32')
def fewer_keys_than_the_top_ones_are_all_kept():
    layer = attention(causal=True, sparse_topk=50)
    assert_close(layer(X), like(layer, causal=True)(X))


@known('33')
def residual_logits_leave_out_the_sink():
    net = stack(residual_attn=True, attn_head_learned_sink=True)
    check_causal(net)
    for trace in net(X, return_hiddens=True)[1].attn_intermediates:
        assert trace.qk_similarities.shape == (2, 4, 6, 6)


@known('34')
def hidden_residual_logits_are_not_amplified():
    net = stack(depth=3, residual_attn=True, attn_pre_scale_post_talking_heads=True)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if 'pre_scale_post_talking_heads' in name:
                parameter.copy_(3 * torch.eye(4)[..., None, None])
    check_finite_gradients(net, net(X))
    check_causal(net)


@known('35')
def sharp_gumbel_noise_leaves_hidden_rows_finite():
    for is_training in (True, False):
        layer = attention(causal=True, gumbel_softmax=True, gumbel_softmax_temp=0.5, gumbel_softmax_hard=False)
        out = layer.train(is_training)(X, context_mask=LEFT)
        assert not out[0, :2].any()
        check_finite_gradients(layer, out)


@known('36')
def gumbel_noise_is_for_training():
    layer = attention(gumbel_softmax=True, gumbel_softmax_hard=False)
    assert_close(layer(X), layer(X))
    assert (layer.train()(X) != layer(X)).any()


# keys and values


@known('15')
def values_are_normed_per_key_head_and_width():
    for flags in (dict(kv_heads=2), dict(one_kv_head=True), dict(value_dim_head=5)):
        layer = attention(value_rmsnorm=True, **flags)
        width = flags.get('value_dim_head', 8)
        assert layer.state_dict()['value_rmsnorm.gamma'].shape == (layer.kv_heads, 1, width)

        def normed(v, weights):
            return F.normalize(v, dim=-1) * v.shape[-1] ** 0.5 * (weights['value_rmsnorm.gamma'] + 1)

        assert_close(layer(X[:, :1]), single(layer, X[:, :1], normed))


def mixed_with(residual):
    def mix(v, weights):
        share = oracles.linear(weights, 'to_value_residual_mix.0', X[:, :1]).sigmoid()
        return residual + share.transpose(1, 2).unsqueeze(-1) * (v - residual)

    return mix


@known('16')
def value_residuals_mix_per_key_head():
    for kv_heads in (1, 2):
        layer = attention(learned_value_residual_mix=True, kv_heads=kv_heads)
        residual = randn(2, kv_heads, 1, 8, seed=4)
        assert_close(layer(X[:, :1], value_residual=residual), single(layer, X[:, :1], mixed_with(residual)))
        check_causal(stack(add_value_residual=True, attn_kv_heads=kv_heads))


@known('17')
def value_residuals_mix_by_the_input():
    layer = attention(learned_value_residual_mix=True, use_latent_q=True, dim_latent_q=6)
    residual = randn(2, 4, 1, 8, seed=4)
    assert_close(layer(X[:, :1], value_residual=residual), single(layer, X[:, :1], mixed_with(residual)))
    layer, residual = attention(causal=True, learned_value_residual_mix=True), randn(2, 4, 6, 8, seed=4)
    whole = layer(X, value_residual=residual)
    assert_close(layer(X[:, 3:], mem=X[:, :3], value_residual=residual), whole[:, 3:])
    refused(lambda: layer(X, randn(2, 6, 24), value_residual=residual), 'learned_value_residual_mix', 'context')


@known('19')
def memory_values_have_the_width_of_values():
    layer = attention(num_mem_kv=2, value_dim_head=5, kv_heads=2)
    assert layer.mem_v.shape == (2, 2, 5)
    wanted = oracles.attention(layer.state_dict(), X, num_mem_kv=2, value_dim_head=5, kv_heads=2, **SIZES)
    assert_close(layer(X), wanted)


@known('28')
def latents_of_a_context_have_its_width():
    refused(lambda: attention(latent_rope_subheads=2), 'latent_rope_subheads', 'use_latent_kv')
    layer, context = attention(use_latent_kv=True, dim_latent_kv=6, dim_context=10), randn(2, 5, 10)
    weights = dict(layer.state_dict())
    for name in ('to_k.weight', 'to_v.weight'):
        weights[name] = weights[name] @ weights['to_latent_kv.weight']
    assert_close(layer(X, context), oracles.attention(weights, X, context, **SIZES))


@known('30')
def latents_without_rotated_heads_are_reordered_and_cut():
    layers = stack(depth=1, rotary_pos_emb=True, attn_use_latent_kv=True, attn_dim_latent_kv=6)
    net = AutoregressiveWrapper(randomised(TransformerWrapper(num_tokens=12, max_seq_len=6, attn_layers=layers)))
    prompt = torch.randint(0, 12, (2, 4))
    for cut in (False, True):  # past `max_seq_len` a window slides
        length = 6 if cut else 2
        greedy = [net.generate(prompt, length, temperature=0.0, cache_kv=cached) for cached in (True, False)]
        beams = [net.beam_search(prompt, length, beams=2, cache_kv=cached) for cached in (True, False)]
        assert torch.equal(*greedy) and torch.equal(*beams)


@known('31')
def polar_positions_go_with_everything_but_contextual_ones():
    polar = randomised(PolarEmbedding(8, 4))
    angles = polar(torch.arange(6))
    layer = attention(causal=True)
    assert_close(layer(X[:, 3:], mem=X[:, :3], polar_pos_emb=angles), layer(X, polar_pos_emb=angles)[:, 3:])
    grouped = attention(causal=True, kv_heads=2)
    weights = grouped.state_dict()
    layer.load_state_dict(dealt_out(weights))
    assert_close(grouped(X, polar_pos_emb=angles), layer(X, polar_pos_emb=angles))
    rows = torch.arange(6) + torch.tensor([[0], [7]]) * torch.arange(6)
    together, alone = layer(X, polar_pos_emb=polar(rows)), layer(X[1:], polar_pos_emb=polar(rows[1]))
    assert_close(together[1:], alone)
    check_decoding(attention(causal=True, num_mem_kv=2), polar_pos_emb=lambda stop: polar(torch.arange(stop)))
    cope = attention(causal=True, use_cope=True)
    refused(lambda: cope(X, polar_pos_emb=angles), 'use_cope', 'polar')
    start = PolarEmbedding(64, 4, bias_uniform_init=True).learned_bias
    assert -2 * math.pi <= start.min() < -4 and -2 < start.max() <= 0


@known('42')
def rotated_queries_need_angles_for_a_context():
    angles = RotaryEmbedding(4).double()(torch.arange(6))
    refused(lambda: attention()(X, randn(2, 5, 24), rotary_pos_emb=angles), 'context_rotary_pos_emb')


@known('52')
def key_heads_are_dealt_out_in_turn():
    # kept: query head h reads key head h mod k, which the weights of existing checkpoints count on
    layer = attention(causal=True, kv_heads=2)
    assert_close(layer(X), oracles.attention(dealt_out(layer.state_dict()), X, causal=True, **SIZES))


# separate inputs of queries, keys and values


@known('22')
def everything_reads_the_view_of_the_queries():
    hybrid = dict(hybrid_module=nn.Linear(24, 32), hybrid_fold_axial_dim=1)
    gates = (dict(gate_values=True), dict(gate_value_heads=True), dict(data_dependent_alibi=True, causal=True))
    for flags in (*gates, hybrid, dict(num_mem_kv=2)):
        layer = attention(**flags)
        views = like(layer, qkv_receive_diff_residuals=True, **flags)
        assert_close(views(X.expand(3, -1, -1, -1)), layer(X))
    layer, hidden = attention(), torch.tensor([[True, False, True], [True, True, True]])
    views = like(layer, qkv_receive_diff_residuals=True)
    assert_close(views(X.expand(3, -1, -1, -1), mem=MEM, mem_mask=hidden), layer(X, mem=MEM, mem_mask=hidden))


# the projection out, gates


@known('23')
def one_head_of_another_width_is_projected():
    for dim_head in (8, 24):
        layer = attention(heads=1, dim_head=dim_head)
        assert layer(X).shape == X.shape
        # one head of the same width still has no projection, as in existing checkpoints
        assert ('to_out.weight' in layer.state_dict()) == (dim_head == 8)


@known('24')
def initial_values_reach_every_kind_of_projection():
    for shape in (dict(on_attn=True), dict(heads=1, dim_head=24)):
        sizes = {**SIZES, **shape}
        layer = Attention(24, zero_init_output=True, **sizes)
        weights = [p for name, p in layer.named_parameters() if name.startswith('to_out')]
        assert len(weights) == ('on_attn' in shape) and not any(p.any() for p in weights)
        torch.manual_seed(0)
        weights = [p for name, p in Attention(24, output_proj_depth=50, **sizes).named_parameters() if 'to_out' in name]
        for weight in weights:
            assert abs(weight.std() * (2 * weight.shape[1] * 50) ** 0.5 - 1) < 0.1


@known('37')
def laser_gives_zero_where_nothing_is_seen():
    for flash in (True, False):
        layer = attention(causal=True, laser=True, flash=flash)
        assert not layer(X, context_mask=LEFT)[0, :2].any()
        low = layer.half()(X.half() * 30, context_mask=LEFT)
        assert torch.isfinite(low).all()


@known('47')
def silu_gates_start_closed():
    # kept: initial values have the same distributions, so that the layer gives 0 at first
    layer = Attention(24, gate_values=True, swiglu_values=True, **SIZES)
    assert not layer(X.float()).any()
    layer(X.float()).sum().backward()
    assert layer.to_v_gate.weight.grad.any()


# modules beside attention


@known('25')
def a_hybrid_need_not_fold():
    flags = dict(hybrid_module=nn.Linear(24, 32))
    layer = attention(**flags)
    assert_close(layer(X), like(layer, hybrid_fold_axial_dim=1, **flags)(X))


@known('26')
def a_hybrid_has_the_width_of_values_and_keeps_its_state():
    layer = attention(hybrid_module=nn.Linear(24, 20), value_dim_head=5, hybrid_fold_axial_dim=1)
    check_rows(layer)
    for module in (nn.LSTM, nn.GRU):
        check_decoding(attention(causal=True, hybrid_module=module(24, 32, batch_first=True), hybrid_fold_axial_dim=1))


@known('27')
def a_folded_hybrid_is_not_cached():
    module = nn.GRU(24, 32, batch_first=True)
    assert not attention(causal=True, hybrid_module=module, hybrid_fold_axial_dim=2).can_cache_kv


# clipping, packing


@known('38')
def clipping_bounds_the_logits_of_each_head():
    shapes = (dict(), dict(kv_heads=2), dict(one_kv_head=True), dict(heads=3), dict(flash=True))
    for shape in shapes:
        layer = attention(causal=True, **shape)
        with torch.no_grad():
            layer.to_q.weight[:8] = -layer.to_k.weight[:8]  # all logits of a token with itself are negative
        trace = layer(X[:, :1], return_intermediates=True)[1]
        before = trace.pre_softmax_attn.amax(dim=(0, 2, 3))
        bound = before.max().item() / 2
        assert before.min() < 0 < bound
        layer.qk_clip_(trace, tau=bound)
        after = layer(X[:, :1], return_intermediates=True)[1].pre_softmax_attn.amax(dim=(0, 2, 3))
        assert_close(after, before.clamp(max=bound))


@known('50')
def packing_needs_the_fused_kernel():
    refused(lambda: Attention(24, flash=False, flash_pack_seq=True), 'flash_pack_seq')


@pytest.mark.parametrize('number', known)
def test_known_defect(number):
    known[number]()


# Held by laws (`law_cases.py` has their rows) and by tests of the feature.
ELSEWHERE = '1 6 18 29 43'.split()


def test_no_number_is_missing():
    assert {*known, *ELSEWHERE} == {str(number) for number in range(1, 53)}
