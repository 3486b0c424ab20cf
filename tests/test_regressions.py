"""What has failed before, in this library's ancestors: one test (or a few) for each, in the order of their list.

Those about features that are not here yet come with them.
"""

import copy
import itertools
import math

import oracles
import pytest
import torch
import torch.nn.functional as F
from building import stacks
from oracles import assert_close, bools, randn, randomised

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    TransformerWrapper,
)
from x_transformers.autoregressive_wrapper import min_p, top_a, top_k, top_p
from x_transformers.core import rows
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    DynamicPositionBias,
    RelativePositionBias,
    RotaryEmbedding,
    ScaledSinusoidalEmbedding,
    apply_rotary_pos_emb,
)

SHAPE = dict(dim=8, depth=2, heads=4, attn_dim_head=8, ff_mult=1)
PAD = 0


stack = stacks(finish=randomised, **SHAPE)


def model(kind=Decoder, num_tokens=11, max_seq_len=24, wrapper=None, **flags):
    layers = kind(**{**SHAPE, **flags})
    return randomised(
        TransformerWrapper(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=layers, **(wrapper or {}))
    )


def ids(*shape, num_tokens=11, seed=0):
    return torch.randint(1, num_tokens, shape, generator=torch.Generator().manual_seed(seed))


# 1


@pytest.mark.parametrize(('flags', 'gate'), [({}, F.gelu), (dict(swish=True), F.silu)])
def test_01_gated_feedforward_is_value_times_activated_gate(flags, gate):
    module, x = randomised(FeedForward(dim=5, glu=True, no_bias=True, mult=2, **flags)), randn(2, 7, 5)
    weights = module.state_dict()
    value, to_gate = (x @ weights['ff.0.proj.weight'].T + weights['ff.0.proj.bias']).split(10, dim=-1)
    assert_close(module(x), (value * gate(to_gate)) @ weights['ff.2.weight'].T)


# 2


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


# 3


@pytest.mark.parametrize(
    'flags', [{}, dict(ff_glu=True), dict(use_rmsnorm=True, macaron=True), dict(cross_attend=True)]
)
def test_03_zero_init_branches_make_the_pre_norm_stack_the_identity(flags):
    net, x = Decoder(**SHAPE, zero_init_branch_output=True, **flags), torch.randn(2, 5, 8)
    context = dict(context=torch.randn(2, 3, 8)) if 'cross_attend' in flags else {}
    assert torch.equal(net(x, **context), net.final_norm(x))


# 4


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


# 5


def test_05_after_the_first_eos_only_padding_follows():
    net, prompts = AutoregressiveWrapper(model(), pad_value=PAD), ids(8, 3)
    free = net.generate(prompts, 12, temperature=0.0)
    # an id that some of the rows come to, and some do not
    eos = next(token for token in range(1, 11) if 0 < (free == token).any(dim=-1).sum() < 8)
    out = net.generate(prompts, 12, temperature=0.0, eos_token=eos)
    for row, wanted in zip(out.tolist(), free.tolist(), strict=True):
        if eos in wanted:
            last = wanted.index(eos)
            wanted = wanted[: last + 1] + [PAD] * (11 - last)
        assert row == wanted


# 6, 7


def test_06_alibi_for_shapes_in_any_order():
    alibi = AlibiPositionalBias(heads=4, total_heads=6)
    for i, j in ((3, 5), (7, 7), (1, 1), (2, 9), (1, 9), (9, 9)):
        wanted = oracles.alibi_bias(torch.arange(j - i, j), torch.arange(j), oracles.alibi_slopes(4), 6)
        assert_close(alibi(i, j).double().expand(6, i, j), wanted)


@pytest.mark.parametrize(
    'module',
    [
        AlibiPositionalBias(4),
        RelativePositionBias(scale=1.0, causal=True, num_buckets=8, max_distance=16, heads=4),
        RelativePositionBias(scale=1.0, causal=False, num_buckets=8, max_distance=16, heads=4),
        DynamicPositionBias(4, heads=4, depth=2),
    ],
)
def test_07_the_last_query_stands_at_the_last_key(module):
    whole = module(9, 9)
    for i in (1, 2, 8):
        assert_close(module(i, 9), whole[:, -i:], tolerance=1e-6)


# 8


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


# 9


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


# 10


@pytest.mark.parametrize('flash', [False, True, None])
def test_10_only_the_context_mask_hides_keys_of_the_context(flash):
    net, x, context = (
        stack(Encoder, cross_attend=True, only_cross=True, attn_flash=flash),
        randn(2, 5, 8),
        randn(2, 3, 8),
    )
    mask, context_mask = bools(2, 5) | (torch.arange(5) < 1), torch.tensor([[True, False, True], [False, True, True]])
    out = net(x, context=context, mask=mask, context_mask=context_mask)
    assert_close(out[mask], net(x, context=context, context_mask=context_mask)[mask])
    changed = torch.where(context_mask[..., None], context, 30.0)
    assert_close(out, net(x, context=changed, mask=mask, context_mask=context_mask))
    assert not torch.allclose(out, net(x, context=context, mask=mask))


# 11


@pytest.mark.parametrize('flash', [False, True, None])
def test_11_values_are_never_rotated(flash):
    module, x = randomised(Attention(dim=6, heads=2, dim_head=4, flash=flash)), randn(2, 1, 6)
    table = RotaryEmbedding(4)(torch.tensor([5]))
    weights = module.state_dict()
    assert_close(module(x, rotary_pos_emb=table), x @ weights['to_v.weight'].T @ weights['to_out.weight'].T)


# 12, 20, 21: rows of `law_cases.py`


# 13


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


# 14


def test_14_filters_keep_a_set_per_row_and_leave_kept_logits_alone():
    logits = randn(5, 9)
    kept = {
        'top_k': (top_k(logits, k=4), lambda p: sorted(range(9), key=lambda v: -p[v])[:4]),
        'top_p': (top_p(logits, thres=0.6), lambda p: [v for v in range(9) if sum(q for q in p if q > p[v]) <= 0.6]),
        'min_p': (min_p(logits, min_p=0.3), lambda p: [v for v in range(9) if p[v] >= 0.3 * max(p)]),
        'top_a': (top_a(logits, 2.0, 0.5), lambda p: [v for v in range(9) if p[v] >= 0.5 * max(p) ** 2]),
    }
    for name, (out, wanted) in kept.items():
        for row, probs, before in zip(out, logits.softmax(dim=-1).tolist(), logits, strict=True):
            kept_here = sorted(wanted(probs))
            assert row.isfinite().nonzero()[:, 0].tolist() == kept_here, name
            assert torch.equal(row[kept_here], before[kept_here]), name
    assert torch.equal(top_k(logits, k=100), logits)


# 15


@pytest.mark.parametrize(
    'flags', [{}, dict(rotary_pos_emb=True), dict(alibi_pos_bias=True), dict(attn_flash=True, attn_num_mem_kv=1)]
)
@pytest.mark.parametrize('cache_kv', [False, True])
def test_15_each_row_of_unequal_prompts_equals_the_row_alone(cache_kv, flags):
    net, lens = AutoregressiveWrapper(model(**flags)), torch.tensor([6, 2, 4])
    prompts = ids(3, 6)
    out = net.generate(prompts, 7, temperature=0.0, prompt_lens=lens, cache_kv=cache_kv)
    for row, prompt, length in zip(out, prompts, lens, strict=True):
        assert torch.equal(row, net.generate(prompt[None, :length], 7, temperature=0.0, cache_kv=cache_kv)[0])


# 16


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


# 17


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


# 18


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('kv_heads', [1, 2, 4])
def test_18_memory_key_values_leave_the_bias_of_real_keys_alone(kv_heads, flash):
    flags = dict(alibi_pos_bias=True, attn_kv_heads=kv_heads, attn_num_mem_kv=3, attn_flash=flash)
    net, x = stack(**flags), randn(2, 5, 8)
    assert_close(net(x), oracles.stack(net.state_dict(), x, causal=True, **SHAPE, **flags))


# 19


@pytest.mark.parametrize('value', [0.01, 5.0])
@pytest.mark.parametrize('topk', [None, 1, 3])
def test_19_clamp_and_top_k_never_revive_masked_keys(topk, value):
    flags = dict(softclamp_logits=True, logit_softclamp_value=value, sparse_topk=topk)
    module, x = randomised(Attention(dim=6, heads=4, dim_head=4, **flags)), randn(2, 7, 6)
    mask = torch.tensor([[True, False, True, False, True, False, False], [True] + [False] * 6])
    _, inter = module(x, mask=mask, return_intermediates=True)
    assert (inter.post_softmax_attn[~mask[:, None, None].expand_as(inter.post_softmax_attn)] == 0).all()
    assert_close(inter.post_softmax_attn.sum(dim=-1), torch.ones(2, 4, 7).double())


# 22


def test_22_the_loss_is_the_cross_entropy_of_the_next_token():
    net, tokens = model(), ids(3, 9)
    tokens[0, 6:] = -100
    logits = net(tokens[:, :-1].clamp(min=0))
    losses = [
        -row[t].log_softmax(dim=-1)[y[t + 1]]
        for row, y in zip(logits, tokens, strict=True)
        for t in range(8)
        if y[t + 1] >= 0
    ]
    assert_close(AutoregressiveWrapper(net)(tokens), torch.stack(losses).mean())


# 23


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('flags', [dict(rotary_pos_emb=True), dict(rotary_xpos=True), dict(alibi_pos_bias=True)])
def test_23_custom_positions_agree_with_counting(flags, flash):
    net, x, count = stack(attn_flash=flash, **flags), randn(2, 7, 8), torch.arange(7)
    out = net(x)
    for pos in (count, count.expand(2, 7)):
        assert_close(net(x, pos=pos), out)
        assert_close(net(x, pos=pos + 5), out, tolerance=1e-5)
        # relative schemes see distances only, row by row
        assert_close(net(x, pos=pos + torch.tensor([[3], [11]])), out, tolerance=1e-5)
        assert not torch.allclose(net(x, pos=2 * pos), out)


# 24


def test_24_one_beam_is_greedy_and_a_wide_beam_exhaustive():
    net, prompt = AutoregressiveWrapper(model(num_tokens=4)), ids(2, 3, num_tokens=4)
    assert torch.equal(net.beam_search(prompt, 5, beams=1), net.generate(prompt, 5, temperature=0.0))
    # every continuation of two tokens but the last is kept: the best of three is the best of all
    wide = net.beam_search(prompt, 2, beams=4)
    for row, found in zip(prompt, wide, strict=True):
        scores = {}
        for tokens in itertools.product(range(4), repeat=2):
            logits = net.net(torch.cat((row, torch.tensor(tokens)))[None, :-1])[0, 2:]
            scores[tokens] = logits.log_softmax(dim=-1).gather(-1, torch.tensor(tokens)[:, None]).sum().item()
        assert tuple(found.tolist()) == max(scores, key=scores.get)


# 25


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
