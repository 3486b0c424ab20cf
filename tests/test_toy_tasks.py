"""What whole models learn in seconds: each task with the accuracy that is asked for, in generation or on new data."""

import math

import pytest
import torch
from torch import nn
from toy_tasks import IGNORED, taught

from x_transformers import (
    AutoregressiveWrapper,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XTransformer,
)

SIZES = dict(dim=48, depth=2, heads=4, attn_dim_head=16)


def language_model(tokens, longest, stack=None, **flags):
    sizes = {**SIZES, 'rotary_pos_emb': True, **(stack or {})}
    net = TransformerWrapper(num_tokens=tokens, max_seq_len=longest, attn_layers=Decoder(**sizes), **flags)
    return AutoregressiveWrapper(net)


def completes(model, rows, known, **inputs):
    """The part of the rows (b n) that greedy generation continues without a mistake, given `known` tokens."""
    found = model.generate(rows[:, :known], rows.shape[1] - known, temperature=0.0, **inputs)
    return (found == rows[:, known:]).all(dim=-1).float().mean()


def question_and_answer(model, rows, known):
    """The next-token loss of the answers."""
    _, (logits, _) = model(rows, return_outputs=True)
    return nn.functional.cross_entropy(logits[:, known - 1 :].flatten(0, 1), rows[:, known:].flatten())


# tokens


@pytest.mark.slow
def test_a_sequence_is_copied():
    """Six of eight tokens, a separator, and the six again."""

    def rows(b):
        x = torch.randint(0, 8, (b, 6))
        return torch.cat((x, torch.full((b, 1), 8), x), dim=1)

    model = language_model(9, 13)
    taught(model, lambda: question_and_answer(model, rows(64), 7), 140)
    assert completes(model, rows(200), 7) > 0.98


@pytest.mark.slow
def test_parity_is_carried_along():
    """Eight bits, a separator, and the parity of all bits up to each; the last is that of all."""

    def rows(b):
        x = torch.randint(0, 2, (b, 8))
        return torch.cat((x, torch.full((b, 1), 2), x.cumsum(dim=-1) % 2), dim=1)

    model = language_model(3, 17)
    taught(model, lambda: question_and_answer(model, rows(64), 9), 200)
    assert completes(model, rows(200), 9) > 0.98


@pytest.mark.slow
def test_an_encoder_and_a_decoder_reverse():
    sides = {side + name: value for side in ('enc_', 'dec_') for name, value in SIZES.items() if name != 'dim'}
    sides |= dict(enc_num_tokens=9, dec_num_tokens=9, enc_max_seq_len=7, dec_max_seq_len=8)
    model = XTransformer(dim=48, **sides)

    def pair(b):
        """Up to seven tokens, and the same the other way round behind a first token; padded."""
        lens, x = torch.randint(3, 8, (b, 1)), torch.randint(0, 8, (b, 7))
        place = torch.arange(7)
        real = place < lens
        back = x.gather(1, (lens - 1 - place).clamp(min=0))
        answer = torch.cat((torch.full((b, 1), 8), back.masked_fill(~real, IGNORED)), dim=1)
        return x, answer, real

    def loss():
        x, answer, real = pair(24)
        return model(x, answer, mask=real)

    taught(model, loss, 350)
    x, answer, real = pair(200)
    found = model.generate(x, answer[:, :1], 7, mask=real, temperature=0.0)
    assert ((found == answer[:, 1:]) | ~real).all(dim=-1).float().mean() > 0.98


def sums(b):
    """Each token is the sum of the two before it, modulo 7."""
    x = [*torch.randint(0, 7, (2, b))]
    for _ in range(8):
        x.append((x[-1] + x[-2]) % 7)
    return torch.stack(x, dim=1)


@pytest.mark.nightly
def test_a_stack_that_recycles_learns_to_add():
    model = language_model(7, 10, recycling=True, train_max_recycle_steps=3, stack=dict(depth=1))
    taught(model, lambda: model(sums(64)), 500)
    for steps in (1, 3):
        assert completes(model, sums(200), 2, recycle_steps=steps) > 0.95


@pytest.mark.nightly
def test_a_looped_stack_learns_to_add_and_when_to_stop():
    """One pass is enough, and the gate finds that out."""
    model = language_model(7, 10, looped=True, max_looped_steps=3, stack=dict(depth=1, pre_and_post_norm=True))
    taught(model, lambda: model(sums(64)), 350)
    x = sums(200)
    assert completes(model, x, 2, looped_steps=1) > 0.95
    with torch.no_grad():
        gate = model.net(x, return_intermediates=True, looped_pred_all_logits=True)[1].exit_logits[0]
    stops = gate.sigmoid()[:, 1:]  # the second token cannot be foretold
    assert stops.mean() > 0.8


@pytest.mark.slow
def test_beams_find_what_is_most_probable_in_the_end():
    """Six of ten texts go on as 1 and one of 3 .. 6, the others as 2 7: the best start is not that of the best text."""

    def rows(b):
        many = torch.rand(b) < 0.6
        second = torch.where(many, torch.randint(3, 7, (b,)), 7)
        return torch.stack((torch.zeros(b).long(), torch.where(many, 1, 2), second), dim=1)

    model = language_model(8, 3)
    taught(model, lambda: model(rows(256)), 110)
    prompt = torch.zeros(1, 1).long()
    assert model.generate(prompt, 2, temperature=0.0)[0, 0] == 1
    tokens, scores = model.beam_search(prompt, 2, beams=3, return_beams_and_scores=True)
    assert tokens[0, 0].tolist() == [2, 7]
    assert abs(scores[0, 0].exp() - 0.4) < 0.05
    assert abs(scores[1, 0].exp() - 0.15) < 0.03


# vectors


@pytest.mark.slow
def test_a_wave_is_continued():
    """A sine and a cosine of some frequency and any phase: eight points, and the sixteen that follow."""

    def waves(b):
        turn, start = torch.rand(b, 1) * 0.2 + 0.3, torch.rand(b, 1) * 2 * math.pi
        angles = start + turn * torch.arange(24)
        return torch.stack((angles.sin(), angles.cos()), dim=-1)

    stack = Decoder(**{**SIZES, 'rotary_pos_emb': True})
    net = ContinuousTransformerWrapper(dim_in=2, dim_out=2, max_seq_len=24, use_abs_pos_emb=False, attn_layers=stack)
    model = ContinuousAutoregressiveWrapper(net)
    taught(model, lambda: model(waves(24)), 400)
    x = waves(100)
    error = (model.generate(x[:, :8], 16) - x[:, 8:]).square().mean() / x.var()
    assert error < 0.04


# images


@pytest.mark.slow
def test_images_are_classified():
    """Bright bars that lie, stand, or run down or up a diagonal, anywhere in the image, under noise."""

    def images(b):
        kind, place = torch.randint(0, 4, (b,)), torch.randint(-4, 5, (b, 1, 1))
        row, column = torch.meshgrid(torch.arange(16) - 8, torch.arange(16) - 8, indexing='ij')
        across = torch.stack((row, column, row - column, row + column))[kind]
        bars = ((across - place).abs() <= 1).float().unsqueeze(1)
        return bars + 0.3 * torch.randn(b, 1, 16, 16), kind

    model = ViTransformerWrapper(
        image_size=16, patch_size=4, channels=1, num_classes=4, num_register_tokens=2, attn_layers=Encoder(**SIZES)
    )

    def loss():
        x, kind = images(64)
        return nn.functional.cross_entropy(model(x), kind)

    taught(model, loss, 140)
    x, kind = images(500)
    with torch.no_grad():
        assert (model(x).argmax(dim=-1) == kind).float().mean() > 0.97
