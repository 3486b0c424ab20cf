"""How queries, keys and values are projected: biases, bounds, norms, scales, latents and windows, by their formulas."""

import math

import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised

from x_transformers import Attention, AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.core import rows
from x_transformers.flags import ConfigError

DIM, HEADS, WIDTH, TOKENS = 10, 4, 6, 7
SHAPE = dict(dim=DIM, heads=HEADS, dim_head=WIDTH)


def build(seed=0, **flags):
    return randomised(Attention(**{**SHAPE, **flags}), seed)


def normed(x, kind, eps, gain, bias=None):
    """Of the last axis, by sums over its features."""
    mean = sum(x.unbind(-1)) / x.shape[-1] if kind == 'layer' else torch.zeros(x.shape[:-1]).double()
    centred = x - mean[..., None]
    out = centred / (sum((centred**2).unbind(-1)) / x.shape[-1] + eps)[..., None] ** 0.5 * gain
    return out if bias is None else out + bias


def turned(x, place, theta=10000.0):
    """A head (... e) at a place, all of whose features turn in neighbouring pairs."""
    out = torch.empty_like(x)
    for pair in range(x.shape[-1] // 2):
        angle = place * theta ** (-2 * pair / x.shape[-1])
        a, b = x[..., 2 * pair], x[..., 2 * pair + 1]
        out[..., 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[..., 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def attended(q, k, v, w, scale, past=None, ahead=None):
    """From lists of heads (b n e), one for each query head, to the output."""
    outs = []
    for one, keys, values in zip(q, k, v, strict=True):
        found = []
        for i in range(one.shape[1]):
            seen = [
                j for j in range(one.shape[1]) if (past is None or i - j <= past) and (ahead is None or j - i <= ahead)
            ]
            scores = torch.stack([(one[:, i] * keys[:, j]).sum(-1) * scale for j in seen], dim=-1)
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            found.append(sum(weights[:, at, None] * values[:, j] for at, j in enumerate(seen)))
        outs.append(torch.stack(found, dim=1))
    return torch.cat(outs, dim=-1) @ w['to_out.weight'].T


def cut(t, heads):
    return list(t.split(t.shape[-1] // heads, dim=-1))


def by_formula(w, x, kv_heads=HEADS, causal=False, **o):
    """Attention whose projections have biases, bounds and norms, by the weights `w`."""

    def projected(name, heads):
        t = x @ w[f'to_{name}.weight'].T
        t = t + w[f'to_{name}.bias'] if f'to_{name}.bias' in w else t
        t = t.clamp(-o['qkv_clip'], o['qkv_clip']) if 'qkv_clip' in o else t
        if o.get('qk_proj_norm') and name != 'v':
            gain = w[f'{name}_proj_norm.gamma'] + o.get('qk_proj_norm_unit_offset', 0)
            t = normed(t, 'rms', o.get('qk_proj_norm_eps', 1e-6), gain)
        parts = cut(t, heads)
        if kind := o.get('qk_head_norm') if name != 'v' else None:
            gain, bias = w[f'{name}_norm.gamma'], w.get(f'{name}_norm.beta')
            gains = [gain] * heads if gain.ndim == 1 else [one[0] for one in gain]
            biases = [None if bias is None else bias if bias.ndim == 1 else bias[at, 0] for at in range(heads)]
            eps = o.get('qk_head_norm_eps', {'rms': 1e-6, 'layer': 1e-5}[kind])
            offset = o.get('qk_head_norm_unit_offset', 0)
            parts = [normed(t, kind, eps, g + offset, b) for t, g, b in zip(parts, gains, biases, strict=True)]
        return parts

    q, k, v = projected('q', HEADS), projected('k', kv_heads), projected('v', kv_heads)
    k, v = ([t[at % kv_heads] for at in range(HEADS)] for t in (k, v))
    window = o.get('max_attend_past'), 0 if causal else o.get('max_attend_future')
    return attended(q, k, v, w, o.get('softmax_scale', WIDTH**-0.5), *window)


LAYERS = {
    'biases': dict(qkv_bias=True),
    'some biases': dict(qkv_bias='vq', kv_heads=2),
    'scale': dict(softmax_scale=0.9),
    'bound': dict(qkv_clip=0.5, qkv_bias=True),
    'norm of all heads': dict(qk_proj_norm=True, kv_heads=2, qkv_bias=True),
    'norm of all heads, offset': dict(qk_proj_norm=True, qk_proj_norm_eps=0.3, qk_proj_norm_unit_offset=True),
    'norm of all heads, bounded': dict(qk_proj_norm=True, qkv_clip=1.0),
    'rms': dict(qk_head_norm='rms', kv_heads=2, causal=True),
    'rms, offset': dict(qk_head_norm='rms', qk_head_norm_unit_offset=True, qk_head_norm_eps=0.3, kv_heads=2),
    'layer, each': dict(qk_head_norm='layer', qk_head_norm_shared=False, qk_head_norm_bias=True, kv_heads=2),
    'layer': dict(qk_head_norm='layer', qk_head_norm_bias=True, qkv_bias=True, softmax_scale=1.0),
    'ahead': dict(max_attend_future=1),
    'window': dict(max_attend_past=2, max_attend_future=1, kv_heads=2),
    'the token alone': dict(max_attend_past=0, max_attend_future=0),
}  # fmt: skip


@pytest.mark.parametrize('flags', LAYERS.values(), ids=LAYERS)
def test_formula(flags):
    """By both kernels, with the gradients of the last."""
    x = randn(2, TOKENS, DIM)
    fused, layer = build(**flags), build(flash=False, **flags)
    assert_same(layer, layer, lambda w, x: by_formula(w, x, **flags), x, tolerance=1e-12)
    assert_close(fused(x), layer(x), tolerance=1e-12)


def latent_attention(w, x, heads, turning, kv_heads=None):
    """Attention through latents, of whose heads the first features turn, and come from the input as keys."""
    latent = x @ w['to_latent_q.weight'].T + w['to_latent_q.bias']
    q = cut(normed(latent, 'rms', 1e-6, w['q_latent_norm.gamma']) @ w['to_q.weight'].T, heads)
    latent = x @ w['to_latent_kv.weight'].T + w['to_latent_kv.bias']
    latent = normed(latent, 'rms', 1e-6, w['kv_latent_norm.gamma'])
    k, v = (cut(latent @ w[f'to_{name}.weight'].T, kv_heads or heads) for name in 'kv')
    shared = x @ w['to_rotated_k.weight'].T + w['to_rotated_k.bias']

    def placed(t):
        return torch.stack([turned(row, place) for place, row in enumerate(t.unbind(1))], dim=1)

    q = [torch.cat((placed(one[..., :turning]), one[..., turning:]), dim=-1) for one in q]
    k = [torch.cat((placed(shared), k[at % len(k)]), dim=-1) for at in range(heads)]
    return attended(q, k, [v[at % len(v)] for at in range(heads)], w, q[0].shape[-1] ** -0.5, ahead=0)


LATENTS = dict(use_latent_q=True, dim_latent_q=5, use_latent_kv=True, dim_latent_kv=7, value_dim_head=3)
TURNING = dict(**LATENTS, dim_latent_rope=4, latent_norm=True, latent_bias=True)


def test_latents_beside_features_that_turn():
    """The cache holds the latent and the features that turn, of one head."""
    x, places = randn(2, TOKENS, DIM), torch.arange(TOKENS).double()
    angles = places[:, None] * 10000.0 ** -torch.tensor([0.0, 0.0, 0.5, 0.5]).double(), 1.0
    for kv_heads in (4, 2):
        layer = build(causal=True, kv_heads=kv_heads, **TURNING)
        formula = lambda w, x, k=kv_heads: latent_attention(w, x, HEADS, 4, k)  # noqa: E731
        assert_same(layer, lambda x, own=layer: own(x, rotary_pos_emb=angles), formula, x, tolerance=1e-12)
    _, trace = layer(x, rotary_pos_emb=angles, return_intermediates=True)
    assert [tuple(t.shape) for t in trace.past.pair] == [(2, TOKENS, 7), (2, TOKENS, 4)]


def test_the_stack_turns_as_many_features():
    stack = Decoder(**SHAPED, depth=1, rotary_pos_emb=True, **{f'attn_{n}': v for n, v in TURNING.items()})
    assert stack.rotary_pos_emb.dim == 4


SHAPED = dict(dim=DIM, heads=HEADS, attn_dim_head=WIDTH, verbose=False)


def test_head_norms_are_as_those_of_the_stack():
    """Their gains are stored as its gains; what is said for them alone counts."""
    for offset in (True, False):
        options = dict(norm_add_unit_offset=offset, attn_qk_head_norm='rms', attn_qk_proj_norm=(True, False))
        layer = Decoder(**SHAPED, depth=2, cross_attend=True, cross_attn_qk_proj_norm=False, **options).layers[0][1]
        assert all((norm.gamma == 1 - offset).all() for norm in (layer.q_norm, layer.k_norm, layer.q_proj_norm))
        assert layer.q_norm.eps == layer.q_proj_norm.eps == 1e-6
    layer = Decoder(**SHAPED, depth=1, attn_qk_head_norm='rms', norm_eps=0.2).layers[0][1]
    assert layer.q_norm.eps == layer.k_norm.eps == 0.2
    own = dict(norm_eps=0.2, attn_qk_head_norm='layer', attn_qk_head_norm_eps=0.1, attn_qk_head_norm_unit_offset=False)
    norm = Encoder(**SHAPED, depth=1, **own).layers[0][1].q_norm
    assert norm.eps == 0.1 and (norm.gamma == 1).all()


def test_head_norms_add_up_in_float32():
    layer = build(qk_head_norm='rms', qk_proj_norm=True)
    for norm in (layer.q_norm, layer.k_proj_norm):
        x = randn(5, *norm.gamma.shape).bfloat16() * 300
        assert_close(norm(x.half()).double(), norm(x.half().double()), tolerance=2e-3)


def test_clipping_of_logits_shrinks_biases():
    """Logits of 100 become 25; of keys with features that all heads share, queries take the whole."""
    for flags in (dict(qkv_bias=True), {**LATENTS, 'dim_latent_rope': 2, 'qkv_bias': True}):
        layer, x = build(flash=False, **flags), randn(1, TOKENS, DIM)
        logits = layer(x, return_intermediates=True)[1].pre_softmax_attn
        largest = logits.amax(dim=(0, 2, 3))
        layer.qk_clip_(logits, tau=largest.min().item() / 4)
        after = layer(x, return_intermediates=True)[1].pre_softmax_attn
        assert_close(after, logits * (largest.min() / 4 / largest)[:, None, None])


def test_windows_in_blocks(monkeypatch):
    """A block reads the keys of its windows alone."""
    spans = []
    whole, x = build(max_attend_past=3, max_attend_future=2), randn(1, 200, DIM)
    wanted = whole(x)
    monkeypatch.setitem(rows.LARGE, 'cpu', 1)
    monkeypatch.setitem(rows.BLOCK, 'cpu', 1)
    monkeypatch.setattr(
        rows, 'key_slices', lambda keys, added, own=rows.key_slices: spans.append(keys) or own(keys, added)
    )
    assert_close(whole(x), wanted)
    assert {(keys.start, keys.stop) for keys in spans} == {(0, 66), (61, 130), (125, 194), (189, 200)}


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(qkv_bias='qq'), 'qkv_bias'),
        (dict(qkv_bias='kx'), 'qkv_bias'),
        (dict(qkv_bias=''), 'qkv_bias'),
        (dict(softmax_scale=0), 'softmax_scale'),
        (dict(softmax_scale=0.5, qk_norm=True), 'both settle `logit_scale`'),
        (dict(qkv_clip=-1.0), 'qkv_clip'),
        (dict(qk_head_norm='layers'), "`qk_head_norm` must be one of 'rms', 'layer' or None, got 'layers'"),
        (dict(qk_head_norm='rms', qk_norm=True), '`qk_head_norm` cannot be combined with `qk_norm`'),
        (dict(max_attend_future=2, causal=True), '`max_attend_future` cannot be combined with `causal`'),
        (dict(latent_norm=True), '`latent_norm` needs `use_latent_q` or `use_latent_kv`'),
        (dict(latent_bias=True), '`latent_bias` needs `use_latent_q` or `use_latent_kv`'),
        (dict(dim_latent_rope=2), '`dim_latent_rope` needs `use_latent_kv`'),
        (dict(**LATENTS, dim_latent_rope=3), r'`dim_latent_rope` must be even and less than the head width.*got 3'),
        (dict(**LATENTS, dim_latent_rope=6), r'`dim_latent_rope` must be even and less than the head width.*got 6'),
        (
            dict(**LATENTS, dim_latent_rope=2, collab_heads=True),
            '`collab_heads` cannot be combined with `dim_latent_rope`',
        ),
        (dict(**LATENTS, dim_latent_rope=2, rotate_num_heads=2), '`dim_latent_rope` cannot be combined with'),
        (dict(kernel='elu', max_attend_future=2), '`kernel` cannot be combined with `max_attend_future`'),
    ],
)
def test_refusals(flags, words):
    with pytest.raises(ConfigError, match=words):
        Attention(**SHAPE, **flags)


def test_refusals_of_the_stack():
    turning = {f'attn_{name}': value for name, value in TURNING.items()}
    with pytest.raises(ConfigError, match='`rotary_emb_dim` must be `attn_dim_latent_rope`, 4, got 2'):
        Decoder(**SHAPED, depth=1, rotary_pos_emb=True, rotary_emb_dim=2, **turning)
    with pytest.raises(ConfigError, match=r'`attn_dim_latent_rope` got \[2, 4\], all layers share their positions'):
        Decoder(**SHAPED, depth=2, rotary_pos_emb=True, **{**turning, 'attn_dim_latent_rope': (4, 2)})
    with pytest.raises(ValueError, match='`max_attend_future` cannot be combined with a context'):
        build(max_attend_future=2)(randn(2, 7, DIM), randn(2, 5, DIM))


def test_generation_beside_latents_that_turn():
    """Cached tokens are those that are read again."""
    stack = Decoder(**SHAPED, depth=2, rotary_pos_emb=True, **{f'attn_{n}': v for n, v in TURNING.items()})
    net = AutoregressiveWrapper(randomised(TransformerWrapper(num_tokens=20, max_seq_len=0, attn_layers=stack)))
    ids = torch.arange(6).view(2, 3)
    assert torch.equal(net.generate(ids, 8, temperature=0.0), net.generate(ids, 8, temperature=0.0, cache_kv=False))
