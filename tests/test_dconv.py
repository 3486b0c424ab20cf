"""Convolutions of queries, keys and values (Primer) against own loops, and their refusals."""

import pytest
import torch
from oracles import assert_close, randn, split_heads
from torch import nn

from x_transformers import Attention, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.patterns import Local2D

SHAPE = dict(dim=8, heads=2, dim_head=4)


def layer_of(size=3, **options):
    torch.manual_seed(0)
    layer = Attention(**{**SHAPE, **options}, dconv_kernel_size=size).double()
    for name in 'qkv':
        if hasattr(layer, f'{name}_dconv'):
            nn.init.normal_(getattr(layer, f'{name}_dconv'))
    return layer


def convolved(x, kernel, ids=None, ahead=0):
    """x (b, n, c), kernels (c, 1, s): token by token and tap by tap."""
    out, size = torch.zeros_like(x), kernel.shape[-1]
    for b, t, tap in ((b, t, tap) for b in range(x.shape[0]) for t in range(x.shape[1]) for tap in range(size)):
        at = t + tap - (size - 1 - ahead)
        if 0 <= at < x.shape[1] and (ids is None or ids[b, at] == ids[b, t]):
            out[b, t] += kernel[:, 0, tap] * x[b, at]
    return out


def attention(layer, x, mask=None, ids=None, causal=True):
    """The formula, with the rows of padding at zero before the convolution."""
    n, shown = x.shape[1], torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    ahead = 0 if causal else (layer.q_dconv.shape[-1] - 1) // 2
    found = {}
    for name in 'qkv':
        t = getattr(layer, f'to_{name}')(x)
        kernel = getattr(layer, f'{name}_dconv', None)
        t = t if kernel is None else convolved(t * shown[..., None], kernel, ids, ahead)
        found[name] = split_heads(t, t.shape[-1] // 4)
    q, k, v = found.values()
    k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))
    sim = q @ k.mT / 2
    seen = shown[:, None, None].expand(-1, 1, n, n)
    seen = seen & torch.ones(n, n, dtype=torch.bool).tril() if causal else seen
    seen = seen if ids is None else seen & (ids[:, None, :, None] == ids[:, None, None])
    out = sim.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num() @ v
    return layer.to_out(out.transpose(1, 2).flatten(2)) * shown[..., None]


@pytest.mark.parametrize('size, options', [(3, {}), (4, {}), (1, {}), (2, dict(kv_heads=1)), (3, dict(dconv_on='kv'))])
def test_causal_convolutions(size, options):
    x, layer = randn(2, 7, 8), layer_of(size, causal=True, **options)
    assert_close(layer(x), attention(layer, x), tolerance=1e-10)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, :2], mask[1, 3], mask[1, 6] = False, False, False
    assert_close(layer(x, mask=mask), attention(layer, x, mask), tolerance=1e-10)
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [4, 3, 3, 3, 3, 3, 3]])
    assert_close(layer(x, document_ids=ids), attention(layer, x, ids=ids), tolerance=1e-10)


def test_centered_convolutions():
    x, layer = randn(2, 7, 8), layer_of(5)
    assert_close(layer(x), attention(layer, x, causal=False), tolerance=1e-10)


def test_kernels_begin_with_half_for_the_token():
    layer = Attention(**SHAPE, dconv_kernel_size=3, causal=True, kv_heads=1)
    assert [getattr(layer, f'{n}_dconv').shape for n in 'qkv'] == [(8, 1, 3), (4, 1, 3), (4, 1, 3)]
    assert (layer.k_dconv == torch.tensor([0.25, 0.25, 0.5])).all()
    assert (Attention(**SHAPE, dconv_kernel_size=3).k_dconv == torch.tensor([0.25, 0.5, 0.25])).all()
    assert (Attention(**SHAPE, dconv_kernel_size=1).k_dconv == 1).all()
    for name in 'qkv':  # one tap leaves the layer as it was
        getattr(layer, f'{name}_dconv').data = torch.tensor([0.0, 0.0, 1.0]).expand_as(getattr(layer, f'{name}_dconv'))
    plain = Attention(**SHAPE, causal=True, kv_heads=1)
    plain.load_state_dict({name: t for name, t in layer.state_dict().items() if 'dconv' not in name})
    x = torch.randn(2, 6, 8)
    assert_close(layer(x), plain(x), tolerance=1e-6)


def test_the_cache_keeps_two_tokens():
    torch.manual_seed(0)
    net = (
        Decoder(dim=8, depth=2, heads=2, attn_dim_head=4, attn_dconv_kernel_size=3, rotary_pos_emb=True).double().eval()
    )
    for name, parameter in net.named_parameters():
        if 'dconv' in name:
            nn.init.normal_(parameter)
    x = randn(2, 9, 8)
    whole, cache, parts = net(x), None, []
    for start, stop in ((0, 1), (1, 2), (2, 6), (6, 7), (7, 9)):
        out, cache = net(x[:, start:stop], cache=cache, input_not_include_cache=True, return_hiddens=True)
        parts.append(out)
    assert_close(torch.cat(parts, dim=1), whole, tolerance=1e-10)


def test_memories_are_tokens_before():
    torch.manual_seed(0)
    stack = Decoder(dim=8, depth=2, heads=2, attn_dim_head=4, attn_dconv_kernel_size=3, rel_pos_bias=True)
    net = TransformerWrapper(num_tokens=7, max_seq_len=0, max_mem_len=9, attn_layers=stack).double().eval()
    x = torch.randint(0, 7, (2, 9))
    mems = net(x[:, :4], return_mems=True)[1]
    out, second = net(x[:, 4:], mems=mems), None
    assert_close(out, net(x)[:, 4:], tolerance=1e-10)
    parts = []
    for at in range(4, 9):
        part, second = net(x[:, 4 : at + 1], mems=mems, cache=second, return_intermediates=True)
        parts.append(part[:, -1:])
    assert_close(torch.cat(parts, dim=1), out, tolerance=1e-10)
    hidden = [torch.tensor([[False] * 4, [True] * 4])] * 2
    assert_close(net(x[:, 4:], mems=mems, mem_masks=hidden)[0], net(x[:, 4:])[0], tolerance=1e-10)


def test_refusals():
    for options, words in (
        (dict(dconv_kernel_size=0), '`dconv_kernel_size` must be'),
        (dict(dconv_kernel_size=4), '`dconv_kernel_size` must be odd unless attention is causal, got 4'),
        (dict(dconv_kernel_size=3, dconv_on='kw'), '`dconv_on` must be'),
        (dict(dconv_kernel_size=3, shared_qk=True), 'shared_qk'),
        (dict(dconv_kernel_size=3, sparse_pattern=Local2D(image=(4, 4))), 'cannot be combined with .*pixels'),
    ):
        with pytest.raises(ConfigError, match=words):
            Attention(**SHAPE, **options)
    with pytest.raises(ConfigError, match='cannot be combined with `cross_attend`'):
        Encoder(dim=8, depth=1, heads=2, cross_attend=True, attn_dconv_kernel_size=3)
    with pytest.raises(ValueError, match='cannot be combined with a context'):
        layer_of()(randn(1, 3, 8), context=randn(1, 4, 8))
