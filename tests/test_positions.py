"""Positions against their formulas: tables, biases and rotations alone, in attention, and in a stack."""

import oracles
import pytest
import torch
from oracles import assert_close, assert_same, bools, randn, randomised
from sweeps import crossed, every_third
from toy_tasks import SEEDS, latest, learned, net_for, right, shift

from x_transformers import Attention, CrossAttender, Decoder, Encoder, TransformerWrapper
from x_transformers.core import rows
from x_transformers.features.polar import InfusedSinusoids
from x_transformers.x_transformers import (
    AbsolutePositionalEmbedding,
    AlibiPositionalBias,
    DynamicPositionBias,
    PolarEmbedding,
    RelativePositionBias,
    RotaryEmbedding,
    ScaledSinusoidalEmbedding,
    apply_rotary_pos_emb,
)

# tables are kept in float32
TABLE = 1e-5


def angles(pos, dim=4, scale=1.0, **keywords):
    return oracles.rotary_angles(pos, oracles.rotary_frequencies(dim, **keywords)), scale


def places(i, j):
    """Of queries and keys, the last query at the last key."""
    return torch.arange(j - i, j), torch.arange(j)


# absolute


def calls_with_positions(n, far):
    """Arguments of an embedding of positions, and where the tokens then stand; one of them is far away."""
    start, pos = torch.tensor([0, 3]), torch.tensor([[4, 2, far, 0, 1, 1, 11], [0, 1, 2, 3, 4, 5, 6]])[:, :n]
    return (
        ({}, torch.arange(n)),
        (dict(offset=5), torch.arange(n) + 5),
        (dict(pos=pos[0]), pos[0]),
        (dict(pos=pos), pos),
        (dict(seq_start_pos=start), (torch.arange(n) - start[:, None]).clamp(min=0)),
    )


@pytest.mark.parametrize('n', [1, 7])
def test_learned_positions(n):
    emb, x = randomised(AbsolutePositionalEmbedding(5, 12)), torch.zeros(2, n, 5)
    for call, wanted in calls_with_positions(n, far=9):
        assert_same(
            emb,
            lambda call=call: emb(x, **call),
            lambda w, wanted=wanted: oracles.learned_positions(w, wanted),
        )


def test_learned_positions_of_unit_length():
    emb = randomised(AbsolutePositionalEmbedding(5, 12, l2norm_embed=True))
    assert_close(emb(torch.zeros(2, 7, 5)), oracles.unit(emb.emb.weight[:7]))


def test_learned_positions_refuse_what_is_beyond_the_table():
    emb = AbsolutePositionalEmbedding(5, 6)
    for call in (dict(x=torch.zeros(2, 7, 5)), dict(x=torch.zeros(2, 4, 5), offset=3)):
        with pytest.raises(ValueError, match='max_seq_len'):
            emb(**call)


def test_a_model_refuses_what_is_beyond_its_table():
    net = TransformerWrapper(num_tokens=7, max_seq_len=5, attn_layers=Decoder(**SMALL))
    _, known = net(torch.zeros(1, 4).long(), return_intermediates=True)
    inputs = dict(cache=known, input_not_include_cache=True)
    for n, more in ((6, {}), (2, inputs)):
        words = 'sequences must have at most `max_seq_len=5` tokens, got 6'
        with pytest.raises(ValueError, match=words):
            net(torch.zeros(1, n).long(), **more)


@pytest.mark.parametrize('kind', [Encoder, Decoder])
def test_an_encoder_knows_no_order_but_that_of_positions(kind):
    """With positions of their own or with none, tokens in another order give the same; a causal mask knows better."""
    ids, pos = torch.tensor([[1, 1, 4, 0, 6, 2], [3, 5, 0, 2, 2, 1]]), torch.tensor([0, 4, 1, 8, 3, 2])
    order = torch.tensor([2, 5, 0, 3, 1, 4])
    sizes = dict(num_tokens=7, max_seq_len=9)
    table, bare = (
        randomised(TransformerWrapper(**sizes, attn_layers=kind(**SMALL), use_abs_pos_emb=added))
        for added in (True, False)
    )
    for net, before, behind in ((table, dict(pos=pos), dict(pos=pos[order])), (bare, {}, {})):
        moved = (net(ids[:, order], **behind) - net(ids, **before)[:, order]).abs().max()
        assert moved < 1e-9 if kind is Encoder else moved > 1e-3
    assert (table(ids[:, order]) - table(ids)[:, order]).abs().max() > 1e-3


@pytest.mark.parametrize('theta', [10000, 30])
@pytest.mark.parametrize('denominator', ['d', 'half_minus_1'])
@pytest.mark.parametrize('n', [1, 7])
def test_sinusoid(n, theta, denominator):
    emb, x = randomised(ScaledSinusoidalEmbedding(6, theta=theta, denominator=denominator)), torch.zeros(2, n, 6)
    for call, wanted in calls_with_positions(n, far=900):
        assert_same(
            emb,
            lambda call=call: emb(x, **call),
            lambda w, wanted=wanted: oracles.sinusoid(w, wanted, 6, theta, less=denominator != 'd'),
            tolerance=1e-12,
        )


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_sines_far_away_have_all_their_digits(dtype):
    emb, far = ScaledSinusoidalEmbedding(64, scale=1.0).to(dtype), torch.tensor([0, 10**6, 10**6 + 1, 123456789])
    found = emb(torch.zeros(1, 4, 64), pos=far)
    tolerance = 5e-7 if dtype == torch.float32 else 1e-8  # of an angle of 1e8
    assert found.dtype == dtype
    assert_close(found.double(), oracles.sinusoid(dict(scale=1.0), far, 64), tolerance=tolerance)
    assert torch.equal(found[0], torch.tensor([0.0] * 32 + [1.0] * 32, dtype=dtype))


@pytest.mark.parametrize('denominator', ['d', 'half_minus_1'])
def test_sines_move_by_a_rotation(denominator):
    """As complex numbers c = cos + i sin, a shift of any size is one product: c(p + s) = e^(i s w) c(p)."""
    emb = ScaledSinusoidalEmbedding(12, theta=50.0, scale=1.0, denominator=denominator).double()
    frequencies = 50.0 ** -(torch.arange(6).double() / (6 - (denominator != 'd')))

    def waves(pos):
        sines, cosines = emb(torch.zeros(1, len(pos), 12), pos=pos).chunk(2, dim=-1)
        return torch.complex(cosines, sines)

    pos, shift = randn(5) * 9, 2.37
    assert_close(waves(pos + shift), torch.exp(1j * shift * frequencies) * waves(pos))
    lengths = 2 * torch.pi / frequencies
    assert lengths[0] == 2 * torch.pi and (denominator == 'd') == bool(lengths[-1] < 2 * torch.pi * 49)


def test_sinusoid_starts_small_and_needs_an_even_width():
    assert_close(ScaledSinusoidalEmbedding(6).scale.double(), torch.tensor([6**-0.5]).double(), tolerance=TABLE)
    with pytest.raises(ValueError, match='even'):
        ScaledSinusoidalEmbedding(5)
    with pytest.raises(ValueError, match="`sinu_denominator='half_minus_1'` needs a width of at least 4, got 2"):
        ScaledSinusoidalEmbedding(2, denominator='half_minus_1')
    with pytest.raises(ValueError, match=r'`denominator` must be one of.*got 3'):
        ScaledSinusoidalEmbedding(6, denominator=3)


def test_sines_of_a_fixed_scale():
    learned, fixed = (ScaledSinusoidalEmbedding(6, scale=scale).double() for scale in (None, 0.5))
    assert not list(fixed.parameters()) and not fixed.state_dict()
    x = torch.zeros(2, 9, 6)
    assert_close(fixed(x), learned(x) / learned.scale * 0.5, tolerance=TABLE)
    assert fixed.bfloat16()(x).dtype == torch.bfloat16
    options = dict(num_tokens=7, max_seq_len=9, scaled_sinu_pos_emb=True, abs_pos_emb_scale=0.5)
    net = TransformerWrapper(**options, attn_layers=Encoder(dim=6, depth=1, heads=1, attn_dim_head=4))
    assert net.pos_emb.scale == 0.5 and net(torch.zeros(1, 9, dtype=torch.long)).dtype == torch.float32


SINES = dict(num_tokens=7, max_seq_len=9, sinu_pos_emb=True)
SMALL = dict(dim=6, depth=1, heads=1, attn_dim_head=4)


def test_sines_of_a_model():
    options = dict(sinu_theta=50.0, sinu_denominator='half_minus_1')
    net = randomised(TransformerWrapper(**SINES, **options, attn_layers=Encoder(**SMALL)))
    assert not any('pos_emb' in name for name in net.state_dict())
    tokens = net.token_emb(torch.zeros(1, 20, dtype=torch.long))  # more than a table would have
    wanted = tokens + oracles.sinusoid(dict(scale=1.0), torch.arange(20), 6, 50.0, less=1)
    assert_close(net(torch.zeros(1, 20, dtype=torch.long)), net.to_logits(net.attn_layers(wanted)), tolerance=1e-12)
    scaled = TransformerWrapper(**{**SINES, 'sinu_pos_emb': False}, scaled_sinu_pos_emb=True, **options,
                                attn_layers=Encoder(**SMALL))  # fmt: skip
    assert net.config['sinu_theta'] == 50.0 and scaled.pos_emb.theta == 50.0 and scaled.pos_emb.scale.shape == (1,)
    for other in (dict(scaled_sinu_pos_emb=True), dict(abs_pos_emb_scale=0.5)):
        with pytest.raises(
            ValueError, match=f'`sinu_pos_emb` cannot be combined with `{next(iter(other))}`: its scale is 1'
        ):
            TransformerWrapper(**SINES, **other, attn_layers=Encoder(**SMALL))


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('known', ['none', 'sines', 'table'])
def test_absolute_positions_tell_places_apart(seed, known):
    torch.manual_seed(seed)
    task = shift(3)
    net = net_for(task, Encoder, around=dict(sinu_pos_emb=known == 'sines', use_abs_pos_emb=known != 'none'))
    score = learned(net, task, steps=300)
    assert score <= 0.4 if known == 'none' else score >= 0.99


@pytest.mark.slow
@SEEDS
def test_a_causal_mask_alone_tells_neighbours_apart(seed):
    """2203.16634: a decoder counts what it sees."""
    torch.manual_seed(seed)
    task = shift(1, n=16)
    assert learned(net_for(task, Decoder, around=dict(use_abs_pos_emb=False)), task, steps=400) >= 0.95


# rotary


def same_direction(ours, theirs, tolerance=TABLE):
    """Angles may differ by whole turns."""
    for wave in (torch.sin, torch.cos):
        assert_close(wave(ours.double()), wave(theirs), tolerance=tolerance)


@pytest.mark.parametrize('flag', ['rotary_pos_emb', 'polar_pos_emb'])
@pytest.mark.parametrize('far', [10**6, 10**7])
def test_logits_stay_where_all_positions_move(far, flag):
    """In float32: positions are multiplied in more digits, and whole turns taken off."""
    net = TransformerWrapper(
        num_tokens=11, max_seq_len=9,
        attn_layers=Decoder(dim=32, depth=2, heads=2, attn_dim_head=64, **{flag: True}),
    ).eval()  # fmt: skip
    x, pos = torch.arange(9)[None] % 11, torch.arange(9)
    with torch.no_grad():
        first, moved = net(x, pos=pos), net(x, pos=pos + far)
    error = (moved - first).abs().max().item()
    assert error < 1e-5, error


TURNED = dict(rotary_pos_emb=True)
LONGER = dict(kind='longrope', short_factor=[1.0] * 2, long_factor=[2.0] * 2, length=20)
RELATIVE = {
    'rotary': TURNED,
    'part': dict(**TURNED, rotary_emb_dim=5),
    'interpolated': dict(**TURNED, rotary_interpolation_factor=2.0),
    'some heads': dict(**TURNED, rotate_num_heads=1),
    'layers': dict(**TURNED, rotary_layers=(True, dict(theta=100.0))),
    'yarn': dict(**TURNED, rotary_scaling=dict(kind='yarn', factor=2.0, length=6)),
    'dynamic': dict(**TURNED, rotary_scaling=dict(kind='dynamic', factor=2.0, length=6)),
    'longrope': dict(**TURNED, rotary_scaling=LONGER),
    'xpos': dict(rotary_xpos=True),
    'xpos, steep': dict(rotary_xpos=True, rotary_xpos_scale_base=8),
    'polar': dict(polar_pos_emb=True),
    'alibi': dict(alibi_pos_bias=True),
    'T5': dict(rel_pos_bias=True),
    'dynamic bias': dict(dynamic_pos_bias=True),
    'shaw': dict(shaw_rel_pos=True, shaw_rel_values=True),
    'XL': dict(xl_rel_pos=True),
    'disentangled': dict(attn_disentangled=dict(span=3)),
    'rescaled': dict(da_pos_rescale=True),
    'contextual': dict(attn_use_cope=True),
    'gates': dict(attn_data_dependent_alibi=True),
    'window': dict(**TURNED, attn_max_attend_past=4),
}
WAYS = ('pos', 'rows', 'gaps', 'cache', 'offset', 'offset, cache', 'front', 'mems', 'left padding', 'mask')
# Rounding to bfloat16 alone moves these outputs by up to 0.11 of the largest one, at any distance.
PRECISION = {torch.float64: 1e-7, torch.float32: 2e-4, torch.bfloat16: 0.15, torch.float16: 0.01}


def moved_by(far, way, net, dtype):
    """Outputs for tokens, the first of which stands at `far`."""
    ids, x, at = torch.arange(18).view(2, 9) % 11, randn(2, 9, 16).to(dtype), torch.arange(9) + far
    pads = torch.tensor([[3], [0]])
    late = torch.where(torch.arange(9) >= pads, at - pads, 1)  # what padding stands at does not matter
    if way in ('cache', 'offset, cache'):
        inputs = (lambda n: dict(x=ids[:, :n], pos=at[:n])) if way == 'cache' else (lambda n: dict(x=x[:, :n]))
        model, keeps = (net, 'return_intermediates') if way == 'cache' else (net.attn_layers, 'return_hiddens')
        first = {} if way == 'cache' else dict(seq_pos_offset=far)
        _, known = model(**inputs(5), **first, **{keeps: True})
        second, known = model(**inputs(7), cache=known, **{keeps: True})
        third, _ = model(**inputs(9), cache=known, **{keeps: True})
        return torch.cat((second[:, -2:], third[:, -2:]), dim=1)
    if way == 'offset':
        return net.attn_layers(x, seq_pos_offset=far)
    inputs = {
        'pos': dict(pos=at),
        'rows': dict(pos=torch.stack((at, at - far // 2))),
        'gaps': dict(pos=torch.tensor([0, 1, 5, 6, 7, 20, 21, 30, 31]) + far),
        'front': dict(pos=at, prepend_embeds=x[:, :3]),
        'mems': dict(pos=at, mems=[x[:, :4], x[:, 1:5]]),
        'left padding': dict(pos=late, seq_start_pos=pads[:, 0]),
        'mask': dict(pos=late, mask=torch.arange(9) >= pads, prepend_embeds=x[:, :2]),
    }
    return net(ids, **inputs[way])[:, -6:]


def check_it_does_not_matter_where_a_row_begins(scheme, ways, distances, dtypes=PRECISION):
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False, **RELATIVE[scheme])
    net = randomised(TransformerWrapper(num_tokens=11, max_seq_len=0, attn_layers=layers), scale=0.4)
    with torch.no_grad():
        for dtype in dtypes:
            net.to(dtype)
            for way in ways:
                here = moved_by(0, way, net, dtype)
                for far in distances:
                    error = (moved_by(far, way, net, dtype) - here).abs().max() / here.abs().max()
                    assert error < PRECISION[dtype], (way, far, dtype, error)


@pytest.mark.parametrize('scheme', ['xpos', 'dynamic', 'alibi'])
def test_it_does_not_matter_where_a_row_begins(scheme):
    dtypes = (torch.float64, torch.float16)
    check_it_does_not_matter_where_a_row_begins(scheme, ('rows', 'cache', 'mems', 'mask'), (50_000,), dtypes)


@pytest.mark.slow
@pytest.mark.parametrize('scheme', RELATIVE)
def test_it_does_not_matter_where_a_row_begins_however(scheme):
    check_it_does_not_matter_where_a_row_begins(scheme, WAYS, (1000, 50_000, 10**7))


@pytest.mark.parametrize('flags', [dict(attn_num_mem_kv=2), dict(cross_attend=True)])
def test_xpos_beside_other_keys_far_away(flags):
    """Learned keys, which have no scale, and those of a context, at positions of its own."""
    net = randomised(Decoder(**STACK, rotary_xpos=True, **flags), 0)
    net.rotary_pos_emb.inv_freq.zero_()  # learned keys do not turn with the others
    x, pos, places = randn(2, 5, 7), torch.arange(5), torch.tensor([2, 5, 6])

    def at(far, step=1):
        more = dict(context=randn(2, 3, 7), context_pos=places + far) if 'cross_attend' in flags else {}
        return net(x, pos=step * pos + far, **more)

    for far in (1, 1000, 10**6):
        assert_close(at(far), at(0), tolerance=1e-6)
    assert (at(0, step=300) - at(0)).abs().max() > 1e-3


@pytest.mark.parametrize('far', [10**6, 10**7])
def test_angles_far_away(far):
    pos = torch.arange(9)
    rotary = RotaryEmbedding(64)
    wanted = (pos[:, None] + far) * rotary.inv_freq.double()
    same_direction(rotary(pos + far)[0][..., ::2], wanted[None], tolerance=3e-7)
    polar = PolarEmbedding(64, heads=2)
    wanted = (pos[:, None] + far) * polar.inv_freq.double()
    same_direction(polar(pos + far)[0], wanted[None], tolerance=3e-7)
    infused = InfusedSinusoids(64)
    wanted = (pos[:, None] + far) * infused.inv_freq.double()
    assert_close(infused(pos + far).double(), torch.cat((wanted.sin(), wanted.cos()), dim=-1), tolerance=3e-7)


@pytest.mark.parametrize('dim', [1, 2, 5, 14])
@pytest.mark.parametrize('factor', [1.0, 2.5])
@pytest.mark.parametrize('base', [10000, 17])
def test_rotary_angles(dim, factor, base):
    rotary = RotaryEmbedding(dim, interpolation_factor=factor, base=base)
    frequencies = oracles.rotary_frequencies(dim, base)
    assert_close(rotary.inv_freq.double(), frequencies, tolerance=TABLE)
    for pos in (torch.arange(7), torch.tensor([3]), torch.tensor([[5, 0, 2], [-4, 1, 1000]])):
        freqs, scale = rotary(pos)
        assert scale == 1.0
        same_direction(freqs, oracles.rotary_angles(pos, frequencies, factor), tolerance=1e-4)  # at 1000
    assert torch.equal(rotary.forward_from_seq_len(7)[0], rotary(torch.arange(7))[0])


def test_rotary_base_rescaling():
    rescaled = RotaryEmbedding(8, base_rescale_factor=3.0).inv_freq.double()
    assert_close(rescaled, oracles.rotary_frequencies(8, rescale=3.0), tolerance=TABLE)
    # its purpose: the longest wave is stretched by the factor, the shortest keeps its length
    plain = RotaryEmbedding(8).inv_freq.double()
    assert_close(plain[[0, -1]] / rescaled[[0, -1]], torch.tensor([1.0, 3.0]).double(), tolerance=TABLE)


@pytest.mark.parametrize('scale_base', [512, 9])
def test_xpos_scale(scale_base):
    rotary = RotaryEmbedding(6, use_xpos=True, scale_base=scale_base)
    for pos in (torch.arange(7), torch.arange(1), torch.tensor([4, 2, 9, 30])):
        freqs, scale = rotary(pos)
        same_direction(freqs, oracles.rotary_angles(pos, oracles.rotary_frequencies(6)))
        assert_close(scale.double(), oracles.xpos_scale(pos, oracles.xpos_decays(6), scale_base), tolerance=TABLE)
    assert rotary(torch.tensor([[0, 1, 2], [5, 6, 7]]))[1].shape == (2, 3, 6)


@pytest.mark.parametrize('width', [2, 4, 6])
@pytest.mark.parametrize('head', [6, 7])
@pytest.mark.parametrize('longer', [0, 3])
@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize('rows', [1, 2])
def test_rotation(width, head, longer, scaled, rows):
    """The first features turn, the rest stays; a table longer than the sequence gives its last rows."""
    pos = torch.arange(5 + longer) * torch.tensor([[1], [3]])[:rows]
    freqs, _ = angles(pos, width)
    scale = oracles.xpos_scale(pos, oracles.xpos_decays(width), 10) if scaled else 1.0
    t, turned = (randn(2, 3, 5, head).requires_grad_() for _ in range(2))
    ours, theirs = apply_rotary_pos_emb(t, freqs, scale), oracles.rotate(turned, freqs, scale)
    assert_close(ours, theirs)
    assert torch.equal(ours[..., width:], t[..., width:])
    ours.pow(3).sum().backward()
    theirs.pow(3).sum().backward()
    assert_close(t.grad, turned.grad, 'gradient')


def test_rotation_without_heads():
    freqs, t = angles(torch.arange(5), 4)[0], randn(2, 5, 6)
    assert_close(apply_rotary_pos_emb(t, freqs), oracles.rotate(t[:, None], freqs)[:, 0])
    assert_close(
        apply_rotary_pos_emb(t, freqs, 0.5),
        oracles.rotate(t[:, None], freqs)[:, 0] * torch.tensor([0.5] * 4 + [1.0] * 2),
    )


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rotation_keeps_the_dtype(dtype):
    freqs, scale = RotaryEmbedding(4, use_xpos=True)(torch.arange(5))
    assert apply_rotary_pos_emb(torch.randn(2, 3, 5, 6, dtype=dtype), freqs, scale).dtype == dtype


@pytest.mark.parametrize('scale_base', [None, 11])
def test_rotated_products_depend_on_distance_only(scale_base):
    q, k = randn(1, 1, 1, 6).expand(1, 1, 9, 6), randn(1, 1, 1, 6, seed=1).expand(1, 1, 9, 6)
    rotary = RotaryEmbedding(6, use_xpos=scale_base is not None, scale_base=scale_base or 512).double()
    freqs, scale = rotary(torch.arange(9))
    scores = (apply_rotary_pos_emb(q, freqs, scale) @ apply_rotary_pos_emb(k, freqs, 1 / scale).transpose(-1, -2))[0, 0]
    for distance in range(-8, 9):
        line = scores.diagonal(distance)
        assert_close(line, line[:1].expand_as(line), tolerance=1e-6)
    assert scores[0].unique().numel() == 9


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize(
    'flags',
    [{}, dict(kv_heads=2, num_mem_kv=2), dict(one_kv_head=True, qk_norm=True), dict(add_zero_kv=True, qk_rmsnorm=True)],
)
@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize('causal', [False, True])
def test_rotary_attention(flags, flash, scaled, causal):
    """Queries and keys are rotated after their norms, learned keys and values never."""
    pos = torch.tensor([[5, 0, 2, 9, 1], [0, 1, 2, 3, 4]])
    call = dict(
        rotary_pos_emb=angles(pos, 4, oracles.xpos_scale(pos, oracles.xpos_decays(4), 10) if scaled else 1.0),
        mask=bools(2, 5, seed=1),
    )
    known = dict(heads=4, dim_head=6, causal=causal, **flags)
    module = randomised(Attention(dim=7, flash=flash, **known))
    assert_same(
        module, lambda x: module(x, **call), lambda w, x: oracles.attention(w, x, **known, **call), randn(2, 5, 7)
    )


@pytest.mark.parametrize('flash', [False, True, None])
@pytest.mark.parametrize('scaled', [False, True])
def test_rotary_cross_attention(scaled, flash):
    pos, context_pos = torch.tensor([5, 0, 2, 9, 1]), torch.tensor([7, 3, 4])
    scales = (oracles.xpos_scale(p, oracles.xpos_decays(4), 10) if scaled else 1.0 for p in (pos, context_pos))
    tables = [angles(p, 4, scale) for p, scale in zip((pos, context_pos), scales, strict=True)]
    call = dict(rotary_pos_emb=tables[0], context_rotary_pos_emb=tables[1])
    module = randomised(Attention(dim=7, dim_context=5, heads=4, dim_head=6, flash=flash))
    assert_same(
        module,
        lambda x, context: module(x, context, **call),
        lambda w, x, context: oracles.attention(w, x, context, heads=4, dim_head=6, **call),
        randn(2, 5, 7),
        randn(2, 3, 5),
    )


def test_interpolation_cannot_extrapolate():
    with pytest.raises(ValueError, match='interpolation_factor'):
        RotaryEmbedding(4, interpolation_factor=0.5)


# biases


@pytest.mark.parametrize('heads', [1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_alibi_slopes(heads):
    bias = AlibiPositionalBias(heads)(1, 2).double()
    assert_close(-bias[:, 0, 0], torch.tensor(oracles.alibi_slopes(heads)).double(), tolerance=1e-6)


def test_alibi_slopes_of_the_paper():
    """2108.12409, section 3: for 8 heads the slopes halve from one half on."""
    assert_close(-AlibiPositionalBias(8)(1, 2)[:, 0, 0].double(), 0.5 ** torch.arange(1, 9).double())


def test_alibi_positions_and_slopes_of_the_user():
    alibi = AlibiPositionalBias(2, 3, slopes=[0.3, 7.0])
    pos = torch.tensor([[5, 0, 2], [-1, 1, 10]])
    for q_pos, k_pos in ((pos[0], pos[0]), (pos, pos), (pos[:, :2], pos)):
        wanted = oracles.alibi_bias(q_pos, k_pos, [0.3, 7.0], 3)
        assert_close(alibi.forward_custom_pos(q_pos, k_pos).double(), wanted, tolerance=1e-6)
    assert_close(alibi.forward_custom_pos(pos).double(), oracles.alibi_bias(pos, pos, [0.3, 7.0], 3), tolerance=1e-6)


@pytest.mark.parametrize('dtype', [torch.float8_e5m2, torch.float16, torch.bfloat16])
def test_alibi_of_few_digits_is_made_of_more(dtype):
    alibi, wanted = AlibiPositionalBias(3), AlibiPositionalBias(3)(1, 5)
    assert_close(alibi.to(dtype)(1, 5), wanted, tolerance=0)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('sizes', [(32, 128), (8, 20), (6, 6)])
@pytest.mark.parametrize(('i', 'j'), [(1, 1), (1, 7), (7, 7), (3, 150)])
def test_t5_bias(i, j, sizes, causal):
    buckets = dict(num_buckets=sizes[0], max_distance=sizes[1], causal=causal)
    module = randomised(RelativePositionBias(scale=2.5, heads=3, **buckets))
    assert_same(module, lambda: module(i, j), lambda w: oracles.t5_bias(w, *places(i, j), 2.5, **buckets))


@pytest.mark.parametrize('scale', [None, 1.0, -0.5])
def test_the_scale_of_the_t5_bias(scale):
    sizes = dict(dim=7, depth=1, heads=4, attn_dim_head=9, ff_mult=1, rel_pos_bias=True, rel_pos_num_buckets=6)
    net = randomised(Encoder(**sizes, rel_pos_bias_scale=scale))
    buckets = dict(num_buckets=6, max_distance=128)
    weights = {'relative_attention_bias.weight': net.rel_pos.relative_attention_bias.weight}
    bias = oracles.t5_bias(weights, *places(5, 5), 3.0 if scale is None else scale, causal=False, **buckets)
    plain = Encoder(**{**sizes, 'rel_pos_bias': False, 'rel_pos_num_buckets': 32}).double()
    plain.load_state_dict({name: t for name, t in net.state_dict().items() if 'rel_pos' not in name})
    x = randn(2, 5, 7)
    assert_close(net(x), plain(x, attn_bias=bias))
    with pytest.raises(ValueError, match='`rel_pos_bias_scale` and `rel_pos_kwargs` both give the `scale`'):
        Encoder(**sizes, rel_pos_bias_scale=1.0, rel_pos_kwargs=dict(scale=2.0))


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize('farthest', [32, 128])
def test_t5_goes_on_past_the_trained_length_if_its_last_bucket_was_seen(seed, farthest):
    torch.manual_seed(seed)
    task, longer = (latest(n, marked=0.25) for n in (32, 128))
    flags = dict(rel_pos_bias=True, rel_pos_num_buckets=16 if farthest == 32 else 32, rel_pos_max_distance=farthest)
    net = net_for(task, Decoder, around=dict(use_abs_pos_emb=False), **flags)
    assert learned(net, task, steps=300, lr=1e-2) >= 0.97
    score = right(net, longer)
    assert score >= 0.95 if farthest == 32 else score <= 0.75


@pytest.mark.parametrize('causal', [False, True])
def test_t5_uses_its_buckets(causal):
    """All of them if causal; both ways, none for the distance 0 to the right."""
    module = RelativePositionBias(scale=1.0, causal=causal, heads=1)
    used = set(module.bucket(torch.arange(-200 * (not causal), 201)).tolist())
    assert used == {*range(32)} - (set() if causal else {16})
    bias = randomised(module)(9, 9)[0]
    assert all(bias.diagonal(at).unique().numel() == 1 for at in range(-8, 9))  # a Toeplitz matrix


@pytest.mark.parametrize('log_distance', [False, True])
@pytest.mark.parametrize(('depth', 'norm'), [(1, False), (2, True), (3, True), (3, False)])
@pytest.mark.parametrize(('i', 'j'), [(1, 1), (7, 7), (1, 7), (3, 5)])
def test_dynamic_bias(i, j, depth, norm, log_distance):
    module = randomised(DynamicPositionBias(6, heads=3, depth=depth, log_distance=log_distance, norm=norm))
    # the logarithm of a distance may be taken in float32
    tolerance = TABLE if log_distance else None
    assert_same(
        module,
        lambda: module(i, j),
        lambda w: oracles.dynamic_bias(w, *places(i, j), log_distance),
        tolerance=tolerance,
    )


# in a stack

STACK = dict(dim=7, depth=2, heads=4, attn_dim_head=8, ff_mult=1)
FUSED = {
    'rotary': dict(rotary_pos_emb=True),
    'rotary_partial': dict(rotary_pos_emb=True, rotary_emb_dim=6, attn_kv_heads=2),
    'rotary_odd': dict(rotary_pos_emb=True, rotary_emb_dim=5, rotary_base_rescale_factor=2.0),
    'rotary_odd_half': dict(rotary_pos_emb=True, attn_dim_head=6),
    'rotary_two_features': dict(rotary_pos_emb=True, rotary_emb_dim=2),
    'rotary_whole_head': dict(rotary_pos_emb=True, rotary_emb_dim=8, attn_qk_norm=True, attn_num_mem_kv=2),
    'rotary_interpolated': dict(rotary_pos_emb=True, rotary_interpolation_factor=2.5),
    'rotary_rescaled': dict(rotary_pos_emb=True, rotary_base_rescale_factor=3.0),
    'rotary_xpos': dict(rotary_xpos=True, rotary_xpos_scale_base=20),
    'alibi': dict(alibi_pos_bias=True, attn_num_mem_kv=1),
    'alibi_some_heads': dict(alibi_pos_bias=True, alibi_num_heads=2, attn_kv_heads=2),
    'alibi_and_rotary': dict(alibi_pos_bias=True, rotary_pos_emb=True),
}
EAGER = {
    't5': dict(rel_pos_bias=True, rel_pos_num_buckets=6, rel_pos_max_distance=7, attn_num_mem_kv=1),
    't5_and_rotary': dict(rel_pos_bias=True, rotary_pos_emb=True),
    'dynamic': dict(dynamic_pos_bias=True, dynamic_pos_bias_log_distance=True, attn_kv_heads=2),
    'dynamic_deep': dict(dynamic_pos_bias=True, dynamic_pos_bias_mlp_depth=3, dynamic_pos_bias_norm=True),
}
SCHEMES = {**FUSED, **EAGER}
# the logarithm of a distance and the exponents of xpos may be taken in float32
TOLERANCES = {'dynamic': 1e-5, 'rotary_xpos': 1e-6}
KERNELS = [(name, flash) for name in SCHEMES for flash in ((False, None, True) if name in FUSED else (False, None))]


def stack_calls():
    pos = torch.tensor([[5, 0, 2, 9, 1], [0, 1, 2, 3, 4]])
    mems = [randn(2, 3, 7, seed=5), randn(2, 3, 7, seed=6)]
    calls = {
        'plain': {},
        'mask': dict(mask=bools(2, 5, seed=4)),
        'left padding': dict(seq_start_pos=torch.tensor([2, 0])),
        'memories': dict(mems=mems, mask=bools(2, 5, seed=4), mem_masks=[bools(2, 3), bools(2, 3, seed=1)]),
        'pos': dict(pos=pos[0]),
        'pos of each row': dict(pos=pos, mask=bools(2, 5, seed=4)),
    }
    return calls.values()


def agree(kind, flags, call, *inputs, tolerance=None):
    net = randomised(kind(**flags))
    flags = {**flags, 'causal': kind is Decoder}
    if kind is CrossAttender:
        flags |= dict(cross_attend=True, only_cross=True)
    assert_same(
        net,
        lambda *t: net(*t, **call),
        lambda w, *t: oracles.stack(w, *t, **flags, **call),
        *inputs,
        tolerance=tolerance,
    )


# xpos is for causal stacks
IN_STACKS = [(*at, kind) for at in KERNELS for kind in (Encoder, Decoder) if at[0] != 'rotary_xpos' or kind is Decoder]


@pytest.mark.parametrize(('name', 'flash', 'kind'), every_third(IN_STACKS))
def test_stack(name, flash, kind):
    for call in stack_calls():
        agree(
            kind, {**STACK, **SCHEMES[name], 'attn_flash': flash}, call, randn(2, 5, 7), tolerance=TOLERANCES.get(name)
        )


@pytest.mark.parametrize(('name', 'flash'), every_third(KERNELS))
def test_stack_on_one_token(name, flash):
    agree(Decoder, {**STACK, **SCHEMES[name], 'attn_flash': flash}, {}, randn(1, 1, 7))


@pytest.mark.parametrize('flags', [dict(attn_num_mem_kv=2), dict(cross_attend=True)])
def test_xpos_beside_keys_without_a_scale_does_not_reveal_the_length(flags):
    """Learned keys, and a context with its own positions, do not share the middle of the sequence."""
    net = randomised(Decoder(**STACK, rotary_xpos=True, rotary_xpos_scale_base=4, **flags), 0)
    x = randn(2, 9, 7)
    call = dict(context=randn(2, 3, 7), context_pos=torch.tensor([2, 5, 6])) if 'cross_attend' in flags else {}
    assert_close(net(x[:, :4], **call), net(x, **call)[:, :4])


def test_xpos_refuses_lengths_that_overflow():
    net = Decoder(dim=8, depth=1, heads=2, attn_dim_head=4, rotary_xpos=True, rotary_xpos_scale_base=1, verbose=False)
    with pytest.raises(ValueError, match='`rotary_xpos` overflows past 70 positions, raise `rotary_xpos_scale_base`'):
        net(torch.randn(1, 71, 8))
    x = torch.randn(1, 5, 8)
    for dtype, most in ((torch.float32, 70), (torch.float16, 6)):
        net.to(dtype)
        apart = torch.tensor([0, 1, 2, 3, most])
        assert net(x.to(dtype), pos=apart + 10**6).isfinite().all()
        with pytest.raises(
            ValueError, match=f'`rotary_xpos` overflows at positions more than {most} from the first one'
        ):
            net(x.to(dtype), pos=apart + torch.tensor([0, 0, 0, 0, 1]))
        hidden = dict(pos=apart + torch.tensor([0, 0, 0, 0, 99]), mask=torch.arange(5)[None] < 4)
        assert net(x.to(dtype), **hidden)[:, :4].isfinite().all()
    with pytest.raises(ValueError, match='`rotary_xpos` overflows past 6 positions in float16'):
        net(torch.randn(1, 7, 8).half())
    with torch.autocast('cpu', torch.float16), pytest.raises(ValueError, match='past 6 positions in float16'):
        net.float()(torch.randn(1, 7, 8))
    with pytest.raises(ValueError, match='`rotary_xpos` overflows at positions more than 35840 from the first one, or'):
        RotaryEmbedding(4, use_xpos=True)(torch.tensor([0, 100_000]))


@pytest.mark.parametrize(
    ('name', 'flash', 'context_pos'),
    crossed(
        ['rotary', 'rotary_partial', 'rotary_xpos'],
        [False, True, None],
        [None, ((3, 8, 1),), ((3, 8, 1), (0, 1, 2))],
    ),
)
def test_context_is_rotated_by_its_own_positions(context_pos, name, flash):
    flags = {**STACK, **SCHEMES[name], 'cross_attend': True, 'attn_flash': flash, 'cross_attn_dim_context': 6}
    call = {} if context_pos is None else dict(context_pos=torch.tensor(context_pos).squeeze(0))
    agree(Decoder, flags, call, randn(2, 5, 7), randn(2, 3, 6), tolerance=TOLERANCES.get(name))


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(rotary_pos_emb=True, rotary_emb_dim=10), 'rotary_emb_dim'),
        (dict(rotary_pos_emb=True, rotary_interpolation_factor=0.5), 'interpolation_factor'),
        (dict(rotary_xpos=True), 'rotary_xpos'),
        (dict(rel_pos_bias=True, alibi_pos_bias=True), 'rel_pos_bias.*alibi_pos_bias|alibi_pos_bias.*rel_pos_bias'),
        (
            dict(rel_pos_bias=True, dynamic_pos_bias=True),
            'rel_pos_bias.*dynamic_pos_bias|dynamic_pos_bias.*rel_pos_bias',
        ),
        (dict(alibi_pos_bias=True, alibi_num_heads=5), 'alibi_num_heads'),
        (dict(dynamic_pos_bias=True, dynamic_pos_bias_mlp_depth=0), 'dynamic_pos_bias_mlp_depth'),
    ],
)
def test_refusals(flags, words):
    with pytest.raises(ValueError, match=words):
        Encoder(dim=8, depth=1, heads=4, attn_dim_head=8, **flags)


def test_state_dict_names():
    names = {
        'rotary': {'rotary_pos_emb.inv_freq': (2,)},
        'rotary_xpos': {'rotary_pos_emb.inv_freq': (2,), 'rotary_pos_emb.scale': (2,)},
        'alibi': {},
        't5': {'rel_pos.relative_attention_bias.weight': (6, 4)},
        'dynamic': {
            **{'rel_pos.mlp.0.0.weight': (1, 1), 'rel_pos.mlp.0.0.bias': (1,), 'rel_pos.mlp.1.0.weight': (1, 1)},
            **{'rel_pos.mlp.1.0.bias': (1,), 'rel_pos.mlp.2.weight': (4, 1), 'rel_pos.mlp.2.bias': (4,)},
        },
    }
    plain = Decoder(**STACK).state_dict().keys()
    for name, wanted in names.items():
        flags = {key: value for key, value in SCHEMES[name].items() if not key.startswith('attn_')}
        state = Decoder(**STACK, **flags).state_dict()
        assert {key: tuple(t.shape) for key, t in state.items() if key not in plain} == wanted


def test_absolute_positions_are_off_where_a_scheme_replaces_them():
    for name, off in (('rotary', True), ('t5', True), ('alibi', False), ('dynamic', False)):
        assert Decoder(**STACK, **SCHEMES[name]).disable_abs_pos_emb == off
        assert Decoder(**STACK, **SCHEMES[name], disable_abs_pos_emb=not off).disable_abs_pos_emb != off


def test_an_offset_moves_the_keys_in_the_cache_too():
    """What depends on the place of a token itself shows it: the values turn as well."""
    flags = dict(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, attn_rotate_values=True, verbose=False)
    stack, x = randomised(Decoder(**flags)), randn(1, 4, 16)
    wanted = stack(x, seq_pos_offset=7)[:, 3:]
    _, cache = stack(x[:, :3], return_hiddens=True)
    assert_close(stack(x[:, 3:], cache=cache, seq_pos_offset=10, input_not_include_cache=True), wanted)
    assert (wanted - stack(x)[:, 3:]).abs().max() > 1e-3


def test_keys_that_were_turned_meet_angles_of_the_user():
    """The cache gives back keys as they were."""
    flags = dict(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, verbose=False)
    stack, x = randomised(Decoder(**flags)), randn(1, 4, 16)
    own = stack.rotary_pos_emb(torch.arange(4) * 3)
    _, cache = stack(x[:, :3], return_hiddens=True)
    wanted = stack(x, rotary_pos_emb=own)[:, 3:]
    assert_close(stack(x[:, 3:], cache=cache, rotary_pos_emb=own, input_not_include_cache=True), wanted)


@pytest.mark.parametrize('flags', [dict(attn_max_attend_past=2), dict(attn_use_rel_proj_pos_bias=True)], ids=str)
def test_positions_of_the_user_change_no_order(flags):
    """They move what distances read; windows, and distances that no flag of positions makes, count tokens."""
    net, x = randomised(Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **flags)), randn(2, 7, 16)
    assert_close(net(x, pos=3 * torch.arange(7)), net(x))


@pytest.mark.parametrize('in_blocks', [False, True])
@pytest.mark.parametrize('kind', [Decoder, Encoder])
@pytest.mark.parametrize('flag', ['alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias'])
def test_positions_of_each_head(flag, kind, in_blocks, monkeypatch):
    """Each head counts by itself; as a bias that is given."""
    sizes = dict(dim=16, depth=2, heads=4, attn_dim_head=8)
    stack, bare = randomised(kind(**sizes, **{flag: True})).double(), kind(**sizes).double().eval()
    bare.load_state_dict({name: t for name, t in stack.state_dict().items() if not name.startswith('rel_pos')})
    x, pos = randn(2, 6, 16), torch.randint(0, 30, (2, 4, 6), generator=torch.Generator().manual_seed(0))
    bias = torch.stack([torch.stack([stack.rel_pos.at(p, p)[h] for h, p in enumerate(row)]) for row in pos])
    wanted = bare(x, attn_bias=bias)
    if in_blocks:
        monkeypatch.setattr(rows, 'LARGE', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(rows, 'BLOCK', {'cpu': 2, 'cuda': 2})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 2)
    assert_close(stack(x, pos=pos), wanted)
    assert not torch.allclose(stack(x, pos=pos), stack(x, pos=pos[:, 0]))


def test_positions_of_each_head_are_for_a_bias_of_distances():
    pos = torch.arange(6).expand(2, 4, 6)
    with pytest.raises(ValueError, match='`pos` got positions per head'):
        Decoder(dim=16, depth=1, heads=4, rotary_pos_emb=True)(torch.randn(2, 6, 16), pos=pos)
    with pytest.raises(ValueError, match='`pos` got positions for 3 heads, there are 4'):
        Decoder(dim=16, depth=1, heads=4, alibi_pos_bias=True)(torch.randn(2, 6, 16), pos=pos[:, :3])
