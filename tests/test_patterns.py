"""Sparse patterns: the engine against dense attention with the mask of `visible`, their forms, and what is refused."""

import itertools
import json

import numpy as np
import pytest
import torch
from building import vectors
from costs import grows
from law_cases import randomise
from oracles import assert_close

from x_transformers import Attention, Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.kernels import operators
from x_transformers.patterns import (
    PATTERNS as KNOWN,
    Behind,
    BlockLocal,
    Column,
    Global,
    Local1D,
    Mix,
    Row,
    Sliding,
    Strided,
    Summary,
    as_pattern,
    local,
    pattern as pattern_of,
    strided,
)
from x_transformers.patterns.engine import pieces

HEADS, TIGHT = 4, 1e-10
PATTERNS = {
    'sliding': Sliding(3),
    'dilated': Sliding(2, 3),
    'dilated by head': Sliding(2, (1, 2, 1, 3)),
    'block local': BlockLocal(4),
    'local 1D': Local1D(3, 4),
    'strided': Strided(4),
    'summary': Summary(4, 2),
    'summary per head': Summary(4, 1, per_head=True),
    'first tokens': Sliding(2) | Global(2),
    'some tokens': Global(positions=(3, 7)),
    'row or column': Row(4) | Column(4),
    'both': Sliding(5) & Strided(2),
    'three': Sliding(1) | Strided(3) | BlockLocal(4),
    'blocks, strides': BlockLocal(3) | Strided(2),
    'a row behind a text': Global(3) | Behind(Row(4), 3),
    'a column behind a text': Global(5) | Behind(Column(4), 5),
    'much behind a text': Behind(Summary(4, 2) | Sliding(2, (1, 2, 1, 3)) | Global(positions=(1, 4)), 6),
    'heads': Mix((Sliding(2, (1, 3, 2)) | Global(1), BlockLocal(3)), heads=(3, 1)),
    'merged': Mix((BlockLocal(4), Summary(4, 1)), how='merge'),
}
# in ordinary runs, where the engine does not care which pattern it is
SOME = ('dilated by head', 'summary', 'first tokens', 'local 1D')


def each(some=tuple(PATTERNS)):
    marked = [name if name in some else pytest.param(name, marks=pytest.mark.nightly) for name in PATTERNS]
    return pytest.mark.parametrize('name', marked)


BOTH = pytest.mark.parametrize('causal', [True, False])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks that are small beside the sequences here, and all windows by the engine."""
    monkeypatch.setattr(local, 'CHUNK', 2)
    monkeypatch.setattr(strided, 'ITSELF', 2)
    monkeypatch.setattr(operators, 'CHUNK', 2)
    monkeypatch.setattr(operators, 'LEAST', 0)


def dense(pattern, n, heads=HEADS):
    """Which keys each query sees by `visible`:  h n n."""
    place = torch.arange(n)
    of_heads = pattern.of_layer(0).of_length(n).for_heads(heads)
    return torch.stack([one.visible(place[:, None], place).expand(n, n) for one in of_heads])


def twins(pattern, causal=True, front=0, **flags):
    """An attention layer with a pattern, and the same without."""
    torch.manual_seed(0)
    sizes = dict(heads=HEADS, dim_head=3, kv_heads=2, value_dim_head=5, causal=causal, num_mem_kv=front, **flags)
    sparse = Attention(8, **sizes, sparse_pattern=pattern).double()
    plain = Attention(8, **sizes).double()
    found = plain.load_state_dict(sparse.state_dict(), strict=False)
    assert not found.missing_keys and set(found.unexpected_keys) <= {'random_blocks'}
    return sparse, plain


def some(*shape, seed=1, share=0.7):
    """Which tokens are real: the first and the last one, since others count from there, and a share of the rest."""
    real = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    real[:, [0, -1]] = True
    return real


def agree(sparse, plain, x, pattern, mask=None, **inputs):
    out = sparse(x, mask=mask, **inputs)
    wanted = plain(x, mask=mask, attn_mask=dense(pattern, x.shape[1]), **inputs)
    assert_close(out, wanted, tolerance=TIGHT)
    found = [torch.autograd.grad(t.sin().sum(), [x, *m.parameters()]) for t, m in ((out, sparse), (wanted, plain))]
    for one, other in zip(*found, strict=True):
        assert_close(one, other, 'gradient', tolerance=TIGHT)


def meant(name, h, i, j):
    """The formulas, written out."""
    return {
        'sliding': abs(i - j) <= 3,
        'dilated': abs(i - j) <= 6 and (i - j) % 3 == 0,
        'dilated by head': abs(i - j) in [d * (1, 2, 1, 3)[h] for d in range(3)],
        'block local': i // 4 == j // 4,
        'local 1D': i // 3 * 3 - 4 <= j < i // 3 * 3 + 3 + 4,
        'strided': (i - j) % 4 == 0,
        'summary': j % 4 in (2, 3) or i == j,
        'summary per head': j % 4 == 3 - h or i == j,
        'first tokens': abs(i - j) <= 2 or min(i, j) < 2,
        'some tokens': i in (3, 7) or j in (3, 7),
        'row or column': j <= i and (i // 4 == j // 4 or i % 4 == j % 4),
        'both': abs(i - j) <= 5 and (i - j) % 2 == 0,
        'three': abs(i - j) <= 1 or (i - j) % 3 == 0 or i // 4 == j // 4,
        'blocks, strides': i // 3 == j // 3 or (i - j) % 2 == 0,
        'a row behind a text': min(i, j) < 3 or (j <= i and (i - 3) // 4 == (j - 3) // 4),
        'a column behind a text': min(i, j) < 5 or (j <= i and (i - j) % 4 == 0),
        'much behind a text': min(i, j) >= 6
        and (
            (j - 6) % 4 in (2, 3)
            or abs(i - j) in [d * (1, 2, 1, 3)[h] for d in range(3)]
            or bool({i - 6, j - 6} & {1, 4})
        ),
        'heads': i // 3 == j // 3 if h == 3 else min(i, j) == 0 or abs(i - j) in [d * (1, 3, 2)[h] for d in range(3)],
        'merged': i // 4 == j // 4 or j % 4 == 3,
    }[name]


@each()
def test_what_patterns_mean(name):
    n = 13
    wanted = [[[meant(name, h, i, j) for j in range(n)] for i in range(n)] for h in range(HEADS)]
    assert dense(PATTERNS[name], n).equal(torch.tensor(wanted))


# against the dense twin


@each()
@BOTH
def test_the_dense_twin(name, causal):
    pattern = PATTERNS[name]
    for n, front in ((1, 0), (2, 2), (13, 0), (22, 2)):
        layers, x = twins(pattern, causal, front), vectors(2, n, 8).requires_grad_()
        for mask in (None, some(2, n)):
            agree(*layers, x, pattern, mask)


@each(SOME)
@BOTH
def test_the_formula_of_what_is_gathered(name, causal, monkeypatch):
    """Which dropout, learned biases, graphs and derivatives of derivatives go through."""
    monkeypatch.setattr('x_transformers.patterns.engine.attention.takes', lambda *_: False)
    pattern, x = PATTERNS[name], vectors(2, 14, 8).requires_grad_()
    agree(*twins(pattern, causal, 2), x, pattern, some(2, 14))


@each(SOME)
def test_masks_and_windows_in_small_parts(name, monkeypatch):
    monkeypatch.setattr(pieces, 'MASK', 8)
    monkeypatch.setattr(pieces, 'WINDOWS', 8)
    pattern, x = PATTERNS[name], vectors(2, 22, 8).requires_grad_()
    layers = twins(pattern, False, 1)
    for inputs in ({}, dict(mask=some(2, 22)), dict(attn_bias=vectors(2, HEADS, 22, 22))):
        agree(*layers, x, pattern, **inputs)


@each(SOME)
@BOTH
def test_biases(name, causal):
    """That learn, and that do not; padding on the left; keys in front."""
    pattern = PATTERNS[name]
    kind, start = Decoder if causal else Encoder, torch.tensor([0, 5])
    for flags in (dict(alibi_pos_bias=True), dict(rel_pos_bias=True), dict(rotary_pos_emb=True)):
        flags |= dict(dim=8, depth=1, heads=HEADS, attn_dim_head=4, attn_num_mem_kv=1)
        sparse = randomise(kind(**flags, attn_sparse_pattern=pattern).double())
        plain = kind(**flags).double()
        plain.load_state_dict(sparse.state_dict())
        agree(sparse, plain, vectors(2, 11, 8).requires_grad_(), pattern)
        x = vectors(2, 11, 8)
        padded = sparse(x, seq_start_pos=start)
        assert_close(padded[0], sparse(x[:1])[0], tolerance=TIGHT)
        assert_close(padded[1, 5:], sparse(x[1:, 5:])[0], tolerance=TIGHT)


@pytest.mark.parametrize('name', ['sliding', 'dilated', 'strided'])
@BOTH
def test_documents_and_memories(name, causal):
    pattern, x = PATTERNS[name], vectors(2, 12, 8)
    kind = Decoder if causal else Encoder
    net = randomise(kind(dim=8, depth=2, heads=HEADS, attn_dim_head=4, attn_sparse_pattern=pattern).double())
    ids = torch.tensor([[0] * 5 + [3] * 7, [1] * 8 + [0] * 4])
    out = net(x, document_ids=ids)
    for row, cut in ((0, 5), (1, 8)):
        assert_close(out[row, :cut], net(x[row : row + 1, :cut])[0], tolerance=TIGHT)
        assert_close(out[row, cut:], net(x[row : row + 1, cut:])[0], tolerance=TIGHT)
    _, left = net(x[:, :7], return_hiddens=True)
    after = net(x[:, 7:], mems=left.hiddens)
    if causal:
        assert_close(after, net(x)[:, 7:], tolerance=TIGHT)


def test_blocks_know_where_a_row_begins():
    net = Decoder(dim=8, depth=1, heads=HEADS, attn_sparse_pattern=Local1D(4, 2))
    x = torch.randn(1, 6, 8)
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with `attn_sparse_pattern`: its blocks'):
        net(x, document_ids=torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(ValueError, match=r'`sparse_pattern` cannot be combined with `mems`: its blocks'):
        net(x, mems=[x])


# laws that hold for each pattern


@each(SOME)
def test_cache(name):
    """Token by token from a prompt of every length, with padding on the left and without."""
    flags = dict(dim=8, depth=2, heads=HEADS, attn_dim_head=4, attn_num_mem_kv=1, rotary_pos_emb=True)
    net = randomise(Decoder(**flags, attn_sparse_pattern=PATTERNS[name]).double()).eval()
    x, start = vectors(2, 13, 8), torch.tensor([0, 4])
    for inputs in ({}, dict(seq_start_pos=start)):
        wanted = net(x, **inputs)
        for prompt in (1, 5, 8, 12):
            out, cache = net(x[:, :prompt], return_hiddens=True, **inputs)
            outs = [out]
            for at in (*range(prompt, min(prompt + 3, 13)), 13):
                if (stop := at + 1 if at < prompt + 3 else 13) > 13 or at == 13:
                    break
                out, cache = net(x[:, :stop], cache=cache, return_hiddens=True, **inputs)
                outs.append(out)
            found = torch.cat(outs, dim=1)
            real = torch.arange(13) >= (start if inputs else torch.zeros(2))[:, None]
            assert_close(
                found[real[:, : found.shape[1]]],
                wanted[:, : found.shape[1]][real[:, : found.shape[1]]],
                tolerance=TIGHT,
            )
        out, cache = net(x[:, :5], return_hiddens=True, **inputs)
        out = net(x, cache=cache, **inputs)  # a chunk of many
        assert_close(out[0], wanted[0, 5:], tolerance=TIGHT)
        assert_close(out[1], wanted[1, 5:], tolerance=TIGHT)


@each(SOME)
def test_no_look_ahead_and_rows_that_see_nothing(name):
    attn, _ = twins(PATTERNS[name], front=0)
    x = vectors(1, 14, 8).requires_grad_()
    for t in (0, 6):
        (grad,) = torch.autograd.grad(attn(x)[:, t].sum(), x)
        seen = [[j for j in range(t + 1) if meant(name, h, t, j)] for h in range(4)]
        asks = any(t in keys or len(keys) > 1 for keys in seen)  # of one key alone any query makes the same
        assert (grad[:, t + 1 :] == 0).all() and (grad[:, t].abs() > 1e-12).any() == asks  # 0 but for rounding
    attn.to_out = torch.nn.Identity()
    hidden = torch.zeros(1, 14, dtype=torch.bool)
    hidden[:, :3] = True
    sees = (dense(PATTERNS[name], 14).tril() & hidden).any(dim=-1)
    out = attn(x, mask=hidden | True, attn_mask=hidden.expand(14, -1)).unflatten(-1, (HEADS, -1))
    assert ((out[0].transpose(0, 1) == 0).all(dim=-1) == ~sees).all()
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.isfinite().all()


@each(SOME)
def test_maps_and_derivatives_of_derivatives(name):
    pattern = PATTERNS[name]
    sparse, plain = twins(pattern)
    x = vectors(1, 7, 8).requires_grad_()
    _, own = sparse(x, return_intermediates=True)
    _, other = plain(x, attn_mask=dense(pattern, 7), return_intermediates=True)
    assert_close(own.post_softmax_attn, other.post_softmax_attn, tolerance=TIGHT)
    twice = []
    for layer, inputs in ((sparse, {}), (plain, dict(attn_mask=dense(pattern, 7)))):
        (grad,) = torch.autograd.grad(layer(x, **inputs).sin().sum(), x, create_graph=True)
        twice += torch.autograd.grad(grad.square().sum(), x)
    assert_close(*twice, tolerance=TIGHT)


@pytest.mark.costly
def test_dropout_keeps_the_mean():
    attn, _ = twins(Sliding(2) | Global(2), dropout=0.5)
    x = vectors(1, 9, 8)
    torch.manual_seed(0)
    mean = torch.stack([attn.train()(x) for _ in range(300)]).mean(dim=0)
    assert (mean - attn.eval()(x)).abs().max() < 0.2 * mean.abs().max()


COSTS = {
    'sliding': (Sliding(4), 2.0, 2.0),
    'longformer': (Sliding(4) | Global(2), 2.0, 2.0),
    'block local': (BlockLocal(8), 2.0, 2.0),
}


@pytest.mark.parametrize('name', COSTS)
def test_costs(name, monkeypatch):
    pattern, ratio, time = COSTS[name]
    attn = Attention(4, heads=1, dim_head=4, sparse_pattern=pattern)
    grows(lambda n: attn(torch.randn(1, n, 4)), 256, ratio, time)
    if ratio == 2:  # with padding, too
        grows(lambda n: attn(torch.randn(1, n, 4), mask=torch.arange(n)[None] < n - 9), 256, ratio, time)


def test_costs_of_strides():
    """n sqrt(n), where the stride is the root of the length."""
    for pattern in (Strided, lambda s: Mix((BlockLocal(s), Summary(s, 2)))):
        layers = {n: Attention(4, heads=2, dim_head=4, causal=True, sparse_pattern=pattern(s)) for n, s in
                  ((256, 16), (512, 23), (1024, 32))}  # fmt: skip
        grows(lambda n, layers=layers: layers[n](torch.randn(1, n, 4)), 256, 2**1.5)


# windows of masks


WINDOWS = {
    'causal': (Decoder, {}),
    'both sides': (Encoder, dict(attn_max_attend_future=3)),
    'keys in front': (Decoder, dict(attn_num_mem_kv=2, attn_kv_heads=2)),
    'ALiBi': (Decoder, dict(alibi_pos_bias=True)),
    'rotary': (Decoder, dict(rotary_pos_emb=True)),
}


@pytest.mark.parametrize('name', WINDOWS)
def test_windows(name, monkeypatch):
    """`attn_max_attend_past` gives the numbers of its mask, whoever computes it; and those of `Sliding`."""
    kind, flags = WINDOWS[name]
    flags = dict(dim=8, depth=1, heads=HEADS, attn_dim_head=4, **flags)
    net = randomise(kind(**flags, attn_max_attend_past=3).double())
    x, ids = vectors(2, 30, 8).requires_grad_(), torch.arange(30).expand(2, -1) // 13
    calls = [{}, dict(mask=some(2, 30)), dict(document_ids=ids), dict(mask=some(2, 30), document_ids=ids)]
    ran, in_band = [], operators.attend_in_band
    monkeypatch.setattr('x_transformers.kernels.operators.attend_in_band', lambda *a: ran.append(1) or in_band(*a))
    for inputs in calls:
        monkeypatch.setattr(operators, 'LEAST', 0)
        out = net(x, **inputs)
        monkeypatch.setattr(operators, 'LEAST', 2**60)
        wanted = net(x, **inputs)
        assert_close(out, wanted, tolerance=TIGHT)
        found = [torch.autograd.grad(t.sin().sum(), [x, *net.parameters()]) for t in (out, wanted)]
        for one, other in zip(*found, strict=True):
            assert_close(one, other, 'gradient', tolerance=TIGHT)
    assert len(ran) == len(calls)
    monkeypatch.setattr(operators, 'LEAST', 0)
    if kind is Decoder:
        _, cache = net(x[:, :9], return_hiddens=True)
        assert_close(net(x, cache=cache), net(x)[:, 9:], tolerance=TIGHT)
        assert len(ran) > len(calls) + 1
    given = {n: v for n, v in flags.items() if n != 'attn_max_attend_future'}
    sliding = kind(**given, attn_sparse_pattern=Sliding(3)).double()
    sliding.load_state_dict(net.state_dict())
    assert_close(sliding(x), net(x), tolerance=TIGHT)


# forms


@each()
def test_forms(name):
    pattern = PATTERNS[name]
    assert as_pattern(pattern.as_config()) == pattern
    for n, causal in itertools.product((1, 9, 20), (True, False)):
        seen = dense(pattern, n).tril() if causal else dense(pattern, n)
        assert int(seen.sum(dim=-1).max()) <= pattern.keys_bound(n, causal)
        reach = pattern.reach
        assert reach is None or not seen.tril(-reach - 1).any()
    for one in pattern.for_heads(HEADS):
        place, period = torch.arange(20), one.period
        seen = one.visible(place[:, None], place).expand(20, 20)
        assert period is None or (seen[period:, period:] == seen[: 20 - period, : 20 - period]).all()
    net = Decoder(dim=8, depth=1, heads=HEADS, attn_sparse_pattern=pattern)
    again = type(net).from_config(net.config)
    assert again.layers[0][1].features.by_stage['attend'][0].pattern == pattern and again.config == net.config


def test_a_class_of_ones_own():
    """A config brings back what has a name there; anything else is refused, not forgotten."""

    class Farther(Sliding):
        def visible(self, i, j, marks=None):
            return super().visible(i, j + 1, marks)

    for own in (Farther(3), Farther(3) | Global(1), Mix((Sliding(2), Farther(3)))):
        with pytest.raises(
            ConfigError, match=r'sparse_pattern` must be of a class with a name in configs, got Farther'
        ):
            Decoder(dim=8, depth=1, heads=2, attn_sparse_pattern=own)
    named = pattern_of('farther')(Farther)
    try:
        net = Decoder(dim=8, depth=1, heads=2, attn_sparse_pattern=named(3) | Global(1))
        again = type(net).from_config(net.config).layers[0][1].features.by_stage['attend'][0].pattern
        assert type(again.patterns[0]) is named
    finally:
        del KNOWN['farther']


def test_integers_of_calculations_and_names_on_both_sides():
    """A config is data that JSON can hold."""
    pattern = Sliding(np.int64(3), np.array([1, 2]).tolist()) | Global(positions=(np.int32(4),))
    net = Decoder(dim=8, depth=1, heads=2, attn_sparse_pattern=pattern)
    assert Decoder.from_config(json.loads(json.dumps(net.config))).config == net.config
    assert 'strided' | Sliding(2) == Strided(128) | Sliding(2) and 'strided' & Sliding(2) == Strided(128) & Sliding(2)


def test_layers_take_turns(logged):
    pattern = Mix((Sliding(1), Strided(3)), how='interleave')
    net = Decoder(dim=8, depth=3, heads=2, attn_sparse_pattern=pattern)
    own = [layer[1].features.by_stage['attend'][0].of_heads(2, 9)[0] for layer in net.layers if layer.kind == 'a']
    assert own == [Sliding(1), Strided(3), Sliding(1)]
    assert not logged
    Decoder(dim=8, depth=1, heads=2, attn_sparse_pattern=pattern)
    assert len(logged) == 1 and "2 patterns by how='interleave', for 1 layers" in logged[0]
    net = Decoder(dim=8, depth=2, heads=2, attn_sparse_pattern=(Sliding(2), None))
    assert ['attend' in layer[1].features.by_stage for layer in net.layers if layer.kind == 'a'] == [True, False]


def test_two_hops():
    """What the two patterns of a Sparse Transformer see together, the far one in the later layer."""
    n, size, c = 64, 8, 2
    near = dense(BlockLocal(size), n, 1)[0].tril().double()
    far, own = dense(Summary(size, c), n, 1)[0].tril().double(), torch.eye(n)
    full = torch.ones(n, n).tril().bool()
    assert (((far + own) @ (near + own)) > 0).equal(full)
    assert not (((near + own) @ (far + own)) > 0).equal(full)
    window, column = (dense(p, n, 1)[0].tril().double() for p in (Sliding(size), Strided(size)))
    assert ((column @ window) > 0).equal(full)
    assert (
        (dense(Sliding(n), n, 1)[0]).all()
        and (dense(Local1D(1, 3), n, 1)[0].tril() == dense(Sliding(3), n, 1)[0].tril()).all()
    )
    assert (dense(Local1D(5, n), n, 1)[0].tril() == full).all()


@pytest.mark.slow
def test_one_graph_of_sums_that_lie_behind_the_end():
    """Of a stride that is longer than the sequence, none are left."""
    stack = Encoder(dim=8, depth=1, heads=2, attn_dim_head=4, attn_sparse_pattern=Summary(16, 2)).double().eval()
    torch._dynamo.reset()
    compiled = torch.compile(stack, fullgraph=True, backend='aot_eager')
    for n in (9, 20):
        assert_close(compiled(vectors(1, n, 8)), stack(vectors(1, n, 8)), tolerance=TIGHT)


def test_pictures(tmp_path):
    text = (Sliding(1) | Global(1)).draw(4, causal=True, path=tmp_path / 'a.png')
    assert text == '#...\n##..\n###.\n#.##'
    assert (tmp_path / 'a.png').read_bytes()[:8] == b'\x89PNG\r\n\x1a\n'


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: as_pattern('slidin'), "`sparse_pattern` must be a pattern, got 'slidin', did you mean `sliding`"),
        (lambda: Sliding(-1), '`window` of Sliding must be an integer of at least 0, got -1'),
        (lambda: Summary(4, 5), '`c` of Summary must be at most the stride, 4, got 5'),
        (lambda: as_pattern({'pattern': 'sliding', 'windo': 3}), 'unknown field `windo` of Sliding'),
        (lambda: as_pattern({'pattern': 'sliding'}), 'must have window'),
        (lambda: Mix((Sliding(2), Strided(2)), heads=(1, 2)).for_heads(4), 'numbers whose sum is that of the heads, 4'),
        (lambda: Mix((Sliding(2), Strided(2))).for_heads(1), 'must be no more than the 1 heads, got 2'),
        (lambda: Sliding(2, (1, 2)).for_heads(3), 'one for each of the 3 heads'),
        (lambda: Summary(4, 2, 'yes'), "`per_head` of Summary must be True or False, got 'yes'"),
        (lambda: as_pattern({'union': []}), '`union` must have at least one pattern'),
        (lambda: as_pattern({'pattern': ['sliding']}), "`pattern` must be the name of a pattern, got ['sliding']"),
        (lambda: Sliding(2).draw(-1), '`n` must be an integer of at least 0, got -1'),
        (lambda: Sliding(2).draw(2.5), '`n` must be an integer of at least 0, got 2.5'),
        (lambda: Sliding(2).draw(3, heads=0), '`heads` must be an integer of at least 1, got 0'),
    ],
)  # fmt: skip
def test_refusals(make, words):
    with pytest.raises(ConfigError) as error:
        make()
    assert words in str(error.value)
