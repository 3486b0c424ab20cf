"""`PyTorchModelHubMixin` of huggingface_hub, beside a wrapper: folders, tied weights, how the model is built."""

import json

import pytest
import torch

from x_transformers import AttentionLayers, Decoder, TransformerWrapper

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
IDS = torch.arange(12)[None] % 10


@pytest.fixture(scope='module')
def mixin():
    return pytest.importorskip('huggingface_hub', reason="pip install -e '.[hub]'").PyTorchModelHubMixin


def sized(mixin, first):
    """A model of its own sizes, the mixin before or behind the wrapper."""

    class Model(*((mixin, TransformerWrapper) if first else (TransformerWrapper, mixin))):
        def __init__(self, dim: int = 16, depth: int = 1, tied: bool = False):
            layers = Decoder(dim=dim, depth=depth, heads=2, attn_dim_head=8, rotary_pos_emb=True)
            super().__init__(num_tokens=10, max_seq_len=32, tie_embedding=tied, attn_layers=layers)

    return Model


@pytest.mark.parametrize('first', [False, True])
@pytest.mark.parametrize('tied', [False, True])
def test_a_model_of_ones_own(mixin, first, tied, tmp_path):
    kind = sized(mixin, first)
    model = kind(dim=24, depth=2, tied=tied).eval()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / 'config.json').read_text()) == {'dim': 24, 'depth': 2, 'tied': tied}
    again = kind.from_pretrained(tmp_path)
    assert torch.equal(again(IDS), model(IDS)) and not again.training
    assert again.config == model.config and again.config.dim == 24
    assert ('to_logits.weight' in model.state_dict()) != tied
    other = kind.from_config(model.config)
    other.load_state_dict(again.state_dict())
    assert torch.equal(other.eval()(IDS), model(IDS))


def test_any_stack_by_its_configuration(mixin, tmp_path):
    of_stacks = {AttentionLayers: (lambda stack: stack.config, AttentionLayers.from_config)}

    class Model(TransformerWrapper, mixin, coders=of_stacks):
        def __init__(self, num_tokens: int, max_seq_len: int, attn_layers: AttentionLayers, **flags):
            super().__init__(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=attn_layers, **flags)

    layers = Decoder(dim=16, depth=1, heads=2, rotary_pos_emb=True, attn_kv_heads=1, ff_glu=True)
    model = Model(num_tokens=10, max_seq_len=32, attn_layers=layers, tie_embedding=True, post_emb_norm=True).eval()
    model.save_pretrained(tmp_path)
    again = Model.from_pretrained(tmp_path)
    assert torch.equal(again(IDS), model(IDS)) and again.config == model.config
