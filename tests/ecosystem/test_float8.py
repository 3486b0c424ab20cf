"""Products in eight bits by torchao: which layers, their rounding by formula, names, generation, and training."""

import copy

import pytest
import torch
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.integrations.float8 import float8_

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings('default')]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(autouse=True)
def _torchao():
    pytest.importorskip('torchao.float8', reason="pip install 'x-transformers[float8]'")


def language_model(**flags):
    torch.manual_seed(0)
    stack = Decoder(dim=64, depth=2, heads=4, attn_dim_head=16, **flags)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=stack))


def cast(t, dtype, dim=None, pow2=False):
    top = torch.finfo(dtype).max
    scale = top / (t.abs().amax() if dim is None else t.abs().amax(dim=dim, keepdim=True))
    scale = 2 ** scale.log2().floor() if pow2 else scale
    return (t * scale).clamp(-top, top).to(dtype).float() / scale


@pytest.mark.parametrize('recipe', ['tensorwise', 'rowwise'])
@pytest.mark.parametrize('width', [64, 512])
def test_a_layer_by_its_formula(recipe, width):
    torch.manual_seed(0)
    plain = nn.Linear(width, 64)
    made = float8_(nn.Sequential(copy.deepcopy(plain)), recipe=recipe, emulate=True)
    assert list(made.state_dict()) == ['0.weight', '0.bias'] and made[0].weight.dtype == torch.float32
    x, around = torch.randn(48, width, requires_grad=True), torch.randn(48, 64)
    own = dict(dim=None if recipe == 'tensorwise' else 1, pow2=recipe == 'rowwise')
    wanted = cast(x, E4M3, **own) @ cast(plain.weight, E4M3, **own).T + plain.bias
    assert torch.allclose(made(x), wanted, rtol=0, atol=1e-5)
    grads = torch.autograd.grad(made(x), (x, made[0].weight), around)
    exact = torch.autograd.grad(plain(x), (x, plain.weight), around)
    assert (made(x) - plain(x)).norm() < 0.05 * plain(x).norm()
    for one, other in zip(grads, exact, strict=True):
        assert 0 < (one - other).norm() < 0.08 * other.norm()
    if recipe == 'tensorwise':
        of_input = cast(around, E5M2) @ cast(plain.weight, E4M3)
        assert torch.allclose(grads[0], of_input, rtol=0, atol=1e-4)


def test_which_layers():
    """Neither the head, nor a tied table, nor gates and what has few outputs; a filter leaves more out."""
    replaced = lambda model: {n for n, m in model.named_modules() if type(m).__name__ == 'Float8Linear'}  # noqa: E731
    model = float8_(language_model(attn_gate_values=True, attn_gate_value_heads=True, ff_glu=True), emulate=True)
    stack = 'net.attn_layers.layers'
    wanted = {f'{stack}.{i}.1.to_{name}' for i in (0, 2) for name in ('q', 'k', 'v', 'out')}
    inner = {name for name in replaced(model) if '.ff.' in name}
    assert replaced(model) - inner == wanted and len(inner) == 4
    one = float8_(language_model(), lambda name, layer: name.endswith('0.1.to_q'), emulate=True)
    assert replaced(one) == {f'{stack}.0.1.to_q'}
    few = float8_(nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 64), nn.Linear(64, 72)), emulate=True)
    assert replaced(few) == {'1'}
    tied = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    tied[2].weight = tied[0].weight
    assert replaced(float8_(tied, emulate=True)) == {'1'}


def test_names_generation_and_training():
    full = language_model(rotary_pos_emb=True)
    model = float8_(copy.deepcopy(full), emulate=True)
    assert list(model.state_dict()) == list(full.state_dict())
    prompt = torch.arange(14).view(2, 7)
    found = [model.generate(prompt, 8, temperature=0.0, cache_kv=cached) for cached in (True, False)]
    assert found[0].shape == (2, 8)
    losses = []
    for net in (full, model):
        torch.manual_seed(1)
        optimizer, rows = torch.optim.Adam(net.parameters(), lr=3e-3), []
        for _ in range(60):
            ids = (torch.randint(64, (8, 1)) + torch.arange(17)) % 64
            loss = net(ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows.append(loss.item())
        losses.append(sum(rows[-10:]) / 10)
    assert losses[0] < 2.0 and abs(losses[1] / losses[0] - 1) < 0.02, losses


def test_refused(monkeypatch):
    net = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(ConfigError, match='needs a model on a CUDA device, got cpu: `emulate=True` runs everywhere'):
        float8_(net)
    with pytest.raises(ConfigError, match='`recipe` must be'):
        float8_(net, recipe='blockwise')
    with pytest.raises(ConfigError, match='no linear layer that can be replaced'):
        float8_(nn.Sequential(nn.Linear(63, 64)), emulate=True)
    with pytest.raises(TypeError, match='`filter` must be a function'):
        float8_(net, filter='to_q', emulate=True)
    monkeypatch.setattr('torch.cuda.get_device_capability', lambda device: (8, 0))
    from x_transformers.integrations.float8 import check_device

    with pytest.raises(ConfigError, match=r'needs compute capability 8\.9, this device has 8\.0'):
        check_device(torch.device('cuda'))
    quantization = pytest.importorskip('torchao.quantization')
    quantization.quantize_(net, quantization.Int8WeightOnlyConfig())
    with pytest.raises(ConfigError, match=r'`float8_` cannot be combined with quantized weights, `0\.weight`'):
        float8_(net, emulate=True)
