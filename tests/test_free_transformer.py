"""Codes of bits, and the decoder that is conditioned on them, against sums over all codes and plain calls."""

import math

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import VOCAB, fit, ids_of

from x_transformers.flags import ConfigError
from x_transformers.free_transformer import BinaryMapper, FreeTransformer

BITS = 3


def build(**options):
    sizes = dict(num_tokens=VOCAB, dim=16, dec_head_depth=1, dec_tail_depth=2, max_seq_len=12, heads=2, attn_dim_head=8)
    return FreeTransformer(**{**sizes, 'latent_bits': BITS, 'kl_loss_threshold': 0.01, 'verbose': False, **options})


def model_of(**options):
    return randomised(build(**options), scale=0.4)


def chances_of(logits):
    """The probability of every code, for the logits of its bits."""
    found = []
    for code in range(2 ** len(logits)):
        each = [p if code >> bit & 1 else 1 - p for bit, p in enumerate(logits.sigmoid())]
        found.append(math.prod(each))
    return torch.stack(found)


# the mapper


def test_codes_have_their_probabilities():
    logits = randn(BITS)
    drawn, _ = BinaryMapper(BITS)(logits.expand(20000, -1))
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    assert_close(drawn.mean(dim=0), chances_of(logits), tolerance=0.02)


@pytest.mark.parametrize('scale', [1.0, 30.0, 800.0])
def test_gradients_are_those_of_the_probabilities(scale):
    logits, weights = (scale * randn(BITS)).requires_grad_(), randn(2**BITS, seed=1)
    out, loss = BinaryMapper(BITS, kl_loss_threshold=0.0)(logits)
    (ours,) = torch.autograd.grad(out @ weights, logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(chances_of(logits) @ weights, logits)
    assert_close(ours, theirs)
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_the_loss_is_what_a_code_tells_beyond_the_threshold():
    logits = 3 * randn(2, 4, BITS)
    told = []
    for row in logits.flatten(0, 1):
        p = chances_of(row)
        told.append(BITS * math.log(2) + (p * p.log()).sum())
    for threshold in (0.0, 0.7):
        _, loss = BinaryMapper(BITS, kl_loss_threshold=threshold)(logits)
        assert_close(loss, (torch.stack(told) - threshold).relu().mean())
    mapper = BinaryMapper(BITS).eval()
    out, loss = mapper(logits.requires_grad_())
    assert loss.item() == 0
    assert not out.requires_grad
    assert mapper(logits, calc_aux_loss=True)[1] > 0
    assert mapper(logits, straight_through=True)[0].requires_grad


# the model


def by_hand(model, seq, told=None, per_token=True):
    """The next-token loss, with codes drawn from the same seed."""
    safe = seq.clamp(min=0)
    hidden = model.token_emb(safe[:, :-1])
    hidden = hidden if model.decoder_head is None else model.decoder_head(hidden)
    source, mask = hidden, seq[:, :-1] >= 0
    if told is not None:
        source, mask = model.decoder_head(model.token_emb(told.clamp(min=0))), told >= 0
    b, n = source.shape[:2]
    count, places = (n, dict(pos=torch.arange(n), context_pos=torch.arange(n))) if per_token else (1, {})
    queries = model.query_token_for_latents.expand(b, count, -1)
    bits = model.to_latent_bit_logits(model.encoder(queries, context=source, context_mask=mask, **places))
    torch.manual_seed(1)
    codes = ((torch.rand_like(bits) <= bits.sigmoid()) * 2 ** torch.arange(BITS)).sum(dim=-1)
    condition = model.from_latent_to_condition.weight.T[codes]
    logits = model.token_unembed(model.decoder_tail(hidden, self_attn_kv_residuals=condition))
    return F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten(), ignore_index=-1)


@pytest.mark.parametrize('options', [{}, dict(dec_head_depth=0), dict(per_token_latents=False)], ids=str)
def test_the_loss(options):
    model, ids = model_of(**options, kl_loss_weight=0.3), ids_of(2, 6)
    torch.manual_seed(1)
    total, (loss, told) = model(ids, return_all_losses=True)
    assert_close(loss, by_hand(model, ids, per_token=options.get('per_token_latents', True)))
    assert_close(total, loss + 0.3 * told)
    assert told > 0
    if model.decoder_head is not None:
        torch.manual_seed(1)
        loss = model(ids, ids[:, :4], return_all_losses=True)[1][0]
        assert_close(loss, by_hand(model, ids, ids[:, :4], per_token=False))


def test_b6_padding_may_stand_in_the_ids():
    model, ids = model_of(), ids_of(2, 6)
    ids[1, 4:] = -1
    torch.manual_seed(1)
    assert_close(model(ids, return_all_losses=True)[1][0], by_hand(model, ids))
    torch.manual_seed(1)
    told = ids_of(2, 5, seed=1)
    told[0, 3:] = -1
    assert model(ids, told).isfinite()


def test_padding_is_not_read_by_the_encoder_and_has_no_codes():
    """The codes of a text, and their loss, are those of the text without its padding."""
    model = model_of()
    hidden, mask = randn(1, 6, 16), torch.arange(6)[None] < 4
    _, alone = model.encode_to_latents(hidden[:, :4], return_kl_loss=True)
    for padded in (hidden, torch.cat((hidden[:, :4], 5 * hidden[:, 4:]), dim=1)):
        _, loss = model.encode_to_latents(padded, mask, return_kl_loss=True)
        assert_close(loss, alone)
    assert (alone - model.encode_to_latents(hidden, return_kl_loss=True)[1]).abs() > 1e-4


# generation


def greedy(model, ids, length, weights=None):
    while ids.shape[1] < length:
        hidden = model.decoder_head(model.token_emb(ids))
        given = {}
        if weights is not None:
            given['self_attn_kv_residuals'] = (weights @ model.from_latent_to_condition.weight.T)[:, None]
        logits = model.token_unembed(model.decoder_tail(hidden, **given))
        ids = torch.cat((ids, logits[:, -1:].argmax(dim=-1)), dim=1)
    return ids


@pytest.mark.costly
@pytest.mark.parametrize('cached', [True, False], ids=['cached', 'uncached'])
def test_it_continues_given_a_code(cached):
    model, ids = model_of(), ids_of(2, 3)
    one_hot = torch.eye(2**BITS).double()
    dense = randn(2**BITS)
    for latents, weights in [
        (None, None),
        (5, one_hot[[5, 5]]),
        ([1, 6], one_hot[[1, 6]]),
        (torch.tensor([1, 6]), one_hot[[1, 6]]),
        (dense, dense.expand(2, -1)),
        (one_hot[[3, 4]], one_hot[[3, 4]]),
        ([[1], [6]], one_hot[[1, 6]]),
        (one_hot[[3, 4], None], one_hot[[3, 4]]),
        (dense[None, None], dense.expand(2, -1)),
    ]:
        out = model.generate(ids, 9, latents=latents, temperature=0.0, use_kv_cache=cached)
        assert torch.equal(out, greedy(model, ids, 9, weights))


def test_b13_generation_is_in_eval_mode_and_gives_the_prompts_back():
    model, ids = model_of(attn_dropout=0.5, latent_dropout_prob=0.5).train(), ids_of(2, 3)
    outs = [model.generate(ids, 9, latents=3, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    assert torch.equal(*outs)
    assert model.training
    assert outs[0].shape == (2, 9)
    assert torch.equal(outs[0][:, :3], ids)
    assert model.generate(ids[0], 9).shape == (9,)
    assert torch.equal(model.generate(ids, 3), ids)


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(latent_bits=0), 'latent_bits'),
        (lambda: build(latent_bits=40), 'latent_bits'),
        (lambda: build(attn_dim_heads=3), 'attn_dim_head'),
        (lambda: model_of()(ids_of(2, 1)), '`seq`'),
        (lambda: model_of()(ids_of(2, 5), ids_of(3, 5)), '`seq_for_latents`'),
        (lambda: model_of().generate(ids_of(2, 5), 4), '`seq_len`'),
        (lambda: model_of().generate([[1, 2], [1]], 4), '`prompts`'),
        (lambda: model_of().generate(ids_of(2, 5), 6, temperature=-1), '`temperature`'),
        (lambda: model_of().generate(ids_of(2, 5), 6, latents=[1, 2, 3]), '`latents`'),
        (lambda: BinaryMapper(3)(randn(2, 4)), '`logits`'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


@pytest.mark.slow
def test_it_learns_to_write_what_the_code_says():
    """Texts of one repeated token: the code of a text tells which, so that its first token can be foretold."""
    torch.manual_seed(0)
    model = build(num_tokens=9, per_token_latents=False, kl_loss_threshold=3 * math.log(2))

    def rows():
        ids = torch.randint(1, 9, (32, 1)).expand(-1, 5)
        return torch.cat((torch.zeros_like(ids[:, :1]), ids), dim=1)

    fit(model, lambda: model(rows()), 400)
    out = model.generate(torch.zeros(8, 1).long(), 6, latents=torch.arange(8), temperature=0.0)[:, 1:]
    assert (out == out[:, :1]).float().mean() > 0.95
    assert len(out[:, 0].unique()) >= 6, 'codes stand for different tokens'
