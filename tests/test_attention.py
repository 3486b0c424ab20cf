"""`Attention` against its formulas: values and gradients, every kernel, masks, odd sizes, shared key heads."""

import pytest
import torch
from oracles import assert_close, assert_same, attention, attention_and_maps, bools, randn, randomised
from sweeps import naming

from x_transformers import Attention

DIM, CONTEXT_DIM = 10, 9
SHAPE = dict(dim=DIM, heads=4, dim_head=6)

# flags that any kernel can run
FREE = {
    'plain': {},
    'kv_heads': dict(kv_heads=2),
    'one_kv_head': dict(one_kv_head=True),
    'value_dim_head': dict(value_dim_head=5, kv_heads=2),
    'num_mem_kv': dict(num_mem_kv=3),
    'num_mem_kv_shared': dict(num_mem_kv=2, kv_heads=2),
    'num_mem_kv_one': dict(num_mem_kv=1, one_kv_head=True, value_dim_head=5),
    'add_zero_kv': dict(add_zero_kv=True, kv_heads=2),
    'zero_and_mem_kv': dict(add_zero_kv=True, num_mem_kv=2),
    'qk_norm': dict(qk_norm=True),
    'qk_norm_groups': dict(qk_norm=True, qk_norm_groups=2, qk_norm_scale=3.0, num_mem_kv=2),
    'qk_norm_dim_scale': dict(qk_norm=True, qk_norm_dim_scale=True, kv_heads=2, num_mem_kv=2),
    'qk_rmsnorm': dict(qk_rmsnorm=True, kv_heads=2, num_mem_kv=1),
    'qk_both_norms': dict(qk_norm=True, qk_rmsnorm=True),
    'head_scale': dict(head_scale=True),
    'gate_values': dict(gate_values=True, value_dim_head=5),
    'swiglu_values': dict(gate_values=True, swiglu_values=True),
    'gate_value_heads': dict(gate_value_heads=True),
    'on_attn': dict(on_attn=True),
    'all_gates': dict(on_attn=True, gate_values=True, gate_value_heads=True, head_scale=True, value_dim_head=3),
    'max_attend_past': dict(max_attend_past=2),
    'max_attend_past_mem': dict(max_attend_past=0, num_mem_kv=2, add_zero_kv=True),
}


def squared(logits):
    return torch.relu(logits) ** 2


# flags that change logits or weights, which a fused kernel does not show
EAGER = {
    'pre_talking_heads': dict(pre_talking_heads=True, kv_heads=2),
    'post_talking_heads': dict(post_talking_heads=True, num_mem_kv=2),
    'pre_scale_post_talking_heads': dict(pre_scale_post_talking_heads=True),
    'all_talking_heads': dict(pre_talking_heads=True, post_talking_heads=True, pre_scale_post_talking_heads=True),
    'softclamp_logits': dict(softclamp_logits=True, logit_softclamp_value=1.5, num_mem_kv=1),
    'sigmoid': dict(sigmoid=True, add_zero_kv=True),
    'sparse_topk': dict(sparse_topk=2, num_mem_kv=1),
    'sparse_topk_many': dict(sparse_topk=40, kv_heads=2),
    'sparse_topk_straight_through': dict(sparse_topk=2, sparse_topk_straight_through=True),
    'custom_attn_fn': dict(custom_attn_fn=squared),
}
NAMED = {**FREE, **EAGER}
KERNELS = [(name, flash) for name in NAMED for flash in ((False, None, True) if name in FREE else (False, None))]

# what is handed to the call beside x (b n d) and context (b j d)
CALLS = {
    'self': {},
    'causal': dict(causal=True),
    'mask': dict(mask=bools(2, 7)),
    'causal_mask': dict(causal=True, mask=bools(2, 7, seed=1)),
    'attn_mask': dict(attn_mask=bools(4, 7, 7, seed=3)),
    'attn_bias': dict(attn_bias=randn(4, 7, 7), mask=bools(2, 7, seed=2), causal=True),
    'cross': dict(context=randn(2, 5, CONTEXT_DIM, seed=8)),
    'cross_mask': dict(context=randn(2, 5, CONTEXT_DIM, seed=8), context_mask=bools(2, 5), mask=bools(2, 7)),
}


def build(context=None, seed=0, **flags):
    if context is not None:
        flags['dim_context'] = context.shape[-1]
    return randomised(Attention(**{**SHAPE, **flags}), seed)


def check(x, flags, call=None, flash=False, oracle_flags=None):
    """`flags` of the constructor, `call` of forward, but for `causal`; the context gets a gradient too."""
    call = dict(call or {})
    context = call.pop('context', None)
    if 'causal' in call:
        flags = {**flags, 'causal': call.pop('causal')}
    module = build(context, flash=flash, **flags)
    known = {name: SHAPE[name] for name in ('heads', 'dim_head')} | flags | (oracle_flags or {})
    known.pop('dim', None)
    inputs = (x,) if context is None else (x, context)
    assert_same(module, lambda *t: module(*t, **call), lambda w, *t: attention(w, *t, **known, **call), *inputs)
    return module


def calls_of(name):
    """A window back in time has no meaning across two sequences."""
    return {call: given for call, given in CALLS.items() if not ('max_attend_past' in name and 'cross' in call)}


@pytest.mark.parametrize(('name', 'flash'), KERNELS)
def test_formula(name, flash):
    for call, given in calls_of(name).items():
        with naming(call):
            check(randn(2, 7, DIM), NAMED[name], given, flash)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('name', 'flash'), KERNELS)
def test_a_single_token(name, flash, causal):
    check(randn(1, 1, DIM), {**NAMED[name], 'causal': causal}, flash=flash)


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize(
    'shape', [(7, 7), (4, 7, 7), (1, 7, 7), (2, 4, 7, 7), (2, 1, 7, 7), (1, 4, 7, 7), (2, 1, 1, 7)]
)
@pytest.mark.parametrize('causal', [False, True])
def test_attn_mask_of_any_rank(shape, causal, flash):
    call = dict(attn_mask=bools(*shape, seed=4), mask=bools(2, 7, seed=5))
    check(randn(2, 7, DIM), dict(causal=causal, num_mem_kv=1), call, flash)


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('shape', [(7, 7), (4, 7, 7), (2, 4, 7, 7)])
def test_attn_bias_of_any_rank(shape, flash):
    call = dict(attn_bias=randn(*shape), mask=bools(2, 7, seed=5))
    check(randn(2, 7, DIM), dict(kv_heads=2, num_mem_kv=2, add_zero_kv=True, causal=True), call, flash)


def test_attn_bias_gets_a_gradient():
    module, x, bias = build(causal=True), randn(2, 7, DIM), randn(4, 7, 7)
    for flash in (False, True, None):
        module = build(causal=True, flash=flash)
        assert_same(
            module,
            lambda x, bias, module=module: module(x, attn_bias=bias),
            lambda w, x, bias: attention(w, x, heads=4, dim_head=6, causal=True, attn_bias=bias),
            x,
            bias,
        )


def test_attn_bias_is_added_after_talking_heads_and_before_the_clamp():
    flags = dict(pre_talking_heads=True, softclamp_logits=True, logit_softclamp_value=0.7)
    check(randn(2, 7, DIM), flags, dict(attn_bias=randn(4, 7, 7)))


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(
    'flags', [{}, dict(num_mem_kv=2, kv_heads=2), dict(max_attend_past=3)], ids=['', 'mem_kv', 'window']
)
def test_xl_memory(flags, causal, flash):
    mem, mask = randn(2, 4, DIM, seed=5), bools(2, 7, seed=6)
    for call in (dict(), dict(mask=mask), dict(mem_mask=bools(2, 4)), dict(mask=mask, mem_mask=bools(2, 4))):
        module = build(causal=causal, flash=flash, **flags)
        assert_same(
            module,
            lambda x, mem, module=module, call=call: module(x, mem=mem, **call),
            lambda w, x, mem, call=call: attention(w, x, heads=4, dim_head=6, causal=causal, mem=mem, **flags, **call),
            randn(2, 7, DIM),
            mem,
        )


@pytest.mark.parametrize('flash', [False, True, None])
def test_xl_memory_with_a_key_mask_of_the_new_tokens(flash):
    call = dict(mem=randn(2, 4, DIM, seed=5), context_mask=bools(2, 7, seed=6))
    check(randn(2, 7, DIM), dict(causal=True), call, flash)


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('kv_heads', [1, 2, 4])
@pytest.mark.parametrize('learned', [False, True])
def test_value_residual(learned, kv_heads, flash):
    flags = dict(kv_heads=kv_heads, learned_value_residual_mix=learned, value_dim_head=5)
    call = dict(value_residual=randn(2, kv_heads, 7, 5), causal=True)
    check(randn(2, 7, DIM), flags, call, flash)
    call.pop('value_residual')
    check(randn(2, 7, DIM), flags, call, flash)


def test_residual_attention_adds_to_the_scaled_logits():
    flags = dict(pre_talking_heads=True, pre_scale_post_talking_heads=True, kv_heads=2)
    check(randn(2, 7, DIM), flags, dict(prev_attn=randn(2, 4, 7, 7)))


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('built', [False, True])
@pytest.mark.parametrize('called', [False, True])
def test_causal_of_the_call_counts(built, called, flash):
    module, x = build(causal=built, flash=flash), randn(2, 7, DIM)
    wanted = attention(module.state_dict(), x, heads=4, dim_head=6, causal=called)
    assert_close(module(x, causal=called), wanted)


# heads, widths, projections


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('dim_head', [6, DIM])
def test_one_head(dim_head, flash):
    module = check(randn(2, 7, DIM), dict(heads=1, dim_head=dim_head), flash=flash)
    assert ('to_out.weight' in module.state_dict()) == (dim_head != DIM)
    assert module(randn(2, 7, DIM)).shape == (2, 7, DIM)


def test_many_shapes_of_heads():
    for heads, kv_heads, dim_head, width in ((6, 3, 1, 2), (6, 2, 7, 1), (3, 1, 4, 4), (2, 2, 5, 9)):
        flags = dict(heads=heads, kv_heads=kv_heads, dim_head=dim_head, value_dim_head=width)
        check(randn(1, 3, DIM), flags)


def test_state_dict_names_and_shapes():
    flags = dict(kv_heads=2, value_dim_head=5, num_mem_kv=3, qk_norm=True, qk_norm_dim_scale=True, qk_rmsnorm=True)
    flags |= dict(pre_talking_heads=True, post_talking_heads=True, pre_scale_post_talking_heads=True, head_scale=True)
    flags |= dict(gate_values=True, gate_value_heads=True, on_attn=True, dim_context=CONTEXT_DIM)
    flags |= dict(learned_value_residual_mix=True)
    wanted = {
        **{'to_q.weight': (24, 10), 'to_k.weight': (12, 9), 'to_v.weight': (10, 9), 'to_out.0.weight': (20, 20)},
        **{'mem_k': (2, 3, 6), 'mem_v': (2, 3, 5), 'qk_norm_q_scale': (4, 1, 6), 'qk_norm_k_scale': (2, 1, 6)},
        **{'q_rmsnorm.gamma': (4, 1, 6), 'k_rmsnorm.gamma': (2, 1, 6), 'head_scale_params': (1, 4, 1, 1)},
        **{f'attend.{name}_talking_heads.weight': (4, 4, 1, 1) for name in ('pre_softmax', 'post_softmax')},
        **{'attend.pre_scale_post_talking_heads.weight': (4, 4, 1, 1), 'to_v_gate.weight': (20, 10)},
        **{'to_v_head_gate.weight': (4, 10), 'to_v_head_gate.bias': (4,)},
        **{'to_value_residual_mix.0.weight': (2, 10), 'to_value_residual_mix.0.bias': (2,)},
    }
    state = Attention(**SHAPE, **flags).state_dict()
    assert {name: tuple(t.shape) for name, t in state.items()} == wanted


def test_initial_values():
    flags = dict(num_mem_kv=3, qk_norm=True, qk_norm_dim_scale=True, qk_rmsnorm=True, pre_talking_heads=True)
    flags |= dict(head_scale=True, gate_values=True, gate_value_heads=True, zero_init_output=True)
    state = Attention(**SHAPE, **flags).state_dict()
    constant = {'qk_norm_q_scale': 6**0.25, 'qk_norm_k_scale': 6**0.25, 'q_rmsnorm.gamma': 0, 'k_rmsnorm.gamma': 0}
    constant |= {'head_scale_params': 1, 'to_v_gate.weight': 0, 'to_v_head_gate.weight': 0, 'to_v_head_gate.bias': 10}
    for name, value in (constant | {'to_out.weight': 0}).items():
        assert torch.allclose(state[name], torch.full_like(state[name], value)), name
    assert torch.equal(state['attend.pre_softmax_talking_heads.weight'][:, :, 0, 0], torch.eye(4))


@pytest.mark.parametrize('flags', [{}, dict(on_attn=True), dict(heads=1, dim_head=DIM, on_attn=True)])
def test_zero_init_output_silences_the_branch(flags):
    module = Attention(**{**SHAPE, **flags}, zero_init_output=True)
    assert torch.equal(module(torch.randn(2, 7, DIM)), torch.zeros(2, 7, DIM))


# masks


def dead_rows():
    """Calls in which some query sees no key, and which (b n)."""
    rows = torch.ones(2, 7, dtype=torch.bool)
    empty_row = bools(4, 7, 7, seed=9) | torch.eye(7, dtype=torch.bool)
    empty_row[:, 2] = False
    left = torch.tensor([[False] * 3 + [True] * 4, [True] * 7])
    return {
        'every key hidden': (dict(mask=rows & False), ~rows),
        'every context key hidden': (dict(context=randn(2, 5, CONTEXT_DIM), context_mask=bools(2, 5) & False), ~rows),
        'row of the attn_mask': (dict(attn_mask=empty_row), (torch.arange(7) != 2).expand(2, 7)),
        'left padding': (dict(causal=True, context_mask=left), left),
        'context shorter than x': (
            dict(causal=True, context=randn(2, 5, CONTEXT_DIM)),
            (torch.arange(7) > 1).expand(2, 7),
        ),
        'left padding with bias': (dict(causal=True, context_mask=left, attn_bias=randn(4, 7, 7)), left),
    }


DIFFERENT = {'plain', 'kv_heads', 'one_kv_head', 'add_zero_kv', 'qk_norm', 'all_gates', *EAGER}


@pytest.mark.parametrize(('name', 'flash'), [(name, flash) for name, flash in KERNELS if name in DIFFERENT])
def test_rows_without_visible_keys_are_zero(name, flash):
    flags = dict(NAMED[name])
    flags.pop('num_mem_kv', None)
    for case, (call, alive) in dead_rows().items():
        with naming(case):
            module = check(randn(2, 7, DIM), flags, call, flash)
            out = module(randn(2, 7, DIM), **{name: value for name, value in call.items() if name != 'causal'})
            assert (out[~alive] == 0).all()
            assert (out[alive] != 0).any(dim=-1).all()


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize(
    'flags', [dict(num_mem_kv=1), dict(num_mem_kv=3, kv_heads=2), dict(num_mem_kv=1, add_zero_kv=True)]
)
def test_learned_keys_are_visible_to_rows_without_any_other(flags, flash):
    for call, _ in dead_rows().values():
        check(randn(2, 7, DIM), flags, call, flash)


@pytest.mark.parametrize('flash', [False, True, None])
def test_a_row_hidden_from_one_head_only(flash):
    mask = torch.ones(4, 7, 7, dtype=torch.bool)
    mask[1, 3] = False
    check(randn(2, 7, DIM), dict(kv_heads=2), dict(attn_mask=mask), flash)


@pytest.mark.parametrize(('name', 'flash'), KERNELS)
def test_hidden_tokens_do_not_matter(name, flash):
    mask = torch.tensor([[True, True, False, True, True, False, False]])
    module, x = build(flash=flash, **NAMED[name]), randn(1, 7, DIM)
    other = torch.where(mask[..., None], x, 30 * randn(1, 7, DIM, seed=1))
    assert torch.equal(module(x, mask=mask), module(other, mask=mask))
    assert (module(x, mask=mask)[~mask] == 0).all()


def test_only_the_context_mask_hides_keys_of_a_context():
    module, x, context = build(randn(2, 5, CONTEXT_DIM)), randn(2, 7, DIM), randn(2, 5, CONTEXT_DIM)
    mask = bools(2, 7, seed=2)
    assert_close(module(x, context=context, mask=mask)[mask], module(x, context=context)[mask])


# top-k


def test_sparse_topk_keeps_ties():
    module = build(sparse_topk=1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_((2 * parameter).round())
    # in whole numbers, equal tokens give equal logits on any machine
    x = (2 * randn(1, 3, DIM)).round()[:, [0, 1, 1, 2, 1]]
    out, inter = module(x, return_intermediates=True)
    assert_close(out, attention(module.state_dict(), x, heads=4, dim_head=6, sparse_topk=1))
    assert set((inter.post_softmax_attn > 0).sum(dim=-1).unique().tolist()) == {1, 3}


@pytest.mark.parametrize('straight_through', [False, True])
def test_sparse_topk_keeps_no_more_than_asked(straight_through):
    flags = dict(sparse_topk=3, sparse_topk_straight_through=straight_through)
    _, inter = build(**flags)(randn(2, 7, DIM), return_intermediates=True)
    assert ((inter.post_softmax_attn > 1e-12).sum(dim=-1) == 3).all()
    assert_close(inter.post_softmax_attn.sum(dim=-1), torch.ones(2, 4, 7, dtype=torch.float64))


# what is recorded


@pytest.mark.parametrize(('name', 'flash'), [at for at in KERNELS if not at[1]])
def test_intermediates(name, flash):
    for call, given in calls_of(name).items():
        if call not in ('cross', 'attn_mask'):
            with naming(call):
                intermediates_law(name, flash, dict(given))


def intermediates_law(name, flash, call):
    flags = dict(NAMED[name])
    context = call.pop('context', None)
    flags['causal'] = call.pop('causal', False)
    module, x = build(context, flash=flash, **flags), randn(2, 7, DIM)
    out, inter = module(x, context, return_intermediates=True, **call)
    wanted, maps = attention_and_maps(module.state_dict(), x, context, heads=4, dim_head=6, **flags, **call)
    seen, alive = maps['seen'], maps['seen'].any(dim=-1)

    assert_close(out, wanted)
    assert_close(inter.qk_similarities, maps['similarities'], 'qk_similarities')
    assert_close(inter.pre_softmax_attn[seen], maps['logits'][seen], 'pre_softmax_attn')
    assert (inter.pre_softmax_attn[~seen] <= torch.finfo(torch.float32).min).all()
    assert_close(inter.post_softmax_attn, maps['weights'], 'post_softmax_attn')
    assert_close(inter.values, maps['values'], 'values')
    if name in FREE:
        assert_close(inter.pre_softmax_attn.softmax(dim=-1)[alive], inter.post_softmax_attn[alive], 'softmax(pre)')
    similarities, before, after = inter.to_tuple()
    assert similarities is not None and before is not None and after is not None


def test_cached_keys_are_normed_but_not_rotated():
    module, x = build(causal=True, qk_norm=True, kv_heads=2, num_mem_kv=3), randn(2, 7, DIM)
    angles = torch.arange(7.0)[None, :, None].expand(1, 7, 4).double()
    _, inter = module(x, rotary_pos_emb=(angles, 1.0), return_intermediates=True)
    k, v = inter.cached_kv
    assert k.shape == (2, 2, 7, 6) and v.shape == (2, 2, 7, 6)
    assert_close(k.norm(dim=-1), torch.ones(2, 2, 7).double())
    _, plain = module(x, return_intermediates=True)
    assert_close(k, plain.cached_kv[0])


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize(
    'name', ['plain', 'kv_heads', 'num_mem_kv_one', 'zero_and_mem_kv', 'qk_norm_dim_scale', 'all_gates']
)
def test_cache_of_the_bare_module(name, flash):
    module, x = build(causal=True, flash=flash, **NAMED[name]), randn(2, 7, DIM)
    wanted, inter = module(x), None
    steps = []
    for part in (x[:, :3], x[:, 3:4], x[:, 4:]):
        out, inter = module(part, cache=inter, return_intermediates=True)
        steps.append(out)
    assert_close(torch.cat(steps, dim=1), wanted)


# dropout


@pytest.mark.parametrize('flash', [False, True, None])
def test_dropout_drops_and_rescales_weights(flash):
    module = build(dropout=0.5, flash=flash, dim_head=5, heads=2)
    with torch.no_grad():
        module.to_out.weight.copy_(torch.eye(DIM))
    x = randn(1, 1, DIM).expand(64, 1, DIM)
    wanted = module(x).unflatten(-1, (2, 5))
    torch.manual_seed(0)
    dropped = module.train()(x).unflatten(-1, (2, 5))
    # with one key, a head's only weight is either dropped or doubled
    gone = (dropped == 0).all(dim=-1)
    assert 0.3 < gone.double().mean() < 0.7
    assert_close(dropped[~gone], 2 * wanted[~gone])


# refusals


@pytest.mark.parametrize('name', EAGER)
def test_a_fused_kernel_refuses_what_it_cannot_run(name):
    flags = EAGER[name].keys() - {'kv_heads', 'num_mem_kv', 'add_zero_kv'}
    with pytest.raises(ValueError, match='|'.join(flags)):
        Attention(**SHAPE, flash=True, **EAGER[name])


def test_a_fused_kernel_refuses_residual_attention():
    with pytest.raises(ValueError, match='prev_attn'):
        build(flash=True)(randn(2, 7, DIM), prev_attn=randn(2, 4, 7, 7))


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(kv_heads=2, one_kv_head=True), 'kv_head'),
        (dict(kv_heads=3), 'kv_heads'),
        (dict(sigmoid=True, sparse_topk=2), 'sigmoid.*sparse_topk|sparse_topk.*sigmoid'),
        (dict(qk_norm=True, qk_norm_groups=4), 'qk_norm_groups'),
        (dict(qk_norm=True, qk_norm_groups=3), 'qk_norm_groups'),
        (dict(softclamp_logits=True, logit_softclamp_value=0.0), 'logit_softclamp_value'),
        (dict(head_scales=True), 'head_scale'),
    ],
)
def test_refusals(flags, words):
    with pytest.raises((ValueError, TypeError), match=words):
        Attention(**SHAPE, **flags)


def test_a_window_across_two_sequences_is_refused():
    with pytest.raises(ValueError, match='max_attend_past'):
        build(max_attend_past=2)(randn(2, 7, DIM), randn(2, 5, DIM))


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (dict(mask=torch.ones(2, 6).bool()), 'mask'),
        (dict(context_mask=torch.ones(2, 6).bool()), 'context_mask'),
        (dict(attn_mask=torch.ones(7).bool()), 'attn_mask'),
        (dict(attn_mask=torch.ones(7, 5).bool()), 'attn_mask'),
        (dict(attn_bias=torch.ones(4, 7, 5)), 'attn_bias'),
    ],
)
@pytest.mark.parametrize('flash', [False, None])
def test_refusals_of_inputs(call, words, flash):
    with pytest.raises((ValueError, TypeError), match=words):
        build(flash=flash)(randn(2, 7, DIM), **call)


def test_the_gate_of_early_releases_starts_open():
    module = Attention(12, heads=2, gate_values=True, gate_values_bias=True)
    assert (module.to_v_gate.bias == 10).all() and (module.to_v_gate.weight == 0).all()


def test_keys_in_front_have_no_position_for_their_values():
    """Where tokens have values of zero, what is read is the learned values as they are."""
    module = randomised(Attention(12, heads=2, dim_head=6, causal=True, rotate_values=True, num_mem_kv=2))
    module.to_v.weight.data.zero_()
    module.to_out = torch.nn.Identity()
    angles = torch.arange(5.0)[:, None] * torch.tensor([1.0, 1.0, 0.1, 0.1])
    out, trace = module(randn(1, 5, 12), rotary_pos_emb=(angles, 1.0), return_intermediates=True)
    wanted = trace.post_softmax_attn[..., :2] @ module.mem_v
    assert_close(out, wanted.transpose(1, 2).flatten(2))


@pytest.mark.parametrize('flags', [{}, dict(flash=False), dict(sparse_topk=2), dict(softclamp_logits=True)], ids=str)
def test_nothing_to_see_and_nobody_who_looks(flags):
    """A context without tokens gives zeros, a sequence without tokens none."""
    layer, x = Attention(16, 8, heads=2, **flags), torch.randn(2, 4, 16)
    for mask in (None, torch.ones(2, 0) > 0):
        assert torch.equal(layer(x, context=x[:, :0], context_mask=mask), torch.zeros_like(x))
        assert layer(x[:, :0], mask=mask).shape == (2, 0, 16)
    assert layer(x[:, :0], context=x).shape == (2, 0, 16)
