"""Attention as models of 2025 have it, by loops: norms around rotations, gates, temperatures, shared keys."""

import math

import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised
from pretrained_cases import lifted

from x_transformers import Attention, Decoder
from x_transformers.flags import ConfigError

DIM, HEADS, WIDTH, TOKENS = 10, 4, 6, 7
SHAPE = dict(dim=DIM, heads=HEADS, dim_head=WIDTH)


def build(seed=0, **flags):
    return randomised(Attention(**{**SHAPE, **flags}), seed)


def rms(x, gain=None, eps=1e-6):
    """One head of one token (e)."""
    mean = sum((x * x).unbind()) / len(x)
    out = x / (mean + eps).sqrt()
    return out if gain is None else out * gain


def turned(x, place, width, theta=10000.0):
    """One head of one token (e), whose first `width` features turn in neighbouring pairs."""
    out = [x[at] for at in range(len(x))]
    for pair in range(width // 2):
        angle = place * theta ** (-2 * pair / width)
        a, b = x[2 * pair], x[2 * pair + 1]
        out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return torch.stack(out)


def by_loops(w, x, kv_heads=HEADS, width=4, offset=0.0, places=None, **o):
    """Causal attention of each row, head and token by itself, by the weights `w`."""
    outs = []
    for row in x:
        places = range(len(row)) if places is None else places
        gate = row @ w['to_v_gate.weight'].T if 'to_v_gate.weight' in w else None
        q, k, v = (row @ w[f'to_{name}.weight'].T for name in 'qkv')
        q, k, v = (t.unflatten(-1, (heads, -1)) for t, heads in ((q, HEADS), (k, kv_heads), (v, kv_heads)))

        def head(t, place, name):
            gain = w[f'{name}_norm.gamma'] + offset if f'{name}_norm.gamma' in w else None
            if o.get('qk_head_norm') and o.get('qk_head_norm_at') != 'after':
                t = rms(t, gain)
            t = turned(t, place, width)
            return rms(t, gain) if o.get('qk_head_norm_at') == 'after' else t

        def value(t):
            gain = w['value_norm.gamma'] + offset if 'value_norm.gamma' in w else None
            return rms(t, gain) if o.get('value_head_norm') else t

        tokens = []
        for i in range(len(row)):
            parts = []
            for h in range(HEADS):
                own, at = head(q[i, h], places[i], 'q'), h % kv_heads
                scores = [(own * head(k[j, at], places[j], 'k')).sum() * WIDTH**-0.5 for j in range(i + 1)]
                weights = torch.stack(scores).softmax(dim=0)
                out = sum(weights[j] * value(v[j, at]) for j in range(i + 1))
                if gate is not None:
                    logit = gate[i].unflatten(-1, (HEADS, -1))[h]
                    act = {'softplus': lambda t: (1 + t.exp()).log()}.get(
                        o.get('gate_values_activation'), torch.sigmoid
                    )
                    out = out * act(logit)
                parts.append(out)
            tokens.append(torch.cat(parts) @ w['to_out.weight'].T)
        outs.append(torch.stack(tokens))
    return torch.stack(outs)


def angles(width=4, places=None, theta=10000.0):
    places = torch.arange(TOKENS).double() if places is None else places
    frequencies = theta ** -(torch.arange(0, width, 2).double() / width)
    return (places[:, None] * frequencies).repeat_interleave(2, dim=-1), 1.0


LAYERS = {
    'before': dict(qk_head_norm='rms', qk_head_norm_unit_offset=True, kv_heads=2),
    'after': dict(qk_head_norm='rms', qk_head_norm_at='after', kv_heads=2),
    'after, zero-centred': dict(qk_head_norm='rms', qk_head_norm_at='after', qk_head_norm_unit_offset=True),
    'after, without weights': dict(qk_head_norm='rms', qk_head_norm_at='after', qk_head_norm_affine=False),
    'values': dict(value_head_norm='rms', value_head_norm_affine=False, kv_heads=2),
    'values, with weights': dict(value_head_norm='rms', value_head_norm_unit_offset=True),
    'softplus': dict(gate_values=True, gate_values_activation='softplus'),
    'softplus per head': dict(gate_values=True, gate_values_headwise=True, gate_values_activation='softplus'),
    'gated, partial, zero-centred': dict(
        qk_head_norm='rms', qk_head_norm_unit_offset=True, gate_values=True, kv_heads=2
    ),
}


@pytest.mark.parametrize('flags', LAYERS.values(), ids=LAYERS)
def test_formula(flags):
    """By both kernels, with the gradients."""
    x, offset = randn(2, TOKENS, DIM), float(any('unit_offset' in name for name in flags))
    fused, layer = build(causal=True, **flags), build(causal=True, flash=False, **flags)
    call = lambda x, own=layer: own(x, rotary_pos_emb=angles())  # noqa: E731
    assert_same(layer, call, lambda w, x: by_loops(w, x, offset=offset, **flags), x, tolerance=1e-11)
    assert_close(fused(x, rotary_pos_emb=angles()), call(x), tolerance=1e-12)


def test_the_order_of_norm_and_rotation():
    """It matters for weights of channels, and not without any."""
    x = randn(1, TOKENS, DIM)
    for affine in (True, False):
        flags = dict(causal=True, qk_head_norm='rms', qk_head_norm_affine=affine)
        one, other = (build(**flags, qk_head_norm_at=at)(x, rotary_pos_emb=angles()) for at in ('before', 'after'))
        assert (one - other).abs().max() > 1e-3 if affine else (one - other).abs().max() < 1e-12


def test_the_cache_of_normed_keys():
    """A cache whose keys were turned can be read where they are not kept turned, which a norm could not undo."""
    flags = dict(attn_qk_head_norm='rms', attn_qk_head_norm_at='after', rotary_pos_emb=True, rotary_emb_dim=4)
    stack = randomised(Decoder(dim=DIM, depth=2, heads=HEADS, attn_dim_head=WIDTH, verbose=False, **flags))
    x = randn(2, TOKENS, DIM)
    whole, (_, past) = stack(x), stack(x[:, :4], return_hiddens=True)
    pos = torch.arange(TOKENS)
    for inputs in ({}, dict(pos=pos)):
        assert_close(stack(x, cache=past, **inputs), whole[:, 4:], tolerance=1e-11)


def test_half_precision():
    layer, x = build(value_head_norm='rms', value_head_norm_affine=False), randn(2, 3, TOKENS, WIDTH) * 300
    norm = layer.value_norm
    assert norm.gamma is None and norm(x.half()).dtype == torch.float16
    assert_close(norm(x.half()).double(), norm(x.half().double()), tolerance=2e-3)


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(qk_head_norm='rms', qk_head_norm_at='between'), "`qk_head_norm_at` must be one of 'before', 'after'"),
        (dict(qk_head_norm='rms', qk_head_norm_bias=True, qk_head_norm_affine=False), 'the norm has no weights'),
        (dict(value_head_norm='rms', value_rmsnorm=True), '`value_head_norm` cannot be combined with `value_rmsnorm`'),
        (dict(value_head_norm='max'), "`value_head_norm` must be one of 'rms', 'layer' or None, got 'max'"),
        (dict(gate_values=True, gate_values_activation='tanh'), "one of 'sigmoid', 'softplus', got 'tanh'"),
        (
            dict(gate_values=True, gate_values_activation='softplus', swiglu_values=True),
            '`gate_values_activation` cannot be combined with `swiglu_values`',
        ),
    ],
)
def test_refusals(flags, words):
    with pytest.raises(ConfigError, match=words):
        Attention(**SHAPE, **flags)


# attention of transformers


def halves_to_pairs(w, heads, width):
    """Rows (h e) whose first `width` features of a head turn in halves, in the order in which they turn in pairs."""
    order = torch.arange(width).unflatten(0, (2, -1)).T.flatten()
    whole = w.unflatten(0, (heads, -1))
    return torch.cat((whole[:, :width][:, order], whole[:, width:]), dim=1).flatten(0, 1)


def queries(w, heads, groups, axis=0):
    """The query heads that share a key head are neighbours there, and `groups` apart here."""
    return w.unflatten(axis, (groups, heads // groups, -1)).transpose(axis, axis + 1).flatten(axis, axis + 2)


def theirs_of(name, cls, **config):
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    module = __import__(f'transformers.models.{name}.modeling_{name}', fromlist=[cls])
    sizes = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=8)
    config = transformers.AutoConfig.for_model(name, **sizes, **config)
    config._attn_implementation = 'sdpa'
    torch.manual_seed(0)
    return randomised(getattr(module, cls)(config, 0)), config


def run_theirs(layer, x, width, theta=10000.0):
    frequencies = theta ** -(torch.arange(0, width, 2).double() / width)
    turns = (torch.arange(x.shape[1])[:, None] * frequencies).repeat(1, 2)[None]
    with torch.no_grad(), lifted():
        return layer(x, position_embeddings=(turns.cos(), turns.sin()), attention_mask=None)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_hunyuan_norms_after_the_rotation():
    theirs, config = theirs_of('hunyuan_v1_dense', 'HunYuanDenseV1Attention')
    w, x = dict(theirs.named_parameters()), randn(2, TOKENS, DIM)
    flags = dict(qk_head_norm='rms', qk_head_norm_at='after', qk_head_norm_eps=config.rms_norm_eps)
    ours = build(causal=True, dim_head=8, kv_heads=2, **flags)
    state = {
        'to_q.weight': queries(halves_to_pairs(w['q_proj.weight'], HEADS, 8), HEADS, 2),
        'to_k.weight': halves_to_pairs(w['k_proj.weight'], 2, 8),
        'to_v.weight': w['v_proj.weight'],
        'to_out.weight': queries(w['o_proj.weight'], HEADS, 2, 1),
        'q_norm.gamma': halves_to_pairs(w['query_layernorm.weight'], 1, 8),
        'k_norm.gamma': halves_to_pairs(w['key_layernorm.weight'], 1, 8),
    }
    ours.load_state_dict(state)
    assert_close(ours(x, rotary_pos_emb=angles(8)), run_theirs(theirs, x, 8), tolerance=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_qwen3_next_turns_a_part_and_gates():
    """Its norms are stored as their difference from one; queries and gates of a head stand together."""
    theirs, config = theirs_of('qwen3_next', 'Qwen3NextAttention')
    w, x = dict(theirs.named_parameters()), randn(2, TOKENS, DIM)
    flags = dict(qk_head_norm='rms', qk_head_norm_unit_offset=True, qk_head_norm_eps=config.rms_norm_eps)
    ours = build(causal=True, dim_head=8, kv_heads=2, gate_values=True, **flags)
    q, gate = (t.flatten(0, 1) for t in w['q_proj.weight'].unflatten(0, (HEADS, 2, 8)).unbind(1))
    state = {
        'to_q.weight': queries(halves_to_pairs(q, HEADS, 4), HEADS, 2),
        'to_k.weight': halves_to_pairs(w['k_proj.weight'], 2, 4),
        'to_v.weight': w['v_proj.weight'],
        'to_v_gate.weight': queries(gate, HEADS, 2),
        'to_out.weight': queries(w['o_proj.weight'], HEADS, 2, 1),
        'q_norm.gamma': halves_to_pairs(w['q_norm.weight'], 1, 4),
        'k_norm.gamma': halves_to_pairs(w['k_norm.weight'], 1, 4),
    }
    ours.load_state_dict(state)
    assert_close(ours(x, rotary_pos_emb=angles(4)), run_theirs(theirs, x, 4), tolerance=1e-10)
