"""Clusters and patterns are those of a row: the same with padding on either side, in a packed row, behind memory tokens
and prefixes, as where the row is alone; and a row that blocks cover is attended to as a whole."""

import pytest
import torch
from building import ids_below
from law_cases import randomise
from oracles import assert_close
from sweeps import nightly

from x_transformers import (
    Attention,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)
from x_transformers.flags import ConfigError
from x_transformers.patterns import (
    Behind,
    BigBird,
    BlockLocal,
    BlockPermutation,
    Column,
    Conv2D,
    Global,
    Local1D,
    Local2D,
    Mix,
    Pattern,
    RandomBlocks,
    Row,
    Sliding,
    Strided,
    Summary,
    pattern,
)

LENGTHS, N = torch.tensor([5, 13, 9, 1]), 13
SIZES = dict(dim=16, depth=2, heads=4, attn_dim_head=8, ff_mult=2, verbose=False)


def model(kind=Encoder, depth=2, **flags):
    """Without absolute positions, which a mask does not move."""
    own = {name: flags.pop(name) for name in [*flags] if 'memory_tokens' in name}
    torch.manual_seed(0)
    stack = kind(**{**SIZES, 'depth': depth}, **flags)
    return randomise(TransformerWrapper(num_tokens=60, max_seq_len=0, attn_layers=stack, **own).double())


def now(*chosen, of):
    """Some of the values in the suite, the others at night."""
    return [one if one in chosen else nightly(one) for one in of]


ids = ids_below(60)


def rows_law(net, documents=True, x=None):
    """Padded on the right, on the left, by a mask or by a number, and packed: each row is what it is alone."""
    x, own = ids(len(LENGTHS), N) if x is None else x, torch.arange(N)
    alone = [net(row[None, :length])[0] for row, length in zip(x, LENGTHS, strict=True)]
    left = torch.stack([row.roll(N - int(length)) for row, length in zip(x, LENGTHS, strict=True)])
    starts = N - LENGTHS
    ways = {
        'right': (net(x, mask=own < LENGTHS[:, None]), 0 * starts),
        'left': (net(left, seq_start_pos=starts), starts),
    }
    if not net.num_memory_tokens:  # else there is padding between them and the text
        ways['left, by a mask'] = net(left, mask=own >= starts[:, None]), starts
    if documents:
        packed = net(x, document_ids=(own >= LENGTHS[:, None]).long())
        ways['packed'] = packed, 0 * starts
        for row, length in enumerate(LENGTHS.tolist()):
            if length < N:
                assert_close(packed[row, length:], net(x[row : row + 1, length:])[0], 'second document')
        hidden = (torch.arange(len(LENGTHS)) == 2)[:, None] & (own >= 6) & (own < 9)  # the end of a first document
        padded = net(x, document_ids=(own >= LENGTHS[:, None]).long(), mask=~hidden)
        assert_close(padded[2, :6], net(x[2:3, :6])[0], 'a padded document')
    for way, (out, begins) in ways.items():
        for row, (begin, length) in enumerate(zip(begins.tolist(), LENGTHS.tolist(), strict=True)):
            assert_close(out[row, begin : begin + length], alone[row], f'{way}, row {row}')


# clusters

CLUSTERS = {
    'routing': (Decoder, dict(attn_cluster='routing', attn_num_clusters=4)),
    'routing, windows alone': (Encoder, dict(attn_cluster='routing', attn_num_clusters=3, attn_local_heads=4)),
    'routing, balanced': (Encoder, dict(attn_cluster='routing', attn_num_clusters=3)),
    'routing, without order': (Encoder, dict(attn_cluster='routing', attn_num_clusters=3, attn_routing_balanced=False)),
    'lsh': (Decoder, dict(attn_cluster='lsh', attn_cluster_size=2)),
    'lsh, sorted': (Encoder, dict(attn_cluster='lsh', attn_cluster_size=3)),
    'lsh, one chunk': (Decoder, dict(attn_cluster='lsh', attn_cluster_size=1)),
    'lsh, across': (Encoder, dict(attn_cluster='lsh', attn_cluster_size=2, attn_lsh_across_buckets=True)),
    'sinkhorn': (Encoder, dict(attn_cluster='sinkhorn', attn_cluster_size=3)),
}


@pytest.mark.parametrize('name', now('routing', 'lsh', 'routing, balanced', 'routing, windows alone', of=[*CLUSTERS]))
def test_clusters_of_rows_and_documents(name):
    kind, flags = CLUSTERS[name]
    packs = name not in ('sinkhorn', 'routing, balanced', 'routing, windows alone')
    # Of equal tokens a balanced centroid takes any: in its rows all differ.
    x = torch.arange(len(LENGTHS) * N).view(-1, N) if name == 'routing, balanced' else None
    rows_law(model(kind, **flags), packs, x)


def test_buckets_of_every_length():
    """One by one, as the number of all buckets; where two hashes begin, the product of both."""
    layer = model(Decoder, attn_cluster='lsh', attn_cluster_size=1).attn_layers.layers[0][1]
    lsh = layer.features.by_stage['attend'][0]
    lengths = torch.arange(1, 700)
    many = torch.stack(lsh.buckets_of(lengths), dim=-1)
    assert many.tolist() == [[*lsh.buckets(n)] for n in lengths.tolist()]
    q = torch.randn(1, 4, 300, 8, dtype=torch.float64)
    for n in (3, 64, 65, 80, 200):
        alone = lsh.hashes(q[:, :, :n], n)
        assert torch.equal(lsh.hashes(q, 300, torch.full((1, 1), n))[:, :, :n], alone)


# patterns

BIRD = BigBird(2, 1, 1, 1, max_len=20)
PATTERNS = {
    'bigbird': BIRD,
    'bigbird, both ends': BigBird(2, 1, 2, 1, max_len=20),
    'bigbird, wide': BigBird(2, 3, 2, 1, max_len=24),
    'bigbird, in front': BigBird(3, 3, 2, 1, variant='etc', max_len=26),
    'at random': RandomBlocks(2, 2, exclude=(1, 1, 1), max_len=12),
    'at random, stored length': RandomBlocks(2, 1, max_len=10),
    'blocks': BlockLocal(4),
    'local': Local1D(3, 2),
    'sums': Summary(4, 1, per_head=True),
    'permuted': Mix((BlockPermutation(3, 0), BlockPermutation(3, 1))),
    'permuted, more blocks than tokens': BlockPermutation(8, 3),
    'first tokens': Sliding(2) | Global(2),
    'rows and columns': Row(4) | Column(4),
    'behind': Behind(BlockPermutation(3, 1), 2) | Sliding(1),
    'random or local': RandomBlocks(2, 1, max_len=12) | BlockLocal(3),
    'heads': Mix((BlockLocal(3), Sliding(2))),
}
EACH = pytest.mark.parametrize(
    'name', now('bigbird', 'bigbird, both ends', 'permuted', 'blocks', 'random or local', of=[*PATTERNS])
)


@EACH
def test_patterns_of_rows(name):
    rows_law(model(attn_sparse_pattern=PATTERNS[name]), documents=False)


def test_rows_read_the_blocks_that_are_stored():
    """Where those are of as many blocks as a row has, whatever would be drawn."""
    net = model(depth=1, attn_sparse_pattern=PATTERNS['at random, stored length'])
    (stored,) = (t for name, t in net.named_buffers() if 'random_blocks' in name)
    stored.copy_((stored + 1) % 5)
    rows_law(net, documents=False)


@pytest.mark.parametrize('name', now('first tokens', of=['blocks', 'local', 'first tokens', 'heads']))
@pytest.mark.parametrize('count', [0, 2])
def test_causal_patterns_of_rows(name, count):
    rows_law(model(Decoder, attn_sparse_pattern=PATTERNS[name], num_memory_tokens=count), documents=False)


@pytest.mark.parametrize('name', now('at random', of=[*PATTERNS]))
def test_patterns_of_rows_behind_memory_tokens(name):
    rows_law(model(attn_sparse_pattern=PATTERNS[name], num_memory_tokens=2), documents=False)


def test_patterns_of_a_padded_context():
    net = XTransformer(dim=16, enc_num_tokens=60, enc_depth=1, enc_max_seq_len=0, enc_heads=2, dec_num_tokens=60,
        dec_depth=1, dec_max_seq_len=0, dec_heads=2,
        dec_cross_attn_sparse_pattern=Global(2)).double().eval()  # fmt: skip
    source, target = ids(1, 7), ids(1, 5, seed=1)
    padded, mask = torch.nn.functional.pad(source, (3, 0)), torch.arange(10)[None] >= 3
    assert_close(net(padded, target, mask=mask), net(source, target))
    attn = Attention(8, heads=2, dim_head=4, sparse_pattern=Global(2)).double()
    x, context = (torch.randn(1, n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (5, 7))
    ways = (context, {}), (torch.nn.functional.pad(context, (0, 0, 3, 0)), dict(context_mask=mask))
    alone, behind = (
        attn(x, context=one, return_intermediates=True, **given)[1].post_softmax_attn for one, given in ways
    )
    assert_close(behind[..., 3:], alone)


@pattern('half_of_a_test')
class Half(Pattern):
    """The own half, of a length."""

    half: int = 0

    def visible(self, i, j, marks=None):
        return (i < self.half) == (j < self.half)

    def keys_bound(self, n, causal):
        return n

    def branches(self, n, causal):
        return BlockLocal(max(n, 1)).branches(n, causal)

    def of_length(self, n):
        return Half(n // 2)

    @property
    def of_differences(self):
        return False


def test_a_pattern_of_one_length_refuses_padding():
    attn, x = Attention(8, heads=2, dim_head=4, sparse_pattern=Half()), torch.randn(2, 6, 8)
    assert attn(x, mask=torch.ones(2, 6).bool()).shape == x.shape
    with pytest.raises(ConfigError, match='`mask` and `seq_start_pos` cannot be combined with Half'):
        attn(x, mask=torch.arange(6) < torch.tensor([[6], [4]]))


# what stands outside of a pattern


def reads(net, x, **inputs):
    """Which tokens each one reads in a single layer."""
    given = torch.zeros(1, x.shape[1], 16, dtype=torch.float64, requires_grad=True)
    out = net(x, sum_embeds=given, return_embeddings=True, **inputs)[0, -x.shape[1] :]
    rows = [torch.autograd.grad(row.sin().sum(), given, retain_graph=True)[0] for row in out]
    return torch.cat(rows).abs().sum(dim=-1) > 1e-12


PREFIX = torch.randn(1, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
FRONTS = {
    'memory tokens': (dict(num_memory_tokens=3), {}),
    'prefix': ({}, dict(prepend_embeds=PREFIX)),
    'both, some hidden': (
        dict(num_memory_tokens=1), dict(prepend_embeds=PREFIX, prepend_mask=torch.tensor([[True, False]]))),
    'between': (dict(num_memory_tokens=2, memory_tokens_interspersed_every=3), {}),
}  # fmt: skip
OTHERS = {
    **PATTERNS,
    'strides': Strided(3),
    'tiles': Local2D((3, 4), (2, 2), (1, 1)),
    'squares': Conv2D((3, 4), 3),
}


@pytest.mark.parametrize('front', FRONTS)
@pytest.mark.parametrize('name', now('bigbird', 'blocks', 'heads', of=[*OTHERS]))
def test_a_token_reads_the_text_that_it_reads_without_what_stands_outside(name, front):
    own, inputs = FRONTS[front]
    kind = Decoder if front == 'between' else Encoder
    x = ids(1, 12)
    try:
        alone = model(kind, depth=1, attn_sparse_pattern=OTHERS[name])
    except ConfigError as error:
        assert 'not for a causal stack' in str(error)
        return
    assert torch.equal(reads(model(kind, 1, attn_sparse_pattern=OTHERS[name], **own), x, **inputs), reads(alone, x))


def test_a_mask_hides_pixels_and_moves_none():
    net, x, mask = model(depth=1, attn_sparse_pattern=OTHERS['tiles']), ids(1, 12), torch.arange(12)[None] >= 2
    assert torch.equal(reads(net, x, mask=mask)[2:], reads(net, x)[2:] & mask[0])


def test_all_read_memory_tokens_which_read_all():
    net = model(depth=1, attn_sparse_pattern=BlockLocal(3), num_memory_tokens=2)
    x = ids(1, 9)
    _, trace = net(x, return_intermediates=True)
    maps = trace.attn_intermediates[0].post_softmax_attn[0]
    assert (maps[:, :2] > 0).all() and (maps[:, :, :2] > 0).all() and (maps[:, 2, 5:] == 0).all()
    assert_close(maps.sum(dim=-1), torch.ones(4, 11).double())


@pytest.mark.parametrize('place', ['front', 'end'])
def test_patches_are_counted_without_class_tokens_and_registers(place):
    def seen(**flags):
        torch.manual_seed(0)
        stack = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, attn_sparse_pattern=Row(4))
        net = ViTransformerWrapper(image_size=16, patch_size=4, attn_layers=stack, **flags)
        net = randomise(net.double())
        image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
        out = net(image, return_embeddings=True)[0, net.num_prefix :]
        grads = torch.cat([torch.autograd.grad(row.sin().sum(), image, retain_graph=True)[0] for row in out])
        return grads.abs().sum(dim=1).unflatten(1, (4, 4)).unflatten(3, (4, 4)).sum(dim=(2, 4)).flatten(1) > 1e-12

    assert torch.equal(seen(prefix_tokens=1, num_register_tokens=3, register_place=place), seen())


@pytest.mark.parametrize('name', now('blocks', of=['blocks', 'local', 'first tokens', 'sums', 'heads']))
@pytest.mark.parametrize('inputs', [{}, dict(seq_start_pos=torch.tensor([0, 3]))], ids=['whole', 'padded'])
def test_a_cache_behind_memory_tokens(name, inputs):
    net, x = model(Decoder, attn_sparse_pattern=PATTERNS[name], num_memory_tokens=2), ids(2, 17)
    wanted = net(x, **inputs)
    out, cache = net(x[:, :6], return_intermediates=True, **inputs)
    outs = [out]
    for stop in (7, 8, 14, 17):
        out, cache = net(x[:, :stop], cache=cache, return_intermediates=True, **inputs)
        outs.append(out)
    real = torch.arange(17) >= inputs.get('seq_start_pos', torch.zeros(2))[:, None]
    assert_close(torch.cat(outs, dim=1)[real], wanted[real])


# short rows


@pytest.mark.parametrize('n', now(1, 5, 7, of=[1, 2, 3, 5, 7, 8, 9, 13]))
def test_a_short_row_is_attended_to_as_a_whole(n):
    """As dense attention; in a batch beside a longer one too."""
    for own in (BigBird(2, 3, 2, 1, max_len=24), RandomBlocks(2, 3, exclude=(1, 1, 1), max_len=24),
                BigBird(2, 1, 0, 5, max_len=24)):  # fmt: skip
        sparse, dense = model(attn_sparse_pattern=own), model()
        dense.load_state_dict({name: t for name, t in sparse.state_dict().items() if 'random_blocks' not in name})
        x, whole = ids(2, 13), n < 13
        assert torch.allclose(sparse(x[:, :n]), dense(x[:, :n])) == whole
        mask = torch.arange(13) < torch.tensor([[n], [13]])
        assert torch.allclose(sparse(x, mask=mask)[0, :n], dense(x[:1, :n])[0]) == whole


def test_blocks_without_tokens_do_not_count():
    """Every query sees a key, of any length; as many as its block has."""
    for blocks in (2, 3, 5):
        for n in range(1, 14):
            place = torch.arange(n)
            for shift in range(blocks):
                seen = BlockPermutation(blocks, shift).of_length(n).visible(place[:, None], place).sum(dim=-1)
                assert (seen == n).all() if n < blocks else (seen > 0).all() and seen.max() == -(-n // blocks)
