"""Direct preference optimisation: the loss against a hand sum over tokens, padding, and a model that takes sides."""

import math

import pytest
import torch
from oracles import assert_close, randomised
from training_laws import fit

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.dpo import DPO
from x_transformers.flags import ConfigError

V, N = 7, 9
PROMPTS, PREFERRED, OTHER = [3, 4, 1], [9, 7, 8], [8, 9, 6]  # lengths, the prompt included


def net(**keywords):
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8)
    return TransformerWrapper(num_tokens=V, max_seq_len=N, attn_layers=stack, **keywords)


def trained(seed=1, **keywords):
    """A model whose policy has left its copy."""
    model = DPO(randomised(net()), **keywords).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.policy_model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


def pairs():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, V, (3, N), generator=generator) for _ in range(2))
    prompt = torch.arange(N) < torch.tensor(PROMPTS)[:, None]
    return a, torch.where(prompt, a, b), prompt


def until(lens):
    return torch.arange(N) < torch.tensor(lens)[:, None]


def by_hand(model, a, b, lens_a, lens_b, total=False):
    """The loss, token by token, each row alone and without its padding."""
    losses = []
    for row, start in enumerate(PROMPTS):
        score = {}
        for who, one in (('new', model.policy_model), ('old', model.ref_model)):
            for side, seq, lens in (('w', a, lens_a), ('l', b, lens_b)):
                ids, found = seq[row, : lens[row]], []
                for place in range(start, len(ids)):
                    log_probs = one(ids[None, :place])[0, -1].log_softmax(dim=-1)
                    found.append(log_probs[ids[place]].item())
                score[who, side] = sum(found) / (1 if total or not found else len(found))
        gain = score['new', 'w'] - score['old', 'w'] - score['new', 'l'] + score['old', 'l']
        losses.append(math.log1p(math.exp(-model.beta * gain)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize('total', [False, True], ids=['D2 mean', 'D2 sum'])
def test_d1_the_loss_is_that_of_the_tokens_of_the_answers(total):
    model, (a, b, prompt) = trained(beta=0.7, sum_log_probs=total), pairs()
    found = model(a, b, prompt_mask=prompt)
    assert found.item() == pytest.approx(by_hand(model, a, b, [N] * 3, [N] * 3, total), rel=1e-9)
    masks = dict(preferred_seq_mask=until(PREFERRED), unpreferred_seq_mask=until(OTHER))
    expected = by_hand(model, a, b, PREFERRED, OTHER, total)
    assert model(a, b, prompt_mask=prompt, **masks).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('pad_id', [-1, 5])
def test_masks_come_from_the_padding(pad_id):
    model, (a, b, prompt) = trained(pad_id=pad_id), pairs()
    a, b = a.masked_fill(a == pad_id, 0), b.masked_fill(b == pad_id, 0)
    expected = by_hand(model, a, b, PREFERRED, OTHER)
    padded = a.masked_fill(~until(PREFERRED), pad_id), b.masked_fill(~until(OTHER), pad_id)
    assert model(*padded, prompt_mask=prompt).item() == pytest.approx(expected, rel=1e-9)
    # one mask given, the other made
    found = model(a, padded[1], prompt_mask=prompt, preferred_seq_mask=until(PREFERRED))
    assert found.item() == pytest.approx(expected, rel=1e-9)


def test_what_stands_in_masked_tokens_does_not_matter():
    model, (a, b, prompt) = trained(), pairs()
    holes = until(PREFERRED) & (torch.arange(N) != 5) & (torch.arange(N) >= torch.tensor([2, 0, 0])[:, None])
    masks = dict(preferred_seq_mask=holes, unpreferred_seq_mask=until(OTHER))
    expected = model(a, b, prompt_mask=prompt, **masks)
    score = {}
    a, b = a.masked_fill(~holes, 0), b.masked_fill(~until(OTHER), 0)
    for side, seq, mask in (('w', a, holes), ('l', b, until(OTHER))):
        for who, one in (('new', model.policy_model), ('old', model.ref_model)):
            log_probs = one(seq, mask=mask).log_softmax(dim=-1)[:, :-1].gather(-1, seq[:, 1:, None])[..., 0]
            rows = zip(log_probs, (mask & ~prompt)[:, 1:] & mask[:, :-1], strict=True)
            score[who, side] = torch.stack([row[counts].mean() for row, counts in rows])
    gain = score['new', 'w'] - score['old', 'w'] - score['new', 'l'] + score['old', 'l']
    assert_close(expected, (1 + (-model.beta * gain).exp()).log().mean())
    other = a.masked_fill(~holes, 6), b.masked_fill(~until(OTHER), 99)
    assert_close(model(*other, prompt_mask=prompt, **masks), expected)


def test_an_untouched_model_has_the_loss_of_a_coin():
    model, (a, b, prompt) = DPO(net().double()), pairs()
    assert model(a, b, prompt_mask=prompt).item() == pytest.approx(math.log(2))
    everything = torch.ones_like(prompt)
    assert trained()(a, b, prompt_mask=everything).item() == 0  # there is no answer to prefer
    some = prompt | (torch.arange(3)[:, None] > 0)
    assert_close(trained()(a, b, prompt_mask=some), trained()(a[:1], b[:1], prompt_mask=prompt[:1]))


def test_d3_parameters_are_those_that_learn():
    policy = net()
    model, (a, b, prompt) = DPO(policy), pairs()
    assert model.policy_model is policy
    for found in (model.parameters(), model.parameters(recurse=True)):
        assert [id(p) for p in found] == [id(p) for p in policy.parameters()]
    assert list(model.parameters(recurse=False)) == []
    assert {name.split('.')[0] for name in model.state_dict()} == {'policy_model', 'ref_model'}
    assert {name.split('.')[0] for name, _ in model.named_parameters()} == {'policy_model', 'ref_model'}
    model(a, b, prompt_mask=prompt).backward()
    assert all(p.grad is None and not p.requires_grad for p in model.ref_model.parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters())


def test_the_copy_never_trains():
    model = DPO(net()).train()
    assert model.policy_model.training and not any(module.training for module in model.ref_model.modules())
    assert not model.eval().policy_model.training


def test_the_loss_is_in_single_precision():
    model, (a, b, prompt) = trained(), pairs()
    assert model.bfloat16()(a, b, prompt_mask=prompt).dtype == torch.float32


def test_refusals():
    model, (a, b, prompt) = trained(), pairs()
    for call, error, words in (
        (lambda: model(a, b[:, :5], prompt_mask=prompt), ValueError, r'`unpreferred_seq` must .*got \(3, 5\)'),
        (lambda: model(a + 0.5, b, prompt_mask=prompt), TypeError, r'`preferred_seq` must hold.*got torch.float32'),
        (lambda: model(a, b, prompt_mask=prompt[:, 1:]), ValueError, r'`prompt_mask` must .*got \(3, 8\)'),
        (lambda: model(a, b, prompt_mask=None), TypeError, r'`prompt_mask` must .*got None'),
        (
            lambda: model(a, b, prompt_mask=prompt, preferred_seq_mask=prompt.double()),
            TypeError,
            r'`preferred_seq_mask` must be boolean.*got torch.float64',
        ),
        (lambda: DPO(AutoregressiveWrapper(net())), ValueError, r'gives a loss: pass its `net`'),
        (lambda: DPO(net(), beta=0), ConfigError, r'`beta` must be a positive number, got 0'),
        (lambda: DPO(net(return_only_embed=True)), ValueError, r'`return_only_embed` is set'),
        (
            lambda: DPO(net(num_output_heads=2))(a, b, prompt_mask=prompt),
            ValueError,
            r'`model` must have one head, it gives several',
        ),
        (
            lambda: DPO(TransformerWrapper(num_tokens=V, max_seq_len=N, attn_layers=Encoder(dim=8, depth=1, heads=1))),
            ValueError,
            r'must be causal',
        ),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.slow
def test_it_learns_what_is_preferred():
    """Answers that repeat the prompt are preferred to those that do not: new prompts are repeated, 19 of 20 tokens."""
    torch.manual_seed(0)
    model = DPO(net(), beta=1.0, sum_log_probs=True)
    prompt = torch.arange(6).expand(64, 6) < 3

    def loss():
        start, other = torch.randint(0, V, (64, 3)), torch.randint(0, V, (64, 3))
        return model(torch.cat((start, start), dim=1), torch.cat((start, other), dim=1), prompt_mask=prompt)

    fit(model, loss, 200)
    assert loss() < 0.4
    start = torch.randint(0, V, (100, 3))
    answers = AutoregressiveWrapper(model.policy_model).generate(start, 3, temperature=0.0)
    assert (answers == start).float().mean() > 0.95
