"""Malformed calls, and the exact words with which each is refused: the argument, what it got, and what is allowed.

The table stands in `data/malformed_calls.txt`: an expression, and below it the error.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import x_transformers
from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    PrefixDecoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)

torch.manual_seed(0)
D = dict(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False)
x, ids = torch.randn(2, 5, 16), torch.randint(0, 10, (2, 5))


def lm(stack=None, **flags):
    return TransformerWrapper(num_tokens=10, max_seq_len=8, attn_layers=stack or Decoder(**D), **flags)


dec, enc, pre = Decoder(**D), Encoder(**D), PrefixDecoder(**D)
cross, rot, cond = (
    Decoder(**D, cross_attend=True),
    Decoder(**D, rotary_pos_emb=True),
    Encoder(**D, use_adaptive_rmsnorm=True),
)
m, me, ex = lm(), lm(Encoder(**D)), lm(embed_num_tokens=dict(a=3))
att = Attention(dim=16, heads=2, dim_head=8)
attx = Attention(dim=16, heads=2, dim_head=8, dim_context=6)
ar = AutoregressiveWrapper(lm())
co = ContinuousTransformerWrapper(dim_in=3, dim_out=4, max_seq_len=8, attn_layers=Decoder(**D))
vit = ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(**D), num_classes=3)
sides = dict(num_tokens=10, depth=1, heads=2, max_seq_len=8)
xt = XTransformer(dim=16, **{f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sides.items()})
_, cache = m(ids, return_intermediates=True)
_, c2 = dec(x, return_hiddens=True)
T, B = torch.ones, torch.bool


def table():
    """(expression, name of the error, words) for each entry."""
    lines = (Path(__file__).parent / 'data' / 'malformed_calls.txt').read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith('#')]
    for expression, refusal in zip(lines[::2], lines[1::2], strict=True):
        error, words = refusal.strip().split(': ', 1)
        yield expression, error, words


CALLS = list(table())


def called(expression):
    """The model or class that is called."""
    return re.search(r'\w+', expression).group()


@pytest.mark.parametrize('name', dict.fromkeys(called(expression) for expression, *_ in CALLS))
def test_malformed_calls_are_refused_in_so_many_words(name):
    known = {**vars(x_transformers), 'nn': nn, **globals()}
    for expression, error, words in CALLS:
        if called(expression) == name:
            with pytest.raises((TypeError, ValueError)) as refused:
                eval(expression, known)
                pytest.fail(f'{expression} was not refused')
            assert (type(refused.value).__name__, str(refused.value)) == (error, words), expression


def test_there_are_enough_of_them():
    assert len(CALLS) >= 200
    assert len({words for *_, words in CALLS}) >= 180


@pytest.mark.parametrize(
    'wrong', [torch.randn(1, 2, 4, 16), torch.zeros(2, 16, dtype=torch.long)], ids=['shape', 'dtype']
)
def test_an_input_of_a_feature_says_what_it_must_be(wrong):
    net, x = x_transformers.Decoder(dim=16, depth=1, heads=2, use_adaptive_rmsnorm=True), torch.randn(2, 4, 16)
    net(x, condition=torch.randn(2, 16))
    with pytest.raises(
        ValueError, match=r'`condition` must be a floating point tensor \(b, d\) or \(b, n, d\), got .*'
    ):
        net(x, condition=wrong)
