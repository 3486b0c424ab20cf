"""Keys and values of earlier segments that layers look up, against loops over rows, heads and queries."""

import math

import pytest
import torch
import torch.nn.functional as F
import toy_tasks
import training_laws
from costs import costs_of
from oracles import assert_close, bools, randn, randomised
from training_laws import DIM, VOCAB, ids_of, net_of

from x_transformers import (
    Attention,
    AttentionLayers,
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    TransformerWrapper,
)
from x_transformers.cache import Cache
from x_transformers.features.memory import knn as searching
from x_transformers.features.memory.knn import nearest, nearest_of_coarse
from x_transformers.flags import ConfigError
from x_transformers.xl_autoregressive_wrapper import XLAutoregressiveWrapper, carried_by

SIZE, MOST = 4, 6
MEMORY = dict(knn_mem_layers=(1,), knn_mem_size=MOST, knn_mem_topk=3)


def model(stack=(), **flags):
    return randomised(net_of(**{**dict(max_seq_len=SIZE), **flags}, stack={**MEMORY, **dict(stack)}), scale=0.4)


def layer_of(net):
    return net.attn_layers.layers[2][1]


def store_of(net, rows=2, held=5, counts=(5, 2), seed=0):
    """A store of arbitrary content for a model of one such layer."""
    shape = layer_of(net).shape
    k = F.normalize(randn(rows, shape.kv_heads, held, shape.dim_head, seed=seed), dim=-1)
    return [(k, randn(rows, shape.kv_heads, held, shape.dim_value, seed=seed + 1), torch.tensor(counts))]


# one layer, by hand


def attention_by_hand(attn, x, store, topk):
    """Of each row, head and query for itself."""
    heads, kv, e, w = attn.heads, attn.kv_heads, attn.shape.dim_head, attn.shape.dim_value
    rows = []
    for b in range(len(x)):
        q, k, v = attn.to_q(x[b]), attn.to_k(x[b]), attn.to_v(x[b])
        held, count = store[0].shape[2], int(store[2][b])
        merged = []
        for h in range(heads):
            g = h % kv
            own_q = F.normalize(q[:, h * e : h * e + e], dim=-1) * attn.knn_scale[h].exp()
            own_k = F.normalize(k[:, g * e : g * e + e], dim=-1)
            own_v, out = v[:, g * w : g * w + w], []
            for i in range(len(x[b])):
                near = (own_k[: i + 1] @ own_q[i]).softmax(dim=0) @ own_v[: i + 1]
                scores = {at: store[0][b, g, at] @ own_q[i] for at in range(held - count, held)}
                best = sorted(scores, key=lambda at: -scores[at].item())[:topk]
                if not best:
                    out.append(near)
                    continue
                weights = torch.stack([scores[at] for at in best]).softmax(dim=0)
                far = sum(weight * store[1][b, g, at] for weight, at in zip(weights, best, strict=True))
                gate = attn.knn_gate[h].sigmoid()
                out.append(gate * far + (1 - gate) * near)
            merged.append(torch.stack(out))
        rows.append(attn.to_out(torch.cat(merged, dim=-1)))
    return torch.stack(rows)


@pytest.mark.parametrize('topk', [1, 3, 7, 50])
@pytest.mark.parametrize('sizes', [{}, dict(kv_heads=2, value_dim_head=5), dict(one_kv_head=True)], ids=str)
def test_one_layer_by_hand(topk, sizes):
    attn = randomised(Attention(dim=12, heads=4, dim_head=6, causal=True, knn_mem=(topk, 0.5, 'exact'), **sizes))
    kv, width = attn.kv_heads, attn.shape.dim_value
    store = [randn(3, kv, 7, 6, seed=3), randn(3, kv, 7, width, seed=4), torch.tensor([7, 0, 4])]
    x, theirs_x = (randn(3, 5, 12).requires_grad_() for _ in range(2))
    parameters = [*attn.parameters()]
    ours, theirs = attn(x, knn_store=store), attention_by_hand(attn, theirs_x, store, topk)
    assert_close(ours, theirs)
    gradients = [
        torch.autograd.grad(out.square().sum(), [x, *parameters]) for out, x in ((ours, x), (theirs, theirs_x))
    ]
    for own, other in zip(*gradients, strict=True):
        assert_close(own, other)
    assert_close(attn(x[1:2]), ours[1:2])  # nothing stored


def test_how_it_starts():
    attn = Attention(dim=12, heads=4, dim_head=6, causal=True, knn_mem=(3, -4.0, 'exact'))
    assert attn.knn_gate.tolist() == [-4.0] * 4
    assert_close(attn.knn_scale.exp().detach(), torch.full((4,), math.sqrt(6)))
    names = {name for name in net_of(stack=MEMORY).state_dict() if 'knn' in name}
    assert names == {'attn_layers.layers.2.1.knn_gate', 'attn_layers.layers.2.1.knn_scale'}


@pytest.mark.parametrize('held', [1, 3, 7, 10])
def test_the_search_in_parts(held, monkeypatch):
    q, k, seen = randn(2, 3, 5, 4), randn(2, 3, held, 4, seed=1), bools(2, held)
    monkeypatch.setattr(searching, 'PART', 3)
    for count in (1, 2, 4, 20):
        at = nearest(q, k, seen, count)
        scores = (q @ k.mT).masked_fill(~seen[:, None, None], -torch.inf)
        wanted = scores.sort(dim=-1, descending=True).values[..., :count]
        assert torch.equal(scores.gather(-1, at).sort(dim=-1, descending=True).values, wanted)
        assert all(len(set(row)) == len(row) for row in at.flatten(0, 2).tolist())


def test_what_a_look_up_costs():
    """Products grow with what is stored, memory does not: no score of all is ever held."""
    attn = Attention(dim=12, heads=4, dim_head=6, one_kv_head=True, causal=True, knn_mem=(4, 0.0, 'exact'))
    x = torch.randn(1, 16, 12)

    def look_up(held):
        return attn(x, knn_store=[torch.randn(1, 1, held, 6), torch.randn(1, 1, held, 6), torch.tensor([held])])

    some, more = (costs_of(look_up, held) for held in (4096, 8192))
    assert more.largest < 4 * 16 * 8192 / 4 and 1.8 < more.flops / some.flops < 2.2


def test_a_coarse_search():
    """It finds all where few are stored, and most of the best among many; what is far away from the others for sure."""
    torch.manual_seed(0)
    q, k, seen = torch.randn(1, 2, 20, 16), F.normalize(torch.randn(1, 2, 400, 16), dim=-1), torch.ones(1, 400) > 0
    turn = torch.linalg.qr(torch.randn(16, 16)).Q[:, :4]
    few = nearest_of_coarse(q, k[:, :, :30], seen[:, :30], 8, turn)
    assert torch.equal(few.sort(dim=-1).values, nearest(q, k[:, :, :30], seen[:, :30], 8).sort(dim=-1).values)
    both = [found(q, k, seen, 8, *rest) for found, rest in ((nearest, ()), (nearest_of_coarse, (turn,)))]
    best = [(q @ k.mT).gather(-1, at).mean() for at in both]
    assert best[0] * 0.6 < best[1] < best[0]
    k[0, :, 77] = 10 * q[0, :, 3]
    assert (nearest_of_coarse(q, k, seen, 1, turn)[0, :, 3] == 77).all()
    net, exact = (model(dict(knn_mem_search=way, knn_mem_topk=2)) for way in ('coarse', 'exact'))
    ids, store = ids_of(2, SIZE), store_of(net)
    assert_close(net(ids, knn_mems=store), exact(ids, knn_mems=store))


# what a model looks up


def test_what_is_planted_is_found():
    net = model(dict(knn_mem_topk=1))
    with torch.no_grad():
        layer_of(net).knn_gate.fill_(60.0)
    ids, (k, v, count) = ids_of(2, SIZE), store_of(net)[0]
    seen = []
    hook = layer_of(net).to_out.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    _, trace = net(ids, return_intermediates=True)
    own = trace.attn_intermediates[1].states['knn keys'].tensor  # what the queries of one token would like best
    layer_of(net).to_q.weight.data.copy_(layer_of(net).to_k.weight)
    k[:, :, 4] = own[:, :, 2]
    k[:, :, :4] = -own[:, :, 2:3]
    net(ids, knn_mems=[(k, v, count)])
    hook.remove()
    heads = seen[-1].unflatten(-1, (2, 8))
    assert_close(heads[:, 2], v[:, :, 4])


def test_a_closed_gate_and_an_empty_store():
    net, ids = model(), ids_of(2, SIZE)
    store = store_of(net)
    assert (net(ids, knn_mems=store) - net(ids)).abs().max() > 1e-3
    empty = [(*store[0][:2], torch.tensor([0, 0]))]
    assert_close(net(ids, knn_mems=empty), net(ids))
    with torch.no_grad():
        layer_of(net).knn_gate.fill_(-80.0)
    assert_close(net(ids, knn_mems=store), net(ids))


def test_a_small_gate_for_what_is_trained_already():
    torch.manual_seed(0)
    net = net_of(stack={**MEMORY, 'knn_mem_gate_init': -4.0}).double().eval()
    ids, store = ids_of(2, SIZE), store_of(net)
    moved = (net(ids, knn_mems=store) - net(ids)).norm() / net(ids).norm()
    assert 0 < moved < 0.02


def test_more_memory_needs_no_new_weights():
    larger = net_of(max_seq_len=SIZE, stack={**MEMORY, 'knn_mem_size': 4 * MOST}).double()
    larger.load_state_dict(model().state_dict())
    ids, mems = ids_of(1, 32), None
    for segment in ids.split(SIZE, dim=1):
        _, mems = larger(segment, knn_mems=mems, return_knn_mems=True)
    assert mems[0][0].shape[2] == 24 and int(mems[0][2]) == 24


def test_places_do_not_matter_to_what_is_stored():
    net = model(dict(depth=1, knn_mem_layers=(0,)))
    attn = net.attn_layers.layers[0][1]
    ids = ids_of(2, SIZE)
    store = [(F.normalize(randn(2, 2, 5, 8), dim=-1), randn(2, 2, 5, 8, seed=1), torch.tensor([5, 3]))]
    pos = torch.tensor([0, 3, 4, 9])
    assert (net(ids, knn_mems=store, pos=pos) - net(ids, knn_mems=store)).abs().max() > 1e-4
    with torch.no_grad():
        attn.knn_gate.fill_(60.0)
    assert_close(net(ids, knn_mems=store, pos=pos), net(ids, knn_mems=store))


def test_nothing_learns_through_a_store():
    net, ids = model().train(), ids_of(2, 12)
    mems = net(ids[:, :SIZE], return_knn_mems=True)[1]
    assert not any(t.requires_grad for t in mems[0])
    store = [tuple(t.clone().requires_grad_() if t.is_floating_point() else t for t in mems[0])]
    net(ids[:, SIZE : 2 * SIZE], knn_mems=store).square().sum().backward()
    assert all(t.grad is None for t in store[0])
    assert layer_of(net).to_q.weight.grad.abs().max() > 0 and layer_of(net).knn_gate.grad.abs().min() > 0


# what is stored


def stored_by_hand(net, ids, real=None, resets=()):
    """Keys and values (tokens of a row, h e) that are in store after the segments of a row, in the order in which they
    were read, and logits of each segment."""
    rows = []
    for b in range(len(ids)):
        kept, mems = [], None
        for number, segment in enumerate(ids[b : b + 1].split(SIZE, dim=1)):
            if (number, b) in resets:
                kept, mems = [], None
            inputs = {} if real is None else dict(mask=real[b : b + 1, number * SIZE : number * SIZE + SIZE])
            _, trace = net(segment, knn_mems=mems, return_intermediates=True, **inputs)
            norm, attn = net.attn_layers.layers[2][0][0], layer_of(net)
            h = norm(trace.hiddens[1])[0]
            k = F.normalize(attn.to_k(h).unflatten(-1, (attn.kv_heads, -1)), dim=-1)
            v = attn.to_v(h).unflatten(-1, (attn.kv_heads, -1))
            kept += [(k[i], v[i]) for i in range(len(h)) if real is None or real[b, number * SIZE + i]]
            kept = kept[-MOST:]
            if kept:
                own = [torch.stack([pair[part] for pair in kept], dim=1)[None] for part in (0, 1)]
                mems = [(*own, torch.tensor([len(kept)]))]
        rows.append(kept)
    return rows


def stored(net, ids, real=None, resets=()):
    mems = None
    for number, segment in enumerate(ids.split(SIZE, dim=1)):
        inputs = {} if real is None else dict(mask=real[:, number * SIZE : number * SIZE + SIZE])
        reset = torch.tensor([(number, b) in resets for b in range(len(ids))])
        logits, mems = net(segment, knn_mems=mems, knn_reset=reset, return_knn_mems=True, **inputs)
    return logits, mems


@pytest.mark.parametrize('resets', [(), ((2, 0), (1, 1))], ids=str)
@pytest.mark.parametrize('padded', [False, True])
def test_what_is_stored_by_hand(padded, resets):
    """The last tokens of each row since it was reset, padding left out, the oldest first."""
    net, ids = model(dict(attn_kv_heads=1)), ids_of(3, 3 * SIZE)
    real = torch.tensor([[1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1], [1] * 12]).bool()
    wanted = stored_by_hand(net, ids, real if padded else None, resets)
    _, [(k, v, count)] = stored(net, ids, real if padded else None, resets)
    assert k.shape[2] == v.shape[2] == MOST and count.tolist() == [len(row) for row in wanted]
    for b, row in enumerate(wanted):
        for back, (own_k, own_v) in enumerate(reversed(row), start=1):
            assert_close(k[b, :, -back], own_k)
            assert_close(v[b, :, -back], own_v)


def test_padding_is_never_looked_up():
    net, ids = model(), ids_of(2, 3 * SIZE)
    real = torch.tensor([[1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]]).bool()
    outs = [stored(net, given, real)[0][real[:, -SIZE:]] for given in (ids, torch.where(real, ids, (ids + 1) % VOCAB))]
    assert_close(*outs)
    start = torch.tensor([2, 0])
    _, [(_, _, count)] = net(ids[:, :SIZE], seq_start_pos=start, return_knn_mems=True)
    assert count.tolist() == [2, 4]


def test_rows_do_not_meet():
    net, ids = model(), ids_of(3, 3 * SIZE)
    whole, mems = stored(net, ids)
    alone, own = stored(net, ids[1:2])
    assert_close(whole[1:2], alone)
    for t, other in zip(mems[0], own[0], strict=True):
        assert_close(t[1:2].double(), other.double())


def test_the_oldest_leave_first():
    net, ids = model(), ids_of(1, 3 * SIZE)
    mems = stored(net, ids[:, : 2 * SIZE])[1]
    whole = net(ids[:, 2 * SIZE :], knn_mems=mems)
    k, v, _ = mems[0]
    longer = [
        (torch.cat((randn(1, 2, 2, 8), k), dim=2), torch.cat((randn(1, 2, 2, 8, seed=1), v), dim=2), torch.tensor([6]))
    ]
    assert_close(net(ids[:, 2 * SIZE :], knn_mems=longer), whole)


# a cache, wrappers


@pytest.mark.parametrize('store', [True, False])
def test_a_cache_holds_the_store(store, tmp_path):
    """Token by token, after other operations, and in a file, without giving it again."""
    net, ids = model(max_seq_len=8), ids_of(2, 7)
    given = dict(knn_mems=store_of(net)) if store else {}
    whole, mems = net(ids, **given, return_knn_mems=True)
    for first in range(1, 7):
        logits, inter = net(ids[:, :first], **given, return_intermediates=True)
        assert_close(logits, whole[:, :first])
        cache = inter.cache
        if first == 3:
            cache.save(tmp_path / 'cache')
            cache = Cache.load(tmp_path / 'cache')
        for n in range(first + 1, 8):
            logits, inter = net(ids[:, :n], cache=cache, return_intermediates=True)
            assert_close(logits[:, -1], whole[:, n - 1])
            cache = inter.cache
    for own, other in zip(carried_by(net, inter)['knn_mems'][0], mems[0], strict=True):
        assert_close(own.double(), other.double())
    assert_close(net(ids, cache=cache.crop(3)), whole[:, 3:])
    swapped = cache.crop(4).expand(2).reorder(torch.tensor([3, 0]))
    assert_close(net(ids[[1, 0]], cache=swapped), whole[[1, 0], 4:])


def test_generation_gets_a_store():
    lm, ids = AutoregressiveWrapper(model(max_seq_len=12)), ids_of(2, 5)
    store = store_of(lm.net)
    outs = [lm.generate(ids, 6, temperature=0.0, knn_mems=store, cache_kv=cached) for cached in (True, False)]
    assert torch.equal(*outs)
    known = ids
    for _ in range(6):
        known = torch.cat((known, lm.net(known, knn_mems=store)[:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(outs[0], known[:, 5:])
    assert torch.equal(lm.beam_search(ids, 6, beams=1, knn_mems=store), outs[0])
    assert torch.equal(lm.speculative(ids, 6, temperature=0.0, knn_mems=store), outs[0])
    prompt = lm.read_prompt(ids, knn_mems=store)  # the cache of which holds the store
    assert torch.equal(lm.generate(None, 6, prompt_cache=prompt, temperature=0.0), outs[0])
    assert_close(lm(ids, knn_mems=store), F.cross_entropy(lm.net(ids[:, :-1], knn_mems=store).mT, ids[:, 1:]))


@pytest.mark.costly
@pytest.mark.parametrize('both', [{}, dict(max_mem_len=5, cmem_len=3, cmem_ratio=2)], ids=str)
def test_segments_hand_on_their_stores(both):
    wrapper, ids = XLAutoregressiveWrapper(model(**both)), ids_of(2, 15)
    given, reset = dict(knn_mems=store_of(wrapper.net)), dict(knn_reset=torch.tensor([False, True]))

    def logits_of(ids):
        mems, stores, further = None, given['knn_mems'], reset
        for segment in ids.split(SIZE, dim=1):
            further = dict(further, mems=mems, return_mems=True, return_intermediates=True, return_knn_mems=True)
            (logits, new), trace = wrapper.net(segment, knn_mems=stores, **further)
            yield logits
            mems, stores, further = trace.mems if both else None, new, {}

    logits = torch.cat([*logits_of(ids[:, :-1])], dim=1)
    assert_close(wrapper.eval()(ids, **given, **reset), F.cross_entropy(logits.mT, ids[:, 1:]))
    assert (wrapper(ids, **given) - wrapper(ids, **given, **reset)).abs() > 1e-5
    for cached in (True, False):
        known, out = ids, wrapper.generate(ids, 6, temperature=0.0, cache_kv=cached, **given, **reset)
        for _ in range(6):
            *_, last = logits_of(known)
            known = torch.cat((known, last[:, -1:].argmax(dim=-1)), dim=1)
        assert torch.equal(out, known[:, 15:])


def test_layers_that_run_again_have_stores_of_their_own():
    net = model(dict(knn_mem_layers=(0,), layers_execute_order=(0, 1, 0, 1)))
    ids, mems = ids_of(2, 2 * SIZE), None
    for segment in ids.split(SIZE, dim=1):
        mems = net(segment, knn_mems=mems, return_knn_mems=True)[1]
    assert len(mems) == 2 and (mems[0][0] - mems[1][0]).abs().max() > 1e-3
    others = [mems[0], (*mems[1][:2], mems[1][2] - 2)]
    assert (net(segment, knn_mems=mems) - net(segment, knn_mems=others)).abs().max() > 1e-4


def test_vectors_have_stores_too():
    stack = Decoder(dim=DIM, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, verbose=False, **MEMORY)
    net, x, mems = randomised(ContinuousTransformerWrapper(attn_layers=stack)), randn(2, 12, DIM), None
    for segment in x.split(SIZE, dim=1):
        out, mems = net(segment, knn_mems=mems, return_knn_mems=True)
    assert mems[0][2].tolist() == [MOST, MOST] and out.isfinite().all()
    assert (net(segment, knn_mems=mems) - net(segment)).abs().max() > 1e-4
    trace = stack(x[:, :SIZE], knn_mems=mems, return_hiddens=True)[1]  # a bare stack
    assert [t.shape[2] for t in trace.attn_intermediates[1].states['knn'].value[:2]] == [MOST] * 2


def test_copies_and_half_precision():
    wrapper, ids = XLAutoregressiveWrapper(model()).train(), ids_of(2, 14)
    training_laws.check_copies(wrapper, lambda own: own(ids))
    training_laws.check_half_precision(wrapper, lambda own: own(ids), tolerance=0.05)
    training_laws.check_gradients(wrapper, lambda own: own(ids))


@pytest.mark.nightly
@pytest.mark.parametrize('search', ['exact', 'coarse'])
def test_one_graph(search):
    net, ids = model(dict(knn_mem_search=search)).train(), ids_of(2, SIZE)

    def call(net):
        logits, mems = net(ids, knn_mems=store, return_knn_mems=True)
        return torch.cat([t.flatten() for t in (logits, *mems[0])])

    store = store_of(net)
    training_laws.check_one_graph(net, call)


# refusals

REFUSED = [
    (dict(knn_mem_layers=(2,)), '`knn_mem_layers` must be different numbers below the'),
    (dict(knn_mem_layers=(1, 1)), '`knn_mem_layers` must be different numbers below the'),
    (dict(knn_mem_layers=(-1,)), '`knn_mem_layers` must be'),
    (dict(knn_mem_size=0), '`knn_mem_size` must be an integer of at least 1, got 0'),
    (dict(knn_mem_topk=0), '`knn_mem_topk` must be an integer of at least 1, got 0'),
    (dict(attn_qk_norm=True), '`attn_knn_mem` cannot be combined with `attn_qk_norm`'),
    (dict(attn_kernel='elu', rotary_pos_emb=False), '`attn_knn_mem` cannot be combined with `attn_kernel`'),
    (dict(attn_cluster='lsh', attn_cluster_size=2), '`attn_knn_mem` cannot be combined with `attn_cluster`'),
    (dict(attn_softmax_scale=0.5), 'settle `logit_scale`'),
    (dict(reversible=True), '`knn_mem_layers` cannot be combined with `reversible`'),
    (dict(layer_dropout=0.1), '`knn_mem_layers` cannot be combined with `layer_dropout`'),
    (dict(weight_tie_layers=True, act_halting=True, knn_mem_layers=(0,)), '`act_halting` cannot be combined with'),
]


@pytest.mark.parametrize('flags, words', REFUSED, ids=[words for _, words in REFUSED])
def test_refused_settings(flags, words):
    with pytest.raises(ConfigError, match=words):
        net_of(stack={**MEMORY, **flags})


def test_refused_stacks():
    sizes = dict(dim=DIM, depth=2, heads=2, attn_dim_head=8, **MEMORY)
    with pytest.raises(ConfigError, match='`knn_mem_layers` needs a causal stack'):
        AttentionLayers(**sizes)


def test_refused_calls():
    net, ids = model(), ids_of(2, SIZE)
    (k, v, count), plain = store_of(net)[0], randomised(net_of())
    for call, words in (
        (lambda: net(ids, knn_mems=[(k, v, count)] * 2), r'`knn_mems` must .*got 2 stores'),
        (lambda: net(ids, knn_mems=k), '`knn_mems`'),
        (lambda: net(ids, knn_mems=[(k, v)]), '`knn_mems` got'),
        (lambda: net(ids, knn_mems=[(k[:1], v[:1], count[:1])]), r'`knn_mems` must .*got keys'),
        (lambda: net(ids, knn_mems=[(k, v[:, :, :2], count)]), r'`knn_mems` must .*got values'),
        (lambda: net(ids, knn_mems=[(k, v, count.double())]), r'`knn_mems` must .*got counts'),
        (lambda: net(ids, knn_reset=torch.tensor([True])), '`knn_reset` must '),
        (lambda: net(ids, knn_reset=True), '`knn_reset` must be'),
        (lambda: net(ids, document_ids=torch.zeros_like(ids)), '`document_ids` cannot be combined with'),
        (lambda: plain(ids, return_knn_mems=True), '`return_knn_mems` needs `knn_mem_layers`'),
        (lambda: plain(ids, knn_mems=[(k, v, count)]), 'knn_mems'),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()


# what it is for


@pytest.mark.nightly
def test_it_looks_up_what_was_told_long_ago():
    """A secret of a segment that nothing else reaches, where it is taught beside secrets of the same segment: what is
    stored is constant, so that keys learn from those near by alone."""
    torch.manual_seed(0)
    task, near = (toy_tasks.cross(distance, segments=6, length=8) for distance in (4, 0))
    stack = Decoder(dim=48, depth=2, heads=4, attn_dim_head=12, rotary_pos_emb=True, verbose=False,
                    knn_mem_layers=(1,), knn_mem_size=48, knn_mem_topk=8)  # fmt: skip
    sizes = dict(num_tokens=task.tokens, logits_dim=task.answers, max_seq_len=8, use_abs_pos_emb=False)
    net = TransformerWrapper(attn_layers=stack, **sizes)

    def read(x, forgets=False):
        mems, logits = None, []
        for segment in x.split(8, dim=1):
            out, mems = net(segment, knn_mems=None if forgets else mems, return_knn_mems=True)
            logits.append(out)
        return torch.cat(logits, dim=1)

    def loss():
        x, y = (torch.cat(both) for both in zip(task.draw(48), near.draw(16), strict=True))
        return F.cross_entropy(read(x).mT, y, ignore_index=toy_tasks.IGNORED)

    toy_tasks.taught(net.train(), loss, 200)
    x, y = task.draw(400)
    with torch.no_grad():
        right = [(read(x, forgets).argmax(dim=-1) == y)[y != toy_tasks.IGNORED].double().mean() for forgets in (0, 1)]
    assert right[0] >= 0.9 and right[1] < 0.3, right
