"""Where a reference implementation goes wrong, fails or is odd: one test per number, showing what is right.

Numbers alone are about attention, W, F and O about stacks, T about the model of tokens, C vectors, V numbers beside
tokens, E encoders and decoders, ViT images. Where an oddity is kept, so that checkpoints and numbers agree with it, the
test says why. Numbers that are not here are held by laws (`law_cases.py` has their rows) or by tests of the feature.
"""

import random
import weakref

import oracles
import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised, split_heads

from x_transformers import (
    Attention,
    AttentionPool,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    FeedForward,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
    XValTransformerWrapper,
)
from x_transformers.x_transformers import AlibiPositionalBias, PolarEmbedding, RotaryEmbedding

X = randn(2, 6, 24)
HOLES = torch.tensor([[True] * 6, [True, True, False, True, True, False]])
HEADS = dict(heads=4, dim_head=8)


def attention(**flags):
    return randomised(Attention(**{**HEADS, 'dim': 24, **flags}))


def stack(**flags):
    sizes = dict(dim=24, depth=2, heads=4, attn_dim_head=8, ff_mult=1, verbose=False)
    return randomised(Decoder(**{**sizes, **flags}))


def refused(call, *words):
    """Check that a call raises an error with all the words."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_39_a_mask_with_a_cache_covers_all_keys():
    layer = attention(causal=True)
    for count in (1, 2):
        cache = layer(X[:, :-count], return_intermediates=True)[1]
        new = HOLES[:, -count:]
        refused(lambda cache=cache, new=new, n=count: layer(X[:, -n:], mask=new, cache=cache), 'mask', '(2, 6)')


def test_40_padded_queries_give_zero_with_a_cache_too():
    layer = attention(causal=True)
    _, cache = layer(X[:, :3], mask=HOLES[:, :3], return_intermediates=True)
    out = layer(X[:, 3:], mask=HOLES, cache=cache)
    assert_close(out, layer(X, mask=HOLES)[:, 3:])
    assert not out[~HOLES[:, 3:]].any()


def test_51_masks_of_whole_numbers_are_cast():
    layer = attention()
    assert_close(layer(X, mask=HOLES.long()), layer(X, mask=HOLES))
    # not cast: additive masks of 0 and -inf would be read the wrong way round
    refused(lambda: layer(X, mask=HOLES.double()), 'mask', 'boolean')


def distance_bias(weights, x, reach):
    """Return what `use_rel_proj_pos_bias` adds, (b, h, i, j)."""
    mix = split_heads(oracles.linear(weights, 'rel_proj_pos_bias.to_distance_weights.0', x), 4)
    curves = mix @ weights['rel_proj_pos_bias.distance_bank']
    behind = torch.arange(6)[:, None] - torch.arange(6)
    bias = curves.gather(-1, behind.clamp(0, reach - 1).expand(2, 4, 6, 6))
    return bias.masked_fill((behind < 0) | (behind >= reach), 0.0)


def without_latents(layer):
    """Return the weights of an equal layer without latent queries."""
    weights = dict(layer.state_dict())
    if 'to_latent_q.weight' in weights:
        weights['to_q.weight'] = weights['to_q.weight'] @ weights['to_latent_q.weight']
    return weights


def test_20_a_projected_bias_leaves_memory_keys_alone():
    flags = dict(use_rel_proj_pos_bias=True, rel_proj_num_distance_basis=3, rel_proj_max_dist=4)
    for more in (dict(num_mem_kv=2), dict(use_latent_q=True, dim_latent_q=6)):
        layer = attention(causal=True, **flags, **more)
        weights, memories = without_latents(layer), dict(num_mem_kv=more.get('num_mem_kv', 0))
        bias = distance_bias(weights, X, reach=4)
        assert_close(layer(X), oracles.attention(weights, X, causal=True, attn_bias=bias, **memories, **HEADS))


def test_48_a_bias_takes_the_precision_of_the_scores():
    for flash in (True, False):
        layer = attention(causal=True, flash=flash).bfloat16()
        assert layer(X.bfloat16(), attn_bias=randn(4, 6, 6).float()).dtype == torch.bfloat16
        alibi = AlibiPositionalBias(4).float()
        assert layer(X.bfloat16(), rel_pos=alibi).dtype == torch.bfloat16


def test_17_value_residuals_mix_by_the_input():
    flags = dict(causal=True, learned_value_residual_mix=True)
    layer, call = attention(**flags, use_latent_q=True, dim_latent_q=6), dict(value_residual=randn(2, 4, 6, 8, seed=4))
    whole = layer(X, **call)
    assert_close(whole, oracles.attention(without_latents(layer), X, **flags, **call, **HEADS))
    assert_close(layer(X[:, 3:], mem=X[:, :3], **call), whole[:, 3:])
    refused(lambda: layer(X, randn(2, 6, 24), **call), 'learned_value_residual_mix', 'context')


def test_28_latents_of_a_context_have_its_width():
    layer, context = attention(use_latent_kv=True, dim_latent_kv=6, dim_context=10), randn(2, 5, 10)
    weights = dict(layer.state_dict())
    for name in ('to_k.weight', 'to_v.weight'):
        weights[name] = weights[name] @ weights['to_latent_kv.weight']
    assert_close(layer(X, context), oracles.attention(weights, X, context, **HEADS))


def test_31_polar_positions_go_with_memories_but_not_with_contextual_positions():
    angles = randomised(PolarEmbedding(8, 4))(torch.arange(6))
    layer = attention(causal=True)
    assert_close(layer(X[:, 3:], mem=X[:, :3], polar_pos_emb=angles), layer(X, polar_pos_emb=angles)[:, 3:])
    cope = attention(causal=True, use_cope=True)
    refused(lambda: cope(X, polar_pos_emb=angles), 'use_cope', 'polar')


def test_42_rotated_queries_need_angles_for_a_context():
    angles = RotaryEmbedding(4).double()(torch.arange(6))
    refused(lambda: attention()(X, randn(2, 5, 24), rotary_pos_emb=angles), 'context_rotary_pos_emb')


# stacks

START = torch.tensor([0, 2])
FRONT = [randn(2, 3, 24, seed=6), randn(2, 3, 24, seed=7)]  # memories of two layers


def intermediates(net, **inputs):
    return net(X, return_hiddens=True, **inputs)[1]


def test_w18_a_pool_of_one_head_has_the_width_of_the_model():
    assert AttentionPool(dim=24, heads=1, dim_head=8).double()(randn(2, 5, 24)).shape == (2, 1, 24)


def test_w21_a_mask_of_new_tokens_alone_is_refused():
    net = stack()
    cache = net(X[:, :5], return_hiddens=True)[1]
    refused(lambda: net(X, cache=cache, mask=HOLES[:, 5:]), 'mask', '6')


def test_f7_positions_given_by_the_user_stand_behind_memories():
    net = stack(rotary_pos_emb=True)
    assert_close(net(X, mems=FRONT, pos=torch.arange(6)), net(X, mems=FRONT))


def test_f10_heads_of_single_layers_have_their_width_unless_they_share_positions():
    net = stack(attn_dim_head=(8, 16))
    assert [net.layers[index][1].to_q.out_features for index in (0, 2)] == [32, 64]
    _, cache = net(X[:, :4], return_hiddens=True)
    assert_close(net(X, cache=cache), net(X)[:, 4:])
    refused(lambda: stack(attn_dim_head=(8, 16), rotary_pos_emb=True), 'attn_dim_head')


def test_f19_masks_of_keys_are_extended_over_memories():
    net, longer = stack(), F.pad(HOLES, (3, 0), value=True)
    masked = net(X, mems=FRONT, self_attn_kv_mask=longer)
    assert_close(net(X, mems=FRONT, self_attn_kv_mask=HOLES), masked)
    started = net(X, mems=FRONT, seq_start_pos=START)
    begun = torch.arange(-3, 6) >= START[:, None]
    begun[:, :3] = True
    wanted = net(X, mems=FRONT, self_attn_kv_mask=begun)
    assert_close(started[0], net(X, mems=FRONT)[0])
    assert_close(started[1, 2:], wanted[1, 2:])


def test_o5_clamps_without_effect_are_said_and_a_gated_unit_keeps_its_bias(logged):
    # kept: checkpoints hold the bias
    assert 'ff.0.proj.bias' in FeedForward(24, glu=True, no_bias=True).state_dict()
    FeedForward(24, glu=True, softclamp_value=2.0)
    FeedForward(24, glu_softclamp=True)
    assert '`softclamp_value`' in logged[0] and '`glu_softclamp`' in logged[1]


def test_o6_norms_of_a_dynamic_bias_are_of_two_kinds():
    # kept: checkpoints hold them by these names
    net = stack(dynamic_pos_bias=True, dynamic_pos_bias_norm=True)
    norms = {name for name in net.state_dict() if name.split('.')[-2] == '1'}
    assert norms == {'rel_pos.mlp.0.1.gamma', 'rel_pos.mlp.1.1.weight', 'rel_pos.mlp.1.1.bias'}


def test_o7_a_block_closes_at_the_last_layer_counted_in_stored_ones():
    # kept: callers index the list
    net = stack()
    out, trace = net(X, return_hiddens=True, layers_execute_order=(0, 1, 2))
    assert len(trace.block_hiddens) == 1
    assert_close(trace.block_hiddens[-1], out)


def test_o8_tied_layers_are_counted_as_stored():
    net = stack(depth=3, weight_tie_layers=True)
    # kept: layers and the depth are counted as stored, hidden states as executed
    assert net.num_attn_layers == net.depth == 1
    assert len(intermediates(net).hiddens) == 3


def test_o9_hidden_states_nobody_asks_for_are_not_kept():
    net, found = stack(depth=3), []
    net.layers[0][2].register_forward_hook(lambda module, args, out: found.append(weakref.ref(out)))
    net.layers[5][2].register_forward_hook(lambda module, args, out: found.append(found[0]()))
    with torch.no_grad():
        net(X)
    assert found[1] is None


def test_o10_layers_are_left_out_by_torchs_own_random_numbers():
    net, outs = stack(depth=4, layer_dropout=0.5).train(), []
    for seed in range(2):
        random.seed(seed)
        torch.manual_seed(0)
        outs.append(net(X))
    assert_close(*outs)


def test_o11_forget_gates_add_to_a_dynamic_bias():
    net = stack(attn_data_dependent_alibi=True, dynamic_pos_bias=True)
    before = net(X)
    with torch.no_grad():
        net.rel_pos.mlp[0][0].weight += 1
    assert (net(X) - before).abs().max() > 1e-3


def test_o12_each_stream_is_bounded_before_the_sum():
    # kept: it is part of the numbers of trained models
    net = stack(depth=1, only_attn=True, num_residual_streams=2, softclamp_output=True, softclamp_output_value=2.0,
                pre_norm_has_final_norm=False)  # fmt: skip
    streams = intermediates(net).layer_hiddens[-1]
    assert streams.shape == (4, 6, 24)
    assert_close(net(X), (2 * (streams / 2).tanh()).unflatten(0, (2, 2)).sum(dim=1))


def test_o13_buckets_are_checked_only_where_there_are_some(logged):
    stack(rel_pos_num_buckets=64, rel_pos_max_distance=16)
    assert any('rel_pos_num_buckets' in text for text in logged)
    refused(lambda: stack(rel_pos_bias=True, rel_pos_num_buckets=64, rel_pos_max_distance=32), 'rel_pos_num_buckets')


def test_o14_positions_of_a_context_need_rotations():
    net, context = stack(cross_attend=True), randn(2, 5, 24)
    refused(lambda: net(X, context=context, context_pos=torch.arange(5)), 'context_pos')


# models around a stack

SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8, ff_mult=1, verbose=False)
TOKENS, LONGEST = 11, 12
IDS = torch.randint(0, TOKENS, (2, 7), generator=torch.Generator().manual_seed(0))
PREFIX = randn(2, 3, 16)
VECTORS = randn(2, 7, 5)


def continuous(**flags):
    sizes = dict(dim_in=5, dim_out=5, max_seq_len=LONGEST)
    return randomised(ContinuousTransformerWrapper(attn_layers=Decoder(**SIZES), **{**sizes, **flags}))


def xval(**flags):
    sizes = dict(num_tokens=TOKENS, max_seq_len=LONGEST, numerical_token_id=3)
    return randomised(XValTransformerWrapper(attn_layers=Decoder(**SIZES), **{**sizes, **flags}))


def twin(net, other):
    """Copy the weights that both models have to the other one."""
    other.load_state_dict({name: t for name, t in net.state_dict().items() if name in other.state_dict()}, strict=False)
    return other


def test_t19_memories_may_be_any_sequence():
    sizes = dict(num_tokens=TOKENS, max_seq_len=LONGEST, max_mem_len=4)
    net = randomised(TransformerWrapper(attn_layers=Decoder(**SIZES), **sizes))
    mems = [randn(2, 3, 16, seed=i) for i in range(2)]
    assert_close(net(IDS, mems=tuple(mems)), net(IDS, mems=mems))
    for net, inputs in ((continuous(max_mem_len=4), (VECTORS,)), (xval(max_mem_len=4), (IDS, randn(2, 7)))):
        _, mems = net(*inputs, return_mems=True)
        assert_close(*(net(*inputs, mems=kind(mems), return_embeddings=True) for kind in (tuple, list)))


def test_c1_a_prefix_stands_before_memory_tokens():
    for build, inputs in ((continuous, (VECTORS,)), (xval, (IDS, randn(2, 7)))):
        net = build(num_memory_tokens=2)
        front = torch.cat((PREFIX, net.memory_tokens.expand(2, -1, -1)), dim=1)
        wanted = twin(net, build())(*inputs, prepend_embeds=front, return_embeddings=True)
        found = net(*inputs, prepend_embeds=PREFIX, return_embeddings=True)
        assert_close(found, torch.cat((wanted[:, :3], wanted[:, 5:]), dim=1))


def test_c8_memories_of_vectors_add_up():
    net = continuous(max_seq_len=None, max_mem_len=8)
    _, mems = net(VECTORS[:, :2], return_mems=True)
    _, mems = net(VECTORS[:, 2:5], mems=mems, return_mems=True)
    assert [t.shape for t in mems] == [(2, 5, 16)] * 2
    assert_close(net(VECTORS[:, 5:], mems=mems), net(VECTORS)[:, 5:])


def test_v1_embeddings_beside_numbers_have_a_width_of_their_own():
    net, numbers = xval(emb_dim=10), randn(2, 7)
    logits, predicted = net(IDS, numbers)
    assert logits.shape == (2, 7, TOKENS) and predicted.shape == (2, 7)
    assert_close(net(IDS[:, :4], numbers[:, :4])[1], predicted[:, :4])


SIDES = {side + name: value for side in ('enc_', 'dec_') for name, value in SIZES.items() if name != 'dim'}
SIDES |= dict(dim=16, enc_num_tokens=TOKENS, dec_num_tokens=TOKENS, enc_max_seq_len=LONGEST, dec_max_seq_len=LONGEST)


def test_e2_generation_drops_nothing_in_the_encoder():
    net = randomised(XTransformer(**SIDES, enc_emb_dropout=0.5, enc_attn_dropout=0.5), scale=1.0)
    wanted = net.generate(IDS, IDS[:, :1], 6, temperature=0.0)
    for _ in range(5):
        assert torch.equal(net.train().generate(IDS, IDS[:, :1], 6, temperature=0.0), wanted)
    assert net.training and net.encoder.training


def test_e3_keywords_without_a_side_are_refused():
    refused(lambda: XTransformer(**SIDES, num_tokens=5), 'num_tokens')


def test_e5_options_of_the_models_reach_both_sides():
    flags = dict(dec_num_memory_tokens=2, enc_post_emb_norm=True, dec_l2norm_embed=True, dec_tie_embedding=True)
    net = XTransformer(**SIDES, **flags)
    names = set(net.state_dict())
    assert {'decoder.net.memory_tokens', 'encoder.post_emb_norm.gamma'} <= names
    assert 'decoder.net.to_logits.weight' not in names
    assert net.decoder.net.token_emb.emb.weight.abs().max() < 1e-3
    assert net(IDS, IDS).isfinite()


def test_vit_w1_an_image_without_classes_gives_its_mean():
    # kept, and said in the documentation: embeddings are asked for
    net = randomised(ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(**SIZES)))
    image = randn(2, 3, 8, 8)
    assert_close(net(image), net(image, return_embeddings=True).mean(dim=1))
