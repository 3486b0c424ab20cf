"""Keys and values shared by more queries: which heads are averaged, and that nothing changes where they were alike."""

import copy

import pytest
import torch
from building import nets
from law_cases import randomise
from oracles import assert_close, randn

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, mean_pool_kv_heads_
from x_transformers.flags import ConfigError

IDS = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))
STACK = dict(dim=16, depth=2, heads=4, attn_dim_head=6, ff_mult=1, verbose=False)


model = nets(20, 8, finish=lambda net: randomise(net.double()), **STACK)


def test_which_heads_are_averaged():
    """Of four heads and two groups, the first and third, the second and fourth."""
    net = model()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    assert mean_pool_kv_heads_(net, 2) is net
    for name in ('to_k', 'to_v'):
        weight = before[f'attn_layers.layers.0.1.{name}.weight'].view(4, 6, 16)
        expected = torch.cat(((weight[0] + weight[2]) / 2, (weight[1] + weight[3]) / 2))
        assert torch.equal(getattr(net.attn_layers.layers[0][1], name).weight, expected)
    after = net.state_dict()
    same = {name for name, t in before.items() if t.shape == after[name].shape and torch.equal(t, after[name])}
    assert before.keys() - same == {f'attn_layers.layers.{at}.1.{n}.weight' for at in (0, 2) for n in ('to_k', 'to_v')}
    mean_pool_kv_heads_(net, 1)
    whole = before['attn_layers.layers.0.1.to_k.weight'].view(4, 6, 16).mean(dim=0)
    assert_close(net.attn_layers.layers[0][1].to_k.weight, whole)


def alike(net, groups):
    """Give heads of keys whose queries will share them the same weights."""
    shared = copy.deepcopy(net)
    mean_pool_kv_heads_(shared, groups)
    with torch.no_grad():
        for (name, own), other in zip(net.named_parameters(), shared.parameters(), strict=True):
            if own.shape != other.shape:
                axis = next(at for at in range(own.ndim) if own.shape[at] != other.shape[at])
                repeats = [1] * own.ndim
                repeats[axis] = own.shape[axis] // other.shape[axis]
                own.copy_(other.repeat(repeats))
            else:
                assert torch.equal(own, other), name


@pytest.mark.parametrize(
    'flags',
    [
        {},
        dict(attn_qkv_bias=True, rotary_pos_emb=True),
        dict(attn_qk_norm=True, attn_qk_norm_dim_scale=True),
        dict(attn_num_mem_kv=2),
        dict(attn_gate_values=True, add_value_residual=True, learned_value_residual_mix=True),
        dict(attn_value_dim_head=5, shift_tokens=1),
        dict(attn_max_attend_past=3, attn_talking_heads=True),
        dict(kind=Encoder, pre_norm=False, alibi_pos_bias=True),
    ],
    ids=str,
)
@pytest.mark.parametrize('groups', [1, 2])
def test_where_heads_were_alike_nothing_changes(flags, groups):
    net = model(**flags)
    alike(net, groups)
    expected = net(IDS)
    mean_pool_kv_heads_(net, groups)
    assert_close(net(IDS), expected, tolerance=1e-12)
    again = type(net).from_config(net.config).double()
    again.load_state_dict(net.state_dict())
    assert_close(again.eval()(IDS), expected, tolerance=1e-12)
    if 'kind' not in flags:
        model_of = AutoregressiveWrapper(net)
        made = model_of.generate(IDS[:, :4], 4, temperature=0.0)
        assert torch.equal(made, model_of.generate(IDS[:, :4], 4, temperature=0.0, cache_kv=False))
        _, trace = net(IDS, return_intermediates=True)
        assert trace.attn_intermediates[0].cached_kv[0].shape[1] == groups


def test_a_stack_alone_frozen_parts_and_a_first_sharing():
    stack = randomise(Decoder(**{**STACK, 'attn_kv_heads': 2}).double())
    stack.layers[0][1].to_k.weight.requires_grad_(False)
    x = randn(2, 5, 16)
    held = stack.layers[0][1].to_q.weight
    mean_pool_kv_heads_(stack, 2)
    before = stack(x)
    mean_pool_kv_heads_(stack, 1)
    attn = stack.layers[0][1]
    assert attn.to_q.weight is held and not attn.to_k.weight.requires_grad and attn.to_v.weight.requires_grad
    assert attn.kv_heads == 1 and attn.to_k.out_features == 6 and (stack(x) - before).abs().max() > 1e-6
    stack(x).sum().backward()


@pytest.mark.parametrize('own', [None, 4])
def test_across(own):
    """As flags say: cross-attention follows, unless it has a number of its own."""
    flags = dict(cross_attend=True, **({} if own is None else dict(cross_attn_kv_heads=own)))
    stack = randomise(Decoder(**STACK, **flags).double())
    x, context = randn(2, 5, 16), randn(2, 3, 16)
    before = stack(x, context=context)
    mean_pool_kv_heads_(stack, 2)
    assert [layer[1].kv_heads for layer in stack.layers if layer.kind != 'f'] == [2, own or 2] * 2
    assert (stack(x, context=context) - before).abs().max() > 1e-6


@pytest.mark.parametrize(
    ('call', 'kind', 'words'),
    [
        (lambda: mean_pool_kv_heads_(model(), 3), ValueError, r'`kv_heads` must divide the heads of keys.*got 3'),
        (lambda: mean_pool_kv_heads_(model(attn_kv_heads=2), 4), ValueError, r'`kv_heads` must divide.*got 4'),
        (lambda: mean_pool_kv_heads_(model(), 0), ValueError, '`kv_heads` must be an integer of at least 1, got 0'),
        (lambda: mean_pool_kv_heads_(torch.nn.Linear(2, 2), 1), TypeError, r'`net` must be a stack.*got .*'),
        (lambda: mean_pool_kv_heads_(model(attn_aft='simple'), 2), ConfigError, '`attn_aft` cannot be combined'),
    ],
)  # fmt: skip
def test_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
