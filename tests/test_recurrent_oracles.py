"""Recurrent modules beside the layers of transformers, with the same weights, in float64: their full pass."""

import importlib

import pytest
import torch
from oracles import assert_close, randn, randomised
from pretrained_cases import lifted
from torch import Tensor

from x_transformers.recurrent import MODULES

pytestmark = pytest.mark.slow
WIDE = 1e-10


def layer_of(name: str, kind: str, **sizes) -> torch.nn.Module:
    """A layer of transformers with random weights; `kind` is what its classes begin with."""
    transformers = pytest.importorskip('transformers')
    family = importlib.import_module(f'transformers.models.{name}.modeling_{name}')
    config = getattr(transformers, kind.split()[0] + 'Config')(hidden_size=8, **sizes)
    if 'Falcon' in kind:  # the model gives the factors to its layers
        config.vocab_size, config.num_hidden_layers = 8, 2
        return randomised(transformers.FalconH1Model(config).layers[1].mamba)
    return randomised(getattr(family, kind.replace(' ', ''))(config, layer_idx=1))


def assert_equal(name: str, keywords: dict, weights: dict[str, Tensor], theirs, tolerance: float = WIDE, **inputs):
    ours = MODULES[name](8, **keywords).double().eval()
    ours.load_state_dict(weights)
    x = randn(2, 75, 8)
    with torch.no_grad(), lifted():
        wanted = theirs(x, **inputs)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        assert_close(ours(x)[0], wanted, tolerance=tolerance)


def convolution(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f'conv.{key.removeprefix("conv1d.")}': t for key, t in weights.items() if key.startswith('conv1d.')}


def test_qwen3_next():
    k, h, d, e = 2, 4, 6, 10
    theirs = layer_of(
        'qwen3_next', 'Qwen3Next GatedDeltaNet', linear_num_key_heads=k, linear_num_value_heads=h,
        linear_key_head_dim=d, linear_value_head_dim=e,
    )  # fmt: skip
    w, r = theirs.state_dict(), h // k
    rows = w['in_proj_qkvz.weight'].unflatten(0, (k, -1)).split((d, d, r * e, r * e), dim=1)  # by key head
    q, key, v, z = (t.flatten(0, 1) for t in rows)
    b, a = (t.flatten(0, 1) for t in w['in_proj_ba.weight'].unflatten(0, (k, -1)).split((r, r), dim=1))
    weights = {'to_qkv.weight': torch.cat((q, key, v)), 'to_gate.weight': z, 'to_beta.weight': b, 'to_decay.weight': a}
    weights |= {'norm_weight': w['norm.weight'], 'to_out.weight': w['out_proj.weight']} | convolution(w)
    weights |= {name: w[name] for name in ('A_log', 'dt_bias')}
    assert_equal('gated_delta', dict(heads=h, key_heads=k, dim_head=d, dim_value_head=e), weights, theirs)


@pytest.mark.parametrize('negative', [False, True])
def test_olmo_hybrid(negative):
    h, d, e = 2, 6, 10
    theirs = layer_of(
        'olmo_hybrid', 'OlmoHybrid GatedDeltaNet', num_hidden_layers=4, linear_num_key_heads=h,
        linear_num_value_heads=h, linear_key_head_dim=d, linear_value_head_dim=e, linear_allow_neg_eigval=negative,
    )  # fmt: skip
    w = theirs.state_dict()
    names = dict(g_proj='to_gate', a_proj='to_decay', b_proj='to_beta', o_proj='to_out')
    weights = {f'{ours}.weight': w[f'{name}.weight'] for name, ours in names.items()} | convolution(w)
    weights |= {'to_qkv.weight': torch.cat([w[f'{letter}_proj.weight'] for letter in 'qkv'])}
    weights |= {'norm_weight': w['o_norm.weight']} | {name: w[name] for name in ('A_log', 'dt_bias')}
    keywords = dict(heads=h, dim_head=d, dim_value_head=e, eps=1e-5, allow_negative=negative)
    assert_equal('gated_delta', keywords, weights, theirs)


def test_kimi_linear():
    theirs = layer_of('kimi_linear', 'KimiLinear DeltaAttention', linear_head_dim=6, linear_num_heads=4)
    w = theirs.state_dict()
    names = {
        'b_proj': 'to_beta', 'o_proj': 'to_out', 'g_a_proj': 'to_gate.0', 'g_b_proj': 'to_gate.1',
        'forget_gate.f_a_proj': 'to_decay.0', 'forget_gate.f_b_proj': 'to_decay.1',
    }  # fmt: skip
    weights = {f'{ours}.weight': w[f'{name}.weight'] for name, ours in names.items()} | convolution(w)
    weights |= {'to_qkv.weight': torch.cat([w[f'{letter}_proj.weight'] for letter in 'qkv'])}
    weights |= {'A_log': w['forget_gate.A_log'].flatten(), 'dt_bias': w['forget_gate.dt_bias']}
    eps = getattr(theirs.o_norm, 'variance_epsilon', None) or getattr(theirs.o_norm, 'eps', 1e-6)
    weights['norm_weight'] = w['o_norm.weight']
    assert_equal('kda', dict(heads=4, dim_head=6, eps=eps), weights, theirs)


def test_minimax():
    """Their slopes are stored in float32."""
    theirs = layer_of('minimax', 'MiniMax LightningAttention', num_attention_heads=2, head_dim=6, num_hidden_layers=4)
    w = theirs.state_dict()
    by_head = w['qkv_proj.weight'].unflatten(0, (2, 3, 6)).transpose(0, 1).flatten(0, 2)
    weights = {'to_qkv.weight': by_head, 'to_gate.weight': w['output_gate.weight'], 'norm_weight': w['norm.weight']}
    weights['to_out.weight'] = w['out_proj.weight']
    keywords = dict(heads=2, dim_head=6, place=(1, 4))
    assert_equal('lightning', keywords, weights, theirs, 2e-7, position_embeddings=None, attention_mask=None)


FACTORS = (0.5, 1.5, 0.75, 2.0, 1.25)  # their vector is stored in float32
FALCON = dict(
    mamba_d_ssm=16, mamba_n_heads=4, mamba_d_head=4, mamba_d_state=6, mamba_n_groups=2, mamba_chunk_size=8,
    num_attention_heads=2, num_key_value_heads=2,
)  # fmt: skip
MAMBAS = {
    'mamba2': (
        'mamba2', 'Mamba2 Mixer', dict(num_heads=4, head_dim=4, state_size=6, n_groups=2, expand=2, chunk_size=8),
        {},
    ),
    'bamba': (
        'bamba', 'Bamba Mixer',
        dict(mamba_n_heads=4, mamba_d_head=4, mamba_d_state=6, mamba_n_groups=2, mamba_expand=2, mamba_chunk_size=8),
        {},
    ),
    'falcon': (
        'falcon_h1', 'FalconH1 Mixer', {**FALCON, 'mamba_rms_norm': False, 'ssm_multipliers': list(FACTORS)},
        dict(norm=None, rows_scale=FACTORS),
    ),
    'falcon, norm first': (
        'falcon_h1', 'FalconH1 Mixer', {**FALCON, 'mamba_rms_norm': True, 'mamba_norm_before_gate': True},
        dict(norm='norm_first'),
    ),
    'falcon, gate first': (
        'falcon_h1', 'FalconH1 Mixer', {**FALCON, 'mamba_rms_norm': True, 'mamba_norm_before_gate': False}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize('name', MAMBAS)
def test_mamba2(name):
    family, kind, sizes, keywords = MAMBAS[name]
    theirs = layer_of(family, kind, **sizes)
    w = theirs.state_dict()
    weights = {key: w[key] for key in ('A_log', 'D', 'dt_bias', 'in_proj.weight', 'out_proj.weight')} | convolution(w)
    if 'norm.weight' in w:
        weights['norm_weight'] = w['norm.weight']
    norm = getattr(theirs, 'norm', None)
    eps = getattr(norm, 'variance_epsilon', None) or getattr(norm, 'eps', None) or 1e-5
    assert_equal('mamba2', dict(heads=4, dim_head=4, state=6, groups=2, eps=eps, **keywords), weights, theirs)
