"""Whoever reads a sequence at one place reads all of it, or is told so: the last token changes the result of every way
to pool, on every stack, or the way is refused, or warned about. Stacks that see both sides are never spoken of.
"""

import pytest
import torch
from law_cases import BY_NAME, CASES, Case, changed, inputs_for, model_of, per_token, refused
from oracles import randn, randomised
from sweeps import is_late, nightly

from x_transformers import (
    AttentionLayers,
    BertPretrainWrapper,
    Classifier,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    MLMWrapper,
    NonAutoregressiveWrapper,
    PrefixDecoder,
    TransformerWrapper,
    TwoTowers,
    ViTransformerWrapper,
)
from x_transformers.core.nets import attends_to_later
from x_transformers.finetuning import finetune
from x_transformers.flags import ConfigError

SIZES = dict(dim=8, depth=2, heads=2, attn_dim_head=4, verbose=False)
BACK = dict(attn_max_attend_future=0)
# what a stack is, and whether its first token sees the last
STACKS = {
    'encoder': (Encoder, {}, True),
    'encoder, scaled': (Encoder, dict(use_layerscale=True), True),
    'encoder, windows': (Encoder, dict(attn_max_attend_past=2, attn_max_attend_future=9), True),
    'encoder, one layer ahead': (Encoder, dict(attn_max_attend_future=(0, 12)), True),
    'encoder, shifted': (Encoder, dict(**BACK, shift_tokens=3), True),
    'encoder, both ways': (Encoder, dict(**BACK, attn_orthog_projected_values_over_sequence=True,
                                         attn_orthog_projected_values=True), True),
    'encoder, looking back': (Encoder, BACK, False),
    'encoder, looking back, scaled': (Encoder, dict(**BACK, use_layerscale=True), False),
    'encoder, convolutions back': (
        Encoder, dict(**BACK, conv_module=True, conv_causal=True, conv_norm='layer', conv_kernel_size=2), False),
    'decoder': (Decoder, {}, False),
    'decoder, scaled': (Decoder, dict(use_layerscale=True, sandwich_norm=True), False),
    'decoder, windows': (Decoder, dict(attn_max_attend_past=4), False),
    'decoder, across': (Decoder, dict(cross_attend=True), False),
    'decoder, recurrent': (Decoder, dict(custom_layers=('r', 'f'), recurrent_module='ssm', depth=1), False),
    'causal': (AttentionLayers, dict(causal=True), False),
    'prefix': (PrefixDecoder, {}, False),
}  # fmt: skip
FIVE = ('encoder', 'encoder, looking back', 'decoder', 'decoder, across', 'prefix')


def stack_of(name):
    kind, flags, _ = STACKS[name]
    return kind(**{**SIZES, **flags})


def text(name, **model):
    model = {'return_only_embed': True, **model}
    return TransformerWrapper(num_tokens=9, max_seq_len=12, attn_layers=stack_of(name), **model)


def of_class_tokens(name, count=1):
    return text(name, use_cls_token=True, num_cls_tokens=count)


def image(name, pool):
    sizes = dict(image_size=6, patch_size=2, channels=1, prefix_tokens=2, num_classes=3)
    return ViTransformerWrapper(pool=pool, attn_layers=stack_of(name), **sizes)


def towers(name, pool):
    picture = ViTransformerWrapper(image_size=4, patch_size=2, channels=1, attn_layers=stack_of('encoder'))
    return TwoTowers(picture, text(name), text_pool=pool, eos_id=8 if pool == 'eos' else None)


def vectors(name, token):
    net = ContinuousTransformerWrapper(dim_in=5, max_seq_len=12, attn_layers=stack_of(name))
    return Classifier(net, num_classes=3, token=token)


def pooler(name, token):
    own = {'token': token, **({'eos': 8} if token == 'eos' else {})}
    return text(name, pooler={'activation': 'tanh', **(own if token else {})})


def pool_of(model, x, **given):
    return model(x, return_pooled=True, **given)[1]


IDS, VECTORS, PICTURES = torch.tensor([[3, 5, 2, 4, 7], [6, 2, 1, 3, 5]]), randn(2, 5, 5), randn(2, 1, 6, 6)
ENDS = dict(eos=dict(eos_id=8), last_eos=dict(eos_id=8))
# way -> how it is built on a stack, its inputs, and how it is called
POOLS = {
    **{f'classes, {token}': (
        lambda name, token=token: Classifier(text(name), num_classes=3, token=token, **ENDS.get(token, {})), IDS, None)
        for token in (None, 'first', 'last', 'eos', 'last_eos', 'mean')},
    **{f'classes of vectors, {token}': (lambda name, token=token: vectors(name, token), VECTORS, None)
       for token in (None, 'first', 'last', 'mean')},
    **{f'fine-tuned, {read}': (lambda name, read=read: finetune(text(name), 'class', read=read)[0], IDS, None)
       for read in (None, 'first', 'last', 'mean')},
    **{f'pooler, {token}': (lambda name, token=token: pooler(name, token), IDS, pool_of)
       for token in (None, 'first', 'last', 'eos', 'mean')},
    **{f'towers, {pool}': (lambda name, pool=pool: towers(name, pool), IDS, lambda m, x, **given: m.of_texts(x))
       for pool in ('first', 'last', 'eos', 'mean')},
    **{f'image, {pool}': (lambda name, pool=pool: image(name, pool), PICTURES, None)
       for pool in ('mean', 'first', 'first_mean', 'prefix', 'attention')},
    'class tokens': (of_class_tokens, IDS, None),
    'several class tokens': (lambda name: of_class_tokens(name, 2), IDS, None),
    'the mean of a model': (lambda name: text(name, average_pool_embed=True), IDS, None),
    'attention': (lambda name: text(name, attn_pool=True), IDS, None),
    'class tokens, towers': (
        lambda name: TwoTowers(text('encoder', average_pool_embed=True), of_class_tokens(name)), IDS,
        lambda m, x, **given: m.of_texts(x, **given)),
}  # fmt: skip


def other_end(x):
    """The same with another last token, or patch."""
    x = x.clone()
    if x.ndim == 4:
        x[..., -2:, -2:] = x[..., -2:, -2:].flip(-1) * 2
    elif x.is_floating_point():
        x[:, -1] = x[:, -1].flip(-1)
    else:
        x[:, -1] -= 4
    return x


def pooled_law(way, name, logged):
    build, x, call = POOLS[way]
    _, flags, ahead = STACKS[name]
    try:
        model = randomised(build(name))
    except ConfigError as error:
        assert re_front(error) and not ahead, error
        return
    spoken = [line for line in logged if 'reads tokens in front' in line]
    context = {} if not flags.get('cross_attend') else dict(context=randn(2, 3, 8))
    found = [(call or (lambda m, x, **given: m(x, **given)))(model, each, **context) for each in (x, other_end(x))]
    found = [each[0] if isinstance(each, tuple) else each for each in found]
    changes = (found[0] - found[1]).abs().flatten(1).amax(dim=1)
    assert bool((changes > 1e-9).all()) or spoken, 'the last token does not count, and nothing says so'
    assert not (ahead and spoken), spoken


def re_front(error):
    return 'reads tokens in front, which see nothing behind them' in str(error)


@pytest.mark.parametrize(
    'way, name',
    [
        (way, name) if name in FIVE and not is_late(10, 'pooled', (way, name)) else nightly(way, name)
        for way in POOLS
        for name in STACKS
        if not (name == 'decoder, across' and way.startswith(('towers, ', 'image, ')))  # which have no context
    ],
)
def test_the_last_token_counts_or_it_is_said(way, name, logged):
    pooled_law(way, name, logged)


@pytest.mark.parametrize('missing', [False, True])
def test_a_row_without_an_end_is_read_where_tokens_have_seen_it(missing):
    model = randomised(Classifier(text('decoder'), num_classes=3, token='eos', eos_id=8))
    x = IDS.clone() if missing else with_ends(IDS)
    assert (model(x) - model(other_front(x))).abs().amax(dim=-1).min() > 1e-6


def with_ends(x):
    return torch.cat((x, torch.full((2, 1), 8)), dim=1)


def other_front(x):
    return torch.cat((x[:, :4], x[:, 4:5] - 4, x[:, 5:]), dim=1)


@pytest.mark.parametrize('name', ['decoder', 'encoder, looking back', 'prefix', 'causal'])
@pytest.mark.parametrize(
    'wrap',
    [
        lambda net: MLMWrapper(net, mask_token_id=8, pad_token_id=0),
        lambda net: BertPretrainWrapper(net, dict(mask_token_id=8, pad_token_id=0)),
        lambda net: NonAutoregressiveWrapper(net, mask_id=8),
    ],
    ids=['masked', 'sentences', 'hidden'],
)
def test_guessing_from_both_sides_needs_a_stack_that_sees_them(wrap, name):
    with pytest.raises(ConfigError, match='both sides'):
        wrap(text(name, return_only_embed=False))


# whether a stack sees later tokens

EXTRA = (
    Case('looking back', stack=BACK, kind=Encoder),
    Case('looking back, one layer ahead', stack=dict(attn_max_attend_future=(0, 2)), kind=Encoder),
    Case('looking back, shifted', stack=dict(**BACK, shift_tokens=1), kind=Encoder),
    Case('looking back, convolutions', stack={**BACK, **BY_NAME['conv_module'].stack}, kind=Encoder),
    Case('looking back, memory', stack=BACK, model=dict(num_memory_tokens=2), kind=Encoder),
    Case('feedforwards', stack=dict(custom_layers=('f',), depth=1), kind=Encoder),
    Case('only a context', kind=CrossAttender),
)


def sight_law(case):
    """What `attends_to_later` says is so: the first token changes with the last of three, or does not."""
    try:
        net = model_of(case)
    except ConfigError:
        return
    inputs = inputs_for(net, case, batch=1, length=3)
    others = changed(inputs, torch.tensor([[False, False, True]]))
    try:
        change = (per_token(net, others) - per_token(net, inputs))[:, 0].abs().max()
    except ValueError:  # more tokens are needed
        return
    assert attends_to_later(net.attn_layers) == bool(change > 1e-9)


@pytest.mark.parametrize('case', EXTRA, ids=str)
def test_what_a_stack_sees(case):
    assert refused(case) is None
    sight_law(case)


@pytest.mark.nightly
@pytest.mark.parametrize('kind', [Encoder, Decoder, PrefixDecoder])
@pytest.mark.parametrize('case', CASES, ids=str)
def test_what_a_stack_sees_beside_any_flag(case, kind):
    case = case.of_kind(kind) if case.kind in (Encoder, Decoder) else case
    sight_law(case)
    if kind is Encoder and case.flag != 'attn_inverted_attention':
        sight_law(case.with_keywords(**BACK))
