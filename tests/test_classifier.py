"""Classes of sequences and of tokens: which states they are read from, their loss, and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised

from x_transformers import (
    Classifier,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    PrefixDecoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)
from x_transformers.core.nets import attends_to_later
from x_transformers.features.readouts import get_token
from x_transformers.flags import ConfigError
from x_transformers.training import NamedLosses

IDS = torch.tensor([[3, 5, 2, 4, 2, 0, 0], [6, 2, 1, 3, 5, 4, 3]])
REAL = IDS != 0
SIZES = dict(depth=1, heads=2, attn_dim_head=4)


def net(kind=Decoder):
    layers = kind(dim=8, **SIZES)
    return TransformerWrapper(num_tokens=9, max_seq_len=8, return_only_embed=True, attn_layers=layers)


def images():
    return ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(dim=8, **SIZES))


def vectors():
    return ContinuousTransformerWrapper(dim_in=5, attn_layers=Encoder(dim=8, **SIZES))


def sides():
    both = dict(num_tokens=9, max_seq_len=8, **SIZES)
    return XTransformer(dim=8, **{f'{side}_{name}': value for side in ('enc', 'dec') for name, value in both.items()})


@pytest.mark.parametrize('kind, token, options, places', [
    (Encoder, 'first', {}, [0, 0]), (Encoder, None, {}, [0, 0]), (Decoder, None, {}, [4, 6]),
    (Decoder, 'last', {}, [4, 6]), (Decoder, 'last', dict(pad_id=3), [6, 5]), (Decoder, 'eos', dict(eos_id=2), [2, 1]),
    (Decoder, 'last_eos', dict(eos_id=2), [4, 1]), (Decoder, 'last_eos', dict(eos_id=8), [4, 6]),
    (Encoder, 'eos', dict(eos_id=8), [0, 0]), (Decoder, 'eos', dict(eos_id=8), [4, 6]),
])  # fmt: skip
def test_which_token_is_read(kind, token, options, places):
    model = randomised(Classifier(net(kind), num_classes=3, token=token, **options))
    real = IDS != options['pad_id'] if 'pad_id' in options else REAL
    given = {} if 'pad_id' in options else dict(mask=REAL)
    states = model.net(IDS, mask=real)[torch.arange(2), torch.tensor(places)]
    assert_close(model(IDS, **given), F.linear(states, model.to_classes.weight, model.to_classes.bias))


WINDOW = dict(attn_max_attend_past=4, attn_max_attend_future=0)


@pytest.mark.parametrize('kind, flags, later', [
    (Encoder, {}, True), (Decoder, {}, False), (PrefixDecoder, {}, False), (CrossAttender, {}, False),
    (Encoder, WINDOW, False), (Encoder, dict(WINDOW, attn_max_attend_future=(0, 1)), True),
    (Encoder, dict(WINDOW, mv_split_residual=True), True),
])  # fmt: skip
def test_where_the_first_token_has_seen_nothing(kind, flags, later):
    """As a gradient shows; there is no reading it then, but where it may have been meant."""
    stack = randomised(kind(dim=8, **dict(SIZES, depth=2), **flags))
    x, given = randn(1, 5, 8).requires_grad_(), dict(context=randn(1, 3, 8)) if stack.cross_attend else {}
    if kind is not PrefixDecoder:  # whose prefix is all that its first token sees
        (found,) = torch.autograd.grad(stack(x, **given)[0, 0].sin().sum(), x)
        assert bool((found[0, 1:] != 0).any()) == later
    assert attends_to_later(stack) == later
    if later or stack.cross_attend or kind is PrefixDecoder:
        assert get_token('first', stack) == ('first', 'first' if later else 'last')
    else:
        with pytest.raises(ConfigError, match="`token='first'` reads tokens in front, which see nothing behind them"):
            get_token('first', stack)


def test_the_mean_and_all_tokens_and_the_layer_before():
    transform = dict(activation='tanh', norm=None, dim=5)
    mean, all_ = (
        randomised(Classifier(net(Encoder), num_classes=3, token=token, head_transform=transform, dropout=0.5)).eval()
        for token in ('mean', 'all')
    )
    states = mean.net(IDS, mask=REAL)
    pooled = torch.stack([row[real].mean(dim=0) for row, real in zip(states, REAL, strict=True)])
    assert_close(mean(IDS, mask=REAL), mean.to_classes(mean.head_transform.dense(pooled).tanh()))
    states = all_.net(IDS, mask=REAL)
    assert_close(all_(IDS, mask=REAL), all_.to_classes(all_.head_transform.dense(states).tanh()))


def test_losses():
    model, one = (randomised(Classifier(net(), num_classes=n, token='last')) for n in (3, 1))
    labels = torch.tensor([2, -100])
    assert_close(model(IDS, labels, mask=REAL), F.cross_entropy(model(IDS, mask=REAL), labels))
    values = randn(2)
    assert_close(one(IDS, values, mask=REAL), (one(IDS, mask=REAL)[:, 0] - values).square().mean())
    tokens = randomised(Classifier(net(Encoder), num_classes=3, token='all'))
    labels = torch.where(REAL, IDS % 3, -100)
    wanted = F.cross_entropy(tokens(IDS, mask=REAL)[REAL], IDS[REAL] % 3)
    assert_close(tokens(IDS, labels, mask=REAL), wanted)


def test_options(logged):
    model = Classifier(net(), num_classes=3, bias=False, dropout=1.0 - 2**-20)
    assert model.to_classes.bias is None and not model(IDS).any() and model.eval()(IDS).all()
    Classifier(net(), num_classes=3, eos_id=2)
    assert any('`eos_id` has no effect' in line for line in logged)


def test_losses_of_layers_are_added():
    layers = Decoder(dim=8, **SIZES, ff_moe_experts=2, ff_moe_balance_loss=0.5)
    inner = TransformerWrapper(num_tokens=9, max_seq_len=8, return_only_embed=True, attn_layers=layers)
    model, labels = randomised(Classifier(inner, num_classes=3)).train(), torch.tensor([2, 1])
    with NamedLosses() as losses:
        loss = model(IDS, labels)
    balance = losses.by_name['moe_balance']
    assert balance > 0
    assert_close(loss, F.cross_entropy(model(IDS), labels) + balance)


def test_other_models():
    """The decoder of an encoder-decoder reads what the encoder reads, one token later; vectors are read as ids are."""
    model = randomised(Classifier(sides(), num_classes=3, token='last', start_id=7))
    inner, shifted = model.net, torch.tensor([[7, *row[:-1]] for row in IDS.tolist()])
    context = inner.encoder(IDS, mask=REAL)
    states = inner.decoder.net(shifted, context=context, context_mask=REAL, return_embeddings=True)
    assert_close(model(IDS, mask=REAL), model.to_classes(states[torch.arange(2), torch.tensor([4, 6])]))
    model = randomised(Classifier(vectors(), num_classes=3))
    x = randn(2, 4, 5)
    assert_close(model(x), model.to_classes(model.net(x, return_embeddings=True)[:, 0]))


@pytest.mark.parametrize('build, words', [
    (lambda: Classifier(net(), num_classes=0), 'num_classes'),
    (lambda: Classifier(net(), num_classes=2, token='cls'), 'token'),
    (lambda: Classifier(net(), num_classes=2, token='eos'), 'eos_id'),
    (lambda: Classifier(net(), num_classes=2, start_id=1), 'encoder-decoder'),
    (lambda: Classifier(sides(), num_classes=2), 'net'),
    (lambda: Classifier(net(), num_classes=2, head_transform=dict(act='tanh')), 'head_transform'),
    (lambda: Classifier(net(), num_classes=2)(IDS, torch.zeros(3).long()), 'labels'),
    (lambda: Classifier(net(), num_classes=2)(IDS, torch.tensor([0, 2])), '`labels` must .*got classes from 0 to 2'),
    (lambda: Classifier(net(), num_classes=2)(IDS, torch.tensor([0.0, 0.7])), '`labels` got torch.float32'),
    (lambda: Classifier(vectors(), num_classes=2, pad_id=0)(torch.zeros(2, 4, 5)), r'`x` must .*got shape'),
    (lambda: Classifier(vectors(), num_classes=2, token='eos', eos_id=2)(torch.zeros(2, 4, 5)), '`x` must be ids'),
    (lambda: Classifier(net(), num_classes=2)(IDS, mask=REAL[:, :3]), 'mask'),
    (lambda: Classifier(images(), num_classes=2)(torch.zeros(1, 3, 8, 8)), 'net'),
])  # fmt: skip
def test_refusals(build, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        build()


@pytest.mark.parametrize('token', ['first', 'last', 'mean'])
def test_a_padded_row_of_an_encoder_and_decoder_is_the_row_alone(token):
    sizes = dict(num_tokens=9, max_seq_len=0, **SIZES, rotary_pos_emb=True)
    both = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    model = randomised(Classifier(XTransformer(dim=8, **both), num_classes=3, token=token, start_id=0))
    x, others = torch.randint(1, 9, (3, 5)), torch.randint(1, 9, (3, 2))
    place = torch.arange(7).expand(3, -1)
    alone = model(x)
    assert (alone[0] - alone[1]).abs().max() > 1e-6
    assert_close(model(torch.cat((others, x), dim=1), mask=place >= 2), alone)
    assert_close(model(torch.cat((x, others), dim=1), mask=place < 5), alone)
