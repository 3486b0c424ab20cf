"""Classifier-free guidance of language models: each step is two readings, written out by hand."""

import pytest
import torch
from oracles import assert_close, randn, randomised
from toy_nets import ids_of, wrapped

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.generation.engine import AuxiliaryLogits
from x_transformers.generation.guidance import Guidance

STEPS = 7


def reading(seed=0, **flags):
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, cross_attend=True, **flags)
    return randomised(AutoregressiveWrapper(TransformerWrapper(num_tokens=9, max_seq_len=16, attn_layers=stack)), seed)


def by_hand(net, prompt, negative, scale, steps=STEPS, given=(), against=()):
    """The greedy tokens of one row (n), from both readings of the whole sequence each time."""
    tokens = []
    for _ in range(steps):
        new = torch.tensor(tokens, dtype=torch.long)
        c = net(torch.cat((prompt, new)).unsqueeze(0), **dict(given))[0, -1]
        u = net(torch.cat((negative, new)).unsqueeze(0), **dict(against))[0, -1]
        tokens.append(int((u + scale * (c - u)).argmax()))
    return tokens


@pytest.mark.parametrize('cache_kv', [True, False])
@pytest.mark.parametrize('scale', [0.0, 0.5, 3.0])
@torch.no_grad()
def test_negative_prompts(scale, cache_kv):
    model = wrapped(seed=1).eval()
    prompts = [ids_of(n, seed=n) for n in (4, 1, 3)]
    others = torch.zeros(3, 4, dtype=torch.long)
    for row, prompt in zip(others, prompts, strict=True):
        row[4 - len(prompt) :] = ids_of(len(prompt), seed=9 + len(prompt))
    options = dict(temperature=0.0, cache_kv=cache_kv, cond_scale=scale, negative_prompts=others)
    found = model.generate(prompts, STEPS, **options)
    for row, prompt, other in zip(found.tolist(), prompts, others, strict=True):
        assert row == by_hand(model.net, prompt, other[4 - len(prompt) :], scale)
    # as a list, and padded on the right as the prompts are
    alone = [other[4 - len(prompt) :] for other, prompt in zip(others, prompts, strict=True)]
    assert torch.equal(model.generate(prompts, STEPS, **{**options, 'negative_prompts': alone}), found)
    right = [torch.nn.utils.rnn.pad_sequence([*rows, torch.zeros(6).long()], True)[:3] for rows in (prompts, alone)]
    lens = [len(prompt) for prompt in prompts]
    again = model.generate(right[0], STEPS, prompt_lens=lens, **{**options, 'negative_prompts': right[1]})
    assert torch.equal(again, found)
    several = model.generate(prompts, STEPS, num_samples=2, **options)
    assert torch.equal(several, torch.stack((found, found), dim=1))
    assert torch.equal(torch.stack(list(model.stream(prompts, STEPS, **options)), dim=1), found)
    probs = model.generate(prompts, STEPS, return_log_probs=True, **options).log_probs
    net_alone = model.net(torch.cat((prompts[0], found[0])).unsqueeze(0))[0].log_softmax(dim=-1)
    assert_close(probs[0], net_alone[3:-1].gather(-1, found[0].unsqueeze(-1)).squeeze(-1).to(probs))


@pytest.mark.costly
@torch.no_grad()
def test_negative_contexts():
    model, prompts = reading(), torch.randint(0, 9, (2, 3))
    context, mask = randn(2, 4, 16), torch.tensor([[True] * 4, [True, False, True, False]])
    none = randn(1, 2, 16, seed=3)
    given = [dict(context=context[r : r + 1], context_mask=mask[r : r + 1]) for r in (0, 1)]
    for scale in (0.0, 2.5):
        options = dict(context=context, context_mask=mask, cond_scale=scale, negative_context=none, temperature=0.0)
        found = model.generate(prompts, STEPS, **options)
        for row, prompt, own in zip(found.tolist(), prompts, given, strict=True):
            assert row == by_hand(model.net, prompt, prompt, scale, STEPS, own, dict(context=none))
        other = 8 - prompts  # both at once
        found = model.generate(prompts, STEPS, negative_prompts=other, **options)
        for at, row in enumerate(found.tolist()):
            assert row == by_hand(model.net, prompts[at], other[at], scale, STEPS, given[at], dict(context=none))
    plain = dict(context=context, context_mask=mask, temperature=0.0)
    unlike = model.generate(prompts, STEPS, **plain)
    assert not torch.equal(unlike, model.generate(prompts, STEPS, cond_scale=0.0, negative_context=none, **plain))
    assert torch.equal(unlike, model.generate(prompts, STEPS, cond_scale=1.0, negative_context=none, **plain))


@torch.no_grad()
def test_past_the_window_both_readings_slide():
    """The prompts have left the window: nothing tells the readings apart but what deeper keys carry."""
    stack = Decoder(dim=16, depth=1, heads=2, rotary_pos_emb=True)
    around = dict(num_tokens=9, max_seq_len=5, use_abs_pos_emb=False)
    model = randomised(AutoregressiveWrapper(TransformerWrapper(attn_layers=stack, **around)))
    prompt, other = torch.tensor([[1, 2, 3]]), torch.tensor([[4, 4, 4]])
    options = dict(temperature=0.0, cond_scale=2.0, negative_prompts=other)
    found = model.generate(prompt, 12, **options)
    assert torch.equal(found, model.generate(prompt, 12, slide_cache=False, **options))
    plain = model.generate(torch.cat((prompt, found[:, :6]), dim=1), 6, temperature=0.0)
    assert torch.equal(found[:, 6:], plain)


def test_the_condition_is_followed():
    """A net that foresees its first token half of the time: guidance makes it sure, without touching the draws."""

    class Half(torch.nn.Module):
        max_seq_len, num_tokens = 0, 5

        def forward(self, ids, return_intermediates=False, **_):
            first = torch.nn.functional.one_hot(ids[:, :1], 5).expand(-1, ids.shape[1], -1).double()
            logits = (first * 1.5).where(ids[:, :1, None] > 0, torch.zeros(()).double())
            return (logits, None) if return_intermediates else logits

    model, prompt, nothing = AutoregressiveWrapper(Half()), torch.full((4000, 1), 3), torch.zeros(4000, 1).long()
    options = dict(filter_logits_fn=lambda logits: logits, negative_prompts=nothing)
    for scale in (1.5, 3.0):
        torch.manual_seed(0)
        share = (model.generate(prompt, 1, cond_scale=scale, **options) == 3).double().mean().item()
        sure = torch.tensor([0.0, 0, 0, 1.5 * scale, 0]).softmax(dim=-1)[3].item()
        assert abs(share - sure) < 4 * (sure * (1 - sure) / 4000) ** 0.5


def test_refusals():
    model, read, ids = wrapped(), reading(), ids_of(2, 3)
    context = torch.zeros(2, 4, 16, dtype=torch.double)
    given = dict(context=context, cond_scale=2.0)
    for make, words in (
        (lambda: model.generate(ids, 2, cond_scale=-1.0), '`cond_scale` must be a number of at least 0, got -1.0'),
        (lambda: model.generate(ids, 2, cond_scale=2.0), 'give `negative_prompts` or `negative_context`'),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_prompts=ids[:, :2]), r'it must be|as the prompts'),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_prompts=ids.double()), '`negative_prompts` must '),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_prompts=[1]), 'must be ids'),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_prompts=[ids[0], ids[1, 1:]]), 'got other lengths'),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_prompts=[ids[0]]), 'got other lengths'),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_prompts=[ids[0, 1:]] * 2), 'got other lengths'),
        (lambda: model.generate(ids, 2, cond_scale=2.0, negative_context=context), 'but no `context`'),
        (lambda: read.generate(ids, 2, negative_context=context[..., 1:], **given), '`negative_context` must '),
        (lambda: read.generate(ids, 2, negative_context=context[[0, 0, 0]], **given), 'of 2 rows and 16 features'),
        (
            lambda: model.speculative(ids, 2, cond_scale=2.0),
            '`cond_scale` cannot be combined with speculative decoding',
        ),
        (
            lambda: model.generate(ids, 2, negative_prompts=ids, cond_scale=2.0, kv_storage=paged()),
            '`cond_scale` cannot be combined with `kv_storage`',
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            make()
    assert torch.equal(
        model.speculative(ids, 2, temperature=0.0, cond_scale=1.0), model.generate(ids, 2, temperature=0.0)
    )
    assert Guidance().is_on is False and AuxiliaryLogits(None, None).seen(ids) is ids


def paged():
    from x_transformers import Paged

    return Paged(8)
