"""What other people's code relies on: names, attributes, old spellings, and twelve ways in which models are built."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

import x_transformers
from x_transformers import (
    Attention,
    AttentionLayers,
    AutoregressiveWrapper,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    TransformerWrapper,
    XTransformer,
)
from x_transformers.compat import helpers
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import Intermediates, LayerIntermediates, RotaryEmbedding, apply_rotary_pos_emb

SMALL = dict(dim=32, heads=2, attn_dim_head=16, verbose=False)

NAMES = {
    'x_transformers': """
        XTransformer Encoder Decoder PrefixDecoder CrossAttender Attention FeedForward RMSNorm AdaptiveRMSNorm
        TransformerWrapper ViTransformerWrapper TransformerBlock layer_schedule AutoregressiveWrapper
        ContinuousTransformerWrapper ContinuousAutoregressiveWrapper AttentionLayers AttentionPool
        NonAutoregressiveWrapper BeliefStateWrapper NextLatentWrapper MultiInputTransformerWrapper
        XValTransformerWrapper XValAutoregressiveWrapper XLAutoregressiveWrapper DPO NeoMLP EntropyBasedTokenizer""",
    'x_transformers.x_transformers': """
        RotaryEmbedding apply_rotary_pos_emb AttentionLayers AbsolutePositionalEmbedding ScaledSinusoidalEmbedding
        TokenEmbedding RMSNorm FeedForward Attention LayerIntermediates LayerNorm ScaleNorm SimpleRMSNorm
        AdaptiveLayerNorm AdaptiveLayerScale LayerScale AlibiPositionalBias RelativePositionBias DynamicPositionBias
        GLU GRUGating Residual ShiftTokens ConcatCombine Scale default exists always equals not_equals pad_at_dim l2norm
        softclamp calc_z_loss repeat AutoregressiveWrapper TransformerWrapper Encoder Decoder CrossAttender
        XTransformer""",
    'x_transformers.autoregressive_wrapper': """
        AutoregressiveWrapper top_k top_p top_a min_p eval_decorator exists default identity cast_tuple join align_right
        FILTER_LOGITS_FN contrastive_decode_fn pack unpack""",
    'x_transformers.attend': 'Attend Intermediates pack_one unpack_one log_prob_from_hard_attend default_device',
    'x_transformers.continuous': 'ContinuousTransformerWrapper ContinuousAutoregressiveWrapper',
    'x_transformers.multi_input': 'MultiInputTransformerWrapper',
    'x_transformers.xval': 'XValTransformerWrapper XValAutoregressiveWrapper',
    'x_transformers.xl_autoregressive_wrapper': 'XLAutoregressiveWrapper',
    'x_transformers.nonautoregressive_wrapper': 'NonAutoregressiveWrapper',
    'x_transformers.dpo': 'DPO',
}


@pytest.mark.parametrize(('module', 'name'), [(m, n) for m, names in NAMES.items() for n in names.split()])
def test_names(module, name):
    assert hasattr(importlib.import_module(module), name)


def test_everything_public_is_in_the_package():
    assert all(hasattr(x_transformers, name) for name in x_transformers.__all__)
    names = {}
    exec('from x_transformers.x_transformers import *', names)
    assert {*NAMES['x_transformers.x_transformers'].split(), 'Rearrange', 'tree_map'} <= set(names)


def test_helpers():
    core = importlib.import_module('x_transformers.x_transformers')
    assert core.default(None, 3) == 3 and core.default(0, 3) == 0
    assert core.exists(0) and not core.exists(None)
    assert core.always(5)(1, a=2) == 5
    assert core.equals(3)(3) and core.not_equals(3)(4) and not core.not_equals(3)(3)
    t = torch.arange(6.0).view(2, 3)
    assert core.pad_at_dim(t, (1, 0), dim=0, value=9).tolist() == [[9, 9, 9], [0, 1, 2], [3, 4, 5]]
    assert core.pad_at_dim(t, (0, 1)).tolist() == [[0, 1, 2, 0], [3, 4, 5, 0]]
    packed, shapes = importlib.import_module('x_transformers.attend').pack_one(t[None], '* d')
    assert packed.shape == (2, 3)
    assert torch.equal(importlib.import_module('x_transformers.attend').unpack_one(packed, shapes, '* d'), t[None])


# behaviour


def test_layers_unpack_and_blocks_can_be_replaced():
    """(norms, block, residual) of each layer, as code for checkpointing and adapters does it."""
    stack = Decoder(**SMALL, depth=2)
    calls = []

    class Counted(nn.Module):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn

        def forward(self, x, **inputs):
            calls.append(type(self.fn).__name__)
            return self.fn(x, **inputs)

    x = torch.randn(2, 5, 32)
    before = stack(x)
    for layer in stack.layers:
        norms, block, residual = layer
        assert len(norms) == 3 and isinstance(block, (Attention, FeedForward)) and residual is not None
        layer[1] = Counted(block)
    assert torch.equal(stack(x), before)
    assert calls == ['Attention', 'FeedForward'] * 2


def test_attributes():
    stack = Decoder(**SMALL, depth=2)
    assert (stack.dim, stack.depth, stack.causal, stack.disable_abs_pos_emb) == (32, 2, True, False)
    assert isinstance(stack, AttentionLayers) and isinstance(Encoder(**SMALL, depth=1), Encoder)
    assert stack.layer_types == ('a', 'f', 'a', 'f') and stack.len_default_block == 2
    assert (stack.num_attn_layers, stack.num_cross_attn_layers, stack.num_ff_layers) == (2, 0, 2)
    model = TransformerWrapper(num_tokens=9, max_seq_len=12, attn_layers=stack)
    assert model.attn_layers is stack and model.max_seq_len == 12 and model.num_memory_tokens == 0
    assert model.token_emb.emb.weight.shape == (9, 32) and model.pos_emb.emb.weight.shape == (12, 32)
    assert model.to_logits.weight.shape == (9, 32)
    assert model.can_cache_kv and not model.can_cache_kv_outside_max_seq_len
    lm = AutoregressiveWrapper(model, pad_value=3, ignore_index=3)
    assert (lm.net, lm.pad_value, lm.ignore_index, lm.max_seq_len) == (model, 3, 3, 12)
    vectors = ContinuousTransformerWrapper(dim_in=3, dim_out=4, max_seq_len=8, attn_layers=Decoder(**SMALL, depth=1))
    assert vectors.project_in.in_features == 3 and vectors.project_out.out_features == 4
    layer = Attention(dim=32, heads=4, dim_head=8, kv_heads=2, num_mem_kv=3, max_attend_past=5, causal=True)
    assert (layer.heads, layer.kv_heads, layer.causal, layer.max_attend_past) == (4, 2, True, 5)
    assert layer.scale == 8**-0.5


@pytest.mark.parametrize('longest', [0, -1, None])
def test_no_table_of_positions(longest):
    model = TransformerWrapper(num_tokens=9, max_seq_len=longest, attn_layers=Decoder(**SMALL, depth=1))
    assert model.pos_emb(torch.zeros(1, 3)) == 0 and not any('pos_emb' in name for name in model.state_dict())
    assert model(torch.randint(0, 9, (1, 40))).shape == (1, 40, 9)


def test_the_rotation_is_looked_up_when_it_is_called(monkeypatch):
    core = importlib.import_module('x_transformers.x_transformers')
    calls = []

    def counted(*args, **kwargs):
        calls.append(1)
        return apply_rotary_pos_emb(*args, **kwargs)

    monkeypatch.setattr(core, 'apply_rotary_pos_emb', counted)
    Decoder(**SMALL, depth=1, rotary_pos_emb=True)(torch.randn(1, 4, 32))
    assert len(calls) == 2


def test_caches_are_edited_in_place():
    """Keys and values cut by hand, as code for sliding windows does it; scores without positions do not mind."""
    model = TransformerWrapper(num_tokens=9, max_seq_len=0, attn_layers=Decoder(**SMALL, depth=2)).eval()
    ids = torch.randint(0, 9, (2, 7))
    _, cache = model(ids[:, :6], return_intermediates=True)
    for inter in cache.attn_intermediates:
        assert inter.cached_kv[0].shape == (2, 2, 6, 16)
        inter.cached_kv = [t[..., -4:, :] for t in inter.cached_kv]
    out, cache = model(ids[:, 6:], cache=cache, return_intermediates=True, input_not_include_cache=True)
    assert cache.attn_intermediates[0].cached_kv[0].shape == (2, 2, 5, 16)
    _, whole = model(ids[:, :6], return_intermediates=True)
    mask = torch.tensor([0, 0, 1, 1, 1, 1, 1]).bool().expand(2, -1)
    expected, _ = model(ids, cache=whole, mask=mask, return_intermediates=True)
    torch.testing.assert_close(out[:, -1], expected[:, -1])


def test_a_subclass_may_override_generate():
    class Mine(AutoregressiveWrapper):
        @torch.no_grad()
        def generate(self, start_tokens, seq_len, **kwargs):
            return super().generate(start_tokens, seq_len, **kwargs) + 1000

    lm = Mine(TransformerWrapper(num_tokens=9, max_seq_len=12, attn_layers=Decoder(**SMALL, depth=1)))
    assert lm.generate(torch.zeros(2, 1, dtype=torch.long), 3).min() >= 1000


@pytest.mark.parametrize(
    ('written', 'meant'),
    [
        (dict(dim_head=8), 'attn_dim_head'),
        (dict(qk_norm=True), 'attn_qk_norm'),
        (dict(num_mem_kv=2), 'attn_num_mem_kv'),
        (dict(one_kv_head=True), 'attn_one_kv_head'),
        (dict(flash=True), 'attn_flash'),
        (dict(flash_attn=True), 'attn_flash'),
        (dict(dropout=0.1), 'attn_dropout'),
        (dict(use_abs_pos_emb=False), 'TransformerWrapper'),
        (dict(norm_type='rmsnorm'), 'use_rmsnorm'),
        (dict(has_pos_emb=True), 'disable_abs_pos_emb'),
    ],
)
def test_old_spellings_are_answered(written, meant):
    with pytest.raises(ConfigError, match=meant):
        Decoder(**SMALL, depth=1, **written)


# twelve configurations


def ids(batch=2, length=8, tokens=20):
    return torch.randint(1, tokens, (batch, length), generator=torch.Generator().manual_seed(0))


def learns(module, loss):
    """The gradient of a loss reaches the parameters, and is finite."""
    loss.backward()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    assert grads and all(g.isfinite().all() for g in grads) and loss.isfinite()


def test_01_gpt():
    stack = Decoder(**SMALL, depth=2, rotary_pos_emb=True, attn_flash=True)
    lm = AutoregressiveWrapper(
        TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=stack), ignore_index=0, pad_value=0
    )
    x = ids()
    x[0, 5:] = 0
    learns(lm, lm(x))
    logits = lm.net(x[:, :-1])
    expected = F.cross_entropy(logits.transpose(1, 2), x[:, 1:], ignore_index=0)
    torch.testing.assert_close(lm(x), expected)
    assert lm.generate(x[:, :3], 4, temperature=0.0).shape == (2, 4)


def test_02_latent_audio():
    stack = Decoder(
        **SMALL,
        depth=2,
        cross_attend=True,
        zero_init_branch_output=True,
        rotary_pos_emb=True,
        ff_glu=True,
        ff_swish=True,
    )
    model = ContinuousTransformerWrapper(dim_in=6, dim_out=6, max_seq_len=0, attn_layers=stack)
    x, prefix, context = torch.randn(2, 5, 6), torch.randn(2, 3, 32), torch.randn(2, 4, 32)
    mask = torch.ones(2, 5, dtype=torch.bool)
    options = dict(mask=mask, context=context, prepend_embeds=prefix, prepend_mask=torch.ones(2, 3, dtype=torch.bool))
    out = model(x, **options)
    assert out.shape == (2, 8, 6)
    # all branches are zero at first: only the projections act
    expected = model.project_out(stack.final_norm(torch.cat((prefix, model.project_in(x)), dim=1)))
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize('scaled', ['none', 'one', 'tensor'])
def test_03_rotary_calls(scaled):
    rotary = RotaryEmbedding(16, use_xpos=scaled == 'tensor')
    freqs, scale = rotary.forward_from_seq_len(9)
    assert freqs.shape == (1, 9, 16) and torch.equal(freqs[..., ::2], freqs[..., 1::2])
    assert torch.is_tensor(scale) == (scaled == 'tensor')
    scale = None if scaled == 'none' else scale
    t = torch.randn(2, 3, 5, 20)
    turned = apply_rotary_pos_emb(t, freqs, 1.0 if scale is None else scale)
    assert turned.dtype == t.dtype and torch.equal(turned[..., 16:], t[..., 16:])
    pairs = torch.view_as_complex(t[..., :16].reshape(2, 3, 5, 8, 2).contiguous())
    expected = torch.view_as_real(pairs * torch.polar(torch.ones(5, 8), freqs[0, -5:, ::2])).flatten(-2)
    if torch.is_tensor(scale):
        expected = expected * scale[0, -5:]
    torch.testing.assert_close(turned[..., :16], expected)


def test_04_formula_recognition():
    class Recogniser(AutoregressiveWrapper):
        pass

    decoder = TransformerWrapper(
        num_tokens=20,
        max_seq_len=16,
        attn_layers=Decoder(**SMALL, depth=2, attn_on_attn=True, cross_attend=True, ff_glu=True),
    )
    encoder = Encoder(**SMALL, depth=1)
    image = torch.randn(2, 6, 32)
    lm = Recogniser(decoder, pad_value=0)
    context = encoder(image)
    learns(lm, lm(ids(), context=context))
    assert lm.generate(ids()[:, :1], 5, context=context.detach(), eos_token=1).shape[0] == 2


def test_05_music():
    stack = Decoder(**SMALL, depth=2)
    assert isinstance(stack, AttentionLayers)
    x, mems = torch.randn(2, 4, 32), [torch.randn(2, 3, 32)] * 2
    out, trace = stack(x, mems=mems, return_hiddens=True)
    assert isinstance(trace, LayerIntermediates) and len(trace.hiddens) == 2
    maps = [inter.post_softmax_attn for inter in trace.attn_intermediates]
    assert all(m.shape == (2, 2, 4, 7) for m in maps)
    torch.testing.assert_close(maps[0].sum(dim=-1), torch.ones(2, 2, 4))
    assert out.shape == x.shape


def test_06_video_pooling():
    stack = Encoder(**SMALL, depth=2, ff_glu=True, ff_swish=True, attn_one_kv_head=True, rel_pos_bias=True)
    model = ContinuousTransformerWrapper(max_seq_len=16, attn_layers=stack)
    assert isinstance(model.project_in, nn.Identity) and isinstance(model.project_out, nn.Identity)
    assert model.pos_emb(torch.randn(2, 5, 32)) == 0
    learns(model, model(torch.randn(2, 5, 32)).square().mean())


def test_07_brain_encoding():
    stack = Encoder(
        dim=32, depth=2, heads=4, attn_dim_head=32 // 4, use_scalenorm=True, rotary_pos_emb=True, scale_residual=True,
        verbose=False,
    )  # fmt: skip
    learns(stack, stack(torch.randn(2, 5, 32)).square().mean())
    assert [tuple(layer[2].residual_scale.shape) for layer in stack.layers] == [(32,)] * 4


def test_08_protein_vq():
    stack = Encoder(
        dim=32, depth=2, heads=4, attn_dim_head=8, attn_kv_heads=2, attn_qk_norm=True, ff_glu=True, ff_swish=True,
        ff_no_bias=True, attn_flash=True,
    )  # fmt: skip
    model = ContinuousTransformerWrapper(
        dim_in=6, dim_out=5, max_seq_len=16, num_memory_tokens=3, attn_layers=stack
    )  # fmt: skip
    mask = torch.arange(7) < torch.tensor([[4], [7]])
    x = torch.randn(2, 7, 6)
    out = model(x, mask=mask)
    alone = model(x[:1, :4])
    torch.testing.assert_close(out[:1, :4], alone, rtol=1e-4, atol=1e-5)


def test_09_mesh():
    stack = Decoder(
        **SMALL, depth=2, use_adaptive_rmsnorm=True, dim_condition=7, cross_attend=True, cross_attn_dim_context=11,
        cross_attn_num_mem_kv=2,
    )  # fmt: skip
    stack.eval()
    x, context, condition = torch.randn(2, 6, 32), torch.randn(2, 4, 11), torch.randn(2, 7)
    whole = stack(x, context=context, condition=condition)
    cache, outs = None, []
    for n in range(1, 7):
        out, cache = stack(x[:, :n], context=context, condition=condition, cache=cache, return_hiddens=True)
        outs.append(out[:, -1:])
    torch.testing.assert_close(torch.cat(outs, dim=1), whole, rtol=1e-4, atol=1e-5)


def test_10_speech():
    layer = Attention(dim=32, heads=2, dim_head=16)
    feed = FeedForward(dim=32, glu=True)
    rotary = RotaryEmbedding(16)
    x = torch.randn(2, 5, 32)
    tables = rotary.forward_from_seq_len(5)
    out, first = layer(x, rotary_pos_emb=tables, return_intermediates=True)
    assert isinstance(first, Intermediates) and first.values.shape == (2, 2, 5, 16)
    mixed, _ = layer(x, rotary_pos_emb=tables, value_residual=first.values, return_intermediates=True)
    torch.testing.assert_close(mixed, out)  # the same values, mixed with themselves
    assert feed(out).shape == x.shape


def test_11_reinforcement_learning():
    stack = Decoder(**SMALL, depth=2, attn_hybrid_fold_axial_dim=1, attn_hybrid_module=nn.GRU(32, 32, batch_first=True))
    model = ContinuousTransformerWrapper(dim_in=4, dim_out=3, max_seq_len=16, probabilistic=True, attn_layers=stack)
    model.eval()
    x = torch.randn(2, 6, 4)
    whole = model(x)
    assert whole.shape == (2, 2, 6, 3) and (whole[1] > 0).all()
    cache, outs = None, []
    for n in range(6):
        out, cache = model(x[:, n : n + 1], cache=cache, return_intermediates=True, input_not_include_cache=True)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, dim=2), whole, rtol=1e-4, atol=1e-5)
    learns(
        model,
        ContinuousAutoregressiveWrapper(
            ContinuousTransformerWrapper(dim_in=4, dim_out=4, max_seq_len=16, attn_layers=stack)
        )(x),
    )


def test_12_two_towers():
    left, right = (Encoder(**SMALL, depth=1) for _ in range(2))
    join = CrossAttender(**SMALL, depth=1)
    a, b = torch.randn(2, 5, 32), torch.randn(2, 4, 32)
    mask = torch.arange(4) < torch.tensor([[2], [4]])
    out = join(left(a), context=right(b, mask=mask), context_mask=mask)
    cut = join(left(a[:1]), context=right(b[:1, :2]))
    torch.testing.assert_close(out[:1], cut, rtol=1e-4, atol=1e-5)


def test_encoder_decoder():
    model = XTransformer(
        dim=32, tie_token_emb=True, enc_num_tokens=20, enc_depth=1, enc_heads=2, enc_max_seq_len=16,
        dec_num_tokens=20, dec_depth=1, dec_heads=2, dec_max_seq_len=16,
    )  # fmt: skip
    assert torch.equal(model(ids(), ids()), copy.deepcopy(model)(ids(), ids()))
    assert rearrange(model.generate(ids(), ids()[:, :1], 4), 'b n -> (b n)').shape == (8,)


def test_helpers_of_whole_numbers_give_fractions():
    assert helpers.masked_mean(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool)) == 1.5
    assert torch.allclose(helpers.log(torch.tensor([1, 2])), torch.tensor([1.0, 2.0]).log())
