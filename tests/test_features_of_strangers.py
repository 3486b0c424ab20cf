"""Two papers that the library does not have, as features of a user's, with their oracles."""

import json
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from law_cases import randomise
from oracles import assert_close
from torch import Tensor, nn

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper, ViTransformerWrapper
from x_transformers.features import AttentionFeature, PerToken, flag
from x_transformers.flags import size

SIZES = dict(dim=16, heads=4, dim_head=4)


class KnnMemory(AttentionFeature):
    """Beside local attention, the best keys of a store of older tokens, joined by a learned gate per head.

    The store keeps normalised keys, and values, without positions; no gradient reaches it.
    """

    paper = 'arXiv:2203.08913'
    knn = flag(None, 'how many keys of the store a query attends to', size, example=2)
    knn_after = flag(4, 'tokens that are this old are in the store', size)
    options: ClassVar = {'knn_after': 'knn'}
    remembers: ClassVar = {'store': PerToken()}
    joins_tokens = 'its store reaches over documents'
    not_across = 'a context is no past'

    def setup(self, owner: Attention) -> None:
        self.gate = nn.Parameter(torch.zeros(owner.shape.heads, 1, 1))
        self.times = nn.Parameter(torch.tensor(10.0))

    def heads(self, qkv: tuple[Tensor, Tensor, Tensor], call: Any) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = qkv
        rows = torch.cat((F.normalize(k, dim=-1), v), dim=-1).detach()
        own = call.own(self)
        own.q, own.store = self.times * F.normalize(q, dim=-1), call.state('store').append(rows)
        return qkv

    def attended(self, near: Tensor, call: Any) -> Tensor:
        q, store = call.own(self).q, call.own(self).store
        k, v = store.repeat(1, q.shape[1] // store.shape[1], 1, 1).tensor_split((q.shape[-1],), dim=-1)
        old = (call.q_at.unsqueeze(-1) - call.k_at.unsqueeze(-2) >= self.knn_after).unsqueeze(-3)
        old = old if call.real is None else old & call.real[:, None, None]
        best, index = (q @ k.mT).masked_fill(~old, -torch.inf).topk(min(self.knn, k.shape[2]), dim=-1)
        found = best.isfinite()
        weights = best.masked_fill(~found, -1e30).softmax(dim=-1) * found
        values = v.unsqueeze(2).expand(-1, -1, q.shape[2], -1, -1)
        values = values.gather(3, index.unsqueeze(-1).expand(*index.shape, v.shape[-1]))
        gate = self.gate.sigmoid() * found.any(dim=-1, keepdim=True)
        return gate * (weights.unsqueeze(-1) * values).sum(dim=3) + (1 - gate) * near


class Grid(AttentionFeature):
    """Local attention on a grid: a query sees the k x k tokens around it. Others see and are seen by all."""

    paper = 'arXiv:1906.05909'
    grid_reach = flag(None, 'k, how many tokens wide and high', size, example=3)
    grid_width = flag(4, 'tokens of a line', size)
    grid_height = flag(4, 'lines', size)
    options: ClassVar = {'grid_width': 'grid_reach', 'grid_height': 'grid_reach'}
    not_across = 'a context has another grid'

    def mask(self, call: Any) -> Tensor:
        i, j, w, reach = call.q_at.unsqueeze(-1), call.k_at.unsqueeze(-2), self.grid_width, self.grid_reach // 2
        near = ((i // w - j // w).abs() <= reach) & ((i % w - j % w).abs() <= reach)
        return (near | (i.maximum(j) >= w * self.grid_height)).unsqueeze(-3)


def stream(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def attention(**flags: Any) -> Attention:
    return randomise(Attention(**SIZES, **flags).double())


def projected(layer: Attention, x: Tensor) -> list[Tensor]:
    """Queries, keys and values, b n h d, each of all heads."""
    split = (to(x).unflatten(-1, (-1, 4)) for to in (layer.to_q, layer.to_k, layer.to_v))
    return [t.repeat(1, 1, 4 // t.shape[2], 1) for t in split]


@pytest.mark.parametrize('kv_heads', [4, 2])
def test_memory_of_nearest_keys_is_its_formula(kv_heads):
    layer = attention(kv_heads=kv_heads, causal=True, max_attend_past=3, features=(KnnMemory,), knn=2)
    x = stream(2, 9, 16)
    q, k, v = projected(layer, x)
    out = torch.zeros_like(q)
    for b, i, h in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        near, one = slice(max(0, i - 3), i + 1), q[b, i, h]
        out[b, i, h] = (k[b, near, h] @ one / 2).softmax(0) @ v[b, near, h]
        if i >= 4:
            old = k[b, : i - 3, h]
            scores = layer.times * (old / old.norm(dim=-1, keepdim=True)) @ one / one.norm()
            best = scores.argsort(descending=True)[:2]
            gate = layer.gate[h].sigmoid()
            out[b, i, h] = gate * (scores[best].softmax(0) @ v[b, best, h]) + (1 - gate) * out[b, i, h]
    assert_close(layer(x), layer.to_out(out.flatten(2)), tolerance=1e-10)


def test_memory_of_nearest_keys_goes_with_the_cache_and_with_padding():
    flags = dict(features=(KnnMemory,), attn_knn=2, attn_max_attend_past=3, rotary_pos_emb=True, attn_dim_head=4)
    net = randomise(Decoder(dim=16, depth=2, heads=4, **flags).double())
    x = stream(2, 12, 16)
    whole, (_, past) = net(x), net(x[:, :9], return_hiddens=True)
    for begin, rows in ((9, [0, 1]), (6, [0, 1]), (9, [1, 0])):
        kept = past.cache.crop(begin).reorder(torch.tensor(rows))
        assert_close(net(x[rows, begin:], cache=kept, input_not_include_cache=True), whole[rows, begin:])
    real = (torch.arange(12) >= 3).expand(2, -1)
    assert_close(net(x, mask=real)[:, 3:], net(x[:, 3:]))
    assert_close(net(x[:, :7]), whole[:, :7], 'before later tokens')
    with pytest.raises(ValueError, match='its store reaches over documents'):
        net(x, document_ids=torch.zeros(2, 12, dtype=torch.long))
    model = TransformerWrapper(num_tokens=9, max_seq_len=32, attn_layers=net).double().eval()
    ids, writer = torch.randint(0, 9, (2, 8)), AutoregressiveWrapper(model)
    assert writer.generate(ids, 8, temperature=0.0).equal(writer.generate(ids, 8, temperature=0.0, cache_kv=False))
    twin = TransformerWrapper.from_config(json.loads(json.dumps(model.config))).double().eval()
    twin.load_state_dict(model.state_dict())
    assert twin(ids).equal(model(ids))
    net(x).square().sum().backward()
    assert all(p.grad.any() for p in net.parameters())


@pytest.mark.parametrize('flash', [True, False])
def test_attention_on_a_grid_is_its_formula(flash):
    layer = attention(features=(Grid,), grid_reach=3, grid_height=5, flash=flash)
    x = stream(2, 20, 16)
    q, k, v = (t.unflatten(1, (5, 4)) for t in projected(layer, x))
    out = torch.zeros_like(q)
    for y, z in torch.cartesian_prod(torch.arange(5), torch.arange(4)).tolist():
        around = slice(None), slice(max(0, y - 1), y + 2), slice(max(0, z - 1), z + 2)
        weights = torch.einsum('bhd,byzhd->bhyz', q[:, y, z] / 2, k[around]).flatten(2).softmax(dim=-1)
        out[:, y, z] = torch.einsum('bhj,bjhd->bhd', weights, v[around].flatten(1, 2))
    assert_close(layer(x), layer.to_out(out.flatten(1, 2).flatten(2)), tolerance=1e-10)


def test_patches_of_an_image_see_their_neighbours_and_the_registers():
    stack = Encoder(dim=16, depth=1, heads=4, features=(Grid,), attn_grid_reach=3)
    net = ViTransformerWrapper(image_size=16, patch_size=4, num_register_tokens=2, attn_layers=stack).eval()
    image = torch.randn(1, 3, 16, 16, requires_grad=True)
    (grad,) = torch.autograd.grad(net(image, return_embeddings=True)[0, 0].square().sum(), image)
    seen = grad[0].abs().sum(dim=0).unfold(0, 4, 4).unfold(1, 4, 4).sum(dim=(2, 3)) > 0
    assert seen.equal((torch.arange(4) < 2)[:, None] & (torch.arange(4) < 2))
