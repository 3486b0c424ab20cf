"""Tasks of the Long Range Arena: values by a machine with a stack, paths by what touches what, files by hand."""

import statistics
import sys
from pathlib import Path

import example_scripts
import pytest
import torch
from costs import costs_of
from oracles import assert_close, randn
from torch import nn
from torch.nn import functional as F

from x_transformers import Decoder, Encoder, TransformerWrapper

BENCHMARKS = Path(__file__).resolve().parents[1] / 'benchmarks'  # not in a source distribution
sys.path.insert(0, str(BENCHMARKS))
try:
    from ways import WAYS, Sizes
except ModuleNotFoundError:
    WAYS = {}
sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope='module')
def lra():
    with example_scripts.script('lra') as module:
        yield module


def value_of(tokens):
    """From left to right, with a stack of open operators."""
    stack = [[]]
    for token in tokens:
        if token.startswith('['):
            stack.append([token[1:]])
        elif token == ']':
            name, *values = stack.pop()
            found = {
                'MIN': lambda v: min(v), 'MAX': lambda v: max(v), 'SM': lambda v: sum(v) % 10,
                'MED': lambda v: int(statistics.median(v)),
            }[name](values)  # fmt: skip
            stack[-1].append(found)
        else:
            stack[-1].append(int(token))
    ((value,),) = stack
    return value


def test_values_of_expressions(lra):
    assert value_of('[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]'.split()) == 5
    rows = lra.listops(1000, min_len=20, max_len=300)
    lengths, seen = rows.mask.sum(dim=1), set()
    assert 20 <= lengths.min() and lengths.max() <= 300 and rows.ids.shape[1] == lengths.max()
    assert (rows.ids[~rows.mask] == lra.PAD).all() and (rows.ids[rows.mask] < lra.PAD).all()
    for ids, length, label in zip(rows.ids.tolist(), lengths.tolist(), rows.labels.tolist(), strict=True):
        tokens = [lra.VOCABULARY[at] for at in ids[:length]]
        assert value_of(tokens) == label
        seen |= set(tokens)
    assert seen == set(lra.VOCABULARY) and len(rows.ids.unique(dim=0)) == 1000


def test_the_lengths_of_the_paper(lra):
    rows = lra.listops(40)
    lengths = rows.mask.sum(dim=1)
    assert 500 <= lengths.min() and lengths.max() <= 2000 and len(rows.labels.unique()) > 5


def test_how_deep_and_wide(lra):
    rows = lra.listops(200, max_depth=2, max_args=3, min_len=4, max_len=12)
    for ids in rows.ids.tolist():
        depth, most, widths = 0, 0, [0]
        for token in (lra.VOCABULARY[at] for at in ids if at != lra.PAD):
            if token == ']':
                depth -= 1
                assert 2 <= widths.pop() <= 3
                continue
            widths[-1] += 1
            if token.startswith('['):
                depth += 1
                widths.append(0)
            most = max(most, depth)
        assert 1 <= most <= 2 and depth == 0


def test_seeds(lra, tmp_path):
    options = dict(min_len=5, max_len=60)
    rows, again, other = (lra.listops(50, seed=seed, **options) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))
    assert rows.ids.shape != other.ids.shape or not torch.equal(rows.ids, other.ids)
    fewer = lra.listops(20, seed=1, **options)
    assert torch.equal(fewer.labels, rows.labels[:20])
    first, second = (lra.cached_listops(tmp_path, 50, seed=1, **options) for _ in 'ab')
    assert all(torch.equal(a, b) for a, b in zip(rows, first, strict=True)) and torch.equal(first.ids, second.ids)
    lra.cached_listops(tmp_path, 50, seed=2, **options)
    assert len(list(tmp_path.iterdir())) == 2


def test_impossible_lengths(lra, monkeypatch):
    monkeypatch.setattr(lra, 'TRIES', 500)
    for options in (dict(min_len=500, max_depth=1, max_args=3), dict(min_len=9, max_len=8), dict(min_len=2, max_len=2)):
        with pytest.raises(ValueError, match='0 of 3 expressions of '):
            lra.listops(3, **options)
    with pytest.raises(ValueError, match='10 of 11 expressions'):
        lra.listops(11, min_len=1, max_len=1)
    with pytest.raises(ValueError, match='30 paths of 16 steps do not fit into 32 x 32 pixels'):
        lra.pathfinder(1, paths=30)


def touching(pixels):
    """Groups of pixels of which each is at most two rows and columns from another."""
    groups = []
    for pixel in pixels:
        near = [g for g in groups if any(max(abs(pixel[0] - p[0]), abs(pixel[1] - p[1])) <= 2 for p in g)]
        groups = [g for g in groups if g not in near] + [{pixel}.union(*near)]
    return groups


def test_paths(lra):
    rows = lra.pathfinder(60, seed=3)
    assert rows.ids.shape == (60, 1024) and rows.mask.all() and 15 < rows.labels.sum() < 45
    for ids, label in zip(rows.ids.view(-1, 32, 32), rows.labels.tolist(), strict=True):
        dots = [tuple(place) for place in (ids == 2).nonzero().tolist()]
        groups = touching([tuple(place) for place in (ids > 0).nonzero().tolist()])
        assert len(dots) == 2 and len(groups) == 3
        assert any(set(dots) <= group for group in groups) == bool(label)
    assert torch.equal(rows.ids, lra.pathfinder(60, seed=3).ids)


def test_files(lra, tmp_path):
    for name, texts in (('no', ['abc', '']), ('yes', ['é'])):
        (tmp_path / 'texts' / name).mkdir(parents=True)
        for at, text in enumerate(texts):
            (tmp_path / 'texts' / name / str(at)).write_text(text, encoding='utf-8')
    names, rows = lra.text_bytes(tmp_path / 'texts', 2)
    assert names == ['no', 'yes'] and rows.labels.tolist() == [0, 0, 1]
    assert rows.ids.tolist() == [[98, 99], [0, 0], [196, 170]]
    one, other = lra.retrieval([(b'ab', b'c', 1), (b'', b'dd', 0)], 1)
    assert one.ids.tolist() == [[98], [0]] and other.ids.tolist() == [[100], [101]] and one.labels.tolist() == [1, 0]
    image = torch.zeros(2, 3073, dtype=torch.uint8)
    image[:, 0] = torch.tensor([7, 3])
    image[1, 1], image[1, 1025], image[1, 2049 + 1023] = 255, 100, 50
    (tmp_path / 'batch.bin').write_bytes(image.numpy().tobytes())
    rows = lra.image_gray(tmp_path / 'batch.bin')
    assert rows.labels.tolist() == [7, 3] and rows.ids.shape == (2, 1024)
    assert rows.ids[1, 0] == round(0.299 * 255 + 0.587 * 100) and rows.ids[1, 1023] == round(0.114 * 50)
    (tmp_path / 'batch.bin').write_bytes(b'123')
    with pytest.raises(ValueError, match='which are no rows of 3,073'):
        lra.image_gray(tmp_path / 'batch.bin')
    with pytest.raises(ValueError, match='it must hold two classes or more'):
        lra.text_bytes(tmp_path, 2)


def test_pairs(lra):
    """Where the order does not matter, only the sign of the difference does."""
    u, v = randn(3, 4), randn(3, 4, seed=1)
    one, other = lra.pair_features(u, v), lra.pair_features(v, u)
    assert_close(one, torch.cat((u, v, u * v, u - v), dim=1))
    assert_close(other[:, 8:12], one[:, 8:12])
    assert_close(other[:, 12:], -one[:, 12:])


def test_it_runs(lra, tmp_path, capsys):
    assert lra.main('--steps 2 --dim 8 --depth 1 --rows 20'.split()) == 0
    assert 'right value' in capsys.readouterr().out
    assert lra.main(['--rows', '10', '--write', str(tmp_path)]) == 0
    assert '10 expressions of' in capsys.readouterr().out and len(list(tmp_path.iterdir())) == 1


@pytest.mark.nightly
def test_short_expressions_are_learned(lra):
    assert max(lra.train(lra.read_arguments(['--seed', seed])) for seed in '01') >= 0.85


# elements of the largest storage, for each of 1,024 tokens of 4 heads: the activations of the feedforward, twice,
# but for keys that are copied to their queries, and tables of n * n
PER_TOKEN = {
    'image, local 2D': 4 * (8 + 16) * (16 + 16),  # a tile and its flange
    'BigBird': 4 * 3 * 64,
    'ETC, depth 1': 4 * 3 * 96,  # three blocks of the radius, filled up, and the global tokens
    'Blockwise': 4 * 1024 // 2,
    'sparse indexer, causal': 4 * 1024,  # scores of all keys, in parts of a fixed size
    'AFT full': 1024,
    'reversible, depth 8': 1024,  # the mask of dense attention
    'feedforward in 8 chunks, depth 8': 1024,
}


def reader(name, n, dim=64, heads=4):
    """A classifier of n tokens by one of the ways to attend: ids, mask -> logits, b 10."""
    way, sizes = WAYS[name], Sizes(dim=dim, heads=heads)
    if way.build is not None:
        embed, layer, head = nn.Embedding(20, dim), way.build(n, sizes), nn.Linear(dim, 10)

        def read(ids, mask):
            x = layer(embed(ids))
            x = x[0] if isinstance(x, tuple) else x
            return head((x * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True))

        return read
    flags = way.flags(n, sizes)
    if not way.depth:  # those of attention
        flags = {f'attn_{flag}': value for flag, value in flags.items()}
    kind = Decoder if way.causal else Encoder
    stack = kind(dim=dim, depth=1, heads=heads, attn_dim_head=dim // heads, verbose=False, **flags)
    answer = dict(logits_dim=10, average_pool_embed=True, use_abs_pos_emb=False)
    net = TransformerWrapper(num_tokens=20, max_seq_len=n, attn_layers=stack, **answer)
    return lambda ids, mask: net(ids, mask=mask, **way.inputs(n))


@pytest.mark.nightly
@pytest.mark.parametrize('name', WAYS)
def test_every_mechanism_reads_a_thousand_tokens(lra, name):
    """ListOps of up to 1,024 tokens, forwards and backwards, and what is kept for that."""
    torch.manual_seed(0)
    rows, n = lra.listops(1, min_len=600, max_len=1000), 1024
    ids = F.pad(rows.ids, (0, n - rows.ids.shape[1]), value=lra.PAD)
    read = reader(name, n)

    def work(n):
        return F.cross_entropy(read(ids, ids != lra.PAD), rows.labels)

    costs = costs_of(work, n)
    assert costs.largest <= n * PER_TOKEN.get(name, 2 * 4 * 64), f'{costs.largest / n:.0f} for each token'
    loss = work(n)
    loss.backward()
    assert loss.isfinite() and 0.5 < loss.item() < 10
    inside, padding = ids.clone(), ids.clone()
    inside[:, 3] = (inside[:, 3] + 1) % lra.PAD
    padding[ids == lra.PAD] = 0

    def answers(tokens):
        torch.manual_seed(1)  # of hashes and noise
        return read(tokens, ids != lra.PAD)

    assert not torch.allclose(answers(inside), answers(ids), atol=1e-7)
    if WAYS[name].build is None:  # layers by themselves do not know the mask
        assert_close(answers(padding), answers(ids), 1e-5)
