"""Lightning: a module around a wrapper trains, validates, saves, and goes on from a checkpoint."""

import pytest
import torch
from torch.utils.data import DataLoader

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
ROWS = (torch.arange(12) + torch.arange(16)[:, None]) % 10


@pytest.fixture(scope='module')
def lightning():
    return pytest.importorskip('lightning', reason="pip install -e '.[ecosystem]'")


def fitted(lightning, folder, steps, precision='32-true', resume=None):
    class LanguageModel(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True)
            net = TransformerWrapper(num_tokens=10, max_seq_len=32, tie_embedding=True, attn_layers=layers)
            self.model, self.validations = AutoregressiveWrapper(net), []

        def training_step(self, batch):
            return self.model(batch)

        def validation_step(self, batch):
            self.validations.append(self.model(batch).item())
            self.log('loss', self.validations[-1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.02)

    lightning.seed_everything(0, verbose=False)
    module = LanguageModel()
    trainer = lightning.Trainer(
        default_root_dir=folder,
        max_epochs=steps // 2,
        precision=precision,
        accelerator='cpu',
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(ROWS, batch_size=8)
    trainer.fit(module, loader, loader, ckpt_path=resume)
    return trainer, module


def test_a_module_trains_and_goes_on(lightning, tmp_path):
    trainer, module = fitted(lightning, tmp_path / 'straight', 12)
    assert module.validations[-1] < 0.8 * module.validations[0] and module.model.training
    before, _ = fitted(lightning, tmp_path / 'stopped', 6)
    _, resumed = fitted(lightning, tmp_path / 'stopped', 12, resume=before.checkpoint_callback.best_model_path)
    assert resumed.validations[-2:] == module.validations[-2:]

    state = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)['state_dict']
    again = AutoregressiveWrapper.from_config(module.model.config)
    again.load_state_dict({name.removeprefix('model.'): weight for name, weight in state.items()})
    module.eval()
    assert torch.equal(again.eval()(ROWS), module.model(ROWS))
    tokens = module.model.generate(ROWS, 8, temperature=0.0)
    assert torch.equal(again.generate(ROWS, 8, temperature=0.0), tokens)


def test_half_precision(lightning, tmp_path):
    _, module = fitted(lightning, tmp_path, 6, precision='bf16-mixed')
    assert module.validations[-1] < module.validations[0]
