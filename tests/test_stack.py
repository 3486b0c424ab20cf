"""Stacks of layers against their formulas: norms, residuals, wrappers, orders; values and gradients."""

import random

import oracles
import pytest
import torch
from oracles import assert_close, assert_same, bools, randn, randomised
from sweeps import crossed

from x_transformers import CrossAttender, Decoder, Encoder, PrefixDecoder
from x_transformers.features.norms import ReZero
from x_transformers.x_transformers import (
    AdaptiveLayerNorm,
    AdaptiveRMSNorm,
    AttentionLayers,
    GRUGating,
    LayerNorm,
    LayerScale,
    RMSNorm,
    Scale,
    ScaleNorm,
    SimpleRMSNorm,
)

SHAPE = dict(dim=6, heads=4, attn_dim_head=3, ff_mult=1)
CONDITION = dict(dim_condition=5)

NORMS = {
    'layer': {},
    'rms': dict(use_rmsnorm=True),
    'scale': dict(use_scalenorm=True),
    'simple': dict(use_simple_rmsnorm=True),
    'adaptive_layer': dict(use_adaptive_layernorm=True, **CONDITION),
    'adaptive_rms': dict(use_adaptive_rmsnorm=True, **CONDITION),
}
PLACES = {
    'pre_norm': {},
    'post_norm': dict(pre_norm=False),
    'sandwich_norm': dict(sandwich_norm=True),
    'no_offset': dict(norm_add_unit_offset=False),
}
FEATURES = {
    'layerscale': dict(use_layerscale=True, layerscale_init_value=0.1),
    'layerscale_no_offset': dict(use_layerscale=True, norm_add_unit_offset=False),
    'adaptive_layerscale': dict(use_adaptive_layerscale=True, **CONDITION),
    'adaptive_all': dict(
        use_adaptive_layerscale=True, use_adaptive_rmsnorm=True, adaptive_condition_mlp=True, **CONDITION
    ),
    'gate_residual': dict(gate_residual=True),
    'gate_scale_residual': dict(gate_residual=True, scale_residual=True),
    'scale_residual': dict(scale_residual=True),
    'scale_residual_number': dict(scale_residual=0.5),
    'scale_residual_constant': dict(scale_residual_constant=0.7),
    'residual_attn': dict(residual_attn=True, attn_pre_talking_heads=True, attn_num_mem_kv=1),
    'residual_attn_biased': dict(residual_attn=True, alibi_pos_bias=True, attn_softclamp_logits=True),
    'residual_attn_scale_post': dict(residual_attn=True, attn_pre_scale_post_talking_heads=True, attn_kv_heads=2),
    'residual_attn_post_norm': dict(residual_attn=True, pre_norm=False),
    'value_residual': dict(add_value_residual=True),
    'value_residual_half': dict(add_value_residual=True, learned_value_residual_mix=False, attn_value_dim_head=2),
    'value_residual_shared_heads': dict(add_value_residual=True, attn_kv_heads=2),
    'shift_tokens': dict(shift_tokens=1),
    'shift_tokens_far': dict(shift_tokens=2),
    'shift_tokens_by_layer': dict(shift_tokens=(1, 0, 2, 0, 0, 1)),
    'macaron': dict(macaron=True),
    'every_wrapper': dict(scale_residual=0.5, use_layerscale=True, shift_tokens=1, macaron=True),
    'sandwich_coef': dict(sandwich_coef=2),
    'par_ratio': dict(par_ratio=3),
    'custom_layers': dict(custom_layers=('f', 'a', 'a', 'f'), depth=None),
    'layers_execute_order': dict(layers_execute_order=(0, 1, 2, 1, 0, 5)),
    'weight_tie_layers': dict(weight_tie_layers=True),
    'weight_tie_value_residual': dict(
        weight_tie_layers=True, add_value_residual=True, learned_value_residual_mix=False
    ),
    'weight_tie_macaron': dict(weight_tie_layers=True, macaron=True),
}


def oracle_flags(kind, flags):
    causal = {'causal': kind in (Decoder,)}
    cross = dict(cross_attend=True, only_cross=True) if kind is CrossAttender else {}
    return {**flags, **causal, **cross}


def agree(kind, flags, call=None, x=None, context=None, seed=0):
    flags, call = {**SHAPE, 'depth': 3, **flags}, dict(call or {})
    if 'dim_condition' in flags:
        call.setdefault('condition', randn(2, 5, seed=9))
    flags = {name: value for name, value in flags.items() if value is not None}
    net = randomised(kind(**flags), seed)
    inputs = [randn(2, 5, 6) if x is None else x] + ([] if context is None else [context])
    known = oracle_flags(kind, flags)
    assert_same(net, lambda *t: net(*t, **call), lambda w, *t: oracles.stack(w, *t, **known, **call), *inputs)
    return net


# norms alone


@pytest.mark.parametrize('offset', [False, True])
@pytest.mark.parametrize('shape', [(2, 7, 5), (1, 1, 1), (3, 5)])
@pytest.mark.parametrize(
    ('kind', 'name'), [(LayerNorm, 'layer'), (RMSNorm, 'rms'), (ScaleNorm, 'scale'), (SimpleRMSNorm, 'simple')]
)
def test_norms(kind, name, shape, offset):
    module = randomised(kind(shape[-1], unit_offset=offset))
    assert_same(module, module, lambda w, x: oracles.norm(w, x, name, offset), randn(*shape))


@pytest.mark.parametrize('kind', [LayerNorm, RMSNorm, ScaleNorm])
def test_gains_start_at_one(kind):
    x = randn(2, 7, 5)
    plain, offset = kind(5).double(), kind(5, unit_offset=True).double()
    assert_close(plain(x), offset(x))
    assert (plain.state_dict().popitem()[1] == 1).all() and (offset.state_dict().popitem()[1] == 0).all()


@pytest.mark.parametrize(('kind', 'name'), [(AdaptiveLayerNorm, 'adaptive_layer'), (AdaptiveRMSNorm, 'adaptive_rms')])
@pytest.mark.parametrize('shape', [(2, 4), (2, 7, 4), (2, 1, 4)])
def test_adaptive_norms(kind, name, shape):
    module = randomised(kind(5, dim_condition=4))
    assert_same(
        module,
        lambda x, condition: module(x, condition=condition),
        lambda w, x, condition: oracles.norm(w, x, name, False, condition),
        randn(2, 7, 5),
        randn(*shape, seed=1),
    )


def test_norms_of_a_zero_vector_are_zero_and_have_finite_gradients():
    for kind in (LayerNorm, RMSNorm, ScaleNorm, SimpleRMSNorm):
        x = torch.zeros(1, 2, 5, requires_grad=True)
        out = kind(5)(x)
        out.sum().backward()
        assert (out == 0).all() and x.grad.isfinite().all()


def test_gru_gating():
    module = randomised(GRUGating(5))
    assert_same(
        module,
        lambda out, residual: module(out, residual),
        lambda w, out, residual: oracles.gru(oracles.sub(w, 'gru.'), out, residual),
        randn(2, 7, 5),
        randn(2, 7, 5, seed=1),
    )


# norms in a stack


@pytest.mark.parametrize('kind', [Encoder, Decoder])
@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('norm', NORMS)
def test_norms_in_a_stack(norm, place, kind):
    agree(kind, {**NORMS[norm], **PLACES[place], 'depth': 2})


@pytest.mark.parametrize('norm', ['adaptive_layer', 'adaptive_rms'])
@pytest.mark.parametrize('mlp', [False, True])
@pytest.mark.parametrize('shape', [(2, 5), (2, 5, 5), (2, 1, 5)])
def test_condition(norm, mlp, shape):
    flags = {**NORMS[norm], 'adaptive_condition_mlp': mlp, 'adaptive_condition_mlp_expansion': 2, 'depth': 1}
    agree(Encoder, flags, dict(condition=randn(*shape, seed=3)))


# features


@pytest.mark.parametrize(
    ('at', 'kind'), crossed([(name, flash) for name in FEATURES for flash in (False, None)], [Encoder, Decoder])
)
def test_feature(at, kind):
    name, flash = at
    agree(kind, {**FEATURES[name], 'attn_flash': flash})


@pytest.mark.parametrize('name', [name for name in FEATURES if 'residual_attn' not in name])
def test_feature_on_the_fused_kernel(name):
    agree(Decoder, {**FEATURES[name], 'attn_flash': True})


@pytest.mark.parametrize('kind', [Encoder, Decoder])
@pytest.mark.parametrize('name', FEATURES)
def test_feature_with_a_mask(name, kind):
    """Hidden tokens never matter to the others; the rest equals the formula."""
    mask = torch.tensor([[True, True, False, True, True], [True, True, True, False, False]])
    flags = {**SHAPE, 'depth': 3, **FEATURES[name]}
    flags = {key: value for key, value in flags.items() if value is not None}
    call = dict(mask=mask) | (dict(condition=randn(2, 5, seed=9)) if 'dim_condition' in flags else {})
    net, x = randomised(kind(**flags)), randn(2, 5, 6)
    wanted = oracles.stack(net.state_dict(), x, **oracle_flags(kind, flags), **call)
    assert_close(net(x, **call)[mask], wanted[mask])
    other = torch.where(mask[..., None], x, 30 * randn(2, 5, 6, seed=1))
    assert_close(net(other, **call)[mask], wanted[mask])


@pytest.mark.parametrize('kind', [Encoder, Decoder])
@pytest.mark.parametrize('name', FEATURES)
def test_feature_on_one_token(name, kind):
    condition = dict(condition=randn(1, 5)) if 'dim_condition' in FEATURES[name] else {}
    agree(kind, FEATURES[name], condition, x=randn(1, 1, 6))


@pytest.mark.parametrize('n', [4, 5, 8])  # the order of a sum depends on the size
@pytest.mark.parametrize('mixing', ['pre_talking_heads', 'pre_scale_post_talking_heads', 'post_talking_heads'])
def test_residual_attention_carries_no_overflow(mixing, n):
    """Hidden logits are mixed, clamped and added up over layers, and no infinity or NaN comes of it."""
    flags = {**SHAPE, f'attn_{mixing}': True, 'depth': 3, 'residual_attn': True, 'attn_softclamp_logits': True}
    net, call = randomised(Encoder(**flags), scale=1.5), dict(mask=bools(2, n) | (torch.arange(n) < 1))
    assert_same(net, lambda x: net(x, **call), lambda w, x: oracles.stack(w, x, **flags, **call), randn(2, n, 6))


CROSS = {
    'plain': {},
    'dim_context': dict(cross_attn_dim_context=4),
    'own_flags': dict(attn_qk_norm=True, cross_attn_qk_norm=False, cross_attn_num_mem_kv=2, attn_kv_heads=2),
    'gate_residual': dict(gate_residual=True, pre_norm=False),
    'shift_tokens': dict(shift_tokens=1),
    'macaron': dict(macaron=True),
    'value_residual': dict(add_value_residual=True),
    'cross_residual_attn': dict(cross_residual_attn=True, residual_attn=True),
    'weight_tie_layers': dict(weight_tie_layers=True),
    'par_ratio': dict(par_ratio=3),
    'sandwich_norm': dict(sandwich_norm=True, use_rmsnorm=True),
    'adaptive': dict(use_adaptive_layernorm=True, use_adaptive_layerscale=True, **CONDITION),
}


@pytest.mark.parametrize(
    ('at', 'flash'),
    crossed([(name, kind) for name in CROSS for kind in (Encoder, Decoder, CrossAttender)], [False, None, True, None]),
)
def test_cross_attention(at, flash):
    name, kind = at
    flash = flash if 'residual_attn' not in name else flash and None
    flags = {'attn_flash': flash, 'depth': 2, **CROSS[name]}
    if kind is not CrossAttender:
        flags['cross_attend'] = True
    elif name in ('par_ratio', 'cross_residual_attn'):
        flags.pop('residual_attn', None)
    call = dict(
        context_mask=torch.tensor([[True, False, True], [True, True, False]]), mask=bools(2, 5) | (torch.arange(5) < 1)
    )
    context = randn(2, 3, flags.get('cross_attn_dim_context', 6), seed=4)
    agree(kind, flags, {}, context=context)
    if 'shift' not in name:
        agree(kind, flags, call, context=context)


def test_only_cross():
    agree(Encoder, dict(cross_attend=True, only_cross=True), context=randn(2, 3, 6))
    assert Encoder(**SHAPE, depth=2, cross_attend=True, only_cross=True).layer_types == ('c', 'f', 'c', 'f')


@pytest.mark.parametrize('flash', [False, None, True])
@pytest.mark.parametrize('kind', [Encoder, Decoder])
def test_masks_of_the_call(kind, flash):
    for call in (
        dict(attn_mask=bools(5, 5) | torch.eye(5).bool()),
        dict(attn_mask=bools(4, 5, 5) | torch.eye(5).bool(), mask=bools(2, 5)),
        dict(self_attn_kv_mask=bools(2, 5)),
        dict(seq_start_pos=torch.tensor([2, 0]), mask=torch.arange(5) < torch.tensor([[4], [5]])),
        dict(self_attn_kv_mask=bools(2, 5), mask=bools(2, 5, seed=1)),
        dict(attn_bias=randn(4, 5, 5)),
        dict(attn_bias=randn(2, 4, 5, 5), mask=bools(2, 5)),
        dict(mems=[randn(2, 3, 6, seed=5), randn(2, 3, 6, seed=6)]),
    ):
        agree(kind, dict(attn_flash=flash, attn_num_mem_kv=1, depth=2), call)
        if 'mems' not in call:
            agree(kind, dict(attn_flash=flash, shift_tokens=1, depth=2), call)


@pytest.mark.parametrize('flash', [False, None])
@pytest.mark.parametrize('flags', [dict(alibi_pos_bias=True), dict(rel_pos_bias=True), dict(dynamic_pos_bias=True)])
def test_a_bias_of_the_call_is_added_to_that_of_the_positions(flags, flash):
    agree(Decoder, dict(attn_flash=flash, attn_num_mem_kv=1, depth=2, **flags), dict(attn_bias=randn(4, 5, 5)))


@pytest.mark.parametrize('built', [False, True])
@pytest.mark.parametrize('called', [False, True])
@pytest.mark.parametrize('flash', [False, None, True])
def test_causal_of_the_call_counts(built, called, flash):
    flags = {**SHAPE, 'depth': 2, 'attn_flash': flash}
    net, x = randomised(AttentionLayers(causal=built, **flags)), randn(2, 5, 6)
    assert_close(net(x, causal=called), oracles.stack(net.state_dict(), x, causal=called, **flags))


def test_prefix_decoder():
    net, x = randomised(PrefixDecoder(**SHAPE, depth=2)), randn(2, 5, 6)
    triangle = torch.ones(5, 5).tril().bool()
    for prefix in (None, 1, 3, torch.tensor([4, 0])):
        mask = triangle
        if prefix is not None:
            inside = torch.arange(5) < (prefix[:, None, None, None] if torch.is_tensor(prefix) else prefix)
            mask = mask | inside
        other = bools(5, 5) | torch.eye(5).bool()
        for extra in (None, other):
            seen = mask if extra is None else mask & extra
            wanted = oracles.stack(net.state_dict(), x, **SHAPE, depth=2, attn_mask=seen)
            assert_close(net(x, prefix_attn_len=prefix, attn_mask=extra), wanted)


# orders


@pytest.mark.parametrize(
    ('flags', 'types'),
    [
        (dict(depth=2), 'afaf'),
        (dict(depth=3, par_ratio=3), 'affaff'),
        (dict(depth=4, par_ratio=2), 'aaaaffff'),
        (dict(depth=6, par_ratio=5), 'afffffafffff'),
        (dict(depth=12, par_ratio=5), 'affffaffffaffffaffffffff'),
        (dict(depth=4, par_ratio=3, cross_attend=True), 'acacacacffff'),
        (dict(depth=3, sandwich_coef=2), 'aaafff'),
        (dict(depth=3, sandwich_coef=1, macaron=True), 'afaffaff'),
        (dict(depth=2, macaron=True, cross_attend=True), 'facffacf'),
        (dict(depth=2, cross_attend=True, only_cross=True), 'cfcf'),
        (dict(custom_layers=('a', 'f', 'f')), 'aff'),
    ],
)
def test_layer_types(flags, types):
    assert oracles.layer_types(**flags) == types
    assert ''.join(Encoder(**SHAPE, **flags).layer_types) == types


def test_weight_tying_stores_one_block():
    net = Encoder(**SHAPE, depth=3, weight_tie_layers=True)
    assert net.layer_types == ('a', 'f')
    assert tuple(net.layers_execute_order) == (0, 1) * 3
    assert net.state_dict().keys() == Encoder(**SHAPE, depth=1).state_dict().keys()


def test_execution_order_of_the_call():
    net, x = randomised(Encoder(**SHAPE, depth=2)), randn(2, 5, 6)
    for order in ((3, 2, 1, 0), (0,), (1, 1, 2)):
        wanted = oracles.stack(net.state_dict(), x, **SHAPE, depth=2, layers_execute_order=order)
        assert_close(net(x, layers_execute_order=order), wanted)


# stochastic depth, zero branches


def test_layer_dropout_runs_some_of_the_layers():
    net, x = randomised(Encoder(**SHAPE, depth=1, layer_dropout=0.5)), randn(2, 5, 6)
    orders = [(), (0,), (1,), (0, 1)]
    every = [oracles.stack(net.state_dict(), x, **SHAPE, depth=1, layers_execute_order=order) for order in orders[1:]]
    # an empty order would mean the usual one
    every.insert(0, oracles.norm(oracles.sub(net.state_dict(), 'final_norm.'), x, 'layer', True))
    assert_close(net(x), every[-1])
    net.train()
    seen = set()
    for seed in range(40):
        random.seed(seed)
        torch.manual_seed(seed)
        out = net(x)
        seen |= {order for order, wanted in zip(orders, every, strict=True) if torch.allclose(out, wanted)}
        assert any(torch.allclose(out, wanted) for wanted in every)
    assert seen == set(orders)


def test_layer_dropout_of_each_layer():
    net, x = randomised(Encoder(**SHAPE, depth=1, layer_dropout=(0.0, 0.9))).train(), randn(2, 5, 6)
    kept = oracles.stack(net.state_dict(), x, **SHAPE, depth=1)
    dropped = oracles.stack(net.state_dict(), x, **SHAPE, depth=1, layers_execute_order=(0,))
    counts = torch.tensor(
        [[torch.allclose(out, wanted) for wanted in (kept, dropped)] for out in (net(x) for _ in range(60))]
    )
    assert counts.any(dim=-1).all()
    assert 0 < counts[:, 0].sum() < 20


def test_layer_dropout_gives_each_layer_its_own_memory():
    """With a dropped layer in between, the next attention layer still reads the memory made for it."""
    net, x = randomised(Encoder(**SHAPE, depth=2, layer_dropout=(0.9, 0.0, 0.0, 0.0))).train(), randn(2, 5, 6)
    mems = [randn(2, 3, 6, seed=5), randn(2, 3, 6, seed=6)]
    wanted = oracles.stack(net.state_dict(), x, **SHAPE, depth=2, layers_execute_order=(1, 2, 3), mems=mems[1:])
    assert any(torch.allclose(net(x, mems=mems), wanted) for _ in range(20))


@pytest.mark.parametrize(
    'flags', [{}, dict(ff_glu=True), dict(attn_on_attn=True), dict(cross_attend=True), dict(macaron=True)]
)
def test_zero_init_branch_output_makes_the_identity(flags):
    net, x = Encoder(**SHAPE, depth=2, zero_init_branch_output=True, **flags), torch.randn(2, 5, 6)
    context = dict(context=torch.randn(2, 3, 6)) if 'cross_attend' in flags else {}
    assert torch.equal(net(x, **context), net.final_norm(x))


def test_layerscale_starts_at_its_initial_value():
    for offset in (False, True):
        for value in (0.0, 0.3):
            flags = dict(use_layerscale=True, layerscale_init_value=value, norm_add_unit_offset=offset)
            net = Encoder(**SHAPE, depth=1, **flags)
            for index in range(2):
                gamma = net.state_dict()[f'layers.{index}.1.gamma']
                assert torch.allclose(gamma, torch.full_like(gamma, value - offset))


# state dict


def test_state_dict_names():
    names = {
        **{'layers.0.0.0.gamma': (6,), 'layers.0.1.to_q.weight': (12, 6), 'layers.0.1.to_k.weight': (12, 6)},
        **{'layers.0.1.to_v.weight': (12, 6), 'layers.0.1.to_out.weight': (6, 12), 'layers.1.0.0.gamma': (6,)},
        **{'layers.1.1.ff.0.0.weight': (6, 6), 'layers.1.1.ff.0.0.bias': (6,), 'layers.1.1.ff.2.weight': (6, 6)},
        **{'layers.1.1.ff.2.bias': (6,), 'final_norm.gamma': (6,)},
    }
    assert {name: tuple(t.shape) for name, t in Decoder(**SHAPE, depth=1).state_dict().items()} == names


@pytest.mark.parametrize(
    ('flags', 'names'),
    [
        (dict(use_rmsnorm=True), {'layers.0.0.0.g', 'layers.1.0.0.g', 'final_norm.g'}),
        (dict(use_simple_rmsnorm=True), set()),
        (dict(pre_norm=False), {'layers.0.0.2.gamma', 'layers.1.0.2.gamma'}),
        (dict(sandwich_norm=True), {f'layers.{i}.0.{j}.gamma' for i in (0, 1) for j in (0, 1)} | {'final_norm.gamma'}),
        (
            dict(use_adaptive_layernorm=True, adaptive_condition_mlp=True, **CONDITION),
            {f'{name}.to_gamma.weight' for name in ('layers.0.0.0', 'layers.1.0.0', 'final_norm')}
            | {'adaptive_mlp.0.weight'},
        ),
    ],
)
def test_state_dict_names_of_norms(flags, names):
    state = Encoder(**SHAPE, depth=1, **flags).state_dict()
    assert {name for name in state if '.1.to_' not in name and '.1.ff.' not in name} == names


def test_state_dict_names_of_wrappers():
    flags = dict(scale_residual=0.5, use_layerscale=True, shift_tokens=1, macaron=True)
    state = Encoder(**SHAPE, depth=1, **flags).state_dict()
    assert {'layers.0.1.fn.gamma', 'layers.0.1.fn.fn.fn.fn.ff.0.0.weight', 'layers.0.2.residual_scale'} <= state.keys()
    assert {'layers.1.1.fn.gamma', 'layers.1.1.fn.fn.fn.to_q.weight', 'layers.1.2.residual_scale'} <= state.keys()
    gated = Encoder(**SHAPE, depth=1, gate_residual=True, add_value_residual=True).state_dict()
    assert {f'layers.0.2.gru.{name}' for name in ('weight_ih', 'weight_hh', 'bias_ih', 'bias_hh')} <= gated.keys()


# intermediates


def test_return_hiddens():
    flags = {**SHAPE, 'depth': 2, 'cross_attend': True}
    net, x, context = randomised(Decoder(**flags)), randn(2, 5, 6), randn(2, 3, 6)
    out, inter = net(x, context=context, return_hiddens=True)
    assert_close(out, oracles.stack(net.state_dict(), x, context, causal=True, **flags))
    assert torch.equal(inter.last_hidden, out)
    assert len(inter.hiddens) == 2 and torch.equal(inter.hiddens[0], x)
    assert [inter.layer_type for inter in inter.attn_intermediates] == ['a', 'c', 'a', 'c']
    assert [tuple(i.post_softmax_attn.shape) for i in inter.attn_intermediates] == [(2, 4, 5, 5), (2, 4, 5, 3)] * 2
    assert len(inter.layer_hiddens) == 7
    partial = oracles.Stack(net.state_dict(), context, causal=True, **flags)
    for index in range(3):
        assert_close(inter.layer_hiddens[index], x, f'layer_hiddens {index}')
        x = partial.layer(index, x)
    assert_close(inter.hiddens[1], x)


# refusals


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(use_rmsnorm=True, use_scalenorm=True), 'use_rmsnorm.*use_scalenorm|use_scalenorm.*use_rmsnorm'),
        (dict(pre_norm=False, sandwich_norm=True), 'sandwich_norm'),
        (dict(use_layerscale=True, use_adaptive_layerscale=True), 'layerscale'),
        (dict(weight_tie_layers=True, par_ratio=2), 'weight_tie_layers'),
        (dict(residual_attn=True, attn_flash=True), 'residual_attn'),
        (dict(sandwich_coef=9), 'sandwich_coef'),
        (dict(par_ratio=1), 'par_ratio'),
        (dict(layers_execute_order=(0, 9)), 'layers_execute_order'),
        (dict(custom_layers=('a', 'x'), depth=None), 'custom_layers|x'),
        (dict(custom_layers=('a', 'c'), depth=None), 'cross_attend'),
        (dict(depth=None), 'depth'),
        (dict(causal=True), 'causal'),
        (dict(shift_tokens=(1, 0)), 'shift_tokens'),
        (dict(layer_dropout=(0.5,)), 'layer_dropout'),
        (dict(use_rmsnom=True), 'use_rmsnorm'),
        (dict(attn_qk_nrm=True), 'attn_qk_norm'),
        (dict(ff_gluu=True), 'ff_glu'),
        (dict(qk_norm=True), 'attn_qk_norm'),
    ],
)
def test_refusals(flags, words):
    flags = {name: value for name, value in {**SHAPE, 'depth': 2, **flags}.items() if value is not None}
    with pytest.raises((ValueError, TypeError), match=words):
        Encoder(**flags)


@pytest.mark.parametrize(
    ('flags', 'call', 'words'),
    [
        (dict(cross_attend=True), {}, 'context'),
        ({}, dict(context=torch.randn(2, 3, 6)), 'context|cross_attend'),
        (dict(use_adaptive_layernorm=True, **CONDITION), {}, 'condition'),
        (dict(use_adaptive_layernorm=True, **CONDITION), dict(condition=torch.randn(2, 4)), 'condition'),
        ({}, dict(condition=torch.randn(2, 5)), 'condition'),
        ({}, dict(attn_bias=torch.randn(4, 5, 6)), 'attn_bias'),
        ({}, dict(mask=torch.ones(2, 4).bool()), 'mask'),
        ({}, dict(layers_execute_order=(7,)), 'layers_execute_order'),
    ],
)
def test_refusals_of_inputs(flags, call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        Encoder(**SHAPE, depth=2, **flags)(torch.randn(2, 5, 6), **call)


class Pair(torch.nn.Module):
    def forward(self, x):
        return x, x


def test_what_scales_a_branch_scales_the_first_of_a_pair():
    """The second is what attention leaves behind."""
    x = randn(2, 3, 4)
    zero = ReZero(Pair())
    zero.g.data.fill_(0.5)
    for scaled in (Scale(0.5, Pair()), LayerScale(Pair(), 4, 0.5), zero):
        out, left = scaled(x)
        assert_close(out, x / 2)
        assert left is x
