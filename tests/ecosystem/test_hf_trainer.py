"""`transformers.Trainer`: training, evaluation, checkpoints, and going on from one."""

import pytest
import torch
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper, ViTransformerWrapper
from x_transformers.integrations.trainer import CausalLM

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
ROWS = [{'input_ids': (torch.arange(12) + row) % 10, 'labels': (torch.arange(12) + row) % 10} for row in range(24)]


@pytest.fixture(scope='module')
def transformers():
    pytest.importorskip('accelerate', reason="pip install -e '.[ecosystem]'")
    return pytest.importorskip('transformers', reason="pip install -e '.[test-pretrained]'")


def language_model(**flags):
    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, ff_dropout=0.1)
    return CausalLM(TransformerWrapper(num_tokens=10, max_seq_len=16, attn_layers=layers, **flags))


def accuracy(prediction):
    return {'accuracy': float((prediction.predictions[:, :-1].argmax(-1) == prediction.label_ids[:, 1:]).mean())}


def arguments(transformers, folder, **more):
    usual = dict(per_device_train_batch_size=4, learning_rate=0.02, report_to=[], use_cpu=True, disable_tqdm=True)
    return transformers.TrainingArguments(str(folder), **{**usual, **more})


def trained(transformers, folder, steps, resume=None):
    transformers.set_seed(0)
    model = language_model(tie_embedding=True)
    options = dict(max_steps=steps, gradient_accumulation_steps=2, lr_scheduler_type='constant', save_steps=4)
    options |= dict(eval_strategy='steps', eval_steps=4, logging_steps=4)
    trainer = transformers.Trainer(
        model,
        arguments(transformers, folder, **options),
        train_dataset=ROWS,
        eval_dataset=ROWS[:6],
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_language_model(transformers, tmp_path):
    trainer = trained(transformers, tmp_path / 'straight', 12)
    history = [entry['eval_loss'] for entry in trainer.state.log_history if 'eval_loss' in entry]
    assert len(history) == 3 and history[2] < history[1] < history[0]
    found = trainer.evaluate()
    rows = torch.stack([row['input_ids'] for row in ROWS[:6]])
    net = trainer.model.eval().net
    assert found['eval_loss'] == pytest.approx(AutoregressiveWrapper(net)(rows).item(), rel=1e-5)
    hits = (net(rows)[:, :-1].argmax(-1) == rows[:, 1:]).float().mean().item()
    assert found['eval_accuracy'] == pytest.approx(hits) and hits > 0.5
    # what it saves is what `AutoregressiveWrapper` reads
    from safetensors.torch import load_file

    weights = load_file(tmp_path / 'straight' / 'checkpoint-12' / 'model.safetensors')
    again = AutoregressiveWrapper.from_config({**trainer.model.config, 'class': 'AutoregressiveWrapper'})
    again.load_state_dict(weights)
    assert torch.equal(again.eval().net(rows), net(rows))

    # interrupted after 4 steps
    trained(transformers, tmp_path / 'stopped', 4)
    resumed = trained(transformers, tmp_path / 'stopped', 12, resume=True)
    for one, other in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_accumulated_batches_count_by_their_targets(transformers, tmp_path):
    """Two batches of one row with 9 and 2 targets make the step of one batch with both."""
    asked = torch.arange(12) < torch.tensor([[3], [10]])
    rows = [dict(row, labels=row['labels'].masked_fill(asked[at], -100)) for at, row in enumerate(ROWS[:2])]
    found = []
    for size in (2, 1):
        transformers.set_seed(0)
        model = language_model()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        options = dict(max_steps=1, gradient_accumulation_steps=2 // size, per_device_train_batch_size=size)
        options |= dict(optim='sgd', learning_rate=1.0, max_grad_norm=0.0, save_strategy='no')
        options |= dict(lr_scheduler_type='constant')
        transformers.Trainer(model, arguments(transformers, tmp_path, **options), train_dataset=rows).train()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize('kind', ['CausalLM', 'labels'])
def test_accumulated_batches_are_those_of_a_loop(transformers, tmp_path, kind):
    """Four batches of a row each, of unequal lengths, make the step of one batch with all, exactly: by its own loop and
    by the Trainer, whose number of targets leaves out the first label of each row."""
    lengths = torch.tensor([12, 3, 7, 5])
    ids = torch.stack([row['input_ids'] for row in ROWS[:4]])
    real = torch.arange(12) < lengths[:, None]
    rows = [
        {'input_ids': row, 'attention_mask': mask.long(), 'labels': row.masked_fill(~mask, -100)}
        if kind == 'CausalLM'
        else {'input_ids': row[:length], 'labels': row[:length]}
        for row, mask, length in zip(ids, real, lengths, strict=True)
    ]

    def model_of():
        transformers.set_seed(0)
        model = language_model()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    wanted = model_of()
    AutoregressiveWrapper(wanted.net)(ids, lens=lengths).backward()
    found = model_of()
    options = dict(max_steps=1, gradient_accumulation_steps=4, per_device_train_batch_size=1, save_strategy='no')
    options |= dict(optim='sgd', learning_rate=1.0, max_grad_norm=0.0, lr_scheduler_type='constant')
    before = [p.detach().clone() for p in found.parameters()]
    transformers.Trainer(found, arguments(transformers, tmp_path, **options), train_dataset=rows).train()
    for old, new, p in zip(before, found.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(old - new.detach(), p.grad, atol=1e-6, rtol=1e-4)


def test_any_wrapper_by_its_loss(transformers, tmp_path):
    class OwnLoss(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(inputs['img'])
            loss = nn.functional.cross_entropy(logits, inputs['labels'])
            return (loss, {'logits': logits}) if return_outputs else loss

    transformers.set_seed(0)
    layers = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8)
    model = ViTransformerWrapper(image_size=8, patch_size=4, channels=1, num_classes=2, attn_layers=layers)
    images = [{'img': torch.randn(1, 8, 8).sort(-1 - row % 2).values, 'labels': row % 2} for row in range(16)]
    options = dict(max_steps=20, save_strategy='no', remove_unused_columns=False, label_names=['labels'])
    trainer = OwnLoss(model, arguments(transformers, tmp_path, **options), train_dataset=images, eval_dataset=images)
    before = trainer.evaluate()['eval_loss']
    trainer.train()
    assert trainer.evaluate()['eval_loss'] < 0.5 * before
