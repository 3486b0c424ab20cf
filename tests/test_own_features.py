"""Features of the user's own: how they are listed, what their values mean per layer, and when they act."""

import inspect
from typing import ClassVar

import pytest
import torch
from law_cases import randomise
from oracles import assert_close

from x_transformers import Attention, Decoder, TransformerWrapper, XTransformer
from x_transformers.features import (
    ATTENTION,
    FEEDFORWARD,
    STACK,
    AttentionFeature,
    ModelFeature,
    PerLayer,
    StackFeature,
    extend,
    flag,
)
from x_transformers.features.positions import Rotary
from x_transformers.features.scores import SoftclampLogits
from x_transformers.flags import Check, ConfigError

SIZES = dict(dim=16, heads=2, attn_dim_head=8, verbose=False)


class Louder(AttentionFeature):
    """The output times a number."""

    louder = flag(1.0, 'by how much', example=2.0)

    def result(self, out, call):
        return out * self.louder


class Shifted(StackFeature):
    shifted = flag(0.0, 'by how much', example=2.0)

    def open(self, x, call):
        return x + self.shifted


class Sized(AttentionFeature):
    """Keeps a pair, checked or not."""

    pair = flag((4, 4), 'two sizes')
    checked = flag(None, 'two sizes', Check('a pair', lambda v: isinstance(v, tuple) and len(v) == 2))
    plain_number = flag(1, 'one size', Check('a number', lambda v: isinstance(v, int)))
    switches = ('pair', 'checked', 'plain_number')

    @classmethod
    def is_on(cls, values):
        return True


def seeded(build=Decoder, **options):
    torch.manual_seed(0)
    return randomise(build(**{**SIZES, 'depth': 2, **options}).double()).eval()


def stream(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# lists


@pytest.mark.parametrize('features', [(Louder,), [Louder], (Louder, Shifted), extend(ATTENTION, Louder)], ids=str)
def test_features_of_ones_own_are_added(features):
    net = seeded(features=features, louder=2.0, rotary_pos_emb=True, attn_qk_norm=True, ff_glu=True)
    plain = seeded(features=(*ATTENTION, Louder), louder=2.0, rotary_pos_emb=True, attn_qk_norm=True, ff_glu=True)
    other = seeded(rotary_pos_emb=True, attn_qk_norm=True, ff_glu=True)
    x = stream(2, 5, 16)
    assert torch.equal(net(x), plain(x)) and not torch.allclose(net(x), other(x))
    assert [type(f) for f in net.layers[0][1].features.active] == [type(f) for f in plain.layers[0][1].features.active]


def test_a_list_of_the_librarys_features_takes_their_place():
    attn = Attention(16, heads=2, features=(SoftclampLogits, Louder), louder=2.0)
    assert [type(f) for f in attn.features.active] == [Louder]
    message = (
        r'unknown keyword `attn_qk_norm` of Attention: `features` leaves out QKNorm, write `features=extend\(...\)`'
    )
    with pytest.raises(ConfigError, match=message):
        Decoder(**SIZES, depth=1, features=(SoftclampLogits, Louder), attn_qk_norm=True)
    net = Decoder(**SIZES, depth=1, features=(SoftclampLogits, Louder), rotary_pos_emb=True)
    message = 'got an unexpected input `rotary_pos_emb`: `features` leaves out Rotary, which reads it, see `extend`'
    with pytest.raises(TypeError, match=message):
        net(torch.randn(1, 3, 16))


def test_places():
    assert extend(ATTENTION, Louder) == (*ATTENTION, Louder)
    at = ATTENTION.index(SoftclampLogits)
    before, after = (extend(ATTENTION, Louder, **{name: SoftclampLogits}) for name in ('before', 'after'))
    assert before == (*ATTENTION[:at], Louder, *ATTENTION[at:])
    assert after == (*ATTENTION[: at + 1], Louder, *ATTENTION[at + 1 :])
    assert extend(STACK, Shifted) == (*STACK, Shifted) and extend(FEEDFORWARD) == FEEDFORWARD

    class Turned(Rotary):
        """Rotary positions, in its own way."""

    at = ATTENTION.index(Rotary)
    assert extend(ATTENTION, Turned) == (*ATTENTION[:at], Turned, *ATTENTION[at + 1 :])
    net = seeded(features=(Turned,), rotary_pos_emb=True)
    assert net.layers[0][1].features.find(Turned) and type(net.layers[0][1].features.find(Rotary)) is Turned


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda: extend(ATTENTION, Shifted), 'Shifted is a feature of another level than SeparateInputs'),
        (lambda: extend(ATTENTION, 3), r'`features` got \(3,\), it must be a tuple of Feature classes'),
        (
            lambda: extend(ATTENTION, Louder, before=Shifted),
            '`before` got .*Shifted.*, which is no feature of this level',
        ),
        (lambda: extend(ATTENTION, Louder, after=Louder), '`after` got .*Louder.*, which is no feature of this level'),
        (lambda: extend(ATTENTION, Louder, before=Rotary, after=Rotary), '`before` and `after` were both given'),
    ],
)
def test_places_that_there_are_not(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_features_of_both_sides():
    sizes = dict(num_tokens=7, max_seq_len=8, depth=1, heads=2, attn_dim_head=8)
    sides = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}

    def built(**options):
        torch.manual_seed(0)
        return randomise(XTransformer(dim=16, **sides, **options).double())

    class Brighter(ModelFeature):
        brighter = flag(1.0, 'by how much')

        def logits(self, logits, call):
            return logits * self.brighter

    src, tgt = torch.randint(0, 7, (2, 5)), torch.randint(0, 7, (2, 5))
    plain, quiet = built(), built(enc_features=(Louder,), dec_features=(Brighter,))
    assert_close(quiet(src, tgt), plain(src, tgt))
    for options in (dict(enc_louder=2.0), dict(enc_attn_louder=2.0)):
        net = built(enc_features=(Louder,), **options)
        assert [f.louder for m in net.modules() if isinstance(m, Attention) for f in m.features.active
                if isinstance(f, Louder)] == [2.0]  # fmt: skip
        assert not torch.allclose(net(src, tgt), plain(src, tgt))
    net = built(dec_features=(Brighter,), dec_brighter=3.0)
    assert not torch.allclose(net(src, tgt), plain(src, tgt))
    with pytest.raises(ConfigError, match='unknown keyword `enc_louder` of XTransformer'):
        built(dec_features=(Louder,), enc_louder=2.0)


# one value per layer


def values_of(depth, name, **options):
    net = Decoder(**SIZES, depth=depth, features=(Sized,), **options)
    return [getattr(layer[1].features.find(Sized), name) for layer in net.layers if layer.kind == 'a']


@pytest.mark.parametrize('depth', [1, 2, 3])
def test_what_a_tuple_means_does_not_depend_on_the_depth(depth):
    for name in ('pair', 'checked'):
        assert values_of(depth, name, **{name: (8, 8)}) == [(8, 8)] * depth
        each = [(at, at) for at in range(depth)]
        assert values_of(depth, name, **{f'attn_{name}': PerLayer(*each)}) == each
    assert values_of(depth, 'plain_number', plain_number=tuple(range(depth))) == [*range(depth)]
    assert values_of(depth, 'plain_number', plain_number=PerLayer(*range(depth))) == [*range(depth)]
    for given in (tuple(range(depth + 1)), PerLayer(*range(depth + 1))):
        message = f'`attn_plain_number` got {depth + 1} values, it must have one, or one per layer, {depth}'
        with pytest.raises(ConfigError, match=message):
            values_of(depth, 'plain_number', plain_number=given)


def test_one_value_per_layer_of_the_library():
    net = Decoder(**SIZES, depth=2, attn_qk_norm=PerLayer(True, False), ff_mult=PerLayer(2, 3), cross_attend=True)
    attn = [layer[1] for layer in net.layers]
    assert [a.qk_norm for a in attn if isinstance(a, Attention)] == [True, False, False, False]
    assert [layer[1].dim_inner for layer in net.layers if layer.kind == 'f'] == [32, 48]
    again = Decoder.from_config(net.config)
    assert again.state_dict().keys() == net.state_dict().keys() and again.config == net.config
    assert repr(PerLayer(1, (2, 3))) == 'PerLayer(1, (2, 3))' and len({PerLayer(1), PerLayer(1)}) == 1
    message = r'`qk_norm` got PerLayer\(True,\): only a stack shares values out, to its branches'
    with pytest.raises(ConfigError, match=message):
        Attention(16, qk_norm=PerLayer(True))
    with pytest.raises(ConfigError, match=r'`use_rmsnorm` got PerLayer\(True, False\): only a stack'):
        Decoder(**SIZES, depth=2, use_rmsnorm=PerLayer(True, False))


# waiting


def adding(name, sign=1):
    return lambda self, x, call: x + sign * call.inputs[name]


class Tilted(StackFeature):
    """The stream plus an input."""

    takes: ClassVar = {'tilt': 'b n d'}
    waits = True
    open, close = adding('tilt'), adding('tilt', -1)


class Painted(ModelFeature):
    """Embeddings plus an input."""

    takes: ClassVar = {'paint': 'b n d'}
    waits = True
    embedded, shorten = adding('paint'), adding('paint', -1)


def test_features_of_stacks_and_models_wait():
    stack, plain = seeded(features=(Tilted,)), seeded()
    x, tilt = stream(2, 5, 16), stream(2, 5, 16)
    assert torch.equal(stack(x), plain(x)) and torch.equal(stack(x, tilt=None), plain(x))
    assert not torch.allclose(stack(x, tilt=tilt), plain(x))
    net = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=stack, features=(Painted,)).double().eval()
    ids = torch.randint(0, 7, (2, 5))
    bare = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=plain).double().eval()
    bare.load_state_dict(net.state_dict())
    assert torch.equal(net(ids), bare(ids)) and torch.equal(net(ids, paint=None), bare(ids))
    assert not torch.allclose(net(ids, paint=stream(2, 5, 16)), bare(ids))
    assert_close(net(ids, paint=torch.zeros(2, 5, 16)), bare(ids))


# words


def test_a_feature_without_a_docstring_has_none():
    assert not Shifted.__doc__ and not inspect.getdoc(Shifted)
    net = Decoder(**SIZES, depth=1, features=(Shifted, Louder), shifted=2.0, louder=2.0)
    lines = [line.strip() for line in net.explain().splitlines()]
    assert 'open         Shifted (shifted=2.0)' in lines
    assert any(line.endswith('Louder (louder=2.0): The output times a number.') for line in lines)


# scores of a feature without flags


class Halved(AttentionFeature):
    """Scores count half."""

    def scores(self, sim, call):
        return sim / 2


@pytest.mark.parametrize('flash', [None, False])
def test_a_feature_without_flags_acts_on_scores(flash):
    halved, plain = (seeded(features=features, attn_flash=flash) for features in ((Halved,), None))
    x = stream(1, 4, 16)
    for layer in plain.layers:
        if layer.kind == 'a':
            layer[1].to_q.weight.data /= 2
    assert_close(halved(x), plain(x))
    with pytest.raises(ConfigError, match='`attn_flash=True` does not go with `Halved`: the fused kernel forms no'):
        seeded(features=(Halved,), attn_flash=True)


# more query heads than heads


class Doubled(AttentionFeature):
    """Two query heads of each head, the difference of their weights."""

    def widths(self, widths):
        widths.query_heads *= 2
        widths.key_heads *= 2
        return widths

    def mix(self, attn, call):
        first, second = attn.chunk(2, dim=1)
        return first - second / 2


@pytest.mark.parametrize(
    ('flags', 'name'),
    [
        (dict(attn_talking_heads=True), 'attn_talking_heads'),
        (dict(attn_pre_talking_heads=True), 'attn_pre_talking_heads'),
        (dict(attn_head_learned_sink=True), 'attn_head_learned_sink'),
        (dict(attn_use_cope=True, attn_cope_max_pos=4), 'attn_use_cope'),
        (dict(alibi_pos_bias=True), 'alibi_pos_bias'),
        (dict(rel_pos_bias=True), 'rel_pos_bias'),
    ],
)
def test_what_counts_heads_is_refused_by_name_beside_more_query_heads(flags, name):
    with pytest.raises(ConfigError, match=f'`{name}` does not go with 4 query heads of 2 heads'):
        Decoder(**SIZES, depth=1, features=(Doubled,), **flags)


@pytest.mark.parametrize('flags', [{}, dict(attn_head_scale=True), dict(rotary_pos_emb=True), dict(attn_kv_heads=1)])
def test_more_query_heads(flags):
    net = seeded(features=(Doubled,), **flags)
    out = net(stream(2, 5, 16))
    assert out.shape == (2, 5, 16) and out.isfinite().all()
    assert net.layers[0][1].to_q.weight.shape == (32, 16)
