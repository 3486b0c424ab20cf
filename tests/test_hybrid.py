"""Modules beside attention by their names: a composition by hand, caches, padding, documents, what is refused."""

import importlib

import pytest
import torch
from oracles import assert_close, randn, randomised
from pretrained_cases import lifted
from torch import nn

from x_transformers import Attention, Decoder, Encoder
from x_transformers.flags import ConfigError

TIGHT = 1e-10
NAMES = {
    'gated_delta': dict(heads=2, dim_head=3),
    'mamba2': dict(heads=2, dim_head=3, state=4),
    'rg_lru': {},
    'rwkv': {},
    'short_conv': {},
    'ssm': dict(state=3),
}
EACH = pytest.mark.parametrize('name', NAMES)
FACTORS = (0.5, 1.5, 2.0, -0.7)
HEADS = dict(heads=2, dim_head=4, causal=True)


def added(name: str, factors=FACTORS, **flags) -> Attention:
    options = dict(hybrid_module=name, hybrid_kwargs=NAMES[name], hybrid_merge='sum', hybrid_factors=factors)
    return randomised(Attention(6, **HEADS, **options, **flags))


def attended(module: Attention, x: torch.Tensor) -> torch.Tensor:
    """Causal attention of x, token by token and head by head."""
    q, k, v = (t(x).unflatten(-1, (2, 4)) for t in (module.to_q, module.to_k, module.to_v))
    rows = []
    for i in range(x.shape[1]):
        heads = []
        for h in range(2):
            weights = ((k[:, : i + 1, h] @ q[:, i, h, :, None]).squeeze(-1) / 2).softmax(dim=-1)
            heads.append((weights.unsqueeze(-1) * v[:, : i + 1, h]).sum(dim=1))
        rows.append(torch.cat(heads, dim=-1))
    return torch.stack(rows, dim=1)


@EACH
@pytest.mark.parametrize('factors', [FACTORS, (None, 1.5, None, 0.25), None])
def test_sum(name, factors):
    module, x = added(name, factors), randn(2, 7, 6)
    of_input, of_output, of_module_input, of_module = [1.0 if f is None else f for f in factors or [None] * 4]
    beside = module.hybrid_module.fn(of_module_input * x)[0]
    wanted = of_output * module.to_out(attended(module, of_input * x)) + of_module * beside
    assert_close(module(x), wanted, tolerance=TIGHT)
    assert not any('hybrid_norms' in key for key in module.state_dict())


@EACH
def test_mean(name):
    module = randomised(Attention(6, **HEADS, hybrid_module=name, hybrid_kwargs=NAMES[name]))
    x = randn(2, 7, 6)
    parts = []
    for out, norm in zip((attended(module, x), module.hybrid_module.fn(x)[0]), module.hybrid_norms, strict=True):
        heads = out.unflatten(-1, (2, 4))
        heads = heads / heads.square().mean(dim=-1, keepdim=True).sqrt()
        parts.append((heads * (1 + norm.gamma).squeeze(1)).flatten(2))
    assert_close(module(x), module.to_out(sum(parts) / 2), tolerance=TIGHT)


def test_sums_of_another_width():
    module = added('mamba2', dim_out=5)
    assert module(randn(2, 3, 6)).shape == (2, 3, 5)
    own = nn.Linear(6, 6)
    made = randomised(Attention(6, **HEADS, hybrid_module=own, hybrid_merge='sum'))
    x = randn(2, 7, 6)
    assert_close(made(x), made.to_out(attended(made, x)) + made.hybrid_module.fn(x), tolerance=TIGHT)
    with pytest.raises(ValueError, match=r'`hybrid_module` gave shape \(2, 7, 8\), it must be \(2, 7, 6\)'):
        randomised(Attention(6, **HEADS, hybrid_module=nn.Linear(6, 8), hybrid_merge='sum'))(x)


def stack(name: str, merge: str, kind=Decoder):
    flags = dict(attn_hybrid_module=name, attn_hybrid_kwargs=NAMES[name], attn_hybrid_merge=merge)
    return randomised(kind(dim=6, depth=2, heads=2, attn_dim_head=4, **flags))


@EACH
@pytest.mark.parametrize('merge', ['mean', 'sum'])
def test_padding_costs_no_second_run(name, merge):
    """Real tokens are as without padding; a cached step runs on the new tokens alone."""
    net, x = stack(name, merge), randn(2, 9, 6)
    real = torch.tensor([[True] * 9, [False, False, True, True, False, True, True, True, True]])
    whole = net(x, mask=real)
    assert_close(whole[1, real[1]], net(x[1:, real[1]])[0], tolerance=TIGHT)
    seen = []
    for layer in net.layers[::2]:
        layer[1].hybrid_module.fn.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    outs, trace = [], None
    for start, stop in ((0, 5), (5, 6), (6, 9)):
        out, trace = net(
            x[:, start:stop], mask=real[:, :stop], cache=trace, return_hiddens=True, input_not_include_cache=True
        )
        outs.append(out)
    assert_close(torch.cat(outs, dim=1)[real], whole[real], tolerance=TIGHT)
    assert seen == [5, 5, 1, 1, 3, 3]


@EACH
@pytest.mark.parametrize('merge', ['mean', 'sum'])
def test_documents(name, merge):
    net, x = stack(name, merge), randn(2, 9, 6)
    ids = torch.tensor([0] * 4 + [1] * 5).expand(2, -1)
    out = net(x, document_ids=ids)
    assert_close(out[:, :4], net(x[:, :4]), tolerance=TIGHT)
    assert_close(out[:, 4:], net(x[:, 4:]), tolerance=TIGHT)
    real = torch.arange(9) > torch.tensor([[-1], [1]])
    assert_close(net(x, document_ids=ids, mask=real)[1, 2:4], net(x[1:, 2:4])[0], tolerance=TIGHT)
    out = stack(name, merge, Encoder)(x, document_ids=ids)
    assert_close(out[:, 4:], stack(name, merge, Encoder)(x[:, 4:]), tolerance=TIGHT)


def test_gradients():
    module, x = added('gated_delta'), randn(1, 4, 6).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))


REFUSED = {
    'keyword': (dict(hybrid_module='ssm', hybrid_kwargs=dict(stat=3)), "`hybrid_kwargs` of 'ssm' may have .*`stat`"),
    'name': (dict(hybrid_module='sm'), "`hybrid_module` must be one of .*'ssm'.*got 'sm'"),
    'built': (
        dict(hybrid_module=nn.Linear(6, 8), hybrid_kwargs=dict(state=3)),
        '`hybrid_kwargs` cannot be combined with a custom `hybrid_module`',
    ),
    'mask': (
        dict(hybrid_module='ssm', hybrid_mask_kwarg='m'),
        '`hybrid_mask_kwarg` cannot be combined with a named',
    ),
    'mix': (
        dict(hybrid_module='ssm', hybrid_merge='sum', hybrid_learned_mix=True),
        "`hybrid_learned_mix` cannot be combined with `hybrid_merge='sum'`",
    ),
    'factors': (dict(hybrid_module='ssm', hybrid_factors=FACTORS), "`hybrid_factors` cannot be combined with .*'mean'"),
    'three': (dict(hybrid_module='ssm', hybrid_factors=(1.0, 2.0, 3.0)), '`hybrid_factors` must be four numbers'),
}


@pytest.mark.parametrize('case', REFUSED)
def test_what_is_refused(case):
    flags, words = REFUSED[case]
    with pytest.raises((ConfigError, ValueError), match=words):
        Attention(6, **HEADS, **flags)


class NoState(nn.Module):
    cuts_documents = True

    def forward(self, x, state=None, mask=None, document_ids=None):
        return x


def test_modules_that_take_documents_give_a_state():
    module = Attention(8, heads=2, dim_head=4, hybrid_module=NoState())
    with pytest.raises(ValueError, match='`hybrid_module` gave Tensor, it must be a pair of output and state'):
        module(randn(1, 2, 8).float())


def test_folded_modules_join_documents():
    module = randomised(Attention(6, **HEADS, hybrid_module='ssm', hybrid_fold_axial_dim=2))
    with pytest.raises(ValueError, match='`document_ids` cannot be combined with `hybrid_module`'):
        module(randn(1, 4, 6), document_ids=torch.zeros(1, 4).long())


# beside another library


@pytest.mark.slow
def test_falcon_h1():
    """A layer of Falcon-H1: what stands between its two norms, at one position, where rotations change nothing."""
    transformers = pytest.importorskip('transformers')
    importlib.import_module('transformers.models.falcon_h1.modeling_falcon_h1')
    of_input, of_output, of_module_input, of_module, of_keys = 0.5, 1.5, 0.75, 1.25, 0.3
    config = transformers.FalconH1Config(
        hidden_size=8, intermediate_size=16, vocab_size=8, num_hidden_layers=1, num_attention_heads=4, head_dim=4,
        num_key_value_heads=4, mamba_d_ssm=16, mamba_n_heads=4, mamba_d_head=4, mamba_d_state=6, mamba_n_groups=2,
        mamba_chunk_size=8, mamba_rms_norm=False, attention_in_multiplier=of_input,
        attention_out_multiplier=of_output, ssm_in_multiplier=of_module_input, ssm_out_multiplier=of_module,
        key_multiplier=of_keys, attn_implementation='eager',
    )  # fmt: skip
    theirs = randomised(transformers.FalconH1Model(config)).eval()
    layer, found = theirs.layers[0], {}
    layer.input_layernorm.register_forward_hook(lambda module, args, out: found.update(x=args[0], normed=out))
    layer.pre_ff_layernorm.register_forward_hook(lambda module, args, out: found.update(mixed=args[0]))
    with torch.no_grad(), lifted():
        theirs(
            inputs_embeds=randn(2, 20, 8),
            position_ids=torch.zeros(2, 20).long(),
            attention_mask=torch.ones(2, 20).long(),
            use_cache=False,
        )
    ours = Attention(
        8, heads=4, dim_head=4, causal=True, softmax_scale=of_keys / 2, hybrid_module='mamba2',
        hybrid_kwargs=dict(heads=4, dim_head=4, state=6, groups=2, norm=None), hybrid_merge='sum',
        hybrid_factors=(of_input, of_output, of_module_input, of_module),
    ).double().eval()  # fmt: skip
    weights = {}
    for name, t in layer.self_attn.state_dict().items():
        weights[f'to_{name[0]}.weight' if name[0] != 'o' else 'to_out.weight'] = t
    for name, t in layer.mamba.state_dict().items():
        weights['hybrid_module.fn.' + name.replace('conv1d', 'conv')] = t
    ours.load_state_dict(weights)
    with torch.no_grad():
        assert_close(ours(found['normed']), found['mixed'] - found['x'], tolerance=TIGHT)
