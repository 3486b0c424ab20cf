"""Features of the user's own: how they are listed, what their values mean per layer, and when they act."""

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from building import vectors
from law_cases import randomise
from oracles import assert_close

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValTransformerWrapper,
    features,
)
from x_transformers.attend import SoftclampLogits
from x_transformers.core import rows
from x_transformers.features import (
    ATTENTION,
    FEEDFORWARD,
    KINDS,
    STACK,
    AttentionFeature,
    FeedForwardFeature,
    Input,
    Kind,
    ModelFeature,
    PerLayer,
    RecurrentState,
    Ring,
    StackFeature,
    extend,
    flag,
)
from x_transformers.features.rotary import Rotary
from x_transformers.flags import Check, ConfigError

SIZES = dict(dim=16, heads=2, attn_dim_head=8, verbose=False)


class Louder(AttentionFeature):
    """The output times a number."""

    louder = flag(1.0, 'by how much', example=2.0)

    def layer_output(self, out, call):
        return out * self.louder


class Shifted(StackFeature):
    shifted = flag(0.0, 'by how much', example=2.0)

    def stack_input(self, x, call):
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


# lists


@pytest.mark.parametrize('features', [(Louder,), [Louder], (Louder, Shifted), extend(ATTENTION, Louder)], ids=str)
def test_features_of_ones_own_are_added(features):
    net = seeded(features=features, louder=2.0, rotary_pos_emb=True, attn_qk_norm=True, ff_glu=True)
    plain = seeded(features=(*ATTENTION, Louder), louder=2.0, rotary_pos_emb=True, attn_qk_norm=True, ff_glu=True)
    other = seeded(rotary_pos_emb=True, attn_qk_norm=True, ff_glu=True)
    x = vectors(2, 5, 16)
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
        (lambda: extend(ATTENTION, Shifted), 'Shifted must be a feature of the level of SeparateInputs'),
        (lambda: extend(ATTENTION, 3), r'`features` must be a tuple of Feature classes, got \(3,\)'),
        (
            lambda: extend(ATTENTION, Louder, before=Shifted),
            '`before` must be a feature of this level, got .*Shifted',
        ),
        (lambda: extend(ATTENTION, Louder, after=Louder), '`after` must be a feature of this level, got .*Louder'),
        (lambda: extend(ATTENTION, Louder, before=Rotary, after=Rotary), '`before` cannot be combined with `after`'),
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
        message = f'`attn_plain_number` must have one value, or one for each of {depth} layers, got {depth + 1}'
        with pytest.raises(ConfigError, match=message):
            values_of(depth, 'plain_number', plain_number=given)


def test_values_of_cross_attention_alone():
    """Without self-attention `attn_` counts the layers that there are."""
    net = CrossAttender(**SIZES, depth=2, attn_qk_norm=(True, False))
    assert [layer[1].qk_norm for layer in net.layers if layer.kind == 'c'] == [True, False]
    with pytest.raises(ConfigError, match='`attn_qk_norm` must have one value, or one for each of 2 layers, got 1'):
        CrossAttender(**SIZES, depth=2, attn_qk_norm=(True,))


def test_one_value_per_layer_of_the_library():
    net = Decoder(**SIZES, depth=2, attn_qk_norm=PerLayer(True, False), ff_mult=PerLayer(2, 3), cross_attend=True)
    attn = [layer[1] for layer in net.layers]
    assert [a.qk_norm for a in attn if isinstance(a, Attention)] == [True, False, False, False]
    assert [layer[1].dim_inner for layer in net.layers if layer.kind == 'f'] == [32, 48]
    again = Decoder.from_config(net.config)
    assert again.state_dict().keys() == net.state_dict().keys() and again.config == net.config
    assert repr(PerLayer(1, (2, 3))) == 'PerLayer(1, (2, 3))' and len({PerLayer(1), PerLayer(1)}) == 1
    message = r'`qk_norm` must have one value here, got PerLayer\(True,\): only a stack'
    with pytest.raises(ConfigError, match=message):
        Attention(16, qk_norm=PerLayer(True))
    with pytest.raises(ConfigError, match=r'`use_rmsnorm` must have one value here, got PerLayer'):
        Decoder(**SIZES, depth=2, use_rmsnorm=PerLayer(True, False))


# waiting


def adding(name, sign=1):
    return lambda self, x, call: x + sign * call.inputs[name]


class Tilted(StackFeature):
    """The stream plus an input."""

    call_inputs: ClassVar = {'tilt': Input('b n d')}
    stack_input, stack_output = adding('tilt'), adding('tilt', -1)


class Painted(ModelFeature):
    """Embeddings plus an input."""

    call_inputs: ClassVar = {'paint': Input('b n d')}
    embedded, strip_prefix = adding('paint'), adding('paint', -1)


def test_features_of_stacks_and_models_wait():
    stack, plain = seeded(features=(Tilted,)), seeded()
    x, tilt = vectors(2, 5, 16), vectors(2, 5, 16)
    assert torch.equal(stack(x), plain(x)) and torch.equal(stack(x, tilt=None), plain(x))
    assert not torch.allclose(stack(x, tilt=tilt), plain(x))
    net = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=stack, features=(Painted,)).double().eval()
    ids = torch.randint(0, 7, (2, 5))
    bare = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=plain).double().eval()
    bare.load_state_dict(net.state_dict())
    assert torch.equal(net(ids), bare(ids)) and torch.equal(net(ids, paint=None), bare(ids))
    assert not torch.allclose(net(ids, paint=vectors(2, 5, 16)), bare(ids))
    assert_close(net(ids, paint=torch.zeros(2, 5, 16)), bare(ids))


# notes


class Leaning(AttentionFeature):
    """Scores plus the mean of their query. What it noted of all queries, each block cuts for itself."""

    row_wise = True

    def pre_attention(self, qkv, call):
        call.ctx(self).queries = qkv[0]
        return qkv

    def masked_scores(self, sim, call):
        own = call.ctx(self)
        own.queries = call.cut_rows(own.queries)
        return sim + own.queries.mean(dim=-1, keepdim=True) * sim.isfinite()

    def weights(self, attn, call):
        return attn * (1 + call.ctx(self).queries[..., :1].tanh())


class LeaningTwice(Leaning):
    def weights(self, attn, call):
        return super().weights(super().weights(attn, call), call)


class Overheard(AttentionFeature):
    """Notes under the same name, and reads what another has left."""

    def pre_attention(self, qkv, call):
        call.ctx(self).queries = 3 * qkv[0]
        return qkv

    def post_attention(self, out, call):
        other = getattr(call.ctx(Leaning), 'queries', torch.zeros(()))
        return out + call.ctx(self).queries * other


class Average(StackFeature):
    """Branches read the mean of the stream so far."""

    def stack_input(self, x, call):
        call.ctx(self).seen = []
        return x

    def branch_input(self, x, layer, call):
        seen = call.ctx(self).seen
        seen.append(x)
        return sum(seen) / len(seen)


@pytest.mark.parametrize('height', [1, 3])
def test_blocks_have_notes_of_their_own(monkeypatch, height):
    module, x = attention((Leaning,)), vectors(2, 7, 16)
    whole = module(x)
    for name, value in dict(LARGE={'cuda': 0}, BLOCK={'cuda': 1}, FEWEST_ROWS=height).items():
        monkeypatch.setattr(rows, name, value)
    assert_close(module(x), whole)


def test_notes_are_of_one_feature():
    x = vectors(2, 7, 16)
    alone, silent, both, heir = (
        attention(features) for features in ((Leaning,), (Overheard,), (Leaning, Overheard), (LeaningTwice, Overheard))
    )
    plain = attention(())
    assert_close(silent(x), plain(x))
    assert not torch.allclose(heir(x), both(x))
    q = plain.to_q(x).unflatten(-1, (2, 8)).transpose(1, 2)
    assert_close(both(x) - alone(x), plain.to_out((3 * q * q).transpose(1, 2).flatten(2)))
    twice = attention((LeaningTwice,))
    assert_close(heir(x) - twice(x), both(x) - alone(x))


def attention(features):
    return seeded(lambda dim, heads, **_: Attention(dim, heads=heads, dim_head=8, features=features or None))


def test_what_runs_again_has_notes_as_they_were():
    x = vectors(2, 5, 16).requires_grad_()
    nets = [seeded(features=(Average,), checkpoint_layers=again).train() for again in (False, True)]
    found = [torch.autograd.grad(net(x).square().sum(), (x, *net.parameters())) for net in nets]
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


# what is kept of a segment


def compressed(mems, hiddens, most=4):
    """The last hidden states as they are, and in front of them those before, two at a time."""
    kept = []
    for old, new in zip(mems or [None] * len(hiddens), hiddens, strict=True):
        rows = [*([] if old is None else old.unbind(dim=1)), *new.unbind(dim=1)]
        while len(rows) > most:
            rows = [(one + other) / 2 for one, other in zip(rows[:-2:2], rows[1:-2:2], strict=False)] + rows[-2:]
        kept.append(torch.stack(rows, dim=1))
    return kept


class Compressed(ModelFeature):
    """Memories of earlier segments, compressed to the mean of pairs."""

    compressed = flag(False, 'older memories are means of pairs')

    def update_memories(self, mems, hiddens, call):
        return compressed(mems, hiddens)


def test_compressed_memories():
    def model(**flags):
        torch.manual_seed(0)
        stack = Decoder(**SIZES, depth=2, rel_pos_bias=True)
        sizes = dict(num_tokens=7, max_seq_len=3, max_mem_len=4, attn_layers=stack)
        return randomise(TransformerWrapper(**sizes, features=(Compressed,), **flags).double()).eval()

    net, plain = model(compressed=True), model()
    ids, mems, wanted = torch.arange(12)[None] % 7, None, None
    losses = []
    for start in (0, 3, 6, 9):
        segment = ids[:, start : start + 3]
        logits, mems = net(segment, mems=mems, return_mems=True)
        by_hand, trace = plain(segment, mems=wanted, return_intermediates=True)
        wanted = compressed(wanted, trace.hiddens)
        assert_close(logits, by_hand)
        assert [mem.shape[1] for mem in mems] == [3, 4, 4, 4][start // 3 : start // 3 + 1] * 2
        for mem, other in zip(mems, wanted, strict=True):
            assert_close(mem, other)
        targets = ids[:, start + 1 : start + 4]
        losses.append(torch.nn.functional.cross_entropy(by_hand[0, : targets.shape[1]], targets[0], reduction='sum'))
    wrapper = XLAutoregressiveWrapper(net)
    assert_close(wrapper(ids), sum(losses) / 11)
    assert not torch.allclose(wrapper(ids), XLAutoregressiveWrapper(plain)(ids))
    known, mems = ids[:, :5], None
    for _ in range(3):  # greedily, each token from the segments before it
        for start in range(0, known.shape[1] - (known.shape[1] - 1) % 3 - 1, 3):
            mems = net(known[:, start : start + 3], mems=mems, return_mems=True)[1]
        begun = (known.shape[1] - 1) // 3 * 3
        known, mems = torch.cat((known, net(known[:, begun:], mems=mems)[:, -1:].argmax(dim=-1)), dim=1), None
    assert wrapper.generate(ids[:, :5], 3, temperature=0.0).tolist() == known[:, 5:].tolist()


# steps of the optimiser


class Averaged(FeedForwardFeature):
    """Keeps a moving average of its outputs' size."""

    averaged = flag(False, 'keep an average')

    def setup(self, owner):
        self.seen, self.steps = [], []

    def on_step_end(self, progress):
        assert not torch.is_grad_enabled()
        self.steps.append(progress)


class Warmed(AttentionFeature):
    """An output that comes in slowly."""

    warmed = flag(False, 'begin without attention')

    def setup(self, owner):
        self.share = torch.zeros(())

    def layer_output(self, out, call):
        return out * self.share

    def on_step_end(self, progress):
        self.share.fill_(progress)


def test_features_hear_of_steps():
    net = Decoder(**SIZES, depth=2, checkpoint_layers=True, features=(Averaged, Warmed), averaged=True, warmed=True)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=net)).double()
    steps = [layer[1].features.find(Averaged).steps for layer in net.layers if layer.kind == 'f']
    ids = torch.arange(6)[None]
    model(ids).backward()
    assert steps == [[], []]  # a pass is none, computed twice or not
    before = model(ids).item()
    for progress in (0.5, 1):
        model.on_step_end(progress)
    assert steps == [[0.5, 1], [0.5, 1]] and model(ids).item() != before
    assert all(layer[1].share == 1 for layer in net.layers if layer.kind == 'a')
    for wrong, error in ((1.5, ValueError), (-1, ValueError), ('half', TypeError), (float('nan'), ValueError)):
        with pytest.raises(error, match=r'`progress`.* got'):
            model.on_step_end(wrong)


# attributes of the owner


class Scaled(AttentionFeature):
    scaled = flag(0.0, 'the factor of logits', example=0.5)
    sets_on_module = ('logit_scale',)

    def setup(self, owner):
        owner.logit_scale = self.scaled


def test_two_features_do_not_settle_one_attribute():
    assert seeded(features=(Scaled,), scaled=0.5).layers[0][1].logit_scale == 0.5
    with pytest.raises(ConfigError, match='`attn_qk_norm` and `attn_scaled` both settle `logit_scale`, set only one'):
        seeded(attn_qk_norm=True, features=(Scaled,), scaled=0.5)


@pytest.mark.parametrize('room', sorted((Path(rows.__file__).parent.parent / 'features').glob('*.py')), ids=str)
def test_attributes_of_owners_are_declared(room):
    tree = ast.parse(room.read_text(encoding='utf-8'))
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        written = {
            node.attr
            for node in ast.walk(kind)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in ('owner', 'self.owner')
        }  # fmt: skip
        module = importlib.import_module(f'x_transformers.features.{room.stem}')
        written -= {'layer_types', 'layers_execute_order', 'norm_changes', 'residual_options'}  # for all to change
        assert written <= set(getattr(getattr(module, kind.name), 'sets_on_module', ())), kind.name


# words


def test_a_feature_without_a_docstring_has_none():
    assert not Shifted.__doc__ and not inspect.getdoc(Shifted)
    net = Decoder(**SIZES, depth=1, features=(Shifted, Louder), shifted=2.0, louder=2.0)
    lines = [line.strip() for line in net.explain().splitlines()]
    assert 'stack_input  Shifted (shifted=2.0)' in lines
    assert any(line.endswith('Louder (louder=2.0): The output times a number.') for line in lines)


# scores of a feature without flags


class Halved(AttentionFeature):
    """Scores count half."""

    def scores(self, sim, call):
        return sim / 2


@pytest.mark.parametrize('flash', [None, False])
def test_a_feature_without_flags_acts_on_scores(flash):
    halved, plain = (seeded(features=features, attn_flash=flash) for features in ((Halved,), None))
    x = vectors(1, 4, 16)
    for layer in plain.layers:
        if layer.kind == 'a':
            layer[1].to_q.weight.data /= 2
    assert_close(halved(x), plain(x))
    with pytest.raises(
        ConfigError, match='`attn_flash=True` cannot be combined with `Halved`: the fused kernel forms no'
    ):
        seeded(features=(Halved,), attn_flash=True)


# more query heads than heads


class Doubled(AttentionFeature):
    """Two query heads of each head, the difference of their weights."""

    def resolve_sizes(self, widths):
        widths.query_heads *= 2
        widths.key_heads *= 2
        return widths

    def mixed_weights(self, attn, call):
        first, second = attn.chunk(2, dim=1)
        return first - second / 2


@pytest.mark.parametrize(
    ('flags', 'name'),
    [
        (dict(attn_talking_heads=True), 'attn_talking_heads'),
        (dict(attn_post_talking_heads=True), 'attn_post_talking_heads'),
    ],
)
def test_what_counts_heads_is_refused_by_name_beside_more_query_heads(flags, name):
    with pytest.raises(ConfigError, match=f'`{name}` cannot be combined with 4 query heads of 2 heads'):
        Decoder(**SIZES, depth=1, features=(Doubled,), **flags)


def test_numbers_per_head_of_a_stack_are_refused_beside_more_query_heads():
    class PerHead(StackFeature):
        per_head = True
        numbers = flag(False, 'numbers for each head')

    with pytest.raises(ConfigError, match='`numbers` cannot be combined with 4 query heads of 2 heads'):
        Decoder(**SIZES, depth=1, features=(Doubled, PerHead), numbers=True)
    Decoder(**SIZES, depth=1, features=(PerHead,), numbers=True)


SCORES = [dict(attn_pre_talking_heads=True), dict(attn_head_learned_sink=True), dict(attn_use_cope=True)]
SCORES += [dict(alibi_pos_bias=True), dict(rel_pos_bias=True), dict(attn_data_dependent_alibi=True)]
OTHERS = [{}, dict(attn_head_scale=True), dict(rotary_pos_emb=True), dict(attn_kv_heads=1), *SCORES]


@pytest.mark.parametrize('flags', [*OTHERS, dict(attn_talking_heads=True), dict(attn_post_talking_heads=True)], ids=str)
def test_more_query_heads(flags):
    features = extend(ATTENTION, Doubled, before=SoftclampLogits) if flags in OTHERS else (Doubled, *ATTENTION)
    net = seeded(features=features, **flags)
    out = net(vectors(2, 5, 16))
    assert out.shape == (2, 5, 16) and out.isfinite().all()
    assert net.layers[0][1].to_q.weight.shape == (32, 16)


# a feedforward at run time


class Parts(FeedForwardFeature):
    """A few tokens at a time."""

    tokens_at_once = flag(None, 'how many', Check('a number', lambda v: v is None or v > 0), example=2)

    def run(self, x, call):
        return torch.cat([self.owner.ff(part) for part in x.split(self.tokens_at_once, dim=-2)], dim=-2)


class Told(FeedForwardFeature):
    """Keeps what it is told, and adds an input."""

    call_inputs: ClassVar = {'boost': Input('to b n d')}
    always = True
    calls: ClassVar = []

    def ff_input(self, x, call):
        self.calls.append(call)
        return x + call.inputs['boost'] if 'boost' in call.inputs else x

    def layer_output(self, out, call):
        call.add_loss('size', call.zero_padding(out).square().mean())
        return out * 2


@pytest.mark.parametrize(
    'flags', [{}, dict(ff_glu=True, ff_sublayer_dropout=0.5, macaron=True), dict(use_layerscale=True)]
)
def test_a_feedforward_in_parts(flags):
    plain, parts = seeded(**flags), seeded(features=(Parts,), tokens_at_once=2, **flags)
    x = vectors(2, 5, 16)
    assert_close(parts(x), plain(x))
    inner, seen = next(m for m in parts.modules() if isinstance(m, FeedForward)), []
    inner.ff.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[1]))
    parts(x)
    assert seen == [2, 2, 1]


@pytest.mark.parametrize('flags', [{}, dict(use_layerscale=True, shift_tokens=1)])
def test_what_a_feedforward_is_told(flags):
    Told.calls.clear()
    net, x, real = seeded(features=(Told,), **flags), vectors(2, 5, 16), torch.arange(5) < torch.tensor([[5], [3]])
    net(x)
    assert [(call.layer, call.kind, call.mask) for call in Told.calls] == [(1, 'f', None), (3, 'f', None)]
    Told.calls.clear()
    whole, trace = net(x, mask=real, return_hiddens=True)
    assert all(torch.equal(call.mask, real) for call in Told.calls) and not trace.aux_losses
    Told.calls.clear()
    _, cache = net(x[:, :3], mask=real[:, :3], return_hiddens=True)
    new, _ = net(x, mask=real, cache=cache, return_hiddens=True)
    assert torch.equal(Told.calls[-1].mask, real[:, 3:])
    assert_close(new[0], whole[0, 3:])
    trace = net.train()(x, mask=real, return_hiddens=True)[1]
    assert trace.aux_losses.keys() == {'size'}


def test_inputs_of_a_feedforward():
    Told.calls.clear()
    x, ff, plain = vectors(2, 5, 16), FeedForward(16, features=(Told,)).double(), FeedForward(16).double()
    plain.load_state_dict(ff.state_dict())
    boost, scale = vectors(1, 1, 16), vectors(2, 5, 1)
    assert_close(ff(x, boost=boost), plain(x + boost) * 2)
    assert_close(ff(x, scale), plain(x) * scale * 2)
    for given, words in (
        (dict(bost=boost), 'unexpected input `bost`, did you mean `boost`'),
        (dict(deep=1), 'unexpected'),
    ):
        with pytest.raises(TypeError, match=words):
            ff(x, **given)
    with pytest.raises(ValueError, match=r'`mask` must have shape \(2, 5\), True for real tokens, got \(5, 2\)'):
        ff(x, mask=torch.ones(5, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r'`deep_embed` must broadcast to \(2, 5, 16\), got shape \(3, 5, 16\)'):
        ff(x, deep_embed=torch.ones(3, 5, 16, dtype=torch.float64))


# what is returned


class Answered(ModelFeature):
    """Return how many memories there are beside the output."""

    answered = flag(False, 'say it')

    def model_output(self, out, x, call):
        assert x.shape[:2] == (2, 5)
        return out, len(call.intermediates.mems)


IDS = torch.arange(10).reshape(2, 5) % 7
ASKED = dict(max_seq_len=8, max_mem_len=4, features=(Answered,), answered=True)
NUMBERS = dict(num_tokens=7, numerical_token_id=6)


def streams_of(stack):
    return MultiInputTransformerWrapper(num_tokens=dict(a=7), attn_layers=stack, **ASKED)


READ = {
    'tokens': (lambda stack: TransformerWrapper(num_tokens=7, attn_layers=stack, **ASKED), (IDS,)),
    'vectors': (lambda stack: ContinuousTransformerWrapper(attn_layers=stack, **ASKED), (torch.ones(2, 5, 16),)),
    'numbers': (lambda stack: XValTransformerWrapper(attn_layers=stack, **NUMBERS, **ASKED), (IDS, IDS.float())),
    'streams': (
        streams_of,
        (dict(a=IDS),),
    ),
}


@pytest.mark.parametrize('name', READ)
def test_a_feature_answers_for_every_model(name):
    build, inputs = READ[name]
    (_, count), trace = build(Decoder(dim=16, depth=1, heads=2))(*inputs, return_mems=True, return_intermediates=True)
    assert count == len(trace.mems) == 1


def test_streams_with_an_answer_leave_no_logits_to_the_loss():
    assert not streams_of(Decoder(dim=16, depth=1, heads=2)).can_return_readout


def test_every_room_is_listed():
    named = [line.split()[0] for line in features.__doc__.splitlines()[2:] if line]
    room = Path(features.__file__).parent
    folders = [path.parent.name for path in room.glob('*/__init__.py')]
    assert sorted(named) == sorted([*folders, *(path.stem for path in room.glob('[a-z]*.py'))])


@pytest.mark.parametrize('kind', [AttentionFeature, FeedForwardFeature, StackFeature, ModelFeature])
def test_help_lists_every_stage(kind):
    """In running order, with what it takes; on the way out it says so."""
    lines = [line.split() for line in kind.__doc__.splitlines()]
    found = {words[0]: words[1] for words in lines if len(words) > 2 and words[0] in kind.stages}
    assert found == kind.stages and list(found) == list(kind.stages)
    assert ('ring out' in kind.__doc__) == (kind in (AttentionFeature, StackFeature, ModelFeature))
    assert '{' not in kind.__doc__


@pytest.mark.parametrize(
    ('level', 'body', 'message'),
    [
        (AttentionFeature, {'layer_output': lambda self, out: out},
         r'`layer_output\(self, out\)`, which its stage calls as \(value, call\) -> value, b i d'),
        (AttentionFeature, {'qkv_heads': lambda self, q, k, v, call: (q, k, v)},
         r'`qkv_heads\(self, q, k, v, call\)`, which its stage calls as \(\(q, k, v\), call\) -> \(q, k, v\)'),
        (AttentionFeature, {'masked_scores': lambda self, sim, call, *, scale: sim},
        r'`masked_scores\(self, sim, call, \*, scale\)`'),
        (AttentionFeature, {'layer_output': staticmethod(lambda out: out)}, r'`layer_output\(out\)`, which'),
        (FeedForwardFeature, {'run': lambda self, x: x}, r'`run\(self, x\)`, .* calls as \(x, call\) -> out'),
        (StackFeature, {'norm': lambda self, dim: dim}, r'`norm\(self, dim\)`, .* calls as \(\) -> Module'),
        (ModelFeature, {'embed': lambda self: None}, r'`embed\(self\)`, which its stage calls as \(call\) -> b n e'),
    ],
)  # fmt: skip
def test_methods_that_do_not_fit_their_stage(level, body, message):
    with pytest.raises(TypeError, match=f'Mine has {message}'):
        type('Mine', (level,), body)
    with pytest.raises(TypeError, match='Mine has'):
        type('Mine', (type('Mixin', (), body), level), {})


@pytest.mark.parametrize(
    ('level', 'body'),
    [
        (
            AttentionFeature,
            {'layer_output': lambda self, *both: both[0], 'qkv_heads': lambda self, qkv, call, more=1: qkv},
        ),
        (AttentionFeature, {'layer_output': staticmethod(lambda out, call: out), 'masked_scores': None}),
        (AttentionFeature, {'normalizer': classmethod(lambda cls, logits, call: logits.softmax(dim=-1))}),
        (StackFeature, {'residual': lambda self, dim, **sizes: None}),
    ],
)
def test_methods_that_fit_their_stage(level, body):
    assert type('Mine', (level,), body).runs_at() == tuple(name for name in level.stages if body.get(name))


# on disk


@pytest.mark.parametrize('features', [(Louder,), (Louder, Shifted), extend(ATTENTION, Louder)], ids=len)
def test_a_config_names_the_classes(features):
    model = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=seeded(features=features, louder=2.0)).double()
    text = json.dumps(model.config)
    twin = TransformerWrapper.from_config(text).double()
    twin.load_state_dict(model.state_dict())
    ids = torch.arange(8)[None]
    assert '"test_own_features:Louder"' in text and json.dumps(twin.config) == text
    assert twin.attn_layers.given_features == features and torch.equal(twin.eval()(ids), model.eval()(ids))
    for name, advice in (
        ('antigravity:Louder', ', import `antigravity` first'),
        ('QKNorn', ', did you mean `QKNorm`?'),
        (3, ''),
    ):
        message = re.escape(f'`features` names {str(name)!r}, which is not defined{advice}')
        with pytest.raises(ConfigError, match=f'{message}$'):
            TransformerWrapper.from_config(text.replace('"test_own_features:Louder"', json.dumps(name)))
    assert 'antigravity' not in sys.modules


# what layers add, and what they read beside the stream


class AtOnce(StackFeature):
    """All layers read the same stream, what they add is summed. Nothing is learned from what they read beside it."""

    at_once = flag(False, 'layers side by side')

    def execute_layers(self, run, x, call):
        on, own = (
            self.owner.features.active_for(call.inputs),
            call.replace_side_inputs([t.detach() for t in call.side_inputs()]),
        )
        total = x
        for own.step, index in enumerate(call.order):
            total = total + self.owner.layers[index].branch(x, own, on)
        return total


def test_layers_side_by_side():
    flags = dict(cross_attend=True, rel_pos_bias=True, pre_norm_has_final_norm=False)
    net, plain = seeded(features=(AtOnce,), at_once=True, **flags), seeded(**flags)
    x, context, mask = (
        vectors(2, 5, 16),
        vectors(2, 3, 16).requires_grad_(),
        torch.tensor([[True] * 5, [True] * 4 + [False]]),
    )
    wanted = x
    for layer in plain.layers:
        (norm, *_), branch, _ = layer
        own = {'a': dict(rel_pos=plain.rel_pos, mask=mask), 'c': dict(context=context, mask=mask), 'f': {}}[layer.kind]
        wanted = wanted + branch(norm(x), **own)
    out = net(x, context=context, mask=mask)
    assert_close(out[mask], wanted[mask])
    out.sum().backward()
    assert context.grad is None and net.rel_pos.relative_attention_bias.weight.grad is None
    assert net.layers[0][1].to_q.weight.grad.any()
    with pytest.raises(ValueError, match=r'`tensors` must .*got 0'):

        class Wrong(AtOnce):
            """Gives nothing."""

            def execute_layers(self, run, x, call):
                return run(x, call.replace_side_inputs([]), range(2))

        seeded(features=(Wrong,), at_once=True, **flags)(x, context=context)


# layers for some tokens


class EverySecond(StackFeature):
    """Later layers change every second token."""

    every_second = flag('', "how: 'some' computes these alone, 'all' computes all and takes these")

    def execute_layers(self, run, x, call):
        steps = range(len(call.order))
        half, places = len(steps) // 2, torch.arange(call.past_len, call.past_len + x.shape[1]) % 2 == 0
        second = places.expand(x.shape[0], -1)
        x = run(x, call, steps[:half])
        if self.every_second == 'some':
            return run(x, call.of_tokens(second), steps[half:])
        for step in steps[half:]:
            x = torch.where(second.unsqueeze(-1), run(x, call, (step,)), x)
        return x


FLAGS = (
    dict(rotary_pos_emb=True, cross_attend=True, context_pos=True),
    dict(rotary_pos_emb=True, cross_attend=True, use_adaptive_layernorm=True, dim_condition=4),
    dict(alibi_pos_bias=True, add_value_residual=True, reinject_input=True, pre_norm=False),
    dict(rel_pos_bias=True, gate_residual=True, attn_talking_heads=True),
)


@pytest.mark.parametrize('flags', FLAGS, ids=lambda flags: ' '.join(flags))
def test_layers_for_some_tokens(flags):
    """Conditions per token, masks, contexts, biases and residuals of keys follow; tokens that stay are still read."""
    own = {name: value for name, value in flags.items() if name != 'context_pos'}
    some, whole = (seeded(features=(EverySecond,), every_second=how, depth=4, **own) for how in ('some', 'all'))
    mask, scores = torch.arange(7) < torch.tensor([[7], [5]]), vectors(4, 2, 7, 7)[1]
    inputs = dict(mask=mask, attn_bias=scores, attn_mask=scores > -1)
    inputs |= dict(context=vectors(2, 3, 16), context_mask=mask[:, 4:]) if 'cross_attend' in flags else {}
    inputs |= dict(context_pos=torch.arange(3)) if 'context_pos' in flags else {}
    inputs |= dict(condition=vectors(2, 7, 4)) if 'dim_condition' in flags else {}
    inputs |= dict(self_attn_kv_residuals=vectors(4, 2, 7, 16)) if 'rel_pos_bias' in flags else {}
    x = vectors(2, 7, 16).requires_grad_()
    found = [torch.autograd.grad(net(x, **inputs)[mask].sin().sum(), [x, *net.parameters()]) for net in (some, whole)]
    assert_close(some(x, **inputs)[mask], whole(x, **inputs)[mask])
    for grad, other in zip(*found, strict=True):
        assert_close(grad, other, 'gradient')


def test_some_tokens_with_a_cache():
    net = seeded(features=(EverySecond,), every_second='some', depth=4, rotary_pos_emb=True)
    x, (_, trace) = vectors(2, 7, 16), net(vectors(2, 7, 16)[:, :3], return_hiddens=True)
    for place in range(3, 7):
        out, trace = net(x[:, : place + 1], cache=trace, return_hiddens=True)
        assert_close(out, net(x)[:, place : place + 1])


@pytest.mark.parametrize(
    ('index', 'message'),
    [
        (torch.tensor([0, 1]), r'`index` must be whole numbers \(b k\), .*got torch.int64 of shape \(2,\)'),
        (torch.ones(2, 3, dtype=torch.bool), r'`index` must be whole numbers .*got torch.bool of shape \(2, 3\)'),
        (torch.tensor([[0], [5]]), '`index` must '),
        ([0, 1], r'`index` must be a tensor, got \[0, 1\]'),
    ],
)
def test_tokens_that_there_are_not(index, message):
    class Wrong(EverySecond):
        """Names wrong tokens."""

        def execute_layers(self, run, x, call):
            return run(x, call.of_tokens(index), range(2))

    with pytest.raises((ValueError, TypeError), match=message):
        seeded(features=(Wrong,), every_second='some')(vectors(2, 5, 16))
    with pytest.raises(
        ValueError, match='`shift_tokens` cannot be combined with `of_tokens`: each branch input contains'
    ):
        seeded(features=(EverySecond,), every_second='some', shift_tokens=1)(vectors(2, 5, 16))


def test_kinds_that_read_other_tokens(monkeypatch):
    monkeypatch.setitem(KINDS, 'mix', Kind(lambda stack, index: torch.nn.AvgPool1d(3, 1, 1)))
    net = seeded(
        Encoder, features=(EverySecond,), every_second='some', depth=None, custom_layers=('a', 'f', 'a', 'mix')
    )
    with pytest.raises(
        ValueError, match="layers of kind 'mix' cannot be combined with `of_tokens`: they read all tokens"
    ):
        net(vectors(2, 5, 16))


class SumOfAttended(AttentionFeature):
    """The sum of all tokens so far, beside what attention gives."""

    of_attended = flag(False, 'add the sum of all tokens so far')
    states: ClassVar = {'sums': RecurrentState()}

    def layer_output(self, out, call):
        sums = call.x.cumsum(dim=1) + (0 if call.state('sums').value is None else call.state('sums').value)
        call.state('sums').keep(sums[:, -1:])
        return out + sums


class LastOfFed(FeedForwardFeature):
    """The sum of the last tokens, in the feedforward."""

    of_fed = flag(False, 'add the token before')
    states: ClassVar = {'last': Ring(1)}

    def ff_input(self, x, call):
        return x + torch.nn.functional.pad(call.state('last').append(x), (0, 0, 1, 0))[:, -x.shape[1] - 1 : -1]


@pytest.mark.parametrize(('flags', 'name'), [({'attn_of_attended': True}, 'sums'), ({'ff_of_fed': True}, 'last')])
def test_states_of_earlier_tokens_speak_for_themselves(flags, name, monkeypatch):
    """Beside documents, and layers for some tokens: unless a feature says that tokens do not meet in it."""
    ids = torch.tensor([[0, 0, 1, 1]])
    own = dict(features=(SumOfAttended, LastOfFed, EverySecond), **flags)
    words = f'`{next(iter(flags))}`: it keeps `{name}` of the tokens before'
    with pytest.raises(ValueError, match=f'`document_ids` cannot be combined with {words}'):
        seeded(**own)(vectors(1, 4, 16), document_ids=ids)
    with pytest.raises(ValueError, match=f'`of_(attended|fed)` cannot be combined with `of_tokens`: it keeps `{name}`'):
        seeded(**own, every_second='some')(vectors(1, 4, 16))
    for kind in (SumOfAttended, LastOfFed):
        monkeypatch.setattr(kind, 'refuses', {'documents': '', 'some tokens': ''})
    seeded(**own, every_second='some')(vectors(1, 4, 16))
    seeded(**own)(vectors(1, 4, 16), document_ids=ids)


def test_a_tensor_is_saved_if_it_is_a_buffer_or_has_a_name_in_checkpoints():
    class Tables(AttentionFeature):
        tables = flag(False, 'keep some tensors')
        stored_as: ClassVar = {'named': 'table'}

        def setup(self, owner):
            self.named, self.bare = torch.ones(1), torch.ones(1)
            self.saved, self.passing = torch.nn.Buffer(torch.ones(1)), torch.nn.Buffer(torch.ones(1), persistent=False)
            self.saved = torch.zeros(1)  # still one that is saved

    net = Attention(16, features=(Tables,), tables=True)
    assert {'table', 'saved'} == {name for name, _ in net.named_buffers()} & net.state_dict().keys()
    assert {'bare', 'passing'} < {name for name, _ in net.named_buffers()} and not net.saved.any()


@pytest.mark.parametrize('name, hint', [('causal', ': `setup` can check'), ('qk_nrm', ', did you mean `qk_norm`')])
@pytest.mark.parametrize('table', ['needs', 'clashes'])
def test_what_a_feature_needs_must_be_a_flag(table, name, hint):
    kind = type('Strict', (Louder,), {'__module__': __name__, table: {name: 'so it is'}})
    message = f'`{table}` of Strict names `{name}`, which no feature of Attention declares{hint}'
    with pytest.raises(ConfigError, match=message):
        Attention(16, features=extend(ATTENTION, kind), louder=2.0)


def test_layers_that_a_feature_runs_one_by_one_find_their_own_past():
    class OneByOne(StackFeature):
        one_by_one = flag(False, 'run layers by what they add')

        def execute_layers(self, run, x, call):
            for step, index in enumerate(call.order):
                call.step = step
                x = x + self.owner.layers[index].branch(x, call, self.owner.features)
            return x

    class Sums(AttentionFeature):
        sums = flag(False, 'add the sum of all tokens')
        states: ClassVar = {'sums': RecurrentState()}

        def layer_output(self, out, call):
            state = call.state('sums')
            sums = call.x.cumsum(dim=1) + (0 if state.value is None else state.value)
            state.keep(sums[:, -1:])
            return out + sums

    net, x = seeded(features=(OneByOne, Sums), one_by_one=True, attn_sums=True), vectors(2, 7, 16)
    plain = seeded(features=(Sums,), attn_sums=True)
    assert_close(net(x), plain(x))
    _, past = net(x[:, :5], return_hiddens=True)
    assert_close(net(x[:, 5:], cache=past, input_not_include_cache=True), plain(x)[:, 5:])
