"""Three sequences and heads of different widths, against layers of a single head each."""

import json

import pytest
import torch
from oracles import assert_close, randn, randomised

from x_transformers import Attention, CrossAttender, Decoder, Encoder, TransformerWrapper
from x_transformers.core import rows
from x_transformers.flags import ConfigError, PerLayer

DIM, N, DIMS = 12, 7, (8, 3, 5, 3)


def layer(**flags):
    return randomised(Attention(DIM, heads=4, head_dims=DIMS, **flags), scale=0.4)


def head_by_head(attn, x, **inputs):
    """A layer for each head, whose outputs are put side by side."""
    outs, start, flags = [], 0, dict(causal=attn.causal, project_out=False)
    for width in DIMS:
        one = Attention(DIM, heads=1, dim_head=width, **flags, **FLAGS.get(attn, {})).double().eval()
        part = slice(start, start + width)
        weights = {f'to_{n}.weight': getattr(attn, f'to_{n}').weight[part] for n in 'qkv'}
        weights |= {f'to_{n}.bias': b[part] for n in 'qkv' if (b := getattr(attn, f'to_{n}').bias) is not None}
        outs.append(torch.func.functional_call(one, weights, (x,), inputs))
        start += width
    out = torch.cat(outs, dim=-1) @ attn.to_out.weight.T
    mask = inputs.get('mask')
    return out if mask is None else out * mask.unsqueeze(-1)


FLAGS = {}  # further ones of a layer


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize(
    'flags',
    [{}, dict(flash=False), dict(qkv_bias=True), dict(softmax_scale=0.3), dict(qk_norm=True), dict(sparse_topk=3)],
    ids=str,
)
def test_each_head_is_a_layer(monkeypatch, causal, flags):
    """Padded, in blocks of rows, and their gradients."""
    attn, x = layer(causal=causal, **flags), randn(2, N, DIM).requires_grad_()
    FLAGS[attn] = flags
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    for inputs in ({}, dict(mask=mask)):
        out, expected = attn(x, **inputs), head_by_head(attn, x, **inputs)
        assert_close(out, expected)
        ours, theirs = (torch.autograd.grad(t.sin().sum(), (x, attn.to_q.weight)) for t in (out, expected))
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, 'gradient')
    assert attn.to_q.weight.shape == attn.to_k.weight.shape == attn.to_v.weight.shape == (sum(DIMS), DIM)
    assert attn.to_out.weight.shape == (DIM, sum(DIMS)) and (attn.to_k.bias is not None) == ('qkv_bias' in flags)
    monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
    monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
    monkeypatch.setattr(rows, 'FEWEST_ROWS', 2)
    assert_close(attn(x), head_by_head(attn, x))


def test_equal_widths_are_those_of_any_layer():
    one, other = randomised(Attention(DIM, heads=2, head_dims=(4, 4))), randomised(Attention(DIM, heads=2, dim_head=4))
    assert one.state_dict().keys() == other.state_dict().keys()
    other.load_state_dict(one.state_dict())
    x, context = randn(2, N, DIM), randn(2, 5, DIM, seed=1)
    assert_close(one(x), other(x))
    assert_close(one(x, context), other(x, context))


def stack_of(kind=Decoder, **flags):
    dims = PerLayer(DIMS, (2, 4, 6, 1))
    return kind(**{**dict(dim=DIM, depth=2, heads=4, attn_head_dims=dims, verbose=False), **flags})


TURNING = dict(rotary_pos_emb=True, rotary_emb_dim=2, attn_head_dims=PerLayer((8, 3, 5, 3), (2, 4, 6, 2)))


@pytest.mark.parametrize('stack', [TURNING, dict(alibi_pos_bias=True)], ids=['rotary', 'alibi'])
def test_layers_of_a_stack_have_their_own(stack):
    """Token by token from a cache, with memories, and through a config."""
    net = TransformerWrapper(num_tokens=11, max_seq_len=0, max_mem_len=4, attn_layers=stack_of(**stack))
    net = randomised(net, scale=0.4)
    assert [layer[1].to_q.out_features for layer in net.attn_layers.layers if layer.kind == 'a'] == [
        sum(dims) for dims in net.attn_layers.branch_flags['a']['head_dims'].values
    ]
    x = torch.randint(0, 11, (2, N))
    whole = net(x)
    first, trace = net(x[:, :3], return_intermediates=True)
    outs = [first]
    for at in range(3, N):
        out, trace = net(x[:, : at + 1], cache=trace.cache, return_intermediates=True)
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), whole)
    mems = net(x[:, :4], return_mems=True)[1]
    assert_close(net(x[:, 4:], mems=mems), whole[:, 4:])
    again = TransformerWrapper.from_config(json.loads(json.dumps(net.config))).double().eval()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x), whole)


def test_clipping_shrinks_each_head_by_itself():
    attn, x = layer(), randn(2, N, DIM) * 20
    _, inside = attn(x, return_intermediates=True)
    largest = inside.pre_softmax_attn.amax(dim=(0, 2, 3))
    before = attn.to_q.weight.detach().clone()
    tau = largest.sort().values[1].item() + 1e-6
    attn.qk_clip_(inside, tau=tau)
    factor = torch.where(largest > tau, (tau / largest), 1.0).sqrt()
    expected = torch.cat([f * part for f, part in zip(factor, before.split(DIMS), strict=True)])
    assert_close(attn.to_q.weight.detach(), expected)


# values of their own


def test_values_come_from_a_sequence_of_their_own():
    attn = randomised(Attention(DIM, heads=2, dim_head=4, dim_context=9))
    x, keys, values = randn(2, 3, DIM), randn(2, 5, 9, seed=1), randn(2, 5, 9, seed=2)
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    q, k, v = attn.to_q(x), attn.to_k(keys), attn.to_v(values)
    q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v))
    weights = (q @ k.mT / 2).masked_fill(~real[:, None, None], -torch.inf).softmax(dim=-1)
    expected = attn.to_out((weights @ v).transpose(1, 2).flatten(2))
    hidden = values.masked_fill(~real[..., None], torch.nan)
    assert_close(attn(x, keys, context_mask=real, value_context=values), expected)
    assert_close(attn(x, keys, context_mask=real, value_context=hidden), expected)
    assert torch.equal(attn(x, keys, value_context=keys), attn(x, keys))
    order = torch.tensor([4, 2, 0, 1, 3])
    moved = attn(x, keys[:, order], context_mask=real[:, order], value_context=values[:, order])
    assert_close(moved, expected)


# refusals


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: Attention(DIM, heads=3, head_dims=(4, 2)), r'`head_dims` must have one for each of 3.*got 2 widths'),
        (lambda: Attention(DIM, heads=2, head_dims=(4, 0)), '`head_dims` must be a tuple of integers'),
        (lambda: layer(kv_heads=2), '`head_dims` cannot be combined with `kv_heads` or `one_kv_head`'),
        (lambda: layer(one_kv_head=True), '`head_dims` cannot be combined with `kv_heads` or `one_kv_head`'),
        (lambda: layer(value_dim_head=4), '`head_dims` cannot be combined with `value_dim_head`'),
        (
            lambda: layer(pre_talking_heads=True),
            '`head_dims` cannot be combined with `pre_talking_heads`: it mixes heads',
        ),
        (
            lambda: layer(qk_rmsnorm=True),
            '`head_dims` cannot be combined with `qk_rmsnorm`: it needs heads of equal width',
        ),
        (
            lambda: layer(sparse_pattern={'pattern': 'global', 'mask': True}),
            r"`head_dims` cannot be combined with Global\('mask'\), which has separate projections",
        ),
        (lambda: stack_of(attn_head_dims=(4, 3, 2, 1)), '`attn_head_dims` of a stack must be `PerLayer'),
        (lambda: stack_of(polar_pos_emb=True), '`attn_head_dims` cannot be combined with `polar_pos_emb`'),
    ],
)
def test_refused_at_construction(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (
            lambda x: stack_of(Encoder, rotary_pos_emb=True)(x),
            '`rotary_pos_emb` turns 32 features, more than',
        ),
        (lambda x: layer()(x.double(), o_delta=torch.zeros(1, 1, 1)), '`o_delta` cannot be combined with `head_dims`'),
        (lambda x: Attention(DIM)(x, value_context=x), '`value_context` needs a `context`'),
        (lambda x: Attention(DIM)(x, x, value_context=x[:, 1:]), r'`value_context` must .*got \(2, 6, 12\)'),
        (
            lambda x: Attention(DIM, use_latent_kv=True, dim_latent_kv=4)(x, x, value_context=x),
            '`value_context` cannot be combined with `use_latent_kv`',
        ),
    ],
)
def test_refused_in_a_call(call, words):
    with pytest.raises(ValueError, match=words):
        call(randn(2, N, DIM).float())


def test_a_stack_has_no_place_for_values():
    x = randn(2, N, DIM).float()
    with pytest.raises(TypeError, match='CrossAttender got an unexpected input `value_context`'):
        CrossAttender(dim=DIM, depth=1, heads=2)(x, context=x, value_context=x)
