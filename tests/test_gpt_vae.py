"""The variational autoencoder of texts, against plain calls of its parts."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import VOCAB, fit, ids_of

from x_transformers.flags import ConfigError
from x_transformers.gpt_vae import GPTVAE

LATENT = 4


def build(**options):
    sizes = dict(num_tokens=VOCAB, dim=16, depth=2, enc_depth=1, max_seq_len=12, heads=2, attn_dim_head=8)
    return GPTVAE(**{**sizes, 'dim_latent': LATENT, 'verbose': False, **options})


def model_of(**options):
    return randomised(build(**options), scale=0.3)


def by_hand(model, ids, told=None, floor=0.0):
    """The next-token loss and the divergence, row by row, with the same noise."""
    torch.manual_seed(1)
    noise = torch.randn(len(ids), LATENT, dtype=torch.float64)
    losses, divergences = [], []
    for row, text, eps in zip(ids, ids if told is None else told, noise, strict=True):
        embeds = model.encoder(text[text >= 0][None])
        mean, log_var = model.to_latent_mean_log_variance[0](embeds)[0].chunk(2)
        token = model.from_latent_to_prepend_token[0](mean + log_var.exp().sqrt() * eps)
        logits = model.decoder(row.clamp(min=0)[None], prepend_embeds=token[None, None])[0, 1:-1]
        losses.append(F.cross_entropy(logits, row[1:], ignore_index=-1, reduction='sum'))
        each = 0.5 * (log_var.exp() + mean**2 - log_var - 1)
        divergences.append((each - floor).clamp(min=0).sum())
    return sum(losses) / (ids[:, 1:] >= 0).sum(), torch.stack(divergences).mean()


@pytest.mark.parametrize('options', [{}, dict(rotary_pos_emb=True)], ids=str)
def test_the_loss(options):
    model = model_of(**options, vae_kl_loss_weight=0.3, vae_kl_div_floor=0.25)
    for ids, told in ((ids_of(2, 6), None), (ids_of(2, 6), ids_of(2, 4, seed=1))):
        torch.manual_seed(1)
        total, (loss, divergence) = model(ids, told, return_all_losses=True)
        wanted = by_hand(model, ids, told, floor=0.25)
        assert_close(loss, wanted[0])
        assert_close(divergence, wanted[1])
        assert_close(total, loss + 0.3 * divergence)


def test_b6_padding_may_stand_in_the_ids():
    model, ids = model_of(), ids_of(3, 6)
    ids[0, 3:] = ids[1, 5:] = -1
    torch.manual_seed(1)
    loss, divergence = model(ids, return_all_losses=True)[1]
    wanted = by_hand(model, ids)
    assert_close(loss, wanted[0])
    assert_close(divergence, wanted[1])


@pytest.mark.parametrize('options', [{}, dict(rotary_pos_emb=True), dict(rel_pos_bias=True)], ids=str)
def test_b9_rows_without_their_latent_are_those_of_the_decoder_alone(options):
    """Not seeing the latent changes no position."""
    model, ids = model_of(**options, latents_dropout_prob=1 - 1e-9).train(), ids_of(2, 6)
    loss = model(ids, return_all_losses=True)[1][0]
    logits = model.decoder(ids)
    assert_close(loss, F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


@pytest.mark.parametrize('cache_kv', [True, False], ids=['cached', 'uncached'])
def test_it_continues_given_a_latent(cache_kv):
    model, prompts, latents = model_of(), ids_of(2, 3), randn(2, LATENT)

    def greedy(latents):
        ids = prompts
        given = {} if latents is None else dict(prepend_embeds=model.from_latent_to_prepend_token(latents))
        for _ in range(5):
            ids = torch.cat((ids, model.decoder(ids, **given)[:, -1:].argmax(dim=-1)), dim=1)
        return ids[:, 3:]

    options = dict(temperature=0.0, cache_kv=cache_kv)
    assert torch.equal(model.generate(prompts, 5, **options), greedy(None))
    assert torch.equal(model.generate(prompts, 5, latents=latents, **options), greedy(latents))
    one = latents[:1].expand(2, -1)
    for given in (latents[0], latents[0].tolist()):
        assert torch.equal(model.generate(prompts, 5, latents=given, **options), greedy(one))
    texts = ids_of(2, 6)
    torch.manual_seed(1)
    drawn = model.encode_to_latents(texts)
    torch.manual_seed(1)
    assert torch.equal(model.generate(prompts, 5, seq_for_latents=texts, **options), greedy(drawn))
    assert model.generate(prompts[0], 5, seq_for_latents=texts[0]).shape == (5,)


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(latents_dropout_prob=1.5), 'latents_dropout_prob'),
        (lambda: build(attn_dim_heads=3), 'attn_dim_head'),
        (lambda: model_of()(ids_of(2, 1)), '`seq`'),
        (lambda: model_of()(ids_of(2, 5), ids_of(3, 5)), '`seq_for_latents`'),
        (lambda: model_of().generate(ids_of(2, 5), 3, latents=randn(3, LATENT)), '`latents`'),
        (lambda: model_of().generate(ids_of(2, 5), 3, latents=randn(5)), '`latents`'),
        (lambda: model_of().generate(ids_of(2, 5), 3, latents=randn(4), seq_for_latents=ids_of(2, 5)), 'only one'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


def test_names():
    assert 'ar_wrapped_decoder.net.to_logits.weight' in build().state_dict()


@pytest.mark.slow
def test_it_learns_to_repeat_what_the_latent_tells():
    torch.manual_seed(0)

    def rows(b):
        ids = torch.randint(1, VOCAB, (b, 1)).expand(-1, 5)
        return torch.cat((torch.zeros_like(ids[:, :1]), ids), dim=1)

    model = build(dim=32, vae_kl_loss_weight=0.01, latents_dropout_prob=0.1)
    fit(model, lambda: model(rows(32)), 300)
    ids = rows(64)
    out = model.generate(ids[:, :1], 5, seq_for_latents=ids, temperature=0.0)
    assert (out == ids[:, 1:]).float().mean() > 0.9
