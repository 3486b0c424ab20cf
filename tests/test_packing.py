"""Decoding does what is new, and no more: packed weights, keys turned once, logits of the last place."""

import copy
import pickle
import threading
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.fast import packing
from x_transformers.fast.packing import PackedLinear, PackedNorm, packable, packs_gain
from x_transformers.features.norms import BiasedLayerNorm, LayerNorm, RMSNorm, ScaleNorm
from x_transformers.generation.engine import Reader


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
@pytest.mark.parametrize('biases', [(True,), (False,), (False, False), (True, False), (True, True)], ids=str)
def test_packed_layers_give_the_same(rows, biases):
    layers, x = [nn.Linear(24, 40, bias=bias) for bias in biases], torch.randn(rows, 24)
    packed = PackedLinear(*layers)
    with torch.no_grad():
        for _ in range(2):
            assert_close(packed(x), torch.cat([layer(x) for layer in layers], dim=-1), tolerance=1e-5)


@pytest.mark.parametrize(('rows', 'width', 'copied'), [(1, 16, False), (4, 16, True), (1, 8, True), (1, 4, True)])
def test_one_row_meets_long_rows(rows, width, copied):
    """A weight whose rows are longer than its columns stays where it is for one row."""
    layer = nn.Linear(width, 8)
    packed = PackedLinear(layer)
    with torch.no_grad():
        packed(torch.randn(rows, width))
    assert (packed.copy.data_ptr() != layer.weight.data_ptr()) is packed.copy.is_contiguous() is copied


@pytest.mark.parametrize('name', ['weight', 'bias'])
def test_packed_layers_follow_their_weights(name):
    layers, x = [nn.Linear(8, 8), nn.Linear(8, 4)], torch.randn(1, 8)
    packed = PackedLinear(*layers)
    with torch.no_grad():
        packed(x)
        getattr(layers[1], name).mul_(2.0)
        assert_close(packed(x), torch.cat([layer(x) for layer in layers], dim=-1), tolerance=1e-5)
        setattr(layers[0], name, nn.Parameter(torch.randn_like(getattr(layers[0], name))))
        assert_close(packed(x), torch.cat([layer(x) for layer in layers], dim=-1), tolerance=1e-5)
        layers[1].bias = None
        assert_close(packed(x), torch.cat([layer(x) for layer in layers], dim=-1), tolerance=1e-5)


class Louder(torch.Tensor):
    """Weights with products of their own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        return out * 2 if function is F.linear else out


class Watched(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        return out * 2 if function is F.linear else out


def replaced():
    own = F.linear
    return mock.patch.object(F, 'linear', lambda *args, **kwargs: own(*args, **kwargs) * 2)


def of_another_kind(net):
    linear = net.attn_layers.layers[0][1].to_v
    linear.weight = nn.Parameter(linear.weight.detach().as_subclass(Louder))


@pytest.mark.parametrize('rows', [1, 5])
@pytest.mark.parametrize(
    'change, around',
    [(None, replaced), (None, Watched), (of_another_kind, nullcontext)],
    ids=['function', 'mode', 'tensors'],
)
@torch.no_grad()
def test_products_of_others_are_not_packed(change, around, rows):
    """A product that somebody has replaced, or watches, is that of a step without copies too."""
    net, x = model(rotary_pos_emb=True).float(), ids(rows, 6)
    if change is not None:
        change(net)
    with around():
        reader = Reader(net, {}, brief=True, alone=True, tokens=99)
        reader.read(x[:, :5])
        assert_close(reader.read(x), net(x)[:, -1], tolerance=1e-5)
        assert reader.plain


@pytest.mark.parametrize(
    'change',
    [
        lambda norm, name: getattr(norm, name).mul_(2.0),
        lambda norm, name: setattr(norm, name, nn.Parameter(torch.rand_like(getattr(norm, name)))),
        lambda norm, name: norm.load_state_dict(
            {name: torch.rand_like(getattr(norm, name))}, strict=False, assign=True
        ),
    ],
)
@pytest.mark.parametrize('unit_offset', [True, False])
@pytest.mark.parametrize('kind', [LayerNorm, BiasedLayerNorm, RMSNorm, ScaleNorm])
def test_packed_norms_follow_their_gain(kind, unit_offset, change):
    for eps in (None, 0.5):
        norm, x = randomised(kind(8, unit_offset=unit_offset, eps=eps)).float(), torch.randn(3, 8)
        packed = PackedNorm(norm)
        with torch.no_grad():
            assert torch.equal(packed(x), norm(x))
            change(norm, 'gamma' if isinstance(norm, LayerNorm) else 'g')
            assert torch.equal(packed(x), norm(x))


def test_which_gains_are_packed():
    class Own(LayerNorm):
        pass

    with torch.inference_mode():
        frozen = [LayerNorm(4, unit_offset=True), RMSNorm(4)]
    bare = RMSNorm(4)
    bare.g = None
    for norm in (*frozen, Own(4, unit_offset=True), LayerNorm(4), RMSNorm(4, eps=0.1), bare, nn.LayerNorm(4), None):
        assert not packs_gain(norm)
    offset = [kind(4, unit_offset=True, eps=0.1) for kind in (LayerNorm, BiasedLayerNorm, RMSNorm)]
    assert all(map(packs_gain, (*offset, RMSNorm(4), ScaleNorm(4))))


def test_what_is_packed():
    class Own(nn.Linear):
        pass

    small, large, half = nn.Linear(4, 4), nn.Linear(1024, 1024, bias=False), nn.Linear(4, 4).bfloat16()
    wide, long = nn.Linear(64, 2**13), nn.Linear(513, 4)
    net = [Own(4, 4), half, nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), small, large, wide, long]
    assert packable(net, 1, 48) == {small, large, wide, long}
    assert packable(net, 1, 16) == packable(net, 1, 47) == {small, large, long}
    assert packable(net, 4, 48) == packable(net, 32, 48) == {small, wide}
    assert packable(net, 1, 15) == packable(net, 4, 47) == set()
    assert packable(net, 2, 99) == packable(net, 3, 99) == packable(net, 33, 99) == set()


def test_weights_of_inference_are_not_packed():
    """Nobody counts the changes of such a tensor."""
    with torch.inference_mode():
        layer = nn.Linear(4, 4)
    assert packable([layer], 4, 99) == set()


@pytest.fixture
def packs(monkeypatch):
    """Counts the copies of weights that are made, for however few steps."""
    monkeypatch.setattr(packing, 'SOON', 1)
    monkeypatch.setattr(packing, 'LATE', 1)
    made, pack = [], PackedLinear.pack
    monkeypatch.setattr(PackedLinear, 'pack', lambda self, *given: made.append(1) or pack(self, *given))
    return made


@pytest.mark.parametrize(
    'flags', [{}, dict(rotary_pos_emb=True), dict(use_rmsnorm=True, ff_swish=True, ff_glu=True)], ids=str
)
@pytest.mark.parametrize('rows', [1, 2, 5])
def test_generation_packs(rows, flags, packs):
    """Each weight once; what is given and left behind is the same."""
    wrapper = AutoregressiveWrapper(model(**flags).float())
    expected = wrapper.generate(ids(rows, 4), 12, temperature=0.0, cache_kv=False)
    assert torch.equal(wrapper.generate(ids(rows, 4), 12, temperature=0.0), expected)
    assert len(packs) == (0 if rows == 2 else 2 * 4 + 1)  # of two layers: what is read, given, widened, narrowed


def louder(ids, logits):
    return 2 * logits


def own_filter(logits):
    return logits


OPEN = {
    'a callback': dict(callback=lambda tokens: None),
    'a processor': dict(logits_processor=louder),
    'a filter': dict(filter_logits_fn=own_filter, temperature=1.0),
    'filters': dict(filter_logits_fn=['top_k', own_filter], temperature=1.0),
    'an amateur': dict(amateur_model=model().float()),
}


@pytest.mark.parametrize('options', OPEN.values(), ids=OPEN)
def test_nothing_is_packed_where_others_may_change_the_net(options, packs):
    wrapper = AutoregressiveWrapper(model().float())
    wrapper.generate(ids(5, 4), 5, **({'temperature': 0.0} | options))
    assert not packs
    wrapper.generate(ids(5, 4), 5, filter_logits_fn=['top_k', 'min_p'], banned_tokens=[1])
    assert packs


EDITS = {
    'in place': lambda net: [p.data.mul_(1.7) for p in net.parameters()],
    'another tensor': lambda net: [setattr(p, 'data', 1.7 * p.data) for p in net.parameters()],
    'many at once': lambda net: torch._foreach_mul_([p.data for p in net.parameters()], 1.7),
    'an optimiser': lambda net: [p.mul_(1.7) for p in net.parameters()],
}


@pytest.mark.parametrize('edit', EDITS.values(), ids=EDITS)
@pytest.mark.parametrize('rows', [1, 5])
@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(attn_qk_norm=True)], ids=str)
def test_edits_of_weights_between_two_tokens_count(edit, rows, flags):
    """By whoever holds a stream, and by a callback: logits after it are those of the new weights."""

    def given(step):
        net = model(**flags).float()
        wrapper, seen = AutoregressiveWrapper(net), []
        step(wrapper, net, lambda ids, logits: seen.append(logits) or logits)
        return seen

    @torch.no_grad()
    def streamed(wrapper, net, look):
        for number, _ in enumerate(wrapper.stream(ids(rows, 4), 6, temperature=0.0, logits_processor=look)):
            if number == 2:
                edit(net)

    @torch.no_grad()
    def called(wrapper, net, look):
        tokens = iter(range(6))

        def change(_):
            if next(tokens) == 2:
                edit(net)

        wrapper.generate(ids(rows, 4), 6, temperature=0.0, logits_processor=look, callback=change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, 'takes_plain_step', lambda *_: False)
        wanted = given(streamed)
    assert len(wanted) == 6
    for own in (given(streamed), given(called)):
        for one, other in zip(own, wanted, strict=True):
            assert_close(one, other, tolerance=1e-4)


@pytest.mark.parametrize('flags', [{}, dict(attn_qk_norm=True)], ids=str)
def test_generation_changes_nothing_that_others_use(flags):
    """While a step runs, modules are what they were."""
    net, seen = model(**flags).float(), []
    wrapper = AutoregressiveWrapper(net).eval()
    wrapper.generate(ids(5, 4), 3)
    held = [dict(vars(module)) for module in wrapper.modules()]
    net.to_logits.register_forward_hook(lambda *_: seen.append([dict(vars(m)) for m in wrapper.modules()]))
    wrapper.generate(ids(5, 4), 3)
    assert seen == [held] * 3


def test_gradients_while_another_thread_generates():
    net = model(attn_qk_norm=True).float()
    wrapper, stop, x = AutoregressiveWrapper(net).eval(), threading.Event(), ids(4, 8)

    def generating():
        while not stop.is_set():
            wrapper.generate(ids(5, 4), 8)

    learned = [p for p in net.parameters() if p.requires_grad]
    wanted = torch.autograd.grad(wrapper(x), learned)
    other = threading.Thread(target=generating)
    other.start()
    try:
        for _ in range(10):
            found = torch.autograd.grad(wrapper(x), learned, allow_unused=True)
            assert all(one is not None and torch.equal(one, g) for one, g in zip(found, wanted, strict=True))
    finally:
        stop.set()
        other.join()


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
