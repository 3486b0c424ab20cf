"""Optimisers and averages of weights: schedule-free, Muon, moving averages. What generates sees the weights of now."""

import copy

import pytest
import torch

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
IDS = (torch.arange(12) + torch.arange(4)[:, None]) % 10


def language_model(**flags):
    torch.manual_seed(0)
    stack = dict(rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True, attn_kv_heads=1, attn_qk_norm=True)
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **stack)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=10, max_seq_len=32, attn_layers=layers, **flags))


def train(model, *optimizers, steps=12, after=lambda: None):
    losses = []
    for _ in range(steps):
        losses.append(model(IDS))
        losses[-1].backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        after()
    assert losses[-1] < 0.7 * losses[0]


def check_generation(model):
    """Tokens are those of the weights as they are now, in other modules too."""
    other = AutoregressiveWrapper.from_config(model.config)
    other.load_state_dict(model.state_dict())
    for prompt in (IDS, IDS[:1]):
        wanted = other.eval().generate(prompt, 8, temperature=0.0, cache_kv=False)
        assert torch.equal(model.generate(prompt, 8, temperature=0.0), wanted)


def test_schedule_free():
    schedulefree = pytest.importorskip('schedulefree', reason="pip install -e '.[ecosystem]'")
    model = language_model(tie_embedding=True)
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.05)
    optimizer.train()
    check_generation(model)
    train(model, optimizer)
    trained = copy.deepcopy(model)
    check_generation(model)
    optimizer.eval()  # in place, to the average
    model.eval()
    assert (model(IDS) - trained.eval()(IDS)).abs() > 1e-4
    check_generation(model)
    optimizer.train()
    torch.testing.assert_close(model(IDS), trained(IDS))
    check_generation(model)


@pytest.mark.skipif(not hasattr(torch.optim, 'Muon'), reason='torch.optim.Muon came with torch 2.9')
@pytest.mark.parametrize('queries_and_keys', [False, True])
def test_muon(queries_and_keys):
    model = language_model()
    matrices = model.muon_parameters(queries_and_keys)
    rest = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
    names = {p: name for name, p in model.named_parameters()}
    hidden = ('to_v', 'to_out', 'ff.0.proj', 'ff.2') + (('to_q', 'to_k') if queries_and_keys else ())
    assert {names[p] for p in matrices} == {
        name for name, p in model.named_parameters() if p.ndim == 2 and any(part in name for part in hidden)
    }
    train(model, torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=0.02))
    check_generation(model)


@pytest.mark.parametrize('tied', [False, True])
def test_averages_of_torch(tied):
    model = language_model(tie_embedding=tied)
    swa = torch.optim.swa_utils
    average = swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.5))
    hand = [p.detach().clone() for p in model.parameters()]

    def update():
        average.update_parameters(model)
        for mean, p in zip(hand, model.parameters(), strict=True):
            mean.copy_(p if len(seen) == 0 else mean.lerp(p.detach(), 0.5))
        seen.append(1)

    seen = []
    check_generation(average.module)
    train(model, torch.optim.AdamW(model.parameters(), lr=0.02), after=update)
    for mean, p in zip(hand, average.module.parameters(), strict=True):
        torch.testing.assert_close(mean, p)
    check_generation(average.module)


def test_ema_pytorch():
    ema_pytorch = pytest.importorskip('ema_pytorch', reason="pip install -e '.[ecosystem]'")
    model = language_model(tie_embedding=True)
    ema = ema_pytorch.EMA(model, beta=0.5, update_every=1, update_after_step=0, inv_gamma=1.0, power=1.0)
    check_generation(ema.ema_model)
    train(model, torch.optim.AdamW(model.parameters(), lr=0.02), after=ema.update)
    kept, now = ema.ema_model.state_dict(), model.state_dict()
    assert kept.keys() == now.keys() and any(not torch.equal(kept[name], now[name]) for name in now)
    assert ema(IDS) != model(IDS)
    check_generation(ema.ema_model)
    again = ema_pytorch.EMA(language_model(tie_embedding=True), beta=0.5)
    again.load_state_dict(ema.state_dict())
    assert torch.equal(again.ema_model(IDS), ema.ema_model(IDS))
