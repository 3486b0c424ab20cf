"""Two streams: a long one in a window, a global one that reads everything; their segments, and what they foretell."""

import math
from functools import partial

import pytest
import torch
from costs import grows
from oracles import assert_close, assert_same, bools, etc_encoder, randn, randomised
from torch import nn
from training_laws import fit

from x_transformers import Encoder, etc
from x_transformers.etc import CPCLoss, ETCEncoder, make_etc_inputs
from x_transformers.flags import ConfigError

SIZES = dict(dim=8, depth=1, heads=2, dim_head=4, ff_kwargs=dict(mult=1))
N, G, R, K = 11, 3, 2, 1


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(etc, 'SMALLEST_CHUNK', 3)


def model(**flags):
    return randomised(ETCEncoder(**{**SIZES, 'local_radius': R, 'rel_max_distance': K, **flags}))


def pieces(n=N, g=G, width=2 * R + 1):
    return dict(g2g=(2, g, g), g2l=(2, g, n), l2g=(2, n, g), l2l=(2, n, width))


def masks(n=N, keep=0.7):
    own = {name: bools(*shape, seed=at, keep=keep) for at, (name, shape) in enumerate(pieces(n).items())}
    return own | dict(
        mask_long=bools(2, n, seed=7, keep=0.8), mask_global=torch.tensor([[True] * G, [True, False, True]])
    )


def label_of_distance(offset, most=K):
    offset = max(-most, min(most, offset))
    return offset if offset >= 0 else most - offset


def sight(options, radius=R):
    """What the formula asks: whether a key is seen, and with which label."""
    real = {piece[-1]: options.get(f'mask_{stream}') for stream, piece in (('long', 'l'), ('global', 'g'))}
    ids = options.get('rel_ids', {})

    def at(t, piece, row, i, j):
        return t[row, i, j - i + radius if piece == 'l2l' else j]

    def sees(piece, row, i, j):
        near = piece != 'l2l' or abs(i - j) <= radius
        known = real[piece[-1]]
        own = options.get(piece)
        return near and (known is None or known[row, j]) and (own is None or at(own, piece, row, i, j))

    def label(piece, row, i, j):
        if piece == 'l2l' and abs(i - j) > radius:
            return -1
        if ids.get(piece) is not None:
            return at(ids[piece], piece, row, i, j)
        return -1 if piece in ids or piece[0] != piece[-1] else label_of_distance(j - i)

    return dict(sees=sees, label=label)


def both(x_long, x_global, **options):
    return torch.cat((x_long, x_global), dim=1)


def check(net, options, n=N, share='all', **given):
    """Output and gradients are those of the formula, at real tokens."""
    real = {name: options[f'mask_{name}'] for name in ('long', 'global') if f'mask_{name}' in options}
    kept = torch.ones(2, n + G) if not real else torch.cat((real['long'], real['global']), dim=1)
    known = dict(heads=2, share=share, **sight(options), **given)

    def ours(long, glob):
        return torch.cat(net(long, glob, **options), dim=1) * kept.unsqueeze(-1)

    def theirs(weights, long, glob):
        return torch.cat(etc_encoder(weights, long, glob, real, **known), dim=1) * kept.unsqueeze(-1)

    assert_same(net, ours, theirs, randn(2, n, 8), randn(2, G, 8, seed=1), tolerance=1e-10)


@pytest.mark.parametrize('share, share_ff', [('all', False), ('kv', True), ('none', False)])
def test_it_is_the_formula(share, share_ff):
    check(model(share_qkv=share, share_ff=share_ff), {}, share=share)


@pytest.mark.parametrize(
    'n', [5, pytest.param(1, marks=pytest.mark.nightly), pytest.param(N, marks=pytest.mark.nightly)]
)
def test_masks_labels_and_rows_that_see_nothing(n):
    options = masks(n)
    for piece in ('g2g', 'g2l'):
        options[piece][0, 0] = False
    for piece in ('l2g', 'l2l'):
        options[piece][0, -1] = False
    ids = {name: bools(*shape, seed=9).long() * 6 - 1 for name, shape in pieces(n).items() if name != 'g2g'}
    check(model(num_rel_ids=6), options | dict(rel_ids=ids), n)


def test_a_large_penalty_hides_as_well():
    """As the paper writes it; but for rows that see nothing, which it would average."""
    options, net = masks(keep=0.9), model()
    weights, xs = dict(net.state_dict()), (randn(2, N, 8), randn(2, G, 8, seed=1))
    found = [etc_encoder(weights, *xs, heads=2, share='all', penalty=p, **sight(options)) for p in (None, 1e4)]
    for one, other in zip(*found, strict=True):
        assert_close(one, other, tolerance=1e-6)


def test_the_widest_window_is_a_plain_encoder():
    """And so is what an encoder is made into, whichever projections are shared, until labels learn."""
    encoder = randomised(Encoder(dim=8, depth=2, heads=2, attn_dim_head=4, ff_mult=1))
    long, glob = randn(2, N, 8), randn(2, G, 8, seed=1)
    expected = encoder(torch.cat((glob, long), dim=1))
    for options in (dict(), dict(share_qkv='none', share_ff=False), dict(num_rel_ids=0, share_qkv='kv')):
        net = ETCEncoder.from_encoder(encoder, local_radius=N, **options)
        z_long, z_global = net(long, glob)
        assert_close(torch.cat((z_global, z_long), dim=1), expected)
    with pytest.raises(ValueError, match='`encoder` has `use_rmsnorm`'):
        ETCEncoder.from_encoder(Encoder(dim=8, depth=1, heads=2, use_rmsnorm=True))
    with pytest.raises(TypeError, match='`encoder` must '):
        ETCEncoder.from_encoder(net)


def test_padding_on_both_sides_and_lengths():
    net, glob = model(), randn(2, G, 8, seed=1)
    for n in (0, 1, 2, N):
        long = randn(2, n, 8)
        expected = net(long, glob)
        left, right = 4, 3
        padded = nn.functional.pad(long, (0, 0, left, right), value=math.nan)
        real = nn.functional.pad(torch.ones(2, n, dtype=torch.bool), (left, right))
        more = torch.cat((glob, torch.full((2, 2, 8), math.inf)), dim=1)
        z_long, z_global = net(padded, more, real, torch.arange(G + 2).expand(2, -1) < G)
        assert_close(z_long[:, left : left + n], expected[0])
        assert_close(z_global[:, :G], expected[1])
        one = net(long[1:], glob[1:])
        assert_close(torch.cat(one, dim=1), torch.cat(expected, dim=1)[1:])
        assert [t.shape for t in net(long[:0], glob[:0])] == [(0, n, 8), (0, G, 8)]


# segments

SEGMENTS = torch.tensor([[0, 0, 1, 1, 2, 2, 2, -1], [1, 1, 1, 0, 0, -1, -1, -1]])


def test_segments_have_a_global_token_each():
    made = make_etc_inputs(SEGMENTS, SEGMENTS, rel_max_distance=K, cls=True, own_segment=True)
    assert made.global_ids.tolist() == [[0, 1, 1, 1]] * 2
    options = made.options
    assert options['mask_long'].tolist() == (SEGMENTS >= 0).tolist()
    assert options['mask_global'].tolist() == [[True] * 4, [True, True, True, False]]
    for row in range(2):
        for j, segment in enumerate(SEGMENTS[row].tolist()):
            for g in range(4):
                own = g > 0 and g - 1 == segment
                assert options['rel_ids']['g2l'][row, g, j] == (3 if own else 4)
                assert options['rel_ids']['l2g'][row, j, g] == (3 if own else 4)
                assert options['g2l'][row, g, j] == (own or g == 0)
    net = model()
    check_all = net(randn(2, 8, 8), randn(2, 4, 8), **options)
    assert all(z.isfinite().all() for z in check_all)
    none = make_etc_inputs(SEGMENTS[:, :0], SEGMENTS[:, :0], rel_max_distance=K, cls=True, alone=True, local_radius=R)
    assert net(randn(2, 0, 8), randn(2, 1, 8), **none.options)[0].shape == (2, 0, 8)


def test_the_order_of_segments_does_not_matter_without_distances():
    """Segments of one length that do not see each other but by their global tokens."""
    net, order = model(), torch.tensor([2, 0, 1])
    long, glob = randn(1, 3, 4, 8), randn(1, 3, 8, seed=1)
    segments = torch.arange(3).repeat_interleave(4)[None]
    made = make_etc_inputs(segments, segments, rel_max_distance=K, alone=True, local_radius=R).options
    options = {name: made[name] for name in ('mask_long', 'mask_global', 'l2l')} | dict(
        rel_ids=made['rel_ids'] | dict(g2g=None)
    )
    z_long, z_global = net(long.flatten(1, 2), glob, **options)
    p_long, p_global = net(long[:, order].flatten(1, 2), glob[:, order], **options)
    assert_close(p_long.unflatten(1, (3, 4)), z_long.unflatten(1, (3, 4))[:, order])
    assert_close(p_global, z_global[:, order])
    with_distances = net(long[:, order].flatten(1, 2), glob[:, order], **options | dict(rel_ids=made['rel_ids']))
    assert not torch.allclose(with_distances[1], p_global)


def test_alone_a_segment_is_what_it_is_without_others():
    net, long, glob = model(), randn(1, 7, 8), randn(1, 3, 8, seed=1)
    segments = SEGMENTS[:1, :7]
    _, found = net(long, glob, **make_etc_inputs(segments, segments, rel_max_distance=K, alone=True, local_radius=R)[1])
    for at in range(3):
        own = segments[0] == at
        only = make_etc_inputs(segments[:, own] * 0, segments[:, own] * 0, rel_max_distance=K)
        assert_close(net(long[:, own], glob[:, at : at + 1], **only.options)[1], found[:, at : at + 1])


def test_what_segments_foretell():
    cpc, t = CPCLoss(temperature=0.5, weight=1.0), nn.functional.normalize(randn(2, 4, 16), dim=-1)
    chosen = bools(2, 4)
    assert 2 < chosen.sum() < 8
    u = randn(2, 4, 16, seed=1)
    rows = [(b, s) for b in range(2) for s in range(4) if chosen[b, s]]
    expected = -sum(
        math.log(math.exp(u[at] @ t[at] / 0.5) / sum(math.exp(u[at] @ t[other] / 0.5) for other in rows)) for at in rows
    ) / len(rows)
    assert_close(cpc(u, t, chosen), torch.tensor(expected, dtype=torch.float64))
    assert_close(CPCLoss(0.5)(u, t, chosen), torch.tensor(0.2 * expected, dtype=torch.float64))
    # what is the same as its target, and far from others; and what says nothing
    assert cpc(1000 * t, t) < 1e-9 and cpc(0 * t, t).item() == pytest.approx(math.log(8))
    assert cpc(u, t, chosen & False) == 0
    target = t.clone().requires_grad_()
    cpc(u.requires_grad_(), target, chosen).backward()
    assert target.grad is None and (u.grad.abs().sum(dim=-1) > 0).equal(chosen)
    # whatever others hold, in half precision too; and none at all
    filler = torch.where(chosen.unsqueeze(-1), 0.0, math.nan)
    other = (u.detach() + filler).requires_grad_()
    cpc(other, t + filler, chosen).backward()
    assert_close(other.grad, u.grad)
    with torch.autocast('cpu', torch.bfloat16):
        assert_close(cpc(u.float(), t.float(), chosen), expected_loss := cpc(u, t, chosen).float(), tolerance=1e-6)
    assert expected_loss.dtype == torch.float32 and cpc(u[:0], t[:0]) == 0


# cost, refusals, and what is learned


def test_time_and_memory_are_linear():
    net, glob = ETCEncoder(**SIZES, local_radius=4), torch.randn(1, 2, 8)
    grows(lambda n: net(torch.randn(1, n, 8), glob), 256)


def test_refusals():
    net, long, glob = model().float(), torch.randn(2, N, 8), torch.randn(2, G, 8)
    for words, error, call in (
        ('`x_global` got no tokens', ValueError, lambda: net(long, glob[:, :0])),
        ("`rel_ids` must ", ValueError, lambda: net(long, glob, rel_ids=dict(l2x=None))),
        (r"`rel_ids\['g2g'\]` must be from -1 to 4, got labels from 5 to 5", ValueError,
         lambda: net(long, glob, rel_ids=dict(g2g=torch.full((2, G, G), 5)))),
        ('`l2l` must ', ValueError, lambda: net(long, glob, l2l=bools(2, N, N))),
        ('cannot be combined with `num_rel_ids=0`', ValueError,
         lambda: model(num_rel_ids=0)(long, glob, rel_ids=dict(g2g=torch.zeros(2, G, G).long()))),
        ('`num_rel_ids` got 2', ConfigError, lambda: model(num_rel_ids=2)),
        ('`causal` of ETCEncoder: global tokens read all', ConfigError, lambda: model(causal=True)),
        ('did you mean `share_qkv`', ConfigError, lambda: model(share_kqv='all')),
        ('`alone` needs', ValueError, lambda: make_etc_inputs(SEGMENTS, SEGMENTS, alone=True)),
        ('`rel_max_distance` must be', ValueError, lambda: make_etc_inputs(SEGMENTS, SEGMENTS, rel_max_distance=-3)),
        (r'`local_radius` must .*got 2.5', ValueError,
         lambda: make_etc_inputs(SEGMENTS, SEGMENTS, alone=True, local_radius=2.5)),
        (r'`tokens` must .*got None', TypeError, lambda: make_etc_inputs(None, SEGMENTS)),
        ('must be from -1 to 1, got segments from -1 to 2', ValueError,
         lambda: make_etc_inputs(SEGMENTS, SEGMENTS, num_segments=2)),
        (r'`temperature` must .*got 0', ConfigError, lambda: CPCLoss(0)),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()


@pytest.mark.slow
def test_it_counts_segments_that_have_a_token():
    """Of six segments of six tokens, how many have token 0: a window alone reads too few of them."""
    segments = torch.arange(36).expand(64, -1) // 6
    made = make_etc_inputs(segments, segments, num_segments=6, cls=True, own_segment=True)
    blind = {name: torch.zeros_like(mask) for name, mask in (('g2l', made.options['g2l']),)}

    class Counts(nn.Module):
        def __init__(self, **masks: torch.Tensor) -> None:
            super().__init__()
            self.tokens, self.kinds, self.options = nn.Embedding(8, 32), nn.Embedding(2, 32), made.options | masks
            self.encoder = ETCEncoder(dim=32, depth=2, heads=2, dim_head=16, local_radius=3, ff_kwargs=dict(mult=2))
            self.head = nn.Linear(64, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z_long, z_global = self.encoder(self.tokens(x), self.kinds(made.global_ids), **self.options)
            return self.head(torch.cat((z_long[:, -1], z_global[:, 0]), dim=-1))

    def batch():
        x, hit = torch.randint(1, 8, (64, 6, 6)), torch.rand(64, 6) < torch.rand(64, 1)
        at = torch.rand(64, 6, 6).argsort(dim=-1) < torch.randint(1, 3, (64, 6, 1))
        return torch.where(at & hit.unsqueeze(-1), 0, x).flatten(1), hit.sum(dim=-1)

    def loss(net):
        x, y = batch()
        return nn.functional.cross_entropy(net(x), y)

    found = []
    for masks in (dict(), blind):
        torch.manual_seed(0)
        net = Counts(**masks)
        fit(net, partial(loss, net), 250, falls=True)
        rounds = [batch() for _ in range(8)]
        found.append(torch.cat([net.eval()(x).argmax(dim=-1) == y for x, y in rounds]).float().mean().item())
    assert found[0] >= 0.95 and found[1] < 0.6, found
