"""What has failed before, in this library's ancestors: one test (or a few) for each, in the order of their list.

Numbers that are not here are held by laws (`law_cases.py` has their rows) or by tests of the feature.
"""

import copy
import itertools
import math

import oracles
import pytest
import torch
from building import stacks
from oracles import assert_close, randn, randomised

from x_transformers import (
    Attention,
    CrossAttender,
    Decoder,
    Encoder,
    TransformerWrapper,
)
from x_transformers.core import rows
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    RelativePositionBias,
    RotaryEmbedding,
    ScaledSinusoidalEmbedding,
    apply_rotary_pos_emb,
)

SHAPE = dict(dim=8, depth=2, heads=4, attn_dim_head=8, ff_mult=1)


stack = stacks(finish=randomised, **SHAPE)


def model(kind=Decoder, num_tokens=11, max_seq_len=24, wrapper=None, **flags):
    layers = kind(**{**SHAPE, **flags})
    return randomised(
        TransformerWrapper(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=layers, **(wrapper or {}))
    )


def ids(*shape, num_tokens=11, seed=0):
    return torch.randint(1, num_tokens, shape, generator=torch.Generator().manual_seed(seed))


def test_02_t5_buckets_are_those_of_the_published_models():
    """The first distance of each bucket, for 32 buckets and distances up to 128."""
    both = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    causal = [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    for starts, is_causal in ((both, False), (causal, True)):
        module = RelativePositionBias(scale=1.0, causal=is_causal, num_buckets=32, max_distance=128, heads=1)
        with torch.no_grad():
            module.relative_attention_bias.weight.copy_(torch.arange(32.0)[:, None])
        table = module(200, 200)[0]
        wanted = torch.tensor([sum(start <= distance for start in starts) - 1 for distance in range(200)]).float()
        assert torch.equal(table[-1].flip(0), wanted)
        ahead = torch.zeros(199) if is_causal else wanted[1:] + 16
        assert torch.equal(table[0, 1:], ahead)


@pytest.mark.parametrize('flash', [False, None])
@pytest.mark.parametrize(
    'flags', [{}, dict(attn_pre_talking_heads=True), dict(attn_softclamp_logits=True, alibi_pos_bias=True)]
)
def test_04_stored_maps_are_those_of_the_pass(flags, flash):
    """softmax(pre) = post, after the pass, with dropout in training too."""
    net = stack(attn_flash=flash, attn_dropout=0.5, attn_num_mem_kv=1, **flags).train()
    _, inter = net(randn(2, 5, 8), return_hiddens=True, mask=torch.arange(5) < torch.tensor([[5], [3]]))
    assert len(inter.attn_intermediates) == 2
    for maps in inter.attn_intermediates:
        assert_close(maps.pre_softmax_attn.softmax(dim=-1), maps.post_softmax_attn)


def test_06_alibi_for_shapes_in_any_order():
    alibi = AlibiPositionalBias(heads=4, total_heads=6)
    for i, j in ((3, 5), (7, 7), (1, 1), (2, 9), (1, 9), (9, 9)):
        wanted = oracles.alibi_bias(torch.arange(j - i, j), torch.arange(j), oracles.alibi_slopes(4), 6)
        assert_close(alibi(i, j).double().expand(6, i, j), wanted)


@pytest.mark.parametrize(
    'wrapper',
    [
        {},
        dict(scaled_sinu_pos_emb=True),
        dict(l2norm_embed=True),
        dict(post_emb_norm=True),
        dict(num_memory_tokens=2),
        dict(use_abs_pos_emb=False),
        dict(num_output_heads=2),
        dict(return_only_embed=True),
        dict(emb_frac_gradient=0.5),
    ],
)
def test_08_switches_of_the_wrapper_with_another_width_of_embeddings(wrapper):
    net = model(wrapper=dict(emb_dim=6, **wrapper))
    out, inter = net(ids(2, 7), prepend_embeds=randn(2, 2, 6), sum_embeds=randn(2, 7, 6), return_intermediates=True)
    heads = out if isinstance(out, tuple) else (out,)
    assert all(t.shape == (2, 9, 8 if 'return_only_embed' in wrapper else 11) for t in heads)
    assert len(inter.attn_intermediates) == 2
    sum(t.sum() for t in heads).backward()
    assert net.project_emb.weight.grad.abs().sum() > 0
    assert net.token_emb.emb.weight.grad.abs().sum() > 0


@pytest.mark.parametrize('seed', range(12))
def test_09_fused_equals_plain_attention(seed):
    """Masks, biases, norms and head layouts at random."""
    torch.manual_seed(seed)
    pick = lambda *choices: choices[int(torch.randint(len(choices), ()))]  # noqa: E731
    flags = dict(heads=4, dim_head=pick(3, 8), kv_heads=pick(1, 2, 4), causal=pick(False, True), num_mem_kv=pick(0, 2))
    flags |= dict(qk_norm=pick(False, True), add_zero_kv=pick(False, True), value_dim_head=pick(None, 5))
    i, cross = pick(1, 4, 7), pick(False, True)
    j = pick(1, 7, 9) if cross else i
    call = dict(context=torch.randn(2, j, 6).double()) if cross else {}
    call |= pick({}, dict(attn_mask=torch.rand(pick((i, j), (4, i, j), (2, 4, i, j))) < 0.7))
    call |= pick({}, dict(context_mask=torch.rand(2, j) < 0.7), dict(mask=torch.rand(2, i) < 0.7))
    call |= pick({}, dict(attn_bias=torch.randn(pick((4, i, j), (2, 4, i, j))).double()))
    plain, results = None, {}
    x = torch.randn(2, i, 6, dtype=torch.float64)
    for flash in (False, True, None):
        module, x = randomised(Attention(dim=6, flash=flash, **flags), seed), x.clone().requires_grad_()
        out = module(x, **call)
        grads = torch.autograd.grad(out.pow(2).sum(), (x, *module.parameters()), allow_unused=True)
        results[flash] = [out, *(torch.zeros(()) if g is None else g for g in grads)]
    plain = results.pop(False)
    for others in results.values():
        for ours, theirs in zip(others, plain, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ('flags', 'flash'),
    [
        *itertools.product(({}, dict(qk_norm=True), dict(kv_heads=2, causal=True)), (False, True, None)),
        *itertools.product((dict(sigmoid=True), dict(sparse_topk=2), dict(pre_talking_heads=True)), (False, None)),
    ],
)
def test_13_all_false_masks_give_zeros_and_finite_gradients(flags, flash, dtype):
    module = Attention(dim=6, heads=4, dim_head=4, flash=flash, **flags).to(dtype)
    x = torch.randn(2, 5, 6, dtype=dtype, requires_grad=True)
    for call in (dict(mask=torch.zeros(2, 5).bool()), dict(context_mask=torch.zeros(2, 5).bool())):
        out = module(x, **call)
        assert (out == 0).all()
        for t in torch.autograd.grad(out.sum(), (x, *module.parameters())):
            assert t.isfinite().all()


def test_13_one_empty_row_leaves_the_others_alone():
    net, x = stack(Encoder, attn_flash=None), randn(3, 5, 8)
    mask = torch.tensor([[True] * 5, [False] * 5, [True, True, True, False, False]])
    out = net(x, mask=mask)
    assert out.isfinite().all()
    assert_close(out[0], net(x[:1])[0])
    assert_close(out[2, :3], net(x[2:, :3])[0])


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_16_rotary_angles_stay_exact_in_half_precision(dtype):
    pos = torch.arange(8192)
    wanted = oracles.rotary_angles(pos, oracles.rotary_frequencies(4))
    net = Decoder(**SHAPE, rotary_pos_emb=True, rotary_emb_dim=4)
    for cast in (lambda: net, lambda: net.to(dtype)):
        rotary = cast().rotary_pos_emb
        for enabled in (False, True):
            with torch.autocast('cpu', dtype=torch.bfloat16, enabled=enabled):
                angles, _ = rotary.forward_from_seq_len(8192)
            assert angles.dtype == torch.float32
            assert angles[0, :, 0].unique().numel() == 8192
            for wave in (torch.sin, torch.cos):  # whole turns are taken off
                assert_close(wave(angles.double()), wave(wanted), tolerance=1e-5)


@pytest.mark.parametrize(
    'flags', [dict(rotary_pos_emb=True), dict(rotary_xpos=True), dict(alibi_pos_bias=True), dict(rel_pos_bias=True)]
)
def test_16_half_precision_stays_half_precision(flags):
    net, x = Decoder(**SHAPE, **flags), torch.randn(1, 1000, 8)
    wanted = net(x)
    half = copy.deepcopy(net).bfloat16()
    out = half(x.bfloat16())
    assert out.dtype == torch.bfloat16
    # rounding of weights and activations, not of positions
    assert (out.float() - wanted).abs().mean() < 0.03


def test_16_a_rotation_under_autocast_is_that_without():
    t, (freqs, _) = torch.randn(1, 2, 4096, 8), RotaryEmbedding(8).forward_from_seq_len(4096)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert torch.equal(apply_rotary_pos_emb(t, freqs), apply_rotary_pos_emb(t, freqs.float()))
    wanted = oracles.rotate(t.double(), freqs.double())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert_close(apply_rotary_pos_emb(t, freqs).double(), wanted, tolerance=1e-5)


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('kind', [Encoder, Decoder])
@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(alibi_pos_bias=True), dict(attn_num_mem_kv=1)])
def test_17_masked_or_empty_memory_is_no_memory(flags, kind, flash):
    net, x = stack(kind, attn_flash=flash, **flags), randn(2, 5, 8)
    mems = [randn(2, 3, 8, seed=seed) for seed in range(2)]
    for mask in ({}, dict(mask=torch.arange(5) < torch.tensor([[5], [2]]))):
        wanted = net(x, **mask)
        assert_close(net(x, mems=mems, mem_masks=[torch.zeros(2, 3).bool()] * 2, **mask), wanted)
        assert_close(net(x, mems=[mem[:, :0] for mem in mems], **mask), wanted)
        assert_close(net(x, mems=[None, None], **mask), wanted)
        assert not torch.allclose(net(x, mems=mems, **mask), wanted)


def test_17_memories_never_reach_cross_attention():
    net, x, context = stack(CrossAttender), randn(2, 5, 8), randn(2, 3, 8)
    with pytest.raises(ValueError, match='mems'):
        net(x, context=context, mems=[randn(2, 3, 8)])
    flags = dict(cross_attend=True, rotary_pos_emb=True)
    net, mems = stack(**flags), [randn(2, 4, 8, seed=seed) for seed in range(2)]
    wanted = oracles.stack(net.state_dict(), x, context, causal=True, mems=mems, **SHAPE, **flags)
    assert_close(net(x, context=context, mems=mems), wanted)


@pytest.mark.parametrize('value', [0.01, 5.0])
@pytest.mark.parametrize('topk', [None, 1, 3])
def test_19_clamp_and_top_k_never_revive_masked_keys(topk, value):
    flags = dict(softclamp_logits=True, logit_softclamp_value=value, sparse_topk=topk)
    module, x = randomised(Attention(dim=6, heads=4, dim_head=4, **flags)), randn(2, 7, 6)
    mask = torch.tensor([[True, False, True, False, True, False, False], [True] + [False] * 6])
    _, inter = module(x, mask=mask, return_intermediates=True)
    assert (inter.post_softmax_attn[~mask[:, None, None].expand_as(inter.post_softmax_attn)] == 0).all()
    assert_close(inter.post_softmax_attn.sum(dim=-1), torch.ones(2, 4, 7).double())


# checkpoints of release 2.31.10, by names and shapes, with the last logits they gave: weights by `frozen_weights`
FROZEN = {
    'language model': (
        Decoder,
        dict(rotary_pos_emb=True, attn_kv_heads=2, attn_qk_norm=True, attn_qk_norm_dim_scale=True, attn_num_mem_kv=1)
        | dict(ff_glu=True, ff_swish=True, use_rmsnorm=True),
        """
        attn_layers.final_norm.g 8; attn_layers.layers.0.0.0.g 8; attn_layers.layers.0.1.mem_k 2 1 8;
        attn_layers.layers.0.1.mem_v 2 1 8; attn_layers.layers.0.1.qk_norm_k_scale 2 1 8;
        attn_layers.layers.0.1.qk_norm_q_scale 4 1 8; attn_layers.layers.0.1.to_k.weight 16 8;
        attn_layers.layers.0.1.to_out.weight 8 32; attn_layers.layers.0.1.to_q.weight 32 8;
        attn_layers.layers.0.1.to_v.weight 16 8; attn_layers.layers.1.0.0.g 8;
        attn_layers.layers.1.1.ff.0.proj.bias 16; attn_layers.layers.1.1.ff.0.proj.weight 16 8;
        attn_layers.layers.1.1.ff.2.bias 8; attn_layers.layers.1.1.ff.2.weight 8 8;
        attn_layers.rotary_pos_emb.inv_freq 2; to_logits.weight 11 8; token_emb.emb.weight 11 8
        """,
        [-0.3463689, -0.1464612, 0.1191883, 0.331338, 0.3947605],
        10.610808,
    ),
    'encoder': (
        Encoder,
        dict(alibi_pos_bias=True, use_scalenorm=True, attn_on_attn=True, gate_residual=True, ff_post_act_ln=True)
        | dict(use_layerscale=True),
        """
        attn_layers.final_norm.g 1; attn_layers.layers.0.0.0.g 1; attn_layers.layers.0.1.fn.to_k.weight 32 8;
        attn_layers.layers.0.1.fn.to_out.0.weight 16 32; attn_layers.layers.0.1.fn.to_q.weight 32 8;
        attn_layers.layers.0.1.fn.to_v.weight 32 8; attn_layers.layers.0.1.gamma 8;
        attn_layers.layers.0.2.gru.bias_hh 24; attn_layers.layers.0.2.gru.bias_ih 24;
        attn_layers.layers.0.2.gru.weight_hh 24 8; attn_layers.layers.0.2.gru.weight_ih 24 8;
        attn_layers.layers.1.0.0.g 1; attn_layers.layers.1.1.fn.ff.0.0.bias 8;
        attn_layers.layers.1.1.fn.ff.0.0.weight 8 8; attn_layers.layers.1.1.fn.ff.1.gamma 8;
        attn_layers.layers.1.1.fn.ff.3.bias 8; attn_layers.layers.1.1.fn.ff.3.weight 8 8;
        attn_layers.layers.1.1.gamma 8; attn_layers.layers.1.2.gru.bias_hh 24;
        attn_layers.layers.1.2.gru.bias_ih 24; attn_layers.layers.1.2.gru.weight_hh 24 8;
        attn_layers.layers.1.2.gru.weight_ih 24 8; pos_emb.emb.weight 9 8; to_logits.weight 11 8;
        token_emb.emb.weight 11 8
        """,
        [0.7160532, -1.0424381, -2.333012, -2.576371, -1.6632788],
        373.482353,
    ),
    'decoder with context': (
        Decoder,
        dict(cross_attend=True, rel_pos_bias=True, rel_pos_num_buckets=6, rel_pos_max_distance=9, shift_tokens=1)
        | dict(attn_one_kv_head=True, attn_gate_values=True),
        """
        attn_layers.final_norm.gamma 8; attn_layers.layers.0.0.0.gamma 8;
        attn_layers.layers.0.1.fn.to_k.weight 8 8; attn_layers.layers.0.1.fn.to_out.weight 8 32;
        attn_layers.layers.0.1.fn.to_q.weight 32 8; attn_layers.layers.0.1.fn.to_v.weight 8 8;
        attn_layers.layers.0.1.fn.to_v_gate.weight 32 8; attn_layers.layers.1.0.0.gamma 8;
        attn_layers.layers.1.1.fn.to_k.weight 8 8; attn_layers.layers.1.1.fn.to_out.weight 8 32;
        attn_layers.layers.1.1.fn.to_q.weight 32 8; attn_layers.layers.1.1.fn.to_v.weight 8 8;
        attn_layers.layers.1.1.fn.to_v_gate.weight 32 8; attn_layers.layers.2.0.0.gamma 8;
        attn_layers.layers.2.1.fn.ff.0.0.bias 8; attn_layers.layers.2.1.fn.ff.0.0.weight 8 8;
        attn_layers.layers.2.1.fn.ff.2.bias 8; attn_layers.layers.2.1.fn.ff.2.weight 8 8;
        attn_layers.rel_pos.relative_attention_bias.weight 6 4; to_logits.weight 11 8; token_emb.emb.weight 11 8
        """,
        [-1.0633324, -0.8793389, -0.3006382, 0.4130096, 0.9412704],
        42.806012,
    ),
}


def frozen_weights(listing):
    state = {}
    for index, entry in enumerate(listing.split(';')):
        name, *shape = entry.split()
        shape = [int(size) for size in shape]
        count = torch.arange(math.prod(shape), dtype=torch.float64)
        state[name] = (0.6 * torch.sin(0.7 * count + index)).reshape(shape)
        if name.endswith('inv_freq'):
            state[name] = oracles.rotary_frequencies(2 * len(count))
    return state


@pytest.mark.parametrize('flash', [False, None])
@pytest.mark.parametrize('name', FROZEN)
def test_25_frozen_checkpoints_give_frozen_outputs(name, flash):
    kind, flags, listing, last, total = FROZEN[name]
    net = model(kind, max_seq_len=9, attn_flash=flash, depth=1, **flags)
    net.load_state_dict(frozen_weights(listing), strict=True)
    context = dict(context=torch.sin(torch.arange(48.0).double()).reshape(2, 3, 8)) if 'cross_attend' in flags else {}
    out = net(torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]]), **context)
    assert_close(out[1, -1, :5], torch.tensor(last).double(), tolerance=1e-6)
    assert_close(out.pow(2).sum(), torch.tensor(total).double(), tolerance=1e-6)


def test_25_a_sinusoid_and_alibi_store_no_table():
    assert ScaledSinusoidalEmbedding(6).state_dict().keys() == {'scale'}
    assert not AlibiPositionalBias(4).state_dict()


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('flash', [False, None, True])
@pytest.mark.parametrize('in_blocks', [False, True])
def test_a_bias_that_hides_all_keys_reveals_none(flash, causal, in_blocks, monkeypatch):
    """Not those that the triangle hides either: the row gives zeros, with finite gradients."""
    if in_blocks:
        for name, value in (('LARGE', 1), ('BLOCK', 2)):
            monkeypatch.setattr(rows, name, {'cpu': value, 'cuda': value})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 2)
    layer = Attention(dim=16, heads=2, dim_head=8, causal=causal, flash=flash).double().eval()
    x = torch.randn(1, 5, 16, dtype=torch.double, requires_grad=True)
    bias = torch.zeros(1, 2, 5, 5, dtype=torch.double)
    bias[:, :, 2, : 3 if causal else 5] = -torch.inf
    bias[:, :, 4, 1] = -torch.inf
    out = layer(x, attn_bias=bias)
    wanted = layer(x, attn_mask=bias > -1)
    assert (out[0, 2] == 0).all()
    torch.testing.assert_close(out, wanted)
    grads = [torch.autograd.grad(o.square().sum(), x)[0] for o in (out, wanted)]
    torch.testing.assert_close(*grads)
