"""Attention as models of 2025 have it, by loops: norms around rotations, gates, temperatures, shared keys."""

import math

import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised
from pretrained_cases import lifted

from x_transformers import Attention, Decoder
from x_transformers.features.temperature import QueryTemperature
from x_transformers.flags import ConfigError
from x_transformers.patterns import BlockLocal

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
                parts.append(out * o.get('value_scale', 1.0))
            out = torch.cat(parts)
            out = rms(out, w['inner_norm.gamma'], o['inner_norm_eps']) if o.get('inner_norm') else out
            tokens.append(out @ w['to_out.weight'].T)
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
    'scaled values': dict(value_scale=0.7, kv_heads=2),
    'a norm before the output': dict(inner_norm='rms', inner_norm_eps=0.1, gate_values=True, value_scale=0.7),
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


TEMPERATURE = dict(scale=0.7, floor=2, offset=1)


def test_the_temperature_of_a_query():
    """By its position in the row without padding, in the document, or by the caller; also where a cache goes on."""
    x, places = randn(2, TOKENS, DIM), torch.arange(TOKENS).double()
    for offset, rounded in ((1, [0, 1, 1, 2, 2, 3, 3]), (0, [0, 0, 1, 1, 2, 2, 3])):
        temperature = {**TEMPERATURE, 'offset': offset}
        layer = build(causal=True, flash=False, query_temperature=temperature)
        factors = torch.tensor([1 + 0.7 * math.log(1 + steps) for steps in rounded], dtype=torch.float64)
        plain = build(causal=True, flash=False)

        def scores(own, x=x):
            return own(x, rotary_pos_emb=angles(), return_intermediates=True)[1].pre_softmax_attn

        wanted = scores(plain) * factors[:, None]
        seen = torch.ones(TOKENS, TOKENS).tril().bool()
        assert_close(scores(layer)[..., seen], wanted[..., seen], tolerance=1e-12)
        _, past = layer(x[:, :4], return_intermediates=True)
        assert_close(layer(x[:, 4:], cache=past), layer(x)[:, 4:], tolerance=1e-12)
        assert_close(layer.features.find(QueryTemperature).factor(places[None], torch.float64)[0], factors)


def chunked(**flags):
    """A layer of chunks with rotation and one without positions and with a temperature, as in Llama 4."""
    own = dict(attn_sparse_pattern=(BlockLocal(4), None), attn_query_temperature=(None, TEMPERATURE))
    own |= dict(rotary_pos_emb=True, rotary_layers=(True, False), attn_qk_head_norm=('rms', None), rotary_emb_dim=6)
    own |= dict(attn_qk_head_norm_at='after', attn_qk_head_norm_affine=False, verbose=False)
    return randomised(Decoder(dim=DIM, depth=2, heads=HEADS, attn_dim_head=WIDTH, **own, **flags))


def test_chunks_and_temperatures_where_rows_begin():
    net, x = chunked(), randn(2, 23, DIM)
    alone = net(x[:1, 9:])
    start = torch.tensor([9, 0])
    assert_close(net(x, seq_start_pos=start)[:1, 9:], alone, tolerance=1e-11)
    assert_close(net(x, mask=torch.arange(23) >= start[:, None])[:1, 9:], alone, tolerance=1e-11)
    assert_close(net(x, document_ids=(torch.arange(23) >= 9).long().expand(2, -1))[:1, 9:], alone, tolerance=1e-11)
    whole = net(x)
    assert (net(x, pos=torch.arange(23) + 5) - whole).abs().max() > 1e-3  # the temperature
    cache, outs = None, []
    for first, last in ((0, 3), (3, 11), *((at, at + 1) for at in range(11, 23))):
        out, cache = net(x[:, first:last], cache=cache, input_not_include_cache=True, return_hiddens=True)
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), whole, tolerance=1e-11)


def test_the_cache_of_chunks_is_bounded():
    net, x = chunked(), randn(1, 400, DIM)
    _, cache = net(x[:, :200], return_hiddens=True)
    for at in range(200, 400):
        _, cache = net(x[:, at : at + 1], cache=cache, input_not_include_cache=True, return_hiddens=True)
    chunks, whole = (layer.past.buffers[0] for layer in cache.attn_intermediates)
    assert whole.length == 400 and chunks.length - chunks.num_evicted <= 4 + 2 * 3 + 64


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
        (dict(query_temperature=dict(scale=0.1)), '`query_temperature` must be a dict of `scale`, `floor`'),
        (dict(query_temperature=dict(scale=0.1, floor=0)), '`query_temperature` must be a dict of `scale`, `floor`'),
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


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_llama4_attends_in_chunks_and_by_temperature():
    """The layers of a whole stack: three in chunks, one without positions."""
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    sizes = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=8, num_hidden_layers=4)
    sizes |= dict(intermediate_size_mlp=12, moe_layers=[], vocab_size=20, attention_chunk_size=8, pad_token_id=0)
    sizes |= dict(no_rope_layers=[1, 1, 1, 0], floor_scale=4, attn_scale=0.3, attn_temperature_tuning=True)
    config = transformers.Llama4TextConfig(**sizes, rope_parameters=dict(rope_type='default', rope_theta=10000.0))
    config._attn_implementation = 'sdpa'
    theirs = randomised(transformers.Llama4TextModel(config)).eval()
    rotated = (True, True, True, False)
    flags = dict(
        attn_sparse_pattern=tuple(BlockLocal(8) if turns else None for turns in rotated),
        attn_query_temperature=tuple(None if turns else dict(scale=0.3, floor=4) for turns in rotated),
        attn_qk_head_norm=tuple('rms' if turns else None for turns in rotated),
        attn_qk_head_norm_at='after', attn_qk_head_norm_affine=False, rotary_pos_emb=True, rotary_emb_dim=8,
        rotary_layers=rotated, use_rmsnorm=True, norm_eps=config.rms_norm_eps, norm_add_unit_offset=False,
        ff_glu=True, ff_swish=True, ff_no_bias=True, ff_dim_inner=12, attn_kv_heads=2, verbose=False,
    )  # fmt: skip
    ours = Decoder(dim=DIM, depth=4, heads=HEADS, attn_dim_head=8, **flags).double().eval()
    w, state = dict(theirs.named_parameters()), {'final_norm.g': theirs.norm.weight}
    for at in range(4):
        own, mine = f'layers.{at}.', (f'layers.{2 * at}.', f'layers.{2 * at + 1}.')
        state |= {
            f'{mine[0]}0.0.g': w[f'{own}input_layernorm.weight'],
            f'{mine[1]}0.0.g': w[f'{own}post_attention_layernorm.weight'],
            f'{mine[0]}1.to_q.weight': queries(w[f'{own}self_attn.q_proj.weight'], HEADS, 2),
            f'{mine[0]}1.to_k.weight': w[f'{own}self_attn.k_proj.weight'],
            f'{mine[0]}1.to_v.weight': w[f'{own}self_attn.v_proj.weight'],
            f'{mine[0]}1.to_out.weight': queries(w[f'{own}self_attn.o_proj.weight'], HEADS, 2, 1),
            f'{mine[1]}1.ff.0.proj.weight': torch.cat(
                [w[f'{own}feed_forward.{name}_proj.weight'] for name in ('up', 'gate')]
            ),
            f'{mine[1]}1.ff.2.weight': w[f'{own}feed_forward.down_proj.weight'],
        }
    state |= {n: torch.zeros_like(t) for n, t in ours.state_dict().items() if n.endswith('proj.bias')}
    ours.load_state_dict({'rotary_pos_emb.inv_freq': theirs.rotary_emb.inv_freq, **state})
    x = randn(2, 21, DIM)
    with torch.no_grad(), lifted():
        wanted = theirs(inputs_embeds=x).last_hidden_state
    assert_close(ours(x), wanted, tolerance=1e-10)
