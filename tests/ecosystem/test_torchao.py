"""torchao: weights in 8 and 4 bits generate what the same weights in full precision do, by every way of reading."""

import copy

import pytest
import torch
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, XTransformer
from x_transformers.generation.step import Step

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
TODAY = dict(rotary_pos_emb=True, rotary_emb_dim=32, attn_kv_heads=2, use_rmsnorm=True, ff_glu=True, ff_swish=True)


@pytest.fixture(scope='module')
def torchao():
    return pytest.importorskip('torchao.quantization', reason="pip install -e '.[ecosystem]'")


def int8(torchao):
    return torchao.Int8WeightOnlyConfig()


def int4(torchao):
    return torchao.IntxWeightOnlyConfig(torch.int4, torchao.PerGroup(32))


def packed_int4(torchao):
    """Two weights to a byte, on a CPU: those of `Int4WeightOnlyConfig` are for GPUs."""
    reason = 'this torchao packs four bits for GPUs only'
    found = pytest.importorskip('torchao.prototype.quantization.int4.inference_workflow', reason=reason)
    return found.PrototypeInt4WeightOnlyConfig(group_size=32)


def language_model(**flags):
    torch.manual_seed(0)
    layers = Decoder(dim=64, depth=2, heads=4, attn_dim_head=32, **flags)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=96, max_seq_len=32, attn_layers=layers)).eval()


def in_full(model):
    """A copy with the numbers that its weights stand for."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and type(weight) is not nn.Parameter:
                eye = torch.eye(weight.shape[-1])
                module._parameters[name] = nn.Parameter(nn.functional.linear(eye, weight).T.contiguous())
    return model


def quantised(torchao, config, model):
    before = copy.deepcopy(model)
    torchao.quantize_(model, config(torchao))
    full = in_full(model)
    assert not torch.equal(full.net.to_logits.weight, before.net.to_logits.weight)
    return model, full


PROMPT = torch.arange(21).view(3, 7)
WAYS = {
    'with a cache': lambda model: model.generate(PROMPT, 12, temperature=0.0),
    'without': lambda model: model.generate(PROMPT, 12, temperature=0.0, cache_kv=False),
    'one row': lambda model: model.generate(PROMPT[:1], 12, temperature=0.0),
    'unequal lengths': lambda model: model.generate(PROMPT, 12, temperature=0.0, prompt_lens=torch.tensor([3, 7, 5])),
    'a stream': lambda model: torch.stack([*model.stream(PROMPT, 12, temperature=0.0)]),
    'beams': lambda model: model.beam_search(PROMPT, 6, beams=3),
}


@pytest.mark.parametrize('flags', [{}, TODAY], ids=['plain', 'today'])
@pytest.mark.parametrize('config', [int8, int4, packed_int4])
def test_generation(torchao, config, flags):
    model = language_model(**flags)
    model.generate(PROMPT, 2)  # what short cuts know of the model is of other weights
    model, full = quantised(torchao, config, model)
    with torch.no_grad():
        torch.testing.assert_close(model.net(PROMPT), full.net(PROMPT), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(model(PROMPT), full(PROMPT), atol=1e-5, rtol=1e-5)
    for name, way in WAYS.items():
        assert torch.equal(way(model), way(full)), name
    assert torch.equal(WAYS['with a cache'](model), WAYS['without'](model))


def test_weights_of_another_class_take_the_ordinary_way(torchao):
    model, full = quantised(torchao, int4, language_model(**TODAY))
    assert Step.of(full.net.eval(), {}) is not None and Step.of(model.net.eval(), {}) is None
    loaded = language_model(**TODAY)
    loaded.load_state_dict(model.state_dict(), assign=True)  # so that nothing but the weights tells
    assert Step.of(loaded.net.eval(), {}) is None
    for name, way in WAYS.items():
        assert torch.equal(way(loaded), way(full)), name


def test_weights_that_change_between_two_tokens(torchao):
    def tokens(model, change):
        stream = model.stream(PROMPT, 12, temperature=0.0)
        first = [next(stream) for _ in range(3)]
        change(model)
        return torch.stack([*first, *stream])

    model = language_model(**TODAY)
    full = quantised(torchao, int4, copy.deepcopy(model))[1]
    unchanged, wanted = (
        tokens(copy.deepcopy(model), change)
        for change in (lambda own: None, lambda own: own.load_state_dict(full.state_dict()))
    )
    found = tokens(model, lambda own: torchao.quantize_(own, int4(torchao)))
    assert torch.equal(found, wanted) and not torch.equal(found, unchanged)


def test_translation(torchao):
    torch.manual_seed(0)
    sides = {f'{side}_{n}': v for side in ('enc', 'dec') for n, v in dict(num_tokens=20, max_seq_len=24).items()}
    model = XTransformer(dim=32, **sides, enc_depth=1, enc_heads=2, dec_depth=1, dec_heads=2).eval()
    torchao.quantize_(model, int8(torchao))
    first = torch.zeros(3, 1, dtype=torch.long)
    found = [one.generate(PROMPT % 20, first, 8, temperature=0.0) for one in (model, in_full(model))]
    assert torch.equal(*found)
