"""Images before a stack, towers of images and texts: positions, prefixes, registers, pooling and losses by formula."""

import functools
import itertools
import math

import oracles
import pytest
import torch
import torch.nn.functional as F
from building import stacks, vectors
from law_cases import randomise
from torch import nn
from toy_tasks import taught

from x_transformers import Decoder, Encoder, TransformerWrapper, TwoTowers, ViTransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.modalities.two_towers import LOSSES

assert_close = functools.partial(oracles.assert_close, tolerance=1e-12)
DIM, SIDE, PIXELS, CHANNELS, CLASSES = 16, 3, 2, 2, 5
FIRST = dict(prefix_tokens=1, pool='first')


stack_of = stacks(Encoder, dim=DIM, depth=1, heads=2, attn_dim_head=8, verbose=False)


def images(stack=None, **flags):
    torch.manual_seed(0)
    sizes = dict(image_size=SIDE * PIXELS, patch_size=PIXELS, channels=CHANNELS, num_classes=CLASSES)
    return randomise(ViTransformerWrapper(attn_layers=stack or stack_of(), **{**sizes, **flags}).double())


IMAGE = vectors(2, CHANNELS, SIDE * PIXELS, SIDE * PIXELS)


def normed(x, norm, eps=1e-5):
    centred = x - x.mean(dim=-1, keepdim=True)
    bias = getattr(norm, 'beta', None)
    x = centred / (centred.square().mean(dim=-1, keepdim=True) + eps).sqrt() * norm.gamma
    return x if bias is None else x + bias


def patched(net, image):
    """Patches by a convolution whose kernel is a patch, as others store it."""
    linear = net.patch_to_embedding[1]
    kernel = linear.weight.unflatten(1, (*net.patch, -1)).permute(0, 3, 1, 2)
    return F.conv2d(image, kernel, linear.bias, stride=net.patch).flatten(2).transpose(1, 2)


def seen_by(net, image, **inputs):
    """What the stack gets and gives."""
    seen = []
    hook = net.attn_layers.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
    out = net(image, **inputs)
    hook.remove()
    return *seen[0], out


@pytest.mark.parametrize('bias', [True, False])
def test_patches_without_norms(bias):
    net = images(patch_norm=False, patch_bias=bias)
    tokens, _, _ = seen_by(net, IMAGE)
    assert_close(tokens, patched(net, IMAGE) + net.pos_embedding)
    assert (net.patch_to_embedding[1].bias is not None) == bias


@pytest.mark.parametrize('place', ['end', 'front'])
def test_prefix_and_registers(place):
    net = images(prefix_tokens=2, num_register_tokens=3, register_place=place, patch_norm=False, pool='first')
    tokens, out, logits = seen_by(net, IMAGE)
    known = torch.cat((net.prefix_tokens.expand(2, -1, -1), patched(net, IMAGE)), dim=1) + net.pos_embedding
    registers = net.register_tokens.expand(2, -1, -1)
    at = 2 if place == 'front' else 11
    assert_close(tokens, torch.cat((known[:, :at], registers, known[:, at:]), dim=1))
    rest = [*range(at), *range(at + 3, 14)]
    assert torch.equal(net(IMAGE, return_embeddings=True), out[:, rest])
    assert_close(logits, net.mlp_head(out[:, 0]))


@pytest.mark.parametrize('bias, eps', [(True, 0.1), (True, None), (False, 0.1)])
def test_norms_of_embeddings_and_of_what_is_pooled(bias, eps):
    stack = stack_of(norm_bias=bias, norm_eps=eps, norm_add_unit_offset=False, pre_norm_has_final_norm=False)
    own = dict(post_emb_norm=True, post_emb_norm_bias=bias, post_emb_norm_eps=eps)
    net = images(stack, patch_norm=False, post_pool_norm=True, **FIRST, **own)
    tokens, out, logits = seen_by(net, IMAGE)
    known = torch.cat((net.prefix_tokens.expand(2, -1, -1), patched(net, IMAGE)), dim=1) + net.pos_embedding
    assert_close(tokens, normed(known, net.post_emb_norm, eps or 1e-5))
    assert_close(logits, net.mlp_head(normed(out[:, 0], net.post_pool_norm, eps or 1e-5)))


def test_a_token_in_place_of_hidden_patches():
    net = images(mask_token=True, patch_norm=False, **FIRST)
    hidden = torch.arange(18).unflatten(0, (2, 9)) % 5 < 2
    tokens, _, out = seen_by(net, IMAGE, hidden_patches=hidden)
    known = torch.where(hidden.unsqueeze(-1), net.mask_token, patched(net, IMAGE))
    assert_close(tokens[:, 1:], known + net.pos_embedding[:, 1:])
    assert torch.equal(net(IMAGE, hidden_patches=hidden.unflatten(1, (3, 3))), out)
    for wrong in (hidden[:, :8], hidden.double(), hidden.unflatten(1, (1, 9))):
        with pytest.raises(ValueError, match=r'`hidden_patches` must .*got torch\.\w+ of shape'):
            net(IMAGE, hidden_patches=wrong)


# fixed positions


def own_sincos(rows, columns, dim, theta=10000.0):
    """One number after the other."""
    table, q = torch.zeros(rows * columns, dim, dtype=torch.float64), dim // 4
    for r, c, k in itertools.product(range(rows), range(columns), range(q)):
        w = theta ** (-k / (q - 1))
        for block, value in enumerate((math.sin(c * w), math.cos(c * w), math.sin(r * w), math.cos(r * w))):
            table[r * columns + c, block * q + k] = value
    return table


@pytest.mark.parametrize('theta', [10000.0, 50.0])
def test_fixed_positions_of_patches_by_their_formula(theta):
    """As the learned ones filled with the formula; prefix tokens and registers have none; any size of images."""
    around = dict(prefix_tokens=2, num_register_tokens=1, patch_norm=False)
    net, twin = images(sincos_pos_emb=True, sincos_theta=theta, **around), images(**around)
    assert not any('pos_embedding' in name for name in net.state_dict())
    twin.load_state_dict(net.state_dict(), strict=False)
    table = own_sincos(SIDE, SIDE, DIM, theta)
    with torch.no_grad():
        twin.pos_embedding.copy_(F.pad(table, (0, 0, 2, 0)))
    assert_close(net(IMAGE), twin(IMAGE))
    for rows, columns in ((1, 2), (5, 4)):
        image = vectors(2, CHANNELS, rows * PIXELS, columns * PIXELS)
        tokens, _, _ = seen_by(net, image)
        assert_close(tokens[:, 2:-1], patched(net, image) + own_sincos(rows, columns, DIM, theta))
        assert_close(tokens[:, :2], net.prefix_tokens.expand(2, -1, -1))


def test_products_of_fixed_positions_depend_on_differences():
    table = images(sincos_pos_emb=True)._positions_of(4, 6)[0]
    assert_close(table.square().sum(dim=-1), torch.full((24,), DIM / 2))
    grid = table.unflatten(0, (4, 6))
    assert_close((grid[1:, 2:] * grid[:-1, :-2]).sum(dim=-1), (grid[1, 2] * grid[0, 0]).sum().expand(3, 4))
    half = images(sincos_pos_emb=True).to(torch.bfloat16)._positions_of(4, 6)[0]
    assert torch.equal(half, own_sincos(4, 6, DIM).float().to(torch.bfloat16))


def test_a_stack_that_reads_fixed_positions_apart():
    around = dict(prefix_tokens=1, num_register_tokens=1)
    net = images(stack_of(tupe_pos=True), sincos_pos_emb=True, **around)
    apart = net._positions_apart(IMAGE)
    assert apart['pos_known'].tolist() == [[False] + [True] * 9 + [False]]
    assert_close(apart['pos_vectors'][0, 1:-1], own_sincos(SIDE, SIDE, DIM))


@pytest.mark.parametrize('dim', [4, 18])
def test_fixed_positions_are_refused(dim):
    with pytest.raises(ConfigError, match=f'`sincos_pos_emb` needs a `dim` of at least 8 .* got dim={dim}'):
        images(Encoder(dim=dim, depth=1, heads=1), sincos_pos_emb=True)
    with pytest.raises(ConfigError, match='`sincos_pos_emb` cannot be combined with `interpolate_pos_emb`'):
        images(sincos_pos_emb=True, interpolate_pos_emb='bicubic')


# pooling


def attended(pool, x):
    """`TokenPool` with one head after the other."""
    q, k, v = pool.attn.to_q(pool.query), pool.attn.to_k(x), pool.attn.to_v(x)
    heads = [(q[:, s] @ k[..., s].mT / 8**0.5).softmax(dim=-1) @ v[..., s] for s in (slice(8), slice(8, 16))]
    p = pool.attn.to_out(torch.cat(heads, dim=-1))[:, 0]
    hidden = F.gelu(pool.ff.ff[0][0](normed(p, pool.norm)))
    return p + pool.ff.ff[2](hidden)


POOLED = {
    'mean': lambda net, x: net.mlp_head(x[:, 2:].sum(dim=1) / 9),
    'first': lambda net, x: net.mlp_head(x[:, 0]),
    'first_mean': lambda net, x: net.mlp_head(torch.cat((x[:, 0], x[:, 2:].sum(dim=1) / 9), dim=-1)),
    'prefix': lambda net, x: (net.mlp_head[0](x[:, 0]) + net.mlp_head[1](x[:, 1])) / 2,
    'attention': lambda net, x: net.mlp_head(attended(net.attn_pool, x)),
    None: lambda net, x: net.mlp_head(x),
}


@pytest.mark.parametrize('pool', POOLED)
def test_pooling(pool):
    options = dict(pool_kwargs=dict(attn_out_bias=True, ff_mult=2)) if pool == 'attention' else {}
    stack = stack_of(norm_bias=True, norm_add_unit_offset=False)
    net = images(stack, prefix_tokens=2, num_register_tokens=1, pool=pool, **options)
    logits, x = net(IMAGE, return_logits_and_embeddings=True)
    assert_close(logits, POOLED[pool](net, x))
    assert_close(logits, net(IMAGE))
    bare = images(stack, prefix_tokens=2, num_register_tokens=1, pool=pool, num_classes=None, **options)
    bare.load_state_dict({name: t for name, t in net.state_dict().items() if not name.startswith('mlp_head')})
    net.mlp_head = nn.Identity()
    assert torch.equal(bare(IMAGE), net(IMAGE))


def test_a_layer_on_what_is_pooled():
    net = images(pooler=dict(dim=7, bias=False, activation='relu'), **FIRST)
    logits, x = net(IMAGE, return_logits_and_embeddings=True)
    assert_close(logits, net.mlp_head((x[:, 0] @ net.pooler[0].weight.T).clamp(min=0)))
    net = images(pooler={}, num_classes=None, **FIRST)
    first = net(IMAGE, return_embeddings=True)[:, 0]
    assert_close(net(IMAGE), (first @ net.pooler[0].weight.T + net.pooler[0].bias).tanh())
    net = images(pooler=dict(activation=None), num_classes=None, **FIRST)
    assert_close(net(IMAGE), net.pooler[0](net(IMAGE, return_embeddings=True)[:, 0]))


# positions of other sizes


def cubic(distance, a):
    """The kernel of cubic convolution.  Keys 1981"""
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def resampling(old, new, smooth):
    """A matrix (new, old): places at the middle of pixels; beyond the border its pixel again, or none if smoothed."""
    weights = torch.zeros(new, old, dtype=torch.float64)
    step = old / new
    wide = max(step, 1.0) if smooth else 1.0
    for i in range(new):
        middle = (i + 0.5) * step - 0.5
        for j in range(math.floor(middle - 2 * wide), math.ceil(middle + 2 * wide) + 1):
            if not smooth or 0 <= j < old:
                weights[i, min(max(j, 0), old - 1)] += cubic((middle - j) / wide, -0.5 if smooth else -0.75)
        weights[i] /= weights[i].sum()
    return weights


@pytest.mark.parametrize('rows, columns', [(5, 3), (2, 4), (3, 3)])
@pytest.mark.parametrize('kind', ['bicubic', 'bicubic_antialias'])
def test_positions_of_other_sizes(kind, rows, columns):
    net = images(interpolate_pos_emb=kind, patch_norm=False, prefix_tokens=1)
    image = vectors(2, CHANNELS, rows * PIXELS, columns * PIXELS)
    tokens, _, _ = seen_by(net, image)
    grid = net.pos_embedding[0, 1:].unflatten(0, (SIDE, SIDE))
    down, across = (resampling(SIDE, new, kind != 'bicubic') for new in (rows, columns))
    wanted = torch.einsum('ra,cb,abd->rcd', down, across, grid).flatten(0, 1)
    assert_close(tokens[:, 1:], patched(net, image) + wanted)
    assert_close(tokens[:, 0], (net.prefix_tokens + net.pos_embedding[:, 0]).expand(2, -1))


@pytest.mark.parametrize('rows, columns', [(3, 4), (5, 2)])
def test_height_and_width_of_images_and_patches_differ(rows, columns):
    net = images(image_size=(6, 12), patch_size=[2, 3], interpolate_pos_emb='bicubic', patch_norm=False)
    image = vectors(2, CHANNELS, rows * 2, columns * 3)
    tokens, _, _ = seen_by(net, image)
    grid = net.pos_embedding[0].unflatten(0, (3, 4))
    down, across = resampling(3, rows, False), resampling(4, columns, False)
    assert_close(tokens, patched(net, image) + torch.einsum('ra,cb,abd->rcd', down, across, grid).flatten(0, 1))
    part = images(image_size=(6, 12), patch_size=(2, 3), patch_norm=False)
    whole = seen_by(part, vectors(2, CHANNELS, 6, 12))[0].unflatten(1, (3, 4))
    assert_close(seen_by(part, vectors(2, CHANNELS, 6, 12)[..., :4, :9])[0], whole[:, :2, :3].flatten(1, 2))
    with pytest.raises(ValueError, match='`img` got 8 x 12 pixels, at most 6 x 12 have positions'):
        part(vectors(2, CHANNELS, 8, 12))
    with pytest.raises(ValueError, match=r'must be \(b, 2, height, width\) in multiples of 2 x 3 pixels'):
        part(vectors(2, CHANNELS, 6, 10))
    with pytest.raises(ValueError, match=r'`patch_size` must divide `image_size`, \(6, 12\), got \(2, 5\)'):
        images(image_size=(6, 12), patch_size=(2, 5))


@pytest.mark.parametrize('kind', ['bicubic', 'bicubic_antialias'])
def test_positions_of_the_same_size_stay_as_they_are(kind):
    net, plain = images(interpolate_pos_emb=kind), images()
    assert torch.equal(net(IMAGE), plain(IMAGE))


def test_a_smaller_image_has_the_positions_of_its_part():
    net = images(patch_norm=False)
    tall = vectors(2, CHANNELS, (SIDE + 1) * PIXELS, PIXELS)
    with pytest.raises(ValueError, match='`img` got 8 x 2 pixels, at most 6 x 6 have positions'):
        net(tall)
    for rows, columns in ((2, 3), (3, 1), (1, 2)):
        tokens, _, _ = seen_by(net, IMAGE[..., : rows * PIXELS, : columns * PIXELS])
        whole = seen_by(net, IMAGE)[0].unflatten(1, (SIDE, SIDE))
        assert_close(tokens, whole[:, :rows, :columns].flatten(1, 2))


@pytest.mark.parametrize('flags', [{}, FIRST])
def test_the_order_of_patches_does_not_count(flags):
    """Where patches and their positions move together, the answer stays."""
    net, order = images(**flags), torch.randperm(SIDE**2, generator=torch.Generator().manual_seed(0))
    patches = IMAGE.unflatten(3, (SIDE, PIXELS)).unflatten(2, (SIDE, PIXELS)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    moved = patches[:, order].unflatten(1, (SIDE, SIDE)).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
    wanted, front = net(IMAGE), net.pos_embedding.shape[1] - SIDE**2
    with torch.no_grad():
        net.pos_embedding[:, front:] = net.pos_embedding[:, front:][:, order].clone()
    assert not torch.allclose(net(IMAGE), wanted) and not torch.equal(moved, IMAGE)
    assert_close(net(moved), wanted)


@pytest.mark.slow
def test_which_way_stripes_go():
    """Images of 8 by 8 with stripes of any width, shift and shade, along rows or columns, with noise."""
    torch.manual_seed(0)
    net = ViTransformerWrapper(
        image_size=8, patch_size=4, channels=1, num_classes=2, attn_layers=stack_of(dim=32, depth=2)
    )

    def drawn(b):
        down, at = torch.randint(0, 2, (b,)), torch.arange(8)
        width, shift = torch.randint(1, 4, (b, 1)), torch.randint(0, 8, (b, 1))
        line = ((at + shift) // width % 2).float() * (0.5 + torch.rand(b, 1))
        rows = line.unsqueeze(-1).expand(-1, 8, 8)
        image = torch.where(down[:, None, None] == 1, rows.mT, rows)
        return (image + 0.1 * torch.randn(b, 8, 8)).unsqueeze(1), down

    def loss():
        image, down = drawn(64)
        return F.cross_entropy(net(image), down)

    taught(net, loss, 300)
    image, down = drawn(1000)
    with torch.no_grad():
        assert (net(image).argmax(-1) == down).double().mean() >= 0.98


def test_positions_are_resampled_in_single_precision():
    net = images(interpolate_pos_emb='bicubic').bfloat16()
    grid = net.pos_embedding.float().unflatten(1, (SIDE, SIDE))[0].permute(2, 0, 1)[None]
    wanted = F.interpolate(grid, (5, 4), mode='bicubic').bfloat16().flatten(2).transpose(1, 2)
    assert torch.equal(net._positions_of(5, 4), wanted)


def test_pixels_that_fill_no_patch():
    net = images(crop_to_patches=True, image_size=SIDE * PIXELS + 1)
    wide = vectors(2, CHANNELS, SIDE * PIXELS + 1, SIDE * PIXELS + 1)
    assert net.pos_embedding.shape[1] == SIDE**2
    assert torch.equal(net(wide), net(wide[..., :-1, :-1]))
    assert torch.equal(net(wide[..., 1:-1, :]), net(wide[..., 1:-2, :-1]))
    with pytest.raises(ValueError, match='of at least 2 pixels'):
        net(wide[..., :1, :])
    exact, other = images(crop_to_patches=True), vectors(2, CHANNELS, (SIDE - 1) * PIXELS + 1, SIDE * PIXELS + 1)
    assert torch.equal(exact(other), exact(other[..., :-1, :-1]))  # more pixels, and not more patches
    with pytest.raises(ValueError, match='`img` got 4 x 10 pixels'):  # fewer pixels, and more patches
        net(vectors(2, CHANNELS, 4, 10))


# a plain model takes the short way


# two towers

IDS = torch.randint(3, 9, (3, 6), generator=torch.Generator().manual_seed(0))
IDS[0, 2], IDS[0, 4], IDS[1, 5], IDS[2, 0] = 9, 9, 9, 9
MASK = torch.arange(6) < torch.tensor([[5], [6], [4]])


def towers(kind=Decoder, around=None, **flags):
    torch.manual_seed(0)
    image = images(num_classes=None, **FIRST)
    text = TransformerWrapper(
        num_tokens=10, max_seq_len=6, return_only_embed=True, attn_layers=stack_of(kind, dim=12, **(around or {}))
    )
    return randomise(TwoTowers(image, text, **flags).double())


PLACES = {  # of the token that stands for each of the texts
    ('first', None): (0, 0, 0),
    ('last', None): (5, 5, 5),
    ('last', 'mask'): (4, 5, 3),
    ('eos', None): (2, 5, 0),
}


@pytest.mark.parametrize('pool, mask', PLACES)
@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
def test_two_towers(loss, pool, mask):
    own = dict(logit_bias=-1.0, project_bias=True) if loss == 'sigmoid' else dict(eos_id=9 if pool == 'eos' else None)
    net = towers(Encoder if pool == 'first' else Decoder, loss=loss, text_pool=pool, dim_shared=7, **own)
    image = vectors(3, CHANNELS, 6, 6)
    mask = MASK if mask else None
    logits = net(image, IDS, mask, return_logits=True)
    tokens = net.text(IDS) if mask is None else net.text(IDS, mask=mask)
    places = PLACES[pool, None if mask is None else 'mask']
    texts = net.to_text(torch.stack([row[at] for row, at in zip(tokens, places, strict=True)]))
    pictures = net.to_image(net.image(image))
    wanted = torch.zeros(3, 3, dtype=torch.float64)
    for i, j in itertools.product(range(3), range(3)):
        wanted[i, j] = net.logit_scale.exp() * (pictures[i] @ texts[j]) / pictures[i].norm() / texts[j].norm()
    wanted = wanted if net.logit_bias is None else wanted + net.logit_bias
    assert_close(logits, wanted)
    if loss == 'softmax':
        rows, columns = wanted.softmax(dim=1).diagonal(), wanted.softmax(dim=0).diagonal()
        expected = -(rows.log().mean() + columns.log().mean()) / 2
    else:
        right = torch.eye(3, dtype=torch.bool)
        expected = -torch.where(right, wanted.sigmoid(), 1 - wanted.sigmoid()).log().sum() / 3
    assert_close(net(image, IDS, mask), expected)


@pytest.mark.parametrize('mask', [None, MASK])
def test_a_text_as_the_mean_of_its_tokens(mask):
    net = towers(Encoder, text_pool='mean', project_image=False, dim_shared=DIM)
    tokens = net.text(IDS) if mask is None else net.text(IDS, mask=mask)
    real = torch.ones(3, 6, dtype=torch.bool) if mask is None else mask
    means = torch.stack([row[own].mean(dim=0) for row, own in zip(tokens, real, strict=True)])
    assert_close(net.of_texts(IDS, mask), F.normalize(net.to_text(means), dim=-1))
    assert isinstance(net.to_image, nn.Identity)


def test_initial_values_of_towers():
    net = TwoTowers(images(), towers().text, logit_scale=10.0, logit_bias=-10)
    assert math.isclose(net.logit_scale.exp().item(), 10.0, rel_tol=1e-6) and net.logit_bias.item() == -10
    assert math.isclose(TwoTowers(images(), towers().text).logit_scale.item(), 2.6592, rel_tol=1e-4)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize('loss', ['softmax', 'sigmoid'])
def test_the_factor_of_towers_is_bounded(loss, dtype):
    """At 100 for the softmax, where it still has the gradient that it has there; weights stay what they are."""
    net, image = towers(loss=loss, text_pool='last', dim_shared=7).to(dtype), vectors(3, CHANNELS, 6, 6).to(dtype)
    cosines = (net.of_images(image) @ net.of_texts(IDS).mT).double()
    close = dict(atol=1e-9 if dtype == torch.float64 else 1e-3 if dtype == torch.float32 else 1.0, rtol=0.0)
    for stored in (math.log(10.0), 4.6052, 4.60546875, 4.7, 50.0, 200.0):
        net.logit_scale.data.fill_(stored)
        stored = net.logit_scale.item()  # of so many digits
        free = loss == 'sigmoid' or stored <= 4.60546875
        if loss == 'sigmoid' and stored > 5:
            continue
        logits = net(image, IDS, return_logits=True)
        torch.testing.assert_close(logits.double(), (math.exp(stored) if free else 100.0) * cosines, **close)
        net.zero_grad()
        net(image, IDS).backward()
        factor = torch.tensor(
            min(stored, math.log(100.0) if not free else stored), dtype=torch.float64
        ).requires_grad_()
        own = LOSSES[loss](factor.exp() * cosines.detach())
        grad = torch.autograd.grad(own, factor)[0]
        assert abs(net.logit_scale.grad.item() - grad.item()) <= (0.2 if dtype == torch.bfloat16 else 1e-3) * abs(grad)
        assert net.logit_scale.grad.item() != 0 and net.logit_scale.item() == stored


def test_refused_calls_of_towers():
    image = vectors(3, CHANNELS, 6, 6)
    for net, texts, words in (
        (towers(text_pool='last'), IDS, 'width 16, texts of width 12: set `dim_shared`'),
        (towers(), IDS, '`text` gave vectors of shape (3, 6, 12), it must pool them'),
        (towers(text_pool='last', dim_shared=7), IDS[:2], '`texts` got 2 texts for 3 images'),
    ):
        with pytest.raises(ValueError) as error:
            net(image, texts)
        assert words in str(error.value)
