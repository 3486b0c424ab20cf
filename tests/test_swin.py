"""Attention of Swin Transformers V2: cosines with a learned scale per head, in windows of an image."""

import math

import pytest
import torch
from oracles import assert_close, randn, split_heads

from x_transformers import Attention
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


@pytest.mark.slow
@pytest.mark.parametrize('shift', [0, 2])
def test_the_attention_of_transformers(shift):
    """Its windows are a batch, and its bias comes from a network: here they are given as a pattern and a bias."""
    pytest.importorskip('transformers')
    from transformers import Swinv2Config
    from transformers.models.swinv2.modeling_swinv2 import Swinv2Attention, window_partition

    torch.manual_seed(0)
    config = Swinv2Config(image_size=8, patch_size=1, window_size=4, embed_dim=12, num_heads=[3], depths=[1])
    config._attn_implementation = 'eager'
    theirs = Swinv2Attention(config, 12, 3, (4, 4)).double().eval()
    theirs.self.logit_scale.data = torch.randn(3, 1, 1, dtype=torch.double)
    ours = layer_of(qkv_bias='qv', sparse_pattern=Windows2D((8, 8), 4, shift))
    ours.to_out.bias = torch.nn.Parameter(theirs.output.dense.bias.data)
    for name, other in (('q', 'query'), ('k', 'key'), ('v', 'value')):
        getattr(ours, f'to_{name}').load_state_dict(getattr(theirs.self, other).state_dict())
    ours.to_out.weight.data = theirs.output.dense.weight.data
    ours.qk_norm_log_scale.data = theirs.self.logit_scale.data.flatten()
    x = randn(2, 64, 12)
    table = theirs.self.continuous_position_bias_mlp(theirs.self.relative_coords_table.double()).view(-1, 3)
    inside = 16 * table[theirs.self.relative_position_index.view(-1)].view(16, 16, 3).permute(2, 0, 1).sigmoid()
    rolled = torch.arange(64).view(1, 8, 8, 1).roll((-shift, -shift), (1, 2))
    order = window_partition(rolled, 4).flatten(1)  # pixels of each window
    bias, seen = torch.zeros(3, 64, 64, dtype=torch.double), Windows2D((8, 8), 4, shift).visible
    for pixels in order:
        bias[:, pixels[:, None], pixels] = inside
    windows = x[:, order.flatten()].reshape(2, 4, 16, 12).flatten(0, 1)
    mask = torch.stack([torch.where(seen(p[:, None], p), 0.0, -100.0) for p in order]).double()
    goal = theirs(windows, mask if shift else None)[0].view(2, 4, 16, 12).flatten(1, 2)
    goal = torch.empty_like(x).index_copy(1, order.flatten(), goal)
    assert_close(ours(x, attn_bias=bias), goal, tolerance=1e-7)  # their table is in float32
