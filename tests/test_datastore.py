"""Datastores: what is found are the nearest keys, by any way, and files survive interruptions or are refused."""

import copy
import importlib.util
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap

import pytest
import torch
from oracles import assert_close, randn
from training_laws import DIM, ids_of, net_of

from x_transformers import KNNDatastore, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.memory import __main__ as command, search

WIDTH = 6


faiss = pytest.mark.skipif(importlib.util.find_spec('faiss') is None, reason='faiss is not installed')


def filled(n=37, path=None, dtype='float32', block=8, seed=0, **options):
    store = KNNDatastore(WIDTH, 1000, path, dtype, block=block, **options)
    store.add(randn(n, WIDTH, seed=seed).float(), torch.arange(n) * 1001 + 40_000)  # more than 16 bits hold
    return store


def distance(a, b, metric='l2'):
    """Of two lists of numbers."""
    product = sum(x * y for x, y in zip(a, b, strict=True))
    if metric == 'l2':
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    if metric == 'ip':
        return -product
    lengths = [math.sqrt(sum(x * x for x in t)) for t in (a, b)]
    return 1 - product / math.prod(lengths) if all(lengths) else 1.0


def brute_force(store, queries, k, exclude=None):
    """All distances, one by one."""
    keys, values = store.read(torch.arange(len(store)))
    rows = []
    for row, query in enumerate(queries):
        left_out = () if exclude is None else exclude[row].tolist()
        pairs = [
            (distance(query.tolist(), key.tolist(), store.metric), place)
            for place, key in enumerate(keys)
            if place not in left_out
        ]
        rows.append(sorted(pairs)[:k])
    distances = torch.tensor([[d for d, _ in row] for row in rows], dtype=torch.double)
    index = torch.tensor([[i for _, i in row] for row in rows])
    return distances, values[index], index


METRICS = ['l2', 'ip', 'cosine']


@pytest.mark.parametrize(
    ('metric', 'dtype'),
    [('l2', 'float32'), ('ip', 'float32'), ('cosine', 'float32'), ('l2', 'float16'), ('l2', 'bfloat16')],
)
def test_search_is_that_of_all_distances_in_memory_on_disk_and_read_again(tmp_path, monkeypatch, metric, dtype):
    queries, exclude = randn(5, WIDTH, seed=1), torch.tensor([[0, 3], [-1, -1], [36, 1], [7, 7], [2, 9]])
    for stored in (None, tmp_path / 'store'):
        store = filled(path=stored, dtype=dtype, metric=metric)
        for k in (1, 4, 35):
            for left_out in (None, exclude):
                expected = brute_force(store, queries, k, left_out)
                for chunk in (search.SCORES, 15):
                    monkeypatch.setattr(search, 'SCORES', chunk)
                    monkeypatch.setattr(search, 'GATHERED', chunk)
                    found = store.search(queries, k, left_out)
                    assert_close(found.distances, expected[0], tolerance=1e-12)
                    assert torch.equal(found.values, expected[1]) and torch.equal(found.index, expected[2])
    again = KNNDatastore.open(tmp_path / 'store')
    assert len(again) == 37 and all(map(torch.equal, again.search(queries, 4), store.search(queries, 4)))
    assert again.metric == metric and again.recall(queries, 4) == 1


def test_cosines_are_distances_of_unit_vectors_and_zeros_have_no_direction():
    keys, queries = randn(20, WIDTH).float(), randn(3, WIDTH, seed=1).float()
    keys[5] = 0
    stores = [KNNDatastore(WIDTH, 100, dtype='float32', metric=metric) for metric in ('cosine', 'l2')]
    stores[0].add(keys, torch.arange(20))
    stores[1].add(torch.nn.functional.normalize(keys, dim=-1), torch.arange(20))
    found, units = stores[0].search(queries, 20), stores[1].search(torch.nn.functional.normalize(queries, dim=-1), 20)
    others = found.index != 5
    assert_close(found.distances[others], units.distances[units.index != 5] / 2, tolerance=1e-6)
    assert torch.equal(found.index[others], units.index[units.index != 5])
    assert (found.distances[found.index == 5] == 1).all() and (stores[0].search(queries * 0, 3).distances == 1).all()
    # lengths of keys choose no neighbour
    many = KNNDatastore(WIDTH, 1000, dtype='float32', metric='cosine')
    many.add(randn(300, WIDTH).float() * torch.arange(1, 301).unsqueeze(-1), torch.arange(300))
    assert torch.equal(many.search(queries, 5).index, brute_force(many, queries, 5)[2])


def test_a_store_keeps_its_metric(tmp_path):
    filled(path=tmp_path / 'store', metric='ip')
    with pytest.raises(ConfigError, match=r"`metric` got 'l2', the store in .* has 'ip'"):
        KNNDatastore(WIDTH, 1000, tmp_path / 'store', 'float32', block=8)
    about = tmp_path / 'store' / 'store.json'
    content = json.loads(about.read_text())
    about.write_text(json.dumps({name: value for name, value in content.items() if name != 'metric'}))
    assert KNNDatastore.open(tmp_path / 'store').metric == 'l2'  # those written before there were others
    with pytest.raises(ValueError, match=r"`keys` must be floating point for `metric='cosine'`, got torch\.int64"):
        KNNDatastore(2, 9, metric='cosine').add(torch.ones(1, 2).long(), torch.zeros(1).long())


@pytest.mark.parametrize('metric', METRICS)
@pytest.mark.parametrize('backend', ['faiss', 'hnswlib', 'scann'])
def test_every_index_finds_the_nearest_by_every_metric(tmp_path, monkeypatch, backend, metric):
    pytest.importorskip(backend)
    monkeypatch.setattr('x_transformers.memory.index.SHARD', 1500)
    torch.manual_seed(0)
    centres = torch.randn(40, 16) * (1 + torch.rand(40, 1))
    keys = centres[torch.randint(40, (4000,))] + 0.3 * torch.randn(4000, 16)
    keys = keys * (10 * torch.rand(4000, 1) + 0.1) if metric == 'cosine' else keys  # where lengths do not count
    store = KNNDatastore(16, 10_000, tmp_path / 'store', 'float32', backend, block=512, metric=metric)
    store.add(keys, torch.arange(4000))
    queries = keys[::100] + 0.1 * torch.randn(40, 16)
    assert store.build_index(0.95, k=32) >= 0.95
    wanted = brute_force(store, queries[:2], 32)
    for one in (store, KNNDatastore.open(tmp_path / 'store', backend), pickle.loads(pickle.dumps(store))):
        assert one.recall(queries, 32) >= 0.9
        found = one.search(queries[:2], 32)
        assert found.distances[0, 0] <= wanted[0][0, 1] + 1e-6
        for distances, places, query in zip(found.distances, found.index, queries, strict=False):
            exact = [distance(query.tolist(), keys[place].tolist(), metric) for place in places.tolist()]
            assert_close(distances.double(), torch.tensor(exact, dtype=torch.double), tolerance=1e-5)


def test_an_index_of_another_metric_is_refused(tmp_path):
    pytest.importorskip('faiss')
    store = filled(300, tmp_path / 'store', backend='faiss')
    store.build_index(k=3)
    about = tmp_path / 'store' / 'index' / 'index.json'
    content = json.loads(about.read_text())
    about.write_text(json.dumps({**content, 'metric': 'ip'}))
    with pytest.raises(ValueError, match="is of metric 'ip', the store has 'l2'"):
        KNNDatastore.open(tmp_path / 'store', 'faiss')
    about.write_text(json.dumps({name: v for name, v in content.items() if name not in ('metric', 'backend')}))
    assert KNNDatastore.open(tmp_path / 'store', 'faiss').index.entries == 300  # those of earlier versions


def test_queries_of_any_axes_in_single_precision_far_from_zero():
    """Distances by products of large numbers are rounded to nothing; those given are not."""
    store = KNNDatastore(WIDTH, 100, dtype='float32', block=8)
    keys = 1000 + randn(40, WIDTH, seed=3).float()
    store.add(keys, torch.arange(40))
    queries = (1000 + randn(2, 3, WIDTH, seed=4)).float()
    found = store.search(queries, 5)
    expected = (queries.double()[..., None, :] - keys.double()).square().sum(-1).sort(-1)
    assert found.distances.shape == (2, 3, 5) and found.distances.dtype == torch.float32
    assert_close(found.distances.double(), expected.values[..., :5], tolerance=1e-4)
    assert torch.equal(found.index, expected.indices[..., :5])


def test_what_excludes_all_finds_nothing():
    found = filled(3).search(randn(1, WIDTH), 3, torch.tensor([[0, 1]]))
    assert found.index.tolist()[0][1:] == [-1, -1] and found.index[0, 0] == 2
    assert found.distances.isinf().tolist() == [[False, True, True]] and found.values[0, 1:].tolist() == [0, 0]


def test_entries_added_in_any_portions_are_the_same(tmp_path):
    keys, values = randn(37, WIDTH).float(), torch.arange(37)
    for number, sizes in enumerate(((37,), (1,) * 37, (8, 8, 21), (3, 30, 4))):
        store = KNNDatastore(WIDTH, 37, tmp_path / str(number), 'float32', block=8)
        for own_keys, own_values in zip(keys.split(sizes), values.split(sizes), strict=True):
            store.add(own_keys, own_values)
            store.flush() if number % 2 else None
        store.flush()
        for one in (store, KNNDatastore.open(tmp_path / str(number))):
            found = one.read(torch.arange(37))
            assert torch.equal(found[0], keys) and torch.equal(found[1], values) and len(one) == 37
    names = [sorted(path.name for path in (tmp_path / str(n)).iterdir()) for n in range(4)]
    assert names[0] == names[1] == names[2] == names[3] and len(names[0]) == 6


def test_files_are_safetensors(tmp_path):
    safetensors = pytest.importorskip('safetensors.torch')
    filled(path=tmp_path / 'store', dtype='bfloat16').flush()
    own = safetensors.load_file(tmp_path / 'store' / 'block-00000004.safetensors')
    store = KNNDatastore.open(tmp_path / 'store')
    keys, values = store.read(torch.arange(32, 37))
    assert torch.equal(own['keys'], keys) and torch.equal(own['values'].long(), values)
    assert own['values'].dtype == torch.int32


def test_copies_find_the_same(tmp_path):
    queries = randn(2, WIDTH)
    for store in (filled(), filled(path=tmp_path / 'store')):
        expected = store.search(queries, 3)
        for other in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
            assert all(map(torch.equal, other.search(queries, 3), expected))


# files


DAMAGES = {
    'cut': lambda data: data[:-5],
    'cut to nothing': lambda data: b'',
    'cut in the header': lambda data: data[:40],
    'longer': lambda data: data + b'more',
    'a bit of the keys': lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    'a bit of the values': lambda data: data[:-190] + bytes([data[-190] ^ 1]) + data[-189:],
    'a header of nothing': lambda data: (4).to_bytes(8, 'little') + data[8:],
    'a huge header': lambda data: b'\xff' * 8 + data[8:],
    'other bytes': lambda data: b'hello' * 50,
    'another name': lambda data: data.replace(b'"keys"', b'"kexs"'),
    'another shape': lambda data: data.replace(b'[8, 6]', b'[6, 8]'),
    'another type': lambda data: data.replace(b'F32', b'I32'),
}


@pytest.mark.parametrize('damage', DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize('number', [1, 4], ids=['full', 'last'])
def test_damaged_blocks_are_refused_by_name(tmp_path, damage, number):
    filled(path=tmp_path / 'store', n=40 if number == 1 else 36).flush()
    path = tmp_path / 'store' / f'block-0000000{number}.safetensors'
    data = damage(path.read_bytes())
    if number == 4 and data == path.read_bytes():
        data = data[:-1]  # its shape is another already
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf'block-0000000{number}.*damaged'):
        KNNDatastore.open(tmp_path / 'store').search(randn(1, WIDTH), 3)
    with pytest.raises(ValueError, match=rf'block-0000000{number}.*damaged'):
        KNNDatastore.open(tmp_path / 'store').verify()


def test_missing_files_are_refused(tmp_path):
    filled(path=tmp_path / 'store').flush()
    with pytest.raises(ValueError, match=r'no store\.json'):
        KNNDatastore.open(tmp_path)
    (tmp_path / 'store' / 'block-00000002.safetensors').unlink()
    with pytest.raises(ValueError, match=r'`block-00000002\.safetensors` is missing'):
        KNNDatastore.open(tmp_path / 'store')
    about = tmp_path / 'store' / 'store.json'
    content = json.loads(about.read_text())
    for text, words in (
        ('{"a', 'damaged'),
        ('3', 'holds a int'),
        (json.dumps(content | {'format': 'x'}), 'not a datastore of this version'),
        (json.dumps({name: content[name] for name in list(content)[:4]}), 'must have'),
    ):
        about.write_text(text)
        with pytest.raises(ValueError, match=words):
            KNNDatastore.open(tmp_path / 'store')
    about.unlink()
    with pytest.raises(ValueError, match=r'holds blocks without a store\.json'):
        KNNDatastore(WIDTH, 1000, tmp_path / 'store')


def test_bad_arguments_are_refused(tmp_path):
    for wanted, options in {
        '`dim` must be an integer of at least 1, got 0': dict(dim=0),
        '`size` must be an integer of at least 1, got 1.5': dict(size=1.5),
        "`dtype` must be one of 'float16', 'bfloat16', 'float32', got 'int8'": dict(dtype='int8'),
        "`backend` must be one of 'exact', 'faiss', 'hnswlib', 'scann', got 'fast'": dict(backend='fast'),
        '`block` must be an integer of at least 1, got True': dict(block=True),
        "`backend='faiss'` needs a `path`": dict(backend='faiss'),
    }.items():
        with pytest.raises(ConfigError, match=wanted):
            KNNDatastore(**dict(dim=4, size=9) | options)
    store = filled(path=tmp_path / 'store')
    with pytest.raises(ConfigError, match=r'`dtype` got .float16., the store in .* has .float32.'):
        KNNDatastore(WIDTH, 1000, tmp_path / 'store', block=8)
    keys = randn(2, WIDTH).float()
    for wanted, own_keys, values in (
        (r'`keys` must have shape \(n, 6\), got \(2, 5\)', keys[:, :5], torch.zeros(2).long()),
        (r'`values` must have shape \(2,\), got \(3,\)', keys, torch.zeros(3).long()),
        ('`values` must be token ids, got torch.float32', keys, torch.zeros(2)),
        ('`values` must be from 0 to 2147483647, got -1 to 2', keys, torch.tensor([-1, 2])),
        ('from 0 to 2147483647', keys, torch.tensor([2**31, 2])),
        ('room for 963', torch.zeros(964, WIDTH), torch.zeros(964).long()),
        ('finite as float32', keys / 0, torch.zeros(2).long()),
    ):
        with pytest.raises(ValueError, match=wanted):
            store.add(own_keys, values)
    with pytest.raises(ValueError, match='finite as float16'):
        KNNDatastore(WIDTH, 9).add(keys * 1e6, torch.zeros(2).long())
    assert len(store) == 37
    for wanted, queries, k, exclude in (
        ('`k` must be an integer from 1 to 37, the number of entries, got 38', keys, 38, None),
        ('`k` must be an integer from 1 to 37, the number of entries, got 0', keys, 0, None),
        (r'`queries` must be .*got torch.float32 of shape \(2, 5\)', keys[:, :5], 1, None),
        (r'`exclude` must be .*got torch.int64 of shape \(3, 1\)', keys, 1, torch.zeros(3, 1).long()),
        ('`exclude` must be', keys, 1, torch.zeros(2, 1)),
    ):
        with pytest.raises(ValueError, match=wanted):
            store.search(queries, k, exclude)
    with pytest.raises(ValueError, match="`build_index` needs `backend='faiss'`"):
        store.build_index()


# building


def text(rows=6, n=9):
    return [ids_of(2, n, seed=seed) for seed in range(rows)]


def test_keys_are_what_the_last_feedforward_reads(tmp_path):
    net, batches = net_of().double(), text(2)
    store = KNNDatastore(DIM, 100, dtype='float32', block=8).build(net, batches)
    seen = []
    handle = net.attn_layers.layers[-1][1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    net.eval()
    for x in batches:
        net(x)
    handle.remove()
    keys, values = store.read(torch.arange(len(store)))
    assert_close(keys, torch.cat([t[:, :-1].reshape(-1, DIM) for t in seen]).float(), tolerance=1e-6)
    assert torch.equal(values, torch.cat([x[:, 1:].flatten() for x in batches])) and len(store) == 32
    first = KNNDatastore(DIM, 100, dtype='float32').build(net, batches, key_layer=0)
    assert not torch.equal(first.read(torch.arange(32))[0], keys)
    out = KNNDatastore(DIM, 100, dtype='float32').build(net, batches, key_at='output')
    expected = torch.cat([net(x, return_embeddings=True)[:, :-1].reshape(-1, DIM) for x in batches])
    assert_close(out.read(torch.arange(32))[0], expected.float(), tolerance=1e-6)


def test_padding_documents_and_context_give_no_entries():
    net, x = net_of().double(), ids_of(2, 6)

    def store(batch):
        return KNNDatastore(DIM, 100, dtype='float32').build(net, [batch])

    whole = store(x)
    mask = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    right = store(dict(x=x, mask=mask))
    keep = torch.tensor([0, 1, 2, 5, 6, 7, 8, 9])
    for own, expected in zip(right.read(torch.arange(8)), whole.read(keep), strict=True):
        assert_close(own, expected, tolerance=1e-6)
    assert len(right) == 8 and len(store(dict(x=x, labels=x.clone().fill_(-100)))) == 0
    holes = x.clone()
    holes[0, 4:] = -100
    assert torch.equal(store(holes).read(torch.arange(8))[1], right.read(torch.arange(8))[1])
    labels = x.clone()
    labels[:, :3] = -100
    assert torch.equal(store(dict(x=x, labels=labels)).read(torch.arange(6))[1], x[:, 3:].flatten())
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0] * 6])
    assert torch.equal(store(dict(x=x, document_ids=documents)).read(torch.arange(9))[1],
                       torch.cat((x[0, [1, 2, 4, 5]], x[1, 1:])))  # fmt: skip


def test_an_interrupted_build_goes_on_and_reads_nothing_twice(tmp_path):
    net, batches = net_of(), text()
    whole = KNNDatastore(DIM, 1000, tmp_path / 'whole', block=10).build(net, batches)
    read = []
    net.register_forward_pre_hook(lambda module, args: read.append(len(args[0])))

    def breaking():
        yield from batches[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        KNNDatastore(DIM, 1000, tmp_path / 'parts', block=10).build(net, breaking())
    left = tmp_path / 'parts' / 'block-00000004.safetensors.1-0.tmp'
    left.write_bytes(b'half of it')
    parts = KNNDatastore.open(tmp_path / 'parts')
    assert len(parts) == 40 and len(read) == 3  # 48 were read, in full blocks there are 40
    parts.build(net, batches)
    assert len(read) == 3 + 4 and not left.exists()  # from the batch on that was lost in part
    for name in sorted(path.name for path in (tmp_path / 'whole').iterdir()):
        assert (tmp_path / 'whole' / name).read_bytes() == (tmp_path / 'parts' / name).read_bytes()
    parts.build(net, batches)
    assert len(read) == 7 and len(parts) == len(whole) == 96
    more = KNNDatastore.open(tmp_path / 'parts').build(net, [*batches, ids_of(2, 9, seed=7)])
    assert len(more) == 112 and len(KNNDatastore.open(tmp_path / 'parts')) == 112


def test_a_full_store_ends_a_build(tmp_path):
    store = KNNDatastore(DIM, 21, block=8).build(net := net_of(), text())
    assert len(store) == 21
    assert len(store.build(net, text())) == 21


@pytest.mark.costly
def test_building_on_another_text_or_by_another_net_is_refused(tmp_path):
    net = net_of()
    store = KNNDatastore(DIM, 1000, tmp_path / 'store', block=10).build(net, text())
    with pytest.raises(ValueError, match='`loader` gives other tokens than the store holds, after entry 16'):
        store.build(net, [text()[0], ids_of(2, 9, seed=9)])
    with pytest.raises(ValueError, match='`loader` gave 16 entries, the store holds 96'):
        store.build(net, text()[:1])
    with pytest.raises(ValueError, match="`key_at` got 'output', the datastore was begun with 'ff_input'"):
        store.build(net, text(), key_at='output')
    with pytest.raises(ConfigError, match=r'`key_layer` must be one of the 2 feedforwards of `net`, .*got 2'):
        store.build(net, text(), key_layer=2)
    with pytest.raises(ConfigError, match="`key_at` must be one of 'ff_input', 'output', got 'input'"):
        store.build(net, text(), key_at='input')
    with pytest.raises(ValueError, match='`loader` must give ids'):
        KNNDatastore(DIM, 9).build(net, [3])
    with torch.no_grad():
        next(net.parameters()).add_(1e-3)
    with pytest.raises(ValueError, match='`net` is not the one that the datastore was begun with'):
        KNNDatastore.open(tmp_path / 'store').build(net, text())


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='signals as in POSIX')
def test_a_killed_build_loses_one_block_at_most(tmp_path):
    program = f"""
        import torch
        from training_laws import DIM, ids_of, net_of
        from x_transformers import KNNDatastore
        torch.manual_seed(0)
        net = net_of()
        def loader():
            for seed in range(10**6):
                print(8 * (seed + 1) * 2, flush=True)
                yield ids_of(2, 9, seed=seed)
        KNNDatastore(DIM, 10**8, {str(tmp_path / 'store')!r}, block=100).build(net, loader())
    """
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    process = subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': paths},
    )
    while int(process.stdout.readline()) < 1050:
        pass
    process.send_signal(signal.SIGKILL)
    told = int(process.stdout.readline() or 0)
    process.communicate()
    store = KNNDatastore.open(tmp_path / 'store')
    store.verify()
    assert len(store) >= max(told, 1050) - 16 - 100
    torch.manual_seed(0)
    store.build(net_of(), [ids_of(2, 9, seed=seed) for seed in range(len(store) // 16 + 3)])
    assert len(store) % 16 == 0


# the index


@faiss
def test_the_index_finds_nearly_all_and_its_distances_are_exact(tmp_path, monkeypatch):
    monkeypatch.setattr('x_transformers.memory.index.SHARD', 1500)
    keys, values = randn(4000, 16, seed=2).float(), torch.arange(4000)
    store = KNNDatastore(16, 10_000, tmp_path / 'store', 'float32', 'faiss', block=512)
    store.add(keys, values)
    store.flush()
    with pytest.raises(ValueError, match='the index covers 0 of 4000 entries'):
        store.search(keys[:2], 3)
    recall = store.build_index(0.95, k=20)
    assert recall >= 0.95 and len(list((tmp_path / 'store' / 'index').glob('shard-*'))) == 3
    queries = randn(50, 16, seed=3).float()
    exact = KNNDatastore.open(tmp_path / 'store').search(queries, 20)
    for one in (store, KNNDatastore.open(tmp_path / 'store', 'faiss'), pickle.loads(pickle.dumps(store))):
        found = one.search(queries, 20)
        same = (found.index[:, :, None] == exact.index[:, None]).any(-1)
        assert same.float().mean() >= 0.93
        assert_close(found.distances, (queries[:, None] - keys[found.index]).square().sum(-1), tolerance=1e-6)
        assert torch.equal(found.values, found.index) and (found.distances.diff() >= 0).all()
    own = torch.arange(5)
    assert torch.equal(store.search(keys[:5], 1).index[:, 0], own)
    assert (store.search(keys[:5], 20, own[:, None]).index != own[:, None]).all()
    more = randn(1000, 16, seed=5).float()
    store.add(more, values[:1000])
    with pytest.raises(ValueError, match=r'the index covers 4000 of 5000 entries: call `build_index\(\)`'):
        store.search(queries, 3)
    with monkeypatch.context() as patch:  # killed between a shard and what names it: the one before counts
        patch.setattr('x_transformers.memory.index.write_json', lambda *_: (_ for _ in ()).throw(OSError('full')))
        with pytest.raises(OSError, match='full'):
            KNNDatastore.open(tmp_path / 'store', 'faiss').build_index()
    assert len(KNNDatastore.open(tmp_path / 'store', 'faiss').index.candidates(queries, 3)) == 50
    store.build_index(0.95, k=20)
    assert len(list((tmp_path / 'store' / 'index').glob('shard-*'))) == 4
    assert (store.search(more[:9], 1).index[:, 0] == 4000 + torch.arange(9)).all()
    for name in ('shard-00001-3000.faiss', 'trained.faiss'):
        path = tmp_path / 'store' / 'index' / name
        data = path.read_bytes()
        path.write_bytes(data[:-9] + b'#' + data[-8:])
        with pytest.raises(ValueError, match=f'{name}.*damaged'):
            again = KNNDatastore.open(tmp_path / 'store', 'faiss')
            again.search(queries, 3)
            again.add(keys[:5], values[:5])
            again.build_index()
        path.write_bytes(data)


@pytest.mark.parametrize('backend', ['faiss', 'hnswlib', 'scann'])
def test_without_a_package_the_error_says_what_to_install(tmp_path, monkeypatch, backend):
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(ImportError, match=rf"pip install 'x-transformers\[{backend}\]'"):
        KNNDatastore(4, 9, tmp_path / 'store', backend=backend)


# the command


@pytest.mark.costly
def test_the_command_builds_goes_on_tunes_and_verifies(tmp_path, capsys):
    torch.manual_seed(0)
    from x_transformers import Decoder

    net = TransformerWrapper(num_tokens=256, max_seq_len=16, attn_layers=Decoder(dim=16, depth=1, heads=1))
    net.save_pretrained(tmp_path / 'run' / 'step_9')
    net.save_pretrained(tmp_path / 'run' / 'step_10')
    words = b''.join(b'line %d of a text\n' % at for at in range(30))
    (tmp_path / 'text').write_bytes(words)
    given = [
        'build',
        str(tmp_path / 'run'),
        str(tmp_path / 'store'),
        '--text',
        str(tmp_path / 'text'),
        '--block',
        '100',
    ]
    assert command.main(given) == 0
    assert f'{len(words) - 1:,} entries in' in capsys.readouterr().out
    store = KNNDatastore.open(tmp_path / 'store')
    values = store.read(torch.arange(len(store)))[1]
    assert bytes(values.tolist()) == words[1:]
    assert command.main(given) == 0 and 'going on' in capsys.readouterr().out
    assert command.main(['verify', str(tmp_path / 'store')]) == 0
    assert command.main(['inspect', str(tmp_path / 'store')]) == 0 and 'ff_input' in capsys.readouterr().out
    tune = ['tune', str(tmp_path / 'run'), str(tmp_path / 'store'), '--text', str(tmp_path / 'text'), '--k', '9']
    assert command.main(tune) == 0 and 'lambda' in capsys.readouterr().out
    assert command.main(['verify', str(tmp_path / 'nothing')]) == 2
    assert command.main([*given, '--overlap', '16']) == 2
    assert '`--overlap` must be from 1 to 15, got 16' in capsys.readouterr().err


def test_blocks_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(path, *args):
        raise OSError(28, 'No space left on device')

    store = filled(path=tmp_path / 'store', n=36)
    store.flush()
    monkeypatch.setattr('x_transformers.core.files.os.replace', full)
    with pytest.raises(OSError, match='No space'):
        store.add(randn(9, WIDTH).float(), torch.arange(9))
    monkeypatch.undo()
    assert len(KNNDatastore.open(tmp_path / 'store')) == 36 and not list((tmp_path / 'store').glob('*.tmp'))
