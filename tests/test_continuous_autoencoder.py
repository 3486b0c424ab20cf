"""The autoencoder of vectors, against plain calls of its parts, row by row."""

import pytest
import torch
from oracles import assert_close, randn, randomised
from training_laws import fit

from x_transformers.continuous_autoencoder import (
    ContinuousTransformerAutoencoder,
    DeterministicLatentBottleneck,
    VariationalLatentBottleneck,
)
from x_transformers.flags import ConfigError

WIDTH, LATENT = 5, 6


def build(**options):
    sizes = dict(dim=16, enc_depth=1, dec_depth=2, max_seq_len=12, heads=2, attn_dim_head=8, dim_input=WIDTH)
    return ContinuousTransformerAutoencoder(**{**sizes, 'dim_latent': LATENT, 'verbose': False, **options})


def model_of(**options):
    return randomised(build(**options), scale=0.3)


def outputs_by_hand(model, x, latent, seen=True):
    """Each vector of one sequence from the latent and those before it."""
    if seen:
        token = model.from_latent_to_prepend_token(latent[None])
    else:
        token = torch.zeros(1, 1, 16, dtype=torch.float64)
    options = {} if seen else dict(prepend_mask=torch.zeros(1, 1, dtype=torch.bool))
    return torch.stack([model.decoder(x[None, :i], prepend_embeds=token, **options)[0, -1] for i in range(len(x))])


@pytest.mark.parametrize('loss_type', ['l2', 'l1'])
@pytest.mark.parametrize('lens', [None, [7, 3], [1, 7]], ids=str)
def test_the_loss(loss_type, lens):
    model, x = model_of(loss_type=loss_type), randn(2, 7, WIDTH)
    distance = (lambda d: d**2) if loss_type == 'l2' else torch.abs
    each = []
    for row, count in zip(x, lens or [7, 7], strict=True):
        latent = model.bottleneck.proj(model.encoder(row[None, :count])[0].mean(dim=0))
        each.append(distance(outputs_by_hand(model, row[:count], latent) - row[:count]).mean(dim=-1))
    lens = None if lens is None else torch.tensor(lens)
    assert_close(model(x, lens=lens), torch.cat(each).mean())
    assert_close(model(x, lens=lens, return_unreduced_loss=True), torch.stack([row.mean() for row in each]))
    if lens is not None:
        beyond = x.masked_fill((torch.arange(7) >= lens[:, None])[..., None], torch.nan)
        assert_close(model(beyond, lens=lens), torch.cat(each).mean())


def test_any_length_without_absolute_positions():
    model, x = model_of(max_seq_len=None, rotary_pos_emb=True), randn(2, 15, WIDTH)
    assert not any('pos_emb.emb' in name for name in model.state_dict())
    latents = model.encode(x)
    for row, latent, out in zip(x, latents, model.decode(latents, 15), strict=True):
        assert_close(outputs_by_hand(model, out, latent), out)
        assert_close(model(row[None]), (outputs_by_hand(model, row, latent) - row).square().mean())


def test_b7_no_vector_sees_itself(monkeypatch):
    model, x = model_of(), randn(1, 6, WIDTH)
    seen = {}
    forward = model.decoder.forward
    monkeypatch.setattr(model.decoder, 'forward', lambda *a, **k: seen.setdefault('out', forward(*a, **k)))
    token = randn(1, 1, 16)
    for place in range(6):
        one, other = x.clone(), x.clone()
        other[0, place] += 1
        outs = [forward(t[:, :-1], prepend_embeds=token) for t in (one, other)]
        assert_close(outs[0][:, : place + 1], outs[1][:, : place + 1])
    model(x)
    assert seen['out'].shape == x.shape


def test_b8_rows_without_their_latent_know_nothing_of_it():
    model, x = model_of(latents_dropout_prob=1 - 1e-9), randn(2, 6, WIDTH)
    model.train()
    losses = model(x, return_unreduced_loss=True)
    for row, loss in zip(x, losses, strict=True):
        expected = (outputs_by_hand(model, row, None, seen=False) - row).square().mean()
        assert_close(loss, expected)
    model.from_latent_to_prepend_token[0].bias.data += 1
    assert_close(model(x, return_unreduced_loss=True), losses)


def test_the_variational_bottleneck():
    bottleneck, x = randomised(VariationalLatentBottleneck(8, LATENT, kl_div_floor=0.1)), randn(3, 8)
    mean, log_var = bottleneck.to_mean_log_var[0](x).chunk(2, dim=-1)
    each = (0.5 * (log_var.exp() + mean**2 - log_var - 1) - 0.1).clamp(min=0).sum(dim=-1)
    torch.manual_seed(1)
    latents, loss = bottleneck(x, return_unreduced_loss=True)
    assert_close(loss, each)
    torch.manual_seed(1)
    assert_close(latents, mean + log_var.exp().sqrt() * torch.randn_like(mean))
    assert_close(bottleneck(x)[1], each.mean())
    model = model_of(bottleneck_type='variational')
    total, (recon, aux) = model(randn(2, 4, WIDTH), return_all_losses=True)
    assert_close(total, recon + aux)


def test_other_bottlenecks():
    bent = build(deterministic_bottleneck_kwargs=dict(activation=torch.nn.Tanh()))
    assert bent.encode(100 * torch.randn(2, 4, WIDTH)).abs().max() <= 1
    own = DeterministicLatentBottleneck(16, LATENT)
    assert build(bottleneck=own).bottleneck is own
    total, (recon, aux) = build(bottleneck=own)(torch.randn(2, 4, WIDTH), return_all_losses=True)
    assert aux is None
    assert torch.equal(total, recon)
    assert build(dim_input=None)(torch.randn(2, 4, 16)).isfinite()


@pytest.mark.parametrize('cache_kv', [True, False], ids=['cached', 'uncached'])
def test_decoding_feeds_on_itself(cache_kv):
    model, latents = model_of(), randn(2, LATENT)
    out = model.decode(latents, 5, cache_kv=cache_kv)
    for row, latent in zip(out, latents, strict=True):
        assert_close(row, outputs_by_hand(model, row, latent))
    assert model.decode(latents, 0).shape == (2, 0, WIDTH)


@pytest.mark.parametrize(
    'call, words',
    [
        (lambda: build(bottleneck_type='none'), 'bottleneck_type'),
        (lambda: build(loss_type='l3'), 'loss_type'),
        (lambda: build(attn_dim_heads=3), 'attn_dim_head'),
        (lambda: model_of()(randn(2, 4, 3)), '`seq`'),
        (lambda: model_of()(randn(2, 0, WIDTH)), '`seq`'),
        (lambda: model_of()(randn(2, 4, WIDTH), lens=torch.tensor([5, 1])), '`lens`'),
        (lambda: model_of().decode(randn(2, 3), 4), '`latents`'),
        (lambda: model_of().decode(randn(2, LATENT), 13), '`seq_len`'),
    ],
)
def test_refusals(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()


@pytest.mark.slow
def test_it_learns_to_keep_a_line_in_its_latent():
    """Straight lines, from their latents alone."""
    torch.manual_seed(0)

    def lines(b):
        start, step = torch.randn(b, 1, WIDTH), 0.2 * torch.randn(b, 1, WIDTH)
        return start + step * torch.arange(6)[:, None]

    model = build(dim=64, attn_dim_head=32, dim_latent=16, latents_dropout_prob=0.0)
    fit(model, lambda: model(lines(64)), 500, lr=2e-3)
    x = lines(64)
    model.eval()
    error = (model.decode(model.encode(x), 6) - x).square().mean() / x.var()
    assert error < 0.1
