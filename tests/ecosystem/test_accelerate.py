"""Accelerate: a training loop that saves and goes on, and weights that live elsewhere until they are needed."""

import pytest
import torch
from torch.utils.data import DataLoader

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
ROWS = (torch.arange(12) + torch.arange(16)[:, None]) % 10


@pytest.fixture(scope='module')
def accelerate():
    return pytest.importorskip('accelerate', reason="pip install -e '.[ecosystem]'")


def language_model(**flags):
    torch.manual_seed(0)
    layers = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=10, max_seq_len=32, attn_layers=layers, **flags))


def prepared(accelerate, **options):
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
    model = language_model(tie_embedding=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=8)
    return accelerator, *accelerator.prepare(model, optimizer, DataLoader(ROWS, batch_size=4), schedule)


def train(accelerator, model, optimizer, batches, schedule, epochs=1):
    losses = []
    for batch in (batch for _ in range(epochs) for batch in batches):
        with accelerator.accumulate(model):
            loss = model(batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_a_loop_saves_and_goes_on(accelerate, tmp_path):
    accelerator, *parts = prepared(accelerate)
    losses = train(accelerator, *parts, epochs=2)
    accelerator.save_state(tmp_path / 'state')
    losses += train(accelerator, *parts, epochs=2)
    assert losses[-1] < 0.8 * losses[0]

    again, *others = prepared(accelerate)
    again.load_state(tmp_path / 'state')
    assert train(again, *others, epochs=2) == losses[8:]

    # the weights for others, which need nothing of Accelerate
    accelerator.save_model(parts[0], tmp_path / 'model')
    from safetensors.torch import load_file

    model = accelerator.unwrap_model(parts[0])
    fresh = language_model(tie_embedding=True)
    fresh.load_state_dict(load_file(tmp_path / 'model' / 'model.safetensors'))
    assert torch.equal(fresh.eval()(ROWS), model.eval()(ROWS))
    assert torch.equal(fresh.generate(ROWS, 8, temperature=0.0), model.generate(ROWS, 8, temperature=0.0))


def test_parts_of_a_step_of_unequal_length(accelerate):
    """Two micro-batches with 44 and 12 targets have the gradient of one batch with all."""
    accelerator, model, *_ = prepared(accelerate)
    lens = torch.tensor([12] * 4 + [4] * 4)
    wanted = language_model(tie_embedding=True)
    wanted(ROWS[:8], lens=lens).backward()
    for rows in (ROWS[:4], ROWS[4:8, :4]):
        with accelerator.accumulate(model):
            loss = model(rows, num_items_in_batch=int((lens - 1).sum()))
            accelerator.backward(loss * accelerator.gradient_accumulation_steps * accelerator.num_processes)
    for ours, theirs in zip(accelerator.unwrap_model(model).parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)


def test_half_precision(accelerate):
    accelerator, *parts = prepared(accelerate, mixed_precision='bf16')
    losses = train(accelerator, *parts, epochs=3)
    assert losses[-1] < losses[0]
    model = accelerator.unwrap_model(parts[0], keep_fp32_wrapper=False).eval()
    assert model.generate(ROWS, 4, temperature=0.0).shape == (16, 4)


@pytest.mark.parametrize('tied', [False, True])
def test_weights_that_live_elsewhere(accelerate, tied, tmp_path):
    """In memory or on disk, put back by hooks for the moment of a call: no short cut may read them before."""
    model = language_model(tie_embedding=tied).eval()
    logits, tokens = model.net(ROWS), model.generate(ROWS[:1], 8, temperature=0.0)
    torch.save(model.state_dict(), tmp_path / 'weights.bin')
    for offload in ('memory', 'disk'):
        with accelerate.init_empty_weights():
            other = language_model(tie_embedding=tied).eval()
        assert all(p.is_meta for p in other.parameters())
        other.load_state_dict(torch.load(tmp_path / 'weights.bin'), assign=True)
        if offload == 'memory':
            accelerate.cpu_offload(other, execution_device='cpu')
        else:
            accelerate.disk_offload(other, tmp_path / 'offload', execution_device='cpu')
        assert any(p.is_meta for p in other.parameters())
        assert torch.equal(other.net(ROWS), logits), offload
        assert torch.equal(other(ROWS), model(ROWS)), offload
        assert torch.equal(other.generate(ROWS[:1], 8, temperature=0.0), tokens), offload
