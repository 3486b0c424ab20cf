"""What wrappers make of padding: its content never matters, wherever it stands, a padded row is the row alone, and
where nothing is real there is nothing to learn. Wrappers and their inputs are those of `test_wrapper_laws`.
"""

import copy
import math
import re
from dataclasses import replace

import pytest
import test_wrapper_laws
import torch
import torch.nn.functional as F
from law_cases import BY_NAME, CASES, Case, inputs_for, model_of, padded, rows, run, tokens
from oracles import assert_close, randomised
from sweeps import is_late, nightly
from test_wrapper_laws import ROWS_MEET, SIZES, SUBJECTS, VARIATIONAL, VOCAB, N, made
from torch.utils._pytree import tree_leaves, tree_map
from training_laws import ids_of, net_of, seeded

from x_transformers import (
    DPO,
    AutoregressiveWrapper,
    BertPretrainWrapper,
    Classifier,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    MLMWrapper,
    PrefixDecoder,
    TransformerWrapper,
)
from x_transformers.core.nets import counts_tokens
from x_transformers.gpt_vae import GPTVAE

PADS = 2
# calls that hand further inputs on
CALLS = {
    'hidden tokens': lambda model, x, **inputs: model(x % (VOCAB - 1), **inputs).loss,
    'candidates': lambda model, **inputs: model(repulsive_loss_weight=0.1, **inputs),
}
# wrappers whose padding is not told by `mask`, `lens` or `seq_start_pos`
UNTOLD = {
    **dict.fromkeys((name for name in SUBJECTS if name.startswith('segments')), 'segments would have to be cut'),
    'prefixes': 'see test_prefix_loss',
    'among words': 'images take places: see test_vision_language',
    'two kinds': 'each has a mask: see test_diffusion',
    **dict.fromkeys(('conformer', 'speech', 'frames', 'heard'), 'tokens are fewer than frames: see test_speech'),
    **dict.fromkeys(('arrays', 'arrays, asked'), 'a mask of all axes: see test_perceiver'),
    'two resolutions': 'only its text has a mask: see test_muse',
    **dict.fromkeys(('text and image', 'text to image'), 'only the text has a mask: see test_text_to_image'),
    'videos': 'all frames are read',
    'spans': 'what is hidden is drawn from the data: see test_span_corruption',
    'encoded': 'a mask is that of the source: see test_applications',
    **dict.fromkeys(('free', 'variational', 'encodings'), '`pad_id` says what is padding'),
    'pretraining': 'it writes its own texts',
    'entropies': 'lengths have no gradient: see test_entropy_based_tokenizer',
    'points': 'the inputs have no order',
    'pixels': 'a head reads each token alone',
    'two streams': 'masks of both: see test_etc',
    **dict.fromkeys(('images', 'images, with a head'), 'an image is whole'),
}
TOLD = [name for name in SUBJECTS if name not in UNTOLD]
# by what they are told; the others by `mask` and `seq_start_pos`
WAYS = {
    **dict.fromkeys(
        ('language', 'early exits', 'early exits, drawn', 'streams', 'vectors'), ('mask', 'lens', 'seq_start_pos')
    ),
    'second readings': ('mask', 'lens'),
    'second readings, learned': ('mask', 'lens'),
    **dict.fromkeys(('beliefs', 'vectors, rolled out', 'autoencoder', 'autoencoder, variational'), ('lens',)),
    **dict.fromkeys(
        ('decisions', 'decisions, discrete', 'preferences', 'towers', 'bindings', 'in any order'), ('mask',)
    ),
    'in any order, by pieces': ('mask',),
}
ONLY_IN_FRONT = ('decisions', 'decisions, discrete')


def where(n):
    """Which tokens of two rows of n are real, by where their padding stands."""
    t = torch.arange(n)
    return {
        'right': torch.stack((t < n - PADS, t < n)),
        'left': torch.stack((t >= PADS, t >= 0)),
        'hole': torch.stack(((t < 2) | (t > 3), t != 1)),
        'a row': torch.stack((t < n, t < 0)),
        'all': torch.zeros(2, n, dtype=torch.bool),
    }


def told(way, real):
    """How a wrapper is told, or None if this way cannot say it."""
    places = {'lens': real.sum(dim=-1), 'seq_start_pos': (~real).sum(dim=-1)}
    at = torch.arange(real.shape[1])
    says = {'lens': at < places['lens'][:, None], 'seq_start_pos': at >= places['seq_start_pos'][:, None]}
    return {way: real} if way == 'mask' else {way: places[way]} if says[way].equal(real) else None


def asked(name):
    """A wrapper, and its loss of given inputs, or a sum of what it gives."""
    model, call = made(name)
    of = CALLS.get(name, SUBJECTS[name].call)
    return model, lambda inputs: seeded(lambda m: call(m, inputs, of), model)


def per_token(name):
    """The names of inputs with an entry for each token, and how many tokens there are."""
    inputs = SUBJECTS[name].inputs
    n = tree_leaves(inputs)[0].shape[1]
    return n, [key for key, value in inputs.items() if all(t.shape[1:2] == (n,) for t in tree_leaves(value))]


def other(t, real):
    """Other content of padding: NaN, or other ids."""
    real = real.view(*real.shape, *[1] * (t.ndim - 2))
    if t.is_floating_point():
        return t.masked_fill(~real, math.nan)
    return t if t.dtype == torch.bool else torch.where(real, t, (t + 1) % (int(t.max()) + 1))


def counted(found, real):
    """One number of a loss, or of what is given for real tokens."""
    return (found[real] if found.shape[:2] == real.shape else found).sum()


def gradients_of(model, loss):
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    return {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}


def content_law(name, place, way):
    """The content of padding changes neither loss nor gradients; nothing real gives 0 for both."""
    n, keys = per_token(name)
    real = where(n)[place]
    given = told(way, real)
    if given is None:
        return
    model, loss_of = asked(name)
    inputs = {**SUBJECTS[name].inputs, **given}
    others = {**inputs, **{key: tree_map(lambda t: other(t, real), inputs[key]) for key in keys}}
    if name in ONLY_IN_FRONT and place in ('right', 'hole'):
        with pytest.raises(ValueError, match='padded on the left'):
            loss_of(inputs)
        return
    found = [counted(loss_of(each), real) for each in (inputs, others)]
    assert_close(found[1], found[0], place, 1e-10)
    grads, same = (gradients_of(model, loss) for loss in found)
    for parameter, grad in grads.items():
        assert_close(same[parameter], grad, parameter, 1e-10)
    is_loss = loss_of(inputs).ndim == 0
    if place == 'all' and is_loss:
        assert found[0] == 0 and all(grad.eq(0).all() for grad in grads.values())


def is_quick(name):
    return not name.startswith('second readings')


PLACES = [*where(N)]
EVERY = [(name, place, way) for name in TOLD for way in WAYS.get(name, ('mask', 'seq_start_pos')) for place in PLACES
         if way == 'mask' or place in dict(lens=('right', 'all'), seq_start_pos=('left',))[way]]  # fmt: skip


@pytest.mark.parametrize(
    'name, place, way',
    [each if is_quick(each[0]) and not is_late(16, 'content', each) else nightly(*each) for each in EVERY],
)
def test_content_of_padding_never_matters(name, place, way):
    content_law(name, place, way)


@pytest.mark.parametrize('name', ['spans', 'pretraining', 'points', 'videos'])
def test_wrappers_that_are_told_nothing(name):
    """They refuse a mask; a wrapper that begins to take one joins those above."""
    assert name in UNTOLD
    model, call = made(name)
    with pytest.raises(TypeError, match=r'unexpected (keyword argument|input).*mask'):
        call(model, {**SUBJECTS[name].inputs, 'mask': torch.ones(2, N, dtype=torch.bool)})


# a padded row is the row alone


def one_sided(name, left, right):
    """The inputs of one row with padding around it."""
    _, keys = per_token(name)
    row = tree_map(lambda t: t[:1], SUBJECTS[name].inputs)

    def around(t):
        value = math.nan if t.is_floating_point() else 1
        return F.pad(t, (0, 0) * (t.ndim - 2) + (left, right), value=value)

    wide = {key: tree_map(around, value) if key in keys else value for key, value in row.items()}
    if name == 'fine-tuned, span':
        wide['labels'] = row['labels'] + left
    return row, wide


def alone_law(name, way, left, right):
    model, loss_of = asked(name)
    if name in ONLY_IN_FRONT:
        model.context_len += left
    row, wide = one_sided(name, left, right)
    n = per_token(name)[0]
    at = torch.arange(left + n + right)[None]
    real = (at >= left) & (at < left + n)
    found, wanted = loss_of({**wide, **told(way, real)}), loss_of(row)
    assert_close(counted(found, real), wanted.sum(), way, 1e-9)


# positions of a table, and distances to latents in front, count padding that a mask hides, but not if `seq_start_pos`
# tells of it
TABLES = ('candidates', 'streams', 'vectors', 'numbers', 'classes', 'fine-tuned', 'towers', 'passes', 'second readings')
SIDES = [
    (name, way, left, PADS - left)
    for name in TOLD
    if name not in ROWS_MEET
    for way in WAYS.get(name, ('mask', 'seq_start_pos'))
    for left in (0, PADS)
    if way == 'mask' or (way == 'lens') == (left == 0)
    if not (left == 0 and name in ONLY_IN_FRONT) and not (left and way == 'mask' and name.startswith(TABLES))
]


@pytest.mark.parametrize(
    'name, way, left, right',
    [each if is_quick(each[0]) and not is_late(12, 'alone', each) else nightly(*each) for each in SIDES],
)
def test_a_padded_row_is_the_row_alone(name, way, left, right):
    alone_law(name, way, left, right)


# numbers that follow how many tokens are real

DYNAMIC = dict(kind='dynamic', factor=4.0, length=4)
STRETCHED = dict(kind='longrope', length=7, short_factor=[1.0] * 2, long_factor=[3.0] * 2)
TURNED = dict(rotary_pos_emb=True, rotary_emb_dim=4)
COUNTING = (
    Case('dynamic', stack=dict(**TURNED, rotary_scaling=DYNAMIC)),
    Case('longrope', stack=dict(**TURNED, rotary_scaling=STRETCHED)),
    Case('layers of their own', stack=dict(**TURNED, rotary_layers=(True, dict(theta=50.0, scaling=DYNAMIC)))),
    Case('lsh, by length', stack=dict(attn_cluster='lsh', attn_cluster_size=2)),
    Case('routing, by length', stack=dict(attn_cluster='routing', attn_num_clusters=2)),
    Case('norm of a batch', stack=dict(conv_module=True, conv_causal=True, conv_kernel_size=3)),
    Case('dynamic, a prefix', stack=dict(**TURNED, rotary_scaling=DYNAMIC), kind=PrefixDecoder),
    *(BY_NAME[name] for name in ('attn_adaptive_span=dynamic', 'ff_moe_balance_loss', 'act_halting')),
)


def loss_of_case(case, **options):
    """The loss of a language model of a case, or None if it cannot be one."""
    try:
        model = AutoregressiveWrapper(copy.deepcopy(model_of(case)), **options)
    except ValueError as error:
        assert re.search('causal|every place|vocabulary|looped|normalised|see nothing', str(error)), error
        return None
    return lambda training, seed=0, **inputs: seeded(lambda m: m(**inputs), model.train(training), seed)


NO_LOSS = {
    'logits_dim=9': 'it cannot say its own tokens',
    'memory_tokens_interspersed_every': 'padding has memory tokens of its own, whose scores are part of the z-loss',
}


def lens_law(case, **options):
    """The loss of a row that is padded behind its end is that of the row, by each way to tell, with added losses."""
    loss = loss_of_case(case, **options)
    if loss is None or case.name in NO_LOSS:
        return
    net = model_of(case)
    inputs = inputs_for(net, case, batch=1)
    wide, n = padded(net, inputs, 0, 3), inputs['x'].shape[1]
    real = torch.arange(n + 3)[None] < n
    ignored = {**wide, 'x': wide['x'].masked_fill(~real, -100)}
    for training in (False, True):
        alone = loss(training, **inputs)
        if training and not torch.allclose(alone, loss(training, seed=1, **inputs)):
            continue  # what is drawn follows the length
        for given in ({**wide, 'lens': torch.tensor([n])}, {**wide, 'mask': real}, ignored):
            assert_close(loss(training, **given), alone, f'training={training}: {[*given]}', 1e-9)


@pytest.mark.parametrize('case', COUNTING, ids=str)
def test_a_loss_counts_what_is_real(case):
    assert loss_of_case(case) is not None
    lens_law(case)


@pytest.mark.nightly
@pytest.mark.parametrize('case', [case for case in CASES if case.wrapper is TransformerWrapper], ids=str)
@pytest.mark.parametrize('z_loss', [False, True])
def test_a_loss_counts_what_is_real_beside_any_flag(case, z_loss):
    try:
        lens_law(case, add_attn_z_loss=z_loss)
    except ValueError as error:
        assert z_loss and re.search('keeps no maps|z_loss|z-loss', str(error)), error


@pytest.mark.parametrize('case', [case if case.name == 'dynamic' else nightly(case) for case in COUNTING[:6]], ids=str)
def test_rows_of_unequal_lengths(case):
    """The loss of both rows is the mean of those of each alone, weighted by their numbers of targets."""
    loss = loss_of_case(case)
    x = inputs_for(model_of(case), case, batch=2, length=12)['x']
    for training in (False, True) if case.name != 'norm of a batch' else (False,):
        if training and case.name.startswith('lsh'):
            continue  # which draws
        whole = loss(training, x=x, lens=torch.tensor([7, 12])) * 17
        assert_close(loss(training, x=x[:1, :7]) * 6 + loss(training, x=x[1:]) * 11, whole, 'sum', 1e-9)


def scaled_nets(monkeypatch):
    """Let nets of the subjects turn by frequencies that follow the length."""

    def scaled(kind=Decoder, stack=None, **model):
        turned = dict(rotary_scaling=DYNAMIC) if (stack or {}).get('rotary_pos_emb', True) else {}
        return net_of(kind, {**(stack or {}), **turned}, **model)

    monkeypatch.setattr(test_wrapper_laws, 'net_of', scaled)


def turns(name):
    model = SUBJECTS[name].build()
    return any(getattr(module, 'rotary_pos_emb', None) is not None for module in model.modules())


@pytest.mark.parametrize('name', [name if name in ('language', 'beliefs') else nightly(name) for name in SUBJECTS])
def test_wrappers_tell_nets_that_count(name, monkeypatch):
    """By each way to tell, and by ids that are no targets."""
    if not turns(name) or name in ROWS_MEET or name.startswith('segments') or not SUBJECTS[name].inputs:
        return
    plain = asked(name)[1](one_sided(name, 0, 0)[0])
    scaled_nets(monkeypatch)
    counted = asked(name)[1](one_sided(name, 0, 0)[0])
    assert counted.shape != plain.shape or (counted - plain).abs().max() > 1e-6, 'it does not count'
    for way, left in {(way, left) for other, way, left, _ in SIDES if other == name}:
        alone_law(name, way, left, PADS - left)
    fills = SUBJECTS[name].fills or {}
    if name not in UNTOLD or fills:
        test_wrapper_laws.test_a_row_is_as_alone_and_padding_changes_nothing(name)


SCALED = [case for case in COUNTING if case.name in ('dynamic', 'longrope', 'layers of their own')]


@pytest.mark.parametrize('kind', [Decoder, nightly(Encoder), nightly(PrefixDecoder)])
@pytest.mark.parametrize('case', [SCALED[0], *map(nightly, SCALED[1:])], ids=str)
def test_documents_and_padded_rows_turn_as_alone(case, kind):
    """By a mask on either side or both, by where rows begin, and packed, with padding and without."""
    net = model_of(replace(case, kind=kind, model=dict(max_seq_len=0)))
    x = inputs_for(net, case, batch=1, length=14)['x']
    alone, short = net(x), net(x[:, :6])
    assert (alone[:, :6] - short).abs().max() > 1e-4 or kind is Encoder
    junk = x.flip(-1)
    for left, right in ((0, 5), (5, 0), (3, 4)):
        wide = torch.cat((junk[:, :left], x[:, :6], junk[:, :right]), dim=1)
        at = torch.arange(wide.shape[1])[None]
        found = net(wide, mask=(at >= left) & (at < left + 6))
        assert_close(found[:, left : left + 6], short, f'{left} and {right} hidden')
        if not right:
            assert_close(net(wide, seq_start_pos=torch.tensor([left]))[:, left:], short, 'seq_start_pos')
    if kind is not PrefixDecoder:
        packed = torch.cat((x[:, :6], x), dim=1)
        documents = torch.tensor([[0] * 6 + [1] * 14])
        found = net(packed, document_ids=documents)
        assert_close(found[:, :6], short, 'the first document')
        assert_close(found[:, 6:], alone, 'the second document')
        real = torch.tensor([[True] * 6 + [False] * 3 + [True] * 6])
        found = net(torch.cat((x[:, :6], junk[:, :3], x[:, :6]), dim=1), document_ids=documents[:, :15], mask=real)
        assert_close(found[:, :6], short, 'beside padding')
        assert_close(found[:, 9:], short, 'behind padding')


# no rows, and no tokens

NONE_OF = {'hidden tokens': 'it is told how many', 'two resolutions': 'the same', 'free': 'latents are told apart'}


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(
    'name',
    [name if name in ('language', 'vectors', 'classes, with their loss') else nightly(name) for name in SUBJECTS],
)
def test_a_batch_of_no_rows(name, training):
    """Its loss and the gradients are 0, what is given and generated has no rows."""
    subject = SUBJECTS[name]
    if not subject.inputs:
        return
    model, call = made(name)
    none = tree_map(lambda t: t[:0], subject.inputs)
    found = seeded(lambda m: call(m, none), model.train(training))
    assert (found == 0 if found.ndim == 0 else found.shape[0] == 0) and found.isfinite().all()
    if found.requires_grad:
        assert all(grad.eq(0).all() for grad in gradients_of(model, found.sum()).values())
    if subject.generate and name not in NONE_OF:
        drawn = seeded(lambda m: call(m, none, subject.generate), model)
        assert tree_leaves(drawn)[0].shape[0] == 0


@pytest.mark.parametrize(
    'case', [case if case.name in ('plain', 'attn_sparse_pattern') else nightly(case) for case in CASES], ids=str
)
def test_no_rows_beside_any_flag(case):
    net = copy.deepcopy(model_of(case))
    none = rows(inputs_for(net, case), torch.zeros(0, dtype=torch.long))
    for training in (False, True):
        out = run(net.train(training), none)
        assert out.shape[0] == 0
        assert all(grad.eq(0).all() for grad in gradients_of(net, out.sum()).values())
        assert run(net, none, mask=torch.ones(0, none['x'].shape[1], dtype=torch.bool)).shape[0] == 0


@pytest.mark.parametrize(
    'case',
    [case if case.name in ('plain', 'alibi_pos_bias', 'rel_pos_bias') else nightly(case) for case in CASES],
    ids=str,
)
def test_no_tokens_beside_any_flag(case):
    """They give no outputs, or are refused in words of the library."""
    if 'hybrid' in case.name:
        pytest.skip('the module of the test itself needs a token')
    net = copy.deepcopy(model_of(case))
    inputs = inputs_for(net, case)
    try:
        out = run(net, tokens(inputs, 0, 0))
        run(net, tokens(inputs, 0, 0), mask=torch.ones(len(inputs['x']), 0, dtype=torch.bool))
    except ValueError as error:
        assert re.search('at least|must|needs|got|before', str(error)), error
        return
    assert out.shape[0] == inputs['x'].shape[0] and out.isfinite().all()


# masks of every shape and kind

FORMS = {
    'numbers': lambda real: real.long(),
    'bytes': lambda real: real.to(torch.uint8),
    'one row for all': lambda real: real[:1],
    'an axis more': lambda real: real[:, None],
    'too long': lambda real: torch.cat((real, real[:, :1]), dim=1),
    'too many rows': lambda real: torch.cat((real, real[:1])),
    'one axis': lambda real: real[0],
    'weights': lambda real: real.float(),
    'a list': lambda real: real.tolist(),
    'an array': lambda real: real.numpy(),
}
KINDS_OF_MASK = {'numbers', 'bytes'}  # these are taken everywhere
DRAWN_BY_MASK = {'hidden tokens': 'how many are hidden is drawn by the mask'}


@pytest.mark.parametrize(
    'name',
    [name if name in ('language', 'vectors', 'classes, with their loss') else nightly(name)
     for name in TOLD if 'mask' in WAYS.get(name, ('mask',))],
)  # fmt: skip
def test_masks_of_any_kind(name):
    """They say the same as the boolean one of (b, n), or are refused by name; all true says the same as none."""
    n = per_token(name)[0]
    real = (torch.arange(n) < n - PADS).expand(2, -1)
    real = real.flip(-1) if name in ONLY_IN_FRONT else real
    _, loss_of = asked(name)
    ask = lambda mask: loss_of({**SUBJECTS[name].inputs, 'mask': mask})  # noqa: E731
    wanted = ask(real)
    if name not in DRAWN_BY_MASK:
        assert_close(ask(torch.ones_like(real)), ask(None), 'all true', 1e-9)
    for form, change in FORMS.items():
        try:
            found = ask(change(real))
        except (ValueError, TypeError) as error:
            assert 'mask' in str(error) and form not in KINDS_OF_MASK, f'{form}: {error}'
        else:
            assert form in (*KINDS_OF_MASK, 'one row for all'), f'{form} is taken'
            assert_close(found, wanted, form, 1e-9)


# ids that are padding

PAD = 0


def with_pads(x, left, right):
    return F.pad(x, (left, right), value=PAD)


TEXT = 1 + ids_of(2, N) % (VOCAB - 2)
BOTH = lambda **flags: net_of(Encoder, max_seq_len=20, **flags)  # noqa: E731
KNOWS_PADS = {
    **{f'classes, {token}': lambda token=token: Classifier(
        BOTH(return_only_embed=True), num_classes=3, token=token, pad_id=PAD) for token in ('first', 'last', 'mean')},
    'classes of a decoder': lambda: Classifier(net_of(return_only_embed=True), num_classes=3, pad_id=PAD),
    'hidden': lambda: MLMWrapper(BOTH(), mask_token_id=VOCAB - 1, pad_token_id=PAD, mask_prob=0.9),
    'sentences': lambda: BertPretrainWrapper(
        BOTH(), dict(mask_token_id=VOCAB - 1, pad_token_id=PAD, mask_prob=0.9), nsp=False),
}  # fmt: skip


@pytest.mark.parametrize('name', KNOWS_PADS)
@pytest.mark.parametrize('left, right', [(0, 3), (2, 0), (2, 1)])
def test_ids_of_padding_are_a_mask(name, left, right):
    """A wrapper that knows which ids are padding tells its model, as by a mask; classes are those of the row alone."""
    model = randomised(KNOWS_PADS[name](), scale=0.3)
    wide = with_pads(TEXT, left, right)
    found = seeded(lambda m: m(wide), model)
    assert_close(found, seeded(lambda m: m(wide, mask=wide != PAD), model), 'a mask')
    if name.startswith('classes'):
        assert_close(found, model(TEXT), 'alone')


@pytest.mark.parametrize('name', ['variational', 'preferences', 'encodings'])
def test_ids_of_padding_are_told_to_nets_that_count(name, monkeypatch):
    """The row alone, by an id of padding alone, where frequencies follow the length."""
    own = dict(rotary_pos_emb=True, rotary_scaling=DYNAMIC)
    if name == 'preferences':
        layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **own)
        net = TransformerWrapper(num_tokens=VOCAB, max_seq_len=0, attn_layers=layers)
        model = randomised(DPO(net, pad_id=PAD), scale=0.3)
        model.ref_model.load_state_dict(randomised(copy.deepcopy(net), seed=1, scale=0.3).state_dict())
        prompt = torch.arange(N).expand(2, -1) < 2
        loss = lambda left, right: model(  # noqa: E731
            with_pads(TEXT, left, right), with_pads(TEXT.flip(0), left, right),
            prompt_mask=F.pad(prompt, (left, right), value=False))  # fmt: skip
        assert_close(loss(0, 3), loss(0, 0), 'alone')
        return
    scaled_nets(monkeypatch)
    if name == 'encodings':
        test_wrapper_laws.test_a_row_is_as_alone_and_padding_changes_nothing(name)
        return
    model = randomised(GPTVAE(**SIZES, **VARIATIONAL, pad_id=-1, dec_kwargs=own), scale=0.3)
    wanted = seeded(lambda m: m(TEXT[:1]), model)
    assert_close(seeded(lambda m: m(F.pad(TEXT[:1], (0, 3), value=-1)), model), wanted, 'alone')


# single cases


def test_a_mask_of_another_length_is_refused():
    model, call = made('passes, linear')
    for shape in ((2, 2), (2, N + 1)):
        with pytest.raises(ValueError, match='`mask` must '):
            call(model, {**SUBJECTS['passes, linear'].inputs, 'mask': torch.ones(shape, dtype=torch.bool)})


def test_vectors_go_on_from_the_last_real_one():
    """A start with padding on the right gives what it gives alone; rows with padding on both sides are refused."""
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    net = ContinuousTransformerWrapper(dim_in=4, dim_out=4, max_seq_len=0, attn_layers=stack)
    model, x = randomised(ContinuousAutoregressiveWrapper(net), scale=0.3), torch.randn(2, 6, 4, dtype=torch.float64)
    lens = torch.tensor([4, 6])
    found = model.generate(x, 3, mask=torch.arange(6) < lens[:, None])
    for row, count in enumerate(lens):
        assert_close(found[row], model.generate(x[row, :count], 3))
    mask = torch.tensor([[True] * 4 + [False] * 2, [False] + [True] * 5])
    with pytest.raises(ValueError, match='`mask` hides'):
        model.generate(x, 3, mask=mask)


def test_what_counts_tokens_knows_of_layers_that_come_later():
    net = net_of(Decoder)
    assert not counts_tokens(net)
    other = net_of(Decoder, dict(ff_moe_experts=2, ff_moe_balance_loss=0.1))
    net.attn_layers.layers[1][1] = other.attn_layers.layers[1][1]
    assert counts_tokens(net)


def test_a_batch_with_a_mask_for_all_of_its_texts():
    model, call = made('towers')
    inputs = SUBJECTS['towers'].inputs
    mask = torch.arange(inputs['texts'].shape[1]) < 4
    assert_close(call(model, {**inputs, 'mask': mask[None]}), call(model, {**inputs, 'mask': mask.expand(2, -1)}))
