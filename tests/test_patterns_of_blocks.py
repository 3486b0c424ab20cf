"""Patterns of tiles, of blocks in another order, and of blocks at random: against dense attention by `visible`."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from building import vectors
from costs import grows
from oracles import assert_close
from sweeps import some
from test_patterns import HEADS, dense, twins
from torch import nn
from toy_tasks import IGNORED, SEEDS, learned, net_for, recall, stripes

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import PerLayer
from x_transformers.patterns import (
    Behind,
    BigBird,
    BlockLocal,
    BlockPermutation,
    Conv2D,
    Global,
    Local1D,
    Local2D,
    Mix,
    RandomBlocks,
    Sliding,
    Windows2D,
    as_pattern,
    block_raster_order,
)

PERMUTED = Mix((BlockPermutation(3, 0), BlockPermutation(3, 2)))
BIGBIRD = BigBird(2, 3, 2, 2, max_len=20)
# with the lengths to try, where it is causal and where it is not
PATTERNS = {
    'tiles': (Local2D((4, 6), (2, 3), (2, 1)), (1, 7, 23, 24), (24,)),
    'tiles that do not fit': (Local2D((5, 7), (2, 3), (1, 2)), (11, 35), (35,)),
    'tiles, row by row': (Local2D((5, 6), (2, 4), (1, 2), order='raster'), (13, 30), (30,)),
    'squares': (Conv2D((4, 8), 5), (3, 32), (32,)),
    'squares in rows of a prime': (Conv2D((3, 7), 3), (21,), (21,)),
    'squares behind a text': (Global(5) | Behind(Conv2D((4, 8), 5), 5), (3, 12, 37), (37,)),
    'squares behind a text of whole chunks': (Behind(Conv2D((3, 8), 3), 8), (9, 32), (32,)),
    'tiles behind a text': (Global(2) | Behind(Local2D((4, 6), (2, 3), (2, 1)), 2), (3, 9, 26), (26,)),
    'windows': (Windows2D((4, 6), 2), (), (24,)),
    'shifted windows': (Windows2D((6, 6), 3, 2), (), (36,)),
    'blocks in another order': (PERMUTED, (), (1, 2, 9, 22)),
    'blocks at random': (RandomBlocks(2, 3, exclude=(1, 1, 0), max_len=16), (), (15, 16, 23)),
    'bigbird': (BIGBIRD, (), (14, 21)),
    'bigbird, in front': (BigBird(3, 1, 2, 1, variant='etc', max_len=24), (), (22,)),
    'bigbird, nothing at random': (BigBird(2, 3, 1, 0, max_len=24), (), (11,)),
    'some heads at random': (
        Mix((BlockLocal(4) | RandomBlocks(2, 2, max_len=16), Sliding(2)), heads=(3, 1)),
        (),
        (13,),
    ),
}
EACH = pytest.mark.parametrize('name', PATTERNS)


def gradients(layer, out, x):
    return torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])


@EACH
def test_the_dense_twin(name):
    pattern, *lengths = PATTERNS[name]
    for causal, n in [(True, n) for n in lengths[0]] + [(False, n) for n in lengths[1]]:
        sparse, plain = twins(pattern, causal, front=n % 2)
        x = vectors(2, n, 8).requires_grad_()
        real = torch.rand(2, n, generator=torch.Generator().manual_seed(n)) < 0.7
        real[:, [0, -1]] = True  # rows begin and end there
        bias = vectors(HEADS, n, n, seed=3)
        for given in (dict(), dict(mask=real, attn_bias=bias)):
            out, wanted = sparse(x, **given), plain(x, attn_mask=dense(pattern, n), **given)
            assert_close(out, wanted, f'{n}', tolerance=1e-10)
            for one, other in zip(gradients(sparse, out, x), gradients(plain, wanted, x), strict=True):
                assert_close(one, other, f'gradient of {n}', tolerance=1e-10)


@EACH
def test_forms(name):
    pattern, *lengths = PATTERNS[name]
    assert as_pattern(pattern.as_config()) == pattern
    for causal, n in [(True, n) for n in lengths[0]] + [(False, n) for n in lengths[1]]:
        seen = dense(pattern, n).tril() if causal else dense(pattern, n)
        bound = pattern.keys_bound(n, causal)
        assert int(seen.sum(dim=-1).max()) <= bound
        for one in pattern.of_length(n).for_heads(HEADS):
            for branch in one.branches(n, causal):
                keys = getattr(branch.layout, 'keys', None)
                assert keys is None or (keys >= 0).sum(dim=-1).max() <= 3 * max(bound, 8), (
                    'many keys are gathered in vain'
                )
        reach = pattern.reach
        assert reach is None or not seen.tril(-reach - 1).any()
    kind = Decoder if lengths[0] else Encoder
    net = kind(dim=8, depth=1, heads=HEADS, attn_sparse_pattern=pattern)
    assert kind.from_config(net.config).config == net.config


# images


@pytest.mark.parametrize('image, window, shift', [((4, 4), 2, 1), ((6, 9), 3, 2), ((8, 8), 4, 2), ((4, 8), 4, 0)])
def test_windows_by_rolling(image, window, shift):
    """arXiv:2103.14030: the image is rolled and tiled, and pixels that only the roll made neighbors are kept apart."""
    (height, width), seen = image, dense(Windows2D(image, window, shift), math.prod(image), 1)[0]
    rolled = {}
    for row, column in itertools.product(range(height), range(width)):
        place = (row - shift) % height // window, (column - shift) % width // window
        rolled.setdefault((*place, row < shift, column < shift), []).append(row * width + column)
    wanted = torch.zeros_like(seen)
    for pixels in rolled.values():
        for query in pixels:
            wanted[query, pixels] = True
    assert torch.equal(seen, wanted)
    if shift:
        assert len(rolled[(height // window - 1, width // window - 1, True, True)]) == shift**2  # the corner


def test_shifted_windows_in_turn():
    patterns = Windows2D((4, 4), 2), Windows2D((4, 4), 2, 1)
    net = Encoder(dim=8, depth=2, heads=HEADS, attn_dim_head=4, attn_sparse_pattern=PerLayer(*patterns)).double()
    x = vectors(1, 16, 8).requires_grad_()
    (grad,) = torch.autograd.grad(net(x)[0, 0, 0], x)  # the corner is alone in the second layer
    assert (grad[0].abs().sum(dim=-1) > 0).view(4, 4).nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    (grad,) = torch.autograd.grad(net(x)[0, 5, 0], x)  # its window of the second layer touches all of the first
    assert (grad[0].abs().sum(dim=-1) > 0).all()


# order of pixels


@pytest.mark.parametrize('image, block', [((4, 6), (2, 3)), ((5, 7), (2, 3)), ((3, 4), (8, 16))])
def test_pixels_in_block_raster_order(image, block):
    """Tile after tile, and back; seen are tiles and flanges, and in a causal stack what came before in that order."""
    (height, width), (rows, columns), (above, beside) = image, block, (1, 2)
    wanted = [
        (row, column)
        for top, left in itertools.product(range(0, height, rows), range(0, width, columns))
        for row, column in itertools.product(
            range(top, min(top + rows, height)), range(left, min(left + columns, width))
        )
    ]
    order = block_raster_order(image, block)
    assert order.tolist() == [row * width + column for row, column in wanted]
    pixels = torch.randn(2, height * width)
    assert torch.equal(pixels[:, order][:, order.argsort()], pixels)
    for name, places in (('block', wanted), ('raster', [divmod(p, width) for p in range(height * width)])):
        seen = dense(Local2D(image, block, (above, beside), order=name), height * width, 1)[0]
        for (i, (r, c)), (j, (s, t)) in itertools.product(enumerate(places), enumerate(places)):
            top, left = r - r % rows, c - c % columns
            near = top - above <= s < top + rows + above and left - beside <= t < left + columns + beside
            assert seen[i, j] == near, (name, i, j)


def test_widest_tiles_and_flanges():
    everything = torch.ones(20, 20, dtype=torch.bool)
    assert torch.equal(dense(Local2D((4, 5), (4, 5), (0, 0)), 20, 1)[0], everything)
    assert torch.equal(dense(Local2D((4, 5), (2, 2), (4, 5)), 20, 1)[0], everything)
    # a tile sees that to its left and those above, and in its own row of tiles none to its right
    seen = dense(Local2D((4, 6), (2, 2), (2, 2)), 24, 1)[0].tril().unflatten(0, (6, 4)).unflatten(2, (6, 4))
    assert seen.any(dim=(1, 3))[4].tolist() == [True, True, True, True, True, False]


@pytest.mark.parametrize('at', [5, 12, 23])
def test_no_pixel_sees_a_later_one(at):
    """In block raster order."""
    stack = Decoder(
        dim=8, depth=2, heads=2, attn_dim_head=4, attn_sparse_pattern=Local2D((4, 6), (2, 3), (1, 1))
    ).double()
    x = vectors(1, 24, 8).requires_grad_()
    (grad,) = torch.autograd.grad(stack(x)[0, at, 0], x)
    assert grad[0, at].abs().sum() > 0 and grad[0, at + 1 :].abs().sum() == 0


# blocks in another order


def test_permutations():
    whole, own = BlockPermutation(1).of_length(7), BlockPermutation(3, 0).of_length(9)
    place = torch.arange(9)
    assert whole.visible(place[:7, None], place[:7]).all()
    assert torch.equal(own.visible(place[:, None], place), BlockLocal(3).visible(place[:, None], place))
    for blocks, shift in ((2, 1), (3, 2), (4, 1)):
        n = 3 * blocks
        seen = dense(BlockPermutation(blocks, shift), n, 1)[0].unflatten(0, (blocks, 3)).unflatten(2, (blocks, 3))
        graph = seen.any(dim=(1, 3)).long()
        assert (graph.sum(dim=0) == 1).all() and (graph.sum(dim=1) == 1).all()
        assert seen.sum() == n * 3
    shares = [(2, 12, (10, 2)), (3, 12, (8, 2, 2)), (2, 4, (3, 1)), (2, 2, (1, 1))]
    for blocks, heads, share in shares:
        mix = Mix(tuple(BlockPermutation(blocks, shift) for shift in range(blocks)))
        assert mix.shares(heads) == share
    assert as_pattern('blockwise').shares(12) == (10, 2)


# blocks at random


def test_blocks_are_drawn_for_heads_layers_and_lengths():
    """None twice, none of the window or of those that all see; as stored, whatever is drawn elsewhere."""
    pattern, n = BigBird(2, 3, 3, 4, max_len=40), 20
    tables = [pattern.drawn(6, layer) for layer in range(2)]
    for table in tables:
        assert table.shape == (6, n, 4)
        for own, row in itertools.product(range(n), range(6)):
            drawn = table[row, own].tolist()
            if own in (0, 1, n - 1):
                assert drawn == [-1] * 4
            else:
                assert len(set(drawn)) == 4 and not set(drawn) & {0, 1, n - 1, own - 1, own, own + 1}
                assert all(0 <= one < n for one in drawn)
    every = torch.cat([*tables, BigBird(2, 3, 3, 4, seed=1, max_len=40).drawn(6, 0)])
    assert len({tuple(one.flatten().tolist()) for one in every}) == 18
    assert torch.equal(pattern.drawn(6, 1), tables[1]) and torch.equal(pattern.drawn(2, 0), tables[0][:2])
    # each candidate as often as any other, and the fewest that there may be
    table = RandomBlocks(1, 2, exclude=(3, 1, 1), max_len=9).drawn(4000, 0)[:, 4]
    counts = table.flatten().bincount(minlength=9)
    assert set(counts.nonzero().flatten().tolist()) == {1, 2, 6, 7} and ((counts[counts > 0] - 2000).abs() < 150).all()
    assert RandomBlocks(1, 4, exclude=(3, 1, 1), max_len=9).drawn(1, 0)[0, 4].sort().values.tolist() == [1, 2, 6, 7]


def test_random_blocks_are_stored():
    stack = dict(dim=8, depth=2, heads=2, attn_dim_head=4, attn_sparse_pattern=BIGBIRD)
    net, other = Encoder(**stack), Encoder(**stack)
    tables = {name: t for name, t in net.state_dict().items() if 'random_blocks' in name}
    assert [t.shape for t in tables.values()] == [(2, 10, 2)] * 2
    assert [*tables] == ['layers.0.1.random_blocks', 'layers.2.1.random_blocks']
    for layer, t in enumerate(tables.values()):
        assert torch.equal(t, BIGBIRD.drawn(2, layer))
    for t in tables.values():
        t.copy_(t.flip(0))
    x = torch.randn(1, 20, 8)
    other.load_state_dict(net.state_dict())
    assert_close(other(x), net(x), tolerance=1e-6)
    fresh = Encoder.from_config(net.config)
    fresh.load_state_dict({**net.state_dict(), **{name: t.flip(0) for name, t in tables.items()}})
    assert not torch.allclose(fresh(x), net(x), atol=1e-4)
    longer = torch.randn(1, 31, 8)  # whose blocks are not stored
    assert_close(fresh(longer), net(longer), tolerance=1e-6)


def steps_between(graph):
    """The most steps from any block to any other, -1 if there is no way."""
    reached, steps = torch.eye(len(graph), dtype=torch.bool), 0
    while not reached.all() and steps < len(graph):
        reached, steps = reached | (reached.long() @ graph.long() > 0), steps + 1
    return steps if reached.all() else -1


def test_random_blocks_bring_all_near():
    place = torch.arange(64)
    for seed in range(3):
        pattern = BigBird(1, 3, 0, 3, seed=seed, max_len=64).of_length(64)
        assert 3 <= steps_between(pattern.visible(place[:, None], place)) <= 7
    assert steps_between(BigBird(1, 3, 0, 0).of_length(64).visible(place[:, None], place)) == 63


def test_bigbird_is_a_union():
    n, pattern = 24, BigBird(2, 3, 2, 2, max_len=24)
    ends = Global(positions=(0, 1, 22, 23))
    union = Local1D(2, 2) | ends | RandomBlocks(2, 2, exclude=(3, 1, 1), max_len=24)
    assert torch.equal(dense(pattern, n), dense(union, n))
    assert torch.equal(dense(BigBird(2, 3, 2, 0), n), dense(Local1D(2, 2) | ends, n))
    front = dense(BigBird(2, 3, 2, 0, variant='etc'), n)
    assert torch.equal(front, dense(Local1D(2, 2) | Global(first=4), n))


@pytest.mark.slow
def test_bigbird_of_transformers():
    """Its attention, with the blocks that it has drawn: it draws in training alone."""
    transformers = pytest.importorskip('transformers')
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(
        vocab_size=70, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, block_size=4,
        num_random_blocks=2, max_position_embeddings=64, attention_type='block_sparse', attn_implementation='eager',
        attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    model, calls = transformers.BigBirdModel(config, add_pooling_layer=False).train(), []
    theirs = model.encoder.layer[0].attention.self
    theirs.register_forward_hook(lambda module, given, out: calls.append((given[0], out[0])))
    maps = model(torch.randint(0, 70, (2, 64)), output_attentions=True).attentions[0][0]
    (x, wanted), *_ = calls
    ours = Attention(
        32, heads=4, dim_head=8, qkv_bias=True, project_out=False, sparse_pattern=BigBird(4, 3, 2, 2, max_len=64)
    )
    weights = {f'to_{name[0]}.{kind}': t for name, kind, t in (
        (*name.split('.'), t) for name, t in theirs.state_dict().items())}  # fmt: skip
    seen = maps.unflatten(1, (16, 4)).unflatten(3, (16, 4)).sum(dim=(2, 4)) > 0  # h N N
    known = dense(BigBird(1, 3, 2, 0), 16, 4)
    drawn = (seen & ~known)[:, 1:-1].nonzero()
    assert drawn.shape == (4 * 14 * 2, 3)
    table = ours.random_blocks.clone()
    table[:, 1:-1] = drawn[:, 2].view(4, 14, 2)
    ours.load_state_dict({**weights, 'random_blocks': table})
    assert_close(ours(x), wanted, tolerance=1e-5)


# cost and refusals


def test_costs():
    def images(side):
        layer = Attention(8, heads=2, dim_head=4, sparse_pattern=Local2D((side, 16), (2, 4), (1, 4)))
        return layer(torch.randn(1, side * 16, 8))

    grows(lambda n: images(n // 16), 256)
    layer = Attention(8, heads=2, dim_head=4, sparse_pattern=BigBird(4, 3, 2, 2, max_len=64))
    grows(lambda n: layer(torch.randn(1, n, 8)), 256)


@pytest.mark.parametrize(
    ('make', 'words'),
    [
        (lambda: Windows2D((4, 6), 4), '`image` of Windows2D must be a pair of multiples of the window, 4, got (4, 6)'),
        (lambda: Windows2D((4, 4), 2, 2), '`shift` of Windows2D must be an integer from 0 to 1, got 2'),
        (lambda: Windows2D((4, 4), 0), '`window` of Windows2D must be an integer of at least 1, got 0'),
        (lambda: twins(Windows2D((4, 4), 2)), 'not for a causal stack: its windows hold later pixels'),
        (lambda: Local2D((4, 0)), '`image` of Local2D must be a pair of integers of at least 1, got (4, 0)'),
        (lambda: Local2D((4, 4), (2, 2), (-1, 2)), 'integers of at least 0, got (-1, 2)'),
        (lambda: Local2D((4, 4), order='z'), "`order` of Local2D must be 'block' or 'raster', got 'z'"),
        (lambda: Conv2D((4, 4), 0), '`kernel` of Conv2D must be an integer of at least 1, got 0'),
        (lambda: block_raster_order((4, 4), 3), '`block` must be a pair of integers of at least 1, got 3'),
        (lambda: BlockPermutation(2, 2), 'must be less than the number of blocks, 2, got 2'),
        (lambda: BlockPermutation(2).visible(torch.zeros(1), torch.zeros(1)), 'use `of_length(n)`'),
        (lambda: BigBird(window_blocks=2), '`window_blocks` of BigBird must be an odd number, got 2'),
        (lambda: BigBird(variant='x'), "`variant` of BigBird must be 'itc' or 'etc', got 'x'"),
        (lambda: BigBird(max_len=448), 'must have at least 8 blocks of 64 tokens, got 448, 7 blocks'),
        (lambda: Attention(8, causal=True, sparse_pattern='bigbird'), 'there is Sliding(...) | Global(...)'),
        (lambda: RandomBlocks(2, 1, exclude=(2, 0, 0)), '`exclude` of RandomBlocks must be an odd number'),
        (lambda: Attention(8, sparse_pattern=RandomBlocks(2, 1) | BigBird()), 'one pattern at random is stored'),
        (lambda: Attention(8, causal=True, sparse_pattern='blockwise'), 'not for a causal stack: queries of its first'),
        (lambda: Mix((BlockPermutation(2), BlockPermutation(2, 1)), heads=(3, 2)).for_heads(4), 'that of the heads, 4'),
        (lambda: Local2D((4, 4)) | Conv2D((3, 4)), '`image` got 12 and 16 pixels in patterns of one sequence'),
        (lambda: Mix((Local2D((4, 4)), Conv2D((3, 4)))), '`image` got 12 and 16 pixels'),
        (lambda: twins(Local2D((4, 4)), False)[0](vectors(1, 15, 8)), '15 tokens: its pattern is of 16'),
        (lambda: twins(Local2D((4, 4)))[0](vectors(1, 17, 8)), '17 tokens: its pattern is of 16'),
    ],
)  # fmt: skip
def test_refusals(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert words in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize('name', some('bigbird', 'tiles', 'squares', 'blocks in another order'))
def test_one_graph_for_every_length(name):
    pattern, *lengths = PATTERNS[name]
    kind = Decoder if lengths[0] else Encoder
    stack = kind(dim=8, depth=1, heads=HEADS, attn_dim_head=4, attn_sparse_pattern=pattern).double().eval()
    torch._dynamo.reset()
    compiled = torch.compile(stack, fullgraph=True, backend='aot_eager')
    for n in (lengths[0] or lengths[1])[-2:]:
        x = vectors(2, n, 8)
        assert_close(compiled(x), stack(x), tolerance=1e-10)


@EACH
def test_padding(name):
    """Content of padding never matters; on the left, and on the right of what is causal, neither does how much."""
    pattern, *lengths = PATTERNS[name]
    causal, n = (True, lengths[0][-1] - 2) if lengths[0] else (False, lengths[1][-1])
    stack = (Decoder if causal else Encoder)(dim=8, depth=2, heads=HEADS, attn_dim_head=4, attn_sparse_pattern=pattern)
    net = TransformerWrapper(num_tokens=9, max_seq_len=40, attn_layers=stack).double().eval()
    x, other = torch.randint(0, 9, (2, 2, n), generator=torch.Generator().manual_seed(0))
    real = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) < 0.6
    real[:, 0] = True
    out = net(x, mask=real)
    assert_close(net(torch.where(real, x, other), mask=real)[real], out[real])
    assert_close(net(x[1:], mask=real[1:]), out[1:])
    if causal:
        expected, more = net(x), other[:, :2]
        assert_close(net(torch.cat((more, x), dim=1), seq_start_pos=torch.tensor([2, 2]))[:, 2:], expected)
        assert_close(net(torch.cat((x, more), dim=1))[:, :n], expected)
        assert_close(net(x[:, :1]), expected[:, :1])
        made = AutoregressiveWrapper(net).generate(x[:, :-4], 4, temperature=0.0)
        known = torch.cat((x[:, :-4], made), dim=1)
        assert torch.equal(net(known).argmax(dim=-1)[:, -5:-1], made)


# what is learned


def in_tiles(task, image, tile):
    """A task of pixels, one after the other in block raster order."""
    order = block_raster_order(image, tile)

    def draw(b):
        x, y = task.draw(b)
        pixels = torch.cat((x[:, 1:], y[:, -1:]), dim=1)[:, order]
        return torch.cat((x[:, :1], pixels[:, :-1]), dim=1), y[:, order]

    return replace(task, draw=draw)


def surprise(net, task):
    """Nats per pixel that can be known, on new images."""
    x, y = task.draw(200)
    with torch.no_grad():
        return nn.functional.cross_entropy(net(x).transpose(1, 2), y, ignore_index=IGNORED).item()


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('how', ['rows', 'tiles'])
def test_stripes_are_foretold(how, seed):
    torch.manual_seed(seed)
    task, pattern = stripes(period=2), Local1D(8, 16)
    if how == 'tiles':
        task, pattern = in_tiles(task, (8, 8), (2, 4)), Local2D((8, 8), (2, 4), (2, 4))
    net = net_for(task, Decoder, attn_sparse_pattern=pattern, rotary_pos_emb=True)
    learned(net, task, steps=150)
    assert surprise(net, task) < 0.1


@pytest.mark.slow
@SEEDS
def test_halves_recall_each_other_by_shifted_heads(seed):
    torch.manual_seed(seed)
    task, found = recall(), []
    for pattern in ('blockwise', BlockPermutation(2, 0)):
        found.append(learned(net_for(task, Encoder, attn_sparse_pattern=pattern), task, steps=150))
    assert found[0] > 0.9 and found[1] < 0.25, found
