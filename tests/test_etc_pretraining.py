"""Pretraining of two streams: what is hidden, both losses by formula, what does not leak, and labels of both sides."""

import itertools
import math

import pytest
import torch
from oracles import assert_close, randomised
from torch import nn
from toy_tasks import taught

from x_transformers.etc import ETCEncoder, make_etc_inputs
from x_transformers.etc_pretraining import ETCPretrainWrapper
from x_transformers.flags import ConfigError

SIZES = dict(dim=8, depth=1, heads=2, dim_head=4, ff_kwargs=dict(mult=1))
R, K = 2, 1
SEGMENTS = torch.tensor([[0, 0, 1, 1, 2, 2, 2, -1], [1, 1, 1, 0, 0, -1, -1, -1]])


def pretrainer(**options):
    encoder = ETCEncoder(**{**SIZES, 'rel_max_distance': K, **options.pop('sizes', {})}, local_radius=R)
    return randomised(ETCPretrainWrapper(encoder, 20, 19, **options))


TOKENS = torch.arange(24).view(2, 12) * 7 % 19
PARTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2, 2, -1, -1], [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3]])


def watched(model, *args, **kwargs):
    """The losses, and what the encoder got in both passes."""
    seen = []
    hook = model.encoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    losses = model(*args, return_outputs=True, **kwargs)
    hook.remove()
    return losses, seen


@pytest.mark.parametrize('options', [{}, dict(cls=True), dict(cpc_prob=0.6, mlm_prob=0.4)], ids=str)
def test_both_losses_of_pretraining_by_their_formula(options, monkeypatch):
    model, drawn = pretrainer(**options), {}
    hide_tokens = type(model.hiding).hide
    monkeypatch.setattr(type(model.hiding), 'hide', lambda *args: drawn.setdefault('hidden', hide_tokens(*args)))
    own = ETCPretrainWrapper.hide_segments
    monkeypatch.setattr(
        ETCPretrainWrapper, 'hide_segments', lambda self, given: drawn.setdefault('segments', own(self, given))
    )
    torch.manual_seed(0)
    losses, (first, second) = watched(model, TOKENS, PARTS)
    hidden, chosen = drawn['segments'], drawn['hidden'][0].chosen
    share = options.get('cpc_prob', 0.1)
    assert hidden.sum(dim=-1).tolist() == [min(math.ceil(share * s), s - 1) for s in (3, 4)]
    gone = torch.tensor([[s >= 0 and bool(hidden[row, s]) for s in PARTS[row].tolist()] for row in range(2)])
    rest = [int(((PARTS[row] >= 0) & ~gone[row]).sum()) for row in range(2)]
    assert chosen.sum(dim=-1).tolist() == [math.ceil(round(model.hiding.mask_prob * n, 9)) for n in rest]
    assert not (chosen & gone).any() and not (chosen & (PARTS < 0)).any()
    table, bias = model.token_emb.weight, model.to_logits.bias
    assert torch.equal(first[0][0][gone], table[19].expand(int(gone.sum()), -1))
    shown = (PARTS >= 0) & ~gone & ~chosen
    assert torch.equal(first[0][0][shown], table[TOKENS[shown]]) and torch.equal(second[0][0], table[TOKENS])
    at = int(options.get('cls', False))
    long, glob = model.encoder(*first[0], **first[1])
    with torch.no_grad():
        targets = model.encoder(*second[0], **second[1])[1][:, at:][hidden]
    nats = -(long[chosen] @ table.T + bias).log_softmax(dim=-1)[torch.arange(int(chosen.sum())), TOKENS[chosen]]
    products = (glob[:, at:][hidden] @ targets.T).log_softmax(dim=-1)
    assert_close(losses.mlm, nats.mean())
    assert_close(losses.cpc, -products.diagonal().mean())
    assert_close(losses.loss, losses.mlm + 0.2 * losses.cpc)
    assert list(second[1]) == list(make_etc_inputs(TOKENS, PARTS, rel_max_distance=K, alone=True, local_radius=R)[1])


def test_what_a_hidden_segment_holds_does_not_leak():
    """Its global token is what it is, whatever its own tokens are; its target hangs on them alone."""
    model, hidden = pretrainer(replace_prob=1.0, random_token_prob=0.0), torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0]]) > 0
    model.hide_segments = lambda given: hidden
    found = []
    for change in (None, 'own', 'others'):
        own = torch.tensor([[s >= 0 and bool(hidden[row, s]) for s in PARTS[row].tolist()] for row in range(2)])
        changed = torch.zeros_like(own) if change is None else own if change == 'own' else ~own
        torch.manual_seed(0)
        _, (first, second) = watched(model, torch.where(changed, (TOKENS + 1) % 19, TOKENS), PARTS)
        found.append(
            [model.encoder(*args, **kwargs)[1][:, : hidden.shape[1]][hidden] for args, kwargs in (first, second)]
        )
    plain, own, others = found
    assert torch.equal(own[0], plain[0]) and not torch.allclose(own[1], plain[1])
    assert torch.equal(others[1], plain[1]) and not torch.allclose(others[0], plain[0])


def test_pretraining_without_segments_is_that_of_masked_tokens():
    model = pretrainer(cpc_prob=0.0)
    losses = model(TOKENS, PARTS, return_outputs=True)
    assert losses.cpc == 0 and torch.equal(losses.loss, losses.mlm)
    one = pretrainer()(TOKENS, PARTS.clamp(max=0), return_outputs=True)
    assert one.cpc == 0 and one.mlm > 0
    assert pretrainer(cls=True)(TOKENS, PARTS * 0 - 1) == 0  # padding alone: no segment at all
    words = PARTS.clamp(min=0)
    masked = pretrainer(mlm_prob=0.5, cpc_prob=0.0).hiding.hide(TOKENS, PARTS >= 0, words)[0].chosen
    runs = [masked[row][PARTS[row] == s] for row in range(2) for s in range(4)]
    assert masked.any() and all(run.all() or not run.any() for run in runs)


def test_labels_of_both_sides():
    made = make_etc_inputs(SEGMENTS, SEGMENTS, rel_max_distance=K, cls=True, one_sided=True).options['rel_ids']
    for row, j, g in itertools.product(range(2), range(8), range(4)):
        own, segment = g - 1, int(SEGMENTS[row, j])
        if segment >= 0:
            assert made['g2l'][row, g, j] == (3 if g and own == segment else 5 if segment > own else 4)
            assert made['l2g'][row, j, g] == (3 if g and own == segment else 5 if own > segment else 4)
    model = pretrainer(one_sided=True, sizes=dict(num_rel_ids=6))
    losses, _ = watched(model, TOKENS, PARTS)
    losses.loss.backward()
    assert (model.encoder.layers[0].attn.rel_k.grad[3:].abs().sum(dim=-1) > 0).all()


def test_refused_pretraining():
    encoder, model = ETCEncoder(**SIZES, rel_max_distance=K, local_radius=R), pretrainer()
    for words, error, call in (
        ('`mask_id` must be less than `num_tokens`, 20', ConfigError, lambda: ETCPretrainWrapper(encoder, 20, 20)),
        ('must have at least 6 labels, `num_rel_ids`, got 5', ConfigError,
         lambda: ETCPretrainWrapper(encoder, 20, 19, one_sided=True)),
        ('`random_token_prob` must be at most', ConfigError,
         lambda: ETCPretrainWrapper(encoder, 20, 19, random_token_prob=0.5)),
        ('`tokens` must not hold `mask_id`, 19', ValueError, lambda: model(TOKENS.clamp(min=19), PARTS)),
        ('`encoder` must be', ConfigError, lambda: ETCPretrainWrapper(nn.Linear(2, 2), 20, 19)),
        ('document_ids', TypeError, lambda: model(TOKENS, PARTS, document_ids=PARTS)),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()


@pytest.mark.slow
def test_hidden_segments_are_foretold():
    """Documents of thirty topics, whose words seven of ten tokens are: CPC falls below half of log N."""
    torch.manual_seed(0)
    encoder = ETCEncoder(dim=32, depth=2, heads=2, dim_head=16, local_radius=4)
    model = ETCPretrainWrapper(encoder, 31, 30, cpc_weight=1.0, cpc_prob=0.25)

    def batch():
        topic = torch.randint(30, (16, 1)).expand(-1, 16)
        return torch.where(torch.rand(16, 16) < 0.7, topic, torch.randint(30, (16, 16)))

    segments = torch.arange(4).repeat_interleave(4).expand(16, -1)
    taught(model, lambda: model(batch(), segments), 300, lr=3e-3)
    with torch.no_grad():
        found = [model(batch(), segments, return_outputs=True).cpc.item() for _ in range(20)]
    assert sum(found) / 20 < 0.5 * math.log(16), sum(found) / 20
