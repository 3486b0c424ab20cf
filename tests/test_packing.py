"""Decoding does what is new, and no more: packed weights, keys turned once, logits of the last place."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.packing import FEW_ROWS, Packed


def model(dim=16, length=64, num_memory_tokens=None, **flags):
    torch.manual_seed(0)
    stack = Decoder(dim=dim, depth=2, heads=2, attn_dim_head=8, **flags)
    net = TransformerWrapper(num_tokens=11, max_seq_len=length, attn_layers=stack, num_memory_tokens=num_memory_tokens)
    return randomised(net.double()).eval()


def ids(*shape):
    return torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(1))


class Shapes(TorchDispatchMode):
    """Records the shapes of what some operations give."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.seen = names, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.name().split('::')[1].split('.')[0] in self.names:
            self.seen.append(tuple(out.shape))
        return out


# packed weights


@pytest.mark.parametrize('rows', [1, 2, 3, 4, 8, 32, 33])
@pytest.mark.parametrize('bias', [True, False])
def test_packed_layers_give_the_same(rows, bias):
    net = nn.Sequential(nn.Linear(24, 40, bias=bias), nn.Linear(40, 24, bias=bias))
    x = torch.randn(rows, 1, 24)
    with torch.no_grad():
        expected = F.linear(F.linear(x, net[0].weight, net[0].bias), net[1].weight, net[1].bias)
        packed = Packed(net)
        for _ in range(2):
            with packed:
                assert_close(net(x), expected, tolerance=1e-5)
        used = {layer.copy is not None for _, layer in packed.forwards}
    assert used == {rows in FEW_ROWS}


def test_packed_layers_follow_their_weights():
    net = nn.Sequential(nn.Linear(8, 8))
    packed, x = Packed(net), torch.randn(1, 8)
    with torch.no_grad(), packed:
        net(x)
        net[0].weight.mul_(2.0)
        assert_close(net(x), F.linear(x, net[0].weight, net[0].bias), tolerance=1e-5)
        net[0].weight = nn.Parameter(torch.randn(8, 8))
        assert_close(net(x), F.linear(x, net[0].weight, net[0].bias), tolerance=1e-5)


def test_a_net_is_untouched_outside_of_the_block():
    net = nn.Sequential(nn.Linear(8, 8))
    before = set(vars(net[0]))
    with pytest.raises(KeyError), Packed(net):
        raise KeyError
    assert set(vars(net[0])) == before
    assert list(net.state_dict()) == ['0.weight', '0.bias']


def test_only_plain_layers_are_packed():
    class Own(nn.Linear):
        pass

    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: x
    half, parametrised = nn.Linear(4, 4).bfloat16(), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    net = nn.ModuleList([Own(4, 4), replaced, half, parametrised, nn.Linear(4, 4)])
    assert [layer.linear for _, layer in Packed(net).forwards] == [net[4]]
    assert net[1](1) == 1


def test_hooks_of_packed_layers_run():
    net, seen = nn.Sequential(nn.Linear(8, 8)), []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad(), Packed(net):
        net(torch.randn(1, 8))
    assert seen == [1]


@pytest.mark.parametrize('rows', [1, 5])
def test_generation_packs_and_leaves_nothing(rows):
    wrapper = AutoregressiveWrapper(model().float())
    expected = wrapper.generate(ids(rows, 4), 12, temperature=0.0, cache_kv=False)
    state = [set(vars(module)) for module in wrapper.modules()]
    assert torch.equal(wrapper.generate(ids(rows, 4), 12, temperature=0.0), expected)
    for _ in wrapper.stream(ids(rows, 4), 3):
        assert [set(vars(module)) for module in wrapper.modules()] == state


# keys are turned once


KINDS = [{}, dict(rotate_num_heads=1), dict(attn_kv_heads=1), dict(attn_qk_norm=True)]


@pytest.mark.parametrize('flags', KINDS, ids=str)
def test_cached_keys_are_turned_once(flags):
    """A step turns the new query and key alone, and the cache that is read is that of keys not yet turned."""
    net = model(rotary_pos_emb=True, **flags)
    x = ids(2, 9)
    plain, whole = net(x, return_intermediates=True)
    _, inter = net(x[:, :8], return_intermediates=True)
    with Shapes('view_as_complex') as shapes:
        out, inter = net(x, cache=inter, return_intermediates=True)
    assert shapes.seen and {shape[-2] for shape in shapes.seen} == {1}
    assert_close(out[:, -1], plain[:, -1])
    for own, other in zip(inter.attn_intermediates, whole.attn_intermediates, strict=True):
        for t, wanted in zip(own.cached_kv, other.cached_kv, strict=True):
            assert_close(t, wanted)
    # what was read may be edited, and the next step sees it
    same = net(ids(2, 10), cache=inter)
    with torch.no_grad():
        inter.attn_intermediates[0].cached_kv[0][:, :, 2] = 0.5
    assert not torch.allclose(net(ids(2, 10), cache=inter), same)


def test_keys_as_projected_are_the_reading_of_the_layer():
    net = model(rotary_pos_emb=True)
    seen = []
    layer = net.attn_layers.layers[0][1]
    layer.to_k.register_forward_hook(lambda module, args, out: seen.append(out))
    _, inter = net(ids(2, 7), return_intermediates=True)
    assert_close(inter.attn_intermediates[0].cached_kv[0].transpose(1, 2).flatten(2), seen[0])


def test_turned_caches_travel(tmp_path):
    """Copied, pickled, saved and moved caches continue like the first."""
    net = model(rotary_pos_emb=True)
    x = ids(2, 9)
    expected = net(x)[:, -1]
    with torch.no_grad():
        cache = net(x[:, :8], return_intermediates=True)[1].cache
    cache.save(tmp_path / 'cache')
    others = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), cache.load(tmp_path / 'cache'), cache.to('cpu')]
    for other in (*others, cache, cache.plain(), cache.crop(5), cache.reorder(torch.tensor([0, 1]))):
        assert_close(net(x, cache=other)[:, -1], expected)


def test_a_cache_continues_with_angles_of_the_caller():
    net = model(rotary_pos_emb=True).attn_layers
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    angles = net.rotary_pos_emb(torch.arange(9))
    _, inter = net(x[:, :8], return_hiddens=True)
    assert_close(net(x, cache=inter, rotary_pos_emb=angles)[:, -1], net(x)[:, -1])


@pytest.mark.parametrize('flags', [{}, dict(attn_num_mem_kv=1)], ids=str)
def test_an_offset_moves_cached_keys_too(flags):
    """Positions of all keys count from the offset; beside keys at no position that shows."""
    net = randomised(Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, **flags).double()).eval()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    _, inter = net(x[:, :8], return_hiddens=True)
    angles = net.rotary_pos_emb(torch.arange(20 - 8, 20 + 1))
    out = net(x, cache=inter, seq_pos_offset=20)
    _, inter = net(x[:, :8], return_hiddens=True)
    assert_close(out, net(x, cache=inter, rotary_pos_emb=angles))
    assert torch.allclose(out, net(x)[:, -1:]) == (not flags)  # without such keys only distances count


# logits of the last places


def test_logits_to_keep():
    net = model(num_memory_tokens=1)
    x, front = ids(2, 9), torch.randn(2, 3, 16, dtype=torch.float64)
    for inputs in ({}, dict(prepend_embeds=front), dict(mask=torch.arange(9).expand(2, -1) > 2)):
        logits = net(x, **inputs)
        for keep in (1, 4, 50):
            assert_close(net(x, logits_to_keep=keep, **inputs), logits[:, -keep:])
    both, embeds = net(x, logits_to_keep=2, return_logits_and_embeddings=True)
    assert both.shape == (2, 2, 11) and embeds.shape == (2, 9, 16)


@pytest.mark.parametrize('keep', [0, -1, 1.5, True])
def test_bad_logits_to_keep(keep):
    with pytest.raises(ValueError, match='`logits_to_keep` got'):
        model()(ids(1, 3), logits_to_keep=keep)


def test_logits_to_keep_of_a_model_that_pools():
    net = TransformerWrapper(num_tokens=11, max_seq_len=8, attn_layers=Encoder(dim=16, depth=1), use_cls_token=True)
    with pytest.raises(ValueError, match='`logits_to_keep` does not go with a model that pools'):
        net(ids(1, 3), logits_to_keep=1)


@pytest.mark.parametrize('cache_kv', [True, False])
def test_a_prompt_is_read_without_its_logits(cache_kv):
    wrapper, widths = AutoregressiveWrapper(model()), []
    wrapper.net.to_logits.register_forward_hook(lambda module, args, out: widths.append(out.shape[1]))
    wrapper.generate(ids(2, 9), 4, cache_kv=cache_kv)
    assert widths == [1] * 4
