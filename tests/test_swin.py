"""Attention of Swin Transformers V2: cosines with a learned scale per head, in windows of an image."""

import math

import pytest
import torch
from oracles import assert_close, randn, split_heads

from x_transformers import Attention, Decoder
from x_transformers.flags import ConfigError
from x_transformers.patterns import Windows2D

SIZES = dict(dim=12, heads=3, dim_head=4)


def layer_of(**options):
    torch.manual_seed(0)
    return Attention(**SIZES, qk_norm=True, qk_norm_scale='learned', **options).double()


def by_cosines(layer, x, log_scales):
    """Pair by pair: cosines of queries and keys, times the exponential of each head's scale."""
    q, k, v = (split_heads(to(x), 3) for to in (layer.to_q, layer.to_k, layer.to_v))
    out = torch.zeros_like(q)
    for b, h, i in ((b, h, i) for b in range(len(x)) for h in range(3) for i in range(x.shape[1])):
        cosines = [q[b, h, i] @ key / (q[b, h, i].norm() * key.norm()) for key in k[b, h]]
        weights = (torch.stack(cosines) * min(math.exp(log_scales[h]), 100)).softmax(dim=0)
        out[b, h, i] = weights @ v[b, h]
    return layer.to_out(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize('flash', [None, False, True])
def test_a_learned_scale_per_head(flash):
    x, layer = randn(2, 5, 12), layer_of(flash=flash)
    layer.qk_norm_log_scale.data.fill_(math.log(10))  # in float64
    assert_close(layer(x), by_cosines(layer, x, [math.log(10)] * 3), tolerance=1e-10)
    plain = Attention(**SIZES, qk_norm=True).double()
    plain.load_state_dict({name: t for name, t in layer.state_dict().items() if name != 'qk_norm_log_scale'})
    assert_close(layer(x), plain(x), tolerance=1e-10)
    layer.qk_norm_log_scale.data = torch.tensor([0.3, 2.0, 7.0], dtype=torch.double)
    assert_close(layer(x), by_cosines(layer, x, [0.3, 2.0, 7.0]), tolerance=1e-10)
    layer(x).square().sum().backward()
    assert (layer.qk_norm_log_scale.grad != 0).tolist() == [True, True, False]  # above log 100 nothing changes


def test_scales_exclude_each_other():
    with pytest.raises(ConfigError, match='cannot be combined with `qk_norm_dim_scale`'):
        layer_of(qk_norm_dim_scale=True)
    with pytest.raises(ConfigError, match="`qk_norm_scale` must be a positive number or one of 'learned', got 'fixed'"):
        Attention(**SIZES, qk_norm=True, qk_norm_scale='fixed')


def bias_by_pairs(layer, n, width, m):
    """arXiv:2111.09883, equations 3 and 4, pair by pair."""
    first, _, second = layer.log_cpb
    bias = torch.zeros(3, n, n, dtype=torch.double)
    for i, j in ((i, j) for i in range(n) for j in range(n)):
        apart = [8 * (i // width - j // width) / (m[0] - 1), 8 * (i % width - j % width) / (m[1] - 1)]
        t = torch.tensor([math.copysign(math.log2(1 + abs(d)) / 3, d) for d in apart], dtype=torch.double)
        bias[:, i, j] = 16 * torch.sigmoid(second.weight @ torch.relu(first.weight @ t + first.bias))
    return bias


@pytest.mark.parametrize('flash', [None, False])
@pytest.mark.parametrize(
    'pattern, m, n', [(None, (3, 4), 12), (Windows2D((4, 6), 2, 1), (2, 2), 24), (Windows2D((4, 4), 4), (3, 3), 16)]
)
def test_the_bias_of_pixels(pattern, m, n, flash):
    layer = layer_of(log_cpb=True, log_cpb_window=m, log_cpb_hidden=5, sparse_pattern=pattern, flash=flash)
    plain, x = layer_of(flash=flash), randn(2, n, 12)
    plain.load_state_dict({name: t for name, t in layer.state_dict().items() if 'cpb' not in name})
    for parameter in layer.log_cpb.parameters():
        torch.nn.init.normal_(parameter)
    seen = None if pattern is None else pattern.visible(torch.arange(n)[:, None], torch.arange(n))
    bias = bias_by_pairs(layer, n, m[1] if pattern is None else pattern.image[1], m)
    wanted = plain(x, attn_bias=bias, attn_mask=seen)
    assert_close(layer(x), wanted, tolerance=1e-6)
    weights = list(layer.log_cpb.parameters())
    for mine, goal in zip(*(torch.autograd.grad(out.sin().sum(), weights) for out in (layer(x), wanted)), strict=True):
        assert_close(mine, goal, tolerance=1e-6)


def test_ends_of_the_log_scale():
    layer = layer_of(log_cpb=True, log_cpb_window=(8, 8))
    seen = []
    layer.log_cpb.register_forward_pre_hook(lambda net, given: seen.append(given[0]))
    layer(randn(1, 64, 12))
    (t,) = seen
    assert_close(t, -t.flip(0, 1), tolerance=1e-7)
    assert_close(t[-1, 0], torch.tensor([1.0, -1.0]).double() * math.log2(9) / 3, tolerance=1e-7)


def test_refusals_of_the_bias():
    for options, words in (
        (dict(log_cpb_window=(1, 4)), '`log_cpb_window` must be a pair of integers of at least 2'),
        (dict(sparse_pattern='sliding'), 'cannot be combined with .*windows of an image'),
    ):
        with pytest.raises(ConfigError, match=words):
            Attention(**SIZES, log_cpb=True, **options)
    with pytest.raises(ConfigError, match='cannot be combined with a causal stack'):
        Decoder(dim=12, depth=1, heads=3, attn_log_cpb=True)


@pytest.mark.slow
@pytest.mark.parametrize('shift', [0, 2])
def test_the_attention_of_transformers(shift):
    """Its windows are a batch, here they are a pattern."""
    pytest.importorskip('transformers')
    from transformers import Swinv2Config
    from transformers.models.swinv2.modeling_swinv2 import Swinv2Attention, window_partition

    torch.manual_seed(0)
    config = Swinv2Config(image_size=8, patch_size=1, window_size=4, embed_dim=12, num_heads=[3], depths=[1])
    config._attn_implementation = 'eager'
    theirs = Swinv2Attention(config, 12, 3, (4, 4)).double().eval()
    theirs.self.logit_scale.data = torch.randn(3, 1, 1, dtype=torch.double)
    ours = layer_of(qkv_bias='qv', sparse_pattern=Windows2D((8, 8), 4, shift), log_cpb=True, log_cpb_window=(4, 4))
    ours.log_cpb.load_state_dict(theirs.self.continuous_position_bias_mlp.state_dict())
    ours.to_out.bias = torch.nn.Parameter(theirs.output.dense.bias.data)
    for name, other in (('q', 'query'), ('k', 'key'), ('v', 'value')):
        getattr(ours, f'to_{name}').load_state_dict(getattr(theirs.self, other).state_dict())
    ours.to_out.weight.data = theirs.output.dense.weight.data
    ours.qk_norm_log_scale.data = theirs.self.logit_scale.data.flatten()
    x = randn(2, 64, 12)
    rolled = torch.arange(64).view(1, 8, 8, 1).roll((-shift, -shift), (1, 2))
    order = window_partition(rolled, 4).flatten(1)  # pixels of each window
    seen = Windows2D((8, 8), 4, shift).visible
    windows = x[:, order.flatten()].reshape(2, 4, 16, 12).flatten(0, 1)
    mask = torch.stack([torch.where(seen(p[:, None], p), 0.0, -100.0) for p in order]).double()
    goal = theirs(windows, mask if shift else None)[0].view(2, 4, 16, 12).flatten(1, 2)
    goal = torch.empty_like(x).index_copy(1, order.flatten(), goal)
    assert_close(ours(x), goal, tolerance=1e-7)  # their table is in float32
