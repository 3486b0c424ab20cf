"""`Attend` alone, as a part of attention, and what hooks on it and on attention see."""

import copy
import pickle

import pytest
import torch
from sweeps import naming
from torch import nn

import x_transformers
from x_transformers import Attention, Decoder, Encoder, TransformerWrapper
from x_transformers.attend import Attend, Intermediates
from x_transformers.cache import LayerIntermediates
from x_transformers.flags import ConfigError

NEG = torch.finfo(torch.double).min
PUBLISHED = {'mask', 'attn_bias', 'prev_attn', 'attn_delta', 'row_mask', 'flash_pack_seq_kwargs', 'causal'}


class Adds(nn.Module):
    """A contextual bias, in place of CoPE."""

    def forward(self, q, logits):
        return q.sum(dim=-1, keepdim=True) * logits.clamp(-1, 1)


def double_softmax(logits):
    return 2 * logits.softmax(dim=-1)


FLAGS = {
    'plain': {},
    'fused': dict(flash=True),
    'formula': dict(flash=False),
    'one backend': dict(flash=True, sdp_kwargs=dict(enable_math=True)),
    'scale': dict(scale=0.7, qk_norm=True),
    'pre': dict(pre_talking_heads=True),
    'post': dict(post_talking_heads=True),
    'pre scale post': dict(pre_scale_post_talking_heads=True),
    'topk': dict(sparse_topk=2),
    'l2': dict(l2_distance=True, scale=0.3),
    'sigmoid': dict(sigmoid=True),
    'hard': dict(hard=True),
    'signed': dict(cog_signed=True),
    'own': dict(custom_attn_fn=double_softmax),
    'clamp': dict(softclamp_logits=True, logit_softclamp_value=0.5),
    'zero': dict(add_zero_kv=True),
    'sink': dict(head_learned_sink=True),
    'selective': dict(selective=True),
    'cope': dict(cope=Adds()),
    'inverted': dict(inverted_attention=True),
    'many': dict(pre_talking_heads=True, post_talking_heads=True, head_learned_sink=True, sparse_topk=2),
}


def operands(rows=5, keys=5, heads=4, kv_heads=4):
    torch.manual_seed(0)
    q = torch.randn(2, heads, rows, 8, dtype=torch.double)
    return q, *(torch.randn(2, kv_heads, keys, width, dtype=torch.double) for width in (8, 3))


def mixed(weight, t):
    return torch.einsum('oh,bhij->boij', weight.flatten(1), t)


def oracle(attend, flags, q, k, v, mask=None, attn_bias=None, prev_attn=None, attn_delta=None, causal=False):
    """The operator step by step."""
    heads, on = q.shape[1], lambda name: flags.get(name)
    k, v = (t.repeat(1, heads // t.shape[1], 1, 1) for t in (k, v))
    seen = torch.ones(len(q), 1, q.shape[2], k.shape[2], dtype=torch.bool)
    if mask is not None:
        seen = seen & (mask[:, None, None] if mask.ndim == 2 else mask)
    behind = k.shape[2] - q.shape[2]
    place = torch.arange(k.shape[2])
    late = place > torch.arange(q.shape[2]).unsqueeze(-1) + behind
    if on('add_zero_kv'):
        k, v = (torch.cat((torch.zeros_like(t[:, :, :1]), t), dim=2) for t in (k, v))
        seen, late = nn.functional.pad(seen, (1, 0), value=True), nn.functional.pad(late, (1, 0), value=False)
        attn_bias = None if attn_bias is None else nn.functional.pad(attn_bias, (1, 0))
    if causal and not on('inverted_attention'):
        seen = seen & ~late
    scale = on('scale') or q.shape[-1] ** -0.5
    sim = -torch.cdist(q, k).square() if on('l2_distance') else q @ k.mT
    sim = similarities = sim * scale + (0 if prev_attn is None else prev_attn)
    if on('pre_talking_heads'):
        sim = sim + mixed(attend.pre_softmax_talking_heads.weight, sim)
    sim = sim + (0 if attn_bias is None else attn_bias)
    if on('softclamp_logits'):
        sim = (sim / 0.5).tanh() * 0.5
    signs = sim.sign() if on('cog_signed') else 1.0
    sim = sim.abs() if on('cog_signed') else sim
    sim = sim if on('inverted_attention') else sim.masked_fill(~seen, NEG)
    if on('cope'):
        sim = torch.where(seen, sim + attend.cope(q, sim), NEG)
    if on('selective'):
        votes = sim[:, 0].relu().masked_fill((place == torch.arange(q.shape[2]).unsqueeze(-1) + behind), 0.0)
        votes[..., : behind + 1] = 0.0
        sim = torch.where(seen, sim - (votes.cumsum(dim=1) - votes).unsqueeze(1), NEG)
    if on('head_learned_sink'):
        sink = attend.head_attn_sink[:, None, None].expand(*sim.shape[:-1], 1)
        sim = torch.cat((sink, sim), dim=-1)
    weights = normalised(sim, flags)
    if on('inverted_attention'):
        weights = weights.masked_fill(~seen, 0.0)
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-8)
    weights = weights if attn_delta is None else weights + attn_delta
    weights = recorded = weights * signs
    weights = weights[..., 1:] if on('head_learned_sink') else weights
    if on('post_talking_heads'):
        weights = mixed(attend.post_softmax_talking_heads.weight, weights)
    if on('pre_scale_post_talking_heads'):
        weights = weights * mixed(attend.pre_scale_post_talking_heads.weight, similarities)
    return weights @ v, (similarities, sim, recorded)


def normalised(sim, flags):
    if flags.get('sigmoid'):
        return sim.sigmoid()
    if flags.get('custom_attn_fn'):
        return double_softmax(sim)
    if flags.get('hard'):
        return nn.functional.one_hot(sim.argmax(dim=-1), sim.shape[-1]).double()
    if flags.get('sparse_topk'):
        sim = sim.masked_fill(sim < sim.topk(2, dim=-1).values[..., -1:], NEG)
    return sim.softmax(dim=-2 if flags.get('inverted_attention') else -1)


def built(flags, **more):
    torch.manual_seed(1)
    attend = Attend(heads=4, **copy.deepcopy(flags), **more).double()
    for parameter in attend.parameters():
        nn.init.normal_(parameter)
    return attend


CALLS = {
    'nothing': lambda: ({}, {}),
    'mask': lambda: ({}, dict(mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 1]]).bool())),
    'wide mask': lambda: ({}, dict(mask=torch.ones(5, 5).tril(3).bool().expand(2, 4, 5, 5))),
    'bias': lambda: ({}, dict(attn_bias=torch.randn(4, 5, 5).double())),
    'logits': lambda: ({}, dict(prev_attn=torch.randn(2, 4, 5, 5).double())),
    'fewer queries': lambda: (dict(rows=3), {}),
    'grouped': lambda: (dict(kv_heads=2), {}),
}


@pytest.mark.parametrize('name', FLAGS)
def test_attend_alone_is_its_formula(name):
    for call in CALLS:
        with naming(call):
            formula_law(name, call)


def formula_law(name, call):
    flags, causal = FLAGS[name], name == 'selective'
    attend = built(flags, causal=causal)
    sizes, given = CALLS[call]()
    q, k, v = operands(**sizes)
    if 'prev_attn' in given and (flags.get('flash') or flags.get('add_zero_kv')):
        with pytest.raises(ValueError, match='prev_attn'):
            attend(q, k, v, **given)
        return
    for causal in (True,) if name == 'selective' else (False,) if name == 'inverted' else (False, True):
        out, left = attend(q, k, v, **given, causal=causal)
        wanted, maps = oracle(attend, flags, q, k, v, **given, causal=causal)
        torch.testing.assert_close(out, wanted)
        for got, want in zip(left.to_tuple(), maps, strict=True):
            if name != 'l2':  # squares, made by another way
                torch.testing.assert_close(got.clamp(min=-1e9), want.clamp(min=-1e9))


def tiled(q, k, v, seen, bias, block=2):
    """Online softmax: keys come block by block, the largest score so far m and the sum l are carried along.

    Dao et al. 2022, arXiv:2205.14135
    """
    k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))
    m, l = torch.full_like(q[..., :1], -torch.inf), torch.zeros_like(q[..., :1])
    o = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for begin in range(0, k.shape[2], block):
        part = slice(begin, begin + block)
        scores = q @ k[:, :, part].mT * q.shape[-1] ** -0.5 + bias[..., part]
        scores = scores.masked_fill(~seen[..., part], -torch.inf)
        new = torch.maximum(m, scores.amax(dim=-1, keepdim=True))
        weights = torch.where(new.isinf(), 0.0, (scores - new).exp())
        fade = torch.where(new.isinf(), 0.0, (m - new).exp())
        m, l, o = new, l * fade + weights.sum(dim=-1, keepdim=True), o * fade + weights @ v[:, :, part]
    return torch.where(l == 0, 0.0, o / l.clamp(min=1e-30))


@pytest.mark.parametrize(('dtype', 'near'), [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize('flash', [True, None, False])
def test_online_softmax(flash, dtype, near):
    """Causal with fewer queries than keys, groups of heads, a bias, padding, and a row that sees nothing."""
    attend = Attend(heads=4, flash=flash, causal=True)
    operand = [t.to(dtype).requires_grad_() for t in operands(rows=3, keys=7, kv_heads=2)]
    bias = torch.randn(4, 3, 7).to(dtype)
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0, 1]]).bool()  # of row 1 the last query alone sees
    seen = mask[:, None, None] & torch.ones(3, 7, dtype=torch.bool).tril(4)
    out, _ = attend(*operand, mask=mask, attn_bias=bias)
    twin = [t.detach().double().requires_grad_() for t in operand]
    wanted = tiled(*twin, seen, bias.double())
    assert (wanted[1, :, :2] == 0).all() and (wanted[1, :, 2] != 0).any()
    torch.testing.assert_close(out.double(), wanted, atol=near, rtol=near)
    probe = torch.randn(wanted.shape)
    for got, want in zip(
        torch.autograd.grad((out * probe.to(dtype)).sum(), operand),
        torch.autograd.grad((wanted * probe.to(dtype).double()).sum(), twin),
        strict=True,
    ):
        torch.testing.assert_close(got.double(), want, atol=2 * near, rtol=2 * near)


def test_attend_takes_one_head_of_keys_deltas_and_queries_that_are_padding():
    q, k, v = operands()
    attend = built({})
    out, _ = attend(q, k[:, 0], v[:, 0])
    torch.testing.assert_close(out, attend(q, k[:, :1], v[:, :1])[0])
    delta = torch.randn(2, 4, 5, 5).double()
    torch.testing.assert_close(attend(q, k, v, attn_delta=delta)[0], oracle(attend, {}, q, k, v, attn_delta=delta)[0])
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    inverted = built(FLAGS['inverted'])
    out, _ = inverted(q, k, v, row_mask=real)
    alone, _ = inverted(q[1:, :, :3], k[1:], v[1:])
    torch.testing.assert_close(out[1:, :, :3], alone)


def test_attend_trains_and_drops_weights_in_training_only():
    q, k, v = (t.requires_grad_() for t in operands())
    attend = built(FLAGS['many'])
    attend(q, k, v)[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (q, k, v, *attend.parameters()))
    dropping = Attend(dropout=0.5)
    torch.testing.assert_close(dropping.eval()(q, k, v)[0], Attend()(q, k, v)[0])
    assert not torch.allclose(dropping.train()(q, k, v)[0], Attend()(q, k, v)[0])


def test_attend_can_be_copied_and_saved():
    attend = built(FLAGS['many'])
    given = operands()
    for twin in (copy.deepcopy(attend), pickle.loads(pickle.dumps(attend))):
        torch.testing.assert_close(twin(*given)[0], attend(*given)[0])
    fresh = Attend(heads=4, **FLAGS['many']).double()
    fresh.load_state_dict(attend.state_dict())
    torch.testing.assert_close(fresh(*given)[0], attend(*given)[0])
    assert {'pre_softmax_talking_heads.weight', 'head_attn_sink'} <= attend.state_dict().keys()


@pytest.mark.parametrize(
    ('build', 'call', 'words'),
    [
        (dict(talking=True), {}, 'unknown keyword `talking`'),
        (dict(head_learned_sink=True), {}, '`heads` is missing'),
        (dict(flash=True, sigmoid=True), {}, '`flash=True` cannot be combined with `sigmoid`'),
        ({}, dict(mask=torch.zeros(2, 5)), '`mask` must .*got torch.float32'),
        ({}, dict(mask=torch.ones(2, 4).bool()), '`attn_mask` must have 5 keys'),
        ({}, dict(k=torch.zeros(2, 3, 5, 8)), '`k` and `v` must .*got shapes'),
        ({}, dict(q=torch.zeros(2, 4, 5, 6)), '`k` must '),
        ({}, dict(flash_pack_seq_kwargs={}), '`flash_pack_seq_kwargs` was given'),
    ],
)
def test_attend_refuses_what_does_not_fit(build, call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        Attend(**build)(**(dict(zip('qkv', operands(), strict=True)) | call))


# as a part of attention

LAYERS = {
    'plain': {},
    'fused': dict(flash=True),
    'memories': dict(num_mem_kv=2, add_zero_kv=True),
    'distance': dict(l2_distance=True),
    'laser': dict(laser=True),
    'selective': dict(selective=True),
    'cope': dict(use_cope=True),
    'sink': dict(head_learned_sink=True, pre_talking_heads=True),
    'window': dict(max_attend_past=2, kv_heads=1),
    'normed': dict(qk_norm=True, sparse_topk=2),
    'all': dict(num_mem_kv=1, add_zero_kv=True, l2_distance=True, selective=True, head_learned_sink=True),
    'inverted': dict(inverted_attention=True, causal=False),
}
INPUTS = {
    'nothing': {},
    'mask': dict(mask=torch.tensor([[True] * 6, [True] * 4 + [False] * 2])),
    'bias': dict(attn_bias=torch.linspace(-1, 1, 72).reshape(2, 6, 6)),
    'keys': dict(attn_mask=torch.arange(36).reshape(6, 6) % 3 > 0),
}


class Restricted(Attend):
    """A subclass that knows the published arguments only."""

    def forward(
        self,
        q,
        k,
        v,
        mask=None,
        attn_bias=None,
        prev_attn=None,
        attn_delta=None,
        row_mask=None,
        flash_pack_seq_kwargs=None,
        causal=None,
    ):
        given = mask, attn_bias, prev_attn, attn_delta, row_mask, flash_pack_seq_kwargs, causal
        return super().forward(q, k, v, *given)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, q, k, v, **given):
        assert given.keys() == PUBLISHED
        return self.inner(q, k, v, **given)


def watched(layer):
    seen = []
    layer.attend.register_forward_hook(lambda module, args, out: seen.append(out))
    return seen


def pre_watched(layer):
    seen = []
    layer.attend.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    return seen


def copied_arguments(layer):
    def copied(module, args, kwargs):
        return args, {name: t.clone() if torch.is_tensor(t) else t for name, t in kwargs.items()}

    layer.attend.register_forward_pre_hook(copied, with_kwargs=True)


def of_another_class(layer):
    layer.attend.__class__ = Restricted


def wrapped(layer):
    layer.attend = Around(layer.attend)


def another_forward(layer):
    old = layer.attend.forward
    layer.attend.forward = lambda *args, **kwargs: old(*args, **kwargs)


@pytest.mark.parametrize(
    'change', [watched, pre_watched, copied_arguments, of_another_class, wrapped, another_forward],
    ids=lambda change: change.__name__,
)  # fmt: skip
@pytest.mark.parametrize('name', LAYERS)
def test_whoever_looks_at_attend_changes_nothing(name, change):
    torch.manual_seed(0)
    layer = Attention(16, heads=2, dim_head=8, **{'causal': True, **LAYERS[name]}).eval()
    x = torch.randn(2, 6, 16)
    changed = copy.deepcopy(layer)
    seen = change(changed)
    for given in INPUTS.values():
        out, left = layer(x, **given, return_intermediates=True)
        got, got_left = changed(x, **given, return_intermediates=True)
        torch.testing.assert_close(got, out)
        torch.testing.assert_close(got_left.post_softmax_attn, left.post_softmax_attn)
        torch.testing.assert_close(got_left.cached_kv, left.cached_kv)
    if change is watched:
        assert len(seen) == 4 and all(isinstance(inter, Intermediates) for _, inter in seen)
        torch.testing.assert_close(seen[-1][1].post_softmax_attn, left.post_softmax_attn)
    if change is pre_watched:
        assert [given.keys() for given in seen] == [PUBLISHED] * 4
        assert seen[1]['mask'] is not None and seen[2]['attn_bias'] is not None


def test_hooks_change_what_attend_is_given_and_gives():
    torch.manual_seed(0)
    layer, x = Attention(16, heads=2, dim_head=8).eval(), torch.randn(2, 6, 16)
    hidden = torch.ones(2, 6).bool()
    hidden[:, 4:] = False
    wanted = layer(x, context=x, context_mask=hidden)
    handle = layer.attend.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, 'mask': hidden}), with_kwargs=True
    )
    torch.testing.assert_close(layer(x, context=x), wanted)
    handle.remove()
    wanted = 2 * layer(x)
    layer.attend.register_forward_hook(lambda module, args, out: (2 * out[0], out[1]))
    torch.testing.assert_close(layer(x), wanted)


def test_what_a_hook_is_given_stands_behind_the_keys_that_are_added():
    """A delta is that of the keys of tokens; a triangle of fewer keys than queries is no longer one."""
    torch.manual_seed(0)
    layer = Attention(16, heads=2, dim_head=8, causal=True, num_mem_kv=2, flash=False).eval()
    changed, x = copy.deepcopy(layer), torch.randn(2, 6, 16)
    copied_arguments(changed)
    across = dict(context=torch.randn(2, 3, 16), attn_mask=torch.ones(6, 3, dtype=torch.bool))
    for given in (dict(attn_delta=torch.randn(2, 2, 6, 6)), across):
        torch.testing.assert_close(changed(x, **given), layer(x, **given))


def test_a_hook_does_not_change_what_the_layer_makes_of_padding():
    layer, x = Attention(16, heads=2, dim_head=8).eval(), torch.randn(2, 6, 16)
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    layer.attend.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, 'row_mask': None}), with_kwargs=True
    )
    assert (layer(x, mask=mask)[~mask] == 0).all() and (layer(x, mask=mask)[mask] != 0).all()


def test_an_attend_of_ones_own_counts():
    """One with keywords of its own, one that is no Attend, and one that gives no pair."""
    torch.manual_seed(0)
    layer, x = Attention(16, heads=2, dim_head=8, causal=True).eval(), torch.randn(1, 5, 16)
    layer.attend = Attend(causal=True, sigmoid=True)
    torch.testing.assert_close(layer(x), sigmoid_twin(layer)(x))

    class Mean(nn.Module):
        def forward(self, q, k, v, mask=None, **given):
            weights = torch.ones(*q.shape[:-1], k.shape[-2]) / k.shape[-2]
            return weights @ v, Intermediates(post_softmax_attn=weights)

    layer.attend = Mean()
    out, left = layer(x, return_intermediates=True)
    torch.testing.assert_close(out, layer.to_out(layer.to_v(x)).mean(dim=1, keepdim=True).expand_as(out))
    assert left.post_softmax_attn.eq(0.2).all() and left.cached_kv is not None
    layer.attend = nn.Bilinear(8, 8, 8)
    layer.attend.forward = lambda q, k, v, **given: v
    with pytest.raises(TypeError, match='`attend` gave Tensor'):
        layer(x)


def sigmoid_twin(layer):
    twin = Attention(16, heads=2, dim_head=8, causal=True, sigmoid=True).eval()
    twin.load_state_dict(layer.state_dict())
    return twin


@pytest.mark.parametrize('early', [True, False], ids=['before the first call', 'after it'])
def test_a_plain_stack_asks_the_attend_of_ones_own(early):
    torch.manual_seed(0)
    net, x = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8).eval(), torch.randn(1, 5, 16)
    plain = net(x) if not early else copy.deepcopy(net)(x)

    class Nothing(Attend):
        def forward(self, q, k, v, **given):
            out, left = super().forward(q, k, v, **given)
            return 0 * out, left

    net.layers[0][1].attend = Nothing(causal=True)
    assert not torch.allclose(net(x), plain)
    torch.testing.assert_close(net.layers[0][1](x), torch.zeros_like(x))


# what hooks on modules see


def outputs_seen(module, call):
    seen = []
    handle = module.register_forward_hook(lambda module, args, out: seen.append(out))
    call()
    handle.remove()
    return seen[-1]


@pytest.mark.parametrize('flags', [{}, dict(use_layerscale=True, shift_tokens=1), dict(residual_attn=True)], ids=str)
def test_hooks_see_pairs_inside_a_stack(flags):
    torch.manual_seed(0)
    net = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, cross_attend=True, **flags).eval()
    x, context = torch.randn(1, 5, 16), torch.randn(1, 3, 16)
    plain, checked = net(x, context=context), []
    for layer in net.layers:
        for module in layer[1].modules():
            if isinstance(module, Attention) or (module is layer[1] and layer.kind != 'f'):
                checked.append(type(module).__name__)
                out, left = outputs_seen(module, lambda: torch.testing.assert_close(net(x, context=context), plain))
                assert out.shape == x.shape and isinstance(left, Intermediates)
                assert left.post_softmax_attn.sum(dim=-1).allclose(torch.tensor(1.0))
            elif type(module).__name__ == 'FeedForward':
                checked.append('FeedForward')
                assert torch.is_tensor(outputs_seen(module, lambda: net(x, context=context)))
    assert checked.count('Attention') == 4 and checked.count('FeedForward') == 2
    assert torch.is_tensor(outputs_seen(net, lambda: net(x, context=context)))


def test_a_hook_on_all_modules_sees_pairs():
    net, seen = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8).eval(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append((module, out)))
    net(torch.randn(1, 5, 16))
    handle.remove()
    pairs = [out for module, out in seen if isinstance(module, Attention)]
    assert len(pairs) == 2
    for out, left in pairs:
        assert out.shape == (1, 5, 16) and left.post_softmax_attn.sum(dim=-1).allclose(torch.tensor(1.0))


def test_hooks_on_attention_may_change_its_output_and_its_gradient():
    torch.manual_seed(0)
    net, x = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8), torch.randn(1, 5, 16)
    attention, grads = net.layers[0][1], []
    attention.register_full_backward_hook(lambda module, inputs, outputs: grads.append((inputs, outputs)))
    net(x).sum().backward()
    (inputs, outputs), *_ = grads
    assert inputs[0].shape == outputs[0].shape == x.shape and len(outputs) == 2
    attention.register_forward_hook(lambda module, args, out: (torch.zeros_like(out[0]), out[1]))
    without = net.final_norm(x + net.layers[1][1](net.layers[1][0][0](x)))
    torch.testing.assert_close(net(x), without)


def test_a_hook_on_the_stack_of_a_model_sees_what_it_leaves_behind():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2)).eval()
    ids = torch.arange(5).unsqueeze(0)
    plain = net(ids)
    out, left = outputs_seen(net.attn_layers, lambda: torch.testing.assert_close(net(ids), plain))
    assert out.shape == (1, 5, 16) and isinstance(left, LayerIntermediates) and len(left.attn_intermediates) == 1


def test_attend_has_its_published_place():
    assert x_transformers.attend.Attend is Attend
    assert isinstance(Attention(8).attend, Attend)
    with pytest.raises(AttributeError, match='Attent'):
        x_transformers.attend.Attent  # noqa: B018
