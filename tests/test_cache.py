"""What a cache saves, and refuses: rows that are not there, states that cannot be cut, the cache of another model."""

import copy

import pytest
import torch
from building import ids_below
from costs import Costs
from oracles import assert_close
from torch import nn
from torch.utils._pytree import tree_leaves

from x_transformers import (
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    TransformerWrapper,
)
from x_transformers.cache import Buffer, Cache


def net(dim=16, **stack):
    layers = Decoder(**{**dict(dim=dim, depth=2, heads=2, attn_dim_head=8, verbose=False), **stack})
    return TransformerWrapper(num_tokens=11, max_seq_len=0, attn_layers=layers).double().eval()


ids_of = ids_below(11, seed=1)


def cache_of(model, length=5, rows=2, **inputs):
    return model(ids_of(rows, length), return_intermediates=True, **inputs)[1].cache


def hidden_of(cache):
    return [layer.states['hybrid_hidden'].value for layer in cache.layers]


RECURRENT = dict(attn_hybrid_module=nn.GRU(16, 16, batch_first=True))
MISTAKES = {
    'a list of rows': (lambda c: c.reorder([0, 1]), TypeError, '`rows` must '),
    'rows of two axes': (
        lambda c: c.reorder(torch.zeros(1, 1, dtype=torch.long)),
        ValueError,
        r'`rows` must .*got .*\(1, 1\)',
    ),
    'rows of a mask': (lambda c: c.reorder(torch.tensor([True, False])), ValueError, '`rows` must .*got torch.bool'),
    'a row too many': (
        lambda c: c.reorder(torch.tensor([5])),
        ValueError,
        '`rows` must ',
    ),
    'a row below 0': (
        lambda c: c.reorder(torch.tensor([1, -1])),
        ValueError,
        '`rows` must .*got row numbers from -1 to 1',
    ),
    'no beams': (lambda c: c.expand(0), ValueError, '`beams` must be an integer of at least 1, got 0'),
    'fewer than no beams': (lambda c: c.expand(-2), ValueError, '`beams` must .*got -2'),
    'half a beam': (lambda c: c.expand(1.5), ValueError, '`beams` must .*got 1.5'),
    'beams as a flag': (lambda c: c.expand(True), ValueError, '`beams` must .*got True'),
    'more tokens than held': (lambda c: c.crop(6), ValueError, '`length` must '),
    'more of the last than held': (lambda c: c.keep_last(6), ValueError, '`count` must '),
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_mistakes_are_refused(mistake):
    call, kind, words = MISTAKES[mistake]
    with pytest.raises(kind, match=words):
        call(cache_of(net()))


@pytest.mark.parametrize('operation', ['crop', 'keep_last'])
def test_a_recurrent_state_is_not_cut(operation):
    cache = cache_of(net(**copy.deepcopy(RECURRENT)))
    with pytest.raises(ValueError, match=f'`{operation}` got a cache with the running state `hybrid_hidden`, which'):
        getattr(cache, operation)(3)
    assert getattr(cache, operation)(5).length == 5  # nothing is cut


def test_recurrent_states_go_with_their_pass_and_leave_their_graph():
    model = net(**copy.deepcopy(RECURRENT))
    passes = [cache_of(model), cache_of(model, length=4)]
    states = [tree_leaves(hidden_of(cache)) for cache in passes]
    assert all(t.requires_grad for each in states for t in each) and not torch.equal(states[0][0], states[1][0])
    for part, wanted in zip(Cache.joined(passes).split(2), states, strict=True):
        assert all(map(torch.equal, tree_leaves(hidden_of(part)), wanted))
    assert not any(t.requires_grad for t in tree_leaves(hidden_of(passes[0].detach())))


# models whose keys and values have the same shapes
OTHERS = {
    'plain': {},
    'rotary': dict(rotary_pos_emb=True),
    'xpos': dict(rotary_xpos=True),
    'alibi': dict(alibi_pos_bias=True),
    'normed keys': dict(attn_qk_norm=True),
    'a window': dict(attn_max_attend_past=2),
    'shifted': dict(shift_tokens=1),
    'two streams': dict(num_residual_streams=2),
    'a layer norm more': dict(sandwich_norm=True),
}


@pytest.mark.parametrize('maker', OTHERS)
def test_the_cache_of_another_model_is_refused(maker):
    cache = cache_of(net(**OTHERS[maker]))
    for name, flags in OTHERS.items():
        model, new = net(**flags), ids_of(2, 1)
        if name == maker:
            model(new, cache=cache, input_not_include_cache=True)
            continue
        with pytest.raises(ValueError, match=r'`cache` is of another model: only there is .* set, only here'):
            model(new, cache=cache, input_not_include_cache=True)


def test_a_cache_that_was_changed_or_saved_still_says_who_made_it(tmp_path):
    cache, new = cache_of(net(rotary_pos_emb=True)), ids_of(2, 1)
    cache.save(tmp_path / 'cache.pt')
    edited = cache.crop(3)
    for one in (cache.expand(1), cache.reorder(torch.tensor([1, 0])), cache.detach(), cache.to('cpu'), edited,
                cache.keep_last(2), copy.deepcopy(cache.detach()), Cache.load(tmp_path / 'cache.pt')):  # fmt: skip
        with pytest.raises(ValueError, match='only there is `rotary_pos_emb` set, only here nothing'):
            net()(new, cache=one, input_not_include_cache=True)
    # A cache that was built by hand does not say which flags made it.
    unknown = Cache(cache.plain().layers, cache.kinds, num_seen_tokens=cache.num_seen_tokens)
    assert net()(new, cache=unknown, input_not_include_cache=True).isfinite().all()


def test_what_only_trains_makes_no_other_model():
    plain, new = net(), ids_of(2, 1)
    other = net(attn_dropout=0.5, ff_dropout=0.1, layer_dropout=0.5, zero_init_branch_output=True, attn_onnxable=True)
    other.load_state_dict(plain.state_dict())
    cache = cache_of(plain)
    expected = plain(new, cache=cache, input_not_include_cache=True)
    assert torch.equal(other(new, cache=cache, input_not_include_cache=True), expected)


def test_the_cache_of_other_kinds_of_layers_is_refused():
    context, new = torch.randn(2, 5, 16).double(), torch.randn(2, 5, 16).double()
    across = CrossAttender(dim=16, depth=2, heads=2, attn_dim_head=8, causal=True).double().eval()
    plain = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8).double().eval()
    _, of_context = across(new, context=context, return_hiddens=True)
    with pytest.raises(ValueError, match=r"holds layers of the kinds \['c', 'c'\], the stack runs \['a', 'a'\]"):
        plain(new[:, :1], cache=of_context, input_not_include_cache=True)
    _, of_tokens = plain(new, return_hiddens=True)
    with pytest.raises(ValueError, match=r"holds layers of the kinds \['a', 'a'\], the stack runs \['c', 'c'\]"):
        across(new[:, :1], context=context, cache=of_tokens, input_not_include_cache=True)


def test_the_cache_of_another_dtype_is_refused():
    model = net()
    cache = cache_of(model)
    with pytest.raises(ValueError, match=r'`cache` holds torch.float64, the layer adds torch.float32'):
        model.float()(ids_of(2, 1), cache=cache, input_not_include_cache=True)


def test_under_autocast_the_dtype_may_change():
    model = net().float()
    cache, new = cache_of(model), ids_of(2, 2)
    exact = model(new, cache=cache, input_not_include_cache=True)
    with torch.autocast('cpu'):
        out = model(new, cache=cache, input_not_include_cache=True)
    assert torch.allclose(out.float(), exact, atol=0.02)


def test_layers_that_are_left_out_keep_no_past():
    model = net(layer_dropout=0.5)
    cache = cache_of(model)
    with pytest.raises(ValueError, match='`cache` cannot be used in training this stack'):
        model.train()(ids_of(2, 1), cache=cache, input_not_include_cache=True)
    assert model.can_cache_kv and not model.can_cache_kv_in_training and net().can_cache_kv_in_training


def test_two_threads_continue_the_same_cache(monkeypatch):
    """One appends while the other does: as if the second ran while the first writes."""
    old, first, second = torch.zeros(1, 3, 2), torch.ones(1, 1, 2), torch.full((1, 1, 2), 2.0)
    buffer, write, others = Buffer(old).copy_to_memory(8), torch.Tensor.copy_, []

    def meanwhile(t, new):
        if not others:
            others.append(None)
            others[0] = buffer.append(second)
        return write(t, new)

    monkeypatch.setattr(torch.Tensor, 'copy_', meanwhile)
    one = buffer.append(first)
    assert torch.equal(one.tensor, torch.cat((old, first), dim=1))
    assert torch.equal(others[0].tensor, torch.cat((old, second), dim=1))


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(alibi_pos_bias=True)])
def test_ids_no_longer_than_the_cache_end_with_the_new_token(flags):
    """As in the original, and as a bare stack takes them; `input_not_include_cache` says that all are new."""
    stack = Decoder(dim=16, depth=2, heads=2, **flags)
    net = TransformerWrapper(num_tokens=9, max_seq_len=16, attn_layers=stack, num_memory_tokens=2).eval()
    ids = torch.randint(0, 9, (2, 8))
    whole, (_, cache) = net(ids), net(ids[:, :5], return_intermediates=True)
    for given in (ids[:, 5:6], ids[:, 3:6], ids[:, 1:6]):
        torch.testing.assert_close(net(given, cache=cache), whole[:, 5:6])
    torch.testing.assert_close(net(ids[:, 5:], cache=cache, input_not_include_cache=True), whole[:, 5:])
    torch.testing.assert_close(net(ids, cache=cache), whole[:, 5:])
    vectors = ContinuousTransformerWrapper(dim_in=4, dim_out=4, max_seq_len=16, attn_layers=stack).eval()
    x = torch.randn(2, 6, 4)
    _, cache = vectors(x[:, :5], return_intermediates=True)
    torch.testing.assert_close(vectors(x[:, 2:], cache=cache), vectors(x)[:, 5:])


def test_inputs_beside_ids_no_longer_than_the_cache_end_with_those_of_the_new_token():
    stack = Decoder(dim=16, depth=1, heads=2)
    net = TransformerWrapper(num_tokens=9, max_seq_len=16, attn_layers=stack, embed_num_tokens=dict(kind=3)).eval()
    ids, kinds, added = torch.randint(0, 9, (2, 6)), torch.randint(0, 3, (2, 6)), torch.randn(2, 6, 16)

    def inputs(part):
        return dict(x=ids[:, part], embed_ids=dict(kind=kinds[:, part]), sum_embeds=added[:, part])

    _, cache = net(**inputs(slice(5)), return_intermediates=True)
    for start in (2, 5):
        torch.testing.assert_close(net(**inputs(slice(start, 6)), cache=cache), net(**inputs(slice(6)))[:, 5:])


# what it saves


def products(work):
    """Multiplications, times two, of what `work` does."""
    with torch.no_grad(), Costs() as costs:
        work()
    return costs.flops


def test_a_context_is_projected_once():
    """Keys and values of a context cost nothing from the second token on."""
    model = AutoregressiveWrapper(net(dim=32, cross_attend=True))
    context, start = torch.randn(2, 300, 32).double(), ids_of(2, 1)
    projected = 2 * (2 * 300 * 32 * 2 * 16) * 2  # of both rows and layers
    one, eight, nine = (
        products(lambda length=length: model.generate(start, length, temperature=0.0, context=context))
        for length in (1, 8, 9)
    )
    assert nine - eight < projected / 4 < projected <= one
    again = products(lambda: model.generate(start, 9, temperature=0.0, context=context, cache_kv=False))
    assert again > nine + 7 * projected


def test_a_token_behind_many_costs_a_third_at_most():
    model = net(dim=32)
    past, new = ids_of(1, 512), ids_of(1, 1)
    cache = model(past, return_intermediates=True)[1]
    whole = products(lambda: model(torch.cat((past, new), dim=1)))
    assert products(lambda: model(new, cache=cache, input_not_include_cache=True)) < whole / 3


@pytest.mark.parametrize('size', [1, 3, 12])
def test_a_prompt_in_pieces(size):
    """Memory tokens, a context, and fewer heads of keys together."""
    layers = Decoder(dim=16, depth=2, heads=4, attn_dim_head=8, attn_kv_heads=2, cross_attend=True, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=11, max_seq_len=0, num_memory_tokens=2, attn_layers=layers).double().eval()
    ids, context = ids_of(2, 12), torch.randn(2, 5, 16).double()
    wanted, cache, found = model(ids, context=context), None, []
    for piece in ids.split(size, dim=1):
        given = {} if cache is None else dict(cache=cache, input_not_include_cache=True)
        out, cache = model(piece, context=context, return_intermediates=True, **given)
        found.append(out)
    assert_close(torch.cat(found, dim=1), wanted, 1e-12)
