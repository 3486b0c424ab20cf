"""Per-layer embeddings against their formula, and a Gemma 3n made of flags against `transformers`."""

import math

import pytest
import torch
from oracles import assert_close, randn, randomised
from torch import nn

from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError

SIZES = dict(dim=6, depth=2, heads=2, attn_dim_head=4, ff_mult=1)


def rms(t, weight, eps=1e-6):
    return t / ((t * t).mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def side_branch(w, x, e):
    """What a layer of kind 'p' adds, without the embedding for `e=None`."""
    gates = nn.functional.gelu(x @ w['gate.weight'].T, approximate='tanh')
    return rms((gates if e is None else gates * e) @ w['proj.weight'].T, w['norm.g'])


def test_layers_of_their_own():
    net = randomised(Encoder(**SIZES, per_layer_emb_dim=3))
    assert net.layer_types == ('a', 'f', 'p') * 2 and net.len_default_block == 3
    x, e = randn(2, 7, 6), randn(2, 7, 6, seed=1)
    for given in (None, e):
        stream = x
        for i, (norms, branch, _) in enumerate(net.layers):
            if i % 3 < 2:
                stream = stream + branch(norms[0](stream))
                continue
            own = None if given is None else given[..., i // 3 * 3 :][..., :3]
            stream = stream + side_branch(dict(branch.named_parameters()), stream, own)
        assert_close(net(x, per_layer_embeds=given), net.final_norm(stream))


@pytest.mark.parametrize('rows', [None, 7])
def test_tables(rows):
    stack = Decoder(**SIZES, per_layer_emb_dim=3)
    net = TransformerWrapper(
        num_tokens=11, max_seq_len=9, attn_layers=stack, emb_scale=2.0, num_memory_tokens=1,
        per_layer_emb=True if rows is None else dict(num_tokens=rows),
    )  # fmt: skip
    net, ids = randomised(net), torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(0))
    w = {n.removeprefix('per_layer_tables.'): p for n, p in net.named_parameters() if 'per_layer_tables' in n}
    assert w['table.weight'].shape == (rows or 11, 6)
    seen = []
    stack.register_forward_pre_hook(lambda m, args, given: seen.append((args[0], given)), with_kwargs=True)
    net(ids)
    (x, given), = seen  # fmt: skip
    for i in range(2):
        for at in range(6):
            token = None if at == 0 else ids[i, at - 1]
            row = 0 if token is None else w['table.weight'][0 if rows and token >= rows else token] * math.sqrt(3)
            part = (w['proj.weight'] @ x[i, at] / math.sqrt(6)).view(2, 3)
            wanted = (rms(part, w['norm.g']).flatten() + row) / math.sqrt(2)
            assert_close(given['per_layer_embeds'][i, at], wanted)


def test_refusals():
    with pytest.raises(ConfigError, match='`per_layer_emb` needs `per_layer_emb_dim` of the stack'):
        TransformerWrapper(num_tokens=5, max_seq_len=4, attn_layers=Decoder(**SIZES), per_layer_emb=True)
    with pytest.raises(ConfigError, match="layers of kind 'p' need `per_layer_emb_dim`"):
        Decoder(dim=6, heads=2, custom_layers=('a', 'p', 'f'))
    with pytest.raises(ValueError, match=r'`per_layer_embeds` must have shape \(2, n, 6\)'):
        Decoder(**SIZES, per_layer_emb_dim=3)(torch.randn(2, 4, 6), per_layer_embeds=torch.randn(2, 4, 3))


# a whole model

OF_GEMMA = dict(
    dim=12, depth=3, heads=2, use_rmsnorm=True, norm_eps=1e-6, norm_add_unit_offset=False, sandwich_norm=True,
    num_residual_streams=4, altup=True, laurel_rank=3, laurel_kind='gemma3n', per_layer_emb_dim=5,
    attn_dim_head=8, attn_kv_heads=1, attn_softmax_scale=1.0, attn_qk_head_norm='rms', attn_value_head_norm='rms',
    attn_value_head_norm_affine=False, attn_max_attend_past=(3, 3, None), rotary_pos_emb=True, rotary_emb_dim=8,
    rotary_layers=(True, True, dict(theta=1e6)), ff_dim_inner=10, ff_glu=True, ff_glu_bias=False, ff_no_bias=True,
    ff_activation='gelu_tanh', ff_gate_sparsity=(0.9, 0.0, 0.8),
)  # fmt: skip


def in_pairs(t):
    """Rows of queries and keys, whose halves turn together in their files, in pairs."""
    return t.reshape(-1, 2, 4, *t.shape[1:]).transpose(1, 2).reshape(t.shape)


def from_gemma3n(theirs):
    """Their weights by our names."""
    state = {}
    for name, t in theirs.items():
        part = name.removeprefix('model.').split('.')
        key = '.'.join(part)
        if part[0] != 'layers':
            tables = dict(embed_tokens_per_layer='table', per_layer_model_projection='proj')
            renamed = {
                'embed_tokens.weight': 'token_emb.emb.weight',
                'norm.weight': 'attn_layers.final_norm.g',
                'per_layer_projection_norm.weight': 'per_layer_tables.norm.g',
                **{f'{n}.weight': f'per_layer_tables.{own}.weight' for n, own in tables.items()},
                **{f'altup_projections.{i}.weight': f'attn_layers.altup_ups.{i}.weight' for i in range(3)},
                **{f'altup_unembed_projections.{i}.weight': f'attn_layers.altup_unembeds.{i}.weight' for i in range(3)},
            }
            if key in renamed:
                state[renamed[key]] = t
            continue
        block, key = int(part[1]), '.'.join(part[2:])
        a, f, p = (f'attn_layers.layers.{3 * block + i}' for i in range(3))
        altup = f'attn_layers.altup_blocks.{block}'
        if key in ('mlp.gate_proj.weight', 'mlp.up_proj.weight'):
            whole = state.setdefault(f'{f}.1.ff.0.proj.weight', torch.empty(20, 12, dtype=t.dtype))
            whole[slice(10, 20) if 'gate' in key else slice(0, 10)] = t
            continue
        found, t = {
            'self_attn.q_proj.weight': (f'{a}.1.to_q.weight', t),
            'self_attn.k_proj.weight': (f'{a}.1.to_k.weight', t),
            'self_attn.v_proj.weight': (f'{a}.1.to_v.weight', t),
            'self_attn.o_proj.weight': (f'{a}.1.to_out.weight', t),
            'self_attn.q_norm.weight': (f'{a}.1.q_norm.gamma', t),
            'self_attn.k_norm.weight': (f'{a}.1.k_norm.gamma', t),
            'input_layernorm.weight': (f'{a}.0.0.g', t),
            'post_attention_layernorm.weight': (f'{a}.0.1.g', t),
            'pre_feedforward_layernorm.weight': (f'{f}.0.0.g', t),
            'post_feedforward_layernorm.weight': (f'{f}.0.1.g', t),
            'mlp.down_proj.weight': (f'{f}.1.ff.2.weight', t),
            'laurel.linear_left.weight': (f'{a}.2.down.weight', t),
            'laurel.linear_right.weight': (f'{a}.2.up.weight', t),
            'laurel.post_laurel_norm.weight': (f'{a}.2.norm.g', t),
            'altup.correct_output_scale': (f'{p}.1.scale', t),
            'altup.correction_coefs.weight': (f'{altup}.to_correction.weight', t),
            'altup.prediction_coefs.weight': (f'{altup}.to_prediction.weight', t),
            'altup.modality_router.weight': (f'{altup}.router.weight', t),
            'altup.router_norm.weight': (f'{altup}.norm.g', t),
            'per_layer_input_gate.weight': (f'{p}.1.branch.gate.weight', t),
            'per_layer_projection.weight': (f'{p}.1.branch.proj.weight', t),
            'post_per_layer_input_norm.weight': (f'{p}.1.branch.norm.g', t),
        }[key]
        state[found] = in_pairs(t) if part[3] in ('q_proj', 'k_proj', 'q_norm', 'k_norm') else t
    return state


@pytest.mark.slow
def test_gemma3n_of_transformers(monkeypatch):
    """A full pass of the whole text model, with two kinds of layer and sparse gates in some."""
    transformers = pytest.importorskip('transformers')
    config = transformers.Gemma3nTextConfig(
        vocab_size=40, vocab_size_per_layer_input=30, hidden_size=12, hidden_size_per_layer_input=5,
        intermediate_size=[10] * 3, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        layer_types=['sliding_attention', 'sliding_attention', 'full_attention'], sliding_window=4,
        num_kv_shared_layers=0, altup_num_inputs=4, laurel_rank=3, activation_sparsity_pattern=[0.9, 0.0, 0.8],
        attn_implementation='eager', tie_word_embeddings=True,
    )  # fmt: skip
    theirs = transformers.Gemma3nForCausalLM(config).double().eval()
    with torch.no_grad():
        for i, p in enumerate(theirs.parameters()):
            p.copy_(randn(*p.shape, seed=i) * 0.3 + (p.ndim == 1))
    net = TransformerWrapper(
        num_tokens=40, max_seq_len=0, attn_layers=Decoder(**OF_GEMMA), tie_embedding=True, tie_embedding_scale=1.0,
        emb_scale=12**0.5, logits_softclamp=30.0, per_layer_emb=dict(num_tokens=30),
    ).double().eval()  # fmt: skip
    missing = net.load_state_dict(from_gemma3n(theirs.state_dict()), strict=False)
    assert not missing.unexpected_keys and missing.missing_keys == ['attn_layers.rotary_pos_emb.inv_freq'], missing
    ids = torch.randint(0, 40, (2, 11), generator=torch.Generator().manual_seed(0))
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(torch.Tensor, 'float', lambda t: t)  # it would compute norms in float32
        wanted = theirs(ids).logits
    assert wanted.abs().max() > 1
    assert_close(net(ids), wanted, tolerance=2e-6)  # its threshold of gates and its factor of embeddings are in float32
