"""Attention inside of clusters: what is seen, as sets made by loops; hashes, routes, centroids, caches, costs."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
import toy_tasks
from costs import grows
from law_cases import randomise
from oracles import assert_close, in_rounds, randn, routed_in_balance, seen_by_chunk, seen_by_rank
from toy_tasks import SEEDS, learned, net_for, recall

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, PrefixDecoder, TransformerWrapper
from x_transformers.features.clusters import clusters as all_clusters, kernel as clusters
from x_transformers.features.clusters.kernel import SELF, attend, attend_by_formula, sort_by_chunk, sort_by_rank
from x_transformers.flags import ConfigError
from x_transformers.patterns import BigBird, Global, Mix, Sliding

B, N, HEADS, E = 2, 23, 2, 6
HIDDEN = torch.rand(B, N, generator=torch.Generator().manual_seed(3)) < 0.25
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 4 + [2] * 10, [5] * 3 + [1] * 20])
PAIRS = torch.rand(B, HEADS, N, N, generator=torch.Generator().manual_seed(5)) < 0.6
PAIRS[0, :, 7] = False
INPUTS = [{}, dict(mask=~HIDDEN), dict(document_ids=DOCUMENTS)]
INPUTS += [dict(attn_mask=PAIRS, **inputs) for inputs in INPUTS[:2]]
of_inputs = pytest.mark.parametrize('inputs', INPUTS, ids=' '.join)


def drawn(*shape, high, seed=0):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def layer(causal=True, heads=HEADS, **flags):
    torch.manual_seed(0)
    return randomise(Attention(16, heads=heads, dim_head=E, causal=causal, **flags).double())


def lsh(causal=True, **flags):
    return layer(causal, **{**dict(cluster='lsh', cluster_size=3, lsh_buckets=4, lsh_rounds=3), **flags})


def routing(causal=True, **flags):
    return layer(causal, **{**dict(cluster='routing', num_clusters=3, cluster_size=3, local_heads=0), **flags})


def shown(seen, inputs, b, h):
    """Of what each token sees, what no mask of pairs hides."""
    pairs = inputs.get('attn_mask', torch.ones_like(PAIRS))[b, h]
    return [{j for j in keys if pairs[i, j]} for i, keys in enumerate(seen)]


def heads_of(t):
    return t.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def merged(attn, out):
    return attn.to_out(out.transpose(1, 2).flatten(2))


# the engine


def orders(name, ids, hidden):
    documents = DOCUMENTS.clamp(max=2).repeat_interleave(HEADS, dim=0) if 'documents' in name else None
    if name.startswith('rank'):
        return [sort_by_rank(one, hidden, 3, 'causal' in name) for one in ids]
    return [sort_by_chunk(one, hidden, documents, 3, 'across' in name) for one in ids]


def sets(name, ids, hidden):
    """What each token sees, for each row and round."""
    ids = [one if hidden is None else one.masked_fill(hidden, -1) for one in ids]
    documents = DOCUMENTS.repeat_interleave(HEADS, dim=0) if 'documents' in name else torch.zeros_like(ids[0])
    by = (
        (lambda own, r: seen_by_rank(own, 3, 'causal' in name))
        if name.startswith('rank')
        else (lambda own, r: seen_by_chunk(own, 3, 'across' in name, documents[r].tolist()))
    )
    return [[by(one[row].tolist(), row) for one in ids] for row in range(len(ids[0]))]


WAYS = ('rank, causal', 'rank', 'chunk', 'chunk, documents', 'chunk, across, documents')


def blocks_of(how, monkeypatch):
    """Each cluster is a block; or it is cut, in pieces of a few; or blocks are those of any device."""
    if how == 'cut':
        for name, value in dict(WHOLE=4, GRAIN=2, PIECE={'cpu': 64, 'cuda': 64}).items():
            monkeypatch.setattr(clusters, name, value)
    if how == 'grid':
        monkeypatch.setattr(clusters, 'can_read_values', lambda t: False)


@pytest.mark.costly
@pytest.mark.parametrize('how', ['', 'cut', 'grid'])
@pytest.mark.parametrize('name', WAYS)
def test_the_union_of_rounds(name, how, monkeypatch):
    """A softmax over all keys that any round shows, each once; by the formula and in pieces, with gradients."""
    blocks_of(how, monkeypatch)
    q, k, v = (randn(B, HEADS, N, E, seed=s).requires_grad_() for s in range(3))
    ids = [drawn(B * HEADS, N, high=4, seed=s) for s in range(3)]
    for hidden in (None, HIDDEN.repeat_interleave(HEADS, dim=0)):
        own, seen = orders(name, ids, hidden), sets(name, ids, hidden)
        rows = [t.flatten(0, 1) for t in (q, k, v)]
        wanted = torch.stack([in_rounds(*(t[row] for t in rows), seen[row], SELF) for row in range(B * HEADS)])
        out, lse = attend(q, k, v, own, True)
        formula, others = attend_by_formula(*rows, own, True)
        assert_close(out.flatten(0, 1), wanted)
        assert_close(formula, wanted)
        assert torch.equal(lse == -torch.inf, (others == -torch.inf).view(lse.shape))
        grads = [torch.autograd.grad(t.flatten().sin().sum(), (q, k, v)) for t in (out, formula, wanted)]
        for found in grads[:2]:
            for one, other in zip(found, grads[2], strict=True):
                assert_close(one, other, 'gradient')


@pytest.mark.parametrize('again', [(0, 0, 1), (0, 1, 0), (1, 0, 0, 1)], ids=str)
def test_a_round_twice_counts_once(again):
    q, k, v = (randn(1, 1, N, E, seed=s) for s in range(3))
    both = [sort_by_rank(drawn(1, N, high=4, seed=s), None, 3, True) for s in range(2)]
    assert_close(attend(q, k, v, [both[a] for a in again], True)[0], attend(q, k, v, both, True)[0], tolerance=1e-14)


def test_log_sums_and_derivatives(monkeypatch):
    monkeypatch.setattr(clusters, 'PIECE', {'cpu': 1, 'cuda': 1})
    q, k, v = (randn(1, 1, 7, 2, seed=s).requires_grad_() for s in range(3))
    own = [sort_by_rank(drawn(1, 7, high=2, seed=s), torch.arange(7)[None] == 6, 2, True) for s in range(2)]

    def both(*qkv):
        out, lse = attend(*qkv, own)
        return out, lse[..., :-1]

    assert torch.autograd.gradcheck(both, (q, k, v), fast_mode=True)
    assert torch.autograd.gradgradcheck(both, (q, k, v), fast_mode=True)
    formula = attend_by_formula(*(t.flatten(0, 1) for t in (q, k, v)), own, False)
    for one, other in zip(both(q, k, v), (formula[0], formula[1][..., :-1]), strict=True):
        assert_close(one[0], other)


# hashes


def buckets_of(attn, x):
    (feature,) = attn.features.by_stage['attend']
    return feature.hashes(heads_of(attn.to_q(x)), x.shape[1])


@pytest.mark.parametrize('flags', [{}, dict(lsh_chunks='sorted'), dict(lsh_chunks='sorted', lsh_across_buckets=True)])
@of_inputs
def test_hashes_against_loops(flags, inputs):
    causal = 'lsh_chunks' not in flags
    attn, x = lsh(causal, lsh_scale=1.5, **flags), randn(B, N, 16)
    ids, q, v = buckets_of(attn, x), heads_of(attn.to_q(x)) * 1.5, heads_of(attn.to_v(x))
    k = F.normalize(q, dim=-1)
    hidden = HIDDEN if 'mask' in inputs else torch.zeros_like(HIDDEN)
    documents = inputs.get('document_ids', torch.zeros_like(DOCUMENTS))
    wanted = torch.zeros_like(v)
    for b, h in itertools.product(range(B), range(HEADS)):
        rounds = []
        for own in ids[b, h].unbind(-1):
            own = own.masked_fill(hidden[b], -1)
            if causal:
                own = torch.where(own < 0, own, own + 4 * documents[b])
                rounds.append(seen_by_rank(own.tolist(), 3, True))
            else:
                rounds.append(seen_by_chunk(own.tolist(), 3, 'lsh_across_buckets' in flags, documents[b].tolist()))
        rounds = [shown(seen, inputs, b, h) for seen in rounds]
        wanted[b, h] = in_rounds(q[b, h], k[b, h], v[b, h], rounds, SELF)
    out = merged(attn, wanted)
    assert_close(attn(x, **inputs), out * ~hidden[..., None])


def test_one_bucket_is_dense_attention_with_shared_keys():
    """By either form; a token looks at itself only if it sees nothing else."""
    x = randn(B, N, 16)
    for causal, flags in ((True, dict(cluster_size=N)), (False, dict(cluster_size=N, lsh_across_buckets=True))):
        attn, dense = lsh(causal, lsh_rounds=1, **flags), layer(causal, shared_qk=True)
        state = attn.state_dict()
        assert 'to_k.weight' not in state and not state.pop('lsh_seed').is_floating_point()
        dense.load_state_dict(state)
        if causal:
            attn.features.by_stage['attend'][0].hashes = lambda q, n: torch.zeros(*q.shape[:3], 1, dtype=torch.long)
        assert_close(attn(x), dense(x))
        q, v = heads_of(dense.to_q(x)), heads_of(dense.to_v(x))
        logits = q @ F.normalize(q, dim=-1).mT - 1e5 * torch.eye(N)
        logits = logits.masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -torch.inf) if causal else logits
        assert_close(dense(x), merged(dense, logits.softmax(dim=-1) @ v))


def test_near_vectors_collide_more_often():
    torch.manual_seed(0)
    attn = Attention(16, heads=1, dim_head=16, causal=True, cluster='lsh', lsh_rounds=400, lsh_buckets=8)
    (feature,) = attn.features.by_stage['attend']
    angles = torch.tensor([0.05, 0.4, 0.8, 1.6, 3.0])
    x = torch.zeros(1, 1, 6, 16)
    x[..., 0, 0] = 1.0
    x[..., 1:, 0], x[..., 1:, 1] = angles.cos(), angles.sin()
    ids = feature.hashes(x, 6)[0, 0]
    rates = (ids[1:] == ids[:1]).float().mean(dim=-1)
    assert (rates.diff() < 0).all() and rates[0] > 0.9 and rates[-1] < 0.02
    assert ids.min() == 0 and ids.max() == 7


def test_a_planted_pair_sees_each_other():
    found = 0
    for seed in range(20):
        torch.manual_seed(seed)
        attn = Attention(16, heads=1, dim_head=16, causal=True, cluster='lsh', lsh_rounds=8, cluster_size=16)
        x = torch.randn(1, 1, 128, 16)
        x[..., 100, :] = x[..., 36, :] * 1.3 + 0.01
        ids = attn.features.by_stage['attend'][0].hashes(x, 128)[0]
        found += any(36 in seen_by_rank(own.tolist(), 16, True)[100] for own in ids[0].unbind(-1))
    assert found >= 19


def test_buckets_of_two_hashes():
    attn = lsh(lsh_buckets=200)
    (feature,) = attn.features.by_stage['attend']
    one, other = feature.buckets(None)
    assert one % 2 == other % 2 == 0 and 200 <= one * other <= 230
    ids = feature.hashes(randn(1, HEADS, 500, E), 500)
    assert ids.max() < one * other and len(ids.unique()) > 100
    free = lsh(lsh_buckets=None, cluster_size=8)
    assert free.features.by_stage['attend'][0].buckets(100) == (26, 1) and not free.can_cache_kv


def test_hashes_of_many_buckets_do_not_depend_on_padding():
    """Two hashes of their own directions, of which a shorter row has the first."""
    attn = lsh(lsh_buckets=None, cluster_size=2)
    feature = next(f for f in attn.features.active if hasattr(f, 'directions'))
    n = 20000
    one, other = feature.buckets(n)
    assert min(one, other) > 130
    q = torch.randn(1, HEADS, 40, E, dtype=torch.float64)
    both = feature.directions(one, other, q)
    first, second = both.split((one // 2, other // 2), dim=-1)
    assert not torch.isclose(first[..., None], second[..., None, :]).all(dim=-3).any()
    assert torch.equal(feature.hashes(q, n + 64, lengths=torch.tensor([[n]])), feature.hashes(q, n))


def test_later_tokens_change_no_earlier_one():
    for attn in (lsh(), routing(), routing(local_heads=1)):
        x = randn(1, N, 16).requires_grad_()
        for t in (0, 4, 13):
            later = torch.cat((x[:, : t + 1], randn(1, N - t - 1, 16, seed=9) * 5), dim=1)
            assert_close(attn(later)[:, : t + 1], attn(x)[:, : t + 1], tolerance=1e-12)
            (grad,) = torch.autograd.grad(attn(x)[:, t].sum(), x)
            assert (grad[:, t + 1 :] == 0).all() and (grad[:, t] != 0).any()


@pytest.mark.parametrize('many', [1, 1024])
@pytest.mark.parametrize('make', [lsh, routing])
def test_a_cache_of_any_length(make, many, monkeypatch):
    """Token by token and in parts, and again after some tokens are taken back; hidden keys and pairs in it too. Single
    queries meet all keys, or look for theirs."""
    monkeypatch.setattr(all_clusters, 'MANY', many)
    attn, x = make(), randn(B, N, 16)
    real = ~HIDDEN
    for inputs in ({}, dict(context_mask=real), dict(attn_mask=PAIRS)):
        whole = attn(x, **inputs)
        for parts in ((3, *range(4, N + 1)), (9, 20, 22, N)):
            trace, outs = None, []
            for start, stop in itertools.pairwise((0, *parts)):
                given = {n: t[:, :stop] if t.ndim == 2 else t[:, :, start:stop, :stop] for n, t in inputs.items()}
                out, trace = attn(x[:, start:stop], cache=trace, return_intermediates=True, **given)
                outs.append(out)
            assert_close(torch.cat(outs, dim=1), whole)
    stack = dict(dim=16, depth=2, heads=2, attn_dim_head=E, attn_cluster_size=3, verbose=False)
    own = dict(attn_lsh_buckets=4) if make is lsh else dict(attn_num_clusters=2)
    net = randomise(Decoder(**stack, **own, attn_cluster=make.__name__).double())
    _, trace = net(x, return_hiddens=True)
    cache = trace.cache.crop(8)
    out = net(x[:, 8:], cache=cache, input_not_include_cache=True)
    assert_close(out, net(x)[:, 8:])


@pytest.mark.parametrize('flags', [dict(checkpoint_layers=True), dict(reversible=True)], ids=str)
def test_hashes_are_the_same_when_layers_run_again(flags):
    """Drawn anew in each pass of training; centroids count recomputed tokens as they were."""
    torch.manual_seed(0)
    sizes = dict(dim=16, depth=2, heads=2, attn_dim_head=E, attn_cluster_size=3, attn_lsh_buckets=4, verbose=False)
    net = Decoder(attn_cluster='lsh', **sizes, **flags).double().train()
    twin = copy.deepcopy(net)
    for layer in twin.layers:  # which keeps all, with a hook
        layer.register_forward_hook(lambda *_: None)
    twin = Decoder(attn_cluster='lsh', **sizes).double().train() if 'checkpoint_layers' in flags else twin
    twin.load_state_dict(net.state_dict())
    x, grads = randn(B, N, 16), []
    for one in (net, twin):
        torch.manual_seed(7)
        grads.append(torch.autograd.grad(one(x).sin().sum(), list(one.parameters())))
    for one, other in zip(*grads, strict=True):
        assert_close(one, other)
    assert not torch.equal(net(x), net(x)) and torch.equal(net.eval()(x), net(x))


# routes


def routes(attn, x):
    """Queries, keys, values, and of which centroid each query is."""
    q, k, v = (heads_of(to(x)) for to in (attn.to_q, attn.to_k, attn.to_v))
    q, k = (F.layer_norm(t, (E,)) for t in (q, k))
    return q, k, v, (q @ attn.centroids.mT).argmax(dim=-1)


@of_inputs
@pytest.mark.parametrize('size', [3, N])
def test_routes_against_loops(size, inputs):
    """Chunks as large as the largest cluster: all of one's own."""
    attn, x = routing(cluster_size=size), randn(B, N, 16)
    q, k, v, ids = routes(attn, x)
    hidden = HIDDEN if 'mask' in inputs else torch.zeros_like(HIDDEN)
    ids = ids + 3 * inputs.get('document_ids', torch.zeros_like(DOCUMENTS))[:, None]
    ids = ids.masked_fill(hidden[:, None], -1)
    wanted = torch.zeros_like(v)
    for b, h in itertools.product(range(B), range(HEADS)):
        seen = seen_by_rank(ids[b, h].tolist(), size, True)
        if size == N:
            assert seen == [{j for j in range(i + 1) if ids[b, h, i] == ids[b, h, j] >= 0} for i in range(N)]
        wanted[b, h] = in_rounds(q[b, h] * E**-0.5, k[b, h], v[b, h], [shown(seen, inputs, b, h)])
    assert_close(attn(x, **inputs), merged(attn, wanted) * ~hidden[..., None])


@pytest.mark.parametrize('size', [3, 5, N + 4])
def test_balanced_routes_against_loops(size):
    attn, x = routing(False, cluster_size=size), randn(B, N, 16)
    q, k, v, _ = routes(attn, x)
    for real in (torch.ones_like(HIDDEN), ~HIDDEN):
        for pairs in (None, PAIRS, torch.ones_like(PAIRS).tril()):  # the last one is causal routing as in the paper
            wanted = torch.zeros_like(v)
            for b, h in itertools.product(range(B), range(HEADS)):
                seen = None if pairs is None else pairs[b, h]
                wanted[b, h] = routed_in_balance(q[b, h], k[b, h], v[b, h], attn.centroids[h], size, real[b], seen)
            assert_close(attn(x, mask=real, attn_mask=pairs), merged(attn, wanted) * real[..., None])


def test_of_equal_tokens_balanced_routes_take_the_first():
    """So a row with padding on either side routes its tokens as it does alone."""
    stack = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, attn_cluster='routing', attn_num_clusters=2)
    net = TransformerWrapper(num_tokens=3, max_seq_len=32, use_abs_pos_emb=False, attn_layers=stack).double()
    net, ids, others = randomise(net), drawn(2, 12, high=3, seed=1), drawn(2, 4, high=3, seed=2)
    alone, place = net(ids), torch.arange(16).expand(2, -1)
    assert_close(net(torch.cat((others, ids), dim=1), mask=place >= 4)[:, 4:], alone)
    assert_close(net(torch.cat((ids, others), dim=1), mask=place < 12)[:, :12], alone)


@pytest.mark.parametrize('causal', [True, False])
def test_one_centroid_is_dense_attention_of_normed_heads(causal):
    x = randn(B, N, 16)
    attn = routing(causal, num_clusters=1, cluster_size=N)
    q, k, v, _ = routes(attn, x)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert_close(attn(x), merged(attn, out))


def test_local_heads_see_a_window_or_a_pattern():
    x = randn(B, N, 16)
    for flags, own in (({}, dict(pattern='sliding', window=3)), (dict(local_pattern='strided'), 'strided')):
        attn, plain = routing(local_heads=HEADS, **flags), layer(sparse_pattern=own)
        plain.load_state_dict({n: t for n, t in attn.state_dict().items() if n != 'centroids'})
        assert_close(attn(x), plain(x))


BLOCKS = Sliding(2) | Global(first=1)
DRAWN = BigBird(block=2, random_blocks=1, global_blocks=1, max_len=30)
OF_LAYERS = Mix((Sliding(1), Sliding(3)), how='interleave')


@pytest.mark.parametrize('pattern', [BLOCKS, DRAWN, OF_LAYERS], ids=lambda pattern: type(pattern).__name__)
def test_patterns_of_local_heads(pattern):
    """As if all heads had them: counted from the first real token of each row, of the layer, drawn for each layer."""
    sizes = dict(dim=16, depth=2, heads=HEADS, attn_dim_head=E, verbose=False)
    net = Encoder(
        **sizes, attn_cluster='routing', attn_num_clusters=3, attn_local_heads=HEADS, attn_local_pattern=pattern
    )
    net, twin, x = randomise(net.double()), Encoder(**sizes, attn_sparse_pattern=pattern).double(), randn(B, N, 16)
    twin.load_state_dict({n: t for n, t in net.state_dict().items() if 'centroids' not in n})
    for start in (None, torch.tensor([0, 4])):
        wanted = twin(x, seq_start_pos=start)
        assert_close(net(x, seq_start_pos=start)[:, 4:], wanted[:, 4:])


@pytest.mark.parametrize(
    'flags', [dict(attn_cluster='lsh', attn_lsh_chunks='bucket'), dict(attn_cluster='routing')], ids=str
)
def test_a_prefix_sees_all_of_itself(flags):
    """And what follows it sees no later token."""
    flags = dict(**flags, attn_num_clusters=2) if flags['attn_cluster'] == 'routing' else flags
    flags |= dict(attn_routing_balanced=False) if 'attn_num_clusters' in flags else {}
    net = PrefixDecoder(dim=16, depth=1, heads=2, attn_dim_head=E, attn_cluster_size=9, verbose=False, **flags)
    net, x = randomise(net.double()), randn(1, 12, 16).requires_grad_()
    out = net(x, prefix_attn_len=5).sum(dim=(0, 2))
    sees = [torch.autograd.grad(each, x, retain_graph=True)[0][0].abs().sum(dim=-1) > 0 for each in out]
    assert not any(seen[max(t + 1, 5) :].any() for t, seen in enumerate(sees)) and sees[0][1:5].any()


def test_balanced_routes_of_a_context():
    attn, x, context = routing(False, cluster_size=4), randn(B, N, 16), randn(B, 9, 16, seed=1)
    q, k, v = heads_of(attn.to_q(x)), heads_of(attn.to_k(context)), heads_of(attn.to_v(context))
    q, k = (F.layer_norm(t, (E,)) for t in (q, k))
    picks = [(t @ attn.centroids.mT).mT.topk(4).indices for t in (q, k)]
    total, count = torch.zeros(B, HEADS, N, E).double(), torch.zeros(B, HEADS, N, 1)
    for b, h, c in itertools.product(range(B), range(HEADS), range(3)):
        rows, keys = picks[0][b, h, c], picks[1][b, h, c]
        total[b, h, rows] += F.scaled_dot_product_attention(q[b, h, rows], k[b, h, keys], v[b, h, keys])
        count[b, h, rows] += 1
    assert_close(attn(x, context=context), merged(attn, total / count.clamp(min=1)))
    Encoder(dim=16, depth=1, cross_attend=True, attn_cluster='routing', attn_num_clusters=2, attn_local_heads=0)


@pytest.mark.parametrize('causal', [True, False])
def test_centroids_move_as_by_hand(causal):
    """By means of queries and keys nearest to them; where one side has none by the other alone; not in evaluation."""
    attn, x = routing(causal, routing_decay=0.9, num_clusters=6), randn(B, N, 16)
    before, real = attn.centroids.clone(), ~HIDDEN
    attn(x)
    attn.on_step_end(0.1)
    assert torch.equal(attn.centroids, before)
    attn.train()
    attn(x, mask=real)
    attn(x.flip(0), mask=real.flip(0))  # two passes before a step
    attn.on_step_end(0.2)
    q, k, _, _ = routes(attn.eval(), x)
    sides = 0
    for h, c in itertools.product(range(HEADS), range(6)):
        means = []
        for t in (q, k):
            t = t[:, h] * E**-0.5
            own = t[((t @ before[h].mT).argmax(dim=-1) == c) & real]
            means += [own.mean(dim=0)] if len(own) else []
        new = before[h, c] * 0.9 + 0.1 * sum(means) / len(means) if means else before[h, c]
        assert_close(attn.centroids[h, c], F.normalize(new, dim=0), tolerance=1e-6)  # sums are counted in 2^-24
        sides += len(means) == 1
    assert sides  # some have queries or keys alone
    moved = attn.centroids.clone()
    attn.on_step_end(0.3)
    assert torch.equal(attn.centroids, moved)


def test_replicas_move_their_centroids_together(monkeypatch):
    """What several devices have counted is summed up."""
    attn = routing(routing_decay=0.5).train()
    parts, whole = (copy.deepcopy(attn), copy.deepcopy(attn)), copy.deepcopy(attn)
    x = randn(4, N, 16)
    whole(x)
    whole.on_step_end(0.5)
    for part, rows in zip(parts, x.split(2), strict=True):
        part(rows)
    tallies = [part.features.by_stage['attend'][0].tally[0].clone() for part in parts]
    assert 'tally' not in dict(attn.named_buffers())  # which replicas get from the first one
    monkeypatch.setattr(torch.distributed, 'is_initialized', lambda: True)
    monkeypatch.setattr(torch.distributed, 'all_reduce', lambda t: t.copy_(sum(tallies)))
    for part in parts:
        part.on_step_end(0.5)
        assert_close(part.centroids, whole.centroids, tolerance=1e-6)


def test_centroids_reach_the_means_of_blobs():
    torch.manual_seed(0)
    attn = Attention(
        8, heads=1, dim_head=8, causal=True, cluster='routing', num_clusters=3, local_heads=0, routing_decay=0.8
    )
    with torch.no_grad():
        attn.to_q.weight.copy_(torch.eye(8))
        attn.to_k.weight.copy_(torch.eye(8))
        blobs = F.normalize(F.layer_norm(torch.randn(3, 8), (8,)), dim=-1)
        attn.centroids.copy_(F.normalize(blobs + 0.2 * torch.randn(3, 8), dim=-1)[None])
    for _ in range(30):
        attn((blobs.repeat(20, 1) + 0.05 * torch.randn(60, 8))[None])
        attn.on_step_end(0.5)
    assert ((attn.centroids[0] * blobs).sum(dim=-1) > 0.99).all()


# costs


@pytest.mark.parametrize(
    'flags',
    [
        dict(cluster='lsh', cluster_size=16, lsh_rounds=2, lsh_buckets=32),
        pytest.param(dict(cluster='lsh', cluster_size=16, lsh_buckets=32, causal=False), marks=pytest.mark.nightly),
        dict(cluster='routing', cluster_size=16, num_clusters=4, local_heads=1),
        pytest.param(dict(cluster='routing', cluster_size=16, num_clusters=4, causal=False), marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_costs_grow_with_the_length(flags):
    attn = Attention(8, heads=2, dim_head=4, **{'causal': True, **flags})
    grows(lambda n: attn(torch.randn(1, n, 8)), 512)


# refusals


class Nameless(Sliding):
    """Of which no config could tell."""


BAD = [
    (dict(cluster='lsh', lsh_buckets=5), '`attn_lsh_buckets` must be an even number of at least 2 or None, got 5'),
    (
        dict(cluster='lsh', kv_heads=1),
        '`attn_cluster` cannot be combined with `attn_kv_heads`: keys are computed from the queries',
    ),
    (
        dict(shared_qk=True, one_kv_head=True),
        '`attn_shared_qk` cannot be combined with `attn_kv_heads`: keys are computed',
    ),
    (dict(cluster='lsh', lsh_chunks='sorted'), "`attn_lsh_chunks='sorted'` cannot be combined with `causal`"),
    (dict(cluster='lsh', lsh_across_buckets=True), "`attn_lsh_across_buckets` needs `attn_lsh_chunks='sorted'`"),
    (dict(cluster='lsh', num_mem_kv=2), '`attn_cluster` cannot be combined with `attn_num_mem_kv`: prepended keys'),
    (
        dict(cluster='lsh', qk_rmsnorm=True),
        '`attn_cluster` cannot be combined with `attn_qk_rmsnorm`: keys are computed',
    ),
    (dict(cluster='routing'), "`attn_cluster='routing'` needs `attn_num_clusters`"),
    (dict(cluster='routing', num_clusters=2, local_heads=3), '`attn_local_heads` must be at most `heads`, 2, got 3'),
    (dict(cluster='routing', num_clusters=2, routing_balanced=True), '`attn_routing_balanced` cannot be combined with'),
    (
        dict(cluster='routing', num_clusters=2, qk_norm=True),
        '`attn_cluster` cannot be combined with `attn_qk_norm`: it already normalizes',
    ),
    (dict(cluster='lsh', shaw_rel_pos=True), '`attn_cluster` cannot be combined with `attn_shaw_rel'),
    (dict(cluster='lsh', dropout=0.1), '`attn_cluster` cannot be combined with `attn_dropout`'),
    (dict(cluster='lsh', sparse_pattern='sliding'), 'both choose the attend, set only one'),
    (dict(cluster='lsh', lsh_scale=float('nan')), '`attn_lsh_scale` must be a positive number, got nan'),
    (
        dict(cluster='routing', num_clusters=2, local_pattern='none'),
        "`attn_local_pattern` must be a pattern, got 'none'",
    ),
    (dict(cluster='routing', num_clusters=2, local_pattern='bigbird'), '`attn_local_pattern` got bigbird, not for'),
    (dict(cluster='routing', num_clusters=2, local_pattern='longformer'), '`attn_local_pattern` got longformer: no'),
    (
        dict(cluster='routing', num_clusters=2, local_pattern=Nameless(2)),
        'a class with a name in configs, got Nameless',
    ),
]


@pytest.mark.parametrize(('flags', 'words'), BAD, ids=[str(flags) for flags, _ in BAD])
def test_what_is_refused(flags, words):
    with pytest.raises(ConfigError) as error:
        Decoder(dim=16, depth=1, heads=2, **{f'attn_{name}': value for name, value in flags.items()})
    assert words in str(error.value)


def test_what_is_refused_of_a_stack_or_a_call():
    with pytest.raises(
        ConfigError, match='`attn_cluster` cannot be combined with `cross_attend`: clusters contain tokens'
    ):
        Decoder(dim=16, depth=1, cross_attend=True, attn_cluster='lsh')
    sizes = dict(dim=16, depth=1, attn_num_clusters=2, attn_local_heads=0)
    for stack, flags, name in (
        (PrefixDecoder, dict(attn_cluster='lsh', attn_lsh_buckets=4), 'attn_lsh_chunks'),
        (PrefixDecoder, dict(attn_cluster='routing'), 'attn_routing_balanced'),
        (Decoder, dict(cross_attend=True, attn_cluster='routing'), 'attn_routing_balanced'),
    ):
        with pytest.raises(
            ConfigError, match=f'`attn_cluster` with `{name}=None` cannot be combined with a causal stack'
        ):
            stack(**sizes, **flags)
    with pytest.raises(ConfigError, match='`attn_lsh_chunks` cannot be combined with a causal stack'):
        PrefixDecoder(**sizes, attn_cluster='lsh', attn_lsh_buckets=4, attn_lsh_chunks='sorted')
    x = randn(B, N, 16)
    for attn in (lsh(lsh_buckets=None), routing(cluster_size=None)):  # which change with the length
        assert not attn.can_cache_kv
        _, trace = attn(x, return_intermediates=True)
        with pytest.raises(ValueError, match='`cache` was given, but a feature of this layer cannot be cached'):
            attn(x[:, :1], cache=trace)
    with pytest.raises(ValueError, match='`cluster` cannot be combined with `mems`: its clusters contain tokens'):
        lsh()(x, mem=randn(B, 3, 16))
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with `cluster`: its blocks are counted'):
        routing(local_heads=1, local_pattern=BLOCKS)(x, document_ids=DOCUMENTS)
    with pytest.raises(ValueError, match='a centroid takes the best of all tokens'):
        routing(False)(x, document_ids=DOCUMENTS)


def test_lengths_of_no_tokens_and_of_nothing_but_padding():
    for attn in (lsh(), lsh(False), routing(), routing(False), layer(shared_qk=True)):
        for n in (0, 1, 2):
            assert attn(randn(2, n, 16)).shape == (2, n, 16)
        x = randn(2, 5, 16).requires_grad_()
        out = attn(x, mask=torch.tensor([[True] * 5, [False] * 5]))
        assert (out[1] == 0).all() and torch.autograd.grad(out.sum(), x)[0].isfinite().all()


@pytest.mark.costly
def test_generation():
    torch.manual_seed(0)
    stack = Decoder(dim=16, depth=2, heads=2, attn_cluster=('lsh', 'routing'), attn_lsh_buckets=4, attn_cluster_size=4,
                    attn_num_clusters=2, attn_dim_head=E, rotary_pos_emb=True, verbose=False)  # fmt: skip
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=20, max_seq_len=40, attn_layers=stack).double())
    prompts = [torch.randint(0, 20, (n,)) for n in (3, 11)]
    wanted = model.generate(prompts, 9, temperature=0.0, cache_kv=False)
    assert torch.equal(model.generate(prompts, 9, temperature=0.0), wanted)
    assert torch.equal(model.speculative(prompts[1], 9, temperature=0.0), wanted[1])


# what they learn


@pytest.mark.nightly
@SEEDS
def test_a_word_is_copied_by_hashes(seed):
    """And more rounds of hashes find no less."""
    torch.manual_seed(seed)
    task = toy_tasks.copy(128)
    flags = dict(attn_cluster='lsh', attn_cluster_size=32, attn_lsh_buckets=4, attn_lsh_scale=4.0)
    net = net_for(task, Decoder, **flags)
    assert learned(net, task, steps=600, b=12, lr=6e-3) > 0.9

    def right_with(rounds):
        other = net_for(task, Decoder, **flags, attn_lsh_rounds=rounds)
        other.load_state_dict(net.state_dict())
        return toy_tasks.right(other, task)

    assert right_with(8) >= right_with(1)


@pytest.mark.nightly
@SEEDS
def test_keys_are_recalled_by_routes(seed):
    """Beside a layer that sees nearby tokens, which alone finds nothing."""
    torch.manual_seed(seed)
    task = recall(256)
    flags = dict(heads=2, attn_dim_head=32, around=dict(use_abs_pos_emb=False))
    routed = dict(attn_cluster=('routing', None), attn_num_clusters=8, attn_cluster_size=64, attn_local_heads=0)
    near = Sliding(16)
    net = net_for(task, Encoder, attn_sparse_pattern=(None, near), **routed, **flags)
    assert learned(net, task, steps=700, b=16, lr=6e-3, after=net.on_step_end) > 0.85
    local = net_for(task, Encoder, attn_sparse_pattern=near, **flags)
    assert learned(local, task, steps=150, b=16, lr=6e-3) < 0.25


def test_routes_and_a_pattern_in_turns():
    flags = dict(attn_cluster=('routing', None), attn_num_clusters=2, attn_sparse_pattern=(None, Sliding(2)))
    net = Encoder(dim=16, depth=2, heads=2, **flags)
    assert net(torch.randn(1, 9, 16)).isfinite().all()
